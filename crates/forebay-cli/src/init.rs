//! `init`: creates the certificates with which the nodes of a cluster authenticate each other.
//!
//! A directory holds the cluster: its CA (`ca.pem`, `ca.key`), what was said about it
//! (`cluster.toml`), and for each node a directory to be copied there (`ca.pem`, `node.pem`,
//! `node.key`, and an example configuration). What exists is never written again, so the command
//! can be repeated: with more nodes it adds them under the same CA. A node's directory appears
//! whole or not at all, and what was made is read again the way an agent reads it before it is said
//! to be done.

use crate::Outcome;
use crate::cli::{Global, InitArgs};
use crate::out::print;
use forebay_store::tier::check_own_directory;
use forebay_wire::tls::{self, CA_FILE, CERTIFICATE_FILE, Identity, KEY_FILE};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const CA_KEY_FILE: &str = "ca.key";
const CLUSTER_FILE: &str = "cluster.toml";
const CONFIG_FILE: &str = "forebay.toml";

const COORDINATOR_PORT: u16 = 7850;
const PEER_PORT: u16 = 7851;

/// Where the example configurations expect a node's directory.
const INSTALLED: &str = "/etc/forebay";

/// How long before its creation a certificate becomes valid: the clocks of a cluster differ.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// What is the same for all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cluster {
    /// Name of the cluster, for people.
    cluster: String,
    /// The node with the coordinator.
    node: String,
    /// `HOST:PORT` where the others find it.
    coordinator: String,
    /// `IP:PORT` where it listens.
    listen: String,
}

/// A node as the command line names it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    name: String,
    address: Option<SocketAddr>,
}

#[derive(Debug, Serialize)]
struct Report {
    directory: PathBuf,
    new_authority: bool,
    coordinator: String,
    nodes: Vec<Made>,
}

#[derive(Debug, Serialize)]
struct Made {
    node: String,
    directory: PathBuf,
    /// It did not exist before.
    new: bool,
    days_left: u64,
}

/// Makes what does not exist yet.
pub fn init(global: &Global, args: &InitArgs) -> Outcome {
    let nodes = args.nodes.iter().map(|text| Node::parse(text)).collect::<Result<Vec<_>, _>>()?;
    if let Some(twice) =
        (1..nodes.len()).find(|&i| nodes[..i].iter().any(|n| n.name.eq_ignore_ascii_case(&nodes[i].name)))
    {
        return Err(format!(
            "--node {}: the name is given twice; each node needs its own",
            nodes[twice].name
        ));
    }
    let at = &args.directory;
    make_directory(at).or_else(|e| if at.is_dir() { Ok(()) } else { Err(failed("make", at, &e)) })?;
    check_own_directory(at).map_err(|e| {
        format!(
            "cannot keep the cluster's keys there: {e}; give a directory of your own that only you can write"
        )
    })?;
    let new_authority = !at.join(CA_FILE).exists();
    let cluster = agree_on_cluster(at, args, &nodes)?;
    let authority = if new_authority { make_authority(at, &cluster) } else { read_authority(at) }?;
    let mut made = Vec::new();
    for node in &nodes {
        let directory = at.join(&node.name);
        let new = !directory.exists();
        if new {
            make_node(at, node, &cluster, &authority, args.days)?;
        }
        made.push(check(node, directory, new)?);
    }
    let coordinator = cluster.node;
    let report = Report { directory: at.clone(), new_authority, coordinator, nodes: made };
    print(global, &report, |out| report.write(out))?;
    Ok(ExitCode::SUCCESS)
}

impl Node {
    fn parse(text: &str) -> Result<Self, String> {
        let (name, address) = match text.split_once('=') {
            Some((name, address)) => (name, Some(address)),
            None => (text, None),
        };
        check_name(name).map_err(|why| format!("--node {text:?}: {why}"))?;
        let address = address.map(|address| {
            let with_port = address.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, PEER_PORT));
            with_port
                .or_else(|_| address.parse::<SocketAddr>())
                .ok()
                .filter(|a| !a.ip().is_unspecified())
                .ok_or_else(|| {
                    format!(
                        "--node {text:?}: write NAME=IP or NAME=IP:PORT, with the address others connect to"
                    )
                })
        });
        Ok(Node { name: name.to_owned(), address: address.transpose()? })
    }
}

