//! A cluster over TLS, in real processes, with the certificates that `forebay init` makes.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

use forebay_client::{Client, ClientConfig};
use forebay_wire::frame;
use forebay_wire::link::Security;
use forebay_wire::peer::{PEER_PROTOCOL, PeerReply, PeerRequest};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::{SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay");

const PATIENCE: Duration = Duration::from_secs(60);

const FILE_BYTES: usize = 16 << 20;

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Errors only if it has ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn forebay(args: &[&str]) -> Command {
    let mut command = Command::new(FOREBAY);
    command.args(args).env_remove("FOREBAY_SOCKET").env_remove("FOREBAY_CONFIG");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn wait_for(what: &str, agent: &Agent, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "not in time: {what}: {}", agent.log());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The agent of a node.
struct Agent {
    at: PathBuf,
    process: Option<Process>,
}

impl Agent {
    /// Starts the agent of node `name` with the certificates in `tls`.
    fn start(at: &Path, name: &str, tls: &str, coordinator: &str) -> Agent {
        let dir = at.join(format!("agent-{name}"));
        fs::create_dir(&dir).unwrap();
        let config = format!(
            "[agent]\nstate_dir = \"{state}\"\n[tier]\ncapacity = \"64MiB\"\n[cluster]\nnode = \"{name}\"\n\
             coordinator = \"{coordinator}\"\nlisten = \"127.0.0.1:0\"\ntls = \"{tls}\"\npeer_deadline_ms = 60000\n\
             [[mount]]\nlabel = \"pfs\"\nroot = \"{pfs}\"\npage_size = \"64KiB\"\nextent_size = \"1MiB\"\n\
             stamp_granularity_ms = 0\n",
            state = dir.join("state").display(),
            tls = at.join("cluster").join(tls).display(),
            pfs = at.join("pfs").display(),
        );
        fs::write(dir.join("config.toml"), config).unwrap();
        let mut command = forebay(&["agent", "--config"]);
        command.arg(dir.join("config.toml")).stderr(File::create(dir.join("log")).unwrap());
        Agent { process: Some(Process(command.spawn().unwrap())), at: dir }
    }

    fn socket(&self) -> PathBuf {
        self.at.join("state/agent.sock")
    }

    fn client(&self) -> Client {
        let config = ClientConfig { quiet: true, deadline: PATIENCE, ..ClientConfig::default() };
        Client::new(ClientConfig { socket: Some(self.socket()), ..config })
    }

    fn log(&self) -> String {
        fs::read_to_string(self.at.join("log")).unwrap()
    }

    fn members(&self) -> usize {
        self.client().admin().status().map_or(0, |status| status.cluster.view.nodes.len())
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.client().admin().status().unwrap().counters;
        counters.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no counter {name}")).1
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.process = None;
        // The tier outlives its agent by design; here it must not.
        let mut down = forebay(&["down", "--drop", "--state-dir"]);
        let done = down.arg(self.at.join("state")).arg("--socket").arg(self.socket()).status();
        if !done.is_ok_and(|status| status.success()) && !std::thread::panicking() {
            panic!("the tier of {} could not be dropped", self.at.display());
        }
    }
}

fn start_coordinator(at: &Path) -> (Process, String) {
    let config = at.join("coordinator.toml");
    let tls = at.join("cluster/n1");
    fs::write(&config, format!("[cluster]\ntls = \"{}\"\n", tls.display())).unwrap();
    let mut command = forebay(&["coordinator", "--listen", "127.0.0.1:0", "--config"]);
    let mut process = Process(command.arg(&config).stdout(Stdio::piped()).spawn().unwrap());
    let mut said = String::new();
    BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let address = said.trim().strip_prefix("coordinator listens on ").unwrap().to_owned();
    (process, address)
}

/// n3 has a good certificate and has not joined.
fn a_certificate_without_membership_gets_nothing(at: &Path, member: &Agent) {
    let status = member.client().admin().status().unwrap();
    let node = status.cluster.view.nodes.iter().find(|n| n.name == "n1").unwrap();
    let security = Security::load(&at.join("cluster/n3")).unwrap();
    let mut stream = security.connect(&node.address, Instant::now() + PATIENCE).unwrap();
    stream.set_timeout(Some(PATIENCE)).unwrap();
    let hello = PeerRequest::Hello { protocol: PEER_PROTOCOL, node: "n3".into() };
    frame::send(&mut stream, &hello).unwrap();
    match frame::receive::<PeerReply>(&mut stream).unwrap() {
        PeerReply::Welcome { refusal, .. } => assert!(refusal.contains("no member"), "served: {refusal:?}"),
        other => panic!("{other:?} in answer to a greeting"),
    }
    assert!(frame::receive::<PeerReply>(&mut stream).is_err(), "the connection is still open");
}

#[test]
fn pages_go_between_nodes_over_tls_and_nobody_joins_under_anothers_name() {
    let dir = tempfile::Builder::new().prefix("forebay-tls-").tempdir().unwrap();
    let at = dir.path();
    let mut init = forebay(&["init"]);
    init.arg(at.join("cluster")).args(["--node", "n1", "--node", "n2", "--node", "n3"]);
    assert!(init.status().unwrap().success());
    fs::create_dir(at.join("pfs")).unwrap();
    let bytes: Vec<u8> = (0..FILE_BYTES).map(|i| (i % 251) as u8).collect();
    for name in ["pfs/file", "pfs/file.parquet"] {
        fs::write(at.join(name), &bytes).unwrap();
    }

    let (_coordinator, address) = start_coordinator(at);
    let one = Agent::start(at, "n1", "n1", &address);
    let two = Agent::start(at, "n2", "n2", &address);
    for agent in [&one, &two] {
        wait_for("two members", agent, || agent.members() == 2);
    }
    // Each has half of the extents, and what the other has is asked of it.
    for name in ["pfs/file", "pfs/file.parquet"] {
        let before = one.counter("from_peers_bytes");
        let mut cat = forebay(&["cat"]);
        cat.arg(at.join(name)).arg("--socket").arg(one.socket()).stdout(Stdio::piped());
        assert!(cat.output().unwrap().stdout == bytes, "{name}: other bytes than those of the PFS");
        wait_for("pages from the other node", &one, || one.counter("from_peers_bytes") > before);
    }
    // Small pages come together.
    assert!(one.counter("peer_requests_total") < one.counter("pages_from_peers_total"));
    assert_eq!(one.counter("peer_broken_total") + one.counter("peer_late_total"), 0, "{}", one.log());

    a_certificate_without_membership_gets_nothing(at, &one);

    // n3 has a certificate of the cluster, but not that of n4.
    let posing = Agent::start(at, "n4", "n3", &address);
    wait_for("a refusal", &posing, || posing.log().contains("which may not join as"));
    assert_eq!((one.members(), posing.members()), (2, 0));
}

/// Keeps `count` connections open from 127.0.0.2, each of which says nothing, and opens another for
/// each that is closed.
struct Strangers {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<usize>>,
}

impl Strangers {
    fn crowd(address: &str, count: usize) -> Self {
        let to: SocketAddrV4 = address.parse().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopping, (full, is_full)) = (stop.clone(), channel());
        let thread = std::thread::spawn(move || {
            let (mut open, mut opened) = (Vec::<TcpStream>::new(), 0);
            while !stopping.load(Ordering::Relaxed) {
                open.retain_mut(
                    |socket| matches!(socket.read(&mut [0]), Err(e) if e.kind() == ErrorKind::WouldBlock),
                );
                while open.len() < count && !stopping.load(Ordering::Relaxed) {
                    open.extend(stranger(to));
                    opened += 1;
                    if opened == count {
                        full.send(()).unwrap();
                    }
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            opened
        });
        is_full.recv_timeout(PATIENCE).unwrap();
        Strangers { stop, thread: Some(thread) }
    }

    /// Ends them; returns how many there were.
    fn end(mut self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A connection that waits half a second for its place in the backlog.
fn stranger(to: SocketAddrV4) -> Option<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let from = TcpStream::from(socket(AddressFamily::INET, SocketType::STREAM, None).unwrap());
    bind(&from, &SocketAddrV4::new([127, 0, 0, 2].into(), 0)).unwrap();
    // On Linux this bounds connecting as well.
    from.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    connect(&from, &to).ok()?;
    from.set_nonblocking(true).unwrap();
    Some(from)
}

#[test]
fn strangers_that_never_complete_a_handshake_keep_no_member_out() {
    let dir = tempfile::Builder::new().prefix("forebay-tls-").tempdir().unwrap();
    let at = dir.path();
    let mut init = forebay(&["init"]);
    init.arg(at.join("cluster")).args(["--node", "n1", "--node", "n2"]);
    assert!(init.status().unwrap().success());
    fs::create_dir(at.join("pfs")).unwrap();
    let bytes: Vec<u8> = (0..FILE_BYTES).map(|i| (i % 251) as u8).collect();
    fs::write(at.join("pfs/file"), &bytes).unwrap();
    let (_coordinator, address) = start_coordinator(at);
    let one = Agent::start(at, "n1", "n1", &address);
    wait_for("one member", &one, || one.members() == 1);
    let peer = one.client().admin().status().unwrap().cluster.view.nodes[0].address.clone();
    let crowds = [Strangers::crowd(&address, 200), Strangers::crowd(&peer, 200)];
    assert!(
        one.client().admin().status().unwrap().used_bytes.iter().map(|(_, bytes)| bytes).sum::<u64>()
            < 48 << 20
    );

    let two = Agent::start(at, "n2", "n2", &address);
    wait_for("two members", &two, || two.members() == 2);
    let mut cat = forebay(&["cat"]);
    cat.arg(at.join("pfs/file")).arg("--socket").arg(two.socket()).stdout(Stdio::piped());
    assert!(cat.output().unwrap().stdout == bytes, "other bytes than those of the PFS");
    wait_for("pages from the other node", &two, || two.counter("from_peers_bytes") > 0);
    assert_eq!(one.members(), 2, "the first has stayed: {}", one.log());
    for crowd in crowds {
        assert!(crowd.end() >= 200, "there was no crowd");
    }
}
