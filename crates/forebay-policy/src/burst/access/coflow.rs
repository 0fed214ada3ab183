//! `coflow`: all steps write at the same time, and each node favours the step that can end soonest.
//!
//! A step on several nodes is a *coflow*: it is over when the last of its nodes has its data.
//! Admitting it as a whole or not at all leaves nodes idle while some step has bytes for them. Here
//! all steps write at the same time, and one order of all of them determines which step each node
//! serves first: the node gives [`LEAD_SHARE`] of its bandwidth to the first step that has bytes
//! for it, as much of the rest to the next, and so on ([`share`]). No step is held back, so no
//! write times out, and a node with bytes to write is never idle.
//!
//! **Order.** The next step in the order is repeatedly the one that would be over first behind
//! those before it: the least, over steps, of the greatest, over its nodes, of what the node has to
//! write for those before it and for itself. With one node this is the least remaining time first,
//! which is optimal there; with several it is *least remaining bottleneck first* (Varys), with
//! knowledge of the steps ahead (compare Sincronia's order, for which a theoretical bound is
//! known).
//!
//! **Ageing.** The end of a step counts less the older it is: it is divided by 1 + [`AGEING`] x^2,
//! where x is its age in units of the time alone of the longest step that writes. So steps that are
//! young compared with the longest one are ordered almost as if no step aged, and the longest I/O
//! time stays short. Where all steps wait for long, x is limited to [`OLDEST`], or the order would
//! become that of arrival. A configured ageing also subtracts that many seconds for each second of
//! age. With patience, steps that are older than it go first, the oldest before all.
//!
//! **Progress** is computed where it is not reported: nodes follow the order. A step that has been
//! served for its declared time, and is not over a tenth of that time later, has declared too
//! little, or its processes hang: it goes behind all others.
//!
//! **Cost.** Keys only grow while steps are put in order, so a step is examined again when it is
//! the next, not after each choice. At most [`MOST_RANKED`] steps have a place; the others share
//! what these leave.

use alloc::collections::{BTreeMap, BinaryHeap};
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::{Config, Pending, Policy, Scope, Token};
use crate::machine::Nanos;

/// The first step's part of a node's bandwidth, the second's of the rest, and so on.
pub const LEAD_SHARE: f64 = 0.95;
/// An age of x times the longest time alone divides an end by 1 + this * x^2.
const AGEING: f64 = 0.3;
/// The oldest step's age in such times, at most.
const OLDEST: f64 = 4.0;
/// Number of steps that have a place in the order.
const MOST_RANKED: usize = 256;
/// Steps of a node whose progress is computed; the share of the others is negligible.
const COUNTED: usize = 3;
/// Less remaining time than this, in ns, counts as over.
const ROUNDING_NS: f64 = 1000.0;
/// A step goes last that is not over when this part of its time alone, and a millisecond, have
/// passed since it should have been written.
const OVERTIME: f64 = 0.1;
const OVERTIME_NS: f64 = 1e6;

/// Returns the share of a node's bandwidth for the step at `place`, from 0, of `count` that have
/// bytes for it.
pub fn share(place: usize, count: usize) -> f64 {
    let rest = (0..place).fold(1.0, |rest, _| rest * (1.0 - LEAD_SHARE));
    if place + 1 == count { rest } else { rest * LEAD_SHARE }
}

struct Step {
    nodes: Vec<u32>,
    /// Remaining time on each of its nodes, in ns at full bandwidth.
    left_ns: Vec<f64>,
    /// The greatest of `left_ns`.
    bottleneck_ns: f64,
    alone_ns: u64,
    arrived: Nanos,
    /// When, by this account, the last of its finished nodes was done with it.
    written: Nanos,
}

impl Step {
    fn allowed_ns(&self) -> u64 {
        (self.alone_ns as f64 * OVERTIME + OVERTIME_NS) as u64
    }

    fn is_late(&self, now: Nanos) -> bool {
        self.bottleneck_ns == 0.0 && now.saturating_since(self.written) > self.allowed_ns()
    }

    /// Returns the first moment at which it can be late.
    fn late_from(&self, now: Nanos) -> Nanos {
        let written = if self.bottleneck_ns > 0.0 { now + self.bottleneck_ns as u64 } else { self.written };
        written + self.allowed_ns() + 1
    }

