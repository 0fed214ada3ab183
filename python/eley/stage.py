"""One run of one setting, measured: the writer, the Spark job beside it, the links, and what the planners noted."""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import lab
import waves
from cluster import SAVER, Traffic, Writer

START_S = 300
# What the saver has written is on the file system after so long.
DRAIN_S = 300
UNTIL_STOPPED = 1 << 30


@dataclass
class Tools:
    """Programs and jars; `data` is the input on the local disk, and `warm` what a workload is run over before its time is taken."""

    forebay: str
    spark_venv: Path
    jars: object
    writer: Path
    data: Path
    warm: Path


def measure(cluster, setting, repeat, data, alone_s):
    """Runs a setting cold; its figures, ready to be written as JSON. `data`: the input on the PFS, `alone_s`: what a phase takes alone.

    All times are seconds since 1970.
    """
    cluster.forget()
    name = f"{setting.name}-{repeat}"
    job = None
    if setting.qos is not None:
        job = (f"writer-{name}", setting.qos, round(1000 * alone_s * (1 + setting.qos)))
    result = {"setting": setting.name, "repeat": repeat, "alone_s": alone_s, "qos": setting.qos}
    if setting.saves:
        cluster.make_room()
        before = cluster.counters(SAVER)
    with Traffic(cluster, cluster.place / f"{name}.traffic") as traffic:
        writer = saver = None
        few = 1 + cluster.sizes.alone_phases
        try:
            if setting.saves:
                is_alone = not setting.writer and not setting.spark
                saver = Writer(cluster, cluster.place / f"{name}-saver", few if is_alone else UNTIL_STOPPED, saves=setting.saves)
            if setting.writer:
                writer = Writer(cluster, cluster.place / name, UNTIL_STOPPED if setting.spark else few, job)
            if setting.spark:
                for other in filter(None, (writer, saver)):
                    other.await_phases(cluster.sizes.phases_before, START_S)
                result |= spark(cluster, setting, data)
            result["phases"] = (writer.stop() if setting.spark else writer.wait(START_S)) if writer else []
            if saver:
                result["saves"] = saver.wait(START_S) if is_alone else saver.stop()
                result["drain"] = drained(cluster, before)
        finally:
            for other in filter(None, (writer, saver)):
                other.end()
    result["samples"] = traffic.samples
    result["plan"] = planned(cluster, job[0], result) if job else None
    return result


def drained(cluster, before):
    """Waits until the file system has what the saver wrote; how long that took, and what the saver's agent counted meanwhile."""
    began = time.time()
    while cluster.dirty(SAVER):
        if time.time() > began + DRAIN_S:
            raise lab.LabError(f"what was written back is not on the file system after {DRAIN_S} s")
        time.sleep(0.2)
    after = cluster.counters(SAVER)
    names = ("absorbed_files_total", "drained_bytes", "drained_for_room_bytes", "drained_for_age_bytes")
    return {"safe": time.time(), "after_s": time.time() - began, **{name: after[name] - before[name] for name in names}}


def spark(cluster, setting, data):
    """Runs the workload; tasks and waves of its map stage."""
    planner = None if setting.local else setting.planner
    source = cluster.tools.data if setting.local else data
    report = cluster.submit(cluster.sizes.workload, source, planner)
    jobs = cluster.jobs() if planner else []
    run = waves.summarize(cluster.sizes.workload, setting.name, report, jobs, [(0, 0, 0)], 0)
    # summarize() counts from the start of the stage, and these samples from 1970.
    began = -run.samples[0][0]
    return {
        "map": [began, began + run.map_s],
        "tasks": [{**task, "began": began + task["began"], "ended": began + task["ended"]} for task in run.tasks],
        "waves": [{**wave, **{key: shifted(wave[key], began) for key in ("prefetch", "compute")}} for wave in run.waves],
        "result": run.result,
    }


def shifted(span, by):
    return [None if at is None else at + by for at in span]


def coordinator_began(phases, noted):
    """When the coordinator's clock began: the latest phases are known on both clocks."""
    return statistics.median(phase["began"] - note["at_ms"] / 1e3 for phase, note in zip(reversed(phases), reversed(noted)))


def planned(cluster, job, result):
    """What the planners noted of this writer's phases, and of the waves planned meanwhile."""
    log = cluster.plan_log()
    phases = [phase for phase in log["phases"] if phase["name"] == job]
    if not phases:
        raise lab.LabError(f"the coordinator knows no phase of {job}")
    began, first = coordinator_began(result["phases"], phases), phases[0]["at_ms"]
    plans = [plan for plan in log["plans"] if plan["at_ms"] >= first]
    return {
        "phases": [{**phase, "began": began + phase["at_ms"] / 1e3} for phase in phases],
        "plans": [{"began": began + plan["at_ms"] / 1e3, **{key: plan[key] for key in ("action", "reason", "came_bytes", "margin_ms", "fetched_in_ms")}} for plan in plans],
    }
