//! The lab's directory: made, or found fit, and marked, so that `down` may delete it.
//!
//! A lab is started by root, and its directory is often in a place where everybody may write
//! (`/dev/shm`). The user that made it first owns what is in it: a link in place of the mark would
//! make root write over any file. So it must be our own, and closed to others' writes, before
//! anything in it is trusted.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::plan::Place;
use crate::{LabError, mountinfo};

/// Servers and agents run as root, but the file system mounted below is anybody's: programs of
/// other users on the nodes have to pass through.
const MODE: u32 = 0o711;

/// More than the name of any lab: anything longer is not a mark.
const MARK_MAX_BYTES: u64 = 64;

/// Makes the lab's directory and marks it as ours, so that `down` may delete it.
///
/// # Errors
/// If it cannot be made, or if the existing one cannot be used, with the reason.
pub fn claim(place: &Place) -> Result<(), LabError> {
    let dir = &place.dir;
    let failed = |e: io::Error| LabError::io(format!("cannot make the lab's directory {}", dir.display()), e);
    let refuse = |why: String| Err(LabError::new(format!("{} {why}", dir.display())));
    make(dir).map_err(failed)?;
    if is_mount_point(dir) {
        return refuse(
            "is a mount point, which `forebay lab down` could not delete: name a directory below it with --dir"
                .to_owned(),
        );
    }
    if let Some(why) = fault(dir).map_err(failed)? {
        return refuse(format!(
            "{why}; the lab's directory must be our own and closed to others' writes: name another with --dir, or \
             remove this one if nobody needs it"
        ));
    }
    match owner(place)? {
        Some(lab) if lab == place.name => {}
        Some(lab) => {
            return refuse(format!(
                "belongs to lab `{lab}`: name another with --dir, or end that lab first, `forebay lab down --name {lab}`"
            ));
        }
        None if is_empty(place).map_err(failed)? => mark(place).map_err(failed)?,
        None => {
            return refuse(
                "is not empty and no lab's directory; `forebay lab down` would delete it: name another with --dir"
                    .to_owned(),
            );
        }
    }
    for part in ["log", "nodes", "servers"] {
        fs::create_dir_all(dir.join(part)).map_err(failed)?;
    }
    fs::create_dir_all(place.pfs()).and_then(|()| fs::create_dir_all(place.own())).map_err(failed)
}

/// Whose mark the directory bears; `None` if it bears none, or an incompletely written one.
///
/// # Errors
/// If it cannot be read, or is a link.
pub fn owner(place: &Place) -> Result<Option<String>, LabError> {
    let marker = place.marker();
    let failed = |e: io::Error| {
        LabError::io(format!("cannot read {}, which should be the mark of a lab", marker.display()), e)
    };
    // Never through a link, and without waiting if it is a pipe.
    let opened = File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&marker);
    let file = match opened {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let mut text = String::new();
    file.take(MARK_MAX_BYTES).read_to_string(&mut text).map_err(failed)?;
    let lab = text.trim();
    Ok((!lab.is_empty()).then(|| lab.to_owned()))
}

/// Why others could tamper with a directory's content; `None` if the directory is our own and
/// closed to their writes.
///
/// # Errors
/// If it cannot be looked at.
pub fn fault(dir: &Path) -> io::Result<Option<String>> {
    let own = rustix::process::geteuid().as_raw();
    Ok(fault_of(&fs::symlink_metadata(dir)?, own))
}

fn fault_of(metadata: &Metadata, own: u32) -> Option<String> {
    if !metadata.is_dir() {
        return Some("is no directory".to_owned());
    }
    if metadata.uid() != own {
        return Some(format!("belongs to user {}, not to {own}", metadata.uid()));
    }
    (metadata.mode() & 0o022 != 0).then(|| "can be written by other users".to_owned())
}

fn make(dir: &Path) -> io::Result<()> {
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(MODE).create(dir) {
        // Whatever exists there: it is examined afterwards.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        // Independent of this process's umask.
        made => made.and_then(|()| fs::set_permissions(dir, fs::Permissions::from_mode(MODE))),
    }
}

fn is_mount_point(dir: &Path) -> bool {
    // The kernel reports mounts by paths without links.
    let is_mounted = |real: &Path| mountinfo::read().iter().any(|mount| mount.mount_point == real);
    fs::canonicalize(dir).is_ok_and(|real| is_mounted(&real))
}

