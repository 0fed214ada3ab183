"""One picture: for each workload the PFS's traffic, the prefetch and the compute of each wave over time, without prefetch and with it."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from waves import TITLES, WORKLOADS

INK, MUTED, GRID = "#1f2933", "#66717d", "#e3e7eb"
STYLE = {"font.family": "DejaVu Sans", "font.size": 9.5, "text.color": INK, "axes.labelcolor": INK, "svg.fonttype": "path"}
SERVED = "#d95f02"
# Waves in turn, so that a bar can be told from the next.
COMPUTE = ("#1f77b4", "#7fb2dc")
PREFETCH = ("#d95f02", "#f4a25f")
WINDOW_S = 0.5


def draw(runs, pfs_rate_bytes_per_s, subtitle, paths, modes=("naive-bb", "no-action")):
    """Draws the runs of `modes` into each of `paths`: a column for each workload, one time axis for all."""
    shown = [[next(r for r in runs if (r.workload, r.mode) == (w, m)) for m in modes] for w in WORKLOADS if any(r.workload == w for r in runs)]
    end = max(run.map_s for column in shown for run in column) * 1.03
    plt.rcParams.update(STYLE)
    width = 6.2 * max(len(shown), 1.4)
    left = 0.8 / width
    figure, axes = plt.subplots(
        2 * len(modes), len(shown), figsize=(width, 7.2), sharex=True, squeeze=False,
        gridspec_kw={"height_ratios": [1.3, 1] * len(modes), "hspace": 0.42, "wspace": 0.16},
    )
    for x, column in enumerate(shown):
        for y, run in enumerate(column):
            traffic(axes[2 * y][x], run, pfs_rate_bytes_per_s, end)
            lanes(axes[2 * y + 1][x], run)
        axes[-1][x].set_xlabel("seconds since the reading stage began", loc="right")
    axes[0][0].set_xlim(0, end)
    handles = [
        plt.Line2D([], [], color=SERVED, linewidth=1.8),
        plt.Line2D([], [], color=MUTED, linewidth=1, linestyle=(0, (4, 3))),
        plt.Rectangle((0, 0), 1, 1, color=PREFETCH[0]),
        plt.Rectangle((0, 0), 1, 1, color=COMPUTE[0]),
    ]
    limit = f"limit of the PFS ({pfs_rate_bytes_per_s / 1e6:.0f} MB/s)"
    figure.legend(handles, ["served by the PFS", limit, "prefetch of a wave", "tasks of a wave"], loc="lower left", bbox_to_anchor=(left - 0.01, 0.0), ncols=4, frameon=False, fontsize=9)
    figure.text(left, 0.968, "While one wave computes, the next is brought", fontsize=15, fontweight="bold", va="center")
    figure.text(left, 0.928, subtitle, fontsize=9.5, color=MUTED, va="center")
    figure.subplots_adjust(left=left, right=0.985, top=0.86, bottom=0.11)
    for path in paths:
        figure.savefig(path, dpi=160)
    plt.close(figure)


def traffic(axis, run, limit, end):
    edges, rates = windows(run.samples, WINDOW_S, end)
    axis.stairs([rate / 1e6 for rate in rates], edges, fill=True, color=SERVED, alpha=0.18, linewidth=0)
    axis.stairs([rate / 1e6 for rate in rates], edges, baseline=None, color=SERVED, linewidth=1.6)
    axis.axhline(limit / 1e6, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    axis.axvline(run.map_s, color=MUTED, linewidth=0.8)
    axis.set_ylim(0, 1.25 * limit / 1e6)
    axis.set_ylabel("MB/s")
    axis.set_title(f"{WORKLOADS[run.workload]}, {TITLES[run.mode]}: map time {run.map_s:.1f} s", loc="left", fontsize=10, color=INK)
    plain(axis, grid=True)


def windows(samples, window_s, end):
    """Edges and mean rates of windows between 0 and `end`, from (seconds, bytes so far)."""
    edges, rates, first = [], [], None
    for sample in samples:
        if sample[0] < 0 or first is None:
            first = sample
            continue
        if sample[0] - first[0] >= window_s:
            if not edges:
                edges.append(max(first[0], 0.0))
            edges.append(sample[0])
            rates.append((sample[1] - first[1]) / (sample[0] - first[0]))
            first = sample
            if sample[0] > end:
                break
    return edges or [0.0, end], rates or [0.0]


def lanes(axis, run):
    """A bar for the prefetch, one for the tasks of each host."""
    hosts = sorted({task["host"] for task in run.tasks})
    for i, wave in enumerate(run.waves):
        bar(axis, wave["prefetch"], len(hosts), PREFETCH[i % 2])
    for lane, host in enumerate(hosts):
        mine = sorted((task for task in run.tasks if task["host"] == host), key=lambda task: task["began"])
        for i, task in enumerate(mine):
            bar(axis, (task["began"], task["ended"]), len(hosts) - 1 - lane, COMPUTE[i % 2])
    axis.set_ylim(-0.6, len(hosts) + 0.6)
    axis.set_yticks(range(len(hosts) + 1), [*reversed(hosts), "prefetch"])
    axis.axvline(run.map_s, color=MUTED, linewidth=0.8)
    plain(axis)


def bar(axis, span, lane, colour):
    if None not in span:
        axis.barh(lane, span[1] - span[0], left=span[0], height=0.62, color=colour, linewidth=0)


def plain(axis, grid=False):
    axis.set_axisbelow(True)
    if grid:
        axis.grid(axis="y", color=GRID, linewidth=0.8)
    axis.tick_params(color=GRID, labelcolor=MUTED, length=3, labelsize=8.5)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color(GRID)
