//! Before any page of a version is fetched from the PFS, the version is *sealed*: proved to have no
//! write under way.
//!
//! Time stamps tell when a write began. A page that is read while the write goes on may be half
//! old, and the stamps do not move when it ends. So a version is sealed in this order:
//!
//! 1. its facts are taken (the caller has done that), and its stamps are old enough for any later
//!    write to move them;
//! 2. nobody on this node has the file open for writing, by a momentary lease
//!    ([`forebay_pfs::lease`]).
//!
//! A write that began before the facts were taken is seen by 2, or has ended and left its bytes.
//! One that begins after 2 moves the stamps before it changes a byte, and every chunk that is
//! fetched is followed by a look at them. So the seal holds for the version for good, and is asked
//! for once, not for each page.
//!
//! A lease knows nothing of other nodes, and some file systems grant none. There the stamps must be
//! older than `mount.settle_ms`: evidence and no proof, see the limits in `docs/semantics.md`.

use crate::agent::Shared;
use crate::cache::NoCopy;
use crate::cache::entry::Entry;
use crate::mounts::stamps::Trust;
use crate::mounts::{Admitted, MountState, display_path};
use forebay_pfs::FileFacts;
use forebay_pfs::lease::{Opened, Writers, writers};
use forebay_pfs::mount::is_moosefs;
use forebay_wire::Refusal;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// `mount.settle_ms` where none is configured: longer than the clients of most file systems hold
/// back a change of stamps.
pub const SETTLE_NS: i64 = 3_000_000_000;

/// The same on MooseFS, which stamps an overwrite in place when it begins and not again.
pub const SETTLE_MOOSEFS_NS: i64 = 30_000_000_000;

/// For how long a file on the file system that is mounted on `root` must be quiet, where nothing is
/// configured.
pub fn default_settle_ns(root: &Path) -> i64 {
    if is_moosefs(root) { SETTLE_MOOSEFS_NS } else { SETTLE_NS }
}

/// Why a version cannot be sealed now. Later it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsettled {
    /// Its stamps are too recent; for so long, if it does not change again.
    Young(Duration),
    /// Somebody on this node has it open for writing.
    BeingWritten,
    /// The stamps of its file system cannot be believed.
    StampsUnproved,
}

impl Unsettled {
    /// As clients hear it.
    pub fn refusal(self) -> Refusal {
        match self {
            Unsettled::Young(_) => Refusal::Young,
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

/// Why there is no entry to fill.
#[derive(Debug)]
pub enum NoEntry {
    /// The version is not sealed.
    Unsettled(Unsettled),
    /// There is no copy.
    Copy(NoCopy),
}

/// While a mount is measured, its files count as too recent for this long.
const MEASURING: Duration = Duration::from_secs(1);

fn believe(mount: &MountState) -> Result<(), Unsettled> {
    match mount.stamps.trust() {
        Trust::Believed => Ok(()),
        Trust::Measuring => Err(Unsettled::Young(MEASURING)),
        Trust::Refused => Err(Unsettled::StampsUnproved),
    }
}

/// Seals the version that `facts`, taken from `fd` a moment ago, tell. `opened` says by whom `fd`
/// was.
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
    // Where other nodes write, or within the clock's tick, there is no need to ask for a lease.
    if let Some(left) = mount.settles_in(facts, true) {
        return Err(Unsettled::Young(left));
    }
    match writers(fd, opened) {
        Writers::None => Ok(()),
        Writers::Some => Err(Unsettled::BeingWritten),
        Writers::Unknown => match mount.settles_in(facts, false) {
            None => Ok(()),
            Some(left) => Err(Unsettled::Young(left)),
        },
    }
}

/// The entry of the version of `file`, sealed, made if need be. `fd` is the file on the PFS, opened
/// by `opened`.
///
/// # Errors
/// See [`NoEntry`].
pub fn sealed_entry(
    shared: &Shared,
    file: &Admitted,
    fd: BorrowedFd<'_>,
    opened: Opened,
) -> Result<Arc<Entry>, NoEntry> {
    let mount = &shared.mounts[file.mount];
    believe(mount).map_err(NoEntry::Unsettled)?;
    let cached = shared.cache.find(file.mount, &file.facts);
    if let Some(entry) = cached.filter(|entry| entry.is_sealed()) {
        return Ok(entry);
    }
    seal(mount, fd, opened, &file.facts).map_err(NoEntry::Unsettled)?;
    let made = shared.cache.find_or_create(
        file.mount,
        mount.label(),
        mount.config.page_bytes,
        &file.facts,
        || display_path(fd),
        &shared.counters,
    );
    let entry = made.map_err(NoEntry::Copy)?;
    entry.seal();
    Ok(entry)
}
