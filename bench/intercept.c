/*
 * Compares a read that the preloaded library serves with the same read of a file on a tmpfs by a
 * bare system call: intercept FILE TWIN BYTES READS [position]. With `position`, both read on from
 * where they are, else at pseudo-random places. The two alternate, so they meet the same
 * neighbours. Prints the median nanoseconds of each, and of a bare read with the system calls that
 * the library cannot do without: with `position`, an `lseek` after it.
 *
 * intercept FILE TWIN maps RUNS maps FILE by the library, TWIN by a bare system call, and FILE by a
 * bare system call, which is the PFS's own mapping. Prints the median nanoseconds of the call with
 * a first pass over all bytes, and of a second pass: of the library, of the two others, and after
 * each of these the median ratio to the library's.
 *
 * intercept FILE prints the median nanoseconds of the one look at an open file by which the library
 * learns whether it is on a PFS.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

static int is_mapped_from_tier(void)
{
	char line[4352];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof(line), maps))
		found |= strstr(line, "/copies/0") && !strstr(line, ".record");
	fclose(maps);
	return found;
}

static unsigned long pass(const unsigned long *words, size_t bytes)
{
	unsigned long sum = 0;
	for (size_t i = 0; i < bytes / sizeof(*words); i++)
		sum += words[i];
	return sum;
}

static int maps(char **arguments)
{
	enum { RUNS = 1000 };
	static double times[3][2][RUNS];
	size_t runs = strtoull(arguments[4], NULL, 10);
	for (size_t i = 0; i < runs && i < RUNS; i++) {
		unsigned long sums[3];
		for (size_t k = 0; k < 3; k++) {
			size_t way = (i + k) % 3;
			int fd = open(arguments[way == 1 ? 2 : 1], O_RDONLY);
			struct stat stat;
			if (fd < 0 || fstat(fd, &stat) != 0)
				return 1;
			size_t bytes = (size_t)stat.st_size;
			double begin = now();
			void *at = way == 0 ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0)
			                    : (void *)syscall(SYS_mmap, NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
			if (at == MAP_FAILED || is_mapped_from_tier() != (way == 0))
				return 1;
			sums[way] = pass(at, bytes);
			double between = now();
			if (pass(at, bytes) != sums[way])
				return 1;
			times[way][1][i] = now() - between;
			times[way][0][i] = between - begin;
			munmap(at, bytes);
			close(fd);
		}
		if (sums[0] != sums[1] || sums[0] != sums[2])
			return 1;
	}
	/* The ratios of runs that were beside each other, which load of the machine disturbs less. */
	for (int k = 0; k < 2; k++) {
		static double ratios[2][RUNS];
		for (size_t i = 0; i < runs; i++)
			for (int other = 0; other < 2; other++)
				ratios[other][i] = times[other + 1][k][i] / times[0][k][i];
		for (int way = 0; way < 3; way++)
			qsort(times[way][k], runs, sizeof(double), by_value);
		for (int other = 0; other < 2; other++)
			qsort(ratios[other], runs, sizeof(double), by_value);
		printf("%.0f %.0f %.3f %.0f %.3f\n", times[0][k][runs / 2], times[1][k][runs / 2], ratios[0][runs / 2],
		       times[2][k][runs / 2], ratios[1][runs / 2]);
	}
	return 0;
}

int main(int count, char **arguments)
{
	if (count == 5 && strcmp(arguments[3], "maps") == 0)
		return maps(arguments);
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
