//! `forebay replay`: the policies driven by a record, of a simulation or of a live coordinator.
//!
//! The header of the record has what the machines were built from. A fresh machine of the same kind
//! hears each recorded event, and what it decides must be what was recorded, to the byte. A
//! difference means that a policy is not a function of what it hears, or has changed since.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use forebay_policy::bandwidth::{self, Divider};
use forebay_policy::burst::access;
use forebay_policy::drain::Drain;
use forebay_policy::machine::{Machine, Nanos};
use forebay_policy::memory::node::NodeMemory;
use forebay_policy::node::{self, Node};
use forebay_policy::queue::Queue;
use forebay_policy::ship::Ship;
use forebay_policy::stage::Stages;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Output, ReplayArgs, say};
use crate::colocate::observer;
use crate::error::{Error, Result};
use crate::scenario::{BATCH, BURST_BUFFER, CLUSTER, COLOCATION, MEMORY, Scenario, WORLD};
use crate::trace::{ACCESS, LAWS, NODE, SCHEMA, STAGES, VERSION};
use crate::{batch, burst, cluster, colocate, memory, world};

#[derive(Deserialize)]
struct Header {
    schema: String,
    version: u32,
    /// Missing in traces from before there was a second kind.
    kind: Option<String>,
    setup: Value,
}

/// A line after the header. It has an event, an action, or a note, which no machine hears.
#[derive(Deserialize)]
struct Line {
    /// The line as it stands in the file, and its number, from 1.
    #[serde(skip)]
    text: String,
    #[serde(skip)]
    number: usize,
    /// Counts lines.
    seq: u64,
    /// The event on which a machine decided.
    cause: Option<u64>,
    /// When.
    t_ns: u64,
    /// Which machine, or which part of the world.
    who: String,
    /// What a machine was told.
    event: Option<Value>,
    /// What it decided.
    action: Option<Value>,
}

/// The lines after the header, read one at a time: the log of a coordinator may be long.
struct Lines {
    path: PathBuf,
    number: usize,
    file: BufReader<File>,
    /// The last line has no end: its writer was killed, or the disk was full.
    is_cut: bool,
}

/// No writer makes a longer line.
const LINE_BYTES_MAX: u64 = 64 << 20;

impl Lines {
    fn bad(&self, problem: String) -> Error {
        Error::Trace { file: self.path.clone(), line: self.number, problem }
    }

    fn next_text(&mut self) -> Result<Option<String>> {
        let mut text = String::new();
        let read = (&mut self.file).take(LINE_BYTES_MAX).read_line(&mut text);
        let bytes = read.map_err(Error::io("read the trace", &self.path))? as u64;
        self.number += 1;
        if text.pop() == Some('\n') {
            return Ok(Some(text));
        }
        if bytes == LINE_BYTES_MAX {
            return Err(self.bad(format!("it has more than {LINE_BYTES_MAX} bytes: not a trace")));
        }
        self.is_cut = bytes > 0;
        Ok(None)
    }
}

impl Iterator for Lines {
    type Item = Result<Line>;

    fn next(&mut self) -> Option<Result<Line>> {
        let text = match self.next_text() {
            Ok(text) => text?,
            Err(e) => return Some(Err(e)),
        };
        let line: Line = match serde_json::from_str(&text) {
            Ok(line) => line,
            Err(e) => return Some(Err(self.bad(format!("not a line of a trace ({e}); was it cut off?")))),
        };
        Some(Ok(Line { text, number: self.number, ..line }))
    }
}

/// Opens a trace: its kind, what its machines were built from, and its lines.
fn open(path: &Path) -> Result<(String, Value, Lines)> {
    let file = File::open(path).map_err(Error::io("read the trace", path))?;
    let mut lines = Lines { path: path.into(), number: 0, file: BufReader::new(file), is_cut: false };
    let Some(first) = lines.next_text()? else { return Err(lines.bad("the trace is empty".into())) };
    let header: Header = serde_json::from_str(&first).map_err(|e| not_a_header(&lines, e))?;
    if (header.schema.as_str(), header.version) != (SCHEMA, VERSION) {
        let found = format!("{} version {}", header.schema, header.version);
        return Err(lines.bad(format!("this is {found}; {SCHEMA} version {VERSION} can be read")));
    }
    Ok((header.kind.unwrap_or_else(|| COLOCATION.into()), header.setup, lines))
}

fn not_a_header(lines: &Lines, e: serde_json::Error) -> Error {
    let writers = "`sim run --trace`, or by a daemon with cluster.decision_log or agent.decision_log";
    lines.bad(format!("not the header of a trace ({e}); was it written by {writers}?"))
}

