"""What the simulator says of a run before it is made: writes the scenario of each run and asks `forebay sim run`.

All figures are measured by the study or set by it: the time that the cores take for the tasks, the speed of the links, the sizes of files
and the servers of their stripes, and what the client of the file system requests at a time. The time of the cores is the map time over the
same text on the local disk, so it contains what Spark does for each task beside reading.
"""

import json
import subprocess
from dataclasses import dataclass

import waves

RUN_S = 120


@dataclass(frozen=True)
class Shape:
    """What does not change from run to run."""

    nodes: int
    tier_bytes: int
    extent_bytes: int
    input_bytes: int
    file_bytes: int
    servers: int
    stripe_bytes: int
    # The server of each stripe of each file; None: stripes go over the servers in turn.
    stripes_on: list | None
    # Whether the agents learn it.
    layout_known: bool
    read_ahead_bytes: int
    # Whether agents fetch the pages of a stripe one after the other, as from MooseFS.
    streams: bool
    fetch_threads: int

    def busiest_bytes(self):
        """Bytes of the input on the server that has most of them."""
        if not self.stripes_on:
            return self.input_bytes / self.servers
        sizes = [0] * self.servers
        for number, stripes in enumerate(self.stripes_on):
            file_bytes = min(self.file_bytes, self.input_bytes - number * self.file_bytes)
            for stripe, server in enumerate(stripes):
                sizes[server] += min(self.stripe_bytes, file_bytes - stripe * self.stripe_bytes)
        return max(sizes)

    @property
    def tasks(self):
        return -(-self.input_bytes // self.extent_bytes)


def scenario(shape, workload, mode, rate, cores):
    """The scenario file of a run: `rate` in MB/s of each server, and the waves.Cores of the workload."""
    first_s = min(cores.first_task_s, cores.map_s)
    # What the first task of each node leaves is spread over the others.
    task_s = (cores.map_s - first_s) * shape.nodes / max(shape.tasks - shape.nodes, 1)
    stripes_on = f"servers = {shape.stripes_on}\n" if shape.stripes_on else ""
    return (
        f'kind = "cluster"\n\n[cluster]\nnodes = {shape.nodes}\ntier_bytes = {shape.tier_bytes}\n'
        f"extent_bytes = {shape.extent_bytes}\nfetch_threads = {shape.fetch_threads}\n\n"
        f'[planner]\npolicy = "{mode}"\n\n'
        f"[pfs]\nservers = {shape.servers}\nserver_bytes_per_s = {rate * 1e6:.0f}\n"
        f"stripe_bytes = {shape.stripe_bytes}\nlayout_known = {str(shape.layout_known).lower()}\n"
        f"read_ahead_bytes = {shape.read_ahead_bytes}\nstreams = {str(shape.streams).lower()}\n\n"
        f'[[job]]\nname = "{workload}"\ninput_bytes = {shape.input_bytes}\nfile_bytes = {shape.file_bytes}\nsplit_bytes = {shape.extent_bytes}\n'
        f"task_cpu_s = {task_s:.6f}\nfirst_task_cpu_s = {first_s:.6f}\n{stripes_on}"
    )


@dataclass(frozen=True)
class Prediction:
    """What the simulator says of a run: its map time, and the bytes that the servers send."""

    map_s: float
    served_bytes: int


def prediction(program, directory, name, text):
    """The prediction for a scenario, which stays in `directory` to be looked at."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.toml"
    path.write_text(text)
    done = subprocess.run([str(program), "--json", "sim", "run", str(path)], capture_output=True, text=True, timeout=RUN_S, check=False)
    if done.returncode:
        raise waves.WavesError(f"`forebay sim run {path}` failed: {done.stderr.strip()}")
    outcome = json.loads(done.stdout)
    return Prediction(outcome["jobs"][0]["map_ns"] / 1e9, outcome["served_bytes"])


@dataclass(frozen=True)
class Predictor:
    """Predicts runs of one study."""

    program: object
    directory: object
    shape: Shape

    def __call__(self, setting, workload, mode, rate, cores):
        text = scenario(self.shape, workload, mode, rate, cores)
        return prediction(self.program, self.directory, f"{setting}-{workload}-{mode}", text)
