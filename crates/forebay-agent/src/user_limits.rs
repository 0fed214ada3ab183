//! Limits what an ordinary user may hold of the agent at a time, and counts it before allocation.
//!
//! One ledger serves all resources that have no other limit for one user. [`Shares::share`] takes
//! an amount for a user, or refuses and names the user's share; dropping the [`Share`] returns the
//! amount. All ordinary users together have a limit as well, so that something is left for the
//! operator. This ledger does not limit the operator; the budget, the connections and the kernel
//! do.

use crate::config::{Config, Live};
use crate::lock::lock;
use crate::mounts::MountState;
use crate::traffic::account::Account;
use crate::units::Human;
use forebay_store::Budget;
use forebay_wire::Refusal;
use std::collections::BTreeMap;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// Most analytics jobs of an agent at a time.
pub const JOBS_MAX: usize = 64;

/// Most questions of ordinary users to the coordinator at a time: each answer takes some MiB until
/// it is sent.
const LISTS_MAX: u64 = 16;

/// A resource of which users have shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Connections, each with its thread.
    Connections,
    /// Loads, each with its thread.
    Loads,
    /// Analytics jobs.
    Jobs,
    /// Questions to the coordinator.
    Lists,
    /// Bytes of answers that were too long for a packet.
    Answers,
    /// Descriptors that outlive the request they came with: of loads, fetches, memory-only files
    /// and files written through.
    Descriptors,
    /// Bytes of pages under way from the PFS that reads wait for.
    Fetching,
    /// The same for read-ahead and refills, which must not hold back the user's own reads.
    Ahead,
    /// Bytes that cannot be evicted: memory-only files, files being written through, pinned files.
    Held,
    /// Bytes of pages that programs map.
    Mapped,
    /// Bytes of announced orders.
    Orders,
    /// Bytes of map outputs on the disk.
    Spilled,
}

/// How much one user and all ordinary users may have, and the texts for a refusal.
struct Bounds {
    own: u64,
    all: u64,
    what: &'static str,
    remedy: &'static str,
    is_bytes: bool,
}

impl Bounds {
    fn of(shares: &Shares, kind: Kind) -> Self {
        let capacity = shares.budget.most_bytes();
        let connections = shares.live.get(|config| config.connections_max as u64);
        let spill = shares.live.get(|config| (shares.disk_bytes as f64 * config.spill_fill) as u64);
        let descriptors = descriptors_max();
        let (own, all) = match kind {
            Kind::Connections | Kind::Loads => (connections.div_ceil(2), connections),
            Kind::Jobs => (JOBS_MAX as u64 / 2, JOBS_MAX as u64),
            Kind::Lists => (LISTS_MAX / 4, LISTS_MAX),
            Kind::Answers => (capacity / 8, capacity / 4),
            Kind::Descriptors => (descriptors / 4, descriptors / 2),
            Kind::Fetching | Kind::Ahead => (capacity / 2, capacity),
            Kind::Held => (capacity / 2, capacity / 4 * 3),
            Kind::Mapped => (capacity / 8, capacity / 4),
            Kind::Orders => (capacity / 16, capacity / 8),
            Kind::Spilled => (spill / 2, spill / 4 * 3),
        };
        let (what, remedy) = match kind {
            Kind::Connections => ("connections", "close some, or raise agent.connections_max"),
            Kind::Loads => ("loads", "wait for others to end, or raise agent.connections_max"),
            Kind::Jobs => ("analytics jobs at this node", "wait for others to end"),
            Kind::Lists => ("questions to the coordinator", "wait for the answers"),
            Kind::Answers => ("bytes of long answers", "close the connections that have got them"),
            Kind::Descriptors => (
                "open files at the agent",
                "wait for loads and reads to end, remove memory-only files, or raise the agent's `ulimit -n`",
            ),
            Kind::Fetching | Kind::Ahead => ("bytes under way from the file system", "wait for reads to end"),
            Kind::Held => (
                "bytes of memory-only, pinned and not yet closed files",
                "remove or unpin some, or raise tier.capacity",
            ),
            Kind::Mapped => ("mapped bytes", "unmap some, or raise tier.capacity"),
            Kind::Orders => (
                "bytes of announced orders",
                "announce fewer epochs at a time, or larger parts, or raise tier.capacity",
            ),
            Kind::Spilled => {
                ("bytes of spilled map outputs", "wait for shuffles to end, or raise tier.spill_fill")
            }
        };
        Bounds {
            own,
            all,
            what,
            remedy,
            is_bytes: matches!(
                kind,
                Kind::Answers
                    | Kind::Fetching
                    | Kind::Ahead
                    | Kind::Held
                    | Kind::Mapped
                    | Kind::Orders
                    | Kind::Spilled
            ),
        }
    }

