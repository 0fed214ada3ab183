"""An MPI program whose ranks write each checkpoint to one shared HDF5 file.

    mpirun -n 2 forebay run --write-back /pfs/run --keep 2 -- python3 hdf5.py /pfs/run 400
    mpirun -n 2 forebay run --write-back /pfs/run --keep 2 -- python3 hdf5.py /pfs/run 400 --from $(forebay checkpoint newest /pfs/run)

h5py must be built with MPI (Debian: python3-h5py-mpi). Nothing here knows of Forebay.
"""

import argparse
import os

import h5py
import numpy as np
from mpi4py import MPI

CELLS = 100_000
EVERY = 20


def save(comm, path, step, cells):
    with h5py.File(path, "w", driver="mpio", comm=comm) as file:
        data = file.create_dataset("cells", (comm.size * CELLS,), "f8")
        data[comm.rank * CELLS : (comm.rank + 1) * CELLS] = cells
        file.attrs["step"] = step


def load(comm, path):
    with h5py.File(path, "r", driver="mpio", comm=comm) as file:
        return int(file.attrs["step"]), file["cells"][comm.rank * CELLS : (comm.rank + 1) * CELLS]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("steps", type=int)
    parser.add_argument("--from", dest="start")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD
    step, cells = load(comm, args.start) if args.start else (0, np.arange(CELLS, dtype="f8") + comm.rank)
    if comm.rank == 0:
        print(f"begins at step {step}", flush=True)
    while step < args.steps:
        for _ in range(20):
            cells = np.sqrt(cells * 1.01 + 1.0) + comm.rank
        step += 1
        if step % EVERY == 0:
            save(comm, os.path.join(args.directory, f"{step}.h5"), step, cells)
    total = comm.reduce(cells.sum())
    if comm.rank == 0:
        print(f"ends at step {step} with {total!r}", flush=True)


main()
