/*
 * The wall clock of a program is ahead by as many seconds as the file FOREBAY_TEST_CLOCK has bytes.
 * Other clocks stay.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    const char *file = getenv("FOREBAY_TEST_CLOCK");
    struct stat stat_of_file;
    if (result == 0 && clock == CLOCK_REALTIME && file && stat(file, &stat_of_file) == 0)
        now->tv_sec += stat_of_file.st_size;
    return result;
}
