/*
 * What a program may do beside a library that serves its reads. Ends with 0 if all was right.
 * host reuse HOW FILES...: closes and opens by HOW, reads by the C library; a file holds its path
 * host lists FILE: reads into lists that cannot be read
 * host numbers FILE: takes the library's numbers
 * host full BEFORE FILES...: reads BEFORE files, uses up its address space, reads the others
 * host instances FILE: looks for descriptors of inotify
 * host stack FILE BYTES FIRST-BYTES: a cached read takes less stack than BYTES, the first than
 * host forbidden FILE: reads when it has forbidden itself all other calls
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s, errno %d\n", __LINE__, #what, errno); exit(1); } } while (0)

#ifdef LINKED
long bare(long number, long a, long b, long c);
#else
static long bare(long number, long a, long b, long c) { return syscall(number, a, b, c); }
#endif
static long (*call)(long, long, long, long) = bare;

/* By a position and by an offset: one of them first, in turns. */
static void is(int fd, const char *path, int turn)
{
	char bytes[4096] = "", again[4096] = "";
	size_t len = strlen(path);
	for (int i = 0; i < 2; i++)
		if ((i + turn) % 2)
			CHECK(pread(fd, bytes, len, 0) == (ssize_t)len);
		else
			CHECK(read(fd, again, len) == (ssize_t)len);
	if (strcmp(bytes, path) || strcmp(again, path)) {
		fprintf(stderr, "%s was read as %s and %s\n", path, bytes, again);
		exit(1);
	}
}

static void reuse(const char *how, char **files)
{
	int fd = open(files[0], O_RDONLY), turn = 0;
	is(fd, files[0], 0);
	if (!strcmp(how, "loaded")) {
		/* It lies beside the program. */
		void *library = dlopen("libbare.so", RTLD_NOW);
		CHECK(library);
		*(void **)&call = dlsym(library, "bare");
	}
	while (*++files) {
		/* The same number stands for the next file. */
		if (!strcmp(how, "replaced")) {
			int other = call(SYS_openat, AT_FDCWD, (long)*files, O_RDONLY);
			CHECK(call(SYS_dup3, other, fd, 0) == fd);
			call(SYS_close, other, 0, 0);
		} else {
			CHECK(call(SYS_close, fd, 0, 0) == 0);
			CHECK(call(SYS_openat, AT_FDCWD, (long)*files, O_RDONLY) == fd);
		}
		is(fd, *files, ++turn);
	}
}

static void lists(const char *path)
{
	static char a[100], b[200], all[300];
	int fd = open(path, O_RDONLY);
	CHECK(pread(fd, all, sizeof all, 0) == sizeof all);
	char *pages = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(mprotect(pages + 4096, 4096, PROT_NONE) == 0);
	struct iovec *end = (struct iovec *)(pages + 4096) - 1;
	*end = (struct iovec){ a, sizeof a };
	CHECK(readv(fd, (void *)16, 1) == -1 && errno == EFAULT);
	CHECK(readv(fd, NULL, 1) == -1 && errno == EFAULT);
	CHECK(preadv(fd, end, 2, 0) == -1 && errno == EFAULT);
	CHECK(readv(fd, (void *)(pages + 4096), 40) == -1 && errno == EFAULT);
	CHECK(readv(fd, end, -1) == -1 && errno == EINVAL);
	CHECK(readv(fd, end, 0) == 0);
	CHECK(readv(fd, end, 1) == sizeof a && !memcmp(a, all, sizeof a));
	struct iovec two[] = { { a, sizeof a }, { b, sizeof b } };
	CHECK(preadv(fd, two, 2, 0) == sizeof all && !memcmp(b, all + sizeof a, sizeof b));
	struct iovec many[300];
	for (int i = 0; i < 300; i++)
		many[i] = (struct iovec){ &b[i % 200], 1 };
	CHECK(preadv(fd, many, 300, 0) == 300 && b[99] == all[299]);
}

static void numbers(const char *path)
{
	char first[1000], now[1000];
	int fd = open(path, O_RDONLY), pipes[2], taken = 0;
	CHECK(pread(fd, first, sizeof first, 500) == sizeof first);
	CHECK(pipe(pipes) == 0);
	struct rlimit limit;
	getrlimit(RLIMIT_NOFILE, &limit);
	for (int to = pipes[1] + 1; to < (int)limit.rlim_cur && to < 10000; to++) {
		char link[64], target[200];
		snprintf(link, sizeof link, "/proc/self/fd/%d", to);
		if (readlink(link, target, sizeof target) < 0)
			continue;
		taken++;
		CHECK(dup2(pipes[1], to) == to);
		char byte = (char)taken, got = 0;
		CHECK(write(to, &byte, 1) == 1 && read(pipes[0], &got, 1) == 1 && got == byte);
		CHECK(pread(fd, now, sizeof now, 500) == sizeof now && !memcmp(first, now, sizeof now));
		CHECK(close(to) == 0);
	}
	CHECK(taken > 0);
}

