//! The coordinator's one thread: waits for all agents at the same time, hands what they say to
//! [`Core`], and carries out what comes of it.
//!
//! One thread and readiness events instead of a thread per agent: a thousand heartbeats a second
//! are then a thousand short reads and nothing else. Nothing in the loop waits for a single agent.
//! Proving who a new connection is (a TLS handshake) takes a while and the other side's
//! cooperation, so that happens in a short-lived thread with a deadline, a bounded number of them
//! at a time, of which strangers cannot take all (`proving`). An agent that does not read fills its
//! bounded buffer and is dropped; it will come back. What all connections hold together is bounded
//! as well (`buffers`).
//!
//! The coordinator may be kept from running, by SIGSTOP or by a machine that thrashes. Agents have
//! given it up meanwhile and tried again, so it finds connections that nobody uses any more, with a
//! join in each. They are distinguished from the others by having ended already, and what is
//! nevertheless read in the wrong order is put right by the number of the connection (`members`).
//! One time is taken for each turn, right after the wait: the time between two of these moments
//! counts as nobody's silence, wherever in the loop it has passed.
//!
//! A candidate ([`crate::election`]) that does not lead has an empty core that hears nothing.
//! Before it carries anything out, a leader looks whether its lease lasts; if not, it closes all
//! connections and is a candidate again. What was decided in that turn is dropped.

use crate::buffers::Buffers;
use crate::core::{Core, Effect};
use crate::driver::Driver;
use crate::election::{Election, Lead, Standing};
use crate::etcd::Place;
use crate::members::{Session, Timing};
use crate::report::{Leadership, Report, Since};
use crate::standby::Standby;
use crate::steps::{self, Steps};
use crate::stored::Writer;
use forebay_policy::machine::Nanos;
use forebay_policy::stage::{Config, Division, Rules};
use forebay_trace::log_files::{FILE_BYTES_MAX, Files, Recorder};
use forebay_trace::{ACCESS, STAGES};
use forebay_wire::cluster::{ToAgent, ToCoordinator};
use forebay_wire::framed::{self, Arrived, Framed};
use forebay_wire::link::{Listener, Security, Stream};
use forebay_wire::proving::Proving;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A new connection has this long to prove itself.
const PROOF_TIME: Duration = Duration::from_secs(5);

/// Connections proving themselves at a time.
const PROVERS_MAX: usize = 64;

/// Connections at a time, those that have not joined included.
const CONNECTIONS_MAX: usize = 16_384;

/// A connection that has proved itself has this long to join.
const JOIN_TIME_NS: u64 = 10_000_000_000;

/// Memory that one message may take when it is decoded: more than twice what an agent puts into one
/// (4 MiB and one update, or one packet of a program and the layouts of its files), so that only
/// this much is taken before it is counted.
const DECODED_BYTES_MAX: u64 = 8 * forebay_wire::frame::MAX_FRAME_BYTES as u64;

/// How long an agent may still listen to the leader before, after an election: it gives up one that
/// does not answer its heartbeats after two seconds, and sends one each second. Nothing that the
/// last leader may have given to somebody else is given away before all agents have come, or this
/// has passed.
const FENCE_NS: u64 = 3_000_000_000;

/// Longest sleep: jobs and members have deadlines of their own; this is for the rest.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// A pause of the loop longer than this is reported to the core: nobody could be heard meanwhile.
const STALL_NS: u64 = 1_500_000_000;

/// Questions of this process that may wait at a time.
const QUESTIONS_MAX: usize = 64;

/// The token of the wake-up call among those of connections, which count from 1.
const WAKE: u64 = 0;

