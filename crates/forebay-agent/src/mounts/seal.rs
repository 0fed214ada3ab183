//! Before any page of a version is fetched from the PFS, the version is *sealed*: proved to have no
//! write under way.
//!
//! Time stamps show when a write began. A page that is read while the write goes on may be half
//! old, and the stamps do not move when it ends. So a version is sealed in this order:
//!
//! 1. its facts are taken (the caller has done that), and its stamps are old enough for any later
//!    write to move them;
//! 2. nobody on this node has the file open for writing, as a momentary lease shows
//!    ([`forebay_pfs::lease`]).
//!
//! A write that began before the facts were taken is seen by 2, or has ended and left its bytes.
//! One that begins after 2 moves the stamps before it changes a byte, and every chunk that is
//! fetched is followed by a look at them. So the seal holds for the version for good, and is
//! requested once, not for each page.
//!
//! A lease knows nothing of other nodes, and some file systems grant none. There the stamps must be
//! older than `mount.settle_ms`: evidence but not proof, see the limits in `docs/semantics.md`.

use super::MountState;
use super::stamps::Trust;
use forebay_pfs::FileFacts;
use forebay_pfs::lease::{Opened, Writers};
use forebay_wire::Refusal;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Why a version cannot be sealed now. Later it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsettled {
    /// Its stamps are too recent; for this long, if it does not change again.
    RacilyClean(Duration),
    /// Somebody on this node has it open for writing.
    BeingWritten,
    /// The stamps of its file system cannot be believed.
    StampsUnproved,
}

impl Unsettled {
    /// The refusal that clients get.
    pub fn refusal(self) -> Refusal {
        match self {
            Unsettled::RacilyClean(_) => Refusal::RacilyClean,
            Unsettled::BeingWritten => Refusal::BeingWritten,
            Unsettled::StampsUnproved => Refusal::StampsUnproved,
        }
    }
}

impl fmt::Display for Unsettled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.refusal().fmt(f)
    }
}

/// While a mount is measured, its files count as too recent for this long.
const MEASURING: Duration = Duration::from_secs(1);

/// Whether the mount's time stamps can be believed.
///
/// # Errors
/// See [`Unsettled`].
pub fn believe(mount: &MountState) -> Result<(), Unsettled> {
    match mount.trust() {
        Trust::Believed => Ok(()),
        Trust::Measuring => Err(Unsettled::RacilyClean(MEASURING)),
        Trust::Refused => Err(Unsettled::StampsUnproved),
    }
}

/// Seals the version that `facts`, taken from `fd` a moment ago, show. `opened` says who opened
/// `fd`.
///
/// # Errors
/// See [`Unsettled`].
pub fn seal(
    mount: &MountState,
    fd: BorrowedFd<'_>,
    opened: Opened,
    facts: &FileFacts,
) -> Result<(), Unsettled> {
    believe(mount)?;
    if mount.is_unchanging() {
        return Ok(());
    }
    // Where other nodes write, or within the clock's tick, there is no need to ask for a lease.
    if let Some(left) = mount.settles_in(facts, true) {
        return Err(Unsettled::RacilyClean(left));
    }
    match mount.source.writers(fd, opened) {
        Writers::None => Ok(()),
        Writers::Some => Err(Unsettled::BeingWritten),
        Writers::Unknown => match mount.settles_in(facts, false) {
            None => Ok(()),
            Some(left) => Err(Unsettled::RacilyClean(left)),
        },
    }
}
