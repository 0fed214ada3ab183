//! A stage whose input is brought server by server: pieces in the place of a node's whole part of a wave.
//!
//! A node's part of a wave is cut into pieces ([`crate::lanes`]) when the wave comes into reach: the planner wants it, or one of the
//! [`REACH`] before it. Each piece is an order of its own. Pieces wait in the order in which they are needed: by wave, and within a
//! wave by how soon their task comes to them. The part is over when all its pieces are.

use super::{NodePart, PartState, StageRun, WaveId};
use crate::lanes::{LaneId, Piece, pieces};
use forebay_wire::cluster::{FileLayout, OrderProgress};
use forebay_wire::{FileRef, Part};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Waves after the planned one that may be begun, if memory allows: enough that every server has something to bring.
const REACH: usize = 6;

/// Waiting pieces of a lane that are looked at for one that may be ordered now, at most.
const LOOKED_AT_MAX: usize = 256;

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

    /// Nothing will come of a piece that waits.
    fn give_up(&mut self, number: usize) {
        let Some(piece) = self.pieces.get(number).filter(|p| p.state == PartState::Waiting) else { return };
        self.given_up_bytes += piece.piece.bytes;
        self.piece_ended(number);
    }

    /// Tasks that it is for no longer are here.
    pub(super) fn give_up_tasks(&mut self, tasks: &BTreeSet<u32>) {
        for number in 0..self.pieces.len() {
            if tasks.contains(&self.pieces[number].piece.task) {
                self.give_up(number);
            }
        }
    }
}

impl StageRun {
    /// Cuts what has come into reach into pieces of `piece_bytes` at most.
    pub fn cut_pieces(&mut self, layouts: &[FileLayout], piece_bytes: u64) {
        let is_planned = |wave: &super::Wave| wave.setting.is_some_and(|setting| !setting.is_paused());
        let Some(planned) = self.waves.iter().rposition(is_planned) else { return };
        let end = self.waves.len().min(planned + 1 + REACH);
        for wave in self.waves[..end].iter_mut().filter(|wave| !wave.is_cut) {
            wave.is_cut = true;
            for (node, part) in wave.parts.iter_mut() {
                if part.state != PartState::Waiting || part.pieces_left > 0 {
                    continue;
                }
                let left = part.needs.iter().filter(|(task, _)| wave.tasks.get(task).is_some_and(|t| !t.done));
                let cut: Vec<Piece> =
                    left.flat_map(|(task, need)| pieces(*task, need, layouts, piece_bytes)).collect();
                let name: Arc<str> = node.as_str().into();
                for (number, piece) in cut.iter().enumerate() {
                    let rank = Rank { wave: wave.id, at: piece.at, node: name.clone(), number };
                    self.waiting.entry(piece.lane).or_default().insert(rank);
                }
                part.cut(cut);
            }
        }
    }

    /// Lanes for which pieces may wait.
    pub fn lanes_waiting(&self) -> impl Iterator<Item = LaneId> + '_ {
        self.waiting.keys().copied()
    }

    /// The first piece of the lane that may be ordered: `may` is asked with the node, the bytes, and whether the planner wants the wave.
    /// A node that may not have one may not have a later one either, or that would take the place of the first.
    pub fn next_piece(&mut self, lane: LaneId, mut may: impl FnMut(&str, u64, bool) -> bool) -> Option<Rank> {
        let mut over = Vec::new();
        let mut passed_over: BTreeSet<Arc<str>> = BTreeSet::new();
        let mut found = None;
        for rank in self.waiting.get(&lane)?.iter().take(LOOKED_AT_MAX) {
            let Some((bytes, is_planned)) = self.wanted_piece(rank) else {
                over.push(rank.clone());
                continue;
            };
            if passed_over.contains(&rank.node) {
                continue;
            }
            if may(&rank.node, bytes, is_planned) {
                found = Some(rank.clone());
                break;
            }
            passed_over.insert(rank.node.clone());
        }
        for rank in over {
            self.forget_waiting(lane, &rank);
            if let Some(part) = self.part(rank.wave, &rank.node) {
                part.give_up(rank.number);
            }
        }
        found
    }

    /// Bytes of a piece that waits and is still of use, and whether the planner wants its wave.
    fn wanted_piece(&self, rank: &Rank) -> Option<(u64, bool)> {
        let wave = self.wave(rank.wave)?;
        let part = wave.parts.get(&*rank.node).filter(|part| part.state != PartState::Ended)?;
        let piece = part.pieces.get(rank.number).filter(|p| p.state == PartState::Waiting)?;
        let is_wanted = wave.tasks.get(&piece.piece.task).is_some_and(|task| !task.done);
        is_wanted.then(|| (piece.piece.bytes, wave.setting.is_some_and(|setting| !setting.is_paused())))
    }

    fn forget_waiting(&mut self, lane: LaneId, rank: &Rank) {
        if let Some(waiting) = self.waiting.get_mut(&lane) {
            waiting.remove(rank);
            if waiting.is_empty() {
                self.waiting.remove(&lane);
            }
        }
    }

    /// Waves between that of `rank` and the first that has not been computed.
    pub fn distance(&self, rank: &Rank) -> u64 {
        let first = self.waves.iter().find(|wave| !wave.is_finished()).map_or(rank.wave, |wave| wave.id);
        rank.wave.saturating_sub(first)
    }

    /// A piece of [`StageRun::next_piece`] is ordered as `order`; gives what to order.
    pub fn order_piece(
        &mut self,
        lane: LaneId,
        rank: &Rank,
        order: u64,
        files: &[FileRef],
        since_ms: u64,
    ) -> (Vec<FileRef>, Vec<Part>) {
        self.forget_waiting(lane, rank);
        self.begin_ahead(rank.wave, since_ms);
        let Some(part) = self.part(rank.wave, &rank.node) else { return Default::default() };
        let Some(piece) = part.pieces.get_mut(rank.number) else { return Default::default() };
        (piece.state, piece.order) = (PartState::Active, Some(order));
        part.state = PartState::Active;
        part.ordered_bytes += piece.piece.bytes;
        let mut numbers: BTreeMap<u32, u32> = BTreeMap::new();
        let (mut named, mut parts) = (Vec::<FileRef>::new(), Vec::new());
        for part in &piece.piece.parts {
            let Some(file) = files.get(part.file as usize) else { continue };
            let number = *numbers.entry(part.file).or_insert_with(|| {
                named.push(file.clone());
                named.len() as u32 - 1
            });
            parts.push(Part { file: number, ..*part });
        }
        (named, parts)
    }

    /// Notes how far the order of a piece is; returns the bytes fetched since the last time.
    pub fn piece_progress(&mut self, wave: WaveId, node: &str, number: usize, progress: &OrderProgress) -> u64 {
        let Some(part) = self.part(wave, node) else { return 0 };
        let Some(piece) = part.pieces.get_mut(number).filter(|p| p.order == Some(progress.order)) else {
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
