//! HPC jobs and their I/O phases, as every planner is notified of them, including one that is
//! created while they are under way.

use super::event::HpcUpdate;
use super::{REACTION_S, Stages};
use crate::machine::Nanos;
use crate::phases::kept_ns;
use crate::planner::{Event, HpcId};

/// Bounds of reported times: greater ones are implausible, and sums do not overflow.
const NS: core::ops::RangeInclusive<u64> = 1..=(30 * 86_400 * 1_000_000_000);

/// Limit on what a phase may take beyond its time alone.
const ALLOWANCE_MAX: f64 = 100.0;

/// Returns the part of a phase's time in hand that planners do not spend: what the brake keeps, and
/// what the phase loses if a node stops as late as nodes may.
fn kept_of(in_hand_ns: u64) -> u64 {
    (kept_ns(in_hand_ns) + (REACTION_S * 1e9) as u64).min(in_hand_ns)
}

/// An HPC job.
pub(super) struct Hpc {
    io_ns: u64,
    compute_ns: u64,
    phases_left: u32,
    allowance: f64,
    weight: f64,
    /// When its next phase is expected.
    next_at: Nanos,
    /// The phase under way: its time alone, as last reported, and its deadline.
    pub(super) phase: Option<(u64, Nanos)>,
}

impl Hpc {
    fn joins(&self, now: Nanos, hpc: HpcId, nodes_brake: bool) -> Event {
        let first_in_ns = self.next_at.saturating_since(now);
        let kept_ns = if nodes_brake { kept_of((self.allowance * self.io_ns as f64) as u64) } else { 0 };
        Event::HpcJoins {
            hpc,
            io_ns: self.io_ns,
            compute_ns: self.compute_ns,
            // To a planner that learns of the job now, a phase under way begins now.
            phases: self.phases_left + u32::from(self.phase.is_some()),
            allowance: self.allowance - kept_ns as f64 / self.io_ns as f64,
            weight: self.weight,
            first_in_ns,
        }
    }
}

impl Hpc {
    fn expects(&self, now: Nanos, hpc: HpcId) -> Event {
        Event::HpcExpects {
            hpc,
            io_ns: self.io_ns,
            compute_ns: self.compute_ns,
            phases: self.phases_left,
            next_in_ns: self.next_at.saturating_since(now),
        }
    }
}

impl Stages {
    /// Handles an update of an HPC job. An update that contradicts earlier ones changes nothing.
    pub(super) fn hpc(&mut self, now: Nanos, hpc: HpcId, update: HpcUpdate) {
        let Some(event) = self.note_hpc(now, hpc, update) else { return };
        if matches!(event, Event::PhaseBegins { .. }) {
            let stages = self.jobs.iter().flat_map(|(key, r)| r.stages.keys().map(move |n| (*key, *n)));
            let stages: alloc::vec::Vec<_> = stages.collect();
            stages.into_iter().for_each(|(key, stage)| self.report_fetched_ahead(now, key, stage));
        }
        let names: alloc::vec::Vec<_> = self.planners.keys().cloned().collect();
        for name in names {
            self.notify(now, &name, event.clone());
        }
        if self.hpc.is_empty() {
            self.let_all_read(now);
        }
    }

    fn note_hpc(&mut self, now: Nanos, hpc: HpcId, update: HpcUpdate) -> Option<Event> {
        let bounded = |ns: u64| ns.clamp(*NS.start(), *NS.end());
        match update {
            HpcUpdate::Joins { io_ns, compute_ns, phases, allowance, weight, first_in_ns } => {
                let joined = Hpc {
                    io_ns: bounded(io_ns),
                    compute_ns: bounded(compute_ns),
                    phases_left: phases,
                    allowance: if allowance > 0.0 { allowance.min(ALLOWANCE_MAX) } else { 0.0 },
                    weight: f64::from(weight.max(1)),
                    next_at: now + first_in_ns.min(*NS.end()),
                    phase: None,
                };
                let joins = joined.joins(now, hpc, self.config.rules.nodes_brake);
                self.hpc.insert(hpc, joined).is_none().then_some(joins)
            }
            HpcUpdate::PhaseBegins { alone_ns } => self.phase_begins(now, hpc, bounded(alone_ns), None),
            HpcUpdate::PhaseBeginsUntil { alone_ns, deadline_ns } => {
                self.phase_begins(now, hpc, bounded(alone_ns), Some(now + bounded(deadline_ns)))
            }
            HpcUpdate::PhaseLeft { left_ns } => {
                let left_ns = left_ns.min(*NS.end());
                let (of_phase, _) = self.hpc.get_mut(&hpc)?.phase.as_mut()?;
                *of_phase = left_ns.max(1);
                Some(Event::PhaseLeft { hpc, left_ns })
            }
            HpcUpdate::Expects { in_ns, io_ns, compute_ns, phases } => {
                let job = self.hpc.get_mut(&hpc).filter(|job| job.phase.is_none())?;
                job.next_at = now + in_ns.min(*NS.end());
                (job.io_ns, job.compute_ns, job.phases_left) = (bounded(io_ns), bounded(compute_ns), phases);
                Some(job.expects(now, hpc))
            }
            HpcUpdate::PhaseEnds => {
                let job = self.hpc.get_mut(&hpc)?;
                job.phase.take()?;
                job.next_at = now + job.compute_ns;
                Some(Event::PhaseEnds { hpc })
            }
            HpcUpdate::Leaves => self.hpc.remove(&hpc).map(|_| Event::HpcLeaves { hpc }),
        }
    }

    fn phase_begins(
        &mut self,
        now: Nanos,
        hpc: HpcId,
        alone_ns: u64,
        deadline: Option<Nanos>,
    ) -> Option<Event> {
        let job = self.hpc.get_mut(&hpc).filter(|job| job.phase.is_none())?;
        let mut deadline = deadline.unwrap_or(now + (alone_ns as f64 * (1.0 + job.allowance)) as u64);
        if self.config.rules.nodes_brake {
            let in_hand_ns = deadline.saturating_since(now).saturating_sub(alone_ns);
            deadline = Nanos(deadline.0 - kept_of(in_hand_ns));
        }
        job.phase = Some((alone_ns, deadline));
        job.phases_left = job.phases_left.saturating_sub(1);
        Some(Event::PhaseBegins { hpc, alone_ns, deadline })
    }

    /// Returns the events that a new planner first needs about the existing jobs.
    pub(super) fn hpc_known(&self, now: Nanos) -> alloc::vec::Vec<Event> {
        let mut events = alloc::vec::Vec::new();
        for (hpc, job) in &self.hpc {
            events.push(job.joins(now, *hpc, self.config.rules.nodes_brake));
            events.extend(job.phase.map(|(alone_ns, deadline)| Event::PhaseBegins {
                hpc: *hpc,
                alone_ns,
                deadline,
            }));
        }
        events
    }
}
