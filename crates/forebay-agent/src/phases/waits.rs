//! Programs on this node that wait until they may write a step.
//!
//! The coordinator decides who may. The limits on waiting do not depend on it: a program begins
//! immediately if the coordinator cannot be reached or is silent, and after `cluster.access_wait_s`
//! in any case. A program that does not ask again has given up. Where another coordinator takes
//! over, the agent reports only after a while that there is none, and each new one is asked again:
//! what the last one has granted and nobody has used is void.

use forebay_policy::machine::Nanos;
use forebay_policy::phases::JobKey;
use std::collections::BTreeMap;

/// A waiting program that does not ask again within this time has given up.
const ASKS_NS: u64 = 3_000_000_000;

/// See the module.
#[derive(Debug, Default)]
pub struct Waits {
    waiting: BTreeMap<JobKey, Waiting>,
    is_connected: bool,
    /// No program waits for longer, in ns. To be set before a program asks.
    pub most_ns: u64,
}

#[derive(Debug)]
struct Waiting {
    since: Nanos,
    asked: Nanos,
    may_begin: bool,
    /// The coordinator knows.
    is_known: bool,
}

/// Answer to a program that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It may begin.
    Begin,
    /// It may not yet. `is_new`: the coordinator has to be asked.
    Wait {
        /// It asks this coordinator for the first time.
        is_new: bool,
    },
}

impl Waits {
    /// Records whether there is a coordinator. Without one nobody waits.
    pub fn set_connected(&mut self, is_connected: bool) {
        self.is_connected = is_connected;
        for waiting in self.waiting.values_mut() {
            (waiting.may_begin, waiting.is_known) = (!is_connected, false);
        }
    }

    /// Takes the question of a program, perhaps repeated. `is_silent`: the coordinator does not
    /// answer.
    pub fn ask(&mut self, now: Nanos, job: JobKey, is_silent: bool) -> Asked {
        let is_new = !self.waiting.contains_key(&job);
        if is_new && (is_silent || !self.is_connected) {
            return Asked::Begin;
        }
        let new = Waiting { since: now, asked: now, may_begin: false, is_known: false };
        let waiting = self.waiting.entry(job).or_insert(new);
        waiting.asked = now;
        if is_silent || waiting.may_begin || now.saturating_since(waiting.since) >= self.most_ns {
            self.waiting.remove(&job);
            return Asked::Begin;
        }
        Asked::Wait { is_new: !std::mem::replace(&mut waiting.is_known, true) }
    }

    /// Records that the coordinator lets a program begin.
    pub fn let_in(&mut self, job: JobKey) {
        if let Some(waiting) = self.waiting.get_mut(&job) {
            waiting.may_begin = true;
        }
    }

    /// Records that a program no longer waits; returns whether it did.
    pub fn give_up(&mut self, job: JobKey) -> bool {
        self.waiting.remove(&job).is_some()
    }

    /// Removes and returns programs that have given up without a message.
    pub fn expire(&mut self, now: Nanos) -> Vec<JobKey> {
        let is_over = |waiting: &Waiting| now.saturating_since(waiting.asked) >= ASKS_NS;
        let over: Vec<JobKey> =
            self.waiting.iter().filter(|(_, w)| is_over(w)).map(|(key, _)| *key).collect();
        self.waiting.retain(|_, waiting| !is_over(waiting));
        over
    }

    /// How long a program has waited, in ns.
    pub fn waits_ns(&self, now: Nanos, job: JobKey) -> Option<u64> {
        self.waiting.get(&job).map(|waiting| now.saturating_since(waiting.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const WAIT_MAX_NS: u64 = 60 * S;

    #[test]
    fn a_program_waits_until_it_is_let_in_and_never_without_a_coordinator_or_for_longer_than_the_limit() {
        let mut waits = Waits { most_ns: WAIT_MAX_NS, ..Waits::default() };
        assert_eq!(waits.ask(Nanos(0), 1, false), Asked::Begin, "nobody could let it in");
        waits.set_connected(true);
        assert_eq!(waits.ask(Nanos(0), 1, true), Asked::Begin);
        assert_eq!(waits.ask(Nanos(0), 1, false), Asked::Wait { is_new: true });
        assert_eq!(waits.ask(Nanos(S), 1, false), Asked::Wait { is_new: false });
        assert_eq!((waits.waits_ns(Nanos(S), 1), waits.waits_ns(Nanos(S), 2)), (Some(S), None));
        waits.let_in(1);
        assert_eq!(waits.ask(Nanos(2 * S), 1, false), Asked::Begin);

        assert_eq!(waits.ask(Nanos(0), 2, false), Asked::Wait { is_new: true });
        assert_eq!(waits.ask(Nanos(1), 2, true), Asked::Begin, "it has fallen silent");
        assert_eq!(waits.ask(Nanos(0), 3, false), Asked::Wait { is_new: true });
        assert_eq!(waits.ask(Nanos(WAIT_MAX_NS), 3, false), Asked::Begin);
        assert_eq!(waits.ask(Nanos(0), 4, false), Asked::Wait { is_new: true });
        waits.set_connected(false);
        assert_eq!(waits.ask(Nanos(1), 4, false), Asked::Begin);
    }

    #[test]
    fn the_next_coordinator_is_asked_anew_and_what_the_last_one_has_granted_is_void() {
        let mut waits = Waits { most_ns: WAIT_MAX_NS, ..Waits::default() };
        waits.set_connected(true);
        assert_eq!(waits.ask(Nanos(0), 1, false), Asked::Wait { is_new: true });
        waits.let_in(1);
        waits.set_connected(true);
        assert_eq!(waits.ask(Nanos(1), 1, false), Asked::Wait { is_new: true });
        assert_eq!(waits.ask(Nanos(2), 1, false), Asked::Wait { is_new: false });
        waits.let_in(1);
        assert_eq!(waits.ask(Nanos(3), 1, false), Asked::Begin);
    }

    #[test]
    fn who_does_not_ask_again_has_given_up() {
        let mut waits = Waits { most_ns: WAIT_MAX_NS, ..Waits::default() };
        waits.set_connected(true);
        waits.ask(Nanos(0), 1, false);
        waits.ask(Nanos(0), 2, false);
        waits.ask(Nanos(S), 2, false);
        assert_eq!(waits.expire(Nanos(ASKS_NS)), [1]);
        assert!(waits.give_up(2) && !waits.give_up(2) && !waits.give_up(1));
    }
}
