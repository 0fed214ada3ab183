//! Scenarios of kind `colocation`.

use forebay_model::profile::Profile;
use forebay_policy::bandwidth;
use forebay_policy::phases::EARLIER_MAX;
use forebay_policy::planner::{self, Config};

use super::darshan::{self, Moved};
use super::profile::{self, LEAST_FACTOR, System};
use super::reader::Section;
use super::{GB, MAX_GB, MAX_S, Names, arrivals, for_ns, horizon_ns, ns};
use crate::arrivals::Arrivals;
use crate::colocate::knowledge::Knowledge;
use crate::colocate::{HpcSpec, JobSpec, MemoryChange, NODES_MAX, NodeFault, Setup};
use crate::error::Result;

/// As many as there may be phases; each wave costs memory.
const MAX_WAVES: f64 = 1e4;

/// Most processes of a job; an upper bound that only catches typing errors.
const MAX_PROCESSES: u64 = 1_000_000_000;

/// Reads the whole file.
pub fn read(root: &Section<'_>) -> Result<Setup> {
    let seed = root.whole("seed", 0, i64::MAX as u64, Some(0))?;
    let cluster = root.need("cluster")?;
    let measured = match root.is_text("profile") {
        true => from_file(root)?,
        false => {
            // A profile of a live cluster may have more nodes.
            cluster.whole("nodes", 1, NODES_MAX, None)?;
            System::read(&cluster)?.profile(&root.need("profile")?, 1)?
        }
    };
    let (nodes, pfs_bytes_per_s) = (measured.profile.max_nodes, measured.pfs_bytes_per_s);
    let ram_bytes = cluster.number("ram_gb", 1e-6, MAX_GB, None)? * GB;
    cluster.done()?;
    let section = root.optional("planner")?;
    let policy = section.policy(planner::POLICIES, "forebay")?;
    let learning = section.number("learning", 0.0, 1.0, Some(measured.learning))?;
    section.done()?;
    let section = root.optional("bandwidth")?;
    let bandwidth = section.policy(bandwidth::POLICIES, "fair-share")?;
    section.done()?;
    let truth = match root.section("truth")? {
        None => measured.profile.clone(),
        Some(s) => truth(&s, &measured.profile)?,
    };
    let mut names = Names::default();
    let sections = root.list("hpc")?;
    let hpc = sections.iter().map(|s| hpc(s, pfs_bytes_per_s, &mut names)).collect::<Result<Vec<_>>>()?;
    let jobs = root.list("job")?.iter().map(|s| job(s, ram_bytes, &mut names)).collect::<Result<Vec<_>>>()?;
    let memory = root.list("memory")?.iter().map(memory).collect::<Result<Vec<_>>>()?;
    let faults = root.list("fault")?.iter().map(|s| fault(s, nodes)).collect::<Result<Vec<_>>>()?;
    let horizon_ns = horizon_ns(root)?;
    root.done()?;
    let true_direct = measured.direct;
    let division = bandwidth::policy(&bandwidth)?.division();
    let planner = Config { ram_bytes: ram_bytes as u64, learning, division, ..measured };
    Ok(Setup { policy, bandwidth, planner, truth, true_direct, hpc, jobs, memory, faults, seed, horizon_ns })
}

/// Reads the profile that the scenario names: the coordinator's file.
fn from_file(root: &Section<'_>) -> Result<Config> {
    let planner = profile::read(&root.beside(&root.text("profile", None)?))?;
    match u64::from(planner.profile.max_nodes) <= NODES_MAX {
        true => Ok(planner),
        false => Err(root.error("profile", format!("a file with at most {NODES_MAX} nodes is needed"))),
    }
}

/// What is true where the profile is wrong: interference and speed as multiples of the profile's.
fn truth(s: &Section<'_>, profile: &Profile) -> Result<Profile> {
    let mut truth = profile.clone();
    truth.i_hpc.at_one *= s.number("i_hpc_times", 0.1, 10.0, Some(1.0))?;
    let least = truth.i_hpc.at_one * truth.i_hpc.nodes.least() * truth.i_hpc.threads.least();
    if least < LEAST_FACTOR {
        return Err(
            s.error("i_hpc_times", format!("it makes a true i_hpc of {least}, and at least 1 is needed"))
        );
    }
    truth.prefetch_s.at_one /= s.number("speed_times", 0.01, 100.0, Some(1.0))?;
    s.complete(truth)
}

/// When and for how long a job does I/O.
struct Habit {
    compute_ns: u64,
    io_ns: u64,
    phases: u32,
    processes: u32,
    io_first: bool,
    arrivals: Arrivals,
}

pub fn hpc(s: &Section<'_>, pfs_bytes_per_s: f64, names: &mut Names) -> Result<HpcSpec> {
    let habit = match s.has("darshan") {
        true => recorded(s, pfs_bytes_per_s)?,
        false => habit(s, pfs_bytes_per_s)?,
    };
    let spec = HpcSpec {
        name: s.text("name", None)?,
        compute_ns: habit.compute_ns,
        io_ns: habit.io_ns,
        phases: habit.phases,
        allowance: s.number("allowance_percent", 0.0, 1000.0, Some(5.0))? / 100.0,
        processes: habit.processes,
        starts_ns: ns(s.number("starts_s", 0.0, MAX_S, Some(0.0))?),
        io_first: habit.io_first,
        arrivals: habit.arrivals,
        knowledge: knowledge(s)?,
    };
    s.done()?;
    names.add(s, "name", &spec.name)?;
    Ok(spec)
}

