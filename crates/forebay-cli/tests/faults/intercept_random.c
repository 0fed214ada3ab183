/*
 * Does random things to files twice: by the C library, where a preloaded library may serve them,
 * and by bare system calls on descriptors of their own, which it does not see. Results, errno,
 * bytes and positions must be the same: intercept_random SEED STEPS FILE FILE WRITTEN. The first
 * two files are read only; the last one is written as well.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAIRS = 12, MOST = 70000 };

/* The same open file twice: `a` for the C library, `b` for bare calls; -1 if there is none. */
static struct { int a, b, may_write; } pairs[PAIRS];
static const char *files[3];
static unsigned char of_a[MOST + 8], of_b[MOST + 8];
static uint64_t state;
static long step, seed;
static int what;

static uint64_t draw(uint64_t below)
{
	state ^= state << 13, state ^= state >> 7, state ^= state << 17;
	return (state >> 11) % below;
}

static void fail(const char *which, long a, int errno_a, long b, int errno_b)
{
	fprintf(stderr, "seed %ld, step %ld, action %d, %s: %ld (errno %d), bare %ld (errno %d)\n", seed, step, what, which, a,
		errno_a, b, errno_b);
	exit(1);
}

#define SAME(which, call_a, call_b) __extension__ ({ \
	errno = 0; long got_a = (long)(call_a); int errno_a = errno; \
	errno = 0; long got_b = (long)(call_b); int errno_b = errno; \
	if (got_a != got_b || errno_a != errno_b) fail(which, got_a, errno_a, got_b, errno_b); \
	got_a; })

static void same_bytes(const char *which, long n)
{
	for (long i = 0; i < n; i++)
		if (of_a[i] != of_b[i])
			fail(which, i, of_a[i], i, of_b[i]);
}

static void same_position(int a, int b)
{
	SAME("position", lseek(a, 0, SEEK_CUR), syscall(SYS_lseek, b, 0, SEEK_CUR));
}

static int free_pair(void)
{
	int i = (int)draw(PAIRS);
	if (pairs[i].a >= 0) {
		SAME("close", close(pairs[i].a), syscall(SYS_close, pairs[i].b));
		pairs[i].a = -1;
	}
	return i;
}

static void open_pair(void)
{
	int i = free_pair(), file = (int)draw(3), flags = O_RDONLY | (draw(2) ? O_CLOEXEC : 0);
	if (file == 2 && draw(3) == 0)
		flags = O_RDWR;
	const char *path = files[file];
	switch (draw(3)) {
	case 0: pairs[i].a = open(path, flags); break;
	case 1: pairs[i].a = openat(AT_FDCWD, path, flags); break;
	default: pairs[i].a = open64(path, flags); break;
	}
	pairs[i].b = (int)syscall(SYS_openat, AT_FDCWD, path, flags);
	pairs[i].may_write = flags == O_RDWR;
	if (pairs[i].a < 0 || pairs[i].b < 0)
		fail("open", pairs[i].a, errno, pairs[i].b, errno);
}

static void duplicate(int from)
{
	int to = (int)draw(PAIRS);
	if (to == from)
		return;
	int is_used = pairs[to].a >= 0;
	if (is_used && draw(2)) {
		int a = pairs[to].a, b = pairs[to].b, cloexec = draw(2) ? O_CLOEXEC : 0;
		int is_3 = (int)draw(2);
		long got = is_3 ? dup3(pairs[from].a, a, cloexec) : dup2(pairs[from].a, a);
		if (got != a || syscall(SYS_dup3, pairs[from].b, b, 0) != b)
			fail("dup2", got, errno, b, errno);
	} else {
		if (is_used)
			SAME("close", close(pairs[to].a), syscall(SYS_close, pairs[to].b));
		pairs[to].a = draw(2) ? dup(pairs[from].a) : fcntl(pairs[from].a, draw(2) ? F_DUPFD : F_DUPFD_CLOEXEC, 0);
		pairs[to].b = (int)syscall(SYS_dup, pairs[from].b);
	}
	pairs[to].may_write = pairs[from].may_write;
}

