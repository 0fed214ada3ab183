//! Rules for checkpoints, and the sets that they have seen ([`crate::write_back::sets`]).

use super::session::{Answer, Connection, refuse, reply};
use forebay_wire::{CheckpointRule, Reply};

/// Makes, changes or ends a rule.
pub fn set_rule(connection: &Connection, rule: CheckpointRule) -> Answer {
    match connection.node.write_back.set_checkpoint_rule((connection.peer.uid, &connection.groups), rule) {
        Ok(()) => reply(Reply::Done),
        Err(refusal) => refuse(refusal),
    }
}

/// Waits for the markers of these rules.
pub fn wait_for_markers(connection: &Connection, selectors: &[String]) -> Answer {
    let is_done = connection.node.write_back.wait_for_markers(connection.peer.uid, selectors);
    reply(if is_done { Reply::Done } else { Reply::Waits })
}

/// Lists the sets.
pub fn list(connection: &Connection) -> Answer {
    reply(Reply::Checkpoints(connection.node.write_back.list_checkpoints(connection.peer.uid)))
}
