"""Spark's part of the demonstration: two nodes on loopback addresses before a slow PFS, WordCount and Sort, a table and a timeline."""

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import lab
import loopback
import sparkhome
import text
import timeline
import waves

SERVERS = 4
# A task reads one extent. Small ones, so that few bytes make many waves; a real cluster has 128 MiB.
EXTENT_BYTES = 8 << 20
FILE_BYTES = 64 << 20
# A reader gets one stripe at a time from one server, as the clients of a PFS without a read-ahead of their own do it.
READ_AHEAD = "128KiB"
STRIPE = "1MiB"


def run(args, program, line):
    """All of it; `line(title, total)` makes a progress line."""
    home = sparkhome.need(args.target)
    jars = loopback.Jars(*(str(args.target / name) for name in ("forebay-spark.jar", "java/workloads/forebay-workloads.jar")))
    size = int(args.spark_size * 1e6) // EXTENT_BYTES * EXTENT_BYTES
    with line("writing text", size) as progress:
        backing = text.write(args.output / f"text-{args.spark_size:.0f}", size, FILE_BYTES, progress.at)
    rate = SERVERS * args.spark_rate * 1_000_000
    print(f"\n{size / 1e6:.0f} MB of text, two nodes of one core, splits of {EXTENT_BYTES >> 20} MiB: {size // EXTENT_BYTES // 2} waves of two tasks.")
    print(f"The PFS: {SERVERS} servers of {args.spark_rate:.0f} MB/s, stripes of {STRIPE}, {READ_AHEAD} of read-ahead. Each run begins cold.\n", flush=True)
    with contextlib.ExitStack() as stage:
        # Sockets have short paths, so the place for them is not the output directory.
        place = Path(tempfile.mkdtemp(prefix="forebay-spark-"))
        stage.callback(shutil.rmtree, place, ignore_errors=True)
        mount = stage.enter_context(lab.slow_pfs(program, backing, place / "pfs", SERVERS, f"{args.spark_rate:g}MB/s", ["--read-ahead", READ_AHEAD, "--stripe", STRIPE]))
        capacity_bytes = size + size // 10 + (256 << 20)
        cluster = stage.enter_context(loopback.Cluster(program, home, jars, place, mount, EXTENT_BYTES, capacity_bytes))
        try:
            runs = waves.run_all(cluster, mount, size, say)
        except (lab.LabError, waves.WavesError):
            keep_logs(place, args.output / "spark-logs")
            raise
    report(args, runs, size, rate)


def say(words):
    print(words, flush=True)


def keep_logs(place, where):
    shutil.rmtree(where, ignore_errors=True)
    for log in [*place.rglob("*.log"), *place.rglob("stderr")]:
        copy = where / log.relative_to(place)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError):
            shutil.copy(log, copy)
    print(f"\nlogs are in {where}")


def report(args, runs, size, rate):
    print()
    print("\n".join(waves.table(runs)))
    print("\nAll three found the same. The change is that of the map time; at owner: tasks that ran on the node that owns their extent;")
    print("prefetch hidden: share of the prefetch time during which an earlier wave computed, the first wave left out.")
    pictures = [args.output / "waves.png", args.output / "waves.svg"]
    subtitle = f"{size / 1e6:.0f} MB of text, Spark standalone, two nodes of one core, a PFS of {SERVERS} servers of {args.spark_rate:g} MB/s with {READ_AHEAD} of read-ahead"
    timeline.draw(runs, rate, subtitle, pictures)
    figures = {"bytes": size, "pfs_rate_bytes_per_s": rate, "cores": os.cpu_count(), "runs": waves.figures(runs)}
    (args.output / "waves.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(f"\nPicture: {pictures[0]}")
