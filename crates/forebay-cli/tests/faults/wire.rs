//! Nonsense on the socket, and other protocols.

use crate::common::{Agent, FOREBAY, MIB, one_file, pfs_and_agent, pfs_with, plain_pfs, text, wait_for};
use crate::roles::{Raw, verify_once};
use forebay_pfs::{FileFacts, Revalidate};
use forebay_wire::{Channel, Hello, MAGIC, PROTOCOL, PageRun, Reply, Request, Welcome};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

/// Sends a packet of exactly these bytes; the agent may have hung up.
fn send_bytes(socket: &OwnedFd, bytes: &[u8]) {
    let _ = rustix::net::send(socket, bytes, rustix::net::SendFlags::NOSIGNAL);
}

fn connect(agent: &Agent) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(agent.socket()).unwrap()).unwrap();
    socket
}

#[test]
fn garbage_costs_its_sender_the_connection_and_nobody_anything_else() {
    let (_pfs, path, agent) = one_file(1, MIB);
    verify_once(&agent.client(), &path, 1, 0);
    let file = File::open(&path).unwrap();
    let mut random = crate::common::content(77, 0, 400_000).into_iter();
    let mut take = |n: usize| random.by_ref().take(n).collect::<Vec<u8>>();
    for i in 0..60 {
        // As the first packet, and after a proper greeting; alone, and with a descriptor.
        let len = 1 + i * 37;
        send_bytes(&connect(&agent), &take(len));
        let raw = Raw::connect(&agent.socket());
        let socket = raw.0.as_fd().try_clone_to_owned().unwrap();
        let mut bytes = take(len);
        // A tag that no request has; what looks like a request is one.
        bytes[0] = 0x60 | bytes[0] & 0x1f;
        send_bytes(&socket, &bytes);
        assert!(raw.0.recv::<Reply>(soon()).is_err(), "garbage was answered");
    }
    wait_for("all of it is counted", || agent.counter("garbage_total") >= 120);
    // Requests that are well formed and make no sense.
    let raw = Raw::connect(&agent.socket());
    let version = FileFacts::of(file.as_fd(), Revalidate::Force).unwrap().version;
    let refused = |reply: Reply| assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
    for (offset, len) in [(u64::MAX, 1), (0, 0), (MIB, 1), (0, u64::MAX), (1, u64::MAX - 1)] {
        let fetch = Request::Fetch { version, copy: 0, offset, len, deadline_ms: 0, ahead: vec![] };
        refused(raw.ask_with(&fetch, &file));
    }
    for (first_page, pages) in [(0, 0), (0, u32::MAX), (u32::MAX, 1), (u32::MAX, u32::MAX)] {
        refused(raw.ask(&Request::PinPages { copy: 1, first_page, pages }, &[]));
        let runs = vec![PageRun { first_page, pages }; 2];
        raw.0.send(&Request::Prefetch { version, runs: runs.clone() }, &[file.as_fd()]).unwrap();
        let fetch = Request::Fetch { version, copy: 0, offset: 0, len: 1, deadline_ms: 20_000, ahead: runs };
        assert!(matches!(raw.ask_with(&fetch, &file), Reply::Ready { .. }));
    }
    refused(raw.ask(&Request::PinPages { copy: u64::MAX, first_page: 0, pages: 1 }, &[]));
    assert_eq!(raw.ask(&Request::List { after: u64::MAX }, &[]), Reply::List { files: vec![], more: false });
    raw.0.send(&Request::StagePage { slot: u32::MAX, page: u32::MAX, len: u64::MAX }, &[]).unwrap();
    refused(raw.ask(&Request::LoadPoll { wait_ms: u32::MAX }, &[]));
    refused(raw.ask(&Request::StageCommit { version }, &[file.as_fd(), file.as_fd()]));
    assert!(matches!(raw.ask(&Request::StageBegin, &[]), Reply::Staging { .. }));
    raw.0.send(&Request::StagePage { slot: 9, page: u32::MAX, len: u64::MAX }, &[]).unwrap();
    raw.0.send(&Request::StagePage { slot: 0, page: 0, len: u64::MAX }, &[]).unwrap();
    assert_eq!(raw.ask(&Request::StageAbort, &[]), Reply::Done);
    drop(raw);
    verify_once(&agent.client(), &path, 1, 0);
    assert_eq!(agent.status().pid, agent.pid());
    assert!(!agent.log().contains("panicked"), "{}", agent.log());
    agent.assert_nothing_left();
}

