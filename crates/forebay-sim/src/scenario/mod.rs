//! Scenario files: a cluster, its jobs, the policies and a seed, as TOML.
//!
//! A scenario of kind `colocation` puts HPC jobs beside Big Data jobs whose waves are prefetched,
//! one of kind `burst-buffer` has jobs that write their steps to shared burst buffer nodes, and so
//! on. The reference of all keys is `docs/simulator.md`. Reading is strict, and an override such as
//! `hpc.0.allowance_percent=15` is read as if it were in the file, so it is checked in the same
//! way.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::arrivals::Arrivals;
use crate::error::{Error, Result};
use crate::{batch, burst, cluster, colocate, facility, memory};

mod batch_queue;
mod broadcast_of_a_file;
mod burst_buffer;
mod cluster_of_nodes;
mod colocation;
pub mod darshan;
mod facility_of_weeks;
pub mod logs;
mod memory_of_a_node;
pub mod profile;
pub mod reader;
mod world;

use reader::Section;

const GB: f64 = 1e9;
/// Upper bounds that only catch typing errors: a million seconds, an exabyte.
const MAX_S: f64 = 1e6;
const MAX_GB: f64 = 1e9;
/// Logs of batch systems span years.
const MAX_HORIZON_S: f64 = 1e9;

/// Name of the kind with HPC jobs beside Big Data jobs.
pub const COLOCATION: &str = "colocation";
/// Name of the kind with shared burst buffers.
pub const BURST_BUFFER: &str = "burst-buffer";

/// Name of the kind with the tasks of jobs on nodes before a file system of several servers.
pub const CLUSTER: &str = "cluster";
/// Name of the kind with a node whose tier gives way to compute.
pub const MEMORY: &str = memory::KIND;
/// Name of the kind with a batch queue.
pub const BATCH: &str = batch::KIND;
/// Name of the kind with a facility over weeks.
pub const FACILITY: &str = facility::KIND;
/// Name of the kind with all of these together.
pub const WORLD: &str = "world";

/// A scenario that was read and checked.
#[derive(Clone, Debug)]
pub enum Scenario {
    /// HPC jobs beside Big Data jobs.
    Colocation(Box<colocate::Setup>),
    /// Jobs that write their steps to shared burst buffer nodes.
    BurstBuffer(Box<burst::Setup>),
    /// Tasks of jobs on nodes before a file system of several servers.
    Cluster(Box<cluster::Setup>),
    /// A node whose tier gives way to compute.
    Memory(Box<memory::Setup>),
    /// A batch queue.
    Batch(Box<batch::Setup>),
    /// A facility over weeks.
    Facility(Box<facility::Setup>),
    /// All of these together.
    World(Box<crate::world::Setup>),
}

