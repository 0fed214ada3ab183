#!/usr/bin/env python3
"""JuiceFS beside Forebay: cached reads through its FUSE mount, and the memory of its daemon.

Metadata in SQLite, objects in a local directory, the cache on /dev/shm, everything else at its
default; one file written through the mount and read warm, 1 MiB at a time. JuiceFS must be
installed: the first of $FOREBAY_PEER_JUICEFS and `juicefs` in PATH is run. See README.md for what
the figures do and do not say, and fuse.py for how it is read.

    python3 bench/peers/juicefs.py [--json] [--mount-args '--max-fuse-io 1M']

JuiceFS's own counter of cache hits proves that each pass was served by its cache.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import common  # noqa: E402
from peers import daemons, fuse  # noqa: E402

HITS = "juicefs_blockcache_hit_bytes"
IDS = fuse.ids("juicefs")


def binary():
    """The JuiceFS program to run, or None."""
    return shutil.which(os.environ.get("FOREBAY_PEER_JUICEFS") or "juicefs")


def missing():
    """Why JuiceFS cannot be measured here, in one line; None if it can."""
    if binary() is None:
        return "no juicefs in PATH nor in $FOREBAY_PEER_JUICEFS"
    return fuse.missing()


def run(size_bytes=common.GIB, passes=7, mount_args=()):
    """The records of this peer, as fuse.run describes."""
    return fuse.run("juicefs", missing(), lambda capacity_bytes: mounted(binary(), capacity_bytes, mount_args), size_bytes, passes, mount_args)


@contextlib.contextmanager
def mounted(program, capacity_bytes, mount_args=()):
    """Mounts a new JuiceFS volume with a cache of `capacity_bytes` in memory, and gives its
    fuse.Mount; nothing is left of it afterwards.
    """
    with tempfile.TemporaryDirectory(prefix="forebay-juicefs-") as name, \
            tempfile.TemporaryDirectory(prefix="forebay-juicefs-", dir=fuse.SHM) as cache:
        work = Path(name)
        meta, mount_point = f"sqlite3://{work}/meta.db", work / "mnt"
        mount_point.mkdir()
        daemons.run_bounded([program, "format", "--storage", "file", "--bucket", f"{work}/objects/", "--trash-days", "0", meta, "bench"],
                            what="format the JuiceFS volume", seconds=fuse.START_SECONDS)
        # No usage report, no profiling port, metrics on loopback: nothing leaves this machine.
        mount = [program, "mount", "--no-usage-report", "--no-agent", "--no-syslog", "--metrics", "127.0.0.1:0", "--backup-meta", "0",
                 "--cache-dir", cache, "--cache-size", str(capacity_bytes // common.MIB), *mount_args, meta, str(mount_point)]
        with daemons.Daemon("juicefs", mount, log_path=work / "juicefs.log") as daemon, fuse.unmounted(mount_point, [program, "umount"]):
            daemon.wait_until(lambda: fuse.is_mounted(mount_point), what=f"mounted on {mount_point}", seconds=fuse.START_SECONDS)
            yield fuse.Mount(mount_point, [daemon], lambda: _hit_bytes(mount_point))


def _hit_bytes(mount_point):
    for line in (mount_point / ".stats").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(" ")
        if name == HITS:
            return float(value)
    raise RuntimeError(f"{mount_point}/.stats has no {HITS}: this version of JuiceFS counts otherwise")


if __name__ == "__main__":
    fuse.main(__doc__, run, "juicefs mount")
