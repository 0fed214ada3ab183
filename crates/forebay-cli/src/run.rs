//! `run`: runs a program as a job, with memory-only scratch space that disappears at its end. The
//! tier serves the program's own reads of the mounts. With `--job` the program is also an HPC job,
//! whose I/O phases prefetches must not disturb.
//!
//! One preloaded library does both: it serves reads, and it counts I/O in memory that the agent
//! reads. Without the library the program still runs: it reads the PFS itself, and reports phases
//! itself or not at all. So it does without an agent: a node whose agent is down must not end the
//! jobs of others.

use crate::Outcome;
use crate::cli::{Global, RunArgs};
use crate::darshan;
use crate::forward::Failed;
use crate::loadable::{Obstacle, obstacle};
use crate::mount::mount_for_program;
use crate::out::no_agent;
use crate::patterns::whole_pattern;
use crate::preload::Preload;
use crate::program::{execute, not_started, start_companion};
use forebay_agent::units::Human;
use forebay_client::dirty::Patterns;
use forebay_client::{Client, Hint, HpcJob, HpcJobOptions};
use forebay_wire::CheckpointRule;
use forebay_wire::intercepted::{REGION_BYTES, Region, Report};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;

const REMEDY: &str = "use `forebay run --mount` or a mount to serve its reads";

/// Runs the program. This process becomes it, unless a report is wanted.
pub fn run(global: &Global, args: &RunArgs) -> Outcome {
    let client = global.client();
    let (program, rest) = args.command.split_first().ok_or("no program to run")?;
    let mut command = Command::new(program);
    command.args(rest);
    let begun = client.begin_scratch_job_of_program();
    let begun = match begun {
        Err(_) if client.await_agent_of_dirty_files() => client.begin_scratch_job_of_program(),
        begun => begun,
    };
    let (token, outlives_exec) = match begun {
        Ok(job) => job,
        Err(e) => {
            if !is_quiet(args) {
                eprintln!("forebay run: {}; the program runs without Forebay", no_agent(global, &e));
            }
            for variable in ["FOREBAY_JOB", "FOREBAY_INTERCEPT_ROOTS", "FOREBAY_OBSERVE"] {
                command.env_remove(variable);
            }
            return Ok(execute(&mut command));
        }
    };
    command.env("FOREBAY_JOB", token);
    if let Some(socket) = client.socket() {
        command.env("FOREBAY_SOCKET", socket);
    }
    let loads = intercepts(args) || args.job.is_some();
    let obstacle = if loads { obstacle(program) } else { None };
    let preload = match (loads, obstacle) {
        (false, _) => Err(String::new()),
        (true, Some(musl @ Obstacle::Musl)) => {
            let program = program.to_string_lossy();
            Err(format!("{program} {musl}, whose dynamic linker cannot load the library"))
        }
        (true, _) => Preload::find(&client),
    };
    if let Ok(preload) = &preload {
        preload.load_into(&mut command);
    }
    let report = intercept(args, obstacle, &preload, &mut command)?;
    let patterns = write_back(args, &preload, &mut command)?;
    let writes_back = !patterns.is_empty();
    lay_out(args, &preload, &mut command)?;
    let rules = if writes_back { checkpoint_rules(args, &client)? } else { Vec::new() };
    let second = args.copies.as_deref().map_or(client.second(), forebay_client::second_place);
    let waits = writes_back && (!args.detach || second.is_some());
    let hpc = match &args.job {
        Some(name) => as_hpc_job(global, &client, name, args, &preload, &mut command)?,
        None => None,
    };
    let mut holder = std::process::id();
    if mounts(args) {
        let mounted = mount_for_program(global, &client, &mut command, args, (&patterns, is_quiet(args)));
        holder = match mounted {
            Err(why) if !args.frozen.is_empty() => {
                if !is_quiet(args) {
                    eprintln!("forebay run: {why}; the program reads the file system directly");
                }
                start_companion(|| Ok(()))?
            }
            mounted => mounted?,
        };
    } else if report.is_none() && !waits && (hpc.is_some() || !outlives_exec) {
        holder = start_companion(|| Ok(()))?;
    }
    if let Some(HpcRun { memory: Some(memory), .. }) = &hpc {
        command.env("FOREBAY_OBSERVE", path_of(holder, memory));
    }
    if report.is_none() && !waits {
        return Ok(execute(&mut command));
    }
    if let Some(report) = &report {
        command.env("FOREBAY_REPORT", path_of(holder, &report.file));
    }
    let status = match crate::forward::run(&mut command) {
        Ok(status) => status,
        Err(Failed::ToStart(e)) => return Ok(not_started(&command, &e)),
        Err(Failed::Otherwise(e)) => return Err(format!("{}: {e}", program.to_string_lossy())),
    };
    if let Some(report) = &report {
        eprintln!("{}", in_words(&report.region().report()));
    }
    match second.filter(|_| args.detach) {
        Some(second) if waits => crate::dirty::wait_for_copies(&client, second)?,
        None if waits => crate::dirty::wait_for_program(&client, &rules, is_quiet(args))?,
        _ => {}
    }
    Ok(crate::forward::end_like(status))
}

