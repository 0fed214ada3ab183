//! Forebay on the nodes: a coordinator on the head and an agent on each client of the PFS, which
//! authenticate each other by certificates. All that the lab knows about Forebay is here.
//!
//! The lab knows Forebay as its users do, by command line and configuration file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::kind::PfsKind;
use super::plan::{HEAD, Node, Role};
use super::service::Raising;
use super::space;
use super::state::{AgentsRecord, Record};
use crate::LabError;

/// Longest wait for an agent or the coordinator.
const PATIENCE: Duration = Duration::from_secs(60);

/// Label of the file system on every agent.
pub const LABEL: &str = "pfs";

/// The coordinator's service.
const COORDINATOR: &str = "coordinator";

/// Twice the default: with files on one server each, half of the pending reads are at servers that
/// others also wait for.
const FETCH_THREADS: usize = 16;

/// Capacity of a writer's agent, which serves the phases of HPC jobs: it should own hardly any
/// extents.
const WRITER_CAPACITY_BYTES: u64 = 64 << 20;

const COORDINATOR_PORT: u16 = 7850;
const PEER_PORT: u16 = 7851;

/// Starts the coordinator and an agent on each client of the PFS, and waits until each agent
/// knows all members.
///
/// # Errors
/// If something does not come up.
pub fn start(lab: &mut Raising) -> Result<(), LabError> {
    let Some(agents) = lab.record.agents.clone() else { return Ok(()) };
    make_certificates(&lab.record, &agents)?;
    let config = write(&lab.record, HEAD, &coordinator_configuration(&lab.record, &agents)?)?;
    lab.start(HEAD, COORDINATOR, forebay(&agents, &["coordinator", "--config"], &config))?;
    let nodes = lab.clients();
    for node in &nodes {
        let text = agent_configuration(&lab.record, lab.record.node(node)?, &agents)?;
        let config = write(&lab.record, node, &text)?;
        lab.start(node, &service(node), forebay(&agents, &["agent", "--config"], &config))?;
    }
    // On storage servers `forebay ship` starts agents, with this configuration.
    for node in lab.mounting().iter().filter(|node| !nodes.contains(node)) {
        let text = agent_configuration(&lab.record, lab.record.node(node)?, &agents)?;
        write(&lab.record, node, &text)?;
    }
    for node in &nodes {
        let socket = lab.record.place.own_files(node).join("agent/agent.sock");
        lab.wait_for(&service(node), PATIENCE, || accepts(&socket))?;
    }
    await_members(lab, &agents, &nodes)
}

/// Name of the service that is a node's agent.
pub fn service(node: &str) -> String {
    format!("agent-{node}")
}

fn forebay(agents: &AgentsRecord, arguments: &[&str], config: &Path) -> Command {
    let mut command = Command::new(&agents.program);
    command.args(arguments).arg(config).current_dir("/");
    command.env_remove("FOREBAY_SOCKET").env_remove("FOREBAY_CONFIG");
    command
}

/// One authority for the lab, and a certificate for each node that runs something of Forebay.
fn make_certificates(record: &Record, agents: &AgentsRecord) -> Result<(), LabError> {
    let mut command = Command::new(&agents.program);
    command.arg("init").arg(authority(record)).args(["--cluster", &format!("lab {}", record.place.name)]);
    command.args(["--coordinator", &format!("{HEAD}:{COORDINATOR_PORT}")]);
    for node in record.nodes.iter().filter(|node| node.role == Role::Head || record.mounts_on(node.role)) {
        command.args(["--node", &format!("{}={}:{PEER_PORT}", node.name, node.address)]);
    }
    let failed = |e| LabError::io(format!("cannot run {}", agents.program.display()), e);
    let output = command.stdin(Stdio::null()).output().map_err(failed)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(LabError::new(format!("no certificates for the lab's nodes: {}", said.trim())))
}

fn authority(record: &Record) -> PathBuf {
    record.place.dir.join("certificates")
}

/// Writes a node's configuration; returns the path under which the node knows it.
fn write(record: &Record, node: &str, text: &str) -> Result<PathBuf, LabError> {
    let file = record.place.own_files(node).join("forebay.toml");
    fs::write(&file, text).map_err(|e| LabError::io(format!("cannot write {}", file.display()), e))?;
    Ok(record.place.own().join("forebay.toml"))
}

fn coordinator_configuration(record: &Record, agents: &AgentsRecord) -> Result<String, LabError> {
    let mut text = format!(
        "[cluster]\ncoordinator_listen = \"{}:{COORDINATOR_PORT}\"\nnode = \"{HEAD}\"\ntls = \"{}\"\ndecision_log = \"{}\"\n",
        record.node(HEAD)?.address,
        authority(record).join(HEAD).display(),
        record.place.own().join("decisions").display()
    );
    if let Some(profile) = &agents.profile {
        text += &format!("profile = \"{}\"\n", profile.display());
    }
    Ok(text)
}

