//! How many open files stay registered with the agent.
//!
//! A registered file takes memory and descriptors, and programs keep open far more files than they
//! read. So only the last ones stay registered, those in use before others.

use crate::device::descriptors_max;
use crate::handles::Handle;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Files that stay registered, at most an eighth of the descriptors. Each takes up to 5 KiB of
/// memory and two descriptors.
const REGISTERED_MAX: usize = 4096;

/// Limit on the files in use that are passed over for one that is not.
const PASSED_OVER_MAX: usize = 8;

/// Open files that are registered with the agent, in the order of their registration.
#[derive(Debug, Default)]
pub struct Registered(Mutex<VecDeque<Weak<Handle>>>);

impl Registered {
    /// Adds a file. If there are too many, one of the oldest is no longer registered.
    pub fn add(&self, handle: &Arc<Handle>) {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(Arc::downgrade(handle));
        if queue.len() <= REGISTERED_MAX.min(descriptors_max() / 8) {
            return;
        }
        let mut oldest = None;
        for _ in 0..=PASSED_OVER_MAX {
            if let Some(in_use) = oldest.take() {
                queue.push_back(Arc::downgrade(&in_use));
            }
            oldest = queue.pop_front().and_then(|handle| handle.upgrade());
            if oldest.as_ref().is_none_or(|handle| !handle.served.is_in_use()) {
                break;
            }
        }
        drop(queue);
        // This closes descriptors, which may ask the PFS; so not under the lock.
        if let Some(handle) = oldest {
            handle.served.rest();
        }
    }
}