/// Has files that match the patterns written to the tier first, through the library or through the
/// mount. Returns the patterns.
fn write_back(
    args: &RunArgs,
    preload: &Result<Preload, String>,
    command: &mut Command,
) -> Result<Patterns, String> {
    const VARIABLE: &str = "FOREBAY_WRITE_BACK";
    command.env_remove(VARIABLE);
    if args.write_back.is_empty() || preload.is_err() && !mounts(args) {
        return Ok(Patterns::default());
    }
    let patterns = args.write_back.iter().map(|pattern| whole_pattern("--write-back", pattern));
    let lines = patterns.collect::<Result<Vec<_>, _>>()?.join("\n");
    if !mounts(args) {
        command.env(VARIABLE, &lines);
        if let Some(copies) = &args.copies {
            command.env("FOREBAY_COPIES", copies);
        }
    }
    Ok(Patterns::from_lines(&lines))
}

/// Has new files that match the patterns laid out on the servers.
fn lay_out(args: &RunArgs, preload: &Result<Preload, String>, command: &mut Command) -> Result<(), String> {
    const VARIABLE: &str = "FOREBAY_LAYOUT";
    if args.layout.is_empty() || preload.is_err() {
        command.env_remove(VARIABLE);
        return Ok(());
    }
    let line = |given: &String| {
        let form =
            || format!("--layout {given}: write PATTERN=LAYOUT, for example '*.h5=stripes:8,size:4MiB'");
        let (pattern, hint) = given.rsplit_once('=').ok_or_else(form)?;
        let hint: Hint = hint.parse().map_err(|e| format!("--layout {given}: {e}"))?;
        Ok::<_, String>(format!("{}={hint}", whole_pattern("--layout", Path::new(pattern))?))
    };
    let lines = args.layout.iter().map(line).collect::<Result<Vec<_>, _>>()?;
    command.env(VARIABLE, lines.join("\n"));
    Ok(())
}

/// Makes the rules for the program's checkpoints that the options name. Returns what they select.
fn checkpoint_rules(args: &RunArgs, client: &Client) -> Result<Vec<String>, String> {
    if args.keep.is_none() && args.marker.is_none() {
        return Ok(Vec::new());
    }
    let patterns = || args.write_back.iter().map(|pattern| whole_pattern("--write-back", pattern)).collect();
    let selectors: Vec<String> = args.job.as_ref().map_or_else(patterns, |job| Ok(vec![job.clone()]))?;
    for selector in &selectors {
        let (keep, marker) = (args.keep, args.marker.clone());
        let rule = CheckpointRule { selector: selector.clone(), keep, marker };
        client
            .set_checkpoint_rule(rule)
            .map_err(|e| format!("no rule for checkpoints of {selector}: {e}"))?;
    }
    Ok(selectors)
}

fn intercepts(args: &RunArgs) -> bool {
    !args.no_intercept && !mounts(args)
}

fn mounts(args: &RunArgs) -> bool {
    args.mount || !args.frozen.is_empty()
}

/// Makes the library serve the program's reads, and count them if a report is wanted.
fn intercept(
    args: &RunArgs,
    obstacle: Option<Obstacle>,
    preload: &Result<Preload, String>,
    command: &mut Command,
) -> Result<Option<ReportMemory>, String> {
    if !intercepts(args) {
        command.env_remove("FOREBAY_INTERCEPT_ROOTS");
        return Ok(None);
    }
    match preload {
        Ok(preload) => {
            command.env("FOREBAY_INTERCEPT_ROOTS", &preload.roots);
            say_what_is_unserved(args, obstacle, command);
        }
        Err(why) => {
            if !is_quiet(args) {
                eprintln!("forebay run: the program reads the file system directly: {why}; {REMEDY}");
            }
            return Ok(None);
        }
    }
    if !args.report {
        return Ok(None);
    }
    let memory = ReportMemory::new();
    memory.map(Some).map_err(|e| format!("cannot create the memory of the report: {e}"))
}

fn is_quiet(args: &RunArgs) -> bool {
    args.quiet || std::env::var_os("FOREBAY_QUIET").is_some_and(|quiet| quiet == "1")
}

