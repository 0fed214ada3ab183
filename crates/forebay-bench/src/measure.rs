//! Timing in turns, and the records that come of it.

use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    /// Stable name.
    pub id: String,
    /// Median; `None` if it was skipped, and the note says why.
    pub value: Option<f64>,
    /// Unit of value and reference.
    pub unit: String,
    /// What it is compared with: the alternative or the limit, measured in the same run.
    pub reference: Option<f64>,
    /// Median of the pairwise ratios value / reference.
    pub ratio: Option<f64>,
    /// The target, as text.
    pub target: String,
    /// Whether it is met.
    pub met: Option<bool>,
    /// Runs.
    pub runs: usize,
    /// How to measure it again.
    pub command: String,
    /// What the reference is, and what else a reader has to know.
    pub note: String,
}

/// A target on the ratio or on the value.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// Ratio at least.
    RatioAtLeast(f64),
    /// Ratio at most.
    RatioAtMost(f64),
    /// Value at least.
    AtLeast(f64),
    /// Value at most.
    AtMost(f64),
    /// None; reported only.
    Report,
}

impl Record {
    /// A record without a reference.
    pub fn alone(id: &str, value: f64, unit: &str, target: Target, runs: usize, note: &str) -> Self {
        Self::new(id, value, unit, None, None, target, runs, note)
    }

    /// A record of pairs: medians of both, and of their ratios.
    pub fn pairs(id: &str, pairs: &[(f64, f64)], unit: &str, target: Target, note: &str) -> Self {
        let value = median(pairs.iter().map(|p| p.0));
        let reference = median(pairs.iter().map(|p| p.1));
        let ratio = median(pairs.iter().map(|p| p.0 / p.1));
        Self::new(id, value, unit, Some(reference), Some(ratio), target, pairs.len(), note)
    }

    /// A figure that could not be measured, and why.
    pub fn skipped(id: &str, why: &str) -> Self {
        let note = format!("skipped: {why}");
        Record { value: None, ..Self::new(id, 0.0, "", None, None, Target::Report, 0, &note) }
    }

    #[allow(
        clippy::too_many_arguments,
        reason = "one argument per field, called from the two constructors only"
    )]
    fn new(
        id: &str,
        value: f64,
        unit: &str,
        reference: Option<f64>,
        ratio: Option<f64>,
        target: Target,
        runs: usize,
        note: &str,
    ) -> Self {
        let (text, met) = match (target, ratio) {
            (Target::RatioAtLeast(x), Some(r)) => (format!("ratio >= {x}"), Some(r >= x)),
            (Target::RatioAtMost(x), Some(r)) => (format!("ratio <= {x}"), Some(r <= x)),
            (Target::AtLeast(x), _) => (format!(">= {x} {unit}"), Some(value >= x)),
            (Target::AtMost(x), _) => (format!("<= {x} {unit}"), Some(value <= x)),
            _ => (String::new(), None),
        };
        let group = id.split('.').take(2).collect::<Vec<_>>().join(".");
        Record {
            id: id.into(),
            value: Some(value),
            unit: unit.into(),
            reference,
            ratio,
            target: text,
            met,
            runs,
            command: format!("make bench ONLY={group}"),
            note: note.into(),
        }
    }

    /// Formats the record as one line for a person.
    pub fn line(&self) -> String {
        let Some(value) = self.value else { return format!("{:<28} {}", self.id, self.note) };
        let number = |x: f64| if x.abs() >= 100.0 { format!("{x:.0}") } else { format!("{x:.3}") };
        let reference = self.reference.map(number).unwrap_or_default();
        let ratio = self.ratio.map(|r| format!("{r:.3}")).unwrap_or_default();
        let met = match self.met {
            Some(true) => "met",
            Some(false) => "NOT MET",
            None => "",
        };
        let value = format!("{} {}", number(value), self.unit);
        format!("{:<28} {value:>16} {reference:>10} {ratio:>8}  {:<18} {met}", self.id, self.target)
    }
}

/// The median; 0 if there are no values.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The value below which this share of the values falls; 0 if there are no values.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(at.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
}

/// Runs `ours` and `reference` in turn, once unmeasured and then `runs` times; each returns its own
/// figure.
pub fn in_turn(
    runs: usize,
    mut ours: impl FnMut() -> Result<f64, String>,
    mut reference: impl FnMut() -> Result<f64, String>,
) -> Result<Vec<(f64, f64)>, String> {
    ours()?;
    reference()?;
    (0..runs)
        .map(|i| {
            // The order alternates, so that neither always profits from the other's warm caches.
            if i % 2 == 0 {
                let ours = ours()?;
                Ok((ours, reference()?))
            } else {
                let reference = reference()?;
                Ok((ours()?, reference))
            }
        })
        .collect()
}

/// Seconds that `work` takes.
pub fn seconds<T>(work: impl FnOnce() -> std::io::Result<T>) -> Result<f64, String> {
    let started = Instant::now();
    work().map_err(|e| e.to_string())?;
    Ok(started.elapsed().as_secs_f64())
}

/// The table.
pub fn table(records: &[Record]) -> String {
    let head = format!("{:<28} {:>16} {:>10} {:>8}  {:<18}", "id", "value", "reference", "ratio", "target");
    let mut lines = vec![head];
    lines.extend(records.iter().map(Record::line));
    lines.join("\n")
}

/// Writes the records, replacing those of the same id from earlier partial runs.
pub fn write(path: &Path, records: &[Record]) -> Result<(), String> {
    let old: Vec<serde_json::Value> =
        std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let is_new = |v: &serde_json::Value| records.iter().any(|r| v["id"] == r.id.as_str());
    let mut all: Vec<_> = old.into_iter().filter(|v| !is_new(v)).collect();
    for record in records {
        all.push(serde_json::to_value(record).map_err(|e| e.to_string())?);
    }
    all.sort_by_key(|v| v["id"].as_str().unwrap_or_default().to_owned());
    let text = serde_json::to_string_pretty(&all).map_err(|e| e.to_string())?;
    let failed = |e: std::io::Error| format!("cannot write {}: {e}", path.display());
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(failed)?;
    }
    std::fs::write(path, text + "\n").map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_skipped_has_no_figure() {
        let record = Record::skipped("a.b", "not installed");
        assert!(record.line().ends_with("skipped: not installed"));
        assert_eq!(serde_json::to_value(&record).unwrap()["value"], serde_json::Value::Null);
    }

    #[test]
    fn quantiles_are_values_that_were_there() {
        let values: Vec<f64> = (1..=1000).map(f64::from).collect();
        assert_eq!((quantile(&values, 0.5), quantile(&values, 0.99)), (500.0, 990.0));
        assert_eq!((quantile(&values, 0.999), quantile(&values, 1.0)), (999.0, 1000.0));
        assert_eq!(quantile(&[], 0.5), 0.0);
    }

    #[test]
    fn medians_ratios_and_targets() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
        let record =
            Record::pairs("a.b.c", &[(2.0, 4.0), (3.0, 3.0), (9.0, 3.0)], "s", Target::RatioAtMost(1.0), "");
        assert_eq!((record.value, record.reference, record.ratio), (Some(3.0), Some(3.0), Some(1.0)));
        assert_eq!((record.met, record.command.as_str()), (Some(true), "make bench ONLY=a.b"));
        assert_eq!(Record::alone("x", 5.0, "ms", Target::AtLeast(6.0), 1, "").met, Some(false));
    }
}
