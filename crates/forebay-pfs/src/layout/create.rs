//! Creates files with a layout, by the means of each file system.
//!
//! Lustre and BeeGFS take a layout only with the creation of a file, so the file is created here,
//! before the program opens it. CephFS and MooseFS take it as long as the file is empty. A hint
//! that cannot be followed leaves a file as the file system makes it by itself.

use super::hint::{ALL, Hint};
use super::{beegfs, lustre};
use crate::mount::{Striping, striping};
use rustix::fs::{Mode, OFlags, XattrFlags, fsetxattr, openat};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// A file does not have the layout that was asked for.
#[derive(Debug)]
pub struct NotLaid {
    /// The file was created all the same.
    pub is_created: bool,
    /// Why, in words.
    pub why: String,
}

/// Creates the file `name` in the directory that is open as `dir`, whose path is `path`, with a
/// layout; `mode` are its permissions before the umask. On MooseFS, `set_class` sets the storage
/// class of the empty file. Returns `false` if there is such a file, which keeps its layout.
///
/// # Errors
/// The file does not have the layout. The caller creates it, or opens the one that is there.
pub fn create(
    (dir, path): (BorrowedFd<'_>, &Path),
    name: &CStr,
    mode: u32,
    hint: &Hint,
    set_class: impl FnOnce(BorrowedFd<'_>, &str) -> io::Result<()>,
) -> Result<bool, NotLaid> {
    let refused = |why: String| NotLaid { is_created: false, why };
    let Some(kind) = striping(path) else {
        return Err(refused("this file system takes no layout hints".into()));
    };
    // Without these the program could not open what was created here.
    if mode & 0o600 != 0o600 {
        return Err(refused(format!("its owner could not open it again with mode {mode:#o}")));
    }
    let exclusive = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let make = |more: OFlags| made(openat(dir, name, exclusive | more, Mode::from(mode)));
    let laid = match kind {
        Striping::BeeGfs => {
            let hints = beegfs::hints_of(hint).map_err(refused)?;
            return match made(beegfs::create(dir, name, mode, hints)) {
                Ok(created) => Ok(created.is_some()),
                Err(e) => Err(refused(e.to_string())),
            };
        }
        Striping::Lustre => {
            let layout = lustre::user_layout(hint).map_err(refused)?;
            make(lustre::DELAY_CREATE).map(|file| Some((lustre::set(file.as_ref()?.as_fd(), &layout), file)))
        }
        Striping::Ceph => {
            let layout = ceph_layout(hint).map_err(refused)?;
            make(OFlags::empty()).map(|file| {
                let file = file?;
                let set = fsetxattr(&file, "ceph.file.layout", layout.as_bytes(), XattrFlags::empty());
                Some((set.map_err(io::Error::from), Some(file)))
            })
        }
        Striping::MooseFs => {
            let class = moosefs_class(hint).map_err(refused)?;
            make(OFlags::empty()).map(|file| {
                let file = file?;
                Some((set_class(file.as_fd(), class), Some(file)))
            })
        }
    };
    match laid {
        Ok(None) => Ok(false),
        Ok(Some((Ok(()), _))) => Ok(true),
        Ok(Some((Err(e), _))) => Err(NotLaid { is_created: true, why: e.to_string() }),
        Err(e) => Err(refused(e.to_string())),
    }
}

/// `None` if the file is there already.
fn made<T>(created: rustix::io::Result<T>) -> io::Result<Option<T>> {
    match created {
        Err(rustix::io::Errno::EXIST) => Ok(None),
        created => Ok(Some(created?)),
    }
}

/// An object of CephFS if the hint does not need another size.
const CEPH_OBJECT_BYTES: u64 = 4 << 20;

/// CephFS takes all of it at once, so that no part contradicts another meanwhile. An object holds
/// whole stripes.
fn ceph_layout(hint: &Hint) -> Result<String, String> {
    if !hint.servers.is_empty() {
        return Err("CephFS places objects by itself: it takes no list of servers".into());
    }
    let mut parts = Vec::new();
    match hint.stripes {
        Some(ALL) => return Err("CephFS wants a number of stripes".into()),
        Some(stripes) => parts.push(format!("stripe_count={stripes}")),
        None => {}
    }
    if let Some(bytes) = hint.stripe_bytes {
        if bytes % (64 << 10) != 0 {
            return Err("a stripe of CephFS is a multiple of 64 KiB".into());
        }
        let object_bytes = (CEPH_OBJECT_BYTES / bytes * bytes).max(bytes);
        parts.push(format!("stripe_unit={bytes} object_size={object_bytes}"));
    }
    parts.extend(hint.pool.as_ref().map(|pool| format!("pool={pool}")));
    Ok(parts.join(" "))
}

/// The chunks of MooseFS have one size, and lie where its storage class lets them.
fn moosefs_class(hint: &Hint) -> Result<&str, String> {
    match (&hint.pool, hint) {
        (Some(class), Hint { stripes: None, stripe_bytes: None, servers, .. }) if servers.is_empty() => {
            Ok(class)
        }
        _ => Err("MooseFS takes a storage class only: `pool:CLASS`".into()),
    }
}

/// Creates `path` with a layout, as [`create`], for a caller that has no descriptor of its
/// directory.
///
/// # Errors
/// As [`create`].
pub fn create_at(
    path: &Path,
    mode: u32,
    hint: &Hint,
    set_class: impl FnOnce(BorrowedFd<'_>, &str) -> io::Result<()>,
) -> Result<bool, NotLaid> {
    let failed = |e: io::Error| NotLaid { is_created: false, why: e.to_string() };
    let invalid = || failed(io::ErrorKind::InvalidInput.into());
    let name = path.file_name().ok_or_else(invalid)?;
    let name = std::ffi::CString::new(std::os::unix::ffi::OsStrExt::as_bytes(name)).map_err(|_| invalid())?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir: OwnedFd = openat(rustix::fs::CWD, parent, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
    let real = std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())).map_err(failed)?;
    create((dir.as_fd(), &real), &name, mode, hint, set_class)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(text: &str) -> Hint {
        text.parse().unwrap()
    }

    #[test]
    fn cephfs_gets_objects_that_hold_whole_stripes() {
        let layout = |text: &str| ceph_layout(&hint(text));
        assert_eq!(
            layout("stripes:8,size:1MiB").unwrap(),
            "stripe_count=8 stripe_unit=1048576 object_size=4194304"
        );
        assert_eq!(layout("size:3MiB").unwrap(), "stripe_unit=3145728 object_size=3145728");
        assert_eq!(layout("size:8MiB,pool:ssd").unwrap(), "stripe_unit=8388608 object_size=8388608 pool=ssd");
        for text in ["servers:1", "stripes:all", "size:1000"] {
            assert!(layout(text).is_err(), "{text}");
        }
    }

    #[test]
    fn moosefs_takes_a_class_and_nothing_else() {
        assert_eq!(moosefs_class(&hint("pool:2")).unwrap(), "2");
        for text in ["stripes:2", "pool:2,size:1MiB", "pool:2,servers:1"] {
            assert!(moosefs_class(&hint(text)).unwrap_err().contains("storage class"), "{text}");
        }
    }

    #[test]
    fn a_file_system_without_layouts_says_so_and_creates_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let no = create_at(&path, 0o644, &hint("stripes:2"), |_, _| Ok(())).unwrap_err();
        assert!(!no.is_created && no.why.contains("takes no layout hints"), "{no:?}");
        assert!(!path.exists());
    }
}
