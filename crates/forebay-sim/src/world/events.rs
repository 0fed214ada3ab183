//! A run: what happens, and in which part of the world.

use forebay_policy::machine::Nanos;
use serde::Serialize;

use super::hpc::Hpc;
use super::outcome::{Outcome, Unfinished};
use super::{Happening, Setup, Together};
use crate::burst::Burst;
use crate::cluster::Cluster;
use crate::colocate::PhaseOutcome;
use crate::colocate::observer::Observer;
use crate::driver::Record;
use crate::error::Result;
use crate::event_loop::{Limits, RunStats, Stop, World, run};
use crate::memory::Node;
use crate::queue::EventQueue;
use crate::trace::Trace;

/// A note in the trace.
#[derive(Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
enum Note {
    /// A phase is over.
    Phase { late: bool, slowdown: f64 },
}

/// Runs `setup` to the end and records into `trace`.
///
/// # Errors
/// If a policy does not exist, never lets a step in, or the run does not come to an end.
pub fn simulate(setup: &Setup, trace: &mut Trace) -> Result<Outcome> {
    let record = Record::new(trace);
    let mut world = Together::new(setup, &record)?;
    let mut queue = EventQueue::new();
    world.begin(&mut queue);
    let stats = run(&mut world, &mut queue, Limits::of(setup.horizon_ns))?;
    world.finish(stats)
}

impl<'a> Together<'a> {
    fn new(setup: &'a Setup, record: &'a Record<'a>) -> Result<Self> {
        Ok(Together {
            setup,
            record,
            cluster: Cluster::new(&setup.cluster, record),
            buffers: setup.buffers.as_ref().map(|buffers| Burst::new(buffers, record)).transpose()?,
            hpc: (0..setup.hpc.len()).map(|h| Hpc::new(setup, h)).collect(),
            observer: Observer::new(),
            memory: Self::memories(setup)?,
            reported: Vec::new(),
            phase_bytes: 0,
        })
    }

    fn begin(&mut self, queue: &mut EventQueue<Happening>) {
        self.cluster.begin(queue);
        if let Some(buffers) = &mut self.buffers {
            buffers.begin(queue);
        }
        for (h, spec) in self.setup.hpc.iter().enumerate() {
            queue.at(Nanos(spec.starts_ns), Happening::HpcStarts(h));
        }
        self.begin_memory(queue);
        self.begin_faults(queue);
    }

    fn finish(self, stats: RunStats) -> Result<Outcome> {
        let written_bytes = self.cluster.pfs.written_bytes;
        let phases_left = |(spec, hpc): (&crate::colocate::HpcSpec, &Hpc)| {
            u64::from(spec.phases) - hpc.done.phases.len() as u64
        };
        let phases = self.setup.hpc.iter().zip(&self.hpc).map(phases_left).sum();
        let cluster = self.cluster.finish(stats)?;
        let buffers = self.buffers.map(|buffers| buffers.finish(stats)).transpose()?;
        let unfinished = Unfinished {
            tasks: cluster.tasks_left().into(),
            steps: buffers.as_ref().and_then(|b| b.unfinished).map_or(0, |left| left.steps),
            undrained_bytes: buffers.as_ref().map_or(0, |b| b.undrained_bytes),
            phases,
        };
        let is_cut = stats.stop == Stop::Horizon && unfinished != Unfinished::default();
        Ok(Outcome {
            cluster,
            buffers,
            hpc: self.hpc.into_iter().map(|hpc| hpc.done).collect(),
            memory: self.memory.into_iter().map(Node::finish).collect(),
            phase_bytes: self.phase_bytes,
            written_bytes,
            end_ns: stats.end.0,
            events: stats.events,
            unfinished: is_cut.then_some(unfinished),
        })
    }

    pub fn note_phase(&self, now: Nanos, h: usize, phase: &PhaseOutcome) {
        if self.record.is_on() {
            let note = Note::Phase { late: phase.missed(), slowdown: phase.slowdown() };
            self.record.note(now, &format!("hpc/{h}"), &note);
        }
    }
}

impl World for Together<'_> {
    type Event = Happening;

    fn on_event(&mut self, now: Nanos, event: Happening, queue: &mut EventQueue<Happening>) {
        match event {
            Happening::Cluster(event) => self.cluster.on_happening(now, event, queue),
            Happening::Buffers(event) => {
                if let Some(buffers) = &mut self.buffers {
                    buffers.on_happening(now, event, queue);
                }
            }
            Happening::HpcStarts(h) => self.hpc_starts(now, h, queue),
            Happening::PhaseBegins(h) => self.phase_begins(now, h, queue),
            Happening::Piece(h) => self.piece_there(now, h, queue),
            Happening::PhaseReports(h, number) => self.phase_reports(now, h, number, queue),
            Happening::ObserverWakes => {
                let updates = self.observer.wake(now, self.record);
                self.observed(now, updates, queue);
            }
            Happening::MemoryStep => self.memory_steps(now, queue),
            Happening::NodeFails(fault) => self.node_fails(now, fault, queue),
            Happening::NodeReturns(node) => self.node_returns(now, node, queue),
        }
    }

    fn next_completion(&self) -> Option<Nanos> {
        self.buffers.as_ref()?.fabric.next_end()
    }

    /// A burst buffer node has finished something. Only then have nodes read what is to be sent on.
    fn on_completion(&mut self, now: Nanos, queue: &mut EventQueue<Happening>) {
        if let Some(buffers) = &mut self.buffers {
            buffers.node_done(now, queue);
        }
        self.carry(now, queue);
    }
}
