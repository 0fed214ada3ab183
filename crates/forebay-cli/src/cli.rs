//! The command tree: one definition for the parser, the help, the shell completions and the man
//! page.

use crate::Outcome;
use crate::beside;
pub use crate::global::Global;
use crate::out::write_out;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use forebay_agent::units::{Amount, parse_bytes, parse_rate};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A memory-speed cache for a parallel file system (PFS).
#[derive(Debug, Parser)]
#[command(name = "forebay", version, propagate_version = true, max_term_width = 110, after_help = beside::help())]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses the command line. An invalid one ends the program here, with exit code 2.
    pub fn from_args() -> Cli {
        let mut cli = OnlyRun::from_args().or_else(help_of_a_program).unwrap_or_else(Cli::parse);
        cli.take_environment();
        let writes = match &cli.command {
            Command::Cat(_) => "`forebay cat` writes the bytes of the files",
            Command::Completions { .. } => "`forebay completions` writes a program for the shell",
            Command::Man { .. } => "`forebay man` writes man pages",
            _ => return cli,
        };
        if cli.global.json {
            let message = format!("{writes} and has no JSON form: omit --json");
            Cli::command().error(ErrorKind::ArgumentConflict, message).exit();
        }
        cli
    }
}

/// The tree with nothing but `run`, whose start is part of the time of each program that it runs:
/// the whole tree takes longer to build than all requests to the agent.
#[derive(Parser)]
#[command(name = "forebay")]
struct OnlyRun {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: RunCommand,
}

#[derive(Subcommand)]
enum RunCommand {
    Run(RunArgs),
}

impl OnlyRun {
    /// Nothing if the command is another one, or if the whole tree must say what is wrong.
    fn from_args() -> Option<Cli> {
        std::env::args_os().nth(1).filter(|word| word == "run")?;
        let OnlyRun { global, command: RunCommand::Run(args) } = OnlyRun::try_parse().ok()?;
        Some(Cli { global, command: Command::Run(args) })
    }
}

/// `forebay help NAME` of a program of its own.
fn help_of_a_program() -> Option<Cli> {
    let mut words = std::env::args_os().skip(1);
    let name = words.next().filter(|word| word == "help").and_then(|_| words.next())?;
    let is_known = beside::PROGRAMS.iter().any(|(command, ..)| name == *command);
    let command = Command::Beside(vec![name, "--help".into()]);
    is_known.then_some(Cli { global: Global { json: false, socket: None }, command })
}

