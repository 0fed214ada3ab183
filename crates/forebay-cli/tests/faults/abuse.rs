//! What an ordinary user can take of an agent, and for how long they can hold up others: no more
//! than is stated.
//!
//! The agent runs as root. The abuser is a second user in a process of its own, and a third user,
//! or root, must be served meanwhile. What is asserted are shares and counts, never times of this
//! machine.

use crate::common::{
    Agent, Helper, MIB, OTHER_UID, PAGE, Setup, SlowFs, assert_content, make_file, one_file, pfs_with,
    plain_pfs, send_signal, text, wait_for,
};
use crate::coordinator::start_coordinator;
use crate::roles::{Raw, hear, say, verify_once};
use forebay_wire::{Channel, JobUpdate, Part, Refusal, Reply, Request, Split};
use std::fs::File;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Neither the agent's user nor the abuser.
const THIRD_UID: u32 = OTHER_UID + 1;

/// A line of `/proc/PID/status`, as a number.
pub fn of_process(pid: u32, what: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix(what)).unwrap_or_else(|| panic!("no {what}"));
    line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
}

pub fn as_user(agent: &Agent, uid: u32, role: &str, args: &[&str]) -> Helper {
    Helper::start_as(&agent.socket(), Some(uid), role, args)
}

/// A third user reads `path`, of content `seed`, out of the tier.
pub fn third_user_is_served(agent: &Agent, path: &Path, seed: u64) {
    let before = agent.counter("opens_cached_total");
    let mut third = as_user(agent, THIRD_UID, "read-once", &[path.to_str().unwrap(), &seed.to_string()]);
    third.expect("ready");
    third.say("go");
    third.expect("read");
    third.finish();
    assert!(agent.counter("opens_cached_total") > before, "the third user was not served by the agent");
}

#[test]
fn packets_of_a_user_take_no_more_memory_than_its_share() {
    let (pfs, path) = pfs_with("f", 1, MIB);
    let capacity = 256 * MIB;
    let agent = Agent::start(Setup::new(pfs.path()).capacity(capacity));
    verify_once(&agent.client(), &path, 1, 0);
    let before_kib = of_process(agent.pid(), "VmHWM");
    let mut bomber = as_user(&agent, OTHER_UID, "bomb", &[agent.socket().to_str().unwrap()]);
    let sent: u64 = bomber.expect("sent").parse().unwrap();
    assert!(sent > 8 * MIB, "only {sent} bytes were sent");
    let grown_bytes = (of_process(agent.pid(), "VmHWM") - before_kib) << 10;
    assert!(grown_bytes < capacity / 4, "{sent} bytes of packets made the agent grow by {grown_bytes}");
    assert!(agent.used("clients") < capacity / 4, "{:?}", agent.status().used_bytes);
    third_user_is_served(&agent, &path, 1);
    bomber.finish();
    agent.assert_nothing_left();
}

/// Reports jobs, as many and as large ones as are taken, and continues when they are refused.
pub fn bomb(socket: &str) {
    let mut refused = 0;
    let mut sent = 0u64;
    let mut connections = Vec::new();
    let part = Part { file: 0, offset: 0, len: 1 };
    for _ in 0..16 {
        let raw = Raw::connect(Path::new(socket));
        let begin = JobUpdate::Begin { name: "bomb".into(), planner: String::new() };
        raw.ask(&Request::JobUpdates(vec![begin]), &[]);
        for stage in 0..24 {
            // Of two bytes per split, and as a program reports them.
            let empty = vec![Split::default(); 20_000];
            let usual = vec![Split { parts: vec![part], preferred_node: String::new() }; 8_000];
            let updates = [empty, usual].map(|splits| JobUpdate::Splits { stage, splits });
            for update in updates.into_iter().chain([JobUpdate::StageReady { stage }]) {
                sent += if update.held_bytes() > 1000 { 40_000 } else { 10 };
                match raw.ask(&Request::JobUpdates(vec![update]), &[]) {
                    Reply::Refused(Refusal::TooMany(_) | Refusal::NoRoom) => refused += 1,
                    Reply::Done => {}
                    other => panic!("{other:?}"),
                }
            }
        }
        connections.push(raw);
    }
    say(&format!("sent {sent}"));
    while hear().is_some() {}
    assert!(refused > 0, "all of it was taken");
}

