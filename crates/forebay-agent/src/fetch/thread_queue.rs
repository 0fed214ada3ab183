//! Tasks that wait for a thread, by urgency.
//!
//! A queue has one class per urgency: a waiting reader goes before read-ahead, read-ahead before
//! what jobs will read, and that before loads. Tasks of one stream ([`InStream`]) are taken up one
//! after the other.

use crate::lock::lock;
use forebay_policy::fetch_order::{self, Urgency};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Pages waiting to be fetched ahead, per mount; more are refused. 1024 pages of 2 MiB are 32 full
/// windows.
const AHEAD_MAX: usize = 1024;

/// A task that takes longer keeps others of its stream waiting no longer: it may hang.
const STREAM_PATIENCE: Duration = Duration::from_secs(10);

/// As [`STREAM_PATIENCE`], for what a reader waits for.
const DEMAND_PATIENCE: Duration = Duration::from_secs(4);

/// How often it is looked whether it does.
const STREAM_LOOK: Duration = Duration::from_millis(500);

const CLASSES: usize = fetch_order::URGENCIES;

/// Tasks by urgency, and how long the threads have been at theirs.
#[derive(Debug)]
pub struct Queue<T> {
    classes: Mutex<Classes<T>>,
    ready: Condvar,
}

#[derive(Debug)]
struct Classes<T> {
    waiting: [VecDeque<Waiting<T>>; CLASSES],
    /// The task each busy thread is at.
    running: Vec<Option<Running>>,
    /// Threads in [`Queue::pop_within`].
    idle: usize,
    closed: bool,
    /// What is not taken up.
    held: Held,
}

/// Tasks that stay in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Held {
    /// None.
    #[default]
    Nothing,
    /// Those of the coordinator's requests.
    Plans,
    /// All that no reader waits for.
    AllButDemand,
}

impl Held {
    fn holds(self, class: usize) -> bool {
        match self {
            Held::Nothing => false,
            Held::Plans => class == Urgency::Plan as usize,
            Held::AllButDemand => class != Urgency::Demand as usize,
        }
    }
}

/// One of several tasks that are not to be taken up side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InStream {
    /// Of all of them the same.
    pub stream: u64,
    /// Those of one urgency are taken up in this order.
    pub place: u32,
}

#[derive(Debug)]
struct Waiting<T> {
    task: T,
    at: Option<InStream>,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    since: Instant,
    stream: Option<u64>,
}

/// What came of waiting for a task.
#[derive(Debug)]
pub enum Popped<T> {
    /// A task.
    Task(T),
    /// None in time.
    Nothing,
    /// There will be no more.
    Closed,
}

impl<T> Classes<T> {
    /// The thread is at no task.
    fn rest(&mut self, thread: usize) {
        if self.running.len() <= thread {
            self.running.resize(thread + 1, None);
        }
        self.running[thread] = None;
    }

    /// The thread takes up the most urgent task that may be.
    fn begin(&mut self, thread: usize) -> Option<T> {
        let busy = |patience| -> Vec<u64> {
            let running = self.running.iter().flatten();
            running.filter(|r| r.since.elapsed() <= patience).filter_map(|r| r.stream).collect()
        };
        let (for_demand, for_others) = (busy(DEMAND_PATIENCE), busy(STREAM_PATIENCE));
        let at = |waiting: &Waiting<T>| waiting.at.map(|at| (at.stream, at.place));
        let held = self.held;
        let classes = self.waiting.iter_mut().enumerate().filter(|(class, _)| !held.holds(*class));
        let next = { classes }.find_map(|(class, waiting)| {
            let busy = if class == Urgency::Demand as usize { &for_demand } else { &for_others };
            let next = fetch_order::next(waiting, at, |stream| busy.contains(stream))?;
            waiting.remove(next)
        })?;
        self.running[thread] = Some(Running { since: Instant::now(), stream: next.at.map(|at| at.stream) });
        Some(next.task)
    }

