"""Files on a parallel file system (PFS) at memory speed.

The PFS is the only namespace: a path has the same meaning with and without Forebay. A user who may not open a file on the PFS
cannot read its cached bytes. If the agent is missing, dead or slow, every read goes to the PFS directly, and one line on stderr
reports this. Only the functions about the tier itself (`load`, `evict`, `pin`, `unpin`, `status`, `cached_files`, memory-only
files) then fail, with `OSError`.

    with forebay.open("/pfs/data/part-0001", "rb") as file:
        n = file.readinto(buffer)                 # one copy: tier -> buffer

    forebay.load("/pfs/data")                     # a directory, into memory
    pandas.read_parquet("forebay:///pfs/data/t")  # through fsspec

All functions use one client for the process, configured from the environment (`FOREBAY_SOCKET` and others, see `Client`), unless
the argument `client=` names another. Sizes are bytes, rates are bytes a second, times are seconds.
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
from .hpc import HpcJob, Phase
from .order import Order, order
from .process import begin_job, default_client

__all__ = [
    "EXTENT_BYTES",
    "Client",
    "File",
    "HpcJob",
    "LoadError",
    "Order",
    "Phase",
    "ReadFile",
    "WriteFile",
    "Writer",
    "begin_job",
    "cached_files",
    "default_client",
    "evict",
    "load",
    "open",
    "order",
    "pin",
    "residency",
    "status",
    "unpin",
]
__version__ = "0.1.0"

AnyPath = Union[str, bytes, os.PathLike]
Paths = Union[AnyPath, Iterable[AnyPath]]


class LoadError(OSError):
    """Some files could not be loaded; the others were. `report` is the dict that `load` returns otherwise."""

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
    progress: Optional[Callable[[dict[str, Any]], object]] = None,
    client: Optional[Client] = None,
) -> dict[str, Any]:
    """Loads files into the tier and returns when they are resident.

    paths: a file, a directory (with everything below it) or a pattern, or several of them. Directories are walked during the load.
    rate: limit in bytes a second on reads from the PFS, a number or a text such as "100MB/s" or "1GiB/s"; 0 for no limit.
    progress: called about five times a second with a dict of `files` and `bytes` (found so far), `files_done`, `bytes_fetched`
        and `bytes_resident` (resident before), and the text `waits_for` (empty unless something delays the load). If it raises, or on Ctrl-C, the load is cancelled; fetched bytes stay.

    Returns that dict, with `seconds` and an empty list `failures`. LoadError: some files failed. OSError: no agent.
    """
    client = client or default_client()
    report = client.load(_files_of(paths), rate_bytes_per_s=_rate_bytes_per_s(rate), progress=progress)
    if report["failures"]:
        raise LoadError(report)
    return report


def evict(paths: Optional[Paths] = None, *, client: Optional[Client] = None) -> int:
    """Releases the memory of files, directories or patterns; without an argument, of all files that are not pinned (operator only).

    Returns the released bytes. OSError: no agent; a file is pinned or cannot be opened.
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
    """Unpins files, so that they can be evicted again. OSError: no agent."""
    client = client or default_client()
    for path in _files_of(paths):
        client.unpin(path)


def status(*, client: Optional[Client] = None) -> dict[str, Any]:
    """The agent's state and counters: a dict whose names carry units. OSError: no agent."""
    return (client or default_client()).status()


def cached_files(*, client: Optional[Client] = None) -> list[dict[str, Any]]:
    """The cached files: dicts of `path`, `mount`, `size_bytes`, `resident_bytes`, `pinned` and `stale` (a newer version is known).

    Only the operator sees other users' files. OSError: no agent.
    """
    return (client or default_client()).list()


def residency(path: AnyPath, *, client: Optional[Client] = None) -> dict[str, Any]:
    """The resident part of a file: a dict of `size_bytes`, `resident_bytes`, `tiered`, `pinned` and `extents`.

    `extents` has one (length, resident) pair in bytes for each `EXTENT_BYTES` of the file. OSError: an error of the PFS.
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
    """The files that the user's names match, found on demand. A name without a file is returned unchanged, so that it fails by name."""
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
