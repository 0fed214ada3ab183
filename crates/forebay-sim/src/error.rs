//! What can go wrong outside a simulation: files and their contents. Inside, a broken invariant
//! panics with a message.

use std::fmt;
use std::path::{Path, PathBuf};

use forebay_policy::machine::UnknownPolicy;

/// An error that a person can act on, in one line.
#[derive(Debug)]
pub enum Error {
    /// A scenario says something impossible.
    Scenario {
        /// The scenario's file.
        file: PathBuf,
        /// Path of the key, such as `hpc[1].io_gb`.
        key: String,
        /// What the file says.
        value: String,
        /// What it may say.
        allowed: String,
    },
    /// A file could not be read or written.
    Io {
        /// What was tried, such as "write the report to".
        tried: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A recorded trace is not what it should be.
    Trace {
        /// The trace's file.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// A command line that is well formed, but asks for something that does not exist.
    Usage(String),
}

impl Error {
    /// Wraps an I/O error on `path`, for `map_err`.
    pub fn io(tried: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::Io { tried, path, source }
    }
}

impl From<UnknownPolicy> for Error {
    fn from(unknown: UnknownPolicy) -> Self {
        Error::Usage(unknown.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Scenario { file, key, value, allowed } => {
                write!(f, "{}: {key} = {value}: {allowed}", file.display())
            }
            Error::Io { tried, path, source } => write!(f, "cannot {tried} {}: {source}", path.display()),
            Error::Trace { file, line, problem } => write!(f, "{}:{line}: {problem}", file.display()),
            Error::Usage(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Results of this crate.
pub type Result<T> = std::result::Result<T, Error>;
