"""The lab's cluster as Spark's part of the demonstration uses it: a real PFS behind shaped links, an agent and a Spark worker on each node.

Has the same methods as loopback.Cluster. All of it is done by `forebay lab`, which needs root; see docs/lab.md.
"""

import contextlib
import json
import os
import re
import subprocess
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


class Cluster:
    sample_s = SAMPLE_S
    # As in loopback.Cluster.
    warm = None

    def __init__(self, program, venv, jars, place, nodes, rate, extent, capacity_bytes, pfs="moosefs", stripe=None):
        self.program, self.venv, self.jars, self.place = str(program), venv, jars, place
        self.options = ["--nodes", str(nodes), "--rate", rate, "--extent-size", str(extent), "--capacity", str(capacity_bytes), "--pfs", pfs]
        self.options += ["--stripe", stripe] if stripe else []
        self.stripe = stripe
        self.extent = extent
        # Workers of a lab have one core each unless they are told otherwise.
        self.slots = nodes
        self.stack = contextlib.ExitStack()
        self.mount = None
        # The coordinator's record of decisions.
        self.decisions = None
        self.jobs_run = 0
        # Sizes of the files of each directory that was brought, by their paths there.
        self.brought = {}

    def __enter__(self):
        try:
            self.stack.callback(self.lab, "down")
            self.lab("up", *self.options, "--spark", "--spark-venv", str(self.venv), "--install", check=True)
            status = self.status()
            self.mount = Path(status["mount"])
            self.decisions = Path(status["dir"]) / "nodes/head/decisions"
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *_):
        self.stack.close()

    def lab(self, command, *arguments, check=False):
        environment = {**os.environ, "FOREBAY_LAB": NAME}
        done = subprocess.run(
            [self.program, "--json", "lab", command, *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=UP_S, check=False
        )
        if check and done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise lab.LabError(f"`forebay lab {command}` failed: {said[-1] if said else done.returncode}")
        return done

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

    def busiest_bytes(self, data):
        """Bytes of the files of `data` on the server that has most of them; None if the PFS does not tell."""
        sizes = self.brought.get(data, {})
        done = self.run("mfsfileinfo", *sizes) if sizes and not self.stripe else None
        return busiest(sizes, done.stdout) if done and done.returncode == 0 else None

    def set_rate(self, mb_per_s):
        """Of each server's link."""
        self.lab("links", f"{mb_per_s:.3f}MB/s", check=True)

    def forget(self):
        drop = 'for f in "$FOREBAY_LAB_PFS"/*/*; do dd if="$f" iflag=nocache count=0 status=none; done'
        self.lab("run", "--all", "--", "sh", "-c", f"{self.program} evict --all; {drop}", check=True)

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


def busiest(sizes, told):
    """Of files of one chunk each (path to bytes): bytes on the server that has most, from what `mfsfileinfo` says of them; None if it does
    not say where each is."""
    servers, name = {}, None
    for text in told.splitlines():
        if text.rstrip(":") in sizes and text.endswith(":"):
            name = text.rstrip(":")
        elif name and (found := re.match(r"\s+copy 1: ([\d.]+):", text)):
            servers.setdefault(found[1], set()).add(name)
    if sum(len(names) for names in servers.values()) != len(sizes):
        return None
    return max(sum(sizes[name] for name in names) for names in servers.values())
