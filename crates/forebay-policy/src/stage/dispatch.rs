//! Orders by server: pieces are given out as queues are free for them ([`crate::queues`]).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use super::event::{Action, JobKey, Priority, QueueId};
use super::fetch::AHEAD_ROOM;
use super::queues::piece_bytes;
use super::run::{Rank, StageRun};
use super::{Requested, Stages, plannable_bytes};
use crate::machine::Nanos;

/// Pages at a time of a piece: a queue has several pieces if its server can do more.
const PIECE_THREADS: u32 = 1;

/// Pieces cut in one turn: some 20 ms.
const CUT_PIECES: usize = 20_000;

/// To look at the first piece of a node in a queue takes about so long, and after so many looks it counts.
const LOOK_NS: u64 = 1_000;
const RESTLESS_LOOKS: usize = 2_000;

/// Looks in each half of a turn: some 0.1 s, for which heartbeats wait.
#[cfg(not(test))]
const LOOKS_MAX: usize = 100_000;
#[cfg(test)]
const LOOKS_MAX: usize = 100;

/// How often queues are looked at in which something waits, beside when something changes.
const QUEUES_LOOK_NS: u64 = 1_000_000_000;

/// The piece that is needed soonest: in how many waves and after how many bytes, and of which of the stages that were looked at.
struct Soonest {
    soon: (u64, u64),
    stage: usize,
    rank: Rank,
}

impl Stages {
    /// Gives out pieces as long as a queue is free for which something waits: of all queues and stages that which is needed soonest, counted in
    /// waves, first.
    pub(super) fn serve_queues(&mut self, now: Nanos) {
        self.queues_due = None;
        let stages =
            self.jobs.iter().flat_map(|(key, r)| r.stages.iter().map(move |(n, run)| (*key, *n, run)));
        let stages: Vec<(JobKey, u32)> =
            stages.filter(|(_, _, run)| run.by_server).map(|(key, number, _)| (key, number)).collect();
        if stages.is_empty() {
            return;
        }
        if now < self.queues_rest_until {
            self.queues_due = Some(self.queues_rest_until);
            return;
        }
        let is_all_cut = self.cut_pieces(&stages);
        let mut held = self.held_bytes();
        let mut room: BTreeMap<String, u64> = BTreeMap::new();
        for node in self.nodes.iter().filter(|node| !self.gone.contains(&node.name)) {
            room.insert(node.name.clone(), plannable_bytes(node.capacity_bytes));
        }
        // What each queue would have next, as far as it was when it was looked at.
        let mut next: BTreeSet<((u64, u64), QueueId)> = BTreeSet::new();
        let (mut looked_at, mut is_enough) = (0, false);
        let waiting = self.queues_waiting(&stages);
        // Where the turn before had looked enough.
        let from = core::mem::take(&mut self.queues_from);
        for queue in waiting.range(from..).chain(waiting.range(..from)).copied() {
            if looked_at >= LOOKS_MAX {
                (is_enough, self.queues_from) = (true, queue);
                break;
            }
            if self.queues.is_free(queue, now)
                && let Some(found) = self.soonest(now, &stages, queue, (&room, &held), &mut looked_at)
            {
                next.insert((found.soon, queue));
            }
        }
        // As much again for giving out: however many queues there are, each turn gives out something.
        let enough = looked_at + LOOKS_MAX;
        while let Some((soon, queue)) = next.pop_first() {
            if looked_at >= enough {
                is_enough = true;
                break;
            }
            if !self.queues.is_free(queue, now) {
                continue;
            }
            let Some(found) = self.soonest(now, &stages, queue, (&room, &held), &mut looked_at) else {
                continue;
            };
            if found.soon > soon {
                next.insert((found.soon, queue));
                continue;
            }
            let (key, number) = &stages[found.stage];
            let bytes = self.order_piece(now, *key, *number, queue, &found.rank);
            *held.entry(found.rank.node.to_string()).or_default() += bytes;
            next.insert((found.soon, queue));
        }
        self.queues_rest_until = now + rest_ns(looked_at);
        for (key, number) in &stages {
            // Pieces that are of no use any more may have been the last of a wave.
            self.settle_fetched(now, *key, *number);
        }
        if is_enough || !is_all_cut || !self.ahead_due.is_empty() {
            self.queues_due = Some(now + rest_ns(looked_at));
        } else if !self.queues_waiting(&stages).is_empty() {
            self.queues_due = Some(now + QUEUES_LOOK_NS);
        }
    }

