"""File objects: what Python expects of an open file, over the handles of `_core`.

A reader is a raw file, whose `readinto` copies straight from the tier into the caller's buffer, inside the standard library's own
`io.BufferedReader`. That one serves lines and small reads from a small buffer and passes large reads on without touching them,
in C. (fsspec's AbstractBufferedFile keeps and slices `bytes` in Python, which copies every byte twice or more.)

A writer is raw: the core gathers small writes to a megabyte itself.
"""

import builtins
import errno
import io
import os

from .process import default_client

# Room for lines and small reads. The tier answers in microseconds, so more would only make a random small read copy more.
BUFFER_BYTES = 128 << 10

# One piece of a copy from file to file: long enough that the system call does not count, short enough for a CPU's cache.
COPY_BYTES = 1 << 20

PROTOCOL = "forebay"


def plain_path(path):
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

    def __init__(self, file):
        self._file = file
        self._position = 0

    def readable(self):
        return True

    def seekable(self):
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
        if self.closed:
            raise ValueError("I/O operation on closed file")
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: None}[whence]
        if base is None:
            base = self._file.size
        if base + offset < 0:
            raise OSError(errno.EINVAL, f"negative seek position {base + offset}")
        self._position = base + offset
        return self._position

    def tell(self):
        return self._position

    def close(self):
        self._file.close()
        super().close()


class ReadFile(io.BufferedReader):
    """A file open for reading in binary mode. Threads may share it; `read_at` and `map` leave the position alone."""

    def __init__(self, file, buffer_bytes=BUFFER_BYTES):
        super().__init__(_RawReader(file), buffer_bytes)
        self._file = file

    @property
    def mode(self):
        return "rb"

    @property
    def name(self):
        """The path it was opened by."""
        return self._file.path

    path = name

    @property
    def size(self):
        """Length in bytes of the version that was opened."""
        return self._file.size

    @property
    def version(self):
        """Identity of what was opened: `ino`, `size_bytes`, `mtime_ns`, `ctime_ns`; None without an agent."""
        return self._file.version

    def read_at(self, offset, length):
        """Up to `length` bytes at `offset`, fewer only at the end of the file."""
        return self._file.read_at(offset, length)

    def readinto_at(self, buffer, offset):
        """Fills `buffer` from `offset` on; returns the bytes read, fewer only at the end of the file."""
        return self._file.readinto(buffer, offset)

    def map(self, offset=0, length=None):
        """Bytes of the file as a read-only memoryview of the tier itself, without a copy; None if not all are resident."""
        return self._file.map(offset, length)


class WriteFile(io.RawIOBase):
    """A file open for writing in binary mode, at its end; one thread at a time.

    Only a file closed without an error is surely all there.
    """

    def __init__(self, writer, mode="wb", rename_to=None, remove=os.unlink):
        self._writer = writer
        self._rename_to = rename_to
        self._remove = remove
        self.mode = mode

    @property
    def name(self):
        """The path it was opened by; of a file within a transaction, the one it will have."""
        return self._rename_to or self._writer.path

    path = name

    def writable(self):
        return True

    def write(self, data):
        """Writes all of `data`, any contiguous buffer, and returns its bytes. OSError: the PFS's."""
        return self._writer.write(data)

    def tell(self):
        """Bytes written so far; of an appended file, counted from its beginning."""
        return self._writer.position

    def flush(self):
        """Hands what was gathered to the PFS. OSError: the PFS's."""
        if not self._writer.closed:
            self._writer.flush()

    def sync(self):
        """Makes what was written durable, as fsync. OSError: the PFS's."""
        self._writer.sync()

    def close(self):
        """Writes what is left and closes. OSError: the PFS's; the file may not be all there then."""
        try:
            self._writer.close()
        finally:
            super().close()

    def commit(self):
        """Ends an fsspec transaction: the file appears under its name."""
        self.close()
        if self._rename_to:
            os.replace(self._writer.path, self._rename_to)

    def discard(self):
        """Ends an fsspec transaction that failed: the file is removed."""
        self.close()
        self._remove(self._writer.path)


def open_binary(client, path, mode, *, read_mode="cached", write_mode="through", buffer_bytes=None):
    """Opens `path` in mode rb, wb, xb or ab. ValueError: another mode. OSError: the PFS's."""
    if mode == "rb":
        return ReadFile(client.open(path, read_mode), buffer_bytes or BUFFER_BYTES)
    if mode in ("wb", "xb", "ab"):
        writer = client.create(path, write_mode, exclusive=mode == "xb", append=mode == "ab")
        return WriteFile(writer, mode)
    raise ValueError(f"mode {mode!r}: write one of rb, wb, xb, ab (a file is read, or written from its start or behind its end)")


def open(path, mode="r", buffering=-1, encoding=None, errors=None, newline=None, *, read_mode="cached", write_mode="through", client=None):
    """As the built-in `open`, for modes r, w, x and a, in text or with `b` in binary.

    path: `str` (surrogates for bytes that are not UTF-8), `bytes`, `os.PathLike`, or a `forebay:///` URL.
    buffering: bytes kept for lines and small reads, -1 for the default.
    read_mode: "cached" (the tier, else the PFS, cached on the way), "tier" (the tier only; OSError ENODATA if it is not there),
        "pfs" (the PFS only, not cached).
    write_mode: "through" (the PFS and the tier), "bypass" (the PFS only), "memory" (this node's memory, for this job: see
        `begin_job`).

    Within one open all bytes are of one version: if somebody changes the file's content meanwhile, a read fails with
    OSError ESTALE; open it again. Other errors are the PFS's.
    """
    binary = mode.replace("t", "").replace("b", "") + "b"
    if not 1 <= len(mode) <= 2 or ("b" in mode and "t" in mode):
        raise ValueError(f"invalid mode: {mode!r}")
    if "b" in mode and (encoding or errors or newline):
        raise ValueError("binary mode takes no encoding, errors or newline argument")
    buffer_bytes = buffering if buffering > 1 else None
    client = client or default_client()
    file = open_binary(client, plain_path(path), binary, read_mode=read_mode, write_mode=write_mode, buffer_bytes=buffer_bytes)
    if "b" in mode:
        return file
    text = io.TextIOWrapper(file, encoding, errors, newline, line_buffering=buffering == 1)
    text.mode = mode
    return text


def copy_to_local(file, target, callback=None):
    """Copies an open ReadFile to a local path through one buffer; `callback` hears of the bytes of each piece."""
    buffer = memoryview(bytearray(COPY_BYTES))
    with builtins.open(target, "wb", buffering=0) as out:
        while n := file.readinto(buffer):
            done = 0
            while done < n:
                done += out.write(buffer[done:n])
            if callback is not None:
                callback(n)
