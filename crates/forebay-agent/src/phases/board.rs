//! The board of this node, driven by programs, peers and the clock.

use super::change_limit::{Pace, Seldom};
use super::observed::Observed;
use super::spread::{Spread, is_under_way};
use super::waits::{Asked, Waits};
use super::words;
use crate::config::{self, Live};
use crate::counters::{Counters, add};
use crate::lock::lock;
use crate::scheduler::Scheduler;
use crate::stop::Stop;
use forebay_policy::machine::{Machine, Nanos};
use forebay_policy::node;
use forebay_policy::phases::{Action, Board, Config, Event, JobKey, JobStatus, Refused, Seen};
use forebay_wire::cluster::ToCoordinator;
use forebay_wire::{Declared, HpcPhase, HpcStatus, Report};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest sleep of the thread, which looks in between whether the agent is ending.
const SLEEP_MAX: Duration = Duration::from_millis(500);

/// How often observed programs are looked at: while they are in a phase, and while not.
const POLL: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(50));

/// Longest that a program waits to be let in before it has to ask again.
const ACCESS_WAIT: Duration = Duration::from_millis(500);

/// Writers that may write for a fraction of the time do so at the beginning of each period of this
/// length.
const PACE_PERIOD_MS: u64 = 1000;

/// Sends a message to the coordinator, if there is one.
pub type Say = Box<dyn Fn(ToCoordinator) + Send + Sync>;

/// See the module.
pub struct Phases {
    live: Arc<Live<config::Config>>,
    /// Another coordinator takes over from one that is lost.
    fails_over: bool,
    state: Mutex<State>,
    changed: Condvar,
    scheduler: Arc<Scheduler>,
    counters: Arc<Counters>,
    spread: Arc<Spread>,
    say: Say,
    pace: Pace,
    /// When a brake that was set, and a phase that did not end, were last logged.
    logged: [Seldom; 2],
    /// The log says that the brake is set.
    is_brake_logged: AtomicBool,
    started: Instant,
}

struct State {
    board: Board,
    /// Jobs whose programs are observed.
    observed: BTreeMap<JobKey, Observed>,
    waits: Waits,
    /// Jobs whose observed programs have begun to write and are not let in yet: what they had moved
    /// then.
    held: BTreeMap<JobKey, u64>,
    /// Jobs that may write for a fraction of the time, in thousandths.
    paces: BTreeMap<JobKey, u16>,
    /// Where jobs that have said so write.
    writes_to: BTreeMap<JobKey, Vec<String>>,
    /// What this agent had fetched at the last look.
    fetched_bytes: u64,
}

impl State {
    /// How soon observed programs have to be looked at.
    fn poll_time(&self) -> Option<Duration> {
        let in_phase = self.observed.values().any(Observed::is_in_phase);
        (!self.observed.is_empty()).then_some(if in_phase { POLL.0 } else { POLL.1 })
    }
}

impl fmt::Debug for Phases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Phases").field("scheduler", &self.scheduler).finish_non_exhaustive()
    }
}

impl Phases {
    /// A board of which nothing is known yet.
    pub fn new(
        config: Config,
        scheduler: Arc<Scheduler>,
        counters: Arc<Counters>,
        spread: Arc<Spread>,
        say: Say,
        live: Arc<Live<config::Config>>,
        fails_over: bool,
    ) -> Self {
        let state = State {
            board: Board::new(config),
            observed: BTreeMap::new(),
            waits: Waits::default(),
            held: BTreeMap::new(),
            paces: BTreeMap::new(),
            writes_to: BTreeMap::new(),
            fetched_bytes: 0,
        };
        Phases {
            live,
            fails_over,
            state: Mutex::new(state),
            changed: Condvar::new(),
            scheduler,
            counters,
            spread,
            say,
            pace: Pace::default(),
            logged: Default::default(),
            is_brake_logged: AtomicBool::new(false),
            started: Instant::now(),
        }
    }

    fn now(&self) -> Nanos {
        Nanos(self.started.elapsed().as_nanos() as u64)
    }

    /// Returns how long a program of `user` has to wait before it makes this many changes to the
    /// board.
    pub fn wait_of(&self, user: u32, changes: u64) -> Duration {
        self.pace.wait(self.now(), user, changes)
    }

    /// Opens an HPC job for the program of connection `key`, of user `user`.
    ///
    /// # Errors
    /// What it declares is impossible, or the user has too many.
    pub fn open(&self, key: JobKey, job: Declared, user: u32) -> Result<(), Refused> {
        let declared = Declared { user, weight: job.weight.max(1), ..job };
        let mut state = lock(&self.state);
        state.board.may_open(&declared)?;
        self.hear_in(&mut state, Event::Opens(key, declared));
        Ok(())
    }

