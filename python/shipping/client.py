"""The clients beside the jobs: an I/O service, which is fio, and an application that writes as NAS BT-IO does.

    client.py STOP SLICE_S CLIENT FILE FILE_BYTES PATTERN...

runs the patterns of a client in turn, each for SLICE_S seconds, until the file STOP exists. It prints a line of JSON for each slice.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

RANKS = 4
# Ranks yield the core while they wait for each other, and the launcher needs no network.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "--mca", "btl", "vader,self"]
FIO = ["fio", "--name=client", "--readonly", "--direct=1", "--ioengine=psync", "--time_based", "--norandommap", "--randrepeat=0", "--output-format=json+"]
BTIO = "btio"


@dataclass
class Kind:
    """`latency`: the quantile of the times that is reported, and its name. `patterns`: arguments by name."""

    latency: tuple
    patterns: dict
    # Programs that it needs, by Debian's package.
    needs: dict


CLIENTS = {
    "fio": Kind((0.99, "p99"), {"sequential": ["--rw=read", "--bs=1M"], "random": ["--rw=randread", "--bs=4k"]}, {"fio": "fio"}),
    "btio": Kind((0.5, "median of a step"), {"simple": ["simple"], "full": ["full"]}, {"mpicc": "libopenmpi-dev", "mpirun": "openmpi-bin"}),
}


def command(kind, pattern, file, file_bytes, seconds):
    own = CLIENTS[kind].patterns[pattern]
    if kind == "fio":
        return [*FIO, *own, f"--filename={file}", f"--size={file_bytes}", f"--runtime={seconds}"]
    return [*MPIRUN, "-n", str(RANKS), str(Path(file).with_name(BTIO)), *own, f"{file}.{BTIO}", str(file_bytes), str(seconds)]


def of_fio(said):
    """Bytes, seconds, and how often a request took so many ns, from fio's output, which begins with other lines if it was interrupted."""
    read = json.loads(said[said.index("{") :])["jobs"][0]["read"]
    return {"bytes": read["io_bytes"], "seconds": read["runtime"] / 1e3, "times": read["clat_ns"].get("bins", {})}


def of_btio(said):
    """The same of steps."""
    steps = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    times = Counter(str(round(step["seconds"] * 1e9)) for step in steps)
    return {"bytes": sum(step["bytes"] for step in steps), "seconds": sum(step["seconds"] for step in steps), "times": dict(times)}


READ = {"fio": of_fio, "btio": of_btio}


def link_bytes():
    """What has crossed the node's link so far, in both directions."""
    fields = next(line.split() for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("eth0:"))
    return int(fields[1]) + int(fields[9])


def quantile(times, part):
    """Of times in ns, each with how often it occurred; in ms. None without times."""
    left = part * sum(times.values())
    for ns in sorted(times, key=int):
        left -= times[ns]
        if left <= 0:
            return int(ns) / 1e6
    return None


def summary(kind, slices):
    """What a client got, by pattern."""
    found = {}
    for pattern in CLIENTS[kind].patterns:
        own = [one for one in slices if one["pattern"] == pattern]
        total = sum(one["bytes"] for one in own)
        if total:
            times = sum((Counter(one["times"]) for one in own), Counter())
            seconds = sum(one["seconds"] for one in own)
            crossed = sum(one["link_bytes"] for one in own)
            found[pattern] = {"link_bytes": crossed, "bytes_per_s": total / seconds, "latency_ms": quantile(times, CLIENTS[kind].latency[0])}
    return found


def main():
    stop, slice_s, kind, file, file_bytes, *patterns = sys.argv[1:]
    number = 0
    while not Path(stop).exists():
        pattern = patterns[number % len(patterns)]
        number += 1
        before = link_bytes()
        with tempfile.TemporaryFile("w+") as out:
            process = subprocess.Popen(command(kind, pattern, file, file_bytes, slice_s), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            stopped = False
            while process.poll() is None:
                if not stopped and Path(stop).exists():
                    stopped = True
                    process.send_signal(signal.SIGINT)
                time.sleep(0.05)
            out.seek(0)
            said = out.read()
        if process.returncode and not stopped:
            sys.exit(f"{kind} failed with exit code {process.returncode}: {said[-500:]}")
        # It may have been stopped before it began.
        got = READ[kind](said) if "{" in said else {"bytes": 0, "seconds": 0.0, "times": {}}
        print(json.dumps({"pattern": pattern, "link_bytes": link_bytes() - before, **got}), flush=True)


if __name__ == "__main__":
    main()
