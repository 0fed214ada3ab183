//! Where a stage of a job runs: on the compute nodes, or on the storage servers that have its data
//! (*analytics shipping*: Xu et al., TPDS 2016).
//!
//! For each side the machine adds up how long each resource would be busy: the servers' disks and
//! links, and the slots of the side. The stages that run there already count with the part of their
//! tasks that is left. The resource that is busy longest determines when the stage would end, and
//! the side where it ends first gets it. A tie goes to the compute nodes.
//!
//! | | disks | links | slots, for each task |
//! | --- | --- | --- | --- |
//! | compute nodes | all bytes read and written | the same | read and compute, then write |
//! | storage servers | the same, at the tasks' share | remote bytes, result | the same, then send |

#[cfg(test)]
mod tests;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::machine::{Machine, Nanos};

/// Where a stage runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// On the compute nodes.
    #[default]
    Compute,
    /// On the storage servers.
    Storage,
}

/// Names of the policies, and the side where all stages run under them; `None`: where they end
/// first.
pub const POLICIES: &[(&str, Option<Side>)] =
    &[("never", Some(Side::Compute)), ("always", Some(Side::Storage)), ("estimate", None)];

/// Names a stage of a job; never used twice.
pub type StageId = u64;

/// The policy, and the system that it decides for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The side where all stages run; `None`: where they end first.
    pub fixed: Option<Side>,
    /// Compute nodes.
    pub nodes: u32,
    /// Tasks at a time on each of them.
    pub node_slots: u32,
    /// Storage servers.
    pub servers: u32,
    /// Tasks at a time on each of them.
    pub server_slots: u32,
    /// How many times longer a server's core computes than a node's core.
    pub cpu_times: f64,
    /// Part of each server's disk that its own tasks may take.
    pub io_share: f64,
    /// Bandwidth of each server's disk.
    pub disk_bytes_per_s: f64,
    /// Bandwidth of each server's link.
    pub link_bytes_per_s: f64,
}

/// What a stage has to do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Its tasks, which are alike.
    pub tasks: u32,
    /// Compute time of a task on a node's core, in ns.
    pub task_cpu_ns: u64,
    /// Bytes that it reads from the servers.
    pub read_bytes: u64,
    /// The part of `read_bytes` on the server that has most of them.
    pub busiest_bytes: u64,
    /// The part of what a task reads that is on its own server, if it runs on one.
    pub local: f64,
    /// Bytes that it writes to the servers.
    pub write_bytes: u64,
    /// Whether tasks on servers write to their own.
    pub writes_local: bool,
    /// Bytes that go to the compute nodes in the end: input times selectivity.
    pub result_bytes: u64,
}

/// What the machine receives.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Event {
    /// A stage may begin.
    Ready {
        /// The stage.
        stage: StageId,
        /// What it has to do.
        work: Work,
        /// Part of the time in which the servers serve others than these stages, from 0 to 1.
        busy: f64,
    },
    /// A task of a stage has ended.
    TaskEnded {
        /// Which stage.
        stage: StageId,
    },
}

/// What the machine decides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Action {
    /// Assigns a stage to a side.
    Run {
        /// The stage.
        stage: StageId,
        /// The side.
        side: Side,
        /// Why, for people.
        why: String,
    },
}

/// The resources, and what a stage on a side waits for.
const RESOURCES: [&str; 4] = ["disks", "links", "slots of the nodes", "slots of the servers"];
const NODES: usize = 2;
const SERVERS: usize = 3;

/// For how long each resource is busy, in seconds.
type Busy = [f64; RESOURCES.len()];

/// A server always serves others a little, so that an estimate stays finite.
const LEAST: f64 = 0.01;

