//! Scenarios of kind `batch`.

use forebay_policy::batch_queue;

use super::reader::Section;
use super::{GB, MAX_GB, MAX_HORIZON_S, MAX_S, Names, ns};
use crate::batch::swf::{self, Logged};
use crate::batch::workload::{Arrives, Buffers, Rooms, Shape, Size};
use crate::batch::{Checkpoints, JobSpec, Setup};
use crate::error::Result;

/// Each job costs memory, and a plan looks at all that wait.
const MAX_JOBS: u64 = 1_000_000;
pub const MAX_NODES: u64 = 1_000_000;
const MAX_BUFFERS: u64 = 1_000;
/// The least rate: a byte per second, in GB/s.
pub const LEAST_GB: f64 = 1e-9;
/// Number of quantiles in a list.
const QUANTILES: std::ops::RangeInclusive<usize> = 1..=1_001;

/// Reads the whole file.
pub fn read(root: &Section<'_>) -> Result<Setup> {
    let seed = root.whole("seed", 0, i64::MAX as u64, Some(0))?;
    let cluster = root.need("cluster")?;
    let queue = root.optional("queue")?;
    let mut setup = Setup {
        policy: queue.policy(batch_queue::POLICIES, "fcfs-bb")?,
        nodes: cluster.whole("nodes", 1, MAX_NODES, None)? as u32,
        buffers: cluster.whole("buffers", 0, MAX_BUFFERS, Some(0))? as u32,
        buffer_bytes: 0,
        buffer_bytes_per_s: GB,
        pfs_bytes_per_s: GB,
        holds_nodes: cluster.flag("holds_nodes", false)?,
        checkpoints: None,
        bound_ns: ns(queue.number("bound_s", 1e-3, MAX_S, Some(600.0))?),
        jobs: Vec::new(),
        seed,
    };
    if setup.buffers > 0 {
        setup.buffer_bytes = (cluster.number("buffer_gb", LEAST_GB, MAX_GB, None)? * GB) as u64;
        setup.buffer_bytes_per_s = cluster.number("buffer_gb_per_s", LEAST_GB, MAX_GB, None)? * GB;
        setup.pfs_bytes_per_s = cluster.number("pfs_gb_per_s", LEAST_GB, MAX_GB, None)? * GB;
    }
    cluster.done()?;
    queue.done()?;
    setup.checkpoints = root.section("checkpoints")?.map(|s| checkpoints(&s)).transpose()?;
    let buffers =
        Buffers { count: setup.buffers, bytes: setup.buffer_bytes, bytes_per_s: setup.buffer_bytes_per_s };
    if let Some(logged) = logged(root, setup.nodes, seed)? {
        setup.jobs = rooms(&root.optional("room")?)?.furnish(&logged, buffers, seed);
    }
    let mut names = Names::default();
    for s in root.list("job")? {
        let job = job(&s, &mut names)?;
        if !setup.config().fits(&setup.demand(&job)) {
            return Err(s.error("nodes", "the job does not fit into the empty cluster and its burst buffers"));
        }
        setup.jobs.push(job);
    }
    setup.jobs.sort_by_key(|job| job.submit_ns);
    if setup.jobs.is_empty() {
        return Err(root.error("job", "tables [[job]], [log] or [generate] are needed"));
    }
    root.complete(setup)
}

fn checkpoints(s: &Section<'_>) -> Result<Checkpoints> {
    s.complete(Checkpoints {
        every_ns: ns(s.number("every_s", 1.0, MAX_S, Some(3600.0))?),
        phases_max: s.whole("phases_max", 1, 1_000, Some(10))? as u32,
        part: s.number("part", 0.0, 1.0, Some(0.5))?,
    })
}

/// Jobs of a log or of distributions, without those that want more nodes than there are.
pub fn logged(root: &Section<'_>, nodes: u32, seed: u64) -> Result<Option<Vec<Logged>>> {
    let logged = match (root.section("log")?, root.section("generate")?) {
        (Some(_), Some(generate)) => return Err(generate.error("jobs", "a [log] has its own jobs")),
        (Some(log), None) => {
            let all = swf::read(&log.beside(&log.text("swf", None)?))?;
            let skip = log.whole("skip", 0, MAX_JOBS, Some(0))? as usize;
            let jobs = log.whole("jobs", 1, MAX_JOBS, Some(MAX_JOBS))? as usize;
            log.done()?;
            all.into_iter().skip(skip).take(jobs).collect()
        }
        (None, Some(generate)) => shape(&generate)?.draw(nodes, seed),
        (None, None) => return Ok(None),
    };
    Ok(Some(logged.into_iter().filter(|job| job.nodes <= nodes).collect()))
}

