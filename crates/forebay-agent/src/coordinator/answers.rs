//! Whether the coordinator still answers, and whether it may still lead.
//!
//! An elected leader answers a heartbeat only while it leads. The next leader waits for three
//! heartbeat intervals before it grants anything. So a message that arrives within three intervals
//! of the sending of a heartbeat that was answered is valid; a later one may come from a leader
//! that was suspended and has been replaced.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Whether the coordinator still answers. The time is an argument.
#[derive(Clone, Debug)]
pub struct Answers {
    /// When it was last heard.
    pub heard_at: Instant,
    received_bytes: u64,
    /// The first heartbeat since then.
    asked_at: Option<Instant>,
    /// When the last answered heartbeat was sent.
    answered: Instant,
    /// When each unanswered heartbeat was sent, oldest first.
    unanswered: VecDeque<Instant>,
}

impl Answers {
    /// The state before the first heartbeat: the coordinator led when this agent joined, at
    /// `joined`.
    pub fn new(now: Instant, joined: Instant) -> Self {
        let unanswered = VecDeque::new();
        Answers { heard_at: now, received_bytes: 0, asked_at: None, answered: joined, unanswered }
    }

    /// Records that a heartbeat is sent.
    pub fn ask(&mut self, now: Instant) {
        self.asked_at.get_or_insert(now);
        self.unanswered.push_back(now);
    }

    /// Records that the oldest heartbeat is answered.
    pub fn answer(&mut self) {
        if let Some(sent) = self.unanswered.pop_front() {
            self.answered = sent;
        }
    }

    /// Time since the coordinator was last known to lead.
    pub fn led_before(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.answered)
    }

    /// Notes that `received_bytes` bytes in total had been received once everything that arrived by
    /// `now` was read. This includes what arrived while the agent was suspended, so an agent that
    /// resumes does not declare the coordinator dead.
    pub fn note(&mut self, now: Instant, received_bytes: u64) {
        if std::mem::replace(&mut self.received_bytes, received_bytes) != received_bytes {
            (self.heard_at, self.asked_at) = (now, None);
        }
    }

    /// How long it has owed an answer.
    pub fn silence(&self, now: Instant) -> Duration {
        self.asked_at.map_or(Duration::ZERO, |asked| now.saturating_duration_since(asked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unanswered_heartbeat_counts_as_silence() {
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let mut answers = Answers::new(at(0), at(0));
        assert_eq!(answers.silence(at(90)), Duration::ZERO, "nothing was asked");
        answers.ask(at(90));
        answers.ask(at(91));
        assert_eq!(answers.silence(at(93)), Duration::from_secs(3), "the first that is not answered counts");
        answers.note(at(93), 0);
        assert_eq!((answers.silence(at(94)).as_secs(), answers.heard_at), (4, at(0)));
        // Half a message is a sign of life as well.
        answers.note(at(95), 3);
        assert_eq!((answers.silence(at(99)), answers.heard_at), (Duration::ZERO, at(95)));
        answers.ask(at(99));
        answers.note(at(100), 3);
        assert_eq!(answers.silence(at(101)), Duration::from_secs(2));
    }

    #[test]
    fn what_a_coordinator_says_counts_from_the_last_heartbeat_that_it_has_answered() {
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let mut answers = Answers::new(at(1), at(0));
        assert_eq!(answers.led_before(at(2)), Duration::from_secs(2), "it led when this agent joined");
        answers.ask(at(2));
        answers.ask(at(3));
        // Other messages answer nothing.
        answers.note(at(3), 9);
        assert_eq!(answers.led_before(at(4)), Duration::from_secs(4));
        answers.answer();
        assert_eq!(answers.led_before(at(4)), Duration::from_secs(2));
        answers.answer();
        answers.answer();
        assert_eq!(answers.led_before(at(4)), Duration::from_secs(1), "nothing more was asked");
    }
}
