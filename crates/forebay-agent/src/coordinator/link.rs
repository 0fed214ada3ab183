//! This agent's connection to its coordinator: one thread that joins, sends a heartbeat a second,
//! takes views and orders, and comes back when the connection is lost.
//!
//! Nothing here waits for an answer, and nothing else in the agent waits for this thread: what
//! others have to say is put into the outbox while there is a connection and told anew when there
//! is one again. The coordinator may be in this process ([`Home::Local`]); the words are the same.
//!
//! A coordinator that hangs, or a network that swallows everything, leaves the connection as it is.
//! So heartbeats are answered, and when nothing at all has come for several of them the connection
//! is given up like one that broke. What counts is bytes, not answers: behind a long message an
//! answer may take its time.
//!
//! Orders outlive the coordinator's last word by as long as it waits for this node, and no longer:
//! without it nobody would end them. With a new connection they are void, too.
//!
//! Coming back is tried at once, then after twice as long each time up to a second, shifted by
//! chance so that a thousand agents do not come in step. A new coordinator waits two heartbeats
//! before its first view, so nobody comes too late.

use crate::agent::Shared;
use crate::cache::entry::lock;
use crate::jobs::book::{Bounds, JobBook};
use crate::prefetch::orders::Orders;
use forebay_store::Reservation;
use forebay_wire::cluster::{CLUSTER_PROTOCOL, ToAgent, ToCoordinator};
use forebay_wire::framed::{Arrived, Framed};
use forebay_wire::link::{Security, Stream};
use forebay_wire::{JobStatus, JobUpdate, NodeInfo, Refusal};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest time for connecting and being welcomed.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// First and longest pause between two attempts.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Heartbeats without any answer after which the coordinator counts as gone. More than it waits for
/// an agent itself: to give up early costs a thousand agents a new connection each, to give up late
/// costs nobody anything.
const UNANSWERED_HEARTBEATS: u32 = 5;

/// Heartbeats since the coordinator was last heard after which orders are dropped: by then the
/// coordinator has given this node up.
const ORPHANED_HEARTBEATS: u32 = 3;

/// How often the progress of orders is told.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Time for the last words at the end.
const FAREWELL_TIME: Duration = Duration::from_millis(500);

/// Bytes sent and not acknowledged by the coordinator's machine end the connection after this time.
/// Without it a machine that has vanished would be noticed after a quarter of an hour.
const UNACKNOWLEDGED_MS: u32 = 5000;

/// What others have said stays in the outbox while this much waits to be sent, so that a book of
/// jobs longer than the connection's bound can be told.
const SEND_AHEAD_BYTES: usize = 4 << 20;

/// A way to the coordinator of this very process.
pub type Connect = dyn Fn() -> io::Result<Stream> + Send + Sync;

/// Where the coordinator is.
pub enum Home {
    /// In this process.
    Local(Box<Connect>),
    /// At `HOST:PORT`.
    Remote(String, Security),
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Home::Local(_) => "Local",
            Home::Remote(address, _) => address,
        })
    }
}

impl Home {
    fn connect(&self, deadline: Instant) -> io::Result<Stream> {
        match self {
            Home::Local(connect) => connect(),
            Home::Remote(address, security) => {
                let stream = security.connect(address, deadline)?;
                rustix::net::sockopt::set_tcp_user_timeout(stream.socket(), UNACKNOWLEDGED_MS)?;
                Ok(stream)
            }
        }
    }
}

/// What other threads use of the connection.
#[derive(Debug)]
pub struct Link {
    state: Mutex<State>,
    wake: OwnedFd,
    incarnation: u64,
    attempts: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// There is a connection; what is put into the outbox will be sent.
    live: bool,
    outbox: VecDeque<ToCoordinator>,
    /// Who waits for the answer to a question.
    asking: BTreeMap<u64, Sender<Vec<JobStatus>>>,
    next_ask: u64,
    /// The jobs of local clients.
    jobs: JobBook,
}

