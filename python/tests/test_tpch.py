"""The code of the TPC-H benchmark without Spark: its queries, its table, and what it refuses."""

import argparse
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
        "runs": [{"run": name, "seconds": 1.0, "served_bytes": served, "asked_bytes": 5_000_000, "result": result} for name, served in runs],
    }


def config(**more):
    return argparse.Namespace(queries=[1], modes=["alone", "no-action"], **more)


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
    assert row == "| Q2 | 5.00 | 4.00 | 3.00 | 0.75 | 4.00 | 0.00 |" and ", s" not in head
    assert tpch_report.table(outcomes, times=True)[0].count(", s") == 4


def test_results_that_differ_and_queries_that_did_not_run_end_the_benchmark():
    same = [outcome(1, "alone", 1), outcome(1, "no-action", 1)]
    tpch.check(same, config())
    with pytest.raises(tpch.BenchError, match="results differ"):
        tpch.check([same[0], outcome(1, "no-action", 1, result="1 rows b")], config())
    with pytest.raises(tpch.BenchError, match="ran 2 times, 4 were expected"):
        tpch.check(same[:1], config())


def test_a_generator_that_fails_ends_the_benchmark_and_leaves_no_tables(tmp_path):
    failing = tmp_path / "tpchgen"
    failing.write_text("#!/bin/sh\necho no room >&2\nexit 1\n")
    failing.chmod(0o755)
    with pytest.raises(tpch.BenchError, match="no room"):
        tpch.generate(failing, tmp_path / "tables", 1, 4)
    assert not (tmp_path / "tables/complete").exists()
