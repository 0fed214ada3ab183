//! The node machine: what one node fetches from its file systems, and when.
//!
//! Readers' pages, read-ahead, prefetch requests, pages that peers want, loads and refills compete
//! for the fetch threads of each mount. Their order, pace, pauses and the brake for the I/O phases
//! of HPC jobs are the state of this machine; so is the drain of dirty files ([`crate::drain`]),
//! which it notifies of phases and pauses. An agent drives it with threads and descriptors, the
//! simulator with virtual time, and `forebay replay` from the log of either.
//!
//! | file | what it decides |
//! | --- | --- |
//! | `event` | nothing: the events and the actions |
//! | `admission` | which request, load or peer may read next, and when |
//! | `task_queue` | which task a thread starts next |
//! | `brake` | whether fetches that no reader waits for stop |
//! | `chunk` | how much is read at a time |

mod admission;
mod brake;
pub mod chunk;
pub mod event;
pub mod task_queue;

#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use admission::{Offer, Reads};
use brake::Brake;
pub use event::{Action, By, Config, Event, LoadId, MountId, ReadId, TaskId};
pub use task_queue::{Held, Pages, Queue};

use crate::drain::{self, Drain, FileId, Outlook};
use crate::machine::{Machine, Nanos};
use crate::stage::event::{Progress, RequestId};

/// See the module.
#[derive(Debug)]
pub struct Node {
    reads: Reads,
    mounts: Vec<Mount>,
    brake: Brake,
    drain: Drain,
    /// See [`Event::Phases`].
    own_phases: Option<u32>,
    /// As last decided.
    held: Held,
    gentle: bool,
    /// The time of the last event.
    now: Nanos,
}

#[derive(Debug, Default)]
struct Mount {
    queue: Queue<TaskId>,
    idle: BTreeSet<usize>,
}

impl Node {
    /// Creates a machine without work and without threads.
    pub fn new(config: &Config) -> Self {
        Node {
            reads: Reads::new(config),
            mounts: config.fetch_threads.iter().map(|_| Mount::default()).collect(),
            brake: Brake::default(),
            drain: Drain::new(config.drain),
            own_phases: None,
            held: Held::Nothing,
            gentle: false,
            now: Nanos(0),
        }
    }

    /// Returns the progress of a request; `None` if it was released.
    pub fn progress(&self, request: RequestId) -> Option<Progress> {
        self.reads.progress(request)
    }

    /// Returns whether a request or load exists; a peer always does.
    pub fn knows(&self, by: By) -> bool {
        self.reads.knows(by)
    }

    /// Returns the threads that wait for a task, by mount.
    pub fn idle_threads(&self) -> Vec<(MountId, usize)> {
        let of = |(mount, state): (MountId, &Mount)| {
            state.idle.iter().map(move |thread| (mount, *thread)).collect::<Vec<_>>()
        };
        self.mounts.iter().enumerate().flat_map(of).collect()
    }

    /// Returns the number of tasks of a mount that wait or run, and for how long the oldest running
    /// one has run, in ns.
    pub fn load(&self, now: Nanos, mount: MountId) -> (u64, u64) {
        self.mounts[mount].queue.load(now)
    }

    /// Returns whether a fresh machine would decide the same from now on.
    pub fn is_as_new(&self, now: Nanos) -> bool {
        let is_resting = |mount: &Mount| mount.queue.is_empty() && mount.queue.is_resting();
        let is_off = self.brake.is_off(now) && !self.gentle && self.held == Held::Nothing;
        is_off && self.reads.is_idle() && self.drain.is_idle() && self.mounts.iter().all(is_resting)
    }

    /// Removes and returns all waiting tasks. Called at the end of an agent.
    pub fn take_all(&mut self) -> Vec<TaskId> {
        self.mounts.iter_mut().flat_map(|mount| mount.queue.take_all()).collect()
    }

    /// Returns the outlook of each dirty file.
    pub fn dirty_files(&self) -> BTreeMap<FileId, Outlook> {
        self.drain.outlooks()
    }

    /// Returns whether a pass over this dirty file is under way.
    pub fn is_passing(&self, file: FileId) -> bool {
        self.drain.is_passing(file)
    }

    /// Returns whether dirty files wait: for phases from their beginning on, since writes would
    /// make them late before they are behind.
    fn holds_drain(&self) -> bool {
        self.brake.on || self.brake.has_phases() || self.reads.all_pause()
    }

    fn handle_drain(&mut self, now: Nanos, event: drain::Event, out: &mut Vec<Action>) {
        let mut actions = Vec::new();
        self.drain.handle(now, event, &mut actions);
        out.extend(actions.into_iter().map(|action| Action::Drain { action }));
    }

