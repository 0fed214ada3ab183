"""What a user reads after a mistake: what was tried, why it failed, and what to do."""

import errno
import os
import signal
import subprocess
import sys

import pytest

import forebay
from forebay.fs import ForebayFileSystem

TIER_FUNCTIONS = {
    "load": lambda path, client: forebay.load(path, client=client),
    "pin": lambda path, client: forebay.pin(path, client=client),
    "unpin": lambda path, client: forebay.unpin(path, client=client),
    "evict": lambda path, client: forebay.evict(path, client=client),
    "status": lambda path, client: forebay.status(client=client),
    "list": lambda path, client: forebay.cached_files(client=client),
    "job": lambda path, client: client.begin_job(),
}


@pytest.mark.parametrize("what", TIER_FUNCTIONS)
def test_without_an_agent_a_tier_function_names_the_socket_and_the_command(what, tmp_path, monkeypatch):
    monkeypatch.delenv("FOREBAY_JOB", raising=False)
    path = tmp_path / "file"
    path.write_bytes(b"data")
    client = forebay.Client(tmp_path / "nobody.sock", quiet=True)
    with pytest.raises(OSError, match="cannot .*" + what) as caught:
        TIER_FUNCTIONS[what](path, client)
    assert caught.value.errno == errno.ENOTCONN and not isinstance(caught.value, FileNotFoundError)
    assert str(client.socket) in str(caught.value) and "forebay up" in str(caught.value)


def test_a_dead_agent_and_one_switched_off_are_told_apart(tmp_path):
    import socket

    dead = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    dead.bind(str(tmp_path / "dead.sock"))
    dead.close()
    with pytest.raises(OSError, match="refused.*forebay up") as caught:
        forebay.status(client=forebay.Client(tmp_path / "dead.sock", quiet=True))
    assert caught.value.errno == errno.ENOTCONN
    with pytest.raises(OSError, match="switched off.*FOREBAY_SOCKET") as caught:
        forebay.status(client=forebay.Client("none"))
    assert caught.value.errno == errno.ENOTCONN


def test_an_agent_that_hangs_is_named(own_agent):
    client = own_agent.client(quiet=True, deadline_s=0.2)
    own_agent.process.send_signal(signal.SIGSTOP)
    try:
        for function in (forebay.status, lambda client: forebay.load("/nowhere", client=client)):
            with pytest.raises(TimeoutError, match="the agent at .*agent.sock") as caught:
                function(client=client)
            assert own_agent.socket in str(caught.value)
    finally:
        own_agent.process.send_signal(signal.SIGCONT)


