/*
 * Compares a read that the preloaded library serves with the same read of a file on a tmpfs by a
 * bare system call: intercept FILE TWIN BYTES READS [position]. With `position`, both read on from
 * where they are, else at pseudo-random places. The two alternate, so they meet the same
 * neighbours. Prints the median nanoseconds of each.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int count, char **arguments)
{
	if (count < 5)
		return 2;
	int served = open(arguments[1], O_RDONLY), twin = open(arguments[2], O_RDONLY), on = count > 5;
	size_t bytes = strtoull(arguments[3], NULL, 10), reads = strtoull(arguments[4], NULL, 10);
	double *times[2] = {malloc(reads * sizeof(double)), malloc(reads * sizeof(double))};
	char *buffers[2] = {malloc(bytes), malloc(bytes)};
	struct stat stat;
	if (served < 0 || twin < 0 || fstat(served, &stat) != 0)
		return 1;
	size_t places = (size_t)stat.st_size / bytes, state = 88172645463325252u;
	for (size_t i = 0; i < reads; i++) {
		state ^= state << 13, state ^= state >> 7, state ^= state << 17;
		off_t at = (off_t)((on ? i : state) % places * bytes);
		if (on && i % places == 0)
			lseek(served, 0, SEEK_SET), lseek(twin, 0, SEEK_SET);
		for (int k = 0; k < 2; k++) {
			int bare = (int)((i + (size_t)k) % 2);
			ssize_t n;
			double begin = now();
			if (on)
				n = bare ? syscall(SYS_read, twin, buffers[1], bytes) : read(served, buffers[0], bytes);
			else
				n = bare ? syscall(SYS_pread64, twin, buffers[1], bytes, at) : pread(served, buffers[0], bytes, at);
			times[bare][i] = now() - begin;
			if (n != (ssize_t)bytes)
				return 1;
		}
		if (memcmp(buffers[0], buffers[1], bytes) != 0)
			return 1;
	}
	for (int k = 0; k < 2; k++)
		qsort(times[k], reads, sizeof(double), by_value);
	printf("%.0f %.0f\n", times[0][reads / 2], times[1][reads / 2]);
	return 0;
}