    /// Gives idle threads the tasks that they may start.
    fn assign(&mut self, mount: MountId, out: &mut Vec<Action>) {
        let Mount { queue, idle } = &mut self.mounts[mount];
        while let Some(thread) = idle.first().copied() {
            let Some(task) = queue.begin(self.now, thread) else { return };
            idle.remove(&thread);
            out.push(Action::Read { mount, thread, task });
        }
    }

    fn assign_all(&mut self, out: &mut Vec<Action>) {
        (0..self.mounts.len()).for_each(|mount| self.assign(mount, out));
    }

    /// Decides again after a change to anything but a task.
    fn decide(&mut self, now: Nanos, out: &mut Vec<Action>) {
        self.reads.dispatch(now, &self.brake, out);
        self.brake.requests_pause = self.reads.do_requests_pause();
        let held = self.brake.held();
        if held != self.held {
            self.held = held;
            out.push(Action::Hold { held });
            self.mounts.iter_mut().for_each(|mount| mount.queue.hold(held));
            self.assign_all(out);
            // What was stopped may continue.
            self.reads.dispatch(now, &self.brake, out);
        }
        let gentle = self.brake.is_gentle(now);
        if gentle != self.gentle {
            self.gentle = gentle;
            out.push(Action::Gentle { on: gentle });
        }
    }
}

impl Machine for Node {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Nanos, event: Event, out: &mut Vec<Action>) {
        self.now = now;
        match event {
            Event::Queue { task, mount, urgency, pages } => {
                if self.mounts[mount].queue.push(pages, urgency, task).is_err() {
                    return out.push(Action::Refuse { task });
                }
                return self.assign(mount, out);
            }
            Event::Idle { mount, thread } => {
                self.mounts[mount].queue.rest(thread);
                self.mounts[mount].idle.insert(thread);
                return self.assign(mount, out);
            }
            Event::PagesRead { mount, thread } => {
                self.mounts[mount].queue.let_next_begin(thread);
                return self.assign(mount, out);
            }
            Event::Request { request, threads, rate_bytes_per_s, priority } => {
                self.reads.begin(now, request, threads, rate_bytes_per_s, priority);
            }
            Event::Adjust { request, threads, rate_bytes_per_s } => {
                self.reads.adjust(now, request, threads, rate_bytes_per_s);
            }
            Event::Pause { on } => self.reads.pause_all(on),
            Event::Release { requests } => self.reads.release(&requests),
            Event::LoadBegins { load, rate_bytes_per_s } => {
                self.reads.load_begins(now, load, rate_bytes_per_s);
            }
            Event::LoadEnds { load } => self.reads.load_ends(load),
            Event::Offer { read, by, mount, bytes, is_short } => {
                self.reads.offer(by, Offer { read, mount, bytes, is_short });
            }
            Event::Withdraw { read } => self.reads.withdraw(read),
            Event::ReadEnded { read, resident_bytes, fetched_bytes, failed_bytes } => {
                self.reads.ended(read, [resident_bytes, fetched_bytes, failed_bytes], out);
            }
            Event::Settled { request, resident_bytes, failed_bytes } => {
                self.reads.settled(request, [resident_bytes, 0, failed_bytes]);
            }
            Event::Fed { request } => self.reads.fed(request, out),
            Event::Brake { on } => self.brake.on = on,
            Event::Phases { under_way, own } => {
                self.brake.set_phases(now, under_way);
                self.own_phases = own;
            }
            Event::Drain { event } => return self.handle_drain(now, event, out),
            Event::Silence { on } => self.brake.is_coordinator_silent = on,
        }
        self.decide(now, out);
        let hold = drain::Event::Hold { on: self.holds_drain(), own: self.own_phases };
        if self.drain.hold() != hold {
            self.handle_drain(now, hold, out);
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let gentle = self.brake.gentle_until().filter(|_| self.gentle);
        let queues = self.mounts.iter().filter_map(|mount| mount.queue.next_deadline());
        queues.chain(self.reads.next_deadline()).chain(gentle).chain(self.drain.next_deadline()).min()
    }

    fn on_deadline(&mut self, now: Nanos, out: &mut Vec<Action>) {
        self.now = now;
        self.mounts.iter_mut().for_each(|mount| mount.queue.look(now));
        self.assign_all(out);
        self.reads.look(now);
        self.decide(now, out);
        if self.drain.next_deadline().is_some_and(|at| at <= now) {
            let mut actions = Vec::new();
            self.drain.on_deadline(now, &mut actions);
            out.extend(actions.into_iter().map(|action| Action::Drain { action }));
        }
    }
}
