//! A mount of a PFS at a second mount point, with the tier in its read path.
//!
//! The file system implements the kernel's FUSE protocol (`abi`, `device`). It passes names,
//! attributes, locks and writes through to the PFS, with the caller's rights (`caller`), so that a
//! program gets the PFS's own results. The client core reads files that are open only for reading
//! (`served`). For files that are open for writing, the kernel passes reads and writes directly to
//! the PFS's file on root's mounts (`opening`), unless they are written back (`absorbing`).
//!
//! The crate `fuser` is not used: it cannot answer a call of a killed program while the PFS hangs,
//! interrupt a wait for a lock, or create files without names.

mod abi;
mod absorbing;
mod attributes;
mod caller;
mod content;
mod credentials;
mod data;
mod device;
mod directories;
mod directory;
mod frozen;
mod frozen_answers;
mod fs;
mod handles;
mod in_flight;
mod lock;
mod lock_table;
mod locks;
mod messages;
mod mounting;
mod moving;
mod names;
mod nodes;
mod opening;
mod operations;
mod page_cache;
mod registered;
mod request;
mod serve;
mod served;
mod shares;
mod turns;
mod two_names;
mod writes;

pub use messages::{say, to_system_log};
pub use mounting::{FS_TYPE, unmount};

use crate::caller::Callers;
use crate::device::{Buffer, Device, REQUEST_BYTES};
use crate::frozen::Frozen;
use crate::fs::Fs;
use crate::mounting::How;
use crate::nodes::Nodes;
use forebay_client::Client;
use forebay_client::dirty::Patterns;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// `f_type` of FUSE file systems.
const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;
const OVERLAYFS_SUPER_MAGIC: i64 = 0x794c_7630;

/// How a PFS is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long the kernel may cache names and attributes; zero: not at all.
    pub valid_for: Duration,
    /// Nothing can be changed through the mount.
    pub read_only: bool,
    /// Set-user-ID programs work (root's mounts only).
    pub suid: bool,
    /// Device files work (root's mounts only).
    pub dev: bool,
    /// Programs cannot be started from the mount.
    pub noexec: bool,
    /// Only the user of this process may use the mount, even if that is root.
    pub private: bool,
    /// Directories that do not change while this is mounted. The mount is private then.
    pub frozen: Vec<PathBuf>,
    /// Files that are written to the tier first, by their paths on the PFS.
    pub write_back: Patterns,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            valid_for: Duration::ZERO,
            read_only: false,
            suid: false,
            dev: false,
            noexec: false,
            private: false,
            frozen: Vec::new(),
            write_back: Patterns::default(),
        }
    }
}

/// A mounted file system that is not served yet.
#[derive(Debug)]
pub struct Mounted {
    fs: Arc<Fs>,
    at: PathBuf,
    words: Vec<String>,
}

impl Mounted {
    /// Mounts the directory `pfs` at `at`, which may be the same directory.
    ///
    /// # Errors
    /// The error of the kernel or of `fusermount3`.
    pub fn new(pfs: &Path, at: &Path, options: &Options, client: Client) -> io::Result<Self> {
        mounting::detach_dead(at)?;
        let (pfs, at) = (pfs.canonicalize()?, at.canonicalize()?);
        if at != pfs && at.starts_with(&pfs) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} is inside of {}: the mount would contain itself", at.display(), pfs.display()),
            ));
        }
        raise_open_files();
        // Before anything is mounted over it.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&pfs, flags, Mode::empty())?;
        let stamps_late = forebay_pfs::mount::Traits::of(&pfs).stamps_late;
        let kind = rustix::fs::fstatfs(&root)?.f_type;
        let in_user_space = kind == FUSE_SUPER_MAGIC;
        // A copy to the upper layer is a new file.
        let has_births = !in_user_space && kind != OVERLAYFS_SUPER_MAGIC;
        let is_for_all =
            rustix::process::geteuid().is_root() && !options.private && options.frozen.is_empty();
        let how = How {
            for_all: is_for_all,
            read_only: options.read_only,
            suid: options.suid,
            dev: options.dev,
            noexec: options.noexec,
            // For cached names the kernel does not ask this process, so it must check modes.
            kernel_checks: !options.valid_for.is_zero(),
        };
        let callers = Callers::new(is_for_all)?;
        let (frozen, words) = match options.frozen.is_empty() {
            true => (None, Vec::new()),
            false => Frozen::take(root.as_fd(), &pfs, &options.frozen, &client),
        };
        let device = Arc::new(Device::new(mounting::mount(&pfs, &at, how)?));
        let fs = Arc::new(Fs {
            root: Arc::new(root),
            path: pfs,
            device,
            nodes: Nodes::new(has_births),
            moving: Default::default(),
            handles: Default::default(),
            registered: Default::default(),
            descriptors: Default::default(),
            callers,
            locks: Default::default(),
            client,
            valid_for: options.valid_for,
            passes: AtomicBool::new(false),
            stamps_late,
            in_user_space,
            frozen,
            write_back: options.write_back.clone(),
        });
        let mounted = Mounted { fs, at, words };
        mounted.begin().inspect_err(|_| {
            // The first error is the one to report.
            let _ = unmount(&mounted.at, true);
        })?;
        Ok(mounted)
    }

    fn begin(&self) -> io::Result<()> {
        let mut buffer = Buffer::new(REQUEST_BYTES)?;
        match self.fs.device.receive(buffer.request())? {
            Some(bytes) => self.fs.begin(bytes).inspect(|()| mounting::set_read_ahead(&self.at)),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Where it is mounted.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// What the user should know of directories that were to be frozen.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// Serves it until it is unmounted.
    ///
    /// # Errors
    /// No threads or no memory.
    pub fn serve(&self) -> io::Result<()> {
        if !rustix::process::geteuid().is_root() {
            caller::drop_capabilities();
        }
        serve::serve(self.fs.clone())
    }
}

/// Raises the limit: each open file of a program takes a descriptor of this process.
fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    if let Some(most) = most.filter(|most| limit.maximum.is_some_and(|maximum| maximum < *most)) {
        // Only root may.
        let all = Rlimit { current: Some(most), maximum: Some(most) };
        if setrlimit(Resource::Nofile, all).is_ok() {
            return;
        }
    }
    // If this fails, only fewer files can be open.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
