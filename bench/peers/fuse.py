"""What the peers that are used through a FUSE mount share: cached sequential read through it, and
the memory their daemons take.

A peer's module starts its daemons and gives a `Mount`; here one file is written through it and read
warm, 1 MiB at a time.

The kernel keeps its own copy of what a FUSE daemon answered, so a second read of a file need not
reach the daemon. What is compared is the peer's cache, so the kernel's copy is kept out in two
ways, O_DIRECT and eviction before each pass, and the faster one is reported. A counter of the bytes
that the peer served proves that it served each pass.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import shlex
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Callable

import common
from peers import daemons

SHM = "/dev/shm"
FUSE = "/dev/fuse"
START_SECONDS = 60
SETTLE_SECONDS = 5
READ_SECONDS = 900
UNITS = {"read": "GB/s", "tmpfs": "GB/s", "rss": "MiB"}


@dataclasses.dataclass(frozen=True)
class Mount:
    """A peer that is mounted."""
    directory: Path
    # All its daemons; the last one answers the kernel's requests.
    daemons: list
    # Bytes that the peer, not the kernel, has served until now, by a count that is not ours.
    served_bytes: Callable[[], float]
    # Whether it caches what it serves.
    has_cache: bool = True

    def memory(self):
        """Resident memory of all its daemons."""
        parts = [dataclasses.astuple(common.memory_of_tree(daemon.pid)) for daemon in self.daemons]
        return common.Memory(*map(sum, zip(*parts)))

    def ended_after(self, seconds):
        """For a block that reads: a read from a FUSE daemon that hangs cannot be interrupted, but
        it fails when the daemon ends.
        """
        return self.daemons[-1].ended_after(seconds)

    def served(self, size_bytes, read):
        """Runs `read`, which reads `size_bytes`, and returns its figure. RuntimeError if the peer
        did not serve them all.
        """
        before = self.served_bytes()
        figure = read()
        served_bytes = self.served_bytes() - before
        if served_bytes < 0.99 * size_bytes:
            raise RuntimeError(f"the peer's cache served {served_bytes} of {size_bytes} bytes: somebody else served the rest, "
                               "so this is not the figure it claims to be; is the cache too small?")
        return figure


def ids(name):
    """{id of a record: its unit} of this peer."""
    return {f"peer.{name}.{figure}": unit for figure, unit in UNITS.items()}


def written_bytes(pid):
    """Bytes that a process has written since it started, by write(2) and its kin: for a daemon of a
    mount, its answers above all.
    """
    with open(f"{common.PROC}/{pid}/io", encoding="ascii") as lines:
        return int(dict(line.split(": ") for line in lines)["wchar"])


def missing():
    """Why nothing can be mounted here, in one line; None if it can."""
    return None if os.access(FUSE, os.R_OK | os.W_OK) else f"cannot open {FUSE}: mounting needs root here"


def is_mounted(mount_point):
    """Asks the kernel's table, not the path: a stat on a mount whose daemon is dead fails, and on a
    hanging one it hangs.
    """
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        return any(line.split()[4] == str(mount_point) for line in mounts)


@contextlib.contextmanager
def unmounted(mount_point, command):
    """Unmounts on leaving: with the peer's own command, and by force if it will not, since the
    mount point is removed next.
    """
    force = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-uz"]
    try:
        yield
    finally:
        for unmount in (command, force):
            if is_mounted(mount_point):
                with contextlib.suppress(RuntimeError, OSError):
                    daemons.run_bounded([*unmount, str(mount_point)], what="unmount", seconds=daemons.STOP_SECONDS)


def run(name, reason, mounted, size_bytes, passes, mount_args=()):
    """The records of this peer; if there is a `reason` why it cannot run, the same ids with no
    value and the reason.

    `mounted(capacity_bytes)` is a context manager that gives a Mount. RuntimeError, with the end of
    the peer's log, if it does not work, or if a figure is not what it claims to be.
    """
    command = f"python3 bench/peers/{name}.py --size-mib {size_bytes // common.MIB} --passes {passes}"
    if mount_args:
        command += f" --mount-args {shlex.quote(shlex.join(mount_args))}"
    if reason:
        return [common.skipped(id, unit, command, reason) for id, unit in ids(name).items()]
    # Cache, kernel's copy and limit file; JuiceFS itself stops caching when a tenth of the file
    # system is all that is free.
    need_bytes = 2 * size_bytes + common.GIB + shutil.disk_usage(SHM).total // 10
    if shutil.disk_usage(SHM).free < need_bytes:
        raise RuntimeError(f"{SHM} has {shutil.disk_usage(SHM).free // common.MIB} MiB free, the benchmark needs "
                           f"{need_bytes // common.MIB}: free some, or give a smaller --size-mib")
    with common.Neighbours() as neighbours:
        limit = common.tmpfs_limit(size_bytes)
        with mounted(2 * size_bytes) as mount:
            time.sleep(SETTLE_SECONDS)
            common.warm_memory(2 * size_bytes)
            with mount.ended_after(READ_SECONDS):
                figures = read_warm(mount, size_bytes, passes)
            after = mount.memory()
        limit += common.tmpfs_limit(size_bytes)
    return records(name, command, figures, after, limit, neighbours)


def read_warm(mount, size_bytes, passes):
    """Writes a file through the mount, fills the cache, and times `passes` warm reads in each of
    both ways: {way: GB/s of each pass}.
    """
    path = mount.directory / "file"
    common.write_pattern(path, size_bytes)
    for _ in range(2):
        common.evict_page_cache(path)
        common.read_pass(path)
    figures = {"direct": [], "evicted": []}
    for _ in range(passes):
        figures["direct"].append(mount.served(size_bytes, lambda: common.read_pass(path, flags=os.O_DIRECT)))
        common.evict_page_cache(path)
        figures["evicted"].append(mount.served(size_bytes, lambda: common.read_pass(path)))
    path.unlink()
    return figures


def records(name, command, figures, after, limit, neighbours):
    """The records of what was measured, in the order of `UNITS`."""
    way = max(("direct", "evicted"), key=lambda way: statistics.median(figures[way]))
    other = "evicted" if way == "direct" else "direct"
    names = {"direct": "O_DIRECT", "evicted": "kernel copy evicted before each pass"}
    return [
        common.record(f"peer.{name}.read", "GB/s", figures[way], command, reference=statistics.median(limit), note=(
            f"{names[way]} ({names[other]}: {statistics.median(figures[other]):.2f}); reference is pread on tmpfs; {neighbours}")),
        common.record(f"peer.{name}.tmpfs", "GB/s", limit, command, note="pread(1 MiB) on a plain tmpfs file, before and after the peer ran"),
        common.record(f"peer.{name}.rss", "MiB", [after.own_bytes / common.MIB], command,
                      note=f"all its processes after the reads; sum of VmRSS: {after.rss_bytes / common.MIB:.0f}"),
    ]


def main(description, measure, program):
    """The command line of a peer: measures and prints. Exit status 0 also when skipped."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the records as JSON instead of a table")
    parser.add_argument("--size-mib", type=int, default=1024, help="size of the file read (default: %(default)s)")
    parser.add_argument("--passes", type=int, default=7, help="timed passes over it, each way (default: %(default)s)")
    parser.add_argument("--mount-args", type=shlex.split, default=[], help=f"more arguments for `{program}`, to measure other settings")
    args = parser.parse_args()
    daemons.end_on_sigterm()
    try:
        measured = measure(args.size_mib * common.MIB, args.passes, args.mount_args)
    except RuntimeError as failure:
        sys.exit(f"{parser.prog}: {failure}")
    if args.json:
        print(json.dumps(measured, indent=2))
    else:
        common.print_table(measured)
