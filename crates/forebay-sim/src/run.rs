//! The loop of a simulation.
//!
//! Two sources of time: the event queue, and the world's own completions (transfers), whose moments
//! change whenever the sharing changes. Keeping completions out of the queue avoids one stale event
//! per flow and change. When both fall on the same nanosecond the completion comes first: a
//! transfer that ends frees its share before anything else happens at that moment.

use forebay_policy::machine::Nanos;

use crate::queue::EventQueue;

/// What a scenario has to say for itself.
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

/// What a run amounted to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunStats {
    /// Events and completions handled.
    pub events: u64,
    /// Virtual time of the last one.
    pub end: Nanos,
    /// True if `max_events` stopped it.
    pub cut_short: bool,
    /// True if something was left to happen beyond the end of the clock, after 584 years.
    pub out_of_time: bool,
}

/// Sums of times stop at this moment, so it is no time of anything that happens.
const END_OF_TIME: Nanos = Nanos(u64::MAX);

/// Runs `world` until nothing is left to happen or `max_events` were handled.
///
/// The bound is not optional: a policy that answers an event with an event at the same moment would
/// otherwise hang.
pub fn run<W: World>(world: &mut W, queue: &mut EventQueue<W::Event>, max_events: u64) -> RunStats {
    let mut events = 0;
    while events < max_events {
        match (world.next_completion(), queue.peek_time()) {
            (None, None) => return RunStats { events, end: queue.now(), ..RunStats::default() },
            (done, queued) if [done, queued].into_iter().flatten().min() == Some(END_OF_TIME) => {
                return RunStats { events, end: queue.now(), out_of_time: true, ..RunStats::default() };
            }
            (Some(done), queued) if queued.is_none_or(|at| done <= at) => {
                queue.advance_to(done);
                world.on_completion(done, queue);
            }
            _ => {
                if let Some((now, event)) = queue.pop() {
                    world.on_event(now, event, queue);
                }
            }
        }
        events += 1;
    }
    RunStats { events, end: queue.now(), cut_short: true, out_of_time: false }
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
        let stats = run(&mut w, &mut q, 100);
        assert_eq!(w.seen, ["before", "completion", "same"]);
        assert_eq!(stats, RunStats { events: 3, end: Nanos(3), ..RunStats::default() });
    }

    #[test]
    fn a_world_that_goes_on_beyond_its_clock_is_stopped() {
        let mut w = Log { completion: None, seen: vec![] };
        let mut q = EventQueue::new();
        q.at(Nanos(u64::MAX - 1), "last");
        q.at(Nanos(u64::MAX - 1) + 5, "too late");
        let stats = run(&mut w, &mut q, 100);
        assert_eq!((w.seen, stats.out_of_time), (vec!["last"], true));
    }

    #[test]
    fn an_endless_world_is_cut_short() {
        struct Echo;
        impl World for Echo {
            type Event = ();
            fn on_event(&mut self, _: Nanos, (): (), q: &mut EventQueue<()>) {
                q.after(0, ());
            }
        }
        let mut q = EventQueue::new();
        q.at(Nanos(0), ());
        assert!(run(&mut Echo, &mut q, 1_000).cut_short);
    }
}
