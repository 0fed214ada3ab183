//! Orders that jobs have announced: which files their tasks will read, one task after the other,
//! and when each file is read next.
//!
//! All orders share one scale, in bytes: a task's *place* is the sum of what its job reads before
//! it. A job begins at the place that the foremost job has reached, so that jobs of equal speed are
//! compared correctly, and others roughly.
//!
//! A job reports which tasks have ended; their uses are over. It may be wrong about what its
//! program really reads. So the touches of its files are compared with the order: a program that
//! follows it touches files shortly after their task (readers lag behind a sampler) or just before.
//! Touches elsewhere count against the order, and beyond [`STRAY_NUM`] / [`STRAY_DEN`] of the
//! others it is *void* and forgotten.
//!
//! Files go by any name that the driver chooses. The caller that fills a table bounds its size.

use super::NextUse;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

/// A touch fits the order if its file is used within this part of the job's epoch ahead (one in
/// sixteen), or was within that part behind (one in four).
const AHEAD_DIVISOR: u64 = 16;
const BEHIND_DIVISOR: u64 = 4;

/// Stray touches for each that fits, from which an order is void. In another permutation 0.31 of
/// all fit by chance.
const STRAY_NUM: u64 = 3;
const STRAY_DEN: u64 = 2;

/// Fewest touches by which an order is judged.
const TOUCHES_MIN: u64 = 64;

/// Touches are halved beyond this, so that an order is judged by recent ones.
const TOUCHES_MAX: u64 = 1024;

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePart<F> {
    /// Which file.
    pub file: F,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// One announced use of a part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Use {
    place: u64,
    job: u64,
    offset: u64,
    end: u64,
}

/// Announced uses of a file.
#[derive(Clone, Debug, Default)]
struct FileUses {
    /// Uses by place.
    uses: Vec<Use>,
    /// The place of the last use that is over.
    last: Option<u64>,
}

#[derive(Clone, Debug)]
struct Task<F> {
    place: u64,
    files: Vec<F>,
}

#[derive(Clone, Debug)]
struct Job<F> {
    /// The place of the task that is announced next.
    end: u64,
    /// The place that its tasks have reached.
    reached: u64,
    /// Bytes of its largest stage.
    epoch_bytes: u64,
    stage_bytes: BTreeMap<u32, u64>,
    tasks: BTreeMap<(u32, u32), Task<F>>,
    fitting: u64,
    stray: u64,
}

/// The orders of all jobs; see the head of the file.
#[derive(Debug)]
pub struct Orders<F> {
    jobs: BTreeMap<u64, Job<F>>,
    files: BTreeMap<F, FileUses>,
}

impl<F> Default for Orders<F> {
    fn default() -> Self {
        Orders { jobs: BTreeMap::new(), files: BTreeMap::new() }
    }
}

impl<F: Copy + Ord> Orders<F> {
    /// Whether nothing is announced.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Begins the order of a job.
    pub fn begin(&mut self, job: u64) {
        let reached = self.jobs.values().map(|other| other.reached).max().unwrap_or(0);
        self.jobs.entry(job).or_insert_with(|| Job {
            end: reached,
            reached,
            epoch_bytes: 0,
            stage_bytes: BTreeMap::new(),
            tasks: BTreeMap::new(),
            fitting: 0,
            stray: 0,
        });
    }