    /// Whether a user that has `own` with the request, of `all` that ordinary users have, stays
    /// within both bounds.
    fn check(&self, own: u64, all: u64) -> Result<(), Refusal> {
        let (whose, wanted, bound) = match own > self.own {
            true => ("one user", own, self.own),
            false if all > self.all => ("all ordinary users", all, self.all),
            false => return Ok(()),
        };
        let number = |n: u64| if self.is_bytes { Human(n).to_string() } else { n.to_string() };
        Err(Refusal::TooMany(format!(
            "{} of {whose}: {} with this request, and the share is {}; {}",
            self.what,
            number(wanted),
            number(bound),
            self.remedy
        )))
    }
}

/// Descriptors that the kernel allows this process. Asked each time: the administrator may change
/// it.
fn descriptors_max() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20)
}

/// What ordinary users hold now; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Mutex<BTreeMap<(Kind, u32), u64>>>);

impl Ledger {
    fn take(&self, kind: Kind, uid: u32, amount: u64, bounds: Option<&Bounds>) -> Result<Share, Refusal> {
        let mut held = lock(&self.0);
        let own = held.get(&(kind, uid)).copied().unwrap_or(0).saturating_add(amount);
        let of_kind = held.range((kind, 0)..=(kind, u32::MAX));
        let all = of_kind.fold(amount, |all, (_, held)| all.saturating_add(*held));
        bounds.map_or(Ok(()), |bounds| bounds.check(own, all))?;
        held.insert((kind, uid), own);
        Ok(Share { ledger: Some(self.clone()), kind, uid, amount })
    }

    fn give_back(&self, kind: Kind, uid: u32, amount: u64) {
        let mut held = lock(&self.0);
        let left = held.get(&(kind, uid)).map_or(0, |held| held - amount);
        if left == 0 {
            held.remove(&(kind, uid));
        } else {
            held.insert((kind, uid), left);
        }
    }
}

/// An amount that a user holds; dropping it returns it.
#[derive(Debug)]
pub struct Share {
    /// `None` for the operator, whose shares are not counted.
    ledger: Option<Ledger>,
    kind: Kind,
    uid: u32,
    amount: u64,
}

impl Share {
    /// Whose it is.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Whether it is the operator's, whose shares are not counted.
    pub fn is_of_operator(&self) -> bool {
        self.ledger.is_none()
    }

    /// Takes in another share of the same user and kind.
    ///
    /// # Panics
    /// They differ.
    pub fn merge(&mut self, mut other: Share) {
        assert_eq!((self.kind, self.uid), (other.kind, other.uid), "shares of two users cannot be one");
        self.amount += std::mem::take(&mut other.amount);
    }

    /// Returns a part of it.
    ///
    /// # Panics
    /// It does not hold as much.
    pub fn shrink(&mut self, amount: u64) {
        assert!(amount <= self.amount, "returning {amount} of {}", self.amount);
        self.amount -= amount;
        if let Some(ledger) = &self.ledger {
            ledger.give_back(self.kind, self.uid, amount);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(self.amount);
    }
}

/// The shares that users may hold.
#[derive(Debug)]
pub struct Shares {
    ledger: Ledger,
    budget: Budget,
    live: Arc<Live<Config>>,
    /// Size of the disk for map outputs.
    disk_bytes: u64,
    /// The user of this program.
    agent_uid: u32,
}

impl Shares {
    /// Shares of which nobody holds anything. They are fractions of `budget`, of
    /// `agent.connections_max`, and of `tier.spill_fill` of a disk of `disk_bytes`.
    pub fn new(budget: Budget, live: Arc<Live<Config>>, disk_bytes: u64) -> Self {
        let agent_uid = rustix::process::geteuid().as_raw();
        Shares { ledger: Ledger::default(), budget, live, disk_bytes, agent_uid }
    }

    /// True if a program of user `uid` may do what only the operator may.
    pub fn is_operator(&self, uid: u32) -> bool {
        uid == 0 || uid == self.agent_uid
    }

    /// Takes `amount` of `kind` for user `uid`. The operator gets it always.
    ///
    /// # Errors
    /// The user, or all ordinary users, would have more than their share.
    pub fn share(&self, kind: Kind, uid: u32, amount: u64) -> Result<Share, Refusal> {
        if self.is_operator(uid) {
            return Ok(Share { ledger: None, kind, uid, amount });
        }
        self.ledger.take(kind, uid, amount, Some(&Bounds::of(self, kind)))
    }

