//! Which pages are kept on a disk below the memory, and where.
//!
//! Pages that are evicted from memory are written one behind the other into segments, and the
//! oldest segment is dropped when the limit on segments is reached. A page that is evicted again is
//! not written again unless its bytes are about to be dropped: a page that is used returns to
//! memory and is evicted again, so it stays, as with least recently used, and the disk sees long
//! writes only.
//!
//! A disk that is slower than the PFS serves nothing ([`Speed`]): it must not slow down any read.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

/// Unit of offsets.
const BLOCK_BYTES: u64 = 4096;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The segment's number.
    pub segment: u32,
    /// In blocks of 4 KiB.
    block: u32,
}

impl Place {
    /// A place at `offset` of a segment, a multiple of 4 KiB.
    pub fn new(segment: u32, offset: u64) -> Self {
        Place { segment, block: (offset / BLOCK_BYTES) as u32 }
    }

    /// Bytes before it in the segment.
    pub fn offset(self) -> u64 {
        u64::from(self.block) * BLOCK_BYTES
    }
}

#[derive(Debug)]
struct Segment {
    number: u32,
    /// Its pages, including those that are elsewhere by now.
    keys: Vec<u64>,
}

/// The pages on the disk, by keys that their owner chooses.
#[derive(Debug)]
pub struct Ring {
    segment_bytes: u64,
    segments_max: usize,
    pages_max: usize,
    /// Segments, oldest first; the last one is being written.
    segments: VecDeque<Segment>,
    next_number: u32,
    /// Bytes of the last segment.
    written: u64,
    places: BTreeMap<u64, Place>,
}

impl Ring {
    /// An empty ring of at most `segments_max` segments of `segment_bytes` bytes, with at most
    /// `pages_max` pages.
    ///
    /// # Panics
    /// If one of them is 0.
    pub fn new(segments_max: usize, segment_bytes: u64, pages_max: usize) -> Self {
        assert!(segments_max > 0 && segment_bytes > 0 && pages_max > 0, "a disk level without room");
        Ring {
            segment_bytes,
            segments_max,
            pages_max,
            segments: VecDeque::new(),
            next_number: 0,
            written: segment_bytes,
            places: BTreeMap::new(),
        }
    }

    /// Number of pages.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are no pages.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns where a page is, if it is on the disk.
    pub fn find(&self, key: u64) -> Option<Place> {
        self.places.get(&key).copied()
    }

    /// Returns whether an evicted page should be written: it is not on the disk, or in the older
    /// half of a full ring.
    pub fn wants(&self, key: u64) -> bool {
        let newer_half = self.segments.len().saturating_sub(self.segments_max.div_ceil(2));
        let first_kept = self.segments.get(newer_half).map_or(0, |segment| segment.number);
        let is_full = self.segments.len() >= self.segments_max;
        self.find(key).is_none_or(|place| is_full && place.segment < first_kept)
    }

    /// Reserves a place for a page of `bytes`, and returns the segments that have to be dropped
    /// before it is written; `None` if it is longer than a segment.
    pub fn place(&mut self, bytes: u64) -> Option<(Place, Vec<u32>)> {
        if bytes > self.segment_bytes {
            return None;
        }
        let mut gone = Vec::new();
        if self.written + bytes > self.segment_bytes {
            while self.segments.len() >= self.segments_max {
                gone.extend(self.drop_oldest());
            }
            self.segments.push_back(Segment { number: self.next_number, keys: Vec::new() });
            self.next_number += 1;
            self.written = 0;
        }
        while self.places.len() >= self.pages_max && self.segments.len() > 1 {
            gone.extend(self.drop_oldest());
        }
        let segment = self.segments.back().map_or(0, |segment| segment.number);
        let place = Place::new(segment, self.written);
        self.written += bytes;
        Some((place, gone))
    }

    /// Records that a page was written, unless its segment has been dropped meanwhile.
    pub fn landed(&mut self, key: u64, place: Place) {
        if let Some(segment) = self.segments.iter_mut().rev().find(|s| s.number == place.segment) {
            segment.keys.push(key);
            self.places.insert(key, place);
        }
    }

    /// Adopts segments of an earlier agent, oldest first: new ones are numbered after them. Returns
    /// those beyond the limit.
    pub fn adopt(&mut self, numbers: &[u32]) -> Vec<u32> {
        let too_many = numbers.len().saturating_sub(self.segments_max);
        for number in &numbers[too_many..] {
            self.segments.push_back(Segment { number: *number, keys: Vec::new() });
            self.next_number = self.next_number.max(number + 1);
        }
        // The last one is no longer written.
        self.written = self.segment_bytes;
        numbers[..too_many].to_vec()
    }

    /// Forgets a page that is no longer on the disk, or is damaged.
    pub fn forget(&mut self, key: u64) {
        self.places.remove(&key);
    }

    /// Drops the oldest segment and its pages; returns its number.
    pub fn drop_oldest(&mut self) -> Option<u32> {
        let Segment { number, keys } = self.segments.pop_front()?;
        for key in keys {
            if self.places.get(&key).is_some_and(|place| place.segment == number) {
                self.places.remove(&key);
            }
        }
        if self.segments.is_empty() {
            self.written = self.segment_bytes;
        }
        Some(number)
    }

