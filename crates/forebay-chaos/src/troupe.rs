//! The actors' processes: starts them, kills and stops some, starts others in their place, and sees
//! who hangs.

use crate::actor::{Orders, Role, beat_of};
use crate::random::Random;
use crate::record::now_ns;
use crate::stage::{NODES, Stage, signal};
use rustix::process::Signal;
use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};

/// How long a single operation of an actor may take before it counts as a hang.
pub const HANG_NS: u64 = 40_000_000_000;

struct Part {
    role: Role,
    slot: u32,
    slots: u32,
    node: u32,
    child: Option<Child>,
    /// When it has resumed at the latest after its last stop: a stopped process does not hang, so
    /// its time starts again then.
    resumed_ns: u64,
    killed: bool,
}

/// All actors of a round.
pub struct Troupe {
    parts: Vec<Part>,
    seed: u64,
    round: u32,
    until_ns: u64,
    dir: PathBuf,
    next_process: u32,
    pub trouble: Vec<String>,
}

impl Troupe {
    /// Numbers of processes continue from round to round, so that no two draw the same.
    pub fn new(seed: u64, round: u32, until_ns: u64, dir: PathBuf, next_process: u32) -> Self {
        Troupe { parts: Vec::new(), seed, round, until_ns, dir, next_process, trouble: Vec::new() }
    }

    pub fn next_process(&self) -> u32 {
        self.next_process
    }

    pub fn start(&mut self, stage: &Stage, role: Role, slots: u32) -> io::Result<()> {
        for slot in 0..slots {
            // The same files are written from another node in the next round.
            let alone = role == Role::Appender && !stage.setup.pfs.appends_from_all_nodes();
            let node = if alone { self.round } else { slot + self.round } % NODES;
            let part = Part { role, slot, slots, node, child: None, resumed_ns: 0, killed: false };
            self.parts.push(part);
            self.spawn(stage, self.parts.len() - 1)?;
        }
        Ok(())
    }

    pub fn log(&self, role: Role, slot: u32) -> PathBuf {
        self.dir.join(format!("{role}-{slot}.log"))
    }

    /// The logs of a role, each with the node of its actor.
    pub fn logs(&self, role: Role) -> Vec<(PathBuf, u32)> {
        let of_role = self.parts.iter().filter(|p| p.role == role);
        of_role.map(|p| (self.log(role, p.slot), p.node)).collect()
    }

    fn beat(&self, part: &Part) -> PathBuf {
        self.dir.join(format!("{}-{}.beat", part.role, part.slot))
    }

    fn spawn(&mut self, stage: &Stage, nth: usize) -> io::Result<()> {
        self.next_process += 1;
        let part = &self.parts[nth];
        let said = File::options().create(true).append(true).open(self.dir.join("said"))?;
        let _ = std::fs::remove_file(self.beat(part));
        let (pause_ms, gap_ms) = stage.setup.pfs.pace();
        let orders = Orders {
            role: part.role,
            root: stage.root(),
            mount: stage.mount_of(part.node),
            socket: stage.socket(part.node),
            seed: self.seed,
            slot: part.slot,
            slots: part.slots,
            process: self.next_process,
            node: part.node,
            log: self.log(part.role, part.slot),
            beat: self.beat(part),
            until_ns: self.until_ns,
            forebay: stage.setup.forebay.clone(),
            round: self.round,
            pause_ms,
            gap_ms,
            without: stage.setup.pfs.without().iter().map(|what| (*what).to_owned()).collect(),
        };
        let file = self.dir.join(format!("{}-{}.orders", part.role, part.slot));
        orders.write(&file)?;
        let mut command = stage.on(part.node, &std::env::current_exe()?);
        command.arg("act").arg(file).stdin(Stdio::null()).stdout(said.try_clone()?).stderr(said);
        self.parts[nth].child = Some(command.spawn()?);
        Ok(())
    }

    fn any(&self, random: &mut Random, role: Role) -> Option<usize> {
        let alive: Vec<usize> = (0..self.parts.len())
            .filter(|n| self.parts[*n].role == role && self.parts[*n].child.is_some())
            .collect();
        (!alive.is_empty()).then(|| alive[random.below(alive.len() as u64) as usize])
    }

    /// Kills one, which another replaces; returns its process, if it died of this.
    pub fn kill_any(&mut self, random: &mut Random, role: Role) -> io::Result<Option<u32>> {
        let Some(nth) = self.any(random, role) else { return Ok(None) };
        let part = &mut self.parts[nth];
        let Some(child) = &mut part.child else { return Ok(None) };
        if child.try_wait()?.is_some() {
            return Ok(None);
        }
        child.kill()?;
        part.killed = true;
        Ok(Some(child.id()))
    }

    /// Stops one; returns its process.
    pub fn stop_any(&mut self, random: &mut Random, role: Role) -> Option<u32> {
        let nth = self.any(random, role)?;
        let part = &mut self.parts[nth];
        let pid = part.child.as_ref()?.id();
        signal(pid, Signal::STOP).ok()?;
        // Stops are short beside this.
        part.resumed_ns = now_ns() + 5_000_000_000;
        Some(pid)
    }

    /// Replaces killed actors, and notices those that hang or have failed. False once all have
    /// ended.
    pub fn step(&mut self, stage: &Stage) -> io::Result<bool> {
        for nth in 0..self.parts.len() {
            let beat = self.beat(&self.parts[nth]);
            let part = &mut self.parts[nth];
            let Some(child) = &mut part.child else { continue };
            let Some(status) = child.try_wait()? else {
                let since = beat_of(&beat);
                if since != 0 && now_ns() > since.max(part.resumed_ns) + HANG_NS {
                    let who = format!("{} {} on node {}", part.role, part.slot, part.node);
                    self.trouble.push(format!("hang: {who}: {}", where_is(child.id())));
                    child.kill()?;
                    part.killed = true;
                }
                continue;
            };
            part.child = None;
            let killed = std::mem::take(&mut part.killed) && status.signal() == Some(libc::SIGKILL);
            if !status.success() && !killed {
                let said = std::fs::read_to_string(self.dir.join("said")).unwrap_or_default();
                let tail: Vec<_> = said.lines().rev().take(5).collect();
                self.trouble.push(format!("{} {} failed ({status}): {tail:?}", part.role, part.slot));
            }
            // A writer comes back even after the end, to see what the killed one has left.
            if killed && (part.role == Role::Writer || now_ns() < self.until_ns) {
                self.spawn(stage, nth)?;
            }
        }
        Ok(self.parts.iter().any(|p| p.child.is_some()))
    }
}

impl Drop for Troupe {
    fn drop(&mut self) {
        for child in self.parts.iter_mut().filter_map(|p| p.child.as_mut()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Where a process is in the kernel, thread by thread.
pub fn where_is(pid: u32) -> String {
    let mut text = format!("process {pid}");
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    for task in tasks {
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let state = read("stat").rsplit(')').next().unwrap_or_default().trim().chars().next().unwrap_or('?');
        let (comm, at, stack) = (read("comm"), read("wchan"), read("stack"));
        text += &format!(
            "\n  {} {} {state} {at}\n    {}",
            task.file_name().to_string_lossy(),
            comm.trim(),
            stack.replace('\n', "\n    ")
        );
    }
    text
}
