//! Keeps programs from destroying a file that they know under two names.
//!
//! A file has a name on the PFS and one here, and the two have different device numbers. So a
//! program that copies one to the other does not notice that they are one file, and empties or
//! removes the only copy. The mount answers `EBUSY` where it can know:
//!
//! | call here | refused if the program |
//! | --- | --- |
//! | an open or `truncate` that removes bytes | has the PFS's own file open, only for reading |
//! | `unlink` | names the file by the PFS's path on its command line |
//!
//! `mv` and `install` remove the target before they open the source, so only their command line
//! shows it. Calls on the PFS itself are not seen here, and cannot be refused.

use crate::abi::{InHeader, ROOT_ID};
use crate::fs::{Fs, stat};
use crate::nodes::FileId;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Without a request to any server: the descriptors may be those of file systems that hang, or of
/// this mount.
const AS_CACHED: AtFlags = AtFlags::STATX_DONT_SYNC.union(AtFlags::NO_AUTOMOUNT);

impl Fs {
    /// Refuses to truncate `file` to `size` for a program that reads the PFS's own file.
    ///
    /// # Errors
    /// `EBUSY`.
    pub fn refuse_to_cut(&self, caller: &InHeader, file: BorrowedFd<'_>, size: u64) -> Result<(), Errno> {
        // Its attributes were requested when it was found.
        let found = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH | AS_CACHED, StatxFlags::BASIC_STATS)?;
        let is_file = FileType::from_raw_mode(u32::from(found.stx_mode)) == FileType::RegularFile;
        let is_cut = is_file && size < self.newest(caller.nodeid, &found).stx_size;
        if is_cut && self.as_daemon(|| is_reading(caller.pid, FileId::of(&found))) {
            return Err(Errno::BUSY);
        }
        Ok(())
    }

    /// Refuses to remove a file for a program that was started with the PFS's path of it.
    ///
    /// # Errors
    /// `EBUSY`.
    pub fn refuse_to_remove(&self, caller: &InHeader, name: &CStr) -> Result<(), Errno> {
        let is_named = self.as_daemon(|| {
            let line = std::fs::read(format!("/proc/{}/cmdline", caller.pid)).unwrap_or_default();
            let mut words = line.split(|b| *b == 0).filter(|word| word.ends_with(name.to_bytes())).peekable();
            // Most programs end here.
            words.peek().is_some() && {
                let known =
                    if caller.nodeid == ROOT_ID { Some(Vec::new()) } else { self.nodes.path(caller.nodeid) };
                let Some(directory) = known else { return false };
                let target =
                    self.path.join(OsStr::from_bytes(&directory)).join(OsStr::from_bytes(name.to_bytes()));
                let here = std::fs::read_link(format!("/proc/{}/cwd", caller.pid)).unwrap_or_default();
                words.any(|word| here.join(OsStr::from_bytes(word)) == target) && self.is_seen_by(caller.pid)
            }
        });
        if is_named { Err(Errno::BUSY) } else { Ok(()) }
    }

    /// Whether the PFS's path is the PFS for this program too. In a container it may be the mount.
    fn is_seen_by(&self, pid: u32) -> bool {
        stat(self.root.as_fd()).is_ok_and(|own| {
            let dev = rustix::fs::makedev(own.stx_dev_major, own.stx_dev_minor);
            forebay_pfs::mount::is_mounted_for(pid, &self.path, dev)
        })
    }

    pub fn as_daemon<R>(&self, work: impl FnOnce() -> R) -> R {
        let caller = self.callers.acting();
        self.callers.act_as_daemon();
        let result = work();
        if let Some(caller) = caller {
            self.callers.act_as(&caller);
        }
        result
    }
}

/// Whether a program has this file open on the PFS, only for reading.
fn is_reading(pid: u32, file: FileId) -> bool {
    // Unknown for a program in another PID namespace, or one whose state may not be read.
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    entries.flatten().any(|entry| {
        rustix::fs::statx(CWD, entry.path(), AS_CACHED, StatxFlags::BASIC_STATS)
            .is_ok_and(|found| FileId::of(&found) == file)
            && flags(pid, &entry.file_name())
                .is_some_and(|flags| flags & (libc::O_ACCMODE | libc::O_PATH) == 0)
    })
}

/// The flags of a descriptor of another process.
fn flags(pid: u32, number: &OsStr) -> Option<i32> {
    let text = std::fs::read(Path::new("/proc").join(pid.to_string()).join("fdinfo").join(number)).ok()?;
    let octal = text.split(|b| *b == b'\n').find_map(|line| line.strip_prefix(b"flags:"))?;
    i32::from_str_radix(std::str::from_utf8(octal).ok()?.trim(), 8).ok()
}
