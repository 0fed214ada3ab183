"""Measures what `forebay run` costs: cached reads, the start of a program, and other programs.

Beside each is the bound that the library cannot go below: the second system call of a read at the
position, and the one look at each file that is read.

Reads: one program reads a file through the tier and the same file on a tmpfs in turns, so the ratio
holds on a busy machine as well. Root mounts a tmpfs with huge pages for the twin, as the tier has;
others use /dev/shm, whose pages are small. Starts, and programs that touch no file of the PFS:
pairs of runs with the library and without it, in random order; these need a quiet machine.
"""

import argparse
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
CASES = [
    ("pread, 4 KiB", 4 << 10, 200_000, []),
    ("pread, 1 MiB", 1 << 20, 2_000, []),
    ("read on, 4 KiB", 4 << 10, 200_000, ["position"]),
    ("read on, 128 KiB", 128 << 10, 16_000, ["position"]),
    ("read on, 1 MiB", 1 << 20, 2_000, ["position"]),
]
FILE_BYTES = 256 << 20
# A mapped file may take a quarter of the tier, and must not have changed for a minute.
MAPPED_BYTES, MAPPED_CAPACITY, REST_S = 1 << 30, "4500MiB", 61
# Programs that touch no file of the PFS, and how many files they read; {} is a directory outside of
# it.
OTHERS = [
    ("gzip of 24 MB of text", 1, ["gzip", "-c", "{}/text"]),
    ("sort of 24 MB of text", 1, ["sort", "-o", "{}/sorted", "{}/text"]),
    ("tar of 2,000 files", 2_000, ["tar", "-cf", "{}/tar", "{}/tree"]),
    ("Python: hashes of 2,000 files, five times", 10_000, [sys.executable, "-c", "import hashlib, pathlib, sys\nfor _ in range(5):\n for path in pathlib.Path(sys.argv[1]).iterdir(): hashlib.sha256(path.read_bytes())", "{}/tree"]),
]


