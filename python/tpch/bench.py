"""Runs the modes and checks that they agree; says what each query took of the PFS."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import lab
import queries
from report import MEMORY

HERE = Path(__file__).resolve().parent
SERVERS = 4
# Of the tables; the generator writes the first.
FORMATS = ("parquet", "orc")
# Settings of Spark by mode; `{jar}` and `{socket}` are put in.
PLUGIN = {
    "spark.driver.extraClassPath": "{jar}",
    "spark.plugins": "io.forebay.spark.ForebayPlugin",
    "spark.hadoop.fs.forebay.socket": "{socket}",
}
MODES = {
    "alone": {},
    # By default, tasks bypass the tier with this planner.
    "tier": {**PLUGIN, "spark.forebay.planner": "naive-bb", "spark.hadoop.fs.forebay.read.mode": "cached"},
    "no-action": {**PLUGIN, "spark.forebay.planner": "no-action"},
}
# With the one that `--times` adds.
MODES_OF_TIMES = {**MODES, MEMORY: {}}
TITLES = {
    "alone": "Spark alone",
    "tier": "the tier without a plan",
    "no-action": "the tier with waves (`no-action`)",
    MEMORY: "Spark alone, tables in the kernel's page cache",
}
# As the plug-in logs it: the counts of a stage, columnar files without a plan, and stages whose
# report ends or never begins.
COUNTS = re.compile(r"Forebay: stage \d+: (\d+) bytes were reported of \d+ tasks, of which (\d+) were not read, and (\d+) were read beside them")
FILES_WITHOUT_PLAN = re.compile(r"Forebay: (\d+) files of a stage are read without a plan: (.*)")
STAGE_WITHOUT_PLAN = re.compile(r"Forebay: (?:stage \d+ (?:runs|goes on) without prefetch|no room for stage|the agent has no room for the report of stage)")
# What one mode may take before it is given up, for a query at scale factor 1.
QUERY_S = 300


class BenchError(Exception):
    """It cannot go on; the message says why."""


def generate(generator, tables, scale, parts):
    """The tables below `tables`, a directory each.

    Nation and region have one file each, the others `parts` files.
    """
    done = tables / "complete"
    if done.exists():
        return
    shutil.rmtree(tables, ignore_errors=True)
    tables.mkdir(parents=True)
    many = [table for table in queries.TABLES if table not in ("nation", "region")]
    for names, count in ((many, parts), (["nation", "region"], 1)):
        command = [generator, "parquet", "--quiet", "-s", str(scale), "--output-dir", tables, "--tables", ",".join(names), "--parts", str(count)]
        ended = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        if ended.returncode:
            raise BenchError(f"tpchgen-cli failed: {ended.stderr.strip()}")
    done.touch()


def convert(config, generated):
    """The tables below `config.tables` in its format, made of the `generated` ones."""
    done = config.tables / "complete"
    if done.exists():
        return
    shutil.rmtree(config.tables, ignore_errors=True)
    command = [config.python, HERE / "convert.py", generated, config.tables, config.format, config.driver_memory]
    environment = {**os.environ, "PYSPARK_PYTHON": str(config.python), "SPARK_LOCAL_IP": "127.0.0.1"}
    ended = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment, check=False)
    if ended.returncode:
        raise BenchError(f"Spark cannot write the tables as {config.format}: {ended.stderr.strip()[-2000:]}")
    done.touch()


def run_all(config, say):
    """Outcomes by mode and query; `config` as of `__main__`."""
    if config.output.exists():
        config.output.unlink()
    for mode in config.modes:
        say(f"{TITLES[mode]} ...")
        # A file system and an agent of its own for each: nothing is left of the mode before.
        with stage(config) as (pfs, socket):
            run_mode(config, mode, pfs, socket)
    outcomes = [json.loads(line) for line in config.output.read_text().splitlines()]
    for mode in config.modes:
        add_reports([outcome for outcome in outcomes if outcome["mode"] == mode], log_of(config, mode).read_text(errors="replace"))
    check(outcomes, config)
    return outcomes


@contextlib.contextmanager
def stage(config):
    with contextlib.ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="forebay-tpch-"))
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        options = ["--read-ahead", config.read_ahead]
        rate = f"{config.rate / SERVERS:.1f}MB/s"
        pfs = stack.enter_context(lab.slow_pfs(config.program, config.tables, place / "pfs", SERVERS, rate, options))
        yield pfs, stack.enter_context(lab.agent(config.program, pfs, place / "state", config.capacity_bytes))


def run_mode(config, mode, pfs, socket):
    settings = MODES_OF_TIMES[mode]
    tables = config.tables if mode == MEMORY else pfs
    task = {
        "mode": mode,
        "master": f"local[{config.cores}]",
        "driver_memory": config.driver_memory,
        "settings": {key: value.format(jar=config.jar, socket=socket) for key, value in settings.items()},
        "pfs": str(pfs),
        "tables": str(tables),
        "forget": mode != MEMORY,
        "scale": config.scale,
        "format": config.format,
        "queries": list(config.queries),
        "evict": [str(config.program), "evict", "--all", "--socket", str(socket)] if settings else [],
        "status": [str(config.program), "status", "--json", "--socket", str(socket)] if settings else [],
        "output": str(config.output),
        "log_level": config.log_level,
    }
    environment = {**os.environ, "PYSPARK_PYTHON": str(config.python), "SPARK_LOCAL_IP": "127.0.0.1"}
    log = log_of(config, mode)
    with open(log, "w") as errors:
        worker = subprocess.Popen([str(config.python), str(HERE / "worker.py")], stdin=subprocess.PIPE, stderr=errors, text=True, env=environment)
        try:
            worker.communicate(json.dumps(task), timeout=QUERY_S * len(config.queries))
        except subprocess.TimeoutExpired:
            worker.kill()
            raise BenchError(f"{TITLES[mode]} has not ended; its log is {log}") from None
    if worker.returncode:
        raise BenchError(f"{TITLES[mode]} failed; its log is {log}")


def log_of(config, mode):
    return config.output.with_suffix(f".{mode}.log")


def add_reports(outcomes, log):
    """Adds to the runs of one mode what the plug-in logged of their stages.

    These are the bytes that it reported, those of them that no task read, and those that tasks read
    beside them; and each fallback: files and stages that were read without a plan, by the reason.
    """
    runs = {f"Q{outcome['query']} {one['run']}": one for outcome in outcomes for one in outcome["runs"]}
    run = None
    for line in log.splitlines():
        if line.startswith("tpch: "):
            run = runs[line.removeprefix("tpch: ")]
            run.update(reported_bytes=0, unread_bytes=0, beside_bytes=0, fallbacks={})
        elif run is None:
            continue
        elif found := COUNTS.search(line):
            for key, count in zip(("reported_bytes", "unread_bytes", "beside_bytes"), found.groups()):
                run[key] += int(count)
        elif found := FILES_WITHOUT_PLAN.search(line):
            count, why = int(found[1]), f"files: {found[2].strip()}"
            run["fallbacks"][why] = run["fallbacks"].get(why, 0) + count
        elif STAGE_WITHOUT_PLAN.search(line):
            why = "stages: most of the report was not read, or there was no room for it"
            run["fallbacks"][why] = run["fallbacks"].get(why, 0) + 1


def check(outcomes, config):
    """Every query ran in every mode, cold and again, and found the same."""
    found = {}
    for outcome in outcomes:
        for one in outcome["runs"]:
            found.setdefault(outcome["query"], {})[(outcome["mode"], one["run"])] = one["result"]
    for number in config.queries:
        results = found.get(number, {})
        if len(results) != 2 * len(config.modes):
            raise BenchError(f"Q{number} ran {len(results)} times, {2 * len(config.modes)} were expected")
        if len(set(results.values())) != 1:
            raise BenchError(f"Q{number}: the results differ: {results}")
