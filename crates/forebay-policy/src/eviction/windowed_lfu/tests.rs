//! Exact states of W-LFU.

use super::*;

const PAGE: u32 = 1 << 20;

fn filled(pages: u64) -> WindowedLfu {
    let mut policy = WindowedLfu::new(pages * u64::from(PAGE));
    (0..pages).for_each(|key| policy.insert(key, PAGE, Fill::Demand));
    policy
}

/// Misses a page as the agent does it.
fn miss(policy: &mut WindowedLfu, key: u64) -> Vec<u64> {
    let mut victims = Vec::new();
    policy.evict(u64::from(PAGE), &mut |_| true, &mut victims);
    policy.insert(key, PAGE, Fill::Demand);
    victims.iter().map(|victim| victim.key).collect()
}

fn queue(policy: &WindowedLfu, name: &str) -> Vec<u64> {
    policy.dump().queues.into_iter().find(|queue| queue.0 == name).map(|queue| queue.1).unwrap_or_default()
}

#[test]
fn newcomers_pass_through_the_window_and_are_remembered() {
    let mut policy = filled(4);
    assert_eq!(queue(&policy, "window"), [3], "one page at least, whatever 1 % is");
    assert_eq!(queue(&policy, "main, uses 1"), [2, 1, 0], "who came without a contest leaves first");
    assert_eq!((miss(&mut policy, 4), miss(&mut policy, 5)), (vec![3], vec![4]));
    assert_eq!((queue(&policy, "ghosts"), policy.uses(4)), (vec![3, 4], Some(1)));
    // Two uses are no more than one and the margin; three are.
    assert_eq!((miss(&mut policy, 4), policy.uses(4)), (vec![5], Some(2)));
    assert_eq!((miss(&mut policy, 6), miss(&mut policy, 4), policy.uses(4)), (vec![4], vec![6], Some(3)));
    assert_eq!((miss(&mut policy, 7), queue(&policy, "main, uses 3")), (vec![2], vec![4]));
}

#[test]
fn a_loop_keeps_its_part() {
    let mut policy = filled(64);
    let mut hits = 0;
    for key in (0..128).cycle().skip(64).take(64 + 4 * 128) {
        match policy.contains(key) {
            true => hits += 1,
            false => _ = miss(&mut policy, key),
        }
        policy.touch(key);
    }
    assert_eq!(hits, 4 * 63, "all but the window's page, in each of four rounds");
}

#[test]
fn a_burst_counts_once() {
    let mut policy = filled(64);
    (0..100).for_each(|_| policy.touch(0));
    assert_eq!(policy.uses(0), Some(2), "one for the insertion, one for the burst");
    (1..9).for_each(|key| policy.touch(key));
    policy.touch(0);
    assert_eq!(policy.uses(0), Some(3));
}

#[test]
fn a_burst_keeps_its_turn() {
    let mut policy = filled(64);
    assert_eq!(miss(&mut policy, 100), [63]);
    // The program that has waited for 62 reads it.
    (61..63).for_each(|key| policy.touch(key));
    let mut victims = Vec::new();
    policy.evict(u64::from(PAGE) * 3, &mut |_| true, &mut victims);
    assert_eq!(victims.iter().map(|victim| victim.key).collect::<Vec<_>>(), [100, 62, 61]);
}

#[test]
fn counts_are_halved_everywhere_at_once() {
    let mut policy = filled(64);
    assert_eq!(miss(&mut policy, 100), [63]);
    let uses_left = AGEING_USES_PER_PAGE * 64 - 65;
    (0..uses_left).for_each(|count| policy.touch(count % 63));
    assert_eq!((policy.era, policy.uses(0), policy.uses(63)), (1, Some(16), Some(0)));
    let counted: usize = policy.main.iter().map(List::len).sum();
    assert_eq!(counted + policy.window.len(), policy.len());
    assert_eq!(
        policy.filled.count_ones() as usize,
        policy.main.iter().filter(|list| !list.is_empty()).count()
    );
}