    /// Drops all segments; returns their numbers.
    pub fn clear(&mut self) -> Vec<u32> {
        core::iter::from_fn(|| self.drop_oldest()).collect()
    }
}

/// Each later observation multiplies the weight of an observation by this.
const KEPT: f64 = 1.0 - 1.0 / 16.0;

/// A disk that is slower than the PFS is tried for one page in this many.
const TRIED_EVERY: u32 = 64;

/// Whether the disk is worth reading.
#[derive(Clone, Debug, Default)]
pub struct Speed {
    weight: f64,
    bytes: f64,
    ns: f64,
    passed_over: u32,
}

impl Speed {
    /// Records that a read of `bytes` took `took_ns`.
    pub fn observe(&mut self, bytes: u64, took_ns: u64) {
        self.weight = self.weight * KEPT + 1.0;
        self.bytes = self.bytes * KEPT + bytes as f64;
        self.ns = self.ns * KEPT + took_ns as f64;
    }

    /// Returns the recent time of a read of `bytes`, in nanoseconds; 0 if unknown.
    pub fn time_ns(&self, bytes: u64) -> u64 {
        if self.bytes > 0.0 { (self.ns / self.bytes * bytes as f64) as u64 } else { 0 }
    }

    /// Returns whether `bytes` should be read from the disk, where the PFS would take `pfs_ns` (0:
    /// unknown).
    pub fn is_worth(&mut self, bytes: u64, pfs_ns: u64) -> bool {
        if pfs_ns == 0 || self.time_ns(bytes) <= pfs_ns {
            return true;
        }
        self.passed_over = (self.passed_over + 1) % TRIED_EVERY;
        self.passed_over == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEGMENT: u64 = 64 << 10;

    fn write(ring: &mut Ring, key: u64) -> Vec<u32> {
        let (place, gone) = ring.place(16 << 10).unwrap();
        ring.landed(key, place);
        gone
    }

    #[test]
    fn the_oldest_go_and_what_is_evicted_again_in_time_stays() {
        let mut ring = Ring::new(4, SEGMENT, 1000);
        for key in 0..16 {
            assert!(ring.wants(key) && write(&mut ring, key).is_empty());
        }
        assert!(!ring.wants(15), "it is among the newer ones");
        assert!(ring.wants(0), "it is about to go");
        assert_eq!(write(&mut ring, 0), [0]);
        assert!(ring.find(0).is_some() && ring.find(1).is_none());
        assert_eq!(ring.len(), 13);
        assert!(ring.place(SEGMENT + 1).is_none());
    }

    #[test]
    fn an_earlier_agents_segments_are_older_than_new_ones() {
        let mut ring = Ring::new(2, SEGMENT, 1000);
        assert_eq!(ring.adopt(&[3, 5, 9]), [3]);
        ring.landed(1, Place::new(5, 0));
        ring.landed(2, Place::new(9, 4096));
        ring.landed(3, Place::new(3, 0));
        assert_eq!((ring.find(2).unwrap().offset(), ring.find(3)), (4096, None));
        assert_eq!(write(&mut ring, 4), [5]);
        assert_eq!(ring.find(4).unwrap(), Place::new(10, 0));
        assert_eq!((ring.find(1), ring.len()), (None, 2));
        assert_eq!(ring.clear(), [9, 10]);
        assert!(ring.is_empty() && write(&mut ring, 1).is_empty());
    }

    #[test]
    fn a_disk_slower_than_the_pfs_is_tried_now_and_then() {
        let mut speed = Speed::default();
        assert!(speed.is_worth(1 << 20, 5), "nothing is known");
        for _ in 0..50 {
            speed.observe(1 << 20, 10_000_000);
        }
        assert!(speed.is_worth(1 << 20, 20_000_000) && speed.is_worth(1 << 20, 0));
        let tried = (0..TRIED_EVERY * 10).filter(|_| speed.is_worth(1 << 20, 5_000_000)).count();
        assert_eq!(tried, 10);
        for _ in 0..100 {
            speed.observe(1 << 20, 1_000_000);
        }
        assert!(speed.is_worth(1 << 20, 5_000_000), "it has recovered");
    }

    proptest! {
        /// Places of existing pages do not overlap, and the bounds hold.
        #[test]
        fn places_are_disjoint_and_bounded(pages in prop::collection::vec((0u64..40, 1u64..9), 1..400)) {
            let mut ring = Ring::new(5, SEGMENT, 30);
            let mut lengths = BTreeMap::new();
            let mut there: Vec<u32> = Vec::new();
            for (key, blocks) in pages {
                let (place, gone) = ring.place(blocks * BLOCK_BYTES).unwrap();
                there.retain(|number| !gone.contains(number));
                if there.last() != Some(&place.segment) {
                    there.push(place.segment);
                }
                ring.landed(key, place);
                lengths.insert(key, blocks);
                prop_assert!(there.len() <= 5 && place.offset() + blocks * BLOCK_BYTES <= SEGMENT);
                let mut taken: Vec<_> = (0..40)
                    .filter_map(|key| ring.find(key).map(|p| (p.segment, p.block, lengths[&key] as u32)))
                    .collect();
                taken.sort_unstable();
                prop_assert!(taken.iter().all(|(segment, ..)| there.contains(segment)));
                prop_assert!(taken.windows(2).all(|w| w[0].0 < w[1].0 || w[0].1 + w[0].2 <= w[1].1));
            }
        }
    }
}
