//! What a client has at this agent while it is connected, and what its requests act on.

use super::closer::Closer;
use super::guest_connection::Guest;
use super::guest_mount::GuestMounts;
use super::write_staging::Stage;
use crate::audit::Audit;
use crate::cache::Cache;
use crate::cluster::Cluster;
use crate::config::{Config, Live};
use crate::coordinator::link::Link;
use crate::counters::{Counters, add};
use crate::fetch::Fetch;
use crate::jobs::job_state::JobState;
use crate::jobs::layouts::Layouts;
use crate::jobs::orders::Orders;
use crate::jobs::scratch_files::Jobs;
use crate::jobs::task_questions::TaskQuestions;
use crate::lock::lock;
use crate::memory_control::Control;
use crate::mounts::MountState;
use crate::phases::board::Phases;
use crate::prefetch::load::LoadJob;
use crate::shuffle::Shuffles;
use crate::stop::Stop;
use crate::traffic::account::Account;
use crate::user_limits::{Share, Shares};
use crate::write_back::WriteBack;
use crate::write_back::copies::Wanted;
use crate::write_back::newest::Newest;
use forebay_store::ring::RingReader;
use forebay_wire::channel::Peer;
use forebay_wire::cluster::DirtyFile;
use forebay_wire::link::Security;
use forebay_wire::{Refusal, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// What requests act on.
#[derive(Debug)]
pub struct Node {
    /// The configuration at the start.
    pub config: Config,
    /// The one that was read last.
    pub live: Arc<Live<Config>>,
    /// How its peers know it.
    pub security: Security,
    /// The mounts, in the order of the configuration.
    pub mounts: Arc<[MountState]>,
    /// Cached versions.
    pub cache: Arc<Cache>,
    /// Gives its memory back.
    pub control: Arc<Control>,
    /// Counters.
    pub counters: Arc<Counters>,
    /// Fetches pages.
    pub fetch: Arc<Fetch>,
    /// The members.
    pub cluster: Arc<Cluster>,
    /// What analytics jobs have reported.
    pub jobs: Arc<JobState>,
    /// In which orders they will read.
    pub orders: Orders,
    /// Tasks that ask whether they may read.
    pub questions: Arc<TaskQuestions>,
    /// I/O phases of HPC jobs.
    pub phases: Arc<Phases>,
    /// What is said to the coordinator.
    pub link: Arc<Link>,
    /// The layouts of files.
    pub layouts: Layouts,
    /// What users hold.
    pub shares: Arc<Shares>,
    /// Memory-only files by job.
    pub memory_files: Arc<Jobs>,
    /// Map outputs among them.
    pub shuffles: Arc<Shuffles>,
    /// Files that the PFS does not have yet.
    pub write_back: Arc<WriteBack>,
    /// Descriptors for programs that write files of other nodes.
    pub guest_mounts: GuestMounts,
    /// Rings of the connected clients, by connection.
    pub rings: Mutex<BTreeMap<u64, Ring>>,
    /// Open connections.
    pub connections: AtomicUsize,
    /// Closes what is not of a mount.
    pub closer: Closer,
    /// Administrative commands.
    pub audit: Audit,
    /// The agent's end.
    pub stop: Arc<Stop>,
    /// When it started.
    pub started: Instant,
}

impl Node {
    /// Takes the touches of pages from the clients' rings. Called when there is time.
    pub fn drain_rings(&self) {
        let mut keys = Vec::new();
        for Ring { reader, account } in lock(&self.rings).values_mut() {
            reader.drain(&mut keys);
            reader.set_limited(account.is_limited());
        }
        self.touch(&keys);
    }

    /// Ends the analytics job of a connection, even one whose program has died.
    pub fn end_job(&self, connection: u64) {
        self.orders.end(connection);
        self.jobs.end(connection, |message| self.link.say(message, None));
    }

    fn touch(&self, keys: &[u64]) {
        if !keys.is_empty() {
            add(&self.counters.touches_total, keys.len() as u64);
            self.cache.touch(keys);
            for job in self.cache.compare_with_orders(keys) {
                tracing::info!(job, "reads in another order than it has announced; the order is dropped");
                self.orders.drop_void(job);
                self.jobs.end(job, |message| self.link.say(message, None));
            }
        }
    }
}

/// The ring of a process, and the job that it belongs to.
#[derive(Debug)]
pub struct Ring {
    /// What it has touched.
    pub reader: RingReader,
    /// Its job.
    pub account: Arc<Account>,
}

/// State of one connection.
pub struct Connection {
    /// What its requests act on.
    pub node: Arc<Node>,
    /// Its number.
    pub id: u64,
    /// The process at the other end.
    pub peer: Peer,
    /// Its groups, the first one first.
    pub groups: Vec<u32>,
    /// The account of its job.
    pub account: Arc<Account>,
    /// The load begun on it.
    pub load: Option<Arc<LoadJob>>,
    /// The file being written through.
    pub stage: Option<Stage>,
    /// The job with memory-only files begun on it.
    pub job: Option<String>,
    /// The process whose end ends the job, if not the connection's does.
    pub process: Option<OwnedFd>,
    /// It reports an analytics job.
    pub reports_job: bool,
    /// It has opened an HPC job.
    pub hpc: bool,
    /// A question to the coordinator whose answer has not been sent yet.
    pub listing: Option<Share>,
    /// Dirty files that it waits for, each with the passes that had begun before.
    pub syncing: Option<BTreeMap<u64, u64>>,
    /// Files that it waits for, and that may be dirty on other nodes.
    pub syncing_elsewhere: BTreeSet<DirtyFile>,
    /// Dirty files whose second copies it waits for.
    pub keeping: Option<Wanted>,
    /// A content that comes from another node.
    pub coming: Option<Receiver<std::io::Result<Newest>>>,
    /// The file of another node that it writes.
    pub guest: Option<Guest>,
    /// The operator has asked for the agent's end; it comes after the answer.
    pub ends_agent: bool,
}

/// A reply and the descriptors that go with it; `None` for one-way requests.
pub type Answer = Option<(Reply, Vec<OwnedFd>)>;

/// An answer without descriptors.
pub fn reply(reply: Reply) -> Answer {
    Some((reply, Vec::new()))
}

/// A refusal.
pub fn refuse(why: Refusal) -> Answer {
    reply(Reply::Refused(why))
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(load) = self.load.take() {
            load.cancel();
        }
        if let Some(job) = self.job.take() {
            self.node.shuffles.driver_left(&job);
        }
        if self.reports_job {
            self.node.end_job(self.id);
        }
        if self.hpc {
            self.node.phases.close(self.id);
        }
        // What it used last is not lost with it: many programs are gone before the ring is looked
        // at.
        let ring = lock(&self.node.rings).remove(&self.id);
        if let Some(Ring { mut reader, .. }) = ring {
            let mut keys = Vec::new();
            reader.drain(&mut keys);
            self.node.touch(&keys);
        }
    }
}
