//! Rules for sets of checkpoints: which stay in the tier, and which get a marker.

use crate::session::{Client, unexpected};
use forebay_wire::{CheckpointRule, CheckpointSeries, Reply, Request};
use std::io;
use std::time::{Duration, Instant};

/// The agent answers within a second that it needs more time.
const ANSWER: Duration = Duration::from_secs(30);

impl Client {
    /// Makes, changes or ends a rule of this user.
    ///
    /// # Errors
    /// No agent; the rule makes no sense.
    pub fn set_checkpoint_rule(&self, rule: CheckpointRule) -> io::Result<()> {
        match self.session.call(&Request::CheckpointRule(rule), &[], ANSWER)?.message {
            Reply::Done => Ok(()),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Waits until the markers of these rules are written, as far as files are closed and on the
    /// PFS. `progress` is called about once a second; it ends the wait by returning `false`.
    ///
    /// # Errors
    /// No agent.
    pub fn wait_for_markers(
        &self,
        selectors: &[String],
        mut progress: impl FnMut() -> bool,
    ) -> io::Result<bool> {
        let channel = self.session.connect_to_agent()?;
        loop {
            channel.send(&Request::CheckpointMarkers(selectors.to_vec()), &[])?;
            match channel.recv::<Reply>(Some(Instant::now() + ANSWER))?.message {
                Reply::Done => return Ok(true),
                Reply::Waits if progress() => {}
                Reply::Waits => return Ok(false),
                reply => return Err(unexpected(&reply)),
            }
        }
    }

    /// The rules of this user with their sets; for the operator those of all users.
    ///
    /// # Errors
    /// No agent.
    pub fn checkpoints(&self) -> io::Result<Vec<CheckpointSeries>> {
        let channel = self.session.connect_to_agent()?;
        channel.send(&Request::CheckpointList, &[])?;
        match channel.recv_reply(Some(Instant::now() + ANSWER))?.message {
            Reply::Checkpoints(all) => Ok(all),
            reply => Err(unexpected(&reply)),
        }
    }
}
