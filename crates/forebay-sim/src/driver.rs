//! Drives one policy machine with virtual time and records both sides of the conversation.
//!
//! The daemons have the same driver with the real clock. Nothing in between may decide: a driver
//! passes events in and actions out, and wakes the machine when it has requested that.

use std::cell::RefCell;

use forebay_policy::machine::{Machine, Nanos};
use serde::Serialize;

use crate::queue::Agenda;
use crate::trace::Trace;

/// The trace of a run, into which all parts of its world write.
pub struct Record<'a>(RefCell<&'a mut Trace>);

impl<'a> Record<'a> {
    /// Writes into `trace`.
    pub fn new(trace: &'a mut Trace) -> Self {
        Record(RefCell::new(trace))
    }

    /// As [`Trace::is_on`].
    pub fn is_on(&self) -> bool {
        self.0.borrow().is_on()
    }

    /// As [`Trace::note`].
    pub fn note(&self, now: Nanos, who: &str, note: &impl Serialize) {
        self.0.borrow_mut().note(now, who, note);
    }
}

/// A machine, its name in the trace, and the wake-up that is scheduled for it.
pub struct Driver<M: Machine> {
    who: String,
    machine: M,
    armed: Option<Nanos>,
}

impl<M: Machine> Driver<M>
where
    M::Event: Serialize,
    M::Action: Serialize,
{
    /// `who` names the machine in the trace, such as `planner/0`.
    pub fn new(who: impl Into<String>, machine: M) -> Self {
        Driver { who: who.into(), machine, armed: None }
    }

    /// Passes `event` to the machine and returns what it decides.
    pub fn handle(&mut self, now: Nanos, event: M::Event, record: &Record<'_>) -> Vec<M::Action> {
        let cause = record.0.borrow_mut().event(now, &self.who, &event);
        let mut actions = Vec::new();
        self.machine.handle(now, event, &mut actions);
        self.record(now, cause, &actions, record);
        actions
    }

    /// Handles a wake-up. Calls the machine if its deadline has come; a wake-up that it no longer
    /// wants is ignored.
    pub fn wake(&mut self, now: Nanos, record: &Record<'_>) -> Vec<M::Action> {
        self.armed = self.armed.filter(|&at| at > now);
        let mut actions = Vec::new();
        if self.machine.next_deadline().is_some_and(|at| at <= now) {
            let cause = record.0.borrow_mut().event(now, &self.who, &"deadline");
            self.machine.on_deadline(now, &mut actions);
            self.record(now, cause, &actions, record);
        }
        actions
    }

    /// Schedules `event` for the machine's deadline unless one is scheduled early enough. To be
    /// called after each [`Driver::handle`] and `wake`; the world answers `event` with
    /// [`Driver::wake`].
    pub fn arm<E>(&mut self, queue: &mut impl Agenda<E>, event: E) {
        // A deadline at the end of the clock never comes: no time that is added up is later.
        if let Some(at) = self.machine.next_deadline().filter(|at| at.0 != u64::MAX) {
            let at = at.max(queue.now());
            if self.armed.is_none_or(|armed| at < armed) {
                self.armed = Some(at);
                queue.at(at, event);
            }
        }
    }

    /// The machine, for inspection.
    pub fn machine(&self) -> &M {
        &self.machine
    }

    fn record(&self, now: Nanos, cause: u64, actions: &[M::Action], record: &Record<'_>) {
        for action in actions {
            record.0.borrow_mut().action(now, &self.who, cause, action);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::EventQueue;

    /// Answers each number with its double and wants to be woken that many nanoseconds later.
    #[derive(Default)]
    struct Doubler {
        deadline: Option<Nanos>,
    }
    impl Machine for Doubler {
        type Event = u64;
        type Action = u64;
        fn handle(&mut self, now: Nanos, event: u64, out: &mut Vec<u64>) {
            self.deadline = Some(now + event);
            out.push(2 * event);
        }
        fn next_deadline(&self) -> Option<Nanos> {
            self.deadline
        }
        fn on_deadline(&mut self, _: Nanos, out: &mut Vec<u64>) {
            self.deadline = None;
            out.push(0);
        }
    }

    #[test]
    fn an_earlier_deadline_is_armed_and_the_stale_wake_up_does_nothing() {
        let (mut driver, mut queue, mut trace) =
            (Driver::new("d", Doubler::default()), EventQueue::new(), Trace::off());
        let record = Record::new(&mut trace);
        assert_eq!(driver.handle(Nanos(0), 9, &record), [18]);
        driver.arm(&mut queue, ());
        assert_eq!(driver.handle(Nanos(0), 4, &record), [8]);
        driver.arm(&mut queue, ());
        driver.arm(&mut queue, ());
        let mut woken = Vec::new();
        while let Some((now, ())) = queue.pop() {
            woken.push((now.0, driver.wake(now, &record)));
            driver.arm(&mut queue, ());
        }
        assert_eq!(woken, [(4, vec![0]), (9, vec![])]);
    }
}
