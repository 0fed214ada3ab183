//! Several candidates and a real etcd of three members: the leader is killed, stopped or
//! disconnected, and another candidate leads. Left out where there is no etcd.

use crate::common::{FOREBAY, PATIENCE, Process, SlowFs, content, open_dir_in, plain_pfs, text, wait_for};
use crate::coordinator::{Cluster, Played, start_coordinator_with};
use crate::dirty_elsewhere::{BYTES, READ, end, run, write};
use forebay_wire::NodeInfo;
use forebay_wire::cluster::{CLUSTER_PROTOCOL, DirtyFile, ToAgent, ToCoordinator};
use forebay_wire::framed::Framed;
use forebay_wire::link::Security;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const CANDIDATES: usize = 3;

/// Three members of etcd.
struct Etcd {
    dir: tempfile::TempDir,
    /// Ports of each member, for clients and for the other members.
    ports: Vec<(u16, u16)>,
    /// Directory with the certificates that members show to clients; members request one from
    /// clients as well. Plain HTTP without it.
    tls: Option<PathBuf>,
    members: Vec<Process>,
}

impl Etcd {
    /// `None` where there is no etcd.
    fn start(tls: Option<PathBuf>) -> Option<Self> {
        let has = |program: &str| Command::new(program).arg("version").output().is_ok();
        if !has("etcd") || !has("etcdctl") {
            eprintln!("left out: no etcd here (packages etcd-server, etcd-client)");
            return None;
        }
        let free = || TcpListener::bind("127.0.0.1:0").unwrap();
        let sockets: Vec<_> = (0..3).map(|_| (free(), free())).collect();
        let port = |socket: &TcpListener| socket.local_addr().unwrap().port();
        let ports = sockets.iter().map(|(clients, peers)| (port(clients), port(peers))).collect();
        drop(sockets);
        let mut etcd = Etcd { dir: open_dir_in("/dev/shm"), ports, tls, members: Vec::new() };
        etcd.start_all();
        Some(etcd)
    }

    fn start_all(&mut self) {
        self.members = (0..3).map(|number| self.start_member(number)).collect();
    }

    fn start_member(&self, number: usize) -> Process {
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let client_url = |port: u16| match self.tls {
            None => url(port),
            Some(_) => format!("https://127.0.0.1:{port}"),
        };
        let peers = self.ports.iter().enumerate().map(|(i, (_, peers))| format!("m{i}={}", url(*peers)));
        let (clients, own) = self.ports[number];
        let at = |name: &str| self.dir.path().join(format!("{name}{number}"));
        let log = File::options().create(true).append(true).open(at("log")).unwrap();
        let mut command = Command::new("etcd");
        command.args(["--name", &format!("m{number}"), "--data-dir"]).arg(at("data"));
        command.args(["--initial-cluster", &peers.collect::<Vec<_>>().join(",")]);
        let clients = client_url(clients);
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        if let Some(dir) = &self.tls {
            let file = |name: &str| dir.join(name).display().to_string();
            command.args(["--client-cert-auth", "--trusted-ca-file", &file("ca.pem")]);
            command.args(["--cert-file", &file("node.pem"), "--key-file", &file("node.key")]);
        }
        command.args(["--listen-peer-urls", &url(own), "--initial-advertise-peer-urls", &url(own)]);
        command.args(["--heartbeat-interval", "100", "--election-timeout", "1000"]);
        Process(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    fn urls(&self) -> Vec<String> {
        let scheme_and_host = if self.tls.is_some() { "https://localhost" } else { "http://127.0.0.1" };
        self.ports.iter().map(|(clients, _)| format!("{scheme_and_host}:{clients}")).collect()
    }

    /// The member that leads etcd itself.
    fn leader(&self) -> Option<usize> {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["endpoint", "status", "-w", "json", "--endpoints"]);
        let out = command.arg(self.urls().join(",")).output().unwrap();
        let found: serde_json::Value = serde_json::from_slice(&out.stdout).ok()?;
        found
            .as_array()?
            .iter()
            .position(|one| one["Status"]["leader"] == one["Status"]["header"]["member_id"])
    }
}

/// Candidates and agents.
struct Rig {
    etcd: Etcd,
    cluster: Cluster,
    addresses: Vec<String>,
    /// All but the first.
    others: Vec<Process>,
    config: PathBuf,
}

impl Rig {
    fn start(agents: usize, pfs: &Path) -> Option<Self> {
        Self::start_with(agents, pfs, Vec::new())
    }

