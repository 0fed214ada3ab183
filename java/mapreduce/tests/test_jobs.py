"""The checks of a run must fail where a run went wrong: one that cannot fail proves nothing."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "python/demo"))

import jobs
import yarn

DATA = 100_000_000
ALL_BY_FOREBAY = {"opens_total": 8, "stored_bytes": DATA, "fetched_bytes": DATA, "from_peers_bytes": 0, "pfs_read_bytes": DATA, "pfs_written_bytes": DATA}
PAST_FOREBAY = ALL_BY_FOREBAY | {"opens_total": 0, "stored_bytes": 0, "fetched_bytes": 0}


def row(mode, name, moved):
    return jobs.Row(mode, name, yarn.Job("job_1_1", 10.0, 4, 1.0, ""), DATA, moved)


class Checks(unittest.TestCase):
    def test_a_job_that_passes_forebay_by_is_told(self):
        for mode in ("forebay", "mapped"):
            for name in ("teragen", "terasort", "teravalidate", "TestDFSIO -write", "TestDFSIO -read"):
                jobs.check_moved(row(mode, name, ALL_BY_FOREBAY))
                with self.assertRaises(jobs.Invalid):
                    jobs.check_moved(row(mode, name, PAST_FOREBAY))
        with self.assertRaises(jobs.Invalid):
            jobs.check_moved(row("forebay", "teravalidate", ALL_BY_FOREBAY | {"fetched_bytes": DATA // 2}))

    def test_the_reference_may_not_gain_by_forebay(self):
        jobs.check_moved(row("straight", "teravalidate", PAST_FOREBAY))
        with self.assertRaises(jobs.Invalid):
            jobs.check_moved(row("straight", "teravalidate", ALL_BY_FOREBAY))

    def test_two_readings_cost_the_pfs_one(self):
        for first, again, right in ((DATA, 0, True), (DATA // 2, DATA // 2, True), (DATA, DATA // 2, False)):
            rows = [row("forebay", name, ALL_BY_FOREBAY | {"fetched_bytes": fetched}) for name, fetched in (("teravalidate", first), ("teravalidate again", again))]
            if right:
                jobs.check_once(rows[:1], rows[1])
            else:
                with self.assertRaises(jobs.Invalid):
                    jobs.check_once(rows[:1], rows[1])

    def test_a_pfs_that_counts_nothing_is_no_reason_to_fail(self):
        moved = {key: value for key, value in ALL_BY_FOREBAY.items() if not key.startswith("pfs")}
        jobs.check_moved(row("forebay", "terasort", moved))

    def test_the_report_of_teravalidate(self):
        # The counter is signed, the report is not and may have a carry above it.
        jobs.check_report("teravalidate", ["checksum\t1fffffffffffffffe"], -2)
        jobs.check_report("teravalidate", ["checksum\t30f5f"], 0x30F5F)
        for lines in ([], ["checksum\t30f60"], ["checksum\t30f5f", "checksum\t30f5f"], ["error\tmisorder in part-r-00000", "checksum\t30f5f"]):
            with self.assertRaises(jobs.Invalid):
                jobs.check_report("teravalidate", lines, 0x30F5F)

    def test_the_files_of_testdfsio(self):
        with tempfile.TemporaryDirectory() as directory:
            files = [Path(directory) / name for name in ("test_io_0", "test_io_1", ".test_io_1.crc")]
            for file in files:
                file.write_bytes(bytes(1000))
            jobs.check_files(files, 2, 1000)
            for count, size in ((3, 1000), (2, 1001)):
                with self.assertRaises(jobs.Invalid):
                    jobs.check_files(files, count, size)
            files[1].write_bytes(bytes(999) + b"x")
            with self.assertRaises(jobs.Invalid):
                jobs.check_files(files, 2, 1000)

    def test_the_total_of_testdfsio(self):
        jobs.check_dfsio("TestDFSIO -read", " Total MBytes processed: 92\n", 92 << 20)
        for said in (" Total MBytes processed: 91\n", "nothing"):
            with self.assertRaises(jobs.Invalid):
                jobs.check_dfsio("TestDFSIO -read", said, 92 << 20)


if __name__ == "__main__":
    unittest.main()
