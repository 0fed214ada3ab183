//! Analytics jobs of local programs: what they have told, kept so that it can be told again.
//!
//! The coordinator remembers nothing over its death, so each agent keeps the jobs of its own clients, as long as their
//! connections live, and tells them from the beginning whenever it has joined (again). What is told twice changes nothing
//! there. Kept is only what a coordinator that has just come needs: of stages that have ended nothing, of slots the last.
//! The book is bounded in jobs and bytes, and what it takes is counted in the agent's budget.
//!
//! Where files lie is added to what a job tells ([`crate::layouts`]), and is never a reason to refuse it.

use crate::agent::Shared;
use crate::connection::{Answer, Connection, reply};
use crate::layouts;
use forebay_store::{Class, Reservation};
use forebay_wire::cluster::ToCoordinator;
use forebay_wire::{JobUpdate, Refusal, Reply, frame};
use std::collections::BTreeMap;
use std::time::Duration;

/// Jobs of one agent at a time.
const JOBS_MAX: usize = 64;

/// What one job may tell: a hundred thousand files of a hundred bytes, and as many splits.
const JOB_BYTES_MAX: u64 = 16 << 20;

/// Bytes of layouts that are kept of one job. Further ones are told once; a coordinator that comes later knows less.
const LAYOUT_BYTES_MAX: u64 = 16 << 20;

/// What is kept may be on its way to the coordinator as well.
const COPIES: u64 = 2;

/// Bytes of updates in one message to the coordinator.
const MESSAGE_BYTES: usize = 1 << 20;

/// Longest wait for the coordinator's list of jobs.
const ASK_TIME: Duration = Duration::from_secs(5);

/// The jobs of local clients, by connection.
#[derive(Debug, Default)]
pub struct JobBook {
    jobs: BTreeMap<u64, Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// With their encoded lengths.
    updates: Vec<(JobUpdate, usize)>,
    bytes: u64,
    /// Of those, bytes of layouts.
    layout_bytes: u64,
    room: Option<Reservation>,
}

impl JobBook {
    /// Takes in what job `job` tells; `room` pays for it.
    ///
    /// # Errors
    /// Too many jobs, too much told, or not begun by [`JobUpdate::Begin`].
    pub fn tell(&mut self, job: u64, updates: &[JobUpdate], room: Reservation) -> Result<(), Refusal> {
        let begins = matches!(updates.first(), Some(JobUpdate::Begin { .. }));
        if begins == self.jobs.contains_key(&job) {
            return Err(Refusal::Invalid("a job begins once, and first of all".into()));
        }
        if begins && self.jobs.len() >= JOBS_MAX {
            return Err(Refusal::TooMany("analytics jobs at this node".into()));
        }
        let told = updates.iter().filter(|u| !is_layouts(u)).map(|u| encoded_len(u) as u64).sum::<u64>();
        if self.jobs.get(&job).map_or(0, |kept| kept.bytes - kept.layout_bytes) + told > JOB_BYTES_MAX {
            return Err(Refusal::TooMany("files and splits in one analytics job".into()));
        }
        let kept = self.jobs.entry(job).or_default();
        match &mut kept.room {
            Some(kept) => kept.merge(room),
            none => *none = Some(room),
        }
        for update in updates {
            kept.take(update);
        }
        kept.give_back();
        Ok(())
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
            let mut bytes = 0;
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
            JobUpdate::StageEnded { stage } => self.forget(|u| stage_of(u) == Some(*stage)),
            _ => {}
        }
        if matches!(update, JobUpdate::StageEnded { .. }) {
            return;
        }
        let len = encoded_len(update);
        if is_layouts(update) {
            if self.layout_bytes + len as u64 > LAYOUT_BYTES_MAX {
                return;
            }
            self.layout_bytes += len as u64;
        }
        self.updates.push((update.clone(), len));
        self.bytes += len as u64;
    }

    fn forget(&mut self, needless: impl Fn(&JobUpdate) -> bool) {
        self.updates.retain(|(update, _)| !needless(update));
        self.bytes = self.updates.iter().map(|(_, len)| *len as u64).sum();
    }

    /// Returns what was paid for updates that are not kept any more.
    fn give_back(&mut self) {
        if let Some(room) = &mut self.room {
            let over = room.bytes().saturating_sub(self.bytes * COPIES);
            room.shrink(over);
        }
    }
}

fn encoded_len(update: &JobUpdate) -> usize {
    // What came in a packet always fits a frame, and so do layouts of its files.
    frame::encode(update).map_or(0, |bytes| bytes.len())
}

