//! An agent that answers late: what a reader sees is no older than it would be with one that
//! answers immediately.

use crate::common::{one_file, text, wait_for};
use crate::intercept::library;
use forebay_wire::{Channel, Hello, Reply, Request, Welcome};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Longer than a look at a file counts.
const LATE: Duration = Duration::from_millis(200);

/// State of the relay between an agent and its clients.
#[derive(Default)]
struct Between {
    /// Answers to an open that the agent has given.
    opened: AtomicU32,
    /// They may be handed on, [`LATE`].
    may_go: AtomicBool,
}

/// Hands on everything between an agent and its clients, and answers to an open late.
fn answers_late(agent: &Path, socket: &Path) -> Arc<Between> {
    let listener =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(socket).unwrap()).unwrap();
    listen(&listener, 16).unwrap();
    let (between, agent) = (Arc::new(Between::default()), agent.to_owned());
    let counter = between.clone();
    std::thread::spawn(move || {
        while let Ok(client) = accept_with(&listener, SocketFlags::CLOEXEC) {
            let (client, agent) = (Arc::new(Channel::from_socket(client)), Channel::connect(&agent).unwrap());
            let (agent, counter) = (Arc::new(agent), counter.clone());
            let back = (client.clone(), agent.clone());
            std::thread::spawn(move || answers(&back.1, &back.0, &counter));
            std::thread::spawn(move || requests(&client, &agent));
        }
    });
    between
}

fn borrowed(fds: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    fds.iter().map(AsFd::as_fd).collect()
}

fn requests(client: &Channel, agent: &Channel) -> Option<()> {
    let hello = client.recv::<Hello>(None).ok()?;
    agent.send(&hello.message, &borrowed(&hello.fds)).ok()?;
    loop {
        let request = client.recv::<Request>(None).ok()?;
        agent.send(&request.message, &borrowed(&request.fds)).ok()?;
    }
}

fn answers(agent: &Channel, client: &Channel, between: &Between) -> Option<()> {
    let welcome = agent.recv::<Welcome>(None).ok()?;
    client.send(&welcome.message, &borrowed(&welcome.fds)).ok()?;
    loop {
        let reply = agent.recv::<Reply>(None).ok()?;
        if matches!(reply.message, Reply::Opened { .. }) {
            between.opened.fetch_add(1, Ordering::SeqCst);
            wait_for("answers may be handed on", || between.may_go.load(Ordering::SeqCst));
            std::thread::sleep(LATE);
        }
        client.send(&reply.message, &borrowed(&reply.fds)).ok()?;
    }
}

/// Content and length stay the same in all but the letters.
fn write(path: &Path, letter: char) {
    std::fs::write(path, letter.to_string().repeat(5_000)).unwrap();
}

#[test]
fn the_age_of_a_file_counts_from_before_the_question() {
    let (pfs, path, agent) = one_file(1, 5_000);
    let loaded = agent.cli(&["load", path.to_str().unwrap()]);
    assert!(loaded.status.success(), "{}", text(&loaded.stderr));
    let late: PathBuf = agent.socket().with_file_name("late.sock");
    let between = answers_late(&agent.socket(), &late);

    // The first read waits for the answer. The file is overwritten after the agent has looked at
    // it. What is read then was requested long after that.
    let script = "import os
fd = os.open('f', os.O_RDONLY)
os.pread(fd, 1, 0)
print(os.pread(fd, 9, 0).decode(errors='replace'))";
    let mut reader = agent.command(&["run", "--quiet", "--", "python3", "-c", script]);
    reader.env("FOREBAY_PRELOAD", library()).env("FOREBAY_SOCKET", &late).current_dir(pfs.path());
    let reader = reader.stdout(Stdio::piped()).spawn().unwrap();
    wait_for("the agent has looked at the file", || between.opened.load(Ordering::SeqCst) > 0);
    write(&path, 'n');
    between.may_go.store(true, Ordering::SeqCst);
    let out = reader.wait_with_output().unwrap();
    assert_eq!(text(&out.stdout), "nnnnnnnnn\n");
}
