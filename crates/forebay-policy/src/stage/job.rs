//! Jobs' reports: files, splits, tasks. Nothing is decided here.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::event::{File, JobUpdate, Layout, Split};
use crate::machine::Nanos;

/// A job.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// Its name.
    pub name: String,
    /// The planner it wants; empty for the default.
    pub planner: String,
    /// How long a wave computes and, of that, reads from the tier, if a profile of the job states
    /// it, in ns.
    pub expected_ns: Option<(u64, u64)>,
    /// Slots by host.
    pub slots: Vec<(String, u32)>,
    /// Files by their number.
    pub files: Vec<File>,
    /// Their layouts, by their number, with queues in place of servers. Shorter than `files` if the
    /// last layouts are unknown.
    pub layouts: Vec<Layout>,
    /// Its stages that read files and have not ended.
    pub stages: BTreeMap<u32, Stage>,
    /// Run times of the tasks that succeeded, of stages that have ended.
    pub ended_run_ms_sum: u64,
    /// Number of tasks in `ended_run_ms_sum`.
    pub ended_done: u64,
    /// The time of its first report.
    pub began: Nanos,
    /// Whether its tasks ask before they read.
    pub tasks_ask: bool,
}

/// A stage.
#[derive(Clone, Debug, Default)]
pub struct Stage {
    /// What its tasks read.
    pub splits: Vec<Split>,
    /// Its tasks, one for each split.
    pub tasks: Vec<Task>,
    /// Tasks by their partitions, and the partitions of tasks, if they differ.
    pub partitions: Option<(BTreeMap<u32, u32>, Vec<u32>)>,
    /// Whether all splits are reported.
    pub ready: bool,
    /// Run times of the tasks that succeeded.
    pub run_ms_sum: u64,
    /// Number of tasks that have succeeded.
    pub done: u64,
    /// Number of attempts that are running, of all tasks.
    pub running: u64,
}

/// A task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Task {
    /// Number of attempts that are running.
    pub running: u32,
    /// The host on which it was first started, if it was.
    pub started: Option<String>,
    /// Whether it has succeeded.
    pub done: bool,
    /// For how long it waited for its input, in ms.
    pub waited_ms: u64,
}

/// The effect of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// None.
    Noted,
    /// The number of slots has changed.
    Slots,
    /// The tasks of a stage have other partitions.
    Numbered(u32),
    /// A stage may be planned.
    Ready(u32),
    /// A task, by its stage and partition, asks whether it may read.
    Asks(u32, u32),
    /// A task that had no slot before has one.
    Started(u32, u32),
    /// A task has succeeded.
    Done(u32, u32),
    /// A stage has ended.
    StageEnded(u32),
    /// The job has ended.
    Ended,
}

