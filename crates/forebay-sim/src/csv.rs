//! Tables for spreadsheets and programs.
//!
//! Every file of results begins with two lines, each with a `#`: the version of the program, and
//! the command that writes the file again. The names of the columns follow.

use std::fs;
use std::path::Path;

use crate::error::{Error, Result};

/// What `forebay sim` runs.
const PROGRAM: &str = "forebay-sim";

/// Writes rows to a file of results.
///
/// # Errors
/// If it cannot be written.
pub fn write(path: &Path, what: &'static str, header: &[&str], rows: &[Vec<String>]) -> Result<()> {
    write_text(path, what, &csv(header, rows))
}

/// Writes rows that are CSV already.
///
/// # Errors
/// If it cannot be written.
pub fn write_text(path: &Path, what: &'static str, rows: &str) -> Result<()> {
    let text = format!("# forebay {}\n# {}\n{rows}", env!("CARGO_PKG_VERSION"), command());
    fs::write(path, text).map_err(Error::io(what, path))
}

/// The command line of this process, as a shell reads it.
pub fn command() -> String {
    let mut words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let program = words.next().unwrap_or_default();
    let is_ours = Path::new(&program).file_name().is_some_and(|name| name == PROGRAM);
    let program = if is_ours { "forebay sim".into() } else { quoted(&program) };
    words.fold(program, |line, word| line + " " + &quoted(&word))
}

/// Quotes a word for a shell, in one line.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-+=./,:@%^".contains(c);
    match word {
        _ if !word.is_empty() && word.chars().all(is_plain) => word.into(),
        _ if word.contains(char::is_control) => format!("$'{}'", word.escape_default()),
        _ => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Rows as CSV; cells are quoted where they have to be.
pub fn csv(header: &[&str], rows: &[Vec<String>]) -> String {
    let quote = |cell: &str| {
        if cell.contains([',', '"', '\n']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell.into()
        }
    };
    let line = |cells: Vec<&str>| cells.into_iter().map(quote).collect::<Vec<_>>().join(",") + "\n";
    let body: String = rows.iter().map(|r| line(r.iter().map(String::as_str).collect())).collect();
    line(header.to_vec()) + &body
}

/// A moment or a time in seconds, to the nanosecond.
pub fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// Formats a number to six decimals.
pub fn exact(value: f64) -> String {
    format!("{value:.6}")
}

/// A row where records of several kinds share a table.
pub fn record(kind: &str, name: &str, number: usize, cells: [String; 5]) -> Vec<String> {
    [kind.to_owned(), name.to_owned(), number.to_string()].into_iter().chain(cells).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn words_are_quoted_where_a_shell_would_split_or_change_them() {
        let words = ["sim", "hpc.0.io_s=1,2", "a b", "it's", "", "a\nb", "name#1"];
        let quoted = words.map(super::quoted);
        assert_eq!(quoted, ["sim", "hpc.0.io_s=1,2", "'a b'", r"'it'\''s'", "''", r"$'a\nb'", "'name#1'"]);
    }

    #[test]
    fn seconds_are_exact() {
        assert_eq!(super::seconds(90_000_000_000_000_001), "90000000.000000001");
    }

    #[test]
    fn cells_are_quoted_where_they_have_to_be() {
        let rows = [vec!["a,b".to_owned(), "1".to_owned()], vec!["say \"a\"".to_owned(), String::new()]];
        assert_eq!(super::csv(&["name", "n"], &rows), "name,n\n\"a,b\",1\n\"say \"\"a\"\"\",\n");
    }
}
