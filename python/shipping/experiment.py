"""The runs: each workload in each way, cold, beside a client of the file system whose bandwidth is what isolation is judged by."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import lab
import labcluster
import loopback

NAME = "ship"
CLIENT = "w1"
WORKLOADS = ["wordcount", "sort", "filter-sql"]
JOB_S = 900


@dataclass
class Way:
    """How tasks run. `planner`: None for ways on storage servers."""

    planner: str | None = None
    # Variables of `forebay ship`.
    ship: dict | None = None


# As many cores as a compute node has, and a weight with which a JVM starts where all compete.
LIMITED = {"FOREBAY_SHIP_CORES": "0.4", "FOREBAY_SHIP_CPU_WEIGHT": "100"}
UNISOLATED = {**LIMITED, "FOREBAY_SHIP_FLOOR": "100%"}
WAYS = {
    "naive": Way(planner="naive-bb"),
    "tier": Way(planner="no-action"),
    "shipped, no limits": Way(ship=UNISOLATED),
    "shipped": Way(ship=LIMITED),
    "shipped, tier shuffle": Way(ship={**LIMITED, "FOREBAY_SHIP_SHUFFLE": "tier"}),
}


@dataclass
class Sizes:
    servers: int = 4
    nodes: int = 4
    rate: float = 80.0
    # Of each server and of each compute node.
    cpus: float = 0.4
    files: int = 16
    file_bytes: int = 128 << 20
    client_bytes: int = 256 << 20
    # Alone, for comparison.
    client_s: int = 30


QUICK = {"files": 4, "file_bytes": 64 << 20, "client_bytes": 64 << 20, "client_s": 8}

# Reads a file of the file system again and again, past the page cache; each pass is a line.
READER = """import json, os, sys, time
path, until = sys.argv[1], sys.argv[2]
while not os.path.exists(until):
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    began, done = time.time(), 0
    while data := os.pread(file, 1 << 20, done):
        done += len(data)
        if os.path.exists(until):
            break
    print(json.dumps({"began": began, "ended": time.time(), "bytes": done}), flush=True)
    os.close(file)
