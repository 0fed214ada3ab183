//! Training: epochs over shuffled data that the tier does not hold.
//!
//! Two promises. Without a known order the default policy hits nearly as often as if nothing was
//! ever evicted, which for permutations is Belady's bound. With an announced order it hits at least
//! 0.9 times as often as Belady's rule, whatever the sampler draws, and an order that is not kept
//! costs nothing. The replay drives the policy as an agent does: a page that is fetched again has a
//! new key, as the pages of a small file have, pages are fetched ahead in groups, and the end of a
//! group moves the order on.

#[path = "../examples/support/mod.rs"]
mod support;

use forebay_policy::eviction::{EvictionKind, EvictionPolicy, FilePart, Fill, Orders, Victim};
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap};
use support::{PAGE_BYTES, Random, Trace, Zipf, belady, shuffled};

/// What of a trace is announced.
struct Announcement<'a> {
    /// In this order; the trace may be another.
    order: &'a [(u64, u32)],
    /// Epochs that are announced before the one that is read has ended.
    epoch: usize,
    known_epochs: usize,
    /// Uses in a group, and groups fetched ahead.
    group: usize,
    groups_ahead: usize,
}

/// What a replay gave.
#[derive(Clone, Copy, Debug)]
struct Saved {
    /// Reads that found their page.
    hits: f64,
    /// Reads that cost no fetch: one less the fetches for each read.
    saved: f64,
}

struct Tier<'a> {
    policy: Box<dyn EvictionPolicy>,
    trace: &'a Trace,
    orders: Orders<u64>,
    keys: HashMap<u64, u64>,
    pages: HashMap<u64, u64>,
    last_key: u64,
    fetched: usize,
    victims: Vec<Victim>,
}

const JOB: u64 = 1;

impl<'a> Tier<'a> {
    fn new(kind: EvictionKind, trace: &'a Trace) -> Self {
        Tier {
            policy: kind.build(trace.capacity_bytes),
            trace,
            orders: Orders::default(),
            keys: HashMap::new(),
            pages: HashMap::new(),
            last_key: 0,
            fetched: 0,
            victims: Vec::new(),
        }
    }

    /// The key of a page and whether it was there; it is afterwards.
    fn get(&mut self, page: u64, bytes: u32, fill: Fill) -> (u64, bool) {
        if let Some(key) = self.keys.get(&page) {
            return (*key, true);
        }
        let room_bytes = self.trace.capacity_bytes - self.policy.bytes();
        if let Some(want_bytes) = u64::from(bytes).checked_sub(room_bytes).filter(|want| *want > 0) {
            self.policy.evict(want_bytes, &mut |_| true, &mut self.victims);
            for victim in self.victims.drain(..) {
                let key = self.pages.remove(&victim.key).and_then(|page| self.keys.remove(&page));
                assert_eq!(key, Some(victim.key), "a page is evicted that is not there");
            }
        }
        self.last_key += 1;
        self.fetched += 1;
        self.keys.insert(page, self.last_key);
        self.pages.insert(self.last_key, page);
        self.policy.insert(self.last_key, bytes, fill);
        let next_use = self.orders.next_use(page, (0, u64::from(bytes)));
        self.policy.announce(self.last_key, next_use);
        (self.last_key, false)
    }

    fn announce_again(&mut self, changed: BTreeSet<u64>) {
        for page in changed {
            if let Some(key) = self.keys.get(&page) {
                self.policy.announce(*key, self.orders.next_use(page, (0, u64::from(PAGE_BYTES))));
            }
        }
    }

    fn announce_epoch(&mut self, number: usize, announcement: &Announcement<'_>) {
        let Some(uses) = announcement.order.chunks(announcement.epoch).nth(number) else { return };
        for (task, group) in (0..).zip(uses.chunks(announcement.group)) {
            let part =
                |(page, bytes): &(u64, u32)| FilePart { file: *page, offset: 0, len: u64::from(*bytes) };
            let parts: Vec<_> = group.iter().map(part).collect();
            let changed = self.orders.announce(JOB, (number as u32, task), &parts);
            self.announce_again(changed);
        }
    }

    fn read(&mut self, page: u64, bytes: u32) -> bool {
        let (key, was_there) = self.get(page, bytes, Fill::Demand);
        if was_there {
            self.policy.touch(key);
        }
        for job in self.orders.touched(page) {
            let changed = self.orders.end(job);
            self.announce_again(changed);
        }
        was_there
    }
}

