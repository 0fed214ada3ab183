"""Measures how the I/O steps of MPI jobs share a file system under each order of `cluster.access`, beside the simulator.

    python3 python/burst [--quick] [--repeats N] [--only PART ...]

The jobs are those of the paper on shared burst buffers (ICPP 2016), scaled to eight servers of a slow file system with a limit each. It needs
root and Debian's packages openmpi-bin and libopenmpi-dev. It leaves `burst.json`, `burst.csv`, `burst.md` and a plot in
`target/experiment-burst`. Each measured run stays there, and is not measured again with the same sizes; --fresh measures all runs again.
"""

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "demo"))

import steps  # noqa: E402
from steps import TARGET  # noqa: E402

PARTS = ["catalyst", "batch", "arrivals"]


@dataclass(frozen=True)
class Sizes:
    """`rate`: bytes a second of each server; `unit_bytes`: what it writes in the unit of time of the steps."""

    rate: int = 4_000_000
    unit_bytes: int = 4_000_000

    @property
    def unit_s(self):
        return self.unit_bytes / self.rate


def arguments():
    parser = argparse.ArgumentParser(prog="python3 python/burst", description="MPI jobs that share a file system under each order of cluster.access.")
    parser.add_argument("--repeats", type=int, metavar="N", help="runs of each order and workload, each in another order of arrival [default: 3]")
    parser.add_argument("--only", action="append", choices=PARTS, default=[], help="measure this part; several times for several [default: all]")
    parser.add_argument("--workload", action="append", default=[], metavar="W", help="of the batches, this one; several times for several [default: W7 to W12]")
    parser.add_argument("--quick", action="store_true", help="one workload with little data, once")
    parser.add_argument("--fresh", action="store_true", help="measure all runs again")
    parser.add_argument("--output", type=Path, metavar="DIR", help="directory of the results [default: target/experiment-burst]")
    args = parser.parse_args()
    args.repeats = args.repeats or (1 if args.quick else 3)
    args.only = args.only or (["catalyst", "batch"] if args.quick else PARTS)
    args.workload = args.workload or (["W8"] if args.quick else [])
    args.output = (args.output or TARGET / ("experiment-burst-quick" if args.quick else "experiment-burst")).resolve()
    return args


def run(args, program):
    import experiment

    program = program.resolve()
    os.environ["FOREBAY_PRELOAD"] = str(steps.library_beside(program, "libforebay_preload.so"))
    size = Sizes(unit_bytes=1_000_000) if args.quick else Sizes()
    writer = steps.mpi_program(HERE / "writer.c", TARGET / "burst", program)
    with tempfile.TemporaryDirectory(prefix="forebay-burst-", dir="/dev/shm") as place:
        return experiment.run(args, program, writer, Path(place), size)


def main():
    args = arguments()
    return steps.go_on(lambda: steps.environment(steps.MPI, "the slow file system"), lambda program: run(args, program))


if __name__ == "__main__":
    sys.exit(main())