#[test]
fn what_waits_for_a_coordinator_that_hangs_counts_until_it_is_sent() {
    let dir = TempDir::new().unwrap();
    let (coordinator, address) = start_coordinator(dir.path(), "127.0.0.1:0");
    let (pfs, path) = pfs_with("f", 1, MIB);
    let capacity = 256 * MIB;
    let more = format!("[cluster]\ncoordinator = \"{address}\"\n");
    let agent = Agent::start(Setup { more, ..Setup::new(pfs.path()).capacity(capacity) });
    verify_once(&agent.client(), &path, 1, 0);
    wait_for("the agent to join", || agent.status().cluster.connected);
    let before_kib = of_process(agent.pid(), "VmHWM");
    coordinator.stop();
    let mut bomber = as_user(&agent, OTHER_UID, "end-stages", &[agent.socket().to_str().unwrap()]);
    let taken: u64 = bomber.expect("taken").parse().unwrap();
    let grown_bytes = (of_process(agent.pid(), "VmHWM") - before_kib) << 10;
    assert!(grown_bytes < capacity / 4, "{taken} updates made the agent grow by {grown_bytes}");
    third_user_is_served(&agent, &path, 1);
    coordinator.go_on();
    bomber.finish();
    wait_for("the agent to have sent it all", || agent.used("clients") < MIB);
    agent.assert_nothing_left();
}

/// Reports stages that end immediately, of which nothing is kept, until it is refused.
pub fn end_stages(socket: &str) {
    const STAGES: u32 = 3000;
    let raw = Raw::connect(Path::new(socket));
    let begin = JobUpdate::Begin { name: "stages".into(), planner: String::new() };
    assert_eq!(raw.ask(&Request::JobUpdates(vec![begin]), &[]), Reply::Done);
    let splits = vec![Split::default(); 20_000];
    let taken = (0..STAGES).find(|&stage| {
        let updates = [JobUpdate::Splits { stage, splits: splits.clone() }, JobUpdate::StageEnded { stage }];
        match raw.ask(&Request::JobUpdates(updates.to_vec()), &[]) {
            Reply::Done => false,
            Reply::Refused(Refusal::TooMany(_) | Refusal::NoRoom) => true,
            other => panic!("{other:?}"),
        }
    });
    say(&format!("taken {}", taken.expect("all of it was taken")));
    while hear().is_some() {}
}

#[test]
fn a_user_takes_half_of_the_connections_at_most() {
    let (pfs, path) = pfs_with("f", 1, MIB);
    let setup = |most| Setup { more: format!("connections_max = {most}\n"), ..Setup::new(pfs.path()) };
    let mut agent = Agent::start(setup(4));
    agent.reload(setup(16));
    verify_once(&agent.client(), &path, 1, 0);
    let mut crowd = as_user(&agent, OTHER_UID, "crowd", &[agent.socket().to_str().unwrap()]);
    let let_in: usize = crowd.expect("let in").parse().unwrap();
    assert_eq!(let_in, 8);
    third_user_is_served(&agent, &path, 1);
    crowd.finish();
    agent.assert_nothing_left();
}

/// Connects more often than it may, and keeps all that is let in.
pub fn crowd(socket: &str) {
    use forebay_wire::{Hello, MAGIC, PROTOCOL, Welcome};
    let limit = || Some(Instant::now() + Duration::from_secs(20));
    let hello = Hello { magic: MAGIC, protocol: PROTOCOL, want_ring: true };
    let channels: Vec<Channel> = (0..32)
        .filter_map(|_| {
            let channel = Channel::connect(Path::new(socket)).unwrap();
            channel.send(&hello, &[]).ok()?;
            channel.recv::<Welcome>(limit()).ok()?;
            Some(channel)
        })
        .collect();
    say(&format!("let in {}", channels.len()));
    while hear().is_some() {}
}

