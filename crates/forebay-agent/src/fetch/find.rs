//! The entry of a version: found, or created.
//!
//! Every request for pages of a version comes here first. Where there is no entry, the answer is
//! made here, in the form that each kind of caller needs.

use super::Fetch;
use crate::cache::NoCopy;
use crate::cache::entry::Entry;
use crate::mounts::admit::Admitted;
use crate::mounts::by_path::NoPath;
use crate::mounts::opened_path::opened_path;
use crate::mounts::seal::{Unsettled, believe, seal};
use forebay_pfs::lease::Opened;
use forebay_wire::peer::PeerReply;
use forebay_wire::{Refusal, Reply};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Why there is no entry to fill.
#[derive(Debug)]
pub enum NoEntry {
    /// The version is not sealed.
    Unsettled(Unsettled),
    /// There is no copy.
    Copy(NoCopy),
}

impl Fetch {
    /// The entry of the version of `file`, which is open as `fd`. Nothing may be fetched into it
    /// until it is sealed.
    ///
    /// # Errors
    /// See [`NoEntry`].
    pub fn entry(&self, file: &Admitted, fd: BorrowedFd<'_>) -> Result<Arc<Entry>, NoEntry> {
        let mount = &self.mounts[file.mount];
        let path = || opened_path(fd);
        if let Some(entry) = self.cache.find(file.mount, &file.facts) {
            return Ok(entry);
        }
        let page_bytes = mount.page_bytes_of(fd, file.facts.version.size);
        let made = self.cache.find_or_create(file.mount, mount.label(), page_bytes, &file.facts, path);
        made.map_err(NoEntry::Copy)
    }

    /// The entry of the version of `file`, sealed. `fd` is the file on the PFS, opened by `opened`.
    ///
    /// # Errors
    /// See [`NoEntry`].
    pub fn sealed_entry(
        &self,
        file: &Admitted,
        fd: BorrowedFd<'_>,
        opened: Opened,
    ) -> Result<Arc<Entry>, NoEntry> {
        let mount = &self.mounts[file.mount];
        believe(mount).map_err(NoEntry::Unsettled)?;
        let cached = self.cache.find(file.mount, &file.facts);
        if let Some(entry) = cached.filter(|entry| entry.is_sealed()) {
            return Ok(entry);
        }
        seal(mount, fd, opened, &file.facts).map_err(NoEntry::Unsettled)?;
        let entry = self.entry(file, fd)?;
        self.owners.learn_own_stripes(&entry, fd);
        entry.seal();
        Ok(entry)
    }
}

impl NoEntry {
    /// The reply to a client.
    pub fn reply(self) -> Reply {
        match self {
            NoEntry::Unsettled(why) => Reply::Refused(why.refusal()),
            NoEntry::Copy(NoCopy::NoRoom) => Reply::Refused(Refusal::NoRoom),
            NoEntry::Copy(NoCopy::TooLarge) => {
                Reply::Refused(Refusal::Invalid("the file has too many pages of mount.page_size".into()))
            }
            NoEntry::Copy(NoCopy::Tier(e)) => Reply::Failed {
                errno: e.raw_os_error().unwrap_or(libc::EIO),
                message: format!("the tier failed: {e}"),
            },
        }
    }

    /// The reply to a peer.
    pub fn peer_reply(self) -> PeerReply {
        match self {
            NoEntry::Unsettled(why) => PeerReply::Refused(why.to_string()),
            NoEntry::Copy(NoCopy::NoRoom) => PeerReply::Busy("no room in the tier".into()),
            NoEntry::Copy(NoCopy::TooLarge) => PeerReply::Refused("too many pages".into()),
            NoEntry::Copy(NoCopy::Tier(e)) => PeerReply::Busy(format!("the tier failed: {e}")),
        }
    }

    /// The error for a file that was opened by its path.
    pub fn no_path(self) -> NoPath {
        match self {
            NoEntry::Unsettled(why) => NoPath::Refused(why.refusal()),
            NoEntry::Copy(_) => NoPath::Refused(Refusal::NoRoom),
        }
    }

    /// Error number and message, for a report on one file among many.
    pub fn errno_and_message(&self) -> (i32, String) {
        match self {
            NoEntry::Unsettled(why @ Unsettled::StampsUnproved) => (libc::EOPNOTSUPP, why.to_string()),
            NoEntry::Unsettled(why) => (libc::EBUSY, why.to_string()),
            NoEntry::Copy(NoCopy::NoRoom) => (libc::ENOSPC, "no room in the tier".into()),
            NoEntry::Copy(NoCopy::TooLarge) => {
                (libc::EFBIG, "too many pages; use a larger mount.page_size".into())
            }
            NoEntry::Copy(NoCopy::Tier(e)) => (libc::EIO, format!("the tier failed: {e}")),
        }
    }
}
