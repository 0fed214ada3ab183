"""Measures Spark and MapReduce on the storage servers of a parallel file system, in the lab, beside the same jobs on compute nodes.

    python3 python/shipping [--quick] [--way NAME ...] [--workload NAME ...] [--client fio|btio] [--fault server] [--repeats N] [--rate MB/S]

It needs root, Java 17, Maven, and fio or MPI for the client; the lab installs its own packages. It leaves `shipping.json`, `shipping.md` and a plot in
`target/experiment-shipping`. Each run stays in the JSON and is not measured again with the same sizes; --fresh measures all runs again.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(1, str(HERE.parent / "demo"))

import client  # noqa: E402
import experiment  # noqa: E402
import sparkhome  # noqa: E402
import steps  # noqa: E402
from steps import TARGET  # noqa: E402

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
    program, python = steps.environment(client.CLIENTS[args.client].needs, "the lab")
    sparkhome.need(TARGET)
    place = TARGET / f"spark-{sparkhome.VERSION}/bin"
    if not (place / "tpchgen-cli").exists():
        steps.install(place / "python", "the generator of TPC-H", GENERATOR)
    if args.client == "btio":
        steps.step("compiling BT-IO's pattern", ["mpicc", "-std=c11", "-O2", "-Wall", "-Wextra", "-o", str(TARGET / client.BTIO), str(HERE / "btio.c")])
    steps.jar_beside(program)
    if any(workload.startswith("mr-") for workload in args.workload or experiment.WORKLOADS):
        steps.step("fetching Hadoop", [*steps.MAVEN, "--activate-profiles", "mapreduce", "--projects", "mapreduce", "package"])
    return program, python


def run(args, program):
    sizes = replace(experiment.Sizes(), **experiment.QUICK) if args.quick else experiment.Sizes()
    return experiment.run(args, program, TARGET, replace(sizes, rate=args.rate or sizes.rate))


def main():
    args = arguments()
    return steps.go_on(lambda: prepare(args), lambda program: run(args, program))


if __name__ == "__main__":
    sys.exit(main())
