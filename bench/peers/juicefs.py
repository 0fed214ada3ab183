#!/usr/bin/env python3
"""JuiceFS beside Forebay: cached sequential read through its FUSE mount, and the memory its daemon takes.

Metadata in SQLite, objects in a local directory, the cache on /dev/shm, everything else at its default; one file written through the mount
and read warm, 1 MiB at a time. JuiceFS must be installed: the first of $FOREBAY_PEER_JUICEFS and `juicefs` in PATH is run. See README.md
for what the figures do and do not say.

    python3 bench/peers/juicefs.py [--json] [--mount-args '--max-fuse-io 1M']

The kernel keeps its own copy of what a FUSE daemon answered, so a second read of a file never reaches JuiceFS. What is compared is JuiceFS's
cache, so the kernel's copy is kept out in two ways, O_DIRECT and eviction before each pass, and the faster one is reported.
JuiceFS's own counter of cache hits proves that each pass was served by its cache; the kernel's copy is timed too, under an id of its own.
"""

import argparse
import contextlib
import json
import os
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

import common  # noqa: E402
from peers import daemons  # noqa: E402

SHM = "/dev/shm"
FUSE = "/dev/fuse"
START_SECONDS = 60
SETTLE_SECONDS = 5
READ_SECONDS = 900
HITS = "juicefs_blockcache_hit_bytes"
IDS = {"peer.juicefs.read": "GB/s", "peer.juicefs.read.kernel": "GB/s", "peer.juicefs.tmpfs": "GB/s",
       "peer.juicefs.rss": "MiB", "peer.juicefs.rss.idle": "MiB"}


def binary():
    """The JuiceFS program to run, or None."""
    return shutil.which(os.environ.get("FOREBAY_PEER_JUICEFS") or "juicefs")


def missing():
    """Why JuiceFS cannot be measured here, in one line; None if it can."""
    if binary() is None:
        return "no juicefs in PATH nor in $FOREBAY_PEER_JUICEFS"
    if not os.access(FUSE, os.R_OK | os.W_OK):
        return f"cannot open {FUSE}: mounting needs root here"
    return None


def run(size_bytes=common.GIB, passes=7, mount_args=()):
    """The records of this peer; if it is not installed, the same ids with no value and the reason.

    RuntimeError, with the end of the peer's log, if it is installed and does not work, or if a figure is not what it claims to be.
    """
    command = f"python3 bench/peers/juicefs.py --size-mib {size_bytes // common.MIB} --passes {passes}"
    if mount_args:
        command += f" --mount-args {shlex.quote(shlex.join(mount_args))}"
    reason = missing()
    if reason:
        return [common.skipped(id, unit, command, reason) for id, unit in IDS.items()]
    # Cache, kernel copy and limit file; JuiceFS itself stops caching when a tenth of the file
    # system is all that is free.
    need_bytes = 2 * size_bytes + common.GIB + shutil.disk_usage(SHM).total // 10
    if shutil.disk_usage(SHM).free < need_bytes:
        raise RuntimeError(f"{SHM} has {shutil.disk_usage(SHM).free // common.MIB} MiB free, the benchmark needs "
                           f"{need_bytes // common.MIB}: free some, or give a smaller --size-mib")
    with common.Neighbours() as neighbours, tempfile.TemporaryDirectory(prefix="forebay-juicefs-") as work, \
            tempfile.TemporaryDirectory(prefix="forebay-juicefs-", dir=SHM) as cache:
        limit = common.tmpfs_limit(size_bytes)
        figures, idle, after = _measure(Path(work), cache, size_bytes, passes, mount_args)
        limit += common.tmpfs_limit(size_bytes)
    return _records(command, figures, idle, after, limit, neighbours)