fn ns(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

/// How long a fault lasts; for ever if the file does not say.
fn for_ns(s: &Section<'_>) -> Result<Option<u64>> {
    Ok(s.number_if("for_s", 1e-9, MAX_S)?.map(ns))
}

/// When the run ends, if the file says so.
fn horizon_ns(root: &Section<'_>) -> Result<Option<u64>> {
    Ok(root.number_if("horizon_s", 1e-3, MAX_HORIZON_S)?.map(ns))
}

/// When the phases or steps of a job begin.
fn arrivals(s: &Section<'_>) -> Result<Arrivals> {
    let kind = s.choice("arrivals", &["periodic", "jittered", "poisson", "trace"], Some("periodic"))?;
    Ok(match kind.as_str() {
        "jittered" => Arrivals::Jittered { spread: s.number("spread", 0.0, 1.0, None)? },
        "poisson" => Arrivals::Poisson,
        "trace" => Arrivals::Trace { at_ns: s.ascending("at_s", 0.0, MAX_S)?.into_iter().map(ns).collect() },
        _ => Arrivals::Periodic,
    })
}

/// Names of the jobs of a scenario. Results, faults and comparisons find a job by its name.
#[derive(Debug, Default)]
pub struct Names(BTreeSet<String>);

impl Names {
    /// Adds the name of a job, which the value of `key` gives.
    ///
    /// # Errors
    /// If another job of the scenario has it.
    fn add(&mut self, s: &Section<'_>, key: &str, name: &str) -> Result<()> {
        match self.0.insert(name.into()) {
            true => Ok(()),
            false => Err(s.error(key, format!("another job is called '{name}'; names have to be different"))),
        }
    }
}

/// Parses the value of an override: TOML, or otherwise a text.
pub fn value(text: &str) -> Value {
    let toml = format!("v = {text}").parse::<Table>().ok().and_then(|mut table| table.remove("v"));
    toml.unwrap_or_else(|| Value::String(text.into()))
}

/// A scenario file, not yet checked.
#[derive(Clone, Debug)]
pub struct File {
    path: PathBuf,
    table: Table,
}

impl File {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// If it cannot be read, or is not TOML.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(Error::io("read the scenario", path))?;
        File::parse(path, &text)
    }

    /// A scenario file from `text`, as if it were at `path`.
    ///
    /// # Errors
    /// If it is not TOML.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let table = text.parse::<Table>().map_err(|e| {
            let line = e.span().map_or(1, |s| 1 + text[..s.start].matches('\n').count());
            Error::Trace { file: path.into(), line, problem: format!("not TOML: {}", e.message()) }
        })?;
        Ok(File::of(path, table))
    }

    /// A scenario file from `table`, as if it were at `path`.
    pub fn of(path: &Path, table: Table) -> Self {
        File { path: path.into(), table }
    }

    /// Sets `key` to `value`, which is read as TOML, or else as text.
    ///
    /// # Errors
    /// If the key leads nowhere.
    pub fn set(&mut self, key: &str, value: &str) -> Result<()> {
        self.set_value(key, self::value(value))
    }

    /// Sets `key` (dotted; a number is an index into a list).
    ///
    /// # Errors
    /// If the key leads nowhere.
    pub fn set_value(&mut self, key: &str, value: Value) -> Result<()> {
        let parts: Vec<&str> = key.split('.').collect();
        let missing = || Error::Scenario {
            file: self.path.clone(),
            key: key.into(),
            value: value.to_string(),
            allowed: "the key leads to nothing in this file".into(),
        };
        let (last, parents) = parts.split_last().ok_or_else(missing)?;
        let missing_error = missing();
        let mut at = &mut self.table;
        let mut parents = parents.iter().peekable();
        while let Some(part) = parents.next() {
            at = match at.entry(*part).or_insert_with(|| Value::Table(Table::new())) {
                Value::Table(table) => table,
                Value::Array(list) => {
                    let index = parents.next().and_then(|i| i.parse::<usize>().ok());
                    match index.and_then(|i| list.get_mut(i)) {
                        Some(Value::Table(table)) => table,
                        _ => return Err(missing_error),
                    }
                }
                _ => return Err(missing_error),
            };
        }
        at.insert((*last).into(), value);
        Ok(())
    }

    /// A scenario of kind `broadcast`, checked.
    ///
    /// # Errors
    /// As for [`File::scenario`].
    pub fn broadcast(&self) -> Result<crate::broadcast::Setup> {
        broadcast_of_a_file::read(&Section::root(&self.path, &self.table))
    }

    /// Checks everything.
    ///
    /// # Errors
    /// One line that names file, key, value and what is allowed.
    pub fn scenario(&self) -> Result<Scenario> {
        let root = Section::root(&self.path, &self.table);
        match root
            .choice(
                "kind",
                &[COLOCATION, BURST_BUFFER, CLUSTER, MEMORY, BATCH, FACILITY, WORLD],
                Some(COLOCATION),
            )?
            .as_str()
        {
            CLUSTER => Ok(Scenario::Cluster(Box::new(cluster_of_nodes::read(&root)?))),
            WORLD => Ok(Scenario::World(Box::new(world::read(&root)?))),
            FACILITY => Ok(Scenario::Facility(Box::new(facility_of_weeks::read(&root)?))),
            BATCH => Ok(Scenario::Batch(Box::new(batch_queue::read(&root)?))),
            MEMORY => Ok(Scenario::Memory(Box::new(memory_of_a_node::read(&root)?))),
            BURST_BUFFER => Ok(Scenario::BurstBuffer(Box::new(burst_buffer::read(&root)?))),
            _ => Ok(Scenario::Colocation(Box::new(colocation::read(&root)?))),
        }
    }

    /// The file's name for titles, which does not depend on where it is.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or(self.path.as_os_str()).to_string_lossy().into_owned()
    }

    /// The kind as the file says it, unchecked; for what has to be known before the checks.
    pub fn kind(&self) -> &str {
        self.table.get("kind").and_then(Value::as_str).unwrap_or(COLOCATION)
    }
}
