//! Faults: what is done to agents, the coordinator, actors, memory and disks while files are read
//! and written.
//!
//! A fault has a beginning and mostly an end, both on one list by time, so that nothing waits for
//! anything. It is counted when it has happened: a process that was to be killed has died of it, a
//! limit was hit, a disk was full.

use crate::actor::{FILES, Role};
use crate::random::Random;
use crate::record::now_ns;
use crate::stage::{CAPACITY_MIB, NODES, Stage, signal};
use crate::troupe::Troupe;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

const MS: u64 = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    KillActor(Role),
    StopActor(Role),
    KillAgent,
    StopAgent,
    KillCoordinator,
    StopCoordinator,
    EvictAll,
    Evict,
    Load,
    Pin,
    Capacity,
    DownUp,
    TierFull,
    PfsFull,
    MemoryLimit,
}

/// How often each fault happens, relative to the others.
const WEIGHTS: &[(u64, Fault)] = &[
    (14, Fault::KillActor(Role::Reader)),
    (14, Fault::KillActor(Role::Writer)),
    (6, Fault::KillActor(Role::Appender)),
    (8, Fault::KillAgent),
    (4, Fault::KillCoordinator),
    (4, Fault::StopActor(Role::Reader)),
    (4, Fault::StopActor(Role::Writer)),
    (4, Fault::StopAgent),
    (3, Fault::StopCoordinator),
    (5, Fault::EvictAll),
    (9, Fault::Evict),
    (9, Fault::Load),
    (4, Fault::Pin),
    (6, Fault::Capacity),
    (3, Fault::DownUp),
    (4, Fault::TierFull),
    (3, Fault::PfsFull),
    (4, Fault::MemoryLimit),
];

/// The faults that a whole run must have seen, in addition to [`Stage::possible`].
pub const DEMANDED: &[&str] = &[
    "kill reader",
    "kill writer",
    "kill appender",
    "kill agent",
    "kill coordinator",
    "stop reader",
    "stop writer",
    "stop agent",
    "stop coordinator",
    "evict all",
    "evict",
    "load",
    "pin",
    "capacity",
    "down and up",
];

enum After {
    Continue(u32),
    StartAgent(u32),
    /// It was started, and is not to be disturbed before it answers.
    AwaitAgent(u32),
    StartCoordinator,
    TierHasRoom(u32),
    PfsHasRoom(PathBuf),
    MemoryIsFree(u32, u64),
    CapacityBack(u32),
}

/// Decides, does, and counts.
pub struct Faults {
    random: Random,
    /// What to do, and when, by the monotonic clock.
    later: Vec<(u64, After)>,
    next_ns: u64,
    every_ms: u64,
    /// Commands that run beside everything else, with the name they are counted under.
    commands: Vec<(Child, &'static str, u64)>,
    pub happened: BTreeMap<String, u64>,
    pub kills: u64,
    /// When and what, for the history of a violation.
    pub diary: Vec<(u64, String)>,
    pub trouble: Vec<String>,
}

impl Faults {
    pub fn new(seed: u64, every_ms: u64) -> Self {
        Faults {
            random: Random::new(seed, "faults", 0),
            later: Vec::new(),
            next_ns: 0,
            every_ms,
            commands: Vec::new(),
            happened: BTreeMap::new(),
            kills: 0,
            diary: Vec::new(),
            trouble: Vec::new(),
        }
    }

    fn count(&mut self, what: &str, detail: String) {
        *self.happened.entry(what.to_owned()).or_default() += 1;
        if what.starts_with("kill") {
            self.kills += 1;
        }
        self.diary.push((now_ns(), format!("{what} {detail}")));
    }

    /// Does what is due; begins something new if `more`.
    pub fn step(&mut self, stage: &mut Stage, troupe: &mut Troupe, more: bool) -> io::Result<()> {
        let now = now_ns();
        while let Some(nth) = self.later.iter().position(|(at, _)| *at <= now) {
            let (_, after) = self.later.swap_remove(nth);
            self.after(stage, after)?;
        }
        self.look_after(stage)?;
        self.reap_commands(now);
        if more && now >= self.next_ns {
            self.next_ns = now + self.random.below(2 * self.every_ms) * MS;
            let fault = self.random.weighted(WEIGHTS);
            self.begin(stage, troupe, fault)?;
        }
        Ok(())
    }

    /// Waits until all that was begun has ended and all agents answer.
    pub fn settle(&mut self, stage: &mut Stage, troupe: &mut Troupe) -> io::Result<()> {
        while !self.later.is_empty() || !self.commands.is_empty() {
            self.step(stage, troupe, false)?;
            std::thread::sleep(Duration::from_millis(5));
        }
        for number in 0..NODES {
            stage.wait_ready(number)?;
            stage.nodes[number as usize].busy = false;
        }
        Ok(())
    }

