//! `forebay`: the order that is best for all, not just the shortest first, and room for short steps beside long ones.
//!
//! **Order.** Where steps share only some nodes, shortest-first is not optimal: a short wide step can hold up many narrow
//! ones. The policy starts from SA-SJF, plays orders through with [`super::sketch`], and moves single steps in the order
//! as long as that lowers the sum of end times; when no move helps it shakes the order a little and tries again. Two
//! bounds make it safe: an order is only taken if its sum is below that of SA-SJF *and* its longest wait is not above
//! SA-SJF's. The plan stays in force until another step arrives.
//!
//! The work is bounded by the number of orders tried, so a decision is about a millisecond beside steps of seconds, and
//! with more than [`MOST_PLANNED`] steps waiting it is SA-SJF: then the end of the order is too far away to plan, and
//! the answer has to be quick.
//!
//! **Shares.** A step that arrives behind a long one would wait for all of it. If it needs at most an eighth of what each
//! holder of its nodes has left, it is let in as a guest with four fifths of the bandwidth: the holders end
//! later by the guest's own time, the guest is spared many times that. The holders keep a fifth, so that their writes
//! never stand still and time out.

use alloc::vec::Vec;

use forebay_model::rng::Rng;

use super::sketch::{Outcome, Sketch};
use super::{Config, Holder, Pending, Policy, Scope, sjf};
use crate::machine::Nanos;

/// More waiting steps than these are not planned for.
const MOST_PLANNED: usize = 48;
/// Orders tried for one decision. Twice as many lower the sums of W7 to W12 no further.
const ORDERS_PER_DECISION: u32 = 1000;
/// Moves of a shake: fewer fall back into the same valley, more forget what was found.
const SHAKE: u32 = 3;
/// A guest's part of the bandwidth.
const GUEST_SHARE: f64 = 0.8;

/// Searches orders.
pub struct Forebay {
    ageing: f64,
}

impl Forebay {
    pub fn new(config: &Config) -> Self {
        Forebay { ageing: config.ageing }
    }
}

/// The best order so far, and what an order must keep to.
struct Search {
    sketch: Sketch,
    best: Vec<u32>,
    sum_ns: u64,
    longest_wait_ns: u64,
    tries_left: u32,
}

impl Search {
    /// Plays `order`; its outcome if it keeps the bound on waiting and its sum is at most `limit_ns`.
    fn try_order(&mut self, order: &[u32], limit_ns: u64) -> Option<Outcome> {
        self.tries_left = self.tries_left.saturating_sub(1);
        self.sketch.play(order, limit_ns).filter(|o| o.longest_wait_ns <= self.longest_wait_ns)
    }

    /// Takes `order` if it is better than the best.
    fn offer(&mut self, order: &[u32]) {
        if let Some(o) = self.try_order(order, self.sum_ns.saturating_sub(1)) {
            self.best.clear();
            self.best.extend_from_slice(order);
            self.sum_ns = o.sum_ns;
        }
    }

    /// Moves single steps to other places as long as it helps. `order` becomes the best order nearby.
    fn descend(&mut self, order: &mut Vec<u32>, mut sum_ns: u64) {
        let n = order.len();
        let mut since_better = 0;
        let mut from = 0;
        while since_better < n && self.tries_left > 0 {
            let step = order.remove(from);
            let mut better = None;
            for to in (0..n).filter(|&to| to != from) {
                order.insert(to, step);
                if let Some(o) = self.try_order(order, sum_ns.saturating_sub(1)) {
                    sum_ns = o.sum_ns;
                    better = Some(to);
                }
                order.remove(to);
            }
            order.insert(better.unwrap_or(from), step);
            since_better = if better.is_some() { 0 } else { since_better + 1 };
            from = (from + 1) % n;
        }
        if sum_ns < self.sum_ns {
            self.sum_ns = sum_ns;
            self.best.clone_from(order);
        }
    }
}

impl Forebay {
    fn search(&self, now: Nanos, holders: &[Holder], pending: &[Pending]) -> Vec<u32> {
        let n = pending.len();
        let in_force: Vec<u32> = (0..n as u32).collect();
        let sorted_by = |weight: fn(&Pending) -> u64| {
            let mut order = in_force.clone();
            order.sort_by_key(|&i| {
                let p = &pending[i as usize];
                (weight(p), p.seq)
            });
            order
        };
        let start = sorted_by(|p| p.key);
        let mut sketch = Sketch::new(now, holders, pending);
        let Some(bar) = sketch.play(&start, u64::MAX) else { return start };
        let all_overlap = |p: &Pending| pending.iter().all(|q| q.nodes.overlaps(&p.nodes));
        if pending.iter().all(all_overlap) {
            // One after the other: shortest first is the best there is (Smith, 1956).
            return start;
        }
        let mut s = Search {
            sketch,
            best: start.clone(),
            sum_ns: bar.sum_ns,
            longest_wait_ns: bar.longest_wait_ns,
            tries_left: ORDERS_PER_DECISION,
        };
        s.offer(&in_force);
        s.offer(&sorted_by(|p| p.key.saturating_mul(1024) + u64::from(p.nodes.len())));
        s.offer(&sorted_by(|p| (p.alone_ns / 1024).saturating_mul(u64::from(p.nodes.len()))));
        let mut order = s.best.clone();
        let sum_ns = s.sum_ns;
        s.descend(&mut order, sum_ns);
        let mut rng = Rng::new(n as u64);
        while s.tries_left > 0 {
            order.clone_from(&s.best);
            for _ in 0..SHAKE {
                let step = order.remove(rng.below(n as u64) as usize);
                order.insert(rng.below(n as u64) as usize, step);
            }
            if let Some(o) = s.try_order(&order, s.sum_ns.saturating_add(s.sum_ns / 8)) {
                s.descend(&mut order, o.sum_ns);
            }
        }
        s.best
    }
}

impl Policy for Forebay {
    fn scope(&self) -> Scope {
        Scope::Disjoint
    }

    fn key(&self, arrived: Nanos, alone_ns: u64) -> u64 {
        sjf::key(self.ageing, arrived, alone_ns)
    }

    fn arrange(&mut self, now: Nanos, holders: &[Holder], pending: &mut Vec<Pending>, arrived: bool) {
        if arrived && (2..=MOST_PLANNED).contains(&pending.len()) {
            let order = self.search(now, holders, pending);
            let mut slots: Vec<Option<Pending>> = core::mem::take(pending).into_iter().map(Some).collect();
            pending.extend(order.iter().filter_map(|&i| slots[i as usize].take()));
        }
    }

    fn guest_share(&self) -> Option<f64> {
        Some(GUEST_SHARE)
    }
}
