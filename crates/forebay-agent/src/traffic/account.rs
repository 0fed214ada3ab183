//! What one job moves on this node, and the rate that it may reach.

use crate::lock::lock;
use forebay_pfs::layout::Layout;
use forebay_policy::machine::Nanos;
use forebay_policy::token_bucket::{FOREVER_NS, TokenBucket};
use forebay_wire::{JobName, JobTraffic, ServerTraffic};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Fraction of a second's bytes that a job that has rested may move in one burst: a tenth, and no
/// less than a small read.
const BURST_PART: u64 = 10;
const BURST_BYTES_MIN: u64 = 64 << 10;

/// Most servers of one job; what is read from or written to others counts as of an unknown one.
const SERVERS_MAX: usize = 256;

/// How often, at least, a thread that waits looks whether it is still to wait.
const LOOK: Duration = Duration::from_millis(200);

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the PFS.
    Read,
    /// To it.
    Write,
}

/// See the module.
#[derive(Debug)]
pub struct Account {
    /// The job.
    pub name: JobName,
    /// Names it to the drain.
    number: u64,
    pace: Mutex<Pace>,
    /// The rate has changed.
    changed: Condvar,
    is_limited: AtomicBool,
    /// Requests that wait for the limit.
    held: AtomicU32,
    held_ns: AtomicU64,
    /// Bytes that the limit has let go, and the same at the last look and in the second before.
    paid_bytes: AtomicU64,
    paid_before: AtomicU64,
    paid_last: AtomicU64,
    /// Some have waited since the last look, and in the second before that.
    was_held: AtomicBool,
    held_last: AtomicBool,
    /// By mount and server.
    servers: Mutex<BTreeMap<(usize, String), Moved>>,
    started: Instant,
}

#[derive(Debug, Default)]
struct Pace {
    bucket: Option<TokenBucket>,
    /// The limit of all nodes together.
    limit: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    read_bytes: u64,
    written_bytes: u64,
    calls: u64,
    waited_ns: u64,
}

#[derive(Debug, Default)]
struct Moved {
    all: Counts,
    /// The counts at the last look.
    before: Counts,
    /// What was counted per second between the last two looks.
    last: Counts,
}

impl Moved {
    fn look(&mut self, passed: Duration) {
        let per_s = |now: u64, before: u64| ((now - before) as f64 / passed.as_secs_f64().max(1e-3)) as u64;
        let (now, before) = (self.all, self.before);
        self.last = Counts {
            read_bytes: per_s(now.read_bytes, before.read_bytes),
            written_bytes: per_s(now.written_bytes, before.written_bytes),
            calls: per_s(now.calls, before.calls),
            waited_ns: per_s(now.waited_ns, before.waited_ns),
        };
        self.before = now;
    }
}

fn burst_of(share: u64) -> u64 {
    (share / BURST_PART).max(BURST_BYTES_MIN)
}

/// Lets `bytes` go once nothing is owed, whatever their number, and returns 0; or the time to wait.
/// Otherwise small requests of a job would forever take what a large one waits for.
fn grant(bucket: &mut TokenBucket, now: Nanos, bytes: u64) -> u64 {
    let wait_ns = bucket.take(now, bytes.min(1));
    if wait_ns == 0 {
        // Owed from now on.
        let _ = bucket.reserve(now, bytes.saturating_sub(1));
    }
    wait_ns
}

impl Account {
    /// The account of a job without traffic and without a limit.
    pub(super) fn new(name: JobName, number: u64) -> Self {
        Account {
            name,
            number,
            pace: Mutex::default(),
            changed: Condvar::new(),
            is_limited: AtomicBool::new(false),
            held: AtomicU32::new(0),
            held_ns: AtomicU64::new(0),
            paid_bytes: AtomicU64::new(0),
            paid_before: AtomicU64::new(0),
            paid_last: AtomicU64::new(0),
            was_held: AtomicBool::new(false),
            held_last: AtomicBool::new(false),
            servers: Mutex::default(),
            started: Instant::now(),
        }
    }

    fn now(&self) -> Nanos {
        Nanos(self.started.elapsed().as_nanos() as u64)
    }