def _measure(work, cache, size_bytes, passes, mount_args):
    """Formats, mounts, reads. Returns ({way: GB/s of each pass}, memory when idle, memory after)."""
    meta, objects, mount_point = f"sqlite3://{work}/meta.db", work / "objects", work / "mnt"
    mount_point.mkdir()
    daemons.run_bounded([binary(), "format", "--storage", "file", "--bucket", f"{objects}/", "--trash-days", "0", meta, "bench"],
                        what="format the JuiceFS volume", seconds=START_SECONDS)
    common.warm_memory(2 * size_bytes)
    # No usage report, no profiling port, metrics on loopback: nothing leaves this machine.
    mount = [binary(), "mount", "--no-usage-report", "--no-agent", "--no-syslog", "--metrics", "127.0.0.1:0", "--backup-meta", "0",
             "--cache-dir", cache, "--cache-size", str(2 * size_bytes // common.MIB), *mount_args, meta, str(mount_point)]
    with daemons.Daemon("juicefs", mount, log_path=work / "juicefs.log") as daemon, _unmounted(mount_point):
        daemon.wait_until(lambda: _is_mounted(mount_point), what=f"mounted on {mount_point}", seconds=START_SECONDS)
        time.sleep(SETTLE_SECONDS)
        idle = common.memory_of_tree(daemon.pid)
        # A read from a FUSE daemon that hangs cannot be interrupted, but it fails when the daemon
        # ends.
        with daemon.ended_after(READ_SECONDS):
            figures = _read_warm(mount_point, size_bytes, passes)
        after = common.memory_of_tree(daemon.pid)
    return figures, idle, after


@contextlib.contextmanager
def _unmounted(mount_point):
    """Unmounts on leaving: as JuiceFS does it, and by force if it will not, since the mount point is removed next."""
    force = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-uz"]
    try:
        yield
    finally:
        for command in ([binary(), "umount"], force):
            if _is_mounted(mount_point):
                with contextlib.suppress(RuntimeError, OSError):
                    daemons.run_bounded([*command, str(mount_point)], what="unmount", seconds=daemons.STOP_SECONDS)


def _is_mounted(mount_point):
    """Asks the kernel's table, not the path: a stat on a mount whose daemon is dead fails, and on a hanging one it hangs."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        return any(line.split()[4] == str(mount_point) for line in mounts)


def _read_warm(mount_point, size_bytes, passes):
    """Writes a file through the mount, fills the cache, and times `passes` warm reads in each of the three ways."""
    path = mount_point / "file"
    common.write_pattern(path, size_bytes)
    for _ in range(2):
        common.evict_page_cache(path)
        common.read_pass(path)
    figures = {"direct": [], "evicted": [], "kernel": []}
    for _ in range(passes):
        figures["direct"].append(_served_by_cache(mount_point, size_bytes, lambda: common.read_pass(path, flags=os.O_DIRECT)))
        common.evict_page_cache(path)
        figures["evicted"].append(_served_by_cache(mount_point, size_bytes, lambda: common.read_pass(path)))
        # The pass before left the file in the kernel's cache.
        figures["kernel"].append(common.read_pass(path))
    path.unlink()
    return figures


def _served_by_cache(mount_point, size_bytes, read):
    """Runs `read` and checks by JuiceFS's own counter that its cache served (nearly) every byte of it."""
    before = _hit_bytes(mount_point)
    rate_gb_per_s = read()
    hit_bytes = _hit_bytes(mount_point) - before
    if hit_bytes < 0.99 * size_bytes:
        raise RuntimeError(f"JuiceFS's cache served {hit_bytes} of {size_bytes} bytes: the kernel's cache or the object store served the rest, "
                           "so this is not the figure it claims to be; is the cache directory too small?")
    return rate_gb_per_s


def _hit_bytes(mount_point):
    for line in (mount_point / ".stats").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(" ")
        if name == HITS:
            return float(value)
    raise RuntimeError(f"{mount_point}/.stats has no {HITS}: this version of JuiceFS counts otherwise")


def _records(command, figures, idle, after, limit, neighbours):
    way = max(("direct", "evicted"), key=lambda way: statistics.median(figures[way]))
    other = "evicted" if way == "direct" else "direct"
    names = {"direct": "O_DIRECT", "evicted": "kernel copy evicted before each pass"}
    limit_gb_per_s = statistics.median(limit)
    return [
        common.record("peer.juicefs.read", "GB/s", figures[way], command, reference=limit_gb_per_s, note=(
            f"{names[way]} ({names[other]}: {statistics.median(figures[other]):.2f}); reference is pread on tmpfs; {neighbours}")),
        common.record("peer.juicefs.read.kernel", "GB/s", figures["kernel"], command, reference=limit_gb_per_s,
                      note="served by the kernel's copy; JuiceFS is not asked"),
        common.record("peer.juicefs.tmpfs", "GB/s", limit, command, note="pread(1 MiB) on a plain tmpfs file, before and after the peer ran"),
        common.record("peer.juicefs.rss", "MiB", [after.own_bytes / common.MIB], command,
                      note=f"supervisor + server after the reads; sum of VmRSS: {after.rss_bytes / common.MIB:.0f}"),
        common.record("peer.juicefs.rss.idle", "MiB", [idle.own_bytes / common.MIB], command,
                      note=f"supervisor + server, just mounted, no data; sum of VmRSS: {idle.rss_bytes / common.MIB:.0f}"),
    ]


def main():
    """The command line: measures and prints. Exit status 0 also when skipped."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the records as JSON instead of a table")
    parser.add_argument("--size-mib", type=int, default=1024, help="size of the file read (default: %(default)s)")
    parser.add_argument("--passes", type=int, default=7, help="timed passes over it, each way (default: %(default)s)")
    parser.add_argument("--mount-args", type=shlex.split, default=[], help="more arguments for `juicefs mount`, to measure other settings")
    args = parser.parse_args()
    daemons.end_on_sigterm()
    try:
        records = run(args.size_mib * common.MIB, args.passes, args.mount_args)
    except RuntimeError as failure:
        sys.exit(f"{parser.prog}: {failure}")
    if args.json:
        print(json.dumps(records, indent=2))
    else:
        common.print_table(records)


if __name__ == "__main__":
    main()
