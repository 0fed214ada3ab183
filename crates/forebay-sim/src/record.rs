//! A record of what machines received and decided, from a simulation or a live daemon, read a line
//! at a time: the log of a coordinator may be long.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::scenario::COLOCATION;
use crate::trace::{SCHEMA, VERSION};

#[derive(Deserialize)]
struct Header {
    schema: String,
    version: u32,
    /// Missing in traces from before there was a second kind.
    kind: Option<String>,
    setup: Value,
}

/// A line after the header. It has an event, an action, or a note, which no machine receives.
#[derive(Deserialize)]
pub struct Line {
    /// The line as it is in the file,
    #[serde(skip)]
    pub text: String,
    /// and its number, from 1.
    #[serde(skip)]
    pub number: usize,
    /// Counts lines.
    pub seq: u64,
    /// The event on which a machine decided.
    pub cause: Option<u64>,
    /// When.
    pub t_ns: u64,
    /// Which machine, or which part of the world.
    pub who: String,
    /// An event that the machine received.
    pub event: Option<Value>,
    /// The action that it returned.
    pub action: Option<Value>,
    /// An observation that no machine received.
    pub note: Option<Value>,
}

/// The lines after the header, read one at a time: the log of a coordinator may be long.
pub struct Lines {
    path: PathBuf,
    number: usize,
    file: BufReader<File>,
    /// Whether the last line has no end: its writer was killed, or the disk was full.
    pub is_cut: bool,
}

/// No writer makes a longer line.
const LINE_BYTES_MAX: u64 = 64 << 20;

impl Lines {
    /// An error about the line that was read last.
    pub fn bad(&self, problem: String) -> Error {
        Error::Trace { file: self.path.clone(), line: self.number, problem }
    }

    /// An error about the first line.
    pub fn not_a_header(&self, e: serde_json::Error) -> Error {
        let writers = "`sim run --trace`, or by a daemon with cluster.decision_log or agent.decision_log";
        self.bad(format!("not the header of a trace ({e}); was it written by {writers}?"))
    }

    fn next_text(&mut self) -> Result<Option<String>> {
        let mut text = String::new();
        let read = (&mut self.file).take(LINE_BYTES_MAX).read_line(&mut text);
        let bytes = read.map_err(Error::io("read the trace", &self.path))? as u64;
        self.number += 1;
        if text.pop() == Some('\n') {
            return Ok(Some(text));
        }
        if bytes == LINE_BYTES_MAX {
            return Err(self.bad(format!("it has more than {LINE_BYTES_MAX} bytes: not a trace")));
        }
        self.is_cut = bytes > 0;
        Ok(None)
    }
}

impl Iterator for Lines {
    type Item = Result<Line>;

    fn next(&mut self) -> Option<Result<Line>> {
        let text = match self.next_text() {
            Ok(text) => text?,
            Err(e) => return Some(Err(e)),
        };
        let line: Line = match serde_json::from_str(&text) {
            Ok(line) => line,
            Err(e) => return Some(Err(self.bad(format!("not a line of a trace ({e}); was it cut off?")))),
        };
        Some(Ok(Line { text, number: self.number, ..line }))
    }
}

/// Opens a trace: its kind, what its machines were built from, and its lines.
///
/// # Errors
/// If it cannot be read, or is not a trace of this version.
pub fn open(path: &Path) -> Result<(String, Value, Lines)> {
    let file = File::open(path).map_err(Error::io("read the trace", path))?;
    let mut lines = Lines { path: path.into(), number: 0, file: BufReader::new(file), is_cut: false };
    let Some(first) = lines.next_text()? else { return Err(lines.bad("the trace is empty".into())) };
    let header: Header = serde_json::from_str(&first).map_err(|e| lines.not_a_header(e))?;
    if (header.schema.as_str(), header.version) != (SCHEMA, VERSION) {
        let found = format!("{} version {}", header.schema, header.version);
        return Err(lines.bad(format!("this is {found}; {SCHEMA} version {VERSION} can be read")));
    }
    Ok((header.kind.unwrap_or_else(|| COLOCATION.into()), header.setup, lines))
}
