//! A run: what happens, and the conversation with the stage machine.

mod faults;
mod fetch;
mod map;
mod page;
mod pending;
mod pfs;
mod ship;
mod shuffle;
mod tasks;
mod tier_contents;

use std::collections::VecDeque;

use forebay_policy::machine::Nanos;
use forebay_policy::placement::{Member, extent_key, node_number};
use forebay_policy::preferred_nodes::{Candidate, PreferredNodes};
use forebay_policy::ship::{Ship, Side};
use forebay_policy::stage::Stages;
use forebay_policy::stage::event::{Action, Event, File, JobUpdate, Layout, Node, Part, Split};

use super::{JobOutcome, Outcome, Setup};
use crate::driver::{Driver, Record};
use crate::error::{Error, Result};
use crate::event_loop::{Limits, RunStats, Stop, World, run};
use crate::queue::{Agenda, EventQueue};
use crate::trace::{STAGES, Trace};
use fetch::Tier;
use page::Page;
use pending::Pending;
use pfs::Pfs;
use shuffle::Share;
use tasks::{Job, Run, Slot};

const STAGE: u32 = 1;
const MOUNT: &str = "pfs";

/// Events of a run. An event for a task that has died since is ignored.
#[derive(Clone, Copy, Debug)]
pub enum Happening {
    JobStarts(usize),
    /// A window has come that this task reads past the tier.
    WindowCame(Run),
    /// This task has computed what it had read.
    Computed(Run),
    /// The servers have some of what this task writes.
    Wrote(Run),
    /// A part of what a map task leaves has come a step further.
    Shuffled(Share),
    /// The slot may take a task of another node by now.
    Looks(usize),
    /// A window of this page has come.
    PageGrows(Page),
    /// The machine of this node requested a wake-up.
    NodeWakes(usize),
    MachineWakes,
}

/// Nodes, file system and jobs.
pub struct Cluster<'a> {
    setup: &'a Setup,
    record: &'a Record<'a>,
    stages: Driver<Stages>,
    /// Decides where stages run, if servers run tasks.
    ship: Option<Driver<Ship>>,
    /// Fraction of the time in which servers serve others than these jobs.
    pub others_busy: f64,
    pub pfs: Pfs<'a>,
    tier: Tier,
    /// Names of the nodes, and of servers as hosts of tasks.
    names: Vec<String>,
    jobs: Vec<Job>,
    slots: Vec<Slot>,
    /// How many faults keep each node down.
    faults_on: Vec<u32>,
    /// What nodes are to report, in turn.
    reports: VecDeque<Event>,
    /// Bytes that tasks have written.
    output_bytes: u64,
}

/// Name of the machine that decides where stages run.
pub const SHIP: &str = "ship";

fn name(node: usize) -> String {
    format!("node-{node:04}")
}

/// The number of the node of this name.
fn number(name: &str) -> Option<usize> {
    name.strip_prefix("node-")?.parse().ok()
}

/// Runs `setup` to the end and records into `trace`.
///
/// # Errors
/// If the run does not come to an end.
pub fn simulate(setup: &Setup, trace: &mut Trace) -> Result<Outcome> {
    let record = Record::new(trace);
    let mut world = Cluster::new(setup, &record);
    let mut queue = EventQueue::new();
    world.begin(&mut queue);
    let stats = run(&mut world, &mut queue, Limits::of(setup.horizon_ns))?;
    world.finish(stats)
}

fn nodes(setup: &Setup) -> Vec<Node> {
    let node = |number: u32| Node {
        name: name(number as usize),
        host: name(number as usize),
        capacity_bytes: setup.tier_bytes,
        keeps: [(MOUNT.to_owned(), setup.extent_bytes)].into(),
    };
    (0..setup.nodes).map(node).collect()
}

/// Inode number of a file among the files of all jobs.
fn inode(job: usize, file: u32) -> u64 {
    ((job as u64) << 32) + u64::from(file) + 1
}

impl<'a> Cluster<'a> {
    /// Starts with nothing running.
    pub fn new(setup: &'a Setup, record: &'a Record<'a>) -> Self {
        Cluster {
            setup,
            record,
            stages: Driver::new(STAGES, Stages::new(setup.stages())),
            pfs: Pfs::new(setup),
            ship: setup.ship_config().map(|config| Driver::new(SHIP, Ship::new(config))),
            others_busy: 0.0,
            tier: Tier::new(setup),
            names: (0..(setup.nodes + setup.servers) as usize).map(name).collect(),
            jobs: setup.jobs.iter().map(Job::of).collect(),
            slots: setup.hosts_of_slots().into_iter().map(Slot::of).collect(),
            faults_on: vec![0; (setup.nodes + setup.servers) as usize],
            reports: VecDeque::new(),
            output_bytes: 0,
        }
    }

