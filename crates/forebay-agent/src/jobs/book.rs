//! Analytics jobs of local programs: what they have told, kept so that it can be told again.
//!
//! The coordinator remembers nothing over its death, so each agent keeps the jobs of its own
//! clients, as long as their connections live, and tells them from the beginning whenever it has
//! joined (again). What is told twice changes nothing there. Kept is only what a coordinator that
//! has just come needs: of stages that have ended nothing, of slots the last. The book is bounded
//! in jobs and bytes, and what it takes is counted in the agent's budget.

use forebay_store::Reservation;
use forebay_wire::cluster::ToCoordinator;
use forebay_wire::{JobUpdate, Refusal};
use std::collections::BTreeMap;

/// Jobs of one agent at a time.
const JOBS_MAX: usize = 64;

/// What one job may tell, as it is in memory: a hundred thousand files of a hundred bytes, and as
/// many splits.
const JOB_BYTES_MAX: u64 = 64 << 20;

/// Bytes of layouts that are kept of one job. Further ones are told once; a coordinator that comes
/// later knows less.
const LAYOUT_BYTES_MAX: u64 = 32 << 20;

/// A kept update may also be in a message that repeats it to a new coordinator, and in a
/// coordinator in this process.
const COPIES: u64 = 3;

/// A new update is also in the message that sends it, even after its stage has ended.
pub const NEW_COPIES: u64 = COPIES + 1;

/// All jobs of one user may take this share of the capacity, copies included: one in eight. The
/// operator is not bound by it.
const USER_SHARE: u64 = 8;

/// The jobs of all users may take this share: one in four.
const ALL_SHARE: u64 = 4;

/// Bytes of updates in one message to the coordinator, as they are in memory.
const MESSAGE_BYTES: u64 = 4 << 20;

/// The jobs of local clients, by connection.
#[derive(Debug, Default)]
pub struct JobBook {
    jobs: BTreeMap<u64, Kept>,
    /// Bytes of each user's updates that the coordinator has not been sent yet.
    unsent: BTreeMap<u32, u64>,
}

/// Whose a job is, and how much the jobs of one user and of all may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    uid: u32,
    user_bytes: u64,
    all_bytes: u64,
}

impl Bounds {
    /// Whose job it is.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Those of user `uid`, as shares of a capacity in bytes.
    pub fn of(uid: u32, is_operator: bool, capacity: u64) -> Self {
        let all_bytes = capacity / ALL_SHARE;
        let user_bytes = if is_operator { all_bytes } else { capacity / USER_SHARE };
        Bounds { uid, user_bytes, all_bytes }
    }
}

#[derive(Debug, Default)]
struct Kept {
    uid: u32,
    /// With the memory that each takes.
    updates: Vec<(JobUpdate, u64)>,
    bytes: u64,
    /// Of those, bytes of layouts.
    layout_bytes: u64,
    room: Option<Reservation>,
}

impl JobBook {
    /// Whether job `job` may tell as much: looked at before room is made for it.
    ///
    /// # Errors
    /// Too many jobs, too much told, or not begun by [`JobUpdate::Begin`].
    pub fn may_tell(&self, job: u64, updates: &[JobUpdate], bounds: Bounds) -> Result<(), Refusal> {
        let begins = matches!(updates.first(), Some(JobUpdate::Begin { .. }));
        if begins == self.jobs.contains_key(&job) {
            return Err(Refusal::Invalid("a job begins once, and first of all".into()));
        }
        if begins && self.jobs.len() >= JOBS_MAX {
            return Err(Refusal::TooMany("analytics jobs at this node".into()));
        }
        let told = updates.iter().filter(|u| !is_layouts(u)).map(|u| u.held_bytes()).sum::<u64>();
        if self.jobs.get(&job).map_or(0, |kept| kept.bytes - kept.layout_bytes) + told > JOB_BYTES_MAX {
            return Err(Refusal::TooMany("files and splits in one analytics job".into()));
        }
        let more = held_bytes(updates) * NEW_COPIES;
        let mut all = more + self.unsent.values().sum::<u64>();
        let mut own = more + self.unsent.get(&bounds.uid).copied().unwrap_or(0);
        for kept in self.jobs.values() {
            all += kept.bytes * COPIES;
            own += if kept.uid == bounds.uid { kept.bytes * COPIES } else { 0 };
        }
        if own > bounds.user_bytes || all > bounds.all_bytes {
            let whose = if all > bounds.all_bytes { "all users" } else { "this user" };
            return Err(Refusal::TooMany(format!(
                "files and splits in the analytics jobs of {whose} for this capacity"
            )));
        }
        Ok(())
    }