    /// Returns when it ends behind what nodes have to write for others, in ns from now.
    fn end_ns(&self, before_ns: &[f64]) -> f64 {
        let parts = self.nodes.iter().zip(&self.left_ns).filter(|(_, left)| **left > 0.0);
        parts.fold(0.0, |end, (&n, left)| end.max(before_ns[n as usize] + left))
    }
}

/// Weights of ages at one moment.
struct Ages {
    now: Nanos,
    /// The age that divides an end by 1 + [`AGEING`], in ns.
    unit_ns: f64,
    /// What each second of age subtracts, as configured.
    off: f64,
}

impl Ages {
    fn of(steps: &BTreeMap<Token, Step>, now: Nanos, off: f64) -> Self {
        let age_ns = |step: &Step| now.saturating_since(step.arrived) as f64;
        let unit_ns = |step: &Step| {
            let io_ns = age_ns(step) + step.bottleneck_ns;
            (step.alone_ns as f64).max(io_ns / OLDEST)
        };
        Ages { now, unit_ns: steps.values().map(unit_ns).fold(1.0, f64::max), off }
    }

    /// Returns the key of a step that ends in `end_ns`: the least goes first.
    fn key(&self, step: &Step, end_ns: f64) -> u64 {
        let age = self.now.saturating_since(step.arrived) as f64 / self.unit_ns;
        // The step's arrival instead of its age, so that the key is not below 0.
        (end_ns / (1.0 + AGEING * age * age) + self.off * step.arrived.0 as f64) as u64
    }
}

/// The steps that write, and the order in which each node serves them.
pub struct Coflow {
    ageing: f64,
    patience_ns: u64,
    steps: BTreeMap<Token, Step>,
    /// Steps with bytes for each node, in order, with the index of the node among theirs.
    queues: Vec<Vec<(Token, u32)>>,
    updated: Nanos,
}

impl Coflow {
    pub fn new(config: &Config) -> Self {
        Coflow {
            ageing: config.ageing,
            patience_ns: config.patience_ns,
            steps: BTreeMap::new(),
            queues: vec![Vec::new(); config.nodes as usize],
            updated: Nanos(0),
        }
    }

    /// Subtracts what nodes have written since the last time.
    fn advance(&mut self, now: Nanos) {
        let from = core::mem::replace(&mut self.updated, now);
        for queue in self.queues.iter_mut().filter(|queue| !queue.is_empty()) {
            serve(queue, from, now, &mut self.steps);
        }
        for step in self.steps.values_mut() {
            step.bottleneck_ns = step.left_ns.iter().copied().fold(0.0, f64::max);
        }
    }

    fn is_overdue(&self, now: Nanos, step: &Step) -> bool {
        self.patience_ns != u64::MAX && now.saturating_since(step.arrived) >= self.patience_ns
    }

    /// Returns overdue steps by arrival, then those that are put in order, and last those that are
    /// late.
    fn order(&self, now: Nanos) -> Vec<Token> {
        let mut order: Vec<Token> = Vec::new();
        let (mut open, mut late) = (Vec::new(), Vec::new());
        for (&token, step) in &self.steps {
            match (step.is_late(now), self.is_overdue(now, step)) {
                (true, _) => late.push(token),
                (false, true) => order.push(token),
                (false, false) => open.push(token),
            }
        }
        order.sort_by_key(|token| (self.steps[token].arrived, *token));
        let ages = Ages::of(&self.steps, now, self.ageing);
        let room = MOST_RANKED.saturating_sub(order.len());
        if open.len() > room {
            let key = |token: &Token| {
                let step = &self.steps[token];
                (ages.key(step, step.bottleneck_ns), *token)
            };
            open.select_nth_unstable_by_key(room, key);
            open.truncate(room);
        }
        let mut before_ns = vec![0.0; self.queues.len()];
        order.iter().for_each(|token| self.book(*token, &mut before_ns));
        let key = |token: Token, before_ns: &[f64]| {
            let step = &self.steps[&token];
            ages.key(step, step.end_ns(before_ns))
        };
        let mut heap: BinaryHeap<_> =
            open.into_iter().map(|token| Reverse((key(token, &before_ns), token))).collect();
        while let Some(Reverse((known, token))) = heap.pop() {
            let key = key(token, &before_ns);
            if key > known && heap.peek().is_some_and(|next| next.0 < (key, token)) {
                heap.push(Reverse((key, token)));
                continue;
            }
            self.book(token, &mut before_ns);
            order.push(token);
        }
        order.extend(late);
        order.truncate(MOST_RANKED);
        order
    }

