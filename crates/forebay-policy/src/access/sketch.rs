//! What an order of the pending steps would come to: a list schedule, played through without the
//! machine around it.
//!
//! Steps are looked at in the order; each whose nodes are free starts, the others wait for the next
//! end of a step, when the rest of the order is looked at again. That is what [`super::Access`]
//! does, so a sketch is what will happen if nothing else arrives and times are as expected.

use alloc::vec;
use alloc::vec::Vec;

use super::{Holder, Pending};
use crate::machine::Nanos;

/// What an order comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Sum over pending steps of the time from now to their end, in ns.
    pub sum_ns: u64,
    /// The longest waiting of a pending step, from its arrival to its start, in ns.
    pub longest_wait_ns: u64,
}

/// The steps, flattened for speed; steps are named by their index in `pending`.
pub struct Sketch {
    words: usize,
    masks: Vec<u64>,
    alone_ns: Vec<u64>,
    waited_ns: Vec<u64>,
    held: Vec<(u64, usize)>,
    // Scratch, kept between calls because an allocation costs as much as a short sketch.
    busy: Vec<u64>,
    rest: Vec<u32>,
    running: Vec<(u64, usize)>,
    looked_at: u64,
}

impl Sketch {
    /// The situation at `now`.
    pub fn new(now: Nanos, holders: &[Holder], pending: &[Pending]) -> Self {
        let words = pending.first().map_or(0, |p| p.nodes.words().len());
        let mut masks: Vec<u64> = pending.iter().flat_map(|p| p.nodes.words().iter().copied()).collect();
        masks.extend(holders.iter().flat_map(|h| h.0.words().iter().copied()));
        Sketch {
            words,
            masks,
            alone_ns: pending.iter().map(|p| p.alone_ns).collect(),
            waited_ns: pending.iter().map(|p| now.saturating_since(p.arrived)).collect(),
            held: holders.iter().enumerate().map(|(i, h)| (h.1, pending.len() + i)).collect(),
            busy: vec![0; words],
            rest: Vec::new(),
            running: Vec::new(),
            looked_at: 0,
        }
    }

    /// Node words looked at so far: what playing costs, on any machine.
    pub fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// Plays `order` through; `None` once its sum exceeds `limit_ns`.
    pub fn play(&mut self, order: &[u32], limit_ns: u64) -> Option<Outcome> {
        self.busy.fill(0);
        self.running.clear();
        self.running.extend_from_slice(&self.held);
        for &(_, i) in &self.held {
            let mask = &self.masks[i * self.words..][..self.words];
            self.busy.iter_mut().zip(mask).for_each(|(b, m)| *b |= m);
        }
        self.rest.clear();
        self.rest.extend_from_slice(order);
        let mut got = Outcome { sum_ns: 0, longest_wait_ns: 0 };
        let mut t_ns = 0;
        loop {
            self.start(t_ns, &mut got);
            if self.rest.is_empty() {
                return (got.sum_ns <= limit_ns).then_some(got);
            }
            // All that still wait end after the next end of a running step; most bad orders are
            // given up here.
            t_ns = self.running.iter().map(|r| r.0).min()?;
            if got.sum_ns + t_ns * self.rest.len() as u64 > limit_ns {
                return None;
            }
            self.end(t_ns);
        }
    }

    fn start(&mut self, t_ns: u64, got: &mut Outcome) {
        let (mut kept, n) = (0, self.rest.len());
        self.looked_at += ((n + self.running.len()) * self.words) as u64;
        for at in 0..n {
            let i = self.rest[at] as usize;
            let mask = &self.masks[i * self.words..][..self.words];
            if self.busy.iter().zip(mask).any(|(b, m)| b & m != 0) {
                self.rest[kept] = i as u32;
                kept += 1;
                continue;
            }
            self.busy.iter_mut().zip(mask).for_each(|(b, m)| *b |= m);
            let end_ns = t_ns + self.alone_ns[i];
            self.running.push((end_ns, i));
            got.sum_ns += end_ns;
            got.longest_wait_ns = got.longest_wait_ns.max(self.waited_ns[i] + t_ns);
        }
        self.rest.truncate(kept);
    }

    fn end(&mut self, t_ns: u64) {
        let mut at = 0;
        while at < self.running.len() {
            let (end_ns, i) = self.running[at];
            if end_ns > t_ns {
                at += 1;
                continue;
            }
            let mask = &self.masks[i * self.words..][..self.words];
            self.busy.iter_mut().zip(mask).for_each(|(b, m)| *b &= !m);
            self.running.swap_remove(at);
        }
    }
}
