//! `doctor --cluster`: compares what the nodes of the cluster report of themselves.
//!
//! Each finding names the nodes that it is about. What all nodes share is not a finding: it may be
//! intended, and `doctor` on one of them says what it costs.

use super::finding::{EXPIRY_WARNING_DAYS, Finding, Level, bad, good, warn};
use crate::top::SILENT_MS;
use forebay_agent::units::Human;
use forebay_client::Client;
use forebay_wire::{ClusterStatus, Health, NodeHealth, Role};
use std::collections::BTreeMap;
use std::fmt::Display;

/// Longer than a report takes to the coordinator, which compares the clocks.
const CLOCKS_APART_MS: i64 = 2000;

/// A fetch that waits longer than this waits for a PFS that hangs.
const SLOW_FETCH_MS: u64 = 10_000;

/// An agent needs a descriptor or two for each cached file that is open.
const OPEN_FILES_MIN: u64 = 4096;

/// Longer than any dirty file waits by itself (`tier.dirty_age_max_s`).
const OLD_DIRTY_MS: u64 = 30 * 60 * 1000;

/// A node that has sent this many bytes, and several times as many as most others, owns what all
/// read.
const HOT_BYTES: u64 = 10 << 30;
const HOT_FACTOR: u64 = 4;

/// A node with less than this part of the usual capacity takes less than its part of the files.
const SMALL_PART: u64 = 2;

/// Names that a finding lists; it counts the others.
const NAMES_MAX: usize = 8;

type Nodes<'a> = [(&'a NodeHealth, &'a Health, i64)];

/// What is wrong with nodes of the cluster of this agent.
pub fn findings(client: &Client) -> Vec<Finding> {
    let cluster = client.admin().status().map(|status| status.cluster).unwrap_or_default();
    let mut findings: Vec<Finding> = leader(&cluster).into_iter().collect();
    match client.health() {
        Ok(nodes) => findings.extend(compare(&nodes)),
        Err(e) => findings.push(bad(
            "cluster",
            // Why the coordinator does not accept the node, for instance.
            cluster.problems.iter().fold(e.to_string(), |text, (at, why)| format!("{text}; {at}: {why}")),
            "start the agent, and see that its coordinator runs: `forebay status`",
        )),
    }
    findings
}

/// Which of several candidates leads, or why none does.
fn leader(cluster: &ClusterStatus) -> Option<Finding> {
    if !cluster.coordinator.contains(',') {
        return None;
    }
    let (leader, term) = &cluster.leader;
    let seconds = cluster.since_ms / 1000;
    if cluster.connected {
        return Some(good("leader", format!("{leader} leads, in term {term}; connected for {seconds} s")));
    }
    let why = cluster.problems.iter().map(|(candidate, why)| format!("{candidate}: {why}"));
    let why = format!("no candidate leads for {seconds} s: {}", why.collect::<Vec<_>>().join("; "));
    let remedy = "see that a candidate runs, and that most members of etcd do: `etcdctl endpoint status --cluster`; reads \
                  and writes go on as without a coordinator";
    Some(bad("leader", why, remedy))
}

/// What is wrong with one node by itself, without a comparison with others.
pub fn problems_of(node: &NodeHealth) -> Vec<Finding> {
    let mut findings = compare(std::slice::from_ref(node));
    findings.retain(|finding| finding.level != Level::Good);
    findings
}