#[test]
fn a_client_of_another_protocol_gets_a_message_in_words() {
    let (_pfs, agent) = pfs_and_agent();
    let channel = Channel::connect(&agent.socket()).unwrap();
    channel.send(&Hello { magic: MAGIC, protocol: PROTOCOL + 1, want_ring: true }, &[]).unwrap();
    let welcome = channel.recv::<Welcome>(soon()).unwrap().message;
    assert_eq!((welcome.protocol, welcome.protocol_fits), (PROTOCOL, false));
    let (ours, theirs) =
        (format!("speaks protocol {PROTOCOL}"), format!("the client protocol {}", PROTOCOL + 1));
    assert!(welcome.message.contains(&ours) && welcome.message.contains(&theirs), "{}", welcome.message);
    assert!(channel.recv::<Reply>(soon()).is_err(), "the connection goes on");
}

#[test]
fn an_agent_of_another_protocol_is_reported_once_and_the_file_is_read() {
    let (_pfs, path) = pfs_with("f", 1, MIB);
    let dir = plain_pfs();
    let socket = dir.path().join("agent.sock");
    let listener =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
    listen(&listener, 16).unwrap();
    // An agent of the future: it greets everybody like this, until the test ends.
    std::thread::spawn(move || {
        while let Ok(peer) = rustix::net::accept_with(&listener, SocketFlags::CLOEXEC) {
            let channel = Channel::from_socket(peer);
            if channel.recv::<Hello>(soon()).is_ok() {
                let message = "this agent speaks protocol 99".to_owned();
                let _ = channel.send(&Welcome { protocol: 99, protocol_fits: false, message }, &[]);
            }
        }
    });
    let mut cat = std::process::Command::new(FOREBAY);
    let out = cat.arg("cat").arg(&path).env("FOREBAY_SOCKET", &socket).output().unwrap();
    assert!(out.status.success());
    crate::common::assert_content(&out.stdout, 1, 0);
    let said = text(&out.stderr);
    assert!(said.contains("protocol 99") && said.lines().count() == 1, "{said}");
}

#[test]
fn an_agent_of_another_protocol_is_ended_by_down() {
    let dir = plain_pfs();
    let socket = dir.path().join("agent.sock");
    let greets = "import socket, sys\n\
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
        listener.bind(sys.argv[1])\n\
        listener.listen()\n\
        while True:\n    \
            peer = listener.accept()[0]\n    \
            peer.recv(100)\n    \
            peer.send(bytes([99, 0, 2]) + b'no')\n";
    let mut other = std::process::Command::new("python3").args(["-c", greets]).arg(&socket).spawn().unwrap();
    wait_for("it listens", || {
        std::os::unix::net::UnixStream::connect(&socket)
            .is_err_and(|e| e.raw_os_error() == Some(libc::EPROTOTYPE))
    });
    let down = |arguments: &[&str]| {
        let mut down = std::process::Command::new(FOREBAY);
        down.arg("down").args(arguments).env("FOREBAY_SOCKET", &socket).output().unwrap()
    };
    // Nobody can ask it whether it has files that are not written yet.
    let out = down(&["--drop"]);
    assert!(!out.status.success() && text(&out.stderr).contains("`forebay down` ends that agent"), "{out:?}");
    assert!(other.try_wait().unwrap().is_none(), "it has been ended");
    let out = down(&[]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains(&format!("agent {} has ended", other.id())), "{}", text(&out.stdout));
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(other.wait().unwrap().signal(), Some(libc::SIGTERM));
}
