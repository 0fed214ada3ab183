"""The stage: a slow parallel file system, and an agent in front of it, as child processes.

Both are in sessions of their own, so that Ctrl-C reaches only this program, which then ends them in order: agent first, as it holds
files of the file system open. Each end has a bound in time.
"""

import contextlib
import json
import os
import signal
import subprocess
import time

STATS_XATTR = "user.slowfs.stats"
START_S = 20
STOP_S = 10


class LabError(Exception):
    """Something did not start; the message says what to do."""


def newest_program(target):
    """$FOREBAY_BIN, or the newest of what cargo has built below `target`; the release's path if there is none."""
    built = [path for path in (target / "release/forebay", target / "debug/forebay") if path.exists()]
    return os.environ.get("FOREBAY_BIN") or str(max(built, key=lambda path: path.stat().st_mtime, default=target / "release/forebay"))


@contextlib.contextmanager
def slow_pfs(program, backing, mount, servers, rate, options=(), attr_ttl="1s"):
    """A PFS of `servers` times `rate` (such as "50MB/s") on `mount`, over the files of
    `backing`; `options` are further arguments.

    Attributes stay valid for `attr_ttl`, by default as parallel file systems have it.
    """
    mount.mkdir()
    command = [program, "lab", "slowfs", "--backing", backing, "--mount", mount, "--servers", str(servers), "--rate", rate]
    command += ["--attr-ttl", attr_ttl, *options]
    with child(command, mount.with_suffix(".log")) as (process, log):
        wait_for(lambda: served_bytes(mount) is not None, process, "the slow file system", log)
        yield mount


def set_rate(program, mount, rate):
    """Changes the rate of each server, such as "50MB/s"."""
    done = subprocess.run([str(program), "lab", "rate", str(mount), rate], capture_output=True, text=True, timeout=START_S, check=False)
    if done.returncode:
        raise LabError(f"the rate of the slow file system cannot be set: {done.stderr.strip()}")


@contextlib.contextmanager
def agent(program, pfs, state_dir, capacity_bytes):
    """An agent that serves `pfs`; gives its socket. Its memory is given back at the end."""
    socket = state_dir / "agent.sock"
    command = [program, "up", "--foreground", "--pfs", f"pfs={pfs}", "--capacity", str(capacity_bytes), "--state-dir", state_dir]
    with child(command, state_dir.with_suffix(".log")) as (process, log):
        try:
            wait_for(socket.exists, process, "the agent", log)
            yield socket
        finally:
            drop = [program, "down", "--drop", "--socket", socket, "--state-dir", state_dir]
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(drop, capture_output=True, timeout=STOP_S, check=False)


@contextlib.contextmanager
def child(command, log):
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield process, log
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                process.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_S)


def wait_for(ready, process, what, log):
    deadline = time.monotonic() + START_S
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            said = log.read_text(errors="replace").strip().splitlines()
            raise LabError(f"{what} did not start: {said[-1] if said else 'it said nothing'}")
        time.sleep(0.02)


def stats(mount):
    """What the servers of the slow file system have moved so far, as it tells it; None if it is not mounted."""
    try:
        return json.loads(os.getxattr(mount, STATS_XATTR))
    except OSError:
        return None


def served_bytes(mount):
    """Bytes the servers of the slow file system have read so far; None if it is not mounted."""
    counted = stats(mount)
    return counted and counted["read_bytes"]


def forget_page_cache(paths):
    """Makes the kernel forget its own copy of the files.

    The data of a real job is larger than a node's page cache, so its next pass finds nothing there. Here it would fit, and the kernel's
    memory would pass for the PFS's speed.
    """
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
