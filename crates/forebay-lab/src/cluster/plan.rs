//! Names, addresses and paths of a lab. Pure: nothing here looks at the machine.
//!
//! Everything a lab makes is named after it, so that several can be up at the same time and each
//! can be found again.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::LabError;

/// Beginning of the name of every network namespace of every lab.
pub const PREFIX: &str = "forebay-";

/// The node that metadata server, coordinator and Spark master run on.
pub const HEAD: &str = "head";

/// The namespace with the bridge; it is not a node, for nothing runs in it.
pub const SWITCH: &str = "switch";

/// Most servers: their addresses are between the head's and the compute nodes'.
pub const SERVERS_MAX: usize = 32;

/// Most compute nodes: more than one machine can carry anyway.
pub const COMPUTE_MAX: usize = 64;

/// Most writers: their addresses follow those of the compute nodes.
pub const WRITERS_MAX: usize = 32;

/// What a node is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Metadata server, coordinator, Spark master.
    Head,
    /// A storage server of the file system, behind a shaped link.
    Server,
    /// A client of the file system, with an agent and a Spark worker.
    Compute,
    /// A client of the file system, with an agent but without Spark: for HPC jobs next to it.
    Writer,
}

impl Role {
    /// Whether nodes of this role mount the file system and have an agent.
    pub fn is_client(self) -> bool {
        matches!(self, Self::Compute | Self::Writer)
    }
}

/// One machine of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Host name.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Address in the lab's own network.
    pub address: Ipv4Addr,
}

/// A lab's name and directory, from which all other names follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Name of the lab.
    pub name: String,
    /// Where its files are.
    pub dir: PathBuf,
}

impl Place {
    /// A place with the default directory unless one is given.
    ///
    /// # Errors
    /// If the name would not fit into the names that the kernel takes, or if the directory is not
    /// absolute or too long.
    pub fn new(name: &str, dir: Option<&Path>) -> Result<Self, LabError> {
        check_name(name)?;
        let dir = dir.map_or_else(|| default_dir(name), Path::to_owned);
        // Without a slash at the end: the name of a link with one is the directory that it leads
        // to.
        let dir: PathBuf = dir.components().collect();
        // Paths of Unix sockets end at 107 bytes, and the agent's is some way below.
        if !dir.is_absolute() || dir.as_os_str().len() > 70 {
            return Err(LabError::new(format!(
                "the lab's directory {} must be an absolute path of at most 70 bytes",
                dir.display()
            )));
        }
        if dir.to_str().is_none_or(|text| text.contains(|c: char| c.is_whitespace() || "\"\\,".contains(c))) {
            return Err(LabError::new(format!(
                "the lab's directory {} must be plain text without blanks, quotes, commas and backslashes: it is \
                 written into the configuration files of other programs",
                dir.display()
            )));
        }
        Ok(Self { name: name.to_owned(), dir })
    }

    /// Beginning of the names of this lab's network namespaces.
    pub fn prefix(&self) -> String {
        prefix(&self.name)
    }

    /// Name of a node's network namespace, as `ip netns` shows it.
    pub fn namespace(&self, node: &str) -> String {
        format!("{}{node}", self.prefix())
    }

    /// Name of the link through which the host reaches the lab.
    pub fn host_link(&self) -> String {
        host_link(&self.name)
    }

    /// Where the file system is mounted, the same on every compute node.
    pub fn pfs(&self) -> PathBuf {
        self.dir.join("pfs")
    }

    /// A directory which is each node's own: on every node, [`Place::own_files`] is bound here.
    pub fn own(&self) -> PathBuf {
        self.dir.join("node")
    }

    /// What a node finds at [`Place::own`], as the host sees it.
    pub fn own_files(&self, node: &str) -> PathBuf {
        self.dir.join("nodes").join(node)
    }

    /// Where an agent listens, seen from its node.
    pub fn agent_socket(&self) -> PathBuf {
        self.own().join("agent/agent.sock")
    }

    /// Where a server keeps its files.
    pub fn server_files(&self, server: &str) -> PathBuf {
        self.dir.join("servers").join(server)
    }

    /// Where a server's data is: a file system of a fixed size, which only that node sees.
    pub fn store(&self, server: &str) -> PathBuf {
        self.server_files(server).join("store")
    }

    /// The table of names that every node has as its `/etc/hosts`.
    pub fn hosts_file(&self) -> PathBuf {
        self.dir.join("hosts")
    }

    /// Where a service writes its output.
    pub fn log(&self, service: &str) -> PathBuf {
        self.dir.join("log").join(format!("{service}.log"))
    }

    /// The file that marks this directory as a lab's, which may be deleted with all that is in it.
    pub fn marker(&self) -> PathBuf {
        self.dir.join(".forebay-lab")
    }
}

/// Beginning of the names of a lab's network namespaces.
pub fn prefix(lab: &str) -> String {
    format!("{PREFIX}{lab}-")
}

