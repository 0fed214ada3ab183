//! Queues of requests by server of the file system, and how what tasks read is split into chunks by
//! queue.
//!
//! Where the layout of a file is known, a node's part of a wave is not requested as a whole but in
//! chunks of some MiB at a time, server by server, the chunk that is needed first of all. So no
//! server is idle while another has a queue, and what a later wave needs never comes before what an
//! earlier one waits for. `docs/decisions/0016` describes the benefit.
//!
//! [`ConcurrencyWindow`] finds the concurrency window of each queue. A file that is on several
//! servers within a chunk, or whose layout is unknown, has the queue [`WIDE`]: it has no window,
//! and nodes have as many of its requests as their limit allows.

use alloc::borrow::ToOwned;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use super::event::{Layout, Part, QueueId, WaveId};
use super::nodes::NodeNumber;
use super::partition::Need;
use crate::concurrency_window::ConcurrencyWindow;
use crate::machine::Nanos;

/// The queue of files that are striped finer than a chunk, or whose layout is unknown.
pub const WIDE: QueueId = 0;

/// Limit on queues; servers beyond share the wide one.
const QUEUES_MAX: usize = 1 << 14;

/// Limit on the stripes of one round; a file with more is treated as one of unknown layout.
const SERVERS_MAX: usize = 4096;

/// Smallest and largest request. A smaller one would be mostly messages; of a file of 16 MiB there
/// are several at a time where a planner wants that. The largest still fits into one request
/// message.
const CHUNK_BYTES: (u64, u64) = (4 << 20, 128 << 20);

/// Target time of a request at its server.
const CHUNK_S: f64 = 0.1;

/// Limit on the parts of a request: with the longest paths they still fit into a message.
const CHUNK_PARTS_MAX: usize = 512;

/// A request ends with the stripe if stripes have at least this many bytes.
const STRIPE_BYTES: u64 = 4 << 20;

/// If no job runs, and there are more queues than this, all are forgotten: file systems and their
/// servers come and go.
const QUEUES_KEPT: usize = 1024;

/// Beside requests of an earlier wave a queue has this many less than its concurrency window: what
/// seems to be the work of two or three at a time may be that of one, beside readers that are in no
/// queue, and then what is needed later would take its share from what tasks wait for.
const LATER_LESS: u32 = 2;

/// A part that is smaller goes with the request before it, whatever its server: many small files
/// are no reason for as many requests.
const SMALL_BYTES: u64 = 1 << 20;

/// A request that has been under way for this long does not count: its node hangs, or the server.
const PATIENCE_NS: u64 = 30_000_000_000;

/// A queue that has such requests of this many nodes gets no more until they end, and so does a
/// node that has this many of them: another fetch there would hang as well.
const HANGING_MAX: usize = 2;

/// A wave of a stage, by the stage's serial.
pub type StageWave = (u32, WaveId);

/// See the module.
#[derive(Debug)]
pub struct Queues {
    numbers: BTreeMap<String, QueueId>,
    queues: Vec<Queue>,
    /// Requests under way, by node, and when they were sent.
    by_node: BTreeMap<NodeNumber, BTreeMap<u64, Nanos>>,
}

#[derive(Debug, Default)]
struct Queue {
    window: ConcurrencyWindow,
    /// Requests by number.
    under_way: BTreeMap<u64, UnderWay>,
}

/// The requests of a node.
#[derive(Clone, Copy, Debug, Default)]
pub struct AtNode {
    fresh: usize,
    hanging: usize,
}

impl AtNode {
    /// Returns whether the node may have one more if `limit` at a time are enough.
    pub fn has_slot(&self, limit: usize) -> bool {
        self.fresh < limit && self.hanging < HANGING_MAX
    }

    /// Counts one more request.
    pub fn begin(&mut self) {
        self.fresh += 1;
    }
}

#[derive(Debug)]
struct UnderWay {
    node: NodeNumber,
    wave: StageWave,
    since: Nanos,
    /// How many requests there were when it began, itself included.
    beside: u32,
}

impl Default for Queues {
    fn default() -> Self {
        Queues { numbers: BTreeMap::new(), queues: vec![Queue::default()], by_node: BTreeMap::new() }
    }
}

