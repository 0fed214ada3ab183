"""An MPI program that writes checkpoints to a shared file, and reports its I/O phases to Forebay.

    mpirun -n 4 python3 writer.py /pfs/checkpoint 3

Rank 0 speaks for the job. Without an agent the program runs as without Forebay.
"""

import contextlib
import sys

from mpi4py import MPI

import forebay

TRANSFER_BYTES = 1 << 20
TRANSFERS = 4


def open_job(comm):
    """Rank 0 has a job; None on the others, and without an agent."""
    if comm.rank != 0:
        return None
    try:
        return forebay.HpcJob("mpi-writer-py", qos=0.05, processes=comm.size)
    except OSError as error:
        print(f"no I/O phases are reported: {error}", file=sys.stderr)
        return None


def checkpoint(file, job, comm, block):
    """Every rank writes its blocks of the file."""
    all_bytes = comm.size * TRANSFERS * TRANSFER_BYTES
    with job.phase(bytes=all_bytes) if job else contextlib.nullcontext() as phase:
        for i in range(TRANSFERS):
            file.Write_at_all((i * comm.size + comm.rank) * TRANSFER_BYTES, block)
            if phase:
                phase.progress((i + 1) * comm.size * TRANSFER_BYTES)
        file.Sync()
        comm.Barrier()


def main():
    comm = MPI.COMM_WORLD
    path, phases = sys.argv[1], int(sys.argv[2])
    file = MPI.File.Open(comm, path, MPI.MODE_CREATE | MPI.MODE_WRONLY)
    job = open_job(comm)
    block = bytes([ord("a") + comm.rank % 26]) * TRANSFER_BYTES
    for _ in range(phases):
        checkpoint(file, job, comm, block)
    file.Close()
    if comm.rank == 0:
        print(f"{phases} phases written")
    if job:
        job.close()


main()
