"""Measures reads, writes and name lookups of a mount, compared with faster paths.

Each pair runs in turns in one process, so the ratio holds on a busy machine as well. Needs root.

- read: a cached file through the mount, beside the kernel's own passthrough (a mount without an
  agent of a tmpfs: the kernel passes reads to the file), beside the tmpfs, and, with
  --passthrough-hp, beside a file system that serves each read by a request and a copy. With
  --peers, beside JuiceFS, Curvine and mountpoint-s3, as far as they are installed
  (peers/README.md): their caches are in /dev/shm too, as is the store of mountpoint-s3, which by
  default has no cache. "To ...'s cache" are passes that the peer serves, and the kernel's
  page cache does not; "as used" are reads as its users see them, with its defaults: the first
  after the kernel has dropped its pages, and the next, which the kernel serves alone if it has kept
  what the peer has answered. --beside NAME=DIRECTORY compares with any other mount in the same way.
- write, cold read: through the mount, beside the PFS itself. With --pfs, these and the names only,
  on another file system than a tmpfs; the kernel's caches are dropped before each read.
- names: beside the directory itself, and, with --passthrough-hp, beside libfuse's example
  `passthrough_hp`, which passes everything through and does nothing else. Both let the kernel cache
  neither names nor attributes (`--nocache`). Packages have no binary of it. To get one on Debian,
  take the sources (`apt-get source fuse3`) and compile the example with libfuse3-dev:
  g++ -O2 -std=c++17 example/passthrough_hp.cc $(pkg-config --cflags --libs fuse3) -o passthrough_hp
"""

import argparse
import mmap
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

import common
from peers import curvine, daemons, fuse, juicefs, mountpoint

FILE_BYTES = 256 << 20
NAMES = 2000


