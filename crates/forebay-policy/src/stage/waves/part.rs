//! What one node fetches for one wave, and the requests into which this is split.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::stage::event::{Progress, QueueId, RequestId};
use crate::stage::nodes::NodeNumber;
use crate::stage::partition::Need;
use crate::stage::server_queues::Chunk;
use crate::stage::waves::Pace;

/// The parts of a wave, by node in the order of their names.
#[derive(Debug, Default)]
pub(super) struct Parts(Vec<(Arc<str>, NodePart)>);

impl Parts {
    /// Returns the place of a node's part. It stays there: a wave never loses a part.
    fn place(&self, node: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(name, _)| (**name).cmp(node))
    }

    /// Returns the part of a node, created if there is none.
    pub fn of(&mut self, name: Arc<str>, node: NodeNumber) -> &mut NodePart {
        let place = self.place(&name).unwrap_or_else(|place| {
            self.0.insert(place, (name, NodePart { node, ..NodePart::default() }));
            place
        });
        &mut self.0[place].1
    }

    pub fn get(&self, node: &str) -> Option<&NodePart> {
        self.place(node).ok().map(|place| &self.0[place].1)
    }

    pub fn get_mut(&mut self, node: &str) -> Option<&mut NodePart> {
        self.place(node).ok().map(|place| &mut self.0[place].1)
    }

    /// Returns the part in this place.
    pub fn at(&self, place: usize) -> Option<&NodePart> {
        self.0.get(place).map(|(_, part)| part)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &NodePart)> {
        self.0.iter().map(|(name, part)| (name, part))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&Arc<str>, &mut NodePart)> {
        self.0.iter_mut().map(|(name, part)| (&*name, part))
    }

    pub fn values(&self) -> impl Iterator<Item = &NodePart> {
        self.0.iter().map(|(_, part)| part)
    }

    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut NodePart> {
        self.0.iter_mut().map(|(_, part)| part)
    }
}

/// What one node fetches for a wave.
#[derive(Debug, Default)]
pub(super) struct NodePart {
    pub node: NodeNumber,
    pub needs: BTreeMap<u32, Need>,
    /// The bytes of all needs.
    pub bytes: u64,
    pub state: State,
    /// Number of tasks that have not started.
    pub unstarted: usize,
    /// Bytes that the node was requested to hold, and what became of them.
    pub asked_bytes: u64,
    pub fetched_bytes: u64,
    pub resident_bytes: u64,
    pub failed_bytes: u64,
    /// Bytes that were never requested from the node: no room, or read by their tasks already.
    pub given_up_bytes: u64,
    /// Its chunks, and how many have not ended.
    pub chunks: Vec<Asked>,
    pub left: usize,
    /// The numbers of the chunks that are under way at the node.
    pub active: BTreeSet<usize>,
}

/// Progress of a part, or of a chunk of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing has been requested yet.
    #[default]
    Waiting,
    /// It was requested from the node.
    Active,
    /// No more of it will be fetched.
    Ended,
}

/// A chunk and what has become of it.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub chunk: Chunk,
    pub state: State,
    /// Its request; its pages are kept for the wave until that is released.
    pub request: Option<RequestId>,
    /// The pace that the node has for it: pages at a time, bytes per second.
    pub pace: Pace,
    progress: Progress,
}

impl NodePart {
    /// Forgets the need of a task that has moved to another wave.
    pub fn forget_need(&mut self, task: u32) {
        self.bytes -= self.needs.remove(&task).map_or(0, |need| need.bytes);
    }

