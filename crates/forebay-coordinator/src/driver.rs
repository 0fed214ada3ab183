//! Drives the stage machine with the real clock: the wire's messages become its events, and its
//! actions messages to agents.
//!
//! Nothing is decided here. The machine knows jobs and files by number; this keeps what a number
//! stands for: the node and program that a job belongs to, and the path and version of each file.

use crate::hpc::HpcJobs;
use crate::note::{HpcNote, Note};
use crate::plan_log::Log;
use crate::reports::{self, Held, JOBS_MAX, Place, Reported};
use crate::steps::Steps;
use crate::translate;
use forebay_policy::machine::{Machine, Nanos};
use forebay_policy::stage::event::{self, Action, Event, JobKey, Priority, Progress};
use forebay_policy::stage::{Config, Stages};
use forebay_trace::log_files::Recorder;
use forebay_wire::cluster::{PrefetchRequest, RequestProgress, ToAgent};
use forebay_wire::hpc::{PlanEntry, PlanLog};
use forebay_wire::{ClusterView, FileRef, JobName, JobStatus, JobUpdate, Report, Sample};
use std::collections::BTreeMap;

/// See [`Driver::capacity`].
const CAPACITY_PARTS: u64 = 32;

pub use crate::hpc::ToNode;

/// The node whose program a job is, and the job's number there.
pub type Owner = (String, u64);

/// The node of a task that asks, and the number of its question there.
pub type Question = (String, u64);

/// See the module.
#[derive(Debug)]
pub struct Driver {
    machine: Stages,
    recorder: Recorder,
    keys: BTreeMap<Owner, JobKey>,
    jobs: BTreeMap<JobKey, Job>,
    next_key: JobKey,
    /// Jobs by name and user; of several with one name, the first.
    named: BTreeMap<(String, u32), JobKey>,
    /// Tasks, by their stages and partitions, that wait for the machine's answer.
    asking: BTreeMap<(JobKey, u32, u32), Vec<Question>>,
    /// Limit on the memory that the reports of all jobs take.
    reports_bytes_max: u64,
    hpc: HpcJobs,
    steps: Steps,
    log: Log,
    /// Bytes of each node's tier, as last reported to the machine.
    capacities: BTreeMap<String, u64>,
    /// The members, and whether they were notified that all requests rest.
    notified_to_rest: BTreeMap<String, bool>,
    /// The sample recorded last.
    recorded: Sample,
    out: Vec<ToNode>,
}

/// What the machine does not know of a job.
#[derive(Debug, Default)]
struct Job {
    /// The user whose program it is.
    uid: u32,
    name: String,
    files: Vec<FileRef>,
    reported: Reported,
}

impl Driver {
    /// A driver without jobs, whose reports may take `reports_bytes_max` of memory. `recorder` has
    /// recorded `config` already.
    pub fn new(config: Config, recorder: Recorder, reports_bytes_max: u64, steps: Steps) -> Self {
        Driver {
            steps,
            machine: Stages::new(config),
            recorder,
            keys: BTreeMap::new(),
            jobs: BTreeMap::new(),
            next_key: 1,
            named: BTreeMap::new(),
            asking: BTreeMap::new(),
            reports_bytes_max,
            hpc: HpcJobs::default(),
            log: Log::default(),
            capacities: BTreeMap::new(),
            notified_to_rest: BTreeMap::new(),
            recorded: Sample::default(),
            out: Vec::new(),
        }
    }

    /// The messages to agents since the last call.
    pub fn take_messages(&mut self) -> Vec<ToNode> {
        self.notify_rest();
        self.log_pace_violations();
        self.out.append(&mut self.steps.take_messages());
        std::mem::take(&mut self.out)
    }

    /// Notifies each node that has last heard otherwise whether all requests rest: one without
    /// requests as well, since it may fetch pages for those of others.
    fn notify_rest(&mut self) {
        let on = self.machine.do_requests_rest();
        for (node, notified) in self.notified_to_rest.iter_mut().filter(|(_, notified)| **notified != on) {
            *notified = on;
            self.out.push((node.clone(), ToAgent::Pause { on }));
        }
    }

    /// Logs the nodes that have exceeded the pace of their requests.
    fn log_pace_violations(&mut self) {
        for (node, bytes) in self.machine.take_pace_violations() {
            tracing::warn!(
                node,
                bytes,
                "the node prefetches although its requests are paused, or beyond their rate: it gets no new requests for 60 s; restart its agent if this is repeated"
            );
        }
    }

