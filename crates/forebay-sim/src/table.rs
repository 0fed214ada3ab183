//! Rows with named columns: what the commands print and write, and the Python module returns.
//!
//! Cells are texts, rounded as they are shown. A column's name says whether they are names or
//! numbers, so that JSON and Python agree.

use std::path::Path;

use serde_json::{Map, Number, Value};

use crate::csv;
use crate::error::Result;

/// Columns of names. A job may be called `12`, and is that job, not a number.
const TEXT_COLUMNS: [&str; 14] = [
    "policy",
    "drain",
    "allocation",
    "access",
    "kind",
    "name",
    "job",
    "end",
    "storage",
    "action",
    "what",
    "measure",
    "change_in",
    "difference",
];

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// `[row][column]`; empty or `-` where a number is missing.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table of these columns and rows.
    pub fn new<S: AsRef<str>>(columns: &[S], rows: Vec<Vec<String>>) -> Self {
        Table { columns: columns.iter().map(|name| name.as_ref().to_owned()).collect(), rows }
    }

    /// As CSV.
    pub fn csv(&self) -> String {
        csv::csv(&self.header(), &self.rows)
    }

    /// Writes it to a file of results.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        csv::write(path, "write the rows to", &self.header(), &self.rows)
    }

    /// As JSON objects, by the names of the columns.
    pub fn objects(&self) -> Value {
        objects(&self.header(), &self.rows)
    }

    fn header(&self) -> Vec<&str> {
        self.columns.iter().map(String::as_str).collect()
    }
}

/// A cell of the column as a value: a number, a text, or null.
pub fn value(column: &str, cell: &str) -> Value {
    if TEXT_COLUMNS.contains(&column) {
        return cell.into();
    }
    if cell.is_empty() || cell == "-" {
        return Value::Null;
    }
    let whole = cell.parse::<i64>().ok().map(Into::into);
    let number = || cell.parse::<f64>().ok().and_then(Number::from_f64).map(Into::into);
    whole.or_else(number).unwrap_or_else(|| cell.into())
}

/// Rows as JSON objects, by the names of the columns.
pub fn objects(columns: &[&str], rows: &[Vec<String>]) -> Value {
    let object = |row: &Vec<String>| -> Value {
        let cells = columns.iter().zip(row).map(|(column, cell)| (column.to_string(), value(column, cell)));
        cells.collect::<Map<_, _>>().into()
    };
    rows.iter().map(object).collect()
}