impl Cli {
    /// Takes options that the command line does not set from the environment. An empty variable
    /// counts as unset.
    fn take_environment(&mut self) {
        let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        self.global.socket = self.global.socket.take().or_else(|| variable("FOREBAY_SOCKET"));
        let config = match &mut self.command {
            Command::Up(args) => &mut args.config,
            Command::Agent(args) => &mut args.config,
            Command::Coordinator(args) => &mut args.config,
            Command::Doctor(args) => &mut args.config,
            Command::Ship(args) => &mut args.config,
            Command::Bundle(args) => &mut args.config,
            Command::Config(ConfigCommand::Show { config, .. }) => config,
            _ => return,
        };
        *config = config.take().or_else(|| variable("FOREBAY_CONFIG"));
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start the agent of this node, with an embedded coordinator
    Up(UpArgs),
    /// Run the agent of a cluster's node in the foreground, without a coordinator
    Agent(AgentArgs),
    /// Run the coordinator of a cluster in the foreground
    Coordinator(CoordinatorArgs),
    /// End the agent; the cache stays for the next one
    Down(DownArgs),
    /// Show the state of the agent
    Status(StatusArgs),
    /// Show analytics jobs: their stages, waves and prefetches; and HPC jobs with their I/O phases
    Jobs(JobsArgs),
    /// Show nodes, jobs, I/O phases, who uses which server and the latest decisions on one page,
    /// again every second
    Top(TopArgs),
    /// Explain what was planned
    #[command(subcommand)]
    Plan(PlanCommand),
    /// List all cached files, or the cached part of the given files
    Ls(LsArgs),
    /// Show the cached part of a file, extent by extent
    Stat(PathsArgs),
    /// Load files into the tier
    Load(LoadArgs),
    /// Release the memory of files, or of all files that are not pinned
    Evict(EvictArgs),
    /// Limit the rate at which a job reads and writes the file systems, on all nodes; or list the
    /// limits
    Limit(LimitArgs),
    /// Keep files in the tier once they are there
    Pin(PathsArgs),
    /// Unpin files, so that they can be evicted. For deleted files, use the path that ls shows
    Unpin(PathsArgs),
    /// Show or change the capacity of the running agent
    Capacity(CapacityArgs),
    /// Show memory use, the tier's capacity, and a chart of the last minutes
    Memory,
    /// Write files to standard output, through the tier
    Cat(CatArgs),
    /// Copy a file, through the tier
    Cp(CpArgs),
    /// Compare cached bytes with the PFS
    Verify(PathsArgs),
    /// List files that were written to the tier and are not on the file system yet
    Dirty,
    /// Wait until the file system has what was written to the tier: the given files, or all of this
    /// user
    Sync(SyncArgs),
    /// Save files that cannot be written to the file system
    Rescue(RescueArgs),
    /// Keep the newest sets of checkpoints of a job in the tier, and list them
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Show how the file system has laid out files: stripes and servers
    Layout(PathsArgs),
    /// Run a program whose reads come from the tier, as a job; with --job, guard its I/O phases
    Run(RunArgs),
    /// Run a Spark application on the storage servers that hold its input
    Ship(ShipArgs),
    /// Mount a PFS at a second mount point; files are read from the tier
    Mount(MountArgs),
    /// Unmount a PFS that forebay mount has mounted
    Umount(UmountArgs),
    /// Measure a PFS: the speed of prefetches, and how much they and HPC writers disturb each other
    Profile(ProfileArgs),
    /// Create the certificates with which the nodes of a cluster authenticate each other
    Init(InitArgs),
    /// Check this machine for problems, and name the remedies
    Doctor(DoctorArgs),
    /// Show or change what the running agent or coordinator logs
    Log(LogArgs),
    /// Collect what helps others to find a problem into one file, without names of files and users
    Bundle(BundleArgs),
    /// Check or explain the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print completions for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the man page, or write one page for each command into a directory
    Man {
        /// Directory for the pages
        #[arg(value_name = "DIR")]
        directory: Option<PathBuf>,
    },
    /// Hold a tier's memory file system in a user namespace (started by `up` when it is not root)
    #[command(hide = true)]
    Keeper { state_dir: PathBuf, limit_bytes: u64, pages: String },
    /// Read or write as one process of a measurement (started by `profile`)
    #[command(hide = true)]
    ProfileWorker(ProfileWorkerArgs),
    /// Run, limit or end a part of an application on a storage server (started by `ship`)
    #[command(hide = true)]
    ShipHost(ShipHostArgs),
    /// A program of its own
    #[command(external_subcommand)]
    Beside(Vec<OsString>),
}

#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// A directory on the PFS, writable, with room for --bytes and the writers' files
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Nodes that prefetch, at most
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub nodes: u16,
    /// Threads on each, at most
    #[arg(long, value_name = "N", default_value = "8", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: u16,
    /// Bytes of a prefetch: a wave of the site's jobs, or enough for several seconds
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_bytes)]
    pub bytes: u64,
    /// Processes that write, as an HPC job does
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub writers: u16,
    /// Bytes that each of them writes in an I/O phase
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_bytes)]
    pub writer_bytes: u64,
    /// Readings of each run, at most; fewer are taken if they agree within 5 %
    #[arg(long, value_name = "N", default_value = "7")]
    pub runs: usize,
    /// Words before the command line of a reader or writer, which start it on node {node}, counted
    /// from 0: `ssh node{node}`. Without them all run on this node
    #[arg(long, value_name = "COMMAND")]
    pub launch: Option<String>,
    /// Write the profile to a file, for `cluster.profile`
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write a figure of the interference factors
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct ProfileWorkerArgs {
    pub kind: WorkerKind,
    #[arg(long, default_value = "1")]
    pub threads: u16,
    #[arg(long, default_value = "0")]
    pub bytes: u64,
    /// Stop after the first pass
    #[arg(long)]
    pub once: bool,
    pub files: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WorkerKind {
    Read,
    Write,
}

#[derive(Debug, Args)]
pub struct ShipArgs {
    #[command(subcommand)]
    pub command: Option<ShipCommand>,
    /// Configuration file with [ship] and [[mount]], at the same path on the storage servers
    /// [env: FOREBAY_CONFIG]
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// One of ship.hosts to use; may be given more than once [default: all]
    #[arg(long, value_name = "HOST", global = true)]
    pub host: Vec<String>,
    /// Write what happens on the storage servers to a file: a line of JSON for each change of the
    /// limits
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// spark-submit, or a program that takes its options, and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub enum ShipCommand {
    /// End shipped applications on the storage servers immediately, no matter who has started them
    Stop {
        /// Only this one, as its start has named it
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
    },
}

#[derive(Debug, Args)]
pub struct ShipHostArgs {
    pub action: HostAction,
    #[arg(long)]
    pub name: Option<String>,
    #[arg(long)]
    pub host: Option<String>,
    #[arg(long)]
    pub master: Option<String>,
    #[arg(long)]
    pub spark_home: Option<PathBuf>,
    #[arg(long)]
    pub config: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HostAction {
    Run,
    Control,
    Stop,
}

#[derive(Debug, Args)]
pub struct UpArgs {
    /// Configuration file, or directory with forebay.toml and conf.d
    /// [default: /etc/forebay, of other users than root ~/.config/forebay] [env: FOREBAY_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A PFS to serve, as DIR or LABEL=DIR; may be given more than once
    #[arg(long = "pfs", value_name = "[LABEL=]DIR")]
    pub pfs: Vec<String>,
    /// Budget for everything the agent uses: a size or a share of this node's memory [default: 25%]
    #[arg(long, value_name = "SIZE", value_parser = Amount::parse)]
    pub capacity: Option<Amount>,
    /// Unit of caching of the mounts given with --pfs [default: 2MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub page_size: Option<u64>,
    /// Source of the tier's tmpfs: auto, mount, namespace or directory
    #[arg(long, value_name = "KIND")]
    pub backing: Option<String>,
    /// Eviction policy
    #[arg(long, value_name = "POLICY")]
    pub eviction: Option<String>,
    /// Directory of socket, lock and mount point
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Serve the web console of the coordinator in this process; port 0 picks a free one, which the
    /// log names
    #[arg(long, value_name = "IP:PORT")]
    pub console: Option<String>,
    /// Stay in the foreground instead of returning once the agent is ready
    #[arg(long)]
    pub foreground: bool,
    /// Where a background agent writes its log [default: agent.log in the state directory]
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Configuration file, or directory with forebay.toml and conf.d
    /// [default: /etc/forebay, of other users than root ~/.config/forebay] [env: FOREBAY_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct CoordinatorArgs {
    /// Configuration file; the coordinator uses its tables [cluster], [metrics] and [console]
    /// [env: FOREBAY_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address to listen on, instead of cluster.coordinator_listen; port 0 picks a free port and
    /// prints it
    #[arg(long, value_name = "IP:PORT")]
    pub listen: Option<String>,
    /// Serve the web console, instead of at console.listen
    #[arg(long, value_name = "IP:PORT")]
    pub console: Option<String>,
}

#[derive(Debug, Args)]
pub struct JobsArgs {
    /// Repeat every second until interrupted
    #[arg(long, short)]
    pub watch: bool,
    /// Show HPC jobs only, and who waits for whom; needs no coordinator
    #[arg(long)]
    pub hpc: bool,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    /// Show one page, with everything on it, and end; so does --json
    #[arg(long)]
    pub once: bool,
    /// Time between two pages, in milliseconds
    #[arg(long = "interval", value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=3_600_000))]
    pub interval_ms: u64,
}

#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Show the latest plans and I/O phases: what was known, expected, chosen, why, and what came
    Log(PlanLogArgs),
}

#[derive(Debug, Args)]
pub struct PlanLogArgs {
    /// Limit on the number of plans, and of phases
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    pub last: u32,
}

#[derive(Debug, Args)]
pub struct DownArgs {
    /// Also drop the cache and release its memory
    #[arg(long)]
    pub drop: bool,
    /// State directory of the agent, which may have died
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Show every counter
    #[arg(long)]
    pub counters: bool,
}

#[derive(Debug, Args)]
pub struct LsArgs {
    /// Files or directories [default: all cached files]
    pub paths: Vec<PathBuf>,
    /// Descend into directories
    #[arg(long, short)]
    pub recursive: bool,
}

#[derive(Debug, Args)]
pub struct PathsArgs {
    /// Files, directories or patterns
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Descend into directories
    #[arg(long, short)]
    pub recursive: bool,
}

#[derive(Debug, Args)]
pub struct LoadArgs {
    /// Files, directories (with everything below them) or patterns
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Limit on bytes per second from the PFS
    #[arg(long, value_name = "RATE", default_value = "unlimited", value_parser = parse_rate)]
    pub rate: u64,
    /// Keep the files in the tier
    #[arg(long)]
    pub pin: bool,
    /// Compare every byte with the PFS afterwards; this reads the PFS again
    #[arg(long)]
    pub verify: bool,
    /// Load all of each file on these nodes of the cluster: `all`, or names with commas between
    /// them. The PFS serves each byte once
    #[arg(long, value_name = "NODES", value_delimiter = ',', conflicts_with_all = ["rate", "pin", "verify"])]
    pub nodes: Vec<String>,
    /// Show no progress bar
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
pub struct EvictArgs {
    /// Files, directories or patterns
    #[arg(required_unless_present = "all")]
    pub paths: Vec<PathBuf>,
    /// All files that are not pinned
    #[arg(long, conflicts_with = "paths")]
    pub all: bool,
}

#[derive(Debug, Args)]
pub struct LimitArgs {
    /// Name of the job, as of `forebay run --job`; or the number of a batch job
    pub job: Option<String>,
    /// Bytes per second of the job on all nodes together, such as 200MB/s; none lifts the limit
    #[arg(value_name = "RATE", value_parser = parse_rate)]
    pub rate: Option<u64>,
    /// Number of the user whose job it is [default: yours; for the operator, any user]
    #[arg(long, value_name = "UID", requires = "rate")]
    pub user: Option<u32>,
}

#[derive(Debug, Args)]
pub struct LogArgs {
    /// error, warn, info, debug, trace or off; or a whole filter, such as info,forebay_agent=debug
    pub level: Option<String>,
    /// Only this module, such as `fetch` or `forebay_agent::fetch`
    pub module: Option<String>,
    /// The log of the coordinator, instead of this node's agent
    #[arg(long)]
    pub coordinator: bool,
}

#[derive(Debug, Args)]
pub struct BundleArgs {
    /// File to write [default: forebay-bundle-HOST.tar.gz]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Configuration file of the agent [env: FOREBAY_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Also what the coordinator and the other agents report
    #[arg(long)]
    pub cluster: bool,
    /// Leave names of files and users as they are
    #[arg(long)]
    pub names: bool,
}

#[derive(Debug, Args)]
pub struct CapacityArgs {
    /// New capacity: a size, or a share of this node's memory
    #[arg(value_parser = Amount::parse)]
    pub amount: Option<Amount>,
}

/// Where reads may come from.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ReadModeArg {
    /// The tier, otherwise the PFS, and cache the bytes
    Cached,
    /// The tier only
    Tier,
    /// The PFS only
    Pfs,
}

impl From<ReadModeArg> for forebay_client::ReadMode {
    fn from(mode: ReadModeArg) -> Self {
        match mode {
            ReadModeArg::Cached => Self::Cached,
            ReadModeArg::Tier => Self::TierOnly,
            ReadModeArg::Pfs => Self::PfsOnly,
        }
    }
}

/// Where writes go.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum WriteModeArg {
    /// The PFS only
    Bypass,
    /// The PFS and the tier
    Through,
    /// This node's memory, for this job
    Memory,
    /// This node's memory; the agent writes it to the PFS
    Back,
}

