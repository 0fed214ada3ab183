#!/usr/bin/env python3
"""Alluxio beside Forebay: cached sequential read through its Java client, and the memory its daemons take.

One master and one worker on loopback with the RAM tier on /dev/shm; one file written to the tier only; `alluxio/ReadBench.java` reads
it by short circuit (the client maps the block files; no byte goes through the worker). See README.md for what that does and does not say.

    python3 bench/peers/alluxio.py --fetch     # once: the jars from Maven Central, about 175 MB
    python3 bench/peers/alluxio.py [--json]

Choices that favour the peer, so that nobody need argue: of heap array and direct buffer the faster is reported; the heaps are bounded
well below Alluxio's defaults; web pages are off; the journal is plain files, not a Raft group of one.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

import common  # noqa: E402
from peers import daemons  # noqa: E402

SHM = "/dev/shm"
HEAP = "-Xmx1g"
# Alluxio 2.9 was written for Java 8 and 11: later ones must be told that it may look into java.nio.
OPENS = ["--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"]
START_SECONDS = 90
SETTLE_SECONDS = 5
IDS = {"peer.alluxio.read": "GB/s", "peer.alluxio.tmpfs": "GB/s", "peer.alluxio.rss": "MiB"}


def classpath_dir():
    """Where the jars are or go: $FOREBAY_PEER_ALLUXIO_CLASSPATH_DIR, else a directory in the user's cache."""
    chosen = os.environ.get("FOREBAY_PEER_ALLUXIO_CLASSPATH_DIR")
    return Path(chosen) if chosen else Path.home() / ".cache" / "forebay-peers" / "alluxio"


def missing():
    """Why Alluxio cannot be measured here, in one line; None if it can."""
    if not any(classpath_dir().glob("alluxio-core-server-worker-*.jar")):
        return f"no Alluxio jars in {classpath_dir()}; get them with: python3 bench/peers/alluxio.py --fetch"
    for program in ("java", "javac"):
        if shutil.which(program) is None:
            return f"no {program} in PATH; install a JDK (11 or later)"
    return None


def fetch():
    """Copies Alluxio and everything it needs from Maven Central into classpath_dir()."""
    if shutil.which("mvn") is None:
        raise RuntimeError("cannot fetch Alluxio: no mvn in PATH; install Maven")
    classpath_dir().mkdir(parents=True, exist_ok=True)
    subprocess.run(["mvn", "-q", "-B", "-f", str(HERE / "alluxio" / "pom.xml"), "dependency:copy-dependencies",
                    f"-DoutputDirectory={classpath_dir()}"], check=True)
    print(f"{len(list(classpath_dir().glob('*.jar')))} jars in {classpath_dir()}")


def run(size_bytes=common.GIB, passes=7):
    """The records of this peer; if it is not installed, the same ids with no value and the reason.

    RuntimeError, with the end of the peer's log, if it is installed and does not work, or if a figure is not what it claims to be.
    """
    command = f"python3 bench/peers/alluxio.py --size-mib {size_bytes // common.MIB} --passes {passes}"
    reason = missing()
    if reason:
        return [common.skipped(id, unit, command, reason) for id, unit in IDS.items()]
    need_bytes = 2 * size_bytes + common.GIB
    if shutil.disk_usage(SHM).free < need_bytes:
        raise RuntimeError(f"{SHM} has {shutil.disk_usage(SHM).free // common.MIB} MiB free, the benchmark needs "
                           f"{need_bytes // common.MIB}: free some, or give a smaller --size-mib")
    with common.Neighbours() as neighbours, tempfile.TemporaryDirectory(prefix="forebay-alluxio-") as work, \
            tempfile.TemporaryDirectory(prefix="forebay-alluxio-", dir=SHM) as tier:
        limit = common.tmpfs_limit(size_bytes)
        figures, after = _measure(Path(work), tier, size_bytes, passes)
        limit += common.tmpfs_limit(size_bytes)
    return _records(command, figures, after, limit, neighbours)