impl Queues {
    /// Returns the queue of a server.
    pub fn of(&mut self, server: &str) -> QueueId {
        if let Some(queue) = self.numbers.get(server) {
            return *queue;
        }
        if self.queues.len() >= QUEUES_MAX {
            return WIDE;
        }
        let queue = self.queues.len() as QueueId;
        self.numbers.insert(server.to_owned(), queue);
        self.queues.push(Queue::default());
        queue
    }

    /// Returns `layouts`, with queues in place of the numbers of servers, which are indices into
    /// `servers`.
    pub fn laid_out(&mut self, servers: &[String], layouts: Vec<Layout>) -> Vec<Layout> {
        let queues: Vec<QueueId> = servers.iter().map(|server| self.of(server)).collect();
        let queue = |server: u32| queues.get(server as usize).copied().unwrap_or(WIDE);
        let in_queues = |layout: Layout| match layout.servers.len() {
            0..=SERVERS_MAX => Layout { servers: layout.servers.into_iter().map(queue).collect(), ..layout },
            // Searching the stripes of a range would take too long.
            _ => Layout::default(),
        };
        layouts.into_iter().map(in_queues).collect()
    }

    /// Returns whether the queue may have one more request.
    pub fn is_free(&self, queue: QueueId, now: Nanos) -> bool {
        let Some(of_queue) = self.queues.get(queue as usize) else { return false };
        if queue == WIDE {
            return true;
        }
        let hanging = of_queue.under_way.values().filter(|request| !is_fresh(request.since, now));
        let nodes: BTreeSet<NodeNumber> = hanging.map(|request| request.node).collect();
        nodes.len() < HANGING_MAX && of_queue.counting(now) < of_queue.window.get()
    }

    /// Returns whether a free queue may have a request of this wave: beside what is needed earlier
    /// only if its server clearly does more at a time.
    pub fn takes(&self, queue: QueueId, wave: StageWave, now: Nanos) -> bool {
        let Some(of_queue) = self.queues.get(queue as usize).filter(|_| queue != WIDE) else { return true };
        let is_earlier = |request: &UnderWay| {
            request.wave.0 == wave.0 && request.wave.1 < wave.1 && is_fresh(request.since, now)
        };
        !of_queue.under_way.values().any(is_earlier)
            || of_queue.counting(now) + LATER_LESS < of_queue.window.get()
    }

    /// Returns the requests of the node, in all queues.
    pub fn at_node(&self, node: NodeNumber, now: Nanos) -> AtNode {
        let Some(orders) = self.by_node.get(&node) else { return AtNode::default() };
        let fresh = orders.values().filter(|since| is_fresh(**since, now)).count();
        AtNode { fresh, hanging: orders.len() - fresh }
    }

    /// Records that a node was sent a request of the queue, for a wave.
    pub fn begin(&mut self, queue: QueueId, order: u64, node: NodeNumber, wave: StageWave, now: Nanos) {
        let Some(queue) = self.queues.get_mut(queue as usize) else { return };
        let beside = queue.counting(now) + 1;
        let request = UnderWay { node, wave, since: now, beside };
        let of_queue = queue.under_way.insert(order, request);
        let of_node = self.by_node.entry(node).or_default().insert(order, now);
        assert!(of_queue.is_none() && of_node.is_none(), "request {order} of node {node} is counted twice");
    }

    /// Records that a request of the queue is over; `fetched_bytes` is what it has fetched from the
    /// PFS, if that is what took its time.
    pub fn end(&mut self, queue: QueueId, order: u64, now: Nanos, fetched_bytes: Option<u64>) {
        let Some(queue) = self.queues.get_mut(queue as usize) else { return };
        let Some(request) = queue.under_way.remove(&order) else { return };
        if let Some(bytes) = fetched_bytes {
            queue.window.served(bytes, now.saturating_since(request.since), request.beside);
        }
        let node = request.node;
        let orders = self.by_node.get_mut(&node);
        let ended = orders.and_then(|orders| Some((orders.remove(&order)?, orders.is_empty())));
        assert!(ended.is_some(), "request {order} is in a queue, but not among those of node {node}");
        if ended.is_some_and(|(_, is_last)| is_last) {
            self.by_node.remove(&node);
        }
    }

    /// Forgets the servers if there are many, while no job runs.
    pub fn rest(&mut self) {
        if self.queues.len() > QUEUES_KEPT {
            *self = Queues::default();
        }
    }

    /// Returns whether nothing is under way.
    pub fn are_idle(&self) -> bool {
        self.by_node.is_empty() && self.queues.iter().all(|queue| queue.under_way.is_empty())
    }
}

