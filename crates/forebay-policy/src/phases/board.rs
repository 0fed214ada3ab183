//! The board: see the module above.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use super::allowance::Allowance;
use super::doubt::Doubts;
use super::job::{Job, Phase};
use super::{BYTES_MAX, Declared, Expected, JobKey, Refused};
use crate::machine::{Machine, Nanos};

/// However many phases are behind, the brake rests for a tenth of the time once it has been on for
/// 30 s. What it stops continues then.
const BRAKE_PARTS: u64 = 9;
const BRAKE_BURST_NS: u64 = 30_000_000_000;

/// Phases of unknown length of one user count for 5 minutes in all, and for a tenth of the time
/// after that: new names of jobs are free.
const UNKNOWN_PARTS: u64 = 1;
const UNKNOWN_BURST_NS: u64 = 300_000_000_000;

/// Limit on the users for which it is recorded how long such phases have counted.
const USERS_MAX: usize = 1024;

/// How often the coordinator is notified of a phase's progress.
const REPORT_NS: u64 = 200_000_000;

/// A phase whose bytes have moved within this time has not come to a stop.
const STILL_MOVES_NS: u64 = 2_000_000_000;

/// Multiple of the usual cut-off time at which it is cut off even if it reports progress.
const MOVES_FACTOR: u64 = 10;

/// A phase of unknown length is cut off after this long: 10 minutes.
const UNKNOWN_NS: u64 = 600_000_000_000;

/// Limits on the HPC jobs of one user, and of all, on this node.
const USER_JOBS_MAX: usize = 64;
const JOBS_MAX: usize = 512;

/// Limit on the nodes whose phases are kept.
const NODES_MAX: usize = 4096;

/// Limit on the phases of one other node that are kept.
const REMOTE_PHASES_MAX: usize = 512;

/// A phase beside which agents read more than one part in this many of its own bytes was disturbed,
/// if only by pages that were under way when it began.
const BESIDE_PARTS: u64 = 64;

/// Bytes with the same effect, for a phase whose bytes are unknown.
const BESIDE_BYTES: u64 = 16 << 20;

/// What a board is built from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Multiple of the time to its deadline after which a phase is cut off; at least 1.
    pub cut_off_factor: f64,
    /// How long news of this node's phases is valid on other nodes, in ns; it is sent again after a
    /// third of it.
    pub lease_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config { cut_off_factor: 3.0, lease_ns: 1_000_000_000 }
    }
}

/// What the board receives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A program opens a job, after [`Board::may_open`] has allowed it.
    Opens(JobKey, Declared),
    /// A phase begins.
    Begins {
        /// Its job.
        job: JobKey,
        /// Its bytes; 0: unknown.
        bytes: u64,
        /// Its deadline in ns from now; 0: as the job allows.
        deadline_ns: u64,
    },
    /// A phase has begun, without a deadline, and is noticed now.
    Begun {
        /// Its job.
        job: JobKey,
        /// When it began.
        at: Nanos,
        /// Its bytes; 0: unknown.
        bytes: u64,
    },
    /// Bytes of the phase have been moved.
    Progress {
        /// Its job.
        job: JobKey,
        /// Bytes since the phase began.
        bytes: u64,
    },
    /// The phase is over.
    Ends(JobKey),
    /// The phase was over at this time; it is noticed now.
    Ended(JobKey, Nanos),
    /// The program has closed the job, or died.
    Closes(JobKey),
    /// Agents of the cluster have read more bytes from the file system.
    Beside {
        /// The additional bytes.
        bytes: u64,
    },
    /// Agents of the cluster have read from the file system until shortly before the phases began:
    /// what its clients have read ahead is on its way.
    UnderWay,
    /// Another node reports its phases.
    Heard {
        /// Its name.
        node: String,
        /// How long the report is valid, in ns.
        lease_ns: u64,
        /// All phases of the node.
        phases: Vec<HpcPhase>,
    },
}

/// A phase under way, as the agent of its node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HpcPhase {
    /// Name of its job.
    pub name: String,
    /// User id of the job.
    pub user: u32,
    /// Whether it is behind: then all nodes stop fetches that no reader waits for.
    pub is_behind: bool,
    /// Bytes moved.
    pub done_bytes: u64,
    /// Bytes declared; 0: unknown.
    pub bytes: u64,
    /// Time in hand before the deadline, in ns; negative: it will be late. `None`: unknown.
    pub slack_ns: Option<i64>,
}

