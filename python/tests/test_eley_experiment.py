"""The code of the interference experiment without a lab: what it makes of measurements, the scenarios that it simulates, and its report."""

import contextlib
import dataclasses
import json
import os
import sys
import tomllib

import pytest
from conftest import REPOSITORY, binary

pytest.importorskip("matplotlib")
HERE = REPOSITORY / "python/eley"
sys.path.append(str(REPOSITORY / "python/demo"))


@contextlib.contextmanager
def modules_of(directory):
    """The memory experiment has modules of the same names, which another test of this process may have imported."""
    names = [path.stem for path in directory.glob("*.py")]
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(directory))
    yield
    sys.path.remove(str(directory))
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(others)


with modules_of(HERE):
    import cluster
    import experiment
    import judge
    import report
    import simulate
    import sizes
    import stage

SIZE = sizes.Sizes(rate=10.0, rank_bytes=16 << 20, extent_bytes=8 << 20, waves=16)
PERIOD_S = SIZE.compute_s + 4.0
def phases(times, began=1000.0):
    """Phases of these lengths, one period after the other."""
    return [{"began": began + i * PERIOD_S, "ended": began + i * PERIOD_S + time, "bytes": SIZE.phase_bytes} for i, time in enumerate(times)]


def result(name, times, map_s, repeat=0, estimated=1.0):
    """As stage.measure() gives it: the map stage begins with the second phase."""
    setting = sizes.named(name)
    found = {"setting": name, "repeat": repeat, "qos": setting.qos, "alone_s": None if name == "alone" else 4.0, "phases": phases(times), "plan": None}
    found["samples"] = [[995.0 + i / 5, i * 10**6, i * 10**6] for i in range(400)]
    if not setting.spark:
        return found
    began = 1000.0 + PERIOD_S
    step = map_s / SIZE.waves
    found |= {"map": [began, began + map_s], "result": {"sum": 1}}
    found["tasks"] = [{"host": f"c{1 + i % 2}", "local": True, "began": began + i // 2 * step, "ended": began + (i // 2 + 1) * step} for i in range(2 * SIZE.waves)]
    found["waves"] = [
        {"prefetch": [began + max(i - 1, 0) * step, began + i * step], "compute": [began + i * step, began + (i + 1) * step], "tasks": 2, "bytes": 10, "fetched_bytes": 10}
        for i in range(SIZE.waves if setting.planner not in (None, "naive-bb") else 0)
    ]
    if setting.qos is not None:
        told = [
            {"began": phase["began"], "alone_ms": 4000, "deadline_ms": 4200, "estimated_ms": 1e3 * estimated * judge.length(phase), "observed_ms": 1e3 * judge.length(phase), "beside_bytes": 5}
            for phase in found["phases"]
        ]
        plan = {"began": began + 1, "action": "search", "reason": "", "came_bytes": 1, "margin_ms": 1, "fetched_in_ms": 1}
        found["plan"] = {"phases": told, "plans": [plan]}
    return found


def results():
    times = {"naive-bb": [4.0, 5.2, 5.4, 5.0, 5.2], "no-action": [4.0, 4.9, 4.8, 5.0, 4.9], "full-delay": [4.0] * 5, "eley": [4.0, 4.1, 4.2, 4.1, 4.0]}
    times |= {"forebay": [4.0, 4.2, 4.1, 4.2, 4.2], "forebay-30": [4.0, 4.9, 5.0, 5.1, 4.9]}
    maps = {"naive-bb": 30.0, "no-action": 22.0, "full-delay": 27.0, "eley": 24.5, "forebay": 23.0, "forebay-30": 22.2}
    measured = [result("alone", [5.0, 4.0, 4.0, 4.02, 3.98, 4.0, 4.0], None), result("local", [4.0, 4.02, 4.04, 4.0], 21.0), result("spark", [], 24.0)]
    return measured + [result(name, times[name], maps[name] + repeat / 10, repeat, 1.02) for name in times for repeat in range(2)]


def rows(found=None, predictions=None):
    return {row.what: row for row in judge.rows(found or results(), SIZE, predictions or {})}


def test_the_writer_alone_gives_the_time_and_the_spread_without_its_first_phase():
    base = judge.alone(results())
    assert (base.median_s, base.count) == (4.0, 6) and base.spread_s == pytest.approx(0.02)


def test_targets_are_judged_by_what_was_measured():
    found = rows()
    assert found["control: phases beside the same job on the local disk"].met
    naive = found["phases beside `naive-bb`"]
    assert naive.met and naive.measured.startswith("+30.0 %"), naive
    assert found["`naive-bb`: phases within 5 %, without deadlines"].met, "they are violated"
    for name in ("eley", "forebay"):
        assert found[f"`{name}`: phases within 5 %"].met
    assert found["`forebay-30`: phases within 30 %"].measured == "6 of 6 phases (100 %)"
    assert found["`forebay`: error of the estimated phase time"].met
    gain = found["map time that `no-action` gains over `naive-bb`"]
    assert gain.measured == "8.0 s of 30.0 s"
    # 7 of 8 s, and 7.8.
    assert (found["`forebay`: of that gain"].measured, found["`forebay`: of that gain"].met) == ("88 %", True)
    assert found["`forebay-30`: of that gain"].met
    assert found["map time of `forebay` against `eley`"].met


def test_what_is_missed_is_said():
    late = results()
    for one in judge.runs(late, "forebay"):
        one["phases"] = phases([4.0, 4.2, 4.5, 4.2, 4.2])
        one["map"][1] += 6.0
        for phase in one["plan"]["phases"]:
            phase["estimated_ms"] *= 1.2
    found = rows(late)
    assert found["`forebay`: phases within 5 %"].measured == "6 of 8 phases (75 %)"
    for what in ("phases within 5 %", "of that gain", "error of the estimated phase time"):
        assert found[f"`forebay`: {what}"].met is False, what
    assert found["map time of `forebay` against `eley`"].met is False
    disturbed = [one for one in results() if one["setting"] != "local"] + [result("local", [4.0, 4.2, 4.2], 21.0)]
    assert rows(disturbed)["control: phases beside the same job on the local disk"].met is False


def test_a_phase_that_began_before_the_map_stage_counts_for_deadlines_and_not_for_the_slowdown():
    one = result("naive-bb", [4.0, 5.0, 5.0], 12.0)
    one["map"] = [1003.0, 1016.0]
    assert [round(judge.length(phase)) for phase in judge.beside(one)] == [4, 5]
    assert len(judge.within(one)) == 1


def test_without_a_measurement_there_is_no_row():
    assert judge.rows([], SIZE, {}) == []
    only = judge.rows([one for one in results() if one["setting"] == "alone"], SIZE, {})
    assert [row.what for row in only] == ["writer alone"]


def test_a_gain_is_judged_by_what_the_time_of_the_servers_allows():
    base = judge.Alone(4.0, 0.0, 9)
    # 4 s of compute, and phases of 4 s that may take 4.2 s.
    assert [judge.written_s(at, 4.0, 4.0, 0.05) for at in (3.0, 8.2, 12.2, 16.4)] == pytest.approx([0.0, 4.0, 4.0, 8.0])
    large = dataclasses.replace(SIZE, waves=32)
    at_s = judge.budget_s(results(), large, base, 0.05)
    assert at_s - judge.written_s(at_s, 4.0, 4.0, 0.05) == pytest.approx(large.input_bytes / 20e6, abs=0.1)
    assert judge.budget_s(results(), dataclasses.replace(SIZE, waves=2), base, 0.05) == 21.0, "the cores"
    slow = [one for one in results() if one["setting"] != "forebay"] + [result("forebay", [4.0] * 5, 27.0, repeat) for repeat in range(2)]
    assert rows(slow)["`forebay`: of that gain"].met is False
    assert judge.rows(slow, dataclasses.replace(SIZE, waves=17, rate=8.0), {}), "a bound above the map times is no error"


def test_the_simulator_takes_every_scenario(tmp_path):
    found = simulate.predict(binary(), results(), SIZE, tmp_path / "scenarios")
    assert set(found) == {"naive-bb", "no-action", "full-delay", "eley", "forebay", "forebay-30"}
    # What readers do to phases shows, and what heeds them does it less.
    assert max(found["forebay"]["slowdown"], found["full-delay"]["slowdown"]) < found["naive-bb"]["slowdown"]
    assert max(found["no-action"]["map_s"], found["forebay"]["map_s"]) < found["full-delay"]["map_s"]
    one = tomllib.loads((tmp_path / "scenarios/forebay-1.toml").read_text())
    # Of 200 ms of slack the brake keeps half, and a late stop costs the other half.
    assert one["hpc"][0]["allowance_percent"] == 0 and one["job"][0]["starts_s"] == 0
    generous = tomllib.loads((tmp_path / "scenarios/forebay-30-1.toml").read_text())
    assert generous["hpc"][0]["allowance_percent"] == pytest.approx(25)
    step_s = 21.0 / SIZE.waves
    assert one["job"][0]["task_cpu_s"] == pytest.approx(step_s, abs=1e-3) and one["pfs"]["write_bytes"] == SIZE.sync_transfers << 20
    judged = rows(predictions=found)
    assert "simulated map time, `naive-bb`" in judged and "simulated" in judged["`forebay`: of that gain"].why
    gluster = dataclasses.replace(SIZE, pfs="glusterfs")
    assert set(simulate.predict(binary(), results(), gluster, tmp_path / "others")) == set(found)


def test_sizes_that_are_left_open_follow_from_the_cores():
    size = sizes.fitting(sizes.Sizes(), 37.0)
    assert size.pfs_bytes_per_s == pytest.approx(sizes.SPEED * size.input_bytes / 37.0, rel=0.01)
    assert size.phase_bytes / size.pfs_bytes_per_s == pytest.approx(sizes.PHASE_S, rel=0.15) and size.rank_bytes % (size.sync_transfers << 20) == 0
    assert sizes.fitting(SIZE, 1.0) == SIZE and sizes.fitting(dataclasses.replace(SIZE, rate=0.0, sync_transfers=0), 20.0).rank_bytes == SIZE.rank_bytes


def test_each_repeat_has_every_setting_in_another_order_and_the_writer_alone_comes_first():
    names = sizes.usual()
    order = experiment.order(names, 3)
    assert order[0] == ("alone", 0) and sorted(order) == sorted((name, repeat) for name in names for repeat in range(3))
    of_repeats = [[name for name, repeat in order if repeat == number and name != "alone"] for number in range(3)]
    assert of_repeats[0] != of_repeats[1] != of_repeats[2]
    assert experiment.order(names, 3) == order, "the same when it is resumed"


def test_a_quick_check_fails_if_something_did_not_happen():
    measured = results()
    names = ["alone", "naive-bb", "forebay"]
    assert experiment.unsound(measured, names) == []
    assert experiment.unsound(measured, ["forebay-15"]) == ["forebay-15 was not measured"]
    (one, *_) = judge.runs(measured, "forebay")
    one["plan"] = {"phases": [], "plans": []}
    for wave in one["waves"]:
        wave["fetched_bytes"] = 0
    one["result"] = {"sum": 2}
    assert experiment.unsound(measured, names) == [
        "forebay: nothing was prefetched", "forebay: no phase was declared", "forebay: nothing was planned", "Spark found 2 different results"
    ]


def test_the_coordinators_clock_is_found_by_the_phases():
    noted = [{"at_ms": at} for at in (8000, 16000)]
    assert stage.coordinator_began(phases([4.0, 4.0, 4.0]), noted) == pytest.approx(1000.0), "it has missed the first"


def test_workers_of_the_profile_are_started_where_they_belong(tmp_path):
    lab = type("Lab", (), {"program": "/opt/for ebay"})
    path = cluster.launcher(lab, tmp_path / "launch")
    text = path.read_text()
    assert "exec '/opt/for ebay' lab run --node" in text and "node=w1" in text and os.access(path, os.X_OK)


def test_the_report_has_every_figure_and_plot(tmp_path, capsys):
    settings = [{"nodes": 1, "threads": 1, "prefetch_s": 4.0, "i_hpc": 1.3, "i_bd": 1.3}]
    (tmp_path / "profile.json").write_text(json.dumps({"settings": settings}))
    report.write(results(), SIZE, binary(), tmp_path)
    said = json.loads((tmp_path / "eley.json").read_text())
    assert said["settings"]["forebay"]["missed"] == 0 and said["settings"]["naive-bb"]["missed"] == 8
    assert said["settings"]["eley"]["actions"] == {"search": 2} and said["profile"] == settings
    page = (tmp_path / "eley.md").read_text()
    assert "| NaiveBB | 2 | 30.0 s |" in page and "| 1 | 4.20 s |" in page
    for name in ("phases", "maps", "run-local", "run-naive-bb", "run-forebay"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5000, name
    assert "| what | measured | target | met |" in capsys.readouterr().out
    report.write(results(), dataclasses.replace(SIZE, ranks=0), binary(), tmp_path)
    assert "The simulator predicts nothing" in (tmp_path / "eley.md").read_text()
