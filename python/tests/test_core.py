"""The binding itself: bytes, buffers, errors."""

import array
import errno
import os
import threading
import time

import pytest
from conftest import SETTLE_S, pattern

import forebay

PAGE = 2 << 20


def resident(agent, name, data):
    path = agent.file(name, data)
    assert forebay.load(path, client=agent.client())["failures"] == []
    return path


@pytest.mark.parametrize("size", [0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 17])
def test_reads_the_same_bytes_cold_and_warm(agent, size):
    data = pattern(size)
    path = agent.file(f"sizes/{size}", data)
    client = agent.client()
    with client.open(path) as file:
        assert (file.size, file.tiered, file.path) == (size, True, path)
        assert file.read_at(0, size + 10) == data
    client.load([path])
    with client.open(path, "tier") as file:
        assert file.read_at(0, 1 << 40) == data
        assert file.read_at(size, 1) == b"" and file.read_at(1 << 50, 1) == b""
        assert file.read_at(size // 2, 100) == data[size // 2 :][:100]
        assert file.resident_bytes == size
        assert sum(total for total, _ in file.extents()) == size


def test_readinto_takes_any_writable_contiguous_buffer(agent):
    data = pattern(PAGE + 4096)
    path = resident(agent, "buffers", data)
    with agent.client().open(path) as file:
        plain = bytearray(5000)
        assert file.readinto(plain, 100) == 5000 and plain == data[100:5100]
        doubles = array.array("d", bytes(8000))
        assert file.readinto(doubles, 8) == 8000 and doubles.tobytes() == data[8:8008]
        part = bytearray(100)
        assert file.readinto(memoryview(part)[10:20]) == 10 and part[10:20] == data[:10] and not any(part[20:])
        end = bytearray(64)
        assert file.readinto(end, len(data) - 10) == 10
        assert file.readinto(bytearray(0)) == 0
        with pytest.raises(TypeError, match="read-only"):
            file.readinto(b"constant")
        with pytest.raises(BufferError, match="contiguous"):
            file.readinto(memoryview(bytearray(100))[::2])
        with pytest.raises(TypeError):
            file.readinto("text")


def test_numpy_arrays_are_filled_in_place(agent):
    numpy = pytest.importorskip("numpy")
    data = pattern(1 << 16)
    path = resident(agent, "numpy", data)
    matrix = numpy.zeros((64, 128), dtype="<u8")
    with agent.client().open(path) as file:
        assert file.readinto(matrix) == 1 << 16
    assert matrix.tobytes() == data


def test_map_gives_the_tier_itself_or_nothing(agent):
    data = pattern(2 * PAGE)
    path = agent.file("mapped", data)
    client = agent.client()
    with client.open(path) as file:
        assert file.map() is None, "nothing is resident yet"
    client.load([path])
    with client.open(path) as file:
        view = file.map(5, PAGE)
        assert view.readonly and len(view) == PAGE and view == data[5 : 5 + PAGE]
        assert file.map(0, 2 * PAGE + 1) is None, "beyond the end"
        whole = file.map()
    assert whole == data, "views outlive the file"
    # The pages are held while anybody looks at them, and can go after that.
    client.evict(path)
    assert view == data[5 : 5 + PAGE]
    view.release()
    whole.release()
    # The agent is told that they are let go, and not waited for.
    for _ in range(200):
        client.evict(path)
        with client.open(path) as file:
            if file.resident_bytes == 0:
                break
        time.sleep(0.05)
    else:
        pytest.fail("pages that nobody looks at any more are not given back")


def test_errors_carry_number_text_and_file(agent, directory):
    client = agent.client()
    missing = str(directory / "missing")
    with pytest.raises(FileNotFoundError) as caught:
        client.open(missing)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOENT, missing)
    assert caught.value.strerror == os.strerror(errno.ENOENT)
    with pytest.raises(IsADirectoryError):
        client.create(str(directory))
    path = agent.file("errors", b"x")
    with pytest.raises(FileExistsError):
        client.create(path, exclusive=True)
    client.evict(path)
    with client.open(path, "tier") as file, pytest.raises(OSError, match="not in the tier") as caught:
        file.read_at(0, 1)
    assert caught.value.errno == errno.ENODATA
    with pytest.raises(ValueError, match="'cached', 'tier' or 'pfs'"):
        client.open(path, "fast")
    with pytest.raises(ValueError, match="null byte"):
        client.open("a\0b")
    with pytest.raises(ValueError, match="closed"):
        file.read_at(0, 1)