    /// Schedules the first events.
    pub fn begin(&mut self, queue: &mut impl Agenda<Happening>) {
        for (j, spec) in self.setup.jobs.iter().enumerate().filter(|(_, spec)| spec.after.is_none()) {
            queue.at(Nanos(spec.starts_ns), Happening::JobStarts(j));
        }
        (0..self.setup.nodes as usize).for_each(|node| self.node_begins(Nanos(0), node, queue));
        self.notify(Nanos(0), Event::Members { nodes: nodes(self.setup) }, queue);
    }

    /// Returns the outcome of the run.
    ///
    /// # Errors
    /// If tasks are left, although the run did not end at its horizon.
    pub fn finish(self, stats: RunStats) -> Result<Outcome> {
        let is_cut = stats.stop == Stop::Horizon;
        let mut jobs = self.jobs.iter().zip(&self.setup.jobs);
        if let Some((job, spec)) = jobs.find(|(job, _)| job.left > 0 && !is_cut) {
            let (at, left, name) = (stats.end.as_secs_f64(), job.left, &spec.name);
            return Err(Error::Usage(format!(
                "the run ended after {at:.3} s with {left} tasks of job '{name}' left"
            )));
        }
        let evicted_bytes = self.evicted_bytes();
        let bound_s = self.pfs.busiest_bytes() as f64 / self.setup.serves_bytes_per_s();
        let runs_tasks = self.setup.shipping.is_some();
        Ok(Outcome {
            jobs: self.jobs.into_iter().map(|job| JobOutcome { tasks_left: job.left, ..job.done }).collect(),
            activity: self.tier.activity,
            served_bytes: self.pfs.served_bytes,
            prefetched_bytes: self.tier.prefetched_bytes,
            output_bytes: self.output_bytes,
            evicted_bytes,
            link_bytes: if runs_tasks { self.pfs.link_bytes } else { 0 },
            disk_requests: self.pfs.disk_requests,
            bound_ns: (bound_s * 1e9) as u64,
            requests: self.tier.asked,
            events: stats.events,
        })
    }

    /// Bytes that nodes have read from servers into their tiers.
    pub fn read_bytes(&self) -> u64 {
        self.tier.read_bytes
    }

    /// Reports an event to the machine.
    pub fn notify(&mut self, now: Nanos, event: Event, queue: &mut impl Agenda<Happening>) {
        let actions = self.stages.handle(now, event, self.record);
        self.obey(now, actions, queue);
    }

    pub fn report_job(
        &mut self,
        now: Nanos,
        j: usize,
        updates: Vec<JobUpdate>,
        queue: &mut impl Agenda<Happening>,
    ) {
        if self.jobs[j].is_reported {
            self.notify(now, Event::Job { job: j as u64, updates }, queue);
        }
    }

    fn obey(&mut self, now: Nanos, actions: Vec<Action>, queue: &mut impl Agenda<Happening>) {
        for action in actions {
            match action {
                Action::Fetch { request, node, job, threads, rate_bytes_per_s, priority, parts, .. } => {
                    let pace = (threads, rate_bytes_per_s, priority);
                    self.asked(now, request, (&node, job as usize), pace, &parts, queue);
                }
                Action::Adjust { request, threads, rate_bytes_per_s, .. } => {
                    self.adjusted(now, request, (threads, rate_bytes_per_s), queue);
                }
                Action::Release { requests, .. } => self.released(now, requests, queue),
                Action::MayRead { job, partition, .. } => self.may_read(now, job as usize, partition, queue),
                // Tasks that may read, read missing parts by themselves.
                Action::Direct { .. } | Action::Decided { .. } => {}
            }
        }
        self.stages.arm(queue, Happening::MachineWakes);
    }

    fn job_starts(&mut self, now: Nanos, j: usize, queue: &mut impl Agenda<Happening>) {
        self.jobs[j].began = now;
        self.place_stage(now, j);
        if self.jobs[j].side == Side::Storage {
            self.jobs[j].pending = Pending::new(self.preferred_servers(j));
        } else {
            self.job_starts_on_nodes(now, j, queue);
        }
        (0..self.slots.len()).for_each(|slot| self.take_task(now, slot, queue));
    }

