//! Drives the node machine ([`forebay_policy::node`]) with threads and the real clock.
//!
//! Fetch threads take up the tasks that the machine gives them ([`Scheduler::pop`]); a thread that
//! feeds a prefetch request, a load or a page for a peer waits until the machine lets its read go
//! ([`Scheduler::wait_to_read`]). Nothing here decides. With `agent.decision_log` all that the
//! machine hears and decides is recorded.

use crate::cache::entry::Task;
use crate::decision_log;
use crate::lock::lock;
use crate::stop::Wake;
use forebay_policy::drain::{self, FileId, Forced, Outlook};
use forebay_policy::fetch_order::Urgency;
use forebay_policy::machine::{Machine, Nanos};
use forebay_policy::node::{Action, By, Config, Event, Held, Node, Pages, ReadId, TaskId};
use forebay_policy::stage::event::{Progress, RequestId};
use forebay_trace::NODE;
use forebay_trace::log_files::{FILE_BYTES_MAX, Files, Recorder};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The log of a node machine. The next file begins when nothing is on its way, so that files are
/// longer than this where something always is.
const LOG: Files =
    Files { who: NODE, prefix: "node", bytes_long: FILE_BYTES_MAX / 2, bytes_max: FILE_BYTES_MAX };

/// A read that was let go, and that ends when this is dropped.
#[derive(Debug)]
pub struct Permit {
    scheduler: Arc<Scheduler>,
    read: ReadId,
}

impl Permit {
    /// The permit of a read that [`Scheduler::wait_to_read`] has let go.
    pub fn new(scheduler: Arc<Scheduler>, read: ReadId) -> Self {
        Permit { scheduler, read }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.scheduler.read_ended(self.read, 0, 0, 0);
    }
}

/// How often, at least, a thread that waits looks whether it is still to wait.
const LOOK: Duration = Duration::from_millis(500);

/// See the module. `T` is what a fetch thread is given.
#[derive(Debug)]
pub struct Scheduler<T = Task> {
    state: Mutex<State<T>>,
    /// Reads that were let go, and requests and loads that are over.
    changed: Condvar,
    /// By mount and thread.
    wakes: Vec<Vec<Condvar>>,
    /// As decided last.
    held: AtomicU8,
    gentle: AtomicBool,
    phases: Mutex<(bool, Option<u32>)>,
    is_coordinator_silent: AtomicBool,
    /// When this node has last read from a file system, in ns since `started`; 0: never.
    last_read: AtomicU64,
    /// Calls the thread that reports progress.
    reporting: Arc<Wake>,
    started: Instant,
    config: Config,
}

struct State<T> {
    machine: Node,
    recorder: Recorder,
    tasks: HashMap<TaskId, T>,
    /// By mount and thread.
    given: Vec<Vec<Option<TaskId>>>,
    sent: BTreeSet<ReadId>,
    /// Files whose pass is to begin, by mount.
    begun: Vec<VecDeque<FileId>>,
    /// Passes whose next chunk was let go.
    chunks: BTreeMap<FileId, Option<Forced>>,
    /// Tasks that were refused, for the threads that pushed them.
    refused: BTreeSet<TaskId>,
    /// Requests that have moved since they were last reported.
    moved: BTreeMap<RequestId, Progress>,
    /// The number of the last task or read.
    serial: u64,
    closed: bool,
    actions: Vec<Action>,
}

impl<T> std::fmt::Debug for State<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("machine", &self.machine).finish_non_exhaustive()
    }
}

