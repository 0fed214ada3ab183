//! The fetch of a page, shared by all who wait for the page.

use crate::lock::lock;
use forebay_policy::fetch_order::Urgency;
use forebay_store::copy::CopyFile;
use forebay_store::{Reservation, Word};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Why a page is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchError {
    /// The file is another version by now.
    Changed,
    /// No room in the budget or on the tmpfs.
    NoRoom,
    /// The PFS failed.
    Pfs {
        /// Its error number.
        errno: i32,
        /// What was tried, on what.
        message: String,
    },
    /// The load was cancelled.
    Cancelled,
}

/// A counter of pages that hears of the end of each.
pub trait Watcher: std::fmt::Debug + Send + Sync {
    /// Hears of the end of a page: the bytes read (0: it was there), or why it will not come.
    fn page_done(&self, page: u32, outcome: &Result<u64, FetchError>);

    /// Whether nobody wants its pages any more.
    fn is_cancelled(&self) -> bool;
}

/// What has become of a watcher that wanted to watch a fetch.
#[derive(Debug)]
pub enum Watched {
    /// It will hear of the end.
    Joined,
    /// It has heard of the end.
    Ended,
    /// The fetch was given up and goes in a moment: it needs another one.
    GivenUp(Arc<dyn Watcher>),
}

/// State of a fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchState {
    /// Waiting for a fetch thread, or being fetched; this many bytes from the page's start are
    /// valid.
    Under(u64),
    /// The page is whole.
    Landed,
    /// It will not come.
    Failed(FetchError),
}

/// One page being fetched.
#[derive(Debug)]
pub struct PageFetch {
    /// The page.
    pub page: u32,
    state: Mutex<FetchState>,
    changed: Condvar,
    /// A thread has it. Ordered with `urgency`: if a thread raises that and finds this taken, the
    /// thread that hands over sees the new urgency.
    taken: AtomicBool,
    /// The most urgent request for it so far, as a number.
    urgency: AtomicU8,
    /// A peer has been asked for it and has not answered yet.
    at_peer: AtomicBool,
    /// No peer is to be asked for it.
    pfs_only: AtomicBool,
    /// What has been filled of it so far, between one thread that had it and the next.
    begun: Mutex<Option<Begun>>,
    /// Loads and requests that count this page.
    pub watchers: Mutex<Vec<Arc<dyn Watcher>>>,
}

impl PageFetch {
    /// The fetch of a page that no thread has taken yet.
    pub(super) fn new(page: u32) -> Self {
        PageFetch {
            page,
            state: Mutex::new(FetchState::Under(0)),
            changed: Condvar::new(),
            taken: AtomicBool::new(false),
            urgency: AtomicU8::new(u8::MAX),
            at_peer: AtomicBool::new(false),
            pfs_only: AtomicBool::new(false),
            begun: Mutex::new(None),
            watchers: Mutex::new(Vec::new()),
        }
    }

    /// True for the first thread that asks: the one that fetches. A fetch is queued again when it
    /// becomes urgent.
    pub fn take(&self) -> bool {
        !self.taken.swap(true, Ordering::SeqCst)
    }

    /// True once a thread fetches it.
    pub fn is_taken(&self) -> bool {
        self.taken.load(Ordering::SeqCst)
    }

    /// Leaves it to the next thread that takes it, with what was filled so far.
    pub fn hand_over(&self, begun: Option<Begun>) {
        *lock(&self.begun) = begun;
        self.at_peer.store(false, Ordering::Release);
        self.taken.store(false, Ordering::SeqCst);
    }

    /// What an earlier thread has filled of it. Only for the thread that has taken it.
    pub fn take_begun(&self) -> Option<Begun> {
        lock(&self.begun).take()
    }

    /// Raises its urgency; true if it was less urgent before. Then it has to be queued, even if it
    /// waits already.
    pub fn raise(&self, urgency: Urgency) -> bool {
        self.urgency.fetch_min(urgency as u8, Ordering::SeqCst) > urgency as u8
    }

    /// Whether a reader waits for it.
    pub fn is_demanded(&self) -> bool {
        self.urgency.load(Ordering::SeqCst) == Urgency::Demand as u8
    }

    /// Records that a peer is being asked for it.
    pub fn ask_peer(&self) {
        self.at_peer.store(true, Ordering::Release);
    }

