//! Tasks that ask before they read, and wait for their input.
//!
//! A planner that considers I/O phases delays the prefetch of a wave so that a phase keeps its
//! deadline. Tasks that then read the file system themselves would do the harm that the delay
//! avoids. So a task whose job asks ([`JobUpdate::TasksAsk`](super::event::JobUpdate::TasksAsk))
//! waits while an HPC job is known, until one of these:
//!
//! - all requests for its input have ended, whether they succeeded or not;
//! - the planner lets the tasks of its wave read directly;
//! - no HPC job is left, or the stage is partitioned again or ends;
//! - it has waited for [`Rules::task_wait_max_ns`](super::Rules::task_wait_max_ns).
//!
//! To the machine and its planner a waiting task has not started.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::event::{Action, JobKey};
use super::{Running, Stages};
use crate::machine::Nanos;
use crate::planner::{self, Event};

/// How long tasks of an unknown stage wait: its report may be under way.
const UNKNOWN_NS: u64 = 2_000_000_000;

/// Limit on the stages of a job that are remembered as not reported.
const UNREPORTED_MAX: usize = 1024;

/// Limit on the questions of one job that are kept; tasks beyond may read.
const QUESTIONS_MAX: usize = 1 << 16;

/// A task of a stage, by its partition.
type Task = (JobKey, u32, u32);

/// Questions that have no answer yet, and limits on waiting.
#[derive(Debug, Default)]
pub(super) struct Questions {
    /// Unanswered tasks, and whether the stage was unknown when the task asked.
    open: BTreeMap<Task, bool>,
    /// Limits of tasks that have asked, or wait in their slots. Some may be over.
    limits: BTreeSet<(Nanos, Task)>,
    /// Stages whose tasks may be able to read now, to be examined.
    to_look_at: BTreeSet<(JobKey, u32)>,
    is_looking: bool,
}

impl Questions {
    /// Returns the earliest limit.
    pub fn next_limit(&self) -> Option<Nanos> {
        self.limits.first().map(|(at, _)| *at)
    }

    fn open(&mut self, task: Task, is_unknown: bool, limit: Nanos) {
        self.open.insert(task, is_unknown);
        self.limits.insert((limit, task));
    }

    pub fn of_stage(&self, key: JobKey, stage: u32) -> Vec<u32> {
        let of_stage = self.open.range((key, stage, 0)..=(key, stage, u32::MAX));
        of_stage.map(|((_, _, partition), _)| *partition).collect()
    }

    fn of_job(&self, key: JobKey) -> impl Iterator<Item = Task> {
        self.open.range((key, 0, 0)..=(key, u32::MAX, u32::MAX)).map(|(task, _)| *task)
    }
}

/// Tasks of a stage that have a slot and wait, and since when.
pub(super) type Held = BTreeMap<u32, Nanos>;

/// Whether a task that asks may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    May,
    Waits,
    /// Its stage has not been reported or partitioned.
    Unknown,
}

impl Stages {
    /// Handles a task's question whether it may read.
    pub(super) fn task_asks(&mut self, now: Nanos, key: JobKey, stage: u32, partition: u32) {
        let standing = self.standing_of(now, key, stage, partition);
        let is_one_too_many = || self.questions.of_job(key).take(QUESTIONS_MAX).count() == QUESTIONS_MAX;
        if standing == Standing::May || is_one_too_many() {
            // It may have asked before.
            self.questions.open.remove(&(key, stage, partition));
            return self.out.push(Action::MayRead { job: key, stage, partition });
        }
        if self.questions.open.contains_key(&(key, stage, partition)) {
            // Its limit stays as it is.
            return;
        }
        let is_unknown = standing == Standing::Unknown;
        let most_ns = self.config.rules.task_wait_max_ns;
        let wait_ns = if is_unknown { UNKNOWN_NS.min(most_ns) } else { most_ns };
        self.questions.open((key, stage, partition), is_unknown, now + wait_ns);
        if let Some(Running { job, stages, .. }) = self.jobs.get_mut(&key)
            && let (Some(run), Some(task)) = (stages.get_mut(&stage), job.task_of(stage, partition))
        {
            run.note_waits(task);
        }
    }

