"""The fsspec file system `forebay`: pandas, PyArrow, Dask, Ray and others read and write `forebay:///path/on/the/pfs`.

It has no namespace of its own: names, attributes, links and permissions are those of the PFS and come from the operating
system (`os`), so nothing can become stale. File contents go through Forebay's client. Listings also show the job's memory-only
files, which the PFS does not know.
"""

import datetime
import difflib
import errno
import functools
import hashlib
import os
import shutil
import stat
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import get_args

from fsspec import AbstractFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.utils import stringify_path

from ._core import Client, same_file
from .files import COPY_BYTES, PROTOCOL, ReadMode, WriteMode, copy_to_local, open_binary, plain_path
from .process import default_client

# Files read at a time by `cat_ranges`: enough to keep a few storage servers busy.
PARALLEL_FILES = 8

# What `storage_options` may hold, and what fsspec itself passes on to every file system.
_OPTIONS = ("socket", "deadline_s", "quiet", "read_mode", "write_mode", "auto_mkdir")
_OPTIONS_OF_FSSPEC = (
    "skip_instance_cache",
    "use_listings_cache",
    "listings_expiry_time",
    "max_paths",
    "asynchronous",
    "loop",
    "batch_size",
)

# What `open` takes for one file, and what callers of fsspec give to any file system, which means
# nothing here.
_OPEN_OPTIONS = ("read_mode", "write_mode", "layout", "block_size", "autocommit")
_OPEN_OPTIONS_OF_FSSPEC = ("cache_type", "cache_options", "fill_cache", "size", "compression")

_CAT_RANGES_OPTIONS_OF_FSSPEC = (*_OPEN_OPTIONS_OF_FSSPEC, "batch_size")

_TYPES = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "link"}


