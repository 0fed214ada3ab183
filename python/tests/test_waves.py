"""The code of Spark's part of the demonstration, without Spark: what it makes of reports, and the text it runs on."""

import dataclasses
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import REPOSITORY, binary

numpy = pytest.importorskip("numpy")
pytest.importorskip("matplotlib")
sys.path.insert(0, str(REPOSITORY / "python/demo"))

import labcluster  # noqa: E402
import loopback  # noqa: E402
import predict  # noqa: E402
import sparkshow  # noqa: E402
import study  # noqa: E402
import text  # noqa: E402
import timeline  # noqa: E402
import waves  # noqa: E402


def wave(prefetch, compute):
    return {"prefetch": prefetch, "compute": compute, "tasks": 2, "bytes": 10, "fetched_bytes": 10}


def report():
    def task(number, host, locality, began, ended, stage=0, ok=True):
        return {"stage": stage, "task": number, "host": host, "locality": locality, "began_ms": began, "ended_ms": ended, "ok": ok}

    return {
        "began_ms": 9_000,
        "ended_ms": 16_000,
        "result": {"records": 3, "total": 5, "sum": 7},
        "stages": [
            {"stage": 1, "attempt": 0, "began_ms": 15_000, "ended_ms": 16_000, "failed": False},
            {"stage": 0, "attempt": 0, "began_ms": 10_000, "ended_ms": 15_000, "failed": False},
        ],
        "tasks": [
            task(0, "h1", "NODE_LOCAL", 10_500, 12_000),
            task(1, "h2", "NODE_LOCAL", 10_500, 12_500, ok=False),
            task(1, "h1", "ANY", 12_000, 15_000),
            task(0, "h1", "ANY", 15_000, 16_000, stage=1),
        ],
    }


def status(ms):
    return {"tasks": 1, "bytes": 4, "fetched_bytes": 4, "prefetch_began_ms": ms[0], "prefetch_ended_ms": ms[1], "compute_began_ms": ms[2], "compute_ended_ms": ms[3]}


def test_a_run_is_that_of_the_reading_stage():
    jobs = [{"stages": []}, {"stages": [{"stage": 0, "waves": [status((100, 400, 300, 1800)), status((400, 900, 1800, None))]}]}]
    samples = [(0.0, 0, 100), (1.0, 0, 300), (6.0, 0, 900)]
    run = waves.summarize("sort", "no-action", report(), jobs, samples, epoch_s=9.5)
    assert (run.map_s, run.total_s, run.served_bytes) == (5.0, 7.0, 800)
    assert [task["host"] for task in run.tasks] == ["h1", "h1"]
    assert run.local_share == 0.5
    assert run.samples[0] == (-0.5, 100)
    # The first task began 0.5 s after the stage, 300 ms after the job.
    assert run.waves[0]["prefetch"] == pytest.approx((0.3, 0.6))
    assert run.waves[1]["compute"] == (pytest.approx(2.0), None)


def test_a_run_without_waves_has_none():
    run = waves.summarize("sort", "straight", report(), [], [(0.0, 0, 0), (1.0, 0, 5)], 0.0)
    assert run.waves == [] and run.hidden_share is None and run.local_share is None


def test_hidden_is_what_lies_behind_an_earlier_wave_and_before_its_own():
    # 2 of 4 seconds lie within the first wave's compute.
    assert waves.hidden_share([wave((0, 5), (5, 10)), wave((8, 12), (12, 15))]) == 0.5
    # A wave that has begun waits for the rest, whatever else computes.
    assert waves.hidden_share([wave((0, 1), (0, 10)), wave((2, 8), (5, 12))]) == 0.5
    # Computes that overlap are counted once.
    assert waves.hidden_share([wave((0, 1), (0, 10)), wave((0, 1), (5, 10)), wave((0, 20), (20, 30))]) == pytest.approx((1 + 10) / 21)
    assert waves.hidden_share([wave((0, 1), (1, 2))]) is None
    assert waves.hidden_share([wave((0, 1), (1, 2)), wave((None, None), (2, 3))]) is None


