//! A platform whose nodes fail, and how much of its time is wasted.
//!
//! Jobs read their input, compute, write checkpoints and write their output, all through one PFS.
//! Nodes fail at random. A job that has lost a node goes back to its last checkpoint that is safe
//! from this kind of failure ([`Level`]), and reads it. *Waste* is the fraction of the nodes' time
//! in which jobs do nothing that lasts: they wait, write and read checkpoints, or compute what a
//! failure takes away.
//!
//! | room | what it holds |
//! | --- | --- |
//! | [`strategy`] | when jobs write, in which order, and whether they wait |
//! | [`world`] | the events |
//! | [`bound`] | the least waste |
//!
//! The order of all transfers comes from the machine of [`forebay_policy::burst::access`], periods
//! from [`forebay_policy::burst::period`].
//!
//! A failed node is replaced immediately. Jobs start in an order that keeps each class at its share
//! of the nodes' time; the next one waits until it fits.

use forebay_policy::burst::period::Job;

pub mod bound;
pub mod cielo;
pub mod strategy;
mod world;

pub use strategy::{Level, STRATEGIES, Strategy, Writes};
pub use world::simulate;

/// Jobs of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// Nodes of a job.
    pub nodes: u32,
    /// Share of the platform's time; all classes together have 1.
    pub share: f64,
    /// Mean work of a job; each has between 0.9 and 1.1 times as much.
    pub work_s: f64,
    /// What it reads first.
    pub input_bytes: f64,
    /// What it writes at last.
    pub output_bytes: f64,
    /// What it writes at each checkpoint, and reads after a failure.
    pub checkpoint_bytes: f64,
}

/// What fails, in the order of [`Platform::failures`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A program; its nodes continue.
    Program,
    /// A node, which returns after [`REBOOT_S`] with its disk.
    Restart,
    /// A node, permanently.
    Node,
    /// Several nodes that share a power supply or a switch; their disks return after [`REBOOT_S`].
    Group,
}

/// All of them.
pub const FAILURES: [Failure; 4] = [Failure::Program, Failure::Restart, Failure::Node, Failure::Group];

/// How long a node takes to come back with its disk.
pub const REBOOT_S: f64 = 300.0;

/// Nodes, a PFS, a tier, and what runs there.
#[derive(Clone, Debug, PartialEq)]
pub struct Platform {
    /// Number of nodes.
    pub nodes: u32,
    /// Bandwidth of the PFS.
    pub pfs_bytes_per_s: f64,
    /// What a node writes to the tier and reads from it.
    pub tier_bytes_per_s: f64,
    /// Mean time between failures of a node, of all kinds.
    pub node_fails_s: f64,
    /// Share of each kind of failure.
    pub failures: [f64; FAILURES.len()],
    /// What runs.
    pub classes: Vec<Class>,
}

impl Platform {
    /// How long `bytes` take the PFS, without other transfers.
    pub fn pfs_s(&self, bytes: f64) -> f64 {
        bytes / self.pfs_bytes_per_s
    }

    /// How long a checkpoint takes the nodes of a job to or from the tier.
    pub fn tier_s(&self, class: &Class) -> f64 {
        class.checkpoint_bytes / f64::from(class.nodes) / self.tier_bytes_per_s
    }

    /// Mean time between failures of a job of these kinds.
    pub fn fails_s(&self, class: &Class, of: impl Fn(Failure) -> bool) -> f64 {
        let share: f64 = FAILURES.iter().zip(self.failures).filter(|(f, _)| of(**f)).map(|(_, s)| s).sum();
        self.node_fails_s / f64::from(class.nodes) / share
    }

    /// `counts` jobs of each class, whose checkpoints go to the PFS and hold them up meanwhile.
    pub fn jobs(&self, counts: &[f64]) -> Vec<Job> {
        let job = |(class, count): (&Class, &f64)| Job {
            nodes: class.nodes.into(),
            count: *count,
            fails_ns: self.fails_s(class, |_| true) * 1e9,
            blocks_ns: self.pfs_s(class.checkpoint_bytes) * 1e9,
            pfs_ns: self.pfs_s(class.checkpoint_bytes) * 1e9,
        };
        self.classes.iter().zip(counts).map(job).collect()
    }

    /// How many jobs of each class run if the platform is full.
    pub fn counts(&self) -> Vec<f64> {
        let nodes = f64::from(self.nodes);
        self.classes.iter().map(|class| class.share * nodes / f64::from(class.nodes)).collect()
    }
}

/// Which part of which run is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Seed of failures and jobs.
    pub seed: u64,
    /// When the measurement begins.
    pub from_s: f64,
    /// How long the measurement lasts.
    pub for_s: f64,
}

/// What became of the time of all nodes with a job, in node seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// All of it.
    pub all: f64,
    /// Computed, and not lost.
    pub work: f64,
    /// Input and output, as long as they take alone.
    pub io: f64,
    /// Computed, and lost with a failure.
    pub lost: f64,
    /// Jobs write a checkpoint, or wait to write it.
    pub written: f64,
    /// Jobs read a checkpoint, or wait to read it.
    pub read: f64,
    /// Failures of jobs.
    pub failures: u64,
    /// Mean number of jobs of each class that ran.
    pub counts: Vec<f64>,
}

impl Outcome {
    /// The fraction of the time that is wasted.
    pub fn waste(&self) -> f64 {
        1.0 - (self.work + self.io) / self.all
    }
}
