"""Ctrl-C ends a long read before all of it is read."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from conftest import binary

# A thread waits for the first bytes to arrive and sends the signal. The read may be over by then,
# so it is tried often; a read that lets no signal in fills the whole buffer each time.
INTERRUPTED = """
import os, signal, sys, threading

import forebay

size, path = 256 << 20, sys.argv[1]
buffer = bytearray(size)

def interrupt():
    while not buffer[0]:
        pass
    os.kill(os.getpid(), signal.SIGINT)

for attempt in range(50):
    buffer[0] = buffer[-1] = 0
    thread = threading.Thread(target=interrupt)
    with forebay.open(path, "rb", read_mode="pfs") as file:
        thread.start()
        try:
            file.readinto_at(buffer, 0)
            thread.join()
        except KeyboardInterrupt:
            pass
        thread.join()
        if buffer[-1] == 0:
            print("interrupted")
            break
"""


def test_ctrl_c_ends_a_long_read(agent, directory):
    path = directory / "long"
    size = 256 << 20
    with open(path, "wb") as file:
        # A hole between two bytes: long to read and quick to make.
        file.write(b"a")
        file.seek(size - 1)
        file.write(b"z")
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, path], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def test_the_tests_interrupt_in_the_background_of_a_shell_too():
    """There SIGINT is ignored, and a run without end that a test cannot interrupt fills the memory."""
    tests = [str(Path(__file__).with_name("test_sim.py")), "-k", "ctrl_c_stops_a_run", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *tests],
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        env={**os.environ, "FOREBAY_BIN": binary()},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr
