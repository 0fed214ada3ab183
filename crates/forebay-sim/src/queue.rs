//! The order in which things happen.
//!
//! A binary heap over (time, sequence number). The sequence number makes the order total: two
//! events of the same nanosecond come out as they went in, on every machine and with every
//! compiler. Events are never removed; a part that may no longer want one gives it a generation
//! number and ignores it when it comes. A calendar queue would be faster for millions of pending
//! events, but its bucket width has to be tuned to the scenario and a heap needs no tuning.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use forebay_policy::machine::Nanos;

struct Entry<E> {
    at: Nanos,
    seq: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl<E> Eq for Entry<E> {}
impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<E> Ord for Entry<E> {
    /// Reversed: `BinaryHeap` gives the greatest, and the earliest is wanted.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.seq).cmp(&(self.at, self.seq))
    }
}

/// Pending events of type `E`, earliest first.
pub struct EventQueue<E> {
    heap: BinaryHeap<Entry<E>>,
    next_seq: u64,
    now: Nanos,
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        EventQueue { heap: BinaryHeap::new(), next_seq: 0, now: Nanos(0) }
    }
}

impl<E> EventQueue<E> {
    /// An empty queue at time 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// The current time: the time of the last event taken out.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Schedules `event`. A time in the past is an error of the caller, and means a broken
    /// simulation: it panics.
    pub fn at(&mut self, at: Nanos, event: E) {
        assert!(at >= self.now, "event scheduled at {} ns, but it is already {} ns", at.0, self.now.0);
        self.heap.push(Entry { at, seq: self.next_seq, event });
        self.next_seq += 1;
    }

    /// Schedules `event` `nanos` from now.
    pub fn after(&mut self, nanos: u64, event: E) {
        self.at(self.now + nanos, event);
    }

    /// When the next event comes.
    pub fn peek_time(&self) -> Option<Nanos> {
        self.heap.peek().map(|e| e.at)
    }

    /// Takes the next event out and moves time forward to it.
    pub fn pop(&mut self) -> Option<(Nanos, E)> {
        let entry = self.heap.pop()?;
        self.now = entry.at;
        Some((entry.at, entry.event))
    }

    /// Moves time forward without an event, for completions that live outside the queue.
    pub fn advance_to(&mut self, at: Nanos) {
        assert!(at >= self.now, "time cannot go back from {} to {} ns", self.now.0, at.0);
        self.now = at;
    }

    /// Number of pending events.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether nothing is pending.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

/// What a part of a world sees of the queue: it schedules events of its own kind, and does not know
/// those of other parts.
pub trait Agenda<E> {
    /// As [`EventQueue::now`].
    fn now(&self) -> Nanos;

    /// As [`EventQueue::at`].
    fn at(&mut self, at: Nanos, event: E);

    /// As [`EventQueue::after`].
    fn after(&mut self, nanos: u64, event: E) {
        self.at(self.now() + nanos, event);
    }
}

impl<E, All: From<E>> Agenda<E> for EventQueue<All> {
    fn now(&self) -> Nanos {
        self.now
    }

    fn at(&mut self, at: Nanos, event: E) {
        EventQueue::at(self, at, All::from(event));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_first_and_ties_in_order_of_arrival() {
        let mut q = EventQueue::new();
        q.at(Nanos(5), 'c');
        q.at(Nanos(1), 'a');
        q.at(Nanos(5), 'd');
        q.at(Nanos(1), 'b');
        let order: String = std::iter::from_fn(|| q.pop()).map(|(_, e)| e).collect();
        assert_eq!(order, "abcd");
        assert_eq!(q.now(), Nanos(5));
    }

    #[test]
    #[should_panic(expected = "already 5 ns")]
    fn the_past_is_refused() {
        let mut q = EventQueue::new();
        q.at(Nanos(5), ());
        q.pop();
        q.at(Nanos(4), ());
    }
}
