//! What the documents say of our policies, on random systems of a seed from outside: `make
//! test-random` makes one of the day and the round.

use forebay_sim::random::published;
use forebay_sim::reproduce::held_out::study;

/// Targets that are known to be missed, and those for the size of a change, for which so few
/// systems say too little. The report judges them, and docs/policies.md has their figures.
fn is_known_miss(id: &str) -> bool {
    const MISSED: [&str; 5] = [
        "held-out/access/closed/coflow/worse",
        "held-out/access/closed/coflow/longest",
        "held-out/access/closed/coflow/longer",
        "held-out/access/arrivals/coflow/longer",
        "held-out/access/full-stripe/coflow",
    ];
    let rare = ["/target", "/missed-beside-a-fetch", "/best-in-time/above", "/gain/eley"];
    let longest = |name: &str| id == format!("held-out/access/{name}/coflow/longest");
    let is_longest = published::ALL.iter().any(|(_, name)| longest(name));
    is_longest || rare.iter().any(|end| id.ends_with(end)) || MISSED.contains(&id)
}

#[test]
fn our_policies_keep_their_promises_on_systems_that_nobody_has_seen() {
    let seed: u64 = match std::env::var("FOREBAY_HELD_OUT_SEED") {
        Ok(text) => text.parse().expect("FOREBAY_HELD_OUT_SEED is a whole number"),
        Err(_) => 1_701,
    };
    let records = study(seed).expect("every run ends");
    assert!(records.iter().filter(|r| r.met.is_some()).count() >= 9);
    // What is smaller than its target is significant all the same.
    for r in records.iter().filter(|r| r.id.ends_with("/target")) {
        let (_, high, _) = r.interval.expect("a mean over systems");
        assert!(high < 0.0, "FOREBAY_HELD_OUT_SEED={seed}: {r:?}");
    }
    let broken: Vec<_> = records.iter().filter(|r| r.met == Some(false) && !is_known_miss(&r.id)).collect();
    assert!(broken.is_empty(), "FOREBAY_HELD_OUT_SEED={seed}: {broken:#?}");
}

/// The bounds depend on the system alone, and no policy has a smaller sum.
#[test]
fn no_policy_is_below_the_bounds() {
    use forebay_policy::burst::access;
    use forebay_policy::planner;
    use forebay_sim::random::clusters::{self, Made};
    use forebay_sim::random::steps::{self, Kind};
    use forebay_sim::random::{bound, deadline_bound};
    for kind in [Kind::Arrivals, Kind::Closed, Kind::Batch] {
        let family = steps::Family::new(5, kind);
        for number in 0..8 {
            let least_s = family.run_bounded(number, "none").expect("it runs").least_s;
            for (policy, ..) in access::POLICIES {
                let made = family.run_bounded(number, policy).expect("it runs");
                // Times are whole nanoseconds, so the search for weights takes other turns.
                assert!((made.least_s / least_s - 1.0).abs() < 1e-3, "{kind:?} {number} {policy}");
                let (sum_s, alone_s) = (made.sum_s * (1.0 + 1e-6), made.alone_s * (1.0 - 1e-6));
                assert!(sum_s >= least_s && least_s >= alone_s, "{kind:?} {number} {policy}: {made:?}");
            }
        }
    }
    let family = clusters::Family::new(5, 0.3);
    let mut in_time = 0;
    for number in 0..40 {
        let setup = family.cluster(number, "eley");
        let (least_s, in_time_s) = (bound::map_s(&setup), deadline_bound::map_s(&setup));
        assert!(least_s > 0.0 && in_time_s >= least_s, "{number}: {least_s}, {in_time_s}");
        for (policy, ..) in planner::POLICIES {
            let made = Made::of(&family.cluster(number, policy)).expect("it runs");
            let sum_s = made.sum_s() * (1.0 + 1e-6);
            assert!(sum_s >= least_s, "{number} {policy}: {sum_s}, {least_s}");
            if made.missed_beside == 0 {
                in_time += 1;
                assert!(sum_s >= in_time_s, "{number} {policy}: {sum_s}, {in_time_s}");
            }
        }
    }
    assert!(in_time > 40, "hardly a run keeps deadlines beside its fetches: {in_time}");
}
