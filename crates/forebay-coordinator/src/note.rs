//! What the decision log has besides events and decisions, for people who look at a recorded run:
//! no machine hears it, so a replay passes over it.

use forebay_wire::{Report, Sample};
use serde::{Deserialize, Serialize};

/// A note of a coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// What an HPC job reported: the event that follows has neither its name nor its bytes.
    Hpc(HpcNote),
    /// What all members held.
    Sample(Sample),
}

/// See [`Note::Hpc`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HpcNote {
    /// The job's number, as in events.
    pub hpc: u32,
    /// Its name.
    pub name: String,
    /// What it reported.
    pub update: Report,
}
