//! Errors with both a message and a number.
//!
//! A message alone is of no use to a C or Python program that looks at `errno`, and a number alone
//! does not say which file was meant. `io::Error` carries one or the other; this puts both into
//! one. Why not an error enum of our own: programs treat our reads as those of a file, and handle
//! what they already handle.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::io::{self, ErrorKind};

/// An error number with a message of our own; found inside an [`io::Error`] by [`errno`].
#[derive(Debug)]
struct WithMessage {
    os: io::Error,
    message: String,
    no_agent: bool,
}

impl fmt::Display for WithMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for WithMessage {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.os)
    }
}

/// An error that reads `message` and whose number is `errno`.
pub fn with_message(errno: i32, message: impl Into<String>) -> io::Error {
    let os = io::Error::from_raw_os_error(errno);
    io::Error::new(os.kind(), WithMessage { os, message: message.into(), no_agent: false })
}

/// As [`with_message`], for a request that found no agent; [`is_no_agent`] recognises it.
pub(crate) fn no_agent(errno: i32, message: impl Into<String>) -> io::Error {
    let os = io::Error::from_raw_os_error(errno);
    io::Error::new(os.kind(), WithMessage { os, message: message.into(), no_agent: true })
}

/// Whether a request failed because no agent listens, rather than because a file on the PFS is
/// missing: both can be `ENOENT`.
pub fn is_no_agent(e: &io::Error) -> bool {
    e.get_ref()
        .and_then(|inner| inner.downcast_ref::<WithMessage>())
        .is_some_and(|reported| reported.no_agent)
}

/// The message for an error that means that this process or the machine may open no more files.
pub(crate) fn out_of_files(e: &io::Error) -> Option<&'static str> {
    match errno(e) {
        libc::EMFILE => {
            Some("this process may open no more files (EMFILE); raise `ulimit -n`, or close some")
        }
        libc::ENFILE => {
            Some("this machine may open no more files (ENFILE); raise fs.file-max, or close some")
        }
        _ => None,
    }
}

/// Kinds that errors without a number have, and the number a system call would have returned.
const KINDS: &[(ErrorKind, i32)] = &[
    (ErrorKind::NotFound, libc::ENOENT),
    (ErrorKind::PermissionDenied, libc::EACCES),
    (ErrorKind::AlreadyExists, libc::EEXIST),
    (ErrorKind::InvalidInput, libc::EINVAL),
    (ErrorKind::IsADirectory, libc::EISDIR),
    (ErrorKind::NotADirectory, libc::ENOTDIR),
    (ErrorKind::ReadOnlyFilesystem, libc::EROFS),
    (ErrorKind::StaleNetworkFileHandle, libc::ESTALE),
    (ErrorKind::StorageFull, libc::ENOSPC),
    (ErrorKind::QuotaExceeded, libc::EDQUOT),
    (ErrorKind::FileTooLarge, libc::EFBIG),
    (ErrorKind::ResourceBusy, libc::EBUSY),
    (ErrorKind::OutOfMemory, libc::ENOMEM),
    (ErrorKind::Interrupted, libc::EINTR),
    (ErrorKind::WouldBlock, libc::EAGAIN),
    (ErrorKind::TimedOut, libc::ETIMEDOUT),
    (ErrorKind::NotConnected, libc::ENOTCONN),
    (ErrorKind::ConnectionRefused, libc::ECONNREFUSED),
    (ErrorKind::ConnectionReset, libc::ECONNRESET),
    (ErrorKind::BrokenPipe, libc::EPIPE),
    (ErrorKind::Unsupported, libc::ENOTSUP),
    // The agent closed the connection or sent no valid answer; the file system did not fail.
    (ErrorKind::UnexpectedEof, libc::ECONNRESET),
    (ErrorKind::InvalidData, libc::EPROTO),
];

/// The error number of an error of this crate: its own or that of what it wraps, else the one for
/// its kind, else `EIO`.
pub fn errno(e: &io::Error) -> i32 {
    if let Some(errno) = e.raw_os_error() {
        return errno;
    }
    let mut inner = e.get_ref().map(|inner| inner as &(dyn Error + 'static));
    while let Some(error) = inner {
        if let Some(errno) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return errno;
        }
        inner = error.source();
    }
    KINDS.iter().find(|(kind, _)| *kind == e.kind()).map_or(libc::EIO, |(_, errno)| *errno)
}

/// The message of a panic that was caught.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_survives_the_words() {
        // ENODATA and ESTALE have no stable kind that would lead back to them.
        for number in [libc::ENODATA, libc::ESTALE, libc::EDQUOT, libc::EIO] {
            let e = with_message(number, "/pfs/a: why");
            assert_eq!((errno(&e), e.to_string().as_str()), (number, "/pfs/a: why"));
        }
        let bare = || io::Error::from_raw_os_error(libc::EXDEV);
        assert_eq!(errno(&bare()), libc::EXDEV);
        assert_eq!(errno(&io::Error::new(ErrorKind::TimedOut, bare())), libc::EXDEV);
        assert_eq!(errno(&io::Error::new(ErrorKind::TimedOut, "late")), libc::ETIMEDOUT);
    }

    #[test]
    fn a_kind_without_a_number_gets_the_one_that_says_the_same() {
        for (kind, number) in KINDS {
            assert_eq!(errno(&io::Error::from(*kind)), *number, "{kind:?}");
        }
        assert_eq!(errno(&io::Error::other("who knows")), libc::EIO);
        // The wire's own kinds have no number.
        let own = [ErrorKind::UnexpectedEof, ErrorKind::InvalidData];
        for (kind, number) in KINDS.iter().filter(|(kind, _)| !own.contains(kind)) {
            assert_eq!(io::Error::from_raw_os_error(*number).kind(), *kind, "errno {number}");
        }
    }
}
