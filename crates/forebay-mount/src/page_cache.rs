//! Which content the kernel may keep in its page cache.
//!
//! A file that is open only for reading, whose version is wholly in the tier, and that nobody has
//! open for writing through this mount, is read through the kernel's page cache. So a re-read is as
//! fast as on a local file system. The kernel asks for the attributes at the first read after
//! [`FRESH`]; if they have changed, it drops what it keeps, and later reads are served as after any
//! change ([`crate::served`]). At the next open of the same version, the kernel uses the pages that
//! it has.
//!
//! All open files of a node that are read in this way have one version, so the kernel's pages do.
//! What keeps pages of an older one out: before the kernel drops all pages, at a look that shows a
//! change or at an open of another version, each open file has to check before it reads the tier
//! again. The kernel waits for the pages that are being read, and drops them too.
//!
//! A file that has left the tier is still read through the page cache: an open file cannot change
//! that. So each of its reads looks at the attributes, and drops what the kernel has.

use crate::fs::{Fs, Out, stat};
use crate::handles::Handle;
use crate::served::FRESH;
use forebay_pfs::{FileFacts, FileVersion, Revalidate};
use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

impl Fs {
    /// The version of a file whose pages the kernel may keep: one that it keeps already, or one
    /// that is wholly in the tier.
    pub fn version_to_keep(&self, node: u64, handle: &Arc<Handle>) -> Option<FileVersion> {
        let now = FileFacts::of(handle.as_fd(), Revalidate::AsStat).ok()?.version;
        if self.nodes.kept(node) == Some(now) {
            return Some(now);
        }
        if self.nodes.seen(node).is_some_and(|seen| seen != now) {
            // The kernel drops the pages at this open.
            self.nodes.handles(node).iter().for_each(|other| other.served.doubt());
        }
        if now.size == 0 {
            // There is nothing to serve.
            handle.served.leave();
            return None;
        }
        let caller = self.callers.acting();
        self.register_with_tier(handle);
        if let Some(caller) = caller {
            self.callers.act_as(&caller);
        }
        handle.served.whole_version()
    }

    /// Registers a file with the agent, unless it is registered.
    pub fn register_with_tier(&self, handle: &Arc<Handle>) {
        self.callers.act_as_daemon();
        if handle.served.register(&self.client, handle.as_fd()) {
            self.registered.add(handle);
            if handle.kept().is_some_and(|kept| handle.served.version() != Some(kept)) {
                // It has changed since it was opened. The next look at the attributes shows it.
                handle.served.leave();
            }
        }
    }

    /// Checks a file again that was registered before its open was noted: a writer that came and
    /// went in between has not seen it.
    pub fn look_again(&self, handle: &Arc<Handle>) {
        if let Some(version) = handle.served.version()
            && FileFacts::of(handle.as_fd(), Revalidate::AsStat).map(|now| now.version).ok() != Some(version)
        {
            handle.served.leave();
        }
    }

    /// Leaves to the PFS the files of the node that are open with another version, so that none of
    /// their pages comes into the kernel's cache.
    pub fn leave_other_versions(&self, node: u64, version: FileVersion) {
        for other in self.nodes.handles(node) {
            if other.served.version().is_some_and(|other| other != version) {
                other.served.leave();
            }
        }
    }

    /// Answers with attributes that the kernel believes until reads need a new look.
    ///
    /// # Errors
    /// What the PFS returns.
    pub fn put_fresh_attributes(&self, handle: &Arc<Handle>, out: &mut Out) -> Result<(), Errno> {
        let now = match handle.asks_servers() {
            false => stat(handle.as_fd())?,
            true => {
                let how = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
                rustix::fs::statx(handle.as_fd(), c"", how, StatxFlags::BASIC_STATS)?
            }
        };
        let now = self.newest(handle.node, &now);
        self.nodes.used(handle);
        let mut valid_for = self.valid_for.max(FRESH);
        if let Some(look) = self.nodes.looked(handle.node, FileFacts::from_statx(&now).version) {
            if look.has_moved {
                // First, so that no old page is read after the kernel has dropped them.
                look.handles.iter().for_each(|other| other.served.doubt());
            }
            let is_certain = |other: &Arc<Handle>| other.kept().is_none() || other.served.is_certain();
            if look.has_moved || !look.handles.iter().all(is_certain) {
                // Pages from the PFS may be of a write in progress, whose stamps do not move again:
                // while the file is read from there, each read looks and drops what is kept.
                valid_for = Duration::ZERO;
                // The kernel itself drops the pages of a file with another length. It must take
                // that from this answer.
                if look.keeps_size {
                    self.device.forget_content(handle.node);
                }
            }
        }
        self.put_attributes_for(&now, valid_for, out);
        Ok(())
    }
}
