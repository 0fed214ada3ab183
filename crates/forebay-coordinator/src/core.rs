//! What the coordinator does with what it receives, without sockets and without a clock: messages
//! in, effects out.

use crate::dirty::DirtyFiles;
use crate::driver::Driver;
use crate::limits::Limits;
use crate::members::{self, Joined, Members, Session, Timing};
use crate::report::{NodeReport, Report, Since, Totals};
use crate::samples::Samples;
use crate::stored::{Changes, Stored};
use forebay_policy::machine::Nanos;
use forebay_wire::cluster::{Answer, CLUSTER_PROTOCOL, Question, ToAgent, ToCoordinator};
use forebay_wire::{ClusterView, NodeHealth, NodeStatus, Overview};

/// Reports in one answer, which an agent passes on as one packet.
const HEALTH_AT_ONCE: usize = 16;

/// Messages that wait until all have reported; an agent that sends more is disconnected and comes
/// again.
const HELD_MAX: usize = 1 << 20;

/// What the server is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send this on that connection.
    Send(Session, ToAgent),
    /// Send this on that connection once what has changed before is stored.
    SendStored(Session, ToAgent),
    /// Send the view to every member.
    Publish(ClusterView),
    /// Close that connection once what was sent before has gone.
    Close(Session),
}

/// Everything the coordinator knows.
#[derive(Debug)]
pub struct Core {
    /// Term of an elected coordinator; 0: it was not elected.
    term: u64,
    members: Members,
    driver: Driver,
    samples: Samples,
    dirty: DirtyFiles,
    limits: Limits,
    /// Messages to answer when all members of the coordinator before have reported.
    held: Vec<(Session, ToCoordinator)>,
    expired: u64,
}

impl Core {
    /// Knows nothing yet. `term` is the start in milliseconds since 1970, `now` the same moment on
    /// the driver's clock. What jobs report goes to `driver`.
    pub fn new(term: u64, now: Nanos, timing: Timing, driver: Driver) -> Self {
        let (members, samples) = (Members::new(term, now, timing), Samples::default());
        Core {
            term: 0,
            members,
            driver,
            samples,
            dirty: DirtyFiles::default(),
            limits: Limits::default(),
            held: Vec::new(),
            expired: 0,
        }
    }

    /// Continues from what the coordinator before has stored.
    pub fn go_on_from(&mut self, now: Nanos, stored: &Stored) {
        self.dirty = DirtyFiles::from_stored(now, &stored.dirty, !stored.members.is_empty());
        self.members.were(stored.members.clone());
        self.term = self.members.epoch().term;
    }

    /// Whether the next coordinator will know of the node; if not, [`Core::take_changes`] has its
    /// name next.
    pub fn announce(&mut self, name: &str) -> bool {
        self.members.announce(name)
    }

    /// Notes that an announced node does not join.
    pub fn retract(&mut self, name: &str) {
        self.members.retract(name);
    }

    /// What is to be stored since the last call.
    pub fn take_changes(&mut self) -> Changes {
        Changes { members: self.members.take_names(), dirty: self.dirty.take_changes() }
    }

    /// Whether the answer needs to know of nodes that may not have reported yet: which files are
    /// dirty there, and which steps they write.
    fn has_to_wait(&self, message: &ToCoordinator) -> bool {
        match message {
            ToCoordinator::AskAccess { .. }
            | ToCoordinator::Dirty { .. }
            | ToCoordinator::Written(_)
            | ToCoordinator::Clean { .. } => true,
            ToCoordinator::AskDirty { is_emptied, .. } => *is_emptied || !self.dirty.are_stored(),
            _ => false,
        }
    }

