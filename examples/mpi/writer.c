/*
 * An MPI program that writes checkpoints to a shared file, and reports its I/O phases to Forebay.
 *
 *     mpicc writer.c $(pkg-config --cflags --libs forebay)
 *     mpirun -n 4 ./a.out /pfs/checkpoint 3
 *
 * Rank 0 speaks for the job. Where the coordinator puts the steps of jobs in order, rank 0 waits
 * for them, and the other ranks for rank 0. Without an agent the program runs as without Forebay.
 */
#include <forebay.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRANSFER_BYTES = 1 << 20, TRANSFERS = 4 };

/* Rank 0 has a job; NULL on the others, and without an agent. */
static forebay_job *open_job(int rank, int ranks, const char *path)
{
    if (rank != 0)
        return NULL;
    forebay_job *job = forebay_job_open("mpi-writer", 50, (unsigned int)ranks, FOREBAY_JOB_SHARES);
    if (!job) {
        fprintf(stderr, "no I/O phases are reported: %s\n", forebay_last_error());
        return NULL;
    }
    uint64_t bytes = (uint64_t)ranks * TRANSFERS * TRANSFER_BYTES;
    if (forebay_job_writes_to(job, &path, &bytes, 1) != 0)
        fprintf(stderr, "%s\n", forebay_last_error());
    return job;
}

/* One checkpoint: every rank writes its blocks of the file. */
static void checkpoint(MPI_File file, forebay_job *job, int rank, int ranks, char *block)
{
    uint64_t all = (uint64_t)ranks * TRANSFERS * TRANSFER_BYTES;
    if (job && forebay_phase_begin(job, all, 0) != 0)
        fprintf(stderr, "%s\n", forebay_last_error());
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < TRANSFERS; i++) {
        MPI_Offset at = ((MPI_Offset)i * ranks + rank) * TRANSFER_BYTES;
        MPI_File_write_at_all(file, at, block, TRANSFER_BYTES, MPI_BYTE, MPI_STATUS_IGNORE);
        if (job)
            forebay_phase_progress(job, (uint64_t)(i + 1) * ranks * TRANSFER_BYTES);
    }
    MPI_File_sync(file);
    MPI_Barrier(MPI_COMM_WORLD);
    if (job && forebay_phase_end(job) != 0)
        fprintf(stderr, "%s\n", forebay_last_error());
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *path = argc > 1 ? argv[1] : "checkpoint";
    int phases = argc > 2 ? atoi(argv[2]) : 3;
    char *block = malloc(TRANSFER_BYTES);
    if (!block)
        MPI_Abort(MPI_COMM_WORLD, 1);
    memset(block, 'a' + rank % 26, TRANSFER_BYTES);
    MPI_File file;
    if (MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file) != MPI_SUCCESS)
        MPI_Abort(MPI_COMM_WORLD, 1);
    forebay_job *job = open_job(rank, ranks, path);
    for (int phase = 0; phase < phases; phase++)
        checkpoint(file, job, rank, ranks, block);
    if (rank == 0)
        printf("%d phases written\n", phases);
    MPI_File_close(&file);
    forebay_job_close(job);
    free(block);
    MPI_Finalize();
    return 0;
}
