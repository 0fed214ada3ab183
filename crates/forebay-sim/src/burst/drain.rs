//! Steps on their way from burst buffers to the parallel file system.
//!
//! The nodes of a step read it in rounds, a piece on each of them, and send what they have read.
//! Reading takes bandwidth of the nodes, as writing does, but gives way to it. What happens to a
//! round on its way is not known here: a world that has a file system takes rounds out of
//! `Draining::sent` and tells with [`Happening::Landed`] when they are there. The machine of
//! `forebay_policy::burst::drain` decides the pace of each step.

use forebay_policy::burst::drain::{self, DrainId, Pace};
use forebay_policy::machine::Nanos;
use forebay_policy::token_bucket::{FOREVER_NS, TokenBucket};

use super::draining::{Round, Step};
use super::fabric::WriteId;
use super::outcome::DrainOutcome;
use super::world::{Burst, Happening, Stage};
use crate::queue::Agenda;

/// Rounds of a step that may be on their way while the next is read.
const ROUNDS_SENT_MAX: u32 = 2;
/// Weight of a drain on each node, where steps have the weight of their processes: buffers are
/// there to take up steps, so a drain gets what these leave, and hardly more.
const WEIGHT: f64 = 0.01;

impl Burst<'_> {
    /// The machine hears of something.
    pub fn tell_drains(&mut self, now: Nanos, event: drain::Event, queue: &mut impl Agenda<Happening>) {
        let Some(draining) = &mut self.draining else { return };
        let paces = draining.driver.tell(now, event, self.record);
        for Pace { drain, rate_bytes_per_s } in &paces {
            if let Some(step) = draining.steps.get_mut(drain) {
                step.bucket.set_rate(now, *rate_bytes_per_s);
            }
        }
        paces.iter().for_each(|pace| self.drain_on(now, pace.drain, queue));
    }

    /// The last step of job `j` lies on its nodes.
    pub fn drain_begins(&mut self, now: Nanos, j: usize, index: u32, queue: &mut impl Agenda<Happening>) {
        let Some(draining) = &mut self.draining else { return };
        let (id, job) = (draining.next, &mut self.jobs[j]);
        draining.next += 1;
        job.kept += 1;
        let round_bytes = draining.setup.piece_bytes.saturating_mul(job.nodes.len() as u64);
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
            bucket: TokenBucket::new(now, 0, round_bytes),
            goes_on_at: None,
        };
        draining.steps.insert(id, step);
        self.tell_drains(now, drain::Event::Begins { drain: id }, queue);
    }

    /// The nodes of a step read the next round, if they may.
    fn drain_on(&mut self, now: Nanos, id: DrainId, queue: &mut impl Agenda<Happening>) {
        let Some(draining) = &mut self.draining else { return };
        let Some(step) = draining.steps.get_mut(&id) else { return };
        let left = step.bytes - step.read;
        if step.reading.is_some() || step.sent.0 >= ROUNDS_SENT_MAX || left == 0 {
            return;
        }
        let nodes = step.nodes.len() as u64;
        let bytes = left.min(draining.setup.piece_bytes.saturating_mul(nodes));
        match step.bucket.take(now, bytes) {
            0 => {}
            FOREVER_NS => return,
            wait_ns => {
                let at = now + wait_ns;
                if step.goes_on_at.is_none_or(|before| at < before) {
                    step.goes_on_at = Some(at);
                    queue.at(at, Happening::DrainGoesOn(id));
                }
                return;
            }
        }
        let round = draining.next_round;
        draining.next_round += 1;
        draining.rounds.insert(round, id);
        step.reading = Some((round, bytes));
        step.read += bytes;
        self.fabric.start(now, round, &step.nodes, bytes as f64 / nodes as f64, WEIGHT, f64::INFINITY);
    }

    /// The moment has come to read on, unless an earlier one has replaced it.
    pub fn drain_goes_on(&mut self, now: Nanos, id: DrainId, queue: &mut impl Agenda<Happening>) {
        let step = self.draining.as_mut().and_then(|draining| draining.steps.get_mut(&id));
        if step.is_some_and(|step| step.goes_on_at.take_if(|at| *at <= now).is_some()) {
            self.drain_on(now, id, queue);
        }
    }

    /// A round has been read: it is on its way from now on.
    pub fn round_read(&mut self, now: Nanos, round: WriteId, queue: &mut impl Agenda<Happening>) {
        let Some(draining) = &mut self.draining else { return };
        let Some(id) = draining.rounds.remove(&round) else { return };
        let Some(step) = draining.steps.get_mut(&id) else { return };
        let Some((_, bytes)) = step.reading.take() else { return };
        step.sent = (step.sent.0 + 1, step.sent.1 + bytes);
        let nodes = step.nodes.len() as u64;
        draining.sent.push(Round { drain: id, nodes, from: step.read - bytes, bytes });
        self.drain_on(now, id, queue);
    }

    /// A round lies on the file system.
    pub fn landed(&mut self, now: Nanos, id: DrainId, bytes: u64, queue: &mut impl Agenda<Happening>) {
        self.out.drained_bytes += bytes;
        let Some(draining) = &mut self.draining else { return };
        let Some(step) = draining.steps.get_mut(&id) else { return };
        step.sent = (step.sent.0 - 1, step.sent.1 - bytes);
        step.landed += bytes;
        if step.landed < step.bytes {
            return self.drain_on(now, id, queue);
        }
        let (job, index, bytes) = (step.job, step.index, step.bytes);
        let from_ns = step.begun.0;
        draining.steps.remove(&id);
        self.out.drains.push(DrainOutcome { job, index, from_ns, to_ns: now.0, bytes });
        self.tell_drains(now, drain::Event::Ends { drain: id }, queue);
        self.has_drained(now, job, queue);
    }

    /// A step of job `j` is no longer on its nodes: the job has room for another one, or needs none
    /// any more.
    fn has_drained(&mut self, now: Nanos, j: usize, queue: &mut impl Agenda<Happening>) {
        let job = &mut self.jobs[j];
        job.kept -= 1;
        if job.stage == Stage::Over {
            if job.kept == 0 && !job.nodes.is_empty() {
                self.give_nodes_back(now, j, queue);
                self.rehouse(now, queue);
            }
        } else if job.wants_room && !job.silent {
            self.ask_for_access(now, j, queue);
        }
    }

    /// Whether job `j` has room for a step; if not, the oldest of its steps becomes urgent.
    pub fn has_room(&mut self, now: Nanos, j: usize, queue: &mut impl Agenda<Happening>) -> bool {
        let Some(draining) = &self.draining else { return true };
        let is_full = self.jobs[j].kept >= draining.setup.keeps;
        self.jobs[j].wants_room = is_full;
        let oldest = draining.steps.iter().find(|(_, step)| step.job == j).map(|(id, _)| *id);
        if let (true, Some(drain)) = (is_full, oldest) {
            self.tell_drains(now, drain::Event::Urgent { drain }, queue);
        }
        !is_full
    }

    /// Job `j` has lost a node, and with it the steps that were not drained. Returns their number.
    pub fn lose_steps(&mut self, now: Nanos, j: usize, queue: &mut impl Agenda<Happening>) -> u32 {
        let Some(draining) = &mut self.draining else { return 0 };
        let its: Vec<DrainId> =
            draining.steps.iter().filter(|(_, step)| step.job == j).map(|(id, _)| *id).collect();
        let lost = its.len() as u32;
        for id in its {
            let Some(draining) = &mut self.draining else { break };
            let Some(step) = draining.steps.remove(&id) else { continue };
            if let Some((round, _)) = step.reading {
                draining.rounds.remove(&round);
                self.fabric.stop(now, round);
            }
            // What has been sent still comes.
            self.out.lost_bytes += step.bytes - step.landed - step.sent.1;
            self.tell_drains(now, drain::Event::Ends { drain: id }, queue);
        }
        self.jobs[j].kept = 0;
        lost
    }
}