static long length(void)
{
	switch (draw(4)) {
	case 0: return (long)draw(20);
	case 1: return 4096;
	default: return (long)draw(MOST);
	}
}

static void read_on(int a, int b)
{
	long n = length();
	same_bytes("read", SAME("read", read(a, of_a, (size_t)n), syscall(SYS_read, b, of_b, n)));
}

static void read_there(int a, int b)
{
	long n = length(), at = (long)draw(400000) - 5;
	same_bytes("pread", SAME("pread", pread(a, of_a, (size_t)n, at), syscall(SYS_pread64, b, of_b, n, at)));
}

static void read_lists(int a, int b)
{
	struct iovec list_a[4], list_b[4];
	int count = 1 + (int)draw(4);
	long used = 0;
	for (int i = 0; i < count; i++) {
		size_t n = draw(4) ? (size_t)draw(MOST / 4) : 0;
		list_a[i] = (struct iovec){ of_a + used, n }, list_b[i] = (struct iovec){ of_b + used, n };
		used += (long)n;
	}
	long at = (long)draw(400000) - 1, flags = draw(5) == 0 ? RWF_HIPRI : 0;
	switch (draw(3)) {
	case 0: same_bytes("readv", SAME("readv", readv(a, list_a, count), syscall(SYS_readv, b, list_b, count))); break;
	case 1: same_bytes("preadv", SAME("preadv", preadv(a, list_a, count, at), syscall(SYS_preadv, b, list_b, count, at, 0))); break;
	default:
		same_bytes("preadv2", SAME("preadv2", preadv2(a, list_a, count, at, (int)flags),
			syscall(SYS_preadv2, b, list_b, count, at, 0, flags)));
	}
}

static void seek(int a, int b)
{
	static const int ways[] = { SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA, SEEK_HOLE, 77 };
	int way = ways[draw(6)];
	long at = (long)draw(500000) - 100000;
	SAME("lseek", lseek(a, at, way), syscall(SYS_lseek, b, at, way));
}

static void write_through(int i)
{
	if (!pairs[i].may_write)
		return;
	int a = pairs[i].a, b = pairs[i].b;
	long n = (long)draw(5000), at = (long)draw(300000);
	for (long j = 0; j < n; j++)
		of_a[j] = (unsigned char)draw(256);
	switch (draw(4)) {
	case 0:
		if (write(a, of_a, (size_t)n) != n)
			fail("write", -1, errno, n, 0);
		syscall(SYS_lseek, b, n, SEEK_CUR);
		break;
	case 1:
		if (ftruncate(a, 250000 + at / 3) != 0)
			fail("ftruncate", -1, errno, 0, 0);
		break;
	default:
		if (pwrite(a, of_a, (size_t)n, at) != n)
			fail("pwrite", -1, errno, n, 0);
	}
}

/* What the C library, or the kernel by itself, does with a served descriptor. */
static void by_others(int a, int b)
{
	struct stat stat_a, stat_b;
	fstat(a, &stat_a), fstat(b, &stat_b);
	SAME("fstat", stat_a.st_size, stat_b.st_size);
	long n = (long)draw(3000);
	switch (draw(3)) {
	case 0: {
		int pipe_a[2], pipe_b[2];
		if (pipe(pipe_a) != 0 || pipe(pipe_b) != 0)
			fail("pipe", -1, errno, 0, 0);
		long sent = SAME("sendfile", sendfile(pipe_a[1], a, NULL, (size_t)n), syscall(SYS_sendfile, pipe_b[1], b, NULL, n));
		if (sent > 0 && (read(pipe_a[0], of_a, (size_t)sent) != sent || syscall(SYS_read, pipe_b[0], of_b, sent) != sent))
			fail("read of a pipe", -1, errno, sent, 0);
		same_bytes("sendfile", sent);
		for (int i = 0; i < 2; i++)
			close(pipe_a[i]), close(pipe_b[i]);
		break;
	}
	case 1: {
		unsigned char *map = mmap(NULL, 65536, PROT_READ, MAP_PRIVATE, a, 0);
		if (map == MAP_FAILED)
			break;
		long got = pread(a, of_a, 65536, 0);
		if (got > 0 && memcmp(map, of_a, (size_t)got) != 0)
			fail("mmap", got, 0, got, 0);
		munmap(map, 65536);
		break;
	}
	default: {
		FILE *stream_a = fdopen(dup(a), "r"), *stream_b = fdopen((int)syscall(SYS_dup, b), "r");
		long got = SAME("fread", fread(of_a, 1, (size_t)n, stream_a), fread(of_b, 1, (size_t)n, stream_b));
		same_bytes("fread", got);
		SAME("fclose", fclose(stream_a), fclose(stream_b));
	}
	}
}

