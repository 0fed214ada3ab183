//! Burst buffer nodes and what is being written to them.
//!
//! Nodes that have had the same to do since they were last idle behave alike, so one of each such
//! *class* is simulated: a class is split when a write uses only a part of it, and classes that
//! become idle are merged again. This is exact, and a step on hundreds of nodes costs what a step
//! on one costs.

use std::collections::BTreeMap;

use forebay_policy::burst::access::share;
use forebay_policy::machine::Nanos;

use crate::maxmin::{FlowSpec, MaxMin};

/// Id of a write; the caller chooses it, never twice.
pub type WriteId = u32;

/// Number of writes that a node distinguishes; those behind share what the last of them gets.
const MOST_SHARES: usize = 8;

struct Write {
    classes: Vec<usize>,
}

/// The nodes.
pub struct Fabric {
    net: MaxMin,
    rate_bytes_per_s: f64,
    /// The class of each node; none while it is down.
    class_of: Vec<Option<usize>>,
    /// The nodes of each class; empty for a class that is not in use.
    members: Vec<Vec<u32>>,
    /// Writes on each class.
    users: Vec<u32>,
    idle: Option<usize>,
    spare: Vec<usize>,
    writes: BTreeMap<WriteId, Write>,
    /// Place of each write in the order in which nodes serve them, if there is an order; a write
    /// without a place comes last.
    places: Option<BTreeMap<WriteId, usize>>,
}

fn flow(write: WriteId, class: usize) -> u64 {
    u64::from(write) << 32 | class as u64
}

impl Fabric {
    /// `nodes` idle nodes.
    pub fn new(nodes: u32, rate_bytes_per_s: f64) -> Self {
        let mut net = MaxMin::new();
        net.add_resource(rate_bytes_per_s);
        Fabric {
            net,
            rate_bytes_per_s,
            class_of: vec![Some(0); nodes as usize],
            members: vec![(0..nodes).collect()],
            users: vec![0],
            idle: Some(0),
            spare: Vec::new(),
            writes: BTreeMap::new(),
            places: None,
        }
    }

    /// Begins to write `bytes` to each of `nodes`, as `weight` processes that send at most
    /// `cap_bytes_per_s` to each. Nodes that are down are an error of the caller.
    pub fn start(
        &mut self,
        now: Nanos,
        id: WriteId,
        nodes: &[u32],
        bytes: f64,
        weight: f64,
        cap_bytes_per_s: f64,
    ) {
        let mut wanted: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for &n in nodes {
            let Some(class) = self.class_of[n as usize] else {
                panic!("write {id} to node {n}, which is down")
            };
            wanted.entry(class).or_default().push(n);
        }
        let mut classes = Vec::with_capacity(wanted.len());
        for (class, part) in wanted {
            let class = if part.len() < self.members[class].len() { self.split(class, part) } else { class };
            self.idle = self.idle.filter(|&i| i != class);
            self.users[class] += 1;
            let spec = FlowSpec { path: vec![class], bytes, weight, cap_bytes_per_s };
            self.net.start(now, flow(id, class), spec);
            self.serve_in_order(now, class);
            classes.push(class);
        }
        self.writes.insert(id, Write { classes });
    }

    /// Makes `part` of `class` a class of its own.
    fn split(&mut self, class: usize, part: Vec<u32>) -> usize {
        let new = if self.users[class] == 0 {
            self.empty_class()
        } else {
            let twin = self.net.twin(class, |twin, f| flow((f >> 32) as WriteId, twin));
            for write in self.writes.values_mut().filter(|w| w.classes.contains(&class)) {
                write.classes.push(twin);
            }
            self.members.push(Vec::new());
            self.users.push(self.users[class]);
            twin
        };
        for &n in &part {
            self.class_of[n as usize] = Some(new);
        }
        let class_of = &self.class_of;
        self.members[class].retain(|&n| class_of[n as usize] == Some(class));
        self.members[new] = part;
        new
    }

    fn empty_class(&mut self) -> usize {
        self.spare.pop().unwrap_or_else(|| {
            self.members.push(Vec::new());
            self.users.push(0);
            self.net.add_resource(self.rate_bytes_per_s)
        })
    }

