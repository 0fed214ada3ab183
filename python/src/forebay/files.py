"""File objects: what Python expects of an open file, over the handles of `_core`.

A reader is a raw file, whose `readinto` copies straight from the tier into the caller's buffer, inside the standard library's own
`io.BufferedReader`. That one serves lines and small reads from a small buffer and passes large reads on without touching them,
in C. (fsspec's AbstractBufferedFile keeps and slices `bytes` in Python, which copies every byte twice or more.)

A writer is raw: the core gathers small writes to a megabyte itself.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import functools
import io
import operator
import os
from typing import Any, Callable, Literal, Optional, Union, get_args

from ._core import Client, File, Writer, stamp_written
from .process import default_client

# Room for lines and small reads. The tier answers in microseconds, so more would only make a random
# small read copy more.
BUFFER_BYTES = 128 << 10

# One piece of a copy from file to file: long enough that the system call does not count, short
# enough for a CPU's cache.
COPY_BYTES = 1 << 20

PROTOCOL = "forebay"

ReadMode = Literal["cached", "tier", "pfs"]
WriteMode = Literal["through", "bypass", "memory", "back"]


def plain_path(path: Union[str, bytes, os.PathLike]) -> str:
    """The PFS path, as `str`, of a path or of a URL such as `forebay:///pfs/data`. ValueError: the URL names a host."""
    path = os.fsdecode(path)
    prefix = PROTOCOL + "://"
    if not path.startswith(prefix):
        return path
    path = path[len(prefix) :]
    if path and not path.startswith("/"):
        raise ValueError(f"{prefix}{path}: a URL has three slashes before the absolute path: {prefix}/{path}")
    return path or "/"


class _RawReader(io.RawIOBase):
    """Position and seeking over a `_core.File`."""

    def __init__(self, file: File):
        self._file = file
        self._position = 0
        # Opened by the first who asks for a descriptor.
        self._plain: Optional[io.FileIO] = None

    def readable(self):
        _require_open(self)
        return True

    def seekable(self):
        _require_open(self)
        return True

    def readinto(self, buffer):
        n = self._file.readinto(buffer, self._position)
        self._position += n
        return n

    def readall(self):
        data = self._file.read_at(self._position, max(self._file.size - self._position, 0))
        self._position += len(data)
        return data

    def seek(self, offset, whence=io.SEEK_SET):
        _require_open(self)
        target = _target(offset, whence, lambda: self._position, lambda: self._file.size)
        self._position = target
        return target

    def tell(self):
        _require_open(self)
        return self._position

    def fileno(self):
        if self._plain is None:
            try:
                self._plain = io.FileIO(self._file.descriptor(), "rb")
            except PermissionError as error:
                # A memory-only file belongs to the agent's user, and permissions on the PFS may
                # have changed since the open.
                text = f"{self._file.path}: no descriptor is available, because the file cannot be opened again ({error.strerror}); read and readinto work"
                raise io.UnsupportedOperation(text) from error
        return self._plain.fileno()

    def close(self):
        self._file.close()
        if self._plain is not None:
            self._plain.close()
        super().close()


def _require_open(file: io.IOBase) -> None:
    if file.closed:
        raise ValueError("I/O operation on closed file")


def _target(offset, whence, position: Callable[[], int], end: Callable[[], int]) -> int:
    """Where a seek leads. ValueError: an unknown `whence`. OSError EINVAL: before the beginning."""
    offset = operator.index(offset)
    if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
        raise ValueError(f"invalid whence ({whence!r}, must be 0, 1 or 2)")
    target = offset + (position() if whence == io.SEEK_CUR else end() if whence == io.SEEK_END else 0)
    if target < 0:
        raise OSError(errno.EINVAL, f"negative seek position {target}")
    return target


class ReadFile(io.BufferedIOBase):
    """A file open for reading in binary mode. Threads may share it; `read_at` and `map` leave the position alone.

    It contains an `io.BufferedReader` but is not one: NumPy and polars read an `io.BufferedReader` by its descriptor, past the tier.
    """

    mode = "rb"

    def __init__(self, file: File, buffer_bytes: Optional[int] = None, reopen: Optional[Callable[[], ReadFile]] = None):
        # The buffer rounds reads up. In columnar files, whose pages are small, that would fetch
        # what lies between the columns.
        buffer_bytes = buffer_bytes or min(BUFFER_BYTES, file.page_bytes or BUFFER_BYTES)
        self._file = file
        self._reopen = reopen
        self._buffered = buffered = io.BufferedReader(_RawReader(file), buffer_bytes)
        # The methods of the C class themselves, without a call of Python between.
        self.read, self.read1, self.peek = buffered.read, buffered.read1, buffered.peek  # type: ignore[method-assign]
        self.readinto, self.readinto1 = buffered.readinto, buffered.readinto1  # type: ignore[method-assign]
        self.readline, self.readlines = buffered.readline, buffered.readlines  # type: ignore[method-assign]
        self.seek, self.tell = buffered.seek, buffered.tell  # type: ignore[method-assign]

    def __iter__(self):
        return iter(self._buffered)

    def __next__(self):
        return next(self._buffered)

    @property
    def raw(self) -> io.RawIOBase:
        """The file without its buffer."""
        return self._buffered.raw

    def detach(self):
        raise io.UnsupportedOperation("detach: read_at and readinto_at read without the buffer")

    def readable(self):
        return self._buffered.readable()

    def seekable(self):
        return self._buffered.seekable()

    def fileno(self) -> int:
        """A descriptor of the file on the PFS: reads through it bypass the tier, and check no version."""
        return self._buffered.fileno()

    def close(self):
        buffered = getattr(self, "_buffered", None)  # missing if __init__ failed
        if buffered is not None:
            buffered.close()
        super().close()

    def __del__(self):
        # Closes nothing: a method of the reader inside may outlive this, as in `open(path,
        # "rb").read()`. The reader closes itself when it is collected.
        pass

    def __reduce__(self):
        if self._reopen is None:
            raise TypeError(f"{self.name}: cannot be pickled, because it was opened with client=; open it through forebay.fs or without client=")
        _require_open(self)
        return _unpickled, (self._reopen, self.tell(), self.version)

    @property
    def name(self) -> str:
        """The path it was opened by."""
        return self._file.path

    path = name

    @property
    def size(self) -> int:
        """Length in bytes of the version that was opened."""
        return self._file.size

    @property
    def version(self) -> Optional[dict[str, int]]:
        """Identity of the opened version: `ino`, `size_bytes`, `mtime_ns`, `ctime_ns`; None without an agent."""
        return self._file.version

    @property
    def blocksize(self) -> int:
        """Not there: fsspec's `blockcache` asks for it and then replaces the file's own cache."""
        raise AttributeError(f"{self.name}: fsspec's blockcache cannot cache this file, which Forebay caches; use simplecache, or none")

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes at `offset`, fewer only at the end of the file."""
        return self._file.read_at(offset, length)

    def readinto_at(self, buffer: Any, offset: int) -> int:
        """Fills `buffer` from `offset` on; returns the bytes read, fewer only at the end of the file."""
        return self._file.readinto(buffer, offset)

    def map(self, offset: int = 0, length: Optional[int] = None) -> Optional[memoryview]:
        """Bytes of the file as a read-only memoryview of the tier itself, without a copy; None if not all are resident."""
        return self._file.map(offset, length)


