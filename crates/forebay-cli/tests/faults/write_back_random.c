/*
 * Does random things to files of two directories, the same in both: one is below a PFS and written
 * back, the other one is plain. Results, errno, bytes, lengths and attributes must be the same, and
 * what the PFS has after a `forebay sync`: write_back_random SEED STEPS FOREBAY PFS_DIR PLAIN_DIR.
 *
 * Left out is what docs/semantics.md names as limits. A descriptor that was opened for reading
 * does not follow a later writer, so those are closed before a file gets its first writer. Times
 * are set on new files only.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAIRS = 12, NAMES = 8, MOST = 120000, END = 1 << 20, SYNC_STEPS = 4000, OLD = 1000000000 };

extern char **environ;

static const char *const names[NAMES] = { "a", "b", "c", "d", "sub/a", "sub/b", "with space", "\xff\n" };
static const char *dirs[2], *forebay;
/* The same open file on both sides; -1 if there is none. */
static struct pair { int fd[2], flags; } pairs[PAIRS];
static unsigned char bytes[2][MOST], out[MOST];
static uint64_t state = 88172645463325252ull;
static long step, seed, syncs, maps;
static const char *what = "start";

static uint64_t draw(uint64_t below)
{
	state ^= state << 13, state ^= state >> 7, state ^= state << 17;
	return (state >> 11) % below;
}

static int in(int of)
{
	return draw((uint64_t)of) == 0;
}

static void fail(const char *which, long here, int errno_here, long plain, int errno_plain)
{
	printf("seed %ld, step %ld, %s, %s: %ld (errno %d), plain %ld (errno %d)\n", seed, step, what, which, here, errno_here, plain,
		errno_plain);
	exit(1);
}

/* Makes the same call on sides 0 and 1. */
#define SAME(call) __extension__ ({ \
	long got[2]; int err[2]; \
	for (int s = 0; s < 2; s++) { \
		errno = 0; \
		got[s] = (long)(call); \
		err[s] = got[s] < 0 ? errno : 0; \
	} \
	if (got[0] != got[1] || err[0] != err[1]) fail(#call, got[0], err[0], got[1], err[1]); \
	got[0]; })

static void same_bytes(const char *which, long n)
{
	for (long i = 0; i < n; i++)
		if (bytes[0][i] != bytes[1][i])
			fail(which, i, bytes[0][i], i, bytes[1][i]);
}

static const char *path(int s, int name)
{
	static char paths[2][2][4096];
	static int turn;
	char *found = paths[s][turn ^= 1];
	snprintf(found, sizeof *paths[s], "%s/%s", dirs[s], names[name]);
	return found;
}

static int may_write(const struct pair *p)
{
	return (p->flags & O_ACCMODE) != O_RDONLY;
}

static int may_read(const struct pair *p)
{
	return (p->flags & O_ACCMODE) != O_WRONLY;
}

static void close_pair(struct pair *p)
{
	if (p->fd[0] >= 0) {
		SAME(close(p->fd[s]));
		p->fd[0] = p->fd[1] = -1;
	}
}

static int is_open(const struct pair *p, const struct stat *file)
{
	struct stat plain;
	return p->fd[1] >= 0 && fstat(p->fd[1], &plain) == 0 && plain.st_ino == file->st_ino;
}

/* Before a file gets a writer: closes the descriptors that would not follow it. */
static void prepare_writer(int name)
{
	struct stat file;
	int has_writer = 0;
	if (stat(path(1, name), &file) != 0)
		return;
	for (struct pair *p = pairs; p < pairs + PAIRS; p++)
		has_writer |= is_open(p, &file) && may_write(p);
	for (struct pair *p = pairs; p < pairs + PAIRS; p++)
		if (!has_writer && is_open(p, &file))
			close_pair(p);
}

static struct pair *free_pair(void)
{
	struct pair *p = &pairs[draw(PAIRS)];
	close_pair(p);
	return p;
}

