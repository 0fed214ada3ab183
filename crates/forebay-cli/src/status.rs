//! `status`: shows the state of the agent.

use crate::Outcome;
use crate::cli::{Global, StatusArgs};
use crate::metrics::help;
use crate::out::{name, no_agent, object, print};
use crate::traffic;
use forebay_agent::units::Human;
use forebay_wire::{ClusterStatus, NodeInfo, Role, Status};
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

/// Shows the agent's state.
pub fn status(global: &Global, args: &StatusArgs) -> Outcome {
    let status = global.client().admin().status().map_err(|e| no_agent(global, &e))?;
    print(global, &to_json(&status)?, |out| write(&status, args.counters, out))?;
    Ok(ExitCode::SUCCESS)
}

/// The state as JSON.
pub fn to_json(status: &Status) -> Result<serde_json::Value, String> {
    let mut json =
        serde_json::to_value(status).map_err(|e| format!("cannot write the status as JSON: {e}"))?;
    json["used_bytes"] = object(&status.used_bytes);
    json["counters"] = object(&status.counters);
    json["cluster"]["avoided"] = object(&status.cluster.avoided);
    for (i, mount) in status.mounts.iter().enumerate() {
        json["mounts"][i]["root"] = name(&mount.root).into();
    }
    Ok(json)
}

fn write(s: &Status, counters: bool, out: &mut dyn Write) -> io::Result<()> {
    let used: u64 = s.used_bytes.iter().map(|(_, bytes)| bytes).sum();
    let up = Duration::from_millis(s.uptime_ms);
    writeln!(out, "agent     forebay {}, process {}, up {:.0?}", s.version, s.pid, up)?;
    writeln!(out, "tier      {}, huge pages {}, eviction {}", s.tier, s.huge_pages, s.eviction)?;
    writeln!(
        out,
        "budget    {} of {} {}",
        Human(used),
        Human(s.capacity_bytes),
        bar(used, s.capacity_bytes)
    )?;
    for (class, bytes) in s.used_bytes.iter().filter(|(_, bytes)| *bytes > 0) {
        writeln!(out, "          {:<9} {:>10}", class, Human(*bytes).to_string())?;
    }
    writeln!(
        out,
        "files     {} cached, {} memory-only, {} pinned",
        s.files,
        s.scratch_files,
        Human(s.pinned_bytes)
    )?;
    writeln!(out, "clients   {} connections", s.connections)?;
    if !s.memory_places.is_empty() {
        let alarms = if s.memory_alarms.is_empty() { "nothing".into() } else { s.memory_alarms.join(", ") };
        writeln!(out, "memory    {}; the agent is woken by {alarms}", s.memory_places.join(", "))?;
    }
    for problem in &s.memory_problems {
        writeln!(out, "memory    NOT WATCHED, the tier does not grow: {problem}")?;
    }
    cluster(&s.cluster, out)?;
    peers(s, out)?;
    for mount in &s.mounts {
        let (label, root) = (&mount.label, name(&mount.root));
        write!(out, "mount     {label} at {root}: {} fetched", Human(mount.fetched_bytes))?;
        write!(out, ", {} in progress, {} failed", mount.fetches_pending, mount.fetch_errors)?;
        // A fetch takes milliseconds; one that takes seconds means a PFS in trouble.
        if mount.slowest_ms > 1000 {
            write!(out, "; the PFS has not answered for {:.1} s", mount.slowest_ms as f64 / 1e3)?;
        }
        if !mount.mounted {
            write!(out, "; NOTHING IS MOUNTED THERE: mount the PFS again")?;
        }
        writeln!(out)?;
        if !mount.mounted {
            continue;
        }
        let kept = if mount.cached { "" } else { "NOT CACHED: " };
        writeln!(out, "          {kept}{}", mount.stamps)?;
    }
    // With one job there is nothing to compare.
    if s.traffic.len() > 1 {
        traffic::table(&s.traffic).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    }
    if counters {
        for (name, value) in &s.counters {
            writeln!(out, "{name:<29} {value:>15}  {}", help(name))?;
        }
    }
    Ok(())
}

/// Members shown by name; a thousand of them would hide everything else.
const MEMBERS_SHOWN: usize = 16;

fn cluster(cluster: &ClusterStatus, out: &mut dyn Write) -> io::Result<()> {
    let nodes = &cluster.view.nodes;
    let mut shown: Vec<_> = nodes.iter().take(MEMBERS_SHOWN).map(member).collect();
    if nodes.len() > MEMBERS_SHOWN {
        shown.push(format!("and {} more", nodes.len() - MEMBERS_SHOWN));
    }
    writeln!(out, "cluster   epoch {}, {} members: {}", cluster.view.epoch, nodes.len(), shown.join(", "))?;
    let coordinator = match cluster.coordinator.as_str() {
        "" => "in this process".to_owned(),
        address => format!("at {address}"),
    };
    writeln!(out, "          this node is {}; the coordinator is {coordinator}", cluster.node)?;
    let seconds = cluster.since_ms / 1000;
    if !cluster.connected {
        writeln!(
            out,
            "          the coordinator does not answer for {seconds} s; these were the last known members"
        )?;
        for (candidate, why) in &cluster.problems {
            writeln!(out, "          {candidate}: {why}")?;
        }
    } else if cluster.leader.1 > 0 {
        let (leader, term) = &cluster.leader;
        writeln!(out, "          {leader} leads, in term {term}; connected for {seconds} s")?;
    }
    for (name, ms) in &cluster.avoided {
        writeln!(out, "          {name} does not answer; the agent avoids it for {:.1} s", *ms as f64 / 1e3)?;
    }
    Ok(())
}

/// Pages to and from other nodes, once there are any.
fn peers(s: &Status, out: &mut dyn Write) -> io::Result<()> {
    let counter = |name: &str| s.counters.iter().find(|c| c.0 == name).map_or(0, |c| c.1);
    let (came, went) = (counter("from_peers_bytes"), counter("to_peers_bytes"));
    let failed = counter("peer_late_total") + counter("peer_broken_total");
    if came + went + failed + counter("pages_placed_total") == 0 {
        return Ok(());
    }
    write!(out, "peers     {} received, {} sent", Human(came), Human(went))?;
    write!(out, ", {} in remote pages here", Human(counter("remote_page_bytes")))?;
    writeln!(out, ", {} refused, {failed} failed", counter("peer_refusals_total"))
}

fn member(node: &NodeInfo) -> String {
    let role = match node.role {
        Role::CoLocated => "",
        Role::Dedicated => ", dedicated",
    };
    format!("{} ({}{role})", node.name, Human(node.capacity_bytes))
}

fn bar(used: u64, capacity: u64) -> String {
    const WIDTH: u64 = 30;
    let filled = (used * WIDTH).checked_div(capacity).unwrap_or(0).min(WIDTH) as usize;
    format!("[{}{}]", "#".repeat(filled), ".".repeat(WIDTH as usize - filled))
}
