/*
 * Counts lines, words and bytes of files, as wc(1) does, reading them through Forebay.
 *
 *     cc -O2 wordcount.c -o wordcount $(pkg-config --cflags --libs forebay)
 *     ./wordcount [-n PASSES] [--load] FILE...
 *
 * The program counts resident bytes in place, without a copy, and reads the others into a buffer.
 * The rate goes to stderr, so that the counts can be compared with wc's. With PASSES > 1 the later
 * passes show the gain from the tier.
 */
#include <ctype.h>
#include <errno.h>
#include <forebay.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Large enough to make the cost of a call negligible, small enough for the L2 cache. */
enum { BUFFER_BYTES = 1 << 20 };

struct counts {
    uint64_t lines, words, bytes;
    /* Of `bytes`, those that were not copied. */
    uint64_t mapped_bytes;
    /* The last byte seen was part of a word. */
    int in_word;
};

static void count(struct counts *total, const unsigned char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        int space = isspace(bytes[i]);
        total->lines += bytes[i] == '\n';
        total->words += !space && !total->in_word;
        total->in_word = !space;
    }
    total->bytes += length;
}

/* Counts one file; returns 0, or -1 with what went wrong in forebay_last_error(). */
static int count_file(struct counts *total, const char *path, unsigned char *buffer)
{
    forebay_file *file = forebay_open(path);
    if (!file)
        return -1;
    int64_t size = forebay_size(file), at = 0;
    total->in_word = 0;
    while (size >= 0) {
        int64_t left = size > at ? size - at : 0;
        size_t want = left > BUFFER_BYTES ? BUFFER_BYTES : (size_t)left;
        forebay_mapping *mapping;
        const void *bytes = want > 0 ? forebay_map(file, at, want, &mapping) : NULL;
        if (bytes) {
            count(total, bytes, want);
            total->mapped_bytes += want;
            at += (int64_t)want;
            forebay_unmap(mapping);
            continue;
        }
        ssize_t got = forebay_pread(file, buffer, BUFFER_BYTES, at);
        if (got < 0)
            size = -1;
        if (got <= 0)
            break;
        count(total, buffer, (size_t)got);
        at += got;
    }
    forebay_close(file);
    return size < 0 ? -1 : 0;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int pass(int files, char **paths, unsigned char *buffer, int print)
{
    struct counts total = {0};
    double start_s = now_s();
    int failed = 0;
    for (int i = 0; i < files; i++) {
        if (count_file(&total, paths[i], buffer) != 0) {
            fprintf(stderr, "wordcount: %s\n", forebay_last_error());
            failed = 1;
        }
    }
    double took_s = now_s() - start_s;
    if (print)
        printf("%llu %llu %llu\n", (unsigned long long)total.lines, (unsigned long long)total.words,
               (unsigned long long)total.bytes);
    fprintf(stderr, "%.1f MB in %.3f s: %.1f MB/s, %llu bytes of them without a copy\n", (double)total.bytes / 1e6,
            took_s, (double)total.bytes / 1e6 / took_s, (unsigned long long)total.mapped_bytes);
    return failed;
}

int main(int argc, char **argv)
{
    long passes = 1;
    int first = 1, load = 0;
    for (; first < argc && argv[first][0] == '-'; first++) {
        if (strcmp(argv[first], "--load") == 0)
            load = 1;
        else if (strcmp(argv[first], "-n") == 0 && first + 1 < argc)
            passes = strtol(argv[++first], NULL, 10);
        else
            first = argc;
    }
    if (first >= argc || passes < 1) {
        fprintf(stderr, "usage: wordcount [-n PASSES] [--load] FILE...   (libforebay %s)\n", forebay_version());
        return 2;
    }
    int files = argc - first;
    if (load && forebay_load((const char *const *)argv + first, (size_t)files, 0) < files)
        fprintf(stderr, "wordcount: not all is loaded: %s\n", forebay_last_error());
    unsigned char *buffer = malloc(BUFFER_BYTES);
    if (!buffer) {
        perror("wordcount");
        return 1;
    }
    int failed = 0;
    for (long nth = 1; nth <= passes; nth++)
        failed |= pass(files, argv + first, buffer, nth == passes);
    free(buffer);
    return failed;
}
