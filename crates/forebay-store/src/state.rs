//! The agent's own directory: its owner, and the tier that belongs to it.
//!
//! The directory is often where everybody may write (`/tmp/forebay-UID`). The user who made it
//! first owns what is in it: the log, the socket, the keeper's socket. So it must be the agent's
//! own, and closed to others' writes.
//!
//! Which backing the tier has taken is written down here. A later command that drops the cache must
//! find the same one: guessing could mount a fresh tmpfs, empty that, and leave the real cache in
//! memory.

use crate::mounting::{Backing, backing_name, explain};
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, flock, statat};
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

const BACKINGS: [Backing; 4] = [Backing::Auto, Backing::Mount, Backing::Namespace, Backing::Directory];

fn record_path(state_dir: &Path) -> PathBuf {
    state_dir.join("backing")
}

/// Makes the directory, if there is none, and locks it.
pub(crate) fn lock_dir(path: &Path) -> io::Result<OwnedFd> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let dir = OwnedFd::from(std::fs::File::open(path)?);
    flock(&dir, FlockOperation::NonBlockingLockExclusive)?;
    Ok(dir)
}

/// Makes the state directory, or checks that the existing one is safe to use.
///
/// # Errors
/// It cannot be made; or see [`check_own`].
pub fn claim(state_dir: &Path) -> io::Result<()> {
    // Before anything is made in a place that is not safe.
    let refuse = |why: io::Error| {
        io::Error::other(format!("{why}; give the agent a directory of its own with --state-dir"))
    };
    let above = state_dir.ancestors().skip(1).find(|above| above.exists()).unwrap_or(Path::new("."));
    let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
    check_above(above).map_err(refuse)?;
    // 0755: clients of other users have to reach the socket. The mask of the process may take more
    // away.
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(state_dir);
    made.map_err(|e| explain(e, format!("cannot make {}", state_dir.display())))?;
    check_own(state_dir).map_err(refuse)
}

/// Checks that what this process puts into a directory stays its own: no other user, root aside,
/// can write into the directory or exchange it.
///
/// # Errors
/// It is not a directory, or it is a link; it belongs to another user; others may write into it, or
/// into a directory above it.
pub fn check_own(directory: &Path) -> io::Result<()> {
    let stat = statat(CWD, directory, AtFlags::SYMLINK_NOFOLLOW)?;
    let own = rustix::process::geteuid().as_raw();
    let refuse = |why: String| Err(io::Error::other(format!("{} {why}", directory.display())));
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return refuse("is not a directory".into());
    }
    if stat.st_uid != own {
        return refuse(format!("belongs to user {}, not to {own}", stat.st_uid));
    }
    if stat.st_mode & 0o022 != 0 {
        return refuse("is writable by other users".into());
    }
    let above = std::path::absolute(directory)?;
    above.parent().map_or(Ok(()), check_above)
}

/// Checks that no other user, root aside, can exchange what is in `directory`: neither there nor
/// further up, nor through a link on the way.
fn check_above(directory: &Path) -> io::Result<()> {
    let named = std::path::absolute(directory)?;
    let real = named.canonicalize()?;
    for above in named.ancestors().chain(real.ancestors()) {
        let stat = statat(CWD, above, AtFlags::SYMLINK_NOFOLLOW)?;
        let own = rustix::process::geteuid().as_raw();
        let refuse = |why: &str| {
            Err(io::Error::other(format!("{} lies in {}, {why}", named.display(), above.display())))
        };
        if stat.st_uid != 0 && stat.st_uid != own {
            return refuse(&format!("which belongs to user {}, who could exchange it", stat.st_uid));
        }
        let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        // Many systems give each user a group without other members.
        let is_of_own_group = stat.st_uid == own && stat.st_gid == rustix::process::getegid().as_raw();
        let writers = if is_of_own_group { 0o002 } else { 0o022 };
        if !is_link && stat.st_mode & writers != 0 && stat.st_mode & 0o1000 == 0 {
            return refuse("into which other users may write, who could exchange it");
        }
    }
    Ok(())
}

/// Ensures that nothing that this process makes is writable by others, whatever the user's mask is.
pub fn mask_writers() {
    use rustix::fs::Mode;
    use rustix::process::umask;
    let before = umask(Mode::WGRP | Mode::WOTH);
    umask(before | Mode::WGRP | Mode::WOTH);
}

/// Writes down where the tier is.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn record(state_dir: &Path, backing: Backing, place: &Path) -> io::Result<()> {
    let place = std::path::absolute(place)?;
    let text = [backing_name(backing).as_bytes(), b"\n", place.as_os_str().as_bytes()].concat();
    let path = record_path(state_dir);
    // Renamed into place: a record is never half there.
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, text)?;
    std::fs::rename(&fresh, &path).map_err(|e| explain(e, format!("cannot write {}", path.display())))
}

/// Where the tier is; `None` if nothing is written down.
///
/// # Errors
/// The record cannot be read, or says nothing that makes sense.
pub(crate) fn recorded(state_dir: &Path) -> io::Result<Option<(Backing, PathBuf)>> {
    let path = record_path(state_dir);
    let text = match std::fs::read(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|e| explain(e, format!("cannot read {}", path.display())))?,
    };
    let at = text.iter().position(|byte| *byte == b'\n').unwrap_or(text.len());
    let (name, place) = (&text[..at], text.get(at + 1..).unwrap_or_default());
    match BACKINGS.into_iter().find(|b| backing_name(*b).as_bytes() == name) {
        Some(backing) if !place.is_empty() => Ok(Some((backing, OsStr::from_bytes(place).into()))),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} makes no sense", path.display()))),
    }
}

/// Forgets where the tier was.
///
/// # Errors
/// The record cannot be removed.
pub(crate) fn forget(state_dir: &Path) -> io::Result<()> {
    match std::fs::remove_file(record_path(state_dir)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_record_is_read_as_it_was_written_and_nonsense_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(recorded(dir.path()).unwrap(), None);
        let place = Path::new(OsStr::from_bytes(b"/a b/\xff\n/c"));
        record(dir.path(), Backing::Directory, place).unwrap();
        assert_eq!(recorded(dir.path()).unwrap(), Some((Backing::Directory, place.to_owned())));
        std::fs::write(record_path(dir.path()), "floppy\n/a").unwrap();
        assert!(recorded(dir.path()).unwrap_err().to_string().contains("makes no sense"));
        forget(dir.path()).unwrap();
        forget(dir.path()).unwrap();
        assert_eq!(recorded(dir.path()).unwrap(), None);
    }

    #[test]
    fn a_directory_that_others_can_write_or_link_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        claim(&state).unwrap();
        std::fs::set_permissions(&state, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(claim(&state).unwrap_err().to_string().contains("is writable by other users"));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        assert!(claim(&link).unwrap_err().to_string().contains("is not a directory"));
    }

    #[test]
    fn a_directory_below_one_that_others_can_write_is_refused_unless_only_owners_can_rename_there() {
        let dir = tempfile::tempdir().unwrap();
        let shared = dir.path().join("shared");
        let state = shared.join("a/state");
        std::fs::create_dir(&shared).unwrap();
        for (mode, is_safe) in [(0o777, false), (0o1777, true), (0o755, true)] {
            std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(claim(&state).is_ok(), is_safe, "{mode:o}: {:?}", claim(&state));
            assert_eq!(state.exists(), is_safe, "it is made where it may not be used");
        }
    }
}