def test_a_layout_that_the_file_system_does_not_take_costs_one_line_and_not_the_file(tmp_path):
    script = """
import sys, forebay
for number in range(3):
    with forebay.open(f"{sys.argv[1]}/{number}", "xb", layout="stripes:2,size:1MiB") as file:
        file.write(b"content")
"""
    environment = {**os.environ, "FOREBAY_SOCKET": "none", "FOREBAY_QUIET": "0"}
    done = subprocess.run([sys.executable, "-c", script, tmp_path], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("is created without the layout stripes:2,size:1048576") == 1, done.stderr
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == [b"content"] * 3


@pytest.mark.parametrize(("mode", "layout"), [("wb", "stripes:0"), ("wb", "colour:red"), ("rb", "stripes:2"), ("r+b", "stripes:2")])
def test_a_layout_that_makes_no_sense_is_named(tmp_path, mode, layout):
    with pytest.raises(ValueError, match=layout):
        forebay.open(tmp_path / "file", mode, layout=layout, client=forebay.Client("none"))
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("deadline_s", [-1, float("nan"), float("inf"), 1e19, 86_401])
def test_a_deadline_that_no_clock_can_hold_is_refused(deadline_s):
    with pytest.raises(ValueError, match="deadline_s=.*seconds from 0 to 86400"):
        forebay.Client("none", deadline_s=deadline_s)


def test_an_empty_socket_is_refused():
    with pytest.raises(ValueError, match="'none'"):
        forebay.Client("")


def test_a_missing_file_is_still_a_missing_file(tmp_path):
    client = forebay.Client(tmp_path / "nobody.sock", quiet=True)
    with pytest.raises(FileNotFoundError, match="not-there"):
        forebay.evict(tmp_path / "not-there", client=client)


@pytest.mark.parametrize("rate", [0, 1e12, 10**12, "1TB/s", "1000GB", "  2 GiB/s ", "unlimited", 0.5])
def test_a_rate_is_a_number_or_a_text(agent, directory, rate):
    path = directory / "rate"
    path.write_bytes(b"x")
    assert forebay.load(path, rate=rate)["bytes"] == 1


@pytest.mark.parametrize(
    "rate, bytes_per_s",
    [("100MB/s", 10**8), ("1GiB/s", 1 << 30), ("1.5kB/s", 1500), ("20", 20), ("2M", 2 << 20), ("unlimited", 0), (0.25, 1), (7, 7)],
)
def test_a_rate_means_what_it_means_on_the_command_line(rate, bytes_per_s):
    assert forebay._rate_bytes_per_s(rate) == bytes_per_s


@pytest.mark.parametrize("rate", ["fast", "", "1e9", "100MX/s", "-5MB/s", "MB/s", -1, float("nan"), float("inf"), "1e99TB", 2**64, None, True, b"5", [1]])
def test_a_rate_that_is_none_is_refused_with_an_example(rate):
    with pytest.raises(ValueError, match="'100MB/s'") as caught:
        forebay.load("/nowhere", rate=rate, client=forebay.Client("none"))
    assert repr(rate) in str(caught.value)


def test_a_mistyped_storage_option_is_an_error_that_names_the_known_ones(agent, directory):
    with pytest.raises(TypeError, match="'read_mod'; did you mean 'read_mode'.*socket, deadline_s, quiet") as caught:
        ForebayFileSystem(read_mod="pfs")
    assert "auto_mkdir" in str(caught.value)
    pd = pytest.importorskip("pandas")
    with pytest.raises(TypeError, match="'write_mod'"):
        pd.DataFrame({"a": [1]}).to_csv(f"forebay://{directory}/a.csv", storage_options={"write_mod": "bypass"})


def test_a_wrong_value_of_a_storage_option_is_an_error_at_once():
    with pytest.raises(ValueError, match="'cached', 'tier' or 'pfs'"):
        ForebayFileSystem(read_mode="fast")
    with pytest.raises(ValueError, match="'bypass', 'through', 'memory' or 'back'"):
        ForebayFileSystem(write_mode="fast")


def test_options_of_fsspec_itself_are_taken(agent):
    assert ForebayFileSystem(skip_instance_cache=True, use_listings_cache=False, asynchronous=False, max_paths=5)


def test_a_mistyped_option_of_open_is_an_error(fs, directory):
    path = f"{directory}/file"
    fs.pipe_file(path, b"data")
    with pytest.raises(TypeError, match="'read_mod'; did you mean 'read_mode'"):
        fs.open(path, "rb", read_mod="pfs")
    for mistyped in (lambda: fs.cat_file(path, read_mod="pfs"), lambda: fs.cat_ranges([path], 0, 1, read_mod="pfs"), lambda: fs.cat(path, read_mod="pfs")):
        with pytest.raises(TypeError, match="'read_mod'; did you mean 'read_mode'"):
            mistyped()
    assert fs.cat_file(path, read_mode="pfs") == fs.cat(path, read_mode="pfs") == fs.cat_ranges([path], 0, 9, read_mode="pfs")[0] == b"data"
    # What libraries give to every file system, such as fsspec.parquet.
    with fs.open(path, "rb", cache_type="none", cache_options={}, size=4, block_size=1 << 16) as file:
        assert file.read() == b"data"
