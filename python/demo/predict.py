"""What the simulator says of a run before it is made: writes the scenario of each run and asks `forebay sim run`.

All figures are measured by the study or set by it: the speed of the cores and of the links, the sizes of files, and what the client of the
file system reads ahead.
"""

import json
import subprocess
from dataclasses import dataclass

import waves

RUN_S = 120


@dataclass(frozen=True)
class Shape:
    """What does not change from run to run. A `stripe` of None: each file lies on one server."""

    nodes: int
    tier_bytes: int
    extent_bytes: int
    input_bytes: int
    file_bytes: int
    servers: int
    stripe_bytes: int | None
    placement: str
    layout_known: bool
    read_ahead_bytes: int
    read_beyond_bytes: int = 0

    @property
    def tasks(self):
        return -(-self.input_bytes // self.extent_bytes)


def scenario(shape, workload, mode, rate, compute_s):
    """The scenario file of a run: `rate` in MB/s of each server, and what the cores need for all tasks together."""
    stripe = f"stripe_bytes = {shape.stripe_bytes}\n" if shape.stripe_bytes else ""
    return (
        f'kind = "cluster"\n\n[cluster]\nnodes = {shape.nodes}\ntier_bytes = {shape.tier_bytes}\nextent_bytes = {shape.extent_bytes}\n\n'
        f'[planner]\npolicy = "{mode}"\n\n'
        f"[pfs]\nservers = {shape.servers}\nserver_bytes_per_s = {rate * 1e6:.0f}\n{stripe}"
        f'placement = "{shape.placement}"\nlayout_known = {str(shape.layout_known).lower()}\n'
        f"read_ahead_bytes = {shape.read_ahead_bytes}\nread_beyond_bytes = {shape.read_beyond_bytes}\n\n"
        f'[[job]]\nname = "{workload}"\ninput_bytes = {shape.input_bytes}\nfile_bytes = {shape.file_bytes}\nsplit_bytes = {shape.extent_bytes}\n'
        f"task_cpu_s = {compute_s * shape.nodes / shape.tasks:.6f}\n"
    )


def map_s(program, directory, name, text):
    """The map time that the simulator predicts for a scenario, which stays in `directory` to be looked at."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.toml"
    path.write_text(text)
    done = subprocess.run([str(program), "--json", "sim", "run", str(path)], capture_output=True, text=True, timeout=RUN_S, check=False)
    if done.returncode:
        raise waves.WavesError(f"`forebay sim run {path}` failed: {done.stderr.strip()}")
    return json.loads(done.stdout)["jobs"][0]["map_ns"] / 1e9


@dataclass(frozen=True)
class Predictor:
    """Predicts runs of one study."""

    program: object
    directory: object
    shape: Shape

    def __call__(self, setting, workload, mode, rate, compute_s):
        text = scenario(self.shape, workload, mode, rate, compute_s)
        return map_s(self.program, self.directory, f"{setting}-{workload}-{mode}", text)
