//! The library that is preloaded into programs nobody can change: `libforebay_preload.so`.
//!
//! It takes the place of the C library's I/O functions, calls the next definition of each, and
//! observes what passes through. Three concerns have a file each, and other uses of preloading join
//! as further files:
//!
//! - `next.rs` finds the functions that stand behind ours (`dlsym(RTLD_NEXT)`).
//! - `paths.rs` decides which files are the PFS's, and `descriptors.rs` remembers it of each open
//!   descriptor.
//! - `observer.rs` counts, in memory that the agent reads. `calls.rs` and `stdio.rs` have the
//!   functions that take the C library's places.
//!
//! **It must not be noticed.** It changes no byte, no result and no `errno`. It runs in any
//! program, in signal handlers, between `fork` and `exec`, and before `main`: so it takes no lock,
//! allocates nothing, keeps no thread-local state, starts no thread, panics nowhere, and uses of
//! `std` only what `core` has. A write costs a look into a table and a few additions, and no system
//! call. If something is missing (the variables, the region, `/proc`), it does nothing at all.
//!
//! What it cannot see: programs that are statically linked, set-user-ID or started with an empty
//! environment; system calls that do not go through the C library; shared mappings of files; the
//! `putc_unlocked` that compilers expand in place.

// What it takes the place of is not for tests of its own parts.
#[cfg(not(test))]
mod calls;
mod descriptors;
#[cfg(not(test))]
mod next;
#[cfg(not(test))]
mod observer;
mod paths;
#[cfg(not(test))]
mod stdio;

/// The source of `forebay_wire::observed` itself, because this library has no dependencies.
#[path = "../../forebay-wire/src/observed.rs"]
#[allow(dead_code, reason = "a half of it is the agent's")]
mod observed;

/// Runs when the library is loaded, before `main`.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = observer::attach;

/// Runs when the process ends in order.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOADED: extern "C" fn() = observer::detach;
