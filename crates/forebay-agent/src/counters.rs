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
    /// Of those, with a cached copy at hand.
    opens_cached_total,
    /// Requests of readers that waited for pages.
    fetch_requests_total,
    /// Pages fetched because a reader waited.
    pages_demanded_total,
    /// Pages fetched ahead of readers.
    pages_ahead_total,
    /// Pages fetched because a job will read them.
    pages_planned_total,
    /// Pages fetched by loads.
    pages_loaded_total,
    /// Pages fetched because small random reads kept missing them.
    pages_refilled_total,
    /// Pages stored by writers.
    pages_written_total,
    /// Pages that could not be fetched.
    pages_failed_total,
    /// Pages fetched ahead that were refused for lack of room.
    ahead_refused_total,
    /// Bytes read from the PFS.
    fetched_bytes,
    /// Requests for pages sent to peers. Adjacent small pages are one request.
    peer_requests_total,
    /// Pages received from peers that own them.
    pages_from_peers_total,
    /// Of those, received from nodes that their owners have named.
    pages_from_relays_total,
    /// Bytes received from peers.
    from_peers_bytes,
    /// Pages that were read from the disk level instead of the PFS.
    pages_from_disk_total,
    /// Bytes read from the disk level.
    from_disk_bytes,
    /// Evicted pages that were written to the disk level.
    pages_to_disk_total,
    /// Bytes written to the disk level.
    to_disk_bytes,
    /// Evicted pages for which the disk level was too slow.
    disk_missed_total,
    /// Failed reads and writes of the disk level, and damaged pages.
    disk_failed_total,
    /// Pages sent to peers.
    pages_to_peers_total,
    /// Bytes sent to peers.
    to_peers_bytes,
    /// Pages fetched into peers' tiers by loads of this node.
    pages_placed_total,
    /// Pages that were gone from the nodes they were fetched to before their load ended, and were
    /// fetched again.
    pages_replaced_total,
    /// Pages that a peer would not serve.
    peer_refusals_total,
    /// Pages that a peer did not have ready in time, though it answered.
    peer_not_yet_total,
    /// Peers that did not answer within the deadline.
    peer_late_total,
    /// Connections to peers that could not be made, or broke.
    peer_broken_total,
    /// Pages evicted.
    evicted_pages_total,
    /// Bytes evicted.
    evicted_bytes,
    /// Files found changed while they were read.
    changed_total,
    /// Requests that ended at their deadline.
    timeouts_total,
    /// Requests refused.
    refusals_total,
    /// Descriptors of file systems that are not served here, which clients sent.
    foreign_descriptors_total,
    /// Packets that were no messages.
    garbage_total,
    /// Touches taken from the rings of clients.
    touches_total,
    /// Copies adopted from an earlier agent.
    adopted_files_total,
    /// Changes of the capacity by the memory controller.
    capacity_changes_total,
    /// Of those, because more memory was in use than there should be.
    capacity_changes_above_total,
    /// Of those, because memory was free.
    capacity_changes_below_total,
    /// Of those, because more would have been in use before the next look.
    capacity_changes_growth_total,
    /// Bytes that the memory controller took from the tier.
    released_bytes,
    /// Reports of the kernel that memory runs short.
    memory_alarms_total,
    /// Looks at the memory that could not be understood.
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
    /// Passes over such a file that failed.
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
    /// Applications whose map outputs were removed because the node of their driver did not answer.
    shuffle_origins_lost_total,
    /// Bytes of second copies of map outputs that this node has sent to others.
    shuffle_copied_bytes,
    /// Map outputs of which no other node took a second copy.
    shuffle_copies_missed_total,
    /// Second copies of such files that this node has sent to others.
    copies_sent_total,
    /// Bytes of them.
    copies_sent_bytes,
    /// Times that a program with `copies = 2` waited for the PFS, because no node took the copy.
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
