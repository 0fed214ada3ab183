//! What client processes do. They report with lines that start with `@`, and end when their
//! standard input does.

use crate::common::{assert_content, content};
use forebay_client::{Client, ReadMode, WriteMode};
use forebay_wire::{Channel, Hello, MAGIC, PROTOCOL, Received, Reply, Request, Welcome};
use std::io::{BufRead, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Runs the role that the environment names.
pub fn run() {
    let Ok(role) = std::env::var("FOREBAY_TEST_ROLE") else { return };
    if let Ok(uid) = std::env::var("FOREBAY_TEST_UID") {
        become_user(uid.parse().unwrap());
    }
    let args = std::env::var("FOREBAY_TEST_ARGS").unwrap();
    let args: Vec<&str> = args.split('\x1f').collect();
    match role.as_str() {
        "socket" => println!("@{}", Client::from_env().socket().unwrap().display()),
        "read" => read(args[0], args[1].parse().unwrap()),
        "read-once" => read_once(args[0], args[1].parse().unwrap()),
        "map" => map(args[0], args[1].parse().unwrap()),
        "write" => write(args[0], args[1].parse().unwrap()),
        "append" => {
            let (who, count) = (args[1].parse().unwrap(), args[2].parse().unwrap());
            crate::append::append_again_and_again(args[0], who, count);
        }
        "forks" => crate::changes::read_in_a_child(args[0]),
        "elsewhere" => crate::changes::read_from_elsewhere(args[0], args[1]),
        "load" => load(args[0]),
        "handles" => handles(args[0], args[1].parse().unwrap()),
        "job" => job(args[0], args[1].parse().unwrap()),
        "waves" => crate::coordinator::waves(args[0], args[1].parse().unwrap()),
        "hoard" => crate::coordinator::hoard(args[0]),
        "report" => crate::coordinator::report(args[0], args[1], args[2].parse().unwrap()),
        "in-phase" => crate::phases::in_phase(),
        "writes-steps" => crate::steps::writes_steps(args[0], args[1], args[2], args[3]),
        "hoards-steps" => crate::steps::hoards_steps(args[0]),
        "agent" => crate::cluster::agent(args[0]),
        "listen" => listen(args[0]),
        "stranger" => crate::access::stranger(args[0], args[1]),
        "unwelcome" => crate::access::unwelcome(args[0]),
        "churn" => crate::churn::churn(args[0], args[1]),
        "bomb" => crate::abuse::bomb(args[0]),
        "end-stages" => crate::abuse::end_stages(args[0]),
        "crowd" => crate::abuse::crowd(args[0]),
        "fill-queue" => crate::abuse::fill_queue(args[0]),
        "lock" => crate::abuse::lock(args[0], &args[1..]),
        "send" => crate::abuse::send(args[0], args[1]),
        "outgrow" => crate::abuse::outgrow(args[0]),
        "flood" => crate::abuse::flood(args[0], args[1].parse().unwrap()),
        "greedy" => crate::shares::greed(args[0], args[1], args[2]),
        other => panic!("no role {other}"),
    }
}

fn become_user(uid: u32) {
    // SAFETY: plain system calls; the C library carries the change to every thread.
    unsafe {
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setresgid(uid, uid, uid), 0);
        assert_eq!(libc::setresuid(uid, uid, uid), 0);
    }
}

/// Sends the test a line.
pub fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n@{line}").unwrap();
    out.flush().unwrap();
}

/// The next line from the test; `None` at the end.
pub fn hear() -> Option<String> {
    let mut line = String::new();
    let n = std::io::stdin().lock().read_line(&mut line).unwrap();
    (n > 0).then(|| line.trim().to_owned())
}

/// Reads a file of content `seed` over and over, whole and in odd pieces, each time opened again;
/// `pass N` after each.
fn read(path: &str, seed: u64) {
    let client = Client::from_env();
    let ended = std::thread::spawn(|| while hear().is_some() {});
    let mut pass = 0u64;
    while !ended.is_finished() {
        verify_once(&client, Path::new(path), seed, pass);
        pass += 1;
        say(&format!("pass {pass}"));
    }
}