    /// Handles what an agent says.
    pub fn handle(&mut self, now: Nanos, session: Session, message: ToCoordinator, out: &mut Vec<Effect>) {
        if let ToCoordinator::Join { protocol, node, incarnation, attempt, .. } = message {
            let name = node.name.clone();
            let joined = match protocol {
                CLUSTER_PROTOCOL => self.members.join(now, session, node, (incarnation, attempt)),
                other => Joined::Refused(format!(
                    "the coordinator speaks protocol {CLUSTER_PROTOCOL}, the agent {other}; install the same version on all nodes"
                )),
            };
            if matches!(joined, Joined::Member { .. }) {
                self.driver.node_came(now, &name);
                self.limits.forget(&name);
                self.dirty.joined(&name);
            }
            if matches!(joined, Joined::Refused(_)) {
                self.members.retract(&name);
            }
            return self.joined(session, joined, out);
        }
        let Some(node) = self.members.by_session(session).map(|m| m.info.name.clone()) else {
            // It was thrown out while this was on its way, or never joined: it has to join (again)
            // on a new connection.
            return out.push(Effect::Close(session));
        };
        // What waits already comes first.
        if (!self.members.settle(now) || !self.held.is_empty()) && self.has_to_wait(&message) {
            match self.held.len() {
                HELD_MAX.. => out.push(Effect::Close(session)),
                _ => self.held.push((session, message)),
            }
            return;
        }
        match message {
            ToCoordinator::Heartbeat { weight_bytes, capacity_bytes, resident_bytes, fetched_bytes } => {
                self.members.heartbeat(now, session, weight_bytes, resident_bytes, fetched_bytes);
                self.driver.capacity(now, &node, capacity_bytes);
                self.driver.heartbeat(now, &node);
                out.push(Effect::Send(session, ToAgent::Heard));
            }
            ToCoordinator::Limits(limits) => {
                let changed = self.limits.merge(limits);
                if !changed.is_empty() {
                    let news = || ToAgent::Limits(changed.clone());
                    let names = self.members.members().map(|member| member.info.name.as_str());
                    let sessions = names.filter_map(|name| self.members.session_of(name));
                    out.extend(sessions.map(|session| Effect::Send(session, news())));
                    self.divide_limits(out);
                }
            }
            ToCoordinator::Traffic(moved) => {
                self.limits.report(&node, moved);
            }
            ToCoordinator::Leave => {
                self.limits.forget(&node);
                self.members.leave(session);
                self.driver.node_went(now, &node);
                out.push(Effect::Close(session));
            }
            ToCoordinator::Job { job, uid, updates } => {
                self.driver.job_reports(now, &(node, job), uid, updates);
            }
            ToCoordinator::Hpc { hpc, update } => self.driver.hpc_reports(now, &(node, hpc), update),
            ToCoordinator::AskAccess { hpc, alone_ns, is_observed } => {
                self.driver.asks_access(now, &(node, hpc), (alone_ns, is_observed));
            }
            ToCoordinator::WritesTo { hpc, servers } => self.driver.writes_to(&(node, hpc), servers),
            ToCoordinator::AskTask { ask, uid, job, stage, partition } => {
                self.driver.task_asks(now, (node, ask), (job, uid), (stage, partition));
            }
            ToCoordinator::Health(health) => self.members.note_health(now, session, health),
            ToCoordinator::Ask { ask, question } => {
                let answer = self.answer(now, &node, question);
                out.push(Effect::Send(session, ToAgent::Answered { ask, answer }));
            }
            ToCoordinator::Phases { lease_ms, phases } => {
                // The node itself notifies the others.
                let to = self.members.without_address(session);
                let reported = || ToAgent::Phases { node: node.clone(), lease_ms, phases: phases.clone() };
                out.extend(to.into_iter().map(|session| Effect::Send(session, reported())));
            }
            ToCoordinator::Dirty { ask, file } => {
                let is_member = |name: &str| self.members.session_of(name).is_some();
                let (node, before) = self.dirty.claim(now, file, &node, is_member);
                out.push(Effect::SendStored(session, ToAgent::Holder { ask, node, before }));
            }
            ToCoordinator::Clean { file, is_shared } => self.dirty.release(now, file, &node, is_shared),
            ToCoordinator::AllDirty { files, is_last } => self.dirty.report(&node, files, is_last),
            ToCoordinator::Written(file) => self.dirty.written(&file, &node),
            ToCoordinator::AskDirty { ask, file, is_emptied } => {
                let is_member = |name: &str| self.members.session_of(name).is_some();
                if is_emptied && !is_member(self.dirty.holder(&file)) {
                    self.dirty.empty(&file);
                }
                let holder = self.dirty.holder(&file).to_owned();
                let answer = ToAgent::Holder { ask, node: holder, before: String::new() };
                out.push(if is_emptied {
                    Effect::SendStored(session, answer)
                } else {
                    Effect::Send(session, answer)
                });
            }
            ToCoordinator::Progress(progress) => self.driver.progress(now, &node, progress),
            ToCoordinator::Join { .. } => {}
        }
    }

