"""The table, the figures and the plot of outcomes.

    report.py TPCH.JSON TPCH.SVG

draws the plot; it runs by a Python that has matplotlib.
"""

import json
import math
import statistics
import sys
from pathlib import Path

# Spark alone, with the tables in the kernel's page cache: what a query takes when it waits for no
# byte of a file.
MEMORY = "memory"

# What the tier with waves may take of the PFS in a cold query, in what Spark alone takes.
COLD_MOST = 1.1
# Of the bytes that the plug-in reports, what tasks may leave unread in the median query.
UNREAD_MOST = 0.1
# Modes that prefetch nothing, whatever the plug-in reports.
WITHOUT_WAVES = ("alone", "tier")
# With the PFS as the limit: the time of a cold query divided by that of Spark alone, the geometric
# mean of the bound divided by the time of the cold query, and the time of a second run divided by
# that of Spark with the tables in the kernel's page cache.
SLOWER_MOST = 1.03
BOUND_LEAST = 0.7
SECOND_MOST = 1.03


def by_query(outcomes):
    """Runs by query, mode and `cold` or `second`."""
    found = {}
    for outcome in outcomes:
        for one in outcome["runs"]:
            found.setdefault(outcome["query"], {}).setdefault(outcome["mode"], {})[one["run"]] = one
    return found


def modes_of(outcomes):
    """The modes whose bytes are compared, as they ran."""
    return [mode for mode in dict.fromkeys(outcome["mode"] for outcome in outcomes) if mode != MEMORY]


def ratio(runs, mode, name="cold"):
    """Cold bytes of a mode from the PFS over those of Spark alone; None without Spark alone.

    Of several rounds, the most of the mode over the fewest of Spark alone.
    """
    if "alone" not in runs or mode not in runs:
        return None
    return runs[mode][name]["served_bytes"] / max(min(served_of_rounds(runs["alone"]["cold"])), 1)


def mb(count):
    return "-" if count is None else f"{count / 1e6:.2f}"


def table(outcomes, times):
    """Lines of Markdown; with `times` also the seconds of each run."""
    found = by_query(outcomes)
    modes = modes_of(outcomes)
    timed = list(dict.fromkeys(outcome["mode"] for outcome in outcomes)) if times else []
    reporting = [mode for mode in modes if mode not in WITHOUT_WAVES]
    head = ["query", "asked for, MB"] + [f"{mode}, MB" for mode in modes]
    head += [f"{mode} / alone" for mode in modes if mode != "alone"] + [f"second {mode}, MB" for mode in modes]
    head += [f"{mode}: {what}" for mode in reporting for what in ("reported, MB", "not read", "prefetched", "fallbacks")]
    head += [f"{name} {mode}, s" for mode in timed for name in ("cold", "second")]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    for number, runs in sorted(found.items()):
        cells = [f"Q{number}", mb(next(iter(runs.values()))["cold"]["asked_bytes"])]
        cells += [mb(runs[mode]["cold"]["served_bytes"]) for mode in modes]
        cells += ["-" if ratio(runs, mode) is None else f"{ratio(runs, mode):.2f}" for mode in modes if mode != "alone"]
        cells += [mb(runs[mode]["second"]["served_bytes"]) for mode in modes]
        cells += [cell for mode in reporting for cell in reported(runs[mode]["cold"])]
        cells += [f"{runs[mode][name]['seconds']:.1f}" for mode in timed for name in ("cold", "second")]
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
    for mode in modes_of(outcomes):
        if mode == "alone":
            continue
        ratios = {number: ratio(runs, mode) for number, runs in found.items()}
        known = {number: value for number, value in ratios.items() if value is not None}
        result[mode] = {
            "cold_over_alone_median": statistics.median(known.values()) if known else None,
            "cold_over_alone_max": max(known.values()) if known else None,
            "cold_beyond_target": sorted(number for number, value in known.items() if value > COLD_MOST),
            "second_not_zero": sorted(number for number, runs in found.items() if runs[mode]["second"]["beyond_rest_bytes"] > 0),
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


def times(outcomes, mode, rate_mb_per_s):
    """Ratios for the targets about time, of `mode`; None without runs of Spark alone.

    The bound of a cold query is an estimate: the longer of its bytes over the links, at
    `rate_mb_per_s`, and what the same query takes at the same time with its tables in the kernel's
    page cache. In it, reading and computing overlap from the first byte to the last. Its bytes are
    the fewest that a mode has read cold in any round; it is never longer than the query. Without
    runs in MEMORY there are only the ratios to Spark alone.
    """
    found = by_query(outcomes)
    if any(one not in runs for runs in found.values() for one in ("alone", mode)):
        return None
    cold_s = {number: (runs[mode]["cold"]["seconds"], runs["alone"]["cold"]["seconds"]) for number, runs in found.items()}
    of_alone = {number: seconds / alone for number, (seconds, alone) in cold_s.items()}
    result = {"cold_over_alone": spread(of_alone), "slower": sorted(number for number, value in of_alone.items() if value > SLOWER_MOST)}
    if any(MEMORY not in runs for runs in found.values()):
        return result
    of_bound, bound_of_alone, of_memory = {}, {}, {}
    for number, runs in found.items():
        seconds, alone = cold_s[number]
        fewest_bytes = min(min(served_of_rounds(runs[one]["cold"])) for one in ("alone", mode))
        bound = max(fewest_bytes / (rate_mb_per_s * 1e6), runs[MEMORY]["cold"]["seconds"])
        bound = min(bound, seconds, alone)
        of_bound[number] = bound / seconds
        bound_of_alone[number] = bound / alone
        of_memory[number] = runs[mode]["second"]["seconds"] / runs[MEMORY]["second"]["seconds"]
    return {**result, "bound_over_cold": spread(of_bound), "bound_over_alone": spread(bound_of_alone), "second_over_memory": spread(of_memory)}


def served_of_rounds(one):
    return one.get("served_bytes_of_rounds", [one["served_bytes"]])


def spread(values):
    """Least, greatest and geometric mean of the queries' `values`."""
    mean = math.exp(statistics.fmean(math.log(value) for value in values.values()))
    return {"least": min(values.values()), "greatest": max(values.values()), "mean": mean}


def verdict_of_times(mode, of):
    """Lines of text about `times`."""
    def words(key):
        one = of[key]
        return f"{one['least']:.2f} to {one['greatest']:.2f} (geometric mean {one['mean']:.2f})"

    slower = ", ".join(f"Q{number}" for number in of["slower"])
    lines = [f"{mode}: cold, a query takes {words('cold_over_alone')} of the time of Spark alone (target: at most {SLOWER_MOST}" + (f"; more in {slower})" if slower else ")")]
    if "second_over_memory" in of:
        lines += [
            f"{mode}: cold, the bound is {words('bound_over_cold')} of the time that the query took (target: at least {BOUND_LEAST} in the mean), and {words('bound_over_alone')} of the time of Spark alone",
            f"{mode}: the second run takes {words('second_over_memory')} of the time from the kernel's page cache (target: at most {SECOND_MOST})",
        ]
    return lines


def draw(outcomes, path):
    """Bytes from the PFS by query and mode, cold."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = by_query(outcomes)
    modes = modes_of(outcomes)
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
