//! What the rest of the agent says to the coordinator: put into the outbox while there is a
//! connection, and said anew when there is one again.

use crate::jobs::book::{Bounds, JobBook};
use crate::lock::lock;
use crate::stop::Wake;
use forebay_store::Reservation;
use forebay_wire::cluster::ToCoordinator;
use forebay_wire::{JobStatus, JobUpdate, Refusal};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What other threads use of the connection.
#[derive(Debug)]
pub struct Link {
    state: Mutex<State>,
    wake: Arc<Wake>,
}

#[derive(Debug, Default)]
struct State {
    /// There is a connection; what is put into the outbox will be sent.
    live: bool,
    outbox: VecDeque<Said>,
    /// Who waits for the answer to a question.
    asking: BTreeMap<u64, Sender<Vec<JobStatus>>>,
    next_ask: u64,
    /// The jobs of local clients.
    jobs: JobBook,
}

/// A message that waits to be sent. What a local program has made it hold is counted: a coordinator
/// that reads slowly must not cost this agent more memory than its users may take.
#[derive(Debug)]
struct Said {
    message: ToCoordinator,
    /// Whose, and its memory.
    room: Option<(u32, Reservation)>,
}

impl From<ToCoordinator> for Said {
    fn from(message: ToCoordinator) -> Self {
        Said { message, room: None }
    }
}

impl State {
    /// The message leaves the outbox.
    fn release(&mut self, said: Said) -> ToCoordinator {
        if let Some((uid, room)) = said.room {
            self.jobs.unqueue(uid, room.bytes());
        }
        said.message
    }
}

impl Link {
    /// No connection yet. What is to be sent calls `wake`.
    pub fn new(wake: Arc<Wake>) -> Self {
        Link { state: Mutex::default(), wake }
    }

    /// The jobs that the coordinator knows.
    ///
    /// # Errors
    /// There is no coordinator now, or it does not answer within `limit`.
    pub fn ask_jobs(&self, limit: Duration) -> io::Result<Vec<JobStatus>> {
        let (answer, answered) = channel();
        let ask = {
            let mut state = lock(&self.state);
            if !state.live {
                return Err(io::Error::new(io::ErrorKind::NotConnected, "the coordinator does not answer"));
            }
            let ask = state.next_ask;
            state.next_ask += 1;
            state.asking.insert(ask, answer);
            state.outbox.push_back(ToCoordinator::AskJobs { ask }.into());
            ask
        };
        self.wake.call();
        let jobs = answered.recv_timeout(limit);
        lock(&self.state).asking.remove(&ask);
        jobs.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the coordinator has not answered in time"))
    }

    /// Whether a local client's job may tell so much.
    ///
    /// # Errors
    /// As [`JobBook::may_tell`].
    pub fn may_tell_job(&self, job: u64, updates: &[JobUpdate], bounds: Bounds) -> Result<(), Refusal> {
        lock(&self.state).jobs.may_tell(job, updates, bounds)
    }

    /// A local client's job tells something: it is kept, and sent on if there is a coordinator.
    ///
    /// # Errors
    /// As [`JobBook::tell`].
    pub fn tell_job(
        &self,
        job: u64,
        updates: Vec<JobUpdate>,
        bounds: Bounds,
        room: Reservation,
    ) -> Result<(), Refusal> {
        let mut state = lock(&self.state);
        let room = state.jobs.tell(job, &updates, bounds, room)?;
        if state.live {
            state.jobs.queue(bounds.uid(), room.bytes());
            let message = ToCoordinator::Job { job, updates };
            state.outbox.push_back(Said { message, room: Some((bounds.uid(), room)) });
            drop(state);
            self.wake.call();
        }
        Ok(())
    }

    /// A local client's job has ended, be it that its program has died.
    pub fn end_job(&self, job: u64) {
        let mut state = lock(&self.state);
        if state.jobs.end(job) && state.live {
            state.outbox.push_back(ToCoordinator::Job { job, updates: vec![JobUpdate::End] }.into());
            drop(state);
            self.wake.call();
        }
    }

    /// From now on what is said is sent; first of all what local jobs have told so far.
    pub(super) fn begin(&self) {
        let mut state = lock(&self.state);
        let again = state.jobs.tell_again();
        state.outbox.extend(again.into_iter().map(Said::from));
        state.live = true;
    }

    /// From now on nothing can be said. Whoever has asked hears at once that there will be no
    /// answer.
    pub(super) fn end(&self) {
        let mut state = lock(&self.state);
        state.live = false;
        while let Some(said) = state.outbox.pop_front() {
            state.release(said);
        }
        state.asking.clear();
    }

    pub(super) fn next_said(&self) -> Option<ToCoordinator> {
        let mut state = lock(&self.state);
        let said = state.outbox.pop_front()?;
        Some(state.release(said))
    }

    pub(super) fn answer(&self, ask: u64, jobs: Vec<JobStatus>) {
        if let Some(asker) = lock(&self.state).asking.remove(&ask) {
            // It may have stopped waiting.
            let _ = asker.send(jobs);
        }
    }
}
