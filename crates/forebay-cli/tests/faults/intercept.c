/*
 * Reads a file whose bytes are known, in every way that a program can, and ends with 0 if all were
 * right: intercept FILE. In signal handlers, beside malloc, in threads that are cancelled, after
 * fork, vfork and dup, and by lists of buffers.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *path;
static volatile sig_atomic_t handled, wrong;

static unsigned char byte(long i) { return (unsigned char)(((unsigned long)i * 2654435761ul) >> 13); }

static int right(const unsigned char *bytes, long at, long n)
{
	for (long i = 0; i < n; i++)
		if (bytes[i] != byte(at + i))
			return 0;
	return 1;
}

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s, errno %d\n", __LINE__, #what, errno); exit(1); } } while (0)

static void on_signal(int number)
{
	(void)number;
	unsigned char bytes[512];
	int errno_before = errno;
	int fd = open(path, O_RDONLY);
	long at = (handled * 4099L) % 900000;
	if (fd < 0 || pread(fd, bytes, sizeof bytes, at) != sizeof bytes || !right(bytes, at, sizeof bytes))
		wrong = 1;
	close(fd);
	errno = errno_before;
	handled++;
}

static void signals_and_malloc(void)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	struct itimerval often = { { 0, 700 }, { 0, 700 } }, never = { { 0, 0 }, { 0, 0 } };
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	int fd = open(path, O_RDONLY);
	static unsigned char bytes[70000];
	for (long round = 0; handled < 300 || round < 2000; round++) {
		void *blocks[16];
		for (int i = 0; i < 16; i++)
			blocks[i] = malloc((size_t)((round * 37 + i * 911) % 5000 + 1));
		long at = (round * 7919) % 900000;
		CHECK(pread(fd, bytes, sizeof bytes, at) == (ssize_t)sizeof bytes && right(bytes, at, sizeof bytes));
		for (int i = 0; i < 16; i++)
			free(blocks[i]);
		CHECK(!wrong);
	}
	setitimer(ITIMER_REAL, &never, NULL);
	close(fd);
}

static void lists_and_positions(void)
{
	unsigned char a[100], b[3000], c[1];
	struct iovec parts[3] = { { a, sizeof a }, { b, sizeof b }, { c, 0 } };
	int fd = open(path, O_RDONLY), other = dup(fd);
	CHECK(readv(fd, parts, 3) == 3100 && right(a, 0, 100) && right(b, 100, 3000));
	CHECK(lseek(other, 0, SEEK_CUR) == 3100);
	CHECK(read(other, a, 100) == 100 && right(a, 3100, 100));
	CHECK(preadv(fd, parts, 2, 50000) == 3100 && right(b, 50100, 3000));
	CHECK(preadv2(fd, parts, 2, -1, 0) == 3100 && right(a, 3200, 100));
	CHECK(preadv2(fd, parts, 2, 7, 0) == 3100 && right(a, 7, 100));
	CHECK(lseek(fd, -50, SEEK_END) == 1048576 - 50);
	CHECK(read(fd, a, 100) == 50 && right(a, 1048576 - 50, 50) && read(fd, a, 100) == 0);
	CHECK(pread(fd, a, 100, 1048576 + 5) == 0 && pread(fd, a, 100, -1) == -1 && errno == EINVAL);
	CHECK(read(fd, a, 0) == 0);
	CHECK(lseek(fd, 0, SEEK_SET) == 0 && read(fd, (void *)8, 100) == -1 && errno == EFAULT);
	CHECK(lseek(fd, 0, SEEK_CUR) == 0);
	CHECK(dup2(fd, other) == other && close(fd) == 0);
	CHECK(read(fd, a, 100) == -1 && errno == EBADF);
	CHECK(read(other, a, 100) == 100 && right(a, 0, 100));
	close(other);
	/* The number of a closed file, for another one. */
	int pipes[2];
	CHECK(pipe(pipes) == 0 && write(pipes[1], "pipe", 4) == 4 && read(pipes[0], a, 100) == 4 && !memcmp(a, "pipe", 4));
	close(pipes[0]), close(pipes[1]);
}

static void children(void)
{
	unsigned char a[100];
	int fd = open(path, O_RDONLY), status;
	CHECK(read(fd, a, 100) == 100);
	if (fork() == 0)
		_exit(!(read(fd, a, 100) == 100 && right(a, 100, 100)));
	CHECK(wait(&status) > 0 && status == 0);
	CHECK(read(fd, a, 100) == 100 && right(a, 200, 100));
	/* What the child of a vfork does to its descriptors is not done to its parent's. */
	if (vfork() == 0) {
		close(fd);
		dup2(1, fd);
		for (int i = 3; i < 1000; i++)
			close(i);
		_exit(0);
	}
	CHECK(wait(&status) > 0 && status == 0);
	CHECK(read(fd, a, 100) == 100 && right(a, 300, 100));
	/* Nor does a loop over all numbers end what follows. */
	for (int i = 3; i < 1000; i++)
		close(i);
	fd = open(path, O_RDONLY);
	CHECK(fd == 3 && read(fd, a, 100) == 100 && right(a, 0, 100));
	CHECK(close_range(3, ~0u, 0) == 0);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd == 3 && pread(fd, a, 100, 4000) == 100 && right(a, 4000, 100));
	close(fd);
}

static void *reads_until_cancelled(void *nothing)
{
	(void)nothing;
	static __thread unsigned char bytes[5000];
	int fd = open(path, O_RDONLY);
	for (;;)
		CHECK(pread(fd, bytes, sizeof bytes, 12345) == (ssize_t)sizeof bytes && right(bytes, 12345, sizeof bytes));
	return NULL;
}

static void threads_cancelled_and_forked_over(void)
{
	for (int round = 0; round < 20; round++) {
		pthread_t threads[3];
		for (int i = 0; i < 3; i++)
			CHECK(pthread_create(&threads[i], NULL, reads_until_cancelled, NULL) == 0);
		usleep(2000);
		int status, child = fork();
		if (child == 0) {
			unsigned char a[100];
			int fd = open(path, O_RDONLY);
			alarm(60);
			_exit(!(read(fd, a, 100) == 100 && right(a, 0, 100) && pread(fd, a, 100, 777) == 100 && right(a, 777, 100)));
		}
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		for (int i = 0; i < 3; i++) {
			void *result;
			CHECK(pthread_cancel(threads[i]) == 0 && pthread_join(threads[i], &result) == 0 && result == PTHREAD_CANCELED);
		}
	}
}

int main(int argc, char **argv)
{
	path = argc > 1 ? argv[1] : "";
	lists_and_positions();
	children();
	signals_and_malloc();
	threads_cancelled_and_forked_over();
	puts("right");
	return 0;
}
