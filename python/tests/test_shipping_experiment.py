"""The experiment on storage servers without jobs: its report, its inputs, and what it reads from its clients."""

import json
import shutil
import subprocess
import sys

import pytest
from conftest import REPOSITORY
from test_eley_experiment import modules_of

pytest.importorskip("matplotlib")

sys.path.insert(0, str(REPOSITORY / "python/demo"))

with modules_of(REPOSITORY / "java/mapreduce"), modules_of(REPOSITORY / "python/shipping"):
    import client
    import experiment
    import inputs
    import mapreduce
    import report

SIZES = {"servers": 4, "nodes": 4, "rate": 80.0, "cpus": 0.4, "files": 4, "file_bytes": 64 << 20, "client": "fio"}


def got(bytes_per_s, latency_ms):
    return {"sequential": {"link_bytes": 1, "bytes_per_s": bytes_per_s, "latency_ms": latency_ms}}


ALONE = [{"client": got(25e6, 50.0), "calls_per_byte": {"sequential": 1e-5}}]


def run(way, job_s, local, sent, result=7, beside=None):
    numbers = {"job_s": job_s, "map_s": job_s / 2, "local": local, "tasks": 4, "network_bytes": 4 * sent, "server_bytes": sent}
    return {"way": way, "workload": "sort", "result": result, "daemon_calls": 10, "client": beside or got(20e6, 60.0), **numbers}


def test_the_bound_is_what_the_servers_links_need_and_medians_are_shown(tmp_path):
    measured = ((4.0, 20e6), (5.0, 10e6), (9.0, 25e6))
    runs = [run("naive", job_s, 0.0, 160e6, beside=got(rate, 60.0)) for job_s, rate in measured] + [{**run("shipped", 2.0, 1.0, 8e6), "daemon_calls": None}]
    assert report.bound_s(report.rows(runs)["sort", "naive"], SIZES) == pytest.approx(2.0)
    assert report.write(tmp_path, {"sizes": SIZES, "alone": ALONE}, runs) == []
    text = (tmp_path / "shipping.md").read_text()
    assert "| sort | naive | 5.0 s (4.0 to 9.0) | 2.5 s | 0 % | 640 MB | 2.0 s | 40 % | 10 |" in text
    # A daemon was killed, and its count with it.
    assert "| sort | shipped | 2.0 s | 1.0 s | 100 % | 32 MB | 0.1 s | 5 % | - |" in text
    assert "| sequential | 25.00 MB/s | 50.00 ms |" in text
    assert "| sort | naive | sequential | 80.0 (40.0 to 100.0) | 120.0 (120.0 to 120.0) |  |" in text
    assert "| sort | shipped | sequential | 80.0 | 120.0 | within 3 %: **missed** |" in text
    assert (tmp_path / "shipping.png").exists()


def test_isolation_is_held_to_three_percent_and_the_lack_of_it_has_to_show():
    assert report.judged("shipped", [97.5, 96.0, 99.0], [102.0], None) == "within 3 %: met"
    assert report.judged("shipped", [98.0], [104.0], None) == "within 3 %: **missed**"
    assert report.judged("shipped, no limits", [80.0], [150.0], ([98.0], [101.0])) == "worse than shipped: shown"
    assert report.judged("shipped, no limits", [80.0], [100.0], ([98.0], [101.0])) == "worse than shipped: **not shown**"
    assert report.judged("shipped, no limits", [80.0], [100.0], None) == report.judged("naive", [80.0], [120.0], None) == ""


def test_results_that_differ_and_tasks_away_from_their_stripes_are_problems():
    problems = report.check([run("naive", 4.0, 0.0, 160e6), run("shipped", 2.0, 0.75, 8e6, result=8)])
    assert problems == ["sort has 2 different results", "75.0 % of the shipped map tasks are local; the target is 95 %"]
    # The maps of TestDFSIO have no stripe.
    assert report.check([{**run("shipped, no limits", 2.0, 0.5, 8e6), "tasks": 0}]) == []


def test_slices_of_a_client_are_added_and_their_quantile_is_of_all_requests():
    read = {"io_bytes": 4096 * 99, "runtime": 500, "clat_ns": {"bins": {"1000000": 99}}}
    first = client.of_fio("fio: terminating on signal 2\n" + json.dumps({"jobs": [{"read": read}]}))
    second = {"bytes": 4096, "seconds": 0.5, "times": {"9000000": 1}}
    begun = {"bytes": 0, "seconds": 0.0, "times": {}}
    slices = [{"pattern": "random", "link_bytes": number, **one} for number, one in enumerate((first, second, begun))]
    slices.append({"pattern": "sequential", "link_bytes": 5, **begun})
    assert client.summary("fio", slices) == {"random": {"link_bytes": 3, "bytes_per_s": 409600.0, "latency_ms": 1.0}}
    assert client.quantile({"1000000": 98, "9000000": 2}, 0.99) == 9.0
    steps = client.of_btio('noise\n{"bytes": 10, "seconds": 0.5}\n{"bytes": 10, "seconds": 1.5}\n')
    assert steps == {"bytes": 20, "seconds": 2.0, "times": {"500000000": 1, "1500000000": 1}}


