"""The lab's cluster as Spark's part of the demonstration uses it: a real PFS behind shaped links, an agent and a Spark worker on each node.

Has the same methods as loopback.Cluster. All of it is done by `forebay lab`, which needs root; see docs/lab.md.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import lab
import loopback

# Beside a lab that somebody else has up.
NAME = "waves"
DRIVER = "c1"
UP_S = 600
# One status of the lab asks the kernel for much, and takes some tens of milliseconds.
SAMPLE_S = 0.3
# A client of sharded GlusterFS that has written goes on seeing times that the others do not: to
# each of them the files would be others than to this node. So the one that writes ends with it.
THROUGH_A_CLIENT = """mount=$(mktemp -d) && glusterfs -f "$1/servers/client.vol" -l /dev/null "$mount" && cp -r "$2" "$mount/"
code=$?
umount "$mount" && rmdir "$mount"
exit $code
"""

# Has a node's kernel forget its copy of all files.
DROP_PAGES = """find "$FOREBAY_LAB_PFS" -type f -exec sh -c '
    for file; do dd if="$file" iflag=nocache count=0 status=none || exit 1; done
' sh {} +"""
# Of MooseFS.
CHUNK_BYTES = 64 << 20
# Prints what a brick of sharded GlusterFS has: the files of a directory with their ids, and all
# other pieces. A file with the sticky bit only names the brick that has the file.
PIECES = """import json, os, stat, sys, uuid
brick, name = sys.argv[1:]
def own(directory):
    if not os.path.isdir(directory):
        return []
    return [one for one in os.scandir(directory) if one.is_file() and not one.stat().st_mode & stat.S_ISVTX]
files = {one.name: str(uuid.UUID(bytes=os.getxattr(one.path, "trusted.gfid"))) for one in own(os.path.join(brick, name))}
print(json.dumps({"files": files, "shards": [one.name for one in own(os.path.join(brick, ".shard"))]}))
"""


