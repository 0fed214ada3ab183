//! What the test reports: a line while it runs, each violation with its history, a table at the
//! end.

use crate::content::{Part, Source};
use crate::history::{History, Object};
use crate::oracle::{Verified, Violation};
use crate::record::Got;
use std::collections::BTreeMap;
use std::fmt::Write;

const SECOND_NS: u64 = 1_000_000_000;

/// Parts of a read that are shown.
const PARTS_SHOWN: usize = 6;

/// Number of versions before the open that are shown.
const VERSIONS_BEFORE: usize = 4;

/// What a whole run has seen.
#[derive(Default)]
pub struct Totals {
    pub verified: Verified,
    pub handles: u64,
    pub done: BTreeMap<String, u64>,
    pub failed: BTreeMap<String, u64>,
    pub cut_off: u64,
    pub long_writes: u64,
    pub violations: BTreeMap<String, u64>,
}

impl Totals {
    pub fn add(&mut self, history: &History, verified: Verified, handles: u64) {
        self.verified += verified;
        self.handles += handles;
        self.cut_off += history.cut_off;
        self.long_writes += history.long_writes;
        for (what, count) in &history.done {
            *self.done.entry((*what).to_owned()).or_default() += count;
        }
        for (what, count) in &history.failed {
            *self.failed.entry(what.clone()).or_default() += count;
        }
    }

    pub fn bad(&self) -> u64 {
        self.violations.values().sum()
    }

    /// The table at the end.
    pub fn table(&self, faults: &BTreeMap<String, u64>, kills: u64, from_disk: u64) -> String {
        let mut text = String::new();
        let mut section = |title: &str, rows: Vec<(String, u64)>| {
            let _ = writeln!(text, "{title}");
            for (what, count) in rows {
                let _ = writeln!(text, "  {what:<38} {count:>12}");
            }
        };
        let own = |map: &BTreeMap<String, u64>| map.iter().map(|(k, v)| (k.clone(), *v)).collect::<Vec<_>>();
        section("changes", own(&self.done));
        section("changes that failed", own(&self.failed));
        section("faults that happened", own(faults));
        let v = &self.verified;
        section(
            "in all",
            vec![
                ("kills".into(), kills),
                ("changes cut off".into(), self.cut_off),
                ("long writes".into(), self.long_writes),
                ("files opened".into(), self.handles),
                ("reads verified".into(), v.reads),
                ("reads of the tier".into(), v.tier_reads),
                ("pages read from disk levels, at least".into(), from_disk),
                ("MiB verified".into(), v.bytes >> 20),
                ("reads beside a change".into(), v.torn),
                ("ESTALE, rightly".into(), v.stale),
            ],
        );
        section("violations", own(&self.violations));
        text
    }
}

fn seconds(at: u64, base: u64) -> String {
    let far = at.abs_diff(base) as f64 / SECOND_NS as f64;
    format!("{}{far:.6}", if at < base { "-" } else { "+" })
}

fn part(part: &Part) -> String {
    match &part.source {
        Source::Write(0) => format!("{}..{} zeros", part.start, part.end),
        Source::Write(write) => format!("{}..{} write {write}", part.start, part.end),
        Source::Raw(bytes) => {
            format!("{}..{} bytes {:02x?}", part.start, part.end, &bytes[..bytes.len().min(16)])
        }
    }
}

fn parts(all: &[Part]) -> String {
    let shown: Vec<_> = all.iter().take(PARTS_SHOWN).map(part).collect();
    let more = all.len().saturating_sub(PARTS_SHOWN);
    if more > 0 { format!("{}, and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

/// Everything about a violation; times are seconds from the open.
pub fn explain(violation: &Violation, history: &History, diary: &[(u64, String)]) -> String {
    let h = &violation.handle;
    let base = h.begin;
    let mut text = format!(
        "{}: file {} on node {}, {:?}{}{}: {}\n",
        violation.kind,
        h.path,
        h.node,
        h.kind,
        match (h.tiered, h.whole) {
            (true, true) => ", wholly in the tier at its open",
            (true, false) => ", with an agent",
            (false, _) => ", without an agent",
        },
        if h.moved { ", opened by a relative path and then moved away" } else { "" },
        violation.what
    );
    let _ = writeln!(text, "  opened +0 to {}: {:?}, version {}", seconds(h.end, base), h.opened, h.version);
    for read in &h.reads {
        let what = match &read.got {
            Got::Bytes(all) => format!("{} bytes: {}", read.len, parts(all)),
            Got::Error(errno) => format!("errno {errno}"),
        };
        let (begin, end) = (seconds(read.begin, base), seconds(read.end, base));
        let _ = writeln!(text, "  read {begin} to {end}: {} at {}: {what}", read.wanted, read.offset);
    }
    let last = h.reads.last().map_or(h.end, |r| r.end);
    for binding in history.bindings.get(&h.path).into_iter().flatten() {
        let object = &history.objects[binding.object];
        let (from, until) = (seconds(binding.from, base), seconds(binding.until, base));
        if binding.from > last || binding.until < base {
            continue;
        }
        let _ = writeln!(text, "  its name led to inode {} from {from} to {until}", object.ino);
        explain_object(&mut text, object, base, last);
    }
    let near = |at: u64| at + 5 * SECOND_NS >= base && at <= last;
    for (at, what) in diary.iter().filter(|(at, _)| near(*at)) {
        let _ = writeln!(text, "  fault {}: {what}", seconds(*at, base));
    }
    text
}

/// The versions from some before the open to the last read.
fn explain_object(text: &mut String, object: &Object, base: u64, last: u64) {
    let first =
        object.versions.iter().rposition(|v| v.end <= base).unwrap_or(0).saturating_sub(VERSIONS_BEFORE);
    for (nth, v) in object.versions.iter().enumerate().skip(first).filter(|(_, v)| v.begin <= last) {
        let (begin, end) = (seconds(v.begin, base), seconds(v.end, base));
        let _ = writeln!(text, "    version {nth}, {begin} to {end}: {} bytes by {}", v.state.size(), v.what);
        let _ = writeln!(text, "      {}", parts(v.state.parts()));
    }
    let since = object.versions[first].begin;
    for o in object.others.iter().filter(|o| o.end >= since && o.begin <= last) {
        let _ =
            writeln!(text, "    beside, {} to {}: {}", seconds(o.begin, base), seconds(o.end, base), o.what);
    }
}
