//! Orders that local programs have announced: the tasks of their jobs, as the tier hears of them.
//!
//! A job that begins with [`JobUpdate::InOrder`] reads its splits in their order. Its agent hears
//! what it reports to the coordinator, and turns it into steps for the tier
//! ([`crate::cache::announced`]). An order takes memory of its user's share, and goes with its job.
//! The agent hears only its own programs: pages that it owns and that programs of other nodes read
//! are evicted without knowledge of their next use.

use crate::cache::Cache;
use crate::cache::announced::OrderStep;
use crate::cache::entry::FileId;
use crate::lock::lock;
use crate::mounts::MountState;
use crate::user_limits::{Kind, Share, Shares};
use forebay_policy::eviction::FilePart;
use forebay_store::{Class, Reservation};
use forebay_wire::{FileRef, JobUpdate, Refusal, Split};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// What a file of an order takes here.
const FILE_BYTES: u64 = 24;

/// What an announced use takes: in its task, and among the uses of its file.
const USE_BYTES: u64 = 160;

/// Most void orders that are remembered, so that their programs learn of it.
const VOID_MAX: usize = 1024;

/// The announced orders, by job.
#[derive(Debug)]
pub struct Orders {
    state: Mutex<State>,
    cache: Arc<Cache>,
    mounts: Arc<[MountState]>,
    shares: Arc<Shares>,
}

#[derive(Debug, Default)]
struct State {
    jobs: BTreeMap<u64, Kept>,
    /// Jobs whose programs have read in another order.
    void: BTreeSet<u64>,
}

#[derive(Debug)]
struct Kept {
    /// By their numbers in the job; `None` if this agent does not serve the mount.
    files: Vec<Option<FileId>>,
    stages: BTreeMap<u32, Stage>,
    room: Reservation,
    share: Share,
}

/// A stage, until it ends.
#[derive(Clone, Copy, Debug, Default)]
struct Stage {
    /// Tasks announced.
    tasks: u32,
    /// What their uses take.
    bytes: u64,
}

/// What a report adds to an order, and the memory for it.
#[derive(Debug)]
pub struct Addition {
    begins: bool,
    files: Vec<Option<FileId>>,
    stages: BTreeMap<u32, Stage>,
    steps: Vec<OrderStep>,
    room: Reservation,
    share: Share,
}

impl Orders {
    /// No orders yet.
    pub fn new(cache: Arc<Cache>, mounts: Arc<[MountState]>, shares: Arc<Shares>) -> Self {
        Orders { state: Mutex::default(), cache, mounts, shares }
    }

    /// Whether the order of job `job`, if it has one, is valid.
    ///
    /// # Errors
    /// It is not: its program has read in another order.
    pub fn check(&self, job: u64) -> Result<(), Refusal> {
        if !lock(&self.state).void.contains(&job) {
            return Ok(());
        }
        let why = "its program reads in another order than it has announced, so the order was dropped";
        Err(Refusal::Invalid(why.into()))
    }

