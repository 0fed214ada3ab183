/*
 * Writes as NAS BT-IO does: q * q ranks write the solution on a cube of 64 points a side, five
 * doubles a point, one step after the other. Each rank has q cells, one in each layer of the cube.
 *
 *     btio simple|full FILE FILE_BYTES SECONDS
 *
 * simple: each rank writes the lines of its cells, one request each. full: all ranks write a step
 * by one collective call. The steps begin at the start of the file again when it has FILE_BYTES.
 * Rank 0 prints a line of JSON for each step, which ends when the data is on the file system.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 64, VALUES = 5, POINT_BYTES = VALUES * sizeof(double), STEP_BYTES = SIDE * SIDE * SIDE * POINT_BYTES };

static int rank, q, cell;
static MPI_File file;
/* A rank uses its share of it. */
static double data[STEP_BYTES / sizeof(double)];

/* Where the cell of a layer begins, as NAS BT distributes them; layers are z. */
static void place(int layer, int start[3])
{
    start[0] = layer * cell;
    start[1] = (rank / q + q - layer) % q * cell;
    start[2] = (rank % q + layer) % q * cell;
}

static long point(int z, int y, int x)
{
    return ((long)z * SIDE + y) * SIDE + x;
}

/* Each value is the number of its place in the file, so that both ways write the same. */
static void fill(void)
{
    double *next = data;
    for (int layer = 0, start[3]; layer < q; layer++) {
        place(layer, start);
        for (int z = 0; z < cell; z++)
            for (int y = 0; y < cell; y++)
                for (long x = 0, first = point(start[0] + z, start[1] + y, start[2]) * VALUES; x < cell * VALUES; x++)
                    *next++ = (double)(first + x);
    }
}

static void write_lines(MPI_Offset base)
{
    const double *next = data;
    for (int layer = 0, start[3]; layer < q; layer++) {
        place(layer, start);
        for (int z = 0; z < cell; z++)
            for (int y = 0; y < cell; y++, next += cell * VALUES)
                MPI_File_write_at(file, base + point(start[0] + z, start[1] + y, start[2]) * POINT_BYTES, next, cell * VALUES, MPI_DOUBLE, MPI_STATUS_IGNORE);
    }
}

/* The cells of this rank in the cube. */
static MPI_Datatype cells(void)
{
    MPI_Datatype parts[q], all, values;
    MPI_Aint displacements[q];
    int counts[q], start[3];
    MPI_Type_contiguous(VALUES, MPI_DOUBLE, &values);
    for (int layer = 0; layer < q; layer++) {
        place(layer, start);
        MPI_Type_create_subarray(3, (int[]){SIDE, SIDE, SIDE}, (int[]){cell, cell, cell}, start, MPI_ORDER_C, values, &parts[layer]);
        displacements[layer] = 0;
        counts[layer] = 1;
    }
    MPI_Type_create_struct(q, counts, displacements, parts, &all);
    MPI_Type_commit(&all);
    return all;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    while (q * q < ranks)
        q++;
    if (argc != 5 || q * q != ranks || SIDE % q != 0) {
        fprintf(stderr, "usage: btio simple|full FILE FILE_BYTES SECONDS, with a square number of ranks whose root divides %d\n", SIDE);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    cell = SIDE / q;
    int full = strcmp(argv[1], "full") == 0, count = STEP_BYTES / ranks / (int)sizeof(double);
    long steps = atol(argv[3]) / STEP_BYTES > 0 ? atol(argv[3]) / STEP_BYTES : 1;
    double began = MPI_Wtime(), seconds = atof(argv[4]);
    fill();
    MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_ARE_FATAL);
    MPI_Datatype view = cells();
    MPI_File_open(MPI_COMM_WORLD, argv[2], MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file);
    for (long step = 0, more = 1; more; step++) {
        MPI_Offset base = step % steps * STEP_BYTES;
        MPI_Barrier(MPI_COMM_WORLD);
        double from = MPI_Wtime();
        if (full) {
            MPI_File_set_view(file, base, MPI_DOUBLE, view, "native", MPI_INFO_NULL);
            MPI_File_write_at_all(file, 0, data, count, MPI_DOUBLE, MPI_STATUS_IGNORE);
        } else
            write_lines(base);
        MPI_File_sync(file);
        MPI_Barrier(MPI_COMM_WORLD);
        double now = MPI_Wtime();
        if (rank == 0 && printf("{\"bytes\": %d, \"seconds\": %.6f}\n", STEP_BYTES, now - from) > 0)
            fflush(stdout);
        more = now - began < seconds;
        MPI_Bcast(&more, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    }
    MPI_File_close(&file);
    MPI_Finalize();
    return 0;
}
