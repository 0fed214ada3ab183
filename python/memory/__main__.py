"""A tier that gives way to compute, measured: HPL in a burst and a memory hog beside Spark ML and a sequential reader, on a node of some GiB
that is a control group, under each law of the memory controller and under static tiers.

    python3 python/memory [--quick] [--setting NAME ...] [--node SIZE] [--hpl N]

It needs root, Java 17, Maven, and Debian's packages hpcc, openmpi-bin and libopenblas0-serial, and leaves `memory.json`, `memory.md` and
plots in `target/experiment-memory`. Each setting that has been measured stays there, in a file of its own, and is not measured again with the
same sizes, so that a run can be resumed; --fresh forgets them.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "demo"))

import compute  # noqa: E402
import sizes  # noqa: E402
import sparkhome  # noqa: E402
import steps  # noqa: E402
from steps import TARGET  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(prog="python3 python/memory", description="Laws of the memory controller beside HPL, with Spark ML and a reader.")
    names = [setting.name for setting in sizes.SETTINGS]
    parser.add_argument("--setting", action="append", choices=names, default=[], help="measure this setting; several times for several [default: all with the usual gain]")
    parser.add_argument("--node", type=float, metavar="GIB", default=4.0, help="memory of the node [default: %(default)s]")
    parser.add_argument("--hpl", type=int, metavar="N", help="order of HPL's matrix; all sizes follow [default: 6000]")
    parser.add_argument("--pfs", type=float, metavar="MB/S", default=50.0, help="rate of the slow file system [default: %(default)s]")
    parser.add_argument("--iterations", type=int, metavar="N", help="iterations of each program [default: 10]")
    parser.add_argument("--quick", action="store_true", help="the setting forebay with little data and 2 iterations; fails unless all of it ran")
    parser.add_argument("--kmeans-sizes", action="store_true", help="also K-means over inputs of several sizes, in those of the settings that have a limit and programs")
    parser.add_argument("--fresh", action="store_true", help="measure again what has been measured")
    parser.add_argument("--output", type=Path, metavar="DIR", help="directory of the results [default: target/experiment-memory]")
    args = parser.parse_args()
    args.hpl = args.hpl or (4200 if args.quick else 6000)
    args.iterations = args.iterations or (2 if args.quick else 10)
    usual = [setting.name for setting in sizes.SETTINGS if setting.gain == sizes.USUAL_GAIN]
    args.setting = args.setting or (["forebay"] if args.quick else usual)
    args.output = (args.output or TARGET / ("experiment-memory-quick" if args.quick else "experiment-memory")).resolve()
    return args


def prepare():
    """Builds what is not there yet. Returns the program `forebay` and the Python to go on with."""
    program, python = steps.environment(compute.PACKAGES, "a control group with a memory limit")
    sparkhome.need(TARGET)
    steps.jar_beside(program)
    return program, python


def run(args, program):
    import experiment

    return experiment.run(args, str(program), TARGET)


def main():
    args = arguments()
    return steps.go_on(prepare, lambda program: run(args, program))


if __name__ == "__main__":
    sys.exit(main())
