//! The copies that an earlier agent has left: this one takes them over at its start.

use super::mapped::still_mapped;
use super::{Cache, metadata_bytes};
use forebay_policy::eviction::Fill;
use forebay_store::copy::{CopyFile, CopyIdentity, FLAG_PINNED};
use forebay_store::{Class, State, blocks_bytes};
use std::io;
use std::sync::atomic::Ordering;

impl Cache {
    /// Takes up the copies an earlier agent left. `mount_of` gives the index of a label, `None` if
    /// it is not served any more; such copies are removed. Returns how many were adopted.
    ///
    /// # Errors
    /// The tier cannot be read.
    pub fn adopt(&self, mount_of: impl Fn(&str) -> Option<usize>) -> io::Result<u64> {
        let mut adopted = 0;
        let copies = self.tier.list_copies()?;
        if let Some(last) = copies.last() {
            self.next_copy.store(last + 1, Ordering::Relaxed);
        }
        for copy in copies {
            let opened = CopyFile::open(&self.tier, copy).and_then(|(identity, file)| {
                file.settle()?;
                Ok((identity, file))
            });
            let kept = opened.ok().and_then(|(identity, file)| self.adopt_one(identity, file, &mount_of));
            match kept {
                Some(()) => adopted += 1,
                None => self.unlink(copy),
            }
        }
        Ok(adopted)
    }

    fn adopt_one(
        &self,
        identity: CopyIdentity,
        file: CopyFile,
        mount_of: &impl Fn(&str) -> Option<usize>,
    ) -> Option<()> {
        let mount = mount_of(&identity.mount)?;
        let geometry = file.geometry();
        let resident: Vec<u32> =
            (0..geometry.pages() as u32).filter(|p| file.word(*p).state == State::Resident).collect();
        if resident.is_empty() {
            return None;
        }
        let newest = (mount, identity.version.ino);
        if self.index().newest.get(&newest).is_some_and(|e| e.identity.version == identity.version) {
            // The earlier agent died between making a second copy of one version and removing it.
            return None;
        }
        let pinned = file.flags() & FLAG_PINNED != 0;
        let mapped = still_mapped(&file, &resident);
        let metadata = self.budget.reserve_existing(Class::Metadata, metadata_bytes(&identity));
        let entry = self.insert_entry(identity, mount, metadata, file);
        let bytes: u64 = resident.iter().map(|p| blocks_bytes(geometry.page_len(*p))).sum();
        self.keep_pages(self.budget.reserve_existing(Class::Pages, bytes));
        let file = self.file(&entry).ok()?;
        self.adopt_mapped(&entry, &file, mapped);
        for page in resident {
            let word = file.word(page);
            // A remote page that had been used often starts over: after a crash nobody knows what
            // was used.
            let fill = if word.remote { Fill::Remote } else { Fill::Demand };
            self.note_resident(&entry, &file, page, (word, word), fill);
        }
        if pinned {
            entry.pinned.store(true, Ordering::Relaxed);
            self.index().pinned_bytes += geometry.size;
        }
        Some(())
    }
}