/// How a coordinator is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// `IP:PORT` to listen on; `None` serves this process only.
    pub listen: Option<String>,
    /// How connections prove themselves.
    pub security: Security,
    /// The times of the membership. Without a port nobody has to be waited for, and the grace is 0.
    pub timing: Timing,
    /// The planner of jobs that name none.
    pub planner: String,
    /// The system as it was measured, if it was.
    pub profile: Option<crate::Profile>,
    /// In which order steps of jobs that share write ([`forebay_policy::burst::access::POLICIES`]).
    pub access: String,
    /// Longest time for which a step waits.
    pub access_wait: Duration,
    /// Longest time for which a task waits for its input.
    pub task_wait: Duration,
    /// Most bytes that the buffers of all connections hold together.
    pub buffers_bytes: u64,
    /// Most bytes of memory that the reports of all jobs take together.
    pub reports_bytes: u64,
    /// Directory of the decision log, if there is to be one.
    pub decision_log: Option<PathBuf>,
    /// Where the leader of several candidates is elected; `None`: this is the only coordinator.
    pub etcd: Option<Place>,
}

/// A running coordinator. It ends with [`Coordinator::stop`], or with the process.
#[derive(Debug)]
pub struct Coordinator {
    inner: Arc<Inner>,
    address: Option<SocketAddr>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Inner {
    /// Connections that have proved themselves and are to be served.
    arrived: Mutex<Vec<Stream>>,
    /// Questions of this process.
    asked: Mutex<Vec<(Since, SyncSender<Report>)>>,
    wake: OwnedFd,
    stopping: AtomicBool,
    proving: Proving,
    /// Threads in which connections prove themselves, including those whose place was taken and
    /// that are ending.
    provers: AtomicUsize,
    /// The leader, if it is elected.
    leadership: Mutex<Leadership>,
}

impl Inner {
    fn wake(&self) {
        // Full means that a wake-up call is pending already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn leadership(&self) -> Leadership {
        self.leadership.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes who leads, and since when.
    fn note_leadership(&self, standby: &Standby, elected: Option<&Elected>, address: &str) {
        let mut noted = self.leadership.lock().unwrap_or_else(PoisonError::into_inner);
        let leader = match (elected, standby.leader().0) {
            (Some(elected), _) => (address.to_owned(), elected.lead.term),
            (None, leader) => leader.cloned().unwrap_or_default(),
        };
        noted.problem = standby.leader().1.to_owned();
        if noted.is_elected && noted.leader == leader {
            return;
        }
        noted.is_elected = true;
        noted.leads = elected.is_some();
        noted.elections += u64::from(noted.leads);
        noted.leader = leader;
        noted.since_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
    }

    fn take_in(&self, stream: Stream) {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        self.wake();
    }
}

impl Coordinator {
    /// Starts one.
    ///
    /// # Errors
    /// It cannot listen, with the address; no threads, no descriptors.
    pub fn start(options: Options) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let inner = Arc::new(Inner {
            arrived: Mutex::default(),
            asked: Mutex::default(),
            wake,
            stopping: AtomicBool::new(false),
            proving: Proving::new(PROVERS_MAX),
            provers: AtomicUsize::new(0),
            leadership: Mutex::default(),
        });
        let address = match &options.listen {
            Some(listen) => Some(start_accepting(&inner, options.security.listen(listen)?)?),
            None => None,
        };
        let grace_ns = if options.listen.is_some() { options.timing.grace_ns } else { 0 };
        let timing = Timing { grace_ns, ..options.timing };
        let election = match (&options.etcd, address) {
            (Some(place), Some(address)) => {
                let calls = inner.clone();
                let call = Box::new(move || calls.wake());
                Some(Election::start(place.clone(), address.to_string(), call)?)
            }
            (Some(_), None) => return Err(io::Error::other("a candidate needs an address for agents")),
            (None, _) => None,
        };
        let mut serving = Server::new(inner.clone(), timing, options, election)?;
        let thread = std::thread::Builder::new().name("coordinator".into()).spawn(move || serving.run())?;
        Ok(Coordinator { inner, address, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// A way for this process's own agent to connect, as often as it has to.
    pub fn connector(&self) -> impl Fn() -> io::Result<Stream> + Send + Sync + 'static {
        let inner = self.inner.clone();
        move || {
            let (ours, theirs) = Stream::pair()?;
            inner.take_in(ours);
            Ok(theirs)
        }
    }

    /// A way for this process to ask what the coordinator does.
    pub fn reports(&self) -> Reports {
        Reports { inner: self.inner.clone() }
    }

    /// Ends it. Agents keep the last view and look for the next coordinator.
    pub fn stop(mut self) {
        self.inner.stopping.store(true, Ordering::Release);
        self.inner.wake();
        if let Some(address) = self.address {
            // The listening thread waits in accept; a connection wakes it.
            let _ = TcpStream::connect_timeout(&address, Duration::from_secs(1));
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the coordinator's thread has panicked");
        }
    }
}

/// Asks a coordinator of this process what it does.
#[derive(Clone, Debug)]
pub struct Reports {
    inner: Arc<Inner>,
}

impl Reports {
    /// What has changed since `since`.
    ///
    /// # Errors
    /// The coordinator has ended, has too many questions, or does not answer within `limit`.
    pub fn ask(&self, since: Since, limit: Duration) -> io::Result<Report> {
        let (answer, answered) = sync_channel(1);
        {
            let mut asked = self.inner.asked.lock().unwrap_or_else(PoisonError::into_inner);
            if asked.len() >= QUESTIONS_MAX || self.inner.stopping.load(Ordering::Acquire) {
                return Err(io::Error::new(
                    io::ErrorKind::WouldBlock,
                    "the coordinator takes no question now",
                ));
            }
            asked.push((since, answer));
        }
        self.inner.wake();
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the coordinator has not answered in time");
        answered.recv_timeout(limit).map_err(late)
    }
}

fn start_accepting(inner: &Arc<Inner>, listener: Listener) -> io::Result<SocketAddr> {
    let address = listener.address()?;
    let (inner, listener) = (inner.clone(), Arc::new(listener));
    std::thread::Builder::new().name("coord-accept".into()).spawn(move || accept(&inner, &listener))?;
    Ok(address)
}

fn accept(inner: &Arc<Inner>, listener: &Arc<Listener>) {
    while !inner.stopping.load(Ordering::Acquire) {
        match listener.accept() {
            Ok(_) if inner.stopping.load(Ordering::Acquire) => return,
            Ok(socket) if has_gone(&socket) => {
                tracing::debug!("a connection ended before it was taken");
            }
            Ok(socket) if listener.proves_at_once() => proved(inner, listener, socket),
            Ok(socket) => prove(inner, listener, socket),
            Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {}
            Err(e) => {
                // Out of descriptors or memory: agents wait in the backlog; try again shortly.
                tracing::warn!(error = %e, "cannot accept an agent's connection");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

/// Whether the other end has closed, even if something it said before is still to be read: it has
/// waited in the backlog for longer than its agent would.
fn has_gone(socket: &TcpStream) -> bool {
    let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut fds = [PollFd::new(socket, PollFlags::RDHUP)];
    // If the kernel does not report it, the proof will.
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok() && fds[0].revents().intersects(ended)
}

fn proved(inner: &Inner, listener: &Listener, socket: TcpStream) {
    match listener.prove(socket, Instant::now() + PROOF_TIME) {
        Ok(stream) => inner.take_in(stream),
        Err(e) => tracing::debug!(error = %e, "a connection did not prove itself"),
    }
}

/// Lets a connection prove itself in a thread of its own. If too many do so, another has to end for
/// it.
fn prove(inner: &Arc<Inner>, listener: &Arc<Listener>, socket: TcpStream) {
    let place = match inner.proving.enter(&socket) {
        Ok(place) => place,
        Err(e) => return tracing::warn!(error = %e, "no descriptor to prove a connection"),
    };
    // Those whose place was taken end by themselves, immediately.
    while inner.provers.load(Ordering::Acquire) >= 2 * PROVERS_MAX {
        std::thread::sleep(Duration::from_millis(2));
    }
    inner.provers.fetch_add(1, Ordering::AcqRel);
    let (proving, listener) = (inner.clone(), listener.clone());
    let spawned = std::thread::Builder::new().name("coord-proof".into()).spawn(move || {
        proved(&proving, &listener, socket);
        drop(place);
        proving.provers.fetch_sub(1, Ordering::AcqRel);
    });
    if let Err(e) = spawned {
        inner.provers.fetch_sub(1, Ordering::AcqRel);
        tracing::warn!(error = %e, "no thread to prove a connection");
    }
}

/// The core of a candidate that does not lead: it hears nothing.
fn idle_core(timing: Timing) -> Core {
    let driver = Driver::new(Config::default(), Recorder::off(), 0, Steps::unscheduled());
    Core::new(0, Nanos(0), timing, driver)
}

/// The decision log of a coordinator.
pub(crate) const LOG: Files =
    Files { who: STAGES, prefix: "decisions", bytes_long: FILE_BYTES_MAX / 4, bytes_max: FILE_BYTES_MAX };

/// The log of its steps, in all as long as one file of the other log, since they are a line a
/// second.
const STEPS_LOG: Files =
    Files { who: ACCESS, prefix: "steps", bytes_long: FILE_BYTES_MAX / 16, bytes_max: FILE_BYTES_MAX / 4 };

fn driver(options: &Options) -> io::Result<Driver> {
    let (default_planner, system) = (options.planner.clone(), options.profile.clone());
    let rules = Rules { task_wait_max_ns: options.task_wait.as_nanos() as u64, ..Rules::default() };
    // Forecasts take steps to be scheduled as they are.
    let division = if options.access == "set-10" { Division::Set10 } else { Division::FairShare };
    let config = Config { default_planner, system, division, rules, ..Config::default() };
    let setup = steps::setup(&options.access, options.access_wait);
    let steps_recorder = recorder(options, STEPS_LOG, &setup)?;
    let steps = Steps::new(setup, steps_recorder).map_err(io::Error::other)?;
    Ok(Driver::new(config.clone(), recorder(options, LOG, &config)?, options.reports_bytes, steps))
}

fn recorder(options: &Options, files: Files, setup: &impl Serialize) -> io::Result<Recorder> {
    let Some(dir) = &options.decision_log else { return Ok(Recorder::off()) };
    Recorder::start(dir, files, setup).map_err(|e| {
        let dir = dir.display();
        io::Error::new(e.kind(), format!("cannot record decisions in {dir} (cluster.decision_log): {e}"))
    })
}

/// What an elected leader has.
struct Elected {
    lead: Lead,
    writer: Writer,
    /// Joins of nodes whose names are being stored, and answers of which something is.
    joins: VecDeque<(u64, Session, ToCoordinator)>,
    answers: VecDeque<(u64, Session, ToAgent)>,
}

struct Server {
    inner: Arc<Inner>,
    options: Options,
    timing: Timing,
    election: Option<Election>,
    /// What this candidate has as the leader, if it leads.
    elected: Option<Elected>,
    standby: Standby,
    /// The last term in which it has led.
    last_term: u64,
    epoll: OwnedFd,
    core: Core,
    agents: BTreeMap<Session, Agent>,
    next_session: Session,
    born: Instant,
    /// Connections with more to read than one turn allows.
    unread: BTreeSet<Session>,
    /// When strangers were last looked for.
    looked_at: Nanos,
    /// The time of this turn of the loop.
    turn: Nanos,
    buffers: Buffers,
    /// Time that the loop did not wait, in nanoseconds.
    busy_ns: u64,
    /// Connections that were closed because the buffers were full.
    buffers_closed: u64,
}

struct Agent {
    link: Framed,
    since: Nanos,
    /// Whether the poller reports when there is room to write.
    wants_room: bool,
    /// It is closed once all has gone.
    closing: bool,
}

impl Server {
    fn new(
        inner: Arc<Inner>,
        timing: Timing,
        options: Options,
        election: Option<Election>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &inner.wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let term = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        let core = match election {
            Some(_) => idle_core(timing),
            None => Core::new(term, Nanos(0), timing, driver(&options)?),
        };
        Ok(Server {
            inner,
            timing,
            election,
            elected: None,
            standby: Standby::default(),
            last_term: 0,
            epoll,
            core,
            agents: BTreeMap::new(),
            next_session: WAKE + 1,
            born: Instant::now(),
            unread: BTreeSet::new(),
            looked_at: Nanos(0),
            turn: Nanos(0),
            buffers: Buffers::new(options.buffers_bytes),
            options,
            busy_ns: 0,
            buffers_closed: 0,
        })
    }

    fn now(&self) -> Nanos {
        Nanos(self.born.elapsed().as_nanos() as u64)
    }

    fn run(&mut self) {
        let mut effects = Vec::new();
        while !self.inner.stopping.load(Ordering::Acquire) {
            let timeout = self.timeout();
            let ready = match self.wait(timeout) {
                Ok(ready) => ready,
                Err(e) => {
                    tracing::error!(error = %e, "the coordinator cannot wait for its agents");
                    std::thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            let due = self.turn + timeout.as_nanos() as u64;
            self.turn = self.now();
            let late_ns = self.turn.saturating_since(due);
            if late_ns > STALL_NS {
                tracing::warn!(late_ms = late_ns / 1_000_000, "the coordinator was prevented from running");
                self.core.forgive(self.turn, late_ns);
            }
            self.follow_election();
            for (session, events) in ready {
                self.serve(session, events, &mut effects);
            }
            self.take_in();
            self.take_stored(&mut effects);
            self.core.tick(self.turn, &mut effects);
            if self.store() {
                self.carry_out(&mut effects);
            }
            effects.clear();
            self.refuse_waiting();
            self.drop_strangers();
            self.answer();
            self.busy_ns += self.now().saturating_since(self.turn);
        }
        self.say_nothing_more();
        // Only now may another one lead.
        if let Some(election) = &mut self.election {
            election.stop();
        }
    }

    /// Answers the questions of this process.
    fn answer(&mut self) {
        let asked = std::mem::take(&mut *self.inner.asked.lock().unwrap_or_else(PoisonError::into_inner));
        for (since, answer) in asked {
            let began = self.now();
            let mut report = self.core.report(began, since);
            report.totals.cost_ns = self.now().saturating_since(began);
            let totals = &mut report.totals;
            totals.busy_ns = self.busy_ns;
            totals.leadership = self.inner.leadership();
            (totals.connections, totals.buffers_bytes) = (self.agents.len(), self.buffers.total_bytes());
            (totals.buffers_bytes_max, totals.buffers_closed) =
                (self.buffers.most_bytes(), self.buffers_closed);
            // The asker may have given up waiting.
            let _ = answer.try_send(report);
        }
    }

    /// Sends what is on its way when the coordinator ends, as far as sockets take it.
    fn say_nothing_more(&mut self) {
        for agent in self.agents.values_mut() {
            // An agent that does not get it notices the closed connection.
            let _ = agent.link.flush();
        }
    }

    fn timeout(&self) -> Duration {
        if !self.unread.is_empty() {
            return Duration::ZERO;
        }
        let due = self.core.next_deadline().into_iter().chain(self.standby.next_deadline(self.now())).min();
        let due = due.map(|at| Duration::from_nanos(at.saturating_since(self.now())));
        due.map_or(SLEEP_MAX, |due| due.min(SLEEP_MAX))
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<Vec<(Session, epoll::EventFlags)>> {
        let mut events = Vec::with_capacity(1024);
        // Rounded up to a millisecond: a deadline that is not reached yet must not make the loop
        // spin.
        let timeout = if timeout.is_zero() { timeout } else { timeout + Duration::from_micros(999) };
        let limit = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let mut ready: Vec<_> = events.iter().map(|e| (e.data.u64(), e.flags)).collect();
        let unread = std::mem::take(&mut self.unread);
        ready.extend(unread.into_iter().map(|session| (session, epoll::EventFlags::IN)));
        Ok(ready)
    }

    fn serve(&mut self, session: Session, events: epoll::EventFlags, effects: &mut Vec<Effect>) {
        if session == WAKE {
            let mut calls = [0; 8];
            let _ = rustix::io::read(&self.inner.wake, &mut calls);
            return;
        }
        if events.contains(epoll::EventFlags::OUT) {
            self.flush(session);
        }
        let readable = epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        if events.intersects(readable)
            && let Err(e) = self.read(session, effects)
        {
            self.drop_agent(session, &e.to_string());
        }
    }

    fn read(&mut self, session: Session, effects: &mut Vec<Effect>) -> io::Result<()> {
        let now = self.turn;
        let Some(agent) = self.agents.get_mut(&session) else { return Ok(()) };
        let arrived = agent.link.receive()?;
        while let Some(message) = agent.link.next_message_within::<ToCoordinator>(DECODED_BYTES_MAX)? {
            match &message {
                // Its agent has given up waiting for the answer, and has another connection by now
                // or is gone.
                ToCoordinator::Join { .. } if arrived == Arrived::Closed => break,
                ToCoordinator::Join { node, .. } if !agent.link.stream().may_speak_for(&node.name) => {
                    let own = agent.link.stream().peer_name().unwrap_or_default();
                    let why = format!("the certificate is of {own:?}, which may not join as {:?}", node.name);
                    self.core.refuse(session, why, effects);
                }
                ToCoordinator::Join { node, .. }
                    if self.elected.is_some() && !self.core.announce(&node.name) =>
                {
                    if let Some(elected) = &mut self.elected {
                        elected.joins.push_back((elected.writer.next(), session, message));
                    }
                }
                _ if self.election.is_some() && self.elected.is_none() => {
                    if !self.standby.hear(now, session, message) {
                        return Err(io::Error::other("this candidate does not lead"));
                    }
                }
                _ => self.core.handle(now, session, message, effects),
            }
        }
        if agent.link.wants_room() {
            self.flush(session);
        }
        self.note_buffers(session);
        match arrived {
            Arrived::All => Ok(()),
            Arrived::MaybeMore => {
                self.unread.insert(session);
                Ok(())
            }
            // What it has said before stands.
            Arrived::Closed => Err(io::Error::other("it closed the connection")),
        }
    }

    fn take_in(&mut self) {
        let arrived = std::mem::take(&mut *self.inner.arrived.lock().unwrap_or_else(PoisonError::into_inner));
        for stream in arrived {
            if self.agents.len() >= CONNECTIONS_MAX {
                tracing::warn!("{CONNECTIONS_MAX} connections are open; one more is refused");
                continue;
            }
            let session = self.next_session;
            self.next_session += 1;
            if let Err(e) = self.add(session, stream) {
                tracing::warn!(error = %e, "cannot serve a connection");
            }
        }
    }

    fn add(&mut self, session: Session, stream: Stream) -> io::Result<()> {
        let link = Framed::new(stream)?;
        epoll::add(&self.epoll, link.as_fd(), epoll::EventData::new_u64(session), epoll::EventFlags::IN)?;
        self.agents.insert(session, Agent { link, since: self.now(), wants_room: false, closing: false });
        // Bytes may have come along with the proof and be announced by nobody.
        self.unread.insert(session);
        Ok(())
    }

    fn carry_out(&mut self, effects: &mut Vec<Effect>) {
        for effect in effects.drain(..) {
            match effect {
                Effect::Send(session, message) => self.send(session, &message),
                Effect::SendStored(session, message) => match &mut self.elected {
                    Some(elected) if elected.writer.given() > elected.writer.stored() => {
                        elected.answers.push_back((elected.writer.given(), session, message));
                    }
                    _ => self.send(session, &message),
                },
                Effect::Publish(view) => self.publish(&ToAgent::Members(view)),
                Effect::Close(session) => {
                    if let Some(agent) = self.agents.get_mut(&session) {
                        agent.closing = true;
                    }
                    self.flush(session);
                }
            }
        }
    }

    fn send(&mut self, session: Session, message: &ToAgent) {
        let Some(agent) = self.agents.get_mut(&session) else { return };
        match agent.link.send(message) {
            Ok(()) => {
                self.flush(session);
                self.bound_buffers();
            }
            // Nothing of it was sent, and the next connection would get the same.
            Err(e) if e.kind() == std::io::ErrorKind::InvalidInput => {
                tracing::error!(error = %e, "a message is too long for an agent");
            }
            Err(e) => self.drop_agent(session, &e.to_string()),
        }
    }

    /// Sends a message, encoded once, to all members.
    fn publish(&mut self, message: &ToAgent) {
        let frame = match framed::shared(message) {
            Ok(frame) => frame,
            Err(e) => return tracing::error!(error = %e, "the view cannot be sent"),
        };
        self.buffers.share(&frame);
        let members: Vec<Session> =
            self.agents.keys().copied().filter(|session| self.core.is_member(*session)).collect();
        for session in members {
            let Some(agent) = self.agents.get_mut(&session) else { continue };
            match agent.link.send_latest(frame.clone()) {
                Ok(()) => self.flush(session),
                Err(e) => self.drop_agent(session, &e.to_string()),
            }
        }
        self.bound_buffers();
    }

    /// Notes what the connection holds, which may have changed.
    fn note_buffers(&mut self, session: Session) {
        if let Some(agent) = self.agents.get(&session) {
            let (bytes, waits) = (agent.link.held_bytes() as u64, agent.link.wants_room());
            self.buffers.note(self.turn, session, bytes, waits);
            self.bound_buffers();
        }
    }

    /// Closes connections, the one that has been behind for longest first, until all of them hold
    /// no more than they may.
    fn bound_buffers(&mut self) {
        while let Some(slowest) = self.buffers.over() {
            let node = self.core.node_of(slowest.session).unwrap_or("?").to_owned();
            tracing::warn!(
                node,
                "the buffers of all connections hold {} bytes and may hold {} (cluster.coordinator_buffers): closing the slowest, \
                 which has been behind for {} ms and holds {} bytes; its agent comes back",
                self.buffers.total_bytes(),
                self.buffers.most_bytes(),
                self.turn.saturating_since(slowest.since) / 1_000_000,
                slowest.bytes
            );
            self.buffers_closed += 1;
            self.drop_agent(slowest.session, "the buffers were full");
            // Even if there was no such agent any more: what does not exist holds nothing.
            self.buffers.forget(slowest.session);
        }
    }

    /// Sends what the socket takes; the rest goes when there is room.
    fn flush(&mut self, session: Session) {
        let Some(agent) = self.agents.get_mut(&session) else { return };
        let done = match agent.link.flush() {
            Ok(done) => done,
            Err(e) => return self.drop_agent(session, &e.to_string()),
        };
        if done && agent.closing {
            self.agents.remove(&session);
            self.buffers.forget(session);
            return;
        }
        self.buffers.note(self.turn, session, agent.link.held_bytes() as u64, !done);
        if done == agent.wants_room {
            agent.wants_room = !done;
            let out = if done { epoll::EventFlags::empty() } else { epoll::EventFlags::OUT };
            let data = epoll::EventData::new_u64(session);
            if let Err(e) = epoll::modify(&self.epoll, agent.link.as_fd(), data, epoll::EventFlags::IN | out)
            {
                self.drop_agent(session, &e.to_string());
            }
        }
    }

    /// Closes a connection, which also takes its socket out of the waiting set. A member stays one
    /// until it is silent for too long.
    fn drop_agent(&mut self, session: Session, why: &str) {
        self.buffers.forget(session);
        self.standby.forget(session);
        if self.agents.remove(&session).is_some() {
            tracing::debug!(session, why, "connection ended");
        }
    }

    /// Closes connections that never joined, and those that are to end but do not take what is
    /// still to be sent.
    fn drop_strangers(&mut self) {
        let now = self.now();
        if now.saturating_since(self.looked_at) < SLEEP_MAX.as_nanos() as u64 {
            return;
        }
        self.looked_at = now;
        let (core, buffers) = (&self.core, &mut self.buffers);
        self.agents.retain(|session, agent| {
            let stays = core.is_member(*session) || now.saturating_since(agent.since) < JOIN_TIME_NS;
            if !stays {
                buffers.forget(*session);
            }
            stays
        });
    }

    /// Begins to lead, or no longer leads.
    fn follow_election(&mut self) {
        let Some(standing) = self.election.as_ref().map(Election::standing) else { return };
        if let Some(elected) = &self.elected {
            let is_same = matches!(&standing, Standing::Leads(lead) if lead.term == elected.lead.term);
            if is_same && elected.may_act() {
                return;
            }
            self.step_down();
        }
        match standing {
            Standing::Leads(lead) if lead.may_act() && lead.term > self.last_term => self.begin_to_lead(lead),
            Standing::Leads(_) => {}
            Standing::Waits { leader, problem } => self.standby.set(leader, problem),
        }
        let address = self.election.as_ref().map_or("", Election::address);
        self.inner.note_leadership(&self.standby, self.elected.as_ref(), address);
    }

    fn begin_to_lead(&mut self, lead: Lead) {
        self.last_term = lead.term;
        match self.lead(lead) {
            Ok(()) => {}
            Err(e) => {
                tracing::error!(error = %e, "cannot lead");
                self.give_up();
            }
        }
    }

    fn lead(&mut self, lead: Lead) -> io::Result<()> {
        let Some(place) = self.options.etcd.clone() else { return Ok(()) };
        let now = self.turn;
        let timing = Timing { grace_ns: FENCE_NS, ..self.timing };
        self.core = Core::new(lead.term, now, timing, driver(&self.options)?);
        self.core.go_on_from(now, &lead.stored);
        let calls = self.inner.clone();
        let writer = Writer::start(place, lead.term, Box::new(move || calls.wake()))?;
        let mut elected = Elected { lead, writer, joins: VecDeque::new(), answers: VecDeque::new() };
        for (session, join) in self.standby.take() {
            elected.joins.push_back((0, session, join));
        }
        self.elected = Some(elected);
        Ok(())
    }

    /// No longer leads: nothing more is said to anybody.
    fn step_down(&mut self) {
        tracing::warn!(
            term = self.last_term,
            agents = self.agents.len(),
            "steps down and closes all connections"
        );
        for session in self.agents.keys().copied().collect::<Vec<_>>() {
            self.drop_agent(session, "this coordinator no longer leads");
        }
        self.unread.clear();
        self.elected = None;
        self.core = idle_core(self.timing);
        self.standby.set(None, String::new());
        self.give_up();
    }

    fn give_up(&self) {
        if let Some(election) = &self.election {
            election.give_up(self.last_term);
        }
    }

    /// Carries out what had to be stored first and is by now.
    fn take_stored(&mut self, effects: &mut Vec<Effect>) {
        let Some(elected) = &mut self.elected else { return };
        let stored = elected.writer.stored();
        let joins = elected.joins.iter().take_while(|(number, ..)| *number <= stored).count();
        let answers = elected.answers.iter().take_while(|(number, ..)| *number <= stored).count();
        let answers = elected.answers.drain(..answers);
        effects.extend(answers.map(|(_, session, message)| Effect::Send(session, message)));
        for (number, session, join) in elected.joins.drain(..joins).collect::<Vec<_>>() {
            self.join(number, session, join, effects);
        }
    }

    /// Handles a join that was kept until there was a leader or the name was stored.
    fn join(&mut self, number: u64, session: Session, join: ToCoordinator, effects: &mut Vec<Effect>) {
        let ToCoordinator::Join { node, .. } = &join else { return };
        let (is_there, is_new) = (self.agents.contains_key(&session), number == 0);
        match &mut self.elected {
            Some(_) if !is_there => self.core.retract(&node.name),
            Some(elected) if is_new && !self.core.announce(&node.name) => {
                elected.joins.push_back((elected.writer.next(), session, join));
            }
            _ => self.core.handle(self.turn, session, join, effects),
        }
    }

    /// Hands on what is to be stored. `false`: this candidate no longer leads, and what it has
    /// decided is void.
    fn store(&mut self) -> bool {
        let Some(elected) = &mut self.elected else { return true };
        if !elected.may_act() {
            self.step_down();
            return false;
        }
        elected.writer.give(self.core.take_changes());
        true
    }

    /// Refuses those that have come to a candidate that does not lead.
    fn refuse_waiting(&mut self) {
        if self.election.is_none() || self.elected.is_some() {
            return;
        }
        let mut refusals = Vec::new();
        for (session, refusal) in self.standby.answers(self.turn) {
            refusals.push(Effect::Send(session, refusal));
            refusals.push(Effect::Close(session));
        }
        self.carry_out(&mut refusals);
    }
}

impl Elected {
    fn may_act(&self) -> bool {
        self.lead.may_act() && !self.writer.is_over()
    }
}
