//! What SA-SJF would do with the same steps: a shadow schedule that runs beside the real one, as a
//! yardstick for waiting.
//!
//! An order that is planned for steps that are there keeps their longest wait within SA-SJF's. That
//! is no promise over time: steps that come later overtake again and again, and guests do. So the
//! shadow lets the same arrivals run under SA-SJF, each for the time that was said, and the longest
//! wait there so far, those waits included that are sure to come, is how long a step may be made to
//! wait here.

use alloc::vec::Vec;

use super::sketch::Sketch;
use super::{Holder, NodeSet, Pending};
use crate::machine::Nanos;

/// The shadow schedule.
pub struct Shadow {
    now: Nanos,
    /// In the order of SA-SJF.
    waiting: Vec<Pending>,
    /// Nodes, and when they are free.
    running: Vec<(NodeSet, Nanos)>,
    next_seq: u64,
    longest_wait_ns: u64,
}

impl Shadow {
    /// Starts from the real situation at `now`.
    pub fn new(now: Nanos, holders: &[Holder], pending: &[Pending]) -> Self {
        let mut shadow = Shadow {
            now,
            waiting: Vec::new(),
            running: holders.iter().map(|&(nodes, left_ns)| (nodes.clone(), now + left_ns)).collect(),
            next_seq: 0,
            longest_wait_ns: 0,
        };
        shadow.hear(now, pending);
        shadow
    }

    /// Takes in the steps of `pending` that it has not heard of, and looks how long the longest
    /// wait will be.
    pub fn hear(&mut self, now: Nanos, pending: &[Pending]) {
        self.advance(now);
        let known = self.next_seq;
        for p in pending.iter().filter(|p| p.seq >= known) {
            self.next_seq = self.next_seq.max(p.seq + 1);
            let at = self.waiting.partition_point(|q| (q.key, q.seq) <= (p.key, p.seq));
            self.waiting.insert(at, p.clone());
        }
        self.start();
        let holders: Vec<Holder> =
            self.running.iter().map(|(nodes, end)| (nodes, end.saturating_since(now))).collect();
        let order: Vec<u32> = (0..self.waiting.len() as u32).collect();
        if let Some(o) = Sketch::new(now, &holders, &self.waiting).play(&order, u64::MAX) {
            self.longest_wait_ns = self.longest_wait_ns.max(o.longest_wait_ns);
        }
    }

    /// Steps that wait in the shadow.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The longest wait so far, or to come of the steps that are known.
    pub fn longest_wait_ns(&self) -> u64 {
        self.longest_wait_ns
    }

    fn advance(&mut self, now: Nanos) {
        while let Some(end) = self.running.iter().map(|r| r.1).min().filter(|&end| end <= now) {
            self.now = end;
            self.running.retain(|r| r.1 > end);
            self.start();
        }
        self.now = now;
    }

    fn start(&mut self) {
        let mut at = 0;
        while at < self.waiting.len() {
            let nodes = &self.waiting[at].nodes;
            if self.running.iter().any(|r| r.0.overlaps(nodes)) {
                at += 1;
                continue;
            }
            let p = self.waiting.remove(at);
            self.longest_wait_ns = self.longest_wait_ns.max(self.now.saturating_since(p.arrived));
            self.running.push((p.nodes, self.now + p.alone_ns));
        }
    }
}
