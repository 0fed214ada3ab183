"""Simulates the same runs: a scenario of kind `colocation` from the measured profile, the measured compute time of a wave, and the times at
which phases began in each measured run."""

import json
import statistics
import subprocess

import judge
import sizes

RUN_S = 120
# A run whose phases end later than they did has some more.
MORE_PHASES = 8
# Planners on real nodes leave so much of a phase's slack to the brake, half at most, and so much
# for a node that stops late.
BRAKE_S = 0.1
REACTION_S = 0.1


class SimulationError(Exception):
    """The simulator refused the scenario; the message is its own."""


def scenario(result, size, planner, profile, base_s, wave_s, period_s):
    """The text of the scenario of one run."""
    began, _ = result["map"]
    starts = [phase["began"] - began for phase in result["phases"] if phase["began"] >= began]
    last = starts[-1] if starts else -1.0
    starts += [last + period_s * (i + 1) for i in range(MORE_PHASES)]
    at = ", ".join(f"{max(start, 0):.3f}" for start in starts)
    allowance = spent_s((result["qos"] or 0.05) * base_s) / base_s
    return (
        f'kind = "colocation"\nprofile = "{profile}"\n\n[cluster]\nram_gb = {2.2 * size.input_bytes / 1e9:.6f}\n\n[planner]\npolicy = "{planner}"\n\n'
        f'[[hpc]]\nname = "writer"\nio_s = {base_s:.6f}\ncompute_s = {size.compute_s:.3f}\nphases = {len(starts)}\nallowance_percent = {100 * allowance:g}\n'
        f'processes = {size.ranks}\narrivals = "trace"\nat_s = [{at}]\n\n'
        f'[[job]]\nname = "{size.workload}"\ninput_gb = {size.input_bytes / 1e9:.6f}\nwave_gb = {size.wave_bytes / 1e9:.6f}\ncompute_s = {wave_s:.6f}\n'
    )


def spent_s(slack_s):
    """What planners of real nodes spend of the slack of a phase."""
    return max(slack_s - min(BRAKE_S, slack_s / 2) - REACTION_S, 0.0)


def simulated(program, path):
    """Map time, and by how much phases beside it were longer than alone."""
    command = [str(program), "--json", "sim", "run", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    if done.returncode:
        raise SimulationError(f"{' '.join(command)}: {done.stderr.strip()}")
    said = json.loads(done.stdout)
    map_s = said["jobs"][0]["map_ns"] / 1e9
    phases = [phase for hpc in said["hpc"] for phase in hpc["phases"] if phase["begin_ns"] + phase["alone_ns"] <= map_s * 1e9]
    return map_s, [(phase["end_ns"] - phase["begin_ns"]) / phase["alone_ns"] - 1 for phase in phases]


def predict(program, results, size, profile, directory):
    """By setting: the means over its runs. Scenarios stay in `directory`."""
    base, cores = judge.alone(results), judge.map_s(results, "local")
    if not base or not cores:
        return {}
    directory.mkdir(parents=True, exist_ok=True)
    wave_s = statistics.median(cores) / size.waves
    found = {}
    for setting in sizes.SETTINGS:
        measured = judge.runs(results, setting.name) if setting.planner and setting.writer else []
        outcomes = []
        for result in measured:
            path = directory / f"{setting.name}-{result['repeat']}.toml"
            path.write_text(scenario(result, size, setting.planner, profile, base.median_s, wave_s, size.compute_s + base.median_s))
            outcomes.append(simulated(program, path))
        if outcomes:
            slower = [one for _, many in outcomes for one in many]
            found[setting.name] = {"map_s": statistics.mean(one for one, _ in outcomes), "slowdown": statistics.mean(slower) if slower else None}
    return found