    /// Removes one write from `class`.
    fn leave(&mut self, class: usize) {
        self.users[class] -= 1;
        if self.users[class] > 0 {
            return;
        }
        let Some(idle) = self.idle else {
            self.idle = Some(class);
            return;
        };
        let nodes = std::mem::take(&mut self.members[class]);
        nodes.iter().for_each(|&n| self.class_of[n as usize] = Some(idle));
        self.members[idle].extend(nodes);
        self.spare.push(class);
    }

    /// Changes the weight and the cap of write `id`; a cap of 0 holds it.
    pub fn reshape(&mut self, now: Nanos, id: WriteId, weight: f64, cap_bytes_per_s: f64) {
        let Some(write) = self.writes.get(&id) else { return };
        for &class in &write.classes {
            self.net.reshape(now, flow(id, class), weight, cap_bytes_per_s);
        }
        for class in write.classes.clone() {
            self.serve_in_order(now, class);
        }
    }

    /// From now on nodes serve writes in this order, and writes that are not in it last.
    pub fn rank(&mut self, now: Nanos, order: &[WriteId]) {
        self.places = Some(order.iter().enumerate().map(|(place, &id)| (id, place)).collect());
        for class in 0..self.users.len() {
            self.serve_in_order(now, class);
        }
    }

    /// Divides the bandwidth of a class by the order, if there is one.
    fn serve_in_order(&mut self, now: Nanos, class: usize) {
        let Some(places) = &self.places else { return };
        let mut ids: Vec<(usize, u64)> = self
            .net
            .flows_on(class)
            .map(|f| (places.get(&((f >> 32) as WriteId)).copied().unwrap_or(usize::MAX), f))
            .collect();
        ids.sort_unstable();
        let last = ids.len().min(MOST_SHARES);
        let weights = ids.iter().enumerate().map(|(k, &(_, f))| (f, share(k.min(last - 1), last)));
        self.net.reweigh(now, class, &weights.collect::<Vec<_>>());
    }

    /// Ends write `id` early; returns the bytes that were still to write, if it was in progress.
    pub fn stop(&mut self, now: Nanos, id: WriteId) -> Option<f64> {
        let write = self.writes.remove(&id)?;
        let mut left = 0.0;
        for class in write.classes {
            let on_each = self.net.abort(now, flow(id, class)).unwrap_or(0.0);
            self.serve_in_order(now, class);
            left += on_each * self.members[class].len() as f64;
            self.leave(class);
        }
        Some(left)
    }

    /// Returns whether write `id` is in progress (or held).
    pub fn is_writing(&self, id: WriteId) -> bool {
        self.writes.contains_key(&id)
    }

    /// When the next node finishes a write.
    pub fn next_end(&self) -> Option<Nanos> {
        self.net.next_end()
    }

    /// Completes what `next_end` announced; returns the write, if that was the last of its nodes.
    pub fn pop_end(&mut self) -> Option<WriteId> {
        let (now, flow) = self.net.pop_end()?;
        let (id, class) = ((flow >> 32) as WriteId, (flow & u64::from(u32::MAX)) as usize);
        self.serve_in_order(now, class);
        let write = self.writes.get_mut(&id)?;
        write.classes.retain(|&c| c != class);
        let over = write.classes.is_empty();
        if over {
            self.writes.remove(&id);
        }
        self.leave(class);
        over.then_some(id)
    }

    /// Takes away node `n`, which must be idle.
    pub fn fail(&mut self, n: u32) {
        let class = self.class_of[n as usize].take();
        assert!(
            class.is_some() && class == self.idle,
            "node {n} fails while it is written to, or is down already"
        );
        if let Some(class) = class {
            self.members[class].retain(|&m| m != n);
        }
    }

