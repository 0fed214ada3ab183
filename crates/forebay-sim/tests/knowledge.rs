//! What planners know of coming phases: predictions never see the future, runs repeat, and records
//! of them replay.

use forebay_sim::colocate::knowledge::Knowledge;
use forebay_sim::colocate::{Arrivals, HpcOutcome, Setup, simulate};
use forebay_sim::random::clusters::{Family, Made};
use forebay_sim::random::rhythm::Rhythm;
use forebay_sim::reproduce::eley::system::cell;
use forebay_sim::scenario::{File, Scenario};
use forebay_sim::trace::{SharedBuffer, Trace};
use forebay_sim::world;
use proptest::prelude::*;

mod support;

const S: u64 = 1_000_000_000;
const PREDICTED: Knowledge = Knowledge::Predicted { earlier: 0 };

/// Application 6 beside an HPC job whose phases of 20 s come after these compute times.
fn setup(policy: &str, knowledge: Knowledge, compute_s: &[u64]) -> Setup {
    let mut setup = cell(policy, 0, 5, 0.15);
    let hpc = &mut setup.hpc[0];
    (hpc.io_ns, hpc.compute_ns, hpc.knowledge) = (20 * S, 60 * S, knowledge);
    hpc.phases = compute_s.len() as u32;
    let compute_ns = compute_s.iter().map(|s| s * S).collect();
    hpc.arrivals = Arrivals::Recorded { compute_ns, io_ns: Vec::new() };
    setup
}

/// The same in a world: tasks that read on three nodes, beside phases of 8 s.
fn world_setup(policy: &str, knowledge: Knowledge, compute_s: &[u64]) -> world::Setup {
    let text = format!("kind = 'world'\nplanner.policy = '{policy}'\n{WORLD}");
    let file = File::parse(std::path::Path::new("a.toml"), &text).expect("TOML");
    let Scenario::World(mut setup) = file.scenario().expect("a scenario") else { panic!("another kind") };
    setup.hpc[0].knowledge = knowledge;
    setup.hpc[0].phases = compute_s.len() as u32;
    let compute_ns = compute_s.iter().map(|s| s * S).collect();
    setup.hpc[0].arrivals = Arrivals::Recorded { compute_ns, io_ns: Vec::new() };
    *setup
}

/// What became of the HPC job, and the lines of the trace without its header, which has the future.
type Recorded = (HpcOutcome, Vec<String>);

fn recorded<S: serde::Serialize>(setup: &S, simulate: impl Fn(&S, &mut Trace) -> HpcOutcome) -> Recorded {
    let buffer = SharedBuffer::default();
    let mut trace = Trace::to(Box::new(buffer.clone()), "a kind", setup);
    let outcome = simulate(setup, &mut trace);
    trace.finish().expect("it is written");
    let text = String::from_utf8(buffer.bytes()).expect("text");
    (outcome, text.lines().skip(1).map(str::to_owned).collect())
}

fn in_colocation(policy: &str, knowledge: Knowledge, compute_s: &[u64]) -> Recorded {
    recorded(&setup(policy, knowledge, compute_s), |setup, trace| {
        simulate(setup, trace).expect("it comes to an end").hpc.remove(0)
    })
}

fn in_world(policy: &str, knowledge: Knowledge, compute_s: &[u64]) -> Recorded {
    recorded(&world_setup(policy, knowledge, compute_s), |setup, trace| {
        world::simulate(setup, trace).expect("it comes to an end").hpc.remove(0)
    })
}

fn t_ns(line: &str) -> u64 {
    let rest = line.split_once("\"t_ns\":").expect("every line has a time").1;
    rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|t| t.parse().ok()).expect("a number")
}

/// Whether two runs are the same until the first phase that begins at another time.
fn are_equal_before_they_differ(ours: &Recorded, others: &Recorded) -> bool {
    let begins = |outcome: &HpcOutcome| outcome.phases.iter().map(|p| p.begin_ns).collect::<Vec<_>>();
    let (a, b) = (begins(&ours.0), begins(&others.0));
    let until = a.iter().zip(&b).find(|(a, b)| a != b).map(|(a, b)| *a.min(b)).expect("they differ");
    let before = |lines: &[String]| lines.iter().filter(|l| t_ns(l) < until).cloned().collect::<Vec<_>>();
    let (ours, others) = (before(&ours.1), before(&others.1));
    assert!(ours.len() > 50, "hardly anything happens before: {}", ours.len());
    ours == others
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Equal pasts make equal decisions, whatever comes then.
    #[test]
    fn nobody_sees_the_future(
        past in prop::collection::vec(30..90_u64, 1..7),
        futures in (30..60_u64, 61..120_u64),
        rest in prop::collection::vec(20..100_u64, 3),
        policy in prop::sample::select(vec!["forebay", "eley", "full-delay"]),
        knowledge in prop::sample::select(vec![PREDICTED, Knowledge::Declared]),
    ) {
        let with = |next: u64| [&past[..], &[next], &rest[..]].concat();
        for run in [in_colocation, in_world] {
            let made = |next| run(policy, knowledge, &with(next));
            prop_assert!(are_equal_before_they_differ(&made(futures.0), &made(futures.1)));
        }
    }
}

