"""The fsspec file system: names, attributes, contents."""

import datetime
import os
import pickle
import time

import fsspec
import pytest
from conftest import SETTLE_S, pattern

import forebay
from forebay.fs import ForebayFileSystem


def test_it_is_found_by_its_entry_point(agent):
    assert fsspec.get_filesystem_class("forebay") is ForebayFileSystem
    fs, path = fsspec.url_to_fs(f"forebay://{agent.root}/a")
    assert (type(fs), path) == (ForebayFileSystem, f"{agent.root}/a")
    assert fs.unstrip_protocol(path) == f"forebay://{agent.root}/a"
    assert pickle.loads(pickle.dumps(fs)) == fs


@pytest.mark.parametrize(
    "url, path",
    [
        ("forebay:///pfs/a", "/pfs/a"),
        ("forebay:///pfs/a/", "/pfs/a"),
        ("forebay:///", "/"),
        ("forebay://", "/"),
        ("/pfs/a/../b", "/pfs/a/../b"),
        ("//pfs", "/pfs"),
    ],
)
def test_a_url_is_the_path_on_the_pfs(url, path):
    assert ForebayFileSystem._strip_protocol(url) == path


def test_a_url_with_a_host_is_refused():
    with pytest.raises(ValueError, match="three slashes"):
        ForebayFileSystem._strip_protocol("forebay://pfs/a")
    assert ForebayFileSystem._strip_protocol("a") == os.path.join(os.getcwd(), "a")


def test_names_and_attributes_are_those_of_the_pfs(fs, directory):
    (directory / "a").write_bytes(b"12345")
    (directory / "sub/deep").mkdir(parents=True)
    (directory / "sub/deep/b").write_bytes(b"1")
    os.symlink("a", directory / "link")
    os.symlink("nowhere", directory / "dangling")
    root = str(directory)
    assert sorted(fs.ls(root, detail=False)) == [f"{root}/{name}" for name in ("a", "dangling", "link", "sub")]
    info = fs.info(f"{root}/a")
    st = os.stat(directory / "a")
    assert (info["size"], info["type"], info["ino"], info["uid"], info["mtime"]) == (5, "file", st.st_ino, st.st_uid, st.st_mtime)
    assert fs.info(f"{root}/sub")["type"] == "directory"
    assert (fs.info(f"{root}/link")["size"], fs.info(f"{root}/link")["destination"]) == (5, "a")
    assert fs.info(f"{root}/dangling")["type"] == "link" and not fs.exists(f"{root}/dangling")
    assert fs.find(f"{root}/sub") == [f"{root}/sub/deep/b"]
    assert fs.glob(f"{root}/**/b") == [f"{root}/sub/deep/b"]
    assert fs.du(f"{root}/sub") == 1
    assert fs.isdir(root) and fs.isfile(f"{root}/a") and not fs.isfile(root)
    now = datetime.datetime.now(datetime.timezone.utc)
    assert abs((fs.modified(f"{root}/a") - now).total_seconds()) < 3600
    assert fs.created(f"{root}/a") >= fs.modified(f"{root}/a")
    for call in (fs.info, fs.ls, fs.cat_file, fs.rm_file, fs.modified):
        with pytest.raises(FileNotFoundError):
            call(f"{root}/missing")


def test_the_key_changes_with_the_version(fs, agent):
    path = agent.file("keyed", b"one")
    key = fs.ukey(path)
    assert fs.ukey(path) == key
    agent.file("keyed", b"two")
    assert fs.ukey(path) != key


