//! Creates new files with a layout, for programs that know nothing of it.
//!
//! `FOREBAY_LAYOUT` has one line for each pattern of paths: `PATTERN=HINT`. A file that the program
//! is about to create is created here first, with its layout ([`forebay_client::layout`]). The
//! program's own call then opens it.

use core::ffi::{CStr, c_int};
use std::ffi::{CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use forebay_client::dirty::is_match;
use forebay_client::layout::not_laid;
use forebay_client::{Client, Hint};
use libc::mode_t;
use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::{paths, shared, unserved};

const VARIABLE: &CStr = c"FOREBAY_LAYOUT";

/// Longest path of a directory.
const PATH_BYTES: usize = 4096;

/// The first pattern that a path matches counts.
static HINTS: OnceLock<Vec<(glob::Pattern, Hint)>> = OnceLock::new();

/// Reads the environment, before the program begins.
pub fn attach() {
    // SAFETY: no other thread changes the environment yet.
    let lines = unsafe {
        let lines = shared::variable(VARIABLE);
        if lines.is_null() { return } else { CStr::from_ptr(lines) }
    };
    let lines = lines.to_string_lossy();
    let hint_of = |line: &str| {
        let (pattern, hint) = line.rsplit_once('=')?;
        Some((glob::Pattern::new(pattern).ok()?, hint.parse().ok()?))
    };
    let _is_set_once = HINTS.set(lines.split('\n').filter_map(hint_of).collect());
}

/// Whether new files may get layouts.
#[inline]
pub fn is_on() -> bool {
    HINTS.get().is_some()
}

/// Creates the file if a pattern covers it and it does not exist. `is_covered` says whether a path
/// is the PFS's.
pub fn create(
    client: &Client,
    dir: c_int,
    path: &[u8],
    flags: c_int,
    mode: mode_t,
    is_covered: impl FnOnce(&[u8]) -> bool,
) -> Option<c_int> {
    let (parent, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (&b"/"[..], &path[1..]),
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&b"."[..], path),
    };
    if matches!(name, b"" | b"." | b"..") {
        return None;
    }
    // SAFETY: the program's own descriptor, for as long as the call lasts.
    let dir = if dir == libc::AT_FDCWD { CWD } else { unsafe { BorrowedFd::borrow_raw(dir) } };
    let open = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = openat(dir, OsStr::from_bytes(parent), open, Mode::empty()).ok()?;
    let mut room = vec![0_u8; PATH_BYTES];
    let real = PathBuf::from(OsStr::from_bytes(paths::of_descriptor(parent.as_raw_fd(), &mut room)));
    let whole = real.join(OsStr::from_bytes(name));
    let bytes = whole.as_os_str().as_bytes();
    let hints = HINTS.get()?;
    let (_, hint) = hints.iter().find(|(pattern, _)| is_match(pattern, bytes))?;
    if !is_covered(bytes) {
        return None;
    }
    let name = CString::new(name).ok()?;
    match client.lay_out((parent.as_fd(), &real), &name, mode, hint) {
        Ok(is_created) => is_created.then_some(flags & !libc::O_EXCL),
        Err(no) => {
            say(client, &whole, hint, &no.why);
            no.is_created.then_some(flags & !libc::O_EXCL)
        }
    }
}

/// Writes one line for each hint and reason in a run, or in a process if the agent does not answer
/// in time whether another has written it.
fn say(client: &Client, path: &Path, hint: &Hint, why: &str) {
    const SAID_MAX: usize = 64;
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let what = format!("layout {hint}: {why}");
    // A forked child must not wait for a thread that it does not have.
    let Ok(mut said) = SAID.try_lock() else { return };
    if said.len() < SAID_MAX && !said.contains(&what) {
        unserved::say_once(client, &what, &not_laid(path, hint, why));
        said.push(what);
    }
}
