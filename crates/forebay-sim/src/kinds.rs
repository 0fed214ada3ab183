//! What `run`, `compare` and `sweep` need to know about the kinds of scenarios, in one place, so
//! that the commands and the Python module need not.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;

use forebay_policy::burst::access;
use forebay_policy::{batch_queue, drain, memory as laws, planner};

use crate::error::{Error, Result};
use crate::figure::Figure;
use crate::scenario::{BATCH, BURST_BUFFER, CLUSTER, COLOCATION, FACILITY, File, MEMORY, Scenario, WORLD};
use crate::trace::Trace;
use crate::{batch, burst, cluster, colocate, facility, memory, world};

/// An expression for each kind, of a scenario or its outcome, or of both. In it, `$module` is the
/// module of the kind.
macro_rules! each_kind {
    (@ $of:expr, $what:ident, |$module:ident, $it:ident| $value:expr; $($kind:ident $path:ident),*) => {
        match $of {
            $($what::$kind($it) => {
                #[allow(unused_imports, reason = "some need only the value")]
                use crate::$path as $module;
                $value
            })*
        }
    };
    (@ $of:expr, $done:ident, |$module:ident, $setup:ident, $outcome:ident| $value:expr;
        $($kind:ident $path:ident),*) => {
        match ($of, $done) {
            $((Scenario::$kind($setup), Done::$kind($outcome)) => {
                use crate::$path as $module;
                $value
            })*
            _ => unreachable!("a scenario of one kind was run as another"),
        }
    };
    ($of:expr, $what:ident, |$($names:ident),*| $value:expr) => {
        each_kind!(@ $of, $what, |$($names),*| $value; Colocation colocate, BurstBuffer burst,
            Cluster cluster, Memory memory, Batch batch, Facility facility, World world)
    };
}

/// The outcome of a run.
pub enum Done {
    /// Outcome of kind `colocation`.
    Colocation(colocate::Outcome),
    /// Outcome of kind `burst-buffer`.
    BurstBuffer(burst::Outcome),
    /// Outcome of kind `cluster`.
    Cluster(cluster::Outcome),
    /// Outcome of kind `memory`.
    Memory(memory::Outcome),
    /// Outcome of kind `batch`.
    Batch(batch::Outcome),
    /// Outcome of kind `facility`.
    Facility(Box<facility::Outcome>),
    /// Outcome of kind `world`.
    World(Box<world::Outcome>),
}

/// Policies that `compare` shows if none are named.
pub fn policies(file: &File) -> Vec<String> {
    match file.kind() {
        BURST_BUFFER => access::POLICIES.iter().map(|p| p.0.to_string()).collect(),
        BATCH => batch_queue::POLICIES.iter().map(|p| p.0.to_string()).collect(),
        FACILITY => drain::POLICIES.iter().map(|p| p.0.to_string()).collect(),
        MEMORY => laws::POLICIES.iter().map(|p| p.0.to_string()).collect(),
        _ => planner::POLICIES.iter().map(|p| p.0.to_string()).collect(),
    }
}

/// Sets the policy: the planner's, the memory law, or the access policy, or `ALLOCATION/ACCESS`. In
/// a world, the planner's, or `PLANNER/DRAIN` or `PLANNER/DRAIN/ACCESS`; in a facility, `DRAIN` or
/// `DRAIN/ACCESS`. The policy of shipping is a key.
///
/// # Errors
/// If the file has a value where a table of policies is needed.
pub fn set_policy(file: &mut File, policy: &str) -> Result<()> {
    match file.kind() {
        BURST_BUFFER => {}
        BATCH => return file.set("queue.policy", policy),
        MEMORY => return file.set("memory.policy", policy),
        kind @ (WORLD | FACILITY) => {
            let keys = ["planner.policy", "drain.policy", "access.policy"];
            let keys = if kind == WORLD { &keys[..] } else { &keys[1..] };
            let mut names = policy.splitn(keys.len(), '/');
            return keys.iter().zip(&mut names).try_for_each(|(key, name)| file.set(key, name));
        }
        _ => return file.set("planner.policy", policy),
    }
    let access = match policy.split_once('/') {
        None => policy,
        Some((allocation, access)) => {
            file.set("allocation.policy", allocation)?;
            access
        }
    };
    file.set("access.policy", access)
}

