//! Opens, and the agent itself: start, memory, many small files.

use crate::measure::{Record, Target, in_turn, median, seconds};
use crate::rig::{Rig, make_file};
use std::os::unix::fs::FileExt;
use std::time::Instant;

/// Opening a cached file and reading its first bytes, against the same on the PFS.
pub fn open(rig: &Rig) -> Result<Vec<Record>, String> {
    let mut records = Vec::new();
    let count = if rig.quick { 100 } else { 2000 };
    let slow = rig.slow_pfs(4, 500_000_000)?;
    make_file(&rig.dir.join("backing/data"), 4 << 20)?;
    make_file(&rig.directory_pfs().join("data"), 4 << 20)?;
    for (id, pfs) in
        [("open.cached.local", rig.directory_pfs()), ("open.cached.fuse", slow.mount().to_owned())]
    {
        let path = pfs.join("data");
        let agent = rig.agent(&pfs, "1GiB")?;
        agent.load(&path)?;
        let client = agent.client();
        let mut buffer = [0u8; 4096];
        let per_open = |s: f64| s / f64::from(count) * 1e6;
        let mut other = buffer;
        let ours = || {
            seconds(|| (0..count).try_for_each(|_| client.open(&path)?.read_at(&mut buffer, 0).map(|_| ())))
                .map(per_open)
        };
        let plain = || {
            seconds(|| {
                (0..count).try_for_each(|_| std::fs::File::open(&path)?.read_at(&mut other, 0).map(|_| ()))
            })
            .map(per_open)
        };
        let pairs = in_turn(rig.runs, ours, plain)?;
        let extra = median(pairs.iter().map(|(a, b)| a - b));
        let note = "open, read 4 KiB, close: microseconds more than on the PFS itself (page-cached)";
        // On the slow file system the look for fresh attributes (mount.revalidate = "force") is a
        // round trip of its own, which says more about that file system than about Forebay:
        // reported, without a target.
        let local = id == "open.cached.local";
        let (target, note) = match local {
            true => (Target::AtMost(60.0), note.to_owned()),
            false => (Target::Report, format!("{note}; includes a request to the slow PFS")),
        };
        let mut record = Record::alone(id, extra, "us", target, pairs.len(), &note);
        record.reference = Some(median(pairs.iter().map(|p| p.1)));
        records.push(record);
    }
    Ok(records)
}

/// Start and memory of an agent, and what many small files cost.
pub fn agent(rig: &Rig) -> Result<Vec<Record>, String> {
    let pfs = rig.directory_pfs();
    let mut starts = Vec::new();
    let mut resident = Vec::new();
    for _ in 0..rig.runs {
        let agent = rig.agent(&pfs, "1GiB")?;
        starts.push(agent.start_seconds * 1e3);
        resident.push(agent.memory("VmRSS")? as f64 / f64::from(1 << 20));
    }
    let runs = rig.runs;
    let mut records = vec![
        Record::alone(
            "agent.start",
            median(starts.into_iter()),
            "ms",
            Target::AtMost(200.0),
            runs,
            "process start to first answer",
        ),
        Record::alone(
            "agent.rss.idle",
            median(resident.into_iter()),
            "MiB",
            Target::AtMost(40.0),
            runs,
            "VmRSS without data",
        ),
    ];
    records.extend(small_files(rig)?);
    Ok(records)
}

fn small_files(rig: &Rig) -> Result<Vec<Record>, String> {
    const BYTES: usize = 20 << 10;
    let count: u64 = if rig.quick { 2_000 } else { 100_000 };
    let pfs = rig.directory_pfs();
    let content = vec![7u8; BYTES];
    for i in 0..count {
        let dir = pfs.join(format!("d{:03}", i / 1000));
        if i % 1000 == 0 {
            std::fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
        }
        std::fs::write(dir.join(format!("{i}")), &content).map_err(|e| e.to_string())?;
    }
    std::thread::sleep(std::time::Duration::from_millis(100));
    let agent = rig.agent(&pfs, "6GiB")?;
    let idle = agent.memory("RssAnon")?;
    let started = Instant::now();
    agent.load(&pfs)?;
    let rate = count as f64 / started.elapsed().as_secs_f64();
    let status = agent.client().admin().status().map_err(|e| e.to_string())?;
    if status.files != count {
        return Err(format!("{} of {count} files are in the tier", status.files));
    }
    let own = agent.memory("RssAnon")?.saturating_sub(idle) as f64 / count as f64;
    let counter = |name: &str| status.counters.iter().find(|c| c.0 == name).map_or(0, |c| c.1);
    let tmpfs = (counter("tmpfs_total_bytes") - counter("tmpfs_free_bytes")) as f64 / count as f64;
    let note = "100,000 files of 20 KiB on a local directory, by the command line";
    Ok(vec![
        Record::alone("agent.load.small_files", rate, "files/s", Target::AtLeast(5000.0), 1, note),
        Record::alone(
            "agent.memory_per_file",
            own,
            "B",
            Target::Report,
            1,
            "anonymous memory of the agent per cached file",
        ),
        Record::alone(
            "agent.tmpfs_per_file",
            tmpfs,
            "B",
            Target::Report,
            1,
            "tmpfs blocks per cached file of 20 KiB",
        ),
    ])
}
