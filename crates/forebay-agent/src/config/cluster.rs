//! The section `[cluster]`: what an agent has to know to be one of many.

use super::table::{self, Entry, Key, default_of, keys, section};
use forebay_policy::burst::access::{POLICIES as ACCESS, SIMULATED_ONLY};
use forebay_policy::planner::POLICIES;
use forebay_wire::Role;
use forebay_wire::frame::MAX_FRAME_BYTES;
use std::path::PathBuf;
use std::time::Duration;

/// Least memory for what jobs report: that of a hundred thousand splits.
const REPORTS_BYTES_MIN: u64 = 16 << 20;

/// Two of the longest messages.
const BUFFERS_BYTES_MIN: u64 = 2 * MAX_FRAME_BYTES as u64;

/// How long a lost coordinator is waited for where another one takes over: an election takes three
/// seconds, and the new one waits for three more before it answers if a node is gone.
pub const FAIL_OVER_MAX: Duration = Duration::from_secs(8);

/// How long a coordinator that may be restarting is waited for.
const RESTART_MAX: Duration = Duration::from_secs(5);

section! {
    /// What an agent has to know to be one of many, validated.
    ClusterConfig, CLUSTER {
        /// HOST:PORT of the cluster's coordinator, or a list with those of all candidates
        /// (docs/cluster.md). Empty: this agent runs the coordinator in its own process.
        "cluster.coordinator" => coordinator: Vec<String> = r#""""#, texts();
        /// IP:PORT where the coordinator of this process serves other agents. Empty: a cluster of
        /// one, no port is open.
        "cluster.coordinator_listen" => coordinator_listen: String = r#""""#, text();
        /// URLs of the members of etcd in which the leader of several candidates is elected, such
        /// as ["http://n1:2379"]. For the process of a candidate. Empty: one coordinator.
        "cluster.etcd" => etcd: Vec<String> = r#""""#, texts();
        /// What the keys of this cluster in etcd begin with: another one for each cluster.
        "cluster.etcd_prefix" => etcd_prefix: String = r#""/forebay/""#, text();
        /// Directory with ca.pem, which signs the certificates of etcd, and node.pem and node.key
        /// if etcd asks for a certificate. Needed for https URLs.
        "cluster.etcd_tls" => etcd_tls: Option<PathBuf> = r#""""#, path();
        /// Limit on the coordinator's send and receive buffers for all agents, in addition to any
        /// tier. Above the limit, the coordinator closes the connection that has been behind for
        /// longest; its agent reconnects.
        "cluster.coordinator_buffers" => coordinator_buffers_bytes: u64 = r#""256MiB""#, bytes(BUFFERS_BYTES_MIN..=u64::MAX);
        /// Limit on the coordinator's memory for what all jobs report, in addition to any tier: a
        /// split takes about 150 bytes. Above the limit, the coordinator no longer plans the
        /// largest job of the user whose jobs take most; its tasks read without prefetch.
        "cluster.coordinator_reports" => coordinator_reports_bytes: u64 = r#""1GiB""#, bytes(REPORTS_BYTES_MIN..=u64::MAX);
        /// IP:PORT where this agent serves pages to its peers; port 0 picks a free one. Empty: the
        /// agent exchanges no pages with peers.
        "cluster.listen" => listen: String = r#""""#, text();
        /// Name of this node, unique in the cluster; its extents move if it changes. Empty: the
        /// host name.
        "cluster.node" => node: String = r#""""#, text();
        /// The name that schedulers (Spark, YARN) use for this node; block locations contain it.
        /// Empty: the node's name.
        "cluster.host" => host: String = r#""""#, text();
        /// On which hosts the storage servers of the PFS run, such as ["OST0000=oss1",
        /// "10.0.0.14=oss2"]: names of the PFS, as `forebay layout` shows them, with or without
        /// what follows the first colon, and names of schedulers. Servers with the name or address
        /// of a member need no entry. For the agents of programs that ask for locations, and for
        /// those of these hosts, which read their own stripes without their peers.
        "cluster.storage_hosts" => storage_hosts: Vec<(String, String)> = r#""""#, pairs();
        /// co-located: a compute node that lends memory. dedicated: a node that keeps extents and
        /// runs no tasks.
        "cluster.role" => role: Role = r#""co-located""#, choice();
        /// Directory with ca.pem, node.pem and node.key, made by `forebay init`. Empty: plain TCP,
        /// which is allowed on loopback addresses only, between processes of the same user.
        "cluster.tls" => tls: Option<PathBuf> = r#""""#, path();
        /// Longest wait for a page from a peer. After it, the agent reads the PFS and avoids the
        /// peer for a while. A page of 2 MiB takes a millisecond; the rest is for a PFS that is
        /// slow at the peer.
        "cluster.peer_deadline_ms" => peer_deadline: Duration = "2000", millis(10..=600_000);
        /// Prefetch planner for analytics jobs that name none: no-action fetches the next wave at
        /// once, naive-bb never prefetches; full-delay, eley, eley-direct and forebay also plan
        /// around the I/O phases of HPC jobs (docs/interference.md).
        "cluster.planner" => planner: String = r#""no-action""#, parsed(planner);
        /// File with the measured speed of prefetches and their interference with I/O phases, for
        /// the planners of the coordinator of this process (docs/operations.md). Empty: planners
        /// learn both from prefetches and phases.
        "cluster.profile" => profile: Option<PathBuf> = r#""""#, path();
        /// In which order the I/O phases of HPC jobs that share write (`forebay run --share`):
        /// none, sa-fcfs, sa-sjf, coflow or set-10 (docs/interference.md). For the coordinator of
        /// this process, whose planners also forecast phases so under set-10.
        "cluster.access" => access: String = r#""none""#, parsed(access);
        /// Longest time, in seconds, for which such a phase waits; then it begins beside the
        /// others. After half of it the phase goes before all others. Up to 86400; 0: none waits.
        "cluster.access_wait_s" => access_wait: Duration = "300", seconds(0..=86_400);
        /// Longest time, in seconds, for which a task of Spark waits for its input where the
        /// planner delays it for an I/O phase of an HPC job. Longer than the longest phase keeps
        /// deadlines; 0: tasks never wait, and read what is missing by themselves. For the
        /// coordinator of this process. Up to 86400.
        "cluster.task_wait_s" => task_wait: Duration = "300", seconds(0..=86_400);
        /// Directory in which the coordinator of this process records its events and decisions for
        /// `forebay replay`: four files of at most 64 MiB, without paths of files. Empty: no
        /// record.
        "cluster.decision_log" => decision_log: Option<PathBuf> = r#""""#, path();
    }
}

