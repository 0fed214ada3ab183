//! `run`: runs a program as a job, with memory-only scratch space that disappears at its end; with
//! `--job` as an HPC job whose I/O phases prefetches must not disturb.
//!
//! The observer library is loaded into the program and counts its I/O in memory that the agent
//! reads. Without the library, or without an agent that observes, the program runs all the same,
//! and reports phases itself or not at all.

use crate::Outcome;
use crate::cli::{Global, RunArgs};
use crate::out::no_agent;
use forebay_client::{Client, HpcJob, HpcJobOptions};
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// File name of the observer library.
const OBSERVER: &str = "libforebay_preload.so";

/// Runs the program; its exit code is this program's.
pub fn run(global: &Global, args: &RunArgs) -> Outcome {
    let client = global.client();
    let token = client.begin_scratch_job().map_err(|e| no_agent(global, &e))?;
    let (program, rest) = args.command.split_first().ok_or("no program to run")?;
    let mut command = Command::new(program);
    command.args(rest).env("FOREBAY_JOB", token);
    if let Some(socket) = client.socket() {
        command.env("FOREBAY_SOCKET", socket);
    }
    // Until the program has ended.
    let _hpc = match &args.job {
        Some(name) => Some(as_hpc_job(global, &client, name, args, &mut command)?),
        None => None,
    };
    // Ctrl-C goes to the program too; this process stays to hold the job until it has ended.
    let ignored = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    signal_hook::flag::register(libc::SIGINT, ignored).map_err(|e| format!("cannot handle signals: {e}"))?;
    let status = command.status().map_err(|e| format!("{}: {e}", program.to_string_lossy()))?;
    let code = status.code().or(status.signal().map(|s| 128 + s)).unwrap_or(1);
    Ok(ExitCode::from(code.clamp(0, 255) as u8))
}

/// Opens the HPC job and has the program observed.
fn as_hpc_job(
    global: &Global,
    client: &Client,
    name: &str,
    args: &RunArgs,
    command: &mut Command,
) -> Result<(HpcJob, Option<OwnedFd>), String> {
    let options = HpcJobOptions {
        allowance_permille: args.qos,
        processes: args.processes,
        shares: args.share,
        ..HpcJobOptions::named(name)
    };
    let job = client.open_hpc_job(&options).map_err(|e| no_agent(global, &e))?;
    command.env("FOREBAY_JOB_NAME", name);
    let memory = observe(client, &job, command);
    if let Err(why) = &memory {
        eprintln!("forebay run: the I/O of {name} is not observed: {why}");
    }
    Ok((job, memory.ok()))
}

fn observe(client: &Client, job: &HpcJob, command: &mut Command) -> Result<OwnedFd, String> {
    let library = observer().ok_or(format!(
        "there is no {OBSERVER} beside this program or in its ../lib; set FOREBAY_PRELOAD to its path"
    ))?;
    let memory = job.observe().map_err(|e| e.to_string())?;
    let mut preload = OsString::from(&library);
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut roots = OsString::new();
    for root in client.mount_roots().map_err(|e| e.to_string())? {
        if !roots.is_empty() {
            roots.push(":");
        }
        roots.push(root);
    }
    command.env("LD_PRELOAD", preload).env("FOREBAY_OBSERVE_ROOTS", roots);
    // The program's children find it there, as long as this process lives.
    let path = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
    command.env("FOREBAY_OBSERVE", path);
    Ok(memory)
}

/// The observer library: named by FOREBAY_PRELOAD, beside this program, or in ../lib of it.
fn observer() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("FOREBAY_PRELOAD").filter(|path| !path.is_empty()) {
        return Some(PathBuf::from(path));
    }
    let program = std::env::current_exe().ok()?;
    let beside = program.parent()?;
    let above = beside.parent().unwrap_or(beside);
    let places = [beside.to_owned(), above.join("lib"), above.join("lib/forebay")];
    places.into_iter().map(|dir| dir.join(OBSERVER)).find(|path| path.is_file())
}