fn compare(all: &[NodeHealth]) -> Vec<Finding> {
    let placement = placement(all);
    let (silent, all): (Vec<_>, Vec<_>) = all.iter().partition(|node| node.silent_ms > SILENT_MS);
    let mut findings =
        vec![good("cluster", format!("{} nodes: {}", all.len(), names(all.iter().map(|n| &n.name))))];
    findings.extend(placement);
    findings.extend(about(
        "silent",
        silent.iter().map(|node| format!("{} (for {} s)", node.name, node.silent_ms / 1000)),
        "have not been heard",
        "see whether the agent runs there, and its network; the others read from the PFS in its place. A node that you \
         took out without `forebay down` is missed for a day",
    ));
    let mute = all.iter().filter(|node| node.health.is_none()).map(|node| &node.name);
    findings.extend(about(
        "reports",
        mute,
        "have not reported yet",
        "ask again in a second; an agent that was started just now has not yet",
    ));
    let nodes: Vec<_> = all
        .into_iter()
        .filter_map(|node| node.health.as_ref().map(|(clock, health)| (node, &**health, *clock)))
        .collect();
    findings.extend(differs(
        "version",
        nodes.iter().map(|(node, health, _)| (&*node.name, health.version.clone())),
        "install one version on all nodes, and restart their agents one after the other; caches stay",
    ));
    findings.extend(clocks(&nodes));
    findings.extend(mounts(&nodes));
    findings.extend(memory(&nodes));
    findings.extend(differs(
        "huge pages",
        nodes.iter().map(|(node, health, _)| (&*node.name, health.huge_pages.clone())),
        "`forebay doctor` on the node that differs says what its kernel allows",
    ));
    if nodes.len() > 1 && nodes.iter().all(|(_, health, _)| health.huge_pages == "never") {
        let found = format!("{}: no node has huge pages", names(nodes.iter().map(|(node, ..)| &node.name)));
        findings.push(warn(
            "huge pages",
            found,
            "reads from memory reach about half of the bandwidth: `forebay doctor` on a node says what its kernel allows",
        ));
    }
    findings.extend(certificates(&nodes));
    findings.extend(peers(&nodes));
    findings.extend(written(&nodes));
    findings.extend(about(
        "open files",
        named(&nodes, |health| health.open_files_max < OPEN_FILES_MIN),
        &format!("may open fewer than {OPEN_FILES_MIN} files"),
        "raise LimitNOFILE= of the service, or the limit of the user",
    ));
    findings
}

/// A warning about these nodes, if there are any.
fn about<N: Display>(
    what: &'static str,
    nodes: impl IntoIterator<Item = N>,
    found: &str,
    remedy: &str,
) -> Option<Finding> {
    let names = names(nodes);
    (!names.is_empty()).then(|| warn(what, format!("{names}: {found}"), remedy))
}

fn names<N: Display>(nodes: impl IntoIterator<Item = N>) -> String {
    let all: Vec<String> = nodes.into_iter().map(|name| name.to_string()).collect();
    let mut text = all.iter().take(NAMES_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
    if all.len() > NAMES_MAX {
        text += &format!(" and {} more", all.len() - NAMES_MAX);
    }
    text
}

fn named<'a>(
    nodes: &'a Nodes<'a>,
    is_meant: impl Fn(&Health) -> bool + 'a,
) -> impl Iterator<Item = &'a String> + 'a {
    nodes.iter().filter(move |(_, health, _)| is_meant(health)).map(|(node, ..)| &node.name)
}

/// A warning, if a value is not the same on all nodes: it names those that differ from most.
fn differs<'a>(
    what: &'static str,
    values: impl Iterator<Item = (&'a str, String)>,
    remedy: &str,
) -> Option<Finding> {
    let mut by_value = BTreeMap::<String, Vec<&str>>::new();
    for (node, value) in values {
        by_value.entry(value).or_default().push(node);
    }
    let usual = by_value.iter().max_by_key(|(_, nodes)| nodes.len())?.0.clone();
    let others: Vec<String> = by_value
        .iter()
        .filter(|(value, _)| **value != usual)
        .map(|(value, nodes)| format!("{} has {value}", names(nodes)))
        .collect();
    (!others.is_empty()).then(|| warn(what, format!("{}, others {usual}", others.join("; ")), remedy))
}

