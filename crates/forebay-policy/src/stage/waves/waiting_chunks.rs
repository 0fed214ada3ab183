//! Chunks that wait for a request: split when their wave comes into reach, and requested in the
//! order in which they are needed, by wave, and within a wave by how soon their task comes to them.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::part::{NodePart, State};
use super::{StageRun, Wave};
use crate::stage::event::{Layout, QueueId, WaveId};
use crate::stage::nodes::NodeNumber;
use crate::stage::server_queues::{Chunk, WIDE, chunks};

/// Waves after the planned one that may be begun, if memory allows: enough that every server has
/// something to fetch.
const REACH: usize = 6;

/// Limit on those waves in the wide queue.
const AHEAD_WAVES: usize = 3;

/// Waves of a stage for each such wave ahead, of which there is at least one: what is fetched of
/// later waves takes bandwidth from the next, and a stage of few waves has no time to make up for
/// it.
const WAVES_FOR_ONE_AHEAD: usize = 5;

/// Requests of a node at a time for waves that no planner wants yet: as many as its fetch threads
/// serve for requests, so that none waits there and keeps a server from others.
pub(super) const AHEAD_LIMIT: usize = 4;

/// Requests of a node at a time if some of them are of the wide queue: one of each later wave
/// beside those of the planned one.
const WIDE_LIMIT: usize = 8;

/// Number of waiting chunks of a stage from which no more waves are split; of one wave no more are
/// made than reach twice as many.
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
    /// The place of the node's part in the wave.
    part: usize,
}

/// What a request for a chunk would take of its node.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Its bytes.
    pub bytes: u64,
    /// Whether the planner wants its wave now.
    pub is_planned: bool,
    /// Requests that the node may have at a time, with this one.
    pub limit: usize,
}

/// What to do with a waiting chunk.
enum Offer {
    /// It is no longer needed: its task has ended, or reads by itself.
    Over,
    /// Its planner does not want it now.
    Later,
    /// It may be requested.
    Now(Wanted),
}

/// Nodes with requests of a wave, counted once for all chunks that are examined in turn.
type Fetching = Option<(WaveId, usize)>;

/// A queue, or one node's share of the queue that has no window: there nodes do not wait for each
/// other, and examining all of them for each request would take too long.
pub type QueueKey = (QueueId, Option<Arc<str>>);

/// A chunk of one node and queue: the wave, what its task reads before it, its number, and the
/// place of the node's part in the wave.
type Place = (WaveId, u64, usize, usize);

/// Waiting chunks. Some may be over, which is checked when they are examined.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    queues: BTreeMap<QueueId, BTreeMap<Arc<str>, OfNode>>,
    count: usize,
}

/// Chunks of one node in one queue, and a copy of the first: at most deadlines only that is
/// examined.
#[derive(Debug)]
struct OfNode {
    first: Place,
    chunks: BTreeSet<Place>,
}

impl OfNode {
    /// Finds the first chunk again; `false` if none is left.
    fn has_first(&mut self) -> bool {
        self.chunks.first().inspect(|first| self.first = **first).is_some()
    }
}

impl Rank {
    fn of(node: &Arc<str>, (wave, at, number, part): Place) -> Self {
        Rank { wave, at, node: node.clone(), number, part }
    }

    fn place(&self) -> Place {
        (self.wave, self.at, self.number, self.part)
    }
}

impl Waiting {
    fn insert(&mut self, queue: QueueId, rank: Rank) {
        let place = rank.place();
        let nodes = self.queues.entry(queue).or_default();
        let new = || OfNode { first: place, chunks: BTreeSet::new() };
        let of_node = nodes.entry(rank.node).or_insert_with(new);
        of_node.first = of_node.first.min(place);
        self.count += usize::from(of_node.chunks.insert(place));
    }

    pub(super) fn remove(&mut self, queue: QueueId, rank: &Rank) {
        let Some(nodes) = self.queues.get_mut(&queue) else { return };
        let Some(of_node) = nodes.get_mut(&rank.node) else { return };
        self.count -= usize::from(of_node.chunks.remove(&rank.place()));
        if !of_node.has_first() {
            nodes.remove(&rank.node);
        }
        if nodes.is_empty() {
            self.queues.remove(&queue);
        }
    }

    /// Forgets chunks of other waves than these.
    fn retain(&mut self, waves: &BTreeSet<WaveId>) {
        for nodes in self.queues.values_mut() {
            for of_node in nodes.values_mut() {
                of_node.chunks.retain(|(wave, ..)| waves.contains(wave));
            }
            nodes.retain(|_, of_node| of_node.has_first());
        }
        self.queues.retain(|_, nodes| !nodes.is_empty());
        self.count =
            self.queues.values().flat_map(BTreeMap::values).map(|of_node| of_node.chunks.len()).sum();
    }

