//! The record of a lab, `/run/forebay-lab/LAB.json`.
//!
//! The record is written before anything is made and again after each step, so that a command that
//! runs after a crash knows more than the kernel reports: where the files are, and what each
//! process was for. `/run` is emptied at boot, as are the namespaces. The record is a help and not
//! the truth: `down` works without it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::cpu;
use super::kind::PfsKind;
use super::lock::{self, Lock, RECORDS};
use super::net::{Limit, Traffic};
use super::plan::{self, Node, Place, Role};
use super::process::ProcessId;
use crate::LabError;

/// A process of a lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Name, such as `agent-c1`; its log has this name as well.
    pub name: String,
    /// Where it runs.
    pub node: String,
    /// Which process it is.
    pub process: ProcessId,
}

/// Forebay of a lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentsRecord {
    /// The program.
    pub program: PathBuf,
    /// Memory of each agent.
    pub capacity_bytes: u64,
    /// Unit of placement; `None`: Forebay's default.
    pub extent_bytes: Option<u64>,
    /// The coordinator's profile of the file system.
    #[serde(default)]
    pub profile: Option<PathBuf>,
    /// Cores and bytes of memory of each storage server for `forebay ship`, if it may use them.
    #[serde(default)]
    pub ship: Option<(usize, u64)>,
}

/// Spark of a lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SparkRecord {
    /// `SPARK_HOME`.
    pub home: PathBuf,
    /// The virtual environment it comes from.
    pub venv: PathBuf,
    /// Such as `spark://head:7077`.
    pub master: String,
    /// Cores of each worker.
    pub cores: usize,
    /// Memory of each worker in MiB.
    pub memory_mib: u64,
}

/// All that is known about a lab.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Name and directory.
    pub place: Place,
    /// Whether `up` has completed.
    pub ready: bool,
    /// Third number of the lab's addresses.
    pub subnet: u8,
    /// The file system.
    pub pfs: PfsKind,
    /// Bytes of a file that are on one server before the next follows; `None`: the file system's
    /// default.
    #[serde(default)]
    pub stripe_bytes: Option<u64>,
    /// Storage of each server.
    #[serde(default)]
    pub store_bytes: u64,
    /// Whether the storage servers mount the file system too and are configured for `forebay ship`.
    #[serde(default)]
    pub ship: bool,
    /// Bandwidth of each server's link, each way unless it is shared; `None`: not limited.
    pub rate_bytes_per_s: Option<u64>,
    /// Whether both directions of a server's link share the bandwidth.
    #[serde(default)]
    pub shared_links: bool,
    /// Thousandths of a core that each compute node has; `None`: not limited.
    pub cpu_millis: Option<u32>,
    /// Thousandths of a core that each writer has; `None`: not limited.
    #[serde(default)]
    pub writer_cpu_millis: Option<u32>,
    /// Thousandths of a core that each server has; `None`: not limited.
    #[serde(default)]
    pub server_cpu_millis: Option<u32>,
    /// The machines.
    pub nodes: Vec<Node>,
    /// The processes that hold their namespaces, by name of the node.
    pub holders: BTreeMap<String, ProcessId>,
    /// What was started on them.
    pub services: Vec<Service>,
    /// What agents are started with; `None`: no agents.
    pub agents: Option<AgentsRecord>,
    /// Spark, if it is up.
    pub spark: Option<SparkRecord>,
    /// The counters of the links when they were last set to zero, by node.
    pub mark: BTreeMap<String, Traffic>,
}

impl Record {
    /// The node of this name.
    ///
    /// # Errors
    /// If there is none, with the names of the existing ones.
    pub fn node(&self, name: &str) -> Result<&Node, LabError> {
        self.nodes.iter().find(|node| node.name == name).ok_or_else(|| {
            let names: Vec<_> = self.nodes.iter().map(|node| node.name.as_str()).collect();
            LabError::new(format!(
                "lab `{}` has no node `{name}`: there are {}",
                self.place.name,
                names.join(", ")
            ))
        })
    }

    /// The process that holds a node's namespaces.
    ///
    /// # Errors
    /// If the node does not exist, or not any more.
    pub fn holder(&self, node: &str) -> Result<ProcessId, LabError> {
        self.node(node)?;
        self.holders.get(node).copied().filter(|holder| holder.is_alive()).ok_or_else(|| {
            LabError::new(format!(
                "node {node} of lab `{}` is gone; `forebay lab down` clears what is left",
                self.place.name
            ))
        })
    }

    /// Whether nodes of this role mount the file system and are configured for an agent.
    pub fn mounts_on(&self, role: Role) -> bool {
        role.is_client() || self.ship && role == Role::Server
    }

    /// How the servers' links are limited.
    pub fn limit(&self) -> Limit {
        Limit { rate_bytes_per_s: self.rate_bytes_per_s, shared: self.shared_links }
    }

