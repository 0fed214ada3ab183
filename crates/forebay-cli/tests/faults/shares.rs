//! What one ordinary user may hold of an agent at a time ends at a stated share, and others are
//! served beyond it.
//!
//! The greedy user is a process of its own that takes until the agent refuses, and keeps what it
//! has. Each test then asserts the share, that the refusal names it, and that another user still
//! gets the same thing.

use crate::abuse::{as_user, of_process, third_user_is_served};
use crate::common::{
    Agent, Helper, MIB, OTHER_UID, PAGE, Setup, SlowFs, make_file, plain_pfs, text, wait_for,
};
use crate::roles::{Raw, hear, say, verify_once};
use forebay_pfs::{FileFacts, Revalidate};
use forebay_wire::{JobUpdate, Refusal, Reply, Request};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

const CAPACITY: u64 = 96 * MIB;

/// What the greedy user got: how much, and the message of the refusal.
struct Got {
    helper: Helper,
    amount: u64,
    refusal: String,
}

fn greedy(agent: &Agent, uid: u32, what: &str, path: &Path) -> Got {
    got(start(agent, uid, what, path))
}

fn start(agent: &Agent, uid: u32, what: &str, path: &Path) -> Helper {
    as_user(agent, uid, "greedy", &[agent.socket().to_str().unwrap(), what, path.to_str().unwrap()])
}

fn got(mut helper: Helper) -> Got {
    let line = helper.expect("took");
    let (amount, refusal) = line.split_once(' ').unwrap_or((&line, ""));
    let (amount, refusal) = (amount.parse().unwrap(), refusal.to_owned());
    Got { helper, amount, refusal }
}

/// An agent with a cached file `f` of 1 MiB.
fn agent_with_a_file(pfs: &Path) -> Agent {
    make_file(&pfs.join("f"), 1, MIB);
    let agent = Agent::start(Setup::new(pfs).capacity(CAPACITY));
    verify_once(&agent.client(), &pfs.join("f"), 1, 0);
    agent
}

/// Bounds the descriptors of a running agent, as `ulimit -n` would have.
fn bound_descriptors(agent: &Agent, max: u64) {
    let limit = libc::rlimit { rlim_cur: max, rlim_max: max };
    // SAFETY: `limit` lives through the call, and the old limit is not requested.
    let done = unsafe {
        libc::prlimit(agent.pid() as i32, libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut())
    };
    assert_eq!(done, 0);
}

#[test]
fn a_user_may_hold_half_of_the_capacity_in_memory_only_files() {
    let pfs = plain_pfs();
    let agent = agent_with_a_file(pfs.path());
    let first = greedy(&agent, OTHER_UID, "scratch", &pfs.path().join("f"));
    assert!(first.amount > CAPACITY / 2 - 5 * MIB && first.amount <= CAPACITY / 2, "{}", first.amount);
    assert!(first.refusal.contains("of one user"), "{}", first.refusal);
    assert!(agent.used("scratch") <= CAPACITY / 2);
    third_user_is_served(&agent, &pfs.path().join("f"), 1);
    let second = greedy(&agent, OTHER_UID + 1, "scratch", &pfs.path().join("f"));
    assert!(second.amount >= 8 * MIB, "another user got {}", second.amount);
    first.helper.finish();
    second.helper.finish();
    agent.assert_nothing_left();
}

#[test]
fn a_user_may_hold_half_of_the_capacity_in_files_it_writes_through() {
    let pfs = plain_pfs();
    let agent = agent_with_a_file(pfs.path());
    let staged = greedy(&agent, OTHER_UID, "stage", &pfs.path().join("f"));
    let held = agent.used("pages") + agent.used("clients");
    assert!(held > CAPACITY / 3 && held <= CAPACITY / 2 + 2 * MIB, "{held} bytes are held");
    assert!(staged.refusal.contains("of one user"), "{}", staged.refusal);
    third_user_is_served(&agent, &pfs.path().join("f"), 1);
    staged.helper.finish();
    agent.assert_nothing_left();
}

