//! Nodes of the cluster that fail. Faults of burst buffers are handled in that part.

use forebay_policy::machine::Nanos;
use serde::Serialize;

use super::{Happening, NodeFault, Together};
use crate::queue::EventQueue;

/// A note in the trace.
#[derive(Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
enum Note {
    Fails,
    Returns,
}

impl Together<'_> {
    /// Schedules what is to break.
    pub fn begin_faults(&mut self, queue: &mut EventQueue<Happening>) {
        // By itself the part does not know which node has what.
        if !self.setup.faults.is_empty() && self.memory.is_empty() {
            self.cluster.limit_tiers(self.setup.cluster.tier_bytes, queue);
        }
        for fault in &self.setup.faults {
            queue.at(Nanos(fault.at_ns), Happening::NodeFails(*fault));
        }
    }

    pub fn node_fails(&mut self, now: Nanos, fault: NodeFault, queue: &mut EventQueue<Happening>) {
        self.note_node(now, fault.node, &Note::Fails);
        self.cluster.node_fails(now, fault.node as usize, queue);
        if let Some(ns) = fault.for_ns {
            queue.after(ns, Happening::NodeReturns(fault.node));
        }
    }

    /// A node returns empty. The machine then treats its tier as being as large as at first.
    pub fn node_returns(&mut self, now: Nanos, node: u32, queue: &mut EventQueue<Happening>) {
        self.note_node(now, node, &Note::Returns);
        let number = node as usize;
        self.cluster.node_returns(now, number, queue);
        if let Some(memory) = self.memory.get(number).filter(|_| self.cluster.is_up(number)) {
            self.reported[number] = memory.tier().0;
            self.cluster.report_capacity(now, number, memory.tier().0, queue);
        }
    }

    fn note_node(&self, now: Nanos, node: u32, note: &Note) {
        if self.record.is_on() {
            self.record.note(now, &format!("node/{node}"), note);
        }
    }
}
