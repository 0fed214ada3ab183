//! `forebay lab run`: a program on a node, in all of the node's namespaces.
//!
//! On one node this process becomes the program, so that terminal, signals and exit code are the
//! program's own. On all nodes the programs are children, and their output is distinguished by the
//! node's name.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use clap::Args;

use super::cpu;
use super::plan::{Place, Role};
use super::space::{self, DIR_VARIABLE, LAB_VARIABLE, NODE_VARIABLE};
use super::spark;
use super::state::Record;
use crate::LabError;

/// Variable with the path of the file system.
pub const PFS_VARIABLE: &str = "FOREBAY_LAB_PFS";

/// Arguments of `forebay lab run`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Name of the lab
    #[arg(long, value_name = "LAB", env = space::LAB_VARIABLE, default_value = "lab")]
    pub name: String,
    /// Where to run it, such as c2, pfs-s1 or head
    #[arg(long, value_name = "NODE", default_value = "c1")]
    pub node: String,
    /// Run it on all compute nodes at the same time; each line of output begins with the node's
    /// name
    #[arg(long, conflicts_with = "node")]
    pub all: bool,
    /// Run it outside the node's quota of cores, as a program that runs elsewhere on a real cluster
    #[arg(long)]
    pub free: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

/// Runs the program. On one node this returns only if it could not be started.
///
/// # Errors
/// If it could not be started, or if it failed on some node.
pub fn run(args: &RunArgs) -> Result<(), LabError> {
    super::root::need_root("run")?;
    let record = Record::of_running(&args.name)?;
    if args.all {
        run_on_all(&record, &args.command, args.free)
    } else {
        become_program(&record, &args.node, &args.command, args.free)
    }
}

fn become_program(record: &Record, node: &str, line: &[OsString], free: bool) -> Result<(), LabError> {
    let mut command = command(record, node, line)?;
    if let Some(door) = record.cpu_door(node)?.filter(|_| !free) {
        cpu::join(door)?;
    }
    let here = std::env::current_dir().ok();
    space::enter(record.holder(node)?)?;
    // Where the user was, if the node has it; entering a mount namespace leads to its root.
    if let Some(here) = here {
        let _ = std::env::set_current_dir(here);
    }
    Err(could_not_start(&line[0], node, command.exec()))
}

fn could_not_start(program: &OsString, node: &str, why: io::Error) -> LabError {
    LabError::io(format!("cannot start {} on node {node}", program.to_string_lossy()), why)
}

/// Builds the program's command, with the environment of its node.
fn command(record: &Record, node: &str, line: &[OsString]) -> Result<Command, LabError> {
    let place: &Place = &record.place;
    let program = line.first().ok_or_else(|| LabError::new("nothing to run"))?;
    let mut command = Command::new(program);
    command.args(&line[1..]);
    command.env(LAB_VARIABLE, &place.name).env(DIR_VARIABLE, &place.dir).env(NODE_VARIABLE, node);
    command.env(PFS_VARIABLE, place.pfs());
    if record.agents.is_some() && record.mounts_on(record.node(node)?.role) {
        command.env("FOREBAY_SOCKET", place.agent_socket());
    }
    if let Some(spark) = &record.spark {
        spark::environment(&mut command, spark, node);
    }
    Ok(command)
}

fn run_on_all(record: &Record, line: &[OsString], free: bool) -> Result<(), LabError> {
    let mut children = Vec::new();
    for node in record.nodes.iter().filter(|node| node.role == Role::Compute) {
        let mut command = command(record, &node.name, line)?;
        if let Some(door) = record.cpu_door(&node.name)?.filter(|_| !free) {
            cpu::join_as_child(&mut command, door);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Ok(here) = std::env::current_dir() {
            command.current_dir(here);
        }
        let start = || command.spawn().map_err(|e| could_not_start(&line[0], &node.name, e));
        children.push((node.name.clone(), space::inside(record.holder(&node.name)?, start)?));
    }
    let failed: Vec<String> = std::thread::scope(|scope| {
        let follow = |(name, child): (String, Child)| scope.spawn(move || follow(&name, child));
        let followers: Vec<_> = children.into_iter().map(follow).collect();
        followers.into_iter().filter_map(|follower| follower.join().ok().flatten()).collect()
    });
    if failed.is_empty() { Ok(()) } else { Err(LabError::new(failed.join("; "))) }
}

/// Passes on a child's output; returns how it failed, if it did.
fn follow(node: &str, mut child: Child) -> Option<String> {
    let (out, err) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        scope.spawn(|| out.map(|out| pass_on(node, out, &mut io::stdout())));
        scope.spawn(|| err.map(|err| pass_on(node, err, &mut io::stderr())));
    });
    match child.wait() {
        Ok(status) if status.success() => None,
        Ok(status) => Some(format!("node {node}: {status}")),
        Err(e) => Some(format!("node {node}: {e}")),
    }
}

fn pass_on(node: &str, from: impl Read, to: &mut impl Write) {
    for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
        let whole = [node.as_bytes(), b": ", &line, b"\n"].concat();
        // Continue reading even if nobody listens: the program must not be held up.
        let _ = to.write_all(&whole);
    }
}
