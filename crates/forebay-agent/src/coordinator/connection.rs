//! This agent's connection to its coordinator: one thread that joins, sends one heartbeat per
//! second, takes views and requests, and comes back when the connection is lost.
//!
//! Nothing here waits for an answer, and nothing else in the agent waits for this thread: what
//! others have to say is put into the outbox while there is a connection and reported again when
//! there is a new one. The coordinator may be in this process ([`CoordinatorAddress::Local`]); the
//! messages are the same.
//!
//! A coordinator that hangs, or a network that swallows everything, leaves the connection as it is.
//! So heartbeats are answered, and when nothing at all has come for several of them the connection
//! is given up like one that broke. What counts is bytes, not answers: behind a long message an
//! answer may take its time.
//!
//! A coordinator that is silent for a heartbeat cannot follow the I/O phases of HPC jobs: its
//! requests rest while there are any ([`crate::scheduler`]).
//!
//! Requests outlive the coordinator's last message by as long as it waits for this node, and no
//! longer: without it nobody would end them. A new connection makes them void, too.
//!
//! Reconnecting is tried immediately, then after twice as long each time up to a second, shifted at
//! random so that a thousand agents do not come in step. A new coordinator waits two heartbeats
//! before its first view, so nobody comes too late.
//!
//! Of several candidates, each is tried in turn. One that does not lead names the leader, or keeps
//! the join until there is one. This agent accepts no message from a leader of an earlier term than
//! it has seen, nor from one that may have ceased to lead ([`Answers::led_before`]).

use super::address::{CoordinatorAddress, Search};
use super::answers::Answers;
use super::claims::Claims;
use super::link::Link;
use crate::cluster::Cluster;
use crate::config::{ClusterConfig, FAIL_OVER_MAX};
use crate::counters::Counters;
use crate::jobs::job_state::JobState;
use crate::jobs::task_questions::TaskQuestions;
use crate::memory_control::Control;
use crate::mounts::MountState;
use crate::phases::board::Phases;
use crate::prefetch::requests::Requests;
use crate::stop::{Stop, Wake};
use crate::traffic::jobs::Traffic;
use forebay_store::Budget;
use forebay_wire::NodeInfo;
use forebay_wire::cluster::{CLUSTER_PROTOCOL, ToAgent, ToCoordinator};
use forebay_wire::framed::{Arrived, Framed};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest time for connecting and being welcomed.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// First and longest pause between two attempts.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Heartbeats without any answer after which the coordinator counts as gone. More than it waits for
/// an agent itself: to give up early costs a thousand agents a new connection each, to give up late
/// costs nobody anything.
const UNANSWERED_HEARTBEATS: u32 = 5;

/// As above, where another candidate leads by then.
const UNANSWERED_BY_LEADER: u32 = 2;

/// Heartbeats for which messages of an elected leader count after one that it has answered. The
/// next leader waits for as long.
const TRUSTED_HEARTBEATS: u32 = 3;

/// Heartbeats since the coordinator was last heard after which requests are dropped: by then the
/// coordinator has given this node up.
const ORPHANED_HEARTBEATS: u32 = 3;

/// How often the progress of requests is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Time for the last messages at the end.
const FAREWELL_TIME: Duration = Duration::from_millis(500);

/// What others have said stays in the outbox while this much waits to be sent, so that a list
/// of jobs longer than the connection's bound can be reported.
const SEND_AHEAD_BYTES: usize = 4 << 20;

/// Most reasons why it cannot join that are logged before it has joined again.
const COMPLAINTS_MAX: usize = 8;

/// What the connection is about.
pub struct Node {
    /// How this node describes itself.
    pub config: ClusterConfig,
    /// The mounts that it serves.
    pub mounts: Arc<[MountState]>,
    /// What it has.
    pub budget: Budget,
    /// How large it is to others.
    pub control: Arc<Control>,
    /// What it has fetched.
    pub counters: Arc<Counters>,
    /// The members, as the coordinator reports them.
    pub cluster: Arc<Cluster>,
    /// What the coordinator has requested.
    pub requests: Arc<Requests>,
    /// The jobs of local clients.
    pub jobs: Arc<JobState>,
    /// Their tasks that ask whether they may read.
    pub questions: Arc<TaskQuestions>,
    /// The HPC jobs of local clients.
    pub phases: Arc<Phases>,
    /// The dirty files of this node.
    pub claims: Arc<Claims>,
    /// The jobs and their rate limits.
    pub traffic: Arc<Traffic>,
    /// What others have to say.
    pub link: Arc<Link>,
    /// The agent's end.
    pub stop: Arc<Stop>,
    /// Calls this thread.
    pub wake: Arc<Wake>,
}

