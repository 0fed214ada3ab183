//! Tasks that wait for a thread, by urgency.
//!
//! The order is that of [`Urgency`]: a waiting reader goes before read-ahead, read-ahead before
//! what jobs will read, and that before loads. Adjacent pages of one file ([`Pages`]) are started
//! one after the other.

use alloc::collections::btree_map::{BTreeMap, Entry};
use alloc::vec::Vec;
use core::ops::Range;

use serde::{Deserialize, Serialize};

use crate::fetch_order::{self, Urgency};
use crate::machine::Nanos;

/// Tasks of read-ahead that may wait; more are refused. 1024 pages of 2 MiB are 32 full windows.
pub const AHEAD_MAX: usize = 1024;

const SECOND_NS: u64 = 1_000_000_000;

/// A task that takes longer no longer delays the pages behind it: it may hang.
const AHEAD_PATIENCE_NS: u64 = 10 * SECOND_NS;

/// As [`AHEAD_PATIENCE_NS`], for pages that a reader waits for.
const DEMAND_PATIENCE_NS: u64 = 4 * SECOND_NS;

const CLASSES: usize = Urgency::ALL.len();

/// Tasks that stay in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// No tasks.
    #[default]
    Nothing,
    /// The tasks of the coordinator's requests.
    Plans,
    /// All tasks that no reader waits for.
    AllButDemand,
}

impl Held {
    /// Returns whether tasks of this urgency stay.
    pub fn holds(self, urgency: Urgency) -> bool {
        match self {
            Held::Nothing => false,
            Held::Plans => urgency == Urgency::Plan,
            Held::AllButDemand => urgency != Urgency::Demand,
        }
    }
}

/// Adjacent pages of a file that wait for the pages before them
/// ([`fetch_order::precedes`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pages {
    /// Identifies the file: equal for all its pages.
    pub file: u64,
    /// The pages of the task.
    pub range: Range<u32>,
}

impl Pages {
    fn end(&self) -> (u64, u32) {
        (self.file, self.range.end)
    }

    /// Returns the end of the pages before.
    fn start(&self) -> (u64, u32) {
        (self.file, self.range.start)
    }
}

/// The end of a range of pages: their file, and the page behind the last.
type End = (u64, u32);

/// See the module.
#[derive(Clone, Debug)]
pub struct Queue<T> {
    /// By class and number.
    ready: [BTreeMap<u64, Waiting<T>>; CLASSES],
    /// Tasks that were next and wait for the pages before them, by the end of these. So none is
    /// examined again until that has changed.
    behind: BTreeMap<End, Vec<(u64, Waiting<T>)>>,
    /// Number of waiting tasks of each class, in `ready` or `behind`.
    waiting: [usize; CLASSES],
    /// Number of waiting tasks with pages that end there.
    ends: [BTreeMap<End, u32>; CLASSES],
    /// The task of each busy thread.
    running: BTreeMap<usize, Running>,
    held: Held,
    /// Number of the last task.
    serial: u64,
    /// When patience was last checked.
    looked: Nanos,
}

#[derive(Clone, Debug)]
struct Waiting<T> {
    task: T,
    urgency: Urgency,
    pages: Option<Pages>,
}

#[derive(Clone, Debug)]
struct Running {
    since: Nanos,
    urgency: Urgency,
    pages: Option<Pages>,
}

fn patience_ns(urgency: Urgency) -> u64 {
    if urgency == Urgency::Demand { DEMAND_PATIENCE_NS } else { AHEAD_PATIENCE_NS }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue {
            ready: Default::default(),
            behind: BTreeMap::new(),
            waiting: [0; CLASSES],
            ends: Default::default(),
            running: BTreeMap::new(),
            held: Held::Nothing,
            serial: 0,
            looked: Nanos(0),
        }
    }
}

