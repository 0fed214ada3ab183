"""The shuffle through the tier beside Spark's own.

    python3 java/shuffle-bench.py [--sizes 10 100 1000] [--reducers 2 200 2000] [--rounds 7]
    python3 java/shuffle-bench.py --disk 100 --sizes 300 --reducers 16

Prints, for each size in MB and number of reducers, the medians of both in milliseconds and their
ratio: above 1 the tier is slower. Both shuffles take turns. One node with two cores, random bytes,
16 map tasks. The local directory is on the file system of $TMPDIR; with --disk on a disk of so many
MB/s, as root. Needs `java/run-tests` to have run once.
"""

import argparse
import contextlib
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
PROGRAM = lab.newest_program(TARGET)
MODULE = TARGET / "java/plugin-tests-spark35"
MB = 1_000_000
# What Spark's own launcher opens on Java 17.
OPENS = ("java.lang", "java.lang.invoke", "java.io", "java.net", "java.nio", "java.util", "java.util.concurrent", "sun.nio.ch", "sun.security.action")
MANAGERS = {"own": "sort", "tier": "io.forebay.spark.shuffle.ForebayShuffleManager"}
# Rounds of each row in which the JVMs compile what they run.
WARM_UP = 3
THROTTLE = Path("/sys/fs/cgroup/blkio/blkio.throttle.{}_bps_device")
# Writers wait for the disk once so much is dirty. Without a bound, free memory hides the disk until
# the kernel's background writes have caught up.
DIRTY_MB = 16


@contextlib.contextmanager
def spark(place, socket, manager):
    """A Spark in a JVM that shuffles once for each line; gives a function that returns milliseconds."""
    # The library inside the jar may be of another build than the program.
    library = Path(PROGRAM).parent / "libforebay_jni.so"
    if not library.exists():
        sys.exit(f"shuffle-bench: {library} is missing; `cargo build --release` makes it")
    path = f"{MODULE}/test-classes:{TARGET}/java/spark/classes:{(MODULE / 'spark.classpath').read_text().strip()}"
    opens = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENS]
    settings = {
        "forebay.native": library,
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "localhost",
        "spark.local.dir": place,
        "spark.shuffle.manager": MANAGERS[manager],
        "spark.hadoop.fs.forebay.socket": socket,
    }
    defined = [f"-D{key}={value}" for key, value in settings.items()]
    program = ["java", "-Xmx1g", *opens, *defined, "-cp", path, "io.forebay.spark.shuffle.ShuffleBench"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=place) as process:

        def shuffle(size, reducers):
            process.stdin.write(f"{size * MB} {reducers}\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        yield shuffle
        process.stdin.close()


@contextlib.contextmanager
def slow_disk(place, rate, size):
    """A file system of `size` MB on a loop device of `rate` MB/s."""
    image, mount = place / "disk.img", place / "disk"
    with open(image, "wb") as file:
        file.truncate(size * MB)
    mount.mkdir()
    command("mkfs.ext4", "-q", image)
    with contextlib.ExitStack() as stack:
        device = command("losetup", "--find", "--show", "--direct-io=on", image)
        stack.callback(command, "losetup", "--detach", device)
        number = os.stat(device).st_rdev
        name = f"{os.major(number)}:{os.minor(number)}"
        for way in ("read", "write"):
            throttle = Path(str(THROTTLE).format(way))
            throttle.write_text(f"{name} {rate * MB}")
            stack.callback(throttle.write_text, f"{name} 0")
        command("mount", device, mount)
        stack.callback(command, "umount", mount)
        (Path("/sys/class/bdi") / name / "strict_limit").write_text("1")
        (Path("/sys/class/bdi") / name / "max_bytes").write_text(str(DIRTY_MB * MB))
        yield mount


def command(*words):
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000], help="MB")
    parser.add_argument("--reducers", type=int, nargs="+", default=[2, 200, 2000])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--disk", type=int, help="MB/s of Spark's local disk")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="forebay-shuffle-bench-"))
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        (place / "pfs").mkdir()
        largest = max(options.sizes)
        # A user may hold half of the capacity; the last round's outputs may still be there.
        socket = stack.enter_context(lab.agent(PROGRAM, place / "pfs", place / "state", 4 * (largest * MB * 2 + (64 << 20))))
        # The last round's files may still be there.
        local = stack.enter_context(slow_disk(place, options.disk, 4 * largest + 200)) if options.disk else place
        shuffles = [stack.enter_context(spark(local, socket, kind)) for kind in ("own", "tier")]
        print(f"{'MB':>6} {'reducers':>8} {'own ms':>8} {'tier ms':>8} {'ratio':>6}   ({PROGRAM})")
        for size in options.sizes:
            for reducers in options.reducers:
                rounds = [[shuffle(size, reducers) for shuffle in shuffles] for _ in range(WARM_UP + options.rounds)]
                own, tier = (statistics.median(times) for times in zip(*rounds[WARM_UP:], strict=True))
                print(f"{size:6} {reducers:8} {own:8.0f} {tier:8.0f} {tier / own:6.2f}", flush=True)


if __name__ == "__main__":
    main()
