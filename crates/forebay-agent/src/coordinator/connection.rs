//! This agent's connection to its coordinator: one thread that joins, sends a heartbeat a second,
//! takes views and requests, and comes back when the connection is lost.
//!
//! Nothing here waits for an answer, and nothing else in the agent waits for this thread: what
//! others have to say is put into the outbox while there is a connection and told anew when there
//! is one again. The coordinator may be in this process ([`CoordinatorAddress::Local`]); the words
//! are the same.
//!
//! A coordinator that hangs, or a network that swallows everything, leaves the connection as it is.
//! So heartbeats are answered, and when nothing at all has come for several of them the connection
//! is given up like one that broke. What counts is bytes, not answers: behind a long message an
//! answer may take its time.
//!
//! A coordinator that is silent for a heartbeat cannot follow the I/O phases of HPC jobs: its
//! requests rest while there are any ([`crate::scheduler`]).
//!
//! Requests outlive the coordinator's last word by as long as it waits for this node, and no
//! longer: without it nobody would end them. With a new connection they are void, too.
//!
//! Coming back is tried at once, then after twice as long each time up to a second, shifted by
//! chance so that a thousand agents do not come in step. A new coordinator waits two heartbeats
//! before its first view, so nobody comes too late.

use super::address::CoordinatorAddress;
use super::answers::Answers;
use super::claims::Claims;
use super::link::{Answer, Link};
use crate::cluster::Cluster;
use crate::config::ClusterConfig;
use crate::counters::Counters;
use crate::jobs::job_state::JobState;
use crate::jobs::task_questions::TaskQuestions;
use crate::memory_control::Control;
use crate::mounts::MountState;
use crate::phases::board::Phases;
use crate::prefetch::requests::Requests;
use crate::stop::{Stop, Wake};
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

/// Heartbeats since the coordinator was last heard after which requests are dropped: by then the
/// coordinator has given this node up.
const ORPHANED_HEARTBEATS: u32 = 3;

/// How often the progress of requests is reported.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Time for the last words at the end.
const FAREWELL_TIME: Duration = Duration::from_millis(500);

/// What others have said stays in the outbox while this much waits to be sent, so that a book of
/// jobs longer than the connection's bound can be told.
const SEND_AHEAD_BYTES: usize = 4 << 20;

/// So many reasons why it cannot join are logged before it has joined again.
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
    /// The members, as the coordinator tells them.
    pub cluster: Arc<Cluster>,
    /// What the coordinator has ordered.
    pub requests: Arc<Requests>,
    /// The jobs of local clients.
    pub jobs: Arc<JobState>,
    /// Their tasks that ask whether they may read.
    pub questions: Arc<TaskQuestions>,
    /// The HPC jobs of local clients.
    pub phases: Arc<Phases>,
    /// The dirty files of this node.
    pub claims: Arc<Claims>,
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
    let (mut lost_at, mut heartbeat) = (Instant::now(), Duration::from_secs(1));
    let mut complained = Vec::new();
    while !node.stop.is_stopping() {
        match meet(node, coordinator_at, (incarnation, attempt)) {
            Ok(mut meeting) => {
                tracing::info!(coordinator = ?coordinator_at, "joined the cluster");
                back_off = BACK_OFF.0;
                complained.clear();
                let ended = meeting.stay(node);
                node.link.end();
                node.phases.coordinator_lost();
                node.questions.set_connected(false);
                node.cluster.set_connected(false);
                (lost_at, heartbeat) = (meeting.answers.heard_at, meeting.heartbeat);
                match ended {
                    Ok(()) => return,
                    Err(e) => {
                        tracing::warn!(coordinator = ?coordinator_at, error = %e, "lost the coordinator")
                    }
                }
            }
            Err(e) => {
                // Each reason once: a coordinator that is away for a night must not fill the log.
                let reason = e.to_string();
                if complained.len() < COMPLAINTS_MAX && !complained.contains(&reason) {
                    tracing::warn!(coordinator = ?coordinator_at, error = %e, "cannot join; reads continue, and the agent tries again");
                    complained.push(reason);
                }
            }
        }
        node.phases.scheduler().set_coordinator_silent(lost_at.elapsed() > heartbeat);
        if lost_at.elapsed() > heartbeat * ORPHANED_HEARTBEATS {
            node.requests.drop_all();
        }
        attempt += 1;
        pause(&node.stop, back_off);
        back_off = (back_off * 2).min(BACK_OFF.1);
    }
}

/// Waits about `length`, but not through the agent's end.
fn pause(stop: &Stop, length: Duration) {
    let mut chance = [0u8; 1];
    // Without chance all come in step; that is all that is lost.
    let _ = rustix::rand::getrandom(&mut chance, rustix::rand::GetRandomFlags::empty());
    stop.wait(length.mul_f64(0.75 + f64::from(chance[0]) / 512.0));
}

