"""Spark programs that tests start, each in its own process, and what they and the plug-in report about their reads.

A test hands `run` a task: settings, and the names of functions of its own module that are called with the session and the task. The results
come back as JSON. The log of the program has what the plug-in reported of each part that the program has named by `part`.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyspark

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "python/demo"))

import lab  # noqa: E402

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")).resolve()
PROGRAM = lab.newest_program(TARGET)
JAR = REPOSITORY / "target/forebay-spark.jar"
SPARK = ".".join(pyspark.__version__.split(".")[:2])
CAPACITY_BYTES = 512 << 20
RATE = "200MB/s"
PATIENCE_S = 900
# Nothing has come from the PFS for so long: a prefetch that goes on behind a query has ended.
QUIET_S = 0.5
# Of the bytes of a part: what is reported and not read, and what is read and not reported, are at
# most this share, and so is what the PFS serves beyond it.
OFF_SHARE = 0.1
BEYOND_SHARE = 0.2
# Beside that: footers that Spark does not count, and the small files of a table's state.
SMALL_BYTES = 256 << 10
# As the plug-in logs it.
COUNTS = re.compile(r"Forebay: stage \d+: (\d+) bytes were reported of \d+ tasks, of which (\d+) were not read, and (\d+) were read beside them")
ENDED_EARLY = re.compile(r"Forebay: stage \d+ goes on without prefetch: (\d+) bytes were reported of \d+ tasks, of which (\d+) were not read, and (\d+)")
FALLBACK = re.compile(r"Forebay: .*(?:without a plan|without prefetch|differs).*")


def check(what, condition):
    if not condition:
        sys.exit(f"Spark {pyspark.__version__}: {what}: FAILED")
    print(f"Spark {pyspark.__version__}: {what}: ok", flush=True)


# In a program.


def spark_with(name, settings):
    from pyspark.sql import SparkSession

    usual = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    builder = SparkSession.builder.master("local[2]").appName(name)
    for key, value in {**usual, **settings}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def session(task):
    spark = spark_with(task["name"], {"spark.sql.warehouse.dir": task["warehouse"], **task["settings"]})
    log = spark._jvm.org.apache.logging.log4j
    log.core.config.Configurator.setLevel("io.forebay.spark", log.Level.DEBUG)
    return spark


def main(functions):
    """The program, if this process is one; `functions` by the names that a task calls them by."""
    if sys.argv[1:] != ["--program"]:
        return False
    task = json.load(sys.stdin)
    spark = session(task)
    found = {name: functions[name](spark, task) for name in task["functions"]}
    Path(task["output"]).write_text(json.dumps(found))
    spark.stop()
    os._exit(0)


def part(task, name, body):
    """Runs `body` with an empty tier; its result, and the bytes and pages that came from the PFS for it."""
    if task["tier"]:
        subprocess.run([PROGRAM, "evict", "--all", "--socket", task["tier"]], capture_output=True, timeout=60, check=True)
    print(f"part: {name}", file=sys.stderr, flush=True)
    pages, served = fetched_pages(task), quiet_bytes(task)
    result = body()
    served = quiet_bytes(task) - served
    pages = {kind: count - pages[kind] for kind, count in fetched_pages(task).items()}
    print("part: between parts", file=sys.stderr, flush=True)
    return {"result": result, "served_bytes": served, "pages": pages}


def quiet_bytes(task):
    """Bytes that the PFS has served, once it serves nothing more."""
    if not task["tier"]:
        return 0
    pfs = Path(task["pfs"])
    served = lab.served_bytes(pfs)
    while True:
        time.sleep(QUIET_S)
        now = lab.served_bytes(pfs)
        if now == served:
            return served
        served = now


def fetched_pages(task):
    """Pages that the agent has fetched so far, by why."""
    if not task["tier"]:
        return {}
    done = subprocess.run([PROGRAM, "status", "--json", "--socket", task["tier"]], capture_output=True, text=True, timeout=60, check=True)
    counters = dict(json.loads(done.stdout)["counters"])
    return {kind: counters[f"pages_{kind}_total"] for kind in ("planned", "demanded", "ahead")}


# In the test.


@contextlib.contextmanager
def place(name, capacity_bytes=CAPACITY_BYTES):
    """A directory with a slow PFS over `data` in it and an agent; gives the directory, the PFS and the agent's socket."""
    with contextlib.ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix=f"forebay-{name}-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        (directory / "data").mkdir()
        pfs = stack.enter_context(lab.slow_pfs(PROGRAM, directory / "data", directory / "pfs", 4, RATE, ["--read-ahead", "128KiB"]))
        yield directory, pfs, stack.enter_context(lab.agent(PROGRAM, pfs, directory / "state", capacity_bytes))


