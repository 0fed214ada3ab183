//! What the documents say of our policies, on random systems of a seed from outside: `make
//! test-random` makes one of the day and the round.

use forebay_sim::reproduce::held_out::study;

#[test]
fn our_policies_keep_their_promises_on_systems_that_nobody_has_seen() {
    let seed: u64 = match std::env::var("FOREBAY_HELD_OUT_SEED") {
        Ok(text) => text.parse().expect("FOREBAY_HELD_OUT_SEED is a whole number"),
        Err(_) => 1_701,
    };
    let records = study(seed).expect("every run ends");
    assert!(records.iter().filter(|r| r.met.is_some()).count() >= 9);
    let broken: Vec<_> = records.iter().filter(|r| r.met == Some(false)).collect();
    assert!(broken.is_empty(), "FOREBAY_HELD_OUT_SEED={seed}: {broken:#?}");
}

#[test]
fn an_allocation_is_full_where_clients_limit_nothing() {
    use forebay_sim::random::allocations::Family;
    use forebay_sim::random::steps::{self, Kind};
    let family = Family { steps: steps::Family { seed: 4, kind: Kind::Arrivals }, limited: false };
    let run = |number, policy| family.run(number, policy).expect("it runs").sum_s;
    for number in 0..10 {
        let (ours, full) = (run(number, "forebay/sa-sjf"), run(number, "full/sa-sjf"));
        assert!((ours / full - 1.0).abs() < 1e-9, "workload {number}: {ours} and {full} s");
        assert!(run(number, "striped/sa-sjf") > 1.1 * full, "workload {number} does not depend on its nodes");
    }
}