impl From<WriteModeArg> for forebay_client::WriteMode {
    fn from(mode: WriteModeArg) -> Self {
        match mode {
            WriteModeArg::Bypass => Self::Bypass,
            WriteModeArg::Through => Self::Through,
            WriteModeArg::Memory => Self::MemoryOnly,
            WriteModeArg::Back => Self::Back,
        }
    }
}

#[derive(Debug, Args)]
pub struct CatArgs {
    /// Files
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Where the bytes may come from
    #[arg(long, value_enum, default_value = "cached")]
    pub read: ReadModeArg,
}

#[derive(Debug, Args)]
pub struct CpArgs {
    /// File to copy
    pub source: PathBuf,
    /// File or directory to copy to
    pub target: PathBuf,
    /// Where the bytes may come from
    #[arg(long, value_enum, default_value = "cached")]
    pub read: ReadModeArg,
    /// Where the bytes go
    #[arg(long, value_enum, default_value = "through")]
    pub write: WriteModeArg,
    /// How the servers are to hold a new file, such as stripes:8,size:4MiB
    #[arg(long)]
    pub layout: Option<forebay_client::Hint>,
}

#[derive(Debug, Args)]
pub struct SyncArgs {
    /// Files, or directories and patterns: all files below or that match [default: all]
    pub paths: Vec<PathBuf>,
    /// Show no progress bar
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
pub struct RescueArgs {
    /// Directory to save to
    pub directory: PathBuf,
    /// The file with this number in `forebay dirty` [default: all that are parked]
    #[arg(long, value_name = "NUMBER")]
    pub number: Option<u64>,
    /// Give up each file once it is saved
    #[arg(long)]
    pub drop: bool,
}

#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// Keep the newest whole sets of a job, or of files that match a pattern, in the tier
    Keep {
        /// How many; 0 ends the rule
        #[arg(value_name = "N")]
        sets: u32,
        /// The name that the job has by `forebay run --job`; or a pattern of paths, as of
        /// `forebay run --write-back`
        #[arg(value_name = "JOB-OR-PATTERN")]
        selector: PathBuf,
    },
    /// List the sets: what of each is in memory and on the file system
    List,
    /// Print the paths of the newest whole set, one per line: from these a program can restart
    Newest {
        /// As of `forebay checkpoint keep`
        #[arg(value_name = "JOB-OR-PATTERN")]
        selector: PathBuf,
    },
}

