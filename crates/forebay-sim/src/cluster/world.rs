//! The events of a run: tasks, readers, servers, and the requests of the stage machine.

use std::collections::{BTreeMap, VecDeque};

use forebay_policy::homes::{Candidate, Homes};
use forebay_policy::machine::{Machine, Nanos};
use forebay_policy::placement::{Member, extent_key, node_number};
use forebay_policy::stage::Stages;
use forebay_policy::stage::event::{
    Action, Event, File, JobUpdate, Layout, Node, Part, Progress, RequestId, Split,
};

use super::{JobOutcome, JobSpec, Outcome, Setup};
use crate::error::{Error, Result};
use crate::pump::Pump;
use crate::queue::EventQueue;
use crate::run::{World, run};
use crate::station::Stations;
use crate::trace::{STAGES, Trace};

/// Far above any sensible scenario: a run that needs more is one that does not end.
const MAX_EVENTS: u64 = 200_000_000;
const STAGE: u32 = 1;
const MOUNT: &str = "pfs";

/// A page: its job, file and number.
type Page = (usize, u32, u64);

/// What happens by itself.
#[derive(Clone, Copy, Debug)]
enum Happening {
    JobStarts(usize),
    /// The task of this slot has computed what it had read.
    Computed(usize),
    /// The slot may take a task of another node by now.
    Looks(usize),
    MachineWakes,
}

/// What a server sends.
#[derive(Clone, Copy, Debug)]
enum Flow {
    /// A piece of a page, for a node's tier.
    Page(Page),
    /// What a task reads by itself.
    Task(usize),
}

/// What is known of a page that is in the tier or on its way.
#[derive(Default)]
struct State {
    /// Pieces that have not come.
    left: u32,
    /// Requests and slots that go on when it is there.
    waiting: Vec<Waiter>,
}

#[derive(Clone, Copy)]
enum Waiter {
    Request(RequestId),
    Slot(usize),
}

/// What a node was asked for.
struct Request {
    node: String,
    pages: VecDeque<(Page, u64)>,
    /// The page under way, its bytes, and whether it is fetched for this request.
    at: Option<(u64, bool)>,
    progress: Progress,
}

struct Job {
    /// What each task reads: file, offset, length.
    splits: Vec<(u32, u64, u64)>,
    /// The server of each stripe of each file.
    servers: Vec<Vec<u32>>,
    /// Tasks that have not started: their number, and the node that was named for them.
    pending: BTreeMap<u32, Option<usize>>,
    left: u32,
    done: JobOutcome,
}

/// A task that runs.
struct Running {
    job: usize,
    task: u32,
    since: Nanos,
    file: u32,
    /// Its split ends here; up to here it has read, and computed.
    end: u64,
    read: u64,
    computed: u64,
    computing: Option<u64>,
    is_reading: bool,
}

#[derive(Default)]
struct Slot {
    node: usize,
    running: Option<Running>,
    /// Since when it has had no task.
    free_since: Nanos,
}

struct Cluster<'a> {
    setup: &'a Setup,
    trace: &'a mut Trace,
    stages: Pump<Stages>,
    servers: Stations,
    flows: BTreeMap<u64, Flow>,
    next_flow: u64,
    served_bytes: f64,
    pages: BTreeMap<Page, State>,
    requests: BTreeMap<RequestId, Request>,
    asked: u64,
    jobs: Vec<Job>,
    slots: Vec<Slot>,
    reports: Vec<Event>,
}

fn name(node: usize) -> String {
    format!("node-{node:04}")
}

