//! Exact decisions in small cases, and properties under random loads.

use proptest::prelude::*;

use super::*;

const S: u64 = 1_000_000_000;

fn demand(nodes: u32, bytes_per_node: u64, run_s: u64) -> Demand {
    Demand { nodes, bytes_per_node, stage_in_ns: 0, run_ns: run_s * S, stage_out_ns: 0 }
}

fn queue(policy: &str, nodes: u32, room: &[u64]) -> Queue {
    let config = Config { policy: policy.into(), nodes, room_bytes: room.to_vec() };
    Queue::new(config).expect("it exists")
}

/// The jobs of a load: when each comes, its demand, and which part of its estimate it needs.
type Load = Vec<(u64, Demand, f64)>;

/// When a job began, got nodes, released them, ended, and where its shares were.
type Ran = (u64, u64, u64, u64, Placement);

/// Runs a load to its end; transfers take as long as expected. Also returns every promise, in
/// order.
fn run(policy: &str, nodes: u32, room: &[u64], load: &Load) -> (Vec<Ran>, Vec<(JobId, Nanos)>) {
    let mut machine = queue(policy, nodes, room);
    let mut ran: Vec<Ran> = vec![(0, 0, 0, 0, Placement::new()); load.len()];
    let mut promises = Vec::new();
    // (time, order of kinds, job): ends come before what begins at the same moment.
    let mut events: alloc::collections::BTreeSet<(u64, u8, u64)> =
        load.iter().enumerate().map(|(i, job)| (job.0, 3, i as u64)).collect();
    loop {
        let due = machine.next_deadline().filter(|at| events.first().is_none_or(|first| at.0 < first.0));
        let mut out = Vec::new();
        let Some((now, kind, job)) = due.map(|at| (at.0, 9, 0)).or_else(|| events.pop_first()) else { break };
        let demand = load[job as usize].1;
        let event = match kind {
            0 => Event::Ends { job },
            1 => Event::Ran { job },
            2 => Event::StagedIn { job },
            _ => Event::Submits { job, demand },
        };
        if kind == 1 {
            events.insert((now + demand.stage_out_ns, 0, job));
        } else if kind == 0 {
            ran[job as usize].3 = now;
        }
        match due {
            Some(at) => machine.on_deadline(at, &mut out),
            None => machine.handle(Nanos(now), event, &mut out),
        }
        promises.extend(machine.promise);
        for action in out {
            match action {
                Action::Begin { job, shares } => {
                    (ran[job as usize].0, ran[job as usize].4) = (now, shares);
                    if load[job as usize].1.stage_in_ns > 0 {
                        events.insert((now + load[job as usize].1.stage_in_ns, 2, job));
                    }
                }
                Action::Run { job } => {
                    ran[job as usize].1 = now;
                    let (_, demand, part) = load[job as usize];
                    // A job that does not stage out releases everything at the same time.
                    let kind = u8::from(demand.stage_out_ns > 0);
                    ran[job as usize].2 = now + ((demand.run_ns as f64 * part) as u64).max(1);
                    events.insert((ran[job as usize].2, kind, job));
                }
            }
        }
    }
    assert!(machine.waiting.is_empty() && machine.held.is_empty(), "{:?}", machine.held);
    (ran, promises)
}

/// Loads of up to 25 jobs on 8 nodes and two burst buffers of 10 bytes.
fn loads(exact: bool, staged: bool) -> impl Strategy<Value = Load> {
    let job = (0u64..60, 1u32..=8, 0u64..=2, 1u64..30, 0.05f64..1.0, 0u64..5);
    let load = prop::collection::vec(job, 1..25);
    load.prop_map(move |jobs| {
        let of = |(at, nodes, bytes, run_s, part, staging)| {
            let staging_ns = if staged { staging * S } else { 0 };
            let demand =
                Demand { stage_in_ns: staging_ns, stage_out_ns: staging_ns, ..demand(nodes, bytes, run_s) };
            (at * S, demand, if exact { 1.0 } else { part })
        };
        let mut load: Load = jobs.into_iter().map(of).collect();
        load.sort_by_key(|job| job.0);
        load
    })
}

