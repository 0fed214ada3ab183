/*
 * Functions of the C library that may return twice, on another stack, or that look at where they
 * were called from: ours must leave them by a jump, without a frame of its own. The compiler makes
 * a jump of a call in the last place (-foptimize-sibling-calls, part of -O2).
 *
 * The exported names are in bare_calls.rs and jump here: see print.c.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>

typedef long number_t(long, long, long, long, long, long, long);

int forebay_preload_is_watched(long number);
long forebay_preload_watched(number_t *next, const long *arguments);
void forebay_preload_loads(int is_apart);
void forebay_preload_shares_descriptors(void);

static long missing(void)
{
	errno = ENOSYS;
	return -1;
}

/* The next definition of a function, looked up once. */
static inline void *next(void **found, const char *name)
{
	void *at = __atomic_load_n(found, __ATOMIC_RELAXED);
	if (!at) {
		at = dlsym(RTLD_NEXT, name);
		if (!at)
			at = (void *)missing;
		__atomic_store_n(found, at, __ATOMIC_RELAXED);
	}
	return at;
}

long forebay_preload_syscall(long number, long a, long b, long c, long d, long e, long f)
{
	static void *found;
	number_t *call = (number_t *)next(&found, "syscall");
	if (forebay_preload_is_watched(number)) {
		long arguments[] = {number, a, b, c, d, e, f};
		return forebay_preload_watched(call, arguments);
	}
	return call(number, a, b, c, d, e, f);
}

int forebay_preload_clone(int (*run)(void *), void *stack, int flags, void *argument, void *parent, void *tls,
                          void *child)
{
	static void *found;
	int (*call)(int (*)(void *), void *, int, void *, void *, void *, void *) = next(&found, "clone");
	if ((flags & CLONE_FILES) && !(flags & CLONE_VM))
		forebay_preload_shares_descriptors();
	return call(run, stack, flags, argument, parent, tls, child);
}

void *forebay_preload_dlopen(const char *file, int mode)
{
	static void *found;
	void *(*call)(const char *, int) = next(&found, "dlopen");
	forebay_preload_loads(0);
	return call(file, mode);
}

void *forebay_preload_dlmopen(Lmid_t namespace, const char *file, int mode)
{
	static void *found;
	void *(*call)(Lmid_t, const char *, int) = next(&found, "dlmopen");
	forebay_preload_loads(namespace != LM_ID_BASE);
	return call(namespace, file, mode);
}
