"""The figures: memory of the node over time, throughput of the reader, times of programs and of iterations."""

import statistics

import matplotlib

matplotlib.use("Agg")
import judge
import matplotlib.pyplot as plt
from timeline import INK, MUTED, STYLE, plain

COLOURS = {"upper": "#66717d", "forebay": "#1f77b4", "dynims": "#2a9d5c", "small": "#d95f02", "large": "#b3261e", "control": "#a58ac4", "none": "#c9a227"}
USED, TIER = "#c3cbd4", "#1f77b4"
GIB = 1 << 30
MIB = 1 << 20
WINDOW_S = 1.0


def save(figure, directory, name):
    for ending in ("svg", "png"):
        figure.savefig(directory / f"{name}.{ending}", dpi=140)
    plt.close(figure)
    return f"{name}.svg"


def panels(count, height=2.1):
    plt.rcParams.update(STYLE)
    figure, axes = plt.subplots(count, 1, figsize=(9, height * count + 0.6), squeeze=False, layout="constrained")
    return figure, [row[0] for row in axes]


def memory(results, directory):
    """Use and tier of each limited setting over time, bursts shaded."""
    shown = [name for name in ("forebay", "dynims", "small", "large") if name in results]
    figure, axes = panels(len(shown))
    for axis, name in zip(axes, shown):
        result = results[name]
        start, limit = result["began"], result["sizes"]["node"]
        times = [at - start for at, _, _ in result["samples"]]
        axis.fill_between(times, [used / GIB for _, used, _ in result["samples"]], color=USED, linewidth=0)
        axis.plot(times, [tier / GIB for _, _, tier in result["samples"]], color=TIER, linewidth=1.4)
        for burst in result["bursts"]:
            axis.axvspan(burst["began"] - start, burst["ended"] - start, color="#d95f02", alpha=0.18, linewidth=0)
        axis.axhline(limit * result["sizes"]["target"] / GIB, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
        axis.axhline(limit / GIB, color=INK, linewidth=0.9)
        axis.set_title(f"{name}: memory in use (grey), of it the tier (blue); HPL and the hog shaded", loc="left", fontsize=10)
        axis.set_ylabel("GiB")
        plain(axis, grid=True)
    axes[-1].set_xlabel("seconds", loc="right")
    return save(figure, directory, "memory")


def reader(results, directory, kind="reads", title="Sequential reader, the hog beside it", name="reader"):
    """Throughput of a reader over time."""
    figure, (axis,) = panels(1, 3.2)
    for setting, colour in COLOURS.items():
        reads = results.get(setting, {}).get(kind, [])
        if len(reads) > 1:
            points = rates(reads)
            axis.plot([at - reads[0][0] for at, _ in points], [rate / 1e6 for _, rate in points], color=colour, linewidth=1.4, label=setting)
    axis.set_yscale("log")
    axis.set_title(title, loc="left", fontsize=10)
    axis.set_ylabel("MB/s")
    axis.set_xlabel("seconds", loc="right")
    plain(axis, grid=True)
    axis.legend(fontsize=8.5, frameon=False, ncols=4)
    return save(figure, directory, name)


def rates(reads):
    """Middle and rate of windows, from (seconds, bytes so far)."""
    found, first = [], reads[0]
    for sample in reads[1:]:
        if sample[0] - first[0] >= WINDOW_S:
            found.append(((sample[0] + first[0]) / 2, (sample[1] - first[1]) / (sample[0] - first[0])))
            first = sample
    return found


def programs(results, directory):
    """Mean time of an iteration of each program, by setting."""
    shown = [name for name in COLOURS if judge.seconds(results.get(name, {}))]
    figure, (axis,) = panels(1, 3.2)
    width = 0.8 / max(len(shown), 1)
    for i, name in enumerate(shown):
        result = results[name]
        heights = [statistics.mean(judge.iterations_s(result, one)) for one in result["programs"]]
        axis.bar([x + (i - (len(shown) - 1) / 2) * width for x in range(len(heights))], heights, width, color=COLOURS[name], label=name)
    axis.set_xticks(range(4), ["K-means", "logistic regression", "linear regression", "SVM"])
    axis.set_title("Spark ML: mean time of an iteration", loc="left", fontsize=10)
    axis.set_ylabel("seconds")
    plain(axis, grid=True)
    axis.legend(fontsize=8.5, frameon=False, ncols=4)
    return save(figure, directory, "programs")


def kmeans_sizes(found, directory):
    """Time of K-means by the size of the input, from kmeans-sizes.json."""
    figure, (axis,) = panels(1, 3.2)
    for name, times in found.items():
        points = sorted((one["input"] / MIB, one["seconds"]) for one in times.values() if one["seconds"])
        axis.plot([size for size, _ in points], [time for _, time in points], "o-", markersize=4, linewidth=1.4, color=COLOURS.get(name, INK), label=name)
    axis.set_title("K-means with the hog beside it, by size of the input", loc="left", fontsize=10)
    axis.set_ylabel("seconds")
    axis.set_xlabel("MiB", loc="right")
    axis.set_ylim(bottom=0)
    plain(axis, grid=True)
    axis.legend(fontsize=8.5, frameon=False, ncols=4)
    return save(figure, directory, "kmeans-sizes")


def iterations(results, directory):
    """Time of each pass over the input, over time."""
    figure, (axis,) = panels(1, 3.2)
    for name, colour in COLOURS.items():
        result = results.get(name, {})
        if judge.seconds(result):
            start = result["programs"][0]["began_ms"]
            jobs = [job for program in result["programs"] for job in program["jobs_ms"][-result["iterations"]:]]
            axis.plot([(begin - start) / 1e3 for begin, _ in jobs], [(end - begin) / 1e3 for begin, end in jobs], "o-", markersize=3, linewidth=1, color=colour, label=name)
    axis.set_title("Spark ML: time of each iteration", loc="left", fontsize=10)
    axis.set_ylabel("seconds")
    axis.set_xlabel("seconds since the first program began", loc="right")
    plain(axis, grid=True)
    axis.legend(fontsize=8.5, frameon=False, ncols=4)
    return save(figure, directory, "iterations")


def draw(results, sizes, directory):
    """File names by caption; `sizes`: K-means over several sizes, by setting."""
    found = {}
    if any(name in results for name in ("forebay", "dynims", "small", "large")):
        found["Memory of the node (the paper's figures 3-6 and 3-13)"] = memory(results, directory)
    if any(results[name].get("reads") for name in results):
        found["Sequential reader (figure 3-7)"] = reader(results, directory)
    if any(results[name].get("skips") for name in results):
        title = "Reader that skips as much as it reads, the hog beside it"
        found["Reader that skips (figure 3-8)"] = reader(results, directory, "skips", title, "skipping")
    if any(judge.seconds(results[name]) for name in results):
        found["Time of programs (figure 3-9)"] = programs(results, directory)
        found["Time of iterations (figure 3-11)"] = iterations(results, directory)
    if sizes:
        found["K-means by size of the input (figure 3-10)"] = kmeans_sizes(sizes, directory)
    return found
