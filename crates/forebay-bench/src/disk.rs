//! What a file costs that the memory has given up: read from the disk level, beside the device.
//!
//! Files of half the tier's memory each are read in turn, so that most of each has left the memory
//! when its turn comes, from a slow file system. The reference reads the level's own files past the
//! page cache, with as many threads as the agent has.

use crate::measure::{Record, Target};
use crate::rig::{Rig, make_file};
use forebay_store::disk_level::Aligned;
use rustix::fs::{Mode, OFlags, open};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const FILES: usize = 8;
const THREADS: usize = 4;
const READ_BYTES: usize = 2 << 20;

/// Of the file system: slower than any disk that is worth a level.
const RATE_BYTES_PER_S: u64 = 100_000_000;

/// One group: bandwidth of the level as a share of the device's.
pub fn disk(rig: &Rig) -> Result<Vec<Record>, String> {
    let (memory_bytes, level) = (rig.sized(1 << 30).max(256 * MIB), rig.dir.join("level"));
    let file_bytes = memory_bytes / 2;
    let slow = rig.slow_pfs(1, RATE_BYTES_PER_S)?;
    let name = |file: usize| format!("data{file}");
    for file in 0..FILES {
        make_file(&rig.dir.join("backing").join(name(file)), file_bytes)?;
    }
    let more = format!("[tier]\ndisk = {level:?}\ndisk_capacity = \"{}\"\n", 8 * memory_bytes);
    let command = Command::new(&rig.program);
    let agent = rig.agent_by(command, &more, slow.mount(), &memory_bytes.to_string())?;
    let client = agent.client();
    let read = |file: usize| -> Result<f64, String> {
        let began = Instant::now();
        let file = client.open(slow.mount().join(name(file))).map_err(|e| e.to_string())?;
        let (mut buffer, mut at) = (vec![0; READ_BYTES], 0);
        while at < file_bytes {
            let n = file.read_at(&mut buffer, at).map_err(|e| e.to_string())?;
            if n == 0 {
                return Err("a file has ended too early".into());
            }
            at += n as u64;
        }
        Ok(file_bytes as f64 / began.elapsed().as_secs_f64())
    };
    // Into the memory, and out of it.
    for file in (0..FILES).chain(0..FILES) {
        read(file)?;
        std::thread::sleep(Duration::from_secs(1));
    }
    let counter = |name: &str| -> Result<u64, String> {
        let status = client.admin().status().map_err(|e| e.to_string())?;
        Ok(status.counters.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value))
    };
    let before = counter("from_disk_bytes")?;
    let mut pairs = Vec::new();
    for run in 0..rig.runs {
        pairs.push((read(run % FILES)?, device(&level, file_bytes)?));
    }
    let from_disk = counter("from_disk_bytes")? - before;
    let share = 100 * from_disk / (file_bytes * rig.runs as u64);
    let note = format!(
        "a file that has left the memory, {share} % of it from the disk level (the rest from memory or the \
         file system); reference: the level's files by {THREADS} threads, past the page cache"
    );
    Ok(vec![Record::pairs("read.disk", &pairs, "B/s", Target::RatioAtLeast(0.9), &note)])
}

/// Bytes a second of the device: `bytes` of the level's files.
fn device(level: &Path, bytes: u64) -> Result<f64, String> {
    let names = std::fs::read_dir(level).map_err(|e| e.to_string())?;
    let mut files: Vec<PathBuf> = names.map_while(Result::ok).map(|entry| entry.path()).collect();
    files.sort();
    let began = Instant::now();
    let parts: Vec<Result<u64, String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let mine: Vec<&PathBuf> = files.iter().skip(thread).step_by(THREADS).collect();
                scope.spawn(move || read_bare(&mine, bytes / THREADS as u64))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err("a thread failed".into())))
            .collect()
    });
    let read = parts.into_iter().sum::<Result<u64, String>>()?;
    Ok(read as f64 / began.elapsed().as_secs_f64())
}

fn read_bare(files: &[&PathBuf], most: u64) -> Result<u64, String> {
    let (mut buffer, mut read) = (Aligned::default(), 0);
    for path in files {
        let file = open(*path, OFlags::RDONLY | OFlags::DIRECT, Mode::empty()).map_err(|e| e.to_string())?;
        let mut at = 0;
        while read < most {
            match rustix::io::pread(&file, buffer.slice(READ_BYTES), at).map_err(|e| e.to_string())? {
                0 => break,
                n => (at, read) = (at + n as u64, read + n as u64),
            }
        }
    }
    Ok(read)
}
