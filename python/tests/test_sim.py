"""The simulator from Python gives what the command gives."""

import contextlib
import csv
import faulthandler
import json
import os
import resource
import signal
import subprocess
import threading
from pathlib import Path

import conftest
import pytest
from conftest import REPOSITORY, binary, need

from forebay import sim

# Two of them are there to take long, and a broadcast has a command of its own.
SCENARIOS = sorted(path for path in (REPOSITORY / "scenarios").glob("*.toml") if path.stem not in ("large-world", "facility-month", "broadcast"))
CHECKPOINTS = REPOSITORY / "scenarios/checkpoints.toml"
ELEY = REPOSITORY / "scenarios/eley-t2-app6.toml"

SMALL = """
kind = "burst-buffer"
cluster = { nodes = 4, node_gb = 100, node_gb_per_s = 1 }
[[job]]
name = "12"
processes = 8
step_gb = 8
steps = 2
compute_s = 10
"""

# What a run without end may take until it is ended: a hundred times what it needs.
LIMIT_S = 120
ROOM_BYTES = 4 << 30

# Many hours, if nothing stops it.
ENDLESS = """
kind = "burst-buffer"
access = { policy = "none" }
cluster = { nodes = 4, node_gb = 100, node_gb_per_s = 1 }
[[job]]
name = "a"
count = 100
processes = 8
step_gb = 0.001
steps = 1000000
compute_s = 0.001
"""


