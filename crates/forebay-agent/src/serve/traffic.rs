//! Jobs by their traffic, and their rate limits; and the log of this process.

use super::jobs::{ASK_TIME, not_answered};
use super::session::{Answer, Connection, refuse, reply};
use crate::lock::lock;
use forebay_trace::log_control;
use forebay_wire::cluster::{self, Question, ToCoordinator};
use forebay_wire::traffic::is_job_name;
use forebay_wire::{Refusal, Reply};
use std::io;
use std::time::{Duration, Instant};

/// Time within which a program whose job has moved as much as it may hears of that.
const HELD_MAX: Duration = Duration::from_millis(500);

/// Longest filter of a log, in bytes.
const FILTER_BYTES_MAX: usize = 1024;

/// Records the job that the program belongs to; a name that no job may have is ignored.
pub fn set_job(connection: &mut Connection, job: &str) {
    if !is_job_name(job) {
        return;
    }
    let account = connection.node.fetch.traffic.account(connection.peer.uid, job);
    if let Some(ring) = lock(&connection.node.rings).get_mut(&connection.id) {
        ring.account = account.clone();
        ring.reader.set_limited(account.is_limited());
    }
    connection.account = account;
}

/// Limits jobs, here and on all other nodes.
pub fn set_limit(connection: &Connection, job: String, user: Option<u32>, rate: Option<u64>) -> Answer {
    let (node, uid) = (&connection.node, connection.peer.uid);
    let by = (uid, node.shares.is_operator(uid));
    match node.fetch.traffic.set(by, job, user, rate) {
        Err(refusal) => refuse(refusal),
        Ok(_) if !node.link.is_live() => reply(Reply::Failed {
            errno: libc::EAGAIN,
            message:
                "the coordinator does not answer: this node alone keeps the limit, and the others do so when \
                      it answers again"
                    .into(),
        }),
        Ok(limits) => {
            if !limits.is_empty() {
                node.link.say(ToCoordinator::Limits(limits), None);
            }
            reply(Reply::Done)
        }
    }
}

/// Answers with the limits that the user may see.
pub fn limits(connection: &Connection) -> Answer {
    let (node, uid) = (&connection.node, connection.peer.uid);
    reply(Reply::Limits(node.fetch.traffic.in_force(uid, node.shares.is_operator(uid))))
}

/// Answers whether a program that reads or writes a PFS by itself may move `bytes`.
pub fn may_pass(connection: &Connection, bytes: u64) -> Answer {
    let is_over = || connection.node.stop.is_stopping();
    match connection.account.take(bytes, Instant::now() + HELD_MAX, is_over) {
        true => reply(Reply::Done),
        false => reply(Reply::Waits),
    }
}

/// Changes what this process, or the coordinator, logs.
pub fn set_log(connection: &Connection, filter: String, at_coordinator: bool) -> Answer {
    let (node, uid) = (&connection.node, connection.peer.uid);
    if !node.shares.is_operator(uid) {
        return refuse(Refusal::NotAllowed);
    }
    if filter.len() > FILTER_BYTES_MAX {
        return refuse(Refusal::Invalid(format!("a filter has at most {FILTER_BYTES_MAX} bytes")));
    }
    let set = match at_coordinator {
        true => match node.link.ask(Question::Log { filter, by: uid }, ASK_TIME) {
            Ok(cluster::Answer::Log(set)) => set,
            Ok(_) => return not_answered(&io::ErrorKind::InvalidData.into()),
            Err(e) => return not_answered(&e),
        },
        false => log_control::set(&filter),
    };
    match set {
        Ok(filter) => reply(Reply::Text(filter)),
        Err(why) => refuse(Refusal::Invalid(why)),
    }
}

/// Answers with the latest lines of the log.
pub fn last_log(connection: &Connection) -> Answer {
    match connection.node.shares.is_operator(connection.peer.uid) {
        true => reply(Reply::Text(log_control::latest())),
        false => refuse(Refusal::NotAllowed),
    }
}
