//! Plan-based scheduling: a start for every waiting job, in the order that the search prefers. Jobs
//! whose start is now begin.
//!
//! The objective of a plan is the sum of (waiting time)^alpha. For up to five jobs all orders are
//! tried; for more, nine sorted ones, and then simulated annealing that swaps two jobs, starting
//! from the best of them (Algorithm 2 and section 3.3 of Kopanski and Rzadca, Euro-Par 2021; the
//! initial temperature is the difference between the worst and the best of the nine).

use alloc::vec::Vec;

use forebay_model::rng::Rng;

use super::profile::{Placement, Profile};
use super::{Decision, Policy, Waiting};
use crate::machine::Nanos;

/// Largest number of jobs for which all orders are tried.
const ALL_ORDERS: usize = 5;
/// The paper's cooling rate r, cooling steps N, and swaps M at each temperature.
const COOLING: f64 = 0.9;
const COOLING_STEPS: u32 = 30;
const SWAPS: u32 = 6;
/// Seed of the swaps.
const SEED: u64 = 42;

/// Simulated annealing of the order.
pub struct Plan {
    alpha: u32,
    rng: Rng,
    scratch: Profile,
}

impl Plan {
    /// A plan with this exponent in its objective.
    pub fn new(alpha: u32) -> Self {
        Plan { alpha, rng: Rng::new(SEED), scratch: Profile::default() }
    }

    /// Returns the objective of the plan that `order` makes, in seconds^alpha. `starts` is called
    /// with the start of each job, and where its shares go.
    pub(super) fn score(
        &mut self,
        now: Nanos,
        waiting: &[Waiting],
        order: &[usize],
        profile: &Profile,
        mut starts: impl FnMut(usize, Nanos, &Placement),
    ) -> f64 {
        self.scratch.copy(profile);
        let mut placement = Placement::new();
        let mut sum = 0.0;
        for &i in order {
            let Waiting { demand, submitted, .. } = &waiting[i];
            let start = self.scratch.earliest(now, demand, &mut placement);
            self.scratch.take(start, demand, &placement);
            let waits_s = start.saturating_since(*submitted) as f64 * 1e-9;
            sum += (0..self.alpha).fold(1.0, |power, _| power * waits_s);
            starts(i, start, &placement);
        }
        sum
    }

    /// Returns the best order found, and its objective.
    pub fn search(&mut self, now: Nanos, waiting: &[Waiting], profile: &Profile) -> (Vec<usize>, f64) {
        let mut best = (Vec::new(), f64::INFINITY);
        let mut worst = f64::NEG_INFINITY;
        let mut order: Vec<usize> = (0..waiting.len()).collect();
        let orders = if order.len() <= ALL_ORDERS { permutations(&mut order) } else { seeds(waiting) };
        for order in orders {
            let score = self.score(now, waiting, &order, profile, |_, _, _| {});
            worst = worst.max(score);
            if score < best.1 {
                best = (order, score);
            }
        }
        if waiting.len() > ALL_ORDERS && worst > best.1 {
            self.anneal(now, waiting, profile, worst - best.1, &mut best);
        }
        best
    }

    fn anneal(
        &mut self,
        now: Nanos,
        waiting: &[Waiting],
        profile: &Profile,
        mut temperature: f64,
        best: &mut (Vec<usize>, f64),
    ) {
        let (mut order, mut last) = best.clone();
        for _ in 0..COOLING_STEPS {
            for _ in 0..SWAPS {
                let n = order.len() as u64;
                let (a, b) = (self.rng.below(n) as usize, self.rng.below(n) as usize);
                order.swap(a, b);
                let score = self.score(now, waiting, &order, profile, |_, _, _| {});
                if score < best.1 {
                    *best = (order.clone(), score);
                }
                if score < last || self.rng.unit() < exp_of_minus((score - last) / temperature) {
                    last = score;
                } else {
                    order.swap(a, b);
                }
            }
            temperature *= COOLING;
        }
    }
}

impl Policy for Plan {
    fn decide(&mut self, now: Nanos, waiting: &[Waiting], profile: Profile) -> Decision {
        let mut decision = Decision::default();
        let mut placement = Placement::new();
        // No plan starts a job now that does not fit now.
        let starts = waiting.iter().map(|w| profile.earliest(now, &w.demand, &mut placement));
        match starts.min() {
            Some(first) if first == now => {}
            first => {
                decision.next = first;
                return decision;
            }
        }
        let (order, _) = self.search(now, waiting, &profile);
        self.score(now, waiting, &order, &profile, |i, start, placement| match start == now {
            true => decision.begin.push((i, placement.clone())),
            false => decision.look_again(start),
        });
        decision
    }
}

/// The orders from which the search begins: by arrival; by nodes, room on a node, and their ratio,
/// both ways; and by estimate, both ways.
pub fn seeds(waiting: &[Waiting]) -> Vec<Vec<usize>> {
    let by = |key: &dyn Fn(&Waiting) -> u64, descending: bool| {
        let mut order: Vec<usize> = (0..waiting.len()).collect();
        order.sort_by_key(|&i| if descending { u64::MAX - key(&waiting[i]) } else { key(&waiting[i]) });
        order
    };
    let nodes = |w: &Waiting| u64::from(w.demand.nodes);
    let room = |w: &Waiting| w.demand.bytes_per_node;
    let ratio = |w: &Waiting| room(w) / nodes(w).max(1);
    let estimate = |w: &Waiting| w.demand.run_ns;
    let keys: [&dyn Fn(&Waiting) -> u64; 5] = [&|_| 0, &nodes, &room, &ratio, &estimate];
    let mut orders: Vec<Vec<usize>> = keys.iter().map(|key| by(key, false)).collect();
    orders.extend(keys[1..].iter().map(|key| by(key, true)));
    orders
}

/// All orders of `items` (Heap's algorithm).
fn permutations(items: &mut [usize]) -> Vec<Vec<usize>> {
    fn heap(k: usize, items: &mut [usize], out: &mut Vec<Vec<usize>>) {
        if k <= 1 {
            return out.push(items.to_vec());
        }
        for i in 0..k {
            heap(k - 1, items, out);
            items.swap(if k.is_multiple_of(2) { i } else { 0 }, k - 1);
        }
    }
    let mut out = Vec::new();
    heap(items.len(), items, &mut out);
    out
}

/// e^-x for x >= 0, the same on every machine: a series for x / 2^k below 1/2, squared k times.
fn exp_of_minus(x: f64) -> f64 {
    let (mut x, mut squares) = (x.clamp(0.0, 700.0), 0);
    while x > 0.5 {
        (x, squares) = (0.5 * x, squares + 1);
    }
    let series = (1..14).rev().fold(1.0, |sum, n| 1.0 - sum * x / f64::from(n));
    (0..squares).fold(series, |power, _| power * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_is_the_exponential() {
        for x in [0.0, 0.1, 0.5, 1.0, 3.7, 20.0, 100.0] {
            assert!((exp_of_minus(x) / f64::exp(-x) - 1.0).abs() < 1e-12, "{x}");
        }
    }

    #[test]
    fn all_orders_are_tried_once() {
        let mut all = permutations(&mut [0, 1, 2, 3, 4]);
        assert_eq!(all.len(), 120);
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 120);
    }
}