impl Config {
    /// Returns for how long a stage on a side keeps each resource busy, beside others that take
    /// `busy` of the servers.
    fn busy(&self, side: Side, work: &Work, busy: f64) -> Busy {
        let free = (1.0 - busy).clamp(LEAST, 1.0);
        let (disk, link) = (self.disk_bytes_per_s * free, self.link_bytes_per_s * free);
        let (servers, tasks) = (f64::from(self.servers), work.tasks.max(1));
        let [read, write, result] =
            [work.read_bytes, work.write_bytes, work.result_bytes].map(|bytes| bytes as f64 / servers);
        let busiest = work.busiest_bytes as f64;
        let (hosts, slots) = match side {
            Side::Compute => (self.nodes, self.node_slots),
            Side::Storage => (self.servers, self.server_slots),
        };
        let slots = (hosts * slots).max(1);
        // A task competes with its share of the others at its server.
        let queue = 1.0 + f64::from(tasks.min(slots) - 1) / servers;
        let far = disk.min(link) / queue;
        let each = |bytes_of_a_server: f64| bytes_of_a_server * servers / f64::from(tasks);
        let (disks, links, times, read_s, write_s) = match side {
            Side::Compute => {
                let all = busiest + write;
                (all / disk, all / link, 1.0, each(read) / far, each(write) / far)
            }
            Side::Storage => {
                let own = self.disk_bytes_per_s * free.min(self.io_share);
                let local = work.local;
                // Servers that are done take tasks of others.
                let disks = ((busiest + write) / disk).max((local * read + write) / own);
                let (written, write_s) = match work.writes_local {
                    true => (0.0, each(write) / own),
                    false => (write * (1.0 - 1.0 / servers), each(write) / far),
                };
                let links = (busiest * (1.0 - local) + written + result) / link;
                let read_s = each(read) * (local / own + (1.0 - local) / far);
                (disks, links, self.cpu_times, read_s, write_s + each(result) / link)
            }
        };
        let cpu_s = work.task_cpu_ns as f64 * 1e-9 * times;
        // A task computes what it has read while it continues to read.
        let slot_s = f64::from(tasks.div_ceil(slots)) * (cpu_s.max(read_s) + write_s);
        let mut of = [disks, links, 0.0, 0.0];
        of[if side == Side::Storage { SERVERS } else { NODES }] = slot_s;
        of
    }
}

/// A running stage.
#[derive(Clone, Debug)]
struct Running {
    stage: StageId,
    busy: Busy,
    tasks: u32,
    left: u32,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Ship {
    config: Config,
    running: Vec<Running>,
}

impl Ship {
    /// Creates a machine without stages.
    pub fn new(config: Config) -> Self {
        Ship { config, running: Vec::new() }
    }

    /// Returns when a stage would end on a side, in seconds from now, and the resource that
    /// determines it.
    pub fn estimate(&self, side: Side, work: &Work, busy: f64) -> (f64, &'static str) {
        let own = self.config.busy(side, work, busy);
        let of = |resource: usize| {
            let left = |r: &Running| r.busy[resource] * f64::from(r.left) / f64::from(r.tasks.max(1));
            // It does not wait for what it does not need.
            let others = if own[resource] > 0.0 { self.running.iter().map(left).sum() } else { 0.0 };
            own[resource] + others
        };
        let longest = |a: (f64, &'static str), b: (f64, &'static str)| if b.0 > a.0 { b } else { a };
        (0..RESOURCES.len()).map(|r| (of(r), RESOURCES[r])).fold((0.0, "nothing"), longest)
    }

    fn decide(&self, work: &Work, busy: f64) -> (Side, String) {
        let (compute, storage) =
            (self.estimate(Side::Compute, work, busy), self.estimate(Side::Storage, work, busy));
        let side = match self.config.fixed {
            Some(side) => side,
            None if storage.0 < compute.0 => Side::Storage,
            None => Side::Compute,
        };
        let fixed = if self.config.fixed.is_some() { " (fixed)" } else { "" };
        let why = format!(
            "compute nodes: {:.1} s ({}); storage servers: {:.1} s ({}){fixed}",
            compute.0, compute.1, storage.0, storage.1
        );
        (side, why)
    }
}

impl Machine for Ship {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, _now: Nanos, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Ready { stage, work, busy } => {
                let (side, why) = self.decide(&work, busy);
                let busy = self.config.busy(side, &work, busy);
                self.running.push(Running { stage, busy, tasks: work.tasks, left: work.tasks });
                out.push(Action::Run { stage, side, why });
            }
            Event::TaskEnded { stage } => {
                if let Some(at) = self.running.iter().position(|r| r.stage == stage) {
                    self.running[at].left = self.running[at].left.saturating_sub(1);
                    if self.running[at].left == 0 {
                        self.running.remove(at);
                    }
                }
            }
        }
    }
}