/// Warm: what the first epoch costs, which finds an empty tier, is left out.
fn replay(kind: EvictionKind, trace: &Trace, epoch: usize, announced: Option<&Announcement<'_>>) -> Saved {
    let mut tier = Tier::new(kind, trace);
    if let Some(announcement) = announced {
        tier.orders.begin(JOB);
        (0..announcement.known_epochs).for_each(|number| tier.announce_epoch(number, announcement));
    }
    let (mut hits, mut cold_fetches, mut ahead) = (0, 0, 0);
    for (at, &(page, bytes)) in trace.uses.iter().enumerate() {
        if at == epoch {
            (cold_fetches, hits) = (tier.fetched, 0);
        }
        if let Some(announcement) = announced.filter(|_| !tier.orders.is_empty()) {
            let Announcement { order, epoch, group, groups_ahead, known_epochs } = *announcement;
            if at % epoch == 0 {
                tier.announce_epoch(at / epoch + known_epochs, announcement);
            }
            if at > 0 && (at % epoch) % group == 0 {
                let last = at - 1;
                let task = ((last / epoch) as u32, ((last % epoch) / group) as u32);
                let changed = tier.orders.task_ended(JOB, task);
                tier.announce_again(changed);
            }
            let known = order.len().min((at / epoch + known_epochs + 1) * epoch);
            let end = ((at / group + 1 + groups_ahead) * group).min(known);
            ahead = ahead.max(at);
            while ahead < end {
                let (page, bytes) = order[ahead];
                let (key, _) = tier.get(page, bytes, Fill::Ahead);
                tier.policy.plan(key, ahead as u64);
                ahead += 1;
            }
        }
        hits += usize::from(tier.read(page, bytes));
    }
    let reads = (trace.uses.len() - epoch) as f64;
    Saved { hits: hits as f64 / reads, saved: 1.0 - (tier.fetched - cold_fetches) as f64 / reads }
}

fn of_pages(tier_pages: usize, pages: impl Iterator<Item = u64>) -> Trace {
    Trace {
        family: "sampled",
        name: String::new(),
        uses: pages.map(|page| (page, PAGE_BYTES)).collect(),
        capacity_bytes: tier_pages as u64 * u64::from(PAGE_BYTES),
    }
}

/// Belady's rule after the first epoch.
fn warm_belady(trace: &Trace, epoch: usize) -> f64 {
    let first = Trace { uses: trace.uses[..epoch].to_vec(), name: String::new(), ..*trace };
    let hits = |trace: &Trace| belady(trace).hit_ratio * trace.uses.len() as f64;
    (hits(trace) - hits(&first)) / (trace.uses.len() - epoch) as f64
}

fn in_order(trace: &Trace, epoch: usize, tier_pages: usize, known_epochs: usize) -> Announcement<'_> {
    Announcement { order: &trace.uses, epoch, known_epochs, group: (tier_pages / 64).max(1), groups_ahead: 4 }
}

/// Names of samplers, reads in an epoch, and what is read.
fn samplers(pages: usize, tier_pages: usize, seed: u64) -> Vec<(&'static str, usize, Trace)> {
    let epochs = 12;
    let mut random = Random(seed);
    let n = pages as u64;
    let law = Zipf::new(pages, 0.5);
    let with = (0..epochs * pages).map(|_| random.below(n)).collect::<Vec<_>>();
    let weighted = (0..epochs * pages).map(|_| law.draw(&mut random)).collect::<Vec<_>>();
    let all = shuffled(pages, 1.0, 4 * epochs, seed).uses;
    let rank = all.iter().enumerate().filter(|(at, _)| at % 4 == 0).map(|(_, one)| one.0);
    vec![
        ("shuffle", pages, shuffled(tier_pages, tier_pages as f64 / pages as f64, epochs, seed)),
        ("replacement", pages, of_pages(tier_pages, with.into_iter())),
        ("weighted", pages, of_pages(tier_pages, weighted.into_iter())),
        ("one of four ranks", pages / 4, of_pages(tier_pages, rank)),
    ]
}

/// `cargo test --workspace --test epochs table -- --ignored --nocapture` prints the table of
/// decision 0074.
#[test]
#[ignore = "prints a table"]
fn table() {
    println!("sampler, c, seed: Belady | LRU, W-LFU | order known: one epoch, four epochs (reads that hit)");
    for share in [0.25, 0.5] {
        let pages = 2000;
        let tier_pages = (pages as f64 * share) as usize;
        for seed in 1..=3 {
            for (name, epoch, trace) in samplers(pages, tier_pages, seed) {
                let [lru, wlfu] = [EvictionKind::Lru, EvictionKind::default()]
                    .map(|kind| replay(kind, &trace, epoch, None).saved);
                let [one, four] = [1, 4].map(|known| {
                    let announcement = in_order(&trace, epoch, tier_pages, known);
                    replay(EvictionKind::default(), &trace, epoch, Some(&announcement))
                });
                println!(
                    "{name:<18} {share} {seed}: {:.3} | {lru:.3} {wlfu:.3} | {:.3} {:.3} ({:.3})",
                    warm_belady(&trace, epoch),
                    one.saved,
                    four.saved,
                    four.hits
                );
            }
        }
    }
}

