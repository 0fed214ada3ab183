//! `forebay lab status`, `traffic` and `mark`: what is up, and what has passed the links since the
//! mark.
//!
//! Everything is asked of the kernel at that moment: processes, mounts, queues, counters. The
//! record only says what to ask for.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use super::kind::PfsKind;
use super::net::{self, Rates, Traffic};
use super::pfs;
use super::plan::{Node, Role, host_address};
use super::process::ProcessId;
use super::state::Record;
use super::{down, lock, space};
use crate::LabError;
use crate::quantity::show_bytes;

/// A lab as it is now.
#[derive(Debug, Serialize)]
pub struct Status {
    /// Name of the lab.
    pub lab: String,
    /// Where its files are.
    pub dir: PathBuf,
    /// Which file system.
    pub pfs: PfsKind,
    /// Bytes of a file that are on one server before the next follows; `None`: the file system's
    /// default.
    pub stripe_bytes: Option<u64>,
    /// Where it is mounted on every compute node.
    pub mount: PathBuf,
    /// The host's own address in the lab's network.
    pub host_address: Ipv4Addr,
    /// Where Spark programs connect to, if Spark is up.
    pub spark_master: Option<String>,
    /// The machines.
    pub nodes: Vec<NodeStatus>,
    /// Cores of each compute node; `None`: as many as the machine has.
    pub cpus: Option<f64>,
    /// Cores of each writer; `None`: as many as the machine has, or there are no writers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writer_cpus: Option<f64>,
    /// Cores of each server; `None`: as many as the machine has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_cpus: Option<f64>,
    /// Whether both directions of a server's link share its bandwidth.
    pub shared_links: bool,
    /// What the servers have sent, together, since the mark.
    pub servers_sent_bytes: u64,
    /// What the servers have received, together, since the mark.
    pub servers_received_bytes: u64,
    /// Processes in the lab that belong to no service: programs of `run`.
    pub other_processes: usize,
}

/// A machine of a lab.
#[derive(Debug, Serialize)]
pub struct NodeStatus {
    /// Host name.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Address in the lab's network.
    pub address: Ipv4Addr,
    /// Whether its namespaces are held.
    pub up: bool,
    /// Rates of its link, if it is a server.
    pub rates: Option<Rates>,
    /// What has passed its link since the mark.
    pub since_mark: Traffic,
    /// What has passed its link since it was made.
    pub total: Traffic,
    /// Whether the file system is mounted, if it should be.
    pub mounted: Option<bool>,
    /// What was started on it.
    pub services: Vec<ServiceStatus>,
}

/// A process of a lab.
#[derive(Debug, Serialize)]
pub struct ServiceStatus {
    /// Its name, and its log's.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Whether it runs.
    pub running: bool,
}

/// Looks at a lab.
///
/// # Errors
/// If it is not up, or cannot be looked at.
pub fn look(record: &Record) -> Result<Status, LabError> {
    let place = &record.place;
    let traffic = net::traffic(place)?;
    let rates = net::rates(place, &record.nodes)?;
    let mut nodes = Vec::new();
    for node in &record.nodes {
        let total = traffic.get(&node.name).copied().unwrap_or_default();
        let mark = record.mark.get(&node.name).copied().unwrap_or_default();
        let holder = record.holder(&node.name);
        let mounted = || Ok(pfs::is_mounted(place));
        nodes.push(NodeStatus {
            name: node.name.clone(),
            role: node.role,
            address: node.address,
            up: holder.is_ok(),
            rates: rates.get(&node.name).copied(),
            since_mark: total.since(mark),
            total,
            mounted: record
                .mounts_on(node.role)
                .then(|| holder.is_ok_and(|holder| space::inside(holder, mounted).unwrap_or(false))),
            services: services(record, &node.name),
        });
    }
    let sum = |bytes: fn(&Traffic) -> u64| {
        let servers = nodes.iter().filter(|node| node.role == Role::Server);
        servers.map(|node| bytes(&node.since_mark)).sum()
    };
    let cores = |role| {
        let there = record.nodes.iter().any(|node| node.role == role);
        record.millis_of(role).filter(|_| there).map(|millis| f64::from(millis) / 1e3)
    };
    Ok(Status {
        lab: place.name.clone(),
        dir: place.dir.clone(),
        pfs: record.pfs,
        stripe_bytes: record.stripe_bytes,
        mount: place.pfs(),
        host_address: host_address(record.subnet),
        spark_master: record.spark.as_ref().map(|spark| spark.master.clone()),
        cpus: cores(Role::Compute),
        writer_cpus: cores(Role::Writer),
        server_cpus: cores(Role::Server),
        shared_links: record.shared_links,
        servers_sent_bytes: sum(|traffic| traffic.sent_bytes),
        servers_received_bytes: sum(|traffic| traffic.received_bytes),
        other_processes: others(record),
        nodes,
    })
}

