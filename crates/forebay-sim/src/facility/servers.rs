//! Transfers over many equal servers, each transfer over neighbouring ones, as a ring.
//!
//! Weighted max-min sharing as in [`crate::maxmin`], of which this is a special case: a transfer
//! moves as much on each of its servers. Servers with the same transfers are one *span*, so the
//! cost of a change grows with the transfers and not with the servers.

use forebay_policy::machine::Nanos;

use crate::transfer_ns;

/// Neighbouring servers: the first, and how many.
pub type Range = (u32, u32);

struct Flow {
    key: u64,
    class: usize,
    on: Range,
    /// Clients on each server, and the most that they can send there.
    weight: f64,
    cap_bytes_per_s: f64,
    /// Bytes left on each server.
    left_bytes: f64,
    rate_bytes_per_s: f64,
}

/// What a new transfer looks like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spec {
    /// Returned when the transfer ends.
    pub key: u64,
    /// The class whose bytes [`Servers::moved_bytes`] counts.
    pub class: usize,
    /// Its servers.
    pub on: Range,
    /// Bytes on all servers together.
    pub bytes: f64,
    /// Clients on all servers together; a server divides itself evenly over its clients.
    pub clients: f64,
    /// The most that all clients can send.
    pub cap_bytes_per_s: f64,
}

/// The servers, and what moves.
pub struct Servers {
    count: u32,
    bytes_per_s: f64,
    flows: Vec<Flow>,
    updated: Nanos,
    next: Option<(Nanos, usize)>,
    is_settled: bool,
    moved_bytes: [f64; 3],
}

/// The spans of a range: in one part, or in two around the end of the ring.
type Parts = [std::ops::Range<usize>; 2];

/// Spans of servers, with what is free on each server of a span.
struct Spans {
    count: u32,
    begins: Vec<u32>,
    free: Vec<f64>,
    weight: Vec<f64>,
    open: Vec<u32>,
}

impl Servers {
    /// Starts with nothing moving.
    pub fn new(count: u32, bytes_per_s: f64) -> Self {
        assert!(count > 0 && bytes_per_s > 0.0, "{count} servers of {bytes_per_s} B/s move nothing");
        let (flows, updated) = (Vec::new(), Nanos(0));
        Servers { count, bytes_per_s, flows, updated, next: None, is_settled: true, moved_bytes: [0.0; 3] }
    }

    /// Begins a transfer. To be followed by [`Servers::settle`] at the same moment.
    pub fn start(&mut self, now: Nanos, spec: Spec) {
        let Spec { key, class, on, bytes, clients, cap_bytes_per_s } = spec;
        assert!(on.0 < self.count && (1..=self.count).contains(&on.1), "no such servers: {spec:?}");
        self.progress(now);
        let each = f64::from(on.1);
        self.flows.push(Flow {
            key,
            class,
            on,
            weight: clients / each,
            cap_bytes_per_s: cap_bytes_per_s / each,
            left_bytes: bytes / each,
            rate_bytes_per_s: 0.0,
        });
    }

    /// When the next transfer ends, as of the last [`Servers::settle`].
    pub fn next_end(&self) -> Option<Nanos> {
        self.next.map(|next| next.0)
    }

    /// Takes out the transfer that [`Servers::next_end`] announced.
    pub fn pop_end(&mut self) -> Option<u64> {
        let (at, index) = self.next.take()?;
        self.progress(at);
        Some(self.flows.swap_remove(index).key)
    }

    /// Bytes that each class has moved up to `now`.
    pub fn moved_bytes(&mut self, now: Nanos) -> [f64; 3] {
        let was_settled = self.is_settled;
        self.progress(now);
        self.is_settled = was_settled;
        self.moved_bytes
    }

    fn progress(&mut self, now: Nanos) {
        let passed_s = now.saturating_since(self.updated) as f64 * 1e-9;
        if passed_s > 0.0 {
            for flow in &mut self.flows {
                let moved = (flow.rate_bytes_per_s * passed_s).min(flow.left_bytes);
                flow.left_bytes -= moved;
                self.moved_bytes[flow.class] += moved * f64::from(flow.on.1);
            }
        }
        self.updated = now;
        self.is_settled = false;
    }

    /// Shares the servers again, if something has begun or ended.
    pub fn settle(&mut self, now: Nanos) {
        if self.is_settled {
            return;
        }
        self.progress(now);
        self.fill();
        let ends = self.flows.iter().enumerate().filter_map(|(index, flow)| {
            Some((now + transfer_ns(flow.left_bytes, flow.rate_bytes_per_s)?, index))
        });
        self.next = ends.min();
        self.is_settled = true;
    }

