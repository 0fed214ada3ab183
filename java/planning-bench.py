"""How long the driver takes to report a scan of many Parquet files, and how much memory.

    python3 java/planning-bench.py [--files 1000] [--groups 10] [--columns 20] [--rate 200MB/s] [--rounds 7]

Prints, in milliseconds: the footers alone, read without Forebay from the same file system in eight
threads; what the plug-in takes from a stage's RDD until it knows the ranges; and until the agent has
them. Of each, the first reading of a new JVM, and the medians of later ones, with nothing of the
table in the tier and with its footers. The PFS is the slow file system of the lab. Needs
`java/run-tests` to have run once, and root or fusermount3.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "python/demo"))

import lab  # noqa: E402

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")).resolve()
PROGRAM = lab.newest_program(TARGET)
MODULE = TARGET / "java/plugin-tests-spark35"
# What Spark's own launcher opens on Java 17.
OPENS = ("lang", "lang.invoke", "io", "net", "nio", "util", "util.concurrent")
CAPACITY_BYTES = 512 << 20


def run(place, pfs, socket, options):
    dependencies = (MODULE / "spark.classpath").read_text().strip()
    opens = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in OPENS]
    opens += ["--add-opens=java.base/sun.nio.ch=ALL-UNNAMED", "--add-opens=java.base/sun.security.action=ALL-UNNAMED"]
    path = f"{MODULE}/test-classes:{TARGET}/java/spark/classes:{dependencies}"
    arguments = [pfs / "table", socket, options.files, options.groups, options.columns, options.rounds]
    command = ["java", "-Xmx1g", *opens, "-cp", path, "io.forebay.spark.PlanningBench", *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=place, timeout=600)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--rate", default="200MB/s", help="what each of the four servers of the PFS transfers")
    parser.add_argument("--rounds", type=int, default=7, help="readings, each with an empty tier and again")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="forebay-planning-"))
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        (place / "data").mkdir()
        pfs = stack.enter_context(lab.slow_pfs(PROGRAM, place / "data", place / "pfs", 4, options.rate))
        socket = stack.enter_context(lab.agent(PROGRAM, pfs, place / "state", CAPACITY_BYTES))
        found = run(place, pfs, socket, options)
    if found["files"] != options.files:
        sys.exit(f"{found['files']} of {options.files} files were reported")
    print(f"{options.files} files of {options.groups} row groups and {options.columns} columns; {found['tasks']} tasks, {found['parts']} parts")
    for key, words in (("plain_ms", "footers without Forebay"), ("looked_up_ms", "ranges known"), ("reported_ms", "reported")):
        first, cold, warm = found[key]
        print(f"{words:24} {first:6.0f} ms the first time, {cold:6.0f} ms with nothing in the tier, {warm:6.0f} ms with the footers in it")
    print(f"{'memory of the driver':24} {found['kept_bytes'] / 1024:6.0f} KiB")


if __name__ == "__main__":
    main()