/// A connection on which this agent has been welcomed.
struct Meeting {
    link: Framed,
    heartbeat: Duration,
    last_heartbeat: Instant,
    last_progress: Instant,
    answers: Answers,
}

/// Connects and joins.
fn meet(
    node: &Node,
    coordinator_at: &CoordinatorAddress,
    (incarnation, attempt): (u64, u64),
) -> io::Result<Meeting> {
    let deadline = Instant::now() + CONNECT_TIME;
    let mut link = Framed::new(coordinator_at.connect(deadline)?)?;
    let join =
        ToCoordinator::Join { protocol: CLUSTER_PROTOCOL, node: node.describe(), incarnation, attempt };
    link.send(&join)?;
    let heartbeat_ms = loop {
        link.flush()?;
        let arrived = link.receive()?;
        match link.next_message::<ToAgent>()? {
            Some(ToAgent::Welcome { refusal, .. }) if !refusal.is_empty() => {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, refusal));
            }
            Some(ToAgent::Welcome { heartbeat_ms, .. }) => break heartbeat_ms,
            Some(other) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("{other:?} before a welcome"),
                ));
            }
            None if arrived == Arrived::Closed => return Err(io::ErrorKind::UnexpectedEof.into()),
            None => {}
        }
        if Instant::now() >= deadline || node.stop.is_stopping() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it connects but does not answer"));
        }
        wait_for(&link, &node.wake, Duration::from_millis(100))?;
    };
    // It does not know them; what is still wanted is ordered anew.
    node.requests.drop_all();
    node.phases.tell_again(|hpc| {
        node.jobs.tell_again(|mut reported| {
            reported.extend(hpc);
            node.claims.report_again(|dirty| {
                reported.extend(dirty);
                node.link.begin(reported);
            });
        });
    });
    node.phases.scheduler().set_coordinator_silent(false);
    node.questions.set_connected(true);
    node.cluster.set_connected(true);
    let now = Instant::now();
    Ok(Meeting {
        link,
        heartbeat: Duration::from_millis(heartbeat_ms.clamp(10, 60_000).into()),
        last_heartbeat: now,
        last_progress: now,
        answers: Answers::new(now),
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
    /// Goes on until the agent ends (`Ok`) or the connection does.
    fn stay(&mut self, node: &Node) -> io::Result<()> {
        loop {
            let now = Instant::now();
            let arrived = self.link.receive()?;
            self.listen(now)?;
            node.phases.scheduler().set_coordinator_silent(self.answers.silence(now) > self.heartbeat);
            while let Some(message) = self.link.next_message::<ToAgent>()? {
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

    /// Gives up a coordinator that has been silent for too long at `now`, before all was taken in
    /// that has come.
    fn listen(&mut self, now: Instant) -> io::Result<()> {
        self.answers.note(now, self.link.received_bytes());
        let (silence, limit) = (self.answers.silence(now), self.heartbeat * UNANSWERED_HEARTBEATS);
        if silence <= limit {
            return Ok(());
        }
        let text = format!(
            "it has not answered for {:.1} s: it hangs, or the network loses what is sent",
            silence.as_secs_f64()
        );
        Err(io::Error::new(io::ErrorKind::TimedOut, text))
    }

    fn hear(&mut self, node: &Node, message: ToAgent) {
        match message {
            ToAgent::Members(view) => node.cluster.update(view),
            ToAgent::Jobs { ask, jobs } => node.link.answer(ask, Answer::Jobs(jobs)),
            ToAgent::Plans { ask, log } => node.link.answer(ask, Answer::Plans(log)),
            ToAgent::Overview { ask, overview } => node.link.answer(ask, Answer::Overview(overview)),
            ToAgent::Health { ask, nodes } => node.link.answer(ask, Answer::Health(nodes)),
            ToAgent::Phases { node: from, lease_ms, phases } => {
                node.phases.heard(from, Duration::from_millis(lease_ms.into()), phases);
            }
            ToAgent::LetIn { hpc } => node.phases.let_in(hpc),
            ToAgent::Pace { hpc, permille } => node.phases.pace(hpc, permille),
            ToAgent::MayRead { ask } => node.questions.answered(ask),
            ToAgent::Holder { ask, node: holder, before } => {
                node.link.answer(ask, Answer::Holder(holder, before));
            }
            ToAgent::Fetch(request) => node.requests.begin(request),
            ToAgent::Adjust { request, threads, rate_bytes_per_s } => {
                node.requests.adjust(request, threads, rate_bytes_per_s);
            }
            ToAgent::Pause { on } => node.requests.pause_all(on),
            ToAgent::Cancel { requests } => node.requests.cancel(&requests),
            // Bytes have come; that is all there is to it.
            ToAgent::Heard => {}
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

    /// Says that this node goes, as far as the coordinator listens.
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
    /// This node as others are told.
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
