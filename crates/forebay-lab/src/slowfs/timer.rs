//! Answers that are given later: a heap of jobs by due time, and two threads that run them.
//!
//! A request that must wait costs one heap entry, not a blocked thread: a thousand requests may
//! wait for a server with a handful of threads here. Reads carry no data while they wait (the bytes
//! are read when due), so the heap stays small however many are pending.
//!
//! Of the idle threads only one, the leader, sleeps until the next due time; the others sleep until
//! called. When the leader takes a job it calls the next one. Two threads are enough to copy
//! several GB/s, and one slow `pread` does not hold up all other answers.
//!
//! A *parked* job is one held by an injected hang: it can be released before its time, and is
//! dropped at shutdown. A dropped job drops its FUSE reply, which answers EIO, so nobody waits for
//! ever.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::num::NonZeroU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The code that is run when its time has come.
pub type Job = Box<dyn FnOnce() + Send>;

/// Waits shorter than this are not worth a thread switch (about 5 us) and are run immediately.
const INLINE_BELOW_NS: u64 = 10_000;
const THREADS: usize = 2;

struct Entry {
    due_ns: u64,
    seq: u64,
    parked: bool,
    job: Job,
}

#[derive(Default)]
struct State {
    heap: BinaryHeap<Entry>,
    seq: u64,
    parked: u64,
    leader: bool,
    draining: bool,
    stopped: bool,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    epoch: Instant,
}

/// Runs jobs at their time. Dropping it does not stop the threads: call [`Timer::stop`].
pub struct Timer {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Timer {
    /// Starts the threads.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub fn start() -> std::io::Result<Self> {
        let shared =
            Arc::new(Shared { state: Mutex::default(), wake: Condvar::new(), epoch: Instant::now() });
        let mut threads = Vec::new();
        for i in 0..THREADS {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(format!("slowfs-timer-{i}"));
            threads.push(thread.spawn(move || shared.work())?);
        }
        Ok(Self { shared, threads: Mutex::new(threads) })
    }

    /// Nanoseconds since the start: the clock of everything here.
    pub fn now_ns(&self) -> u64 {
        self.shared.now_ns()
    }

    /// Runs `job` at `due_ns`, or immediately in this thread if that is past or as good as past.
    pub fn at(&self, due_ns: u64, job: impl FnOnce() + Send + 'static) {
        if due_ns <= self.now_ns().saturating_add(INLINE_BELOW_NS) {
            return job();
        }
        self.push(due_ns, false, Box::new(job));
    }

    /// Holds `job` until `due_ns`, or until [`Timer::release_parked`].
    pub fn park(&self, due_ns: u64, job: impl FnOnce() + Send + 'static) {
        self.push(due_ns, true, Box::new(job));
    }

    fn push(&self, due_ns: u64, parked: bool, job: Job) {
        let mut state = self.shared.lock();
        if state.draining {
            drop(state);
            if !parked {
                job();
            }
            return;
        }
        let seq = state.seq;
        state.seq += 1;
        state.parked += u64::from(parked);
        let first = state.heap.peek().is_none_or(|head| due_ns < head.due_ns);
        state.heap.push(Entry { due_ns, seq, parked, job });
        drop(state);
        if first {
            // The leader's sleep is too long now; the thread that wakes takes care of that.
            self.shared.wake.notify_all();
        }
    }

    /// How many jobs are held by a hang.
    pub fn parked(&self) -> u64 {
        self.shared.lock().parked
    }

    /// Lets all parked jobs continue now.
    pub fn release_parked(&self) {
        self.shared.lock().hurry(|entry| {
            if entry.parked {
                entry.due_ns = 0;
            }
            true
        });
        self.shared.wake.notify_all();
    }

    /// From now on nothing waits: queued jobs are run immediately, parked ones are dropped (which
    /// answers EIO), and the same applies to all later jobs.
    pub fn drain(&self) {
        let mut state = self.shared.lock();
        state.draining = true;
        state.hurry(|entry| {
            entry.due_ns = 0;
            !entry.parked
        });
        state.parked = 0;
        drop(state);
        self.shared.wake.notify_all();
    }

