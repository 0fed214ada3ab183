"""The demonstration, in two parts, over a slow parallel file system: one analysis in Python, first straight, then through Forebay; then
WordCount on Spark, on two nodes, without and with the next wave's input prefetched.

    python3 python/demo [--quick] [--only analysis|spark] [--data DIR] [--size SIZE]

It needs a Linux machine with FUSE (as root, or with fusermount3), Rust, and Python 3.11 with venv; Spark's part needs Java 17 and Maven too.
Python packages go into `target/venv`, Spark into `target/spark-3.5.9` (400 MB, once). It leaves tables on the terminal and
`throughput.png`, `demo.json`, `waves.png`, `waves.json` and the like in `target/demo`, and nothing else behind: no mount, no agent, also
after a failure or Ctrl-C. With --quick, Spark's part is left out where Spark has not been installed before.

This file is only the way there, with the standard library alone: it builds the program and the package if need be, and starts itself
again with the Python of `target/venv`.
"""

import argparse
import sys
from pathlib import Path

import sparkhome
import steps
from steps import REPOSITORY, TARGET, VENV


def arguments():
    parser = argparse.ArgumentParser(prog="python3 python/demo", description="One analysis, straight from a slow PFS and through Forebay.")
    parser.add_argument("--data", type=Path, metavar="DIR", help="files to analyse instead of the Linux source; the demo only reads them")
    parser.add_argument("--size", type=float, metavar="MB", help="amount of the Linux source to use [default: 1000]")
    parser.add_argument("--passes", type=int, metavar="N", help="number of passes over the data [default: 6]")
    parser.add_argument("--quick", action="store_true", help="little data and 2 passes, for a quick check")
    parser.add_argument("--only", choices=["analysis", "spark"], help="run one part only")
    parser.add_argument("--spark-size", type=float, metavar="MB", help="text for Spark [default: 256]")
    parser.add_argument("--spark-rate", type=float, metavar="MB/S", help="rate of each of the four servers in Spark's part [default: as fast as the cores compute]")
    parser.add_argument("--output", type=Path, metavar="DIR", default=TARGET / "demo", help="directory of the results [default: %(default)s]")
    parser.add_argument("--lab", choices=["moosefs", "glusterfs"], help="Spark's part alone, on four nodes with a real PFS; needs root")
    parser.add_argument("--study", action="store_true", help="Spark's part alone, with PFSes of several speeds: the figures of docs/benchmarks.md")
    parser.add_argument("--setting", action="append", default=[], metavar="NAME", help="with --study: one of its settings [default: all]")
    parser.add_argument("--workload", action="append", choices=["wordcount", "sort"], default=[], help="what Spark runs; may be repeated [default: wordcount, with --study: both]")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="with --study: runs of each [default: 3]")
    args = parser.parse_args()
    if args.lab or args.study:
        args.only = "spark"
    args.size = args.size or (100 if args.quick else 1000)
    args.passes = args.passes or (2 if args.quick else 6)
    args.spark_size = args.spark_size or (96 if args.quick else 256)
    args.target = TARGET
    args.output = args.output.resolve()
    if args.passes < 2:
        parser.error("--passes must be at least 2: what was read once is the point")
    return args


def with_analysis(args):
    return args.only != "spark"


def with_spark(args):
    """Whether Spark's part is shown. A quick look does not install 400 MB."""
    if args.quick and args.only is None:
        return sparkhome.ready(args.target)
    return args.only != "analysis"


def prepare(args):
    """Builds what is not there yet. Returns the program `forebay` and the Python to go on with."""
    program, python = steps.environment()
    if with_analysis(args):
        steps.step("adding the Python package", [str(python), str(REPOSITORY / "python/develop"), str(VENV), str(program.parent)])
    if with_spark(args):
        sparkhome.need(args.target)
        steps.jar_beside(program)
    return program, python


def run(args, program):
    import show

    parts = ([show.show] if with_analysis(args) else []) + ([show.show_spark] if with_spark(args) else [])
    if with_analysis(args) and not with_spark(args) and args.only is None:
        print("Spark, Java or Maven is not installed, and --quick installs nothing: the demo skips Spark's part.\n")
    return show.run(parts, args, str(program))


def main():
    args = arguments()
    return steps.go_on(lambda: prepare(args), lambda program: run(args, program))


if __name__ == "__main__":
    sys.exit(main())
