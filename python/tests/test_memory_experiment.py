"""The code of the memory experiment without a node: sizes, what it reads of the kernel's files, and what it makes of measurements."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY, binary

pytest.importorskip("matplotlib")
sys.path[:0] = [str(REPOSITORY / "python/memory"), str(REPOSITORY / "python/demo")]

import compute  # noqa: E402
import experiment  # noqa: E402
import group  # noqa: E402
import judge  # noqa: E402
import report  # noqa: E402
import sampler  # noqa: E402
import simulate  # noqa: E402
import sizes  # noqa: E402
import stage  # noqa: E402

MIB = 1 << 20
GIB = 1 << 30
V1 = "36 25 0:31 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
V2 = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"


def test_the_memory_controller_is_found_in_either_version():
    assert group.mounted(V2 + V1) == (Path("/sys/fs/cgroup/memory"), True)
    assert group.mounted(V2) == (Path("/sys/fs/cgroup"), False)
    with pytest.raises(group.NoMemoryController):
        group.mounted("22 1 254:0 / / rw - ext4 /dev/vda rw\n")


def test_clean_pages_of_files_are_not_in_use():
    v1 = "cache 1\nactive_file 1\ntotal_shmem 40\ntotal_active_file 20\ntotal_inactive_file 10\ntotal_dirty 4\ntotal_writeback 1\n"
    assert group.use(100, v1, is_v1=True) == group.Use(100, 25, 40)
    v2 = "anon 5\nshmem 40\nactive_file 20\ninactive_file 10\nfile_dirty 4\nfile_writeback 1\n"
    assert group.use(100, v2, is_v1=False).used == 75


def test_with_the_sizes_hpl_does_not_fit_beside_the_large_tier_and_does_beside_the_safe_one():
    size = sizes.fitting(4 * GIB, 7000)
    others = size.heap + sizes.OTHER_BYTES
    held = size.safe - sizes.BUFFERS_BYTES
    assert others + size.input < size.target * size.node
    # Sizes are whole MiB.
    assert others + held + size.hpl <= size.target * size.node + MIB
    assert others + size.input + size.hpl > size.node
    assert size.input == 2 * (size.safe - sizes.BUFFERS_BYTES) and size.large > size.input


def test_sizes_that_cannot_be_are_refused_with_what_to_change():
    with pytest.raises(sizes.SizesError, match="increase --hpl"):
        sizes.fitting(4 * GIB, 3000)
    with pytest.raises(sizes.SizesError, match="increase --node"):
        sizes.fitting(1 * GIB, 9000)


def test_hpcc_finds_its_separator_in_line_32():
    lines = compute.INPUT.format(n=7000, block=192).splitlines()
    assert lines[31].startswith("#####") and lines[5].startswith("7000 ")


def test_a_hog_says_at_which_rate_it_took_its_memory():
    said = compute.take(64 * MIB, 0.4e9, 0)
    assert 0 < said["rate"] <= 0.45e9


def test_time_above_a_bound_is_the_sum_and_the_longest():
    samples = [(0.0, 5), (1.0, 11), (2.0, 12), (3.0, 5), (4.0, 11), (4.5, 5)]
    assert sampler.above_s(samples, 10) == (2.5, 2.0)
    assert sampler.mean([(0.0, 10), (1.0, 20), (3.0, 0)], 1) == pytest.approx(50 / 3)
    assert sampler.mean([(0.0, 10)], 1) is None
    assert sampler.thinned([(0.0, 1), (0.01, 9), (0.1, 2)], 0.1, 1) == [(0.01, 9), (0.1, 2)]


def result(name, pass_s, hpl_s, kills=0, tier=560 * MIB):
    """As stage.measure() writes it; the tier gives 300 MiB away for ten seconds."""
    size = sizes.fitting(4 * GIB, 7000)
    base = size.heap + sizes.OTHER_BYTES
    programs, at = [], 1000.0
    for program in stage.PROGRAMS:
        jobs = [[1e3 * (at + i * pass_s), 1e3 * (at + (i + 1) * pass_s)] for i in range(10)]
        programs.append({"name": program, "began_ms": 1e3 * at, "ended_ms": jobs[-1][1], "result": 1.0, "jobs_ms": jobs})
        at = jobs[-1][1] / 1e3
    samples = []
    for i in range(int(10 * (at - 1000)) + 1):
        bursting = 100 <= i < 200
        given = 300 * MIB if bursting else 0
        samples.append([1000 + i / 10, base + tier, tier - given])
    burst = {"name": "HPL", "began": 1010.0, "ended": 1020.0, "solve_s": hpl_s, "bytes_per_s": None}
    return {
        "setting": name, "sizes": dataclasses.asdict(size), "began": 990.0, "learned": at, "iterations": 10, "programs": programs,
        "reads": [[2000.0, 0], [2001.0, 5 * 10**8], [2002.5, 10**9]], "skips": [[3000.0, 0], [3002.0, 10**9]], "bursts": [] if name == "upper" else [burst],
        "kills": kills, "limit_hits": 0, "failure": None, "memory": None,
        "samples_exact": {"above_s": {"target": 1.0, "target_2": 0.03}, "above_longest_s": {"target": 0.2, "target_2": 0.03}, "peak_used": base + tier, "mean_tier": tier},
        "samples": samples, "served": [[1000.0, 0], [1010.0, 10**9]],
    }


def results():
    alone = result("hpl", 1.0, 5.0) | {"programs": [], "reads": []}
    killed = result("large", 2.0, None, kills=1)
    killed["programs"] = killed["programs"][:1]
    return {
        "hpl": alone, "upper": result("upper", 2.0, None), "forebay": result("forebay", 2.1, 5.1), "dynims": result("dynims", 2.2, 5.2),
        "small": result("small", 7.0, 5.0, tier=260 * MIB), "large": killed,
    }


def test_targets_are_judged_by_what_was_measured():
    found = {row.what: row for row in judge.rows(results(), {"forebay": {"tier_bytes": 400 * MIB, "clairvoyant_bytes": 800 * MIB, "peak": 0.9}}, 50e6)}
    upper = found["Spark ML, `forebay`: speed of the upper bound"]
    assert (upper.measured, upper.met) == ("95.2 %", True)
    assert found["Spark ML, `forebay`: speed of the safe static tier"].measured == "3.33 times"
    assert found["HPL beside `forebay`, against alone"].measured == "+2.0 %"
    large = found["static large hurts"]
    assert large.met and large.measured == "1 OOM kills, 0 times at the limit; HPL did not end, 1 of 4 programs ended"
    assert found["`forebay`: above r0 + 2 %"].met
    assert found["mean tier, of a clairvoyant's"].met is False
    assert found["simulated mean tier, `forebay`"].met is False


def test_without_a_measurement_there_is_no_row():
    assert judge.rows({}, {}, 50e6) == []
    only = judge.rows({"hpl": results()["hpl"]}, {}, 50e6)
    assert only == []


def test_a_quick_check_fails_if_something_did_not_run():
    found = results()
    assert experiment.unsound(found["forebay"]) == []
    assert experiment.unsound(found["large"] | {"reads": []}) == [
        "1 of 4 programs ended", "HPL did not end", "the reader has read nothing", "the kernel ended 1 processes"
    ]


def test_a_bound_follows_from_the_speeds():
    found = judge.bounds(results(), 50e6)
    size = sizes.fitting(4 * GIB, 7000)
    assert found["ratio"] == pytest.approx(size.input / 2.0 / 50e6)
    assert found["over_safe"] == pytest.approx((1 + found["ratio"]) / 2)
    forebay = results()["forebay"]
    most = 300 * MIB + 560 * MIB + size.heap + sizes.OTHER_BYTES - size.target * size.node
    slower = 1 + most / 50e6 / 2.0
    expected = 9.9 * (1 - 1 / slower) + most / 50e6
    assert judge.ideal_s(forebay, size.input / 2.0, 50e6) == pytest.approx(expected, rel=0.02)
    assert found["of_upper"] == pytest.approx(80 / (80 + expected), rel=0.02)


def test_the_simulator_runs_the_measured_load(tmp_path):
    found = simulate.predict(binary(), {"forebay": results()["forebay"]}, tmp_path, 50e6)["forebay"]
    measured = judge.mean_tier(results()["forebay"])
    # A load with room for all of the tier.
    assert 0.5 * measured < found["tier_bytes"] <= found["clairvoyant_bytes"] * 1.01
    assert (tmp_path / "forebay.toml").read_text().startswith('kind = "memory"')


def test_a_part_of_the_input_is_its_first_files(tmp_path):
    data, part = tmp_path / "input", tmp_path / "part"
    data.mkdir()
    for name in ("part-00002", "part-00000", "part-00001", "other"):
        (data / name).write_text(name)
    for count in (1, 2):
        found = experiment.part_of(data, count, part)
        assert sorted(path.name for path in found.iterdir()) == ["part-00000", "part-00001"][:count]
    assert (part / "part-00001").read_text() == "part-00001"


def test_the_report_has_every_figure_and_plot(tmp_path, capsys):
    tools = argparse.Namespace(forebay=binary(), pfs_bytes_per_s=50e6)
    args = argparse.Namespace(output=tmp_path)
    one = {"iterations": 10, "bursts": 2, "kills": 0}
    sized = {"forebay": {"2": {"input": 100 * MIB, "seconds": 10.0, **one}, "4": {"input": 200 * MIB, "seconds": None, **one}}}
    report.write(results(), sized, args, sizes.fitting(4 * GIB, 7000), tools)
    said = json.loads((tmp_path / "memory.json").read_text())
    assert said["settings"]["large"]["kills"] == 1 and said["settings"]["upper"]["hpl_solve_s"] is None
    page = (tmp_path / "memory.md").read_text()
    assert "| static, large (unsafe) | 20.0 s | - | - | - |" in page
    assert "| forebay | 10.0 s | - |" in page and "| 500 MB/s |\n| static, small" in page
    for name in ("memory", "reader", "skipping", "programs", "iterations", "kmeans-sizes"):
        assert (tmp_path / f"{name}.svg").stat().st_size > 1000
    assert "| what | measured | target | met |" in capsys.readouterr().out
