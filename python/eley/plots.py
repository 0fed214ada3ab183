"""The figures: a timeline of one run of each setting; phase times and map times of all settings with their spreads."""

import statistics

import matplotlib

matplotlib.use("Agg")
import judge
import matplotlib.pyplot as plt
import sizes
import timeline
from timeline import COMPUTE, INK, MUTED, SERVED

PHASE, LATE = "#2a9d5c", "#b3261e"
WRITTEN = "#66717d"
WINDOW_S = 0.6


def draw(results, size, directory):
    """File names by caption."""
    plt.rcParams.update(timeline.STYLE)
    base, found = judge.alone(results), {}
    if base and judge.runs(results, "naive-bb"):
        found["Phase times (the papers' figure 4)"] = phases(results, base, directory)
    if any(judge.map_s(results, name) for name in ("naive-bb", "no-action")):
        found["Map times (figure 3)"] = maps(results, directory)
    for setting in sizes.SETTINGS:
        run = next(iter(judge.runs(results, setting.name)), None)
        if run and setting.spark and setting.writer and base:
            found[f"One run: {setting.title}"] = one_run(run, setting, size, base, directory)
    return found


def save(figure, directory, name):
    figure.savefig(directory / f"{name}.png", dpi=140)
    plt.close(figure)
    return f"{name}.png"


def phases(results, base, directory):
    """Every phase beside a map stage, and the mean of each setting."""
    shown = [setting for setting in sizes.SETTINGS if setting.spark and setting.writer and judge.runs(results, setting.name)]
    figure, axis = plt.subplots(figsize=(9, 3.8), layout="constrained")
    for x, setting in enumerate(shown):
        times = [judge.length(phase) for result in judge.runs(results, setting.name) for phase in judge.beside(result)]
        if times:
            axis.bar(x, statistics.mean(times), 0.6, color=COMPUTE[1])
            axis.plot([x + 0.4 * (i / max(len(times) - 1, 1) - 0.5) for i in range(len(times))], times, ".", color=INK, markersize=4)
    axis.axhline(base.median_s, color=PHASE, linewidth=1.2, label="alone")
    axis.axhline(1.05 * base.median_s + base.spread_s, color=LATE, linewidth=1, linestyle=(0, (4, 3)), label="deadline of 5 %, and the spread alone")
    return bars(figure, axis, shown, "Phases of the writer: mean and single ones", directory, "phases")


def maps(results, directory):
    shown = [setting for setting in sizes.SETTINGS if setting.spark and judge.runs(results, setting.name)]
    figure, axis = plt.subplots(figsize=(9, 3.8), layout="constrained")
    for x, setting in enumerate(shown):
        times = judge.map_s(results, setting.name)
        axis.bar(x, statistics.mean(times), 0.6, color=COMPUTE[1])
        axis.plot([x] * len(times), times, ".", color=INK, markersize=5)
    return bars(figure, axis, shown, "Map time of Spark: mean and single runs", directory, "maps")


def bars(figure, axis, shown, title, directory, name):
    axis.set_xticks(range(len(shown)), [setting.name for setting in shown])
    axis.set_title(title, loc="left", fontsize=10)
    axis.set_ylabel("seconds")
    timeline.plain(axis, grid=True)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8.5, frameon=False)
    return save(figure, directory, name)


def one_run(run, setting, size, base, directory):
    """Traffic of the servers, phases with their deadlines, prefetches and tasks by wave, on one time axis."""
    began, ended = run["map"]
    end = ended - began
    figure, (traffic, lanes) = plt.subplots(2, 1, figsize=(9, 4.6), sharex=True, layout="constrained", gridspec_kw={"height_ratios": [1.2, 1]})
    for column, colour, label in ((1, SERVED, "read"), (2, WRITTEN, "written")):
        edges, rates = timeline.windows([(sample[0] - began, sample[column]) for sample in run["samples"]], WINDOW_S, end)
        traffic.stairs([rate / 1e6 for rate in rates], edges, baseline=None, color=colour, linewidth=1.4, label=label)
    traffic.axhline(size.pfs_bytes_per_s / 1e6, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    traffic.set_ylim(0, 1.25 * size.pfs_bytes_per_s / 1e6)
    traffic.set_ylabel("MB/s")
    traffic.set_title(f"{setting.title}: map time {end:.1f} s", loc="left", fontsize=10)
    traffic.legend(fontsize=8.5, frameon=False, ncols=2, loc="upper right")
    timeline.plain(traffic)
    hosts = timeline_lanes(lanes, run, began)
    row = len(hosts) + 1
    for phase in judge.beside(run):
        deadline = base.median_s * (1 + (setting.qos or 0.05)) + base.spread_s
        late = judge.length(phase) > deadline
        timeline.bar(lanes, (phase["began"] - began, phase["ended"] - began), row, LATE if late else PHASE)
        lanes.plot([phase["began"] - began + deadline] * 2, [row - 0.45, row + 0.45], color=INK, linewidth=1.2)
    lanes.set_ylim(-0.6, row + 0.6)
    lanes.set_yticks(range(row + 1), [*reversed(hosts), "prefetch", "writer"])
    lanes.set_xlim(0, end)
    lanes.set_xlabel("seconds since the map stage began; the black marks are deadlines of phases", loc="right")
    return save(figure, directory, f"run-{setting.name}")


def timeline_lanes(axis, run, began):
    """As timeline.lanes() of a run whose times are since 1970."""
    relative = [{**task, "began": task["began"] - began, "ended": task["ended"] - began} for task in run["tasks"]]
    waves = [{**wave, "prefetch": tuple(None if at is None else at - began for at in wave["prefetch"])} for wave in run["waves"]]
    timeline.lanes(axis, Shown(relative, waves, run["map"][1] - began))
    return sorted({task["host"] for task in relative})


class Shown:
    """What timeline.lanes() looks at."""

    def __init__(self, tasks, waves, map_s):
        self.tasks, self.waves, self.map_s = tasks, waves, map_s
