//! The contract of a policy.
//!
//! Three drivers, one policy: a driver with the real clock in the daemons, the event queue of the
//! simulator with virtual time, and a replay of a recorded trace. For all three to make the same
//! decisions a machine depends only on its configuration (seed included) and the events it was
//! given; ties are broken by sequence numbers, never by addresses or hash order.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

/// A moment, in nanoseconds since an epoch that the driver chooses (boot in the daemons, 0 in the
/// simulator).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The moment `seconds` after the epoch; fractions of a nanosecond are dropped.
    pub fn from_secs_f64(seconds: f64) -> Self {
        Nanos((seconds * 1e9) as u64)
    }

    /// Seconds since the epoch.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// The time from `earlier` to `self` in nanoseconds, 0 if `earlier` is later.
    pub fn saturating_since(self, earlier: Nanos) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<u64> for Nanos {
    type Output = Nanos;
    fn add(self, nanos: u64) -> Nanos {
        Nanos(self.0.saturating_add(nanos))
    }
}

impl Sub<u64> for Nanos {
    type Output = Nanos;
    fn sub(self, nanos: u64) -> Nanos {
        Nanos(self.0.saturating_sub(nanos))
    }
}

/// Whether a value need not be written, because it is read as its default.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The error for a policy name that does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownPolicy {
    /// What it would decide, such as "queue policy".
    pub what: &'static str,
    /// The unknown name.
    pub name: String,
    /// The known names.
    pub known: Vec<&'static str>,
}

impl fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnknownPolicy { what, name, known } = self;
        write!(f, "no {what} is called '{name}'; there are {}", known.join(", "))
    }
}

impl core::error::Error for UnknownPolicy {}

/// Returns the entry `name` of a table of policies.
pub(crate) fn named<M: Copy>(
    all: &[(&'static str, M)],
    what: &'static str,
    name: &str,
) -> Result<M, UnknownPolicy> {
    let unknown = || UnknownPolicy { what, name: name.to_string(), known: all.iter().map(|p| p.0).collect() };
    all.iter().find(|p| p.0 == name).map(|p| p.1).ok_or_else(unknown)
}

/// A pure policy: values in, decisions out.
pub trait Machine {
    /// What the machine receives.
    type Event;
    /// What the machine decides. An action that takes time carries an id; its completion comes back
    /// as an event.
    type Action;

    /// Handles `event` at `now` and appends the decisions to `out`. `now` never goes backwards.
    fn handle(&mut self, now: Nanos, event: Self::Event, out: &mut Vec<Self::Action>);

    /// When the machine wants to be called even without an event, or `None`.
    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    /// Called by the driver once `next_deadline` has come.
    fn on_deadline(&mut self, _now: Nanos, _out: &mut Vec<Self::Action>) {}
}
