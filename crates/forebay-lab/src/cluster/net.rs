//! Bridge, links, rates and counters, with `ip` and `tc` from iproute2.
//!
//! Every node has one link to the bridge. A server's link is shaped at both ends with a token
//! bucket (`tbf`), since a queue can only shape what leaves it: the server's end limits what it
//! sends, the bridge's end what it receives. Frames have 9000 bytes, as in storage networks: less
//! work for two cores, and 99 % of the rate is payload.
//!
//! A *shared* link has one bandwidth for both directions, so that what a server sends slows down
//! what it receives, like storage for which all requests of a server wait. The bridge's end then
//! passes the frames of both directions to one `ifb` device, and both wait in its token bucket.
//! That device is in the bridge's namespace and disappears with it.
//!
//! Traffic on a link is counted at the bridge's end, so one look into one namespace shows all, and
//! the figures of a server survive its death.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Output, Stdio};

use serde::{Deserialize, Serialize};

use super::packages;
use super::plan::{self, Node, Place, Role, SWITCH};
use super::space::inside_net;
use crate::LabError;

const MTU_BYTES: u32 = 9000;

/// How much may leave in one burst. A frame may hold 64 KiB before it is segmented, and the
/// kernel's timer needs some slack.
const BURST_BYTES: u64 = 256 << 10;

/// Prefix of the names of the devices that shape shared links.
const SHARED: &str = "ifb-";

/// How the servers' links are limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Bandwidth in bytes per second; `None`: not limited.
    pub rate_bytes_per_s: Option<u64>,
    /// Whether both directions share it; otherwise each direction has this bandwidth.
    pub shared: bool,
}

/// What passed a node's link, in bytes, headers included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// From the node.
    pub sent_bytes: u64,
    /// To the node.
    pub received_bytes: u64,
}

impl Traffic {
    /// Returns what was added since `mark`.
    pub fn since(self, mark: Self) -> Self {
        Self {
            sent_bytes: self.sent_bytes.saturating_sub(mark.sent_bytes),
            received_bytes: self.received_bytes.saturating_sub(mark.received_bytes),
        }
    }
}

/// The rates that the kernel enforces on a link, in bytes per second; `None`: not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Rates {
    /// What the node may send.
    pub send_bytes_per_s: Option<u64>,
    /// What it may receive.
    pub receive_bytes_per_s: Option<u64>,
    /// What it may send and receive together, if the link is shared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub both_bytes_per_s: Option<u64>,
}

/// Makes namespaces, bridge and links, and shapes the servers' links.
///
/// # Errors
/// If `ip` or `tc` fails, with its message.
pub fn make(place: &Place, subnet: u8, nodes: &[Node], limit: Limit) -> Result<(), LabError> {
    let mut names = format!("netns add {}\n", place.namespace(SWITCH));
    for node in nodes {
        names += &format!("netns add {}\n", place.namespace(&node.name));
    }
    batch("ip", None, &names)?;
    make_switch(place, nodes)?;
    connect_host(place, subnet)?;
    for node in nodes {
        let namespace = place.namespace(&node.name);
        let own = format!("addr add {}/24 dev eth0\nlink set eth0 up\nlink set lo up\n", node.address);
        batch("ip", Some(&namespace), &own)?;
        if let (Role::Server, Some(rate), false) = (node.role, limit.rate_bytes_per_s, limit.shared) {
            batch("tc", Some(&namespace), &shape("eth0", rate))?;
        }
    }
    if limit.shared {
        share_links(place, nodes)?;
    }
    shape_switch(place, nodes, limit)
}

fn make_switch(place: &Place, nodes: &[Node]) -> Result<(), LabError> {
    let mut links = String::from("link add br0 type bridge\nlink set br0 up\nlink set lo up\n");
    for node in nodes {
        let (name, namespace) = (&node.name, place.namespace(&node.name));
        // Without addresses of its own making a link carries nothing but what the nodes send.
        links += &format!(
            "link add {name} mtu {MTU_BYTES} type veth peer name eth0 mtu {MTU_BYTES} netns {namespace}\n\
             link set {name} addrgenmode none\nlink set {name} master br0 up\n"
        );
    }
    batch("ip", Some(&place.namespace(SWITCH)), &links)
}

fn connect_host(place: &Place, subnet: u8) -> Result<(), LabError> {
    let (link, switch) = (place.host_link(), place.namespace(SWITCH));
    let own = format!(
        "link add {link} mtu {MTU_BYTES} type veth peer name host mtu {MTU_BYTES} netns {switch}\n\
         addr add {}/24 dev {link}\nlink set {link} up\n",
        plan::host_address(subnet)
    );
    batch("ip", None, &own)?;
    batch("ip", Some(&switch), "link set host master br0 up\n")
}

