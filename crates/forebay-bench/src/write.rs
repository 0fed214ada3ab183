//! Writes: write-through, against the PFS alone; memory-only, against tmpfs.

use crate::measure::{Record, Target, in_turn, seconds};
use crate::rig::Rig;
use forebay_client::WriteMode;
use std::io::{self, Write};
use std::path::Path;

const MIB: usize = 1 << 20;

fn pour(mut sink: impl Write, block: &[u8], bytes: u64) -> io::Result<()> {
    for _ in 0..bytes / block.len() as u64 {
        sink.write_all(block)?;
    }
    sink.flush()
}

/// Both kinds of write.
pub fn write(rig: &Rig) -> Result<Vec<Record>, String> {
    let block: Vec<u8> = (0..MIB).map(|i| (i * 31 % 251) as u8).collect();
    Ok(vec![through(rig, &block)?, memory_only(rig, &block)?])
}

fn through(rig: &Rig, block: &[u8]) -> Result<Record, String> {
    let bytes = rig.sized(256 << 20);
    let slow = rig.slow_pfs(4, 50_000_000)?;
    let agent = rig.agent(slow.mount(), "2GiB")?;
    let client = agent.client();
    let path = slow.mount().join("out");
    let rate = |s: f64| bytes as f64 / s / 1e6;
    let ours = || {
        seconds(|| {
            let mut writer = client.create(&path, WriteMode::Through)?;
            pour(&mut writer, block, bytes)?;
            writer.sync()?;
            writer.close()
        })
        .map(rate)
    };
    let alone = || {
        seconds(|| {
            let mut file = std::fs::File::create(&path)?;
            pour(&mut file, block, bytes)?;
            file.sync_all()
        })
        .map(rate)
    };
    let pairs = in_turn(rig.runs.min(5), ours, alone)?;
    let cached = client.create(&path, WriteMode::Through).and_then(|mut w| {
        pour(&mut w, block, bytes)?;
        w.close()?;
        Ok(client.open(&path)?.resident_bytes())
    });
    if cached.map_err(|e| e.to_string())? != bytes {
        return Err("what was written through is not in the tier".into());
    }
    let note = "1 MiB writes and fsync, PFS of 4 x 50 MB/s; reference: the PFS alone";
    Ok(Record::pairs("write.through", &pairs, "MB/s", Target::RatioAtLeast(0.95), note))
}

fn memory_only(rig: &Rig, block: &[u8]) -> Result<Record, String> {
    let bytes = rig.sized(1 << 30);
    let bare = rig.bare_tmpfs()?;
    let agent = rig.agent(&rig.directory_pfs(), "6GiB")?;
    let client = agent.client();
    let rate = |s: f64| bytes as f64 / s / 1e9;
    let ours_path = rig.directory_pfs().join("scratch");
    let bare_path = bare.path.join("scratch");
    let gone = |path: &Path| -> Result<(), String> {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e.to_string()),
            _ => Ok(()),
        }
    };
    let ours = || {
        // Not timed: both write into fresh memory.
        let _ = client.remove(&ours_path);
        seconds(|| {
            let mut writer = client.create(&ours_path, WriteMode::MemoryOnly)?;
            pour(&mut writer, block, bytes)?;
            writer.close()
        })
        .map(rate)
    };
    let theirs = || {
        gone(&bare_path)?;
        seconds(|| pour(std::fs::File::create(&bare_path)?, block, bytes)).map(rate)
    };
    let pairs = in_turn(rig.runs, ours, theirs)?;
    let note = "1 MiB writes of a new file; reference: a new file on a tmpfs with the same pages";
    Ok(Record::pairs("write.memory_only", &pairs, "GB/s", Target::RatioAtLeast(0.8), note))
}
