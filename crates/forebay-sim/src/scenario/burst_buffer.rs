//! Scenarios of kind `burst-buffer`.

use forebay_model::rng::Rng;
use forebay_policy::burst::access;
use forebay_policy::burst::allocation::{self, Action, Allocator, Demand, Event};
use forebay_policy::machine::{Machine, Nanos};

use super::darshan::{self, Moved};
use super::reader::Section;
use super::{GB, MAX_GB, MAX_S, Names, arrivals, for_ns, horizon_ns, ns};
use crate::arrivals::Arrivals;
use crate::burst::{Broken, DrainSetup, Fault, JobSpec, RandomFailures, Setup};
use crate::error::Result;

/// More nodes than the largest machines have; each costs memory.
const MAX_NODES: u64 = 65_536;
/// Most jobs; this many take a gigabyte.
const MAX_JOBS: u64 = 1_000_000;
/// Most steps of a job.
const MAX_STEPS: u64 = 1_000_000;
/// Number of the stream of random numbers that instances are drawn from; a job's own has its index.
const DRAWS: u64 = u64::MAX - 1;

/// Reads the whole file.
pub fn read(root: &Section<'_>) -> Result<Setup> {
    let mut names = Names::default();
    let mut setup = buffers(root, "cluster", None)?;
    setup.horizon_ns = horizon_ns(root)?;
    add_jobs(root, "job", &mut setup, &mut names)?;
    finish(root, "job", "node", &root.list("fault")?, &mut setup)?;
    root.complete(setup)
}

/// The nodes, which the section `nodes` describes, and the policies that are in force there.
pub fn buffers(root: &Section<'_>, nodes: &'static str, drain: Option<DrainSetup>) -> Result<Setup> {
    let seed = root.whole("seed", 0, i64::MAX as u64, Some(0))?;
    let cluster = root.need(nodes)?;
    let nodes = cluster.whole("nodes", 1, MAX_NODES, None)? as u32;
    let node_bytes = (cluster.number("node_gb", 1e-6, MAX_GB, None)? * GB).round() as u64;
    let node_bytes_per_s = cluster.number("node_gb_per_s", 1e-6, MAX_GB, None)? * GB;
    cluster.done()?;
    let (access, config) = access_policy(&root.optional("access")?, nodes)?;
    let section = root.optional("allocation")?;
    let allocation = section.policy(allocation::POLICIES, "full")?;
    section.done()?;
    Ok(Setup {
        nodes,
        node_bytes,
        node_bytes_per_s,
        allocation,
        access,
        config,
        jobs: Vec::new(),
        faults: Vec::new(),
        random: root.section("failures")?.map(|s| failures(&s)).transpose()?,
        drain,
        seed,
        horizon_ns: None,
    })
}

/// Adds the jobs of the list `key`.
pub fn add_jobs(root: &Section<'_>, key: &'static str, setup: &mut Setup, names: &mut Names) -> Result<()> {
    // One stream of random numbers for each entry, none of which the run uses.
    let rng = Rng::new(setup.seed).fork(DRAWS);
    for (i, s) in (0..).zip(root.list(key)?) {
        for job in jobs(&s, setup, rng.fork(i))? {
            names.add(&s, "name", &job.name)?;
            setup.jobs.push(job);
        }
    }
    Ok(())
}