    /// Drains, then ends the threads. Idempotent.
    pub fn stop(&self) {
        self.drain();
        self.shared.lock().stopped = true;
        self.shared.wake.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if thread.join().is_err() {
                // The panic's message is already on stderr; the other answers must still go out.
                continue;
            }
        }
    }
}

impl State {
    /// Rebuilds the heap after `change`, dropping what it returns false for.
    fn hurry(&mut self, mut change: impl FnMut(&mut Entry) -> bool) {
        let mut entries = std::mem::take(&mut self.heap).into_vec();
        entries.retain_mut(|entry| change(entry));
        self.heap = entries.into();
    }
}

impl Shared {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A job never runs under the lock, so a poisoned state is still a whole one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        // The default slack of 50 us would be a quarter of a metadata operation. Refusal only costs
        // precision.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1_000));
        let mut state = self.lock();
        loop {
            let now_ns = self.now_ns();
            let wait_ns = state.heap.peek().map(|head| head.due_ns.saturating_sub(now_ns));
            match wait_ns {
                Some(0) => {
                    let Some(entry) = state.heap.pop() else { continue };
                    state.parked -= u64::from(entry.parked && !state.draining);
                    let more = !state.heap.is_empty() && !state.leader;
                    drop(state);
                    if more {
                        self.wake.notify_one();
                    }
                    (entry.job)();
                    state = self.lock();
                }
                None if state.stopped => return,
                Some(wait_ns) if !state.leader => {
                    state.leader = true;
                    let wait = Duration::from_nanos(wait_ns.min(3_600_000_000_000));
                    state = self.wake.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
                    state.leader = false;
                }
                _ => state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// Earliest first in a max-heap; ties by arrival.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due_ns, other.seq).cmp(&(self.due_ns, self.seq))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const DAY_NS: u64 = 86_400_000_000_000;

    #[test]
    fn jobs_run_in_order_of_their_time_and_not_before() {
        let timer = Timer::start().unwrap();
        let (tx, rx) = mpsc::channel();
        let start_ns = timer.now_ns();
        for ms in [30, 10, 20] {
            let (tx, shared) = (tx.clone(), timer.shared.clone());
            let due_ns = start_ns + ms * 1_000_000;
            timer.at(due_ns, move || tx.send((due_ns, shared.now_ns())).unwrap());
        }
        for ms in [10, 20, 30] {
            let (due_ns, ran_ns) = rx.recv().unwrap();
            assert_eq!(due_ns, start_ns + ms * 1_000_000);
            assert!(ran_ns >= due_ns);
        }
        timer.stop();
    }

    #[test]
    fn what_is_due_runs_at_once_in_the_calling_thread() {
        let timer = Timer::start().unwrap();
        let (tx, rx) = mpsc::channel();
        timer.at(0, move || tx.send(std::thread::current().id()).unwrap());
        assert_eq!(rx.try_recv().unwrap(), std::thread::current().id());
        timer.stop();
    }

    #[test]
    fn a_parked_job_is_released_and_runs() {
        let timer = Timer::start().unwrap();
        let (tx, rx) = mpsc::channel();
        timer.park(DAY_NS, move || tx.send(1).unwrap());
        assert_eq!(timer.parked(), 1);
        timer.release_parked();
        assert_eq!(rx.recv().unwrap(), 1);
        assert_eq!(timer.parked(), 0);
        timer.stop();
    }

    #[test]
    fn stop_runs_what_waits_and_drops_what_hangs() {
        let timer = Timer::start().unwrap();
        let (ran, dropped) = (mpsc::channel(), mpsc::channel::<()>());
        let tx = ran.0;
        timer.at(DAY_NS, move || tx.send(1).unwrap());
        let held = dropped.0;
        timer.park(DAY_NS, move || held.send(()).unwrap());
        timer.stop();
        assert_eq!(ran.1.try_recv(), Ok(1));
        assert_eq!(dropped.1.try_recv(), Err(mpsc::TryRecvError::Disconnected));
        let (tx, rx) = mpsc::channel();
        timer.at(DAY_NS, move || tx.send(2).unwrap());
        assert_eq!(rx.try_recv(), Ok(2), "after a drain nothing waits");
    }
}
