//! What planners know about the coming I/O phases of an HPC job.

use serde::{Deserialize, Serialize};

/// What is known about the phases of a job that have not begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Knowledge {
    /// Their number and the means of compute and I/O times, as users declare them.
    #[default]
    Declared,
    /// What the predictor makes of earlier phases; of the job, its allowance and its processes.
    Predicted {
        /// Number of phases of an earlier run that are known, as from its Darshan log.
        earlier: u32,
    },
    /// When exactly the next one begins and how long it takes; the means of later ones.
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

    /// The knowledge of this name.
    pub fn called(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|k| k.0 == name).map(|k| k.1)
    }

    /// If phases are predicted, `earlier` phases of an earlier run are known.
    pub fn with_earlier(self, earlier: u32) -> Self {
        if self.is_predicted() { Knowledge::Predicted { earlier } } else { self }
    }
}
