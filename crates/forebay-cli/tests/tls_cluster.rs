//! A cluster over TLS, in real processes, with the certificates that `forebay init` makes.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

mod kit;

use forebay_wire::frame;
use forebay_wire::link::Security;
use forebay_wire::peer::{PEER_PROTOCOL, PeerReply, PeerRequest};
use kit::{Daemon, PATIENCE, forebay, succeeded};
use std::fs;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddrV4, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const FILE_BYTES: usize = 16 << 20;

/// A cluster's directory with certificates of these nodes, and a PFS. Tiers are in it as well.
fn place(nodes: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("forebay-tls-").tempdir_in("/dev/shm").unwrap();
    let nodes = nodes.iter().flat_map(|node| ["--node", node]);
    succeeded(forebay(&["init"]).arg(dir.path().join("cluster")).args(nodes));
    fs::create_dir(dir.path().join("pfs")).unwrap();
    dir
}

/// Starts the agent of node `name` with the certificates in `tls`.
fn agent(at: &Path, name: &str, tls: &str, coordinator: &str) -> Daemon {
    let cluster =
        format!("coordinator = \"{coordinator}\"\nlisten = \"127.0.0.1:0\"\npeer_deadline_ms = 60000\n");
    Daemon::agent_of(forebay(&[]), at, name, tls, &cluster)
}

fn coordinator(at: &Path) -> (Daemon, String) {
    let config =
        format!("[cluster]\ncoordinator_listen = \"127.0.0.1:0\"\ntls = {:?}\n", at.join("cluster/n1"));
    let coordinator = Daemon::start(forebay(&[]), "coordinator", &at.join("coordinator"), &config);
    let address = coordinator.address_after("coordinator listens on");
    (coordinator, address)
}

/// What `forebay cat` prints on a node.
fn cat(agent: &Daemon, path: &Path) -> Vec<u8> {
    forebay(&["cat"]).arg(path).arg("--socket").arg(agent.socket()).output().unwrap().stdout
}

/// n3 has a good certificate and has not joined.
fn a_certificate_without_membership_gets_nothing(at: &Path, member: &Daemon) {
    let status = member.status().unwrap();
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
    let dir = place(&["n1", "n2", "n3"]);
    let at = dir.path();
    let bytes: Vec<u8> = (0..FILE_BYTES).map(|i| (i % 251) as u8).collect();
    for name in ["pfs/file", "pfs/file.parquet"] {
        fs::write(at.join(name), &bytes).unwrap();
    }

    let (_coordinator, address) = coordinator(at);
    let one = agent(at, "n1", "n1", &address);
    let two = agent(at, "n2", "n2", &address);
    for agent in [&one, &two] {
        agent.wait_for("two members", |agent| agent.members() == 2);
    }
    // Each has half of the extents, and what the other has is requested from it.
    for name in ["pfs/file", "pfs/file.parquet"] {
        let before = one.counter("from_peers_bytes");
        assert!(cat(&one, &at.join(name)) == bytes, "{name}: other bytes than those of the PFS");
        one.wait_for("pages from the other node", |one| one.counter("from_peers_bytes") > before);
    }
    // Small pages come together.
    assert!(one.counter("peer_requests_total") < one.counter("pages_from_peers_total"));
    assert_eq!(one.counter("peer_broken_total") + one.counter("peer_late_total"), 0, "{}", one.log());

    a_certificate_without_membership_gets_nothing(at, &one);

    // n3 has a certificate of the cluster, but not that of n4.
    let posing = agent(at, "n4", "n3", &address);
    posing.wait_for("a refusal", |posing| posing.log().contains("which may not join as"));
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
    let dir = place(&["n1", "n2"]);
    let at = dir.path();
    let bytes: Vec<u8> = (0..FILE_BYTES).map(|i| (i % 251) as u8).collect();
    fs::write(at.join("pfs/file"), &bytes).unwrap();
    let (_coordinator, address) = coordinator(at);
    let one = agent(at, "n1", "n1", &address);
    one.wait_for("one member", |one| one.members() == 1);
    let peer = one.status().unwrap().cluster.view.nodes[0].address.clone();
    let crowds = [Strangers::crowd(&address, 200), Strangers::crowd(&peer, 200)];
    assert!(one.status().unwrap().used_bytes.iter().map(|(_, bytes)| bytes).sum::<u64>() < 48 << 20);

    let two = agent(at, "n2", "n2", &address);
    two.wait_for("two members", |two| two.members() == 2);
    assert!(cat(&two, &at.join("pfs/file")) == bytes, "other bytes than those of the PFS");
    two.wait_for("pages from the other node", |two| two.counter("from_peers_bytes") > 0);
    assert_eq!(one.members(), 2, "the first has stayed: {}", one.log());
    for crowd in crowds {
        assert!(crowd.end() >= 200, "there was no crowd");
    }
}