    fn book(&self, token: Token, before_ns: &mut [f64]) {
        let step = &self.steps[&token];
        for (&node, left) in step.nodes.iter().zip(&step.left_ns) {
            before_ns[node as usize] += left;
        }
    }
}

/// Lets a node write from `from` to `now`.
fn serve(queue: &mut Vec<(Token, u32)>, from: Nanos, now: Nanos, steps: &mut BTreeMap<Token, Step>) {
    let (all_ns, mut at_ns) = (now.saturating_since(from) as f64, 0.0);
    while at_ns < all_ns && !queue.is_empty() {
        let count = queue.len();
        let rate = |place: usize| share(place, count.min(COUNTED));
        let left = |&(token, i): &(Token, u32)| steps.get(&token).map_or(0.0, |s| s.left_ns[i as usize]);
        let ends = queue.iter().take(COUNTED).enumerate().map(|(k, part)| left(part) / rate(k));
        let for_ns = ends.fold(all_ns - at_ns, f64::min);
        at_ns += for_ns;
        for (k, &(token, i)) in queue.iter().take(COUNTED).enumerate() {
            let Some(step) = steps.get_mut(&token) else { continue };
            let left_ns = &mut step.left_ns[i as usize];
            *left_ns -= for_ns * rate(k);
            if *left_ns < ROUNDING_NS {
                *left_ns = 0.0;
                step.written = step.written.max(from + at_ns as u64);
            }
        }
        queue.retain(|&(token, i)| steps.get(&token).is_some_and(|s| s.left_ns[i as usize] > 0.0));
    }
}

impl Policy for Coflow {
    fn scope(&self) -> Scope {
        Scope::Ranked
    }

    fn begins(&mut self, token: Token, step: &Pending) {
        let nodes: Vec<u32> = step.nodes.members().collect();
        let begun = Step {
            left_ns: vec![step.alone_ns as f64; nodes.len()],
            nodes,
            bottleneck_ns: step.alone_ns as f64,
            alone_ns: step.alone_ns,
            arrived: step.arrived,
            written: step.arrived,
        };
        self.steps.insert(token, begun);
    }

    /// All of its nodes count as the slowest one. The order changes with the next step that comes
    /// or goes.
    fn left(&mut self, now: Nanos, token: Token, left_ns: u64) {
        self.advance(now);
        let Some(step) = self.steps.get_mut(&token) else { return };
        let left = left_ns.min(step.alone_ns) as f64;
        for (i, &node) in (0..).zip(&step.nodes) {
            if step.left_ns[i as usize] == 0.0 && left > 0.0 {
                self.queues[node as usize].push((token, i));
            }
        }
        step.left_ns.fill(left);
        step.bottleneck_ns = left;
        step.written = now;
    }

    fn ends(&mut self, now: Nanos, token: Token) {
        self.advance(now);
        self.steps.remove(&token);
    }

    fn rank(&mut self, now: Nanos) -> Vec<Token> {
        self.advance(now);
        let order = self.order(now);
        self.queues.iter_mut().for_each(Vec::clear);
        for token in &order {
            let step = &self.steps[token];
            for (i, &node) in (0..).zip(&step.nodes) {
                if step.left_ns[i as usize] > 0.0 {
                    self.queues[node as usize].push((*token, i));
                }
            }
        }
        order
    }

    fn next_overdue(&self, now: Nanos) -> Option<Nanos> {
        let overdue = |step: &Step| step.arrived + self.patience_ns;
        let overdue = self.steps.values().map(overdue).filter(|_| self.patience_ns != u64::MAX);
        overdue.chain(self.steps.values().map(|step| step.late_from(now))).filter(|&at| at > now).min()
    }
}
