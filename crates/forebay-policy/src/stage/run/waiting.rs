//! Chunks that wait for a request: split when their wave comes into reach, and given out in the
//! order in which they are needed, by wave, and within a wave by how soon their task comes to them.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::part::State;
use super::{StageRun, Wave};
use crate::stage::event::{Layout, QueueId, WaveId};
use crate::stage::queues::{Chunk, WIDE, chunks};

/// Waves after the planned one that may be begun, if memory allows: enough that every server has
/// something to fetch.
const REACH: usize = 6;

/// Of these, waves that are begun in the wide queue.
const AHEAD_WAVES: usize = 3;

/// A stage has one of these for so many waves, and one at least: what comes of later waves takes
/// from the next, and a stage of few waves has no time to make up for it.
const WAVES_FOR_ONE_AHEAD: usize = 5;

/// Requests of a node at a time for waves that no planner wants yet: as many as its fetch threads
/// serve for orders, so that none waits there and keeps a server from others.
const AHEAD_LIMIT: usize = 4;

/// Requests of a node at a time if some of them are of the wide queue: one of each later wave
/// beside those of the planned one.
const WIDE_LIMIT: usize = 8;

/// If so many chunks of a stage wait no more waves are split; and of one wave no more than make it
/// twice as many.
const WAITING_MAX: usize = 100_000;

/// Where a chunk is, in the order in which chunks are needed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Its wave.
    pub wave: WaveId,
    /// Bytes that its task reads before it.
    pub at: u64,
    /// The node that fetches it.
    pub node: Arc<str>,
    /// Its number among those of the node and wave.
    pub number: usize,
}

/// What a request for a chunk would take of its node.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Its bytes.
    pub bytes: u64,
    /// The planner wants its wave now.
    pub is_planned: bool,
    /// Requests that the node may have at a time, with this one.
    pub limit: usize,
}

/// A queue, or one node's share of the queue that has no window: there nodes do not wait for each
/// other, and to look at all of them for each request would take too long.
pub type QueueKey = (QueueId, Option<Arc<str>>);

/// Chunks of one node and queue: the wave, what its task reads before it, and its number.
type OfNode = BTreeSet<(WaveId, u64, usize)>;

/// Chunks that wait. Some may be over: whoever comes to them looks.
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

    pub(super) fn remove(&mut self, queue: QueueId, rank: &Rank) {
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

    /// Forgets those of other waves than these.
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

    /// What may go next: of a queue by server the first of each node; of a node's share of the wide
    /// queue the first of each wave.
    fn heads(&self, (queue, node): &QueueKey) -> Vec<Rank> {
        let Some(nodes) = self.queues.get(queue) else { return Vec::new() };
        let rank = |node: &Arc<str>, &(wave, at, number): &(WaveId, u64, usize)| Rank {
            wave,
            at,
            node: node.clone(),
            number,
        };
        let Some(node) = node else {
            return nodes.iter().filter_map(|(node, chunks)| Some(rank(node, chunks.first()?))).collect();
        };
        let mut heads = Vec::new();
        let Some(chunks) = nodes.get(node) else { return heads };
        let mut next = chunks.first();
        while let Some(chunk) = next {
            heads.push(rank(node, chunk));
            next = chunks.range((chunk.0 + 1, 0, 0)..).next();
        }
        heads
    }
}

impl StageRun {
    /// Splits what has come into reach into chunks of `chunk_bytes` at most, wave by wave until
    /// `budget` chunks are made or enough wait; `false` if the budget was not enough.
    pub fn split(&mut self, layouts: &[Layout], chunk_bytes: u64, budget: &mut usize) -> bool {
        let Some(planned) = self.waves.iter().rposition(Wave::is_planned) else { return true };
        let reach = if self.works_ahead { REACH } else { 0 };
        let end = self.waves.len().min(planned + 1 + reach);
        for wave in self.waves[..end].iter_mut().filter(|wave| !wave.is_split) {
            if *budget == 0 || self.waiting.count >= WAITING_MAX {
                return *budget > 0;
            }
            wave.is_split = true;
            for (node, part) in wave.parts.iter_mut() {
                if part.state != State::Waiting || part.left > 0 {
                    continue;
                }
                let left =
                    part.needs.iter().filter(|(task, _)| wave.tasks.get(task).is_some_and(|t| !t.done));
                let (mut split, mut left_bytes) = (Vec::<Chunk>::new(), 0);
                for (task, need) in left {
                    let most = (2 * WAITING_MAX).saturating_sub(self.waiting.count + split.len());
                    split.extend(chunks(*task, need, layouts, chunk_bytes, most));
                    left_bytes += need.bytes;
                }
                // What is beyond the bound is read without a plan.
                part.given_up_bytes += left_bytes - split.iter().map(|chunk| chunk.bytes).sum::<u64>();
                let name: Arc<str> = node.as_str().into();
                for (number, chunk) in split.iter().enumerate() {
                    let rank = Rank { wave: wave.id, at: chunk.at, node: name.clone(), number };
                    self.waiting.insert(chunk.queue, rank);
                }
                *budget = budget.saturating_sub(split.len());
                part.split(split);
            }
        }
        true
    }