    /// Handles a task that has its slot. Returns whether it waits there: otherwise it has started.
    pub(super) fn waits_in_its_slot(&mut self, now: Nanos, key: JobKey, stage: u32, task: u32) -> bool {
        let Some(running) = self.jobs.get(&key) else { return false };
        if self.standing(now, running, stage, task) != Standing::Waits {
            return false;
        }
        let partition = running.job.partition_of(stage, task);
        self.questions.limits.insert((now + self.config.rules.task_wait_max_ns, (key, stage, partition)));
        if let Some(run) = self.run_mut(key, stage) {
            run.held.insert(task, now);
            run.note_waits(task);
        }
        self.report_wanted(now, key, stage);
        true
    }

    fn standing_of(&self, now: Nanos, key: JobKey, stage: u32, partition: u32) -> Standing {
        let Some(running) = self.jobs.get(&key) else { return Standing::May };
        match running.job.task_of(stage, partition) {
            Some(task) => self.standing(now, running, stage, task),
            None if !self.tasks_wait(running) => Standing::May,
            // None of its input is read from the tier, or it is not known yet.
            None if running.job.stages.get(&stage).is_some_and(|s| s.ready) => Standing::May,
            None if running.unreported.contains(&stage) => Standing::May,
            None => Standing::Unknown,
        }
    }

    fn standing(&self, now: Nanos, running: &Running, stage: u32, task: u32) -> Standing {
        if !self.tasks_wait(running) {
            return Standing::May;
        }
        match running.stages.get(&stage) {
            Some(run) => {
                let may_hold = |name: &str, node| self.plannable_bytes(now, name, node);
                if run.may_read(may_hold, [task]).0.is_empty() { Standing::Waits } else { Standing::May }
            }
            None if running.unreported.contains(&stage) => Standing::May,
            None => Standing::Unknown,
        }
    }

    /// Returns whether tasks of the job wait at all.
    fn tasks_wait(&self, running: &Running) -> bool {
        running.job.tasks_ask
            && self.config.rules.task_wait_max_ns > 0
            && !self.hpc.is_empty()
            && planner::tasks_wait(self.planner_name(&running.job.planner))
    }

    /// Lets the tasks of a stage read whose input has been fetched, or that no longer need to wait.
    pub(super) fn let_read(&mut self, now: Nanos, key: JobKey, stage: u32) {
        if !self.jobs.get(&key).is_some_and(|running| running.job.tasks_ask) {
            return;
        }
        self.questions.to_look_at.insert((key, stage));
        // A task that starts may let others read: they have their turn here, and not one within
        // another, as there may be thousands.
        if core::mem::replace(&mut self.questions.is_looking, true) {
            return;
        }
        while let Some((key, stage)) = self.questions.to_look_at.pop_first() {
            self.let_some_read(now, key, stage);
        }
        self.questions.is_looking = false;
    }

    fn let_some_read(&mut self, now: Nanos, key: JobKey, stage: u32) {
        let Some(running) = self.jobs.get(&key) else { return };
        if !self.tasks_wait(running) {
            return self.stop_waiting(now, key, stage);
        }
        let Some(run) = running.stages.get(&stage) else { return };
        let may_hold = |name: &str, node| self.plannable_bytes(now, name, node);
        // Most often all continue to wait.
        if run.all_wait(may_hold) {
            return;
        }
        let (mut asked, mut of_no_task) = (Vec::new(), Vec::new());
        for partition in self.questions.of_stage(key, stage) {
            match running.job.task_of(stage, partition) {
                Some(task) => asked.push(task),
                None => of_no_task.push(partition),
            }
        }
        let (mut tasks, awaited) = run.may_read(may_hold, run.held.keys().copied().chain(asked));
        if let Some(run) = self.run_mut(key, stage) {
            run.awaited = of_no_task.is_empty().then_some(awaited);
        }
        tasks.sort_unstable();
        tasks.dedup();
        for task in tasks {
            self.start_held(now, key, stage, task);
            self.answer_task(key, stage, task);
        }
        for partition in of_no_task {
            if self.standing_of(now, key, stage, partition) == Standing::May {
                self.answer((key, stage, partition));
            }
        }
    }

    /// As [`Stages::let_read`], for all stages.
    pub(super) fn let_all_read(&mut self, now: Nanos) {
        let of_job = |(key, running): (&JobKey, &Running)| {
            let asked = self.questions.of_job(*key).map(|(_, stage, _)| stage);
            let stages: BTreeSet<u32> = running.stages.keys().copied().chain(asked).collect();
            let key = *key;
            stages.into_iter().map(move |stage| (key, stage)).collect::<Vec<_>>()
        };
        let stages: Vec<(JobKey, u32)> = self.jobs.iter().flat_map(of_job).collect();
        stages.into_iter().for_each(|(key, stage)| self.let_read(now, key, stage));
    }

