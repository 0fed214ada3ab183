//! A page on its way into the tier, whoever fetches it: the PFS or a peer.
//!
//! The order is the same for both. Memory is reserved; the page's word goes from absent to filling;
//! bytes are written and then shown, from the page's start on; finally the page is resident and the
//! eviction policy knows it. A page that a peer has fetched half of is finished by the PFS: what is
//! filled belongs to the fetch, not to the thread.

use super::entry::Task;
use super::page_fetch::{Begun, FetchError, FetchState};
use super::{Cache, NoCopy, no_copy};
use forebay_policy::eviction::Fill;
use forebay_store::copy::CopyFile;
use forebay_store::{BLOCK_BYTES, Class, State, Word, blocks_bytes};
use std::io;

impl Begun {
    /// Makes room for the page and takes it; `None` if it is resident.
    ///
    /// # Errors
    /// No room, or the tier failed.
    pub fn begin(cache: &Cache, task: &Task) -> Result<Option<Begun>, FetchError> {
        let page = task.page_fetch.page;
        assert!(task.entry.is_sealed(), "page {page} of copy {} is fetched unsealed", task.entry.copy());
        let len = task.entry.geometry().page_len(page);
        let file = cache.file(&task.entry).map_err(tier_failed)?;
        if file.word(page).state == State::Resident {
            return Ok(None);
        }
        let room = cache.reserve_sparing(Class::Pages, blocks_bytes(len), task.load());
        let room = room.ok_or(FetchError::NoRoom)?;
        loop {
            if !cache.wait_absent(&file, page) {
                return Err(FetchError::NoRoom);
            }
            let absent = file.word(page);
            let is_free = matches!(absent.state, State::Absent | State::Leaving);
            assert!(is_free, "page {page} of copy {} has two fetchers", task.entry.copy());
            let word = Word { state: State::Filling, valid_blocks: 0, ..absent };
            // Fails if memory beside another page is being released at this moment.
            if absent.state == State::Absent && file.change(page, absent, word) {
                return Ok(Some(Begun { file, room, word, done: 0 }));
            }
        }
    }

    /// The copy to write to.
    pub fn file(&self) -> &CopyFile {
        &self.file
    }

    /// Bytes valid so far.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Shows readers the next `bytes`, which have been written: whole blocks, or all that is left
    /// of the page.
    pub fn show(&mut self, task: &Task, bytes: u64) {
        let (page, page_len) = (task.page_fetch.page, task.entry.geometry().page_len(task.page_fetch.page));
        self.done += bytes;
        assert!(self.done.is_multiple_of(BLOCK_BYTES) || self.done == page_len, "half a block is shown");
        let valid_blocks = self.done.div_ceil(BLOCK_BYTES) as u32;
        let more = Word { valid_blocks, ..self.word };
        assert!(self.file.change(page, self.word, more), "a page being filled has one owner");
        self.word = more;
        // A reader that waits for the last bytes is woken by the landing.
        if self.done < page_len {
            task.page_fetch.set(FetchState::Under(self.done));
        }
    }

    /// Ends the fill of a page that is whole: it can be evicted from now on.
    pub fn land(self, cache: &Cache, task: &Task, fill: Fill) {
        cache.trim(&self.file, task.page_fetch.page, 1);
        self.land_trimmed(cache, task, fill);
    }

    /// As [`Begun::land`], where what was written with it has been trimmed.
    pub fn land_trimmed(self, cache: &Cache, task: &Task, fill: Fill) {
        let whole = Word { state: State::Resident, remote: fill == Fill::Remote, ..self.word };
        cache.keep_pages(self.room);
        let words = (self.word, whole);
        let ours = cache.note_resident(&task.entry, &self.file, task.page_fetch.page, words, fill);
        assert!(ours, "a page being filled has one owner");
    }

    /// Withdraws what was shown of a page whose rest will not come.
    pub fn abandon(self, cache: &Cache, task: &Task) {
        let page = task.page_fetch.page;
        let now = self.file.word(page);
        self.file.change(page, now, now.withdrawn(State::Leaving));
        if let Err(e) = self.file.punch(page, 1) {
            tracing::error!(copy = task.entry.copy(), page, error = %e, "cannot release a page that was not filled");
            // It takes memory that nobody will release: it stays counted.
            cache.keep_pages(self.room);
        }
        cache.trim(&self.file, page, 1);
    }
}

/// A failure of the tier, as the end of a fetch.
pub fn tier_failed(e: io::Error) -> FetchError {
    match no_copy(e) {
        NoCopy::Tier(e) => FetchError::Pfs {
            errno: e.raw_os_error().unwrap_or(libc::EIO),
            message: format!("the tier failed: {e}"),
        },
        _ => FetchError::NoRoom,
    }
}
