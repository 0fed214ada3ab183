//! Certificates that are renewed without a restart.
//!
//! The files are looked at whenever the value is wanted, which is once for each connection, and
//! read when one of them has changed.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A value that is made of files of one directory.
pub struct Reloaded<T> {
    directory: PathBuf,
    files: &'static [&'static str],
    load: fn(&Path) -> io::Result<T>,
    state: Mutex<State<T>>,
}

struct State<T> {
    /// The files as they were when `value` was made of them.
    stamps: Vec<Stamp>,
    /// The files as they were when they last turned out to be of no use, so that this is reported
    /// once.
    useless: Option<Vec<Stamp>>,
    /// Their content is at fault. Otherwise they are read again: a process may be short of
    /// descriptors for a moment.
    stays_useless: bool,
    value: Arc<T>,
}

/// Device, inode, size and change time of a file; `None`: there is none.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

impl<T> fmt::Debug for Reloaded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloaded").field("directory", &self.directory).finish_non_exhaustive()
    }
}

impl<T> Reloaded<T> {
    /// Makes the value with `load`, which reads nothing of `directory` but `files`.
    ///
    /// # Errors
    /// What `load` returns.
    pub fn new(
        directory: &Path,
        files: &'static [&'static str],
        load: fn(&Path) -> io::Result<T>,
    ) -> io::Result<Self> {
        let stamps = stamps(directory, files);
        let value = Arc::new(load(directory)?);
        let state = Mutex::new(State { stamps, useless: None, stays_useless: false, value });
        Ok(Reloaded { directory: directory.to_owned(), files, load, state })
    }

    /// What is in the files now, or was in them when they were last of use: while they are being
    /// replaced, certificate and key do not belong together for a moment.
    pub fn get(&self) -> Arc<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = self.directory.display();
        let now = stamps(&self.directory, self.files);
        let is_known = state.useless.as_ref() == Some(&now);
        if now != state.stamps && !(is_known && state.stays_useless) {
            match (self.load)(&self.directory) {
                Ok(value) => {
                    tracing::info!("the certificates in {directory} have changed and are in use now");
                    *state =
                        State { stamps: now, useless: None, stays_useless: false, value: Arc::new(value) };
                }
                Err(e) => {
                    if !is_known {
                        tracing::warn!(
                            "the certificates in {directory} have changed; the old ones stay in use: {e}"
                        );
                    }
                    state.useless = Some(now);
                    state.stays_useless = e.kind() == io::ErrorKind::InvalidData;
                }
            }
        }
        state.value.clone()
    }
}

fn stamps(directory: &Path, files: &[&str]) -> Vec<Stamp> {
    let stamp = |file: &&str| {
        let m = std::fs::metadata(directory.join(file)).ok()?;
        Some((m.dev(), m.ino(), m.size(), m.ctime(), m.ctime_nsec()))
    };
    files.iter().map(stamp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_appears_or_goes_is_a_change_and_one_of_no_use_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a");
        let load = |directory: &Path| match std::fs::read_to_string(directory.join("a")) {
            Ok(text) if text == "useless" => Err(io::ErrorKind::InvalidData.into()),
            text => Ok(text.ok()),
        };
        let reloaded = Reloaded::new(directory.path(), &["a"], load).unwrap();
        assert_eq!(*reloaded.get(), None);
        std::fs::write(&file, "one").unwrap();
        assert_eq!(reloaded.get().as_deref(), Some("one"));
        std::fs::write(&file, "useless").unwrap();
        assert_eq!(reloaded.get().as_deref(), Some("one"));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(*reloaded.get(), None);
    }
}
