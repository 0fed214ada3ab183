//! A batch queue: which waiting job begins when, on nodes and with room in burst buffers.
//!
//! A job needs nodes while it runs, and room in burst buffers from the start of its stage-in until
//! the end of its stage-out; each of its nodes has one share of the room, whole on one burst
//! buffer. Both are promised for the time that the job estimates. One machine, [`Queue`], keeps
//! track of nodes and room; a *policy* decides which job begins. A policy is a file here and a line
//! in [`POLICIES`]:
//!
//! | policy | what it does |
//! | --- | --- |
//! | `fcfs` | in order of arrival |
//! | `filler` | the same, past those that do not fit |
//! | `fcfs-easy` | EASY backfilling that reserves nodes, but no room, for the first job |
//! | `fcfs-bb` | EASY backfilling that reserves both |
//! | `sjf-bb` | the same; the shortest estimate passes first |
//! | `plan-1`, `plan-2`, `plan-3` | a start for every job; least sum of (waiting time)^1, 2, 3 |
//!
//! Names and rules are those of Kopanski and Rzadca, *Plan-based Job Scheduling for Supercomputers
//! with Shared Burst Buffers*, Euro-Par 2021. There, nodes wait during both transfers: here such a
//! job declares no time for them, and its estimate contains them. With times for them, a job stages
//! in before it has nodes, and stages out after it has released them.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::machine::{Machine, Nanos, UnknownPolicy, named};

mod easy;
mod fcfs;
mod plan;
mod profile;
#[cfg(test)]
mod tests;

pub use profile::{Placement, Profile};

/// Names a job.
pub type JobId = u64;

/// A transfer or run that exceeds its estimate is expected to take this much longer, in ns.
const LATE_NS: u64 = 1_000_000_000;

/// What a job asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// Nodes; at least one.
    pub nodes: u32,
    /// Room in burst buffers for each node, in bytes.
    pub bytes_per_node: u64,
    /// How long its stage-in is expected to take before it needs nodes, in ns.
    pub stage_in_ns: u64,
    /// How long it needs its nodes at most, as the user estimates it, in ns.
    pub run_ns: u64,
    /// How long its stage-out is expected to take after that, in ns.
    pub stage_out_ns: u64,
}

impl Demand {
    /// Time from the start of its stage-in to the end of its stage-out, in ns.
    pub fn lasts_ns(&self) -> u64 {
        self.stage_in_ns.saturating_add(self.run_ns).saturating_add(self.stage_out_ns)
    }
}

/// What the machine receives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Event {
    /// A job is submitted. It must fit into the empty system ([`Config::fits`]).
    Submits {
        /// Its id, which is new.
        job: JobId,
        /// What it asks for.
        demand: Demand,
    },
    /// Its stage-in is over.
    StagedIn {
        /// Its id.
        job: JobId,
    },
    /// It has released its nodes.
    Ran {
        /// Its id.
        job: JobId,
    },
    /// It has released its room.
    Ends {
        /// Its id.
        job: JobId,
    },
}

/// What it decides.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Action {
    /// The job has this room, and may stage in.
    Begin {
        /// Its id.
        job: JobId,
        /// Burst buffers and the number of its shares on each.
        shares: Placement,
    },
    /// The job has its nodes.
    Run {
        /// Its id.
        job: JobId,
    },
}

/// What the machine is built from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Name of the policy.
    pub policy: String,
    /// Compute nodes.
    pub nodes: u32,
    /// Room on each burst buffer, in bytes.
    pub room_bytes: Vec<u64>,
}

impl Config {
    /// Whether a job can ever begin.
    pub fn fits(&self, demand: &Demand) -> bool {
        let shares = |room: &u64| room.checked_div(demand.bytes_per_node).unwrap_or(u64::MAX);
        let shares = self.room_bytes.iter().map(shares).fold(0, u64::saturating_add);
        let needed = if demand.bytes_per_node == 0 { 0 } else { demand.nodes.into() };
        (1..=self.nodes).contains(&demand.nodes) && shares >= needed
    }
}

/// A job in the queue, as a policy sees it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Waiting {
    /// Its id.
    pub job: JobId,
    /// When it came.
    pub submitted: Nanos,
    /// What it asks for.
    pub demand: Demand,
}

/// What a policy decides.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Indices of the waiting jobs that begin now, and where their shares go.
    pub begin: Vec<(usize, Placement)>,
    /// The job with a reservation, and when it begins at the latest if all estimates hold.
    pub promise: Option<(JobId, Nanos)>,
    /// When another job may begin, even if nothing is released until then.
    pub next: Option<Nanos>,
}

impl Decision {
    /// Notes that a job may begin at `at`.
    pub(crate) fn look_again(&mut self, at: Nanos) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }
}

/// Which jobs begin: the part that differs between policies.
pub trait Policy: Send {
    /// Decides over the jobs that wait, in order of arrival, with what is free from `now` on.
    fn decide(&mut self, now: Nanos, waiting: &[Waiting], profile: Profile) -> Decision;
}

/// Makes a policy.
pub type MakePolicy = fn() -> Box<dyn Policy>;

/// Every policy: its name and how to make it.
pub const POLICIES: &[(&str, MakePolicy)] = &[
    ("fcfs", || Box::new(fcfs::Fcfs { passes: false })),
    ("filler", || Box::new(fcfs::Fcfs { passes: true })),
    ("fcfs-easy", || Box::new(easy::Easy { reserves_room: false, shortest_first: false })),
    ("fcfs-bb", || Box::new(easy::Easy { reserves_room: true, shortest_first: false })),
    ("sjf-bb", || Box::new(easy::Easy { reserves_room: true, shortest_first: true })),
    ("plan-1", || Box::new(plan::Plan::new(1))),
    ("plan-2", || Box::new(plan::Plan::new(2))),
    ("plan-3", || Box::new(plan::Plan::new(3))),
];

