"""common.py: the record format, atomic writing, page cache and memory accounting."""

import io
import json
import os
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path
from unittest import mock

import common


class Records(unittest.TestCase):
    def test_value_is_the_median_and_the_ratio_is_to_the_reference(self):
        got = common.record("read.x", "GB/s", [1.0, 9.0, 4.0], "cmd", reference=8.0, target=">= 0.5")
        self.assertEqual(got, {"id": "read.x", "value": 4.0, "unit": "GB/s", "reference": 8.0, "ratio": 0.5, "target": ">= 0.5",
                               "met": True, "runs": [1.0, 9.0, 4.0], "command": "cmd"})

    def test_target_is_held_against_the_ratio_only_if_there_is_a_reference(self):
        self.assertIs(common.record("x", "us", [50], "c", target="<= 60")["met"], True)
        self.assertIs(common.record("x", "us", [61], "c", target="<= 60")["met"], False)
        self.assertIs(common.record("x", "us", [61], "c", reference=61, target="<= 60")["met"], True)
        self.assertIsNone(common.record("x", "us", [61], "c")["met"])

    def test_bounds_belong_to_the_target(self):
        self.assertTrue(common.meets(0.95, ">= 0.95"))
        self.assertTrue(common.meets(0.95, "<=0.95"))
        self.assertFalse(common.meets(0.9499, ">= 0.95"))

    def test_what_cannot_be_judged_is_an_error(self):
        with self.assertRaises(ValueError):
            common.meets(1, "about 3")
        with self.assertRaises(ValueError):
            common.record("x", "us", [], "c")

    def test_skipped_has_the_same_fields_and_says_why(self):
        got = common.skipped("x", "us", "c", "no such program")
        self.assertEqual(set(got), set(common.record("x", "us", [1], "c", note="n")))
        self.assertIsNone(got["value"])
        self.assertIsNone(got["met"])
        self.assertIn("no such program", got["note"])

    def test_table_shows_misses_gaps_and_notes(self):
        out = io.StringIO()
        common.print_table([common.record("a.slow", "GB/s", [1], "c", reference=2, target=">= 0.95"),
                            common.skipped("b.gone", "GB/s", "c", "not installed"),
                            common.skipped("b.gone.too", "GB/s", "c", "not installed")], out)
        lines = out.getvalue().splitlines()
        self.assertEqual(lines[1].split(), ["a.slow", "1", "GB/s", "2", "0.5", ">=", "0.95", "NO"])
        self.assertEqual(lines[2].split(), ["b.gone", "-", "GB/s", "-", "-", "-", "-"])
        self.assertEqual(lines[4:], ["b.gone, b.gone.too: skipped: not installed"])


