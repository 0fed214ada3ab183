//! How many requests a server should have at a time: enough that it is never idle, and no more, so
//! that the next urgent one finds a short queue.
//!
//! After TCP Vegas (L. Brakmo and L. Peterson, 1995): of `n` requests in service, each taking `t`
//! per byte where one alone takes `t1`, a server that works on one at a time has `n * (1 - t1 / t)`
//! in its queue. Between half a request and one and a half is right; below that there may be one
//! more, above it one less. A server that works on eight at a time shows no queue until it has
//! eight, and so gets nine.
//!
//! The time of one alone does not stay known: other load comes and goes, and a server that has
//! become slow would seem to have a queue. So now and then one is sent alone (BBR, N. Cardwell et
//! al. 2016, does the same), as is the first of all.

/// Requests between two that are sent alone, for each request of the window: while the others end,
/// the server is not full.
pub const PROBE_EVERY: u32 = 32;

/// Limit on requests at a time.
pub const WINDOW_MAX: u32 = 64;

/// Bounds of the queue that a server should have, in requests.
const QUEUE: (f64, f64) = (0.5, 1.5);

/// A request that takes this many times longer than the queue explains is not a measure of it.
const STALE: f64 = 8.0;

/// The depth of one server.
#[derive(Clone, Debug, PartialEq)]
pub struct ConcurrencyWindow {
    window: u32,
    /// Nanoseconds per byte of a request alone.
    alone: Option<f64>,
    /// Sum and number of the observations at the current depth.
    sum: f64,
    seen: u32,
    /// Requests until the next is sent alone.
    until_probe: u32,
}

impl Default for ConcurrencyWindow {
    fn default() -> Self {
        ConcurrencyWindow { window: 1, alone: None, sum: 0.0, seen: 0, until_probe: PROBE_EVERY }
    }
}

impl ConcurrencyWindow {
    /// Requests that the server may have now, at least 1.
    pub fn get(&self) -> u32 {
        if self.alone.is_none() { 1 } else { self.window }
    }

    /// Records that a request of `bytes` took `ns`. `beside` requests were in service when it was
    /// sent, itself included.
    pub fn served(&mut self, bytes: u64, ns: u64, beside: u32) {
        if bytes == 0 || ns == 0 {
            return;
        }
        let per_byte = ns as f64 / bytes as f64;
        let Some(alone) = self.alone else {
            if beside <= 1 {
                self.alone = Some(per_byte);
                self.window = self.window.max(2);
                self.until_probe = PROBE_EVERY * self.window;
                (self.sum, self.seen) = (0.0, 0);
            }
            return;
        };
        self.until_probe -= 1;
        if self.until_probe == 0 {
            self.alone = None;
            return;
        }
        // A request that left room beside it says nothing about a full server.
        if beside < self.window {
            return;
        }
        self.sum += per_byte;
        self.seen += 1;
        if self.seen < self.window {
            return;
        }
        let mean = self.sum / f64::from(self.seen);
        (self.sum, self.seen) = (0.0, 0);
        if mean > alone * f64::from(self.window) * STALE {
            // No queue of this length explains the slowdown: the time alone was measured under
            // other conditions, or the server has become slow since.
            self.alone = None;
            return;
        }
        let queue = f64::from(self.window) * (1.0 - (alone / mean).min(1.0));
        if queue < QUEUE.0 {
            self.window = (self.window + 1).min(WINDOW_MAX);
        } else if queue > QUEUE.1 {
            self.window = (self.window - 1).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;
    use proptest::prelude::*;

    const BYTES: u64 = 4 << 20;

    /// Feeds `requests` requests to a server that works on `at_once` of them, each taking
    /// `alone_ns` alone, with even sharing beyond that; returns the depths.
    fn windows(window: &mut ConcurrencyWindow, at_once: u32, alone_ns: u64, requests: u32) -> Vec<u32> {
        // When each in service began, and how many were beside it. All take equally long: so they
        // end in turn.
        let mut in_service: VecDeque<u32> = VecDeque::new();
        let mut had = Vec::new();
        for _ in 0..requests {
            while (in_service.len() as u32) < window.get() {
                in_service.push_back(in_service.len() as u32 + 1);
            }
            let load = in_service.len() as u32;
            let beside = in_service.pop_front().expect("at least one");
            let ns = alone_ns * u64::from(load.max(at_once)) / u64::from(at_once);
            window.served(BYTES, ns, beside);
            had.push(window.get());
        }
        had
    }

    #[test]
    fn a_server_that_works_on_one_at_a_time_gets_two() {
        let mut window = ConcurrencyWindow::default();
        assert_eq!(window.get(), 1, "the first is alone");
        let had = windows(&mut window, 1, 50_000_000, 60);
        assert!(had[4..].iter().all(|d| *d == 2), "{had:?}");
    }

    #[test]
    fn one_that_has_become_slow_does_not_seem_to_have_a_queue_for_ever() {
        let mut window = ConcurrencyWindow::default();
        windows(&mut window, 8, 50_000_000, 300);
        windows(&mut window, 8, 500_000_000, 20 * PROBE_EVERY);
        let had = windows(&mut window, 8, 500_000_000, PROBE_EVERY);
        assert!(had.iter().filter(|d| **d >= 8).count() * 2 > had.len(), "{had:?}");
    }

    #[test]
    fn one_alone_that_came_out_of_memory_is_soon_forgotten() {
        let mut window = ConcurrencyWindow::default();
        window.served(BYTES, 1_000, 1);
        let had = windows(&mut window, 8, 50_000_000, 80);
        assert!(had.iter().any(|d| *d >= 8), "{had:?}");
    }

    #[test]
    fn nothing_is_learnt_from_nothing() {
        let mut window = ConcurrencyWindow::default();
        window.served(0, 5, 1);
        window.served(5, 0, 1);
        assert_eq!(window, ConcurrencyWindow::default());
    }

    proptest! {
        #[test]
        fn a_server_is_kept_busy_with_a_short_queue(at_once in 1u32..24, alone_ms in 1u64..1000) {
            let mut window = ConcurrencyWindow::default();
            let had = windows(&mut window, at_once, alone_ms * 1_000_000, 1500);
            let busy: Vec<u32> = had[1000..].iter().copied().filter(|d| *d > 1).collect();
            prop_assert!(busy.len() > 400, "{} of 500 while one is sent alone", 500 - busy.len());
            let short = busy.iter().filter(|d| **d >= at_once && **d <= at_once + 3).count();
            prop_assert!(short * 10 >= busy.len() * 9, "{busy:?}");
        }

        #[test]
        fn whatever_is_measured_the_window_stays_in_bounds(seen in proptest::collection::vec((any::<u64>(), any::<u64>(), 0u32..100), 1..500)) {
            let mut window = ConcurrencyWindow::default();
            for (bytes, ns, beside) in seen {
                window.served(bytes, ns, beside);
                prop_assert!((1..=WINDOW_MAX).contains(&window.get()));
            }
        }
    }
}