/// What an agent reports to the coordinator of an HPC job whose I/O prefetches must not disturb.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The job exists.
    Joins(Declared),
    /// Its next phases are expected.
    Expects {
        /// Time until the next begins, in ns.
        in_ns: u64,
        /// I/O time of a phase alone, in ns.
        io_ns: u64,
        /// Compute time between phases, in ns.
        compute_ns: u64,
        /// Number of phases that are expected.
        phases: u32,
    },
    /// An I/O phase begins.
    Begins {
        /// Bytes, 0 if unknown.
        bytes: u64,
        /// Its I/O time alone, in ns; 0: unknown.
        alone_ns: u64,
        /// Time to its deadline, in ns; 0: unknown.
        deadline_ns: u64,
        /// Whether it was derived from bursts of I/O: then its end is noticed late.
        #[serde(default)]
        is_observed: bool,
    },
    /// By its progress, the I/O time alone that the phase still needs.
    Left {
        /// In ns.
        left_ns: u64,
    },
    /// The phase is over.
    Ends,
    /// The job is gone. The coordinator also assumes this when the node leaves.
    Leaves,
}

/// What the board decides.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Prefetches, loads and read-ahead on this node stop, or may continue.
    Brake(bool),
    /// Report to the coordinator. Decision logs keep the earlier name.
    #[serde(rename = "tell")]
    Report(JobKey, Report),
    /// Notify the other nodes of what is on this board.
    Spread,
    /// A phase never ended: it no longer counts.
    CutOff {
        /// Name of the job.
        name: String,
        /// Its user.
        user: u32,
        /// How long the phase has lasted, in ns.
        lasted_ns: u64,
    },
}

/// The status of a job, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobStatus {
    /// Its number on this node; 0 for one of another node.
    pub key: JobKey,
    /// Its name.
    pub name: String,
    /// Its user.
    pub user: u32,
    /// The node that reports it; empty for this one.
    pub node: String,
    /// The phase under way.
    pub phase: Option<HpcPhase>,
    /// How long it has lasted, in ns.
    pub lasted_ns: u64,
    /// Phases that have ended, ended in time, ended late, and were cut off.
    pub phases: [u32; 4],
    /// I/O time of a phase alone, as declared, in ns; 0: to be learnt.
    pub io_ns: u64,
    /// Bytes per second alone, as learnt; 0: unknown.
    pub alone_bytes_per_s: u64,
    /// Time to the next phase that is expected, in ns.
    pub next_in_ns: Option<u64>,
}

struct Remote {
    until: Nanos,
    phases: Vec<HpcPhase>,
}

/// See the module.
pub struct Board {
    config: Config,
    now: Nanos,
    jobs: BTreeMap<JobKey, Job>,
    remote: BTreeMap<String, Remote>,
    doubts: Doubts,
    is_braking: bool,
    brake: Allowance,
    /// By user: how long phases of unknown length count.
    unknown: BTreeMap<u32, Allowance>,
    spread_at: Option<Nanos>,
}

impl Board {
    /// Creates a board without jobs.
    pub fn new(config: Config) -> Self {
        Board {
            config,
            now: Nanos(0),
            jobs: BTreeMap::new(),
            remote: BTreeMap::new(),
            doubts: Doubts::default(),
            is_braking: false,
            brake: Allowance::new(BRAKE_PARTS, BRAKE_BURST_NS),
            unknown: BTreeMap::new(),
            spread_at: None,
        }
    }

    /// Checks whether a program may open this job.
    ///
    /// # Errors
    /// If the declaration is impossible, or there are too many jobs.
    pub fn may_open(&self, declared: &Declared) -> Result<(), Refused> {
        declared.check()?;
        let of_user = self.jobs.values().filter(|job| job.declared.user == declared.user).count();
        if of_user >= USER_JOBS_MAX {
            return Err(Refused::TooMany(
                "this user has 64 HPC jobs open on this node, the most there may be",
            ));
        }
        if self.jobs.len() >= JOBS_MAX {
            return Err(Refused::TooMany("512 HPC jobs are open on this node, the most there may be"));
        }
        Ok(())
    }

    /// Checks whether a phase of the job may begin.
    ///
    /// # Errors
    /// If there is no such job, or a phase of it is under way.
    pub fn may_begin(&self, job: JobKey) -> Result<(), Refused> {
        match self.jobs.get(&job) {
            None => Err(Refused::NoJob),
            Some(job) if job.phase.as_ref().is_some_and(|phase| !phase.is_over) => Err(Refused::InPhase),
            Some(_) => Ok(()),
        }
    }

