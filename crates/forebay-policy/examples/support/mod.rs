//! Traces and their replay, shared by the examples and by the test of the default policy.
//!
//! A trace is a list of (page, size) in the order of use; the same seed gives the same trace on
//! every machine. The replay drives a policy as the agent does: a hit is a touch; a miss evicts the
//! room it needs and inserts.
#![allow(dead_code, clippy::unwrap_used)] // each user takes its part; a broken example may stop

use forebay_policy::eviction::{EvictionPolicy, Fill};
use std::collections::{BTreeSet, HashMap};

/// The usual page.
pub const PAGE_BYTES: u32 = 2 << 20;

/// Uses of pages in order, for a tier of `capacity_bytes`.
pub struct Trace {
    /// Family: `loop`, `zipf`, `scan+zipf`, ...
    pub family: &'static str,
    /// The parameters.
    pub name: String,
    /// (page, size in bytes)
    pub uses: Vec<(u64, u32)>,
    /// Size of the tier.
    pub capacity_bytes: u64,
}

/// What a replay gave.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Uses that were hits, of all.
    pub hit_ratio: f64,
    /// Bytes that were hits, of all.
    pub byte_hit_ratio: f64,
}

/// SplitMix64: one word of state, good enough for traces, the same everywhere.
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number in 0..1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A number in 0..n.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(n)) >> 64) as u64
    }
}

/// Draws ranks 0..n with probability proportional to 1 / (rank + 1)^alpha, by inversion of the
/// cumulated weights.
pub struct Zipf(Vec<f64>);

impl Zipf {
    /// Over `n` ranks.
    pub fn new(n: usize, alpha: f64) -> Self {
        let mut sum = 0.0;
        let mut cumulated: Vec<f64> = Vec::with_capacity(n);
        for rank in 1..=n {
            sum += (rank as f64).powf(-alpha);
            cumulated.push(sum);
        }
        cumulated.iter_mut().for_each(|weight| *weight /= sum);
        Zipf(cumulated)
    }

    /// One rank.
    pub fn draw(&self, random: &mut Random) -> u64 {
        let unit = random.unit();
        self.0.partition_point(|&weight| weight < unit).min(self.0.len() - 1) as u64
    }
}

fn pages(tier_pages: usize) -> u64 {
    tier_pages as u64 * u64::from(PAGE_BYTES)
}

/// `rounds` passes over a data set of which the tier holds `ratio`.
pub fn looping(tier_pages: usize, ratio: f64, rounds: usize) -> Trace {
    let loop_pages = (tier_pages as f64 / ratio).round() as u64;
    let uses = (0..rounds).flat_map(|_| (0..loop_pages).map(|page| (page, PAGE_BYTES))).collect();
    let name = format!("tier/loop {ratio} ({loop_pages} pages)");
    Trace { family: "loop", name, uses, capacity_bytes: pages(tier_pages) }
}

/// Training: `epochs` passes over a data set of which the tier holds `ratio`, each in a new random
/// order.
pub fn shuffled(tier_pages: usize, ratio: f64, epochs: usize, seed: u64) -> Trace {
    let mut random = Random(seed);
    let mut order: Vec<u64> = (0..(tier_pages as f64 / ratio).round() as u64).collect();
    let mut uses = Vec::with_capacity(epochs * order.len());
    for _ in 0..epochs {
        for left in (1..order.len()).rev() {
            order.swap(left, random.below(left as u64 + 1) as usize);
        }
        uses.extend(order.iter().map(|&page| (page, PAGE_BYTES)));
    }
    let name = format!("tier/data {ratio}, {epochs} epochs");
    Trace { family: "shuffled", name, uses, capacity_bytes: pages(tier_pages) }
}

/// Independent draws from a fixed zipf law.
pub fn zipf(catalogue: usize, alpha: f64, tier_pages: usize, uses: usize, seed: u64) -> Trace {
    let (law, mut random) = (Zipf::new(catalogue, alpha), Random(seed));
    let uses = (0..uses).map(|_| (law.draw(&mut random), PAGE_BYTES)).collect();
    let name = format!("alpha {alpha} tier {:.1}%", 100.0 * tier_pages as f64 / catalogue as f64);
    Trace { family: "zipf", name, uses, capacity_bytes: pages(tier_pages) }
}

