"""Spark's part of the demonstration: two nodes on loopback addresses before a slow PFS, or the lab; WordCount, or what is asked for, a table, a timeline."""

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import lab
import labcluster
import loopback
import predict
import sparkhome
import study
import text
import timeline
import waves

SERVERS = 4
# A task reads one extent. Small ones, so that few bytes make many waves; a real cluster has 128
# MiB.
EXTENT_BYTES = 8 << 20
FILE_BYTES = 64 << 20
# Pieces in which the lab's PFSes spread a file over their servers; the text is written once, so
# GlusterFS may have them.
LAB_STRIPES = {"glusterfs": 4 << 20}
# Where they do not: so that each wave is on several servers, as it is where files have many chunks.
LAB_FILE_BYTES = EXTENT_BYTES
# A reader gets one stripe at a time from one server, as the clients of a PFS without a read-ahead
# of their own do it.
READ_AHEAD_BYTES = 128 << 10
STRIPE_BYTES = 1 << 20
READ_AHEAD, STRIPE = "128KiB", "1MiB"
# What MooseFS's client requests ahead of a reader at a time (mfsreadaheadleng).
MOOSEFS_AHEAD_BYTES = 1 << 20
MOOSEFS_CHUNK_BYTES = 64 << 20
# Of an agent for a mount: by default, and as the lab configures it.
FETCH_THREADS, LAB_FETCH_THREADS = 8, 16
LAB_NODES = 4
# Least share of the possible gain that waves should reach: on a PFS that stripes pages over all of
# its servers, and in the lab, whose clients read ahead by themselves.
GAIN_STRIPED, GAIN_LAB = 0.9, 0.6
# What each slot works on before time is taken: until then the virtual machines of the executors
# interpret and compile.
WARM_EXTENTS = 3
# Beside the text: page rounding, what the other node's tasks have read, and the agent's own memory.
CAPACITY_SLACK_BYTES = 256 << 20