    /// `more`: addresses at which agents look for a candidate as well.
    fn start_with(agents: usize, pfs: &Path, more: Vec<String>) -> Option<Self> {
        Self::start_by(Etcd::start(None)?, agents, pfs, more, "")
    }

    /// `lines`: lines of the candidates' tables `[cluster]`.
    fn start_by(etcd: Etcd, agents: usize, pfs: &Path, more: Vec<String>, lines: &str) -> Option<Self> {
        let dir = open_dir_in("/dev/shm");
        let config = dir.path().join("candidate.toml");
        std::fs::write(&config, format!("[cluster]\netcd = {:?}\n{lines}", etcd.urls())).unwrap();
        let mut candidates: Vec<_> =
            (0..CANDIDATES).map(|_| start_candidate(dir.path(), &config, "127.0.0.1:0")).collect();
        let addresses: Vec<String> = candidates.iter().map(|(_, address)| address.clone()).collect();
        let first = candidates.remove(0);
        let others = candidates.into_iter().map(|(process, _)| process).collect();
        let listed = addresses[1..].iter().cloned().chain(more).collect();
        let cluster = Cluster::under_one_of(first, listed, dir, agents, pfs, &[]);
        Some(Rig { etcd, cluster, addresses, others, config })
    }

    fn candidate(&mut self, number: usize) -> &mut Process {
        match number.checked_sub(1) {
            None => self.cluster.coordinator(),
            Some(other) => &mut self.others[other],
        }
    }

    /// The candidate to which an agent is connected, and its term.
    fn leader_of(&self, agent: usize) -> Option<(usize, u64)> {
        let cluster = self.cluster.status(agent).cluster;
        let number = self.addresses.iter().position(|address| *address == cluster.leader.0)?;
        cluster.connected.then_some((number, cluster.leader.1))
    }

    /// Waits until an agent is connected to a leader of a later term.
    fn wait_for_leader(&self, agent: usize, after: u64) -> (usize, u64) {
        wait_for("there is a later leader", || self.leader_of(agent).is_some_and(|(_, term)| term > after));
        self.leader_of(agent).unwrap()
    }

    fn start_again(&mut self, number: usize) {
        let (config, address) = (self.config.clone(), self.addresses[number].clone());
        *self.candidate(number) = start_candidate(config.parent().unwrap(), &config, &address).0;
    }

