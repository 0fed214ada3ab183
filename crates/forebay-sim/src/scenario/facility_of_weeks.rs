//! Scenarios of kind `facility`.

use forebay_policy::burst::access;
use forebay_policy::{batch_queue, drain};

use super::batch_queue::{LEAST_GB, MAX_NODES, logged, rooms};
use super::reader::Section;
use super::{GB, MAX_GB, MAX_S, horizon_ns, ns};
use crate::batch::workload::Buffers;
use crate::burst::lasting_leases;
use crate::error::Result;
use crate::facility::{Reports, Setup, Steps, Tier};

const MAX_SERVERS: u64 = 100_000;

/// Reads the whole file.
pub fn read(root: &Section<'_>) -> Result<Setup> {
    let seed = root.whole("seed", 0, i64::MAX as u64, Some(0))?;
    let cluster = root.need("cluster")?;
    let nodes = cluster.whole("nodes", 1, MAX_NODES, None)? as u32;
    let node_bytes = (cluster.number("node_gb", LEAST_GB, MAX_GB, None)? * GB) as u64;
    let link_bytes_per_s = cluster.number("link_gb_per_s", LEAST_GB, MAX_GB, None)? * GB;
    cluster.done()?;
    let pfs = root.need("pfs")?;
    let servers = pfs.whole("servers", 1, MAX_SERVERS, None)? as u32;
    let server_bytes_per_s = pfs.number("server_gb_per_s", LEAST_GB, MAX_GB, None)? * GB;
    let stripes = pfs.whole("stripes", 1, MAX_SERVERS, Some(1))? as u32;
    pfs.done()?;
    let tier = tier(&root.need("tier")?)?;
    let batch = root.optional("queue")?;
    let policy = batch.policy(batch_queue::POLICIES, "fcfs-bb")?;
    let sample_ns = ns(batch.number("sample_s", 1.0, MAX_S, Some(600.0))?);
    batch.done()?;
    let (access, wait_max_ns) = access(&root.optional("access")?)?;
    let logged = logged(root, nodes, seed)?
        .filter(|jobs| !jobs.is_empty())
        .ok_or_else(|| root.error("generate", "jobs are needed: [log] or [generate]"))?;
    let rooms = rooms(&root.optional("checkpoint")?)?;
    // A checkpoint is no larger than the memory of its node.
    let of_nodes = Buffers { count: nodes, bytes: node_bytes, bytes_per_s: server_bytes_per_s };
    root.complete(Setup {
        queue: batch_queue::Config { policy, nodes, room_bytes: Vec::new() },
        link_bytes_per_s,
        servers,
        server_bytes_per_s,
        stripes,
        tier,
        drain: drain(&root.optional("drain")?)?,
        access,
        wait_max_ns,
        steps: steps(&root.optional("steps")?)?,
        reports: reports(&root.optional("reports")?)?,
        sample_ns,
        horizon_ns: horizon_ns(root)?,
        jobs: rooms.furnish(&logged, of_nodes, seed),
        seed,
    })
}

fn tier(s: &Section<'_>) -> Result<Tier> {
    s.complete(Tier {
        bytes: (s.number("node_gb", LEAST_GB, MAX_GB, None)? * GB) as u64,
        bytes_per_s: s.number("gb_per_s", LEAST_GB, MAX_GB, None)? * GB,
        share: s.number("share", 0.0, 1.0, Some(1.0))?,
        keeps: s.whole("keeps", 0, 1_000, Some(1))? as usize,
        chunk_bytes: (s.number("chunk_gb", 0.001, MAX_GB, Some(1.0))? * GB) as u64,
    })
}

fn drain(s: &Section<'_>) -> Result<drain::Config> {
    let policy = s.policy(drain::POLICIES, "yield")?;
    s.complete(drain::Config {
        yields: drain::POLICIES.iter().any(|(name, yields)| *name == policy && *yields),
        age_max_ns: ns(s.number("age_max_s", 0.0, MAX_S, Some(300.0))?),
        ..drain::Config::default()
    })
}

/// Defaults are a coordinator's. Policies that rank steps need a pace of writes, which is not
/// modelled.
fn access(s: &Section<'_>) -> Result<(access::Setup, u64)> {
    let names: Vec<&str> = access::POLICIES.iter().map(|p| p.0).filter(|name| *name != "coflow").collect();
    let policy = s.choice("policy", &names, Some("none"))?;
    let wait_s = s.number("wait_s", 1.0, MAX_S, Some(300.0))?;
    let config = access::Config {
        nodes: s.whole("servers", 1, MAX_SERVERS, Some(256))? as u32,
        patience_ns: ns(wait_s / 2.0),
        overstay: 3,
        ..lasting_leases()
    };
    s.complete((access::Setup { policy, config }, ns(wait_s)))
}

fn steps(s: &Section<'_>) -> Result<Steps> {
    s.complete(Steps {
        every_ns: ns(s.number("every_s", 1.0, MAX_S, Some(60.0))?),
        whole_every: s.whole("whole_every", 1, 1_000_000, Some(60))? as u32,
        part: s.number("part", 0.0, 1.0, Some(0.01))?,
    })
}

fn reports(s: &Section<'_>) -> Result<Reports> {
    let every = |key, default| s.number(key, 0.001, MAX_S, Some(default)).map(ns);
    s.complete(Reports {
        heartbeat_ns: every("heartbeat_s", 1.0)?,
        health_ns: every("health_s", 5.0)?,
        traffic_ns: every("traffic_s", 1.0)?,
        files: s.whole("files", 0, 1_000_000, Some(1))? as u32,
    })
}