class Cluster:
    name = NAME
    with_spark = True
    sample_s = SAMPLE_S
    # As in loopback.Cluster.
    warm = None

    def __init__(self, program, venv, jars, place, nodes, rate, extent, capacity_bytes, pfs="moosefs", stripe=None):
        self.program, self.venv, self.jars, self.place = str(program), venv, jars, place
        self.options = ["--nodes", str(nodes), "--rate", rate, "--extent-size", str(extent), "--capacity", str(capacity_bytes), "--pfs", pfs]
        self.options += ["--stripe", f"{stripe >> 20}MiB"] if stripe else []
        # Bytes of the pieces into which files are divided, if they are.
        self.stripe = stripe
        self.extent = extent
        # Workers of a lab have one core each unless they are told otherwise.
        self.slots = nodes
        self.stack = contextlib.ExitStack()
        self.mount = None
        # Below it are the records of the coordinator's and the agents' decisions.
        self.decisions = None
        self.jobs_run = 0
        # Sizes of the files of each directory that was brought, by their paths there.
        self.brought = {}

    def __enter__(self):
        if self.lab("status").returncode == 0:
            raise lab.LabError(f"the lab {self.name} is up already; `forebay lab down --name {self.name}` ends it")
        try:
            self.stack.callback(self.lab, "down")
            spark = ["--spark", "--spark-venv", str(self.venv)] if self.with_spark else []
            self.lab("up", *self.options, *spark, "--install", check=True)
            status = self.status()
            self.mount = Path(status["mount"])
            self.decisions = Path(status["dir"]) / "nodes"
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *_):
        self.stack.close()

    def lab(self, command, *arguments, check=False):
        environment = {**os.environ, "FOREBAY_LAB": self.name}
        line = [self.program, "--json", "lab", command, *arguments]
        try:
            done = subprocess.run(line, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=UP_S, check=False)
        except subprocess.TimeoutExpired:
            raise lab.LabError(f"`forebay lab {command}` has not ended after {UP_S} s") from None
        if check and done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise lab.LabError(f"`forebay lab {command}` failed: {said[-1] if said else done.returncode}")
        return done

    def popen(self, node, *command, **options):
        """A program on a node, beside what else runs."""
        line = [self.program, "lab", "run", "--node", node, "--", *map(str, command)]
        return subprocess.Popen(line, env={**os.environ, "FOREBAY_LAB": self.name}, stdin=subprocess.DEVNULL, start_new_session=True, **options)

    def run(self, *command, check=False):
        # On a real cluster the driver has a core of its own.
        return self.lab("run", "--free", "--node", DRIVER, "--", *command, check=check)

    def status(self):
        return json.loads(self.lab("status", check=True).stdout)

    def bring(self, directory):
        """Copies a directory of the host onto the PFS; where it is then."""
        if self.stripe:
            self.run("sh", "-c", THROUGH_A_CLIENT, "sh", self.status()["dir"], str(directory), check=True)
        else:
            self.run("cp", "-r", str(directory), str(self.mount), check=True)
        data = self.mount / directory.name
        # The PFS is mounted on the lab's nodes only.
        self.brought[data] = {str(data / path.name): path.stat().st_size for path in sorted(Path(directory).iterdir())}
        return data

    def layout(self, data):
        """The number of the server of each stripe of each file of `data`, by name; None if the PFS does not tell."""
        sizes = self.brought.get(data, {})
        if not sizes:
            return None
        if not self.stripe:
            done = self.run("mfsfileinfo", *sizes)
            return chunks(sizes, done.stdout) if done.returncode == 0 else None
        status = self.status()
        servers = [node["name"] for node in status["nodes"] if node["role"] == "server"]
        brick = "{}/servers/{}/store/brick"
        found = [
            self.lab("run", "--node", server, "--", sys.executable, "-c", PIECES, brick.format(status["dir"], server), data.name) for server in servers
        ]
        if any(done.returncode for done in found):
            return None
        try:
            return pieces(sizes, [json.loads(done.stdout) for done in found], self.stripe)
        except (ValueError, KeyError):
            return None

    def set_rate(self, mb_per_s):
        """Of each server's link."""
        self.lab("links", f"{mb_per_s:.3f}MB/s", check=True)

    def forget(self):
        self.lab("run", "--all", "--", self.program, "evict", "--all", check=True)
        self.lab("run", "--all", "--", "sh", "-c", DROP_PAGES, check=True)

    def served_bytes(self):
        done = self.lab("status")
        return json.loads(done.stdout)["servers_sent_bytes"] if done.returncode == 0 else None

    def jobs(self):
        done = self.run(self.program, "--json", "jobs")
        return json.loads(done.stdout) if done.returncode == 0 else []

    def submit(self, workload, data, forebay=None, reducers=2, conf=None):
        self.jobs_run += 1
        report = self.place / f"report-{self.jobs_run}.json"
        options = {"spark.driver.memory": "512m", "spark.executor.memory": "768m", "spark.ui.enabled": "false", "spark.locality.wait": "1s"}
        options |= loopback.start_together(self.slots)
        command = ["spark-submit", "--class", "io.forebay.workloads.Main", *loopback.conf_arguments(options, self.jars, self.extent, forebay, conf)]
        command += [self.jars.workloads, workload, f"file://{data}", str(reducers), str(report), *loopback.warm_argument(self.warm)]
        done = self.run(*command)
        report.with_suffix(".log").write_text(done.stdout + done.stderr)
        if done.returncode or not report.exists():
            tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
            raise lab.LabError(f"the job failed with exit code {done.returncode}: {tail}")
        return json.loads(report.read_text())


def chunks(sizes, told):
    """Of each file (path to bytes): the number of the server of each chunk, from what `mfsfileinfo` says; None if it does not say where
    each is."""
    servers, name = {}, None
    for text in told.splitlines():
        if text.rstrip(":") in sizes and text.endswith(":"):
            name = text.rstrip(":")
        elif name and (found := re.match(r"\s+copy 1: ([\d.]+):", text)):
            servers.setdefault(name, []).append(found[1])
    if any(len(servers.get(name, [])) != -(-size // CHUNK_BYTES) for name, size in sizes.items()):
        return None
    numbers = {server: number for number, server in enumerate(sorted({one for some in servers.values() for one in some}))}
    return [[numbers[server] for server in servers[name]] for name in sorted(sizes)]


def pieces(sizes, told, piece_bytes):
    """As `chunks`, of GlusterFS with shards, from what PIECES has printed on each server."""
    ids = {name: identity for server in told for name, identity in server["files"].items()}
    on = {}
    for number, server in enumerate(told):
        on.update({(identity, 0): number for identity in server["files"].values()})
        for shard in server["shards"]:
            identity, _, piece = shard.rpartition(".")
            on[identity, int(piece)] = number
    named = [(ids.get(Path(path).name), sizes[path]) for path in sorted(sizes)]
    layout = [[on.get((identity, piece)) for piece in range(-(-size // piece_bytes))] for identity, size in named]
    return None if any(None in servers for servers in layout) else layout