class ForebayFileSystem(AbstractFileSystem):
    """Files of the PFS, read and written through Forebay.

    socket, deadline_s, quiet: as for `forebay.Client`; if none is given, the client of the process is used.
    read_mode, write_mode: as for `forebay.open`; both can also be given to `open` for one file.
    auto_mkdir: make missing parent directories of a file opened for writing. True by default: `fsspec.open` makes them in any
        case, and zarr and others write to keys, as in an object store, and make no directories.

    Options of fsspec itself (`skip_instance_cache` and others) are accepted as well. TypeError: another option.
    """

    protocol = PROTOCOL
    root_marker = "/"

    def __init__(
        self,
        socket=None,
        read_mode="cached",
        write_mode="through",
        auto_mkdir=True,
        deadline_s=None,
        quiet=None,
        **kwargs,
    ):
        _refuse_unknown("storage option", kwargs, _OPTIONS, _OPTIONS_OF_FSSPEC)
        if read_mode not in get_args(ReadMode):
            raise ValueError(f"read mode {read_mode!r}: write 'cached', 'tier' or 'pfs'")
        if write_mode not in get_args(WriteMode):
            raise ValueError(f"write mode {write_mode!r}: write 'bypass', 'through', 'memory' or 'back'")
        super().__init__(**kwargs)
        own = socket is not None or deadline_s is not None or quiet is not None
        self.client = Client(socket, deadline_s=deadline_s, quiet=quiet) if own else default_client()
        self.read_mode = read_mode
        self.write_mode = write_mode
        self.auto_mkdir = auto_mkdir

    # ---- names ----

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, (list, tuple)):
            return [cls._strip_protocol(one) for one in path]
        path = plain_path(stringify_path(path))
        if not path.startswith("/"):
            path = os.path.join(os.getcwd(), path)
        # Only slashes are tidied: with links, `a/..` need not be where it seems to be.
        return "/" + path.strip("/") if path.strip("/") else "/"

    @classmethod
    def _parent(cls, path):
        return os.path.dirname(cls._strip_protocol(path)) or "/"

    def ls(self, path, detail=True, **kwargs):
        """Entries of a directory, or the one of a file: dicts as `info` gives them, or names. FileNotFoundError."""
        path = self._strip_protocol(path)
        memory_only = [(name, size) for name, size in self._scratch() if os.path.dirname(name) == path]
        try:
            if stat.S_ISDIR(os.stat(path).st_mode):
                with os.scandir(path) as entries:
                    infos = [_info(entry.path, entry.stat(follow_symlinks=False)) for entry in entries]
            else:
                infos = [self.info(path)]
        except FileNotFoundError:
            if not memory_only and self._scratch_size(path) is None:
                raise
            infos = [] if memory_only else [self.info(path)]
        known = {name for name, _ in memory_only}
        infos = [info for info in infos if info["name"] not in known]
        infos += [_scratch_info(name, size) for name, size in memory_only]
        return infos if detail else [info["name"] for info in infos]

    def info(self, path, **kwargs):
        """`name`, `size` (bytes), `type`, `islink`, `mode`, `uid`, `gid`, `ino`, `nlink`, and `created`, `mtime` (seconds)."""
        path = self._strip_protocol(path)
        size = self._scratch_size(path)
        return _info(path, os.lstat(path)) if size is None else _scratch_info(path, size)

    def exists(self, path, **kwargs):
        path = self._strip_protocol(path)
        return os.path.exists(path) or self._scratch_size(path) is not None

    def isfile(self, path):
        path = self._strip_protocol(path)
        return os.path.isfile(path) or self._scratch_size(path) is not None

    def isdir(self, path):
        return os.path.isdir(self._strip_protocol(path))

    def lexists(self, path, **kwargs):
        return os.path.lexists(self._strip_protocol(path))

    def created(self, path):
        """Time of the last change of contents or attributes (ctime): most PFSs have no creation time. UTC."""
        return _time(self.info(path), "created")

    def modified(self, path):
        """Time of the last change of contents. UTC."""
        return _time(self.info(path), "mtime")

    def ukey(self, path):
        """A string that changes with the file's version: inode, size, mtime and ctime in nanoseconds."""
        path = self._strip_protocol(path)
        size = self._scratch_size(path)
        if size is not None:
            return hashlib.sha256(f"memory-only:{path}:{size}".encode(errors="surrogateescape")).hexdigest()
        st = os.stat(path)
        return hashlib.sha256(repr((st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns)).encode()).hexdigest()

    def _scratch(self):
        """Memory-only files of this job; none without an agent."""
        try:
            return self.client.scratch_files()
        except OSError:
            return []

    def _scratch_size(self, path):
        return next((size for name, size in self._scratch() if name == path), None)

    # ---- changes of names ----

    def mkdir(self, path, create_parents=True, **kwargs):
        path = self._strip_protocol(path)
        if create_parents:
            os.makedirs(path)
        else:
            os.mkdir(path)

    def makedirs(self, path, exist_ok=False):
        os.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path):
        os.rmdir(self._strip_protocol(path))

    def rm_file(self, path):
        path = self._strip_protocol(path)
        if os.path.isdir(path) and not os.path.islink(path):
            os.rmdir(path)
        else:
            self.client.remove(path)

    def rm(self, path, recursive=False, maxdepth=None):
        """Removes files, and with `recursive` directories. IsADirectoryError: a directory without it."""
        if maxdepth is not None:
            return super().rm(path, recursive=recursive, maxdepth=maxdepth)
        for one in path if isinstance(path, (list, tuple)) else [path]:
            one = self._strip_protocol(one)
            if not os.path.isdir(one) or os.path.islink(one):
                for name in [one] if self.lexists(one) or not _has_magic(one) else self.expand_path(one):
                    self.rm_file(name)
            elif recursive:
                for name, _ in self._scratch():
                    if name.startswith(one + "/"):
                        self.client.remove(name)
                shutil.rmtree(one)
            else:
                raise IsADirectoryError(f"{one} is a directory; remove it with recursive=True")

    def mv(self, path1, path2, **kwargs):
        """Renames within the PFS; copies and removes across file systems. A file that is moved onto itself stays, as with `os.rename`.

        shutil.SameFileError: a link would replace the file that it leads to. shutil.Error: a directory would move below itself.
        """
        source, place = self._strip_protocol(path1), self._strip_protocol(path2)
        into = os.path.isdir(place) and not _is_same_file(source, place)
        target = os.path.join(place, os.path.basename(source)) if into else place
        if _is_same_file(source, target):
            # A copy through a mount, whose device number is its own, would empty the file.
            if os.path.islink(source) or os.path.islink(target):
                _rename_link(source, target)
            return
        if os.path.isdir(source) and not os.path.islink(source) and _is_below(target, source):
            raise shutil.Error(f"{source}: cannot be moved to {target}, which is below it")
        shutil.move(source, place)

    def touch(self, path, truncate=True, **kwargs):
        """Makes an empty file, or empties it; without `truncate` an existing one only gets the current time."""
        path = self._strip_protocol(path)
        if not truncate and self.exists(path):
            os.utime(path)
        else:
            self._make_parent(path)
            self.client.create(path, self.write_mode).close()

    def _make_parent(self, path):
        if self.auto_mkdir:
            os.makedirs(self._parent(path), exist_ok=True)

    # ---- contents ----

    def _open(
        self,
        path,
        mode="rb",
        block_size=None,
        autocommit=True,
        cache_options=None,
        read_mode=None,
        write_mode=None,
        layout=None,
        **kwargs,
    ):
        _refuse_unknown("option of open", kwargs, _OPEN_OPTIONS, _OPEN_OPTIONS_OF_FSSPEC)
        path = self._strip_protocol(path)
        modes = {"read_mode": read_mode or self.read_mode, "write_mode": write_mode or self.write_mode}
        # "rb+" is "r+b".
        mode = mode.replace("b", "") + "b"
        if mode[0] != "r":
            self._make_parent(path)
        modes["buffer_bytes"] = block_size if isinstance(block_size, int) else None
        modes["layout"] = layout
        if mode == "rb":
            # For a process that unpickles the file; it has no use for the rest.
            again = functools.partial(self._open, path, "rb", block_size, read_mode=read_mode)
            return open_binary(self.client, path, mode, reopen=again, **modes)
        if autocommit:
            return open_binary(self.client, path, mode, **modes)
        if mode not in ("wb", "xb") or modes["write_mode"] == "memory":
            raise ValueError(f"{path}: a transaction can hold new files on the PFS only, not mode {mode!r} or memory-only files")
        if mode == "xb" and os.path.lexists(path):
            raise FileExistsError(path)
        return open_binary(self.client, f"{path}.{uuid.uuid4().hex}.tmp", "xb", rename_to=path, **modes)

    def cat_file(self, path, start=None, end=None, read_mode=None, **kwargs):
        """Bytes of a file, from `start` up to `end`; negative ones count from its end."""
        _refuse_unknown("option of cat_file", kwargs, ("read_mode",), _OPEN_OPTIONS_OF_FSSPEC)
        with self.client.open(self._strip_protocol(path), read_mode or self.read_mode) as file:
            return _range_of(file, start, end)

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        """Writes `value` as the whole file; with mode "create" FileExistsError if there is one."""
        with self.open(path, "xb" if mode == "create" else "wb", **kwargs) as file:
            file.write(value)

    def cat_ranges(self, paths, starts, ends, max_gap=None, on_error="return", read_mode=None, **kwargs):
        """Ranges of files as a list of `bytes`. Each file is opened once, several files are read at a time.

        on_error: "return" puts the exception in the place of the bytes, "raise" raises the first.
        """
        _refuse_unknown("option of cat_ranges", kwargs, ("read_mode",), _CAT_RANGES_OPTIONS_OF_FSSPEC)
        starts = list(starts) if hasattr(starts, "__iter__") else [starts] * len(paths)
        ends = list(ends) if hasattr(ends, "__iter__") else [ends] * len(paths)
        if not len(paths) == len(starts) == len(ends):
            raise ValueError(f"{len(paths)} paths, {len(starts)} starts and {len(ends)} ends")
        results = [None] * len(paths)
        by_path = {}
        for i, path in enumerate(paths):
            by_path.setdefault(self._strip_protocol(path), []).append(i)

        def read(path, indices):
            try:
                with self.client.open(path, read_mode or self.read_mode) as file:
                    for i in indices:
                        results[i] = _range_of(file, starts[i], ends[i])
            except OSError as error:
                if on_error == "raise":
                    raise
                for i in indices:
                    results[i] = error if results[i] is None else results[i]

        if len(by_path) == 1:
            read(*next(iter(by_path.items())))
        elif by_path:
            with ThreadPoolExecutor(min(PARALLEL_FILES, len(by_path))) as pool:
                list(pool.map(lambda item: read(*item), by_path.items()))
        return results

    def cp_file(self, path1, path2, **kwargs):
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        with self._open(path1) as source:
            _refuse_same_file(path1, path2)
            self._make_parent(path2)
            with self._open(path2, "wb") as target:
                _copy(source, target)

    def get_file(self, rpath, lpath, callback=DEFAULT_CALLBACK, **kwargs):
        rpath, lpath = self._strip_protocol(rpath), stringify_path(lpath)
        if self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        with self._open(rpath) as file:
            callback.set_size(file.size)
            if hasattr(lpath, "write"):
                _copy(file, lpath, callback.relative_update)
            else:
                _refuse_same_file(rpath, lpath)
                os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
                copy_to_local(file, lpath, callback.relative_update)

    def put_file(self, lpath, rpath, callback=DEFAULT_CALLBACK, mode="overwrite", **kwargs):
        rpath = self._strip_protocol(rpath)
        if os.path.isdir(lpath):
            self.makedirs(rpath, exist_ok=True)
            return
        with open(lpath, "rb", buffering=0) as source:
            _refuse_same_file(lpath, rpath)
            os.makedirs(self._parent(rpath), exist_ok=True)
            with self.open(rpath, "xb" if mode == "create" else "wb") as target:
                callback.set_size(os.fstat(source.fileno()).st_size)
                _copy(source, target, callback.relative_update)


