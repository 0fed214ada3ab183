"""The report of the experiment with checkpoints: checkpoint.json with all figures, checkpoint.md with the tables and plots."""

import json
import statistics
from dataclasses import asdict

import judge
import matplotlib.pyplot as plt
import plots
import report
import sizes
import targets
import timeline
from targets import Row

KEPT_MIN = 0.95
# I/O time of a checkpoint in memory, of that on the file system.
BLOCKED_MAX = 0.5
# What Spark may lose beside checkpoints, of its map time.
LOST_MAX = 0.05


def write(results, size, directory):
    """Writes both files and prints the table."""
    judged, host = list(rows(results, size)), report.machine()
    found = {"machine": host, "sizes": asdict(size), "targets": [asdict(row) for row in judged], "settings": {name: figures(results, name) for name in sizes.CHECKPOINTS if judge.runs(results, name)}}
    (directory / "checkpoint.json").write_text(json.dumps(found, indent=1) + "\n")
    lines = [
        "# Checkpoints: the experiment", "",
        f"{host['cores']} cores ({host['processor']}, Linux {host['kernel']}, load {host['load']:.1f} at the end). {size.pfs}: {size.servers} servers of {size.rate:g} MB/s, both directions together. "
        f"Checkpoints: {size.ranks} ranks, {size.phase_bytes >> 20} MiB, {size.compute_s:g} s of computing between two; the writer with deadlines is the same program. Spark: {size.workload} over {size.input_bytes >> 20} MiB.",
        "", "## Targets", "", *targets.table(judged), "", "## Settings", "", *table(found["settings"]), "",
    ]
    for caption, name in draw(results, size, directory).items():
        lines += [f"## {caption}", "", f"![{caption}]({name})", ""]
    (directory / "checkpoint.md").write_text("\n".join(lines) + "\n")
    print("\n".join(targets.table(judged)))
    print(f"\nreport: {directory / 'checkpoint.md'}")


def blocked(results, name):
    """Seconds that each checkpoint took its program; without the first one of each run, which creates the files."""
    return [judge.length(phase) for result in judge.runs(results, name) for phase in result["saves"][1:]]


def protected(results, name):
    """Seconds of the phases of the writer with deadlines."""
    return [judge.length(phase) for result in judge.runs(results, name) for phase in result["phases"][1:]]


def figures(results, name):
    measured = judge.runs(results, name)
    found = {"title": sizes.named(name).title, "runs": len(measured), "phase_s": protected(results, name)}
    found["saved_s"] = blocked(results, name) if sizes.named(name).saves else []
    found["map_s"] = judge.map_s(results, name) if sizes.named(name).spark else []
    found["drains"] = [result["drain"] for result in measured if "drain" in result]
    return found


def rows(results, size):
    """Of the table of targets, for those results that there are."""
    base, straight = judge.alone(results), blocked(results, "saves")
    for name, beside in (("saves-back", "alone"), ("pair-back", "beside a writer with deadlines"), ("spark-saves-back", "beside Spark")):
        back = blocked(results, name)
        if back and straight:
            share = statistics.median(back) / statistics.median(straight)
            yield Row(f"I/O time of a checkpoint, write-back, {beside}", f"{statistics.median(back):.2f} s, {100 * share:.0f} % of that straight and alone", f"<= {100 * BLOCKED_MAX:.0f} %", share <= BLOCKED_MAX,
                      f"{len(back)} checkpoints, longest {max(back):.2f} s; straight {statistics.median(straight):.2f} s")
    for name in ("pair", "pair-back"):
        times = protected(results, name)
        if times and base:
            inside = sum(time <= base.median_s * 1.05 + base.spread_s for time in times)
            slower = statistics.mean(times) / base.median_s - 1
            is_target = name == "pair-back"
            yield Row(f"`{name}`: phases of the other job within 5 %", f"{inside} of {len(times)} ({100 * inside / len(times):.0f} %)", f">= {100 * KEPT_MIN:.0f} %" if is_target else "-",
                      inside / len(times) >= KEPT_MIN if is_target else None, f"mean {judge.percent(slower)}")
    alone = judge.map_s(results, "spark") if judge.runs(results, "spark") else []
    for name in ("spark-saves", "spark-saves-back"):
        times = judge.map_s(results, name) if judge.runs(results, name) else []
        if times and alone:
            lost = statistics.mean(times) / statistics.mean(alone) - 1
            is_target = name == "spark-saves-back"
            yield Row(f"`{name}`: what Spark loses", judge.percent(lost), f"<= {judge.percent(LOST_MAX)}" if is_target else "-", lost <= LOST_MAX if is_target else None,
                      f"map time {statistics.mean(times):.1f} s, alone {statistics.mean(alone):.1f} s")
    for name in ("saves-back", "pair-back", "spark-saves-back"):
        drains = [result["drain"] for result in judge.runs(results, name)]
        if drains:
            written = sum(result["drain"]["absorbed_files_total"] for result in judge.runs(results, name)) * size.rank_bytes
            forced = sum(one["drained_for_room_bytes"] + one["drained_for_age_bytes"] for one in drains)
            yield Row(f"`{name}`: on the file system", f"{max(one['after_s'] for one in drains):.1f} s after the last checkpoint at the latest", "-", None,
                      f"{sum(one['drained_bytes'] for one in drains) / max(written, 1):.2f} of the bytes were drained, {forced >> 20} MiB of them in phases of others")