def _unpickled(reopen: Callable[[], ReadFile], position: int, version: Optional[dict[str, int]]) -> ReadFile:
    file = reopen()
    if version and file.version and file.version != version:
        file.close()
        raise OSError(errno.ESTALE, "its content was changed since the file was pickled; open it again", file.name)
    file.seek(position)
    return file


class PlainFile(io.FileIO):
    """A file of the PFS that is written at any position, without the tier.

    On MooseFS, where other nodes would see the overwritten bytes only some time after the close, `close` sets the file's times first.
    """

    # The process that has written: a forked child's close changes nothing.
    _writer_pid: Optional[int] = None

    def write(self, data: Any) -> int:
        self._writer_pid = os.getpid()
        return super().write(data)

    def close(self):
        if not self.closed and self._writer_pid == os.getpid():
            # The bytes are written. Without the stamps other nodes see them a moment later.
            with contextlib.suppress(OSError):
                stamp_written(self.fileno())
        super().close()


class WriteFile(io.RawIOBase):
    """A file open for writing in binary mode; one thread at a time.

    While it is written sequentially from its start, the tier keeps the bytes that go to the PFS. The first seek to another place, `truncate`
    or `fileno` makes it a plain file of the PFS, which the tier does not keep; a later read caches it.

    A file is complete only if `close` reports no error. With `rename_to` it appears under that name at `commit`, or is
    removed at `discard`, as in fsspec's transactions.
    """

    def __init__(self, writer: Writer, mode: str = "wb", rename_to: Optional[str] = None, memory_only: bool = False):
        self._writer = writer
        self._rename_to = rename_to
        self._memory_only = memory_only
        # Takes over from `_writer` once the file is not written in one go any more.
        self._plain: Optional[io.BufferedWriter] = None
        self._pid = os.getpid()
        self.mode = mode

    @property
    def name(self) -> str:
        """The path it was opened by; of a file within a transaction, the one it will have."""
        return self._rename_to or self._writer.path

    path = name

    def writable(self):
        _require_open(self)
        return True

    def seekable(self):
        _require_open(self)
        return not self._memory_only

    def readinto(self, buffer):
        raise io.UnsupportedOperation(f"{self.name}: not readable; open it in mode 'w+b' to write and read")

    def write(self, data: Any) -> int:
        """Writes all of `data`, any contiguous buffer, and returns its bytes. OSError: the PFS's."""
        return (self._plain or self._writer).write(data)

    def tell(self):
        """Where the next byte goes; of an appended file, counted from its beginning."""
        return self._writer.position if self._plain is None else self._plain.tell()

    def seek(self, offset, whence=io.SEEK_SET):
        """Moves to any place. io.UnsupportedOperation: memory-only files are written from start to end."""
        # An appender does not know the end: others may append, too.
        if self._plain is None and not (self.mode == "ab" and whence == io.SEEK_END):
            position = self.tell()
            # Written in one go: the end is where it stands.
            if _target(offset, whence, lambda: position, lambda: position) == position:
                return position
        return self._as_plain("seek").seek(offset, whence)

    def truncate(self, size=None):
        """Makes the file `size` bytes long, up to the position if not given; the position stays."""
        return self._as_plain("truncate").truncate(size)

    def fileno(self) -> int:
        """The file's descriptor, at the position. To make the file durable call `sync`, which leaves it in the tier."""
        plain = self._as_plain("fileno")
        plain.flush()
        return plain.fileno()

    def flush(self):
        """Sends the buffered bytes to the PFS. OSError: an error of the PFS."""
        _require_open(self)
        if self._plain is not None:
            self._plain.flush()
        elif not self._writer.closed:
            self._writer.flush()

    def sync(self) -> None:
        """Makes the written bytes durable, as fsync does. OSError: an error of the PFS."""
        if self._plain is None:
            self._writer.sync()
        else:
            self._plain.flush()
            os.fsync(self._plain.fileno())

    def close(self):
        """Writes the buffered bytes and closes. OSError: an error of the PFS; the file may then be incomplete."""
        try:
            if self._plain is not None:
                if self._pid != os.getpid():
                    # What is gathered is written once, by the parent, not by every forked child as
                    # well.
                    self._plain.raw.close()
                self._plain.close()
            self._writer.close()
        finally:
            # Its `flush` finds nothing left to do.
            self._plain = None
            super().close()

    def _as_plain(self, what: str) -> io.BufferedWriter:
        _require_open(self)
        if self._memory_only:
            text = "a memory-only file is written from its start to its end; write_mode 'through' and 'bypass' can do this"
            raise io.UnsupportedOperation(f"{what}: {self.name}: {text}")
        if self._plain is None:
            position = self._writer.position
            plain = PlainFile(self._writer.descriptor(), self.mode)
            plain.seek(position)
            self._plain = io.BufferedWriter(plain, BUFFER_BYTES)
            self._writer.close()
        return self._plain

    def commit(self) -> None:
        """Ends an fsspec transaction: the file appears under its name."""
        self.close()
        if self._rename_to:
            os.replace(self._writer.path, self._rename_to)

    def discard(self) -> None:
        """Ends an fsspec transaction that failed: the file is removed."""
        self.close()
        os.unlink(self._writer.path)


