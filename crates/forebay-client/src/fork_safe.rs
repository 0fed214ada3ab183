//! State of a process that a forked child must not share.

use crate::lock::lock;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Something behind a lock that a forked child starts from scratch, with a lock of its own: another
/// thread of the parent may have held the parent's lock at the fork, and in the child nobody would
/// ever release it.
#[derive(Debug)]
pub(crate) struct OwnLock<T>(AtomicPtr<Own<T>>);

#[derive(Debug)]
struct Own<T> {
    pid: u32,
    value: Mutex<T>,
    #[allow(
        dead_code,
        reason = "what is never freed stays in reach, so that tools that look for leaks find none"
    )]
    forked_from: *mut Own<T>,
}

impl<T: Default> Own<T> {
    fn new(forked_from: *mut Self) -> *mut Self {
        let (pid, value) = (std::process::id(), Mutex::default());
        Box::into_raw(Box::new(Own { pid, value, forked_from }))
    }
}

impl<T: Default> Default for OwnLock<T> {
    fn default() -> Self {
        OwnLock(AtomicPtr::new(Own::new(std::ptr::null_mut())))
    }
}

impl<T: Default> OwnLock<T> {
    /// Locks the state of this process.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let current = self.0.load(Ordering::Acquire);
        // SAFETY: whatever the pointer ever was stays allocated until `self` is dropped.
        let own = unsafe { &*current };
        if own.pid == std::process::id() { lock(&own.value) } else { self.start_anew(current) }
    }

    fn start_anew(&self, parents: *mut Own<T>) -> MutexGuard<'_, T> {
        let fresh = Own::new(parents);
        let set = self.0.compare_exchange(parents, fresh, Ordering::AcqRel, Ordering::Acquire);
        let current = match set {
            Ok(_) => {
                // The parent's stays allocated, once for each fork: its lock may be held for ever.
                // If it is not, what it holds goes, such as copies of the parent's connections.
                // SAFETY: as in `lock`.
                match unsafe { &*parents }.value.try_lock() {
                    Ok(mut value) => *value = T::default(),
                    Err(TryLockError::Poisoned(value)) => *value.into_inner() = T::default(),
                    Err(TryLockError::WouldBlock) => {}
                }
                fresh
            }
            Err(others) => {
                // SAFETY: nobody else has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                others
            }
        };
        // SAFETY: as in `lock`.
        unsafe { &*current }.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Drop for OwnLock<T> {
    fn drop(&mut self) {
        let own = std::mem::replace(self.0.get_mut(), std::ptr::null_mut());
        // SAFETY: it was made by `Own::new`, and nobody has `self` any more. What a child of a fork
        // drops is its copy of it.
        drop(unsafe { Box::from_raw(own) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_does_not_wait_for_a_lock_that_a_thread_of_its_parent_holds() {
        let own = OwnLock::<u32>::default();
        let mut held = own.lock();
        *held = 7;
        // SAFETY: the child makes system calls, allocates (which libc allows after a fork), and
        // ends.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: a system call without pointers. It ends the child if it hangs.
                unsafe { libc::alarm(30) };
                let fresh = *own.lock() == 0;
                *own.lock() = 1;
                // SAFETY: ends the child without what the parent has registered for its exit.
                unsafe { libc::_exit(if fresh && *own.lock() == 1 { 0 } else { 1 }) }
            }
            child => {
                let mut status = 0;
                // SAFETY: the status lives on this stack.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                assert_eq!(status, 0, "it hung, or had the state of its parent");
            }
        }
        drop(held);
        assert_eq!(*own.lock(), 7);
    }
}
