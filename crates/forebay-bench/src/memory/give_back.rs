//! Giving memory back: by eviction and by shrinking, beside bare hole punching.

use crate::measure::{Record, Target, in_turn, seconds};
use crate::rig::{AgentProcess, Rig, make_file};
use forebay_client::{Client, ReadMode};
use rustix::fs::{FallocateFlags, fallocate};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const GIB: u64 = 1 << 30;

/// Fills and releases 4 GiB, with a reader that checks what it reads meanwhile.
pub fn give_back(rig: &Rig) -> Result<Vec<Record>, String> {
    let bytes = rig.sized(4 * GIB);
    let bare = rig.bare_tmpfs()?;
    let path = rig.directory_pfs().join("data");
    make_file(&path, bytes)?;
    let agent = rig.agent(&rig.directory_pfs(), "6GiB")?;
    let client = agent.client();
    let watcher = Watcher::new(&rig.directory_pfs())?;
    let runs = rig.runs.min(5);
    let ms = |s: f64| s * 1e3;
    let punch = || punch_bare(&bare.path, bytes).map(ms);
    let evict = || {
        fill(&agent, &client, &path, bytes)?;
        watcher.during(&client, || seconds(|| client.admin().evict(&path)).map(ms))
    };
    let evicted = in_turn(runs, evict, punch)?;
    let shrink = || {
        client.admin().set_capacity(6 * GIB).map_err(|e| e.to_string())?;
        fill(&agent, &client, &path, bytes)?;
        watcher.during(&client, || seconds(|| client.admin().set_capacity(64 << 20)).map(ms))
    };
    let shrunk = in_turn(runs, shrink, punch)?;
    let target = if rig.quick { Target::Report } else { Target::AtMost(50.0) };
    let note =
        "4 GiB in huge pages, readers verify meanwhile; reference: one bare hole punch of the same size";
    Ok(vec![
        Record::pairs("give_back.evict.4g", &evicted, "ms", target, note),
        Record::pairs("give_back.shrink.4g", &shrunk, "ms", target, note),
        Record::alone(
            "give_back.checked_reads",
            watcher.checked() as f64,
            "reads",
            Target::AtLeast(1.0),
            runs,
            "all bytes right",
        ),
    ])
}

fn fill(agent: &AgentProcess, client: &Client, path: &Path, bytes: u64) -> Result<(), String> {
    agent.load(path)?;
    let resident = client.open(path).map_err(|e| e.to_string())?.resident_bytes();
    if resident == bytes { Ok(()) } else { Err(format!("only {resident} of {bytes} bytes were loaded")) }
}

fn punch_bare(dir: &Path, bytes: u64) -> Result<f64, String> {
    let path = dir.join("punched");
    make_file(&path, bytes)?;
    let file = std::fs::File::options().write(true).open(&path).map_err(|e| e.to_string())?;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    seconds(|| Ok(fallocate(&file, flags, 0, bytes)?))
}

/// Reads a file of known content all the while.
struct Watcher {
    path: PathBuf,
    content: Vec<u8>,
    reads: AtomicU64,
}

impl Watcher {
    fn new(dir: &Path) -> Result<Self, String> {
        let path = dir.join("watched");
        make_file(&path, 8 << 20)?;
        let content = std::fs::read(&path).map_err(|e| e.to_string())?;
        Ok(Watcher { path, content, reads: AtomicU64::new(0) })
    }

    fn checked(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    fn during<T>(&self, client: &Client, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        let file = client.open_with(&self.path, ReadMode::Cached).map_err(|e| e.to_string())?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut buffer = vec![0; 1 << 20];
                while !stop.load(Ordering::Relaxed) {
                    for at in (0..self.content.len()).step_by(buffer.len()) {
                        let n = file.read_at(&mut buffer, at as u64).map_err(|e| e.to_string())?;
                        if buffer[..n] != self.content[at..at + n] || n == 0 {
                            return Err(format!("wrong bytes at {at}"));
                        }
                        self.reads.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Ok(())
            });
            let result = work();
            stop.store(true, Ordering::Relaxed);
            reader.join().map_err(|_| "the reader panicked".to_owned())??;
            result
        })
    }
}
