//! The state for people.

use alloc::vec::Vec;

use super::event::{JobStatus, StageStatus};
use super::job::Stage;
use super::waves::StageRun;
use super::{Running, Stages};
use crate::planner;

/// Limit on the waves that are shown, over all jobs: some 4 MB of a message that may have eight.
pub const WAVES_SHOWN_MAX: usize = 50_000;

/// Limit on the stages that are shown, over all jobs: half a MB.
pub const STAGES_SHOWN_MAX: usize = 20_000;

impl Stages {
    /// Returns the status of the jobs, those that have ended first.
    pub fn status(&self) -> Vec<JobStatus> {
        let mut jobs: Vec<JobStatus> =
            self.ended.iter().cloned().chain(self.jobs.values().map(|r| self.status_of(r))).collect();
        show_stages_at_most(STAGES_SHOWN_MAX, &mut jobs);
        show_at_most(WAVES_SHOWN_MAX, &mut jobs);
        jobs
    }

    pub(super) fn status_of(&self, running: &Running) -> JobStatus {
        let known = |name: &str| planner::POLICIES.iter().any(|(n, _)| *n == name);
        let planner =
            if known(&running.job.planner) { &running.job.planner } else { &self.config.default_planner };
        let slots = running.job.slots.iter().fold(0u32, |sum, (_, count)| sum.saturating_add(*count));
        let live = running.job.stages.iter();
        let live = live.map(|(number, stage)| stage_status(*number, stage, running.stages.get(number)));
        let mut stages: Vec<StageStatus> = running.ended.iter().cloned().chain(live).collect();
        stages.sort_by_key(|stage| stage.stage);
        let (name, began_ms) = (running.job.name.clone(), running.job.began.0 / 1_000_000);
        JobStatus { name, planner: planner.clone(), slots, stages, ended: false, began_ms }
    }
}

/// Omits the earliest stages, so that no more than `stages` of all jobs are left. Without it one
/// job of very many stages would make the list too long for a message, and it could not be sent.
pub(super) fn show_stages_at_most(mut stages: usize, jobs: &mut [JobStatus]) {
    for job in jobs.iter_mut().rev() {
        let over = job.stages.len().saturating_sub(stages);
        job.stages.drain(..over);
        stages -= job.stages.len();
    }
}

/// Omits the waves of the earliest stages, so that no more than `waves` of all jobs are left.
pub(super) fn show_at_most(mut waves: usize, jobs: &mut [JobStatus]) {
    for stage in jobs.iter_mut().rev().flat_map(|job| job.stages.iter_mut().rev()) {
        if stage.waves.len() > waves {
            stage.waves = Vec::new();
        }
        waves -= stage.waves.len();
    }
}

pub(super) fn stage_status(number: u32, stage: &Stage, run: Option<&StageRun>) -> StageStatus {
    StageStatus {
        stage: number,
        tasks: stage.tasks.len() as u32,
        tasks_done: stage.done as u32,
        tasks_running: stage.running as u32,
        tasks_waiting: run.map_or(0, |run| run.held.len() as u32),
        tasks_local: run.map_or(0, |run| run.local),
        waves: run.map(StageRun::statuses).unwrap_or_default(),
    }
}