    /// Adds what job `job` reports; `room` is its memory. Returns the part of it that the message
    /// to the coordinator takes until it has been sent.
    ///
    /// # Errors
    /// As [`JobBook::may_tell`].
    pub fn tell(
        &mut self,
        job: u64,
        updates: &[JobUpdate],
        bounds: Bounds,
        mut room: Reservation,
    ) -> Result<Reservation, Refusal> {
        self.may_tell(job, updates, bounds)?;
        let message = room.split(held_bytes(updates).min(room.bytes()));
        let kept = self.jobs.entry(job).or_default();
        kept.uid = bounds.uid;
        match &mut kept.room {
            Some(kept) => kept.merge(room),
            none => *none = Some(room),
        }
        for update in updates {
            kept.take(update);
        }
        kept.give_back();
        Ok(message)
    }

    /// So many bytes of user `uid` wait to be sent to the coordinator.
    pub fn queue(&mut self, uid: u32, bytes: u64) {
        *self.unsent.entry(uid).or_default() += bytes;
    }

    /// So many of them wait no longer.
    pub fn unqueue(&mut self, uid: u32, bytes: u64) {
        if let Some(unsent) = self.unsent.get_mut(&uid) {
            *unsent = unsent.saturating_sub(bytes);
            if *unsent == 0 {
                self.unsent.remove(&uid);
            }
        }
    }

    /// The job has ended; tells whether there was one.
    pub fn end(&mut self, job: u64) -> bool {
        self.jobs.remove(&job).is_some()
    }

    /// All of it from the beginning, as messages to a coordinator that knows nothing.
    pub fn tell_again(&self) -> Vec<ToCoordinator> {
        let mut messages = Vec::new();
        for (&job, kept) in &self.jobs {
            let mut updates = Vec::new();
            let mut bytes = 0u64;
            for (update, len) in &kept.updates {
                if bytes + len > MESSAGE_BYTES && !updates.is_empty() {
                    messages.push(ToCoordinator::Job { job, updates: std::mem::take(&mut updates) });
                    bytes = 0;
                }
                updates.push(update.clone());
                bytes += len;
            }
            messages.push(ToCoordinator::Job { job, updates });
        }
        messages
    }
}

impl Kept {
    fn take(&mut self, update: &JobUpdate) {
        match update {
            JobUpdate::Slots(_) => self.forget(|u| matches!(u, JobUpdate::Slots(_))),
            JobUpdate::StageEnded { stage } => self.forget(|u| u.stage() == Some(*stage)),
            _ => {}
        }
        if matches!(update, JobUpdate::StageEnded { .. }) {
            return;
        }
        let len = update.held_bytes();
        if is_layouts(update) {
            if self.layout_bytes + len > LAYOUT_BYTES_MAX {
                return;
            }
            self.layout_bytes += len;
        }
        self.updates.push((update.clone(), len));
        self.bytes += len;
    }

    fn forget(&mut self, needless: impl Fn(&JobUpdate) -> bool) {
        self.updates.retain(|(update, _)| !needless(update));
        self.bytes = self.updates.iter().map(|(_, len)| *len).sum();
    }

    /// Returns what was paid for updates that are not kept any more.
    fn give_back(&mut self) {
        if let Some(room) = &mut self.room {
            let over = room.bytes().saturating_sub(self.bytes * COPIES);
            room.shrink(over);
        }
    }
}

/// Memory of one copy of them.
pub fn held_bytes(updates: &[JobUpdate]) -> u64 {
    updates.iter().map(JobUpdate::held_bytes).sum()
}