/// What planners know of the job's phases.
fn knowledge(s: &Section<'_>) -> Result<Knowledge> {
    let text = s.choice("knowledge", &Knowledge::ALL.map(|k| k.0), Some(Knowledge::ALL[0].0))?;
    let knowledge = Knowledge::called(&text).unwrap_or_default();
    match (s.has("earlier"), knowledge.is_predicted()) {
        (true, false) => Err(s.error("earlier", "knowledge = \"predicted\" is needed with it")),
        _ => Ok(knowledge.with_earlier(s.whole("earlier", 0, EARLIER_MAX as u64, Some(0))? as u32)),
    }
}

/// Times of each phase, where they were recorded one by one.
fn each(s: &Section<'_>, phases: u32) -> Result<Arrivals> {
    let list = |key, least_s| {
        let times = s.numbers(key, least_s, MAX_S)?;
        match times.len() == phases as usize {
            true => Ok(times.into_iter().map(ns).collect()),
            false => Err(s.error(key, format!("a time for each of {phases} phases is needed"))),
        }
    };
    let (compute_ns, io_ns) = (list("compute_each_s", 0.0)?, list("io_each_s", 1e-6)?);
    Ok(Arrivals::Recorded { compute_ns, io_ns })
}

fn habit(s: &Section<'_>, pfs_bytes_per_s: f64) -> Result<Habit> {
    let io_s = match (s.has("io_s"), s.has("io_gb")) {
        (true, true) => return Err(s.error("io_gb", "give either io_s or io_gb")),
        (true, false) => s.number("io_s", 1e-6, MAX_S, None)?,
        _ => s.number("io_gb", 1e-6, MAX_GB, None)? * GB / pfs_bytes_per_s,
    };
    let phases = s.whole("phases", 1, 1_000_000, Some(10))? as u32;
    let is_recorded = s.has("io_each_s") || s.has("compute_each_s");
    Ok(Habit {
        compute_ns: ns(s.number("compute_s", 0.0, MAX_S, None)?),
        io_ns: ns(io_s),
        phases,
        processes: s.whole("processes", 1, MAX_PROCESSES, Some(1))? as u32,
        io_first: s.flag("io_first", false)?,
        arrivals: if is_recorded { each(s, phases)? } else { arrivals(s)? },
    })
}

/// The habit of the job of a Darshan log. What counts is what a phase moved, and not how long it
/// took there.
fn recorded(s: &Section<'_>, pfs_bytes_per_s: f64) -> Result<Habit> {
    let job = darshan::Job::read(s, Moved::All)?;
    let longest = job.phases.iter().map(|phase| phase.bytes).fold(0.0, f64::max) / pfs_bytes_per_s;
    if longest > MAX_S {
        let problem = format!("its longest phase takes {longest} s alone, and at most {MAX_S} are allowed");
        return Err(s.error("darshan", problem));
    }
    Ok(Habit {
        compute_ns: job.mean_compute_ns(),
        io_ns: ns(job.mean_bytes() / pfs_bytes_per_s).max(1),
        phases: job.phases.len() as u32,
        processes: s.whole("processes", 1, MAX_PROCESSES, Some(job.processes.into()))? as u32,
        io_first: false,
        arrivals: job.arrivals(Some(pfs_bytes_per_s)),
    })
}

fn job(s: &Section<'_>, ram_bytes: f64, names: &mut Names) -> Result<JobSpec> {
    let input_bytes = s.number("input_gb", 1e-6, MAX_GB, None)? * GB;
    let wave_bytes = s.number("wave_gb", 1e-6, MAX_GB, None)? * GB;
    if 2.0 * wave_bytes > ram_bytes {
        let most = ram_bytes / 2.0 / GB;
        return Err(s.error(
            "wave_gb",
            format!("the tier has to hold two waves (cluster.ram_gb), so at most {most} is allowed"),
        ));
    }
    let waves = (input_bytes / wave_bytes).ceil();
    if waves > MAX_WAVES {
        let least = input_bytes / MAX_WAVES / GB;
        return Err(s.error(
            "wave_gb",
            format!("the input (input_gb) makes {waves} waves of it and at most {MAX_WAVES} are allowed: at least {least} is needed"),
        ));
    }
    let spec = JobSpec {
        name: s.text("name", None)?,
        waves: waves as u32,
        wave_bytes: wave_bytes as u64,
        compute_ns: ns(s.number("compute_s", 0.0, MAX_S, None)?),
        tier_read_ns: ns(s.number("tier_read_s", 0.0, MAX_S, Some(0.0))?),
        starts_ns: ns(s.number("starts_s", 0.0, MAX_S, Some(0.0))?),
    };
    s.done()?;
    names.add(s, "name", &spec.name)?;
    Ok(spec)
}

fn memory(s: &Section<'_>) -> Result<MemoryChange> {
    s.complete(MemoryChange {
        at_ns: ns(s.number("at_s", 0.0, MAX_S, None)?),
        bytes: (s.number("ram_gb", 0.0, MAX_GB, None)? * GB) as u64,
    })
}

fn fault(s: &Section<'_>, nodes: u16) -> Result<NodeFault> {
    s.complete(NodeFault {
        node: s.whole("node", 0, u64::from(nodes - 1), None)? as u16,
        at_ns: ns(s.number("at_s", 0.0, MAX_S, None)?),
        for_ns: for_ns(s)?,
    })
}
