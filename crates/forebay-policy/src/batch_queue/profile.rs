//! What is free from now on: nodes, and room on each burst buffer, as steps over time.

use alloc::vec;
use alloc::vec::Vec;

use super::Demand;
use crate::machine::Nanos;

/// Where the shares of a job are: (burst buffer, number of shares), ascending.
pub type Placement = Vec<(u32, u32)>;

/// Steps of free nodes and room. The last step has no end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    buffers: usize,
    /// Where each step begins.
    at: Vec<Nanos>,
    /// Free nodes in each step.
    nodes: Vec<u32>,
    /// Free bytes on each burst buffer in each step: `[step * buffers + buffer]`.
    room: Vec<u64>,
}

impl Profile {
    /// Everything is free from `now` on: `nodes`, and `room` in bytes on each burst buffer.
    pub fn new(now: Nanos, nodes: u32, room: &[u64]) -> Self {
        Profile { buffers: room.len(), at: vec![now], nodes: vec![nodes], room: room.to_vec() }
    }

    /// Copies `other` into the memory of this one.
    pub fn copy(&mut self, other: &Profile) {
        self.buffers = other.buffers;
        self.at.clone_from(&other.at);
        self.nodes.clone_from(&other.nodes);
        self.room.clone_from(&other.room);
    }

    /// The step that `at` is in; the first one if it is earlier.
    fn step(&self, at: Nanos) -> usize {
        self.at.partition_point(|begin| *begin <= at).saturating_sub(1)
    }

    /// Returns the step that begins at `at`, creating it if needed.
    fn split(&mut self, at: Nanos) -> usize {
        let step = self.step(at);
        if self.at[step] >= at {
            return step;
        }
        self.at.insert(step + 1, at);
        self.nodes.insert(step + 1, self.nodes[step]);
        let (from, to) = (step * self.buffers, (step + 1) * self.buffers);
        self.room.splice(to..to, self.room[from..to].to_vec());
        step + 1
    }

    /// Takes nodes from `from` until `until`, at most those that are free.
    pub fn take_nodes(&mut self, from: Nanos, until: Nanos, nodes: u32) {
        let (from, until) = (self.split(from), self.split(until));
        self.nodes[from..until].iter_mut().for_each(|free| *free = free.saturating_sub(nodes));
    }

    /// Takes `bytes` for each share of `placement` from `from` until `until`.
    pub fn take_room(&mut self, from: Nanos, until: Nanos, placement: &[(u32, u32)], bytes: u64) {
        if placement.is_empty() {
            return;
        }
        let (from, until) = (self.split(from), self.split(until));
        for step in from..until {
            for &(buffer, shares) in placement {
                let free = &mut self.room[step * self.buffers + buffer as usize];
                *free = free.saturating_sub(bytes * u64::from(shares));
            }
        }
    }

    /// Takes everything that a job which begins at `start` needs.
    pub fn take(&mut self, start: Nanos, demand: &Demand, placement: &[(u32, u32)]) {
        let runs = start + demand.stage_in_ns;
        self.take_nodes(runs, runs + demand.run_ns, demand.nodes);
        self.take_room(start, start + demand.lasts_ns(), placement, demand.bytes_per_node);
    }

    /// Returns the earliest moment from `from` on at which `nodes` nodes are free for `run_ns`.
    pub fn earliest_nodes(&self, from: Nanos, nodes: u32, run_ns: u64) -> Nanos {
        let mut start = from;
        while let Some(later) = self.nodes_lack(start, nodes, run_ns) {
            start = later;
        }
        start
    }

    /// Finds the earliest moment from `from` on at which the job can begin, and where its shares go
    /// then. The job must fit into an empty system.
    pub fn earliest(&self, from: Nanos, demand: &Demand, placement: &mut Placement) -> Nanos {
        let mut start = from;
        loop {
            let runs = self.earliest_nodes(start + demand.stage_in_ns, demand.nodes, demand.run_ns);
            start = start.max(runs - demand.stage_in_ns);
            match self.room_lacks(start, demand, placement) {
                Some(later) => start = later,
                None => return start,
            }
        }
    }

    /// Returns the earliest moment that may be better, if there are too few nodes at `start`.
    fn nodes_lack(&self, start: Nanos, nodes: u32, run_ns: u64) -> Option<Nanos> {
        let until = start + run_ns.max(1);
        let steps = self.step(start)..self.at.len();
        let lacking =
            steps.into_iter().take_while(|s| self.at[*s] < until).find(|s| self.nodes[*s] < nodes)?;
        Some(self.after(lacking))
    }

    /// Returns the end of a step. The end of the last step is requested only for a job that never
    /// fits.
    fn after(&self, step: usize) -> Nanos {
        assert!(step + 1 < self.at.len(), "a job needs more than the empty system has");
        self.at[step + 1]
    }

    /// Returns the earliest moment that may be better, if there is too little room at `start`;
    /// otherwise `placement` is where the shares go: onto the first burst buffers with room.
    fn room_lacks(&self, start: Nanos, demand: &Demand, placement: &mut Placement) -> Option<Nanos> {
        placement.clear();
        let bytes = demand.bytes_per_node;
        if bytes == 0 {
            return None;
        }
        let (first, until) = (self.step(start), start + demand.lasts_ns().max(1));
        let need = bytes * u64::from(demand.nodes);
        let row = |step: usize| &self.room[step * self.buffers..(step + 1) * self.buffers];
        let mut least = row(first).to_vec();
        let mut step = first;
        while step < self.at.len() && self.at[step] < until {
            least.iter_mut().zip(row(step)).for_each(|(least, free)| *least = (*least).min(*free));
            if least.iter().sum::<u64>() < need {
                let alone = row(step).iter().sum::<u64>() < need;
                return Some(self.after(if alone { step } else { first }));
            }
            step += 1;
        }
        let mut left = demand.nodes;
        for (buffer, free) in least.iter().enumerate() {
            let shares = (free / bytes).min(left.into()) as u32;
            if shares > 0 {
                placement.push((buffer as u32, shares));
                left -= shares;
            }
        }
        (left > 0).then(|| self.after(first))
    }
}
