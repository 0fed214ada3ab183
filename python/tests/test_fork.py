"""Children of a fork: each speaks to the agent on connections of its own."""

import multiprocessing
import os
import warnings

import pytest
from conftest import pattern

import forebay

SIZE = 8 << 20


@pytest.fixture(autouse=True)
def forks_are_meant():
    # Newer versions of Python warn of forks in processes with threads, of which pytest may have
    # some.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _read(arguments):
    path, offset, length = arguments
    with forebay.open(path, "rb") as file:
        assert file.version is not None, "the child must reach the agent"
        return file.read_at(offset, length)


def test_a_pool_of_forked_processes(agent):
    data = pattern(SIZE)
    path = agent.file("forked", data)
    with forebay.open(path, "rb") as file:
        # The parent has open connections, a handle and a mapping when it forks.
        file.read(10)
        pieces = [(path, i * 100_000, 100_000) for i in range(SIZE // 100_000)]
        with multiprocessing.get_context("fork").Pool(4) as pool:
            read = pool.map(_read, pieces)
        assert read == [data[offset : offset + length] for _, offset, length in pieces]
        assert file.read_at(SIZE - 10, 10) == data[-10:]


def in_child(work):
    """Runs `work` in a forked child that ends as a program does, destructors included."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_parent_and_child_read_through_one_handle(agent):
    data = pattern(SIZE, seed=3)
    path = agent.file("inherited", data)
    file = agent.client().open(path)
    file.read_at(0, 10)

    def child():
        for offset in range(0, SIZE, 1 << 20):
            assert file.read_at(offset, 1 << 20) == data[offset : offset + (1 << 20)]

    assert in_child(child) == 0
    assert file.read_at(0, SIZE) == data


def test_a_child_does_not_let_go_of_its_parents_mapping(agent):
    data = pattern(SIZE, seed=4)
    path = agent.file("pinned by a mapping", data)
    client = agent.client()
    client.load([path])
    file = client.open(path)
    view = file.map()
    assert in_child(view.release) == 0
    client.evict(path)
    assert view == data, "the pages stay for the parent"
    view.release()


def test_a_child_does_not_write_what_its_parent_has_gathered(agent, directory):
    path = directory / "gathered"
    writer = agent.client().create(path)
    writer.write(b"once")
    assert in_child(writer.close) == 0
    assert path.read_bytes() == b""

    def child():
        with pytest.raises(OSError, match="another process"):
            writer.write(bytes(2 << 20))

    assert in_child(child) == 0
    writer.close()
    assert path.read_bytes() == b"once"


def test_a_child_does_not_write_what_its_parent_has_gathered_behind_a_seek(agent, directory):
    path = directory / "gathered"
    with forebay.open(path, "wb") as file:
        file.write(b"0123456789")
        file.seek(5)
        file.write(b"once")
        assert in_child(file.close) == 0
        assert path.read_bytes() == b"0123456789"
    assert path.read_bytes() == b"01234once9"