fn agent_configuration(record: &Record, node: &Node, agents: &AgentsRecord) -> Result<String, LabError> {
    let place = &record.place;
    let name = &node.name;
    let (capacity_bytes, role) = match node.role {
        Role::Writer => (agents.capacity_bytes.min(WRITER_CAPACITY_BYTES), "dedicated"),
        _ => (agents.capacity_bytes, "co-located"),
    };
    let mut text = format!(
        "[agent]\nstate_dir = \"{}\"\ndecision_log = \"{}\"\n\n[tier]\ncapacity = \"{}\"\n\n",
        place.own().join("agent").display(),
        place.own().join("decisions").display(),
        capacity_bytes
    );
    text += &format!(
        "[cluster]\ncoordinator = \"{}:{COORDINATOR_PORT}\"\nlisten = \"{}:{PEER_PORT}\"\nnode = \"{name}\"\nhost = \"{name}\"\n\
         role = \"{role}\"\ntls = \"{}\"\n{}\n",
        record.node(HEAD)?.address,
        node.address,
        authority(record).join(name).display(),
        storage_hosts(record)
    );
    if let Some(limits) = agents.ship {
        text += &ship_configuration(record, agents, limits);
    }
    // The default on MooseFS is 30 s, for long overwrites in place. The lab's programs make none
    // that take longer than 3 s.
    text += &format!(
        "[[mount]]\nlabel = \"{LABEL}\"\nroot = \"{}\"\nstamp_granularity_ms = {}\nsettle_ms = 3000\n\
         fetch_threads = {FETCH_THREADS}\n",
        place.pfs().display(),
        record.pfs.stamp_granularity_ms()
    );
    if let Some(bytes) = agents.extent_bytes {
        text += &format!("extent_size = \"{bytes}\"\n");
    }
    if record.pfs == PfsKind::Glusterfs && record.stripe_bytes.is_some() {
        // It reports the first piece only, as if all of the file were there.
        text += "layout = false\n";
    }
    Ok(text)
}

/// The storage servers by the names that the file systems have for them: their addresses, or their
/// host names.
fn storage_hosts(record: &Record) -> String {
    if !record.ship {
        return String::new();
    }
    let servers = record.nodes.iter().filter(|node| node.role == Role::Server);
    let pairs: Vec<String> =
        servers.map(|n| format!("\"{}={}\", \"{}={}\"", n.address, n.name, n.name, n.name)).collect();
    format!("storage_hosts = [{}]\n", pairs.join(", "))
}

/// What `forebay ship` may do. All of the lab runs as root.
fn ship_configuration(record: &Record, agents: &AgentsRecord, (cores, memory_bytes): (usize, u64)) -> String {
    let servers = record.nodes.iter().filter(|node| node.role == Role::Server);
    let names: Vec<String> = servers.map(|node| format!("\"{}\"", node.name)).collect();
    format!(
        "[ship]\nhosts = [{}]\nlaunch = \"{} lab run --name {} --node {{host}} -- {{command}}\"\ncores = {cores}.0\n\
         floor = \"50%\"\n\
         memory = \"{memory_bytes}\"\nuser = \"root\"\nwork_dir = \"{}\"\n\n",
        names.join(", "),
        agents.program.display(),
        record.place.name,
        record.place.own().join("ship").display()
    )
}

/// Waits until every agent sees as many members as there are; it learns of them from the
/// coordinator.
fn await_members(lab: &mut Raising, agents: &AgentsRecord, nodes: &[String]) -> Result<(), LabError> {
    for node in nodes {
        let holder = lab.record.holder(node)?;
        let socket = lab.record.place.agent_socket();
        let all = || {
            let mut status = Command::new(&agents.program);
            status.args(["status", "--json"]).env("FOREBAY_SOCKET", &socket).stdin(Stdio::null());
            let failed = |e| LabError::io("cannot ask the agent", e);
            let output = space::inside(holder, || status.output().map_err(failed));
            output.is_ok_and(|output| members(&output.stdout) == Some(nodes.len()))
        };
        lab.wait_for(&service(node), PATIENCE, all)?;
    }
    Ok(())
}

/// How many members an agent's status names.
fn members(status: &[u8]) -> Option<usize> {
    let status: serde_json::Value = serde_json::from_slice(status).ok()?;
    Some(status.get("cluster")?.get("view")?.get("nodes")?.as_array()?.len())
}

/// Whether an agent listens on its socket, a `SOCK_SEQPACKET` one.
fn accepts(path: &Path) -> bool {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let address = SocketAddrUnix::new(path);
    matches!((socket, address), (Ok(socket), Ok(address)) if connect(&socket, &address).is_ok())
}