def plugin(socket):
    """Settings of a program with the plug-in."""
    return {
        "spark.driver.extraClassPath": str(JAR),
        "spark.plugins": "io.forebay.spark.ForebayPlugin",
        "spark.forebay.planner": "no-action",
        "spark.hadoop.fs.forebay.socket": str(socket),
    }


class Program:
    """One that runs; `name` names its files in `directory`."""

    def __init__(self, directory, name, task):
        self.output, self.log_path = directory / f"{name}.json", directory / f"{name}.log"
        (directory / name).mkdir()
        task = {"name": name, "tier": "", "warehouse": str(directory / name / "warehouse"), "output": str(self.output), **task}
        environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, sys.argv[0], "--program"], stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, env=environment
            )
        self.process.stdin.write(json.dumps(task))
        self.process.stdin.close()

    def result(self):
        try:
            failed = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            failed = "it has not ended"
        if failed:
            print("\n".join(self.log().splitlines()[-60:]), flush=True)
            check(f"the program {self.output.stem} ({failed})", False)
        return json.loads(self.output.read_text())

    def log(self):
        return self.log_path.read_text(errors="replace")

    def reports(self):
        """Of each part: bytes that were reported, of these that were not read, and that were read beside; and fallbacks."""
        found, current = {}, None
        for line in self.log().splitlines():
            if line.startswith("part: "):
                current = found.setdefault(line.removeprefix("part: "), {"reported": 0, "unread": 0, "beside": 0, "fallbacks": []})
            elif current is not None and (counts := COUNTS.search(line) or ENDED_EARLY.search(line)):
                for key, count in zip(("reported", "unread", "beside"), counts.groups()):
                    current[key] += int(count)
            if current is not None and (said := FALLBACK.search(line)):
                current["fallbacks"].append(said[0])
        return found


def run(directory, name, task):
    """The results of a program, and of its parts what was reported."""
    program = Program(directory, name, task)
    return program.result(), program.reports()


def judge(what, one, report, needed=None):
    """Compares what was reported of a part with what it read, and with the bytes that the PFS has served for it."""
    read = report["reported"] - report["unread"] + report["beside"]
    print(f"    {in_words(one, report)}", flush=True)
    check(f"{what}: no fallback {report['fallbacks']}", not report["fallbacks"])
    check(f"{what}: something is reported", report["reported"] > 0)
    check(f"{what}: what is reported is read", report["unread"] <= OFF_SHARE * report["reported"] + SMALL_BYTES)
    check(f"{what}: what is read is reported", report["beside"] <= OFF_SHARE * read + SMALL_BYTES)
    needed = needed or read
    check(f"{what}: the PFS serves little more than the {needed / 1e6:.2f} MB that are read", one["served_bytes"] <= (1 + BEYOND_SHARE) * needed + SMALL_BYTES)


def in_words(one, report):
    pages = one["pages"]
    return (
        f"{one['served_bytes'] / 1e6:.2f} MB from the PFS; {report['reported'] / 1e6:.2f} MB reported, {report['unread'] / 1e6:.2f} of it not read,"
        f" {report['beside'] / 1e6:.2f} read beside it; {pages['planned']} of {sum(pages.values())} pages by waves"
    )
