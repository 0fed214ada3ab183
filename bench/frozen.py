"""Measures the start of a Python program whose packages are on a PFS with slow names.

The packages are copied below `forebay lab slowfs`, where each operation on a name or attributes takes --latency. These cases
run in turns: on a local disk; on the slow PFS itself; under `forebay run --frozen` when the agent keeps an image of the tree (a
later run on this node), once as a whole, and once the second of two programs of one run, which needs no check of the tree; and
under `forebay run --frozen` without an image (a first run on a node). Needs root.
"""

import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "python/demo"))

import lab  # noqa: E402

# Starts a program twice, and prints how long the second took.
SECOND = """
import subprocess, sys, time
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
began = time.monotonic()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(time.monotonic() - began)
"""


def main():
    """Prints a row for each case."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("forebay", type=pathlib.Path, help="the program")
    arguments.add_argument("--python", default=sys.executable, help="an interpreter with the packages")
    arguments.add_argument("--only", nargs="*", default=["numpy", "numpy.libs", "pandas", "dateutil"], metavar="NAME",
                           help="what is copied of the packages")
    arguments.add_argument("--program", default="import numpy, pandas", help="what Python runs")
    arguments.add_argument("--latency", default="1ms")
    arguments.add_argument("--runs", type=int, default=7)
    options = arguments.parse_args()
    where = [options.python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"]
    options.packages = pathlib.Path(subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip())
    with tempfile.TemporaryDirectory(prefix="forebay-frozen-") as name:
        measure(options, pathlib.Path(name))


def measure(options, directory):
    """Makes the trees, and runs the cases in turns."""
    forebay = options.forebay.resolve()
    local = directory / "pfs.data" / "project" / "packages"
    local.mkdir(parents=True)
    for name in options.only:
        copy = shutil.copytree if (options.packages / name).is_dir() else shutil.copy2
        copy(options.packages / name, local / name)
    names = sum(len(names) + len(files) for _, names, files in os.walk(local))
    data = sum(path.stat().st_size for path in local.rglob("*") if path.is_file())
    slow = lab.slow_pfs(forebay, directory / "pfs.data", directory / "pfs", 4, "unlimited", ["--latency", options.latency], "0s")
    with slow as mount, lab.agent(forebay, mount, directory / "agent", 1 << 30) as socket:
        environment = dict(os.environ, FOREBAY_SOCKET=str(socket), PYTHONDONTWRITEBYTECODE="1")
        tree = mount / "project" / "packages"
        frozen = [forebay, "run", "--frozen", tree, "--"]
        cases = {
            "local disk": ([], local, False),
            "the PFS itself": ([], tree, False),
            "frozen, later run": (frozen, tree, False),
            "frozen, second program of a run": ([*frozen, sys.executable, "-c", SECOND], tree, False),
            "frozen, first run": (frozen, tree, True),
        }
        seconds = {case: [] for case in cases}
        for turn in range(options.runs + 1):
            for case, (before, packages, is_first) in cases.items():
                if is_first:
                    subprocess.run([forebay, "evict", "--all"], env=environment, check=True, stdout=subprocess.DEVNULL)
                command = [*before, options.python, "-c", options.program]
                began = time.monotonic()
                done = subprocess.run(command, env=dict(environment, PYTHONPATH=str(packages)), check=True, capture_output=True)
                # The first turn warms the caches, and makes the image.
                if turn > 0:
                    seconds[case].append(float(done.stdout) if SECOND in command else time.monotonic() - began)
        print(f"`{options.program}`: {names} names, {data >> 20} MiB, {options.latency} for each operation; {options.runs} runs\n")
        print("| case | median | lowest | highest | to the local disk |")
        print("| --- | --- | --- | --- | --- |")
        base = statistics.median(seconds["local disk"])
        for case, runs in seconds.items():
            median = statistics.median(runs)
            print(f"| {case} | {median:.2f} s | {min(runs):.2f} s | {max(runs):.2f} s | {median / base:.2f} |")


if __name__ == "__main__":
    main()
