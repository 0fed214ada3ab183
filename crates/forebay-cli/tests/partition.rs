//! Networks that swallow packets: a coordinator and two agents, each in a network namespace of its
//! own at one bridge, whose ports are isolated from each other. Nothing is refused and nothing is
//! closed; what is sent just does not arrive.
//!
//! It needs root, namespaces and `ip` of iproute2, and is left out where something of that is
//! missing, unless `FOREBAY_REQUIRE_LAB` asks for any lab: what a lab needs is enough for this.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

mod kit;

use forebay_client::HpcJobOptions;
use kit::{Daemon, FOREBAY, forebay, succeeded, wait_for, wait_or};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Not a whole number of pages or extents.
const FILE_BYTES: usize = (12 << 20) + 777;

/// Limit on the connections to one peer. This many may be waiting for it when it is isolated, and
/// all of them give up together.
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

    /// Isolates `a` and `b` from each other, or not; both can be reached from everywhere else.
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
            // If it could not be made, some may be missing.
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

/// Starts the agent of a node.
fn agent(at: &Path, net: &Net, node: &str, address: &str) -> Daemon {
    let cluster =
        format!("coordinator = \"10.99.0.1:7850\"\nlisten = \"{address}:7851\"\npeer_deadline_ms = 1000\n");
    Daemon::agent_of(net.command(node), at, node, node, &cluster)
}

/// Deadlines missed and connections lost.
fn losses(agent: &Daemon) -> u64 {
    agent.counter("peer_late_total") + agent.counter("peer_broken_total")
}

fn avoids(agent: &Daemon) -> usize {
    agent.status().unwrap().cluster.avoided.len()
}

fn is_connected(agent: &Daemon) -> bool {
    agent.status().is_some_and(|status| status.cluster.connected)
}

/// Reads the whole file with four readers at the same time, from an empty tier.
fn read(agent: &Daemon, path: &Path) {
    agent.client().admin().evict_all().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut got = vec![0; FILE_BYTES];
                assert_eq!(agent.client().open(path).unwrap().read_at(&mut got, 0).unwrap(), FILE_BYTES);
                assert!(got == content(), "other bytes than those of the PFS");
            });
        }
    });
}