def test_names_are_changed_on_the_pfs(fs, directory):
    root = str(directory)
    fs.mkdir(f"{root}/x/y")
    with pytest.raises(FileExistsError):
        fs.mkdir(f"{root}/x/y")
    fs.makedirs(f"{root}/x/y", exist_ok=True)
    fs.pipe_file(f"{root}/x/f", b"data")
    fs.mv(f"{root}/x/f", f"{root}/x/g")
    assert (directory / "x/g").read_bytes() == b"data"
    fs.cp_file(f"{root}/x/g", f"{root}/x/h")
    fs.copy(f"{root}/x", f"{root}/z", recursive=True)
    assert fs.cat(f"{root}/z/h") == b"data"
    fs.touch(f"{root}/x/h", truncate=False)
    assert fs.size(f"{root}/x/h") == 4
    fs.touch(f"{root}/x/h")
    assert fs.size(f"{root}/x/h") == 0
    with pytest.raises(IsADirectoryError):
        fs.rm(f"{root}/x")
    fs.rm([f"{root}/x", f"{root}/z/h"], recursive=True)
    fs.rmdir(f"{root}/z/y")
    assert fs.find(root) == [f"{root}/z/g"]
    fs.rm(f"{root}/z/*")
    assert os.listdir(directory / "z") == []


@pytest.mark.parametrize("kind", [os.fsencode, os.fsdecode], ids=["bytes", "str"])
def test_every_method_takes_names_in_bytes(fs, directory, kind):
    """As `bytes`, or as `str` with surrogates, which all methods return."""
    raw = os.fsencode(directory) + b"/n\xff\xe4 x"
    name, root = kind(raw), kind(os.fsencode(directory))
    fs.pipe(name, b"data")
    assert os.listdir(os.fsencode(directory)) == [b"n\xff\xe4 x"]
    for listed in (fs.ls(root, detail=False), fs.find(root), fs.glob(kind(raw[:-1] + b"*")), fs.expand_path(name)):
        assert listed == [os.fsdecode(raw)]
    assert (fs.cat(name), fs.cat_file(name), fs.head(name, 2), fs.size(name)) == (b"data", b"data", b"da", 4)
    with fs.open(name) as file:
        assert file.read() == b"data" and file.name == os.fsdecode(raw)
    assert fsspec.open(fs.unstrip_protocol(name)).open().read() == b"data"
    for i, call in enumerate((fs.copy, fs.cp_file, fs.get, fs.get_file, fs.put, fs.put_file)):
        target = raw + str(i).encode()
        call(name, kind(target))
        with open(target, "rb") as file:
            assert file.read() == b"data", call
    fs.mv(kind(raw + b"0"), kind(raw + b"6"))
    fs.rm([kind(raw + str(i).encode()) for i in range(1, 7)])
    assert os.listdir(os.fsencode(directory)) == [b"n\xff\xe4 x"]
    fs.copy(root, kind(os.fsencode(directory) + b"-\xff"), recursive=True)
    assert os.listdir(os.fsencode(directory) + b"-\xff") == [b"n\xff\xe4 x"]
    with pytest.raises(FileNotFoundError, match="udcff"):
        fs.cat_file(kind(raw + b"missing"))


def test_contents(fs, directory):
    data = pattern(300_000)
    path = f"{directory}/data"
    with fs.open(path, "wb") as file:
        file.write(data)
    assert fs.cat_file(path) == data
    assert fs.cat_file(path, 10, 20) == data[10:20]
    assert fs.cat_file(path, -10) == data[-10:]
    assert fs.cat_file(path, 5, -5) == data[5:-5]
    assert fs.cat_file(path, 20, 10) == b""
    assert fs.head(path, 7) == data[:7] and fs.tail(path, 7) == data[-7:]
    assert fs.read_block(path, 100, 50) == data[100:150]
    with fs.open(path, "ab") as file:
        file.write(b"end")
    with fs.open(path) as file:
        file.seek(-3, 2)
        assert file.read() == b"end"
    with fs.open(path, "w", encoding="latin-1") as file:
        file.write("ä\n")
    with fs.open(path, "r", encoding="latin-1") as file:
        assert file.readline() == "ä\n"
    with pytest.raises(FileExistsError):
        fs.open(path, "xb")
    with pytest.raises(FileExistsError):
        fs.pipe_file(path, b"", mode="create")
    with pytest.raises(ValueError, match="invalid mode"):
        fs.open(path, "rwb")
    with pytest.raises(FileNotFoundError):
        ForebayFileSystem(auto_mkdir=False).open(f"{directory}/no/such/directory", "wb")
    with fs.open(f"{directory}/made/on/the/way", "wb") as file:
        file.write(b"1")
    assert fs.cat_file(f"{directory}/made/on/the/way") == b"1"