def open_binary(
    client: Client,
    path: str,
    mode: str,
    *,
    read_mode: ReadMode = "cached",
    write_mode: WriteMode = "through",
    buffer_bytes: Optional[int] = None,
    rename_to: Optional[str] = None,
    reopen: Optional[Callable[[], ReadFile]] = None,
    layout: Optional[str] = None,
) -> Any:
    """Opens `path` in a binary mode; `rename_to` as for WriteFile, `reopen` opens it again in another process.

    ValueError: an unknown mode. OSError: the PFS's.
    """
    if mode not in ("rb", "wb", "xb", "ab", "r+b", "w+b", "x+b", "a+b"):
        raise ValueError(f"invalid mode {mode!r}: write one of r, w, x, a, with + to read and write, and with b for bytes")
    if layout is not None and (mode == "rb" or "+" in mode):
        raise ValueError(f"layout={layout!r}: a layout is for files that are written, in mode 'w', 'x' or 'a'")
    if "+" in mode:
        return _open_both_ways(client, path, mode, write_mode, buffer_bytes)
    if mode == "rb":
        return ReadFile(client.open(path, read_mode), buffer_bytes, reopen)
    if rename_to is not None and write_mode == "back":
        write_mode = "through"  # A good file must not be replaced by one that is in memory only.
    writer = client.create(path, write_mode, exclusive=mode == "xb", append=mode == "ab", layout=layout)
    return WriteFile(writer, mode, rename_to, memory_only=write_mode == "memory")


