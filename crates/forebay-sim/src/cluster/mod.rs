//! Nodes that run the tasks of Spark jobs before a parallel file system of several servers.
//!
//! The world models what a cluster does by itself. The stage machine of `forebay_policy::stage`
//! decides which node fetches what, and when, with the rules that it has live. Where the servers
//! run tasks, the machine of `forebay_policy::ship` decides which stages do.
//!
//! | file | what it models |
//! | --- | --- |
//! | `world` | a run, and the conversation with the machine |
//! | `world/tasks` | slots that take tasks, which read, compute and write |
//! | `world/shuffle` | what map tasks leave to reduce tasks |
//! | `world/ship` | stages that run on the storage servers |
//! | `world/pending` | the order in which slots take tasks |
//! | `world/fetch` | what nodes fetch into the tier |
//! | `world/tier_contents`, `world/faults` | tiers that change, and nodes that fail |
//! | `world/pfs` | servers, and the read-ahead of their clients |
//! | `view` | a run for people |

use forebay_model::rng::Rng;
use forebay_policy::machine::is_default;
use forebay_policy::{node, planner, ship, stage};
use forebay_trace::NODE;
use serde::{Deserialize, Serialize};

pub mod view;
mod world;

pub(crate) use world::{Cluster, Happening};
pub use world::{SHIP, simulate};

/// How the stripes of files are placed on servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// On one server after the other; each file begins on the next server.
    InTurn,
    /// Each stripe on a server drawn at random.
    Random,
}

/// How reduce tasks get what map tasks have written for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shuffle {
    /// The node of a map task reads its output and sends it when the task has ended; the node of
    /// the reduce task writes it to storage, and the task reads it from there.
    #[default]
    Fetch,
    /// Reduce tasks read the files of the map tasks.
    Files,
}

/// The second stage of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reduce {
    /// Its tasks.
    pub tasks: u32,
    /// Bytes that map tasks leave to it.
    pub bytes: u64,
    /// Time for which a core computes a task, in ns.
    pub task_cpu_ns: u64,
}

/// Storage servers that run tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shipping {
    /// Name of the policy that says which stages run there.
    pub policy: String,
    /// Tasks at a time on each server.
    pub slots: u32,
    /// How long a core there computes what takes a node's core 1.
    pub cpu_times: f64,
    /// Fraction of a server's disk that its tasks may take: what isolates the file system from
    /// them.
    pub io_share: f64,
    /// Bandwidth of each server's disk, which tasks there read without the link.
    pub disk_bytes_per_s: f64,
}

/// A job that reads files: with one stage, or with a second one that gets what the first leaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Name for people.
    pub name: String,
    /// Bytes that it reads, in files of `file_bytes` each; the last may be shorter.
    pub input_bytes: u64,
    /// Bytes of a file.
    pub file_bytes: u64,
    /// Bytes that one task reads.
    pub split_bytes: u64,
    /// Time for which a core computes what one task reads, in ns.
    pub task_cpu_ns: u64,
    /// Time for the first task of each core, during which a virtual machine compiles; `None`: as
    /// for other tasks.
    pub first_task_cpu_ns: Option<u64>,
    /// The server of each stripe of each file; drawn by the placement if it is not given.
    pub servers: Option<Vec<Vec<u32>>>,
    /// When it begins, in ns from the start, or from the end of the job `after`.
    pub starts_ns: u64,
    /// The number of a job that has to end before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<usize>,
    /// Bytes that its tasks write to the file system after they have computed; each in proportion
    /// to what it read.
    #[serde(default, skip_serializing_if = "is_default")]
    pub output_bytes: u64,
    /// Bytes that its first tasks write, and read again, before they write their output.
    #[serde(default, skip_serializing_if = "is_default")]
    pub spilled_bytes: u64,
    /// Bytes that its last tasks send to the compute nodes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub result_bytes: u64,
    /// The second stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduce: Option<Reduce>,
}

