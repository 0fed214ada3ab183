//! The process around a mount: says `ready`, and ends on SIGTERM, SIGINT or an `umount`.
//!
//! Signals are blocked before the first thread starts and read from a descriptor, so they interrupt
//! nothing and the ordinary code below handles them, together with the end of the session.

use std::io::{self, Write};
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};

use super::{Config, Mounted};
use crate::LabError;

/// Mounts, prints `ready` on stdout and serves until asked to stop. Call it before the process has
/// threads.
///
/// # Errors
/// The errors of [`Mounted::start`] and [`Mounted::stop`].
pub fn serve(config: &Config) -> Result<(), LabError> {
    let signals =
        block_signals().map_err(|error| LabError::io("cannot take over SIGTERM and SIGINT", error))?;
    act_like_another_machine();
    let mounted = Mounted::start(config)?;
    // The parent may have gone already (a closed pipe): not a reason to stop serving.
    let _ = writeln!(io::stdout(), "ready").and_then(|()| io::stdout().flush());
    let mut events = [PollFd::new(&signals, PollFlags::IN), PollFd::new(mounted.ended(), PollFlags::IN)];
    while let Err(error) = poll(&mut events, None) {
        if error != rustix::io::Errno::INTR {
            return Err(LabError::io("cannot wait for signals", error));
        }
    }
    mounted.stop()
}

/// Real storage servers are other machines: what keeps this one busy does not slow them. So we run
/// at a higher priority, where permitted; at full rate we need a tenth of a core.
fn act_like_another_machine() {
    let _ = rustix::process::setpriority_process(None, -10);
}

/// Blocks SIGTERM and SIGINT in this thread and those it will start; they are read from the
/// descriptor instead.
fn block_signals() -> io::Result<OwnedFd> {
    // SAFETY: `set` is initialised by sigemptyset before it is read; all pointers are valid for the
    // calls; the descriptor is checked and owned by nobody else.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        let refused = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        if refused != 0 {
            return Err(io::Error::from_raw_os_error(refused));
        }
        let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}
