//! Creates files with a layout, by the means of each file system.
//!
//! Lustre and BeeGFS take a layout only with the creation of a file, so the file is created here,
//! before the program opens it. CephFS and MooseFS take it as long as the file is empty. A hint
//! that cannot be followed leaves a file as the file system makes it by itself.

use super::creation;
use crate::layout::hint::Hint;
use rustix::fs::{Mode, OFlags, openat};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// A file does not have the requested layout.
#[derive(Debug)]
pub struct NotLaid {
    /// The file was created all the same.
    pub is_created: bool,
    /// The reason.
    pub why: String,
}

/// Creates the file `name` in the directory that is open as `dir`, whose path is `path`, with a
/// layout; `mode` are its permissions before the umask. On MooseFS, `set_class` sets the storage
/// class of the empty file. Returns `false` if there is such a file, which keeps its layout.
///
/// # Errors
/// The file does not have the layout. The caller creates it, or opens the existing one.
pub fn create(
    (dir, path): (BorrowedFd<'_>, &Path),
    name: &CStr,
    mode: u32,
    hint: &Hint,
    set_class: impl FnMut(BorrowedFd<'_>, &str) -> io::Result<()>,
) -> Result<bool, NotLaid> {
    let refused = |why: String| NotLaid { is_created: false, why };
    let Some(create) = creation(path) else {
        return Err(refused("this file system takes no layout hints".into()));
    };
    // Without these the program could not open what was created here.
    if mode & 0o600 != 0o600 {
        return Err(refused(format!("its owner could not open it again with mode {mode:#o}")));
    }
    let mut set_class = set_class;
    match create(&mut New { dir, name, mode, set_class: &mut set_class }, hint) {
        Ok(None) => Ok(false),
        Ok(Some(Ok(()))) => Ok(true),
        Ok(Some(Err(e))) => Err(NotLaid { is_created: true, why: e.to_string() }),
        Err(why) => Err(refused(why)),
    }
}

/// What came of it: `None` if the file is there already, and whether a new one has its layout. If
/// the hint cannot be followed, or the file not be created: the reason.
pub(crate) type Laid = Result<Option<io::Result<()>>, String>;

/// A file to be created.
pub(crate) struct New<'a> {
    pub dir: BorrowedFd<'a>,
    pub name: &'a CStr,
    pub mode: u32,
    pub set_class: &'a mut dyn FnMut(BorrowedFd<'_>, &str) -> io::Result<()>,
}

impl New<'_> {
    /// Creates it, empty; `None` if it is there already.
    pub fn file(&self, more: OFlags) -> Result<Option<OwnedFd>, String> {
        let exclusive = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        made(openat(self.dir, self.name, exclusive | more, Mode::from(self.mode)))
    }
}

/// `None` if the file is there already.
pub(crate) fn made<T>(created: rustix::io::Result<T>) -> Result<Option<T>, String> {
    match created {
        Err(rustix::io::Errno::EXIST) => Ok(None),
        created => created.map(Some).map_err(|e| io::Error::from(e).to_string()),
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
    set_class: impl FnMut(BorrowedFd<'_>, &str) -> io::Result<()>,
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

    #[test]
    fn a_file_system_without_layouts_says_so_and_creates_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let no = create_at(&path, 0o644, &"stripes:2".parse().unwrap(), |_, _| Ok(())).unwrap_err();
        assert!(!no.is_created && no.why.contains("takes no layout hints"), "{no:?}");
        assert!(!path.exists());
    }
}
