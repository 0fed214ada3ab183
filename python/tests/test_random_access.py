"""Writing at any position, reading back, and descriptors: as with the files of the standard library."""

import io
import os
import subprocess
import sys
import time

import pytest
from conftest import SETTLE_S, pattern

import forebay


def resident(path):
    return forebay.residency(path)["resident_bytes"]


def visit(file):
    """Every operation of a file that is written at many places; what it returned, step by step."""
    seen = [file.write(b"0123456789" * 1000), file.tell(), file.seek(5), file.write(b"five"), file.tell()]
    seen += [file.seek(0, io.SEEK_END), file.write(b"end"), file.seek(-1, io.SEEK_CUR), file.write(b"D")]
    seen += [file.seek(20_000), file.write(b"behind a hole"), file.flush(), file.truncate(20_005), file.tell()]
    seen += [file.seekable(), file.writable(), file.truncate(), file.seek(2), file.truncate(), file.write(b"x"), file.closed]
    return seen


@pytest.mark.parametrize("mode", ["wb", "xb", "w+b", "x+b", "wb+"])
@pytest.mark.parametrize("write_mode", ["through", "bypass"])
def test_a_file_is_written_at_any_position(agent, directory, mode, write_mode):
    with open(directory / "plain", mode) as plain, forebay.open(directory / "ours", mode, write_mode=write_mode) as ours:
        assert visit(ours) == visit(plain)
    assert (directory / "ours").read_bytes() == (directory / "plain").read_bytes()
    with forebay.open(directory / "ours", "rb") as file:
        assert file.read() == (directory / "plain").read_bytes()


def test_only_a_seek_to_elsewhere_ends_the_copy_in_the_tier(agent, directory):
    path = directory / "file"
    with forebay.open(path, "wb") as file:
        file.write(b"a" * 100)
        assert file.seek(100) == file.seek(0, io.SEEK_CUR) == file.seek(0, io.SEEK_END) == 100
        file.write(b"b" * 100)
    assert resident(path) == 200
    with forebay.open(path, "wb") as file:
        file.write(b"a" * 100)
        file.seek(0)
        file.write(b"b" * 50)
    assert resident(path) == 0, "the tier must not keep a file that it has not seen whole"
    time.sleep(SETTLE_S)
    with forebay.open(path, "rb") as file:
        assert file.read() == b"b" * 50 + b"a" * 50
    assert resident(path) == 100


def test_a_cached_file_changed_in_place_is_read_anew(agent):
    path = agent.file("changed in place", pattern(3 << 20))
    forebay.load(path)
    with forebay.open(path, "r+b") as file:
        file.seek(1 << 20)
        assert file.read(8) == pattern(3 << 20)[1 << 20 : (1 << 20) + 8]
        file.seek(-8, io.SEEK_CUR)
        file.write(b"mended!!")
        file.seek(-8, io.SEEK_CUR)
        assert file.read(8) == b"mended!!", "what was written is read back"
        assert file.readable() and file.writable() and file.seekable() and file.name == path and file.mode == "rb+"
    with forebay.open(path, "rb") as file:
        assert file.read_at(1 << 20, 8) == b"mended!!"


@pytest.mark.parametrize("mode", ["r+", "w+", "a+", "r+t", "+a"])
def test_text_is_read_and_written(agent, directory, mode):
    path = directory / "text"
    path.write_text("old\n")
    with forebay.open(path, mode, encoding="utf-8") as file:
        file.seek(0, io.SEEK_END)
        file.write("grüße\n")
        file.seek(0)
        assert file.read().endswith("grüße\n")


def test_what_cannot_be_done_says_what_can(agent, directory):
    with forebay.open(directory / "file", "wb") as file:
        with pytest.raises(io.UnsupportedOperation, match="'w\\+b'"):
            file.read()
        with pytest.raises(ValueError, match="whence"):
            file.seek(0, 9)
        with pytest.raises(OSError, match="negative seek position"):
            file.seek(-1)
        with pytest.raises(TypeError):
            file.seek(1.5)
    for operation in (file.tell, file.flush, file.fileno, file.seekable, file.writable, file.truncate, lambda: file.write(b""), lambda: file.seek(0)):
        with pytest.raises(ValueError, match="closed"):
            operation()
    with forebay.open(directory / "file", "rb") as file:
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
        with pytest.raises(ValueError, match="whence"):
            file.seek(0, 9)


