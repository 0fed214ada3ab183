"""The report: a table of all ways, the bound of the links, and a plot."""

import statistics

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

LOCAL_MIN = 0.95
MB = 1e6


def rows(runs):
    """Medians, by workload and way, in the order of the runs."""
    groups = {}
    for run in runs:
        groups.setdefault((run["workload"], run["way"]), []).append(run)
    numbers = ("job_s", "map_s", "local", "network_bytes", "server_bytes", "daemon_calls", "client_bytes_per_s")
    return {key: {name: statistics.median(run[name] for run in group) for name in numbers} for key, group in groups.items()}


def spread(runs, workload, way, name, scale):
    """The least and the greatest of several runs, for the table."""
    values = [scale(run[name]) for run in runs if (run["workload"], run["way"]) == (workload, way)]
    return f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""


def bound_s(row, sizes):
    """What the links of the servers need at least for the bytes of the job, evenly spread."""
    return row["server_bytes"] / (sizes["rate"] * MB)


def check(runs):
    """What did not happen as it should: results that differ, tasks of storage servers away from their stripes."""
    problems = []
    for workload in dict.fromkeys(run["workload"] for run in runs):
        results = {repr(run["result"]) for run in runs if run["workload"] == workload}
        if len(results) != 1:
            problems.append(f"{workload} has {len(results)} different results")
    shipped = [run for run in runs if run["way"].startswith("shipped")]
    local = sum(run["local"] * run["tasks"] for run in shipped) / max(1, sum(run["tasks"] for run in shipped))
    if shipped and local < LOCAL_MIN:
        problems.append(f"{100 * local:.1f} % of the shipped map tasks are local; the target is {100 * LOCAL_MIN:.0f} %")
    return problems


def write(directory, found, runs):
    """Writes shipping.md and shipping.png; returns the problems."""
    sizes, table, alone = found["sizes"], rows(runs), statistics.median(one["bytes_per_s"] for one in found["alone"])
    lines = [
        f"{sizes['servers']} storage servers with links of {sizes['rate']:g} MB/s, {sizes['nodes']} compute nodes with {sizes['cpus']:g} cores each, "
        f"{sizes['files'] * sizes['file_bytes'] / MB:.0f} MB of input, medians (and spreads). A client on a node of its own reads a file meanwhile; alone it gets {alone / MB:.1f} MB/s.",
        "",
        "| workload | way | job | map stage | local tasks | network | bound of the links | share of the bound | calls of the daemons | client |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (workload, way), row in table.items():
        bound = bound_s(row, sizes)
        lines.append(
            f"| {workload} | {way} | {row['job_s']:.1f} s{spread(runs, workload, way, 'job_s', float)} | {row['map_s']:.1f} s | {100 * row['local']:.0f} % | {row['network_bytes'] / MB:.0f} MB | {bound:.1f} s "
            f"| {100 * bound / row['job_s']:.0f} % | {row['daemon_calls']:.0f} | {100 * (row['client_bytes_per_s'] / alone - 1):+.0f} %{spread(runs, workload, way, 'client_bytes_per_s', lambda rate: 100 * (rate / alone - 1))} |"
        )
    lines += [
        "",
        "- bound of the links: the time that the links of the servers need for the bytes of the job, if they are spread evenly. Share: of the job's time.",
        "- network: bytes that all nodes have sent, without those for the client.",
        "- calls of the daemons: read and write calls of the storage daemons, without those for the client (its bytes times the calls for a byte when it is alone). The lab's servers keep their data in memory, so there are no requests to disks.",
        "- client: its bandwidth compared with the median alone.",
    ]
    problems = check(runs)
    lines += ["", *(f"- **missed**: {problem}" for problem in problems)]
    (directory / "shipping.md").write_text("\n".join(lines) + "\n")
    draw(directory / "shipping.png", table, alone)
    return problems


def draw(path, table, alone):
    workloads = list(dict.fromkeys(workload for workload, _ in table))
    ways = list(dict.fromkeys(way for _, way in table))
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    shown = [("time of the job (s)", lambda row: row["job_s"]), ("network (MB)", lambda row: row["network_bytes"] / MB), ("bandwidth of the client (% of alone)", lambda row: 100 * row["client_bytes_per_s"] / alone)]
    width = 0.8 / len(ways)
    for axis, (title, value) in zip(axes, shown):
        for number, way in enumerate(ways):
            at = [place + number * width for place, workload in enumerate(workloads) if (workload, way) in table]
            axis.bar(at, [value(table[workload, way]) for workload in workloads if (workload, way) in table], width, label=way)
        axis.set_xticks([place + 0.4 - width / 2 for place in range(len(workloads))], workloads)
        axis.set_title(title)
    axes[0].legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)