    /// Sets that it may move `share` of the `limit` of all nodes from now on.
    pub(super) fn set_limit(&self, limit: Option<u64>, share: u64) {
        let mut pace = lock(&self.pace);
        pace.limit = limit;
        let now = self.now();
        match &mut pace.bucket {
            _ if limit.is_none() => pace.bucket = None,
            // What is owed stays owed.
            Some(bucket) => {
                bucket.set_rate(now, share);
                bucket.set_burst(now, burst_of(share));
            }
            None => {
                let burst = burst_of(share);
                let mut bucket = TokenBucket::new(now, share, burst);
                // A new limit begins without a burst.
                bucket.take(now, burst);
                pace.bucket = Some(bucket);
            }
        }
        self.is_limited.store(limit.is_some(), Relaxed);
        drop(pace);
        self.changed.notify_all();
    }

    /// Whether it has a limit.
    pub fn is_limited(&self) -> bool {
        self.is_limited.load(Relaxed)
    }

    /// Its number, if it has a limit.
    pub fn limited(&self) -> Option<u64> {
        self.is_limited().then_some(self.number)
    }

    /// Waits until the job may move `bytes`; `false` if that is not before `until`, or `is_over`.
    pub fn take(&self, bytes: u64, until: Instant, is_over: impl Fn() -> bool) -> bool {
        if !self.is_limited() || bytes == 0 {
            return true;
        }
        let began = Instant::now();
        let mut pace = lock(&self.pace);
        let mut is_waiting = false;
        let granted = loop {
            let now = self.now();
            let wait_ns = pace.bucket.as_mut().map_or(0, |bucket| grant(bucket, now, bytes));
            if wait_ns == 0 {
                break true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || is_over() {
                break false;
            }
            if !std::mem::replace(&mut is_waiting, true) {
                self.held.fetch_add(1, Relaxed);
                self.was_held.store(true, Relaxed);
            }
            let wait = if wait_ns == FOREVER_NS { LOOK } else { Duration::from_nanos(wait_ns).min(LOOK) };
            let waited = self.changed.wait_timeout(pace, wait.min(left));
            pace = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(pace);
        if granted {
            self.paid_bytes.fetch_add(bytes, Relaxed);
        }
        if is_waiting {
            self.held.fetch_sub(1, Relaxed);
            self.held_ns.fetch_add(began.elapsed().as_nanos() as u64, Relaxed);
        }
        granted
    }

    /// As many units as the job may move without waiting, of at most `units` of `unit_bytes`.
    pub fn afford(&self, units: usize, unit_bytes: u64) -> usize {
        if !self.is_limited() {
            return units;
        }
        let mut pace = lock(&self.pace);
        let now = self.now();
        let Some(bucket) = &mut pace.bucket else { return units };
        let afforded = (0..units).take_while(|_| grant(bucket, now, unit_bytes) == 0).count();
        self.paid_bytes.fetch_add(afforded as u64 * unit_bytes, Relaxed);
        if afforded < units {
            self.was_held.store(true, Relaxed);
        }
        afforded
    }

    /// Records that the job has moved `len` bytes from `offset` on of a file with this layout, and
    /// in what time.
    pub fn moved(
        &self,
        mount: usize,
        layout: Option<&Layout>,
        way: Way,
        (offset, len): (u64, u64),
        took: Duration,
    ) {
        let parts = layout.map_or_else(|| vec![("", len)], |layout| layout.bytes_by_server(offset, len));
        let mut servers = lock(&self.servers);
        for (server, bytes) in parts {
            let is_known = servers.contains_key(&(mount, server.to_owned()));
            let server = if is_known || servers.len() < SERVERS_MAX { server } else { "" };
            let counts = &mut servers.entry((mount, server.to_owned())).or_default().all;
            match way {
                Way::Read => counts.read_bytes += bytes,
                Way::Write => counts.written_bytes += bytes,
            }
            counts.calls += 1;
            counts.waited_ns += took.as_nanos() as u64;
        }
    }

    /// Measures its rates over the time that has passed since the last look. Returns whether
    /// anything has happened.
    pub(super) fn look(&self, passed: Duration) -> bool {
        let mut servers = lock(&self.servers);
        servers.values_mut().for_each(|moved| moved.look(passed));
        let moves = servers.values().any(|moved| moved.last.read_bytes + moved.last.written_bytes > 0);
        let is_held = self.was_held.swap(self.held.load(Relaxed) > 0, Relaxed);
        self.held_last.store(is_held, Relaxed);
        let paid = self.paid_bytes.load(Relaxed);
        let paid_s = (paid - self.paid_before.swap(paid, Relaxed)) as f64 / passed.as_secs_f64().max(1e-3);
        self.paid_last.store(paid_s as u64, Relaxed);
        moves || is_held || paid_s > 0.0
    }

    /// The traffic as people and the coordinator see it; `labels` are those of the mounts.
    pub(super) fn status(&self, labels: &[String]) -> JobTraffic {
        let ms = |ns: u64| ns / 1_000_000;
        let server = |((mount, server), moved): (&(usize, String), &Moved)| ServerTraffic {
            mount: labels.get(*mount).cloned().unwrap_or_default(),
            server: server.clone(),
            read_bytes: moved.all.read_bytes,
            written_bytes: moved.all.written_bytes,
            read_bytes_per_s: moved.last.read_bytes,
            written_bytes_per_s: moved.last.written_bytes,
            calls: moved.all.calls,
            waited_ms: ms(moved.all.waited_ns),
            waited_ms_per_s: ms(moved.last.waited_ns),
        };
        JobTraffic {
            job: self.name.clone(),
            limit_bytes_per_s: lock(&self.pace).limit,
            paid_bytes_per_s: self.paid_last.load(Relaxed),
            held_ms: ms(self.held_ns.load(Relaxed)),
            held: self.held.load(Relaxed),
            was_held: self.held_last.load(Relaxed),
            servers: lock(&self.servers).iter().map(server).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_limit_holds_and_its_end_lets_go_what_waits() {
        let account = Account::new(JobName::default(), 1);
        let later = Instant::now() + Duration::from_secs(60);
        assert!(account.take(1 << 40, Instant::now(), || false), "no limit");
        account.set_limit(Some(1), 1);
        assert!(!account.take(MIB, Instant::now(), || false));
        assert!(!account.take(MIB, later, || true));
        assert_eq!((account.limited(), account.afford(3, MIB)), (Some(1), 0));
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| account.take(MIB, later, || false));
            while account.held.load(Relaxed) == 0 {
                std::thread::yield_now();
            }
            assert!(account.look(Duration::from_secs(1)) && account.status(&[]).was_held);
            account.set_limit(None, 0);
            assert!(waits.join().unwrap());
        });
        assert_eq!((account.limited(), account.afford(3, MIB)), (None, 3));
    }

    #[test]
    fn what_is_moved_takes_as_long_as_the_rate_says() {
        let account = Account::new(JobName::default(), 1);
        account.set_limit(Some(64 * MIB), 64 * MIB);
        let began = Instant::now();
        for _ in 0..8 {
            assert!(account.take(2 * MIB, began + Duration::from_secs(60), || false));
        }
        // The last goes as soon as those before it are paid for.
        assert!(began.elapsed() > Duration::from_millis(180), "{:?}", began.elapsed());
    }

    #[test]
    fn bytes_and_waits_are_counted_by_server() {
        let account = Account::new(JobName { user: 7, job: "a".into() }, 1);
        let layout = Layout { stripe_bytes: MIB, servers: vec!["s0".into(), "s1".into()], first_server: 0 };
        let second = Duration::from_secs(1);
        account.moved(0, Some(&layout), Way::Read, (0, 2 * MIB), second);
        account.moved(0, Some(&layout), Way::Write, (MIB, 10), second);
        account.moved(0, None, Way::Read, (0, 5), second);
        assert!(account.look(second));
        let status = account.status(&["pfs".into()]);
        let row = |server: &str| status.servers.iter().find(|row| row.server == server).unwrap().clone();
        assert_eq!((row("s0").read_bytes, row("s0").waited_ms, row("s0").calls), (MIB, 1000, 1));
        assert_eq!((row("s1").read_bytes_per_s, row("s1").written_bytes, row("s1").calls), (MIB, 10, 2));
        assert_eq!((row("").read_bytes, row("").mount.as_str()), (5, "pfs"));
        assert!(!account.look(second), "nothing since");
    }
}
