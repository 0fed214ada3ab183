//! A search for the best order of pending steps that can be left and taken up again at any point.
//!
//! It starts from SA-SJF and some other orders, and moves single steps to other places as long as
//! that lowers the sum of ends; when no move helps it shakes the best order a little and tries
//! again. An order counts only if its sum is below that of SA-SJF *and* its longest wait is not
//! above SA-SJF's.
//!
//! A search of a thousand orders takes milliseconds, and whoever waits for an answer of the machine
//! would wait for it. So the search is a machine of its own: [`Search::run`] does a bounded amount
//! of work, counted in node words looked at and not in time, so that the outcome is the same on
//! every machine and however the work is cut up.

use alloc::vec::Vec;

use forebay_model::rng::Rng;

use super::sketch::{Outcome, Sketch};
use super::{Holder, Pending};
use crate::machine::Nanos;

/// Moves of a shake: fewer fall back into the same valley, more forget what was found.
const SHAKE: u32 = 3;

/// A search under way.
pub struct Search {
    sketch: Sketch,
    best: Vec<u32>,
    sum_ns: u64,
    longest_wait_ns: u64,
    tries_left: u32,
    stage: Stage,
    rng: Rng,
}

enum Stage {
    /// Orders that are worth a look before any move; the last one first.
    Offers(Vec<Vec<u32>>),
    /// Moves single steps.
    Descends(Descent),
    /// No move helps: elsewhere.
    Shakes,
    Over,
}

/// One step after the other is lifted out of its place and tried at all others.
struct Descent {
    order: Vec<u32>,
    sum_ns: u64,
    since_better: usize,
    /// Where the next step is lifted, or was.
    from: usize,
    lifted: Option<Lifted>,
}

struct Lifted {
    step: u32,
    /// Where it is tried next, and where it was best so far.
    to: usize,
    better: Option<usize>,
}

impl Descent {
    fn new(order: Vec<u32>, sum_ns: u64) -> Self {
        Descent { order, sum_ns, since_better: 0, from: 0, lifted: None }
    }
}

impl Search {
    /// A search from the situation at `now`, of at most `tries` orders. Two pending steps at least.
    pub fn new(now: Nanos, holders: &[Holder], pending: &[Pending], tries: u32) -> Self {
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
        let bar = sketch.play(&start, u64::MAX);
        let all_overlap = |p: &Pending| pending.iter().all(|q| q.nodes.overlaps(&p.nodes));
        let free_ns = |p: &Pending| {
            let holders = holders.iter().filter(|(nodes, _)| nodes.overlaps(&p.nodes));
            holders.map(|(_, left_ns)| *left_ns).max().unwrap_or(0)
        };
        let all_at_once = || pending.windows(2).all(|pair| free_ns(&pair[0]) == free_ns(&pair[1]));
        // One after the other, and each could be the first: shortest first is the best there is
        // (Smith, 1956).
        let hopeless = bar.is_none() || pending.iter().all(all_overlap) && all_at_once();
        let offers = [
            sorted_by(|p| (p.alone_ns / 1024).saturating_mul(u64::from(p.nodes.len()))),
            sorted_by(|p| p.key.saturating_mul(1024) + u64::from(p.nodes.len())),
            in_force.clone(),
        ];
        let stage = if hopeless { Stage::Over } else { Stage::Offers(offers.to_vec()) };
        let bar = bar.unwrap_or(Outcome { sum_ns: 0, longest_wait_ns: 0 });
        Search {
            sketch,
            best: start,
            sum_ns: bar.sum_ns,
            longest_wait_ns: bar.longest_wait_ns,
            tries_left: tries,
            stage,
            rng: Rng::new(n as u64),
        }
    }

    /// The best order so far, as indices of `pending`.
    pub fn best(&self) -> &[u32] {
        &self.best
    }

    /// Orders that may still be tried.
    pub fn tries_left(&self) -> u32 {
        self.tries_left
    }

