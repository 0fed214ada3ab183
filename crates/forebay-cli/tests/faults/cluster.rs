//! Several real agents on this machine, one per process, that know each other from a view the test
//! gives them: so a test decides which members exist, which of them owns what, and what each of
//! them believes about it.

use crate::common::{Helper, MIB, PAGE, assert_content, counter, make_file, open_dir_in, send_signal};
use crate::roles::{hear, say};
use forebay_agent::{Agent, Config, CoordinatorAddress};
use forebay_client::{Client, ClientConfig};
use forebay_wire::link::Security;
use forebay_wire::{ClusterStatus, ClusterView, Epoch, NodeInfo, Status};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Smallest extent there is: small files are spread over all nodes.
pub const EXTENT: u64 = MIB;

/// How the agents are set up.
#[derive(Clone)]
pub struct NodeSetup {
    pub pfs: PathBuf,
    pub capacity: u64,
    pub read_ahead: u64,
    pub deadline_ms: u64,
    /// The user of each node; the tests' own for those not named.
    pub uids: Vec<Option<u32>>,
    /// A directory made by `forebay init`.
    pub tls: Option<PathBuf>,
}

impl NodeSetup {
    pub fn new(pfs: &Path) -> Self {
        // A deadline that no machine misses by being slow.
        NodeSetup {
            pfs: pfs.to_owned(),
            capacity: 96 * MIB,
            read_ahead: 0,
            deadline_ms: 30_000,
            uids: vec![],
            tls: None,
        }
    }

    fn toml(&self, dir: &Path, node: usize) -> String {
        let tls = self.tls.as_ref().map(|dir| dir.join(format!("node{node}"))).unwrap_or_default();
        format!(
            "[agent]\nstate_dir = {:?}\n[tier]\ncapacity = \"{}\"\nbacking = \"directory\"\ndirectory = {:?}\n\
             [cluster]\nlisten = \"127.0.0.1:0\"\nnode = \"node{node}\"\ncoordinator = \"127.0.0.1:1\"\npeer_deadline_ms = {}\ntls = {tls:?}\n\
             [[mount]]\nlabel = \"pfs\"\nroot = {:?}\npage_size = \"{PAGE}\"\nextent_size = \"{EXTENT}\"\nread_ahead = \"{}\"\n\
             fetch_threads = 4\nsettle_ms = 0\nstamps = \"trust\"\n",
            dir.join("state"),
            self.capacity,
            dir.join("tier"),
            self.deadline_ms,
            self.pfs,
            self.read_ahead,
        )
    }
}

/// An agent.
pub struct Node {
    pub helper: Helper,
    pub info: NodeInfo,
    dir: TempDir,
    uid: Option<u32>,
}

/// Several agents.
pub struct Cluster {
    pub nodes: Vec<Node>,
    number: u64,
}

impl Cluster {
    pub fn start(count: usize, setup: &NodeSetup) -> Self {
        let nodes = (0..count).map(|i| Node::start(i, setup)).collect();
        let mut cluster = Cluster { nodes, number: 0 };
        cluster.send_view_to_all();
        cluster
    }

    /// All members.
    pub fn members(&self) -> Vec<NodeInfo> {
        self.nodes.iter().map(|n| n.info.clone()).collect()
    }

    /// Makes a file of which every node owns about its share. The inode's number decides who owns
    /// what, so of a file that is made once a node may own nothing.
    pub fn make_shared_file(&self, at: impl Fn(&str) -> PathBuf, seed: u64, size: u64) -> PathBuf {
        let client = self.nodes[0].client();
        let fair = size.div_ceil(EXTENT) as usize / self.nodes.len();
        let is_shared = |path: &PathBuf| {
            File::create(path).unwrap().set_len(size).unwrap();
            let extents = client.locate(path, 0, size).unwrap();
            let owned =
                |node: &Node| extents.iter().filter(|e| e.hosts.first() == Some(&node.info.name)).count();
            self.nodes.iter().all(|node| (fair - 1..=fair + 1).contains(&owned(node)))
        };
        let paths = (0..200).map(|i| at(&format!("f{i}")));
        let path = { paths }.find(is_shared).expect("no file of which each node owns its share");
        make_file(&path, seed, size);
        path
    }

    /// Gives every node the same view of all.
    pub fn send_view_to_all(&mut self) {
        let members = self.members();
        for node in 0..self.nodes.len() {
            self.send_view(node, members.clone());
        }
    }

    /// Gives one node a view of its own.
    pub fn send_view(&mut self, node: usize, members: Vec<NodeInfo>) {
        self.number += 1;
        let view = ClusterView { epoch: Epoch { term: 1, number: self.number }, nodes: members };
        let helper = &mut self.nodes[node].helper;
        helper.say(&serde_json::to_string(&view).unwrap());
        helper.expect(&format!("view {}", self.number));
    }

    /// Sends node 0 a view in which it has no weight: of two nodes, the other owns everything.
    pub fn give_all_to_node_1(&mut self) {
        let mut members = self.members();
        members[0].capacity_bytes = 0;
        self.send_view(0, members);
    }