#[test]
fn a_lock_of_a_stranger_on_every_copy_holds_nothing_for_the_next_agent() {
    let pfs = plain_pfs();
    let paths: Vec<_> = (0..8).map(|i| pfs.path().join(format!("f{i}"))).collect();
    let mut agent = Agent::on(pfs.path());
    for (i, path) in paths.iter().enumerate() {
        make_file(path, i as u64, 2 * PAGE);
        verify_once(&agent.client(), path, i as u64, 0);
    }
    let socket = agent.socket();
    let mut args = vec![socket.to_str().unwrap()];
    args.extend(paths.iter().map(|p| p.to_str().unwrap()));
    let mut locker = as_user(&agent, OTHER_UID, "lock", &args);
    locker.expect("locked");
    agent.kill_9();
    agent.restart();
    assert_eq!(agent.counter("adopted_files_total"), 8);
    assert_eq!(agent.client().admin().evict_all().unwrap(), 8 * 2 * PAGE);
    assert_eq!(agent.used("pages"), 0);
    locker.finish();
    agent.assert_nothing_left();
}

/// Locks the copy of each file, as the agent does for a program that maps it, and maps nothing.
pub fn lock(socket: &str, paths: &[&str]) {
    let raw = Raw::connect(Path::new(socket));
    let copies: Vec<OwnedFd> = paths
        .iter()
        .map(|path| {
            let file = File::open(path).unwrap();
            let mut got = raw.exchange(&Request::Open, &[file.as_fd()]);
            assert!(matches!(got.message, Reply::Opened { copy: 1.., .. }), "{:?}", got.message);
            got.fds.remove(0)
        })
        .collect();
    for copy in &copies {
        lock_all(copy);
    }
    say("locked");
    while hear().is_some() {}
}

fn lock_all(file: &OwnedFd) {
    let kind = libc::F_RDLCK as libc::c_short;
    let mut all = libc::flock { l_type: kind, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };
    // SAFETY: a lock on this stack.
    let locked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut all) };
    assert_eq!(locked, 0, "{}", std::io::Error::last_os_error());
}

/// Most threads that process `pid` has while `act` runs.
fn most_threads(pid: u32, act: impl FnOnce()) -> u64 {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                most = most.max(of_process(pid, "Threads"));
                std::thread::sleep(Duration::from_millis(1));
            }
            most
        });
        let acted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        done.store(true, Ordering::Relaxed);
        acted.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        watching.join().unwrap()
    })
}

#[test]
fn a_flood_of_loopback_connections_costs_no_threads_and_nobody_waits() {
    let (pfs, path) = pfs_with("f", 1, MIB);
    let more = "[cluster]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    let agent = Agent::start(Setup { more, ..Setup::new(pfs.path()) });
    verify_once(&agent.client(), &path, 1, 0);
    let dir = crate::common::open_dir_in("/dev/shm");
    let (coordinator, coordinator_address) = start_coordinator(dir.path(), "127.0.0.1:0");
    let more = format!("[cluster]\ncoordinator = \"{coordinator_address}\"\n");
    let member = Agent::start(Setup { more, ..Setup::new(pfs.path()) });
    wait_for("a member", || member.status().cluster.view.nodes.len() == 1);
    let epoch = member.status().cluster.view.epoch;
    wait_for("the agent's own address", || !agent.status().cluster.view.nodes.is_empty());
    let address = agent.status().cluster.view.nodes[0].address.clone();
    // A member is lost after three seconds without a heartbeat.
    for (pid, address, seconds) in [(agent.pid(), address, 0), (coordinator.pid(), coordinator_address, 5)] {
        let before = of_process(pid, "Threads");
        let most = most_threads(pid, || {
            let began = Instant::now();
            loop {
                let mut flooder = as_user(&agent, OTHER_UID, "flood", &[&address, "2000"]);
                assert_eq!(flooder.expect("refused"), "2000");
                flooder.finish();
                if began.elapsed() >= Duration::from_secs(seconds) {
                    break;
                }
            }
        });
        // The threads of the agent's clients, of which this test has one or two.
        assert!(most <= before + 4, "{most} threads, {before} before");
    }
    third_user_is_served(&agent, &path, 1);
    let view = member.status().cluster;
    assert_eq!((view.connected, view.view.epoch), (true, epoch), "a member was lost: {}", member.log());
}

/// Connects `count` times; each connection has to be closed by the other side.
pub fn flood(address: &str, count: usize) {
    use std::io::Read;
    let mut refused = 0;
    for _ in 0..count / 50 {
        let sockets: Vec<_> = (0..50).map(|_| TcpStream::connect(address)).collect();
        for socket in sockets {
            let mut socket = match socket {
                Ok(socket) => socket,
                // Refused so soon that connecting saw it.
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {
                    refused += 1;
                    continue;
                }
                Err(e) => panic!("cannot connect: {e}"),
            };
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            match socket.read(&mut [0]) {
                Ok(0) => refused += 1,
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => refused += 1,
                other => panic!("not closed: {other:?}"),
            }
        }
    }
    say(&format!("refused {refused}"));
}

