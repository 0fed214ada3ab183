"""The shuffle through the tier beside Spark's own: a small and a larger one.

    python3 java/shuffle-bench.py [--sizes 10 500] [--reducers 16] [--rounds 3]

Prints, for each size in MB, the medians of both in milliseconds and their ratio; above 1 the tier is
slower. One node, two cores, random bytes; Spark's local directory is on the file system of
$TMPDIR. Needs `java/run-tests` to have run once.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "python/demo"))

import lab  # noqa: E402

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")).resolve()
BUILT = [path for path in (TARGET / "release/forebay", TARGET / "debug/forebay") if path.exists()]
PROGRAM = os.environ.get("FOREBAY_BIN") or str(max(BUILT, key=lambda path: path.stat().st_mtime, default=TARGET / "release/forebay"))
MODULE = TARGET / "java/plugin-tests-spark35"
MB = 1_000_000
# What Spark's own launcher opens on Java 17.
OPENS = ("java.lang", "java.lang.invoke", "java.io", "java.net", "java.nio", "java.util", "java.util.concurrent", "sun.nio.ch", "sun.security.action")
MANAGERS = {"own": "sort", "tier": "io.forebay.spark.shuffle.ForebayShuffleManager"}


def run(place, socket, options, manager, size):
    path = f"{MODULE}/test-classes:{TARGET}/java/spark/classes:{(MODULE / 'spark.classpath').read_text().strip()}"
    opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENS]
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "localhost",
        "spark.local.dir": place,
        "spark.shuffle.manager": MANAGERS[manager],
        "spark.hadoop.fs.forebay.socket": socket,
    }
    defined = [f"-D{key}={value}" for key, value in settings.items()]
    command = ["java", "-Xmx1g", *opens, *defined, "-cp", path, "io.forebay.spark.shuffle.ShuffleBench", str(size * MB), str(options.reducers), str(options.rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True, cwd=place, timeout=1800)
    return statistics.median(json.loads(done.stdout.strip().splitlines()[-1]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 500], help="MB")
    parser.add_argument("--reducers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="forebay-shuffle-bench-"))
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        (place / "pfs").mkdir()
        # A user may hold half of the capacity; the last round's outputs may still be there.
        capacity = 4 * (max(options.sizes) * MB * 2 + (64 << 20))
        socket = stack.enter_context(lab.agent(PROGRAM, place / "pfs", place / "state", capacity))
        print(f"{'MB':>6} {'own ms':>8} {'tier ms':>8} {'ratio':>6}")
        for size in options.sizes:
            own, tier = (run(place, socket, options, manager, size) for manager in MANAGERS)
            print(f"{size:6} {own:8.0f} {tier:8.0f} {tier / own:6.2f}", flush=True)


if __name__ == "__main__":
    main()