/// Sends both directions of each server's link through one device.
fn share_links(place: &Place, nodes: &[Node]) -> Result<(), LabError> {
    let (mut devices, mut ways) = (String::new(), String::new());
    for Node { name, .. } in nodes.iter().filter(|node| node.role == Role::Server) {
        let device = shared_device(name);
        devices += &format!(
            "link add {device} mtu {MTU_BYTES} type ifb\nlink set {device} addrgenmode none\nlink set {device} up\n"
        );
        ways += &format!("qdisc add dev {name} clsact\n");
        for direction in ["ingress", "egress"] {
            // This matches everything; the kernel may lack `matchall`.
            ways += &format!(
                "filter add dev {name} {direction} protocol all u32 match u32 0 0 \
                 action mirred egress redirect dev {device}\n"
            );
        }
    }
    let switch = place.namespace(SWITCH);
    batch("ip", Some(&switch), &devices)?;
    batch("tc", Some(&switch), &ways)
}

fn shared_device(server: &str) -> String {
    format!("{SHARED}{server}")
}

/// The bridge's device with the token bucket of a server's link.
fn device_at_switch(server: &str, shared: bool) -> String {
    if shared { shared_device(server) } else { server.to_owned() }
}

fn shape_switch(place: &Place, nodes: &[Node], limit: Limit) -> Result<(), LabError> {
    let Some(rate) = limit.rate_bytes_per_s else { return Ok(()) };
    let servers = nodes.iter().filter(|node| node.role == Role::Server);
    let lines: String =
        servers.map(|server| shape(&device_at_switch(&server.name, limit.shared), rate)).collect();
    batch("tc", Some(&place.namespace(SWITCH)), &lines)
}

/// Changes the rate of the servers' links, both ways. Whether they are shared does not change.
///
/// # Errors
/// If `tc` fails, with its message.
pub fn reshape(place: &Place, nodes: &[Node], limit: Limit) -> Result<(), LabError> {
    let shaped = rates(place, nodes)?;
    let line = |device: &str, limited: bool| match limit.rate_bytes_per_s {
        Some(rate) => shape(device, rate),
        None if limited => format!("qdisc del dev {device} root\n"),
        None => String::new(),
    };
    let mut at_switch = String::new();
    for (name, rates) in &shaped {
        let limited = rates.receive_bytes_per_s.or(rates.both_bytes_per_s).is_some();
        at_switch += &line(&device_at_switch(name, limit.shared), limited);
        if limit.shared {
            continue;
        }
        let own = line("eth0", rates.send_bytes_per_s.is_some());
        batch("tc", Some(&place.namespace(name)), &own)?;
    }
    batch("tc", Some(&place.namespace(SWITCH)), &at_switch)
}

/// The line for `tc` that shapes a device, with 50 ms of queue: what a switch's port holds, and
/// enough that TCP keeps the link busy.
fn shape(device: &str, rate_bytes_per_s: u64) -> String {
    // A bucket smaller than a timer tick's worth could not reach the rate.
    let burst = BURST_BYTES.max(rate_bytes_per_s / 250);
    let rate_bits = rate_bytes_per_s.saturating_mul(8);
    format!("qdisc replace dev {device} root tbf rate {rate_bits}bit burst {burst}b latency 50ms\n")
}

/// What has passed each node's link, by name of the node.
///
/// # Errors
/// If the bridge's namespace is gone.
pub fn traffic(place: &Place) -> Result<BTreeMap<String, Traffic>, LabError> {
    inside_net(&place.namespace(SWITCH), || {
        let text = std::fs::read_to_string("/proc/thread-self/net/dev");
        text.map(|text| parse_traffic(&text))
            .map_err(|e| LabError::io("cannot read the counters of the links", e))
    })
}

/// What the bridge receives, the node has sent, and the other way round.
fn parse_traffic(text: &str) -> BTreeMap<String, Traffic> {
    let line = |line: &str| {
        let (name, counters) = line.split_once(':')?;
        let counters: Vec<u64> = counters.split_whitespace().map_while(|n| n.parse().ok()).collect();
        let traffic = Traffic { sent_bytes: *counters.first()?, received_bytes: *counters.get(8)? };
        Some((name.trim().to_owned(), traffic))
    };
    let is_link = |name: &str| name != "lo" && name != "br0" && !name.starts_with(SHARED);
    text.lines().filter_map(line).filter(|(name, _)| is_link(name)).collect()
}

