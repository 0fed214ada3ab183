//! Scenarios of kind `colocation`.

use forebay_model::profile::{Curve, Profile, Separable, Setting};
use forebay_policy::bandwidth;
use forebay_policy::planner::{self, Config, DirectStrain};

use super::reader::Section;
use super::{GB, MAX_GB, MAX_S, arrivals, for_ns, ns};
use crate::colocate::{HpcSpec, JobSpec, MemoryChange, NodeFault, Setup};
use crate::error::Result;

/// An upper bound that only catches slips of the pen.
const MAX_FACTOR: f64 = 1e3;
/// As many as there may be phases; each costs memory.
const MAX_WAVES: f64 = 1e4;

/// Reads the whole file.
pub fn read(root: &Section<'_>) -> Result<Setup> {
    let seed = root.whole("seed", 0, i64::MAX as u64, Some(0))?;
    let cluster = root.need("cluster")?;
    let pfs_bytes_per_s = cluster.number("pfs_gb_per_s", 1e-6, MAX_GB, None)? * GB;
    let nodes = cluster.whole("nodes", 1, 4096, None)? as u16;
    let max_threads = cluster.whole("max_threads", 1, 1024, Some(16))? as u16;
    let ram_bytes = cluster.number("ram_gb", 1e-6, MAX_GB, None)? * GB;
    cluster.done()?;
    let (profile, default_setting, direct) =
        profile(&root.need("profile")?, nodes, max_threads, pfs_bytes_per_s)?;
    let (policy, learning) = match root.section("planner")? {
        None => ("forebay".into(), 0.0),
        Some(s) => planner(&s)?,
    };
    let bandwidth = match root.section("bandwidth")? {
        None => "fair-share".into(),
        Some(s) => {
            let names: Vec<&str> = bandwidth::POLICIES.iter().map(|p| p.0).collect();
            let name = s.choice("policy", &names, Some("fair-share"))?;
            s.done()?;
            name
        }
    };
    let truth = match root.section("truth")? {
        None => profile.clone(),
        Some(s) => truth(&s, &profile)?,
    };
    let hpc = root.list("hpc")?.iter().map(|s| hpc(s, pfs_bytes_per_s)).collect::<Result<Vec<_>>>()?;
    let jobs = root.list("job")?.iter().map(|s| job(s, ram_bytes)).collect::<Result<Vec<_>>>()?;
    let memory = root.list("memory")?.iter().map(memory).collect::<Result<Vec<_>>>()?;
    let faults = root.list("fault")?.iter().map(|s| fault(s, nodes)).collect::<Result<Vec<_>>>()?;
    root.done()?;
    let planner =
        Config { profile, default_setting, direct, pfs_bytes_per_s, ram_bytes: ram_bytes as u64, learning };
    Ok(Setup { policy, bandwidth, planner, truth, true_direct: direct, hpc, jobs, memory, faults, seed })
}

fn planner(s: &Section<'_>) -> Result<(String, f64)> {
    let names: Vec<&str> = planner::POLICIES.iter().map(|p| p.0).collect();
    let policy = s.choice("policy", &names, Some("forebay"))?;
    let learning = s.number("learning", 0.0, 1.0, Some(0.0))?;
    s.done()?;
    Ok((policy, learning))
}

fn profile(
    s: &Section<'_>,
    max_nodes: u16,
    max_threads: u16,
    pfs_bytes_per_s: f64,
) -> Result<(Profile, Setting, DirectStrain)> {
    let wave_bytes = s.number("bytes_gb", 1e-6, MAX_GB, None)? * GB;
    let prefetch_s = separable(s, ["prefetch_s", "prefetch_nodes", "prefetch_threads"], 1e-6, MAX_S)?;
    let i_hpc = interference(s, ["i_hpc", "i_hpc_nodes", "i_hpc_threads"])?;
    let i_bd = interference(s, ["i_bd", "i_bd_nodes", "i_bd_threads"])?;
    let nodes = s.whole("default_nodes", 1, u64::from(max_nodes), Some(u64::from(max_nodes)))? as u16;
    let threads = s.whole("default_threads", 1, u64::from(max_threads), Some(1))? as u16;
    let direct = DirectStrain {
        speed_bytes_per_s: s.number("direct_gb_per_s", 1e-6, MAX_GB, Some(pfs_bytes_per_s / GB))? * GB,
        i_hpc: s.number("direct_i_hpc", 1.0, MAX_FACTOR, Some(2.0))?,
        i_bd: s.number("direct_i_bd", 1.0, MAX_FACTOR, Some(2.0))?,
    };
    s.done()?;
    let profile = Profile { prefetch_s, wave_bytes, i_hpc, i_bd, max_nodes, max_threads };
    Ok((profile, Setting::new(nodes, threads), direct))
}

