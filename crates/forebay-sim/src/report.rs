//! A report of a reproduction: prose, tables and figures as Markdown, and every number beside the
//! printed one as JSON.
//!
//! The Markdown is for a reader of the papers; `summary.json` is for machines, with ids that stay
//! the same so that two versions can be compared.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// One number of ours beside the paper's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Stable name, such as `eley/table5/naive-bb/1`.
    pub id: String,
    /// What the paper prints, if it prints it.
    pub paper: Option<f64>,
    /// What we get.
    pub ours: f64,
    /// `ours - paper`, in the same unit.
    pub difference: Option<f64>,
    /// Unit of all three.
    pub unit: String,
    /// What is asked of `ours`, in words.
    pub target: String,
    /// Whether it holds.
    pub met: bool,
    /// Why it differs, where it does; empty if there is nothing to say.
    pub note: String,
}

impl Record {
    /// A number without a printed one beside it, and whether it is as it should be.
    pub fn checked(
        id: impl Into<String>,
        ours: f64,
        unit: &str,
        target: impl Into<String>,
        met: bool,
    ) -> Self {
        Record {
            id: id.into(),
            paper: None,
            ours,
            difference: None,
            unit: unit.into(),
            target: target.into(),
            met,
            note: String::new(),
        }
    }

    /// A number that should be within `percent` of the printed one.
    pub fn within_percent(id: impl Into<String>, paper: f64, ours: f64, unit: &str, percent: f64) -> Self {
        let met = (ours / paper - 1.0).abs() * 100.0 <= percent;
        Record::checked(id, ours, unit, format!("within {percent} % of the paper"), met).beside(paper)
    }

    /// A number that should be within `by` (in its own unit) of the printed one.
    pub fn within(id: impl Into<String>, paper: f64, ours: f64, unit: &str, by: f64) -> Self {
        let met = (ours - paper).abs() <= by;
        Record::checked(id, ours, unit, format!("within {by} {unit} of the paper"), met).beside(paper)
    }

    /// The same with the paper's figure beside it.
    pub fn beside(mut self, paper: f64) -> Self {
        self.paper = Some(paper);
        self.difference = Some(self.ours - paper);
        self
    }

    /// The same with an explanation.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }
}

/// A report in the making; written out by [`Report::write`].
pub struct Report {
    dir: PathBuf,
    markdown: String,
    records: Vec<Record>,
}

impl Report {
    /// A report in directory `dir`, which is created.
    ///
    /// # Errors
    /// If the directory cannot be made.
    pub fn new(dir: &Path, title: &str) -> Result<Self> {
        fs::create_dir_all(dir).map_err(Error::io("create the report's directory", dir))?;
        Ok(Report { dir: dir.to_path_buf(), markdown: format!("# {title}\n"), records: Vec::new() })
    }

    /// Starts a section; `level` 2 is a chapter.
    pub fn heading(&mut self, level: usize, text: &str) {
        let _ = write!(self.markdown, "\n{} {text}\n\n", "#".repeat(level));
    }

    /// A paragraph.
    pub fn text(&mut self, text: &str) {
        let _ = write!(self.markdown, "{text}\n\n");
    }

    /// A table; every row has as many cells as `header`.
    pub fn table(&mut self, header: &[&str], rows: &[Vec<String>]) {
        let _ = writeln!(self.markdown, "| {} |", header.join(" | "));
        let _ = writeln!(self.markdown, "|{}", " --- |".repeat(header.len()));
        for row in rows {
            assert_eq!(row.len(), header.len(), "a row of the table {header:?} has {} cells", row.len());
            let _ = writeln!(self.markdown, "| {} |", row.join(" | "));
        }
        self.markdown.push('\n');
    }

    /// Writes `svg` to `name` beside the report and shows it with a caption.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn figure(&mut self, name: &str, svg: &str, caption: &str) -> Result<()> {
        let path = self.dir.join(name);
        fs::write(&path, svg).map_err(Error::io("write the figure", &path))?;
        let _ = write!(self.markdown, "![{caption}]({name})\n\n*{caption}*\n\n");
        Ok(())
    }

    /// Adds a number to `summary.json`.
    pub fn record(&mut self, record: Record) {
        self.records.push(record);
    }

    /// Adds numbers to `summary.json` and shows them as a table: paper, ours, difference, target.
    pub fn records(&mut self, records: Vec<Record>) {
        let rows: Vec<Vec<String>> = records
            .iter()
            .map(|r| {
                let or_dash = |v: Option<f64>| v.map_or("-".into(), number);
                vec![
                    r.id.clone(),
                    or_dash(r.paper),
                    number(r.ours),
                    or_dash(r.difference),
                    r.unit.clone(),
                    r.target.clone(),
                    if r.met { "yes" } else { "**no**" }.into(),
                    r.note.clone(),
                ]
            })
            .collect();
        self.table(&["what", "paper", "ours", "difference", "unit", "target", "met", "note"], &rows);
        self.records.extend(records);
    }

    /// The numbers so far.
    pub fn all_records(&self) -> &[Record] {
        &self.records
    }

    /// Writes `report.md` and `summary.json`.
    ///
    /// # Errors
    /// If a file cannot be written, or two records share an id.
    pub fn write(&self) -> Result<()> {
        let mut ids: Vec<&str> = self.records.iter().map(|r| r.id.as_str()).collect();
        ids.sort_unstable();
        if let Some(twice) = ids.windows(2).find(|w| w[0] == w[1]) {
            return Err(Error::Usage(format!("two results are both called {}", twice[0])));
        }
        let path = self.dir.join("report.md");
        fs::write(&path, &self.markdown).map_err(Error::io("write the report to", &path))?;
        let path = self.dir.join("summary.json");
        let mut json = serde_json::to_string_pretty(&self.records).map_err(std::io::Error::from);
        if let Ok(text) = json.as_mut() {
            text.push('\n');
        }
        json.and_then(|text| fs::write(&path, text)).map_err(Error::io("write the summary to", &path))
    }
}

/// A number for people: three decimals below 10, two below 100, one below 1,000, none above;
/// without trailing zeros.
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        v if v < 10.0 => 3,
        v if v < 100.0 => 2,
        v if v < 1000.0 => 1,
        _ => 0,
    };
    let text = format!("{value:.decimals$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if text == "-0" { "0".into() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        let got: Vec<String> = [0.0, -0.0001, 1.5, 12.345, 123.456, 6686.7].map(number).to_vec();
        assert_eq!(got, ["0", "0", "1.5", "12.35", "123.5", "6687"]);
    }

    #[test]
    fn targets_are_judged() {
        assert!(Record::within_percent("a", 100.0, 104.9, "s", 5.0).met);
        assert!(!Record::within_percent("a", 100.0, 94.0, "s", 5.0).met);
        let r = Record::within("a", 63.0, 60.0, "%", 5.0);
        assert_eq!((r.met, r.difference), (true, Some(-3.0)));
    }

    #[test]
    fn two_results_of_one_name_are_refused() {
        let dir = std::env::temp_dir().join(format!("forebay-report-{}", std::process::id()));
        let mut r = Report::new(&dir, "t").expect("a temporary directory");
        r.record(Record::checked("x", 1.0, "s", "any", true));
        r.record(Record::checked("x", 2.0, "s", "any", true));
        assert!(r.write().is_err());
        fs::remove_dir_all(&dir).expect("it was made above");
    }
}
