/*
 * Holds the library to its header: every function, every error the header names, threads and fork.
 * Takes a directory on a file system that the agent serves, or `--no-agent` and a directory. Run by
 * crates/forebay-cli/tests/c_library.rs.
 */
#include <errno.h>
#include <fcntl.h>
#include <forebay.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                                                                     \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "%s:%d: %s; errno %d, last error: %s\n", __FILE__, __LINE__, #what, errno,                 \
                    forebay_last_error());                                                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* The call fails with this errno and says something that holds `words`. */
#define FAILS(call, number, words)                                                                                      \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        CHECK(!(call));                                                                                                \
        CHECK(errno == (number));                                                                                      \
        CHECK(strstr(forebay_last_error(), words));                                                                    \
    } while (0)

enum { SIZE = 300 * 1024 + 17 };
static unsigned char content[SIZE];
static char dir[4000], path[4096], other[4096];

static void fill(unsigned char seed)
{
    for (size_t i = 0; i < SIZE; i++)
        content[i] = (unsigned char)(i * 31 + i / 4096 + seed);
}

static void plain_write(const char *name)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0 && write(fd, content, SIZE) == SIZE && close(fd) == 0);
    /* Files just written are not believed yet (mount.stamp_granularity_ms). */
    usleep(50000);
}

static void expect_content(forebay_file *file)
{
    static _Thread_local unsigned char buffer[SIZE + 10];
    CHECK(forebay_pread(file, buffer, sizeof buffer, 0) == SIZE);
    CHECK(memcmp(buffer, content, SIZE) == 0);
}

static void arguments(void)
{
    char byte;
    forebay_mapping *mapping;
    FAILS(forebay_open(NULL) != NULL, EINVAL, "NULL");
    FAILS(forebay_open_mode(path, 3) != NULL, EINVAL, "3 is not a read mode");
    FAILS(forebay_pread(NULL, &byte, 1, 0) != -1, EINVAL, "handle");
    FAILS(forebay_size(NULL) != -1, EINVAL, "handle");
    FAILS(forebay_resident(NULL) != -1, EINVAL, "handle");
    FAILS(forebay_map(NULL, 0, 1, &mapping) != NULL, EINVAL, "handle");
    FAILS(forebay_create(path, 9, 0, 0600) != NULL, EINVAL, "9 is not a write mode");
    FAILS(forebay_create(path, 0, 4, 0600) != NULL, EINVAL, "0x4");
    FAILS(forebay_create(path, 0, 0, 01000000) != NULL, EINVAL, "permissions");
    FAILS(forebay_create(path, FOREBAY_WRITE_MEMORY_ONLY, FOREBAY_APPEND, 0600) != NULL, EINVAL, "append");
    FAILS(forebay_write(NULL, &byte, 1) != -1, EINVAL, "handle");
    FAILS(forebay_sync(NULL) != -1, EINVAL, "handle");
    FAILS(forebay_remove(NULL) != -1, EINVAL, "NULL");
    FAILS(forebay_load(NULL, 1, 0) != -1, EINVAL, "NULL");
    CHECK(forebay_load(NULL, 0, 0) == 0);
    CHECK(forebay_close(NULL) == 0 && forebay_unmap(NULL) == 0 && forebay_close_writer(NULL) == 0);
    FAILS(forebay_open("/nowhere/at/all") != NULL, ENOENT, "/nowhere/at/all");
    FAILS(forebay_create_layout(path, 0, 0, 0600, NULL) != NULL, EINVAL, "layout is NULL");
    FAILS(forebay_create_layout(path, 0, 0, 0600, "stripes:0") != NULL, EINVAL, "stripes:0");
    FAILS(forebay_create("/nowhere/at/all", 0, 0, 0600) != NULL, ENOENT, "/nowhere/at/all");
    FAILS(forebay_create(dir, 0, 0, 0600) != NULL, EISDIR, dir);
    FAILS(forebay_remove("/nowhere/at/all") != -1, ENOENT, "/nowhere/at/all");
}