/// The thread: stays connected until the agent ends.
pub fn run(node: &Node, coordinator_at: &CoordinatorAddress) {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let incarnation = since_1970.as_nanos() as u64;
    let mut attempt = 0;
    let mut back_off = BACK_OFF.0;
    let mut lost = Lost { at: Instant::now(), heartbeat: Duration::from_secs(1) };
    let mut complained = Vec::new();
    let mut search = Search::new(coordinator_at.candidates(), incarnation as usize / 1000);
    while !node.stop.is_stopping() {
        let address = search.next();
        let was_met = match meet(node, coordinator_at, &address, (incarnation, attempt), &lost) {
            Ok(mut meeting) => {
                tracing::info!(coordinator = address, term = node.cluster.term(), "joined the cluster");
                back_off = BACK_OFF.0;
                complained.clear();
                search.found(&address);
                let ended = meeting.stay(node);
                node.link.end();
                if !node.config.fails_over() {
                    node.phases.coordinator_lost();
                }
                node.questions.set_connected(false);
                lost = Lost { at: meeting.answers.heard_at, heartbeat: meeting.heartbeat };
                let Err(e) = ended else { return };
                node.cluster.lost(&address, &e.to_string());
                tracing::warn!(coordinator = address, error = %e, "lost the coordinator");
                true
            }
            Err(Unmet { error, leader }) => {
                // Each reason once: a coordinator that is down for a night must not fill the log.
                let reason = error.to_string();
                node.cluster.lost(&address, &reason);
                if leader.is_empty() && complained.len() < COMPLAINTS_MAX && !complained.contains(&reason) {
                    tracing::warn!(coordinator = address, %error, "cannot join; reads continue, and the agent tries again");
                    complained.push(reason);
                }
                search.name(leader);
                false
            }
        };
        lost.go_on(node);
        attempt += 1;
        if was_met || search.is_round_over() {
            pause(&node.stop, back_off);
            back_off = (back_off * 2).min(BACK_OFF.1);
        }
    }
}

/// When the coordinator was last heard, and how often it was to be.
struct Lost {
    at: Instant,
    heartbeat: Duration,
}

impl Lost {
    /// Ends what must not continue while there is no coordinator.
    fn go_on(&self, node: &Node) {
        let lost = self.at.elapsed();
        node.phases.scheduler().set_coordinator_silent(lost > self.heartbeat);
        if lost > self.heartbeat * ORPHANED_HEARTBEATS {
            node.requests.drop_all();
        }
        if lost > FAIL_OVER_MAX {
            node.phases.coordinator_lost();
        }
    }
}

/// Why an agent was not welcomed, and where the leader is, if that was said.
struct Unmet {
    error: io::Error,
    leader: String,
}

impl From<io::Error> for Unmet {
    fn from(error: io::Error) -> Self {
        Unmet { error, leader: String::new() }
    }
}

/// Waits about `length`, or until the agent ends.
fn pause(stop: &Stop, length: Duration) {
    let mut chance = [0u8; 1];
    // Without random bytes all come in step; nothing else is lost.
    let _ = rustix::rand::getrandom(&mut chance, rustix::rand::GetRandomFlags::empty());
    stop.wait(length.mul_f64(0.75 + f64::from(chance[0]) / 512.0));
}

/// A connection on which this agent has been welcomed.
struct Meeting {
    link: Framed,
    /// It was elected, and another one may be.
    is_elected: bool,
    heartbeat: Duration,
    last_heartbeat: Instant,
    last_progress: Instant,
    answers: Answers,
}

