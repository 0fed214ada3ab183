//! One error for the lab: a sentence for a person, and the system's reason beneath it.
//!
//! Callers of the lab print the error and stop; nobody branches on its kind, so it has none.

use std::fmt;
use std::io;

/// What was tried, on what, why it failed and what to do.
#[derive(Debug)]
pub struct LabError {
    message: String,
    source: Option<io::Error>,
}

impl LabError {
    /// An error that the lab itself found.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None }
    }

    /// An error of the system, under a sentence that says what was tried on what.
    pub fn io(message: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self { message: message.into(), source: Some(source.into()) }
    }
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, "{}: {source}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for LabError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}