static void reading(void)
{
    fill(1);
    plain_write(path);
    forebay_file *cold = forebay_open_mode(path, FOREBAY_READ_TIER_ONLY);
    unsigned char byte;
    CHECK(cold && forebay_resident(cold) == 0);
    FAILS(forebay_pread(cold, &byte, 1, 0) != -1, ENODATA, "load it first");
    forebay_mapping *mapping = NULL;
    FAILS(forebay_map(cold, 0, 1, &mapping) != NULL, ENODATA, "not all in the tier");
    CHECK(mapping == NULL && forebay_close(cold) == 0);

    snprintf(other, sizeof other, "%s/missing", dir);
    const char *paths[] = {path, other};
    errno = 0;
    CHECK(forebay_load(paths, 2, 0) == 1 && errno == ENOENT && strstr(forebay_last_error(), "missing"));

    forebay_file *file = forebay_open(path);
    CHECK(file && forebay_size(file) == SIZE && forebay_resident(file) == SIZE);
    expect_content(file);
    CHECK(forebay_pread(file, &byte, 1, SIZE) == 0 && forebay_pread(file, &byte, 1, (int64_t)1 << 60) == 0);
    CHECK(forebay_pread(file, NULL, 0, 0) == 0);
    FAILS(forebay_pread(file, &byte, 1, -1) != -1, EINVAL, "negative");
    FAILS(forebay_pread(file, NULL, 1, 0) != -1, EINVAL, "NULL");
    FAILS(forebay_map(file, 0, 0, &mapping) != NULL, EINVAL, "not within");
    FAILS(forebay_map(file, 1, SIZE, &mapping) != NULL, EINVAL, "not within");
    FAILS(forebay_map(file, -1, 1, &mapping) != NULL, EINVAL, "negative");
    FAILS(forebay_map(file, 0, 1, NULL) != NULL, EINVAL, "place");
    const unsigned char *mapped = forebay_map(file, 4095, SIZE - 4095, &mapping);
    CHECK(mapped && mapping && forebay_close(file) == 0);
    CHECK(memcmp(mapped, content + 4095, SIZE - 4095) == 0);
    CHECK(forebay_unmap(mapping) == 0);

    forebay_file *direct = forebay_open_mode(path, FOREBAY_READ_PFS_ONLY);
    CHECK(direct && forebay_resident(direct) == 0 && forebay_size(direct) == SIZE);
    expect_content(direct);
    CHECK(forebay_close(direct) == 0);
}

static void changed_while_open(void)
{
    snprintf(other, sizeof other, "%s/changed", dir);
    plain_write(other);
    forebay_file *file = forebay_open(other);
    CHECK(file);
    fill(2);
    plain_write(other);
    static unsigned char buffer[SIZE];
    FAILS(forebay_pread(file, buffer, SIZE, 0) != -1, ESTALE, "open it again");
    CHECK(forebay_close(file) == 0 && (file = forebay_open(other)));
    expect_content(file);
    CHECK(forebay_close(file) == 0 && forebay_remove(other) == 0);
    fill(1);
}

static void write_pieces(forebay_writer *writer)
{
    CHECK(writer);
    for (size_t at = 0, n = 1; at < SIZE; at += n, n = n * 3 + 1) {
        if (n > SIZE - at)
            n = SIZE - at;
        CHECK(forebay_write(writer, content + at, n) == (ssize_t)n);
    }
    CHECK(forebay_write(writer, NULL, 0) == 0);
    FAILS(forebay_write(writer, NULL, 1) != -1, EINVAL, "NULL");
    CHECK(forebay_sync(writer) == 0 && forebay_close_writer(writer) == 0);
}

