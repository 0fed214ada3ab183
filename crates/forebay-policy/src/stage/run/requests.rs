//! A stage whose input is brought server by server: pieces in the place of a node's whole part of a wave.
//!
//! A node's part of a wave is cut into pieces ([`crate::queues`]) when the wave comes into reach: the planner wants it, or one of the
//! [`REACH`] before it. Each piece is an order of its own. Pieces wait in the order in which they are needed: by wave, and within a
//! wave by how soon their task comes to them. The part is over when all its pieces are.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::{NodePart, PartState, StageRun, Wave};
use crate::stage::event::{Layout, Part, Progress, QueueId, RequestId, WaveId};
use crate::stage::queues::{Piece, pieces};

/// Waves after the planned one that may be begun, if memory allows: enough that every server has something to bring.
const REACH: usize = 6;

/// If so many pieces of a stage wait no more waves are cut; and of one wave no more than make it twice as many.
const WAITING_MAX: usize = 100_000;

/// Where a piece is, in the order in which pieces are needed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Its wave.
    pub wave: WaveId,
    /// Bytes that its task reads before it.
    pub at: u64,
    /// The node that brings it.
    pub node: Arc<str>,
    /// Its number among those of the node and wave.
    pub number: usize,
}

/// Pieces of one node and queue: the wave, what its task reads before it, and its number.
type OfNode = BTreeSet<(WaveId, u64, usize)>;

/// Pieces that wait. Some may be over: whoever comes to them looks.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    queues: BTreeMap<QueueId, BTreeMap<Arc<str>, OfNode>>,
    count: usize,
}

impl Waiting {
    fn insert(&mut self, queue: QueueId, rank: Rank) {
        let of_node = self.queues.entry(queue).or_default().entry(rank.node).or_default();
        self.count += usize::from(of_node.insert((rank.wave, rank.at, rank.number)));
    }

    fn remove(&mut self, queue: QueueId, rank: &Rank) {
        let Some(nodes) = self.queues.get_mut(&queue) else { return };
        let Some(of_node) = nodes.get_mut(&rank.node) else { return };
        self.count -= usize::from(of_node.remove(&(rank.wave, rank.at, rank.number)));
        if of_node.is_empty() {
            nodes.remove(&rank.node);
        }
        if nodes.is_empty() {
            self.queues.remove(&queue);
        }
    }

    /// Forgets those of waves that are none of these.
    fn retain(&mut self, waves: &BTreeSet<WaveId>) {
        for nodes in self.queues.values_mut() {
            for of_node in nodes.values_mut() {
                of_node.retain(|(wave, ..)| waves.contains(wave));
            }
            nodes.retain(|_, of_node| !of_node.is_empty());
        }
        self.queues.retain(|_, nodes| !nodes.is_empty());
        self.count = self.queues.values().flat_map(BTreeMap::values).map(BTreeSet::len).sum();
    }

    /// The first of each node.
    fn heads(&self, queue: QueueId) -> impl Iterator<Item = Rank> + '_ {
        let nodes = self.queues.get(&queue).into_iter().flatten();
        nodes.filter_map(|(node, of_node)| {
            let &(wave, at, number) = of_node.first()?;
            Some(Rank { wave, at, node: node.clone(), number })
        })
    }
}

/// A piece and what has become of it.
#[derive(Debug, Default)]
pub(super) struct OrderedPiece {
    piece: Piece,
    state: PartState,
    /// Its order; its pages are kept for the wave until that is cancelled.
    pub(super) order: Option<u64>,
    fetched_bytes: u64,
    resident_bytes: u64,
    failed_bytes: u64,
}

impl NodePart {
    fn cut(&mut self, pieces: Vec<Piece>) {
        self.pieces_left = pieces.len();
        self.pieces =
            pieces.into_iter().map(|piece| OrderedPiece { piece, ..OrderedPiece::default() }).collect();
        if self.pieces_left == 0 {
            self.state = PartState::Ended;
        }
    }

    fn piece_ended(&mut self, number: usize) {
        let Some(piece) = self.pieces.get_mut(number).filter(|p| p.state != PartState::Ended) else { return };
        piece.state = PartState::Ended;
        self.pieces_left -= 1;
        if self.pieces_left == 0 {
            self.state = PartState::Ended;
        }
    }

    /// Nothing will come of a piece that waits in `queue`.
    fn give_up(&mut self, queue: QueueId, number: usize) {
        let waits = |piece: &&OrderedPiece| piece.state == PartState::Waiting && piece.piece.queue == queue;
        let Some(piece) = self.pieces.get(number).filter(waits) else { return };
        self.given_up_bytes += piece.piece.bytes;
        self.piece_ended(number);
    }

    /// Tasks that have moved to another wave: what waits for them waits there.
    pub(super) fn forget_tasks(&mut self, tasks: &BTreeSet<u32>) {
        for number in 0..self.pieces.len() {
            let piece = &self.pieces[number];
            if piece.state == PartState::Waiting && tasks.contains(&piece.piece.task) {
                self.piece_ended(number);
            }
        }
    }
}