fn is_layouts(update: &JobUpdate) -> bool {
    matches!(update, JobUpdate::Layouts { .. })
}

fn stage_of(update: &JobUpdate) -> Option<u32> {
    match update {
        JobUpdate::Splits { stage, .. }
        | JobUpdate::StageReady { stage }
        | JobUpdate::TaskStarted { stage, .. }
        | JobUpdate::TaskEnded { stage, .. }
        | JobUpdate::StageEnded { stage } => Some(*stage),
        _ => None,
    }
}

/// A client's job tells something.
pub fn tell(connection: &mut Connection, updates: Vec<JobUpdate>) -> Answer {
    let shared = &connection.shared;
    if updates.is_empty() {
        return reply(Reply::Done);
    }
    if updates.contains(&JobUpdate::End) {
        shared.link.end_job(connection.id);
        connection.tells = false;
        return reply(Reply::Done);
    }
    if updates.iter().any(is_layouts) {
        let why = "layouts are the agent's to tell".into();
        return reply(Reply::Refused(Refusal::Invalid(why)));
    }
    let mut updates = layouts::with_layouts(shared, updates);
    let mut room = room_for(shared, &updates);
    if room.is_none() {
        updates.retain(|u| !is_layouts(u));
        room = room_for(shared, &updates);
    }
    let Some(room) = room else { return reply(Reply::Refused(Refusal::NoRoom)) };
    match shared.link.tell_job(connection.id, updates, room) {
        Ok(()) => {
            connection.tells = true;
            reply(Reply::Done)
        }
        Err(refusal) => reply(Reply::Refused(refusal)),
    }
}

fn room_for(shared: &Shared, updates: &[JobUpdate]) -> Option<Reservation> {
    let bytes: u64 = updates.iter().map(|u| encoded_len(u) as u64).sum();
    shared.cache.reserve(Class::Clients, bytes * COPIES, &shared.counters)
}

/// The jobs that the coordinator knows.
pub fn list(shared: &Shared) -> Answer {
    match shared.link.ask_jobs(ASK_TIME) {
        Ok(jobs) => reply(Reply::Jobs(jobs)),
        Err(e) => reply(Reply::Failed { errno: libc::EAGAIN, message: format!("cannot ask for jobs: {e}") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_store::Budget;
    use forebay_wire::{FileLayout, Split};

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
        assert!(book.tell(1, &[splits(0)], room(100)).is_err(), "not begun");
        book.tell(1, &[begin(), JobUpdate::Slots(vec![("a".into(), 1)]), splits(0)], room(100)).unwrap();
        assert!(book.tell(1, &[begin()], room(10)).is_err(), "begun twice");
        let slots = JobUpdate::Slots(vec![("a".into(), 2)]);
        book.tell(1, &[JobUpdate::StageEnded { stage: 0 }, slots.clone(), splits(1)], room(100)).unwrap();
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
            book.tell(job, &[begin()], room()).unwrap();
        }
        assert!(matches!(book.tell(1000, &[begin()], room()), Err(Refusal::TooMany(_))));
        let long = JobUpdate::Splits { stage: 0, splits: vec![Split::default(); 2 << 20] };
        let told: Vec<_> = (0..5).map(|_| book.tell(0, std::slice::from_ref(&long), room())).collect();
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
        book.tell(1, &told, room(10_000)).unwrap();
        assert_eq!(book.tell_again(), [ToCoordinator::Job { job: 1, updates: told.to_vec() }]);
        book.tell(1, &[JobUpdate::StageEnded { stage: 0 }], room(0)).unwrap();
        let again = [&told[..3], &told[4..]].concat();
        assert_eq!(book.tell_again(), [ToCoordinator::Job { job: 1, updates: again }]);

        let (each, times) = (2 << 20, 10);
        assert!(each as u64 * times > JOB_BYTES_MAX.max(LAYOUT_BYTES_MAX), "more than all bounds");
        for _ in 0..times {
            book.tell(1, &[layouts(each)], room(COPIES * 3 * each as u64)).unwrap();
        }
        book.tell(1, &[splits(2)], room(10_000)).unwrap();
        let kept = &book.jobs[&1];
        assert!(kept.layout_bytes > LAYOUT_BYTES_MAX / 2 && kept.layout_bytes <= LAYOUT_BYTES_MAX);
        assert_eq!(kept.bytes, kept.updates.iter().map(|(_, len)| *len as u64).sum::<u64>());
        assert!(kept.updates.iter().any(|(update, _)| *update == splits(2)));
        assert_eq!(
            budget.class_bytes(Class::Clients),
            COPIES * kept.bytes,
            "what is not kept is not paid for"
        );
    }
}