static void writing(void)
{
    snprintf(other, sizeof other, "%s/written", dir);
    for (int mode = FOREBAY_WRITE_BYPASS; mode <= FOREBAY_WRITE_BACK; mode++) {
        /* A file system that takes no layout takes the file. */
        write_pieces(forebay_create_layout(other, mode, FOREBAY_EXCLUSIVE, 0640, "stripes:2,size:1MiB"));
        FAILS(forebay_create(other, mode, FOREBAY_EXCLUSIVE, 0640) != NULL, EEXIST, "written");
        struct stat stat_of;
        int on_pfs = mode != FOREBAY_WRITE_MEMORY_ONLY;
        CHECK((stat(other, &stat_of) == 0) == on_pfs);
        CHECK(!on_pfs || (stat_of.st_mode & 0777) == 0640);
        /* In write-back the PFS gets it later. */
        CHECK(!on_pfs || mode == FOREBAY_WRITE_BACK || stat_of.st_size == SIZE);
        forebay_file *file = forebay_open(other);
        CHECK(file && forebay_size(file) == SIZE);
        expect_content(file);
        CHECK(forebay_close(file) == 0 && forebay_remove(other) == 0);
        FAILS(forebay_open(other) != NULL, ENOENT, "written");
    }
    forebay_writer *writer = forebay_create(other, FOREBAY_WRITE_THROUGH, 0, 0600);
    CHECK(writer && forebay_write(writer, content, 1000) == 1000 && forebay_close_writer(writer) == 0);
    writer = forebay_create(other, FOREBAY_WRITE_THROUGH, FOREBAY_APPEND, 0600);
    CHECK(writer && forebay_write(writer, content + 1000, SIZE - 1000) == SIZE - 1000);
    CHECK(forebay_close_writer(writer) == 0);
    forebay_file *file = forebay_open(other);
    expect_content(file);
    CHECK(forebay_close(file) == 0 && forebay_remove(other) == 0);
    writer = forebay_create("/dev/full", FOREBAY_WRITE_BYPASS, 0, 0600);
    CHECK(writer && forebay_write(writer, content, 100) == 100);
    FAILS(forebay_close_writer(writer) != -1, ENOSPC, "/dev/full");
}

static void *read_many_times(void *file)
{
    CHECK(strcmp(forebay_last_error(), "") == 0);
    for (int i = 0; i < 20; i++)
        expect_content(file);
    FAILS(forebay_open("/nowhere/of/a/thread") != NULL, ENOENT, "/nowhere/of/a/thread");
    return file;
}

static void threads(void)
{
    forebay_file *file = forebay_open(path);
    CHECK(file);
    FAILS(forebay_open("/nowhere/of/main") != NULL, ENOENT, "/nowhere/of/main");
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, read_many_times, file) == 0);
    for (int i = 0; i < 4; i++) {
        void *result;
        CHECK(pthread_join(threads[i], &result) == 0 && result == file);
    }
    CHECK(strstr(forebay_last_error(), "/nowhere/of/main"));
    CHECK(forebay_close(file) == 0);
}

static void forking(void)
{
    forebay_file *file = forebay_open(path);
    CHECK(file);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        expect_content(file);
        forebay_file *again = forebay_open(path);
        forebay_mapping *mapping;
        const void *mapped = forebay_map(again, 0, SIZE, &mapping);
        CHECK(mapped && memcmp(mapped, content, SIZE) == 0);
        CHECK(forebay_unmap(mapping) == 0 && forebay_close(again) == 0 && forebay_close(file) == 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    expect_content(file);
    CHECK(forebay_close(file) == 0);
}

/* What works without an agent, and what cannot. */
static void without_agent(void)
{
    fill(3);
    plain_write(path);
    forebay_file *file = forebay_open(path);
    CHECK(file && forebay_size(file) == SIZE && forebay_resident(file) == 0);
    expect_content(file);
    forebay_mapping *mapping;
    FAILS(forebay_map(file, 0, 1, &mapping) != NULL, ENODATA, "not all in the tier");
    CHECK(forebay_close(file) == 0);
    FAILS(forebay_open_mode(path, FOREBAY_READ_TIER_ONLY) != NULL, ENOTCONN, "no agent");
    FAILS(forebay_create(path, FOREBAY_WRITE_MEMORY_ONLY, 0, 0600) != NULL, ENOTCONN, "need an agent");
    const char *paths[] = {path};
    FAILS(forebay_load(paths, 1, 0) != -1, ENOENT, "");
    write_pieces(forebay_create(path, FOREBAY_WRITE_THROUGH, 0, 0600));
    file = forebay_open(path);
    expect_content(file);
    CHECK(forebay_close(file) == 0 && forebay_remove(path) == 0);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--no-agent") == 0) {
        snprintf(dir, sizeof dir, "%s", argv[2]);
        snprintf(path, sizeof path, "%s/api", dir);
        without_agent();
        puts("all checks passed");
        return 0;
    }
    if (argc != 2)
        return 2;
    snprintf(dir, sizeof dir, "%s", argv[1]);
    snprintf(path, sizeof path, "%s/api", dir);
    CHECK(forebay_version()[0] >= '0' && strcmp(forebay_last_error(), "") == 0);
    arguments();
    reading();
    changed_while_open();
    writing();
    threads();
    forking();
    CHECK(forebay_remove(path) == 0);
    puts("all checks passed");
    return 0;
}
