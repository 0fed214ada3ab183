/*
 * Writes to argv[1] in every way that could upset an interposer, and prints how many bytes it has
 * written. Each failed expectation ends it with the number of its line.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPECT(x) do { if (!(x)) { fprintf(stderr, "line %d: " #x ", errno %d\n", __LINE__, errno); _exit(__LINE__ % 250 + 1); } } while (0)

static int fd;
static char block[4096];
static volatile sig_atomic_t signals;
static long written;

static void *thread(void *unused)
{
	for (int i = 0; i < 500; i++)
		EXPECT(write(fd, block, 100) == 100);
	return unused;
}

static void on_alarm(int number)
{
	(void)number;
	int saved = errno;
	if (write(fd, block, 7) == 7)
		signals++;
	errno = saved;
}

static void *blocked(void *pipe_end)
{
	char byte;
	while (read(*(int *)pipe_end, &byte, 1) != 0)
		;
	return NULL;
}

static void threads(void)
{
	pthread_t all[4];
	for (int i = 0; i < 4; i++)
		EXPECT(pthread_create(&all[i], NULL, thread, NULL) == 0);
	for (int i = 0; i < 4; i++)
		EXPECT(pthread_join(all[i], NULL) == 0);
	written += 4 * 500 * 100;
}

static void signal_handler(void)
{
	struct itimerval every = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
	signal(SIGALRM, on_alarm);
	setitimer(ITIMER_REAL, &every, NULL);
	while (signals < 20) {
		EXPECT(write(fd, block, 3) == 3);
		written += 3;
	}
	setitimer(ITIMER_REAL, &never, NULL);
	signal(SIGALRM, SIG_IGN);
	written += 7 * signals;
}

static void children(const char *self)
{
	for (int i = 0; i < 5; i++) {
		pid_t child = fork();
		EXPECT(child >= 0);
		if (child == 0) {
			EXPECT(write(fd, block, 50) == 50);
			pid_t grandchild = fork();
			if (grandchild == 0)
				_exit(write(fd, block, 60) != 60);
			int status;
			EXPECT(waitpid(grandchild, &status, 0) == grandchild && status == 0);
			_exit(0);
		}
		int status;
		EXPECT(waitpid(child, &status, 0) == child && status == 0);
		written += 110;
	}
	pid_t child = vfork();
	if (child == 0) {
		/* The descriptor is inherited, and its number is all that the new program knows. */
		execl(self, self, "child", NULL);
		_exit(1);
	}
	int status;
	EXPECT(waitpid(child, &status, 0) == child && status == 0);
	written += 11;
}

static void cancel(void)
{
	int ends[2];
	pthread_t waiting;
	EXPECT(pipe(ends) == 0);
	EXPECT(pthread_create(&waiting, NULL, blocked, &ends[0]) == 0);
	usleep(20000);
	EXPECT(pthread_cancel(waiting) == 0);
	void *result;
	EXPECT(pthread_join(waiting, &result) == 0 && result == PTHREAD_CANCELED);
	close(ends[0]);
	close(ends[1]);
}

static void calls(const char *path)
{
	struct iovec parts[2] = {{block, 10}, {block, 20}};
	EXPECT(writev(fd, parts, 2) == 30);
	EXPECT(pwrite(fd, block, 40, 1000000) == 40);
	EXPECT(pwritev(fd, parts, 2, 1000000) == 30);
	EXPECT(pwritev2(fd, parts, 2, 1000000, 0) == 30);
	written += 130;

	int other = dup(fd), high = fcntl(fd, F_DUPFD_CLOEXEC, 200);
	EXPECT(other >= 0 && high >= 200);
	EXPECT(write(other, block, 5) == 5 && write(high, block, 6) == 6);
	/* The numbers of closed files of the PFS, for files that are not the PFS's. */
	EXPECT(close(high) == 0 && close(other) == 0);
	int null = open("/dev/null", O_WRONLY);
	EXPECT(null == other && dup2(null, 200) == 200);
	EXPECT(write(null, block, 1000) == 1000 && write(200, block, 1000) == 1000);
	EXPECT(dup2(fd, null) == null && write(null, block, 8) == 8);
	written += 19;
	close(200);
	close(null);

	int zero = open("/dev/zero", O_RDONLY), self = open("/proc/self/exe", O_RDONLY);
	EXPECT(sendfile(fd, self, NULL, 77) == 77);
	written += 77;
	EXPECT(fsync(fd) == 0 && fdatasync(fd) == 0);
	close(zero);
	close(self);

	ssize_t (*by_name)(int, const void *, size_t) = dlsym(RTLD_DEFAULT, "write");
	EXPECT(by_name != NULL && by_name(fd, block, 9) == 9);
	void *library = dlopen("libm.so.6", RTLD_NOW);
	EXPECT(library != NULL && dlclose(library) == 0);
	written += 9;

	int again = open(path, O_RDWR);
	EXPECT(pread(again, block, 64, 0) == 64);
	EXPECT(close(again) == 0);
}

static void errors(void)
{
	errno = 77;
	EXPECT(write(fd, block, 1) == 1 && errno == 77);
	written += 1;
	EXPECT(fsync(fd) == 0 && errno == 77);
	int full = open("/dev/full", O_WRONLY);
	EXPECT(write(full, block, 1) == -1 && errno == ENOSPC);
	EXPECT(close(full) == 0);
	EXPECT(write(-1, block, 1) == -1 && errno == EBADF);
	EXPECT(write(1000000, block, 1) == -1 && errno == EBADF);
	EXPECT(close(-1) == -1 && errno == EBADF);
	EXPECT(open("/nowhere/at/all", O_RDONLY) == -1 && errno == ENOENT);
	EXPECT(fopen("/nowhere/at/all", "r") == NULL && errno == ENOENT);
	EXPECT(write(fd, (void *)8, 10) == -1 && errno == EFAULT);
}

static void stdio(const char *path)
{
	char name[4096];
	snprintf(name, sizeof name, "%s.text", path);
	FILE *file = fopen(name, "w");
	EXPECT(file != NULL);
	long size = fprintf(file, "%d %s %.3f %Lf\n", 42, "text", 2.5, 1.25L);
	EXPECT(size > 0 && fputs("line\n", file) >= 0 && fputc('x', file) == 'x');
	EXPECT(fwrite(block, 10, 30, file) == 30);
	size += 306;
	EXPECT(fflush(file) == 0 && ftell(file) == size);
	EXPECT(fclose(file) == 0);
	written += size;
	char text[16];
	file = fopen(name, "r");
	EXPECT(file != NULL && fread(text, 1, 2, file) == 2 && memcmp(text, "42", 2) == 0);
	EXPECT(fclose(file) == 0);

	char *memory;
	size_t length;
	file = open_memstream(&memory, &length);
	errno = 77;
	EXPECT(fprintf(file, "in memory") == 9 && errno == 77 && fclose(file) == 0 && length == 9);
	free(memory);
}

int main(int count, char **arguments)
{
	if (count == 2 && strcmp(arguments[1], "child") == 0)
		return write(100, block, 11) != 11;
	EXPECT(count == 2);
	int opened = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
	EXPECT(opened >= 0 && dup2(opened, 100) == 100 && close(opened) == 0);
	fd = 100;
	threads();
	signal_handler();
	children(arguments[0]);
	cancel();
	calls(arguments[1]);
	errors();
	stdio(arguments[1]);
	EXPECT(close(fd) == 0);
	printf("%ld\n", written);
	return 0;
}
