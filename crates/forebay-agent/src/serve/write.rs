//! A client writes a file through: to the PFS itself, and to the tier by way of a staging buffer.
//!
//! The pages gather in a file of the tier that nobody can read yet. When the writer is done it says
//! which version it has left on the PFS; only if the PFS says the same now do the pages become that
//! version's copy. Whatever goes wrong before costs the copy and nothing else: the PFS has the
//! data.

use crate::counters::add;
use crate::mounts::{Admitted, COARSE, display_path};
use crate::serve::connection::{Answer, Connection, reply};
use crate::shares::{Held, Kind, Share};
use forebay_pfs::FileVersion;
use forebay_policy::eviction::Fill;
use forebay_store::copy::{CopyFile, CopyIdentity};
use forebay_store::staging::{HEAD_BYTES, Staging};
use forebay_store::{BLOCK_BYTES, Class, State, Word, blocks_bytes};
use forebay_wire::{Refusal, Reply};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Slots of a staging buffer: one being filled, one being taken over, two to even out.
const SLOTS: u32 = 4;

/// Descriptors of a stage: of the buffer and of the file.
const STAGE_DESCRIPTORS: u64 = 2;

/// A file being written through on one connection.
pub struct Stage {
    buffer: Staging,
    file: OwnedFd,
    copy: u64,
    page_bytes: u64,
    /// Bytes of each page that was staged.
    pages: BTreeMap<u32, u64>,
    room: Held,
    _buffer_room: Held,
    _descriptors: Share,
    uid: u32,
    shared: Arc<crate::Shared>,
    committed: bool,
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !self.committed {
            // What is left of a copy that never was: its name. The next start sweeps it if this
            // fails.
            let _ = self.shared.cache.tier.remove_unfinished(self.copy);
        }
    }
}

/// Lends a staging buffer.
pub fn begin(connection: &mut Connection) -> Answer {
    connection.stage = None;
    match make_stage(connection) {
        Ok((stage, fd)) => {
            let answer =
                Reply::Staging { head_bytes: HEAD_BYTES, slots: SLOTS, page_bytes: stage.page_bytes };
            connection.stage = Some(stage);
            Some((answer, vec![fd]))
        }
        Err(NoStage::Refused(refusal)) => reply(Reply::Refused(refusal)),
        Err(NoStage::Tier(e)) => reply(Reply::Failed {
            errno: e.raw_os_error().unwrap_or(libc::EIO),
            message: format!("cannot make a staging buffer: {e}"),
        }),
    }
}

/// Why there is no staging buffer.
enum NoStage {
    Refused(Refusal),
    Tier(io::Error),
}

impl From<Refusal> for NoStage {
    fn from(refusal: Refusal) -> Self {
        NoStage::Refused(refusal)
    }
}

impl From<io::Error> for NoStage {
    fn from(e: io::Error) -> Self {
        NoStage::Tier(e)
    }
}

fn make_stage(connection: &Connection) -> Result<(Stage, OwnedFd), NoStage> {
    let (shared, uid) = (&connection.shared, connection.peer.uid);
    let cache = &shared.cache;
    if shared.mounts.iter().all(|mount| mount.is_coarse.load(Ordering::Relaxed)) {
        return Err(Refusal::NoRoom.into());
    }
    // Pages are as large as on the mount with the largest ones: which mount it will be is known
    // only at the end.
    let page_bytes = shared.mounts.iter().map(|m| m.config.page_bytes).max().unwrap_or(2 << 20);
    let bytes = Staging::bytes(SLOTS, page_bytes);
    let buffer_room = shared.hold(uid, Class::Clients, bytes)?;
    let room = shared.hold(uid, Class::Pages, 0)?;
    let descriptors = shared.share(Kind::Descriptors, uid, STAGE_DESCRIPTORS)?;
    let buffer = Staging::create(SLOTS, page_bytes)?;
    let fd = buffer.fd().try_clone_to_owned()?;
    let copy = cache.next_copy();
    let file = cache.tier.create_unfinished(copy)?;
    let shared = shared.clone();
    let pages = BTreeMap::new();
    let stage = Stage {
        buffer,
        file,
        copy,
        page_bytes,
        pages,
        room,
        _buffer_room: buffer_room,
        _descriptors: descriptors,
        uid,
        shared,
        committed: false,
    };
    Ok((stage, fd))
}

/// Takes over one page from the buffer.
pub fn page(connection: &mut Connection, slot: u32, page: u32, len: u64) {
    let Some(stage) = &mut connection.stage else { return };
    if stage.take_over(slot, page, len).is_err() {
        // It may be half there: the page does not count.
        stage.pages.remove(&page);
    }
    stage.buffer.release(slot);
}

