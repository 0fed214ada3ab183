//! What the memory controller costs the processor, and how long cached reads take while the tier
//! gives way.

use super::clock::now_ns;
use super::group::Group;
use super::hog;
use super::nodes::cluster;
use super::stage::{Outcome, Source, Stage};
use crate::measure::{Record, Target, in_turn, median, quantile};
use crate::rig::{Rig, make_file};
use forebay_client::{Client, ReadMode};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const GIB: u64 = 1 << 30;
const READ_BYTES: usize = 4096;

/// Size of the file that is read meanwhile.
const WATCHED_BYTES: u64 = 8 << 20;

/// Share of a core that the controller's thread takes: on a quiet node, where it samples every 100
/// ms, and while a program takes memory, when it samples every 10 ms.
pub fn cost(rig: &Rig) -> Result<Vec<Record>, String> {
    let source = Source::new(rig)?;
    let mut stage = Stage::new(rig, &source, "forebay", GIB)?;
    let span = Duration::from_secs(if rig.quick { 1 } else { 5 });
    let thread = controller(stage.agent().id())?;
    let mut quiet = Vec::new();
    for _ in 0..rig.runs.min(5) {
        quiet.push(share_of_core(&thread, || {
            std::thread::sleep(span);
            Ok(())
        })?);
    }
    let mut busy = Vec::new();
    for _ in 0..rig.runs.min(5) {
        let bytes = GIB / 4;
        let rate = bytes as f64 / span.as_secs_f64();
        busy.push(share_of_core(&thread, || stage.burst(bytes, rate).map(|_| ()))?);
        stage.fill()?;
    }
    let runs = quiet.len();
    let at_rest = median(quiet.into_iter());
    let note = "of a core, by the controller's thread, one sample each 100 ms";
    let growing = "of a core, while a program takes 51 MB/s, one sample each 10 ms";
    let mut records = vec![
        Record::alone("memory.cost.rest", at_rest, "%", Target::AtMost(0.2), runs, note),
        Record::alone("memory.cost.growth", median(busy.into_iter()), "%", Target::Report, runs, growing),
    ];
    records.extend(cluster(if rig.quick { 100 } else { 10_000 })?);
    Ok(records)
}

/// The thread of the memory controller: its directory in /proc.
fn controller(pid: u32) -> Result<PathBuf, String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).map_err(|e| e.to_string())?;
    let is_it =
        |task: &PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "memory");
    let found = tasks.flatten().map(|task| task.path()).find(is_it);
    found.ok_or_else(|| "the agent has no thread called memory".into())
}

/// Share of a core that a thread takes while `work` runs, in percent.
fn share_of_core(thread: &Path, work: impl FnOnce() -> Result<(), String>) -> Result<f64, String> {
    let ran_ns = || -> Result<u64, String> {
        let path = thread.join("schedstat");
        let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let first = text.split(' ').next().and_then(|word| word.parse().ok());
        first.ok_or_else(|| format!("{}: no number in {text:?}", path.display()))
    };
    let (ran, since) = (ran_ns()?, now_ns());
    work()?;
    Ok((ran_ns()? - ran) as f64 * 100.0 / (now_ns() - since) as f64)
}

/// Cached reads of 4 KiB while the tier gives way, beside reads on a quiet node; and beside the
/// same program where the tier need not give way.
pub fn reads(rig: &Rig) -> Result<Vec<Record>, String> {
    const RATE: f64 = 2e9;
    let source = Source::new(rig)?;
    let stage = Stage::new(rig, &source, "forebay", 4 * GIB)?;
    let path = source.path().join("watched");
    make_file(&path, WATCHED_BYTES)?;
    let reader =
        Reader { client: stage.client(), content: std::fs::read(&path).map_err(|e| e.to_string())?, path };
    let apart = Group::called("apart", 4 * GIB)?;
    let (bytes, hold) = (2 * GIB, Duration::ZERO);
    let quiet = || {
        reader.p999(|| {
            let since = now_ns();
            std::thread::sleep(Duration::from_secs(1));
            Ok((since, now_ns()))
        })
    };
    let giving = in_turn(
        rig.runs.min(5),
        || {
            stage.fill()?;
            reader.p999(|| match stage.burst_times(bytes, RATE)? {
                (Outcome::Ended(..), times) => Ok(times),
                (Outcome::Killed, _) => Err("the kernel has killed a program".into()),
            })
        },
        quiet,
    )?;
    let beside = in_turn(
        rig.runs.min(5),
        || {
            reader.p999(|| {
                let burst = hog::run(&apart, bytes, RATE, hold)?.ok_or("the kernel has killed a program")?;
                Ok((burst.first_ns, burst.last_ns))
            })
        },
        quiet,
    )?;
    let note = "p99.9, 2 GiB at 2 GB/s; reference: quiet node; all bytes compared";
    let other = "the same program in a group of its own, where the tier need not give way";
    Ok(vec![
        Record::pairs("memory.reads.giving", &giving, "us", Target::RatioAtMost(10.0), note),
        Record::pairs("memory.reads.beside", &beside, "us", Target::Report, other),
    ])
}

/// Reads 4 KiB of a known file, again and again.
struct Reader {
    client: Client,
    path: PathBuf,
    content: Vec<u8>,
}

impl Reader {
    /// The 99.9th percentile in us of reads between two times, which `work` returns.
    fn p999(&self, work: impl FnOnce() -> Result<(u64, u64), String>) -> Result<f64, String> {
        let file = self.client.open_with(&self.path, ReadMode::Cached).map_err(|e| e.to_string())?;
        let stop = AtomicBool::new(false);
        let (times, reads) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut buffer, mut reads, mut at) = ([0; READ_BYTES], Vec::with_capacity(1 << 20), 0);
                while !stop.load(Ordering::Relaxed) {
                    at = (at + 37 * READ_BYTES) % self.content.len();
                    let since = now_ns();
                    let n = file.read_at(&mut buffer, at as u64).map_err(|e| e.to_string())?;
                    reads.push((since, (now_ns() - since) as f64 / 1e3));
                    if buffer[..n] != self.content[at..at + READ_BYTES] {
                        return Err(format!("wrong bytes at {at}"));
                    }
                }
                Ok(reads)
            });
            let times = work();
            stop.store(true, Ordering::Relaxed);
            let reads = reader.join().map_err(|_| "the reader panicked".to_owned())??;
            Ok::<_, String>((times?, reads))
        })?;
        let within = reads.iter().filter(|(at, _)| (times.0..times.1).contains(at));
        Ok(quantile(&within.map(|read| read.1).collect::<Vec<_>>(), 0.999))
    }
}
