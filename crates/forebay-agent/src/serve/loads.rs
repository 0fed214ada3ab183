//! Requests about the load of a connection ([`crate::prefetch::load`]).

use super::closer::Sent;
use super::session::{Answer, Connection, reply};
use crate::prefetch::load::LoadJob;
use crate::user_limits::Kind;
use forebay_wire::{LoadProgress, Refusal, Reply};
use std::time::Duration;

/// Failures of a load in one answer; the rest comes with the next.
const FAILURE_BYTES_MAX: usize = 32 << 10;

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
    let keep = |sent: Sent| connection.node.shares.keep_file(connection.peer.uid, sent.fd);
    match fds.into_iter().map(keep).collect() {
        Ok(files) => match job.add(first_index, files) {
            true => reply(Reply::Done),
            false => reply(Reply::Refused(Refusal::TooMany("files waiting in this load".into()))),
        },
        Err(refusal) => reply(Reply::Refused(refusal)),
    }
}

/// Tells how far the load is.
pub fn poll(connection: &Connection, wait_ms: u32) -> Answer {
    match &connection.load {
        None => reply(Reply::Refused(Refusal::Invalid("no load was begun".into()))),
        Some(job) => {
            let wait = Duration::from_millis(u64::from(wait_ms.min(10_000)));
            reply(Reply::Load(fit(job.poll(wait))))
        }
    }
}

/// Cuts what would not fit a packet; a count in place of the rest.
fn fit(mut progress: LoadProgress) -> LoadProgress {
    let mut bytes = 0;
    let fits = progress.failures.iter().take_while(|(_, _, message)| {
        bytes += message.len() + 16;
        bytes <= FAILURE_BYTES_MAX
    });
    let keep = fits.count();
    let cut = progress.failures.len() - keep;
    progress.failures.truncate(keep);
    if cut > 0 {
        progress.failures.push((u64::MAX, 0, format!("and {cut} more files")));
    }
    progress
}

/// Ends the load.
pub fn cancel(connection: &mut Connection) -> Answer {
    match connection.load.take() {
        None => reply(Reply::Refused(Refusal::Invalid("no load was begun".into()))),
        Some(job) => {
            job.cancel();
            reply(Reply::Load(fit(job.poll(Duration::ZERO))))
        }
    }
}
