/*
 * The HPC job of the experiment: an MPI program that computes and writes a checkpoint, again and
 * again, as IOR does: every rank writes its share in transfers of 1 MiB.
 *
 *     writer -b MIB -c SECONDS -n PHASES -r REPORT -s STOP [-y TRANSFERS] [-a API]
 *            [-j JOB -q PERMILLE] [-d MS] [-f] DIRECTORY
 *
 * With -f, each phase writes its files anew, in turn two sets of them, as jobs keep checkpoints.
 * With -y, a rank syncs after so many transfers: clients of parallel file systems buffer what is
 * written, so only what was synced is progress. Compute is sleep, so that the job disturbs others
 * by its I/O alone. With -j, rank 0 reports the phases to Forebay; without, the job is one that
 * nobody has changed. It ends after so many phases, or at the first that would begin when the file
 * STOP exists. Rank 0 appends a line of JSON to REPORT for each phase.
 */
#include <errno.h>
#include <fcntl.h>
#include <forebay.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TRANSFER_BYTES = 1 << 20 };

enum api { POSIX, MPIIO, COLLECTIVE };

static struct {
    enum api api;
    int transfers, sync_transfers, phases, anew;
    double compute_s;
    const char *report, *stop, *job, *directory;
    unsigned int allowance_permille;
    uint64_t deadline_ms;
} options = {.phases = 1 << 30};

static int rank, ranks, fd = -1;
static MPI_File shared;
static char *block;

static void fail(const char *what)
{
    fprintf(stderr, "writer: rank %d: %s: %s\n", rank, what, strerror(errno));
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void sleep_s(double seconds)
{
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

/* A rank that waits in MPI_Barrier keeps a core busy, which those that still write may need. */
static void meet(void)
{
    MPI_Request request;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    for (int done = 0; !done; sleep_s(0.001))
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void transfer(int i)
{
    if (options.api == POSIX) {
        for (size_t done = 0; done < TRANSFER_BYTES;) {
            ssize_t n = pwrite(fd, block + done, TRANSFER_BYTES - done, (off_t)i * TRANSFER_BYTES + (off_t)done);
            if (n < 0)
                fail("pwrite");
            done += (size_t)n;
        }
        return;
    }
    MPI_Offset at = ((MPI_Offset)i * ranks + rank) * TRANSFER_BYTES;
    int failed = options.api == MPIIO ? MPI_File_write_at(shared, at, block, TRANSFER_BYTES, MPI_BYTE, MPI_STATUS_IGNORE)
                                      : MPI_File_write_at_all(shared, at, block, TRANSFER_BYTES, MPI_BYTE, MPI_STATUS_IGNORE);
    if (failed != MPI_SUCCESS)
        fail("MPI_File_write_at");
}

static void synced(void)
{
    if (options.api == POSIX ? fdatasync(fd) != 0 : MPI_File_sync(shared) != MPI_SUCCESS)
        fail("sync");
}

/* Files in the order of ranks, so that a file system that uses its servers in turn uses all. */
static void create(void)
{
    char path[4096];
    if (options.api != POSIX) {
        snprintf(path, sizeof path, "%s/shared", options.directory);
        if (MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &shared) != MPI_SUCCESS)
            fail(path);
        return;
    }
    for (int turn = 0; turn < ranks; turn++) {
        if (turn == rank) {
            snprintf(path, sizeof path, "%s/rank-%d", options.directory, rank);
            fd = open(path, O_CREAT | O_WRONLY, 0644);
            if (fd < 0)
                fail(path);
            transfer(0);
            synced();
        }
        meet();
    }
}

static void open_set(int number)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/set-%d.rank-%d", options.directory, number % 2, rank);
    fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    if (fd < 0)
        fail(path);
}

static void phase(forebay_job *job, int number)
{
    uint64_t each = (uint64_t)ranks * TRANSFER_BYTES;
    meet();
    double began = now_s();
    if (options.anew)
        open_set(number);
    if (job && forebay_phase_begin(job, each * (uint64_t)options.transfers, options.deadline_ms) != 0)
        fprintf(stderr, "writer: %s\n", forebay_last_error());
    for (int i = 0; i < options.transfers; i++) {
        transfer(i);
        if (options.sync_transfers && (i + 1) % options.sync_transfers == 0) {
            synced();
            if (job)
                forebay_phase_progress(job, each * (uint64_t)(i + 1));
        }
    }
    synced();
    if (options.anew && close(fd) != 0)
        fail("close");
    meet();
    double ended = now_s();
    if (job && forebay_phase_end(job) != 0)
        fprintf(stderr, "writer: %s\n", forebay_last_error());
    if (rank != 0)
        return;
    FILE *report = fopen(options.report, "a");
    if (!report)
        fail(options.report);
    fprintf(report, "{\"began\": %.6f, \"ended\": %.6f, \"bytes\": %llu}\n", began, ended,
            (unsigned long long)(each * (uint64_t)options.transfers));
    if (fclose(report) != 0)
        fail(options.report);
}

static void parse(int argc, char **argv)
{
    const char *apis[] = {"posix", "mpiio", "collective"};
    for (int option; (option = getopt(argc, argv, "a:b:c:d:fj:n:q:r:s:y:")) != -1;) {
        switch (option) {
        case 'a':
            for (options.api = POSIX; options.api <= COLLECTIVE && strcmp(optarg, apis[options.api]) != 0;)
                options.api++;
            break;
        case 'b': options.transfers = atoi(optarg); break;
        case 'c': options.compute_s = atof(optarg); break;
        case 'd': options.deadline_ms = strtoull(optarg, NULL, 10); break;
        case 'f': options.anew = 1; break;
        case 'j': options.job = optarg; break;
        case 'n': options.phases = atoi(optarg); break;
        case 'q': options.allowance_permille = (unsigned int)atoi(optarg); break;
        case 'r': options.report = optarg; break;
        case 's': options.stop = optarg; break;
        case 'y': options.sync_transfers = atoi(optarg); break;
        default: exit(2);
        }
    }
    options.directory = argv[optind];
    if (!options.directory || !options.report || !options.stop || options.transfers < 1 || options.api > COLLECTIVE || (options.anew && options.api != POSIX)) {
        fprintf(stderr, "usage: writer -b MIB -c SECONDS -n PHASES -r REPORT -s STOP [-a posix|mpiio|collective] [-f] [-j JOB -q PERMILLE] [-d MS] DIR\n");
        exit(2);
    }
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    block = malloc(TRANSFER_BYTES);
    if (!block)
        fail("malloc");
    memset(block, 'a' + rank % 26, TRANSFER_BYTES);
    if (!options.anew)
        create();
    forebay_job *job = NULL;
    if (rank == 0 && options.job) {
        job = forebay_job_open(options.job, options.allowance_permille, (unsigned int)ranks, 0);
        if (!job) {
            fprintf(stderr, "writer: no I/O phases are reported: %s\n", forebay_last_error());
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    for (int i = 0; i < options.phases; i++) {
        int stops = rank == 0 && access(options.stop, F_OK) == 0;
        MPI_Bcast(&stops, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (stops)
            break;
        phase(job, i);
        sleep_s(options.compute_s);
    }
    forebay_job_close(job);
    if (options.api != POSIX)
        MPI_File_close(&shared);
    free(block);
    MPI_Finalize();
    return 0;
}
