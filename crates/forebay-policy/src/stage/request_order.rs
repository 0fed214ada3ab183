//! Decides which requests to send next: while a queue with waiting chunks is free, the chunk that
//! is needed soonest.

use alloc::collections::BTreeSet;
use alloc::string::ToString;
use alloc::vec::Vec;

use super::event::{Action, JobKey, Priority, QueueId};
use super::nodes::NodeNumber;
use super::pace_limits::PaceLimit;
use super::server_queues::{AtNode, WIDE, chunk_bytes};
use super::waves::{Pace, QueueKey, Rank, StageRun, Wanted};
use super::{RequestState, Requested, Stages};
use crate::machine::Nanos;

/// Chunks of waves after the planned one are requested only within one part in this many of a
/// node's room.
const AHEAD_ROOM: u64 = 2;

/// As [`AHEAD_ROOM`], for chunks of a stage whose tasks run after those of another stage that is
/// still being fetched.
const BEHIND_ROOM: u64 = 4;

/// Chunks made per deadline: some 20 ms.
const SPLIT_CHUNKS: usize = 20_000;

/// Examining the first chunk of a node in a queue takes about this long, and matters after this
/// many times.
const LOOK_NS: u64 = 1_000;
const RESTLESS_LOOKS: usize = 2_000;

/// Chunks examined in each half of a deadline: about 0.1 s, during which other events wait.
#[cfg(not(test))]
const LOOKS_MAX: usize = 100_000;
#[cfg(test)]
const LOOKS_MAX: usize = 100;

/// How often queues with waiting chunks are examined, in addition to every change.
const QUEUES_LOOK_NS: u64 = 1_000_000_000;

/// The chunk that is needed soonest: after how many waves and bytes, and in which of the examined
/// stages.
struct Soonest {
    soon: (u64, u64),
    stage: usize,
    node: NodeNumber,
    rank: Rank,
}

/// What a queue would send next: how soon it is needed, and the queue.
type Next = ((u64, u64), QueueKey);

/// What a node may be requested to hold.
#[derive(Clone, Default)]
struct Room {
    /// Bytes that it may hold, and bytes that it was requested to hold.
    plannable_bytes: u64,
    held_bytes: u64,
    requests: AtNode,
}

/// What comes before a stage: stages of the same job with smaller numbers, while none of its own
/// tasks runs. An engine starts the tasks of the stage that it has submitted first, as long as
/// there are any.
#[derive(Clone, Copy, Default)]
struct Before {
    /// Number of their waves that have not been computed.
    waves: u64,
    /// Whether a part of them is not fetched.
    is_fetching: bool,
    /// Whether the first wave of one of them is not fetched: nothing computes until it is.
    is_first_open: bool,
}

impl Room {
    /// Returns whether the node has a slot and room for one more request.
    fn has_room(&self, wanted: Wanted, before: Before) -> bool {
        let share = match wanted.is_planned {
            _ if before.is_fetching => BEHIND_ROOM,
            true => 1,
            false => AHEAD_ROOM,
        };
        let is_left = self.held_bytes + wanted.bytes <= self.plannable_bytes / share;
        is_left && self.requests.has_slot(wanted.limit)
    }
}

/// The state of one deadline's examination.
struct Look {
    stages: Vec<(JobKey, u32)>,
    /// Indexed by the place of the stage.
    before: Vec<Before>,
    /// Indexed by the number of the node.
    rooms: Vec<Room>,
    looked_at: usize,
}