impl JobSpec {
    /// The part of `bytes` that belongs to the task which reads `len` bytes of a file from `offset`
    /// on.
    fn part_of(&self, bytes: u64, (file, offset, len): (u32, u64, u64)) -> u64 {
        let up_to = |input: u64| u128::from(bytes) * u128::from(input) / u128::from(self.input_bytes);
        let before = u64::from(file) * self.file_bytes + offset;
        (up_to(before + len) - up_to(before)) as u64
    }

    /// Bytes that it writes and sends in all: each piece of them is an event.
    pub fn written_bytes(&self) -> f64 {
        let shuffled = self.reduce.map_or(0, |reduce| reduce.bytes) as f64;
        let others = [self.output_bytes, self.spilled_bytes, self.spilled_bytes, self.result_bytes];
        others.into_iter().map(|bytes| bytes as f64).sum::<f64>() + 2.0 * shuffled
    }

    /// Files of its input.
    pub fn files(&self) -> u32 {
        self.input_bytes.div_ceil(self.file_bytes) as u32
    }

    /// Bytes of a file.
    pub fn bytes_of(&self, file: u32) -> u64 {
        (self.input_bytes - u64::from(file) * self.file_bytes).min(self.file_bytes)
    }

    /// The file, offset and length of what each task reads.
    fn splits(&self) -> Vec<(u32, u64, u64)> {
        let of_file = |file: u32| {
            let bytes = self.bytes_of(file);
            let starts = (0..bytes.div_ceil(self.split_bytes)).map(|split| split * self.split_bytes);
            starts.map(move |at| (file, at, self.split_bytes.min(bytes - at)))
        };
        (0..self.files()).flat_map(of_file).collect()
    }
}

/// Bytes that clients send at a time if the scenario does not say: four requests of a usual size.
pub const WRITE_BYTES: u64 = 4 << 20;

fn usual_write_bytes() -> u64 {
    WRITE_BYTES
}

fn is_usual(write_bytes: &u64) -> bool {
    *write_bytes == WRITE_BYTES
}

/// Everything that a run depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Name of the planner's policy.
    pub policy: String,
    /// The measured properties of the system, from which planners start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<planner::Config>,
    /// Nodes with a tier and slots.
    pub nodes: u32,
    /// Tasks at a time on each node.
    pub slots: u32,
    /// Capacity of each node's tier.
    pub tier_bytes: u64,
    /// Unit of placement on nodes.
    pub extent_bytes: u64,
    /// Unit of what nodes fetch.
    pub page_bytes: u64,
    /// Pages that a node fetches at a time.
    pub fetch_threads: u32,
    /// How long the scheduler waits for a slot on a task's own node, in ns.
    pub locality_wait_ns: u64,
    /// Servers of the file system.
    pub servers: u32,
    /// Bandwidth of each server's link.
    pub server_bytes_per_s: f64,
    /// Bytes of a file that are on one server.
    pub stripe_bytes: u64,
    /// How stripes are placed on servers.
    pub placement: Placement,
    /// Whether the file system reports where files are placed.
    pub layout_known: bool,
    /// Bytes that a client requests at a time for a sequential reader of a file.
    pub read_ahead_bytes: u64,
    /// Bytes of a write that a client sends at a time.
    #[serde(default = "usual_write_bytes", skip_serializing_if = "is_usual")]
    pub write_bytes: u64,
    /// Whether the client reads ahead by itself: nodes fetch adjacent pages that readers want one
    /// after the other, through one descriptor.
    pub streams: bool,
    /// How reduce tasks get their input.
    #[serde(default, skip_serializing_if = "is_default")]
    pub shuffle: Shuffle,
    /// Servers that run tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shipping: Option<Shipping>,
    /// Jobs.
    pub jobs: Vec<JobSpec>,
    /// Seed of all random numbers.
    pub seed: u64,
    /// When the run ends, in ns from the start, whatever is left to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub horizon_ns: Option<u64>,
}

impl Setup {
    /// Configuration of the stage machine: the same as live.
    pub fn stages(&self) -> stage::Config {
        let (default_planner, system) = (self.policy.clone(), self.system.clone());
        stage::Config { default_planner, system, ..stage::Config::default() }
    }