def command(*words, cwd=REPOSITORY):
    """What `forebay --json sim ...` prints."""
    done = subprocess.run([binary(), "--json", "sim", *map(str, words)], cwd=cwd, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else pytest.fail(done.stderr)


def refusal(*words, cwd=REPOSITORY):
    """The message with which the command refuses."""
    done = subprocess.run([binary(), "sim", *map(str, words)], cwd=cwd, capture_output=True, text=True)
    assert done.returncode != 0, "the command has succeeded"
    return done.stderr.removeprefix("forebay: ").rstrip("\n")


def results(path):
    """The lines of a file of results behind its version and command."""
    version, command_line, *lines = path.read_text().splitlines(keepends=True)
    assert version.startswith("# forebay ") and command_line.startswith(("# forebay sim run ", "# forebay sim --json run "))
    return lines


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_run_gives_the_commands_bytes(scenario, tmp_path):
    files = {name: tmp_path / name for name in ("result", "csv", "records", "trace", "timeline")}
    options = [word for name, path in files.items() for word in (f"--{name}", path)]
    printed = command("run", scenario, "--seed", 3, *options)
    run = sim.run(scenario, seed=3, trace=tmp_path / "traced")
    assert run.json == printed == files["result"].read_text()
    assert run.result == json.loads(printed)
    assert (tmp_path / "traced").read_bytes() == files["trace"].read_bytes()
    assert run.timeline() == (files["timeline"].read_text(), "".join(results(tmp_path / "timeline.csv")))
    for name, table in (("csv", run.rows), ("records", run.records)):
        lines = [line.rstrip("\n") for line in results(files[name])]
        assert lines[0] == ",".join(table.columns)
        assert len(lines) == 1 + len(table) > 1
    assert json.loads(command("run", scenario, "--seed", 3)) == run.result


def test_values_are_those_of_the_csv(tmp_path):
    pandas = need("pandas")
    command("run", CHECKPOINTS, "--csv", tmp_path / "rows.csv", "--records", tmp_path / "records.csv")
    run = sim.run(CHECKPOINTS)
    for name, table in (("rows", run.rows), ("records", run.records)):
        expected = pandas.read_csv(tmp_path / f"{name}.csv", skiprows=2)
        assert pandas.DataFrame(table.to_dict()).equals(expected)
        assert pandas.DataFrame(table.to_records()).equals(expected)


def test_arrow_takes_a_table():
    arrow = need("pyarrow")
    run = sim.run(CHECKPOINTS)
    table = arrow.table(run.records.to_dict())
    assert table.to_pylist() == run.records.to_records()


def test_a_scenario_is_a_path_or_toml_or_a_dict():
    text = CHECKPOINTS.read_text()
    by_path = sim.run(str(CHECKPOINTS))
    assert sim.run(text).json == by_path.json
    tomllib = pytest.importorskip("tomllib")
    assert sim.run(tomllib.loads(text)).json == by_path.json


def test_values_and_policies_replace_those_of_the_scenario():
    run = sim.run(ELEY, policy="forebay", set={"hpc.0.allowance_percent": 15, "hpc.0.name": "12"})
    assert run.rows["policy"] == ["forebay"] * 2
    assert run.rows["name"] == ["application 6", "12"]
    assert run.rows["deadlines_missed"] == [None, 0]
    both = sim.run(SMALL, policy="full/sa-sjf")
    assert (both.rows[0]["allocation"], both.rows[0]["access"]) == ("full", "sa-sjf")
    assert both.rows[0]["job"] == "12"


def test_numpy_values_are_numbers():
    numpy = need("numpy")
    run = sim.run(SMALL, set={"job.0.steps": numpy.int64(3), "job.0.compute_s": numpy.float64(2.5)})
    assert run.rows["steps"] == [3, 3]
    trace = {"job.0.steps": 3, "job.0.arrivals": "trace", "job.0.at_s": numpy.array([1, 2, 30])}
    assert sim.run(SMALL, set=trace).records["due_s"][0] == 1.0


def test_refusals_have_the_commands_words(tmp_path):
    scenario = tmp_path / "a.toml"
    wrong = {
        "out of range": SMALL.replace("nodes = 4", "nodes = 0"),
        "unknown key": SMALL + "color = 'blue'\n",
        "not TOML": SMALL + "= 3\n",
        "a log that is missing": SMALL.replace("step_gb = 8\nsteps = 2\ncompute_s = 10\n", "darshan = 'none.txt'\n"),
    }
    for what, text in wrong.items():
        scenario.write_text(text)
        expected = refusal("run", "a.toml", cwd=tmp_path)
        with pytest.raises((sim.SimulationError, OSError)) as caught:
            sim.run(scenario)
        assert str(caught.value).replace(f"{tmp_path}/", "") == expected, what
        with pytest.raises((sim.SimulationError, OSError)) as caught:
            sim.run(text)
        assert str(caught.value) == expected.replace("a.toml", "<scenario>"), what


def test_refusals_are_of_the_right_type(tmp_path):
    with pytest.raises(FileNotFoundError) as missing:
        sim.run(tmp_path / "none.toml")
    assert missing.value.errno == 2
    assert str(missing.value) == refusal("run", tmp_path / "none.toml")
    with pytest.raises(ValueError, match="bogus") as unknown:
        sim.run(CHECKPOINTS, policy="bogus")
    assert type(unknown.value) is sim.SimulationError
    assert str(unknown.value) == refusal("run", CHECKPOINTS, "--policy", "bogus")
    for values in ({"cluster": None}, {"cluster.nodes": 2**70}, {"seed": float("nan")}, {"no.0.key": 1}):
        with pytest.raises(sim.SimulationError):
            sim.run(CHECKPOINTS, set=values)
    with pytest.raises(sim.SimulationError, match=r"^<scenario>: cluster = \(missing\)"):
        sim.run({"kind": "burst-buffer"})
    with pytest.raises(TypeError):
        sim.run(SMALL, set={"seed": object()})
    with pytest.raises(ValueError, match="window_s"):
        sim.run(SMALL).timeline((5, 3))


def test_tables():
    table = sim.run(SMALL).records
    assert table.columns == ["job", "step", "due_s", "granted_s", "end_s", "alone_s", "attempts"]
    assert table[1] == table.to_records()[1] == list(table)[1]
    assert table[1]["job"] == "12"
    assert table["step"] == [0, 1]
    assert table == sim.run(SMALL).records
    assert repr(table).splitlines()[0].split() == table.columns
    assert len(repr(sim.run(SMALL, set={"job.0.steps": 50}).records).splitlines()) == 22


@contextlib.contextmanager
def interrupted(ready):
    """What runs inside gets SIGINT once `ready()`. If that does not end it, its limits on time and memory end the tests."""
    main, over = threading.get_ident(), threading.Event()

    def interrupt():
        # Beside the simulation.
        while not over.wait(0.01):
            if ready():
                signal.pthread_kill(main, signal.SIGINT)
                return

    thread = threading.Thread(target=interrupt)
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + ROOM_BYTES, limits[1]))
    faulthandler.dump_traceback_later(LIMIT_S, exit=True, file=conftest.STDERR)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        over.set()
        thread.join()
        faulthandler.cancel_dump_traceback_later()
        resource.setrlimit(resource.RLIMIT_AS, limits)


def has_bytes(path):
    return path.exists() and path.stat().st_size > 0


def test_other_threads_run_and_ctrl_c_stops_a_run(tmp_path):
    trace = tmp_path / "trace"
    with interrupted(lambda: has_bytes(trace)):
        sim.run(ENDLESS, trace=trace)
    # The next run is not cancelled.
    assert sim.run(SMALL).rows["steps"] == [2, 2]


