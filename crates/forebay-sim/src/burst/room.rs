//! Nodes for jobs: which job asks the allocator when, and what is booked where.
//!
//! The world keeps books of its own, against which the allocator's decisions are checked: more
//! space than a node has, or a node that is down, means a broken policy.

use forebay_policy::burst::allocation::{self, Demand};
use forebay_policy::machine::Nanos;

use super::world::{Burst, Happening, Stage};
use crate::queue::Agenda;

impl Burst<'_> {
    /// Job `j` asks for nodes.
    pub fn ask_for_nodes(&mut self, now: Nanos, j: usize, queue: &mut impl Agenda<Happening>) {
        let spec = &self.setup.jobs[j];
        let given = match &spec.on {
            Some(on) => on.iter().all(|&n| self.faults_on[n as usize] == 0).then(|| (on.clone(), 0)),
            None => {
                let demand = Demand { bytes: self.setup.room_bytes(spec), nodes: spec.nodes };
                let event = allocation::Event::Asks { job: j as u64, demand };
                let answer = self.allocator.handle(now, event, self.record).pop();
                self.allocator.arm(queue, Happening::AllocationWakes);
                match answer {
                    Some(allocation::Action::Allocate { nodes, bytes_per_node, .. }) => {
                        Some((nodes, bytes_per_node))
                    }
                    _ => None,
                }
            }
        };
        match given {
            Some((nodes, bytes)) => self.has_nodes(now, j, nodes, bytes, queue),
            None => {
                self.out.refusals += 1;
                self.homeless.push(j);
            }
        }
    }

    fn has_nodes(
        &mut self,
        now: Nanos,
        j: usize,
        nodes: Vec<u32>,
        bytes: u64,
        queue: &mut impl Agenda<Happening>,
    ) {
        for &n in &nodes {
            assert_eq!(self.faults_on[n as usize], 0, "job {j} was given node {n}, which is down");
            let reserved = &mut self.reserved_bytes[n as usize];
            *reserved += bytes;
            assert!(*reserved <= self.setup.node_bytes, "node {n} is given out beyond its space");
            self.out.peak_reserved_bytes = self.out.peak_reserved_bytes.max(*reserved);
        }
        let spec = &self.setup.jobs[j];
        let job = &mut self.jobs[j];
        (job.nodes, job.reserved_bytes) = (nodes, bytes);
        job.done.room_ns.get_or_insert(now.0);
        if !job.begun {
            job.begun = true;
            let first = spec.arrivals.first(now, spec.io_first, spec.compute_ns, &mut job.rng);
            queue.at(first, Happening::StepDue(j));
        } else if job.stage == Stage::Due {
            self.ask_for_access(now, j, queue);
        }
    }

    /// Job `j` releases its nodes; to be followed by [`Burst::rehouse`].
    pub fn give_nodes_back(&mut self, now: Nanos, j: usize, queue: &mut impl Agenda<Happening>) {
        let job = &mut self.jobs[j];
        job.has_step = false;
        for n in std::mem::take(&mut job.nodes) {
            self.reserved_bytes[n as usize] -= job.reserved_bytes;
        }
        if self.setup.jobs[j].on.is_none() {
            self.allocator.handle(now, allocation::Event::Frees { job: j as u64 }, self.record);
            self.allocator.arm(queue, Happening::AllocationWakes);
        }
    }

    /// Jobs that wait for nodes ask again.
    pub fn rehouse(&mut self, now: Nanos, queue: &mut impl Agenda<Happening>) {
        for j in std::mem::take(&mut self.homeless) {
            if self.jobs[j].silent {
                self.homeless.push(j);
            } else {
                self.ask_for_nodes(now, j, queue);
            }
        }
    }

    pub fn is_homeless(&self, j: usize) -> bool {
        self.homeless.contains(&j)
    }

    pub fn forget_homeless(&mut self, j: usize) {
        self.homeless.retain(|&h| h != j);
    }
}
