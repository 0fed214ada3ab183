"""Write-back: how long a writer waits, beside the memory that it writes to and the PFS itself.

    python3 bench/write_back.py FOREBAY --pfs DIR [--log DIR] [--nodes] [--mib 1024] [--runs 5] [--capacity 4GiB]
    python3 bench/write_back.py FOREBAY --restarts [--link 1gbit] [--mib 1024] [--runs 5] [--capacity 4GiB]

DIR is on the file system to compare with. One program writes a file by `write` of 1 MiB, in four
ways that alternate: to a file of the tier's own tmpfs (the limit), to DIR, to DIR under
`forebay run --write-back`, and with an fsync to DIR. As root, a mount with `--write-back` is timed
too. Then the pass is timed beside the last of
these, and a first read after it beside a read of the tmpfs. With --log, a write that ends with an
fsync and `--copies disk` is timed beside the same to a file in that directory. With --nodes, one
with `--copies 2` and two agents on this machine is timed beside a bare stream of the same file
between two processes, by sendfile from a tmpfs: to a reader that drops the bytes, and to one that
writes them to a tmpfs. Prints medians and ratios.

With --restarts (as root), a program writes the file with `--copies 2`, its node is lost with its
memory before the PFS has a byte, and the file is read on a third node and on the one with the copy.
--link gives all connections one link of this rate: a network namespace of its own.
"""

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import common

CLONE_NEWNET = 0x40000000

WRITER = """
import os, sys, time
block = os.urandom(1 << 20)
path, mib, sync = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "sync"
began = time.perf_counter()
fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
for _ in range(mib):
    os.write(fd, block)
if sync:
    os.fsync(fd)
os.close(fd)
print(time.perf_counter() - began)
"""

# As WRITER, and only the fsync is timed: what `--copies 2` adds to a write to memory.
SYNCED = WRITER.replace("if sync:\n    os.fsync(fd)", "began = time.perf_counter()\nos.fsync(fd)").replace(
    "path, mib, sync = sys.argv[1], int(sys.argv[2]), sys.argv[3] == \"sync\"", "path, mib = sys.argv[1], int(sys.argv[2])"
)

READER = """
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY)
buffer = bytearray(1 << 20)
began, n = time.perf_counter(), 0
while got := os.preadv(fd, [buffer], n):
    n += got
print(time.perf_counter() - began)
"""


# As READER, with the open, which fetches what is dirty on another node.
OPENED_READER = READER.replace("began, n = time.perf_counter(), 0", "n = 0").replace("fd = os.open", "began = time.perf_counter()\nfd = os.open")

# Sends a file to a reader; both are this script.
STREAM = """
import os, socket, sys, time
path, target = sys.argv[1:]
size = os.path.getsize(path)
listener = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    connection = listener.accept()[0]
    buffer, left = memoryview(bytearray(1 << 20)), size
    out = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) if target != "none" else None
    while left:
        got = connection.recv_into(buffer)
        if not got:
            os._exit(1)
        if out is not None:
            os.write(out, buffer[:got])
        left -= got
    connection.send(b"x")
    os._exit(0)
client = socket.create_connection(listener.getsockname())
with open(path, "rb") as file:
    began = time.perf_counter()
    client.sendfile(file)
    assert client.recv(1) == b"x"
    print(time.perf_counter() - began)
os.wait()
if target != "none":
    os.unlink(target)
"""