fn shape(s: &Section<'_>) -> Result<Shape> {
    let quantiles = |key, least: f64, most: f64| -> Result<Vec<f64>> {
        let list = s.ascending(key, least, most)?;
        match QUANTILES.contains(&list.len()) {
            true => Ok(list),
            false => {
                Err(s.error(key, format!("{} to {} numbers are needed", QUANTILES.start(), QUANTILES.end())))
            }
        }
    };
    let nodes = s.points("nodes")?.filter(|points| {
        !points.is_empty() && points.iter().all(|(n, weight)| *n > 0 && weight.is_finite() && *weight > 0.0)
    });
    s.complete(Shape {
        jobs: s.whole("jobs", 1, MAX_JOBS, None)? as u32,
        interarrival_s: quantiles("interarrival_s", 0.0, MAX_S)?,
        arrives: match s.has("per_day") {
            true if s.has("load") => return Err(s.error("load", "per_day says how often jobs come")),
            true => Arrives::PerDay(s.number("per_day", 0.001, 1e6, None)?),
            false => Arrives::Load(s.number("load", 0.01, 10.0, None)?),
        },
        estimate_s: quantiles("estimate_s", 1.0, MAX_S)?,
        accuracy: quantiles("accuracy", 0.0, 1.0)?,
        nodes: nodes
            .ok_or_else(|| s.error("nodes", "a list of [nodes, weight] pairs is needed, both positive"))?,
    })
}

/// The room of jobs of a log or of distributions. The defaults are the distribution that Kopanski
/// and Rzadca fitted to memory per processor in the METACENTRUM log (their `burstbuffer/model.py`).
pub fn rooms(s: &Section<'_>) -> Result<Rooms> {
    let size = match s.choice("source", &["log-normal", "memory"], Some("log-normal"))?.as_str() {
        "memory" => Size::Memory,
        _ => Size::LogNormal {
            median: s.number("median_gb", LEAST_GB, MAX_GB, Some(2.779_254_348))? * GB,
            sigma: s.number("sigma", 0.0, 10.0, Some(1.097_251_660))?,
            shift: s.number("shift_gb", -MAX_GB, MAX_GB, Some(-0.153_970_274))? * GB,
        },
    };
    s.complete(Rooms {
        size,
        least: s.number("least_gb", 0.0, MAX_GB, Some(0.1))? * GB,
        short_s: s.number("short_s", 0.0, MAX_S, Some(120.0))?,
        short: s.number("short_gb", 0.0, MAX_GB, Some(0.01))? * GB,
        staged: s.number("staged", 0.0, 1.0, Some(1.0))?,
        moves: s.number("moves", 0.0, 1e6, Some(0.0))?,
    })
}

fn job(s: &Section<'_>, names: &mut Names) -> Result<JobSpec> {
    let name = s.text("name", None)?;
    names.add(s, "name", &name)?;
    let nodes = s.whole("nodes", 1, MAX_NODES, Some(1))? as u32;
    let run_s = s.number("run_s", 1e-3, MAX_HORIZON_S, None)?;
    let room_gb = s.number("room_gb", 0.0, MAX_GB, Some(0.0))?;
    let of_node = |gb: f64| (gb * GB / f64::from(nodes)) as u64;
    s.complete(JobSpec {
        name,
        submit_ns: ns(s.number("submit_s", 0.0, MAX_HORIZON_S, Some(0.0))?),
        nodes,
        run_ns: ns(run_s),
        estimate_ns: ns(s.number("estimate_s", 1e-3, MAX_HORIZON_S, Some(run_s))?),
        bytes_per_node: of_node(room_gb),
        stage_in_bytes: of_node(s.number("stage_in_gb", 0.0, room_gb, Some(0.0))?),
        stage_out_bytes: of_node(s.number("stage_out_gb", 0.0, room_gb, Some(0.0))?),
    })
}
