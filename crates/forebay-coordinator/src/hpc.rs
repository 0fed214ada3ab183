//! HPC jobs over several nodes: programs of one user that declare the same name are one job, whose
//! phase lasts from the first begin to the last end.

use forebay_wire::cluster::ToAgent;
use forebay_wire::{Declared, Report};
use std::collections::BTreeMap;

/// HPC jobs at a time; planners hear nothing of later ones.
const JOBS_MAX: usize = 1024;

/// Programs of all jobs at a time.
const MEMBERS_MAX: usize = 16_384;

/// A message to the agent of a node.
pub type ToNode = (String, ToAgent);

/// The node whose program it is, and its number there.
pub type Owner = (String, u64);

/// The jobs.
#[derive(Debug, Default)]
pub struct HpcJobs {
    /// Jobs by user and name.
    jobs: BTreeMap<(u32, String), Job>,
    owners: BTreeMap<Owner, (u32, String)>,
    next: u32,
}

#[derive(Debug)]
struct Job {
    id: u32,
    /// A program of it shares.
    shares: bool,
    /// A program of it has declared a phase: what is observed of others no longer changes anything.
    declares: bool,
    members: BTreeMap<Owner, Member>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Member {
    in_phase: bool,
    is_observed: bool,
    left_ns: u64,
}

impl Job {
    fn in_phase(&self) -> impl Iterator<Item = &Member> {
        self.members.values().filter(|m| m.in_phase && !(self.declares && m.is_observed))
    }

    fn is_in_phase(&self) -> bool {
        self.in_phase().next().is_some()
    }

    fn left_ns(&self) -> u64 {
        self.in_phase().map(|m| m.left_ns).max().unwrap_or(0)
    }
}

impl HpcJobs {
    /// The name of job `id`.
    pub fn name(&self, id: u32) -> Option<&str> {
        self.jobs.iter().find(|(_, job)| job.id == id).map(|((_, name), _)| name.as_str())
    }

    /// Whether programs of job `id` declare its phases.
    pub fn declares(&self, id: u32) -> bool {
        self.jobs.values().any(|job| job.id == id && job.declares)
    }

    /// The job of a program, and whether it shares.
    pub fn of(&self, owner: &Owner) -> Option<(u32, bool)> {
        let job = self.jobs.get(self.owners.get(owner)?)?;
        Some((job.id, job.shares))
    }

    /// Whether job `id` is in a phase; `None` if there is no such job.
    pub fn is_in_phase(&self, id: u32) -> Option<bool> {
        self.jobs.values().find(|job| job.id == id).map(Job::is_in_phase)
    }

    /// Jobs, and those of them whose phase is under way.
    pub fn counts(&self) -> (usize, usize) {
        (self.jobs.len(), self.jobs.values().filter(|job| job.is_in_phase()).count())
    }

    /// The programs of a node.
    pub fn of_node(&self, node: &str) -> Vec<Owner> {
        let node = || node.to_owned();
        self.owners.range((node(), 0)..=(node(), u64::MAX)).map(|(owner, _)| owner.clone()).collect()
    }

    /// I/O time alone that the phase of job `id` has left, if a program of it is in one.
    pub fn left_ns(&self, id: u32) -> Option<u64> {
        let job = self.jobs.values().find(|job| job.id == id)?;
        job.is_in_phase().then(|| job.left_ns())
    }

    /// Takes in a program's report; returns what that means for its job, by the job's number.
    pub fn report(&mut self, owner: &Owner, update: Report) -> Vec<(u32, Report)> {
        if let Report::Joins(job) = update {
            return self.joins(owner, job);
        }
        let Some(key) = self.owners.get(owner) else { return Vec::new() };
        let Some(job) = self.jobs.get_mut(key) else { return Vec::new() };
        let (id, was_in_phase) = (job.id, job.is_in_phase());
        let Some(member) = job.members.get_mut(owner) else { return Vec::new() };
        let means = match update {
            Report::Begins { alone_ns, is_observed, .. } => {
                *member = Member { in_phase: true, is_observed, left_ns: alone_ns };
                job.declares |= !is_observed;
                (!was_in_phase && job.is_in_phase()).then_some(update)
            }
            Report::Left { left_ns } => {
                member.left_ns = left_ns;
                was_in_phase.then(|| Report::Left { left_ns: job.left_ns() })
            }
            Report::Ends => {
                member.in_phase = false;
                (was_in_phase && !job.is_in_phase()).then_some(update)
            }
            Report::Expects { .. } => (!was_in_phase).then_some(update),
            Report::Leaves => return self.leaves(owner),
            Report::Joins(_) => None,
        };
        means.map(|update| (id, update)).into_iter().collect()
    }

