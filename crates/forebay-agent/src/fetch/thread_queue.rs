//! What waits for the threads that ask a peer: [`forebay_policy::node::Queue`] with as many threads
//! as there is work for.

use crate::lock::lock;
use forebay_policy::fetch_order::Urgency;
use forebay_policy::machine::Nanos;
use forebay_policy::node::Queue;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Tasks by urgency, for threads that come and go.
#[derive(Debug)]
pub struct ThreadQueue<T> {
    state: Mutex<State<T>>,
    ready: Condvar,
    started: Instant,
}

#[derive(Debug)]
struct State<T> {
    queue: Queue<T>,
    /// Threads in [`ThreadQueue::pop_within`].
    idle: usize,
    closed: bool,
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

impl<T> Default for ThreadQueue<T> {
    fn default() -> Self {
        let state = State { queue: Queue::default(), idle: 0, closed: false };
        ThreadQueue { state: Mutex::new(state), ready: Condvar::new(), started: Instant::now() }
    }
}

impl<T> ThreadQueue<T> {
    /// Adds a task; hands it back if its class is full or the queue is closed.
    ///
    /// # Errors
    /// The task.
    pub fn push(&self, urgency: Urgency, task: T) -> Result<(), T> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(task);
        }
        state.queue.push(None, urgency, task)?;
        self.ready.notify_one();
        Ok(())
    }

    /// The most urgent task for `thread`, which has ended the one before; waits for one no longer
    /// than `limit`.
    pub fn pop_within(&self, thread: usize, limit: Duration) -> Popped<T> {
        let deadline = Instant::now() + limit;
        let mut state = lock(&self.state);
        state.queue.rest(thread);
        state.idle += 1;
        let popped = loop {
            if state.closed {
                break Popped::Closed;
            }
            let now = Nanos(self.started.elapsed().as_nanos() as u64);
            if let Some(task) = state.queue.begin(now, thread) {
                break Popped::Task(task);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Popped::Nothing;
            }
            state = self.ready.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        state.idle -= 1;
        popped
    }

    /// Whether more tasks wait than there are threads in [`ThreadQueue::pop_within`]. A thread is
    /// not among them from the moment at which it takes a task.
    pub fn is_short_of_threads(&self) -> bool {
        let state = lock(&self.state);
        state.queue.len() > state.idle
    }

    /// Takes out all that wait.
    pub fn take_all(&self) -> Vec<T> {
        lock(&self.state).queue.take_all()
    }

    /// Tasks waiting.
    pub fn waiting(&self) -> usize {
        lock(&self.state).queue.len()
    }

    /// Closes the queue; returns the tasks that were waiting.
    pub fn close(&self) -> Vec<T> {
        let mut state = lock(&self.state);
        state.closed = true;
        self.ready.notify_all();
        state.queue.take_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_taken_a_task_is_not_idle_any_more() {
        let queue = ThreadQueue::default();
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
            while lock(&queue.state).idle == 0 {
                std::thread::yield_now();
            }
            queue.push(Urgency::Load, 3).unwrap();
            assert!(matches!(waits.join().unwrap(), Popped::Task(3)));
        });
        queue.push(Urgency::Load, 4).unwrap();
        assert_eq!(queue.close(), [4]);
        assert!(matches!(queue.pop_within(0, Duration::from_secs(60)), Popped::Closed));
        assert_eq!(queue.push(Urgency::Demand, 1), Err(1));
    }
}
