"""WordCount and Sort on Spark, in three ways: straight from the PFS, through Forebay without prefetch, and with the next wave's input
brought while the last one computes.

What is compared is the map time, from the start of the stage that reads until its last task has ended: what comes after it has nothing to
do with the PFS.
"""

import time
from dataclasses import dataclass, field

from meter import Meter

WORKLOADS = {"wordcount": "WordCount", "sort": "Sort"}
MODES = {"straight": None, "naive-bb": "naive-bb", "no-action": "no-action"}
TITLES = {"straight": "straight from the PFS", "naive-bb": "naive-bb, no prefetch", "no-action": "no-action, waves"}
# Less than this is not the run that was meant to be shown.
WAVES_MIN = 5


class WavesError(Exception):
    """A run is not what it should be; the message says how."""


@dataclass
class Run:
    """One run. Times of tasks, waves and samples are seconds since the reading stage began."""

    workload: str
    mode: str
    map_s: float = 0.0
    total_s: float = 0.0
    served_bytes: int = 0
    tasks: list = field(default_factory=list)
    waves: list = field(default_factory=list)
    samples: list = field(default_factory=list)
    result: dict = field(default_factory=dict)

    @property
    def local_share(self):
        """Share of the tasks that ran where Forebay said that their input will be; None where it named no nodes."""
        return sum(task["local"] for task in self.tasks) / len(self.tasks) if self.mode == "no-action" else None

    @property
    def hidden_share(self):
        return hidden_share(self.waves)


def run_all(cluster, data, total_bytes, say, workloads=tuple(WORKLOADS), modes=tuple(MODES)):
    """Runs each workload in each mode, cold; checks that all found the same."""
    runs = []
    for workload in workloads:
        for mode in modes:
            say(f"{WORKLOADS[workload]}, {TITLES[mode]} ...")
            runs.append(measure(cluster, data, workload, mode))
            say(f"    map {runs[-1].map_s:.1f} s, all {runs[-1].total_s:.1f} s")
    check(runs, total_bytes)
    return runs


def measure(cluster, data, workload, mode, cold=True):
    """One run; what earlier runs have left in memory is dropped before, if it is to be `cold`."""
    if cold:
        cluster.forget()
    with Meter(cluster.served_bytes, cluster.sample_s) as meter:
        epoch_s = time.time() - meter.now()[0]
        report = cluster.submit(workload, data, MODES[mode])
        # Ended jobs are kept by the coordinator for a while.
        jobs = cluster.jobs() if mode != "straight" else []
    return summarize(workload, mode, report, jobs, meter.samples, epoch_s)


@dataclass(frozen=True)
class Cores:
    """What the cores need for a workload whose input is on the local disk: its map time, and the mean time of the first task of each node,
    during which its virtual machine still compiles."""

    map_s: float
    first_task_s: float


def cores(cluster, local, workload):
    """Measures that, with the input in the page cache."""
    cluster.submit(workload, local)
    run = summarize(workload, "straight", cluster.submit(workload, local), [], [(0, 0, 0)], 0)
    return Cores(run.map_s, first_task_s(run.tasks))


def first_task_s(tasks):
    """Mean time of the first task of each node."""
    first = {}
    for task in sorted(tasks, key=lambda task: task["began"]):
        first.setdefault(task["host"], task["ended"] - task["began"])
    return sum(first.values()) / len(first)


def summarize(workload, mode, report, jobs, samples, epoch_s):
    """A Run from the workload's report, what `forebay jobs` said and the samples of the PFS since `epoch_s`."""
    # Those that warmed up have begun before.
    measured = [one for one in report["stages"] if one["began_ms"] >= report["began_ms"]]
    stage = min(measured, key=lambda one: (one["began_ms"], one["stage"]))
    began_s = stage["began_ms"] / 1e3
    run = Run(workload, mode, map_s=(stage["ended_ms"] - stage["began_ms"]) / 1e3, result=report["result"])
    run.total_s = (report["ended_ms"] - report["began_ms"]) / 1e3
    for task in report["tasks"]:
        if task["stage"] == stage["stage"] and task["ok"]:
            local = task["locality"] in ("NODE_LOCAL", "PROCESS_LOCAL")
            run.tasks.append({"host": task["host"], "local": local, "began": task["began_ms"] / 1e3 - began_s, "ended": task["ended_ms"] / 1e3 - began_s})
    run.samples = [(epoch_s + seconds - began_s, served) for seconds, _, served in samples]
    run.served_bytes = samples[-1][2] - samples[0][2]
    run.waves = waves_of(jobs, stage["stage"], min(task["began"] for task in run.tasks))
    return run


