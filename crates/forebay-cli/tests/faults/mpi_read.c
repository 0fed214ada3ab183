/*
 * Reads a file whose bytes are known by MPI-IO, and says "right" if all were: each rank by itself,
 * all together, at its pointer, and by a view of interleaved blocks.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK = 10000, BLOCKS = 20 };

static unsigned char byte(long i) { return (unsigned char)(((unsigned long)i * 2654435761ul) >> 13); }

static void check(const unsigned char *bytes, long at, long n, const char *what)
{
	for (long i = 0; i < n; i++)
		if (bytes[i] != byte(at + i)) {
			fprintf(stderr, "%s: byte %ld is wrong\n", what, at + i);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
}

static void must(int result, const char *what)
{
	if (result != MPI_SUCCESS) {
		fprintf(stderr, "%s failed\n", what);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

int main(int argc, char **argv)
{
	int rank, ranks;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	static unsigned char bytes[BLOCK * BLOCKS];
	MPI_File file;
	must(MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_RDONLY, MPI_INFO_NULL, &file), "open");
	MPI_Offset size;
	must(MPI_File_get_size(file, &size), "get_size");
	for (int i = 0; i < BLOCKS; i++) {
		long at = ((long)i * ranks + rank) * BLOCK;
		must(MPI_File_read_at(file, at, bytes, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE), "read_at");
		check(bytes, at, BLOCK, "read_at");
		must(MPI_File_read_at_all(file, at, bytes, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE), "read_at_all");
		check(bytes, at, BLOCK, "read_at_all");
	}
	must(MPI_File_seek(file, rank * 1000L, MPI_SEEK_SET), "seek");
	for (long at = rank * 1000L, i = 0; i < 3; at += BLOCK, i++) {
		must(MPI_File_read(file, bytes, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE), "read");
		check(bytes, at, BLOCK, "read");
	}
	/* Every rank sees each ranks-th block only. */
	MPI_Datatype view;
	must(MPI_Type_vector(BLOCKS, BLOCK, ranks * BLOCK, MPI_BYTE, &view), "vector");
	must(MPI_Type_commit(&view), "commit");
	must(MPI_File_set_view(file, (MPI_Offset)rank * BLOCK, MPI_BYTE, view, "native", MPI_INFO_NULL), "set_view");
	must(MPI_File_read_all(file, bytes, BLOCK * BLOCKS, MPI_BYTE, MPI_STATUS_IGNORE), "read_all");
	for (int i = 0; i < BLOCKS; i++)
		check(bytes + i * BLOCK, ((long)i * ranks + rank) * BLOCK, BLOCK, "read_all");
	must(MPI_File_close(&file), "close");
	MPI_Type_free(&view);
	if (rank == 0)
		puts("right");
	MPI_Finalize();
	return size < (MPI_Offset)BLOCK * BLOCKS * ranks;
}
