"""Kills an agent, an executor and the coordinator in the middle of queries; results must stay correct.

One application runs on two nodes on loopback addresses, with waves, over a PFS that is slow enough
for a query to take seconds. Each query runs once undisturbed, and once for each fault, cold each
time. A fault counts only if the query had read part of its bytes, and had not ended.
"""

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import bench
import lab
import loopback
import sparkhome

HERE = Path(__file__).resolve().parent
# A scan, joins of three and of six tables, an aggregate below a join, and one table read thrice.
QUERIES = (1, 3, 9, 18, 21)
SERVERS = 4
EXTENT_BYTES = 2 << 20
PATIENCE_S = 240
# A fault strikes when so much of the bytes of the undisturbed run has come from the PFS; behind
# the last share, a kill would prove little.
BEGUN, ENDED = 0.2, 0.9


class Application:
    """The driver of queries."""

    def __init__(self, config, cluster, pfs):
        self.log = cluster.place / "driver.log"
        settings = {
            "spark.driver.host": loopback.DRIVER,
            "spark.driver.bindAddress": loopback.DRIVER,
            **loopback.start_together(len(cluster.nodes) * cluster.cores),
            "spark.executor.memory": "1g",
            "spark.locality.wait": "1s",
            # So that there are several waves.
            "spark.sql.files.maxPartitionBytes": str(1 << 20),
            "spark.hadoop.fs.local.block.size": str(EXTENT_BYTES),
            "spark.jars": str(config.jar),
            "spark.plugins": loopback.PLUGIN,
            "spark.forebay.planner": "no-action",
        }
        task = {"mode": "faults", "master": cluster.master, "driver_memory": config.driver_memory, "settings": settings}
        task |= {"tables": str(pfs), "scale": config.scale, "format": config.format, "log_level": "WARN"}
        with open(self.log, "wb") as errors:
            environment = {**os.environ, **cluster.environment(loopback.DRIVER), "PYSPARK_PYTHON": str(config.python)}
            self.process = subprocess.Popen(
                [str(config.python), str(HERE / "worker.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=environment, start_new_session=True,
            )
        cluster.stack.callback(loopback.end, self.process)
        self.answers = queue.Queue()
        threading.Thread(target=lambda: [self.answers.put(json.loads(line)) for line in self.process.stdout], daemon=True).start()
        self.ask(json.dumps(task))
        self.answer()

    def ask(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def has_answered(self):
        return not self.answers.empty() or self.process.poll() is not None

    def answer(self):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                return self.answers.get(timeout=1)
            if self.process.poll() is not None:
                break
        raise bench.BenchError(f"the application does not answer: {self.log.read_text(errors='replace')[-2000:]}")


def run_all(config, say):
    """Outcomes, one for each query and fault."""
    with contextlib.ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="forebay-tpch-faults-"))
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        # What the logs say is worth more than the message of a failure.
        stack.callback(loopback.keep_logs, place, config.directory / "faults-logs")
        rate = f"{config.rate / SERVERS:.3f}MB/s"
        pfs = stack.enter_context(lab.slow_pfs(config.program, config.tables, place / "pfs", SERVERS, rate, ["--read-ahead", config.read_ahead]))
        home = sparkhome.find(config.target, config.spark)
        jars = loopback.Jars(str(config.jar), "")
        cluster = stack.enter_context(loopback.Cluster(config.program, home, jars, place, pfs, EXTENT_BYTES, config.capacity_bytes, memory="1g"))
        application = Application(config, cluster, pfs)
        outcomes = []
        for number in config.queries:
            outcomes += query(cluster, application, number, say)
        return outcomes


def query(cluster, application, number, say):
    expected, cold_bytes = undisturbed(cluster, application, number)
    outcomes = []
    for name, fault in FAULTS.items():
        cluster.await_members(len(cluster.nodes))
        cluster.forget()
        before = lab.served_bytes(cluster.pfs)
        application.ask(f"{number} faults 0")
        share = in_the_middle(cluster, application, before, cold_bytes, f"Q{number}")
        fault(cluster, application)
        if application.has_answered():
            raise bench.BenchError(f"Q{number}: it ended before {name} was killed")
        found = application.answer()["result"]
        if found != expected:
            raise bench.BenchError(f"Q{number}, {name} killed: the result is {found}, without a fault {expected}")
        repair(cluster, name)
        outcomes.append({"query": number, "killed": name, "read_share": share, "result": found})
        say(f"    Q{number}: {name} killed when {100 * share:.0f} % of {cold_bytes / 1e6:.1f} MB were read; the result is right")
    return outcomes


def undisturbed(cluster, application, number):
    cluster.await_members(len(cluster.nodes))
    cluster.forget()
    before = lab.served_bytes(cluster.pfs)
    application.ask(f"{number} faults 0")
    result = application.answer()["result"]
    return result, lab.served_bytes(cluster.pfs) - before


def in_the_middle(cluster, application, before, cold_bytes, what):
    """Waits until part of the bytes of a query are read; gives their share."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        share = (lab.served_bytes(cluster.pfs) - before) / cold_bytes
        if application.has_answered() or share > ENDED or time.monotonic() > deadline:
            raise bench.BenchError(f"{what}: {100 * share:.0f} % of its bytes were read before anything was killed; make the PFS slower (--rate)")
        if share >= BEGUN:
            return share
        time.sleep(0.02)


def kill(process):
    process.kill()
    if process.wait(lab.STOP_S) != -signal.SIGKILL:
        raise bench.BenchError("it had ended before it was killed")


def kill_agent(cluster, application):
    """That of the node whose agent the driver uses too."""
    kill(cluster.nodes[0].process)


def kill_coordinator(cluster, application):
    kill(cluster.coordinator)


def kill_executor(cluster, application):
    node = cluster.nodes[0]
    found = subprocess.run(["pgrep", "-f", f"CoarseGrainedExecutorBackend.*--hostname {node.host} "], capture_output=True, text=True, check=False)
    ours = [int(pid) for pid in found.stdout.split() if os.getpgid(int(pid)) == node.worker.pid]
    if not ours:
        raise bench.BenchError("no executor to kill")
    for pid in ours:
        os.kill(pid, signal.SIGKILL)


def repair(cluster, name):
    if name == "the agent":
        cluster.start_agent(cluster.nodes[0])
    elif name == "the coordinator":
        cluster.start_coordinator(cluster.address)


FAULTS = {"the agent": kill_agent, "an executor": kill_executor, "the coordinator": kill_coordinator}
