"""The report: memory.json with all figures, memory.md with the tables and plots."""

import json
import subprocess

import judge
import plots
import simulate
import sizes
import targets

MIB = 1 << 20


def write(results, sized, args, fitting, tools):
    """Writes both files and prints the table."""
    order = [setting.name for setting in sizes.SETTINGS]
    results = {name: results[name] for name in order if name in results}
    predictions = simulate.predict(tools.forebay, results, args.output / "simulated", tools.pfs_bytes_per_s)
    rows = judge.rows(results, predictions, tools.pfs_bytes_per_s)
    pictures = plots.draw(results, sized, args.output)
    limits = judge.bounds(results, tools.pfs_bytes_per_s) if judge.seconds(results.get("upper", {})) else {}
    found = {
        "machine": machine(),
        "sizes": vars(fitting),
        "pfs_bytes_per_s": tools.pfs_bytes_per_s,
        "bounds": limits,
        "targets": [vars(row) for row in rows],
        "settings": {name: figures(result) for name, result in results.items()},
        "simulated": predictions,
        "kmeans_sizes": sized,
    }
    (args.output / "memory.json").write_text(json.dumps(found, indent=1) + "\n")
    lines = page(found, rows, results, predictions, pictures, sized)
    (args.output / "memory.md").write_text("\n".join(lines) + "\n")
    print("\n".join(targets.table(rows)))
    print(f"\nreport: {args.output / 'memory.md'}")


def machine():
    version = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "hpcc"], capture_output=True, text=True, check=False)
    return {**targets.machine(), "hpcc": version.stdout}


def figures(result):
    """What goes into the JSON file, without the samples."""
    burst = judge.hpl(result)
    has_programs = bool(result["programs"])
    return {
        "iterations": result["iterations"],
        "programs_s": {one["name"]: (one["ended_ms"] - one["began_ms"]) / 1e3 for one in result["programs"]},
        "results": {one["name"]: one["result"] for one in result["programs"]},
        "hpl_solve_s": judge.hpl_s(result),
        "hpl_wall_s": burst and burst["ended"] - burst["began"],
        "hog_bytes_per_s": {one["name"]: one["bytes_per_s"] for one in result["bursts"] if one["name"] != "HPL"},
        "kills": result["kills"],
        "limit_hits": result["limit_hits"],
        "mean_tier_bytes": judge.mean_tier(result) if has_programs else None,
        "peak_used_bytes": result["samples_exact"]["peak_used"],
        "above_s": result["samples_exact"]["above_s"],
        "above_longest_s": result["samples_exact"]["above_longest_s"],
        "pfs_bytes": judge.served_bytes(result) if has_programs else None,
        "read_bytes_per_s": read_rate(result["reads"]),
        "skip_bytes_per_s": read_rate(result.get("skips", [])),
        "resizes": resizes(result),
    }


def resizes(result):
    """Changes of the capacity that the agent reports of its last ten minutes; None without a tier."""
    memory = result["memory"]
    return memory and sum(1 for point in memory["points"] if point["reason"])


def read_rate(reads):
    return (reads[-1][1] - reads[0][1]) / (reads[-1][0] - reads[0][0]) if len(reads) > 1 else None


def page(found, rows, results, predictions, pictures, sized):
    size, host = found["sizes"], found["machine"]
    lines = ["# Memory controller: the experiment", ""]
    lines += [
        f"A node of {size['node'] / MIB:.0f} MiB, as a control group on a machine of {host['memory_bytes'] / MIB:.0f} MiB with {host['cores']} cores ({host['processor']}, Linux {host['kernel']}). "
        f"HPL of order {size['hpl_n']} ({8 * size['hpl_n'] ** 2 / MIB:.0f} MiB, hpcc {host['hpcc']}). Tiers: safe {size['safe'] / MIB:.0f} MiB, large {size['large'] / MIB:.0f} MiB. "
        f"Input {size['input'] / MIB:.0f} MiB, PFS {found['pfs_bytes_per_s'] / 1e6:.0f} MB/s, Spark's heap {size['heap'] / MIB:.0f} MiB.",
        "",
    ]
    if found["bounds"]:
        bound = found["bounds"]
        lines += [
            f"**Physical bound.** An iteration reads memory at {bound['memory_bytes_per_s'] / 1e6:.0f} MB/s, {bound['ratio']:.1f} times the PFS. If half of the reads miss in the safe tier and do not "
            f"overlap with computing, a full tier is {bound['over_safe']:.1f} times as fast."
            + (f" Beside this HPL, an ideal tier reaches about {100 * bound['of_upper']:.0f} % of the upper bound." if "of_upper" in bound else ""),
            "",
        ]
    lines += ["## Targets", "", *targets.table(rows), "", "## Settings", "", *settings(found, results), ""]
    if sized:
        lines += ["## K-means by size of the input", "", *kmeans(sized), ""]
    if predictions:
        lines += ["## Simulated", "", *simulated(results, predictions), ""]
    for caption, name in pictures.items():
        lines += [f"## {caption}", "", f"![{caption}]({name})", ""]
    return lines


def settings(found, results):
    lines = [
        "| setting | K-means | logistic | linear | SVM | iterations | mean iteration | PFS served | mean tier | highest use | HPL | OOM kills | limit hits | reader | skipping reader |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, one in found["settings"].items():
        times = [one["programs_s"].get(program) for program in ("kmeans", "logistic", "linear", "svm")]
        cells = [
            sizes.named(name).title, *(text(time, "{:.1f} s") for time in times), str(one["iterations"]) if one["programs_s"] else "-", text(judge.iteration_s(results[name]), "{:.2f} s"),
            text(one["pfs_bytes"], "{:.2f} GB", 1e9), text(one["mean_tier_bytes"], "{:.0f} MiB", MIB), text(one["peak_used_bytes"], "{:.0f} MiB", MIB),
            text(one["hpl_solve_s"], "{:.2f} s"), str(one["kills"]), str(one["limit_hits"]), text(one["read_bytes_per_s"], "{:.0f} MB/s", 1e6),
            text(one["skip_bytes_per_s"], "{:.0f} MB/s", 1e6),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def kmeans(sized):
    inputs = sorted({one["input"] for times in sized.values() for one in times.values()})
    lines = ["| setting | " + " | ".join(f"{size / MIB:.0f} MiB" for size in inputs) + " |", "| --- |" + " ---: |" * len(inputs)]
    for name, times in sized.items():
        by_size = {one["input"]: one for one in times.values()}
        cells = [text(by_size[size]["seconds"], "{:.1f} s") if size in by_size else "-" for size in inputs]
        lines.append(f"| {sizes.named(name).title} | " + " | ".join(cells) + " |")
    return lines


def simulated(results, predictions):
    lines = ["| setting | mean tier, measured | simulated | clairvoyant | highest use, measured | simulated |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for name, one in predictions.items():
        cells = [f"{judge.mean_tier(results[name]) / MIB:.0f} MiB", *(f"{one[key] / MIB:.0f} MiB" for key in ("tier_bytes", "clairvoyant_bytes"))]
        cells += [f"{100 * judge.peak_share(results[name]):.1f} %", f"{100 * one['peak']:.1f} %"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def text(value, form, unit=1):
    return "-" if value is None else form.format(value / unit)
