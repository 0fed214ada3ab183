/*
 * Writes as an HPC job does and prints the seconds that its I/O took: phases of `transfers` writes
 * of `bytes` each, through MPI-IO if it is compiled with it, else through pwrite.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

int main(int count, char **arguments)
{
	if (count != 4) {
		fprintf(stderr, "usage: observer FILE BYTES TRANSFERS\n");
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