    fn then(&mut self, ms: (u64, u64), after: After) {
        let at = now_ns() + self.random.between(ms.0, ms.1) * MS;
        self.later.push((at, after));
    }

    /// Notices agents that have ended without a request.
    fn look_after(&mut self, stage: &mut Stage) -> io::Result<()> {
        for number in 0..NODES {
            let node = &mut stage.nodes[number as usize];
            let Some(agent) = &mut node.agent else { continue };
            let Some(status) = agent.try_wait()? else { continue };
            node.agent = None;
            let is_limited =
                self.later.iter().any(|(_, a)| matches!(a, After::MemoryIsFree(n, _) if *n == number));
            // Killed by the kernel, perhaps seen only now that the limit has been lifted.
            if stage.has_oom_kill(number) && status.signal() == Some(libc::SIGKILL) {
                self.count("killed for want of memory", format!("node {number}"));
            } else {
                let log = stage.agent_log(number);
                self.trouble.push(format!("agent {number} has ended by itself ({status}):\n{log}"));
            }
            if !is_limited {
                self.later.push((0, After::StartAgent(number)));
            }
        }
        Ok(())
    }

    fn reap_commands(&mut self, now: u64) {
        let mut done = Vec::new();
        for (nth, (child, what, deadline)) in self.commands.iter_mut().enumerate() {
            match child.try_wait() {
                Ok(None) if now < *deadline => {}
                Ok(None) => {
                    self.trouble.push(format!("`forebay {what}` hangs (process {})", child.id()));
                    let _ = child.kill();
                }
                Ok(Some(status)) => done.push((nth, *what, status.success())),
                Err(e) => self.trouble.push(format!("`forebay {what}`: {e}")),
            }
        }
        for (nth, what, well) in done.into_iter().rev() {
            self.commands.swap_remove(nth);
            if well {
                self.count(what, String::new());
            }
        }
    }

    /// A node that nothing else is being done to.
    fn any_node(&mut self, stage: &Stage) -> Option<u32> {
        let number = self.random.below(u64::from(NODES)) as u32;
        let node = &stage.nodes[number as usize];
        (!node.busy && node.agent.is_some()).then_some(number)
    }

    fn begin(&mut self, stage: &mut Stage, troupe: &mut Troupe, fault: Fault) -> io::Result<()> {
        match fault {
            Fault::KillActor(role) => self.kill_actor(troupe, role),
            Fault::StopActor(role) => {
                if let Some(pid) = troupe.stop_any(&mut self.random, role) {
                    self.count(&format!("stop {role}"), format!("process {pid}"));
                    self.then((50, 1500), After::Continue(pid));
                }
                Ok(())
            }
            Fault::KillCoordinator | Fault::StopCoordinator => self.disturb_coordinator(stage, fault),
            Fault::PfsFull => {
                if !self.later.iter().any(|(_, a)| matches!(a, After::PfsHasRoom(_)))
                    && let Some(filler) = stage.fill_pfs()
                {
                    self.count("file system full", String::new());
                    self.then((300, 1200), After::PfsHasRoom(filler));
                }
                Ok(())
            }
            _ => match self.any_node(stage) {
                Some(number) => self.disturb_node(stage, number, fault),
                None => Ok(()),
            },
        }
    }

    fn kill_actor(&mut self, troupe: &mut Troupe, role: Role) -> io::Result<()> {
        if let Some(pid) = troupe.kill_any(&mut self.random, role)? {
            self.later.retain(|(_, a)| !matches!(a, After::Continue(p) if *p == pid));
            self.count(&format!("kill {role}"), format!("process {pid}"));
        }
        Ok(())
    }

    fn disturb_coordinator(&mut self, stage: &mut Stage, fault: Fault) -> io::Result<()> {
        let busy = |a: &After| match a {
            After::StartCoordinator => true,
            After::Continue(pid) => stage.coordinator.as_ref().is_some_and(|c| c.id() == *pid),
            _ => false,
        };
        if self.later.iter().any(|(_, a)| busy(a)) {
            return Ok(());
        }
        let Some(coordinator) = &mut stage.coordinator else { return Ok(()) };
        if fault == Fault::StopCoordinator {
            let pid = coordinator.id();
            signal(pid, Signal::STOP)?;
            self.count("stop coordinator", String::new());
            self.then((200, 2500), After::Continue(pid));
            return Ok(());
        }
        coordinator.kill()?;
        let status = coordinator.wait()?;
        if status.signal() == Some(libc::SIGKILL) {
            self.count("kill coordinator", String::new());
        } else {
            self.trouble.push(format!("the coordinator had ended by itself ({status})"));
        }
        stage.coordinator = None;
        self.then((50, 2000), After::StartCoordinator);
        Ok(())
    }