    /// Sends nodes their shares of rate limits, as far as these have changed.
    /// Not at each report: each node makes one a second.
    fn divide_limits(&mut self, out: &mut Vec<Effect>) {
        for (node, shares) in self.limits.divide() {
            let session = self.members.session_of(&node);
            out.extend(session.map(|session| Effect::Send(session, ToAgent::LimitShares(shares))));
        }
    }

    /// Refuses a node, for a reason that only the server can see.
    pub fn refuse(&mut self, session: Session, why: String, out: &mut Vec<Effect>) {
        self.joined(session, Joined::Refused(why), out);
    }

    fn joined(&mut self, session: Session, joined: Joined, out: &mut Vec<Effect>) {
        let heartbeat_ms = (self.members.timing().heartbeat_ns / 1_000_000) as u32;
        let (term, leader) = (self.term, String::new());
        let welcome =
            |refusal| ToAgent::Welcome { protocol: CLUSTER_PROTOCOL, refusal, heartbeat_ms, term, leader };
        match joined {
            Joined::Member { replaces } => {
                out.extend(replaces.map(Effect::Close));
                out.push(Effect::Send(session, welcome(String::new())));
                let limits = self.limits.all();
                if !limits.is_empty() {
                    out.push(Effect::Send(session, ToAgent::Limits(limits)));
                }
                if self.members.has_published() {
                    // It may be the only one who missed the last view; what has changed since comes
                    // with the next.
                    out.push(Effect::Send(session, ToAgent::Members(self.members.view())));
                }
            }
            // Its agent no longer listens there.
            Joined::Superseded => out.push(Effect::Close(session)),
            Joined::Refused(why) => {
                tracing::warn!(session, "refused a node: {why}");
                out.push(Effect::Send(session, welcome(why)));
                out.push(Effect::Close(session));
            }
        }
    }

    /// Does what is due. Called after every batch of messages and at [`Core::next_deadline`].
    pub fn tick(&mut self, now: Nanos, out: &mut Vec<Effect>) {
        if self.members.settle(now) {
            for (session, message) in std::mem::take(&mut self.held) {
                self.handle(now, session, message, out);
            }
        }
        for (name, session) in self.members.expire(now) {
            tracing::warn!(node = name, "sends no heartbeats and is no longer a member");
            self.expired += 1;
            self.limits.forget(&name);
            self.driver.node_went(now, &name);
            out.push(Effect::Close(session));
        }
        for (name, session) in self.members.outvote(now) {
            tracing::warn!(node = name, "has another mount.extent_size than most nodes, and is not a member");
            self.limits.forget(&name);
            self.driver.node_went(now, &name);
            out.push(Effect::Close(session));
        }
        if self.limits.is_due(now) {
            self.divide_limits(out);
        }
        if let Some(view) = self.members.publish(now) {
            tracing::info!(epoch = %view.epoch, members = view.nodes.len(), "new view");
            self.driver.set_view(now, &view);
            out.push(Effect::Publish(view));
        }
        if self.members.has_published() {
            // Before, nobody knows who owns what.
            self.driver.tick(now);
        }
        let (driver, members) = (&self.driver, self.members.members());
        let fetched = driver.log().counts().prefetched_bytes;
        if let Some(sample) = self.samples.take(now, members, |node| driver.capacity_of(node), fetched) {
            self.driver.record(now, &sample);
        }
        for (node, message) in self.driver.take_messages() {
            if let Some(session) = self.members.session_of(&node) {
                out.push(Effect::Send(session, message));
            }
        }
    }