def _takes_bytes(method, paths):
    """`method` of fsspec, whose first `paths` arguments may be `bytes`, as with Python's own functions: it takes them for lists."""

    @functools.wraps(method)
    def decoding(self, *args, **kwargs):
        names = [os.fsdecode(one) if isinstance(one, bytes) else one for one in args[:paths]]
        return method(self, *names, *args[paths:], **kwargs)

    return decoding


for _name, _paths in {"cat": 1, "copy": 2, "expand_path": 1, "get": 2, "glob": 1, "pipe": 1, "put": 2, "unstrip_protocol": 1}.items():
    setattr(ForebayFileSystem, _name, _takes_bytes(getattr(AbstractFileSystem, _name), _paths))


def _refuse_unknown(what, given, own, of_fsspec):
    """TypeError if `given` has a name that is in neither list: mistyped, it would be without effect."""
    for name in given:
        if name not in own and name not in of_fsspec:
            close = difflib.get_close_matches(name, own, 1)
            hint = f"; did you mean {close[0]!r}?" if close else "."
            raise TypeError(f"forebay: unknown {what} {name!r}{hint} The known ones are {', '.join(own)}, and fsspec's {', '.join(of_fsspec)}")


def _has_magic(path):
    return any(c in path for c in "*?[")


def _is_same_file(a, b):
    """Whether both names lead to one file, also through links and through a mount of Forebay's."""
    try:
        return same_file(a, b)
    except OSError:
        # One of them leads nowhere.
        return False