/// A node's name is a DNS name in its certificate, and a directory here.
fn check_name(name: &str) -> Result<(), String> {
    let sound = |label: &str| {
        let edges = !label.starts_with('-') && !label.ends_with('-');
        edges
            && (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
    };
    let mut labels = name.split('.');
    if name.len() > 253 || !labels.clone().all(sound) {
        return Err("a node's name consists of letters, digits, hyphens and dots, like a host name".into());
    }
    if labels.next_back().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit())) {
        return Err("this looks like an address; give the node's name, and the address after '='".into());
    }
    Ok(())
}

fn failed(what: &str, path: &Path, why: &dyn std::fmt::Display) -> String {
    format!("cannot {what} {}: {why}", path.display())
}

fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Writes a new file; an existing one is left alone, and is an error.
fn write_new(path: &Path, text: &str, mode: u32) -> Result<(), String> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(mode).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .map_err(|e| failed("write", path, &e))
}

/// The CA, which signs the certificates of nodes and nothing else.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

fn make_authority(at: &Path, cluster: &Cluster) -> Result<Authority, String> {
    let name = &cluster.cluster;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("Forebay cluster {name}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    set_validity(&mut params, 1);
    // RFC 5280, 4.1.2.5: no end. It ends when the nodes are given another one.
    params.not_after = rcgen::date_time_ymd(9999, 12, 31);
    let cannot = |e: rcgen::Error| format!("cannot create the certificate authority: {e}");
    let key = KeyPair::generate().map_err(cannot)?;
    let pem = params.self_signed(&key).map_err(cannot)?.pem();
    // The certificate last: it is what shows that there is a CA.
    let key_path = at.join(CA_KEY_FILE);
    if key_path.exists() {
        return Err(format!(
            "{} exists without {CA_FILE}, left by a failed attempt: remove it",
            key_path.display()
        ));
    }
    write_new(&key_path, &key.serialize_pem(), 0o600)?;
    write_new(&at.join(CA_FILE), &pem, 0o644)?;
    Ok(Authority { pem, issuer: Issuer::new(params, key) })
}

fn read_authority(at: &Path) -> Result<Authority, String> {
    let (path, key_path) = (at.join(CA_FILE), at.join(CA_KEY_FILE));
    let pem = fs::read_to_string(&path).map_err(|e| failed("read", &path, &e))?;
    let key = tls::read_secret(&key_path).map_err(|e| e.to_string())?;
    let no_key = |e: &dyn std::fmt::Display| format!("{}: contains no private key: {e}", key_path.display());
    let key = String::from_utf8(key).map_err(|e| no_key(&e))?;
    let key = KeyPair::from_pem(&key).map_err(|e| no_key(&e))?;
    let issuer = Issuer::from_ca_cert_pem(&pem, key)
        .map_err(|e| format!("{}: not a certificate: {e}", path.display()))?;
    Ok(Authority { pem, issuer })
}

/// The text of a file in the cluster's directory, unless another user has planted it there before
/// the directory was closed to others.
fn read_own(path: &Path) -> Result<Option<String>, String> {
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(path);
    let mut file = match opened {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|e| failed("read", path, &e))?,
    };
    let owner = file.metadata().map_err(|e| failed("read", path, &e))?.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(format!("{} belongs to user {owner}: remove it if it is not yours", path.display()));
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|e| failed("read", path, &e))?;
    Ok(Some(text))
}

