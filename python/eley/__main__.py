"""Measures analytics beside an HPC job on one parallel file system: an MPI program writes checkpoints, and the input of a Spark job is
prefetched under each planner. It runs in the lab, where both directions of a link share its bandwidth.

    python3 python/eley [--quick] [--setting NAME ...] [--repeats N] [--pfs moosefs|glusterfs] [--workload wordcount|sort]

It needs root, Java 17, Maven, and Debian's packages openmpi-bin and libopenmpi-dev; the lab installs its own. It leaves `eley.json`, `eley.md`
and plots in `target/experiment-eley`, or, with --checkpoints, `checkpoint.json`, `checkpoint.md` and plots in `target/experiment-checkpoint`. Each measured run stays there, in its own file, and is not measured again with the same sizes, so that
an experiment can be resumed; --fresh measures all runs again.
"""

import argparse
import os
import shutil
import signal
import sys
import venv
from dataclasses import fields, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path.insert(0, str(REPOSITORY / "python/demo"))

import sizes  # noqa: E402
import sparkhome  # noqa: E402
from steps import step  # noqa: E402

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
VENV = TARGET / "venv"
REQUIREMENTS = REPOSITORY / "python/requirements-demo.txt"
READY = "FOREBAY_EXPERIMENT_READY"
PROGRAMS = {"mpicc": "libopenmpi-dev", "mpirun": "openmpi-bin"}


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
    missing = [package for program, package in PROGRAMS.items() if not shutil.which(program)]
    if missing:
        raise SystemExit(f"experiment: Open MPI is not installed: apt-get install --no-install-recommends {' '.join(sorted(missing))}")
    if os.geteuid() != 0:
        raise SystemExit("experiment: the lab needs root")
    program = os.environ.get("FOREBAY_BIN")
    if not program:
        step("experiment", "building the program", ["cargo", "build", "--release", "--locked"])
        program = TARGET / "release/forebay"
    python = VENV / "bin/python"
    if not python.exists():
        venv.create(VENV, with_pip=True)
    step("experiment", "installing numpy and matplotlib", [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", str(REQUIREMENTS)])
    sparkhome.need(TARGET.resolve())
    if os.environ.get("FOREBAY_BIN"):
        jar_beside(Path(program))
    else:
        step("experiment", "building the jar", ["make", "java"])
    return program, python


def jar_beside(program):
    """Builds the jar with the native library beside a chosen program, such as that of the tests; `make java` uses a release build."""
    library = program.parent / "libforebay_jni.so"
    if not library.exists():
        raise SystemExit(f"experiment: no {library.name} beside {program}: run `cargo build`")
    step("experiment", "packing the native library", ["java/pack-native", str(library)])
    step("experiment", "building the jar", ["mvn", "--quiet", "--batch-mode", "--file", "java/pom.xml", "-Dstyle.color=never", "--projects", "spark,workloads", "package"])
    shutil.copy(TARGET / "java/spark/forebay-spark.jar", TARGET / "forebay-spark.jar")


def build_writer(program):
    """The MPI program, linked with the C library beside `program`."""
    place = TARGET.resolve() / "eley"
    place.mkdir(parents=True, exist_ok=True)
    library = next((path for path in (program.parent / "libforebay.so", program.parent / "deps/libforebay.so") if path.exists()), None)
    if library is None:
        raise SystemExit(f"experiment: no libforebay.so beside {program}: run `cargo build`")
    # The name that the loader looks for; `make install` creates the same one.
    link = place / "libforebay.so.0"
    link.unlink(missing_ok=True)
    link.symlink_to(library)
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", f"-I{REPOSITORY / 'crates/forebay-capi/include'}"]
    step("experiment", "compiling the writer", ["mpicc", *flags, "-o", str(place / "writer"), str(HERE / "writer.c"), str(link), f"-Wl,-rpath,{place}"])
    return place / "writer"


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    args = arguments()
    if os.environ.get(READY) != "1":
        try:
            program, python = prepare()
        except sparkhome.SparkMissing as error:
            raise SystemExit(f"experiment: {error}") from None
        os.execve(python, [str(python), *sys.argv], {**os.environ, READY: "1", "FOREBAY_BIN": str(program)})
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    import experiment
    import loopback
    import stage

    program, target, size = Path(os.environ["FOREBAY_BIN"]), TARGET.resolve(), chosen(args)
    jars = loopback.Jars(str(target / "forebay-spark.jar"), str(target / "java/workloads/forebay-workloads.jar"))
    inputs = args.output / f"text-{size.waves}-{size.extent_bytes >> 20}"
    tools = stage.Tools(
        forebay=str(program), spark_venv=target / f"spark-{sparkhome.VERSION}", jars=jars, writer=build_writer(program), data=inputs / "input/text", warm=inputs / "warm/text"
    )
    try:
        return experiment.run(args, tools, size)
    except KeyboardInterrupt:
        print("experiment: stopped; what has been measured stays", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