class Writing(unittest.TestCase):
    def test_a_failed_write_leaves_the_old_file_and_nothing_else(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "new" / "bench.json"
            good = [common.record("x", "us", [1], "c")]
            common.write_records(path, good)
            with self.assertRaises(ValueError):
                common.write_records(path, [common.record("x", "us", [float("nan")], "c")])
            self.assertEqual(json.loads(path.read_text()), good)
            self.assertEqual(os.listdir(path.parent), ["bench.json"])


class Reading(unittest.TestCase):
    SIZE = 3 * common.MIB + 5

    def setUp(self):
        # Beside this file and not in /tmp, which may be a tmpfs: there is no page cache to drop
        # from.
        self.directory = tempfile.TemporaryDirectory(dir=Path(__file__).parent)
        self.addCleanup(self.directory.cleanup)
        self.path = Path(self.directory.name) / "file"
        common.write_pattern(self.path, self.SIZE)

    def test_pattern_has_the_size_and_no_two_equal_blocks(self):
        data = self.path.read_bytes()
        self.assertEqual(len(data), self.SIZE)
        self.assertNotEqual(data[:common.MIB], data[common.MIB:2 * common.MIB])

    def test_evicted_means_no_page_is_left(self):
        common.read_pass(self.path)
        self.assertGreaterEqual(common.cached_bytes(self.path), self.SIZE)
        common.evict_page_cache(self.path)
        self.assertEqual(common.cached_bytes(self.path), 0)

    def test_a_short_read_is_not_a_fast_read(self):
        with mock.patch("os.path.getsize", return_value=self.SIZE + 1), self.assertRaisesRegex(OSError, "truncated"):
            common.read_pass(self.path)

    def test_limit_has_one_reading_a_pass_and_leaves_no_file(self):
        runs = common.tmpfs_limit(self.SIZE, passes=3, directory=self.directory.name)
        self.assertEqual(len(runs), 3)
        self.assertTrue(all(rate > 0 for rate in runs))
        self.assertEqual(os.listdir(self.directory.name), ["file"])


CHILD = """
import mmap, subprocess, sys
private = mmap.mmap(-1, 48 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); private.write(b"x" * len(private))
if sys.argv[1:]:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
shared = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS); shared.write(b"x" * len(shared))
print("ready", flush=True)
sys.stdin.readline()
"""


class Processes(unittest.TestCase):
    def test_memory_covers_descendants_and_tells_the_tier_from_the_daemon(self):
        parent = subprocess.Popen([sys.executable, "-c", CHILD, CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            self.assertEqual(parent.stdout.readline(), b"ready\n")
            memory = common.memory_of_tree(parent.pid)
        finally:
            parent.kill()
            parent.communicate()
        self.assertGreaterEqual(memory.shmem_bytes, 2 * 16 * common.MIB)
        self.assertGreaterEqual(memory.own_bytes, 2 * 48 * common.MIB)
        self.assertLessEqual(memory.own_bytes, memory.rss_bytes - memory.shmem_bytes)

    def test_memory_of_a_dead_process_is_an_error_and_not_zero(self):
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        with self.assertRaisesRegex(ProcessLookupError, "has ended"):
            common.memory_of_tree(gone.pid)

    def test_warming_touches_every_page(self):
        script = ("import common, resource; common.warm_memory(96 * common.MIB + 1);"
                  "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)")
        done = subprocess.run([sys.executable, "-c", script], cwd=Path(common.__file__).parent, capture_output=True, text=True, check=True)
        self.assertGreaterEqual(int(done.stdout) * common.KIB, 96 * common.MIB)

    def test_neighbours_are_what_is_neither_idle_nor_ours(self):
        with tempfile.TemporaryDirectory() as proc, mock.patch.object(common, "PROC", proc):
            # user nice system idle iowait irq softirq steal guest guest_nice
            self._write(proc, "cpu 100 0 0 1000 0 0 0 0 0 0", {os.getpid(): (1, 10), 77: (os.getpid(), 10), 99: (1, 10)})
            with common.Neighbours() as neighbours:
                # 200 ticks passed: 90 idle or waiting for a disk, 30 ours (10 by a child), 60 by
                # another program, 20 stolen.
                self._write(proc, "cpu 190 0 0 1050 40 0 0 20 7 0", {os.getpid(): (1, 30), 77: (os.getpid(), 20), 99: (1, 70)})
        self.assertAlmostEqual(neighbours.share, 80 / 200)

    @staticmethod
    def _write(proc, cpu, processes):
        (Path(proc) / "stat").write_text(cpu + "\n")
        for pid, (parent, user_ticks) in processes.items():
            directory = Path(proc) / str(pid)
            directory.mkdir(exist_ok=True)
            # State, parent, eight fields we do not read, then utime stime cutime cstime.
            (directory / "stat").write_text(f"{pid} (a) strange name) S {parent} {'0 ' * 9}{user_ticks} 0 0 0 20 0\n")


class Agents(unittest.TestCase):
    def test_a_configuration_has_a_tier_of_its_own_kind_and_what_comes_after_it(self):
        with tempfile.TemporaryDirectory() as place:
            config = Path(place) / "agent.toml"
            common.write_agent(config, "/state", "/pfs", "96MiB", "/tier", "log = '/log'\n" + common.member("a", ["h:1", "h:2"]))
            self.assertEqual(tomllib.loads(config.read_text()), {
                "agent": {"state_dir": "/state"},
                "tier": {"capacity": "96MiB", "backing": "directory", "directory": "/tier", "log": "/log"},
                "cluster": {"node": "a", "coordinator": ["h:1", "h:2"], "listen": "127.0.0.1:0"},
                "mount": [{"label": "pfs", "root": "/pfs"}],
            })
            common.write_agent(config, "/state", "/pfs", "1GiB")
            self.assertEqual(tomllib.loads(config.read_text())["tier"], {"capacity": "1GiB"})

    def test_a_wait_ends_with_its_process_or_its_time(self):
        common.wait_until(iter([False, True]).__next__, "never")
        with subprocess.Popen(["true"]) as ended, self.assertRaisesRegex(SystemExit, "no agent"):
            common.wait_until(lambda: False, "no agent", ended, seconds=600)
        with self.assertRaisesRegex(SystemExit, "too late"):
            common.wait_until(lambda: False, "too late", seconds=0.01)


if __name__ == "__main__":
    unittest.main()