def runs():
    result = {"records": 1, "total": 2, "sum": 3}
    tasks = [{"host": f"h{i % 2}", "local": True, "began": i / 4, "ended": i / 4 + 0.4} for i in range(12)]
    steps = [wave((i / 2, i / 2 + 0.3), (i / 2 + 0.3, i / 2 + 0.7)) for i in range(6)]
    samples = [(i / 10, i * 1_000_000) for i in range(-5, 60)]
    make = lambda w, m, s: waves.Run(w, m, map_s=s, total_s=s + 2, served_bytes=1000, tasks=tasks, waves=steps if m == "no-action" else [], samples=samples, result=result)  # noqa: E731
    return [make(w, m, s) for w in waves.WORKLOADS for m, s in (("straight", 6.0), ("naive-bb", 5.9), ("no-action", 3.0))]


def test_runs_that_differ_or_were_not_cold_are_refused():
    waves.check(runs(), 1000)
    for change in ({"result": {"records": 2}}, {"served_bytes": 900}, {"waves": []}):
        some = runs()
        vars(some[5]).update(change)
        with pytest.raises(waves.WavesError):
            waves.check(some, 1000)


def test_the_table_compares_map_times():
    lines = waves.table(runs())
    assert len(lines) == 7
    assert "3.0 s" in lines[3] and "-50 %" in lines[3] and "100 %" in lines[3]
    assert len({len(line) for line in lines}) == 1


def test_the_busiest_server_is_that_with_most_bytes():
    shape = sparkshow.shape("moosefs", 20 << 20, 8 << 20, [[1], [2], [1]])
    assert shape.busiest_bytes() == 12 << 20
    assert sparkshow.shape(None, 20 << 20, 8 << 20, None).busiest_bytes() == 5 << 20


def test_mfsfileinfo_says_where_chunks_are():
    told = "".join(f"/p/{name}:\n\tchunk 0: 0000000000000002_00000001 / (id:2 ver:1)\n\t\tcopy 1: 10.0.0.{server}:9422 (status:VALID)\n" for name, server in zip("abc", (1, 2, 1)))
    sizes = {"/p/a": 5, "/p/b": 7, "/p/c": 4}
    assert labcluster.chunks(sizes, told) == [[0], [1], [0]]
    assert labcluster.chunks({**sizes, "/p/d": 1}, told) is None
    assert labcluster.chunks({**sizes, "/p/c": 65 << 20}, told) is None, "its second chunk is nowhere"


def test_bricks_say_where_pieces_are():
    told = [{"files": {"a": "A"}, "shards": ["B.1"]}, {"files": {"b": "B"}, "shards": ["A.2", "A.1", "other.7"]}]
    assert labcluster.pieces({"/p/a": 25, "/p/b": 20}, told, 10) == [[0, 1, 1], [1, 0]]
    assert labcluster.pieces({"/p/a": 31, "/p/b": 20}, told, 10) is None
    assert labcluster.pieces({"/p/c": 1}, told, 10) is None


def test_stripes_go_round_the_servers_of_the_slow_file_system():
    layout = {"stripe_bytes": 10, "servers": ["s0", "s1", "s2"], "first_server": 2}
    assert loopback.stripes_on(layout, 31) == [2, 0, 1, 2]


def test_the_first_task_of_each_node_is_told_apart():
    run = waves.summarize("sort", "straight", report(), [], [(0, 0, 0)], 0)
    assert waves.first_task_s(run.tasks) == 1.5
    assert waves.first_task_s([*run.tasks, {"host": "h2", "began": 1.0, "ended": 3.5}]) == 2.0


class StudiedCluster:
    """Stands for a cluster; what `waves.measure` would have found is given."""

    rates = ()

    def set_rate(self, mb_per_s):
        self.rates += (mb_per_s,)

    def forget(self):
        pass


def studied(monkeypatch, map_s, served=1000, only=("limit",), predictor=None):
    asked = []

    def measure(cluster, data, workload, mode, cold=True):
        asked.append((workload, mode, cold))
        return next(waves.Run(**{**vars(run), "map_s": map_s[mode], "served_bytes": served}) for run in runs() if (run.workload, run.mode) == (workload, mode))

    monkeypatch.setattr(waves, "measure", measure)
    monkeypatch.setattr(waves, "cores", lambda cluster, local, workload: {"wordcount": waves.Cores(10.0, 1.2), "sort": waves.Cores(20.0, 1.2)}[workload])
    cluster = StudiedCluster()
    kept = []
    outcomes = study.run_all(cluster, "local", "data", 400_000_000, 4, 120_000_000, 2, only, 0.6, lambda words: None, predictor, lambda some: kept.append(len(some)))
    assert kept == list(range(1, len(outcomes) + 1)), "a study that is stopped keeps what it has"
    return cluster, outcomes, asked