impl Queue {
    /// Returns the number of requests under way that do not hang.
    fn counting(&self, now: Nanos) -> u32 {
        self.under_way.values().filter(|request| is_fresh(request.since, now)).count() as u32
    }
}

fn is_fresh(since: Nanos, now: Nanos) -> bool {
    now.saturating_since(since) < PATIENCE_NS
}

/// Returns the size of chunks if `queues` queues together fetch `bytes_per_s`: a power of two.
pub fn chunk_bytes(bytes_per_s: f64, queues: usize) -> u64 {
    let wanted = (bytes_per_s * CHUNK_S / queues.max(1) as f64) as u64;
    wanted.clamp(CHUNK_BYTES.0, CHUNK_BYTES.1).next_power_of_two()
}

/// What one node fetches in one queue at a time, for one task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// The task that reads it.
    pub task: u32,
    /// Its queue.
    pub queue: QueueId,
    /// Parts of files, in the order of reading.
    pub parts: Vec<Part>,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that the task reads from the node before it.
    pub at: u64,
}

/// Splits what a node fetches for a task into chunks of `chunk_bytes` at most, none on more than
/// one queue. Files are split at multiples of that, which are also multiples of pages, and where
/// large stripes end. What is left after `most` chunks is in none: a size that a program reports
/// can be anything.
pub fn chunks(task: u32, need: &Need, layouts: &[Layout], chunk_bytes: u64, most: usize) -> Vec<Chunk> {
    let mut chunks: Vec<Chunk> = Vec::new();
    let mut at = 0;
    for part in &need.parts {
        let mut offset = part.offset;
        let end = part.offset.saturating_add(part.len);
        while offset < end {
            let stripe_bytes = layouts.get(part.file as usize).map_or(0, |layout| layout.stripe_bytes);
            let mut next = (offset / chunk_bytes + 1).saturating_mul(chunk_bytes).min(end);
            if stripe_bytes >= STRIPE_BYTES {
                next = next.min((offset / stripe_bytes + 1).saturating_mul(stripe_bytes));
            }
            let len = next - offset;
            let is_enough = chunks.len() >= most;
            let last = chunks.last_mut();
            let small = len < SMALL_BYTES;
            let queue = match (&last, small) {
                (Some(last), true) => last.queue,
                _ => queue_of(layouts.get(part.file as usize), offset, len),
            };
            let range = Part { file: part.file, offset, len };
            match last.filter(|p| {
                p.queue == queue && p.bytes + len <= chunk_bytes && p.parts.len() < CHUNK_PARTS_MAX
            }) {
                Some(last) => {
                    last.parts.push(range);
                    last.bytes += len;
                }
                None if is_enough => return chunks,
                None => chunks.push(Chunk { task, queue, parts: vec![range], bytes: len, at }),
            }
            at += len;
            offset = next;
        }
    }
    chunks
}

