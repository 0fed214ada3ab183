"""Measures Spark and MapReduce on the storage servers of a parallel file system, in the lab, beside the same jobs on compute nodes.

    python3 python/shipping [--quick] [--way NAME ...] [--workload NAME ...] [--client fio|btio] [--fault server] [--repeats N] [--rate MB/S]

It needs root, Java 17, Maven, and fio or MPI for the client; the lab installs its own packages. It leaves `shipping.json`, `shipping.md` and a plot in
`target/experiment-shipping`. Each run stays in the JSON and is not measured again with the same sizes; --fresh measures all runs again.
"""

import argparse
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path.insert(1, str(REPOSITORY / "python/demo"))

import client  # noqa: E402
import experiment  # noqa: E402
import sparkhome  # noqa: E402
from steps import step  # noqa: E402

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
VENV = TARGET / "venv"
READY = "FOREBAY_EXPERIMENT_READY"
# As in python/tpch.
GENERATOR = "tpchgen-cli==4.0.0"


def arguments():
    parser = argparse.ArgumentParser(prog="python3 python/shipping", description="Spark on storage servers, in the lab.")
    parser.add_argument("--way", action="append", choices=list(experiment.WAYS), default=[], help="how tasks run; several times for several [default: all]")
    parser.add_argument("--workload", action="append", choices=list(experiment.WORKLOADS), default=[], help="the job [default: all]")
    beside = "what reads or writes beside the jobs: fio, or the pattern of NAS BT-IO [default: fio]"
    parser.add_argument("--client", choices=list(client.CLIENTS), default="fio", help=beside)
    parser.add_argument("--fault", choices=["server"], help="a storage daemon is killed and starts again while each job runs")
    parser.add_argument("--repeats", type=int, metavar="N", help="runs of each, in interleaved order [default: 3]")
    parser.add_argument("--rate", type=float, metavar="MB/S", help="of the link of each storage server; 2 and less bind with the default sizes [default: 80]")
    parser.add_argument("--quick", action="store_true", help="little data, once each; fails unless all of it happened")
    parser.add_argument("--fresh", action="store_true", help="measure all runs again")
    parser.add_argument("--output", type=Path, metavar="DIR", help="directory of the results [default: target/experiment-shipping]")
    args = parser.parse_args()
    args.repeats = args.repeats or (1 if args.quick else 3)
    # Each size has results of its own.
    name = "experiment-shipping" + "-btio" * (args.client == "btio") + "-quick" * args.quick + (f"-{args.rate:g}" if args.rate else "") + (f"-{args.fault}" if args.fault else "")
    args.output = (args.output or TARGET / name).resolve()
    return args


def prepare(args):
    """Builds missing parts. Returns the program `forebay` and the Python interpreter to continue with."""
    if os.geteuid() != 0:
        raise SystemExit("experiment: the lab needs root")
    if packages := client.missing(args.client):
        raise SystemExit(f"experiment: --client {args.client} needs packages that are not installed: apt-get install {' '.join(packages)}")
    program = Path(os.environ.get("FOREBAY_BIN", TARGET / "release/forebay"))
    if "FOREBAY_BIN" not in os.environ:
        step("experiment", "building the program", ["cargo", "build", "--release", "--locked"])
    python = VENV / "bin/python"
    if not python.exists():
        step("experiment", "creating an environment", [sys.executable, "-m", "venv", str(VENV)])
    requirements = str(REPOSITORY / "python/requirements-demo.txt")
    step("experiment", "installing numpy and matplotlib", [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements])
    sparkhome.need(TARGET.resolve())
    place = TARGET / f"spark-{sparkhome.VERSION}/bin"
    if not (place / "tpchgen-cli").exists():
        pip = [str(place / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        step("experiment", "installing the generator of TPC-H", [*pip, GENERATOR])
    if args.client == "btio":
        step("experiment", "compiling BT-IO's pattern", ["mpicc", "-std=c11", "-O2", "-Wall", "-Wextra", "-o", str(TARGET / client.BTIO), str(HERE / "btio.c")])
    step("experiment", "packing the native library", ["java/pack-native", str(program.parent / "libforebay_jni.so")])
    step("experiment", "building the jar", ["mvn", "--quiet", "--batch-mode", "--file", "java/pom.xml", "-Dstyle.color=never", "--projects", "spark,workloads", "-DskipTests", "package"])
    if any(workload.startswith("mr-") for workload in args.workload or experiment.WORKLOADS):
        profile = ["--activate-profiles", "mapreduce", "--projects", "mapreduce", "package"]
        step("experiment", "fetching Hadoop", ["mvn", "--quiet", "--batch-mode", "--file", "java/pom.xml", "-Dstyle.color=never", *profile])
    shutil.copy(TARGET / "java/spark/forebay-spark.jar", TARGET / "forebay-spark.jar")
    return program, python


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    args = arguments()
    os.chdir(REPOSITORY)
    if os.environ.get(READY) != "1":
        try:
            program, python = prepare(args)
        except sparkhome.SparkMissing as error:
            raise SystemExit(f"experiment: {error}") from None
        os.execve(python, [str(python), *sys.argv], {**os.environ, READY: "1", "FOREBAY_BIN": str(program)})
    sizes = replace(experiment.Sizes(), **experiment.QUICK) if args.quick else experiment.Sizes()
    try:
        return experiment.run(args, Path(os.environ["FOREBAY_BIN"]), TARGET.resolve(), replace(sizes, rate=args.rate or sizes.rate))
    except KeyboardInterrupt:
        print("experiment: stopped; what has been measured stays", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
