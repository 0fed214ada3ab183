//! A program that this process runs, and the signals on their way to it.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;
use std::io;
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Signals of supervisors and schedulers, which know this process only.
const FORWARDED: [(i32, Signal); 4] = [
    (libc::SIGTERM, Signal::TERM),
    (libc::SIGHUP, Signal::HUP),
    (libc::SIGUSR1, Signal::USR1),
    (libc::SIGUSR2, Signal::USR2),
];

/// Signals of a terminal, which the program gets from it as well.
const OF_TERMINAL: [i32; 2] = [libc::SIGINT, libc::SIGQUIT];

/// Why the exit code of a program is not known.
#[derive(Debug)]
pub enum Failed {
    /// It did not start.
    ToStart(io::Error),
    /// It may have started.
    Otherwise(io::Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Failed::Otherwise(error)
    }
}

/// Runs the program to its end. This process stays until then, and hands on what it is sent. The
/// program also ignores what this process ignores (`nohup`, `&` in a script).
pub fn run(command: &mut Command) -> Result<ExitStatus, Failed> {
    let is_taken = |signal: &i32| !is_ignored(*signal);
    for signal in OF_TERMINAL.into_iter().filter(is_taken) {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let (read, write) = UnixStream::pair()?;
    let forwarded = FORWARDED.iter().map(|(number, _)| *number).filter(is_taken);
    let mut signals = SignalDelivery::with_pipe(read, write, SignalOnly, forwarded)?;
    let mut child = command.spawn().map_err(Failed::ToStart)?;
    // By descriptor: it also reports the end of the program, without a thread that waits.
    let pid = rustix::process::Pid::from_child(&child);
    let program = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?;
    loop {
        let waited = poll(
            &mut [PollFd::new(&program, PollFlags::IN), PollFd::new(signals.get_read(), PollFlags::IN)],
            None,
        );
        if let Err(e) = waited
            && e != Errno::INTR
        {
            return Err(Failed::Otherwise(e.into()));
        }
        for got in signals.pending() {
            let known = FORWARDED.iter().find(|(number, _)| *number == got);
            // An error says that the program has ended.
            let _ = known.map(|(_, signal)| pidfd_send_signal(&program, *signal));
        }
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
    }
}

/// Whether this process was started to ignore the signal.
fn is_ignored(signal: i32) -> bool {
    // SAFETY: zeroes are a valid value, and a place for the result; nothing is changed.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}
