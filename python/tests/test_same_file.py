"""Source and target of a copy that are one file, by any of its names: it stays, and the call fails before it opens the target."""

import os
import shutil
import subprocess

import fsspec
import pytest
from conftest import binary

WITHOUT_MOUNT = os.environ.get("FOREBAY_SKIP_FUSE") == "1" or not os.access("/dev/fuse", os.R_OK | os.W_OK)
CONTENT = b"precious"
COPIES = ["cp_file", "copy", "put", "put_file", "get", "get_file", "download", "upload"]


@pytest.fixture
def file(directory):
    """A file with a symbolic link, a hard link and a link to its directory."""
    path = directory / "file"
    path.write_bytes(CONTENT)
    os.symlink("file", directory / "link")
    os.link(path, directory / "hard")
    os.symlink(directory, directory / "to-directory")
    return path


@pytest.fixture
def mounted(agent, directory, tmp_path):
    """The directory's name on a mount of Forebay's."""
    if WITHOUT_MOUNT:
        pytest.skip("a mount needs /dev/fuse, and FOREBAY_SKIP_FUSE=1 leaves it out")
    at = tmp_path / "mount"
    at.mkdir()
    subprocess.run([binary(), "mount", agent.root, at], check=True, timeout=60, capture_output=True)
    yield at / directory.relative_to(agent.root)
    subprocess.run([binary(), "umount", at], check=True, timeout=60, capture_output=True)


def names(directory):
    return [f"{directory}/{name}" for name in ("file", "link", "hard", "to-directory/file", "../" + directory.name + "/file")]


def refused(fs, call, source, target):
    with pytest.raises(shutil.SameFileError, match="cannot be copied to .*: they are the same file"):
        getattr(fs, call)(source, target)


@pytest.mark.parametrize("call", COPIES)
def test_a_copy_onto_itself_is_refused(fs, file, directory, call):
    for name in names(directory):
        for source, target in ((str(file), name), (name, str(file))):
            refused(fs, call, source, target)
            assert file.read_bytes() == CONTENT, (source, target)
    # The same content in another file is no reason to refuse.
    shutil.copy2(file, directory / "twin")
    getattr(fs, call)(str(file), f"{directory}/twin")


@pytest.mark.parametrize("call", COPIES)
def test_a_copy_between_the_pfs_and_a_mount_of_it_is_refused(fs, file, directory, mounted, call):
    assert os.stat(mounted / "file").st_dev != os.stat(file).st_dev, "the mount has a device number of its own"
    for name in names(mounted):
        for source, target in ((str(file), name), (name, str(file))):
            refused(fs, call, source, target)
            assert file.read_bytes() == CONTENT, (source, target)
    getattr(fs, call)(str(file), f"{mounted}/new")
    assert (directory / "new").read_bytes() == CONTENT


def test_a_copy_onto_itself_within_a_mount_over_the_pfs(agent, fs, tmp_path, mounted):
    """The PFS's own path is the mount's: what lies behind has another name."""
    with_pfs, at = tmp_path / "bound", tmp_path / "over"
    if os.geteuid() != 0:
        pytest.skip("needs root to bind a directory")
    for place in (with_pfs, at):
        place.mkdir()
    subprocess.run(["mount", "--bind", agent.root, at], check=True)
    subprocess.run(["mount", "--bind", agent.root, with_pfs], check=True)
    try:
        subprocess.run([binary(), "mount", at, at], check=True, timeout=60, capture_output=True)
        (with_pfs / "over").write_bytes(CONTENT)
        refused(fs, "copy", f"{with_pfs}/over", f"{at}/over")
        assert (with_pfs / "over").read_bytes() == CONTENT
    finally:
        subprocess.run([binary(), "umount", at], check=False, timeout=60, capture_output=True)
        for place in (at, with_pfs):
            subprocess.run(["umount", place], check=False)


def test_a_move_onto_itself_changes_nothing(fs, file, directory):
    for name in names(directory):
        if name.endswith("/link"):
            with pytest.raises(shutil.SameFileError, match="would be lost"):
                fs.mv(name, str(file))
        else:
            fs.mv(name, str(file))
            fs.mv(str(file), name)
        assert file.read_bytes() == CONTENT, name
    fs.mv(f"{directory}/link", f"{directory}/link")
    fs.mv(str(file), str(directory))
    assert file.read_bytes() == CONTENT
    # As os.rename: the file takes the link's place.
    fs.mv(str(file), f"{directory}/link")
    assert (directory / "link").read_bytes() == CONTENT and not (directory / "link").is_symlink()


def test_a_move_between_the_pfs_and_a_mount_of_it_changes_nothing(fs, file, directory, mounted):
    for name in names(mounted):
        for source, target in ((name, str(file)), (str(file), name)):
            if "/link" in source + target:
                with pytest.raises(OSError):
                    fs.mv(source, target)
            else:
                fs.mv(source, target)
            assert file.read_bytes() == CONTENT, (source, target)
    fs.mv(f"{mounted}/file", str(directory))
    fs.mv(str(directory), str(mounted))
    assert file.read_bytes() == CONTENT


def test_a_directory_does_not_move_below_itself(fs, file, directory, mounted):
    fs.makedirs(f"{directory}/deep/er")
    for target in (f"{directory}/deep/er/x", f"{mounted}/deep/er/x", f"{mounted}/to-directory/deep/x"):
        with pytest.raises(OSError, match="below it"):
            fs.mv(str(directory), target)
    assert file.read_bytes() == CONTENT and os.listdir(directory / "deep/er") == []


def test_a_recursive_copy_onto_itself_is_refused(fs, file, directory, mounted):
    for target in (directory, directory / "to-directory", mounted):
        for call in ("copy", "get", "put"):
            with pytest.raises(shutil.SameFileError):
                getattr(fs, call)(f"{directory}/", f"{target}/", recursive=True)
            assert file.read_bytes() == CONTENT, (call, target)


def test_a_memory_only_file_is_not_copied_onto_itself(agent, directory):
    fs = fsspec.filesystem("forebay", socket=agent.socket, write_mode="memory")
    fs.client.begin_job()
    path = f"{directory}/scratch"
    fs.pipe_file(path, CONTENT)
    refused(fs, "cp_file", path, path)
    assert fs.cat_file(path) == CONTENT
    with pytest.raises(FileNotFoundError):
        fs.cp_file(f"{directory}/missing", f"{directory}/missing")
