"""Phases of an HPC job beside waves or loads on other nodes, while candidates for the coordinator, members of etcd and links are killed.

    python3 bench/chaos_deadlines.py FOREBAY [--minutes 20] [--seed N] [--kills 200] [--pause 1] [--loads | --direct]

Needs root, etcd and FUSE, the example `waves` (cargo build --examples) beside FOREBAY, and the module
of the Python package (python/develop). On a slow file system a program on one node writes 64 MB, and again
after six seconds, in a phase that it declares. On two other nodes an analytics job reads files in
waves that the planner prefetches, evicts them and begins again; with --loads the files are loaded by
command instead, which only the brake of phases stops. With --direct the job has no prefetches under
faults either, which shows what kills cost beyond them. The phases are timed alone, beside the same
job without prefetches (with --loads: without declared phases), beside it, and beside it while the
faults of chaos_coordinator.py happen to the candidates and to etcd, one about --pause seconds after
the one before. Without a coordinator nothing is prefetched, and tasks read directly, which nobody
delays.

Ends with 1 if the first of these does not disturb the phases (then this shows nothing), if nothing
was prefetched under faults, or if phases take longer under faults than both without them and without
prefetches, by more than 5 % in the median.
"""

import os
import random
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import chaos_coordinator

SOURCES = Path(__file__).resolve().parents[1] / "python/src"
PHASE_BYTES = 64 << 20
# Between two phases.
COMPUTE_S = 6
BIG_FILES, BIG_BYTES = 12, 12 << 20
TASK_MS = 3000
# A round of the job ends within this time, also without a leader.
ROUND_S = 120
ALONE, CONTROL, BESIDE = 8, 4, 10
ALLOWANCE = 0.05
FAULTS = [fault for fault in chaos_coordinator.FAULTS if fault != "kill agent"]

PHASES = f"""
import contextlib, os, sys, time
sys.path.insert(0, {str(SOURCES)!r})
import forebay
path, stop, note, declares = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == 'declared'
# Progress of bytes that are only buffered says nothing.
fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_DSYNC)
job = forebay.HpcJob('simulation', qos={ALLOWANCE}, io=8.0, compute={COMPUTE_S}) if declares else None
while not os.path.exists(stop):
    time.sleep({COMPUTE_S})
    began = time.monotonic()
    with job.phase(bytes={PHASE_BYTES}) if job else contextlib.nullcontext() as phase:
        begun = time.monotonic()
        for at in range(0, {PHASE_BYTES}, 1 << 22):
            os.pwrite(fd, bytes(1 << 22), at)
            if job:
                phase.progress(at + (1 << 22))
        os.fsync(fd)
        ended = time.monotonic()
    with open(note, 'a') as file:
        file.write(f'{{ended - begun:.6f}}\\n')
"""


class Cluster(chaos_coordinator.Cluster):
    rate = "8MB/s"

    def __init__(self, args, place):
        super().__init__(args, place)
        self.programs = []

    def end(self):
        for program in self.programs:
            program.kill()
            program.wait()
        super().end()


