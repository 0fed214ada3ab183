//! The program of `forebay run`.
//!
//! This process becomes the program by `exec`. So signals, job control, the parent, the children
//! and the exit status are those of a program that was started without Forebay. What the program
//! needs and cannot hold itself (a mount, the memory of the observer) is held by a *companion*: a
//! process outside of the program's session, which ends with the program. Only a report needs a
//! parent that stays (`forward.rs`): the shell must not continue before the report is printed.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, FdFlags, fcntl_getfd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, WaitOptions, getpid, pidfd_open, setsid, waitpid};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this process was started to ignore SIGPIPE. The runtime of Rust makes every process
/// ignore it.
static IGNORES_PIPE: AtomicBool = AtomicBool::new(false);

/// Runs before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = note_pipe;

extern "C" fn note_pipe() {
    IGNORES_PIPE.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
}

fn is_ignored(signal: i32) -> bool {
    // SAFETY: zeroes are a valid value, and a place for the result; nothing is changed.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Lets the program begin with the signals ignored and blocked that this process was started to
/// ignore and block. `Command` would reset SIGPIPE and unblock all.
pub fn keep_signals(command: &mut Command) {
    let ignores_pipe = IGNORES_PIPE.load(Ordering::Relaxed);
    let ignores_children = is_ignored(libc::SIGCHLD);
    // SAFETY: zeroes are a valid value, and a place for the result; nothing is changed.
    let blocked = unsafe {
        let mut blocked: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &mut blocked);
        blocked
    };
    let keep = move || {
        // SAFETY: these calls are async-signal-safe, and the pointer is valid.
        unsafe {
            if ignores_pipe {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            }
            if ignores_children {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &blocked, std::ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: it neither allocates nor takes a lock.
    unsafe { command.pre_exec(keep) };
}

/// Blocks all signals. Returns them.
pub fn block_all_signals() -> libc::sigset_t {
    // SAFETY: zeroes are a valid value, and a place for the result.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
        all
    }
}

/// Becomes the program. Returns only if that fails: the exit code that shells, `env` and `nohup`
/// give then.
pub fn execute(command: &mut Command) -> ExitCode {
    keep_signals(command);
    let error = command.exec();
    not_started(command, &error)
}

/// Says why the program has not started.
pub fn not_started(command: &Command, error: &io::Error) -> ExitCode {
    eprintln!("forebay: {}: {error}", command.get_program().to_string_lossy());
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

/// Starts a companion of this process, and returns its number. It holds what `begin` returns, and
/// all descriptors of this process that close on `exec`, until this process, the program by then,
/// has ended. No thread may have been started yet.
pub fn start_companion<T>(begin: impl FnOnce() -> Result<T, String>) -> Result<u32, String> {
    let failed = |e: Errno| format!("cannot start a process beside the program: {e}");
    let program = pidfd_open(getpid(), PidfdFlags::empty()).map_err(failed)?;
    let (answers, answer) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
    if let Some(child) = fork().map_err(failed)? {
        drop(answer);
        waitpid(Some(child), WaitOptions::empty()).map_err(failed)?;
        let mut text = String::new();
        File::from(answers).read_to_string(&mut text).map_err(|e| e.to_string())?;
        return text.parse().map_err(|_| match text.is_empty() {
            true => "the process beside the program has ended at once".into(),
            false => text,
        });
    }
    drop(answers);
    // The child's child is nobody's child: the program must not find one that it has not started.
    let is_companion = setsid().and_then(|_| fork()).is_ok_and(|child| child.is_none());
    if is_companion {
        block_all_signals();
        close_inherited(3);
        let begun = begin();
        let text = begun.as_ref().err().cloned().unwrap_or_else(|| std::process::id().to_string());
        // Nobody reads it if the program has been killed meanwhile.
        let _ = File::from(answer).write_all(text.as_bytes());
        if begun.is_ok() {
            while let Err(Errno::INTR) = poll(&mut [PollFd::new(&program, PollFlags::IN)], None) {}
        }
    }
    // SAFETY: ends the process without running what the parent has registered for its own end.
    unsafe { libc::_exit(0) }
}

/// Returns the child's number in the parent, nothing in the child.
fn fork() -> Result<Option<Pid>, Errno> {
    // SAFETY: there is no other thread whose locks the child would find taken.
    match unsafe { libc::fork() } {
        -1 => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::AGAIN)),
        child => Ok(Pid::from_raw(child)),
    }
}

/// Lets go of what the program has inherited, so that its reader sees the end of a pipe when the
/// program closes it. The first `streams` standard streams become empty; the others stay.
pub fn close_inherited(streams: RawFd) {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        for stream in 0..streams {
            // SAFETY: a standard stream, which nothing here owns.
            unsafe { libc::dup2(null.as_raw_fd(), stream) };
        }
    }
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for number in numbers.filter(|number: &RawFd| *number > 2).collect::<Vec<_>>() {
        // SAFETY: only to look at; what closes on `exec` is this process's own and stays open.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        if fcntl_getfd(fd).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC)) {
            // SAFETY: opened before this process began, so nothing here owns it.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
}