impl Default for ClusterConfig {
    fn default() -> Self {
        Self::unnamed().named()
    }
}

fn planner(name: &str) -> Result<String, String> {
    let names: Vec<_> = POLICIES.iter().map(|p| p.0).collect();
    match names.contains(&name) {
        true => Ok(name.to_owned()),
        false => Err(format!("{name:?}: the planners are {}", names.join(", "))),
    }
}

fn access(name: &str) -> Result<String, String> {
    let names: Vec<_> = ACCESS.iter().map(|p| p.0).filter(|name| !SIMULATED_ONLY.contains(name)).collect();
    match names.contains(&name) {
        true => Ok(name.to_owned()),
        false => Err(format!("{name:?}: the orders are {}", names.join(", "))),
    }
}

impl ClusterConfig {
    /// The defaults, but for the names.
    pub(super) fn unnamed() -> Self {
        Self::defaults()
    }

    /// Fills in the names of this machine where none are given.
    pub(super) fn named(mut self) -> Self {
        if self.node.is_empty() {
            self.node = rustix::system::uname().nodename().to_string_lossy().into_owned();
        }
        if self.host.is_empty() {
            self.host.clone_from(&self.node);
        }
        self
    }

    /// Whether another coordinator takes over from one that is lost.
    pub fn fails_over(&self) -> bool {
        self.coordinator.len() > 1
    }

    /// How long a coordinator that was lost is waited for.
    pub fn patience(&self) -> Duration {
        match self.fails_over() {
            true => FAIL_OVER_MAX,
            false => RESTART_MAX,
        }
    }

    fn validate_etcd(&self) -> Result<(), String> {
        if self.etcd.is_empty() {
            return Ok(());
        }
        if self.etcd_prefix.is_empty() {
            return Err("cluster.etcd_prefix is empty: etcd may have keys of others".into());
        }
        if self.etcd.iter().any(|url| url.starts_with("https://")) && self.etcd_tls.is_none() {
            return Err("cluster.etcd has an https URL, which needs cluster.etcd_tls".into());
        }
        Ok(())
    }

    /// Checks what concerns more than one key.
    pub(super) fn validate(&self) -> Result<(), String> {
        if self.etcd.is_empty() && !self.coordinator.is_empty() && !self.coordinator_listen.is_empty() {
            return Err("cluster.coordinator names another process, and cluster.coordinator_listen one in this: give one of \
                        them, or cluster.etcd for several candidates"
                .into());
        }
        self.validate_etcd()?;
        for (key, address) in [("listen", &self.listen), ("coordinator_listen", &self.coordinator_listen)] {
            if address.is_empty() {
                continue;
            }
            let parsed = table::address(&format!("cluster.{key}"), address)?;
            if self.tls.is_none() && !parsed.ip().is_loopback() {
                return Err(format!(
                    "cluster.{key} = {address:?} is open to other machines, which needs cluster.tls; `forebay init` makes \
                     the certificates"
                ));
            }
            if parsed.ip().is_unspecified() && (key == "listen" || !self.etcd.is_empty()) {
                return Err(format!(
                    "cluster.{key} = {address:?}: give the address that others connect to, not all addresses"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_for_simulations_only_are_refused() {
        assert_eq!(access("coflow").as_deref(), Ok("coflow"));
        for name in SIMULATED_ONLY.into_iter().chain(["unknown"]) {
            let why = access(name).unwrap_err();
            assert!(why.ends_with("the orders are none, sa-fcfs, sa-sjf, coflow, set-10"), "{why}");
        }
    }
}
