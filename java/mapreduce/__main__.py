"""Hadoop's MapReduce on YARN, straight from a slow parallel file system and through Forebay: right results, and what it takes.

    java/test-mapreduce [--size 100] [--rate 5] [--modes straight,forebay,mapped] [--shuffle only]

Run by java/test-mapreduce, which builds and fetches what is missing. Figures also go to target/mapreduce.json. Without FUSE, or with
FOREBAY_SKIP_FUSE=1, a plain directory stands for the PFS: results are checked all the same, and the times mean nothing.
"""

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "python/demo"))

import jobs  # noqa: E402
import lab  # noqa: E402
import loopback  # noqa: E402
import shuffle  # noqa: E402
import yarn  # noqa: E402

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")).resolve()
PROGRAM = lab.newest_program(TARGET)
SERVERS = 4
EXTENT_BYTES = 32 << 20
MB = 1_000_000


def arguments():
    parser = argparse.ArgumentParser(prog="java/test-mapreduce", description="Hadoop's MapReduce on YARN, straight from a slow PFS and through Forebay")
    parser.add_argument("--size", type=int, default=100, metavar="MB", help="rows to sort, and bytes TestDFSIO writes (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=5, metavar="MB/s", help=f"of each of the {SERVERS} servers of the PFS (default: %(default)s)")
    parser.add_argument("--files", type=int, default=4, help="maps that write (default: %(default)s)")
    parser.add_argument("--modes", default="straight,forebay,mapped", help="some of %(default)s; mapped runs without TestDFSIO")
    parser.add_argument("--shuffle", choices=("yes", "no", "only"), default="yes", help="the shuffle through the tier as well, or only that (default: %(default)s)")
    args = parser.parse_args()
    unknown = set(args.modes.split(",")) - set(jobs.TITLES)
    if unknown:
        parser.error(f"no such mode: {', '.join(unknown)}")
    # With less, the files of a job itself are as many bytes as its data, and counters would prove
    # nothing.
    if args.files < 1 or args.size < max(20, 2 * args.files) or args.rate <= 0:
        parser.error("--size must be at least 20, and 2 for each of --files, which must be at least 1; --rate must be positive")
    return args


def pfs_of(args, place, backing):
    """The slow file system over `backing`, or `backing` itself where there is no FUSE."""
    if os.environ.get("FOREBAY_SKIP_FUSE") == "1" or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        print("without FUSE: a plain directory stands for the PFS, and times say nothing", flush=True)
        return contextlib.nullcontext(backing)
    return lab.slow_pfs(PROGRAM, backing, place / "pfs", SERVERS, f"{args.rate:g}MB/s")


def measure(args, place):
    backing = place / "data"
    backing.mkdir()
    built = REPOSITORY / "target"
    jar, lib = built / "forebay-spark.jar", built / "java/mapreduce/lib"
    if not jar.exists() or not lib.exists() or not Path(PROGRAM).exists():
        raise lab.LabError("something is not built: java/test-mapreduce builds it, after `make java`")
    rows = []
    with contextlib.ExitStack() as stage:
        pfs = stage.enter_context(pfs_of(args, place, backing))
        # What is written stays with its writer, of which a quarter of the memory may be for files
        # that belong to the other node.
        capacity_bytes = max(512 << 20, 12 * args.size * MB)
        print("starting two nodes ...", flush=True)
        cluster = stage.enter_context(yarn.Cluster(PROGRAM, jar, lib, place, pfs, EXTENT_BYTES, capacity_bytes))
        # The first job finds daemons that have compiled nothing yet, which is no matter of its file
        # system.
        jobs.warm_up(cluster)
        if args.shuffle != "no":
            print("shuffle through the tier:", flush=True)
            shuffle.run(cluster, backing, lambda text: print(text, flush=True))
        for mode in args.modes.split(",") if args.shuffle != "only" else ():
            print(f"{jobs.TITLES[mode]}:", flush=True)
            cluster.forget()
            run = jobs.Run(cluster, mode, backing, args.size * MB, args.files, lambda text: print(text, flush=True))
            run.tera(again=mode != "mapped")
            if mode != "mapped":
                run.dfsio()
            rows += run.results
        cluster.check_shared([row.job.id for row in rows])
    return rows


def table(rows):
    lines = ["| job | paths | s | MB/s | MB/s in a task | PFS read MB | PFS written MB | maps at owner |", "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for name in dict.fromkeys(row.name for row in rows):
        for row in (row for row in rows if row.name == name):
            task = f"{row.io_mb_per_s:.1f}" if row.io_mb_per_s else ""
            pfs = [f"{row.moved[key] / MB:.0f}" if key in row.moved else "" for key in ("pfs_read_bytes", "pfs_written_bytes")]
            # The maps of TestDFSIO are placed by where their small control files are.
            placed = row.mode != "straight" and row.name.startswith(("terasort", "teravalidate"))
            local = f"{row.job.counters.get('DATA_LOCAL_MAPS', 0)} of {row.job.maps}" if placed else ""
            cells = [row.name, jobs.TITLES[row.mode], f"{row.job.seconds:.1f}", f"{row.mb_per_s:.1f}", task, *pfs, local]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def report(rows, output):
    if not rows:
        print("\nall results are right")
        return
    print("\n" + table(rows))
    records = [
        {
            "mode": row.mode,
            "job": row.name,
            "seconds": row.job.seconds,
            "map_s": row.job.map_s,
            "data_bytes": row.data_bytes,
            "io_mb_per_s": row.io_mb_per_s,
            "moved": row.moved,
        }
        for row in rows
    ]
    output.write_text(json.dumps(records, indent=2) + "\n")
    print(f"\nall results are right; write mode `through`; figures in {output}")


def keep_logs(place, where):
    """Those of the daemons and clients, and those of the containers as they are, some in files that `yarn logs` reads."""
    loopback.keep_logs(place, where)
    for containers in (place / "data/yarn/logs", place / "n1/log", place / "n2/log"):
        if containers.exists():
            shutil.copytree(containers, where / "containers" / containers.parent.name, dirs_exist_ok=True)


def main():
    args = arguments()
    place = Path(tempfile.mkdtemp(prefix="forebay-mapreduce-"))
    try:
        report(measure(args, place), REPOSITORY / "target/mapreduce.json")
    except (jobs.Invalid, yarn.JobError, lab.LabError) as error:
        os.environ.setdefault("KEEP_LOGS", str(REPOSITORY / "target/mapreduce-logs"))
        print(f"java/test-mapreduce: {error}\nlogs: {os.environ['KEEP_LOGS']}", file=sys.stderr)
        return 1
    finally:
        if os.environ.get("KEEP_LOGS"):
            keep_logs(place, Path(os.environ["KEEP_LOGS"]))
        shutil.rmtree(place, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
