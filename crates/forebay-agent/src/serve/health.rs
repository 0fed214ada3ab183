//! How this node is, for the coordinator.

use super::session::Node;
use crate::mounts::wall_clock_ns;
use forebay_wire::Health;
use forebay_wire::cluster::ToCoordinator;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

/// Time between two reports.
const EVERY: Duration = Duration::from_secs(5);

/// Reports to each coordinator immediately, and then regularly, until the agent ends.
pub fn report(node: &Node) {
    let mut changes = 0;
    while !node.stop.is_stopping() {
        changes = node.link.wait_for_change(changes, EVERY);
        node.link.say(ToCoordinator::Health(Box::new(health(node))), None);
    }
}

fn health(node: &Node) -> Health {
    let mounts = node.mounts.iter().enumerate().map(|(number, mount)| {
        let status = mount.status(node.fetch.pfs.load(number));
        (status.label, status.mounted, status.cached, status.fetch_errors, status.slowest_ms)
    });
    let (parked_files, oldest) = node.write_back.neglected();
    let avoided = node.cluster.status().avoided.into_iter();
    Health {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        clock_ns: wall_clock_ns(),
        capacity_max_bytes: node.control.max_bytes(),
        capacity_bytes: node.cache.budget.capacity_bytes(),
        huge_pages: node.cache.tier.huge_pages().to_owned(),
        memory_problems: node.control.problems(),
        mounts: mounts.collect(),
        avoided: avoided.map(|(peer, _)| peer).collect(),
        certificate_days: node.security.expires().map(days_until),
        open_files_max: rustix::process::getrlimit(rustix::process::Resource::Nofile)
            .current
            .unwrap_or(u64::MAX),
        to_peers_bytes: node.counters.to_peers_bytes.load(Ordering::Relaxed),
        parked_files,
        oldest_dirty_ms: oldest.as_millis() as u64,
        failing: node.write_back.failing(),
        copies_missed: node.counters.copies_missed_total.load(Ordering::Relaxed),
    }
}

fn days_until(time: SystemTime) -> i64 {
    let days = |length: Duration| (length.as_secs() / 86_400) as i64;
    time.duration_since(SystemTime::now()).map_or_else(|e| -days(e.duration()) - 1, days)
}
