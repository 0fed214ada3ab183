//! Which of several candidates leads: the one that has created a key in etcd, for as long as its
//! lease lasts.
//!
//! The key's create revision is the *term*. Later leaders have greater ones, and whatever a leader
//! writes to etcd, it writes on the condition that the key still has that revision. So a leader
//! that was replaced changes nothing there, whenever its write arrives.
//!
//! Against agents it fences itself: it acts only until `Lead::until_ns`, which counts from before
//! the last renewal of the lease was sent, so that it has stopped before etcd can give the key to
//! another candidate. The clock also runs while the machine is suspended.
//!
//! A candidate that does not lead looks at the key several times a second. That is a read of one
//! key; a watch would be a second kind of connection.

use crate::etcd::{Etcd, Place};
use crate::stored::{self, LEADER, Stored};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Seconds of lease requested from etcd: its least, with its default election timeout of a second.
const LEASE_S: u64 = 2;

/// Fraction of a lease during which its holder acts: clocks run at slightly different rates.
const ACTING_PERMILLE: u64 = 900;

/// How often a lease is renewed, and the pause after a renewal that failed.
const RENEW_EVERY: Duration = Duration::from_millis(400);
const RENEW_AGAIN: Duration = Duration::from_millis(50);

/// How often a candidate that does not lead looks at the key.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Longest time for one question to etcd, all of its members included.
const ASK: Duration = Duration::from_millis(1300);

/// Nanoseconds of a clock that never stops and is never set.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Where a candidate stands in the election.
#[derive(Clone, Debug)]
pub enum Standing {
    /// Another leads, or nobody.
    Waits {
        /// Address and term of the leader, if there is one.
        leader: Option<(String, u64)>,
        /// Why nobody can be elected, if that is so.
        problem: String,
    },
    /// It leads.
    Leads(Lead),
}

/// What a leader has.
#[derive(Clone, Debug)]
pub struct Lead {
    /// The create revision of the key.
    pub term: u64,
    /// Until when it may act, in [`now_ns`].
    until_ns: Arc<AtomicU64>,
    /// What the leader before has stored.
    pub stored: Arc<Stored>,
}

impl Lead {
    /// Whether it may act now.
    pub fn may_act(&self) -> bool {
        now_ns() < self.until_ns.load(Ordering::Acquire)
    }
}

/// Called when something has changed.
pub type Call = Box<dyn Fn() + Send + Sync>;

/// A candidate of this process.
pub struct Election {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    place: Place,
    /// Address of this candidate for agents.
    address: String,
    standing: Mutex<Standing>,
    /// Terms up to this one are over for this candidate.
    given_up: AtomicU64,
    stopping: AtomicBool,
    call: Call,
}

impl Election {
    /// Begins to campaign for `address`.
    ///
    /// # Errors
    /// No thread.
    pub fn start(place: Place, address: String, call: Call) -> io::Result<Self> {
        let standing = Mutex::new(Standing::Waits { leader: None, problem: String::new() });
        let (given_up, stopping) = (AtomicU64::new(0), AtomicBool::new(false));
        let shared = Arc::new(Shared { place, address, standing, given_up, stopping, call });
        let its = shared.clone();
        let thread = std::thread::Builder::new().name("election".into()).spawn(move || its.run())?;
        Ok(Election { shared, thread: Some(thread) })
    }

    /// Its address for agents.
    pub fn address(&self) -> &str {
        &self.shared.address
    }

    /// Where it stands now.
    pub fn standing(&self) -> Standing {
        self.shared.standing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends this candidate's leadership in that term.
    pub fn give_up(&self, term: u64) {
        self.shared.given_up.fetch_max(term, Ordering::AcqRel);
    }

    /// Ends it; a leader's lease as well, so that the next one need not wait for its end.
    pub fn stop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the election has panicked");
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut etcd = Etcd::new(self.place.clone());
        while !self.stopping.load(Ordering::Acquire) {
            match self.campaign(&mut etcd) {
                Ok(leader) => self.stand(Standing::Waits { leader, problem: String::new() }),
                Err(e) => {
                    self.stand(Standing::Waits {
                        leader: None,
                        problem: format!("etcd does not answer: {e}"),
                    });
                }
            }
            self.pause(LOOK_EVERY);
        }
    }