/// Connects and joins.
fn meet(
    node: &Node,
    coordinator_at: &CoordinatorAddress,
    address: &str,
    (incarnation, attempt): (u64, u64),
    lost: &Lost,
) -> Result<Meeting, Unmet> {
    let deadline = Instant::now() + CONNECT_TIME;
    let mut link = Framed::new(coordinator_at.connect(address, deadline)?)?;
    let (protocol, term, joined) = (CLUSTER_PROTOCOL, node.cluster.term(), Instant::now());
    link.send(&ToCoordinator::Join { protocol, node: node.describe(), incarnation, attempt, term })?;
    let (heartbeat_ms, is_elected) = loop {
        link.flush()?;
        let arrived = link.receive()?;
        match link.next_message::<ToAgent>()? {
            Some(ToAgent::Welcome { refusal, leader, .. }) if !refusal.is_empty() => {
                let error = io::Error::new(io::ErrorKind::PermissionDenied, refusal);
                return Err(Unmet { error, leader });
            }
            Some(ToAgent::Welcome { heartbeat_ms, term, .. }) => {
                node.cluster.joined(address, term)?;
                break (heartbeat_ms, term > 0);
            }
            Some(other) => {
                let what = format!("{other:?} before a welcome");
                return Err(io::Error::new(io::ErrorKind::InvalidData, what).into());
            }
            None if arrived == Arrived::Closed => {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            None => {}
        }
        if Instant::now() >= deadline || node.stop.is_stopping() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it connects but does not answer").into());
        }
        lost.go_on(node);
        wait_for(&link, &node.wake, Duration::from_millis(100))?;
    };
    // The coordinator divides the limits again.
    node.traffic.set_shares(Vec::new());
    // It does not know the requests here; what is still wanted is requested again.
    node.requests.drop_all();
    node.phases.repeat(|hpc| {
        node.jobs.repeat(|mut reported| {
            reported.extend(hpc);
            reported.push(ToCoordinator::Limits(node.traffic.known()));
            node.claims.report_again(|dirty| {
                reported.extend(dirty);
                node.link.begin(reported);
            });
        });
    });
    node.phases.scheduler().set_coordinator_silent(false);
    node.questions.set_connected(true);
    let now = Instant::now();
    let heartbeat = Duration::from_millis(heartbeat_ms.clamp(10, 60_000).into());
    Ok(Meeting {
        link,
        is_elected,
        heartbeat,
        // The first one immediately: a join may have waited for long.
        last_heartbeat: now.checked_sub(heartbeat).unwrap_or(now),
        last_progress: now,
        answers: Answers::new(now, joined),
    })
}

