//! Flows over several shared resources: weighted max-min fairness, recomputed at every change.
//!
//! A flow crosses one or more resources (a client's link, a PFS server, the backplane, a burst
//! buffer node) and has a weight, its number of processes. *Progressive filling*: the rate per unit
//! of weight rises for all flows together until a resource is full; its flows are frozen at that
//! level and the others continue to rise (Bertsekas and Gallager, *Data Networks*, section 6.5).
//! With one resource this is an even division over processes; with several, no flow can get more
//! without taking from one that has no more than it.
//!
//! Only the part of the network that a change can reach (flows linked through resources) is
//! recomputed.

use std::collections::{BTreeMap, BTreeSet};

use forebay_policy::machine::Nanos;

use crate::transfer_ns;

/// Id of a flow; the caller chooses it, and it is returned on completion.
pub type FlowId = u64;

struct Flow {
    path: Vec<usize>,
    weight: f64,
    cap_bytes_per_s: f64,
    left_bytes: f64,
    rate_bytes_per_s: f64,
    updated: Nanos,
    scheduled: Option<Nanos>,
}

struct Resource {
    capacity_bytes_per_s: f64,
    flows: BTreeSet<FlowId>,
}

/// What a new flow looks like.
#[derive(Clone, Debug)]
pub struct FlowSpec {
    /// Indices of the resources that it crosses; at least one, each at most once.
    pub path: Vec<usize>,
    /// Bytes to move.
    pub bytes: f64,
    /// Number of processes that share it out.
    pub weight: f64,
    /// Its own upper bound; `f64::INFINITY` for none.
    pub cap_bytes_per_s: f64,
}

/// Resources and the flows on them.
#[derive(Default)]
pub struct MaxMin {
    resources: Vec<Resource>,
    flows: BTreeMap<FlowId, Flow>,
    next: BTreeSet<(Nanos, FlowId)>,
}

impl MaxMin {
    /// A network without resources.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a resource and returns its index.
    pub fn add_resource(&mut self, capacity_bytes_per_s: f64) -> usize {
        assert!(capacity_bytes_per_s >= 0.0, "a resource cannot have capacity {capacity_bytes_per_s}");
        self.resources.push(Resource { capacity_bytes_per_s, flows: BTreeSet::new() });
        self.resources.len() - 1
    }

    /// Starts a flow. `id` must be new.
    pub fn start(&mut self, now: Nanos, id: FlowId, spec: FlowSpec) {
        assert!(!spec.path.is_empty() && spec.weight > 0.0 && spec.bytes >= 0.0, "flow {id}: {spec:?}");
        for &r in &spec.path {
            assert!(
                self.resources[r].flows.insert(id),
                "flow {id} crosses resource {r} twice, or exists already"
            );
        }
        let first = spec.path[0];
        let flow = Flow {
            path: spec.path,
            weight: spec.weight,
            cap_bytes_per_s: spec.cap_bytes_per_s,
            left_bytes: spec.bytes,
            rate_bytes_per_s: 0.0,
            updated: now,
            scheduled: None,
        };
        self.flows.insert(id, flow);
        self.settle(now, &[first]);
    }