def waves_of(jobs, stage, first_task_s):
    """The waves of the stage in the job told last: seconds since the stage began."""
    stages = [one for job in jobs[-1:] for one in job["stages"] if one["stage"] == stage and one["waves"]]
    if not stages:
        return []
    waves = stages[0]["waves"]
    # The coordinator counts from the beginning of the job; the first task is known on both clocks.
    starts = [wave["compute_began_ms"] for wave in waves if wave["compute_began_ms"] is not None]
    if not starts:
        return []
    zero = min(starts) / 1e3 - first_task_s

    def seconds(ms):
        return None if ms is None else ms / 1e3 - zero

    return [
        {
            "prefetch": (seconds(wave["prefetch_began_ms"]), seconds(wave["prefetch_ended_ms"])),
            "compute": (seconds(wave["compute_began_ms"]), seconds(wave["compute_ended_ms"])),
            "tasks": wave["tasks"],
            "bytes": wave["bytes"],
            "fetched_bytes": wave["fetched_bytes"],
        }
        for wave in waves
    ]


def hidden_share(waves):
    """Share of the prefetch time that lies before the wave's own first task and within the compute of an earlier wave.

    The first wave is left out, as there is none before it. What is still fetched when the wave has begun is not hidden: its tasks wait.
    """
    hidden = everything = 0.0
    for number, wave in enumerate(waves):
        began, ended = wave["prefetch"]
        if number == 0 or began is None or ended is None:
            continue
        everything += ended - began
        own = wave["compute"][0]
        ended = ended if own is None else min(ended, own)
        upto = began
        for start, stop in sorted((w["compute"][0], w["compute"][1]) for w in waves[:number] if None not in w["compute"]):
            start, stop = max(start, upto), min(stop, ended)
            if start < stop:
                hidden += stop - start
                upto = stop
    return hidden / everything if everything else None


def check(runs, total_bytes):
    """A demonstration that fails is better than one that lies."""
    for run in runs:
        first = next(one for one in runs if one.workload == run.workload)
        if run.result != first.result:
            raise WavesError(f"{run.workload}: {run.mode} found {run.result}, and {first.mode} found {first.result}")
        if run.served_bytes < 0.98 * total_bytes:
            raise WavesError(f"{run.workload}, {run.mode}: the PFS served {run.served_bytes} of {total_bytes} bytes; the run was not cold")
        if run.mode == "no-action" and len(run.waves) < WAVES_MIN:
            raise WavesError(f"{run.workload}: {len(run.waves)} waves were reported to the coordinator, at least {WAVES_MIN} were expected")


def table(runs):
    """Lines of text."""
    head = ["", "map time", "", "all", "PFS served", "local", "waves", "prefetch hidden"]
    widths = [36, 10, 8, 9, 12, 10, 7, 17]
    lines = ["".join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(head, widths)))]
    for run in runs:
        base = next(one for one in runs if one.workload == run.workload)
        change = "" if run is base else f"{100 * (run.map_s / base.map_s - 1):+.0f} %"
        cells = [
            f"{WORKLOADS[run.workload]}, {TITLES[run.mode]}",
            f"{run.map_s:.1f} s",
            change,
            f"{run.total_s:.1f} s",
            f"{run.served_bytes / 1e6:.0f} MB",
            percent(run.local_share),
            str(len(run.waves) or "-"),
            percent(run.hidden_share),
        ]
        lines.append("".join(cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(zip(cells, widths))))
    return lines


def percent(share):
    return "-" if share is None else f"{100 * share:.0f} %"


def figures(runs):
    """What goes into the JSON file."""
    return [{**vars(run), "local_share": run.local_share, "hidden_share": run.hidden_share} for run in runs]
