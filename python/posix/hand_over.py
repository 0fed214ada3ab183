"""Close-to-open between mounts on two nodes: a file that one node has changed and closed is right when the other opens it.

    python3 python/posix/hand_over.py target/release/forebay [--lab moosefs] [--count 100000] [--seed 1]

A lab starts with two nodes, an agent and a mount on each. For each hand-over, a random node changes
a random file in a random way and closes it; then the other opens it and reads all of it. Between
the hand-overs, random nodes read random files, so that old content is in tiers and page caches. It
ends with 1 if a read is wrong, or if the run shows nothing because the tier served hardly any read.
"""

import argparse
import json
import mmap
import os
import random
import shutil
import subprocess
import sys
import time
import zlib
from pathlib import Path

NODES = ("c1", "c2")
LAB = "handover"
MOUNTPOINTS = "/run/forebay-handover"
LARGEST_BYTES = 40_000
# In at least this share of the hand-overs, the reader must have read the file before.
LEAST_SHARE = 0.5
# For this share of them, some open must have found content in the tier.
LEAST_CACHED = 0.01


def content(seed, size):
    """Bytes that both sides can make."""
    return random.Random(seed).randbytes(size)


def rewrite(path, at, data):
    """Replaces the file's content by shorter or longer content."""
    del at
    with open(path, "wb", buffering=0) as file:
        file.write(data)


def replace(path, at, data):
    """Renames a new file over it."""
    rewrite(path + ".new", at, data)
    os.rename(path + ".new", path)


def patch(path, at, data):
    """Overwrites a part in place."""
    file = os.open(path, os.O_WRONLY)
    os.pwrite(file, data, at)
    os.close(file)


def append(path, at, data):
    """Appends."""
    del at
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(file, data)
    os.close(file)


def cut(path, at, data):
    """Cuts it off by its name."""
    del data
    os.truncate(path, at)


def through_mapping(path, at, data):
    """Overwrites a part through a shared mapping."""
    file = os.open(path, os.O_RDWR)
    with mmap.mmap(file, 0) as mapped:
        mapped[at : at + len(data)] = data
    os.close(file)


CHANGES = {change.__name__: change for change in (rewrite, replace, patch, append, cut, through_mapping)}


def by_read(path):
    """Reads all."""
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def by_pread(path):
    """Reads all in parts of odd sizes."""
    parts, file = [], os.open(path, os.O_RDONLY)
    while part := os.pread(file, 7001, sum(map(len, parts))):
        parts.append(part)
    os.close(file)
    return b"".join(parts)


def by_mapping(path):
    """Maps it; an empty file cannot be mapped."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return bytes(mapped)


def and_hold(path):
    """Reads all, and leaves the file open for a while."""
    HELD.append(open(path, "rb", buffering=0))
    data = HELD[-1].readall()
    if len(HELD) > HELD_MOST:
        HELD.pop(0).close()
    return data


HELD, HELD_MOST = [], 64
READS = {read.__name__: read for read in (by_read, by_pread, by_mapping, and_hold)}


def serve(directory):
    """A node's part: does what lines say, and answers each."""
    for line in sys.stdin:
        what, name, *rest = json.loads(line)
        path = f"{directory}/{name}"
        if what in CHANGES:
            at, seed, size = rest
            CHANGES[what](path, at, content(seed, size))
            answer = None
        else:
            data = READS[what](path)
            answer = len(data), zlib.crc32(data)
        print(json.dumps(answer), flush=True)


class Node:
    """A node with a mount, and the process on it that uses the mount."""

    def __init__(self, forebay, name, is_bare):
        self.forebay, self.lab = forebay, [forebay, "lab", "run", "--name", LAB, "--node", name, "--"]
        place = self.call("sh", "-c", "echo $FOREBAY_LAB_PFS").strip()
        if not is_bare:
            mountpoint = f"{MOUNTPOINTS}/{name}"
            os.makedirs(mountpoint, exist_ok=True)
            self.call(forebay, "mount", place, mountpoint)
            place = mountpoint
        self.call("mkdir", "-p", f"{place}/files")
        work = [*self.lab, sys.executable, os.path.abspath(__file__), "--serve", f"{place}/files"]
        self.process = subprocess.Popen(work, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        # Files that this node has read, and not changed since.
        self.seen = set()

    def call(self, *command):
        return subprocess.run([*self.lab, *command], check=True, stdout=subprocess.PIPE, text=True).stdout

    def ask(self, *words):
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"hand-over: the program on the node has ended: {words}")
        return json.loads(answer)

    def counters(self):
        return json.loads(self.call(self.forebay, "--json", "status"))["counters"]