    /// Makes the nodes of `view` the members.
    pub fn set_view(&mut self, now: Nanos, view: &ClusterView) {
        let notified = |name: &String| self.notified_to_rest.get(name).copied().unwrap_or(false);
        self.notified_to_rest =
            view.nodes.iter().map(|node| (node.name.clone(), notified(&node.name))).collect();
        let nodes = translate::nodes_of(view);
        self.drive(now, Event::Members { nodes });
    }

    /// Notes that an agent has joined, perhaps again. It has no requests and reports its jobs
    /// again.
    pub fn node_came(&mut self, now: Nanos, node: &str) {
        self.forget_jobs_of(now, node);
        if let Some(notified) = self.notified_to_rest.get_mut(node) {
            *notified = false;
        }
        self.drive(now, Event::NodeCame { node: node.to_owned() });
    }

    /// Notes that an agent has gone, and its jobs with it.
    pub fn node_went(&mut self, now: Nanos, node: &str) {
        self.forget_jobs_of(now, node);
        self.drive(now, Event::NodeWent { node: node.to_owned() });
    }

    /// Notes that the tier of a node has `bytes` bytes. The machine hears of changes that matter to
    /// plans: by more than one part in [`CAPACITY_PARTS`].
    pub fn capacity(&mut self, now: Nanos, node: &str, bytes: u64) {
        let reported = self.capacities.get(node).copied();
        if reported.is_some_and(|reported| reported.abs_diff(bytes) <= reported / CAPACITY_PARTS) {
            return;
        }
        self.capacities.insert(node.to_owned(), bytes);
        self.drive(now, Event::Capacity { node: node.to_owned(), bytes });
    }

    fn forget_jobs_of(&mut self, now: Nanos, node: &str) {
        let its: Vec<Owner> = self.keys.keys().filter(|owner| owner.0 == node).cloned().collect();
        its.iter().for_each(|owner| self.forget_job(now, owner));
        let its = self.hpc.of_node(node);
        its.iter().for_each(|owner| self.hpc_reports(now, owner, Report::Leaves));
        self.capacities.remove(node);
        self.asking.retain(|_, questions| {
            questions.retain(|(of, _)| of != node);
            !questions.is_empty()
        });
        self.log.forget_requests(node);
        // The node's next connection must not get what was meant for its last.
        self.out.retain(|(to, _)| to != node);
    }

    fn forget_job(&mut self, now: Nanos, owner: &Owner) {
        if let Some(job) = self.keys.remove(owner) {
            self.drive(now, Event::JobGone { job });
            self.log.job_ended(job);
            self.remove(job);
        }
        self.assert_keys();
    }

    /// Removes a job that the machine no longer knows: it has answered all that have asked.
    fn remove(&mut self, job: JobKey) {
        self.jobs.remove(&job);
        self.named.retain(|_, of| *of != job);
        assert!(self.asking.range((job, 0, 0)..(job + 1, 0, 0)).next().is_none(), "a task asks of no job");
    }

    /// Checks that every job has one key, by which its owner's reports find it.
    fn assert_keys(&self) {
        assert_eq!(self.keys.len(), self.jobs.len(), "jobs and their keys differ in number");
    }

    /// Takes in what a job of user `uid` reports.
    pub fn job_reports(&mut self, now: Nanos, owner: &Owner, uid: u32, updates: Vec<JobUpdate>) {
        // One report may end a job and begin it again.
        let mut known = Vec::new();
        for update in updates {
            let begins = matches!(update, JobUpdate::Begin { .. });
            if begins && self.keys.contains_key(owner) {
                // It has begun, and has its name.
                continue;
            }
            let Some(job) = self.key_of(now, owner, uid, begins) else { break };
            let Some(of_job) = self.jobs.get_mut(&job) else { break };
            of_job.reported.add(&update);
            if let JobUpdate::Begin { name, .. } = &update {
                of_job.name.clone_from(name);
                // Another job of that name keeps it: its tasks wait.
                self.named.entry((name.clone(), uid)).or_insert(job);
            }
            let ends = matches!(update, JobUpdate::End);
            known.extend(translate::job_update(update, &mut of_job.files));
            if ends {
                let updates = std::mem::take(&mut known);
                self.drive(now, Event::Job { job, updates });
                self.log.job_ended(job);
                self.keys.remove(owner);
                self.remove(job);
            }
        }
        if let Some(&job) = self.keys.get(owner).filter(|_| !known.is_empty()) {
            self.drive(now, Event::Job { job, updates: known });
        }
        self.assert_keys();
        self.bound_reports(now);
    }

