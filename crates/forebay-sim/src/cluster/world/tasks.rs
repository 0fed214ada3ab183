//! Tasks: slots take them, read their input past the tier or through it, compute, and write.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use forebay_policy::fetch_order::Urgency;
use forebay_policy::machine::Nanos;
use forebay_policy::readahead::{Readahead, ReadaheadConfig};
use forebay_policy::ship::Side;
use forebay_policy::stage::event::JobUpdate;

use super::page::Waiter;
use super::pending::Pending;
use super::pfs::{Reader, Source};
use super::shuffle::Left;
use super::{Cluster, Happening, STAGE};
use crate::cluster::{JobOutcome, JobSpec, Setup};
use crate::queue::Agenda;

/// What a stream of the client core reads ahead at first.
const FIRST_WINDOW_BYTES: u64 = 16 << 20;

/// A job that runs.
pub(super) struct Job {
    /// What each task reads: file, offset, length.
    pub splits: Vec<(u32, u64, u64)>,
    /// When it began, if it has.
    pub began: Nanos,
    pub pending: Pending,
    /// Slots of tasks that have asked and may not read yet.
    pub asking: BTreeMap<u32, usize>,
    /// Tasks that have not ended, of both stages.
    pub left: u32,
    /// Whether the stage machine knows it: while its map tasks run on nodes.
    pub is_reported: bool,
    /// Where its stage runs, and whether it is the second stage.
    pub side: Side,
    pub is_reducing: bool,
    /// What its map tasks have left, and the parts of it that are in transit.
    pub left_by_maps: Vec<Left>,
    pub parts_left: u64,
    /// What came to each reduce task and was written to storage: servers, and bytes.
    pub spilled: Vec<Vec<(usize, u64)>>,
    pub done: JobOutcome,
}

impl Job {
    /// A job that has not begun.
    pub fn of(spec: &JobSpec) -> Self {
        let splits = spec.splits();
        Job {
            left: splits.len() as u32 + spec.reduce.map_or(0, |reduce| reduce.tasks),
            splits,
            began: Nanos(u64::MAX),
            pending: Pending::default(),
            asking: BTreeMap::new(),
            is_reported: false,
            side: Side::default(),
            is_reducing: false,
            left_by_maps: Vec::new(),
            parts_left: 0,
            spilled: vec![Vec::new(); spec.reduce.map_or(0, |reduce| reduce.tasks as usize)],
            done: JobOutcome { name: spec.name.clone(), ..JobOutcome::default() },
        }
    }
}

/// A task on a slot, among all that the slot has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub slot: usize,
    number: u32,
}

/// A task that runs.
struct Running {
    job: usize,
    task: u32,
    /// Its preferred node.
    preferred_node: Option<usize>,
    since: Nanos,
    input: Input,
    /// How long it computes `cpu_bytes`.
    cpu_ns: u64,
    cpu_bytes: u64,
    /// Bytes that it computes now.
    computing: Option<u64>,
    /// Its output after computing, one file after the other.
    output: VecDeque<Output>,
}

/// A file that a task writes or reads again after computing, or a result that it sends.
#[derive(Clone, Debug)]
struct Output {
    kind: Kind,
    place: Source,
    bytes: u64,
    sent: u64,
    /// Bytes that servers have, or the task, or the compute nodes.
    there: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Reread,
    /// It writes its output for reduce tasks.
    Leave,
    /// It sends a result to the compute nodes.
    Send,
}

/// Like a client of a file system, a task has the next piece of its output in transit before the
/// last one has arrived.
const PIECES_SENT_MAX: u64 = 2;

/// How a task reads.
enum Input {
    /// From the file system, past the tier.
    Past(Reader),
    /// Through the tier, from `at` to `end` of a file.
    Tier { file: u32, at: u64, end: u64, ahead: Readahead },
}

/// A core.
pub(super) struct Slot {
    node: usize,
    /// Jobs that have had a task here.
    ran: BTreeSet<usize>,
    running: Option<Running>,
    /// Number of tasks so far.
    number: u32,
    /// Since when it has had no task.
    free_since: Nanos,
}

impl Slot {
    /// A free core of a node.
    pub fn of(node: usize) -> Self {
        Slot { node, ran: BTreeSet::new(), running: None, number: 0, free_since: Nanos(0) }
    }

    /// Its node.
    pub fn node(&self) -> usize {
        self.node
    }

    /// Its node is gone. Returns the job, number, begin and preferred node of its task. A new
    /// virtual machine will have to compile again.
    pub fn dies(&mut self, now: Nanos) -> Option<(usize, u32, Nanos, Option<usize>)> {
        self.ran.clear();
        self.free_since = now;
        self.number += 1;
        let Running { job, task, since, preferred_node, .. } = self.running.take()?;
        Some((job, task, since, preferred_node))
    }
}