fn names() -> impl Strategy<Value = &'static str> {
    (0..POLICIES.len()).prop_map(|i| POLICIES[i].0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No nodes and no room are given twice, under any policy; each job ends; runs repeat.
    #[test]
    fn nothing_is_overcommitted(name in names(), load in loads(false, true)) {
        let (ran, promises) = run(name, 8, &[10, 10], &load);
        for &(_, at, ..) in &ran {
            let runs = ran.iter().zip(&load).filter(|(r, _)| r.1 <= at && at < r.2);
            prop_assert!(runs.map(|(_, job)| job.1.nodes).sum::<u32>() <= 8);
        }
        for &(at, ..) in &ran {
            let mut room = [0, 0];
            for (r, job) in ran.iter().zip(&load).filter(|(r, _)| r.0 <= at && at < r.3) {
                r.4.iter().for_each(|(b, shares)| room[*b as usize] += job.1.bytes_per_node * u64::from(*shares));
                let shares: u32 = r.4.iter().map(|s| s.1).sum();
                prop_assert_eq!(shares, if job.1.bytes_per_node > 0 { job.1.nodes } else { 0 });
            }
            prop_assert!(room.iter().all(|used| *used <= 10), "{:?}", room);
        }
        prop_assert_eq!(run(name, 8, &[10, 10], &load), (ran, promises));
    }

    #[test]
    fn first_come_is_first_served(load in loads(false, false)) {
        let (ran, _) = run("fcfs", 8, &[10, 10], &load);
        prop_assert!(ran.windows(2).all(|w| w[0].0 <= w[1].0));
    }

    /// With exact estimates, the first job begins no later than at any promise it had.
    #[test]
    fn easy_keeps_its_promises(load in loads(true, false), shortest in any::<bool>()) {
        let name = if shortest { "sjf-bb" } else { "fcfs-bb" };
        let (ran, promises) = run(name, 8, &[10, 10], &load);
        for (job, promise) in promises {
            prop_assert!(ran[job as usize].0 <= promise.0, "{job}: {} after {promise:?}", ran[job as usize].0);
        }
    }

    /// The plan's objective is at most that of each order from which the search begins.
    #[test]
    fn a_plan_is_no_worse_than_its_seeds(load in loads(true, false), alpha in 1u32..4) {
        let waiting: Vec<Waiting> = load
            .iter()
            .enumerate()
            .map(|(i, (at, demand, _))| Waiting { job: i as u64, submitted: Nanos(*at), demand: *demand })
            .collect();
        let mut profile = Profile::new(Nanos(60 * S), 8, &[10, 10]);
        profile.take_nodes(Nanos(60 * S), Nanos(70 * S), 3);
        profile.take_room(Nanos(60 * S), Nanos(75 * S), &[(0, 1)], 5);
        let mut plan = plan::Plan::new(alpha);
        let (_, best) = plan.search(Nanos(60 * S), &waiting, &profile);
        for order in plan::seeds(&waiting) {
            let seed = plan.score(Nanos(60 * S), &waiting, &order, &profile, |_, _, _| {});
            prop_assert!(best <= seed, "{best} {seed}");
        }
    }
}

/// Job 0 has all room until 10 s; job 1 waits for room; job 2 would fit beside both in nodes.
fn head_without_room() -> Load {
    vec![
        (0, demand(1, 10, 10), 1.0),
        (S, demand(4, 2, 5), 1.0),
        (2 * S, demand(4, 0, 8), 1.0),
        (3 * S, demand(2, 0, 30), 1.0),
    ]
}

#[test]
fn nodes_stand_idle_if_no_room_is_reserved() {
    let begins = |name| -> Vec<u64> {
        run(name, 5, &[10], &head_without_room()).0.iter().map(|ran| ran.0 / S).collect()
    };
    // The reservation of nodes alone begins immediately, and lets nothing pass.
    assert_eq!(begins("fcfs-easy"), [0, 10, 15, 23]);
    assert_eq!(begins("fcfs-bb"), [0, 10, 2, 15]);
    assert_eq!(begins("fcfs"), [0, 10, 15, 23]);
}

#[test]
fn stage_in_goes_on_while_others_have_the_nodes() {
    let staged = Demand { stage_in_ns: 4 * S, stage_out_ns: 3 * S, ..demand(2, 5, 6) };
    let load = vec![(0, demand(2, 0, 10), 1.0), (0, staged, 1.0)];
    let (ran, _) = run("fcfs-bb", 2, &[10], &load);
    // It begins in time for the nodes, which are free from 10 s on.
    assert_eq!((ran[1].0 / S, ran[1].1 / S, ran[1].2 / S, ran[1].3 / S), (6, 10, 16, 19));
}

#[test]
fn an_unknown_policy_is_refused() {
    let config = Config { policy: "lifo".into(), nodes: 1, room_bytes: vec![] };
    let refusal = Queue::new(config).err().expect("there is none").to_string();
    assert!(refusal.starts_with("no queue policy is called 'lifo'; there are fcfs, filler"), "{refusal}");
}
