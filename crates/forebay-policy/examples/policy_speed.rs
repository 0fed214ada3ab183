//! What one operation of each eviction policy costs, and how much memory an entry takes.
//!
//! `cargo run --release -p forebay-policy --example policy_speed [-- ENTRIES...]`, by default
//! 100,000 and 1,000,000.
//!
//! insert: into an empty policy. touch: a random resident page (half of them from the hottest 1 %).
//! replace: one eviction and one insertion into a full policy, the newcomers random, so that ghosts
//! are found at times. Medians of five runs, in nanoseconds per operation; keys have the shape of
//! the agent's, file slot << 24 | page. Memory is what the allocator holds per resident entry,
//! after the insertions and after the replacements (ghosts included).

#[path = "support/mod.rs"]
mod support;

use forebay_policy::eviction::{EvictionKind, EvictionPolicy, Fill};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use support::Random;

/// The system's allocator, counting what it holds.
struct Counting;

static HELD_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract; we
// only count.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        HELD_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller passes a block of ours, and ours are the system's.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ENTRY_BYTES: u32 = 20 << 10;
/// Pages of a file in the keys.
const FILE_PAGES: u64 = 64;
const RUNS: usize = 5;

fn key(page: u64) -> u64 {
    (page / FILE_PAGES) << 24 | (page % FILE_PAGES)
}

#[derive(Default)]
struct Cost {
    insert_ns: Vec<f64>,
    touch_ns: Vec<f64>,
    replace_ns: Vec<f64>,
    filled_bytes: f64,
    replaced_bytes: f64,
}

/// Nanoseconds per call of `step`, called with 0..count.
fn time(count: u64, mut step: impl FnMut(u64)) -> f64 {
    let start = Instant::now();
    (0..count).for_each(&mut step);
    start.elapsed().as_nanos() as f64 / count as f64
}

fn run(kind: EvictionKind, entries: u64, seed: u64, cost: &mut Cost) {
    let mut random = Random(seed);
    let held_before = HELD_BYTES.load(Ordering::Relaxed);
    let held = || (HELD_BYTES.load(Ordering::Relaxed) - held_before) as f64 / entries as f64;
    let mut policy: Box<dyn EvictionPolicy> = kind.build(entries * u64::from(ENTRY_BYTES));
    cost.insert_ns.push(time(entries, |page| policy.insert(key(page), ENTRY_BYTES, Fill::Demand)));
    cost.filled_bytes = held();
    cost.touch_ns.push(time(entries, |count| {
        let among = if count % 2 == 0 { entries } else { entries / 100 };
        policy.touch(key(random.below(among)));
    }));
    let mut victims = Vec::with_capacity(16);
    cost.replace_ns.push(time(entries, |_| {
        victims.clear();
        policy.evict(u64::from(ENTRY_BYTES), &mut |_| true, &mut victims);
        policy.insert(key(entries + random.below(4 * entries)), ENTRY_BYTES, Fill::Demand);
    }));
    cost.replaced_bytes = held();
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let mut sizes: Vec<u64> =
        std::env::args().skip(1).map(|arg| arg.parse().expect("a number of entries")).collect();
    if sizes.is_empty() {
        sizes = vec![100_000, 1_000_000];
    }
    println!(
        "{:<10} {:>9} {:>10} {:>10} {:>11} {:>13} {:>15}",
        "policy", "entries", "insert ns", "touch ns", "replace ns", "bytes, filled", "bytes, replaced"
    );
    for entries in sizes {
        for &kind in EvictionKind::ALL {
            let mut cost = Cost::default();
            (0..RUNS as u64).for_each(|seed| run(kind, entries, seed, &mut cost));
            println!(
                "{:<10} {entries:>9} {:>10.0} {:>10.0} {:>11.0} {:>13.0} {:>15.0}",
                kind.name(),
                median(cost.insert_ns),
                median(cost.touch_ns),
                median(cost.replace_ns),
                cost.filled_bytes,
                cost.replaced_bytes
            );
        }
    }
}