impl Job {
    /// Applies an update. An update that contradicts earlier ones (a task without a split) changes
    /// nothing.
    pub fn apply(&mut self, update: JobUpdate) -> Change {
        match update {
            JobUpdate::Begin { name, planner } => {
                self.name = name;
                self.planner = planner;
                Change::Noted
            }
            JobUpdate::Expected { wave_ns, tier_read_ns } => {
                self.expected_ns = Some((wave_ns, tier_read_ns.min(wave_ns)));
                Change::Noted
            }
            JobUpdate::Slots { slots } => {
                let same = self.slots == slots;
                self.slots = slots;
                if same { Change::Noted } else { Change::Slots }
            }
            JobUpdate::Files { files } => {
                self.files.extend(files);
                Change::Noted
            }
            JobUpdate::Splits { stage, splits } => {
                let stage = self.stages.entry(stage).or_default();
                if !stage.ready {
                    stage.splits.extend(splits);
                    stage.tasks.resize(stage.splits.len(), Task::default());
                }
                Change::Noted
            }
            JobUpdate::StageReady { stage } => {
                let known = self.stages.entry(stage).or_default();
                let again = core::mem::replace(&mut known.ready, true);
                if again { Change::Noted } else { Change::Ready(stage) }
            }
            JobUpdate::TasksAsk => {
                self.tasks_ask = true;
                Change::Noted
            }
            JobUpdate::Partitions { stage, partitions } => {
                let numbers = (0u32..).zip(&partitions).map(|(task, partition)| (*partition, task));
                let numbers = numbers.collect();
                self.stages.entry(stage).or_default().partitions = Some((numbers, partitions));
                Change::Numbered(stage)
            }
            JobUpdate::TaskAsks { stage, partition } => Change::Asks(stage, partition),
            JobUpdate::TaskStarted { stage, task, host } => self.started(stage, task, host),
            JobUpdate::TaskEnded { stage, task, ok, run_ms } => self.task_ended(stage, task, ok, run_ms),
            JobUpdate::StageEnded { stage } if self.stages.contains_key(&stage) => Change::StageEnded(stage),
            JobUpdate::StageEnded { .. } => Change::Noted,
            JobUpdate::End => Change::Ended,
            JobUpdate::Layouts { files, .. } => {
                let Some(first) = self.files.len().checked_sub(files.len()) else { return Change::Noted };
                self.layouts.truncate(first);
                self.layouts.resize(first, Layout::default());
                self.layouts.extend(files);
                Change::Noted
            }
        }
    }

    fn started(&mut self, stage: u32, number: u32, host: String) -> Change {
        let Some(known) = self.stages.get_mut(&stage) else { return Change::Noted };
        let Some(task) = known.tasks.get_mut(number as usize) else { return Change::Noted };
        task.running += 1;
        known.running += 1;
        if task.started.is_some() {
            return Change::Noted;
        }
        task.started = Some(host);
        Change::Started(stage, number)
    }

    fn task_ended(&mut self, stage: u32, number: u32, ok: bool, run_ms: u64) -> Change {
        let Some(known) = self.stages.get_mut(&stage) else { return Change::Noted };
        let Some(task) = known.tasks.get_mut(number as usize) else { return Change::Noted };
        if task.running > 0 {
            task.running -= 1;
            known.running -= 1;
        }
        if !ok || core::mem::replace(&mut task.done, true) {
            return Change::Noted;
        }
        known.done += 1;
        let ran_ms = run_ms.saturating_sub(task.waited_ms);
        known.run_ms_sum = known.run_ms_sum.saturating_add(ran_ms);
        Change::Done(stage, number)
    }

    /// Returns the task of a partition.
    pub fn task_of(&self, stage: u32, partition: u32) -> Option<u32> {
        let stage = self.stages.get(&stage)?;
        let task = match &stage.partitions {
            Some((numbers, _)) => *numbers.get(&partition)?,
            None => partition,
        };
        ((task as usize) < stage.tasks.len()).then_some(task)
    }

    /// Returns the partition of a task.
    pub fn partition_of(&self, stage: u32, task: u32) -> u32 {
        let partitions = self.stages.get(&stage).and_then(|stage| stage.partitions.as_ref());
        partitions.and_then(|(_, partitions)| partitions.get(task as usize).copied()).unwrap_or(task)
    }

    /// Records for how long a task with a slot has waited for its input.
    pub fn waited(&mut self, stage: u32, task: u32, ns: u64) {
        let task = self.stages.get_mut(&stage).and_then(|stage| stage.tasks.get_mut(task as usize));
        if let Some(task) = task {
            task.waited_ms = task.waited_ms.saturating_add(ns / 1_000_000);
        }
    }

    /// Removes a stage that has ended, and returns it without running tasks. Late reports about it
    /// change nothing; if it is reported again, it is another stage. The run times of its tasks
    /// stay known.
    pub fn forget(&mut self, stage: u32) -> Option<Stage> {
        let ended = self.stages.remove(&stage)?;
        self.ended_run_ms_sum = self.ended_run_ms_sum.saturating_add(ended.run_ms_sum);
        self.ended_done += ended.done;
        Some(Stage { running: 0, ..ended })
    }