fn scenario(kind: &str, setup: Value, lines: &Lines) -> Result<Scenario> {
    let not_one = |e| not_a_header(lines, e);
    match kind {
        COLOCATION => {
            let setup: colocate::Setup = serde_json::from_value(setup).map_err(not_one)?;
            Ok(Scenario::Colocation(Box::new(setup)))
        }
        BURST_BUFFER => {
            let setup: burst::Setup = serde_json::from_value(setup).map_err(not_one)?;
            Ok(Scenario::BurstBuffer(Box::new(setup)))
        }
        CLUSTER => {
            let setup: cluster::Setup = serde_json::from_value(setup).map_err(not_one)?;
            Ok(Scenario::Cluster(Box::new(setup)))
        }
        MEMORY => {
            let setup: memory::Setup = serde_json::from_value(setup).map_err(not_one)?;
            Ok(Scenario::Memory(Box::new(setup)))
        }
        BATCH => {
            let setup: batch::Setup = serde_json::from_value(setup).map_err(not_one)?;
            Ok(Scenario::Batch(Box::new(setup)))
        }
        WORLD => {
            let setup: world::Setup = serde_json::from_value(setup).map_err(not_one)?;
            Ok(Scenario::World(Box::new(setup)))
        }
        other => {
            let known = format!(
                "{COLOCATION}, {BURST_BUFFER}, {CLUSTER}, {MEMORY}, {BATCH}, {WORLD}, {STAGES}, {ACCESS}, {NODE} and {LAWS} can be replayed"
            );
            Err(lines.bad(format!("this is a run of kind '{other}'; {known}")))
        }
    }
}

/// A machine that hears what was recorded, and what it decided that the record must have next.
struct Replayed<M: Machine> {
    who: String,
    machine: M,
    pending: VecDeque<String>,
    /// Line number of the event that it heard last.
    cause: u64,
}

/// A [`Replayed`] of any machine.
trait Replay {
    fn who(&self) -> &str;
    /// Takes one line of its own, and returns how many actions it confirms. An error says how
    /// record and machine differ.
    fn take(&mut self, line: &Line) -> std::result::Result<u64, String>;
    /// A decision that the record lacks so far.
    fn unrecorded(&self) -> Option<String>;
}

fn replayed<M: Machine + 'static>(who: impl Into<String>, machine: M) -> Box<dyn Replay>
where
    M::Event: DeserializeOwned,
    M::Action: Serialize,
{
    Box::new(Replayed { who: who.into(), machine, pending: VecDeque::new(), cause: 0 })
}

impl<M: Machine> Replay for Replayed<M>
where
    M::Event: DeserializeOwned,
    M::Action: Serialize,
{
    fn who(&self) -> &str {
        &self.who
    }

    fn take(&mut self, line: &Line) -> std::result::Result<u64, String> {
        if let Some(event) = &line.event {
            if let Some(problem) = self.unrecorded() {
                return Err(problem);
            }
            self.cause = line.seq;
            let mut out = Vec::new();
            if event == "deadline" {
                self.machine.on_deadline(Nanos(line.t_ns), &mut out);
            } else {
                let event = M::Event::deserialize(event).map_err(|e| format!("unknown event: {e}"))?;
                self.machine.handle(Nanos(line.t_ns), event, &mut out);
            }
            for action in &out {
                self.pending.push_back(serde_json::to_string(action).map_err(|e| e.to_string())?);
            }
        }
        let Some(recorded) = &line.action else { return Ok(0) };
        if line.cause != Some(self.cause) {
            return Err(format!("recorded {recorded} on another event than the last one, {}", self.cause));
        }
        match self.pending.pop_front() {
            // The line itself and not what was read of it: to the byte.
            Some(ours) if line.text.contains(&format!("\"action\":{ours},\"cause\":")) => Ok(1),
            Some(ours) => Err(format!("recorded {recorded}, but the machine decides {ours}")),
            None => Err(format!("recorded {recorded}, but the machine decides nothing")),
        }
    }

    fn unrecorded(&self) -> Option<String> {
        let action = self.pending.front()?;
        Some(format!("the machine also decided {action}, which was not recorded"))
    }
}

/// The machines of a record, and what those of its simulated nodes are built from.
type Machines = (Vec<Box<dyn Replay>>, Option<node::Config>);

