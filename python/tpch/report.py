"""The table, the figures and the plot of outcomes.

    report.py TPCH.JSON TPCH.SVG

draws the plot; it runs by a Python that has matplotlib.
"""

import json
import statistics
import sys
from pathlib import Path

# What the tier with waves may take of the PFS in a cold query, in what Spark alone takes.
COLD_MOST = 1.1
# Of the bytes that the plug-in reports, what tasks may leave unread in the median query.
UNREAD_MOST = 0.1
# Modes that prefetch nothing, whatever the plug-in reports.
WITHOUT_WAVES = ("alone", "tier")


def by_query(outcomes):
    """Runs by query, mode and `cold` or `second`."""
    found = {}
    for outcome in outcomes:
        for one in outcome["runs"]:
            found.setdefault(outcome["query"], {}).setdefault(outcome["mode"], {})[one["run"]] = one
    return found


def ratio(runs, mode, name="cold"):
    """Cold bytes of a mode from the PFS over those of Spark alone; None without Spark alone."""
    if "alone" not in runs or mode not in runs:
        return None
    return runs[mode][name]["served_bytes"] / max(runs["alone"]["cold"]["served_bytes"], 1)


def mb(count):
    return f"{count / 1e6:.2f}"


def table(outcomes, times):
    """Lines of Markdown; with `times` also the seconds of each run."""
    found = by_query(outcomes)
    modes = list(dict.fromkeys(outcome["mode"] for outcome in outcomes))
    reporting = [mode for mode in modes if mode not in WITHOUT_WAVES]
    head = ["query", "asked for, MB"] + [f"{mode}, MB" for mode in modes]
    head += [f"{mode} / alone" for mode in modes if mode != "alone"] + [f"second {mode}, MB" for mode in modes]
    head += [f"{mode}: {what}" for mode in reporting for what in ("reported, MB", "not read", "prefetched", "fallbacks")]
    head += [f"{name} {mode}, s" for mode in modes for name in ("cold", "second")] if times else []
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    for number, runs in sorted(found.items()):
        cells = [f"Q{number}", mb(next(iter(runs.values()))["cold"]["asked_bytes"])]
        cells += [mb(runs[mode]["cold"]["served_bytes"]) for mode in modes]
        cells += ["-" if ratio(runs, mode) is None else f"{ratio(runs, mode):.2f}" for mode in modes if mode != "alone"]
        cells += [mb(runs[mode]["second"]["served_bytes"]) for mode in modes]
        cells += [cell for mode in reporting for cell in reported(runs[mode]["cold"])]
        cells += [f"{runs[mode][name]['seconds']:.1f}" for mode in modes for name in ("cold", "second")] if times else []
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def reported(one):
    """Cells of one run: what was reported, the shares not read and prefetched, and fallbacks."""
    unread, prefetched = unread_share(one), prefetched_share(one)
    shares = ["-" if share is None else f"{100 * share:.1f} %" for share in (unread, prefetched)]
    return [mb(one.get("reported_bytes", 0)), *shares, str(sum(one.get("fallbacks", {}).values()))]


def unread_share(one):
    """Of the reported bytes, those that no task has read; None if nothing was reported."""
    return one["unread_bytes"] / one["reported_bytes"] if one.get("reported_bytes") else None


def prefetched_share(one):
    """Of the pages that the tier has fetched, those of waves; None if it fetched none."""
    pages = one.get("pages", {})
    return pages["planned"] / sum(pages.values()) if sum(pages.values()) else None


def summary(outcomes):
    """What the targets are about."""
    found = by_query(outcomes)
    result = {}
    for mode in dict.fromkeys(outcome["mode"] for outcome in outcomes):
        if mode == "alone":
            continue
        ratios = {number: ratio(runs, mode) for number, runs in found.items()}
        known = {number: value for number, value in ratios.items() if value is not None}
        result[mode] = {
            "cold_over_alone_median": statistics.median(known.values()) if known else None,
            "cold_over_alone_max": max(known.values()) if known else None,
            "cold_beyond_target": sorted(number for number, value in known.items() if value > COLD_MOST),
            "second_not_zero": sorted(number for number, runs in found.items() if runs[mode]["second"]["served_bytes"] > 0),
            "queries": len(found),
            **({} if mode in WITHOUT_WAVES else {"fallbacks": fallbacks(found, mode), **unread(found, mode)}),
        }
    return result


