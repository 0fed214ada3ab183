//! `forebay lab up`: links, nodes, file system, agents, Spark, in this order; all of it is cleared
//! if a step fails.

use std::fs;
use std::path::PathBuf;

use clap::Args;

use super::cpu::{self, Cpus};
use super::kind::PfsKind;
use super::pfs;
use super::plan::{self, Place};
use super::process::ProcessId;
use super::service::Raising;
use super::spark::{self, SparkArgs};
use super::state::{self, AgentsRecord, Record};
use super::{agents, directory, down, lock, net, packages, space, status, store};
use crate::LabError;
use crate::quantity::{Rate, parse_bytes, parse_rate};

/// Arguments of `forebay lab up`.
#[derive(Debug, Clone, Args)]
pub struct UpArgs {
    /// Name of the lab, to run more than one
    #[arg(long, value_name = "LAB", env = space::LAB_VARIABLE, default_value = "lab")]
    pub name: String,
    /// Directory for the servers' data, logs and records; it must be new, or empty and root's own
    /// [default: /dev/shm/forebay-LAB]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Which parallel file system
    #[arg(long, value_enum, default_value = "moosefs")]
    pub pfs: PfsKind,
    /// GlusterFS: spread each file over the servers in shards of this size, at least 4MiB; only
    /// for files that are written once
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub stripe: Option<u64>,
    /// Number of storage servers
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub servers: usize,
    /// Number of compute nodes
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub nodes: usize,
    /// Number of nodes for HPC jobs: each has a client of the file system and an agent, but no
    /// Spark worker
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub writers: usize,
    /// Storage of all servers together, in memory as it is used [default: 8GiB, at most a third of
    /// the machine's memory]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub store: Option<u64>,
    /// Bandwidth of each server's link, each way
    #[arg(long, value_name = "RATE", default_value = "80MB/s", value_parser = parse_rate)]
    pub rate: Rate,
    /// Let both directions of a server's link share its bandwidth, so that reads slow down writes
    #[arg(long)]
    pub shared_links: bool,
    /// Cores of each compute node, such as 0.5, or unlimited [default: unlimited if the machine has
    /// enough for all, else an even share of four fifths of its cores]
    #[arg(long, value_name = "N", value_parser = cpu::parse_cpus)]
    pub cpus: Option<Cpus>,
    /// Cores of each of --writers [default: as --cpus]
    #[arg(long, value_name = "N", value_parser = cpu::parse_cpus)]
    pub writer_cpus: Option<Cpus>,
    /// Cores of each storage server [default: unlimited]
    #[arg(long, value_name = "N", value_parser = cpu::parse_cpus)]
    pub server_cpus: Option<Cpus>,
    /// Memory of each agent
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = parse_bytes)]
    pub capacity: u64,
    /// Unit of placement of the agents [default: Forebay's]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub extent_size: Option<u64>,
    /// File with a measured profile of the file system for the coordinator's planners, as
    /// `forebay profile` writes it
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// Start the parallel file system without agents
    #[arg(long)]
    pub no_agents: bool,
    /// Mount the file system on the storage servers too, and let `forebay ship` use as many cores
    /// and as much memory of each of them as --spark-cores and --spark-memory say, and --capacity
    /// for an agent
    #[arg(long, conflicts_with = "no_agents")]
    pub ship: bool,
    /// Start Spark as well, as `forebay lab spark up` does
    #[arg(long)]
    pub spark: bool,
    /// The rest of Spark's settings
    #[command(flatten)]
    pub spark_args: SparkArgs,
    /// Install missing packages with apt-get
    #[arg(long)]
    pub install: bool,
}

/// Starts a lab and prints what it is.
///
/// # Errors
/// If something is missing, if something failed, or if the lab is up already.
pub fn up(args: &UpArgs, json: bool) -> Result<(), LabError> {
    let place = Place::new(&args.name, args.dir.as_deref())?;
    super::root::need_root("up")?;
    packages::clear_leftover();
    pfs::check_stripe(args.pfs, args.stripe)?;
    let store_bytes = store::of_each(args.store.unwrap_or_else(store::default_bytes), args.servers)?;
    packages::require(&[packages::COMMON, args.pfs.programs()].concat(), args.install)?;
    if !std::path::Path::new("/dev/fuse").exists() {
        return Err(LabError::new(
            "no /dev/fuse: the file system's clients need it; in a container: --device /dev/fuse --cap-add SYS_ADMIN",
        ));
    }
    let spark = if args.spark { Some(spark::prepare(&args.spark_args, args.install)?) } else { None };
    let _lock = lock::lab(&args.name)?;
    clear_remains(&place)?;
    let record = Record {
        nodes: plan::nodes(0, args.servers, args.nodes, args.writers)?,
        place,
        ready: false,
        subnet: 0,
        pfs: args.pfs,
        stripe_bytes: args.stripe,
        store_bytes,
        ship: args.ship,
        rate_bytes_per_s: args.rate.bytes_per_s,
        shared_links: args.shared_links,
        cpu_millis: args.cpu_millis(),
        writer_cpu_millis: args.writer_cpus.map_or_else(|| args.cpu_millis(), millis),
        server_cpu_millis: args.server_cpus.and_then(millis),
        holders: Default::default(),
        services: Vec::new(),
        agents: args.agents()?,
        spark: None,
        mark: Default::default(),
    };
    let name = record.place.name.clone();
    directory::claim(&record.place)?;
    if let Err(why) = raise(record, spark, args.cores_asked()) {
        let cleared = down::clear(&name).and_then(|report| report.complete());
        return Err(match cleared {
            Ok(()) => why,
            Err(remains) => LabError::new(format!("{why}; and afterwards: {remains}")),
        });
    }
    status::print(&name, json)
}