def test_a_memory_only_file_says_why_it_cannot_be_changed_in_place(agent, directory):
    forebay.begin_job()
    path = directory / "scratch"
    with forebay.open(path, "wb", write_mode="memory") as file:
        file.write(b"data")
        assert not file.seekable() and file.seek(4) == 4
        for operation in (lambda: file.seek(0), file.truncate, file.fileno):
            with pytest.raises(io.UnsupportedOperation, match="memory-only"):
                operation()
    with forebay.open(path, "rb") as file:
        assert file.read() == b"data"
    for mode, options in (("r+b", {}), ("w+b", {"write_mode": "memory"})):
        with pytest.raises(OSError, match="memory-only file cannot be opened"):
            forebay.open(path, mode, **options)
    assert os.listdir(directory) == [], "none of it may reach the PFS"
    forebay.default_client().remove(path)


def test_the_descriptor_of_a_reader_is_the_file_at_a_position_of_its_own(agent):
    path = agent.file("descriptor", pattern(100_000))
    with forebay.open(path, "rb") as file:
        assert file.read(10) == pattern(100_000)[:10]
        fd = file.fileno()
        assert fd == file.fileno() and os.fstat(fd).st_size == 100_000 and not os.get_inheritable(fd)
        assert os.pread(fd, 8, 800) == pattern(100_000)[800:808]
        os.lseek(fd, 50_000, os.SEEK_SET)
        assert file.read(10) == pattern(100_000)[10:20], "a seek of the descriptor must not move the file"
        with pytest.raises(OSError):
            os.write(fd, b"x")
    with pytest.raises(OSError):
        os.fstat(fd)
    with pytest.raises(ValueError, match="closed"):
        file.fileno()


def test_a_descriptor_is_not_shared_with_other_readers_or_the_agent(agent):
    path = agent.file("descriptors", pattern(6 << 20))
    with forebay.open(path, "rb") as one, forebay.open(path, "rb") as two:
        os.lseek(one.fileno(), 12345, os.SEEK_SET)
        assert os.lseek(two.fileno(), 0, os.SEEK_CUR) == 0
        assert two.read() == one.read() == pattern(6 << 20)


UNPRIVILEGED = """
import io, os, sys, forebay
path = sys.argv[1]
with forebay.open(path, "rb") as file:
    os.setuid(65534)
    try:
        file.fileno()
    except io.UnsupportedOperation as error:
        print(error)
    assert file.read() == b"secret"
"""


def test_a_file_that_cannot_be_opened_again_has_no_descriptor_and_is_read(agent):
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    path = agent.file("no descriptor", b"secret")
    os.chmod(path, 0o600)
    done = subprocess.run([sys.executable, "-c", UNPRIVILEGED, path], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "cannot be opened again" in done.stdout and path in done.stdout


def test_a_writer_made_durable_by_its_descriptor_has_written_all(agent, directory):
    path = directory / "durable"
    with forebay.open(path, "wb") as file:
        file.write(b"abc")
        os.fsync(file.fileno())
        assert path.read_bytes() == b"abc" and os.lseek(file.fileno(), 0, os.SEEK_CUR) == 3
        file.write(b"def")
        file.sync()
        assert path.read_bytes() == b"abcdef"


def test_an_error_of_the_pfs_after_a_seek_is_the_programs_error(agent):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full to stand for a full file system")
    file = forebay.open("/dev/full", "wb")
    file.write(b"x")
    with pytest.raises(OSError, match="No space left"):
        file.seek(10)
    with pytest.raises(OSError, match="No space left"):
        file.close()
    assert file.closed
