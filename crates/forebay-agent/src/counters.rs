//! Counters of an agent: a contract with whoever watches it. Names carry their units and are never
//! reused.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident),* $(,)?) => {
        /// Counters since the start of the agent.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[doc = $doc])* pub $name: AtomicU64),* }

        /// Names, and what they count.
        pub const HELP: &[(&str, &str)] = &[$((stringify!($name), concat!($($doc),*))),*];

        impl Counters {
            /// Names and values, in a fixed order.
            pub fn list(&self) -> Vec<(String, u64)> {
                vec![$((stringify!($name).to_owned(), self.$name.load(Ordering::Relaxed))),*]
            }
        }
    };
}

counters! {
    /// Files opened through the agent.
    opens_total,
    /// Of those, files with a cached copy.
    opens_cached_total,
    /// Readers that waited for pages.
    fetch_requests_total,
    /// Pages fetched because a reader waited.
    pages_demanded_total,
    /// Pages fetched ahead of readers.
    pages_ahead_total,
    /// Pages fetched because a job will read them, by prefetch requests of the coordinator.
    pages_planned_total,
    /// Pages fetched by loads.
    pages_loaded_total,
    /// Pages fetched because small random reads kept missing them.
    pages_refilled_total,
    /// Pages stored by writers.
    pages_written_total,
    /// Pages not fetched: error of the PFS, file changed, or no room.
    pages_failed_total,
    /// Pages of read-ahead refused: too many fetches wait, an I/O phase is behind, the user has its
    /// share, or the file cannot be kept.
    ahead_refused_total,
    /// Bytes read from the PFS, all mounts.
    fetched_bytes,
    /// Requests for pages sent to peers. Adjacent small pages are one request.
    peer_requests_total,
    /// Pages received from peers that own them.
    pages_from_peers_total,
    /// Of those, from nodes other than their owners, because many nodes read a file.
    pages_from_relays_total,
    /// Bytes of pages from peers, including pages that arrived in part.
    from_peers_bytes,
    /// Pages that were read from the disk level instead of the PFS.
    pages_from_disk_total,
    /// Bytes read from the disk level.
    from_disk_bytes,
    /// Evicted pages that were written to the disk level.
    pages_to_disk_total,
    /// Bytes written to the disk level.
    to_disk_bytes,
    /// Evicted pages not written to the disk level, because it was too slow.
    disk_missed_total,
    /// Failed reads and writes of the disk level, and damaged pages.
    disk_failed_total,
    /// Pages sent to peers.
    pages_to_peers_total,
    /// Bytes of pages sent to peers, including pages sent in part.
    to_peers_bytes,
    /// Pages fetched into peers' tiers by loads of this node.
    pages_placed_total,
    /// Of those, pages missing at the end of their load and fetched again.
    pages_replaced_total,
    /// Pages that a peer did not serve: no permission, a different version, no room, too busy.
    peer_refusals_total,
    /// Answers "not yet" of peers that were still reading the PFS.
    peer_not_yet_total,
    /// Pages whose peer missed `cluster.peer_deadline_ms`; the agent then avoids it.
    peer_late_total,
    /// Connections to peers that failed or broke; the agent then avoids the peer.
    peer_broken_total,
    /// Pages evicted, for any reason.
    evicted_pages_total,
    /// Bytes evicted.
    evicted_bytes,
    /// Files found changed while they were read.
    changed_total,
    /// Requests that ended at their client's deadline.
    timeouts_total,
    /// Requests and connections refused: no room, file changed too recently, no proof, too many.
    refusals_total,
    /// Descriptors of file systems that the agent does not serve.
    foreign_descriptors_total,
    /// Packets that were not valid messages.
    garbage_total,
    /// Touches of cached pages, reported by clients.
    touches_total,
    /// Files adopted from an earlier agent.
    adopted_files_total,
    /// Changes of the capacity by the memory controller.
    capacity_changes_total,
    /// Of those, because use was above the target.
    capacity_changes_above_total,
    /// Of those, because memory was free.
    capacity_changes_below_total,
    /// Of those, because use would have passed the target before the next sample.
    capacity_changes_growth_total,
    /// Bytes released by the memory controller.
    released_bytes,
    /// Events from the kernel: memory is short.
    memory_alarms_total,
    /// Samples of memory use that could not be read or understood.
    memory_unreadable_total,
    /// Times that prefetches, loads and read-ahead were stopped for an I/O phase of an HPC job.
    brakes_total,
    /// I/O phases of HPC jobs that never ended and were cut off.
    phases_cut_off_total,
    /// Files that programs wrote to the tier first.
    absorbed_files_total,
    /// Bytes of them written to the PFS.
    drained_bytes,
    /// Of those, bytes written during I/O phases of HPC jobs, because a program waited for room or
    /// soon would have.
    drained_for_room_bytes,
    /// The same, because the file had waited for `tier.dirty_age_max_s`.
    drained_for_age_bytes,
    /// Passes over such a file that failed; `forebay dirty` shows why.
    drains_failed_total,
    /// Blocks of map outputs that reducers of this node requested.
    shuffle_blocks_total,
    /// Bytes of them received from peers.
    shuffle_from_peers_bytes,
    /// Bytes of map outputs sent to peers.
    shuffle_to_peers_bytes,
    /// Bytes of map outputs that this agent moved from memory to its disk.
    shuffle_spilled_bytes,
    /// Map outputs that the disk did not take.
    shuffle_spills_failed_total,
    /// Applications whose map outputs were removed because the node of their driver did not answer
    /// for 60 s.
    shuffle_origins_lost_total,
    /// Bytes of second copies of map outputs that this node has sent to others.
    shuffle_copied_bytes,
    /// Map outputs of which no other node took a second copy.
    shuffle_copies_missed_total,
    /// Second copies of such files that this node has made, on other nodes or in its log.
    copies_sent_total,
    /// Bytes of them.
    copies_sent_bytes,
    /// Times that a program waited for the PFS, because neither a node nor the log took the second
    /// copy.
    copies_missed_total,
    /// Files that this node took over from a node that was gone, by their second copies.
    taken_over_total,
    /// Held sets of checkpoints that gave way to what their user wrote.
    checkpoints_released_total,
    /// Markers of whole sets of checkpoints that were written to the PFS.
    markers_written_total,
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}