    /// Takes in the question of a task of the job called `name`, preferably of user `uid`, whether
    /// it may read.
    pub fn task_asks(
        &mut self,
        now: Nanos,
        question: Question,
        (name, uid): (String, u32),
        (stage, partition): (u32, u32),
    ) {
        // Executors may run as another user than the driver, as those of a standalone cluster do.
        let of_others = || self.named.range((name.clone(), 0)..=(name.clone(), u32::MAX)).next();
        let job = self.named.get(&(name.clone(), uid)).or_else(|| of_others().map(|(_, job)| job));
        let Some(&job) = job else { return self.may_read(vec![question]) };
        let asking = self.asking.entry((job, stage, partition)).or_default();
        // One question of a node: its agent knows the last.
        asking.retain(|(node, _)| *node != question.0);
        asking.push(question);
        self.drive(now, Event::Job { job, updates: vec![event::JobUpdate::TaskAsks { stage, partition }] });
    }

    fn may_read(&mut self, questions: Vec<Question>) {
        self.out.extend(questions.into_iter().map(|(node, ask)| (node, ToAgent::MayRead { ask })));
    }

    fn key_of(&mut self, now: Nanos, owner: &Owner, uid: u32, begins: bool) -> Option<JobKey> {
        if let Some(key) = self.keys.get(owner) {
            return Some(*key);
        }
        if !begins || !self.has_place_for(now, uid) {
            return None;
        }
        let key = self.next_key;
        self.next_key += 1;
        self.keys.insert(owner.clone(), key);
        self.jobs.insert(key, Job { uid, ..Job::default() });
        Some(key)
    }

    /// Whether a further job of the user is planned; another user's job may go for it.
    fn has_place_for(&mut self, now: Nanos, uid: u32) -> bool {
        if self.jobs.len() < JOBS_MAX {
            return true;
        }
        match reports::place_for(uid, &self.held(), JOBS_MAX) {
            Place::Free => true,
            Place::Taken => false,
            Place::Of(job) => {
                self.give_up(now, job, &format!("{JOBS_MAX} jobs run, most of them of this user"));
                true
            }
        }
    }

    fn held(&self) -> Vec<Held> {
        self.jobs.iter().map(|(key, job)| (*key, job.uid, job.reported.bytes())).collect()
    }

    /// Gives up jobs until the reports of the others stay within the limit.
    fn bound_reports(&mut self, now: Nanos) {
        let bytes = |driver: &Driver| driver.jobs.values().map(|job| job.reported.bytes()).sum::<u64>();
        while bytes(self) > self.reports_bytes_max
            && let Some((job, its_bytes)) = reports::largest_of_the_largest_user(&self.held())
        {
            let why = format!(
                "the reports of all jobs may take {} bytes (cluster.coordinator_reports), and those of this user take {its_bytes}",
                self.reports_bytes_max
            );
            self.give_up(now, job, &why);
        }
    }

    /// Stops planning a job. Its tasks read as before; what it reports from now on is dropped.
    fn give_up(&mut self, now: Nanos, job: JobKey, why: &str) {
        let uid = self.jobs.get(&job).map_or(0, |job| job.uid);
        let Some(owner) = self.keys.iter().find(|(_, key)| **key == job).map(|(owner, _)| owner.clone())
        else {
            return;
        };
        tracing::warn!(node = owner.0, uid, "a job is no longer planned: {why}");
        self.forget_job(now, &owner);
    }

    /// Takes in what a node reports of an HPC job.
    pub fn hpc_reports(&mut self, now: Nanos, owner: &Owner, update: Report) {
        let before = self.hpc.of(owner);
        let reported = update.clone();
        for (hpc, update) in self.hpc.report(owner, update) {
            let name = self.hpc.name(hpc).unwrap_or_default();
            self.log.hpc(now, hpc, name, &update);
            if self.recorder.is_on() {
                let note = HpcNote { hpc, name: name.to_owned(), update: update.clone() };
                self.recorder.note(now, &Note::Hpc(note));
            }
            self.drive(now, Event::Hpc { hpc, update: update.into() });
        }
        if let Some((id, true)) = self.hpc.of(owner).or(before) {
            self.step_reports(now, id, owner, &reported);
        }
    }

    /// Takes in `update`, which a program of job `id`, which shares, has reported.
    fn step_reports(&mut self, now: Nanos, id: u32, owner: &Owner, update: &Report) {
        let in_phase = self.hpc.is_in_phase(id);
        match update {
            Report::Joins(job) => {
                self.steps.joins(id, (&job.name, job.user), translate::period_ns(job));
                self.steps.changed(now, id, owner, in_phase.unwrap_or(false), 0);
            }
            Report::Leaves => self.steps.leaves(now, id, owner, in_phase),
            Report::Left { .. } => {
                if let Some(left_ns) = self.hpc.left_ns(id) {
                    self.steps.left(now, id, left_ns);
                }
            }
            Report::Begins { alone_ns, .. } => {
                self.steps.changed(now, id, owner, in_phase.unwrap_or(false), *alone_ns);
            }
            Report::Ends => self.steps.changed(now, id, owner, in_phase.unwrap_or(false), 0),
            Report::Expects { .. } => {}
        }
    }

