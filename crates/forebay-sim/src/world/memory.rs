//! Memory on the nodes: compute takes it, and the tier releases it.
//!
//! Each node has the load, the tier and the controller of kind `memory`; the loads of nodes differ
//! by their seeds. The tier of that kind always has something to fill with: here the pages of jobs
//! are a part of it, and must fit. As in a live cluster, the stage machine learns of a new capacity
//! with the next heartbeat of the node.

use forebay_policy::machine::Nanos;

use super::{Happening, Setup, Together};
use crate::error::Result;
use crate::memory::{self, Node, STEP_NS};
use crate::queue::EventQueue;

/// Interval of the nodes' heartbeats, as the coordinator requests by default.
const HEARTBEAT_NS: u64 = 1_000_000_000;

impl Setup {
    /// What kind `memory` would simulate of this node; `None` if no memory changes.
    pub fn memory_of(&self, node: u32) -> Option<memory::Setup> {
        let memory = self.memory.as_ref()?;
        Some(memory::Setup { seed: memory.seed.wrapping_add(node.into()), ..memory.clone() })
    }

    /// Name of the memory controller of a node in a trace.
    pub fn controller_name(node: u32) -> String {
        format!("memory/{node}")
    }
}

impl Together<'_> {
    /// The nodes, if their memory changes.
    ///
    /// # Errors
    /// If no law has this name.
    pub fn memories(setup: &Setup) -> Result<Vec<Node>> {
        let nodes = (0..setup.cluster.nodes).map_while(|node| Some((node, setup.memory_of(node)?)));
        nodes.map(|(node, memory)| Node::new(memory, Setup::controller_name(node))).collect()
    }

    /// Schedules the first step.
    pub fn begin_memory(&mut self, queue: &mut EventQueue<Happening>) {
        if let Some(memory) = &self.setup.memory {
            self.reported = vec![memory.start_bytes; self.memory.len()];
            self.cluster.limit_tiers(memory.start_bytes, queue);
            queue.at(Nanos(0), Happening::MemoryStep);
        }
    }

    /// All nodes do a step.
    pub fn memory_steps(&mut self, now: Nanos, queue: &mut EventQueue<Happening>) {
        for (number, node) in self.memory.iter_mut().enumerate() {
            let before = node.tier().1;
            node.step(self.record);
            let (capacity_bytes, tier_bytes) = node.tier();
            if tier_bytes != before {
                self.cluster.limit_tier(now, number, tier_bytes);
            }
            // Each node has its own moment.
            let beats = (now.0 + number as u64 * STEP_NS).is_multiple_of(HEARTBEAT_NS);
            if beats && self.reported[number] != capacity_bytes && self.cluster.is_up(number) {
                self.reported[number] = capacity_bytes;
                self.cluster.report_capacity(now, number, capacity_bytes, queue);
            }
        }
        if self.memory.iter().any(|node| node.now().is_some()) {
            queue.after(STEP_NS, Happening::MemoryStep);
        }
    }
}