def fallbacks(found, mode):
    """By reason, how often cold queries met it."""
    counts = {}
    for runs in found.values():
        for why, count in runs[mode]["cold"].get("fallbacks", {}).items():
            counts[why] = counts.get(why, 0) + count
    return dict(sorted(counts.items()))


def unread(found, mode):
    """Shares of reported bytes that no task read, and of prefetched pages; of the cold runs."""
    cold = {number: runs[mode]["cold"] for number, runs in found.items()}
    shares = {number: unread_share(one) for number, one in cold.items() if unread_share(one) is not None}
    if not shares:
        return {}
    planned = sum(one["pages"]["planned"] for one in cold.values())
    pages = sum(sum(one["pages"].values()) for one in cold.values())
    return {
        "unread_share_median": statistics.median(shares.values()),
        "unread_share_max": max(shares.values()),
        "unread_beyond_target": sorted(number for number, share in shares.items() if share > UNREAD_MOST),
        "reported_queries": len(shares),
        "prefetched_share": planned / max(pages, 1),
    }


def verdict(figures):
    """Lines of text: what was met, and where not."""
    lines = []
    for mode, of in figures.items():
        beyond, more = of["cold_beyond_target"], of["second_not_zero"]
        if of["cold_over_alone_median"] is not None:
            met = of["queries"] - len(beyond)
            lines.append(
                f"{mode}: cold, {met} of {of['queries']} queries take at most {COLD_MOST} times what Spark alone takes"
                f" (median {of['cold_over_alone_median']:.2f}, largest {of['cold_over_alone_max']:.2f})"
                + (f"; beyond it: {', '.join(f'Q{number}' for number in beyond)}" if beyond else "")
            )
        lines.append(
            f"{mode}: the second run takes nothing from the PFS in {of['queries'] - len(more)} of {of['queries']} queries"
            + (f"; it does in {', '.join(f'Q{number}' for number in more)}" if more else "")
        )
        if "unread_share_median" in of:
            beyond = of["unread_beyond_target"]
            lines.append(
                f"{mode}: cold, tasks do not read {100 * of['unread_share_median']:.1f} % of the reported bytes in the median query"
                f" (target: at most {100 * UNREAD_MOST:.0f} %), {100 * of['unread_share_max']:.1f} % at most"
                + (f"; more than the target in {', '.join(f'Q{number}' for number in beyond)}" if beyond else "")
            )
            lines.append(f"{mode}: cold, {100 * of['prefetched_share']:.0f} % of the pages that the tier fetched were prefetched")
            lines += [f"{mode}: without a plan, {count} {why}" for why, count in of["fallbacks"].items()] or [f"{mode}: nothing was read without a plan"]
    return lines


def draw(outcomes, path):
    """Bytes from the PFS by query and mode, cold."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = by_query(outcomes)
    modes = list(dict.fromkeys(outcome["mode"] for outcome in outcomes))
    colours = {"alone": "#8a97a6", "tier": "#d95f02", "no-action": "#1f77b4"}
    plt.rcParams.update({"font.family": "DejaVu Sans", "font.size": 9.5, "svg.fonttype": "path"})
    figure, axis = plt.subplots(figsize=(10, 3.8), layout="constrained")
    numbers, width = sorted(found), 0.8 / len(modes)
    for place, mode in enumerate(modes):
        at = [i + (place - (len(modes) - 1) / 2) * width for i in range(len(numbers))]
        axis.bar(at, [found[number][mode]["cold"]["served_bytes"] / 1e6 for number in numbers], width, label=mode, color=colours[mode])
    axis.set_xticks(range(len(numbers)), [f"Q{number}" for number in numbers])
    axis.set_ylabel("MB from the PFS, cold")
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    axis.legend(frameon=False, ncols=len(modes), loc="upper left")
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text())["outcomes"], sys.argv[2])
