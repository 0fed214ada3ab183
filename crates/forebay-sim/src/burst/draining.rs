//! Steps on their way to the parallel file system, and what decides their pace.

use std::collections::BTreeMap;

use forebay_policy::burst::drain::{DrainId, Drains};
use forebay_policy::machine::Nanos;
use forebay_policy::token_bucket::TokenBucket;

use super::DrainSetup;
use super::fabric::WriteId;
use super::machines::drain_machine;
use crate::driver::Driver;
use crate::error::Result;

/// Marks what nodes read for drains; the rest of the number counts rounds. Writes have the numbers
/// of holds, of which there are fewer.
const ROUND: WriteId = 1 << 31;

/// What the nodes of a step send together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Names the step.
    pub drain: DrainId,
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
    pub bucket: TokenBucket,
    pub goes_on_at: Option<Nanos>,
}

/// All that is drained.
pub struct Draining {
    pub setup: DrainSetup,
    pub driver: Driver<Drains>,
    pub steps: BTreeMap<DrainId, Step>,
    pub next: DrainId,
    pub rounds: BTreeMap<WriteId, DrainId>,
    pub next_round: WriteId,
    /// What is to be taken out and sent to the file system.
    pub sent: Vec<Round>,
}

impl Draining {
    /// Nothing is drained.
    ///
    /// # Errors
    /// If the policy does not exist.
    pub fn new(setup: &DrainSetup) -> Result<Self> {
        Ok(Draining {
            driver: Driver::new("drain", drain_machine(setup)?),
            setup: setup.clone(),
            steps: BTreeMap::new(),
            next: 1,
            rounds: BTreeMap::new(),
            next_round: ROUND,
            sent: Vec::new(),
        })
    }

    /// Whether this names what nodes read for a drain.
    pub fn is_round(id: WriteId) -> bool {
        id >= ROUND
    }

    /// Bytes of steps that are not on the file system.
    pub fn left_bytes(&self) -> u64 {
        self.steps.values().map(|step| step.bytes - step.landed).sum()
    }
}
