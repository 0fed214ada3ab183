"""Every program of a cluster is replaced by another version's, one after the other, while Spark, MPI and plain readers work; then all go back.

    python3 bench/rolling_upgrade.py OLD NEW [--candidates 3] [--pause 4] [--spark HOME]

OLD and NEW are two programs `forebay`, each with its library beside it, and with the jar of its
version in the directory above. Needs root, OpenMPI with mpi4py for /usr/bin/python3, and Spark 3.5
from PyPI, with --candidates also etcd. A coordinator and three agents run on a slow file system. On
two nodes the ranks of an MPI program write files with write-back, on the third Spark counts words
and writes tables, and on each node a program reads files of known content. All of them begin under
OLD, run until the end, and compare every byte; each replacement is also followed by programs of the
version that its node has by then. The coordinator goes first (of candidates the leader last), then
the agents: as docs/operations.md says.

Ends with 1 if a read or a write fails or gives other bytes, if a file is not on the file system as
it was closed, or if nothing was read from the tier or written back before, between and after.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import chaos_coordinator
from chaos_coordinator import NODES, Violation

READY_S = 30
# For one round of Spark, whose first takes longest.
WORKS_S = 240

TEXT_FILES = 4
TEXT_LINES = 20_000

READER = """
import hashlib, os, sys, time
files, stop, note = sys.argv[1], sys.argv[2], sys.argv[3]
rounds = 0
while not os.path.exists(stop):
    for name in sorted(os.listdir(files)):
        with open(os.path.join(files, name), 'rb') as file:
            first = file.readline().strip().decode()
            rest = file.read()
        if hashlib.sha256(rest).hexdigest() != first:
            sys.exit(f'{name} has {len(rest)} other bytes')
    rounds += 1
    with open(note, 'w') as file:
        file.write(str(rounds))
    time.sleep(0.3)
"""

MPI = """
import hashlib, os, sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
directory, stop, note = sys.argv[1], sys.argv[2], sys.argv[3]
prefix = sys.argv[4]
version = 0
while not world.bcast(os.path.exists(stop) if world.rank == 0 else None):
    version += 1
    name = f'{prefix}-{world.rank}-{version % 3}'
    body = hashlib.sha256(f'{name}/{version}'.encode()).digest() * 65_536
    path = os.path.join(directory, name)
    with open(path, 'wb') as file:
        for at in range(0, len(body), 1 << 18):
            file.write(body[at:at + (1 << 18)])
    with open(path, 'rb') as file:
        if file.read() != body:
            sys.exit(f'rank {world.rank}: {name} is not as it was closed')
    with open(f'{note}.{world.rank}', 'a') as file:
        file.write(f'{name} {version}\\n')
    world.Barrier()
    time.sleep(0.1)
"""

SPARK = """
import collections, os, sys
from pyspark.sql import SparkSession
pfs, socket, stop, note, jar, table = sys.argv[1:7]
settings = {'spark.jars': jar, 'spark.hadoop.fs.forebay.impl': 'io.forebay.hadoop.ForebayFileSystem', 'spark.hadoop.fs.forebay.socket': socket,
    'spark.ui.enabled': 'false', 'spark.driver.memory': '1g', 'spark.sql.shuffle.partitions': '2', 'spark.sql.files.maxPartitionBytes': str(1 << 18)}
builder = SparkSession.builder.master('local[2]').appName('rolling-upgrade')
for key, value in settings.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel('ERROR')
expected = collections.Counter()
for name in os.listdir(f'{pfs}/text'):
    with open(f'{pfs}/text/{name}') as file:
        expected.update(file.read().split())
rounds = 0
while rounds == 0 or not os.path.exists(stop):
    words = spark.sparkContext.textFile(f'forebay://{pfs}/text').flatMap(str.split).map(lambda word: (word, 1))
    if dict(words.reduceByKey(lambda a, b: a + b).collect()) != expected:
        sys.exit('Spark has counted other words')
    spark.range(20_000).selectExpr('id', 'id * 7 as value').repartition(2).write.mode('overwrite').parquet(f'forebay://{pfs}/{table}')
    if spark.read.parquet(f'forebay://{pfs}/{table}').selectExpr('sum(value)').first()[0] != 7 * 20_000 * 19_999 // 2:
        sys.exit('Spark has read another table')
    rounds += 1
    with open(note, 'w') as file:
        file.write(str(rounds))
