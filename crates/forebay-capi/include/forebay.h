/*
 * libforebay: files on a parallel file system (PFS) at memory speed.
 *
 *     #include <forebay.h>
 *     cc program.c $(pkg-config --cflags --libs forebay)
 *
 * A path means what it means to open(2). The library opens it with the program's own rights and
 * shows the descriptor to this node's agent; from then on, what is in the agent's RAM tier is
 * copied from shared memory, and the rest is brought by the agent or read from the PFS. Without an
 * agent, or with one that is dead or slow, everything is read from the PFS and a program sees
 * nothing of it but one line on stderr. So nearly every error below is an error of the PFS.
 *
 * Errors. Functions that fail return -1 or NULL, set errno, and leave a text for the calling thread
 * that names the file and says what to do (forebay_last_error). errno is as POSIX has it for the
 * like-named call. Beyond that:
 *     EINVAL     an argument makes no sense: NULL, a negative offset, an unknown mode
 *     ESTALE     the file's content was changed after it was opened; open it again
 *     ENODATA    not in the tier (tier-only reads, forebay_map)
 *     ENOTCONN   there is no agent, and the call cannot do without one (or another error of
 *                connect(2))
 *     ETIMEDOUT  the agent did not answer in time, and the call is none that could do without
 *     EPROTO     the agent speaks another version of the protocol
 * A success leaves errno and the text alone.
 *
 * Threads. All functions may be called from any thread. Threads may share a forebay_file and read
 * from it at the same time; a mapping may be read by all threads. A forebay_writer is for one
 * thread at a time. A handle is closed once, when no other call uses it. The library starts no
 * thread and installs no signal handler. A call must not be made from a signal handler. An
 * interrupted system call is taken up again; no call fails with EINTR.
 *
 * Fork. After fork() in a program with one thread the child may go on reading from open files and
 * may open others; it makes connections of its own. It must neither use nor close the parent's
 * writers and mappings: bytes would be written twice, and pages let go that the parent still reads.
 * After fork() in a program with several threads only exec and _exit are safe, as POSIX has it.
 * Descriptors are closed on exec.
 *
 * Environment: FOREBAY_SOCKET (the agent's socket, or "none"), FOREBAY_DEADLINE_MS (how long a read
 * waits for the agent before it reads the PFS, 10000), FOREBAY_TRUST_UID (a user whose agent is
 * believed, beside root and oneself), FOREBAY_QUIET=1 (no line on stderr), FOREBAY_JOB (the job
 * whose memory-only files are meant). Read once, at the first call that opens, creates, loads or
 * removes.
 *
 * All sizes and offsets are in bytes.
 */
#ifndef FOREBAY_H
#define FOREBAY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Number of this interface; part of the library's soname. */
#define FOREBAY_ABI 0

/* A file open for reading. */
typedef struct forebay_file forebay_file;
/* A file open for writing. */
typedef struct forebay_writer forebay_writer;
/* Bytes of the tier in this program's address space. */
typedef struct forebay_mapping forebay_mapping;

/* Read modes. Cached: from the tier if the bytes are there, else from the PFS, kept on the way. */
#define FOREBAY_READ_CACHED 0
/*
 * From the tier only; what is not there is ENODATA. Opening fails with ENOTCONN where no agent
 * serves the file.
 */
#define FOREBAY_READ_TIER_ONLY 1
/* From the PFS only, not kept: what the program would get without Forebay. */
#define FOREBAY_READ_PFS_ONLY 2

/* Write modes. Bypass: to the PFS only. */
#define FOREBAY_WRITE_BYPASS 0
/*
 * To the PFS, and kept in the tier for the next reader. The promise is the PFS's; the tier cannot
 * fail a write.
 */
#define FOREBAY_WRITE_THROUGH 1
/*
 * To this node's memory, for this job: gone with the job, the agent or the node, and never on the
 * PFS.
 */
#define FOREBAY_WRITE_MEMORY_ONLY 2

/* Flags of forebay_create. Fail with EEXIST if the file exists. */
#define FOREBAY_EXCLUSIVE 1u
/*
 * Keep what is there and write at the end of the file (O_APPEND). The data of one call stays
 * together. What is appended is not kept in
   the tier. Not for memory-only files. */
#define FOREBAY_APPEND 2u

/* The library's version, such as "0.1.0". Never NULL, never freed. */
const char *forebay_version(void);