    /// Returns the time alone, in ns (0: unknown), of a phase of the job that begins now, with
    /// `bytes` (0: unknown), to be over within `deadline_ns` (0: as the job allows).
    pub fn alone_ns(&self, job: JobKey, bytes: u64, deadline_ns: u64) -> u64 {
        let Some(job) = self.jobs.get(&job) else { return 0 };
        let bytes = if bytes == 0 { job.last_bytes } else { bytes };
        let learnt = job.line(self.now, bytes, deadline_ns).alone_ns;
        learnt.or(job.expected.map(|expected| expected.io_ns)).unwrap_or(0)
    }

    /// Returns whether phases of the job wait for those of others: one of its programs on this node
    /// requests it, and its phases count.
    pub fn shares(&self, job: JobKey) -> bool {
        let Some(own) = self.jobs.get(&job).map(|job| &job.declared) else { return false };
        let asks = |job: &Job| job.declared.shares && job.declared.is_same_job(own.user, &own.name);
        self.jobs.values().any(asks) && !self.doubts.holds(own.user, &own.name)
    }

    /// Returns whether prefetches stop.
    pub fn is_braking(&self) -> bool {
        self.is_braking
    }

    /// Returns whether the job is in a phase that was not cut off.
    pub fn is_in_phase(&self, job: JobKey) -> bool {
        self.jobs.get(&job).and_then(|job| job.phase.as_ref()).is_some_and(|phase| !phase.is_over)
    }

    /// Returns whether any phase is under way, here or on another node.
    pub fn has_phases(&self) -> bool {
        self.has_own_phases() || self.remote.values().any(|r| r.until > self.now && !r.phases.is_empty())
    }

    /// Returns the user of all phases under way, if they are all of one user.
    pub fn sole_user(&self) -> Option<u32> {
        let remote = self.remote.values().filter(|r| r.until > self.now);
        let remote = remote.flat_map(|r| r.phases.iter().map(|phase| phase.user));
        let mut users = self.live().map(|(job, _)| job.declared.user).chain(remote);
        let first = users.next()?;
        users.all(|user| user == first).then_some(first)
    }

    fn has_own_phases(&self) -> bool {
        self.live().next().is_some()
    }

    fn live(&self) -> impl Iterator<Item = (&Job, &Phase)> {
        let with_phase = self.jobs.values().filter_map(|job| Some((job, job.phase.as_ref()?)));
        with_phase.filter(|(_, phase)| phase.is_live())
    }

    /// Returns the phases of this node, as others see them.
    pub fn own_phases(&self) -> Vec<HpcPhase> {
        self.live().map(|(job, phase)| self.seen(job, phase)).collect()
    }

    fn seen(&self, job: &Job, phase: &Phase) -> HpcPhase {
        HpcPhase {
            name: job.declared.name.clone(),
            user: job.declared.user,
            is_behind: phase.is_behind,
            done_bytes: phase.line.done,
            bytes: phase.line.bytes,
            slack_ns: phase.line.slack_ns(self.now),
        }
    }

    /// Returns the reports that a coordinator without any state needs.
    pub fn full_report(&self, now: Nanos) -> Vec<(JobKey, Report)> {
        let mut reported = Vec::new();
        for (key, job) in &self.jobs {
            reported.push((*key, joins(&job.declared)));
            reported.extend(job.expected.map(|expected| (*key, expects(now, expected))));
            let Some(phase) = job.phase.as_ref().filter(|phase| phase.is_live()) else { continue };
            let line = &phase.line;
            let deadline_ns = line.deadline.map_or(0, |at| at.saturating_since(now).max(1));
            let alone_ns = line.left_ns(now).or(line.alone_ns).unwrap_or(0);
            let (bytes, is_observed) = (line.bytes, !phase.is_declared);
            reported.push((*key, Report::Begins { bytes, alone_ns, deadline_ns, is_observed }));
        }
        reported
    }

    fn opens(&mut self, key: JobKey, declared: Declared, out: &mut Vec<Action>) {
        out.push(Action::Report(key, joins(&declared)));
        self.jobs.insert(key, Job::new(declared));
    }

