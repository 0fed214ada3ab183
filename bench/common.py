"""What every benchmark here shares: one record format, one way to measure, one way to print, and
the agents that most of them start.

A benchmark is a function that returns records. A record is a plain dict, so that `bench.json` can be read by anything:

    id         stable name, such as `read.cached.seq.1t`; never reused for another meaning
    value      the figure, in `unit`; the median of `runs` unless the benchmark says otherwise; None when skipped
    unit       unit of `value`, `reference` and `runs`
    reference  the figure it is held against, measured in the same run (a peer, a physical limit), or None
    ratio      value / reference, or None
    target     such as ">= 0.95": held against `ratio` if there is a reference, else against `value`; or None
    met        whether the target was met; None when there is no target or no value
    runs       the single readings, in the order they were taken
    command    what to type to measure this again
    note       only when there is something to add, such as why it was skipped

Why medians and not the best: on a shared machine the best of many runs is the reading with the luckiest neighbour, and it grows
with the number of runs. `Neighbours` says how much of the machine others used meanwhile, so that a bad reading can be told from a bad program.
"""

import contextlib
import ctypes
import json
import mmap
import os
import re
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
GB = 1e9

PROC = "/proc"
KIB_FIELD = re.compile(r"(\w+):\s+(\d+) kB\n?")
TARGET = re.compile(r"\s*(>=|<=)\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*")


# ---- records ----

def meets(measured, target):
    """Whether `measured` satisfies a target such as ">= 0.95" or "<= 60". ValueError if the target cannot be read."""
    match = TARGET.fullmatch(target)
    if match is None:
        raise ValueError(f"cannot read the target {target!r}: write it as '>= 0.95' or '<= 60'")
    bound = float(match[2])
    return measured >= bound if match[1] == ">=" else measured <= bound


def record(id, unit, runs, command, *, value=None, reference=None, target=None, note=None):
    """One record in the format above; `value` is the median of `runs` unless given. ValueError if there is no reading at all."""
    runs = list(runs)
    if value is None:
        if not runs:
            raise ValueError(f"{id}: no reading; a benchmark that could not run returns skipped()")
        value = statistics.median(runs)
    ratio = value / reference if reference else None
    result = {
        "id": id,
        "value": value,
        "unit": unit,
        "reference": reference,
        "ratio": ratio,
        "target": target,
        "met": None if target is None else meets(value if reference is None else ratio, target),
        "runs": runs,
        "command": command,
    }
    if note:
        result["note"] = note
    return result


def skipped(id, unit, command, reason):
    """The record of a benchmark that cannot run here: no value, and the reason as its note, so that the table shows the gap."""
    return {"id": id, "value": None, "unit": unit, "reference": None, "ratio": None, "target": None, "met": None,
            "runs": [], "command": command, "note": f"skipped: {reason}"}


def write_records(path, records):
    """Writes the records as a JSON list. A reader sees the old file or the new one, never half of one."""
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, exist_ok=True)
    fd, partial = tempfile.mkstemp(prefix=".records-", dir=directory)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as out:
            json.dump(records, out, indent=2, allow_nan=False)
            out.write("\n")
            out.flush()
            os.fsync(out.fileno())
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise


def print_table(records, out=None):
    """Prints the records as aligned columns; notes go below, each once, so that the table stays narrow."""
    out = out or sys.stdout
    number = lambda x: "-" if x is None else f"{x:.4g}" if abs(x) < 1e4 else f"{x:.0f}"
    verdict = {True: "yes", False: "NO", None: "-"}
    rows = [("id", "value", "unit", "reference", "ratio", "target", "met")]
    for r in records:
        rows.append((r["id"], number(r["value"]), r["unit"], number(r["reference"]), number(r["ratio"]), r["target"] or "-",
                     verdict[r["met"]]))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip(), file=out)
    notes = {}
    for r in records:
        if r.get("note"):
            notes.setdefault(r["note"], []).append(r["id"])
    for note, ids in notes.items():
        print(f"{', '.join(ids)}: {note}", file=out)


# ---- memory and the page cache ----

