"""Runs the modes and checks that they agree; says what each query took of the PFS."""

import contextlib
import functools
import json
import operator
import os
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
from collections import Counter
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
# What a mode may take for its start, its end, or a query, cold and again, before it is given up;
# with tables of a scale factor above 1 so many times as long.
ANSWER_S = 300
# Of the bytes of all tables, what the PFS may serve for one run of `MEMORY`, whose tables are in
# the page cache: pages that the kernel has dropped meanwhile would make its times longer.
MEMORY_SHARE_MOST = 0.01


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
    """Outcomes by mode and query; `config` as of `__main__`.

    The modes run each query in turn, so that a machine whose speed changes changes them alike. Each
    has a file system and an agent of its own.
    """
    if config.output.exists():
        config.output.unlink()
    with contextlib.ExitStack() as stack:
        workers = {}
        for mode in config.modes:
            say(f"{TITLES[mode]} starts ...")
            pfs, socket = stack.enter_context(stage(config))
            workers[mode] = Worker(config, mode, pfs, socket, stack)
        for number in range(config.rounds):
            for query in config.queries:
                for mode, worker in workers.items():
                    say(f"    {mode}: {worker.ask(query, number)}")
        for worker in workers.values():
            worker.end()
    outcomes = [json.loads(line) for line in config.output.read_text().splitlines()]
    for mode in config.modes:
        add_reports([outcome for outcome in outcomes if outcome["mode"] == mode], log_of(config, mode).read_text(errors="replace"))
    check(outcomes, config)
    check_memory(outcomes, sum(path.stat().st_size for path in config.tables.glob("*/*")))
    return merge_rounds(outcomes)


@contextlib.contextmanager
def stage(config):
    with contextlib.ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="forebay-tpch-"))
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        options = ["--read-ahead", config.read_ahead]
        rate = f"{config.rate / SERVERS:.1f}MB/s"
        pfs = stack.enter_context(lab.slow_pfs(config.program, config.tables, place / "pfs", SERVERS, rate, options))
        yield pfs, stack.enter_context(lab.agent(config.program, pfs, place / "state", config.capacity_bytes))


class Worker:
    """The Spark application of one mode, `worker.py`."""

    def __init__(self, config, mode, pfs, socket, stack):
        settings = MODES_OF_TIMES[mode]
        task = {
            "mode": mode,
            "master": f"local[{config.cores}]",
            "driver_memory": config.driver_memory,
            "settings": {key: value.format(jar=config.jar, socket=socket) for key, value in settings.items()},
            "tables": str(pfs),
            "forget": mode != MEMORY,
            "scale": config.scale,
            "format": config.format,
            "evict": [str(config.program), "evict", "--all", "--socket", str(socket)] if settings else [],
            "status": [str(config.program), "status", "--json", "--socket", str(socket)] if settings else [],
            "output": str(config.output),
            "log_level": config.log_level,
        }
        self.mode, self.log, self.patience_s = mode, log_of(config, mode), ANSWER_S * max(1, config.scale)
        environment = {**os.environ, "PYSPARK_PYTHON": str(config.python), "SPARK_LOCAL_IP": "127.0.0.1"}
        with open(self.log, "w") as errors:
            self.process = subprocess.Popen(
                [str(config.python), str(HERE / "worker.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment,
                start_new_session=True,
            )
        stack.callback(self.kill)
        self.tell(json.dumps(task))
        # Nothing of its start goes on beside a query of another mode.
        self.answer("ready", "it has not started")

    def tell(self, line):
        # One that has ended is found at the next answer.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()

    def ask(self, query, number):
        """Runs a query, cold and again, as round `number`; what to say of it."""
        self.tell(f"{query} {number}")
        return self.answer(f"Q{query}:", f"Q{query} has not ended")

    def answer(self, beginning, otherwise):
        """A line that has this beginning, within the time for it."""
        overdue = threading.Timer(self.patience_s, self.kill)
        overdue.start()
        try:
            line = self.process.stdout.readline()
        finally:
            overdue.cancel()
        if not line.startswith(beginning):
            raise BenchError(f"{TITLES[self.mode]}: {otherwise} within {self.patience_s:g} s, or failed; its log is {self.log}")
        return line.rstrip()

    def end(self):
        """Ends the application, so that its log is whole."""
        self.process.stdin.close()
        try:
            code = self.process.wait(self.patience_s)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{TITLES[self.mode]} has not ended; its log is {self.log}") from None
        if code:
            raise BenchError(f"{TITLES[self.mode]} failed at its end; its log is {self.log}")

    def kill(self):
        """With the JVM, which has the pipe too."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def log_of(config, mode):
    return config.output.with_suffix(f".{mode}.log")


def add_reports(outcomes, log):
    """Adds to the runs of one mode what the plug-in logged of their stages.

    These are the bytes that it reported, those of them that no task read, and those that tasks read
    beside them; and each fallback: files and stages that were read without a plan, by the reason.
    """
    runs = {f"Q{outcome['query']} {one['run']} {outcome['round']}": one for outcome in outcomes for one in outcome["runs"]}
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
    """Every query ran in every mode and round, cold and again, and found the same."""
    found = {}
    for outcome in outcomes:
        for one in outcome["runs"]:
            found.setdefault(outcome["query"], []).append((outcome["mode"], one["run"], one["result"]))
    expected = 2 * len(config.modes) * config.rounds
    for number in config.queries:
        results = found.get(number, [])
        if len(results) != expected:
            raise BenchError(f"Q{number} ran {len(results)} times, {expected} were expected")
        if len({result for _, _, result in results}) != 1:
            raise BenchError(f"Q{number}: the results differ: {results}")


def check_memory(outcomes, table_bytes):
    """No query of `MEMORY` has read more than next to nothing from the PFS."""
    for outcome in outcomes:
        served = max(one["served_bytes"] for one in outcome["runs"])
        if outcome["mode"] == MEMORY and served > MEMORY_SHARE_MOST * table_bytes:
            raise BenchError(f"Q{outcome['query']} of {TITLES[MEMORY]}: {served / 1e6:.1f} MB came from the PFS; is there memory for all tables?")


def merge_rounds(outcomes):
    """One outcome for each query and mode: its first, with the median of the seconds of all rounds,
    and the most bytes and fallbacks of any. Seconds and bytes of each are kept beside them.
    """
    merged = {}
    for outcome in outcomes:
        merged.setdefault((outcome["mode"], outcome["query"]), []).append(outcome)
    for rounds in merged.values():
        for same in zip(*(outcome["runs"] for outcome in rounds)):
            one = same[0]
            one["seconds_of_rounds"] = [other["seconds"] for other in same]
            one["served_bytes_of_rounds"] = [other["served_bytes"] for other in same]
            one["seconds"] = statistics.median(one["seconds_of_rounds"])
            one["served_bytes"] = max(one["served_bytes_of_rounds"])
            if "fallbacks" in one:
                one["fallbacks"] = dict(functools.reduce(operator.or_, (Counter(other["fallbacks"]) for other in same)))
        rounds[0]["rounds"] = len(rounds)
        del rounds[0]["round"]
    return [rounds[0] for rounds in merged.values()]