impl Input {
    fn of(setup: &Setup, job: usize, (file, offset, len): (u32, u64, u64), on: Option<usize>) -> Self {
        if on.is_some() || setup.reads_past_tier() {
            let reader = Reader::new((job, file), (offset, offset + len), setup.read_ahead_bytes);
            return Input::Past(reader.on(on));
        }
        let mut config = ReadaheadConfig::for_page(setup.page_bytes as u32);
        config.first_window_bytes = config.first_window_bytes.max(FIRST_WINDOW_BYTES);
        config.extent_bytes = setup.extent_bytes;
        let ahead = Readahead::new(config, setup.jobs[job].bytes_of(file));
        Input::Tier { file, at: offset, end: offset + len, ahead }
    }
}

impl Cluster<'_> {
    /// A slot takes the first task that is to run there, or, after a while, any.
    pub fn take_task(&mut self, now: Nanos, slot: usize, queue: &mut impl Agenda<Happening>) {
        let Slot { node, running: None, free_since, .. } = self.slots[slot] else { return };
        if !self.is_up(node) {
            return;
        }
        let (wait_ns, side) = (self.setup.locality_wait_ns, self.side_of(node));
        let first = |of: &dyn Fn(usize, &Pending) -> Option<u32>| {
            let mut jobs = self.jobs.iter().enumerate().filter(|(_, job)| job.side == side);
            jobs.find_map(|(j, job)| Some((j, of(j, &job.pending)?)))
        };
        // A slot waits for tasks of its own node from the moment when there are any.
        let patient_until = |j: usize| free_since.max(self.jobs[j].began) + wait_ns;
        let own = first(&|_, pending| pending.first_of(Some(node)));
        let any = |j: usize, pending: &Pending| match now >= patient_until(j) {
            true => pending.first(),
            false => pending.first_of(None),
        };
        let Some((j, task)) = own.or_else(|| first(&any)) else {
            if let Some((j, _)) = first(&|_, pending| pending.first()) {
                queue.at(patient_until(j), Happening::Looks(slot));
            }
            return;
        };
        let preferred_node = self.jobs[j].pending.start(task);
        let running = self.task(now, slot, (j, task), preferred_node);
        self.slots[slot].number += 1;
        self.slots[slot].running = Some(running);
        let mut updates = vec![JobUpdate::TaskStarted { stage: STAGE, task, host: self.names[node].clone() }];
        let asks = self.setup.tasks_ask() && self.jobs[j].is_reported;
        if asks {
            self.jobs[j].asking.insert(task, slot);
            updates.push(JobUpdate::TaskAsks { stage: STAGE, partition: task });
        }
        self.report_job(now, j, updates, queue);
        if !asks {
            self.begin_to_read(now, slot, queue);
        }
    }

    /// Starts a task of the job's current stage on a slot.
    fn task(
        &mut self,
        now: Nanos,
        slot: usize,
        (j, task): (usize, u32),
        preferred_node: Option<usize>,
    ) -> Running {
        let (node, spec) = (self.slots[slot].node, &self.setup.jobs[j]);
        let on = self.setup.server_of(node);
        let output = self.output(node, j, task);
        let (input, cpu_ns, cpu_bytes) = match spec.reduce.filter(|_| self.jobs[j].is_reducing) {
            Some(reduce) => {
                let parts = self.parts_of_reducer(j, task);
                let reader = Reader::of_parts(&parts, self.setup.read_ahead_bytes).on(on);
                let bytes = reader.bytes();
                (Input::Past(reader), reduce.task_cpu_ns, bytes)
            }
            None => {
                let split = self.jobs[j].splits[task as usize];
                let is_local = match on {
                    Some(server) => self.pfs.server_with_most(j, split).0 == server,
                    None => preferred_node == Some(node),
                };
                self.jobs[j].done.local += u32::from(is_local);
                let is_first = self.slots[slot].ran.insert(j);
                let cpu_ns = spec.first_task_cpu_ns.filter(|_| is_first).unwrap_or(spec.task_cpu_ns);
                (Input::of(self.setup, j, split, on), cpu_ns, spec.split_bytes)
            }
        };
        let times = self.setup.shipping.as_ref().filter(|_| on.is_some()).map_or(1.0, |s| s.cpu_times);
        Running {
            job: j,
            task,
            preferred_node,
            since: now,
            input,
            cpu_ns: (cpu_ns as f64 * times) as u64,
            cpu_bytes,
            computing: None,
            output,
        }
    }

    /// What a task on a host does after computing. A map task of a job with a second stage writes
    /// what it leaves, after it has written and read again what does not fit in memory.
    fn output(&self, host: usize, j: usize, task: u32) -> VecDeque<Output> {
        let (spec, job) = (&self.setup.jobs[j], &self.jobs[j]);
        let due = |bytes: u64| match spec.reduce.filter(|_| job.is_reducing) {
            Some(reduce) => {
                let up_to = |task: u32| u128::from(bytes) * u128::from(task) / u128::from(reduce.tasks);
                (up_to(task + 1) - up_to(task)) as u64
            }
            None => spec.part_of(bytes, job.splits[task as usize]),
        };
        let first = j as u64 + u64::from(task);
        let files = match spec.reduce {
            Some(reduce) if !job.is_reducing => {
                let spilled = spec.spilled_bytes;
                vec![(Kind::Write, spilled), (Kind::Reread, spilled), (Kind::Leave, reduce.bytes)]
            }
            _ => vec![(Kind::Write, spec.output_bytes), (Kind::Send, spec.result_bytes)],
        };
        let files = files.into_iter().filter(|(kind, bytes)| *bytes > 0 || *kind == Kind::Leave);
        let file = |(kind, bytes)| {
            let (place, bytes) = (self.place(host, first), due(bytes));
            Output { kind, place, bytes, sent: 0, there: 0 }
        };
        files.map(file).collect()
    }

    /// A task that has asked may read.
    pub fn may_read(&mut self, now: Nanos, j: usize, task: u32, queue: &mut impl Agenda<Happening>) {
        let Some(slot) = self.jobs[j].asking.remove(&task) else { return };
        let runs = |running: &Running| (running.job, running.task) == (j, task);
        if self.slots[slot].running.as_ref().is_some_and(runs) && self.is_up(self.slots[slot].node) {
            self.begin_to_read(now, slot, queue);
        }
    }

    fn begin_to_read(&mut self, now: Nanos, slot: usize, queue: &mut impl Agenda<Happening>) {
        let nothing = |task: &Running| matches!(&task.input, Input::Past(reader) if reader.is_done());
        if self.slots[slot].running.as_ref().is_some_and(nothing) {
            return self.write_on(now, slot, queue);
        }
        self.read_on(now, slot, queue);
        self.go_on(now, slot, queue);
    }

    /// The task that runs on a slot.
    fn run_on(&self, slot: usize) -> Run {
        Run { slot, number: self.slots[slot].number }
    }

    /// Whether a task still runs.
    pub fn lives(&self, run: Run) -> bool {
        self.run_on(run.slot) == run
    }

    /// The task of a slot has come to the next window or page: requests what comes next.
    fn read_on(&mut self, now: Nanos, slot: usize, queue: &mut impl Agenda<Happening>) {
        let run = self.run_on(slot);
        let Slot { node, running: Some(running), .. } = &mut self.slots[slot] else { return };
        let (node, job, page_bytes) = (*node, running.job, self.setup.page_bytes);
        match &mut running.input {
            Input::Past(reader) => {
                let there_at = reader.request(now, &mut self.pfs);
                there_at.into_iter().for_each(|at| queue.at(at, Happening::WindowCame(run)));
            }
            Input::Tier { file, at, end, ahead } => {
                let (file, page) = (*file, *at / page_bytes);
                let (mut ask, tier) = (Vec::new(), &self.tier);
                let len = ((page + 1) * page_bytes).min(*end) - *at;
                ahead.on_read(*at, len, &mut |page| tier.knows((job, file, page)), &mut ask);
                if !tier.has((job, file, page)) {
                    let waiter = Some(Waiter::Slot(slot));
                    self.want(now, node, (job, file, page), Urgency::Demand, waiter, queue);
                }
                for page in ask.into_iter().flatten() {
                    self.want(now, node, (job, file, page), Urgency::Ahead, None, queue);
                }
            }
        }
    }

    /// A window has come that the task of a slot reads past the tier.
    pub fn window_came(&mut self, now: Nanos, slot: usize, queue: &mut impl Agenda<Happening>) {
        // The next is requested when the first has come.
        self.read_on(now, slot, queue);
        self.go_on(now, slot, queue);
    }

    /// The task of a slot computes what has come, a window or a page at a time.
    pub fn go_on(&mut self, now: Nanos, slot: usize, queue: &mut impl Agenda<Happening>) {
        let run = self.run_on(slot);
        let Some(task) = self.slots[slot].running.as_mut().filter(|task| task.computing.is_none()) else {
            return;
        };
        let page_bytes = self.setup.page_bytes;
        let bytes = match &task.input {
            Input::Past(reader) => reader.there(now),
            Input::Tier { file, at, end, .. } => {
                let page = *at / page_bytes;
                let is_there = self.tier.has((task.job, *file, page));
                is_there.then(|| ((page + 1) * page_bytes).min(*end) - *at)
            }
        };
        let Some(bytes) = bytes else { return };
        if let (Input::Tier { file, at, .. }, Some(rooms)) = (&task.input, &mut self.tier.rooms) {
            rooms.touch((task.job, *file, *at / page_bytes));
        }
        task.computing = Some(bytes);
        let share = bytes as f64 / task.cpu_bytes as f64;
        queue.after((share * task.cpu_ns as f64) as u64, Happening::Computed(run));
    }

    /// The task of a slot has computed what it read.
    pub fn computed(&mut self, now: Nanos, slot: usize, queue: &mut impl Agenda<Happening>) {
        let Some(task) = self.slots[slot].running.as_mut() else { return };
        let Some(bytes) = task.computing.take() else { return };
        let is_done = match &mut task.input {
            Input::Past(reader) => {
                reader.take();
                reader.is_done()
            }
            Input::Tier { at, end, .. } => {
                *at += bytes;
                at == end
            }
        };
        if is_done {
            return self.write_on(now, slot, queue);
        }
        self.read_on(now, slot, queue);
        self.go_on(now, slot, queue);
    }

    /// The task of a slot continues with its output after computing, and ends when all of it is
    /// there. Each task has files of its own.
    fn write_on(&mut self, now: Nanos, slot: usize, queue: &mut impl Agenda<Happening>) {
        let run = self.run_on(slot);
        let on = self.setup.server_of(self.slots[slot].node);
        let Some(task) = self.slots[slot].running.as_mut() else { return };
        let piece_bytes = self.setup.write_bytes;
        while let Some(output) = task.output.front_mut() {
            while output.sent < output.bytes && output.sent - output.there < PIECES_SENT_MAX * piece_bytes {
                let end = (output.sent + piece_bytes).min(output.bytes);
                let (place, range) = (&output.place, (output.sent, end));
                let there_at = match (output.kind, on) {
                    (Kind::Reread, _) => self.pfs.read(now, place, range, on),
                    (Kind::Send, Some(server)) => self.pfs.send(now, server, end - output.sent),
                    (Kind::Send, None) => now,
                    (Kind::Write | Kind::Leave, _) => self.pfs.write(now, place, range, on),
                };
                queue.at(there_at, Happening::Wrote(run));
                output.sent = end;
            }
            if output.there < output.bytes {
                return;
            }
            let left = task.output.pop_front().filter(|output| output.kind == Kind::Leave);
            if let Some(Output { place, bytes, .. }) = left {
                let (j, host) = (task.job, self.slots[slot].node);
                self.map_left(now, j, (host, place, bytes), queue);
                break;
            }
        }
        self.task_ends(now, slot, queue);
    }

    /// Servers have the first piece that the task of a slot has in transit.
    pub fn wrote(&mut self, now: Nanos, slot: usize, queue: &mut impl Agenda<Happening>) {
        let Some(task) = self.slots[slot].running.as_mut() else { return };
        let Some(output) = task.output.front_mut() else { return };
        let there = (output.there + self.setup.write_bytes).min(output.sent);
        if matches!(output.kind, Kind::Write | Kind::Leave) {
            self.output_bytes += there - output.there;
        }
        output.there = there;
        self.write_on(now, slot, queue);
    }

    fn task_ends(&mut self, now: Nanos, slot: usize, queue: &mut impl Agenda<Happening>) {
        let Some(Running { job: j, task, since, .. }) = self.slots[slot].running.take() else { return };
        self.slots[slot].free_since = now;
        let job = &mut self.jobs[j];
        job.left -= 1;
        job.done.tasks += 1;
        job.done.ran.push((slot, since.0, now.0));
        let run_ms = now.saturating_since(since) / 1_000_000;
        let mut updates = vec![JobUpdate::TaskEnded { stage: STAGE, task, ok: true, run_ms }];
        let reduces = self.setup.jobs[j].reduce.map_or(0, |reduce| reduce.tasks);
        if job.left == 0 {
            job.done.map_ns = now.saturating_since(job.began);
            self.next_jobs_start(now, j, queue);
        }
        let job = &self.jobs[j];
        let ends_here = job.left == if job.is_reducing { 0 } else { reduces };
        updates.extend(ends_here.then_some(JobUpdate::End));
        self.report_job(now, j, updates, queue);
        self.notify_ship(now, j);
        if ends_here {
            self.jobs[j].is_reported = false;
            self.reduce_if_all_is_there(now, j, queue);
        }
        self.take_task(now, slot, queue);
    }

    /// Schedules the jobs that waited for the end of this one.
    fn next_jobs_start(&self, now: Nanos, j: usize, queue: &mut impl Agenda<Happening>) {
        let next = self.setup.jobs.iter().enumerate().filter(|(_, spec)| spec.after == Some(j));
        next.for_each(|(next, spec)| queue.at(now + spec.starts_ns, Happening::JobStarts(next)));
    }
}
