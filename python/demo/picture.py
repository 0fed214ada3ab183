"""One picture: throughput over time, straight from the PFS above, through Forebay below, on the same axes."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from meter import rates
from timeline import INK, MUTED, SERVED, STYLE, plain

READ = {"straight": "#8a97a6", "forebay": "#1f77b4"}
TITLES = {"straight": "Straight from the PFS", "forebay": "Through Forebay"}


def draw(runs, pfs_rate_bytes_per_s, subtitle, paths):
    """Draws `runs` (two of show.Run) into each of `paths`."""
    plt.rcParams.update({**STYLE, "font.size": 10})
    end = max(run.samples[-1][0] for run in runs)
    window_s = max(0.3, end / 150)
    top = max(rate for run in runs for _, _, rate in rates(run.samples, 1, window_s)) / 1e6 * 1.22
    figure, axes = plt.subplots(2, 1, figsize=(10, 6.1), sharex=True, sharey=True, gridspec_kw={"hspace": 0.3})
    for axis, run in zip(axes, runs):
        panel(axis, run, window_s, pfs_rate_bytes_per_s, top, end)
    axes[1].set_xlabel("seconds since the start of the analysis", loc="right")
    earlier(axes[1], runs, top * (0.5 if pfs_rate_bytes_per_s / 1e6 < 0.4 * top else 0.2))
    axes[0].set_xlim(0, end)
    axes[0].set_ylim(0, top)
    handles = [
        plt.Rectangle((0, 0), 1, 1, color=READ["forebay"], alpha=0.85),
        plt.Line2D([], [], color=SERVED, linewidth=1.8),
        plt.Line2D([], [], color=MUTED, linewidth=1, linestyle=(0, (4, 3))),
    ]
    labels = ["read by the analysis", "served by the PFS", f"limit of the PFS ({pfs_rate_bytes_per_s / 1e6:.0f} MB/s)"]
    figure.legend(handles, labels, loc="lower left", bbox_to_anchor=(0.06, 0.002), ncols=3, frameon=False, fontsize=9)
    ratio = runs[0].seconds / runs[1].seconds
    headline = f"The same analysis, {ratio:.1f} times as fast" if ratio >= 1.05 else "The same analysis, both ways"
    figure.text(0.07, 0.965, headline, fontsize=15, fontweight="bold", va="center")
    figure.text(0.07, 0.915, subtitle, fontsize=9.5, color=MUTED, va="center")
    figure.subplots_adjust(left=0.07, right=0.985, top=0.84, bottom=0.125)
    for path in paths:
        figure.savefig(path, dpi=160)
    plt.close(figure)


def earlier(axis, runs, height):
    """Says in the room that the shorter run leaves how much shorter it is."""
    done, end = runs[1].passes[-1].end, runs[0].passes[-1].end
    if done < 0.8 * end:
        axis.annotate("", (done, height), (end, height), arrowprops={"arrowstyle": "<->", "color": MUTED, "linewidth": 1})
        text = f"done {runs[0].seconds - runs[1].seconds:.1f} s earlier"
        axis.text((done + end) / 2, height * 1.06, text, ha="center", va="bottom", fontsize=9.5, color=INK)


def panel(axis, run, window_s, limit, top, end):
    windows = rates(run.samples, 1, window_s)
    edges = [windows[0][0]] + [window[1] for window in windows]
    axis.stairs([rate / 1e6 for _, _, rate in windows], edges, fill=True, color=READ[run.key], alpha=0.85, linewidth=0)
    served = rates(run.samples, 2, window_s)
    edges = [served[0][0]] + [window[1] for window in served]
    axis.stairs([rate / 1e6 for _, _, rate in served], edges, baseline=None, color=SERVED, linewidth=1.8)
    axis.axhline(limit / 1e6, color=MUTED, linewidth=1, linestyle=(0, (4, 3)))
    for i, one in enumerate(run.passes):
        if i:
            axis.axvline(one.start, color=MUTED, linewidth=0.7, alpha=0.5)
        width = (one.end - one.start) / end
        # Names where there is room for them, numbers elsewhere.
        label = one.name if width > 0.013 * len(one.name) else str(i + 1)
        axis.text((one.start + one.end) / 2, top * 0.965, label, ha="center", va="top", fontsize=8.5, color=MUTED)
    title = f"{TITLES[run.key]}: {run.seconds:.1f} s, the PFS served {run.served_bytes / 1e9:.2f} GB"
    axis.set_title(title, loc="left", fontsize=10.5, color=INK)
    axis.set_ylabel("MB/s")
    plain(axis, grid=True)