impl Stage {
    fn take_over(&mut self, slot: u32, page: u32, len: u64) -> io::Result<()> {
        if len == 0 || len > self.page_bytes || u64::from(page) >= forebay_store::ring::PAGES_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let held = self.pages.get(&page).map_or(0, |old| blocks_bytes(*old));
        if blocks_bytes(len) > held {
            let more = blocks_bytes(len) - held;
            let room = self.shared.hold(self.uid, Class::Pages, more);
            self.room.merge(room.map_err(|_| io::ErrorKind::StorageFull)?);
        }
        self.buffer.store(slot, len, self.file.as_fd(), u64::from(page) * self.page_bytes)?;
        self.pages.insert(page, len);
        Ok(())
    }
}

/// Makes a copy of what was staged, if the PFS has exactly the version that the writer left.
pub fn commit(connection: &mut Connection, file: Admitted, fd: &OwnedFd, version: &FileVersion) -> Answer {
    let Some(stage) = &mut connection.stage else {
        return reply(Reply::Refused(Refusal::Invalid("nothing is staged".into())));
    };
    let facts = file.facts;
    if facts.version != *version {
        return reply(Reply::Changed(facts));
    }
    let mount = &connection.shared.mounts[file.mount];
    if mount.youth(&facts) >= COARSE && mount.is_young(&facts) {
        // Whoever writes it again in the same second, here or elsewhere, leaves the same stamps.
        // The next one need not be staged.
        mount.is_coarse.store(true, Ordering::Relaxed);
        return reply(Reply::Refused(Refusal::Young));
    }
    if !mount.is_believed() {
        return reply(Reply::Refused(Refusal::StampsUnproved));
    }
    if stage.page_bytes != mount.config.page_bytes || stage.pages.is_empty() || facts.version.size == 0 {
        return reply(Reply::Refused(Refusal::Invalid("nothing of it can be kept".into())));
    }
    let identity = CopyIdentity {
        copy: stage.copy,
        mount: mount.label().to_owned(),
        path: display_path(fd.as_fd()),
        owner_uid: facts.uid,
        version: facts.version,
        page_bytes: stage.page_bytes,
    };
    match stage.finish(identity, file.mount) {
        Ok(()) => reply(Reply::Done),
        Err(e) => reply(Reply::Failed {
            errno: e.raw_os_error().unwrap_or(libc::ENOSPC),
            message: format!("the written file cannot be kept in the tier: {e}"),
        }),
    }
}

impl Stage {
    fn finish(&mut self, identity: CopyIdentity, mount: usize) -> io::Result<()> {
        let shared = self.shared.clone();
        let cache = &shared.cache;
        let metadata = cache
            .reserve_metadata(&identity, &shared.counters)
            .map_err(|_| io::Error::new(io::ErrorKind::StorageFull, "no room"))?;
        let copy = CopyFile::finish(self.file.try_clone()?, &identity)?;
        let geometry = copy.geometry();
        let whole: Vec<u32> = (self.pages.iter())
            .filter(|(page, len)| u64::from(**page) < geometry.pages() && geometry.page_len(**page) == **len)
            .map(|(page, _)| *page)
            .collect();
        for (page, _) in self.pages.iter().filter(|(page, _)| u64::from(**page) < geometry.pages()) {
            if whole.binary_search(page).is_err() {
                copy.discard(*page)?;
            }
        }
        let bytes_of = |page: u32| blocks_bytes(geometry.page_len(page));
        let kept: u64 = whole.iter().map(|page| bytes_of(*page)).sum();
        cache.tier.publish(self.copy)?;
        self.committed = true;
        let entry = cache.insert_entry(identity, mount, metadata, copy);
        if entry.copy() != self.copy {
            return Ok(()); // Somebody has fetched the same version already; theirs stays.
        }
        let file = cache.file(&entry)?;
        self.room.shrink(self.room.bytes() - kept);
        cache.keep_pages(self.room.let_go());
        for page in &whole {
            let absent = Word::ABSENT;
            let valid_blocks = geometry.page_len(*page).div_ceil(BLOCK_BYTES) as u32;
            let resident = Word { valid_blocks, state: State::Resident, ..absent };
            if !cache.note_resident(&entry, &file, *page, (absent, resident), Fill::Demand) {
                // A reader was faster, and its fetch brings the same bytes and counts them.
                cache.release_pages(bytes_of(*page));
            }
        }
        add(&shared.counters.pages_written_total, whole.len() as u64);
        Ok(())
    }
}