    /// Adds the next task of the job. Returns the files whose next use may have changed.
    pub fn announce(&mut self, job: u64, task: (u32, u32), parts: &[FilePart<F>]) -> BTreeSet<F> {
        let mut changed = BTreeSet::new();
        let Some(of_job) = self.jobs.get_mut(&job) else { return changed };
        let place = of_job.end;
        let bytes = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.len));
        of_job.end = of_job.end.saturating_add(bytes.max(1));
        let stage_bytes = of_job.stage_bytes.entry(task.0).or_default();
        *stage_bytes = stage_bytes.saturating_add(bytes);
        of_job.epoch_bytes = of_job.epoch_bytes.max(*stage_bytes);
        of_job.tasks.insert(task, Task { place, files: parts.iter().map(|part| part.file).collect() });
        for part in parts {
            let of_file = self.files.entry(part.file).or_default();
            let one = Use { place, job, offset: part.offset, end: part.offset.saturating_add(part.len) };
            let at = of_file.uses.partition_point(|other| *other <= one);
            of_file.uses.insert(at, one);
            changed.insert(part.file);
        }
        changed
    }

    /// Ends a task of the job: its uses are over. Returns the files whose next use has changed.
    pub fn task_ended(&mut self, job: u64, task: (u32, u32)) -> BTreeSet<F> {
        let mut changed = BTreeSet::new();
        let Some(of_job) = self.jobs.get_mut(&job) else { return changed };
        let Some(Task { place, files }) = of_job.tasks.remove(&task) else { return changed };
        of_job.reached = of_job.reached.max(place);
        for file in files {
            let Some(of_file) = self.files.get_mut(&file) else { continue };
            of_file.uses.retain(|one| one.job != job || one.place != place);
            of_file.last = of_file.last.max(Some(place));
            changed.insert(file);
        }
        changed
    }

    /// Ends a stage: none of its tasks will run any more. Returns the files whose next use has
    /// changed.
    pub fn stage_ended(&mut self, job: u64, stage: u32) -> BTreeSet<F> {
        let Some(of_job) = self.jobs.get_mut(&job) else { return BTreeSet::new() };
        of_job.stage_bytes.remove(&stage);
        let tasks: Vec<_> =
            of_job.tasks.range((stage, 0)..=(stage, u32::MAX)).map(|(task, _)| *task).collect();
        tasks.into_iter().flat_map(|task| self.task_ended(job, task)).collect()
    }

    /// Forgets the order of the job. Returns the files that had announced uses.
    pub fn end(&mut self, job: u64) -> BTreeSet<F> {
        if self.jobs.remove(&job).is_none() {
            return BTreeSet::new();
        }
        let changed = self.files.keys().copied().collect();
        // A file without further uses is forgotten with its last use, whichever job that was of:
        // most nodes have one job.
        self.files.retain(|_, of_file| {
            of_file.uses.retain(|one| one.job != job);
            !of_file.uses.is_empty()
        });
        changed
    }

    /// Returns when bytes from `offset` to `end` of the file are used next.
    pub fn next_use(&self, file: F, (offset, end): (u64, u64)) -> NextUse {
        let Some(of_file) = self.files.get(&file) else { return NextUse::Unknown };
        let next = of_file.uses.iter().find(|one| one.offset < end && offset < one.end);
        next.map_or(NextUse::Over, |one| NextUse::At(one.place))
    }

    /// Records that a program has used the file. Returns the jobs whose orders this has made void;
    /// the caller ends them.
    pub fn touched(&mut self, file: F) -> Vec<u64> {
        let Some(of_file) = self.files.get(&file) else { return Vec::new() };
        let mut void = Vec::new();
        for (number, job) in &mut self.jobs {
            let next = of_file.uses.iter().find(|one| one.job == *number).map(|one| one.place);
            let soon = job.reached.saturating_add(job.epoch_bytes / AHEAD_DIVISOR);
            let lately = job.reached.saturating_sub(job.epoch_bytes / BEHIND_DIVISOR);
            let fits =
                next.is_some_and(|place| place <= soon) || of_file.last.is_some_and(|place| place >= lately);
            *(if fits { &mut job.fitting } else { &mut job.stray }) += 1;
            let touches = job.fitting + job.stray;
            if touches >= TOUCHES_MIN && job.stray * STRAY_DEN > job.fitting * STRAY_NUM {
                void.push(*number);
            }
            if touches >= TOUCHES_MAX {
                (job.fitting, job.stray) = (job.fitting / 2, job.stray / 2);
            }
        }
        void
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn whole(file: u32) -> FilePart<u32> {
        FilePart { file, offset: 0, len: 10 }
    }

    /// Each task reads one file.
    fn announced(orders: &mut Orders<u32>, job: u64, stage: u32, files: &[u32]) {
        for (task, file) in (0..).zip(files) {
            orders.announce(job, (stage, task), &[whole(*file)]);
        }
    }

    fn next(orders: &Orders<u32>, file: u32) -> NextUse {
        orders.next_use(file, (0, 10))
    }

    #[test]
    fn a_file_is_used_next_where_no_task_has_ended() {
        let mut orders = Orders::default();
        orders.begin(1);
        announced(&mut orders, 1, 0, &[3, 4, 5]);
        announced(&mut orders, 1, 1, &[5, 4, 3]);
        assert_eq!(
            [3, 5, 6].map(|file| next(&orders, file)),
            [NextUse::At(0), NextUse::At(20), NextUse::Unknown]
        );
        assert_eq!(orders.task_ended(1, (0, 0)), BTreeSet::from([3]));
        assert_eq!(next(&orders, 3), NextUse::At(50));
        assert_eq!(orders.stage_ended(1, 0), BTreeSet::from([4, 5]));
        orders.task_ended(1, (1, 0));
        assert_eq!([5, 4].map(|file| next(&orders, file)), [NextUse::Over, NextUse::At(40)]);
        assert_eq!(orders.end(1), BTreeSet::from([3, 4, 5]));
        assert!(orders.is_empty() && orders.files.is_empty());
    }

    #[test]
    fn parts_of_a_file_are_distinguished_and_a_later_job_is_beside_the_first() {
        let mut orders = Orders::default();
        orders.begin(1);
        orders.announce(1, (0, 0), &[FilePart { file: 1, offset: 0, len: 10 }]);
        orders.announce(1, (0, 1), &[FilePart { file: 1, offset: 10, len: 10 }]);
        orders.announce(1, (0, 2), &[whole(2)]);
        assert_eq!(orders.next_use(1, (10, 12)), NextUse::At(10));
        assert_eq!(orders.next_use(1, (20, 22)), NextUse::Over);
        orders.task_ended(1, (0, 0));
        orders.task_ended(1, (0, 1));
        orders.begin(2);
        announced(&mut orders, 2, 0, &[1]);
        assert_eq!(orders.next_use(1, (0, 1)), NextUse::At(10), "the place that the first has reached");
        orders.end(1);
        assert_eq!((next(&orders, 1), next(&orders, 2)), (NextUse::At(10), NextUse::Unknown));
    }

    /// Reads files in the order of `read`, while tasks end in the announced one; returns the number
    /// of touches until the order is void.
    fn touches_until_void(read: impl Fn(u32) -> u32) -> Option<u32> {
        let mut orders = Orders::default();
        orders.begin(1);
        announced(&mut orders, 1, 0, &(0..1000).collect::<Vec<_>>());
        for at in 0..1000 {
            if orders.touched(read(at)) == vec![1] {
                return Some(at);
            }
            orders.task_ended(1, (0, at));
        }
        None
    }

    #[test]
    fn an_order_that_nobody_keeps_to_is_void_and_one_with_lagging_readers_is_not() {
        assert_eq!(touches_until_void(|at| at), None);
        assert_eq!(touches_until_void(|at| at.saturating_sub(200)), None);
        // 617 has no factor in common with 1000.
        let void = touches_until_void(|at| at * 617 % 1000);
        assert!(void.is_some_and(|touches| touches < 300), "{void:?}");
    }
}