/// Waits until something arrives, there is room for what waits to be sent, or somebody calls; at
/// most `limit`.
fn wait_for(link: &Framed, calls: &Wake, limit: Duration) -> io::Result<()> {
    let room = if link.wants_room() { PollFlags::OUT } else { PollFlags::empty() };
    let mut fds =
        [PollFd::new(link, PollFlags::IN | room), PollFd::from_borrowed_fd(calls.as_fd(), PollFlags::IN)];
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    match poll(&mut fds, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    if fds[1].revents().contains(PollFlags::IN) {
        calls.clear();
    }
    Ok(())
}

impl Meeting {
    /// Runs until the agent ends (`Ok`) or the connection does.
    fn stay(&mut self, node: &Node) -> io::Result<()> {
        loop {
            let now = Instant::now();
            let arrived = self.link.receive()?;
            self.listen(now)?;
            node.phases.scheduler().set_coordinator_silent(self.answers.silence(now) > self.heartbeat);
            while let Some(message) = self.link.next_message::<ToAgent>()? {
                self.check_leads()?;
                self.hear(node, message);
            }
            if arrived == Arrived::Closed {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if node.stop.is_stopping() {
                return self.leave();
            }
            self.speak(node)?;
            self.link.flush()?;
            if arrived == Arrived::All {
                wait_for(&self.link, &node.wake, self.next_turn(node))?;
            }
        }
    }

    /// Gives up a coordinator that has been silent for too long at `now`, a time before all that
    /// had arrived was taken in.
    fn listen(&mut self, now: Instant) -> io::Result<()> {
        self.answers.note(now, self.link.received_bytes());
        let most = if self.is_elected { UNANSWERED_BY_LEADER } else { UNANSWERED_HEARTBEATS };
        let (silence, limit) = (self.answers.silence(now), self.heartbeat * most);
        if silence <= limit {
            return Ok(());
        }
        let text = format!(
            "it has not answered for {:.1} s: it hangs, or the network loses what is sent",
            silence.as_secs_f64()
        );
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    }

    /// Fails if the leader may have been replaced: its messages no longer count.
    fn check_leads(&self) -> io::Result<()> {
        let ago = self.answers.led_before(Instant::now());
        if !self.is_elected || ago <= self.heartbeat * TRUSTED_HEARTBEATS {
            return Ok(());
        }
        let text = format!(
            "what it says is not heard: it has answered no heartbeat of the last {:.1} s, and may no longer lead",
            ago.as_secs_f64()
        );
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    }

    fn hear(&mut self, node: &Node, message: ToAgent) {
        match message {
            ToAgent::Members(view) => {
                node.traffic.set_members(view.nodes.len());
                node.cluster.update(view);
            }
            ToAgent::Limits(limits) => node.traffic.merge(limits),
            ToAgent::LimitShares(shares) => node.traffic.set_shares(shares),
            ToAgent::Phases { node: from, lease_ms, phases } => {
                node.phases.heard(from, Duration::from_millis(lease_ms.into()), phases);
            }
            ToAgent::LetIn { hpc } => node.phases.let_in(hpc),
            ToAgent::Pace { hpc, permille } => node.phases.pace(hpc, permille),
            ToAgent::MayRead { ask } => node.questions.answered(ask),
            answer @ (ToAgent::Answered { ask, .. } | ToAgent::Holder { ask, .. }) => {
                node.link.answer(ask, answer);
            }
            ToAgent::Fetch(request) => node.requests.begin(request),
            ToAgent::Adjust { request, threads, rate_bytes_per_s } => {
                node.requests.adjust(request, threads, rate_bytes_per_s);
            }
            ToAgent::Pause { on } => node.requests.pause_all(on),
            ToAgent::Cancel { requests } => node.requests.cancel(&requests),
            ToAgent::Heard => self.answers.answer(),
            ToAgent::Welcome { .. } => tracing::warn!("the coordinator welcomes twice"),
        }
    }

    fn speak(&mut self, node: &Node) -> io::Result<()> {
        while self.link.waiting_bytes() < SEND_AHEAD_BYTES
            && let Some(message) = node.link.next_said()
        {
            self.link.send(&message)?;
        }
        if self.last_heartbeat.elapsed() >= self.heartbeat {
            self.last_heartbeat = Instant::now();
            self.answers.ask(self.last_heartbeat);
            self.link.send(&ToCoordinator::Heartbeat {
                weight_bytes: node.control.weight_bytes(),
                capacity_bytes: node.budget.capacity_bytes(),
                resident_bytes: node.budget.class_bytes(forebay_store::Class::Pages),
                fetched_bytes: node.counters.fetched_bytes.load(Ordering::Relaxed),
            })?;
        }
        let all = self.last_progress.elapsed() >= PROGRESS_INTERVAL;
        if all {
            self.last_progress = Instant::now();
        }
        for progress in node.requests.take_progress(all) {
            self.link.send(&ToCoordinator::Progress(progress))?;
        }
        Ok(())
    }

    fn next_turn(&self, node: &Node) -> Duration {
        let heartbeat = self.heartbeat.saturating_sub(self.last_heartbeat.elapsed());
        let progress = PROGRESS_INTERVAL.saturating_sub(self.last_progress.elapsed());
        if node.requests.are_busy() { heartbeat.min(progress) } else { heartbeat }
    }

    /// Reports that this node leaves, if the coordinator still listens.
    fn leave(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + FAREWELL_TIME;
        self.link.send(&ToCoordinator::Leave)?;
        while !self.link.flush()? && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Node {
    /// This node as others see it.
    fn describe(&self) -> NodeInfo {
        let cluster = &self.config;
        NodeInfo {
            name: cluster.node.clone(),
            host: cluster.host.clone(),
            address: self.cluster.address().to_owned(),
            role: cluster.role,
            capacity_bytes: self.control.weight_bytes(),
            mounts: self.mounts.iter().map(|m| m.label().to_owned()).collect(),
            extent_bytes: self.mounts.iter().map(|m| m.config.extent_bytes).collect(),
        }
    }
}
