//! When a request will be done: the bandwidth of the servers, without a clock.
//!
//! Each server is a queue that serves one request after the other at its rate. All it takes to
//! model that is one number per server, `free_at_ns`: when everything accepted so far will have
//! passed. A request of `bytes` moves it on by `bytes / rate` and is done at the new value. Nothing
//! ticks and nothing is refilled, so the model costs nothing while idle and its limit is exact,
//! whatever the size or the number of requests: that is why it is not a token bucket refilled by a
//! timer.
//!
//! A server that was idle may lag behind real time by at most [`BURST_NS`]. This small credit lets
//! a client that sends its next request only after the last reply (a wake-up later) still use the
//! whole rate, and it is the most by which any span of time can exceed the limit.
//!
//! [`WriteBehind`] models a client's write cache: writes are acknowledged immediately until a
//! window of bytes is pending, and `fsync` and `close` wait for the last of them. Without it, one
//! writer with 1 MiB writes would keep one server busy at a time.

use std::collections::VecDeque;

use super::stripe::{SERVERS_MAX, Share};

/// Credit an idle server may gather, in time: 5 ms at 50 MB/s are 250 kB. Covers a late wake-up on
/// a busy machine, and is 0.5 % of a measurement of one second.
pub const BURST_NS: u64 = 5_000_000;

/// The queues of all servers.
#[derive(Debug, Clone)]
pub struct RateModel {
    free_at_ns: Vec<u64>,
    rate_bytes_per_s: Option<u64>,
}

impl RateModel {
    /// `servers` queues of `rate_bytes_per_s` each; `None` is no limit.
    pub fn new(servers: usize, rate_bytes_per_s: Option<u64>) -> Self {
        assert!(servers <= SERVERS_MAX, "at most {SERVERS_MAX} servers");
        Self { free_at_ns: vec![0; servers], rate_bytes_per_s }
    }

    /// The limit of each server, in bytes per second; `None` is no limit.
    pub fn rate_bytes_per_s(&self) -> Option<u64> {
        self.rate_bytes_per_s
    }

    /// Accepts `share[i]` bytes on each server `i` and says when the last of them has passed; never
    /// before `now_ns`.
    pub fn submit(&mut self, now_ns: u64, share: &Share) -> u64 {
        let Some(rate) = self.rate_bytes_per_s else { return now_ns };
        let mut done_ns = now_ns;
        for (free_at_ns, &bytes) in self.free_at_ns.iter_mut().zip(share).filter(|(_, bytes)| **bytes > 0) {
            let start_ns = (*free_at_ns).max(now_ns.saturating_sub(BURST_NS));
            *free_at_ns = start_ns.saturating_add(transfer_ns(bytes, rate));
            done_ns = done_ns.max(*free_at_ns);
        }
        done_ns
    }

    /// Sets another limit for requests from now on. What waits in a queue keeps its bytes, so its
    /// time is rescaled for the requests behind it; replies already promised keep their moment.
    pub fn set_rate(&mut self, now_ns: u64, rate_bytes_per_s: Option<u64>) {
        for free_at_ns in &mut self.free_at_ns {
            let backlog_ns = free_at_ns.saturating_sub(now_ns);
            let rescaled_ns = match (self.rate_bytes_per_s, rate_bytes_per_s) {
                (Some(old), Some(new)) => u128::from(backlog_ns) * u128::from(old) / u128::from(new),
                _ => 0,
            };
            *free_at_ns = now_ns.saturating_add(u64::try_from(rescaled_ns).unwrap_or(u64::MAX));
        }
        self.rate_bytes_per_s = rate_bytes_per_s;
    }
}

