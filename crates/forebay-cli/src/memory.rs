//! `memory`: how the tier gives memory back to compute, and the last minutes as a chart.

use crate::Outcome;
use crate::cli::Global;
use crate::out::{no_agent, print};
use forebay_agent::units::Human;
use forebay_wire::{MemoryPoint, MemoryReason, MemoryStatus};
use std::io::{self, Write};
use std::process::ExitCode;

/// Rows and columns of the chart.
const ROWS: u64 = 12;
const COLUMNS: usize = 60;

/// Parts of a place's memory in a line.
const PARTS_IN_LINE: usize = 4;

/// Changes of the capacity that are shown.
const CHANGES_SHOWN: usize = 8;

/// Shows how the tier gives way.
pub fn memory(global: &Global) -> Outcome {
    let status = global.client().admin().memory().map_err(|e| no_agent(global, &e))?;
    print(global, &status, |out| write(&status, out))?;
    Ok(ExitCode::SUCCESS)
}

fn write(s: &MemoryStatus, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "policy    {}, target {} %, between {} and {}",
        s.policy,
        f64::from(s.target_per_10000) / 100.0,
        Human(s.min_bytes),
        Human(s.max_bytes)
    )?;
    writeln!(out, "tier      {} of {}", Human(s.tier_bytes), Human(s.capacity_bytes))?;
    if s.weight_bytes != s.max_bytes {
        writeln!(out, "          other nodes place extents here as for {}", Human(s.weight_bytes))?;
    }
    for place in &s.places {
        if !place.problem.is_empty() {
            writeln!(out, "in use    UNKNOWN, the tier does not grow: {}: {}", place.name, place.problem)?;
            continue;
        }
        let percent = place.used_bytes as f64 * 100.0 / place.total_bytes.max(1) as f64;
        writeln!(
            out,
            "in use    {} of {} ({percent:.1} %): {}",
            Human(place.used_bytes),
            Human(place.total_bytes),
            place.name
        )?;
        let parts: Vec<String> =
            place.parts.iter().map(|(name, bytes)| format!("{name} {}", Human(*bytes))).collect();
        for line in parts.chunks(PARTS_IN_LINE) {
            writeln!(out, "          {}", line.join(", "))?;
        }
    }
    for name in &s.awaited {
        writeln!(
            out,
            "no group  {name} (memory.watch) is not there now; the agent looks for it each second"
        )?;
    }
    for alarm in &s.alarms {
        writeln!(out, "alarm     {alarm}")?;
    }
    chart(s, out)?;
    changes(&s.points, out)
}

/// Columns of equal time: what compute has, what the tier holds, what the tier might hold.
fn chart(s: &MemoryStatus, out: &mut dyn Write) -> io::Result<()> {
    let (Some(first), Some(last)) = (s.points.first(), s.points.last()) else { return Ok(()) };
    let (span, total) = ((last.at_ms - first.at_ms).max(1), last.total_bytes.max(1));
    // The fullest moment of each column: a mean would hide what matters.
    let mut columns: Vec<Option<MemoryPoint>> = vec![None; COLUMNS];
    for point in &s.points {
        let at = ((point.at_ms - first.at_ms) * (COLUMNS as u64 - 1) / span) as usize;
        if columns[at].is_none_or(|kept| kept.used_bytes < point.used_bytes) {
            columns[at] = Some(*point);
        }
    }
    for at in 1..COLUMNS {
        columns[at] = columns[at].or(columns[at - 1]);
    }
    writeln!(out)?;
    let target = u64::from(s.target_per_10000) * ROWS / 10_000;
    for row in (0..ROWS).rev() {
        let cells: String = columns.iter().flatten().map(|point| cell(point, total, row)).collect();
        let label = match row {
            _ if row == target => "target".into(),
            _ if row + 1 == ROWS => Human(total).to_string(),
            0 => "0".into(),
            _ => String::new(),
        };
        writeln!(out, "{label:>10} |{cells}|")?;
    }
    let ago = format!("{} s ago", span / 1000);
    writeln!(out, "            {ago:<width$}now", width = COLUMNS - 3)?;
    writeln!(out, "            # compute  = tier  . free for the tier")
}

fn cell(point: &MemoryPoint, total: u64, row: u64) -> char {
    let height =
        |bytes: u64| (u128::from(bytes) * u128::from(ROWS) + u128::from(total) / 2) / u128::from(total);
    let compute = point.used_bytes.saturating_sub(point.tier_bytes);
    let row = u128::from(row);
    match () {
        () if row < height(compute) => '#',
        () if row < height(compute + point.tier_bytes) => '=',
        () if row < height(compute + point.capacity_bytes.max(point.tier_bytes)) => '.',
        () => ' ',
    }
}

/// The last changes of the capacity, with their reasons.
fn changes(points: &[MemoryPoint], out: &mut dyn Write) -> io::Result<()> {
    let Some(now) = points.last().map(|point| point.at_ms) else { return Ok(()) };
    let changes: Vec<_> = points.iter().filter_map(|point| Some((point, point.reason?))).collect();
    let shown = &changes[changes.len().saturating_sub(CHANGES_SHOWN)..];
    if !shown.is_empty() {
        writeln!(out)?;
    }
    for (point, reason) in shown {
        let why = match reason {
            MemoryReason::Above => "more than the target was in use",
            MemoryReason::Below => "compute needs less",
            MemoryReason::Growth => "compute was growing",
        };
        let ago = (now - point.at_ms) as f64 / 1000.0;
        writeln!(out, "{ago:>8.1} s ago: capacity {}: {why}", Human(point.capacity_bytes))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_wire::MemoryPlace;

    #[test]
    fn a_place_that_cannot_be_read_shows_no_number() {
        let problem = "/proc/meminfo of node cannot be understood".to_owned();
        let place = MemoryPlace {
            name: "node".into(),
            total_bytes: 12 << 30,
            used_bytes: 6 << 30,
            problem,
            parts: Vec::new(),
        };
        let status = MemoryStatus { places: vec![place], ..MemoryStatus::default() };
        let mut text = Vec::new();
        write(&status, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("UNKNOWN") && text.contains("/proc/meminfo"), "{text}");
        assert!(!text.contains("6.00 GiB"), "{text}");
    }

    #[test]
    fn the_chart_shows_compute_below_the_tier_below_what_is_free() {
        let point = |at_ms, used: u64, tier: u64, capacity: u64, reason| MemoryPoint {
            at_ms,
            used_bytes: used << 30,
            total_bytes: 12 << 30,
            tier_bytes: tier << 30,
            capacity_bytes: capacity << 30,
            reason,
        };
        let points = vec![point(0, 6, 2, 4, None), point(60_000, 11, 1, 1, Some(MemoryReason::Above))];
        let status =
            MemoryStatus { target_per_10000: 9500, max_bytes: 4 << 30, points, ..MemoryStatus::default() };
        let mut text = Vec::new();
        write(&status, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let column = |at: usize| -> String {
            let rows = text.lines().filter(|line| line.ends_with('|'));
            rows.map(|line| line.chars().nth(12 + at).unwrap()).collect()
        };
        assert_eq!(column(0), "    ..==####", "{text}");
        assert_eq!(column(COLUMNS - 1), " =##########", "{text}");
        assert!(
            text.contains("60 s ago")
                && text.contains("0.0 s ago: capacity 1.00 GiB: more than the target was in use"),
            "{text}"
        );
    }
}
