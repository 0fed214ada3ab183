//! `run`: runs a program as a job, with memory-only scratch space that disappears at its end. The
//! tier serves the program's own reads of the mounts. With `--job` the program is also an HPC job,
//! whose I/O phases prefetches must not disturb.
//!
//! One preloaded library does both: it serves reads, and it counts I/O in memory that the agent
//! reads. Without the library the program still runs: it reads the PFS itself, and reports phases
//! itself or not at all.

use crate::Outcome;
use crate::cli::{Global, RunArgs};
use crate::darshan;
use crate::forward::Failed;
use crate::out::no_agent;
use forebay_agent::units::Human;
use forebay_client::{Client, HpcJob, HpcJobOptions};
use forebay_wire::intercepted::{REGION_BYTES, Region, Report};
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// File name of the library.
const LIBRARY: &str = "libforebay_preload.so";

/// What a program needs to run with the library.
struct Preload {
    library: PathBuf,
    /// The roots of the mounts, separated by colons.
    roots: OsString,
}

/// Runs the program; its exit code is this program's.
pub fn run(global: &Global, args: &RunArgs) -> Outcome {
    if args.mount {
        let roots = global.client().mount_roots().map_err(|e| no_agent(global, &e))?;
        crate::mount::mount_privately(global, &roots)?;
    }
    let client = global.client();
    let token = client.begin_scratch_job().map_err(|e| no_agent(global, &e))?;
    let (program, rest) = args.command.split_first().ok_or("no program to run")?;
    let mut command = Command::new(program);
    command.args(rest).env("FOREBAY_JOB", token);
    if let Some(socket) = client.socket() {
        command.env("FOREBAY_SOCKET", socket);
    }
    let preload = match intercepts(args) || args.job.is_some() {
        true => Preload::find(&client),
        false => Err(String::new()),
    };
    if let Ok(preload) = &preload {
        preload.load_into(&mut command);
    }
    let report = intercept(args, &preload, &mut command)?;
    // Until the program has ended.
    let _hpc = match &args.job {
        Some(name) => Some(as_hpc_job(global, &client, name, args, &preload, &mut command)?),
        None => None,
    };
    let status = match crate::forward::run(&mut command) {
        Ok(status) => status,
        Err(Failed::ToStart(e)) => {
            eprintln!("forebay: {}: {e}", program.to_string_lossy());
            return Ok(ExitCode::from(code_of(&e)));
        }
        Err(Failed::Otherwise(e)) => return Err(format!("{}: {e}", program.to_string_lossy())),
    };
    if let Some(report) = report {
        eprintln!("{}", in_words(&report.region().report()));
    }
    let code = status.code().or(status.signal().map(|s| 128 + s)).unwrap_or(1);
    Ok(ExitCode::from(code.clamp(0, 255) as u8))
}

fn intercepts(args: &RunArgs) -> bool {
    !args.no_intercept && !args.mount
}

/// The exit code for a program that did not start, as shells, `env` and `nohup` give it.
fn code_of(error: &std::io::Error) -> u8 {
    match error.kind() {
        std::io::ErrorKind::NotFound => 127,
        _ => 126,
    }
}

/// Makes the library serve the program's reads, and count them if a report is wanted.
fn intercept(
    args: &RunArgs,
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
        }
        Err(why) => {
            eprintln!("forebay run: the program reads the file system directly: {why}");
            return Ok(None);
        }
    }
    if !args.report {
        return Ok(None);
    }
    let memory = ReportMemory::new().map_err(|e| format!("cannot create the memory of the report: {e}"))?;
    command.env("FOREBAY_REPORT", path_of(&memory.file));
    Ok(Some(memory))
}

/// The path by which the program's children open a file of this process while it lives.
fn path_of(file: &OwnedFd) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

/// Memory in which the processes of the program count.
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

/// What the program gained from the tier.
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

/// Opens the HPC job and has the program observed.
fn as_hpc_job(
    global: &Global,
    client: &Client,
    name: &str,
    args: &RunArgs,
    preload: &Result<Preload, String>,
    command: &mut Command,
) -> Result<(HpcJob, Option<OwnedFd>), String> {
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
    let job = client.open_hpc_job(&options).map_err(|e| no_agent(global, &e))?;
    command.env("FOREBAY_JOB_NAME", name);
    let memory = observe(&job, preload, command);
    if let Err(why) = &memory {
        eprintln!("forebay run: the I/O of {name} is not observed: {why}");
    }
    Ok((job, memory.ok()))
}

fn observe(
    job: &HpcJob,
    preload: &Result<Preload, String>,
    command: &mut Command,
) -> Result<OwnedFd, String> {
    let preload = preload.as_ref().map_err(Clone::clone)?;
    let memory = job.observe().map_err(|e| e.to_string())?;
    command.env("FOREBAY_OBSERVE_ROOTS", &preload.roots).env("FOREBAY_OBSERVE", path_of(&memory));
    Ok(memory)
}

impl Preload {
    fn find(client: &Client) -> Result<Self, String> {
        let library = library().ok_or(format!(
            "there is no {LIBRARY} beside this program or in its ../lib; set FOREBAY_PRELOAD to its path"
        ))?;
        let mut roots = OsString::new();
        for root in client.mount_roots().map_err(|e| e.to_string())? {
            if root.as_encoded_bytes().contains(&b':') {
                let root = root.to_string_lossy();
                eprintln!(
                    "forebay run: files below {root} are left to the file system: the library takes a list of roots \
                     that colons separate; mount the PFS on a path without a colon"
                );
                continue;
            }
            if !roots.is_empty() {
                roots.push(":");
            }
            roots.push(root);
        }
        Ok(Preload { library, roots })
    }

    /// Preloads the library before those that the user preloads.
    fn load_into(&self, command: &mut Command) {
        let mut preload = OsString::from(&self.library);
        let others = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        let is_loaded = std::env::split_paths(&others).any(|path| path == self.library);
        if !others.is_empty() && !is_loaded {
            preload.push(":");
            preload.push(&others);
        }
        command.env("LD_PRELOAD", if is_loaded { others } else { preload });
    }
}

/// The library: named by FOREBAY_PRELOAD, beside this program, or in ../lib of it.
fn library() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("FOREBAY_PRELOAD").filter(|path| !path.is_empty()) {
        return Some(PathBuf::from(path));
    }
    let program = std::env::current_exe().ok()?;
    let beside = program.parent()?;
    let above = beside.parent().unwrap_or(beside);
    let places = [beside.to_owned(), above.join("lib"), above.join("lib/forebay")];
    places.into_iter().map(|dir| dir.join(LIBRARY)).find(|path| path.is_file())
}
