//! Exact decisions in hand-made cases, and properties in all.

use proptest::prelude::*;

use super::*;
use crate::machine::Machine;

const S: u64 = 1_000_000_000;

fn machine(name: &str, nodes: u32) -> Access {
    with(name, Config { nodes, ..Config::default() })
}

fn with(name: &str, config: Config) -> Access {
    Access::new(policy(name, &config).expect("it exists"), config)
}

/// Passes all events of one moment to the machine, and then that the moment has come.
fn at(m: &mut Access, now: Nanos, events: Vec<Event>) -> Vec<Action> {
    let mut out = Vec::new();
    events.into_iter().for_each(|e| m.handle(now, e, &mut out));
    while m.next_deadline().is_some_and(|d| d <= now) {
        m.on_deadline(now, &mut out);
    }
    out
}

fn arrives(step: StepId, nodes: &[u32], alone_s: u64) -> Event {
    Event::Arrives { step, nodes: nodes.to_vec(), alone_ns: alone_s * S, period_ns: 0 }
}

fn granted(out: &[Action]) -> Vec<(StepId, Reason)> {
    let grant = |a: &Action| match a {
        Action::Grant { step, why, .. } => Some((*step, *why)),
        _ => None,
    };
    out.iter().filter_map(grant).collect()
}

#[test]
fn sharing_aware_lets_in_what_has_no_common_node() {
    let mut m = machine("sa-sjf", 4);
    let out = at(&mut m, Nanos(0), vec![arrives(1, &[0, 1], 9), arrives(2, &[1, 2], 5), arrives(3, &[3], 7)]);
    assert_eq!(granted(&out), [(2, Reason::First), (3, Reason::First)]);
    let out = at(&mut m, Nanos(5 * S), vec![Event::Done { token: 1 }]);
    assert_eq!(granted(&out), [(1, Reason::First)]);
}

#[test]
fn system_wide_runs_one_and_none_runs_all() {
    let steps = || vec![arrives(1, &[0], 9), arrives(2, &[1], 5)];
    assert_eq!(granted(&at(&mut machine("sys-fcfs", 2), Nanos(0), steps())), [(1, Reason::First)]);
    assert_eq!(granted(&at(&mut machine("sys-sjf", 2), Nanos(0), steps())), [(2, Reason::First)]);
    let out = at(&mut machine("none", 2), Nanos(0), steps());
    assert_eq!(granted(&out), [(1, Reason::Unscheduled), (2, Reason::Unscheduled)]);
}

#[test]
fn a_lost_holder_is_revoked_and_a_renewed_one_is_not() {
    let mut m = with("sa-fcfs", Config { nodes: 1, lease_ns: 10 * S, ..Config::default() });
    at(&mut m, Nanos(0), vec![arrives(1, &[0], 60), arrives(2, &[0], 60)]);
    let out = at(&mut m, Nanos(8 * S), vec![Event::Renew { token: 1 }]);
    assert_eq!(out, [Action::Renewed { token: 1, until: Nanos(18 * S) }]);
    assert_eq!(m.next_deadline(), Some(Nanos(18 * S)));
    let out = at(&mut m, Nanos(18 * S), vec![]);
    assert_eq!(out[0], Action::Revoke { token: 1, step: 1 });
    assert_eq!(granted(&out), [(2, Reason::First)]);
    // Its lease has expired: its token is worth nothing.
    assert_eq!(at(&mut m, Nanos(19 * S), vec![Event::Done { token: 1 }]), []);
    assert_eq!(m.snapshot().active.len(), 1);
}

#[test]
fn a_withdrawn_step_is_forgotten() {
    let mut m = machine("sa-fcfs", 1);
    at(&mut m, Nanos(0), vec![arrives(1, &[0], 1), arrives(2, &[0], 1), arrives(3, &[0], 1)]);
    let out = at(&mut m, Nanos(S), vec![Event::Leaves { step: 2 }, Event::Done { token: 1 }]);
    assert_eq!(granted(&out), [(3, Reason::First)]);
}

