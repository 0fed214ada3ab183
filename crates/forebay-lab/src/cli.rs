//! `forebay lab ...`: the arguments, and what each command does.
//!
//! The command line crate includes [`LabCommand`] as a subcommand and forwards to [`run`].

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::{Args, Subcommand};

use crate::LabError;
use crate::cluster::{self, run::RunArgs, space::LAB_VARIABLE, spark::SparkCommand, up::UpArgs};
use crate::print::print_json;
use crate::quantity::{Rate, parse_bytes, parse_duration_ns, parse_rate};
use crate::slowfs::{self, Config, Stamps, remote};

/// Test fixtures on one machine: a cluster (`up` to `spark`) and a slow file system (`slowfs` and
/// the following commands).
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Start a cluster with a real parallel file system, in namespaces of this machine
    Up(UpArgs),
    /// Stop the cluster, and remove what a crash has left behind
    Down {
        /// Name of the lab
        #[arg(long, value_name = "LAB", env = LAB_VARIABLE, default_value = "lab")]
        name: String,
    },
    /// Run a program on a node of the cluster
    Run(RunArgs),
    /// Show the cluster: nodes, links, bytes and processes
    Status {
        /// Name of the lab
        #[arg(long, value_name = "LAB", env = LAB_VARIABLE, default_value = "lab")]
        name: String,
    },
    /// Print the bytes on the links, as a line of JSON
    Traffic {
        /// Name of the lab
        #[arg(long, value_name = "LAB", env = LAB_VARIABLE, default_value = "lab")]
        name: String,
        /// Print another line after each interval of this length, until interrupted
        #[arg(long, value_name = "TIME", value_parser = parse_duration_ns)]
        every: Option<u64>,
    },
    /// Set the counters of the links that `status` shows to zero
    Mark {
        /// Name of the lab
        #[arg(long, value_name = "LAB", env = LAB_VARIABLE, default_value = "lab")]
        name: String,
    },
    /// Change the rate of the servers' links while programs run
    Links {
        /// Name of the lab
        #[arg(long, value_name = "LAB", env = LAB_VARIABLE, default_value = "lab")]
        name: String,
        /// Such as 80MB/s or unlimited
        #[arg(value_parser = parse_rate)]
        rate: Rate,
    },
    /// Start or stop Spark on the cluster
    #[command(subcommand)]
    Spark(SparkCommand),
    /// Mount a slow, striped parallel file system over a directory
    Slowfs(SlowfsArgs),
    /// Make a slow file system fail, hang or wait: read=EIO, write=ENOSPC,count=3,
    /// read=hang:30s,path=*.bin, latency=50ms, none
    Fault {
        /// Where the slow file system is mounted
        mount: PathBuf,
        /// The faults, separated by `;`
        spec: String,
    },
    /// Print the counters of a slow file system as JSON
    Stats {
        /// Where the slow file system is mounted
        mount: PathBuf,
        /// Set all counters to zero afterwards
        #[arg(long)]
        reset: bool,
    },
    /// Change the rate of each server of a slow file system
    Rate {
        /// Where the slow file system is mounted
        mount: PathBuf,
        /// Such as 50MB/s, 1GiB/s or unlimited
        rate: String,
    },
}

