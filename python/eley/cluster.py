"""The lab of the experiment: servers whose links share their bandwidth between both directions, nodes with Spark, and a node for the writer."""

import json
import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import lab
import labcluster

NAME = "eley"
WRITER = "w1"
SAVER = "w2"
TRAFFIC_S = 0.2
STOP_S = 120
# Ranks yield the core while they wait for each other. The launcher needs no network of its own, and
# none of its processes may outlive the lab.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "--mca", "btl", "vader,self"]
# Room for the writer's files and those of the profile: a deleted chunk keeps its room for minutes.
STORE_BYTES = 4 << 30
# Attempts to get the writer's files onto different servers.
PLACINGS = 8


class Cluster(labcluster.Cluster):
    name = NAME

    def __init__(self, tools, place, sizes, profile=None, agents=True):
        stripe = (4 << 20) if sizes.pfs == "glusterfs" else None
        capacity_bytes = 2 * sizes.input_bytes // sizes.nodes + (256 << 20)
        super().__init__(tools.forebay, tools.spark_venv, tools.jars, place, sizes.nodes, f"{sizes.rate:g}MB/s", sizes.extent_bytes, capacity_bytes, sizes.pfs, stripe)
        self.tools, self.sizes = tools, sizes
        self.options += ["--servers", str(sizes.servers), "--writers", str(sizes.writers), "--shared-links"]
        self.options += ["--cpus", f"{sizes.node_cpus:g}", "--writer-cpus", f"{sizes.writer_cpus:g}", "--server-cpus", f"{sizes.server_cpus:g}"]
        self.options += ["--store", str(STORE_BYTES + 2 * sizes.input_bytes)]
        self.options += ["--profile", str(profile)] if profile else []
        self.options += [] if agents else ["--no-agents"]
        # Without agents there is nothing for Spark to do.
        self.with_spark = agents

    def on(self, node, *command, check=True):
        return self.lab("run", "--node", node, "--", *map(str, command), check=check)

    def forget(self):
        super().forget()
        # Its agent owns some extents, too.
        self.on(WRITER, self.program, "evict", "--all")

    # The writer

    def place_files(self):
        """Has the writer make its files, on all servers alike; where they are, as the number of the server of each file, if the PFS says it."""
        for _ in range(PLACINGS):
            self.on(WRITER, "sh", "-c", f"rm -rf {self.checkpoint} && mkdir {self.checkpoint}")
            Writer(self, self.place / "placing", 0).wait()
            placed = self.writer_servers()
            if placed is None or max(map(placed.count, range(self.sizes.servers))) <= -(-len(placed) // self.sizes.servers):
                return placed
        raise lab.LabError(f"the writer's files are not spread evenly over the {self.sizes.servers} servers after {PLACINGS} attempts: {placed}")

    def writer_servers(self):
        if self.stripe or self.sizes.api != "posix":
            return None
        files = [str(self.checkpoint / f"rank-{rank}") for rank in range(self.sizes.ranks)]
        told = self.on(WRITER, "mfsfileinfo", *files).stdout
        found = [line.split("copy 1: ")[1].split(":")[0] for line in told.splitlines() if "copy 1: " in line]
        servers = sorted(set(found))
        return [servers.index(one) for one in found]

    @property
    def checkpoint(self):
        return self.mount / "checkpoint"

    @property
    def saved(self):
        return self.mount / "saved"

    def make_room(self):
        """For what the saver writes back: two sets, of which a user may have half of the capacity."""
        self.on(SAVER, "sh", "-c", f"rm -rf {self.saved} && mkdir {self.saved}")
        self.on(SAVER, self.program, "capacity", str(5 * self.sizes.phase_bytes + (64 << 20)))

    def counters(self, node):
        return json.loads(self.on(node, self.program, "--json", "status").stdout)["counters"]

    def dirty(self, node):
        return json.loads(self.on(node, self.program, "--json", "dirty").stdout)

    def plan_log(self):
        done = self.run(self.program, "--json", "plan", "log", "--last", "1024", check=True)
        return json.loads(done.stdout)


class Writer:
    """The HPC job. `job`: (its name, what a phase may take beyond its time alone, its deadline in ms); None if it declares nothing. `saves`: it
    writes new files in each phase, as sizes.Setting has it."""

    def __init__(self, cluster, stem, phases, job=None, saves=None):
        sizes, tools = cluster.sizes, cluster.tools
        self.report, self.stop_file, self.log = (Path(f"{stem}.{ending}") for ending in ("phases", "stop", "log"))
        for path in (self.report, self.stop_file):
            path.unlink(missing_ok=True)
        command = [*MPIRUN, "-n", sizes.ranks, tools.writer, "-b", sizes.rank_bytes >> 20, "-c", sizes.compute_s, "-n", phases, "-y", sizes.sync_transfers]
        command += ["-a", sizes.api, "-r", self.report, "-s", self.stop_file]
        if job and sizes.observed:
            command = [cluster.program, "run", "--job", job[0], "--qos", f"{100 * job[1]:g}%", "--no-intercept", "--", *command]
        elif job:
            command += ["-j", job[0], "-q", round(1000 * job[1]), "-d", job[2]]
        if saves == "back":
            command = [cluster.program, "run", "--write-back", cluster.saved, "--detach", "--", *command]
        node, directory = (SAVER, cluster.saved) if saves else (WRITER, cluster.checkpoint)
        command += ["-f"] if saves else []
        with open(self.log, "wb") as out:
            self.process = cluster.popen(node, *command, directory, stdout=out, stderr=out)

    def phases(self):
        if not self.report.exists():
            return []
        return [json.loads(line) for line in self.report.read_text().splitlines() if line.endswith("}")]

    def await_phases(self, count, seconds):
        deadline = time.monotonic() + seconds
        while len(self.phases()) < count:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise lab.LabError(f"the writer wrote {len(self.phases())} phases instead of {count}: {self.said()}")
            time.sleep(0.1)

    def said(self):
        return " / ".join(self.log.read_text(errors="replace").strip().splitlines()[-3:]) or "it said nothing"

    def stop(self):
        """Ends it after the phase under way; all of its phases."""
        self.stop_file.touch()
        return self.wait()

    def wait(self, seconds=STOP_S):
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.end()
            raise lab.LabError(f"the writer did not end within {seconds} s: {self.said()}") from None
        if code:
            raise lab.LabError(f"the writer failed with exit code {code}: {self.said()}")
        return self.phases()

    def end(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait()


class Traffic:
    """What the servers' links carry over time; `samples` at the end: (seconds since 1970, bytes sent, bytes received)."""

    def __init__(self, cluster, path):
        self.cluster, self.path = cluster, path

    def __enter__(self):
        environment = {**os.environ, "FOREBAY_LAB": self.cluster.name}
        with open(self.path, "wb") as out:
            command = [self.cluster.program, "lab", "traffic", "--every", f"{TRAFFIC_S:g}s"]
            self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    @property
    def samples(self):
        lines = [json.loads(line) for line in self.path.read_text().splitlines() if line.endswith("}")]
        return [(line["unix_ns"] / 1e9, line["servers_sent_bytes"], line["servers_received_bytes"]) for line in lines]


# Starts a worker of `forebay profile`: readers on the compute nodes, writers on theirs.
LAUNCHER = """#!/bin/sh
node=$1; shift
case "$3" in write) node={writer} ;; *) node=c$((node + 1)) ;; esac
exec {program} lab run --node "$node" -- "$@"
"""


def launcher(cluster, path):
    path.write_text(LAUNCHER.format(writer=WRITER, program=shlex.quote(cluster.program)))
    path.chmod(0o755)
    return path
