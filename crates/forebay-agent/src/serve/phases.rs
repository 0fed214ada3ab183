//! What programs report of HPC jobs and their I/O phases.

use super::session::{Answer, Connection, Node, refuse, reply};
use forebay_policy::phases::Refused;
use forebay_wire::observed::REGION_BYTES;
use forebay_wire::{Declared, Refusal, Reply};

fn done_or(refused: Result<(), Refused>) -> Answer {
    match refused {
        Ok(()) => reply(Reply::Done),
        // The message is complete, and does not begin with "too many".
        Err(why) => refuse(Refusal::Invalid(why.to_string())),
    }
}

/// What opening a job is counted as: its end is a change as well.
const OPEN_CHANGES: u64 = 2;

/// Most that the names of a job's servers may take, in bytes; those of a large site do not.
const SERVERS_BYTES_MAX: usize = 16 << 10;

/// Waits until the user of the connection may make this many changes to the board.
fn wait_for_turn(connection: &Connection, changes: u64) {
    let wait = connection.node.phases.wait_of(connection.peer.uid, changes);
    if !wait.is_zero() {
        connection.node.stop.wait(wait);
    }
}

/// Opens an HPC job for the connection's program.
pub fn open(connection: &mut Connection, job: Declared) -> Answer {
    if connection.hpc {
        return refuse(Refusal::Invalid("an HPC job is opened once on a connection".into()));
    }
    wait_for_turn(connection, OPEN_CHANGES);
    let opened = connection.node.phases.open(connection.id, job, connection.peer.uid);
    connection.hpc = opened.is_ok();
    done_or(opened)
}

/// Begins a phase.
pub fn begin(connection: &Connection, bytes: u64, deadline_ns: u64) -> Answer {
    wait_for_turn(connection, 1);
    match connection.node.phases.begin(connection.id, bytes, deadline_ns) {
        Ok(false) => reply(Reply::Waits),
        begun => done_or(begun.map(|_| ())),
    }
}

/// Ends the phase.
pub fn end(connection: &Connection) -> Answer {
    if !connection.hpc {
        return done_or(Err(Refused::NoJob));
    }
    wait_for_turn(connection, 1);
    connection.node.phases.end(connection.id);
    reply(Reply::Done)
}

/// Records that the next phases write to these servers.
pub fn writes_to(connection: &Connection, servers: Vec<String>) -> Answer {
    let bytes: usize = servers.iter().map(|name| name.len() + 1).sum();
    if bytes > SERVERS_BYTES_MAX || servers.iter().any(|name| name.chars().any(char::is_control)) {
        return done_or(Err(Refused::Invalid(
            "the names of a job's servers have at most 16384 bytes in all, and no control characters",
        )));
    }
    wait_for_turn(connection, 1);
    done_or(connection.node.phases.writes_to(connection.id, servers))
}

/// Hands out memory in which the observer library counts the job's I/O.
pub fn observe(connection: &Connection) -> Answer {
    if !connection.hpc {
        return done_or(Err(Refused::NoJob));
    }
    match connection.node.phases.observe(connection.id) {
        Ok(fd) => Some((Reply::Observed { bytes: REGION_BYTES as u64 }, vec![fd])),
        Err(e) => reply(Reply::Failed {
            errno: e.raw_os_error().unwrap_or(libc::ENOMEM),
            message: format!("cannot make memory for the observer: {e}"),
        }),
    }
}

/// The HPC jobs that this node knows.
pub fn list(node: &Node) -> Answer {
    reply(Reply::HpcJobs(node.phases.status(node.cluster.node())))
}
