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
use std::time::Duration;

use forebay_client::Client;

use crate::{kernel, own_files, shared};

/// Device and inode of the standard error of `forebay run`, separated by a colon.
const VARIABLE: &CStr = c"FOREBAY_SAY_TO";
/// The first process of the job that requests this name from the agent writes the line.
const ONCE: &str = "nothing is served";

/// Limit on the opened files that are examined to find one that the process might read unseen.
const LOOKS: u32 = 512;
const NAME_BYTES: usize = 16;
/// How long a program that ends waits for the agent.
const PATIENCE: Duration = Duration::from_millis(100);

static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);
static FAULTS_BEFORE: AtomicU64 = AtomicU64::new(0);
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
    /// The program has mapped it, and the mapping is the PFS's.
    NotMapped,
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
        // A script that has executed this program may have had children.
        FAULTS_BEFORE.store(faults_of_children(), Relaxed);
        // SAFETY: the handler touches atomics only.
        unsafe { libc::pthread_atfork(Some(has_child), None, None) };
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

/// Notes that the process has a child, which may read what the process has opened.
unsafe extern "C" fn has_child() {
    UNSEEN.store(null_mut(), Relaxed);
    LOOKED_AT.store(LOOKS, Relaxed);
}

/// Page faults of the children that the process has waited for. If there are more than before, it
/// had a child that no handler has seen (`vfork`).
fn faults_of_children() -> u64 {
    // SAFETY: zeroes are a valid value, and a place for the result.
    unsafe {
        let mut usage: libc::rusage = core::mem::zeroed();
        kernel::sys!(SYS_getrusage, libc::RUSAGE_CHILDREN, &raw mut usage);
        usage.ru_minflt.unsigned_abs()
    }
}

/// Whether [`say`] has a line to write.
pub fn has_words() -> bool {
    is_on() && !(LEFT.load(Relaxed).is_null() && UNSEEN.load(Relaxed).is_null())
}

/// Whether this process may write lines of ours to its standard error.
fn may_say() -> bool {
    own_files::identity(libc::STDERR_FILENO) == Some((DEVICE.load(Relaxed), INODE.load(Relaxed)))
}

/// Writes a line that is not about reads, unless another process of the run has said so of `what`.
pub fn say_once(client: &Client, what: &str, words: &str) {
    if may_say() && client.is_first_in_job(what, PATIENCE).unwrap_or(true) {
        write_line(words.as_bytes());
    }
}

/// Writes the line, unless another process of the run has. Called when the program ends.
pub fn say(client: &Client) {
    if !may_say() {
        return;
    }
    // SAFETY: what is stored there is never freed.
    let left = unsafe { LEFT.load(Acquire).as_ref().or(UNSEEN.load(Acquire).as_ref()) };
    let Some(left) = left.filter(|_| !IS_SERVED.swap(true, AcqRel)) else { return };
    if matches!(left.why, Why::Unseen) && faults_of_children() != FAULTS_BEFORE.load(Relaxed) {
        return;
    }
    // Without an agent each program says why it was served nothing.
    let is_first = client.is_first_in_job(ONCE, PATIENCE);
    if !is_first.unwrap_or(matches!(left.why, Why::NotServed(_))) {
        return;
    }
    write_line(&[name().as_slice(), b": ", &left.in_words()].concat());
}

fn write_line(words: &[u8]) {
    let mut line = [b"forebay: ", words].concat();
    // Names may have any bytes, which a terminal could take for commands.
    line.iter_mut().filter(|byte| byte.is_ascii_control()).for_each(|byte| *byte = b'?');
    line.push(b'\n');
    write(&line);
}

/// Writes to standard error if it accepts the line immediately, so that the program does not wait
/// for a reader at its end, nor end by a signal.
fn write(line: &[u8]) {
    const SET_BYTES: usize = 8;
    let mut blocked = 1_u64 << (libc::SIGPIPE - 1) | 1 << (libc::SIGTTOU - 1);
    let (mut before, mut pending) = (0_u64, 0_u64);
    let mut ready = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: places for sets of signals, one descriptor, a line of that length, and a time.
    unsafe {
        if kernel::sys!(SYS_ppoll, &raw mut ready, 1, &raw const now, 0) != 1
            || ready.revents != libc::POLLOUT
        {
            return;
        }
        kernel::sys!(SYS_rt_sigpending, &raw mut pending, SET_BYTES);
        kernel::sys!(SYS_rt_sigprocmask, libc::SIG_BLOCK, &raw const blocked, &raw mut before, SET_BYTES);
        let written = kernel::sys!(SYS_write, libc::STDERR_FILENO, line.as_ptr(), line.len());
        blocked &= !pending;
        if written == -(libc::EPIPE as isize) {
            kernel::sys!(SYS_rt_sigtimedwait, &raw const blocked, 0, &raw const now, SET_BYTES);
        }
        kernel::sys!(SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const before, 0, SET_BYTES);
    }
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
                "opened but not read by `read` or `pread`, nor mapped",
                "to serve reads through C's stdio from the tier, use `forebay run --mount` or a mount",
            ),
            Why::NotMapped => (
                "mapped, and not whole in the tier, not to its end, or changed a moment ago",
                "load it beforehand (`forebay load`), or use `forebay run --mount` or a mount",
            ),
            Why::NotForReading => (
                "opened for reading and writing, or with O_DIRECT",
                "open it for reading only, without O_DIRECT (in Fortran: action='read')",
            ),
            Why::IsWritten => {
                ("also open for writing in this program", "close that descriptor before you read the file")
            }
            Why::TooMany => (
                "beyond the descriptors that the library may use (a quarter of `ulimit -n`)",
                "raise `ulimit -n`",
            ),
            Why::NotServed(why) => (why.as_str(), "`forebay doctor` checks the agent"),
        };
        let path = self.path.as_os_str().as_bytes();
        let words = format!(": {what}; {remedy} (`forebay run --quiet` switches this line off)");
        [b"nothing was read from the tier. ", path, words.as_bytes()].concat()
    }
}
