"""Parts of the report of an experiment: the machine, and targets with what was measured of each."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """`met`: None where it was not measured, or is no target."""

    what: str
    measured: str
    target: str
    met: bool | None
    why: str = ""


def machine():
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    model = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), platform.machine())
    return {"memory_bytes": int(memory.split()[1]) << 10, "cores": os.cpu_count(), "processor": model, "kernel": platform.release()}


def table(rows):
    """Lines of Markdown."""
    lines = ["| what | measured | target | met | |", "| --- | --- | --- | --- | --- |"]
    met = {True: "yes", False: "**no**", None: "-"}
    return lines + [f"| {row.what} | {row.measured} | {row.target} | {met[row.met]} | {row.why} |" for row in rows]
