//! What a page over a link costs each end: MB per second of processor time, plain and over TLS.
//!
//! `cargo run --release -p forebay-wire --example link_speed -- [MIB]`. Processor time is taken for
//! each thread, so that the figure is that of one core whatever else the machine does. The plain
//! one goes by `write`; an agent uses `sendfile`.

#![allow(clippy::unwrap_used, reason = "a measurement that fails says where")]

use forebay_wire::link::{Security, Stream};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

const PAGE_BYTES: usize = 2 << 20;

fn main() {
    let mib: usize = std::env::args().nth(1).map_or(4096, |text| text.parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    issue(directory.path());
    println!(
        "{:<8} {:>12} {:>12} {:>12} {:>14}",
        "", "send MB/s", "receive MB/s", "elapsed MB/s", "connect us"
    );
    for (name, security) in
        [("plain", Security::Loopback), ("TLS", Security::load(directory.path()).unwrap())]
    {
        measure(name, &security, mib * (1 << 20) / PAGE_BYTES);
    }
}

fn measure(name: &str, security: &Security, pages: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let listener = security.listen("127.0.0.1:0").unwrap();
    let address = listener.address().unwrap().to_string();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let stream = listener.prove(listener.accept().unwrap(), deadline).unwrap();
            timed(|| send(stream, pages))
        });
        let began = Instant::now();
        let stream = security.connect(&address, deadline).unwrap();
        let connect = began.elapsed();
        let began = Instant::now();
        let receive = timed(|| receive(stream, pages));
        let elapsed = began.elapsed();
        let send = sender.join().unwrap();
        let rate = |time: Duration| (pages * PAGE_BYTES) as f64 / 1e6 / time.as_secs_f64();
        let (send, receive, elapsed) = (rate(send), rate(receive), rate(elapsed));
        println!("{name:<8} {send:>12.0} {receive:>12.0} {elapsed:>12.0} {:>14}", connect.as_micros());
    });
}

fn send(mut stream: Stream, pages: usize) {
    let page = vec![7; PAGE_BYTES];
    (0..pages).for_each(|_| stream.write_all(&page).unwrap());
}

fn receive(mut stream: Stream, pages: usize) {
    let mut page = vec![0; PAGE_BYTES];
    (0..pages).for_each(|_| stream.read_exact(&mut page).unwrap());
    assert!(page.iter().all(|byte| *byte == 7));
}

/// Processor time that `work` takes in this thread.
fn timed(work: impl FnOnce()) -> Duration {
    let now = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let began = now();
    work();
    now() - began
}

fn issue(directory: &std::path::Path) {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().unwrap();
    let ca = authority.self_signed(&authority_key).unwrap();
    let key = KeyPair::generate().unwrap();
    let node = CertificateParams::new(vec!["node".to_owned()]).unwrap();
    let node = node.signed_by(&key, &Issuer::new(authority, authority_key)).unwrap();
    let path = directory.join("node.key");
    std::fs::write(directory.join("ca.pem"), ca.pem()).unwrap();
    std::fs::write(directory.join("node.pem"), node.pem()).unwrap();
    std::fs::write(&path, key.serialize_pem()).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}
