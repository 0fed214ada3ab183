//! The memory laws in a closed loop and against garbage.
//!
//! The plant is the simplest that there is: the tier is always full and follows its capacity at
//! once, time goes in milliseconds, and the controller hears a sample when it asked for one or when
//! use passes its alarm.

use forebay_policy::machine::{Machine, Nanos};
use forebay_policy::memory::{Action, Config, Controller, Event, POLICIES, Reason, Sample, policy};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const MEMORY: u64 = 10_000_000_000;
/// Growths of `forebay` in a period, at most.
const TAKES: u64 = 5;

fn config() -> Config {
    Config { memory_bytes: MEMORY, block_bytes: 10_000_000, max_bytes: MEMORY, ..Config::default() }
}

fn forebay(config: Config, start_bytes: u64) -> Controller {
    Controller::new(policy("forebay").expect("it exists"), config, start_bytes)
}

/// A resize: when, in ms, from and to how many bytes, and why.
type Resized = (u64, u64, u64, Reason);

/// Runs a load for so many ms; returns the resizes, and use at every ms.
fn run(start_bytes: u64, ms: u64, load: impl Fn(u64) -> u64) -> (Vec<Resized>, Vec<u64>) {
    let config = config();
    let alarm = config.alarm_bytes();
    let mut machine = forebay(config, start_bytes);
    let (mut next, mut alarmed, mut out) = (0, false, Vec::new());
    let (mut resizes, mut uses) = (Vec::new(), Vec::new());
    for at in 0..ms {
        let tier_bytes = machine.snapshot();
        let used_bytes = load(at) + tier_bytes;
        uses.push(used_bytes);
        let rings = used_bytes > alarm && !alarmed;
        alarmed = used_bytes > alarm;
        if at < next && !rings {
            continue;
        }
        let sample = Sample { used_bytes, tier_bytes };
        let event = if rings { Event::Pressure(sample) } else { Event::Sample(sample) };
        machine.handle(Nanos(at * MS), event, &mut out);
        for action in out.drain(..) {
            match action {
                Action::Watch { after_ns } => next = at + (after_ns / MS).max(1),
                Action::Resize { capacity_bytes, why } => {
                    resizes.push((at, tier_bytes, capacity_bytes, why));
                }
            }
        }
    }
    (resizes, uses)
}

/// Grows for `rise` ms by `bytes`, stays until half of the period is over, and falls at once.
fn wave(at: u64, period: u64, rise: u64, bytes: u64) -> u64 {
    let phase = at % period;
    match phase {
        p if p >= period / 2 => 0,
        p if p >= rise => bytes,
        p => bytes / rise * p,
    }
}