    /// Changes a flow's weight and cap from `now` on; a cap of 0 holds it. Unknown flows are
    /// ignored.
    pub fn reshape(&mut self, now: Nanos, id: FlowId, weight: f64, cap_bytes_per_s: f64) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        (flow.weight, flow.cap_bytes_per_s) = (weight, cap_bytes_per_s);
        let first = flow.path[0];
        self.settle(now, &[first]);
    }

    /// Flows on a resource, ascending.
    pub fn flows_on(&self, resource: usize) -> impl Iterator<Item = FlowId> {
        self.resources[resource].flows.iter().copied()
    }

    /// Changes the weights of flows on `resource` from `now` on; their caps stay.
    pub fn reweigh(&mut self, now: Nanos, resource: usize, weights: &[(FlowId, f64)]) {
        let mut changed = false;
        for &(id, weight) in weights {
            if let Some(flow) = self.flows.get_mut(&id) {
                changed |= flow.weight != weight;
                flow.weight = weight;
            }
        }
        if changed {
            self.settle(now, &[resource]);
        }
    }

    /// Adds a twin of `resource`: as large, and with a twin of each of its flows (which must not
    /// cross other resources), at the same progress. `name` gives the id of the twin of a flow.
    pub fn twin(&mut self, resource: usize, name: impl Fn(usize, FlowId) -> FlowId) -> usize {
        let twin = self.add_resource(self.resources[resource].capacity_bytes_per_s);
        for id in self.resources[resource].flows.clone() {
            let Some(flow) = self.flows.get(&id) else { continue };
            assert_eq!(flow.path, [resource], "flow {id} crosses more than the resource that gets a twin");
            let flow = Flow { path: vec![twin], ..*flow };
            let id = name(twin, id);
            self.next.extend(flow.scheduled.map(|at| (at, id)));
            self.resources[twin].flows.insert(id);
            assert!(self.flows.insert(id, flow).is_none(), "flow {id} exists already");
        }
        twin
    }

    /// Ends a flow early; returns the bytes that were still to move.
    pub fn abort(&mut self, now: Nanos, id: FlowId) -> Option<f64> {
        let mut flow = self.flows.remove(&id)?;
        progress(&mut flow, now);
        self.forget(now, id, &flow);
        Some(flow.left_bytes)
    }

    /// When the next flow ends.
    pub fn next_end(&self) -> Option<Nanos> {
        self.next.first().map(|&(at, _)| at)
    }

    /// Completes the flow that `next_end` announced.
    pub fn pop_end(&mut self) -> Option<(Nanos, FlowId)> {
        let (at, id) = *self.next.first()?;
        let flow = self.flows.remove(&id)?;
        self.forget(at, id, &flow);
        Some((at, id))
    }

    /// The rate of a flow at its last change.
    pub fn rate_bytes_per_s(&self, id: FlowId) -> Option<f64> {
        self.flows.get(&id).map(|f| f.rate_bytes_per_s)
    }

    fn forget(&mut self, now: Nanos, id: FlowId, flow: &Flow) {
        if let Some(at) = flow.scheduled {
            self.next.remove(&(at, id));
        }
        for &r in &flow.path {
            self.resources[r].flows.remove(&id);
        }
        self.settle(now, &flow.path);
    }

    /// Updates all flows that `seeds` can influence to `now` and shares the bandwidth again.
    fn settle(&mut self, now: Nanos, seeds: &[usize]) {
        let (resources, ids) = self.component(seeds);
        let rates = self.fill(&resources, &ids);
        for (&id, rate) in ids.iter().zip(rates) {
            let Some(flow) = self.flows.get_mut(&id) else { continue };
            progress(flow, now);
            flow.rate_bytes_per_s = rate;
            let end = transfer_ns(flow.left_bytes, rate).map(|ns| now + ns);
            if end != flow.scheduled {
                if let Some(old) = flow.scheduled {
                    self.next.remove(&(old, id));
                }
                if let Some(at) = end {
                    self.next.insert((at, id));
                }
                flow.scheduled = end;
            }
        }
    }

    /// Resources and flows linked with `seeds`, in ascending order.
    fn component(&self, seeds: &[usize]) -> (Vec<usize>, Vec<FlowId>) {
        let mut resources: BTreeSet<usize> = seeds.iter().copied().collect();
        let mut open: Vec<usize> = seeds.to_vec();
        let mut ids = BTreeSet::new();
        while let Some(r) = open.pop() {
            for &id in &self.resources[r].flows {
                if ids.insert(id) {
                    open.extend(self.flows[&id].path.iter().copied().filter(|&p| resources.insert(p)));
                }
            }
        }
        (resources.into_iter().collect(), ids.into_iter().collect())
    }

    /// Progressive filling over one component; rates in the order of `ids`.
    fn fill(&self, resources: &[usize], ids: &[FlowId]) -> Vec<f64> {
        let mut free: BTreeMap<usize, (f64, f64)> = resources
            .iter()
            .map(|&r| {
                let weight = self.resources[r].flows.iter().map(|id| self.flows[id].weight).sum();
                (r, (self.resources[r].capacity_bytes_per_s, weight))
            })
            .collect();
        let mut rates = vec![0.0; ids.len()];
        let mut open: Vec<usize> = (0..ids.len()).collect();
        while !open.is_empty() {
            // The level at which the next resource is full or the next flow meets its own cap.
            let level = |flow: &Flow| {
                flow.path
                    .iter()
                    .map(|r| free[r].0 / free[r].1)
                    .fold(flow.cap_bytes_per_s / flow.weight, f64::min)
            };
            let levels: Vec<f64> = open.iter().map(|&i| level(&self.flows[&ids[i]])).collect();
            let lowest = levels.iter().copied().fold(f64::INFINITY, f64::min);
            let mut still_open = Vec::new();
            for (&i, level) in open.iter().zip(levels) {
                // Equal up to rounding: freezing two equal bottlenecks together saves a round and
                // changes nothing.
                if level > lowest * (1.0 + 1e-12) {
                    still_open.push(i);
                    continue;
                }
                let flow = &self.flows[&ids[i]];
                rates[i] = lowest.max(0.0) * flow.weight;
                for r in &flow.path {
                    if let Some((capacity, weight)) = free.get_mut(r) {
                        *capacity = (*capacity - rates[i]).max(0.0);
                        *weight -= flow.weight;
                    }
                }
            }
            open = still_open;
        }
        rates
    }
}