def test_a_study_sets_rates_by_what_the_cores_compute(monkeypatch):
    cluster, outcomes, asked = studied(monkeypatch, {"naive-bb": 40.0, "no-action": 18.0}, served=400_000_000)
    # 40 and 20 MB/s of compute, three quarters of it, over four servers.
    assert cluster.rates == (pytest.approx(7.5), pytest.approx(3.75))
    assert asked[:4] == [("wordcount", mode, True) for mode in study.MODES * 2]
    assert [one.change for one in outcomes] == [pytest.approx(-0.55)] * 2 and outcomes[0].misses() == []
    # Its busiest server has 120 of 400 MB.
    assert [one.pfs_s for one in outcomes] == [pytest.approx(16.0), pytest.approx(32.0)] and "| 16.0 s |" in study.table(outcomes)[2]
    # Of 24 s that this leaves to gain, 22 are.
    assert "| -55.0 % | 92 % |" in study.table(outcomes)[2] and study.table(outcomes)[2].endswith("| yes |")


def test_a_study_predicts_each_cold_run_from_what_it_measures_and_sets(monkeypatch, tmp_path):
    asked = []

    def run(command, **_):
        scenario = tomllib.loads(Path(command[-1]).read_text())
        asked.append(scenario)
        map_ns = 9e9 if scenario["planner"]["policy"] == "naive-bb" else 6.6e9
        return subprocess.CompletedProcess(command, 0, json.dumps({"jobs": [{"map_ns": map_ns}], "served_bytes": 424_000_000}), "")

    monkeypatch.setattr(predict.subprocess, "run", run)
    shape = sparkshow.shape("moosefs", 400_000_000, 8 << 20, [[number % 4] for number in range(48)])
    predictor = predict.Predictor("forebay", tmp_path / "scenarios", shape)
    studied(monkeypatch, {"naive-bb": 10.0, "no-action": 10.0}, only=("cached",), predictor=predictor)
    assert not asked, "what is cached is not predicted"
    outcomes = studied(monkeypatch, {"naive-bb": 10.0, "no-action": 6.0}, served=400_000_000, predictor=predictor)[1]
    assert len(asked) == 4
    assert asked[0]["pfs"]["server_bytes_per_s"] == 7_500_000 and asked[0]["job"][0]["input_bytes"] == 400_000_000
    # 10 s of all four cores together, over 48 tasks, of which the first four take 1.2 s.
    assert asked[0]["job"][0]["first_task_cpu_s"] == 1.2 and asked[0]["job"][0]["task_cpu_s"] == pytest.approx(8.8 * 4 / 44)
    assert asked[0]["job"][0]["servers"][:5] == [[0], [1], [2], [3], [0]]
    line = study.table(outcomes)[2]
    assert "| 10.0 s | 9.0 s (-10 %), 424 MB (+6.0 %) | 6.0 s | 6.6 s (+10 %), 424 MB (+6.0 %) |" in line
    assert study.figures(outcomes)[0]["predicted"]["no-action"] == {"map_s": 6.6, "served_bytes": 424_000_000}
    assert study.figures(outcomes)[0]["cores"] == {"map_s": 10.0, "first_task_s": 1.2}
    assert outcomes[0].misses() == [f"simulated PFS bytes of {mode} +6.0 %, target within 5 %" for mode in study.MODES]


def test_the_simulator_takes_every_scenario_of_the_studies(tmp_path):
    for pfs, file_bytes in ((None, 64 << 20), ("moosefs", 8 << 20), ("glusterfs", 64 << 20)):
        shape = sparkshow.shape(pfs, 28 * (8 << 20), file_bytes, None)
        predictor = predict.Predictor(binary(), tmp_path, shape)
        naive, ahead = (predictor("equal", "sort", mode, 5.0, waves.Cores(11.7, 1.7)) for mode in study.MODES)
        assert all(11.7 < one.map_s < 30 for one in (naive, ahead)), pfs
        assert naive.served_bytes == 28 * (8 << 20), pfs
        # What MooseFS's client reads ahead of a miss may be requested too.
        most_twice = sparkshow.MOOSEFS_AHEAD_BYTES * sparkshow.LAB_NODES if pfs == "moosefs" else 0
        assert 0 <= ahead.served_bytes - 28 * (8 << 20) <= most_twice, pfs
        # Where files lie in turn and are read in turn waves have little to gain.
        assert ahead.map_s < (1.15 if pfs == "moosefs" else 1.0) * naive.map_s, pfs
        scenario = predict.scenario(dataclasses.replace(shape, stripes_on=[[4]]), "sort", "no-action", 5.0, waves.Cores(11.7, 1.7))
        with pytest.raises(waves.WavesError, match="servers"):
            predict.prediction(binary(), tmp_path, "bad", scenario)