def _measure(work, tier, size_bytes, passes):
    """Runs the cluster and the reader. Returns (what ReadBench printed, memory after)."""
    daemons.run_bounded(["javac", "-d", str(work), "-cp", _classpath(), str(HERE / "alluxio" / "ReadBench.java")],
                        what="compile ReadBench.java", seconds=120)
    ports = daemons.free_ports(4)
    options = _options(work, tier, size_bytes, ports)
    java = ["java", HEAP, *OPENS, *options, "-cp", f"{work}:{_classpath()}"]
    for role in ("master", "worker"):
        daemons.run_bounded([*java, "alluxio.cli.Format", role], what=f"format the {role}", seconds=START_SECONDS)
    common.warm_memory(2 * size_bytes)
    with contextlib.ExitStack() as running:
        tree = []
        for role, main, port in (("master", "alluxio.master.AlluxioMaster", ports[0]), ("worker", "alluxio.worker.AlluxioWorker", ports[2])):
            daemon = running.enter_context(daemons.Daemon(f"the Alluxio {role}", [*java, main], log_path=work / f"{role}.log"))
            daemon.wait_until(lambda port=port: daemons.accepts(port), what=f"listening on port {port}", seconds=START_SECONDS)
            tree.append(daemon)
        time.sleep(SETTLE_SECONDS)
        printed = daemons.run_bounded([*java, "ReadBench", str(size_bytes), str(passes)], what="read through Alluxio", seconds=600)
        after = [common.memory_of_tree(daemon.pid) for daemon in tree]
    return json.loads(printed.strip().splitlines()[-1]), after


def _classpath():
    return f"{classpath_dir()}/*"


def _options(work, tier, size_bytes, ports):
    """Alluxio's configuration. What is not named keeps its default, the client's buffer and chunk sizes above all."""
    local = "127.0.0.1"
    settings = {
        "home": work, "work.dir": work, "logs.dir": work / "logs", "conf.dir": work,
        # Everything listens on loopback and nothing calls home.
        "master.hostname": local, "worker.hostname": local, "user.hostname": local,
        "master.bind.host": local, "worker.bind.host": local, "master.web.bind.host": local, "worker.web.bind.host": local,
        "master.rpc.port": ports[0], "master.web.port": ports[1], "worker.rpc.port": ports[2], "worker.web.port": ports[3],
        "master.update.check.enabled": "false", "web.ui.enabled": "false",
        "master.journal.type": "UFS", "master.journal.folder": work / "journal", "master.metastore.dir": work / "metastore",
        "master.mount.table.root.ufs": work / "under-store",
        "worker.tieredstore.levels": 1, "worker.tieredstore.level0.alias": "MEM", "worker.tieredstore.level0.dirs.path": tier,
        # The tier evicts above a high-water mark below its size: leave it room, so that the whole
        # file stays.
        "worker.ramdisk.size": 2 * size_bytes + common.GIB // 2,
    }
    (work / "under-store").mkdir()
    return [f"-Dalluxio.{key}={value}" for key, value in settings.items()]


def _records(command, figures, after, limit, neighbours):
    if figures["short_circuit_share"] < 0.99:
        raise RuntimeError(f"only {figures['short_circuit_share']:.0%} of the bytes were read by short circuit; the rest went through the "
                           "worker, so this is not the figure it claims to be: check user.hostname against worker.hostname")
    kind = max(("array", "direct"), key=lambda kind: statistics.median(figures[f"{kind}_gb_per_s"]))
    other = "direct" if kind == "array" else "array"
    own, rss = (" + ".join(f"{getattr(memory, field) / common.MIB:.0f}" for memory in after) for field in ("own_bytes", "rss_bytes"))
    return [
        common.record("peer.alluxio.read", "GB/s", figures[f"{kind}_gb_per_s"], command, reference=statistics.median(limit), note=(
            f"short circuit into a {kind} buffer (into the other kind: {statistics.median(figures[f'{other}_gb_per_s']):.2f}); "
            f"written to memory only at {figures['write_gb_per_s']:.2f} GB/s; reference is pread on tmpfs; {neighbours}")),
        common.record("peer.alluxio.tmpfs", "GB/s", limit, command, note="pread(1 MiB) on a plain tmpfs file, before and after the peer ran"),
        common.record("peer.alluxio.rss", "MiB", [sum(memory.own_bytes for memory in after) / common.MIB], command,
                      note=f"master + worker after the reads, tier excluded: {own}; VmRSS: {rss}; heaps bounded by {HEAP}"),
    ]


def main():
    """The command line: measures and prints, or fetches the jars. Exit status 0 also when skipped."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fetch", action="store_true", help="get Alluxio from Maven Central, then end")
    parser.add_argument("--json", action="store_true", help="print the records as JSON instead of a table")
    parser.add_argument("--size-mib", type=int, default=1024, help="size of the file read (default: %(default)s)")
    parser.add_argument("--passes", type=int, default=7, help="timed passes over it (default: %(default)s)")
    args = parser.parse_args()
    daemons.end_on_sigterm()
    try:
        if args.fetch:
            return fetch()
        records = run(args.size_mib * common.MIB, args.passes)
    except (RuntimeError, subprocess.CalledProcessError) as failure:
        sys.exit(f"{parser.prog}: {failure}")
    if args.json:
        print(json.dumps(records, indent=2))
    else:
        common.print_table(records)


if __name__ == "__main__":
    main()