impl<T> Queue<T> {
    /// Adds a task. `pages` wait for those before them in their file, as far as those are of a
    /// reader too.
    ///
    /// # Errors
    /// Returns the task if its class is full.
    pub fn push(&mut self, pages: Option<Pages>, urgency: Urgency, task: T) -> Result<(), T> {
        let class = urgency as usize;
        if urgency == Urgency::Ahead && self.waiting[class] >= AHEAD_MAX {
            return Err(task);
        }
        if let Some(pages) = &pages {
            *self.ends[class].entry(pages.end()).or_default() += 1;
        }
        self.waiting[class] += 1;
        self.serial += 1;
        self.ready[class].insert(self.serial, Waiting { task, urgency, pages });
        Ok(())
    }

    /// Starts the most urgent task that may start, on `thread`, and returns it.
    pub fn begin(&mut self, now: Nanos, thread: usize) -> Option<T> {
        for urgency in Urgency::ALL.into_iter().filter(|urgency| !self.held.holds(*urgency)) {
            while let Some((serial, waiting)) = self.ready[urgency as usize].pop_first() {
                let before = waiting.pages.as_ref().map(Pages::start);
                if let Some(before) = before.filter(|before| self.waits(now, urgency, *before)) {
                    self.behind.entry(before).or_default().push((serial, waiting));
                    continue;
                }
                let Waiting { task, pages, .. } = waiting;
                self.leaves(urgency, pages.as_ref());
                self.running.insert(thread, Running { since: now, urgency, pages });
                return Some(task);
            }
        }
        None
    }

    /// Removes a task from the counts of those that wait.
    fn leaves(&mut self, urgency: Urgency, pages: Option<&Pages>) {
        self.waiting[urgency as usize] -= 1;
        if let Some(pages) = pages
            && let Entry::Occupied(mut same) = self.ends[urgency as usize].entry(pages.end())
        {
            *same.get_mut() -= 1;
            if *same.get() == 0 {
                same.remove();
            }
        }
    }

    /// Returns whether pages of this urgency wait for those that end at `before`.
    fn waits(&self, now: Nanos, urgency: Urgency, before: End) -> bool {
        let precedes = |running: &Running| {
            running.pages.as_ref().is_some_and(|pages| pages.end() == before)
                && fetch_order::precedes(running.urgency, true, urgency)
                && now.saturating_since(running.since) <= patience_ns(urgency)
        };
        let is_queued = |of: &Urgency| {
            fetch_order::precedes(*of, false, urgency) && self.ends[*of as usize].contains_key(&before)
        };
        self.running.values().any(precedes) || Urgency::ALL.iter().any(is_queued)
    }

    /// Puts the tasks behind `end` back in their places, since the pages that end there have
    /// changed.
    fn look_behind(&mut self, end: End) {
        for (serial, waiting) in self.behind.remove(&end).unwrap_or_default() {
            self.ready[waiting.urgency as usize].insert(serial, waiting);
        }
    }

    /// Notes that the thread has no task.
    pub fn rest(&mut self, thread: usize) {
        if let Some(Running { pages: Some(pages), .. }) = self.running.remove(&thread) {
            self.look_behind(pages.end());
        }
    }

    /// Lets the pages behind those of the task on `thread` begin.
    pub fn let_next_begin(&mut self, thread: usize) {
        if let Some(pages) = self.running.get_mut(&thread).and_then(|running| running.pages.take()) {
            self.look_behind(pages.end());
        }
    }

    /// Sets which tasks stay in the queue; all others may start.
    pub fn hold(&mut self, held: Held) {
        self.held = held;
    }

    /// The next time when a running task no longer delays the pages behind it.
    pub fn next_deadline(&self) -> Option<Nanos> {
        let waits = |running: &Running| {
            let pages = running.pages.as_ref()?;
            let behind = self.behind.get(&pages.end())?;
            let due = |(_, waiting): &(u64, Waiting<T>)| running.since + (patience_ns(waiting.urgency) + 1);
            behind.iter().map(due).filter(|due| *due > self.looked).min()
        };
        self.running.values().filter_map(waits).min()
    }