/// Bytes that name their place.
fn content() -> Vec<u8> {
    (0..FILE_BYTES as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// The same of a version of the file.
fn version(number: u8) -> Vec<u8> {
    content().into_iter().map(|byte| byte ^ number).collect()
}

/// How long a node is isolated: longer than its membership lasts, or what `FOREBAY_PARTITION_S`
/// says; `FOREBAY_PARTITION_S=3600` for an hour.
fn apart_for() -> Duration {
    let given = std::env::var("FOREBAY_PARTITION_S").ok().map(|s| s.parse().unwrap());
    Duration::from_secs(given.unwrap_or(8))
}

/// What runs on a net. In this order all of it ends.
struct Cluster {
    a: Daemon,
    b: Daemon,
    _coordinator: Daemon,
    net: Net,
    dir: tempfile::TempDir,
}

impl Cluster {
    fn start() -> Option<Cluster> {
        let net = Net::possible()?;
        // The tiers are in it.
        let dir = tempfile::Builder::new().prefix("forebay-part-").tempdir_in("/dev/shm").unwrap();
        let at = dir.path();
        succeeded(
            forebay(&["init"]).arg(at.join("cluster")).args(["--node", "head", "--node", "a", "--node", "b"]),
        );
        fs::create_dir(at.join("pfs")).unwrap();
        fs::write(at.join("pfs/file"), content()).unwrap();

        let config = format!(
            "[cluster]\ncoordinator_listen = \"10.99.0.1:7850\"\ntls = {:?}\n",
            at.join("cluster/head")
        );
        let coordinator = Daemon::start(net.command("head"), "coordinator", &at.join("coordinator"), &config);
        let (a, b) = (agent(at, &net, "a", "10.99.0.2"), agent(at, &net, "b", "10.99.0.3"));
        let cluster = Cluster { a, b, _coordinator: coordinator, net, dir };
        cluster.wait_for("both know both", |agent| agent.members() == 2);
        Some(cluster)
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("pfs/file")
    }

    fn agents(&self) -> [&Daemon; 2] {
        [&self.a, &self.b]
    }

    /// Waits until it holds for both agents.
    fn wait_for(&self, what: &str, done: impl Fn(&Daemon) -> bool) {
        let logs = || self.agents().map(Daemon::log).join("---\n");
        wait_or(what, || self.agents().into_iter().all(&done), logs);
    }

    /// Both read, and both get pages from the other one.
    fn read_by_way_of_each_other(&self) {
        for agent in self.agents() {
            let before = agent.counter("pages_from_peers_total");
            read(agent, &self.file());
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
    let before = cluster.agents().map(|agent| (losses(agent), agent.counter("pages_from_peers_total")));
    assert!(before.iter().all(|(losses, _)| *losses == 0));

    cluster.net.part(true);
    for agent in cluster.agents() {
        read(agent, &cluster.file());
    }
    let lost = cluster.agents().map(losses);
    for ((agent, (_, came)), lost) in cluster.agents().into_iter().zip(before).zip(lost) {
        assert!((1..=LINKS_PER_PEER).contains(&lost), "{lost} waits ended in vain:\n{}", agent.log());
        assert_eq!(agent.counter("pages_from_peers_total"), came, "a page came through");
        assert_eq!((avoids(agent), is_connected(agent)), (1, true), "only the other agent is away");
    }
    // Nobody waits for it a second time, though it is greeted again and again.
    for _ in 0..3 {
        for agent in cluster.agents() {
            read(agent, &cluster.file());
        }
        std::thread::sleep(Duration::from_millis(1500));
    }
    assert_eq!(cluster.agents().map(losses), lost, "a reader has waited for the other again");
    assert_eq!(cluster.agents().map(Daemon::members), [2, 2]);

    cluster.net.part(false);
    cluster.wait_for("they have found each other", |agent| avoids(agent) == 0);
    cluster.read_by_way_of_each_other();
}

#[test]
fn agents_that_lose_the_coordinator_serve_each_other_and_join_it_again() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.wait_for("both have joined", is_connected);
    cluster.net.port(&["head", "down"]);
    cluster.wait_for("the coordinator is missed", |agent| !is_connected(agent));
    cluster.read_by_way_of_each_other();
    assert_eq!(cluster.agents().map(losses), [0, 0]);
    cluster.net.port(&["head", "up"]);
    cluster.wait_for("both are back", |agent| is_connected(agent) && agent.members() == 2);
    cluster.read_by_way_of_each_other();
}

#[test]
fn a_phase_brakes_the_other_node_while_the_coordinator_is_cut_off_and_is_known_to_it_afterwards() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.wait_for("both have joined", is_connected);
    cluster.net.port(&["head", "down"]);
    cluster.wait_for("the coordinator is missed", |agent| !is_connected(agent));
    let (a, b) = (cluster.a.client(), cluster.b.client());
    let writer = a.open_hpc_job(&HpcJobOptions::named("sim")).unwrap();
    // Of an unknown length: nothing is fetched during it.
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
    cluster.wait_for("both are back", is_connected);
    let phases = || a.plans(10).map(|log| log.phases).unwrap_or_default();
    cluster.wait_for("the coordinator knows of it", |_| phases().iter().any(|phase| phase.name == "sim"));
    writer.phase_end().unwrap();
    wait_for("the load goes on", || load.poll(Duration::from_millis(50)).unwrap().idle);
    assert!(load.failures().is_empty(), "{:?}", load.failures());
}

#[test]
fn a_node_that_is_cut_off_for_long_costs_nobody_a_wrong_byte() {
    let Some(cluster) = Cluster::start() else { return };
    cluster.read_by_way_of_each_other();
    let written = |node: &str| cluster.dir.path().join("pfs").join(format!("written-{node}"));
    let write = |agent: &Daemon, node: &str, bytes: &[u8]| {
        let source = cluster.dir.path().join(format!("source-{node}"));
        fs::write(&source, bytes).unwrap();
        let mut run = forebay(&["run", "--write-back", "written-*", "--", "cp"]);
        succeeded(run.arg(source).arg(written(node)).env("FOREBAY_SOCKET", agent.socket()));
    };
    let reads = |agent: &Daemon, path: &Path, bytes: &[u8]| {
        let mut got = vec![0; bytes.len()];
        assert_eq!(agent.client().open(path).unwrap().read_at(&mut got, 0).unwrap(), bytes.len());
        assert!(got == bytes, "other bytes than the last version of {}:\n{}", path.display(), agent.log());
    };

    cluster.net.port(&["b", "down"]);
    wait_for("the coordinator has forgotten b", || cluster.a.members() == 1);
    let (begin, mut rounds) = (Instant::now(), 0_u8);
    while begin.elapsed() < apart_for() {
        rounds = rounds.checked_add(1).unwrap_or(1);
        let bytes = version(rounds);
        fs::write(cluster.file(), &bytes).unwrap();
        for (agent, node) in cluster.agents().into_iter().zip(["a", "b"]) {
            reads(agent, &cluster.file(), &bytes);
            write(agent, node, &bytes);
            reads(agent, &written(node), &bytes);
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    assert!(!is_connected(&cluster.b) && cluster.a.members() == 1, "b was not cut off");

    cluster.net.port(&["b", "up"]);
    let is_well = |agent: &Daemon| is_connected(agent) && agent.members() == 2 && avoids(agent) == 0;
    cluster.wait_for("both know both", is_well);
    // What one has written last, the other one reads, whether it is on the file system yet or not.
    let bytes = version(rounds);
    for agent in cluster.agents() {
        reads(agent, &written("a"), &bytes);
        reads(agent, &written("b"), &bytes);
    }
    fs::write(cluster.file(), content()).unwrap();
    cluster.read_by_way_of_each_other();
    for node in ["a", "b"] {
        wait_for("the file system has it", || fs::read(written(node)).is_ok_and(|got| got == bytes));
    }
    for agent in cluster.agents() {
        let dirty = succeeded(forebay(&["dirty", "--json"]).env("FOREBAY_SOCKET", agent.socket()));
        assert!(!dirty.contains("parked"), "{dirty}\n{}", agent.log());
    }
}
