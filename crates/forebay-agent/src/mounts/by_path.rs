//! Opening a file by its name, for those who have no descriptor: requests of the coordinator and
//! requests of peers.
//!
//! On one node a client's descriptor is the proof that its bytes may be had. Between nodes there is
//! only a [`FileRef`]: a mount, a path below its root, and a version. The agent opens that path
//! with its own credentials and beneath the root (no `..`, no symbolic link that leads out, none of
//! the kernel's magic links), takes only a regular file on the mount's own device, and believes it
//! only if its version is the one named. What it fetches this way goes into the tier, from where
//! only programs that show a descriptor of their own get it, so nobody gets anything by knowing a
//! name. What the agent may not open is refused; programs then read it with their own rights.

use super::MountState;
use super::admit::{Admitted, NoFile, admit};
use forebay_wire::{FileRef, Refusal};
use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A file opened by its name.
#[derive(Debug)]
pub struct ByPath {
    /// Its descriptor, for reading.
    pub fd: OwnedFd,
    /// Its mount, and what the PFS reports about it now; the version is the requested one.
    pub file: Admitted,
}

/// Why a file could not be opened by its name.
#[derive(Debug)]
pub enum NoPath {
    /// It is another version by now, or gone.
    Changed,
    /// Not acceptable, or not the agent's to open.
    Refused(Refusal),
    /// The PFS failed.
    Pfs(io::Error),
}

/// Opens `file` as this agent sees it. It may still be changing: the caller seals it
/// ([`crate::mounts::seal`]).
///
/// # Errors
/// See [`NoPath`].
pub fn open_by_path(mounts: &[MountState], file: &FileRef) -> Result<ByPath, NoPath> {
    let Some(number) = mounts.iter().position(|m| m.label() == file.mount) else {
        return Err(NoPath::Refused(Refusal::NotOnMount));
    };
    let fd = open_beneath(mounts[number].root(), &file.path)?;
    let admitted = match admit(mounts, fd.as_fd()) {
        Ok(admitted) if admitted.mount == number => admitted,
        Ok(_) => return Err(NoPath::Refused(Refusal::NotOnMount)),
        Err(NoFile::Refused(refusal)) => return Err(NoPath::Refused(refusal)),
        Err(NoFile::Pfs(e)) => return Err(NoPath::Pfs(e)),
    };
    if admitted.facts.version != file.version {
        return Err(NoPath::Changed);
    }
    Ok(ByPath { fd: mounts[number].for_fetching(fd), file: admitted })
}

fn open_beneath(root: &Path, path: &[u8]) -> Result<OwnedFd, NoPath> {
    // The root is opened each time: a PFS that is mounted again is another directory under the same
    // name.
    let dir = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| NoPath::Pfs(e.into()))?;
    // Without waiting: somebody may have put a pipe in the file's place.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    loop {
        match openat2(&dir, OsStr::from_bytes(path), flags, Mode::empty(), resolve) {
            Ok(fd) => return Ok(fd),
            // BENEATH gives up if a directory on the way is renamed meanwhile.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Err(NoPath::Changed),
            Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => {
                return Err(NoPath::Refused(Refusal::NotAllowed));
            }
            Err(e @ (rustix::io::Errno::XDEV | rustix::io::Errno::LOOP | rustix::io::Errno::NXIO)) => {
                let why = format!("the path does not lead to a file below the mount's root ({e})");
                return Err(NoPath::Refused(Refusal::Invalid(why)));
            }
            Err(e) => return Err(NoPath::Pfs(e.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MountConfig;
    use forebay_pfs::{FileFacts, Revalidate};
    use std::fs::File;
    use std::os::unix::fs::symlink;

    fn reference(path: &str, of: &Path) -> FileRef {
        let facts = FileFacts::of(File::open(of).unwrap().as_fd(), Revalidate::Force).unwrap();
        FileRef { mount: "pfs".into(), path: path.into(), version: facts.version }
    }

    #[test]
    fn only_the_named_version_of_a_regular_file_below_the_root_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("pfs");
        std::fs::create_dir_all(root.join("sub")).unwrap();
        let (inside, outside) = (root.join("sub/a"), dir.path().join("b"));
        std::fs::write(&inside, "one").unwrap();
        std::fs::write(&outside, "two").unwrap();
        symlink("sub/a", root.join("within")).unwrap();
        symlink(&outside, root.join("away")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, root.join("pipe"), Mode::RUSR).unwrap();
        let mounts = [MountState::new(MountConfig::new("pfs", &root)).unwrap()];
        let try_open = |path: &str, of: &Path| open_by_path(&mounts, &reference(path, of));

        assert_eq!(try_open("sub/a", &inside).unwrap().file.facts.version.size, 3);
        assert!(try_open("within", &inside).is_ok());
        for path in ["away", "../b", "sub/../../b", "/proc/self/exe", "sub", "pipe"] {
            assert!(matches!(try_open(path, &outside), Err(NoPath::Refused(_))), "{path}");
        }
        assert!(matches!(try_open("gone", &inside), Err(NoPath::Changed)));
        let before = reference("sub/a", &inside);
        std::fs::write(&inside, "three").unwrap();
        assert!(matches!(open_by_path(&mounts, &before), Err(NoPath::Changed)));
        let elsewhere = FileRef { mount: "other".into(), ..reference("sub/a", &inside) };
        assert!(matches!(open_by_path(&mounts, &elsewhere), Err(NoPath::Refused(Refusal::NotOnMount))));
    }
}
