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
    /// Words of each mask that are not empty: first and end.
    spans: Vec<(u32, u32)>,
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
        let span = |mask: &[u64]| {
            let first = mask.iter().position(|&word| word != 0).unwrap_or(0);
            let end = mask.iter().rposition(|&word| word != 0).map_or(first, |last| last + 1);
            (first as u32, end as u32)
        };
        let spans = masks.chunks_exact(words.max(1)).map(span).collect();
        Sketch {
            words,
            masks,
            spans,
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

    /// Whether two steps have a node in common.
    pub fn overlap(&mut self, one: u32, other: u32) -> bool {
        self.looked_at += self.words as u64;
        let mask = |step: u32| &self.masks[step as usize * self.words..][..self.words];
        mask(one).iter().zip(mask(other)).any(|(a, b)| a & b != 0)
    }

    /// Nodes of a step, as the words that are not empty, and the first of these.
    fn nodes(&self, i: usize) -> (usize, &[u64]) {
        let (first, end) = (self.spans[i].0 as usize, self.spans[i].1 as usize);
        (first, &self.masks[i * self.words + first..i * self.words + end])
    }

    /// Plays `order` through; `None` once its sum exceeds `limit_ns`.
    pub fn play(&mut self, order: &[u32], limit_ns: u64) -> Option<Outcome> {
        let mut busy = core::mem::take(&mut self.busy);
        busy.fill(0);
        for &(_, i) in &self.held {
            let (first, nodes) = self.nodes(i);
            busy[first..].iter_mut().zip(nodes).for_each(|(b, m)| *b |= m);
        }
        self.busy = busy;
        self.running.clear();
        self.running.extend_from_slice(&self.held);
        self.rest.clear();
        self.rest.extend_from_slice(order);
        let mut got = Outcome { sum_ns: 0, longest_wait_ns: 0 };
        let mut left_ns: u64 = order.iter().map(|&i| self.alone_ns[i as usize]).sum();
        let mut t_ns = 0;
        loop {
            left_ns -= self.start(t_ns, &mut got);
            if self.rest.is_empty() {
                return (got.sum_ns <= limit_ns).then_some(got);
            }
            // All that still wait begin at the next end of a running step at the earliest; most
            // bad orders are given up here.
            t_ns = self.next_end()?;
            if got.sum_ns + left_ns + t_ns * self.rest.len() as u64 > limit_ns {
                return None;
            }
            self.end(t_ns);
        }
    }

    fn next_end(&self) -> Option<u64> {
        let mut next = None;
        for &(end_ns, _) in &self.running {
            if next.is_none_or(|next_ns| end_ns < next_ns) {
                next = Some(end_ns);
            }
        }
        next
    }

    /// Starts what can start; the sum of the times alone of these steps.
    fn start(&mut self, t_ns: u64, got: &mut Outcome) -> u64 {
        let (mut kept, n) = (0, self.rest.len());
        let mut started_ns = 0;
        self.looked_at += ((n + self.running.len()) * self.words) as u64;
        for at in 0..n {
            let i = self.rest[at] as usize;
            let (first, end) = (self.spans[i].0 as usize, self.spans[i].1 as usize);
            let mask = &self.masks[i * self.words + first..i * self.words + end];
            let busy = &mut self.busy[first..end];
            if busy.iter().zip(mask).any(|(b, m)| b & m != 0) {
                self.rest[kept] = i as u32;
                kept += 1;
                continue;
            }
            busy.iter_mut().zip(mask).for_each(|(b, m)| *b |= m);
            let end_ns = t_ns + self.alone_ns[i];
            self.running.push((end_ns, i));
            got.sum_ns += end_ns;
            got.longest_wait_ns = got.longest_wait_ns.max(self.waited_ns[i] + t_ns);
            started_ns += self.alone_ns[i];
        }
        self.rest.truncate(kept);
        started_ns
    }

    fn end(&mut self, t_ns: u64) {
        let mut at = 0;
        while at < self.running.len() {
            let (end_ns, i) = self.running[at];
            if end_ns > t_ns {
                at += 1;
                continue;
            }
            let (first, end) = (self.spans[i].0 as usize, self.spans[i].1 as usize);
            let mask = &self.masks[i * self.words + first..i * self.words + end];
            self.busy[first..end].iter_mut().zip(mask).for_each(|(b, m)| *b &= !m);
            self.running.swap_remove(at);
        }
    }
}
