//! A program that is a child of this process, which stands for it: the process hands on the signals
//! that it is sent, stops when the program stops, and ends as the program ends.

use crate::program;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::FromRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus};

/// Signals that the kernel sends to all processes of a terminal's foreground, so to the program as
/// well.
const OF_TERMINAL: [i32; 8] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTSTP,
    libc::SIGHUP,
    libc::SIGCONT,
    libc::SIGWINCH,
    libc::SIGTTIN,
    libc::SIGTTOU,
];

/// Signals as `signalfd` reports them.
const REPORT_BYTES: usize = size_of::<libc::signalfd_siginfo>();

/// Runs the program to its end.
pub fn run(command: &mut Command) -> Result<ExitStatus, Failed> {
    program::keep_signals(command);
    let parent = rustix::process::getpid();
    let follow = move || {
        // SAFETY: a call without pointers.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let is_alone = rustix::process::getppid() != Some(parent);
        if is_alone { Err(Errno::SRCH.into()) } else { Ok(()) }
    };
    // SAFETY: it neither allocates nor takes a lock.
    unsafe { command.pre_exec(follow) };
    // SAFETY: no handler of anybody else is replaced; without this, the status would be lost.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    let all = program::block_all_signals();
    // SAFETY: a valid set; the new descriptor is owned here alone.
    let mut signals = unsafe {
        match libc::signalfd(-1, &all, libc::SFD_CLOEXEC) {
            -1 => return Err(Failed::Otherwise(io::Error::last_os_error())),
            fd => File::from_raw_fd(fd),
        }
    };
    let child = command.spawn().map_err(Failed::ToStart)?.id().cast_signed();
    // Not standard error, to which the report goes.
    program::close_inherited(2);
    let mut report = [0; REPORT_BYTES];
    loop {
        if let Some(status) = ended(child)? {
            return Ok(status);
        }
        signals.read_exact(&mut report).map_err(Failed::Otherwise)?;
        // SAFETY: the kernel has written one, and any bits are valid.
        forward(child, &unsafe { report.as_ptr().cast::<libc::signalfd_siginfo>().read_unaligned() });
    }
}

/// The status of the program if it has ended. If it has stopped, so does this process.
fn ended(child: i32) -> Result<Option<ExitStatus>, Failed> {
    loop {
        let mut status = 0;
        // SAFETY: a place for the result.
        match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG | libc::WUNTRACED) } {
            0 => return Ok(None),
            -1 => return Err(Failed::Otherwise(io::Error::last_os_error())),
            // SAFETY: calls without pointers.
            _ if libc::WIFSTOPPED(status) => unsafe { libc::kill(libc::getpid(), libc::SIGSTOP) },
            _ => return Ok(Some(ExitStatus::from_raw(status))),
        };
    }
}

/// Hands a signal on, with the value of one that has a value.
fn forward(child: i32, signal: &libc::signalfd_siginfo) {
    let (number, is_of_kernel) = (signal.ssi_signo as i32, signal.ssi_code > 0);
    if number == libc::SIGCHLD || is_of_kernel && OF_TERMINAL.contains(&number) {
        return;
    }
    if signal.ssi_code == libc::SI_QUEUE {
        // As the kernel has it: three numbers, a gap, the sender, and the value.
        let mut info = [0_u64; 16];
        info[0] = u64::from(signal.ssi_signo);
        info[1] = u64::from(signal.ssi_code.cast_unsigned());
        info[2] = u64::from(signal.ssi_pid) | u64::from(signal.ssi_uid) << 32;
        info[3] = signal.ssi_ptr;
        // SAFETY: as long as the kernel's structure.
        unsafe { libc::syscall(libc::SYS_rt_sigqueueinfo, child, number, info.as_ptr()) };
    } else {
        // SAFETY: a call without pointers. The child's number is its own until it is waited for.
        unsafe { libc::kill(child, number) };
    }
}

/// Ends as the program has ended: a process that waits for this one sees the same status.
pub fn end_like(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        // SAFETY: calls without pointers, or with a valid one. Nobody needs this process's core.
        unsafe {
            libc::prctl(libc::PR_SET_DUMPABLE, 0);
            libc::signal(signal, libc::SIG_DFL);
            let mut only: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&mut only, signal);
            libc::kill(libc::getpid(), signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &only, std::ptr::null_mut());
        }
    }
    let code = status.code().or(status.signal().map(|s| 128 + s)).unwrap_or(1);
    ExitCode::from(code.clamp(0, 255) as u8)
}

/// Why the exit code of a program is not known.
#[derive(Debug)]
pub enum Failed {
    /// It did not start.
    ToStart(io::Error),
    /// It may have started.
    Otherwise(io::Error),
}
