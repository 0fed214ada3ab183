"""File objects behave as those of the standard library."""

import errno
import io
import os
import pickle
import subprocess
import sys

import pytest
from conftest import binary, pattern

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


def test_a_file_that_nobody_holds_is_read_to_its_end(agent):
    path = agent.file("held by nobody", b"one\ntwo\n")
    assert forebay.open(path, "rb").read() == b"one\ntwo\n"
    assert list(forebay.open(path, "rb")) == [b"one\n", b"two\n"]
    assert forebay.open(path, "rb").readlines() == [b"one\n", b"two\n"]
    assert next(forebay.open(path)) == "one\n"
    opened = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        forebay.open(path, "rb").fileno()
    assert len(os.listdir("/proc/self/fd")) == opened, "a file that is collected must be closed"


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


def test_a_closed_file_does_nothing(agent):
    path = agent.file("closed", b"data")
    file = forebay.open(path, "rb")
    file.close()
    file.close()
    operations = [file.read, file.readline, file.tell, file.readable, file.seekable, file.fileno, file.map, file.__enter__, file.flush, file.peek]
    operations += [lambda: file.seek(0), lambda: file.size, lambda: list(file), lambda: file.read_at(0, 1), lambda: file.readinto(bytearray(1))]
    for operation in operations + [lambda: pickle.dumps(file)]:
        with pytest.raises(ValueError, match="closed"):
            operation()
    assert file.closed and file.name == path


def test_a_pickled_file_goes_on_where_it_was(agent, fs):
    path = agent.file("pickled", b"0123456789")
    for file in (forebay.open(path, "rb"), fs.open(path)):
        assert file.read(3) == b"012"
        again = pickle.loads(pickle.dumps(file))
        assert again.read() == file.read() == b"3456789"
    with forebay.open(path, "rb") as file:
        pickled = pickle.dumps(file)
    agent.file("pickled", b"abcdefghijklm")
    with pytest.raises(OSError, match="changed since the file was pickled") as caught:
        pickle.loads(pickled)
    assert caught.value.errno == errno.ESTALE
    with forebay.open(path, "rb", client=agent.client()) as file, pytest.raises(TypeError, match="client="):
        pickle.dumps(file)
    with forebay.open(path + ".new", "wb") as file, pytest.raises(TypeError, match="pickle"):
        pickle.dumps(file)


@pytest.mark.parametrize("arguments", [(3,), (None,), ("/f", 3), ("/f", "rb", "x")])
def test_arguments_of_a_wrong_type_are_type_errors(arguments):
    with pytest.raises(TypeError):
        forebay.open(*arguments)


@pytest.mark.parametrize(
    "code, length",
    [
        ("f = forebay.open(path, 'wb'); f.write(b'x' * 10)", 10),
        ("f = forebay.open(path, 'w'); f.write('x' * 10); sys.exit(0)", 10),
        ("f = forebay.open(path, 'wb'); f.write(b'x' * 9); f.seek(5); f.write(b'y' * 5)", 10),
    ],
)
def test_a_writer_that_is_open_when_the_program_ends_writes_what_it_has(agent, directory, code, length):
    path = directory / "left open"
    done = subprocess.run([sys.executable, "-c", f"import sys, forebay; path = sys.argv[1]; {code}", path], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert path.stat().st_size == length


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


@pytest.mark.parametrize("mode", ["", "rw", "bt", "q", "b", "+", "r++", "rbb", "+r+b", "rU", " r"])
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
    with pytest.raises(ValueError, match="'bypass', 'through', 'memory' or 'back'"):
        forebay.open(path, "w", write_mode="fast")


def test_an_error_of_the_pfs_at_close_is_the_programs_error(agent):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full to stand for a full file system")
    file = forebay.open("/dev/full", "wb")
    file.write(b"x")
    with pytest.raises(OSError, match="No space left"):
        file.close()
    assert file.closed


def test_a_file_is_written_back(agent, directory):
    path = directory / "checkpoint"
    with forebay.open(path, "wb", write_mode="back") as file:
        file.write(b"x" * 3_000_000)
    with forebay.open(path, "rb") as file:
        assert file.read() == b"x" * 3_000_000
    subprocess.run([binary(), "--socket", agent.socket, "sync", "--quiet", path], check=True, timeout=60, capture_output=True)
    assert path.read_bytes() == b"x" * 3_000_000
