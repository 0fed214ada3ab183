//! The dirty files that an earlier agent has left: this one writes them to the PFS.

use super::dirty_file::{Dirty, Stamp};
use super::{FILE_BYTES, FILE_DESCRIPTORS, WriteBack};
use crate::user_limits::Kind;
use forebay_store::Class;
use forebay_store::dirty::{DirtyRecord, Keeper};
use forebay_store::dirty_index::DirtyIndex;
use forebay_store::dirty_log::{DirtyLog, Logged};
use rustix::fs::{OFlags, Uid, fchown};
use std::io;

impl WriteBack {
    /// Takes up what an earlier agent left. No PFS is asked: a pass opens the file.
    ///
    /// # Errors
    /// The tier cannot be read.
    pub fn adopt(&self) -> io::Result<()> {
        for copy in self.cache.tier.list_dirty()? {
            self.cache.skip_copy(copy);
            if let Err(e) = self.adopt_one(copy) {
                // Its record was never whole, so no program has been given it.
                tracing::warn!(copy, error = %e, "a dirty file of an earlier agent is none");
                self.unlink(copy);
            }
        }
        if let Some(log) = &self.log {
            self.adopt_log(log)?;
        }
        self.index.iter().for_each(DirtyIndex::forget_earlier);
        Ok(())
    }

    /// Takes up what the log has, and the tier has lost: the node was restarted.
    fn adopt_log(&self, log: &DirtyLog) -> io::Result<()> {
        let mut restored = (0_u64, 0_u64);
        for logged in log.files()? {
            let adopted = match &logged {
                Ok(logged) => self
                    .adopt_logged(logged)
                    .map_err(|e| (String::from_utf8_lossy(&logged.record().path).into_owned(), e)),
                Err((name, e)) => Err((name.clone(), io::Error::new(e.kind(), e.to_string()))),
            };
            match adopted {
                Ok(bytes) => restored = (restored.0 + u64::from(bytes > 0), restored.1 + bytes),
                Err((name, e)) => {
                    tracing::error!(file = name, error = %e, "a file stays in the log: it cannot be taken up");
                }
            }
        }
        if restored.0 > 0 {
            tracing::info!(files = restored.0, bytes = restored.1, "took up files from the log");
        }
        Ok(())
    }

    /// Returns the bytes that it adds to the tier.
    fn adopt_logged(&self, logged: &Logged) -> io::Result<u64> {
        let mut record = logged.record().clone();
        let mount = self.mounts.iter().position(|mount| mount.label() == record.mount);
        let is_same = |dirty: &Dirty| dirty.record.mount == record.mount && dirty.record.ino == record.ino;
        let known = self
            .state()
            .files
            .values()
            .find(|dirty| is_same(dirty))
            .map(|dirty| dirty.record.second.kept_by == Some(Keeper::Disk(logged.number())));
        match known {
            // The tier has it as well, and perhaps a newer one.
            Some(true) => return Ok(0),
            // It is from an earlier life of the file.
            Some(false) => {
                self.remove_from_log(logged.number());
                return Ok(0);
            }
            None => {}
        }
        if let Some(dev) = mount.and_then(|mount| self.mounts[mount].device()) {
            record.dev = dev;
        }
        let copy = self.cache.next_copy();
        record.second.kept_by = Some(Keeper::Disk(logged.number()));
        // A pass may have written some of it, and another node may have written the file since.
        (record.second.is_disputed, record.is_draining) = (true, true);
        let restored = (|| {
            logged.restore(&self.cache.tier.create_copy(copy)?)?;
            if !self.shares.is_operator(record.uid) {
                let content = self.cache.tier.open_dirty(copy, OFlags::WRONLY)?;
                fchown(content, Some(Uid::from_raw(record.uid)), None)?;
            }
            record.store(&self.cache.tier, copy)?;
            self.adopt_one(copy)
        })();
        match restored {
            Ok(()) => Ok(logged.bytes()),
            Err(e) => {
                self.unlink(copy);
                Err(e)
            }
        }
    }

    fn adopt_one(&self, copy: u64) -> io::Result<()> {
        let record = DirtyRecord::load(&self.cache.tier, copy)?;
        if record.second.kept_for.is_some() {
            return self.adopt_copy(copy, record);
        }
        let is_kept = matches!(record.second.kept_by, Some(Keeper::Node(_)));
        let is_fenced = record.second.is_fenced;
        let content = self.cache.tier.open_dirty(copy, OFlags::RDONLY)?;
        let bytes = FILE_BYTES + Stamp::of(&content)?.bytes;
        let mount = self.mounts.iter().position(|mount| mount.label() == record.mount);
        let (uid, ino) = (record.uid, record.ino);
        let label = record.mount.clone();
        let room = self.cache.hold_existing(&self.shares, uid, Class::Dirty, bytes);
        let descriptors = self.shares.share_existing(Kind::Descriptors, uid, FILE_DESCRIPTORS);
        let place = (record, mount.unwrap_or(0));
        let account = self.traffic.account(uid, &place.0.job);
        let mut dirty = Dirty::new(copy, place, content, (room, descriptors, account), self.now());
        if mount.is_none() {
            self.park(&mut dirty, libc::ENOENT, format!("no mount `{label}` is served any more"));
        }
        // While no agent ran here, another node may have written the file.
        dirty.copying.is_unconfirmed = true;
        dirty.record.second.is_disputed |= is_kept;
        let mut state = self.state();
        if is_fenced {
            self.park(&mut dirty, libc::ESTALE, "another node has taken the file over".into());
        } else {
            self.set_listed(&mut dirty, true);
            state.by_inode.insert((dirty.mount, ino), copy);
        }
        state.files.insert(copy, dirty);
        Ok(())
    }
}