    /// What `updates` of job `job` add to its order; `None` if it has none.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn prepare(&self, job: u64, uid: u32, updates: &[JobUpdate]) -> Result<Option<Addition>, Refusal> {
        let begins = updates.contains(&JobUpdate::InOrder);
        let state = lock(&self.state);
        let known = state.jobs.get(&job);
        if known.is_none() && !begins {
            return Ok(None);
        }
        let (mut files, mut stages, mut steps) = (Vec::new(), BTreeMap::<u32, Stage>::new(), Vec::new());
        let mut bytes = 0;
        let before = known.map_or(&[][..], |kept| &kept.files[..]);
        for update in updates {
            match update {
                JobUpdate::Files(named) => {
                    files.extend(named.iter().map(|file| self.id_of(file)));
                    bytes += named.len() as u64 * FILE_BYTES;
                }
                JobUpdate::Splits { stage, splits } => {
                    let of_stage = stages.entry(*stage).or_insert_with(|| {
                        known.and_then(|kept| kept.stages.get(stage).copied()).unwrap_or_default()
                    });
                    for split in splits {
                        let parts = parts_of(split, before, &files);
                        let taken = (1 + parts.len() as u64) * USE_BYTES;
                        (bytes, of_stage.bytes) = (bytes + taken, of_stage.bytes + taken);
                        steps.push(OrderStep::Task((*stage, of_stage.tasks), parts));
                        of_stage.tasks += 1;
                    }
                }
                JobUpdate::TaskEnded { stage, task, .. } => steps.push(OrderStep::TaskEnded((*stage, *task))),
                JobUpdate::StageEnded { stage } => steps.push(OrderStep::StageEnded(*stage)),
                _ => {}
            }
        }
        drop(state);
        let share = self.shares.share(Kind::Orders, uid, bytes)?;
        let room = self.cache.reserve(Class::Clients, bytes).ok_or(Refusal::NoRoom)?;
        Ok(Some(Addition { begins, files, stages, steps, room, share }))
    }

    /// Adds `addition` to the order of job `job`.
    pub fn add(&self, job: u64, addition: Addition) {
        let Addition { begins, files, stages, steps, room, share } = addition;
        let mut state = lock(&self.state);
        match state.jobs.get_mut(&job) {
            Some(kept) => {
                kept.files.extend(files);
                kept.stages.extend(stages);
                kept.room.merge(room);
                kept.share.merge(share);
            }
            None => _ = state.jobs.insert(job, Kept { files, stages, room, share }),
        }
        if begins {
            self.cache.begin_order(job);
        }
        for step in &steps {
            self.cache.step_order(job, step);
            if let OrderStep::StageEnded(stage) = step
                && let Some(kept) = state.jobs.get_mut(&job)
            {
                let bytes = kept.stages.remove(stage).unwrap_or_default().bytes;
                kept.room.shrink(bytes);
                kept.share.shrink(bytes);
            }
        }
    }

    /// Whether the job has announced an order.
    pub fn has(&self, job: u64) -> bool {
        lock(&self.state).jobs.contains_key(&job)
    }

    /// Forgets the order of a job that has ended.
    pub fn end(&self, job: u64) {
        let mut state = lock(&self.state);
        state.void.remove(&job);
        if state.jobs.remove(&job).is_some() {
            self.cache.end_order(job);
        }
    }

    /// Forgets the order of a job whose program has read in another order; its next report is
    /// refused.
    pub fn drop_void(&self, job: u64) {
        let mut state = lock(&self.state);
        if state.jobs.remove(&job).is_some() && state.void.len() < VOID_MAX {
            state.void.insert(job);
        }
    }

    fn id_of(&self, file: &FileRef) -> Option<FileId> {
        let mount = self.mounts.iter().position(|mount| mount.label() == file.mount)?;
        Some((mount, file.version.ino))
    }
}

