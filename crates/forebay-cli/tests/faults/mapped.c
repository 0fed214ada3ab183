/*
 * Maps FILE in many ways and prints what each call returns: mapped FILE. The output is the same on
 * the PFS and under `forebay run`. Mappings that are of a copy of the tier are counted on stderr.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };

static sigjmp_buf back;

static void jump(int number)
{
	siglongjmp(back, number);
}

/* The byte there, or a negative signal number. */
static int byte_at(const volatile char *at)
{
	int number = sigsetjmp(back, 1);
	return number ? -number : (unsigned char)*at;
}

static unsigned long sum(const unsigned char *bytes, size_t count)
{
	unsigned long all = 5381;
	for (size_t i = 0; i < count; i++)
		all = all * 33 + bytes[i];
	return all;
}

static int of_tier(void)
{
	char line[4352];
	int count = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (fgets(line, sizeof(line), maps))
		count += strstr(line, "/copies/0") && !strstr(line, ".record");
	fclose(maps);
	return count;
}

static char *map(int fd, size_t bytes, int protection, int flags, off_t offset)
{
	char *at = mmap(NULL, bytes, protection, flags, fd, offset);
	return at == MAP_FAILED ? NULL : at;
}

int main(int count, char **arguments)
{
	int fd = open(arguments[1], O_RDONLY);
	struct stat stat;
	if (count < 2 || fd < 0 || fstat(fd, &stat) != 0)
		return 2;
	size_t size = (size_t)stat.st_size, pages = (size + PAGE - 1) / PAGE * PAGE;
	signal(SIGBUS, jump);
	signal(SIGSEGV, jump);

	/* Whole: shared, private, populated, and all in one place. */
	char *whole = map(fd, size, PROT_READ, MAP_SHARED, 0);
	char *own = map(fd, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, 0);
	char *full = map(fd, pages, PROT_READ, MAP_PRIVATE | MAP_POPULATE, 0);
	char *room = mmap(NULL, pages, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *fixed = mmap(room, size, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
	char *rest = map(fd, size - PAGE, PROT_READ, MAP_SHARED, PAGE);
	if (!whole || !own || !full || !rest || fixed != room)
		return 3;
	fprintf(stderr, "of the tier: %d\n", of_tier());
	printf("%lx %lx %lx %lx %lx\n", sum((void *)whole, size), sum((void *)own, size), sum((void *)full, pages),
	       sum((void *)fixed, size), sum((void *)rest, size - PAGE));

	/* A private page is the program's own; a shared one cannot be written. */
	own[size - 1] ^= 1;
	own[PAGE] ^= 1;
	printf("own: %d %d\n", own[PAGE] == whole[PAGE], own[size - 1] == whole[size - 1]);
	errno = 0;
	printf("write: %d", mprotect(whole, PAGE, PROT_READ | PROT_WRITE));
	printf(" %d %d\n", errno, byte_at(whole));
	errno = 0;
	printf("remove: %d", madvise(whole, PAGE, MADV_REMOVE));
	printf(" %d\n", errno);
	for (int i = 0; i < 4; i++) {
		int advice[] = {MADV_DONTNEED, MADV_WILLNEED, MADV_RANDOM, MADV_SEQUENTIAL};
		errno = 0;
		printf("advice: %d", madvise(whole, pages, advice[i]));
		printf(" %d %d\n", errno, byte_at(whole + size / 2));
	}
	printf("sync: %d %d\n", msync(whole, pages, MS_SYNC), msync(own, pages, MS_ASYNC));
	/* Behind the end: zeros in the last page, then no memory. */
	printf("end: %d %d\n", byte_at(whole + size - 1), size < pages ? byte_at(whole + pages - 1) : 0);

	/* Moved, shortened, made longer, and unmapped in parts. */
	char *moved = mremap(whole, pages, PAGE, MREMAP_MAYMOVE);
	printf("shorter: %d\n", byte_at(moved));
	moved = mremap(moved, PAGE, pages + PAGE, MREMAP_MAYMOVE);
	printf("longer: %lx %d\n", moved == MAP_FAILED ? 0 : sum((void *)moved, size), byte_at(moved + pages));
	printf("part: %d %d %d\n", munmap(full, PAGE), byte_at(full), byte_at(full + PAGE));
	printf("again: %lx\n", sum((void *)full + PAGE, size - PAGE));

	/* Of a part, beyond the end, and wrong ones. */
	char *part = map(fd, PAGE, PROT_READ, MAP_SHARED, PAGE);
	printf("part: %lx\n", sum((void *)part, PAGE));
	char *beyond = map(fd, pages + PAGE, PROT_READ, MAP_SHARED, 0);
	printf("beyond: %lx %d\n", sum((void *)beyond, size), byte_at(beyond + pages));
	errno = 0;
	printf("nothing: %p", (void *)map(fd, 0, PROT_READ, MAP_SHARED, 0));
	printf(" %d", errno);
	printf(" %p", (void *)map(fd, size, PROT_READ, MAP_SHARED, 100));
	printf(" %d", errno);
	printf(" %p", (void *)map(fd, size, PROT_READ | PROT_WRITE, MAP_SHARED, 0));
	printf(" %d", errno);
	printf(" %p", (void *)map(-1, size, PROT_READ, MAP_SHARED, 0));
	printf(" %d\n", errno);

	/* A child has all of it, and the descriptor may be closed. */
	close(fd);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		printf("child: %lx %lx\n", sum((void *)moved, size), sum((void *)own, size));
		fflush(stdout);
		_exit(0);
	}
	int status = 0;
	waitpid(child, &status, 0);
	printf("ended: %d %lx\n", status, sum((void *)moved, size));
	return 0;
}
