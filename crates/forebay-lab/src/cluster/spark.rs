//! Spark standalone in the lab: a master on the head, a worker on each compute node.
//!
//! Spark comes from PyPI, in a virtual environment that outlasts the lab, since it takes a minute
//! to get. Workers are known by the host names of their nodes, the names that agents report as
//! locations.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::{Args, Subcommand};
use rustix::process::Signal;

use super::plan::{HEAD, Place, Role};
use super::process::{ProcessId, wait_until};
use super::service::Raising;
use super::state::{Record, SparkRecord};
use super::{lock, packages, space, status};
use crate::LabError;
use crate::quantity::parse_bytes;

/// Versions that are known to run: the last of either line.
const VERSIONS: [&str; 2] = ["3.5.9", "4.3.0"];

/// Where virtual environments are kept unless the user names another place.
const CACHE: &str = "/var/cache/forebay-lab";

/// Programs and their packages.
const PROGRAMS: &[(&str, &str)] = &[("java", "default-jre-headless"), ("python3", "python3")];

const MASTER_PORT: u16 = 7077;
const PAGE_PORT: u16 = 8080;

/// Five virtual machines start at the same time, on two cores or fewer.
const PATIENCE: Duration = Duration::from_secs(120);

/// `forebay lab spark ...`.
#[derive(Debug, Clone, Subcommand)]
pub enum SparkCommand {
    /// Start a Spark master on the head and a worker on each compute node
    Up {
        /// Name of the lab
        #[arg(long, value_name = "LAB", env = space::LAB_VARIABLE, default_value = "lab")]
        name: String,
        /// What to start
        #[command(flatten)]
        args: SparkArgs,
        /// Install what is missing, with apt-get and pip
        #[arg(long)]
        install: bool,
    },
    /// Stop the master and the workers
    Down {
        /// Name of the lab
        #[arg(long, value_name = "LAB", env = space::LAB_VARIABLE, default_value = "lab")]
        name: String,
    },
}

/// What Spark is started with.
#[derive(Debug, Clone, Args)]
pub struct SparkArgs {
    /// Virtual environment with pyspark in it [default: /var/cache/forebay-lab/pyspark-VERSION]
    #[arg(long, value_name = "DIR")]
    pub spark_venv: Option<PathBuf>,
    /// Version of pyspark
    #[arg(long, value_name = "VERSION", default_value = VERSIONS[0], value_parser = VERSIONS)]
    pub spark_version: String,
    /// Cores of each worker, and number of tasks that run on it at a time
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub spark_cores: usize,
    /// Memory of each worker
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_bytes)]
    pub spark_memory: u64,
}

/// An installation of Spark that can be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    venv: PathBuf,
    home: PathBuf,
    cores: usize,
    memory_mib: u64,
}

/// Carries out `forebay lab spark ...`.
///
/// # Errors
/// If something is missing or does not come up.
pub fn run(command: &SparkCommand, json: bool) -> Result<(), LabError> {
    super::root::need_root("spark")?;
    match command {
        SparkCommand::Up { name, args, install } => {
            let prepared = prepare(args, *install)?;
            let _lock = lock::lab(name)?;
            let mut lab = Raising::new(Record::of_running(name)?);
            if lab.record.spark.is_some() {
                return Err(LabError::new(format!(
                    "Spark is up already in lab `{name}`; `forebay lab spark down --name {name}` ends it"
                )));
            }
            if let Err(why) = start(&mut lab, &prepared) {
                stop(&mut lab.record)?;
                return Err(why);
            }
            status::print(name, json)
        }
        SparkCommand::Down { name } => {
            let _lock = lock::lab(name)?;
            stop(&mut Record::of_running(name)?)
        }
    }
}

/// Looks for Java and pyspark, and installs what is missing if `install`.
///
/// # Errors
/// If something is missing, with the command that gets it.
pub fn prepare(args: &SparkArgs, install: bool) -> Result<Prepared, LabError> {
    packages::require(PROGRAMS, install)?;
    let default = || Path::new(CACHE).join(format!("pyspark-{}", args.spark_version));
    let venv = args.spark_venv.clone().unwrap_or_else(default);
    let venv = std::path::absolute(&venv).map_err(|e| LabError::io(format!("{}", venv.display()), e))?;
    if home_in(&venv).is_none() {
        let package = format!("pyspark=={}", args.spark_version);
        if !install {
            return Err(LabError::new(format!(
                "no pyspark in {0}. Run `python3 -m venv {0} && {0}/bin/pip install {package}`, or pass \
                 `--install`",
                venv.display()
            )));
        }
        install_pyspark(&venv, &package)?;
    }
    let home = home_in(&venv).ok_or_else(|| LabError::new(format!("no pyspark in {}", venv.display())))?;
    Ok(Prepared { venv, home, cores: args.spark_cores.max(1), memory_mib: args.spark_memory >> 20 })
}

/// The package's directory is Spark's `SPARK_HOME`.
fn home_in(venv: &Path) -> Option<PathBuf> {
    let mut pythons = fs::read_dir(venv.join("lib")).ok()?.flatten().map(|entry| entry.path());
    pythons.find_map(|python| {
        Some(python.join("site-packages/pyspark")).filter(|home| home.join("bin/spark-class").is_file())
    })
}