/// Runs `setup` to the end and records into `trace`.
///
/// # Errors
/// If the run does not come to an end.
pub fn simulate(setup: &Setup, trace: &mut Trace) -> Result<Outcome> {
    let mut world = Cluster::new(setup, trace, Pump::new(STAGES, Stages::new(setup.stages())));
    let mut queue = EventQueue::new();
    for (j, spec) in setup.jobs.iter().enumerate() {
        queue.at(Nanos(spec.starts_ns), Happening::JobStarts(j));
    }
    world.tell(Nanos(0), Event::Members { nodes: nodes(setup) }, &mut queue);
    let stats = run(&mut world, &mut queue, MAX_EVENTS);
    if let Some((job, spec)) = world.jobs.iter().zip(&setup.jobs).find(|(job, _)| job.left > 0) {
        let (at, left, name) = (stats.end.as_secs_f64(), job.left, &spec.name);
        return Err(Error::Usage(format!(
            "the run ended after {at:.3} s with {left} tasks of job '{name}' left"
        )));
    }
    let bound_s = world.busiest_bytes() / setup.server_bytes_per_s;
    Ok(Outcome {
        jobs: world.jobs.into_iter().map(|job| job.done).collect(),
        served_bytes: world.served_bytes,
        bound_ns: (bound_s * 1e9) as u64,
        requests: world.asked,
        events: stats.events,
    })
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

/// Names a file among those of all jobs.
fn inode(job: usize, file: u32) -> u64 {
    ((job as u64) << 32) + u64::from(file) + 1
}

impl<'a> Cluster<'a> {
    fn new(setup: &'a Setup, trace: &'a mut Trace, stages: Pump<Stages>) -> Self {
        let job = |(j, spec): (usize, &JobSpec)| Job {
            splits: spec.splits(),
            servers: setup.servers_of(j),
            pending: BTreeMap::new(),
            left: spec.splits().len() as u32,
            done: JobOutcome { name: spec.name.clone(), ..JobOutcome::default() },
        };
        // By turns, so that the first tasks are spread.
        let slots = (0..setup.slots).flat_map(|_| 0..setup.nodes as usize);
        Cluster {
            setup,
            trace,
            stages,
            servers: Stations::uniform(setup.servers as usize, setup.server_bytes_per_s),
            flows: BTreeMap::new(),
            next_flow: 0,
            served_bytes: 0.0,
            pages: BTreeMap::new(),
            requests: BTreeMap::new(),
            asked: 0,
            jobs: setup.jobs.iter().enumerate().map(job).collect(),
            slots: slots.map(|node| Slot { node, ..Slot::default() }).collect(),
            reports: Vec::new(),
        }
    }

    /// Whether tasks read past the tier, as they do under the planner that never fetches.
    fn reads_directly(&self) -> bool {
        self.setup.policy == "naive-bb"
    }

    /// What the server that has most of what the jobs read has of it.
    fn busiest_bytes(&self) -> f64 {
        let mut bytes = vec![0u64; self.setup.servers as usize];
        for (job, spec) in self.jobs.iter().zip(&self.setup.jobs) {
            for (file, servers) in (0..).zip(&job.servers) {
                for (stripe, server) in servers.iter().enumerate() {
                    let left = spec.bytes_of(file).saturating_sub(stripe as u64 * self.setup.stripe_bytes);
                    bytes[*server as usize] += left.min(self.setup.stripe_bytes);
                }
            }
        }
        bytes.into_iter().max().unwrap_or(0) as f64
    }

    // The machine.

    fn tell(&mut self, now: Nanos, event: Event, queue: &mut EventQueue<Happening>) {
        let actions = self.stages.tell(now, event, self.trace);
        self.obey(now, actions, queue);
    }

    fn tell_job(&mut self, now: Nanos, j: usize, updates: Vec<JobUpdate>, queue: &mut EventQueue<Happening>) {
        self.tell(now, Event::Job { job: j as u64, updates }, queue);
    }

    fn obey(&mut self, now: Nanos, actions: Vec<Action>, queue: &mut EventQueue<Happening>) {
        for action in actions {
            match action {
                Action::Fetch { request, node, job, parts, .. } => {
                    let (job, at, progress) = (job as usize, None, Progress::default());
                    let pages = parts.iter().flat_map(|part| pages_of(self.setup, job, part)).collect();
                    self.requests.insert(request, Request { node, pages, at, progress });
                    self.asked += 1;
                    self.next_page(now, request);
                }
                Action::Release { requests, .. } => {
                    requests.iter().for_each(|request| drop(self.requests.remove(request)));
                }
                // Nodes have one page of each request at a time, and none at a limited rate here.
                Action::Adjust { .. } | Action::Direct { .. } | Action::Decided { .. } => {}
            }
        }
        self.stages.arm(queue, Happening::MachineWakes);
        // What a node has already it reports at once.
        for report in std::mem::take(&mut self.reports) {
            self.tell(now, report, queue);
        }
    }

    /// A request goes on with its next page that is not there.
    fn next_page(&mut self, now: Nanos, id: RequestId) {
        while let Some(request) = self.requests.get_mut(&id) {
            let Some((page, bytes)) = request.pages.pop_front() else {
                request.progress.done = true;
                let (node, progress) = (request.node.clone(), request.progress);
                self.reports.push(Event::Request { request: id, node, progress });
                return;
            };
            let is_last = request.pages.is_empty();
            let is_there = self.pages.get(&page).map(|state| state.left == 0);
            if is_there == Some(true) {
                request.progress.resident_bytes += bytes;
                continue;
            }
            request.at = Some((bytes, is_there.is_none()));
            self.want(now, page, Waiter::Request(id), if is_last { self.setup.read_beyond_bytes } else { 0 });
            return;
        }
    }

    /// A page is fetched unless it is on its way; `waiter` goes on when it is there.
    fn want(&mut self, now: Nanos, page: Page, waiter: Waiter, beyond_bytes: u64) {
        if let Some(state) = self.pages.get_mut(&page) {
            return state.waiting.push(waiter);
        }
        let (job, file, number) = page;
        let file_bytes = self.setup.jobs[job].bytes_of(file);
        let from = number * self.setup.page_bytes;
        let end = (from + self.setup.page_bytes).min(file_bytes);
        let mut pieces = 0;
        let mut at = from;
        while at < end {
            let next = (at / self.setup.stripe_bytes + 1).saturating_mul(self.setup.stripe_bytes).min(end);
            // There is nothing beyond the end of a file.
            let beyond = if next == end { beyond_bytes.min(file_bytes - end) } else { 0 };
            self.send(now, Flow::Page(page), job, file, at, next - at + beyond);
            (at, pieces) = (next, pieces + 1);
        }
        self.pages.insert(page, State { left: pieces, waiting: vec![waiter] });
    }

    fn send(&mut self, now: Nanos, flow: Flow, job: usize, file: u32, at: u64, bytes: u64) {
        let stripe = (at / self.setup.stripe_bytes) as usize;
        let server = self.jobs[job].servers[file as usize][stripe] as usize;
        let id = self.next_flow;
        self.next_flow += 1;
        self.flows.insert(id, flow);
        self.served_bytes += bytes as f64;
        self.servers.start(now, server, id, bytes as f64, 1.0);
    }

    fn page_came(&mut self, now: Nanos, page: Page, queue: &mut EventQueue<Happening>) {
        let Some(state) = self.pages.get_mut(&page) else { return };
        state.left -= 1;
        if state.left > 0 {
            return;
        }
        for waiter in std::mem::take(&mut state.waiting) {
            match waiter {
                Waiter::Slot(slot) => self.go_on(now, slot, queue),
                Waiter::Request(id) => self.request_goes_on(now, id),
            }
        }
        for report in std::mem::take(&mut self.reports) {
            self.tell(now, report, queue);
        }
    }

    fn request_goes_on(&mut self, now: Nanos, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let Some((bytes, is_own)) = request.at.take() else { return };
        let progress = &mut request.progress;
        *(if is_own { &mut progress.fetched_bytes } else { &mut progress.resident_bytes }) += bytes;
        if !request.pages.is_empty() {
            let (node, progress) = (request.node.clone(), request.progress);
            self.reports.push(Event::Request { request: id, node, progress });
        }
        self.next_page(now, id);
    }

    // Jobs and tasks.

    fn job_starts(&mut self, now: Nanos, j: usize, queue: &mut EventQueue<Happening>) {
        let spec = &self.setup.jobs[j];
        let homes = self.homes(j);
        let file = |file: u32| File { mount: MOUNT.into(), ino: inode(j, file), bytes: spec.bytes_of(file) };
        let split = |(&(file, offset, len), home): (&(u32, u64, u64), &Option<usize>)| Split {
            parts: vec![Part { file, offset, len }],
            home: home.map(name).unwrap_or_default(),
        };
        let splits = self.jobs[j].splits.iter().zip(&homes).map(split).collect();
        let host = |node: u32| (name(node as usize), self.setup.slots);
        let layout =
            |servers: &Vec<u32>| Layout { stripe_bytes: self.setup.stripe_bytes, servers: servers.clone() };
        let mut updates = vec![
            JobUpdate::Begin { name: spec.name.clone(), planner: self.setup.policy.clone() },
            JobUpdate::Slots { slots: (0..self.setup.nodes).map(host).collect() },
            JobUpdate::Files { files: (0..spec.files()).map(file).collect() },
        ];
        if self.setup.layout_known {
            let servers = (0..self.setup.servers).map(|server| server.to_string()).collect();
            updates.push(JobUpdate::Layouts {
                servers,
                files: self.jobs[j].servers.iter().map(layout).collect(),
            });
        }
        updates.push(JobUpdate::Splits { stage: STAGE, splits });
        updates.push(JobUpdate::StageReady { stage: STAGE });
        self.jobs[j].pending = (0..).zip(homes).collect();
        self.tell_job(now, j, updates, queue);
        (0..self.slots.len()).for_each(|slot| self.take_task(now, slot, queue));
    }

    /// Where the plug-in names the tasks' nodes: as the plug-in does it.
    fn homes(&self, j: usize) -> Vec<Option<usize>> {
        let member = |node: u32| Member {
            node: node_number(&name(node as usize)),
            weight: self.setup.tier_bytes as f64,
        };
        let candidate = |node: u32| Candidate { member: member(node), runs_tasks: true };
        let candidates: Vec<Candidate> = (0..self.setup.nodes).map(candidate).collect();
        let mut homes = Homes::default();
        let mut home = |&(file, offset, len): &(u32, u64, u64)| {
            if self.reads_directly() {
                return None;
            }
            let extent = extent_key(MOUNT, inode(j, file), offset / self.setup.extent_bytes);
            homes.home(&candidates, extent, len)
        };
        self.jobs[j].splits.iter().map(&mut home).collect()
    }

    /// A slot takes the first task that is to run there, or, after a while, any.
    fn take_task(&mut self, now: Nanos, slot: usize, queue: &mut EventQueue<Happening>) {
        let Slot { node, running: None, free_since } = self.slots[slot] else { return };
        let is_late = now.saturating_since(free_since) >= self.setup.locality_wait_ns;
        let may = |home: &Option<usize>| is_late || home.is_none_or(|home| home == node);
        let own = |home: &Option<usize>| *home == Some(node);
        let first = |job: &Job, which: &dyn Fn(&Option<usize>) -> bool| {
            job.pending.iter().find(|(_, home)| which(home)).map(|(task, _)| *task)
        };
        let of = |which: &dyn Fn(&Option<usize>) -> bool| {
            self.jobs.iter().enumerate().find_map(|(j, job)| Some((j, first(job, which)?)))
        };
        let Some((j, task)) = of(&own).or_else(|| of(&may)) else {
            if !is_late && self.jobs.iter().any(|job| !job.pending.is_empty()) {
                queue.at(free_since + self.setup.locality_wait_ns, Happening::Looks(slot));
            }
            return;
        };
        let home = self.jobs[j].pending.remove(&task).flatten();
        self.jobs[j].done.local += u32::from(home == Some(node));
        let (file, offset, len) = self.jobs[j].splits[task as usize];
        self.slots[slot].running = Some(Running {
            job: j,
            task,
            since: now,
            file,
            end: offset + len,
            read: offset,
            computed: offset,
            computing: None,
            is_reading: false,
        });
        self.tell_job(now, j, vec![JobUpdate::TaskStarted { stage: STAGE, task, host: name(node) }], queue);
        self.go_on(now, slot, queue);
    }

    /// The task of a slot reads and computes what it can.
    fn go_on(&mut self, now: Nanos, slot: usize, queue: &mut EventQueue<Happening>) {
        if self.reads_directly() {
            self.read_directly(now, slot);
        } else {
            self.read_pages(now, slot);
        }
        let Some(task) = self.slots[slot].running.as_mut() else { return };
        if task.computing.is_none() && task.read > task.computed {
            // Of what is in the tier, a page at a time: the next one may be missing by then.
            let page_end = (task.computed / self.setup.page_bytes + 1) * self.setup.page_bytes;
            let upto = task.read.min(page_end);
            let spec = &self.setup.jobs[task.job];
            let share = (upto - task.computed) as f64 / spec.split_bytes as f64;
            task.computing = Some(upto);
            queue.after((share * spec.task_cpu_ns as f64) as u64, Happening::Computed(slot));
            // The client reads on while the task computes.
            if self.reads_directly() {
                self.read_directly(now, slot);
            } else {
                self.read_pages(now, slot);
            }
        }
    }

    /// Past the tier: the client asks one server at a time, and reads ahead of what is computed.
    fn read_directly(&mut self, now: Nanos, slot: usize) {
        let Some(task) = self.slots[slot].running.as_mut() else { return };
        let ahead = task.computing.unwrap_or(task.computed) + self.setup.read_ahead_bytes;
        if task.is_reading || task.read >= task.end.min(ahead) {
            return;
        }
        task.is_reading = true;
        let stripe_end = (task.read / self.setup.stripe_bytes + 1).saturating_mul(self.setup.stripe_bytes);
        let bytes = self.setup.read_ahead_bytes.min(stripe_end - task.read).min(task.end - task.read);
        let (job, file, at) = (task.job, task.file, task.read);
        self.send(now, Flow::Task(slot), job, file, at, bytes);
    }

    /// Through the tier: the page that is needed next and the one after it are fetched if they are
    /// not there, and not under way.
    fn read_pages(&mut self, now: Nanos, slot: usize) {
        let Some(task) = self.slots[slot].running.as_mut() else { return };
        let page_bytes = self.setup.page_bytes;
        let mut wanted = None;
        while task.read < task.end {
            let page = (task.job, task.file, task.read / page_bytes);
            if self.pages.get(&page).is_none_or(|state| state.left > 0) {
                wanted = Some(page);
                break;
            }
            task.read = ((page.2 + 1) * page_bytes).min(task.end);
        }
        let near = (task.computing.unwrap_or(task.computed) / page_bytes) + 1;
        let Some(page) = wanted.filter(|page| page.2 <= near) else { return };
        let waits = |state: &State| state.waiting.iter().any(|w| matches!(w, Waiter::Slot(s) if *s == slot));
        if !self.pages.get(&page).is_some_and(waits) {
            self.want(now, page, Waiter::Slot(slot), 0);
        }
    }

    fn computed(&mut self, now: Nanos, slot: usize, queue: &mut EventQueue<Happening>) {
        let Some(task) = self.slots[slot].running.as_mut() else { return };
        let Some(upto) = task.computing.take() else { return };
        task.computed = upto;
        if task.computed < task.end {
            return self.go_on(now, slot, queue);
        }
        let (j, number, run_ms) = (task.job, task.task, now.saturating_since(task.since) / 1_000_000);
        let since = task.since;
        (self.slots[slot].running, self.slots[slot].free_since) = (None, now);
        let job = &mut self.jobs[j];
        job.left -= 1;
        job.done.tasks += 1;
        job.done.ran.push((slot, since.0, now.0));
        let mut updates = vec![JobUpdate::TaskEnded { stage: STAGE, task: number, ok: true, run_ms }];
        if job.left == 0 {
            job.done.map_ns = now.0 - self.setup.jobs[j].starts_ns;
            let jobs = self.stages.machine().snapshot();
            let running = jobs.iter().filter(|status| !status.ended && status.name == job.done.name);
            job.done.waves = running.flat_map(|s| &s.stages).map(|stage| stage.waves.len() as u32).sum();
            updates.push(JobUpdate::End);
        }
        self.tell_job(now, j, updates, queue);
        self.take_task(now, slot, queue);
    }
}

/// The pages of a part of a file, and the bytes of each.
fn pages_of(setup: &Setup, job: usize, part: &Part) -> Vec<(Page, u64)> {
    let (first, end) = (part.offset / setup.page_bytes, part.offset + part.len);
    let page = |number: u64| {
        let from = part.offset.max(number * setup.page_bytes);
        ((job, part.file, number), end.min((number + 1) * setup.page_bytes) - from)
    };
    (first..end.div_ceil(setup.page_bytes)).map(page).collect()
}

impl World for Cluster<'_> {
    type Event = Happening;

    fn on_event(&mut self, now: Nanos, event: Happening, queue: &mut EventQueue<Happening>) {
        match event {
            Happening::JobStarts(j) => self.job_starts(now, j, queue),
            Happening::Computed(slot) => self.computed(now, slot, queue),
            Happening::Looks(slot) => self.take_task(now, slot, queue),
            Happening::MachineWakes => {
                let actions = self.stages.wake(now, self.trace);
                self.obey(now, actions, queue);
            }
        }
    }

    fn next_completion(&self) -> Option<Nanos> {
        self.servers.next_end()
    }

    fn on_completion(&mut self, _now: Nanos, queue: &mut EventQueue<Happening>) {
        let Some((at, _, id)) = self.servers.pop_end() else { return };
        match self.flows.remove(&id) {
            Some(Flow::Page(page)) => self.page_came(at, page, queue),
            Some(Flow::Task(slot)) => {
                if let Some(task) = self.slots[slot].running.as_mut() {
                    let stripe_end =
                        (task.read / self.setup.stripe_bytes + 1).saturating_mul(self.setup.stripe_bytes);
                    let ahead = self.setup.read_ahead_bytes.min(stripe_end - task.read);
                    task.read = (task.read + ahead).min(task.end);
                    task.is_reading = false;
                }
                self.go_on(at, slot, queue);
            }
            None => {}
        }
    }
}
