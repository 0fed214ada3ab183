//! How a page's fetch ends, whoever has fetched it: readers are woken, loads and prefetch requests
//! hear of it, and it is counted. Next to it is the ledger of misses, which has to hear of the end
//! of each page that it wanted.

use crate::cache::Cache;
use crate::cache::entry::Task;
use crate::cache::page_fetch::{FetchError, FetchState};
use crate::counters::{Counters, add};
use crate::lock::lock;
use crate::mounts::MountState;
use forebay_policy::fetch_order::Urgency;
use forebay_policy::miss_ledger::MissLedger;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// Pages whose misses are remembered, per mount: 128 GiB in pages of 2 MiB.
const MISSED_PAGES: usize = 65_536;

/// See the module.
#[derive(Debug)]
pub struct Completions {
    pub(super) mounts: Arc<[MountState]>,
    pub(super) cache: Arc<Cache>,
    pub(super) counters: Arc<Counters>,
    /// Which pages small reads keep missing, in the order of the mounts.
    misses: Vec<Mutex<MissLedger>>,
}

impl Completions {
    /// The completions of an agent in which no page has been missed yet.
    pub fn new(mounts: Arc<[MountState]>, cache: Arc<Cache>, counters: Arc<Counters>) -> Self {
        let ledger = |m: &MountState| MissLedger::new(MISSED_PAGES, m.config.random_fill_percent);
        let misses = mounts.iter().map(ledger).map(Mutex::new).collect();
        Completions { mounts, cache, counters, misses }
    }

    /// Completes a fetch: wakes its readers and reports it to its loads.
    pub fn finish(&self, task: &Task, outcome: Result<u64, FetchError>) {
        let counters = &self.counters;
        if let Some(begun) = task.page_fetch.take_begun() {
            begun.abandon(&self.cache, task);
        }
        match &outcome {
            Ok(_) => match task.urgency {
                Urgency::Demand => add(&counters.pages_demanded_total, 1),
                Urgency::Ahead => add(&counters.pages_ahead_total, 1),
                Urgency::Plan => add(&counters.pages_planned_total, 1),
                Urgency::Load => add(&counters.pages_loaded_total, 1),
                Urgency::Refill => add(&counters.pages_refilled_total, 1),
            },
            Err(FetchError::Cancelled) => {}
            Err(e) => {
                add(&counters.pages_failed_total, 1);
                if let FetchError::Pfs { message, .. } = e {
                    self.mounts[task.entry.mount].fetch_errors.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!("{message}");
                }
                if *e == FetchError::Changed {
                    add(&counters.changed_total, 1);
                }
            }
        }
        task.entry.land(&task.page_fetch);
        let state = match &outcome {
            Ok(_) => FetchState::Landed,
            Err(e) => FetchState::Failed(e.clone()),
        };
        task.page_fetch.set(state);
        // After landing: a watcher that is added to an ended fetch sees that it has ended.
        for watcher in lock(&task.page_fetch.watchers).drain(..) {
            watcher.page_done(task.page_fetch.page, &outcome);
        }
        if outcome.is_err() {
            self.cache.drop_if_empty(&task.entry);
        }
    }

    /// Records that a small read of `bytes` has missed a page of `page_bytes`; returns whether the
    /// page is to be fetched now.
    pub fn missed(&self, mount: usize, key: u64, bytes: u64, page_bytes: u64) -> bool {
        lock(&self.misses[mount]).missed(key, bytes, page_bytes)
    }

    /// Records that a page that [`Completions::missed`] wanted was fetched, or will not be.
    pub fn missed_page_ended(&self, mount: usize) {
        lock(&self.misses[mount]).filled();
    }

    /// Ends the refill, if `task` was one.
    pub fn refilled(&self, task: &Task) {
        if task.urgency == Urgency::Refill {
            self.missed_page_ended(task.entry.mount);
        }
    }
}
