"""Puts the figures of target/bench.json into docs/benchmarks.md, between its markers.

`make bench` and then `python3 bench/report.py`: the table is never typed by hand. A figure that the run has skipped, or has not measured,
keeps its row. The figures of the memory controller have a table of their own, with what else was measured of it.
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- figures -->", "<!-- /figures -->"
ELSEWHERE = "memory."
HEAD = "| id | value | reference | ratio | target | met | runs | what |\n| --- | ---: | ---: | ---: | --- | --- | ---: | --- |"


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def row(record: dict) -> str:
    """One line of the table."""
    met = {True: "yes", False: "**no**", None: ""}[record["met"]]
    reference = "" if record["reference"] is None else number(record["reference"])
    ratio = "" if record["ratio"] is None else f"{record['ratio']:.3f}"
    value = f"{number(record['value'])} {record['unit']}" if record["runs"] else "skipped"
    cells = [f"`{record['id']}`", value, reference, ratio, record["target"], met, str(record["runs"]), record["note"]]
    return "| " + " | ".join(cells) + " |"


def with_table(text: str, records: list) -> str:
    """`text` with the rows of `records` in the part between the markers."""
    before, _, rest = text.partition(BEGIN)
    old, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"no {BEGIN} ... {END} in the document")
    rows = {line.split("`")[1]: line for line in old.splitlines() if line.startswith("| `")}
    for record in records:
        if not record["id"].startswith(ELSEWHERE) and (record["runs"] or record["id"] not in rows):
            rows[record["id"]] = row(record)
    return "\n".join([before + BEGIN, HEAD, *(rows[name] for name in sorted(rows)), END]) + after


def main() -> int:
    """Reads the figures and rewrites the document."""
    figures, document = ROOT / "target/bench.json", ROOT / "docs/benchmarks.md"
    try:
        records = json.loads(figures.read_text())
    except OSError as error:
        print(f"{figures}: {error.strerror}; run `make bench` first", file=sys.stderr)
        return 1
    document.write_text(with_table(document.read_text(), records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
