//! How failures reach C: a return value, `errno`, and a text for the thread.

use forebay_client::errno;
use forebay_client::error::{panic_message, with_message};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

thread_local! {
    /// The text of this thread's last failed call.
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
        Err(panic) => {
            let why = panic_message(panic.as_ref());
            note(&with_message(libc::EIO, format!("a bug in forebay: {why}")));
        }
    }
    failed
}

/// Sets `errno` and this thread's text.
pub(crate) fn note(e: &io::Error) {
    let errno = errno(e);
    let text = CString::new(e.to_string().replace('\0', "\\0")).unwrap_or_default();
    // While a thread ends its text may be gone already; errno still says why.
    let _ = LAST.try_with(|last| *last.borrow_mut() = text);
    // SAFETY: the location is this thread's own and always valid. Last, since what is above may
    // change errno.
    unsafe { *libc::__errno_location() = errno };
}

/// Errors of the operating system do not say which file they are about.
pub(crate) fn named(path: &Path, e: io::Error) -> io::Error {
    match e.raw_os_error() {
        Some(errno) => with_message(errno, format!("{}: {e}", path.display())),
        None => e,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;
    use std::io::ErrorKind;

    fn last() -> (i32, String) {
        // SAFETY: the text is this thread's, and nothing fails between here and its copy.
        let text = unsafe { CStr::from_ptr(forebay_last_error()) };
        (io::Error::last_os_error().raw_os_error().unwrap(), text.to_string_lossy().into_owned())
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
