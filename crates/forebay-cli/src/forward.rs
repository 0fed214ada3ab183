//! A program that this process runs, and the signals on their way to it.

use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::iterator::Signals;
use std::io;
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
    let ignored = ignored()?;
    let is_taken = |signal: &i32| ignored >> (signal - 1) & 1 == 0;
    for signal in OF_TERMINAL.into_iter().filter(|signal| is_taken(signal)) {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let mut signals = Signals::new(FORWARDED.iter().map(|(number, _)| *number).filter(|n| is_taken(n)))?;
    let mut child = command.spawn().map_err(Failed::ToStart)?;
    // By descriptor: the number may belong to another process once the program has ended.
    let pid = rustix::process::Pid::from_child(&child);
    let program = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)?;
    let handle = signals.handle();
    let forwarding = std::thread::spawn(move || {
        for got in signals.forever() {
            let known = FORWARDED.iter().find(|(number, _)| *number == got);
            // An error says that the program has ended.
            let _ = known.map(|(_, signal)| pidfd_send_signal(&program, *signal));
        }
    });
    let status = child.wait();
    handle.close();
    let _ = forwarding.join();
    Ok(status?)
}

/// The signals that this process was started to ignore, a bit each.
fn ignored() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.ok_or_else(|| io::Error::other("/proc/self/status has no SigIgn"))
}
