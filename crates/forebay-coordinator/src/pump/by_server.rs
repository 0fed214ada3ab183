//! Orders by server: pieces are given out as lanes are free for them ([`crate::lanes`]).

use super::{AHEAD_ROOM, Ordered, Pump, plannable_bytes};
use crate::jobs::JobKey;
use crate::lanes::{LaneId, piece_bytes};
use crate::run::{Rank, StageRun};
use forebay_policy::machine::Nanos;
use forebay_wire::cluster::{Order, ToAgent};
use std::collections::{BTreeMap, BTreeSet};

/// Pages at a time of a piece: a lane has several pieces if its server can do more.
const PIECE_THREADS: u32 = 1;

/// Pieces cut in one turn: some 20 ms.
const CUT_PIECES: usize = 20_000;

/// To look at the first piece of a node in a lane takes about so long, and after so many looks it counts.
const LOOK_NS: u64 = 1_000;
const RESTLESS_LOOKS: usize = 2_000;

/// Looks in each half of a turn: some 0.1 s, for which heartbeats wait.
#[cfg(not(test))]
const LOOKS_MAX: usize = 100_000;
#[cfg(test)]
const LOOKS_MAX: usize = 100;

/// How often lanes are looked at in which something waits, beside when something changes.
const LANES_LOOK_NS: u64 = 1_000_000_000;

/// The piece that is needed soonest: in how many waves and after how many bytes, and of which of the stages that were looked at.
struct Soonest {
    soon: (u64, u64),
    stage: usize,
    rank: Rank,
}

impl Pump {
    /// Gives out pieces as long as a lane is free for which something waits: of all lanes and stages that which is needed soonest, counted in
    /// waves, first.
    pub(super) fn serve_lanes(&mut self, now: Nanos) {
        self.lanes_due = None;
        let stages =
            self.jobs.iter().flat_map(|(key, r)| r.stages.iter().map(move |(n, run)| (key, *n, run)));
        let stages: Vec<(JobKey, u32)> = stages
            .filter(|(_, _, run)| run.by_server)
            .map(|(key, number, _)| (key.clone(), number))
            .collect();
        if stages.is_empty() {
            return;
        }
        if now < self.lanes_rest_until {
            self.lanes_due = Some(self.lanes_rest_until);
            return;
        }
        let is_all_cut = self.cut_pieces(&stages);
        let mut held = self.held_bytes();
        let mut room: BTreeMap<String, u64> = BTreeMap::new();
        for node in self.view.nodes.iter().filter(|node| !self.gone.contains(&node.name)) {
            room.insert(node.name.clone(), plannable_bytes(node.capacity_bytes));
        }
        // What each lane would have next, as far as it was when it was looked at.
        let mut next: BTreeSet<((u64, u64), LaneId)> = BTreeSet::new();
        let (mut looked_at, mut is_enough) = (0, false);
        let waiting = self.lanes_waiting(&stages);
        // Where the turn before had looked enough.
        let from = std::mem::take(&mut self.lanes_from);
        for lane in waiting.range(from..).chain(waiting.range(..from)).copied() {
            if looked_at >= LOOKS_MAX {
                (is_enough, self.lanes_from) = (true, lane);
                break;
            }
            if self.lanes.is_free(lane, now)
                && let Some(found) = self.soonest(now, &stages, lane, (&room, &held), &mut looked_at)
            {
                next.insert((found.soon, lane));
            }
        }
        // As much again for giving out: however many lanes there are, each turn gives out something.
        let enough = looked_at + LOOKS_MAX;
        while let Some((soon, lane)) = next.pop_first() {
            if looked_at >= enough {
                is_enough = true;
                break;
            }
            if !self.lanes.is_free(lane, now) {
                continue;
            }
            let Some(found) = self.soonest(now, &stages, lane, (&room, &held), &mut looked_at) else {
                continue;
            };
            if found.soon > soon {
                next.insert((found.soon, lane));
                continue;
            }
            let (key, number) = &stages[found.stage];
            let bytes = self.order_piece(now, key, *number, lane, &found.rank);
            *held.entry(found.rank.node.to_string()).or_default() += bytes;
            next.insert((found.soon, lane));
        }
        self.lanes_rest_until = now + rest_ns(looked_at);
        for (key, number) in &stages {
            // Pieces that are of no use any more may have been the last of a wave.
            self.settle_fetched(now, key, *number);
        }
        if is_enough || !is_all_cut || !self.ahead_due.is_empty() {
            self.lanes_due = Some(now + rest_ns(looked_at));
        } else if !self.lanes_waiting(&stages).is_empty() {
            self.lanes_due = Some(now + LANES_LOOK_NS);
        }
    }

