//! A run for people: rows for a table or a spreadsheet, and a timeline.

use super::{Outcome, Setup};
use crate::csv::seconds;
use crate::figure::Figure;
use crate::plot::timeline::{Level, Timeline};
use crate::report::number;

/// Names of the columns of [`rows`].
pub const COLUMNS: [&str; 9] =
    ["policy", "seed", "name", "map_s", "pfs_alone_s", "pfs_mb", "tasks", "tasks_local", "sides"];

/// One row per job; a job that the horizon interrupted has no map time. The bytes that the file
/// system served are those of all jobs.
pub fn rows(setup: &Setup, outcome: &Outcome) -> Vec<Vec<String>> {
    let row = |job: &super::JobOutcome| {
        vec![
            setup.policy.clone(),
            setup.seed.to_string(),
            job.name.clone(),
            if job.tasks_left == 0 { format!("{:.3}", job.map_ns as f64 * 1e-9) } else { String::new() },
            format!("{:.3}", outcome.bound_ns as f64 * 1e-9),
            format!("{:.3}", outcome.served_bytes as f64 * 1e-6),
            job.tasks.to_string(),
            job.local.to_string(),
            job.sides(),
        ]
    };
    outcome.jobs.iter().map(row).collect()
}

/// Names of the columns of [`records`].
pub const RECORDS: [&str; 4] = ["job", "slot", "begin_s", "end_s"];

/// A row per task that has ended.
pub fn records(outcome: &Outcome) -> Vec<Vec<String>> {
    let task = |name: &str, (slot, begin_ns, end_ns): (usize, u64, u64)| {
        vec![name.to_owned(), slot.to_string(), seconds(begin_ns), seconds(end_ns)]
    };
    outcome.jobs.iter().flat_map(|job| job.ran.iter().map(|ran| task(&job.name, *ran))).collect()
}

/// Kinds of levels that [`levels`] draws, with their colours.
pub const KINDS: [(&str, &str); 5] = [
    ("tasks", "#999999"),
    ("prefetches", "#009e73"),
    ("fetches for readers", "#d55e00"),
    ("tier may hold", "#f0e442"),
    ("tier holds", "#cc79a7"),
];
const TASKS: usize = 0;
const PREFETCHES: usize = 1;
const FETCHES: usize = 2;
const CAPACITY: usize = 3;
const HOLDS: usize = 4;

/// Changes of a value: when, in ns, and by how much.
type Changes = Vec<(u64, i64)>;

/// The value over time, in seconds.
fn summed(mut changes: Changes) -> Vec<(f64, f64)> {
    changes.sort_unstable_by_key(|(at_ns, _)| *at_ns);
    let mut points: Vec<(f64, f64)> = Vec::new();
    let mut sum = 0;
    for (at_ns, change) in changes {
        sum += change;
        let at_s = at_ns as f64 * 1e-9;
        match points.last_mut().filter(|(last_s, _)| *last_s == at_s) {
            Some((_, value)) => *value = sum as f64,
            None => points.push((at_s, sum as f64)),
        }
    }
    points
}

/// One line per node, or server that runs tasks: how many tasks run, how fast it fetches, and what
/// its tier holds. `capacities` has for each node when its tier changed, in seconds, and to how
/// many bytes; if it is empty, tiers do not change. Kinds are counted from `kind` on, rows from
/// `row` on.
pub fn levels(
    setup: &Setup,
    outcome: &Outcome,
    capacities: &[Vec<(f64, f64)>],
    (row, kind): (usize, usize),
) -> (Vec<String>, Vec<Level>) {
    let slots = setup.hosts_of_slots();
    let hosts = slots.iter().max().map_or(0, |last| last + 1);
    let names = (0..hosts).map(|host| setup.host_name(host)).collect();
    let mut slots_of = vec![0; hosts];
    slots.iter().for_each(|host| slots_of[*host] += 1);
    let mut changes: Vec<[Changes; HOLDS + 1]> = vec![Default::default(); hosts];
    for (slot, begin_ns, end_ns) in outcome.jobs.iter().flat_map(|job| &job.ran) {
        changes[slots[*slot]][TASKS].extend([(*begin_ns, 1), (*end_ns, -1)]);
    }
    for page in &outcome.activity.fetched {
        let of_node = &mut changes[page.node as usize];
        let kind = if page.is_planned { PREFETCHES } else { FETCHES };
        let bytes_per_s = f64::from(page.bytes) * 1e9 / (page.end_ns - page.begin_ns).max(1) as f64;
        of_node[kind].extend([(page.begin_ns, bytes_per_s as i64), (page.end_ns, -(bytes_per_s as i64))]);
        of_node[HOLDS].push((page.end_ns, i64::from(page.bytes)));
    }
    for (node, at_ns, bytes) in &outcome.activity.gone {
        changes[*node as usize][HOLDS].push((*at_ns, -(*bytes as i64)));
    }
    let share = setup.serves_bytes_per_s() * f64::from(setup.servers) / f64::from(setup.nodes);
    let level = |host: usize, of: usize, changes: Changes| {
        let most = capacities.get(host).map(|points| points.iter().map(|p| p.1).fold(0.0, f64::max));
        let most = most.unwrap_or(setup.tier_bytes as f64);
        let capacity = || capacities.get(host).cloned().unwrap_or_else(|| vec![(0.0, most)]);
        let (full, what) = match of {
            TASKS => (f64::from(slots_of[host]), "tasks"),
            PREFETCHES | FETCHES => (share, "bytes/s, an equal share of the file system"),
            _ => (most, "bytes"),
        };
        // Pages for readers and for requests are in one band; so are the bytes held and the bytes
        // allowed.
        let band = [0, 1, 1, 2, 2][of];
        let points = if of == CAPACITY { capacity() } else { summed(changes) };
        let tip = format!("{}: the full band is {} {what}", setup.host_name(host), number(full));
        Level { row: row + host, band, kind: kind + of, points, full, tip }
    };
    let of_host = |(host, changes): (usize, [Changes; HOLDS + 1])| {
        // Servers have no tier.
        let kinds = if setup.server_of(host).is_some() { 1 } else { KINDS.len() };
        changes.into_iter().enumerate().take(kinds).map(move |(of, changes)| (host, of, changes))
    };
    let levels = changes.into_iter().enumerate().flat_map(of_host);
    (names, levels.map(|(host, of, changes)| level(host, of, changes)).collect())
}

/// What each node does, between two moments (seconds).
pub fn timeline(setup: &Setup, outcome: &Outcome, title: &str, window_s: (f64, f64)) -> Figure {
    let (rows, levels) = levels(setup, outcome, &[], (0, 0));
    Timeline { title, rows, kinds: KINDS.to_vec(), levels, window_s, ..Timeline::default() }.figure()
}