    /// Begins a phase. `deadline_ns` is `None` for one that was observed and not declared.
    fn begins(
        &mut self,
        key: JobKey,
        at: Nanos,
        (bytes, deadline_ns): (u64, Option<u64>),
        out: &mut Vec<Action>,
    ) {
        if self.may_begin(key).is_err() {
            return;
        }
        let is_disturbed = self.disturb(key);
        let now = self.now;
        let Some(job) = self.jobs.get(&key) else { return };
        let line = job.line(at, bytes, deadline_ns.unwrap_or(0));
        let phase_is_declared = deadline_ns.is_some();
        let user = job.declared.user;
        let counts =
            !self.doubts.holds(user, &job.declared.name) && (!line.is_unknown() || self.may_be_unknown(user));
        let is_behind = counts && line.is_behind(now, false);
        let phase = Phase {
            line,
            is_behind,
            counts,
            is_declared: phase_is_declared,
            is_over: false,
            is_disturbed,
            beside_bytes: 0,
            reported: now,
        };
        let Some(job) = self.jobs.get_mut(&key) else { return };
        job.phase = Some(phase);
        (job.expected, job.overdue_at) = (None, None);
        if counts {
            let deadline_ns = line.deadline.map_or(0, |at| at.saturating_since(now));
            let (bytes, alone_ns) = (line.bytes, line.alone_ns.unwrap_or(0));
            let is_observed = !phase_is_declared;
            let reported = Report::Begins { bytes, alone_ns, deadline_ns, is_observed };
            out.push(Action::Report(key, reported));
            self.spread_at = Some(now);
        }
    }

    /// Returns whether a phase of unknown length of this user counts if it begins now.
    fn may_be_unknown(&mut self, user: u32) -> bool {
        let now = self.now;
        if self.unknown.len() >= USERS_MAX {
            self.unknown.retain(|_, allowance| !allowance.is_forgotten(now));
        }
        if self.unknown.len() >= USERS_MAX && !self.unknown.contains_key(&user) {
            return false;
        }
        let fresh = || Allowance::new(UNKNOWN_PARTS, UNKNOWN_BURST_NS);
        self.unknown.entry(user).or_insert_with(fresh).grant(now, true)
    }

    /// Stops counting phases of unknown length where those of their user have counted for too long.
    fn bound_unknown(&mut self, out: &mut Vec<Action>) {
        for (user, allowance) in &mut self.unknown {
            let of_user = self.jobs.iter_mut().filter(|(_, job)| job.declared.user == *user);
            let phases = of_user.filter_map(|(key, job)| Some((*key, job.phase.as_mut()?)));
            let mut unknown: Vec<_> =
                phases.filter(|(_, phase)| phase.is_live() && phase.line.is_unknown()).collect();
            if !allowance.grant(self.now, !unknown.is_empty()) {
                for (key, phase) in &mut unknown {
                    (phase.counts, phase.is_behind) = (false, false);
                    out.push(Action::Report(*key, Report::Ends));
                    self.spread_at = Some(self.now);
                }
            }
        }
    }

    /// Marks phases of other jobs than that of `key` as disturbed by it. Returns whether there are
    /// any, including on other nodes.
    fn disturb(&mut self, key: JobKey) -> bool {
        let Some(own) = self.jobs.get(&key).map(|job| job.declared.clone()) else { return false };
        let mut others = 0;
        for job in self.jobs.values_mut().filter(|job| !job.declared.is_same_job(own.user, &own.name)) {
            if let Some(phase) = job.phase.as_mut() {
                phase.is_disturbed = true;
                others += 1;
            }
        }
        let remote = self.remote.values().flat_map(|remote| &remote.phases);
        others + remote.filter(|phase| !own.is_same_job(phase.user, &phase.name)).count() > 0
    }

