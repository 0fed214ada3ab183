//! What reading a file costs that the memory has given up: from the disk level, beside the
//! device.
//!
//! Before each read the tier gives up its memory and gets it back, so that all of the file comes
//! from the level; the file system is far slower. The reference reads the level's own files past
//! the page cache, with as many threads as the agent has. Once on the device of the temporary
//! directory, and once on a loop device with a fixed bandwidth, as a slow SSD has; that one needs
//! control groups of version 1.

use crate::measure::{Record, Target};
use crate::rig::{Rig, ThrottledDisk, make_file};
use forebay_store::disk_level::Aligned;
use rustix::fs::{Mode, OFlags, open};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const FILES: u64 = 2;
const THREADS: usize = 4;
const READ_BYTES: usize = 2 << 20;

/// Bandwidth of the file system: slower than any disk that is worth a level.
const PFS_BYTES_PER_S: u64 = 50_000_000;
const DISK_BYTES_PER_S: u64 = 200_000_000;

/// Passes until all of the file is on the disk, at most: each writes what earlier ones have not.
const PASSES_MAX: usize = 6;

/// Time in which a slow disk writes a 64th of the memory.
const STEP: Duration = Duration::from_millis(200);

/// The rest of a file may come from memory or the file system.
const FROM_DISK_PERCENT_MIN: u64 = 95;

/// One group: bandwidth of the level as a share of the device's.
pub fn disk(rig: &Rig) -> Result<Vec<Record>, String> {
    let memory_bytes = rig.sized(1 << 30).max(256 * MIB);
    let device = level(rig, "read.disk.device", &rig.dir.join("level"), memory_bytes, Target::Report)?;
    let disk = match ThrottledDisk::start(&rig.dir, 4 * memory_bytes, DISK_BYTES_PER_S) {
        Ok(disk) => disk,
        Err(e) => {
            eprintln!("  read.disk is left out: {e}");
            return Ok(vec![device]);
        }
    };
    let target = Target::RatioAtLeast(0.9);
    Ok(vec![device, level(rig, "read.disk", &disk.mount.join("level"), memory_bytes, target)?])
}

fn level(rig: &Rig, id: &str, level: &Path, memory_bytes: u64, target: Target) -> Result<Record, String> {
    let file_bytes = memory_bytes / 2;
    let slow = rig.slow_pfs(1, PFS_BYTES_PER_S)?;
    let name = |file: u64| format!("data{file}");
    for file in 0..FILES {
        make_file(&rig.dir.join("backing").join(name(file)), file_bytes)?;
    }
    let more = format!("[tier]\ndisk = {level:?}\ndisk_capacity = \"{}\"\n", 3 * memory_bytes);
    let command = Command::new(&rig.program);
    let agent = rig.agent_by(command, "agent", &more, slow.mount(), &memory_bytes.to_string())?;
    let client = agent.client();
    let read = |file: u64| -> Result<f64, String> {
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
    // In several steps while pages are not on the disk yet: the queue does not take all of them in
    // one.
    let give_up_memory = |steps: u64| -> Result<(), String> {
        for step in 1..=steps {
            let given_up = memory_bytes / 32 * 31 * step / steps;
            client.admin().set_capacity(memory_bytes - given_up).map_err(|e| e.to_string())?;
            std::thread::sleep(STEP);
        }
        client.admin().set_capacity(memory_bytes).map(drop).map_err(|e| e.to_string())
    };
    let from_disk = || -> Result<u64, String> {
        let status = client.admin().status().map_err(|e| e.to_string())?;
        let counter = status.counters.iter().find(|(known, _)| known == "from_disk_bytes");
        Ok(counter.map_or(0, |(_, value)| *value))
    };
    for _ in 0..PASSES_MAX {
        let before = from_disk()?;
        for file in 0..FILES {
            read(file)?;
            give_up_memory(64)?;
        }
        if from_disk()? - before >= FILES * file_bytes {
            break;
        }
    }
    let (mut pairs, mut share) = (Vec::new(), 100);
    for run in 0..rig.runs as u64 {
        give_up_memory(1)?;
        let before = from_disk()?;
        let file = run % FILES;
        pairs.push((read(file)? * 1e-6, device(level, file_bytes)? * 1e-6));
        share = share.min(100 * (from_disk()? - before) / file_bytes);
    }
    if share < FROM_DISK_PERCENT_MIN {
        return Err(format!("{id}: in one run only {share} % of the file came from the disk level"));
    }
    let note = format!(
        "a file that has left the memory, in each run at least {share} % of it from the disk level; \
         reference: the level's files by {THREADS} threads, past the page cache"
    );
    Ok(Record::pairs(id, &pairs, "MB/s", target, &note))
}

/// Bytes per second of the device: reads `bytes` of the level's files.
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
