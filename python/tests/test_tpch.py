"""The code of the TPC-H benchmark without Spark: its queries, its table, and what it refuses."""

import argparse
import contextlib
import subprocess
import sys

import pytest
from conftest import REPOSITORY

sys.path[:0] = [str(REPOSITORY / "python/tpch"), str(REPOSITORY / "python/demo")]

# Other benchmarks have modules of these names.
for name in ("bench", "report", "queries"):
    sys.modules.pop(name, None)

import bench as tpch  # noqa: E402
import queries  # noqa: E402
import report as tpch_report  # noqa: E402

for name in ("bench", "report", "queries"):
    sys.modules.pop(name, None)
sys.path.remove(str(REPOSITORY / "python/tpch"))


def outcome(query, mode, cold, second=0, result="1 rows a"):
    runs = [("cold", cold), ("second", second)]
    return {
        "query": query,
        "mode": mode,
        "round": 0,
        "runs": [{"run": name, "seconds": 1.0, "served_bytes": served, "beyond_rest_bytes": served, "asked_bytes": 5_000_000, "result": result} for name, served in runs],
    }


def config(**more):
    return argparse.Namespace(**{"queries": [1], "modes": ["alone", "no-action"], "rounds": 1, **more})


def test_there_are_22_queries_and_each_reads_tables_that_are_generated():
    assert sorted(queries.QUERIES) == list(range(1, 23))
    for number in queries.QUERIES:
        text = queries.text(number, 1)
        assert any(table in text for table in queries.TABLES) and "{" not in text
    assert "0.0001000000" in queries.text(11, 1) and "0.0000333333" in queries.text(11, 3)


def test_a_query_that_takes_more_than_spark_alone_is_named():
    outcomes = [outcome(1, "alone", 10), outcome(1, "no-action", 12), outcome(2, "alone", 10), outcome(2, "no-action", 11, second=3)]
    figures = tpch_report.summary(outcomes)["no-action"]
    assert figures["cold_beyond_target"] == [1] and figures["second_not_zero"] == [2]
    assert figures["cold_over_alone_max"] == 1.2
    lines = tpch_report.verdict({"no-action": figures})
    assert "1 of 2" in lines[0] and lines[0].endswith("beyond it: Q1") and lines[1].endswith("it does in Q2")


def test_the_table_has_a_row_for_each_query_and_seconds_only_where_asked_for():
    outcomes = [outcome(2, "alone", 4_000_000, 4_000_000), outcome(2, "no-action", 3_000_000)]
    head, _, row = tpch_report.table(outcomes, times=False)
    assert row == "| Q2 | 5.00 | 4.00 | 3.00 | 0.75 | 4.00 | 0.00 | 0.00 | - | - | 0 |" and ", s" not in head
    assert tpch_report.table(outcomes, times=True)[0].count(", s") == 4


def test_times_are_compared_with_spark_alone_with_the_bound_and_with_the_page_cache():
    def timed(query, mode, cold_s, second_s, served=0):
        one = outcome(query, mode, served)
        for run, seconds in zip(one["runs"], (cold_s, second_s)):
            run["seconds"] = seconds
        return one

    outcomes = [timed(1, "alone", 4, 4, 120_000_000), timed(1, "no-action", 2, 1, 60_000_000), timed(1, "memory", 0.5, 0.5)]
    outcomes += [timed(2, "alone", 2, 2, 60_000_000), timed(2, "no-action", 2.2, 1, 6_000_000), timed(2, "memory", 1.1, 1)]
    of = tpch_report.times(outcomes, "no-action", 60)
    # Q1 waits for its bytes, Q2 computes longer than that.
    assert (of["bound_over_cold"]["least"], of["bound_over_cold"]["greatest"]) == (0.5, 0.5)
    assert of["cold_over_alone"]["mean"] == pytest.approx((0.5 * 1.1) ** 0.5) and of["slower"] == [2]
    assert of["second_over_memory"] == {"least": 1, "greatest": 2, "mean": pytest.approx(2**0.5)}
    said = tpch_report.verdict_of_times("no-action", of)
    assert "0.50 to 1.10 (geometric mean 0.74)" in said[0] and said[0].endswith("more in Q2)")
    assert tpch_report.times(outcomes[1:2], "no-action", 60) is None
    of = tpch_report.times([one for one in outcomes if one["mode"] != "memory"], "no-action", 60)
    assert of["slower"] == [2] and len(tpch_report.verdict_of_times("no-action", of)) == 1
    head = tpch_report.table(outcomes, times=True)[0]
    assert head.count(", s") == 6 and "memory, MB" not in head and "memory" not in tpch_report.summary(outcomes)