def test_both_ways_of_btio_write_the_same_cube(tmp_path):
    if not all(map(shutil.which, client.CLIENTS["btio"].needs)):
        pytest.skip("no MPI here (packages libopenmpi-dev, openmpi-bin)")
    numpy = pytest.importorskip("numpy")
    program = tmp_path / client.BTIO
    subprocess.run(["mpicc", "-std=c11", "-O2", "-o", program, REPOSITORY / "python/shipping/btio.c"], check=True)
    for pattern in client.CLIENTS["btio"].patterns:
        file = tmp_path / "file"
        done = subprocess.run(client.command("btio", pattern, file, 1, 0), capture_output=True, text=True, timeout=60, check=True)
        assert client.of_btio(done.stdout)["bytes"] == 64**3 * 40
        written = numpy.fromfile(f"{file}.btio")
        assert (written == numpy.arange(64**3 * 5)).all(), pattern


def test_a_sorted_copy_of_teras_records_is_valid_and_any_other_is_not(tmp_path):
    source, right = inputs.tera(tmp_path, 100_000)
    assert right["records"] == 1000 and inputs.tera(tmp_path, 100_000) == (source, right)
    data = (source / "part-00000").read_bytes()
    assert data[10:48] == b"\x00\x11" + b"0" * 32 + b"\x88\x99\xaa\xbb" and data[110:144].endswith(b"01")
    with pytest.raises(ValueError, match="not in order"):
        inputs.validate(source)
    records = sorted(data[at : at + 100] for at in range(0, len(data), 100))
    output = tmp_path / "sorted"
    output.mkdir()
    for number in range(2):
        (output / f"part-r-0000{number}").write_bytes(b"".join(records[500 * number : 500 * (number + 1)]))
    assert inputs.validate(output) == right
    (output / "part-r-00001").write_bytes(b"".join(records[501:]))
    assert inputs.validate(output) != right
    (output / "part-r-00000").write_bytes(b"".join(records[500:]))
    (output / "part-r-00001").write_bytes(b"".join(records[:500]))
    with pytest.raises(ValueError, match="part-r-00001 is not in order"):
        inputs.validate(output)


def test_pairs_are_lines_of_two_numbers(tmp_path):
    lines = [line.split() for path in sorted(inputs.pairs(tmp_path, 22 * 4 * 500, 2).iterdir()) for line in path.read_text().splitlines()]
    assert len(lines) == 500 and len({int(first) for first, _ in lines}) == 5
    assert all(0 <= int(second) < 1 << 31 for _, second in lines)


def test_tables_need_a_generator_that_works(tmp_path):
    with pytest.raises(RuntimeError, match="tpchgen-cli failed"):
        inputs.tables(tmp_path, 1 << 20, shutil.which("false"))


def test_mapreduce_runs_in_the_ways_without_limits():
    assert experiment.ways("mr-dfsio", []) == ["naive", "tier", "shipped, no limits"]
    assert experiment.ways("mr-dfsio", ["shipped", "tier"]) == ["tier"]
    assert experiment.ways("sort", []) == list(experiment.WAYS)


def test_spark_and_yarn_tell_the_same_of_their_maps():
    task = {"ok": True, "read_bytes": 1, "locality": "NODE_LOCAL", "began_ms": 2000, "ended_ms": 5000}
    other = {**task, "locality": "ANY", "began_ms": 3000, "ended_ms": 6000}
    reduced = {**task, "read_bytes": 0, "ended_ms": 9000}
    report_of_spark = {"began_ms": 1000, "ended_ms": 9000, "result": 7, "tasks": [task, other, reduced]}
    assert experiment.of_spark(report_of_spark) == {"job_s": 8.0, "map_s": 4.0, "tasks": 2, "local": 0.5, "result": 7}

    class History:
        def ask(self, what):
            assert what == "job_1/tasks"
            times = [("MAP", 2000, 5000), ("MAP", 3000, 6000), ("REDUCE", 4000, 9000)]
            return {"tasks": {"task": [dict(zip(("type", "startTime", "finishTime"), one, strict=True)) for one in times]}}

    job = mapreduce.yarn.Job("job_1", 8.0, 2, 3.0, "", {"DATA_LOCAL_MAPS": 1})
    assert mapreduce.measured(History(), [job]) == {"job_s": 8.0, "map_s": 4.0, "tasks": 2, "local": 0.5}