def test_a_study_says_what_is_not_as_wanted(monkeypatch):
    outcomes = studied(monkeypatch, {"naive-bb": 40.0, "no-action": 30.0}, served=400_000_000)[1]
    assert outcomes[0].misses() == ["42 % of the possible gain, target 60 % at least"]
    # Nothing can be gained where the bound is what naive-bb takes.
    outcomes = studied(monkeypatch, {"naive-bb": 16.2, "no-action": 16.2}, served=400_000_000)[1]
    assert outcomes[0].gained_share is None and outcomes[0].misses() == []
    outcomes = studied(monkeypatch, {"naive-bb": 10.0, "no-action": 10.4}, served=400_000_000, only=("fast",))[1]
    assert study.figures(outcomes)[1]["misses"] == ["map time +4.0 %, target +3 % at most"]


def test_a_study_of_what_is_cached_reads_nothing_anew(monkeypatch):
    _, outcomes, asked = studied(monkeypatch, {"naive-bb": 10.0, "no-action": 10.0}, only=("cached",))
    assert asked[:2] == [("wordcount", mode, False) for mode in study.MODES] and len(asked) == 12
    assert outcomes[0].misses() == []
    with pytest.raises(waves.WavesError):
        studied(monkeypatch, {"naive-bb": 10.0, "no-action": 10.0}, served=400_000_000, only=("cached",))


def test_the_picture_is_drawn(tmp_path):
    paths = [tmp_path / "waves.svg", tmp_path / "waves.png"]
    timeline.draw(runs(), 50e6, "a test", paths)
    assert all(path.stat().st_size > 10_000 for path in paths)


def test_windows_are_mean_rates():
    edges, rates = timeline.windows([(i / 10, 100 * i) for i in range(-10, 31)], 0.5, 3.0)
    assert edges[0] == 0.0 and edges[-1] <= 3.0
    assert all(abs(rate - 1000) < 1 for rate in rates)


def test_text_is_the_same_each_time_and_as_long_as_wanted(tmp_path):
    seen = []
    first = text.write(tmp_path / "a", 300_000, 100_000, seen.append)
    second = text.write(tmp_path / "b", 250_001, 100_000, lambda done: None)
    names = sorted(path.name for path in first.iterdir())
    assert [(first / name).stat().st_size for name in names] == [100_000] * 3
    assert [(second / name).stat().st_size for name in names] == [100_000, 100_000, 50_001]
    assert (first / names[0]).read_bytes() == (second / names[0]).read_bytes()
    assert seen[-1] == 300_000
    stamp = (first / names[0]).stat().st_mtime_ns
    text.write(tmp_path / "a", 300_000, 100_000, seen.append)
    assert (first / names[0]).stat().st_mtime_ns == stamp


def test_words_have_the_frequencies_that_are_promised(tmp_path):
    chunk = next(text.lines()).decode()
    counts = numpy.unique(chunk.split(), return_counts=True)[1]
    counts = numpy.sort(counts)[::-1]
    total = counts.sum()
    weights = 1 / (numpy.arange(text.WORDS) + 1 + text.SHIFT)
    assert counts[0] / total == pytest.approx(weights[0] / weights.sum(), rel=0.05)
    assert counts[99] / total == pytest.approx(weights[99] / weights.sum(), rel=0.15)
    lengths = [len(line.split()) for line in chunk.splitlines()]
    assert min(lengths) >= 8 and max(lengths) <= 15


def test_spark_is_found_only_where_it_is(tmp_path):
    import sparkhome

    assert sparkhome.find(tmp_path) is None
    home = tmp_path / f"spark-{sparkhome.VERSION}/lib/python3.11/site-packages/pyspark"
    (home / "bin").mkdir(parents=True)
    assert sparkhome.find(tmp_path) is None
    (home / "bin/spark-class").touch()
    assert sparkhome.find(tmp_path) == home


def test_members_are_counted_in_the_view():
    import loopback

    assert loopback.members({"cluster": {"view": {"nodes": [{"name": "n1"}]}}}) == 1
