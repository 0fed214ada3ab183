"""Measures what the observer costs a writer, in paired runs.

Each pair is one run with the library preloaded and one without, in random order, on a tmpfs, which
is faster than any PFS: there the share of the observer is largest. Two results: the median over the
pairs of the difference of their times, as a share of the time without; and the same of the fastest
run of each kind, which neighbours on the machine disturb least.
"""

import argparse
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# Header and slots of the region (crates/forebay-wire/src/observed.rs).
REGION_BYTES = 4096 + 256 * 128
REGION_HEAD = b"FBOBSERV" + (1).to_bytes(4, sys.byteorder)
CASES = [
    ("MPI-IO, 2 ranks, 1 MiB", True, 1 << 20, 2_000),
    ("pwrite, 1 MiB", False, 1 << 20, 4_000),
    ("pwrite, 64 KiB", False, 64 << 10, 50_000),
    ("pwrite, 4 KiB", False, 4 << 10, 400_000),
]


def compile_writer(directory, mpi):
    """The writer, or None if it cannot be built."""
    program = directory / ("writer-mpi" if mpi else "writer")
    command = ["mpicc", "-DWITH_MPI"] if mpi else ["cc"]
    if shutil.which(command[0]) is None:
        return None
    built = subprocess.run([*command, "-O2", "-o", program, HERE / "observer.c"], capture_output=True, check=False)
    return program if built.returncode == 0 else None


def run(program, mpi, directory, bytes_, transfers, library):
    """Seconds of one run, with the library or without it."""
    out = run_text(program, mpi, directory, [str(bytes_), str(transfers)], library)
    if library:
        counted = (directory / "region").read_bytes()
        written = sum(
            int.from_bytes(counted[at : at + 8], sys.byteorder) for at in range(4096 + 8, REGION_BYTES, 128)
        )
        expected = bytes_ * transfers * (2 if mpi else 1)
        assert written == expected, f"the observer has counted {written} of {expected} bytes"
    return float(out)


def run_text(program, mpi, directory, arguments, library):
    """What a run prints."""
    launch = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"] if mpi else []
    environment = dict(os.environ)
    if library:
        region = directory / "region"
        region.write_bytes(REGION_HEAD.ljust(REGION_BYTES, b"\0"))
        environment |= {
            "LD_PRELOAD": str(library),
            "FOREBAY_OBSERVE": str(region),
            "FOREBAY_OBSERVE_ROOTS": str(directory),
        }
    command = [*launch, program, directory / "data", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def paired_calls(program, directory, library):
    """Prints what a call costs, from calls that alternate with bare system calls in one process."""
    print(f"\n{'alternating calls':24} {'observed':>12} {'bare':>12} {'difference':>11} {'share':>7}   without the library")
    for bytes_, transfers in ((512, 400_000), (4 << 10, 300_000), (64 << 10, 40_000), (1 << 20, 4_000)):
        medians = {}
        for preloaded in (True, False):
            out = run_text(program, False, directory, [str(bytes_), str(transfers), "paired"], preloaded and library)
            medians[preloaded] = [float(text) for text in out.split()]
        (seen, bare), (control, control_bare) = medians[True], medians[False]
        print(
            f"{f'pwrite, {bytes_} bytes':24} {seen:9.0f} ns {bare:9.0f} ns {seen - bare:8.0f} ns "
            f"{(seen - bare) / bare:7.2%}   {control - control_bare:.0f} ns"
        )


def share(pairs):
    """Median of the differences, as a share of the time without."""
    return statistics.median((with_ - without) / without for with_, without in pairs)


def main():
    """Prints a line for each case. Ends with 1 if the MPI writer pays more than 1 %."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=pathlib.Path, help="libforebay_preload.so")
    parser.add_argument("--pairs", type=int, default=31)
    options = parser.parse_args()
    met = True
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        directory = pathlib.Path(name).resolve()
        print(f"{'writer':24} {'per call':>10} {'observer':>9}   {'middle half of the pairs':26} {'fastest runs':>12} {'a call':>8}")
        for title, mpi, bytes_, transfers in CASES:
            program = compile_writer(directory, mpi)
            if program is None:
                print(f"{title:24} left out: the compiler or MPI is missing")
                continue
            pairs = []
            for _ in range(options.pairs):
                order = [None, options.library.resolve()]
                random.shuffle(order)
                times = {bool(l): run(program, mpi, directory, bytes_, transfers, l) for l in order}
                pairs.append((times[True], times[False]))
            shares = sorted((a - b) / b for a, b in pairs)
            low, high = shares[len(shares) // 4], shares[-len(shares) // 4]
            each = statistics.median(b for _, b in pairs) / transfers * 1e6
            fastest = [min(times) for times in zip(*pairs)]
            least = (fastest[0] - fastest[1]) / fastest[1]
            cost = (fastest[0] - fastest[1]) / transfers * 1e9
            middle = f"{low:.2%} to {high:.2%}"
            print(f"{title:24} {each:7.2f} us {share(pairs):9.2%}   {middle:26} {least:12.2%} {cost:5.0f} ns")
            met = met and (not mpi or min(share(pairs), least) <= 0.01)
        writer = compile_writer(directory, False)
        if writer:
            paired_calls(writer, directory, options.library.resolve())
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