#[derive(Debug, Args)]
pub struct RunArgs {
    /// Run it as the HPC job of this name: prefetches do not disturb its I/O phases
    #[arg(long, value_name = "NAME")]
    pub job: Option<String>,
    /// How much longer than alone an I/O phase of the job may take
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = parse_qos, requires = "job")]
    pub qos: u32,
    /// Processes of the job: its weight relative to other jobs
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires = "job")]
    pub processes: u32,
    /// Its I/O phases wait for those of other jobs that share, as cluster.access says; phases that
    /// its program does not declare are held at a write
    #[arg(long, requires = "job")]
    pub share: bool,
    /// Import the I/O phases of an earlier run: the output of darshan-dxt-parser for its log
    #[arg(long, value_name = "LOG", requires = "job")]
    pub darshan: Option<PathBuf>,
    /// Print at the end what the program's reads got from the tier
    #[arg(long, conflicts_with = "no_intercept")]
    pub report: bool,
    /// Leave the program's own reads to the file system
    #[arg(long)]
    pub no_intercept: bool,
    /// Do not print why nothing was served
    #[arg(long, short)]
    pub quiet: bool,
    /// Have new files that match a pattern, or are below a directory, written to memory first; the
    /// agent writes them to the file system. May be given more than once
    #[arg(long, value_name = "PATTERN", conflicts_with = "no_intercept")]
    pub write_back: Vec<PathBuf>,
    /// When `fsync` or `close` returns, what was written is in the memory of this many nodes, or
    /// also on a disk of this node, or on the file system
    #[arg(long, value_name = "N", requires = "write_back", value_parser = ["1", "2", "disk"])]
    pub copies: Option<String>,
    /// Keep the newest N whole sets of checkpoints of the job in the tier; without --job, those of
    /// each pattern of --write-back
    #[arg(long, value_name = "N", requires = "write_back")]
    pub keep: Option<u32>,
    /// Once all files of a set of checkpoints are on the file system, write a file of this name
    /// into their directory
    #[arg(long, value_name = "NAME", requires = "write_back")]
    pub marker: Option<String>,
    /// Lay out new files that match the pattern on the servers: stripes:N, size:BYTES, pool:NAME,
    /// servers:N+N, with commas between them. May be given more than once; the first match counts
    #[arg(long, value_name = "PATTERN=LAYOUT", conflicts_with_all = ["mount", "frozen", "no_intercept"])]
    pub layout: Vec<String>,
    /// Do not wait at the end until the file system has what was written
    #[arg(long, requires = "write_back")]
    pub detach: bool,
    /// Mount over each PFS, for this program alone, instead of loading the library into it
    #[arg(long, conflicts_with_all = ["report", "no_intercept"])]
    pub mount: bool,
    /// As --mount; and DIR does not change during the run, so its names, attributes and contents
    /// cost no request to the file system (can be repeated)
    #[arg(long, value_name = "DIR", conflicts_with_all = ["report", "no_intercept"])]
    pub frozen: Vec<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<std::ffi::OsString>,
}

