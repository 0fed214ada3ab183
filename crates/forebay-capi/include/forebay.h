/*
 * libforebay: files on a parallel file system (PFS) at memory speed.
 *
 *     #include <forebay.h>
 *     cc program.c $(pkg-config --cflags --libs forebay)
 *
 * Paths have the same meaning as in open(2). The library opens a path with the program's own rights
 * and sends the descriptor to this node's agent. From then on it copies bytes in the agent's RAM
 * tier from shared memory; the agent fetches missing bytes, or the library reads them from the PFS.
 * If the agent is missing, dead or slow, the library reads everything from the PFS, and prints one
 * line on stderr. So nearly every error below is an error of the PFS.
 *
 * Errors. Functions that fail return -1 or NULL and set errno. They store a text for the calling
 * thread that names the file and the remedy (forebay_last_error). errno has the same meaning as in
 * the corresponding POSIX call. In addition:
 *     EINVAL     an argument is invalid: NULL, a negative offset, an unknown mode
 *     ESTALE     the file's content has changed since it was opened; open it again
 *     ENODATA    not in the tier (tier-only reads, forebay_map)
 *     ENOTCONN   no agent, but the call needs one (or another error of connect(2))
 *     ETIMEDOUT  the agent did not answer in time, and the call needs it
 *     EPROTO     the agent speaks another version of the protocol
 * A successful call does not change errno and the text.
 *
 * Threads. Any thread may call all functions. Threads may share a forebay_file and read from it at
 * the same time; all threads may read a mapping. Only one thread at a time may use a
 * forebay_writer. Close a handle once, when no other call uses it. The library starts no thread and
 * installs no signal handler. Do not call it from a signal handler. The library restarts
 * interrupted system calls; no call fails with EINTR.
 *
 * Fork. After fork() in a program with one thread, the child may continue to read from open files
 * and may open others; it makes connections of its own. It must neither use nor close the parent's
 * writers and mappings: otherwise bytes would be written twice, and pages released that the parent
 * still reads. After fork() in a program with several threads only exec and _exit are safe, as in
 * POSIX. Descriptors are closed on exec.
 *
 * Environment: FOREBAY_SOCKET (the agent's socket, or "none"), FOREBAY_DEADLINE_MS (how long a read
 * waits for the agent before it reads the PFS, 10000), FOREBAY_TRUST_UID (a user whose agent the
 * program trusts, besides root and its own user), FOREBAY_QUIET=1 (no line on stderr), FOREBAY_JOB
 * (the job whose memory-only files the program uses). The library reads them once, at the first
 * call that opens, creates, loads or removes.
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
/* An HPC job whose I/O phases prefetches must not disturb. */
typedef struct forebay_job forebay_job;
/* Bytes of the tier in this program's address space. */
typedef struct forebay_mapping forebay_mapping;

/* Read modes. Cached: from the tier if resident, otherwise from the PFS, and cached. */
#define FOREBAY_READ_CACHED 0
/*
 * From the tier only; bytes that are not resident are ENODATA. The open fails with ENOTCONN if no
 * agent serves the file.
 */
#define FOREBAY_READ_TIER_ONLY 1
/* From the PFS only, not cached, as without Forebay. */
#define FOREBAY_READ_PFS_ONLY 2

/* Write modes. Bypass: to the PFS only. */
#define FOREBAY_WRITE_BYPASS 0
/*
 * To the PFS, and to the tier for the next reader. The PFS decides whether a write succeeds; the
 * tier never makes it fail.
 */
#define FOREBAY_WRITE_THROUGH 1
/*
 * To this node's memory, for this job: lost with the job, the agent or the node, and never on the
 * PFS.
 */
#define FOREBAY_WRITE_MEMORY_ONLY 2
/*
 * To this node's memory, and by the agent to the PFS after the close (write-back). Lost if the node
 * fails before that. Without room or an agent, and for files that are not empty: to the PFS.
 */
