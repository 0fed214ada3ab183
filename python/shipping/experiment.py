"""The runs: each workload in each way, cold, beside a client of the file system whose bandwidth is what isolation is judged by."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import client
import lab
import labcluster
import loopback
import mapreduce

HERE = Path(__file__).resolve().parent
NAME = "ship"
CLIENT = "w1"
# The input of each; TestDFSIO writes its own files. Those whose name begins with `mr-` are
# Hadoop's MapReduce on YARN.
WORKLOADS = {
    "wordcount": "text",
    "sort": "text",
    "filter-sql": "text",
    "terasort": "tera",
    "secondary-sort": "pairs",
    "join": "tables",
    "mr-terasort": "tera",
    "mr-secondary-sort": "pairs",
    "mr-dfsio": None,
}
# Of the output of a job.
SORTED = "-sorted"
JOB_S = 900


@dataclass
class Way:
    """How tasks run. `planner`: None for ways on storage servers."""

    planner: str | None = None
    # Variables of `forebay ship`.
    ship: dict | None = None
    # The scheme of the paths of MapReduce, which runs on storage servers without limits, or not at
    # all.
    scheme: str | None = None


# As many cores as a compute node has, and a weight with which a JVM starts where all compete.
LIMITED = {"FOREBAY_SHIP_CORES": "0.4", "FOREBAY_SHIP_CPU_WEIGHT": "100"}
# As without control groups: all cores of the machine, on equal terms with the storage daemons.
UNISOLATED = {**LIMITED, "FOREBAY_SHIP_CORES": str(float(os.cpu_count())), "FOREBAY_SHIP_FLOOR": "100%"}
WAYS = {
    "naive": Way(planner="naive-bb", scheme="file"),
    "tier": Way(planner="no-action", scheme="forebay"),
    "shipped, no limits": Way(ship=UNISOLATED, scheme="forebay"),
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
    # Alone, for comparison, with each pattern.
    client_s: int = 15
    # The patterns of the client take turns.
    slice_s: int = 5


QUICK = {"files": 4, "file_bytes": 64 << 20, "client_bytes": 64 << 20, "client_s": 8, "slice_s": 3}


class Cluster(labcluster.Cluster):
    name = NAME

    def __init__(self, program, target, place, sizes):
        jars = loopback.Jars(str(target / "forebay-spark.jar"), str(target / "java/workloads/forebay-workloads.jar"))
        venv = next(target.glob("spark-3*"))
        self.hadoop = target / "java/mapreduce/lib"
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

    def map_reduce(self, workload, data, way):
        """Runs a workload on YARN; as `of_spark`."""
        hosts = [f"pfs-s{number + 1}" for number in range(self.sizes.servers)] if way.ship else [f"c{number + 1}" for number in range(self.sizes.nodes)]
        with mapreduce.failures(), mapreduce.Yarn(self, hosts, self.hadoop) as engine:
            jobs = mapreduce.Jobs(engine, way.scheme, way.ship is not None, self.sizes.servers)
            if workload == "mr-dfsio":
                done, result = jobs.dfsio(self.sizes.files, self.sizes.file_bytes)
                # Its maps are placed by where their small control files are, which is no matter.
                return mapreduce.measured(engine, done) | {"result": result, "tasks": 0}
            done, result = (jobs.terasort if workload == "mr-terasort" else jobs.secondary_sort)(data, f"{data}{SORTED}")
            return mapreduce.measured(engine, done) | {"result": result}

    def validate(self, data):
        """Records and checksum of what TeraSort has written."""
        done = self.run(sys.executable, str(HERE / "inputs.py"), "validate", f"{data}{SORTED}")
        if done.returncode:
            raise lab.LabError(f"the output of TeraSort is wrong: {done.stderr.strip().splitlines()[-1:]}")
        return json.loads(done.stdout)

    def drop_pages(self):
        """Also those of the storage servers, which mount the file system too."""
        self.forget()
        for number in range(self.sizes.servers):
            self.lab("run", "--node", f"pfs-s{number + 1}", "--", "sh", "-c", labcluster.DROP_PAGES, check=True)


class Client:
    """A client on a node of its own, with all of its patterns in turn or with one."""

    def __init__(self, cluster, stem, kind, patterns=None):
        self.kind, self.stop_file, self.log = kind, Path(f"{stem}.stop"), Path(f"{stem}.client")
        self.stop_file.unlink(missing_ok=True)
        arguments = [self.stop_file, cluster.sizes.slice_s, kind, cluster.mount / "client", cluster.sizes.client_bytes]
        arguments += patterns or client.CLIENTS[kind].patterns
        with open(self.log, "wb") as out, open(self.log.with_suffix(".errors"), "wb") as errors:
            self.process = cluster.popen(CLIENT, sys.executable, HERE / "client.py", *arguments, stdout=out, stderr=errors)

    def stop(self):
        """What it got, by pattern."""
        self.stop_file.touch()
        try:
            if self.process.wait(60):
                raise lab.LabError(f"the client failed: {self.log.with_suffix('.errors').read_text().strip()[-500:]}")
        except subprocess.TimeoutExpired:
            raise lab.LabError("the client does not stop") from None
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        return client.summary(self.kind, [json.loads(line) for line in self.log.read_text().splitlines()])


def daemons(cluster):
    """The storage daemons that run: process, and command."""
    pids = subprocess.run(["pgrep", "-x", "mfschunkserver"], capture_output=True, text=True, check=False).stdout.split()
    commands = {int(pid): Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1] for pid in pids}
    own = f"{cluster.status()['dir']}/servers/"
    return {pid: command for pid, command in commands.items() if own in " ".join(command)}


class Restart:
    """Kills the storage daemon of a server a while after an application was submitted, and starts it again."""

    SERVER, AFTER_S, AWAY_S = "pfs-s2", 20, 5

    def __init__(self, cluster):
        self.cluster, self.problem, self.ended = cluster, "the application ended before the storage daemon was killed", threading.Event()
        self.log = cluster.place / "restarted.log"
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        if self.ended.wait(self.AFTER_S):
            return
        try:
            pid, command = next(one for one in daemons(self.cluster).items() if f"/{self.SERVER}/" in " ".join(one[1]))
            os.kill(pid, signal.SIGKILL)
            time.sleep(self.AWAY_S)
            line = [self.cluster.program, "lab", "run", "--free", "--node", self.SERVER, "--", *command]
            with open(self.log, "ab") as log:
                subprocess.Popen(line, env={**os.environ, "FOREBAY_LAB": self.cluster.name}, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            self.problem = None
        except (OSError, StopIteration, lab.LabError) as error:
            self.problem = f"the storage daemon could not be killed and started again: {error!r}"

    def end(self):
        """Why it did not happen, if so."""
        self.ended.set()
        self.thread.join()
        if self.problem is None and len(daemons(self.cluster)) < self.cluster.sizes.servers:
            return f"the storage daemon does not run again; see {self.log}"
        return self.problem


def calls(cluster):
    """Read and write calls of the storage daemons so far."""
    total = 0
    for pid in daemons(cluster):
        fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        total += int(fields["syscr"]) + int(fields["syscw"])
    return total


def of_spark(report):
    """Times and places of the tasks that read the input, and the result."""
    maps = [task for task in report["tasks"] if task["ok"] and task["read_bytes"]]
    return {
        "job_s": (report["ended_ms"] - report["began_ms"]) / 1e3,
        "map_s": (max(task["ended_ms"] for task in maps) - min(task["began_ms"] for task in maps)) / 1e3,
        "tasks": len(maps),
        "local": sum(task["locality"] == "NODE_LOCAL" for task in maps) / len(maps),
        "result": report["result"],
    }


def measure(cluster, way, workload, data, repeat, kind, calls_per_byte, fault=None):
    """One cold run beside the client; `calls_per_byte`: what the storage daemons call for a byte of each of its patterns on its link."""
    if data:
        # Of the run before, which may have failed.
        cluster.run("rm", "-rf", f"{data}{SORTED}", check=True)
    cluster.drop_pages()
    cluster.lab("mark", check=True)
    before, limits = calls(cluster), []
    beside = Client(cluster, cluster.place / f"{workload}-{way}-{repeat}".replace(" ", "-"), kind)
    began = time.time()
    restart = Restart(cluster) if fault == "server" else None
    try:
        if workload.startswith("mr-"):
            done = cluster.map_reduce(workload, data, WAYS[way])
        elif WAYS[way].ship is None:
            done = of_spark(cluster.submit(workload, data, WAYS[way].planner, reducers=cluster.sizes.servers))
        else:
            done, limits = cluster.ship(workload, data, WAYS[way].ship)
            done = of_spark(done)
    finally:
        problem = restart and restart.end()
        got = beside.stop()
    if problem:
        raise lab.LabError(problem)
    wall_s, called = time.time() - began, calls(cluster) - before
    nodes = {node["name"]: node["since_mark"] for node in cluster.status()["nodes"]}
    # What the client sends and receives is not the job's.
    own = nodes.pop(CLIENT)
    servers = [traffic for name, traffic in nodes.items() if name.startswith("pfs-s")]
    sent, received = sum(one["sent_bytes"] for one in servers) - own["received_bytes"], sum(one["received_bytes"] for one in servers) - own["sent_bytes"]
    if workload.endswith("terasort"):
        done["result"] = cluster.validate(data)
    return {
        "way": way,
        "workload": workload,
        "repeat": repeat,
        "wall_s": wall_s,
        **done,
        "network_bytes": sum(node["sent_bytes"] for node in nodes.values()) - own["received_bytes"],
        # Of each server, in the direction that carries more.
        "server_bytes": max(sent, received) / len(servers),
        # A daemon that was killed took its count with it.
        "daemon_calls": None if restart else max(0, called - sum(calls_per_byte[pattern] * one["link_bytes"] for pattern, one in got.items())),
        "client": got,
        "shares": [event["share"] for event in limits],
    }


def alone(cluster, kind):
    """The client without a job: what it gets with each pattern, and the calls of the storage daemons for each byte on its link."""
    found = {"client": {}, "calls_per_byte": {}}
    cluster.drop_pages()
    for pattern in client.CLIENTS[kind].patterns:
        before = calls(cluster)
        one = Client(cluster, cluster.place / "alone", kind, [pattern])
        time.sleep(cluster.sizes.client_s)
        got = one.stop()
        if pattern not in got:
            raise lab.LabError(f"the client has no request in {cluster.sizes.client_s} s: {pattern}")
        found["client"] |= got
        found["calls_per_byte"][pattern] = (calls(cluster) - before) / got[pattern]["link_bytes"]
    return found


def ways(workload, chosen):
    """Those of the chosen ways in which a workload can run."""
    return [name for name in chosen or WAYS if WAYS[name].scheme or not workload.startswith("mr-")]


def make(kind, place, sizes, target):
    """An input on the local disk, and what a right result of it is, where that is known beforehand."""
    # These need numpy, which the command line does not.
    import inputs
    import text

    size = sizes.files * sizes.file_bytes
    if kind is None:
        return None, None
    if kind == "text":
        return text.write(place / "words", size, sizes.file_bytes, lambda _: None), None
    if kind == "tera":
        return inputs.tera(place, size)
    if kind == "pairs":
        return inputs.pairs(place, size, sizes.files), None
    return inputs.tables(place, size, next(target.glob("spark-3*/bin/tpchgen-cli"))), None


def run(args, program, target, sizes):
    """All runs, those of an input in interleaved order, and the report."""
    # It needs matplotlib, which the command line does not.
    import report

    args.output.mkdir(parents=True, exist_ok=True)
    results = args.output / "shipping.json"
    key = asdict(sizes) | {"client": args.client, "fault": args.fault, "ways": {name: asdict(way) for name, way in WAYS.items()}}
    known = json.loads(results.read_text()) if results.exists() and not args.fresh else {}
    found = known if known.get("sizes") == key else {"sizes": key, "alone": [], "runs": {}}
    workloads = args.workload or list(WORKLOADS)
    kinds = list(dict.fromkeys(WORKLOADS[workload] for workload in workloads))
    wanted = [(r, w, y) for kind in kinds for r in range(args.repeats) for w in workloads if WORKLOADS[w] == kind for y in ways(w, args.way)]
    missing = [one for one in wanted if "/".join(map(str, one)) not in found["runs"]]
    failed = []
    try:
        if missing:
            with Cluster(program, target, args.output, sizes) as cluster:
                placed, kind = None, ""
                if args.client == "btio":
                    cluster.run("cp", str(target / client.BTIO), str(cluster.mount), check=True)
                cluster.run("sh", "-c", f"head -c {sizes.client_bytes} /dev/urandom > {cluster.mount}/client", check=True)
                for repeat, workload, way in missing:
                    if kind != WORKLOADS[workload]:
                        # The servers have their data in memory, which is too small for all inputs.
                        if placed:
                            cluster.run("rm", "-rf", str(placed), check=True)
                        kind = WORKLOADS[workload]
                        data, right = make(kind, args.output / "input", sizes, target)
                        placed = data and cluster.bring(data)
                    print(f"experiment: {workload}, {way}, run {repeat + 1} of {args.repeats}", flush=True)
                    try:
                        found["alone"].append(alone(cluster, args.client))
                        done = measure(cluster, way, workload, placed, repeat, args.client, found["alone"][-1]["calls_per_byte"], args.fault)
                        if right and done["result"] != right:
                            raise lab.LabError(f"the result is {done['result']} instead of {right}")
                        found["runs"][f"{repeat}/{workload}/{way}"] = done
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