def run(args, program, line):
    """All of it; `line(title, total)` makes a progress line."""
    home = sparkhome.need(args.target)
    jars = loopback.Jars(*(str(args.target / name) for name in ("forebay-spark.jar", "java/workloads/forebay-workloads.jar")))
    slots = LAB_NODES if args.lab else len(loopback.HOSTS)
    # Whole waves: a last one of a single task would leave the other cores idle.
    wave_bytes = slots * EXTENT_BYTES
    size = max(int(args.spark_size * 1e6) // wave_bytes, 1) * wave_bytes
    with line("writing text", size) as progress:
        file_bytes = LAB_FILE_BYTES if args.lab and args.lab not in LAB_STRIPES else FILE_BYTES
        backing = text.write(args.output / f"text-{args.spark_size:.0f}-{file_bytes >> 20}", size, file_bytes, progress.at)
        warm = text.write(args.output / f"text-warm-{slots}", slots * WARM_EXTENTS * EXTENT_BYTES, EXTENT_BYTES, lambda done: None)
    with contextlib.ExitStack() as stage:
        # Sockets have short paths, so the place for them is not the output directory.
        place = Path(tempfile.mkdtemp(prefix="forebay-spark-"))
        stage.callback(shutil.rmtree, place, ignore_errors=True)
        raise_stage = in_the_lab if args.lab else on_loopback
        cluster, data, where = raise_stage(stage, args, program, home, jars, place, backing, size, warm)
        nodes = slots
        described = shape(args.lab, size, file_bytes, cluster.layout(data))
        busiest_bytes = described.busiest_bytes()
        say(f"\n{size / 1e6:.0f} MB of text, {nodes} nodes of one core, splits of {EXTENT_BYTES >> 20} MiB: {size // EXTENT_BYTES // nodes} waves of {nodes} tasks.")
        say(f"The PFS: {where}. Each run starts with a cold cache.\n")
        try:
            if args.study:
                predictor = predict.Predictor(program, args.output / "scenarios", described)
                wanted = {"only": args.setting, "workloads": args.workload or waves.WORKLOADS, "share_min": GAIN_LAB if args.lab else GAIN_STRIPED}
                outcomes = study.run_all(
                    cluster, backing, data, size, SERVERS, busiest_bytes, args.repeats, say=say, predict=predictor, keep=lambda outcomes: keep_study(args, outcomes), **wanted
                )
                return report_study(args, outcomes)
            runs = waves.run_all(cluster, data, size, say, args.workload or ["wordcount"])
        except (lab.LabError, waves.WavesError):
            loopback.keep_logs(place, args.output / "spark-logs")
            say(f"\nlogs are in {args.output}/spark-logs")
            raise
    report(args, runs, size, f"{nodes} nodes of one core, {where}", busiest_bytes)


def shape(pfs, size, file_bytes, stripes_on):
    """The cluster as the simulator wants it: `pfs` is that of the lab, or None; `stripes_on` is the server of each stripe of each file, or
    None."""
    common = {"extent_bytes": EXTENT_BYTES, "input_bytes": size, "file_bytes": file_bytes, "servers": SERVERS, "stripes_on": stripes_on}
    known = {"layout_known": True, "streams": False, "fetch_threads": FETCH_THREADS, "read_ahead_bytes": READ_AHEAD_BYTES}
    if pfs is None:
        tier = {"nodes": len(loopback.HOSTS), "tier_bytes": size + size // 10 + CAPACITY_SLACK_BYTES}
        return predict.Shape(**{**common, **known, **tier}, stripe_bytes=STRIPE_BYTES)
    tier = {"nodes": LAB_NODES, "tier_bytes": 2 * size // LAB_NODES + CAPACITY_SLACK_BYTES}
    known["fetch_threads"] = LAB_FETCH_THREADS
    if pfs in LAB_STRIPES:
        # Of a file in pieces GlusterFS tells where the first is, so the lab's agents do not ask.
        known["layout_known"] = False
        return predict.Shape(**{**common, **known, **tier}, stripe_bytes=LAB_STRIPES[pfs])
    known.update(streams=True, read_ahead_bytes=MOOSEFS_AHEAD_BYTES)
    return predict.Shape(**{**common, **known, **tier}, stripe_bytes=MOOSEFS_CHUNK_BYTES)


def on_loopback(stage, args, program, home, jars, place, backing, size, warm):
    """Two nodes before the slow file system: the cluster, where the text is, and what the PFS is."""
    options = ["--read-ahead", READ_AHEAD, "--stripe", STRIPE]
    mount = stage.enter_context(lab.slow_pfs(program, backing, place / "pfs", SERVERS, f"{args.spark_rate or 50:g}MB/s", options))
    capacity_bytes = size + size // 10 + CAPACITY_SLACK_BYTES
    # After the coordinator has ended.
    stage.push(lambda kind, *_: replay(kind, cluster))
    cluster = stage.enter_context(loopback.Cluster(program, home, jars, place, mount, EXTENT_BYTES, capacity_bytes))
    cluster.warm = warm
    set_rate(args, cluster, backing, size)
    return cluster, mount, f"{SERVERS} servers of {rate_words(args)}, stripes of {STRIPE}, {READ_AHEAD} of read-ahead"


def replay(failure, cluster):
    """Unless the run failed: its decisions once more, by `forebay replay`."""
    if failure is None:
        lines, actions = loopback.replay(cluster.program, cluster.decisions)
        say(f"\nforebay replay: {lines} recorded lines, all {actions} actions decided again the same.")


def set_rate(args, cluster, backing, size):
    """Each server gets the rate that was asked for, or, in MB/s, the one with which reading all of the text takes as long as counting its
    words does: the case in which waves gain most.

    Machines differ by ten times in what a core counts, and a PFS that is much faster or slower than that shows nothing.
    """
    if args.spark_rate is None and not args.study:
        say("Measuring the cores: WordCount from the local disk ...")
        map_s = waves.cores(cluster, backing, "wordcount").map_s
        args.spark_rate = max(round(size / map_s / SERVERS / 1e6, 1), 0.5)
        say(f"    map {map_s:.1f} s; the PFS gets {SERVERS} servers of {args.spark_rate:g} MB/s, so that reading takes as long. (--spark-rate sets another.)")
    if args.spark_rate is not None:
        cluster.set_rate(args.spark_rate)


def in_the_lab(stage, args, program, home, jars, place, backing, size, warm):
    """As on_loopback, with a real PFS: nodes in namespaces, servers behind shaped links."""
    say("starting the lab ...")
    capacity_bytes = 2 * size // LAB_NODES + CAPACITY_SLACK_BYTES
    venv = home.parents[3]
    stripe = LAB_STRIPES.get(args.lab)
    cluster = labcluster.Cluster(program, venv, jars, place, LAB_NODES, "unlimited", EXTENT_BYTES, capacity_bytes, args.lab, stripe)
    stage.enter_context(cluster)
    # Its files end with the lab.
    stage.push(lambda kind, *_: replay(kind, cluster))
    cluster.warm = warm
    data = cluster.bring(backing)
    set_rate(args, cluster, backing, size)
    return cluster, data, f"{args.lab}, {SERVERS} servers behind links of {rate_words(args)}{f', pieces of {stripe >> 20} MiB' if stripe else ''}"


def rate_words(args):
    return "changing rate" if args.study else f"{args.spark_rate:g} MB/s"


def say(words):
    print(words, flush=True)


def report(args, runs, size, where, busiest_bytes):
    rate = SERVERS * args.spark_rate * 1_000_000
    pfs_s = busiest_bytes / args.spark_rate / 1e6
    print()
    print("\n".join(waves.table(runs)))
    print(f"\nLower bound: {pfs_s:.1f} s, the time that the busiest server of the PFS needs to send its {busiest_bytes / 1e6:.0f} MB of the text.")
    print("\nAll runs found the same result. The change is that of the map time. Local: tasks that ran on their preferred node.")
    print("Prefetch hidden: share of the prefetch time before the wave's first task and while an earlier wave computed, without the first wave.")
    name = f"waves-{args.lab}" if args.lab else "waves"
    pictures = [args.output / f"{name}.png", args.output / f"{name}.svg"]
    timeline.draw(runs, rate, f"{size / 1e6:.0f} MB of text, Spark standalone, {where}", pictures)
    figures = {"bytes": size, "pfs_rate_bytes_per_s": rate, "pfs_s": pfs_s, "cores": os.cpu_count(), "where": where, "runs": waves.figures(runs)}
    (args.output / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(f"\nPicture: {pictures[0]}")


def report_study(args, outcomes):
    print("\n" + "\n".join(study.table(outcomes)))
    print("\nMedians. Local, hidden: of the runs with waves. Bound: the time that the busiest server of the PFS needs to send its text, or that the")
    print("cores need to compute if that is longer. Of the possible gain: share reached of what the bound leaves of naive-bb's time.")
    print("Target met: the targets of docs/benchmarks.md.")
    print("simulated: what `forebay sim run` predicts from the speeds of cores and links, and how far that is from what was measured.")
    print(f"Figures: {keep_study(args, outcomes)}")


def keep_study(args, outcomes):
    """Writes the figures, so that a study that is stopped keeps those that it has; where they are."""
    path = args.output / f"study{'-' + args.lab if args.lab else ''}.json"
    path.write_text(json.dumps(study.figures(outcomes), indent=1) + "\n")
    return path
