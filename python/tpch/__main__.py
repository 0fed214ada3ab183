"""TPC-H on Spark over a slow PFS: Spark alone, with the tier, and with the tier and waves.

    python3 python/tpch [--scale 1] [--format orc] [--quick] [--queries 1,6] [--modes alone,no-action]
                        [--times] [--rounds 3] [--lab moosefs]

    python3 python/tpch --faults [--format orc]

It compares results and the bytes from the PFS of each query, cold and in a second run, and shows
what the plug-in reported of each and tasks did not read. The tables are Parquet from the generator
`tpchgen-cli` (PyPI), or ORC, which Spark makes of these once. It leaves `tpch.json`, `tpch.md` and
`tpch.svg` in `target/tpch` (`target/tpch-orc`). Bytes hardly depend on the load of the machine:
only the gap over which waves merge reads is measured. Seconds do, and are in the table only with
--times, which compares them with those of Spark with the tables in the kernel's page cache. The
modes run each query in turn; with --rounds all do so several times, and seconds are medians.

With --lab, which needs root, the tables are on a real parallel file system, and Spark's executors
on the nodes of the lab's cluster (docs/lab.md). Bytes are those that the servers' links carry.

With --faults it kills an agent, an executor and the coordinator in the middle of five queries
instead, on two nodes, and compares the results with those of undisturbed runs.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path[:0] = [str(HERE), str(REPOSITORY / "python/demo")]

import bench  # noqa: E402
import faults  # noqa: E402
import lab  # noqa: E402
import queries  # noqa: E402
import report  # noqa: E402
import setups  # noqa: E402
import sparkhome  # noqa: E402

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")).resolve()
GENERATOR = "tpchgen-cli==4.0.0"
# The smoke test: two scans of one table, a join with a broadcast, and a subquery.
QUICK = (1, 6, 14, 22)
# The client of CephFS keeps data in its own memory, which cannot be emptied from outside.
PFSES = ("moosefs", "glusterfs")


def numbers(text):
    chosen = [int(part) for part in text.split(",")]
    unknown = [number for number in chosen if number not in queries.QUERIES]
    if unknown:
        raise argparse.ArgumentTypeError(f"there are queries 1 to {len(queries.QUERIES)}, not {unknown}")
    return chosen


def modes(text):
    chosen = text.split(",")
    unknown = [mode for mode in chosen if mode not in bench.MODES]
    if unknown:
        raise argparse.ArgumentTypeError(f"modes are {', '.join(bench.MODES)}, not {unknown}")
    return chosen


def arguments():
    parser = argparse.ArgumentParser(prog="python3 python/tpch", description="TPC-H on Spark: bytes from the PFS, alone and with Forebay.")
    parser.add_argument("--scale", type=float, help="scale factor; 1 is about 350 MB of Parquet [default: 1]")
    parser.add_argument("--format", choices=bench.FORMATS, default=bench.FORMATS[0], help="of the tables [default: %(default)s]")
    parser.add_argument("--queries", type=numbers, metavar="N,N", help="queries to run [default: all]")
    parser.add_argument("--modes", type=modes, metavar="MODE,MODE", default=list(bench.MODES), help=f"of {', '.join(bench.MODES)} [default: all]")
    parser.add_argument("--lab", choices=PFSES, metavar="PFS", help=f"start a lab with this PFS and run there: {', '.join(PFSES)}")
    parser.add_argument("--nodes", type=int, help="compute nodes of the lab [default: 2]")
    parser.add_argument("--parts", type=int, default=4, help="files of each large table [default: %(default)s]")
    parser.add_argument("--spark", default=sparkhome.VERSION, metavar="VERSION", help="of PyPI's pyspark [default: %(default)s]")
    parser.add_argument("--cores", type=int, help="cores of Spark, without --lab [default: 2]")
    parser.add_argument("--rate", type=float, metavar="MB/S", help="of the PFS, all servers together [default: 800]")
    parser.add_argument("--read-ahead", metavar="SIZE", help="the kernel's read-ahead on the PFS, without --lab [default: 128KiB]")
    parser.add_argument("--driver-memory", default="2g", help="of Spark [default: %(default)s]")
    parser.add_argument("--log-level", default="ERROR", help="of Spark's log, which is beside the figures [default: %(default)s]")
    parser.add_argument("--times", action="store_true", help="put seconds into the table: on a quiet machine")
    parser.add_argument("--rounds", type=int, default=1, help="how often each query runs in each mode; seconds are medians [default: %(default)s]")
    parser.add_argument("--quick", action="store_true", help=f"scale factor 0.05, queries {', '.join(map(str, QUICK))}; fails if a target is missed")
    parser.add_argument("--faults", action="store_true", help=f"kill things in the middle of queries {', '.join(map(str, faults.QUERIES))}, at scale factor 0.05 and 2 MB/s")
    parser.add_argument("--output", type=Path, metavar="DIR", help="directory of the results [default: target/tpch]")
    args = parser.parse_args()
    if args.lab and (args.faults or args.cores or args.read_ahead):
        parser.error("--faults, --cores and --read-ahead are without --lab")
    if args.nodes is not None and (not args.lab or args.nodes < 1):
        parser.error("--nodes: at least 1, with --lab")
    args.scale = args.scale or (0.05 if args.quick or args.faults else 1)
    args.rate = args.rate or (2 if args.faults else 800)
    if args.lab:
        args.nodes = args.nodes or 2
    else:
        args.cores, args.read_ahead = args.cores or 2, args.read_ahead or "128KiB"
        # Beside what a query takes when it waits for no byte of a file.
        args.modes = [*args.modes, *([report.MEMORY] if args.times else [])]
    if args.rounds < 1:
        parser.error("--rounds: at least 1")
    args.queries = args.queries or list(faults.QUERIES if args.faults else QUICK if args.quick else queries.QUERIES)
    name = "tpch" + ("" if args.format == bench.FORMATS[0] else f"-{args.format}") + ("-faults" if args.faults else "-quick" if args.quick else "") + (f"-{args.lab}" if args.lab else "")
    args.directory = (args.output or TARGET / name).resolve()
    return args


def pip(args, what):
    subprocess.run([args.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", what], check=True)


def prepare(args):
    """Finds or builds the program, the jar, Spark and the generator; makes the tables."""
    if args.lab and os.geteuid() != 0:
        raise bench.BenchError("--lab needs root")
    sparkhome.need(TARGET, args.spark)
    place = TARGET / f"spark-{args.spark}/bin"
    args.python, generator = place / "python", place / "tpchgen-cli"
    if not generator.exists():
        pip(args, GENERATOR)
    args.program = lab.newest_program(TARGET)
    args.target = TARGET
    args.jar = TARGET / "forebay-spark.jar"
    missing = [str(path) for path in (args.program, args.jar) if not Path(path).exists()]
    if missing:
        raise bench.BenchError(f"not built: {', '.join(missing)}; `make build java` builds them")
    args.tables = TARGET / f"tpch-data/{args.scale:g}-{args.parts}"
    print(f"tables of scale factor {args.scale:g} ...", flush=True)
    bench.generate(generator, args.tables, args.scale, args.parts)
    if args.format != bench.FORMATS[0]:
        generated, args.tables = args.tables, args.tables.with_name(f"{args.tables.name}-{args.format}")
        bench.convert(args, generated)
    args.capacity_bytes = max(512 << 20, int(args.scale * (1 << 30)))
    args.directory.mkdir(parents=True, exist_ok=True)
    args.output = args.directory / "runs.jsonl"


def main():
    # SIGTERM takes the same way out as Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    args = arguments()
    try:
        prepare(args)
        if args.faults:
            outcomes = faults.run_all(args, lambda line: print(line, flush=True))
            (args.directory / "faults.json").write_text(json.dumps(outcomes, indent=1) + "\n")
            print(f"{len(outcomes)} faults in {len(args.queries)} queries; every result is right")
            return
        outcomes = bench.run_all(args, lambda line: print(line, flush=True))
    except (bench.BenchError, lab.LabError, sparkhome.SparkMissing) as error:
        sys.exit(f"tpch: {error}")
    figures = report.summary(outcomes)
    lines = report.table(outcomes, args.times)
    said = report.verdict(figures)
    if args.times:
        for mode in figures:
            figures[mode]["times"] = report.times(outcomes, mode, args.rate)
            said += report.verdict_of_times(mode, figures[mode]["times"]) if figures[mode]["times"] else [f"{mode}: times are compared only with `alone` among the modes"]
    if args.lab:
        said.append(f"In second runs the servers' own messages, {setups.LAB_RESTING_BYTES_PER_S / 1e3:g} kB/s at most, count as nothing; cold bytes have them in.")
    (args.directory / "tpch.md").write_text("\n".join([*lines, "", *said]) + "\n")
    whole = {"scale": args.scale, "rounds": args.rounds, "spark": args.spark, "format": args.format, "parts": args.parts, "read_ahead": args.read_ahead, "rate_mb_per_s": args.rate, "lab": args.lab, "nodes": args.nodes, "cores": args.cores, "summary": figures, "outcomes": outcomes}
    (args.directory / "tpch.json").write_text(json.dumps(whole, indent=1) + "\n")
    print("\n".join(["", *lines, "", *said]))
    pip(args, "matplotlib")
    subprocess.run([args.python, HERE / "report.py", args.directory / "tpch.json", args.directory / "tpch.svg"], check=True)
    missed = figures.get("no-action", {})
    if args.quick and (missed.get("cold_beyond_target") or missed.get("second_not_zero")):
        sys.exit(f"tpch: a target is missed: {missed}")


if __name__ == "__main__":
    main()
