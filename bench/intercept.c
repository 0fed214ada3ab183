/*
 * Compares a read that the preloaded library serves with the same read of a file on a tmpfs by a
 * bare system call: intercept FILE TWIN BYTES READS [position]. With `position`, both read on from
 * where they are, else at pseudo-random places. The two alternate, so they meet the same
 * neighbours. Prints the median nanoseconds of each, and of a bare read with the system calls that
 * the library cannot do without: with `position`, an `lseek` after it.
 *
 * intercept FILE prints the median nanoseconds of the one look at an open file by which the library
 * learns whether it is on a PFS.
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

/* What the clock itself takes. */
static double clock_ns(void)
{
	enum { LOOKS = 100000 };
	static double times[LOOKS];
	for (int i = 0; i < LOOKS; i++) {
		double begin = now();
		times[i] = now() - begin;
	}
	qsort(times, LOOKS, sizeof(double), by_value);
	return times[LOOKS / 2];
}

static int look(const char *path)
{
	enum { LOOKS = 100000 };
	static double times[LOOKS];
	int fd = open(path, O_RDONLY);
	struct statx found;
	for (int i = 0; i < LOOKS; i++) {
		double begin = now();
		if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_MNT_ID, &found) != 0)
			return 1;
		times[i] = now() - begin;
	}
	qsort(times, LOOKS, sizeof(double), by_value);
	printf("%.0f\n", times[LOOKS / 2] - clock_ns());
	return 0;
}

int main(int count, char **arguments)
{
	if (count == 2)
		return look(arguments[1]);
	if (count < 5)
		return 2;
	int served = open(arguments[1], O_RDONLY), twin = open(arguments[2], O_RDONLY), on = count > 5;
	size_t bytes = strtoull(arguments[3], NULL, 10), reads = strtoull(arguments[4], NULL, 10);
	double clock = clock_ns();
	double *times[3];
	for (int k = 0; k < 3; k++)
		times[k] = malloc(reads * sizeof(double));
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
			double end = now();
			times[bare][i] = end - begin;
			if (n != (ssize_t)bytes)
				return 1;
			if (bare && on) {
				syscall(SYS_lseek, twin, 0, SEEK_CUR);
				end = now() - clock;
			}
			if (bare)
				times[2][i] = end - begin;
		}
		if (memcmp(buffers[0], buffers[1], bytes) != 0)
			return 1;
	}
	for (int k = 0; k < 3; k++)
		qsort(times[k], reads, sizeof(double), by_value);
	printf("%.0f %.0f %.0f\n", times[0][reads / 2], times[1][reads / 2], times[2][reads / 2]);
	return 0;
}
