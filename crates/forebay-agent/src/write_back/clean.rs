//! A file that the PFS has becomes a cached copy when its content is renamed.
//!
//! As for every other version, its time stamps must be old enough first. Until then it takes its
//! room, and gives way to others that need it.

use super::dirty_file::Phase;
use super::{State, WriteBack};
use crate::mounts::opened_path::opened_path;
use crate::mounts::seal::{Unsettled, seal};
use forebay_pfs::lease::{Opened, is_alone};
use forebay_pfs::read::reopen_as;
use forebay_pfs::{FileFacts, Revalidate};
use forebay_policy::eviction::Fill;
use forebay_store::copy::{CopyFile, CopyIdentity};
use forebay_store::{BLOCK_BYTES, Class, State as PageState, Word, blocks_bytes};
use rustix::fs::{Mode, OFlags, Uid, fchmod, fchown};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// How often clean files are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Rounds after which unfinished files are stamped again: 20 s, well before others consider them
/// old ([`forebay_wire::RECENT`]).
const STAMP_ROUNDS: u32 = 200;

impl WriteBack {
    /// Makes copies of clean files, and closes files of the PFS, until the agent ends. A thread of
    /// its own, because both may wait for a PFS.
    pub fn settle(&self) {
        for round in 0_u32.. {
            if self.stop.wait(LOOK) {
                return;
            }
            if round.is_multiple_of(10) {
                self.follow_renames();
            }
            if round.is_multiple_of(STAMP_ROUNDS) {
                self.stamp_all_again();
            }
            let (closing, clean) = {
                let mut state = self.state();
                let clean: Vec<u64> =
                    state.files.iter().filter(|(_, file)| !file.is_dirty()).map(|(copy, _)| *copy).collect();
                (std::mem::take(&mut state.closing), clean)
            };
            drop(closing);
            clean.into_iter().for_each(|copy| self.try_to_keep(copy));
            self.settle_checkpoints();
        }
    }

    /// Notes the names that dirty files have by now, for the next agent. The kernel knows those
    /// that this node has renamed.
    fn follow_renames(&self) {
        let mut state = self.state();
        for (copy, dirty) in &mut state.files {
            let Some(pfs) = dirty.pfs.as_ref().filter(|_| dirty.is_listed) else { continue };
            let path = opened_path(pfs.as_fd());
            if path != dirty.record.path && !path.is_empty() && !path.ends_with(b" (deleted)") {
                dirty.record.path = path;
                // It is only for people and for the next agent.
                let _is_tried_again = dirty.record.store(&self.cache.tier, *copy);
            }
        }
    }

    /// Makes the clean file `copy` a copy of the version that the PFS has, or gives it up; neither
    /// while its time stamps are too recent, or a program reads the content: eviction would take it
    /// away under its reader.
    fn try_to_keep(&self, copy: u64) {
        let is_wanted = self.cache.budget.excess_bytes() > 0;
        let (mount, facts, pfs) = {
            let mut state = self.state();
            let Some(dirty) = state.files.get_mut(&copy) else { return };
            let Phase::Clean(facts) = dirty.phase else { return };
            let mount = &self.mounts[dirty.mount];
            if is_wanted {
                return self.remove(&mut state, copy);
            }
            if mount.settles_in(&facts, true).is_some() || !is_alone(dirty.content.as_fd()) {
                return;
            }
            (mount, facts, dirty.pfs.take())
        };
        let reader =
            pfs.as_ref().and_then(|pfs| reopen_as(pfs.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK).ok());
        // Its own writer would count as one.
        drop(pfs);
        let is_same = |fd: &OwnedFd| {
            FileFacts::of(fd.as_fd(), Revalidate::Force).is_ok_and(|now| now.version == facts.version)
        };
        let identity = reader.filter(|fd| is_same(fd) && facts.version.size > 0).map(|fd| {
            seal(mount, fd.as_fd(), Opened::Here, &facts)
                .map(|()| CopyIdentity {
                    copy,
                    mount: mount.label().to_owned(),
                    path: opened_path(fd.as_fd()),
                    owner_uid: facts.uid,
                    version: facts.version,
                    page_bytes: mount.page_bytes_of(fd.as_fd(), facts.version.size),
                })
                .map_err(|why| (why, fd))
        });
        let mut state = self.state();
        let Some(dirty) = state.files.get_mut(&copy).filter(|file| file.phase == Phase::Clean(facts)) else {
            return;
        };
        let kept = match identity {
            Some(Ok(identity)) if is_alone(dirty.content.as_fd()) => self.keep(&mut state, copy, identity),
            Some(Err((Unsettled::RacilyClean(_), fd))) => return dirty.pfs = Some(fd.into()),
            _ => Err(io::ErrorKind::ResourceBusy.into()),
        };
        if let Err(e) = kept {
            tracing::debug!(copy, error = %e, "what was written is not kept");
            self.remove(&mut state, copy);
        }
    }

    fn keep(&self, state: &mut State, copy: u64, identity: CopyIdentity) -> io::Result<()> {
        let cache = &self.cache;
        let no_room = |_| io::Error::from(io::ErrorKind::StorageFull);
        let metadata = cache.reserve_metadata(&identity).map_err(no_room)?;
        let content = cache.tier.open_dirty(copy, OFlags::RDWR)?;
        // Nobody has it open, so nobody can change this any more.
        fchown(&content, Some(Uid::from_raw(rustix::process::geteuid().as_raw())), None)?;
        fchmod(&content, Mode::from(0o600))?;
        let made = CopyFile::finish(&cache.tier, content, &identity)?;
        let Some(mut dirty) = self.take(state, copy) else { return Ok(()) };
        let uid = dirty.record.uid;
        let geometry = made.geometry();
        let bytes_of = |page: u32| blocks_bytes(geometry.page_len(page));
        let pages = geometry.pages() as u32;
        let kept: u64 = (0..pages).map(bytes_of).sum();
        let unused = dirty.room.bytes().saturating_sub(kept);
        dirty.room.shrink(unused);
        drop(dirty.room);
        let entry = cache.insert_entry(identity, dirty.mount, metadata, made);
        if entry.copy() != copy {
            self.note_kept(copy, uid, &entry);
            return Ok(());
        }
        let file = cache.file(&entry)?;
        cache.keep_pages(cache.budget.reserve_existing(Class::Pages, kept));
        for page in 0..pages {
            let absent = Word::ABSENT;
            let valid_blocks = geometry.page_len(page).div_ceil(BLOCK_BYTES) as u32;
            let resident = Word { valid_blocks, state: PageState::Resident, ..absent };
            if !cache.note_resident(&entry, &file, page, (absent, resident), Fill::Demand) {
                cache.release_pages(bytes_of(page));
            }
        }
        crate::counters::add(&self.counters.pages_written_total, u64::from(pages));
        self.note_kept(copy, uid, &entry);
        Ok(())
    }
}
