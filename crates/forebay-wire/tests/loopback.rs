//! Plain connections are between processes of one user, or root: what another user connects or
//! offers is refused.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

use forebay_wire::link::Security;
use rustix::fs::Uid;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Nobody's, on any system we know.
const STRANGER: u32 = 63_017;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Runs `work` as another user. For the kernel, a thread has a user of its own; the thread ends
/// with `work`.
fn as_stranger<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let stranger = Uid::from_raw(STRANGER);
            rustix::thread::set_thread_res_uid(stranger, stranger, stranger).unwrap();
            assert_eq!(rustix::process::geteuid(), stranger);
            work()
        });
        worker.join().unwrap()
    })
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("left out: only root can be somebody else");
    }
    root
}

#[test]
fn a_strangers_connection_is_refused_and_roots_is_not() {
    if !is_root() {
        return;
    }
    let listener = Security::Loopback.listen("127.0.0.1:0").unwrap();
    let address = listener.address().unwrap();
    let stranger = as_stranger(|| TcpStream::connect(address).unwrap());
    let e = listener.prove(listener.accept().unwrap(), soon()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied);
    assert!(e.to_string().contains(&format!("user {STRANGER}'s")), "{e}");
    assert_eq!(listener.refused(), 1);
    // The refused one is closed, and others are not kept from connecting.
    assert!(matches!(std::io::Read::read(&mut &stranger, &mut [0]), Ok(0) | Err(_)));
    let _own = TcpStream::connect(address).unwrap();
    listener.prove(listener.accept().unwrap(), soon()).unwrap();
}

#[test]
fn a_stranger_cannot_pose_as_a_node_and_root_can_serve_everybody() {
    if !is_root() {
        return;
    }
    let posing = as_stranger(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let address = posing.local_addr().unwrap().to_string();
    // In the stranger's queue the connection is shown as root's by older kernels; that must not be
    // believed.
    let e = Security::Loopback.connect(&address, soon()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::PermissionDenied);
    assert!(e.to_string().contains(&format!("user {STRANGER}'s")), "{e}");

    let listener = Security::Loopback.listen("127.0.0.1:0").unwrap();
    let address = listener.address().unwrap().to_string();
    as_stranger(|| Security::Loopback.connect(&address, soon()).map(drop)).unwrap();
}

/// The connection is accepted already, and the listening socket gone, when it is asked whose it is.
#[test]
fn a_stranger_who_has_accepted_is_refused_too() {
    if !is_root() {
        return;
    }
    let posing = as_stranger(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let address = posing.local_addr().unwrap().to_string();
    let accepting = thread::spawn(move || as_stranger(|| posing.accept().unwrap().0));
    for _ in 0..2 {
        // The second finds nobody there any more, or the queue of a socket that is about to close.
        assert!(Security::Loopback.connect(&address, soon()).is_err());
    }
    drop(accepting.join().unwrap());
}
