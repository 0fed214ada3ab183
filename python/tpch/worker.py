"""Runs queries in one Spark session; `bench.py` starts one worker for each mode.

It runs under the Python that has Spark. The first line of standard input is a JSON object with its
task, each further one the number of a query and that of the round. It says when it is ready,
answers each query with one line for people, and adds a JSON object to the file that the task names.
Each query runs twice: cold, with nothing in the tier and the kernel's copy of the files dropped,
and then again. If the task says not to forget, all files are in the kernel's page cache both times.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "demo")]

import lab  # noqa: E402
import queries  # noqa: E402

# A prefetch may go on behind the query; the PFS is quiet when nothing was served for so long.
QUIET_S = 0.3
QUIET_MAX_S = 20


def session(task):
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": task["driver_memory"],
        "spark.sql.shuffle.partitions": "4",
        **task["settings"],
    }
    builder = SparkSession.builder.master(task["master"]).appName(f"tpch-{task['mode']}")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel(task["log_level"])
    log = spark._jvm.org.apache.logging.log4j
    # What was reported of each stage, and what of that was read, is in the log.
    log.core.config.Configurator.setLevel("io.forebay.spark", log.Level.DEBUG)
    return spark


def quiet_bytes(pfs):
    """Bytes that the PFS has served, once it serves nothing more."""
    until = time.monotonic() + QUIET_MAX_S
    served = lab.served_bytes(pfs)
    while time.monotonic() < until:
        time.sleep(QUIET_S)
        now = lab.served_bytes(pfs)
        if now == served:
            break
        served = now
    return served


def digest(rows):
    """Names a result. Floating point sums depend on the order of the tasks in their last digits."""
    def cell(value):
        return f"{value:.6e}" if isinstance(value, float) else str(value)

    lines = "\n".join("|".join(map(cell, row)) for row in rows)
    return f"{len(rows)} rows {hashlib.sha256(lines.encode()).hexdigest()[:16]}"


def asked_bytes(spark):
    """Bytes that Hadoop's file systems of this process have returned.

    In local mode these are all that Spark reads.
    """
    system = spark._jvm.org.apache.hadoop.fs.FileSystem
    return sum(statistics.getBytesRead() for statistics in system.getAllStatistics())


def fetched_pages(task):
    """Pages that the agent has fetched so far, by why."""
    if not task["status"]:
        return {}
    done = subprocess.run(task["status"], capture_output=True, text=True, timeout=60, check=True)
    counters = dict(json.loads(done.stdout)["counters"])
    return {kind: counters[f"pages_{kind}_total"] for kind in ("planned", "demanded", "ahead")}


def run(spark, task, number, turn):
    pfs = Path(task["tables"])
    outcome = {"query": number, "mode": task["mode"], "round": turn, "runs": []}
    for name in ("cold", "second"):
        if name == "cold" and task["forget"]:
            forget(task)
        # `bench.py` finds the lines of this run by it.
        print(f"tpch: Q{number} {name} {turn}", file=sys.stderr, flush=True)
        pages = fetched_pages(task)
        before, asked, began = quiet_bytes(pfs), asked_bytes(spark), time.monotonic()
        register(spark, task)
        rows = spark.sql(queries.text(number, task["scale"])).collect()
        seconds = time.monotonic() - began
        served = quiet_bytes(pfs) - before
        pages = {kind: count - pages[kind] for kind, count in fetched_pages(task).items()}
        outcome["runs"].append(
            {"run": name, "seconds": seconds, "served_bytes": served, "asked_bytes": asked_bytes(spark) - asked, "pages": pages, "result": digest(rows)}
        )
    return outcome


def register(spark, task):
    """The tables anew, as a query that is an application of its own would have them."""
    for table in queries.TABLES:
        spark.read.format(task["format"]).load(f"file://{task['tables']}/{table}").createOrReplaceTempView(table)


def forget(task):
    """Nothing of the tables is in memory after it."""
    if task["evict"]:
        done = subprocess.run(task["evict"], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            sys.exit(f"tpch: the tier cannot be emptied: {done.stderr.strip()}")
    lab.forget_page_cache(path for path in Path(task["tables"]).glob("*/*") if path.is_file())


def keep(task):
    """All tables are in the kernel's page cache after it, as long as the returned files are open:
    the PFS of the lab drops the pages of a file that nobody has open.
    """
    files = [open(path, "rb") for path in Path(task["tables"]).glob("*/*") if path.is_file()]
    for file in files:
        while file.read(1 << 20):
            pass
    return files


def main():
    # What the JVM writes to standard output goes to the log: it is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    task = json.loads(sys.stdin.readline())
    kept = [] if task["forget"] else keep(task)
    spark = session(task)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        number, turn = map(int, line.split())
        outcome = run(spark, task, number, turn)
        with open(task["output"], "a") as output:
            output.write(json.dumps(outcome) + "\n")
        runs = ", ".join(f"{one['run']} {one['served_bytes'] / 1e6:.1f} MB {one['seconds']:.1f} s" for one in outcome["runs"])
        print(f"Q{number}: {runs}", file=answers, flush=True)
    spark.stop()
    for file in kept:
        file.close()
    os._exit(0)


if __name__ == "__main__":
    main()
