//! Nodes of the tier that fail: their memory is gone, what was in it is lost, and they fetch
//! nothing.

use std::collections::BTreeMap;

use forebay_model::profile::{Setting, Strain};
use forebay_policy::machine::Nanos;
use forebay_policy::stage::event::{Event, Node};

use super::{Colocation, Happening, Note};
use crate::colocate::NodeFault;
use crate::colocate::outcome::DownSpan;
use crate::queue::EventQueue;

/// Padded so that names sort as numbers do.
fn name(node: usize) -> String {
    format!("node-{node:04}")
}

impl Colocation<'_> {
    fn up(&self) -> u64 {
        self.faults_on.iter().filter(|&&faults| faults == 0).count() as u64
    }

    /// What `setting` does in truth: nodes that are down do not take part.
    pub fn true_strain(&self, setting: Setting) -> Strain {
        let nodes = setting.nodes.min(self.up() as u16);
        let setting = if nodes == 0 { Setting::PAUSED } else { Setting { nodes, ..setting } };
        self.setup.truth.strain(setting)
    }

    /// Memory of node `number`: together the nodes have all of it, to the byte.
    fn node_bytes(&self, number: usize) -> u64 {
        let nodes = self.faults_on.len().max(1) as u64;
        self.ram_bytes / nodes + u64::from((number as u64) < self.ram_bytes % nodes)
    }

    /// Memory of the nodes that are up.
    pub fn memory_bytes(&self) -> u64 {
        let up = self.faults_on.iter().enumerate().filter(|(_, faults)| **faults == 0);
        up.map(|(number, _)| self.node_bytes(number)).sum()
    }

    /// Reports to the machine which nodes are up, and how large they are.
    pub fn report_members(&mut self, now: Nanos, queue: &mut EventQueue<Happening>) {
        let jobs = self.setup.jobs.iter().enumerate();
        let nodes = self.faults_on.len() as u64;
        let keeps: BTreeMap<String, u64> =
            jobs.map(|(j, spec)| (spec.mount(j), spec.extent_bytes(nodes))).collect();
        let is_up = |(_, faults): &(usize, &u32)| **faults == 0;
        let node = |(number, _): (usize, &u32)| Node {
            name: name(number),
            host: name(number),
            capacity_bytes: self.node_bytes(number),
            keeps: keeps.clone(),
        };
        let nodes = self.faults_on.iter().enumerate().filter(is_up).map(node).collect();
        self.renew_all(now);
        self.notify(now, Event::Members { nodes }, queue);
    }

    fn note_node(&mut self, now: Nanos, node: u16, note: &Note) {
        if self.record.is_on() {
            self.record.note(now, &format!("node/{node}"), note);
        }
    }

    pub fn node_fails(&mut self, now: Nanos, fault: NodeFault, queue: &mut EventQueue<Happening>) {
        if let Some(ns) = fault.for_ns {
            queue.after(ns, Happening::NodeReturns(fault.node));
        }
        self.faults_on[usize::from(fault.node)] += 1;
        if self.faults_on[usize::from(fault.node)] > 1 {
            return;
        }
        self.note_node(now, fault.node, &Note::Fails);
        self.down.push(DownSpan { node: fault.node, from_ns: now.0, to_ns: None });
        let node = name(fault.node.into());
        self.lose(now, &node);
        self.notify(now, Event::NodeWent { node }, queue);
        self.report_members(now, queue);
    }

    pub fn node_returns(&mut self, now: Nanos, node: u16, queue: &mut EventQueue<Happening>) {
        self.faults_on[usize::from(node)] -= 1;
        if self.faults_on[usize::from(node)] > 0 {
            return;
        }
        self.note_node(now, node, &Note::Returns);
        if let Some(down) = self.down.iter_mut().rev().find(|d| d.node == node) {
            down.to_ns = Some(now.0);
        }
        self.notify(now, Event::NodeCame { node: name(node.into()) }, queue);
        self.report_members(now, queue);
    }
}
