//! Steps on their way to the parallel file system, and the machine that decides about them.

use std::collections::BTreeMap;

use forebay_policy::drain::{Drain, File, FileId};
use forebay_policy::machine::Nanos;

use super::DrainSetup;
use super::fabric::WriteId;
use crate::driver::Driver;

/// Marks what nodes read for drains; the rest of the number counts rounds. Writes have the numbers
/// of holds, of which there are fewer.
const ROUND: WriteId = 1 << 31;

/// What the nodes of a step send together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// The step.
    pub drain: FileId,
    /// Number of its nodes.
    pub nodes: u64,
    /// Bytes that the nodes have sent before.
    pub from: u64,
    /// Bytes that they send now.
    pub bytes: u64,
}

/// A step that is drained.
pub struct Step {
    pub job: usize,
    pub index: u32,
    pub nodes: Vec<u32>,
    pub begun: Nanos,
    pub bytes: u64,
    /// Bytes that have been read, or are being read.
    pub read: u64,
    pub reading: Option<(WriteId, u64)>,
    /// Rounds in transit, and their bytes.
    pub sent: (u32, u64),
    pub landed: u64,
    /// Bytes of the round that waits for permission.
    pub offered: Option<u64>,
}

/// All steps that are being drained.
pub struct Draining {
    pub setup: DrainSetup,
    pub driver: Driver<Drain>,
    pub steps: BTreeMap<FileId, Step>,
    pub next: FileId,
    pub rounds: BTreeMap<WriteId, FileId>,
    pub next_round: WriteId,
    /// Bytes in transit of steps that are lost.
    pub adrift_bytes: u64,
    /// Rounds to take out and send to the file system.
    pub sent: Vec<Round>,
}

impl Draining {
    /// Starts with nothing to drain.
    pub fn new(setup: &DrainSetup) -> Self {
        Draining {
            driver: Driver::new("drain", Drain::new(setup.config)),
            setup: setup.clone(),
            steps: BTreeMap::new(),
            next: 1,
            rounds: BTreeMap::new(),
            next_round: ROUND,
            adrift_bytes: 0,
            sent: Vec::new(),
        }
    }

    /// The step as the machine sees it; a job may wait for its room.
    pub fn facts(&self, id: FileId, wants_room: bool) -> Option<File> {
        let step = self.steps.get(&id)?;
        Some(File {
            owner: step.job as u32,
            bytes: step.bytes,
            since: step.begun,
            is_ready: true,
            is_awaited: wants_room,
            wants_room,
            ..File::default()
        })
    }

    /// Returns whether this is the id of a drain's read.
    pub fn is_round(id: WriteId) -> bool {
        id >= ROUND
    }

    /// Bytes of steps that are not on the file system.
    pub fn left_bytes(&self) -> u64 {
        self.adrift_bytes + self.steps.values().map(|step| step.bytes - step.landed).sum::<u64>()
    }
}