impl StageRun {
    /// Cuts what has come into reach into pieces of `piece_bytes` at most, wave by wave until `budget` pieces are cut or enough wait; `false` if
    /// the budget was not enough.
    pub fn cut_pieces(&mut self, layouts: &[Layout], piece_bytes: u64, budget: &mut usize) -> bool {
        let Some(planned) = self.waves.iter().rposition(Wave::is_planned) else { return true };
        let end = self.waves.len().min(planned + 1 + REACH);
        for wave in self.waves[..end].iter_mut().filter(|wave| !wave.is_cut) {
            if *budget == 0 || self.waiting.count >= WAITING_MAX {
                return *budget > 0;
            }
            wave.is_cut = true;
            for (node, part) in wave.parts.iter_mut() {
                if part.state != PartState::Waiting || part.pieces_left > 0 {
                    continue;
                }
                let left =
                    part.needs.iter().filter(|(task, _)| wave.tasks.get(task).is_some_and(|t| !t.done));
                let (mut cut, mut left_bytes) = (Vec::<Piece>::new(), 0);
                for (task, need) in left {
                    let most = (2 * WAITING_MAX).saturating_sub(self.waiting.count + cut.len());
                    cut.extend(pieces(*task, need, layouts, piece_bytes, most));
                    left_bytes += need.bytes;
                }
                // Of a wave with more of them than enough the rest is read without a plan.
                part.given_up_bytes += left_bytes - cut.iter().map(|piece| piece.bytes).sum::<u64>();
                let name: Arc<str> = node.as_str().into();
                for (number, piece) in cut.iter().enumerate() {
                    let rank = Rank { wave: wave.id, at: piece.at, node: name.clone(), number };
                    self.waiting.insert(piece.queue, rank);
                }
                *budget = budget.saturating_sub(cut.len());
                part.cut(cut);
            }
        }
        true
    }

    /// Queues for which pieces may wait.
    pub fn queues_waiting(&self) -> impl Iterator<Item = QueueId> + '_ {
        self.waiting.queues.keys().copied()
    }

    /// Nodes for which pieces may wait in the queue.
    pub fn nodes_waiting(&self, queue: QueueId) -> usize {
        self.waiting.queues.get(&queue).map_or(0, BTreeMap::len)
    }

    /// Nothing waits any more of waves that are no more.
    pub(super) fn forget_waiting_of_others(&mut self) {
        let waves = self.waves.iter().map(|wave| wave.id).collect();
        self.waiting.retain(&waves);
    }

    /// Nothing waits any more.
    pub(super) fn forget_all_waiting(&mut self) {
        self.waiting = Waiting::default();
    }

    /// The piece of the queue that is needed first, of those that may be ordered: `may` is asked with the node, the bytes, and whether the planner
    /// wants the wave. A node has its pieces in their order, or a later one would take the place of the first.
    pub fn next_piece(&mut self, queue: QueueId, may: impl Fn(&str, u64, bool) -> bool) -> Option<Rank> {
        loop {
            let mut over = Vec::new();
            let mut found: Option<Rank> = None;
            for rank in self.waiting.heads(queue) {
                match self.wanted_piece(queue, &rank) {
                    None => over.push(rank),
                    Some((bytes, is_planned)) => {
                        let is_sooner = found.as_ref().is_none_or(|found| rank < *found);
                        if is_sooner && may(&rank.node, bytes, is_planned) {
                            found = Some(rank);
                        }
                    }
                }
            }
            if over.is_empty() {
                return found;
            }
            for rank in over {
                self.waiting.remove(queue, &rank);
                if let Some(part) = self.part(rank.wave, &rank.node) {
                    part.give_up(queue, rank.number);
                }
            }
        }
    }

    /// Bytes of a piece that waits and is still of use, and whether the planner wants its wave.
    fn wanted_piece(&self, queue: QueueId, rank: &Rank) -> Option<(u64, bool)> {
        let wave = self.wave(rank.wave)?;
        let part = wave.parts.get(&*rank.node).filter(|part| part.state != PartState::Ended)?;
        let piece = part.pieces.get(rank.number).filter(|p| p.state == PartState::Waiting)?;
        // Its name may have been another's, before the node came back.
        let is_wanted =
            piece.piece.queue == queue && wave.tasks.get(&piece.piece.task).is_some_and(|task| !task.done);
        is_wanted.then(|| (piece.piece.bytes, wave.is_planned()))
    }

    /// Waves between that of `rank` and the first that has not been computed.
    pub fn distance(&self, rank: &Rank) -> u64 {
        let first = self.waves.iter().find(|wave| !wave.is_finished()).map_or(rank.wave, |wave| wave.id);
        rank.wave.saturating_sub(first)
    }

    /// A piece of [`StageRun::next_piece`] is ordered as `order`; gives what to order.
    pub fn order_piece(&mut self, queue: QueueId, rank: &Rank, order: u64, since_ms: u64) -> Vec<Part> {
        self.waiting.remove(queue, rank);
        self.begin_ahead(rank.wave, since_ms);
        let Some(part) = self.part(rank.wave, &rank.node) else { return Vec::new() };
        let Some(piece) = part.pieces.get_mut(rank.number) else { return Vec::new() };
        (piece.state, piece.order) = (PartState::Active, Some(order));
        part.state = PartState::Active;
        part.ordered_bytes += piece.piece.bytes;
        piece.piece.parts.clone()
    }

    /// Notes how far the order of a piece is; returns the bytes fetched since the last time.
    pub fn piece_progress(
        &mut self,
        wave: WaveId,
        node: &str,
        number: usize,
        order: RequestId,
        progress: &Progress,
    ) -> u64 {
        let Some(part) = self.part(wave, node) else { return 0 };
        let Some(piece) = part.pieces.get_mut(number).filter(|p| p.order == Some(order)) else {
            return 0;
        };
        let take = |sum: &mut u64, known: &mut u64, now: u64| {
            let more = now.saturating_sub(*known);
            (*sum, *known) = (*sum + more, *known + more);
            more
        };
        let fetched = take(&mut part.fetched_bytes, &mut piece.fetched_bytes, progress.fetched_bytes);
        take(&mut part.resident_bytes, &mut piece.resident_bytes, progress.resident_bytes);
        take(&mut part.failed_bytes, &mut piece.failed_bytes, progress.failed_bytes);
        if progress.done {
            part.piece_ended(number);
        }
        fetched
    }
}
