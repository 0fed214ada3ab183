"""The table of docs/benchmarks.md."""

import unittest

import report

RECORD = {
    "id": "a.b", "value": 1234.5, "unit": "us", "reference": 2.0, "ratio": 0.5, "target": "ratio <= 1", "met": True,
    "runs": 9, "command": "make bench ONLY=a.b", "note": "beside c",
}


class Report(unittest.TestCase):
    def test_a_figure_that_was_not_measured_keeps_its_row(self):
        page = report.with_table("<!-- figures -->\n<!-- /figures -->\n", [RECORD, {**RECORD, "id": "b.c"}])
        skipped = {**RECORD, "runs": 0, "value": 0, "note": "not installed"}
        self.assertEqual(report.with_table(page, [skipped]), page)
        self.assertIn("| 9 |", report.with_table(page, [{**RECORD, "runs": 9}]))

    def test_figures_of_memory_are_in_another_table(self):
        page = report.with_table("<!-- figures -->\n<!-- /figures -->\n", [{**RECORD, "id": "memory.reads.giving"}])
        self.assertNotIn("memory", page)

    def test_the_table_replaces_what_stood_between_the_markers(self):
        text = report.with_table("# T\n<!-- figures -->\nold\n<!-- /figures -->\nend\n", [RECORD])
        self.assertNotIn("old", text)
        self.assertTrue(text.startswith("# T\n<!-- figures -->\n| id |") and text.endswith("<!-- /figures -->\nend\n"))
        self.assertIn("| `a.b` | 1,234 us | 2 | 0.500 | ratio <= 1 | yes | 9 | beside c |", text)

    def test_what_was_skipped_has_no_figure_and_what_is_not_met_stands_out(self):
        skipped = {**RECORD, "runs": 0, "reference": None, "ratio": None, "met": None, "note": "skipped: not installed"}
        self.assertIn("| `a.b` | skipped |  |  |", report.row(skipped))
        self.assertIn("**no**", report.row({**RECORD, "met": False}))

    def test_a_document_without_markers_is_refused(self):
        with self.assertRaises(ValueError):
            report.with_table("# T\n", [RECORD])


if __name__ == "__main__":
    unittest.main()
