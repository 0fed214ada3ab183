"""The profile of the lab, measured by `forebay profile` before any agent runs: the speed of a prefetch, and how it and the writer slow each
other down, by nodes and threads."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import cluster
import lab

MEASURE_S = 900


def measure(tools, sizes, path, say):
    """Writes the profile to `path`, for `cluster.profile` and for scenarios."""
    with tempfile.TemporaryDirectory(prefix="forebay-eley-") as place, cluster.Cluster(tools, Path(place), sizes, agents=False) as raised:
        launcher = cluster.launcher(raised, Path(place) / "launch")
        raised.on("c1", "mkdir", raised.mount / "profile")
        size = int(sizes.profile_run_s * sizes.pfs_bytes_per_s) >> 20 << 20
        command = [tools.forebay, "--json", "profile", str(raised.mount / "profile"), "--nodes", str(sizes.nodes), "--threads", str(sizes.profile_threads)]
        command += ["--writers", str(sizes.ranks), "--bytes", str(size), "--writer-bytes", str(size // sizes.ranks), "--runs", "5", "--launch", f"{launcher} {{node}}"]
        found = run(raised, command, path, say)
    # What tasks do that read by themselves: one on each node.
    direct = next(one for one in found["settings"] if (one["nodes"], one["threads"]) == (sizes.nodes, 1))
    rate = found["wave_bytes"] / direct["prefetch_s"] / 1e9
    path.write_text(found["profile"] + f"direct_gb_per_s = {rate:.6f}\ndirect_i_hpc = {direct['i_hpc']:.6f}\ndirect_i_bd = {direct['i_bd']:.6f}\n")
    return found


def run(raised, command, path, say):
    """In the namespaces of a node, where the PFS is mounted; its programs are started on others from there."""
    line = [raised.program, "lab", "run", "--free", "--node", "c1", "--", *command]
    environment = {**os.environ, "FOREBAY_LAB": raised.name}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=MEASURE_S, check=False)
    if done.returncode:
        raise lab.LabError(f"`forebay profile` failed: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    for what in found["uncertain"]:
        say(f"    readings differ, {what}")
    return found