#define FOREBAY_WRITE_BACK 3

/* Flags of forebay_create. Fail with EEXIST if the file exists. */
#define FOREBAY_EXCLUSIVE 1u
/*
 * Keep the content and write at the end of the file (O_APPEND). The data of one call stays
 * together. The tier does not keep appended bytes. Not for memory-only files.
 */
#define FOREBAY_APPEND 2u

/* Flags of forebay_job_open. Phases of the job wait for those of others that share. */
#define FOREBAY_JOB_SHARES 1u

/* The library's version, such as "0.1.0". Never NULL, never freed. */
const char *forebay_version(void);

/*
 * The message of the last failed call of this thread, "" if none has failed. Never NULL. Valid
 * until the next failing call of this thread, or its end; do not free it.
 */
const char *forebay_last_error(void);

/* forebay_open_mode(path, FOREBAY_READ_CACHED). */
forebay_file *forebay_open(const char *path);

/*
 * Opens `path` for reading in one of the modes FOREBAY_READ_*. All bytes read from the handle are
 * of the opened version of the file. A memory-only file of this job hides a file of the
 * same path, except from FOREBAY_READ_PFS_ONLY. Returns NULL on failure: errno of open(2), or
 * EINVAL, ENOTCONN.
 */
forebay_file *forebay_open_mode(const char *path, int mode);

/*
 * Reads `length` bytes at `offset` into `buffer`. Returns the bytes read: fewer than `length` only
 * at the end of the file, 0 at and beyond it. -1 on failure: errno of pread(2), or EINVAL, ESTALE,
 * ENODATA; the buffer may have been written to.
 */
ssize_t forebay_pread(forebay_file *file, void *buffer, size_t length, int64_t offset);

/*
 * Length of the file: of the opened version, or, if no agent serves the file, its current length.
 * -1 on failure.
 */
int64_t forebay_size(const forebay_file *file);

/*
 * Bytes of the file that are in the tier now; 0 if no agent serves it. The number may shrink at any
 * time. -1 on failure.
 */
int64_t forebay_resident(const forebay_file *file);

/*
 * Maps bytes [offset, offset + length) of the file directly from the tier, without a copy. They are
 * read-only, of the opened version, and stay in memory until forebay_unmap with the handle in
 * `*mapping`; the file may be closed before. The agent limits the bytes that are pinned this way.
 * Writing to the bytes raises SIGSEGV. Returns NULL on failure, without a change of `*mapping`:
 * ENODATA if some of the bytes are not in the tier or may not be pinned (read them with
 * forebay_pread instead), EINVAL if `length` is 0 or the range exceeds the file.
 */
const void *forebay_map(forebay_file *file, int64_t offset, size_t length, forebay_mapping **mapping);

/* Ends a mapping; its bytes must not be read afterwards. NULL is allowed. Returns 0. */
int forebay_unmap(forebay_mapping *mapping);

/* Closes a file. NULL is allowed. Returns 0. */
int forebay_close(forebay_file *file);

/*
 * Opens `path` for writing in one of the modes FOREBAY_WRITE_*. Creates it with `permissions` (such
 * as 0666, less the umask) if it does not exist, and truncates it unless `flags` has
 * FOREBAY_APPEND. Returns NULL on failure: errno of open(2), or EINVAL; for memory-only files also
 * ENOTCONN without an agent and ENOSPC without room.
 */
forebay_writer *forebay_create(const char *path, int mode, unsigned int flags, unsigned int permissions);

/*
 * As forebay_create. If the file is new, the PFS lays it out on its servers as `layout` says, such
 * as "stripes:8,size:4MiB,pool:flash" (docs/checkpoints.md). If the PFS cannot do that, the file is
 * created without the layout, and the library prints one line on stderr.
 */
forebay_writer *forebay_create_layout(const char *path, int mode, unsigned int flags,
                                      unsigned int permissions, const char *layout);

