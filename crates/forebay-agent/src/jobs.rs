//! Analytics jobs of local programs: what they have told, kept so that it can be told again.
//!
//! The coordinator remembers nothing over its death, so each agent keeps the jobs of its own clients, as long as their
//! connections live, and tells them from the beginning whenever it has joined (again). What is told twice changes nothing
//! there. Kept is only what a coordinator that has just come needs: of stages that have ended nothing, of slots the last.
//! The book is bounded in jobs and bytes, and what it takes is counted in the agent's budget.

use crate::agent::Shared;
use crate::connection::{Answer, Connection, reply};
use forebay_store::{Class, Reservation};
use forebay_wire::cluster::ToCoordinator;
use forebay_wire::{JobUpdate, Refusal, Reply, frame};
use std::collections::BTreeMap;
use std::time::Duration;

/// Jobs of one agent at a time.
const JOBS_MAX: usize = 64;

/// What one job may tell: a hundred thousand files of a hundred bytes, and as many splits.
const JOB_BYTES_MAX: u64 = 16 << 20;

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
        let told: u64 = updates.iter().map(|u| encoded_len(u) as u64).sum();
        if self.jobs.get(&job).map_or(0, |kept| kept.bytes) + told > JOB_BYTES_MAX {
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
        if !matches!(update, JobUpdate::StageEnded { .. }) {
            let len = encoded_len(update);
            self.updates.push((update.clone(), len));
            self.bytes += len as u64;
        }
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
    // What came in a packet always fits a frame.
    frame::encode(update).map_or(0, |bytes| bytes.len())
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
    let bytes: u64 = updates.iter().map(|u| encoded_len(u) as u64).sum();
    let Some(room) = shared.cache.reserve(Class::Clients, bytes * COPIES, &shared.counters) else {
        return reply(Reply::Refused(Refusal::NoRoom));
    };
    match shared.link.tell_job(connection.id, updates, room) {
        Ok(()) => {
            connection.tells = true;
            reply(Reply::Done)
        }
        Err(refusal) => reply(Reply::Refused(refusal)),
    }
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
    use forebay_wire::Split;

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
}