    /// Removes and returns all requests that keep bytes for it.
    pub fn take_requests(&mut self) -> impl Iterator<Item = RequestId> + '_ {
        self.chunks.iter_mut().filter_map(|chunk| chunk.request.take())
    }

    /// Ends it early; what has not been fetched is given up. Returns the requests to release.
    pub fn withdraw(&mut self) -> Vec<RequestId> {
        if self.state == State::Ended {
            return Vec::new();
        }
        let came = self.fetched_bytes + self.resident_bytes + self.failed_bytes;
        self.given_up_bytes = self.bytes.saturating_sub(came);
        self.asked_bytes = came;
        self.state = State::Ended;
        let requests = self.take_requests().collect();
        self.forget_chunks();
        requests
    }

    /// Removes all its chunks.
    pub fn forget_chunks(&mut self) {
        (self.chunks, self.left, self.active) = (Vec::new(), 0, BTreeSet::new());
    }

    /// Restarts it after the node has forgotten its requests: `waits` is whether a task still waits
    /// for them.
    pub fn restart(&mut self, waits: bool) {
        let state = if waits { State::Waiting } else { State::Ended };
        let (node, bytes, unstarted) = (self.node, self.bytes, self.unstarted);
        let needs = core::mem::take(&mut self.needs);
        *self = NodePart { node, needs, bytes, unstarted, state, ..NodePart::default() };
    }

    pub fn split(&mut self, chunks: Vec<Chunk>) {
        self.left = chunks.len();
        self.chunks = chunks.into_iter().map(|chunk| Asked { chunk, ..Asked::default() }).collect();
        if self.left == 0 {
            self.state = State::Ended;
        }
    }

    /// Notes the request of a chunk from the node.
    pub fn ask(&mut self, number: usize, request: RequestId, pace: Pace) {
        let Some(asked) = self.chunks.get_mut(number) else { return };
        assert!(
            asked.state == State::Waiting && asked.request.is_none(),
            "chunk {number} is requested twice: as {:?} and {request}",
            asked.request
        );
        (asked.state, asked.request, asked.pace) = (State::Active, Some(request), pace);
        self.state = State::Active;
        self.active.insert(number);
        self.asked_bytes += asked.chunk.bytes;
    }

    /// Gives up a chunk that waits in `queue`.
    pub fn give_up(&mut self, queue: QueueId, number: usize) {
        let waits = |asked: &&Asked| asked.state == State::Waiting && asked.chunk.queue == queue;
        let Some(asked) = self.chunks.get(number).filter(waits) else { return };
        self.given_up_bytes += asked.chunk.bytes;
        self.end(number);
    }

    /// Forgets tasks that have moved to another wave: chunks that wait for them wait there.
    pub fn forget_tasks(&mut self, tasks: &BTreeSet<u32>) {
        for number in 0..self.chunks.len() {
            let asked = &self.chunks[number];
            if asked.state == State::Waiting && tasks.contains(&asked.chunk.task) {
                self.end(number);
            }
        }
    }

    /// Records the progress of a request; returns the bytes fetched since the last time.
    pub fn progress(&mut self, number: usize, request: RequestId, progress: &Progress) -> u64 {
        let Some(asked) = self.chunks.get_mut(number).filter(|p| p.request == Some(request)) else {
            return 0;
        };
        let take = |sum: &mut u64, known: &mut u64, now: u64| {
            let more = now.saturating_sub(*known);
            (*sum, *known) = (*sum + more, *known + more);
            more
        };
        let known = &mut asked.progress;
        let fetched = take(&mut self.fetched_bytes, &mut known.fetched_bytes, progress.fetched_bytes);
        take(&mut self.resident_bytes, &mut known.resident_bytes, progress.resident_bytes);
        take(&mut self.failed_bytes, &mut known.failed_bytes, progress.failed_bytes);
        if progress.done {
            self.end(number);
        }
        fetched
    }

    fn end(&mut self, number: usize) {
        let Some(asked) = self.chunks.get_mut(number).filter(|p| p.state != State::Ended) else { return };
        asked.state = State::Ended;
        self.active.remove(&number);
        assert!(self.left > self.active.len(), "chunk {number} ends, and {} were left", self.left);
        self.left -= 1;
        if self.left == 0 {
            self.state = State::Ended;
        }
    }
}