/// The rates of the servers' links as the kernel has them now, by name of the server.
///
/// # Errors
/// If `tc` fails, with its message.
pub fn rates(place: &Place, nodes: &[Node]) -> Result<BTreeMap<String, Rates>, LabError> {
    let receive = queues(&place.namespace(SWITCH))?;
    let mut rates = BTreeMap::new();
    for server in nodes.iter().filter(|node| node.role == Role::Server) {
        let send = queues(&place.namespace(&server.name))?;
        let rate = Rates {
            send_bytes_per_s: send.get("eth0").copied(),
            receive_bytes_per_s: receive.get(&server.name).copied(),
            both_bytes_per_s: receive.get(&shared_device(&server.name)).copied(),
        };
        rates.insert(server.name.clone(), rate);
    }
    Ok(rates)
}

/// A queue as `tc -j` shows it.
#[derive(Deserialize)]
struct Queue {
    kind: String,
    dev: String,
    #[serde(default)]
    options: QueueOptions,
}

#[derive(Deserialize, Default)]
struct QueueOptions {
    /// Bytes per second.
    rate: Option<u64>,
}

fn queues(namespace: &str) -> Result<BTreeMap<String, u64>, LabError> {
    let mut command = packages::command("tc");
    command.args(["-n", namespace, "-j", "qdisc", "show"]);
    let output = command.output().map_err(|e| LabError::io("cannot start tc", e))?;
    let failed = |e: serde_json::Error| LabError::io(format!("cannot understand tc in {namespace}"), e);
    let queues: Vec<Queue> =
        serde_json::from_slice(&checked("tc", "qdisc show", output)?.stdout).map_err(failed)?;
    let shaped = queues.into_iter().filter(|queue| queue.kind == "tbf");
    Ok(shaped.filter_map(|queue| Some((queue.dev, queue.options.rate?))).collect())
}

/// Removes the host's link to a lab. The kernel also removes it with the bridge's namespace, but
/// some time later.
pub fn disconnect_host(lab: &str) {
    if host_link_exists(lab) {
        // Without `ip` the kernel has to do it alone; `host_link_exists` shows whether it has.
        let _ = packages::command("ip").args(["link", "del", &plan::host_link(lab)]).output();
    }
}

/// Whether the host's link to a lab exists.
pub fn host_link_exists(lab: &str) -> bool {
    std::path::Path::new("/sys/class/net").join(plan::host_link(lab)).exists()
}

/// Runs a batch of commands, in a namespace if one is given.
fn batch(program: &str, namespace: Option<&str>, lines: &str) -> Result<(), LabError> {
    let failed = |e| LabError::io(format!("cannot run {program}"), e);
    let mut command = packages::command(program);
    if let Some(namespace) = namespace {
        command.args(["-n", namespace]);
    }
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(lines.as_bytes()).map_err(failed)?;
    }
    let output = child.wait_with_output().map_err(failed)?;
    checked(program, lines, output).map(drop)
}

/// The output of a program that succeeded; otherwise an error with the line that failed, if the
/// program has reported its number.
fn checked(program: &str, lines: &str, output: Output) -> Result<Output, LabError> {
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    // "Command failed -:3", the last line.
    let number = said.lines().rev().find_map(|line| line.rsplit_once(":")?.1.trim().parse::<usize>().ok());
    let line = number.and_then(|n| lines.lines().nth(n.saturating_sub(1))).unwrap_or(lines).trim();
    let why = said.lines().next().unwrap_or("it did not say why").trim();
    let hint = if why.contains("Operation not permitted") {
        "; in a container it needs --cap-add NET_ADMIN --cap-add SYS_ADMIN"
    } else {
        ""
    };
    Err(LabError::new(format!("`{program} {line}` failed: {why}{hint}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_the_nodes_view() {
        let text = "Inter-|   Receive                  |  Transmit\n face |bytes    packets errs drop\n\
                    \x20   lo:     7 1 0 0 0 0 0 0 7 1 0 0 0 0 0 0\n\
                    ifb-pfs-s1: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n\
                    pfs-s1: 1000 10 0 0 0 0 0 0 20 2 0 0 0 0 0 0\n";
        let traffic = parse_traffic(text);
        assert_eq!(traffic.len(), 1);
        assert_eq!(traffic["pfs-s1"], Traffic { sent_bytes: 1000, received_bytes: 20 });
        let mark = Traffic { sent_bytes: 400, received_bytes: 30 };
        assert_eq!(traffic["pfs-s1"].since(mark), Traffic { sent_bytes: 600, received_bytes: 0 });
    }

    #[test]
    fn the_bucket_grows_with_the_rate() {
        assert_eq!(
            shape("eth0", 80_000_000),
            "qdisc replace dev eth0 root tbf rate 640000000bit burst 320000b latency 50ms\n"
        );
        assert!(shape("eth0", 1_000_000).contains("rate 8000000bit burst 262144b"));
    }
}
