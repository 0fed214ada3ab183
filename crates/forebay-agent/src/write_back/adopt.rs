//! The dirty files that an earlier agent has left: this one writes them to the PFS.

use super::dirty_file::{Dirty, Stamp};
use super::{FILE_BYTES, FILE_DESCRIPTORS, WriteBack};
use crate::user_limits::Kind;
use forebay_store::Class;
use forebay_store::dirty::DirtyRecord;
use rustix::fs::OFlags;
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
        Ok(())
    }

    fn adopt_one(&self, copy: u64) -> io::Result<()> {
        let record = DirtyRecord::load(&self.cache.tier, copy)?;
        if record.second.kept_for.is_some() {
            return self.adopt_copy(copy, record);
        }
        let (is_kept, is_fenced) = (record.second.kept_by.is_some(), record.second.is_fenced);
        let content = self.cache.tier.open_dirty(copy, OFlags::RDONLY)?;
        let bytes = FILE_BYTES + Stamp::of(&content)?.bytes;
        let mount = self.mounts.iter().position(|mount| mount.label() == record.mount);
        let (uid, ino) = (record.uid, record.ino);
        let label = record.mount.clone();
        let room = self.cache.hold_existing(&self.shares, uid, Class::Dirty, bytes);
        let descriptors = self.shares.share_existing(Kind::Descriptors, uid, FILE_DESCRIPTORS);
        let place = (record, mount.unwrap_or(0));
        let mut dirty = Dirty::new(copy, place, content, (room, descriptors), self.now());
        if mount.is_none() {
            self.park(&mut dirty, libc::ENOENT, format!("no mount `{label}` is served any more"));
        }
        dirty.copying.is_unconfirmed = is_kept;
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
