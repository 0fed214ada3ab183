//! The keeper: a process that only holds a tmpfs in a user namespace.
//!
//! Without root a tmpfs can be mounted only inside a user and mount namespace, and it lives as long
//! as some process is in there. If that were the agent, killing the agent would cool the cache, and
//! the agent would see the users of the node through its own mapping. So a second process is in
//! there instead: it mounts, listens on `keeper.sock` in the state directory, and hands a
//! descriptor of the mount's root to its own user. It ends when asked to, or with its directory.

use crate::mounting::{TierOptions, huge_setting, mount_or_resize};
use forebay_wire::Channel;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The hidden subcommand under which the program becomes a keeper.
pub const SUBCOMMAND: &str = "keeper";

/// Longest time a keeper takes to answer.
const ANSWER_TIME: Duration = Duration::from_secs(5);

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// A descriptor of the root, after setting the size of the tmpfs; 0 leaves it as it is.
    Root { limit_bytes: u64 },
    /// Let it all go.
    Quit,
}

#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    huge_pages: String,
    error: String,
}

fn socket_path(state_dir: &Path) -> PathBuf {
    state_dir.join("keeper.sock")
}

/// Gets the root of the kept tmpfs, starting a keeper if there is none.
///
/// # Errors
/// The keeper cannot be started, or cannot mount; its own message is passed on.
pub(crate) fn open(options: &TierOptions) -> io::Result<(OwnedFd, PathBuf, String)> {
    let place = options.state_dir.join("tier");
    std::fs::create_dir_all(&place)?;
    let channel = match Channel::connect(&socket_path(&options.state_dir)) {
        Ok(channel) => channel,
        Err(_) => start(options)?,
    };
    let (root, huge_pages) = ask_root(&channel, options.limit_bytes)?;
    Ok((root, place, huge_pages))
}

/// The root of the tmpfs that a running keeper of `state_dir` holds; `None` if none runs.
///
/// # Errors
/// The keeper does not answer as it should.
pub(crate) fn reopen(state_dir: &Path) -> io::Result<Option<OwnedFd>> {
    match Channel::connect(&socket_path(state_dir)) {
        Ok(channel) => ask_root(&channel, 0).map(|(root, _)| Some(root)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => Ok(None),
        Err(e) => Err(e),
    }
}

fn ask_root(channel: &Channel, limit_bytes: u64) -> io::Result<(OwnedFd, String)> {
    require_own_user(channel)?;
    channel.send(&Request::Root { limit_bytes }, &[])?;
    let mut got = channel.recv::<Answer>(Some(Instant::now() + ANSWER_TIME))?;
    match got.fds.pop() {
        Some(root) if got.message.error.is_empty() => Ok((root, got.message.huge_pages)),
        _ => Err(io::Error::other(got.message.error)),
    }
}

/// Ends the keeper of `state_dir`.
pub(crate) fn quit(state_dir: &Path) -> io::Result<()> {
    let channel = Channel::connect(&socket_path(state_dir))?;
    channel.send(&Request::Quit, &[])
}

fn require_own_user(channel: &Channel) -> io::Result<()> {
    let (peer, own) = (channel.peer()?.uid, rustix::process::geteuid().as_raw());
    if peer == own {
        return Ok(());
    }
    Err(io::Error::other(format!("the other end belongs to user {peer}, not {own}")))
}

fn start(options: &TierOptions) -> io::Result<Channel> {
    let program =
        options.program.as_ref().ok_or_else(|| io::Error::other("no program to start a keeper with"))?;
    let socket = socket_path(&options.state_dir);
    let mut command = Command::new(program);
    command.arg(SUBCOMMAND).arg(&options.state_dir).arg(options.limit_bytes.to_string());
    command.arg(if options.huge_pages { "huge" } else { "small" });
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let deadline = Instant::now() + ANSWER_TIME;
    while Instant::now() < deadline {
        if let Ok(channel) = Channel::connect(&socket) {
            return Ok(channel);
        }
        if let Some(status) = child.try_wait()? {
            let mut words = String::new();
            if let Some(mut stderr) = child.stderr.take() {
                io::Read::read_to_string(&mut stderr, &mut words)?;
            }
            return Err(io::Error::other(format!("keeper ended ({status}): {}", words.trim())));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "keeper did not start in time"))
}

/// Runs as the keeper of `state_dir` until asked to quit. Must be called before the process has a
/// second thread.
///
/// # Errors
/// No user namespaces on this system, or the mount failed.
pub fn run(state_dir: &Path, limit_bytes: u64, huge_pages: bool) -> io::Result<()> {
    // A session of its own, so that a terminal's hang-up does not take the cache with it.
    let _ = rustix::process::setsid();
    let socket = socket_path(state_dir);
    let _ = std::fs::remove_file(&socket);
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    enter_namespace()?;
    let place = state_dir.join("tier");
    mount_or_resize(&place, limit_bytes, huge_pages)?;
    bind(&listener, &SocketAddrUnix::new(&socket)?)?;
    listen(&listener, 4)?;
    loop {
        let channel = Channel::from_socket(accept_with(&listener, SocketFlags::CLOEXEC)?);
        if require_own_user(&channel).is_err() {
            continue;
        }
        let limit = Instant::now() + ANSWER_TIME;
        match channel.recv::<Request>(Some(limit)).map(|r| r.message) {
            Ok(Request::Root { limit_bytes }) => answer(&channel, &place, limit_bytes, huge_pages),
            Ok(Request::Quit) => {
                let _ = std::fs::remove_file(&socket);
                return Ok(());
            }
            Err(_) => {}
        }
    }
}

fn answer(channel: &Channel, place: &Path, limit_bytes: u64, huge_pages: bool) {
    let resized = if limit_bytes == 0 { Ok(()) } else { mount_or_resize(place, limit_bytes, huge_pages) };
    let root = resized.and_then(|()| {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok((openat(CWD, place, flags, Mode::empty())?, huge_setting(place)?))
    });
    // An asker that is gone by now needs no answer.
    let _ = match root {
        Ok((root, huge_pages)) => channel.send(&Answer { huge_pages, error: String::new() }, &[root.as_fd()]),
        Err(e) => channel.send(&Answer { huge_pages: String::new(), error: e.to_string() }, &[]),
    };
}

fn enter_namespace() -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let flags = rustix::thread::UnshareFlags::NEWUSER | rustix::thread::UnshareFlags::NEWNS;
    // SAFETY: the keeper has one thread and shares no file descriptor table with anyone.
    unsafe { rustix::thread::unshare_unsafe(flags) }
        .map_err(|e| io::Error::other(format!("cannot make a user namespace: {e}")))?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
}
