//! The run: transfers, computing, and the queue's machine between them.

use std::collections::BTreeMap;

use forebay_policy::batch_queue::{Action, Event as QueueEvent, Placement, Queue};
use forebay_policy::machine::Nanos;

use super::{JobSpec, Outcome, Ran, Setup};
use crate::driver::{Driver, Record};
use crate::error::Result;
use crate::event_loop::{self, Limits, World};
use crate::maxmin::{FlowId, FlowSpec, MaxMin};
use crate::queue::EventQueue;
use crate::trace::Trace;

/// The PFS among the resources; burst buffers follow.
const PFS: usize = 0;

enum Event {
    Submits(usize),
    /// A phase of computing is over.
    Computed(usize),
    /// The estimate is over. What ends at the same moment still ends first.
    Late(usize),
    /// The job is killed if it still has its nodes.
    Kill(usize),
    /// The machine's deadline has come.
    Wake,
}

/// What a job waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Queue,
    StageIn,
    Ready,
    Compute,
    Checkpoint,
    StageOut,
    Over,
}

struct Job {
    at: At,
    shares: Placement,
    phases_left: u32,
    phase_ns: u64,
    /// Number of transfers that it waits for, and of transfers of checkpoints to the PFS.
    moves: u32,
    drains: u32,
    begin: Nanos,
    run: Nanos,
    ran: Nanos,
    end: Nanos,
    killed: bool,
}

struct Batch<'a> {
    setup: &'a Setup,
    driver: Driver<Queue>,
    record: Record<'a>,
    network: MaxMin,
    jobs: Vec<Job>,
    /// Job of each transfer, and whether it drains a checkpoint.
    flows: BTreeMap<FlowId, (usize, bool)>,
    next_flow: FlowId,
}

/// Runs the setup until the last job ends.
///
/// # Errors
/// If no policy has this name, it does not come to an end, or the caller has cancelled it.
pub fn simulate(setup: &Setup, trace: &mut Trace) -> Result<Outcome> {
    let mut network = MaxMin::new();
    network.add_resource(setup.pfs_bytes_per_s);
    for _ in 0..setup.buffers {
        network.add_resource(setup.buffer_bytes_per_s);
    }
    let mut queue = EventQueue::new();
    setup.jobs.iter().enumerate().for_each(|(i, job)| queue.at(Nanos(job.submit_ns), Event::Submits(i)));
    let machine = Queue::new(setup.config())?;
    let mut world = Batch {
        setup,
        driver: Driver::new(super::KIND, machine),
        record: Record::new(trace),
        network,
        jobs: setup.jobs.iter().map(|spec| Job::new(setup, spec)).collect(),
        flows: BTreeMap::new(),
        next_flow: 0,
    };
    let stats = event_loop::run(&mut world, &mut queue, Limits::of(None))?;
    let ran = setup.jobs.iter().zip(&world.jobs).map(|(spec, job)| job.ran(spec)).collect();
    Ok(Outcome::of(setup, ran, stats.events))
}

impl Job {
    fn new(setup: &Setup, spec: &JobSpec) -> Self {
        let phases = setup.checkpoints.map_or(1, |checkpoints| {
            let phases = (spec.run_ns as f64 / checkpoints.every_ns as f64).round();
            phases.clamp(1.0, checkpoints.phases_max.into()) as u32
        });
        Job {
            at: At::Queue,
            shares: Placement::new(),
            phases_left: phases,
            phase_ns: spec.run_ns / u64::from(phases),
            moves: 0,
            drains: 0,
            begin: Nanos(0),
            run: Nanos(0),
            ran: Nanos(0),
            end: Nanos(0),
            killed: false,
        }
    }

    fn ran(&self, spec: &JobSpec) -> Ran {
        Ran {
            name: spec.name.clone(),
            nodes: spec.nodes,
            bytes: spec.bytes_per_node * u64::from(spec.nodes),
            submit_s: Nanos(spec.submit_ns).as_secs_f64(),
            begin_s: self.begin.as_secs_f64(),
            run_s: self.run.as_secs_f64(),
            ran_s: self.ran.as_secs_f64(),
            end_s: self.end.as_secs_f64(),
            killed: self.killed,
        }
    }
}