fn install_pyspark(venv: &Path, package: &str) -> Result<(), LabError> {
    // Debian's Python has no venv without this package, and says so only when it is used.
    let mut venv_works = Command::new("python3");
    venv_works.args(["-c", "import ensurepip"]).stderr(Stdio::null());
    if !venv_works.status().is_ok_and(|status| status.success()) {
        packages::install(&["python3-venv"])?;
    }
    eprintln!("installing {package} into {}", venv.display());
    let python = venv.join("bin/python");
    quietly(Command::new("python3").args(["-m", "venv"]).arg(venv))?;
    quietly(Command::new(python).args(["-m", "pip", "install", "--disable-pip-version-check", "-q", package]))
}

fn quietly(command: &mut Command) -> Result<(), LabError> {
    let shown = format!("{command:?}");
    let failed = |e| LabError::io(format!("cannot run {shown}"), e);
    let status = command.stdin(Stdio::null()).stdout(io::stderr()).status().map_err(failed)?;
    if status.success() {
        Ok(())
    } else {
        Err(LabError::new(format!("{shown} failed ({status}); its output is above")))
    }
}

/// Starts master and workers and waits until all workers are known to the master.
///
/// # Errors
/// If something does not come up.
pub fn start(lab: &mut Raising, prepared: &Prepared) -> Result<(), LabError> {
    let spark = SparkRecord {
        home: prepared.home.clone(),
        venv: prepared.venv.clone(),
        master: format!("spark://{HEAD}:{MASTER_PORT}"),
        cores: prepared.cores,
        memory_mib: prepared.memory_mib,
    };
    let place = lab.record.place.clone();
    lab.record.spark = Some(spark.clone());
    let mut master = daemon(&place, &spark, HEAD, "org.apache.spark.deploy.master.Master");
    master.args(["--port", &MASTER_PORT.to_string(), "--webui-port", &PAGE_PORT.to_string()]);
    lab.start(HEAD, "spark-master", master)?;
    let workers = lab.names(Role::Compute);
    for node in &workers {
        let mut worker = daemon(&place, &spark, node, "org.apache.spark.deploy.worker.Worker");
        worker.args(["--cores", &spark.cores.to_string(), "--memory", &format!("{}m", spark.memory_mib)]);
        worker.arg("--work-dir").arg(place.own().join("spark/work")).arg(&spark.master);
        worker.env("FOREBAY_SOCKET", place.agent_socket());
        lab.start(node, &worker_service(node), worker)?;
    }
    let head = lab.record.holder(HEAD)?;
    let page = SocketAddr::new(lab.record.node(HEAD)?.address.into(), PAGE_PORT);
    let all = || workers_alive(head, page) == Some(workers.len() as u64);
    lab.wait_for("spark-master", PATIENCE, all)?;
    lab.record.save()
}

/// Name of the service that is a node's worker.
pub fn worker_service(node: &str) -> String {
    format!("spark-worker-{node}")
}

/// A daemon of Spark; `spark-class` becomes it, so that the process that was started is the daemon.
fn daemon(place: &Place, spark: &SparkRecord, node: &str, class: &str) -> Command {
    let mut command = Command::new(spark.home.join("bin/spark-class"));
    command.args([class, "--host", node]).current_dir("/").env("SPARK_DAEMON_MEMORY", "512m");
    environment(&mut command, spark, node);
    command.env("SPARK_LOCAL_DIRS", place.own().join("spark/local"));
    // Daemons would treat it as the address of another cluster.
    command.env_remove("MASTER");
    command
}

/// What a program on a node needs to use the lab's Spark: `spark-submit` and `pyspark` then need no
/// further options.
pub fn environment(command: &mut Command, spark: &SparkRecord, node: &str) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = [spark.venv.join("bin")].into_iter().chain(std::env::split_paths(&path));
    if let Ok(path) = std::env::join_paths(dirs) {
        command.env("PATH", path);
    }
    command.env("SPARK_HOME", &spark.home).env("PYSPARK_PYTHON", spark.venv.join("bin/python"));
    command.env("SPARK_LOCAL_HOSTNAME", node).env("MASTER", &spark.master);
}

/// Number of workers that the master knows; `None` while it does not answer.
fn workers_alive(head: ProcessId, page: SocketAddr) -> Option<u64> {
    let answer = space::inside(head, || {
        let failed = |e| LabError::io("the Spark master does not answer", e);
        ask(page, "/json/").map_err(failed)
    });
    let answer = answer.ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    serde_json::from_str::<serde_json::Value>(body).ok()?.get("aliveworkers")?.as_u64()
}

fn ask(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Ends master, workers and the processes that these have started.
fn stop(record: &mut Record) -> Result<(), LabError> {
    let (spark, others): (Vec<_>, Vec<_>) =
        record.services.drain(..).partition(|service| service.name.starts_with("spark-"));
    for service in &spark {
        service.process.signal(Signal::TERM);
    }
    // A worker ends its executors; the kernel releases their memory after that.
    let gone = || spark.iter().all(|service| !service.process.is_alive());
    if !wait_until(Duration::from_secs(10), gone) {
        for service in &spark {
            service.process.signal(Signal::KILL);
        }
    }
    record.services = others;
    record.spark = None;
    record.save()
}