def test_a_file_changed_while_it_is_open_is_stale_and_never_mixed(agent):
    path = agent.file("changing", pattern(2 * PAGE, seed=1))
    with agent.client().open(path) as file:
        file.read_at(0, 10)
        agent.file("changing", pattern(2 * PAGE, seed=2))
        agent.client().evict(path)
        with pytest.raises(OSError, match="open it again") as caught:
            for offset in range(0, 2 * PAGE, 65536):
                assert file.read_at(offset, 65536) == pattern(2 * PAGE, seed=1)[offset : offset + 65536]
        assert caught.value.errno == errno.ESTALE
    with agent.client().open(path) as file:
        assert file.read_at(0, 2 * PAGE) == pattern(2 * PAGE, seed=2)


def test_written_through_is_resident_when_closed(agent, directory):
    data = pattern(2 * PAGE + 5)
    path = str(directory / "new")
    with agent.client().create(path) as writer:
        assert writer.write(memoryview(data)[:100]) == 100
        assert writer.write(bytearray(data[100:])) == len(data) - 100
        assert writer.position == len(data)
        writer.sync()
    assert writer.closed
    with open(path, "rb") as plain:
        assert plain.read() == data
    with agent.client().open(path) as file:
        assert file.resident_bytes == len(data)
        assert file.read_at(0, len(data)) == data


def test_bypass_append_and_exclusive(agent, directory):
    path = str(directory / "log")
    client = agent.client()
    with client.create(path, "bypass") as writer:
        writer.write(b"one ")
    with client.create(path, "bypass", append=True) as writer:
        assert writer.position == 4
        writer.write(array.array("B", b"two"))
    with open(path, "rb") as plain:
        assert plain.read() == b"one two"
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"more")


def test_memory_only_files_never_reach_the_pfs(agent, directory):
    path = str(directory / "scratch")
    client = agent.client()
    client.begin_job()
    with client.create(path, "memory") as writer:
        writer.write(b"shuffle data")
    assert not os.path.exists(path)
    assert client.scratch_files() == [(path, 12)]
    with client.open(path) as file:
        assert file.read_at(0, 100) == b"shuffle data"
    client.remove(path)
    with pytest.raises(FileNotFoundError):
        client.open(path)


def test_load_reports_progress_and_names_what_failed(agent, directory):
    paths = [agent.file(f"{directory.name}/{i}", pattern(PAGE + i)) for i in range(3)]
    seen = []
    report = forebay.load(directory, progress=seen.append)
    assert report["files_done"] == 3 and report["bytes_fetched"] == sum(os.path.getsize(p) for p in paths)
    assert seen and seen[-1]["files"] == 3
    assert forebay.load(str(directory / "*"))["bytes_resident"] == report["bytes_fetched"]
    with pytest.raises(forebay.LoadError) as caught:
        forebay.load([paths[0], directory / "missing"])
    assert caught.value.errno == errno.ENOENT and caught.value.report["files_done"] == 2

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        forebay.load(directory, progress=stop)


def test_evict_pin_status_and_list(agent, directory):
    path = agent.file(f"{directory.name}/a", pattern(PAGE))
    forebay.load(path)
    assert forebay.residency(path) == {
        "size_bytes": PAGE,
        "resident_bytes": PAGE,
        "tiered": True,
        "pinned": False,
        "extents": [(PAGE, PAGE)],
    }
    row = next(row for row in forebay.cached_files() if row["path"] == path)
    assert (row["mount"], row["size_bytes"], row["resident_bytes"]) == ("test", PAGE, PAGE)
    forebay.pin(path)
    assert forebay.residency(path)["pinned"]
    with pytest.raises(OSError):
        forebay.evict(path)
    forebay.unpin(path)
    assert forebay.evict(path) >= PAGE
    assert forebay.residency(path)["resident_bytes"] == 0
    status = forebay.status()
    assert status["pid"] == agent.process.pid and status["mounts"][0]["root"] == str(agent.root)
    assert agent.client().mounts() == [("test", str(agent.root))]


def test_names_that_are_not_utf8(agent, directory):
    name = os.fsencode(directory) + b"/new\nline \xff"
    client = agent.client()
    with client.create(name) as writer:
        writer.write(b"odd")
    assert writer.path == os.fsdecode(name)
    with client.open(os.fsdecode(name)) as file:
        assert file.read_at(0, 3) == b"odd"
    import time

    time.sleep(SETTLE_S)
    forebay.load(directory)
    assert os.fsdecode(name) in [row["path"] for row in client.list()]


def test_threads_share_a_file(agent):
    data = pattern(4 * PAGE)
    path = agent.file("shared", data)
    wrong = []
    with agent.client().open(path) as file:

        def read(seed):
            buffer = bytearray(10_000)
            for i in range(200):
                offset = (seed * 7919 + i * 104_729) % (len(data) - len(buffer))
                if file.readinto(buffer, offset) != len(buffer) or buffer != data[offset : offset + len(buffer)]:
                    wrong.append(offset)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
