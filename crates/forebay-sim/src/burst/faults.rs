//! What breaks in a run, and what the affected jobs do then.
//!
//! A job that is dead or stands still does nothing and reports to nobody: the access scheduler
//! learns of it when the lease runs out. A healthy job notices immediately that a node of its own
//! has gone. The batch system notices a death after the time of a lease.

use forebay_policy::burst::access;
use forebay_policy::burst::allocation;
use forebay_policy::machine::Nanos;

use super::outcome::{Death, Ended, NodeOutcome};
use super::world::{Burst, Happening, Note, Stage};
use super::{Broken, RandomFailures};
use crate::queue::Agenda;

impl Burst<'_> {
    pub fn breaks(
        &mut self,
        now: Nanos,
        what: Broken,
        for_ns: Option<u64>,
        queue: &mut impl Agenda<Happening>,
    ) {
        match what {
            Broken::Node { node } => {
                self.node_fails(now, node, queue);
                if let Some(ns) = for_ns {
                    queue.after(ns, Happening::Mends(what));
                }
            }
            Broken::Job { job } => match for_ns {
                None => self.dies(now, job, queue),
                Some(ns) if !self.jobs[job].silent && self.jobs[job].stage != Stage::Over => {
                    self.falls_silent(now, job);
                    self.note(now, job, &Note::Stops);
                    queue.after(ns, Happening::Mends(what));
                }
                Some(_) => {}
            },
        }
    }

    pub fn mends(&mut self, now: Nanos, what: Broken, queue: &mut impl Agenda<Happening>) {
        match what {
            Broken::Node { node } => self.node_returns(now, node, queue),
            Broken::Job { job } => self.goes_on(now, job, queue),
        }
    }

    /// What it writes is held; nobody knows yet whether for ever.
    fn falls_silent(&mut self, now: Nanos, j: usize) {
        self.jobs[j].silent = true;
        if let Stage::Holds(_, hold) = self.jobs[j].stage {
            self.out.holds[hold].silent_ns.get_or_insert(now.0);
            let (weight, _) = self.weight_and_cap(j);
            self.fabric.reshape(now, hold as u32, weight, 0.0);
        }
    }

    fn dies(&mut self, now: Nanos, j: usize, queue: &mut impl Agenda<Happening>) {
        if self.jobs[j].stage == Stage::Over || self.jobs[j].done.died.is_some() {
            return;
        }
        self.falls_silent(now, j);
        let was = match self.jobs[j].stage {
            Stage::Away if self.jobs[j].done.room_ns.is_none() => "not begun",
            Stage::Away | Stage::Over => "computing",
            Stage::Due => "waiting for nodes",
            Stage::Waits(_) => "waiting",
            Stage::Holds(_, hold) => {
                self.stop_writing(now, j, hold);
                "writing"
            }
        };
        self.jobs[j].done.died = Some(Death { at_ns: now.0, was });
        self.note(now, j, &Note::Dies { was });
        queue.after(self.setup.config.lease_ns, Happening::Noticed(j));
    }

    /// The batch system clears up after a dead job; if it holds a token, once that is revoked.
    pub fn noticed(&mut self, now: Nanos, j: usize, queue: &mut impl Agenda<Happening>) {
        if let Stage::Waits(step) = self.jobs[j].stage {
            self.withdraw(now, step, queue);
        }
        if !matches!(self.jobs[j].stage, Stage::Holds(..) | Stage::Over) {
            self.put_away(now, j, queue);
        }
    }

    pub fn put_away(&mut self, now: Nanos, j: usize, queue: &mut impl Agenda<Happening>) {
        self.jobs[j].stage = Stage::Over;
        self.forget_homeless(j);
        // What it has written is drained nevertheless.
        if !self.jobs[j].nodes.is_empty() && self.jobs[j].kept == 0 {
            self.give_nodes_back(now, j, queue);
            self.rehouse(now, queue);
        }
    }

    /// A job that stood still receives all that it has missed.
    fn goes_on(&mut self, now: Nanos, j: usize, queue: &mut impl Agenda<Happening>) {
        if self.jobs[j].done.died.is_some() {
            return;
        }
        self.jobs[j].silent = false;
        self.note(now, j, &Note::GoesOn);
        if std::mem::take(&mut self.jobs[j].missed_start) {
            self.ask_for_nodes(now, j, queue);
        }
        if self.is_homeless(j) {
            self.forget_homeless(j);
            self.ask_for_nodes(now, j, queue);
        }
        if std::mem::take(&mut self.jobs[j].missed_loss) {
            self.loses_nodes(now, j, queue);
            self.rehouse(now, queue);
        } else if let Stage::Holds(token, hold) = self.jobs[j].stage {
            self.writes_on(now, j, hold);
            if self.jobs[j].renewing != Some(token) {
                self.renew(now, j, token, queue);
            }
        } else if self.jobs[j].stage == Stage::Due && !self.jobs[j].nodes.is_empty() {
            match self.jobs[j].wants_room {
                true => self.ask_for_access(now, j, queue),
                false => self.anew(now, j, "lease", queue),
            }
        }
        if std::mem::take(&mut self.jobs[j].missed_step) {
            self.step_due(now, j, queue);
        }
    }

    /// Continues with what it was writing, or begins if it was let in while it stood still.
    fn writes_on(&mut self, now: Nanos, j: usize, hold: usize) {
        self.out.holds[hold].silent_ns = None;
        if self.fabric.is_writing(hold as u32) {
            let (weight, cap) = self.weight_and_cap(j);
            self.fabric.reshape(now, hold as u32, weight, cap);
        } else {
            self.write(now, j, hold);
        }
    }

    fn node_fails(&mut self, now: Nanos, node: u32, queue: &mut impl Agenda<Happening>) {
        self.faults_on[node as usize] += 1;
        if self.faults_on[node as usize] > 1 {
            return;
        }
        if self.record.is_on() {
            self.record.note(now, &format!("node/{node}"), &Note::Fails);
        }
        let hit: Vec<usize> = (0..self.jobs.len()).filter(|&j| self.jobs[j].nodes.contains(&node)).collect();
        let jobs = hit.len() as u32;
        self.out.down.push(NodeOutcome { node, from_ns: now.0, to_ns: None, jobs });
        for &j in &hit {
            let job = &mut self.jobs[j];
            job.done.nodes_lost += 1;
            let has_step = std::mem::take(&mut job.has_step);
            if let Stage::Holds(_, hold) = job.stage {
                self.stop_writing(now, j, hold);
            }
            let undrained = self.lose_steps(now, j, queue);
            let is_kept = self.draining.is_none() && has_step;
            self.jobs[j].done.steps_lost += undrained + u32::from(is_kept);
        }
        self.fabric.fail(node);
        self.allocator.handle(now, allocation::Event::NodeFails { node }, self.record);
        self.allocator.arm(queue, Happening::AllocationWakes);
        for j in hit {
            if self.jobs[j].silent {
                self.jobs[j].missed_loss = true;
            } else {
                self.loses_nodes(now, j, queue);
            }
        }
        self.rehouse(now, queue);
    }

    /// Job `j` has lost a node: it releases everything, asks for other nodes, and writes its step
    /// again.
    fn loses_nodes(&mut self, now: Nanos, j: usize, queue: &mut impl Agenda<Happening>) {
        let stage = self.jobs[j].stage;
        match stage {
            Stage::Waits(step) => {
                self.is_due_again(now, j);
                self.withdraw(now, step, queue);
            }
            Stage::Holds(token, hold) => {
                self.end_hold(now, j, hold, Ended::NodeLost);
                self.is_due_again(now, j);
                self.notify_access(now, access::Event::Done { token }, queue);
            }
            Stage::Away | Stage::Due | Stage::Over => {}
        }
        self.give_nodes_back(now, j, queue);
        if stage != Stage::Over {
            self.ask_for_nodes(now, j, queue);
        }
    }

    fn is_due_again(&mut self, now: Nanos, j: usize) {
        self.jobs[j].stage = Stage::Due;
        let index = self.jobs[j].done.steps.len() as u32;
        self.note(now, j, &Note::Anew { index, why: "node" });
    }

    fn node_returns(&mut self, now: Nanos, node: u32, queue: &mut impl Agenda<Happening>) {
        self.faults_on[node as usize] -= 1;
        if self.faults_on[node as usize] > 0 {
            return;
        }
        if self.record.is_on() {
            self.record.note(now, &format!("node/{node}"), &Note::Returns);
        }
        if let Some(down) = self.out.down.iter_mut().rev().find(|d| d.node == node) {
            down.to_ns = Some(now.0);
        }
        self.fabric.restore(node);
        self.allocator.handle(now, allocation::Event::NodeReturns { node }, self.record);
        self.allocator.arm(queue, Happening::AllocationWakes);
        self.rehouse(now, queue);
    }

    /// Draws the first failure of each node.
    pub fn draw_failures(&mut self, queue: &mut impl Agenda<Happening>) {
        if let Some(random) = self.setup.random {
            (0..self.setup.nodes).for_each(|n| self.draw_failure(n, random, 0, queue));
        }
    }

    fn draw_failure(
        &mut self,
        node: u32,
        random: RandomFailures,
        after_ns: u64,
        queue: &mut impl Agenda<Happening>,
    ) {
        let wait_ns = self.chance[node as usize].exponential() * random.node_mean_ns as f64;
        queue.after(after_ns.saturating_add(wait_ns as u64), Happening::Chance(node));
    }

    /// A node fails by chance, unless nobody is left to notice.
    pub fn chance_fails(&mut self, now: Nanos, node: u32, queue: &mut impl Agenda<Happening>) {
        if let Some(random) =
            self.setup.random.filter(|_| self.jobs.iter().any(|j| j.stage != Stage::Over || j.kept > 0))
        {
            self.breaks(now, Broken::Node { node }, Some(random.node_down_ns), queue);
            self.draw_failure(node, random, random.node_down_ns, queue);
        }
    }
}