class Phases:
    """The HPC program, until it is stopped."""

    def __init__(self, cluster, name, declares=True):
        self.stop, self.note = cluster.place / f"{name}.stop", cluster.place / f"{name}.phases"
        command = [sys.executable, "-c", PHASES, cluster.pfs / "phases", self.stop, self.note, "declared" if declares else "plain"]
        self.log = open(cluster.place / f"{name}.log", "ab")
        self.process = subprocess.Popen(command, env=cluster.env(2), stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        cluster.programs.append(self.process)

    def times(self):
        if self.process.poll() is not None:
            raise SystemExit(f"chaos: the HPC program has ended with {self.process.returncode}; see {self.log.name}")
        return [float(line) for line in self.note.read_text().split()] if self.note.exists() else []

    def wait(self, count):
        while len(self.times()) < count:
            time.sleep(0.1)
        return self.end()

    def end(self):
        times = self.times()
        self.stop.touch()
        self.process.wait()
        return times


class Waves:
    """The analytics job on two nodes, until it is stopped."""

    def __init__(self, cluster, planner="forebay"):
        self.cluster, self.stop, self.note = cluster, cluster.place / f"waves-{planner}.stop", cluster.place / f"waves-{planner}"
        program = Path(cluster.forebay).parent / "examples/waves"
        sockets = ",".join(str(cluster.socket_of(node)) for node in range(2))
        files = [cluster.pfs / "big" / f"file{number}" for number in range(BIG_FILES)]
        self.log = open(cluster.place / "waves.log", "ab")
        with open(self.note, "wb") as note:
            self.process = subprocess.Popen([program, planner, str(TASK_MS), self.stop, sockets, *files], stdin=subprocess.DEVNULL, stdout=note, stderr=self.log)
        cluster.programs.append(self.process)

    def rounds(self):
        if self.process.poll():
            raise SystemExit(f"chaos: the analytics job has ended with {self.process.returncode}; see {self.log.name}")
        return [[int(word) for word in line.split()] for line in self.note.read_text().splitlines()]

    def so_far(self):
        rounds = self.rounds()
        if any(read != BIG_FILES * BIG_BYTES for _, read in rounds):
            raise chaos_coordinator.Violation("a round of the analytics job has not read all of its files")
        return len(rounds), sum(prefetched for prefetched, _ in rounds)

    def end(self):
        self.stop.touch()
        self.process.wait(ROUND_S)
        self.rounds()


class Loads:
    """Loads the files on two nodes and evicts them, until it is stopped."""

    def __init__(self, cluster):
        self.cluster, self.stopping, self.rounds = cluster, threading.Event(), [0, 0]
        self.threads = [threading.Thread(target=self.run, args=(node,), daemon=True) for node in range(2)]
        for thread in self.threads:
            thread.start()

    def run(self, node):
        while not self.stopping.is_set():
            for command in (["load", self.cluster.pfs / "big"], ["evict", "--all"]):
                subprocess.run([self.cluster.forebay, *command], env=self.cluster.env(node), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            self.rounds[node] += 1

    def so_far(self):
        return sum(self.rounds), sum(self.rounds) * BIG_FILES * BIG_BYTES

    def end(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()


def in_time(times, alone):
    return sum(seconds <= alone * (1 + ALLOWANCE) for seconds in times)


def report(what, times, alone):
    print(f"{what}: {in_time(times, alone)} of {len(times)} phases in time, median {statistics.median(times):.3f} s, longest {max(times):.3f} s", flush=True)


def measure(args, cluster):
    (cluster.pfs / "big").mkdir()
    for number in range(BIG_FILES):
        (cluster.place / "backing/big" / f"file{number}").write_bytes(os.urandom(BIG_BYTES))
    chance = random.Random(args.seed)
    leader, term, _ = cluster.wait_for_leader(1)
    times = Phases(cluster, "alone").wait(ALONE)
    alone = statistics.median(times)
    report("alone", times, alone)
    by_reads = 0
    if args.loads:
        beside = Loads(cluster)
        control = Phases(cluster, "control", declares=False).wait(CONTROL)
        report("beside loads, not declared", control, alone)
    else:
        reads = Waves(cluster, "naive-bb")
        control = Phases(cluster, "control").wait(BESIDE)
        report("beside the job's own reads, without prefetches", control, alone)
        by_reads = statistics.median(control)
        if args.direct:
            beside = reads
        else:
            reads.end()
            beside = Waves(cluster)
    what = "loads" if args.loads else "reads" if args.direct else "waves"
    without = Phases(cluster, "beside").wait(BESIDE)
    report(f"beside {what}", without, alone)
    phases, kills, until, slowest = Phases(cluster, "faults"), 0, time.monotonic() + 60 * args.minutes, 0
    before = beside.so_far()
    while time.monotonic() < until and kills < (args.kills or 200):
        time.sleep(chance.uniform(0.1, 1.9) * args.pause)
        many, is_other = chaos_coordinator.disturb(cluster, chance.choice(FAULTS), leader, chance)
        kills += many
        leader, term, seconds = cluster.wait_for_leader(term + is_other)
        slowest = max(slowest, seconds)
    times = phases.end()
    rounds, prefetched = (after - earlier for after, earlier in zip(beside.so_far(), before))
    beside.end()
    report(f"beside {what}, {kills} kills, {rounds} rounds of them with {prefetched / 1e6:.0f} MB, longest wait for a leader {slowest:.1f} s", times, alone)
    if in_time(control, alone) * 2 > len(control):
        raise chaos_coordinator.Violation("this file system is not disturbed: this has shown nothing")
    if prefetched == 0 and not args.direct:
        raise chaos_coordinator.Violation("nothing was prefetched under faults")
    if statistics.median(times) > max(by_reads, statistics.median(without)) * (1 + ALLOWANCE):
        raise chaos_coordinator.Violation("phases take longer under faults")


def seconds(text):
    if not 0 < float(text) < 3600:
        raise ValueError(text)
    return float(text)


def add_arguments(parser):
    parser.add_argument("--pause", type=seconds, default=1, metavar="SECONDS", help="mean time from a new leader to the next fault [default: 1]")
    beside = parser.add_mutually_exclusive_group()
    beside.add_argument("--direct", action="store_true", help="the job has no prefetches under faults either")
    beside.add_argument("--loads", action="store_true", help="files are loaded by command in place of waves")


if __name__ == "__main__":
    sys.exit(chaos_coordinator.main(__doc__, Cluster, measure, add_arguments))
