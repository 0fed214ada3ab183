"""What many columnar and small files cost the driver and the agent: time of the footers, memory.

    python3 java/many-files.py [--footers 1000] [--small 100000]

It reads, in one Spark process of two cores: one column of `--footers` files of Parquet and of ORC
with 10 row groups or stripes each, with nothing in the tier and again; then `--small` files of
Parquet and as many of text, of some hundred bytes each. Of each it prints how long the footers
took, as the plug-in logs it, how many files were read without a plan, the largest memory of the
agent so far, and the heap of the driver after the query. It fails if a result is wrong. The PFS is a
plain directory below --place. Needs `make java`, and the Python that has Spark, as java/test-spark
installs it.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "python/demo"))

import lab  # noqa: E402

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")).resolve()
GROUPS, GROUP_ROWS, COLUMNS = 10, 5000, 10
# Directories of so many files: no file system likes more in one.
IN_DIRECTORY = 10_000
FOOTERS = re.compile(r"Forebay: the footers of (\d+) files of a stage took (\d+) ms")
WITHOUT = re.compile(r"Forebay: (\d+) files of a stage are read without a plan")


def arguments():
    parser = argparse.ArgumentParser(description="What many files cost the driver and the agent.")
    parser.add_argument("--footers", type=int, default=1000, help="files of ten row groups or stripes [default: %(default)s]")
    parser.add_argument("--small", type=int, default=100_000, help="small files [default: %(default)s]")
    parser.add_argument("--driver-memory", default="1g", help="of Spark [default: %(default)s]")
    parser.add_argument("--place", type=Path, help="for the files [default: a new directory below the temporary one]")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def copies(source, directory, count):
    """So many copies of one file, by which the agent knows so many files."""
    for i in range(count):
        place = directory / f"d{i // IN_DIRECTORY}"
        if i % IN_DIRECTORY == 0:
            place.mkdir(parents=True)
        shutil.copyfile(source, place / f"f{i}{source.suffix}")


def written(spark_frame, kind, place):
    """The one file that Spark writes of a frame."""
    options = {"parquet.block.size": 100_000, "orc.stripe.row.count": GROUP_ROWS}
    spark_frame.coalesce(1).write.options(**options).format(kind).save(f"file://{place}")
    (file,) = (file for file in place.iterdir() if file.name.startswith("part-"))
    return file


def make(spark, place, args):
    """Files below `place`; gives what each case has to find."""
    from pyspark.sql import functions

    wide = spark.range(0, GROUPS * GROUP_ROWS, 1, 1).select("id", *(functions.rand(i).alias(f"c{i}") for i in range(COLUMNS)))
    for kind in ("parquet", "orc"):
        copies(written(wide, kind, place / f"one-{kind}"), place / f"pfs/wide-{kind}", args.footers)
    copies(written(spark.range(5), "parquet", place / "small"), place / "pfs/small-parquet", args.small)
    copies(written(spark.range(1).selectExpr("'a line'"), "text", place / "line"), place / "pfs/small-text", args.small)


def cases(spark, place, args):
    """Name, format, and a function that runs the query and gives whether its result is right."""
    load = lambda kind, name: spark.read.format(kind).load(f"file://{place}/pfs/{name}/*")  # noqa: E731
    total = args.footers * sum(range(GROUPS * GROUP_ROWS))
    for kind in ("parquet", "orc"):
        for again in ("", " again"):
            yield f"{args.footers} files of {kind}{again}", not again, lambda kind=kind: load(kind, f"wide-{kind}").agg({"id": "sum"}).first()[0] == total
    yield f"{args.small} small files of parquet", True, lambda: load("parquet", "small-parquet").agg({"id": "sum"}).first()[0] == args.small * 10
    yield f"{args.small} small files of text", True, lambda: load("text", "small-text").count() == args.small


def work(args):
    """In the process with Spark: makes the files, runs the cases, prints a JSON object for each."""
    from pyspark.sql import SparkSession

    task = json.loads(args.worker)
    place = Path(task["place"])
    settings = {
        "spark.driver.extraClassPath": str(TARGET / "forebay-spark.jar"),
        "spark.plugins": "io.forebay.spark.ForebayPlugin",
        "spark.forebay.planner": "no-action",
        "spark.hadoop.fs.forebay.socket": task["socket"],
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": args.driver_memory,
    }
    builder = SparkSession.builder.master("local[2]").appName("forebay-many-files")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    log = spark._jvm.org.apache.logging.log4j
    log.core.config.Configurator.setLevel("io.forebay.spark", log.Level.DEBUG)
    make(spark, place, args)
    runtime = spark._jvm.java.lang.Runtime.getRuntime()
    for name, cold, query in cases(spark, place, args):
        if cold:
            subprocess.run([task["program"], "evict", "--all", "--socket", task["socket"]], check=True, capture_output=True)
        print(f"case: {name}", file=sys.stderr, flush=True)
        began = time.monotonic()
        right = query()
        seconds = time.monotonic() - began
        spark._jvm.java.lang.System.gc()
        heap = runtime.totalMemory() - runtime.freeMemory()
        print(json.dumps({"case": name, "right": right, "seconds": seconds, "heap_bytes": heap, "agent_bytes": peak_bytes(task["socket"])}), flush=True)
    spark.stop()
    os._exit(0)


def peak_bytes(socket):
    """The largest resident memory so far of the agent that listens there."""
    program = json.loads(sys.argv[sys.argv.index("--worker") + 1])["program"]
    status = subprocess.run([program, "status", "--json", "--socket", socket], check=True, capture_output=True, text=True)
    fields = Path(f"/proc/{json.loads(status.stdout)['pid']}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", fields)[1]) << 10


def main():
    args = arguments()
    if args.worker:
        work(args)
    built = [path for path in (TARGET / "release/forebay", TARGET / "debug/forebay") if path.exists()]
    program = os.environ.get("FOREBAY_BIN") or str(max(built, key=lambda path: path.stat().st_mtime))
    place = Path(tempfile.mkdtemp(prefix="forebay-many-", dir=args.place))
    try:
        (place / "pfs").mkdir()
        with lab.agent(program, place / "pfs", place / "state", 2 << 30) as socket:
            task = {"place": str(place), "socket": str(socket), "program": program}
            log = place / "log"
            with open(log, "wb") as errors:
                command = [sys.executable, *sys.argv, "--worker", json.dumps(task)]
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True, check=False)
            said = log.read_text(errors="replace").split("case: ")[1:]
            for line, lines in zip(done.stdout.splitlines(), said):
                show(json.loads(line), lines)
            if done.returncode:
                sys.exit(f"Spark failed: {log.read_text(errors='replace')[-3000:]}")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def show(found, log):
    footers = " and ".join(f"{int(took) / 1e3:.2f} s for the footers of {files}" for files, took in FOOTERS.findall(log)) or "no footers read"
    without = sum(int(files) for files in WITHOUT.findall(log))
    print(
        f"{found['case']}: {footers}; {without} read without a plan; query {found['seconds']:.1f} s; "
        f"heap after it {found['heap_bytes'] >> 20} MiB, agent at most {found['agent_bytes'] >> 20} MiB",
        flush=True,
    )
    if not found["right"]:
        sys.exit(f"{found['case']}: the result is wrong")


if __name__ == "__main__":
    main()
