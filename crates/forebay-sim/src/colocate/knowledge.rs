//! What planners know of the coming I/O phases of an HPC job.

use forebay_policy::stage::event::HpcUpdate;
use serde::{Deserialize, Serialize};

use super::HpcSpec;

/// What is known of the phases of a job that have not begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Knowledge {
    /// Their number and the means of compute and I/O times, as users declare them.
    #[default]
    Declared,
    /// What the predictor makes of those before; of the job, its allowance and its processes.
    Predicted {
        /// So many phases of an earlier run are known, as from its Darshan log.
        earlier: u32,
    },
    /// When exactly the next begins and how long it takes; of later ones the means.
    True,
}

impl Knowledge {
    /// Names in scenarios, and what they stand for.
    pub const ALL: [(&str, Knowledge); 3] = [
        ("declared", Knowledge::Declared),
        ("predicted", Knowledge::Predicted { earlier: 0 }),
        ("true", Knowledge::True),
    ];

    /// Its name in scenarios.
    pub fn name(self) -> &'static str {
        match self {
            Knowledge::Declared => "declared",
            Knowledge::Predicted { .. } => "predicted",
            Knowledge::True => "true",
        }
    }

    /// Whether phases are predicted.
    pub fn is_predicted(self) -> bool {
        matches!(self, Knowledge::Predicted { .. })
    }

    /// The one of this name.
    pub fn called(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|k| k.0 == name).map(|k| k.1)
    }

    /// If phases are predicted, so many of an earlier run are known.
    pub fn with_earlier(self, earlier: u32) -> Self {
        if self.is_predicted() { Knowledge::Predicted { earlier } } else { self }
    }

    /// Whether it is the default, which records leave out.
    pub fn is_default(&self) -> bool {
        *self == Knowledge::default()
    }
}

/// What planners hear of the phases to come. `alone_ns` says what a phase takes alone, by its I/O
/// time in the setup.
impl HpcSpec {
    /// When the job begins, and its first phase so many ns later; nothing if phases are predicted.
    pub fn joins(&self, in_ns: u64, alone_ns: impl Fn(u64) -> u64) -> Option<HpcUpdate> {
        let (io_ns, first_in_ns) = match self.knowledge {
            Knowledge::Predicted { .. } => return None,
            // What a profile would say, not what was drawn.
            Knowledge::Declared => (self.io_ns, if self.io_first { 0 } else { self.compute_ns }),
            Knowledge::True => (self.io_of(0), in_ns),
        };
        Some(HpcUpdate::Joins {
            io_ns: alone_ns(io_ns),
            compute_ns: self.compute_ns,
            phases: self.phases,
            allowance: self.allowance,
            weight: self.processes,
            first_in_ns,
        })
    }

    /// When phase `begun` (from 0) is to begin in so many ns; nothing unless that is known.
    pub fn expects(&self, begun: u32, in_ns: u64, alone_ns: impl Fn(u64) -> u64) -> Option<HpcUpdate> {
        let (compute_ns, phases) = (self.compute_ns, self.phases - begun);
        let io_ns = alone_ns(self.io_of(begun));
        let is_known = self.knowledge == Knowledge::True;
        is_known.then_some(HpcUpdate::Expects { in_ns, io_ns, compute_ns, phases })
    }
}
