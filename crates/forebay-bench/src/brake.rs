//! How soon the brake takes effect: from the moment when an I/O phase falls behind to the last byte
//! that prefetches take from the PFS, with a coordinator and after it was killed.
//!
//! Two real agents read the lab's slow file system at its full speed. A program on node 0 declares
//! a phase, moves as fast as expected for half a second, and then stands still. When the phase is
//! behind follows from what the program reported, by the rule that the agents follow; the file
//! system is asked all the time how many bytes it has served.

use crate::measure::{Record, Target, median};
use crate::peer::Pair;
use crate::rig::{Rig, make_file};
use forebay_client::{Client, HpcJobOptions, Job, Load};
use forebay_lab::fixture::SlowFsProcess;
use forebay_policy::machine::Nanos;
use forebay_policy::phases::Line;
use forebay_wire::{JobUpdate, Part, Split};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Servers of the file system.
const SERVERS: usize = 4;
const RATE_BYTES_PER_S: u64 = 25_000_000;

const MIB: u64 = 1 << 20;
const FILE_BYTES: u64 = 512 * MIB;
const EXTENT_BYTES: u64 = 8 * MIB;

/// The phase: a second of I/O, and 200 ms more until its deadline.
const PHASE_BYTES: u64 = 64 * MIB;
const ALONE: Duration = Duration::from_secs(1);
const ALLOWANCE_PERMILLE: u32 = 200;

/// How often the program reports before it stands still, ten times in all.
const REPORT: Duration = Duration::from_millis(50);
const REPORTS: u32 = 10;

/// How long the file system is watched after the phase has fallen behind.
const WATCH: Duration = Duration::from_millis(1500);

/// No byte may come in this last part of [`WATCH`].
const STILL: Duration = Duration::from_millis(500);

/// Prefetches must run at a third of the file system's speed or more in this time before the phase
/// is behind, or nothing was stopped.
const BEFORE: Duration = Duration::from_millis(300);

/// How often the file system is asked.
const TURN: Duration = Duration::from_millis(1);

const PATIENCE: Duration = Duration::from_secs(30);

fn failed(what: &str) -> impl Fn(std::io::Error) -> String {
    move |e| format!("cannot {what}: {e}")
}

/// One group: the median and the longest time, with and without a coordinator.
pub fn brake(rig: &Rig) -> Result<Vec<Record>, String> {
    let slow = rig.slow_pfs(SERVERS, RATE_BYTES_PER_S)?;
    make_file(&rig.dir.join("backing/data"), FILE_BYTES)?;
    let path = slow.mount().join("data");
    let mut pair = Pair::start(rig, slow.mount(), "1GiB", &format!("{EXTENT_BYTES}"))?;
    let runs = if rig.quick { 2 } else { rig.runs };
    let measure = |pair: &Pair, start: &dyn Fn(&Client) -> Result<Prefetch, String>| {
        (0..runs).map(|_| one_run(&slow, pair, &path, start)).collect::<Result<Vec<f64>, String>>()
    };
    let live = measure(&pair, &|client| plan(client, &path))?;
    pair.kill_coordinator()?;
    let dead = measure(&pair, &|client| load(client, &path))?;
    let rate = SERVERS as u64 * RATE_BYTES_PER_S / 1_000_000;
    let note = format!("from a phase behind to the last byte of prefetch, two nodes, PFS of {rate} MB/s");
    let record = |id: &str, value: f64, more: &str| {
        Record::alone(id, value, "ms", Target::AtMost(100.0), runs, &format!("{note}; {more}"))
    };
    let longest = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let (requests, loads) = ("prefetch requests of the coordinator", "a load, coordinator killed");
    Ok(vec![
        record("phases.brake.live", median(live.iter().copied()), &format!("{requests}; median")),
        record("phases.brake.live.longest", longest(&live), &format!("{requests}; longest")),
        record("phases.brake.dead", median(dead.iter().copied()), &format!("{loads}; median")),
        record("phases.brake.dead.longest", longest(&dead), &format!("{loads}; longest")),
    ])
}