def test_ranges_of_many_files(fs, directory):
    files = {f"{directory}/{i}": pattern(10_000 + i, seed=i) for i in range(5)}
    for path, data in files.items():
        fs.pipe_file(path, data)
    paths, starts, ends, expected = [], [], [], []
    for i in range(40):
        path = list(files)[i % 5]
        paths.append(f"forebay://{path}")
        starts.append(i * 100)
        ends.append(i * 100 + 50)
        expected.append(files[path][i * 100 : i * 100 + 50])
    assert fs.cat_ranges(paths, starts, ends) == expected
    assert fs.cat_ranges(list(files), 5, 9) == [data[5:9] for data in files.values()]
    assert fs.cat_ranges([], [], []) == []
    good = next(iter(files))
    results = fs.cat_ranges([f"{directory}/missing", good], 0, 3)
    assert isinstance(results[0], FileNotFoundError) and results[1] == files[good][:3]
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([f"{directory}/missing", good], 0, 3, on_error="raise")
    with pytest.raises(ValueError, match="2 paths, 1 starts"):
        fs.cat_ranges([good, good], [0], [1])


def test_read_and_write_modes(agent, directory):
    path = f"{directory}/modes"
    fs = ForebayFileSystem(socket=agent.socket, write_mode="bypass", auto_mkdir=True)
    fs.pipe_file(path, b"data")
    assert forebay.residency(path)["resident_bytes"] == 0, "bypass leaves the tier alone"
    time.sleep(SETTLE_S)
    with fs.open(path, read_mode="pfs") as file:
        assert file.read() == b"data"
    assert forebay.residency(path)["resident_bytes"] == 0, "so does the read mode pfs"
    with pytest.raises(OSError, match="not in the tier"), fs.open(path, read_mode="tier") as file:
        file.read()
    fs.pipe_file(f"{directory}/a/b", b"through", write_mode="through")
    assert forebay.residency(f"{directory}/a/b")["resident_bytes"] == 7
    tier = ForebayFileSystem(socket=agent.socket, read_mode="tier")
    assert tier.cat_file(f"{directory}/a/b") == b"through"


def test_memory_only_files_are_shown_among_the_others(agent, directory):
    fs = ForebayFileSystem(socket=agent.socket, deadline_s=10, write_mode="memory")
    fs.client.begin_job()
    path = f"{directory}/scratch"
    fs.pipe_file(path, b"shuffle")
    assert os.listdir(directory) == []
    assert fs.ls(str(directory), detail=False) == [path]
    assert (fs.exists(path), fs.isfile(path), fs.size(path), fs.info(path)["memory_only"]) == (True, True, 7, True)
    assert fs.cat_file(path) == b"shuffle"
    with pytest.raises(OSError, match="no times"):
        fs.modified(path)
    fs.rm(path)
    assert not fs.exists(path)


def test_a_transaction_shows_all_files_or_none(fs, directory):
    with fs.transaction:
        with fs.open(f"{directory}/a", "wb") as file:
            file.write(b"1")
        assert not fs.exists(f"{directory}/a")
    assert fs.cat_file(f"{directory}/a") == b"1"
    with pytest.raises(RuntimeError), fs.transaction:
        with fs.open(f"{directory}/b", "wb") as file:
            file.write(b"2")
        raise RuntimeError
    assert os.listdir(directory) == ["a"]


def test_names_that_are_not_utf8(fs, directory):
    path = os.fsdecode(os.fsencode(directory) + b"/\xff\n\xfe")
    fs.pipe_file(path, b"odd")
    assert fs.ls(str(directory), detail=False) == [path]
    assert fs.cat_file(path) == b"odd" and fs.info(path)["size"] == 3
    fs.mv(path, path + "2")
    assert fs.find(str(directory)) == [path + "2"]
    fs.rm(path + "2")
    assert os.listdir(directory) == []
