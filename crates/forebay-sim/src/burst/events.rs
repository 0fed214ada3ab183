//! A run of burst buffers alone, and how one begins, continues and ends as a part of a world.

use forebay_policy::machine::Nanos;

use super::drain_state::Draining;
use super::outcome::{Ended, JobOutcome, Outcome, Unfinished};
use super::world::{Burst, Happening, Job, Stage};
use super::{JobSpec, Setup};
use crate::driver::Record;
use crate::error::{Error, Result};
use crate::event_loop::{Limits, RunStats, Stop, World, run};
use crate::queue::{Agenda, EventQueue};
use crate::trace::Trace;

/// Runs `setup` to the end and records into `trace`.
///
/// # Errors
/// If a policy does not exist, never lets a step in, or the run does not end.
pub fn simulate(setup: &Setup, trace: &mut Trace) -> Result<Outcome> {
    let record = Record::new(trace);
    let mut world = Burst::new(setup, &record)?;
    let mut queue = EventQueue::new();
    world.begin(&mut queue);
    let stats = run(&mut world, &mut queue, Limits::of(setup.horizon_ns))?;
    world.finish(stats)
}

fn never_let_in(setup: &Setup, j: usize, done: &JobOutcome, end: Nanos) -> Error {
    Error::Usage(format!(
        "the run ended after {:.3} s with job '{}' at step {} of {} with the access scheduler, which never let it in (allocation '{}', access '{}')",
        end.as_secs_f64(),
        setup.jobs[j].name,
        done.steps.len(),
        setup.jobs[j].steps,
        setup.allocation,
        setup.access
    ))
}

impl Burst<'_> {
    /// Schedules what happens by itself.
    pub fn begin(&mut self, queue: &mut impl Agenda<Happening>) {
        for (j, spec) in self.setup.jobs.iter().enumerate() {
            queue.at(Nanos(spec.starts_ns), Happening::JobStarts(j));
        }
        for fault in &self.setup.faults {
            queue.at(Nanos(fault.at_ns), Happening::Breaks(fault.what, fault.for_ns));
        }
        self.draw_failures(queue);
    }

    /// Returns the outcome of the run.
    ///
    /// # Errors
    /// If a policy has never let a step in.
    pub fn finish(mut self, stats: RunStats) -> Result<Outcome> {
        for (j, job) in self.jobs.iter_mut().enumerate().filter(|(_, job)| job.stage != Stage::Over) {
            match job.stage {
                _ if stats.stop == Stop::Horizon => job.done.unfinished = true,
                Stage::Waits(_) | Stage::Holds(..) => {
                    return Err(never_let_in(self.setup, j, &job.done, stats.end));
                }
                _ => job.done.without_nodes = true,
            }
        }
        if stats.stop == Stop::Horizon {
            self.close_holds(stats.end);
        }
        self.out.undrained_bytes = self.draining.map_or(0, |draining| draining.left_bytes());
        self.out.jobs = self.jobs.into_iter().map(|j| j.done).collect();
        self.out.events = stats.events;
        Ok(self.out)
    }

    /// The run ends at its horizon, when tokens may still be held.
    fn close_holds(&mut self, now: Nanos) {
        self.out.holds.iter_mut().filter(|h| h.ended == Ended::Open).for_each(|h| h.to_ns = now.0);
        let jobs = || self.jobs.iter().zip(&self.setup.jobs).filter(|(job, _)| job.done.unfinished);
        let steps_left = |(job, spec): (&Job, &JobSpec)| u64::from(spec.steps) - job.done.steps.len() as u64;
        self.out.unfinished = jobs().next().is_some().then(|| Unfinished {
            horizon_ns: now.0,
            jobs: jobs().count(),
            steps: jobs().map(steps_left).sum(),
        });
    }

    /// Handles an event.
    pub fn on_happening(&mut self, now: Nanos, event: Happening, queue: &mut impl Agenda<Happening>) {
        match event {
            Happening::JobStarts(j) if self.jobs[j].silent => self.jobs[j].missed_start = true,
            Happening::JobStarts(j) => self.ask_for_nodes(now, j, queue),
            Happening::StepDue(j) => self.step_due(now, j, queue),
            Happening::Renew(j, token) => self.renew(now, j, token, queue),
            Happening::AccessWakes => {
                let actions = self.access.wake(now, self.record);
                self.obey(now, actions, queue);
            }
            Happening::AllocationWakes => {
                self.allocator.wake(now, self.record);
            }
            Happening::Breaks(what, for_ns) => self.breaks(now, what, for_ns, queue),
            Happening::Mends(what) => self.mends(now, what, queue),
            Happening::Noticed(j) => self.noticed(now, j, queue),
            Happening::Chance(n) => self.chance_fails(now, n, queue),
            Happening::DrainWakes => self.drain_wakes(now, queue),
            Happening::Landed(id, bytes) => self.landed(now, id, bytes, queue),
        }
    }

    /// A node has finished something.
    pub fn node_done(&mut self, now: Nanos, queue: &mut impl Agenda<Happening>) {
        match self.fabric.pop_end() {
            Some(round) if Draining::is_round(round) => self.round_read(now, round, queue),
            Some(hold) => self.written(now, hold as usize, queue),
            None => {}
        }
    }
}

impl World for Burst<'_> {
    type Event = Happening;

    fn on_event(&mut self, now: Nanos, event: Happening, queue: &mut EventQueue<Happening>) {
        self.on_happening(now, event, queue);
    }

    fn next_completion(&self) -> Option<Nanos> {
        self.fabric.next_end()
    }

    fn on_completion(&mut self, now: Nanos, queue: &mut EventQueue<Happening>) {
        self.node_done(now, queue);
    }
}
