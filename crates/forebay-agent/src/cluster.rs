//! The cluster as this agent sees it: who is there, who owns which extent, and who is better left
//! alone.
//!
//! A view comes from the coordinator and is kept until a later one comes, so that reads continue
//! while there is no coordinator. Owners follow from the view alone
//! ([`forebay_policy::placement`]). A peer that did not answer in time is *avoided*: the extents it
//! owns are looked for at the next in rank, by this agent only. That may fetch a page to two nodes,
//! never a wrong one. When its back-off ends it is greeted in the background, and asked for pages
//! again only if it answers: no reader waits a second time for a peer that hangs.

use crate::config::ClusterConfig;
use crate::lock::lock;
use forebay_pfs::layout::Layout;
use forebay_policy::placement::{Member, extent_key, node_number, owners};
use forebay_wire::{ClusterStatus, ClusterView, NodeInfo, StorageHosts};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How long a peer that failed is left alone at first; twice as long each time after.
const BACK_OFF: Duration = Duration::from_secs(2);

/// Limit on that time: the peer is asked again eventually.
const BACK_OFF_MAX: Duration = Duration::from_secs(60);

/// Ranks looked at before giving up: with three owners in a row unreachable, the PFS is the better
/// place.
const RANKS: usize = 3;

/// Where a page should come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This node: fetch it from the PFS.
    Here,
    /// Ask this peer.
    Peer(Arc<NodeInfo>),
}

/// See the module.
#[derive(Debug)]
pub struct Cluster {
    config: ClusterConfig,
    view: Mutex<Arc<View>>,
    avoided: Mutex<BTreeMap<String, Avoided>>,
    coordinator: Mutex<Coordinator>,
    /// Where peers are served, once known.
    address: OnceLock<String>,
}

/// What is known of the coordinator.
#[derive(Debug)]
struct Coordinator {
    is_connected: bool,
    /// The last one, of several candidates, and its term.
    leader: (String, u64),
    /// When the connection was made, or lost.
    since: Instant,
    /// Why there is no connection, by address.
    problems: BTreeMap<String, String>,
}

/// A view and what placement needs of it.
#[derive(Debug, Default)]
pub struct View {
    /// As the coordinator reported it.
    pub cluster: ClusterView,
    by_mount: BTreeMap<String, Serving>,
}

/// The nodes that keep extents of one mount.
#[derive(Debug, Default)]
struct Serving {
    /// In the order of `members`.
    nodes: Vec<Arc<NodeInfo>>,
    members: Vec<Member>,
}

#[derive(Clone, Copy, Debug)]
struct Avoided {
    until: Instant,
    back_off: Duration,
    /// It is being greeted.
    greeted: bool,
}

impl View {
    fn new(cluster: ClusterView) -> Self {
        let labels: BTreeSet<&String> = cluster.nodes.iter().flat_map(|n| &n.mounts).collect();
        let serving = |label: &String| {
            let nodes: Vec<_> = cluster.serving(label).into_iter().cloned().map(Arc::new).collect();
            let member =
                |n: &Arc<NodeInfo>| Member { node: node_number(&n.name), weight: n.capacity_bytes as f64 };
            Serving { members: nodes.iter().map(member).collect(), nodes }
        };
        let by_mount = labels.into_iter().map(|label| (label.clone(), serving(label))).collect();
        View { cluster, by_mount }
    }
}

impl Cluster {
    /// A cluster of which no members are known yet.
    pub fn new(config: ClusterConfig) -> Self {
        Cluster {
            config,
            view: Mutex::default(),
            avoided: Mutex::default(),
            coordinator: Mutex::new(Coordinator {
                is_connected: false,
                leader: Default::default(),
                since: Instant::now(),
                problems: BTreeMap::new(),
            }),
            address: OnceLock::new(),
        }
    }

    /// Records the address at which peers are served: that of `cluster.listen` with the port it
    /// got. Set once, before the node joins.
    pub fn set_address(&self, address: String) {
        // A second address would come too late for nodes that know the first.
        let _ = self.address.set(address);
    }

    /// Whether there can be other nodes: its coordinator is another process, or listens for them.
    pub fn has_others(&self) -> bool {
        !self.config.coordinator.is_empty() || !self.config.coordinator_listen.is_empty()
    }

    /// Where peers are served; empty if they are not.
    pub fn address(&self) -> &str {
        self.address.get().map_or("", String::as_str)
    }

    /// This node's name.
    pub fn node(&self) -> &str {
        &self.config.node
    }

    /// Takes a view over and forgets about peers that are gone. Views come over the one connection
    /// that lives, one after the other; an earlier one of the same coordinator changes nothing.
    /// Terms of two coordinators are not compared: the clock that they are taken from may have been
    /// set back, or be another machine's.
    pub fn update(&self, cluster: ClusterView) {
        let mut view = lock(&self.view);
        let (new, held) = (cluster.epoch, view.cluster.epoch);
        if new.term == held.term && new.number < held.number {
            return;
        }
        lock(&self.avoided).retain(|name, _| cluster.nodes.iter().any(|n| n.name == *name));
        *view = Arc::new(View::new(cluster));
    }