    /// Mean run time of the tasks that succeeded, in nanoseconds: of the stage, otherwise of the
    /// whole job, otherwise `None`.
    pub fn task_ns(&self, stage: u32) -> Option<u64> {
        let mean = |sum_ms: u64, count: u64| (count > 0).then(|| sum_ms.saturating_mul(1_000_000) / count);
        let own = self.stages.get(&stage).and_then(|s| mean(s.run_ms_sum, s.done));
        own.or_else(|| {
            let all = self.stages.values();
            let sum_ms = all.clone().fold(self.ended_run_ms_sum, |sum, s| sum.saturating_add(s.run_ms_sum));
            mean(sum_ms, self.ended_done + all.map(|s| s.done).sum::<u64>())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_followed_through_retries_and_copies() {
        let mut job = Job::default();
        let started = |task| JobUpdate::TaskStarted { stage: 3, task, host: "a".into() };
        let ended = |task, ok| JobUpdate::TaskEnded { stage: 3, task, ok, run_ms: 100 };
        assert_eq!(
            job.apply(JobUpdate::Splits { stage: 3, splits: vec![Split::default(); 2] }),
            Change::Noted
        );
        assert_eq!(job.apply(JobUpdate::StageReady { stage: 3 }), Change::Ready(3));
        assert_eq!(job.apply(JobUpdate::StageReady { stage: 3 }), Change::Noted);
        assert_eq!(job.apply(started(0)), Change::Started(3, 0));
        assert_eq!(job.apply(ended(0, false)), Change::Noted);
        assert_eq!(job.apply(started(0)), Change::Noted, "a retry");
        assert_eq!(job.apply(started(0)), Change::Noted, "a copy of it");
        assert_eq!(job.apply(ended(0, true)), Change::Done(3, 0));
        assert_eq!(job.stages[&3].running, 1);
        assert_eq!(job.apply(ended(0, true)), Change::Noted);
        assert_eq!((job.stages[&3].running, job.stages[&3].done), (0, 1));
        assert_eq!(job.apply(started(7)), Change::Noted, "no such task");
        assert_eq!((job.task_ns(3), job.task_ns(4)), (Some(100_000_000), Some(100_000_000)));
        assert_eq!(job.apply(JobUpdate::StageEnded { stage: 3 }), Change::StageEnded(3));
        assert_eq!(job.apply(JobUpdate::StageEnded { stage: 9 }), Change::Noted);
    }

    #[test]
    fn of_a_stage_that_was_forgotten_run_times_stay_and_late_words_are_nothing() {
        let mut job = Job::default();
        let reported = JobUpdate::Splits { stage: 3, splits: vec![Split::default(); 2] };
        let started = |task| JobUpdate::TaskStarted { stage: 3, task, host: "a".into() };
        let ended = |task| JobUpdate::TaskEnded { stage: 3, task, ok: true, run_ms: 100 };
        job.apply(reported.clone());
        assert_eq!(job.apply(JobUpdate::StageReady { stage: 3 }), Change::Ready(3));
        assert_eq!(job.apply(started(0)), Change::Started(3, 0));
        assert_eq!(job.apply(ended(0)), Change::Done(3, 0));
        assert_eq!(job.apply(started(1)), Change::Started(3, 1));
        let stage = job.forget(3).unwrap();
        assert_eq!((stage.tasks.len(), stage.done, stage.running), (2, 1, 0));
        assert!(job.forget(3).is_none());
        for late in [started(0), ended(1), JobUpdate::StageEnded { stage: 3 }] {
            assert_eq!(job.apply(late), Change::Noted);
        }
        assert!(job.stages.is_empty());
        assert_eq!((job.task_ns(3), job.task_ns(4)), (Some(100_000_000), Some(100_000_000)));
        job.apply(reported);
        assert_eq!(job.apply(JobUpdate::StageReady { stage: 3 }), Change::Ready(3), "some of it runs again");
    }
}