impl Link {
    /// No connection yet.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn new() -> io::Result<Self> {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Link {
            state: Mutex::default(),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            incarnation: since_1970.as_nanos() as u64,
            attempts: AtomicU64::new(0),
        })
    }

    /// Makes the thread look at its outbox and at the agent's end.
    pub fn wake(&self) {
        // Full means that a call is pending already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// The jobs that the coordinator knows.
    ///
    /// # Errors
    /// There is no coordinator now, or it does not answer within `limit`.
    pub fn ask_jobs(&self, limit: Duration) -> io::Result<Vec<JobStatus>> {
        let (answer, answered) = channel();
        let ask = {
            let mut state = lock(&self.state);
            if !state.live {
                return Err(io::Error::new(io::ErrorKind::NotConnected, "the coordinator does not answer"));
            }
            let ask = state.next_ask;
            state.next_ask += 1;
            state.asking.insert(ask, answer);
            state.outbox.push_back(ToCoordinator::AskJobs { ask });
            ask
        };
        self.wake();
        let jobs = answered.recv_timeout(limit);
        lock(&self.state).asking.remove(&ask);
        jobs.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the coordinator has not answered in time"))
    }

    /// Whether a local client's job may tell so much.
    ///
    /// # Errors
    /// As [`JobBook::may_tell`].
    pub fn may_tell_job(&self, job: u64, updates: &[JobUpdate], bounds: Bounds) -> Result<(), Refusal> {
        lock(&self.state).jobs.may_tell(job, updates, bounds)
    }

    /// A local client's job tells something: it is kept, and sent on if there is a coordinator.
    ///
    /// # Errors
    /// As [`JobBook::tell`].
    pub fn tell_job(
        &self,
        job: u64,
        updates: Vec<JobUpdate>,
        bounds: Bounds,
        room: Reservation,
    ) -> Result<(), Refusal> {
        let mut state = lock(&self.state);
        state.jobs.tell(job, &updates, bounds, room)?;
        if state.live {
            state.outbox.push_back(ToCoordinator::Job { job, updates });
            drop(state);
            self.wake();
        }
        Ok(())
    }

    /// A local client's job has ended, be it that its program has died.
    pub fn end_job(&self, job: u64) {
        let mut state = lock(&self.state);
        if state.jobs.end(job) && state.live {
            state.outbox.push_back(ToCoordinator::Job { job, updates: vec![JobUpdate::End] });
            drop(state);
            self.wake();
        }
    }

    /// From now on what is said is sent; first of all what local jobs have told so far.
    fn begin(&self) {
        let mut state = lock(&self.state);
        state.outbox = state.jobs.tell_again().into();
        state.live = true;
    }

    /// From now on nothing can be said. Whoever has asked hears at once that there will be no
    /// answer.
    fn end(&self) {
        let mut state = lock(&self.state);
        state.live = false;
        state.outbox.clear();
        state.asking.clear();
    }

    fn next_said(&self) -> Option<ToCoordinator> {
        lock(&self.state).outbox.pop_front()
    }

    fn answer(&self, ask: u64, jobs: Vec<JobStatus>) {
        if let Some(asker) = lock(&self.state).asking.remove(&ask) {
            // It may have stopped waiting.
            let _ = asker.send(jobs);
        }
    }
}

/// So many reasons why it cannot join are logged before it has joined again.
const COMPLAINTS_MAX: usize = 8;

