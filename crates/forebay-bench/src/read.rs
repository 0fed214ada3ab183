//! Reads: cached, cold, and one cold file by many processes.

use crate::measure::{Record, Target, in_turn, seconds};
use crate::rig::{Rig, drop_page_cache, make_file};
use forebay_client::{File, ReadMode};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

const MIB: usize = 1 << 20;

/// Bytes mapped at a time: large enough that making the map does not count.
const MAP_BYTES: u64 = 64 << 20;

type Reads = Arc<dyn Fn(&mut [u8], u64) -> std::io::Result<usize> + Send + Sync>;

/// Reads `bytes` in pieces of 1 MiB, split over `threads`; returns GB/s.
fn sequential(read: &Reads, bytes: u64, threads: u64, passes: u32) -> Result<f64, String> {
    let share = bytes / threads;
    let elapsed = seconds(|| {
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|t| {
                    scope.spawn(move || {
                        let mut buffer = vec![0u8; MIB];
                        for _ in 0..passes {
                            let mut at = t * share;
                            while at < (t + 1) * share {
                                let n = read(&mut buffer, at)?;
                                if n == 0 {
                                    return Err(std::io::ErrorKind::UnexpectedEof.into());
                                }
                                at += n as u64;
                            }
                        }
                        Ok(())
                    })
                })
                .collect();
            workers
                .into_iter()
                .try_for_each(|w| w.join().unwrap_or_else(|_| Err(std::io::Error::other("panic"))))
        })
    })?;
    Ok((bytes * u64::from(passes)) as f64 / elapsed / 1e9)
}

/// Seconds a read of 4 KiB takes, over `count` pseudo-random places.
fn random_4k(read: &Reads, bytes: u64, count: u64) -> Result<f64, String> {
    let mut buffer = vec![0u8; 4096];
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let elapsed = seconds(|| {
        for _ in 0..count {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            read(&mut buffer, state % (bytes / 4096) * 4096)?;
        }
        Ok(())
    })?;
    Ok(elapsed / count as f64)
}

fn reads_of(file: File) -> Reads {
    Arc::new(move |buffer, at| file.read_at(buffer, at))
}

fn reads_of_std(path: &Path) -> Result<Reads, String> {
    let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
    Ok(Arc::new(move |buffer, at| file.read_at(buffer, at)))
}

/// Cached reads against `pread` on a tmpfs with the same pages.
pub fn cached(rig: &Rig) -> Result<Vec<Record>, String> {
    let bytes = rig.sized(1 << 30);
    let bare = rig.bare_tmpfs()?;
    let (path, twin) = (rig.directory_pfs().join("data"), bare.path.join("data"));
    make_file(&path, bytes)?;
    make_file(&twin, bytes)?;
    let agent = rig.agent(&rig.directory_pfs(), "4GiB")?;
    agent.load(&path)?;
    let client = agent.client();
    let file = client.open_with(&path, ReadMode::TierOnly).map_err(|e| e.to_string())?;
    let ours = reads_of(file);
    let theirs = reads_of_std(&twin)?;
    let mut records = Vec::new();
    for (threads, id) in [(1, "read.cached.seq.1t"), (2, "read.cached.seq.2t")] {
        let pairs = in_turn(
            rig.runs,
            || sequential(&ours, bytes, threads, 4),
            || sequential(&theirs, bytes, threads, 4),
        )?;
        let note = "reads of 1 MiB; reference: pread on a tmpfs file with the same pages";
        records.push(Record::pairs(id, &pairs, "GB/s", Target::RatioAtLeast(0.95), note));
    }
    let count = rig.sized(1 << 20);
    let us = |s: f64| s * 1e6;
    let pairs = in_turn(
        rig.runs,
        || random_4k(&ours, bytes, count).map(us),
        || random_4k(&theirs, bytes, count).map(us),
    )?;
    let note = "random reads of 4 KiB, one thread; reference: pread on a tmpfs file with the same pages";
    records.push(Record::pairs("read.cached.rand4k.1t", &pairs, "us", Target::RatioAtMost(1.15), note));
    Ok(records)
}

