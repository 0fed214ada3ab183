"""The comparing code of `make test-posix`, with judges of its own; and the results that it reads from programs."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY, binary

sys.path.insert(0, str(REPOSITORY / "python/posix"))

import compare  # noqa: E402
import judges  # noqa: E402
import suites  # noqa: E402
import ways  # noqa: E402

sys.path.remove(str(REPOSITORY / "python/posix"))


class Fake:
    """A judge with given results: by way and run."""

    least = 1
    reads = True
    inherent = {"run": ["z"]}
    name = "fake"

    def __init__(self, **results):
        self.results = results
        self.asked = []

    def fetch(self):
        return None

    def prepare(self, way):
        return None

    def run(self, way, only=()):
        self.asked.append((way.name, list(only)))
        results = self.results[way.name]
        return results.pop(0) if len(results) > 1 else results[0]


class FakeWay:
    def __init__(self, name, doubts=()):
        self.name, self.found = name, list(doubts)

    def remark(self):
        return ""

    def doubts(self, judge):
        return self.found


def verdict(judge, doubts=()):
    return compare.compare(judge, [FakeWay("pfs"), FakeWay("run", doubts)], say=lambda line: None)


def test_what_passes_only_on_the_pfs_is_different_and_what_fails_there_too_is_not():
    plain = {"a": "ok", "b": "failed", "c": "ok", "d": "ok", "e": "skipped", "z": "ok"}
    found = verdict(Fake(pfs=[plain], run=[{"a": "ok", "b": "failed", "c": "skipped", "e": "ok"}]))
    assert found.different == {"run": ["c", "d"]} and not found.is_good
    assert compare.table([found], [FakeWay("pfs"), FakeWay("run")])[-1] == "| fake | 6 | 4 | 2 | run: c, run: d |"


def test_a_test_that_differs_is_run_again_alone_and_only_then_reported():
    judge = Fake(pfs=[{"a": "ok", "b": "ok"}], run=[{"a": "failed", "b": "ok"}, {"a": "ok"}])
    assert verdict(judge).is_good
    assert judge.asked == [("pfs", []), ("run", []), ("pfs", ["a"]), ("run", ["a"])]
    judge = Fake(pfs=[{"a": "ok"}], run=[{"a": "failed"}])
    assert verdict(judge).different == {"run": ["a"]}
    assert judge.asked.count(("run", ["a"])) == compare.AGAIN


def test_a_judge_that_shows_nothing_is_not_good():
    assert verdict(Fake(pfs=[{}], run=[{}])).void == ["only 0 tests passed on the PFS; at least 1 should"]
    assert verdict(Fake(pfs=[{"a": "ok"}], run=[{"a": "ok"}]), ["no program had the library"]).void == ["run: no program had the library"]


def test_reports_of_forebay_run_are_counted_and_taken_out():
    way = ways.Run(None, "forebay")
    said = "a line\nforebay run: 3 programs; 2 files opened through the tier, 1 left to the file system\nforebay run: 9 reads served, 9 of them\n"
    assert way.heard(said) == "a line\n"
    assert way.remark() == "; 3 programs had the library, 2 files and 9 reads were served, 1 files left to the PFS"
    assert way.doubts(Fake()) == [] and way.doubts(Fake()) == ["no program had the library", "no file was read through the tier"]


def test_a_program_without_the_library_runs_once_and_the_reason_is_told(tmp_path):
    forebay = tmp_path / "forebay"
    forebay.write_text(f"#!/bin/sh\necho >> {tmp_path}/runs\necho a line\necho 'forebay run: the program reads the file system directly: there is no library'\n")
    forebay.chmod(0o755)
    way = ways.Run(tmp_path, forebay)
    assert way.call(["true"]) == (0, "a line\n")
    assert (tmp_path / "runs").read_text() == "\n"
    assert "no program had the library: the program reads the file system directly: there is no library" in way.doubts(Fake())
    assert way.doubts(Fake())[0] == "no program had the library"


def test_paths_on_the_pfs_are_as_long_as_those_through_the_mount():
    mounted = Path("/a/clone/target/posix/mnt/mounted")
    assert str(ways.as_long(Path("/pfs/posix/work"), mounted)) == "/pfs/posix/work__________________"
    assert ways.as_long(Path("/a/longer/path/than/that/of/the/mount/work"), mounted).name == "work"
    assert ways.as_long(Path("/a/clone/target/posix/pfs/work"), mounted).name == "work___"


class Said(ways.Way):
    """A way whose programs say what is given."""

    def __init__(self, directory, said, code=0):
        super().__init__(directory)
        self.said, self.code = said, code

    def call(self, command, **more):
        return self.code, self.said


@pytest.fixture
def options(tmp_path):
    return argparse.Namespace(target=tmp_path, tools=tmp_path, jobs=1, stamp_s=0.1, ops=10, seed=1, seconds=1)


def test_words_of_programs(options, tmp_path):
    said = "\x1b[34mchmod::a::regular\x1b[0m      \x1b[32mok\x1b[0m\nchmod::b   FAILED\n\tassertion failed\nopen::c    skipped\n\trequires root\n"
    assert judges.Pjdfstest(options).run(Said(tmp_path, said)) == {"chmod::a::regular": "ok", "chmod::b": "failed", "open::c": "skipped"}
    said = "  1: tar version                   ok\n 26: directory     skipped (x.at:7)\n  9: long names   FAILED (y.at:1)\n 10: links  expected failure (z.at:2)\n"
    found = suites.Tar(options).run(Said(tmp_path, said))
    assert found == {"1: tar version": "ok", "26: directory": "skipped", "9: long names": "failed", "10: links": "ok"}
    said = "PASS: tests/a.sh\nFAIL: tests/b.sh\nSKIP: tests/c.pl\nXFAIL: tests/d.sh\nXPASS: tests/e.sh\n"
    assert list(suites.Coreutils(options).run(Said(tmp_path, said)).values()) == ["ok", "failed", "skipped", "ok", "failed"]
    assert judges.StressNg(options).judged(4) == "skipped" and judges.StressNg(options).judged(2) == "failed"


def test_more_tests_differ_in_the_lab(options, monkeypatch):
    monkeypatch.delenv(judges.LAB_DIRECTORY, raising=False)
    assert "mount" not in suites.Tar(options).inherent and len(suites.Coreutils(options).inherent["mount"]) == 5
    monkeypatch.setenv(judges.LAB_DIRECTORY, "/pfs")
    assert "59: exclude" in suites.Tar(options).inherent["mount"]
    assert len(suites.Coreutils(options).inherent["mount"]) == 6 and judges.Fio(options).inherent == {"mount": []}


def test_results_of_python(options, tmp_path):
    xml = '<testsuites><testsuite><testcase name="test.test_os.A.a"/><testcase name="test_io.B.b"><failure/></testcase><testcase name="test.c"><skipped/></testcase></testsuite></testsuites>'
    (tmp_path / "report").write_text(xml)
    found = suites.Python.results(tmp_path / "report", ["test_os", "test_io", "test_killed"])
    assert found == {"test.test_os.A.a": "ok", "test.test_io.B.b": "failed", "test.c": "skipped", "test.test_killed": "failed"}


class Cat(judges.Judge):
    """Reads a file, and tells whether its bytes are right."""

    name = "cat"
    reads = True

    def fetch(self):
        return ""

    def prepare(self, way):
        self.place(way).mkdir(parents=True, exist_ok=True)
        (self.place(way) / "file").write_text("a line\n" * 1000)

    def run(self, way, only=()):
        return self.commands(way, only, {str(n): ["sh", "-c", "sleep 0.05; test $(cat file | wc -l) = 1000"] for n in range(8)})


def test_a_judge_through_a_real_agent_that_is_killed(options, tmp_path, monkeypatch):
    state = tmp_path / "state"
    state.mkdir()
    agent = ways.Agent(binary(), tmp_path / "pfs", state, "256MiB")
    (tmp_path / "pfs").mkdir()
    monkeypatch.setenv("FOREBAY_SOCKET", str(agent.socket))
    both = [ways.Way(tmp_path / "pfs/work"), ways.Run(tmp_path / "pfs/work", binary())]
    agent.start()
    try:
        if "libforebay_preload" in subprocess.run([binary(), "run", "--", "true"], capture_output=True, text=True, check=False).stderr:
            pytest.skip("the preloaded library is not built: `cargo build`")
        found = compare.compare(Cat(options), both, say=lambda line: None)
        assert found.is_good and compare.passed(found.results["run"]) == 8, found
        killer = ways.Killer(agent, seed=1)
        monkeypatch.setattr(ways, "ALIVE_S", (0.05, 0.2))
        monkeypatch.setattr(ways, "DEAD_S", (0, 0.2))
        killer.start()
        found = compare.compare(Cat(options), both, say=lambda line: None)
        killer.stop()
        assert agent.kills > 0 and killer.error is None
        assert found.different == {"run": []}, found
    finally:
        agent.stop()