def _refuse_same_file(source, target):
    """Before the target is opened for writing, which would empty the file that is to be copied."""
    if source == target or _is_same_file(source, target):
        raise shutil.SameFileError(f"{source!r} cannot be copied to {target!r}: they are the same file")


def _rename_link(source, target):
    """Renames where one of both is a link to the other, or both are the same link."""
    if os.path.islink(source) and not os.path.samestat(os.lstat(source), os.lstat(target)):
        raise shutil.SameFileError(f"{source!r} cannot be moved to {target!r}: it is a link to that file, which would be lost")
    os.rename(source, target)


def _is_below(path, directory):
    """Whether `path`, which need not exist, is below a directory, also by another name of it."""
    above = os.path.realpath(os.path.dirname(path))
    while above != "/":
        if _is_same_file(above, directory):
            return True
        above = os.path.dirname(above)
    return False


def _copy(source, target, callback=None):
    buffer = memoryview(bytearray(COPY_BYTES))
    while n := source.readinto(buffer):
        target.write(buffer[:n])
        if callback is not None:
            callback(n)


def _range_of(file, start, end):
    start = 0 if start is None else start
    if end is not None and start >= 0 and end >= 0:
        # The usual case does not need the length.
        return file.read_at(start, max(end - start, 0))
    size = file.size
    start = max(size + start, 0) if start < 0 else start
    end = size if end is None else size + end if end < 0 else end
    return file.read_at(start, max(end - start, 0))


def _time(info, name):
    if name not in info:
        raise OSError(errno.ENOTSUP, "memory-only files have no times", info["name"])
    return datetime.datetime.fromtimestamp(info[name], tz=datetime.timezone.utc)


def _info(path, st):
    """The attributes of an entry that fsspec needs; of a link, those of its target."""
    link = stat.S_ISLNK(st.st_mode)
    info = {"name": path, "islink": link, "created": st.st_ctime}
    if link:
        info["destination"] = os.readlink(path)
        try:
            st = os.stat(path)
        except OSError:
            # Leads nowhere, or in circles: it is listed as the link it is.
            pass
    info["size"] = st.st_size
    info["type"] = _TYPES.get(stat.S_IFMT(st.st_mode), "other")
    for name in ("mode", "uid", "gid", "mtime", "ino", "nlink"):
        info[name] = getattr(st, "st_" + name)
    return info


def _scratch_info(path, size):
    return {"name": path, "size": size, "type": "file", "islink": False, "memory_only": True}
