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

from __future__ import annotations

import errno
import glob as _glob
import math
import numbers
import os
import re
from typing import Any, Callable, Iterable, Iterator, Optional, Union

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

AnyPath = Union[str, bytes, os.PathLike]
Paths = Union[AnyPath, Iterable[AnyPath]]


class LoadError(OSError):
    """Some files could not be loaded; the others were. `report` is what `load` would have returned."""

    def __init__(self, report: dict[str, Any]):
        path, number, message = report["failures"][0]
        count = len(report["failures"])
        more = f" (and {count - 1} more files)" if count > 1 else ""
        super().__init__(number or errno.EIO, f"cannot be loaded: {message}{more}", path or None)
        self.report = report


def load(
    paths: Paths,
    *,
    rate: Union[float, str] = 0,
    progress: Optional[Callable[[dict[str, int]], object]] = None,
    client: Optional[Client] = None,
) -> dict[str, Any]:
    """Brings files into the tier and returns when they are there.

    paths: a file, a directory (with all below it) or a pattern, or several of them; they are walked while the load goes on.
    rate: most bytes a second taken from the PFS, a number or a text such as "100MB/s" or "1GiB/s"; 0 for no limit.
    progress: called about five times a second with a dict of `files` and `bytes` (found so far), `files_done`, `bytes_fetched`
        and `bytes_resident` (resident before). If it raises, or on Ctrl-C, the load is cancelled; fetched bytes stay.

    Returns that dict, with `seconds` and an empty list `failures`. LoadError: some files failed. OSError: no agent.
    """
    client = client or default_client()
    report = client.load(_files_of(paths), rate_bytes_per_s=_rate_bytes_per_s(rate), progress=progress)
    if report["failures"]:
        raise LoadError(report)
    return report


def evict(paths: Optional[Paths] = None, *, client: Optional[Client] = None) -> int:
    """Gives back the memory of files, directories or patterns; of all that is not pinned if none is given (operator only).

    Returns the bytes given back. OSError: no agent; a file is pinned or cannot be opened.
    """
    client = client or default_client()
    if paths is None:
        return client.evict_all()
    return sum(client.evict(path) for path in _files_of(paths))


def pin(paths: Paths, *, client: Optional[Client] = None) -> None:
    """Keeps files in the tier once they are there. OSError: no agent; ENOSPC: too much is pinned already."""
    client = client or default_client()
    for path in _files_of(paths):
        client.pin(path)


def unpin(paths: Paths, *, client: Optional[Client] = None) -> None:
    """Lets pinned files go again when room is needed. OSError: no agent."""
    client = client or default_client()
    for path in _files_of(paths):
        client.unpin(path)


def status(*, client: Optional[Client] = None) -> dict[str, Any]:
    """The agent's state and counters: a dict whose names carry units. OSError: no agent."""
    return (client or default_client()).status()


def cached_files(*, client: Optional[Client] = None) -> list[dict[str, Any]]:
    """What is cached: dicts of `path`, `mount`, `size_bytes`, `resident_bytes`, `pinned` and `stale` (a newer version is known).

    Other users' files are shown to the operator only. OSError: no agent.
    """
    return (client or default_client()).list()


def residency(path: AnyPath, *, client: Optional[Client] = None) -> dict[str, Any]:
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


# As on the command line: storage is sold in powers of ten, memory in powers of two.
_UNITS = {"": 1, "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS.update({"K": 1 << 10, "KiB": 1 << 10, "M": 1 << 20, "MiB": 1 << 20, "G": 1 << 30, "GiB": 1 << 30, "TiB": 1 << 40})
_RATE = re.compile(r"\s*([0-9]*\.?[0-9]+|[0-9]+\.)\s*([A-Za-z]*?)\s*(/s)?\s*")


def _rate_bytes_per_s(rate: Union[float, str]) -> int:
    if rate in ("unlimited", "none"):
        return 0
    matched = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if matched and matched[2] in _UNITS:
        number = float(matched[1]) * _UNITS[matched[2]]
    elif isinstance(rate, numbers.Real) and not isinstance(rate, bool):
        number = float(rate)
    else:
        raise ValueError(f"rate={rate!r}: {_RATE_HELP}")
    # Not a number, negative, infinite, or beyond what the agent counts in.
    if not 0 <= number < 1 << 63:
        raise ValueError(f"rate={rate!r}: {_RATE_HELP}")
    # Less than a byte a second would be 0, which is no limit.
    return math.ceil(number)


_RATE_HELP = "give bytes a second as a number, or a text such as '100MB/s', '1GiB/s' or 'unlimited'"


def _files_of(paths: Paths) -> Iterator[str]:
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


def _files_below(directory: str) -> Iterator[str]:
    def fail(error):
        raise error

    for parent, directories, names in os.walk(directory, onerror=fail):
        directories.sort()
        for name in sorted(names):
            path = os.path.join(parent, name)
            # Sockets, pipes and links to nowhere have no bytes to load.
            if os.path.isfile(path):
                yield path
