"""The report of the experiment: targets with what was measured, tables, a CSV of all steps, and a plot."""

import csv
import statistics

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from workloads import ARRIVALS, CATALYST, PARTIAL

# Of the paper's figure 10: times as long as alone.
PRINTED = {"none": {"J24p": 5.15, "J96p": 3.33, "J384p": 1.2}, "sa-sjf": {"J24p": 1.05, "J96p": 1.5, "J384p": 1.26}}
ORDERS = ["none", "sa-fcfs", "sa-sjf", "coflow"]
COLOURS = {"none": "#66717d", "sa-fcfs": "#8ab4d8", "sa-sjf": "#2a6fb0", "coflow": "#2a9d5c"}
SIMULATED_WITHIN = 0.15


def of(runs, part, access):
    """The runs of a workload under an order."""
    return [run for name, run in runs.items() if name.startswith(f"{part}/{access}/")]


def total(run, key="io_s"):
    return sum(row[key] for row in run["steps"])


def middle(runs, part, access, key="io_s"):
    """The median over the runs of the sum of I/O times; None if there is no run."""
    found = [total(run, key) for run in of(runs, part, access)]
    return statistics.median(found) if found else None


def against_none(runs, part, access):
    """Median of the change of the sum against `none` in the same order of arrival, in percent."""
    pairs = zip(of(runs, part, access), of(runs, part, "none"))
    changes = [100 * (total(run) / total(none) - 1) for run, none in pairs]
    return statistics.median(changes) if changes else None


def slowdowns(runs, access):
    """By job of Catalyst: the median of the I/O time in times alone, live and simulated."""
    found = {}
    for kind in CATALYST:
        rows = [row for run in of(runs, "catalyst", access) for row in run["steps"] if row["kind"] == kind.name]
        if rows:
            found[kind.name] = tuple(statistics.median(row[key] / row["alone_s"] for row in rows) for key in ("io_s", "sim_s"))
    return found


def targets(runs):
    """(target, measured, met) for each that was measured."""
    found = []
    none, sjf = slowdowns(runs, "none"), slowdowns(runs, "sa-sjf")
    if none and sjf:
        order = [none[job][0] for job in ("J24p", "J96p", "J384p")]
        found.append(("the smaller the job, the more it suffers without order, as on Catalyst", ", ".join(f"{x:.2f}x" for x in order), order == sorted(order, reverse=True)))
        better = sum(x[0] for x in sjf.values()) < sum(x[0] for x in none.values()) and sjf["J24p"][0] < none["J24p"][0] and sjf["J96p"][0] < none["J96p"][0]
        found.append(("SJF shortens the small jobs' steps, as on Catalyst", ", ".join(f"{x[0]:.2f}x" for x in sjf.values()), better))
    gaps = [(abs(middle(runs, part, access) / middle(runs, part, access, "sim_s") - 1), part, access) for part in ["catalyst", *PARTIAL, *ARRIVALS] for access in ORDERS if of(runs, part, access)]
    if gaps:
        inside = sum(gap <= SIMULATED_WITHIN for gap, *_ in gaps)
        worst = max(gaps)
        found.append((f"sums of I/O times within {SIMULATED_WITHIN:.0%} of the simulator's", f"{inside} of {len(gaps)}; worst {worst[0]:.0%} ({worst[1]}, {worst[2]})", inside == len(gaps)))
    for access in ("sa-sjf", "coflow"):
        changes = {part: change for part in PARTIAL if (change := against_none(runs, part, access)) is not None}
        if changes:
            found.append((f"{access} below none in each batch", ", ".join(f"{part} {change:+.0f} %" for part, change in changes.items()), all(change < 0 for change in changes.values())))
    for part, load in ARRIVALS.items():
        change = against_none(runs, part, "coflow")
        if change is None:
            continue
        simulated = statistics.median(100 * (total(run, "sim_s") / total(none, "sim_s") - 1) for run, none in zip(of(runs, part, "coflow"), of(runs, part, "none")))
        title = f"{part}, a load of {load}"
        found.append((f"{title}: coflow at least 20 % below none", f"{change:+.0f} % (simulated {simulated:+.0f} %)", change <= -20))
        longest, longest_none = ([max(row["io_s"] for row in run["steps"]) for run in of(runs, part, access)] for access in ("coflow", "none"))
        ratio = statistics.median(a / b for a, b in zip(longest, longest_none))
        found.append((f"{title}: the longest step at most 1.1 of none's", f"{ratio:.2f}", ratio <= 1.1))
    return found


