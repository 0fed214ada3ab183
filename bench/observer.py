"""Measures what the observer costs a writer, in paired runs.

Each pair is one run with the library preloaded and one without, in random order, on a tmpfs, which
is faster than any PFS: there the share of the observer is largest. The result is the median over
the pairs of the difference of their times, as a share of the time without.
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
    command = [*launch, program, directory / "data", str(bytes_), str(transfers)]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    if library:
        counted = region.read_bytes()
        written = sum(
            int.from_bytes(counted[at : at + 8], sys.byteorder) for at in range(4096 + 8, REGION_BYTES, 128)
        )
        expected = bytes_ * transfers * (2 if mpi else 1)
        assert written == expected, f"the observer has counted {written} of {expected} bytes"
    return float(out.stdout)


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
        print(f"{'writer':24} {'per call':>10} {'observer':>9}   middle half of the pairs")
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
            print(f"{title:24} {each:7.2f} us {share(pairs):9.2%}   {low:.2%} to {high:.2%}")
            met = met and (not mpi or share(pairs) <= 0.01)
    return int(not met)


if __name__ == "__main__":
    sys.exit(main())