def table(found):
    lines = ["| setting | runs | checkpoint | worst | phase of the other job | worst | map time |", "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    longest = lambda times: f"{max(times):.2f} s" if times else "-"  # noqa: E731
    for one in found.values():
        cells = [one["title"], str(one["runs"]), report.mean(one["saved_s"], "{:.2f} s"), longest(one["saved_s"]), report.mean(one["phase_s"], "{:.2f} s"), longest(one["phase_s"]), report.mean(one["map_s"], "{:.1f} s")]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def draw(results, size, directory):
    """File names by caption."""
    plt.rcParams.update(timeline.STYLE)
    found = {}
    shown = [sizes.named(name) for name in sizes.CHECKPOINTS if sizes.named(name).saves and judge.runs(results, name)]
    if shown:
        figure, axis = plt.subplots(figsize=(9, 3.8), layout="constrained")
        for x, setting in enumerate(shown):
            times = blocked(results, setting.name)
            axis.bar(x, statistics.mean(times), 0.6, color=plots.COMPUTE[1])
            axis.plot([x + 0.4 * (i / max(len(times) - 1, 1) - 0.5) for i in range(len(times))], times, ".", color=plots.INK, markersize=4)
        found["I/O time of a checkpoint"] = plots.bars(figure, axis, shown, "I/O time of checkpoints: mean and single ones", directory, "checkpoints")
    for name in ("pair", "pair-back"):
        run = next(iter(judge.runs(results, name)), None)
        if run and run["phases"] and judge.alone(results):
            found[f"One run: {sizes.named(name).title}"] = one_run(run, sizes.named(name), size, judge.alone(results), directory)
    return found


def one_run(run, setting, size, base, directory):
    """Traffic of the servers, phases of the other job with their deadlines, and checkpoints."""
    began = run["phases"][0]["began"]
    end = max(run["phases"][-1]["ended"], run["drain"]["safe"]) - began
    figure, (traffic, lanes) = plt.subplots(2, 1, figsize=(9, 3.8), sharex=True, layout="constrained", gridspec_kw={"height_ratios": [1.4, 1]})
    edges, rates = timeline.windows([(sample[0] - began, sample[2]) for sample in run["samples"]], plots.WINDOW_S, end)
    traffic.stairs([rate / 1e6 for rate in rates], edges, baseline=None, color=plots.WRITTEN, linewidth=1.4)
    traffic.axhline(size.pfs_bytes_per_s / 1e6, color=plots.MUTED, linewidth=1, linestyle=(0, (4, 3)))
    traffic.set_ylim(0, 1.25 * size.pfs_bytes_per_s / 1e6)
    traffic.set_ylabel("MB/s written")
    traffic.set_title(setting.title, loc="left", fontsize=10)
    timeline.plain(traffic)
    allowed_s = base.median_s * 1.05 + base.spread_s
    for phase in run["phases"]:
        timeline.bar(lanes, (phase["began"] - began, phase["ended"] - began), 1, plots.LATE if judge.length(phase) > allowed_s else plots.PHASE)
        lanes.plot([phase["began"] - began + allowed_s] * 2, [0.55, 1.45], color=plots.INK, linewidth=1.2)
    for phase in run["saves"]:
        if phase["ended"] > began:
            timeline.bar(lanes, (max(phase["began"] - began, 0), phase["ended"] - began), 0, plots.COMPUTE[1])
    lanes.set_ylim(-0.6, 1.6)
    lanes.set_yticks([0, 1], ["checkpoints", "other job"])
    lanes.set_xlim(0, end)
    lanes.set_xlabel("seconds; the black marks are deadlines of the other job's phases", loc="right")
    return plots.save(figure, directory, f"run-{setting.name}")
