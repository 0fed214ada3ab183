"""The two runs, side by side, and what is said about them."""

import builtins
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import analysis
import data
import lab
import picture
import sparkshow
import waves
from meter import Meter

SERVERS, RATE, RATE_BYTES_PER_S = 4, "50 MB/s", 50_000_000
# Beside the files themselves: page rounding of each, and the agent's own memory.
CAPACITY_SLACK_BYTES = 512 << 20

# `mount.settle_ms` on a FUSE file system, and a little more: what was written later is not cached
# yet.
SETTLE_S = 3.5


@dataclass
class Pass:
    name: str
    start: float
    end: float
    read_bytes: int
    served_bytes: int


@dataclass
class Run:
    key: str
    seconds: float = 0.0
    served_bytes: int = 0
    passes: list = field(default_factory=list)
    samples: list = field(default_factory=list)
    result: dict = field(default_factory=dict)


def run(parts, args, program):
    """Does all parts; the exit code. Whatever happens, nothing is left behind but files in the output directory."""
    try:
        for part in parts:
            part(args, program)
    except KeyboardInterrupt:
        print("\ndemo: stopped; agent and mount are removed", file=sys.stderr)
        return 130
    except (data.DataError, lab.LabError, waves.WavesError, OSError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    return 0


def show(args, program):
    # Spark's part goes without it.
    import forebay

    args.output.mkdir(parents=True, exist_ok=True)
    backing = data_set(args)
    names = sorted(str(path.relative_to(backing)) for path in backing.rglob("*") if path.is_file())
    total = sum((backing / name).stat().st_size for name in names)
    if not total:
        raise data.DataError(f"{backing} has no bytes to analyse; name another directory: --data DIR")
    require_memory(total)
    rate = SERVERS * RATE_BYTES_PER_S
    print(f"{total / 1e6:.0f} MB of text in {len(names)} files, on a PFS of {SERVERS} servers of {RATE} each; {args.passes} passes")
    print("The demo empties the kernel's page cache between passes, because real data sets are larger than the cache.\n")
    with contextlib.ExitStack() as stage:
        # Sockets have short paths, so the place for them is not the output directory.
        place = Path(tempfile.mkdtemp(prefix="forebay-demo-"))
        stage.callback(shutil.rmtree, place, ignore_errors=True)
        mount = stage.enter_context(lab.slow_pfs(program, backing, place / "pfs", SERVERS, RATE.replace(" ", "")))
        paths = [str(mount / name) for name in names]
        straight = measure("straight", "straight from the PFS", mount, paths, total, args.passes, builtins.open)
        socket = stage.enter_context(lab.agent(program, mount, place / "state", total + total // 50 + CAPACITY_SLACK_BYTES))
        client = forebay.Client(str(socket), quiet=True)
        await_settled(paths, client)

        def through_forebay(path, mode):
            return forebay.open(path, mode, client=client)

        cached = measure("forebay", "through Forebay", mount, paths, total, args.passes, through_forebay)
        resident = client.status()["resident_bytes"]
    check(straight, cached, resident, total)
    report(args, [straight, cached], total, rate)


def show_spark(args, program):
    args.output.mkdir(parents=True, exist_ok=True)
    sparkshow.run(args, program, Line)


def data_set(args):
    if args.data:
        if not args.data.is_dir():
            raise data.DataError(f"--data {args.data}: not a directory")
        return args.data.resolve()
    size = int(args.size * 1e6)
    with Line("unpacking the Linux source", size) as line:
        return data.linux_text(args.output / f"data-{args.size:.0f}", size, line.at)


def require_memory(total):
    with open("/proc/meminfo") as meminfo:
        fields = dict(line.split(":") for line in meminfo)
    free = int(fields["MemAvailable"].split()[0]) * 1024
    if free < total + 2 * CAPACITY_SLACK_BYTES:
        raise data.DataError(
            f"{total / 1e9:.1f} GB of data and {free / 1e9:.1f} GB of free memory do not go together; use less: --size {free / 3e6:.0f}"
        )


def await_settled(paths, client):
    """Waits until the agent caches these files: the data may have been unpacked a moment ago."""
    newest = max(os.stat(path).st_ctime for path in paths)
    time.sleep(min(max(0.0, newest + SETTLE_S - time.time()), SETTLE_S))
    deadline = time.monotonic() + lab.START_S
    while not all(mount["cached"] for mount in client.status()["mounts"]):
        if time.monotonic() > deadline:
            raise lab.LabError(f"the PFS is not cached: {client.status()['mounts']}")
        time.sleep(0.02)


def measure(key, title, mount, paths, total, count, open):
    """One run: all passes with one way to open files."""
    run = Run(key)
    lab.forget_page_cache(paths)
    with Meter(lambda: lab.served_bytes(mount)) as meter, Line(title, total * count) as line:
        start, read, served = meter.now()

        def advance(length):
            meter.advance(length)
            line.at(meter.read_bytes)

        for name, result in analysis.passes(paths, count, open, advance):
            run.result = dict(result)
            now, read_now, served_now = meter.now()
            run.passes.append(Pass(name, start, now, read_now - read, served_now - served))
            lab.forget_page_cache(paths)
            start, read, served = meter.now()
    run.samples = meter.samples
    run.seconds = sum(one.end - one.start for one in run.passes)
    run.served_bytes = meter.samples[-1][2]
    return run


def check(straight, cached, resident, total):
    """A demonstration that fails is better than one that lies."""
    if straight.result != cached.result:
        raise lab.LabError(f"the results differ:\n  {straight.result}\n  {cached.result}")
    if resident < total:
        raise lab.LabError(f"only {resident} of {total} bytes were in the tier at the end")
    for run in (straight, cached):
        for one in run.passes:
            if one.read_bytes != total:
                raise lab.LabError(f"pass {one.name} read {one.read_bytes} of {total} bytes")


def report(args, runs, total, rate):
    straight, cached = runs
    print(f"{'':14}{'straight from the PFS':>32}{'through Forebay':>32}")
    print(f"{'pass':14}{'seconds':>9}{'MB/s':>9}{'PFS served':>14}{'seconds':>9}{'MB/s':>9}{'PFS served':>14}")
    for rows in zip(straight.passes, cached.passes):
        print(f"{rows[0].name:14}" + "".join(cells(one.end - one.start, one.read_bytes, one.served_bytes) for one in rows))
    print(f"{'all':14}" + "".join(cells(run.seconds, total * args.passes, run.served_bytes) for run in runs))
    result = cached.result
    print(f"\nBoth runs found the same result: {result['lines_in_blocks'] / 1e6:.1f} million lines in {result['blocks']} blocks;")
    print("  " + ", ".join(f"{term} {n} times, most of all in {result['term_files'][term]}" for term, n in result["term_counts"].items()))
    if "cluster_blocks" in result:
        print(f"  blocks of each kind of text: {', '.join(map(str, sorted(result['cluster_blocks'], reverse=True)))}")
    pictures = [args.output / "throughput.png", args.output / "throughput.svg"]
    subtitle = f"{total / 1e9:.2f} GB of text, {args.passes} passes, a PFS of {SERVERS} servers of {RATE} each; page cache emptied between passes"
    picture.draw(runs, rate, subtitle, pictures)
    figures = {"bytes": total, "pfs_rate_bytes_per_s": rate, "runs": {run.key: summary(run) for run in runs}, "result": result}
    (args.output / "demo.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(f"\n{straight.seconds:.1f} s straight from the PFS, {cached.seconds:.1f} s through Forebay: {straight.seconds / cached.seconds:.1f} times as fast.")
    print(f"Picture: {pictures[0]}")


def cells(seconds, read_bytes, served_bytes):
    return f"{seconds:9.1f}{read_bytes / seconds / 1e6:9.0f}{served_bytes / 1e6:11.0f} MB"


def summary(run):
    return {
        "seconds": run.seconds,
        "served_bytes": run.served_bytes,
        "passes": [vars(one) for one in run.passes],
        "samples": [{"seconds": s, "read_bytes": r, "served_bytes": p} for s, r, p in run.samples],
    }


class Line:
    """How far something is, on one line of a terminal; elsewhere a line when it begins and when it ends."""

    def __init__(self, title, total):
        self.title, self.total = title, total
        self.terminal = sys.stdout.isatty()
        self.done = 0

    def __enter__(self):
        self.start = self.shown = time.monotonic()
        if not self.terminal:
            print(f"{self.title} ...", flush=True)
        return self

    def at(self, done):
        self.done = done
        now = time.monotonic()
        if self.terminal and now - self.shown > 0.2:
            self.shown = now
            rate = done / (now - self.start)
            left = max(self.total - done, 0) / max(rate, 1)
            width = os.get_terminal_size().columns - 1
            bar = "#" * int(20 * min(done / self.total, 1))
            text = f"{self.title:26} [{bar:20}] {done / 1e6:6.0f} of {self.total / 1e6:.0f} MB, {rate / 1e6:5.0f} MB/s, {left:3.0f} s left"
            print(f"\r{text[:width]:{width}}", end="", flush=True)

    def __exit__(self, kind, *_):
        seconds = time.monotonic() - self.start
        if self.terminal:
            print("\r" + " " * (os.get_terminal_size().columns - 1), end="\r")
        if kind is None and self.done:
            print(f"{self.title}: {seconds:.1f} s", flush=True)
