"""bench/peers: daemons are ended whatever happens, an absent peer is skipped in words, and a figure that is not what it claims is refused."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

import common
from peers import alluxio, curvine, daemons, fuse, juicefs, mountpoint

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def is_running(pid):
    """Whether the process runs (a zombie does not)."""
    stat = common._stat_fields(pid)
    return stat is not None and stat[0] != "Z"


class Daemons(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.log = Path(directory.name) / "log"

    def _daemon(self, script):
        return daemons.Daemon("the test daemon", [sys.executable, "-c", script], log_path=self.log)

    def test_an_error_in_the_block_ends_even_a_stubborn_daemon(self):
        with mock.patch.object(daemons, "STOP_SECONDS", 0.3), self.assertRaises(ZeroDivisionError):
            with self._daemon(STUBBORN) as daemon:
                daemon.wait_until(lambda: "up" in daemon.log_tail(), what="up", seconds=60)
                1 / 0
        self.assertEqual(daemon.process.returncode, -signal.SIGKILL)

    def test_what_the_daemon_started_ends_with_it(self):
        with self._daemon("import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); input") as daemon:
            daemon.process.wait(timeout=60)
            orphan = int(self.log.read_text())
            self.assertTrue(is_running(orphan))
        self._assert_ends(orphan)

    def test_a_daemon_that_dies_is_reported_with_its_last_words(self):
        with self._daemon("raise SystemExit('no room for the tier')") as daemon:
            with self.assertRaisesRegex(RuntimeError, "status 1 before listening(.|\n)*no room for the tier"):
                daemon.wait_until(lambda: False, what="listening", seconds=60)

    def test_waiting_has_an_end(self):
        with self._daemon("import time; time.sleep(600)") as daemon:
            with self.assertRaisesRegex(RuntimeError, "not listening within 0.2 s"):
                daemon.wait_until(lambda: False, what="listening", seconds=0.2)

    def test_a_hang_ends_when_its_daemon_is_stopped(self):
        with self._daemon("import time; time.sleep(600)") as daemon:
            with self.assertRaisesRegex(RuntimeError, "not done within 0.2 s"), daemon.ended_after(0.2):
                daemon.process.wait(timeout=60)
                raise OSError("what a reader of the mount gets")

    def test_a_killed_script_takes_its_daemon_with_it(self):
        script = ("from peers import daemons; import time, sys\n"
                  "d = daemons.Daemon('d', ['sleep', '600'], log_path=sys.argv[1]); print(d.pid, flush=True); time.sleep(600)")
        owner = subprocess.Popen([sys.executable, "-c", script, str(self.log)], stdout=subprocess.PIPE, cwd=Path(common.__file__).parent)
        pid = int(owner.stdout.readline())
        self.assertTrue(is_running(pid))
        owner.kill()
        owner.communicate()
        self._assert_ends(pid)

    def _assert_ends(self, pid):
        deadline = time.monotonic() + 60
        while is_running(pid):
            self.assertLess(time.monotonic(), deadline, f"process {pid} is still there")
            time.sleep(0.02)

    def test_a_failed_command_is_an_error_with_its_words(self):
        with self.assertRaisesRegex(RuntimeError, "format the disk: .* status 3:\nwrong disk"):
            daemons.run_bounded([sys.executable, "-c", "import sys; print('wrong disk'); sys.exit(3)"], what="format the disk", seconds=60)
        with self.assertRaisesRegex(RuntimeError, "format the disk: not done within 0.2 s"):
            daemons.run_bounded(["sleep", "600"], what="format the disk", seconds=0.2)


class Skipping(unittest.TestCase):
    def test_alluxio_without_jars(self):
        with tempfile.TemporaryDirectory() as empty, mock.patch.dict(os.environ, FOREBAY_PEER_ALLUXIO_CLASSPATH_DIR=empty):
            self._assert_skipped(alluxio.run(), alluxio.IDS, f"no Alluxio jars in {empty}")

    def test_juicefs_without_the_program(self):
        with mock.patch.dict(os.environ, FOREBAY_PEER_JUICEFS="/nowhere/juicefs"):
            self._assert_skipped(juicefs.run(), juicefs.IDS, "no juicefs")

    def test_curvine_without_the_programs(self):
        with tempfile.TemporaryDirectory() as empty, mock.patch.dict(os.environ, FOREBAY_PEER_CURVINE=empty):
            self._assert_skipped(curvine.run(), curvine.IDS, "no curvine-server")

    def test_mountpoint_without_the_programs(self):
        with tempfile.TemporaryDirectory() as empty, mock.patch.dict(os.environ, FOREBAY_PEER_MOUNTPOINT=empty):
            self.assertIn("no versitygw", mountpoint.missing())

    def _assert_skipped(self, records, ids, reason):
        self.assertEqual([r["id"] for r in records], list(ids))
        for r in records:
            self.assertIsNone(r["value"])
            self.assertIn(reason, r["note"])


class Figures(unittest.TestCase):
    MEMORY = common.Memory(rss_bytes=900 * common.MIB, shmem_bytes=500 * common.MIB, own_bytes=300 * common.MIB)

    def test_alluxio_gets_the_faster_buffer_and_its_daemons_are_summed_without_the_tier(self):
        records = self._alluxio(share=1.0)
        self.assertEqual(list(records), list(alluxio.IDS))
        self.assertEqual(records["peer.alluxio.read"]["value"], 5.0)
        self.assertEqual(records["peer.alluxio.read"]["ratio"], 0.5)
        self.assertEqual(records["peer.alluxio.rss"]["value"], 600)

    def test_alluxio_through_grpc_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "only 40% .* short circuit"):
            self._alluxio(share=0.4)

    def _alluxio(self, share):
        figures = {"write_gb_per_s": 0.5, "array_gb_per_s": [3.0, 4.0, 9.0], "direct_gb_per_s": [5.0, 5.0, 1.0], "short_circuit_share": share}
        return {r["id"]: r for r in alluxio._records("cmd", figures, [self.MEMORY] * 2, [10.0], "alone")}

    def test_a_mounted_peer_gets_the_faster_way(self):
        figures = {"direct": [1.0, 2.0, 3.0], "evicted": [1.0, 1.5, 9.0]}
        for name, ids in (("juicefs", juicefs.IDS), ("curvine", curvine.IDS)):
            records = {r["id"]: r for r in fuse.records(name, "cmd", figures, self.MEMORY, [10.0], "alone")}
            self.assertEqual(list(records), list(ids))
            self.assertEqual(records[f"peer.{name}.read"]["value"], 2.0)
            self.assertEqual(records[f"peer.{name}.rss"]["value"], 300)

    def test_a_pass_that_the_wrong_one_served_is_refused(self):
        count = 100
        peer = fuse.Mount(Path("/nowhere"), [], lambda: count)

        def read(served_bytes):
            nonlocal count
            count += served_bytes
            return 9.0
        self.assertEqual(peer.served(1000, lambda: read(1010)), 9.0)
        with self.assertRaisesRegex(RuntimeError, "served 900 of 1000 bytes"):
            peer.served(1000, lambda: read(900))

    def test_juicefs_counts_its_hits(self):
        with tempfile.TemporaryDirectory() as mount_point:
            stats = Path(mount_point) / ".stats"
            stats.write_text(f"juicefs_uptime 3\n{juicefs.HITS} 1.1e+03\n")
            self.assertEqual(juicefs._hit_bytes(Path(mount_point)), 1100)
            stats.write_text("juicefs_uptime 3\n")
            with self.assertRaisesRegex(RuntimeError, f"has no {juicefs.HITS}"):
                juicefs._hit_bytes(Path(mount_point))

    def test_the_kernel_counts_what_a_mount_answers(self):
        before = fuse.written_bytes(os.getpid())
        with open("/dev/null", "wb", buffering=0) as null:
            null.write(bytes(common.MIB))
        self.assertGreaterEqual(fuse.written_bytes(os.getpid()) - before, common.MIB)

    def test_the_memory_of_all_daemons_counts(self):
        with mock.patch.object(common, "memory_of_tree", return_value=self.MEMORY):
            memory = fuse.Mount(Path("/nowhere"), [mock.Mock(), mock.Mock()], lambda: 0).memory()
        self.assertEqual((memory.rss_bytes, memory.own_bytes), (1800 * common.MIB, 600 * common.MIB))


if __name__ == "__main__":
    unittest.main()
