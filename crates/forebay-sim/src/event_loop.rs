//! The loop of a simulation.
//!
//! Two sources of time: the event queue, and the world's own completions (transfers), whose moments
//! change whenever the sharing changes. Keeping completions out of the queue avoids one stale event
//! per flow and change. When both fall on the same nanosecond the completion comes first: a
//! transfer that ends frees its share before anything else happens at that moment.

use forebay_policy::machine::Nanos;

use crate::cancel;
use crate::error::{Error, Result};
use crate::queue::EventQueue;

/// What a scenario has to implement.
pub trait World {
    /// Its own kinds of events.
    type Event;

    /// An event came up.
    fn on_event(&mut self, now: Nanos, event: Self::Event, queue: &mut EventQueue<Self::Event>);

    /// When the next transfer ends (or whatever else the world keeps outside the queue).
    fn next_completion(&self) -> Option<Nanos> {
        None
    }

    /// `next_completion` has come. Must make progress: the next call may come at the same `now`,
    /// but not for ever.
    fn on_completion(&mut self, _now: Nanos, _queue: &mut EventQueue<Self::Event>) {}
}

/// How far a run goes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Events and completions. This bound is not optional: a policy that answers an event with an
    /// event at the same moment would otherwise hang.
    pub events: u64,
    /// The last moment, in ns from the start.
    pub horizon_ns: Option<u64>,
}

/// Far above any sensible scenario: a run that needs more is one that does not end.
const MAX_EVENTS: u64 = 200_000_000;

impl Limits {
    /// The limits of a scenario with this horizon.
    pub fn of(horizon_ns: Option<u64>) -> Self {
        Limits { events: MAX_EVENTS, horizon_ns }
    }
}

/// Why a run stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stop {
    /// Nothing is left to happen.
    #[default]
    Over,
    /// The rest is to happen after the horizon.
    Horizon,
    /// It has reached the limit on events.
    Events,
    /// The rest is to happen beyond the end of the clock, after 584 years.
    Clock,
    /// The caller has cancelled it.
    Cancelled,
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunStats {
    /// Events and completions handled.
    pub events: u64,
    /// Virtual time of the last one, or the horizon.
    pub end: Nanos,
    /// Why it stopped.
    pub stop: Stop,
}

impl RunStats {
    /// If the caller, or a limit that the scenario does not set, has interrupted the run: why, and
    /// what to do.
    fn cut(&self) -> Option<String> {
        let at_s = self.end.as_secs_f64();
        match self.stop {
            Stop::Over | Stop::Horizon => None,
            Stop::Events => {
                let advice = match at_s / 2.0 {
                    // A scenario may end no earlier than after a millisecond.
                    half_s if half_s >= 0.001 => format!(", for example with horizon_s = {half_s:.3}"),
                    _ => ": fewer jobs, steps or tasks, or larger ones".into(),
                };
                Some(format!(
                    "the run was cut at {at_s} s after {} events, the most that a run may have: \
                     simulate less{advice}",
                    self.events
                ))
            }
            Stop::Clock => Some(format!(
                "after {at_s:.3} s the run came to the end of the clock, 584 years: \
                 give it less to compute or to write, or a horizon_s"
            )),
            Stop::Cancelled => Some(format!("the run was cancelled at {at_s:.3} s")),
        }
    }
}

/// Sums of times saturate at this moment, so nothing happens at it.
const END_OF_TIME: Nanos = Nanos(u64::MAX);