def test_results_that_differ_and_queries_that_did_not_run_end_the_benchmark():
    same = [outcome(1, "alone", 1), outcome(1, "no-action", 1)]
    tpch.check(same, config())
    with pytest.raises(tpch.BenchError, match="results differ"):
        tpch.check([same[0], outcome(1, "no-action", 1, result="1 rows b")], config())
    with pytest.raises(tpch.BenchError, match="ran 2 times, 4 were expected"):
        tpch.check(same[:1], config())


def test_of_several_rounds_the_median_of_seconds_and_the_most_bytes_count():
    rounds = [outcome(1, mode, served) for served in (10, 12, 11) for mode in ("alone", "no-action")]
    for number, one in enumerate(rounds):
        one["round"], one["runs"][0]["seconds"] = number // 2, (3.0, 9.0, 1.0)[number // 2]
    tpch.check(rounds, config(rounds=3))
    with pytest.raises(tpch.BenchError, match="ran 12 times, 8 were expected"):
        tpch.check(rounds, config(rounds=2))
    merged = tpch.merge_rounds(rounds)
    assert [one["mode"] for one in merged] == ["alone", "no-action"]
    cold = merged[0]["runs"][0]
    assert (cold["seconds"], cold["served_bytes"], cold["seconds_of_rounds"]) == (3.0, 12, [3.0, 9.0, 1.0])


def test_a_second_run_of_any_round_that_takes_more_than_the_file_system_sends_by_itself_is_named():
    rounds = [outcome(1, "no-action", 10, second=served) for served in (300, 150)]
    for number, (one, beyond) in enumerate(zip(rounds, (0, 50))):
        one["round"], one["runs"][1]["beyond_rest_bytes"] = number, beyond
    assert tpch_report.summary(tpch.merge_rounds(rounds))["no-action"]["second_not_zero"] == [1]


class Resting:
    """A file system that serves a query's last bytes late, and then only messages of its own."""

    resting_bytes_per_s = 20_000

    def __init__(self, late):
        self.late, self.served, self.asked = late, 0, 0

    def served_bytes(self):
        self.asked += 1
        self.served += 1_000_000 if self.late and self.asked <= self.late else 1000
        return self.served


def test_the_bytes_of_a_run_are_read_when_only_messages_flow():
    setup = Resting(late=3)
    assert tpch.quiet_bytes(setup) == 3_001_000 and setup.asked == 4
    assert tpch.quiet_bytes(Resting(late=0)) == 2000