    /// Configuration of the machine of each node: the same as live.
    pub(crate) fn node_config(&self) -> node::Config {
        node::Config {
            fetch_threads: vec![self.fetch_threads as usize],
            read_bytes: self.page_bytes,
            ..node::Config::default()
        }
    }

    /// Configuration of the machine that decides where stages run, if servers run tasks.
    pub(crate) fn ship_config(&self) -> Option<ship::Config> {
        let shipping = self.shipping.as_ref()?;
        Some(ship::Config {
            fixed: ship::POLICIES.iter().find(|(name, _)| *name == shipping.policy)?.1,
            nodes: self.nodes,
            node_slots: self.slots,
            servers: self.servers,
            server_slots: shipping.slots,
            cpu_times: shipping.cpu_times,
            io_share: shipping.io_share,
            disk_bytes_per_s: shipping.disk_bytes_per_s,
            link_bytes_per_s: self.server_bytes_per_s,
        })
    }

    /// The name of a node's machine in a trace, which is a new one after each failure.
    pub(crate) fn fetcher_name(node: usize, failures: u32) -> String {
        if failures == 0 { format!("{NODE}/{node}") } else { format!("{NODE}/{node}+{failures}") }
    }

    /// The server with this host number: nodes have the first numbers, and servers those after
    /// them.
    pub(crate) fn server_of(&self, host: usize) -> Option<usize> {
        host.checked_sub(self.nodes as usize)
    }

    /// The host of each slot: in turn, so that the first tasks are spread.
    pub(crate) fn hosts_of_slots(&self) -> Vec<usize> {
        let (nodes, servers) = (self.nodes as usize, self.servers as usize);
        let server_slots = self.shipping.as_ref().map_or(0, |shipping| shipping.slots);
        let of_nodes = (0..self.slots).flat_map(|_| 0..nodes);
        of_nodes.chain((0..server_slots).flat_map(|_| nodes..nodes + servers)).collect()
    }

    /// Name of a host for people.
    pub(crate) fn host_name(&self, host: usize) -> String {
        self.server_of(host).map_or_else(|| format!("node {host}"), |server| format!("server {server}"))
    }

    /// Bandwidth of a server, in bytes per second, if nothing else is the limit.
    pub fn serves_bytes_per_s(&self) -> f64 {
        let disk = self.shipping.as_ref().map_or(f64::INFINITY, |shipping| shipping.disk_bytes_per_s);
        self.server_bytes_per_s.min(disk)
    }

    /// Returns whether tasks read past the tier: under a planner with which it holds nothing.
    fn reads_past_tier(&self) -> bool {
        !planner::fetches(&self.policy)
    }

    /// Returns whether tasks ask before they read, as in Spark's plug-in.
    fn tasks_ask(&self) -> bool {
        planner::tasks_wait(&self.policy)
    }

    /// Bytes of a page that an agent requests at a time: all of it where it knows that the page is
    /// on several servers, and otherwise what the client reads ahead.
    fn page_window_bytes(&self) -> u64 {
        let is_striped = self.layout_known && self.stripe_bytes < self.page_bytes;
        if is_striped { self.page_bytes } else { self.read_ahead_bytes }
    }

    /// The server of each stripe of each file of a job.
    fn servers_of(&self, job: usize) -> Vec<Vec<u32>> {
        let spec = &self.jobs[job];
        if let Some(servers) = &spec.servers {
            return servers.clone();
        }
        let stripes = spec.file_bytes.div_ceil(self.stripe_bytes);
        let mut rng = Rng::new(self.seed).fork(job as u64);
        let servers = u64::from(self.servers);
        let server = |rng: &mut Rng, file: u64, stripe: u64| match self.placement {
            Placement::InTurn => (file + stripe) % servers,
            Placement::Random => rng.below(servers),
        };
        let files = 0..u64::from(spec.files());
        files.map(|file| (0..stripes).map(|s| server(&mut rng, file, s) as u32).collect()).collect()
    }
}