def test_reproduce_writes_the_commands_report(tmp_path):
    printed = json.loads(command("reproduce", "tls", "--out", tmp_path / "a"))
    returned = sim.reproduce("tls", tmp_path / "b")
    assert returned.pop("report") == str(tmp_path / "b/report.md")
    del printed["report"]
    assert returned == printed
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "b").iterdir())
    for name in names:
        written, ours = ((tmp_path / place / name).read_bytes().splitlines() for place in "ab")
        # The second line is the command line, here that of Python.
        behind = 2 if name.endswith(".csv") else 0
        assert written[behind:] == ours[behind:]
    with pytest.raises(sim.SimulationError) as unknown:
        sim.reproduce("bogus", tmp_path / "c")
    assert str(unknown.value) == refusal("reproduce", "bogus", "--out", tmp_path / "d")


def test_compare_and_sweep_give_the_commands_rows():
    policies = ["striped/sa-sjf", "full/coflow"]
    printed = json.loads(command("compare", CHECKPOINTS, "--policies", ",".join(policies)))
    assert sim.compare(CHECKPOINTS, policies).to_records() == printed
    assert sim.compare(ELEY).to_records() == json.loads(command("compare", ELEY))
    printed = json.loads(command("sweep", ELEY, "--set", "planner.policy=eley,forebay", "--set", "hpc.0.allowance_percent=5,7.5"))
    grid = {"planner.policy": ["eley", "forebay"], "hpc.0.allowance_percent": [5, 7.5]}
    table = sim.sweep(ELEY, grid)
    assert table.to_records() == printed
    assert table.columns[:3] == ["planner.policy", "hpc.0.allowance_percent", "policy"]
    assert sim.sweep(ELEY, grid, threads=1) == table
    assert sim.sweep(SMALL, {"seed": range(3)})["seed"] == [0, 0, 1, 1, 2, 2]
    # A name that looks like a number is a name.
    assert sim.sweep(SMALL, {"job.0.name": ["7", "x"], "job.0.steps": [2]})["job.0.name"] == ["7", "7", "x", "x"]


def test_several_seeds_give_the_commands_rows():
    options = ["--policies", "eley,forebay", "--seeds", 3]
    assert sim.compare(ELEY, ["eley", "forebay"], seeds=3).to_records() == json.loads(command("compare", ELEY, *options))
    random = {"hpc.0.arrivals": "poisson"}
    table = sim.sweep(ELEY, {"hpc.0.arrivals": ["poisson"], "planner.policy": ["eley", "forebay"]}, seeds=3)
    options = ["--set", "hpc.0.arrivals=poisson", "--set", "planner.policy=eley,forebay", "--seeds", 3]
    assert table.to_records() == json.loads(command("sweep", ELEY, *options))
    assert len(sim.compare(ELEY, ["eley"], seeds=2, set=random)) > 0


def test_refusals_of_many_runs():
    for call in (
        lambda: sim.compare(ELEY, ["bogus"]),
        lambda: sim.compare(ELEY, seeds=1),
        lambda: sim.sweep(ELEY, {"seed": []}),
        lambda: sim.sweep(ELEY, {"seed": range(1001), "horizon_s": range(1, 1001)}),
        lambda: sim.sweep(ELEY, {"seed": [1]}, seeds=2),
        lambda: sim.sweep(ELEY, {"hpc.0.allowance_percent": [5, -1]}),
    ):
        with pytest.raises(sim.SimulationError):
            call()
    with pytest.raises(sim.SimulationError) as caught:
        sim.sweep(ELEY, {"hpc.0.allowance_percent": [5, -1]})
    assert str(caught.value) == refusal("sweep", ELEY, "--set", "hpc.0.allowance_percent=5,-1")


def test_ctrl_c_stops_all_threads_of_a_sweep():
    before = set(os.listdir("/proc/self/task"))
    # The one that sends the signal, the one that watches for signals' sake, and the two that
    # simulate.
    with interrupted(lambda: len(set(os.listdir("/proc/self/task")) - before) >= 4):
        sim.sweep(ENDLESS, {"seed": range(8)}, threads=2)


def test_ctrl_c_stops_a_run_of_kind_memory(tmp_path):
    trace = tmp_path / "trace"
    with interrupted(lambda: has_bytes(trace)):
        sim.run(REPOSITORY / "scenarios/memory-bursts.toml", set={"duration_s": 10000}, trace=trace)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_records_are_those_of_the_csv(scenario, tmp_path):
    command("run", scenario, "--records", tmp_path / "records.csv")
    header, *rows = csv.reader(results(tmp_path / "records.csv"))
    records = sim.run(scenario).records.to_dict()
    assert list(records) == header
    for name, cells in zip(header, zip(*rows, strict=True)):
        assert len(records[name]) == len(cells) > 0
        for value, cell in zip(records[name], cells):
            assert value == (None if cell == "" else type(value)(cell)), name
