//! The promise by which the default policy was chosen: on a loop larger than the tier, on zipf, and
//! on zipf interrupted by scans it hits at least as often as LRU and as LFU. Traces are those of
//! `examples/hit_ratio.rs`, a tenth or a quarter as long.

#[path = "../examples/support/mod.rs"]
mod support;

use forebay_policy::eviction::EvictionKind;
use support::{Trace, all_traces, belady, replay};

fn hit_ratio(kind: EvictionKind, trace: &Trace, heard: f64) -> f64 {
    replay(&mut *kind.build(trace.capacity_bytes), trace, heard).hit_ratio
}

fn default_lru_lfu(trace: &Trace, heard: f64) -> [f64; 3] {
    let of = |kind| hit_ratio(kind, trace, heard);
    [of(EvictionKind::default()), of(EvictionKind::Lru), support::lfu(trace, heard).hit_ratio]
}

fn traces(family: &str, scale: f64) -> Vec<Trace> {
    let traces: Vec<Trace> =
        all_traces(scale, 0).into_iter().filter(|trace| trace.family == family).collect();
    assert!(traces.len() >= 6, "{} traces of family {family}", traces.len());
    traces
}

fn beats_lru_and_lfu(family: &str, scale: f64, heard: f64) {
    for trace in traces(family, scale) {
        let [default, lru, lfu] = default_lru_lfu(&trace, heard);
        let bound = belady(&trace).hit_ratio;
        assert!(default >= lru && default >= lfu, "{}: {default} against LRU {lru}, LFU {lfu}", trace.name);
        assert!(lru <= bound && lfu <= bound && default <= bound, "{}: above Belady's {bound}", trace.name);
    }
}

#[test]
fn zipf() {
    beats_lru_and_lfu("zipf", 0.1, 1.0);
}

#[test]
fn scans_over_zipf() {
    beats_lru_and_lfu("scan+zipf", 0.1, 1.0);
}

#[test]
fn shuffled_epochs() {
    for trace in all_traces(0.25, 0).into_iter().filter(|trace| trace.family == "shuffled") {
        let [default, lru, lfu] = default_lru_lfu(&trace, 1.0);
        assert!(default >= lru && default >= lfu, "{}: {default} against LRU {lru}, LFU {lfu}", trace.name);
    }
}

#[test]
fn a_loop_larger_than_the_tier() {
    beats_lru_and_lfu("loop", 0.1, 1.0);
    for trace in traces("loop", 0.1) {
        let (default, bound) = (hit_ratio(EvictionKind::default(), &trace, 1.0), belady(&trace).hit_ratio);
        assert!(default > 0.85 * bound, "{}: {default} of {bound}", trace.name);
        assert_eq!(hit_ratio(EvictionKind::Lru, &trace, 1.0), 0.0, "{}: no loop for LRU", trace.name);
    }
}

/// Touches are sampled: the order must hold with one in four heard, by all policies alike.
#[test]
fn sampled_touches() {
    beats_lru_and_lfu("zipf", 0.25, 0.25);
    beats_lru_and_lfu("scan+zipf", 0.25, 0.25);
    beats_lru_and_lfu("loop", 0.1, 0.25);
}

/// One job after another on data that fit: W-TinyLFU and LFU hold on to the last job; the default
/// must let go.
#[test]
fn job_changes() {
    let jobs: Vec<Trace> = all_traces(0.1, 0).into_iter().filter(|trace| trace.family == "jobs").collect();
    assert_eq!(jobs.len(), 5);
    for trace in jobs {
        let [default, lru, lfu] = default_lru_lfu(&trace, 1.0);
        assert!(
            default > 0.8 * lru && default > lfu,
            "{}: {default} against LRU {lru}, LFU {lfu}",
            trace.name
        );
        assert!(default > 0.5 * belady(&trace).hit_ratio, "{}: {default}", trace.name);
    }
}

/// Where popularity moves on LRU may win; but the default must not collapse as LFU does.
#[test]
fn moving_popularity() {
    let moving = all_traces(0.25, 0).into_iter().filter(|trace| matches!(trace.family, "drift" | "recency"));
    let mut count = 0;
    for trace in moving {
        let [default, lru, lfu] = default_lru_lfu(&trace, 1.0);
        assert!(default > 0.85 * lru, "{}: {default} against LRU {lru}", trace.name);
        assert!(lfu < 0.7 * lru, "{}: LFU {lfu} does not collapse against LRU {lru}", trace.name);
        count += 1;
    }
    assert_eq!(count, 4);
}
