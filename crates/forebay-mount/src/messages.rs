//! Messages of the mount's process: on standard error, or in the system's log once the process is
//! in the background, where nobody reads its standard error.

use rustix::fs::{Mode, OFlags};
use std::ffi::CString;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

static IN_LOG: AtomicBool = AtomicBool::new(false);

/// Sends all further messages of this process to the system's log, panics included.
///
/// # Errors
/// `/dev/null` cannot take the place of standard error.
pub fn to_system_log() -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    // SAFETY: no pointers; nobody owns the number of standard error.
    if unsafe { libc::dup2(null.as_raw_fd(), libc::STDERR_FILENO) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // Connects now: the process may have no descriptor left when it has something to say.
    // SAFETY: a string of the program, which lives as long as the process.
    unsafe { libc::openlog(c"forebay".as_ptr(), libc::LOG_PID | libc::LOG_NDELAY, libc::LOG_DAEMON) };
    IN_LOG.store(true, Ordering::Relaxed);
    std::panic::set_hook(Box::new(|panic| say(&format!("forebay mount: {panic}"))));
    Ok(())
}

/// Says something to the operator.
pub fn say(text: &str) {
    if !IN_LOG.load(Ordering::Relaxed) {
        // Without standard error, nobody can be notified.
        let _ = writeln!(io::stderr(), "{text}");
        return;
    }
    if let Ok(text) = CString::new(text) {
        // SAFETY: both are strings; the format has one.
        unsafe { libc::syslog(libc::LOG_ERR, c"%s".as_ptr(), text.as_ptr()) };
    }
}