/// Steps 1 and 2 keep slipping in on node 0 or 1; step 9 wants both and gets them once its patience
/// is over.
#[test]
fn an_overdue_step_has_its_nodes_kept_free() {
    let mut m = with("sa-sjf", Config { nodes: 2, patience_ns: 3 * S, ..Config::default() });
    at(&mut m, Nanos(0), vec![arrives(1, &[0], 2), arrives(2, &[1], 3), arrives(9, &[0, 1], 5)]);
    let out = at(&mut m, Nanos(2 * S), vec![Event::Done { token: 1 }, arrives(3, &[0], 2)]);
    assert_eq!(granted(&out), [(3, Reason::First)]);
    let out = at(&mut m, Nanos(3 * S), vec![Event::Done { token: 2 }, arrives(4, &[1], 2)]);
    assert_eq!(granted(&out), [], "node 1 is free, and kept for step 9");
    let out = at(&mut m, Nanos(4 * S), vec![Event::Done { token: 3 }]);
    assert_eq!(granted(&out), [(9, Reason::Overdue)]);
}

/// Step 9 has node 0 kept free and waits for node 1; when it is withdrawn, a step that waits for
/// node 0 has it immediately.
#[test]
fn nodes_kept_free_for_a_withdrawn_step_are_given_out() {
    let mut m = with("sa-fcfs", Config { nodes: 2, patience_ns: 3 * S, ..Config::default() });
    at(&mut m, Nanos(0), vec![arrives(1, &[0], 5), arrives(2, &[1], 60), arrives(9, &[0, 1], 5)]);
    let out = at(&mut m, Nanos(5 * S), vec![Event::Done { token: 1 }, arrives(3, &[0], 2)]);
    assert_eq!(granted(&out), [], "node 0 is free, and kept for step 9");
    let out = at(&mut m, Nanos(6 * S), vec![Event::Leaves { step: 9 }]);
    assert_eq!(granted(&out), [(3, Reason::First)]);
}

fn begun(step: StepId, nodes: &[u32], alone_s: u64) -> Event {
    Event::Begun { step, nodes: nodes.to_vec(), alone_ns: alone_s * S, period_ns: 0 }
}

/// A step that did not ask, or asks no longer, holds its nodes like any other.
#[test]
fn steps_that_have_begun_hold_their_nodes() {
    let mut m = machine("sa-fcfs", 2);
    let out = at(&mut m, Nanos(0), vec![arrives(1, &[0], 5), arrives(2, &[0], 5), begun(3, &[1], 5)]);
    assert_eq!(granted(&out), [(3, Reason::Begun), (1, Reason::First)]);
    assert_eq!(m.holders_before(2), [1]);
    // The second has waited for long enough; the fourth waits for all that hold its node.
    let out = at(&mut m, Nanos(S), vec![begun(2, &[0], 5), arrives(4, &[], 5)]);
    assert_eq!(granted(&out), [(2, Reason::Begun)]);
    assert_eq!(m.holders_before(4), [3, 1, 2], "it may write anywhere");
    assert_eq!(granted(&at(&mut m, Nanos(2 * S), vec![Event::Done { token: 2 }])), []);
    at(&mut m, Nanos(3 * S), vec![Event::Done { token: 1 }]);
    assert_eq!(granted(&at(&mut m, Nanos(4 * S), vec![Event::Done { token: 3 }])), [(4, Reason::First)]);
}

#[test]
fn a_step_that_never_ends_loses_its_token_once_somebody_waits() {
    let mut m = with("sa-fcfs", Config { nodes: 1, lease_ns: LONG, overstay: 3, ..Config::default() });
    at(&mut m, Nanos(0), vec![arrives(1, &[0], 2)]);
    assert_eq!(m.next_deadline(), Some(Nanos(LONG)), "it harms nobody");
    at(&mut m, Nanos(S), vec![arrives(2, &[0], 2)]);
    assert_eq!(m.next_deadline(), Some(Nanos(6 * S)));
    let out = at(&mut m, Nanos(6 * S), vec![]);
    assert_eq!(out[0], Action::Revoke { token: 1, step: 1 });
    assert_eq!(granted(&out), [(2, Reason::First)]);
    // Short steps have a second.
    let out = at(
        &mut m,
        Nanos(12 * S),
        vec![Event::Arrives { step: 3, nodes: vec![0], alone_ns: 1, period_ns: 0 }],
    );
    assert_eq!(granted(&out), [(3, Reason::First)], "the second has overstayed");
    at(&mut m, Nanos(12 * S), vec![arrives(4, &[0], 1)]);
    assert_eq!(m.next_deadline(), Some(Nanos(13 * S)));
}

