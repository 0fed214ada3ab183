//! Scenarios of kind `cluster`.

use forebay_policy::{planner, ship};

use super::reader::Section;
use super::{MAX_GB, MAX_S, Names, horizon_ns, ns, profile};
use crate::cluster::{JobSpec, Placement, Reduce, Setup, Shipping, Shuffle, WRITE_BYTES};
use crate::error::Result;

/// An upper bound that only catches typing errors.
const MAX_BYTES: u64 = (MAX_GB * 1e9) as u64;
/// The same limit as for a mount of an agent.
const MAX_PAGE_BYTES: u64 = 64 << 20;
/// Each task costs memory.
const MAX_TASKS: u64 = 1_000_000;
const MAX_REDUCE_TASKS: u64 = 65_536;
/// Each part that goes from a map to a reduce task costs three events.
const MAX_PARTS: u64 = 20_000_000;

/// Reads the whole file.
pub fn read(root: &Section<'_>) -> Result<Setup> {
    let mut setup = nodes(root)?;
    setup.horizon_ns = horizon_ns(root)?;
    add_jobs(root, &mut setup, &mut Names::default())?;
    root.complete(setup)
}

/// The nodes and the file system.
pub fn nodes(root: &Section<'_>) -> Result<Setup> {
    let seed = root.whole("seed", 0, i64::MAX as u64, Some(0))?;
    let section = root.optional("planner")?;
    let policy = section.policy(planner::POLICIES, "no-action")?;
    let system = match section.has("profile") {
        true => Some(profile::read(&section.beside(&section.text("profile", None)?))?),
        false => None,
    };
    section.done()?;
    let cluster = root.need("cluster")?;
    let pfs = root.need("pfs")?;
    let bytes = |s: &Section<'_>, key, default| s.whole(key, 1, MAX_BYTES, default);
    let placement = match pfs.choice("placement", &["in-turn", "random"], Some("in-turn"))?.as_str() {
        "random" => Placement::Random,
        _ => Placement::InTurn,
    };
    let setup = Setup {
        policy,
        system,
        nodes: cluster.whole("nodes", 1, 4096, None)? as u32,
        slots: cluster.whole("slots", 1, 1024, Some(1))? as u32,
        tier_bytes: bytes(&cluster, "tier_bytes", None)?,
        extent_bytes: bytes(&cluster, "extent_bytes", Some(128 << 20))?,
        page_bytes: cluster.whole("page_bytes", 4096, MAX_PAGE_BYTES, Some(2 << 20))?,
        fetch_threads: cluster.whole("fetch_threads", 1, 1024, Some(8))? as u32,
        locality_wait_ns: ns(cluster.number("locality_wait_s", 0.0, MAX_S, Some(1.0))?),
        servers: pfs.whole("servers", 1, 4096, None)? as u32,
        server_bytes_per_s: pfs.number("server_bytes_per_s", 1.0, MAX_BYTES as f64, None)?,
        stripe_bytes: bytes(&pfs, "stripe_bytes", Some(MAX_BYTES))?,
        placement,
        layout_known: pfs.flag("layout_known", true)?,
        read_ahead_bytes: pfs.whole("read_ahead_bytes", 4096, MAX_BYTES, Some(128 << 10))?,
        write_bytes: pfs.whole("write_bytes", 4096, MAX_BYTES, Some(WRITE_BYTES))?,
        streams: pfs.flag("streams", false)?,
        shuffle: match cluster.choice("shuffle", &["fetch", "files"], Some("fetch"))?.as_str() {
            "files" => Shuffle::Files,
            _ => Shuffle::Fetch,
        },
        shipping: root.section("shipping")?.map(|s| shipping(&s)).transpose()?,
        jobs: Vec::new(),
        seed,
        horizon_ns: None,
    };
    cluster.done()?;
    pfs.complete(setup)
}

/// Servers that run tasks.
fn shipping(s: &Section<'_>) -> Result<Shipping> {
    s.complete(Shipping {
        policy: s.policy(ship::POLICIES, "estimate")?,
        slots: s.whole("slots", 1, 1024, None)? as u32,
        cpu_times: s.number("cpu_times", 0.01, 100.0, Some(1.0))?,
        io_share: s.number("io_share", 0.01, 1.0, Some(1.0))?,
        disk_bytes_per_s: s.number("disk_bytes_per_s", 1.0, MAX_BYTES as f64, None)?,
    })
}