/// The check above notices knowledge of the future where there is some.
#[test]
fn true_knowledge_sees_the_next_phase() {
    let (past, next) = ([60; 4], [40, 90]);
    let with = |next: u64| [&past[..], &[next, 60, 60]].concat();
    for run in [in_colocation, in_world] {
        let made = |next| run("forebay", Knowledge::True, &with(next));
        assert!(!are_equal_before_they_differ(&made(next[0]), &made(next[1])));
    }
}

/// From the end of the fourth phase on the next is expected, and not before. Nobody knows that the
/// eighth is the last.
#[test]
fn a_steady_rhythm_is_predicted_after_three_periods() {
    for run in [in_colocation, in_world] {
        let (_, lines) = run("forebay", PREDICTED, &[60; 8]);
        let expects: Vec<&String> = lines.iter().filter(|l| l.contains("\"is\":\"expects\"")).collect();
        assert_eq!(expects.len(), 5, "{expects:?}");
        for line in expects {
            let in_ns: u64 = line
                .split_once("\"in_ns\":")
                .and_then(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok())
                .expect("a time");
            assert!(in_ns.abs_diff(60 * S) < S / 10, "{line}");
        }
    }
}

fn cli(args: &[&str]) -> String {
    support::cli(args, false).expect("it runs")
}

const WORLD: &str = "
cluster = { nodes = 3, slots = 2, tier_bytes = 4000000000, extent_bytes = 80000000, page_bytes = 20000000 }
pfs = { servers = 4, server_bytes_per_s = 25000000, stripe_bytes = 20000000, write_bytes = 10000000 }
[[hpc]]
name = 'x'
compute_s = 60
io_s = 8
processes = 8
[[job]]
name = 'words'
input_bytes = 8000000000
file_bytes = 1000000000
task_cpu_s = 20
";

const SCENARIO: &str = "
cluster = { pfs_gb_per_s = 4, nodes = 8, ram_gb = 400 }
profile = { bytes_gb = 50, prefetch_s = 25, i_hpc = 1.3, i_bd = 1.2 }
[[hpc]]
name = 'first'
compute_s = 30
io_s = 10
phases = 8
arrivals = 'jittered'
spread = 0.3
knowledge = 'predicted'
[[hpc]]
name = 'second'
compute_s = 50
io_s = 5
phases = 5
knowledge = 'true'
[[job]]
name = 'third'
input_gb = 1000
wave_gb = 50
compute_s = 20
";

/// The board is a machine like the others: a record has what it heard and what it decided.
#[test]
fn records_with_predictions_repeat_and_replay() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let hpc = "knowledge = 'predicted'\n[[job]]";
    let world = format!("kind = 'world'\n{}", WORLD.replacen("[[job]]", hpc, 1));
    for scenario in [SCENARIO, &world] {
        std::fs::write(path("a.toml"), scenario).expect("written");
        for trace in ["1.jsonl", "2.jsonl"] {
            cli(&["run", &path("a.toml"), "--trace", &path(trace)]);
        }
        let text = |name: &str| std::fs::read_to_string(path(name)).expect("it is there");
        assert_eq!(text("1.jsonl"), text("2.jsonl"));
        let board = text("1.jsonl").lines().filter(|l| l.contains("\"who\":\"phases\"")).count();
        assert!(board > 100, "the board hardly hears anything: {board}");
        assert!(cli(&["replay", &path("1.jsonl")]).contains("actions are the same"));
    }
}

/// Older records have no knowledge in them, and new ones only where it is not the default.
#[test]
fn what_is_declared_leaves_no_mark_in_records() {
    let json = |knowledge| serde_json::to_string(&setup("forebay", knowledge, &[60; 8])).expect("JSON");
    assert!(!json(Knowledge::Declared).contains("knowledge"));
    let back: Setup = serde_json::from_str(&json(Knowledge::True)).expect("a setup");
    assert_eq!(back.hpc[0].knowledge, Knowledge::True);
}

/// A few held-out clusters; docs/policies.md has the figures of many.
#[test]
fn predictions_keep_deadlines_on_random_clusters() {
    let made = |knowledge, number| {
        let family = Family { knowledge, period_error: 0.11, ..Family::new(20_261_129, 0.05) };
        Made::of(&family.cluster(number, "forebay")).expect("it comes to an end")
    };
    let kept = |knowledge| -> usize {
        (0..12).map(|number| made(knowledge, number)).map(|made| made.phases - made.missed).sum()
    };
    // The board counts a phase no longer that lasts too long, and yet it ends.
    let rhythms = Rhythm::recorded().expect("logs").into_iter().map(|(_, rhythm)| rhythm).collect();
    let slow = Family { knowledge: PREDICTED, rhythms, ..Family::new(1146, 0.05) };
    Made::of(&slow.cluster(288, "naive-bb")).expect("it comes to an end");
    let (predicted, if_true) = (kept(PREDICTED), kept(Knowledge::True));
    assert!(20 * predicted >= 19 * if_true, "{predicted} of {if_true} deadlines");
    let study = ["random", "planners", "--policies", "naive-bb", "--count", "2"];
    let text = cli(&[&study[..], &["--period-error", "11", "--knowledge", "predicted"]].concat());
    assert!(text.contains("kept_of_true_percent") && text.contains("of_true_percent: "), "{text}");
    assert!(!cli(&study).contains("of_true"));
}