    /// Progressive filling. Below the level of the fullest span, all transfers that meet their own
    /// limit are frozen at it: that only raises the levels of their spans.
    fn fill(&mut self) {
        let mut spans = Spans::of(self.count, self.bytes_per_s, &self.flows);
        let parts: Vec<Parts> = self.flows.iter().map(|flow| spans.parts(flow.on)).collect();
        self.flows.iter().zip(&parts).for_each(|(flow, parts)| spans.add(parts, flow.weight));
        let mut open: Vec<usize> = (0..self.flows.len()).collect();
        while !open.is_empty() {
            let (level, fullest) = spans.fullest();
            let limit = |flow: &Flow| flow.cap_bytes_per_s / flow.weight;
            let is_limited = open.iter().any(|&i| limit(&self.flows[i]) <= level);
            open.retain(|&i| {
                let flow = &mut self.flows[i];
                let at = match is_limited {
                    true => Some(limit(flow)).filter(|at| *at <= level),
                    false => parts[i].iter().any(|part| part.contains(&fullest)).then_some(level),
                };
                let Some(at) = at else { return true };
                flow.rate_bytes_per_s = at * flow.weight;
                spans.freeze(&parts[i], flow);
                false
            });
        }
    }
}

impl Spans {
    fn of(count: u32, bytes_per_s: f64, flows: &[Flow]) -> Self {
        let partial = flows.iter().filter(|flow| flow.on.1 < count);
        let ends = partial.flat_map(|flow| [flow.on.0, (flow.on.0 + flow.on.1) % count]);
        let mut begins: Vec<u32> = std::iter::once(0).chain(ends).collect();
        begins.sort_unstable();
        begins.dedup();
        let len = begins.len();
        Spans { count, begins, free: vec![bytes_per_s; len], weight: vec![0.0; len], open: vec![0; len] }
    }

    fn parts(&self, (first, width): Range) -> Parts {
        let at = |server: u32| self.begins.partition_point(|begin| *begin < server);
        let (all, end) = (self.begins.len(), first + width);
        match () {
            () if width == self.count => [0..all, 0..0],
            () if end <= self.count => [at(first)..at(end), 0..0],
            () => [at(first)..all, 0..at(end - self.count)],
        }
    }

    fn add(&mut self, parts: &Parts, weight: f64) {
        for span in parts.iter().cloned().flatten() {
            self.weight[span] += weight;
            self.open[span] += 1;
        }
    }

    /// The least rate for each client at which a span is full, and that span.
    fn fullest(&self) -> (f64, usize) {
        let spans = (0..self.open.len()).filter(|span| self.open[*span] > 0);
        let levels = spans.map(|span| (self.free[span].max(0.0) / self.weight[span], span));
        levels.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, 0))
    }

    fn freeze(&mut self, parts: &Parts, flow: &Flow) {
        for span in parts.iter().cloned().flatten() {
            self.free[span] -= flow.rate_bytes_per_s;
            self.weight[span] -= flow.weight;
            self.open[span] -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::maxmin::{FlowSpec, MaxMin};

    proptest! {
        /// The rates, the moments and the order are the same as in the general network.
        #[test]
        fn spans_share_as_single_servers_do(
            count in 1u32..12,
            flows in prop::collection::vec((0u32..12, 1u32..=12, 1u32..50, 1u32..9, 0.5f64..40.0), 1..12)
        ) {
            let (mut servers, mut network) = (Servers::new(count, 10.0), MaxMin::new());
            for _ in 0..count {
                network.add_resource(10.0);
            }
            for (key, (first, width, bytes, clients, cap)) in (0u64..).zip(flows) {
                let on = (first % count, width.min(count));
                let (each, clients) = (f64::from(on.1), f64::from(clients));
                let class = key as usize % 3;
                servers.start(Nanos(0), Spec { key, class, on, bytes: bytes.into(), clients, cap_bytes_per_s: cap });
                let path = (0..on.1).map(|i| ((on.0 + i) % count) as usize).collect();
                let (bytes, cap_bytes_per_s) = (f64::from(bytes) / each, cap / each);
                network.start(Nanos(0), key, FlowSpec { path, bytes, weight: clients / each, cap_bytes_per_s });
            }
            servers.settle(Nanos(0));
            while let Some(at) = servers.next_end() {
                for flow in &servers.flows {
                    let rate = network.rate_bytes_per_s(flow.key).unwrap_or(0.0);
                    prop_assert!((flow.rate_bytes_per_s - rate).abs() < 1e-6, "{} and {rate}", flow.rate_bytes_per_s);
                }
                let (key, end) = (servers.pop_end().expect("announced"), network.next_end().expect("as many"));
                // Ends of one moment may come in any order, a rounding apart.
                prop_assert!(at.0.abs_diff(end.0) < 100, "{at:?} and {end:?}");
                if network.abort(at.max(end), key).is_none_or(|left| left > 1e-3) {
                    return Err(TestCaseError::fail(format!("transfer {key} goes on")));
                }
                servers.settle(at);
            }
            prop_assert_eq!(network.next_end(), None);
        }
    }
}
