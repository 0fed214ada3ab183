//! Who gets in over TLS and who does not, and what both ends report.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

use forebay_wire::frame;
use forebay_wire::link::{Listener, Security, Stream};
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};

const DAY_S: i64 = 86_400;

/// A certificate authority.
struct Ca {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// What a node's certificate is to be.
struct Node<'a> {
    names: &'a [&'a str],
    /// Days from now.
    valid: (i64, i64),
    usages: &'a [ExtendedKeyUsagePurpose],
}

const BOTH: &[ExtendedKeyUsagePurpose] = &[ServerAuth, ClientAuth];

impl Node<'static> {
    const GOOD: Node<'static> = Node { names: &["node1"], valid: (-1, 30), usages: BOTH };
}

fn params(names: &[&str], valid: (i64, i64)) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let day = |days: i64| {
        let at = now.as_secs().saturating_add_signed(days * DAY_S);
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(at)
    };
    (params.not_before, params.not_after) = (day(valid.0), day(valid.1));
    params
}

impl Ca {
    fn new(valid: (i64, i64)) -> Self {
        let mut params = params(&[], valid);
        params.distinguished_name.push(rcgen::DnType::CommonName, "test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Ca { pem, issuer: Issuer::new(params, key) }
    }

    /// Writes the files of a node.
    fn issue(&self, directory: &Path, node: &Node<'_>) -> PathBuf {
        let mut params = params(node.names, node.valid);
        params.extended_key_usages = node.usages.to_vec();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join("ca.pem"), &self.pem).unwrap();
        fs::write(directory.join("node.pem"), certificate.pem()).unwrap();
        fs::write(directory.join("node.key"), key.serialize_pem()).unwrap();
        fs::set_permissions(directory.join("node.key"), fs::Permissions::from_mode(0o600)).unwrap();
        directory.to_owned()
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// One connection between the two.
fn meet(listening: &Security, connecting: &Security) -> (io::Result<Stream>, io::Result<Stream>) {
    let listener = listening.listen("127.0.0.1:0").unwrap();
    let address = listener.address().unwrap().to_string();
    thread::scope(|scope| {
        let other = scope.spawn(move || listener.prove(listener.accept().unwrap(), soon()));
        let one = connecting.connect(&address, soon());
        (one, other.join().unwrap())
    })
}

fn said(result: io::Result<impl Sized>) -> String {
    match result {
        Ok(_) => panic!("this had to be refused"),
        Err(e) => e.to_string(),
    }
}

/// A pair of nodes of one cluster, and the directory that holds their files.
fn pair() -> (tempfile::TempDir, Security, Security) {
    let at = tempfile::tempdir().unwrap();
    let ca = Ca::new((-1, 60));
    let one = ca.issue(&at.path().join("one"), &Node::GOOD);
    let two = ca.issue(&at.path().join("two"), &Node { names: &["Node2"], ..Node::GOOD });
    let (one, two) = (Security::load(&one).unwrap(), Security::load(&two).unwrap());
    (at, one, two)
}

#[test]
fn members_meet_and_know_each_other_by_name() {
    let (_at, one, two) = pair();
    let (connected, accepted) = meet(&one, &two);
    let (mut connected, mut accepted) = (connected.unwrap(), accepted.unwrap());
    assert_eq!(connected.peer_name(), Some("node1"));
    assert_eq!(accepted.peer_name(), Some("Node2"));
    assert!(accepted.may_speak_for("node2") && !accepted.may_speak_for("node1"));
    assert!(connected.plain().is_none() && !connected.wants_write());
    frame::send(&mut connected, &7u32).unwrap();
    assert_eq!(frame::receive::<u32>(&mut accepted).unwrap(), 7);
    frame::send(&mut accepted, &"and back").unwrap();
    assert_eq!(frame::receive::<String>(&mut connected).unwrap(), "and back");
    drop(connected);
    // An orderly end is distinguished from a cut.
    assert_eq!(accepted.read(&mut [0]).unwrap(), 0);
}

#[test]
fn who_is_of_another_cluster_is_refused_by_both() {
    let (at, one, _) = pair();
    let other = Ca::new((-1, 60)).issue(&at.path().join("other"), &Node::GOOD);
    let (connected, accepted) = meet(&one, &Security::load(&other).unwrap());
    assert!(said(connected).contains("was not signed by this cluster's CA"));
    assert!(said(accepted).contains("CA did not sign this node's certificate"));
}

/// A security that `load` would not have made: its files are checked by the other end only.
fn rogue(at: &Path, ca: &Ca, node: &Node<'_>) -> rustls::ClientConfig {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let directory = ca.issue(at, node);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(directory.join("ca.pem")).unwrap()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    if node.names.is_empty() {
        return config.with_no_client_auth();
    }
    let chain = vec![CertificateDer::from_pem_file(directory.join("node.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(directory.join("node.key")).unwrap();
    config.with_client_auth_cert(chain, key).unwrap()
}

/// What the listener says to a client that has `node`'s certificate.
fn refusal(node: &Node<'_>) -> String {
    let at = tempfile::tempdir().unwrap();
    let ca = Ca::new((-40, 60));
    let own = Security::load(&ca.issue(&at.path().join("own"), &Node::GOOD)).unwrap();
    let config = rogue(&at.path().join("rogue"), &ca, node);
    let listener = own.listen("127.0.0.1:0").unwrap();
    let address = listener.address().unwrap();
    let said = thread::scope(|scope| {
        let refused = scope.spawn(|| said(listener.prove(listener.accept().unwrap(), soon())));
        let name = rustls::pki_types::ServerName::try_from("node1").unwrap();
        let session = rustls::ClientConnection::new(config.into(), name).unwrap();
        let mut stream = rustls::StreamOwned::new(session, TcpStream::connect(address).unwrap());
        assert!(stream.read(&mut [0]).is_err(), "it was let in");
        refused.join().unwrap()
    });
    assert_eq!(listener.refused(), 1);
    said
}

#[test]
fn a_listener_lets_nobody_in_whose_certificate_is_no_good() {
    assert!(refusal(&Node { names: &[], ..Node::GOOD }).contains("shows no certificate"));
    assert!(refusal(&Node { valid: (-30, -1), ..Node::GOOD }).contains("has expired"));
    assert!(refusal(&Node { valid: (1, 30), ..Node::GOOD }).contains("is not valid yet"));
    assert!(refusal(&Node { usages: &[ServerAuth], ..Node::GOOD }).contains("not valid for this end"));
}

#[test]
fn who_connects_believes_nobody_whose_certificate_is_no_good() {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let at = tempfile::tempdir().unwrap();
    let ca = Ca::new((-40, 60));
    let own = Security::load(&ca.issue(&at.path().join("own"), &Node::GOOD)).unwrap();
    for (node, why) in [
        (Node { valid: (-30, -1), ..Node::GOOD }, "has expired"),
        (Node { usages: &[ClientAuth], ..Node::GOOD }, "not valid for this end"),
        (Node { names: &[], ..Node::GOOD }, "names no node"),
    ] {
        let directory = ca.issue(&at.path().join("bad"), &node);
        let chain = vec![CertificateDer::from_pem_file(directory.join("node.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(directory.join("node.key")).unwrap();
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        // It asks for no certificate: who connects must not be content with that either.
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = thread::spawn(move || {
            let session = rustls::ServerConnection::new(config.into()).unwrap();
            let mut stream = rustls::StreamOwned::new(session, listener.accept().unwrap().0);
            let _ = stream.read(&mut [0]);
        });
        let said = said(own.connect(&address, soon()));
        assert!(said.contains(why), "{said}");
        server.join().unwrap();
    }
}

#[test]
fn files_that_are_no_good_are_refused_by_name() {
    let at = tempfile::tempdir().unwrap();
    let ca = Ca::new((-40, 60));
    let at = |name: &str| at.path().join(name);
    let refuse = |directory: &Path| said(Security::load(directory));

    let said = refuse(&at("nowhere"));
    assert!(said.contains("ca.pem") && said.contains("forebay init"), "{said}");

    let said = refuse(&ca.issue(&at("expired"), &Node { valid: (-30, -10), ..Node::GOOD }));
    assert!(said.contains("node.pem") && said.contains("expired 10 days ago"), "{said}");
    assert!(refuse(&ca.issue(&at("early"), &Node { valid: (3, 9), ..Node::GOOD })).contains("not valid yet"));
    let one_way = Node { usages: &[ServerAuth], ..Node::GOOD };
    assert!(refuse(&ca.issue(&at("one-way"), &one_way)).contains("both ends"));
    assert!(refuse(&ca.issue(&at("nameless"), &Node { names: &[], ..Node::GOOD })).contains("names no node"));

    let directory = ca.issue(&at("other-ca"), &Node::GOOD);
    fs::write(directory.join("ca.pem"), Ca::new((-1, 60)).pem).unwrap();
    assert!(refuse(&directory).contains("not signed by the CA"));

    let directory = ca.issue(&at("other-key"), &Node::GOOD);
    fs::write(directory.join("node.key"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let said = refuse(&directory);
    assert!(said.contains("node.key") && said.contains("not the key of node.pem"), "{said}");

    let directory = ca.issue(&at("open-key"), &Node::GOOD);
    fs::set_permissions(directory.join("node.key"), fs::Permissions::from_mode(0o640)).unwrap();
    let said = refuse(&directory);
    assert!(said.contains("node.key") && said.contains("0640") && said.contains("chmod 600"), "{said}");

    let directory = ca.issue(&at("empty"), &Node::GOOD);
    fs::write(directory.join("node.pem"), "nothing\n").unwrap();
    assert!(refuse(&directory).contains("contains no certificate"));
}

#[test]
fn the_end_of_a_certificate_is_known() {
    let at = tempfile::tempdir().unwrap();
    let directory = Ca::new((-1, 60)).issue(at.path(), &Node { valid: (-1, 30), ..Node::GOOD });
    let facts = Security::load(&directory).unwrap().facts().unwrap();
    let left = facts.expires.duration_since(SystemTime::now()).unwrap().as_secs();
    assert!(left.abs_diff(30 * 86_400) < 600, "{left} s left");
    assert_eq!(facts.node, "node1");
}

fn raw(listener: &Listener) -> TcpStream {
    TcpStream::connect(listener.address().unwrap()).unwrap()
}

#[test]
fn garbage_and_plain_speakers_are_refused_in_words() {
    let (_at, one, _) = pair();
    let listener = one.listen("127.0.0.1:0").unwrap();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &frame::encode(&7u32).unwrap(), &[0; 100], &[255; 100]] {
        let mut client = raw(&listener);
        client.write_all(bytes).unwrap();
        let said = said(listener.prove(listener.accept().unwrap(), soon()));
        assert!(said.contains("does not speak TLS"), "{said}");
    }
    assert_eq!(listener.refused(), 4);
}

#[test]
fn plain_on_one_end_and_tls_on_the_other_is_reported_to_both() {
    let (_at, tls, _) = pair();
    // The one who connects is plain.
    let listener = tls.listen("127.0.0.1:0").unwrap();
    let mut plain = Security::Loopback.connect(&listener.address().unwrap().to_string(), soon()).unwrap();
    frame::send(&mut plain, &7u32).unwrap();
    assert!(said(listener.prove(listener.accept().unwrap(), soon())).contains("set cluster.tls there"));
    let said_to_plain = said(frame::receive::<u32>(&mut plain));
    assert!(said_to_plain.contains("speaks TLS"), "{said_to_plain}");

    // The one who listens is plain.
    let listener = Security::Loopback.listen("127.0.0.1:0").unwrap();
    let address = listener.address().unwrap().to_string();
    let client = thread::spawn(move || said(tls.connect(&address, soon())));
    let mut stream = listener.prove(listener.accept().unwrap(), soon()).unwrap();
    assert!(said(frame::receive::<u32>(&mut stream)).contains("speaks TLS"));
    drop(stream);
    assert!(client.join().unwrap().contains("uses no TLS"));
}

/// Bytes that drip, each in time, must not keep a listener beyond its deadline; nor must silence.
#[test]
fn who_does_not_go_on_is_left_at_the_deadline() {
    let (_at, one, two) = pair();
    let limit = Duration::from_millis(300);
    let listener = one.listen("127.0.0.1:0").unwrap();
    let silent = raw(&listener);
    let began = Instant::now();
    let e = listener.prove(listener.accept().unwrap(), began + limit).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::TimedOut);
    assert!(began.elapsed() >= limit, "it did not wait");
    drop(silent);

    // The head of a handshake of 16 KiB, and then a byte of it now and then.
    let mut slow = raw(&listener);
    slow.write_all(&[22, 3, 1, 64, 0, 1, 0, 63, 252]).unwrap();
    let began = Instant::now();
    let (ended, end) = std::sync::mpsc::channel::<()>();
    let drip = thread::spawn(move || {
        while end.recv_timeout(Duration::from_millis(10)) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            if slow.write_all(&[0]).is_err() {
                break;
            }
        }
    });
    let e = listener.prove(listener.accept().unwrap(), began + limit).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::TimedOut, "{e}");
    drop(ended);
    drip.join().unwrap();

    // And the reverse: a listener that says nothing.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let e = two.connect(&mute.local_addr().unwrap().to_string(), Instant::now() + limit).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::TimedOut, "{e}");
}

/// Millions of bytes both ways at once between two pollers with small buffers: nothing is lost,
/// nothing hangs.
#[test]
fn non_blocking_streams_lose_nothing() {
    let (_at, one, two) = pair();
    let (connected, accepted) = meet(&one, &two);
    let mut ends = [End::new(connected.unwrap(), 1), End::new(accepted.unwrap(), 2)];
    let began = Instant::now();
    while ends.iter().any(|end| !end.done()) {
        assert!(began.elapsed() < Duration::from_secs(60), "stuck: {ends:?}");
        let wait: Vec<_> = ends.iter().map(|end| (end.stream.socket(), end.flags())).collect();
        let mut polled: Vec<_> =
            wait.iter().map(|(socket, flags)| rustix::event::PollFd::new(socket, *flags)).collect();
        rustix::event::poll(&mut polled, None).unwrap();
        ends.iter_mut().for_each(End::go_on);
    }
    for end in &ends {
        assert!(!end.stream.wants_write());
        // Read by the numbers of the other end.
        let other = if end.seed == 1 { 2 } else { 1 };
        assert!(end.got.iter().enumerate().all(|(i, byte)| *byte == number(other, i)));
    }
}

const SENT_BYTES: usize = 5_000_000;

fn number(seed: usize, i: usize) -> u8 {
    (i * (2 * seed + 1) / 7 % 251) as u8
}

#[derive(Debug)]
struct End {
    stream: Stream,
    seed: usize,
    sent: usize,
    got: Vec<u8>,
}

impl End {
    fn new(stream: Stream, seed: usize) -> Self {
        stream.set_nonblocking(true).unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(stream.socket(), 16 << 10).unwrap();
        End { stream, seed, sent: 0, got: Vec::new() }
    }

    fn done(&self) -> bool {
        self.sent == SENT_BYTES && self.got.len() == SENT_BYTES && !self.stream.wants_write()
    }

    fn flags(&self) -> rustix::event::PollFlags {
        let out = self.sent < SENT_BYTES || self.stream.wants_write();
        let flags = if out { rustix::event::PollFlags::OUT } else { rustix::event::PollFlags::empty() };
        flags | rustix::event::PollFlags::IN
    }

    fn go_on(&mut self) {
        while self.sent < SENT_BYTES {
            let piece: Vec<u8> =
                (self.sent..SENT_BYTES.min(self.sent + 70_000)).map(|i| number(self.seed, i)).collect();
            match self.stream.write(&piece) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => panic!("{e}"),
            }
        }
        if self.stream.wants_write() {
            match self.stream.flush() {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                result => result.unwrap(),
            }
        }
        let mut buffer = [0; 3000];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => panic!("ended"),
                Ok(n) => self.got.extend(&buffer[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => panic!("{e}"),
            }
        }
    }
}

#[test]
fn a_blocking_read_and_a_blocking_write_are_bounded() {
    let (_at, one, two) = pair();
    let (connected, accepted) = meet(&one, &two);
    let (mut connected, mut accepted) = (connected.unwrap(), accepted.unwrap());
    let limit = Duration::from_millis(200);
    connected.set_timeout(Some(limit)).unwrap();
    let began = Instant::now();
    assert_eq!(connected.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(began.elapsed() >= limit);
    // Nobody reads at the other end: at some point the kernel takes no more.
    let e = (0..10_000).find_map(|_| connected.write_all(&[0; 100_000]).err()).unwrap();
    assert_eq!(e.kind(), ErrorKind::WouldBlock);
    // A timeout leaves the bytes before it readable, and is lifted again.
    frame::send(&mut accepted, &7u32).unwrap();
    connected.set_timeout(None).unwrap();
    let reader = thread::spawn(move || {
        let mut sink = vec![0; 1 << 20];
        while accepted.read(&mut sink).is_ok_and(|n| n > 0) {}
    });
    assert_eq!(frame::receive::<u32>(&mut connected).unwrap(), 7);
    drop(connected);
    reader.join().unwrap();
}

#[test]
fn renewed_files_are_used_by_the_next_connection_and_broken_ones_are_not() {
    let at = tempfile::tempdir().unwrap();
    let ca = Ca::new((-1, 60));
    let one_at = ca.issue(&at.path().join("one"), &Node::GOOD);
    let one = Security::load(&one_at).unwrap();
    let two = Security::load(&ca.issue(&at.path().join("two"), &Node::GOOD)).unwrap();
    let name = |one: &Security| meet(one, &two).0.unwrap().peer_name().map(str::to_owned);
    assert_eq!(name(&one).as_deref(), Some("node1"));
    // Half of a replacement: the key does not belong to the certificate yet.
    let key = fs::read(one_at.join("node.key")).unwrap();
    fs::write(one_at.join("node.key"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    assert_eq!(name(&one).as_deref(), Some("node1"));
    fs::write(one_at.join("node.key"), key).unwrap();
    assert_eq!(name(&one).as_deref(), Some("node1"));
    ca.issue(&one_at, &Node { names: &["renewed"], ..Node::GOOD });
    assert_eq!(name(&one).as_deref(), Some("renewed"));
    fs::remove_file(one_at.join("node.pem")).unwrap();
    assert_eq!(name(&one).as_deref(), Some("renewed"));
}

/// While a CA is replaced, everybody believes both.
#[test]
fn two_authorities_are_believed_while_one_replaces_the_other() {
    let at = tempfile::tempdir().unwrap();
    let (old, new) = (Ca::new((-1, 60)), Ca::new((-1, 60)));
    let old_at = old.issue(&at.path().join("old"), &Node::GOOD);
    let new_at = new.issue(&at.path().join("new"), &Node { names: &["node2"], ..Node::GOOD });
    for directory in [&old_at, &new_at] {
        fs::write(directory.join("ca.pem"), format!("{}{}", old.pem, new.pem)).unwrap();
    }
    let (connected, accepted) = meet(&Security::load(&old_at).unwrap(), &Security::load(&new_at).unwrap());
    assert_eq!(connected.unwrap().peer_name(), Some("node1"));
    assert_eq!(accepted.unwrap().peer_name(), Some("node2"));
}
