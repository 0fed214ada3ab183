//! The marker of a set of checkpoints: a file that exists when all files of the set are on the PFS,
//! and not before.
//!
//! The path is the user's, and this agent may be root: a thread with the user's rights, and no
//! others, creates it, below the mount and without following links.

use super::sets::{DueMarker, path_of};
use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, fsync, open, openat, openat2, renameat, unlinkat};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

/// What is in a marker: the set's files with length and mtime, by their names below its directory.
pub fn text(due: &DueMarker) -> Vec<u8> {
    let files: Vec<_> = due
        .files
        .iter()
        .map(|file| {
            let name = path_of(file).strip_prefix(&due.directory).unwrap_or(path_of(file));
            serde_json::json!({
                "name": name.to_string_lossy(), "bytes": file.bytes, "mtime_ns": file.mtime_ns
            })
        })
        .collect();
    let mut text = serde_json::json!({ "set": due.set, "of": due.selector, "files": files }).to_string();
    text.push('\n');
    text.into_bytes()
}

/// Writes the marker at `path`, below the mount at `root`, in one step: it is there whole, and
/// durable, or as before.
///
/// # Errors
/// What the PFS returns.
pub fn write(root: &Path, path: &Path, owner: (u32, u32), text: &[u8]) -> io::Result<()> {
    as_user(owner, || {
        let (dir, name) = directory(root, path)?;
        let new = format!(".{name}.forebay-new");
        remove_name(&dir, &new)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = std::fs::File::from(openat(&dir, &new, flags, Mode::from(0o644))?);
        file.write_all(text)?;
        file.sync_all()?;
        drop(file);
        renameat(&dir, &new, &dir, name)?;
        Ok(fsync(&dir)?)
    })
}

/// Removes the marker at `path`.
///
/// # Errors
/// What the PFS returns.
pub fn remove(root: &Path, path: &Path, owner: (u32, u32)) -> io::Result<()> {
    as_user(owner, || {
        let (dir, name) = directory(root, path)?;
        remove_name(&dir, name)
    })
}

fn remove_name(dir: &OwnedFd, name: &str) -> io::Result<()> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// The directory of `path`, opened below `root`, and its name there.
fn directory<'a>(root: &Path, path: &'a Path) -> io::Result<(OwnedFd, &'a str)> {
    let outside = || io::Error::other("its path is not below the mount any more");
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(outside)?;
    let root = root.canonicalize()?;
    let below = path.parent().and_then(|parent| parent.strip_prefix(&root).ok()).ok_or_else(outside)?;
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let root = open(&root, flags, Mode::empty())?;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    Ok((openat2(root, below, flags, Mode::empty(), beneath)?, name))
}

/// Does `work` with the rights of a user and group.
fn as_user<R: Send>((uid, gid): (u32, u32), work: impl FnOnce() -> io::Result<R> + Send) -> io::Result<R> {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || uid == 0 {
        return work();
    }
    let in_thread = || {
        // SAFETY: the raw calls change this thread alone, which ends with the work; no pointers.
        // The second call of each returns what is set: -1 is not a user.
        let is_user = unsafe {
            libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) == 0
                && libc::syscall(libc::SYS_setfsgid, gid) >= 0
                && libc::syscall(libc::SYS_setfsuid, uid) >= 0
                && libc::syscall(libc::SYS_setfsgid, -1_i32) == libc::c_long::from(gid)
                && libc::syscall(libc::SYS_setfsuid, -1_i32) == libc::c_long::from(uid)
        };
        if is_user {
            work()
        } else {
            Err(io::Error::other("the kernel does not let the agent act as the user"))
        }
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("marker".into()).spawn_scoped(scope, in_thread)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the agent failed")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_replaced_as_a_whole_and_never_through_a_link() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a");
        std::fs::create_dir(&dir).unwrap();
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let path = dir.join("DONE");
        for text in [&b"one"[..], b"two"] {
            // What a crash has left does not matter.
            std::fs::write(dir.join(".DONE.forebay-new"), b"half").unwrap();
            write(root.path(), &path, own, text).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), text);
        }
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        std::os::unix::fs::symlink(&dir, root.path().join("link")).unwrap();
        assert!(write(root.path(), &root.path().join("link/DONE"), own, b"x").is_err());
        let elsewhere = tempfile::tempdir().unwrap();
        assert!(write(root.path(), &elsewhere.path().join("DONE"), own, b"x").is_err());
        remove(root.path(), &path, own).unwrap();
        remove(root.path(), &path, own).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn the_agent_of_root_writes_a_marker_with_the_users_rights_only() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(root.path(), Some(0), Some(0)).unwrap();
        let path = root.path().join("DONE");
        let refused = write(root.path(), &path, (61_001, 61_001), b"x").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        std::os::unix::fs::chown(root.path(), Some(61_001), Some(61_001)).unwrap();
        write(root.path(), &path, (61_001, 61_001), b"x").unwrap();
        let written = std::fs::metadata(&path).unwrap();
        let owner =
            (std::os::unix::fs::MetadataExt::uid(&written), std::os::unix::fs::MetadataExt::gid(&written));
        assert_eq!(owner, (61_001, 61_001));
    }
}
