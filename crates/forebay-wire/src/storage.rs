//! On which hosts the storage servers of a PFS run, by the names that schedulers know.
//!
//! A PFS reports its servers in its own words: `10.77.0.14:9422`, `pfs-s2:/data/brick`, `OST0003`.
//! The table `cluster.storage_hosts` translates them. A server on whose host an agent runs needs no
//! entry: the server's name contains the name or the address of that host.

use crate::cluster::NodeInfo;
use forebay_pfs::layout::machine;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// The table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageHosts(
    /// Server and host.
    #[serde(deserialize_with = "crate::counted::sequence")]
    pub Vec<(String, String)>,
);

impl StorageHosts {
    /// The host of the storage server that its PFS calls `server`; `None` if it is not known.
    pub fn host_of<'a>(&'a self, server: &str, nodes: &'a [NodeInfo]) -> Option<&'a str> {
        let machine = machine(server);
        let listed = |name: &str| self.0.iter().find(|(of, _)| of == name).map(|(_, host)| host.as_str());
        listed(server).or_else(|| listed(machine)).or_else(|| {
            let node = nodes.iter().find(|node| is_on(node, machine))?;
            Some(node.host.as_str())
        })
    }
}

/// Whether the machine called `machine` is the node.
fn is_on(node: &NodeInfo, machine: &str) -> bool {
    let has_address = || {
        let address: Option<SocketAddr> = node.address.parse().ok();
        address.is_some_and(|address| machine.parse() == Ok(address.ip()) && !address.ip().is_loopback())
    };
    node.host == machine || node.name == machine || has_address()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, host: &str, address: &str) -> NodeInfo {
        NodeInfo { name: name.into(), host: host.into(), address: address.into(), ..NodeInfo::default() }
    }

    #[test]
    fn servers_are_hosts_of_the_table_or_nodes_with_that_name_or_address() {
        let nodes =
            [node("n1", "pfs-s1", "10.77.0.11:7851"), node("n2", "h2", ""), node("c1", "c1", "127.0.0.1:9")];
        let table = StorageHosts(vec![
            ("OST0003".into(), "oss2".into()),
            ("10.77.0.14".into(), "s4".into()),
            ("pfs-s1:/other".into(), "elsewhere".into()),
        ]);
        let host = |server: &str| table.host_of(server, &nodes);
        assert_eq!(host("OST0003"), Some("oss2"));
        assert_eq!(host("10.77.0.14:9422"), Some("s4"));
        assert_eq!(host("10.77.0.11:9422"), Some("pfs-s1"));
        assert_eq!((host("pfs-s1:/brick"), host("pfs-s1:/other")), (Some("pfs-s1"), Some("elsewhere")));
        assert_eq!(host("n2:/brick"), Some("h2"));
        for unknown in ["OST0004", "10.77.0.1:9422", "127.0.0.1:1", "", "pfs-s11:/brick"] {
            assert_eq!(host(unknown), None, "{unknown}");
        }
    }
}