    /// The answer to a program's question.
    fn answer(&self, now: Nanos, node: &str, question: Question) -> Answer {
        match question {
            Question::Jobs => Answer::Jobs(self.driver.status()),
            Question::Plans { most } => Answer::Plans(self.driver.plans(most as usize)),
            Question::Overview => Answer::Overview(self.overview(now)),
            Question::Health { after } => Answer::Health(self.health(now, &after)),
            Question::Log { filter, by } => {
                if !filter.is_empty() {
                    tracing::info!(node, user = by, filter, "what is logged changes");
                }
                Answer::Log(forebay_trace::log_control::set(&filter))
            }
        }
    }

    /// The nodes now.
    fn overview(&self, now: Nanos) -> Overview {
        let node = |member: &crate::members::Member| {
            let name = &member.info.name;
            NodeStatus {
                name: name.clone(),
                role: member.info.role,
                capacity_bytes: self.driver.capacity_of(name).unwrap_or(member.info.capacity_bytes),
                resident_bytes: member.resident_bytes,
                fetched_bytes: member.fetched_bytes,
                requests: self.driver.log().pending(name) as u32,
                silent_ms: now.saturating_since(member.heard) / 1_000_000,
            }
        };
        let nodes: Vec<NodeStatus> = self.members.members().map(node).collect();
        Overview {
            now_ms: now.0 / 1_000_000,
            epoch: self.members.epoch(),
            requests: nodes.iter().map(|node| node.requests).sum(),
            nodes,
            sample: self.samples.latest(),
            steps: self.driver.steps().status(now),
            traffic: self.limits.traffic(),
        }
    }

    /// Some nodes after the one named `after`, including those that went without a word.
    fn health(&self, now: Nanos, after: &str) -> Vec<NodeHealth> {
        let lost = self.members.lost(now).map(|(name, lost)| NodeHealth {
            name: name.clone(),
            role: lost.role,
            extents: lost.extents.clone(),
            silent_ms: now.saturating_since(lost.heard) / 1_000_000,
            ..NodeHealth::default()
        });
        let here = self.members.members().map(|member| health_of(now, member));
        let mut following: Vec<_> = here.chain(lost).collect();
        following.retain(|node| node.name.as_str() > after);
        following.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        following.truncate(HEALTH_AT_ONCE);
        following
    }

    fn node(&self, now: Nanos, name: &str) -> Option<NodeReport> {
        let member = self.members.members().find(|member| member.info.name == name)?;
        Some(NodeReport { health: health_of(now, member), traffic: self.limits.traffic_of(name) })
    }

    /// What has changed since `since`. The server adds what it alone knows.
    pub fn report(&self, now: Nanos, since: Since) -> Report {
        let log = self.driver.log();
        let (plans, phases) = log.since(since.revision);
        let overview = self.overview(now);
        let totals = Totals {
            uptime_ns: now.0,
            views: overview.epoch.number,
            expired: self.expired,
            reports_bytes: self.driver.reports_bytes(),
            hpc_jobs: self.driver.hpc().counts(),
            steps: self.driver.steps().counts(),
            counts: log.counts().clone(),
            ..Totals::default()
        };
        let samples = self.samples.since(since.sample_ms);
        let node = since.node.and_then(|name| self.node(now, &name));
        let (revision, jobs) = (log.revision(), self.driver.status());
        Report { revision, overview, jobs, plans, phases, samples, node, totals }
    }

    /// Notes that the coordinator itself did not run for `ns`.
    pub fn forgive(&mut self, now: Nanos, ns: u64) {
        self.members.forgive(ns);
        self.driver.forgive(now);
    }

    /// Whether the connection belongs to a member.
    pub fn is_member(&self, session: Session) -> bool {
        self.members.by_session(session).is_some()
    }

    /// The node that speaks on the connection.
    pub fn node_of(&self, session: Session) -> Option<&str> {
        self.members.by_session(session).map(|m| m.info.name.as_str())
    }