    /// Node `n` is back.
    pub fn restore(&mut self, n: u32) {
        let idle = match self.idle {
            Some(idle) => idle,
            None => self.empty_class(),
        };
        self.idle = Some(idle);
        self.members[idle].push(n);
        self.class_of[n as usize] = Some(idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same without classes: a resource for each node.
    struct Plain {
        net: MaxMin,
        left: BTreeMap<WriteId, Vec<u32>>,
    }

    impl Plain {
        fn pop(&mut self) -> Option<WriteId> {
            let (_, f) = self.net.pop_end()?;
            let id = (f >> 32) as WriteId;
            let nodes = self.left.get_mut(&id).expect("it writes");
            nodes.retain(|&n| u64::from(n) != f & 0xffff_ffff);
            nodes.is_empty().then_some(id)
        }
    }

    proptest! {
        /// Classes are exact: every write ends in the nanosecond in which it would if each node
        /// were simulated by itself, whatever begins, changes and is stopped on the way.
        #[test]
        fn like_nodes_one_by_one(
            writes in prop::collection::vec(
                (prop::collection::btree_set(0u32..12, 1..12), 1u32..1000, 1u32..64, 0u64..300, 0u32..4), 1..24)
        ) {
            let mut fabric = Fabric::new(12, 7.0);
            let mut plain = Plain { net: MaxMin::new(), left: BTreeMap::new() };
            (0..12).for_each(|_| { plain.net.add_resource(7.0); });
            let (mut now, mut ends, mut expected) = (Nanos(0), Vec::new(), Vec::new());
            for (id, (nodes, bytes, weight, gap_s, kind)) in (0..).zip(writes) {
                let nodes: Vec<u32> = nodes.into_iter().collect();
                now = now + gap_s * 1_000_000_000;
                while fabric.next_end().is_some_and(|at| at <= now) {
                    let at = fabric.next_end();
                    ends.extend(fabric.pop_end().map(|w| (at, w)));
                }
                while plain.net.next_end().is_some_and(|at| at <= now) {
                    let at = plain.net.next_end();
                    expected.extend(plain.pop().map(|w| (at, w)));
                }
                let (bytes, weight) = (f64::from(bytes), f64::from(weight));
                let cap = if kind == 0 { 2.0 } else { f64::INFINITY };
                fabric.start(now, id, &nodes, bytes, weight, cap);
                for &n in &nodes {
                    let spec = FlowSpec { path: vec![n as usize], bytes, weight, cap_bytes_per_s: cap };
                    plain.net.start(now, flow(id, n as usize), spec);
                }
                plain.left.insert(id, nodes);
                let before = id.saturating_sub(1);
                if kind == 1 {
                    fabric.reshape(now, before, 5.0, 3.0);
                    (0..12).for_each(|n| plain.net.reshape(now, flow(before, n), 5.0, 3.0));
                } else if kind == 2 {
                    let left = fabric.stop(now, before).unwrap_or(0.0);
                    let there: f64 = (0..12).filter_map(|n| plain.net.abort(now, flow(before, n))).sum();
                    prop_assert!((left - there).abs() < 1e-6, "{} {}", left, there);
                }
            }
            while let Some(at) = fabric.next_end() { ends.extend(fabric.pop_end().map(|w| (Some(at), w))); }
            while let Some(at) = plain.net.next_end() { expected.extend(plain.pop().map(|w| (Some(at), w))); }
            ends.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(ends, expected);
            prop_assert_eq!(fabric.members.iter().map(Vec::len).sum::<usize>(), 12);
            prop_assert_eq!(fabric.idle.map(|i| fabric.members[i].len()), Some(12), "all are idle again");
        }
    }

    #[test]
    fn a_node_that_returns_is_idle_like_the_others() {
        let mut fabric = Fabric::new(3, 1.0);
        fabric.start(Nanos(0), 1, &[0, 1], 2.0, 1.0, f64::INFINITY);
        fabric.fail(2);
        assert_eq!((fabric.pop_end(), fabric.next_end()), (Some(1), None));
        fabric.restore(2);
        fabric.start(Nanos(9), 2, &[0, 1, 2], 1.0, 1.0, f64::INFINITY);
        assert_eq!((fabric.pop_end(), fabric.next_end()), (Some(2), None));
    }
}
