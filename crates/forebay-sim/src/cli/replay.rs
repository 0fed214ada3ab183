//! `sim replay`: the policies driven by a recorded trace instead of a simulation.
//!
//! The header of the trace has what the machines were built from. Each recorded event is told to a fresh machine of the
//! same kind, and what it decides is held against what was recorded. A difference means that a policy is not a function
//! of what it was told, or has changed since.

use std::fs;
use std::path::Path;

use forebay_policy::bandwidth::{self, Divider};
use forebay_policy::machine::{Machine, Nanos};
use forebay_policy::planner::{self, Planner};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Output, ReplayArgs, say};
use crate::error::{Error, Result};
use crate::scenario::{BURST_BUFFER, COLOCATION, Scenario};
use crate::trace::{SCHEMA, VERSION};
use crate::{burst, colocate};

#[derive(Deserialize)]
struct Header {
    schema: String,
    version: u32,
    /// Missing in traces from before there was a second kind.
    kind: Option<String>,
    setup: Value,
}

/// A line after the header. Exactly one of `event`, `action` and `note` is there.
#[derive(Deserialize)]
pub struct Line {
    /// When.
    pub t_ns: u64,
    /// Which machine, or which part of the world.
    pub who: String,
    /// What a machine was told.
    pub event: Option<Value>,
    /// What it decided.
    pub action: Option<Value>,
    /// What happened without a decision.
    pub note: Option<Value>,
}

/// Reads a trace: its scenario and its lines.
pub fn read(path: &Path) -> Result<(Scenario, Vec<Line>)> {
    let text = fs::read_to_string(path).map_err(Error::io("read the trace", path))?;
    let bad = |line: usize, problem: String| Error::Trace { file: path.into(), line, problem };
    let not_one = |e: serde_json::Error| {
        bad(1, format!("not the header of a trace ({e}); was it written by `sim run --trace`?"))
    };
    let mut lines = text.lines();
    let first = lines.next().ok_or_else(|| bad(1, "the trace is empty".into()))?;
    let header: Header = serde_json::from_str(first).map_err(not_one)?;
    if (header.schema.as_str(), header.version) != (SCHEMA, VERSION) {
        let found = format!("{} version {}", header.schema, header.version);
        return Err(bad(1, format!("this is {found}; {SCHEMA} version {VERSION} can be read")));
    }
    let scenario = match header.kind.as_deref().unwrap_or(COLOCATION) {
        COLOCATION => {
            let setup: colocate::Setup = serde_json::from_value(header.setup).map_err(not_one)?;
            Scenario::Colocation(Box::new(setup))
        }
        BURST_BUFFER => {
            let setup: burst::Setup = serde_json::from_value(header.setup).map_err(not_one)?;
            Scenario::BurstBuffer(Box::new(setup))
        }
        other => {
            let known = format!("{COLOCATION} and {BURST_BUFFER} can be read");
            return Err(bad(1, format!("this is a run of kind '{other}'; {known}")));
        }
    };
    let parse = |(i, line): (usize, &str)| {
        serde_json::from_str(line)
            .map_err(|e| bad(i + 2, format!("not a line of a trace ({e}); was it cut off?")))
    };
    Ok((scenario, lines.enumerate().map(parse).collect::<Result<_>>()?))
}

/// A machine that is told what was recorded, and what it decided that is still to be found in the record.
struct Replayed<M: Machine> {
    who: &'static str,
    machine: M,
    pending: std::collections::VecDeque<Value>,
    checked: u64,
}

impl<M: Machine> Replayed<M>
where
    M::Event: DeserializeOwned,
    M::Action: Serialize,
{
    fn new(who: &'static str, machine: M) -> Self {
        Replayed { who, machine, pending: Default::default(), checked: 0 }
    }

    /// Takes one line of its own; an error says how the record and the machine differ.
    fn take(&mut self, line: &Line) -> std::result::Result<(), String> {
        if let Some(event) = &line.event {
            if let Some(action) = self.pending.front() {
                return Err(format!("the machine also decided {action}, which was not recorded"));
            }
            let mut out = Vec::new();
            if event == "deadline" {
                self.machine.on_deadline(Nanos(line.t_ns), &mut out);
            } else {
                let event = M::Event::deserialize(event).map_err(|e| format!("unknown event: {e}"))?;
                self.machine.handle(Nanos(line.t_ns), event, &mut out);
            }
            for action in &out {
                self.pending.push_back(serde_json::to_value(action).map_err(|e| e.to_string())?);
            }
        }
        if let Some(recorded) = &line.action {
            self.checked += 1;
            match self.pending.pop_front() {
                Some(ours) if ours == *recorded => {}
                Some(ours) => return Err(format!("recorded {recorded}, but the machine decides {ours}")),
                None => return Err(format!("recorded {recorded}, but the machine decides nothing")),
            }
        }
        Ok(())
    }
}

/// Tells two machines what they were told, in the order of the record; the number of actions that were the same.
fn both<A: Machine, B: Machine>(
    path: &Path,
    lines: &[Line],
    (mut a, mut b): (Replayed<A>, Replayed<B>),
) -> Result<u64>
where
    A::Event: DeserializeOwned,
    A::Action: Serialize,
    B::Event: DeserializeOwned,
    B::Action: Serialize,
{
    for (i, line) in lines.iter().enumerate() {
        let taken = match line.who.as_str() {
            who if who == a.who => a.take(line),
            who if who == b.who => b.take(line),
            _ => Ok(()),
        };
        taken.map_err(|problem| Error::Trace { file: path.into(), line: i + 2, problem })?;
    }
    if let Some(action) = a.pending.front().or(b.pending.front()) {
        let problem = format!("the machine also decided {action}, which was not recorded");
        return Err(Error::Trace { file: path.into(), line: lines.len() + 1, problem });
    }
    Ok(a.checked + b.checked)
}

pub fn replay(args: &ReplayArgs, out: &mut Output<'_>) -> Result<()> {
    let (scenario, lines) = read(&args.trace)?;
    let decided = match scenario {
        Scenario::Colocation(setup) => {
            let policy = planner::policy(&setup.policy, &setup.planner).map_err(Error::Usage)?;
            let divider = bandwidth::policy(&setup.bandwidth).map_err(Error::Usage)?;
            let planner = Replayed::new("planner", Planner::new(setup.planner.clone(), policy));
            both(&args.trace, &lines, (planner, Replayed::new("bandwidth", Divider::new(divider))))?
        }
        Scenario::BurstBuffer(setup) => {
            let (access, allocator) = burst::machines(&setup)?;
            let access = Replayed::new("access", access);
            both(&args.trace, &lines, (access, Replayed::new("allocation", allocator)))?
        }
    };
    if decided == 0 {
        let problem =
            "no action of a machine is recorded, so there is nothing to check; was the trace cut off?";
        return Err(Error::Trace {
            file: args.trace.clone(),
            line: lines.len() + 1,
            problem: problem.into(),
        });
    }
    if out.json {
        return out.value(&serde_json::json!({ "lines": lines.len(), "actions": decided, "same": true }));
    }
    say(out, &format!("{} lines replayed, all {decided} actions are the same", lines.len()))
}
