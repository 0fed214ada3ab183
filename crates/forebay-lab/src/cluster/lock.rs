//! Locks of who works on a lab, who installs packages, and who chooses addresses.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::LabError;

/// Where the locks are, and the records of labs.
pub const RECORDS: &str = "/run/forebay-lab";

/// Whoever holds this is the only one to change the lab. Released when dropped, or when the
/// process dies.
#[derive(Debug)]
pub struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    /// Gives the lock back and removes its file; whoever has opened it meanwhile notices, see
    /// [`lab`].
    pub fn remove(self) {
        // Left behind it does no harm.
        let _ = fs::remove_file(&self.path);
    }

    /// Whether the file that is locked is still the one that others would lock.
    fn is_current(&self) -> bool {
        let (Ok(ours), Ok(theirs)) = (self.file.metadata(), fs::metadata(&self.path)) else { return false };
        ours.ino() == theirs.ino() && ours.dev() == theirs.dev()
    }
}

/// Takes the lock of a lab.
///
/// # Errors
/// That another holds it: this waits for nobody, for `up` may take long and a `down` should say so
/// at once.
pub fn lab(lab: &str) -> Result<Lock, LabError> {
    loop {
        let lock = open_lock(&format!("{lab}.lock"))?;
        match flock(&lock.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if lock.is_current() => return Ok(lock),
            // Somebody has removed it since it was opened: again, with the one that is there now.
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

/// Takes the right to install packages, which one has at a time: what hinders services meanwhile is
/// then its own. Waits for its turn if `wait`; else `None` if another has it.
///
/// # Errors
/// That it cannot be taken.
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
/// That it cannot be taken.
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
