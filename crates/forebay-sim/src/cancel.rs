//! Stopping runs early: for a caller that no longer waits for them, such as a notebook after
//! Ctrl-C.
//!
//! The flag belongs to a thread and not to the arguments of a run: runs start deep inside
//! `compare`, `sweep` and the papers' reproductions, none of which does anything else with it.
//! [`crate::parallel`] passes it on to its threads.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static CURRENT: RefCell<Option<Cancel>> = const { RefCell::new(None) };
}

/// A flag that stops the runs of all threads that watch it.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Stops them: each returns an error before its next event.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was called.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Does `work` in this thread; its runs watch this flag.
    pub fn watch<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Restores the previous flag, even if `work` panics.
        struct Before(Option<Cancel>);
        impl Drop for Before {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }
        let _before = Before(CURRENT.replace(Some(self.clone())));
        work()
    }
}

/// The flag that this thread's runs watch; if there is none, one that nobody sets.
pub fn current() -> Cancel {
    CURRENT.with_borrow(Clone::clone).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_watched_while_the_work_lasts() {
        let (outer, inner) = (Cancel::default(), Cancel::default());
        inner.cancel();
        let seen = outer.watch(|| {
            let inside = inner.watch(|| current().is_cancelled());
            (inside, current().is_cancelled())
        });
        assert_eq!(seen, (true, false));
        outer.cancel();
        assert!(!current().is_cancelled());
    }
}