    fn progress(&mut self, key: JobKey, bytes: u64, out: &mut Vec<Action>) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let Some(phase) = job.phase.as_mut().filter(|phase| !phase.is_over) else { return };
        job.reports = true;
        phase.line.progress(now, bytes.min(BYTES_MAX));
        if now.saturating_since(phase.reported) < REPORT_NS || !phase.counts {
            return;
        }
        phase.reported = now;
        if let Some(left_ns) = phase.line.left_ns(now) {
            out.push(Action::Report(key, Report::Left { left_ns }));
        }
    }

    fn ends(&mut self, key: JobKey, at: Nanos, out: &mut Vec<Action>) {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let Some(phase) = job.phase.take() else { return };
        job.ended += 1;
        let line = phase.line;
        let lasted_ns = at.saturating_since(line.began);
        let bytes = if line.done > 0 { line.done } else { line.bytes };
        let enough = if bytes > 0 { bytes / BESIDE_PARTS } else { BESIDE_BYTES };
        job.last_bytes = bytes;
        job.alone.observe(bytes, lasted_ns, !phase.is_disturbed && phase.beside_bytes <= enough);
        if phase.is_over {
            return;
        }
        self.doubts.forget(job.declared.user, &job.declared.name);
        match line.deadline {
            Some(deadline) if at > deadline => job.late += 1,
            _ => job.in_time += 1,
        }
        if phase.counts {
            out.push(Action::Report(key, Report::Ends));
            self.spread_at = Some(now);
        }
        job.expected = job.predict_after(line.began, at, bytes);
        out.extend(job.expected.map(|expected| Action::Report(key, expects(now, expected))));
    }

    /// Predicts again the phases that were predicted and have not come.
    fn expect_again(&mut self, out: &mut Vec<Action>) {
        let now = self.now;
        for (key, job) in &mut self.jobs {
            if job.phase.is_none() && job.overdue_at.is_some_and(|at| at <= now) {
                let expected = job.predict_again(now);
                job.expected = Some(expected).filter(|expected| expected.phases > 0);
                out.push(Action::Report(*key, expects(now, expected)));
            }
        }
    }

    fn closes(&mut self, key: JobKey, out: &mut Vec<Action>) {
        let Some(job) = self.jobs.remove(&key) else { return };
        if let Some(phase) = job.phase.filter(Phase::is_live) {
            self.spread_at = Some(self.now);
            if phase.is_declared && phase.is_behind {
                self.doubts.add(job.declared.user, &job.declared.name);
            }
        }
        out.push(Action::Report(key, Report::Leaves));
    }

    fn heard(&mut self, node: String, lease_ns: u64, mut phases: Vec<HpcPhase>) {
        phases.truncate(REMOTE_PHASES_MAX);
        for job in self.jobs.values_mut() {
            let is_other = |phase: &HpcPhase| !job.declared.is_same_job(phase.user, &phase.name);
            if let Some(own) = job.phase.as_mut().filter(|_| phases.iter().any(is_other)) {
                own.is_disturbed = true;
            }
        }
        if self.remote.len() >= NODES_MAX && !self.remote.contains_key(&node) {
            return;
        }
        let until = self.now + lease_ns.min(10 * self.config.lease_ns);
        self.remote.insert(node, Remote { until, phases });
    }

    /// Returns when a phase is cut off.
    fn cut_off_at(&self, phase: &Phase) -> Nanos {
        let line = &phase.line;
        let lasts_ns = line.deadline.map_or(UNKNOWN_NS, |at| at.saturating_since(line.began));
        let most_ns = (lasts_ns as f64 * self.config.cut_off_factor.max(1.0)) as u64;
        let moves_until = if line.done > 0 { line.reported + STILL_MOVES_NS } else { Nanos(0) };
        (line.began + most_ns).max(moves_until).min(line.began + most_ns.saturating_mul(MOVES_FACTOR))
    }

    fn cut_off(&mut self, out: &mut Vec<Action>) {
        let due = self.jobs.iter().filter_map(|(key, job)| {
            let phase = job.phase.as_ref().filter(|phase| !phase.is_over)?;
            (self.cut_off_at(phase) <= self.now).then_some(*key)
        });
        let due: Vec<JobKey> = due.collect();
        for key in due {
            let Some(job) = self.jobs.get_mut(&key) else { continue };
            let Some(phase) = job.phase.as_mut() else { continue };
            if phase.counts {
                out.push(Action::Report(key, Report::Ends));
            }
            phase.is_over = true;
            phase.is_behind = false;
            self.doubts.add(job.declared.user, &job.declared.name);
            job.cut_off += 1;
            let lasted_ns = self.now.saturating_since(phase.line.began);
            out.push(Action::CutOff { name: job.declared.name.clone(), user: job.declared.user, lasted_ns });
            self.spread_at = Some(self.now);
        }
    }

    /// Updates every phase, and reports what has changed.
    fn settle(&mut self, out: &mut Vec<Action>) {
        let now = self.now;
        self.cut_off(out);
        self.bound_unknown(out);
        self.expect_again(out);
        self.remote.retain(|_, remote| remote.until > now);
        let mut has_changed = false;
        for phase in self.jobs.values_mut().filter_map(|job| job.phase.as_mut()).filter(|p| p.is_live()) {
            let is_behind = phase.line.is_behind(now, phase.is_behind);
            has_changed |= is_behind != phase.is_behind;
            phase.is_behind = is_behind;
        }
        let own = self.live().any(|(_, phase)| phase.is_behind);
        let others = self.remote.values().flat_map(|r| &r.phases).any(|phase| phase.is_behind);
        let brakes = self.brake.grant(now, own || others);
        if self.is_braking != brakes {
            self.is_braking = brakes;
            out.push(Action::Brake(self.is_braking));
        }
        if has_changed || self.spread_at.is_some_and(|at| at <= now) {
            out.push(Action::Spread);
            self.spread_at = self.has_own_phases().then(|| now + self.config.lease_ns / 3);
        }
    }

    fn status_of(&self, key: JobKey, job: &Job) -> JobStatus {
        let phase = job.phase.as_ref().filter(|phase| !phase.is_over);
        JobStatus {
            key,
            name: job.declared.name.clone(),
            user: job.declared.user,
            node: String::new(),
            phase: phase.map(|phase| self.seen(job, phase)),
            lasted_ns: phase.map_or(0, |phase| self.now.saturating_since(phase.line.began)),
            phases: [job.ended, job.in_time, job.late, job.cut_off],
            io_ns: job.declared.io_ns,
            alone_bytes_per_s: job.alone.rate_bytes_per_s(),
            next_in_ns: job.expected.map(|e| e.next_at.saturating_since(self.now)),
        }
    }

    /// Returns the jobs of this node, and the phases of others.
    pub fn snapshot(&self) -> Vec<JobStatus> {
        let own = self.jobs.iter().map(|(key, job)| self.status_of(*key, job));
        let others = self.remote.iter().flat_map(|(node, remote)| {
            remote.phases.iter().map(|phase| JobStatus {
                name: phase.name.clone(),
                user: phase.user,
                node: node.clone(),
                phase: Some(phase.clone()),
                ..JobStatus::default()
            })
        });
        own.chain(others).collect()
    }
}