/// Reads a time in seconds.
pub fn parse_seconds(text: &str) -> Result<std::time::Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.0..=3600.0).contains(s));
    seconds
        .map(std::time::Duration::from_secs_f64)
        .ok_or_else(|| format!("`{text}`: write seconds, from 0 to 3600"))
}

#[derive(Debug, Args)]
pub struct MountArgs {
    /// Root of the PFS as the agent serves it, or a directory below it
    #[arg(value_name = "PFS")]
    pub pfs: PathBuf,
    /// An existing directory outside of PFS, or PFS itself
    #[arg(value_name = "MOUNTPOINT")]
    pub mountpoint: PathBuf,
    /// ro; suid and dev (root only); noexec; attr_timeout=SECONDS; frozen=DIR; write_back=PATTERN;
    /// of opposites, the last wins
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// How long the kernel may cache names and attributes; changes by other nodes become visible up
    /// to this much later
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = parse_seconds)]
    pub attr_timeout: std::time::Duration,
    /// Only this user may use the mount, even if it is root
    #[arg(long)]
    pub private: bool,
    /// DIR, on PFS, does not change until this is unmounted, so its names, attributes and contents
    /// cost no request to the file system (can be repeated); implies --private
    #[arg(long, value_name = "DIR")]
    pub frozen: Vec<PathBuf>,
    /// Have new files that match a pattern, or are below a directory, written to memory first; the
    /// agent writes them to the file system (can be repeated)
    #[arg(long, value_name = "PATTERN")]
    pub write_back: Vec<PathBuf>,
    /// When `fsync` or `close` of such a file returns, what was written is in the memory of this
    /// many nodes, or also on a disk of this node, or on the file system
    #[arg(long, value_name = "N", value_parser = ["1", "2", "disk"])]
    pub copies: Option<String>,
    /// Stay in the foreground
    #[arg(long)]
    pub foreground: bool,
    /// For the agent: only files that are dirty on other nodes; ends after it
    #[arg(long, hide = true)]
    pub for_guests: bool,
    /// Once mounted, leave the session and the standard error of the starter
    #[arg(long, hide = true)]
    pub in_background: bool,
    /// Check the options only (for mount(8))
    #[arg(short = 'f', hide = true)]
    pub fake: bool,
    /// Accepted for mount(8)
    #[arg(short = 's', hide = true)]
    pub sloppy: bool,
    /// Accepted for mount(8)
    #[arg(short = 'n', hide = true)]
    pub no_mtab: bool,
    /// Accepted for mount(8)
    #[arg(short = 'v', hide = true)]
    pub verbose: bool,
    /// Accepted for mount(8)
    #[arg(short = 't', hide = true)]
    pub fs_type: Option<String>,
}

