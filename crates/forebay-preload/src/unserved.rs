//! Reports that a program has opened files of the PFS and read none of them from the tier: one line
//! on standard error for all programs of a `forebay run`, with the reason and a remedy.
//!
//! A program writes the line only if its standard error is that of `forebay run`. So output that a
//! program captures from its children does not change.

use core::ffi::CStr;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use forebay_client::Client;

use crate::{kernel, own_files, shared};

/// Device and inode of the standard error of `forebay run`, separated by a colon.
const VARIABLE: &CStr = c"FOREBAY_SAY_TO";
/// The first process of the job that requests this name from the agent writes the line.
const ONCE: &str = "nothing is served";

/// Limit on the opened files that are examined to find one that the process might read unseen.
const LOOKS: u32 = 512;
const NAME_BYTES: usize = 16;

static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);
static IS_SERVED: AtomicBool = AtomicBool::new(false);
static LOOKED_AT: AtomicU32 = AtomicU32::new(0);
/// The first file that was left to the PFS, and the first that was opened but not read by a call
/// that this library intercepts. Never freed.
static LEFT: AtomicPtr<Left> = AtomicPtr::new(null_mut());
static UNSEEN: AtomicPtr<Left> = AtomicPtr::new(null_mut());

struct Left {
    path: PathBuf,
    why: Why,
}

/// Why a file is left to the PFS.
pub enum Why {
    /// The program has opened it for reading, and the library has seen no read of it.
    Unseen,
    /// The program has opened it for reading and writing, or with `O_DIRECT`.
    NotForReading,
    /// The program has it open for writing as well.
    IsWritten,
    /// The library may have no more descriptors.
    TooMany,
    /// The reason that the client core gives.
    NotServed(String),
}

/// Reads whether and where the line may be written. Runs before the program begins.
pub fn attach() {
    // SAFETY: no other thread changes the environment yet; the variable is a C string.
    let identity = unsafe {
        let variable = shared::variable(VARIABLE);
        if variable.is_null() { None } else { CStr::from_ptr(variable).to_str().ok() }
    };
    let numbers = identity.and_then(|text| text.split_once(':'));
    let numbers = numbers.and_then(|(device, inode)| Some((device.parse().ok()?, inode.parse().ok()?)));
    if let Some((device, inode)) = numbers {
        DEVICE.store(device, Relaxed);
        INODE.store(inode, Relaxed);
    }
}

fn is_on() -> bool {
    INODE.load(Relaxed) != 0 && !IS_SERVED.load(Relaxed)
}

/// Whether it is still unknown if the tier serves the program.
#[inline]
pub fn is_looking() -> bool {
    is_on()
        && UNSEEN.load(Relaxed).is_null()
        && LEFT.load(Relaxed).is_null()
        && LOOKED_AT.fetch_add(1, Relaxed) < LOOKS
}

/// Notes that a file is served.
pub fn is_served() {
    IS_SERVED.store(true, Relaxed);
}

/// Notes that a file is left to the PFS.
pub fn is_left(path: &Path, why: Why) {
    let place = if matches!(why, Why::Unseen) { &UNSEEN } else { &LEFT };
    if !is_on() || !place.load(Relaxed).is_null() {
        return;
    }
    let left = Box::into_raw(Box::new(Left { path: path.to_owned(), why }));
    if place.compare_exchange(null_mut(), left, Release, Relaxed).is_err() {
        // SAFETY: made above, and nobody has seen it.
        drop(unsafe { Box::from_raw(left) });
    }
}

/// Whether [`say`] has a line to write.
pub fn has_words() -> bool {
    is_on() && !(LEFT.load(Relaxed).is_null() && UNSEEN.load(Relaxed).is_null())
}

/// Writes the line, unless another process of the run has. Called when the program ends.
pub fn say(client: &Client) {
    let here = own_files::identity(libc::STDERR_FILENO);
    if here != Some((DEVICE.load(Relaxed), INODE.load(Relaxed))) {
        return;
    }
    // SAFETY: what is stored there is never freed.
    let left = unsafe { LEFT.load(Acquire).as_ref().or(UNSEEN.load(Acquire).as_ref()) };
    let Some(left) = left.filter(|_| !IS_SERVED.swap(true, AcqRel)) else { return };
    if !client.is_first_in_job(ONCE).unwrap_or(false) {
        return;
    }
    let line = [b"forebay: ", name().as_slice(), b": ", &left.in_words(), b"\n"].concat();
    // SAFETY: a line of that length.
    unsafe { kernel::sys!(SYS_write, libc::STDERR_FILENO, line.as_ptr(), line.len()) };
}

/// The program's name.
fn name() -> Vec<u8> {
    let mut name = [0_u8; NAME_BYTES];
    // SAFETY: the kernel writes no more than there is room.
    unsafe { kernel::sys!(SYS_prctl, libc::PR_GET_NAME, name.as_mut_ptr(), 0, 0, 0) };
    name.into_iter().take_while(|byte| *byte != 0).collect()
}

impl Left {
    fn in_words(&self) -> Vec<u8> {
        let (what, remedy) = match &self.why {
            Why::Unseen => (
                "opened but not read by `read` or `pread`",
                "files that a program maps, or reads through C's stdio, need `forebay run --mount` or a mount",
            ),
            Why::NotForReading => (
                "opened for reading and writing, or with O_DIRECT",
                "open it for reading only (in Fortran, action='read')",
            ),
            Why::IsWritten => ("also open for writing in this program", "close that first"),
            Why::TooMany => ("one of too many open files", "raise `ulimit -n`"),
            Why::NotServed(why) => (why.as_str(), "`forebay doctor` checks the agent"),
        };
        let path = self.path.as_os_str().as_bytes();
        let words = format!(": {what}; {remedy} (`forebay run --quiet` does not say this)");
        [b"nothing was read from the tier. ", path, words.as_bytes()].concat()
    }
}