impl Scenario {
    /// Names of the columns of [`Scenario::rows`].
    pub fn columns(&self) -> &'static [&'static str] {
        each_kind!(self, Scenario, |module, _setup| &module::view::COLUMNS)
    }

    /// Seed of all its random numbers.
    pub fn seed(&self) -> u64 {
        each_kind!(self, Scenario, |module, setup| setup.seed)
    }

    /// A trace into `out` with this scenario in its header.
    pub fn trace(&self, out: Box<dyn Write + Send>) -> Trace {
        match self {
            Scenario::Colocation(setup) => Trace::to(out, COLOCATION, setup),
            Scenario::BurstBuffer(setup) => Trace::to(out, BURST_BUFFER, setup),
            Scenario::Cluster(setup) => Trace::to(out, CLUSTER, setup),
            Scenario::Memory(setup) => Trace::to(out, MEMORY, setup),
            Scenario::Batch(setup) => Trace::to(out, BATCH, setup),
            Scenario::Facility(setup) => Trace::to(out, FACILITY, setup),
            Scenario::World(setup) => Trace::to(out, WORLD, setup),
        }
    }

    /// Runs it to the end.
    ///
    /// # Errors
    /// If it does not come to an end, or the caller cancels it.
    pub fn run(&self, trace: &mut Trace) -> Result<Done> {
        match self {
            Scenario::Colocation(setup) => colocate::simulate(setup, trace).map(Done::Colocation),
            Scenario::BurstBuffer(setup) => burst::simulate(setup, trace).map(Done::BurstBuffer),
            Scenario::Cluster(setup) => cluster::simulate(setup, trace).map(Done::Cluster),
            Scenario::Memory(setup) => memory::simulate(setup, trace).map(Done::Memory),
            Scenario::Batch(setup) => batch::simulate(setup, trace).map(Done::Batch),
            Scenario::Facility(setup) => facility::simulate(setup, trace).map(Box::new).map(Done::Facility),
            Scenario::World(setup) => world::simulate(setup, trace).map(Box::new).map(Done::World),
        }
    }

    /// Runs it to the end, and writes its trace to `path` if there is one.
    ///
    /// # Errors
    /// As for [`Scenario::run`], or if the trace cannot be written.
    pub fn run_traced(&self, path: Option<&Path>) -> Result<Done> {
        let Some(path) = path else { return self.run(&mut Trace::off()) };
        let file = fs::File::create(path).map_err(Error::io("create the trace", path))?;
        let mut trace = self.trace(Box::new(BufWriter::new(file)));
        let done = self.run(&mut trace)?;
        trace.finish().map_err(Error::io("write the trace", path))?;
        Ok(done)
    }

    /// The rows of a run of it.
    pub fn rows(&self, done: &Done) -> Vec<Vec<String>> {
        each_kind!(self, done, |module, setup, outcome| module::view::rows(setup, outcome))
    }

    /// The timeline of a run of it, or of a part of the time in seconds.
    pub fn timeline(&self, done: &Done, name: &str, window_s: Option<(f64, f64)>) -> Figure {
        let window_s = window_s.unwrap_or((0.0, done.end_s()));
        let policy = match self {
            Scenario::Colocation(setup) => setup.policy.clone(),
            Scenario::BurstBuffer(setup) => format!("{}/{}", setup.allocation, setup.access),
            Scenario::Cluster(setup) => setup.policy.clone(),
            Scenario::Memory(setup) => setup.policy.clone(),
            Scenario::Batch(setup) => setup.policy.clone(),
            Scenario::Facility(setup) => setup.policy(),
            Scenario::World(setup) => setup.cluster.policy.clone(),
        };
        let title = format!("{name} ({policy})");
        each_kind!(self, done, |module, setup, outcome| {
            module::view::timeline(setup, outcome, &title, window_s)
        })
    }
}