fn median<T: Ord + Copy>(values: impl Iterator<Item = T>) -> Option<T> {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

fn clocks(nodes: &Nodes<'_>) -> Option<Finding> {
    let usual = median(nodes.iter().map(|(.., clock)| *clock))?;
    let apart = nodes.iter().filter(|(.., clock)| (clock - usual).abs() > CLOCKS_APART_MS);
    let apart =
        apart.map(|(node, _, clock)| format!("{} by {:+.1} s", node.name, (clock - usual) as f64 / 1000.0));
    about(
        "clock",
        apart,
        "differs from most",
        "synchronize the clocks (chrony): times in logs and of files, and the order of second copies, depend on them",
    )
}

/// The coordinator refuses a node with other extents than the members have, and names it here.
fn placement(all: &[NodeHealth]) -> Vec<Finding> {
    let mut labels: Vec<&String> =
        all.iter().flat_map(|node| &node.extents).map(|(label, _)| label).collect();
    labels.sort_unstable();
    labels.dedup();
    let of = |label: &String| {
        let extents = all.iter().flat_map(|node| node.extents.iter().map(|extent| (&*node.name, extent)));
        let of_mount = extents.filter(|(_, (mount, _))| mount == label);
        let values = of_mount
            .map(|(node, (_, bytes))| (node, format!("extents of {} on mount {label:?}", Human(*bytes))));
        let remedy = "give the mount the same mount.extent_size on all nodes; a node with another one is no member, \
                      and exchanges no pages";
        differs("placement", values, remedy)
    };
    labels.into_iter().filter_map(of).collect()
}

fn mounts(nodes: &Nodes<'_>) -> Vec<Finding> {
    let mut labels: Vec<&str> =
        nodes.iter().flat_map(|(_, health, _)| &health.mounts).map(|m| m.0.as_str()).collect();
    labels.sort_unstable();
    labels.dedup();
    let mut findings = Vec::new();
    for label in labels {
        let of = |health: &Health| health.mounts.iter().find(|mount| mount.0 == label).cloned();
        let with = |is_meant: fn(&(String, bool, bool, u64, u64)) -> bool| {
            named(nodes, move |health| of(health).is_some_and(|mount| is_meant(&mount)))
        };
        let absent = named(nodes, move |health| of(health).is_none());
        let mount = format!("mount {label:?}");
        findings.extend(about(
            "mount",
            absent,
            &format!("{mount} is not configured"),
            "jobs there read it directly; add it, or ignore this if the node does not mount it",
        ));
        let unmounted = names(with(|mount| !mount.1));
        if !unmounted.is_empty() {
            let found = format!("{unmounted}: nothing is mounted where {mount} is to be");
            findings.push(bad(
                "mount",
                found,
                "mount the PFS again; until then the agent serves nothing of it",
            ));
        }
        findings.extend(about(
            "mount",
            with(|mount| mount.1 && !mount.2),
            &format!("files of {mount} are not cached, since its time stamps do not follow writes"),
            "`forebay doctor --pfs DIR` there says more",
        ));
        findings.extend(about(
            "mount",
            with(|mount| mount.3 > 0),
            &format!("reads of {mount} have failed since the agent's start"),
            "see its log for the errors, and the PFS's servers",
        ));
        findings.extend(about(
            "mount",
            with(|mount| mount.4 > SLOW_FETCH_MS),
            &format!("a read of {mount} has waited for more than {} s", SLOW_FETCH_MS / 1000),
            "a server of the PFS hangs, or the node's link to it; readers of other files go on",
        ));
    }
    findings
}

fn memory(nodes: &Nodes<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (role, what) in [(Role::CoLocated, "co-located"), (Role::Dedicated, "dedicated")] {
        let nodes: Vec<_> = nodes.iter().copied().filter(|(node, ..)| node.role == role).collect();
        let usual = median(nodes.iter().map(|(_, health, _)| health.capacity_max_bytes)).unwrap_or(0);
        findings.extend(about(
            "capacity",
            named(&nodes, |health| {
                health.capacity_max_bytes < usual / SMALL_PART
                    || health.capacity_max_bytes / SMALL_PART > usual
            }),
            &format!("tier.capacity is far from the {} of most {what} nodes", Human(usual)),
            "files are placed by capacity; set it on purpose, or leave it out: a quarter of the memory",
        ));
    }
    findings.extend(about(
        "memory",
        named(nodes, |health| health.capacity_bytes < health.capacity_max_bytes / SMALL_PART),
        "programs need the memory: the tier has less than half of its capacity",
        "nothing, if that is usual for jobs there; otherwise `forebay memory` shows who takes it",
    ));
    findings.extend(about(
        "memory",
        named(nodes, |health| !health.memory_problems.is_empty()),
        "the memory use cannot be read, so the tier does not grow",
        "`forebay doctor` there names what cannot be read",
    ));
    findings
}

fn certificates(nodes: &Nodes<'_>) -> Vec<Finding> {
    let remedy = "`forebay init` makes new ones; copy them over the old ones, no restart is needed";
    let mut findings = Vec::new();
    let ended = names(named(nodes, |health| health.certificate_days.is_some_and(|days| days < 0)));
    if !ended.is_empty() {
        findings.push(bad("certificate", format!("{ended}: it has expired"), remedy));
    }
    let soon = named(nodes, |health| {
        health.certificate_days.is_some_and(|days| (0..EXPIRY_WARNING_DAYS as i64).contains(&days))
    });
    let found = format!("it is valid for less than {EXPIRY_WARNING_DAYS} days");
    findings.extend(about("certificate", soon, &found, remedy));
    findings
}

fn peers(nodes: &Nodes<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut avoided = BTreeMap::<&str, Vec<&str>>::new();
    for (node, health, _) in nodes {
        for peer in &health.avoided {
            avoided.entry(peer).or_default().push(&node.name);
        }
    }
    for (peer, by) in avoided {
        let found = format!("{peer} does not answer {}", names(by));
        findings.push(warn(
            "peers",
            found,
            "see the agent and the network there; the PFS is read in its place",
        ));
    }
    let usual = median(nodes.iter().map(|(_, health, _)| health.to_peers_bytes)).unwrap_or(0);
    findings.extend(about(
        "hot owner",
        named(nodes, |health| {
            health.to_peers_bytes > HOT_BYTES && health.to_peers_bytes / HOT_FACTOR > usual
        }),
        &format!("has sent more than {HOT_FACTOR} times as much to other nodes as most"),
        "one file that all read lies there: `forebay load --nodes all FILE` gives each node its own copy",
    ));
    findings
}

fn written(nodes: &Nodes<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let parked = names(named(nodes, |health| health.parked_files > 0));
    if !parked.is_empty() {
        let found = format!("{parked}: files that the PFS does not take");
        findings.push(bad(
            "dirty files",
            found,
            "`forebay dirty` there says why, `forebay rescue` saves them",
        ));
    }
    let mut failing = BTreeMap::<&str, (u64, Vec<&str>)>::new();
    for (node, health, _) in nodes.iter().filter(|(_, health, _)| health.parked_files == 0) {
        for (why, files) in &health.failing {
            let one = failing.entry(why).or_default();
            one.0 += files;
            one.1.push(&node.name);
        }
    }
    for (why, (files, by)) in failing {
        findings.push(warn(
            "dirty files",
            format!("{}: the PFS does not take {files} of them now: {why}", names(by)),
            "free space or quota there, or see that its server runs; the agents try again, and `forebay dirty` names the files",
        ));
    }
    findings.extend(about(
        "dirty files",
        named(nodes, |health| health.oldest_dirty_ms > OLD_DIRTY_MS),
        "a file waits for its pass for more than half an hour",
        "`forebay dirty` there says what it waits for: a full server, or I/O phases without an end",
    ));
    findings.extend(about(
        "copies",
        named(nodes, |health| health.copies_missed > 0),
        "second copies found no place since the agent's start, so programs waited for the PFS",
        "give nodes on other hosts more capacity, or their users larger shares",
    ));
    findings
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    fn healthy(name: &str) -> NodeHealth {
        let health = Health {
            version: "1".into(),
            capacity_max_bytes: 8 << 30,
            capacity_bytes: 8 << 30,
            huge_pages: "within_size".into(),
            mounts: vec![("pfs".into(), true, true, 0, 3)],
            certificate_days: Some(300),
            open_files_max: 65_536,
            to_peers_bytes: 5 << 30,
            ..Health::default()
        };
        NodeHealth {
            name: name.into(),
            extents: vec![("pfs".into(), 1 << 27)],
            health: Some((1_000, Box::new(health))),
            ..NodeHealth::default()
        }
    }

    fn cluster() -> Vec<NodeHealth> {
        ["n1", "n2", "n3", "n4"].map(healthy).into()
    }

    #[test]
    fn a_healthy_cluster_has_nothing_but_its_members() {
        let found = compare(&cluster());
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].level, &*found[0].found), (Level::Good, "4 nodes: n1, n2, n3, n4"));
    }

    #[test]
    fn each_fault_is_found_alone_and_names_its_node() {
        type Fault = fn(&mut NodeHealth, &mut Health);
        let faults: [(&str, Fault); 20] = [
            ("silent", |node, _| node.silent_ms = 3000),
            ("version", |_, health| health.version = "2".into()),
            ("placement", |node, _| node.extents[0].1 = 1 << 20),
            ("mount", |_, health| health.mounts.clear()),
            ("mount", |_, health| health.mounts[0].1 = false),
            ("mount", |_, health| health.mounts[0].2 = false),
            ("mount", |_, health| health.mounts[0].3 = 1),
            ("mount", |_, health| health.mounts[0].4 = 20_000),
            ("capacity", |_, health| (health.capacity_max_bytes, health.capacity_bytes) = (1 << 30, 1 << 30)),
            ("memory", |_, health| health.capacity_bytes = 1 << 30),
            ("memory", |_, health| health.memory_problems.push("x".into())),
            ("huge pages", |_, health| health.huge_pages = "never".into()),
            ("certificate", |_, health| health.certificate_days = Some(3)),
            ("certificate", |_, health| health.certificate_days = Some(-1)),
            ("hot owner", |_, health| health.to_peers_bytes = 100 << 30),
            ("dirty files", |_, health| health.parked_files = 1),
            ("dirty files", |_, health| health.oldest_dirty_ms = 3_600_000),
            ("dirty files", |_, health| health.failing.push(("No space left on device; on oss3".into(), 2))),
            ("copies", |_, health| health.copies_missed = 1),
            ("open files", |_, health| health.open_files_max = 1024),
        ];
        for (number, (what, fault)) in faults.into_iter().enumerate() {
            let mut nodes = cluster();
            let (clock, mut health) = nodes[2].health.take().unwrap();
            fault(&mut nodes[2], &mut health);
            nodes[2].health = Some((clock, health));
            let found = compare(&nodes);
            assert_eq!(found.len(), 2, "{number}: {found:?}");
            assert!(found[1].what == what && found[1].level != Level::Good, "{number}: {found:?}");
            assert!(found[1].found.contains("n3") && !found[1].found.contains("n2"), "{number}: {found:?}");
        }
    }

    #[test]
    fn huge_pages_that_no_node_has_are_one_finding() {
        let mut nodes = cluster();
        for node in &mut nodes {
            node.health.as_mut().unwrap().1.huge_pages = "never".into();
        }
        let found = compare(&nodes);
        assert!(found.len() == 2 && found[1].what == "huge pages", "{found:?}");
    }

    #[test]
    fn a_dedicated_node_may_have_another_capacity() {
        let mut nodes = cluster();
        nodes[0].role = Role::Dedicated;
        nodes[0].health.as_mut().unwrap().1.capacity_max_bytes = 1 << 30;
        nodes[0].health.as_mut().unwrap().1.capacity_bytes = 1 << 30;
        assert_eq!(compare(&nodes).len(), 1, "{:?}", compare(&nodes));
    }

    #[test]
    fn clocks_silent_peers_and_missing_reports_are_found() {
        let mut nodes = cluster();
        nodes[1].health.as_mut().unwrap().0 += 5_000;
        nodes[3].health = None;
        nodes[0].health.as_mut().unwrap().1.avoided.push("n4".into());
        let found: Vec<String> = compare(&nodes).into_iter().skip(1).map(|f| f.found).collect();
        assert_eq!(
            found,
            ["n4: have not reported yet", "n2 by +5.0 s: differs from most", "n4 does not answer n1"]
        );
    }
}
