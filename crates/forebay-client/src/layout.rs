//! Creates files with a layout ([`forebay_pfs::layout::create`]).
//!
//! A hint never costs a program its file: what the PFS does not take is reported in one line, and
//! the file is created as any other.

use crate::session::{Client, unexpected};
use crate::write::{FileWriter, WriteMode, WriteOptions};
pub use forebay_pfs::layout::create::NotLaid;
use forebay_pfs::layout::create::{create, create_at};
pub use forebay_pfs::layout::hint::Hint;
use forebay_wire::{Reply, Request};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The agent ends the tool of the PFS earlier.
const ANSWER: Duration = Duration::from_secs(15);

impl Client {
    /// As [`Client::create_with`], and a file that is new is laid out as `hint` says.
    ///
    /// # Errors
    /// As [`Client::create_with`].
    pub fn create_laid_out(
        &self,
        path: impl AsRef<Path>,
        options: WriteOptions,
        hint: &Hint,
    ) -> io::Result<FileWriter> {
        let path = path.as_ref();
        if options.mode == WriteMode::MemoryOnly {
            return self.create_with(path, options);
        }
        let set_class = |file: BorrowedFd<'_>, class: &str| self.set_class(file, class);
        let laid = create_at(path, options.permissions, hint, set_class);
        let is_created = match &laid {
            Ok(is_created) => *is_created,
            Err(no) => {
                self.say_not_laid(path, hint, &no.why);
                no.is_created
            }
        };
        self.create_with(path, WriteOptions { exclusive: options.exclusive && !is_created, ..options })
    }

    /// Creates the file `name` in the directory that is open as `dir.0` and has the path `dir.1`.
    /// Returns `false` if there is such a file.
    ///
    /// # Errors
    /// It does not have the layout.
    pub fn lay_out(
        &self,
        dir: (BorrowedFd<'_>, &Path),
        name: &CStr,
        mode: u32,
        hint: &Hint,
    ) -> Result<bool, NotLaid> {
        create(dir, name, mode, hint, |file, class| self.set_class(file, class))
    }

    /// The agent sets a storage class by a tool: a program's own children are the program's.
    fn set_class(&self, file: BorrowedFd<'_>, class: &str) -> io::Result<()> {
        let fds = [file.as_fd(), file.as_fd()];
        let answer = self.session.call(&Request::SetClass(class.to_owned()), &fds, ANSWER)?;
        match answer.message {
            Reply::Done => Ok(()),
            reply => Err(unexpected(&reply)),
        }
    }

    fn say_not_laid(&self, path: &Path, hint: &Hint, why: &str) {
        static IS_SAID: AtomicBool = AtomicBool::new(false);
        if !self.session.config.quiet && !IS_SAID.swap(true, Ordering::Relaxed) {
            eprintln!("forebay: {}", not_laid(path, hint, why));
        }
    }
}

/// The message that a file was not laid out as `hint` says.
pub fn not_laid(path: &Path, hint: &Hint, why: &str) -> String {
    format!("{} is created without the layout {hint}: {why}", path.display())
}