/*
 * What the last failed call of this thread has to say, "" if none has failed. Never NULL. Valid
 * until the next call of this thread that fails, or its end; not to be freed.
 */
const char *forebay_last_error(void);

/* forebay_open_mode(path, FOREBAY_READ_CACHED). */
forebay_file *forebay_open(const char *path);

/*
 * Opens `path` for reading in one of the modes FOREBAY_READ_*. All bytes read from the handle are
 * of the version of the file that was opened. A memory-only file of this job hides a file of the
 * same path, except from FOREBAY_READ_PFS_ONLY. Returns NULL on failure: errno of open(2), or
 * EINVAL, ENOTCONN.
 */
forebay_file *forebay_open_mode(const char *path, int mode);

/*
 * Reads `length` bytes at `offset` into `buffer`. Returns the bytes read: fewer than `length` only
 * at the end of the file, 0 at and behind it. -1 on failure: errno of pread(2), or EINVAL, ESTALE,
 * ENODATA; the buffer may have been written to.
 */
ssize_t forebay_pread(forebay_file *file, void *buffer, size_t length, int64_t offset);

/*
 * Length of the file: of the version that was opened, or, where no agent serves the file, now. -1
 * on failure.
 */
int64_t forebay_size(const forebay_file *file);

/*
 * How much of the file is in the tier now; 0 where no agent serves it. A moment later it may be
 * less. -1 on failure.
 */
int64_t forebay_resident(const forebay_file *file);

/*
 * Bytes [offset, offset + length) of the file straight from the tier, without a copy. They are
 * read-only, of the version that was opened, and stay in memory until forebay_unmap, which takes
 * the handle stored in `*mapping`; the file may be closed before. The agent bounds what may be
 * pinned so. Writing to the bytes is a SIGSEGV. Returns NULL on failure, and `*mapping` is not
 * touched: ENODATA if not all of the bytes are in the tier or may be pinned (read them with
 * forebay_pread instead), EINVAL if `length` is 0 or the range leaves the file.
 */
const void *forebay_map(forebay_file *file, int64_t offset, size_t length, forebay_mapping **mapping);

/* Ends a mapping; its bytes must not be read any more. NULL is allowed. Returns 0. */
int forebay_unmap(forebay_mapping *mapping);

/* Closes a file. NULL is allowed. Returns 0. */
int forebay_close(forebay_file *file);

/*
 * Opens `path` for writing in one of the modes FOREBAY_WRITE_*; makes it with `permissions` (such
 * as 0666, less the umask) if need be, and empties it unless `flags` holds FOREBAY_APPEND. Returns
 * NULL on failure: errno of open(2), or EINVAL; for memory-only files also ENOTCONN without an
 * agent and ENOSPC without room.
 */
forebay_writer *forebay_create(const char *path, int mode, unsigned int flags, unsigned int permissions);

/*
 * Writes all of `length` bytes behind what was written so far, and returns `length`. Small writes
 * are gathered to 1 MiB, so an error of the PFS may come with a later write, with forebay_sync or
 * with forebay_close_writer. After a failure how much was written is unknown: close, and start
 * over. -1 on failure: errno of write(2); memory-only also ENOSPC, ENOTCONN.
 */
ssize_t forebay_write(forebay_writer *writer, const void *buffer, size_t length);

/*
 * Makes what was written durable, as fsync(2) does; nothing for memory-only files. -1 on failure.
 */
int forebay_sync(forebay_writer *writer);

/*
 * Writes what is left and closes. After it has returned 0 the next open finds the bytes, and in the
 * tier if they were written through and there was room. -1: the last bytes could not be written.
 * The handle is gone in any case. NULL is allowed.
 */
int forebay_close_writer(forebay_writer *writer);

/*
 * Removes the memory-only file of this path if this job has one, else the file on the PFS. -1:
 * errno of unlink(2).
 */
int forebay_remove(const char *path);

/*
 * Brings `count` files into the tier and waits until they are there, taking at most
 * `rate_bytes_per_s` from the PFS (0: no limit). Returns how many files are wholly there; if that
 * is fewer than `count`, errno and forebay_last_error tell of the first that is not. -1 if there is
 * no agent (ENOENT, ECONNREFUSED, ENOTCONN), or it is gone or refuses.
 */
int64_t forebay_load(const char *const *paths, size_t count, uint64_t rate_bytes_per_s);

#ifdef __cplusplus
}
#endif

#endif
