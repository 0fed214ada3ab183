//! Adjacent pages of one copy that are read from the PFS, or requested from a peer, together.
//!
//! Files with small pages would otherwise cost a request of the PFS for each page. Each page keeps
//! its own fetch, its own room and its own word: only the read, the look at the version and the
//! write to the tier are shared.

use crate::cache::Cache;
use crate::cache::entry::Task;
use crate::cache::page_fetch::Begun;
use forebay_store::copy::CopyFile;

/// Pages in their order, none of which has any bytes yet.
#[derive(Debug, Default)]
pub struct Run {
    pages: Vec<(Task, Begun)>,
}

impl Run {
    /// A run of one page.
    pub fn of(task: Task, begun: Begun) -> Self {
        Run { pages: vec![(task, begun)] }
    }

    /// Whether `page`, so far begun, may be added.
    pub fn takes(&self, begun: &Begun, page: u32) -> bool {
        let follows = self.pages.last().is_none_or(|(last, _)| last.page_fetch.page + 1 == page);
        follows && begun.done() == 0
    }

    /// Adds a page.
    pub fn add(&mut self, task: Task, begun: Begun) {
        self.pages.push((task, begun));
    }

    /// Its first task, the offset of its first byte, and its length in bytes; `None` if it has no
    /// pages.
    pub fn range(&self) -> Option<(&Task, u64, usize)> {
        let (first, _) = self.pages.first()?;
        let geometry = first.entry.geometry();
        let len: u64 = self.pages.iter().map(|(task, _)| geometry.page_len(task.page_fetch.page)).sum();
        Some((first, u64::from(first.page_fetch.page) * geometry.page_bytes, len as usize))
    }

    /// The copy that its pages belong to.
    ///
    /// # Panics
    /// It has no pages.
    pub fn file(&self) -> &CopyFile {
        self.pages[0].1.file()
    }

    /// Whether a reader waits for one of them.
    pub fn is_demanded(&self) -> bool {
        self.pages.iter().any(|(task, _)| task.page_fetch.is_demanded())
    }

    /// What `of` returns for each page, in their order.
    pub fn each<T>(&self, of: impl Fn(&Task) -> T) -> Vec<T> {
        self.pages.iter().map(|(task, _)| of(task)).collect()
    }

    /// Releases what its write has taken beside it.
    pub fn trim(&self, cache: &Cache) {
        if let Some((first, begun)) = self.pages.first() {
            cache.trim(begun.file(), first.page_fetch.page, self.pages.len() as u32);
        }
    }

    /// Whether a failure of its read may be one page's alone.
    pub fn is_of_several(&self) -> bool {
        self.pages.len() > 1
    }

    /// Its pages, for each to end.
    pub fn into_pages(self) -> impl Iterator<Item = (Task, Begun)> {
        self.pages.into_iter()
    }
}
