//! Scenarios of kind `world`: the sections of other kinds, in one file.

use forebay_policy::drain;

use super::reader::Section;
use super::{GB, MAX_GB, MAX_S, Names, for_ns, horizon_ns, ns};
use super::{burst_buffer, cluster_of_nodes, colocation, memory_of_a_node};
use crate::burst::{self, DrainSetup};
use crate::cluster::JobSpec;
use crate::colocate::HpcSpec;
use crate::error::Result;
use crate::memory;
use crate::world::{NodeFault, Setup};

/// Each process sends a piece when its phase begins.
const MAX_PROCESSES: u32 = 65_536;
/// A run may have twice as many events.
const MAX_PIECES: f64 = 1e8;
/// Sums of bytes are whole numbers; the sums of three kinds of writers have to fit.
const MAX_BYTES: f64 = 4e18;
/// Every millisecond of a node's load costs memory.
const MAX_NODES_S: f64 = 2e4;
/// The least rate of drains, in GB/s: a byte per second.
const LEAST_GB: f64 = 1e-9;

/// Reads the whole file.
pub fn read(root: &Section<'_>) -> Result<Setup> {
    let seed = root.whole("seed", 0, i64::MAX as u64, Some(0))?;
    let mut names = Names::default();
    let mut cluster = cluster_of_nodes::nodes(root)?;
    cluster_of_nodes::add_jobs(root, &mut cluster, &mut names)?;
    let memory = memory(root, cluster.nodes)?;
    let mut setup = Setup {
        cluster,
        buffers: None,
        hpc: Vec::new(),
        memory,
        faults: Vec::new(),
        seed,
        horizon_ns: horizon_ns(root)?,
    };
    for s in root.list("hpc")? {
        let spec = colocation::hpc(&s, setup.pfs_bytes_per_s(), &mut names)?;
        if spec.processes > MAX_PROCESSES {
            return Err(s.error("processes", format!("at most {MAX_PROCESSES} are allowed")));
        }
        setup.hpc.push(spec);
    }
    let (of_nodes, faults) = root.list("fault")?.into_iter().partition::<Vec<_>, _>(|s| s.has("node"));
    setup.faults = of_nodes.iter().map(|s| node_fault(s, setup.cluster.nodes)).collect::<Result<_>>()?;
    if let (None, Some(fault)) = (root.section("buffers")?, faults.first()) {
        return Err(fault.error("node", "the number of a node is needed, or [buffers] for other faults"));
    }
    if root.has("buffers") {
        let drain = root.section("drain")?.map(|s| drain(&s, &setup)).transpose()?;
        let mut buffers = burst_buffer::buffers(root, "buffers", drain)?;
        burst_buffer::add_jobs(root, "checkpoint", &mut buffers, &mut names)?;
        burst_buffer::finish(root, "checkpoint", "buffer", &faults, &mut buffers)?;
        setup.buffers = Some(buffers);
    }
    root.done()?;
    bounded(root, &setup)?;
    Ok(setup)
}

/// Memory of each node, if the file has a node's memory.
fn memory(root: &Section<'_>, nodes: u32) -> Result<Option<memory::Setup>> {
    if !root.has("node") {
        return Ok(None);
    }
    let memory = memory_of_a_node::node(root)?;
    let all_s = memory.duration_ns as f64 * 1e-9 * f64::from(nodes);
    match all_s <= MAX_NODES_S {
        true => Ok(Some(memory)),
        false => Err(root.error(
            "duration_s",
            format!("{nodes} nodes together have {all_s} s of load, and at most {MAX_NODES_S} are allowed"),
        )),
    }
}

fn node_fault(s: &Section<'_>, nodes: u32) -> Result<NodeFault> {
    s.complete(NodeFault {
        node: s.whole("node", 0, u64::from(nodes - 1), None)? as u32,
        at_ns: ns(s.number("at_s", 0.0, MAX_S, None)?),
        for_ns: for_ns(s)?,
    })
}

/// What is written has to be countable, and each piece of it is an event.
fn bounded(root: &Section<'_>, setup: &Setup) -> Result<()> {
    let of_hpc = |spec: &HpcSpec| setup.phase_bytes(spec.io_ns) as f64 * f64::from(spec.phases);
    let of_steps = |spec: &burst::JobSpec| spec.step_bytes as f64 * f64::from(spec.steps);
    let checkpoints = setup.buffers.iter().filter(|buffers| buffers.drain.is_some()).flat_map(|b| &b.jobs);
    let sums = [
        ("hpc", setup.hpc.iter().map(of_hpc).sum::<f64>()),
        ("checkpoint", checkpoints.map(of_steps).sum()),
        ("job", setup.cluster.jobs.iter().map(JobSpec::written_bytes).sum()),
    ];
    let most = MAX_BYTES.min(MAX_PIECES * setup.cluster.write_bytes as f64);
    match sums.into_iter().find(|(_, bytes)| *bytes > most) {
        None => Ok(()),
        Some((key, bytes)) => Err(root.error(
            key,
            format!("{bytes} bytes are written there in all, and at most {most} are allowed: {MAX_PIECES} pieces (pfs.write_bytes)"),
        )),
    }
}

/// Without this section, steps stay where they are.
fn drain(s: &Section<'_>, setup: &Setup) -> Result<DrainSetup> {
    let policy = s.policy(drain::POLICIES, "yield")?;
    let all_gb = setup.pfs_bytes_per_s() / GB;
    let gb_per_s = s.number("gb_per_s", LEAST_GB, MAX_GB, Some(all_gb.clamp(LEAST_GB, MAX_GB)))?;
    let default = drain::Config::default();
    let age_max_s = default.age_max_ns as f64 * 1e-9;
    s.complete(DrainSetup {
        config: drain::Config {
            yields: drain::POLICIES.iter().any(|(name, yields)| *name == policy && *yields),
            rate_bytes_per_s: (gb_per_s * GB).round() as u64,
            age_max_ns: ns(s.number("age_max_s", 1e-3, MAX_S, Some(age_max_s))?),
            ..default
        },
        policy,
        keeps: s.whole("keeps", 1, 1_000, Some(2))? as u32,
        piece_bytes: setup.cluster.write_bytes,
    })
}