/// The thread: stays connected until the agent ends.
pub fn run(shared: &Arc<Shared>, home: &Home) {
    let mut back_off = BACK_OFF.0;
    let (mut lost_at, mut heartbeat) = (Instant::now(), Duration::from_secs(1));
    let mut complained = Vec::new();
    while !shared.is_stopping() {
        match meet(shared, home) {
            Ok(mut meeting) => {
                tracing::info!(coordinator = ?home, "joined the cluster");
                back_off = BACK_OFF.0;
                complained.clear();
                let ended = meeting.stay(shared);
                shared.link.end();
                shared.cluster.set_connected(false);
                (lost_at, heartbeat) = (meeting.answers.heard_at, meeting.heartbeat);
                match ended {
                    Ok(()) => return,
                    Err(e) => tracing::warn!(coordinator = ?home, error = %e, "lost the coordinator"),
                }
            }
            Err(e) => {
                // Each reason once: a coordinator that is away for a night must not fill the log.
                let reason = e.to_string();
                if complained.len() < COMPLAINTS_MAX && !complained.contains(&reason) {
                    tracing::warn!(coordinator = ?home, error = %e, "cannot join; reads continue, and the agent tries again");
                    complained.push(reason);
                }
            }
        }
        if lost_at.elapsed() > heartbeat * ORPHANED_HEARTBEATS {
            shared.orders.drop_all(shared);
        }
        pause(shared, back_off);
        back_off = (back_off * 2).min(BACK_OFF.1);
    }
}

/// Waits about `length`, but not through the agent's end.
fn pause(shared: &Shared, length: Duration) {
    let mut chance = [0u8; 1];
    // Without chance all come in step; that is all that is lost.
    let _ = rustix::rand::getrandom(&mut chance, rustix::rand::GetRandomFlags::empty());
    shared.wait_stop(length.mul_f64(0.75 + f64::from(chance[0]) / 512.0));
}

/// A connection on which this agent has been welcomed.
struct Meeting {
    link: Framed,
    heartbeat: Duration,
    last_heartbeat: Instant,
    last_progress: Instant,
    answers: Answers,
}

/// Whether the coordinator still answers. The time is an argument.
#[derive(Clone, Copy, Debug)]
struct Answers {
    /// When it was last heard.
    heard_at: Instant,
    received_bytes: u64,
    /// The first heartbeat since then.
    asked_at: Option<Instant>,
}

impl Answers {
    fn new(now: Instant) -> Self {
        Answers { heard_at: now, received_bytes: 0, asked_at: None }
    }

    /// A heartbeat goes out.
    fn ask(&mut self, now: Instant) {
        self.asked_at.get_or_insert(now);
    }

    /// So many bytes had come when all was taken in that there was at `now`. What arrived while
    /// this agent itself did not run has been counted: an agent that slept does not take the
    /// coordinator for dead.
    fn note(&mut self, now: Instant, received_bytes: u64) {
        if std::mem::replace(&mut self.received_bytes, received_bytes) != received_bytes {
            (self.heard_at, self.asked_at) = (now, None);
        }
    }

    /// How long it has owed an answer.
    fn silence(&self, now: Instant) -> Duration {
        self.asked_at.map_or(Duration::ZERO, |asked| now.saturating_duration_since(asked))
    }
}

/// Connects and joins.
fn meet(shared: &Arc<Shared>, home: &Home) -> io::Result<Meeting> {
    let deadline = Instant::now() + CONNECT_TIME;
    let mut link = Framed::new(home.connect(deadline)?)?;
    let join = ToCoordinator::Join {
        protocol: CLUSTER_PROTOCOL,
        node: shared.describe(),
        incarnation: shared.link.incarnation,
        attempt: shared.link.attempts.fetch_add(1, Ordering::Relaxed),
    };
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
        if Instant::now() >= deadline || shared.is_stopping() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it connects but does not answer"));
        }
        wait_for(&link, &shared.link, Duration::from_millis(100))?;
    };
    // It does not know them; what is still wanted is ordered anew.
    shared.orders.drop_all(shared);
    shared.link.begin();
    shared.cluster.set_connected(true);
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
fn wait_for(link: &Framed, calls: &Link, limit: Duration) -> io::Result<()> {
    let room = if link.wants_room() { PollFlags::OUT } else { PollFlags::empty() };
    let mut fds = [
        PollFd::new(link, PollFlags::IN | room),
        PollFd::from_borrowed_fd(calls.wake.as_fd(), PollFlags::IN),
    ];
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    match poll(&mut fds, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    if fds[1].revents().contains(PollFlags::IN) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&calls.wake, &mut count);
    }
    Ok(())
}

