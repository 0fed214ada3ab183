//! Steps on their way from burst buffers to the parallel file system.
//!
//! The nodes of a step read it in rounds, a piece on each of them, and send what they have read.
//! Reading takes bandwidth of the nodes, as writing does, but gives way to it. What happens to a
//! round in transit is not known here: a world that has a file system takes rounds out of
//! `Draining::sent` and reports with [`Happening::Landed`] when they have arrived. The machine of
//! `forebay_policy::drain`, which also decides in agents, lets steps begin and each round go.

use forebay_policy::drain::{Action, Event, FileId};
use forebay_policy::machine::Nanos;

use super::drain_state::{Round, Step};
use super::fabric::WriteId;
use super::outcome::DrainOutcome;
use super::world::{Burst, Happening, Stage};
use crate::queue::Agenda;

/// Rounds of a step that may be in transit while the next is read.
const ROUNDS_SENT_MAX: u32 = 2;
/// Weight of a drain on each node, where steps have the weight of their processes: buffers exist to
/// take steps, so a drain gets what these leave, and hardly more.
const WEIGHT: f64 = 0.01;

impl Burst<'_> {
    /// Reports an event to the machine.
    pub fn notify_drain(&mut self, now: Nanos, event: Event, queue: &mut impl Agenda<Happening>) {
        let Some(draining) = &mut self.draining else { return };
        let actions = draining.driver.handle(now, event, self.record);
        self.obey_drain(now, &actions, queue);
    }

    /// The moment that the machine has requested has come.
    pub fn drain_wakes(&mut self, now: Nanos, queue: &mut impl Agenda<Happening>) {
        let Some(draining) = &mut self.draining else { return };
        let actions = draining.driver.wake(now, self.record);
        self.obey_drain(now, &actions, queue);
    }

    fn obey_drain(&mut self, now: Nanos, actions: &[Action], queue: &mut impl Agenda<Happening>) {
        if let Some(draining) = &mut self.draining {
            draining.driver.arm(queue, Happening::DrainWakes);
        }
        for action in actions {
            match action {
                Action::Begin { file, .. } => self.offer_round(now, *file, queue),
                Action::Send { file, .. } => self.read_round(now, *file),
            }
        }
    }

    /// The last step of job `j` is on its nodes.
    pub fn drain_begins(&mut self, now: Nanos, j: usize, index: u32, queue: &mut impl Agenda<Happening>) {
        let Some(draining) = &mut self.draining else { return };
        let (id, job) = (draining.next, &mut self.jobs[j]);
        draining.next += 1;
        job.kept += 1;
        let step = Step {
            job: j,
            index,
            nodes: job.nodes.clone(),
            begun: now,
            bytes: self.setup.jobs[j].step_bytes,
            read: 0,
            reading: None,
            sent: (0, 0),
            landed: 0,
            offered: None,
        };
        draining.steps.insert(id, step);
        let facts = draining.facts(id, false);
        self.report_room(now, j, queue);
        if let Some(facts) = facts {
            self.notify_drain(now, Event::Dirty { file: id, facts }, queue);
        }
    }

    /// Reports how many more bytes job `j` may write before one of its steps is drained.
    fn report_room(&mut self, now: Nanos, j: usize, queue: &mut impl Agenda<Happening>) {
        let keeps = self.draining.as_ref().map_or(0, |draining| draining.setup.keeps);
        let free = u64::from(keeps.saturating_sub(self.jobs[j].kept));
        let free_bytes = free.saturating_mul(self.setup.jobs[j].step_bytes);
        self.notify_drain(now, Event::Room { owner: j as u32, free_bytes }, queue);
    }

    /// The nodes of a step want to read the next round.
    fn offer_round(&mut self, now: Nanos, id: FileId, queue: &mut impl Agenda<Happening>) {
        let Some(draining) = &mut self.draining else { return };
        let Some(step) = draining.steps.get_mut(&id) else { return };
        let left = step.bytes - step.read;
        if step.reading.is_some() || step.offered.is_some() || step.sent.0 >= ROUNDS_SENT_MAX || left == 0 {
            return;
        }
        let bytes = left.min(draining.setup.piece_bytes.saturating_mul(step.nodes.len() as u64));
        step.offered = Some(bytes);
        self.notify_drain(now, Event::Offer { file: id, bytes, server: None }, queue);
    }

    /// The nodes of a step read the round that they wanted to.
    fn read_round(&mut self, now: Nanos, id: FileId) {
        let Some(draining) = &mut self.draining else { return };
        let Some(step) = draining.steps.get_mut(&id) else { return };
        let Some(bytes) = step.offered.take() else { return };
        let round = draining.next_round;
        draining.next_round += 1;
        draining.rounds.insert(round, id);
        step.reading = Some((round, bytes));
        step.read += bytes;
        let each = bytes as f64 / step.nodes.len() as f64;
        self.fabric.start(now, round, &step.nodes, each, WEIGHT, f64::INFINITY);
    }

    /// A round has been read: it is in transit from now on.
    pub fn round_read(&mut self, now: Nanos, round: WriteId, queue: &mut impl Agenda<Happening>) {
        let Some(draining) = &mut self.draining else { return };
        let Some(id) = draining.rounds.remove(&round) else { return };
        let Some(step) = draining.steps.get_mut(&id) else { return };
        let Some((_, bytes)) = step.reading.take() else { return };
        step.sent = (step.sent.0 + 1, step.sent.1 + bytes);
        let nodes = step.nodes.len() as u64;
        draining.sent.push(Round { drain: id, nodes, from: step.read - bytes, bytes });
        self.notify_drain(now, Event::Written { file: id, bytes }, queue);
        self.offer_round(now, id, queue);
    }

    /// A round is on the file system.
    pub fn landed(&mut self, now: Nanos, id: FileId, bytes: u64, queue: &mut impl Agenda<Happening>) {
        self.out.drained_bytes += bytes;
        let Some(draining) = &mut self.draining else { return };
        let Some(step) = draining.steps.get_mut(&id) else {
            draining.adrift_bytes -= bytes;
            return;
        };
        step.sent = (step.sent.0 - 1, step.sent.1 - bytes);
        step.landed += bytes;
        if step.landed < step.bytes {
            return self.offer_round(now, id, queue);
        }
        let (job, index, bytes) = (step.job, step.index, step.bytes);
        let from_ns = step.begun.0;
        draining.steps.remove(&id);
        self.out.drains.push(DrainOutcome { job, index, from_ns, to_ns: now.0, bytes });
        self.notify_drain(now, Event::Ended { file: id, full: None }, queue);
        self.notify_drain(now, Event::Clean { file: id }, queue);
        self.has_drained(now, job, queue);
    }

    /// A step of job `j` is no longer on its nodes: the job has room for another one, or needs none
    /// any more.
    fn has_drained(&mut self, now: Nanos, j: usize, queue: &mut impl Agenda<Happening>) {
        self.jobs[j].kept -= 1;
        self.report_room(now, j, queue);
        let job = &mut self.jobs[j];
        if job.stage == Stage::Over {
            if job.kept == 0 && !job.nodes.is_empty() {
                self.give_nodes_back(now, j, queue);
                self.rehouse(now, queue);
            }
        } else if job.wants_room && !job.silent {
            self.ask_for_access(now, j, queue);
        }
    }

    /// Returns whether job `j` has room for a step; if not, the oldest of its steps becomes urgent.
    pub fn has_room(&mut self, now: Nanos, j: usize, queue: &mut impl Agenda<Happening>) -> bool {
        let Some(draining) = &self.draining else { return true };
        let is_full = self.jobs[j].kept >= draining.setup.keeps;
        self.jobs[j].wants_room = is_full;
        let oldest = draining.steps.iter().find(|(_, step)| step.job == j).map(|(id, _)| *id);
        if let (true, Some(file)) = (is_full, oldest)
            && let Some(facts) = draining.facts(file, true)
        {
            self.notify_drain(now, Event::Dirty { file, facts }, queue);
        }
        !is_full
    }

    /// Job `j` has lost a node, and with it the steps that were not drained. Returns their number.
    pub fn lose_steps(&mut self, now: Nanos, j: usize, queue: &mut impl Agenda<Happening>) -> u32 {
        let Some(draining) = &mut self.draining else { return 0 };
        let its: Vec<FileId> =
            draining.steps.iter().filter(|(_, step)| step.job == j).map(|(id, _)| *id).collect();
        let lost = its.len() as u32;
        for id in its {
            let Some(draining) = &mut self.draining else { break };
            let Some(step) = draining.steps.remove(&id) else { continue };
            if let Some((round, _)) = step.reading {
                draining.rounds.remove(&round);
                self.fabric.stop(now, round);
            }
            // What has been sent still arrives.
            draining.adrift_bytes += step.sent.1;
            self.out.lost_bytes += step.bytes - step.landed - step.sent.1;
            self.notify_drain(now, Event::Clean { file: id }, queue);
        }
        self.jobs[j].kept = 0;
        lost
    }
}