    fn log(&self) -> String {
        self.cluster.log("coordinator.log")
    }
}

fn start_candidate(dir: &Path, config: &Path, listen: &str) -> (Process, String) {
    start_coordinator_with(dir, &["--listen", listen, "--config", config.to_str().unwrap()])
}

#[test]
fn dirty_files_are_found_through_the_next_leader_and_without_their_node_nobody_gets_older_bytes() {
    let Some(slow) = SlowFs::start() else { return };
    slow.fault("write=EIO");
    let Some(mut rig) = Rig::start(3, &slow.mount()) else { return };
    // A program looks for other nodes in the agent's table, which follows in a moment.
    std::thread::sleep(Duration::from_millis(300));
    let file = slow.at("ckpt");
    write(&rig.cluster, &file, 1);
    let (leader, term) = rig.leader_of(1).unwrap();
    rig.candidate(leader).kill_9();
    // Nobody leads yet: the reader waits.
    assert!(end(run(&rig.cluster, 1, &[], READ, &file)) == content(1, 0, BYTES));
    let (leader, later) = rig.wait_for_leader(1, term);
    // The node of the file goes, and the leader before it could notice.
    rig.cluster.kill_agent(0);
    rig.candidate(leader).kill_9();
    let read = run(&rig.cluster, 1, &[], READ, &file).wait_with_output().unwrap();
    assert!(!read.status.success(), "{} bytes", read.stdout.len());
    assert!(text(&read.stderr).contains("Error"), "{}", text(&read.stderr));
    rig.wait_for_leader(1, later);
    // It comes back with what it had.
    rig.cluster.start_killed(0);
    assert!(end(run(&rig.cluster, 1, &[], READ, &file)) == content(1, 0, BYTES));
    slow.fault("none");
    rig.cluster.sync(0);
    assert!(std::fs::read(&file).unwrap() == content(1, 0, BYTES));
}

#[test]
fn a_leader_that_was_stopped_beyond_its_lease_says_nothing_when_it_goes_on() {
    let pfs = plain_pfs();
    let Some(mut rig) = Rig::start(1, pfs.path()) else { return };
    let (leader, term) = rig.leader_of(0).unwrap();
    let address = rig.addresses[leader].clone();
    let node = || NodeInfo { name: "played".into(), capacity_bytes: 1, ..NodeInfo::default() };
    let mut played = Played::join_as(&address, node());
    wait_for("it is a member", || {
        played.hear().iter().any(|m| matches!(m, ToAgent::Welcome { refusal, .. } if refusal.is_empty()))
    });
    played.beat();
    wait_for("it leads", || played.hear().contains(&ToAgent::Heard));
    rig.candidate(leader).stop();
    // Asked in time, and read when it continues.
    let file = DirtyFile { mount: "pfs".into(), ino: 7 };
    played.beat();
    played.say(&ToCoordinator::Dirty { ask: 1, file });
    let began = Instant::now();
    let (next, _) = rig.wait_for_leader(0, term);
    println!("another one leads after {:.1} s", began.elapsed().as_secs_f64());
    assert_ne!(next, leader);
    rig.candidate(leader).go_on();
    let mut heard = Vec::new();
    wait_for("it closes the connection", || {
        let (more, is_over) = played.hear_to_the_end();
        heard.extend(more);
        is_over
    });
    assert!(!heard.iter().any(|m| matches!(m, ToAgent::Heard | ToAgent::Holder { .. })), "{heard:?}");
    assert!(rig.log().contains("steps down"), "{}", rig.log());
    // It is a candidate again, and knows that another one leads.
    let mut other = Played::join_as(&address, node());
    let mut heard = Vec::new();
    wait_for("it answers", || {
        heard.extend(other.hear_to_the_end().0);
        !heard.is_empty()
    });
    let ToAgent::Welcome { refusal, leader, .. } = &heard[0] else { panic!("{heard:?}") };
    assert!(refusal.contains("does not lead") && *leader == rig.addresses[next], "{heard:?}");
}

#[test]
fn one_member_of_etcd_may_go_and_without_most_of_them_nobody_leads_and_reads_go_on() {
    let pfs = plain_pfs();
    std::fs::write(pfs.path().join("data"), content(3, 0, 100_000)).unwrap();
    let Some(mut rig) = Rig::start(1, pfs.path()) else { return };
    let (_, term) = rig.leader_of(0).unwrap();
    let mut led = None;
    wait_for("etcd has a leader", || {
        led = rig.etcd.leader();
        led.is_some()
    });
    let follower = (led.unwrap() + 1) % 3;
    rig.etcd.members[follower].kill_9();
    // Longer than a lease.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(rig.leader_of(0).map(|(_, term)| term), Some(term), "{}", rig.log());

    rig.etcd.members[(follower + 1) % 3].kill_9();
    wait_for("nobody leads", || {
        let cluster = rig.cluster.status(0).cluster;
        !cluster.connected && cluster.problems.iter().any(|(_, why)| why.contains("etcd does not answer"))
    });
    wait_for("the leader steps down", || rig.log().contains("steps down"));
    let said = text(&rig.cluster.cli(0, &["doctor", "--cluster"]).stdout);
    assert!(said.contains("no candidate leads for") && said.contains("etcd does not answer"), "{said}");
    let mut bytes = vec![0; 100_000];
    let file = rig.cluster.client(0).open(pfs.path().join("data")).unwrap();
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    assert!(bytes == content(3, 0, 100_000));

    for number in [follower, (follower + 1) % 3] {
        rig.etcd.members[number] = rig.etcd.start_member(number);
    }
    rig.wait_for_leader(0, term);
    let said = text(&rig.cluster.cli(0, &["status"]).stdout);
    assert!(said.contains("leads, in term"), "{said}");
}

#[test]
fn coordinators_are_upgraded_one_after_the_other_and_an_earlier_term_is_refused() {
    let pfs = plain_pfs();
    let old = Security::Loopback.listen("127.0.0.1:0").unwrap();
    let Some(mut rig) = Rig::start_with(1, pfs.path(), vec![old.address().unwrap().to_string()]) else {
        return;
    };
    let (_, mut term) = rig.leader_of(0).unwrap();
    for number in 0..CANDIDATES {
        let led = rig.leader_of(0).unwrap().0 == number;
        rig.candidate(number).end();
        if led {
            let began = Instant::now();
            term = rig.wait_for_leader(0, term).1;
            // Its lease has not been waited for.
            println!("another one leads after {:.2} s", began.elapsed().as_secs_f64());
        }
        rig.start_again(number);
    }
    (0..CANDIDATES).for_each(|number| rig.candidate(number).kill_9());
    // One that was elected long ago.
    wait_for("the agent comes", || {
        let deadline = Instant::now() + PATIENCE;
        // It has come in vain before.
        let Ok(stream) = old.prove(old.accept().unwrap(), deadline) else { return false };
        let mut link = Framed::new(stream).unwrap();
        let (protocol, refusal, leader) = (CLUSTER_PROTOCOL, String::new(), String::new());
        link.send(&ToAgent::Welcome { protocol, refusal, heartbeat_ms: 1000, term: 1, leader }).unwrap();
        // One that has gone meanwhile connects again.
        let _ = link.flush();
        rig.cluster.log("log0").contains("it was elected in term 1, and another one in term")
    });
    assert!(!rig.cluster.status(0).cluster.connected);
}

/// Certificates of a new CA for members of etcd and for candidates.
fn etcd_certificates(at: &Path) {
    let mut init = Command::new(FOREBAY);
    let nodes = ["--node", "localhost=127.0.0.1", "--node", "candidate=127.0.0.1"];
    assert!(init.arg("init").arg(at).args(nodes).output().unwrap().status.success());
}

#[test]
fn candidates_and_etcd_prove_who_they_are_and_take_new_certificates_as_they_run() {
    let pfs = plain_pfs();
    let dir = open_dir_in("/dev/shm");
    let [old, new] = ["old", "new"].map(|name| dir.path().join(name));
    etcd_certificates(&old);
    etcd_certificates(&new);
    let in_use = dir.path().join("in-use");
    let take = |from: &Path| {
        std::fs::create_dir_all(&in_use).unwrap();
        for file in ["node.key", "node.pem", "ca.pem"] {
            std::fs::copy(from.join("candidate").join(file), in_use.join(file)).unwrap();
        }
    };
    take(&old);
    let Some(etcd) = Etcd::start(Some(old.join("localhost"))) else { return };
    let lines = format!("etcd_tls = {in_use:?}\n");
    let Some(mut rig) = Rig::start_by(etcd, 1, pfs.path(), Vec::new(), &lines) else { return };
    let (_, term) = rig.leader_of(0).unwrap();

    // The members show certificates of another CA, and ask for them.
    rig.etcd.tls = Some(new.join("localhost"));
    rig.etcd.members.iter_mut().for_each(Process::kill_9);
    rig.etcd.start_all();
    let problems = || rig.cluster.status(0).cluster.problems;
    wait_for("nobody leads", || {
        problems().iter().any(|(_, why)| why.contains("etcd does not answer") && why.contains("certificate"))
    });
    take(&new);
    rig.wait_for_leader(0, term);
}
