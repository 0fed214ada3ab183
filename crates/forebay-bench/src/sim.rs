//! How fast the simulator is: events of a large world, a million steps on burst buffers, and a
//! month of a facility.

use crate::measure::{Record, Target, median};
use crate::rig::Rig;
use forebay_sim::kinds::Done;
use forebay_sim::scenario::File;
use forebay_sim::trace::Trace;
use std::path::Path;
use std::time::Instant;

const SCENARIOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");

/// One group: million events per second in a large world, by planner, and seconds for a million
/// steps and for a month of a facility.
pub fn sim(rig: &Rig) -> Result<Vec<Record>, String> {
    let runs = if rig.quick { 1 } else { rig.runs.min(3) };
    let mut records = Vec::new();
    for planner in ["naive-bb", "no-action", "eley", "forebay"] {
        let (mut rates, mut events) = (Vec::new(), 0);
        for _ in 0..runs {
            let (done, took_s) = run("large-world.toml", &[("planner.policy", planner)])?;
            let Done::World(world) = done else { return Err("large-world.toml is no world".into()) };
            events = world.events;
            rates.push(events as f64 * 1e-6 / took_s);
        }
        let note = format!("scenarios/large-world.toml with {planner}, {events} events a run");
        let id = format!("sim.world.{planner}");
        let target = Target::AtLeast(1.0);
        records.push(Record::alone(&id, median(rates.into_iter()), "million events/s", target, runs, &note));
    }
    let count = if rig.quick { "10000" } else { "1000000" };
    let (_, took_s) = run("arriving-steps.toml", &[("access.policy", "sa-sjf"), ("job.0.count", count)])?;
    let note = format!("scenarios/arriving-steps.toml, {count} jobs of one step with sa-sjf");
    records.push(Record::alone("sim.steps", took_s, "s", Target::AtMost(60.0), 1, &note));
    let horizon_s = if rig.quick { "86400" } else { "2592000" };
    let (_, took_s) = run("facility-month.toml", &[("horizon_s", horizon_s)])?;
    let note = format!("scenarios/facility-month.toml, {horizon_s} s of 10,000 nodes and 1,000 servers");
    records.push(Record::alone("sim.facility", took_s, "s", Target::AtMost(3600.0), 1, &note));
    Ok(records)
}

/// The outcome of a scenario, and how long it takes in seconds.
fn run(scenario: &str, set: &[(&str, &str)]) -> Result<(Done, f64), String> {
    let mut file = File::read(&Path::new(SCENARIOS).join(scenario)).map_err(|e| e.to_string())?;
    for (key, value) in set {
        file.set(key, value).map_err(|e| e.to_string())?;
    }
    let scenario = file.scenario().map_err(|e| e.to_string())?;
    let begin = Instant::now();
    let done = scenario.run(&mut Trace::off()).map_err(|e| e.to_string())?;
    Ok((done, begin.elapsed().as_secs_f64()))
}
