//! Waste of platform time: what must hold under every strategy, and what theory says.

use forebay_policy::burst::period::{Policy, periods_ns};
use forebay_sim::random::platforms::{Family, Made};
use forebay_sim::waste::{Class, Level, Platform, STRATEGIES, Strategy, Window, Writes, simulate, strategy};

const HOUR_S: f64 = 3600.0;
const DAY_S: f64 = 24.0 * HOUR_S;

/// Jobs of 100 nodes that have nothing but work and checkpoints, which take the PFS 100 s.
fn platform(jobs: u32, job_fails_s: f64) -> Platform {
    Platform {
        nodes: 100 * jobs,
        pfs_bytes_per_s: 1e9,
        tier_bytes_per_s: 1e8,
        node_fails_s: job_fails_s * 100.0,
        failures: [0.0, 0.0, 1.0, 0.0],
        classes: vec![Class {
            name: "a".into(),
            nodes: 100,
            share: 1.0,
            work_s: 1000.0 * DAY_S,
            input_bytes: 0.0,
            output_bytes: 0.0,
            checkpoint_bytes: 1e11,
        }],
    }
}

fn of(name: &str) -> &'static Strategy {
    strategy::find(name).expect("it exists")
}

fn window(days: f64) -> Window {
    Window { seed: 7, from_s: DAY_S, for_s: days * DAY_S }
}

/// A job alone, which fails every hour or so: the expected time of its period is known.
#[test]
fn a_job_alone_wastes_what_renewal_theory_says() {
    let platform = platform(1, HOUR_S);
    let jobs = platform.jobs(&[1.0]);
    let p = periods_ns(Policy::Daly, &jobs)[0] / 1e9;
    let expected_s = HOUR_S * (100.0 / HOUR_S).exp() * (p / HOUR_S).exp_m1();
    let theory = 1.0 - (p - 100.0) / expected_s;
    for name in ["oblivious-daly", "ordered-daly", "ordered-nb-daly", "least-waste", "waste-rate"] {
        let made = Made::of(&platform, of(name), &window(600.0)).expect("it runs");
        let waste = made.outcome.waste();
        assert!((waste / theory - 1.0).abs() < 0.03, "{name}: {waste} {theory}");
        assert!(waste > 0.97 * made.exact && made.exact < made.bound, "{name}: {made:?}");
    }
}

/// Nothing fails: a checkpoint of 100 s in each hour.
#[test]
fn without_failures_only_checkpoints_are_wasted() {
    let outcome = simulate(&platform(1, 1e15), of("ordered-fixed"), &window(50.0)).expect("it runs");
    assert_eq!((outcome.lost, outcome.failures), (0.0, 0));
    assert!((outcome.waste() - 100.0 / 3600.0).abs() < 1e-3, "{outcome:?}");
    assert!((outcome.counts[0] - 1.0).abs() < 1e-9, "{outcome:?}");
}

/// Eight jobs whose checkpoints keep a PFS busy all the time: who shares it is blocked for as long
/// as all take together, and who computes until it is free is not.
#[test]
fn a_job_that_computes_while_it_waits_loses_less() {
    let platform = platform(8, 2.0 * HOUR_S);
    let waste = |name: &str| simulate(&platform, of(name), &window(60.0)).expect("it runs").waste();
    let [shared, ordered, waiting, tier] =
        ["oblivious-daly", "ordered-daly", "ordered-nb-daly", "memory"].map(waste);
    assert!(tier < waiting && waiting < ordered && ordered < shared, "{shared} {ordered} {waiting} {tier}");
}

/// A checkpoint that survives is what the job goes on from, and the PFS is not read.
#[test]
fn each_level_survives_its_failures() {
    let run = |level: Level, failures: [f64; 4]| {
        let strategy = Strategy { writes: Writes::Absorbed(level), ..*of("memory") };
        simulate(&Platform { failures, ..platform(4, HOUR_S) }, &strategy, &window(60.0)).expect("it runs")
    };
    let programs = [1.0, 0.0, 0.0, 0.0];
    let memory = run(Level::Memory, programs);
    assert_eq!(memory, run(Level::TwoCopies, programs));
    let nodes = [0.0, 0.0, 1.0, 0.0];
    let (one, two) = (run(Level::Memory, nodes), run(Level::TwoCopies, nodes));
    assert!(two.waste() < 0.6 * one.waste() && two.read < one.read, "{one:?} {two:?}");
    assert_eq!(two.waste(), memory.waste());
}

/// On random platforms: the same run is the same, its parts are no more than all, and what goes to
/// the PFS wastes no less than the bound, but for chance.
#[test]
fn no_strategy_of_the_pfs_is_below_the_bound() {
    let family = Family { seed: 20_261_128, failures: 2000 };
    for number in 0..2 {
        for strategy in STRATEGIES.iter().filter(|strategy| strategy.level().is_none()) {
            let made = family.run(number, strategy.name).expect("it runs");
            let o = &made.outcome;
            assert!(o.waste() > 0.93 * made.exact, "{number} {}: {made:?}", strategy.name);
            let parts = o.work + o.io + o.lost + o.written + o.read;
            assert!(o.work > 0.0 && parts <= o.all * (1.0 + 1e-9), "{o:?}");
        }
        let again = || family.run(number, "two-copies").expect("it runs").outcome;
        assert_eq!(again(), again());
    }
}