    /// Begins a phase. `false`: it does not begin yet, since its step is not let in; the program
    /// asks again.
    ///
    /// # Errors
    /// No job was opened, or it is in a phase.
    pub fn begin(&self, job: JobKey, bytes: u64, deadline_ns: u64) -> Result<bool, Refused> {
        let mut state = lock(&self.state);
        state.board.may_begin(job)?;
        if state.board.shares(job) {
            let (waited, may_begin) = self.wait_for_access(state, job, (bytes, deadline_ns));
            state = waited;
            if !may_begin {
                return Ok(false);
            }
            state.board.may_begin(job)?;
        }
        state.fetched_bytes = self.counters.fetched_bytes.load(Ordering::Relaxed);
        self.spread.begins();
        self.hear_in(&mut state, Event::Begins { job, bytes, deadline_ns });
        self.look_whether_quiet(&mut state);
        Ok(true)
    }

    /// Asks whether a job may write a `step`, given by its bytes and deadline; `None` if it was
    /// observed.
    fn ask(&self, state: &mut State, hpc: JobKey, step: Option<(u64, u64)>) -> bool {
        // Where another takes over, it is asked instead.
        let is_silent = !self.fails_over && self.scheduler.is_coordinator_silent();
        state.waits.most_ns = self.live.get(|config| config.cluster.access_wait.as_nanos() as u64);
        match state.waits.ask(self.now(), hpc, is_silent) {
            Asked::Begin => return true,
            Asked::Wait { is_new: false } => {}
            Asked::Wait { is_new: true } => {
                let (bytes, deadline_ns) = step.unwrap_or_default();
                let (alone_ns, is_observed) = (state.board.alone_ns(hpc, bytes, deadline_ns), step.is_none());
                (self.say)(ToCoordinator::AskAccess { hpc, alone_ns, is_observed });
            }
        }
        false
    }

