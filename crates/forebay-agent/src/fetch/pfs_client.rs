//! The client of a PFS: whether it reads ahead by itself, and what a page takes.
//!
//! Where it does, adjacent pages that readers want are fetched one after the other, through one
//! descriptor ([`super::thread_queue`]). Side by side they would come no sooner: the client drops
//! what it has read ahead whenever another place is read.
//! `docs/decisions/0016-opportunistic-prefetch.md` has the measurements.

use forebay_pfs::Traits;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The client of one mount.
#[derive(Debug)]
pub struct PfsClient {
    traits: Traits,
    /// How long a page has taken recently, in nanoseconds; 0 before the first.
    page_ns: AtomicU64,
}

impl PfsClient {
    /// The client of a file system with these traits. Looked at once: it has to be mounted when the
    /// agent starts.
    pub fn of(traits: Traits) -> Self {
        PfsClient { traits, page_ns: AtomicU64::new(0) }
    }

    /// What its file system does differently from most.
    pub fn traits(&self) -> Traits {
        self.traits
    }

    /// How long a whole page has taken recently; zero before the first.
    pub fn page_time(&self) -> Duration {
        Duration::from_nanos(self.page_ns.load(Relaxed))
    }

    /// Records how long a whole page took.
    pub fn page_took(&self, took: Duration) {
        let (now, before) = (took.as_nanos() as u64, self.page_ns.load(Relaxed));
        let mean = if before == 0 { now } else { (before / 8 * 7).saturating_add(now / 8) };
        self.page_ns.store(mean.max(1), Relaxed);
    }
}
