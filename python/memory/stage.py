"""One setting, measured: the node, the slow file system outside of it, the agent and Spark inside, HPL in a burst beside them.

Spark, the agent and the file system share one core, HPL and the hog have the other, so that what they take from each other is memory.
"""

import contextlib
import json
import os
import subprocess
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import compute
import lab
from group import Group
from sampler import Sampler, above_s, between, mean, thinned

PROGRAMS = ("kmeans", "logistic", "linear", "svm")
ANALYTICS_CORE, COMPUTE_CORE = 0, 1
SERVERS = 4
# The hog beside the reader: when each ramp begins, and its rate in GB/s; then it keeps its memory.
RAMPS = ((4.0, 0.1), (14.0, 1.0), (24.0, 10.0))
HOLD_S = 2.0
READ_S = 34.0
# The reader that skips as much as it reads, as the paper's random reader does.
SKIP_BYTES = 1 << 20
SKIP_RAMPS, SKIP_S = ((4.0, 1.0),), 12.0
# Beside K-means with inputs of several sizes: the hog comes again and again.
SIZES_RAMPS = tuple((12.0 + 16 * i, 1.0) for i in range(40))
SIZES_HOLD_S = 6.0
LOAD_S = 300
ANALYTICS_S = 1800
# What is kept of the samples in the results.
KEPT_STEP_S = 0.1


class StageError(Exception):
    """A part of the experiment did not run; the message says which and why."""


@dataclass
class Tools:
    """Programs and jars; `pfs_bytes_per_s` is the rate of the slow file system, `data` the input on the local disk."""

    forebay: str
    spark: Path
    jar: Path
    workloads: Path
    data: Path
    pfs_bytes_per_s: float
    iterations: int
    iterations_without_tier: int
    burst_at_s: float


