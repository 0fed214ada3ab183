//! `forebay replay`: the policies driven by a record, from a simulation or a live coordinator.
//!
//! The header of the record has what the machines were built from. A fresh machine of the same kind
//! hears each recorded event, and what it decides must be what was recorded, to the byte. A
//! difference means that a policy is not a function of what it hears, or has changed since.

use std::collections::VecDeque;

use forebay_policy::bandwidth::{self, Divider};
use forebay_policy::batch_queue::Queue;
use forebay_policy::burst::access;
use forebay_policy::drain::{self, Drain};
use forebay_policy::machine::{Machine, Nanos};
use forebay_policy::memory::node::NodeMemory;
use forebay_policy::node::{self, Node};
use forebay_policy::ship::Ship;
use forebay_policy::stage::Stages;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Output, ReplayArgs, say};
use crate::colocate::observer;
use crate::error::{Error, Result};
use crate::record::{Line, Lines, open};
use crate::scenario::{BATCH, BURST_BUFFER, CLUSTER, COLOCATION, FACILITY, MEMORY, Scenario, WORLD};
use crate::trace::{ACCESS, LAWS, NODE, STAGES};
use crate::{burst, cluster, facility, memory, world};

/// Parses the part of the header that its machines were built from.
fn read<T: DeserializeOwned>(setup: Value, lines: &Lines) -> Result<T> {
    serde_json::from_value(setup).map_err(|e| lines.not_a_header(e))
}

fn scenario(kind: &str, setup: Value, lines: &Lines) -> Result<Scenario> {
    Ok(match kind {
        COLOCATION => Scenario::Colocation(read(setup, lines)?),
        BURST_BUFFER => Scenario::BurstBuffer(read(setup, lines)?),
        CLUSTER => Scenario::Cluster(read(setup, lines)?),
        MEMORY => Scenario::Memory(read(setup, lines)?),
        BATCH => Scenario::Batch(read(setup, lines)?),
        FACILITY => Scenario::Facility(read(setup, lines)?),
        WORLD => Scenario::World(read(setup, lines)?),
        other => {
            let known = format!(
                "{COLOCATION}, {BURST_BUFFER}, {CLUSTER}, {MEMORY}, {BATCH}, {FACILITY}, {WORLD}, {STAGES}, {ACCESS}, {NODE} and {LAWS} can be replayed"
            );
            return Err(lines.bad(format!("this is a run of kind '{other}'; {known}")));
        }
    })
}

/// A machine that receives what was recorded, and its decisions that the record must have next.
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
    /// A decision that the record lacks.
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
            // Compares the line itself and not what was parsed from it: to the byte.
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

/// What the machines of simulated nodes are built from.
enum OfNodes {
    Node(node::Config),
    Drain(drain::Config),
}

/// The machines of a record, and what the machines of its simulated nodes are built from.
type Machines = (Vec<Box<dyn Replay>>, Option<OfNodes>);

fn machines(kind: &str, setup: Value, lines: &Lines) -> Result<Machines> {
    if kind == NODE {
        return Ok((vec![replayed(NODE, Node::new(&read(setup, lines)?))], None));
    }
    if kind == STAGES {
        return Ok((vec![replayed(STAGES, Stages::new(read(setup, lines)?))], None));
    }
    if kind == ACCESS {
        let setup: access::Setup = read(setup, lines)?;
        return Ok((vec![replayed(ACCESS, setup.build()?)], None));
    }
    if kind == LAWS {
        let machine = NodeMemory::new(read(setup, lines)?).map_err(Error::Usage)?;
        return Ok((vec![replayed(LAWS, machine)], None));
    }
    let mut nodes = None;
    let machines = match scenario(kind, setup, lines)? {
        Scenario::Colocation(setup) => {
            let divider = bandwidth::policy(&setup.bandwidth)?;
            vec![
                replayed(STAGES, Stages::new(setup.stages()?)),
                replayed("bandwidth", Divider::new(divider)),
                replayed(observer::PHASES, observer::board()),
            ]
        }
        Scenario::Batch(setup) => {
            vec![replayed(BATCH, Queue::new(setup.config())?)]
        }
        Scenario::Facility(setup) => {
            nodes = Some(OfNodes::Drain(setup.drain));
            let queue = Queue::new(setup.queue.clone())?;
            vec![replayed(facility::QUEUE, queue), replayed(ACCESS, setup.access.build()?)]
        }
        Scenario::Memory(setup) => vec![replayed(MEMORY, memory::controller(&setup)?)],
        Scenario::Cluster(setup) => {
            nodes = Some(OfNodes::Node(setup.node_config()));
            of_cluster(&setup)
        }
        Scenario::BurstBuffer(setup) => of_buffers(&setup)?,
        Scenario::World(setup) => {
            nodes = Some(OfNodes::Node(setup.cluster.node_config()));
            let mut machines = of_cluster(&setup.cluster);
            machines.push(replayed(observer::PHASES, observer::board()));
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

/// A machine of a simulated node, which a record has from its first event on: nodes that fail
/// return with new ones.
fn node_machine(who: &str, config: Option<&OfNodes>) -> Option<Box<dyn Replay>> {
    let (kind, _) = who.split_once('/')?;
    match config? {
        OfNodes::Node(config) if kind == NODE => Some(replayed(who, Node::new(config))),
        OfNodes::Drain(config) if kind == facility::DRAIN => Some(replayed(who, Drain::new(*config))),
        OfNodes::Node(_) | OfNodes::Drain(_) => None,
    }
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
