//! Effects of the starts and ends of tasks, stages and jobs.

use alloc::vec::Vec;

use super::event::{JobKey, JobStatus};
use super::planning::FIRST_TASK_NS;
use super::status::stage_status;
use super::waves::StageRun;
use super::{Running, Stages};
use crate::machine::Nanos;
use crate::planner::Event;

/// Limit on the ended jobs that are still shown.
const ENDED_MAX: usize = 32;

/// Limit on the ended stages of a job that are still shown: an application that runs for days has
/// any number of them.
pub(super) const ENDED_STAGES_MAX: usize = 64;

impl Running {
    /// Forgets a stage of which no task will run any more, except for what is shown of it. Returns
    /// its requests, which are void.
    fn end_stage(&mut self, number: u32) -> Vec<u64> {
        self.to_cut.remove(&number);
        self.placing.remove(&number);
        let mut run = self.stages.remove(&number);
        let orders = run.as_mut().map(StageRun::end).unwrap_or_default();
        if let Some(stage) = self.job.forget(number) {
            self.ended.push_back(stage_status(number, &stage, run.as_ref()));
            while self.ended.len() > ENDED_STAGES_MAX {
                self.ended.pop_front();
            }
        }
        orders
    }
}

impl Stages {
    pub(super) fn task_started(&mut self, now: Nanos, key: JobKey, number: u32, task: u32) {
        let Some(running) = self.jobs.get_mut(&key) else { return };
        let Some(stage) = running.job.stages.get(&number) else { return };
        let Some(run) = running.stages.get_mut(&number) else { return };
        let since_ms = now.saturating_since(running.job.began) / 1_000_000;
        let host = stage.tasks[task as usize].started.as_deref().unwrap_or_default();
        let host_node = self.nodes.iter().find(|n| n.host == host).map(|n| n.name.as_str());
        let learned_ns = running.job.task_ns(number).unwrap_or(FIRST_TASK_NS);
        let expected_ns = running.job.expected_ns;
        let withdrawn = run.task_started(task, host_node, since_ms);
        let begins = run.begins(task).map(|wave| (wave, run.tier_share(wave)));
        self.release(now, withdrawn);
        if let Some((wave, tier_share)) = begins {
            // What tasks have read directly is not read from the tier.
            let less = |(wave_ns, read_ns): (u64, u64)| {
                wave_ns.saturating_sub(read_ns).saturating_add((read_ns as f64 * tier_share) as u64)
            };
            let compute_ns = expected_ns.map_or(learned_ns, less);
            // The planner's books require the waves before it to be over and fetched.
            let fetched = wave + u32::from(self.config.rules.tasks_wait);
            self.report_fetched_before(now, key, number, fetched);
            if let Some((name, job)) = self.run_mut(key, number).and_then(|run| run.planner.clone()) {
                self.notify(now, &name, Event::WaveStarts { job, wave, compute_ns });
            }
        }
        self.settle(now, key, number);
    }

    pub(super) fn task_done(&mut self, now: Nanos, key: JobKey, number: u32, task: u32) {
        let Some(running) = self.jobs.get_mut(&key) else { return };
        let since_ms = now.saturating_since(running.job.began) / 1_000_000;
        let Some(run) = running.stages.get_mut(&number) else { return };
        let finished = run.task_done(task, since_ms);
        let frees = run.is_before_cut(task);
        if !finished.is_empty() {
            self.release(now, finished);
            self.settle(now, key, number);
        }
        if frees {
            self.report_memory(now);
        }
        self.report_wanted(now, key, number);
    }

    /// Reports to the planner the waves that are fetched by now, in their order.
    pub(super) fn settle(&mut self, now: Nanos, key: JobKey, stage: u32) {
        self.settle_fetched(now, key, stage);
        self.let_read(now, key, stage);
        self.has_changed = true;
    }

    pub(super) fn settle_fetched(&mut self, now: Nanos, key: JobKey, stage: u32) {
        while let Some(running) = self.jobs.get_mut(&key) {
            let since_ms = now.saturating_since(running.job.began) / 1_000_000;
            let Some(run) = running.stages.get_mut(&stage) else { return };
            let (Some(wave), Some((name, job))) = (run.next_fetched(since_ms), run.planner.clone()) else {
                break;
            };
            let resident_bytes = run.resident_bytes(wave);
            self.report_fetched_ahead(now, key, stage);
            self.notify(now, &name, Event::Fetched { job, wave, resident_bytes });
        }
    }

    /// Reports to the planner the bytes fetched of waves that it has not planned, before it plans
    /// again.
    pub(super) fn report_fetched_ahead(&mut self, now: Nanos, key: JobKey, stage: u32) {
        let Some(run) = self.run_mut(key, stage) else { return };
        let waves = run.take_fetched_ahead();
        let Some((name, job)) = run.planner.clone().filter(|_| !waves.is_empty()) else { return };
        self.notify(now, &name, Event::FetchedAhead { job, waves });
    }

    pub(super) fn report_fetched_before(&mut self, now: Nanos, key: JobKey, stage: u32, wave: u32) {
        while let Some(run) = self.run_mut(key, stage) {
            let (Some(fetched), Some((name, job))) = (run.force_fetched(wave), run.planner.clone()) else {
                return;
            };
            let resident_bytes = run.resident_bytes(fetched);
            self.notify(now, &name, Event::Fetched { job, wave: fetched, resident_bytes });
        }
    }

    pub(super) fn planner_forgets(&mut self, now: Nanos, key: JobKey, stage: u32) {
        let Some((name, job)) = self.run_mut(key, stage).and_then(|run| run.planner.take()) else { return };
        self.notify(now, &name, Event::JobLeaves { job });
        let Some(driven) = self.planners.get_mut(&name) else { return };
        driven.jobs.remove(&job);
        if driven.jobs.is_empty() && self.config.system.is_none() {
            // The next one starts from what is known of the system by then.
            self.planners.remove(&name);
        }
    }

    pub(super) fn end_stage(&mut self, now: Nanos, key: JobKey, stage: u32) {
        self.stop_waiting(now, key, stage);
        self.planner_forgets(now, key, stage);
        let orders = self.jobs.get_mut(&key).map(|running| running.end_stage(stage)).unwrap_or_default();
        self.release(now, orders);
        self.report_memory(now);
    }

    pub(super) fn end_job(&mut self, now: Nanos, key: JobKey, show: bool) {
        let stages: Vec<u32> =
            self.jobs.get(&key).map(|r| r.job.stages.keys().copied().collect()).unwrap_or_default();
        for stage in stages {
            self.end_stage(now, key, stage);
        }
        self.forget_questions(key);
        let ended = self.jobs.remove(&key);
        if self.jobs.is_empty() {
            assert!(self.requests.is_empty(), "no job is left, but {} requests are", self.requests.len());
            assert!(self.queues.are_idle(), "no job is left, but requests are counted in queues");
            self.queues.rest();
            self.tiers.forget_numbers();
        }
        if let Some(running) = ended.filter(|_| show) {
            self.ended.push_back(JobStatus { ended: true, ..self.status_of(&running) });
            while self.ended.len() > ENDED_MAX {
                self.ended.pop_front();
            }
        }
    }
}
