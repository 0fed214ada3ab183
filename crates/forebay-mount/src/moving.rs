//! Files whose names change on the PFS while a call uses them.
//!
//! The kernel looks a name up, and then calls by the node that it got. If another program renames
//! the file between the two, its name leads elsewhere: the call gets `ESTALE`, and the kernel looks
//! the name up once more. Where names change thousands of times a second, that fails as well. So
//! for a moment after such a failure each lookup keeps a descriptor of what it has found, by which
//! the call that follows reaches the file wherever it is.
//!
//! Descriptors are not kept otherwise: each would cost every lookup two calls of the PFS.

use crate::lock::lock;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long after a failure descriptors are kept.
const MOMENT: Duration = Duration::from_secs(1);

/// Most descriptors: more than there are between a lookup and the call that follows.
const KEPT_MAX: usize = 256;

/// What was looked up lately.
#[derive(Debug, Default)]
pub struct Moving {
    /// Nothing is kept while this is false.
    is_on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    failed: Option<Instant>,
    found: VecDeque<(u64, Arc<OwnedFd>)>,
}

impl Moving {
    /// Notes that a name has led elsewhere.
    pub fn failed(&self) {
        lock(&self.state).failed = Some(Instant::now());
        self.is_on.store(true, Ordering::Release);
    }

    /// Whether lookups are to keep what they find.
    pub fn is_on(&self) -> bool {
        if !self.is_on.load(Ordering::Acquire) {
            return false;
        }
        let mut state = lock(&self.state);
        if state.failed.is_some_and(|failed| failed.elapsed() < MOMENT) {
            return true;
        }
        self.is_on.store(false, Ordering::Release);
        let found = std::mem::take(&mut state.found);
        drop(state);
        // Descriptors close here, which may ask the PFS.
        drop(found);
        false
    }

    /// Keeps what a lookup has found.
    pub fn keep(&self, node: u64, descriptor: OwnedFd) {
        let mut state = lock(&self.state);
        state.found.push_back((node, Arc::new(descriptor)));
        let oldest = if state.found.len() > KEPT_MAX { state.found.pop_front() } else { None };
        drop(state);
        drop(oldest);
    }

    /// The file that was looked up as this node.
    pub fn find(&self, node: u64) -> Option<Arc<OwnedFd>> {
        if !self.is_on() {
            return None;
        }
        let state = lock(&self.state);
        state.found.iter().rev().find(|(found, _)| *found == node).map(|(_, fd)| fd.clone())
    }
}