/// Arguments of `forebay lab slowfs`.
#[derive(Debug, Clone, Args)]
pub struct SlowfsArgs {
    /// Directory that holds the files
    #[arg(long, value_name = "DIR")]
    pub backing: PathBuf,
    /// Directory to mount on
    #[arg(long, value_name = "DIR")]
    pub mount: PathBuf,
    /// Number of storage servers
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub servers: usize,
    /// Bandwidth of each server, reads and writes together
    #[arg(long, value_name = "RATE", default_value = "50MB/s", value_parser = parse_rate)]
    pub rate: Rate,
    /// Unit of striping
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = parse_bytes)]
    pub stripe: u64,
    /// Time added to each operation
    #[arg(long, value_name = "TIME", default_value = "0.2ms", value_parser = parse_duration_ns)]
    pub latency: u64,
    /// How far the kernel reads ahead of a sequential reader [default: four stripes a server, at
    /// least 4MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub read_ahead: Option<u64>,
    /// How long the kernel may use names and attributes without asking the file system
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = parse_duration_ns)]
    pub attr_ttl: u64,
    /// How time stamps follow changes
    #[arg(long, value_enum, default_value_t)]
    pub stamps: Stamps,
    /// Allow other users to access the mount
    #[arg(long)]
    pub allow_other: bool,
    /// Bypass the page cache: each read reaches the servers with the size the program asked for
    #[arg(long)]
    pub direct_io: bool,
    /// Return as soon as it is mounted; end it with `umount`
    #[arg(long)]
    pub daemonize: bool,
    /// Stay in the foreground even if --daemonize was given
    #[arg(long)]
    pub foreground: bool,
}

impl SlowfsArgs {
    /// The file system these arguments describe.
    pub fn config(&self) -> Config {
        Config {
            servers: self.servers,
            rate_bytes_per_s: self.rate.bytes_per_s,
            stripe_bytes: self.stripe,
            latency_ns: self.latency,
            read_ahead_bytes: self.read_ahead,
            attr_ttl_ns: self.attr_ttl,
            stamps: self.stamps,
            allow_other: self.allow_other,
            direct_io: self.direct_io,
            ..Config::new(&self.backing, &self.mount)
        }
    }
}

/// Carries out a lab command. `slowfs` in the foreground returns when the file system has been
/// unmounted; call it before the process starts threads. `json`: write JSON where there is a text
/// for people too.
///
/// # Errors
/// A sentence for the user.
pub fn run(command: &LabCommand, json: bool) -> Result<(), LabError> {
    match command {
        LabCommand::Up(args) => cluster::up::up(args, json),
        LabCommand::Down { name } => cluster::down::down(name, json),
        LabCommand::Run(args) => cluster::run::run(args),
        LabCommand::Status { name } => cluster::status::print(name, json),
        LabCommand::Traffic { name, every } => cluster::status::traffic(name, *every),
        LabCommand::Mark { name } => cluster::status::mark(name),
        LabCommand::Links { name, rate } => cluster::status::set_rate(name, rate.bytes_per_s),
        LabCommand::Spark(command) => cluster::spark::run(command, json),
        LabCommand::Slowfs(args) if args.daemonize && !args.foreground => daemonize(),
        LabCommand::Slowfs(args) => slowfs::serve(&args.config()),
        LabCommand::Fault { mount, spec } => remote::set_fault(mount, spec),
        LabCommand::Rate { mount, rate } => remote::set_rate(mount, rate),
        LabCommand::Stats { mount, reset } => {
            print_json(&remote::stats(mount)?)?;
            if *reset { remote::reset(mount) } else { Ok(()) }
        }
    }
}

/// Starts this very command again in the foreground, in its own session, and returns once that
/// process is ready.
///
/// Not fork(2) alone: the caller may have threads, and a forked child of such a process may do
/// almost nothing.
fn daemonize() -> Result<(), LabError> {
    let failed = |error| LabError::io("cannot start the slow file system in the background", error);
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).arg("--foreground");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // SAFETY: setsid is async-signal-safe and touches no memory of the parent.
    unsafe {
        command.pre_exec(|| rustix::process::setsid().map(drop).map_err(Into::into));
    }
    let mut child = command.spawn().map_err(failed)?;
    let mut first = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut first).map_err(failed)?;
    }
    if first.trim() == "ready" {
        return writeln!(io::stdout(), "ready").map_err(failed);
    }
    let mut why = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut why).map_err(failed)?;
    }
    let why = why.trim().trim_start_matches("error: ");
    Err(LabError::new(if why.is_empty() { "the background process ended before it was ready" } else { why }))
}
