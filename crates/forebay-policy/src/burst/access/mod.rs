//! Access to shared burst buffer nodes: which job's I/O step may write now.
//!
//! A step is one job's whole write to the burst buffer (a checkpoint), not a request. A job's
//! coordinator process asks, waits for a token, lets all of its processes write and reports the
//! end; so all nodes of a step serve the same step at the same time, and no straggler is left
//! behind by a node that served another step. A token is a lease: a holder that does not renew it
//! loses it, and the next step is admitted.
//!
//! One machine, [`Access`], keeps the queue, the leases and the nodes; a *policy* determines the
//! order in which steps are considered and what may run side by side. A policy is one file here and
//! a line in [`POLICIES`]:
//!
//! | policy | order | at the same time |
//! | --- | --- | --- |
//! | `none` | - | everything; nodes divide over processes |
//! | `sys-fcfs`, `sys-sjf` | arrival; shortest step first | one step |
//! | `sa-fcfs`, `sa-sjf` | the same | steps without a common node (sharing-aware) |
//! | `coflow` | on each node, the soonest possible end | everything; nodes divide by the order |
//! | `set-10` | arrival | one step of each set of jobs with like periods (IO-Sets) |
//! | `least-waste`, `waste-rate` | by what jobs lose meanwhile, failures included | one step |
//!
//! Source: *Managing I/O Interference in a Shared Burst Buffer System*, ICPP 2016, Algorithm 1, and
//! what it leaves open: bandwidth shares and starvation.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::machine::{Nanos, UnknownPolicy, is_default, named};

mod coflow;
mod fcfs;
mod least_waste;
mod nodes;
mod scheduler;
mod set10;
mod sjf;
#[cfg(test)]
mod tests;

pub use coflow::{LEAD_SHARE, share};
pub use fcfs::Fcfs;
pub use nodes::NodeSet;
pub use scheduler::{Access, Snapshot};

/// Names a step; never used twice.
pub type StepId = u64;
/// Names a grant; tokens only increase, so that a node can refuse a holder whose token is older
/// than the last that it saw.
pub type Token = u64;

/// What the machine receives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Event {
    /// A step asks for access.
    Arrives {
        /// Its id.
        step: StepId,
        /// The nodes it writes to, each below [`Config::nodes`]; none if they are not known, which
        /// counts as all.
        nodes: Vec<u32>,
        /// How long it takes with these nodes to itself, in ns.
        alone_ns: u64,
        /// From one step of its job to the next, in ns; 0: unknown.
        #[serde(default, skip_serializing_if = "is_default")]
        period_ns: u64,
    },
    /// A step writes without a token: its program did not ask, could not, or has waited for too
    /// long. If it was waiting, it no longer is. It holds its nodes, whichever step else holds
    /// them.
    Begun {
        /// Its id.
        step: StepId,
        /// As in `Arrives`.
        nodes: Vec<u32>,
        /// As in `Arrives`.
        alone_ns: u64,
        /// As in `Arrives`.
        #[serde(default, skip_serializing_if = "is_default")]
        period_ns: u64,
    },
    /// What the job of a waiting step loses meanwhile; only `least-waste` and `waste-rate` use it.
    Stakes {
        /// Its id.
        step: StepId,
        /// The loss.
        stake: Stake,
    },
    /// A waiting step is withdrawn.
    Leaves {
        /// Its id.
        step: StepId,
    },
    /// All of the step's data is written.
    Done {
        /// Its token.
        token: Token,
    },
    /// The holder is alive and continues.
    Renew {
        /// Its token.
        token: Token,
    },
    /// The holder reports how much it still has to write; only policies that rank steps use it.
    Left {
        /// Its token.
        token: Token,
        /// Time on the node that takes longest, in ns at full bandwidth.
        left_ns: u64,
    },
}

/// What a job loses while its step waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stake {
    /// Nodes of the job.
    pub nodes: u32,
    /// Since when it waits; if it computes meanwhile, the moment from which on its work is lost
    /// with a failure.
    pub since: Nanos,
    /// Whether it is blocked by its step.
    pub is_blocked: bool,
    /// Time to recover from a failure, in ns.
    pub recovery_ns: u64,
    /// Mean time between the failures that the step guards against, in ns.
    pub fails_ns: u64,
}

/// What it decides.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Action {
    /// The step may write.
    Grant {
        /// Its token.
        token: Token,
        /// The step.
        step: StepId,
        /// The lease's end.
        until: Nanos,
        /// The reason for the grant.
        why: Reason,
    },
    /// From now on each node serves its steps in this order: see [`share`]. Steps that are not in
    /// it come after those that are, by token.
    Rank {
        /// Tokens, the first to be served first.
        order: Vec<Token>,
    },
    /// The lease has been extended.
    Renewed {
        /// Its token.
        token: Token,
        /// Its new end.
        until: Nanos,
    },
    /// The lease ran out, or the holder has overstayed ([`Config::overstay`]): it must stop, and
    /// nodes must refuse this token.
    Revoke {
        /// The revoked token.
        token: Token,
        /// Its step.
        step: StepId,
    },
}

/// Why a step was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "because", rename_all = "snake_case")]
pub enum Reason {
    /// The policy does not schedule.
    Unscheduled,
    /// Everything is admitted; its place in the order determines its share.
    Ranked,
    /// It was first in the policy's order.
    First,
    /// Its nodes were free, while this many steps before it in the order had to wait for theirs.
    NodesFree {
        /// Steps before it that wait.
        ahead: u32,
    },
    /// It had waited longer than [`Config::patience_ns`], and its turn came.
    Overdue,
    /// It was already writing.
    Begun,
}

/// Configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Number of burst buffer nodes.
    pub nodes: u32,
    /// How long a token is valid without renewal.
    pub lease_ns: u64,
    /// Ageing: each second that a step has waited counts like this many seconds less to write; 0
    /// for none.
    pub ageing: f64,
    /// Once a step has waited this long it goes before all that have not. For the one of them that
    /// has waited longest, nodes are kept free as they fall idle. `u64::MAX` for never, which is
    /// Algorithm 1 as published.
    pub patience_ns: u64,
    /// Multiple of its time alone, and at least a second, for which a step that excludes others may
    /// hold its token. After that it loses it as soon as another step waits; 0 for never.
    #[serde(default, skip_serializing_if = "is_default")]
    pub overstay: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config { nodes: 1, lease_ns: 30_000_000_000, ageing: 0.0, patience_ns: u64::MAX, overstay: 0 }
    }
}

/// What a machine is built from; the first entry of its record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Name of the policy.
    pub policy: String,
    /// The rest.
    pub config: Config,
}

impl Setup {
    /// Creates a machine.
    ///
    /// # Errors
    /// If there is no such policy.
    pub fn build(&self) -> Result<Access, UnknownPolicy> {
        Ok(Access::new(policy(&self.policy, &self.config)?, self.config.clone()))
    }
}

/// A waiting step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pending {
    /// Its id.
    pub step: StepId,
    /// Its nodes.
    pub nodes: NodeSet,
    /// Time with the nodes to itself, in ns.
    pub alone_ns: u64,
    /// When it asked.
    pub arrived: Nanos,
    /// Order of arrival.
    pub seq: u64,
    /// Its place by [`Policy::key`]; smaller keys go first, ties by `seq`.
    pub key: u64,
    /// What its job loses meanwhile, if that is known.
    pub stake: Option<Stake>,
}

/// What may run side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everything, unregulated.
    Everything,
    /// Everything, and nodes serve steps by [`Policy::rank`].
    Ranked,
    /// One step on the whole system.
    One,
    /// Steps without a common node.
    Disjoint,
}

/// The part that differs between policies.
pub trait Policy: Send {
    /// What may run side by side.
    fn scope(&self) -> Scope;

    /// The step's place in the order; it never changes while the step waits.
    fn key(&self, arrived: Nanos, _alone_ns: u64) -> u64 {
        arrived.0
    }

    /// Which of the waiting steps goes next, where that changes while they wait; only with
    /// [`Scope::One`].
    fn first(&self, _now: Nanos, _pending: &[Pending]) -> Option<usize> {
        None
    }

    /// What the step claims: its nodes, or whatever else it must have to itself.
    fn claims(&self, nodes: NodeSet, _period_ns: u64) -> NodeSet {
        nodes
    }

    /// A step was admitted with `token`; only with [`Scope::Ranked`].
    fn begins(&mut self, _token: Token, _step: &Pending) {}

    /// `token` has reported what it has left; only with [`Scope::Ranked`].
    fn left(&mut self, _now: Nanos, _token: Token, _left_ns: u64) {}

    /// `token` is no longer held; only with [`Scope::Ranked`].
    fn ends(&mut self, _now: Nanos, _token: Token) {}

    /// The order in which nodes serve steps; only with [`Scope::Ranked`].
    fn rank(&mut self, _now: Nanos) -> Vec<Token> {
        Vec::new()
    }

    /// When the order changes without an event.
    fn next_overdue(&self, _now: Nanos) -> Option<Nanos> {
        None
    }
}

/// Makes a policy.
pub type MakePolicy = fn(&Config) -> Box<dyn Policy>;

/// Every policy: its name and how to make it. A new one needs a file in this folder and a line
/// here.
pub const POLICIES: &[(&str, MakePolicy)] = &[
    ("none", |_| Box::new(fcfs::Fcfs { scope: Scope::Everything })),
    ("sys-fcfs", |_| Box::new(fcfs::Fcfs { scope: Scope::One })),
    ("sys-sjf", |c| Box::new(sjf::Sjf { scope: Scope::One, ageing: c.ageing })),
    ("sa-fcfs", |_| Box::new(fcfs::Fcfs { scope: Scope::Disjoint })),
    ("sa-sjf", |c| Box::new(sjf::Sjf { scope: Scope::Disjoint, ageing: c.ageing })),
    ("coflow", |c| Box::new(coflow::Coflow::new(c))),
    ("set-10", |c| Box::new(set10::Set10 { nodes: c.nodes })),
    ("least-waste", |_| Box::new(least_waste::LeastWaste)),
    ("waste-rate", |_| Box::new(least_waste::WasteRate)),
];

/// The policies that no coordinator offers. Where steps share a server, or their servers are
/// unknown, `sa-fcfs` and `sa-sjf` do what the first two do, and elsewhere they let more steps
/// write. The others depend on [`Event::Stakes`], which only simulated jobs report.
pub const SIMULATED_ONLY: [&str; 4] = ["sys-fcfs", "sys-sjf", "least-waste", "waste-rate"];

/// The policy called `name`.
///
/// # Errors
/// If `name` is unknown; lists the known names.
pub fn policy(name: &str, config: &Config) -> Result<Box<dyn Policy>, UnknownPolicy> {
    Ok(named(POLICIES, "access policy", name)?(config))
}
