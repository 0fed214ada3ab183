"""The report: eley.json with all figures, eley.md with the tables and plots."""

import json
import os
import statistics
from dataclasses import asdict

import judge
import plots
import simulate
import sizes
import targets


def write(results, size, program, directory):
    """Writes both files and prints the table."""
    predictions, why_not = predicted(program, results, size, directory)
    rows = judge.rows(results, size, predictions)
    pictures = plots.draw(results, size, directory)
    base = judge.alone(results)
    measured = json.loads(path.read_text()) if (path := directory / "profile.json").exists() else {}
    found = {
        "machine": machine(),
        "sizes": asdict(size),
        "profile": measured.get("settings", []),
        "alone": base and asdict(base),
        "targets": [asdict(row) for row in rows],
        "settings": {setting.name: figures(results, setting, base) for setting in sizes.SETTINGS if judge.runs(results, setting.name)},
        "simulated": predictions,
    }
    (directory / "eley.json").write_text(json.dumps(found, indent=1) + "\n")
    lines = page(found, rows, results, size, pictures, why_not)
    (directory / "eley.md").write_text("\n".join(lines) + "\n")
    print("\n".join(targets.table(rows)))
    print(f"\nreport: {directory / 'eley.md'}")


def predicted(program, results, size, directory):
    """What the simulator predicts, and why it predicts nothing."""
    try:
        return simulate.predict(program, results, size, directory / "scenarios"), None
    except simulate.SimulationError as error:
        return {}, str(error)


def machine():
    return {**targets.machine(), "load": os.getloadavg()[1]}


def figures(results, setting, base):
    """Of the runs of a setting, without samples."""
    measured = judge.runs(results, setting.name)
    found = {"title": setting.title, "runs": len(measured), "pfs_sent_bytes": [], "phase_s": [], "map_s": []}
    for result in measured:
        found["pfs_sent_bytes"].append(sent_bytes(result))
        if setting.writer:
            phases = judge.beside(result) if setting.spark else result["phases"][1:]
            found["phase_s"].append([judge.length(phase) for phase in phases])
        if setting.spark:
            found["map_s"].append(result["map"][1] - result["map"][0])
    if setting.qos is not None:
        found |= {"qos": setting.qos, "estimate_errors": [judge.estimate_errors(result) for result in measured]}
        found["actions"] = actions(measured)
    if base and setting.writer and setting.spark:
        found["kept"], found["phases"] = judge.kept(results, setting.name, setting.qos or 0.05, base)
        found["missed"] = found["phases"] - found["kept"]
    return found


def sent_bytes(result):
    """By the servers while the map stage ran, or in all without one: what was read."""
    began, ended = result.get("map", (0, float("inf")))
    inside = [sent for at, sent, _ in result["samples"] if began <= at <= ended + 0.5]
    return inside[-1] - inside[0] if inside else 0


def actions(measured):
    """How often the planner chose each action while the map stage ran."""
    found = {}
    for result in measured:
        for plan in result["plan"]["plans"]:
            if result["map"][0] <= plan["began"] <= result["map"][1]:
                found[plan["action"]] = found.get(plan["action"], 0) + 1
    return found


def page(found, rows, results, size, pictures, why_not):
    host = found["machine"]
    lines = ["# Interference: the experiment", ""]
    lines += [
        f"{host['cores']} cores ({host['processor']}, Linux {host['kernel']}, load {host['load']:.1f} at the end). {size.pfs}: {size.servers} servers of {size.rate:g} MB/s, both directions together. "
        f"Spark: {size.workload} over {size.input_bytes >> 20} MiB on {size.nodes} nodes of {size.node_cpus:g} cores, {size.waves} waves. "
        f"Writer: {size.ranks} ranks ({size.api}), {size.phase_bytes >> 20} MiB a phase, {size.compute_s:g} s between two phases.",
        "", "## Targets", "", *targets.table(rows), "", "## Settings", "", *settings(found), "",
    ]
    if found["profile"]:
        lines += ["## Profile", "", *profile_table(found["profile"]), ""]
    lines += [f"The simulator predicts nothing: {why_not}", ""] if why_not else []
    run = next(iter(judge.runs(results, "eley")), None)
    if run:
        lines += ["## One run of `eley` (the paper's Table 4)", "", *table4(run), ""]
    for caption, name in pictures.items():
        lines += [f"## {caption}", "", f"![{caption}]({name})", ""]
    return lines


def settings(found):
    lines = ["| setting | runs | map time | spread | phase time | worst | deadlines missed | read from the PFS | simulated map time |", "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for name, one in found["settings"].items():
        phases = [phase for run in one["phase_s"] for phase in run]
        simulated = found["simulated"].get(name)
        cells = [
            one["title"], str(one["runs"]), mean(one["map_s"], "{:.1f} s"), f"{judge.spread(one['map_s']):.1f} s" if one["map_s"] else "-", mean(phases, "{:.2f} s"),
            f"{max(phases):.2f} s" if phases else "-", f"{one['missed']} of {one['phases']}" if "missed" in one else "-",
            f"{statistics.mean(one['pfs_sent_bytes']) / 1e6:.0f} MB", f"{simulated['map_s']:.1f} s" if simulated else "-",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def mean(values, form):
    return form.format(statistics.mean(values)) if values else "-"


def profile_table(settings):
    lines = ["| nodes | threads | prefetch | I_hpc | I_bd |", "| ---: | ---: | ---: | ---: | ---: |"]
    return lines + [f"| {one['nodes']} | {one['threads']} | {one['prefetch_s']:.2f} s | {one['i_hpc']:.2f} | {one['i_bd']:.2f} |" for one in settings]


def table4(run):
    """Phases beside the map stage, and what was planned when each began."""
    phases = [phase for phase in run["plan"]["phases"] if phase["began"] < run["map"][1] and phase["observed_ms"] and phase["began"] + phase["observed_ms"] / 1e3 > run["map"][0]]
    lines = ["| phase | deadline | estimated | observed | prefetched meanwhile | latest action before its end |", "| ---: | ---: | ---: | ---: | ---: | --- |"]
    for number, phase in enumerate(phases):
        ended = phase["began"] + phase["observed_ms"] / 1e3
        before = [plan["action"] for plan in run["plan"]["plans"] if plan["began"] <= ended]
        seconds = ["-" if phase[key] is None else f"{phase[key] / 1e3:.2f} s" for key in ("deadline_ms", "estimated_ms", "observed_ms")]
        lines.append(f"| {number + 1} | {' | '.join(seconds)} | {phase['beside_bytes'] / 1e6:.1f} MB | {before[-1] if before else '-'} |")
    return lines
