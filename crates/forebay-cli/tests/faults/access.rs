//! A user who may not read a file gets none of its bytes, and one who may not write it has no say
//! in what is in it.

use crate::common::{
    Agent, Helper, MIB, OTHER_UID, PAGE, assert_content, content, grow_old, make_file, one_file, open_dir_in,
    pfs_with, plain_pfs, read_all, text,
};
use crate::roles::{Raw, say, verify_once};
use forebay_client::{Client, ClientConfig, ReadMode};
use forebay_pfs::{FileFacts, Revalidate};
use forebay_store::staging::Staging;
use forebay_wire::cluster::Question;
use forebay_wire::{Refusal, Reply, Request};
use rustix::fs::{Mode, OFlags, open};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

#[test]
fn another_user_gets_eacces_and_never_cached_bytes() {
    let (pfs, path) = pfs_with("secret", 1, MIB);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    grow_old(&path);
    let agent = Agent::on(pfs.path());
    verify_once(&agent.client(), &path, 1, 0);
    assert_eq!(agent.used("pages"), MIB);
    let open_before = agent.counter("opens_cached_total");
    let mut stranger = Helper::start_as(
        &agent.socket(),
        Some(OTHER_UID),
        "stranger",
        &[path.to_str().unwrap(), agent.socket().to_str().unwrap()],
    );
    stranger.expect("refused everything");
    stranger.finish();
    assert_eq!(agent.counter("opens_cached_total"), open_before);
}

/// Another user, before a file that is not theirs.
pub fn stranger(path: &str, socket: &str) {
    let client = Client::from_env();
    for mode in [ReadMode::Cached, ReadMode::TierOnly, ReadMode::PfsOnly] {
        assert_eq!(client.open_with(path, mode).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    // O_PATH needs no right to read the file: it opens, and must not count.
    let by_path = open(path, OFlags::PATH, Mode::empty()).unwrap();
    let raw = Raw::connect(Path::new(socket));
    for request in [Request::Open, Request::EvictFile, Request::PinFile(true)] {
        assert_eq!(raw.ask_with(&request, &by_path), Reply::Refused(Refusal::NotReadable));
    }
    // The operator's requests, and other people's names.
    let denied = Reply::Refused(Refusal::NotAllowed);
    assert_eq!(raw.ask(&Request::EvictAll, &[]), denied);
    assert_eq!(raw.ask(&Request::SetCapacity { bytes: 0 }, &[]), denied);
    assert_eq!(raw.ask(&Request::Shutdown, &[]), denied);
    assert_eq!(raw.ask(&Request::List { after: 0 }, &[]), Reply::List { files: vec![], more: false });
    let gone = raw.ask(&Request::ScratchOpen { job: "0".repeat(32), name: b"/x".to_vec() }, &[]);
    assert!(matches!(gone, Reply::Failed { errno: libc::ENOENT, .. }));
    say("refused everything");
}

fn refusal(reply: Reply) -> Refusal {
    match reply {
        Reply::Refused(refusal) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn descriptors_that_prove_nothing_are_refused() {
    let (pfs, path, agent) = one_file(1, MIB);
    verify_once(&agent.client(), &path, 1, 0);
    let before = agent.counter("refusals_total");
    let raw = Raw::connect(&agent.socket());
    let with = |flags| open(&path, flags, Mode::empty()).unwrap();
    assert_eq!(refusal(raw.ask_with(&Request::Open, with(OFlags::PATH))), Refusal::NotReadable);
    assert_eq!(refusal(raw.ask_with(&Request::Open, with(OFlags::WRONLY))), Refusal::NotReadable);
    assert_eq!(refusal(raw.ask(&Request::Open, &[])), Refusal::NoDescriptor);
    let good = with(OFlags::RDONLY);
    assert_eq!(refusal(raw.ask(&Request::Open, &[good.as_fd(), good.as_fd()])), Refusal::NoDescriptor);
    let dir = File::open(pfs.path()).unwrap();
    assert_eq!(refusal(raw.ask_with(&Request::Open, &dir)), Refusal::NotRegular);
    let fifo = pfs.path().join("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::from(0o600)).unwrap();
    let fifo = open(&fifo, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
    assert_eq!(refusal(raw.ask_with(&Request::Open, &fifo)), Refusal::NotRegular);
    // A file system of the user's own, with a file of the same name, length and stamps.
    let posing = open_dir_in("/dev/shm");
    let copy = posing.path().join("f");
    std::fs::write(&copy, content(2, 0, MIB as usize)).unwrap();
    let times = std::fs::FileTimes::new().set_modified(path.metadata().unwrap().modified().unwrap());
    File::options().write(true).open(&copy).unwrap().set_times(times).unwrap();
    assert_eq!(refusal(raw.ask_with(&Request::Open, File::open(&copy).unwrap())), Refusal::NotOnMount);
    assert_eq!(agent.counter("refusals_total"), before + 7);
    assert!(matches!(raw.ask_with(&Request::Open, &good), Reply::Opened { copy: 1.., .. }));
}

#[test]
fn a_fuse_mount_that_poses_as_the_pfs_is_refused_without_being_asked() {
    let Some(own) = crate::common::SlowFs::start() else { return };
    let pfs = plain_pfs();
    make_file(&pfs.path().join("f"), 1, MIB);
    make_file(&own.at("f"), 2, MIB);
    let agent = Agent::on(pfs.path());
    verify_once(&agent.client(), &pfs.path().join("f"), 1, 0);
    let file = File::open(own.at("f")).unwrap();
    // If the agent asked this file system for attributes now, it would wait.
    own.fault("meta=hang");
    let raw = Raw::connect(&agent.socket());
    assert_eq!(refusal(raw.ask_with(&Request::Open, &file)), Refusal::NotOnMount);
    own.fault("none");
    verify_once(&agent.client(), &pfs.path().join("f"), 1, 0);
}

/// Begins to stage by hand.
fn begin_staging(raw: &Raw) -> Staging {
    let got = raw.exchange(&Request::StageBegin, &[]);
    let Reply::Staging { slots, page_bytes, .. } = got.message else { panic!("{:?}", got.message) };
    Staging::over(got.fds.into_iter().next().unwrap(), slots, page_bytes).unwrap()
}

/// Stages `pages` for a file by hand and commits them with the descriptors `proofs`.
fn stage(raw: &Raw, pages: &[(u32, Vec<u8>)], path: &Path, proofs: &[&OwnedFd]) -> Reply {
    let staging = begin_staging(raw);
    for (page, bytes) in pages {
        crate::common::wait_for("a slot is free", || match staging.take() {
            None => false,
            Some(slot) => {
                staging.fill(slot, bytes, 0).unwrap();
                let request = Request::StagePage { slot, page: *page, len: bytes.len() as u64 };
                raw.0.send(&request, &[]).unwrap();
                true
            }
        });
    }
    let file = File::open(path).unwrap();
    let version = FileFacts::of(file.as_fd(), Revalidate::Force).unwrap().version;
    let fds: Vec<_> = proofs.iter().map(|fd| fd.as_fd()).collect();
    raw.ask(&Request::StageCommit { version }, &fds)
}

#[test]
fn who_may_only_read_a_file_cannot_say_what_is_in_it() {
    let pfs = plain_pfs();
    let (path, own) = (pfs.path().join("shared"), pfs.path().join("own"));
    make_file(&path, 1, PAGE);
    make_file(&own, 3, PAGE);
    let agent = Agent::on(pfs.path());
    let reading = || open(&path, OFlags::RDONLY, Mode::empty()).unwrap();
    let own_writing = open(&own, OFlags::WRONLY, Mode::empty()).unwrap();
    let appending = open(&path, OFlags::WRONLY | OFlags::APPEND, Mode::empty()).unwrap();
    let forged = vec![(0, content(2, 0, PAGE as usize))];
    let raw = Raw::connect(&agent.socket());
    assert_eq!(refusal(stage(&raw, &forged, &path, &[&reading()])), Refusal::NoDescriptor);
    for proof in [&reading(), &own_writing, &appending] {
        assert_eq!(refusal(stage(&raw, &forged, &path, &[&reading(), proof])), Refusal::NotWritable);
    }
    verify_once(&agent.client(), &path, 1, 0);
    verify_once(&agent.client(), &path, 1, 1);
    // A user who may write it could as well write it on the PFS.
    agent.client().admin().evict_all().unwrap();
    let writing = open(&path, OFlags::WRONLY, Mode::empty()).unwrap();
    let honest = vec![(0, content(1, 0, PAGE as usize))];
    assert_eq!(stage(&raw, &honest, &path, &[&reading(), &writing]), Reply::Done);
    assert_eq!(agent.counter("pages_written_total"), 1);
    let file = agent.client().open_with(&path, ReadMode::TierOnly).unwrap();
    assert_content(&read_all(&file).unwrap(), 1, 0);
    drop(file);
    drop(raw);
    agent.assert_nothing_left();
}

/// What is staged after the end of a file must not become part of its copy, nor, after a crash, a
/// copy or a record.
#[test]
fn staged_bytes_are_never_taken_for_the_tiers_own_records() {
    let pfs = plain_pfs();
    let path = pfs.path().join("f");
    // One whole page and a little: of page 1, the writer stages more than the file has.
    make_file(&path, 1, PAGE + 8);
    let mut agent = Agent::on(pfs.path());
    let raw = Raw::connect(&agent.socket());
    // Not for the client processes of other tests to inherit: it would stay open for writing.
    let with = |flags| open(&path, flags | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let (reading, writing) = (with(OFlags::RDONLY), with(OFlags::WRONLY));
    // Page words that say "resident, all valid" for both pages, where page 1 of the file has 8
    // bytes.
    let mut forged = content(2, PAGE, 8);
    let word = (1u64 << 32 | 16 << 8 | 2).to_le_bytes();
    forged.extend_from_slice(&word);
    forged.extend_from_slice(&word);
    forged.resize(PAGE as usize, 0xff);
    let pages = vec![(0, content(1, 0, PAGE as usize)), (1, forged)];
    assert_eq!(stage(&raw, &pages, &path, &[&reading, &writing]), Reply::Done);
    assert_eq!((agent.counter("pages_written_total"), agent.used("pages")), (1, PAGE));
    verify_once(&agent.client(), &path, 1, 0);
    agent.client().admin().evict_all().unwrap();
    drop(raw);
    agent.assert_nothing_left();
    // What somebody has open for writing is not cached.
    drop(writing);

    // The record of another copy, as staged bytes: header, words and names of the tier's own.
    verify_once(&agent.client(), &path, 1, 0);
    let other = &agent.records()[0];
    let mut record = std::fs::read(other).unwrap();
    agent.client().admin().evict_all().unwrap();
    let number = u64::from_str_radix(other.file_stem().unwrap().to_str().unwrap(), 16).unwrap();
    let raw = Raw::connect(&agent.socket());
    let staging = begin_staging(&raw);
    // The number of the new copy is the next one: it is easy to guess.
    record[..8].copy_from_slice(&(number + 1).to_le_bytes());
    let slot = staging.take().unwrap();
    staging.fill(slot, &record, 0).unwrap();
    raw.0.send(&Request::StagePage { slot, page: 0, len: record.len() as u64 }, &[]).unwrap();
    // The next answer comes when all of that is done.
    assert!(matches!(raw.ask(&Request::Mounts, &[]), Reply::Mounts(_)));
    agent.kill_9();
    let staged = std::fs::read(agent.dir().join(format!("tier/copies/{:016x}", number + 1))).unwrap();
    assert!(staged == record && agent.copies() == 1, "the number was another");
    agent.restart();
    assert_eq!((agent.counter("adopted_files_total"), agent.copies()), (0, 0));
    verify_once(&agent.client(), &path, 1, 0);
    agent.assert_nothing_left();
}

#[test]
fn a_user_that_is_no_operator_can_do_no_harm() {
    let (_pfs, path, agent) = one_file(1, MIB);
    verify_once(&agent.client(), &path, 1, 0);
    let mut user =
        Helper::start_as(&agent.socket(), Some(OTHER_UID), "unwelcome", &[agent.socket().to_str().unwrap()]);
    user.expect("refused everything");
    user.finish();
    let s = agent.status();
    assert_eq!((s.pid, s.resident_bytes, s.capacity_bytes), (agent.pid(), MIB, 96 * MIB));
}

/// Sends requests through the library, as the command line does.
pub fn unwelcome(socket: &str) {
    let client = Client::from_env();
    let admin = client.admin();
    let denied = |e: std::io::Error| assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
    denied(admin.evict_all().unwrap_err());
    denied(admin.set_capacity(1).unwrap_err());
    denied(admin.set_log("debug", false).unwrap_err());
    denied(admin.shutdown().unwrap_err());
    // Nor by a question that names somebody else.
    let log = Question::Log { filter: "debug".into(), by: 0 };
    let answer = Raw::connect(Path::new(socket)).ask(&Request::AskCoordinator(log), &[]);
    assert_eq!(answer, Reply::Refused(Refusal::NotAllowed));
    assert_eq!(admin.list().unwrap(), []);
    say("refused everything");
}

#[test]
fn an_agent_of_a_stranger_is_not_believed() {
    let (_pfs, path) = pfs_with("f", 1, MIB);
    let dir = open_dir_in("/dev/shm");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let socket = dir.path().join("agent.sock");
    let mut fake = Helper::start_as(&socket, Some(OTHER_UID), "listen", &[socket.to_str().unwrap()]);
    fake.expect("listening");
    let config = ClientConfig { socket: Some(socket.clone()), quiet: true, ..ClientConfig::default() };
    let client = Client::new(config);
    // It answers nothing: a client that believed it would wait for the deadline in vain.
    let error = client.admin().status().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.to_string().contains(&format!("FOREBAY_TRUST_UID={OTHER_UID}")), "{error}");
    let file = client.open(&path).unwrap();
    assert!(!file.is_tiered());
    assert_content(&read_all(&file).unwrap(), 1, 0);
    fake.finish();
}

#[test]
fn a_state_directory_of_somebody_else_is_refused() {
    let pfs = plain_pfs();
    let dir = open_dir_in("/dev/shm");
    let state = dir.path().join("state");
    std::fs::create_dir(&state).unwrap();
    std::os::unix::fs::chown(&state, Some(OTHER_UID), Some(OTHER_UID)).unwrap();
    // A log that leads elsewhere.
    let victim = dir.path().join("victim");
    std::fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink(&victim, state.join("agent.log")).unwrap();
    let mut up = std::process::Command::new(crate::common::FOREBAY);
    up.args(["up", "--backing", "directory", "--capacity", "64MiB", "--pfs"]).arg(pfs.path());
    let out = up.arg("--state-dir").arg(&state).env_remove("FOREBAY_SOCKET").output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains(&format!("belongs to user {OTHER_UID}")), "{}", text(&out.stderr));
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
}

#[test]
fn a_state_directory_that_others_can_exchange_is_refused_and_a_mask_of_zero_opens_no_file() {
    let pfs = plain_pfs();
    let dir = open_dir_in("/dev/shm");
    let of_user = dir.path().join("home");
    std::fs::create_dir(&of_user).unwrap();
    std::os::unix::fs::chown(&of_user, Some(OTHER_UID), Some(OTHER_UID)).unwrap();
    let tier = dir.path().join("tier");
    let config = dir.path().join("config.toml");
    std::fs::write(&config, format!("[tier]\ndirectory = {tier:?}\n")).unwrap();
    let script = "umask 000; exec \"$@\"";
    let up = |state: &std::path::Path| {
        let mut up = std::process::Command::new("sh");
        up.args([
            "-c",
            script,
            "sh",
            crate::common::FOREBAY,
            "up",
            "--backing",
            "directory",
            "--capacity",
            "64MiB",
        ]);
        up.arg("--config").arg(&config).arg("--pfs").arg(pfs.path()).arg("--state-dir").arg(state);
        up.env_remove("FOREBAY_SOCKET").output().unwrap()
    };
    // Its own directory, in one that a user can exchange it in; and through a link of the user's.
    let below = of_user.join("state");
    std::fs::create_dir(&below).unwrap();
    let real = dir.path().join("real");
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, of_user.join("link")).unwrap();
    for state in [below, of_user.join("link/state"), of_user.join("new/state")] {
        let out = up(&state);
        assert_eq!(out.status.code(), Some(1), "{}", text(&out.stdout));
        let said = text(&out.stderr);
        assert!(said.contains(&format!("user {OTHER_UID}")) && said.contains("--state-dir"), "{said}");
        assert!(std::fs::read_dir(&state).map_or(true, |mut entries| entries.next().is_none()));
    }
    let state = dir.path().join("state");
    let out = up(&state);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let mut down = std::process::Command::new(crate::common::FOREBAY);
    let modes: Vec<_> = std::fs::read_dir(&state)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| !entry.file_name().to_string_lossy().ends_with(".sock"))
        .map(|entry| (entry.file_name(), entry.metadata().unwrap().permissions().mode() & 0o22))
        .collect();
    down.args(["down", "--drop", "--state-dir"]).arg(&state).env_remove("FOREBAY_SOCKET").output().unwrap();
    assert!(
        modes.iter().any(|(name, _)| name == "backing") && modes.iter().any(|(name, _)| name == "agent.log")
    );
    assert!(modes.iter().all(|(_, mode)| *mode == 0), "others can write: {modes:?}");
}

#[test]
fn only_who_was_given_a_copy_may_hold_its_pages() {
    let pfs = plain_pfs();
    let (path, other) = (pfs.path().join("f"), pfs.path().join("g"));
    make_file(&path, 1, MIB + 5);
    make_file(&other, 2, MIB);
    let agent = Agent::on(pfs.path());
    verify_once(&agent.client(), &path, 1, 0);
    verify_once(&agent.client(), &other, 2, 0);
    let raw = Raw::connect(&agent.socket());
    let shown = |path: &std::path::Path| {
        let file = std::fs::File::open(path).unwrap();
        let answer = raw.exchange(&Request::Open, &[file.as_fd()]);
        let Reply::Opened { copy, .. } = answer.message else { panic!("{:?}", answer.message) };
        let shared: [_; 2] = answer.fds.try_into().expect("a cached file comes with its copy and record");
        (copy, shared.map(std::fs::File::from), file)
    };
    let (copy, [fd, record], file) = shown(&path);
    let (_, [fd_of_other, _], _) = shown(&other);
    let mut bytes = Vec::new();
    (&fd).read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, MIB + 5, "a copy has the size of its file");
    assert_content(&bytes, 1, 0);
    for shared in [&fd, &record] {
        assert!((&mut &*shared).write_all(b"x").is_err(), "a client may write to a copy");
    }
    let pin = Request::PinPages { copy, first_page: 0, pages: 1 };
    let (fd, record, fd_of_other) = (fd.as_fd(), record.as_fd(), fd_of_other.as_fd());
    for proof in [&[][..], &[file.as_fd()], &[record], &[fd_of_other], &[fd, fd], &[fd, record]] {
        assert!(matches!(raw.ask(&pin, proof), Reply::Refused(_)), "held with {proof:?} as proof");
    }
    assert_eq!(agent.counter("client_pinned_bytes"), 0);
    let to_map = raw.exchange(&pin, &[fd]);
    assert_eq!((to_map.message, to_map.fds.len()), (Reply::Done, 1));
    assert!(agent.counter("client_pinned_bytes") > 0);
    assert!(std::fs::File::from(to_map.fds.into_iter().next().unwrap()).write_all(b"x").is_err());
}