/// The source of fetches, until it is dropped.
enum Prefetch {
    Plan(#[allow(dead_code, reason = "ends when dropped")] Job),
    Load(#[allow(dead_code, reason = "ends when dropped")] Load),
}

/// Begins an analytics job of which each node is to fetch its part immediately.
fn plan(client: &Client, path: &Path) -> Result<Prefetch, String> {
    let failed = failed("begin a job");
    let job = client.begin_job("prefetched", "no-action").map_err(&failed)?;
    let file = client.file_ref(path).map_err(&failed)?;
    let split = |task: u64| Split {
        parts: vec![Part { file: 0, offset: task * EXTENT_BYTES, len: EXTENT_BYTES }],
        preferred_node: String::new(),
    };
    let tasks = FILE_BYTES / EXTENT_BYTES;
    let slots = (0..2).map(|node| (format!("node{node}"), tasks as u32)).collect();
    let updates = [
        JobUpdate::Slots(slots),
        JobUpdate::Files(vec![file]),
        JobUpdate::Splits { stage: 0, splits: (0..tasks).map(split).collect() },
        JobUpdate::StageReady { stage: 0 },
    ];
    job.report(&updates).map_err(&failed)?;
    Ok(Prefetch::Plan(job))
}

fn load(client: &Client, path: &Path) -> Result<Prefetch, String> {
    let begin = || {
        let mut load = client.load(0)?;
        load.add(path)?;
        load.flush()?;
        Ok(load)
    };
    begin().map(Prefetch::Load).map_err(failed("load"))
}

/// Milliseconds from the phase being behind to the last byte.
fn one_run(
    slow: &SlowFsProcess,
    pair: &Pair,
    path: &Path,
    start: &dyn Fn(&Client) -> Result<Prefetch, String>,
) -> Result<f64, String> {
    for node in 0..2 {
        pair.client(node).admin().evict_all().map_err(failed("evict"))?;
    }
    crate::rig::drop_page_cache(path)?;
    let served = || slow.stats().map(|stats| stats.read_bytes).map_err(|e| e.to_string());
    let before = served()?;
    let prefetch = start(&pair.client(1))?;
    let until = Instant::now() + PATIENCE;
    while served()? < before + 16 * MIB {
        if Instant::now() > until {
            return Err("nothing is prefetched".into());
        }
        std::thread::sleep(TURN);
    }
    let stop = AtomicBool::new(false);
    let (samples, behind) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| sample(slow, &stop));
        let behind = phase_that_stands_still(&pair.client(0));
        stop.store(true, Ordering::Release);
        let samples = watch.join().unwrap_or_else(|_| Err("the samples have panicked".into()));
        (samples, behind)
    });
    drop(prefetch);
    judge(&samples?, behind?)
}

/// Bytes that the file system had served, and when.
type Samples = Vec<(Instant, u64)>;

fn sample(slow: &SlowFsProcess, stop: &AtomicBool) -> Result<Samples, String> {
    let mut samples: Samples = Vec::new();
    while !stop.load(Ordering::Acquire) {
        let bytes = slow.stats().map_err(|e| e.to_string())?.read_bytes;
        samples.push((Instant::now(), bytes));
        std::thread::sleep(TURN);
    }
    Ok(samples)
}

/// Runs the phase, and returns when it fell behind.
fn phase_that_stands_still(client: &Client) -> Result<Instant, String> {
    let failed = failed("report a phase");
    let options =
        HpcJobOptions { io: ALONE, allowance_permille: ALLOWANCE_PERMILLE, ..HpcJobOptions::named("writer") };
    let job = client.open_hpc_job(&options).map_err(&failed)?;
    let began = Instant::now();
    // What the agent knows, at the latest a moment later than here.
    let at = |instant: Instant| Nanos((instant - began).as_nanos() as u64);
    let lasts = ALONE * (1000 + ALLOWANCE_PERMILLE) / 1000;
    let (alone_ns, deadline) = (ALONE.as_nanos() as u64, at(began + lasts));
    let mut line = Line::new(Nanos(0), PHASE_BYTES, Some(alone_ns), Some(deadline), false);
    job.phase_begin(PHASE_BYTES, Duration::ZERO).map_err(&failed)?;
    for report in 1..=REPORTS {
        let due = began + REPORT * report;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let moved = (PHASE_BYTES as f64 * (REPORT * report).as_secs_f64() / ALONE.as_secs_f64()) as u64;
        line.progress(at(Instant::now()), moved);
        job.phase_progress(moved).map_err(&failed)?;
    }
    let now = Instant::now();
    let behind = line.behind_at(at(now)).ok_or("the phase was behind before it stood still")?;
    let behind = began + Duration::from_nanos(behind.0);
    std::thread::sleep((behind + WATCH).saturating_duration_since(Instant::now()));
    job.phase_end().map_err(&failed)?;
    Ok(behind)
}

fn judge(samples: &Samples, behind: Instant) -> Result<f64, String> {
    // The end of the phase releases the brake.
    let samples: Samples = samples.iter().copied().filter(|(at, _)| *at < behind + WATCH).collect();
    let served_by = |at: Instant| samples.iter().rfind(|(t, _)| *t <= at).map_or(0, |(_, bytes)| *bytes);
    let moved = served_by(behind).saturating_sub(served_by(behind - BEFORE));
    let full = SERVERS as f64 * RATE_BYTES_PER_S as f64 * BEFORE.as_secs_f64();
    if (moved as f64) < full / 3.0 {
        return Err(format!("before the phase was behind, only {moved} of {full:.0} bytes were prefetched"));
    }
    let last = samples.last().ok_or("no samples")?.1;
    let still_since = samples.iter().find(|(_, bytes)| *bytes == last).ok_or("no samples")?.0;
    if still_since > behind + WATCH - STILL {
        return Err("the prefetch does not stop".into());
    }
    Ok(still_since.saturating_duration_since(behind).as_secs_f64() * 1e3)
}