    /// Cuts what has come into reach of stages, as far as one turn goes; `false` if there is more.
    fn cut_pieces(&mut self, stages: &[(JobKey, u32)]) -> bool {
        let speed = if self.speed.is_known { self.speed.bytes_per_s } else { 0.0 };
        let piece_bytes = piece_bytes(speed, self.queues_waiting(stages).len());
        let mut budget = CUT_PIECES;
        stages.iter().all(|(key, number)| {
            let Some(running) = self.jobs.get_mut(key) else { return true };
            let Some(run) = running.stages.get_mut(number) else { return true };
            run.cut_pieces(&running.job.layouts, piece_bytes, &mut budget)
        })
    }

    fn queues_waiting(&self, stages: &[(JobKey, u32)]) -> BTreeSet<QueueId> {
        let runs = stages.iter().filter_map(|(key, number)| self.jobs.get(key)?.stages.get(number));
        runs.flat_map(StageRun::queues_waiting).collect()
    }

    /// Of the pieces that wait in `queue` and for which their nodes have hands and room beside what they hold, that which is needed soonest.
    fn soonest(
        &mut self,
        now: Nanos,
        stages: &[(JobKey, u32)],
        queue: QueueId,
        (room, held): (&BTreeMap<String, u64>, &BTreeMap<String, u64>),
        looked_at: &mut usize,
    ) -> Option<Soonest> {
        let mut best: Option<Soonest> = None;
        for (stage, (key, number)) in stages.iter().enumerate() {
            let Some(run) = self.jobs.get_mut(key).and_then(|r| r.stages.get_mut(number)) else { continue };
            *looked_at += run.nodes_waiting(queue);
            let queues = &self.queues;
            let may = |node: &str, bytes: u64, is_planned: bool| {
                let room = room.get(node).copied().unwrap_or(0) / if is_planned { 1 } else { AHEAD_ROOM };
                queues.has_hands(node, now) && held.get(node).copied().unwrap_or(0) + bytes <= room
            };
            let Some(rank) = run.next_piece(queue, may) else { continue };
            let soon = (run.distance(&rank), rank.at);
            let is_sooner = best.as_ref().is_none_or(|best| soon < best.soon);
            if is_sooner && self.queues.takes(queue, (run.serial, rank.wave), now) {
                best = Some(Soonest { soon, stage, rank });
            }
        }
        best
    }

    /// Gives a node the order for a piece; returns its bytes.
    fn order_piece(&mut self, now: Nanos, key: JobKey, stage: u32, queue: QueueId, rank: &Rank) -> u64 {
        let Some(running) = self.jobs.get_mut(&key) else { return 0 };
        let since_ms = now.saturating_since(running.job.began) / 1_000_000;
        let Some(run) = running.stages.get_mut(&stage) else { return 0 };
        let order = self.next_request;
        self.next_request += 1;
        let is_planned = run.is_planned(rank.wave);
        let wave = (run.serial, rank.wave);
        let parts = run.order_piece(queue, rank, order, since_ms);
        let node = rank.node.to_string();
        let piece = Some((queue, rank.number));
        let ordered = Requested { job: key, stage, wave: rank.wave, node: node.clone(), piece };
        self.requests.insert(order, ordered);
        self.queues.begin(queue, order, &node, wave, now);
        let bytes = parts.iter().map(|part| part.len).sum();
        let priority = if is_planned { Priority::Planned } else { Priority::Ahead };
        let threads = PIECE_THREADS;
        self.out.push(Action::Fetch {
            request: order,
            node,
            job: key,
            threads,
            rate_bytes_per_s: 0,
            priority,
            parts,
        });
        bytes
    }
}

/// How long after the begin of a turn the queues rest in which so many nodes were looked at, each for a queue and a stage: as long again as that
/// has taken, or nothing.
fn rest_ns(looked_at: usize) -> u64 {
    if looked_at < RESTLESS_LOOKS { 0 } else { 2 * looked_at as u64 * LOOK_NS }
}