    /// Takes in a program's question whether its job may write its step, which takes `alone_ns` (0:
    /// unknown). What is observed of a job that declares its phases is a part of them.
    pub fn asks_access(&mut self, now: Nanos, owner: &Owner, (alone_ns, is_observed): (u64, bool)) {
        match self.hpc.of(owner) {
            Some((id, true)) if !(is_observed && self.hpc.declares(id)) => {
                self.steps.asks(now, id, owner, alone_ns);
            }
            // Among them programs that are not known here, because there were too many.
            _ => self.out.push((owner.0.clone(), ToAgent::LetIn { hpc: owner.1 })),
        }
    }

    /// Notes where a program's job writes its next steps.
    pub fn writes_to(&mut self, owner: &Owner, servers: Vec<String>) {
        if let Some((id, true)) = self.hpc.of(owner) {
            self.steps.writes_to(id, owner, servers);
        }
    }

    /// Notes that a node lives, and with it the tokens of its programs.
    pub fn heartbeat(&mut self, now: Nanos, node: &str) {
        for owner in self.hpc.of_node(node) {
            if let Some((id, true)) = self.hpc.of(&owner) {
                self.steps.renew(now, id);
            }
        }
    }

    /// The steps of jobs that share.
    pub fn steps(&self) -> &Steps {
        &self.steps
    }

    /// Notes that the coordinator itself did not run.
    pub fn forgive(&mut self, now: Nanos) {
        self.steps.renew_all(now);
    }

    /// The plan log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// The HPC jobs.
    pub fn hpc(&self) -> &HpcJobs {
        &self.hpc
    }

    /// Bytes of memory that the reports of all jobs take.
    pub fn reports_bytes(&self) -> u64 {
        self.jobs.values().map(|job| job.reported.bytes()).sum()
    }

    /// Bytes of a node's tier, as last reported to the machine.
    pub fn capacity_of(&self, node: &str) -> Option<u64> {
        self.capacities.get(node).copied()
    }

    /// Writes what all members hold into the decision log, if that has changed: for people who look
    /// at a recorded run.
    pub fn record(&mut self, now: Nanos, sample: &Sample) {
        let is_same = Sample { at_ms: sample.at_ms, ..self.recorded } == *sample;
        if self.recorder.is_on() && !is_same {
            self.recorder.note(now, &Note::Sample(*sample));
            self.recorded = *sample;
        }
    }

    /// The latest `most` decisions of planners, and phases.
    pub fn plans(&self, most: usize) -> PlanLog {
        self.log.latest(most)
    }

    /// Takes in how far a request is.
    pub fn progress(&mut self, now: Nanos, node: &str, request: RequestProgress) {
        let progress = Progress {
            fetched_bytes: request.fetched_bytes,
            resident_bytes: request.resident_bytes,
            failed_bytes: request.failed_bytes,
            done: request.done,
        };
        self.log.progress(now, node, request.request, request.fetched_bytes, request.done);
        self.drive(now, Event::Request { request: request.request, node: node.to_owned(), progress });
    }

    /// Calls the machine if its deadline has come. Called after every batch of messages.
    pub fn tick(&mut self, now: Nanos) {
        if self.machine.next_deadline().is_some_and(|at| at <= now) {
            let mut actions = Vec::new();
            let cause = self.recorder.deadline(now);
            self.machine.on_deadline(now, &mut actions);
            self.recorder.actions(now, cause, &actions);
            self.send(now, actions);
        }
        self.steps.tick(now);
        self.recorder.flush();
        if self.recorder.is_over()
            && let Some(config) = self.machine.restart()
            && let Err(e) = self.recorder.begin(config)
        {
            tracing::warn!(error = %e, "cannot begin the next file of the decision log");
        }
    }