#[test]
fn set_10_runs_one_step_of_each_set_wherever_they_write() {
    let mut m = machine("set-10", 32);
    let of = |step, node, period_s: u64| Event::Arrives {
        step,
        nodes: vec![node],
        alone_ns: S,
        period_ns: period_s * S,
    };
    let out = at(&mut m, Nanos(0), vec![of(1, 0, 8), of(2, 1, 12), of(3, 0, 1000), of(4, 0, 0)]);
    assert_eq!(granted(&out).iter().map(|g| g.0).collect::<Vec<_>>(), [1, 3, 4]);
    assert_eq!(granted(&at(&mut m, Nanos(S), vec![Event::Done { token: 1 }])), [(2, Reason::First)]);
}

/// Random steps on up to `nodes` nodes: (mask, seconds).
fn steps(nodes: u32, count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<(Vec<u32>, u64)>> {
    let members = prop::collection::btree_set(0..nodes, 1..=nodes as usize);
    prop::collection::vec((members.prop_map(|m| m.into_iter().collect()), 1u64..100), count)
}

/// Runs steps that arrive at the given seconds to their ends. Returns (step, start, end) of each,
/// checking the nodes at every moment.
fn play(m: &mut Access, steps: &[(Vec<u32>, u64)], arrivals_s: &[u64]) -> Vec<(StepId, u64, u64)> {
    // When each token's step ends, the step, and its start.
    let mut running: BTreeMap<Token, (u64, StepId, u64)> = BTreeMap::new();
    let mut done = Vec::new();
    let mut times: Vec<(u64, usize)> = arrivals_s.iter().map(|&s| s * S).zip(0..steps.len()).collect();
    times.sort_unstable();
    while done.len() < steps.len() {
        let next_end = running.values().map(|r| r.0).min();
        let next_arrival = times.first().map(|t| t.0);
        let now = [next_end, next_arrival].into_iter().flatten().min().expect("nothing runs, and steps wait");
        let mut events = Vec::new();
        running.retain(|&token, &mut (end, step, start)| {
            if end == now {
                done.push((step, start, now));
                events.push(Event::Done { token });
            }
            end > now
        });
        while times.first().is_some_and(|t| t.0 <= now) {
            let i = times.remove(0).1;
            events.push(Event::Arrives {
                step: i as u64,
                nodes: steps[i].0.clone(),
                alone_ns: steps[i].1 * S,
                period_ns: 0,
            });
        }
        for (token, step) in at(m, Nanos(now), events).iter().filter_map(|action| match action {
            Action::Grant { token, step, .. } => Some((*token, *step)),
            _ => None,
        }) {
            running.insert(token, (now + steps[step as usize].1 * S, step, now));
        }
        let mut held: Vec<u32> = running.values().flat_map(|r| steps[r.1 as usize].0.clone()).collect();
        held.sort_unstable();
        assert!(held.windows(2).all(|w| w[0] != w[1]), "a node is held twice: {held:?}");
    }
    done
}

use alloc::collections::BTreeMap;

const LONG: u64 = u64::MAX / 4;

/// The order that nodes were last given.
fn ranked(actions: &[Action]) -> Option<Vec<Token>> {
    actions.iter().rev().find_map(|a| match a {
        Action::Rank { order } => Some(order.clone()),
        _ => None,
    })
}

/// All are admitted when they come. One of 4 s on both nodes goes before two of 5 s on one each,
/// and behind one of 1 s. Behind these, the one on the node without it is over sooner.
#[test]
fn coflow_serves_who_can_be_over_first() {
    let mut m = machine("coflow", 2);
    let out = at(&mut m, Nanos(0), vec![arrives(1, &[0], 5), arrives(2, &[0, 1], 4), arrives(3, &[1], 5)]);
    assert_eq!(granted(&out).len(), 3);
    assert!(granted(&out).iter().all(|g| g.1 == Reason::Ranked));
    assert_eq!(ranked(&out), Some(vec![2, 1, 3]));
    let out = at(&mut m, Nanos(S), vec![arrives(4, &[0], 1)]);
    assert_eq!(ranked(&out), Some(vec![4, 2, 3, 1]));
    let out = at(&mut m, Nanos(2 * S), vec![Event::Done { token: 4 }]);
    assert_eq!(ranked(&out), Some(vec![2, 3, 1]));
}

#[test]
fn coflow_puts_overdue_steps_first_and_late_ones_last() {
    let config = Config { nodes: 1, lease_ns: LONG, patience_ns: 20 * S, ..Config::default() };
    let mut m = with("coflow", config);
    at(&mut m, Nanos(0), vec![arrives(1, &[0], 100), arrives(2, &[0], 1)]);
    // The second has had its second and a tenth more, and is not over. No step comes or goes.
    let mut next = || {
        (0..10).find_map(|_| {
            let (now, mut out) = (m.next_deadline()?, Vec::new());
            m.on_deadline(now, &mut out);
            ranked(&out).map(|order| (now, order))
        })
    };
    let (late, order) = next().expect("it goes behind the first");
    assert!(order == [1, 2] && late > Nanos(S) && late < Nanos(2 * S), "{order:?} at {late:?}");
    let out = at(&mut m, Nanos(10 * S), vec![arrives(3, &[0], 50)]);
    assert_eq!(ranked(&out), Some(vec![3, 1, 2]));
    let mut out = Vec::new();
    m.on_deadline(Nanos(20 * S), &mut out);
    assert_eq!(ranked(&out), Some(vec![1, 3, 2]), "the first is overdue");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The parts of a node add up to the whole, none is larger than one before it, and none is
    /// empty.
    #[test]
    fn shares_are_the_whole_node(count in 1usize..12) {
        let shares: Vec<f64> = (0..count).map(|place| share(place, count)).collect();
        prop_assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        prop_assert!(shares.windows(2).all(|w| w[0] > w[1]) && shares.iter().all(|&s| s > 0.0));
    }

    /// Whatever comes and goes: no step waits, and the order names each step that writes once.
    #[test]
    fn coflow_lets_all_in_and_ranks_them(steps in steps(16, 1..24), gaps in prop::collection::vec(0u64..40, 24)) {
        let mut m = with("coflow", Config { nodes: 16, lease_ns: LONG, ..Config::default() });
        let (mut now, mut order) = (0, Vec::new());
        for (i, ((nodes, seconds), gap)) in (1..).zip(steps.iter().zip(&gaps)) {
            now += gap * S;
            let mut events = vec![arrives(i, nodes, *seconds)];
            events.extend((i % 3 == 0).then_some(Event::Done { token: i / 2 }));
            let out = at(&mut m, Nanos(now), events);
            order = ranked(&out).unwrap_or(order);
            let snapshot = m.snapshot();
            prop_assert!(snapshot.pending.is_empty());
            let mut active: Vec<Token> = snapshot.active.iter().map(|a| a.0).collect();
            let mut named = order.clone();
            active.sort_unstable();
            named.sort_unstable();
            prop_assert_eq!(active, named);
        }
    }

    /// Tokens never overlap on a node, every step gets its turn, and when the machine has decided,
    /// no step waits whose nodes are all free.
    #[test]
    fn tokens_do_not_overlap_and_nobody_waits_for_nothing(
        which in 3usize..5, steps in steps(16, 1..14), gaps in prop::collection::vec(0u64..40, 14)
    ) {
        let name = POLICIES[which].0;
        let mut m = with(name, Config { nodes: 16, lease_ns: LONG, ..Config::default() });
        let arrivals: Vec<u64> = gaps.iter().scan(0, |t, g| { *t += g; Some(*t) }).take(steps.len()).collect();
        let done = play(&mut m, &steps, &arrivals);
        prop_assert_eq!(done.len(), steps.len());
        let shares = |a: StepId, b: StepId| {
            a != b && steps[a as usize].0.iter().any(|n| steps[b as usize].0.contains(n))
        };
        let held_until = |step: StepId, t: u64| {
            done.iter().filter(|d| shares(d.0, step) && d.1 <= t && t < d.2).map(|d| d.2).max()
        };
        for &(step, start, _) in &done {
            // Work conservation: while it waited, one of its nodes was always held by another step.
            let mut t = arrivals[step as usize] * S;
            while t < start {
                let covering = held_until(step, t);
                prop_assert!(covering.is_some(), "step {step} waits at {t} with free nodes");
                t = covering.expect("checked");
            }
        }
    }

    /// No starvation under ageing a: keys are p + a * arrival, so of steps that come later than p /
    /// a after a step none goes before it, and with patience nodes are kept free for it then. It
    /// waits for its patience at most, and then, for itself and for each overdue one that came
    /// before it, for what holds nodes when its turn comes.
    #[test]
    fn no_starvation_under_ageing(
        ageing in 0.01f64..1.0, steps in steps(16, 1..24),
        gaps in prop::collection::vec(0u64..20, 24), patience_s in 1u64..200
    ) {
        let patience_ns = patience_s * S;
        let config = Config { nodes: 16, lease_ns: LONG, ageing, patience_ns, ..Config::default() };
        let mut m = with("sa-sjf", config);
        let arrivals: Vec<u64> = gaps.iter().scan(0, |t, g| { *t += g; Some(*t) }).take(steps.len()).collect();
        let done = play(&mut m, &steps, &arrivals);
        prop_assert_eq!(done.len(), steps.len());
        let longest = steps.iter().map(|s| s.1).max().unwrap_or(0);
        for &(step, start, _) in &done {
            let i = step as usize;
            let bound_s = patience_s + (step + 1) * longest;
            prop_assert!(start <= (arrivals[i] + bound_s) * S + S, "step {i} waited until {start}");
        }
    }

    /// Whatever begins without asking, dies or stays forever: no token is granted for a node that
    /// is held, and each waiting step is admitted within its patience and the time for which the
    /// holders of its nodes, and the overdue steps before it, may stay.
    #[test]
    fn grants_never_overlap_and_waits_are_bounded_whatever_others_do(
        which in 1usize..5, steps in steps(8, 1..20), gaps in prop::collection::vec(0u64..20, 20),
        manners in prop::collection::vec(0u8..4, 20),
    ) {
        const OVERSTAY: u32 = 2;
        const PATIENCE_S: u64 = 30;
        let config = Config {
            nodes: 8, lease_ns: LONG, patience_ns: PATIENCE_S * S, overstay: OVERSTAY, ..Config::default()
        };
        let mut m = with(POLICIES[which].0, config);
        let mut held: BTreeMap<Token, (Vec<u32>, u64)> = BTreeMap::new();
        let mut waits: BTreeMap<StepId, u64> = BTreeMap::new();
        let longest = steps.iter().map(|s| s.1).max().unwrap_or(0).max(1);
        let bound_s = PATIENCE_S + (1 + steps.len() as u64) * longest * u64::from(OVERSTAY);
        let mut arrivals: Vec<(u64, usize)> =
            gaps.iter().scan(0, |t, g| { *t += g; Some(*t) }).zip(0..steps.len()).collect();
        for now_s in 0..gaps.iter().sum::<u64>() + bound_s + longest {
            let now = Nanos(now_s * S);
            let mut events = Vec::new();
            held.retain(|&token, (_, end)| {
                events.extend((*end <= now_s).then_some(Event::Done { token }));
                *end > now_s
            });
            while arrivals.first().is_some_and(|a| a.0 <= now_s) {
                let (_, i) = arrivals.remove(0);
                let (nodes, alone_s) = &steps[i];
                if manners[i] == 0 {
                    events.push(begun(i as u64, nodes, *alone_s));
                } else {
                    waits.insert(i as u64, now_s);
                    events.push(arrives(i as u64, nodes, *alone_s));
                }
            }
            for action in at(&mut m, now, events) {
                match action {
                    Action::Revoke { token, .. } => drop(held.remove(&token)),
                    Action::Grant { token, step, why, .. } => {
                        let i = step as usize;
                        let overlaps = |of: &(Vec<u32>, u64)| of.0.iter().any(|n| steps[i].0.contains(n));
                        let alone = why == Reason::Begun || !held.values().any(overlaps);
                        prop_assert!(alone, "step {i} was let in beside another");
                        waits.remove(&step);
                        // Some never end.
                        let end = if manners[i] == 1 { u64::MAX } else { now_s + steps[i].1 };
                        held.insert(token, (steps[i].0.clone(), end));
                    }
                    _ => {}
                }
            }
            prop_assert!(waits.values().all(|since| now_s <= since + bound_s), "{waits:?} at {now_s}");
        }
        prop_assert!(waits.is_empty());
    }

    /// With ageing alone, on one node, no step that came more than p / a after a step of p seconds
    /// is admitted before it.
    #[test]
    fn ageing_bounds_who_may_overtake(
        ageing in 0.05f64..1.0, seconds in prop::collection::vec(1u64..100, 2..20),
        gaps in prop::collection::vec(0u64..40, 20)
    ) {
        let mut m = with("sa-sjf", Config { nodes: 16, lease_ns: LONG, ageing, ..Config::default() });
        let steps: Vec<(Vec<u32>, u64)> = seconds.iter().map(|&s| (vec![0], s)).collect();
        let arrivals: Vec<u64> = gaps.iter().scan(0, |t, g| { *t += g; Some(*t) }).take(steps.len()).collect();
        let done = play(&mut m, &steps, &arrivals);
        let start = |i: usize| done.iter().find(|d| d.0 == i as u64).expect("it ran").1;
        for i in 0..steps.len() {
            for j in i + 1..steps.len() {
                let after_s = (arrivals[j] - arrivals[i]) as f64;
                if after_s > seconds[i] as f64 / ageing {
                    prop_assert!(start(i) < start(j), "{j} overtook {i}");
                }
            }
        }
    }

    /// A step that is withdrawn, or never came, makes no other step end later under one node's SJF:
    /// monotone in load.
    #[test]
    fn fewer_steps_on_a_node_never_wait_longer(seconds in prop::collection::vec(1u64..100, 2..16), gone in 0usize..16) {
        let gone = gone % seconds.len();
        let all: Vec<(Vec<u32>, u64)> = seconds.iter().map(|&s| (vec![0], s)).collect();
        let mut fewer = all.clone();
        fewer.remove(gone);
        for name in ["sa-fcfs", "sa-sjf"] {
            let starts = |steps: &[(Vec<u32>, u64)]| {
                let mut m = with(name, Config { nodes: 16, lease_ns: LONG, ..Config::default() });
                let mut done = play(&mut m, steps, &vec![0; steps.len()]);
                done.sort_unstable();
                done.iter().map(|d| d.1).collect::<Vec<u64>>()
            };
            let (mut before, after) = (starts(&all), starts(&fewer));
            before.remove(gone);
            prop_assert!(before.iter().zip(&after).all(|(b, a)| a <= b), "{name}: {before:?} {after:?}");
        }
    }
}

fn stakes(step: StepId, nodes: u32, since_s: u64, is_blocked: bool) -> Event {
    let since = Nanos(since_s * S);
    let stake = Stake { nodes, since, is_blocked, recovery_ns: 10 * S, fails_ns: 1000 * S };
    Event::Stakes { step, stake }
}

/// Three steps that wait behind another, at 100 s: the first is of a job of one node that is
/// blocked, the others are of jobs of 50 nodes that compute, since 0 and 90 s.
fn next_by(policy: &str) -> Vec<StepId> {
    let mut m = with(policy, Config { lease_ns: 1000 * S, ..Config::default() });
    at(&mut m, Nanos(0), vec![arrives(9, &[], 100)]);
    let mut waiting = Vec::new();
    for (step, nodes, alone_s, since_s, is_blocked) in
        [(1, 1, 10, 90, true), (2, 50, 40, 0, false), (3, 50, 10, 90, false)]
    {
        waiting.extend([arrives(step, &[], alone_s), stakes(step, nodes, since_s, is_blocked)]);
    }
    assert_eq!(granted(&at(&mut m, Nanos(90 * S), waiting)), []);
    let mut order = Vec::new();
    for (i, token) in (0..).zip(1..=3) {
        let out = at(&mut m, Nanos((100 + i) * S), vec![Event::Done { token }]);
        order.extend(granted(&out).into_iter().map(|(step, _)| step));
    }
    order
}

/// `waste-rate`: 1 / 10 s, 50 / 1000 * (10 + 100 + 20) / 40 s, and 50 / 1000 * (10 + 10 + 5) / 10
/// s. The long step of a job that has much to lose goes first; `least-waste` counts what the others
/// would lose meanwhile, and lets it wait.
#[test]
fn steps_go_by_what_jobs_lose_meanwhile() {
    assert_eq!(next_by("waste-rate"), [2, 3, 1]);
    assert_eq!(next_by("least-waste")[..2], [1, 3]);
    assert_eq!(next_by("sys-fcfs"), [1, 2, 3]);
}