impl Done {
    /// All of it as JSON, with a line break at the end.
    ///
    /// # Errors
    /// If JSON cannot represent a number.
    pub fn json(&self) -> std::result::Result<String, std::io::Error> {
        let json = each_kind!(self, Done, |module, outcome| serde_json::to_string_pretty(outcome));
        Ok(json.map_err(std::io::Error::from)? + "\n")
    }

    /// Every record, with the names of the columns.
    pub fn records(&self) -> (&'static [&'static str], Vec<Vec<String>>) {
        each_kind!(self, Done, |module, outcome| (&module::view::RECORDS, module::view::records(outcome)))
    }

    /// The last line of a run for people.
    pub fn summary(&self) -> String {
        let amount = match self {
            Done::Colocation(o) => format!("{} events, {} decisions", o.events, o.decisions.len()),
            Done::Cluster(o) => format!("{} events, {} requests", o.events, o.requests),
            Done::Memory(o) => format!("{} samples, {} resizes", o.samples, o.resizes.len()),
            Done::Batch(o) => format!("{} events, {} jobs", o.events, o.jobs.len()),
            Done::Facility(o) => format!(
                "{} events, {} jobs, {} steps absorbed, {} written ({} past the tier), {} tokens granted, {} lost",
                o.events, o.jobs, o.absorbed, o.written, o.past_tier, o.tokens[0], o.tokens[1]
            ),
            Done::World(o) => {
                let drains = o.buffers.as_ref().map_or(0, |buffers| buffers.drains.len());
                format!("{} events, {} requests, {drains} steps drained", o.events, o.cluster.requests)
            }
            Done::BurstBuffer(o) => {
                format!("{} events, {} tokens, {} nodes down", o.events, o.holds.len(), o.down.len())
            }
        };
        match self.unfinished() {
            None => amount,
            Some(what) => format!("{amount}; unfinished at the horizon: {what}"),
        }
    }

    /// What the horizon left undone, if it left anything.
    fn unfinished(&self) -> Option<String> {
        match self {
            Done::Colocation(o) => {
                o.unfinished.map(|u| format!("{} waves, {} I/O phases", u.waves, u.phases))
            }
            Done::Cluster(o) => (o.tasks_left() > 0).then(|| format!("{} tasks", o.tasks_left())),
            Done::BurstBuffer(o) => o.unfinished.map(|u| format!("{} jobs, {} steps", u.jobs, u.steps)),
            Done::World(o) => o.unfinished.map(|u| {
                let gb = u.undrained_bytes as f64 * 1e-9;
                let (tasks, steps, phases) = (u.tasks, u.steps, u.phases);
                format!("{tasks} tasks, {steps} steps, {gb:.3} GB to drain, {phases} I/O phases")
            }),
            Done::Facility(o) => (o.unfinished > 0).then(|| format!("{} jobs", o.unfinished)),
            Done::Memory(_) | Done::Batch(_) => None,
        }
    }

    fn end_s(&self) -> f64 {
        match self {
            Done::Colocation(o) => o.end_s(),
            Done::BurstBuffer(o) => o.end_s(),
            Done::Cluster(o) => o.end_s(),
            Done::Memory(o) => o.end_s,
            Done::Batch(o) => o.end_s,
            Done::Facility(o) => o.end_s,
            Done::World(o) => o.end_s(),
        }
    }
}

/// Checks that the runs of a grid have the same columns.
///
/// # Errors
/// If they are of different kinds.
pub fn same_kind(scenarios: &[Scenario]) -> Result<()> {
    match scenarios.windows(2).all(|w| w[0].columns() == w[1].columns()) {
        true => Ok(()),
        false => Err(Error::Usage("the runs are of different kinds; sweep each kind by itself".into())),
    }
}
