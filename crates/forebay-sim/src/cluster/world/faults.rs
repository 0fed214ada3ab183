//! Nodes that fail and return.
//!
//! With a node go its tier, what it was fetching, and the tasks that ran there. Those run again, as
//! in Spark, and tasks on other nodes that waited for one of its pages fetch it themselves.

use forebay_policy::fetch_order::Urgency;
use forebay_policy::machine::Nanos;
use forebay_policy::stage::event::{Event, JobUpdate};

use super::page::Waiter;
use super::{Cluster, Happening, STAGE, name};
use crate::queue::Agenda;

impl Cluster<'_> {
    /// Whether no fault keeps a node down.
    pub fn is_up(&self, node: usize) -> bool {
        self.faults_on[node] == 0
    }

    /// A node fails, unless it is down already.
    pub fn node_fails(&mut self, now: Nanos, node: usize, queue: &mut impl Agenda<Happening>) {
        self.faults_on[node] += 1;
        if self.faults_on[node] > 1 {
            return;
        }
        let waiting = self.tier.lose(now, self.setup, node);
        self.notify(now, Event::NodeWent { node: name(node) }, queue);
        self.report_members(now, queue);
        let its: Vec<usize> = (0..self.slots.len()).filter(|slot| self.slots[*slot].node() == node).collect();
        its.into_iter().for_each(|slot| self.task_dies(now, slot, queue));
        for (page, waiter) in waiting {
            let (at, urgency) = match waiter {
                Waiter::Slot(slot) => (self.slots[slot].node(), Urgency::Demand),
                Waiter::Request { node, .. } => (node, Urgency::Plan),
            };
            if self.is_up(at) {
                self.want(now, at, page, urgency, Some(waiter), queue);
            }
        }
    }

    /// A fault of a node is over; it comes back empty if that was the last.
    pub fn node_returns(&mut self, now: Nanos, node: usize, queue: &mut impl Agenda<Happening>) {
        self.faults_on[node] -= 1;
        if self.faults_on[node] > 0 {
            return;
        }
        self.node_begins(now, node, queue);
        self.notify(now, Event::NodeCame { node: name(node) }, queue);
        self.report_members(now, queue);
        (0..self.slots.len()).for_each(|slot| self.take_task(now, slot, queue));
    }

    /// The machine hears which nodes are up, and jobs that run report their slots.
    fn report_members(&mut self, now: Nanos, queue: &mut impl Agenda<Happening>) {
        let nodes = super::nodes(self.setup).into_iter().zip(&self.faults_on);
        let nodes = nodes.filter(|(_, faults)| **faults == 0).map(|(node, _)| node).collect();
        self.notify(now, Event::Members { nodes }, queue);
        for j in 0..self.jobs.len() {
            if self.jobs[j].is_reported && self.jobs[j].began < now {
                let slots = JobUpdate::Slots { slots: self.hosts() };
                self.report_job(now, j, vec![slots], queue);
            }
        }
    }

    /// The task of a slot dies with its node, and has to run again.
    fn task_dies(&mut self, now: Nanos, slot: usize, queue: &mut impl Agenda<Happening>) {
        let Some((j, task, since, preferred_node)) = self.slots[slot].dies(now) else { return };
        self.jobs[j].pending.restart(task, preferred_node);
        self.jobs[j].done.died += 1;
        let run_ms = now.saturating_since(since) / 1_000_000;
        self.report_job(now, j, vec![JobUpdate::TaskEnded { stage: STAGE, task, ok: false, run_ms }], queue);
        (0..self.slots.len()).for_each(|slot| self.take_task(now, slot, queue));
    }
}