fn services(record: &Record, node: &str) -> Vec<ServiceStatus> {
    let here = record.services.iter().filter(|service| service.node == node);
    let status = here.map(|service| ServiceStatus {
        name: service.name.clone(),
        pid: service.process.pid,
        running: service.process.is_alive(),
    });
    status.collect()
}

fn others(record: &Record) -> usize {
    // Each service has a session of its own, which its children belong to as well.
    let known = |process: &ProcessId| {
        let session = process.session();
        record.services.iter().any(|service| Some(service.process.pid) == session)
            || record.holders.values().any(|holder| holder == process)
    };
    down::processes(&record.place.name).iter().filter(|process| !known(process)).count()
}

/// Prints the state of a lab.
///
/// # Errors
/// If it is not up, cannot be looked at, or cannot be printed.
pub fn print(lab: &str, json: bool) -> Result<(), LabError> {
    let status = look(&Record::of_running(lab)?)?;
    if json {
        return crate::print::print_json(&status);
    }
    match write(&mut io::stdout().lock(), &status) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(LabError::io("cannot write to stdout", e)),
        _ => Ok(()),
    }
}

/// Sets the counters of the links to zero, as `status` shows them.
///
/// # Errors
/// If the lab is not up.
pub fn mark(lab: &str) -> Result<(), LabError> {
    super::root::need_root("mark")?;
    let _lock = lock::lab(lab)?;
    let mut record = Record::of_running(lab)?;
    record.mark = net::traffic(&record.place)?;
    record.save()
}

/// Changes the rate of the servers' links, while everything runs; `None`: no limit.
///
/// # Errors
/// If the lab is not up, or if `tc` fails, with its message.
pub fn set_rate(lab: &str, bytes_per_s: Option<u64>) -> Result<(), LabError> {
    super::root::need_root("links")?;
    let _lock = lock::lab(lab)?;
    let mut record = Record::of_running(lab)?;
    record.rate_bytes_per_s = bytes_per_s;
    net::reshape(&record.place, &record.nodes, record.limit())?;
    record.save()
}

/// What has passed the links since the mark, at one moment.
#[derive(Debug, Serialize)]
struct TrafficLine {
    /// When, since 1970.
    unix_ns: u64,
    servers_sent_bytes: u64,
    servers_received_bytes: u64,
    nodes: BTreeMap<String, Traffic>,
}

