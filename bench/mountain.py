"""The storage mountain of a node: how fast a program reads, over the size of its data and how much it skips.

    python3 bench/mountain.py FOREBAY [--capacity-mib 256] [--rate 200MB/s] [--reads 4096] [--out target/mountain]

After Xuan et al., ICPP-W 2015 (two-level storage). A program under `forebay run` reads 256 KiB,
skips some bytes, and so on through files of 32 MiB, after a first pass that has filled the tier.
The slow file system of the lab is the PFS, at `--rate` in all. Each cell is the rate of the bytes
read in the second pass, or in as much of it as `--reads` reads are. Writes mountain.csv and, where
matplotlib is installed, mountain.png. Needs root.
"""

import argparse
import csv
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "python/demo"))

import lab  # noqa: E402

SERVERS = 4
FILE_MIB = 32
BLOCK = 256 << 10
SIZES_IN_TIERS = (1 / 8, 1 / 4, 1 / 2, 3 / 4, 1, 3 / 2, 2, 4)
SKIPS_KIB = (0, 256, 1024, 4096, 16384)

READER = """
import itertools, os, sys, time
skip, most = int(sys.argv[1]), int(sys.argv[2])
block, done, buffer = 256 << 10, 0, bytearray(256 << 10)
began = time.perf_counter()
for path in sys.argv[3:]:
    fd = os.open(path, os.O_RDONLY)
    at, end = 0, os.fstat(fd).st_size
    while at < end and done < most:
        assert os.preadv(fd, [buffer], at) == block
        at += block + skip
        done += 1
    os.close(fd)
print(done * block / (time.perf_counter() - began))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("forebay", type=Path)
    parser.add_argument("--capacity-mib", type=int, default=256)
    parser.add_argument("--rate", default="200MB/s", help="of the PFS in all, in MB/s")
    parser.add_argument("--reads", type=int, default=4096, help="most reads in a cell")
    parser.add_argument("--out", type=Path, default=Path("target/mountain"))
    args = parser.parse_args()
    forebay = args.forebay.resolve()
    args.out.mkdir(parents=True, exist_ok=True)
    sizes = [max(FILE_MIB, round(args.capacity_mib * part) // FILE_MIB * FILE_MIB) for part in SIZES_IN_TIERS]
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="forebay-mountain-") as place:
        place = Path(place)
        (place / "backing").mkdir()
        rate = float(args.rate.removesuffix("MB/s")) / SERVERS
        with lab.slow_pfs(forebay, place / "backing", place / "pfs", SERVERS, f"{rate}MB/s", attr_ttl="0s") as pfs:
            files = [f"{pfs}/{number:03}" for number in range(max(sizes) // FILE_MIB)]
            for name in files:
                (place / "backing" / os.path.basename(name)).write_bytes(os.urandom(1 << 20) * FILE_MIB)
            with lab.agent(forebay, pfs, place / "state", args.capacity_mib << 20) as socket:
                env = {**os.environ, "FOREBAY_SOCKET": str(socket)}
                # Until the agent may keep what was written just now.
                subprocess.run([forebay, "load", *files[:2]], env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                cells = measure(forebay, env, args, files, sizes)
    with open(args.out / "mountain.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["data_mib", "skip_kib", "bytes_per_s"])
        rows.writerows([size, skip, round(rate)] for (size, skip), rate in cells.items())
    print(f"tier of {args.capacity_mib} MiB, PFS of {args.rate}; MB/s; wrote {args.out}/mountain.csv")
    print("| data, MiB | " + " | ".join(f"skip {skip} KiB" for skip in SKIPS_KIB) + " |")
    print("| --- |" + " --- |" * len(SKIPS_KIB))
    for size in sizes:
        print(f"| {size} | " + " | ".join(f"{cells[size, skip] / 1e6:,.0f}" for skip in SKIPS_KIB) + " |")
    plot(cells, sizes, args)


def measure(forebay, env, args, files, sizes):
    """Bytes in a second, by size in MiB and skip in KiB."""
    def reader(skip, reads, of):
        command = [forebay, "run", "--quiet", "--", sys.executable, "-c", READER, str(skip << 10), str(reads), *of]
        return float(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout)

    cells = {}
    for done, (size, skip) in enumerate(itertools.product(sizes, SKIPS_KIB), 1):
        print(f"\rcell {done} of {len(sizes) * len(SKIPS_KIB)}", end="", file=sys.stderr, flush=True)
        of = files[:size // FILE_MIB]
        if skip == SKIPS_KIB[0]:
            subprocess.run([forebay, "evict", "--all"], env=env, check=True, stdout=subprocess.DEVNULL)
            reader(0, 1 << 40, of)
        cells[size, skip] = reader(skip, args.reads, of)
    print(file=sys.stderr)
    return cells


def plot(cells, sizes, args):
    """The mountain, if it can be drawn."""
    try:
        import matplotlib
        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        import numpy as np
    except ImportError:
        print("no plot: matplotlib is not installed; target/venv has it after `make test-python`, or `pip install matplotlib`")
        return
    figure = plt.figure(figsize=(8, 5.5))
    axes = figure.add_subplot(projection="3d")
    x, y = np.meshgrid(range(len(sizes)), range(len(SKIPS_KIB)), indexing="ij")
    height = np.array([[cells[size, skip] / 1e9 for skip in SKIPS_KIB] for size in sizes])
    axes.plot_surface(x, y, height, cmap="viridis", edgecolor="#00000040")
    axes.set_xticks(range(len(sizes)), sizes, fontsize=8)
    axes.set_yticks(range(len(SKIPS_KIB)), SKIPS_KIB, fontsize=8)
    axes.set_xlabel("data, MiB")
    axes.set_ylabel("skip, KiB")
    axes.set_zlabel("GB/s")
    axes.set_title(f"Reads of 256 KiB: tier of {args.capacity_mib} MiB over a PFS of {args.rate}")
    axes.view_init(elev=28, azim=35)
    figure.savefig(args.out / "mountain.png", dpi=120)
    print(f"wrote {args.out}/mountain.png")


if __name__ == "__main__":
    if os.geteuid() or not shutil.which("mount"):
        sys.exit("mountain: needs root")
    main()
