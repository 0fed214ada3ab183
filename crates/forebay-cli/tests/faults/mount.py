"""What programs do to a directory, and what they get for it: run on the PFS and on a mount of it,
and the two transcripts must be the same. Started by mount.rs: mount.py CASE DIRECTORY."""

import ctypes
import errno
import fcntl
import mmap
import os
import random
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time

LIBC = ctypes.CDLL(None, use_errno=True)
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def say(*words):
    print(*words, flush=True)


def tried(name, call, *arguments, **named):
    """Prints what a call comes to, errors by name."""
    try:
        result = call(*arguments, **named)
        say(name, "->", result)
        return result
    except OSError as error:
        say(name, "->", errno.errorcode.get(error.errno, error.errno))
        return None


def done(name, call, *arguments, **named):
    """As tried, for calls whose result is a number of no meaning."""
    try:
        result = call(*arguments, **named)
        say(name, "-> done")
        return result
    except OSError as error:
        say(name, "->", errno.errorcode.get(error.errno, error.errno))
        return None


def c(name, *arguments):
    result = getattr(LIBC, name)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


def write(path, data, mode=0o644):
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, mode)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def facts(path):
    """What stat says that does not depend on the time and the place."""
    s = os.lstat(path)
    return stat.filemode(s.st_mode), s.st_nlink, s.st_uid, s.st_gid, s.st_size if stat.S_ISREG(s.st_mode) else "-"