/// The second stage of a job, if it has one.
fn reduce(s: &Section<'_>) -> Result<Option<Reduce>> {
    let reduce = Reduce {
        tasks: s.whole("reduce_tasks", 0, MAX_REDUCE_TASKS, Some(0))? as u32,
        bytes: s.whole("shuffled_bytes", 0, MAX_BYTES, Some(0))?,
        task_cpu_ns: ns(s.number("reduce_cpu_s", 0.0, MAX_S, Some(0.0))?),
    };
    Ok((reduce.tasks > 0).then_some(reduce))
}

/// The jobs that the file has.
pub fn add_jobs(root: &Section<'_>, setup: &mut Setup, names: &mut Names) -> Result<()> {
    for s in root.list("job")? {
        let job = job(&s, setup)?;
        names.add(&s, "name", &job.name)?;
        setup.jobs.push(job);
    }
    Ok(())
}

/// The earlier job in the file that has to end first.
fn after(s: &Section<'_>, jobs: &[JobSpec]) -> Result<Option<usize>> {
    if !s.has("after") {
        return Ok(None);
    }
    let name = s.text("after", None)?;
    let job = jobs.iter().position(|job| job.name == name);
    job.map(Some).ok_or_else(|| s.error("after", "the name of a job before it in the file is needed"))
}

fn job(s: &Section<'_>, setup: &Setup) -> Result<JobSpec> {
    let input_bytes = s.whole("input_bytes", 1, MAX_BYTES, None)?;
    let task_cpu_s = s.number("task_cpu_s", 0.0, MAX_S, None)?;
    let mut spec = JobSpec {
        name: s.text("name", None)?,
        input_bytes,
        file_bytes: s.whole("file_bytes", 1, MAX_BYTES, None)?.min(input_bytes),
        split_bytes: s.whole("split_bytes", 1, MAX_BYTES, Some(setup.extent_bytes))?,
        task_cpu_ns: ns(task_cpu_s),
        first_task_cpu_ns: Some(ns(s.number("first_task_cpu_s", 0.0, MAX_S, Some(task_cpu_s))?)),
        servers: None,
        starts_ns: ns(s.number("starts_s", 0.0, MAX_S, Some(0.0))?),
        after: after(s, &setup.jobs)?,
        output_bytes: s.whole("output_bytes", 0, MAX_BYTES, Some(0))?,
        spilled_bytes: s.whole("spilled_bytes", 0, MAX_BYTES, Some(0))?,
        result_bytes: s.whole("result_bytes", 0, MAX_BYTES, Some(0))?,
        reduce: reduce(s)?,
    };
    if spec.reduce.is_none() && s.has("spilled_bytes") {
        return Err(s.error("spilled_bytes", "reduce_tasks is needed: only map tasks before those spill"));
    }
    let least_bytes = spec.split_bytes.min(spec.file_bytes).min(setup.stripe_bytes);
    let tasks = spec.input_bytes / least_bytes;
    let parts = tasks.saturating_mul(spec.reduce.map_or(0, |reduce| reduce.tasks.into()));
    if parts > MAX_PARTS {
        let problem =
            format!("{parts} parts would go from map to reduce tasks and at most {MAX_PARTS} are allowed");
        return Err(s.error("reduce_tasks", problem));
    }
    let stripes = spec.written_bytes() / setup.stripe_bytes as f64;
    if stripes > MAX_PARTS as f64 {
        let problem = format!("its tasks would write {stripes} stripes and at most {MAX_PARTS} are allowed");
        return Err(s.error("output_bytes", problem));
    }
    if tasks > MAX_TASKS {
        let problem = format!("it has {tasks} files, splits or stripes and at most {MAX_TASKS} are allowed");
        return Err(s.error("input_bytes", problem));
    }
    spec.servers = s.members_of_lists("servers", setup.servers)?;
    s.done()?;
    if let Some(servers) = &spec.servers {
        let stripes = |file| spec.bytes_of(file).div_ceil(setup.stripe_bytes);
        let lengths: Vec<u64> = (0..spec.files()).map(stripes).collect();
        if !lengths.iter().copied().eq(servers.iter().map(|file| file.len() as u64)) {
            return Err(
                s.error("servers", format!("a server for each stripe of {} files is needed", lengths.len()))
            );
        }
    }
    Ok(spec)
}