/// What a task reads, of files that this agent serves.
fn parts_of(split: &Split, before: &[Option<FileId>], new: &[Option<FileId>]) -> Vec<FilePart<FileId>> {
    let id = |number: u32| {
        let number = number as usize;
        *before.get(number).or_else(|| new.get(number.checked_sub(before.len())?))?
    };
    let parts = split.parts.iter();
    parts
        .filter_map(|part| Some(FilePart { file: id(part.file)?, offset: part.offset, len: part.len }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MountConfig;
    use forebay_pfs::FileVersion;
    use forebay_wire::Part;
    use std::path::Path;

    const UID: u32 = 61_001;

    fn orders_in(dir: &Path) -> Orders {
        let cache = Cache::for_tests(dir, 64 << 20);
        let budget = cache.budget.clone();
        let mounts = Arc::new([MountState::new(MountConfig::new("pfs", dir)).unwrap()]);
        Orders::new(Arc::new(cache), mounts, Arc::new(Shares::new(budget, Arc::default(), 0)))
    }

    fn file(mount: &str, ino: u64) -> FileRef {
        let version = FileVersion { ino, size: 10, mtime_ns: 0, ctime_ns: 0 };
        FileRef { mount: mount.into(), path: b"f".to_vec(), version }
    }

    fn splits(stage: u32, files: &[u32]) -> JobUpdate {
        let part = |file: &u32| Part { file: *file, offset: 0, len: 10 };
        let split = |file| Split { parts: vec![part(file)], ..Split::default() };
        JobUpdate::Splits { stage, splits: files.iter().map(split).collect() }
    }

    fn report(orders: &Orders, job: u64, updates: &[JobUpdate]) -> Result<bool, Refusal> {
        let addition = orders.prepare(job, UID, updates)?;
        let is_order = addition.is_some();
        addition.into_iter().for_each(|addition| orders.add(job, addition));
        Ok(is_order)
    }

    #[test]
    fn reports_become_steps_and_files_of_other_mounts_are_left_out() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let orders = orders_in(dir.path());
        assert_eq!(report(&orders, 1, &[splits(0, &[0])]), Ok(false), "a job without an order");
        report(&orders, 1, &[JobUpdate::InOrder, JobUpdate::Files(vec![file("pfs", 7)])]).unwrap();
        let more = JobUpdate::Files(vec![file("other", 8), file("pfs", 9)]);
        let addition = orders.prepare(1, UID, &[more, splits(0, &[2, 1, 0, 5])]).unwrap().unwrap();
        let parts = |task: usize| match &addition.steps[task] {
            OrderStep::Task((0, number), parts) if *number as usize == task => {
                parts.iter().map(|part| part.file).collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!([0, 1, 2, 3].map(parts), [vec![(0, 9)], vec![], vec![(0, 7)], vec![]]);
        orders.add(1, addition);
        // Tasks are numbered over all reports of their stage.
        let next = orders.prepare(1, UID, &[splits(0, &[0])]).unwrap().unwrap();
        assert!(matches!(next.steps[0], OrderStep::Task((0, 4), _)), "{next:?}");
    }

    #[test]
    fn a_user_has_a_share_of_the_capacity_for_orders_and_gets_it_back() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let orders = orders_in(dir.path());
        let begin = [JobUpdate::InOrder, JobUpdate::Files(vec![file("pfs", 7)])];
        report(&orders, 1, &begin).unwrap();
        // 64 MiB / 16 / 320 bytes.
        let epoch = splits(0, &[0; 10_000]);
        report(&orders, 1, std::slice::from_ref(&epoch)).unwrap();
        // An epoch that is over takes nothing.
        report(&orders, 1, &[JobUpdate::StageEnded { stage: 0 }]).unwrap();
        assert_eq!(orders.cache.budget.class_bytes(Class::Clients), FILE_BYTES);
        report(&orders, 1, std::slice::from_ref(&epoch)).unwrap();
        let words = report(&orders, 1, std::slice::from_ref(&epoch)).unwrap_err().to_string();
        assert!(words.contains("bytes of announced orders of one user"), "{words}");
        assert!(words.contains("announce fewer epochs at a time"), "{words}");
        orders.end(1);
        assert_eq!(orders.cache.budget.class_bytes(Class::Clients), 0);
        report(&orders, 2, &begin).unwrap();
        report(&orders, 2, &[epoch]).unwrap();
    }

    #[test]
    fn a_void_order_is_refused_in_words_until_its_job_ends() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let orders = orders_in(dir.path());
        report(&orders, 1, &[JobUpdate::InOrder]).unwrap();
        orders.drop_void(1);
        let words = orders.check(1).unwrap_err().to_string();
        assert!(words.contains("reads in another order"), "{words}");
        orders.end(1);
        assert_eq!(orders.check(1), Ok(()));
    }
}
