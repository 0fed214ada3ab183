"""Ctrl-C ends a long read before all of it is read."""

import subprocess
import sys

# A thread waits for the first bytes to arrive and sends the signal. The read may be over by then,
# so it is tried often; a read that lets no signal in fills the whole buffer each time.
INTERRUPTED = """
import os, signal, sys, threading

# A test run in the background of a shell inherits that SIGINT is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
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
