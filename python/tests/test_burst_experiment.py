"""The code of the experiment of steps without jobs: its workloads, the scenarios that it simulates, and its report."""

import csv
import json
import subprocess

import pytest
from conftest import REPOSITORY, binary
from test_eley_experiment import modules_of

pytest.importorskip("matplotlib")
HERE = REPOSITORY / "python/burst"

with modules_of(HERE):
    import report
    import workloads


class Size:
    rate, unit_bytes, unit_s = 4_000_000, 4_000_000, 1.0


def test_steps_are_placed_on_servers_in_turn_and_each_file_is_of_one_job():
    for name, counts in workloads.PARTIAL.items():
        steps = workloads.batch(counts, 7)
        assert len(steps) == sum(counts.values()) and len({step.job for step in steps}) == len(steps)
        assert all(len(set(step.servers)) == step.kind.servers for step in steps), name
        used = [server for step in steps for server in step.servers]
        assert max(map(used.count, range(8))) - min(map(used.count, range(8))) <= 1
    first, second = workloads.arrivals(1.0, 0.7, 1), workloads.arrivals(1.0, 1.4, 1)
    assert first[-1].start_s == pytest.approx(2 * second[-1].start_s), "twice the load in half of the time"


def test_the_simulator_reads_the_scenarios_and_ends_the_papers_jobs_in_the_papers_order(tmp_path):
    path = tmp_path / "scenario.toml"
    caps = {workloads.J24P: 9e6, workloads.J96P: 30e6, workloads.J384P: 32e6}
    path.write_text(workloads.scenario(workloads.catalyst(False), "sa-sjf", Size.rate, Size.unit_bytes, caps))
    out = subprocess.run([binary(), "--json", "sim", "run", path], check=True, capture_output=True, text=True).stdout
    ends = {job["name"]: job["steps"][0]["end_ns"] / 1e9 for job in json.loads(out)["jobs"]}
    assert ends["J24p-0"] == pytest.approx(2e6 * 4 / 9e6, rel=0.01)
    assert ends["J24p-0"] < ends["J96p-0"] < ends["J384p-0"]


def test_targets_are_missed_where_the_order_does_not_help(tmp_path):
    def run(access, io_s):
        row = {"job": "J4-0", "kind": "J4", "alone_s": 1.0, "wait_s": 0.1, "io_s": io_s, "sim_s": 2.0}
        return {"access": access, "steps": [row, {**row, "job": "J4-1"}]}

    runs = {"W7/none/0": run("none", 2.1), "W7/coflow/0": run("coflow", 1.9), "rush/none/0": run("none", 2.0), "rush/coflow/0": run("coflow", 3.0)}
    met = {target: is_met for target, _, is_met in report.targets(runs)}
    assert met["coflow below none in each batch"]
    assert not met["rush, a load of 1.2: coflow at least 20 % below none"]
    assert not met["rush, a load of 1.2: the longest step at most 1.1 of none's"]
    assert not met["sums of I/O times within 15% of the simulator's"]
    report.write(runs, Size, tmp_path)
    assert "**no**" in (tmp_path / "burst.md").read_text() and (tmp_path / "burst.png").exists()
    with (tmp_path / "burst.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 8