def main():
    """Prints a row for each pair."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("forebay", type=pathlib.Path, help="the program")
    arguments.add_argument("--runs", type=int, default=9)
    arguments.add_argument("--passthrough-hp", type=pathlib.Path, help="the binary of libfuse's example")
    arguments.add_argument("--peers", action="store_true", help="compare cached reads with JuiceFS, Curvine and mountpoint-s3 too")
    arguments.add_argument("--beside", action="append", default=[], type=named_directory, metavar="NAME=DIRECTORY",
                           help="another mounted file system to compare re-reads with")
    arguments.add_argument("--only", choices=("bytes", "names"), help="reads and writes, or names")
    arguments.add_argument("--pfs", type=pathlib.Path, help="a directory in place of the tmpfs: writes, cold reads and names only")
    options = arguments.parse_args()
    options.peers |= bool(options.beside)
    if options.peers and (options.pfs or options.only == "names"):
        arguments.error("--peers compares cached reads: not with --pfs or --only names")
    daemons.end_on_sigterm()
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="forebay-mount-") as name:
        measure(options, pathlib.Path(name))


def named_directory(text):
    """NAME=DIRECTORY as a pair."""
    name, _, directory = text.partition("=")
    if not name or not os.path.isdir(directory):
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME=DIRECTORY, of a directory that is there")
    return name, pathlib.Path(directory)


def measure(options, directory):
    """Mounts everything, and runs the pairs."""
    forebay = options.forebay.resolve()
    socket = directory / "agent" / "agent.sock"
    with_agent = dict(os.environ, FOREBAY_SOCKET=str(socket))
    without = dict(os.environ, FOREBAY_SOCKET="none")
    pfs, mounted, passed, example = (directory / name for name in ("pfs", "mounted", "passed", "example"))
    for place in (pfs, mounted, passed, example):
        place.mkdir()
    if options.pfs:
        pfs = pathlib.Path(tempfile.mkdtemp(dir=options.pfs, prefix="forebay-mount-"))

    def run(*command, env=with_agent):
        subprocess.run([forebay, *command], env=env, check=True, stdout=subprocess.DEVNULL)

    if not options.pfs:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={FILE_BYTES * 4}", "pfs", pfs], check=True)
    try:
        block = os.urandom(1 << 20)
        with (pfs / "data").open("wb") as file:
            for at in range(FILE_BYTES >> 20):
                file.write(at.to_bytes(8, "little") + block[8:])
        run("up", "--pfs", str(pfs), "--state-dir", str(socket.parent), "--capacity", "700MiB")
        run("mount", str(pfs), str(mounted))
        if options.pfs:
            if options.only != "names":
                head(options)
                transfers(options, (pfs, mounted), lambda: run("evict", "--all"))
            if options.only != "bytes":
                names_pairs(options, mounted, [("the PFS", pfs)])
            return
        run("mount", str(pfs), str(passed), env=without)
        run("load", str(pfs / "data"))
        references = [("the directory", pfs)]
        if options.passthrough_hp:
            subprocess.run([options.passthrough_hp.resolve(), "--nocache", pfs, example], check=True)
            references.append(("passthrough_hp", example))
        if options.only != "names":
            bytes_pairs(options, (pfs, mounted, passed), references, lambda: run("evict", "--all"))
        if options.peers:
            run("load", str(pfs / "data"))
            peer_pairs(options, mounted / "data")
        if options.only != "bytes":
            names_pairs(options, mounted, references)
    finally:
        for place in (mounted, passed, example, pfs):
            if os.path.ismount(place):
                subprocess.run(["umount", "--lazy", place], check=False)
        subprocess.run([forebay, "down", "--drop", "--state-dir", socket.parent], env=with_agent, check=False,
                       stdout=subprocess.DEVNULL)
        if options.pfs:
            shutil.rmtree(pfs)


def head(options):
    """The head of a table."""
    print(f"| case | here | reference | median ratio of {options.runs} runs | lowest | highest |")
    print("| --- | --- | --- | --- | --- | --- |")


def bytes_pairs(options, places, references, evict):
    """Reads and writes."""
    pfs, mounted, passed = places
    references = [("kernel passthrough", passed), *references]
    head(options)
    def first(work):
        common.evict_page_cache(mounted / "data")
        return work(mounted / "data")

    for name, work in READS.items():
        for what, place in references:
            reference = lambda: work(place / "data")
            row(options, f"first read, {name}, to {what}", lambda: first(work), reference)
            row(options, f"read again, {name}, to {what}", lambda: work(mounted / "data"), reference)
    transfers(options, (pfs, mounted), evict)


def peer_pairs(options, path):
    """Cached reads: beside the caches of others, and beside others as their users run them."""
    for name, peer, program in (("JuiceFS", juicefs, juicefs.binary()), ("Curvine", curvine, curvine.program_dir()),
                                ("mountpoint-s3", mountpoint, mountpoint.program_dir())):
        if reason := peer.missing():
            print(f"| cached read, to {name} | | {reason} | | | |")
            continue
        with peer.mounted(program, 2 * FILE_BYTES) as mount, mount.ended_after(fuse.READ_SECONDS):
            twin = mount.directory / "data"
            shutil.copyfile(path, twin)
            # Until its cache has the file: it may drop blocks that come faster than it stores them.
            for _ in range(10):
                common.evict_page_cache(twin)
                before = mount.served_bytes()
                common.read_pass(twin)
                if mount.served_bytes() - before >= FILE_BYTES:
                    break
            if mount.has_cache:
                row(options, f"cached read, 1 MiB, to {name}'s cache", lambda: read(path, 1 << 20), lambda: peer_read(mount, twin))
            used_pairs(options, path, name, twin)
    for name, directory in options.beside:
        twin = directory / f"forebay-bench-{os.getpid()}"
        try:
            shutil.copyfile(path, twin)
            used_pairs(options, path, name, twin)
        finally:
            twin.unlink(missing_ok=True)


def used_pairs(options, path, name, twin):
    """Reads of a cached file as users of a peer see them, whoever serves them: the first after the kernel has dropped its pages, and the next.

    Each run has pages of its own: how fast the kernel copies them depends on where they lie in memory.
    """
    def both(work, path):
        common.evict_page_cache(path)
        return work(path), work(path)

    for what, work in READS.items():
        runs = [(both(work, path), both(work, twin)) for _ in range(options.runs)]
        for number, when in enumerate(("first read", "read again")):
            print_row(f"{when}, {what}, to {name} as used", [(here[number], there[number]) for here, there in runs])


def peer_read(mount, path):
    """Bytes in a second of a sequential read that the peer serves.

    It is the faster of two ways to bypass the kernel's page cache.
    """
    def one_pass(flags):
        common.evict_page_cache(path)
        return 1e9 * mount.served(FILE_BYTES, lambda: common.read_pass(path, flags=flags))

    return max(one_pass(flags) for flags in (0, os.O_DIRECT))


def transfers(options, places, evict):
    """What the PFS has to move."""
    pfs, mounted = places
    row(options, "write, 1 MiB, to the PFS", lambda: write(mounted / "new"), lambda: write(pfs / "new"))
    row(options, "cold read, 1 MiB, to the PFS", lambda: cold_read(options, mounted, evict), lambda: cold_read(options, pfs, evict))


def cold_read(options, place, evict):
    """As read(), of what is in no tier; of another PFS than a tmpfs, in no cache of the kernel either."""
    evict()
    common.evict_page_cache(place / "data")
    if options.pfs:
        os.sync()
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
    return read(place / "data", 1 << 20)


def names_pairs(options, mounted, references):
    """Names and attributes."""
    head(options)
    for what, place in references:
        for name, work in (("create", create), ("stat", stat), ("open, read, close", content), ("readdir", readdir), ("unlink", unlink)):
            row(options, f"{name}, to {what}", lambda: names(mounted, work), lambda: names(place, work))


def row(options, name, here, reference):
    """Runs both in turns and prints a row. The values are rates: bytes or names in a second."""
    print_row(name, [(here(), reference()) for _ in range(options.runs)])


def print_row(name, values):
    """Of pairs of rates."""
    ratios = sorted(a / b for a, b in values)
    a, b = (statistics.median(column) for column in zip(*values))
    unit = (lambda v: f"{v / 1e9:.2f} GB/s") if a > 1e7 else (lambda v: f"{v:,.0f}/s")
    middle = statistics.median(ratios)
    print(f"| {name} | {unit(a)} | {unit(b)} | {middle:.2f} | {ratios[0]:.2f} | {ratios[-1]:.2f} |", flush=True)


def read(path, size):
    """Bytes in a second of a sequential read; small reads cover the first 16 MiB."""
    total = FILE_BYTES if size >= 1 << 20 else 16 << 20
    buffer = memoryview(bytearray(size))
    fd = os.open(path, os.O_RDONLY)
    os.preadv(fd, [buffer], 0)
    begun = time.perf_counter()
    for at in range(0, total, size):
        os.preadv(fd, [buffer], at)
    took = time.perf_counter() - begun
    os.close(fd)
    return total / took


def mapped(path):
    """Bytes in a second of a pass over a new mapping that touches each page."""
    with path.open("rb") as file:
        begun = time.perf_counter()
        with mmap.mmap(file.fileno(), FILE_BYTES, prot=mmap.PROT_READ) as pages:
            sum(pages[::4096])
        return FILE_BYTES / (time.perf_counter() - begun)


READS = {"1 MiB": lambda path: read(path, 1 << 20), "4 KiB": lambda path: read(path, 4 << 10), "mapped": mapped}


def write(path):
    """Bytes in a second of a sequential write of a new file."""
    data = bytes(1 << 20)
    begun = time.perf_counter()
    fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    for _ in range(64):
        os.write(fd, data)
    os.close(fd)
    took = time.perf_counter() - begun
    os.unlink(path)
    return (64 << 20) / took


def names(place, work):
    """Names in a second of one kind of work, in a new directory."""
    directory = place / "names"
    directory.mkdir()
    paths = [str(directory / f"{i:06}") for i in range(NAMES)]
    if work is not create:
        create(directory, paths)
    begun = time.perf_counter()
    work(directory, paths)
    took = time.perf_counter() - begun
    if work is not unlink:
        unlink(directory, paths)
    directory.rmdir()
    return NAMES / took


def create(_, paths):
    """Creates and closes a file for each name."""
    for path in paths:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def stat(_, paths):
    """Attributes of each name."""
    for path in paths:
        os.stat(path)


def content(_, paths):
    """Opens, reads and closes each file."""
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            file.read()


def readdir(directory, _):
    """Lists the directory."""
    for _ in range(10):
        os.listdir(directory)


def unlink(_, paths):
    """Removes each name."""
    for path in paths:
        os.unlink(path)


if __name__ == "__main__":
    main()