"""


class Cluster(labcluster.Cluster):
    name = NAME

    def __init__(self, program, target, place, sizes):
        jars = loopback.Jars(str(target / "forebay-spark.jar"), str(target / "java/workloads/forebay-workloads.jar"))
        venv = next(target.glob("spark-3*"))
        self.sizes, self.home = sizes, next(venv.glob("lib/python3*/site-packages/pyspark"))
        extent = labcluster.CHUNK_BYTES
        super().__init__(program, venv, jars, place, sizes.nodes, f"{sizes.rate:g}MB/s", extent, 2 * sizes.files * sizes.file_bytes // sizes.nodes + (128 << 20))
        self.options += ["--servers", str(sizes.servers), "--writers", "1", "--ship", "--spark-memory", "768MiB"]
        self.options += ["--cpus", f"{sizes.cpus:g}", "--writer-cpus", f"{sizes.cpus:g}", "--store", str(4 * sizes.files * sizes.file_bytes + (2 << 30))]

    def ship(self, workload, data, variables):
        """Runs a workload on the storage servers; its report, and what the controllers did."""
        self.jobs_run += 1
        result, record = (self.place / f"{kind}-{self.jobs_run}.json" for kind in ("report", "limits"))
        own = {"SPARK_HOME": str(self.home), "FOREBAY_SHIP_JAR": self.jars.forebay, "FOREBAY_SHIP_ADDRESS": labcluster.DRIVER}
        line = [self.program, "lab", "run", "--free", "--node", labcluster.DRIVER, "--", self.program, "ship", "--config", f"{self.mount.parent}/node/forebay.toml"]
        line += ["--record", str(record), "--", str(self.home / "bin/spark-submit"), "--driver-memory", "512m", "--conf", "spark.ui.enabled=false"]
        line += ["--class", "io.forebay.workloads.Main", self.jars.workloads, workload, f"file://{data}", str(self.sizes.servers), str(result)]
        log = result.with_suffix(".log")
        with open(log, "wb") as out:
            done = subprocess.run(line, env={**os.environ, "FOREBAY_LAB": self.name, **own, **variables}, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=JOB_S, check=False)
        if done.returncode or not result.exists():
            raise lab.LabError(f"the shipped job failed with exit code {done.returncode}: {log.read_text(errors='replace')[-2000:]}")
        events = [json.loads(line) for line in record.read_text().splitlines()]
        return json.loads(result.read_text()), [event for event in events if event.get("event") == "limit"]

    def drop_pages(self):
        """Also those of the storage servers, which mount the file system too."""
        self.forget()
        for number in range(self.sizes.servers):
            self.lab("run", "--node", f"pfs-s{number + 1}", "--", "sh", "-c", labcluster.DROP_PAGES, check=True)


class Client:
    """A reader on a node of its own."""

    def __init__(self, cluster, stem):
        self.stop_file, self.log = Path(f"{stem}.stop"), Path(f"{stem}.client")
        self.stop_file.unlink(missing_ok=True)
        command = [cluster.program, "lab", "run", "--node", CLIENT, "--", sys.executable, "-c", READER, str(cluster.mount / "client"), str(self.stop_file)]
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(command, env={**os.environ, "FOREBAY_LAB": cluster.name}, stdin=subprocess.DEVNULL, stdout=out, start_new_session=True)

    def stop(self):
        """Its bandwidth in bytes a second."""
        self.stop_file.touch()
        try:
            self.process.wait(60)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        passes = [json.loads(line) for line in self.log.read_text().splitlines()]
        return sum(one["bytes"] for one in passes) / max(1e-9, passes[-1]["ended"] - passes[0]["began"]) if passes else 0.0


def calls(cluster):
    """Read and write calls of the storage daemons so far."""
    total = 0
    for node in cluster.status()["nodes"]:
        for service in node["services"]:
            if service["name"].startswith("mfschunkserver"):
                fields = dict(line.split(": ") for line in Path(f"/proc/{service['pid']}/io").read_text().splitlines())
                total += int(fields["syscr"]) + int(fields["syscw"])
    return total


def measure(cluster, way, workload, data, repeat, calls_per_byte):
    """One cold run beside the client; `calls_per_byte`: what the storage daemons call for a byte of the client."""
    cluster.drop_pages()
    cluster.lab("mark", check=True)
    before, limits = calls(cluster), []
    client = Client(cluster, cluster.place / f"{workload}-{way}-{repeat}".replace(" ", "-"))
    began = time.time()
    try:
        if WAYS[way].ship is None:
            done = cluster.submit(workload, data, WAYS[way].planner, reducers=cluster.sizes.servers)
        else:
            done, limits = cluster.ship(workload, data, WAYS[way].ship)
    finally:
        bandwidth = client.stop()
    nodes = {node["name"]: node["since_mark"] for node in cluster.status()["nodes"]}
    servers = [traffic for name, traffic in nodes.items() if name.startswith("pfs-s")]
    # The client's own bytes are not the job's.
    client_bytes = nodes[CLIENT]["received_bytes"]
    sent, received = sum(one["sent_bytes"] for one in servers) - client_bytes, sum(one["received_bytes"] for one in servers)
    maps = [task for task in done["tasks"] if task["ok"] and task["read_bytes"]]
    return {
        "way": way,
        "workload": workload,
        "repeat": repeat,
        "wall_s": time.time() - began,
        "job_s": (done["ended_ms"] - done["began_ms"]) / 1e3,
        "map_s": (max(task["ended_ms"] for task in maps) - min(task["began_ms"] for task in maps)) / 1e3,
        "tasks": len(maps),
        "local": sum(task["locality"] == "NODE_LOCAL" for task in maps) / len(maps),
        "result": done["result"],
        "network_bytes": sum(node["sent_bytes"] for node in nodes.values()) - client_bytes,
        # Of each server, in the direction that carries more.
        "server_bytes": max(sent, received) / len(servers),
        "daemon_calls": max(0, calls(cluster) - before - calls_per_byte * client_bytes),
        "client_bytes_per_s": bandwidth,
        "shares": [event["share"] for event in limits],
    }


def alone(cluster):
    """The client without a job: its bandwidth, and the calls of the storage daemons for each of its bytes."""
    cluster.drop_pages()
    cluster.lab("mark", check=True)
    before = calls(cluster)
    client = Client(cluster, cluster.place / "alone")
    time.sleep(cluster.sizes.client_s)
    bandwidth = client.stop()
    received = next(node for node in cluster.status()["nodes"] if node["name"] == CLIENT)["since_mark"]["received_bytes"]
    return {"bytes_per_s": bandwidth, "calls_per_byte": (calls(cluster) - before) / max(1, received)}


def run(args, program, target, sizes):
    """All runs, in interleaved order, and the report."""
    # These need numpy and matplotlib, which the command line does not.
    import report
    import text

    args.output.mkdir(parents=True, exist_ok=True)
    results = args.output / "shipping.json"
    key = asdict(sizes)
    known = json.loads(results.read_text()) if results.exists() and not args.fresh else {}
    found = known if known.get("sizes") == key else {"sizes": key, "alone": [], "runs": {}}
    data = text.write(args.output / "input", sizes.files * sizes.file_bytes, sizes.file_bytes, lambda _: None)
    wanted = [(r, w, y) for r in range(args.repeats) for w in args.workload or WORKLOADS for y in args.way or WAYS]
    missing = [one for one in wanted if "/".join(map(str, one)) not in found["runs"]]
    failed = []
    try:
        if missing:
            with Cluster(program, target, args.output, sizes) as cluster:
                placed = cluster.bring(data)
                cluster.run("sh", "-c", f"head -c {sizes.client_bytes} /dev/urandom > {cluster.mount}/client", check=True)
                for repeat, workload, way in missing:
                    print(f"experiment: {workload}, {way}, run {repeat + 1} of {args.repeats}", flush=True)
                    found["alone"].append(alone(cluster))
                    try:
                        found["runs"][f"{repeat}/{workload}/{way}"] = measure(cluster, way, workload, placed, repeat, found["alone"][-1]["calls_per_byte"])
                    except (lab.LabError, subprocess.TimeoutExpired) as error:
                        failed.append(f"{workload}, {way}, run {repeat + 1}: {error}")
                    results.write_text(json.dumps(found, indent=1))
    except lab.LabError as error:
        failed.append(str(error))
    for failure in failed:
        print(f"experiment: {failure}", file=sys.stderr)
    there = [found["runs"][name] for one in wanted if (name := "/".join(map(str, one))) in found["runs"]]
    if not there:
        return 1
    problems = report.write(args.output, found, there) + failed
    print((args.output / "shipping.md").read_text())
    for problem in problems:
        print(f"experiment: {problem}", file=sys.stderr)
    return 1 if failed or problems and args.quick else 0