/// Omits the phases of an earlier run: the coordinator gets what is learnt from them.
fn joins(declared: &Declared) -> Report {
    Report::Joins(Declared { earlier: Vec::new(), ..declared.clone() })
}

fn expects(now: Nanos, expected: Expected) -> Report {
    let Expected { next_at, io_ns, compute_ns, phases } = expected;
    Report::Expects { in_ns: next_at.saturating_since(now), io_ns, compute_ns, phases }
}

impl Machine for Board {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Nanos, event: Event, out: &mut Vec<Action>) {
        self.now = self.now.max(now);
        match event {
            Event::Opens(job, declared) => self.opens(job, declared, out),
            Event::Begins { job, bytes, deadline_ns } => {
                self.begins(job, self.now, (bytes, Some(deadline_ns)), out)
            }
            Event::Begun { job, at, bytes } => self.begins(job, at.min(self.now), (bytes, None), out),
            Event::Progress { job, bytes } => self.progress(job, bytes, out),
            Event::Ends(job) => self.ends(job, self.now, out),
            Event::Ended(job, at) => self.ends(job, at.min(self.now), out),
            Event::Closes(job) => self.closes(job, out),
            Event::Beside { bytes } => {
                for phase in self.jobs.values_mut().filter_map(|job| job.phase.as_mut()) {
                    phase.beside_bytes = phase.beside_bytes.saturating_add(bytes);
                }
            }
            Event::UnderWay => {
                self.jobs
                    .values_mut()
                    .filter_map(|job| job.phase.as_mut())
                    .for_each(|p| p.is_disturbed = true);
            }
            Event::Heard { node, lease_ns, phases } => self.heard(node, lease_ns, phases),
        }
        self.settle(out);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let phases = self.jobs.values().filter_map(|job| job.phase.as_ref()).filter(|p| !p.is_over);
        let own = phases.flat_map(|phase| {
            let behind = phase.line.behind_at(self.now).filter(|_| phase.counts && !phase.is_behind);
            [Some(self.cut_off_at(phase)), behind].into_iter().flatten()
        });
        let remote = self.remote.values().map(|remote| remote.until);
        let overdue = self.jobs.values().filter(|job| job.phase.is_none()).filter_map(|job| job.overdue_at);
        let unknown = self.unknown.values().filter_map(Allowance::changes_at);
        let allowed = unknown.chain(self.brake.changes_at());
        own.chain(remote).chain(overdue).chain(allowed).chain(self.spread_at).min()
    }

    fn on_deadline(&mut self, now: Nanos, out: &mut Vec<Action>) {
        self.now = self.now.max(now);
        self.settle(out);
    }
}

impl core::fmt::Debug for Board {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Board").field("jobs", &self.jobs.len()).field("braking", &self.is_braking).finish()
    }
}