    /// When [`Core::tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Nanos> {
        let driver = self.driver.next_deadline().filter(|_| self.members.has_published());
        let held = (!self.held.is_empty()).then(|| self.members.settled_at());
        self.members.next_deadline().into_iter().chain(driver).chain(held).min()
    }
}

fn health_of(now: Nanos, member: &crate::members::Member) -> NodeHealth {
    let info = &member.info;
    NodeHealth {
        name: info.name.clone(),
        role: info.role,
        extents: members::extents(info),
        silent_ms: now.saturating_since(member.heard) / 1_000_000,
        health: member.health.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_wire::NodeInfo;
    use forebay_wire::cluster::DirtyFile;

    #[test]
    fn heartbeats_are_answered_and_a_connection_that_was_given_up_is_only_closed() {
        let driver = Driver::new(
            forebay_policy::stage::Config::default(),
            forebay_trace::log_files::Recorder::off(),
            1 << 30,
            crate::steps::Steps::unscheduled(),
        );
        let mut core = Core::new(7, Nanos(0), Timing { grace_ns: 0, ..Timing::DEFAULT }, driver);
        let mut out = Vec::new();
        let join = |attempt| {
            let node = NodeInfo { name: "a".into(), ..NodeInfo::default() };
            ToCoordinator::Join { protocol: CLUSTER_PROTOCOL, node, incarnation: 1, attempt, term: 0 }
        };
        let beat = || ToCoordinator::Heartbeat {
            weight_bytes: 1,
            capacity_bytes: 1,
            resident_bytes: 0,
            fetched_bytes: 0,
        };
        core.handle(Nanos(1), 1, join(5), &mut out);
        core.tick(Nanos(2), &mut out);
        out.clear();
        core.handle(Nanos(3), 1, beat(), &mut out);
        assert_eq!(std::mem::take(&mut out), [Effect::Send(1, ToAgent::Heard)]);
        core.handle(Nanos(4), 2, join(4), &mut out);
        core.handle(Nanos(5), 2, beat(), &mut out);
        assert_eq!(std::mem::take(&mut out), [Effect::Close(2), Effect::Close(2)], "no welcome, no answer");
        assert!(core.is_member(1) && core.node_of(2).is_none());
    }

    fn core(timing: Timing) -> Core {
        let driver = Driver::new(
            forebay_policy::stage::Config::default(),
            forebay_trace::log_files::Recorder::off(),
            1 << 30,
            crate::steps::Steps::unscheduled(),
        );
        Core::new(7, Nanos(0), timing, driver)
    }

    fn file(ino: u64) -> DirtyFile {
        DirtyFile { mount: "pfs".into(), ino }
    }

    /// Says something, and returns the answers to questions.
    fn say(core: &mut Core, at_ms: u64, session: Session, message: ToCoordinator) -> Vec<(Session, String)> {
        let mut out = Vec::new();
        core.handle(Nanos(at_ms * 1_000_000), session, message, &mut out);
        core.tick(Nanos(at_ms * 1_000_000), &mut out);
        answers(&out)
    }

    fn answers(out: &[Effect]) -> Vec<(Session, String)> {
        let answer = |effect: &Effect| match effect {
            Effect::Send(session, message) | Effect::SendStored(session, message) => match message {
                ToAgent::Holder { node, before, .. } => Some((*session, format!("{node} {before}"))),
                ToAgent::LetIn { .. } => Some((*session, "let in".into())),
                _ => None,
            },
            _ => None,
        };
        out.iter().filter_map(answer).collect()
    }

    fn join(name: &str) -> ToCoordinator {
        let node = NodeInfo { name: name.into(), ..NodeInfo::default() };
        ToCoordinator::Join { protocol: CLUSTER_PROTOCOL, node, incarnation: 1, attempt: 0, term: 0 }
    }

    fn reads(ino: u64) -> ToCoordinator {
        ToCoordinator::AskDirty { ask: 1, file: file(ino), is_emptied: false }
    }

    fn claims(ino: u64) -> ToCoordinator {
        ToCoordinator::Dirty { ask: 1, file: file(ino) }
    }

    #[test]
    fn a_new_coordinator_says_where_a_file_is_dirty_when_all_have_had_time_to_report() {
        let mut core = core(Timing::DEFAULT);
        say(&mut core, 0, 1, join("a"));
        assert_eq!(say(&mut core, 1, 1, reads(1)), []);
        assert_eq!(
            say(&mut core, 1, 1, ToCoordinator::AskAccess { hpc: 1, alone_ns: 0, is_observed: false }),
            []
        );
        say(&mut core, 1500, 2, join("b"));
        say(&mut core, 1500, 2, ToCoordinator::AllDirty { files: vec![file(2)], is_last: false });
        say(&mut core, 1500, 2, ToCoordinator::AllDirty { files: vec![file(1)], is_last: true });
        let mut out = Vec::new();
        assert_eq!(core.next_deadline(), Some(Nanos(2_000_000_000)));
        core.tick(Nanos(2_000_000_000), &mut out);
        assert_eq!(answers(&out), [(1, "b ".into()), (1, "let in".into())]);
        assert_eq!(say(&mut core, 2001, 1, reads(2)), [(1, "b ".into())], "from now on at once");
        assert_eq!(
            core.take_changes(),
            Changes { members: Some(["a", "b"].map(String::from).into()), ..Changes::default() }
        );
    }

    #[test]
    fn an_elected_coordinator_goes_on_from_what_the_last_one_stored_and_waits_for_its_members() {
        let mut core = core(Timing { grace_ns: 3_000_000_000, ..Timing::DEFAULT });
        let held = |node: &str| (node.to_owned(), String::new());
        let stored = Stored {
            members: ["a", "b"].map(String::from).into(),
            dirty: [(file(1), held("b")), (file(2), held("gone"))].into(),
        };
        core.go_on_from(Nanos(0), &stored);
        assert!(core.announce("a") && !core.announce("c"), "c has not been one");
        say(&mut core, 1, 1, join("a"));
        assert_eq!(say(&mut core, 2, 1, reads(1)), [(1, "b ".into())], "though b has not come yet");
        assert_eq!(say(&mut core, 3, 1, claims(1)), [], "b may come");
        let names = core.take_changes().members.unwrap();
        assert_eq!(names, ["a", "b", "c"].map(String::from).into(), "b may listen to the last one");
        let came = say(&mut core, 500, 2, join("b"));
        assert_eq!(came, [(1, "b ".into())], "nobody is missing");
        assert_eq!(say(&mut core, 501, 1, claims(2)), [(1, "a gone".into())]);
        assert_eq!(core.take_changes().dirty, [(file(2), Some(("a".into(), "gone".into())))].into());
        say(&mut core, 502, 1, ToCoordinator::Clean { file: file(2), is_shared: false });
        say(&mut core, 503, 2, ToCoordinator::Clean { file: file(1), is_shared: true });
        let changes = core.take_changes().dirty;
        assert_eq!(
            changes,
            [(file(1), Some(held("*"))), (file(2), Some((String::new(), "!gone".into())))].into(),
            "gone may come back"
        );
    }

    #[test]
    fn members_that_do_not_come_are_waited_for_until_nobody_may_listen_to_the_last_leader() {
        let mut core = core(Timing { grace_ns: 3_000_000_000, ..Timing::DEFAULT });
        let members = ["a", "b"].map(String::from).into();
        core.go_on_from(Nanos(0), &Stored { members, ..Stored::default() });
        say(&mut core, 1, 1, join("a"));
        let asks = ToCoordinator::AskAccess { hpc: 1, alone_ns: 0, is_observed: false };
        assert_eq!(say(&mut core, 2, 1, asks), []);
        let mut out = Vec::new();
        core.tick(Nanos(2_999_999_999), &mut out);
        assert_eq!(answers(&out), []);
        core.tick(Nanos(3_000_000_000), &mut out);
        assert_eq!(answers(&out), [(1, "let in".into())]);
        assert_eq!(core.take_changes().members, Some([String::from("a")].into()));
    }
}