/// What was said about the cluster before, or is said now for the first time.
fn agree_on_cluster(at: &Path, args: &InitArgs, nodes: &[Node]) -> Result<Cluster, String> {
    let path = at.join(CLUSTER_FILE);
    if let Some(text) = read_own(&path)? {
        let known: Cluster = toml::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        let other = |what: &str, is: &str| {
            Err(format!(
                "{what} of this cluster is {is} already; change {} and each node's configuration",
                path.display()
            ))
        };
        if args.cluster.as_ref().is_some_and(|name| *name != known.cluster) {
            return other("the name", &known.cluster);
        }
        if let Some(text) = &args.coordinator {
            let (name, port) = parse_coordinator(text)?;
            if name != known.node
                || port.is_some_and(|port| !known.coordinator.ends_with(&format!(":{port}")))
            {
                return other("the coordinator", &format!("{} on {}", known.coordinator, known.node));
            }
        }
        return Ok(known);
    }
    let cluster = new_cluster(args, nodes)?;
    let text = toml::to_string(&cluster).map_err(|e| failed("write", &path, &e))?;
    write_new(&path, &text, 0o644)?;
    Ok(cluster)
}

fn new_cluster(args: &InitArgs, nodes: &[Node]) -> Result<Cluster, String> {
    let cluster = args.cluster.clone().unwrap_or_else(|| "forebay".into());
    if cluster.is_empty() || cluster.len() > 40 || cluster.chars().any(char::is_control) {
        return Err(format!("--cluster {cluster:?}: give a name of 1 to 40 characters"));
    }
    let asked = args.coordinator.as_deref().map(parse_coordinator).transpose()?;
    let node = match asked {
        None => nodes.first().ok_or("name the nodes of the new cluster: --node NAME[=IP[:PORT]] ...")?,
        Some((name, _)) => nodes.iter().find(|node| node.name == name).ok_or_else(|| {
            format!("--coordinator {name}: name it with --node {name} as well, so that it gets a certificate")
        })?,
    };
    let port = asked.and_then(|(_, port)| port).unwrap_or(COORDINATOR_PORT);
    let at = node.address.map(|address| SocketAddr::new(address.ip(), port).to_string());
    Ok(Cluster {
        cluster,
        node: node.name.clone(),
        coordinator: at.clone().unwrap_or_else(|| format!("{}:{port}", node.name)),
        listen: at.unwrap_or_else(|| format!("0.0.0.0:{port}")),
    })
}

fn parse_coordinator(text: &str) -> Result<(&str, Option<u16>), String> {
    match text.split_once(':') {
        None => Ok((text, None)),
        Some((name, port)) => match port.parse() {
            Ok(port) if port != 0 => Ok((name, Some(port))),
            _ => Err(format!("--coordinator {text:?}: write NAME or NAME:PORT")),
        },
    }
}

/// Makes a certificate valid from a little before now for `days`.
fn set_validity(params: &mut CertificateParams, days: u32) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    params.not_before = epoch + now.saturating_sub(CLOCK_SKEW);
    params.not_after = epoch + now + Duration::from_secs(u64::from(days) * 86_400);
}

/// Makes the directory of a node next to its place and moves it there when it is whole.
fn make_node(
    at: &Path,
    node: &Node,
    cluster: &Cluster,
    authority: &Authority,
    days: u32,
) -> Result<(), String> {
    let unfinished = at.join(format!(".{}.{}", node.name, std::process::id()));
    make_directory(&unfinished).map_err(|e| failed("make", &unfinished, &e))?;
    let place = at.join(&node.name);
    let made = write_node(&unfinished, node, cluster, authority, days)
        .and_then(|()| fs::rename(&unfinished, &place).map_err(|e| failed("make", &place, &e)));
    if made.is_err() {
        // The error to report is why it failed; what was made of it is of no use.
        let _ = fs::remove_dir_all(&unfinished);
    }
    made
}

