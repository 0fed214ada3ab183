"""Measures analytics beside an HPC job on one parallel file system: an MPI program writes checkpoints, and the input of a Spark job is
prefetched under each planner. It runs in the lab, where both directions of a link share its bandwidth.

    python3 python/eley [--quick] [--setting NAME ...] [--repeats N] [--pfs moosefs|glusterfs] [--workload wordcount|sort]

It needs root, Java 17, Maven, and Debian's packages openmpi-bin and libopenmpi-dev; the lab installs its own. It leaves `eley.json`, `eley.md`
and plots in `target/experiment-eley`, or, with --checkpoints, `checkpoint.json`, `checkpoint.md` and plots in `target/experiment-checkpoint`. Each measured run stays there, in its own file, and is not measured again with the same sizes, so that
an experiment can be resumed; --fresh measures all runs again.
"""

import argparse
import sys
from dataclasses import fields, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "demo"))

import sizes  # noqa: E402
import sparkhome  # noqa: E402
import steps  # noqa: E402
from steps import TARGET  # noqa: E402


def arguments():
    usual = sizes.Sizes()
    parser = argparse.ArgumentParser(prog="python3 python/eley", description="Spark beside an MPI job under each planner, in the lab.")
    names = [setting.name for setting in sizes.SETTINGS]
    parser.add_argument("--setting", action="append", choices=names, default=[], help=f"measure this setting; several times for several [default: {', '.join(sizes.usual())}]")
    parser.add_argument("--repeats", type=int, metavar="N", help="runs of each setting, in interleaved order [default: 3]")
    parser.add_argument("--pfs", choices=["moosefs", "glusterfs"], default=usual.pfs, help="the parallel file system [default: %(default)s]")
    parser.add_argument("--workload", choices=["wordcount", "sort"], default=usual.workload, help="the Spark job [default: %(default)s]")
    parser.add_argument("--api", choices=["posix", "mpiio", "collective"], default=usual.api, help="how the writer writes [default: %(default)s]")
    parser.add_argument("--observed", action="store_true", help="the writer reports nothing itself: `forebay run --job` observes it")
    parser.add_argument("--checkpoints", action="store_true", help="another experiment: a program writes checkpoints straight or with write-back, beside a writer with deadlines and beside Spark")
    parser.add_argument("--quick", action="store_true", help="three settings with little data, once each; fails unless all of it happened")
    parser.add_argument("--fresh", action="store_true", help="measure all runs again")
    parser.add_argument("--output", type=Path, metavar="DIR", help="directory of the results [default: target/experiment-eley]")
    for field, what in (("rate", "MB/s of each server"), ("waves", "waves of the input"), ("compute_s", "seconds between two phases"), ("ranks", "ranks of the writer"),
                        ("rank_bytes", "bytes of a rank and a phase"), ("sync_transfers", "transfers of 1 MiB after which a rank syncs; 0: at the end of a phase")):
        kind = type(getattr(usual, field))
        parser.add_argument(f"--{field.replace('_', '-')}", type=kind, metavar="N", help=f"{what} [default: {getattr(usual, field) or 'measured'}]")
    args = parser.parse_args()
    args.setting = args.setting or list(sizes.CHECKPOINTS if args.checkpoints else ["alone", "naive-bb", "forebay"] if args.quick else sizes.usual())
    args.repeats = args.repeats or (1 if args.quick else 3)
    name = "experiment-checkpoint" if args.checkpoints else "experiment-eley"
    args.output = (args.output or TARGET / (name + "-quick" * args.quick)).resolve()
    return args


def chosen(args):
    """The sizes."""
    size = replace(sizes.Sizes(), **(sizes.QUICK if args.quick else {}), **(sizes.TWO_WRITERS if args.checkpoints else {}))
    given = {field.name: getattr(args, field.name) for field in fields(size) if getattr(args, field.name, None) is not None}
    return replace(size, **given)


def prepare():
    """Builds missing parts. Returns the program `forebay` and the Python interpreter to continue with."""
    program, python = steps.environment(steps.MPI, "the lab")
    sparkhome.need(TARGET)
    steps.jar_beside(program)
    return program, python


def run(args, program):
    import experiment
    import loopback
    import stage

    size = chosen(args)
    jars = loopback.Jars(str(TARGET / "forebay-spark.jar"), str(TARGET / "java/workloads/forebay-workloads.jar"))
    inputs = args.output / f"text-{size.waves}-{size.extent_bytes >> 20}"
    writer = steps.mpi_program(HERE / "writer.c", TARGET / "eley", program)
    tools = stage.Tools(
        forebay=str(program), spark_venv=TARGET / f"spark-{sparkhome.VERSION}", jars=jars, writer=writer, data=inputs / "input/text", warm=inputs / "warm/text"
    )
    return experiment.run(args, tools, size)


def main():
    args = arguments()
    return steps.go_on(prepare, lambda program: run(args, program))


if __name__ == "__main__":
    sys.exit(main())
