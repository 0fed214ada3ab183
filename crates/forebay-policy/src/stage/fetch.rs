//! Requests to nodes: which are given, at what pace, and what becomes of them.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::event::{Action, JobKey, Node, Priority, Progress, RequestId, WaveId};
use super::{Requested, Stages, plannable_bytes};
use crate::machine::Nanos;

/// Of what a node may be ordered to hold, the part that must be free of other orders for waves after the planned one.
pub(super) const AHEAD_ROOM: u64 = 2;

/// No order brings more.
const ORDER_BYTES_MAX: u64 = 1 << 50;

impl Stages {
    /// Brings the orders of a wave in line with its setting, and notes it as fetched if there is nothing left to bring.
    pub(super) fn send_orders(&mut self, now: Nanos, key: JobKey, stage: u32, wave: WaveId) {
        self.pace_orders(key, stage, wave, |_| true);
        self.settle(now, key, stage);
    }

    /// Gives the nodes of `which` their orders for a wave, or the pace that these have by now.
    pub(super) fn pace_orders(
        &mut self,
        key: JobKey,
        stage: u32,
        wave: WaveId,
        which: impl Fn(&str) -> bool,
    ) {
        let speed = self.speed.bytes_per_s;
        let held = self.held_bytes();
        let Some(run) = self.jobs.get(&key).and_then(|running| running.stages.get(&stage)) else { return };
        for (node, order) in run.active_orders(wave).into_iter().filter(|(node, _)| which(node)) {
            let (threads, rate_bytes_per_s) = run.pace(wave, &node, speed);
            if self.requests.contains_key(&order) {
                self.out.push(Action::Adjust { request: order, node, threads, rate_bytes_per_s });
            }
        }
        let starts = run.nodes_to_start(wave).into_iter().filter(|node| which(node));
        let starts: Vec<_> = starts.map(|node| (run.pace(wave, &node, speed), node)).collect();
        for (pace, node) in starts {
            let room = self.room_bytes(&node).saturating_sub(*held.get(&node).unwrap_or(&0));
            self.order(key, stage, wave, node, room, pace);
        }
    }

    /// A node has ended an order: what waited for it is next.
    pub(super) fn go_on(&mut self, key: JobKey, stage: u32, node: &str) {
        let run = self.jobs.get(&key).and_then(|running| running.stages.get(&stage));
        let waves = run.filter(|run| run.goes_on).map(|run| run.planned_on(node)).unwrap_or_default();
        for wave in waves {
            self.pace_orders(key, stage, wave, |other| other == node);
        }
    }

    /// Gives a node its order for a wave, as far as `room` goes, with `pace` (pages at a time, bytes per second).
    pub(super) fn order(
        &mut self,
        key: JobKey,
        stage: u32,
        wave: WaveId,
        node: String,
        room: u64,
        pace: (u32, u64),
    ) {
        let Some(running) = self.jobs.get_mut(&key) else { return };
        let Some(run) = running.stages.get_mut(&stage) else { return };
        let parts = run.take_parts(wave, &node, room, &running.job.files);
        if parts.is_empty() {
            return run.part_ended(wave, &node);
        }
        let order = self.next_request;
        self.next_request += 1;
        run.ordered(wave, &node, order);
        self.requests.insert(order, Requested { job: key, stage, wave, node: node.clone(), piece: None });
        let (threads, rate_bytes_per_s) = pace;
        let priority = if threads == 1 { Priority::Ahead } else { Priority::Planned };
        self.out.push(Action::Fetch {
            request: order,
            node,
            job: key,
            threads,
            rate_bytes_per_s,
            priority,
            parts,
        });
    }

    /// Lets nodes begin waves after the planned one, if the planner does not mind, where all of a node's part fits into half of
    /// its room. What is planned goes first at each node, so these fill the gaps that it leaves: a server
    /// that has nothing of it, a page that takes longer than others.
    pub(super) fn work_ahead(&mut self, now: Nanos, key: JobKey, stage: u32) {
        let Some(running) = self.jobs.get(&key) else { return };
        let since_ms = now.saturating_since(running.job.began) / 1_000_000;
        let Some(run) = running.stages.get(&stage).filter(|run| run.goes_on) else { return };
        let parts = run.parts_ahead();
        if parts.is_empty() {
            return;
        }
        let mut left: BTreeMap<String, u64> = BTreeMap::new();
        let held = self.held_bytes();
        for node in self.nodes.iter().filter(|node| !self.gone.contains(&node.name)) {
            let room = plannable_bytes(node.capacity_bytes) / AHEAD_ROOM;
            left.insert(node.name.clone(), room.saturating_sub(*held.get(&node.name).unwrap_or(&0)));
        }
        for (wave, node, bytes) in parts {
            let left = left.entry(node.clone()).or_default();
            if bytes > *left {
                // Not a later one in its place: that would take the room of this one.
                *left = 0;
                continue;
            }
            *left -= bytes;
            if let Some(run) = self.run_mut(key, stage) {
                run.begin_ahead(wave, since_ms);
            }
            let pace = self.run_mut(key, stage).map_or((0, 0), |run| run.pace(wave, &node, 0.0));
            self.order(key, stage, wave, node, bytes, pace);
        }
    }

    /// What a node may be ordered to hold in all; nothing if it has gone.
    pub(super) fn room_bytes(&self, node: &str) -> u64 {
        let is_there = |n: &&Node| n.name == node && !self.gone.contains(&n.name);
        plannable_bytes(self.nodes.iter().find(is_there).map_or(0, |n| n.capacity_bytes))
    }

    /// Bytes that each node was ordered to hold and may not let go of yet.
    pub(super) fn held_bytes(&self) -> BTreeMap<String, u64> {
        let mut held = BTreeMap::new();
        for run in self.jobs.values().flat_map(|r| r.stages.values()) {
            run.add_held(&mut held);
        }
        held
    }

    /// An agent tells how far an order is.
    pub(super) fn progress(&mut self, now: Nanos, node: &str, request: RequestId, progress: Progress) {
        let Some(ordered) = self.requests.get(&request).filter(|o| o.node == node) else { return };
        let (key, stage, wave) = (ordered.job, ordered.stage, ordered.wave);
        let piece = ordered.piece;
        // More is no order's, and sums stay sums.
        let sane = |bytes: u64| bytes.min(ORDER_BYTES_MAX);
        let progress = Progress {
            fetched_bytes: sane(progress.fetched_bytes),
            resident_bytes: sane(progress.resident_bytes),
            failed_bytes: sane(progress.failed_bytes),
            ..progress
        };
        let Some(run) = self.run_mut(key, stage) else { return };
        let fetched = match piece {
            Some((_, number)) => run.piece_progress(wave, node, number, request, &progress),
            None => run.progress(wave, node, request, &progress),
        };
        self.speed.observe(now, fetched);
        if let Some((queue, _)) = piece.filter(|_| progress.done) {
            let mostly_fetched = progress.fetched_bytes > progress.resident_bytes + progress.failed_bytes;
            self.queues.end(queue, request, now, mostly_fetched.then_some(progress.fetched_bytes));
            self.settle(now, key, stage);
        } else if progress.done {
            self.go_on(key, stage, node);
            self.send_orders(now, key, stage, wave);
        }
    }

    pub(super) fn cancel(&mut self, now: Nanos, orders: Vec<u64>) {
        let mut by_node: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for order in orders {
            if let Some(ordered) = self.void(now, order) {
                by_node.entry(ordered.node).or_default().push(order);
            }
        }
        self.out.extend(by_node.into_iter().map(|(node, requests)| Action::Release { node, requests }));
    }
}