impl Batch<'_> {
    fn notify(&mut self, now: Nanos, event: QueueEvent, queue: &mut EventQueue<Event>) {
        let actions = self.driver.handle(now, event, &self.record);
        self.act(now, actions, queue);
    }

    fn act(&mut self, now: Nanos, actions: Vec<Action>, queue: &mut EventQueue<Event>) {
        self.driver.arm(queue, Event::Wake);
        for action in actions {
            match action {
                Action::Begin { job, shares } => {
                    let job = job as usize;
                    (self.jobs[job].begin, self.jobs[job].shares) = (now, shares);
                    self.stage_in(now, job);
                }
                Action::Run { job } => self.run(now, job as usize, queue),
            }
        }
    }

    /// Moves `bytes` for each share of the job, over the PFS or not.
    fn transfer(&mut self, now: Nanos, job: usize, bytes: f64, over_pfs: bool, drains: bool) {
        if bytes <= 0.0 {
            return;
        }
        for (buffer, shares) in self.jobs[job].shares.clone() {
            let id = self.next_flow;
            self.next_flow += 1;
            self.flows.insert(id, (job, drains));
            let of_buffer = PFS + 1 + buffer as usize;
            let path = if over_pfs { vec![PFS, of_buffer] } else { vec![of_buffer] };
            let weight = f64::from(shares);
            let spec = FlowSpec { path, bytes: bytes * weight, weight, cap_bytes_per_s: f64::INFINITY };
            self.network.start(now, id, spec);
            let job = &mut self.jobs[job];
            *(if drains { &mut job.drains } else { &mut job.moves }) += 1;
        }
    }

    fn stage_in(&mut self, now: Nanos, job: usize) {
        self.jobs[job].at = At::StageIn;
        self.transfer(now, job, self.setup.jobs[job].stage_in_bytes as f64, true, false);
    }

    /// The job has its nodes.
    fn run(&mut self, now: Nanos, job: usize, queue: &mut EventQueue<Event>) {
        self.jobs[job].run = now;
        queue.at(now + self.setup.jobs[job].estimate_ns, Event::Late(job));
        if self.jobs[job].moves == 0 {
            self.compute(job, queue);
        }
    }

    fn compute(&mut self, job: usize, queue: &mut EventQueue<Event>) {
        let state = &mut self.jobs[job];
        state.at = At::Compute;
        state.phases_left -= 1;
        queue.after(state.phase_ns, Event::Computed(job));
    }

    /// A phase, or the transfers that the job has waited for, are over.
    fn advance(&mut self, now: Nanos, job: usize, queue: &mut EventQueue<Event>) {
        let spec = &self.setup.jobs[job];
        match self.jobs[job].at {
            At::StageIn if self.setup.holds_nodes => self.compute(job, queue),
            At::StageIn => {
                self.jobs[job].at = At::Ready;
                self.notify(now, QueueEvent::StagedIn { job: job as u64 }, queue);
            }
            At::Compute if self.jobs[job].phases_left > 0 => {
                self.jobs[job].at = At::Checkpoint;
                self.transfer(now, job, self.checkpoint_bytes(spec), false, false);
                if self.jobs[job].moves == 0 {
                    self.compute(job, queue);
                }
            }
            At::Compute => {
                self.jobs[job].at = At::StageOut;
                self.transfer(now, job, spec.stage_out_bytes as f64, true, false);
                // A job with nothing left to move releases nodes and room at the same time.
                if !self.setup.holds_nodes && self.jobs[job].moves + self.jobs[job].drains > 0 {
                    self.release_nodes(now, job, queue);
                }
                self.end_if_done(now, job, queue);
            }
            At::Checkpoint => {
                self.transfer(now, job, self.checkpoint_bytes(spec), true, true);
                self.compute(job, queue);
            }
            At::StageOut => self.end_if_done(now, job, queue),
            At::Queue | At::Ready | At::Over => {}
        }
    }

    fn checkpoint_bytes(&self, spec: &JobSpec) -> f64 {
        self.setup.checkpoints.map_or(0.0, |checkpoints| checkpoints.part * spec.bytes_per_node as f64)
    }

    fn release_nodes(&mut self, now: Nanos, job: usize, queue: &mut EventQueue<Event>) {
        self.jobs[job].ran = now;
        self.notify(now, QueueEvent::Ran { job: job as u64 }, queue);
    }

    fn end_if_done(&mut self, now: Nanos, job: usize, queue: &mut EventQueue<Event>) {
        let state = &self.jobs[job];
        if state.at == At::StageOut && state.moves + state.drains == 0 {
            self.end(now, job, queue);
        }
    }

    /// Releases what the job holds. Nodes and room become free at the same time if it holds both.
    fn end(&mut self, now: Nanos, job: usize, queue: &mut EventQueue<Event>) {
        let state = &mut self.jobs[job];
        state.end = now;
        state.at = At::Over;
        if state.ran <= state.run || self.setup.holds_nodes || state.killed {
            state.ran = now;
        }
        self.notify(now, QueueEvent::Ends { job: job as u64 }, queue);
    }

    fn kill(&mut self, now: Nanos, job: usize, queue: &mut EventQueue<Event>) {
        self.jobs[job].killed = true;
        let flows: Vec<FlowId> =
            self.flows.iter().filter(|(_, flow)| flow.0 == job).map(|(id, _)| *id).collect();
        for id in flows {
            self.flows.remove(&id);
            self.network.abort(now, id);
        }
        self.end(now, job, queue);
    }
}

impl World for Batch<'_> {
    type Event = Event;

    fn on_event(&mut self, now: Nanos, event: Event, queue: &mut EventQueue<Event>) {
        match event {
            Event::Submits(job) => {
                let demand = self.setup.demand(&self.setup.jobs[job]);
                self.notify(now, QueueEvent::Submits { job: job as u64, demand }, queue);
            }
            Event::Computed(job) if self.jobs[job].at == At::Compute => self.advance(now, job, queue),
            Event::Late(job) => queue.after(0, Event::Kill(job)),
            Event::Kill(job) => {
                let at = self.jobs[job].at;
                let has_nodes = at != At::Over && (at != At::StageOut || self.setup.holds_nodes);
                if has_nodes {
                    self.kill(now, job, queue);
                }
            }
            Event::Computed(_) => {}
            Event::Wake => {
                let actions = self.driver.wake(now, &self.record);
                self.act(now, actions, queue);
            }
        }
    }

    fn next_completion(&self) -> Option<Nanos> {
        self.network.next_end()
    }

    fn on_completion(&mut self, now: Nanos, queue: &mut EventQueue<Event>) {
        let Some((_, id)) = self.network.pop_end() else { return };
        let Some((job, drains)) = self.flows.remove(&id) else { return };
        let state = &mut self.jobs[job];
        if drains {
            state.drains -= 1;
            self.end_if_done(now, job, queue);
        } else {
            state.moves -= 1;
            if state.moves == 0 {
                self.advance(now, job, queue);
            }
        }
    }
}
