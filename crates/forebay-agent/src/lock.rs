//! How this crate takes locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, and continues if a thread has panicked while it held the lock: the structures under our
/// locks are changed in single steps.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
