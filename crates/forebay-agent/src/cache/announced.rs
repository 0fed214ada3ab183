//! When pages of the tier are read next, as jobs have announced it.
//!
//! The table of orders and the choice of victims are pure code of the policy crate
//! (`forebay_policy::eviction::{Orders, Announced}`). Here the names of files become pages: a page
//! is announced to the policy when it comes, and again when a task that reads its file has ended.

use super::entry::{Entry, FileId};
use super::{Cache, Index};
use forebay_policy::eviction::FilePart;
use forebay_store::ring::split_key;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Most pages of one file that are looked at when its next use changes; the rest of a larger file
/// is evicted as if nothing had been announced of it.
const FILE_PAGES_MAX: u32 = 16_384;

/// What happens in an announced order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderStep {
    /// The next task reads these.
    Task((u32, u32), Vec<FilePart<FileId>>),
    /// A task has ended.
    TaskEnded((u32, u32)),
    /// No task of the stage will run any more.
    StageEnded(u32),
}

impl Cache {
    /// Begins the order of a job, which will announce what it reads.
    pub fn begin_order(&self, job: u64) {
        self.index().orders.begin(job);
    }

    /// Takes the next step of the job's order.
    pub fn step_order(&self, job: u64, step: &OrderStep) {
        let mut index = self.index();
        let changed = match step {
            OrderStep::Task(task, parts) => index.orders.announce(job, *task, parts),
            OrderStep::TaskEnded(task) => index.orders.task_ended(job, *task),
            OrderStep::StageEnded(stage) => index.orders.stage_ended(job, *stage),
        };
        index.announce_files(changed);
    }

    /// Compares the orders with pages that programs on this node have used. Forgets the orders that
    /// this makes void, and returns their jobs.
    pub fn compare_with_orders(&self, keys: &[u64]) -> Vec<u64> {
        let mut index = self.index();
        if index.orders.is_empty() {
            return Vec::new();
        }
        keys.iter().flat_map(|key| index.compare_with_orders(*key)).collect()
    }

    /// Forgets the order of the job.
    pub fn end_order(&self, job: u64) {
        let mut index = self.index();
        let changed = index.orders.end(job);
        index.announce_files(changed);
    }
}

impl Index {
    /// Announces again when the pages of these files are used next.
    fn announce_files(&mut self, files: BTreeSet<FileId>) {
        for file in files {
            let Some(entry) = self.newest.get(&file).cloned() else { continue };
            if entry.resident_bytes.load(Ordering::Relaxed) > 0 {
                let pages = entry.geometry().pages().min(u64::from(FILE_PAGES_MAX)) as u32;
                (0..pages).for_each(|page| self.announce_page(&entry, page));
            }
        }
    }

    /// Announces when a page is used next, if it is resident.
    pub(super) fn announce_page(&mut self, entry: &Arc<Entry>, page: u32) {
        if page >= FILE_PAGES_MAX || !self.policy.contains(entry.key(page)) {
            return;
        }
        let geometry = entry.geometry();
        let offset = u64::from(page) * geometry.page_bytes;
        let bytes = (offset, offset + geometry.page_len(page));
        let next_use = self.orders.next_use((entry.mount, entry.identity.version.ino), bytes);
        self.policy.announce(entry.key(page), next_use);
    }

    fn compare_with_orders(&mut self, key: u64) -> Vec<u64> {
        let Some(entry) = self.by_copy.get(&split_key(key).0) else { return Vec::new() };
        let void = self.orders.touched((entry.mount, entry.identity.version.ino));
        for job in &void {
            let changed = self.orders.end(*job);
            self.announce_files(changed);
        }
        void
    }
}
