//! Steps on their way to the parallel file system, and what decides about them.

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
    /// Names the step.
    pub drain: FileId,
    /// Its nodes.
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
    /// Bytes that were read, or are.
    pub read: u64,
    pub reading: Option<(WriteId, u64)>,
    /// Rounds on their way, and their bytes.
    pub sent: (u32, u64),
    pub landed: u64,
    /// Bytes of the round that waits for leave.
    pub offered: Option<u64>,
}

/// All that is drained.
pub struct Draining {
    pub setup: DrainSetup,
    pub driver: Driver<Drain>,
    pub steps: BTreeMap<FileId, Step>,
    pub next: FileId,
    pub rounds: BTreeMap<WriteId, FileId>,
    pub next_round: WriteId,
    /// Bytes on their way of steps that are lost.
    pub adrift_bytes: u64,
    /// What is to be taken out and sent to the file system.
    pub sent: Vec<Round>,
}

impl Draining {
    /// Nothing is drained.
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

    /// The step as the machine hears of it; a job may wait for its room.
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

    /// Whether this names what nodes read for a drain.
    pub fn is_round(id: WriteId) -> bool {
        id >= ROUND
    }

    /// Bytes of steps that are not on the file system.
    pub fn left_bytes(&self) -> u64 {
        self.adrift_bytes + self.steps.values().map(|step| step.bytes - step.landed).sum::<u64>()
    }
}