#[derive(Debug, Args)]
pub struct UmountArgs {
    /// Where the PFS is mounted
    #[arg(value_name = "MOUNTPOINT")]
    pub mountpoint: PathBuf,
    /// Detach the mount now; it ends when no program uses it any more
    #[arg(long)]
    pub lazy: bool,
}

#[derive(Debug, Args)]
pub struct InitArgs {
    /// Directory of the cluster's certificates; run again with the same one to add nodes
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
    /// Name of the cluster, shown to users
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<String>,
    /// A node: its stable name, and the address on which it serves its peers; may be given more
    /// than once
    #[arg(long = "node", value_name = "NAME[=IP[:PORT]]")]
    pub nodes: Vec<String>,
    /// The node that runs the coordinator [default: the first one, port 7850]
    #[arg(long, value_name = "NAME[:PORT]")]
    pub coordinator: Option<String>,
    /// Days for which the nodes' certificates are valid
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
}

#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Configuration file; also checks the certificates that it names [env: FOREBAY_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Also compare what the nodes of the cluster report of themselves
    #[arg(long)]
    pub cluster: bool,
    /// Also check this PFS: a directory where you may write, for a small file that is removed
    /// immediately
    #[arg(long, value_name = "DIR")]
    pub pfs: Vec<PathBuf>,
    /// The same directory on another mount of that PFS: check whether it shows changes made through
    /// --pfs
    #[arg(long, value_name = "DIR", requires = "pfs")]
    pub second: Option<PathBuf>,
    /// Overwrite a file of this size through --pfs in one write, and report what --second sees of
    /// its time stamps
    #[arg(long, value_name = "SIZE", requires = "second", value_parser = forebay_agent::units::parse_bytes)]
    pub long_write: Option<u64>,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a configuration file and print its errors
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print the configuration that an agent would start with: files, and variables such as
    /// FOREBAY_TIER_CAPACITY for tier.capacity
    Show {
        /// Configuration file, or directory with forebay.toml and conf.d
        /// [default: /etc/forebay, of other users than root ~/.config/forebay]
        /// [env: FOREBAY_CONFIG]
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Say where each value comes from
        #[arg(long)]
        origin: bool,
    },
    /// Print every key with its default and reason
    Reference,
}