/// Whether the agent has added it.
pub fn is_layouts(update: &JobUpdate) -> bool {
    matches!(update, JobUpdate::Layouts { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_store::{Budget, Class};
    use forebay_wire::{FileLayout, Split};

    const FREE: Bounds = Bounds { uid: 0, user_bytes: u64::MAX, all_bytes: u64::MAX };

    fn begin() -> JobUpdate {
        JobUpdate::Begin { name: "app".into(), planner: String::new() }
    }

    fn splits(stage: u32) -> JobUpdate {
        JobUpdate::Splits { stage, splits: vec![Split::default(); 10] }
    }

    #[test]
    fn what_is_told_again_is_what_a_new_coordinator_needs() {
        let budget = Budget::new(1 << 20);
        let room = |bytes| budget.reserve_existing(Class::Clients, bytes);
        let mut book = JobBook::default();
        assert!(book.tell(1, &[splits(0)], FREE, room(100)).is_err(), "not begun");
        book.tell(1, &[begin(), JobUpdate::Slots(vec![("a".into(), 1)]), splits(0)], FREE, room(100))
            .unwrap();
        assert!(book.tell(1, &[begin()], FREE, room(10)).is_err(), "begun twice");
        let slots = JobUpdate::Slots(vec![("a".into(), 2)]);
        book.tell(1, &[JobUpdate::StageEnded { stage: 0 }, slots.clone(), splits(1)], FREE, room(100))
            .unwrap();
        let again = book.tell_again();
        assert_eq!(again, [ToCoordinator::Job { job: 1, updates: vec![begin(), slots, splits(1)] }]);
        assert!(budget.class_bytes(Class::Clients) <= 200, "what is not kept is not paid for");
        assert!(book.end(1) && !book.end(1));
        assert_eq!((book.tell_again(), budget.class_bytes(Class::Clients)), (vec![], 0));
    }

    #[test]
    fn the_book_is_bounded() {
        let budget = Budget::new(1 << 30);
        let room = || budget.reserve_existing(Class::Clients, 0);
        let mut book = JobBook::default();
        for job in 0..JOBS_MAX as u64 {
            book.tell(job, &[begin()], FREE, room()).unwrap();
        }
        assert!(matches!(book.tell(1000, &[begin()], FREE, room()), Err(Refusal::TooMany(_))));
        let long = JobUpdate::Splits { stage: 0, splits: vec![Split::default(); 150_000] };
        let told: Vec<_> = (0..5).map(|_| book.tell(0, std::slice::from_ref(&long), FREE, room())).collect();
        assert!(told[0].is_ok() && matches!(told[4], Err(Refusal::TooMany(_))));
    }

    #[test]
    fn layouts_are_kept_behind_their_files_and_never_fail_a_job() {
        let budget = Budget::new(1 << 30);
        let room = |bytes| budget.reserve_existing(Class::Clients, bytes);
        let files = JobUpdate::Files(Vec::new());
        let layouts = |stripes: usize| JobUpdate::Layouts {
            servers: vec!["pfs:s".into()],
            files: vec![FileLayout { stripe_bytes: 1, servers: vec![0; stripes] }],
        };
        let told = [begin(), files.clone(), layouts(1), splits(0), files, layouts(2), splits(1)];
        let mut book = JobBook::default();
        book.tell(1, &told, FREE, room(10_000)).unwrap();
        assert_eq!(book.tell_again(), [ToCoordinator::Job { job: 1, updates: told.to_vec() }]);
        book.tell(1, &[JobUpdate::StageEnded { stage: 0 }], FREE, room(0)).unwrap();
        let again = [&told[..3], &told[4..]].concat();
        assert_eq!(book.tell_again(), [ToCoordinator::Job { job: 1, updates: again }]);

        let (each, times) = (2 << 20, 10);
        assert!(4 * each as u64 * times > JOB_BYTES_MAX.max(LAYOUT_BYTES_MAX), "more than all bounds");
        for _ in 0..times {
            book.tell(1, &[layouts(each)], FREE, room(COPIES * 5 * each as u64)).unwrap();
        }
        book.tell(1, &[splits(2)], FREE, room(10_000)).unwrap();
        let kept = &book.jobs[&1];
        assert!(kept.layout_bytes > LAYOUT_BYTES_MAX / 2 && kept.layout_bytes <= LAYOUT_BYTES_MAX);
        assert_eq!(kept.bytes, kept.updates.iter().map(|(_, len)| *len).sum::<u64>());
        assert!(kept.updates.iter().any(|(update, _)| *update == splits(2)));
        assert_eq!(
            budget.class_bytes(Class::Clients),
            COPIES * kept.bytes,
            "what is not kept is not paid for"
        );
    }
}