/// Whether the directory is empty, except for an empty mark.
fn is_empty(place: &Place) -> io::Result<bool> {
    for entry in fs::read_dir(&place.dir)? {
        if entry?.path() != place.marker() {
            return Ok(false);
        }
    }
    Ok(true)
}

fn mark(place: &Place) -> io::Result<()> {
    let marker = place.marker();
    match fs::remove_file(&marker) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut file = File::options().write(true).create_new(true).open(&marker)?;
    file.write_all(format!("{}\n", place.name).as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn place(name: &str, dir: &Path) -> Place {
        Place { name: name.to_owned(), dir: dir.to_owned() }
    }

    /// Our own and closed, whatever the umask of this process.
    fn closed_directory(path: &Path) {
        DirBuilder::new().mode(0o700).create(path).unwrap();
    }

    fn refusal(place: &Place) -> String {
        claim(place).unwrap_err().to_string()
    }

    #[test]
    fn a_new_directory_is_closed_and_the_same_labs_again_and_no_others() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("a/b");
        claim(&place("one", &dir)).unwrap();
        assert_eq!(fs::symlink_metadata(&dir).unwrap().mode() & 0o066, 0);
        assert_eq!(owner(&place("one", &dir)).unwrap().as_deref(), Some("one"));
        claim(&place("one", &dir)).unwrap();
        let message = refusal(&place("two", &dir));
        assert!(message.contains("belongs to lab `one`") && message.contains("--name one"), "{message}");
        assert_eq!(fs::read(dir.join(".forebay-lab")).unwrap(), b"one\n");
    }

    #[test]
    fn an_empty_directory_of_our_own_is_taken_and_one_with_something_in_it_is_not() {
        let parent = tempfile::tempdir().unwrap();
        let [empty, cut_short, full] = ["empty", "cut", "full"].map(|name| parent.path().join(name));
        for dir in [&empty, &cut_short, &full] {
            closed_directory(dir);
        }
        claim(&place("one", &empty)).unwrap();
        fs::write(cut_short.join(".forebay-lab"), "").unwrap();
        claim(&place("one", &cut_short)).unwrap();
        assert_eq!(fs::read(cut_short.join(".forebay-lab")).unwrap(), b"one\n");
        fs::write(full.join("precious"), "x").unwrap();
        let message = refusal(&place("one", &full));
        assert!(message.contains("is not empty") && message.contains("--dir"), "{message}");
        assert!(!full.join(".forebay-lab").exists());
    }

    #[test]
    fn a_mark_that_is_a_link_is_neither_believed_nor_written() {
        let parent = tempfile::tempdir().unwrap();
        let (dir, precious) = (parent.path().join("lab"), parent.path().join("precious"));
        closed_directory(&dir);
        for text in ["", "one\n"] {
            fs::write(&precious, text).unwrap();
            symlink(&precious, dir.join(".forebay-lab")).unwrap();
            let message = refusal(&place("one", &dir));
            assert!(message.contains("the mark of a lab"), "{message}");
            assert_eq!(fs::read_to_string(&precious).unwrap(), text);
            fs::remove_file(dir.join(".forebay-lab")).unwrap();
        }
    }

    #[test]
    fn a_directory_that_others_own_or_can_write_or_link_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let (dir, link) = (parent.path().join("lab"), parent.path().join("link"));
        closed_directory(&dir);
        symlink(&dir, &link).unwrap();
        let message = refusal(&place("one", &link));
        assert!(message.contains("link is no directory"), "{message}");
        for mode in [0o720, 0o702] {
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
            let message = refusal(&place("one", &dir));
            assert!(message.contains("can be written by other users; "), "{message}");
            assert!(message.contains("name another with --dir, or remove this one"), "{message}");
        }
        let metadata = fs::symlink_metadata(&dir).unwrap();
        let why = fault_of(&metadata, metadata.uid() ^ 1).unwrap();
        assert!(why.starts_with(&format!("belongs to user {}, ", metadata.uid())), "{why}");
        assert!(fs::read_dir(&dir).unwrap().next().is_none());
    }

    #[test]
    fn a_mount_point_is_refused() {
        let message = refusal(&place("one", Path::new("/proc")));
        assert!(message.starts_with("/proc is a mount point"), "{message}");
        assert!(message.contains("name a directory below it with --dir"), "{message}");
    }
}