proptest! {
    /// Whatever is sampled, and whenever: growths come no more often than said, each resize moves a
    /// block or more, and nothing is given that was not taken.
    #[test]
    fn resizes_are_bounded(
        start in 0u64..900,
        steps in prop::collection::vec((0u64..300, 0u64..12_000, 0u64..12_000), 1..200),
    ) {
        let (config, mut out) = (config(), Vec::new());
        let block = config.block_bytes;
        let mut machine = forebay(config.clone(), start * block);
        let (mut at, mut growths, mut taken, mut resizes) = (0, 0u64, 0, 0);
        for (after, used, tier) in steps {
            at += after;
            let before = machine.snapshot();
            let sample = Sample { used_bytes: used * 1_000_000, tier_bytes: tier * 1_000_000 };
            machine.handle(Nanos(at * MS), Event::Sample(sample), &mut out);
            let after = machine.snapshot();
            if after != before {
                prop_assert!(after.abs_diff(before) >= block, "from {before} to {after}");
                resizes += 1;
            }
            if after > before {
                growths += 1;
                taken += after - before;
            }
        }
        prop_assert!(growths <= 1 + TAKES * at * MS / config.period_ns, "{growths} in {at} ms");
        prop_assert!(resizes <= growths + start + taken / block);
    }

    /// No value and no time makes a law panic or leave its limits: a node without memory, more use
    /// than memory, a tier larger than what is used, clocks that jump back or by an hour.
    #[test]
    fn garbage_is_survived(
        which in 0usize..POLICIES.len(),
        memory in prop::sample::select(vec![0, 1, MEMORY, u64::MAX]),
        limits in (0u64..=u64::MAX, 0u64..=u64::MAX),
        steps in prop::collection::vec(
            (prop_oneof![0u64..10 * MS, Just(0), Just(u64::MAX), 0u64..7_200_000 * MS],
             prop_oneof![0u64..2 * MEMORY, Just(0), Just(u64::MAX)],
             prop_oneof![0u64..2 * MEMORY, Just(0), Just(u64::MAX)]), 1..60),
    ) {
        let (least, most) = (limits.0.min(limits.1), limits.0.max(limits.1));
        let config = Config { memory_bytes: memory, min_bytes: least, max_bytes: most, ..config() };
        let law = policy(POLICIES[which].0).expect("it exists");
        let (mut machine, mut out) = (Controller::new(law, config, least), Vec::new());
        for (at, used_bytes, tier_bytes) in steps {
            machine.handle(Nanos(at), Event::Pressure(Sample { used_bytes, tier_bytes }), &mut out);
            prop_assert!((least..=most).contains(&machine.snapshot()));
            let looks_again = out.drain(..).any(|a| matches!(a, Action::Watch { after_ns } if after_ns > 0));
            prop_assert!(looks_again);
        }
    }

    /// A level load: the tier has what is left but for two blocks within a second, and stays.
    #[test]
    fn a_level_load_is_left_alone(compute in 0u64..9_000, start in 0u64..900) {
        let (resizes, uses) = run(start * 10_000_000, 5_000, |_| compute * 1_000_000);
        prop_assert!(resizes.iter().all(|r| r.0 < 1_000), "{resizes:?}");
        let target = config().target_bytes() as u64;
        prop_assert!(uses[4_999] <= target + 5_000_000 && uses[4_999] + 20_000_000 >= target);
    }

    /// An oscillation too short to be worth a fill is not followed once it is known: the tier does
    /// not grow again by a swing, 1 % of the memory, and no rise finds memory short.
    #[test]
    fn a_short_oscillation_is_not_followed(period in 120u64..450, bytes in 500u64..4_000, base in 1_000u64..4_000) {
        let known = 20 * period;
        let load = |at| base * 1_000_000 + wave(at, period, 20.min(period / 8), bytes * 1_000_000);
        let (resizes, uses) = run(0, known + 40 * period, load);
        let later: Vec<_> = resizes.iter().filter(|r| r.0 > known && r.2 > r.1 + MEMORY / 100).collect();
        prop_assert!(later.is_empty(), "{later:?}");
        let limit = config().alarm_bytes();
        prop_assert!(uses[known as usize..].iter().all(|&used| used <= limit));
    }

    /// Equal samples at equal times are answered in the same way.
    #[test]
    fn a_law_is_a_function_of_what_it_hears(which in 0usize..POLICIES.len(), used in prop::collection::vec(0u64..12_000, 1..60)) {
        let run = || {
            let law = policy(POLICIES[which].0).expect("it exists");
            let (mut machine, mut out) = (Controller::new(law, config(), 0), Vec::new());
            for (i, used) in (0..).zip(&used) {
                let sample = Sample { used_bytes: used * 1_000_000, tier_bytes: machine.snapshot() };
                machine.handle(Nanos(i * 37 * MS), Event::Sample(sample), &mut out);
            }
            out
        };
        prop_assert_eq!(run(), run());
    }
}

/// A long oscillation is followed, and the tier never takes memory in the 20 ms before a rise that
/// is due.
#[test]
fn a_long_oscillation_is_followed_but_not_grown_into() {
    let (period, rise) = (2_000, 300);
    let load = |at| 2_000_000_000 + wave(at, period, rise, 3_000_000_000);
    let (resizes, uses) = run(0, 20 * period, load);
    let later: Vec<&Resized> = resizes.iter().filter(|r| r.0 > 4 * period).collect();
    assert!(later.iter().any(|r| r.2 > r.1), "it is not followed");
    // A rise is seen when 1 % of the memory has come, after 10 ms.
    let due = |at: u64| (period - 10..).contains(&(at % period)) || at % period < rise;
    let into: Vec<_> = later.iter().filter(|r| r.2 > r.1 && due(r.0)).collect();
    assert!(into.is_empty(), "{into:?}");
    let limit = config().target_bytes() as u64 + MEMORY / 100;
    assert!(uses[4 * period as usize..].iter().all(|&used| used <= limit));
}
