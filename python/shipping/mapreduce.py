"""Hadoop's MapReduce in the lab: YARN on compute nodes or on storage servers, as java/mapreduce has it on one machine."""

import contextlib
import shutil
import sys
import time
from pathlib import Path

import lab
import labcluster
import loopback

sys.path.insert(2, str(Path(__file__).resolve().parents[2] / "java/mapreduce"))

import jobs  # noqa: E402
import yarn  # noqa: E402

AGENT_S = 60


class Yarn(yarn.Cluster):
    """The resource manager, the history server and the clients of jobs are on a compute node, outside of its quota, as Spark's driver is. `hosts` have a node
    manager each, and an agent."""

    # Hadoop's default: elsewhere than on the server of its stripe, a task reads over the network.
    locality_delay = 40

    def __init__(self, cluster, hosts, lib):
        place = cluster.place / "yarn"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        super().__init__(cluster.program, cluster.jars.forebay, lib, place, cluster.mount, cluster.extent, 0)
        self.cluster, self.nodes = cluster, [loopback.Node(host, host, place / host) for host in hosts]
        self.driver = loopback.Node(labcluster.DRIVER, labcluster.DRIVER, place / "driver")
        self.master_host = next(node["address"] for node in cluster.status()["nodes"] if node["name"] == labcluster.DRIVER)

    def start(self):
        self.stack.callback(self.cluster.run, "rm", "-rf", str(self.pfs / "yarn"))
        for node in self.nodes:
            node.directory.mkdir()
            if self.forebay("status", node=node).returncode:
                self.start_agent(node)
        self.start_engine()

    def start_agent(self, node):
        """On a storage server, as `forebay ship` does."""
        config = str(self.cluster.mount.parent / "node/forebay.toml")
        process = self.spawn_on(node, [self.program, "agent", "--config", config], node.directory / "agent.log")
        self.stack.callback(self.forebay, "down", "--drop", "--config", config, node=node)
        deadline = time.monotonic() + AGENT_S
        while self.forebay("status", node=node).returncode:
            if process.poll() is not None or time.monotonic() > deadline:
                raise lab.LabError(f"the agent of {node.host} does not answer; {yarn.tail(node.directory / 'agent.log')}")
            time.sleep(0.2)

    def forebay(self, *arguments, node=None):
        return self.cluster.lab("run", "--node", (node or self.driver).host, "--", self.program, *arguments)

    def forget(self):
        for node in self.nodes:
            self.forebay("evict", "--all", node=node)
        self.cluster.drop_pages()

    def make_shared(self):
        self.cluster.run("mkdir", str(self.shared), check=True)

    def client_node(self):
        return self.driver

    def write_hosts(self):
        self.hosts = self.cluster.mount.parent / "hosts"

    def spawn_on(self, node, command, log):
        free = ["--free"] if node is self.driver else []
        environment = {**self.java_environment(node), "FOREBAY_LAB": self.cluster.name}
        # The lab sets the socket of the agent of each node.
        del environment["FOREBAY_SOCKET"]
        return self.spawn([self.program, "lab", "run", *free, "--node", node.host, "--", *command], log, environment)


class Jobs:
    """The jobs of a way. `scheme`: file for the PFS without Forebay, or forebay."""

    def __init__(self, engine, scheme, storage, reducers):
        self.engine, self.scheme = engine, scheme
        self.options = {"fs.defaultFS": f"{scheme}:///", "mapreduce.job.reduces": str(reducers), **(jobs.ON_LOCAL if scheme == "file" else {})}
        self.options |= {"fs.local.block.size": str(engine.extent)} if scheme == "file" else {}
        self.options |= {"fs.forebay.locations": "storage"} if storage else {}

    def run(self, name, *command, **options):
        command = [str(part) for part in command]
        return self.engine.run(name, command, self.options | options, jar=self.scheme != "file")

    def terasort(self, data, output):
        return [self.run("terasort", f"{jobs.EXAMPLES} terasort", self.path(data), self.path(output))], {}

    def secondary_sort(self, data, output):
        job = self.run("secondarysort", f"{jobs.EXAMPLES} secondarysort", self.path(data), self.path(output))
        return [job], {name: job.counters[name] for name in ("REDUCE_INPUT_GROUPS", "REDUCE_INPUT_RECORDS", "REDUCE_OUTPUT_RECORDS")}

    def dfsio(self, files, file_bytes):
        """Writes files, and reads them when nothing of them is in memory."""
        done, megabytes = [], file_bytes >> 20
        for name in ("-write", "-read"):
            command = [jobs.DFSIO, name, "-nrFiles", files, "-size", f"{megabytes}MB", "-resFile", self.engine.place / "dfsio.log"]
            done.append(self.run(f"dfsio{name}", *command, **{"test.build.data": str(self.engine.pfs / "yarn/dfsio")}))
            jobs.check_dfsio(name, done[-1].said, files * megabytes << 20)
            self.engine.forget()
        return done, {"files": files, "megabytes": megabytes}

    def path(self, data):
        return f"{self.scheme}://{data}"


@contextlib.contextmanager
def failures():
    """A job that fails costs its own run, and not the experiment."""
    try:
        yield
    except (yarn.JobError, jobs.Invalid) as error:
        raise lab.LabError(str(error)) from error


def measured(engine, done):
    """Times and places of the jobs' maps, from the history server; the time of jobs one after the other is added."""
    tasks = [[task for task in engine.ask(f"{job.id}/tasks")["tasks"]["task"] if task["type"] == "MAP"] for job in done]
    maps = sum(map(len, tasks))
    return {
        "job_s": sum(job.seconds for job in done),
        "map_s": sum(max(task["finishTime"] for task in of) - min(task["startTime"] for task in of) for of in tasks) / 1e3,
        "tasks": maps,
        "local": sum(job.counters.get("DATA_LOCAL_MAPS", 0) for job in done) / maps,
    }
