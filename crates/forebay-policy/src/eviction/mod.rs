//! Which page leaves the RAM tier next.
//!
//! One policy per file behind one trait, [`EvictionPolicy`]; [`EvictionKind`] names them for the
//! configuration and builds them. A policy only orders pages. It does not own them, does not know
//! the memory budget's state and never decides *that* something must go: the agent does, and asks
//! [`EvictionPolicy::evict`] for victims.
//!
//! How the agent uses a policy:
//! - it calls `evict` for the room it needs and `insert` for the page it has filled, in either
//!   order. A newcomer may be the next victim (that is how a policy refuses to admit), so a page is
//!   served to its reader before `evict` is asked again, or the closure refuses it;
//! - pages that must stay (pinned, dirty, being read or filled) are refused by the closure. A
//!   refused page is treated as if it had just been used, without being counted, so that a tier
//!   full of pins is walked once per round and not from the start by every call;
//! - if that is not enough and the tier has to become smaller, it asks
//!   [`EvictionPolicy::unplan_latest`] for planned pages, and evicts again;
//! - `touch` comes late, in batches, sampled, and for keys that are gone by then. Policies must
//!   cope with that, and nothing breaks without it;
//! - keys are opaque. A file's new version has new keys; the memory of evicted pages is by key.
//!
//! All of them are deterministic: same calls, same victims.

mod announced;
#[cfg(test)]
mod conformance;
mod lru;
mod orders;
mod planned;
mod remote_pages;
mod windowed_lfu;

pub use crate::arena::Victim;
use alloc::collections::BTreeSet;
use alloc::{boxed::Box, string::String, vec::Vec};
use core::{fmt, str::FromStr};

pub use announced::Announced;
pub use lru::Lru;
pub use orders::{FilePart, Orders};
pub use planned::Planned;
pub use remote_pages::RemotePages;
pub use windowed_lfu::WindowedLfu;

/// Limit on the part of a tier for pages that are fetched by plan and not used yet, in percent
/// ([`Planned`]). The rest is for what is read without a plan.
pub const PLANNED_SHARE_PERCENT: u64 = 75;

/// Why a page comes into the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// A reader waits for it, or it was loaded by name (`load`): the insertion is its first use.
    Demand,
    /// Read-ahead: it has not been used yet, so its first touch is the first use and not a sign of
    /// re-use.
    Ahead,
    /// It came from its owner, another node, for a reader here: the first to go until it is used a
    /// second time ([`RemotePages`]). No policy but that wrapper ever sees it.
    Remote,
}

/// When a page is used next, as far as jobs have announced it ([`Orders`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextUse {
    /// No job has announced anything about it.
    Unknown,
    /// At this place of the announced order; smaller places come first.
    At(u64),
    /// Its announced uses are over, and the job continues.
    Over,
}

/// The exact state of a policy, for tests and for inspecting a live agent: named queues, next
/// victim first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump {
    /// Queue name and keys; queues that only remember evicted pages have names that begin with
    /// `ghost`.
    pub queues: Vec<(String, Vec<u64>)>,
}

/// The order in which pages leave the tier.
pub trait EvictionPolicy: fmt::Debug + Send {
    /// Records a page that is now resident. A key that is already known is touched and takes the
    /// new size.
    fn insert(&mut self, key: u64, bytes: u32, fill: Fill);

    /// Records the use of a page. Unknown keys are ignored: touches are sampled and late.
    fn touch(&mut self, key: u64);

    /// Removes a page that is gone for another reason than eviction (file deleted, replaced,
    /// evicted by the user). Returns its size; `None` if it was not resident. The page is not
    /// remembered.
    fn remove(&mut self, key: u64) -> Option<u32>;

