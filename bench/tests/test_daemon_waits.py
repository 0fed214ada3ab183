"""daemon_waits.py: its bounds are those of the policy, and what it takes for load."""

import re
import unittest
from pathlib import Path

import daemon_waits

POLICY = Path(__file__).resolve().parents[2] / "crates/forebay-policy/src/isolation.rs"


class Bounds(unittest.TestCase):
    def test_they_are_those_of_the_policy(self):
        text = POLICY.read_text()
        found = [re.search(rf"\b{name}: (?:f64 = |u64 = )?([\d._]+)[,;]", text).group(1) for name in ("waits", "wait_ns", "RUNS_MIN", "BUSY")]
        self.assertEqual([float(number) for number in found], [daemon_waits.WAITS, daemon_waits.WAIT_NS, daemon_waits.RUNS_MIN, daemon_waits.BUSY])

    def test_short_waits_and_few_runs_are_no_load(self):
        ms = 1_000_000
        self.assertFalse(daemon_waits.is_loaded(3 * ms, 5 * ms, 360))
        self.assertTrue(daemon_waits.is_loaded(20 * ms, 90 * ms, 600))
        self.assertFalse(daemon_waits.is_loaded(ms, 9 * ms, 9))
        self.assertTrue(daemon_waits.is_loaded(1000, 240 * ms, 1))


if __name__ == "__main__":
    unittest.main()
