"""The traces of the comparison with FTIO, and how it judges."""

import unittest

import predict


class Predict(unittest.TestCase):
    def test_a_trace_has_the_period_that_it_is_made_with(self):
        name, period, phases, calls = predict.synthetic("x", 20, 0.2, 0.0)
        self.assertEqual((name, period, len(phases)), ("x", 20, 24))
        self.assertAlmostEqual(phases[1][0] - phases[0][0], 20)
        self.assertAlmostEqual(phases[0][1] - phases[0][0], 4)
        self.assertAlmostEqual(sum(call[2] for call in calls), 24 * predict.GB)
        self.assertEqual(calls, sorted(calls))

    def test_prefixes_end_with_a_phase_and_begin_with_three_periods(self):
        trace = predict.synthetic("x", 20, 0.2, 0.2)
        prefixes = list(predict.prefixes(trace))
        self.assertEqual(len(prefixes), 24 - predict.FIRST + 1)
        self.assertEqual(len(prefixes[0]), predict.FIRST * 8)

    def test_calls_with_short_pauses_are_a_phase(self):
        self.assertEqual(predict.split([(0, 1, 5), (1.5, 2, 5), (9, 10, 5)]), [(0, 2), (9, 10)])

    def test_no_prediction_is_a_whole_error(self):
        self.assertEqual(predict.error(None, 20), 1.0)
        self.assertEqual(predict.error(200, 20), 1.0)
        self.assertAlmostEqual(predict.error(22, 20), 0.1)


if __name__ == "__main__":
    unittest.main()