impl Stages {
    /// Sends requests while a queue with waiting chunks is free. Of all queues and stages, the
    /// chunk that is needed soonest, counted in waves, goes first.
    pub(super) fn serve_queues(&mut self, now: Nanos) {
        self.queues_due = None;
        let stages = self.jobs.iter().flat_map(|(key, r)| r.stages.keys().map(move |n| (*key, *n)));
        let stages: Vec<(JobKey, u32)> = stages.collect();
        if stages.is_empty() {
            return;
        }
        if now < self.queues_rest_until {
            self.queues_due = Some(self.queues_rest_until);
            return;
        }
        let is_all_split = self.split_some(&stages);
        let before = self.before(&stages);
        let mut look = Look { stages, before, rooms: self.rooms(now), looked_at: 0 };
        let (mut next, mut is_enough) = self.look(now, &mut look);
        // As much again for sending: however many queues there are, each deadline sends something.
        let enough = look.looked_at + LOOKS_MAX;
        while let Some((soon, key)) = next.pop_first() {
            let queue = key.0;
            if look.looked_at >= enough {
                is_enough = true;
                break;
            }
            if !self.queues.is_free(queue, now) {
                continue;
            }
            let Some(found) = self.soonest(now, &key, &mut look) else { continue };
            if found.soon <= soon {
                let (job, number) = look.stages[found.stage];
                let is_next = !look.before[found.stage].is_fetching;
                let bytes = self.ask(now, (job, number), (queue, found.node), &found.rank, is_next);
                let room = &mut look.rooms[found.node];
                room.held_bytes += bytes;
                room.requests.begin();
                assert!(
                    self.config.rules.whole_parts || room.held_bytes <= room.plannable_bytes,
                    "{} was asked to hold {} bytes of {}",
                    found.rank.node,
                    room.held_bytes,
                    room.plannable_bytes
                );
            }
            next.insert((found.soon, key));
        }
        self.queues_rest_until = now + rest_ns(look.looked_at);
        for (key, number) in &look.stages {
            // Dropped chunks that are no longer needed may have been the last of a wave.
            self.settle_fetched(now, *key, *number);
        }
        if is_enough || !is_all_split || self.has_changed {
            self.queues_due = Some(now + rest_ns(look.looked_at));
        } else if !self.config.rules.whole_parts && self.runs(&look.stages).any(StageRun::waits) {
            self.queues_due = Some(now + QUEUES_LOOK_NS);
        }
    }

    /// Returns what each free queue would send next, as far as this deadline examined them; `true`
    /// if more queues remain.
    fn look(&mut self, now: Nanos, look: &mut Look) -> (BTreeSet<Next>, bool) {
        let mut next = BTreeSet::new();
        let waiting = self.queues_waiting(&look.stages);
        // Continues where the previous deadline stopped.
        let from = core::mem::take(&mut self.queues_from);
        let (before, after) = waiting.split_at(waiting.partition_point(|key| *key < from));
        for key in after.iter().chain(before) {
            if look.looked_at >= LOOKS_MAX {
                self.queues_from = key.clone();
                return (next, true);
            }
            if self.queues.is_free(key.0, now)
                && let Some(found) = self.soonest(now, key, look)
            {
                next.insert((found.soon, key.clone()));
            }
        }
        (next, false)
    }

    /// Splits the waves that have come within reach into chunks, as far as one deadline permits;
    /// `false` if more remain.
    fn split_some(&mut self, stages: &[(JobKey, u32)]) -> bool {
        if !self.runs(stages).any(StageRun::has_to_split) {
            return true;
        }
        let speed = if self.speed.is_known() { self.speed.bytes_per_s } else { 0.0 };
        let chunk_bytes = match self.config.rules.whole_parts {
            true => u64::MAX,
            false => chunk_bytes(speed, self.queues_waiting(stages).len()),
        };
        let mut budget = SPLIT_CHUNKS;
        stages.iter().all(|(key, number)| {
            let Some(running) = self.jobs.get_mut(key) else { return true };
            let Some(run) = running.stages.get_mut(number) else { return true };
            run.split(&running.job.layouts, chunk_bytes, &mut budget)
        })
    }

    /// Returns the queues with waiting chunks, in their order.
    fn queues_waiting(&self, stages: &[(JobKey, u32)]) -> Vec<QueueKey> {
        let mut queues: Vec<QueueKey> = self.runs(stages).flat_map(StageRun::queues_waiting).collect();
        queues.sort_unstable();
        queues.dedup();
        queues
    }

    fn runs<'a>(&'a self, stages: &'a [(JobKey, u32)]) -> impl Iterator<Item = &'a StageRun> {
        stages.iter().filter_map(|(key, number)| self.jobs.get(key)?.stages.get(number))
    }

    /// Returns the room of each node; nothing if it has left or is excluded.
    fn rooms(&self, now: Nanos) -> Vec<Room> {
        let mut rooms = self.tiers.numbers.table(|name, node| Room {
            plannable_bytes: self.plannable_bytes(now, name, node),
            held_bytes: 0,
            requests: self.queues.at_node(node, now),
        });
        rooms.iter_mut().zip(self.held_bytes()).for_each(|(room, held)| room.held_bytes = held);
        rooms
    }

