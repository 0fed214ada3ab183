//! What the memory controllers of many nodes cost: their laws, and the heartbeats that report
//! the capacities to the coordinator. One core runs all of them in turn.

use super::clock::now_ns;
use crate::measure::{Record, Target};
use forebay_coordinator::core::{Core, Effect};
use forebay_coordinator::driver::Driver;
use forebay_coordinator::members::Timing;
use forebay_coordinator::steps::Steps;
use forebay_policy::machine::{Machine, Nanos};
use forebay_policy::memory::Alarm;
use forebay_policy::memory::node::{Action, Config, Event, NodeMemory};
use forebay_trace::log_files::Recorder;
use forebay_wire::cluster::{CLUSTER_PROTOCOL, ToCoordinator};
use forebay_wire::{NodeInfo, frame};

const GB: u64 = 1_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Simulated time.
const SECONDS: u64 = 10;

/// The most that a tier may have, of 64 GB.
const TIER_BYTES: u64 = 40 * GB;

/// Share of a core that `nodes` nodes take together, each with a program that takes 2 GB of 64 at
/// 1 GB/s, rests for a second and begins again: the laws alone, and the coordinator that hears of
/// each capacity once a second.
pub fn cluster(nodes: u64) -> Result<Vec<Record>, String> {
    let (since_ns, mut looks, mut heard) = (now_ns(), 0, Vec::with_capacity(nodes as usize));
    for node in 0..nodes {
        let (capacities, count) = law(node)?;
        looks += count;
        heard.push(capacities);
    }
    let laws = share(now_ns() - since_ns);
    let each_s = looks as f64 / (nodes * SECONDS) as f64;
    let note =
        format!("of a core, by the laws of {nodes} nodes for {SECONDS} s, {each_s:.0} samples a second each");
    let beats = heartbeats(&heard)?;
    let with =
        format!("of a core, by the coordinator: a heartbeat a second of {nodes} nodes with these laws");
    Ok(vec![
        Record::alone("memory.cost.cluster", laws, "%", Target::AtMost(100.0), 1, &note),
        Record::alone("memory.cost.heartbeats", beats, "%", Target::AtMost(100.0), 1, &with),
        Record::alone("memory.cost.both", laws + beats, "%", Target::AtMost(100.0), 1, "the sum of the two"),
    ])
}

fn share(ran_ns: u64) -> f64 {
    ran_ns as f64 * 100.0 / (SECONDS * SECOND_NS) as f64
}

/// What the coordinator may keep of jobs, of which there are none here.
const REPORTS_BYTES: u64 = 1 << 30;

/// The capacity at each second, and how often the law has looked.
fn law(node: u64) -> Result<(Vec<u64>, u64), String> {
    let built_from = Config { policy: "forebay".into(), target: 0.95, period_ns: 100_000_000, gain: 0.5 };
    let (mut machine, mut out) = (NodeMemory::new(built_from)?, Vec::new());
    let (mut at_ns, mut capacity_bytes, mut looks) = (0, TIER_BYTES, 0);
    let mut capacities = Vec::with_capacity(SECONDS as usize);
    while at_ns < SECONDS * SECOND_NS {
        let phase_ns = (at_ns + node * 7_919_000) % (3 * SECOND_NS);
        let used_bytes = 22 * GB + phase_ns.min(2 * GB) + capacity_bytes;
        let (min_bytes, max_bytes, tier_bytes) = (0, TIER_BYTES, capacity_bytes);
        let look = Event::Look { min_bytes, max_bytes, capacity_bytes, tier_bytes, pressed: false };
        let (total_bytes, shared_bytes, alarm) = (64 * GB, used_bytes, Alarm::Threshold);
        let seen = Event::Place { place: 0, total_bytes, used_bytes, shared_bytes, alarm };
        out.clear();
        for event in [look, seen, Event::Decide] {
            machine.handle(Nanos(at_ns), event, &mut out);
        }
        capacity_bytes = machine.snapshot();
        if at_ns / SECOND_NS >= capacities.len() as u64 {
            capacities.push(capacity_bytes);
        }
        let watch = out.iter().find_map(|action| match action {
            Action::Watch { after_ns } => Some(*after_ns),
            _ => None,
        });
        at_ns += watch.ok_or("the machine does not want to look again")?;
        looks += 1;
    }
    Ok((capacities, looks))
}

/// Share of a core that the coordinator takes to hear of these capacities: each message is encoded
/// and decoded, and its answer as well.
fn heartbeats(capacities: &[Vec<u64>]) -> Result<f64, String> {
    let driver = Driver::new(
        forebay_policy::stage::Config::default(),
        Recorder::off(),
        REPORTS_BYTES,
        Steps::unscheduled(),
    );
    let mut core = Core::new(1, Nanos(0), Timing { grace_ns: 0, ..Timing::DEFAULT }, driver);
    let mut out = Vec::new();
    for number in 0..capacities.len() {
        let name = format!("node-{number:05}");
        let node = NodeInfo {
            host: name.clone(),
            name,
            capacity_bytes: TIER_BYTES,
            mounts: vec!["pfs".into()],
            extent_bytes: vec![128 << 20],
            ..NodeInfo::default()
        };
        let join =
            ToCoordinator::Join { protocol: CLUSTER_PROTOCOL, node, incarnation: 1, attempt: 0, term: 0 };
        core.handle(Nanos(0), number as u64, join, &mut out);
    }
    core.tick(Nanos(0), &mut out);
    if out.iter().any(|effect| matches!(effect, Effect::Close(_))) {
        return Err("a simulated node was not taken as a member".into());
    }
    let since_ns = now_ns();
    for second in 0..SECONDS {
        for (number, of_node) in capacities.iter().enumerate() {
            // Spread over the second, as nodes that do not know each other are.
            let now = Nanos(second * SECOND_NS + number as u64 * SECOND_NS / capacities.len() as u64);
            let capacity_bytes = of_node.get(second as usize).copied().unwrap_or(TIER_BYTES);
            let (weight_bytes, resident_bytes, fetched_bytes) = (TIER_BYTES, capacity_bytes, 0);
            let beat =
                ToCoordinator::Heartbeat { weight_bytes, capacity_bytes, resident_bytes, fetched_bytes };
            let bytes = frame::encode(&beat).map_err(|e| e.to_string())?;
            let beat = frame::receive(&mut &bytes[..]).map_err(|e| e.to_string())?;
            out.clear();
            core.handle(now, number as u64, beat, &mut out);
            core.tick(now, &mut out);
            for effect in &out {
                if let Effect::Send(_, message) = effect {
                    std::hint::black_box(frame::encode(message).map_err(|e| e.to_string())?);
                }
            }
        }
    }
    Ok(share(now_ns() - since_ns))
}