static void open_pair(void)
{
	static const int modes[] = { O_RDONLY, O_WRONLY, O_RDWR, O_RDWR };
	int name = (int)draw(NAMES), flags = modes[draw(4)];
	flags |= in(2) ? O_CREAT : 0, flags |= in(8) ? O_EXCL : 0;
	flags |= in(3) && flags & O_ACCMODE ? O_TRUNC : 0, flags |= in(5) ? O_APPEND : 0, flags |= in(2) ? O_CLOEXEC : 0;
	struct pair *p = free_pair();
	int way = (int)draw(4), fd[2], err[2];
	if (way == 0)
		flags = O_WRONLY | O_CREAT | O_TRUNC;
	if (flags & (O_ACCMODE | O_CREAT))
		prepare_writer(name);
	for (int s = 0; s < 2; s++) {
		switch (way) {
		case 0: fd[s] = creat(path(s, name), 0640); break;
		case 1: fd[s] = openat(AT_FDCWD, path(s, name), flags, 0600); break;
		default: fd[s] = open(path(s, name), flags, 0644);
		}
		err[s] = errno;
	}
	if ((fd[0] < 0) != (fd[1] < 0) || (fd[0] < 0 && err[0] != err[1]))
		fail("open", fd[0], err[0], fd[1], err[1]);
	*p = (struct pair){ { fd[0], fd[1] }, flags };
}

static long length(void)
{
	switch (draw(8)) {
	case 0: return (long)draw(20);
	case 1: return 4096;
	case 2: return (long)draw(MOST);
	default: return (long)draw(6000);
	}
}

static long place(void)
{
	return in(3) ? (long)draw(END) : (long)draw(20000);
}

static void fill(long n)
{
	uint64_t word = draw(UINT64_MAX) | 1;
	for (long i = 0; i < n; i++, word = word * 6364136223846793005ull + 1442695040888963407ull)
		out[i] = (unsigned char)(word >> 56);
}

static void write_some(struct pair *p)
{
	long n = length(), at = place(), half = n / 2;
	struct iovec list[2] = { { out, (size_t)half }, { out + half, (size_t)(n - half) } };
	fill(n);
	switch (draw(5)) {
	case 0: case 1: SAME(write(p->fd[s], out, (size_t)n)); break;
	case 2: SAME(pwrite(p->fd[s], out, (size_t)n, at)); break;
	case 3: SAME(writev(p->fd[s], list, 2)); break;
	default: SAME(pwritev(p->fd[s], list, 2, at));
	}
}

static void read_some(struct pair *p)
{
	long n = length(), at = place(), half = n / 2;
	memset(bytes, 0, sizeof bytes);
	switch (draw(4)) {
	case 0: same_bytes("read", SAME(read(p->fd[s], bytes[s], (size_t)n))); break;
	case 1: same_bytes("pread", SAME(pread(p->fd[s], bytes[s], (size_t)n, at))); break;
	case 2: same_bytes("readv", SAME(readv(p->fd[s], ((struct iovec[]){ { bytes[s], (size_t)half }, { bytes[s] + half, (size_t)(n - half) } }), 2))); break;
	default: same_bytes("preadv", SAME(preadv(p->fd[s], &(struct iovec){ bytes[s], (size_t)n }, 1, at)));
	}
}

static void seek_some(struct pair *p)
{
	static const int ways[] = { SEEK_SET, SEEK_CUR, SEEK_END, 77 };
	int way = ways[draw(4)];
	long at = way == SEEK_SET ? place() : (long)draw(8000) - 4000;
	SAME(lseek(p->fd[s], at, way));
}

static void same_stat(const char *which, const struct stat of[2])
{
	if (of[0].st_size != of[1].st_size)
		fail(which, of[0].st_size, 0, of[1].st_size, 0);
	if (of[0].st_mode != of[1].st_mode)
		fail("mode", of[0].st_mode, 0, of[1].st_mode, 0);
	if (of[0].st_nlink != of[1].st_nlink)
		fail("links", (long)of[0].st_nlink, 0, (long)of[1].st_nlink, 0);
}

/* A time that was set is the file's until it is written again. */
static void same_time(const char *which, const struct stat of[2])
{
	if ((of[0].st_mtime < OLD || of[1].st_mtime < OLD) && of[0].st_mtime != of[1].st_mtime)
		fail(which, of[0].st_mtime, 0, of[1].st_mtime, 0);
}

static void look(struct pair *p)
{
	struct stat of[2];
	int name = (int)draw(NAMES);
	switch (draw(4)) {
	case 0: SAME(access(path(s, name), R_OK)); break;
	case 1:
		if (SAME(lstat(path(s, name), &of[s])) == 0)
			same_stat("lstat", of);
		break;
	case 2:
		if (SAME(stat(path(s, name), &of[s])) == 0)
			same_stat("stat", of);
		break;
	default:
		if (SAME(fstat(p->fd[s], &of[s])) == 0)
			same_stat("fstat", of);
	}
}