/* A child reads; then, perhaps, another program that it becomes. */
static void child(int a, int b)
{
	int status, way = (int)draw(3), pid = fork();
	if (pid == 0) {
		read_on(a, b), read_there(a, b), same_position(a, b);
		if (way == 0) {
			char numbers[2][16];
			fcntl(a, F_SETFD, 0), fcntl(b, F_SETFD, 0);
			snprintf(numbers[0], 16, "%d", a), snprintf(numbers[1], 16, "%d", b);
			execl("/proc/self/exe", "intercept_random", "child", numbers[0], numbers[1], NULL);
			_exit(9);
		}
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid || status != 0)
		fail("child", status, errno, 0, 0);
	if (draw(4) == 0) {
		/* Its descriptors are its own, and its memory is ours. */
		pid = vfork();
		if (pid == 0) {
			close(a);
			_exit(0);
		}
		waitpid(pid, &status, 0);
	}
}

static void lock(int a)
{
	struct flock range = { .l_type = (short)(draw(2) ? F_RDLCK : F_UNLCK), .l_whence = SEEK_SET, .l_start = (long)draw(100), .l_len = 10 };
	if (fcntl(a, draw(2) ? F_SETLK : F_OFD_SETLK, &range) != 0 || flock(a, LOCK_SH) != 0)
		fail("lock", -1, errno, 0, 0);
}

static void act(int i)
{
	int a = pairs[i].a, b = pairs[i].b;
	what = (int)draw(100);
	if (what < 12)
		open_pair();
	else if (what < 18)
		duplicate(i);
	else if (what < 40)
		read_on(a, b);
	else if (what < 58)
		read_there(a, b);
	else if (what < 68)
		read_lists(a, b);
	else if (what < 80)
		seek(a, b);
	else if (what < 85)
		write_through(i);
	else if (what < 94)
		by_others(a, b);
	else if (what < 95)
		child(a, b);
	else if (what < 97)
		lock(a);
	else if (what < 99)
		free_pair();
	else
		read_on(-1, -1);
	if (pairs[i].a >= 0)
		same_position(pairs[i].a, pairs[i].b);
}

int main(int argc, char **argv)
{
	state = 88172645463325252ull;
	if (argc == 4 && strcmp(argv[1], "child") == 0) {
		int a = atoi(argv[2]), b = atoi(argv[3]);
		same_position(a, b), read_on(a, b), read_there(a, b), read_lists(a, b), same_position(a, b);
		return 0;
	}
	if (argc != 6)
		return 2;
	seed = atol(argv[1]);
	state ^= (uint64_t)seed * 0x9e3779b97f4a7c15ull;
	for (int i = 0; i < 3; i++)
		files[i] = argv[3 + i];
	for (int i = 0; i < PAIRS; i++)
		pairs[i].a = -1;
	for (step = 0; step < atol(argv[2]); step++) {
		int i = (int)draw(PAIRS);
		if (pairs[i].a < 0)
			open_pair();
		else
			act(i);
	}
	printf("%ld steps\n", step);
	return 0;
}