/// Reports why the program cannot be served, or has the library report it at the program's end.
fn say_what_is_unserved(args: &RunArgs, obstacle: Option<Obstacle>, command: &mut Command) {
    const SAY_TO: &str = "FOREBAY_SAY_TO";
    if is_quiet(args) {
        command.env_remove(SAY_TO);
        return;
    }
    if let Some(why) = obstacle {
        let program = command.get_program().to_string_lossy();
        eprintln!(
            "forebay run: {program} {why} and does not load the library, so it reads the file system directly; {REMEDY}"
        );
    }
    if let Ok(error) = rustix::fs::fstat(std::io::stderr()) {
        command.env(SAY_TO, format!("{}:{}", error.st_dev, error.st_ino));
    }
}

/// The path by which the program's processes open a file that the process `holder` keeps open.
fn path_of(holder: u32, file: &OwnedFd) -> String {
    format!("/proc/{holder}/fd/{}", file.as_raw_fd())
}

/// Memory in which the processes of the program count their reads.
struct ReportMemory {
    file: OwnedFd,
    at: *mut Region,
}

impl ReportMemory {
    fn new() -> std::io::Result<Self> {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let file = memfd_create("forebay-report", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, REGION_BYTES as u64)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let at = unsafe { mmap(std::ptr::null_mut(), REGION_BYTES, protection, MapFlags::SHARED, &file, 0) }?;
        let memory = ReportMemory { file, at: at.cast() };
        memory.region().init();
        Ok(memory)
    }

    fn region(&self) -> &Region {
        // SAFETY: mapped for the life of this process, as long as the region and aligned to a page;
        // all its fields are atomics, so any content is valid.
        unsafe { &*self.at }
    }
}

/// The report as text: what the program gained from the tier.
fn in_words(report: &Report) -> String {
    let Report { processes, files, reads, hits, .. } = *report;
    let percent = if reads > 0 { hits as f64 * 100.0 / reads as f64 } else { 0.0 };
    let mut text = format!(
        "forebay run: {processes} programs; {files} files opened through the tier, {} left to the file system\n\
         forebay run: {reads} reads served, {hits} of them ({percent:.1} %) from the tier alone: {}; \
         the others: {}; {} failed and were left to the file system",
        report.left_files,
        Human(report.hit_bytes),
        Human(report.miss_bytes),
        report.failures,
    );
    match report.miss_rate_bytes_per_s() {
        Some(rate) => {
            text += &format!(
                "\nforebay run: about {:.2} s saved: bytes from the file system came at {}/s",
                report.saved_s(rate),
                Human(rate as u64)
            )
        }
        None => {
            text += "\nforebay run: no estimate of the time saved: less than 1 MiB came from the file system"
        }
    }
    text
}

/// An HPC job, and the memory in which the program's I/O is counted, for as long as this or a copy
/// of this process lives.
struct HpcRun {
    _job: HpcJob,
    memory: Option<OwnedFd>,
}

/// Opens the HPC job and has the program observed.
fn as_hpc_job(
    global: &Global,
    client: &Client,
    name: &str,
    args: &RunArgs,
    preload: &Result<Preload, String>,
    command: &mut Command,
) -> Result<Option<HpcRun>, String> {
    let earlier = args.darshan.as_deref().map(darshan::earlier).transpose()?;
    let (io, earlier) = earlier.map_or_else(Default::default, |run| (run.io, run.phases));
    let options = HpcJobOptions {
        io,
        earlier,
        allowance_permille: args.qos,
        processes: args.processes,
        shares: args.share,
        ..HpcJobOptions::named(name)
    };
    let job = match client.open_hpc_job(&options) {
        Ok(job) => job,
        Err(e) if e.kind() == std::io::ErrorKind::InvalidInput => return Err(e.to_string()),
        Err(e) => {
            eprintln!("forebay run: {}; the I/O phases of {name} are not guarded", no_agent(global, &e));
            return Ok(None);
        }
    };
    command.env("FOREBAY_JOB_NAME", name);
    let memory = observe(&job, preload, command);
    if let Err(why) = &memory {
        eprintln!("forebay run: the I/O of {name} is not observed: {why}");
    }
    Ok(Some(HpcRun { _job: job, memory: memory.ok() }))
}

fn observe(
    job: &HpcJob,
    preload: &Result<Preload, String>,
    command: &mut Command,
) -> Result<OwnedFd, String> {
    let preload = preload.as_ref().map_err(Clone::clone)?;
    let memory = job.observe().map_err(|e| e.to_string())?;
    command.env("FOREBAY_OBSERVE_ROOTS", &preload.roots);
    Ok(memory)
}
