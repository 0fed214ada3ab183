"""The report of the experiment on storage servers, without jobs."""

import pytest
from conftest import REPOSITORY
from test_eley_experiment import modules_of

pytest.importorskip("matplotlib")

with modules_of(REPOSITORY / "python/shipping"):
    import report

SIZES = {"servers": 4, "nodes": 4, "rate": 80.0, "cpus": 0.4, "files": 4, "file_bytes": 64 << 20}


def run(way, job_s, local, sent, result=7):
    numbers = {"job_s": job_s, "map_s": job_s / 2, "local": local, "tasks": 4, "network_bytes": 4 * sent, "server_bytes": sent}
    return {"way": way, "workload": "sort", "result": result, "daemon_calls": 10, "client_bytes_per_s": 20e6, **numbers}


def test_the_bound_is_what_the_servers_links_need_and_medians_are_shown(tmp_path):
    runs = [run("naive", job_s, 0.0, 160e6) for job_s in (4.0, 5.0, 9.0)] + [run("shipped", 2.0, 1.0, 8e6)]
    assert report.bound_s(report.rows(runs)["sort", "naive"], SIZES) == pytest.approx(2.0)
    assert report.write(tmp_path, {"sizes": SIZES, "alone": [{"bytes_per_s": 25e6, "calls_per_byte": 1e-5}]}, runs) == []
    text = (tmp_path / "shipping.md").read_text()
    assert "| sort | naive | 5.0 s (4.0 to 9.0) | 2.5 s | 0 % | 640 MB | 2.0 s | 40 % | 10 | -20 % (-20.0 to -20.0) |" in text
    assert "missed" not in text and (tmp_path / "shipping.png").exists()


def test_results_that_differ_and_tasks_away_from_their_stripes_are_problems():
    problems = report.check([run("naive", 4.0, 0.0, 160e6), run("shipped", 2.0, 0.75, 8e6, result=8)])
    assert problems == ["sort has 2 different results", "75.0 % of the shipped map tasks are local; the target is 95 %"]