/* Makes a new file as `cp -p` does. */
static void make_dated(void)
{
	struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, { (long)draw(OLD), 0 } };
	struct stat of[2];
	int name = (int)draw(NAMES);
	struct pair *p = free_pair();
	mode_t mode = 0600 | (mode_t)draw(0200);
	SAME(unlink(path(s, name)));
	for (int s = 0; s < 2; s++)
		if ((p->fd[s] = open(path(s, name), O_WRONLY | O_CREAT | O_EXCL, 0600)) < 0)
			fail("open of a new file", s, errno, 0, 0);
	p->flags = O_WRONLY;
	write_some(p);
	SAME(futimens(p->fd[s], times)), SAME(fchmod(p->fd[s], mode)), SAME(fstat(p->fd[s], &of[s]));
	same_stat("fstat", of), same_time("set time", of);
	close_pair(p);
}

static void cut(struct pair *p)
{
	int name = (int)draw(NAMES);
	long at = in(4) ? 0 : place();
	switch (draw(4)) {
	case 0:
		prepare_writer(name);
		SAME(truncate(path(s, name), at));
		break;
	case 1: SAME(posix_fallocate(p->fd[s], at / 2, 1 + at / 4)); break;
	default: SAME(ftruncate(p->fd[s], at));
	}
}

static void change_names(void)
{
	int from = (int)draw(NAMES), to = (int)draw(NAMES);
	switch (draw(4)) {
	case 0: SAME(unlink(path(s, from))); break;
	case 1: SAME(link(path(s, from), path(s, to))); break;
	default: SAME(rename(path(s, from), path(s, to)));
	}
}

static void duplicate(struct pair *from)
{
	struct pair *to = &pairs[draw(PAIRS)];
	if (to == from)
		return;
	if (to->fd[0] >= 0 && in(2)) {
		for (int s = 0; s < 2; s++)
			if (dup2(from->fd[s], to->fd[s]) != to->fd[s])
				fail("dup2", s, errno, 0, 0);
	} else {
		int is_plain = in(2);
		close_pair(to);
		for (int s = 0; s < 2; s++)
			to->fd[s] = is_plain ? dup(from->fd[s]) : fcntl(from->fd[s], F_DUPFD_CLOEXEC, 0);
	}
	to->flags = from->flags;
}

/* Stores to a part of a file, or reads it, by a mapping. */
static void map(struct pair *p)
{
	struct stat plain;
	fstat(p->fd[1], &plain);
	int writes = p->flags & O_RDWR && in(2), way = writes || in(2) ? MAP_SHARED : MAP_PRIVATE;
	size_t size = (size_t)plain.st_size;
	if (size == 0 || !may_read(p))
		return;
	size = size > MOST ? MOST : size;
	size_t n = 1 + (size_t)draw(size), at = (size_t)draw(size - n + 1);
	unsigned char *on[2];
	for (int s = 0; s < 2; s++) {
		on[s] = mmap(NULL, size, writes ? PROT_READ | PROT_WRITE : PROT_READ, way, p->fd[s], 0);
		if (on[s] == MAP_FAILED)
			fail("mmap", s, errno, 0, 0);
	}
	if (memcmp(on[0], on[1], size) != 0)
		fail("mapped bytes", 0, 0, (long)size, 0);
	fill((long)n);
	for (int s = 0; s < 2 && writes; s++)
		memcpy(on[s] + at, out, n);
	if (writes && in(2))
		SAME(msync(on[s], size, MS_SYNC));
	SAME(munmap(on[s], size));
	maps += writes;
}

/* By a stream of the C library. */
static void stream(void)
{
	static const char *const modes[] = { "w", "a", "r", "r+", "w+" };
	int name = (int)draw(NAMES);
	const char *mode = modes[draw(5)];
	long n = length(), at = (long)draw(3000);
	FILE *on[2];
	if (strcmp(mode, "r") != 0)
		prepare_writer(name);
	for (int s = 0; s < 2; s++)
		on[s] = fopen(path(s, name), mode);
	if (!on[0] != !on[1])
		fail("fopen", !on[0], 0, !on[1], 0);
	if (!on[0])
		return;
	fill(n);
	if (in(2))
		SAME(fseek(on[s], at, SEEK_SET));
	if (strcmp(mode, "r") == 0) {
		same_bytes("fread", SAME(fread(bytes[s], 1, (size_t)n, on[s])));
	} else {
		SAME(fwrite(out, 1, (size_t)n, on[s]));
		SAME(ftell(on[s]));
	}
	SAME(fclose(on[s]));
}