def tables(runs):
    lines = []
    if of(runs, "catalyst", "none"):
        lines += ["## Three jobs on all servers", "", "Times as long as alone: measured / simulated, and as the paper printed it.", "", "| order | J24p | J96p | J384p |", "| --- | --- | --- | --- |"]
        for access in ("none", "sa-sjf", "sa-fcfs", "coflow"):
            found = slowdowns(runs, access)
            cells = [f"{live:.2f} / {sim:.2f}" + (f" ({PRINTED[access][job]})" if access in PRINTED else "") for job, (live, sim) in found.items()]
            if cells:
                lines.append(f"| {access}{' (largest first)' if access == 'sa-fcfs' else ''} | {' | '.join(cells)} |")
        lines.append("")
    parts = [part for part in [*PARTIAL, *ARRIVALS] if of(runs, part, "none")]
    if parts:
        lines += ["## Jobs on a part of the servers", "", "Sum of I/O times in seconds, measured / simulated, the median of the runs; and the change against `none`.", ""]
        lines += [f"| workload | {' | '.join(ORDERS)} |", f"| --- |{' --- |' * len(ORDERS)}"]
        for part in parts:
            cells = []
            for access in ORDERS:
                if not of(runs, part, access):
                    cells.append("")
                    continue
                change = "" if access == "none" else f", {against_none(runs, part, access):+.0f} %"
                cells.append(f"{middle(runs, part, access):.1f} / {middle(runs, part, access, 'sim_s'):.1f}{change}")
            lines.append(f"| {part} | {' | '.join(cells)} |")
        lines.append("")
    return lines


def write(runs, sizes, directory):
    lines = ["# Steps of MPI jobs under each order", ""]
    lines += [f"Eight servers of {sizes.rate / 1e6:g} MB/s each. A unit of the steps takes {sizes.unit_s:g} s on one server. Each figure is the median of the runs, each in another order of arrival.", ""]
    lines += ["| target | measured | met |", "| --- | --- | --- |"]
    lines += [f"| {target} | {measured} | {'yes' if met else '**no**'} |" for target, measured, met in targets(runs)]
    lines += ["", *tables(runs), f"![sums of I/O times]({plot(runs, directory)})", ""]
    (directory / "burst.md").write_text("\n".join(lines))
    with (directory / "burst.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["run", "access", "job", "kind", "alone_s", "wait_s", "io_s", "sim_s"])
        for name, run in runs.items():
            for row in run.get("steps", []):
                rows.writerow([name, run["access"], row["job"], row["kind"], *(f"{row[key]:.4f}" for key in ("alone_s", "wait_s", "io_s", "sim_s"))])


def plot(runs, directory):
    """Sums of I/O times of each workload, as a part of those without order."""
    parts = [part for part in ["catalyst", *PARTIAL, *ARRIVALS] if of(runs, part, "none")]
    figure, axis = plt.subplots(figsize=(9, 3.8), layout="constrained")
    for i, access in enumerate(ORDERS):
        at = [x + 0.16 * (i - 2) for x, part in enumerate(parts) if of(runs, part, access)]
        shown = [part for part in parts if of(runs, part, access)]
        axis.bar(at, [middle(runs, part, access) / middle(runs, part, "none") for part in shown], 0.15, color=COLOURS[access], label=access)
        axis.plot(at, [middle(runs, part, access, "sim_s") / middle(runs, part, "none") for part in shown], "_", color="black", markersize=9)
    axis.axhline(1, color="#66717d", linewidth=0.8)
    axis.set_xticks(range(len(parts)), parts)
    axis.set_ylabel("sum of I/O times, none = 1")
    axis.set_title("Measured (bars) and simulated (lines)", loc="left", fontsize=10)
    axis.legend(fontsize=8.5, frameon=False, ncols=5)
    figure.savefig(directory / "burst.png", dpi=140)
    plt.close(figure)
    return "burst.png"