/// Runs `world` until nothing is left to happen or its horizon has come.
///
/// # Errors
/// If the caller, or a limit that the scenario does not set, has interrupted the run.
pub fn run<W: World>(world: &mut W, queue: &mut EventQueue<W::Event>, limits: Limits) -> Result<RunStats> {
    let mut events = 0;
    let horizon = limits.horizon_ns.map_or(END_OF_TIME, Nanos);
    let stopped = |events, end, stop| {
        let stats = RunStats { events, end, stop };
        stats.cut().map_or(Ok(stats), |why| Err(Error::Usage(why)))
    };
    let cancel = cancel::current();
    while events < limits.events {
        // Policies may compute for milliseconds in one event, so this is checked before each event.
        if cancel.is_cancelled() {
            return stopped(events, queue.now(), Stop::Cancelled);
        }
        let (done, queued) = (world.next_completion(), queue.peek_time());
        let Some(next) = [done, queued].into_iter().flatten().min() else {
            return stopped(events, queue.now(), Stop::Over);
        };
        if next > horizon {
            queue.advance_to(horizon);
            return stopped(events, horizon, Stop::Horizon);
        }
        if next == END_OF_TIME {
            return stopped(events, queue.now(), Stop::Clock);
        }
        if done == Some(next) {
            queue.advance_to(next);
            world.on_completion(next, queue);
        } else if let Some((now, event)) = queue.pop() {
            world.on_event(now, event, queue);
        }
        events += 1;
    }
    stopped(events, queue.now(), Stop::Events)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes down what came, and in which order.
    struct Log {
        completion: Option<Nanos>,
        seen: Vec<&'static str>,
    }
    impl World for Log {
        type Event = &'static str;
        fn on_event(&mut self, _: Nanos, event: &'static str, _: &mut EventQueue<&'static str>) {
            self.seen.push(event);
        }
        fn next_completion(&self) -> Option<Nanos> {
            self.completion
        }
        fn on_completion(&mut self, _: Nanos, _: &mut EventQueue<&'static str>) {
            self.seen.push("completion");
            self.completion = None;
        }
    }

    #[test]
    fn a_completion_comes_before_an_event_of_the_same_moment() {
        let mut w = Log { completion: Some(Nanos(3)), seen: vec![] };
        let mut q = EventQueue::new();
        q.at(Nanos(3), "same");
        q.at(Nanos(2), "before");
        let stats = run(&mut w, &mut q, Limits::of(None)).expect("it ends");
        assert_eq!(w.seen, ["before", "completion", "same"]);
        assert_eq!(stats, RunStats { events: 3, end: Nanos(3), ..RunStats::default() });
    }

    #[test]
    fn a_world_that_goes_on_beyond_its_clock_is_stopped() {
        let mut w = Log { completion: None, seen: vec![] };
        let mut q = EventQueue::new();
        q.at(Nanos(u64::MAX - 1), "last");
        q.at(Nanos(u64::MAX - 1) + 5, "too late");
        let why = run(&mut w, &mut q, Limits::of(None)).expect_err("it is cut").to_string();
        assert_eq!(w.seen, ["last"]);
        assert!(why.contains("584 years"), "{why}");
    }

    /// Never ends.
    struct Echo;
    impl World for Echo {
        type Event = ();
        fn on_event(&mut self, _: Nanos, (): (), q: &mut EventQueue<()>) {
            q.after(0, ());
        }
    }

    #[test]
    fn a_cancelled_run_stops() {
        let cancel = cancel::Cancel::default();
        cancel.cancel();
        let mut w = Log { completion: None, seen: vec![] };
        let mut q = EventQueue::new();
        q.at(Nanos(0), "too late");
        let why = cancel.watch(|| run(&mut w, &mut q, Limits::of(None))).expect_err("it is cut");
        assert_eq!((why.to_string().as_str(), w.seen), ("the run was cancelled at 0.000 s", vec![]));
    }

    #[test]
    fn an_endless_world_is_cut_short() {
        let mut q = EventQueue::new();
        q.at(Nanos(0), ());
        let limits = Limits { events: 1_000, horizon_ns: None };
        let why = run(&mut Echo, &mut q, limits).expect_err("it is cut").to_string();
        assert!(why.contains("after 1000 events") && !why.contains("horizon_s"), "{why}");
        let at =
            |at_ns| RunStats { events: 9, end: Nanos(at_ns), stop: Stop::Events }.cut().expect("it is cut");
        assert!(at(3_000_000_000).ends_with("simulate less, for example with horizon_s = 1.500"));
        assert!(at(2_000_000).ends_with("horizon_s = 0.001"), "{}", at(2_000_000));
        // Half of it is not a horizon that a scenario may have.
        assert!(at(1_999_999).contains("cut at 0.001999999 s") && !at(1_999_999).contains("horizon_s"));
    }

    /// What happens at the horizon still happens.
    #[test]
    fn a_run_ends_at_its_horizon() {
        let mut w = Log { completion: Some(Nanos(4)), seen: vec![] };
        let mut q = EventQueue::new();
        q.at(Nanos(4), "at");
        q.at(Nanos(6), "after");
        let stats = run(&mut w, &mut q, Limits::of(Some(4))).expect("it ends");
        assert_eq!(w.seen, ["completion", "at"]);
        assert_eq!((stats.end, stats.stop), (Nanos(4), Stop::Horizon));
        let stats = run(&mut w, &mut q, Limits::of(Some(9))).expect("it ends");
        assert_eq!((stats.end, stats.stop), (Nanos(6), Stop::Over));
    }
}
