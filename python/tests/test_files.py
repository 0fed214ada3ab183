"""File objects behave as those of the standard library."""

import io
import os

import pytest
from conftest import pattern

import forebay


def test_a_reader_does_what_a_plain_file_does(agent):
    data = b"".join(b"line %d\n" % i for i in range(100_000))
    path = agent.file("lines", data)

    def visit(file):
        seen = [file.readline(), file.read(3), file.tell(), file.seek(1000), file.read(500_000), file.tell()]
        buffer = bytearray(300_000)
        seen += [file.readinto(buffer), bytes(buffer), file.seek(-5, io.SEEK_END), file.read(), file.read(1)]
        seen += [file.seek(10), file.seek(-3, io.SEEK_CUR), file.peek(1)[:1], file.readlines()[-1], file.seek(10**9), file.read()]
        return seen

    with open(path, "rb") as plain, forebay.open(path, "rb") as ours:
        assert visit(ours) == visit(plain)
        assert ours.size == len(data) and ours.name == path and ours.readable() and not ours.writable()
        assert ours.read_at(5, 6) == data[5:11]
        with pytest.raises(OSError):
            ours.seek(-1)
    with pytest.raises(ValueError, match="closed"):
        ours.read()
    with forebay.open(path) as ours, open(path) as plain:
        assert list(ours) == list(plain)
    with forebay.open(f"forebay://{path}", "rb") as ours:
        assert sum(1 for _ in ours) == 100_000


def test_a_writer_does_what_a_plain_file_does(agent, directory):
    path = directory / "out"
    with forebay.open(path, "w", encoding="utf-8") as text:
        text.write("grüße\n")
        print(1, 2, file=text)
    assert path.read_bytes() == "grüße\n1 2\n".encode()
    with forebay.open(path, "ab") as binary:
        assert binary.tell() == 12 and binary.write(b"!") == 1 and binary.tell() == 13
        binary.flush()
        assert path.read_bytes().endswith(b"!")
        binary.sync()
    with pytest.raises(FileExistsError):
        forebay.open(path, "x")
    with forebay.open(path, "wb", write_mode="bypass") as binary:
        binary.writelines([b"a", b"b"])
    assert path.read_bytes() == b"ab"
    with pytest.raises(ValueError):
        binary.write(b"c")


def test_large_reads_skip_the_buffer(agent):
    """A large `readinto` reaches the core with the caller's own memory, in one call."""
    path = agent.file("large", pattern(4 << 20))
    with forebay.open(path, "rb") as file:
        calls = []
        raw = file.raw
        original = raw._file

        class Spy:
            def readinto(self, buffer, offset):
                calls.append((len(buffer), offset))
                return original.readinto(buffer, offset)

        raw._file = Spy()
        target = bytearray(1 << 20)
        assert file.readinto(target) == 1 << 20 and calls == [(1 << 20, 0)]
        assert file.readinto(target) == 1 << 20 and calls[1:] == [(1 << 20, 1 << 20)]
        raw._file = original
        assert target == pattern(4 << 20)[1 << 20 : 2 << 20]


@pytest.mark.parametrize("mode", ["", "rw", "r+", "rb+", "bt", "q"])
def test_modes_that_make_no_sense_are_refused(agent, mode):
    path = agent.file("modes", b"")
    with pytest.raises(ValueError):
        forebay.open(path, mode)


def test_arguments_that_do_not_fit_are_refused(agent):
    path = agent.file("modes", b"")
    with pytest.raises(ValueError, match="encoding"):
        forebay.open(path, "rb", encoding="utf-8")
    with pytest.raises(ValueError, match="three slashes"):
        forebay.open("forebay://pfs/data")
    with pytest.raises(ValueError, match="'bypass', 'through' or 'memory'"):
        forebay.open(path, "w", write_mode="fast")


def test_an_error_of_the_pfs_at_close_is_the_programs_error(agent):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full to stand for a full file system")
    file = forebay.open("/dev/full", "wb")
    file.write(b"x")
    with pytest.raises(OSError, match="No space left"):
        file.close()
    assert file.closed
