"""Where the queries of a mode run: in one Spark process over the slow file system, or in the lab.

A setup gives `master` and `tables` (where Spark reads), `settings` for Spark and `plugin_settings`
for the plug-in, the command line before an application's own (`start`) with its `environment`, and
counters. `resting_bytes_per_s` is the most that its PFS sends when nobody reads.
"""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import lab
import labcluster
import loopback

SERVERS = 4
PLUGIN = "io.forebay.spark.ForebayPlugin"
# Counters of an agent: why it fetched a page.
PAGES = ("planned", "demanded", "ahead")
COMMAND_S = 60
# In the lab: the unit of placement, and a block to Spark.
EXTENT_BYTES = 8 << 20
# Links count the messages of the file system, too. MooseFS sends 1.2 kB/s when nobody has ever
# read, and 10 kB/s over the connections of clients that have.
LAB_RESTING_BYTES_PER_S = 20_000
# MooseFS reports the time of a write up to a second late.
LAB_SETTLES_S = 2
# The least and, in the bytes of the tables, what the servers have room for.
LAB_STORE_BYTES, LAB_STORE_SHARE = 2 << 30, 2
# Of this machine's cores, what the nodes have; the rest is for drivers and servers.
LAB_CORES_SHARE = 0.8


class SlowPfs:
    """The slow file system and an agent, both for one mode, and Spark in one process."""

    resting_bytes_per_s = 0
    start = ()

    def __init__(self, config, stack):
        place = Path(tempfile.mkdtemp(prefix="forebay-tpch-"))
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        rate = f"{config.rate / SERVERS:.1f}MB/s"
        self.program, self.master = str(config.program), f"local[{config.cores}]"
        self.tables = stack.enter_context(lab.slow_pfs(config.program, config.tables, place / "pfs", SERVERS, rate, ["--read-ahead", config.read_ahead]))
        self.socket = stack.enter_context(lab.agent(config.program, self.tables, place / "state", config.capacity_bytes))
        self.settings, self.environment = {}, {"SPARK_LOCAL_IP": "127.0.0.1"}
        # `spark.jars` would come after the driver has looked for its plug-ins.
        self.plugin_settings = {"spark.driver.extraClassPath": str(config.jar), "spark.plugins": PLUGIN, "spark.hadoop.fs.forebay.socket": str(self.socket)}

    def forget(self):
        """Nothing of the tables is in memory after it."""
        self.forebay("evict", "--all")
        try:
            lab.forget_page_cache(files(self.tables))
        except OSError as error:
            raise lab.LabError(f"the page cache cannot be emptied: {error}") from None

    def keep(self):
        """All tables are in the kernel's page cache after it, as long as the returned files are
        open: this PFS drops the pages of a file that nobody has open.
        """
        kept = [open(path, "rb") for path in files(self.tables)]
        for file in kept:
            while file.read(1 << 20):
                pass
        return kept

    def served_bytes(self):
        served = lab.served_bytes(self.tables)
        if served is None:
            raise lab.LabError("the slow file system has ended")
        return served

    def fetched_pages(self):
        """Pages that the agent has fetched so far, by why."""
        return pages([self.forebay("status", "--json")])

    def forebay(self, *arguments):
        try:
            done = subprocess.run([self.program, *arguments, "--socket", str(self.socket)], capture_output=True, text=True, timeout=COMMAND_S, check=False)
        except subprocess.TimeoutExpired:
            raise lab.LabError(f"`forebay {arguments[0]}` has not ended after {COMMAND_S} s") from None
        if done.returncode:
            raise lab.LabError(f"`forebay {arguments[0]}` failed: {done.stderr.strip()}")
        return done.stdout


class Cluster(labcluster.Cluster):
    """The lab: each node has an agent, and an executor of each mode."""

    name = "tpch"

    def __init__(self, config):
        venv = config.python.parents[1]
        super().__init__(config.program, venv, None, config.directory, config.nodes, "unlimited", EXTENT_BYTES, config.capacity_bytes // config.nodes, config.lab)
        modes = len(config.modes)
        cpus = min(1, LAB_CORES_SHARE * os.cpu_count() / config.nodes)
        store_bytes = max(LAB_STORE_BYTES, LAB_STORE_SHARE * size_of(config.tables))
        self.options += ["--servers", str(SERVERS), "--cpus", f"{cpus:.2f}", "--store", str(store_bytes)]
        self.options += ["--spark-version", config.spark, "--spark-cores", str(modes), "--spark-memory", f"{modes}GiB"]


class Lab:
    """The lab's nodes for one mode. All modes share the cluster, its file system and its agents."""

    resting_bytes_per_s = LAB_RESTING_BYTES_PER_S

    def __init__(self, cluster, tables, jar):
        status = cluster.status()
        self.cluster, self.tables, self.master = cluster, tables, status["spark_master"]
        self.nodes = [node["name"] for node in status["nodes"] if node["role"] == "compute"]
        self.start = (cluster.program, "lab", "run", "--free", "--node", labcluster.DRIVER, "--")
        self.environment = {"FOREBAY_LAB": cluster.name}
        self.settings = {
            **loopback.start_together(len(self.nodes)),
            "spark.executor.cores": "1",
            "spark.executor.memory": "768m",
            "spark.locality.wait": "1s",
            "spark.hadoop.fs.local.block.size": str(EXTENT_BYTES),
        }
        self.plugin_settings = {"spark.jars": str(jar), "spark.plugins": PLUGIN}

    def forget(self):
        self.cluster.forget()

    def served_bytes(self):
        return json.loads(self.cluster.lab("traffic", check=True).stdout)["servers_sent_bytes"]

    def fetched_pages(self):
        """Pages that all agents have fetched so far, also from each other, by why."""
        return pages([self.cluster.lab("run", "--node", node, "--", self.cluster.program, "status", "--json", check=True).stdout for node in self.nodes])


@contextlib.contextmanager
def of_all(config, say):
    """Setups by mode, as long as they are up."""
    with contextlib.ExitStack() as stack:
        if not config.lab:
            yield {mode: SlowPfs(config, stack) for mode in config.modes}
            return
        say(f"the lab starts: {config.nodes} nodes, {SERVERS} servers of {config.lab} ...")
        cluster = stack.enter_context(Cluster(config))
        stack.callback(loopback.keep_logs, Path(cluster.status()["dir"]), config.directory / "lab-logs")
        say(f"{size_of(config.tables) / 1e6:.0f} MB of tables are copied to it ...")
        tables = cluster.bring(config.tables)
        time.sleep(LAB_SETTLES_S)
        cluster.set_rate(config.rate / SERVERS)
        yield {mode: Lab(cluster, tables, config.jar) for mode in config.modes}


def pages(statuses):
    counters = [dict(json.loads(status)["counters"]) for status in statuses]
    return {kind: sum(one[f"pages_{kind}_total"] for one in counters) for kind in PAGES}


def files(tables):
    return [path for path in Path(tables).glob("*/*") if path.is_file()]


def size_of(tables):
    return sum(path.stat().st_size for path in files(tables))
