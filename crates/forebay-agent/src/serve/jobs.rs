//! What clients report about their jobs, and ask about all jobs.
//!
//! Where files lie is added to what a job reports ([`crate::jobs::layouts`]), and is never a reason
//! to refuse it.

use super::session::{Answer, Connection, Node, reply};
use crate::jobs::job_state::{Bounds, NEW_COPIES, Report, Size, is_layouts};
use crate::jobs::task_questions::Task;
use crate::user_limits::Kind;
use forebay_store::{Class, Reservation};
use forebay_wire::{JobUpdate, Refusal, Reply};
use std::time::{Duration, Instant};

/// Longest wait for the coordinator's list of jobs.
const ASK_TIME: Duration = Duration::from_secs(5);

fn bounds(connection: &Connection) -> Bounds {
    let (node, uid) = (&connection.node, connection.peer.uid);
    Bounds::of(uid, node.shares.is_operator(uid), node.cache.budget.most_bytes())
}

/// Reserves room for what a client's job reports, or returns why not. Called right after decoding.
pub fn room_for_reported(
    connection: &Connection,
    updates: &[JobUpdate],
) -> Result<(Size, Reservation), Refusal> {
    let (node, size) = (&connection.node, Size::of(updates));
    if !updates.contains(&JobUpdate::End) {
        if node.orders.has(connection.id) {
            // What was read before this report is compared with the order as it was before.
            node.drain_rings();
        }
        node.orders.check(connection.id)?;
    }
    if !updates.is_empty() && !updates.contains(&JobUpdate::End) {
        node.jobs.may_report(connection.id, updates, size, bounds(connection))?;
    }
    room_for(node, size).map(|room| (size, room)).ok_or(Refusal::NoRoom)
}

/// Handles what a client's job reports; one copy of it takes `size`, and `room` is reserved for it.
pub fn report(
    connection: &mut Connection,
    updates: Vec<JobUpdate>,
    (mut size, mut room): (Size, Reservation),
) -> Answer {
    let node = &connection.node;
    if updates.is_empty() {
        return reply(Reply::Done);
    }
    if updates.contains(&JobUpdate::End) {
        node.end_job(connection.id);
        connection.reports_job = false;
        return reply(Reply::Done);
    }
    if updates.iter().any(is_layouts) {
        let why = "only the agent may report layouts".into();
        return reply(Reply::Refused(Refusal::Invalid(why)));
    }
    let begins = matches!(updates.first(), Some(JobUpdate::Begin { .. }));
    let uid = connection.peer.uid;
    let order = match node.orders.prepare(connection.id, uid, &updates) {
        Ok(order) => order,
        Err(refusal) => return reply(Reply::Refused(refusal)),
    };
    let place = match begins.then(|| node.shares.share(Kind::Jobs, uid, 1)).transpose() {
        Ok(place) => place,
        Err(refusal) => return reply(Reply::Refused(refusal)),
    };
    let mut updates = node.layouts.with_layouts(updates);
    updates.retain(|update| *update != JobUpdate::InOrder);
    let layouts = updates.iter().filter(|u| is_layouts(u)).map(JobUpdate::held_bytes).sum();
    // Their room is not worth a refusal.
    match room_for(node, Size { reported: 0, layouts }) {
        Some(more) => {
            size.layouts = layouts;
            room.merge(more);
        }
        None => updates.retain(|u| !is_layouts(u)),
    }
    let report = Report { updates, size, room, place };
    let say = |message, unsent| node.link.say(message, Some(Box::new(unsent)));
    match node.jobs.report(connection.id, report, bounds(connection), say) {
        Ok(()) => {
            connection.reports_job = true;
            if let Some(order) = order {
                connection.node.orders.add(connection.id, order);
            }
            reply(Reply::Done)
        }
        Err(refusal) => reply(Reply::Refused(refusal)),
    }
}

fn room_for(node: &Node, size: Size) -> Option<Reservation> {
    node.cache.reserve(Class::Clients, size.bytes() * NEW_COPIES)
}

/// A place among the questions to the coordinator, which is kept until the answer has been sent. A
/// user who asks too often at a time waits for the earlier answers.
///
/// # Errors
/// They have not come in time.
pub fn question_of(connection: &mut Connection) -> Result<(), Refusal> {
    let until = Instant::now() + ASK_TIME;
    loop {
        match connection.node.shares.share(Kind::Lists, connection.peer.uid, 1) {
            Ok(share) => {
                connection.listing = Some(share);
                return Ok(());
            }
            Err(refusal) if Instant::now() >= until => return Err(refusal),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// A task asks whether it may read.
pub fn task_asks(connection: &Connection, job: String, stage: u32, partition: u32) -> Answer {
    let node = &connection.node;
    let task: Task = (connection.peer.uid, job, stage, partition);
    let is_silent = || node.fetch.scheduler.is_coordinator_silent();
    let may_read = node.questions.may_read(&task, is_silent, |question| node.link.say(question, None));
    reply(if may_read { Reply::Done } else { Reply::Waits })
}

/// The jobs that the coordinator knows.
pub fn list(connection: &mut Connection) -> Answer {
    if let Err(refusal) = question_of(connection) {
        return reply(Reply::Refused(refusal));
    }
    match connection.node.link.ask_jobs(ASK_TIME) {
        Ok(jobs) => reply(Reply::Jobs(jobs)),
        Err(e) => {
            reply(Reply::Failed { errno: libc::EAGAIN, message: format!("cannot request the jobs: {e}") })
        }
    }
}

/// The nodes that the coordinator knows.
pub fn overview(connection: &mut Connection) -> Answer {
    if let Err(refusal) = question_of(connection) {
        return reply(Reply::Refused(refusal));
    }
    match connection.node.link.ask_overview(ASK_TIME) {
        Ok(overview) => reply(Reply::Overview(Box::new(overview))),
        Err(e) => {
            reply(Reply::Failed { errno: libc::EAGAIN, message: format!("cannot request the nodes: {e}") })
        }
    }
}
