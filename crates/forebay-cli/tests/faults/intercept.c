/*
 * Reads a file whose bytes are known, in every way that a program can, and ends with 0 if all were
 * right: intercept FILE. In signal handlers, beside malloc, in threads that are cancelled, after
 * fork, vfork and dup, by lists of buffers, under locks, and where system calls are forbidden.
 * intercept FILE locks: only what concerns locks. intercept FILE jumps: reads that signal handlers
 * leave by a jump.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
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

/* Whether a child finds the file locked by this process. */
static int is_locked(void)
{
	int status, child = fork();
	if (child == 0) {
		struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
		int fd = open(path, O_RDONLY);
		_exit(fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type == F_RDLCK && lock.l_pid == getppid());
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* POSIX locks end when any descriptor of the file is closed: only the program may do that. */
static void locks(void)
{
	unsigned char a[100];
	struct flock lock = { .l_type = F_RDLCK, .l_whence = SEEK_SET };
	int fd = open(path, O_RDONLY), other;
	CHECK(fcntl(fd, F_SETLK, &lock) == 0 && is_locked());
	CHECK(read(fd, a, 100) == 100 && right(a, 0, 100) && is_locked());
	/* Read for the first time by another descriptor, and left to the kernel because of a third. */
	CHECK((other = dup(fd)) > 0 && pread(other, a, 100, 5000) == 100 && is_locked());
	int writer = open(path, O_RDWR);
	CHECK(writer > 0 && pread(fd, a, 100, 6000) == 100 && right(a, 6000, 100) && is_locked());
	int more = open(path, O_RDONLY);
	CHECK(pread(more, a, 100, 7000) == 100 && right(a, 7000, 100) && is_locked());
	close(more);
	CHECK(!is_locked());
	close(writer), close(other);
	CHECK(pread(fd, a, 100, 8000) == 100 && right(a, 8000, 100));
	close(fd);
	/* Those of an open file end when its last descriptor is closed. */
	for (int i = 0; i < 50; i++) {
		fd = open(path, O_RDONLY);
		CHECK(flock(fd, LOCK_EX | LOCK_NB) == 0 && read(fd, a, 100) == 100 && right(a, 0, 100));
		close(fd);
	}
}

/* Descriptors that are not the program's. */
static void foreign_numbers(void)
{
	unsigned char a[100];
	struct rlimit limit;
	int fd = open(path, O_RDONLY);
	CHECK(read(fd, a, 100) == 100 && getrlimit(RLIMIT_NOFILE, &limit) == 0);
	long first = (long)(limit.rlim_cur - limit.rlim_cur / 4);
	for (int n = first < 4096 ? (int)first : 4096; n < 10000 && n < (long)limit.rlim_cur; n++) {
		if (fcntl(n, F_GETFD) < 0)
			continue;
		CHECK(close(n) == -1 && errno == EBADF);
		CHECK(read(n, a, 1) == -1 && errno == EBADF);
		CHECK(pread(n, a, 1, 0) == -1 && errno == EBADF);
		int got = dup2(fd, n);
		CHECK(got == n || (got == -1 && errno == EBUSY));
		CHECK(got == -1 || (pread(n, a, 100, 900) == 100 && right(a, 900, 100) && close(n) == 0));
	}
	CHECK(read(fd, a, 100) == 100 && right(a, 100, 100));
	close(fd);
}

/* In a process that may only read, write and end. */
static void forbidden(void)
{
	int status, child = fork();
	if (child == 0) {
		unsigned char a[100], b[100];
		int fd = open(path, O_RDONLY);
		if (read(fd, a, 100) != 100 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0)
			syscall(SYS_exit, 2);
		syscall(SYS_exit, !(read(fd, b, 100) == 100 && right(a, 0, 100) && right(b, 100, 100)));
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static sigjmp_buf before;
static volatile sig_atomic_t jumps, over;

static void jump(int number)
{
	(void)number;
	jumps++;
	siglongjmp(before, 1);
}

static void *reads_until_over(void *nothing)
{
	(void)nothing;
	unsigned char bytes[3000];
	int fd = open(path, O_RDONLY);
	for (long at = 0; !over; at = (at + 4099) % 900000)
		CHECK(pread(fd, bytes, sizeof bytes, at) == (ssize_t)sizeof bytes && right(bytes, at, sizeof bytes));
	close(fd);
	return NULL;
}

/* A thread that leaves its reads by jumps out of signal handlers; others and children go on. */
static void jumps_out_of_handlers(void)
{
	static unsigned char bytes[70000];
	struct sigaction action = { .sa_handler = jump };
	struct itimerval often = { { 0, 500 }, { 0, 500 } }, never = { { 0, 0 }, { 0, 0 } };
	int fd = open(path, O_RDONLY), status;
	pthread_t thread;
	sigset_t alarm_only;
	sigemptyset(&alarm_only), sigaddset(&alarm_only, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &alarm_only, NULL);
	CHECK(pthread_create(&thread, NULL, reads_until_over, NULL) == 0);
	pthread_sigmask(SIG_UNBLOCK, &alarm_only, NULL);
	sigaction(SIGALRM, &action, NULL);
	if (sigsetjmp(before, 1) == 0)
		setitimer(ITIMER_REAL, &often, NULL);
	while (jumps < 300) {
		ssize_t got = pread(fd, bytes, sizeof bytes, 1000);
		if (got != (ssize_t)sizeof bytes || !right(bytes, 1000, sizeof bytes))
			_exit(3);
	}
	setitimer(ITIMER_REAL, &never, NULL);
	over = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	int child = fork();
	if (child == 0)
		_exit(!(pread(fd, bytes, 100, 777) == 100 && right(bytes, 777, 100)));
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* A handler with a small stack of its own, which is the first to read. */
static void small_stacks(void)
{
	static char memory[16 << 10];
	stack_t stack = { .ss_sp = memory, .ss_size = sizeof memory }, none = { .ss_flags = SS_DISABLE };
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK };
	sigaction(SIGUSR1, &action, NULL);
	CHECK(sigaltstack(&stack, NULL) == 0);
	for (int i = 0; i < 100; i++)
		raise(SIGUSR1);
	CHECK(!wrong && sigaltstack(&none, NULL) == 0);
}

int main(int argc, char **argv)
{
	path = argc > 1 ? argv[1] : "";
	if (argc > 2) {
		strcmp(argv[2], "locks") == 0 ? locks() : jumps_out_of_handlers();
		puts("right");
		return 0;
	}
	locks();
	foreign_numbers();
	forbidden();
	small_stacks();
	lists_and_positions();
	children();
	signals_and_malloc();
	threads_cancelled_and_forked_over();
	puts("right");
	return 0;
}
