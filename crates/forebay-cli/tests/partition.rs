//! Networks that swallow packets: a coordinator and two agents, each in a network namespace of its
//! own at one bridge, whose ports are cut off from each other. Nothing is refused and nothing is
//! closed; what is sent just does not arrive.
//!
//! It needs root, namespaces and `ip` of iproute2, and is left out where something of that is
//! missing, unless `FOREBAY_REQUIRE_LAB` asks for any lab: what a lab needs is enough for this.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

use forebay_client::{Client, ClientConfig, HpcJobOptions};
use forebay_wire::Status;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay");

const PATIENCE: Duration = Duration::from_secs(60);

/// Not a whole number of pages or extents.
const FILE_BYTES: usize = (12 << 20) + 777;

/// Connections to one peer: so many may be waiting for it when it is cut off, and all of them give
/// up together.
const LINKS_PER_PEER: u64 = 8;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A bridge with three ports: `head` with the coordinator, `a` and `b` with an agent each.
struct Net {
    tag: String,
}

impl Net {
    /// `None` if this machine cannot have one.
    fn possible() -> Option<Net> {
        let tag = format!("fbp{:x}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let net = Net { tag };
        if let Err(why) = net.make() {
            assert!(std::env::var_os("FOREBAY_REQUIRE_LAB").is_none_or(|r| r.is_empty()), "{why}");
            eprintln!("left out: {why}");
            return None;
        }
        Some(net)
    }

    fn space(&self, node: &str) -> String {
        format!("{}-{node}", self.tag)
    }

    fn make(&self) -> Result<(), String> {
        let switch = self.space("switch");
        ip(&["netns", "add", &switch])?;
        ip(&["-n", &switch, "link", "add", "br0", "type", "bridge"])?;
        ip(&["-n", &switch, "link", "set", "br0", "up"])?;
        for (number, node) in ["head", "a", "b"].into_iter().enumerate() {
            let (space, address) = (self.space(node), format!("10.99.0.{}/24", number + 1));
            ip(&["netns", "add", &space])?;
            ip(&[
                "-n", &switch, "link", "add", "name", node, "type", "veth", "peer", "name", "eth0", "netns",
                &space,
            ])?;
            ip(&["-n", &switch, "link", "set", "dev", node, "master", "br0", "up"])?;
            ip(&["-n", &space, "addr", "add", &address, "dev", "eth0"])?;
            ip(&["-n", &space, "link", "set", "eth0", "up"])?;
            ip(&["-n", &space, "link", "set", "lo", "up"])?;
        }
        Ok(())
    }

    /// Cuts `a` and `b` off from each other, or not; both can be reached from everywhere else.
    fn part(&self, apart: bool) {
        for node in ["a", "b"] {
            let state = if apart { "on" } else { "off" };
            self.port(&[node, "type", "bridge_slave", "isolated", state]);
        }
    }

    /// Changes one port of the bridge.
    fn port(&self, change: &[&str]) {
        let switch = self.space("switch");
        let line = [&["-n", &switch, "link", "set", "dev"], change].concat();
        ip(&line).unwrap();
    }

    fn command(&self, node: &str) -> Command {
        let mut command = Command::new("ip");
        // It becomes the program: its process is the program's.
        command.args(["netns", "exec", &self.space(node), FOREBAY]);
        command.env_remove("FOREBAY_SOCKET").env_remove("FOREBAY_CONFIG").stdin(Stdio::null());
        command
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for node in ["a", "b", "head", "switch"] {
            // Of one that could not be made some may be missing.
            let _ = ip(&["netns", "del", &self.space(node)]);
        }
    }
}

fn ip(line: &[&str]) -> Result<(), String> {
    let done = Command::new("ip").args(line).stdin(Stdio::null()).output();
    let done = done.map_err(|e| format!("ip cannot be run: {e}"))?;
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    if done.status.success() { Ok(()) } else { Err(format!("ip {}: {said}", line.join(" "))) }
}

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Errors only if it has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The agent of a node.
struct Agent {
    at: PathBuf,
    _process: Process,
}

impl Agent {
    fn start(at: &Path, net: &Net, node: &str, address: &str) -> Agent {
        let dir = at.join(format!("agent-{node}"));
        fs::create_dir(&dir).unwrap();
        let config = format!(
            "[agent]\nstate_dir = {state:?}\n[tier]\ncapacity = \"96MiB\"\nbacking = \"directory\"\ndirectory = {tier:?}\n\
             [cluster]\nnode = \"{node}\"\ncoordinator = \"10.99.0.1:7850\"\nlisten = \"{address}:7851\"\ntls = {tls:?}\n\
             peer_deadline_ms = 1000\n[[mount]]\nlabel = \"pfs\"\nroot = {pfs:?}\npage_size = \"64KiB\"\n\
             extent_size = \"1MiB\"\nstamp_granularity_ms = 0\n",
            state = dir.join("state"),
            tier = dir.join("tier"),
            tls = at.join("cluster").join(node),
            pfs = at.join("pfs"),
        );
        fs::write(dir.join("config.toml"), config).unwrap();
        let mut command = net.command(node);
        command.args(["agent", "--config"]).arg(dir.join("config.toml"));
        command.stdout(Stdio::null()).stderr(File::create(dir.join("log")).unwrap());
        Agent { _process: Process(command.spawn().unwrap()), at: dir }
    }

