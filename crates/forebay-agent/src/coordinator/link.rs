//! What the rest of the agent says to the coordinator: put into the outbox while there is a
//! connection, and said again when there is a new one.

use crate::lock::lock;
use crate::stop::Wake;
use forebay_wire::cluster::{Answer, DirtyFile, Question, ToAgent, ToCoordinator};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What other threads use of the connection.
#[derive(Debug)]
pub struct Link {
    state: Mutex<State>,
    wake: Arc<Wake>,
    /// A question with a long answer has been answered or given up.
    asked: Condvar,
    /// A connection has begun or ended.
    began: Condvar,
    /// How long a lost connection is waited for, where another coordinator takes over.
    patience: Duration,
}

#[derive(Debug)]
struct State {
    /// There is a connection; what is put into the outbox will be sent.
    live: bool,
    /// How often a connection has begun or ended.
    changes: u64,
    /// When it was lost.
    lost: Option<Instant>,
    outbox: VecDeque<Said>,
    /// The threads that wait for an answer, by number of the question.
    asking: BTreeMap<u64, Sender<ToAgent>>,
    /// One of them has a long answer.
    is_busy: bool,
    next_ask: u64,
}

/// Why a node asks who has a file dirty.
#[derive(Clone, Debug)]
pub enum Asked {
    /// It becomes dirty here if it is nowhere.
    Claims(DirtyFile),
    /// A program here opens it.
    Reads(DirtyFile),
    /// A program here has emptied it.
    Empties(DirtyFile),
}

/// What is released when a message has been sent, or is not sent: a coordinator that reads slowly
/// must not cost this agent more memory than its users may take.
pub type Held = Box<dyn Debug + Send>;

/// A message that waits to be sent.
#[derive(Debug)]
struct Said {
    message: ToCoordinator,
    _held: Option<Held>,
}

impl From<ToCoordinator> for Said {
    fn from(message: ToCoordinator) -> Self {
        Said { message, _held: None }
    }
}

impl Link {
    /// A link without a connection yet. What is to be sent calls `wake`. Questions about dirty
    /// files wait for `patience` after a connection is lost, until there is another one.
    pub fn new(wake: Arc<Wake>, patience: Duration) -> Self {
        let (asking, outbox) = (BTreeMap::new(), VecDeque::new());
        // One that has just started waits as well.
        let lost = (!patience.is_zero()).then(Instant::now);
        let state = State { live: false, changes: 0, lost, outbox, asking, is_busy: false, next_ask: 0 };
        Link { state: Mutex::new(state), wake, asked: Condvar::new(), began: Condvar::new(), patience }
    }

