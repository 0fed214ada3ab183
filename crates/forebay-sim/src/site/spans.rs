//! Which parts of a file are in the tier, according to what requests reported.

use std::collections::BTreeMap;

/// Disjoint ranges of bytes.
#[derive(Clone, Debug, Default)]
pub struct Spans(BTreeMap<u64, u64>);

impl Spans {
    /// Adds the range from `from` to `to`.
    pub fn add(&mut self, mut from: u64, mut to: u64) {
        while let Some((&start, &end)) = self.0.range(..=to).next_back().filter(|(_, end)| **end >= from) {
            self.0.remove(&start);
            (from, to) = (from.min(start), to.max(end));
        }
        if from < to {
            self.0.insert(from, to);
        }
    }

    /// Bytes from `from` to `to` that are in the ranges.
    pub fn bytes_in(&self, from: u64, to: u64) -> u64 {
        let reaching = self.0.range(..to).rev().take_while(|(_, end)| **end > from);
        reaching.map(|(start, end)| end.min(&to) - start.max(&from)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::Spans;

    #[test]
    fn ranges_that_meet_or_overlap_are_one() {
        let mut spans = Spans::default();
        for (from, to) in [(10, 20), (40, 50), (20, 25), (5, 12), (60, 60)] {
            spans.add(from, to);
        }
        assert_eq!(spans.0.into_iter().collect::<Vec<_>>(), [(5, 25), (40, 50)]);
    }

    #[test]
    fn bytes_count_once_and_only_within_the_range() {
        let mut spans = Spans::default();
        [(0, 10), (5, 20), (30, 40)].into_iter().for_each(|(from, to)| spans.add(from, to));
        assert_eq!([spans.bytes_in(0, 100), spans.bytes_in(15, 35), spans.bytes_in(20, 30)], [30, 10, 0]);
    }
}