class Stage:
    """Everything that runs in a setting; `say` hears of progress."""

    def __init__(self, setting, sizes, tools, place, say):
        self.setting, self.sizes, self.tools, self.place, self.say = setting, sizes, tools, place, say
        self.stack = contextlib.ExitStack()
        self.socket = None
        self.bursts = []
        self.failure = None

    def __enter__(self):
        try:
            limit = self.sizes.node if self.setting.limited else None
            self.group = self.stack.enter_context(Group(f"forebay-experiment-{os.getpid()}", limit))
            rate = f"{self.tools.pfs_bytes_per_s / SERVERS / 1e6:.3f}MB/s"
            pfs = lab.slow_pfs(self.tools.forebay, self.tools.data, self.place / "pfs", SERVERS, rate)
            self.pfs = self.stack.enter_context(pfs)
            if self.setting.policy:
                self.stack.enter_context(self.agent())
            self.sampler = self.stack.enter_context(Sampler(self.group, lambda: lab.served_bytes(self.pfs)))
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *_):
        self.stack.close()

    @contextlib.contextmanager
    def agent(self):
        """The agent as a member of the group."""
        state = self.place / "state"
        config = self.place / "forebay.toml"
        capacity = self.sizes.large if self.setting.tier == "large" else self.sizes.safe
        config.write_text(
            f'[agent]\nstate_dir = "{state}"\n[tier]\ncapacity = "{capacity}"\nlimit = "{capacity}"\n'
            f'[memory]\npolicy = "{self.setting.policy}"\ntarget = "{100 * self.sizes.target:g}%"\ngain = {self.setting.gain}\n'
            f'[[mount]]\nlabel = "pfs"\nroot = "{self.pfs}"\n'
        )
        self.socket = state / "agent.sock"
        up = self.group.command([self.tools.forebay, "up", "--foreground", "--config", config])
        with lab.child(up, self.place / "agent.log") as (process, log):
            try:
                lab.wait_for(self.socket.exists, process, "the agent", log)
                yield
            finally:
                drop = [self.tools.forebay, "down", "--drop", "--socket", str(self.socket), "--state-dir", str(state)]
                with contextlib.suppress(subprocess.TimeoutExpired):
                    subprocess.run(drop, capture_output=True, timeout=lab.STOP_S, check=False)

    def forebay(self, *arguments, seconds=60):
        command = [self.tools.forebay, "--socket", str(self.socket), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)

    @property
    def iterations(self):
        """Of each program: fewer without a tier, where all of them take the same time."""
        return self.tools.iterations if self.setting.policy else self.tools.iterations_without_tier

    def load(self):
        """The input is in the tier before, as far as it fits; the paper generates it through its tier."""
        if self.socket:
            # A tier that is too small refuses the rest, and says so.
            self.forebay("load", self.pfs, seconds=LOAD_S)

    # What runs

    def learn(self):
        """Spark ML with HPL beside it; the programs that came to an end."""
        report = self.place / "learning.json"
        with contextlib.ExitStack() as stack:
            burst = stack.enter_context(self.hpl_beside()) if self.setting.hpcc else None
            self.spark("learning", ["run", f"file://{self.pfs}", str(self.iterations), str(report), *PROGRAMS])
            if burst:
                burst.join()
        return json.loads(report.read_text()) if report.exists() else []

    @contextlib.contextmanager
    def hpl_beside(self):
        """Starts hpcc at once, and its HPL in the node after `burst_at_s`, or as soon as it is ready."""
        due = time.monotonic() + self.tools.burst_at_s
        stop = threading.Event()
        hpl = compute.Hpl(self.place / "hpl", self.sizes.hpl_n, COMPUTE_CORE)

        def run():
            try:
                hpl.prepare()
                if not stop.wait(max(due - time.monotonic(), 0)):
                    self.bursts.append(hpl.run(self.group))
            except (compute.ComputeError, OSError) as error:
                self.failure = str(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield thread
        finally:
            stop.set()
            hpl.end()
            thread.join()

    def hpl_alone(self):
        with self.hpl_beside() as thread:
            thread.join()

    def read(self, name="reading", seconds=READ_S, ramps=RAMPS, skip=0):
        """A reader with the hog beside it; its samples, (seconds since 1970, bytes so far)."""
        report = self.place / f"{name}.json"
        with self.hogs_beside(ramps, HOLD_S):
            self.spark(name, ["read", f"file://{self.pfs}", str(seconds), str(report), str(skip)])
        return [(ms / 1000, read) for ms, read in json.loads(report.read_text())] if report.exists() else []

    def kmeans(self):
        """K-means alone with the hog beside it, again and again; as `learn`."""
        report = self.place / "learning.json"
        with self.hogs_beside(SIZES_RAMPS, SIZES_HOLD_S):
            self.spark("learning", ["run", f"file://{self.pfs}", str(self.iterations), str(report), "kmeans"])
        return json.loads(report.read_text()) if report.exists() else []

    @contextlib.contextmanager
    def hogs_beside(self, ramps, hold_s):
        stop = threading.Event()
        thread = threading.Thread(target=self.hogs, args=(stop, time.monotonic(), ramps, hold_s))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def hogs(self, stop, start, ramps, hold_s):
        for at, rate in ramps:
            if stop.wait(max(start + at - time.monotonic(), 0)):
                return
            if self.setting.hpcc:
                try:
                    self.bursts.append(compute.hog(self.group, COMPUTE_CORE, self.hog_bytes(), rate * 1e9, hold_s))
                except (compute.ComputeError, OSError) as error:
                    self.failure = str(error)

    def hog_bytes(self):
        """What leaves the tier as much as HPL does: the safe size, in all settings."""
        use = self.group.use()
        held = self.sizes.input // 2
        return max(int(self.sizes.target * self.sizes.node) - (use.used - use.tmpfs) - held, held)

    def spark(self, name, arguments):
        """Runs spark-submit in the group; a machine that the kernel ended is a result, not an error."""
        options = [f"spark.driver.memory={self.sizes.heap >> 20}m", "spark.ui.enabled=false", "spark.memory.fraction=0.01", "spark.driver.host=127.0.0.1"]
        if self.socket:
            options += ["spark.hadoop.fs.file.impl=io.forebay.hadoop.ForebayLocalFileSystem", f"spark.driver.extraClassPath={self.tools.jar}"]
        # The heap is there from the start: as an executor's, it is the same in all settings.
        java = f"-Xms{self.sizes.heap >> 20}m -XX:+AlwaysPreTouch -XX:+UseSerialGC"
        command = ["taskset", "-c", ANALYTICS_CORE, self.tools.spark / "bin/spark-submit", "--master", "local[1]", "--driver-java-options", java]
        command += [part for option in options for part in ("--conf", option)]
        command += ["--class", "io.forebay.workloads.LearningMain", self.tools.workloads, *arguments]
        environment = {"SPARK_HOME": str(self.tools.spark), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(self.place)}
        environment |= {"FOREBAY_SOCKET": str(self.socket)} if self.socket else {}
        log = self.place / f"{name}.log"
        kills = self.group.kills()
        with lab.child(["env", *(f"{key}={value}" for key, value in environment.items()), *self.group.command(command)], log) as (process, _):
            code = process.wait(ANALYTICS_S)
        if code and self.group.kills() == kills:
            raise StageError(f"Spark failed with exit code {code}: {' / '.join(log.read_text(errors='replace').strip().splitlines()[-3:])}")


def measure(setting, sizes, tools, place, say):
    """Runs a setting; its figures, ready to be written as JSON."""
    began = time.time()
    with Stage(setting, sizes, tools, place, say) as stage:
        programs, reads, skips = [], [], []
        if setting.analytics:
            stage.load()
            say("Spark ML ...")
            programs = stage.learn()
            learned = time.time()
            memory = stage.forebay("--json", "memory") if stage.socket else None
            say("sequential reader ...")
            reads = stage.read()
            skips = stage.read("skipping", SKIP_S, SKIP_RAMPS, SKIP_BYTES)
        else:
            stage.hpl_alone()
            learned, memory = time.time(), None
        if stage.failure and not stage.group.kills():
            raise StageError(stage.failure)
        return {
            "setting": setting.name,
            "sizes": asdict(sizes),
            "began": began,
            "learned": learned,
            "iterations": stage.iterations,
            "programs": programs,
            "reads": reads,
            "skips": skips,
            "bursts": [asdict(burst) for burst in stage.bursts],
            "kills": stage.group.kills(),
            "limit_hits": stage.group.limit_hits(),
            "failure": stage.failure,
            "memory": json.loads(memory.stdout) if memory and memory.returncode == 0 else None,
            "samples_exact": exact(stage, learned),
            "samples": thinned(stage.sampler.samples, KEPT_STEP_S, 1),
            "served": stage.sampler.served,
        }


def measure_kmeans(setting, sizes, tools, place):
    """Seconds that K-means takes over the input of `tools`, and how often the hog came.

    The seconds are None if the kernel ended the program.
    """
    with Stage(setting, sizes, tools, place, lambda text: None) as stage:
        stage.load()
        found = stage.kmeans()
        if stage.failure and not stage.group.kills():
            raise StageError(stage.failure)
        seconds = (found[0]["ended_ms"] - found[0]["began_ms"]) / 1e3 if found else None
        return {"seconds": seconds, "iterations": stage.iterations, "bursts": len(stage.bursts), "kills": stage.group.kills()}


def exact(stage, learned):
    """Figures that need all samples."""
    of_learning = between(stage.sampler.samples, 0, learned)
    bounds = {"target": stage.sizes.target, "target_2": stage.sizes.target + 0.02}
    found = {name: above_s(stage.sampler.samples, share * stage.sizes.node) for name, share in bounds.items()}
    return {
        "above_s": {name: total for name, (total, _) in found.items()},
        "above_longest_s": {name: longest for name, (_, longest) in found.items()},
        "peak_used": max(sample[1] for sample in stage.sampler.samples),
        "mean_tier": mean(of_learning, 2),
    }
