//! A control group with a memory limit, and what is in use there over time.

use super::clock::now_ns;
use forebay_lab::memory_group::MemoryGroup;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Time between two samples.
const STEP: Duration = Duration::from_millis(1);

/// A control group and its limit.
pub struct Group {
    /// Its limit in bytes.
    pub limit_bytes: u64,
    group: MemoryGroup,
}

/// What is in use in a group.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// When, by [`now_ns`].
    pub at_ns: u64,
    /// All but clean pages of files, in bytes.
    pub used: u64,
    /// The part of it in tmpfs: the tier.
    pub tier: u64,
}

impl Group {
    /// Makes a group with this limit.
    pub fn new(limit_bytes: u64) -> Result<Self, String> {
        Group::called("agent", limit_bytes)
    }

    /// Makes a group called `name` with this limit.
    pub fn called(name: &str, limit_bytes: u64) -> Result<Self, String> {
        let group = MemoryGroup::new(&format!("bench-{name}"), limit_bytes);
        let group = group.map_err(|e| format!("cannot limit memory: {e}; this needs root"))?;
        Ok(Group { limit_bytes, group })
    }

    /// A command that runs in the group.
    pub fn command(&self, program: &Path) -> Command {
        self.group.run(program)
    }

    /// How often the kernel has killed a process in the group.
    pub fn kills(&self) -> u64 {
        self.group.kills().unwrap_or(0)
    }

    /// What is in use now.
    pub fn sample(&self) -> Result<Sample, String> {
        self.open()?.sample()
    }

    /// What is in use while `work` runs.
    pub fn during<T>(&self, work: impl FnOnce() -> Result<T, String>) -> Result<(T, Vec<Sample>), String> {
        let files = self.open()?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sampler = scope.spawn(|| {
                let mut samples = Vec::with_capacity(8192);
                while !stop.load(Ordering::Relaxed) {
                    samples.push(files.sample()?);
                    std::thread::sleep(STEP);
                }
                Ok::<_, String>(samples)
            });
            let result = work();
            stop.store(true, Ordering::Relaxed);
            let samples = sampler.join().map_err(|_| "the sampler panicked".to_owned())?;
            Ok((result?, samples?))
        })
    }

    fn open(&self) -> Result<Files, String> {
        let open = |path: PathBuf| File::open(&path).map_err(|e| format!("{}: {e}", path.display()));
        Ok(Files {
            usage: open(self.group.file("memory.usage_in_bytes", "memory.current"))?,
            stat: open(self.group.directory.join("memory.stat"))?,
            prefix: self.group.stat_prefix(),
        })
    }
}

/// Files of a group, kept open so that a sample costs little.
struct Files {
    usage: File,
    stat: File,
    prefix: &'static str,
}

impl Files {
    fn sample(&self) -> Result<Sample, String> {
        let mut buffer = [0; 8192];
        let usage: u64 = text(&self.usage, &mut buffer)?.trim().parse().map_err(|_| "no number in use")?;
        let at_ns = now_ns();
        let (mut clean, mut unwritten, mut tier) = (0, 0, 0);
        for line in text(&self.stat, &mut buffer)?.lines() {
            let Some((key, value)) = line.strip_prefix(self.prefix).and_then(|l| l.split_once(' ')) else {
                continue;
            };
            let value: u64 = value.parse().unwrap_or(0);
            match key {
                "active_file" | "inactive_file" => clean += value,
                "dirty" | "writeback" | "file_dirty" | "file_writeback" => unwritten += value,
                "shmem" => tier = value,
                _ => {}
            }
        }
        Ok(Sample { at_ns, used: usage.saturating_sub(clean - unwritten.min(clean)), tier })
    }
}

fn text<'a>(file: &File, buffer: &'a mut [u8]) -> Result<&'a str, String> {
    let n = file.read_at(buffer, 0).map_err(|e| e.to_string())?;
    std::str::from_utf8(&buffer[..n]).map_err(|e| e.to_string())
}