/// Cold reads against the PFS alone.
pub fn cold(rig: &Rig) -> Result<Vec<Record>, String> {
    let bytes = rig.sized(256 << 20);
    let slow = rig.slow_pfs(4, 50_000_000)?;
    let path = slow.mount().join("data");
    make_file(&rig.dir.join("backing/data"), bytes)?;
    let agent = rig.agent(slow.mount(), "1GiB")?;
    let client = agent.client();
    let forget = || {
        client.admin().evict(&path).map_err(|e| e.to_string())?;
        drop_page_cache(&path)
    };
    let ours = || {
        forget()?;
        let file = client.open(&path).map_err(|e| e.to_string())?;
        sequential(&reads_of(file), bytes, 1, 1).map(|gb| gb * 1000.0)
    };
    let alone = || {
        forget()?;
        sequential(&reads_of_std(&path)?, bytes, 1, 1).map(|gb| gb * 1000.0)
    };
    let runs = rig.runs.min(5);
    let pairs = in_turn(runs, ours, alone)?;
    let note = "one reader, 1 MiB, PFS of 4 x 50 MB/s; reference: the PFS alone";
    let sequential = Record::pairs("read.cold.seq", &pairs, "MB/s", Target::RatioAtLeast(0.97), note);

    let count = if rig.quick { 50 } else { 400 };
    let missing = || {
        forget()?;
        let file = client.open(&path).map_err(|e| e.to_string())?;
        random_4k(&reads_of(file), bytes, count).map(|s| s * 1e6)
    };
    let direct = || {
        forget()?;
        let file = std::fs::File::open(&path).map_err(|e| e.to_string())?;
        // With the advice that serves a program best that reads at random.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).map_err(|e| e.to_string())?;
        let reads: Reads = Arc::new(move |buffer, at| file.read_at(buffer, at));
        random_4k(&reads, bytes, count).map(|s| s * 1e6)
    };
    let pairs = in_turn(runs, missing, direct)?;
    let note = "random reads of 4 KiB that miss; reference: the PFS alone";
    let random = Record::pairs("read.cold.rand4k", &pairs, "us", Target::RatioAtMost(1.05), note);
    Ok(vec![sequential, random])
}

/// Many processes read one cold file at the same time.
pub fn shared(rig: &Rig) -> Result<Vec<Record>, String> {
    const READERS: usize = 4;
    let bytes = rig.sized(128 << 20);
    let slow = rig.slow_pfs(4, 50_000_000)?;
    let path = slow.mount().join("data");
    make_file(&rig.dir.join("backing/data"), bytes)?;
    let agent = rig.agent(slow.mount(), "1GiB")?;
    let before = slow.stats().map_err(|e| e.to_string())?.read_bytes;
    let start = |_| {
        let mut command = Command::new(&rig.program);
        command.arg("--socket").arg(agent.socket()).arg("cat").arg(&path);
        command.stdout(Stdio::null()).spawn().map_err(|e| e.to_string())
    };
    let children = (0..READERS).map(start).collect::<Result<Vec<_>, _>>()?;
    for mut child in children {
        if !child.wait().map_err(|e| e.to_string())?.success() {
            return Err("a reader failed".into());
        }
    }
    let served = slow.stats().map_err(|e| e.to_string())?.read_bytes - before;
    let note = "4 processes read one cold file at once: bytes the PFS served per byte of the file";
    let value = served as f64 / bytes as f64;
    Ok(vec![Record::alone("read.shared.pfs_bytes", value, "per byte", Target::AtMost(1.0), 1, note)])
}

/// GB/s of one thread reading `file` in pieces of 1 MiB into a buffer that begins `at` bytes after
/// a page boundary: copies are slower into one that is not aligned.
pub fn sequential_file(file: &File, bytes: u64, passes: u32, at: usize) -> Result<f64, String> {
    const PAGE: usize = 4096;
    let mut memory = vec![0u8; MIB + 2 * PAGE];
    let start = memory.as_ptr().align_offset(PAGE) + at;
    let buffer = &mut memory[start..start + MIB];
    let elapsed = seconds(|| {
        for _ in 0..passes {
            for at in (0..bytes).step_by(MIB) {
                file.read_at(buffer, at)?;
            }
        }
        Ok(())
    })?;
    Ok((bytes * u64::from(passes)) as f64 / elapsed / 1e9)
}

/// GB/s of one thread that reads every byte of `file` in place, 64 MiB mapped at a time.
pub fn mapped_file(file: &File, bytes: u64, passes: u32) -> Result<f64, String> {
    let mut sum = 0u64;
    let elapsed = seconds(|| {
        for _ in 0..passes {
            for at in (0..bytes).step_by(MAP_BYTES as usize) {
                let range = file.map(at, MAP_BYTES.min(bytes - at));
                let range = range.ok_or_else(|| std::io::Error::other("the file is not resident"))?;
                sum = range.chunks_exact(8).fold(sum, |sum, word| {
                    let mut bytes = [0; 8];
                    bytes.copy_from_slice(word);
                    sum.wrapping_add(u64::from_ne_bytes(bytes))
                });
            }
        }
        Ok(())
    })?;
    // Used, so that the reads are not optimised away.
    std::hint::black_box(sum);
    Ok((bytes * u64::from(passes)) as f64 / elapsed / 1e9)
}