fn machines(kind: &str, setup: Value, lines: &Lines) -> Result<Machines> {
    if kind == NODE {
        let config: node::Config = serde_json::from_value(setup).map_err(|e| not_a_header(lines, e))?;
        return Ok((vec![replayed(NODE, Node::new(&config))], None));
    }
    if kind == STAGES {
        let config = serde_json::from_value(setup).map_err(|e| not_a_header(lines, e))?;
        return Ok((vec![replayed(STAGES, Stages::new(config))], None));
    }
    if kind == ACCESS {
        let setup: access::Setup = serde_json::from_value(setup).map_err(|e| not_a_header(lines, e))?;
        return Ok((vec![replayed(ACCESS, setup.build().map_err(Error::Usage)?)], None));
    }
    if kind == LAWS {
        let config = serde_json::from_value(setup).map_err(|e| not_a_header(lines, e))?;
        return Ok((vec![replayed(LAWS, NodeMemory::new(config).map_err(Error::Usage)?)], None));
    }
    let mut nodes = None;
    let machines = match scenario(kind, setup, lines)? {
        Scenario::Colocation(setup) => {
            let divider = bandwidth::policy(&setup.bandwidth).map_err(Error::Usage)?;
            vec![
                replayed(STAGES, Stages::new(setup.stages()?)),
                replayed("bandwidth", Divider::new(divider)),
                replayed(observer::PHASES, observer::board()),
            ]
        }
        Scenario::Batch(setup) => {
            vec![replayed(BATCH, Queue::new(setup.config()).map_err(Error::Usage)?)]
        }
        Scenario::Memory(setup) => vec![replayed(MEMORY, memory::controller(&setup)?)],
        Scenario::Cluster(setup) => {
            nodes = Some(setup.node_config());
            of_cluster(&setup)
        }
        Scenario::BurstBuffer(setup) => of_buffers(&setup)?,
        Scenario::World(setup) => {
            nodes = Some(setup.cluster.node_config());
            let mut machines = of_cluster(&setup.cluster);
            machines.extend(setup.buffers.as_ref().map(of_buffers).transpose()?.into_iter().flatten());
            for node in 0..setup.cluster.nodes {
                let Some(memory) = setup.memory_of(node) else { break };
                machines.push(replayed(world::Setup::controller_name(node), memory::controller(&memory)?));
            }
            machines
        }
    };
    Ok((machines, nodes))
}

/// A machine of a simulated node, which a record has from its first event on: nodes that fail come
/// back with new ones.
fn node_machine(who: &str, config: Option<&node::Config>) -> Option<Box<dyn Replay>> {
    let config = config.filter(|_| who.strip_prefix(NODE).is_some_and(|node| node.starts_with('/')))?;
    Some(replayed(who, Node::new(config)))
}

/// The machines of nodes and servers.
fn of_cluster(setup: &cluster::Setup) -> Vec<Box<dyn Replay>> {
    let ship = setup.ship_config().map(|config| replayed(cluster::SHIP, Ship::new(config)));
    [replayed(STAGES, Stages::new(setup.stages()))].into_iter().chain(ship).collect()
}

/// The machines of burst buffers.
fn of_buffers(setup: &burst::Setup) -> Result<Vec<Box<dyn Replay>>> {
    let (access, allocator) = burst::machines(setup)?;
    let mut machines = vec![replayed(ACCESS, access), replayed("allocation", allocator)];
    if let Some(drain) = &setup.drain {
        machines.push(replayed("drain", Drain::new(drain.config)));
    }
    Ok(machines)
}

pub fn replay(args: &ReplayArgs, out: &mut Output<'_>) -> Result<()> {
    let (kind, setup, mut lines) = open(&args.trace)?;
    let (mut machines, nodes) = machines(&kind, setup, &lines)?;
    let (mut count, mut decided) = (0_u64, 0);
    for line in lines.by_ref() {
        let line = line?;
        count += 1;
        if line.seq != count {
            let problem = format!("the line has number {}, and {count} is due: lines are missing", line.seq);
            return Err(Error::Trace { file: args.trace.clone(), line: line.number, problem });
        }
        if !machines.iter().any(|m| m.who() == line.who) {
            machines.extend(node_machine(&line.who, nodes.as_ref()));
        }
        if let Some(machine) = machines.iter_mut().find(|m| m.who() == line.who) {
            let bad = |problem| Error::Trace { file: args.trace.clone(), line: line.number, problem };
            decided += machine.take(&line).map_err(bad)?;
        } else if line.event.is_some() || line.action.is_some() {
            let problem = format!("a record of kind '{kind}' has no machine '{}'", line.who);
            return Err(Error::Trace { file: args.trace.clone(), line: line.number, problem });
        }
    }
    if !lines.is_cut
        && let Some(problem) = machines.iter().find_map(|m| m.unrecorded())
    {
        return Err(lines.bad(problem));
    }
    if decided == 0 {
        let problem =
            "no action of a machine is recorded, so there is nothing to check; was the trace cut off?";
        return Err(lines.bad(problem.into()));
    }
    if out.json {
        let same = serde_json::json!({
            "lines": count, "actions": decided, "same": true, "cut": lines.is_cut,
        });
        return out.value(&same);
    }
    let cut = if lines.is_cut { "; the line after them has no end and was left out" } else { "" };
    say(out, &format!("{count} lines replayed, all {decided} actions are the same{cut}"))
}