    /// Reports a job to the stage machine, which then takes nodes.
    fn job_starts_on_nodes(&mut self, now: Nanos, j: usize, queue: &mut impl Agenda<Happening>) {
        self.jobs[j].is_reported = true;
        let spec = &self.setup.jobs[j];
        let preferred_nodes = self.preferred_nodes(j);
        let file = |file: u32| File { mount: MOUNT.into(), ino: inode(j, file), bytes: spec.bytes_of(file) };
        let split = |(&(file, offset, len), preferred_node): (&(u32, u64, u64), &Option<usize>)| Split {
            parts: vec![Part { file, offset, len }],
            preferred_node: preferred_node.map(name).unwrap_or_default(),
        };
        let splits = self.jobs[j].splits.iter().zip(&preferred_nodes).map(split).collect();
        let layout =
            |servers: &Vec<u32>| Layout { stripe_bytes: self.setup.stripe_bytes, servers: servers.clone() };
        let mut updates = vec![
            JobUpdate::Begin { name: spec.name.clone(), planner: self.setup.policy.clone() },
            JobUpdate::Slots { slots: self.hosts() },
            JobUpdate::Files { files: (0..spec.files()).map(file).collect() },
        ];
        if self.setup.tasks_ask() {
            updates.push(JobUpdate::TasksAsk);
        }
        if self.setup.layout_known {
            let servers = (0..self.setup.servers).map(|server| server.to_string()).collect();
            let files = self.pfs.layouts(j).iter().map(layout).collect();
            updates.push(JobUpdate::Layouts { servers, files });
        }
        updates.push(JobUpdate::Splits { stage: STAGE, splits });
        updates.push(JobUpdate::StageReady { stage: STAGE });
        self.jobs[j].pending = Pending::new(preferred_nodes);
        self.report_job(now, j, updates, queue);
    }

    /// Nodes that are up, and their slots.
    fn hosts(&self) -> Vec<(String, u32)> {
        let up = (0..self.setup.nodes as usize).filter(|node| self.is_up(*node));
        up.map(|node| (name(node), self.setup.slots)).collect()
    }

    /// The preferred nodes that Spark's plug-in names for the tasks: none if tasks read past the
    /// tier.
    fn preferred_nodes(&self, j: usize) -> Vec<Option<usize>> {
        let member = |node: u32| Member {
            node: node_number(&name(node as usize)),
            weight: self.setup.tier_bytes as f64,
        };
        let candidate = |node: u32| Candidate { member: member(node), runs_tasks: true };
        let up = (0..self.setup.nodes).filter(|node| self.is_up(*node as usize));
        let candidates: Vec<Candidate> = up.map(candidate).collect();
        let mut preferred_nodes = PreferredNodes::default();
        let mut preferred_node = |&(file, offset, len): &(u32, u64, u64)| {
            let extent = extent_key(MOUNT, inode(j, file), offset / self.setup.extent_bytes);
            (!self.setup.reads_past_tier()).then(|| preferred_nodes.choose(&candidates, extent, len))?
        };
        self.jobs[j].splits.iter().map(&mut preferred_node).collect()
    }
}

impl Cluster<'_> {
    /// Handles an event.
    pub fn on_happening(&mut self, now: Nanos, event: Happening, queue: &mut impl Agenda<Happening>) {
        match event {
            Happening::JobStarts(j) => self.job_starts(now, j, queue),
            Happening::WindowCame(run) if self.lives(run) => self.window_came(now, run.slot, queue),
            Happening::Computed(run) if self.lives(run) => self.computed(now, run.slot, queue),
            Happening::Wrote(run) if self.lives(run) => self.wrote(now, run.slot, queue),
            Happening::WindowCame(_) | Happening::Computed(_) | Happening::Wrote(_) => {}
            Happening::Shuffled(part) => self.shuffled(now, part, queue),
            Happening::Looks(slot) => self.take_task(now, slot, queue),
            Happening::PageGrows(page) => self.page_grows(now, page, queue),
            Happening::NodeWakes(node) => self.node_wakes(now, node, queue),
            Happening::MachineWakes => {
                let actions = self.stages.wake(now, self.record);
                self.obey(now, actions, queue);
            }
        }
        while let Some(report) = self.reports.pop_front() {
            self.notify(now, report, queue);
        }
    }
}

impl World for Cluster<'_> {
    type Event = Happening;

    fn on_event(&mut self, now: Nanos, event: Happening, queue: &mut EventQueue<Happening>) {
        self.on_happening(now, event, queue);
    }
}
