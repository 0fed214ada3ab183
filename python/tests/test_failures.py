"""Whatever happens to the agent, the program reads its files, and hears of it once."""

import os
import subprocess
import sys

import pytest
from conftest import pattern

import forebay
from forebay.fs import ForebayFileSystem

# A process of its own, since the warning comes once in the life of a client.
WITHOUT_AGENT = """
import sys, forebay
from forebay.fs import ForebayFileSystem
directory = sys.argv[1]
fs = ForebayFileSystem()
for i in range(20):
    fs.pipe_file(f"{directory}/{i}", b"data%d" % i)
    assert fs.cat_file(f"{directory}/{i}") == b"data%d" % i
with forebay.open(f"{directory}/0", "rb") as file:
    assert file.read() == b"data0" and file.version is None and file.map() is None
assert len(fs.ls(directory)) == 20
assert forebay.residency(f"{directory}/0")["resident_bytes"] == 0
try:
    forebay.status()
except OSError as error:
    print("status:", type(error).__name__)
try:
    forebay.open(f"{directory}/0", "rb", read_mode="tier")
except OSError as error:
    print("tier:", error.errno)
"""


def run(code, *arguments, **environment):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment}, check=False)


def test_without_an_agent_all_works_with_one_warning(tmp_path):
    socket = tmp_path / "nobody.sock"
    (tmp_path / "d").mkdir()
    done = run(WITHOUT_AGENT, tmp_path / "d", FOREBAY_SOCKET=str(socket))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["status:", "OSError", "tier:", "107"]
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert str(socket) in done.stderr and "reading the file system directly" in done.stderr


def test_switched_off_it_says_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"data")
    code = "import forebay, sys; print(forebay.open(sys.argv[1], 'rb').read())"
    done = run(code, path, FOREBAY_SOCKET="none")
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'data'\n", "")


def test_the_agent_is_killed_while_a_file_is_read(own_agent, capfd):
    data = pattern(16 << 20)
    path = own_agent.file("read", data)
    client = own_agent.client()
    with client.open(path) as file:
        buffer = bytearray(1 << 20)
        for i in range(16):
            if i == 4:
                own_agent.kill()
            assert file.readinto(buffer, i << 20) == 1 << 20
            assert buffer == data[i << 20 : (i + 1) << 20]
    assert own_agent.process.returncode == -9, "the agent must have died"
    with client.open(path) as file:
        assert not file.tiered and file.read_at(0, 1 << 30) == data
    assert capfd.readouterr().err.count("reading the file system directly") == 1
    with pytest.raises(OSError):
        client.status()


def test_the_agent_comes_back(own_agent):
    path = own_agent.file("again", pattern(1 << 20))
    fs = ForebayFileSystem(socket=own_agent.socket, quiet=True)
    fs.cat_file(path)
    own_agent.kill()
    assert fs.cat_file(path) == pattern(1 << 20)
    own_agent.start()
    # After a failure the client leaves the agent alone for a second.
    import time

    time.sleep(1.1)
    with fs.open(path) as file:
        assert file.version is not None
    assert fs.client.status()["pid"] == own_agent.process.pid


def test_the_agent_is_killed_while_a_file_is_written(own_agent):
    data = pattern(16 << 20)
    client = own_agent.client(quiet=True)
    path = own_agent.root / "written"
    with client.create(path) as writer:
        for i in range(16):
            if i == 4:
                own_agent.kill()
            writer.write(data[i << 20 : (i + 1) << 20])
    assert path.read_bytes() == data


def test_who_may_not_open_a_file_gets_no_cached_bytes(agent):
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    path = agent.file("secret", b"secret")
    os.chmod(path, 0o600)
    forebay.load(path)
    code = "import os, sys, forebay; os.setuid(65534); forebay.open(sys.argv[1], 'rb').read()"
    os.chmod(agent.root, 0o755)
    done = run(code, path, FOREBAY_SOCKET=agent.socket)
    assert done.returncode == 1 and "PermissionError" in done.stderr, done.stderr
