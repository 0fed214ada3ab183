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
use crate::estimate::Estimate;
use crate::figure::Figure;

/// What a number is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// The number that a paper prints.
    Print,
    /// What follows from the model by other means (closed forms, bounds, another simulation), or
    /// what a paper says in words.
    Model,
    /// Our own target: no paper prints anything to compare with.
    Ours,
    /// Nothing: constants were fitted on it, so its agreement shows nothing.
    Fitted,
}

/// One number of ours beside the paper's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Stable name, such as `eley/table5/naive-bb/1`.
    pub id: String,
    /// What it is compared with.
    pub class: Class,
    /// What the paper prints, if it prints it.
    pub paper: Option<f64>,
    /// What we get.
    pub ours: f64,
    /// 95 % confidence interval of `ours` and the size of the sample, if it is a mean of one.
    pub interval: Option<(f64, f64, usize)>,
    /// `ours - paper`, in the same unit.
    pub difference: Option<f64>,
    /// Unit of all three.
    pub unit: String,
    /// What is asked of `ours`, in words.
    pub target: String,
    /// Whether it holds; `None` if the number is shown without judgement.
    pub met: Option<bool>,
    /// Why it differs, where it does; empty if there is nothing to say.
    pub note: String,
}

impl Record {
    /// A number of ours without a printed one, and whether it is as it should be.
    pub fn checked(
        id: impl Into<String>,
        ours: f64,
        unit: &str,
        target: impl Into<String>,
        met: bool,
    ) -> Self {
        Record {
            id: id.into(),
            class: Class::Ours,
            paper: None,
            ours,
            interval: None,
            difference: None,
            unit: unit.into(),
            target: target.into(),
            met: Some(met),
            note: String::new(),
        }
    }

    /// A number that should be as the model says, or as a paper says in words.
    pub fn model(id: impl Into<String>, ours: f64, unit: &str, target: impl Into<String>, met: bool) -> Self {
        Record { class: Class::Model, ..Record::checked(id, ours, unit, target, met) }
    }

    /// A number of ours that is shown without judgement.
    pub fn reported(id: impl Into<String>, ours: f64, unit: &str) -> Self {
        Record { met: None, ..Record::checked(id, ours, unit, "reported", true) }
    }

    /// A number that should be within `percent` of the printed one, relatively.
    pub fn within_percent(id: impl Into<String>, paper: f64, ours: f64, unit: &str, percent: f64) -> Self {
        let met = (ours / paper - 1.0).abs() * 100.0 <= percent;
        Record::print(id, paper, ours, unit, format!("within {percent} % of the paper"), met)
    }

    /// A percentage that should be within so many points of the printed one.
    pub fn within_points(id: impl Into<String>, paper: f64, ours: f64, points: f64) -> Self {
        let met = (ours - paper).abs() <= points;
        Record::print(id, paper, ours, "%", format!("within {points} points of the paper"), met)
    }

    /// A number that should be the printed one.
    pub fn equal(id: impl Into<String>, paper: f64, ours: f64, unit: &str) -> Self {
        Record::print(id, paper, ours, unit, "the paper's".into(), ours == paper)
    }

    fn print(id: impl Into<String>, paper: f64, ours: f64, unit: &str, target: String, met: bool) -> Self {
        Record { class: Class::Print, ..Record::checked(id, ours, unit, target, met) }.beside(paper)
    }

    /// The same, shown without judgement because constants were fitted on it.
    pub fn fitted(self) -> Self {
        Record { class: Class::Fitted, met: None, target: "fitted".into(), ..self }
    }

    /// Whether a paper prints another number: the target on it is missed or, if the target is
    /// another, it is off by more than 5 %.
    pub fn differs_from_print(&self) -> bool {
        match self.class {
            Class::Fitted => false,
            Class::Print => self.met == Some(false),
            Class::Model | Class::Ours => {
                self.difference.zip(self.paper).is_some_and(|(d, p)| d.abs() > 0.05 * p.abs())
            }
        }
    }

    /// The same with the interval that it is judged on.
    pub fn over(mut self, estimate: &Estimate) -> Self {
        self.interval = estimate.interval.map(|(low, high)| (low, high, estimate.count));
        self
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

/// How many numbers a report has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Those that hold, and all that are judged: against print, the model, our own targets.
    pub print: (usize, usize),
    /// Against the model.
    pub model: (usize, usize),
    /// Against our own targets.
    pub ours: (usize, usize),
    /// Those that constants were fitted on.
    pub fitted: usize,
    /// Others without judgement.
    pub reported: usize,
    /// Results that papers print and that the report does not reproduce.
    pub not_reproduced: usize,
}

impl Counts {
    /// Of these records.
    pub fn of(records: &[Record], not_reproduced: usize) -> Self {
        let mut counts = Counts { not_reproduced, ..Counts::default() };
        for record in records {
            let judged = match (record.class, record.met) {
                (Class::Fitted, _) => {
                    counts.fitted += 1;
                    continue;
                }
                (_, None) => {
                    counts.reported += 1;
                    continue;
                }
                (Class::Print, Some(_)) => &mut counts.print,
                (Class::Model, Some(_)) => &mut counts.model,
                (Class::Ours, Some(_)) => &mut counts.ours,
            };
            judged.0 += usize::from(record.met == Some(true));
            judged.1 += 1;
        }
        counts
    }

