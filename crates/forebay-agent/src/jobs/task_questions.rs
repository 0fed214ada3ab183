//! Tasks of analytics jobs on this node that ask whether they may read.
//!
//! The coordinator answers when a task's input is in the tier, or need not be waited for. Without
//! its answer nobody waits: a task reads immediately if there is no connection, or a silent one. A
//! task that does not ask again has ended.

use crate::lock::lock;
use forebay_wire::cluster::ToCoordinator;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long one question waits for the answer; then the task asks again. A program that kills a
/// task waits at most this long.
const WAIT: Duration = Duration::from_secs(1);

/// A task that does not ask again within this time has ended.
const ASKS: Duration = Duration::from_secs(5);

/// Most questions at a time; further tasks read immediately. One user has at most half of them.
const QUESTIONS_MAX: usize = 4096;

/// Longest name of a job.
const NAME_BYTES_MAX: usize = 256;

/// A task: its user, its job's name, its stage, its partition.
pub type Task = (u32, String, u32, u32);

/// See the module.
#[derive(Debug, Default)]
pub struct TaskQuestions {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    is_connected: bool,
    open: BTreeMap<Task, Question>,
    /// By the number under which the coordinator was asked.
    numbers: BTreeMap<u64, Task>,
    next: u64,
}

#[derive(Debug)]
struct Question {
    number: u64,
    asked: Instant,
    may_read: bool,
}

impl State {
    fn forget(&mut self, task: &Task) {
        if let Some(question) = self.open.remove(task) {
            self.numbers.remove(&question.number);
        }
    }

    /// Takes the question of a task, perhaps repeated: `None` if it may read, or the number of a
    /// new question.
    fn ask(&mut self, now: Instant, task: &Task, is_silent: bool) -> Option<Option<u64>> {
        let is_known = self.open.contains_key(task);
        let of_user = || self.open.keys().filter(|(user, ..)| *user == task.0).count();
        let is_one_too_many =
            !is_known && (self.open.len() >= QUESTIONS_MAX || of_user() >= QUESTIONS_MAX / 2);
        let may_read = self.open.get(task).is_some_and(|question| question.may_read);
        if may_read || is_silent || !self.is_connected || is_one_too_many || task.1.len() > NAME_BYTES_MAX {
            self.forget(task);
            return None;
        }
        if let Some(question) = self.open.get_mut(task) {
            question.asked = now;
            return Some(None);
        }
        let over = self.open.iter().filter(|(_, question)| now.duration_since(question.asked) > ASKS);
        let over: Vec<Task> = over.map(|(task, _)| task.clone()).collect();
        over.iter().for_each(|task| self.forget(task));
        let number = self.next;
        self.next += 1;
        self.open.insert(task.clone(), Question { number, asked: now, may_read: false });
        self.numbers.insert(number, task.clone());
        Some(Some(number))
    }
}

impl TaskQuestions {
    /// Waits a moment for the answer to a task's question; returns whether it may read. `say` takes
    /// what the coordinator has to hear.
    pub fn may_read(&self, task: &Task, is_silent: impl Fn() -> bool, say: impl Fn(ToCoordinator)) -> bool {
        let until = Instant::now() + WAIT;
        let mut state = lock(&self.state);
        loop {
            let now = Instant::now();
            match state.ask(now, task, is_silent()) {
                None => return true,
                Some(Some(ask)) => {
                    let (uid, job, stage, partition) = task.clone();
                    say(ToCoordinator::AskTask { ask, uid, job, stage, partition });
                }
                Some(None) => {}
            }
            let left = until.saturating_duration_since(now);
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes the coordinator's answer to a question.
    pub fn answered(&self, ask: u64) {
        let mut state = lock(&self.state);
        let task = state.numbers.get(&ask).cloned();
        if let Some(question) = task.and_then(|task| state.open.get_mut(&task)) {
            question.may_read = true;
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Records whether there is a coordinator. Either way what was asked before is void, and its
    /// tasks may read; without a coordinator nobody waits.
    pub fn set_connected(&self, is_connected: bool) {
        let mut state = lock(&self.state);
        state.is_connected = is_connected;
        state.open.values_mut().for_each(|question| question.may_read = true);
        drop(state);
        self.changed.notify_all();
    }

    /// Tasks that wait now.
    pub fn waiting(&self) -> usize {
        lock(&self.state).open.values().filter(|question| !question.may_read).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(partition: u32) -> Task {
        (7, "app".into(), 1, partition)
    }

    #[test]
    fn a_task_waits_for_the_answer_and_never_without_a_coordinator() {
        let (now, mut state) = (Instant::now(), State::default());
        assert_eq!(state.ask(now, &task(0), false), None, "nobody could answer");
        state.is_connected = true;
        assert_eq!(state.ask(now, &task(0), true), None, "nobody would answer");
        assert_eq!(state.ask(now, &task(0), false), Some(Some(0)));
        assert_eq!(state.ask(now, &task(0), false), Some(None), "it was asked already");
        assert_eq!(state.ask(now, &task(0), true), None, "the coordinator has fallen silent");
        assert_eq!(state.ask(now, &task(0), false), Some(Some(1)));
        let questions = TaskQuestions { state: Mutex::new(state), changed: Condvar::new() };
        assert_eq!(questions.waiting(), 1);
        questions.answered(0);
        assert_eq!(questions.waiting(), 1, "that was the answer to an earlier question");
        questions.answered(1);
        assert!(questions.may_read(&task(0), || false, |_| panic!("nothing is to be asked")));
        assert_eq!(questions.waiting(), 0);
    }

    #[test]
    fn a_lost_coordinator_lets_all_read_and_tasks_that_ended_are_forgotten() {
        let (now, mut state) = (Instant::now(), State { is_connected: true, ..State::default() });
        assert_eq!(state.ask(now, &task(0), false), Some(Some(0)));
        assert_eq!(state.ask(now + ASKS, &task(1), false), Some(Some(1)));
        assert_eq!(state.ask(now + 2 * ASKS, &task(2), false), Some(Some(2)));
        assert_eq!(state.open.keys().map(|task| task.3).collect::<Vec<_>>(), [1, 2]);
        let questions = TaskQuestions { state: Mutex::new(state), changed: Condvar::new() };
        questions.set_connected(false);
        assert!(questions.may_read(&task(1), || false, |_| panic!("there is nobody to ask")));
        questions.set_connected(true);
        assert!(questions.may_read(&task(2), || false, |_| panic!("it was let go")));
        assert_eq!(lock(&questions.state).numbers.len(), 0);
    }

    #[test]
    fn questions_are_bounded() {
        let (now, mut state) = (Instant::now(), State { is_connected: true, ..State::default() });
        let most = QUESTIONS_MAX as u32 / 2;
        let of = |uid, partition| (uid, "app".to_owned(), 1, partition);
        assert!((0..most).all(|partition| state.ask(now, &of(7, partition), false).is_some()));
        assert_eq!(state.ask(now, &of(7, most), false), None);
        assert!(
            (0..most).all(|partition| state.ask(now, &of(8, partition), false).is_some()),
            "another user"
        );
        assert_eq!(state.ask(now, &of(9, 0), false), None);
        let (mut state, name) =
            (State { is_connected: true, ..State::default() }, "x".repeat(NAME_BYTES_MAX + 1));
        assert_eq!(state.ask(now, &(7, name, 0, 0), false), None);
    }
}
