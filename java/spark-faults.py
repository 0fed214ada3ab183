"""Spark standalone on two nodes, with waves, while things are killed: results stay right, nothing is left behind.

    python3 java/spark-faults.py [-k executor]

Needs `make java`, Spark in target/ (java/test-spark brings it), and root or fusermount3 for the slow file system. Each test looks that what
it killed was really at work: a fault that strikes after the job proves nothing.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "python/demo"))

import lab  # noqa: E402
import loopback  # noqa: E402
import sparkhome  # noqa: E402

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")).resolve()
PROGRAM = lab.newest_program(TARGET)
EXTENT_BYTES = 2 << 20
EXTENTS = 24
# Slow enough that a job is in the middle of its input for some seconds, whatever else the machine
# does.
RATE = "2MB/s"
SERVERS = 4
PATIENCE_S = 120
# A quiet time in which a prefetch that had been forgotten would be seen.
QUIET_S = 3


def write_text(directory):
    """Words in lines, the same each time; returns what WordCount must find: distinct words, and words in all."""
    dice = random.Random(7)
    words = [f"w{i:03}" for i in range(500)]
    lines = [" ".join(dice.choices(words, k=10)) + "\n" for _ in range(2000)]
    block = "".join(lines).encode()
    size = EXTENTS * EXTENT_BYTES
    whole = block * (size // len(block))
    directory.mkdir()
    half = len(whole) // len(block) // 2 * len(block)
    (directory / "a.txt").write_bytes(whole[:half])
    (directory / "b.txt").write_bytes(whole[half:])
    return len(set(" ".join(lines).split())), len(whole) // len(block) * len(lines) * 10


def until(condition, what, seconds=PATIENCE_S):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds} s")
        time.sleep(0.1)
    return found


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        try:
            cls.start()
        except BaseException:
            cls.stack.close()
            raise

    @classmethod
    def start(cls):
        home = sparkhome.find(TARGET, os.environ.get("SPARK_VERSION", sparkhome.VERSION))
        jars = loopback.Jars(str(TARGET / "forebay-spark.jar"), str(TARGET / "java/workloads/forebay-workloads.jar"))
        for path in (PROGRAM, jars.forebay, jars.workloads, home):
            if path is None or not Path(path).exists():
                raise SystemExit("needed first: `make build java`, and Spark as java/test-spark installs it")
        cls.place = Path(tempfile.mkdtemp(prefix="forebay-faults-"))
        cls.stack.callback(shutil.rmtree, cls.place, ignore_errors=True)
        cls.backing = cls.place / "data"
        cls.words = write_text(cls.backing)
        options = ["--read-ahead", "128KiB"]
        cls.pfs = cls.stack.enter_context(lab.slow_pfs(PROGRAM, cls.backing, cls.place / "pfs", SERVERS, RATE, options))
        cls.cluster = cls.stack.enter_context(
            loopback.Cluster(PROGRAM, home, jars, cls.place, cls.pfs, EXTENT_BYTES, 512 << 20, memory="1g", cores=2)
        )

    @classmethod
    def tearDownClass(cls):
        with cls.stack:
            if os.environ.get("KEEP_LOGS"):
                loopback.keep_logs(cls.place, Path(os.environ["KEEP_LOGS"]))

    def setUp(self):
        self.cluster.await_members(2)
        self.cluster.forget()

    def submit(self, **conf):
        # One core an executor, so that two jobs find room beside each other.
        conf = {"spark.cores.max": "2", "spark.executor.cores": "1", "spark.executor.memory": "512m"} | {k.replace("_", "."): v for k, v in conf.items()}
        return self.cluster.submit("wordcount", self.pfs, "no-action", conf=conf, wait=False)

    def in_the_middle(self, job):
        """Waits until some tasks of the job's first stage are done and some are not; gives its status."""

        def look():
            if job.process.poll() is not None:
                raise AssertionError("the job ended before anything was killed: " + job.log_tail())
            for status in self.cluster.jobs():
                for stage in status["stages"]:
                    if not status["ended"] and 0 < stage["tasks_done"] < stage["tasks"] - 6 and any(w["fetched_bytes"] for w in stage["waves"]):
                        return status
            return None

        return until(look, "a job with its stage half done")

    def assert_right(self, job):
        result = job.wait(PATIENCE_S * 2)["result"]
        self.assertEqual((result["records"], result["total"]), self.words)

    def assert_quiet(self):
        """Nothing is read from the PFS by anybody any more."""

        def quiet():
            before = self.cluster.served_bytes()
            time.sleep(QUIET_S)
            return self.cluster.served_bytes() == before

        # What was under way may come to its end: some pages.
        until(quiet, "an end of all reading from the PFS", 30)
        self.assertEqual([job["name"] for job in self.cluster.jobs() if not job["ended"]], [])

    def executor_of(self, node):
        """Process ids of the executors of a node."""
        found = subprocess.run(["pgrep", "-f", f"CoarseGrainedExecutorBackend.*--hostname {node.host} "], capture_output=True, text=True, check=False)
        ours = [int(pid) for pid in found.stdout.split() if os.getpgid(int(pid)) == node.worker.pid]
        return ours

    def test_a_job_without_faults_is_right_and_local(self):
        job = self.submit()
        self.assert_right(job)
        (status,) = [s for s in self.cluster.jobs()[-1:]]
        stage = next(s for s in status["stages"] if s["waves"])
        self.assertEqual((stage["tasks_done"], status["ended"]), (stage["tasks"], True))
        self.assertGreaterEqual(len(stage["waves"]), 5)
        self.assertGreaterEqual(stage["tasks_local"], 0.8 * stage["tasks"])
        self.assert_quiet()

    def test_an_executor_is_killed(self):
        job = self.submit()
        self.in_the_middle(job)
        executors = self.executor_of(self.cluster.nodes[0])
        self.assertTrue(executors, "no executor to kill")
        for pid in executors:
            os.kill(pid, signal.SIGKILL)
        self.assert_right(job)
        self.assertIn("Lost executor", job.log())
        self.assert_quiet()

    def test_the_agent_of_the_driver_is_killed_and_comes_back(self):
        job = self.submit()
        self.in_the_middle(job)
        node = self.cluster.nodes[0]
        node.process.kill()
        node.process.wait()
        self.cluster.start_agent(node)
        self.assert_right(job)
        self.assertIn("the agent does not listen", job.log())
        self.assert_quiet()

    def test_the_agent_of_another_node_is_killed(self):
        job = self.submit()
        self.in_the_middle(job)
        node = self.cluster.nodes[1]
        node.process.kill()
        node.process.wait()
        try:
            self.assert_right(job)
        finally:
            self.cluster.start_agent(node)

    def test_the_coordinator_is_killed_and_comes_back(self):
        job = self.submit()
        self.in_the_middle(job)
        self.cluster.coordinator.kill()
        self.cluster.coordinator.wait()
        time.sleep(1)
        self.cluster.start_coordinator(self.cluster.address)
        self.assert_right(job)
        self.cluster.await_members(2)
        self.assert_quiet()

    def test_a_driver_that_is_killed_leaves_no_prefetch(self):
        job = self.submit()
        status = self.in_the_middle(job)
        before = self.cluster.served_bytes()
        os.killpg(job.process.pid, signal.SIGKILL)
        job.process.wait()
        name = status["name"]
        until(lambda: all(j["ended"] for j in self.cluster.jobs() if j["name"] == name), "the end of the job", 15)
        self.assert_quiet()
        left = EXTENTS * EXTENT_BYTES - self.cluster.served_bytes()
        self.assertGreater(left, 4 * EXTENT_BYTES, f"nearly all was read after all; {before} bytes when the driver was killed")

    def test_two_jobs_at_once(self):
        first, second = self.submit(), self.submit()
        until(lambda: sum(not job["ended"] and bool(job["stages"]) for job in self.cluster.jobs()) == 2, "two jobs at once")
        self.assert_right(first)
        self.assert_right(second)
        self.assert_quiet()

    def test_speculation_and_dynamic_allocation(self):
        self.assert_right(
            self.submit(
                spark_speculation="true",
                spark_dynamicAllocation_enabled="true",
                spark_dynamicAllocation_shuffleTracking_enabled="true",
                spark_dynamicAllocation_minExecutors="1",
                spark_dynamicAllocation_executorIdleTimeout="2s",
            )
        )
        self.assert_quiet()


if __name__ == "__main__":
    unittest.main(verbosity=2)