/*
 * Writes all of `length` bytes after the bytes written so far, and returns `length`. The library
 * collects small writes to 1 MiB, so a later write, forebay_sync or forebay_close_writer may report
 * an error of the PFS. After a failure the number of written bytes is unknown: close the writer,
 * and start again. -1 on failure: errno of write(2); memory-only also ENOSPC, ENOTCONN.
 */
ssize_t forebay_write(forebay_writer *writer, const void *buffer, size_t length);

/*
 * Makes the written bytes durable, as fsync(2) does; has no effect on memory-only files, nor in
 * write-back, where `forebay sync` waits for the PFS. -1 on failure.
 */
int forebay_sync(forebay_writer *writer);

/*
 * Writes the remaining bytes and closes. After it has returned 0 the next open finds the bytes, in
 * the tier if they were written through and the tier had room. -1: the last bytes could not be
 * written. The handle is closed in any case. NULL is allowed.
 */
int forebay_close_writer(forebay_writer *writer);

/*
 * Removes the memory-only file of this path if this job has one, otherwise the file on the PFS. -1:
 * errno of unlink(2).
 */
int forebay_remove(const char *path);

/*
 * Loads `count` files into the tier and waits until they are resident. Reads at most
 * `rate_bytes_per_s` from the PFS (0: no limit). Returns the number of files that are entirely
 * resident; if it is less than `count`, errno and forebay_last_error describe the first one that is
 * not. -1 without an agent (ENOENT, ECONNREFUSED, ENOTCONN), or if the agent ends or refuses.
 */
int64_t forebay_load(const char *const *paths, size_t count, uint64_t rate_bytes_per_s);

/*
 * Opens an HPC job at this node's agent. One process speaks for the job, for instance MPI rank 0.
 * Handles of one user with the same `name` are one job, also on different nodes. A phase of the job
 * may take `allowance_permille` thousandths longer than without interference (50 is 5 %).
 * `processes` is the job's weight beside other jobs. The job ends with forebay_job_close or with
 * the process. Returns NULL on failure: EINVAL, ENOTCONN (or another error of connect(2)) without
 * an agent, or EIO if the agent refuses. A program goes on without the job then: its I/O does not
 * depend on it. All calls below accept a handle from several threads.
 */
forebay_job *forebay_job_open(const char *name, unsigned int allowance_permille, unsigned int processes,
                              unsigned int flags);

/*
 * The next phases write to these `count` files, which exist, and to `bytes[i]` bytes of each; 0, or
 * `bytes` NULL: to the whole file. A job that shares then waits only for jobs that write to the
 * same servers. It waits for all without files, or if the file system does not report servers. -1
 * on failure: a file cannot be opened, the files are on too many servers, or there is no agent.
 */
int forebay_job_writes_to(const forebay_job *job, const char *const *paths, const uint64_t *bytes, size_t count);

/*
 * An I/O phase of the job begins. `bytes`: how much all processes together read or write in it; 0
 * if unknown. `deadline_ms`: when it has to be over, from now; 0 to let Forebay derive it from the
 * allowance and from earlier phases. Nothing is prefetched beside the first phase of a job with
 * `deadline_ms` 0; it teaches the job's speed. If the job shares, this waits until it may write,
 * but for no longer than the agent's cluster.access_wait_s, and not without a coordinator. -1 on
 * failure: a phase is under way, or there is no agent.
 */
int forebay_phase_begin(const forebay_job *job, uint64_t bytes, uint64_t deadline_ms);

/*
 * The phase has moved `bytes` since it began. Report about every tenth of a second: a phase that
 * falls behind stops all prefetches. Does not wait for the agent. -1 on failure.
 */
int forebay_phase_progress(const forebay_job *job, uint64_t bytes);

/* The phase is over. -1 on failure. */
int forebay_phase_end(const forebay_job *job);

/* Closes a job, and ends its phase. NULL is allowed. Returns 0. */
int forebay_job_close(forebay_job *job);

#ifdef __cplusplus
}
#endif

#endif