def _open_both_ways(client: Client, path: str, mode: str, write_mode: str, buffer_bytes: Optional[int]) -> Any:
    """A plain file of the PFS: what is read back must be what was just written, which the tier does not have yet."""
    if write_mode not in get_args(WriteMode):
        raise ValueError(f"write mode {write_mode!r}: write 'bypass', 'through', 'memory' or 'back'")
    if write_mode == "memory" or _is_memory_only(client, path):
        text = f"a memory-only file cannot be opened in mode {mode!r}; write it in mode 'wb', close it, and open it in mode 'rb'"
        raise OSError(errno.EOPNOTSUPP, text, path)
    return io.BufferedRandom(PlainFile(path, mode), buffer_bytes or BUFFER_BYTES)


def _is_memory_only(client: Client, path: str) -> bool:
    try:
        files = client.scratch_files()
    except OSError:
        # Without an agent there are none.
        return False
    return os.path.abspath(path) in (name for name, _ in files)


def open(
    path: Union[str, bytes, os.PathLike],
    mode: str = "r",
    buffering: int = -1,
    encoding: Optional[str] = None,
    errors: Optional[str] = None,
    newline: Optional[str] = None,
    *,
    read_mode: ReadMode = "cached",
    write_mode: WriteMode = "through",
    layout: Optional[str] = None,
    client: Optional[Client] = None,
) -> Any:
    """Like the built-in `open`: modes r, w, x and a, with `+` to read and write, in text or with `b` in binary.

    path: `str` (surrogates for bytes that are not UTF-8), `bytes`, `os.PathLike`, or a `forebay:///` URL.
    buffering: bytes kept for lines and small reads, -1 for the default.
    read_mode: "cached" (the tier, otherwise the PFS, and cached), "tier" (the tier only; OSError ENODATA if not resident),
        "pfs" (the PFS only, not cached).
    write_mode: "through" (the PFS and the tier), "bypass" (the PFS only), "back" (this node's
        memory, and the PFS after the close), "memory" (this node's memory, for this job: see
        `begin_job`).

    layout: how the servers of the PFS are to hold a new file, such as "stripes:8,size:4MiB,pool:flash". If the PFS cannot
        do that, the file is created without, and one line on stderr says so.

    A mode with `+` reads and writes the PFS only, as the built-in `open` does.

    Within one open all bytes are of one version: if another program changes the file's content meanwhile, a read fails with
    OSError ESTALE; open the file again. Other errors come from the PFS.
    """
    if not isinstance(mode, str) or not isinstance(buffering, int):
        raise TypeError(f"mode={mode!r}, buffering={buffering!r}: a mode is a str such as 'rb', buffering an int")
    kind, text = mode.replace("b", "").replace("t", ""), "b" not in mode
    if len(set(mode)) != len(mode) or ("b" in mode and "t" in mode):
        raise ValueError(f"invalid mode: {mode!r}")
    if not text and (encoding is not None or errors is not None or newline is not None):
        raise ValueError("binary mode takes no encoding, errors or newline argument")
    binary = (kind[::-1] if kind.startswith("+") else kind) + "b"
    reopen = None if client else functools.partial(open, path, "rb", buffering, read_mode=read_mode)
    options = {"read_mode": read_mode, "write_mode": write_mode, "buffer_bytes": buffering if buffering > 1 else None, "layout": layout}
    file = open_binary(client or default_client(), plain_path(path), binary, reopen=reopen, **options)
    if not text:
        return file
    wrapped = io.TextIOWrapper(file, encoding, errors, newline, line_buffering=buffering == 1)
    wrapped.mode = mode  # type: ignore[misc]  # as the built-in open does
    return wrapped


def copy_to_local(file: ReadFile, target: str, callback: Optional[Callable[[int], object]] = None) -> None:
    """Copies the rest of an open file to a local path through one buffer; `callback` receives the bytes of each part."""
    buffer = memoryview(bytearray(COPY_BYTES))
    with builtins.open(target, "wb", buffering=0) as out:
        while n := file.readinto(buffer):
            done = 0
            while done < n:
                done += out.write(buffer[done:n])
            if callback is not None:
                callback(n)