    /// Asks the coordinator. One such question at a time: an answer may have several MiB, and a
    /// coordinator that has more of them to send than its bound closes the connection.
    ///
    /// # Errors
    /// There is no coordinator now, or it does not answer within `limit`.
    pub fn ask(&self, question: Question, limit: Duration) -> io::Result<Answer> {
        let until = Instant::now() + limit;
        let busy = |state: &mut State| state.live && state.is_busy;
        let waited = self.asked.wait_timeout_while(lock(&self.state), limit, busy);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.live && std::mem::replace(&mut state.is_busy, true) {
            return Err(late());
        }
        let question = |ask| ToCoordinator::Ask { ask, question };
        let answer = self.begin_to_ask(state, question).and_then(|asked| self.wait(asked, until));
        lock(&self.state).is_busy = false;
        self.asked.notify_all();
        match answer? {
            ToAgent::Answered { answer, .. } => Ok(answer),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Whether there is a coordinator.
    pub fn is_live(&self) -> bool {
        lock(&self.state).live
    }

    /// The node on which a file is dirty, or nothing; for a claim, also the node, now gone, on
    /// which it was dirty until now.
    ///
    /// # Errors
    /// As [`Link::ask`].
    pub fn ask_dirty(&self, asked: &Asked, limit: Duration) -> io::Result<(String, String)> {
        let question = |ask| match asked.clone() {
            Asked::Claims(file) => ToCoordinator::Dirty { ask, file },
            Asked::Reads(file) => ToCoordinator::AskDirty { ask, file, is_emptied: false },
            Asked::Empties(file) => ToCoordinator::AskDirty { ask, file, is_emptied: true },
        };
        loop {
            let asked = self.begin_to_ask(self.wait_for_coordinator(), question)?;
            match self.wait(asked, Instant::now() + limit) {
                Ok(ToAgent::Holder { node, before, .. }) => return Ok((node, before)),
                Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
                // The connection has ended: the next coordinator is asked, if there is one soon.
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset && !self.patience.is_zero() => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Waits while a coordinator may still take over from one that was lost.
    fn wait_for_coordinator(&self) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        loop {
            let left = state.lost.map_or(Duration::ZERO, |lost| self.patience.saturating_sub(lost.elapsed()));
            if state.live || left.is_zero() {
                return state;
            }
            state = self.began.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn begin_to_ask(
        &self,
        mut state: MutexGuard<'_, State>,
        question: impl FnOnce(u64) -> ToCoordinator,
    ) -> io::Result<(u64, Receiver<ToAgent>)> {
        if !state.live {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the coordinator does not answer"));
        }
        let (answer, answered) = channel();
        let ask = state.next_ask;
        state.next_ask += 1;
        state.asking.insert(ask, answer);
        state.outbox.push_back(question(ask).into());
        drop(state);
        self.wake.call();
        Ok((ask, answered))
    }

    fn wait(&self, (ask, answered): (u64, Receiver<ToAgent>), until: Instant) -> io::Result<ToAgent> {
        let answer = answered.recv_timeout(until.saturating_duration_since(Instant::now()));
        lock(&self.state).asking.remove(&ask);
        answer.map_err(|e| match e {
            RecvTimeoutError::Timeout => late(),
            RecvTimeoutError::Disconnected => {
                io::Error::new(io::ErrorKind::ConnectionReset, "the coordinator has not answered: it is lost")
            }
        })
    }

    /// Sends a message if there is a coordinator.
    pub fn say(&self, message: ToCoordinator, held: Option<Held>) {
        let mut state = lock(&self.state);
        if state.live {
            state.outbox.push_back(Said { message, _held: held });
            drop(state);
            self.wake.call();
        }
    }

    /// Waits until connections have begun or ended more often than `known` times, at most `limit`.
    /// Returns how often.
    pub fn wait_for_change(&self, known: u64, limit: Duration) -> u64 {
        let is_known = |state: &mut State| state.changes == known;
        let waited = self.began.wait_timeout_while(lock(&self.state), limit, is_known);
        waited.unwrap_or_else(PoisonError::into_inner).0.changes
    }

    /// Begins a connection: what is said from now on is sent, after `first`.
    pub(super) fn begin(&self, first: Vec<ToCoordinator>) {
        let mut state = lock(&self.state);
        state.outbox.extend(first.into_iter().map(Said::from));
        (state.live, state.changes) = (true, state.changes + 1);
        self.began.notify_all();
    }

    /// Ends the connection: nothing can be said from now on, and every thread that waits for an
    /// answer hears immediately that there will be none.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.state);
        if std::mem::take(&mut state.live) {
            state.lost = Some(Instant::now());
        }
        state.changes += 1;
        state.outbox.clear();
        state.asking.clear();
        self.began.notify_all();
    }

    pub(super) fn next_said(&self) -> Option<ToCoordinator> {
        lock(&self.state).outbox.pop_front().map(|said| said.message)
    }

    pub(super) fn answer(&self, ask: u64, answer: ToAgent) {
        if let Some(asker) = lock(&self.state).asking.remove(&ask) {
            // It may have stopped waiting.
            let _ = asker.send(answer);
        }
    }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the coordinator has not answered in time")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn who_waits_for_a_change_of_the_connection_sees_each_once() {
        let link = Link::new(Arc::new(Wake::new().unwrap()), Duration::ZERO);
        assert_eq!(link.wait_for_change(0, Duration::ZERO), 0);
        link.begin(Vec::new());
        assert_eq!(link.wait_for_change(0, HOUR), 1);
        assert_eq!(link.wait_for_change(1, Duration::ZERO), 1);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| link.wait_for_change(1, HOUR));
            link.end();
            assert_eq!(waiting.join().unwrap(), 2);
        });
    }
}
