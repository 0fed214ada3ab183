//! What all members hold and move, added up once a second: the curves of the console, and the rates
//! of `forebay top`.

use crate::members::Member;
use forebay_policy::machine::Nanos;
use forebay_wire::Sample;
use std::collections::{BTreeMap, VecDeque};

/// Time between two samples: agents report what they hold once a second.
const EVERY_NS: u64 = 1_000_000_000;

/// Samples that are kept: an hour, and 150 KiB.
const KEPT: usize = 3600;

/// See the module.
#[derive(Debug, Default)]
pub struct Samples {
    kept: VecDeque<Sample>,
    taken: Option<Nanos>,
    /// What each member had read from the PFS, and all requests had fetched, at the last sample.
    fetched: BTreeMap<String, u64>,
    prefetched_bytes: u64,
}

impl Samples {
    /// Takes one if it is due. `capacity_of` is the tier of a member now, `prefetched_bytes` what
    /// requests have fetched since the start.
    pub fn take<'a>(
        &mut self,
        now: Nanos,
        members: impl Iterator<Item = &'a Member>,
        capacity_of: impl Fn(&str) -> Option<u64>,
        prefetched_bytes: u64,
    ) -> Option<Sample> {
        let ns = self.taken.map(|taken| now.saturating_since(taken));
        if ns.is_some_and(|ns| ns < EVERY_NS) {
            return None;
        }
        let mut sample = Sample { at_ms: now.0 / 1_000_000, ..Sample::default() };
        let (mut fetched, mut more) = (BTreeMap::new(), 0u64);
        for member in members {
            let name = &member.info.name;
            sample.capacity_bytes += capacity_of(name).unwrap_or(member.info.capacity_bytes);
            sample.resident_bytes += member.resident_bytes;
            // An agent that has restarted counts from 0; its first heartbeat moved nothing.
            let before = self.fetched.get(name).copied().unwrap_or(member.fetched_bytes);
            more += member.fetched_bytes.saturating_sub(before);
            fetched.insert(name.clone(), member.fetched_bytes);
        }
        let rate =
            |bytes: u64| ns.map_or(0, |ns| (u128::from(bytes) * 1_000_000_000 / u128::from(ns)) as u64);
        sample.fetched_bytes_per_s = rate(more);
        sample.prefetched_bytes_per_s = rate(prefetched_bytes.saturating_sub(self.prefetched_bytes));
        (self.taken, self.fetched, self.prefetched_bytes) = (Some(now), fetched, prefetched_bytes);
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(sample);
        Some(sample)
    }

    /// The latest.
    pub fn latest(&self) -> Sample {
        self.kept.back().copied().unwrap_or_default()
    }

    /// Those taken after `at_ms`.
    pub fn since(&self, at_ms: Option<u64>) -> Vec<Sample> {
        let first = at_ms.map_or(0, |at_ms| self.kept.partition_point(|sample| sample.at_ms <= at_ms));
        self.kept.iter().skip(first).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_wire::NodeInfo;

    fn member(name: &str, resident_bytes: u64, fetched_bytes: u64) -> Member {
        let info = NodeInfo { name: name.into(), capacity_bytes: 10, ..NodeInfo::default() };
        Member {
            info,
            incarnation: (1, 1),
            session: 1,
            heard: Nanos(0),
            resident_bytes,
            fetched_bytes,
            health: None,
        }
    }

    #[test]
    fn rates_are_of_the_time_between_two_samples_and_survive_a_new_agent() {
        let mut samples = Samples::default();
        let tier = |name: &str| (name == "b").then_some(7);
        let first = [member("a", 1, 1000), member("b", 2, 50)];
        let sample = samples.take(Nanos(5), first.iter(), tier, 0).unwrap();
        assert_eq!((sample.capacity_bytes, sample.resident_bytes, sample.fetched_bytes_per_s), (17, 3, 0));
        assert_eq!(samples.take(Nanos(EVERY_NS), first.iter(), tier, 0), None, "not due");
        // b is another process now.
        let second = [member("a", 1, 3000), member("b", 2, 0)];
        let sample = samples.take(Nanos(2 * EVERY_NS + 5), second.iter(), tier, 500).unwrap();
        assert_eq!((sample.fetched_bytes_per_s, sample.prefetched_bytes_per_s), (1000, 250));
        assert_eq!((samples.since(None).len(), samples.since(Some(0)).len()), (2, 1));
        assert_eq!(samples.latest(), sample);
    }
}