/// An agent of a plain PFS, and another file system whose server answers no request at a close. The
/// second user has a file of it open.
fn agent_beside_a_file_system_that_hangs(pfs: &Path, slow: &SlowFs) -> (Agent, Helper) {
    let path = pfs.join("f");
    make_file(&path, 1, MIB);
    make_file(&slow.at("f"), 2, PAGE);
    let agent = Agent::on(pfs);
    verify_once(&agent.client(), &path, 1, 0);
    let (socket, file) = (agent.socket(), slow.at("f"));
    let mut sender = as_user(&agent, OTHER_UID, "send", &[socket.to_str().unwrap(), file.to_str().unwrap()]);
    sender.expect("open");
    slow.fault("sync=hang");
    sender.say("go");
    (agent, sender)
}

/// Sends a file to the agent, again and again, until the agent takes no more; keeps it open itself.
pub fn send(socket: &str, path: &str) {
    let file = File::open(path).unwrap();
    say("open");
    hear();
    let mut taken = 0;
    let limit = || Some(Instant::now() + Duration::from_secs(20));
    while taken < 100 {
        let raw = Raw::connect(Path::new(socket));
        if raw.0.send(&Request::Open, &[file.as_fd()]).is_err() {
            break;
        }
        match raw.0.recv::<Reply>(limit()).map(|got| got.message) {
            Ok(Reply::Refused(Refusal::NotOnMount)) => taken += 1,
            Err(e) if e.kind() != std::io::ErrorKind::TimedOut => break,
            other => panic!("{other:?}"),
        }
    }
    say(&format!("taken {taken}"));
    while hear().is_some() {}
}

#[test]
fn files_of_a_file_system_that_hangs_cost_their_user_a_few_descriptors_and_nobody_else_anything() {
    let (pfs, Some(slow)) = (plain_pfs(), SlowFs::start()) else { return };
    let (agent, mut sender) = agent_beside_a_file_system_that_hangs(pfs.path(), &slow);
    let before = agent.open_files();
    assert_eq!(sender.expect("taken"), "8");
    assert!(slow.stats().hung_now > 0, "no close hung");
    assert!(agent.open_files() < before + 12, "{before} descriptors have become {}", agent.open_files());
    assert_eq!(agent.counter("closes_waiting"), 8);
    third_user_is_served(&agent, &pfs.path().join("f"), 1);
    slow.fault("none");
    wait_for("all is closed", || agent.counter("closes_waiting") == 0);
    sender.finish();
    // And the user is served again.
    let mut again = as_user(&agent, OTHER_UID, "read-once", &[pfs.path().join("f").to_str().unwrap(), "1"]);
    again.expect("ready");
    again.say("go");
    again.expect("read");
    again.finish();
    agent.assert_nothing_left();
}

#[test]
fn an_agent_that_is_killed_or_ended_while_closes_hang_is_gone_and_the_next_one_serves() {
    let (pfs, Some(slow)) = (plain_pfs(), SlowFs::start()) else { return };
    let (mut agent, mut sender) = agent_beside_a_file_system_that_hangs(pfs.path(), &slow);
    sender.expect("taken");
    agent.kill_9();
    agent.restart();
    assert_eq!(agent.counter("adopted_files_total"), 1);
    third_user_is_served(&agent, &pfs.path().join("f"), 1);

    let (socket, file) = (agent.socket(), slow.at("f"));
    let mut more = as_user(&agent, OTHER_UID, "send", &[socket.to_str().unwrap(), file.to_str().unwrap()]);
    more.expect("open");
    more.say("go");
    more.expect("taken");
    let out = agent.cli(&["down"]);
    assert!(out.status.success(), "{}", crate::common::text(&out.stderr));
    agent.restart();
    third_user_is_served(&agent, &pfs.path().join("f"), 1);
    assert!(slow.stats().hung_now > 0, "it did not hang any more");
    slow.fault("none");
    sender.finish();
    more.finish();
    agent.assert_nothing_left();
}