#[test]
fn a_user_may_pin_half_of_the_capacity_and_nobody_elses_pins_are_its_to_undo() {
    let pfs = plain_pfs();
    let agent = agent_with_a_file(pfs.path());
    for i in 0..8 {
        make_file(&pfs.path().join(format!("p{i}")), 1, 9 * MIB);
    }
    let out = agent.cli(&["pin", pfs.path().join("f").to_str().unwrap()]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let mut pinned = greedy(&agent, OTHER_UID, "pin", &pfs.path().join("p"));
    assert_eq!(pinned.amount, 5, "files of 9 MiB");
    assert!(pinned.refusal.contains("of one user"), "{}", pinned.refusal);
    pinned.helper.say("f");
    assert!(pinned.helper.expect("unpinned").contains("user 0 has pinned"));
    assert_eq!(agent.status().pinned_bytes, 46 * MIB);
    pinned.helper.finish();

    // The next agent knows whose they are.
    let mut agent = agent;
    verify_once(&agent.client(), &pfs.path().join("p0"), 1, 0);
    agent.kill_9();
    agent.restart();
    let mut again = greedy(&agent, OTHER_UID, "pin", &pfs.path().join("p"));
    assert_eq!(again.amount, 5);
    assert!(again.refusal.contains("of one user"), "{}", again.refusal);
    // What the operator pins as well stays when the user has had enough of it.
    agent.client().admin().pin(&pfs.path().join("p1"), true).unwrap();
    again.helper.say("p1");
    assert!(again.helper.expect("unpinned").contains("user 0 has pinned"));
    again.helper.finish();
    for name in ["f", "p0", "p1", "p2", "p3", "p4"] {
        agent.client().admin().pin(&pfs.path().join(name), false).unwrap();
    }
    agent.assert_nothing_left();
}

#[test]
fn a_pinned_file_that_is_replaced_or_deleted_is_unpinned_by_its_path() {
    let pfs = plain_pfs();
    let (dir, kept) = (pfs.path().join("dir"), pfs.path().join("kept"));
    std::fs::create_dir(&dir).unwrap();
    let paths = [pfs.path().join("replaced"), pfs.path().join("deleted"), dir.join("below"), kept.clone()];
    let agent = Agent::on(pfs.path());
    for path in &paths {
        make_file(path, 1, MIB);
        verify_once(&agent.client(), path, 1, 0);
        agent.client().admin().pin(path, true).unwrap();
    }
    make_file(&pfs.path().join("new"), 2, MIB);
    std::fs::rename(pfs.path().join("new"), &paths[0]).unwrap();
    std::fs::remove_file(&paths[1]).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let unpin = |args: &[&str]| {
        let out = agent.cli(&[&["unpin"], args].concat());
        (out.status.code(), text(&out.stdout).trim().to_owned(), text(&out.stderr))
    };
    let [replaced, deleted] = [&paths[0], &paths[1]].map(|path| path.to_str().unwrap());
    assert_eq!(unpin(&[replaced]), (Some(0), "unpinned 1 files".into(), String::new()));
    assert_eq!(unpin(&[deleted]), (Some(0), "unpinned 1 files".into(), String::new()));
    assert_eq!(unpin(&[deleted]).0, Some(1), "nothing of it is pinned any more, and it does not exist");
    assert_eq!(unpin(&["-r", dir.to_str().unwrap()]), (Some(0), "unpinned 1 files".into(), String::new()));
    assert_eq!(agent.status().pinned_bytes, MIB, "another file stays pinned");
    assert_eq!(unpin(&[kept.to_str().unwrap()]).0, Some(0));
    agent.assert_nothing_left();
}

#[test]
fn a_user_may_map_an_eighth_of_the_capacity() {
    let pfs = plain_pfs();
    make_file(&pfs.path().join("m"), 1, 30 * MIB);
    let agent = agent_with_a_file(pfs.path());
    verify_once(&agent.client(), &pfs.path().join("m"), 1, 0);
    let mapped = greedy(&agent, OTHER_UID, "map", &pfs.path().join("m"));
    assert_eq!(mapped.amount * PAGE, CAPACITY / 8);
    assert!(mapped.refusal.contains("of one user"), "{}", mapped.refusal);
    let other = greedy(&agent, OTHER_UID + 1, "map", &pfs.path().join("m"));
    assert_eq!(other.amount * PAGE, CAPACITY / 8, "another user maps as much");
    assert_eq!(agent.counter("client_pinned_bytes"), CAPACITY / 4);
    mapped.helper.finish();
    other.helper.finish();
    agent.assert_nothing_left();
}

#[test]
fn reads_that_nobody_waits_for_take_a_share_of_descriptors_and_of_the_queue() {
    let (pfs, Some(slow)) = (plain_pfs(), SlowFs::start()) else { return };
    make_file(&pfs.path().join("f"), 1, MIB);
    make_file(&slow.at("large"), 2, 100 * MIB);
    let mounts = vec![("pfs".into(), pfs.path().to_owned()), ("slow".into(), slow.mount())];
    let agent = Agent::start(Setup { mounts, ..Setup::new(pfs.path()).capacity(CAPACITY) });
    verify_once(&agent.client(), &pfs.path().join("f"), 1, 0);
    bound_descriptors(&agent, 1024);
    slow.fault("read=hang");
    let before = agent.open_files();
    // One page again and again, each time with another descriptor.
    let one = greedy(&agent, OTHER_UID, "fetch-page", &slow.at("large"));
    assert!(slow.stats().hung_now > 0, "no read hung");
    assert!(agent.open_files() < before + 1024 / 4 + 16, "{} descriptors", agent.open_files());
    // And all pages, through few descriptors.
    let all = greedy(&agent, OTHER_UID + 1, "fetch-all", &slow.at("large"));
    assert!(all.amount * PAGE <= CAPACITY / 2, "{} pages are under way", all.amount);
    assert!(all.refusal.contains("of one user"), "{}", all.refusal);
    let waiting = agent.status().mounts[1].fetches_pending;
    assert!(waiting <= CAPACITY / 2 / PAGE + 16, "{waiting} pages wait; of one page there is one task");
    third_user_is_served(&agent, &pfs.path().join("f"), 1);
    slow.fault("none");
    one.helper.finish();
    all.helper.finish();
    agent.assert_nothing_left();
}

#[test]
fn loads_of_a_user_take_a_share_of_descriptors_and_of_threads() {
    let (pfs, Some(slow)) = (plain_pfs(), SlowFs::start()) else { return };
    make_file(&pfs.path().join("f"), 1, MIB);
    make_file(&slow.at("g"), 2, PAGE);
    let mounts = vec![("pfs".into(), pfs.path().to_owned()), ("slow".into(), slow.mount())];
    let more = "connections_max = 32\n".to_owned();
    let agent = Agent::start(Setup { mounts, more, ..Setup::new(pfs.path()).capacity(CAPACITY) });
    verify_once(&agent.client(), &pfs.path().join("f"), 1, 0);
    bound_descriptors(&agent, 1024);
    let (files, threads) = (agent.open_files(), of_process(agent.pid(), "Threads"));
    let mut loads = start(&agent, OTHER_UID, "load", &slow.at("g"));
    loads.expect("open");
    slow.fault("meta=hang");
    loads.say("go");
    let loads = got(loads);
    assert!(slow.stats().hung_now > 0, "nothing hung");
    // A load that is cancelled before its thread looks at a file ends immediately, and makes place
    // for one more.
    assert!((16..64).contains(&loads.amount), "{} loads: {}", loads.amount, loads.refusal);
    assert!(loads.refusal.contains("loads of one user"), "{}", loads.refusal);
    assert!(agent.open_files() < files + 1024 / 4 + 40, "{} descriptors", agent.open_files());
    let most = threads + 16 + 16 + 2;
    assert!(of_process(agent.pid(), "Threads") <= most, "{} threads", of_process(agent.pid(), "Threads"));
    third_user_is_served(&agent, &pfs.path().join("f"), 1);
    slow.fault("none");
    loads.helper.finish();
    wait_for("the loads have ended", || of_process(agent.pid(), "Threads") <= threads + 2);
    agent.assert_nothing_left();
}

#[test]
fn a_user_may_have_4096_memory_only_files() {
    let pfs = plain_pfs();
    let agent = Agent::start(Setup::new(pfs.path()).capacity(512 * MIB));
    bound_descriptors(&agent, 20_000);
    let mut files = greedy(&agent, OTHER_UID, "files", pfs.path());
    assert_eq!(files.amount, 4096);
    assert!(files.refusal.contains("memory-only files"), "{}", files.refusal);
    assert_eq!(agent.status().scratch_files, 4096);
    files.helper.say("remove");
    files.helper.expect("made another");
    files.helper.finish();
    agent.assert_nothing_left();
}

#[test]
fn a_user_may_have_half_of_the_jobs_of_an_agent() {
    let pfs = plain_pfs();
    let agent = agent_with_a_file(pfs.path());
    let mut first = greedy(&agent, OTHER_UID, "jobs", pfs.path());
    assert_eq!(first.amount, 32);
    assert!(first.refusal.contains("analytics jobs at this node of one user"), "{}", first.refusal);
    let second = greedy(&agent, OTHER_UID + 1, "jobs", pfs.path());
    assert_eq!(second.amount, 32, "another user begins as many: {}", second.refusal);
    // A job that ends makes place for another of its user.
    first.helper.say("end one");
    first.helper.expect("began another");
    first.helper.finish();
    second.helper.finish();
    let mut third = greedy(&agent, OTHER_UID, "jobs", pfs.path());
    assert_eq!(third.amount, 32, "{}", third.refusal);
    third.helper.say("end one");
    third.helper.expect("began another");
    third.helper.finish();
    agent.assert_nothing_left();
}

/// Takes of one thing until the agent refuses, says how much it was and why no more, and keeps it.
pub fn greed(socket: &str, what: &str, path: &str) {
    let (socket, path) = (Path::new(socket), Path::new(path));
    match what {
        "scratch" => scratch(socket),
        "stage" => stage(socket),
        "pin" => pin(socket, path),
        "map" => map(socket, path),
        "fetch-page" => fetch(socket, path, 4000, |_| (0, 1)),
        "fetch-all" => fetch(socket, path, 1600, |i| (i * PAGE, 1)),
        "load" => load(socket, path),
        "files" => files(socket),
        "jobs" => jobs(socket),
        other => panic!("nobody is greedy for {other}"),
    }
    while hear().is_some() {}
}

/// The message of a refusal because of a share.
fn refused(reply: Reply) -> Option<String> {
    match reply {
        Reply::Refused(refusal @ (Refusal::TooMany(_) | Refusal::NoRoom)) => Some(refusal.to_string()),
        Reply::Refused(refusal) => panic!("{refusal}"),
        _ => None,
    }
}

fn job_of(raw: &Raw) -> String {
    let Reply::Job { token: job, .. } = raw.ask(&Request::JobBegin { outlives_exec: false }, &[]) else {
        panic!("no job")
    };
    job
}

fn scratch(socket: &Path) {
    let raw = Raw::connect(socket);
    let create = Request::ScratchCreate { job: job_of(&raw), name: b"f".to_vec(), exclusive: true };
    let Reply::Scratch { copy, .. } = raw.ask(&create, &[]) else { panic!("no file") };
    let mut bytes = 0;
    let why = loop {
        match refused(raw.ask(&Request::ScratchReserve { copy, bytes: bytes + 4 * MIB }, &[])) {
            Some(why) => break why,
            None => bytes += 4 * MIB,
        }
    };
    say(&format!("took {bytes} {why}"));
    while hear().is_some() {}
}

fn files(socket: &Path) {
    let raw = Raw::connect(socket);
    let job = job_of(&raw);
    let create = |i: u64| {
        let create =
            Request::ScratchCreate { job: job.clone(), name: i.to_le_bytes().to_vec(), exclusive: true };
        refused(raw.ask(&create, &[]))
    };
    let (count, why) = (0..).find_map(|i| Some((i, create(i)?))).unwrap();
    say(&format!("took {count} {why}"));
    hear();
    let remove = Request::ScratchRemove { job: job.clone(), name: 0u64.to_le_bytes().to_vec() };
    assert_eq!(raw.ask(&remove, &[]), Reply::Done);
    assert_eq!(create(count), None);
    say("made another");
    while hear().is_some() {}
}

fn jobs(socket: &Path) {
    let begin = || JobUpdate::Begin { name: "job".into(), planner: String::new() };
    let mut raws = Vec::new();
    let why = loop {
        let raw = Raw::connect(socket);
        match refused(raw.ask(&Request::JobUpdates(vec![begin()]), &[])) {
            Some(why) => break why,
            None => raws.push(raw),
        }
    };
    say(&format!("took {} {why}", raws.len()));
    hear();
    assert_eq!(raws[0].ask(&Request::JobUpdates(vec![JobUpdate::End]), &[]), Reply::Done);
    assert_eq!(raws[0].ask(&Request::JobUpdates(vec![begin()]), &[]), Reply::Done);
    say("began another");
    while hear().is_some() {}
}

/// Stages far more pages than there is room for on one connection; then begins on another.
fn stage(socket: &Path) {
    let raw = Raw::connect(socket);
    let Reply::Staging { page_bytes, .. } = raw.ask(&Request::StageBegin, &[]) else { panic!("no buffer") };
    for page in 0..(2 * CAPACITY / page_bytes) as u32 {
        raw.0.send(&Request::StagePage { slot: 0, page, len: page_bytes }, &[]).unwrap();
    }
    assert!(matches!(raw.ask(&Request::Mounts, &[]), Reply::Mounts(_)), "all of them are taken in");
    let more = Raw::connect(socket);
    let why = refused(more.ask(&Request::StageBegin, &[])).unwrap_or_default();
    say(&format!("took 0 {why}"));
    while hear().is_some() {}
}

fn pin(socket: &Path, prefix: &Path) {
    let raw = Raw::connect(socket);
    let file = |name: String| File::open(prefix.with_file_name(name)).unwrap();
    let mut count = 0;
    let why = loop {
        let pinned = raw.ask_with(&Request::PinFile(true), file(format!("p{count}")));
        if let Some(why) = refused(pinned) {
            break why;
        }
        count += 1;
    };
    say(&format!("took {count} {why}"));
    while let Some(name) = hear() {
        let Reply::Refused(why) = raw.ask_with(&Request::PinFile(false), file(name)) else {
            panic!("it undid the pin of another user")
        };
        say(&format!("unpinned {why}"));
    }
}

fn opened(raw: &Raw, path: &Path) -> (u64, OwnedFd) {
    let file = File::open(path).unwrap();
    let mut got = raw.exchange(&Request::Open, &[file.as_fd()]);
    let Reply::Opened { copy: copy @ 1.., .. } = got.message else { panic!("{:?}", got.message) };
    (copy, got.fds.remove(0))
}

fn map(socket: &Path, path: &Path) {
    let raw = Raw::connect(socket);
    let (copy, fd) = opened(&raw, path);
    // What is received stays open: the pins end with it.
    let mut received = Vec::new();
    let mut pin = |first_page| {
        let got = raw.exchange(&Request::PinPages { copy, first_page, pages: 1 }, &[fd.as_fd()]);
        received.extend(got.fds);
        refused(got.message)
    };
    let (count, why) = (0..).find_map(|page| Some((page, pin(page)?))).unwrap();
    say(&format!("took {count} {why}"));
    while hear().is_some() {}
}

/// Asks for pages and does not wait for them, each time with a descriptor of its own. What it took
/// are the requests that were not refused.
fn fetch(socket: &Path, path: &Path, times: u64, range: impl Fn(u64) -> (u64, u64)) {
    let raw = Raw::connect(socket);
    let version = FileFacts::of(File::open(path).unwrap().as_fd(), Revalidate::AsStat).unwrap().version;
    let (mut taken, mut why) = (0, String::new());
    for i in 0..times {
        let (offset, len) = range(i);
        let fetch = Request::Fetch { version, copy: 0, offset, len, deadline_ms: 0, ahead: vec![] };
        match refused(raw.ask_with(&fetch, File::open(path).unwrap())) {
            Some(words) => why = words,
            None => taken += 1,
        }
    }
    say(&format!("took {taken} {why}"));
    while hear().is_some() {}
}

/// Begins loads on some connections, again and again, each with one file; then gives them as many
/// files as they take.
fn load(socket: &Path, path: &Path) {
    let file = File::open(path).unwrap();
    say("open");
    hear();
    let raws: Vec<Raw> = (0..8).map(|_| Raw::connect(socket)).collect();
    let begin = |raw: &Raw| refused(raw.ask(&Request::LoadBegin { rate_bytes_per_s: 0 }, &[]));
    let add = |raw: &Raw, files: usize| {
        refused(raw.ask(&Request::LoadFiles { first_index: 0 }, &vec![file.as_fd(); files]))
    };
    // The first has one load only, and it stays.
    let kept = std::iter::once(&raws[0]).chain(raws[1..].iter().cycle().take(63));
    let (mut begun, mut why) = (0, String::new());
    for raw in kept {
        match begin(raw) {
            Some(words) => why = words,
            None => {
                begun += 1;
                assert_eq!(add(raw, 1), None);
            }
        }
    }
    let full = std::iter::repeat_with(|| add(&raws[0], 50)).find_map(|refusal| refusal).unwrap();
    assert!(full.contains("open files at the agent of one user"), "{full}");
    say(&format!("took {begun} {why}"));
    while hear().is_some() {}
}