/// A share in percent, in thousandths.
fn parse_qos(text: &str) -> Result<u32, String> {
    let number = text.trim().trim_end_matches('%').trim_end();
    let percent: f64 = number.parse().map_err(|_| format!("{text:?} is no share: write it like 5%"))?;
    if !(0.0..=10_000.0).contains(&percent) {
        return Err(format!("{text:?} must be from 0% to 10000%"));
    }
    Ok((percent * 10.0).round() as u32)
}

/// Ends the program: there is no command `name`, but perhaps a similar one.
pub fn unknown(name: &OsStr) -> ! {
    let mut tree = Cli::command();
    let name = name.to_string_lossy();
    let commands = tree.get_subcommands().filter(|command| !command.is_hide_set()).map(|c| c.get_name());
    let names = commands.chain(beside::PROGRAMS.iter().map(|(command, ..)| *command));
    let tip = match names.min_by_key(|other| edits(&name, other)) {
        Some(other) if edits(&name, other) <= 2 => format!("; a similar one is '{other}'"),
        _ => String::new(),
    };
    tree.error(ErrorKind::InvalidSubcommand, format!("unrecognized subcommand '{name}'{tip}")).exit()
}

/// Letters that have to be added, removed or replaced to make one word of the other (Levenshtein).
fn edits(word: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (i, a) in word.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.chars().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[row.len() - 1]
}

