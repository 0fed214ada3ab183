//! Requests about the load of a connection ([`crate::prefetch::load`]).

use super::closer::Sent;
use super::session::{Answer, Connection, reply};
use crate::prefetch::load::LoadJob;
use crate::user_limits::Kind;
use forebay_wire::{Refusal, Reply};
use std::time::Duration;

/// Starts a load.
pub fn begin(connection: &mut Connection, rate_bytes_per_s: u64) -> Answer {
    if let Some(old) = connection.load.take() {
        old.cancel();
    }
    let share = match connection.node.shares.share(Kind::Loads, connection.peer.uid, 1) {
        Ok(share) => share,
        Err(refusal) => return reply(Reply::Refused(refusal)),
    };
    match LoadJob::start(&connection.node.fetch, rate_bytes_per_s, share) {
        Ok(job) => {
            connection.load = Some(job);
            reply(Reply::Done)
        }
        Err(e) => reply(Reply::Failed {
            errno: e.raw_os_error().unwrap_or(libc::EAGAIN),
            message: format!("cannot start a load: {e}"),
        }),
    }
}

/// Adds files to the load.
pub fn files(connection: &Connection, first_index: u64, fds: Vec<Sent>) -> Answer {
    let Some(job) = &connection.load else {
        return reply(Reply::Refused(Refusal::Invalid("no load was begun".into())));
    };
    let keep = |sent: Sent| {
        let kept = connection.node.shares.keep_file(connection.peer.uid, sent.fd)?;
        Ok::<_, Refusal>(kept.of_job(connection.account.clone()))
    };
    match fds.into_iter().map(keep).collect() {
        Ok(files) => match job.add(first_index, files) {
            true => reply(Reply::Done),
            false => reply(Reply::Refused(Refusal::TooMany("files waiting in this load".into()))),
        },
        Err(refusal) => reply(Reply::Refused(refusal)),
    }
}

/// Reports how far the load is.
pub fn poll(connection: &Connection, wait_ms: u32) -> Answer {
    match &connection.load {
        None => reply(Reply::Refused(Refusal::Invalid("no load was begun".into()))),
        Some(job) => {
            let wait = Duration::from_millis(u64::from(wait_ms.min(10_000)));
            reply(Reply::Load(job.poll(wait)))
        }
    }
}

/// Ends the load.
pub fn cancel(connection: &mut Connection) -> Answer {
    match connection.load.take() {
        None => reply(Reply::Refused(Refusal::Invalid("no load was begun".into()))),
        Some(job) => {
            job.cancel();
            reply(Reply::Load(job.poll(Duration::ZERO)))
        }
    }
}
