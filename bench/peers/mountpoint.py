"""mountpoint-s3 for bench/mount.py: a FUSE mount of a bucket on an S3 server on this machine.

The server is versitygw, on loopback, with its files in /dev/shm; mountpoint-s3 runs with its
defaults. It then has no cache of its own (`--cache` is off), and each open drops the kernel's pages
of the file, so every pass reads the server. That is why this module measures no cached read. The
server must be cheap, as it shares the CPUs with the mount.
$FOREBAY_PEER_MOUNTPOINT names the directory with the programs; README.md says how to get them.
"""

import contextlib
import os
import tempfile
from pathlib import Path

from peers import daemons, fuse

SERVER, MOUNT = "versitygw", "mount-s3"
LOCAL = "127.0.0.1"
BUCKET = "bench"
KEYS = {"AWS_ACCESS_KEY_ID": "forebay", "AWS_SECRET_ACCESS_KEY": "benchmark"}


def program_dir():
    """The directory with the programs, or None."""
    return os.environ.get("FOREBAY_PEER_MOUNTPOINT")


def missing():
    """Why mountpoint-s3 cannot be measured here, in one line; None if it can."""
    if program_dir() is None:
        return "no $FOREBAY_PEER_MOUNTPOINT"
    for program in (SERVER, MOUNT):
        if not os.access(Path(program_dir(), program), os.X_OK):
            return f"no {program} in $FOREBAY_PEER_MOUNTPOINT ({program_dir()})"
    return "mounting mountpoint-s3 needs root" if os.geteuid() else fuse.missing()


@contextlib.contextmanager
def mounted(programs, _capacity_bytes):
    """Mounts a new, empty bucket, and gives its fuse.Mount; nothing is left of it afterwards."""
    with contextlib.ExitStack() as running:
        work = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="forebay-mountpoint-")))
        store = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="forebay-mountpoint-", dir=fuse.SHM)))
        mount_point = work / "mnt"
        mount_point.mkdir()
        (store / BUCKET).mkdir()
        port = daemons.free_ports(1)[0]
        # Without the user's own credentials, and without a search for some in the network.
        env = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        env |= {**KEYS, "AWS_EC2_METADATA_DISABLED": "true"}
        access, secret = KEYS.values()
        # As S3 does, it keeps connections.
        server = running.enter_context(daemons.Daemon(
            SERVER, [str(Path(programs, SERVER)), "--quiet", "--keep-alive", "--port", f"{LOCAL}:{port}", "--access", access,
                     "--secret", secret, "posix", str(store)],
            env=env, log_path=work / "server.log"))
        server.wait_until(lambda: daemons.accepts(port), what=f"listening on port {port}", seconds=fuse.START_SECONDS)
        daemon = running.enter_context(daemons.Daemon(
            MOUNT, [str(Path(programs, MOUNT)), "--foreground", "--endpoint-url", f"http://{LOCAL}:{port}", "--force-path-style",
                    "--region", "us-east-1", BUCKET, str(mount_point)],
            env=env, log_path=work / "mount.log"))
        running.enter_context(fuse.unmounted(mount_point, ["umount"]))
        daemon.wait_until(lambda: fuse.is_mounted(mount_point), what=f"mounted on {mount_point}", seconds=fuse.START_SECONDS)
        yield fuse.Mount(mount_point, [server, daemon], lambda: fuse.written_bytes(daemon.pid), has_cache=False)
