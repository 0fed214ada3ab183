//! How long the access machine takes to admit the next step while a thousand wait: from the end
//! of a step to the decision, on the machine that the coordinator drives.

use crate::measure::{Record, Target, median, quantile};
use crate::rig::Rig;
use forebay_policy::burst::access::{Action, Config, Event, Setup, Token};
use forebay_policy::machine::{Machine, Nanos};
use std::time::Instant;

const STEPS: u64 = 1000;
const SERVERS: u32 = 256;
/// Servers of a step, which overlap with those of its neighbours.
const WIDTH: u32 = 16;
const S: u64 = 1_000_000_000;

/// One group: the median and the longest decision, by policy.
pub fn access(rig: &Rig) -> Result<Vec<Record>, String> {
    let mut records = Vec::new();
    for policy in ["sa-sjf", "sys-sjf", "coflow"] {
        let runs = if rig.quick { 1 } else { rig.runs };
        let runs: Vec<Vec<f64>> = (0..runs).map(|_| decisions_ms(policy)).collect::<Result<_, _>>()?;
        let at = |share: f64| median(runs.iter().map(|run| quantile(run, share)));
        let note =
            format!("{STEPS} steps on {WIDTH} of {SERVERS} servers each, {} decisions a run", runs[0].len());
        for (name, share, target) in [
            ("median", 0.5, Target::AtMost(1.0)),
            ("p99", 0.99, Target::AtMost(1.0)),
            ("longest", 1.0, Target::Report),
        ] {
            let id = format!("access.{policy}.{name}");
            records.push(Record::alone(&id, at(share), "ms", target, runs.len(), &note));
        }
    }
    Ok(records)
}

/// Lets steps arrive, a new one whenever one ends, so that their number stays the same; returns the
/// time of each decision.
fn decisions_ms(policy: &str) -> Result<Vec<f64>, String> {
    let config = Config { nodes: SERVERS, patience_ns: 150 * S, overstay: 3, ..Config::default() };
    let setup = Setup { policy: policy.to_owned(), config };
    let mut machine = setup.build().map_err(|e| e.to_string())?;
    let arrives = |step: u64| Event::Arrives {
        step,
        nodes: (0..WIDTH).map(|i| (step as u32 * 7 + i) % SERVERS).collect(),
        alone_ns: S / 10 + step * 7919 % (10 * S),
        period_ns: 0,
    };
    let (mut out, mut held, mut times_ms) = (Vec::new(), Vec::<Token>::new(), Vec::new());
    let mut now = Nanos(0);
    (0..STEPS).for_each(|step| machine.handle(now, arrives(step), &mut out));
    for step in STEPS..3 * STEPS {
        let began = Instant::now();
        while machine.next_deadline().is_some_and(|at| at <= now) {
            machine.on_deadline(now, &mut out);
        }
        times_ms.push(began.elapsed().as_secs_f64() * 1e3);
        let granted = |action: Action| match action {
            Action::Grant { token, .. } => Some(token),
            _ => None,
        };
        held.extend(out.drain(..).filter_map(granted));
        // The next moment: a step ends, and another comes. Leases play no part in this.
        now = now + 1_000_000;
        let token = if held.is_empty() { return Err("nobody is let in".into()) } else { held.remove(0) };
        machine.handle(now, Event::Done { token }, &mut out);
        machine.handle(now, arrives(step), &mut out);
    }
    Ok(times_ms)
}
