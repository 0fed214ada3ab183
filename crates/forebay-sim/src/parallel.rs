//! Independent runs, in several threads.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::cancel;

/// Most threads: more than any node has cores, and fewer than a system refuses.
const THREADS_MAX: usize = 1024;

/// As many threads as the user asks for, or as there are cores.
pub fn threads(wanted: Option<NonZeroUsize>) -> usize {
    wanted.map_or_else(|| thread::available_parallelism().map_or(1, NonZeroUsize::get), NonZeroUsize::get)
}

/// Runs `of` for every number below `count` on `threads` threads; results come in ascending order,
/// whatever the threads do. Runs in these threads stop when the runs of the calling thread do.
pub fn in_parallel<T: Send>(count: usize, threads: usize, of: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= count {
                return done;
            }
            done.push((i, of(i)));
        }
    };
    let cancel = cancel::current();
    let watched = || cancel.watch(work);
    let mut all: Vec<(usize, T)> = thread::scope(|scope| {
        let workers: Vec<_> =
            (0..threads.clamp(1, count.clamp(1, THREADS_MAX))).map(|_| scope.spawn(watched)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a run has panicked")).collect()
    });
    all.sort_by_key(|(i, _)| *i);
    all.into_iter().map(|(_, result)| result).collect()
}