    /// Shows `look` what may go next: in a queue by server, the first chunk of each node, in the
    /// order of their names; in a node's share of the wide queue, the first of each wave.
    fn heads<'a>(&'a self, (queue, node): &QueueKey, mut look: impl FnMut(&'a Arc<str>, Place)) {
        let Some(nodes) = self.queues.get(queue) else { return };
        let Some(node) = node else {
            return nodes.iter().for_each(|(node, of_node)| look(node, of_node.first));
        };
        let Some((node, OfNode { chunks, .. })) = nodes.get_key_value(node) else { return };
        let mut next = chunks.first();
        while let Some(place) = next {
            look(node, *place);
            next = chunks.range((place.0 + 1, 0, 0, 0)..).next();
        }
    }
}

impl StageRun {
    /// Returns whether a wave that has come into reach is not split into chunks yet.
    pub fn has_to_split(&self) -> bool {
        let reach = self.reach();
        self.waves[self.split.min(reach)..reach].iter().any(|wave| !wave.is_split)
    }

    /// Returns the number of waves that may be begun, if memory allows.
    fn reach(&self) -> usize {
        let Some(planned) = self.last_wanted() else { return 0 };
        let ahead = if self.opportunistic || self.is_ahead { REACH } else { 0 };
        self.waves.len().min(planned + 1 + ahead)
    }

    /// Splits what has come into reach into chunks of `chunk_bytes` at most, wave by wave until
    /// `budget` chunks are made or enough wait; `false` if the budget was not enough.
    pub fn split(&mut self, layouts: &[Layout], chunk_bytes: u64, budget: &mut usize) -> bool {
        let end = self.reach();
        for wave in self.waves[self.split.min(end)..end].iter_mut().filter(|wave| !wave.is_split) {
            if *budget == 0 || self.waiting.count >= WAITING_MAX {
                return *budget > 0;
            }
            wave.is_split = true;
            for (place, (node, part)) in wave.parts.iter_mut().enumerate() {
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
                let split_bytes = split.iter().map(|chunk| chunk.bytes).sum::<u64>();
                assert!(split_bytes <= left_bytes, "{left_bytes} bytes became chunks of {split_bytes}");
                part.given_up_bytes += left_bytes - split_bytes;
                for (number, chunk) in split.iter().enumerate() {
                    let rank = Rank::of(node, (wave.id, chunk.at, number, place));
                    self.waiting.insert(chunk.queue, rank);
                }
                *budget = budget.saturating_sub(split.len());
                part.split(split);
            }
        }
        self.split = self.split.max(end);
        true
    }

    /// Returns whether chunks may wait.
    pub fn waits(&self) -> bool {
        !self.waiting.queues.is_empty()
    }

