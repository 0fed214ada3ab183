//! What clients report about their jobs, and ask about all jobs.
//!
//! The layouts of files are added to what a job reports ([`crate::jobs::layouts`]), and are never a
//! reason to refuse it.

use super::session::{Answer, Connection, Node, refuse, reply};
use crate::jobs::job_state::{Bounds, NEW_COPIES, Report, Size, is_layouts};
use crate::jobs::task_questions::Task;
use crate::user_limits::Kind;
use forebay_store::{Class, Reservation};
use forebay_wire::cluster::Question;
use forebay_wire::{JobUpdate, Refusal, Reply};
use std::io;
use std::time::{Duration, Instant};

/// Longest wait for the coordinator.
pub const ASK_TIME: Duration = Duration::from_secs(5);

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

/// Answers a task that asks whether it may read.
pub fn task_asks(connection: &Connection, job: String, stage: u32, partition: u32) -> Answer {
    let node = &connection.node;
    let task: Task = (connection.peer.uid, job, stage, partition);
    let is_silent = || node.fetch.scheduler.is_coordinator_silent();
    let may_read = node.questions.may_read(&task, is_silent, |question| node.link.say(question, None));
    reply(if may_read { Reply::Done } else { Reply::Waits })
}

/// Asks the coordinator for a program. The question has a place among those of the node until the
/// answer has been sent: a user who asks too often at a time waits for the earlier answers.
pub fn ask_coordinator(connection: &mut Connection, question: Question) -> Answer {
    // For operators only: `traffic::set_log`.
    if matches!(question, Question::Log { .. }) {
        return refuse(Refusal::NotAllowed);
    }
    let until = Instant::now() + ASK_TIME;
    let place = loop {
        match connection.node.shares.share(Kind::Lists, connection.peer.uid, 1) {
            Ok(place) => break place,
            Err(refusal) if Instant::now() >= until => return refuse(refusal),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    connection.listing = Some(place);
    match connection.node.link.ask(question, ASK_TIME) {
        Ok(answer) => reply(Reply::Answered(Box::new(answer))),
        Err(e) => not_answered(&e),
    }
}

/// The answer when the coordinator has not answered.
pub fn not_answered(e: &io::Error) -> Answer {
    reply(Reply::Failed { errno: libc::EAGAIN, message: format!("cannot ask the coordinator: {e}") })
}