def main():
    """Prints a row for each case."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("forebay", type=pathlib.Path, help="the program; the library is beside it")
    arguments.add_argument("--library", type=pathlib.Path, help="the library, if it is elsewhere")
    arguments.add_argument("--runs", type=int, default=9, help="of each case of reads [default: %(default)s]")
    arguments.add_argument("--pairs", type=int, default=51, help="of runs of other programs; ten times as many starts [default: %(default)s]")
    arguments.add_argument("--maps", action="store_true", help="only mappings of a file of 1 GiB; takes 3 GiB of memory and a minute")
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
        mount = ["mount", "-t", "tmpfs", "-o", f"size={MAPPED_BYTES * 2},huge=within_size", "bare", bare]
        subprocess.run(mount, check=True)
        # As a PFS is: the library need not look at paths on other mounts.
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={MAPPED_BYTES * 2}", "pfs", pfs], check=True)
    try:
        compare(options, (forebay, environment), (pfs, program, bare / "twin"))
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", bare, pfs], check=False)


def compare(options, started, paths):
    """Writes both files, starts an agent, and runs the cases."""
    (forebay, environment), (pfs, program, twin) = started, paths
    block = os.urandom(1 << 20)
    for path in (pfs / "data", twin):
        with path.open("wb") as file:
            for at in range((MAPPED_BYTES if options.maps else FILE_BYTES) >> 20):
                file.write(at.to_bytes(8, "little") + block[8:])
    subprocess.run(["cc", "-O2", "-o", program, HERE / "intercept.c"], check=True)
    up = [forebay, "up", "--pfs", pfs, "--capacity", MAPPED_CAPACITY if options.maps else "600MiB"]
    subprocess.run(up, env=environment, check=True, stdout=subprocess.DEVNULL)
    try:
        subprocess.run([forebay, "load", pfs], env=environment, check=True, stdout=subprocess.DEVNULL)
        if options.maps:
            maps(options.runs, [forebay, "run", "--", program, pfs / "data", twin], environment)
            return
        print(f"| case | served | tmpfs | median ratio of {options.runs} runs | lowest | highest | bound |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for case in CASES:
            row(case, options.runs, [forebay, "run", "--", program, pfs / "data", twin], environment)
        library = options.library or forebay.parent / "libforebay_preload.so"
        loaded = {**environment, "LD_PRELOAD": str(library.resolve()), "FOREBAY_INTERCEPT_ROOTS": str(pfs)}
        starts(options.pairs * 10, [forebay, "run", "--"], library.resolve(), (loaded, environment))
        others(options.pairs, (loaded, environment), pfs.parent / "outside", program)
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
    ratios = sorted(served / bare for served, bare, _ in pairs)
    bound = statistics.median(least / bare for _, bare, least in pairs)
    served, bare, _ = (statistics.median(column) / 1e3 for column in zip(*pairs))
    middle = statistics.median(ratios)
    print(f"| {name} | {served:.2f} us | {bare:.2f} us | {middle:.2f} | {ratios[0]:.2f} | {ratios[-1]:.2f} | {bound:.2f} |")


def maps(runs, command, environment):
    """Prints how fast a mapped file is passed over, the first and the second time."""
    time.sleep(REST_S)
    out = subprocess.run([*command, "maps", str(runs)], env=environment, check=True, capture_output=True, text=True)
    print(f"| mapped file of 1 GiB, {runs} runs | served | tmpfs | median ratio | the PFS itself | median ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, line in zip(("mmap and first pass", "second pass"), out.stdout.splitlines()):
        served, bare, to_bare, pfs, to_pfs = map(float, line.split())
        rates = [f"{MAPPED_BYTES / time:.2f} GB/s" for time in (served, bare, pfs)]
        print(f"| {name} | {rates[0]} | {rates[1]} | {to_bare:.2f} | {rates[2]} | {to_pfs:.2f} |")


def starts(pairs, run, library, environments):
    """Prints what a start and an end take longer with the library, and by `forebay run`.

    `env` sets the library's variables and starts the program: what the start of one more program
    costs at least.
    """
    loaded, bare = environments
    env = ["env", f"LD_PRELOAD={library}", f"FOREBAY_INTERCEPT_ROOTS={loaded['FOREBAY_INTERCEPT_ROOTS']}"]
    print(f"\n| start of `true`, {pairs} pairs | without | median difference | middle half | processor time |")
    print("| --- | --- | --- | --- | --- |")
    for name, command, environment in (("the library", [], loaded), ("the library, by env", env, bare), ("forebay run", run, bare)):
        times = paired(pairs, ([*command, "true"], environment), (["true"], bare))
        low, middle, high = (value * 1e3 for value in quarters([with_[0] - without[0] for with_, without in times]))
        cpu = quarters([with_[1] - without[1] for with_, without in times])[1]
        without = statistics.median(without[0] for _, without in times)
        print(f"| {name} | {without * 1e3:.2f} ms | {middle:+.2f} ms | {low:+.2f} to {high:+.2f} ms | {cpu * 1e3:+.2f} ms |")


def others(pairs, environments, directory, program):
    """Prints what programs that touch no file of the PFS take longer with the library.

    The bound is one look at each file that they read.
    """
    loaded, bare = environments
    (directory / "tree").mkdir(parents=True)
    numbers = random.Random(1)
    (directory / "text").write_text("".join(f"{numbers.random()} a line of text\n" for _ in range(700_000)))
    for number in range(2000):
        (directory / "tree" / str(number)).write_bytes(numbers.randbytes(8000))
    look_s = float(subprocess.run([program, directory / "text"], check=True, capture_output=True, text=True).stdout) / 1e9
    print(f"\n| program, {pairs} pairs | without | median difference | middle half | fastest runs | processor time | bound |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, files, words in OTHERS:
        command = [word.replace("{}", str(directory)) for word in words]
        times = paired(pairs, (command, loaded), (command, bare))
        low, middle, high = quarters([with_[0] / without[0] - 1 for with_, without in times])
        cpu = quarters([with_[1] / without[1] - 1 for with_, without in times])[1]
        fastest = min(with_[0] for with_, _ in times) / min(without[0] for _, without in times) - 1
        without = statistics.median(without[0] for _, without in times)
        print(f"| {name} | {without * 1e3:.0f} ms | {middle:+.2%} | {low:+.2%} to {high:+.2%} | {fastest:+.2%} | {cpu:+.2%} | {files * look_s / without:+.2%} |")


def paired(pairs, first, second):
    """The times of each pair of runs, in random order."""
    times = []
    for _ in range(pairs):
        order = [0, 1]
        random.shuffle(order)
        took = {which: time_of(*(first, second)[which]) for which in order}
        times.append((took[0], took[1]))
    return times


def time_of(command, environment):
    """Seconds of a run, and of its processor time, which other programs disturb less."""
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    words = [str(word) for word in command]
    began = time.perf_counter()
    child = os.posix_spawnp(words[0], words, environment, file_actions=null)
    _, status, usage = os.wait4(child, 0)
    took = time.perf_counter() - began
    if status != 0:
        sys.exit(f"intercept: {' '.join(words)} failed")
    return took, usage.ru_utime + usage.ru_stime


def quarters(values):
    """The lower quartile, the median and the upper quartile."""
    return statistics.quantiles(values, n=4, method="inclusive")


if __name__ == "__main__":
    main()
