"""Runs other systems' daemons for a measurement, and is sure to end them.

A benchmark that leaves a Java master behind spoils every benchmark after it. So: each daemon is a process group of its own, is ended
by its context manager whatever happens (an error, Ctrl-C, SIGTERM to the script), is killed if it does not end in time, and is told by the
kernel (PR_SET_PDEATHSIG) to end should the script itself be killed. Every wait has a deadline, and a daemon that dies while it is waited
for is reported at once with the end of its log.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import threading
import time

PR_SET_PDEATHSIG = 1
STOP_SECONDS = 15
KILL_SECONDS = 60
LOG_TAIL_BYTES = 2000


class Daemon(contextlib.AbstractContextManager):
    """A process in its own group, with its output in a log file, ended on leaving the `with` block."""

    def __init__(self, name, command, *, log_path, env=None):
        self.name = name
        self.log_path = log_path
        libc = ctypes.CDLL(None)
        with open(log_path, "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True,
                preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM))
        self.pid = self.process.pid

    def wait_until(self, ready, *, what, seconds):
        """Polls `ready()` until it is true. RuntimeError with the end of the log if the daemon ends or the time is over."""
        deadline = time.monotonic() + seconds
        while not ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with status {self.process.returncode} before {what}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: not {what} within {seconds} s:\n{self.log_tail()}")
            time.sleep(0.05)

    @contextlib.contextmanager
    def ended_after(self, seconds):
        """Stops the daemon if the block takes longer, so that whoever waits for it gets an error. RuntimeError then."""
        late = threading.Event()

        def end():
            late.set()
            self.stop()
        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except Exception as error:
            if late.is_set():
                raise RuntimeError(f"{self.name}: not done within {seconds} s, so it was stopped:\n{self.log_tail()}") from error
            raise
        finally:
            timer.cancel()

    def log_tail(self):
        """The last lines the daemon wrote."""
        with open(self.log_path, "rb") as log:
            log.seek(max(0, os.path.getsize(self.log_path) - LOG_TAIL_BYTES))
            return log.read().decode(errors="replace").strip() or f"(nothing in {self.log_path})"

    def stop(self):
        """Ends the whole group: SIGTERM, then SIGKILL after STOP_SECONDS."""
        for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=seconds)
                break
        # The leader is gone; whatever it left in the group has no one to end it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def __exit__(self, *_):
        self.stop()


def end_on_sigterm():
    """Makes SIGTERM raise SystemExit in this script, so that the context managers run; for use in main()."""
    def leave(number, _frame):
        raise SystemExit(128 + number)
    signal.signal(signal.SIGTERM, leave)


def run_bounded(command, *, what, seconds, env=None):
    """Runs a command to its end and returns its stdout. RuntimeError, with the end of what it wrote, if it fails or takes too long."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, env=env)
    except subprocess.TimeoutExpired as late:
        raise RuntimeError(f"{what}: not done within {seconds} s ({command[0]}); the machine may be overloaded") from late
    if done.returncode != 0:
        raise RuntimeError(f"{what}: {command[0]} ended with status {done.returncode}:\n{(done.stdout + done.stderr)[-LOG_TAIL_BYTES:]}")
    return done.stdout


def free_ports(count):
    """Loopback TCP ports that were free just now. All are held until all are chosen, so that they differ."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [s.getsockname()[1] for s in sockets]


def accepts(port):
    """Whether something listens on this loopback port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
