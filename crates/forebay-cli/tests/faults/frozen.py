"""What programs see in a tree: run on the tree itself and under `forebay run --frozen` of it.

Prints one line for each call, so that the two can be compared. Device numbers and access times
differ by design and are left out.
"""

import ctypes
import errno
import mmap
import os
import subprocess
import sys

TREE = sys.argv[1]
FIELDS = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_mtime_ns", "st_ctime_ns", "st_blocks")


def show(what, work, *arguments, **named):
    """Prints the result of a call, or its error."""
    try:
        result = work(*arguments, **named)
    except OSError as error:
        result = errno.errorcode[error.errno]
    if isinstance(result, os.stat_result):
        result = [getattr(result, field) for field in FIELDS]
    print(what, result)


def content(path, **named):
    """The bytes of a file."""
    with open(path, "rb", **named) as file:
        return file.read()


def walk():
    """Every name, with attributes, contents and targets."""
    for directory, names, files in sorted(os.walk(TREE)):
        print(directory, sorted(names), sorted(files), sorted(entry.name for entry in os.scandir(directory)))
        for name in sorted(names + files):
            path = os.path.join(directory, name)
            for call in (os.stat, os.lstat, os.readlink, os.listdir):
                show(f"{call.__name__} {path}", call, path)
            for mode in (os.F_OK, os.R_OK, os.X_OK, os.R_OK | os.X_OK):
                show(f"access {path} {mode}", os.access, path, mode)
            if os.path.isfile(path):
                show(f"read {path}", lambda path=path: hash(content(path)) and len(content(path)))


def absent():
    """Names that are not there, and ways through what is no directory."""
    for name in ("nothing", "nothing/below", "package/nothing.py", "data/nothing", "package/module.py/below",
                 "dangling", "loop/x", "out/nothing", "x" * 300):
        path = os.path.join(TREE, name)
        for call in (os.stat, os.lstat, os.open, os.readlink, os.listdir):
            extra = (os.O_RDONLY,) if call is os.open else ()
            show(f"{call.__name__} {path}", call, path, *extra)
        show(f"access {path}", os.access, path, os.F_OK)


def relative():
    """Relative paths, `..`, changed directories and directory descriptors."""
    os.chdir(os.path.join(TREE, "package"))
    show("cwd", os.getcwd)
    for name in ("module.py", "./module.py", "../data/big", "../package/../package/sub/deep.py", "sub", "../..",
                 "../link/module.py", "../out"):
        show(f"stat {name}", os.stat, name)
        show(f"real {name}", os.path.realpath, name)
    directory = os.open("sub", os.O_RDONLY | os.O_DIRECTORY)
    show("openat", lambda: len(content("deep.py", opener=lambda p, f: os.open(p, f, dir_fd=directory))))
    show("fstatat", os.stat, "../module.py", dir_fd=directory)
    show("listdir of a descriptor", lambda: sorted(os.listdir(directory)))
    os.fchdir(directory)
    show("cwd", os.getcwd)
    by_name = os.open("deep.py", os.O_PATH)
    show("fstat of a name", os.fstat, by_name)
    os.chdir("/")


def descriptors():
    """What an open file can do."""
    path = os.path.join(TREE, "data", "big")
    file = os.open(path, os.O_RDONLY)
    show("fstat", os.fstat, file)
    show("pread", lambda: os.pread(file, 10, 123_456))
    show("pread at the end", lambda: os.pread(file, 10, os.fstat(file).st_size - 3))
    show("pread behind it", lambda: os.pread(file, 10, 1 << 40))
    show("lseek to a hole", lambda: os.lseek(file, 0, os.SEEK_HOLE))
    with mmap.mmap(file, 0, prot=mmap.PROT_READ) as mapped:
        print("mapped", mapped[:20], mapped[-20:], len(mapped))
    show("write", os.write, file, b"x")
    show("flock", __import__("fcntl").flock, file, 2)
    show("lockf", __import__("fcntl").lockf, file, 2)
    copy = os.dup(file)
    os.close(file)
    show("read of a duplicate", os.read, copy, 10)
    show("path of a descriptor", lambda: os.readlink(f"/proc/self/fd/{copy}"))
    show("opened for a directory", os.open, path, os.O_RDONLY | os.O_DIRECTORY)
    show("a directory opened to write", os.open, TREE, os.O_RDWR)


def children():
    """Other programs see the same."""
    for command in (["ls", "-lR", "--time-style=full-iso", TREE], ["sh", "-c", "cd $0/package && pwd && cat sub/../*.py"],
                    [os.path.join(TREE, "bin", "program"), "argument"], [os.path.join(TREE, "package", "module.py")],
                    ["find", TREE, "-name", "*.py"], ["sh", "-c", "cat $0/data/b* | cksum"], ["sort", "package/module.py"]):
        try:
            done = subprocess.run([part.replace("$0", TREE) for part in command] + [TREE], capture_output=True, check=False,
                                  cwd=TREE)
            print(command, done.returncode, done.stdout, done.stderr)
        except OSError as error:
            print(command, errno.errorcode[error.errno])
    child = os.fork()
    if child == 0:
        show("stat in a child", os.stat, os.path.join(TREE, "package", "module.py"))
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    library = ctypes.CDLL(os.path.join(TREE, "data", "library.so"))
    print("library", bool(library.zlibVersion))


if __name__ == "__main__":
    for part in (walk, absent, relative, descriptors, children):
        sys.stdout.flush()
        part()
