//! Nodes of the tier that fail: their memory is gone, what was in it is lost, and they fetch
//! nothing.

use forebay_model::profile::{Setting, Strain};
use forebay_policy::machine::Nanos;
use forebay_policy::planner::Event as Told;

use super::NodeFault;
use super::outcome::DownSpan;
use super::world::{Colocation, Happening, Note};
use crate::queue::EventQueue;

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

    /// Memory of the nodes that are up.
    pub fn memory_bytes(&self) -> u64 {
        let all = self.faults_on.len() as u128;
        (u128::from(self.ram_bytes) * u128::from(self.up()) / all.max(1)) as u64
    }

    /// Tells the planner of it.
    pub fn tell_memory(&mut self, now: Nanos, queue: &mut EventQueue<Happening>) {
        let bytes = self.memory_bytes();
        for fetch in self.jobs.iter_mut().filter_map(|job| job.fetch.as_mut()) {
            fetch.memory_bytes = fetch.memory_bytes.max(bytes);
        }
        self.tell(now, Told::Memory { bytes }, queue);
    }

    fn note_node(&mut self, now: Nanos, node: u16, note: &Note) {
        if self.trace.is_on() {
            self.trace.note(now, &format!("node/{node}"), note);
        }
    }

    pub fn node_fails(&mut self, now: Nanos, fault: NodeFault, queue: &mut EventQueue<Happening>) {
        if let Some(ns) = fault.for_ns {
            queue.after(ns, Happening::NodeReturns(fault.node));
        }
        let before = self.up();
        self.faults_on[usize::from(fault.node)] += 1;
        if self.up() == before {
            return;
        }
        self.note_node(now, fault.node, &Note::Fails);
        self.down.push(DownSpan { node: fault.node, from_ns: now.0, to_ns: None });
        let lost: Vec<Vec<(u32, u64)>> =
            (0..self.jobs.len()).map(|j| self.lose_a_part(now, j, before)).collect();
        self.tell_memory(now, queue);
        for (j, waves) in lost.into_iter().enumerate().filter(|(_, waves)| !waves.is_empty()) {
            // Upon the news of the memory the planner may have taken it up again.
            self.put_down(now, j);
            self.tell(now, Told::Lost { job: j as u32, waves }, queue);
        }
        self.renew_strains(now);
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
        self.renew_strains(now);
        self.tell_memory(now, queue);
    }

    /// One of `nodes` nodes has gone with its part of what the tier holds of job `j`: the waves and
    /// bytes, none if nothing of it is in the tier. Otherwise the fetch under way stops.
    fn lose_a_part(&mut self, now: Nanos, j: usize, nodes: u64) -> Vec<(u32, u64)> {
        let under_way = self.jobs[j].fetch;
        let wave_bytes = self.setup.jobs[j].wave_bytes as f64;
        self.put_down(now, j);
        let job = &mut self.jobs[j];
        let mut lost = Vec::new();
        for wave in (job.started as usize..job.in_tier.len()).filter(|&w| job.in_tier[w]) {
            let in_tier = wave_bytes - job.left[wave] - job.done.waves[wave].direct_bytes;
            let bytes = (in_tier / nodes as f64).floor().max(0.0);
            job.left[wave] += bytes;
            job.done.lost_bytes += bytes;
            lost.push((wave as u32, bytes as u64));
        }
        // Tasks that read by themselves are not touched by it.
        if let Some(fetch) = under_way.filter(|_| lost.is_empty()) {
            self.take_up(now, j, fetch);
        }
        lost
    }

    /// A node that is down or up again changes what the settings of the fetches under way amount
    /// to.
    fn renew_strains(&mut self, now: Nanos) {
        for j in 0..self.jobs.len() {
            let setting = self.jobs[j].fetch.and_then(|f| f.setting);
            let strain = setting.map(|s| self.true_strain(s));
            if let (Some(strain), Some(fetch)) = (strain, self.jobs[j].fetch.as_mut()) {
                fetch.strain = strain;
            }
        }
        self.set_paces(now);
    }
}
