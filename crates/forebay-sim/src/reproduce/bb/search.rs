//! The best order that a long search finds: simulated annealing over orders of a sharing-aware list
//! schedule.
//!
//! Written without the policy's own search and evaluator, so that it can judge them. It knows
//! nothing of a bound on waiting.

use forebay_model::rng::Rng;

/// A step: its nodes as bits, and its time in ns.
#[derive(Clone, Copy)]
struct Step {
    nodes: u128,
    alone_ns: u64,
}

/// Sum of ends in seconds if steps are let in by `order` as soon as their nodes are free.
fn aggregate_s(steps: &[Step], order: &[usize]) -> f64 {
    let (mut waiting, mut running, mut busy) = (order.to_vec(), Vec::new(), 0u128);
    let (mut now, mut sum) = (0u64, 0.0);
    while !waiting.is_empty() {
        waiting.retain(|&i| {
            let free = busy & steps[i].nodes == 0;
            if free {
                busy |= steps[i].nodes;
                running.push((now + steps[i].alone_ns, steps[i].nodes));
                sum += (now + steps[i].alone_ns) as f64 * 1e-9;
            }
            !free
        });
        now = running.iter().map(|r| r.0).min().unwrap_or(now);
        running.retain(|r| {
            if r.0 <= now {
                busy &= !r.1;
            }
            r.0 > now
        });
    }
    sum
}

/// The least aggregate in seconds that `tries` orders come to, for steps of `alone_ns` on `nodes`
/// (below 128).
pub fn best_s(nodes: &[Vec<u32>], alone_ns: &[u64], tries: u32, seed: u64) -> f64 {
    let bits = |nodes: &Vec<u32>| nodes.iter().fold(0u128, |b, n| b | 1 << n);
    let steps: Vec<Step> =
        nodes.iter().zip(alone_ns).map(|(n, &alone_ns)| Step { nodes: bits(n), alone_ns }).collect();
    let mut rng = Rng::new(seed);
    let mut order: Vec<usize> = (0..steps.len()).collect();
    order.sort_by_key(|&i| steps[i].alone_ns);
    let mut current = aggregate_s(&steps, &order);
    let mut best = current;
    // From accepting a loss of 1 % now and then to accepting none.
    let warm = 0.01 * current;
    for k in 0..tries {
        let heat = warm * (1.0 - f64::from(k) / f64::from(tries)).powi(2) + 1e-9;
        let (from, to) = (rng.below(order.len() as u64) as usize, rng.below(order.len() as u64) as usize);
        let undo = order.clone();
        let step = order.remove(from);
        order.insert(to, step);
        let tried = aggregate_s(&steps, &order);
        if tried <= current || rng.unit() < ((current - tried) / heat).exp() {
            current = tried;
            best = best.min(current);
        } else {
            order = undo;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wide step of 4 s and four narrow ones of 5 s: all orders come to 40 or 29.
    #[test]
    fn it_finds_the_best_of_a_small_case() {
        let nodes = [vec![0, 1, 2, 3], vec![0], vec![1], vec![2], vec![3]];
        let s = 1_000_000_000;
        assert_eq!(best_s(&nodes, &[4 * s, 5 * s, 5 * s, 5 * s, 5 * s], 500, 1), 29.0);
    }
}
