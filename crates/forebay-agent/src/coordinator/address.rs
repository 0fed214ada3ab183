//! Where the coordinator is.

use forebay_wire::link::{Security, Stream};
use std::fmt;
use std::io;
use std::time::Instant;

/// Bytes sent and not acknowledged by the coordinator's machine end the connection after this time.
/// Without it a machine that has vanished would be noticed after a quarter of an hour.
const UNACKNOWLEDGED_MS: u32 = 5000;

/// A way to the coordinator of this very process.
pub type Connect = dyn Fn() -> io::Result<Stream> + Send + Sync;

/// Where the coordinator is.
pub enum CoordinatorAddress {
    /// In this process.
    Local(Box<Connect>),
    /// At `HOST:PORT`.
    Remote(String, Security),
}

impl fmt::Debug for CoordinatorAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CoordinatorAddress::Local(_) => "Local",
            CoordinatorAddress::Remote(address, _) => address,
        })
    }
}

impl CoordinatorAddress {
    /// Connects.
    ///
    /// # Errors
    /// It is not there.
    pub(super) fn connect(&self, deadline: Instant) -> io::Result<Stream> {
        match self {
            CoordinatorAddress::Local(connect) => connect(),
            CoordinatorAddress::Remote(address, security) => {
                let stream = security.connect(address, deadline)?;
                rustix::net::sockopt::set_tcp_user_timeout(stream.socket(), UNACKNOWLEDGED_MS)?;
                Ok(stream)
            }
        }
    }
}