    /// Queues in which chunks may wait.
    pub fn queues_waiting(&self) -> impl Iterator<Item = QueueKey> + '_ {
        let by_node = self.waiting.queues.get(&WIDE).into_iter().flat_map(BTreeMap::keys);
        let servers = self.waiting.queues.keys().filter(|queue| **queue != WIDE);
        by_node.map(|node| (WIDE, Some(node.clone()))).chain(servers.map(|queue| (*queue, None)))
    }

    /// Nodes for which chunks may wait in the queue.
    pub fn nodes_waiting(&self, (queue, node): &QueueKey) -> usize {
        let nodes = self.waiting.queues.get(queue);
        nodes.map_or(0, |nodes| {
            node.as_ref().map_or(nodes.len(), |node| usize::from(nodes.contains_key(node)))
        })
    }

    /// Nothing waits any more of waves that are gone.
    pub(super) fn forget_waiting_of_others(&mut self) {
        let waves = self.waves.iter().map(|wave| wave.id).collect();
        self.waiting.retain(&waves);
    }

    /// The chunk of the queue that is needed first, of those that may be requested: `may` is asked
    /// with the node and what the request would take. A node gets its chunks in their order, or a
    /// later one would take the place of the first.
    pub fn next_chunk(&mut self, key: &QueueKey, may: impl Fn(&str, Wanted) -> bool) -> Option<Rank> {
        let queue = key.0;
        loop {
            let mut over = Vec::new();
            let mut found: Option<Rank> = None;
            for rank in self.waiting.heads(key) {
                if found.as_ref().is_some_and(|found| *found < rank) {
                    continue;
                }
                if self.is_over(queue, &rank) {
                    over.push(rank);
                } else if self.offer(queue, &rank).is_some_and(|wanted| may(&rank.node, wanted)) {
                    found = Some(rank);
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

    /// Whether a chunk that waits is of no use any more: its task has ended, or reads by itself.
    fn is_over(&self, queue: QueueId, rank: &Rank) -> bool {
        let Some(wave) = self.wave(rank.wave) else { return true };
        let part = wave.parts.get(&*rank.node).filter(|part| part.state != State::Ended);
        let asked = part.and_then(|part| part.chunks.get(rank.number)).filter(|c| c.state == State::Waiting);
        // Its name may have been another's, before the node came back.
        let Some(asked) = asked.filter(|asked| asked.chunk.queue == queue) else { return true };
        let Some(task) = wave.tasks.get(&asked.chunk.task) else { return true };
        task.done || task.started && !self.works_ahead
    }

    /// What a request for the chunk would take; `None` if its planner does not want it now.
    fn offer(&self, queue: QueueId, rank: &Rank) -> Option<Wanted> {
        let wave = self.wave(rank.wave)?;
        let part = wave.parts.get(&*rank.node)?;
        let bytes = part.chunks.get(rank.number)?.chunk.bytes;
        let is_planned = wave.is_planned();
        if self.rules.whole_parts {
            return is_planned.then_some(Wanted { bytes, is_planned, limit: usize::MAX });
        }
        if self.works_ahead && queue == WIDE {
            let may_go = part.active < self.wide_limit(wave, &rank.node);
            return may_go.then_some(Wanted { bytes, is_planned, limit: WIDE_LIMIT });
        }
        let Some(setting) = wave.setting.filter(|_| is_planned) else {
            return self.works_ahead.then_some(Wanted { bytes, is_planned, limit: AHEAD_LIMIT });
        };
        let nodes = usize::from(setting.nodes);
        let has_turn = part.active > 0
            || nodes >= wave.parts.len()
            || wave.parts.values().filter(|part| part.active > 0).count() < nodes;
        has_turn.then_some(Wanted { bytes, is_planned, limit: usize::from(setting.threads.max(1)) })
    }

    /// Requests of the wave that the node may have in the wide queue, under a planner that works
    /// ahead. Nobody knows on which server they are, and those of one wave may all be on one. So
    /// beside the earliest wave of the node, each later one within reach has one request: other
    /// files, and with luck other servers. Nothing computes before the first wave is there, so
    /// nothing goes beside that.
    fn wide_limit(&self, wave: &Wave, node: &str) -> usize {
        let is_fetching = |wave: &Wave| wave.parts.get(node).is_some_and(|part| part.state != State::Ended);
        let Some(planned) = self.waves.iter().rfind(|wave| wave.is_planned()) else { return 0 };
        let ahead = (self.waves.len() / WAVES_FOR_ONE_AHEAD).clamp(1, AHEAD_WAVES) as u64;
        let is_in_reach = wave.is_planned() || wave.id <= planned.id + ahead && self.waves[0].is_over();
        let is_beside_first = wave.id > self.waves[0].id && is_fetching(&self.waves[0]);
        if !is_in_reach || is_beside_first {
            return 0;
        }
        let unfinished = self.waves.iter().skip_while(|wave| wave.is_finished());
        let is_later = unfinished.take_while(|earlier| earlier.id < wave.id).any(is_fetching);
        match wave.setting {
            _ if is_later => 1,
            Some(setting) => usize::from(setting.threads.max(1)),
            None => AHEAD_LIMIT,
        }
    }

    /// Waves between that of `rank` and the first that has not been computed.
    pub fn distance(&self, rank: &Rank) -> u64 {
        let first = self.waves.iter().find(|wave| !wave.is_finished()).map_or(rank.wave, |wave| wave.id);
        rank.wave.saturating_sub(first)
    }
}