    /// Searches on until about `words` node words have been looked at; true when it is over.
    pub fn run(&mut self, words: u64) -> bool {
        let until = self.sketch.looked_at() + words;
        while self.sketch.looked_at() < until {
            self.stage = match core::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Offers(offers) => self.offer(offers),
                Stage::Descends(descent) => self.descend(descent),
                Stage::Shakes => self.shake(),
                Stage::Over => return true,
            };
        }
        false
    }

    /// Plays `order`; its outcome if it keeps the bound on waiting and its sum is at most
    /// `limit_ns`.
    fn try_order(&mut self, order: &[u32], limit_ns: u64) -> Option<Outcome> {
        self.tries_left = self.tries_left.saturating_sub(1);
        self.sketch.play(order, limit_ns).filter(|o| o.longest_wait_ns <= self.longest_wait_ns)
    }

    fn offer(&mut self, mut offers: Vec<Vec<u32>>) -> Stage {
        let Some(order) = offers.pop() else {
            return Stage::Descends(Descent::new(self.best.clone(), self.sum_ns));
        };
        if let Some(o) = self.try_order(&order, self.sum_ns.saturating_sub(1)) {
            self.best = order;
            self.sum_ns = o.sum_ns;
        }
        Stage::Offers(offers)
    }

    /// Tries the lifted step at one more place, or puts it down, or lifts the next one.
    fn descend(&mut self, mut d: Descent) -> Stage {
        let n = self.best.len();
        let Some(mut lifted) = d.lifted.take() else {
            if d.since_better >= n || self.tries_left == 0 {
                if d.sum_ns < self.sum_ns {
                    self.sum_ns = d.sum_ns;
                    self.best = d.order;
                }
                return Stage::Shakes;
            }
            let step = d.order.remove(d.from);
            d.lifted = Some(Lifted { step, to: 0, better: None });
            return Stage::Descends(d);
        };
        if lifted.to == d.from {
            lifted.to += 1;
        }
        if lifted.to >= n {
            d.order.insert(lifted.better.unwrap_or(d.from), lifted.step);
            d.since_better = if lifted.better.is_some() { 0 } else { d.since_better + 1 };
            d.from = (d.from + 1) % n;
            return Stage::Descends(d);
        }
        // Two steps without a common node do not see each other: with one before the other all
        // ends as with the other before the one, and this place is no better than that before it.
        let before = lifted.to.checked_sub(1).map(|at| d.order[at]);
        if before.is_some_and(|before| !self.sketch.overlap(before, lifted.step)) {
            self.tries_left = self.tries_left.saturating_sub(1);
            lifted.to += 1;
            d.lifted = Some(lifted);
            return Stage::Descends(d);
        }
        d.order.insert(lifted.to, lifted.step);
        if let Some(o) = self.try_order(&d.order, d.sum_ns.saturating_sub(1)) {
            d.sum_ns = o.sum_ns;
            lifted.better = Some(lifted.to);
        }
        d.order.remove(lifted.to);
        lifted.to += 1;
        d.lifted = Some(lifted);
        Stage::Descends(d)
    }

    fn shake(&mut self) -> Stage {
        if self.tries_left == 0 {
            return Stage::Over;
        }
        let (mut order, n) = (self.best.clone(), self.best.len() as u64);
        for _ in 0..SHAKE {
            let step = order.remove(self.rng.below(n) as usize);
            order.insert(self.rng.below(n) as usize, step);
        }
        match self.try_order(&order, self.sum_ns.saturating_add(self.sum_ns / 8)) {
            Some(o) => Stage::Descends(Descent::new(order, o.sum_ns)),
            None => Stage::Shakes,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::burst::access::NodeSet;

    const NODES: u32 = 6;
    const TRIES: u32 = 3_000;

    /// Nodes, time alone and waiting of each step; nodes and time left of each holder.
    type Situation = (Vec<(Vec<u32>, u64, u64)>, Vec<(Vec<u32>, u64)>);

    fn situations() -> impl Strategy<Value = Situation> {
        let nodes = || prop::collection::btree_set(0..NODES, 1..=3).prop_map(|set| set.into_iter().collect());
        let steps = prop::collection::vec((nodes(), 1u64..60, 0u64..40), 2..=6);
        (steps, prop::collection::vec((nodes(), 1u64..60), 0..2))
    }

    fn pending((steps, _): &Situation) -> Vec<Pending> {
        let step = |(seq, (nodes, alone_ns, waited_ns)): (u64, &(Vec<u32>, u64, u64))| Pending {
            step: seq,
            nodes: NodeSet::of(NODES, nodes),
            alone_ns: *alone_ns,
            arrived: Nanos(100 - waited_ns),
            seq,
            key: *alone_ns,
        };
        (0..).zip(steps).map(step).collect()
    }

    fn held((_, holders): &Situation) -> Vec<(NodeSet, u64)> {
        holders.iter().map(|(nodes, left_ns)| (NodeSet::of(NODES, nodes), *left_ns)).collect()
    }

    /// All orders of `rest` behind `order`.
    fn orders(order: &mut Vec<u32>, rest: &mut Vec<u32>, with: &mut impl FnMut(&[u32])) {
        if rest.is_empty() {
            return with(order);
        }
        for at in 0..rest.len() {
            let step = rest.remove(at);
            order.push(step);
            orders(order, rest, with);
            order.pop();
            rest.insert(at, step);
        }
    }

    proptest! {
        /// A descent leaves out places that cannot be better. Where it ends, no move of one step to
        /// any place is better.
        #[test]
        fn a_pruned_descent_ends_where_no_single_move_helps(situation in situations()) {
            let (pending, held) = (pending(&situation), held(&situation));
            let holders: Vec<Holder> = held.iter().map(|(nodes, left_ns)| (nodes, *left_ns)).collect();
            let mut search = Search::new(Nanos(100), &holders, &pending, u32::MAX);
            // Shortest first is not tried against others where it is the best.
            if matches!(search.stage, Stage::Over) {
                return Ok(());
            }
            while !matches!(search.stage, Stage::Shakes) {
                search.stage = match core::mem::replace(&mut search.stage, Stage::Over) {
                    Stage::Offers(offers) => search.offer(offers),
                    Stage::Descends(descent) => search.descend(descent),
                    stage => stage,
                };
            }
            let (best, sum_ns) = (search.best.clone(), search.sum_ns);
            prop_assert_eq!(search.sketch.play(&best, u64::MAX).map(|o| o.sum_ns), Some(sum_ns));
            for from in 0..best.len() {
                for to in 0..best.len() {
                    let mut order = best.clone();
                    let step = order.remove(from);
                    order.insert(to, step);
                    let better = search.try_order(&order, sum_ns - 1);
                    prop_assert_eq!(better, None, "{:?} is better than {:?}", order, best);
                }
            }
        }

        /// Of few steps the search finds the best order of all that keep the bound on waiting.
        #[test]
        fn the_search_finds_the_best_of_all_orders(situation in situations()) {
            let (pending, held) = (pending(&situation), held(&situation));
            let holders: Vec<Holder> = held.iter().map(|(nodes, left_ns)| (nodes, *left_ns)).collect();
            let mut search = Search::new(Nanos(100), &holders, &pending, TRIES);
            let longest_wait_ns = search.longest_wait_ns;
            prop_assert!(search.run(u64::MAX / 2));
            let mut sketch = Sketch::new(Nanos(100), &holders, &pending);
            let found = sketch.play(search.best(), u64::MAX).expect("no limit");
            prop_assert!(found.longest_wait_ns <= longest_wait_ns);
            let mut least_ns = u64::MAX;
            orders(&mut Vec::new(), &mut (0..pending.len() as u32).collect(), &mut |order| {
                let played = sketch.play(order, u64::MAX).filter(|o| o.longest_wait_ns <= longest_wait_ns);
                least_ns = played.map_or(least_ns, |o| o.sum_ns.min(least_ns));
            });
            prop_assert_eq!(found.sum_ns, least_ns);
        }
    }
}
