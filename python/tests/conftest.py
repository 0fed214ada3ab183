"""A real agent over a plain directory that stands for the PFS.

Each test that changes what is cached uses files of its own, so one agent serves them all. Tests that kill an agent start another.
"""

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

import forebay

REPOSITORY = Path(__file__).resolve().parents[2]

# Twice the default `mount.stamp_granularity_ms`: files younger than that are not cached yet.
SETTLE_S = 0.05


def binary():
    """The program `forebay`: $FOREBAY_BIN, or the newest of what cargo has built."""
    if given := os.environ.get("FOREBAY_BIN"):
        return given
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    built = [path for path in (target / "release/forebay", target / "debug/forebay") if path.exists()]
    if not built:
        pytest.exit(f"no forebay program in {target}: run `cargo build`, or set FOREBAY_BIN", returncode=2)
    return str(max(built, key=lambda path: path.stat().st_mtime))


# Where a test that is ended for its time says so; pytest takes the usual one.
STDERR = None


def pytest_configure():
    global STDERR
    STDERR = os.dup(2)
    # A shell lets its background jobs ignore SIGINT, and whatever they start inherits that: no test
    # could interrupt anything.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def interruptible():
    """A test that leaves SIGINT to another handler takes Ctrl-C from all later ones."""
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before is signal.default_int_handler


class Agent:
    """A running agent: `root` is the PFS it serves."""

    def __init__(self, directory):
        self.root = directory / "pfs"
        self.root.mkdir()
        self.state_dir = directory / "state"
        self.socket = str(self.state_dir / "agent.sock")
        self.log = directory / "agent.log"
        self.process = None

    def start(self):
        command = [binary(), "up", "--foreground", "--pfs", f"test={self.root}", "--capacity", "256MiB"]
        command += ["--state-dir", str(self.state_dir)]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        client = forebay.Client(self.socket, quiet=True)
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError):
                if client.status()["pid"] == self.process.pid:
                    return self
            if self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"the agent did not start:\n{self.log.read_text()}")
            time.sleep(0.01)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.kill()
        subprocess.run(
            [binary(), "down", "--drop", "--state-dir", str(self.state_dir), "--socket", self.socket],
            capture_output=True,
            timeout=30,
            check=False,
        )

    def client(self, **options):
        return forebay.Client(self.socket, **options)

    def file(self, name, data):
        """A file on the PFS, old enough to be cached."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        time.sleep(SETTLE_S)
        return str(path)


@contextlib.contextmanager
def running_agent(directory):
    agent = Agent(directory)
    try:
        yield agent.start()
    finally:
        if agent.process is not None:
            agent.stop()


@pytest.fixture(scope="session")
def session_agent(tmp_path_factory):
    with running_agent(tmp_path_factory.mktemp("agent")) as agent:
        yield agent


@pytest.fixture
def agent(session_agent, monkeypatch):
    """The shared agent, also for what finds it by the environment."""
    monkeypatch.setenv("FOREBAY_SOCKET", session_agent.socket)
    # Set, so that what `begin_job` puts there is undone with it.
    monkeypatch.setenv("FOREBAY_JOB", "")
    monkeypatch.setattr(forebay.process, "_client", None)
    _forget_file_systems()
    yield session_agent
    _forget_file_systems()


@pytest.fixture
def own_agent(tmp_path):
    """An agent of the test's own, which it may kill."""
    with running_agent(tmp_path) as agent:
        yield agent


@pytest.fixture
def fs(agent):
    from forebay.fs import ForebayFileSystem

    return ForebayFileSystem(socket=agent.socket)


@pytest.fixture
def directory(agent, request):
    """An empty directory on the PFS."""
    # Parameters in the test's name may hold what `glob` takes for a pattern.
    path = Path(tempfile.mkdtemp(prefix=request.node.originalname + "-", dir=agent.root))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def need(module):
    """Imports a library; a test that has none is left out, but not in CI, which installs all of them."""
    if os.environ.get("CI") == "true":
        return importlib.import_module(module)
    return pytest.importorskip(module, reason=f"{module} is not installed; python/run-tests installs it")


def _forget_file_systems():
    """fsspec keeps file systems by their arguments; the agent comes from the environment."""
    from forebay.fs import ForebayFileSystem

    ForebayFileSystem.clear_instance_cache()


def pattern(size, seed=1):
    """Bytes in which every 8 differ from their neighbours, so that a byte in the wrong place is seen."""
    return b"".join((seed << 40 | i).to_bytes(8, "little") for i in range(-(-size // 8)))[:size]
