//! A report of a reproduction: prose, tables and figures as Markdown, and every number beside the
//! published one as JSON.
//!
//! The Markdown is for a reader of the papers; `summary.json` and `results.csv` are for machines,
//! with ids that stay the same so that two versions can be compared.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::estimate::Estimate;
use crate::figure::Figure;
use crate::table::Table;

/// What a number is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// The number that a paper publishes.
    Print,
    /// A value that follows from the model by other means: closed forms, another simulation.
    Model,
    /// A direction, an order or a bound; values are not compared.
    Direction,
    /// Our own target: no paper publishes anything to compare with.
    Ours,
    /// Nothing: constants were fitted on it, so its agreement shows nothing.
    Fitted,
}

/// Names of the columns of `results.csv`.
const COLUMNS: [&str; 12] =
    ["id", "paper", "ours", "low", "high", "count", "difference", "unit", "target", "met", "class", "note"];

/// How far a number may be from the published one, in percent of it.
const PRINT_PERCENT: f64 = 5.0;

/// One number of ours beside the paper's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Stable name, such as `eley/table5/naive-bb/1`.
    pub id: String,
    /// What it is compared with.
    pub class: Class,
    /// What the paper publishes, if it does.
    pub paper: Option<f64>,
    /// What we get.
    pub ours: f64,
    /// 95 % confidence interval of `ours` and the size of the sample, if `ours` is a mean of one.
    pub interval: Option<(f64, f64, usize)>,
    /// `ours - paper`, in the same unit.
    pub difference: Option<f64>,
    /// Unit of all three.
    pub unit: String,
    /// What `ours` should be, as text.
    pub target: String,
    /// Whether it holds; `None` if the number is shown without judgement.
    pub met: Option<bool>,
    /// Why it differs, where it does; empty if there is nothing to say.
    pub note: String,
}

impl Record {
    /// A number of ours without a published one, and whether it is as it should be.
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

    /// A number whose sign, order or bound should be as a paper or the model says.
    pub fn direction(
        id: impl Into<String>,
        ours: f64,
        unit: &str,
        target: impl Into<String>,
        met: bool,
    ) -> Self {
        Record { class: Class::Direction, ..Record::checked(id, ours, unit, target, met) }
    }

    /// A number that should have the value that the model gives by other means.
    pub fn model(id: impl Into<String>, ours: f64, unit: &str, target: impl Into<String>, met: bool) -> Self {
        Record { class: Class::Model, ..Record::checked(id, ours, unit, target, met) }
    }

    /// A number of ours that is shown without judgement.
    pub fn reported(id: impl Into<String>, ours: f64, unit: &str) -> Self {
        Record { met: None, ..Record::checked(id, ours, unit, "reported", true) }
    }

    /// A number that should be within [`PRINT_PERCENT`] of the published one, relatively.
    pub fn print(id: impl Into<String>, paper: f64, ours: f64, unit: &str) -> Self {
        let met = (ours - paper).abs() <= 0.01 * PRINT_PERCENT * paper.abs();
        let target = format!("within {PRINT_PERCENT} % of the paper");
        Record { class: Class::Print, ..Record::checked(id, ours, unit, target, met) }.beside(paper)
    }

    /// The same record, shown without judgement because constants were fitted on it.
    pub fn fitted(self) -> Self {
        Record { class: Class::Fitted, met: None, target: "fitted".into(), ..self }
    }

    /// The same record with the interval that it is judged on.
    pub fn over(mut self, estimate: &Estimate) -> Self {
        self.interval = estimate.interval.map(|(low, high)| (low, high, estimate.count));
        self
    }

    /// The same record with the paper's figure beside it.
    pub fn beside(mut self, paper: f64) -> Self {
        self.paper = Some(paper);
        self.difference = Some(self.ours - paper);
        self
    }

    /// The same record with an explanation.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }
}