def warm_memory(size_bytes):
    """Makes this machine own `size_bytes` of free memory before a measurement: touches them, then gives them back.

    A virtual machine returns idle pages to its host, and the first touch after that costs four to ten times a normal one; without
    this, a benchmark that fills memory measures the host. Call it right before measuring: pages idle for some seconds are returned again.
    """
    if size_bytes <= 0:
        return
    with mmap.mmap(-1, size_bytes) as memory:
        chunk = b"\x01" * (4 * MIB)
        for start in range(0, size_bytes, len(chunk)):
            end = min(start + len(chunk), size_bytes)
            memory[start:end] = chunk[:end - start]


def evict_page_cache(path):
    """Drops one file from the page cache. Dirty pages cannot be dropped, so they are written first.

    Not drop_caches: that needs root and takes the whole machine's cache, the peers' and the neighbours' included.
    Nothing happens to a file on tmpfs: there the page cache is the file.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def cached_bytes(path):
    """How many bytes of a file are in the page cache (in whole pages), by mincore(2). The caller must own the file or be root,
    or the kernel answers that all of it is."""
    page = mmap.PAGESIZE
    size = os.path.getsize(path)
    if size == 0:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as view:
        anchor = ctypes.c_char.from_buffer(view)
        resident = (ctypes.c_ubyte * ((size + page - 1) // page))()
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(anchor)), ctypes.c_size_t(size), resident)
        number = ctypes.get_errno()
        del anchor
    if failed:
        raise OSError(number, f"mincore: {os.strerror(number)}", path)
    return sum(flags & 1 for flags in resident) * page


# ---- processes ----

@dataclass(frozen=True)
class Memory:
    """Resident memory of a process and its descendants, in bytes."""
    # Sum of VmRSS, as ps shows it: a page that two of them share (a program's text, say) counts
    # twice, and so does mapped tier data.
    rss_bytes: int = 0
    # The part of it that is tmpfs or shared memory: for a cache daemon that maps its RAM tier, the
    # cached data.
    shmem_bytes: int = 0
    # What the daemons cost beside the data they hold: without shmem, and a shared page counts once
    # (PSS). The figure to compare.
    own_bytes: int = 0


def process_tree(pid):
    """The pid and all its living descendants."""
    children = {}
    for name in os.listdir(PROC):
        if name.isdigit():
            stat = _stat_fields(int(name))
            if stat:
                children.setdefault(int(stat[1]), []).append(int(name))
    tree = [pid]
    for member in tree:
        tree.extend(children.get(member, []))
    return tree


def memory_of_tree(pid):
    """Resident memory of a process and its descendants. ProcessLookupError if the process has ended.

    Why not VmRSS alone: JuiceFS runs the same 100 MB program twice, as supervisor and as server, and the Java daemons map the same jars; a
    sum of VmRSS would blame them twice for one page. Needs the right to trace the processes, which their starter has.
    """
    rss_kib = shmem_kib = own_kib = 0
    if _stat_fields(pid) is None:
        raise ProcessLookupError(f"cannot measure the memory of process {pid}: it has ended; its log says why")
    for member in process_tree(pid):
        status, rollup = _kib_fields(member, "status"), _kib_fields(member, "smaps_rollup")
        rss_kib += status.get("VmRSS", 0)
        shmem_kib += status.get("RssShmem", 0)
        own_kib += rollup.get("Pss", 0) - rollup.get("Pss_Shmem", 0)
    return Memory(rss_kib * KIB, shmem_kib * KIB, own_kib * KIB)


def _kib_fields(pid, file):
    """The lines `Name:  123 kB` of a file in /proc/PID; nothing if the process has ended."""
    try:
        with open(f"{PROC}/{pid}/{file}", encoding="ascii", errors="replace") as lines:
            return {match[1]: int(match[2]) for match in map(KIB_FIELD.fullmatch, lines) if match}
    except (FileNotFoundError, ProcessLookupError):
        return {}


def _stat_fields(pid):
    """Fields of /proc/PID/stat from the state on (the name before it may hold anything), or None if the process is gone."""
    try:
        with open(f"{PROC}/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


class Neighbours(contextlib.AbstractContextManager):
    """Measures, over a `with` block, the share of all CPUs used by anything but this process and its children.

    `share` is set at the end (0 = alone, 1 = every CPU taken), time stolen by the host included. Children that ended during the block
    count as ours only if they were waited for, as subprocess does.
    """

    share = None

    def __enter__(self):
        self._busy, self._total, self._ours = *_machine_ticks(), _own_ticks()
        return self

    def __exit__(self, *_):
        busy, total = _machine_ticks()
        ours = _own_ticks() - self._ours
        elapsed = max(1, total - self._total)
        self.share = min(1.0, max(0.0, (busy - self._busy - ours) / elapsed))

    def __str__(self):
        return f"others used {100 * self.share:.0f} % of {os.cpu_count()} CPUs meanwhile"


def _machine_ticks():
    """(busy, all) clock ticks of all CPUs since boot. Guest time is part of user time already; iowait is idle time."""
    with open(f"{PROC}/stat", encoding="ascii") as stat:
        ticks = [int(field) for field in stat.readline().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def _own_ticks():
    """Clock ticks of this process, its descendants, and those of them that were waited for."""
    stats = filter(None, map(_stat_fields, process_tree(os.getpid())))
    return sum(int(field) for stat in stats for field in stat[11:15])


# ---- agents ----

def write_agent(config, state, pfs, capacity, tier=None, more=""):
    """Writes the configuration of an agent. `tier`: a directory for its memory, which can be lost, and not a tmpfs.
    `more`: further keys of the tier, then tables."""
    backing = f"backing = 'directory'\ndirectory = '{tier}'\n" if tier else ""
    with open(config, "w", encoding="utf-8") as file:
        file.write(f"[agent]\nstate_dir = '{state}'\n[tier]\ncapacity = '{capacity}'\n{backing}{more}[[mount]]\nlabel = 'pfs'\nroot = '{pfs}'\n")


def member(node, coordinator):
    """The table that makes an agent a member of a cluster; `coordinator` is an address, or those of candidates."""
    return f"[cluster]\nnode = '{node}'\ncoordinator = {json.dumps(coordinator)}\nlisten = '127.0.0.1:0'\n"


def wait_until(is_so, why_not, process=None, seconds=30):
    """SystemExit with `why_not` if it is not so in time, or if the process has ended."""
    until = time.monotonic() + seconds
    while not is_so():
        if process and process.poll() is not None or time.monotonic() > until:
            raise SystemExit(why_not)
        time.sleep(0.05)


# ---- reading ----

def read_pass(path, *, buffer_bytes=MIB, flags=0):
    """Reads a file once from start to end into one aligned buffer (fit for O_DIRECT) and returns GB/s. OSError on a short read."""
    expected = os.path.getsize(path)
    fd = os.open(path, os.O_RDONLY | flags)
    try:
        with mmap.mmap(-1, buffer_bytes) as buffer:
            buffer[:] = b"\x01" * buffer_bytes
            position = 0
            start_ns = time.perf_counter_ns()
            while count := os.preadv(fd, [buffer], position):
                position += count
            elapsed_ns = time.perf_counter_ns() - start_ns
    finally:
        os.close(fd)
    if position != expected:
        raise OSError(f"read {position} of {expected} bytes of {path}: it was truncated, or the file system lost data")
    return position / elapsed_ns


def tmpfs_limit(size_bytes, *, passes=5, directory="/dev/shm"):
    """The physical limit of a cached read: GB/s of pread(1 MiB) over a plain tmpfs file of `size_bytes`, one reading a pass."""
    warm_memory(size_bytes)
    with tempfile.NamedTemporaryFile(prefix="forebay-limit-", dir=directory) as file:
        write_pattern(file.name, size_bytes)
        read_pass(file.name)
        return [read_pass(file.name) for _ in range(passes)]


def write_pattern(path, size_bytes):
    """Fills a file with `size_bytes` that differ from MiB to MiB and do not compress, and makes them durable."""
    noise = bytearray(os.urandom(MIB))
    with open(path, "wb", buffering=0) as out:
        for start in range(0, size_bytes, MIB):
            noise[:8] = start.to_bytes(8, "little")
            out.write(memoryview(noise)[:min(MIB, size_bytes - start)])
        os.fsync(out.fileno())
