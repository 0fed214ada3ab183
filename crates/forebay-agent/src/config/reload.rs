//! What a running agent takes from its configuration when it is read again (SIGHUP).
//!
//! [`Live`] holds the configuration that was read last. Code that uses a key of [`LIVE`] asks for
//! it at each use, and keeps no copy: so a reload has one place, and no key needs a setter of its
//! own. All other keys have their values of the start.

use std::sync::{PoisonError, RwLock};

/// A configuration that is replaced as a whole.
#[derive(Debug, Default)]
pub struct Live<C>(RwLock<C>);

impl<C> Live<C> {
    /// The configuration of the start.
    pub fn new(config: C) -> Self {
        Live(RwLock::new(config))
    }

    /// A value of the configuration that was read last: of a key of [`LIVE`].
    pub fn get<T>(&self, value: impl FnOnce(&C) -> T) -> T {
        value(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes a configuration that was read again.
    pub fn set(&self, config: C) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
    }
}

/// Keys that a running agent takes.
pub const LIVE: [&str; 14] = [
    "agent.connections_max",
    "agent.audit_log",
    "tier.capacity",
    "tier.spill_fill",
    "tier.checkpoint_gap_ms",
    "memory.target",
    "memory.min",
    "memory.watch",
    ACCESS_WAIT,
    "cluster.peer_deadline_ms",
    "mount.merge_gap",
    "mount.settle_ms",
    "mount.map_rest_ms",
    "mount.keep_page_cache",
];

/// Agents take it; a coordinator does not, since its decisions are replayed with the value of its
/// start.
pub const ACCESS_WAIT: &str = "cluster.access_wait_s";

/// Why the other keys wait for the next start, and which they are. One that ends with a dot stands
/// for its table.
const AT_START: [(&str, &[&str]); 5] = [
    (
        "a directory, file, port or mount that is opened once",
        &[
            "agent.state_dir",
            "agent.socket_mode",
            "agent.decision_log",
            "tier.limit",
            "tier.backing",
            "tier.directory",
            "tier.log",
            "tier.disk",
            "tier.disk_capacity",
            "tier.spill",
            "metrics.",
            "console.",
            "cluster.coordinator",
            "cluster.listen",
            "cluster.tls",
            "mount.label",
            "mount.root",
            "mount.require_mount",
            "mount.stamps",
            "mount.probe_dir",
        ],
    ),
    (
        "other nodes, or the pages in the tier, depend on it",
        &[
            "cluster.node",
            "cluster.host",
            "cluster.role",
            "cluster.storage_hosts",
            "mount.page_size",
            "mount.small_page_files",
            "mount.extent_size",
            "mount.layout",
        ],
    ),
    (
        "threads and policies are made with it, and decisions are replayed with it",
        &[
            "tier.eviction",
            "tier.dirty_age_max_s",
            "memory.policy",
            "mount.fetch_threads",
            "mount.random_fill_percent",
        ],
    ),
    (
        "programs receive it when they connect",
        &["mount.read_ahead", "mount.revalidate", "mount.stamp_granularity_ms"],
    ),
    (
        "not the agent's: the coordinator takes it at its start, `forebay ship` whenever it runs",
        &[
            "cluster.coordinator_listen",
            "cluster.coordinator_buffers",
            "cluster.coordinator_reports",
            "cluster.etcd",
            "cluster.etcd_prefix",
            "cluster.etcd_tls",
            "cluster.planner",
            "cluster.profile",
            "cluster.access",
            "cluster.task_wait_s",
            "cluster.decision_log",
            "ship.",
        ],
    ),
];

/// Both lists as text, one line each.
pub fn in_words() -> Vec<String> {
    let mut lines = vec![format!(
        "A running agent takes these when it reads its configuration again (SIGHUP): {}.",
        LIVE.join(", ")
    )];
    lines.push("The others wait for the next start, because of what they are:".to_owned());
    lines.extend(AT_START.iter().map(|(why, keys)| {
        let name = |key: &&str| if key.ends_with('.') { format!("{key}*") } else { (*key).to_owned() };
        format!("- {why}: {}.", keys.iter().map(name).collect::<Vec<_>>().join(", "))
    }));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_taken_or_waits_for_one_reason() {
        let waits = AT_START.iter().flat_map(|(_, keys)| *keys);
        let all: Vec<&str> = LIVE.iter().chain(waits).copied().collect();
        let is_of =
            |listed: &str, key: &str| listed == key || listed.ends_with('.') && key.starts_with(listed);
        for key in super::super::keys() {
            let times = all.iter().filter(|listed| is_of(listed, key.name)).count();
            assert_eq!(times, 1, "{} is listed {times} times", key.name);
        }
        let is_key = |listed: &str| super::super::keys().any(|key| is_of(listed, key.name));
        assert!(all.iter().all(|listed| is_key(listed)), "{all:?}");
    }
}