impl Meeting {
    /// Goes on until the agent ends (`Ok`) or the connection does.
    fn stay(&mut self, shared: &Arc<Shared>) -> io::Result<()> {
        loop {
            let now = Instant::now();
            let arrived = self.link.receive()?;
            self.listen(now)?;
            while let Some(message) = self.link.next_message::<ToAgent>()? {
                self.hear(shared, message);
            }
            if arrived == Arrived::Closed {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if shared.is_stopping() {
                return self.leave();
            }
            self.speak(shared)?;
            self.link.flush()?;
            if arrived == Arrived::All {
                wait_for(&self.link, &shared.link, self.next_turn(shared))?;
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

    fn hear(&mut self, shared: &Arc<Shared>, message: ToAgent) {
        match message {
            ToAgent::Members(view) => shared.cluster.update(view),
            ToAgent::Jobs { ask, jobs } => shared.link.answer(ask, jobs),
            ToAgent::Fetch(order) => Orders::begin(shared, order),
            ToAgent::Adjust { order, threads, rate_bytes_per_s } => {
                shared.orders.adjust(shared, order, threads, rate_bytes_per_s);
            }
            ToAgent::Cancel { orders } => shared.orders.cancel(shared, &orders),
            // Bytes have come; that is all there is to it.
            ToAgent::Heard => {}
            ToAgent::Welcome { .. } => tracing::warn!("the coordinator welcomes twice"),
        }
    }

    fn speak(&mut self, shared: &Shared) -> io::Result<()> {
        while self.link.waiting_bytes() < SEND_AHEAD_BYTES
            && let Some(message) = shared.link.next_said()
        {
            self.link.send(&message)?;
        }
        if self.last_heartbeat.elapsed() >= self.heartbeat {
            self.last_heartbeat = Instant::now();
            self.answers.ask(self.last_heartbeat);
            self.link.send(&ToCoordinator::Heartbeat {
                capacity_bytes: shared.budget.capacity_bytes(),
                resident_bytes: shared.budget.class_bytes(forebay_store::Class::Pages),
                fetched_bytes: shared.counters.fetched_bytes.load(Ordering::Relaxed),
            })?;
        }
        let all = self.last_progress.elapsed() >= PROGRESS_INTERVAL;
        if all {
            self.last_progress = Instant::now();
        }
        for progress in shared.orders.take_progress(all) {
            self.link.send(&ToCoordinator::Order(progress))?;
        }
        Ok(())
    }

    fn next_turn(&self, shared: &Shared) -> Duration {
        let heartbeat = self.heartbeat.saturating_sub(self.last_heartbeat.elapsed());
        let progress = PROGRESS_INTERVAL.saturating_sub(self.last_progress.elapsed());
        if shared.orders.are_busy() { heartbeat.min(progress) } else { heartbeat }
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

impl Shared {
    /// This node as others are told.
    pub fn describe(&self) -> NodeInfo {
        let cluster = &self.config.cluster;
        NodeInfo {
            name: cluster.node.clone(),
            host: cluster.host.clone(),
            address: self.cluster.address().to_owned(),
            role: cluster.role,
            capacity_bytes: self.budget.capacity_bytes(),
            mounts: self.labels(),
            extent_bytes: self.mounts.iter().map(|m| m.config.extent_bytes).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unanswered_heartbeat_counts_as_silence() {
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let mut answers = Answers::new(at(0));
        assert_eq!(answers.silence(at(90)), Duration::ZERO, "nothing was asked");
        answers.ask(at(90));
        answers.ask(at(91));
        assert_eq!(answers.silence(at(93)), Duration::from_secs(3), "the first that is not answered counts");
        answers.note(at(93), 0);
        assert_eq!((answers.silence(at(94)).as_secs(), answers.heard_at), (4, at(0)));
        // Half a message is a sign of life as well.
        answers.note(at(95), 3);
        assert_eq!((answers.silence(at(99)), answers.heard_at), (Duration::ZERO, at(95)));
        answers.ask(at(99));
        answers.note(at(100), 3);
        assert_eq!(answers.silence(at(101)), Duration::from_secs(2));
    }
}