#[test]
fn a_memory_only_file_cannot_outgrow_its_room_nor_its_reservation_its_memory() {
    let (pfs, path) = pfs_with("f", 1, MIB);
    let agent = Agent::start(Setup { backing: "mount", ..Setup::new(pfs.path()) });
    verify_once(&agent.client(), &path, 1, 0);
    let mut writer = as_user(&agent, OTHER_UID, "outgrow", &[agent.socket().to_str().unwrap()]);
    assert_eq!(writer.expect("unreserved").parse::<u64>().unwrap(), 4096);
    assert_eq!(writer.expect("reserved").parse::<u64>().unwrap(), 8 * MIB);
    // The job has ended, and the writer has the file open.
    writer.expect("ended");
    wait_for("the job is gone", || agent.status().scratch_files == 0);
    assert!(agent.used("scratch") >= 8 * MIB, "memory in use is not counted");
    third_user_is_served(&agent, &path, 1);
    writer.say("close");
    writer.expect("closed");
    wait_for("the room is released", || agent.used("scratch") == 0);
    writer.finish();
}

/// Writes a memory-only file as far as possible, without room and with 8 MiB; ends the job and
/// keeps the file open.
pub fn outgrow(socket: &str) {
    let raw = Raw::connect(Path::new(socket));
    let Reply::Job { token: job, .. } = raw.ask(&Request::JobBegin { outlives_exec: false }, &[]) else {
        panic!("no job")
    };
    let create = Request::ScratchCreate { job, name: b"f".to_vec(), exclusive: true };
    let mut got = raw.exchange(&create, &[]);
    let Reply::Scratch { copy, .. } = got.message else { panic!("{:?}", got.message) };
    let file = File::from(got.fds.remove(0));
    say(&format!("unreserved {}", written_until_full(&file)));
    assert_eq!(raw.ask(&Request::ScratchReserve { copy, bytes: 8 * MIB }, &[]), Reply::Done);
    say(&format!("reserved {}", written_until_full(&file)));
    drop(raw);
    say("ended");
    hear();
    drop(file);
    say("closed");
    while hear().is_some() {}
}

/// Bytes that the file takes from its start, 64 MiB at most.
fn written_until_full(file: &File) -> u64 {
    use std::os::unix::fs::FileExt;
    let mut end = 0;
    while end < 64 * MIB {
        match file.write_at(&[1; 4096], end) {
            Ok(n) => end += n as u64,
            Err(e) => {
                assert_eq!(e.kind(), std::io::ErrorKind::StorageFull);
                break;
            }
        }
    }
    end
}

/// A client that waits for its place in the queue of a stopped agent waits within its deadline.
#[test]
fn a_stopped_agent_whose_queue_a_user_has_filled_delays_others_by_their_deadline() {
    let (pfs, path, agent) = one_file(7, MIB);
    send_signal(agent.pid(), libc::SIGSTOP);
    let mut crowd = as_user(&agent, OTHER_UID, "fill-queue", &[agent.socket().to_str().unwrap()]);
    let queued: usize = crowd.expect("queued").parse().unwrap();
    assert!(queued >= 600, "only {queued} connections wait");
    let mut cat = agent.command(&["cat", path.to_str().unwrap()]);
    let out = pfs.path().join("out");
    cat.env("FOREBAY_DEADLINE_MS", "300").stdout(File::create(&out).unwrap());
    let mut child = cat.stderr(std::process::Stdio::piped()).spawn().unwrap();
    // Without a deadline it would wait until the agent continues.
    wait_for("the client gives up", || child.try_wait().unwrap().is_some());
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", text(&ended.stderr));
    assert_content(&std::fs::read(&out).unwrap(), 7, 0);
    assert!(text(&ended.stderr).contains("reading the file system directly"), "{}", text(&ended.stderr));
    crowd.finish();
    send_signal(agent.pid(), libc::SIGCONT);
    wait_for("the agent has been through its queue", || {
        !text(&agent.cli(&["cat", path.to_str().unwrap()]).stderr).contains("directly")
    });
    third_user_is_served(&agent, &path, 7);
}

/// Connects until nobody else can.
pub fn fill_queue(socket: &str) {
    let connect = |_| Channel::connect_within(Path::new(socket), Duration::from_millis(200)).ok();
    let channels: Vec<Channel> = (0..4096).map_while(connect).collect();
    say(&format!("queued {}", channels.len()));
    while hear().is_some() {}
}
