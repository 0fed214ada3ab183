//! Gives a copy of a whole file to a caller that maps it in place of the file.

use super::{Advised, File, Got, Source, Tiered};
use crate::map;
use crate::session::Session;
use forebay_policy::readahead::Serve;
use forebay_wire::{PageRun, Request};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Bytes on their way at a time of what is fetched before it is mapped.
const FETCH_AHEAD_BYTES: u64 = 32 << 20;

/// A page may be evicted again between its fetch and the look at it.
const FETCH_TRIES: u32 = 3;

/// How much of a file is fetched before it is mapped, if it is not resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchToMap {
    /// All of it now: the caller waits.
    Now,
    /// All of it in the background, for the next one that maps it, if it can be mapped then.
    Ahead,
    /// Nothing.
    Nothing,
}

impl File {
    /// A descriptor of the tier's copy for a mapping that takes the place of one of the file, as
    /// long as it. `None` if the mapping has to be of the file: if not all of the copy is resident
    /// or may be pinned, if the file has changed lately, or if somebody has it open for writing.
    ///
    /// The copy has the content that was opened, for ever. The agent keeps it in place for as long
    /// as anybody, forked children included, has the descriptor or a mapping made of it.
    pub fn copy_to_map(&self, missing: FetchToMap) -> Option<OwnedFd> {
        let Source::Tiered(t) = &self.source else { return None };
        let session = &self.client.session;
        if !self.is_resident() {
            match missing {
                FetchToMap::Now => t.fetch_all(session, &self.path)?,
                FetchToMap::Ahead => {
                    let version = t.proof.facts.version;
                    session.notify(&Request::FetchToMap { version }, &[t.to_read()]);
                    return None;
                }
                FetchToMap::Nothing => return None,
            }
        }
        let view = t.view().filter(|_| !t.proof.has_failed())?;
        let pages = view.geometry().pages() as u32;
        map::pin(&self.client, &view, 0..pages, Some(t.to_read())).ok()
    }
}

impl Tiered {
    /// Has all pages fetched that are missing, and waits for them; `None` if one does not come.
    fn fetch_all(&self, session: &Session, path: &Path) -> Option<()> {
        let size = self.proof.facts.version.size;
        let pages = size.div_ceil(self.page_bytes);
        let ahead_pages = (FETCH_AHEAD_BYTES / self.page_bytes).max(1);
        let is_missing = |page: u64| self.view().is_none_or(|view| !view.is_resident(page as u32));
        for page in 0..pages {
            for tries in 0..FETCH_TRIES {
                if !is_missing(page) {
                    break;
                }
                // With the pages behind it, so that all servers have work.
                let until = pages.min(page + ahead_pages);
                let ahead = PageRun { first_page: page as u32, pages: (until - page) as u32 };
                let mut advised = Advised { serve: Serve::Tier, pages: vec![ahead] };
                let offset = page * self.page_bytes;
                let range = (offset, self.page_bytes.min(size - offset) as usize);
                let got = self.fetch(session, path, &mut advised, range, tries > 0);
                if !matches!(got, Ok(Got::Resident)) {
                    return None;
                }
            }
        }
        Some(())
    }
}