    /// Cuts what has come into reach of stages, as far as one turn goes; `false` if there is more.
    fn cut_pieces(&mut self, stages: &[(JobKey, u32)]) -> bool {
        let speed = if self.speed.is_known { self.speed.bytes_per_s } else { 0.0 };
        let piece_bytes = piece_bytes(speed, self.lanes_waiting(stages).len());
        let mut budget = CUT_PIECES;
        stages.iter().all(|(key, number)| {
            let Some(running) = self.jobs.get_mut(key) else { return true };
            let Some(run) = running.stages.get_mut(number) else { return true };
            run.cut_pieces(&running.job.layouts, piece_bytes, &mut budget)
        })
    }

    fn lanes_waiting(&self, stages: &[(JobKey, u32)]) -> BTreeSet<LaneId> {
        let runs = stages.iter().filter_map(|(key, number)| self.jobs.get(key)?.stages.get(number));
        runs.flat_map(StageRun::lanes_waiting).collect()
    }

    /// Of the pieces that wait in `lane` and for which their nodes have hands and room beside what they hold, that which is needed soonest.
    fn soonest(
        &mut self,
        now: Nanos,
        stages: &[(JobKey, u32)],
        lane: LaneId,
        (room, held): (&BTreeMap<String, u64>, &BTreeMap<String, u64>),
        looked_at: &mut usize,
    ) -> Option<Soonest> {
        let mut best: Option<Soonest> = None;
        for (stage, (key, number)) in stages.iter().enumerate() {
            let Some(run) = self.jobs.get_mut(key).and_then(|r| r.stages.get_mut(number)) else { continue };
            *looked_at += run.nodes_waiting(lane);
            let lanes = &self.lanes;
            let may = |node: &str, bytes: u64, is_planned: bool| {
                let room = room.get(node).copied().unwrap_or(0) / if is_planned { 1 } else { AHEAD_ROOM };
                lanes.has_hands(node, now) && held.get(node).copied().unwrap_or(0) + bytes <= room
            };
            let Some(rank) = run.next_piece(lane, may) else { continue };
            let soon = (run.distance(&rank), rank.at);
            let is_sooner = best.as_ref().is_none_or(|best| soon < best.soon);
            if is_sooner && self.lanes.takes(lane, (run.serial, rank.wave), now) {
                best = Some(Soonest { soon, stage, rank });
            }
        }
        best
    }

    /// Gives a node the order for a piece; returns its bytes.
    fn order_piece(&mut self, now: Nanos, key: &JobKey, stage: u32, lane: LaneId, rank: &Rank) -> u64 {
        let Some(running) = self.jobs.get_mut(key) else { return 0 };
        let since_ms = now.saturating_since(running.job.began) / 1_000_000;
        let Some(run) = running.stages.get_mut(&stage) else { return 0 };
        let order = self.next_order;
        self.next_order += 1;
        let is_planned = run.is_planned(rank.wave);
        let wave = (run.serial, rank.wave);
        let (files, parts) = run.order_piece(lane, rank, order, &running.job.files, since_ms);
        let node = rank.node.to_string();
        let piece = Some((lane, rank.number));
        let ordered = Ordered { job: key.clone(), stage, wave: rank.wave, node: node.clone(), piece };
        self.orders.insert(order, ordered);
        self.lanes.begin(lane, order, &node, wave, now);
        tracing::debug!(order, lane, wave = rank.wave, at = rank.at, node, "a piece is ordered");
        let bytes = parts.iter().map(|part| part.len).sum();
        let order =
            Order { order, threads: PIECE_THREADS, rate_bytes_per_s: 0, ahead: !is_planned, files, parts };
        self.out.push((node, ToAgent::Fetch(order)));
        bytes
    }
}

/// How long after the begin of a turn the lanes rest in which so many nodes were looked at, each for a lane and a stage: as long again as that
/// has taken, or nothing.
fn rest_ns(looked_at: usize) -> u64 {
    if looked_at < RESTLESS_LOOKS { 0 } else { 2 * looked_at as u64 * LOOK_NS }
}