def seconds(command: list[str], env: dict[str, str]) -> float:
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def status(forebay: str, env: dict[str, str]) -> dict:
    shown = subprocess.run([forebay, "status", "--json"], env=env, check=True, capture_output=True, text=True)
    return json.loads(shown.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("forebay")
    parser.add_argument("--pfs")
    parser.add_argument("--restarts", action="store_true", help="measure restarts after the loss of the writer's node instead")
    parser.add_argument("--link", help="with --restarts: the rate of the link, as for tc")
    parser.add_argument("--log", help="a directory on a disk, for `tier.log`")
    parser.add_argument("--nodes", action="store_true", help="measure --copies 2 as well")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--capacity", default="4GiB")
    args = parser.parse_args()
    if not args.pfs and not args.restarts:
        parser.error("--pfs or --restarts is needed")
    if args.link:
        limit_link(args.link)
    forebay = os.path.abspath(args.forebay)
    found: dict[str, list[float]] = {}

    def note(name: str, took: float) -> None:
        found.setdefault(name, []).append(args.mib / took)

    if args.restarts:
        read = restarts(forebay, args, note)
        print(f"read from the PFS: {read} bytes, {read / (args.runs * args.mib << 20):.2f} copies")
    else:
        one_node(forebay, args, note)
    rates = {name: statistics.median(all_rates) for name, all_rates in found.items()}
    for name, rate in rates.items():
        low, high = min(found[name]), max(found[name])
        print(f"{name:<34} {rate:8.0f} MiB/s   ({low:.0f} to {high:.0f})")
    for name, limit in [
        ("write: write-back", "write: tmpfs"),
        ("write: write-back", "write: PFS"),
        ("write: write-back on a mount", "write: write-back"),
        ("write: write-back on a mount", "write: PFS"),
        ("pass", "write and fsync: PFS"),
        ("read after the pass", "read: tmpfs"),
        ("write and fsync: --copies disk", "write and fsync: disk of the log"),
        ("fsync: --copies 2", "stream"),
        ("fsync: --copies 2", "stream to a tmpfs"),
        ("restart on a third node", "stream"),
        ("restart on a third node", "stream to a tmpfs"),
        ("restart on the node with the copy", "open and read: tmpfs"),
    ]:
        if name not in rates or limit not in rates:
            continue
        print(f"{name} / {limit}: {rates[name] / rates[limit]:.2f}")


def one_node(forebay: str, args: argparse.Namespace, note: Callable[[str, float], None]) -> None:
    with tempfile.TemporaryDirectory() as state, tempfile.TemporaryDirectory(dir=args.pfs) as pfs:
        env = {**os.environ, "FOREBAY_SOCKET": f"{state}/agent.sock"}
        up = [forebay, "up", "--pfs", pfs, "--capacity", args.capacity, "--state-dir", state]
        logs = tempfile.TemporaryDirectory(dir=args.log) if args.log else None
        if logs:
            env["FOREBAY_TIER_LOG"] = f"{logs.name}/log"
        subprocess.run(up, env=env, check=True, stdout=subprocess.DEVNULL)
        at = f"{state}/mount"
        os.mkdir(at)
        has_mount = os.geteuid() == 0 and os.path.exists("/dev/fuse")
        try:
            if has_mount:
                subprocess.run([forebay, "mount", "--write-back", pfs, pfs, at], env=env, check=True)
            run = [forebay, "run", "--write-back", pfs, "--detach", "--"]
            write = [sys.executable, "-c", WRITER]
            read = [sys.executable, "-c", READER]
            mib, tmpfs, path = str(args.mib), f"{state}/tier/bench", f"{pfs}/file"
            for _ in range(args.runs):
                note("write: tmpfs", seconds([*write, tmpfs, mib, "no"], env))
                note("read: tmpfs", seconds([*read, tmpfs], env))
                os.unlink(tmpfs)
                note("write: PFS", seconds([*write, path, mib, "no"], env))
                os.unlink(path)
                note("write and fsync: PFS", seconds([*write, path, mib, "sync"], env))
                os.unlink(path)
                note("write: write-back", seconds([*run, *write, path, mib, "no"], env))
                began = time.perf_counter()
                subprocess.run([forebay, "sync", "--quiet"], env=env, check=True, stdout=subprocess.DEVNULL)
                note("pass", time.perf_counter() - began)
                subprocess.run(["sh", "-c", "sync; echo 1 > /proc/sys/vm/drop_caches"], check=False)
                while status(forebay, env)["used_bytes"]["dirty"] > 0:  # its time stamps have to grow old
                    time.sleep(0.1)
                note("read after the pass", seconds([forebay, "run", "--", *read, path], env))
                os.unlink(path)
                if has_mount:
                    note("write: write-back on a mount", seconds([*write, f"{at}/file", mib, "no"], env))
                    subprocess.run([forebay, "sync", "--quiet"], env=env, check=True, stdout=subprocess.DEVNULL)
                    os.unlink(path)
                if logs:
                    bare = f"{logs.name}/bare"
                    note("write and fsync: disk of the log", seconds([*write, bare, mib, "sync"], env))
                    os.unlink(bare)
                    kept = [*run[:-1], "--copies", "disk", "--"]
                    note("write and fsync: --copies disk", seconds([*kept, *write, path, mib, "sync"], env))
                    subprocess.run([forebay, "sync", "--quiet"], env=env, check=True, stdout=subprocess.DEVNULL)
                    os.unlink(path)
                subprocess.run([forebay, "evict", "--all"], env=env, check=True, stdout=subprocess.DEVNULL)
            counters = status(forebay, env)["counters"]
            wanted = (args.runs * (1 + has_mount + bool(logs)), args.runs if logs else 0)
            # A file that is closed right after its fsync is copied once more.
            if counters["absorbed_files_total"] != wanted[0] or counters["copies_sent_total"] < wanted[1]:
                raise SystemExit(f"not all of {wanted} files were absorbed and copied: {counters}")
        finally:
            if has_mount:
                subprocess.run([forebay, "umount", "--lazy", at], check=False)
            subprocess.run([forebay, "down", "--drop", "--state-dir", state], check=True, stdout=subprocess.DEVNULL)
        if args.nodes:
            two_nodes(forebay, pfs, args, note)


def limit_link(rate: str) -> None:
    """From here on, this process has a network of its own, with a loopback of this rate."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot make a network namespace")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", rate, "burst", "1mb", "latency", "50ms"], check=True)


@contextlib.contextmanager
def cluster(forebay: str, pfs: str, names: str, capacity: str, in_directory: bool = True):
    """Agents of these names under one coordinator: their directory, and their processes by name.

    `in_directory`: their memory is directories, which can be lost, and not each a tmpfs.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        coordinator = subprocess.Popen([forebay, "coordinator", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        processes = {"": coordinator}
        try:
            address = coordinator.stdout.readline().split()[-1]
            for name in names:
                tier = f"{place}/tier-{name}" if in_directory else None
                common.write_agent(f"{place}/{name}.toml", f"{place}/{name}", pfs, capacity, tier, common.member(name, address))
                processes[name] = subprocess.Popen([forebay, "agent", "--config", f"{place}/{name}.toml"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            all_met = lambda: all(members(forebay, node_env(place, name)) == len(names) for name in names)
            common.wait_until(all_met, "not in time: the agents find each other")
            yield place, processes
        finally:
            for name in names:
                subprocess.run(["umount", "--lazy", f"{place}/{name}/guests/0"], check=False, stderr=subprocess.DEVNULL)
            for process in reversed(processes.values()):
                process.terminate()
                process.wait()
            for name in names:
                subprocess.run([forebay, "clean", "--state-dir", f"{place}/{name}"], check=False, capture_output=True)
                subprocess.run(["umount", "--lazy", f"{place}/{name}/tier"], check=False, stderr=subprocess.DEVNULL)


def node_env(place: str, name: str) -> dict[str, str]:
    return {**os.environ, "FOREBAY_SOCKET": f"{place}/{name}/agent.sock"}


def members(forebay: str, env: dict[str, str]) -> int:
    shown = subprocess.run([forebay, "status", "--json"], env=env, capture_output=True, text=True, check=False)
    return len(json.loads(shown.stdout)["cluster"]["view"]["nodes"]) if shown.returncode == 0 else 0


def note_streams(place: str, mib: str, note: Callable[[str, float], None]) -> None:
    """The bounds: a bare stream of as many bytes, one that is written to a tmpfs, and a read of that."""
    source = f"{place}/source"
    subprocess.run([sys.executable, "-c", WRITER, source, mib, "no"], check=True, stdout=subprocess.DEVNULL)
    note("stream", seconds([sys.executable, "-c", STREAM, source, "none"], dict(os.environ)))
    note("stream to a tmpfs", seconds([sys.executable, "-c", STREAM, source, f"{place}/target"], dict(os.environ)))
    note("open and read: tmpfs", seconds([sys.executable, "-c", OPENED_READER, source], dict(os.environ)))
    os.unlink(source)


def two_nodes(forebay: str, pfs: str, args: argparse.Namespace, note: Callable[[str, float], None]) -> None:
    """The second node keeps what the first one's programs sync."""
    with cluster(forebay, pfs, "ab", args.capacity) as (place, _):
        env = node_env(place, "a")
        run = [forebay, "run", "--write-back", pfs, "--detach", "--copies", "2", "--"]
        timed = [sys.executable, "-c", SYNCED]
        path, mib = f"{pfs}/file", str(args.mib)
        for _ in range(args.runs):
            note("fsync: --copies 2", seconds([*run, *timed, path, mib], env))
            subprocess.run([forebay, "sync", "--quiet"], env=env, check=True, stdout=subprocess.DEVNULL)
            os.unlink(path)
            subprocess.run([forebay, "evict", "--all"], env=env, check=True, stdout=subprocess.DEVNULL)
            note_streams(place, mib, note)
        if (missed := status(forebay, env)["counters"]["copies_missed_total"]) > 0:
            raise SystemExit(f"{missed} second copies were missed")


def restarts(forebay: str, args: argparse.Namespace, note: Callable[[str, float], None]) -> int:
    """The writer's node is lost before the PFS has a byte, and programs of the others read its file.

    Returns the bytes that were read from the PFS.
    """
    with tempfile.TemporaryDirectory(dir="/dev/shm") as backing, tempfile.TemporaryDirectory() as pfs:
        subprocess.run([forebay, "lab", "slowfs", "--backing", backing, "--mount", pfs, "--daemonize"], check=True, stdout=subprocess.DEVNULL)
        try:
            os.setxattr(pfs, "user.slowfs.fault", b"write=EIO")
            for _ in range(args.runs):
                restart(forebay, pfs, args, note)
            return json.loads(os.getxattr(pfs, "user.slowfs.stats"))["read_bytes"]
        finally:
            subprocess.run(["umount", "--lazy", pfs], check=True)


def restart(forebay: str, pfs: str, args: argparse.Namespace, note: Callable[[str, float], None]) -> None:
    path, mib = f"{pfs}/file", str(args.mib)
    with cluster(forebay, pfs, "abc", args.capacity) as (place, processes):
        run = [forebay, "run", "--write-back", pfs, "--detach", "--copies", "2", "--"]
        seconds([*run, sys.executable, "-c", WRITER, path, mib, "no"], node_env(place, "a"))
        processes["a"].kill()
        processes["a"].wait()
        shutil.rmtree(f"{place}/tier-a")
        taken = lambda name: status(forebay, node_env(place, name))["counters"]["taken_over_total"]
        common.wait_until(lambda: taken("b") + taken("c") == 1, "not in time: another node takes the file over")
        keeper, third = "bc" if taken("b") else "cb"
        read = [forebay, "run", "--", sys.executable, "-c", OPENED_READER, path]
        note("restart on a third node", seconds(read, node_env(place, third)))
        note("restart on the node with the copy", seconds(read, node_env(place, keeper)))
        note_streams(place, mib, note)
    os.unlink(path)


if __name__ == "__main__":
    main()
