//! The process of an agent, for programs in a user namespace that does not show the agent's user.
//!
//! There, the kernel reports the same number for root and for all users that the namespace does not
//! map. The launcher of the program checks the agent outside, and hands on which process it is. An
//! agent that is started later is another process, and is not trusted.

use forebay_wire::channel::Peer;
use std::fmt;
use std::str::FromStr;

/// A process. Its number may be reused for a later process, which has a later start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentProcess {
    pid: i32,
    start_ticks: u64,
}

impl AgentProcess {
    /// The process at the other end of a connection, if `/proc` shows it.
    pub(crate) fn of(peer: Peer) -> Option<Self> {
        let stat = std::fs::read(format!("/proc/{}/stat", peer.pid)).ok()?;
        // The name in parentheses may contain anything. The start is the 20th field after it.
        let end = stat.iter().rposition(|&byte| byte == b')')?;
        let fields = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
        let start_ticks = fields.split_ascii_whitespace().nth(19)?.parse().ok()?;
        Some(AgentProcess { pid: peer.pid, start_ticks })
    }
}

impl fmt::Display for AgentProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.pid, self.start_ticks)
    }
}

impl FromStr for AgentProcess {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (pid, start) = text.split_once(':').ok_or(())?;
        let (pid, start_ticks) = (pid.parse().map_err(drop)?, start.parse().map_err(drop)?);
        Ok(AgentProcess { pid, start_ticks })
    }
}

/// Whether `uid` stands for all users that this user namespace does not map.
pub(crate) fn is_hidden(uid: u32) -> bool {
    let overflow = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    // The first namespace maps everybody.
    let maps_all = map.split_ascii_whitespace().eq(["0", "0", "4294967295"]);
    !maps_all && overflow.is_ok_and(|text| text.trim().parse() == Ok(uid))
}
