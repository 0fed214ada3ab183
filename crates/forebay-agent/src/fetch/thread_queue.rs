//! Tasks that wait for a thread, by urgency.
//!
//! A queue has one class per urgency: a waiting reader goes before read-ahead, read-ahead before
//! what jobs will read, and that before loads. Adjacent pages of one file ([`Pages`]) are taken up
//! one after the other.

use crate::lock::lock;
use forebay_policy::fetch_order::{self, Urgency};
use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::ops::Range;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Pages waiting to be fetched ahead, per mount; more are refused. 1024 pages of 2 MiB are 32 full
/// windows.
const AHEAD_MAX: usize = 1024;

/// A task that takes longer keeps the pages behind it waiting no longer: it may hang.
const AHEAD_PATIENCE: Duration = Duration::from_secs(10);

/// As [`AHEAD_PATIENCE`], for what a reader waits for.
const DEMAND_PATIENCE: Duration = Duration::from_secs(4);

/// How often it is looked whether it does.
const PATIENCE_LOOK: Duration = Duration::from_millis(500);

const CLASSES: usize = Urgency::ALL.len();

/// Tasks by urgency, and how long the threads have been at theirs.
#[derive(Debug)]
pub struct Queue<T> {
    classes: Mutex<Classes<T>>,
    ready: Condvar,
}

#[derive(Debug)]
struct Classes<T> {
    waiting: [VecDeque<Waiting<T>>; CLASSES],
    /// Those of them that have pages of a file, by the file and the end of the pages.
    ends: [HashMap<(u64, u32), usize>; CLASSES],
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
    fn holds(self, urgency: Urgency) -> bool {
        match self {
            Held::Nothing => false,
            Held::Plans => urgency == Urgency::Plan,
            Held::AllButDemand => urgency != Urgency::Demand,
        }
    }
}

/// Adjacent pages of a file that wait for the pages before them ([`fetch_order::precedes`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pages {
    /// The same for all pages of a file.
    pub file: u64,
    /// Those of the task.
    pub range: Range<u32>,
}

impl Pages {
    fn end(&self) -> (u64, u32) {
        (self.file, self.range.end)
    }

    /// The end of the pages before.
    fn start(&self) -> (u64, u32) {
        (self.file, self.range.start)
    }
}

#[derive(Debug)]
struct Waiting<T> {
    task: T,
    pages: Option<Pages>,
}