/// A job, at the end of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JobOutcome {
    /// Name for people.
    pub name: String,
    /// From its begin to the end of its last task, in ns; 0 if tasks are left.
    pub map_ns: u64,
    /// Its tasks that have ended.
    pub tasks: u32,
    /// Its tasks that had not ended at the horizon.
    #[serde(skip_serializing_if = "is_default")]
    pub tasks_left: u32,
    /// Tasks that ran on their preferred node.
    pub local: u32,
    /// Tasks that died with their node, and had to run again.
    #[serde(skip_serializing_if = "is_default")]
    pub died: u32,
    /// When each task ran: the slot, its begin and its end, in ns.
    pub ran: Vec<(usize, u64, u64)>,
    /// Where its stages ran, and why there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub placed: Vec<(ship::Side, String)>,
}

impl JobOutcome {
    /// Where its stages ran, for people; empty if servers run no tasks.
    pub fn sides(&self) -> String {
        let side = |(side, _): &(ship::Side, String)| match side {
            ship::Side::Compute => "nodes",
            ship::Side::Storage => "servers",
        };
        self.placed.iter().map(side).collect::<Vec<_>>().join("+")
    }
}

/// A page that a node fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// The node.
    pub node: u32,
    /// Whether it was for a request of the stage machine, and no reader waited.
    pub is_planned: bool,
    /// Its bytes.
    pub bytes: u32,
    /// When it was requested, in ns.
    pub begin_ns: u64,
    /// When all of it was there, in ns.
    pub end_ns: u64,
}

/// What nodes fetched, and what their tiers evicted or lost: node, moment in ns, and bytes. For
/// timelines; if there are very many pages, only the first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Pages in the order in which they came.
    pub fetched: Vec<Fetched>,
    /// Pages evicted or lost.
    pub gone: Vec<(u32, u64, u64)>,
}

/// Limit on the recorded pages; this many take 32 MB of memory.
const ACTIVITY_MAX: usize = 1 << 20;

impl Activity {
    pub(crate) fn came(&mut self, fetched: Fetched) {
        if self.fetched.len() < ACTIVITY_MAX {
            self.fetched.push(fetched);
        }
    }

    pub(crate) fn gone(&mut self, node: usize, at_ns: u64, bytes: u64) {
        if self.fetched.len() < ACTIVITY_MAX && bytes > 0 {
            self.gone.push((node as u32, at_ns, bytes));
        }
    }
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Jobs in the order of the setup.
    pub jobs: Vec<JobOutcome>,
    /// What nodes fetched.
    #[serde(skip)]
    pub activity: Activity,
    /// Bytes that servers have sent.
    pub served_bytes: u64,
    /// Bytes that were fetched for requests of the stage machine.
    pub prefetched_bytes: u64,
    /// Bytes that tasks have written to the file system.
    #[serde(skip_serializing_if = "is_default")]
    pub output_bytes: u64,
    /// Bytes that tiers have evicted or lost.
    #[serde(skip_serializing_if = "is_default")]
    pub evicted_bytes: u64,
    /// Bytes that went over links of servers, where servers run tasks,
    #[serde(skip_serializing_if = "is_default")]
    pub link_bytes: u64,
    /// and requests to their disks.
    #[serde(skip_serializing_if = "is_default")]
    pub disk_requests: u64,
    /// Time that the busiest server needs to send all that the jobs read, in ns.
    pub bound_ns: u64,
    /// Requests that the machine made.
    pub requests: u64,
    /// Events handled.
    pub events: u64,
}

impl Outcome {
    /// Tasks that had not ended at the horizon.
    pub fn tasks_left(&self) -> u32 {
        self.jobs.iter().map(|job| job.tasks_left).sum()
    }

    /// When the last task has ended, in seconds.
    pub fn end_s(&self) -> f64 {
        let ends = self.jobs.iter().flat_map(|job| &job.ran).map(|(_, _, end)| *end);
        ends.max().unwrap_or(0) as f64 * 1e-9
    }
}
