//! Access policies on random workloads: what documents say of `coflow`.

use forebay_sim::random::steps::{Family, Kind, Made};

/// Workloads that no constant of a policy was chosen on.
const HELD_OUT: u64 = 1;
const COUNT: u64 = 60;

fn run(kind: Kind, policy: &str) -> Vec<Made> {
    let family = Family::new(HELD_OUT, kind);
    (0..COUNT).map(|number| family.run(number, policy).expect("the policy exists")).collect()
}

/// Geometric mean of the ratios, and the greatest.
fn ratio(ours: &[Made], theirs: &[Made], of: fn(&Made) -> f64) -> (f64, f64) {
    let ratios = || ours.iter().zip(theirs).map(|(a, b)| of(a) / of(b));
    (ratios().map(|r| r.ln() / COUNT as f64).sum::<f64>().exp(), ratios().fold(0.0, f64::max))
}

/// Over time: a third less in the mean, more on no workload, and shorter longest steps. Taking
/// turns makes it worse than no scheduling.
#[test]
fn coflows_beat_no_scheduling_where_steps_arrive_over_time() {
    let (none, ours) = (run(Kind::Arrivals, "none"), run(Kind::Arrivals, "coflow"));
    let (mean, worst) = ratio(&ours, &none, |made| made.sum_s);
    assert!(mean <= 0.67 && worst <= 1.0, "{mean} {worst}");
    assert!(ratio(&ours, &none, |made| made.longest_s).0 <= 1.0);
    assert!(ratio(&run(Kind::Arrivals, "sa-sjf"), &none, |made| made.sum_s).0 > 1.0, "no load is hard");
}

/// In a batch: less than with turns, and the last step ends no later than without scheduling.
#[test]
fn coflows_beat_turns_in_a_batch() {
    let (turns, ours) = (run(Kind::Batch, "sa-sjf"), run(Kind::Batch, "coflow"));
    assert!(ratio(&ours, &turns, |made| made.sum_s).0 <= 1.0);
    assert!(ratio(&ours, &run(Kind::Batch, "none"), |made| made.longest_s).1 <= 1.0 + 1e-6);
}

/// In closed loops, where who is served sooner comes back sooner.
#[test]
fn coflows_beat_no_scheduling_in_closed_loops() {
    let (none, ours) = (run(Kind::Closed, "none"), run(Kind::Closed, "coflow"));
    assert!(ratio(&ours, &none, |made| made.sum_s).0 <= 0.9);
    assert!(ratio(&ours, &none, |made| made.longest_s).0 <= 1.0);
}