    /// Kills an agent and starts another one in its place, with what it has left in its tier; all
    /// are notified of where it is now.
    pub fn kill_and_restart(&mut self, node: usize) {
        self.nodes[node].restart();
        self.send_view_to_all();
    }

    /// Kills all agents and starts them again with pages of another size; what is in their tiers
    /// stays.
    pub fn restart_with_pages_of(&mut self, bytes: u64) {
        for node in &mut self.nodes {
            let config = node.dir.path().join("config.toml");
            let text = std::fs::read_to_string(&config).unwrap();
            let line = text.lines().find(|line| line.starts_with("page_size")).unwrap();
            std::fs::write(&config, text.replace(line, &format!("page_size = \"{bytes}\""))).unwrap();
            node.restart();
        }
        self.send_view_to_all();
    }

    /// A counter summed over all nodes.
    pub fn sum(&self, name: &str) -> u64 {
        self.nodes.iter().map(|n| n.counter(name)).sum()
    }

    /// Reads the file with this many readers on each of these nodes at the same time; all of them
    /// check every byte.
    pub fn read_on(&self, nodes: &[usize], readers: usize, path: &Path, seed: u64) {
        std::thread::scope(|scope| {
            for node in nodes {
                for reader in 0..readers {
                    let client = self.nodes[*node].client();
                    scope.spawn(move || read_whole(&client, path, seed, reader as u64));
                }
            }
        });
    }
}

/// One pass over a file of content `seed`, from its start, in pieces whose length differs by
/// reader.
pub fn read_whole(client: &Client, path: &Path, seed: u64, reader: u64) {
    crate::roles::verify_once(client, path, seed, reader);
}

/// One read.
pub fn read_piece(client: &Client, path: &Path, seed: u64, offset: u64, len: usize) {
    let file = client.open(path).unwrap();
    let mut buffer = vec![0; len];
    assert_eq!(file.read_at(&mut buffer, offset).unwrap(), len);
    assert_content(&buffer, seed, offset);
}

impl Node {
    fn start(number: usize, setup: &NodeSetup) -> Self {
        let dir = open_dir_in("/dev/shm");
        let uid = setup.uids.get(number).copied().flatten();
        if let Some(uid) = uid {
            std::os::unix::fs::chown(dir.path(), Some(uid), Some(uid)).unwrap();
        }
        std::fs::write(dir.path().join("config.toml"), setup.toml(dir.path(), number)).unwrap();
        let (helper, address) = Self::start_helper(dir.path(), uid);
        let name = format!("node{number}");
        let info = NodeInfo {
            host: name.clone(),
            name,
            address,
            capacity_bytes: setup.capacity,
            mounts: vec!["pfs".into()],
            ..NodeInfo::default()
        };
        Node { helper, info, dir, uid }
    }

    fn start_helper(dir: &Path, uid: Option<u32>) -> (Helper, String) {
        let (config, socket) = (dir.join("config.toml"), dir.join("state/agent.sock"));
        let mut helper = Helper::start_as(&socket, uid, "agent", &[config.to_str().unwrap()]);
        let address = helper.expect("address");
        (helper, address)
    }

    fn restart(&mut self) {
        self.helper.kill_9();
        (self.helper, self.info.address) = Self::start_helper(self.dir.path(), self.uid);
    }

    pub fn client(&self) -> Client {
        let socket = Some(self.dir.path().join("state/agent.sock"));
        let trusted_uids = self.uid.into_iter().collect();
        Client::new(ClientConfig {
            socket,
            deadline: Duration::from_secs(60),
            trusted_uids,
            quiet: true,
            ..ClientConfig::default()
        })
    }

    pub fn status(&self) -> Status {
        self.client().admin().status().unwrap()
    }

    pub fn cluster(&self) -> ClusterStatus {
        self.status().cluster
    }

    pub fn counter(&self, name: &str) -> u64 {
        counter(&self.status(), name)
    }

    /// Empties its tier.
    pub fn evict(&self) {
        self.client().admin().evict_all().unwrap();
    }

    pub fn stop(&self) {
        send_signal(self.helper.pid(), libc::SIGSTOP);
    }

    pub fn go_on(&self) {
        send_signal(self.helper.pid(), libc::SIGCONT);
    }
}

/// The body of an agent's process: it takes views from its standard input, and ends with it.
pub fn agent(config: &str) {
    // Nobody is there: the views come from the test.
    let coordinator_at = CoordinatorAddress::Remote(vec!["127.0.0.1:1".into()], Security::Loopback);
    let closer = forebay_agent::Closer::absent().unwrap();
    let agent =
        Agent::start(Config::load_file(Path::new(config)).unwrap(), None, coordinator_at, closer).unwrap();
    let cluster = agent.cluster();
    say(&format!("address {}", cluster.address()));
    std::thread::spawn(move || {
        while let Some(line) = hear() {
            let view: ClusterView = serde_json::from_str(&line).unwrap();
            let number = view.epoch.number;
            cluster.update(view);
            say(&format!("view {number}"));
        }
        std::process::exit(0);
    });
    agent.run().unwrap();
}