    /// Thousandths of a core that nodes of a role have; `None`: not limited.
    pub fn millis_of(&self, role: Role) -> Option<u32> {
        match role {
            Role::Compute => self.cpu_millis,
            Role::Writer => self.writer_cpu_millis,
            Role::Server => self.server_cpu_millis,
            Role::Head => None,
        }
    }

    /// Opens the entrance to the control group of a node, see [`cpu`]; `None` if its cores are not
    /// limited.
    ///
    /// # Errors
    /// If there is no such node, or its group is gone.
    pub fn cpu_door(&self, node: &str) -> Result<Option<File>, LabError> {
        let limited = self.millis_of(self.node(node)?.role).is_some();
        limited.then(|| cpu::door(&self.place.name, node)).transpose()
    }

    /// Writes the record, completely or not at all.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self) -> Result<(), LabError> {
        let path = path(&self.place.name);
        let failed = |e: io::Error| LabError::io(format!("cannot write {}", path.display()), e);
        let text = serde_json::to_vec_pretty(self).map_err(|e| failed(e.into()))?;
        let beside = path.with_extension("json.new");
        fs::write(&beside, text).and_then(|()| fs::rename(&beside, &path)).map_err(failed)
    }

    /// Reads the record of a lab that is up.
    ///
    /// # Errors
    /// If there is none, or if `up` has not completed.
    pub fn of_running(lab: &str) -> Result<Self, LabError> {
        plan::check_name(lab)?;
        let record = load(lab)?.ok_or_else(|| {
            LabError::new(format!("no lab `{lab}` is up; `forebay lab up --name {lab}` starts it"))
        })?;
        if !record.ready {
            return Err(LabError::new(format!(
                "lab `{lab}` is not complete: `forebay lab up` is still at work or was cut short; `forebay lab down --name \
                 {lab}` clears it"
            )));
        }
        Ok(record)
    }
}

/// Where the record of a lab is.
pub fn path(lab: &str) -> PathBuf {
    Path::new(RECORDS).join(format!("{lab}.json"))
}

/// The record of a lab; `None` if there is none.
///
/// # Errors
/// If it cannot be read or understood.
pub fn load(lab: &str) -> Result<Option<Record>, LabError> {
    let path = path(lab);
    let failed = |e: io::Error| LabError::io(format!("cannot read {}", path.display()), e);
    match fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|e| failed(e.into())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed(e)),
    }
}

/// Removes the record and what a crash may have left next to it.
///
/// # Errors
/// If it cannot be removed.
pub fn remove(lab: &str) -> Result<(), LabError> {
    for path in [path(lab), path(lab).with_extension("json.new")] {
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(LabError::io(format!("cannot remove {}", path.display()), e));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The lowest number for the addresses of a new lab that neither another lab nor the host uses. The
/// answer is valid while the returned lock is held; by the time it is released, the new lab's
/// record should have been saved.
///
/// # Errors
/// If the records cannot be read, or if all numbers are taken.
pub fn free_subnet() -> Result<(u8, Lock), LabError> {
    let lock = lock::subnets()?;
    let failed = |e| LabError::io(format!("cannot read {RECORDS}"), e);
    let mut taken = Vec::new();
    for entry in fs::read_dir(RECORDS).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        // A record that cannot be understood is of another version, and its addresses are among the
        // host's routes.
        if path.extension().is_some_and(|e| e == "json")
            && let Ok(record) = serde_json::from_slice::<Record>(&fs::read(&path).unwrap_or_default())
        {
            taken.push(record.subnet);
        }
    }
    let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
    taken.extend(subnets_in_use(&routes));
    let free = (0..=u8::MAX).find(|subnet| !taken.contains(subnet));
    let free =
        free.ok_or_else(|| LabError::new("all of 10.77.0.0/16 is in use; no lab can have addresses"))?;
    Ok((free, lock))
}

/// Third numbers of the routes below 10.77. Routes are written as the bytes of the address, in the
/// order of memory.
fn subnets_in_use(routes: &str) -> Vec<u8> {
    let destination = |line: &str| u32::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    let addresses = routes.lines().skip(1).filter_map(destination).map(u32::to_ne_bytes);
    addresses.filter(|bytes| bytes[..2] == [10, 77]).map(|bytes| bytes[2]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_of_the_host_are_avoided() {
        let hex = |bytes: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(bytes));
        let routes = format!(
            "Iface\tDestination\tGateway\nfb-x\t{}\t0\neth0\t{}\t0\neth0\t00000000\t0\n",
            hex([10, 77, 3, 0]),
            hex([10, 78, 4, 0])
        );
        assert_eq!(subnets_in_use(&routes), [3]);
    }
}
