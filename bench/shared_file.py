"""One file that MPI ranks on two nodes write: straight to a file system, and with write-back.

    python3 bench/shared_file.py FOREBAY [--mib 64] [--ranks 4] [--runs 5] [--rate 60MB/s]

Needs root, FUSE, mpirun and mpi4py. The nodes are two agents on this machine, the file system is one
of the lab with four servers of --rate each. Each rank writes --mib with MPI-IO, by segments of 1 MiB
or in strides of 47,008 bytes, and then compares what another rank has written. Straight, the file
system's client may keep what the memory of this machine takes. With write-back on one node, all
ranks write to its memory; on two, those of the second are guests of the first. Prints medians
and ratios.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import write_back

sys.path.append(str(Path(__file__).resolve().parents[1] / "python/demo"))

import lab  # noqa: E402

RANK = """
import sys, time
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
path, mib, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
block = 1 << 20 if how == "segmented" else 47008
count = (mib << 20) // block
def at(rank, i):
    return (rank * count + i) * block if how == "segmented" else (i * comm.size + rank) * block
data = np.full(block, comm.rank + 1, dtype="u1")
comm.Barrier()
began = time.perf_counter()
file = MPI.File.Open(comm, path, MPI.MODE_CREATE | MPI.MODE_WRONLY)
for i in range(count):
    file.Write_at(at(comm.rank, i), data)
file.Close()
comm.Barrier()
took = time.perf_counter() - began
file = MPI.File.Open(comm, path, MPI.MODE_RDONLY)
assert file.Get_size() == count * block * comm.size, file.Get_size()
other = (comm.rank + 1) % comm.size
for i in range(0, count, 5):
    file.Read_at(at(other, i), data)
    assert (data == other + 1).all(), (comm.rank, i)
file.Close()
if comm.rank == 0:
    print(count * block * comm.size / took / 1e6)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("forebay")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rate", default="60MB/s")
    args = parser.parse_args()
    forebay = os.path.abspath(args.forebay)
    python = next((p for p in ("/usr/bin/python3", sys.executable) if not subprocess.run([p, "-c", "import mpi4py"], capture_output=True).returncode), None)
    if python is None:
        sys.exit("shared_file.py: needs mpi4py (Debian: python3-mpi4py)")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        backing = Path(name) / "backing"
        backing.mkdir()
        with lab.slow_pfs(forebay, backing, Path(name) / "pfs", 4, args.rate, attr_ttl="0s") as pfs:
            with write_back.cluster(forebay, str(pfs), "ab", "2GiB", in_directory=False) as (place, _):
                with open(f"{place}/rank.sh", "w") as script:
                    script.write(
                        f'node=a; [ "$1" = 2 ] && [ $((OMPI_COMM_WORLD_RANK % 2)) = 1 ] && node=b\nshift\n'
                        f'FOREBAY_SOCKET={place}/$node/agent.sock exec {forebay} run --detach --write-back {pfs} -- "$@"\n'
                    )
                measure(args, python, place, pfs, forebay)


def measure(args, python, place, pfs, forebay) -> None:
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(args.ranks)]
    nodes = {f"{place}/{node}/agent.sock" for node in "ab"}
    ways = {"straight": [], "write-back on one node": ["sh", f"{place}/rank.sh", "1"], "write-back on two nodes": ["sh", f"{place}/rank.sh", "2"]}
    for how in ("segmented", "strided"):
        found: dict[str, list[float]] = {way: [] for way in ways}
        for run in range(args.runs):
            for number, (way, wrapper) in enumerate(ways.items()):
                path = f"{pfs}/{how}-{run}-{number}"
                done = subprocess.run([*mpirun, *wrapper, python, "-c", RANK, path, str(args.mib), how], check=True, capture_output=True, text=True)
                found[way].append(float(done.stdout.split()[-1]))
                for node in nodes:
                    subprocess.run([forebay, "--socket", node, "sync", "--quiet"], check=True, stdout=subprocess.DEVNULL)
                os.unlink(path)
        straight = statistics.median(found["straight"])
        print(f"{how}: {args.ranks} ranks, {args.mib} MiB each, MB/s")
        for way, values in found.items():
            middle = statistics.median(values)
            print(f"  {way:24} {middle:7.0f} ({min(values):.0f} to {max(values):.0f})   {middle / straight:5.2f} of straight")


main()