    /// Lets pages begin that have waited too long for those before them.
    pub fn look(&mut self, now: Nanos) {
        self.looked = now;
        let is_long = |running: &&Running| now.saturating_since(running.since) > DEMAND_PATIENCE_NS;
        let ends = self.running.values().filter(is_long).filter_map(|running| running.pages.as_ref());
        let ends: Vec<End> = ends.map(Pages::end).collect();
        ends.into_iter().for_each(|end| self.look_behind(end));
    }

    /// Removes and returns all waiting tasks.
    pub fn take_all(&mut self) -> Vec<T> {
        let behind: Vec<End> = self.behind.keys().copied().collect();
        behind.into_iter().for_each(|end| self.look_behind(end));
        self.waiting = [0; CLASSES];
        self.ends.iter_mut().for_each(BTreeMap::clear);
        let ready = self.ready.iter_mut().flat_map(core::mem::take);
        ready.map(|(_, waiting)| waiting.task).collect()
    }

    /// Returns the number of waiting tasks.
    pub fn len(&self) -> usize {
        self.waiting.iter().sum()
    }

    /// Returns whether no task waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether no thread has a task.
    pub fn is_resting(&self) -> bool {
        self.running.is_empty()
    }

    /// Returns the number of tasks that wait or run, and for how long the oldest running one has
    /// run, in ns.
    pub fn load(&self, now: Nanos) -> (u64, u64) {
        let oldest = self.running.values().map(|running| now.saturating_since(running.since)).max();
        ((self.len() + self.running.len()) as u64, oldest.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos(0);

    fn page(file: u64, page: u32) -> Option<Pages> {
        Some(Pages { file, range: page..page + 1 })
    }

    /// Takes a task as a thread does that has finished its last one.
    fn pop(queue: &mut Queue<i32>, thread: usize) -> Option<i32> {
        queue.rest(thread);
        queue.begin(NOW, thread)
    }

    #[test]
    fn waiting_readers_go_first_and_read_ahead_is_bounded() {
        let mut queue = Queue::default();
        let urgencies = [Urgency::Refill, Urgency::Load, Urgency::Plan, Urgency::Ahead, Urgency::Demand];
        for (task, urgency) in (0..).zip(urgencies) {
            queue.push(None, urgency, task).unwrap();
        }
        assert_eq!([(); 6].map(|()| pop(&mut queue, 0)), [Some(4), Some(3), Some(2), Some(1), Some(0), None]);
        for i in 0..AHEAD_MAX as i32 {
            queue.push(None, Urgency::Ahead, i).unwrap();
        }
        assert_eq!(queue.push(None, Urgency::Ahead, -1), Err(-1));
        assert_eq!((queue.take_all().len(), queue.len()), (AHEAD_MAX, 0));
        queue.push(None, Urgency::Ahead, -1).unwrap();
    }

    #[test]
    fn what_nobody_waits_for_stays_while_the_queue_is_held() {
        let mut queue = Queue::default();
        for (urgency, task) in
            [(Urgency::Ahead, 1), (Urgency::Plan, 2), (Urgency::Load, 3), (Urgency::Refill, 4)]
        {
            queue.push(None, urgency, task).unwrap();
        }
        queue.hold(Held::AllButDemand);
        assert_eq!(pop(&mut queue, 0), None);
        queue.push(None, Urgency::Demand, 5).unwrap();
        assert_eq!([(); 2].map(|()| pop(&mut queue, 0)), [Some(5), None]);
        queue.hold(Held::Plans);
        assert_eq!([(); 2].map(|()| pop(&mut queue, 0)), [Some(1), Some(3)]);
        queue.hold(Held::Nothing);
        assert_eq!((pop(&mut queue, 0), queue.len()), (Some(2), 1));
    }

    #[test]
    fn adjacent_pages_of_a_reader_are_taken_up_one_after_the_other() {
        let mut queue = Queue::default();
        for (pages, urgency, task) in [
            (page(7, 2), Urgency::Ahead, 2),
            (page(7, 1), Urgency::Ahead, 1),
            (page(8, 2), Urgency::Ahead, 3),
            (Some(Pages { file: 8, range: 5..8 }), Urgency::Ahead, 4),
            (page(8, 8), Urgency::Ahead, 5),
            (None, Urgency::Load, 6),
        ] {
            queue.push(pages, urgency, task).unwrap();
        }
        assert_eq!(pop(&mut queue, 0), Some(1), "the first of those in a row");
        assert_eq!(pop(&mut queue, 1), Some(3), "of another file");
        assert_eq!(pop(&mut queue, 2), Some(4), "not adjacent to what is under way");
        assert_eq!(pop(&mut queue, 3), Some(6), "the others wait for the pages before them");
        queue.push(page(7, 4), Urgency::Demand, 7).unwrap();
        queue.push(page(7, 2), Urgency::Demand, 8).unwrap();
        assert_eq!(pop(&mut queue, 3), Some(7), "of one file, but somewhere else");
        assert_eq!(pop(&mut queue, 3), None, "more urgent now, and the page before is under way");
        assert_eq!(pop(&mut queue, 0), Some(8), "has ended");
        assert_eq!([pop(&mut queue, 0), pop(&mut queue, 2)], [Some(2), Some(5)], "the page was queued twice");
        assert!(queue.is_empty() && !queue.is_resting());
    }

    #[test]
    fn the_next_page_begins_when_the_one_before_has_been_read() {
        let mut queue = Queue::default();
        for number in [0, 1, 2] {
            queue.push(page(7, number), Urgency::Ahead, number as i32).unwrap();
        }
        assert_eq!((pop(&mut queue, 0), pop(&mut queue, 1)), (Some(0), None));
        queue.let_next_begin(0);
        assert_eq!((pop(&mut queue, 1), pop(&mut queue, 2)), (Some(1), None), "page 1 is being read");
    }

    #[test]
    fn a_page_that_a_reader_waits_for_waits_for_no_page_that_has_not_begun() {
        let mut queue = Queue::default();
        for number in [0, 1, 2] {
            queue.push(page(7, number), Urgency::Ahead, number as i32).unwrap();
        }
        for number in [2, 3] {
            queue.push(page(7, number), Urgency::Demand, number as i32 + 10).unwrap();
        }
        assert_eq!(pop(&mut queue, 0), Some(12));
        assert_eq!(pop(&mut queue, 1), Some(0), "page 3 waits for page 2");
    }

    #[test]
    fn a_page_that_hangs_delays_the_next_for_a_while_only() {
        let mut queue = Queue::default();
        queue.push(page(7, 0), Urgency::Ahead, 0).unwrap();
        assert_eq!(pop(&mut queue, 0), Some(0));
        queue.push(page(7, 1), Urgency::Ahead, 1).unwrap();
        queue.push(page(7, 1), Urgency::Demand, 2).unwrap();
        assert_eq!(pop(&mut queue, 1), None);
        let mut at = |due_ns: u64, thread| {
            assert_eq!(queue.next_deadline(), Some(Nanos(due_ns + 1)));
            queue.look(Nanos(due_ns));
            assert_eq!(queue.begin(Nanos(due_ns), thread), None);
            queue.look(Nanos(due_ns + 1));
            queue.begin(Nanos(due_ns + 1), thread)
        };
        assert_eq!(at(DEMAND_PATIENCE_NS, 1), Some(2), "for readers");
        queue.rest(1);
        assert_eq!(queue.begin(Nanos(DEMAND_PATIENCE_NS + 1), 2), None, "others wait longer");
        let mut at = |due_ns: u64, thread| {
            assert_eq!(queue.next_deadline(), Some(Nanos(due_ns + 1)));
            queue.look(Nanos(due_ns + 1));
            queue.begin(Nanos(due_ns + 1), thread)
        };
        assert_eq!(at(AHEAD_PATIENCE_NS, 2), Some(1));
        assert_eq!(queue.next_deadline(), None);
    }
}
