//! Checks whether a program on this node has a file open for writing.
//!
//! The kernel grants a read lease (`F_SETLEASE`) only while nobody here has the inode open for
//! writing, through a descriptor or through a shared writable mapping. So a lease that is granted
//! and immediately released proves that no write is under way, which time stamps cannot: the kernel
//! stamps a write when it begins, however long it takes.
//!
//! The lease is taken on an open file description of our own. On one that somebody sent us, that
//! program could choose the signal by which the kernel reports a conflicting open, and end us with
//! it.

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// `fcntl` command of Linux that `libc` lacks; the same number on every architecture.
const F_SETSIG: libc::c_int = 10;

/// What is known of a file's writers on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// Nobody had it open for writing at a moment within the call.
    None,
    /// Somebody has.
    Some,
    /// The file system grants no leases, or not to this user: the file's owner, or `CAP_LEASE`.
    Unknown,
}

/// Whose open file description a descriptor is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// This program opened it.
    Here,
    /// Another program did, and sent it.
    Elsewhere,
}

/// Looks whether somebody has the file of `fd` open for writing. A program that opens it for
/// writing within the microsecond of the lease waits for its end; with `O_NONBLOCK` it gets
/// `EWOULDBLOCK`.
pub fn writers(fd: BorrowedFd<'_>, opened: Opened) -> Writers {
    if opened == Opened::Here {
        return lease_once(fd);
    }
    // Without waiting for a program that has a write lease: it is a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    match openat(CWD, format!("/proc/self/fd/{}", fd.as_raw_fd()), flags, Mode::empty()) {
        Ok(own) => lease_once(own.as_fd()),
        Err(Errno::AGAIN) => Writers::Some,
        Err(_) => Writers::Unknown,
    }
}

/// Whether `own`, which this program has opened for reading, is the only open file description of
/// its file; `false` if that cannot be known.
pub fn is_alone(own: BorrowedFd<'_>) -> bool {
    lease_for(own, libc::F_WRLCK) == Writers::None
}

fn lease_once(own: BorrowedFd<'_>) -> Writers {
    lease_for(own, libc::F_RDLCK)
}

fn lease_for(own: BorrowedFd<'_>, kind: libc::c_int) -> Writers {
    let control = |command, value: libc::c_int| -> Result<(), Errno> {
        // SAFETY: both commands take a number, and the descriptor is open.
        match unsafe { libc::fcntl(own.as_raw_fd(), command, value) } {
            -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
            _ => Ok(()),
        }
    };
    // The default signal, SIGIO, ends a process that does not expect it; this one is ignored by
    // default.
    let lease = control(F_SETSIG, libc::SIGURG).and_then(|()| control(libc::F_SETLEASE, kind));
    match lease {
        Ok(()) => match control(libc::F_SETLEASE, libc::F_UNLCK) {
            Ok(()) => Writers::None,
            // The lease ends when the descriptor is closed. A program that opens the file for
            // writing before that waits for it.
            Err(_) => Writers::Unknown,
        },
        Err(Errno::AGAIN) => Writers::Some,
        Err(_) => Writers::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// Both ways must see the same.
    fn look(file: &File) -> Writers {
        let seen = [Opened::Here, Opened::Elsewhere].map(|opened| writers(file.as_fd(), opened));
        assert_eq!(seen[0], seen[1]);
        seen[0]
    }

    #[test]
    fn a_writer_is_seen_until_it_has_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let writer = File::create(&path).unwrap();
        let reader = File::open(&path).unwrap();
        let other_reader = File::open(&path).unwrap();
        assert_eq!(look(&reader), Writers::Some);
        drop(writer);
        assert_eq!(look(&reader), Writers::None);
        assert_eq!(look(&other_reader), Writers::None, "the lease is over");
        File::options().write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(look(&reader), Writers::None, "a file without a name");
    }

    #[test]
    fn who_reads_a_file_is_seen_by_who_would_be_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        File::create(&path).unwrap();
        let own = File::open(&path).unwrap();
        assert!(is_alone(own.as_fd()));
        let other = File::open(&path).unwrap();
        assert!(!is_alone(own.as_fd()));
        drop(other);
        assert!(is_alone(own.as_fd()));
    }

    #[test]
    fn a_file_system_without_leases_reports_nothing() {
        let file = File::open("/proc/self/status").unwrap();
        assert_ne!(look(&file), Writers::Some);
    }
}
