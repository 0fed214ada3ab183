//! How much memory the reports of jobs take, and whose job loses its plan when it is too much.
//!
//! Two things are bounded for all jobs together: the bytes of their reports, and their number. At
//! either bound the job that goes is one of the user who holds most, and never one of the user who
//! happens to report next: otherwise one user's reports would cost another user its plan. A user is
//! a numeric user id of the cluster, as the agents pass it. The job that goes loses only its
//! prefetch; its tasks read as before.

use forebay_policy::stage::event::JobKey;
use forebay_wire::JobUpdate;
use std::collections::BTreeMap;

/// Live jobs at a time.
pub const JOBS_MAX: usize = 1024;

/// Bytes of memory that the reports of a job take, by stage, and of what belongs to none.
#[derive(Debug, Default)]
pub struct Reported {
    by_stage: BTreeMap<Option<u32>, u64>,
    slots_bytes: u64,
}

impl Reported {
    /// Adds `update`, which the job reports.
    pub fn add(&mut self, update: &JobUpdate) {
        match update {
            // Not kept, or kept in place of an earlier report.
            JobUpdate::TaskEnded { .. } => {}
            JobUpdate::Slots(_) => self.slots_bytes = update.held_bytes(),
            JobUpdate::StageEnded { stage } => drop(self.by_stage.remove(&Some(*stage))),
            _ => *self.by_stage.entry(update.stage()).or_insert(0) += update.held_bytes(),
        }
    }

    /// All of it.
    pub fn bytes(&self) -> u64 {
        self.slots_bytes + self.by_stage.values().sum::<u64>()
    }
}

/// A live job: whose it is, and what its reports take.
pub type Held = (JobKey, u32, u64);

/// The largest job of the user whose jobs take most memory, and how much these take; `None` without
/// jobs. Of equals, the later job and the greater user id.
pub fn largest_of_the_largest_user(jobs: &[Held]) -> Option<(JobKey, u64)> {
    let mut users = BTreeMap::<u32, u64>::new();
    for (_, uid, bytes) in jobs {
        *users.entry(*uid).or_default() += bytes;
    }
    let (bytes, uid) = users.into_iter().map(|(uid, bytes)| (bytes, uid)).max()?;
    let its = jobs.iter().filter(|job| job.1 == uid);
    its.map(|(job, _, bytes)| (*bytes, *job)).max().map(|(_, job)| (job, bytes))
}

/// Whether a further job of user `uid` may begin when as many are live as may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// There is one.
    Free,
    /// There is one if this job goes: the latest of the user with most jobs.
    Of(JobKey),
    /// No other user has more jobs than this one would have.
    Taken,
}

/// See [`Place`].
pub fn place_for(uid: u32, jobs: &[Held], jobs_max: usize) -> Place {
    if jobs.len() < jobs_max {
        return Place::Free;
    }
    let count = |uid| jobs.iter().filter(|job| job.1 == uid).count();
    let most = jobs.iter().map(|job| (count(job.1), job.1)).max();
    match most.filter(|(most, _)| *most > count(uid) + 1) {
        Some((_, its)) => {
            let latest = jobs.iter().filter(|job| job.1 == its).map(|job| job.0).max();
            latest.map_or(Place::Taken, Place::Of)
        }
        None => Place::Taken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_wire::Split;

    #[test]
    fn the_largest_job_of_the_user_with_most_goes_and_not_the_largest_job() {
        assert_eq!(largest_of_the_largest_user(&[]), None);
        // User 7 has one job of 50; user 8 has three that take 60.
        let jobs = [(1, 7, 50), (2, 8, 10), (3, 8, 30), (4, 8, 20)];
        assert_eq!(largest_of_the_largest_user(&jobs), Some((3, 60)));
        assert_eq!(largest_of_the_largest_user(&jobs[..3]), Some((1, 50)));
        assert_eq!(largest_of_the_largest_user(&[(1, 7, 5), (2, 7, 5)]), Some((2, 10)), "the later one");
    }

    #[test]
    fn a_full_coordinator_takes_a_place_from_the_user_with_most_jobs_until_all_have_as_many() {
        let jobs = [(1, 7, 0), (2, 7, 0), (3, 7, 0), (4, 8, 0)];
        assert_eq!(place_for(9, &jobs, 5), Place::Free);
        assert_eq!(place_for(9, &jobs, 4), Place::Of(3));
        assert_eq!(place_for(8, &jobs, 4), Place::Of(3));
        assert_eq!(place_for(7, &jobs, 4), Place::Taken, "its own jobs are not displaced");
        let even = [(1, 7, 0), (2, 7, 0), (4, 8, 0), (5, 8, 0)];
        assert_eq!(place_for(8, &even, 4), Place::Taken);
        assert_eq!(place_for(9, &even, 4), Place::Of(5));
        assert_eq!(place_for(9, &[(1, 7, 0)], 1), Place::Taken, "one each is even");
    }

    #[test]
    fn a_report_takes_what_is_kept_of_it() {
        let splits = |stage| JobUpdate::Splits { stage, splits: vec![Split::default(); 100] };
        let mut reported = Reported::default();
        reported.add(&splits(1));
        let one = reported.bytes();
        assert!(one > 100 * size_of::<Split>() as u64);
        reported.add(&splits(2));
        assert_eq!(reported.bytes(), 2 * one);
        reported.add(&JobUpdate::StageEnded { stage: 1 });
        assert_eq!(reported.bytes(), one);
        let slots = JobUpdate::Slots(vec![("a".into(), 1)]);
        reported.add(&slots);
        reported.add(&slots);
        assert_eq!(reported.bytes(), one + slots.held_bytes(), "slots replace slots");
    }
}