def as_user(uid, gid, groups, work):
    """Runs work in a child with this user, and waits for it."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups(groups)
            os.setgid(gid)
            os.setuid(uid)
            work()
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    say("exit", os.waitpid(child, 0)[1])


@case
def names():
    os.mkdir("d", 0o751)
    write("d/a", b"one")
    say(facts("d"), facts("d/a"))
    os.link("d/a", "d/b")
    os.symlink("a", "d/s")
    os.mkfifo("d/p", 0o620)
    say(facts("d/a"), facts("d/s"), os.readlink("d/s"), facts("d/p"), read("d/s"))
    say(sorted(os.listdir("d")), os.path.samefile("d/a", "d/b"))
    tried("mkdir again", os.mkdir, "d")
    tried("rmdir of a full one", os.rmdir, "d")
    tried("unlink of a directory", os.unlink, "d")
    tried("rmdir of a file", os.rmdir, "d/a")
    tried("nothing", os.stat, "d/nothing")
    tried("below a file", os.stat, "d/a/x")
    tried("a long name", os.stat, "x" * 300)
    tried("exclusive", os.open, "d/a", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    tried("through a loop", lambda: (os.symlink("loop", "loop"), os.stat("loop")))
    os.rename("d/a", "d/c")
    say(sorted(os.listdir("d")), read("d/c"), facts("d/b"))
    os.mkdir("e")
    write("e/a", b"two")
    at = -100

    def rename2(old, new, flags):
        return c("renameat2", at, old.encode(), at, new.encode(), flags)

    tried("noreplace", rename2, "e/a", "d/c", 1)
    tried("exchange", rename2, "e/a", "d/c", 2)
    say(read("e/a"), read("d/c"))
    tried("exchange of directories", rename2, "d", "e", 2)
    say(sorted(os.listdir("d")), sorted(os.listdir("e")))
    tried("into itself", os.rename, "e", "e/f")
    tried("over a full directory", os.rename, "d", "e")
    os.rename("d/a", "e/b")
    say(read("e/b"), facts("e/c"))
    os.unlink("e/b")
    say(sorted(os.listdir("e")))


@case
def removed_while_used():
    write("f", b"still here")
    fd = os.open("f", os.O_RDWR)
    os.unlink("f")
    say(os.fstat(fd).st_nlink, os.pread(fd, 100, 0), os.pwrite(fd, b"STILL", 0), os.pread(fd, 100, 0))
    tried("by name", os.stat, "f")
    os.ftruncate(fd, 3)
    os.fchmod(fd, 0o600)
    say(os.fstat(fd).st_size, oct(os.fstat(fd).st_mode))
    tried("reopened", lambda: os.pread(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY), 10, 0))
    os.close(fd)
    by_name = None
    write("g", b"by name only")
    by_name = os.open("g", os.O_PATH)
    os.unlink("g")
    say(os.stat(by_name).st_nlink, os.stat(by_name).st_size)
    os.close(by_name)
    write("h", b"old")
    write("i", b"new")
    fd = os.open("h", os.O_RDONLY)
    os.rename("i", "h")
    say(os.pread(fd, 10, 0), read("h"), os.fstat(fd).st_nlink)
    os.mkdir("gone")
    here = os.getcwd()
    os.chdir("gone")
    os.rmdir("../gone")
    tried("stat of the current directory", lambda: os.stat(".").st_nlink)
    tried("create in it", os.open, "x", os.O_CREAT | os.O_WRONLY)
    tried("list it", os.listdir, ".")
    os.chdir(here)
    os.mkdir("a")
    os.mkdir("a/b")
    os.chdir("a/b")
    os.rename(f"{here}/a", f"{here}/z")
    write("c", b"after the rename")
    os.chdir(here)
    say(read("z/b/c"))


@case
def attributes():
    write("f", b"x" * 100)
    os.chmod("f", 0o4755)
    say(facts("f"))
    os.chown("f", 61001, 61002)
    say(facts("f"))
    os.utime("f", ns=(1_000_000_007, 2_000_000_009))
    s = os.stat("f")
    say(s.st_atime_ns, s.st_mtime_ns)
    os.truncate("f", 10)
    say(facts("f"), os.stat("f").st_mtime_ns != 2_000_000_009)
    os.symlink("f", "s")
    os.utime("s", ns=(5_000_000_000, 6_000_000_000), follow_symlinks=False)
    say(os.lstat("s").st_mtime_ns, os.stat("s").st_mtime_ns != 6_000_000_000)
    os.chown("s", 61001, 61001, follow_symlinks=False)
    say(facts("s")[1:4])
    old = os.umask(0o027)
    os.close(os.open("u", os.O_CREAT | os.O_WRONLY, 0o666))
    os.mkdir("ud", 0o777)
    os.umask(old)
    say(facts("u"), facts("ud"))
    os.mkdir("sg")
    os.chown("sg", 0, 61002)
    os.chmod("sg", 0o2775)
    write("sg/f", b"")
    os.mkdir("sg/d")
    say(facts("sg/f"), facts("sg/d"))
    say(os.statvfs("f").f_namemax, os.statvfs("f").f_bsize == os.statvfs(".").f_bsize)
    done("a device", os.mknod, "dev", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    if os.path.exists("dev"):
        say(os.major(os.stat("dev").st_rdev), os.minor(os.stat("dev").st_rdev))
    done("a large device", os.mknod, "dev2", stat.S_IFBLK | 0o600, os.makedev(259, 1000))
    if os.path.exists("dev2"):
        say(os.major(os.stat("dev2").st_rdev), os.minor(os.stat("dev2").st_rdev))


@case
def extended_attributes():
    write("f", b"x")
    tried("get none", os.getxattr, "f", "user.a")
    tried("set", os.setxattr, "f", "user.a", b"value")
    tried("get", os.getxattr, "f", "user.a")
    tried("create again", os.setxattr, "f", "user.a", b"v", os.XATTR_CREATE)
    tried("replace", os.setxattr, "f", "user.a", b"w" * 1000, os.XATTR_REPLACE)
    tried("replace none", os.setxattr, "f", "user.b", b"w", os.XATTR_REPLACE)
    say(len(os.getxattr("f", "user.a")), sorted(n for n in os.listxattr("f") if n.startswith("user.")))
    # `getfattr`, `cp --archive` and `rsync` first ask without room for the answer.
    tried("length", c, "getxattr", b"f", b"user.a", None, 0)
    tried("length of none", c, "getxattr", b"f", b"user.b", None, 0)
    tried("length of the names", c, "listxattr", b"f", None, 0)
    tried("too little room", c, "getxattr", b"f", b"user.a", ctypes.create_string_buffer(9), 9)
    tried("too little room for the names", c, "listxattr", b"f", ctypes.create_string_buffer(3), 3)
    tried("remove", os.removexattr, "f", "user.a")
    tried("remove again", os.removexattr, "f", "user.a")
    tried("trusted", os.setxattr, "f", "trusted.a", b"secret")
    os.chmod("f", 0o644)
    write("g", b"x", 0o600)
    done("set", os.setxattr, "g", "user.a", b"private")

    def other():
        tried("get trusted", os.getxattr, "f", "trusted.a")
        tried("list", lambda: sorted(n for n in os.listxattr("f") if not n.startswith("security")))
        tried("set of another's", os.setxattr, "f", "user.c", b"v")
        tried("get of an unreadable file", os.getxattr, "g", "user.a")

    as_user(61001, 61001, [], other)


def acl(*entries):
    """An ACL in the kernel's form: (tag, permissions, id)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


@case
def acls():
    none = 0xFFFFFFFF
    list_ = acl((1, 6, none), (2, 4, 61001), (4, 0, none), (16, 4, none), (32, 0, none))
    write("f", b"for one user", 0o600)
    os.mkdir("d")
    tried("set", os.setxattr, "f", "system.posix_acl_access", list_)
    tried("get", os.getxattr, "f", "system.posix_acl_access")
    say(facts("f"))
    tried("set a default", os.setxattr, "d", "system.posix_acl_default", list_)
    old = os.umask(0o077)
    os.close(os.open("d/f", os.O_CREAT | os.O_WRONLY, 0o666))
    os.umask(old)
    say(facts("d/f"))
    tried("inherited", os.getxattr, "d/f", "system.posix_acl_access")
    as_user(61001, 61001, [], lambda: tried("may", read, "f"))
    as_user(61002, 61002, [], lambda: tried("may not", read, "f"))