/// A zipf working set that long sequential scans interrupt: every `scan_every` uses a scan of
/// `scan_pages`, each over new pages, or always over the same ones.
pub fn scan_zipf(
    catalogue: usize,
    alpha: f64,
    tier_pages: usize,
    uses: usize,
    (scan_every, scan_pages, same): (usize, u64, bool),
    seed: u64,
) -> Trace {
    let (law, mut random) = (Zipf::new(catalogue, alpha), Random(seed));
    let mut trace = Vec::with_capacity(uses);
    let mut scan_start = 1 << 40;
    for count in 1..=uses {
        trace.push((law.draw(&mut random), PAGE_BYTES));
        if count % scan_every == 0 {
            trace.extend((scan_start..scan_start + scan_pages).map(|page| (page, PAGE_BYTES)));
            scan_start += if same { 0 } else { scan_pages };
        }
    }
    let kind = if same { "same" } else { "new" };
    let share = 100.0 * tier_pages as f64 / catalogue as f64;
    let name = format!("alpha {alpha} tier {share:.1}% {kind} scan {scan_pages}/{scan_every}");
    Trace { family: "scan+zipf", name, uses: trace, capacity_bytes: pages(tier_pages) }
}

/// Two programs at once: one passes over a data set of `loop_pages`, one draws from a zipf law.
pub fn loop_zipf(
    catalogue: usize,
    alpha: f64,
    loop_pages: u64,
    tier_pages: usize,
    uses: usize,
    seed: u64,
) -> Trace {
    let (law, mut random) = (Zipf::new(catalogue, alpha), Random(seed));
    let mut at = 0;
    let uses = (0..uses)
        .map(|_| {
            if random.below(2) == 0 {
                return (law.draw(&mut random), PAGE_BYTES);
            }
            at = (at + 1) % loop_pages;
            ((1 << 40) + at, PAGE_BYTES)
        })
        .collect();
    let name = format!("alpha {alpha} loop {:.1}x tier", loop_pages as f64 / tier_pages as f64);
    Trace { family: "loop+zipf", name, uses, capacity_bytes: pages(tier_pages) }
}

/// A zipf law over pages of very different sizes: many small files, some whole pages.
pub fn mixed(catalogue: usize, alpha: f64, ratio: f64, uses: usize, seed: u64) -> Trace {
    let (law, mut random) = (Zipf::new(catalogue, alpha), Random(seed));
    let sizes: Vec<u32> = (0..catalogue)
        .map(|_| if random.below(4) == 0 { PAGE_BYTES } else { 1 << (12 + random.below(9)) })
        .collect();
    let total_bytes: u64 = sizes.iter().map(|&bytes| u64::from(bytes)).sum();
    let uses = (0..uses)
        .map(|_| {
            let page = law.draw(&mut random);
            (page, sizes[page as usize])
        })
        .collect();
    let name = format!("alpha {alpha} tier {:.0}% of bytes", 100.0 * ratio);
    Trace { family: "mixed sizes", name, uses, capacity_bytes: (total_bytes as f64 * ratio) as u64 }
}

/// A zipf law whose ranks move on to other pages: every `shift_every` uses the whole law slides by
/// `shift_by` pages.
pub fn drifting(
    catalogue: usize,
    alpha: f64,
    tier_pages: usize,
    uses: usize,
    shift: (usize, u64),
    seed: u64,
) -> Trace {
    let (law, mut random) = (Zipf::new(catalogue, alpha), Random(seed));
    let uses = (0..uses)
        .map(|count| (law.draw(&mut random) + (count / shift.0) as u64 * shift.1, PAGE_BYTES))
        .collect();
    let name = format!("alpha {alpha} by {} every {}", shift.1, shift.0);
    Trace { family: "drift", name, uses, capacity_bytes: pages(tier_pages) }
}

/// One pass over new data, each page used `repeat` times at distances up to `spread` pages: pure
/// recency.
pub fn recency(uses: usize, tier_pages: usize, spread: u64, seed: u64) -> Trace {
    let mut random = Random(seed);
    let uses = (0..uses as u64).map(|count| (count / 4 + random.below(spread), PAGE_BYTES)).collect();
    Trace { family: "recency", name: format!("spread {spread}"), uses, capacity_bytes: pages(tier_pages) }
}

