"""Targets of an experiment, and what was measured of each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """`met`: None where it was not measured, or is no target."""

    what: str
    measured: str
    target: str
    met: bool | None
    why: str = ""


def table(rows):
    """Lines of Markdown."""
    lines = ["| what | measured | target | met | |", "| --- | --- | --- | --- | --- |"]
    met = {True: "yes", False: "**no**", None: "-"}
    return lines + [f"| {row.what} | {row.measured} | {row.target} | {met[row.met]} | {row.why} |" for row in rows]