fn progress(flow: &mut Flow, now: Nanos) {
    let dt_s = now.saturating_since(flow.updated) as f64 * 1e-9;
    flow.left_bytes = (flow.left_bytes - dt_s * flow.rate_bytes_per_s).max(0.0);
    flow.updated = now;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(path: &[usize], bytes: f64, weight: f64) -> FlowSpec {
        FlowSpec { path: path.to_vec(), bytes, weight, cap_bytes_per_s: f64::INFINITY }
    }

    /// The textbook line: one long flow over two links of 1 and 2, and one short flow on each.
    #[test]
    fn the_textbook_example() {
        let mut net = MaxMin::new();
        let (a, b) = (net.add_resource(1.0), net.add_resource(2.0));
        net.start(Nanos(0), 0, spec(&[a, b], 10.0, 1.0));
        net.start(Nanos(0), 1, spec(&[a], 10.0, 1.0));
        net.start(Nanos(0), 2, spec(&[b], 10.0, 1.0));
        let rates: Vec<f64> = (0..3).map(|i| net.rate_bytes_per_s(i).expect("runs")).collect();
        assert_eq!(rates, [0.5, 0.5, 1.5]);
    }

    #[test]
    fn a_cap_leaves_the_rest_to_the_others() {
        let mut net = MaxMin::new();
        let r = net.add_resource(10.0);
        net.start(Nanos(0), 0, FlowSpec { cap_bytes_per_s: 2.0, ..spec(&[r], 2.0, 1.0) });
        net.start(Nanos(0), 1, spec(&[r], 16.0, 1.0));
        assert_eq!(net.rate_bytes_per_s(1), Some(8.0));
        assert_eq!(net.pop_end(), Some((Nanos(1_000_000_000), 0)));
        assert_eq!(net.rate_bytes_per_s(1), Some(10.0));
        assert_eq!(net.pop_end(), Some((Nanos(1_800_000_000), 1)));
    }

    #[test]
    fn a_twin_goes_on_where_its_resource_stood() {
        let mut net = MaxMin::new();
        let a = net.add_resource(4.0);
        net.start(Nanos(0), 0, spec(&[a], 8.0, 1.0));
        net.start(Nanos(0), 1, spec(&[a], 80.0, 3.0));
        let b = net.twin(a, |twin, id| id + 10 * twin as u64);
        // On the twin alone, the second is held from 2 s on.
        net.reshape(Nanos(2_000_000_000), 11, 3.0, 0.0);
        assert_eq!((net.rate_bytes_per_s(0), net.rate_bytes_per_s(10)), (Some(1.0), Some(4.0)));
        assert_eq!(net.pop_end(), Some((Nanos(3_500_000_000), 10)));
        assert_eq!(net.pop_end(), Some((Nanos(8_000_000_000), 0)));
        assert_eq!(net.abort(Nanos(9_000_000_000), 11), Some(74.0));
        assert_eq!((b, net.next_end()), (1, Some(Nanos(22_000_000_000))));
    }

    proptest! {
        /// No capacity is exceeded, and every flow is held back by a full resource or by its cap
        /// (work conservation).
        #[test]
        fn rates_are_feasible_and_nobody_can_have_more(
            capacities in prop::collection::vec(1.0f64..100.0, 1..6),
            flows in prop::collection::vec((prop::collection::btree_set(0usize..6, 1..4), 1u32..64, 0.5f64..50.0), 1..20)
        ) {
            let mut net = MaxMin::new();
            for c in &capacities { net.add_resource(*c); }
            for (id, (path, weight, cap)) in flows.iter().enumerate() {
                let path: BTreeSet<usize> = path.iter().map(|r| r % capacities.len()).collect();
                net.start(Nanos(0), id as u64, FlowSpec {
                    cap_bytes_per_s: *cap, ..spec(&path.into_iter().collect::<Vec<_>>(), 1e9, f64::from(*weight))
                });
            }
            let used: Vec<f64> = net.resources.iter()
                .map(|r| r.flows.iter().map(|id| net.flows[id].rate_bytes_per_s).sum()).collect();
            for (u, c) in used.iter().zip(&capacities) { prop_assert!(*u <= c * (1.0 + 1e-9)); }
            for f in net.flows.values() {
                let held = f.rate_bytes_per_s >= f.cap_bytes_per_s * (1.0 - 1e-9)
                    || f.path.iter().any(|&r| used[r] >= capacities[r] * (1.0 - 1e-9));
                prop_assert!(held, "flow at {} could have more", f.rate_bytes_per_s);
            }
        }
    }
}
