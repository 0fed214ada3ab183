//! Prints results: text for people, JSON for programs.

use crate::global::Global;
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Prints `value` as JSON with `--json`, else what `text` writes. A closed pipe is not an error:
/// the reader has seen enough.
pub fn print<T: Serialize>(
    global: &Global,
    value: &T,
    text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), String> {
    let mut stdout = io::stdout().lock();
    let written = if global.json {
        serde_json::to_writer_pretty(&mut stdout, value)
            .map_err(io::Error::from)
            .and_then(|()| writeln!(stdout))
    } else {
        text(&mut stdout)
    };
    unless_closed(written.and_then(|()| stdout.flush()))
}

/// Writes bytes to standard output. A closed pipe is not an error here either.
pub fn write_out(bytes: &[u8]) -> Result<(), String> {
    let mut stdout = io::stdout().lock();
    unless_closed(stdout.write_all(bytes).and_then(|()| stdout.flush()))
}

/// Returns the error of a write to standard output, unless it was closed.
pub fn unless_closed(written: io::Result<()>) -> Result<(), String> {
    match written {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {e}"))
        }
        _ => Ok(()),
    }
}

/// Pairs of a name and a number as one JSON object. The wire has them as a list, which keeps their
/// order.
pub fn object(pairs: &[(String, u64)]) -> serde_json::Value {
    pairs
        .iter()
        .map(|(name, value)| (name.clone(), (*value).into()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// An error of the agent, with its name. The client's own message names a missing agent.
pub fn no_agent(global: &Global, e: &io::Error) -> String {
    let client = global.client();
    let Some(socket) = client.socket().map(|p| p.display().to_string()) else { return e.to_string() };
    match e.kind() {
        _ if e.to_string().contains(&socket) => e.to_string(),
        io::ErrorKind::PermissionDenied => format!("the agent at {socket} refuses: {e}"),
        _ => format!("the agent at {socket}: {e}"),
    }
}

/// An error with the path it is about. Messages of the client name the file already where they can.
pub fn with_path(path: &Path, e: impl std::fmt::Display) -> String {
    let (path, text) = (path.display().to_string(), e.to_string());
    if text.starts_with(&path) { text } else { format!("{path}: {text}") }
}

/// Names the files that failed on standard error. Returns the command's exit status.
pub fn complain(failures: &[(PathBuf, io::Error)]) -> ExitCode {
    for (path, e) in failures {
        eprintln!("forebay: {}: {e}", path.display());
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// Characters that do more than appear in their place: they move the cursor, end a line, or change
/// the direction of what follows.
pub fn is_hostile(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Shortens a name to at most `most` characters, on one line.
pub fn short(name: &str, most: usize) -> String {
    let plain: String = name.chars().map(|c| if is_hostile(c) { '?' } else { c }).collect();
    if plain.chars().count() <= most { plain } else { plain.chars().take(most - 1).chain(['~']).collect() }
}

/// Bytes of a name as text; what is not UTF-8 or would break a line is escaped.
pub fn name(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                c if is_hostile(c) => out.extend(c.escape_default()),
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_stay_on_one_line_and_lose_nothing() {
        assert_eq!(super::name(b"plain/\xc3\xa4"), "plain/\u{e4}");
        assert_eq!(super::name(b"a\nb\xff\\"), "a\\nb\\xff\\\\");
        assert_eq!(super::name("\x1b[2J\u{202e}".as_bytes()), "\\u{1b}[2J\\u{202e}");
    }
}
