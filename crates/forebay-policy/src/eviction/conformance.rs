//! What every eviction policy must guarantee, whatever order it chooses: one suite for all.

use super::*;
use alloc::collections::BTreeMap;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Insert(u64, u32, Fill),
    Touch(u64),
    Remove(u64),
    /// Wanted bytes, and the remainders mod 4 of the keys that may not go.
    Evict(u64, [bool; 4]),
    Capacity(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0u64..200;
    let fill = prop::sample::select(&[Fill::Demand, Fill::Ahead, Fill::Remote][..]);
    prop_oneof![
        4 => (key.clone(), 0u32..5_000, fill).prop_map(|(key, bytes, fill)| Op::Insert(key, bytes, fill)),
        4 => key.clone().prop_map(Op::Touch),
        1 => key.prop_map(Op::Remove),
        2 => (0u64..20_000, any::<[bool; 4]>()).prop_map(|(want, refused)| Op::Evict(want, refused)),
        1 => (0u64..200_000).prop_map(Op::Capacity),
    ]
}

fn resident_keys(policy: &dyn EvictionPolicy) -> Vec<u64> {
    let queues = policy.dump().queues;
    let resident = queues.into_iter().filter(|(name, _)| !name.starts_with("ghost"));
    let mut keys: Vec<u64> = resident.flat_map(|(_, keys)| keys).collect();
    keys.sort_unstable();
    keys
}

fn check_evict(
    kind: EvictionKind,
    policy: &mut dyn EvictionPolicy,
    model: &mut BTreeMap<u64, u32>,
    want_bytes: u64,
    refused: [bool; 4],
) -> Result<(), TestCaseError> {
    let free_to_go = |key: u64| !refused[(key % 4) as usize];
    let possible_bytes: u64 =
        model.iter().filter(|(key, _)| free_to_go(**key)).map(|(_, bytes)| u64::from(*bytes)).sum();
    let (mut offers, mut victims) = (0, Vec::new());
    let ask = &mut |key| {
        offers += 1;
        free_to_go(key)
    };
    let freed_bytes = policy.evict(want_bytes, ask, &mut victims);
    prop_assert!(offers <= 6 * model.len(), "{offers} offers for {} pages", model.len());
    let mut before_last_bytes = 0;
    for (count, victim) in victims.iter().enumerate() {
        prop_assert!(free_to_go(victim.key));
        prop_assert_eq!(model.remove(&victim.key), Some(victim.bytes));
        if count + 1 < victims.len() {
            before_last_bytes += u64::from(victim.bytes);
        }
    }
    prop_assert_eq!(freed_bytes, victims.iter().map(|victim| u64::from(victim.bytes)).sum::<u64>());
    prop_assert!(
        freed_bytes >= want_bytes.min(possible_bytes),
        "{kind} gave up at {freed_bytes} of {possible_bytes}"
    );
    prop_assert!(
        victims.is_empty() || before_last_bytes < want_bytes,
        "went on after {want_bytes} were covered"
    );
    Ok(())
}

fn run(kind: EvictionKind, ops: &[Op]) -> Result<Dump, TestCaseError> {
    let mut policy = kind.build(100_000);
    let mut model: BTreeMap<u64, u32> = BTreeMap::new();
    for op in ops {
        match *op {
            Op::Insert(key, bytes, fill) => {
                policy.insert(key, bytes, fill);
                model.insert(key, bytes);
            }
            Op::Touch(key) => policy.touch(key),
            Op::Remove(key) => prop_assert_eq!(policy.remove(key), model.remove(&key)),
            Op::Evict(want_bytes, refused) => {
                check_evict(kind, &mut *policy, &mut model, want_bytes, refused)?
            }
            Op::Capacity(bytes) => policy.set_capacity(bytes),
        }
        prop_assert_eq!(policy.len(), model.len());
        prop_assert_eq!(policy.bytes(), model.values().map(|&bytes| u64::from(bytes)).sum::<u64>());
    }
    prop_assert_eq!(resident_keys(&*policy), model.keys().copied().collect::<Vec<_>>());
    for key in 0..200 {
        prop_assert_eq!(policy.contains(key), model.contains_key(&key));
    }
    Ok(policy.dump())
}

proptest! {
    #[test]
    fn every_policy_agrees_with_the_model(ops in prop::collection::vec(op(), 1..400)) {
        for &kind in EvictionKind::ALL {
            let first = run(kind, &ops)?;
            prop_assert_eq!(first, run(kind, &ops)?, "{} is not deterministic", kind);
        }
    }
}

#[test]
fn names_are_read_back() {
    for &kind in EvictionKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
    let error = "lfu".parse::<EvictionKind>().unwrap_err();
    let names: Vec<_> = EvictionKind::ALL.iter().map(|kind| kind.name()).collect();
    assert_eq!(
        alloc::string::ToString::to_string(&error),
        format!("no eviction policy is called \"lfu\"; use one of {}", names.join(" "))
    );
}

/// Nine pages in ten are pinned for good. Leaving refused pages in place would make each call walk
/// over all 900.
#[test]
fn pinned_pages_are_not_walked_over_by_every_call() {
    for &kind in EvictionKind::ALL {
        let mut policy = kind.build(1_000);
        (0..1_000).for_each(|key| policy.insert(key, 1, Fill::Demand));
        let (mut offers, mut victims) = (0, Vec::new());
        for newcomer in 1_000..6_000 {
            let ask = &mut |key| {
                offers += 1;
                key >= 900
            };
            policy.evict(1, ask, &mut victims);
            policy.insert(newcomer, 1, Fill::Demand);
        }
        assert_eq!(victims.len(), 5_000, "{kind}");
        assert!(offers <= 11 * victims.len(), "{kind}: {offers} offers for {} victims", victims.len());
    }
}