    /// Waits a moment until a job may write its step.
    fn wait_for_access<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        job: JobKey,
        step: (u64, u64),
    ) -> (MutexGuard<'a, State>, bool) {
        let until = Instant::now() + ACCESS_WAIT;
        loop {
            if self.ask(&mut state, job, Some(step)) {
                return (state, true);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return (state, false);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes the coordinator's permission for a job to write its step.
    pub fn let_in(&self, job: JobKey) {
        lock(&self.state).waits.let_in(job);
        self.changed.notify_all();
    }

    /// Takes the fraction of the time, in thousandths, in which the coordinator lets a job write.
    pub fn pace(&self, job: JobKey, permille: u16) {
        match permille {
            1000.. => drop(lock(&self.state).paces.remove(&job)),
            _ => drop(lock(&self.state).paces.insert(job, permille)),
        }
        self.changed.notify_all();
    }

    /// Records that the next phases of a job write to these servers; none: not known.
    ///
    /// # Errors
    /// No job was opened.
    pub fn writes_to(&self, hpc: JobKey, servers: Vec<String>) -> Result<(), Refused> {
        let mut state = lock(&self.state);
        match state.board.may_begin(hpc) {
            Ok(()) | Err(Refused::InPhase) => {}
            Err(refused) => return Err(refused),
        }
        state.writes_to.insert(hpc, servers.clone());
        (self.say)(ToCoordinator::WritesTo { hpc, servers });
        Ok(())
    }

    /// Records that there is no coordinator any more: nobody waits for it.
    pub fn coordinator_lost(&self) {
        let mut state = lock(&self.state);
        state.waits.set_connected(false);
        state.paces.clear();
        drop(state);
        self.changed.notify_all();
    }

    /// Reports to the coordinator that a program no longer waits to write its step.
    fn gives_up(&self, hpc: JobKey) {
        (self.say)(ToCoordinator::Hpc { hpc, update: Report::Ends });
    }

    /// Records that this many bytes of the phase have been moved.
    pub fn progress(&self, job: JobKey, bytes: u64) {
        self.hear_in(&mut lock(&self.state), Event::Progress { job, bytes });
    }

    /// Ends the phase.
    pub fn end(&self, job: JobKey) {
        let mut state = lock(&self.state);
        if state.waits.give_up(job) {
            self.gives_up(job);
        }
        self.look(&mut state);
        self.hear_in(&mut state, Event::Ends(job));
        self.ends_step(&state, job);
    }

    /// Reports to the coordinator the end of the step of a job that shares. This includes a step
    /// whose phase did not count: nothing else reports its end.
    fn ends_step(&self, state: &State, job: JobKey) {
        if state.board.shares(job) {
            self.gives_up(job);
        }
    }

    /// Observes the programs of a job from now on; the descriptor is for them.
    ///
    /// # Errors
    /// Out of memory or descriptors.
    pub fn observe(&self, job: JobKey) -> io::Result<OwnedFd> {
        let (observed, fd) = Observed::new()?;
        lock(&self.state).observed.insert(job, observed);
        self.changed.notify_all();
        Ok(fd)
    }

    /// Closes the job of a program that is gone.
    pub fn close(&self, job: JobKey) {
        let mut state = lock(&self.state);
        if let Some(observed) = state.observed.remove(&job) {
            observed.hold(false);
        }
        state.waits.give_up(job);
        state.held.remove(&job);
        state.paces.remove(&job);
        state.writes_to.remove(&job);
        self.hear_in(&mut state, Event::Closes(job));
    }

    /// Takes the phases that another node has reported, which count for `lease`.
    pub fn heard(&self, node: String, lease: Duration, phases: Vec<HpcPhase>) {
        let lease_ns = lease.as_nanos() as u64;
        self.hear_in(&mut lock(&self.state), Event::Heard { node, lease_ns, phases });
    }

    /// Bytes that this node has read from the PFS.
    pub fn fetched_bytes(&self) -> u64 {
        self.counters.fetched_bytes.load(Ordering::Relaxed)
    }

    /// The jobs as people see them; `here` is this node's name.
    pub fn status(&self, here: &str) -> Vec<HpcStatus> {
        let state = lock(&self.state);
        let status = |job: JobStatus| {
            let waits_ns = state.waits.waits_ns(self.now(), job.key);
            words::status(job, here, waits_ns)
        };
        state.board.snapshot().into_iter().map(status).collect()
    }

    /// Repeats all that a new coordinator has to know through `say`; later messages follow these.
    pub fn repeat(&self, say: impl FnOnce(Vec<ToCoordinator>)) {
        let mut state = lock(&self.state);
        state.waits.set_connected(true);
        let mut messages = Vec::new();
        for (hpc, reported) in state.board.full_report(self.now()) {
            let joins = matches!(reported, Report::Joins(_));
            messages.push(ToCoordinator::Hpc { hpc, update: reported });
            // Before its phase: it decides who waits for it.
            let servers = state.writes_to.get(&hpc).filter(|_| joins).cloned();
            messages.extend(servers.map(|servers| ToCoordinator::WritesTo { hpc, servers }));
        }
        say(messages);
    }

    /// What is fetched on this node, and when.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Runs the thread: does what is due until the agent ends.
    pub fn run(&self, stop: &Stop) {
        while !stop.is_stopping() {
            let mut state = lock(&self.state);
            let due = state.board.next_deadline().map(|at| at.saturating_since(self.now()));
            let most = state.poll_time().unwrap_or(SLEEP_MAX);
            let wait = due.map_or(most, |ns| Duration::from_nanos(ns).min(most));
            if !wait.is_zero() {
                state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
            }
            self.look(&mut state);
            self.poll(&mut state);
            let now = self.now();
            state.waits.expire(now).into_iter().for_each(|job| self.gives_up(job));
            if state.board.next_deadline().is_some_and(|at| at <= now) {
                let mut actions = Vec::new();
                state.board.on_deadline(now, &mut actions);
                self.carry_out(&state.board, actions);
            }
        }
    }

    /// Looks at what the observer has counted.
    fn poll(&self, state: &mut State) {
        let now = self.now();
        let mut seen = Vec::new();
        for (job, observed) in &mut state.observed {
            seen.extend(observed.look(now).into_iter().map(|seen| (*job, seen)));
        }
        for (job, seen) in seen {
            match seen {
                Seen::Begins { .. } if state.board.shares(job) && !self.ask(state, job, None) => {
                    state.held.insert(job, 0);
                }
                Seen::Begins { at, bytes } => self.begun(state, job, at, bytes),
                Seen::Progress { bytes } if state.held.contains_key(&job) => {
                    state.held.insert(job, bytes);
                }
                Seen::Progress { bytes } => self.hear_in(state, Event::Progress { job, bytes }),
                Seen::Ended { .. } if state.held.remove(&job).is_some() => {
                    state.waits.give_up(job);
                    self.gives_up(job);
                }
                Seen::Ended { at } => {
                    self.hear_in(state, Event::Ended(job, at));
                    self.ends_step(state, job);
                }
            }
        }
        self.hold(state);
    }

    /// Records that an observed phase has begun.
    fn begun(&self, state: &mut State, job: JobKey, at: Nanos, bytes: u64) {
        self.spread.begins();
        self.hear_in(state, Event::Begun { job, at, bytes });
        self.look_whether_quiet(state);
    }

    /// Holds the writers of observed programs that are not let in, or may not write at the moment,
    /// and lets the others continue.
    fn hold(&self, state: &mut State) {
        let now = self.now();
        for (job, bytes) in state.held.clone() {
            if self.ask(state, job, None) {
                state.held.remove(&job);
                self.begun(state, job, now, 0);
                self.hear_in(state, Event::Progress { job, bytes });
            }
        }
        let in_period = now.0 / 1_000_000 % PACE_PERIOD_MS * 1000 / PACE_PERIOD_MS;
        // Nobody is paced for a coordinator that hangs.
        let heard = !self.scheduler.is_coordinator_silent();
        let rests =
            |job: &JobKey| heard && state.paces.get(job).is_some_and(|pace| in_period >= u64::from(*pace));
        for (job, observed) in &state.observed {
            observed.hold(state.held.contains_key(job) || rests(job));
        }
    }

    /// Tells the board what this node has read from the PFS since the last look, and what peers
    /// have read beside the phases of this node.
    fn look(&self, state: &mut State) {
        let fetched_bytes = self.fetched_bytes();
        let own = fetched_bytes.saturating_sub(state.fetched_bytes);
        state.fetched_bytes = fetched_bytes;
        let bytes = own + self.spread.take_beside_bytes();
        if bytes > 0 {
            self.hear_in(state, Event::Beside { bytes });
        }
        if self.spread.take_under_way() {
            self.hear_in(state, Event::UnderWay);
        }
    }

    /// Looks, when a phase has begun, whether bytes for this node are on their way; peers report it
    /// of themselves.
    fn look_whether_quiet(&self, state: &mut State) {
        if self.scheduler.since_read().is_some_and(is_under_way) {
            self.hear_in(state, Event::UnderWay);
        }
    }

    /// Milliseconds since this node has last read from the PFS; `u32::MAX` if it never has.
    pub fn since_read_ms(&self) -> u32 {
        let since = self.scheduler.since_read();
        since.and_then(|since| u32::try_from(since.as_millis()).ok()).unwrap_or(u32::MAX)
    }

    fn hear_in(&self, state: &mut State, event: Event) {
        let mut actions = Vec::new();
        state.board.handle(self.now(), event, &mut actions);
        self.carry_out(&state.board, actions);
        self.changed.notify_all();
    }

    /// Carries out `actions` under the lock of the board: news leaves in the order of the
    /// decisions.
    fn carry_out(&self, board: &Board, actions: Vec<Action>) {
        self.scheduler.set_phases(board.has_phases(), board.sole_user());
        for action in actions {
            match action {
                Action::Brake(on) => {
                    self.scheduler.hear(node::Event::Brake { on });
                    add(&self.counters.brakes_total, u64::from(on));
                    let words = "the brake of prefetches, for I/O phases of HPC jobs";
                    // The last line must not say that it is set when it is not.
                    let is_due = match on {
                        true => self.logged[0].is_due(self.now()),
                        false => self.is_brake_logged.load(Ordering::Relaxed),
                    };
                    self.is_brake_logged.store(is_due && on, Ordering::Relaxed);
                    if is_due {
                        tracing::info!(on, "{words}; more changes within ten seconds are not logged");
                    } else {
                        tracing::debug!(on, "{words}");
                    }
                }
                Action::Report(hpc, reported) => {
                    (self.say)(ToCoordinator::Hpc { hpc, update: reported });
                }
                Action::Spread => self.spread(board),
                Action::CutOff { name, user, lasted_ns } => {
                    add(&self.counters.phases_cut_off_total, 1);
                    let lasted_s = lasted_ns / 1_000_000_000;
                    if self.logged[1].is_due(self.now()) {
                        tracing::warn!(
                            job = name,
                            user,
                            lasted_s,
                            "an I/O phase of an HPC job does not end: it counts no longer, nor do later ones until one \
                             ends by itself; more of them within ten seconds are not logged"
                        );
                    } else {
                        tracing::debug!(job = name, user, lasted_s, "an I/O phase is cut off");
                    }
                }
            }
        }
    }

    fn spread(&self, board: &Board) {
        let phases = board.own_phases();
        if self.spread.notify(phases.clone()) {
            let lease_ms = self.spread.lease().as_millis() as u32;
            (self.say)(ToCoordinator::Phases { lease_ms, phases });
        }
    }
}
