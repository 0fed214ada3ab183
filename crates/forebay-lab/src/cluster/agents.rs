//! Forebay on the nodes: an agent on each compute node. All that the lab knows of Forebay is here.
//!
//! The lab knows Forebay as its users do, by command line and configuration file.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::plan::Role;
use super::service::Raising;
use super::state::Record;
use crate::LabError;

/// Longest wait for an agent: it may have to make a tmpfs of huge pages first.
const PATIENCE: Duration = Duration::from_secs(60);

/// Label of the file system on every agent.
pub const LABEL: &str = "pfs";

/// Starts an agent on each compute node and waits until all of them listen.
///
/// # Errors
/// What did not come up.
pub fn start(lab: &mut Raising) -> Result<(), LabError> {
    let Some(capacity_bytes) = lab.record.agent_capacity_bytes else { return Ok(()) };
    let nodes = lab.names(Role::Compute);
    for node in &nodes {
        let file = lab.record.place.own_files(node).join("agent.toml");
        let text = configuration(&lab.record, capacity_bytes);
        fs::write(&file, text).map_err(|e| LabError::io(format!("cannot write {}", file.display()), e))?;
        let mut command = Command::new(&lab.record.program);
        command.args(["up", "--foreground", "--config"]).arg(lab.record.place.own().join("agent.toml"));
        command.env_remove("FOREBAY_SOCKET").env_remove("FOREBAY_CONFIG").current_dir("/");
        lab.start(node, &service(node), command)?;
    }
    for node in &nodes {
        let socket = lab.record.place.own_files(node).join("agent/agent.sock");
        lab.wait_for(&service(node), PATIENCE, || accepts(&socket))?;
    }
    Ok(())
}

/// Name of the service that is a node's agent.
pub fn service(node: &str) -> String {
    format!("agent-{node}")
}

/// Whether an agent listens on its socket, which is one of packets.
fn accepts(path: &Path) -> bool {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let address = SocketAddrUnix::new(path);
    matches!((socket, address), (Ok(socket), Ok(address)) if connect(&socket, &address).is_ok())
}

fn configuration(record: &Record, capacity_bytes: u64) -> String {
    let place = &record.place;
    format!(
        "[agent]\nstate_dir = \"{}\"\n\n[tier]\ncapacity = \"{capacity_bytes}\"\n\n[[mount]]\nlabel = \"{LABEL}\"\n\
         root = \"{}\"\nstamp_granularity_ms = {}\n",
        place.own().join("agent").display(),
        place.pfs().display(),
        record.pfs.stamp_granularity_ms()
    )
}
