//! Locks for working on a lab, for installing packages, and for choosing addresses.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::LabError;

/// Where the locks are, and the records of labs.
pub const RECORDS: &str = "/run/forebay-lab";

/// The holder is the only one to change the lab. Released when dropped, or when the process dies.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Releases the lock and removes its file; a process that has opened the file meanwhile
    /// notices, see [`lab`].
    pub fn remove(self) {
        // Left behind it does no harm.
        let _ = fs::remove_file(&self.path);
    }

    /// Whether the locked file is still the one that others would lock.
    fn is_current(&self) -> bool {
        let (Ok(ours), Ok(theirs)) = (self.file.metadata(), fs::metadata(&self.path)) else { return false };
        ours.ino() == theirs.ino() && ours.dev() == theirs.dev()
    }
}

/// Takes the lock of a lab.
///
/// # Errors
/// If another process holds it: this does not wait, since `up` may take long and a `down` should
/// say so immediately.
pub fn lab(lab: &str) -> Result<Lock, LabError> {
    loop {
        let lock = open_lock(&format!("{lab}.lock"))?;
        match flock(&lock.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if lock.is_current() => return Ok(lock),
            // Another process has removed it since it was opened: try again with the current file.
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let message =
                    format!("another `forebay lab` is at work on lab `{lab}`; wait for it or end it");
                return Err(LabError::new(message));
            }
            Err(e) => return Err(LabError::io(format!("cannot lock {}", lock.path.display()), e)),
        }
    }
}

/// Takes the right to install packages, which only one process has at a time: so a policy that
/// keeps services from starting meanwhile is its own. Waits for its turn if `wait`; otherwise
/// `None` if another process has it.
///
/// # Errors
/// If it cannot be taken.
pub fn packages(wait: bool) -> Result<Option<Lock>, LabError> {
    let lock = open_lock(".packages")?;
    let operation =
        if wait { FlockOperation::LockExclusive } else { FlockOperation::NonBlockingLockExclusive };
    match flock(&lock.file, operation) {
        Ok(()) => Ok(Some(lock)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(e) => Err(LabError::io(format!("cannot lock {}", lock.path.display()), e)),
    }
}

/// Takes the right to choose addresses for a new lab; waits for its turn.
///
/// # Errors
/// If it cannot be taken.
pub fn subnets() -> Result<Lock, LabError> {
    let lock = open_lock(".subnets")?;
    flock(&lock.file, FlockOperation::LockExclusive)
        .map_err(|e| LabError::io(format!("cannot lock {RECORDS}"), e))?;
    Ok(lock)
}

fn open_lock(name: &str) -> Result<Lock, LabError> {
    let path = Path::new(RECORDS).join(name);
    let failed = |e| LabError::io(format!("cannot lock {}", path.display()), e);
    fs::create_dir_all(RECORDS).map_err(failed)?;
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
    Ok(Lock { file, path })
}