fn write_node(
    at: &Path,
    node: &Node,
    cluster: &Cluster,
    authority: &Authority,
    days: u32,
) -> Result<(), String> {
    let cannot = |e: rcgen::Error| format!("cannot create the certificate of {}: {e}", node.name);
    let mut params = CertificateParams::new(vec![node.name.clone()]).map_err(cannot)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, &*node.name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // Each node is asked by others and asks others.
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    set_validity(&mut params, days);
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().map_err(cannot)?;
    let certificate = params.signed_by(&key, &authority.issuer).map_err(cannot)?;
    write_new(&at.join(CA_FILE), &authority.pem, 0o644)?;
    write_new(&at.join(CERTIFICATE_FILE), &certificate.pem(), 0o644)?;
    write_new(&at.join(KEY_FILE), &key.serialize_pem(), 0o600)?;
    write_new(&at.join(CONFIG_FILE), &example(node, cluster), 0o644)
}

/// A configuration that works once it names the PFS.
fn example(node: &Node, cluster: &Cluster) -> String {
    let mut text = format!(
        "# Node {} of cluster {}. Every key: `forebay config reference`.\n\n[cluster]\nnode = \"{}\"\ntls = \"{INSTALLED}\"\n",
        node.name,
        cluster.cluster.escape_default(),
        node.name
    );
    if node.name == cluster.node {
        text += &format!(
            "# The coordinator runs in this node's agent.\ncoordinator_listen = \"{}\"\n",
            cluster.listen
        );
    } else {
        text += &format!("coordinator = \"{}\"\n", cluster.coordinator);
    }
    text += &match node.address {
        Some(address) => format!("listen = \"{address}\"\n"),
        None => format!(
            "# The address of this node, on which it serves pages to the others.\n# listen = \"10.0.0.1:{PEER_PORT}\"\n"
        ),
    };
    text + "\n# The PFS: the same label on all nodes.\n# [[mount]]\n# label = \"pfs\"\n# root = \"/lustre\"\n"
}

/// Reads a node's directory as its agent will.
fn check(node: &Node, directory: PathBuf, new: bool) -> Result<Made, String> {
    let remedy = format!("move {} away and repeat the command", directory.display());
    let facts = Identity::load(&directory).map_err(|e| format!("{e} ({remedy})"))?.facts();
    if facts.node != node.name {
        return Err(format!("{}: made for {:?}; {remedy}", directory.display(), facts.node));
    }
    let left = facts.expires.duration_since(SystemTime::now()).unwrap_or_default();
    Ok(Made { node: node.name.clone(), directory, new, days_left: left.as_secs().div_ceil(86_400) })
}

impl Report {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let at = self.directory.display();
        match self.new_authority {
            true => writeln!(out, "created the certificate authority {at}/{CA_FILE}")?,
            false => writeln!(out, "the certificate authority {at}/{CA_FILE} exists and is used")?,
        }
        for node in &self.nodes {
            let done = if node.new { "created" } else { "exists already, unchanged" };
            writeln!(out, "{}: {done}, valid for {} days", node.directory.display(), node.days_left)?;
        }
        let Some(first) = self.nodes.iter().find(|node| node.new) else { return Ok(()) };
        let (directory, node) = (first.directory.display(), &first.node);
        writeln!(
            out,
            "\nNext:\n\
             1. Keep {at}/{CA_KEY_FILE} here and safe: whoever has it can join the cluster.\n\
             2. Copy the files of each node to it, keeping their modes, for example\n     \
                ssh {node} mkdir -p -m 700 {INSTALLED}\n     \
                scp -p {directory}/* {node}:{INSTALLED}/"
        )?;
        if !self.new_authority {
            // It has a configuration that names the PFS; the example does not.
            writeln!(
                out,
                "   A node that had a certificate before gets these only, and nothing of what follows is needed:\n     \
                 (cd {directory} && scp -p {CA_FILE} {CERTIFICATE_FILE} {KEY_FILE} {node}:{INSTALLED}/)"
            )?;
        }
        writeln!(
            out,
            "3. Name the PFS under [[mount]] in {INSTALLED}/{CONFIG_FILE} there, and look at it with\n     \
                forebay doctor --config {INSTALLED}/{CONFIG_FILE}\n\
             4. Start the agents, that of {coordinator} (the coordinator's) first:\n     \
                forebay up --config {INSTALLED}/{CONFIG_FILE}",
            coordinator = self.coordinator,
        )
    }
}
