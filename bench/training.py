#!/usr/bin/env python3
"""Epochs over shuffled files on a slow file system, larger than the memory: the page cache, the tier, and the tier with a known order.

    python3 bench/training.py BINARY [--files 2000] [--size 65536] [--share 0.25] [--epochs 3] [--repeat 1]

Needs root, FUSE and the package `forebay` on the path. Each mode gets a new mount of the slow file system and the same memory: the
page cache by a control group, the tier by its capacity. A reader reads each file and then computes, for `--pace` times as long as
the file system takes for the files that no cache of this size can hold. So the time of an epoch has a bound: it computes all the time.

The first epoch, which finds nothing cached, does not count. `fetched` is what the file system served, in parts of the data: the
page cache's is taken from the file system's own count, so that all modes are counted by the same clock.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "python/demo"))

import lab  # noqa: E402

SERVERS = 4
READER_BYTES = 48 << 20
# What the agent keeps for itself, and the record of each file.
AGENT_BYTES, FILE_BYTES = 20 << 20, 12 << 10


def join_memory_group(bytes):
    """Moves this process to a control group with so much memory. Returns its directory. OSError: not possible here."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if controllers == "memory":
            parent, limit = Path("/sys/fs/cgroup/memory" + path), "memory.limit_in_bytes"
            break
    else:
        parent, limit = Path("/sys/fs/cgroup" + path), "memory.max"
    group = parent / f"forebay-bench-{os.getpid()}"
    group.mkdir()
    (group / limit).write_text(str(bytes))
    (group / "cgroup.procs").write_text(str(os.getpid()))
    return group


def sequences(options):
    for epoch in range(options.epochs + 1):
        places = list(range(options.files))
        random.Random(f"{options.seed} {epoch}").shuffle(places)
        yield places


def read_epochs(options, paths, served_bytes, read, announce=None):
    """Reads the epochs. Returns seconds, and bytes served, of each."""
    all_sequences, results = list(sequences(options)), []
    for number, sequence in enumerate(all_sequences):
        before, began = served_bytes(), time.monotonic()
        if announce and number + 1 < len(all_sequences):
            announce.announce(all_sequences[number + 1])
        computing_until = time.monotonic()
        for place in announce.epoch(sequence) if announce else sequence:
            read(paths[place])
            # A trainer computes beside its reader, and waits when the reader is late.
            now = time.monotonic()
            if now < computing_until:
                time.sleep(computing_until - now)
            computing_until = max(now, computing_until) + options.compute_s
        results.append((time.monotonic() - began, served_bytes() - before))
    return results[1:]


def run_mode(options, mode, directory):
    """One mode in this process, which it may limit: prints its results as JSON."""
    data = options.files * options.size
    room, rate = int(data * options.share), f"{options.rate / SERVERS:.0f}"
    with lab.slow_pfs(options.binary, directory / "data", directory / "pfs", SERVERS, rate, attr_ttl="0s") as mount:
        paths, served_bytes = [str(mount / name) for name in names(options)], lambda: lab.served_bytes(mount)
        if mode == "page cache":
            group = join_memory_group(room + READER_BYTES)
            # The slow file system lets the kernel keep only what somebody has open.
            resource.setrlimit(resource.RLIMIT_NOFILE, (options.files + 100, options.files + 100))
            held = [os.open(path, os.O_RDONLY) for path in paths]
            results = read_epochs(options, paths, served_bytes, lambda path: Path(path).read_bytes())
            for descriptor in held:
                os.close(descriptor)
            (group.parent / "cgroup.procs").write_text(str(os.getpid()))
            group.rmdir()
        else:
            capacity = AGENT_BYTES + room + int(options.files * options.share) * FILE_BYTES
            with lab.agent(options.binary, mount, directory / "state", capacity) as socket:
                results = with_agent(options, mode, socket, served_bytes, paths)
    print(json.dumps(results))


def with_agent(options, mode, socket, served_bytes, paths):
    # Here, because the reader of the page cache must not carry it in its memory.
    import forebay

    client = forebay.Client(str(socket))
    try:

        def read(path):
            with forebay.open(path, "rb", client=client) as file:
                return file.read()

        if mode == "tier":
            return read_epochs(options, paths, served_bytes, read)
        warnings.simplefilter("error")
        with forebay.Order(paths, client=client) as order:
            order.announce(next(sequences(options)))
            return read_epochs(options, paths, served_bytes, read, order)
    finally:
        print(f"the tier holds {client.status()['resident_bytes'] / data_bytes(options):.3f}", file=sys.stderr)


def data_bytes(options):
    return options.files * options.size


def names(options):
    return [f"{number:06}" for number in range(options.files)]


def measure(options, mode):
    with tempfile.TemporaryDirectory(prefix="forebay-training-") as directory:
        directory = Path(directory)
        (directory / "data").mkdir()
        for name in names(options):
            (directory / "data" / name).write_bytes(os.urandom(options.size))
        command = [sys.executable, __file__, *sys.argv[1:], "--mode", mode, "--directory", str(directory)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--size", type=int, default=64 << 10)
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--rate", type=float, default=20e6, help="bytes a second of the file system")
    parser.add_argument("--pace", type=float, default=1.2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", help="page cache, tier, or tier, order known")
    parser.add_argument("--mode")
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    data = options.files * options.size
    options.compute_s = options.pace * options.size * (1 - options.share) / options.rate
    if options.mode:
        return run_mode(options, options.mode, options.directory)
    print(f"{data / 1e6:.0f} MB in {options.files} files, memory for {options.share:.0%}, file system of {options.rate / 1e6:.0f} MB/s")
    print(f"an epoch computes {options.files * options.compute_s:.1f} s")
    for mode in options.only or ("page cache", "tier", "tier, order known"):
        readings = [one for _ in range(options.repeat) for one in measure(options, mode)]
        seconds, fetched = ([one[at] for one in readings] for at in (0, 1))
        shares = [bytes / data for bytes in fetched]
        print(
            f"{mode:<18} epoch {statistics.median(seconds):6.2f} s ({min(seconds):.2f} to {max(seconds):.2f}), "
            f"fetched {statistics.mean(shares):.3f}, hits {1 - statistics.mean(shares):.3f}"
        )


if __name__ == "__main__":
    main()
