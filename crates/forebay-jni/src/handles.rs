//! The things of which Java holds numbers.
//!
//! A table costs a lock and a count for each call, some tens of nanoseconds, where an address would
//! cost nothing. In return, no mistake in Java, nor a close in one thread during a read in another,
//! can touch memory that is gone: a call that has looked up a thing keeps it until it is over.
//! Numbers are never used twice.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Things by number; numbers are positive.
pub struct Handles<T> {
    next: AtomicI64,
    things: RwLock<BTreeMap<i64, Arc<T>>>,
}

impl<T> Handles<T> {
    /// An empty table.
    pub const fn new() -> Self {
        Handles { next: AtomicI64::new(1), things: RwLock::new(BTreeMap::new()) }
    }

    /// Keeps `thing`; returns its number.
    pub fn put(&self, thing: T) -> i64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.things.write().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::new(thing));
        handle
    }

    /// The thing of that number.
    ///
    /// # Errors
    /// `EBADF`: there is none, or none any more.
    pub fn get(&self, handle: i64) -> io::Result<Arc<T>> {
        let things = self.things.read().unwrap_or_else(PoisonError::into_inner);
        things.get(&handle).cloned().ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// Forgets the thing of that number; it ends when the last call that uses it does. `None`: it
    /// was taken before.
    pub fn take(&self, handle: i64) -> Option<Arc<T>> {
        self.things.write().unwrap_or_else(PoisonError::into_inner).remove(&handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_good_until_it_is_taken_and_never_again() {
        let table = Handles::new();
        let (a, b) = (table.put("a"), table.put("b"));
        assert!(a > 0 && b > 0 && a != b);
        let held = table.get(a).unwrap();
        assert_eq!(table.take(a).as_deref(), Some(&"a"));
        assert_eq!(*held, "a", "whoever has it may go on");
        assert!(table.take(a).is_none());
        for gone in [a, 0, -1, 99] {
            assert_eq!(table.get(gone).unwrap_err().raw_os_error(), Some(libc::EBADF));
        }
        assert!(table.put("c") > b);
        assert_eq!(*table.get(b).unwrap(), "b");
    }
}
