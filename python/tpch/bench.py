"""Runs the modes and checks that they agree; says what each query took of the PFS."""

import contextlib
import functools
import json
import operator
import os
import queue
import re
import shutil
import signal
import statistics
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import queries
import setups
from report import MEMORY

HERE = Path(__file__).resolve().parent
# Of the tables; the generator writes the first.
FORMATS = ("parquet", "orc")
# Settings of the plug-in by mode; None: Spark without it.
MODES = {
    "alone": None,
    # By default, tasks bypass the tier with this planner.
    "tier": {"spark.forebay.planner": "naive-bb", "spark.hadoop.fs.forebay.read.mode": "cached"},
    "no-action": {"spark.forebay.planner": "no-action"},
}
# With the one that `--times` adds.
MODES_OF_TIMES = {**MODES, MEMORY: None}
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
# A prefetch may go on behind the query; the PFS is quiet when nothing was served for so long.
QUIET_S = 0.3
QUIET_MAX_S = 20
# How long a killed application is waited for.
KILLED_S = 10


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

    The modes run each query in turn, so that a machine whose speed changes changes them alike. On
    the slow file system each has one of its own, and an agent.
    """
    outcomes = []
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(open(config.output, "w"))
        workers = {}
        for mode, setup in stack.enter_context(setups.of_all(config, say)).items():
            say(f"{TITLES[mode]} starts ...")
            workers[mode] = Worker(config, mode, setup, stack)
        for number in range(config.rounds):
            for query in config.queries:
                for mode, worker in workers.items():
                    outcomes.append(worker.measure(query, number))
                    output.write(json.dumps(outcomes[-1]) + "\n")
                    output.flush()
                    say(f"    {mode}: {words(outcomes[-1])}")
        for worker in workers.values():
            worker.end()
    for mode in config.modes:
        add_reports([outcome for outcome in outcomes if outcome["mode"] == mode], log_of(config, mode).read_text(errors="replace"))
    check(outcomes, config)
    check_memory(outcomes, setups.size_of(config.tables))
    return merge_rounds(outcomes)


def words(outcome):
    runs = (f"{one['run']} {one['served_bytes'] / 1e6:.1f} MB {one['seconds']:.1f} s" for one in outcome["runs"])
    return f"Q{outcome['query']}: {', '.join(runs)}"


class Worker:
    """The Spark application of one mode, `worker.py`."""

    def __init__(self, config, mode, setup, stack):
        self.mode, self.setup, self.log = mode, setup, log_of(config, mode)
        self.patience_s = ANSWER_S * max(1, config.scale)
        self.has_plugin = MODES_OF_TIMES[mode] is not None
        if mode == MEMORY:
            for file in setup.keep():
                stack.enter_context(file)
        task = {
            "mode": mode,
            "master": setup.master,
            "driver_memory": config.driver_memory,
            "settings": {**setup.settings, **({**setup.plugin_settings, **MODES_OF_TIMES[mode]} if self.has_plugin else {})},
            "tables": str(setup.tables),
            "scale": config.scale,
            "format": config.format,
            "log_level": config.log_level,
        }
        command = [*setup.start, str(config.python), str(HERE / "worker.py")]
        environment = {**os.environ, "PYSPARK_PYTHON": str(config.python), **setup.environment}
        with open(self.log, "w") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, start_new_session=True
            )
        stack.callback(self.kill)
        # Its own thread: a program that a file system holds keeps the pipe open although killed.
        self.lines = queue.Queue()
        threading.Thread(target=self.listen, daemon=True).start()
        self.tell(json.dumps(task))
        # Nothing of its start goes on beside a query of another mode.
        self.answer("it has not started")

    def listen(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def tell(self, line):
        # One that has ended is found at the next answer.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()

    def measure(self, query, number):
        """The outcome of a query as round `number`, cold and again.

        Cold, nothing is in the tier and the kernel's copy of the files is dropped. In MEMORY all
        files are in the kernel's page cache both times.
        """
        if self.mode != MEMORY:
            self.setup.forget()
        return {"query": query, "mode": self.mode, "round": number, "runs": [self.run(query, name, number) for name in ("cold", "second")]}

    def run(self, query, name, number):
        pages, before, began = self.pages(), quiet_bytes(self.setup), time.monotonic()
        one = self.ask(query, name, number)
        served = quiet_bytes(self.setup) - before
        resting = self.setup.resting_bytes_per_s * (time.monotonic() - began)
        pages = {kind: count - pages[kind] for kind, count in self.pages().items()}
        return {"run": name, **one, "served_bytes": served, "beyond_rest_bytes": max(0, served - round(resting)), "pages": pages}

    def pages(self):
        return self.setup.fetched_pages() if self.has_plugin else {}

    def ask(self, query, name, number):
        """Runs a query; what the application says of it."""
        self.tell(f"{query} {name} {number}")
        return self.answer(f"Q{query} has not ended")

    def answer(self, otherwise):
        """A JSON object, within the time for it."""
        try:
            return json.loads(self.lines.get(timeout=self.patience_s))
        except (queue.Empty, ValueError):
            raise BenchError(f"{TITLES[self.mode]}: {otherwise} within {self.patience_s:g} s, or failed; its log is {self.log}") from None

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
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(KILLED_S)


def quiet_bytes(setup):
    """Bytes that the PFS has served, once it serves nothing more."""
    began = asked = time.monotonic()
    served = setup.served_bytes()
    while asked - began < QUIET_MAX_S:
        time.sleep(QUIET_S)
        before, last, asked = served, asked, time.monotonic()
        served = setup.served_bytes()
        if served - before <= (asked - last) * setup.resting_bytes_per_s:
            break
    return served


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
            one["beyond_rest_bytes"] = max(other["beyond_rest_bytes"] for other in same)
            if "fallbacks" in one:
                one["fallbacks"] = dict(functools.reduce(operator.or_, (Counter(other["fallbacks"]) for other in same)))
        rounds[0]["rounds"] = len(rounds)
        del rounds[0]["round"]
    return [rounds[0] for rounds in merged.values()]