/// Completes what follows from all jobs of the list `key`: their order, and `faults` of jobs and of
/// nodes; those name a node by the key `node`.
pub fn finish(
    root: &Section<'_>,
    key: &str,
    node: &'static str,
    faults: &[Section<'_>],
    setup: &mut Setup,
) -> Result<()> {
    let shuffle = root.flag("shuffle", false)?;
    if setup.jobs.len() as u64 > MAX_JOBS {
        let problem = format!("there are {} jobs and at most {MAX_JOBS} are allowed", setup.jobs.len());
        return Err(root.error(key, problem));
    }
    if shuffle {
        Rng::new(setup.seed).shuffle(&mut setup.jobs);
    }
    for s in faults {
        setup.faults.push(fault(s, node, setup)?);
    }
    Ok(())
}

fn access_policy(s: &Section<'_>, nodes: u32) -> Result<(String, access::Config)> {
    let policy = s.policy(access::POLICIES, "coflow")?;
    let patience_ns = s.number_if("patience_s", 0.0, MAX_S)?.map_or(u64::MAX, ns);
    let config = access::Config {
        nodes,
        lease_ns: ns(s.number("lease_s", 1e-3, MAX_S, Some(30.0))?),
        ageing: s.number("ageing", 0.0, 1e3, Some(0.0))?,
        patience_ns,
        overstay: 0,
    };
    s.complete((policy, config))
}

/// The instances of one `[[job]]`.
fn jobs(s: &Section<'_>, setup: &Setup, mut rng: Rng) -> Result<Vec<JobSpec>> {
    let count = s.whole("count", 1, MAX_JOBS, Some(1))?;
    let interarrival_ns = ns(s.number("interarrival_s", 0.0, MAX_S, Some(0.0))?);
    let sizes = s.choice("sizes", &["fixed", "exponential"], Some("fixed"))?;
    let size = ["darshan", "process_gb"].into_iter().find(|key| s.has(key)).unwrap_or("step_gb");
    let spec = job(s, setup)?;
    s.done()?;
    let mut starts_ns = Some(spec.starts_ns);
    let mut instance = |i: u64| {
        let name = if count == 1 { spec.name.clone() } else { format!("{}#{i}", spec.name) };
        let starts = starts_ns.ok_or_else(|| {
            let problem = format!(
                "job {i} of {count} (count) would start after the end of the clock, 584 years: fewer jobs or a shorter time is needed"
            );
            s.error("interarrival_s", problem)
        })?;
        let mut instance = JobSpec { name, starts_ns: starts, ..spec.clone() };
        if sizes == "exponential" {
            instance.step_bytes = (rng.exponential() * spec.step_bytes as f64).round().max(1.0) as u64;
        }
        if interarrival_ns > 0 {
            let gap_ns = (rng.exponential() * interarrival_ns as f64) as u64;
            starts_ns = starts.checked_add(gap_ns);
        }
        Ok(instance)
    };
    let jobs = (1..=count).map(&mut instance).collect::<Result<Vec<JobSpec>>>()?;
    all_fit(s, size, setup, &jobs)?;
    Ok(jobs)
}

/// An error about the key `size` if a step would not fit on an empty system. Only the largest steps
/// are tried, in total or on a node.
fn all_fit(s: &Section<'_>, size: &str, setup: &Setup, jobs: &[JobSpec]) -> Result<()> {
    let nodes = |job: &JobSpec| match (&job.on, job.nodes) {
        (Some(on), _) => on.len() as u32,
        (None, nodes) => nodes.unwrap_or(setup.nodes),
    };
    let largest = jobs.iter().max_by_key(|job| job.step_bytes);
    let densest = jobs.iter().max_by_key(|job| job.step_bytes.div_ceil(u64::from(nodes(job))));
    match largest.into_iter().chain(densest).find(|job| !fits(setup, job)) {
        None => Ok(()),
        Some(job) => {
            let (on, space_gb) = (nodes(job), setup.node_bytes as f64 / GB);
            let allocation = &setup.allocation;
            Err(s.error(
                size,
                format!("a step has to fit on its nodes, {on} of {space_gb} GB, when nobody else is there (allocation '{allocation}')"),
            ))
        }
    }
}

/// What the instances of one `[[job]]` have in common.
fn job(s: &Section<'_>, setup: &Setup) -> Result<JobSpec> {
    let steps = match s.has("darshan") {
        true => recorded(s)?,
        false => steps(s)?,
    };
    let nodes = match s.has("nodes") {
        true => Some(s.whole("nodes", 1, u64::from(setup.nodes), None)? as u32),
        false => None,
    };
    let on = s.members("on", setup.nodes)?;
    if let (Some(_), Some(_)) = (nodes, &on) {
        return Err(s.error("on", "give either nodes, for the allocation policy, or on"));
    }
    let client_gb_per_s = s.number_if("client_gb_per_s", 1e-9, MAX_GB)?;
    let client_bytes_per_s = client_gb_per_s.map_or(f64::INFINITY, |gb| gb * GB);
    Ok(JobSpec {
        name: s.text("name", None)?,
        processes: steps.processes,
        step_bytes: steps.bytes.round().max(1.0) as u64,
        nodes,
        on,
        client_bytes_per_s,
        steps: steps.count,
        compute_ns: steps.compute_ns,
        starts_ns: ns(s.number("starts_s", 0.0, MAX_S, Some(0.0))?),
        io_first: steps.io_first,
        arrivals: steps.arrivals,
    })
}

/// What a job writes, and when.
struct Steps {
    processes: f64,
    bytes: f64,
    count: u32,
    compute_ns: u64,
    io_first: bool,
    arrivals: Arrivals,
}

fn steps(s: &Section<'_>) -> Result<Steps> {
    let processes = s.whole("processes", 1, 1_000_000_000, None)? as f64;
    let step_gb = match (s.has("step_gb"), s.has("process_gb")) {
        (true, true) => return Err(s.error("process_gb", "give either step_gb or process_gb")),
        (false, true) => processes * s.number("process_gb", 1e-9, MAX_GB, None)?,
        _ => s.number("step_gb", 1e-9, MAX_GB, None)?,
    };
    Ok(Steps {
        processes,
        bytes: step_gb * GB,
        count: s.whole("steps", 1, MAX_STEPS, Some(1))? as u32,
        compute_ns: ns(s.number("compute_s", 0.0, MAX_S, Some(0.0))?),
        io_first: s.flag("io_first", false)?,
        arrivals: arrivals(s)?,
    })
}

/// The steps of the job of a Darshan log: each of its phases that writes is a step of mean size.
fn recorded(s: &Section<'_>) -> Result<Steps> {
    let job = darshan::Job::read(s, Moved::Written)?;
    if job.mean_bytes() > MAX_GB * GB {
        return Err(s.error("darshan", format!("its phases write more than {MAX_GB} GB each")));
    }
    Ok(Steps {
        processes: s.whole("processes", 1, 1_000_000_000, Some(job.processes.into()))? as f64,
        bytes: job.mean_bytes(),
        count: job.phases.len() as u32,
        compute_ns: job.mean_compute_ns(),
        io_first: false,
        arrivals: job.arrivals(None),
    })
}

/// Whether the allocation policy has room for it on an empty system. Nodes given by hand are not in
/// any books.
fn fits(setup: &Setup, spec: &JobSpec) -> bool {
    if let Some(on) = &spec.on {
        return setup.room_bytes(spec).div_ceil(on.len() as u64) <= setup.node_bytes;
    }
    let Ok(policy) = allocation::policy(&setup.allocation) else { return false };
    let mut allocator = Allocator::new(policy, setup.nodes, setup.node_bytes);
    let demand = Demand { bytes: setup.room_bytes(spec), nodes: spec.nodes };
    let mut out = Vec::new();
    allocator.handle(Nanos(0), Event::Asks { job: 0, demand }, &mut out);
    matches!(out.first(), Some(Action::Allocate { .. }))
}

fn fault(s: &Section<'_>, node: &'static str, setup: &Setup) -> Result<Fault> {
    let what = match (s.has(node), s.has("job")) {
        (true, false) => Broken::Node { node: s.whole(node, 0, u64::from(setup.nodes - 1), None)? as u32 },
        (false, _) => {
            let name = s.text("job", None)?;
            let job = setup.jobs.iter().position(|j| j.name == name);
            let known = || setup.jobs.iter().take(8).map(|j| j.name.as_str()).collect::<Vec<_>>().join(", ");
            Broken::Job {
                job: job
                    .ok_or_else(|| s.error("job", format!("no job has this name; there are {}", known())))?,
            }
        }
        (true, true) => return Err(s.error("job", format!("give either {node} or job"))),
    };
    let fault = Fault { what, at_ns: ns(s.number("at_s", 0.0, MAX_S, None)?), for_ns: for_ns(s)? };
    s.complete(fault)
}

fn failures(s: &Section<'_>) -> Result<RandomFailures> {
    s.complete(RandomFailures {
        node_mean_ns: ns(s.number("node_mean_s", 1.0, 1e9, None)?),
        node_down_ns: ns(s.number("node_down_s", 1e-3, MAX_S, None)?),
    })
}