#[test]
fn the_window_grows_on_what_it_lost_and_shrinks_on_what_main_serves() {
    let mut policy = filled(100);
    let smallest = policy.window_target_bytes();
    miss(&mut policy, 200);
    miss(&mut policy, 99);
    assert_eq!(
        policy.window_target_bytes(),
        smallest + window::WINDOW_GAIN * u64::from(PAGE),
        "99 had just left"
    );
    // Every page of the main part is used once: the first are the weakest.
    (0..98).for_each(|key| policy.touch(key));
    assert_eq!(policy.window_target_bytes(), smallest);
}

#[test]
fn pages_filled_ahead_survive_until_they_are_read() {
    let mut policy = filled(64);
    for key in 100..116 {
        let mut victims = Vec::new();
        policy.evict(u64::from(PAGE), &mut |_| true, &mut victims);
        assert!(victims.iter().all(|victim| victim.key < 64));
        policy.insert(key, PAGE, Fill::Ahead);
    }
    assert_eq!(queue(&policy, "ahead"), (100..116).collect::<Vec<_>>());
    policy.touch(101);
    assert_eq!((policy.uses(101), queue(&policy, "window").contains(&101)), (Some(1), true));
    (116..118).for_each(|key| policy.insert(key, PAGE, Fill::Ahead));
    assert_eq!(miss(&mut policy, 200), [100], "more than a quarter of the tier waits");
}

#[test]
fn ghosts_are_bounded_and_scans_go_first() {
    let mut policy = filled(100);
    miss(&mut policy, 500);
    for round in 0..6 {
        policy.touch(500);
        (0..12).for_each(|count| policy.touch(12 * round + count));
    }
    assert_eq!(policy.uses(500), Some(6));
    policy.set_capacity(0);
    let mut victims = Vec::new();
    policy.evict(u64::MAX, &mut |_| true, &mut victims);
    policy.set_capacity(100 * u64::from(PAGE));
    (1_000..1_100).for_each(|key| policy.insert(key, PAGE, Fill::Demand));
    (2_000..2_400).for_each(|key| _ = miss(&mut policy, key));
    assert!((190..=GHOSTS_PER_PAGE * 100).contains(&policy.ghosts()) && !policy.contains(500));
    assert!(policy.uses(500) >= Some(1), "used several times, so kept through a scan of twice the ghosts");
    assert_eq!(policy.uses(2_000), None);
}

/// Returns the number of passes until all but the window's page of a data set of `pages` (below the
/// tier) or of the tier's part is hit.
fn passes_to_settle(policy: &mut WindowedLfu, first: u64, pages: u64, hits_wanted: u64) -> u64 {
    for pass in 1..40 {
        let mut hits = 0;
        for key in first..first + pages {
            if policy.contains(key) {
                hits += 1;
                policy.touch(key);
            } else {
                miss(policy, key);
            }
        }
        if hits >= hits_wanted {
            return pass;
        }
    }
    40
}

#[test]
fn a_new_job_takes_over_the_tier() {
    for (pages, hits_wanted, passes) in [(80, 80, 4), (150, 90, 6), (250, 90, 8)] {
        let mut policy = filled(100);
        for _ in 0..20 {
            (0..100).for_each(|key| policy.touch(key));
        }
        let settled = passes_to_settle(&mut policy, 1_000, pages, hits_wanted);
        assert!(settled <= passes, "{pages} pages need {settled} passes");
    }
}

#[test]
fn a_scan_takes_no_counts() {
    let mut policy = filled(100);
    for _ in 0..20 {
        (0..100).for_each(|key| policy.touch(key));
    }
    let before = policy.uses(50);
    (1_000..1_700).for_each(|key| _ = miss(&mut policy, key));
    assert_eq!(
        (policy.contains(50), policy.uses(50)),
        (true, before),
        "seven tiers of new pages, none used again"
    );
}
