"""A cluster on one machine: two nodes that are two loopback addresses, each with an agent and a Spark worker, one slow PFS for both.

127.0.0.2 and 127.0.0.3 are different hosts to Spark's scheduler and to Forebay, so tasks have a place where they belong, and what is
owned by one node and read on the other goes through a connection. Everything is a child process in a session of its own, ended in
the reverse order.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import lab

HOSTS = ("127.0.0.2", "127.0.0.3")
DRIVER = "127.0.0.1"
# Six virtual machines start one after the other, on two cores that others use as well.
START_S = 180
# A job that hangs is a failure of the demonstration, not a reason to wait for ever.
JOB_S = 600
PLUGIN = "io.forebay.spark.ForebayPlugin"
# In which the slow file system reports the layout of a file.
LAYOUT_XATTR = "user.forebay.layout"


@dataclass
class Jars:
    forebay: str
    workloads: str


@dataclass
class Node:
    name: str
    host: str
    directory: object
    process: object = None
    worker: object = None

    @property
    def socket(self):
        return self.directory / "agent.sock"


class Cluster:
    """What is up; who runs something else than Spark on it has an engine of its own. `program`: forebay; `home`: Spark's; times in seconds."""

    sample_s = 0.1
    # Further lines for the mount in the agents' configuration.
    mount_options = ""
    # A directory of text on the local disk that a workload is run over before its time is taken;
    # None: none.
    warm = None

    def __init__(self, program, home, jars, place, pfs, extent, capacity_bytes, hosts=HOSTS, cores=1, memory="1g"):
        self.program, self.home, self.jars, self.place, self.pfs = str(program), home, jars, place, pfs
        self.extent, self.capacity_bytes, self.cores, self.memory = extent, capacity_bytes, cores, memory
        self.nodes = [Node(f"n{i + 1}", host, place / f"n{i + 1}") for i, host in enumerate(hosts)]
        self.stack = contextlib.ExitStack()
        self.address = self.master = self.coordinator = None
        self.decisions = place / "decisions"
        self.jobs_run = 0

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *_):
        self.stack.close()

    def start(self):
        self.start_coordinator("127.0.0.1:0")
        for node in self.nodes:
            node.directory.mkdir()
            self.stack.callback(self.stop_agent, node)
            self.start_agent(node)
        self.await_members(len(self.nodes))
        self.start_engine()

    # Forebay

    def start_coordinator(self, listen):
        config = self.place / "coordinator.toml"
        config.write_text(f'[cluster]\ndecision_log = "{self.decisions}"\n')
        command = [self.program, "coordinator", "--config", str(config), "--listen", listen]
        log = self.place / "coordinator.log"
        self.coordinator = self.spawn(command, log)
        self.address = self.said(self.coordinator, log, r"coordinator listens on (\S+)", "the coordinator")

    def start_agent(self, node):
        config = node.directory / "forebay.toml"
        config.write_text(
            f'[agent]\nstate_dir = "{node.directory}"\ndecision_log = "{self.decisions / node.name}"\n[tier]\ncapacity = "{self.capacity_bytes}"\n'
            f'[cluster]\ncoordinator = "{self.address}"\nlisten = "{node.host}:0"\nnode = "{node.name}"\nhost = "{node.host}"\n'
            f'[[mount]]\nlabel = "pfs"\nroot = "{self.pfs}"\nextent_size = "{self.extent}"\n{self.mount_options}'
        )
        node.socket.unlink(missing_ok=True)
        log = node.directory / "agent.log"
        node.process = self.spawn([self.program, "agent", "--config", str(config)], log)
        lab.wait_for(node.socket.exists, node.process, f"the agent of {node.host}", log)

    def stop_agent(self, node):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.forebay("down", "--drop", node=node)

    def await_members(self, count):
        deadline = time.monotonic() + START_S
        while True:
            views = [self.forebay("status", "--json", node=node) for node in self.nodes]
            if all(view.returncode == 0 and members(json.loads(view.stdout)) >= count for view in views):
                return
            if time.monotonic() > deadline:
                said = " ".join(view.stderr.strip() or view.stdout.strip() for view in views)
                raise lab.LabError(f"the agents do not see each other after {START_S} s: {said}")
            time.sleep(0.1)

    def forebay(self, *arguments, node=None):
        """Runs a command at a node's agent; gives what subprocess.run gives."""
        environment = {**os.environ, "FOREBAY_SOCKET": str((node or self.nodes[0]).socket)}
        command = [self.program, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    def jobs(self):
        """What the coordinator knows of jobs; an empty list while it does not answer."""
        answer = self.forebay("--json", "jobs")
        return json.loads(answer.stdout) if answer.returncode == 0 else []

    def layout(self, data):
        """As of labcluster.Cluster."""
        try:
            return [stripes_on(json.loads(os.getxattr(path, LAYOUT_XATTR)), path.stat().st_size) for path in sorted(Path(data).iterdir())]
        except (OSError, ValueError, KeyError):
            return None

    def set_rate(self, mb_per_s):
        """Of each of the PFS's servers."""
        lab.set_rate(self.program, self.pfs, f"{mb_per_s:.3f}MB/s")

    def forget(self):
        """Empties tiers and page caches."""
        for node in self.nodes:
            self.forebay("evict", "--all", node=node)
        lab.forget_page_cache([path for path in self.pfs.rglob("*") if path.is_file()])

    def served_bytes(self):
        return lab.served_bytes(self.pfs)

    def links(self):
        """Counters of each agent, by host."""
        return {node.host: json.loads(self.forebay("--json", "status", node=node).stdout) for node in self.nodes}

    # Spark, the engine

    def start_engine(self):
        log = self.place / "master.log"
        master = self.daemon("master.Master", ["--host", DRIVER, "--port", "0", "--webui-port", "0"], DRIVER, log)
        self.master = self.said(master, log, r"Starting Spark master at (\S+)", "Spark's master")
        for node in self.nodes:
            self.start_worker(node)
        for node in self.nodes:
            self.said(node.worker, node.directory / "worker.log", r"Successfully registered with master (\S+)", f"the worker of {node.host}")

    def start_worker(self, node):
        arguments = ["--host", node.host, "--webui-port", "0", "--cores", str(self.cores), "--memory", self.memory]
        arguments += ["--work-dir", str(node.directory / "work"), self.master]
        node.worker = self.daemon("worker.Worker", arguments, node.host, node.directory / "worker.log", node)

    def daemon(self, name, arguments, address, log, node=None):
        command = [str(self.home / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        return self.spawn(command, log, {**self.environment(address), **({"FOREBAY_SOCKET": str(node.socket)} if node else {})})

    def environment(self, address):
        return {
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": address,
            "SPARK_LOCAL_DIRS": str(self.place / "spark"),
            "SPARK_DAEMON_MEMORY": "256m",
            "FOREBAY_SOCKET": str(self.nodes[0].socket),
        }

    def submit(self, workload, data, forebay=None, reducers=2, conf=None, wait=True):
        """Runs a workload; its report. `forebay`: None for Spark as it is, else the planner. With wait=False: a Submitted to wait for."""
        self.jobs_run += 1
        report = self.place / f"report-{self.jobs_run}.json"
        options = {
            "spark.driver.host": DRIVER,
            "spark.driver.bindAddress": DRIVER,
            "spark.driver.memory": "512m",
            "spark.executor.memory": self.memory,
            "spark.ui.enabled": "false",
            **start_together(len(self.nodes) * self.cores),
            # Long enough that a task waits for its node while that is busy, short enough that a
            # node without work takes some in the end.
            "spark.locality.wait": "1s",
        }
        command = [str(self.home / "bin/spark-submit"), "--master", self.master, "--class", "io.forebay.workloads.Main"]
        command += conf_arguments(options, self.jars, self.extent, forebay, conf)
        command += [self.jars.workloads, workload, f"file://{data}", str(reducers), str(report), *warm_argument(self.warm)]
        job = Submitted(self.spawn(command, report.with_suffix(".log"), self.environment(DRIVER)), report)
        return job.wait() if wait else job

    # Processes

    def spawn(self, command, log, environment=None):
        """Starts a child in a session of its own; it and what it has started are ended with the cluster."""
        with open(log, "ab") as out:
            process = subprocess.Popen(
                command, env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self.stack.callback(end, process)
        return process

    def said(self, process, log, pattern, what):
        """Waits until the log says something; gives the first group of the last time."""
        deadline = time.monotonic() + START_S
        while True:
            found = re.findall(pattern, log.read_text(errors="replace"))
            if found and process.poll() is None:
                return found[-1]
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace").strip().splitlines()[-3:]
                raise lab.LabError(f"{what} did not start: {' / '.join(tail) or 'it said nothing'}")
            time.sleep(0.1)


def stripes_on(layout, size):
    """Of a file of `size` bytes with this layout: the number of the server of each stripe."""
    servers = len(layout["servers"])
    return [(layout["first_server"] + stripe) % servers for stripe in range(-(-size // layout["stripe_bytes"]))]


def warm_argument(warm):
    return [f"file://{warm}"] if warm else []


def start_together(slots):
    """Options with which the first task starts when all executors are there, so that no time has the start of virtual machines in it."""
    # Without the number of cores the scheduler does not know for how many to wait.
    return {"spark.cores.max": str(slots), "spark.scheduler.minRegisteredResourcesRatio": "1.0"}


def conf_arguments(options, jars, extent, forebay, more):
    """Arguments of spark-submit; `forebay`: None for Spark as it is, else the planner."""
    # So that all have the same splits, wherever the input is.
    options = options | {"spark.hadoop.fs.local.block.size": str(extent)}
    if forebay is not None:
        options = options | {"spark.jars": jars.forebay, "spark.plugins": PLUGIN, "spark.forebay.planner": forebay}
    return [part for key, value in (options | (more or {})).items() for part in ("--conf", f"{key}={value}")]


@dataclass
class Submitted:
    """A job that runs."""

    process: subprocess.Popen
    report: object

    def wait(self, seconds=JOB_S):
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            end(self.process)
            raise lab.LabError(f"the job did not end within {seconds} s; its log: {self.log_tail()}") from None
        if code or not self.report.exists():
            raise lab.LabError(f"the job failed with exit code {code}: {self.log_tail()}")
        return json.loads(self.report.read_text())

    def log(self):
        return self.report.with_suffix(".log").read_text(errors="replace")

    def log_tail(self):
        return "\n".join(self.log().strip().splitlines()[-15:])


def members(status):
    """Nodes in the view of an agent, as `forebay status --json` says."""
    return len(status["cluster"]["view"]["nodes"])


def replay(program, decisions):
    """Has the policies decide again what a coordinator and its agents have recorded below a directory; lines and actions. Raises LabError if one
    differs."""
    lines = actions = 0
    for log in sorted(decisions.rglob(f"*-{'[0-9]' * 6}.log")):
        done = subprocess.run([program, "--json", "replay", str(log)], capture_output=True, text=True, timeout=60, check=False)
        # A coordinator whose jobs do not share records no step.
        if "no action of a machine is recorded" in done.stderr:
            continue
        if done.returncode:
            raise lab.LabError(f"`forebay replay {log.name}` fails: {done.stderr.strip() or done.stdout.strip()}")
        found = json.loads(done.stdout)
        lines, actions = lines + found["lines"], actions + found["actions"]
    if not lines:
        raise lab.LabError(f"no decision is recorded in {decisions}")
    return lines, actions


def keep_logs(place, where):
    """Copies the logs below a directory that is about to go."""
    shutil.rmtree(where, ignore_errors=True)
    for log in [*place.rglob("*.log"), *place.rglob("stderr")]:
        copy = where / log.relative_to(place)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            shutil.copy(log, copy)


def end(process):
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(lab.STOP_S)
    # Executors are in the worker's session but may outlive it by a moment.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