/// Converts to thousandths of a core; `None`: not limited.
fn millis(cpus: Cpus) -> Option<u32> {
    match cpus {
        Cpus::Of(cores) => Some((cores * 1e3) as u32),
        Cpus::Unlimited => None,
    }
}

impl UpArgs {
    fn cpu_millis(&self) -> Option<u32> {
        self.cpus.map_or_else(
            || {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                cpu::even_share(cores, self.nodes + self.writers, self.spark_args.spark_cores)
            },
            millis,
        )
    }

    /// Cores and memory of a storage server that `forebay ship` may use. Half of the memory is for
    /// executors.
    fn ship(&self) -> (usize, u64) {
        let spark = &self.spark_args;
        (spark.spark_cores, (2 * spark.spark_memory).max(2 * self.capacity))
    }

    /// Whether the user has requested limits of cores.
    fn cores_asked(&self) -> bool {
        [self.cpus, self.writer_cpus, self.server_cpus].iter().any(Option::is_some)
    }

    fn agents(&self) -> Result<Option<AgentsRecord>, LabError> {
        if self.no_agents {
            return Ok(None);
        }
        // The coordinator runs in another directory.
        let absolute = |path: &PathBuf| {
            std::fs::canonicalize(path).map_err(|e| LabError::io(format!("--profile {}", path.display()), e))
        };
        let profile = self.profile.as_ref().map(absolute).transpose()?;
        let (capacity_bytes, extent_bytes) = (self.capacity, self.extent_size);
        let ship = self.ship.then(|| self.ship());
        Ok(Some(AgentsRecord { program: program()?, capacity_bytes, extent_bytes, profile, ship }))
    }
}

/// The program that agents are started from: `forebay` beside this one, unless the environment
/// names another.
fn program() -> Result<PathBuf, LabError> {
    match std::env::var_os("FOREBAY_BIN") {
        Some(program) => Ok(program.into()),
        None => {
            let own = std::env::current_exe().map_err(|e| LabError::io("cannot find this program", e))?;
            Ok(own.with_file_name("forebay"))
        }
    }
}

/// Leaves a running lab alone; clears what a crash has left, and only that.
fn clear_remains(place: &Place) -> Result<(), LabError> {
    let name = &place.name;
    let record = state::load(name);
    if let Ok(Some(record)) = &record
        && record.ready
        && record.holders.values().any(|holder| holder.is_alive())
    {
        return Err(LabError::new(format!(
            "lab `{name}` is up already, in {}; `forebay lab down --name {name}` ends it",
            record.place.dir.display()
        )));
    }
    if record.is_err() || matches!(record, Ok(Some(_))) || down::anything_left(name) {
        eprintln!("clearing what is left of an earlier lab `{name}`");
        down::clear(name)?.complete()?;
    }
    Ok(())
}

fn raise(mut record: Record, spark: Option<spark::Prepared>, cores_asked: bool) -> Result<(), LabError> {
    connect(&mut record)?;
    limit_cores(&mut record, cores_asked)?;
    let mut lab = Raising::new(record);
    hold_all(&mut lab)?;
    pfs::raise(&mut lab)?;
    agents::start(&mut lab)?;
    if let Some(prepared) = spark {
        spark::start(&mut lab, &prepared)?;
    }
    lab.record.mark = net::traffic(&lab.record.place)?;
    lab.record.ready = true;
    lab.record.save()
}

/// Takes addresses that are free, and makes the network.
fn connect(record: &mut Record) -> Result<(), LabError> {
    let (subnet, _taken) = state::free_subnet()?;
    record.subnet = subnet;
    for node in &mut record.nodes {
        let [a, b, _, d] = node.address.octets();
        node.address = [a, b, subnet, d].into();
    }
    record.save()?;
    net::make(&record.place, subnet, &record.nodes, record.limit())
}

/// Creates a group for each node whose cores are limited. If that fails and the user has not
/// requested limits, the lab starts without them and prints a message.
fn limit_cores(record: &mut Record, asked: bool) -> Result<(), LabError> {
    let limited = record.nodes.iter().filter_map(|node| Some((node, record.millis_of(node.role)?)));
    let made = limited.map(|(node, millis)| cpu::make(&record.place.name, &node.name, millis));
    match made.collect::<Result<(), _>>() {
        Err(why) if !asked => {
            eprintln!("compute nodes have no cores of their own: {why}");
            (record.cpu_millis, record.writer_cpu_millis) = (None, None);
            Ok(())
        }
        made => made,
    }
}

fn hold_all(lab: &mut Raising) -> Result<(), LabError> {
    let place = lab.record.place.clone();
    let failed = |e| LabError::io(format!("cannot write below {}", place.dir.display()), e);
    fs::write(place.hosts_file(), plan::hosts(lab.record.subnet, &lab.record.nodes)).map_err(failed)?;
    for node in lab.record.nodes.clone() {
        fs::create_dir_all(place.own_files(&node.name)).map_err(failed)?;
        let store_bytes = lab.record.pfs.stores_on(node.role).then_some(lab.record.store_bytes);
        if store_bytes.is_some() {
            fs::create_dir_all(place.store(&node.name)).map_err(failed)?;
        }
        let holder = space::hold(&place, &node.name, store_bytes)?;
        let holder = ProcessId::of(holder.id())
            .ok_or_else(|| LabError::new(format!("the holder of node {} has ended at once", node.name)))?;
        lab.record.holders.insert(node.name, holder);
    }
    lab.record.save()
}