    /// Lets all tasks of a stage read that wait in their slots.
    pub(super) fn start_all_held(&mut self, now: Nanos, key: JobKey, stage: u32) {
        let held = self.run_mut(key, stage).map(|run| run.held.keys().copied().collect::<Vec<_>>());
        held.into_iter().flatten().for_each(|task| self.start_held(now, key, stage, task));
    }

    /// Lets all tasks of a stage read that wait or have asked.
    pub(super) fn stop_waiting(&mut self, now: Nanos, key: JobKey, stage: u32) {
        self.start_all_held(now, key, stage);
        let asked = self.questions.of_stage(key, stage);
        asked.into_iter().for_each(|partition| self.answer((key, stage, partition)));
    }

    /// Lets all tasks of a job read that have asked, and forgets their limits: none waits any more.
    pub(super) fn forget_questions(&mut self, key: JobKey) {
        let open: Vec<Task> = self.questions.of_job(key).collect();
        open.into_iter().for_each(|task| self.answer(task));
        self.questions.limits.retain(|(_, (job, ..))| *job != key);
    }

    /// Lets tasks read that have waited for long enough.
    pub(super) fn limit_waits(&mut self, now: Nanos) {
        while let Some((at, task)) = self.questions.limits.first().copied().filter(|(at, _)| *at <= now) {
            self.questions.limits.remove(&(at, task));
            let (key, stage, partition) = task;
            let most_ns = self.config.rules.task_wait_max_ns;
            let held = self.jobs.get(&key).and_then(|running| {
                let number = running.job.task_of(stage, partition)?;
                Some((number, *running.stages.get(&stage)?.held.get(&number)?))
            });
            match (held, self.questions.open.get(&task).copied()) {
                (Some((number, since)), _) if now.saturating_since(since) >= most_ns => {
                    self.start_held(now, key, stage, number);
                }
                // The report of its stage has arrived meanwhile.
                (None, Some(true)) if self.standing_of(now, key, stage, partition) == Standing::Waits => {
                    self.questions.open(task, false, at + most_ns);
                }
                (None, Some(was_unknown)) => {
                    if let Some(running) = self.jobs.get_mut(&key).filter(|_| was_unknown) {
                        if running.unreported.len() >= UNREPORTED_MAX {
                            running.unreported.clear();
                        }
                        running.unreported.insert(stage);
                    }
                    self.answer(task);
                }
                _ => {}
            }
        }
    }

    pub(super) fn start_held(&mut self, now: Nanos, key: JobKey, stage: u32, task: u32) {
        let Some(running) = self.jobs.get_mut(&key) else { return };
        let partition = running.job.partition_of(stage, task);
        let Some(since) = running.stages.get_mut(&stage).and_then(|run| run.held.remove(&task)) else {
            return;
        };
        running.job.waited(stage, task, now.saturating_since(since));
        self.answer((key, stage, partition));
        self.task_started(now, key, stage, task);
    }

    /// Answers the task of this number if it has asked.
    pub(super) fn answer_task(&mut self, key: JobKey, stage: u32, task: u32) {
        if let Some(running) = self.jobs.get(&key) {
            self.answer((key, stage, running.job.partition_of(stage, task)));
        }
    }

    fn answer(&mut self, task: Task) {
        if self.questions.open.remove(&task).is_some() {
            let (job, stage, partition) = task;
            self.out.push(Action::MayRead { job, stage, partition });
        }
    }

    /// Notifies the planner that the job has nothing to compute until its next wave is fetched.
    pub(super) fn report_wanted(&mut self, now: Nanos, key: JobKey, number: u32) {
        let Some(running) = self.jobs.get(&key) else { return };
        let busy = running.job.stages.get(&number).map_or(0, |stage| stage.running);
        let Some(run) = running.stages.get(&number) else { return };
        if busy > run.held.len() as u64 {
            return;
        }
        let Some(wave) = run.wanted() else { return };
        self.report_fetched_before(now, key, number, wave);
        if let Some((name, job)) = self.run_mut(key, number).and_then(|run| run.planner.clone()) {
            self.notify(now, &name, Event::WaveWanted { job, wave });
        }
    }
}