/// How many numbers a report has, and how many of them are as they should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// What the papers publish.
    pub printed: Printed,
    /// Numbers that hold, and all that are judged: against values of the model,
    pub model: (usize, usize),
    /// against a direction, an order or a bound,
    pub direction: (usize, usize),
    /// and against our own targets.
    pub ours: (usize, usize),
}

impl Counts {
    /// Counts these records, without what the papers publish.
    pub fn of(records: &[Record], printed: Printed) -> Self {
        let count = |class| {
            let judged = || records.iter().filter(|r| r.class == class).filter_map(|r| r.met);
            (judged().filter(|met| *met).count(), judged().count())
        };
        Counts {
            printed,
            model: count(Class::Model),
            direction: count(Class::Direction),
            ours: count(Class::Ours),
        }
    }

    /// What report and command say about numbers that no paper publishes.
    pub fn sentence(&self) -> String {
        let Counts { model, direction, ours, .. } = self;
        format!(
            "{} of {} values are those that the model gives by other means, {} of {} directions and bounds hold, and {} of {} of our own targets are met.",
            model.0, model.1, direction.0, direction.1, ours.0, ours.1
        )
    }
}

/// How many results the papers publish, by what we have beside them. Each published result counts
/// once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Printed {
    /// Within 5 %, by simulation, without a fit on the results themselves.
    pub simulated: usize,
    /// The same, by a formula.
    pub computed: usize,
    /// Further off.
    pub off: usize,
    /// Compared in direction only: a sign, an order or a bound.
    pub direction: usize,
    /// Constants were fitted on them.
    pub fitted: usize,
    /// No run covers them.
    pub not_reproduced: usize,
}

impl Printed {
    /// What README, report and command say.
    pub fn headline(&self) -> String {
        let Printed { simulated, computed, off, direction, fitted, not_reproduced } = self;
        let all = simulated + computed + off + direction + fitted + not_reproduced;
        let within = simulated + computed;
        format!(
            "Of {all} results that the papers print, {within} are within 5 % without a fit on themselves, {simulated} of these by simulation and {computed} by formulas."
        )
    }

    /// What the documents and the report say about the others.
    pub fn rest(&self) -> String {
        let Printed { off, direction, fitted, not_reproduced, .. } = self;
        format!(
            "{off} are further off, {direction} are compared in direction only, constants were fitted on {fitted}, and {not_reproduced} are not reproduced."
        )
    }
}

/// A report in preparation; written by [`Report::write`].
pub struct Report {
    dir: PathBuf,
    title: String,
    markdown: String,
    printed: Printed,
    records: Vec<Record>,
}

impl Report {
    /// Starts a report in directory `dir`, which is created.
    ///
    /// # Errors
    /// If the directory cannot be made.
    pub fn new(dir: &Path, title: &str) -> Result<Self> {
        fs::create_dir_all(dir).map_err(Error::io("create the report's directory", dir))?;
        Ok(Report {
            dir: dir.to_path_buf(),
            title: title.into(),
            markdown: String::new(),
            printed: Printed::default(),
            records: Vec::new(),
        })
    }

    /// Starts a section; `level` 2 is a chapter.
    pub fn heading(&mut self, level: usize, text: &str) {
        let _ = write!(self.markdown, "\n{} {text}\n\n", "#".repeat(level));
    }

    /// Adds a paragraph.
    pub fn text(&mut self, text: &str) {
        let _ = write!(self.markdown, "{text}\n\n");
    }

    /// Adds a table; every row has as many cells as `header`.
    pub fn table(&mut self, header: &[&str], rows: &[Vec<String>]) {
        let _ = writeln!(self.markdown, "| {} |", header.join(" | "));
        let _ = writeln!(self.markdown, "|{}", " --- |".repeat(header.len()));
        for row in rows {
            assert_eq!(row.len(), header.len(), "a row of the table {header:?} has {} cells", row.len());
            let _ = writeln!(self.markdown, "| {} |", row.join(" | "));
        }
        self.markdown.push('\n');
    }