static char buffer[1 << 20];

static void all_of(const char *path)
{
	unsigned sum = 0;
	ssize_t n;
	int fd = open(path, O_RDONLY);
	while ((n = read(fd, buffer, sizeof buffer)) > 0)
		for (ssize_t i = 0; i < n; i++)
			sum = sum * 31 + (unsigned char)buffer[i];
	close(fd);
	char line[64];
	CHECK(write(1, line, snprintf(line, sizeof line, "%x\n", sum)) > 0);
}

static void full(int before, char **files)
{
	for (int i = 0; files[i]; i++) {
		if (i == before) {
			struct rlimit limit = { 400u << 20, 400u << 20 };
			CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
			for (size_t step = 64u << 20; step >= 4096; step /= 2)
				while (mmap(0, step, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) {}
		}
		all_of(files[i]);
	}
}

static void instances(const char *path)
{
	int fd = open(path, O_RDONLY);
	for (long at = 0; at < 12; at++)
		CHECK(pread(fd, buffer, 4096, at * 250000) == 4096);
	for (int i = 0; i < 10000; i++) {
		char link[64], target[200];
		snprintf(link, sizeof link, "/proc/self/fd/%d", i);
		ssize_t n = readlink(link, target, sizeof target - 1);
		if (n > 0) {
			target[n] = 0;
			CHECK(!strstr(target, "inotify"));
		}
	}
}

/* By the system call that libseccomp uses; any other call ends the process. */
static void forbidden(const char *path)
{
#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), /* the number */
		ALLOW(read), ALLOW(pread64), ALLOW(lseek), ALLOW(close), ALLOW(write), ALLOW(exit_group),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog program = { sizeof rules / sizeof *rules, rules };
	static char before[1000], after[1000], other[1000];
	int fd = open(path, O_RDONLY), unread = open(path, O_RDONLY);
	CHECK(pread(fd, before, sizeof before, 0) == sizeof before);
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
	CHECK(pread(fd, after, sizeof after, 0) == sizeof after && !memcmp(before, after, sizeof after));
	CHECK(read(unread, other, sizeof other) == sizeof other && !memcmp(before, other, sizeof other));
	CHECK(close(fd) == 0);
}

static const unsigned char paint = 0x5a;
static char *painted;
enum { STACK_BYTES = 256 << 10, OWN_BYTES = 256 };
static long depths[2];

/* How far below this frame a read writes. */
static long depth_of_read(int fd)
{
	char *here = __builtin_frame_address(0), byte, *at;
	for (at = painted; at < here - OWN_BYTES; at++)
		*(volatile unsigned char *)at = paint;
	CHECK(pread(fd, &byte, 1, 500) == 1);
	for (at = painted; *(volatile unsigned char *)at == paint; at++) {}
	return here - at;
}

static void *on_painted_stack(void *path)
{
	int fd = open(path, O_RDONLY);
	depths[1] = depth_of_read(fd);
	/* What is resolved at the first call is not the library's. */
	for (int i = 0; i < 3; i++)
		depths[0] = depth_of_read(fd);
	return NULL;
}

static void stack(char **arguments)
{
	pthread_attr_t attributes;
	pthread_t thread;
	painted = mmap(0, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(painted != MAP_FAILED && !pthread_attr_init(&attributes));
	CHECK(!pthread_attr_setstack(&attributes, painted, STACK_BYTES));
	CHECK(!pthread_create(&thread, &attributes, on_painted_stack, arguments[2]) && !pthread_join(thread, NULL));
	fprintf(stderr, "stack: %ld bytes at a cached read, %ld at the first\n", depths[0], depths[1]);
	CHECK(depths[0] > 0 && depths[0] < atol(arguments[3]) && depths[1] < atol(arguments[4]));
}

int main(int count, char **arguments)
{
	CHECK(count > 2);
	const char *what = arguments[1];
	if (!strcmp(what, "reuse"))
		reuse(arguments[2], arguments + 3);
	else if (!strcmp(what, "lists"))
		lists(arguments[2]);
	else if (!strcmp(what, "numbers"))
		numbers(arguments[2]);
	else if (!strcmp(what, "full"))
		full(atoi(arguments[2]), arguments + 3);
	else if (!strcmp(what, "forbidden"))
		forbidden(arguments[2]);
	else if (!strcmp(what, "stack"))
		stack(arguments);
	else
		instances(arguments[2]);
	CHECK(write(1, "right\n", 6) == 6);
	return 0;
}