/// Progress of a job that holds room.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Stage {
    /// It stages in, and is expected to be ready at `until`.
    In {
        /// In ns.
        until: Nanos,
    },
    /// It waits for nodes.
    Ready,
    /// It runs until `until` at most.
    Runs {
        /// In ns.
        until: Nanos,
    },
    /// It stages out, and is expected to end at `until`.
    Out {
        /// In ns.
        until: Nanos,
    },
}

/// A job that holds room.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Held {
    /// What it asked for.
    pub demand: Demand,
    /// Where its shares are.
    pub shares: Placement,
    /// Its progress.
    pub stage: Stage,
}

/// The batch queue.
pub struct Queue {
    config: Config,
    policy: Box<dyn Policy>,
    waiting: Vec<Waiting>,
    held: BTreeMap<JobId, Held>,
    promise: Option<(JobId, Nanos)>,
    /// When it decides next. It receives all events of a moment before it decides: a job that ends
    /// at the same moment as another is not late.
    next: Option<Nanos>,
}

impl Queue {
    /// An empty queue.
    ///
    /// # Errors
    /// If no policy has this name.
    pub fn new(config: Config) -> Result<Self, UnknownPolicy> {
        Ok(Queue {
            policy: named(POLICIES, "queue policy", &config.policy)?(),
            config,
            waiting: Vec::new(),
            held: BTreeMap::new(),
            promise: None,
            next: None,
        })
    }

    fn advance(&mut self, job: JobId, stage: Stage) {
        if let Some(held) = self.held.get_mut(&job) {
            held.stage = stage;
        }
    }

    /// Returns what is free from `now` on, after jobs that hold room get what they still need. Jobs
    /// that are ready run if there are nodes.
    fn profile(&mut self, now: Nanos, out: &mut Vec<Action>) -> Profile {
        let mut profile = Profile::new(now, self.config.nodes, &self.config.room_bytes);
        let late = now + LATE_NS;
        // Jobs that have nodes, then jobs that wait for nodes, then jobs that will wait for them.
        let rank = |stage: &Stage| match stage {
            Stage::Runs { .. } | Stage::Out { .. } => 0,
            Stage::Ready => 1,
            Stage::In { .. } => 2,
        };
        for turn in 0..3 {
            for (&job, held) in self.held.iter_mut().filter(|(_, held)| rank(&held.stage) == turn) {
                let Demand { nodes, bytes_per_node, run_ns, stage_out_ns, .. } = held.demand;
                let earliest = match held.stage {
                    Stage::Ready => profile.earliest_nodes(now, nodes, run_ns),
                    Stage::In { until } => profile.earliest_nodes(until.max(late), nodes, run_ns),
                    Stage::Runs { .. } | Stage::Out { .. } => now,
                };
                if held.stage == Stage::Ready && earliest == now {
                    held.stage = Stage::Runs { until: now + run_ns };
                    out.push(Action::Run { job });
                }
                let ends = match held.stage {
                    Stage::Runs { until } => until.max(late),
                    _ => earliest + run_ns,
                };
                let released = match held.stage {
                    Stage::Out { until } => until.max(late),
                    _ => {
                        profile.take_nodes(earliest, ends, nodes);
                        ends + stage_out_ns
                    }
                };
                profile.take_room(now, released, &held.shares, bytes_per_node);
            }
        }
        profile
    }

    fn decide(&mut self, now: Nanos, out: &mut Vec<Action>) {
        let profile = self.profile(now, out);
        let mut decision = self.policy.decide(now, &self.waiting, profile);
        self.promise = decision.promise;
        // A stage-in begins before its nodes are free. Without one, each start is at a release.
        let stages_in = self.waiting.iter().any(|waiting| waiting.demand.stage_in_ns > 0);
        self.next = decision.next.filter(|_| stages_in);
        decision.begin.sort_unstable_by_key(|begun| begun.0);
        for (index, shares) in decision.begin.into_iter().rev() {
            let Waiting { job, demand, .. } = self.waiting.remove(index);
            out.push(Action::Begin { job, shares: shares.clone() });
            let stage = if demand.stage_in_ns > 0 {
                Stage::In { until: now + demand.stage_in_ns }
            } else {
                out.push(Action::Run { job });
                Stage::Runs { until: now + demand.run_ns }
            };
            self.held.insert(job, Held { demand, shares, stage });
        }
    }
}

impl Machine for Queue {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Nanos, event: Event, _out: &mut Vec<Action>) {
        match event {
            Event::Submits { job, demand } => {
                assert!(self.config.fits(&demand), "job {job} can never begin: {demand:?}");
                self.waiting.push(Waiting { job, submitted: now, demand });
            }
            Event::StagedIn { job } => self.advance(job, Stage::Ready),
            Event::Ran { job } => {
                let stage_out_ns = self.held.get(&job).map_or(0, |held| held.demand.stage_out_ns);
                self.advance(job, Stage::Out { until: now + stage_out_ns });
            }
            Event::Ends { job } => {
                self.held.remove(&job);
            }
        }
        self.next = Some(now);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.next
    }

    fn on_deadline(&mut self, now: Nanos, out: &mut Vec<Action>) {
        self.decide(now, out);
    }
}