"""


class Cluster(chaos_coordinator.Cluster):
    """One whose processes have versions of their own."""

    rate = "30MB/s"

    def __init__(self, args, place):
        self.candidate_programs, self.agent_programs = [args.old] * args.candidates, [args.old] * NODES
        super().__init__(args, place, args.candidates)

    def start_candidate(self, number):
        self.forebay = self.candidate_programs[number]
        super().start_candidate(number)

    def start_agent(self, number):
        self.forebay = self.agent_programs[number]
        super().start_agent(number)

    def status(self, number):
        asked = subprocess.run([self.agent_programs[number], "status", "--json"], env=self.env(number), capture_output=True, check=False)
        return json.loads(asked.stdout)["cluster"] if asked.returncode == 0 else None

    def counters(self, number):
        asked = subprocess.run([self.agent_programs[number], "status", "--json"], env=self.env(number), capture_output=True, check=True)
        return json.loads(asked.stdout)["counters"]

    def replace_candidate(self, number, program):
        end(self.candidates[number], f"candidate {number}")
        self.candidate_programs[number] = program
        self.start_candidate(number)

    def replace_agent(self, number, program):
        end(self.agents[number], f"agent {number}")
        self.agent_programs[number] = program
        self.start_agent(number)


def end(process, what):
    """As systemd ends it."""
    if process.poll() is not None:
        raise SystemExit(f"upgrade: {what} has ended by itself")
    process.send_signal(signal.SIGTERM)
    if process.wait(30):
        raise Violation(f"{what} ended with {process.returncode}")


class Program:
    """A program of a user that runs until it is to stop; its last words go to a file."""

    def __init__(self, name, command, env, place):
        self.name, self.log = name, place / f"{name}.log"
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def check(self):
        if self.process.poll() is not None:
            raise Violation(f"{self.name} has ended with {self.process.returncode}: {self.log.read_text()[-2000:]}")

    def finish(self, limit_s=180):
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise Violation(f"{self.name} hangs") from None
        if code:
            raise Violation(f"{self.name} has failed with {code}: {self.log.read_text()[-2000:]}")


class Load:
    """The programs of one version's users."""

    all = []

    def __init__(self, args, cluster, name, nodes, with_spark):
        Load.all.append(self)
        self.cluster, self.name, self.place = cluster, name, cluster.place
        self.stop, self.programs, pfs = self.place / f"{name}.stop", [], cluster.pfs
        self.notes = {}
        for node in nodes:
            forebay = cluster.agent_programs[node]
            self.notes[node] = self.place / f"{name}-reads-{node}"
            command = [forebay, "run", "--quiet", "--", "/usr/bin/python3", "-c", READER, pfs / "known", self.stop, self.notes[node]]
            self.programs.append(Program(f"{name}-reader-{node}", command, cluster.env(node), self.place))
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,vader"]
        self.written = self.place / f"{name}-written"
        for rank, node in enumerate(nodes[:2]):
            command += [":"] * (rank > 0) + ["-n", "1", "env", f"FOREBAY_SOCKET={cluster.socket_of(node)}", cluster.agent_programs[node], "run", "--quiet", "--detach",
                        "--write-back", pfs / "mpi*", "--", "/usr/bin/python3", "-c", MPI, pfs, self.stop, self.written, f"mpi-{name}"]
        self.programs.append(Program(f"{name}-mpi", list(map(str, command)), os.environ, self.place))
        self.rounds, self.with_spark = self.place / f"{name}-spark", with_spark
        if with_spark:
            node = nodes[-1]
            jar = Path(cluster.agent_programs[node]).parents[1] / "forebay-spark.jar"
            command = [args.spark / "bin/python", "-c", SPARK, pfs, cluster.socket_of(node), self.stop, self.rounds, jar, f"table-{name}"]
            self.programs.append(Program(f"{name}-spark", list(map(str, command)), os.environ, self.place))

    def counts(self):
        """Rounds of each reader, files written, and rounds of Spark."""
        reads = [int(note.read_text() or 0) if note.exists() else 0 for note in self.notes.values()]
        return reads, len(self.closed_lines()), int(self.rounds.read_text() or 0) if self.rounds.exists() else 0

    def closed_lines(self):
        return [line for note in self.place.glob(f"{self.written.name}.*") for line in note.read_text().splitlines()]

    def check(self):
        for program in self.programs:
            program.check()

    def finish(self):
        self.stop.touch()
        for program in self.programs:
            program.finish()

    def kill(self):
        self.stop.touch()
        for program in self.programs:
            # Of mpirun, its ranks end by themselves.
            program.process.terminate()
            program.process.wait()

    def compare(self):
        """How many of its files are on the file system as they were closed."""
        last = dict(line.split() for line in self.closed_lines())
        for name, version in last.items():
            if (self.cluster.pfs / name).read_bytes() != hashlib.sha256(f"{name}/{version}".encode()).digest() * 65_536:
                raise Violation(f"{name} is not on the file system as it was closed")
        return len(last)