fn transfer_ns(bytes: u64, rate_bytes_per_s: u64) -> u64 {
    // Rounded up: a thousand tiny requests must not be free.
    let ns = (u128::from(bytes) * 1_000_000_000).div_ceil(u128::from(rate_bytes_per_s));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// The bytes one open file has written that the servers have not yet taken.
#[derive(Debug, Default)]
pub struct WriteBehind {
    under_way: VecDeque<(u64, u64)>,
    under_way_bytes: u64,
    last_done_ns: u64,
}

impl WriteBehind {
    /// Notes a write of `bytes` that the servers will have received at `done_ns`; returns when its
    /// writer may continue: as soon as at most `window_bytes` are pending.
    pub fn write(&mut self, now_ns: u64, bytes: u64, done_ns: u64, window_bytes: u64) -> u64 {
        // Monotone, so that the front is always the first to leave; servers finish in almost this
        // order anyway.
        self.last_done_ns = self.last_done_ns.max(done_ns);
        self.under_way.push_back((self.last_done_ns, bytes));
        self.under_way_bytes += bytes;
        let mut acknowledged_ns = now_ns;
        while let Some(&(front_ns, front_bytes)) = self.under_way.front() {
            if front_ns > now_ns && self.under_way_bytes <= window_bytes {
                break;
            }
            acknowledged_ns = acknowledged_ns.max(front_ns);
            self.under_way_bytes -= front_bytes;
            self.under_way.pop_front();
        }
        acknowledged_ns
    }

    /// When everything written so far is on the servers: what `fsync` and `close` wait for. Zero if
    /// nothing was written.
    pub fn drained_ns(&self) -> u64 {
        self.last_done_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const S: u64 = 1_000_000_000;

    fn on(server: usize, bytes: u64) -> Share {
        let mut share = [0; SERVERS_MAX];
        share[server] = bytes;
        share
    }

    #[test]
    fn one_server_is_a_queue() {
        let mut model = RateModel::new(1, Some(100));
        assert_eq!(model.submit(10 * S, &on(0, 200)), 12 * S - BURST_NS);
        assert_eq!(model.submit(10 * S, &on(0, 100)), 13 * S - BURST_NS, "waits for the one before");
        assert_eq!(model.submit(20 * S, &on(0, 100)), 21 * S - BURST_NS, "idle time is not saved up");
    }

    #[test]
    fn servers_work_side_by_side() {
        let mut model = RateModel::new(2, Some(100));
        let mut both = on(0, 100);
        both[1] = 300;
        assert_eq!(model.submit(S, &both), 4 * S - BURST_NS, "the slowest piece decides");
        assert_eq!(model.submit(S, &on(0, 100)), 3 * S - BURST_NS, "server 0 was free earlier");
    }

    #[test]
    fn no_limit_is_now() {
        assert_eq!(RateModel::new(1, None).submit(7, &on(0, u64::MAX)), 7);
    }

    #[test]
    fn a_new_rate_rescales_the_backlog() {
        let mut model = RateModel::new(1, Some(100));
        model.submit(S, &on(0, 1000)); // free at 11 s - burst
        model.set_rate(S, Some(1000));
        assert_eq!(model.submit(S, &on(0, 1000)), S + S - BURST_NS / 10 + S);
        model.set_rate(S, None);
        assert_eq!(model.submit(S, &on(0, 1000)), S);
    }

    #[test]
    fn a_synchronous_client_with_late_wake_ups_gets_the_whole_rate() {
        let (rate, mut model) = (50_000_000, RateModel::new(1, Some(50_000_000)));
        let (mut now, total) = (S, 200 * MIB);
        for _ in 0..200 {
            now = model.submit(now, &on(0, MIB)) + 300_000; // reply, wake-up, next request
        }
        let measured = total as f64 / ((now - S) as f64 / S as f64);
        assert!((0.99..1.02).contains(&(measured / rate as f64)), "{measured} B/s");
    }

    #[test]
    fn writes_run_ahead_by_the_window_and_close_waits() {
        let mut behind = WriteBehind::default();
        assert_eq!(behind.write(0, 4, 10, 8), 0);
        assert_eq!(behind.write(0, 4, 20, 8), 0);
        assert_eq!(behind.write(0, 4, 30, 8), 10, "12 under way: wait for the first");
        assert_eq!(behind.write(25, 4, 40, 8), 25, "two have gone meanwhile");
        assert_eq!(behind.drained_ns(), 40);
        assert_eq!(behind.write(50, 100, 90, 8), 90, "larger than the window: synchronous");
    }

    #[test]
    fn without_a_window_each_write_waits() {
        let mut behind = WriteBehind::default();
        assert_eq!(behind.write(0, 4, 10, 0), 10);
        assert_eq!(behind.write(10, 4, 12, 0), 12);
    }

    proptest! {
        /// However requests come, no span since the start carries more than rate x time + burst, on
        /// any server.
        #[test]
        fn the_limit_holds(requests in prop::collection::vec((0u64..50_000_000, 0usize..4, 1u64..4 * MIB), 1..200)) {
            let rate = 50_000_000;
            let mut model = RateModel::new(4, Some(rate));
            let (mut now, mut passed) = (S, [0u64; 4]);
            for (gap, server, bytes) in requests {
                now += gap;
                let done = model.submit(now, &on(server, bytes));
                passed[server] += bytes;
                let allowed = (done - S + BURST_NS) as f64 / S as f64 * rate as f64;
                prop_assert!(passed[server] as f64 <= allowed + 1.0);
                prop_assert!(done >= now);
            }
        }

        /// A queue that is never empty runs at exactly the rate: the limit is also reached.
        #[test]
        fn a_busy_queue_reaches_the_limit(sizes in prop::collection::vec(1u64..4 * MIB, 1..100)) {
            let mut model = RateModel::new(1, Some(50_000_000));
            let done = sizes.iter().map(|b| model.submit(S, &on(0, *b))).last().unwrap();
            let exact = sizes.iter().sum::<u64>() as f64 / 50e6 * 1e9 - BURST_NS as f64;
            let slack_ns = sizes.len() as f64; // each transfer is rounded up to the nanosecond
            prop_assert!(((done - S) as f64 - exact.max(0.0)).abs() <= slack_ns + 1.0);
        }

        #[test]
        fn write_behind_never_holds_more_than_its_window(
            writes in prop::collection::vec((0u64..20, 1u64..10, 0u64..50), 1..100), window in 0u64..30,
        ) {
            let (mut behind, mut now) = (WriteBehind::default(), 0);
            for (gap, bytes, cost) in writes {
                now += gap;
                let acknowledged = behind.write(now, bytes, now + cost, window);
                prop_assert!(behind.under_way_bytes <= window || behind.under_way.is_empty());
                prop_assert!(acknowledged >= now && acknowledged <= behind.drained_ns().max(now));
                now = acknowledged;
            }
        }
    }
}