/// One job after another, each with ten passes over data of its own, `ratio` of the tier in size.
pub fn jobs(tier_pages: usize, ratio: f64, jobs: u64) -> Trace {
    let job_pages = (tier_pages as f64 * ratio) as u64;
    let pass = |job: u64| (0..job_pages).map(move |page| ((job << 24) + page, PAGE_BYTES));
    let uses = (0..jobs).flat_map(|job| (0..10).flat_map(move |_| pass(job))).collect();
    let name = format!("{jobs} x 10 passes over {ratio}x tier");
    Trace { family: "jobs", name, uses, capacity_bytes: pages(tier_pages) }
}

/// One job after another, each drawing from a zipf law over data of its own.
pub fn zipf_jobs(
    catalogue: usize,
    alpha: f64,
    tier_pages: usize,
    uses: usize,
    jobs: usize,
    seed: u64,
) -> Trace {
    let (law, mut random) = (Zipf::new(catalogue, alpha), Random(seed));
    let job_uses = uses / jobs;
    let uses = (0..jobs * job_uses)
        .map(|count| (((count / job_uses) << 24) as u64 + law.draw(&mut random), PAGE_BYTES))
        .collect();
    let name = format!("{jobs} x zipf {alpha}");
    Trace { family: "jobs", name, uses, capacity_bytes: pages(tier_pages) }
}

/// Replays `trace` through `policy`, which must be empty and know the capacity. Of the touches, the
/// share `heard` gets through: the agent samples them.
pub fn replay(policy: &mut dyn EvictionPolicy, trace: &Trace, heard: f64) -> Outcome {
    let mut random = Random(0xf0eb);
    let (mut hits, mut hit_bytes, mut all_bytes) = (0u64, 0u64, 0u64);
    let mut victims = Vec::new();
    for &(page, bytes) in &trace.uses {
        all_bytes += u64::from(bytes);
        if policy.contains(page) {
            hits += 1;
            hit_bytes += u64::from(bytes);
            if heard >= 1.0 || random.unit() < heard {
                policy.touch(page);
            }
            continue;
        }
        let room_bytes = trace.capacity_bytes - policy.bytes();
        if let Some(want_bytes) = u64::from(bytes).checked_sub(room_bytes).filter(|&want| want > 0) {
            victims.clear();
            let freed_bytes = policy.evict(want_bytes, &mut |_| true, &mut victims);
            assert!(freed_bytes >= want_bytes, "freed {freed_bytes} of {want_bytes}");
        }
        policy.insert(page, bytes, Fill::Demand);
        assert!(policy.bytes() <= trace.capacity_bytes);
    }
    Outcome {
        hit_ratio: hits as f64 / trace.uses.len() as f64,
        byte_hit_ratio: hit_bytes as f64 / all_bytes as f64,
    }
}

/// Least frequently used, in a few lines: the page with the fewest uses since it came leaves first;
/// among equals the one used longest ago. It hears the same touches as the policy of [`replay`].
pub fn lfu(trace: &Trace, heard: f64) -> Outcome {
    let mut random = Random(0xf0eb);
    let (mut hits, mut hit_bytes, mut all_bytes, mut held_bytes) = (0u64, 0u64, 0u64, 0u64);
    let mut held: HashMap<u64, (u64, usize)> = HashMap::new();
    let mut order: BTreeSet<(u64, usize, u64, u32)> = BTreeSet::new();
    for (at, &(page, bytes)) in trace.uses.iter().enumerate() {
        all_bytes += u64::from(bytes);
        let mut uses = 0;
        if let Some(&(uses_before, last)) = held.get(&page) {
            hits += 1;
            hit_bytes += u64::from(bytes);
            if heard < 1.0 && random.unit() >= heard {
                continue;
            }
            order.remove(&(uses_before, last, page, bytes));
            uses = uses_before;
        } else {
            while held_bytes + u64::from(bytes) > trace.capacity_bytes {
                let (_, _, victim, victim_bytes) = order.pop_first().unwrap();
                held.remove(&victim);
                held_bytes -= u64::from(victim_bytes);
            }
            held_bytes += u64::from(bytes);
        }
        held.insert(page, (uses + 1, at));
        order.insert((uses + 1, at, page, bytes));
    }
    Outcome {
        hit_ratio: hits as f64 / trace.uses.len() as f64,
        byte_hit_ratio: hit_bytes as f64 / all_bytes as f64,
    }
}

