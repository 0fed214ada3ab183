//! Errors with both a message and a number.
//!
//! A message alone is of no use to a C or Python program that looks at `errno`, and a number alone
//! does not say which file was meant. `io::Error` carries one or the other; this puts both into
//! one. Why not an error enum of our own: programs take our reads for those of a file, and handle
//! what they already handle.

use std::fmt;
use std::io::{self, ErrorKind};

/// An error number with words of our own; found inside an [`io::Error`] by [`errno`].
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

impl std::error::Error for WithMessage {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.os)
    }
}

/// An error that reads `message` and whose number is `errno`.
pub(crate) fn with_message(errno: i32, message: impl Into<String>) -> io::Error {
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

/// In words, if this process or the machine may open no more files.
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

/// Kinds that the standard library makes without a number, and the number a system call would have
/// returned.
const KINDS: &[(ErrorKind, i32)] = &[
    (ErrorKind::NotFound, libc::ENOENT),
    (ErrorKind::PermissionDenied, libc::EACCES),
    (ErrorKind::ConnectionRefused, libc::ECONNREFUSED),
    (ErrorKind::ConnectionReset, libc::ECONNRESET),
    (ErrorKind::NotConnected, libc::ENOTCONN),
    (ErrorKind::BrokenPipe, libc::EPIPE),
    (ErrorKind::AlreadyExists, libc::EEXIST),
    (ErrorKind::WouldBlock, libc::EAGAIN),
    (ErrorKind::InvalidInput, libc::EINVAL),
    (ErrorKind::InvalidData, libc::EPROTO),
    (ErrorKind::TimedOut, libc::ETIMEDOUT),
    (ErrorKind::StorageFull, libc::ENOSPC),
    (ErrorKind::UnexpectedEof, libc::ECONNRESET),
    (ErrorKind::OutOfMemory, libc::ENOMEM),
];

/// The error number of any error this crate returns: the PFS's own where there is one, else the one
/// that says the same as its kind, else `EIO`.
pub fn errno(e: &io::Error) -> i32 {
    if let Some(errno) = e.raw_os_error() {
        return errno;
    }
    let reported = e.get_ref().and_then(|inner| inner.downcast_ref::<WithMessage>());
    if let Some(errno) = reported.and_then(|reported| reported.os.raw_os_error()) {
        return errno;
    }
    KINDS.iter().find(|(kind, _)| *kind == e.kind()).map_or(libc::EIO, |(_, errno)| *errno)
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
        assert_eq!(errno(&io::Error::from_raw_os_error(libc::EXDEV)), libc::EXDEV);
    }

    #[test]
    fn a_kind_without_a_number_gets_the_one_that_says_the_same() {
        for (kind, number) in KINDS {
            assert_eq!(errno(&io::Error::from(*kind)), *number, "{kind:?}");
        }
        assert_eq!(errno(&io::Error::other("who knows")), libc::EIO);
    }
}
