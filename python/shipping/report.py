"""The report: a table of all ways, the bound of the links, and a plot."""

import statistics

import matplotlib

matplotlib.use("Agg")
import client
import matplotlib.pyplot as plt

LOCAL_MIN = 0.95
# Of what a client gets alone, what it may lose beside shipped tasks that are isolated.
LOST_MAX = 0.03
NOT_ISOLATED = "shipped, no limits"
MB = 1e6


def rows(runs):
    """Medians, by workload and way, in the order of the runs; None of what was not measured."""
    groups = {}
    for run in runs:
        groups.setdefault((run["workload"], run["way"]), []).append(run)
    numbers = ("job_s", "map_s", "tasks", "local", "network_bytes", "server_bytes", "daemon_calls")
    return {key: {name: None if None in (values := [run[name] for run in group]) else statistics.median(values) for name in numbers} for key, group in groups.items()}


def shown(values, unit, digits=1):
    """The median of several values, and the least and the greatest."""
    ends = f" ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else ""
    return f"{statistics.median(values):.{digits}f}{unit}{ends}"


def beside(found, runs):
    """What the client got beside the job in % of the median alone: by workload, way and pattern, a list of bandwidths and one of latencies."""
    alone = {}
    for one in found["alone"]:
        for pattern, got in one["client"].items():
            alone.setdefault(pattern, []).append(got)
    groups = {}
    for run in runs:
        for pattern, got in run["client"].items():
            group = groups.setdefault((run["workload"], run["way"], pattern), ([], []))
            for number, values in zip(("bytes_per_s", "latency_ms"), group, strict=True):
                values.append(100 * got[number] / statistics.median(one[number] for one in alone[pattern]))
    return alone, groups


def judged(way, bandwidths, latencies, isolated):
    """Whether the target is met; `isolated`: what the same job does in the way `shipped`, if that has been measured."""
    bandwidth, latency = statistics.median(bandwidths), statistics.median(latencies)
    if way == NOT_ISOLATED:
        if isolated is None:
            return ""
        worse = bandwidth < statistics.median(isolated[0]) and latency > statistics.median(isolated[1])
        return "worse than shipped: " + ("shown" if worse else "**not shown**")
    if way.startswith("shipped"):
        met = bandwidth >= 100 * (1 - LOST_MAX) and latency <= 100 * (1 + LOST_MAX)
        return f"within {100 * LOST_MAX:.0f} %: " + ("met" if met else "**missed**")
    return ""


def client_lines(found, runs):
    """The table of the client."""
    kind = found["sizes"]["client"]
    latency = client.CLIENTS[kind].latency[1]
    alone, groups = beside(found, runs)
    lines = [f"| client {kind}, alone | bandwidth | {latency} |", "| --- | --- | --- |"]
    for pattern, got in alone.items():
        rates, times = [one["bytes_per_s"] / MB for one in got], [one["latency_ms"] for one in got]
        lines.append(f"| {pattern} | {shown(rates, ' MB/s', 2)} | {shown(times, ' ms', 2)} |")
    lines += ["", f"| workload | way | client's pattern | bandwidth, % of alone | {latency}, % of alone | target |", "| --- | --- | --- | --- | --- | --- |"]
    for (workload, way, pattern), (bandwidths, latencies) in groups.items():
        verdict = judged(way, bandwidths, latencies, groups.get((workload, "shipped", pattern)))
        lines.append(f"| {workload} | {way} | {pattern} | {shown(bandwidths, '')} | {shown(latencies, '')} | {verdict} |")
    return lines


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
    shipped = [run for run in runs if run["way"].startswith("shipped") and run["tasks"]]
    local = sum(run["local"] * run["tasks"] for run in shipped) / max(1, sum(run["tasks"] for run in shipped))
    if shipped and local < LOCAL_MIN:
        problems.append(f"{100 * local:.1f} % of the shipped map tasks are local; the target is {100 * LOCAL_MIN:.0f} %")
    return problems


def write(directory, found, runs):
    """Writes shipping.md and shipping.png; returns the problems."""
    sizes, table = found["sizes"], rows(runs)
    lines = [
        f"{sizes['servers']} storage servers with links of {sizes['rate']:g} MB/s, {sizes['nodes']} compute nodes with {sizes['cpus']:g} cores each, "
        f"{sizes['files'] * sizes['file_bytes'] / MB:.0f} MB of input, medians (and least to greatest). "
        "A client on a node of its own reads or writes a file meanwhile.",
        "",
        "| workload | way | job | map stage | local tasks | network | bound of the links | share of the bound | calls of the daemons |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (workload, way), row in table.items():
        bound = bound_s(row, sizes)
        times = [run["job_s"] for run in runs if (run["workload"], run["way"]) == (workload, way)]
        calls = "-" if row["daemon_calls"] is None else f"{row['daemon_calls']:.0f}"
        local = f"{100 * row['local']:.0f} %" if row["tasks"] else ""
        lines.append(
            f"| {workload} | {way} | {shown(times, ' s')} | {row['map_s']:.1f} s | {local} | {row['network_bytes'] / MB:.0f} MB | {bound:.1f} s "
            f"| {100 * bound / row['job_s']:.0f} % | {calls} |"
        )
    lines += [
        "",
        *client_lines(found, runs),
        "",
        "- input: secondary-sort has a quarter of it; mr- is MapReduce.",
        "- bound of the links: the time that the links of the servers need for the bytes of the job, if they are spread evenly. Share: of the job's time.",
        "- network: bytes that all nodes have sent, without those from and to the client.",
        "- calls of the daemons: read and write calls of the storage daemons, without those for the client (the bytes on its link for each pattern "
        "times the calls for a byte when it is alone). The lab's servers keep their data in memory, so there are no requests to disks.",
        "- % of alone: compared with the median alone. A difference within the spread alone is no effect of the jobs.",
        f"- target: for isolated tasks, at least {100 * (1 - LOST_MAX):.0f} % of the bandwidth and at most {100 * (1 + LOST_MAX):.0f} % of the time.",
    ]
    problems = check(runs)
    lines += ["", *(f"- **missed**: {problem}" for problem in problems)]
    (directory / "shipping.md").write_text("\n".join(lines) + "\n")
    draw(directory / "shipping.png", table, beside(found, runs)[1], next(iter(client.CLIENTS[sizes["client"]].patterns)))
    return problems


def draw(path, table, groups, pattern):
    workloads = list(dict.fromkeys(workload for workload, _ in table))
    ways = list(dict.fromkeys(way for _, way in table))
    figure, axes = plt.subplots(1, 3, figsize=(15, 4), layout="constrained")
    got = {(workload, way): statistics.median(values[0]) for (workload, way, of), values in groups.items() if of == pattern}
    pictures = {
        "time of the job (s)": {key: row["job_s"] for key, row in table.items()},
        "network (MB)": {key: row["network_bytes"] / MB for key, row in table.items()},
        f"bandwidth of the client, {pattern} (% of alone)": got,
    }
    width = 0.8 / len(ways)
    for axis, (title, values) in zip(axes, pictures.items(), strict=True):
        for number, way in enumerate(ways):
            present = [place for place, workload in enumerate(workloads) if (workload, way) in values]
            axis.bar([place + number * width for place in present], [values[workloads[place], way] for place in present], width, label=way)
        axis.set_xticks([place + 0.4 - width / 2 for place in range(len(workloads))], workloads, rotation=20 if len(workloads) > 3 else 0)
        axis.set_title(title)
    axes[0].legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)