/// Belady's rule: keep the pages whose next use is soonest, the newcomer included. No policy hits
/// more often if all pages have one size; with mixed sizes it is a strong reference and no bound.
pub fn belady(trace: &Trace) -> Outcome {
    let mut next_use = vec![u64::MAX; trace.uses.len()];
    let mut seen: HashMap<u64, u64> = HashMap::new();
    for (at, &(page, _)) in trace.uses.iter().enumerate().rev() {
        next_use[at] = seen.insert(page, at as u64).unwrap_or(u64::MAX);
    }
    let (mut hits, mut hit_bytes, mut all_bytes, mut held_bytes) = (0u64, 0u64, 0u64, 0u64);
    let mut held: HashMap<u64, u64> = HashMap::new();
    let mut order: BTreeSet<(u64, u64, u32)> = BTreeSet::new();
    for (at, &(page, bytes)) in trace.uses.iter().enumerate() {
        all_bytes += u64::from(bytes);
        if let Some(due) = held.remove(&page) {
            hits += 1;
            hit_bytes += u64::from(bytes);
            held_bytes -= u64::from(bytes);
            order.remove(&(due, page, bytes));
        }
        if next_use[at] == u64::MAX {
            continue;
        }
        held.insert(page, next_use[at]);
        order.insert((next_use[at], page, bytes));
        held_bytes += u64::from(bytes);
        while held_bytes > trace.capacity_bytes {
            let (_, victim, victim_bytes) = order.pop_last().unwrap();
            held.remove(&victim);
            held_bytes -= u64::from(victim_bytes);
        }
    }
    Outcome {
        hit_ratio: hits as f64 / trace.uses.len() as f64,
        byte_hit_ratio: hit_bytes as f64 / all_bytes as f64,
    }
}

/// The traces of the comparison; `scale` 1 for the record, below for a quick look; `seed` 0 for the
/// record.
pub fn all_traces(scale: f64, seed: u64) -> Vec<Trace> {
    let n = |count: usize| ((count as f64 * scale) as usize).max(16);
    let mut traces = Vec::new();
    for tier_pages in [n(400), n(4_000)] {
        for ratio in [0.5, 0.75, 0.9] {
            traces.push(looping(tier_pages, ratio, 20));
        }
    }
    for alpha in [0.7, 0.8, 0.9, 1.0, 1.1] {
        for share in [0.01, 0.05, 0.1, 0.25] {
            traces.push(zipf(n(40_000), alpha, (n(40_000) as f64 * share) as usize, n(600_000), seed + 7));
        }
    }
    for alpha in [0.7, 0.9, 1.1] {
        for (tier_pages, scan, same) in [
            (n(2_000), (n(20_000), n(6_000) as u64, false), false),
            (n(2_000), (n(20_000), n(6_000) as u64, true), true),
            (n(800), (n(4_000), n(4_000) as u64, false), false),
            (n(800), (n(4_000), n(4_000) as u64, true), true),
        ] {
            debug_assert_eq!(scan.2, same);
            traces.push(scan_zipf(n(20_000), alpha, tier_pages, n(300_000), scan, seed + 11));
        }
    }
    for ratio in [0.25, 0.5, 0.8] {
        traces.push(shuffled(n(2_000), ratio, 20, seed + 41));
    }
    for (alpha, loops) in [(0.7, 0.8), (0.9, 0.8), (0.9, 1.5), (1.0, 3.0)] {
        let loop_pages = (n(2_000) as f64 * loops) as u64;
        traces.push(loop_zipf(n(20_000), alpha, loop_pages, n(2_000), n(400_000), seed + 13));
    }
    for ratio in [0.05, 0.2] {
        traces.push(mixed(n(40_000), 0.9, ratio, n(400_000), seed + 17));
    }
    traces.push(drifting(n(20_000), 0.9, n(2_000), n(400_000), (n(40_000), n(2_000) as u64), seed + 19));
    traces.push(drifting(n(20_000), 0.9, n(2_000), n(400_000), (n(100), 1), seed + 23));
    traces.push(recency(n(400_000), n(2_000), n(1_500) as u64, seed + 29));
    traces.push(recency(n(400_000), n(2_000), n(4_000) as u64, seed + 31));
    for ratio in [0.4, 0.8, 1.5, 2.5] {
        traces.push(jobs(n(2_000), ratio, 5));
    }
    traces.push(zipf_jobs(n(20_000), 0.9, n(2_000), n(400_000), 4, seed + 37));
    traces
}