/// Prints completions for `shell`.
pub fn completions(shell: clap_complete::Shell) -> Outcome {
    // Into memory first: the generator panics where a write fails, as on a pipe that is closed
    // early.
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "forebay", &mut text);
    write_out(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the man page, or writes one for each command.
pub fn man(directory: Option<&Path>) -> Outcome {
    let failed = |e: io::Error| format!("cannot write the man page: {e}");
    match directory {
        Some(directory) => {
            std::fs::create_dir_all(directory).map_err(failed)?;
            clap_mangen::generate_to(Cli::command(), directory).map_err(failed)?;
        }
        None => {
            let mut text = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut text).map_err(failed)?;
            write_out(&text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qos_is_a_share_in_percent() {
        assert_eq!(parse_qos("5%"), Ok(50));
        assert_eq!(parse_qos("0.5 %"), Ok(5));
        assert!(parse_qos("-1%").is_err() && parse_qos("much").is_err());
    }

    #[test]
    fn words_are_as_similar_as_few_letters_differ() {
        let pairs = [("stauts", "status"), ("loda", "load"), ("", "up"), ("rnu", "run"), ("top", "top")];
        assert_eq!(pairs.map(|(word, other)| edits(word, other)), [2, 2, 2, 2, 0]);
        assert!(edits("frobnicate", "init") > 2);
    }

    #[test]
    fn the_command_tree_is_sound() {
        Cli::command().debug_assert();
    }

    /// Clap's own check accepts such a collision, and the program then panics when it reads the
    /// option.
    #[test]
    fn no_command_takes_the_name_of_an_option_of_all_commands() {
        fn collisions(command: &clap::Command, global: &[clap::Arg], found: &mut Vec<String>) {
            let same = |a: &clap::Arg, b: &clap::Arg| {
                let longs =
                    |arg: &clap::Arg| arg.get_long_and_visible_aliases().unwrap_or_default().join(" ");
                let shorts = |arg: &clap::Arg| arg.get_short_and_visible_aliases().unwrap_or_default();
                a.get_id() == b.get_id()
                    || longs(a)
                        .split(' ')
                        .any(|long| !long.is_empty() && longs(b).split(' ').any(|l| l == long))
                    || shorts(a).iter().any(|short| shorts(b).contains(short))
            };
            for arg in command.get_arguments().filter(|arg| global.iter().any(|g| same(arg, g))) {
                found.push(format!("{} {}", command.get_name(), arg.get_id()));
            }
            command.get_subcommands().for_each(|below| collisions(below, global, found));
        }
        let root = Cli::command();
        let global: Vec<_> = root.get_arguments().filter(|arg| arg.is_global_set()).cloned().collect();
        assert!(global.len() >= 2, "the options of all commands were not found: {global:?}");
        let mut found = Vec::new();
        root.get_subcommands().for_each(|command| collisions(command, &global, &mut found));
        assert!(found.is_empty(), "{found:?}");
    }
}
