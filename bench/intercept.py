"""Measures a cached read through `forebay run` beside the same read of a file on a tmpfs.

One program reads both files in turns, so the ratio holds on a busy machine as well. Root mounts a
tmpfs with huge pages for the twin, as the tier has; others use /dev/shm, whose pages are small.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
CASES = [
    ("pread, 4 KiB", 4 << 10, 200_000, []),
    ("pread, 1 MiB", 1 << 20, 2_000, []),
    ("read on, 4 KiB", 4 << 10, 200_000, ["position"]),
    ("read on, 128 KiB", 128 << 10, 16_000, ["position"]),
    ("read on, 1 MiB", 1 << 20, 2_000, ["position"]),
]
FILE_BYTES = 256 << 20


def main():
    """Prints a row for each case."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("forebay", type=pathlib.Path, help="the program; the library is beside it")
    arguments.add_argument("--library", type=pathlib.Path, help="the library, if it is elsewhere")
    arguments.add_argument("--runs", type=int, default=9)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="forebay-intercept-") as name:
        directory = pathlib.Path(name)
        measure(options, directory)


def measure(options, directory):
    """Makes the places of the two files."""
    forebay = options.forebay.resolve()
    environment = dict(os.environ, FOREBAY_SOCKET=str(directory / "agent" / "agent.sock"))
    if options.library:
        environment["FOREBAY_PRELOAD"] = str(options.library.resolve())
    pfs, program, bare = directory / "pfs", directory / "reader", directory / "bare"
    pfs.mkdir()
    bare.mkdir()
    if os.geteuid() == 0:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={FILE_BYTES * 2},huge=within_size", "bare", bare]
        subprocess.run(mount, check=True)
    try:
        compare(options, (forebay, environment), (pfs, program, bare / "twin"))
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", bare], check=False)


def compare(options, started, paths):
    """Writes both files, starts an agent, and runs the cases."""
    (forebay, environment), (pfs, program, twin) = started, paths
    block = os.urandom(1 << 20)
    for path in (pfs / "data", twin):
        with path.open("wb") as file:
            for at in range(FILE_BYTES >> 20):
                file.write(at.to_bytes(8, "little") + block[8:])
    subprocess.run(["cc", "-O2", "-o", program, HERE / "intercept.c"], check=True)
    up = [forebay, "up", "--pfs", pfs, "--capacity", "600MiB"]
    subprocess.run(up, env=environment, check=True, stdout=subprocess.DEVNULL)
    try:
        subprocess.run([forebay, "load", pfs], env=environment, check=True, stdout=subprocess.DEVNULL)
        print(f"| case | served | tmpfs | median ratio of {options.runs} runs | lowest | highest |")
        print("| --- | --- | --- | --- | --- | --- |")
        for case in CASES:
            row(case, options.runs, [forebay, "run", "--", program, pfs / "data", twin], environment)
    finally:
        subprocess.run([forebay, "down", "--drop"], env=environment, check=False, stdout=subprocess.DEVNULL)


def row(case, runs, command, environment):
    """Runs one case and prints its row."""
    name, bytes_, reads, more = case
    pairs = []
    for _ in range(runs):
        run = [*command, str(bytes_), str(reads), *more]
        out = subprocess.run(run, env=environment, check=True, capture_output=True, text=True)
        pairs.append([float(word) for word in out.stdout.split()])
    ratios = sorted(served / bare for served, bare in pairs)
    served, bare = (statistics.median(column) / 1e3 for column in zip(*pairs))
    middle = statistics.median(ratios)
    print(f"| {name} | {served:.2f} us | {bare:.2f} us | {middle:.2f} | {ratios[0]:.2f} | {ratios[-1]:.2f} |")


if __name__ == "__main__":
    main()