impl<T> Scheduler<T> {
    /// A machine that has heard nothing, for mounts with the fetch threads of `config`. A request
    /// that is done calls `reporting`.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn new(config: Config, decision_log: Option<&Path>, reporting: Arc<Wake>) -> io::Result<Self> {
        let recorder = decision_log::start(decision_log, LOG, &config)?;
        let threads = config.fetch_threads.iter();
        let state = State {
            machine: Node::new(&config),
            recorder,
            tasks: HashMap::new(),
            given: threads.clone().map(|threads| vec![None; *threads]).collect(),
            sent: BTreeSet::new(),
            begun: threads.clone().map(|_| VecDeque::new()).collect(),
            chunks: BTreeMap::new(),
            refused: BTreeSet::new(),
            moved: BTreeMap::new(),
            serial: 0,
            closed: false,
            actions: Vec::new(),
        };
        Ok(Scheduler {
            state: Mutex::new(state),
            changed: Condvar::new(),
            wakes: threads.map(|threads| (0..*threads).map(|_| Condvar::new()).collect()).collect(),
            held: AtomicU8::new(Held::Nothing as u8),
            gentle: AtomicBool::new(false),
            phases: Mutex::default(),
            is_coordinator_silent: AtomicBool::new(false),
            last_read: AtomicU64::new(0),
            reporting,
            started: Instant::now(),
            config,
        })
    }

    /// The beginning of its clock.
    pub fn started(&self) -> Instant {
        self.started
    }

    fn now(&self) -> Nanos {
        Nanos(self.started.elapsed().as_nanos() as u64)
    }

    // The machine.

    /// Hands `event` to the machine.
    pub fn hear(&self, event: Event) {
        self.hear_in(&mut lock(&self.state), event);
    }

    fn hear_in(&self, state: &mut State<T>, event: Event) {
        let now = self.now();
        if state.recorder.is_over() && state.machine.is_as_new(now) {
            self.record_anew(state, now);
        }
        let cause = state.recorder.is_on().then(|| state.recorder.event(now, &event));
        // Those who wait for what is over now have to notice.
        let ends = matches!(event, Event::Release { .. } | Event::LoadEnds { .. });
        state.machine.handle(now, event, &mut state.actions);
        self.obey(state, now, cause);
        if ends {
            self.changed.notify_all();
        }
    }

    /// Wakes the machine if it wanted to be woken by now.
    fn wake_if_due(&self, state: &mut State<T>) {
        let now = self.now();
        if state.machine.next_deadline().is_some_and(|at| at <= now) {
            let cause = state.recorder.is_on().then(|| state.recorder.event(now, &"deadline"));
            state.machine.on_deadline(now, &mut state.actions);
            self.obey(state, now, cause);
        }
    }

    /// Continues the log in another file, with a fresh machine that knows the threads that wait.
    fn record_anew(&self, state: &mut State<T>, now: Nanos) {
        if let Err(e) = state.recorder.begin(&self.config) {
            return tracing::warn!("the decision log of the node pauses: {e}");
        }
        let idle = state.machine.idle_threads();
        state.machine = Node::new(&self.config);
        for (mount, thread) in idle {
            let idle = Event::Idle { mount, thread };
            state.recorder.event(now, &idle);
            state.machine.handle(now, idle, &mut state.actions);
        }
    }

    fn obey(&self, state: &mut State<T>, now: Nanos, cause: Option<u64>) {
        if let Some(cause) = cause {
            state.recorder.actions(now, cause, &state.actions);
        }
        for action in std::mem::take(&mut state.actions) {
            match action {
                Action::Send { read } => {
                    state.sent.insert(read);
                    self.changed.notify_all();
                }
                Action::Read { mount, thread, task } => {
                    state.given[mount][thread] = Some(task);
                    self.wakes[mount][thread].notify_one();
                }
                Action::Refuse { task } => {
                    state.refused.insert(task);
                }
                Action::Hold { held } => self.held.store(held as u8, Ordering::SeqCst),
                Action::Gentle { on } => self.gentle.store(on, Ordering::SeqCst),
                Action::Drain { action: drain::Action::Begin { mount, file } } => {
                    state.begun[mount].push_back(file);
                }
                Action::Drain { action: drain::Action::Send { file, forced } } => {
                    state.chunks.insert(file, forced);
                    self.changed.notify_all();
                }
                Action::Report { request, progress } => {
                    state.moved.insert(request, progress);
                    if progress.done {
                        self.reporting.call();
                    }
                }
            }
        }
    }

    /// Called about ten times a second: threads that wait may know of no deadline that came since.
    /// Also writes what was recorded.
    pub fn tick(&self) {
        let mut state = lock(&self.state);
        self.wake_if_due(&mut state);
        state.recorder.flush();
    }

    /// Waits at `condvar` until something changes, the machine wants to be woken, or `limit` has
    /// passed.
    fn wait<'a>(
        &self,
        condvar: &Condvar,
        mut state: MutexGuard<'a, State<T>>,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, State<T>> {
        let now = self.now();
        let due = state.machine.next_deadline().map(|at| Duration::from_nanos(at.saturating_since(now)));
        state = match limit.into_iter().chain(due).min() {
            None => condvar.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => condvar.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0,
        };
        self.wake_if_due(&mut state);
        state
    }

    // Fetch threads.

    /// Makes a task wait for a fetch thread of its mount; see [`Event::Queue`].
    ///
    /// # Errors
    /// The task, if too many wait, or the scheduler is closed.
    pub fn push(&self, mount: usize, urgency: Urgency, pages: Option<Pages>, task: T) -> Result<(), T> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(task);
        }
        state.serial += 1;
        let id = state.serial;
        state.tasks.insert(id, task);
        self.hear_in(&mut state, Event::Queue { task: id, mount, urgency, pages });
        match state.refused.remove(&id) {
            true => Err(state.tasks.remove(&id)).map_err(|task| task.expect("it was just put there")),
            false => Ok(()),
        }
    }

    /// The next task of a fetch thread, which has ended the one before; `None` once the scheduler
    /// is closed.
    pub fn pop(&self, mount: usize, thread: usize) -> Option<T> {
        let mut state = lock(&self.state);
        self.hear_in(&mut state, Event::Idle { mount, thread });
        loop {
            if let Some(id) = state.given[mount][thread].take() {
                return state.tasks.remove(&id);
            }
            if state.closed {
                return None;
            }
            state = self.wait(&self.wakes[mount][thread], state, None);
        }
    }

    /// Records that a fetch thread has read the last of its task: the pages behind may begin.
    pub fn pages_read(&self, mount: usize, thread: usize) {
        self.hear(Event::PagesRead { mount, thread });
    }

    /// Closes the scheduler; returns the tasks that were waiting.
    pub fn close(&self) -> Vec<T> {
        let mut state = lock(&self.state);
        state.closed = true;
        let waiting = state.machine.take_all();
        let recorder = std::mem::replace(&mut state.recorder, Recorder::off());
        self.wakes.iter().flatten().for_each(Condvar::notify_all);
        self.changed.notify_all();
        let waiting = waiting.into_iter().filter_map(|id| state.tasks.remove(&id)).collect();
        drop(state);
        // Without the lock: it waits for the disk.
        drop(recorder);
        waiting
    }

    /// Tasks waiting or running for a mount, and the age in milliseconds of the oldest running one.
    pub fn load(&self, mount: usize) -> (u64, u64) {
        let (tasks, oldest_ns) = lock(&self.state).machine.load(self.now(), mount);
        (tasks, oldest_ns / 1_000_000)
    }

    // Reads.

    /// Waits until a read may go; `None` if it is over: what it is for has been released, or
    /// `deadline` has come. See [`Event::Offer`].
    pub fn wait_to_read(
        &self,
        by: By,
        mount: Option<usize>,
        bytes: u64,
        is_short: bool,
        deadline: Option<Instant>,
    ) -> Option<ReadId> {
        let mut state = lock(&self.state);
        state.serial += 1;
        let read = state.serial;
        self.hear_in(&mut state, Event::Offer { read, by, mount, bytes, is_short });
        loop {
            if state.sent.remove(&read) {
                return Some(read);
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if state.closed || !state.machine.knows(by) || left.is_some_and(|left| left.is_zero()) {
                self.hear_in(&mut state, Event::Withdraw { read });
                return None;
            }
            let look = left.map_or(LOOK, |left| left.min(LOOK));
            state = self.wait(&self.changed, state, Some(look));
        }
    }

    /// Records that a read that was let go has ended, with the bytes of what it was for that are
    /// resident, were fetched, and failed.
    pub fn read_ended(&self, read: ReadId, resident_bytes: u64, fetched_bytes: u64, failed_bytes: u64) {
        self.hear(Event::ReadEnded { read, resident_bytes, fetched_bytes, failed_bytes });
    }

    /// As [`Scheduler::hear`], for what also moves a request, which is reported with the next
    /// progress.
    pub fn settled(&self, request: RequestId, failed_bytes: u64) {
        let mut state = lock(&self.state);
        self.hear_in(&mut state, Event::Settled { request, resident_bytes: 0, failed_bytes });
        if let Some(progress) = state.machine.progress(request) {
            state.moved.insert(request, progress);
        }
    }

    /// How far a request has come; `None` if it was released.
    pub fn progress(&self, request: RequestId) -> Option<Progress> {
        lock(&self.state).machine.progress(request)
    }

    /// Calls `then` while a request cannot be released; not if it was.
    pub fn while_known(&self, request: RequestId, then: impl FnOnce()) {
        let state = lock(&self.state);
        if state.machine.progress(request).is_some() {
            then();
        }
    }

    /// Takes what has moved since the last call: requests that are done, and with `all` others too.
    pub fn take_moved(&self, all: bool) -> Vec<(RequestId, Progress)> {
        let mut state = lock(&self.state);
        let is_due = |(_, progress): &(RequestId, Progress)| all || progress.done;
        let (due, others): (Vec<_>, Vec<_>) = std::mem::take(&mut state.moved).into_iter().partition(is_due);
        state.moved = others.into_iter().collect();
        due
    }

    // Dirty files.

    /// Hands `event` to the drain.
    pub fn notify_drain(&self, event: drain::Event) {
        self.hear(Event::Drain { event });
    }

    /// A file of this mount whose pass is to begin.
    pub fn begun_pass(&self, mount: usize) -> Option<FileId> {
        lock(&self.state).begun[mount].pop_front()
    }

    /// Waits until the pass over a file may write its next chunk; returns why it may during a
    /// phase, or `None` if the pass is over.
    pub fn wait_to_write(&self, file: FileId, bytes: u64, server: Option<u64>) -> Option<Option<Forced>> {
        let mut state = lock(&self.state);
        self.hear_in(&mut state, Event::Drain { event: drain::Event::Offer { file, bytes, server } });
        loop {
            if let Some(forced) = state.chunks.remove(&file) {
                return Some(forced);
            }
            if state.closed || !state.machine.is_passing(file) {
                return None;
            }
            state = self.wait(&self.changed, state, Some(LOOK));
        }
    }

    /// Whether a pass over this dirty file is under way.
    pub fn is_passing(&self, file: FileId) -> bool {
        lock(&self.state).machine.is_passing(file)
    }

    /// The outlook of each dirty file.
    pub fn dirty_files(&self) -> BTreeMap<FileId, Outlook> {
        lock(&self.state).machine.dirty_files()
    }

    // What is fetched at all.

    fn held(&self) -> Held {
        let held = self.held.load(Ordering::SeqCst);
        [Held::Nothing, Held::Plans, Held::AllButDemand][usize::from(held)]
    }

    /// Whether the brake stops what no reader waits for.
    pub fn is_braked(&self) -> bool {
        self.held() == Held::AllButDemand
    }

    /// Whether a page for which no reader waits stops at the end of its chunk.
    pub fn stops(&self, urgency: Urgency) -> bool {
        match self.held() {
            Held::Nothing => false,
            Held::Plans => urgency == Urgency::Plan,
            Held::AllButDemand => true,
        }
    }

    /// Whether what no reader waits for is fetched in small chunks ([`Action::Gentle`]).
    pub fn is_gentle(&self) -> bool {
        self.gentle.load(Ordering::SeqCst)
    }

    /// Whether any I/O phase is under way, and whose all are ([`Event::Phases`]).
    pub fn set_phases(&self, under_way: bool, own: Option<u32>) {
        let mut phases = lock(&self.phases);
        if std::mem::replace(&mut *phases, (under_way, own)) != (under_way, own) {
            self.hear(Event::Phases { under_way, own });
        }
    }

    /// Records that the coordinator has been silent for its lease, or is heard again.
    pub fn set_coordinator_silent(&self, on: bool) {
        if self.is_coordinator_silent.swap(on, Ordering::SeqCst) != on {
            self.hear(Event::Silence { on });
        }
    }

    /// Whether the coordinator is silent.
    pub fn is_coordinator_silent(&self) -> bool {
        self.is_coordinator_silent.load(Ordering::SeqCst)
    }

    /// Records that this node has read from a file system, whoever wanted it.
    pub fn note_read(&self) {
        self.last_read.store(self.now().0.max(1), Ordering::Relaxed);
    }

    /// Time since it last did; `None` if it never has.
    pub fn since_read(&self) -> Option<Duration> {
        let last = Some(self.last_read.load(Ordering::Relaxed)).filter(|last| *last > 0)?;
        Some(Duration::from_nanos(self.now().saturating_since(Nanos(last))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_policy::stage::event::Priority;

    const READ_BYTES: u64 = 2 << 20;
    const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

    /// A scheduler of one mount with four fetch threads.
    fn scheduler(decision_log: Option<&Path>) -> Scheduler<u32> {
        let config = Config { fetch_threads: vec![4], read_bytes: READ_BYTES, ..Config::default() };
        Scheduler::new(config, decision_log, Arc::new(Wake::new().unwrap())).unwrap()
    }

    fn begin(scheduler: &Scheduler<u32>, request: RequestId, threads: u32) {
        let (rate_bytes_per_s, priority) = (0, Priority::Planned);
        scheduler.hear(Event::Request { request, threads, rate_bytes_per_s, priority });
    }

    fn wait(scheduler: &Scheduler<u32>, by: By) -> Option<ReadId> {
        let deadline = PATIENCE.map(|patience| Instant::now() + patience);
        scheduler.wait_to_read(by, Some(0), READ_BYTES, false, deadline)
    }

    #[test]
    fn threads_wait_for_tasks_and_end_when_it_is_closed() {
        let scheduler = scheduler(None);
        std::thread::scope(|threads| {
            let first = threads.spawn(|| (scheduler.pop(0, 0), scheduler.pop(0, 0), scheduler.pop(0, 0)));
            scheduler.push(0, Urgency::Load, None, 1).unwrap();
            scheduler.push(0, Urgency::Demand, None, 2).unwrap();
            while lock(&scheduler.state).machine.idle_threads().is_empty() || scheduler.load(0).0 > 0 {
                std::thread::yield_now();
            }
            scheduler.hear(Event::Brake { on: true });
            scheduler.push(0, Urgency::Refill, None, 3).unwrap();
            assert!(scheduler.is_braked() && scheduler.stops(Urgency::Ahead));
            assert_eq!(scheduler.close(), [3]);
            let taken = first.join().unwrap();
            assert!(matches!(taken, (Some(1), Some(2), None) | (Some(2), Some(1), None)), "{taken:?}");
        });
        assert_eq!(scheduler.push(0, Urgency::Demand, None, 4), Err(4));
    }

    /// A thread that waits has asked for no deadline: the page that hangs was taken up later.
    #[test]
    fn a_page_behind_one_that_hangs_goes_to_a_thread_that_was_waiting_before() {
        let scheduler = scheduler(None);
        let page = |number: u32| Some(Pages { file: 1, range: number..number + 1 });
        std::thread::scope(|threads| {
            let hangs = threads.spawn(|| scheduler.pop(0, 0));
            let waits = threads.spawn(|| scheduler.pop(0, 1));
            while lock(&scheduler.state).machine.idle_threads().len() < 2 {
                std::thread::yield_now();
            }
            scheduler.push(0, Urgency::Demand, page(0), 0).unwrap();
            assert_eq!(hangs.join().unwrap(), Some(0));
            scheduler.push(0, Urgency::Demand, page(1), 1).unwrap();
            while !waits.is_finished() {
                scheduler.tick();
                std::thread::sleep(Duration::from_millis(20));
            }
            assert_eq!(waits.join().unwrap(), Some(1));
        });
    }

    #[test]
    fn a_read_waits_for_room_and_not_beyond_the_end_of_its_request() {
        let scheduler = scheduler(None);
        begin(&scheduler, 1, 4);
        let reads = [(); 2].map(|()| wait(&scheduler, By::Request(1)).unwrap());
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| wait(&scheduler, By::Request(1)));
            let peer = threads.spawn(|| wait(&scheduler, By::Peer));
            let has_asked = |count| {
                while lock(&scheduler.state).serial < count {
                    std::thread::yield_now();
                }
            };
            has_asked(4);
            scheduler.hear(Event::Release { requests: vec![1] });
            assert_eq!(waits.join().unwrap(), None);
            scheduler.read_ended(reads[0], 0, READ_BYTES, 0);
            assert!(peer.join().unwrap().is_some());
        });
        let now = Some(Instant::now());
        assert_eq!(scheduler.wait_to_read(By::Peer, Some(0), READ_BYTES, false, now), None, "in time");
    }

    #[test]
    fn what_has_moved_is_reported_once() {
        let scheduler = scheduler(None);
        begin(&scheduler, 7, 2);
        let read = wait(&scheduler, By::Request(7)).unwrap();
        scheduler.settled(7, 5);
        assert_eq!(scheduler.take_moved(false), []);
        let failed = Progress { failed_bytes: 5, ..Progress::default() };
        assert_eq!((scheduler.take_moved(true), scheduler.take_moved(true)), (vec![(7, failed)], vec![]));
        scheduler.read_ended(read, 0, READ_BYTES, 0);
        scheduler.hear(Event::Fed { request: 7 });
        let done = Progress { fetched_bytes: READ_BYTES, done: true, ..failed };
        assert_eq!(scheduler.take_moved(false), [(7, done)]);
        let mut known = false;
        scheduler.while_known(7, || known = true);
        assert!(known);
        scheduler.hear(Event::Release { requests: vec![7] });
        scheduler.while_known(7, || unreachable!("it was released"));
    }

    #[test]
    fn a_machine_that_hears_its_log_decides_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let scheduler = scheduler(Some(dir.path()));
        std::thread::scope(|threads| {
            for thread in 0..4 {
                let scheduler = &scheduler;
                threads.spawn(move || while scheduler.pop(0, thread).is_some() {});
            }
            begin(&scheduler, 1, 2);
            for task in 0..100 {
                let read = wait(&scheduler, By::Request(1)).unwrap();
                scheduler.push(0, Urgency::Plan, None, task).unwrap();
                scheduler.read_ended(read, 0, READ_BYTES, 0);
            }
            while lock(&scheduler.state).machine.idle_threads().len() < 4 {
                std::thread::yield_now();
            }
            scheduler.close();
        });
        let host = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
        let text = std::fs::read_to_string(host.join("node-000001.log")).unwrap();
        let mut lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let config = serde_json::from_value(lines.next().unwrap()["setup"].take()).unwrap();
        let (mut machine, mut decided, mut count) = (Node::new(&config), Vec::new(), 0);
        for mut line in lines {
            if let Some(event) = line.get_mut("event") {
                let event = serde_json::from_value(event.take()).unwrap();
                let at = Nanos(line["t_ns"].as_u64().unwrap());
                machine.handle(at, event, &mut decided);
            } else {
                assert_eq!(line["action"], serde_json::to_value(decided.remove(0)).unwrap());
                count += 1;
            }
        }
        assert!(decided.is_empty() && count >= 300, "{count}");
    }
}
