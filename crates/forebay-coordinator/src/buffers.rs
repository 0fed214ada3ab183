//! What the buffers of all connections hold together, and which one goes when it is too much.
//!
//! Each connection has a bound of its own, which a thousand of them may reach at the same time. So
//! the sum has one, too. Over it, the connection goes that has been *behind* for longest: at every
//! moment since, it had not received all that was sent to it, or not sent all of a message it had
//! begun. One that is quick is behind for a moment at a time and stays, however much is sent to it;
//! by size, the one with the most to do would go and the one that hangs would stay.
//!
//! What is encoded once for many (a view) counts once, for as long as anybody has not got it.

use crate::members::Session;
use forebay_policy::machine::Nanos;
use forebay_wire::framed::SharedFrame;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// The accounts.
#[derive(Debug)]
pub struct Buffers {
    most_bytes: u64,
    /// Connections that hold anything.
    behind: BTreeMap<Session, Behind>,
    /// Bytes of all of them.
    own_bytes: u64,
    shared: Vec<Weak<[u8]>>,
}

/// A connection that holds something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behind {
    /// Which.
    pub session: Session,
    /// Since when it has been holding anything.
    pub since: Nanos,
    /// Bytes it holds now.
    pub bytes: u64,
}

impl Buffers {
    /// Accounts in which nothing is held, and `most_bytes` may be.
    pub fn new(most_bytes: u64) -> Self {
        Buffers { most_bytes, behind: BTreeMap::new(), own_bytes: 0, shared: Vec::new() }
    }

    /// The bound.
    pub fn most_bytes(&self) -> u64 {
        self.most_bytes
    }

    /// Notes that a connection holds `bytes` of its own from `now` on; `waits`: and perhaps
    /// something that is shared.
    pub fn note(&mut self, now: Nanos, session: Session, bytes: u64, waits: bool) {
        if bytes == 0 && !waits {
            return self.forget(session);
        }
        let behind = self.behind.entry(session).or_insert(Behind { session, since: now, bytes: 0 });
        let before_bytes = std::mem::replace(&mut behind.bytes, bytes);
        self.release(before_bytes);
        self.own_bytes += bytes;
    }

    /// Notes that a connection is gone, or holds nothing.
    pub fn forget(&mut self, session: Session) {
        if let Some(behind) = self.behind.remove(&session) {
            self.release(behind.bytes);
        }
    }

    fn release(&mut self, bytes: u64) {
        assert!(bytes <= self.own_bytes, "a connection held {bytes} bytes of {}", self.own_bytes);
        self.own_bytes -= bytes;
    }

    /// Counts a frame that goes out to many.
    pub fn share(&mut self, frame: &SharedFrame) {
        self.shared.retain(|frame| frame.strong_count() > 0);
        self.shared.push(Arc::downgrade(frame));
    }

    /// All that is held.
    pub fn total_bytes(&self) -> u64 {
        let shared = self.shared.iter().filter_map(Weak::upgrade);
        self.own_bytes + shared.map(|frame| frame.len() as u64).sum::<u64>()
    }

    /// The connection that has to go because too much is held; of several since the same moment,
    /// the one that holds most.
    pub fn over(&self) -> Option<Behind> {
        if self.total_bytes() <= self.most_bytes {
            return None;
        }
        self.behind.values().min_by_key(|b| (b.since, u64::MAX - b.bytes)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_been_behind_for_longest_goes_first_and_what_is_shared_counts_once() {
        let mut buffers = Buffers::new(100);
        buffers.note(Nanos(1), 1, 40, false);
        buffers.note(Nanos(2), 2, 10, false);
        buffers.note(Nanos(3), 3, 50, false);
        assert_eq!((buffers.total_bytes(), buffers.over()), (100, None));
        // It was quick: what it holds now is new.
        buffers.note(Nanos(4), 1, 0, false);
        buffers.note(Nanos(5), 1, 41, false);
        assert_eq!(buffers.over().map(|b| (b.session, b.since, b.bytes)), Some((2, Nanos(2), 10)));
        buffers.forget(2);
        assert_eq!((buffers.total_bytes(), buffers.over()), (91, None));
        let view: SharedFrame = vec![0; 10].into();
        let other = view.clone();
        buffers.share(&view);
        assert_eq!((buffers.total_bytes(), buffers.over().map(|b| b.session)), (101, Some(3)));
        drop(view);
        assert!(buffers.over().is_some(), "somebody has not got it yet");
        drop(other);
        assert_eq!((buffers.total_bytes(), buffers.over()), (91, None));
        buffers.note(Nanos(5), 9, 60, false);
        buffers.forget(3);
        buffers.note(Nanos(6), 4, 0, true);
        assert_eq!(buffers.over().map(|b| b.session), Some(9), "of two of one moment the one with more");
        (0..10).for_each(|session| buffers.forget(session));
        assert_eq!(buffers.total_bytes(), 0);
    }
}