    /// When [`Driver::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.machine.next_deadline().into_iter().chain(self.steps.next_deadline()).min()
    }

    fn drive(&mut self, now: Nanos, event: Event) {
        let mut actions = Vec::new();
        let cause = self.recorder.event(now, &event);
        self.machine.handle(now, event, &mut actions);
        self.recorder.actions(now, cause, &actions);
        self.send(now, actions);
    }

    /// Writes a decision into the plan log.
    fn note(&mut self, now: Nanos, action: &Action) {
        let Action::Decided { planner, job, stage, task, decision } = action else { return };
        let name = self.jobs.get(job).map_or_else(String::new, |job| job.name.clone());
        let (planner, stage, task) = (planner.clone(), *stage, *task);
        let entry = PlanEntry { planner, job: name, stage, task, ..PlanEntry::default() };
        let hpc = &self.hpc;
        let hpc_name = |id| hpc.name(id).unwrap_or_default().to_owned();
        self.log.decided(now, *job, decision, entry, hpc_name);
    }

    fn send(&mut self, now: Nanos, actions: Vec<Action>) {
        for action in actions {
            tracing::debug!(?action, "decided");
            let message = match action {
                Action::Decided { .. } => {
                    self.note(now, &action);
                    continue;
                }
                // Tasks that may read, read what is missing by themselves.
                Action::Direct { .. } => continue,
                Action::MayRead { job, stage, partition } => {
                    let questions = self.asking.remove(&(job, stage, partition)).unwrap_or_default();
                    self.may_read(questions);
                    continue;
                }
                Action::Fetch { request, node, job, threads, rate_bytes_per_s, priority, parts, .. } => {
                    let ahead = priority == Priority::Ahead;
                    let of = self.jobs.get(&job);
                    let files = of.map_or(&[][..], |job| &job.files);
                    let job_name =
                        of.map(|job| JobName { user: job.uid, job: job.name.clone() }).unwrap_or_default();
                    let (files, parts) = translate::named(files, &parts);
                    self.log.requested(request, job, &node);
                    let request = PrefetchRequest {
                        request,
                        threads,
                        rate_bytes_per_s,
                        ahead,
                        job: job_name,
                        files,
                        parts,
                    };
                    (node, ToAgent::Fetch(request))
                }
                Action::Adjust { request, node, threads, rate_bytes_per_s, .. } => {
                    (node, ToAgent::Adjust { request, threads, rate_bytes_per_s })
                }
                Action::Release { node, requests } => {
                    self.log.released(&node, &requests);
                    (node, ToAgent::Cancel { requests })
                }
            };
            self.out.push(message);
        }
    }

    /// The jobs, those that have ended first.
    pub fn status(&self) -> Vec<JobStatus> {
        self.machine.status()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_pfs::FileVersion;
    use forebay_trace::log_files::Files;
    use forebay_wire::cluster::{Answer, StageStatus, WaveStatus};
    use forebay_wire::{NodeInfo, Part, Split};

    const MIB: u64 = 1 << 20;
    const NOW: Nanos = Nanos(1);
    const UID: u32 = 1000;
    const REPORTS_BYTES_MAX: u64 = 1 << 30;

    fn config() -> Config {
        Config { default_planner: "no-action".into(), ..Config::default() }
    }

    fn driver() -> Driver {
        driver_with(Recorder::off())
    }

    const FILES: Files = Files { bytes_long: 16 << 10, bytes_max: 64 << 10, ..crate::server::LOG };

    fn driver_with(recorder: Recorder) -> Driver {
        let node = |name: &str| NodeInfo {
            name: name.into(),
            host: name.into(),
            address: "127.0.0.1:1".into(),
            capacity_bytes: 1 << 40,
            mounts: vec!["pfs".into()],
            extent_bytes: vec![MIB],
            ..NodeInfo::default()
        };
        let mut driver = Driver::new(config(), recorder, REPORTS_BYTES_MAX, Steps::unscheduled());
        let nodes = vec![node("a"), node("b")];
        driver.set_view(NOW, &ClusterView { nodes, ..ClusterView::default() });
        driver
    }

    fn owner() -> Owner {
        ("a".into(), 7)
    }

    /// `tasks` tasks, each of which reads `files_each` files of 4 KiB.
    fn job(tasks: u32, files_each: u32) -> Vec<JobUpdate> {
        let file = |number: u32| {
            let version = FileVersion { ino: u64::from(number) + 1, size: 4096, mtime_ns: 1, ctime_ns: 1 };
            FileRef { mount: "pfs".into(), path: format!("table/part-{number:060}").into_bytes(), version }
        };
        let part = |file| Part { file, offset: 0, len: 4096 };
        let split = |task: u32| {
            let parts = (task * files_each..(task + 1) * files_each).map(part).collect();
            Split { parts, preferred_node: String::new() }
        };
        vec![
            JobUpdate::Begin { name: "app".into(), planner: String::new() },
            JobUpdate::Slots(vec![("a".into(), 20), ("b".into(), 20)]),
            JobUpdate::Files((0..tasks * files_each).map(file).collect()),
            JobUpdate::Splits { stage: 1, splits: (0..tasks).map(split).collect() },
            JobUpdate::StageReady { stage: 1 },
        ]
    }

    fn turn(driver: &mut Driver) -> Vec<ToNode> {
        // A large stage is placed in slices, one per deadline.
        (0..20).for_each(|_| driver.tick(NOW));
        driver.take_messages()
    }

    fn fetches(messages: &[ToNode]) -> Vec<&PrefetchRequest> {
        let mut requests = Vec::new();
        for (_, message) in messages {
            if let ToAgent::Fetch(request) = message {
                requests.push(request);
            }
        }
        requests
    }

    #[test]
    fn a_request_names_its_own_files_and_fits_a_message_however_many_they_are() {
        let mut driver = driver();
        driver.job_reports(NOW, &owner(), UID, job(40, 4_000));
        let messages = turn(&mut driver);
        let requests = fetches(&messages);
        assert!(!requests.is_empty());
        for request in requests {
            assert!(request.parts.iter().all(|p| (p.file as usize) < request.files.len()));
            forebay_wire::framed::shared(&ToAgent::Fetch(request.clone())).expect("it fits");
        }
    }

    #[test]
    fn jobs_end_with_the_node_of_their_program_and_their_requests_with_them() {
        let mut driver = driver();
        driver.job_reports(NOW, &owner(), UID, job(40, 1));
        let first = turn(&mut driver);
        assert!(fetches(&first).len() >= 2);
        driver.node_went(NOW, "a");
        let released = driver.take_messages();
        assert!(
            released.iter().all(|(to, m)| to == "b" && matches!(m, ToAgent::Cancel { .. })),
            "{released:?}"
        );
        assert!(!released.is_empty() && driver.jobs.is_empty() && driver.status().is_empty());
        // It comes back and reports the same again: one job, with new requests.
        driver.node_came(NOW, "a");
        driver.job_reports(NOW, &owner(), UID, job(40, 1));
        let messages = turn(&mut driver);
        assert_eq!((fetches(&messages).len(), driver.status().len()), (fetches(&first).len(), 1));
    }

    #[test]
    fn what_a_node_was_to_get_before_it_came_back_is_not_sent() {
        let mut driver = driver();
        driver.job_reports(NOW, &owner(), UID, job(40, 1));
        driver.tick(NOW);
        driver.node_came(NOW, "b");
        let messages = turn(&mut driver);
        let to =
            |node| messages.iter().filter(|(to, m)| to == node && matches!(m, ToAgent::Fetch(_))).count();
        assert_eq!((to("a"), to("b")), (4, 4), "{messages:?}");
    }

    #[test]
    fn a_job_that_ends_is_forgotten_and_may_begin_again_in_the_same_report() {
        let mut driver = driver();
        let mut updates = job(4, 1);
        updates.push(JobUpdate::End);
        updates.extend(job(4, 1));
        driver.job_reports(NOW, &owner(), UID, updates);
        turn(&mut driver);
        let ended: Vec<bool> = driver.status().iter().map(|job| job.ended).collect();
        assert_eq!((ended, driver.jobs.len()), (vec![true, false], 1));
        driver.job_reports(NOW, &owner(), UID, vec![JobUpdate::End, JobUpdate::StageReady { stage: 1 }]);
        assert!(driver.jobs.is_empty() && driver.keys.is_empty());
    }

    /// Drives a fresh machine from a file of the log; returns the number of its actions, and that
    /// of jobs still there.
    fn replay(path: &std::path::Path) -> (usize, usize) {
        let text = std::fs::read_to_string(path).unwrap();
        let mut lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let config: Config = serde_json::from_value(lines.next().unwrap()["setup"].take()).unwrap();
        let mut machine = Stages::new(config);
        let (mut decided, mut recorded) = (Vec::new(), Vec::new());
        for mut line in lines {
            let now = Nanos(line["t_ns"].as_u64().unwrap());
            match line["event"].take() {
                serde_json::Value::Null => recorded.push(line["action"].take()),
                deadline if deadline == "deadline" => machine.on_deadline(now, &mut decided),
                event => machine.handle(now, serde_json::from_value(event).unwrap(), &mut decided),
            }
        }
        let decided: Vec<_> = decided.iter().map(|action| serde_json::to_value(action).unwrap()).collect();
        assert!(decided == recorded, "{} differs", path.display());
        (decided.len(), machine.status().iter().filter(|job| !job.ended).count())
    }

    #[test]
    fn each_file_of_a_long_log_replays_by_itself_and_the_oldest_go() {
        let dir = tempfile::tempdir().unwrap();
        let mut driver = driver_with(Recorder::start(dir.path(), FILES, &config()).unwrap());
        let files = || {
            let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path());
            names.collect::<std::collections::BTreeSet<_>>()
        };
        let mut seen = files();
        for round in 0..40 {
            driver.job_reports(NOW, &owner(), UID, job(40, 5));
            let requests =
                fetches(&turn(&mut driver)).iter().map(|request| request.request).collect::<Vec<_>>();
            for request in requests {
                let progress = RequestProgress {
                    request,
                    fetched_bytes: 4096,
                    resident_bytes: 0,
                    failed_bytes: 0,
                    done: true,
                };
                driver.progress(NOW, if round % 2 == 0 { "a" } else { "b" }, progress);
            }
            if round % 2 == 0 {
                driver.job_reports(NOW, &owner(), UID, vec![JobUpdate::End]);
            }
            turn(&mut driver);
            seen.extend(files());
        }
        let shown = driver.status().len();
        drop(driver);
        assert!(seen.len() > 5 && shown > 20, "{} files, {shown} jobs are shown", seen.len());
        assert_eq!(files().len(), 4, "{:?}", files());
        // The thread that writes the last one has it all by now or soon.
        let last = files().into_iter().next_back().unwrap();
        let complete = || std::fs::read_to_string(&last).unwrap().ends_with("}\n");
        (0..1000)
            .take_while(|_| !complete())
            .for_each(|_| std::thread::sleep(std::time::Duration::from_millis(5)));
        let replayed: Vec<_> = files().iter().map(|file| replay(file)).collect();
        assert!(replayed.iter().all(|(actions, _)| *actions > 0), "{replayed:?}");
        assert!(
            replayed[..3].iter().all(|(_, jobs)| *jobs == 0),
            "a file ends when no job runs: {replayed:?}"
        );
    }

    #[test]
    fn a_log_that_jobs_never_leave_ends_at_its_bound_and_goes_on_later() {
        let dir = tempfile::tempdir().unwrap();
        let mut driver = driver_with(Recorder::start(dir.path(), FILES, &config()).unwrap());
        driver.job_reports(NOW, &owner(), UID, job(40, 1));
        let other = ("b".to_owned(), 1);
        for _ in 0..60 {
            driver.job_reports(NOW, &other, UID, job(40, 5));
            turn(&mut driver);
            driver.job_reports(NOW, &other, UID, vec![JobUpdate::End]);
            turn(&mut driver);
        }
        let count = || std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(count(), 1);
        driver.job_reports(NOW, &owner(), UID, vec![JobUpdate::End]);
        turn(&mut driver);
        drop(driver);
        assert_eq!(count(), 2, "no job runs");
        let bytes = std::fs::metadata(dir.path().join("decisions-000001.log")).unwrap().len();
        assert!(bytes < 128 << 10, "{bytes}");
    }

    #[test]
    fn reports_beyond_the_limit_cost_the_user_with_most_its_largest_job_whoever_reports_last() {
        let mut driver = Driver::new(config(), Recorder::off(), MIB, Steps::unscheduled());
        let reports = |driver: &mut Driver, number, uid, tasks| {
            driver.job_reports(NOW, &("a".into(), number), uid, job(tasks, 1));
        };
        let one = {
            reports(&mut driver, 0, UID, 400);
            let bytes = driver.held()[0].2;
            driver.job_reports(NOW, &("a".into(), 0), UID, vec![JobUpdate::End]);
            bytes
        };
        assert!(one > MIB / 8 && one < MIB / 4, "{one}");
        let fits = MIB / one;
        (1..=fits).for_each(|number| reports(&mut driver, number, UID, 400));
        assert_eq!(driver.jobs.len() as u64, fits);
        // Another user is the last to report, and the one with most pays for it.
        reports(&mut driver, 100, UID + 1, 400);
        let left: Vec<(u64, u32)> =
            driver.keys.iter().map(|((_, n), key)| (*n, driver.jobs[key].uid)).collect();
        assert!(left.contains(&(100, UID + 1)) && !left.contains(&(fits, UID)), "{left:?}");
        assert_eq!(left.len() as u64, fits);
        // What the job that went reports after that is dropped, and its end is not an event.
        driver.job_reports(NOW, &("a".into(), fits), UID, vec![JobUpdate::StageReady { stage: 1 }]);
        driver.job_reports(NOW, &("a".into(), fits), UID, vec![JobUpdate::End]);
        assert_eq!(driver.jobs.len() as u64, fits);
    }

    #[test]
    fn a_user_who_has_taken_every_place_gives_one_to_the_next_user() {
        let mut driver = driver();
        let begin = || vec![JobUpdate::Begin { name: "app".into(), planner: String::new() }];
        for number in 0..JOBS_MAX as u64 + 5 {
            driver.job_reports(NOW, &("a".into(), number), UID, begin());
        }
        assert_eq!(driver.jobs.len(), JOBS_MAX);
        for number in 0..3 {
            driver.job_reports(NOW, &("b".into(), number), UID + 1, begin());
        }
        let of = |driver: &Driver, uid| driver.jobs.values().filter(|job| job.uid == uid).count();
        assert_eq!((of(&driver, UID), of(&driver, UID + 1)), (JOBS_MAX - 3, 3));
    }

    #[test]
    fn plans_follow_the_memory_that_a_node_has_now() {
        let mut driver = driver();
        let ordered = |messages: Vec<ToNode>| -> Vec<String> {
            let fetches = messages.into_iter().filter(|(_, message)| matches!(message, ToAgent::Fetch(_)));
            fetches.map(|(node, _)| node).collect()
        };
        driver.capacity(NOW, "a", 0);
        driver.capacity(NOW, "b", 1 << 40);
        driver.job_reports(NOW, &owner(), UID, job(64, 1));
        let first = ordered(turn(&mut driver));
        assert!(!first.is_empty() && first.iter().all(|node| node == "b"), "{first:?}");
        // A little more is not news, and much more is.
        driver.capacity(NOW, "b", (1 << 40) + 1);
        assert_eq!(driver.capacities["b"], 1 << 40);
        driver.capacity(NOW, "a", 1 << 40);
        assert!(ordered(turn(&mut driver)).contains(&"a".to_string()));
        // A node that comes back has its weight until it says more.
        driver.node_came(NOW, "a");
        assert!(!driver.capacities.contains_key("a"));
    }

    #[test]
    fn the_longest_status_fits_a_message() {
        let wave = WaveStatus {
            tasks: u32::MAX,
            tasks_done: u32::MAX,
            bytes: u64::MAX >> 8,
            fetched_bytes: u64::MAX >> 8,
            resident_bytes: u64::MAX >> 8,
            failed_bytes: u64::MAX >> 8,
            prefetch_began_ms: Some(u64::from(u32::MAX)),
            prefetch_ended_ms: Some(u64::from(u32::MAX)),
            compute_began_ms: Some(u64::from(u32::MAX)),
            compute_ended_ms: Some(u64::from(u32::MAX)),
        };
        let waves = vec![wave; forebay_policy::stage::WAVES_SHOWN_MAX];
        let stage = |waves| StageStatus {
            stage: u32::MAX,
            tasks: u32::MAX,
            tasks_done: u32::MAX,
            tasks_running: u32::MAX,
            tasks_waiting: u32::MAX,
            tasks_local: u32::MAX,
            waves,
        };
        let mut stages = vec![stage(Vec::new()); forebay_policy::stage::STAGES_SHOWN_MAX];
        stages[0].waves = waves;
        // The longest names that an agent takes.
        let job = |stages| JobStatus {
            name: "n".repeat(1024),
            planner: "p".repeat(1024),
            stages,
            ..JobStatus::default()
        };
        let mut jobs = vec![job(Vec::new()); JOBS_MAX + 32];
        jobs[0].stages = stages;

        let answer = Answer::Jobs(jobs);
        forebay_wire::framed::shared(&ToAgent::Answered { ask: 1, answer }).expect("it fits");
    }

    /// A name that stays behind would have its questions kept, and nobody would answer them.
    #[test]
    fn a_job_has_one_name_and_takes_it_along_when_it_ends() {
        let mut driver = driver();
        let begin = |name: &str| JobUpdate::Begin { name: name.into(), planner: String::new() };
        let asks = |driver: &mut Driver, name: &str, uid| {
            driver.task_asks(NOW, ("a".into(), 7), (name.into(), uid), (1, 0));
            driver.take_messages()
        };
        let may_read = vec![("a".to_string(), ToAgent::MayRead { ask: 7 })];
        driver.job_reports(NOW, &owner(), UID, vec![begin("one"), begin("two")]);
        driver.job_reports(NOW, &("a".into(), 9), UID + 1, vec![begin("one")]);
        assert_eq!(driver.named.len(), 2, "{:?}", driver.named);
        for (name, uid) in [("one", UID), ("one", UID + 1), ("one", UID + 2), ("two", UID)] {
            assert_eq!(asks(&mut driver, name, uid), may_read, "no planner makes them wait");
        }
        driver.job_reports(NOW, &owner(), UID, vec![JobUpdate::End]);
        driver.job_reports(NOW, &("a".into(), 9), UID + 1, vec![JobUpdate::End]);
        assert!(driver.named.is_empty() && driver.asking.is_empty());
        assert_eq!(asks(&mut driver, "one", UID), may_read);
    }
}