    fn disturb_node(&mut self, stage: &mut Stage, number: u32, fault: Fault) -> io::Result<()> {
        let path = stage.path(self.random.below(u64::from(FILES)) as u32);
        let deadline = now_ns() + 40_000 * MS;
        let mut run = |args: &[&str], what: &'static str| -> io::Result<()> {
            self.commands.push((stage.command(number, args).spawn()?, what, deadline));
            Ok(())
        };
        match fault {
            Fault::EvictAll => run(&["evict", "--all"], "evict all"),
            Fault::Evict => run(&["evict", &path], "evict"),
            Fault::Load => run(&["load", &path], "load"),
            Fault::Pin => run(&["pin", &path], "pin"),
            Fault::Capacity => {
                let mib = self.random.pick(&[26, 30, 40, 56]);
                let child = stage.command(number, &["capacity", &format!("{mib}MiB")]).spawn()?;
                self.commands.push((child, "capacity", deadline));
                stage.nodes[number as usize].busy = true;
                self.then((200, 2000), After::CapacityBack(number));
                Ok(())
            }
            _ => self.break_node(stage, number, fault),
        }
    }

    fn break_node(&mut self, stage: &mut Stage, number: u32, fault: Fault) -> io::Result<()> {
        let at = format!("node {number}");
        let pid = stage.agent_pid(number);
        stage.nodes[number as usize].busy = true;
        match fault {
            Fault::KillAgent => {
                self.end_agent(stage, number, |child| child.kill(), "kill agent")?;
                self.then((10, 1500), After::StartAgent(number));
            }
            Fault::DownUp => {
                self.end_agent(stage, number, |child| signal(child.id(), Signal::TERM), "down and up")?;
                self.then((10, 600), After::StartAgent(number));
            }
            Fault::StopAgent => {
                signal(pid, Signal::STOP)?;
                self.count("stop agent", at);
                self.then((50, 3000), After::Continue(pid));
            }
            Fault::TierFull => match stage.resize_tier(number, Some(256 << 10)) {
                Some(()) => {
                    self.count("tier full", at);
                    self.then((500, 2500), After::TierHasRoom(number));
                }
                None => stage.nodes[number as usize].busy = false,
            },
            _ => match stage.limit_memory(number, Some(1 << 20)) {
                Some(hits) => self.then((500, 2000), After::MemoryIsFree(number, hits)),
                None => stage.nodes[number as usize].busy = false,
            },
        }
        Ok(())
    }

    fn end_agent(
        &mut self,
        stage: &mut Stage,
        number: u32,
        end: impl FnOnce(&mut Child) -> io::Result<()>,
        what: &str,
    ) -> io::Result<()> {
        let Some(mut agent) = stage.nodes[number as usize].agent.take() else { return Ok(()) };
        end(&mut agent)?;
        let deadline = now_ns() + 20_000 * MS;
        let status = loop {
            if let Some(status) = agent.try_wait()? {
                break status;
            }
            if now_ns() > deadline {
                self.trouble.push(format!(
                    "agent {number} does not end ({what}): {}",
                    crate::troupe::where_is(agent.id())
                ));
                agent.kill()?;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let wanted =
            if what == "kill agent" { status.signal() == Some(libc::SIGKILL) } else { status.success() };
        match wanted {
            true => self.count(what, format!("node {number}")),
            false => self.trouble.push(format!("{what} {number}: {status}\n{}", stage.agent_log(number))),
        }
        Ok(())
    }

    fn after(&mut self, stage: &mut Stage, after: After) -> io::Result<()> {
        let mut free = None;
        match after {
            After::Continue(pid) => {
                // It may have been killed meanwhile.
                let _ = signal(pid, Signal::CONT);
                free = (0..NODES).find(|n| stage.agent_pid(*n) == pid);
            }
            After::StartAgent(number) => {
                stage.start_agent(number)?;
                self.then((20, 30), After::AwaitAgent(number));
            }
            After::AwaitAgent(number) => {
                match stage.is_ready(number) || stage.nodes[number as usize].agent.is_none() {
                    true => free = Some(number),
                    false => self.then((20, 30), After::AwaitAgent(number)),
                }
            }
            After::StartCoordinator => stage.start_coordinator()?,
            After::TierHasRoom(number) => {
                stage.resize_tier(number, None);
                free = Some(number);
            }
            After::PfsHasRoom(filler) => std::fs::remove_file(filler)?,
            After::MemoryIsFree(number, hits) => {
                let now = stage.limit_memory(number, None).unwrap_or(hits);
                if now > hits {
                    self.count("memory limit", format!("node {number}"));
                }
                match stage.nodes[number as usize].agent {
                    None => self.later.push((0, After::StartAgent(number))),
                    Some(_) => free = Some(number),
                }
            }
            After::CapacityBack(number) => {
                let back = format!("{CAPACITY_MIB}MiB");
                let child = stage.command(number, &["capacity", &back]).spawn()?;
                self.commands.push((child, "capacity", now_ns() + 40_000 * MS));
                free = Some(number);
            }
        }
        if let Some(number) = free {
            stage.nodes[number as usize].busy = false;
        }
        Ok(())
    }
}