#[derive(Clone, Debug)]
struct Running {
    since: Instant,
    urgency: Urgency,
    pages: Option<Pages>,
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
        let classes = Urgency::ALL.into_iter().filter(|urgency| !self.held.holds(*urgency));
        let (urgency, at) = { classes }.find_map(|urgency| {
            let goes = |waiting: &Waiting<T>| waiting.pages.as_ref().is_none_or(|p| !self.waits(urgency, p));
            Some((urgency, self.waiting[urgency as usize].iter().position(goes)?))
        })?;
        let Waiting { task, pages } = self.waiting[urgency as usize].remove(at)?;
        if let Some(pages) = &pages
            && let Entry::Occupied(mut same) = self.ends[urgency as usize].entry(pages.end())
        {
            *same.get_mut() -= 1;
            if *same.get() == 0 {
                same.remove();
            }
        }
        self.running[thread] = Some(Running { since: Instant::now(), urgency, pages });
        Some(task)
    }

    /// Whether pages wait for those before them.
    fn waits(&self, urgency: Urgency, pages: &Pages) -> bool {
        let before = pages.start();
        let patience = if urgency == Urgency::Demand { DEMAND_PATIENCE } else { AHEAD_PATIENCE };
        let precedes = |running: &Running| {
            running.pages.as_ref().is_some_and(|pages| pages.end() == before)
                && fetch_order::precedes(running.urgency, true, urgency)
                && running.since.elapsed() <= patience
        };
        let is_queued = |of: &Urgency| {
            fetch_order::precedes(*of, false, urgency) && self.ends[*of as usize].contains_key(&before)
        };
        self.running.iter().flatten().any(precedes) || Urgency::ALL.iter().any(is_queued)
    }

    fn len(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    fn drain(&mut self) -> Vec<T> {
        self.ends.iter_mut().for_each(HashMap::clear);
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
            ends: Default::default(),
            running: Vec::new(),
            idle: 0,
            closed: false,
            held: Held::Nothing,
        };
        Queue { classes: Mutex::new(classes), ready: Condvar::new() }
    }

    /// Adds a task; hands it back if its class is full or the queue is closed.
    pub fn push(&self, urgency: Urgency, task: T) -> Result<(), T> {
        self.push_pages(None, urgency, task)
    }

    /// As [`Queue::push`]. `pages` wait for those before them in their file, as far as those are
    /// of a reader too.
    pub fn push_pages(&self, pages: Option<Pages>, urgency: Urgency, task: T) -> Result<(), T> {
        let mut classes = lock(&self.classes);
        let waiting = classes.waiting[urgency as usize].len();
        if classes.closed || (urgency == Urgency::Ahead && waiting >= AHEAD_MAX) {
            return Err(task);
        }
        if let Some(pages) = &pages {
            *classes.ends[urgency as usize].entry(pages.end()).or_default() += 1;
        }
        classes.waiting[urgency as usize].push_back(Waiting { task, pages });
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
                let look = self.ready.wait_timeout(classes, PATIENCE_LOOK);
                classes = look.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// A thread that has ended a task may have taken up one of another file: what waits for the
    /// first is for others.
    fn wake_next(&self, classes: &Classes<T>) {
        if classes.len() > 0 {
            self.ready.notify_one();
        }
    }

    /// What waits for the pages of the task that `thread` is at may begin.
    pub fn let_next_begin(&self, thread: usize) {
        let mut classes = lock(&self.classes);
        let running = classes.running.get_mut(thread).and_then(Option::as_mut);
        let had_pages = running.is_some_and(|running| running.pages.take().is_some());
        if had_pages && classes.len() > 0 {
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

    fn page(file: u64, page: u32) -> Option<Pages> {
        Some(Pages { file, range: page..page + 1 })
    }

    #[test]
    fn adjacent_pages_of_a_reader_are_taken_up_one_after_the_other() {
        let queue = Queue::new();
        for (pages, urgency, task) in [
            (page(7, 2), Urgency::Ahead, 2),
            (page(7, 1), Urgency::Ahead, 1),
            (page(8, 2), Urgency::Ahead, 3),
            (Some(Pages { file: 8, range: 5..8 }), Urgency::Ahead, 4),
            (page(8, 8), Urgency::Ahead, 5),
            (None, Urgency::Load, 6),
        ] {
            queue.push_pages(pages, urgency, task).unwrap();
        }
        assert_eq!(queue.pop(0), Some(1), "the first of those in a row");
        assert_eq!(queue.pop(1), Some(3), "of another file");
        assert_eq!(queue.pop(2), Some(4), "not adjacent to what is under way");
        assert_eq!(queue.pop(3), Some(6), "the others wait for the pages before them");
        queue.push_pages(page(7, 4), Urgency::Demand, 7).unwrap();
        queue.push_pages(page(7, 2), Urgency::Demand, 8).unwrap();
        assert_eq!(queue.pop(3), Some(7), "of one file, but somewhere else");
        let nothing = queue.pop_within(3, Duration::ZERO);
        assert!(!matches!(nothing, Popped::Task(_)), "more urgent now, and the page before is under way");
        assert_eq!(queue.pop(0), Some(8), "has ended");
        assert_eq!([queue.pop(0), queue.pop(2)], [Some(2), Some(5)], "the page was queued twice");
        assert_eq!(queue.waiting(), 0);
    }

    #[test]
    fn the_next_page_begins_when_the_one_before_has_been_read() {
        let queue = Queue::new();
        for number in [0, 1, 2] {
            queue.push_pages(page(7, number), Urgency::Ahead, number).unwrap();
        }
        assert_eq!(queue.pop(0), Some(0));
        assert!(!matches!(queue.pop_within(1, Duration::ZERO), Popped::Task(_)));
        std::thread::scope(|threads| {
            let next = threads.spawn(|| queue.pop_within(1, Duration::from_secs(60)));
            queue.let_next_begin(0);
            assert!(matches!(next.join().unwrap(), Popped::Task(1)));
        });
        assert!(!matches!(queue.pop_within(2, Duration::ZERO), Popped::Task(_)), "page 1 is being read");
    }

    #[test]
    fn a_page_that_a_reader_waits_for_waits_for_no_page_that_has_not_begun() {
        let queue = Queue::new();
        for number in [0, 1, 2] {
            queue.push_pages(page(7, number), Urgency::Ahead, number).unwrap();
        }
        for number in [2, 3] {
            queue.push_pages(page(7, number), Urgency::Demand, number + 10).unwrap();
        }
        assert_eq!(queue.pop(0), Some(12));
        assert_eq!(queue.pop(1), Some(0), "page 3 waits for page 2");
    }

    #[test]
    fn a_page_that_hangs_delays_the_next_for_a_while_only() {
        let queue = Queue::new();
        let age = |thread: usize, by: Duration| {
            lock(&queue.classes).running[thread].as_mut().unwrap().since -= by + Duration::from_millis(1);
        };
        queue.push_pages(page(7, 0), Urgency::Ahead, 0).unwrap();
        assert_eq!(queue.pop(0), Some(0));
        queue.push_pages(page(7, 1), Urgency::Ahead, 1).unwrap();
        queue.push_pages(page(7, 1), Urgency::Demand, 2).unwrap();
        age(0, DEMAND_PATIENCE);
        assert!(matches!(queue.pop_within(1, Duration::ZERO), Popped::Task(2)), "for readers");
        assert!(!matches!(queue.pop_within(2, Duration::ZERO), Popped::Task(_)), "others wait longer");
        age(0, AHEAD_PATIENCE);
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
