"""Simulates the same runs: a scenario of kind `world` from the sizes, the speed of the servers, and the compute time of a task on the local disk."""

import json
import statistics
import subprocess

import judge
import sizes

RUN_S = 120
# More than a run has, whatever the planner.
PHASES = 200
# Planners on real nodes leave so much of a phase's slack to the brake, half at most, and so much
# for a node that stops late.
BRAKE_S = 0.1
REACTION_S = 0.1
# What the lab's agents and clients of the file system do: see `forebay lab up`.
FETCH_THREADS = 16
PFS = {
    "moosefs": 'stripe_bytes = 67108864\nplacement = "random"\nread_ahead_bytes = 1048576\nstreams = true\n',
    "glusterfs": 'stripe_bytes = 4194304\nplacement = "random"\nlayout_known = false\n',
}


class SimulationError(Exception):
    """The simulator refused the scenario; the message is its own."""


def task_s(result):
    """Compute of the first task on each node, during which its virtual machine compiles, and of the others: medians of a run over the local disk."""
    first, others, seen = [], [], set()
    for task in sorted(result["tasks"], key=lambda task: task["began"]):
        (others if task["host"] in seen else first).append(task["ended"] - task["began"])
        seen.add(task["host"])
    return statistics.median(first), statistics.median(others or first)


def starts_s(result):
    """When the map stage began, after the latest phase before it."""
    began, _ = result["map"]
    return min((began - phase["began"] for phase in result["phases"] if phase["began"] <= began), default=0.0)


def scenario(result, size, planner, base_s, computes):
    """The text of the scenario of one run. A phase begins at 0, and the job as long after it as it did after the latest one."""
    first_s, later_s = computes
    tier_bytes = 2 * size.input_bytes // size.nodes
    allowance = spent_s((result["qos"] or 0.05) * base_s) / base_s
    # A rank sends all that it syncs at once.
    write_bytes = max(size.sync_transfers, 1) * sizes.MIB
    return (
        f'kind = "world"\nseed = {result["repeat"] or 0}\n\n'
        f"[cluster]\nnodes = {size.nodes}\ntier_bytes = {tier_bytes}\nextent_bytes = {size.extent_bytes}\nfetch_threads = {FETCH_THREADS}\n\n"
        f'[planner]\npolicy = "{planner}"\n\n'
        f"[pfs]\nservers = {size.servers}\nserver_bytes_per_s = {size.rate * 1e6:.0f}\nwrite_bytes = {write_bytes}\n{PFS[size.pfs]}\n"
        f'[[hpc]]\nname = "writer"\nio_gb = {size.phase_bytes / 1e9:.9f}\ncompute_s = {size.compute_s:.3f}\nphases = {PHASES}\n'
        f"allowance_percent = {100 * allowance:g}\nprocesses = {size.ranks}\nio_first = true\n\n"
        f'[[job]]\nname = "{size.workload}"\ninput_bytes = {size.input_bytes}\nfile_bytes = {size.extent_bytes}\nsplit_bytes = {size.extent_bytes}\n'
        f"task_cpu_s = {later_s:.3f}\nfirst_task_cpu_s = {first_s:.3f}\nstarts_s = {starts_s(result):.3f}\n"
    )


def spent_s(slack_s):
    """What planners of real nodes spend of the slack of a phase."""
    return max(slack_s - min(BRAKE_S, slack_s / 2) - REACTION_S, 0.0)


def simulated(program, path, began_s):
    """Map time, and by how much phases beside it were longer than alone."""
    command = [str(program), "--json", "sim", "run", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    if done.returncode:
        raise SimulationError(f"{' '.join(command)}: {done.stderr.strip()}")
    said = json.loads(done.stdout)
    job = said["cluster"]["jobs"][0]
    began, ended = 1e9 * began_s, 1e9 * began_s + job["map_ns"]
    phases = [phase for hpc in said["hpc"] for phase in hpc["phases"] if began <= phase["begin_ns"] and phase["begin_ns"] + phase["alone_ns"] <= ended]
    return job["map_ns"] / 1e9, [(phase["end_ns"] - phase["begin_ns"]) / phase["alone_ns"] - 1 for phase in phases]


def predict(program, results, size, directory):
    """By setting: the means over its runs. Scenarios stay in `directory`."""
    base, local = judge.alone(results), judge.runs(results, "local")
    if not base or not local:
        return {}
    directory.mkdir(parents=True, exist_ok=True)
    times = [task_s(result) for result in local]
    computes = tuple(statistics.median(one) for one in zip(*times, strict=True))
    found = {}
    for setting in sizes.SETTINGS:
        measured = judge.runs(results, setting.name) if setting.planner and setting.writer else []
        outcomes = []
        for result in measured:
            path = directory / f"{setting.name}-{result['repeat']}.toml"
            path.write_text(scenario(result, size, setting.planner, base.median_s, computes))
            outcomes.append(simulated(program, path, starts_s(result)))
        if outcomes:
            slower = [one for _, many in outcomes for one in many]
            found[setting.name] = {"map_s": statistics.mean(one for one, _ in outcomes), "slowdown": statistics.mean(slower) if slower else None}
    return found