/// One pass over a file of content `seed`: in pieces whose length and start change from pass to
/// pass.
pub fn verify_once(client: &Client, path: &Path, seed: u64, pass: u64) {
    let file = client.open(path).unwrap();
    let size = file.size().unwrap();
    let mut buffer = vec![0; 100_000 + (pass as usize * 7919) % 200_000];
    let mut offset = 0;
    while offset < size {
        let n = file.read_at(&mut buffer, offset).unwrap();
        assert!(n > 0, "{} ends at {offset} of {size}", path.display());
        assert_content(&buffer[..n], seed, offset);
        offset += n as u64;
    }
}

fn read_once(path: &str, seed: u64) {
    let client = Client::from_env();
    say("ready");
    hear();
    verify_once(&client, Path::new(path), seed, 0);
    say("read");
}

/// Maps a whole file; checks it whenever the test says something.
fn map(path: &str, seed: u64) {
    let client = Client::from_env();
    let file = client.open(path).unwrap();
    let range = file.map(0, file.size().unwrap()).expect("it is resident and may be pinned");
    assert_content(&range, seed, 0);
    say("mapped");
    while hear().is_some() {
        assert_content(&range, seed, 0);
        say("checked");
    }
}

/// Writes `len` bytes through, and waits before it closes.
fn write(path: &str, len: usize) {
    let client = Client::from_env();
    let mut writer = client.create(path, WriteMode::Through).unwrap();
    writer.write_all(&content(1, 0, len)).unwrap();
    writer.flush().unwrap();
    say("written");
    hear();
    writer.close().unwrap();
    say("closed");
}

fn load(path: &str) {
    let mut load = Client::from_env().load(1 << 20).unwrap();
    load.add(Path::new(path)).unwrap();
    load.flush().unwrap();
    say("loading");
    hear();
}

/// Opens all `count` files of `dir` and keeps them open; reads each.
fn handles(dir: &str, count: u64) {
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let client = Client::from_env();
    // Few files, many handles: each handle has a descriptor of the PFS and one of the copy. Where a
    // process may not have as many, the last ones do without the copy.
    let cached = limit.current.unwrap_or(u64::MAX).saturating_sub(count + 100).min(count);
    let mode = |i| if i < cached { ReadMode::Cached } else { ReadMode::PfsOnly };
    let names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    let files: Vec<_> =
        (0..count).map(|i| client.open_with(&names[i as usize % names.len()], mode(i)).unwrap()).collect();
    say(&format!("open {cached}"));
    hear();
    let mut buffer = [0; 512];
    for file in &files {
        let n = file.read_at(&mut buffer, 100).unwrap();
        let seed = file.path().file_name().unwrap().to_str().unwrap().parse().unwrap();
        assert_content(&buffer[..n], seed, 100);
    }
    assert_eq!(files.iter().filter(|f| f.resident_bytes() > 0).count() as u64, cached);
    say("read");
    hear();
}

/// Writes a memory-only file of `len` bytes in the job that the environment names, or one of its
/// own.
fn job(path: &str, len: usize) {
    let client = Client::from_env();
    let mut writer = client.create(path, WriteMode::MemoryOnly).unwrap();
    writer.write_all(&content(5, 0, len)).unwrap();
    writer.flush().unwrap();
    say("written");
    hear();
}

/// Poses as an agent: listens and answers nothing.
fn listen(path: &str) {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    listen(&socket, 16).unwrap();
    say("listening");
    hear();
}

/// A connection on which the protocol is spoken by hand.
pub struct Raw(pub Channel);

impl Raw {
    pub fn connect(socket: &Path) -> Self {
        let channel = Channel::connect(socket).unwrap();
        channel.send(&Hello { magic: MAGIC, protocol: PROTOCOL, want_ring: false }, &[]).unwrap();
        let welcome = channel.recv::<Welcome>(Some(Instant::now() + Duration::from_secs(20))).unwrap();
        assert!(welcome.message.protocol_fits);
        Raw(channel)
    }

    /// The answer to a request, with its descriptors.
    pub fn exchange(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Received<Reply> {
        self.0.send(request, fds).unwrap();
        self.0.recv(Some(Instant::now() + Duration::from_secs(20))).unwrap()
    }

    pub fn ask(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Reply {
        self.exchange(request, fds).message
    }

    /// A request with one descriptor.
    pub fn ask_with(&self, request: &Request, fd: impl AsFd) -> Reply {
        self.ask(request, &[fd.as_fd()])
    }
}
