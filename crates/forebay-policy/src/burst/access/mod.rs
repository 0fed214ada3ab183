//! Access to shared burst buffer nodes: which job's I/O step may write now.
//!
//! A step is one job's whole write to the burst buffer (a checkpoint), not a request. A job's
//! coordinator process asks, waits for a token, lets all of its processes write and reports the
//! end; so all nodes of a step serve the same step at the same time, and no straggler is left
//! behind by a node that served somebody else. A token is a lease: who does not renew it loses it,
//! and the next step is let in.
//!
//! One machine, [`Access`], keeps the queue, the leases and the nodes; a *policy* says in which
//! order steps are looked at and what may run side by side. A policy is one file here and a line in
//! [`POLICIES`]:
//!
//! | policy | order | at once |
//! | --- | --- | --- |
//! | `none` | - | everything; nodes divide themselves over processes |
//! | `sys-fcfs`, `sys-sjf` | arrival; shortest step first | one step |
//! | `sa-fcfs`, `sa-sjf` | the same | steps without a common node (sharing-aware) |
//! | `coflow` | on each node, who can be over soonest | everything; nodes divide themselves by the order |
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
/// Names a grant; they only rise, so that a node can refuse a holder whose token is older than the
/// last that it saw.
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
    /// long. If it waits, it no longer does. It holds its nodes, whoever else holds them.
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
    /// What the job of a step that waits loses meanwhile; only `least-waste` and `waste-rate`
    /// listen.
    Stakes {
        /// Its id.
        step: StepId,
        /// What.
        stake: Stake,
    },
    /// A step that waits is withdrawn.
    Leaves {
        /// Its id.
        step: StepId,
    },
    /// All of the step's data are written.
    Done {
        /// Its token.
        token: Token,
    },
    /// The holder is alive and goes on.
    Renew {
        /// Its token.
        token: Token,
    },
    /// The holder reports how much it has still to write; only policies that rank steps listen.
    Left {
        /// Its token.
        token: Token,
        /// On the node that takes longest, in ns at full bandwidth.
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
    /// It waits with its step.
    pub is_blocked: bool,
    /// What it takes to recover from a failure, in ns.
    pub recovery_ns: u64,
    /// Mean time between failures that the step guards it against, in ns.
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
        /// Which step.
        step: StepId,
        /// The lease's end.
        until: Nanos,
        /// Why now.
        why: Reason,
    },
    /// From now on each node serves its steps in this order: see [`share`]. Steps that are not in
    /// it come after those that are, by token.
    Rank {
        /// First first.
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
        /// Which token.
        token: Token,
        /// Whose.
        step: StepId,
    },
}

/// Why a step was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "because", rename_all = "snake_case")]
pub enum Reason {
    /// The policy does not schedule.
    Unscheduled,
    /// Everything is let in; its place in the order says what it gets.
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
    /// It writes already.
    Begun,
}

/// Configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Number of burst buffer nodes.
    pub nodes: u32,
    /// How long a token is good for without renewal.
    pub lease_ns: u64,
    /// Ageing: each second that a step has waited counts like so many seconds less to write; 0 for
    /// none.
    pub ageing: f64,
    /// A step that has waited so long goes before all that have not, and for the one of them that
    /// has waited longest nodes are kept free as they fall idle. `u64::MAX` for never, which is
    /// Algorithm 1 as printed.
    pub patience_ns: u64,
    /// A step that excludes others and has held its token for so many times its time alone, and for
    /// a second at least, loses it as soon as another step waits; 0 for never.
    #[serde(default, skip_serializing_if = "is_default")]
    pub overstay: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config { nodes: 1, lease_ns: 30_000_000_000, ageing: 0.0, patience_ns: u64::MAX, overstay: 0 }
    }
}

/// What a machine is built from, as a record of it begins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Name of the policy.
    pub policy: String,
    /// The rest.
    pub config: Config,
}

impl Setup {
    /// A fresh machine.
    ///
    /// # Errors
    /// There is no such policy.
    pub fn build(&self) -> Result<Access, UnknownPolicy> {
        Ok(Access::new(policy(&self.policy, &self.config)?, self.config.clone()))
    }
}

/// A step that waits.
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
    /// Its place by [`Policy::key`]; less is earlier, ties by `seq`.
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

    /// Which of those that wait goes next, where that changes while they wait; only with
    /// [`Scope::One`].
    fn first(&self, _now: Nanos, _pending: &[Pending]) -> Option<usize> {
        None
    }

    /// What the step claims: its nodes, or what else it must have to itself.
    fn claims(&self, nodes: NodeSet, _period_ns: u64) -> NodeSet {
        nodes
    }

    /// A step was let in with `token`; only with [`Scope::Ranked`].
    fn begins(&mut self, _token: Token, _step: &Pending) {}

    /// `token` has reported what it has left; only with [`Scope::Ranked`].
    fn left(&mut self, _now: Nanos, _token: Token, _left_ns: u64) {}

    /// `token` is no longer held; only with [`Scope::Ranked`].
    fn ends(&mut self, _now: Nanos, _token: Token) {}

    /// The order in which nodes serve steps; only with [`Scope::Ranked`].
    fn rank(&mut self, _now: Nanos) -> Vec<Token> {
        Vec::new()
    }

    /// When the order changes though nothing happens.
    fn next_overdue(&self, _now: Nanos) -> Option<Nanos> {
        None
    }
}

/// Makes a policy.
pub type MakePolicy = fn(&Config) -> Box<dyn Policy>;

/// Every policy: its name and how to make it. A new one is a file in this folder and a line here.
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

/// Those of them that no coordinator offers. Where steps share a server, or their servers are
/// unknown, `sa-fcfs` and `sa-sjf` do what the first two do, and elsewhere they let more steps
/// write. The others go by [`Event::Stakes`], which only simulated jobs report.
pub const SIMULATED_ONLY: [&str; 4] = ["sys-fcfs", "sys-sjf", "least-waste", "waste-rate"];

/// The policy called `name`.
///
/// # Errors
/// Lists the names that there are.
pub fn policy(name: &str, config: &Config) -> Result<Box<dyn Policy>, UnknownPolicy> {
    Ok(named(POLICIES, "access policy", name)?(config))
}