@case
def an_acl_that_denies():
    """A directory that an ACL closes for one user stays closed when others have looked it up."""
    none = 0xFFFFFFFF
    os.mkdir("d", 0o755)
    write("d/f", b"not for one user")
    list_ = acl((1, 7, none), (2, 0, 61001), (4, 5, none), (16, 7, none), (32, 5, none))
    tried("set", os.setxattr, "d", "system.posix_acl_access", list_)
    for _ in range(2):
        as_user(61002, 61002, [], lambda: tried("may", read, "d/f"))
        as_user(61001, 61001, [], lambda: tried("may not", read, "d/f"))


@case
def without_effective_capabilities():
    """A process of root keeps its capabilities, but does not use them at the moment."""
    write("f", b"x", 0o600)
    os.mkdir("d", 0o700)
    for name in ("f", "d"):
        os.chown(name, 61001, 61001)

    def all_calls():
        for effective in (False, True):
            tried("access", lambda: os.access("f", os.R_OK, effective_ids=effective))
            tried("access of none", lambda: os.access("f", os.X_OK, effective_ids=effective))
        done("chdir", os.chdir, "d")

    def drop():
        header, data = struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
        c("capget", header, data)
        words = list(struct.unpack("6I", data.raw))
        words[0] = words[3] = 0
        c("capset", header, struct.pack("6I", *words))
        all_calls()

    all_calls()
    os.chdir(sys.argv[2])
    as_user(0, 0, [], drop)
    child = os.fork()
    if child == 0:
        os.setresgid(0, 61001, 61001)
        os.setresuid(0, 61001, 61001)
        all_calls()
        os._exit(0)
    os.waitpid(child, 0)
    child = os.fork()
    if child == 0:
        os.setresuid(61002, 0, 0)
        all_calls()
        os._exit(0)
    os.waitpid(child, 0)


@case
def birth_times():
    before = int(time.time())
    write("f", b"x")
    os.mkdir("d")
    os.symlink("f", "s")
    for name in ("f", "d", "s"):
        os.utime(name, (1, 1), follow_symlinks=False)
        born = int(subprocess.run(["stat", "-c", "%W", name], stdout=subprocess.PIPE, check=True).stdout)
        say(name, before - 1 <= born <= time.time() + 1, os.lstat(name).st_mtime)


@case
def a_removed_current_directory():
    """It does not become another directory that gets its name and its inode number. On a mount
    only: on the PFS, a current directory keeps its number."""
    there, here = sys.argv[3], os.getcwd()
    for _ in range(1000):
        os.mkdir("d")
        os.chdir("d")
        ino = os.stat(".").st_ino
        os.rmdir(f"{there}/d")
        os.mkdir(f"{there}/d")
        if os.stat(f"{there}/d").st_ino == ino:
            break
        os.chdir(here)
        os.rmdir("d")
    say("the number is reused", os.stat(f"{there}/d").st_ino == ino)
    try:
        os.close(os.open("x", os.O_CREAT | os.O_WRONLY))
        say("a file was created")
    except OSError as error:
        say("refused", error.errno in (errno.ENOENT, errno.ESTALE))
    os.chdir(here)
    say(os.listdir("d"), os.listdir(f"{there}/d"))