    /// Returns the queues in which chunks may wait.
    pub fn queues_waiting(&self) -> impl Iterator<Item = QueueKey> + '_ {
        let by_node = self.waiting.queues.get(&WIDE).into_iter().flat_map(BTreeMap::keys);
        let servers = self.waiting.queues.keys().filter(|queue| **queue != WIDE);
        by_node.map(|node| (WIDE, Some(node.clone()))).chain(servers.map(|queue| (*queue, None)))
    }

    /// Returns the number of nodes for which chunks may wait in the queue.
    pub fn nodes_waiting(&self, (queue, node): &QueueKey) -> usize {
        let nodes = self.waiting.queues.get(queue);
        nodes.map_or(0, |nodes| {
            node.as_ref().map_or(nodes.len(), |node| usize::from(nodes.contains_key(node)))
        })
    }

    /// Forgets waiting chunks of waves that are gone.
    pub(super) fn forget_waiting_of_others(&mut self) {
        let waves = self.waves.iter().map(|wave| wave.id).collect();
        self.waiting.retain(&waves);
    }

    /// Returns the chunk of the queue that is needed first, of those that may be requested: `may`
    /// is called with the node and what the request would take. A node gets its chunks in their
    /// order, or a later one would take the place of the first.
    pub fn next_chunk(
        &mut self,
        key: &QueueKey,
        may: impl Fn(NodeNumber, Wanted) -> bool,
    ) -> Option<(Rank, NodeNumber)> {
        loop {
            let (mut over, mut found, mut fetching) =
                (Vec::new(), None::<(&Arc<str>, Place, NodeNumber)>, None);
            self.waiting.heads(key, |node, place| {
                // Of two that are needed at the same time the first by name goes first.
                if found.is_some_and(|(_, found, _)| (found.0, found.1) <= (place.0, place.1)) {
                    return;
                }
                let Some((wave, part)) = self.part_at(place) else {
                    return over.push(Rank::of(node, place));
                };
                match self.offer(key.0, node, place, (wave, part), &mut fetching) {
                    Offer::Over => over.push(Rank::of(node, place)),
                    Offer::Now(wanted) if may(part.node, wanted) => found = Some((node, place, part.node)),
                    Offer::Later | Offer::Now(_) => {}
                }
            });
            let found = found.map(|(node, place, number)| (Rank::of(node, place), number));
            if over.is_empty() {
                return found;
            }
            for rank in over {
                self.waiting.remove(key.0, &rank);
                if let Some(part) = self.part(rank.wave, &rank.node) {
                    part.give_up(key.0, rank.number);
                }
            }
        }
    }

    fn part_at(&self, (wave, .., part): Place) -> Option<(&Wave, &NodePart)> {
        let wave = self.wave(wave)?;
        Some((wave, wave.parts.at(part)?))
    }

    /// Returns whether a waiting chunk is wanted, and what a request for it would take.
    fn offer(
        &self,
        queue: QueueId,
        node: &str,
        place: Place,
        (wave, part): (&Wave, &NodePart),
        fetching: &mut Fetching,
    ) -> Offer {
        let waits = part.chunks.get(place.2).filter(|_| part.state != State::Ended);
        let waits = waits.filter(|asked| asked.state == State::Waiting);
        // Its number may have belonged to another chunk before the node came back.
        let Some(asked) = waits.filter(|asked| asked.chunk.queue == queue) else { return Offer::Over };
        // No task of a wave that has not begun is over, and this check is made for very many
        // chunks.
        if wave.started > 0 || wave.done > 0 {
            let task = wave.tasks.get(&asked.chunk.task);
            if task.is_none_or(|task| task.done || task.started && !self.opportunistic) {
                return Offer::Over;
            }
        }
        let limit = match self.limit(queue, node, (wave, part), fetching) {
            Some(limit) => limit,
            None => return Offer::Later,
        };
        Offer::Now(Wanted { bytes: asked.chunk.bytes, is_planned: wave.is_planned(), limit })
    }

    /// Returns the number of requests that the node may have at a time, with one more of the wave;
    /// `None` if the wave's planner does not want one now.
    fn limit(
        &self,
        queue: QueueId,
        node: &str,
        (wave, part): (&Wave, &NodePart),
        fetching: &mut Fetching,
    ) -> Option<usize> {
        if self.rules.whole_parts {
            return wave.is_planned().then_some(usize::MAX);
        }
        if self.opportunistic && queue == WIDE {
            return (part.active.len() < self.wide_limit(wave, node)).then_some(WIDE_LIMIT);
        }
        let Some(setting) = wave.setting.filter(|_| wave.is_planned()) else {
            // A wave that the planner has skipped is left to its tasks.
            let planned = self.waves.get(self.last_planned);
            let is_later = wave.setting.is_none() && planned.is_some_and(|planned| wave.id > planned.id);
            return match self.opportunistic || self.is_ahead && is_later {
                true if queue == WIDE => {
                    (part.active.len() < self.wide_limit(wave, node)).then_some(WIDE_LIMIT)
                }
                true => Some(AHEAD_LIMIT),
                false => None,
            };
        };
        let nodes = usize::from(setting.nodes);
        let has_turn = !part.active.is_empty() || nodes >= wave.parts.len() || {
            let count = || wave.parts.values().filter(|part| !part.active.is_empty()).count();
            let known = fetching.filter(|(of, _)| *of == wave.id);
            fetching.insert(known.unwrap_or_else(|| (wave.id, count()))).1 < nodes
        };
        has_turn.then(|| usize::from(setting.threads.max(1)) + self.ahead_requests(node))
    }

    /// Returns the number of requests of the node for waves after the planned one. They do not
    /// count against the limit of the planned one.
    fn ahead_requests(&self, node: &str) -> usize {
        if !self.is_ahead {
            return 0;
        }
        let waves = self.fetching.iter().filter_map(|id| self.wave(*id));
        let ahead = waves.filter(|wave| wave.setting.is_none()).filter_map(|wave| wave.parts.get(node));
        ahead.map(|part| part.active.len()).sum()
    }

    /// Returns the number of requests of the wave that the node may have in the wide queue, under a
    /// planner that prefetches opportunistically. Their servers are unknown, and those of one wave
    /// may all be on one. So beside the earliest wave of the node, each later one within reach has
    /// one request: other files, and with luck other servers. Nothing computes before the first
    /// wave is fetched, so nothing goes beside that.
    fn wide_limit(&self, wave: &Wave, node: &str) -> usize {
        let is_fetching = |wave: &Wave| wave.parts.get(node).is_some_and(|part| part.state != State::Ended);
        let Some(planned) = self.last_wanted().map(|place| &self.waves[place]) else { return 0 };
        let ahead = (self.waves.len() / WAVES_FOR_ONE_AHEAD).clamp(1, AHEAD_WAVES) as u64;
        let is_in_reach = wave.is_planned() || wave.id <= planned.id + ahead && self.waves[0].is_over();
        let is_beside_first = wave.id > self.waves[0].id && is_fetching(&self.waves[0]);
        if !is_in_reach || is_beside_first {
            return 0;
        }
        let unfinished = self.unfinished().iter().skip_while(|wave| wave.is_finished());
        let is_later = unfinished.take_while(|earlier| earlier.id < wave.id).any(is_fetching);
        match wave.setting {
            _ if is_later => 1,
            Some(setting) => usize::from(setting.threads.max(1)),
            None => AHEAD_LIMIT,
        }
    }

    /// Returns the number of waves between that of `rank` and the first that has not been computed.
    pub fn distance(&self, rank: &Rank) -> u64 {
        let first =
            self.unfinished().iter().find(|wave| !wave.is_finished()).map_or(rank.wave, |wave| wave.id);
        rank.wave.saturating_sub(first)
    }
}