    /// The latest term of an elected coordinator that was seen; 0: none.
    pub fn term(&self) -> u64 {
        lock(&self.coordinator).leader.1
    }

    /// Records that the coordinator at `address` welcomes this node; `term` is that of its
    /// election, if it was elected.
    ///
    /// # Errors
    /// A later one has been elected.
    pub fn joined(&self, address: &str, term: u64) -> io::Result<()> {
        let mut coordinator = lock(&self.coordinator);
        let seen = coordinator.leader.1;
        if term < seen {
            let how = if term == 0 {
                "it was not elected".into()
            } else {
                format!("it was elected in term {term}")
            };
            let why = format!(
                "{how}, and another one in term {seen}; if cluster.etcd was changed, or etcd created anew, restart the agents"
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        if term > 0 {
            coordinator.leader = (address.to_owned(), term);
        }
        coordinator.problems.clear();
        (coordinator.is_connected, coordinator.since) = (true, Instant::now());
        Ok(())
    }

    /// Records that the coordinator at `address` does not answer, or refuses this node.
    pub fn lost(&self, address: &str, why: &str) {
        let mut coordinator = lock(&self.coordinator);
        coordinator.problems.insert(address.to_owned(), why.to_owned());
        if std::mem::replace(&mut coordinator.is_connected, false) {
            coordinator.since = Instant::now();
        }
    }

    /// The view now.
    pub fn view(&self) -> Arc<View> {
        lock(&self.view).clone()
    }

    /// The table of hosts of storage servers.
    pub fn storage_hosts(&self) -> StorageHosts {
        StorageHosts(self.config.storage_hosts.clone())
    }

    /// Whether storage servers run on this host, as the table says.
    pub fn is_storage_host(&self) -> bool {
        self.config.storage_hosts.iter().any(|(_, host)| *host == self.config.host)
    }

    /// The part of `layout` that is on storage servers of this host: the names of others are empty.
    /// `None` if nothing is.
    pub fn own_stripes(&self, mut layout: Layout) -> Option<Layout> {
        let (hosts, view) = (self.storage_hosts(), self.view());
        let is_own = |server: &str| hosts.host_of(server, &view.cluster.nodes) == Some(&self.config.host);
        for server in layout.servers.iter_mut().filter(|server| !is_own(server)) {
            server.clear();
        }
        layout.servers.iter().any(|server| !server.is_empty()).then_some(layout)
    }

    /// Where the page at `offset` of the file should come from.
    pub fn owner(&self, mount_label: &str, extent_bytes: u64, ino: u64, offset: u64) -> Owner {
        if self.config.listen.is_empty() {
            return Owner::Here;
        }
        let view = self.view();
        let Some(serving) = view.by_mount.get(mount_label) else { return Owner::Here };
        let key = extent_key(mount_label, ino, offset / extent_bytes);
        for node in owners::<RANKS>(key, &serving.members).map(|place| &serving.nodes[place]) {
            if node.name == self.config.node {
                return Owner::Here;
            }
            if !node.address.is_empty() && !self.is_avoided(&node.name) {
                return Owner::Peer(node.clone());
            }
        }
        Owner::Here
    }

    /// Capacity in bytes of all nodes that keep extents of the mount; `None` if this one keeps all.
    pub fn capacity_bytes(&self, mount_label: &str) -> Option<u64> {
        let view = self.view();
        let nodes = &view.by_mount.get(mount_label).filter(|_| !self.config.listen.is_empty())?.nodes;
        Some(nodes.iter().map(|node| node.capacity_bytes).sum())
    }

    /// Whether the peer is left alone for now.
    pub fn is_avoided(&self, name: &str) -> bool {
        lock(&self.avoided).contains_key(name)
    }

    /// Records that the peer failed or was late. Reports by many at the same time count once.
    pub fn avoid(&self, name: &str) {
        let mut avoided = lock(&self.avoided);
        let now = Instant::now();
        let back_off = match avoided.get(name) {
            Some(a) if now < a.until => return,
            Some(a) => (a.back_off * 2).min(BACK_OFF_MAX),
            None => BACK_OFF,
        };
        avoided.insert(name.to_owned(), Avoided { until: now + back_off, back_off, greeted: false });
    }

    /// Peers whose back-off has ended, each once: they are to be greeted, and then believed or
    /// avoided again.
    pub fn to_greet(&self) -> Vec<NodeInfo> {
        // First of the two, as in `update`.
        let view = self.view();
        let (now, mut avoided, mut due) = (Instant::now(), lock(&self.avoided), Vec::new());
        for (name, a) in avoided.iter_mut().filter(|(_, a)| a.until <= now && !a.greeted) {
            if let Some(node) = view.cluster.nodes.iter().find(|n| n.name == *name) {
                a.greeted = true;
                due.push(node.clone());
            }
        }
        due
    }

    /// Records that the peer answered.
    pub fn believe(&self, name: &str) {
        let mut avoided = lock(&self.avoided);
        if !avoided.is_empty() {
            avoided.remove(name);
        }
    }

    /// The cluster as people see it.
    pub fn status(&self) -> ClusterStatus {
        let now = Instant::now();
        let left = |a: &Avoided| a.until.saturating_duration_since(now).as_millis() as u64;
        let coordinator = lock(&self.coordinator);
        ClusterStatus {
            node: self.config.node.clone(),
            coordinator: self.config.coordinator.join(", "),
            connected: coordinator.is_connected,
            leader: coordinator.leader.clone(),
            since_ms: coordinator.since.elapsed().as_millis() as u64,
            problems: coordinator.problems.clone().into_iter().collect(),
            view: self.view().cluster.clone(),
            avoided: lock(&self.avoided).iter().map(|(name, a)| (name.clone(), left(a))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_wire::Epoch;

    fn node(name: &str) -> NodeInfo {
        NodeInfo {
            name: name.into(),
            host: name.into(),
            address: "127.0.0.1:1".into(),
            capacity_bytes: 1 << 30,
            mounts: vec!["pfs".into()],
            ..NodeInfo::default()
        }
    }

    fn peer(name: &str) -> Owner {
        Owner::Peer(Arc::new(node(name)))
    }

    fn cluster_of(names: &[&str]) -> Cluster {
        let cluster = Cluster::new(ClusterConfig {
            node: "a".into(),
            listen: "127.0.0.1:0".into(),
            ..ClusterConfig::default()
        });
        cluster.update(view(1, names));
        cluster
    }

    fn view(number: u64, names: &[&str]) -> ClusterView {
        ClusterView { epoch: Epoch { term: 1, number }, nodes: names.iter().map(|n| node(n)).collect() }
    }

    fn owners_of(cluster: &Cluster) -> Vec<Owner> {
        (0..64).map(|extent| cluster.owner("pfs", 1 << 20, 7, extent << 20)).collect()
    }

    #[test]
    fn own_stripes_are_those_of_servers_of_this_host() {
        let table = [("OST0001", "a"), ("OST0002", "b")].map(|(name, host)| (name.into(), host.into()));
        let config = ClusterConfig {
            node: "a".into(),
            host: "a".into(),
            storage_hosts: table.to_vec(),
            ..ClusterConfig::default()
        };
        let cluster = Cluster::new(config);
        let layout = |servers: &[&str]| Layout {
            stripe_bytes: 10,
            servers: servers.iter().map(|name| (*name).to_owned()).collect(),
            first_server: 1,
        };
        let own = cluster.own_stripes(layout(&["OST0001", "OST0002", "OST0003"])).unwrap();
        assert_eq!(own.servers, ["OST0001", "", ""]);
        assert_eq!((own.server_of(0), own.server_of(20)), (None, Some("OST0001")));
        assert_eq!(cluster.own_stripes(layout(&["OST0002"])), None);
        assert!(cluster.is_storage_host());
        assert!(
            !Cluster::new(ClusterConfig { host: "c".into(), ..cluster.config.clone() }).is_storage_host()
        );
    }

    #[test]
    fn every_node_owns_some_and_an_avoided_one_is_replaced_by_the_next() {
        let cluster = cluster_of(&["a", "b", "c"]);
        let before = owners_of(&cluster);
        for name in ["b", "c"] {
            assert!(before.iter().filter(|o| **o == peer(name)).count() > 8);
        }
        cluster.avoid("b");
        let after = owners_of(&cluster);
        for (before, after) in before.iter().zip(&after) {
            assert_ne!(*after, peer("b"));
            assert!(*before == peer("b") || before == after);
        }
        assert!(after.contains(&Owner::Here) && after.contains(&peer("c")));
        assert_eq!(cluster.status().avoided[0].0, "b");
        assert!(cluster.to_greet().is_empty(), "its back-off has not ended");
        cluster.believe("b");
        assert_eq!(owners_of(&cluster), before);
    }

    #[test]
    fn an_earlier_view_changes_nothing() {
        let cluster = cluster_of(&["a", "b"]);
        cluster.update(view(2, &["a"]));
        assert!(owners_of(&cluster).iter().all(|o| *o == Owner::Here));
        cluster.update(view(1, &["a", "b"]));
        assert_eq!(cluster.view().cluster.nodes.len(), 1);
    }

    #[test]
    fn a_coordinator_whose_clock_is_behind_is_believed() {
        let cluster = cluster_of(&["a", "b"]);
        let held = cluster.view().cluster.epoch;
        let mut later = view(1, &["a"]);
        later.epoch.term = held.term - 1;
        cluster.update(later.clone());
        assert_eq!(cluster.view().cluster, later);
    }

    #[test]
    fn a_node_that_does_not_serve_the_mount_is_not_asked() {
        let cluster = cluster_of(&["a", "b"]);
        assert!((0..64).all(|e| cluster.owner("other", 1 << 20, 7, e << 20) == Owner::Here));
    }
}