    /// As [`Shares::share`], for what the user has already: pins that an earlier agent granted.
    pub fn share_existing(&self, kind: Kind, uid: u32, amount: u64) -> Share {
        let counted = (!self.is_operator(uid)).then(|| self.ledger.take(kind, uid, amount, None).ok());
        counted.flatten().unwrap_or(Share { ledger: None, kind, uid, amount })
    }

    /// Keeps a file that user `uid` has sent and that outlives the request.
    ///
    /// # Errors
    /// The user has too many.
    pub fn keep_file(&self, uid: u32, fd: OwnedFd) -> Result<PfsFile, Refusal> {
        let share = self.share(Kind::Descriptors, uid, 1)?;
        let descriptor = Some(Arc::new(share));
        Ok(PfsFile { fd: Arc::new(fd), account: None, _descriptor: descriptor, _under_way: None })
    }
}

/// A file of the PFS, open for reading, with what it takes of its user's shares for as long as it
/// is open.
#[derive(Debug)]
pub struct PfsFile {
    fd: Arc<OwnedFd>,
    /// The job that it is read for.
    account: Option<Arc<Account>>,
    _descriptor: Option<Arc<Share>>,
    _under_way: Option<Share>,
}

impl PfsFile {
    /// The same open file, read for a job.
    pub fn of_job(&self, account: Arc<Account>) -> Self {
        let (fd, descriptor) = (self.fd.clone(), self._descriptor.clone());
        PfsFile { fd, account: Some(account), _descriptor: descriptor, _under_way: None }
    }

    /// The job that it is read for.
    pub fn account(&self) -> Option<&Arc<Account>> {
        self.account.as_ref()
    }

    /// The same open file, for pages under way that take `share`.
    pub fn with(&self, share: Share) -> Self {
        let (fd, account) = (self.fd.clone(), self.account.clone());
        PfsFile { fd, account, _descriptor: self._descriptor.clone(), _under_way: Some(share) }
    }

    /// The same open file, while no page of it is under way.
    pub fn kept(&self) -> Self {
        let (fd, account) = (self.fd.clone(), self.account.clone());
        PfsFile { fd, account, _descriptor: self._descriptor.clone(), _under_way: None }
    }

    /// Whether both are one open file.
    pub fn is_same(&self, other: &PfsFile) -> bool {
        Arc::ptr_eq(&self.fd, &other.fd)
    }

    /// As [`MountState::for_fetching`], of its mount.
    pub fn for_fetching(self, mount: &MountState) -> Self {
        match mount.opened_past_caches(self.as_fd()) {
            Some(Ok(fd)) => PfsFile { fd: Arc::new(fd), ..self },
            Some(Err(_)) | None => self,
        }
    }

    /// As [`PfsFile::for_fetching`], for a file that nobody has opened that way yet.
    ///
    /// # Errors
    /// The agent may not open it, or has too many files open.
    pub fn opened_for_fetching(self, mount: &MountState) -> io::Result<Self> {
        let opened = mount.opened_past_caches(self.as_fd()).transpose()?;
        Ok(match opened {
            Some(fd) => PfsFile { fd: Arc::new(fd), ..self },
            None => self,
        })
    }
}

/// A file that the agent has opened itself.
impl From<OwnedFd> for PfsFile {
    fn from(fd: OwnedFd) -> Self {
        PfsFile { fd: Arc::new(fd), account: None, _descriptor: None, _under_way: None }
    }
}

impl Deref for PfsFile {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.fd
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds() -> Bounds {
        Bounds { own: 10, all: 15, what: "things", remedy: "wait", is_bytes: false }
    }

    #[test]
    fn a_user_and_all_users_are_bounded_and_what_is_dropped_is_returned() {
        let ledger = Ledger::default();
        let take = |uid, amount| ledger.take(Kind::Held, uid, amount, Some(&bounds()));
        let mut first = take(1, 6).unwrap();
        first.merge(take(1, 4).unwrap());
        let words = take(1, 1).unwrap_err().to_string();
        assert_eq!(words, "too many things of one user: 11 with this request, and the share is 10; wait");
        let second = take(2, 5).unwrap();
        let words = take(2, 1).unwrap_err().to_string();
        assert!(words.contains("of all ordinary users: 16"), "{words}");
        assert!(ledger.take(Kind::Mapped, 2, 10, Some(&bounds())).is_ok(), "another kind");
        first.shrink(3);
        drop(second);
        assert!(take(1, 4).is_err() && take(1, 3).is_ok());
        drop(first);
        assert!(lock(&ledger.0).is_empty(), "nobody is remembered");
    }
}
