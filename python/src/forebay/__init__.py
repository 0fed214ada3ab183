"""Files on a parallel file system (PFS) at memory speed.

The PFS is the only namespace: a path means the same with and without Forebay, and whoever may not open a file on the PFS cannot
read its cached bytes. Without an agent, with a dead or a slow one, every read goes to the PFS itself, and one line on stderr says
so; only the functions about the tier itself (`load`, `evict`, `pin`, `unpin`, `status`, `cached_files`, memory-only files) fail
then, with `OSError`.

    with forebay.open("/pfs/data/part-0001", "rb") as file:
        n = file.readinto(buffer)                 # one copy: tier -> buffer

    forebay.load("/pfs/data")                     # a directory, into memory
    pandas.read_parquet("forebay:///pfs/data/t")  # through fsspec

All functions use one client for the process, configured from the environment (`FOREBAY_SOCKET` and others, see `Client`), unless
given another as `client=`. Sizes are bytes, rates are bytes a second, times are seconds.
"""

import glob as _glob
import os

from ._core import EXTENT_BYTES, Client, File, Writer
from .files import ReadFile, WriteFile, open
from .process import begin_job, default_client

__all__ = [
    "EXTENT_BYTES",
    "Client",
    "File",
    "LoadError",
    "ReadFile",
    "WriteFile",
    "Writer",
    "begin_job",
    "cached_files",
    "default_client",
    "evict",
    "load",
    "open",
    "pin",
    "residency",
    "status",
    "unpin",
]
__version__ = "0.1.0"


class LoadError(OSError):
    """Some files could not be loaded; the others were. `report` is what `load` would have returned."""

    def __init__(self, report):
        path, number, message = report["failures"][0]
        count = len(report["failures"])
        more = f" (and {count - 1} more files)" if count > 1 else ""
        super().__init__(number, f"cannot be loaded: {message}{more}", path or None)
        self.report = report


def load(paths, *, rate=0, progress=None, client=None):
    """Brings files into the tier and returns when they are there.

    paths: a file, a directory (with all below it) or a pattern, or several of them; they are walked while the load goes on.
    rate: most bytes a second taken from the PFS, 0 for no limit.
    progress: called about five times a second with a dict of `files` and `bytes` (found so far), `files_done`, `bytes_fetched`
        and `bytes_resident` (there already). If it raises, or on Ctrl-C, the load is cancelled; what is fetched stays.

    Returns that dict, with `seconds` and an empty list `failures`. LoadError: some files failed. OSError: no agent.
    """
    client = client or default_client()
    report = client.load(_files_of(paths), rate_bytes_per_s=int(rate), progress=progress)
    if report["failures"]:
        raise LoadError(report)
    return report


def evict(paths=None, *, client=None):
    """Gives back the memory of files, directories or patterns; of all that is not pinned if none is given (operator only).

    Returns the bytes given back. OSError: no agent; a file is pinned or cannot be opened.
    """
    client = client or default_client()
    if paths is None:
        return client.evict_all()
    return sum(client.evict(path) for path in _files_of(paths))


def pin(paths, *, client=None):
    """Keeps files in the tier once they are there. OSError: no agent; ENOSPC: too much is pinned already."""
    client = client or default_client()
    for path in _files_of(paths):
        client.pin(path)


def unpin(paths, *, client=None):
    """Lets pinned files go again when room is needed. OSError: no agent."""
    client = client or default_client()
    for path in _files_of(paths):
        client.unpin(path)


def status(*, client=None):
    """The agent's state and counters: a dict whose names carry units. OSError: no agent."""
    return (client or default_client()).status()


def cached_files(*, client=None):
    """What is cached: dicts of `path`, `mount`, `size_bytes`, `resident_bytes`, `pinned` and `stale` (a newer version is known).

    Other users' files are shown to the operator only. OSError: no agent.
    """
    return (client or default_client()).list()


def residency(path, *, client=None):
    """What of a file is in the tier: a dict of `size_bytes`, `resident_bytes`, `tiered`, `pinned` and `extents`.

    `extents` has one (length, resident) pair in bytes for each `EXTENT_BYTES` of the file. OSError: the PFS's.
    """
    with (client or default_client()).open(path) as file:
        return {
            "size_bytes": file.size,
            "resident_bytes": file.resident_bytes,
            "tiered": file.tiered,
            "pinned": file.pinned,
            "extents": file.extents(),
        }


def _files_of(paths):
    """Files of what the user named, found while they are asked for. A name without a file is given as it is, to fail by name."""
    for path in [paths] if isinstance(paths, (str, bytes, os.PathLike)) else paths:
        path = os.fsdecode(path)
        if os.path.isdir(path):
            yield from _files_below(path)
        elif _glob.has_magic(path) and not os.path.lexists(path):
            found = sorted(_glob.glob(path, recursive=True))
            if not found:
                yield path
            for name in found:
                yield from _files_below(name) if os.path.isdir(name) else (name,)
        else:
            yield path


def _files_below(directory):
    def fail(error):
        raise error

    for parent, directories, names in os.walk(directory, onerror=fail):
        directories.sort()
        for name in sorted(names):
            path = os.path.join(parent, name)
            # Sockets, pipes and links to nowhere have no bytes to load.
            if os.path.isfile(path):
                yield path
