//! What clients report about their jobs, and ask about all jobs.
//!
//! Where files lie is added to what a job reports ([`crate::jobs::layouts`]), and is never a reason
//! to refuse it.

use super::session::{Answer, Connection, Node, reply};
use crate::jobs::book::{Bounds, NEW_COPIES, held_bytes, is_layouts};
use forebay_store::{Class, Reservation};
use forebay_wire::{JobUpdate, Refusal, Reply};
use std::time::Duration;

/// Longest wait for the coordinator's list of jobs.
const ASK_TIME: Duration = Duration::from_secs(5);

fn bounds(connection: &Connection) -> Bounds {
    let (node, uid) = (&connection.node, connection.peer.uid);
    Bounds::of(uid, node.shares.is_operator(uid), node.cache.budget.capacity_bytes())
}

/// Reserves room for what a client's job reports, or returns why not. Called right after decoding.
pub fn room_for_told(connection: &Connection, updates: &[JobUpdate]) -> Result<Reservation, Refusal> {
    let node = &connection.node;
    if !updates.is_empty() && !updates.contains(&JobUpdate::End) {
        node.link.may_tell_job(connection.id, updates, bounds(connection))?;
    }
    room_for(node, updates).ok_or(Refusal::NoRoom)
}

/// Handles what a client's job reports; `room` is reserved for it.
pub fn tell(connection: &mut Connection, updates: Vec<JobUpdate>, mut room: Reservation) -> Answer {
    let node = &connection.node;
    if updates.is_empty() {
        return reply(Reply::Done);
    }
    if updates.contains(&JobUpdate::End) {
        node.link.end_job(connection.id);
        connection.tells = false;
        return reply(Reply::Done);
    }
    if updates.iter().any(is_layouts) {
        let why = "only the agent may report layouts".into();
        return reply(Reply::Refused(Refusal::Invalid(why)));
    }
    let bounds = bounds(connection);
    let mut updates = node.layouts.with_layouts(updates);
    let layouts: Vec<_> = updates.iter().filter(|u| is_layouts(u)).cloned().collect();
    // Their room is not worth a refusal.
    match room_for(node, &layouts) {
        Some(more) if node.link.may_tell_job(connection.id, &updates, bounds).is_ok() => room.merge(more),
        _ => updates.retain(|u| !is_layouts(u)),
    }
    match node.link.tell_job(connection.id, updates, bounds, room) {
        Ok(()) => {
            connection.tells = true;
            reply(Reply::Done)
        }
        Err(refusal) => reply(Reply::Refused(refusal)),
    }
}

fn room_for(node: &Node, updates: &[JobUpdate]) -> Option<Reservation> {
    let bytes = held_bytes(updates) * NEW_COPIES;
    node.cache.reserve(Class::Clients, bytes)
}

/// The jobs that the coordinator knows.
pub fn list(node: &Node) -> Answer {
    match node.link.ask_jobs(ASK_TIME) {
        Ok(jobs) => reply(Reply::Jobs(jobs)),
        Err(e) => {
            reply(Reply::Failed { errno: libc::EAGAIN, message: format!("cannot request the jobs: {e}") })
        }
    }
}