/// Returns the queue on which all of a range is, or the wide one.
fn queue_of(layout: Option<&Layout>, offset: u64, len: u64) -> QueueId {
    let Some(layout) = layout.filter(|l| l.stripe_bytes > 0 && !l.servers.is_empty()) else { return WIDE };
    let queue = |stripe: u64| layout.servers[(stripe % layout.servers.len() as u64) as usize];
    let first = offset / layout.stripe_bytes;
    let last = (offset + len.max(1) - 1) / layout.stripe_bytes;
    // After one round all have been seen.
    let mut others = (first + 1..=last).take(layout.servers.len());
    if others.all(|stripe| queue(stripe) == queue(first)) { queue(first) } else { WIDE }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const N: NodeNumber = 0;
    const M: NodeNumber = 1;

    fn need(parts: &[(u32, u64, u64)]) -> Need {
        let parts: Vec<Part> = parts.iter().map(|&(file, offset, len)| Part { file, offset, len }).collect();
        Need { bytes: parts.iter().map(|p| p.len).sum(), parts }
    }

    fn layout(stripe_bytes: u64, servers: &[u32]) -> Layout {
        Layout { stripe_bytes, servers: servers.to_vec() }
    }

    #[test]
    fn pieces_end_where_the_server_does() {
        let layouts = [layout(8 * MIB, &[1, 2])];
        let cut = chunks(7, &need(&[(0, 2 * MIB, 18 * MIB)]), &layouts, 4 * MIB, 9);
        let seen: Vec<_> =
            cut.iter().map(|p| (p.queue, p.parts[0].offset / MIB, p.bytes / MIB, p.at / MIB)).collect();
        assert_eq!(seen, [(1, 2, 2, 0), (1, 4, 4, 2), (2, 8, 4, 6), (2, 12, 4, 10), (1, 16, 4, 14)]);
        assert!(cut.iter().all(|p| p.task == 7));
        // Even where chunks are larger than stripes.
        let cut = chunks(7, &need(&[(0, 0, 32 * MIB)]), &layouts, 128 * MIB, 9);
        assert_eq!(
            cut.iter().map(|p| (p.queue, p.bytes / MIB)).collect::<Vec<_>>(),
            [(1, 8), (2, 8), (1, 8), (2, 8)]
        );
    }

    #[test]
    fn of_a_size_that_no_file_has_the_first_pieces_are_cut() {
        let all = need(&[(0, 0, u64::MAX)]);
        for layouts in [vec![], vec![layout(u64::MAX, &[1])], vec![layout(8 * MIB, &[1, 2])]] {
            let cut = chunks(0, &all, &layouts, 16 * MIB, 5);
            assert_eq!((cut.len(), cut[4].at), (5, 4 * cut[0].bytes), "{layouts:?}");
        }
    }

    #[test]
    fn what_is_on_several_servers_or_unknown_is_wide() {
        assert_eq!(queue_of(Some(&layout(MIB, &[1, 2])), 0, 4 * MIB), WIDE);
        assert_eq!(queue_of(Some(&layout(MIB, &[1, 1])), 0, 4 * MIB), 1);
        assert_eq!(queue_of(Some(&layout(MIB, &[1, 2])), MIB, MIB), 2);
        assert_eq!(queue_of(Some(&layout(u64::MAX, &[3])), 1 << 50, 4 * MIB), 3);
        assert_eq!(queue_of(Some(&layout(0, &[1])), 0, MIB), WIDE);
        assert_eq!(queue_of(Some(&layout(MIB, &[])), 0, MIB), WIDE);
        assert_eq!(queue_of(None, 0, MIB), WIDE);
    }

    #[test]
    fn many_small_files_make_few_pieces() {
        let parts: Vec<(u32, u64, u64)> = (0..1000).map(|file| (file, 0, 10_000)).collect();
        let layouts: Vec<Layout> = (0..1000).map(|file| layout(u64::MAX, &[1 + file % 4])).collect();
        let cut = chunks(0, &need(&parts), &layouts, 4 * MIB, 9);
        assert_eq!(cut.len(), 3, "of 10 MB in chunks of 4 MiB");
    }

    #[test]
    fn a_queue_has_no_more_than_its_window_and_a_node_no_more_than_its_limit() {
        let mut queues = Queues::default();
        let (a, b) = (queues.of("a"), queues.of("b"));
        assert_eq!((a, b, queues.of("a")), (1, 2, 1));
        assert!(queues.is_free(a, Nanos(0)));
        queues.begin(a, 10, N, (1, 0), Nanos(0));
        assert!(!queues.is_free(a, Nanos(0)), "the first is alone");
        assert!(queues.is_free(b, Nanos(0)));
        let late = Nanos(PATIENCE_NS);
        assert!(queues.is_free(a, late), "one that hangs keeps nobody");
        queues.begin(a, 9, N, (1, 0), late);
        assert_eq!(queues.queues[a as usize].under_way[&9].beside, 1, "nor does it count");
        let later = Nanos(2 * PATIENCE_NS);
        assert!(queues.is_free(a, later), "both are of one node: it hangs, and not the server");
        assert!(!queues.at_node(N, later).has_slot(4) && queues.at_node(M, later).has_slot(4));
        queues.begin(a, 8, M, (1, 0), late);
        assert!(!queues.is_free(a, later), "of two nodes");
        assert!(queues.at_node(M, later).has_slot(4), "one is not enough");
        queues.end(a, 8, late, None);
        queues.end(a, 9, late, None);
        queues.end(a, 10, Nanos(1_000_000), Some(4 * MIB));
        queues.begin(a, 11, N, (1, 0), Nanos(0));
        assert!(queues.is_free(a, Nanos(0)));
        queues.begin(a, 12, N, (1, 0), Nanos(0));
        assert!(!queues.is_free(a, Nanos(0)));
        queues.begin(b, 13, N, (1, 0), Nanos(0));
        queues.begin(b, 14, N, (1, 0), Nanos(0));
        assert!(!queues.at_node(N, Nanos(0)).has_slot(4) && queues.at_node(M, Nanos(0)).has_slot(4));
        (20..30).for_each(|order| queues.begin(WIDE, order, M, (1, 0), Nanos(0)));
        assert!(
            queues.is_free(WIDE, Nanos(0)) && !queues.at_node(M, Nanos(0)).has_slot(4),
            "it has what nodes have hands for"
        );
        for (queue, order) in [(a, 11), (a, 12), (b, 13), (b, 14), (b, 14)] {
            queues.end(queue, order, Nanos(0), None);
        }
        assert!(queues.at_node(N, Nanos(0)).has_slot(4) && !queues.by_node.contains_key(&N));
    }

    #[test]
    fn what_is_needed_later_comes_beside_the_earlier_only_where_a_server_does_many_at_a_time() {
        let mut queues = Queues::default();
        let a = queues.of("a");
        let takes =
            |queues: &Queues, wave| queues.is_free(a, Nanos(0)) && queues.takes(a, (1, wave), Nanos(0));
        queues.begin(a, 1, N, (1, 5), Nanos(0));
        queues.end(a, 1, Nanos(1000), Some(1));
        queues.begin(a, 2, N, (1, 5), Nanos(0));
        assert_eq!([4, 5, 6].map(|wave| takes(&queues, wave)), [true, true, false]);
        assert!(queues.takes(a, (2, 6), Nanos(0)), "of another stage nothing is known");
        // As fast as alone, however many there are.
        let mut order = 3;
        while queues.queues[a as usize].window.get() < 5 {
            queues.begin(a, order, M, (1, 5), Nanos(0));
            queues.begin(a, order + 1, M, (1, 5), Nanos(0));
            queues.begin(a, order + 2, M, (1, 5), Nanos(0));
            queues.begin(a, order + 3, M, (1, 5), Nanos(0));
            (order..order + 4).for_each(|order| queues.end(a, order, Nanos(1000), Some(1)));
            order += 4;
        }
        assert!(takes(&queues, 6));
    }

    #[test]
    fn servers_beyond_the_bound_share_the_wide_queue() {
        let mut queues = Queues::default();
        let names: Vec<String> = (0..2 * QUEUES_MAX).map(|i| i.to_string()).collect();
        let out = queues.laid_out(&names, vec![layout(MIB, &[0, QUEUES_MAX as u32, u32::MAX])]);
        assert_eq!(out[0].servers, [1, WIDE, WIDE]);
        assert_eq!(queues.queues.len(), QUEUES_MAX);
        queues.rest();
        assert_eq!(queues.of("new"), 1, "they are forgotten when no job runs");
    }

    #[test]
    fn faster_servers_get_larger_pieces() {
        let sizes = [1e6, 1e9, 4e9, 1e12].map(|speed| chunk_bytes(speed, 4) / MIB);
        assert_eq!(sizes, [4, 32, 128, 128]);
    }

    proptest! {
        #[test]
        fn pieces_are_what_was_needed_in_its_order(
            parts in proptest::collection::vec((0u32..4, 0u64..100 * MIB, 0u64..30 * MIB), 0..20),
            stripe in 1u64..20 * MIB,
            servers in proptest::collection::vec(0u32..5, 0..4),
            log in 22u32..26,
        ) {
            let need = need(&parts);
            let layouts = vec![layout(stripe, &servers); 3];
            let cut = chunks(0, &need, &layouts, 1 << log, usize::MAX);
            let mut bytes = 0;
            for chunk in &cut {
                prop_assert_eq!(chunk.at, bytes);
                prop_assert_eq!(chunk.bytes, chunk.parts.iter().map(|p| p.len).sum::<u64>());
                prop_assert!(chunk.bytes <= 1 << log);
                bytes += chunk.bytes;
            }
            prop_assert_eq!(bytes, need.bytes);
            let mut joined: Vec<Part> = Vec::new();
            for part in cut.iter().flat_map(|p| &p.parts) {
                match joined.last_mut().filter(|j| j.file == part.file && j.offset + j.len == part.offset) {
                    Some(last) => last.len += part.len,
                    None => joined.push(*part),
                }
            }
            let total: u64 = joined.iter().map(|p| p.len).sum();
            prop_assert_eq!(total, need.bytes);
        }
    }
}
