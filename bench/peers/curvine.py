#!/usr/bin/env python3
"""Curvine beside Forebay: cached reads through its FUSE mount, and the memory of its daemons.

A master and a worker on loopback with the memory tier on /dev/shm, and its FUSE mount; everything
else at its default, except where a comment says why. One file written through the mount, to the
tier only, and read warm, 1 MiB at a time. $FOREBAY_PEER_CURVINE names the directory with the
programs. See README.md for how to build them and what the figures do and do not say, and fuse.py
for how it is read.

    FOREBAY_PEER_CURVINE=DIR python3 bench/peers/curvine.py [--json] [--mount-args '--io-threads 8']

The kernel's count of the bytes that the process of the mount has written, its answers, proves that
it served each pass.
"""

import contextlib
import os
import socket
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

import common  # noqa: E402
from peers import daemons, fuse  # noqa: E402

SERVER, MOUNT = "curvine-server", "curvine-fuse"
LOCAL = "127.0.0.1"
IDS = fuse.ids("curvine")
CONFIG = """\
format_master = true
format_worker = true
[master]
hostname = "{local}"
rpc_port = {ports[0]}
web_port = {ports[1]}
meta_dir = "{work}/meta"
[journal]
hostname = "{local}"
rpc_port = {ports[2]}
journal_addrs = [{{id = 1, hostname = "{local}", port = {ports[2]}}}]
journal_dir = "{work}/journal"
[worker]
hostname = "{local}"
rpc_port = {ports[3]}
web_port = {ports[4]}
data_dir = ["[MEM:{capacity_bytes}B]{tier}"]
[client]
hostname = "{local}"
storage_type = "mem"
[fuse]
mnt_path = "{mount_point}"
state_dir = "{work}"
web_port = {held_port}
# Splice, its default, takes pipes above the default of fs.pipe-max-size. Only CAP_SYS_RESOURCE
# permits that, and root in a container may lack it; then the mount ends at once.
enable_splice = false
"""


def program_dir():
    """The directory with Curvine's programs, or None."""
    return os.environ.get("FOREBAY_PEER_CURVINE")


def missing():
    """Why Curvine cannot be measured here, in one line; None if it can."""
    if program_dir() is None:
        return "no $FOREBAY_PEER_CURVINE"
    for program in (SERVER, MOUNT):
        if not os.access(Path(program_dir(), program), os.X_OK):
            return f"no {program} in $FOREBAY_PEER_CURVINE ({program_dir()})"
    return "mounting Curvine needs root" if os.geteuid() else fuse.missing()


def run(size_bytes=common.GIB, passes=7, mount_args=()):
    """The records of this peer, as fuse.run describes."""
    return fuse.run("curvine", missing(), lambda capacity_bytes: mounted(program_dir(), capacity_bytes, mount_args), size_bytes, passes,
                    mount_args)


@contextlib.contextmanager
def mounted(programs, capacity_bytes, mount_args=()):
    """Mounts a new Curvine with a memory tier of `capacity_bytes`, and gives its fuse.Mount;
    nothing is left of it afterwards.
    """
    with contextlib.ExitStack() as running:
        work = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="forebay-curvine-")))
        tier = running.enter_context(tempfile.TemporaryDirectory(prefix="forebay-curvine-", dir=fuse.SHM))
        # The mount would show its state on a port of all interfaces. It runs without it if it
        # cannot have the port, so the port is held here.
        held = running.enter_context(socket.create_server((LOCAL, 0)))
        mount_point, config = work / "mnt", work / "curvine.toml"
        mount_point.mkdir()
        ports = daemons.free_ports(5)
        config.write_text(CONFIG.format(local=LOCAL, work=work, tier=tier, mount_point=mount_point, ports=ports,
                                        held_port=held.getsockname()[1], capacity_bytes=capacity_bytes), encoding="utf-8")
        started = []

        def start(what, program, *arguments):
            env = {key: value for key, value in os.environ.items() if not key.startswith(("CURVINE_", "ORPC_"))}
            daemon = daemons.Daemon(what, [str(Path(programs, program)), *arguments, "--conf", str(config)], env=env,
                                    log_path=work / f"{program}-{len(started)}.log")
            started.append(running.enter_context(daemon))
            return daemon

        for role, port in (("master", ports[0]), ("worker", ports[3])):
            start(f"the Curvine {role}", SERVER, "--service", role).wait_until(
                lambda port=port: daemons.accepts(port), what=f"listening on port {port}", seconds=fuse.START_SECONDS)
        daemon = start("curvine-fuse", MOUNT, *mount_args)
        running.enter_context(fuse.unmounted(mount_point, ["umount"]))
        daemon.wait_until(lambda: fuse.is_mounted(mount_point), what=f"mounted on {mount_point}", seconds=fuse.START_SECONDS)
        # Until the worker has registered, the mount has no space, and writes fail.
        with daemon.ended_after(fuse.START_SECONDS):
            daemon.wait_until(lambda: _has_space(mount_point), what="given space by a worker", seconds=fuse.START_SECONDS)
        yield fuse.Mount(mount_point, started, lambda: fuse.written_bytes(daemon.pid))


def _has_space(mount_point):
    """Whether the mount works and has space. False also if its daemon has ended, which `wait_until`
    reports better.
    """
    with contextlib.suppress(OSError):
        return os.statvfs(mount_point).f_blocks > 0
    return False


if __name__ == "__main__":
    fuse.main(__doc__, run, MOUNT)
