/*
 * An HPC job of the experiment: an MPI program whose rank 0 reads commands from its standard input
 * and whose ranks write one step for each.
 *
 *     writer JOB DIRECTORY FIRST
 *
 * A command is a line `BYTES DEADLINE_MS START SERVER...`: at START (seconds since 1970) the job
 * asks to write; then rank r writes BYTES to the file DIRECTORY/SERVER/N, where N is FIRST + r and
 * the servers take the ranks in turn. Rank 0 prints a line of JSON when the step is over. Each rank
 * has one request of 128 KiB under way, as a client that waits for its server, so a server divides
 * its bandwidth evenly over the ranks that write to it. The job reports its phases to Forebay.
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

enum { REQUEST_BYTES = 128 << 10, LINE_BYTES = 512, SERVERS_MAX = 64 };

static int rank, ranks, first;
static const char *directory;
static char *block;

static void fail(const char *what)
{
    fprintf(stderr, "writer: rank %d: %s: %s\n", rank, what, strerror(errno));
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void sleep_s(double seconds)
{
    if (seconds <= 0)
        return;
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Ranks that wait for each other leave the cores to those that write. */
static void wait_for(MPI_Request *request, double look_s)
{
    for (int done = 0; MPI_Test(request, &done, MPI_STATUS_IGNORE), !done;)
        sleep_s(look_s);
}

static void meet(void)
{
    MPI_Request request;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    wait_for(&request, 0.002);
}

struct step {
    uint64_t bytes, deadline_ms;
    double start_s;
    char servers[SERVERS_MAX][16];
    int count;
};

static int parse(char *line, struct step *step)
{
    char *rest = NULL;
    char *bytes = strtok_r(line, " \n", &rest), *deadline = strtok_r(NULL, " \n", &rest), *start = strtok_r(NULL, " \n", &rest);
    if (!start)
        return 0;
    step->bytes = strtoull(bytes, NULL, 10);
    step->deadline_ms = strtoull(deadline, NULL, 10);
    step->start_s = atof(start);
    step->count = 0;
    for (char *server; step->count < SERVERS_MAX && (server = strtok_r(NULL, " \n", &rest));)
        snprintf(step->servers[step->count++], sizeof step->servers[0], "%s", server);
    return step->count > 0;
}

static void file_of(const struct step *step, int of, char *path, size_t size)
{
    snprintf(path, size, "%s/%s/%d", directory, step->servers[of % step->count], first + of);
}

/* Where all ranks write, so that the job waits only for jobs that write there, too. */
static void announce(forebay_job *job, const struct step *step)
{
    char (*paths)[4096] = calloc((size_t)ranks, sizeof *paths);
    const char **names = calloc((size_t)ranks, sizeof *names);
    uint64_t *bytes = calloc((size_t)ranks, sizeof *bytes);
    if (!paths || !names || !bytes)
        fail("calloc");
    for (int i = 0; i < ranks; i++) {
        file_of(step, i, paths[i], sizeof paths[i]);
        names[i] = paths[i];
        bytes[i] = step->bytes;
    }
    if (forebay_job_writes_to(job, names, bytes, (size_t)ranks) != 0)
        fprintf(stderr, "writer: %s\n", forebay_last_error());
    free(paths);
    free(names);
    free(bytes);
}

static void write_step(forebay_job *job, const struct step *step)
{
    char path[4096];
    file_of(step, rank, path, sizeof path);
    int fd = open(path, O_WRONLY | O_DSYNC);
    if (fd < 0)
        fail(path);
    uint64_t all = step->bytes * (uint64_t)ranks;
    double asked = 0, begun = 0;
    if (rank == 0) {
        announce(job, step);
        sleep_s(step->start_s - now_s());
        asked = now_s();
        if (forebay_phase_begin(job, all, step->deadline_ms) != 0)
            fprintf(stderr, "writer: %s\n", forebay_last_error());
        begun = now_s();
    }
    meet();
    for (uint64_t at = 0; at < step->bytes; at += REQUEST_BYTES) {
        size_t size = step->bytes - at < REQUEST_BYTES ? (size_t)(step->bytes - at) : REQUEST_BYTES;
        if (pwrite(fd, block, size, (off_t)at) != (ssize_t)size)
            fail("pwrite");
        /* The others are as far, more or less. */
        if (rank == 0)
            forebay_phase_progress(job, (at + size) * (uint64_t)ranks);
    }
    meet();
    double ended = now_s();
    close(fd);
    if (rank != 0)
        return;
    if (forebay_phase_end(job) != 0)
        fprintf(stderr, "writer: %s\n", forebay_last_error());
    printf("{\"asked\": %.6f, \"begun\": %.6f, \"ended\": %.6f}\n", asked, begun, ended);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: writer JOB DIRECTORY FIRST\n");
        return 2;
    }
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    directory = argv[2];
    first = atoi(argv[3]);
    block = malloc(REQUEST_BYTES);
    if (!block)
        fail("malloc");
    memset(block, 'a' + rank % 26, REQUEST_BYTES);
    forebay_job *job = NULL;
    if (rank == 0) {
        job = forebay_job_open(argv[1], 50, (unsigned int)ranks, FOREBAY_JOB_SHARES);
        if (!job) {
            fprintf(stderr, "writer: no job: %s\n", forebay_last_error());
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        printf("ready\n");
        fflush(stdout);
    }
    for (;;) {
        char line[LINE_BYTES] = "";
        if (rank == 0 && !fgets(line, sizeof line, stdin))
            line[0] = '\0';
        MPI_Request request;
        MPI_Ibcast(line, sizeof line, MPI_CHAR, 0, MPI_COMM_WORLD, &request);
        wait_for(&request, 0.01);
        struct step step;
        if (!parse(line, &step))
            break;
        write_step(job, &step);
    }
    forebay_job_close(job);
    free(block);
    MPI_Finalize();
    return 0;
}