@pytest.mark.parametrize("options", (["--faults"], ["--cores", "1"], ["--read-ahead", "1MiB"], ["--nodes", "0"]))
def test_options_that_the_lab_does_not_have_are_refused(options):
    done = subprocess.run([sys.executable, REPOSITORY / "python/tpch", "--lab", "moosefs", *options], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and options[0] in done.stderr


def test_bytes_that_executors_of_other_processes_asked_for_are_unknown():
    one = outcome(2, "no-action", 3_000_000)
    one["runs"][0]["asked_bytes"] = None
    assert tpch_report.table([one], times=False)[2].startswith("| Q2 | - | 3.00 |")


def test_pages_that_the_page_cache_has_lost_end_the_benchmark():
    tpch.check_memory([outcome(1, "memory", 50_000), outcome(1, "alone", 9_000_000)], 100_000_000)
    with pytest.raises(tpch.BenchError, match="Q1 of .*: 5.0 MB came from the PFS"):
        tpch.check_memory([outcome(1, "memory", 5_000_000)], 100_000_000)


# What a worker does after its task has come: it is late, with a child that has its pipe too; it
# ends; or something else writes to its pipe.
BAD_WORKERS = {
    "late": "subprocess.Popen(['sleep', '600']); time.sleep(600)",
    "ended": "sys.exit(1)",
    "talkative": "print('[warning][cds] not shared', flush=True); time.sleep(600)",
}


@pytest.mark.parametrize("how", BAD_WORKERS)
def test_a_worker_that_does_not_answer_ends_the_benchmark(tmp_path, monkeypatch, how):
    (tmp_path / "worker.py").write_text(f"import subprocess, sys, time\nsys.stdin.readline()\nprint('{{}}', flush=True)\nsys.stdin.readline()\n{BAD_WORKERS[how]}\n")
    monkeypatch.setattr(tpch, "HERE", tmp_path)
    monkeypatch.setattr(tpch, "ANSWER_S", 3)
    of = config(python=sys.executable, driver_memory="1g", scale=1, format="parquet", output=tmp_path / "runs.jsonl", log_level="ERROR")
    setup = argparse.Namespace(master="local[1]", settings={}, tables=tmp_path, start=(), environment={})
    with contextlib.ExitStack() as stack:
        worker = tpch.Worker(of, "alone", setup, stack)
        with pytest.raises(tpch.BenchError, match="Q6 has not ended within 3 s, or failed"):
            worker.ask(6, "cold", 0)
    assert worker.process.returncode is not None


def test_a_generator_that_fails_ends_the_benchmark_and_leaves_no_tables(tmp_path):
    failing = tmp_path / "tpchgen"
    failing.write_text("#!/bin/sh\necho no room >&2\nexit 1\n")
    failing.chmod(0o755)
    with pytest.raises(tpch.BenchError, match="no room"):
        tpch.generate(failing, tmp_path / "tables", 1, 4)
    assert not (tmp_path / "tables/complete").exists()


LOG = """WARN before anything
tpch: Q1 cold 0
DEBUG spark: Forebay: stage 0: 1000 bytes were reported of 2 tasks, of which 100 were not read, and 7 were read beside them
DEBUG spark: Forebay: stage 1: 1000 bytes were reported of 2 tasks, of which 0 were not read, and 1 were read beside them
INFO spark: Forebay: the columns of a scan are not known (file:/a); such files are read without a plan, and only what is read is fetched
DEBUG spark: Forebay: 3 files of a stage are read without a plan: the columns of a scan are not known
DEBUG spark: Forebay: 1 files of a stage are read without a plan: the columns of a scan are not known
INFO spark: Forebay: stage 3 goes on without prefetch: 9 bytes were reported of 1 tasks, of which 9 were not read, and 0 were read beside them
tpch: Q1 second 0
DEBUG spark: Forebay: stage 2: 50 bytes were reported of 1 tasks, of which 0 were not read, and 0 were read beside them
"""


def test_what_was_reported_and_not_read_is_found_in_the_log_by_query():
    runs = outcome(1, "no-action", 10)
    for one in runs["runs"]:
        one["pages"] = {"planned": 3, "demanded": 1}
    tpch.add_reports([runs], LOG)
    cold, second = runs["runs"]
    assert (cold["reported_bytes"], cold["unread_bytes"], cold["beside_bytes"]) == (2000, 100, 8)
    assert list(cold["fallbacks"].values()) == [4, 1] and "files: the columns of a scan are not known" in cold["fallbacks"]
    assert (second["reported_bytes"], second["fallbacks"]) == (50, {})
    outcomes = [outcome(1, "alone", 10), runs]
    figures = tpch_report.summary(outcomes)["no-action"]
    assert (figures["unread_share_median"], figures["prefetched_share"], figures["unread_beyond_target"]) == (0.05, 0.75, [])
    said = "\n".join(tpch_report.verdict({"no-action": figures}))
    assert "5.0 % of the reported bytes" in said and "75 % of the pages" in said and "4 files: the columns" in said
    head, _, row = tpch_report.table(outcomes, times=False)
    assert row.endswith("| 0.00 | 5.0 % | 75.0 % | 5 |") and "alone: reported" not in head


def test_a_query_that_leaves_much_of_its_report_unread_is_named():
    runs = [outcome(number, "no-action", 10) for number in (1, 2, 3)]
    for unread, of in zip((0, 10, 300), runs):
        of["runs"][0].update(reported_bytes=1000, unread_bytes=unread, fallbacks={}, pages={"planned": 0, "demanded": 0})
    figures = tpch_report.summary(runs)["no-action"]
    assert (figures["unread_share_median"], figures["unread_beyond_target"]) == (0.01, [3])
    said = tpch_report.verdict({"no-action": figures})
    assert any(line.endswith("more than the target in Q3") for line in said) and said[-1] == "no-action: nothing was read without a plan"
    assert "| 1.0 % | - | 0 |" in tpch_report.table(runs, times=False)[3]