    /// Returns the bytes that were requested from each node, by its number, and that it may not
    /// release yet.
    pub(super) fn held_bytes(&self) -> Vec<u64> {
        let mut held = self.tiers.numbers.table(|_, _| 0);
        for run in self.jobs.values().flat_map(|r| r.stages.values()) {
            run.add_held(&mut held);
        }
        held
    }

    /// Returns the chunk in `queue` that is needed soonest, among those whose nodes have a free
    /// request and room for them.
    fn soonest(&mut self, now: Nanos, queue: &QueueKey, look: &mut Look) -> Option<Soonest> {
        let (rooms, whole_parts) = (&look.rooms, self.config.rules.whole_parts);
        let mut best: Option<Soonest> = None;
        for (stage, (key, number)) in look.stages.iter().enumerate() {
            let Some(run) = self.jobs.get_mut(key).and_then(|r| r.stages.get_mut(number)) else { continue };
            look.looked_at += run.nodes_waiting(queue);
            let before = look.before[stage];
            if queue.0 == WIDE && before.is_first_open {
                // Its server is unknown: perhaps that of the first wave.
                continue;
            }
            // A planner of whole parts keeps the account of memory, by what has been fetched.
            let may = |node: NodeNumber, wanted| whole_parts || rooms[node].has_room(wanted, before);
            let Some((rank, node)) = run.next_chunk(queue, may) else { continue };
            let soon = (before.waves + run.distance(&rank), rank.at);
            let is_sooner = best.as_ref().is_none_or(|best| soon < best.soon);
            if is_sooner && self.queues.takes(queue.0, (run.serial, rank.wave), now) {
                best = Some(Soonest { soon, stage, node, rank });
            }
        }
        best
    }

    /// Returns what comes before each of these stages, which are in the order of their jobs and
    /// numbers.
    fn before(&self, stages: &[(JobKey, u32)]) -> Vec<Before> {
        let mut sum = (None, Before::default());
        let before = stages.iter().map(|(key, number)| {
            if sum.0 != Some(*key) {
                sum = (Some(*key), Before::default());
            }
            let run = self.jobs.get(key).and_then(|running| running.stages.get(number));
            // Planners of whole parts have an order of their own.
            let Some(run) = run.filter(|_| !self.config.rules.whole_parts) else { return Before::default() };
            let found = if run.has_begun() { Before::default() } else { sum.1 };
            sum.1.waves += run.waves_left();
            sum.1.is_fetching |= run.has_to_fetch();
            sum.1.is_first_open |= run.is_first_open();
            found
        });
        before.collect()
    }

    /// Requests a chunk from a node, of a stage whose tasks are the next to run or not; returns its
    /// bytes.
    fn ask(
        &mut self,
        now: Nanos,
        (key, stage): (JobKey, u32),
        (queue, at): (QueueId, NodeNumber),
        rank: &Rank,
        is_next: bool,
    ) -> u64 {
        let Some(running) = self.jobs.get_mut(&key) else { return 0 };
        let since_ms = now.saturating_since(running.job.began) / 1_000_000;
        let Some(run) = running.stages.get_mut(&stage) else { return 0 };
        let request = self.next_request;
        self.next_request += 1;
        let is_planned = is_next && run.is_planned(rank.wave);
        let priority = if is_planned { Priority::Planned } else { Priority::Ahead };
        let (parts, pace) = run.ask(queue, rank, request, since_ms);
        let (node, number) = (rank.node.to_string(), rank.number);
        self.queues.begin(queue, request, at, (run.serial, rank.wave), now);
        let (state, pace_limit) = (RequestState::at(pace), PaceLimit::new(now, pace));
        let requested = Requested {
            job: key,
            stage,
            wave: rank.wave,
            node: node.clone(),
            at,
            queue,
            number,
            state,
            pace_limit,
        };
        self.count(RequestState::Ended, state);
        assert!(self.requests.insert(request, requested).is_none(), "request {request} is sent twice");
        let bytes = parts.iter().map(|part| part.len).sum();
        let Pace { threads, rate_bytes_per_s, setting } = pace;
        self.out.push(Action::Fetch {
            request,
            node,
            job: key,
            threads,
            rate_bytes_per_s,
            priority,
            setting,
            parts,
        });
        bytes
    }
}

/// Returns the pause after a deadline that has examined this many nodes, each for a queue and a
/// stage: twice as long as the examination took, or none.
fn rest_ns(looked_at: usize) -> u64 {
    if looked_at < RESTLESS_LOOKS { 0 } else { 2 * looked_at as u64 * LOOK_NS }
}
