//! The agent's end: asked for once, seen by every thread.

use crate::lock::lock;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Wakes a thread that polls.
#[derive(Debug)]
pub struct Wake(OwnedFd);

impl Wake {
    /// A wake that nobody has called yet.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Wake(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Calls the thread.
    pub fn call(&self) {
        // Full means that a call is pending already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Clears the calls so far, which the thread has heard.
    pub fn clear(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.0, &mut count);
    }
}

impl AsFd for Wake {
    /// Readable once somebody has called.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether the agent is to end.
#[derive(Debug)]
pub struct Stop {
    stopping: AtomicBool,
    signal: (Mutex<()>, Condvar),
    /// These call the threads that poll.
    polling: [Arc<Wake>; 2],
}

impl Stop {
    /// A stop that nobody has asked for yet; asking for it calls `polling`.
    pub fn new(polling: [Arc<Wake>; 2]) -> Self {
        Stop { stopping: AtomicBool::new(false), signal: Default::default(), polling }
    }

    /// True once the agent is to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Asks the agent to end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        let _guard = lock(&self.signal.0);
        self.signal.1.notify_all();
        self.polling.iter().for_each(|wake| wake.call());
    }

    /// Waits for [`Stop::stop`], at most `limit`; returns whether it came.
    pub fn wait(&self, limit: Duration) -> bool {
        let guard = lock(&self.signal.0);
        if !self.is_stopping() {
            drop(self.signal.1.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner));
        }
        self.is_stopping()
    }
}
