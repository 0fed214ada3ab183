/*
 * Writes as an HPC job does and prints the seconds that its I/O took: phases of `transfers` writes
 * of `bytes` each, through MPI-IO if it is compiled with it, else through pwrite.
 *
 * With a fourth argument, each write is done twice: through the C library, where a preloaded
 * library sees it, and past it, as a bare system call. Prints the median nanoseconds of each.
 * Calls that follow each other meet the same neighbours, so this holds on a busy machine as well.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#ifdef WITH_MPI
#include <mpi.h>
#endif

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

#ifndef WITH_MPI
static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static int paired(const char *path, const char *block, size_t bytes, size_t transfers)
{
	int fd = open(path, O_WRONLY | O_CREAT, 0600);
	double *times[2] = {malloc(transfers * sizeof(double)), malloc(transfers * sizeof(double))};
	for (size_t i = 0; i < transfers; i++) {
		for (int k = 0; k < 2; k++) {
			/* Which is first alternates: the second finds the page warm. */
			int bare = (int)((i + k) % 2);
			off_t at = (off_t)(i % 64 * bytes);
			double begin = now();
			ssize_t n = bare ? syscall(SYS_pwrite64, fd, block, bytes, at) : pwrite(fd, block, bytes, at);
			times[bare][i] = now() - begin;
			if (n != (ssize_t)bytes)
				return 1;
		}
	}
	for (int k = 0; k < 2; k++)
		qsort(times[k], transfers, sizeof(double), by_value);
	printf("%.1f %.1f\n", times[0][transfers / 2] * 1e9, times[1][transfers / 2] * 1e9);
	return 0;
}
#endif

int main(int count, char **arguments)
{
	if (count != 4 && count != 5) {
		fprintf(stderr, "usage: observer FILE BYTES TRANSFERS [paired]\n");
		return 2;
	}
	size_t bytes = strtoull(arguments[2], NULL, 10), transfers = strtoull(arguments[3], NULL, 10);
	char *block = malloc(bytes);
	memset(block, 7, bytes);
	double begin;
#ifdef WITH_MPI
	int rank, ranks;
	MPI_File file;
	MPI_Init(&count, &arguments);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (MPI_File_open(MPI_COMM_WORLD, arguments[1], MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file))
		return 1;
	MPI_Barrier(MPI_COMM_WORLD);
	begin = now();
	for (size_t i = 0; i < transfers; i++)
		if (MPI_File_write_at(file, (MPI_Offset)((i % 64 * ranks + rank) * bytes), block, (int)bytes, MPI_BYTE, MPI_STATUS_IGNORE))
			return 1;
	double own = now() - begin, all;
	MPI_Reduce(&own, &all, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	MPI_File_close(&file);
	if (rank == 0)
		printf("%.9f\n", all);
	MPI_Finalize();
#else
	if (count == 5)
		return paired(arguments[1], block, bytes, transfers);
	int fd = open(arguments[1], O_WRONLY | O_CREAT, 0600);
	begin = now();
	for (size_t i = 0; i < transfers; i++)
		if (pwrite(fd, block, bytes, (off_t)(i % 64 * bytes)) != (ssize_t)bytes)
			return 1;
	printf("%.9f\n", now() - begin);
	close(fd);
#endif
	free(block);
	return 0;
}