    /// Writes `figure` to `name` next to the report, with its data, and shows it with a caption.
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

    /// Sets how many of the published results are reproduced, and how.
    pub fn printed(&mut self, printed: Printed) {
        self.printed = printed;
    }

    /// Counts of the numbers so far.
    pub fn counts(&self) -> Counts {
        Counts::of(&self.records, self.printed)
    }

    /// The numbers so far.
    pub fn all_records(&self) -> &[Record] {
        &self.records
    }

    /// Where [`Report::write`] writes the text.
    pub fn path(&self) -> PathBuf {
        self.dir.join("report.md")
    }

    /// The numbers as JSON, and how many of them hold.
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

    /// The numbers, one row each.
    fn results(&self) -> Table {
        let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
        let row = |r: &Record| {
            let (low, high, count) = match r.interval {
                Some((low, high, count)) => (number(Some(low)), number(Some(high)), count.to_string()),
                None => Default::default(),
            };
            let met = r.met.map_or(String::new(), |met| met.to_string());
            let class = serde_json::to_value(r.class).unwrap_or_default();
            let class = class.as_str().unwrap_or_default().to_owned();
            let numbers = [number(r.paper), number(Some(r.ours)), low, high, count, number(r.difference)];
            let texts = [r.unit.clone(), r.target.clone(), met, class, r.note.clone()];
            std::iter::once(r.id.clone()).chain(numbers).chain(texts).collect()
        };
        Table::new(&COLUMNS, self.records.iter().map(row).collect())
    }

    /// Writes `report.md`, `summary.json` and `results.csv`.
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
        let counts = self.counts();
        let sentences = [counts.printed.headline(), counts.printed.rest(), counts.sentence()].join(" ");
        let text = format!("# {}\n\n{sentences}\n{}", self.title, self.markdown);
        fs::write(&path, text).map_err(Error::io("write the report to", &path))?;
        let path = self.dir.join("summary.json");
        let mut json = serde_json::to_string_pretty(&self.records).map_err(std::io::Error::from);
        if let Ok(text) = json.as_mut() {
            text.push('\n');
        }
        json.and_then(|text| fs::write(&path, text)).map_err(Error::io("write the summary to", &path))?;
        self.results().write(&self.dir.join("results.csv"))
    }
}

/// Formats a number for people: three decimals below 10, two below 100, one below 1,000, none
/// above; without trailing zeros.
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
        assert_eq!(Record::print("a", 100.0, 104.9, "s").met, Some(true));
        assert_eq!(Record::print("a", -100.0, -94.0, "s").met, Some(false));
        assert_eq!(Record::print("a", 0.0, 0.0, "s").met, Some(true));
        let r = Record::print("a", 26.0, 30.0, "%");
        assert_eq!(
            (r.met, r.difference, r.target.as_str()),
            (Some(false), Some(4.0), "within 5 % of the paper")
        );
        let fitted = r.fitted();
        assert_eq!((fitted.met, fitted.class), (None, Class::Fitted));
    }

    #[test]
    fn numbers_are_counted_by_what_they_are_compared_with() {
        let records = [
            Record::print("a", 1.0, 1.0, "s"),
            Record::print("c", 1.0, 2.0, "s").fitted(),
            Record::model("d", 1.0, "s", "any", true),
            Record::direction("e", 1.0, "s", "any", true),
            Record::direction("f", 1.0, "s", "any", false),
            Record::checked("g", 1.0, "s", "any", false),
            Record::reported("h", 1.0, "s"),
        ];
        let printed = Printed { simulated: 1, fitted: 1, ..Printed::default() };
        let want = Counts { printed, model: (1, 1), direction: (1, 2), ours: (0, 1) };
        assert_eq!(Counts::of(&records, printed), want);
        let all = "Of 2 results that the papers print, 1 are within 5 % without a fit on themselves, 1 of these by simulation and 0 by formulas.";
        assert_eq!(printed.headline(), all);
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
