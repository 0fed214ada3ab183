//! What a tier is opened with, and the mount of its tmpfs.

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::mount::{MountFlags, mount, mount_remount};
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Names the file system in `statfs`.
pub(crate) const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Where the tmpfs comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backing {
    /// The first of the others that works.
    #[default]
    Auto,
    /// A mount of the agent's own in the namespace of the host; needs `CAP_SYS_ADMIN`.
    Mount,
    /// A mount kept by a keeper process in a user namespace.
    Namespace,
    /// A directory on an existing tmpfs.
    Directory,
}

/// What to open.
#[derive(Clone, Debug)]
pub struct TierOptions {
    /// The agent's own directory; the mount point, locks and sockets are in it.
    pub state_dir: PathBuf,
    /// Where the tmpfs comes from.
    pub backing: Backing,
    /// For [`Backing::Directory`]: the directory; default `/dev/shm/forebay-UID`.
    pub directory: Option<PathBuf>,
    /// Bound of the tmpfs in bytes: the kernel refuses more whatever the budget says.
    pub limit_bytes: u64,
    /// Ask for huge pages.
    pub huge_pages: bool,
    /// This program, to start the keeper; `None` where the namespace backing is not wanted.
    pub program: Option<PathBuf>,
}

/// Mounts a tmpfs on `place`, or changes the size of the existing one.
pub(crate) fn mount_or_resize(place: &Path, limit_bytes: u64, huge_pages: bool) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    if is_tmpfs_mount(place)? {
        let data = CString::new(format!("size={limit_bytes}"))?;
        return mount_remount(place, flags, &data)
            .map_err(|e| explain(e.into(), format!("cannot resize the tmpfs on {}", place.display())));
    }
    let options = |huge: &str| CString::new(format!("size={limit_bytes},nr_inodes=0,mode=0700{huge}"));
    let huge = if huge_pages { ",huge=within_size" } else { "" };
    let first = mount(c"forebay", place, c"tmpfs", flags, Some(options(huge)?.as_c_str()));
    let mounted = match first {
        // A kernel without huge pages refuses the option, not the tmpfs.
        Err(rustix::io::Errno::INVAL) => {
            mount(c"forebay", place, c"tmpfs", flags, Some(options("")?.as_c_str()))
        }
        other => other,
    };
    mounted.map_err(|e| explain(e.into(), format!("cannot mount a tmpfs on {}", place.display())))
}

/// Whether a tmpfs is mounted on `place`.
pub(crate) fn is_tmpfs_mount(place: &Path) -> io::Result<bool> {
    let here = std::fs::metadata(place)?.dev();
    let above = std::fs::metadata(place.parent().unwrap_or(Path::new("/")))?.dev();
    Ok(here != above && rustix::fs::statfs(place)?.f_type as i64 == TMPFS_MAGIC)
}

/// The `huge=` option of the tmpfs mounted on `place`; tmpfs shows none when it is `never`.
pub(crate) fn huge_setting(place: &Path) -> io::Result<String> {
    // Paths in the table are bytes, some of them escaped; numbers are not.
    let id = rustix::fs::statx(CWD, place, AtFlags::empty(), StatxFlags::MNT_ID)?.stx_mnt_id.to_string();
    let table = String::from_utf8_lossy(&std::fs::read("/proc/self/mountinfo")?).into_owned();
    let line = table.lines().find(|line| line.split(' ').next() == Some(&id));
    let options = line.and_then(|line| line.rsplit(' ').next()).unwrap_or("");
    Ok(options.split(',').find_map(|o| o.strip_prefix("huge=")).unwrap_or("never").to_owned())
}

pub(crate) fn explain(e: io::Error, what: String) -> io::Error {
    io::Error::new(e.kind(), format!("{what}: {e}"))
}

/// As configured.
pub(crate) fn backing_name(backing: Backing) -> &'static str {
    match backing {
        Backing::Auto => "auto",
        Backing::Mount => "mount",
        Backing::Namespace => "namespace",
        Backing::Directory => "directory",
    }
}
