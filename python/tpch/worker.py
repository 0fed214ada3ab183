"""A Spark application that runs the queries it is asked for.

`bench.py` starts one for each mode, `faults.py` another.

It runs under the Python that has Spark. The first line of standard input is a JSON object with its
task, each further one the number of a query and two words that name the run. It says when it is
ready, and answers each query with a JSON object: its seconds, its result and, in local mode, the
bytes it asked for.
"""

import hashlib
import json
import os
import sys
import time

import queries
from pyspark.sql import SparkSession


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


def digest(rows):
    """Names a result. Floating point sums depend on the order of the tasks in their last digits."""
    def cell(value):
        return f"{value:.6e}" if isinstance(value, float) else str(value)

    lines = "\n".join("|".join(map(cell, row)) for row in rows)
    return f"{len(rows)} rows {hashlib.sha256(lines.encode()).hexdigest()[:16]}"


def asked_bytes(spark, task):
    """Bytes that Hadoop's file systems of this process have returned.

    In local mode these are all that Spark reads; None where executors are other processes.
    """
    if not task["master"].startswith("local"):
        return None
    system = spark._jvm.org.apache.hadoop.fs.FileSystem
    return sum(statistics.getBytesRead() for statistics in system.getAllStatistics())


def run(spark, task, number):
    asked, began = asked_bytes(spark, task), time.monotonic()
    register(spark, task)
    rows = spark.sql(queries.text(number, task["scale"])).collect()
    seconds, after = time.monotonic() - began, asked_bytes(spark, task)
    return {"seconds": seconds, "asked_bytes": None if asked is None else after - asked, "result": digest(rows)}


def register(spark, task):
    """The tables anew, as a query that is an application of its own would have them."""
    for table in queries.TABLES:
        spark.read.format(task["format"]).load(f"file://{task['tables']}/{table}").createOrReplaceTempView(table)


def main():
    # What the JVM writes to standard output goes to the log: it is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    task = json.loads(sys.stdin.readline())
    spark = session(task)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        number = int(line.split()[0])
        # `bench.py` finds the lines of this run by it.
        print(f"tpch: Q{line.strip()}", file=sys.stderr, flush=True)
        print(json.dumps(run(spark, task, number)), file=answers, flush=True)
    spark.stop()
    os._exit(0)


if __name__ == "__main__":
    main()
