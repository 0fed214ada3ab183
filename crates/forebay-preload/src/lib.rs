//! The library that is preloaded into unchanged programs: `libforebay_preload.so`.
//!
//! It replaces the C library's I/O functions and calls the next definition of each. An environment
//! variable switches on each of its two parts; without these variables it does nothing.
//!
//! - The *observer* counts what passes through, in memory that the agent reads (`observer.rs`,
//!   `descriptors.rs`).
//! - The *interception* serves reads and mappings from the tier (`tier.rs`, with the client core in
//!   `served.rs` and `mapping.rs`), and has files written there first (`absorb.rs`, `stat.rs`).
//!   `handles.rs` has the table of descriptors, `position.rs` their positions, `own_files.rs` this
//!   library's own descriptors, `report.rs` what is counted, `unserved.rs` what is said if nothing
//!   is served, and `inside.rs` with `heap.rs` what makes it safe to run the client core in a
//!   foreign process.
//!
//! `bare_calls.rs` recognizes programs that may close descriptors unseen.
//!
//! Common to both: `kernel.rs` makes this library's own system calls, `next.rs` finds the functions
//! that ours replace (`dlsym(RTLD_NEXT)`), `paths.rs` decides which files are the PFS's, and
//! `calls.rs`, `control.rs`, `stat.rs` and `stdio.rs` have the replacement functions.
//!
//! **It must not be noticed.** It changes no byte, no result and no `errno`. It runs in any
//! program, in signal handlers, between `fork` and `exec`, and before `main`. So the observer takes
//! no lock, allocates nothing, and uses only the part of `std` that is in `core`; a write costs a
//! table lookup and a few additions, but no system call. The interception has its own memory, and a
//! thread enters it once. It leaves to the kernel all calls from inside, calls that fail, and all
//! calls in a child that was forked at the wrong moment. Neither part starts a thread.
//! If something is missing (the variables, the region, the agent, `/proc`), nothing happens.
//!
//! What it cannot see: programs that are statically linked, set-user-ID or started with an empty
//! environment; system calls that do not go through the C library; what the dynamic linker maps;
//! reads of stdio, which are the C library's own; the `putc_unlocked` that compilers expand in
//! place.

// The parts that replace the C library's functions are left out of the unit tests.
#[cfg(not(test))]
mod absorb;
#[cfg(not(test))]
mod allocator;
mod bare_calls;
#[cfg(not(test))]
mod calls;
#[cfg(not(test))]
mod control;
mod descriptors;
mod elsewhere;
mod handles;
mod heap;
#[cfg(not(test))]
mod inside;
mod kernel;
#[cfg(not(test))]
mod layout;
#[cfg(not(test))]
mod mapping;
#[cfg(not(test))]
mod next;
#[cfg(not(test))]
mod observer;
#[cfg(not(test))]
mod own_files;
mod paths;
mod position;
#[cfg(not(test))]
mod report;
#[cfg(not(test))]
mod served;
#[cfg(not(test))]
mod shared;
#[cfg(not(test))]
mod stat;
#[cfg(not(test))]
mod stdio;
#[cfg(not(test))]
mod tier;
#[cfg(not(test))]
mod times;
#[cfg(not(test))]
mod unserved;

/// Runs when the library is loaded, before `main`.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: [extern "C" fn(); 2] = [observer::attach, tier::attach];

/// Runs when the process ends in order.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOADED: [extern "C" fn(); 3] = [tier::detach, absorb::detach, observer::detach];
