//! Requests about map outputs ([`crate::shuffle`]). The files themselves are created and removed as
//! memory-only files, in `scratch`.

use super::scratch::new_token;
use super::session::{Answer, Connection, refuse, reply};
use forebay_wire::shuffle::{App, Block};
use forebay_wire::{Refusal, Reply};
use std::io;
use std::time::{Duration, Instant};

/// Longest time that a request makes its connection's thread wait.
const DEADLINE_MAX: Duration = Duration::from_secs(600);

fn failed(errno: i32, message: String) -> Answer {
    reply(Reply::Failed { errno, message })
}

/// Begins an application on this connection.
pub fn begin(connection: &mut Connection) -> Answer {
    if connection.job.is_some() {
        return refuse(Refusal::Invalid("this connection has begun a job already".into()));
    }
    let Some(token) = new_token() else {
        return failed(libc::EAGAIN, "the system has no random bytes".into());
    };
    let shuffles = &connection.node.shuffles;
    match shuffles.begin(connection.peer.uid, token) {
        Ok(app) => {
            connection.job = Some(app.token.clone());
            reply(Reply::ShuffleApp { app, node: shuffles.node().to_owned() })
        }
        Err(why) => refuse(Refusal::Invalid(why)),
    }
}

/// Continues an application that began at an earlier agent, on this connection.
pub fn resume(connection: &mut Connection, app: App, alive: Vec<u32>) -> Answer {
    if connection.job.is_some() {
        return refuse(Refusal::Invalid("this connection has begun a job already".into()));
    }
    let shuffles = &connection.node.shuffles;
    match shuffles.resume(connection.peer.uid, &app, alive) {
        Ok(true) => {
            connection.job = Some(app.token.clone());
            reply(Reply::ShuffleApp { app, node: shuffles.node().to_owned() })
        }
        Ok(false) => failed(libc::ENOENT, "the application has ended".into()),
        Err(why) => failed(libc::EAGAIN, why),
    }
}

/// Adds a process of an application that runs on this node.
pub fn join(connection: &Connection, app: App) -> Answer {
    let shuffles = &connection.node.shuffles;
    match shuffles.join(connection.peer.uid, &app) {
        Ok(()) => reply(Reply::ShuffleApp { app, node: shuffles.node().to_owned() }),
        Err(e) => failed(errno_of(&e), e.to_string()),
    }
}

/// Records that the connection's application has a shuffle, or no longer has it.
pub fn set_lives(connection: &Connection, shuffle: u32, lives: bool) -> Answer {
    match &connection.job {
        Some(token) => {
            connection.node.shuffles.set_lives(token, shuffle, lives);
            reply(Reply::Done)
        }
        None => refuse(Refusal::Invalid("no application was begun on this connection".into())),
    }
}

/// Removes the outputs of a shuffle from this node.
pub fn remove(connection: &Connection, token: &str, shuffle: u32) -> Answer {
    let shuffles = &connection.node.shuffles;
    if shuffles.has(connection.peer.uid, token) {
        shuffles.remove(token, shuffle);
    }
    reply(Reply::Done)
}

/// Answers with the nodes of `hosts`.
pub fn nodes_at(connection: &Connection, hosts: &[String], with_second: bool) -> Answer {
    match connection.node.shuffles.nodes_at(hosts, with_second) {
        Some(nodes) => reply(Reply::Nodes(nodes)),
        None => failed(libc::EAGAIN, "this agent has started, and knows no node yet".into()),
    }
}

/// Sends a map output to a second node.
pub fn copy(connection: &Connection, token: &str, output: (u32, u64)) -> Answer {
    match connection.node.shuffles.copy(connection.peer.uid, token, output) {
        Ok(node) => reply(Reply::Nodes(vec![node])),
        Err(e) => failed(errno_of(&e), e.to_string()),
    }
}

fn errno_of(e: &io::Error) -> i32 {
    match e.kind() {
        io::ErrorKind::NotFound => libc::ENOENT,
        io::ErrorKind::StorageFull => libc::ENOSPC,
        io::ErrorKind::ResourceBusy => libc::EAGAIN,
        _ => e.raw_os_error().unwrap_or(libc::EIO),
    }
}

/// Finds blocks here, or fetches them from another node.
pub fn fetch(
    connection: &Connection,
    app: &App,
    nodes: &[String],
    blocks: &[Block],
    deadline_ms: u32,
) -> Answer {
    let deadline = Instant::now() + Duration::from_millis(deadline_ms.into()).min(DEADLINE_MAX);
    match connection.node.shuffles.fetch(connection.peer.uid, app, nodes, blocks, deadline) {
        Ok((files, places)) => Some((Reply::ShuffleBlocks(places), files)),
        Err(e) => failed(errno_of(&e), e.to_string()),
    }
}