class Model:
    """What each file must hold."""

    def __init__(self, seed, files):
        self.random = random.Random(seed)
        self.files = {f"f{number}": b"" for number in range(files)}

    def change(self):
        """A random change: the words for a node."""
        name = self.random.choice(list(self.files))
        old, seed = self.files[name], self.random.getrandbits(40)
        kinds = ["rewrite", "replace"] + (["patch", "through_mapping", "cut", "append"] * 2 if old else [])
        kind = self.random.choice(kinds)
        at = self.random.randrange(len(old)) if old else 0
        size = {
            "rewrite": self.random.randint(1, LARGEST_BYTES),
            "replace": self.random.randint(1, LARGEST_BYTES),
            "append": self.random.randint(1, 4096),
            "cut": 0,
        }.get(kind) if kind not in ("patch", "through_mapping") else self.random.randint(1, len(old) - at)
        data = content(seed, size)
        self.files[name] = {
            "append": lambda: (old + data),
            "cut": lambda: old[:at],
            "patch": lambda: old[:at] + data + old[at + size :],
            "through_mapping": lambda: old[:at] + data + old[at + size :],
        }.get(kind, lambda: data)()
        return kind, name, at, seed, size

    def expected(self, name):
        data = self.files[name]
        return [len(data), zlib.crc32(data)]


def run(options, nodes):
    """All hand-overs; returns how many reads were wrong, and how many could have been."""
    model, wrong, primed = Model(options.seed, options.files), 0, 0
    for name in model.files:
        nodes[0].ask("rewrite", name, 0, 0, 0)

    def read(node, name, what):
        nonlocal wrong
        kind = model.random.choice(list(READS))
        found = node.ask(kind, name)
        node.seen.add(name)
        if found != model.expected(name):
            wrong += 1
            print(f"hand-over: {what}: {kind} of {name} on {NODES[nodes.index(node)]}: {found}, not {model.expected(name)}", flush=True)

    begun = time.monotonic()
    for number in range(1, options.count + 1):
        writer = model.random.randrange(2)
        words = model.change()
        nodes[writer].ask(*words)
        nodes[writer].seen.discard(words[1])
        other = nodes[1 - writer]
        primed += words[1] in other.seen
        read(other, words[1], f"hand-over {number} ({words[0]})")
        read(nodes[model.random.randrange(2)], model.random.choice(list(model.files)), f"a read after hand-over {number}")
        if number % max(1, options.count // 20) == 0:
            print(f"{number} hand-overs, {wrong} wrong, {time.monotonic() - begun:.0f} s", flush=True)
    return wrong, primed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("forebay", type=Path, help="the program")
    parser.add_argument("--lab", metavar="PFS", default="moosefs", help="moosefs, glusterfs or cephfs [default: %(default)s]")
    parser.add_argument("--count", type=int, default=100_000, help="hand-overs [default: %(default)s]")
    parser.add_argument("--files", type=int, default=500, help="files in use [default: %(default)s]")
    parser.add_argument("--bare", action="store_true", help="on the PFS itself, without mounts")
    parser.add_argument("--seed", type=int, default=1, help="of all random choices [default: %(default)s]")
    options = parser.parse_args()
    forebay = options.forebay.resolve()
    up = ["up", "--install", "--pfs", options.lab, "--nodes", "2", "--servers", "2", "--rate", "unlimited", "--store", "4GiB"]
    subprocess.run([forebay, "lab", *up, "--name", LAB], check=True, stdout=subprocess.DEVNULL)
    try:
        nodes = [Node(forebay, name, options.bare) for name in NODES]
        before = [node.counters() for node in nodes]
        wrong, primed = run(options, nodes)
        after = [node.counters() for node in nodes]
    finally:
        subprocess.run([forebay, "lab", "down", "--name", LAB], check=False)
        shutil.rmtree(MOUNTPOINTS, ignore_errors=True)
    opens, cached = (sum(b[key] - a[key] for a, b in zip(before, after)) for key in ("opens_total", "opens_cached_total"))
    print(f"{options.count} hand-overs (seed {options.seed}), {wrong} wrong reads; {primed} times the reader had read the file before")
    if options.bare:
        sys.exit(wrong > 0)
    print(f"{opens} opens by the tier, {cached} of them with cached content")
    is_shown = primed >= options.count * LEAST_SHARE and cached >= options.count * LEAST_CACHED
    if not is_shown:
        print("hand-over: this shows nothing: the tier served too few reads")
    sys.exit(wrong > 0 or not is_shown)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        main()