/// Name of the link through which the host reaches a lab; the kernel allows 15 bytes.
pub fn host_link(lab: &str) -> String {
    format!("fb-{lab}")
}

/// In memory, where storage is never what one waits for: the links are meant to be the only limit.
pub fn default_dir(lab: &str) -> PathBuf {
    PathBuf::from(format!("/dev/shm/forebay-{lab}"))
}

/// # Errors
/// If `name` is not one to ten of `a-z0-9`: it becomes part of names of links, which are short, and
/// a hyphen in it would make one lab's names begin like another's.
pub fn check_name(name: &str) -> Result<(), LabError> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if (1..=10).contains(&name.len()) && name.chars().all(good) {
        return Ok(());
    }
    Err(LabError::new(format!("a lab cannot be named `{name}`: take one to ten of a-z and 0-9")))
}

/// All nodes of a lab: head, servers, compute nodes, writers.
///
/// # Errors
/// If a number of nodes is out of range.
pub fn nodes(subnet: u8, servers: usize, compute: usize, writers: usize) -> Result<Vec<Node>, LabError> {
    for (what, count, most) in [("--servers", servers, SERVERS_MAX), ("--nodes", compute, COMPUTE_MAX)] {
        if !(1..=most).contains(&count) {
            return Err(LabError::new(format!("{what} {count}: a lab has from 1 to {most}")));
        }
    }
    if writers > WRITERS_MAX {
        return Err(LabError::new(format!("--writers {writers}: a lab has at most {WRITERS_MAX}")));
    }
    let node = |name: String, role, last: usize| Node {
        name,
        role,
        // Below 256: 100 + COMPUTE_MAX + WRITERS_MAX is.
        address: Ipv4Addr::new(10, 77, subnet, last as u8),
    };
    let mut nodes = vec![node(HEAD.to_owned(), Role::Head, 2)];
    nodes.extend((1..=servers).map(|i| node(format!("pfs-s{i}"), Role::Server, 10 + i)));
    nodes.extend((1..=compute).map(|i| node(format!("c{i}"), Role::Compute, 100 + i)));
    nodes.extend((1..=writers).map(|i| node(format!("w{i}"), Role::Writer, 100 + COMPUTE_MAX + i)));
    Ok(nodes)
}

/// The host's own address in a lab's network.
pub fn host_address(subnet: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, subnet, 1)
}

/// The names of a lab, as `/etc/hosts` has them.
pub fn hosts(subnet: u8, nodes: &[Node]) -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost ip6-localhost\n");
    text += &format!("{} lab-host\n", host_address(subnet));
    for node in nodes {
        text += &format!("{} {}\n", node.address, node.name);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_into_what_the_kernel_takes_and_no_lab_is_part_of_another() {
        assert!(Place::new("abcdefghij", None).unwrap().host_link().len() <= 15);
        for bad in ["", "abcdefghijk", "a-b", "A", "a b", "ä", "../x"] {
            assert!(Place::new(bad, None).is_err(), "{bad}");
        }
        let (one, other) = (Place::new("a", None).unwrap(), Place::new("a1", None).unwrap());
        assert!(!other.namespace("c1").starts_with(&one.prefix()));
    }

    #[test]
    fn directories_that_would_break_configuration_files_are_refused() {
        for bad in ["relative", "/with blank", "/with\"quote", "/with,comma"] {
            assert!(Place::new("lab", Some(Path::new(bad))).is_err(), "{bad}");
        }
        assert!(Place::new("lab", Some(Path::new(&format!("/{}", "x".repeat(80))))).is_err());
        assert_eq!(Place::new("lab", Some(Path::new("/x"))).unwrap().pfs(), Path::new("/x/pfs"));
        assert_eq!(Place::new("lab", Some(Path::new("/x//y/"))).unwrap().dir.as_os_str(), "/x/y");
    }

    #[test]
    fn every_node_has_an_address_and_a_name_of_its_own() {
        let nodes = nodes(7, SERVERS_MAX, COMPUTE_MAX, WRITERS_MAX).unwrap();
        assert_eq!(nodes.len(), 1 + SERVERS_MAX + COMPUTE_MAX + WRITERS_MAX);
        for (i, node) in nodes.iter().enumerate() {
            assert_ne!(node.address, host_address(7));
            assert!(nodes[..i].iter().all(|n| n.address != node.address && n.name != node.name));
        }
        let hosts = hosts(7, &nodes);
        assert!(hosts.contains("10.77.7.101 c1\n") && hosts.contains("10.77.7.11 pfs-s1\n"), "{hosts}");
        assert!(super::nodes(0, 0, 1, 0).is_err() && super::nodes(0, 1, COMPUTE_MAX + 1, 0).is_err());
        assert!(super::nodes(0, 1, 1, WRITERS_MAX + 1).is_err());
    }
}