    fn stand(&self, standing: Standing) {
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner) = standing;
        (self.call)();
    }

    fn pause(&self, length: Duration) {
        if !self.stopping.load(Ordering::Acquire) {
            std::thread::sleep(length);
        }
    }

    /// Looks who leads, and leads if it is nobody. Returns the leader when this candidate does not
    /// lead, or no longer.
    fn campaign(&self, etcd: &mut Etcd) -> io::Result<Option<(String, u64)>> {
        if let Some(leader) = etcd.get(LEADER, Instant::now() + ASK)? {
            return Ok(Some((leader.value, leader.created)));
        }
        let asked_ns = now_ns();
        let (lease, seconds) = etcd.grant(LEASE_S, Instant::now() + ASK)?;
        let leader = etcd.create(LEADER, &self.address, lease, Instant::now() + ASK)?;
        if leader.lease != lease {
            // Not needed; it would end by itself.
            let _ = etcd.revoke(lease, Instant::now() + ASK);
            return Ok(Some((leader.value, leader.created)));
        }
        let mut lease = Lease::new(lease, asked_ns, seconds);
        let held = self.lead(etcd, &mut lease, leader.created);
        self.stand(Standing::Waits { leader: None, problem: String::new() });
        // Nobody has to wait for its end; without etcd it ends by itself.
        let _ = etcd.revoke(lease.number, Instant::now() + ASK);
        held.map(|()| None)
    }

    fn lead(&self, etcd: &mut Etcd, lease: &mut Lease, term: u64) -> io::Result<()> {
        let stored = Arc::new(stored::load(etcd, ASK, |etcd| lease.renew_if_due(etcd, term))?);
        tracing::info!(term, address = self.address, "leads the cluster");
        self.stand(Standing::Leads(Lead { term, until_ns: lease.until_ns.clone(), stored }));
        while !self.stopping.load(Ordering::Acquire) && self.given_up.load(Ordering::Acquire) < term {
            if !lease.may_act() {
                tracing::warn!(term, "no longer leads: the lease could not be renewed");
                break;
            }
            self.pause(match lease.renew_if_due(etcd, term) {
                Ok(()) => RENEW_AGAIN.max(lease.due_in().min(LOOK_EVERY)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    tracing::warn!(term, "no longer leads: {e}");
                    break;
                }
                Err(_) => RENEW_AGAIN,
            });
        }
        lease.until_ns.store(0, Ordering::Release);
        (self.call)();
        Ok(())
    }
}

/// A lease that is held.
struct Lease {
    number: u64,
    until_ns: Arc<AtomicU64>,
    renewed: Instant,
}

impl Lease {
    fn new(number: u64, asked_ns: u64, seconds: u64) -> Self {
        let lease = Lease { number, until_ns: Arc::default(), renewed: Instant::now() };
        lease.extend(asked_ns, seconds);
        lease
    }

    fn extend(&self, asked_ns: u64, seconds: u64) {
        self.until_ns.store(asked_ns + seconds * 1_000_000 * ACTING_PERMILLE, Ordering::Release);
    }

    fn may_act(&self) -> bool {
        now_ns() < self.until_ns.load(Ordering::Acquire)
    }

    fn due_in(&self) -> Duration {
        RENEW_EVERY.saturating_sub(self.renewed.elapsed())
    }

    /// Renews it for the leader of `term`. Somebody may have removed the leader's key: then another
    /// candidate leads, whatever the lease says.
    fn renew_if_due(&mut self, etcd: &mut Etcd, term: u64) -> io::Result<()> {
        if !self.due_in().is_zero() {
            return Ok(());
        }
        let (asked_ns, began) = (now_ns(), Instant::now());
        match etcd.keep_alive(self.number, Instant::now() + ASK)? {
            0 => Err(io::Error::new(io::ErrorKind::NotFound, "the lease has ended")),
            // A renewal that came too late to continue is not believed: agents may have left.
            _ if !self.may_act() => Ok(()),
            seconds => {
                let key = etcd.get(LEADER, Instant::now() + ASK)?;
                if key.is_none_or(|key| key.created != term) {
                    let why = "the key of the leader is gone from etcd";
                    return Err(io::Error::new(io::ErrorKind::NotFound, why));
                }
                if !self.may_act() {
                    return Ok(());
                }
                self.extend(asked_ns, seconds);
                self.renewed = began;
                Ok(())
            }
        }
    }
}
