//! A control group with an agent in it, whose tier takes all of the group that its law allows.

use super::group::Group;
use super::hog::{self, Burst};
use super::judge::{TARGET, Verdict, judge};
use crate::rig::{AgentProcess, BareTmpfs, Rig};
use forebay_client::Client;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// The tier's capacity, as a share of the group without what the agent itself takes.
const CAPACITY: f64 = 0.94;
const AGENT_BYTES: u64 = 32 << 20;

/// The tier is full when this share of the group is in use, or when several passes over the file
/// have added nothing.
const FULL: f64 = TARGET - 0.01;
const IDLE_PASSES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(50);

/// How long a burst is kept.
const HOLD: Duration = Duration::from_millis(50);

/// How long the tier may take to be full again.
const FILL_MAX: Duration = Duration::from_secs(60);

/// What a burst has done.
pub enum Outcome {
    /// It succeeded, at this rate in bytes per second.
    Ended(Verdict, f64),
    /// The kernel has killed a process.
    Killed,
}

/// See the module. Fields drop in this order: the agent leaves the group before the group goes.
pub struct Stage {
    agent: AgentProcess,
    /// The group that the agent runs in.
    pub group: Group,
    /// The file that fills the tier, a hole, so that fetching it costs no other memory.
    path: PathBuf,
}

/// A tmpfs that stands for the PFS, outside of the group.
pub struct Source(BareTmpfs);

impl Source {
    /// Mounts it.
    pub fn new(rig: &Rig) -> Result<Self, String> {
        Ok(Source(rig.bare_tmpfs()?))
    }

    /// Its root.
    pub fn path(&self) -> &std::path::Path {
        &self.0.path
    }
}

impl Stage {
    /// Starts an agent with this law in a group of `limit_bytes`, and fills its tier.
    pub fn new(rig: &Rig, source: &Source, law: &str, limit_bytes: u64) -> Result<Self, String> {
        let group = Group::new(limit_bytes)?;
        let bytes = (limit_bytes.saturating_sub(AGENT_BYTES) as f64 * CAPACITY) as u64 / MIB * MIB;
        let path = source.path().join(format!("hole-{bytes}"));
        let hole = std::fs::File::create(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        hole.set_len(bytes).map_err(|e| format!("{}: {e}", path.display()))?;
        // Nothing is cached that a program has open for writing.
        drop(hole);
        let more = format!("[tier]\nlimit = \"98%\"\n[memory]\npolicy = {law:?}\n");
        let command = group.command(&rig.program);
        let agent = rig.agent_by(command, "agent", &more, source.path(), &bytes.to_string())?;
        let stage = Stage { agent, group, path };
        stage.fill()?;
        Ok(stage)
    }

    /// A client of the agent.
    pub fn client(&self) -> Client {
        self.agent.client()
    }

    /// The agent.
    pub fn agent(&mut self) -> &mut AgentProcess {
        &mut self.agent
    }

    /// Reads what is missing in the tier until the tier is full.
    pub fn fill(&self) -> Result<(), String> {
        let client = self.client();
        let deadline = Instant::now() + FILL_MAX;
        // Until the agent has measured its mount, it caches nothing.
        let file = loop {
            let file = client.open(&self.path).map_err(|e| e.to_string())?;
            if file.is_tiered() {
                break file;
            }
            if Instant::now() > deadline {
                return Err(format!("the agent does not cache {}", self.path.display()));
            }
            std::thread::sleep(PAUSE);
        };
        let mut buffer = vec![0; MIB as usize];
        let (mut before, mut idle) = (0, 0);
        loop {
            let mut at = 0;
            for (len, resident) in file.extents() {
                for offset in (at..at + len).step_by(MIB as usize).filter(|_| resident < len) {
                    file.read_at(&mut buffer, offset).map_err(|e| format!("cannot fill the tier: {e}"))?;
                }
                at += len;
            }
            let sample = self.group.sample()?;
            idle = if sample.tier > before { 0 } else { idle + 1 };
            before = sample.tier;
            if sample.used as f64 >= FULL * self.group.limit_bytes as f64
                || idle >= IDLE_PASSES && sample.tier > MIB
            {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("the tier is not full after {FILL_MAX:?}: {sample:?}"));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// A program takes `bytes` beside the full tier.
    pub fn burst(&self, bytes: u64, rate: f64) -> Result<Outcome, String> {
        Ok(self.burst_times(bytes, rate)?.0)
    }

    /// Runs a burst as [`Stage::burst`] does; also returns when its first and last page came, if it
    /// succeeded.
    pub fn burst_times(&self, bytes: u64, rate: f64) -> Result<(Outcome, (u64, u64)), String> {
        let kills = self.group.kills();
        let (burst, samples) = self.group.during(|| hog::run(&self.group, bytes, rate, HOLD))?;
        Ok(match burst {
            Some(burst) if self.group.kills() == kills => {
                let Burst { first_ns, last_ns, .. } = burst;
                let reached = bytes as f64 / ((last_ns - first_ns).max(1) as f64 / 1e9);
                let verdict = judge(&samples, burst, self.group.limit_bytes);
                (Outcome::Ended(verdict, reached), (first_ns, last_ns))
            }
            _ => (Outcome::Killed, (0, 0)),
        })
    }
}