/// What epochs over files of several pages save if a reader waits for all pages of a file at once,
/// and the agent hears of `touch_every` files at a time which pages were read, also those that were
/// just fetched.
fn replay_files(file_pages: u64, touch_every: usize, seed: u64) -> f64 {
    let (files, tier_files, epochs) = (200, 50, 8);
    let trace = shuffled(tier_files, 0.25, epochs, seed);
    let capacity_bytes = tier_files as u64 * file_pages;
    let mut policy = EvictionKind::default().build(capacity_bytes);
    let (mut copies, mut touched) = (HashMap::new(), Vec::new());
    let (mut fetched, mut victims) = (0, Vec::new());
    for (at, (file, _)) in trace.uses.iter().enumerate() {
        let pages = |copy: u64| (copy << 24)..(copy << 24) + file_pages;
        let copy = copies.entry(*file).or_insert(0);
        if !pages(*copy).any(|key| policy.contains(key)) {
            *copy = at as u64 + 1;
        }
        let missing: Vec<u64> = pages(*copy).filter(|key| !policy.contains(*key)).collect();
        for on_its_way in 1..=missing.len() as u64 {
            let over_bytes = (policy.bytes() + on_its_way).saturating_sub(capacity_bytes);
            policy.evict(over_bytes, &mut |_| true, &mut victims);
        }
        missing.iter().for_each(|key| policy.insert(*key, 1, Fill::Demand));
        fetched += if at < files { 0 } else { missing.len() };
        touched.extend(pages(*copy));
        if at % touch_every == 0 {
            touched.drain(..).for_each(|key| policy.touch(key));
        }
    }
    1.0 - fetched as f64 / (files * (epochs - 1)) as f64 / file_pages as f64
}

#[test]
fn touches_of_what_was_just_fetched_do_not_displace_what_was_kept() {
    for file_pages in [1, 4, 16] {
        for touch_every in [1, 10, 30, 100] {
            for seed in 1..=3 {
                let saved = replay_files(file_pages, touch_every, seed);
                assert!(saved > 0.22, "{saved} with {file_pages} pages, every {touch_every} files");
            }
        }
    }
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(12))]

    /// No policy can hit more than the tier's share of a permutation: pages that it keeps from one
    /// epoch to the next are all in the tier between the two.
    #[test]
    fn shuffled_epochs_hit_nearly_as_often_as_if_nothing_was_evicted(
        tier_pages in 60usize..400,
        share in 0.1f64..0.8,
        seed in any::<u64>(),
    ) {
        let trace = shuffled(tier_pages, share, 10, seed);
        let epoch = trace.uses.len() / 10;
        let saved = replay(EvictionKind::default(), &trace, epoch, None).saved;
        let bound = warm_belady(&trace, epoch);
        prop_assert!((bound - tier_pages as f64 / epoch as f64).abs() < 0.01, "Belady's bound {bound}");
        prop_assert!(saved >= 0.96 * bound, "{saved} of {bound}");
    }

    #[test]
    fn with_an_announced_order_the_tier_hits_as_belady_would(
        pages in 400usize..1200,
        share in 0.15f64..0.6,
        seed in any::<u64>(),
    ) {
        let tier_pages = (pages as f64 * share) as usize;
        for (name, epoch, trace) in samplers(pages, tier_pages, seed) {
            let announcement = in_order(&trace, epoch, tier_pages, 4);
            let outcome = replay(EvictionKind::default(), &trace, epoch, Some(&announcement));
            let bound = warm_belady(&trace, epoch);
            prop_assert!(outcome.saved >= 0.9 * bound, "{name}: {} of {bound}", outcome.saved);
            prop_assert!(outcome.saved <= bound + 1e-9, "{name}: {} is above {bound}", outcome.saved);
            prop_assert!(outcome.hits > 0.99, "{name}: {} of the reads waited", 1.0 - outcome.hits);
        }
    }

    /// The program announces one permutation and reads another.
    #[test]
    fn an_order_that_is_not_kept_costs_no_more_than_the_first_epoch(
        pages in 400usize..1200,
        share in 0.15f64..0.6,
        seed in any::<u64>(),
    ) {
        let tier_pages = (pages as f64 * share) as usize;
        let trace = shuffled(tier_pages, share, 8, seed);
        let other = shuffled(tier_pages, share, 8, seed ^ 1);
        let epoch = trace.uses.len() / 8;
        let announcement = in_order(&other, epoch, tier_pages, 1);
        let outcome = replay(EvictionKind::default(), &trace, epoch, Some(&announcement));
        let bound = warm_belady(&trace, epoch);
        prop_assert!(outcome.saved >= 0.96 * bound, "{} of {bound}", outcome.saved);
    }
}
