//! `checkpoint`: sets of checkpoints that stay in the tier.

use crate::Outcome;
use crate::cli::Global;
use crate::out::{is_hostile, name, no_agent, print};
use crate::patterns::whole_pattern;
use forebay_agent::units::Human;
use forebay_wire::{CheckpointRule, CheckpointSeries, CheckpointSet, SetState};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

/// Makes, changes or ends a rule.
pub fn keep(global: &Global, sets: u32, selector: &Path) -> Outcome {
    let client = global.client();
    let selector = selected(selector)?;
    // Without sets the marker ends as well.
    let marker = (sets == 0).then(String::new);
    let rule = CheckpointRule { selector: selector.clone(), keep: Some(sets), marker };
    client.set_checkpoint_rule(rule).map_err(|e| no_agent(global, &e))?;
    print(global, &serde_json::json!({ "selector": selector, "keep": sets }), |out| match sets {
        0 => writeln!(out, "no checkpoints of {selector} are kept any more"),
        _ => {
            writeln!(out, "the newest {sets} whole sets of {selector} stay in the tier, from the next one on")
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A job has a plain name; anything else is a pattern of paths.
fn selected(selector: &Path) -> Result<String, String> {
    match selector.to_str() {
        Some(job) if !job.contains(['/', '*', '?', '[', '.']) && !selector.exists() => Ok(job.to_owned()),
        _ => whole_pattern("checkpoint keep", selector),
    }
}

/// Prints the files of the newest whole set.
pub fn newest(global: &Global, selector: &Path) -> Outcome {
    let wanted = selected(selector)?;
    let all = global.client().checkpoints().map_err(|e| no_agent(global, &e))?;
    let own = rustix::process::geteuid().as_raw();
    // The operator sees those of other users as well.
    let mut series: Vec<_> = all.iter().filter(|series| series.selector == wanted).collect();
    series.sort_by_key(|series| series.uid != own);
    let series = series
        .first()
        .ok_or_else(|| format!("no rule for {wanted}; `forebay checkpoint list` lists the rules"))?;
    let is_there = |path: &Vec<u8>| Path::new(OsStr::from_bytes(path)).exists();
    let is_whole = |set: &&CheckpointSet| set.state == SetState::Whole && set.paths.iter().all(is_there);
    let whole = series.sets.iter().rev().find(is_whole);
    let set = whole.ok_or_else(|| format!("{wanted} has no whole set yet"))?;
    if set.files > set.paths.len() as u64 {
        eprintln!("forebay: the set has {} files; these are the first", set.files);
    }
    let mut paths = set.paths.clone();
    paths.sort();
    print(global, &paths.iter().map(|path| name(path)).collect::<Vec<_>>(), |out| {
        paths.iter().try_for_each(|path| out.write_all(path).and_then(|()| writeln!(out)))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Lists rules and their sets.
pub fn list(global: &Global) -> Outcome {
    let all = global.client().checkpoints().map_err(|e| no_agent(global, &e))?;
    print(global, &all.iter().map(json).collect::<Vec<_>>(), |out| {
        if all.is_empty() {
            return writeln!(out, "no rules; `forebay checkpoint keep N JOB-OR-PATTERN` makes one");
        }
        all.iter().try_for_each(|series| write_series(series, out))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn write_series(series: &CheckpointSeries, out: &mut dyn Write) -> io::Result<()> {
    let marker = match series.marker.as_str() {
        "" => String::new(),
        marker => format!(", marker {marker}"),
    };
    writeln!(out, "{}: keeps {}{marker}", plain(&series.selector), series.keep)?;
    if series.sets.is_empty() {
        return writeln!(out, "  no set yet");
    }
    let [number, age, files, bytes, memory, pfs] = ["SET", "AGE", "FILES", "BYTES", "MEMORY", "ON PFS"];
    writeln!(out, "{number:>6} {age:>9} {files:>6} {bytes:>10} {memory:>7} {pfs:>7}  {:<10} IN", "STATE")?;
    for set in &series.sets {
        let (age, bytes) = (format!("{} s", age_s(set)), Human(set.bytes).to_string());
        let directory = name(&set.directory);
        let state = match set.held {
            true => format!("{}, held", in_words(set.state)),
            false => in_words(set.state).into(),
        };
        writeln!(
            out,
            "{:>6} {age:>9} {:>6} {bytes:>10} {:>7} {:>7}  {state:<10} {directory}",
            set.number, set.files, set.in_memory, set.on_pfs
        )?;
        if !set.marker.is_empty() {
            writeln!(out, "       {}", plain(&set.marker))?;
        }
    }
    Ok(())
}

fn plain(text: &str) -> String {
    text.chars().map(|c| if is_hostile(c) { '?' } else { c }).collect()
}

fn in_words(state: SetState) -> &'static str {
    match state {
        SetState::Writing => "writing",
        SetState::Whole => "whole",
        SetState::NotClosed => "not closed",
        SetState::PastTier => "past the tier",
        SetState::Changed => "changed",
    }
}

fn age_s(set: &CheckpointSet) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as i64).saturating_sub(set.began_ns) / 1_000_000_000
}

fn json(series: &CheckpointSeries) -> serde_json::Value {
    let set = |set: &CheckpointSet| {
        serde_json::json!({
            "number": set.number, "began_ns": set.began_ns, "files": set.files, "bytes": set.bytes,
            "in_memory": set.in_memory, "on_pfs": set.on_pfs, "state": set.state, "held": set.held,
            "directory": name(&set.directory),
            "paths": set.paths.iter().map(|path| name(path)).collect::<Vec<_>>(), "marker": set.marker,
        })
    };
    serde_json::json!({
        "selector": series.selector, "uid": series.uid, "keep": series.keep, "marker": series.marker,
        "sets": series.sets.iter().map(set).collect::<Vec<_>>(),
    })
}