/* A child writes behind its parent. */
static void child(struct pair *p)
{
	long n = 1 + (long)draw(2000);
	int status, pid;
	fill(n);
	pid = fork();
	if (pid == 0) {
		for (int s = 0; s < 2; s++)
			if (write(p->fd[s], out, (size_t)n) != n && may_write(p))
				_exit(1);
		close(p->fd[0]);
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid || status != 0)
		fail("child", status, errno, 0, 0);
}

static void same_on_pfs(int name)
{
	struct stat of[2];
	int fd[2];
	for (int s = 0; s < 2; s++)
		fd[s] = (int)syscall(SYS_openat, AT_FDCWD, path(s, name), O_RDONLY);
	if ((fd[0] < 0) != (fd[1] < 0))
		fail("file on the PFS", fd[0], 0, fd[1], 0);
	for (int s = 0; s < 2 && fd[0] >= 0; s++)
		syscall(SYS_fstat, fd[s], &of[s]);
	if (fd[0] >= 0)
		same_stat("file on the PFS", of), same_time("time on the PFS", of);
	for (long n = 1; fd[0] >= 0 && n > 0;) {
		n = SAME(syscall(SYS_read, fd[s], bytes[s], MOST));
		same_bytes("bytes on the PFS", n);
	}
	for (int s = 0; s < 2 && fd[0] >= 0; s++)
		syscall(SYS_close, fd[s]);
}

static void sync_all(int compares)
{
	char *const arguments[] = { (char *)forebay, "sync", "--quiet", NULL };
	int pid, status;
	for (int i = 0; i < PAIRS && compares; i++)
		close_pair(&pairs[i]);
	if (posix_spawn(&pid, forebay, NULL, NULL, arguments, environ) != 0 || waitpid(pid, &status, 0) != pid || status != 0)
		fail("forebay sync", status, errno, 0, 0);
	for (int name = 0; name < NAMES && compares; name++)
		same_on_pfs(name);
	syncs++;
}

#define DO(name, call) do { what = name; call; return; } while (0)

static void act(struct pair *p)
{
	uint64_t which = draw(1000);
	if (in(SYNC_STEPS))
		DO("sync", sync_all(in(2)));
	if (which < 80)
		DO("open", open_pair());
	if (which < 110)
		DO("stream", stream());
	if (which < 140)
		DO("names", change_names());
	if (p->fd[0] < 0)
		DO("open", open_pair());
	if (which < 370)
		DO("write", write_some(p));
	if (which < 640)
		DO("read", read_some(p));
	if (which < 720)
		DO("seek", seek_some(p));
	if (which < 800)
		DO("stat", look(p));
	if (which < 860)
		DO("cut", cut(p));
	if (which < 870)
		DO("fsync", SAME(fsync(p->fd[s])));
	if (which < 880)
		DO("fdatasync", SAME(fdatasync(p->fd[s])));
	if (which < 910)
		DO("dup", duplicate(p));
	if (which < 925)
		DO("map", map(p));
	if (which < 935)
		DO("dated file", make_dated());
	if (which < 937)
		DO("child", child(p));
	DO("close", close_pair(p));
}

int main(int argc, char **argv)
{
	if (argc != 6)
		return 2;
	seed = atol(argv[1]), forebay = argv[3], dirs[0] = argv[4], dirs[1] = argv[5];
	state ^= (uint64_t)seed * 0x9e3779b97f4a7c15ull;
	for (int i = 0; i < PAIRS; i++)
		pairs[i].fd[0] = pairs[i].fd[1] = -1;
	for (int s = 0; s < 2; s++) {
		char sub[4096];
		snprintf(sub, sizeof sub, "%s/sub", dirs[s]);
		mkdir(sub, 0755);
	}
	for (step = 0; step < atol(argv[2]); step++)
		act(&pairs[draw(PAIRS)]);
	what = "end", sync_all(1);
	printf("%ld steps, %ld syncs, %ld mappings\n", step, syncs, maps);
	return 0;
}
