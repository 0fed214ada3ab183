//! `run`: runs a program as a job, with memory-only scratch space that disappears at its end.

use crate::Outcome;
use crate::cli::{Global, RunArgs};
use crate::out::no_agent;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

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
    // Ctrl-C goes to the program too; this process stays to hold the job until it has ended.
    let ignored = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    signal_hook::flag::register(libc::SIGINT, ignored).map_err(|e| format!("cannot handle signals: {e}"))?;
    let status = command.status().map_err(|e| format!("{}: {e}", program.to_string_lossy()))?;
    let code = status.code().or(status.signal().map(|s| 128 + s)).unwrap_or(1);
    Ok(ExitCode::from(code.clamp(0, 255) as u8))
}