    fn joins(&mut self, owner: &Owner, job: Declared) -> Vec<(u32, Report)> {
        let key = (job.user, job.name.clone());
        let is_new = !self.jobs.contains_key(&key);
        let is_full = is_new && self.jobs.len() >= JOBS_MAX || self.owners.len() >= MEMBERS_MAX;
        if is_full || self.owners.contains_key(owner) {
            return Vec::new();
        }
        self.owners.insert(owner.clone(), key.clone());
        let next = &mut self.next;
        let of_name = self.jobs.entry(key).or_insert_with(|| {
            *next = next.wrapping_add(1);
            Job { id: *next, shares: false, declares: false, members: BTreeMap::new() }
        });
        of_name.shares |= job.shares;
        of_name.members.insert(owner.clone(), Member::default());
        if is_new { vec![(of_name.id, Report::Joins(job))] } else { Vec::new() }
    }

    fn leaves(&mut self, owner: &Owner) -> Vec<(u32, Report)> {
        let Some(key) = self.owners.remove(owner) else { return Vec::new() };
        let Some(job) = self.jobs.get_mut(&key) else { return Vec::new() };
        let (id, was_in_phase) = (job.id, job.is_in_phase());
        job.members.remove(owner);
        let ends = was_in_phase && !job.is_in_phase();
        let mut means: Vec<_> = ends.then_some((id, Report::Ends)).into_iter().collect();
        if job.members.is_empty() {
            self.jobs.remove(&key);
            means.push((id, Report::Leaves));
        }
        means
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(node: &str) -> Owner {
        (node.into(), 1)
    }

    fn job(name: &str, user: u32) -> Report {
        Report::Joins(Declared { name: name.into(), user, ..Declared::default() })
    }

    const BEGINS: Report = Report::Begins { bytes: 1, alone_ns: 9, deadline_ns: 0, is_observed: false };

    #[test]
    fn what_is_observed_of_a_job_that_declares_its_phases_changes_nothing() {
        let mut jobs = HpcJobs::default();
        let observed = || Report::Begins { bytes: 0, alone_ns: 0, deadline_ns: 0, is_observed: true };
        jobs.report(&owner("a"), job("sim", 7));
        jobs.report(&owner("b"), job("sim", 7));
        assert_eq!(jobs.report(&owner("b"), observed()), [(1, observed())], "nothing is declared yet");
        assert!(jobs.report(&owner("a"), BEGINS).is_empty());
        assert_eq!(jobs.report(&owner("a"), Report::Ends), [(1, Report::Ends)]);
        assert!(jobs.report(&owner("b"), Report::Ends).is_empty());
        assert!(jobs.report(&owner("b"), observed()).is_empty() && jobs.is_in_phase(1) == Some(false));
        assert_eq!(jobs.report(&owner("a"), BEGINS), [(1, BEGINS)]);
    }

    #[test]
    fn a_phase_of_a_job_on_two_nodes_lasts_from_the_first_begin_to_the_last_end() {
        let mut jobs = HpcJobs::default();
        assert_eq!(jobs.report(&owner("a"), job("sim", 7)), [(1, job("sim", 7))]);
        assert!(jobs.report(&owner("b"), job("sim", 7)).is_empty());
        assert_eq!(jobs.report(&owner("c"), job("sim", 8)).len(), 1, "of another user");
        assert_eq!(jobs.report(&owner("a"), BEGINS), [(1, BEGINS)]);
        assert!(jobs.report(&owner("b"), BEGINS).is_empty());
        let left = |left_ns| Report::Left { left_ns };
        assert_eq!(jobs.report(&owner("a"), left(2)), [(1, left(9))], "the slowest counts");
        assert!(jobs.report(&owner("a"), Report::Ends).is_empty());
        assert_eq!(jobs.report(&owner("b"), left(3)), [(1, left(3))]);
        assert_eq!(jobs.report(&owner("b"), Report::Leaves), [(1, Report::Ends)]);
        assert_eq!(jobs.report(&owner("a"), Report::Leaves), [(1, Report::Leaves)]);
        assert!(jobs.report(&owner("a"), BEGINS).is_empty(), "it has left");
        assert_eq!((jobs.name(1), jobs.name(2)), (None, Some("sim")));
    }
}