def make_files(pfs):
    (pfs / "known").mkdir()
    for number in range(6):
        content = bytes([number + 1]) * 300_000 + os.urandom(700_000)
        (pfs / "known" / f"file{number}").write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
    (pfs / "text").mkdir()
    for number in range(TEXT_FILES):
        lines = (f"word{(number * TEXT_LINES + i) % 977} line{i % 13}" for i in range(TEXT_LINES))
        (pfs / "text" / f"part-{number}").write_text("\n".join(lines) + "\n")


def settle(load, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        load.check()
        time.sleep(0.1)


def roll(args, cluster, load, version, program):
    """Replaces everything by `program`."""
    leader = cluster.wait_for_leader(1)[0] if cluster.etcd else 0
    for number in [n for n in range(args.candidates) if n != leader] + [leader]:
        cluster.replace_candidate(number, program)
        settle(load, args.pause)
        print(f"coordinator {number} is {version}", flush=True)
    for number in range(NODES):
        before = load.counts()
        cluster.replace_agent(number, program)
        settle(load, args.pause)
        short = Load(args, cluster, f"{version}{number}", [number], with_spark=False)
        settle(short, args.pause)
        short.finish()
        reads, files, _ = short.counts()
        if not all(reads) or not files:
            raise Violation(f"programs of {version} have read or written nothing on node {number}: {reads}, {files}")
        print(f"agent {number} is {version}; since then {[b - a for a, b in zip(before[0], load.counts()[0])]} rounds of reads, {load.counts()[1] - before[1]} files written by programs that began under old", flush=True)
    until = time.monotonic() + READY_S
    while not all(known and known["connected"] and len(known["view"]["nodes"]) == NODES for known in map(cluster.status, range(NODES))):
        if time.monotonic() > until:
            raise Violation("not all agents are members again")
        time.sleep(0.1)


def works(cluster, load, when):
    """Readers read from the tier, writers write to it, and Spark goes on if it is there."""
    before, counts = load.counts(), [cluster.counters(node) for node in range(NODES)]
    until = time.monotonic() + WORKS_S
    while time.monotonic() < until:
        load.check()
        now, more = load.counts(), [cluster.counters(node) for node in range(NODES)]
        hits = [b["opens_cached_total"] - a["opens_cached_total"] for a, b in zip(counts, more)]
        absorbed = sum(b["absorbed_files_total"] - a["absorbed_files_total"] for a, b in zip(counts, more))
        if all(hits) and absorbed and now[1] > before[1] and (now[2] > before[2] or not load.with_spark):
            print(f"{when}: {hits} opens of cached files, {absorbed} files written back", flush=True)
            return
        time.sleep(0.5)
    raise Violation(f"{when}: {hits} opens of cached files, {absorbed} files written back, Spark's rounds {before[2]} to {now[2]}: this has shown nothing")


def upgrade(args, cluster):
    make_files(cluster.pfs)
    load = Load(args, cluster, "old", list(range(NODES)), with_spark=True)
    works(cluster, load, "before")
    roll(args, cluster, load, "new", args.new)
    upgraded = load.counts()[2]
    fresh = Load(args, cluster, "fresh", list(range(NODES)), with_spark=True)
    works(cluster, fresh, "between, programs of new")
    fresh.finish()
    roll(args, cluster, load, "old", args.old)
    works(cluster, load, "after")
    load.finish()
    for node in range(NODES):
        subprocess.run([cluster.agent_programs[node], "sync", "--quiet"], env=cluster.env(node), timeout=120, check=True)
    files = sum(one.compare() for one in Load.all)
    reads, written, rounds = load.counts()
    print(f"all was replaced and went back: {sum(reads)} rounds of reads, {written} files written, {rounds} rounds of Spark, {rounds - upgraded} of them after the upgrade; "
          f"no call has failed, {files} files compared")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("old", type=os.path.abspath)
    parser.add_argument("new", type=os.path.abspath)
    parser.add_argument("--candidates", type=int, choices=(1, 3), default=1, help="coordinators; of three, one is elected in etcd [default: 1]")
    parser.add_argument("--pause", type=float, default=4, help="seconds of work after each replacement")
    parser.add_argument("--spark", type=Path, default=Path("target/spark-3.5.9"), help="a Python environment with Spark 3.5 [default: that of `make demo`]")
    args = parser.parse_args()
    place = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="forebay-upgrade-"))
    args.forebay = args.old
    cluster = Cluster(args, place)
    try:
        upgrade(args, cluster)
    except Violation as e:
        print(f"{e}\nleft: {place}")
        return 1
    finally:
        for load in Load.all:
            load.kill()
        cluster.end()
    shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
