//! The native half of the Java binding: the `native` methods of `io.forebay.core.Native`.
//!
//! Java holds numbers, not addresses: every handle is looked up in a table here (`handles`), so a
//! handle that was closed, or closed by another thread just now, is an exception and never a wild
//! pointer. Paths come as bytes, answers with a structure go as bytes (`encode`), and a failure
//! becomes an exception with its error number (`env`). What is unsafe is in `env` and in the
//! signatures; the rest is plain Rust on the client core.
//!
//! Why not the `jni` crate: of the two hundred functions of a JVM ten are needed here, and its care
//! for references and exceptions pays off in code that works with Java objects, of which there are
//! none.

mod client;
mod encode;
mod env;
mod handles;
mod job;
mod names;
mod read;
mod shuffle;
mod write;

use forebay_client::errno;
use std::io;
use std::path::Path;

/// An error with the file it is about in its words; the core's own messages begin with it already.
fn named(path: &Path, e: &io::Error) -> (i32, String) {
    let number = errno(e);
    // Java puts the words where it likes; the number goes beside them.
    let text = e.to_string();
    let text = text.strip_suffix(&format!(" (os error {number})")).unwrap_or(&text).to_owned();
    match text.starts_with(&*path.to_string_lossy()) {
        true => (number, text),
        false => (number, format!("{}: {text}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_its_file_once_and_not_its_number() {
        let path = Path::new("/pfs/a");
        let missing = io::Error::from_raw_os_error(libc::ENOENT);
        assert_eq!(named(path, &missing), (libc::ENOENT, "/pfs/a: No such file or directory".into()));
        let reported = io::Error::new(io::ErrorKind::TimedOut, "/pfs/a: too late");
        assert_eq!(named(path, &reported), (libc::ETIMEDOUT, "/pfs/a: too late".into()));
    }
}
