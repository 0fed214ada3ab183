"""The simulator of the same load: the memory that compute used in a measured run becomes a trace, and `forebay sim run` says what each law
makes of it, beside a clairvoyant who knows it."""

import json
import subprocess

import judge
import sampler
import sizes

RUN_S = 120
POLICIES = {"forebay": "forebay", "dynims": "dynims", "dynims-0.1": "dynims", "dynims-2.5": "dynims", "small": "static"}


class SimulationError(Exception):
    """The simulator refused the scenario; the message is its own."""


def scenario(result, policy, pfs_bytes_per_s, trace_name, gain=sizes.USUAL_GAIN):
    """The text of the scenario and of its trace."""
    began, ended = judge.window(result)
    samples = sampler.between(result["samples"], began, ended)
    trace = "".join(f"{at - began:.3f},{max(used - tier, 0)}\n" for at, used, tier in samples)
    largest = max(tier for _, _, tier in samples)
    node = result["sizes"]
    text = (
        f'kind = "memory"\nduration_s = {ended - began:.3f}\n\n[node]\nmemory_gb = {node["node"] / 1e9}\nrefill_gb_per_s = {pfs_bytes_per_s / 1e9}\n\n'
        f'[memory]\npolicy = "{policy}"\ngain = {gain}\ntarget = {node["target"]}\nmax_gb = {largest / 1e9}\nstart_gb = {samples[0][2] / 1e9}\n\n'
        f'[load]\ntrace = "{trace_name}"\n'
    )
    return text, trace


def predict(program, results, directory, pfs_bytes_per_s):
    """By setting: the simulator's mean tier, the clairvoyant's and the highest use. Scenarios and traces stay in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, policy in POLICIES.items():
        if not judge.seconds(results.get(name, {})):
            continue
        text, trace = scenario(results[name], policy, pfs_bytes_per_s, f"{name}.csv", sizes.named(name).gain)
        (directory / f"{name}.csv").write_text(trace)
        (directory / f"{name}.toml").write_text(text)
        command = [str(program), "--json", "sim", "run", str(directory / f"{name}.toml")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
        if done.returncode:
            raise SimulationError(f"{' '.join(command)}: {done.stderr.strip()}")
        said = json.loads(done.stdout)
        found[name] = {key: said[key] for key in ("tier_bytes", "clairvoyant_bytes", "peak")}
    return found