    fn len(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    fn drain(&mut self) -> Vec<T> {
        self.waiting.iter_mut().flat_map(|class| class.drain(..)).map(|w| w.task).collect()
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Queue<T> {
    /// An empty queue.
    pub fn new() -> Self {
        let classes = Classes {
            waiting: Default::default(),
            running: Vec::new(),
            idle: 0,
            closed: false,
            held: Held::Nothing,
        };
        Queue { classes: Mutex::new(classes), ready: Condvar::new() }
    }

    /// Adds a task; hands it back if its class is full or the queue is closed.
    pub fn push(&self, urgency: Urgency, task: T) -> Result<(), T> {
        self.push_in(None, urgency, task)
    }

    /// As [`Queue::push`]. Of the tasks of one stream the next is taken up when the one before has
    /// ended: the most urgent, and of those the first by its place.
    pub fn push_in(&self, at: Option<InStream>, urgency: Urgency, task: T) -> Result<(), T> {
        let mut classes = lock(&self.classes);
        let class = &mut classes.waiting[urgency as usize];
        if urgency == Urgency::Ahead && class.len() >= AHEAD_MAX {
            return Err(task);
        }
        if classes.closed {
            return Err(task);
        }
        classes.waiting[urgency as usize].push_back(Waiting { task, at });
        self.ready.notify_one();
        Ok(())
    }

    /// The most urgent task, waiting for one; `None` once the queue is closed. `thread` is the
    /// caller's number.
    pub fn pop(&self, thread: usize) -> Option<T> {
        let mut classes = lock(&self.classes);
        classes.rest(thread);
        loop {
            if classes.closed {
                return None;
            }
            if let Some(task) = classes.begin(thread) {
                self.wake_next(&classes);
                return Some(task);
            }
            if classes.len() == 0 {
                classes = self.ready.wait(classes).unwrap_or_else(PoisonError::into_inner);
            } else {
                let look = self.ready.wait_timeout(classes, STREAM_LOOK);
                classes = look.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// A thread that has ended a task may have taken up one of another stream: what waits for the
    /// first is for others.
    fn wake_next(&self, classes: &Classes<T>) {
        if classes.len() > 0 {
            self.ready.notify_one();
        }
    }

    /// From now on these are not taken up, and all others are.
    pub fn hold(&self, held: Held) {
        lock(&self.classes).held = held;
        self.ready.notify_all();
    }

    /// No more tasks; returns those that were waiting.
    pub fn close(&self) -> Vec<T> {
        let mut classes = lock(&self.classes);
        classes.closed = true;
        self.ready.notify_all();
        classes.drain()
    }

    /// As [`Queue::pop`], but waits no longer than `limit`.
    pub fn pop_within(&self, thread: usize, limit: Duration) -> Popped<T> {
        let deadline = Instant::now() + limit;
        let mut classes = lock(&self.classes);
        classes.rest(thread);
        classes.idle += 1;
        let popped = loop {
            if classes.closed {
                break Popped::Closed;
            }
            if let Some(task) = classes.begin(thread) {
                self.wake_next(&classes);
                break Popped::Task(task);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Popped::Nothing;
            }
            classes = self.ready.wait_timeout(classes, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        classes.idle -= 1;
        popped
    }

    /// Whether more tasks wait than there are threads in [`Queue::pop_within`]. One that has a task
    /// is not among them, from the moment on in which it took it.
    pub fn is_short_of_threads(&self) -> bool {
        let classes = lock(&self.classes);
        classes.len() > classes.idle
    }

    /// Takes out all that wait.
    pub fn take_all(&self) -> Vec<T> {
        lock(&self.classes).drain()
    }

    /// Tasks waiting.
    pub fn waiting(&self) -> usize {
        lock(&self.classes).len()
    }

    /// Tasks waiting or running, and the age in milliseconds of the oldest running one.
    pub fn load(&self) -> (u64, u64) {
        let classes = lock(&self.classes);
        let running = classes.running.iter().flatten();
        let oldest = running.clone().map(|r| r.since.elapsed()).max().unwrap_or_default();
        ((classes.len() + running.count()) as u64, oldest.as_millis() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_readers_go_first_and_read_ahead_is_bounded() {
        let queue = Queue::new();
        queue.push(Urgency::Load, 1).unwrap();
        queue.push(Urgency::Ahead, 2).unwrap();
        queue.push(Urgency::Demand, 3).unwrap();
        assert_eq!([queue.pop(0), queue.pop(0), queue.pop(0)], [Some(3), Some(2), Some(1)]);
        for i in 0..AHEAD_MAX as i32 {
            queue.push(Urgency::Ahead, i).unwrap();
        }
        assert_eq!(queue.push(Urgency::Ahead, -1), Err(-1));
        assert_eq!(queue.close().len(), AHEAD_MAX);
        assert_eq!(queue.pop(0), None);
        assert_eq!(queue.push(Urgency::Demand, 1), Err(1));
    }

    #[test]
    fn what_nobody_waits_for_stays_while_the_queue_is_held() {
        let queue = Queue::new();
        for (urgency, task) in
            [(Urgency::Ahead, 1), (Urgency::Plan, 2), (Urgency::Load, 3), (Urgency::Refill, 4)]
        {
            queue.push(urgency, task).unwrap();
        }
        queue.hold(Held::AllButDemand);
        assert!(matches!(queue.pop_within(0, Duration::ZERO), Popped::Nothing));
        queue.push(Urgency::Demand, 5).unwrap();
        assert!(matches!(queue.pop_within(0, Duration::ZERO), Popped::Task(5)));
        assert!(matches!(queue.pop_within(0, Duration::ZERO), Popped::Nothing));
        queue.hold(Held::Plans);
        assert!(matches!(queue.pop_within(0, Duration::ZERO), Popped::Task(1)));
        assert!(matches!(queue.pop_within(0, Duration::ZERO), Popped::Task(3)));
        queue.hold(Held::Nothing);
        assert!(matches!(queue.pop_within(0, Duration::ZERO), Popped::Task(2)));
        assert_eq!(queue.waiting(), 1);
    }

    #[test]
    fn tasks_of_one_stream_are_taken_up_one_after_the_other() {
        let queue = Queue::new();
        let at = |stream, place| Some(InStream { stream, place });
        for (at, urgency, task) in [
            (at(7, 3), Urgency::Plan, 3),
            (at(7, 2), Urgency::Ahead, 2),
            (at(7, 1), Urgency::Ahead, 1),
            (at(8, 0), Urgency::Plan, 4),
            (None, Urgency::Load, 5),
        ] {
            queue.push_in(at, urgency, task).unwrap();
        }
        assert_eq!(queue.pop(0), Some(1), "the most urgent of the one, and the first of those");
        assert_eq!(queue.pop(1), Some(4), "of another, though less urgent ones of the first wait");
        assert_eq!(queue.pop(2), Some(5), "of none");
        queue.push_in(at(7, 0), Urgency::Demand, 0).unwrap();
        assert!(
            !matches!(queue.pop_within(3, Duration::ZERO), Popped::Task(_)),
            "the rest waits for its stream"
        );
        queue.push_in(at(9, 0), Urgency::Demand, 6).unwrap();
        assert_eq!(queue.pop(3), Some(6), "and holds up nobody else");
        assert_eq!([queue.pop(0), queue.pop(0), queue.pop(0)], [Some(0), Some(2), Some(3)]);
        assert_eq!(queue.waiting(), 0);
    }

    #[test]
    fn a_page_that_hangs_holds_its_stream_up_for_a_while_only() {
        let queue = Queue::new();
        let at = |place| Some(InStream { stream: 7, place });
        let age = |thread: usize, by: Duration| {
            lock(&queue.classes).running[thread].as_mut().unwrap().since -= by + Duration::from_millis(1);
        };
        queue.push_in(at(0), Urgency::Plan, 0).unwrap();
        assert_eq!(queue.pop(0), Some(0));
        queue.push_in(at(1), Urgency::Plan, 1).unwrap();
        queue.push_in(at(2), Urgency::Demand, 2).unwrap();
        age(0, DEMAND_PATIENCE);
        assert!(matches!(queue.pop_within(1, Duration::ZERO), Popped::Task(2)), "for readers");
        age(1, DEMAND_PATIENCE);
        assert!(!matches!(queue.pop_within(2, Duration::ZERO), Popped::Task(_)), "others wait longer");
        [0, 1].into_iter().for_each(|thread| age(thread, STREAM_PATIENCE));
        assert!(matches!(queue.pop_within(2, Duration::ZERO), Popped::Task(1)));
    }

    #[test]
    fn a_thread_that_has_taken_a_task_is_not_idle_any_more() {
        let queue = Queue::new();
        assert!(!queue.is_short_of_threads());
        queue.push(Urgency::Load, 1).unwrap();
        assert!(queue.is_short_of_threads(), "nobody is there");
        assert!(matches!(queue.pop_within(0, Duration::from_secs(9)), Popped::Task(1)));
        assert!(!queue.is_short_of_threads());
        queue.push(Urgency::Load, 2).unwrap();
        assert!(queue.is_short_of_threads(), "the one that was there is at its task");
        assert_eq!(queue.take_all(), [2]);
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| queue.pop_within(0, Duration::from_secs(60)));
            while lock(&queue.classes).idle == 0 {
                std::thread::yield_now();
            }
            queue.push(Urgency::Load, 3).unwrap();
            assert!(matches!(waits.join().unwrap(), Popped::Task(3)));
        });
    }
}
