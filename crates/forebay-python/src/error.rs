//! Errors of the core as Python's `OSError`, with the number, the message and the file.

use pyo3::PyErr;
use pyo3::exceptions::PyOSError;
use std::io;
use std::path::Path;

/// `OSError(errno, text, path)`; Python picks the subclass by the number, such as
/// `FileNotFoundError`.
pub fn os_error(e: &io::Error, path: Option<&Path>) -> PyErr {
    let errno = forebay_client::errno(e);
    let text = e.to_string();
    // Rust puts the number after the message, Python before it.
    let text = text.strip_suffix(&format!(" (os error {errno})")).unwrap_or(&text).to_owned();
    match path {
        // The core's own messages begin with the file they are about.
        Some(path) if !text.starts_with(&*path.to_string_lossy()) => {
            PyOSError::new_err((errno, text, path.as_os_str().to_owned()))
        }
        _ => PyOSError::new_err((errno, text)),
    }
}

/// The error of a request about the tier itself. `what` completes "cannot ..."; an agent that is
/// missing is `ENOTCONN`, so that no program mistakes it for a missing file.
pub fn tier_error(e: &io::Error, what: &str, path: Option<&Path>, socket: Option<&Path>) -> PyErr {
    if forebay_client::is_no_agent(e) {
        let none = io::Error::from(io::ErrorKind::NotConnected);
        return PyOSError::new_err((forebay_client::errno(&none), format!("cannot {what}: {e}")));
    }
    match (path, socket) {
        (Some(_), _) | (_, None) => os_error(e, path),
        (None, Some(socket)) => {
            let text = format!("cannot {what}: the agent at {}: {e}", socket.display());
            PyOSError::new_err((forebay_client::errno(e), text))
        }
    }
}

/// The error of an operation on a handle that was closed.
pub fn closed(what: &str) -> PyErr {
    pyo3::exceptions::PyValueError::new_err(format!("I/O operation on closed {what}"))
}