    /// Whether it waits for a peer.
    pub fn is_at_peer(&self) -> bool {
        self.at_peer.load(Ordering::Acquire)
    }

    /// Makes the PFS the only one that is asked for it; true if peers might have been asked before.
    pub fn keep_from_peers(&self) -> bool {
        !self.pfs_only.swap(true, Ordering::AcqRel)
    }

    /// Whether only the PFS may be asked for it.
    pub fn is_kept_from_peers(&self) -> bool {
        self.pfs_only.load(Ordering::Acquire)
    }

    /// Makes `watcher` hear of the end; if it has come already, `watcher` hears of it now. That
    /// others have given the page up is not an end for `watcher`, which is returned then.
    pub fn watch(&self, watcher: Arc<dyn Watcher>) -> Watched {
        let mut watchers = lock(&self.watchers);
        // Under the watchers' lock: a fetch that has ended drains them after it has said so.
        let outcome = match self.wait(0, Instant::now()) {
            FetchState::Under(_) => {
                watchers.push(watcher);
                return Watched::Joined;
            }
            FetchState::Failed(FetchError::Cancelled) => return Watched::GivenUp(watcher),
            FetchState::Landed => Ok(0),
            FetchState::Failed(e) => Err(e),
        };
        drop(watchers);
        watcher.page_done(self.page, &outcome);
        Watched::Ended
    }

    /// Gives it up if all who have asked for it have gone since. A later request finds it given up;
    /// the caller has to end it.
    pub fn give_up_unwanted(&self) -> bool {
        let watchers = lock(&self.watchers);
        let is_unwanted = !watchers.is_empty() && watchers.iter().all(|w| w.is_cancelled());
        if is_unwanted {
            self.set(FetchState::Failed(FetchError::Cancelled));
        }
        is_unwanted
    }

    /// Sets the state and wakes all that wait.
    pub fn set(&self, state: FetchState) {
        *lock(&self.state) = state;
        self.changed.notify_all();
    }

    /// Waits until the first `bytes` of the page are valid, the fetch has ended, or `deadline` has
    /// come; returns the state then.
    pub fn wait(&self, bytes: u64, deadline: Instant) -> FetchState {
        let mut state = lock(&self.state);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match &*state {
                FetchState::Under(valid) if *valid < bytes && !left.is_zero() => {}
                _ => return state.clone(),
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A page being filled (see [`super::fill`]). Its holder is the only one to change the page's word.
#[derive(Debug)]
pub struct Begun {
    pub(super) file: Arc<CopyFile>,
    pub(super) room: Reservation,
    pub(super) word: Word,
    /// Bytes valid from the page's start.
    pub(super) done: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts the ends that it hears of.
    #[derive(Debug, Default)]
    struct Wants {
        ends: AtomicU8,
        gone: AtomicBool,
    }

    impl Watcher for Wants {
        fn page_done(&self, _page: u32, _outcome: &Result<u64, FetchError>) {
            self.ends.fetch_add(1, Ordering::Relaxed);
        }

        fn is_cancelled(&self) -> bool {
            self.gone.load(Ordering::Relaxed)
        }
    }

    /// A request that is replaced by another one: the second comes while the page is given up for
    /// the first, which must not count as a failure of the second.
    #[test]
    fn a_page_that_others_have_given_up_is_no_failure_for_who_comes_then() {
        let (first, second) = (Arc::new(Wants::default()), Arc::new(Wants::default()));
        let page_fetch = PageFetch::new(3);
        assert!(!page_fetch.give_up_unwanted(), "a reader without a name may want it");
        assert!(matches!(page_fetch.watch(first.clone()), Watched::Joined));
        assert!(!page_fetch.give_up_unwanted());
        first.gone.store(true, Ordering::Relaxed);
        assert!(page_fetch.give_up_unwanted());
        assert!(matches!(page_fetch.watch(second.clone()), Watched::GivenUp(_)));
        assert_eq!(second.ends.load(Ordering::Relaxed), 0);
        // A watcher that has come before it is given up keeps it.
        let page_fetch = PageFetch::new(3);
        assert!(matches!(page_fetch.watch(first.clone()), Watched::Joined));
        assert!(matches!(page_fetch.watch(second), Watched::Joined));
        assert!(!page_fetch.give_up_unwanted());
    }
}