/// Prints what has passed the links since the mark as one line of JSON; with `every_ns` repeatedly,
/// until nobody reads it or the lab is gone. Much cheaper than the whole status, so it can be
/// called often.
///
/// # Errors
/// If the lab is not up, or has gone.
pub fn traffic(lab: &str, every_ns: Option<u64>) -> Result<(), LabError> {
    super::root::need_root("traffic")?;
    let start = Instant::now();
    let mut lines = 0;
    loop {
        // Loaded again each time: another process may have set a mark.
        let line = traffic_line(&Record::of_running(lab)?)?;
        let text = serde_json::to_string(&line).map_err(|e| LabError::io("cannot write JSON", e))?;
        match writeln!(io::stdout(), "{text}") {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(|e| LabError::io("cannot write to stdout", e))?,
        }
        let Some(every_ns) = every_ns else { return Ok(()) };
        lines += 1;
        // From the start and not from now, so that delays do not add up.
        let next = start + Duration::from_nanos(every_ns.max(1_000_000)).saturating_mul(lines);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

fn traffic_line(record: &Record) -> Result<TrafficLine, LabError> {
    let total = net::traffic(&record.place)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since_mark = |node: &Node| {
        let mark = record.mark.get(&node.name).copied().unwrap_or_default();
        total.get(&node.name).copied().unwrap_or_default().since(mark)
    };
    let servers = || record.nodes.iter().filter(|node| node.role == Role::Server).map(since_mark);
    Ok(TrafficLine {
        unix_ns: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
        servers_sent_bytes: servers().map(|traffic| traffic.sent_bytes).sum(),
        servers_received_bytes: servers().map(|traffic| traffic.received_bytes).sum(),
        nodes: record.nodes.iter().map(|node| (node.name.clone(), since_mark(node))).collect(),
    })
}

fn write(out: &mut impl Write, status: &Status) -> io::Result<()> {
    writeln!(
        out,
        "lab {}: {} in {}, mounted on {}",
        status.lab,
        status.pfs.name(),
        status.dir.display(),
        status.mount.display()
    )?;
    if let Some(bytes) = status.stripe_bytes {
        writeln!(out, "files in shards of {}", show_bytes(bytes))?;
    }
    if let Some(cpus) = status.cpus {
        writeln!(out, "cores of each compute node: {cpus}")?;
    }
    if let Some(cpus) = status.writer_cpus {
        writeln!(out, "cores of each writer: {cpus}")?;
    }
    if let Some(cpus) = status.server_cpus {
        writeln!(out, "cores of each server: {cpus}")?;
    }
    if status.shared_links {
        writeln!(out, "both directions of a server's link share its bandwidth")?;
    }
    if let Some(master) = &status.spark_master {
        writeln!(out, "spark {master}")?;
    }
    writeln!(
        out,
        "\n{:<8} {:<15} {:<12} {:>10} {:>10}  runs",
        "node", "address", "link", "sent", "received"
    )?;
    for node in &status.nodes {
        writeln!(
            out,
            "{:<8} {:<15} {:<12} {:>10} {:>10}  {}",
            node.name,
            node.address,
            node.rates.as_ref().map_or_else(|| "-".to_owned(), show_rates),
            show_bytes(node.since_mark.sent_bytes),
            show_bytes(node.since_mark.received_bytes),
            what_runs(node)
        )?;
    }
    writeln!(
        out,
        "{:<8} {:<15} {:<12} {:>10} {:>10}  since `up` or `mark`",
        "servers",
        "",
        "",
        show_bytes(status.servers_sent_bytes),
        show_bytes(status.servers_received_bytes)
    )?;
    if status.other_processes > 0 {
        writeln!(out, "and {} other processes", status.other_processes)?;
    }
    Ok(())
}

fn show_rates(rates: &Rates) -> String {
    let show = |rate: Option<u64>| {
        rate.map_or_else(|| "unlimited".to_owned(), |rate| format!("{}/s", show_bytes(rate)))
    };
    if rates.both_bytes_per_s.is_some() {
        return format!("{} both", show(rates.both_bytes_per_s));
    }
    let (send, receive) = (show(rates.send_bytes_per_s), show(rates.receive_bytes_per_s));
    if send == receive { send } else { format!("{send}, {receive}") }
}

/// Describes in a few words what runs on a node; what should run and does not is in capitals.
fn what_runs(node: &NodeStatus) -> String {
    if !node.up {
        return "NODE IS GONE".to_owned();
    }
    let mut words = Vec::new();
    for service in &node.services {
        let name = short(&service.name, &node.name);
        match (service.running, node.mounted) {
            (false, _) => words.push(format!("{} HAS ENDED", name.to_uppercase())),
            (true, Some(false)) if name == "mount" => words.push("NOT MOUNTED".to_owned()),
            (true, _) => words.push(name.to_owned()),
        }
    }
    words.join(", ")
}

/// A service's name without the node's.
fn short<'a>(service: &'a str, node: &str) -> &'a str {
    service.strip_suffix(node).and_then(|name| name.strip_suffix('-')).unwrap_or(service)
}