@case
def rights():
    os.mkdir("private", 0o700)
    write("private/f", b"secret", 0o644)
    write("own", b"own", 0o600)
    os.chown("own", 61001, 61001)
    write("grouped", b"grouped", 0o640)
    os.chown("grouped", 0, 61005)
    write("not_for_group", b"not for the group", 0o604)
    os.chown("not_for_group", 0, 61005)
    write("program", b"#!/bin/sh\n", 0o744)
    os.mkdir("open", 0o777)
    os.chmod("open", 0o777)
    os.mkdir("sticky")
    os.chmod("sticky", 0o1777)
    write("sticky/f", b"root's", 0o666)
    write("setuid", b"x", 0o6777)
    os.chown("setuid", 61001, 61001)
    os.chmod("setuid", 0o6777)
    write("given", b"x", 0o644)
    os.chown("given", 61001, 61001)
    write("held", b"open for writing", 0o644)
    held = os.open("held", os.O_RDWR)

    def everything():
        tried("a private directory", os.stat, "private/f")
        tried("listing it", os.listdir, "private")
        tried("own", read, "own")
        tried("grouped", read, "grouped")
        tried("not for the group", read, "not_for_group")
        tried("write", write, "grouped", b"")
        tried("truncate", os.truncate, "grouped", 0)
        tried("truncate what another has open for writing", os.truncate, "held", 0)
        tried("access x", os.access, "program", os.X_OK)
        tried("access r", os.access, "grouped", os.R_OK)
        done("execute", lambda: os.posix_spawn("./program", ["program"], {}))
        tried("create", os.open, "new", os.O_CREAT | os.O_WRONLY)
        done("create where all may", lambda: os.close(os.open(f"open/{os.getuid()}-{len(os.getgroups())}", os.O_CREAT | os.O_WRONLY, 0o666)))
        tried("its facts", lambda: facts(f"open/{os.getuid()}-{len(os.getgroups())}"))
        tried("unlink another's of a sticky one", os.unlink, "sticky/f")
        tried("rename it", os.rename, "sticky/f", "sticky/g")
        tried("chmod of another's", os.chmod, "grouped", 0o666)
        tried("chown", os.chown, "given", 61002, -1)
        tried("chgrp to an own group", os.chown, "given", -1, 61005)
        tried("chgrp to another", os.chown, "given", -1, 61009)
        tried("utime of another's", os.utime, "grouped", ns=(1, 1))
        tried("utime now of a writable one", os.utime, "sticky/f")
        tried("link of another's", os.link, "grouped", "open/linked")
        tried("a device", os.mknod, "open/dev", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        with open("setuid", "r+b") as file:
            file.write(b"y")
        say("after a write", facts("setuid"))

    as_user(61001, 61001, [], everything)
    os.chmod("setuid", 0o6777)
    as_user(61001, 61001, [61005], everything)
    as_user(61002, 61002, [61005, 61009], everything)
    as_user(61003, 61003, [], everything)

    def drops():
        # The same user and group, but other supplementary groups from now on.
        tried("as a member", read, "grouped")
        os.setgroups([])
        os.seteuid(61001)
        tried("no member any more", read, "grouped")
        os.seteuid(0)
        os.setgroups([61005])
        os.seteuid(61001)
        tried("a member again", read, "grouped")

    say(read("held"))
    os.close(held)
    os.setegid(61001)
    os.setgroups([61005])
    os.seteuid(61001)
    tried("as a member", read, "grouped")
    os.seteuid(0)
    drops()
    os.seteuid(0)
    os.setegid(0)


@case
def names_of_programs():
    os.chmod(".", 0o777)
    write("grouped", b"grouped", 0o640)
    os.chown("grouped", 0, 61005)
    write("not_for_group", b"not for the group", 0o604)
    os.chown("not_for_group", 0, 61005)
    write("others", b"x", 0o600)
    os.chown("others", 61003, 61003)
    for name in [b"\xff", b"caf\xc3", b"a\nGroups:\t1\n", b"\nCapEff:\t0\n", b") S (1 1", b"Groups: 61009"]:
        LIBC.prctl(15, name)
        say(name)

        def member():
            tried("grouped", read, "grouped")
            tried("not for the group", read, "not_for_group")

        as_user(61001, 61001, [61005], member)
        as_user(61001, 61001, [], member)
        tried("root reads", read, "others")
        tried("root gives", os.chown, "others", 61003, 61003)
    LIBC.prctl(15, b"python3")


@case
def rights_that_change():
    os.chmod(".", 0o777)
    write("grouped", b"grouped", 0o640)
    os.chown("grouped", 0, 61005)
    write("others", b"others", 0o600)
    os.chown("others", 61003, 61003)
    scratch = tempfile.mkdtemp(dir="/tmp")
    os.chmod(scratch, 0o755)
    newgrp = shutil.copy(shutil.which("setpriv"), scratch)
    os.chmod(newgrp, 0o4755)
    program = "try: print('as another program ->', open('grouped', 'rb').read())\n"
    program += "except OSError as error: print('as another program ->', error.strerror)"

    def twice(name, path):
        # The second time, what was found out about the caller may be known.
        for _ in range(2):
            tried(name, read, path)

    def execute(*options):
        def work():
            twice("as one program", "grouped")
            ids = ["--reuid=61001", "--regid=61001"]
            os.execv(newgrp, ["setpriv", *ids, *options, sys.executable, "-c", program])

        return work

    as_user(61001, 61001, [61005], execute("--clear-groups"))
    as_user(61001, 61001, [], execute("--groups=61005"))
    shutil.rmtree(scratch)

    def enter_namespace():
        twice("root", "others")
        c("unshare", 0x10000000)
        twice("in a namespace", "others")

    def drop_capabilities():
        twice("root", "others")
        c("capset", (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
        twice("without capabilities", "others")

    def set_groups():
        # CAP_SETGID alone.
        c("capset", (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(1 << 6, 1 << 6))
        for groups in [61005], [], [61005]:
            os.setgroups(groups)
            twice(groups, "grouped")

    os.chown("grouped", 61003, 61005)
    for work in enter_namespace, drop_capabilities, set_groups:
        as_user(0, 0, [], work)


@case
def below_what_is_closed():
    """A current directory below one that the user may not enter."""
    os.mkdir("closed", 0o700)
    os.mkdir("closed/inner", 0o777)
    os.chmod("closed/inner", 0o777)
    here = os.getcwd()
    os.chdir("closed/inner")

    def inside():
        write("f", b"inside")
        tried("read", read, "f")
        tried("mkdir", os.mkdir, "d")
        tried("list", lambda: sorted(os.listdir(".")))
        tried("above", os.stat, "../inner")
        tried("by the whole path", os.stat, f"{here}/closed/inner")

    as_user(61001, 61001, [], inside)
    os.chdir(here)
    say(facts("closed/inner/f"))


@case
def content():
    fd = os.open("f", os.O_CREAT | os.O_RDWR, 0o644)
    data = bytes(range(256)) * 5000
    say(os.pwrite(fd, data, 3), os.pread(fd, 10, 0), os.fstat(fd).st_size)
    say(os.lseek(fd, 0, os.SEEK_END), os.lseek(fd, 5_000_000, os.SEEK_SET), os.write(fd, b"far"))
    say(os.lseek(fd, 0, os.SEEK_HOLE) > 0, os.lseek(fd, 0, os.SEEK_DATA), os.fstat(fd).st_size)
    tried("punch", c, "fallocate", fd, 3, ctypes.c_long(4096), ctypes.c_long(8192))
    say(os.pread(fd, 4, 4094), os.pread(fd, 4, 12286), os.fstat(fd).st_size)
    tried("reserve", c, "fallocate", fd, 0, ctypes.c_long(0), ctypes.c_long(6_000_000))
    say(os.fstat(fd).st_size)
    tried("keep the size", c, "fallocate", fd, 1, ctypes.c_long(0), ctypes.c_long(7_000_000))
    say(os.fstat(fd).st_size)
    tried("an unknown mode", c, "fallocate", fd, 0x4000, ctypes.c_long(0), ctypes.c_long(1))
    os.fsync(fd)
    os.fdatasync(fd)
    os.ftruncate(fd, 100)
    say(os.pread(fd, 1000, 90), os.fstat(fd).st_size)
    os.ftruncate(fd, 200)
    say(os.pread(fd, 1000, 98))
    os.close(fd)
    os.close(os.open("f", os.O_WRONLY | os.O_TRUNC))
    say(os.stat("f").st_size, read("f"))
    tried("write to a reader", os.write, os.open("f", os.O_RDONLY), b"x")
    tried("read of a writer", os.read, os.open("f", os.O_WRONLY), 1)
    write("src", data)
    fd, to = os.open("src", os.O_RDONLY), os.open("dst", os.O_CREAT | os.O_WRONLY)
    say(os.copy_file_range(fd, to, len(data)) > 0)
    os.close(to)
    say(read("dst") == data[: os.stat("dst").st_size], os.stat("dst").st_size > 0)
    say(os.sendfile(os.open("dst2", os.O_CREAT | os.O_WRONLY), fd, 0, 1000), read("dst2") == data[:1000])
    vectors = [bytearray(10), bytearray(20)]
    say(os.preadv(fd, vectors, 5), bytes(vectors[1]) == data[15:35])
    directory = os.open(".", os.O_RDONLY)
    os.fsync(directory)
    tried("read a directory", os.read, directory, 10)
    tried("write a directory", os.open, ".", os.O_WRONLY)
    os.sync()


@case
def appending():
    """Several processes and open files append, and nothing is lost or cut."""
    fds = [os.open("log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644) for _ in range(2)]
    children = []
    for who in range(4):
        child = os.fork()
        if child == 0:
            own = os.open("log", os.O_WRONLY | os.O_APPEND)
            for i in range(100):
                os.write(own if i % 2 else fds[who % 2], b"%d%d" % (who, i % 10) * 20 + b"\n")
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    lines = read("log").split(b"\n")
    say(len(lines), {len(line) for line in lines}, sorted({line[:1] for line in lines}))
    fd = os.open("late", os.O_CREAT | os.O_RDWR, 0o644)
    os.write(fd, b"start")
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, b"-end")
    say(read("late"))
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    os.pwrite(fd, b"S", 0)
    say(read("late"))


@case
def mappings():
    write("f", bytes(10_000))
    fd = os.open("f", os.O_RDWR)
    shared = mmap.mmap(fd, 10_000)
    shared[5_000:5_005] = b"store"
    say(os.pread(fd, 5, 5_000), read("f")[5_000:5_005])
    os.pwrite(fd, b"write", 6_000)
    say(shared[6_000:6_005])
    other = mmap.mmap(os.open("f", os.O_RDWR), 10_000)
    shared[7_000:7_005] = b"other"
    say(other[7_000:7_005])
    shared.flush()
    say(read("f")[7_000:7_005])
    private = mmap.mmap(fd, 10_000, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    private[0:4] = b"mine"
    say(private[0:4], read("f")[0:4], private[5_000:5_005])
    readable = mmap.mmap(os.open("f", os.O_RDONLY), 10_000, prot=mmap.PROT_READ)
    say(readable[5_000:5_005], readable[7_000:7_005])
    only = os.open("f", os.O_RDONLY)
    tried("shared and writable of a reader", mmap.mmap, only, 10_000)
    shared.close()
    os.close(fd)
    say(read("f")[5_000:5_005])
    write("prog", read("/bin/true"), 0o755)
    say(os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn("./prog", ["prog"], {}), 0)[1]))


@case
def direct():
    fd = os.open("f", os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o644)
    page = mmap.mmap(-1, 8192)
    page[:8192] = b"d" * 8192
    say(os.pwritev(fd, [page], 0), os.fstat(fd).st_size)
    page[:8192] = bytes(8192)
    say(os.preadv(fd, [page], 0), page[:4], page[8188:8192])
    with open("f", "r+b") as file:
        file.seek(4096)
        file.write(b"buffered")
    say(os.preadv(fd, [page], 0), page[4096:4104])
    # As `dd oflag=direct` writes what is no whole block, and goes on.
    tried("part of a block", os.pwrite, fd, b"rest", 8192)
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
    tried("part of a block, no longer direct", os.pwrite, fd, b"rest", 8192)
    tried("part of a block, read", os.pread, fd, 4, 8192)
    fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    tried("part of a block, direct again", os.pwrite, fd, b"rest", 8196)
    say(os.pwritev(fd, [page], 0), os.fstat(fd).st_size)
    # The kernel writes a mapping back through the same open file, up to the end within a block.
    mapped = mmap.mmap(fd, 8196)
    ended = threading.Event()

    def write_directly():
        while not ended.is_set():
            os.pwritev(fd, [page], 0)

    writers = [threading.Thread(target=write_directly) for _ in range(2)]
    for writer in writers:
        writer.start()
    for number in range(500):
        mapped[8192:8196] = number.to_bytes(4, "little")
        try:
            mapped.flush()
        except OSError as error:
            say("lost", number, error)
    ended.set()
    for writer in writers:
        writer.join()
    say(read("f")[8192:])
    # A buffered writer first: the kernel passes its writes, and the other's are requests.
    other = os.open("g", os.O_CREAT | os.O_RDWR, 0o644)
    second = os.open("g", os.O_RDWR | os.O_DIRECT)
    say(os.write(other, b"buffered"), os.pwritev(second, [page], 0), os.pread(other, 4, 4096))
    fcntl.fcntl(second, fcntl.F_SETFL, flags & ~os.O_DIRECT)
    tried("part of a block beside a buffered writer", os.pwrite, second, b"rest", 8192)
    say(os.pread(other, 8, 8190))


@case
def without_a_name():
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o640)
    say(os.write(fd, b"no name"), os.fstat(fd).st_nlink, os.pread(fd, 100, 0), oct(os.fstat(fd).st_mode))
    say(os.listdir("."))
    at, follow = -100, 0x400
    tried("link", c, "linkat", at, f"/proc/self/fd/{fd}".encode(), at, b"named", follow)
    say(facts("named"), read("named"))
    fd = os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_EXCL, 0o600)
    tried("link of an exclusive one", c, "linkat", at, f"/proc/self/fd/{fd}".encode(), at, b"other", follow)


@case
def listing():
    os.mkdir("d")
    for i in range(3000):
        os.close(os.open(f"d/{i:05}-{'n' * (i % 40)}", os.O_CREAT | os.O_WRONLY))
    listed = [entry.name for entry in os.scandir("d")]
    say(len(listed), len(set(listed)), all(entry.is_file() for entry in os.scandir("d")))
    for name in listed[::2]:
        os.unlink(f"d/{name}")
    say(len(os.listdir("d")))
    fd = os.open("d", os.O_RDONLY)
    say(len(os.listdir(fd)), len(os.listdir(fd)))
    with os.scandir("d") as entries:
        first = next(entries).name
        for name in os.listdir("d"):
            os.unlink(f"d/{name}")
        rest = [entry.name for entry in entries]
    say(first not in rest, len(rest) < 1500, os.listdir("d"))
    os.rmdir("d")


def posix(kind, start, length):
    return struct.pack("hhlli", kind, os.SEEK_SET, start, length, 0)


def until_free(lock):
    """A mount releases what belongs to an open file a moment after its close."""
    deadline = time.monotonic() + 60
    with open("f", "r+b") as file:
        while time.monotonic() < deadline:
            try:
                return lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(0.002)
    raise TimeoutError("the lock is still held")


@case
def locks():
    """Locks of this process hold against another; see `taken` for the other side."""
    write("f", b"x" * 100)
    fd = os.open("f", os.O_RDWR)
    other = sys.argv[3]
    theirs = os.path.join(other, "f")

    def seen(what):
        child = os.fork()
        if child == 0:
            for name, path in (("here", "f"), ("there", theirs)):
                out = os.open(path, os.O_RDWR)
                words = []
                for start in (0, 50):
                    try:
                        fcntl.lockf(out, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, start)
                        words.append("free")
                        fcntl.lockf(out, fcntl.LOCK_UN, 10, start)
                    except OSError as error:
                        words.append(errno.errorcode[error.errno])
                try:
                    fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    words.append("free")
                    fcntl.flock(out, fcntl.LOCK_UN)
                except OSError as error:
                    words.append(errno.errorcode[error.errno])
                say(what, name, words)
                os.close(out)
            os._exit(0)
        os.waitpid(child, 0)

    seen("nothing")
    fcntl.lockf(fd, fcntl.LOCK_EX, 20, 0)
    seen("the first 20")
    fcntl.lockf(fd, fcntl.LOCK_UN, 5, 0)
    fcntl.lockf(fd, fcntl.LOCK_SH, 20, 50)
    seen("5 to 20 and 50 to 70")
    os.close(os.open("f", os.O_RDONLY))
    seen("after any descriptor was closed")
    fcntl.flock(fd, fcntl.LOCK_EX)
    seen("the whole")
    copy = os.dup(fd)
    os.close(fd)
    seen("the whole by a duplicate")
    os.close(copy)
    until_free(fcntl.flock)
    seen("closed")
    fd = os.open("f", os.O_RDWR)
    ofd_set = 37
    tried("an open file's", fcntl.fcntl, fd, ofd_set, posix(fcntl.F_WRLCK, 0, 10))
    os.close(os.open("f", os.O_RDONLY))
    seen("an open file's")
    os.close(fd)
    until_free(fcntl.lockf)
    seen("an open file's, closed")
    fd = os.open("f", os.O_RDONLY)
    tried("exclusive of a reader", fcntl.lockf, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    tried("shared of a reader", fcntl.lockf, fd, fcntl.LOCK_SH | fcntl.LOCK_NB)


@case
def locks_of_readers():
    """A reader's lock opens the file for no writer, and a writer's lock may follow it."""
    write("prog", read("/bin/true"), 0o755)
    reader = os.open("prog", os.O_RDONLY)
    tried("shared", fcntl.lockf, reader, fcntl.LOCK_SH)
    for prog in ("./prog", os.path.join(sys.argv[3], "prog")):
        tried("execute", lambda: os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn(prog, ["prog"], {}), 0)[1]))
    os.close(reader)
    write("f", b"x" * 100)
    reader, writer = os.open("f", os.O_RDONLY), os.open("f", os.O_RDWR)

    def seen(what):
        child = os.fork()
        if child == 0:
            for kind in (fcntl.LOCK_SH, fcntl.LOCK_EX):
                for path in ("f", os.path.join(sys.argv[3], "f")):
                    fd, words = os.open(path, os.O_RDWR), ""
                    for start in range(0, 60, 5):
                        try:
                            fcntl.lockf(fd, kind | fcntl.LOCK_NB, 5, start)
                            words += "-"
                        except OSError:
                            words += "x"
                    say(what, kind, words)
                    os.close(fd)
            os._exit(0)
        os.waitpid(child, 0)

    fcntl.lockf(reader, fcntl.LOCK_SH, 20, 0)
    fcntl.lockf(reader, fcntl.LOCK_SH, 20, 30)
    fcntl.lockf(reader, fcntl.LOCK_UN, 5, 35)
    seen("shared")
    tried("exclusive", fcntl.lockf, writer, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 10)
    seen("exclusive in it")
    tried("shared again", fcntl.lockf, reader, fcntl.LOCK_SH, 5, 10)
    fcntl.lockf(reader, fcntl.LOCK_UN, 10, 0)
    seen("in part")
    os.close(reader)
    seen("closed")


@case
def waits():
    """A call that waits for a lock gets it, or ends by a signal."""
    write("f", b"x")
    fd = os.open("f", os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    ready, tell = os.pipe()

    def wait(path):
        child = os.fork()
        if child == 0:
            def alarm(*_):
                raise InterruptedError(errno.EINTR, "alarm")

            signal.signal(signal.SIGALRM, alarm)
            out = os.open(path, os.O_RDWR)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            tried("interrupted", fcntl.lockf, out, fcntl.LOCK_EX)
            tried("interrupted flock", lambda: "not held")
            os.write(tell, b"r")
            tried("waits", fcntl.lockf, out, fcntl.LOCK_EX)
            os._exit(0)
        return child

    child = wait("f")
    os.read(ready, 1)
    time.sleep(0.1)
    fcntl.lockf(fd, fcntl.LOCK_UN)
    say(os.waitpid(child, 0)[1])
    killed = os.fork()
    fcntl.lockf(fd, fcntl.LOCK_EX) if killed else None
    if killed == 0:
        os.write(tell, b"r")
        time.sleep(0.2)
        fcntl.lockf(os.open("f", os.O_RDWR), fcntl.LOCK_EX)
        os._exit(0)
    os.read(ready, 1)
    time.sleep(0.5)
    os.kill(killed, signal.SIGKILL)
    say(os.waitpid(killed, 0)[1])


@case
def two_open_files():
    """A reader that is open sees what a writer writes, at once."""
    write("f", b"old" * 100_000)
    readers = [os.open("f", os.O_RDONLY) for _ in range(3)]
    say(os.pread(readers[0], 3, 0), os.pread(readers[1], 3, 200_000 * 1))
    writer = os.open("f", os.O_RDWR)
    os.pwrite(writer, b"new", 0)
    say([os.pread(fd, 3, 0) for fd in readers])
    os.ftruncate(writer, 10)
    say([os.pread(fd, 100, 0) for fd in readers], [os.fstat(fd).st_size for fd in readers])
    os.close(writer)
    late = os.open("f", os.O_RDONLY)
    os.truncate("f", 4)
    say(os.pread(late, 100, 0), [os.pread(fd, 100, 0) for fd in readers])
    with open("f", "ab") as file:
        file.write(b"more")
    say(os.pread(late, 100, 0), [os.fstat(fd).st_size for fd in readers])


@case
def users_with_one_file_open():
    """Programs of two users have a file open, in each order, and see each other's changes at once."""
    write("f", bytes(10_000), 0o666)
    first = os.open("f", os.O_RDWR)

    def other():
        fd = os.open("f", os.O_RDWR | os.O_APPEND)
        say(os.pread(fd, 5, 100), os.write(fd, b"appended"), os.fstat(fd).st_size)
        shared = mmap.mmap(os.open("f", os.O_RDWR), 10_000)
        say(shared[100:105])
        shared[200:206] = b"mapped"
        tried("truncate", os.ftruncate, fd, 10_100)

    os.pwrite(first, b"first", 100)
    as_user(61001, 61001, [], other)
    say(os.pread(first, 6, 200), os.pread(first, 8, 10_000), os.fstat(first).st_size)
    os.close(first)
    reader = os.open("f", os.O_RDONLY)
    kept = mmap.mmap(reader, 10_000, prot=mmap.PROT_READ)
    say(kept[100:105], os.pread(reader, 5, 100))

    def writer():
        fd = os.open("f", os.O_RDWR)
        say(os.pwrite(fd, b"later", 100), os.pread(fd, 6, 200))
        shared = mmap.mmap(fd, 10_000)
        shared[300:306] = b"mapped"
        say(kept[100:105], kept[300:306], os.pread(reader, 6, 300))

    as_user(61001, 61001, [], writer)
    say(kept[100:105], kept[300:306], os.pread(reader, 5, 100), os.pread(reader, 6, 300))


@case
def users_who_open_one_file_at_once():
    """Each open works, whoever else opens and closes the file meanwhile, for whatever."""
    write("f", bytes(100), 0o666)
    kinds = (os.O_RDONLY | os.O_CREAT, os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_RDONLY)
    children = []
    for number in range(8):
        if child := os.fork():
            children.append(child)
            continue
        if number % 2:
            os.setgroups([])
            os.setresgid(61001, 61001, 61001)
            os.setresuid(61001, 61001, 61001)
        for turn in range(400):
            kind = kinds[(turn + number // 2) % len(kinds)]
            try:
                fd = os.open("f", kind)
                (os.write(fd, b"x") if kind & os.O_ACCMODE else os.read(fd, 1))
                os.close(fd)
            except OSError as error:
                say("open", kind, errno.errorcode[error.errno])
        os._exit(0)
    say("the others ended with", {os.waitpid(child, 0)[1] for child in children}, os.stat("f").st_size > 100)


def at_once(rounds, one, other):
    """Runs `one(round)` here and `other(round)` in a child, as nearly at the same time as can be."""
    begin, tell_begin = os.pipe()
    end, tell_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tell_begin)
        while number := os.read(begin, 4):
            time.sleep(random.uniform(0, 0.0003))
            other(struct.unpack("i", number)[0])
            os.write(tell_end, b"e")
        os._exit(0)
    for number in range(rounds):
        os.write(tell_begin, struct.pack("i", number))
        time.sleep(random.uniform(0, 0.0003))
        one(number)
        os.read(end, 1)
        yield number
    os.close(tell_begin)
    say("the other ended with", os.waitpid(child, 0)[1])


@case
def a_pipe_of_the_same_name():
    """While a program creates a file, another one makes a pipe of this name on the PFS."""
    there, kinds = sys.argv[3], set()

    def create(number):
        try:
            # Does not wait, even if it is a pipe.
            fd = os.open(f"n{number}", os.O_RDWR | os.O_CREAT, 0o644)
            kinds.add(stat.S_IFMT(os.fstat(fd).st_mode))
            os.close(fd)
        except OSError as error:
            say("create", number, errno.errorcode[error.errno])

    def make_pipe(number):
        try:
            os.mkfifo(f"{there}/n{number}")
        except FileExistsError:
            pass

    for number in at_once(600, create, make_pipe):
        os.unlink(f"n{number}")
    say("files and pipes were opened:", kinds == {stat.S_IFREG, stat.S_IFIFO})


@case
def flags_of_files():
    write("f", b"x")
    fd = os.open("f", os.O_RDONLY)
    get, set_ = 0x80086601, 0x40086602

    def flags():
        room = bytearray(8)
        fcntl.ioctl(fd, get, room)
        return hex(struct.unpack("i", room[:4])[0] & 0x30)

    tried("none", flags)
    tried("append only", lambda: fcntl.ioctl(fd, set_, struct.pack("l", 0x20)) and None)
    tried("now", flags)
    tried("overwrite", os.open, "f", os.O_WRONLY)
    tried("append", lambda: os.write(os.open("f", os.O_WRONLY | os.O_APPEND), b"y"))
    tried("unlink", os.unlink, "f")
    tried("nothing", lambda: fcntl.ioctl(fd, set_, struct.pack("l", 0)) and None)
    tried("unlink", os.unlink, "f")
    tried("an unknown request", fcntl.ioctl, fd, 0x5413, bytes(8))


if __name__ == "__main__":
    os.chdir(sys.argv[2])
    os.umask(0o022)
    CASES[sys.argv[1]]()
