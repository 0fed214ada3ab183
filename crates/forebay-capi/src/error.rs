//! How failures reach C: a return value, `errno`, and a text for the thread.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::fmt;
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

thread_local! {
    /// Of the last call of this thread that failed.
    static LAST: RefCell<CString> = RefCell::default();
}

/// What the last failed call of this thread has to say; never NULL. Valid until this thread's next
/// failure.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_last_error() -> *const c_char {
    // While a thread ends its text may be gone already.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Runs `body`; on failure or panic notes it for this thread and returns `failed`.
pub(crate) fn guard<T>(failed: T, body: impl FnOnce() -> io::Result<T>) -> T {
    // Nothing is seen half done after a panic: the core's locks are taken over from a thread that
    // panicked, and handles are behind them.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => return value,
        Ok(Err(e)) => note(&e),
        Err(panic) => note(&numbered(libc::EIO, format!("a bug in forebay: {}", words(panic.as_ref())))),
    }
    failed
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked")
}

/// Sets `errno` and this thread's text.
pub(crate) fn note(e: &io::Error) {
    let errno = errno_of(e);
    let text = CString::new(e.to_string().replace('\0', "\\0")).unwrap_or_default();
    // While a thread ends its text may be gone already; errno still says why.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
    // SAFETY: the location is this thread's own and always valid. Last, since what is above may
    // change errno.
    unsafe { *libc::__errno_location() = errno };
}

/// An error number with a text of our own.
#[derive(Debug)]
struct Numbered {
    text: String,
    source: io::Error,
}

impl fmt::Display for Numbered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Numbered {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// `errno` with the words `text`.
pub(crate) fn numbered(errno: i32, text: String) -> io::Error {
    let source = io::Error::from_raw_os_error(errno);
    io::Error::new(source.kind(), Numbered { text, source })
}

/// Errors of the operating system do not say which file they are about.
pub(crate) fn named(path: &Path, e: io::Error) -> io::Error {
    match e.raw_os_error() {
        Some(errno) => numbered(errno, format!("{}: {e}", path.display())),
        None => e,
    }
}

/// The error number of `e`: its own, or that of what it wraps, or the one its kind stands for.
pub(crate) fn errno_of(e: &io::Error) -> i32 {
    if let Some(errno) = e.raw_os_error() {
        return errno;
    }
    let mut inner = e.get_ref().map(|inner| inner as &(dyn std::error::Error + 'static));
    while let Some(error) = inner {
        if let Some(errno) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return errno;
        }
        inner = error.source();
    }
    let known = KINDS.iter().find(|(kind, _)| *kind == e.kind());
    known.map_or(libc::EIO, |(_, errno)| *errno)
}

/// The error number for each kind of error that the client core makes without one. Others are
/// `EIO`.
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
    // The agent closed, or said something that is no answer: the conversation broke, not the file
    // system.
    (ErrorKind::UnexpectedEof, libc::ECONNRESET),
    (ErrorKind::InvalidData, libc::EPROTO),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last() -> (i32, String) {
        // SAFETY: the text is this thread's, and nothing fails between here and its copy.
        let text = unsafe { CStr::from_ptr(forebay_last_error()) };
        (io::Error::last_os_error().raw_os_error().unwrap(), text.to_string_lossy().into_owned())
    }

    #[test]
    fn a_number_is_found_wherever_it_is() {
        let bare = || io::Error::from_raw_os_error(libc::EXDEV);
        assert_eq!(errno_of(&bare()), libc::EXDEV);
        assert_eq!(errno_of(&io::Error::new(ErrorKind::TimedOut, bare())), libc::EXDEV);
        assert_eq!(errno_of(&io::Error::new(ErrorKind::TimedOut, "late")), libc::ETIMEDOUT);
        assert_eq!(errno_of(&io::Error::other("who knows")), libc::EIO);
    }

    #[test]
    fn every_kind_of_the_table_is_the_kind_of_its_number() {
        // The wire's own kinds have no number, and EINVAL, ENOTSUP and EDQUOT may share a kind with
        // others.
        let own = [ErrorKind::UnexpectedEof, ErrorKind::InvalidData];
        for (kind, errno) in KINDS.iter().filter(|(kind, _)| !own.contains(kind)) {
            assert_eq!(io::Error::from_raw_os_error(*errno).kind(), *kind, "errno {errno}");
        }
    }

    #[test]
    fn failures_and_panics_are_noted_for_the_thread_they_happened_on() {
        assert_eq!(guard(-1, || Err(io::Error::new(ErrorKind::NotFound, "no\0where"))), -1);
        assert_eq!(last(), (libc::ENOENT, "no\\0where".to_owned()));
        std::thread::spawn(|| {
            // SAFETY: as in `last`.
            assert_eq!(unsafe { CStr::from_ptr(forebay_last_error()) }, c"");
        })
        .join()
        .unwrap();
        assert_eq!(guard(-1, || panic!("page {} of {}", 7, 3)), -1);
        assert_eq!(last(), (libc::EIO, "a bug in forebay: page 7 of 3".to_owned()));
        assert_eq!(guard(-1, || Ok(5)), 5);
        assert!(last().1.contains("page 7"), "a success leaves the text alone");
    }
}