/// A value with one node and one thread, and its curves over nodes and threads (flat if they are
/// missing).
fn separable(s: &Section<'_>, keys: [&'static str; 3], min: f64, max: f64) -> Result<Separable> {
    let at_one = s.number(keys[0], min, max, None)?;
    let curve = |key: &'static str| -> Result<Curve> {
        let points = s.points(key)?.unwrap_or_else(|| vec![(1, 1.0)]);
        if points.first().is_none_or(|p| p.0 != 1) {
            return Err(s.error(key, "the first point must be at 1, to which the others are relative"));
        }
        Curve::relative(&points).map_err(|why| s.error(key, why))
    };
    Ok(Separable { at_one, nodes: curve(keys[1])?, threads: curve(keys[2])? })
}

/// An interference factor. Nothing runs faster because it is disturbed: the factor is at least 1 at
/// every setting.
fn interference(s: &Section<'_>, keys: [&'static str; 3]) -> Result<Separable> {
    let factor = separable(s, keys, 1.0, MAX_FACTOR)?;
    let least = factor.at_one * factor.nodes.least() * factor.threads.least();
    if least < LEAST_FACTOR {
        let at_fault = if factor.nodes.least() < factor.threads.least() { keys[1] } else { keys[2] };
        let [one, nodes, threads] = keys;
        return Err(s.error(
            at_fault,
            format!(
                "{one}, {nodes} and {threads} together make a factor of {least}, and at least 1 is needed"
            ),
        ));
    }
    Ok(factor)
}

/// 1, less what rounding takes from a curve of raw measurements.
const LEAST_FACTOR: f64 = 1.0 - 1e-9;

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
    s.done()?;
    Ok(truth)
}

fn hpc(s: &Section<'_>, pfs_bytes_per_s: f64) -> Result<HpcSpec> {
    let io_s = match (s.has("io_s"), s.has("io_gb")) {
        (true, true) => return Err(s.error("io_gb", "give either io_s or io_gb")),
        (true, false) => s.number("io_s", 1e-6, MAX_S, None)?,
        _ => s.number("io_gb", 1e-6, MAX_GB, None)? * GB / pfs_bytes_per_s,
    };
    let spec = HpcSpec {
        name: s.text("name", None)?,
        compute_ns: ns(s.number("compute_s", 0.0, MAX_S, None)?),
        io_ns: ns(io_s),
        phases: s.whole("phases", 1, 1_000_000, Some(10))? as u32,
        allowance: s.number("allowance_percent", 0.0, 1000.0, Some(5.0))? / 100.0,
        processes: s.whole("processes", 1, 1_000_000_000, Some(1))? as u32,
        starts_ns: ns(s.number("starts_s", 0.0, MAX_S, Some(0.0))?),
        io_first: s.flag("io_first", false)?,
        arrivals: arrivals(s)?,
    };
    s.done()?;
    Ok(spec)
}

fn job(s: &Section<'_>, ram_bytes: f64) -> Result<JobSpec> {
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
    Ok(spec)
}

fn memory(s: &Section<'_>) -> Result<MemoryChange> {
    let change = MemoryChange {
        at_ns: ns(s.number("at_s", 0.0, MAX_S, None)?),
        bytes: (s.number("ram_gb", 0.0, MAX_GB, None)? * GB) as u64,
    };
    s.done()?;
    Ok(change)
}

fn fault(s: &Section<'_>, nodes: u16) -> Result<NodeFault> {
    let fault = NodeFault {
        node: s.whole("node", 0, u64::from(nodes - 1), None)? as u16,
        at_ns: ns(s.number("at_s", 0.0, MAX_S, None)?),
        for_ns: for_ns(s)?,
    };
    s.done()?;
    Ok(fault)
}