    /// What README, documents, report and command say.
    pub fn sentence(&self) -> String {
        let Counts { print, model, ours, fitted, reported, not_reproduced } = self;
        format!(
            "{} of {} numbers match the printed ones, {} of {} are consistent with the model, and {} of {} without a printed value meet our targets. \
             {fitted} numbers on which constants were fitted and {reported} others are shown without judgement. \
             {not_reproduced} printed results are not reproduced.",
            print.0, print.1, model.0, model.1, ours.0, ours.1
        )
    }
}

/// A report in the making; written out by [`Report::write`].
pub struct Report {
    dir: PathBuf,
    title: String,
    markdown: String,
    not_reproduced: usize,
    records: Vec<Record>,
}

impl Report {
    /// A report in directory `dir`, which is created.
    ///
    /// # Errors
    /// If the directory cannot be made.
    pub fn new(dir: &Path, title: &str) -> Result<Self> {
        fs::create_dir_all(dir).map_err(Error::io("create the report's directory", dir))?;
        Ok(Report {
            dir: dir.to_path_buf(),
            title: title.into(),
            markdown: String::new(),
            not_reproduced: 0,
            records: Vec::new(),
        })
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

    /// Writes `figure` to `name` beside the report, with its data, and shows it with a caption.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn figure(&mut self, name: &str, figure: &Figure, caption: &str) -> Result<()> {
        figure.write(&self.dir.join(name), "write the figure")?;
        let _ = write!(self.markdown, "![{caption}]({name})\n\n*{caption}* ([data]({name}.csv))\n\n");
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
                    r.interval.map_or("-".into(), |(low, high, n)| {
                        format!("{} to {} ({n})", number(low), number(high))
                    }),
                    or_dash(r.difference),
                    r.unit.clone(),
                    r.target.clone(),
                    match r.met {
                        Some(true) => "yes",
                        Some(false) => "**no**",
                        None => "-",
                    }
                    .into(),
                    r.note.clone(),
                ]
            })
            .collect();
        self.table(
            &["what", "paper", "ours", "95 % interval (of)", "difference", "unit", "target", "met", "note"],
            &rows,
        );
        self.records.extend(records);
    }

    /// Shows as a table what papers print and the report does not reproduce, and counts it.
    pub fn not_reproduced(&mut self, header: &[&str], rows: &[Vec<String>]) {
        self.not_reproduced += rows.len();
        self.table(header, rows);
    }

    /// How many numbers there are so far.
    pub fn counts(&self) -> Counts {
        Counts::of(&self.records, self.not_reproduced)
    }

    /// The numbers so far.
    pub fn all_records(&self) -> &[Record] {
        &self.records
    }

    /// Where [`Report::write`] writes the text.
    pub fn path(&self) -> PathBuf {
        self.dir.join("report.md")
    }

    /// Its numbers, and how many of them hold.
    pub fn json(&self) -> serde_json::Value {
        let count = |met: fn(Option<bool>) -> bool| self.records.iter().filter(|r| met(r.met)).count();
        serde_json::json!({
            "report": self.path(),
            "met": count(|met| met == Some(true)),
            "judged": count(|met| met.is_some()),
            "counts": self.counts(),
            "results": self.records,
        })
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
        let path = self.path();
        let text = format!("# {}\n\n{}\n{}", self.title, self.counts().sentence(), self.markdown);
        fs::write(&path, text).map_err(Error::io("write the report to", &path))?;
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
        assert_eq!(Record::within_percent("a", 100.0, 104.9, "s", 5.0).met, Some(true));
        assert_eq!(Record::within_percent("a", 100.0, 94.0, "s", 5.0).met, Some(false));
        let r = Record::within_points("a", 63.0, 60.0, 5.0);
        assert_eq!(
            (r.met, r.difference, r.target.as_str()),
            (Some(true), Some(-3.0), "within 5 points of the paper")
        );
        let fitted = r.fitted();
        assert_eq!((fitted.met, fitted.class), (None, Class::Fitted));
    }

    #[test]
    fn numbers_are_counted_by_what_they_are_compared_with() {
        let records = [
            Record::equal("a", 1.0, 1.0, "s"),
            Record::equal("b", 1.0, 2.0, "s"),
            Record::equal("c", 1.0, 2.0, "s").fitted(),
            Record::model("d", 1.0, "s", "any", true),
            Record::checked("e", 1.0, "s", "any", false),
            Record::reported("f", 1.0, "s"),
        ];
        let want =
            Counts { print: (1, 2), model: (1, 1), ours: (0, 1), fitted: 1, reported: 1, not_reproduced: 7 };
        assert_eq!(Counts::of(&records, 7), want);
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