    /// Appends victims to `victims`, in order, until they cover `want_bytes`, and returns the bytes
    /// they cover: less than wanted only if `may_evict` refuses all the rest. A page may be offered
    /// a few times in a call; the work is O(victims + refused), and O(len) when everything is
    /// pinned.
    fn evict(
        &mut self,
        want_bytes: u64,
        may_evict: &mut dyn FnMut(u64) -> bool,
        victims: &mut Vec<Victim>,
    ) -> u64;

    /// Sets the tier's capacity. Evicts nothing by itself; policies that split the tier use it as
    /// the whole.
    fn set_capacity(&mut self, capacity_bytes: u64);

    /// The capacity last set.
    fn capacity_bytes(&self) -> u64;

    /// Whether the page is resident as far as the policy knows.
    fn contains(&self, key: u64) -> bool;

    /// Number of resident pages.
    fn len(&self) -> usize;

    /// Sum of the resident pages' sizes.
    fn bytes(&self) -> u64;

    /// Sum of the sizes of remote pages ([`Fill::Remote`]) among them.
    fn remote_page_bytes(&self) -> u64 {
        0
    }

    /// Records that request `order` fetched a resident page, which stays until its first touch, or
    /// until [`EvictionPolicy::unplan`] of that request ([`Planned`]). `false`: it is not resident,
    /// or planned pages have their share already.
    fn plan(&mut self, _key: u64, _order: u64) -> bool {
        false
    }

    /// Makes pages of the requests `orders`, or of all requests, evictable again.
    fn unplan(&mut self, _orders: Option<&BTreeSet<u64>>) {}

    /// Makes planned pages of at least `bytes` in all, the latest first, evictable again: nothing
    /// else can go, and the tier is too small. Returns their bytes; fewer if there are no more.
    fn unplan_latest(&mut self, _bytes: u64) -> u64 {
        0
    }

    /// Sum of the sizes of planned pages.
    fn planned_bytes(&self) -> u64 {
        0
    }

    /// Records when a job has announced that it will use a resident page next ([`Announced`]).
    fn announce(&mut self, _key: u64, _next_use: NextUse) {}

    /// Sum of the sizes of announced pages.
    fn announced_bytes(&self) -> u64 {
        0
    }

    /// Whether no page is resident.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the exact state.
    fn dump(&self) -> Dump;
}

/// The policies by the names that the configuration uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EvictionKind {
    /// Least recently used.
    Lru,
    /// W-LFU: exact counts, a window for newcomers and a memory of evicted pages.
    #[default]
    WindowedLfu,
}

impl EvictionKind {
    /// Every policy, the simplest first.
    pub const ALL: &'static [EvictionKind] = &[EvictionKind::Lru, EvictionKind::WindowedLfu];

    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            EvictionKind::Lru => "lru",
            EvictionKind::WindowedLfu => "w-lfu",
        }
    }

    /// An empty policy of this kind for a tier of `capacity_bytes`, with room for remote pages,
    /// plans and announced orders.
    pub fn build(self, capacity_bytes: u64) -> Box<dyn EvictionPolicy> {
        let planned = Planned::new(Box::new(RemotePages::new(self.build_bare(capacity_bytes))));
        Box::new(Announced::new(Box::new(planned)))
    }

    fn build_bare(self, capacity_bytes: u64) -> Box<dyn EvictionPolicy> {
        match self {
            EvictionKind::Lru => Box::new(Lru::new(capacity_bytes)),
            EvictionKind::WindowedLfu => Box::new(WindowedLfu::new(capacity_bytes)),
        }
    }
}

impl fmt::Display for EvictionKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// A name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownEvictionKind {
    /// The requested name.
    pub name: String,
}

impl fmt::Display for UnknownEvictionKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "no eviction policy is called {:?}; use one of", self.name)?;
        EvictionKind::ALL.iter().try_for_each(|kind| write!(out, " {kind}"))
    }
}

impl core::error::Error for UnknownEvictionKind {}

impl FromStr for EvictionKind {
    type Err = UnknownEvictionKind;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = EvictionKind::ALL.iter().copied().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownEvictionKind { name: name.into() })
    }
}
