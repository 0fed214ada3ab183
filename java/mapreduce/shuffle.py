"""MapReduce's shuffle through the tier on YARN: the same bytes as by Hadoop's own shuffle, whatever is killed meanwhile.

A job without a gate runs twice, once with each shuffle, and the parts of its output are compared. Where something is killed, a gated
WordCount waits for it (GatedCount), and its result is compared with one that nothing has happened to. After each job the agents must have
nothing left of it.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path

from jobs import EXAMPLES, Invalid, check_report

TIER = {
    "mapreduce.job.map.output.collector.class": "io.forebay.mapreduce.TierMapOutputCollector",
    "mapreduce.job.reduce.shuffle.consumer.plugin.class": "io.forebay.mapreduce.TierShuffle",
}
TWO_COPIES = TIER | {"mapreduce.forebay.shuffle.copies": "2"}
GATED = "io.forebay.workloads.GatedCount"
# For what happens by itself, on a machine that is busy with other things: a bound, not a measure.
PATIENCE_S = 600
FILES = 6


class Shuffles:
    """`backing`: the files of the PFS, which are read and written past Forebay here."""

    def __init__(self, cluster, backing, say):
        self.cluster, self.say = cluster, say
        self.files = backing / "shuffle"
        self.files.mkdir()
        self.seen = cluster.pfs / "shuffle"
        self.runs = 0
        self.write_input()

    def write_input(self):
        dice = random.Random(4)
        text, pairs = self.files / "text", self.files / "pairs"
        for directory in (text, pairs):
            directory.mkdir()
        for number in range(FILES):
            words = (f"word{int(dice.paretovariate(0.6)) % 5000} of{dice.randrange(9)}\n" for _ in range(40_000))
            (text / f"file{number}").write_text("".join(words))
            (pairs / f"file{number}").write_text("".join(f"{dice.randrange(60)} {dice.randrange(1 << 31)}\n" for _ in range(5_000)))

    def path(self, name):
        return f"forebay://{self.seen}/{name}"

    def options(self, tier):
        return {
            "mapreduce.job.reduces": "3",
            "mapreduce.job.maps": str(FILES),
            # Reduce tasks take no containers while map tasks wait for them.
            "mapreduce.job.reduce.slowstart.completedmaps": "1.0",
            "mapreduce.reduce.shuffle.connect.timeout": "5000",
            **tier,
        }

    def content(self, name):
        parts = {part.name: part.read_bytes() for part in sorted((self.files / name).glob("part-*"))}
        if not any(parts.values()):
            raise Invalid(f"{name} has no output")
        return parts

    def number(self, name):
        return sum(link["counters"][name] for link in self.cluster.links().values())

    def outputs(self):
        return sum(link["scratch_files"] for link in self.cluster.links().values())

    def await_nothing_left(self, what):
        self.until(f"{what}: map outputs are left in the tier", lambda: self.outputs() == 0)

    def until(self, what, condition):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline:
                raise Invalid(f"not within {PATIENCE_S} s: {what}")
            time.sleep(0.2)

    # Both shuffles

    def same(self, name, program, *arguments, tier=TIER):
        """Runs a program of the examples with each shuffle; its last argument is its output."""
        before, counters = self.number("shuffle_blocks_total"), []
        for kind, options in (("own", {}), ("tier", tier)):
            *inputs, output = arguments
            job = self.cluster.run(f"{name}-{kind}", [f"{EXAMPLES} {program}", *inputs, self.path(f"{output}-{kind}")], self.options(options))
            counters.append(job.counters)
            if kind == "own" and self.number("shuffle_blocks_total") != before:
                raise Invalid(f"{name}: Hadoop's own shuffle used the tier")
            self.say(f"    {name}, {kind} shuffle: {job.seconds:.1f} s")
        if self.number("shuffle_blocks_total") == before:
            raise Invalid(f"{name}: no block was in the tier")
        if self.content(f"{arguments[-1]}-own") != self.content(f"{arguments[-1]}-tier"):
            raise Invalid(f"{name}: the outputs of the two shuffles differ")
        for counter in ("MAP_OUTPUT_RECORDS", "MAP_OUTPUT_MATERIALIZED_BYTES", "REDUCE_SHUFFLE_BYTES", "SHUFFLED_MAPS", "REDUCE_INPUT_RECORDS", "FAILED_SHUFFLE"):
            if counters[0].get(counter) != counters[1].get(counter):
                raise Invalid(f"{name}: {counter} is {counters[1].get(counter)} with the tier and {counters[0].get(counter)} without")
        self.await_nothing_left(name)

    def examples(self):
        self.same("wordcount", "wordcount", self.path("text"), "words")
        self.same("secondary-sort", "secondarysort", self.path("pairs"), "pairs-sorted")
        made = self.cluster.run("rows", [f"{EXAMPLES} teragen", "100000", self.path("rows")], self.options({}))
        self.same("terasort", "terasort", self.path("rows"), "rows-sorted", tier=TWO_COPIES)
        self.cluster.run("validate", [f"{EXAMPLES} teravalidate", self.path("rows-sorted-tier"), self.path("report")], self.options(TIER))
        lines = [line for part in self.content("report").values() for line in part.decode().splitlines()]
        check_report("teravalidate", lines, made.counters["CHECKSUM"])
        self.await_nothing_left("teravalidate")

    # Something is killed

    @contextlib.contextmanager
    def gated(self, name, options):
        """A gated WordCount; gives the directory of its gates. Ends when it has ended, and leaves its Job in `self.job`."""
        self.runs += 1
        gates = self.cluster.place / f"gates-{self.runs}"
        gates.mkdir()
        arguments = [str(gates), self.path("text"), self.path(f"gated-{self.runs}")]
        process = self.cluster.begin(name, [GATED, *arguments], self.options(options))
        yield gates
        self.job = self.cluster.ended(name, process)
        if self.content(f"gated-{self.runs}") != self.expected():
            raise Invalid(f"{name}: the result is wrong")
        self.await_nothing_left(name)
        self.say(f"    {name}: {self.job.seconds:.1f} s, {self.job.counters['TOTAL_LAUNCHED_MAPS']} map tasks launched for {self.job.maps}")

    def expected(self):
        """What WordCount has counted with Hadoop's own shuffle, in the parts of the same partitions."""
        return self.content("words-own")

    def waiting(self, gates, task):
        """The process of the task that waits; all others that run before it have ended well."""
        self.until(f"a {task} task at its gate", (gates / task).exists)
        return int((gates / task).read_text())

    def others_done(self, name):
        """All map tasks but the one at the gate."""
        log = self.cluster.place / f"{name}.log"
        percent = 100 * (FILES - 1) // FILES
        self.until(f"{percent} % of the map tasks of {name}", lambda: any(int(done) >= percent for done in re.findall(r"map (\d+)% reduce", log.read_text())))

    def containers(self):
        name = "killed-map-container"
        with self.gated(name, TIER) as gates:
            os.kill(self.waiting(gates, "map"), signal.SIGKILL)
            self.until("a reduce task", (gates / "reduce").exists)
            os.kill(self.waiting(gates, "reduce"), signal.SIGKILL)
        if self.job.counters.get("NUM_FAILED_MAPS") != 1 or self.job.counters.get("NUM_FAILED_REDUCES") != 1:
            raise Invalid(f"{name}: nothing was killed")

    def speculation(self):
        speculative = {
            "mapreduce.map.speculative": "true",
            "mapreduce.job.speculative.slowtaskthreshold": "0.1",
            "mapreduce.job.speculative.retry-after-no-speculate": "500",
            "mapreduce.job.speculative.retry-after-speculate": "500",
        }
        with self.gated("speculative-duplicate", TIER | speculative) as gates:
            # The duplicate ends well, and the attempt that waits is killed.
            self.until("a reduce task of a job with a speculative map task", (gates / "reduce").exists)
            (gates / "go").touch()
        if self.job.counters["TOTAL_LAUNCHED_MAPS"] <= FILES:
            raise Invalid("no map task was speculative")

    def lost_memory(self, options):
        """An agent is killed with its outputs while a map task waits; map tasks launched."""
        name = "lost-node-two-copies" if options == TWO_COPIES else "lost-node"
        node = self.cluster.nodes[1]
        with self.gated(name, options) as gates:
            self.waiting(gates, "map")
            self.others_done(name)
            self.until("outputs on both nodes", lambda: all(link["scratch_files"] > 0 for link in self.cluster.links().values()))
            node.process.kill()
            node.process.wait()
            self.cluster.start_agent(node)
            self.cluster.await_members(len(self.cluster.nodes))
            (gates / "go").touch()
        return self.job.counters["TOTAL_LAUNCHED_MAPS"]

    def nodes(self):
        if self.lost_memory(TWO_COPIES) != FILES:
            raise Invalid("map tasks ran again although their outputs had a second copy")
        if self.lost_memory(TIER) <= FILES:
            raise Invalid("no map task ran again although outputs were lost")

    def masters(self):
        with self.gated("killed-master", TIER) as gates:
            self.waiting(gates, "map")
            os.kill(master(), signal.SIGKILL)
            (gates / "go").touch()
        self.runs += 1
        gates = self.cluster.place / f"gates-{self.runs}"
        gates.mkdir()
        name = "killed-job"
        client = self.cluster.begin(name, [GATED, str(gates), self.path("text"), self.path(f"gated-{self.runs}")], self.options(TIER))
        self.waiting(gates, "map")
        self.others_done(name)
        if self.outputs() == 0:
            raise Invalid(f"{name}: no map output was in the tier")
        job = re.findall(r"Running job: (job_\S+)", (self.cluster.place / f"{name}.log").read_text())[-1]
        self.cluster.begin("kill", ["org.apache.hadoop.mapred.JobClient", "-kill", job], {}).wait(PATIENCE_S)
        client.wait(PATIENCE_S)
        self.await_nothing_left(name)
        self.say(f"    {name}: nothing is left")


def master():
    """The process of the only job's master."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0") if process.name.isdigit() else []
            if b"org.apache.hadoop.mapreduce.v2.app.MRAppMaster" in words and Path(os.fsdecode(words[0])).name == "java":
                found.append(int(process.name))
    if len(found) != 1:
        raise Invalid(f"{len(found)} masters run")
    return found[0]


def run(cluster, backing, say):
    """All of it."""
    shuffles = Shuffles(cluster, backing, say)
    shuffles.examples()
    shuffles.containers()
    shuffles.speculation()
    shuffles.nodes()
    shuffles.masters()
    shutil.rmtree(shuffles.files)