    fn client(&self) -> Client {
        let socket = Some(self.at.join("state/agent.sock"));
        Client::new(ClientConfig { socket, quiet: true, deadline: PATIENCE, ..ClientConfig::default() })
    }

    fn status(&self) -> Option<Status> {
        self.client().admin().status().ok()
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.status().unwrap().counters;
        counters.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no counter {name}")).1
    }

    /// Deadlines missed and connections lost.
    fn losses(&self) -> u64 {
        self.counter("peer_late_total") + self.counter("peer_broken_total")
    }

    fn avoids(&self) -> usize {
        self.status().unwrap().cluster.avoided.len()
    }

    fn is_connected(&self) -> bool {
        self.status().unwrap().cluster.connected
    }

    /// Reads the whole file with four readers at the same time, from an empty tier.
    fn read(&self, path: &Path) {
        self.client().admin().evict_all().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut got = vec![0; FILE_BYTES];
                    assert_eq!(self.client().open(path).unwrap().read_at(&mut got, 0).unwrap(), FILE_BYTES);
                    assert!(got == content(), "other bytes than those of the PFS");
                });
            }
        });
    }

    fn log(&self) -> String {
        fs::read_to_string(self.at.join("log")).unwrap_or_default()
    }
}

/// Bytes that tell their place.
fn content() -> Vec<u8> {
    (0..FILE_BYTES as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// What runs on a net. In this order all of it ends.
struct Cluster {
    a: Agent,
    b: Agent,
    _coordinator: Process,
    net: Net,
    dir: tempfile::TempDir,
}

impl Cluster {
    fn start() -> Option<Cluster> {
        let net = Net::possible()?;
        // The tiers are in it.
        let dir = tempfile::Builder::new().prefix("forebay-part-").tempdir_in("/dev/shm").unwrap();
        let at = dir.path();
        let mut init = Command::new(FOREBAY);
        init.arg("init").arg(at.join("cluster")).args(["--node", "head", "--node", "a", "--node", "b"]);
        assert!(init.stdin(Stdio::null()).stdout(Stdio::null()).status().unwrap().success());
        fs::create_dir(at.join("pfs")).unwrap();
        fs::write(at.join("pfs/file"), content()).unwrap();

        let config = at.join("coordinator.toml");
        fs::write(&config, format!("[cluster]\ntls = {:?}\n", at.join("cluster/head"))).unwrap();
        let mut command = net.command("head");
        command.args(["coordinator", "--listen", "10.99.0.1:7850", "--config"]).arg(&config);
        let mut coordinator = Process(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
        let mut said = String::new();
        BufReader::new(coordinator.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.starts_with("coordinator listens"), "{said:?}");

        let a = Agent::start(at, &net, "a", "10.99.0.2");
        let b = Agent::start(at, &net, "b", "10.99.0.3");
        let cluster = Cluster { a, b, _coordinator: coordinator, net, dir };
        cluster.wait_for("both know both", |agent| {
            agent.status().is_some_and(|status| status.cluster.view.nodes.len() == 2)
        });
        Some(cluster)
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("pfs/file")
    }

    fn agents(&self) -> [&Agent; 2] {
        [&self.a, &self.b]
    }

    /// Waits until it holds for both agents.
    fn wait_for(&self, what: &str, done: impl Fn(&Agent) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !self.agents().into_iter().all(&done) {
            let logs = || self.agents().map(Agent::log).join("---\n");
            assert!(Instant::now() < deadline, "not in time: {what}:\n{}", logs());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Both read, and both get pages from the other one.
    fn read_by_way_of_each_other(&self) {
        for agent in self.agents() {
            let before = agent.counter("pages_from_peers_total");
            agent.read(&self.file());
            assert!(
                agent.counter("pages_from_peers_total") > before,
                "nothing came from the other:\n{}",
                agent.log()
            );
        }
    }
}

#[test]
fn nodes_that_lose_each_other_read_the_pfs_at_the_cost_of_a_deadline_and_find_each_other_again() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.read_by_way_of_each_other();
    let before = cluster.agents().map(|agent| (agent.losses(), agent.counter("pages_from_peers_total")));
    assert!(before.iter().all(|(losses, _)| *losses == 0));

    cluster.net.part(true);
    for agent in cluster.agents() {
        agent.read(&cluster.file());
    }
    let lost = cluster.agents().map(Agent::losses);
    for ((agent, (_, came)), lost) in cluster.agents().into_iter().zip(before).zip(lost) {
        assert!((1..=LINKS_PER_PEER).contains(&lost), "{lost} waits ended in vain:\n{}", agent.log());
        assert_eq!(agent.counter("pages_from_peers_total"), came, "a page came through");
        assert_eq!((agent.avoids(), agent.is_connected()), (1, true), "only the other agent is away");
    }
    // Nobody waits for it a second time, though it is greeted again and again.
    for _ in 0..3 {
        for agent in cluster.agents() {
            agent.read(&cluster.file());
        }
        std::thread::sleep(Duration::from_millis(1500));
    }
    assert_eq!(cluster.agents().map(Agent::losses), lost, "a reader has waited for the other again");
    assert_eq!(cluster.agents().map(|agent| agent.status().unwrap().cluster.view.nodes.len()), [2, 2]);

    cluster.net.part(false);
    cluster.wait_for("they have found each other", |agent| agent.avoids() == 0);
    cluster.read_by_way_of_each_other();
}

#[test]
fn agents_that_lose_the_coordinator_serve_each_other_and_join_it_again() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.wait_for("both have joined", Agent::is_connected);
    cluster.net.port(&["head", "down"]);
    cluster.wait_for("the coordinator is missed", |agent| !agent.is_connected());
    cluster.read_by_way_of_each_other();
    assert_eq!(cluster.agents().map(Agent::losses), [0, 0]);
    cluster.net.port(&["head", "up"]);
    cluster.wait_for("both are back", |agent| {
        agent.is_connected() && agent.status().is_some_and(|s| s.cluster.view.nodes.len() == 2)
    });
    cluster.read_by_way_of_each_other();
}

#[test]
fn a_phase_brakes_the_other_node_while_the_coordinator_is_cut_off_and_is_known_to_it_afterwards() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.wait_for("both have joined", Agent::is_connected);
    cluster.net.port(&["head", "down"]);
    cluster.wait_for("the coordinator is missed", |agent| !agent.is_connected());
    let (a, b) = (cluster.a.client(), cluster.b.client());
    let writer = a.open_hpc_job(&HpcJobOptions::named("sim")).unwrap();
    // Of an unknown length: nothing is fetched beside it.
    writer.phase_begin(0, Duration::ZERO).unwrap();
    cluster.wait_for("both brake", |agent| agent.counter("brakes_total") == 1);
    let before = cluster.agents().map(|agent| agent.counter("fetched_bytes"));
    let mut load = b.load(0).unwrap();
    load.add(&cluster.file()).unwrap();
    load.flush().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert!(!load.poll(Duration::ZERO).unwrap().idle, "the load has ended beside the phase");
    assert_eq!(cluster.agents().map(|agent| agent.counter("fetched_bytes")), before);
    assert!(a.plans(10).is_err(), "the coordinator has answered");

    cluster.net.port(&["head", "up"]);
    cluster.wait_for("both are back", Agent::is_connected);
    let phases = || a.plans(10).map(|log| log.phases).unwrap_or_default();
    cluster.wait_for("the coordinator knows of it", |_| phases().iter().any(|phase| phase.name == "sim"));
    writer.phase_end().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !load.poll(Duration::from_millis(50)).unwrap().idle {
        assert!(Instant::now() < deadline, "the load does not go on");
    }
    assert!(load.failures().is_empty(), "{:?}", load.failures());
}
