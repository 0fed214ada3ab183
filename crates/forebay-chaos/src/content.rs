//! Bytes that show which write they came from, and the content of a file as the list of writes that
//! made it.
//!
//! Every aligned word of eight bytes is an invertible mixture of the number of its write and
//! its place in the file. So a reader needs no copy of what it should find: it decodes what it read
//! into "bytes 0 to 4096 are of write 17", and the oracle compares lists of writes, not bytes. A
//! word of zeros was never written, or was punched.

use serde::{Deserialize, Serialize};

/// Number of a write; 0 stands for zeros.
pub type WriteId = u32;

/// A read that decodes into more parts than this is not content of ours. A store to a mapping that
/// was interrupted leaves two in each page.
const PARTS_MAX: usize = 1 << 18;

/// Bytes that could not be decoded are kept in parts of at most this length.
const RAW_BYTES: usize = 64;

const ODD_1: u64 = 0xbf58_476d_1ce4_e5b9;
const ODD_2: u64 = 0x94d0_49bb_1331_11eb;

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 32)).wrapping_mul(ODD_1);
    x = (x ^ (x >> 32)).wrapping_mul(ODD_2);
    x ^ (x >> 32)
}

/// The inverse of an odd number modulo 2^64, by Newton's iteration.
const fn inverse(odd: u64) -> u64 {
    let mut x = odd;
    let mut step = 0;
    while step < 6 {
        x = x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x)));
        step += 1;
    }
    x
}

fn unmix(mut x: u64) -> u64 {
    x = (x ^ (x >> 32)).wrapping_mul(const { inverse(ODD_2) });
    x = (x ^ (x >> 32)).wrapping_mul(const { inverse(ODD_1) });
    x ^ (x >> 32)
}

fn word(write: WriteId, index: u64) -> [u8; 8] {
    match write {
        0 => [0; 8],
        _ => mix(u64::from(write) << 32 | (index & 0xffff_ffff)).to_le_bytes(),
    }
}

fn write_of(bytes: [u8; 8], index: u64) -> Option<WriteId> {
    let word = u64::from_le_bytes(bytes);
    if word == 0 {
        return Some(0);
    }
    let plain = unmix(word);
    let write = (plain >> 32) as WriteId;
    (write != 0 && plain & 0xffff_ffff == index & 0xffff_ffff).then_some(write)
}

/// The byte at `offset` of a write.
pub fn byte(write: WriteId, offset: u64) -> u8 {
    word(write, offset / 8)[(offset % 8) as usize]
}

/// The bytes of a write at `offset`.
pub fn fill(write: WriteId, offset: u64, buffer: &mut [u8]) {
    let lead = ((8 - offset % 8) % 8).min(buffer.len() as u64) as usize;
    let (head, rest) = buffer.split_at_mut(lead);
    head.iter_mut().enumerate().for_each(|(i, b)| *b = byte(write, offset + i as u64));
    let first = (offset + lead as u64) / 8;
    for (i, chunk) in rest.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(write, first + i as u64)[..chunk.len()]);
    }
}

/// Where some bytes come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// This write, or zeros.
    Write(WriteId),
    /// A part of a word, or a word of two writes: the bytes themselves.
    Raw(Vec<u8>),
}

/// The bytes from `start` to `end`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub start: u64,
    pub end: u64,
    pub source: Source,
}

impl Part {
    fn byte(&self, at: u64) -> u8 {
        match &self.source {
            Source::Write(write) => byte(*write, at),
            Source::Raw(bytes) => bytes[(at - self.start) as usize],
        }
    }

    /// The part of this part within the bounds.
    fn clipped(&self, start: u64, end: u64) -> Option<Part> {
        let (from, to) = (self.start.max(start), self.end.min(end));
        (from < to).then(|| Part {
            start: from,
            end: to,
            source: match &self.source {
                Source::Write(write) => Source::Write(*write),
                Source::Raw(bytes) => {
                    Source::Raw(bytes[(from - self.start) as usize..(to - self.start) as usize].to_vec())
                }
            },
        })
    }
}

/// What was read at `offset`, as parts.
pub fn decode(buffer: &[u8], offset: u64) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut at = 0;
    while at < buffer.len() && parts.len() < PARTS_MAX {
        let place = offset + at as u64;
        let whole: Option<[u8; 8]> = match place % 8 {
            0 => buffer.get(at..at + 8).and_then(|w| w.try_into().ok()),
            _ => None,
        };
        let len = if whole.is_some() { 8 } else { (8 - place % 8) as usize }.min(buffer.len() - at);
        match whole.and_then(|word| write_of(word, place / 8)) {
            Some(write) => push_write(&mut parts, place, write),
            None => push_raw(&mut parts, place, &buffer[at..at + len]),
        }
        at += len;
    }
    parts
}

fn push_write(parts: &mut Vec<Part>, at: u64, write: WriteId) {
    match parts.last_mut() {
        Some(last) if last.end == at && last.source == Source::Write(write) => last.end += 8,
        _ => parts.push(Part { start: at, end: at + 8, source: Source::Write(write) }),
    }
}

fn push_raw(parts: &mut Vec<Part>, at: u64, bytes: &[u8]) {
    let end = at + bytes.len() as u64;
    if let Some(Part { end: last, source: Source::Raw(raw), .. }) = parts.last_mut()
        && raw.len() < RAW_BYTES
        && *last == at
    {
        raw.extend_from_slice(bytes);
        *last = end;
        return;
    }
    parts.push(Part { start: at, end, source: Source::Raw(bytes.to_vec()) });
}

/// The content of a file: parts from its start to its end, without gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    parts: Vec<Part>,
}

impl State {
    /// What was found in a file, from its start.
    pub fn found(parts: Vec<Part>) -> Self {
        State { parts }
    }

    pub fn size(&self) -> u64 {
        self.parts.last().map_or(0, |p| p.end)
    }

    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Puts a write over `start` to `end`; the bytes between the end of the file and `start` become
    /// zeros.
    pub fn put(&mut self, start: u64, end: u64, write: WriteId) {
        if start >= end {
            return;
        }
        let size = self.size();
        if size < start {
            self.parts.push(Part { start: size, end: start, source: Source::Write(0) });
        }
        let before = self.parts.iter().filter_map(|p| p.clipped(0, start));
        let after = self.parts.iter().filter_map(|p| p.clipped(end, u64::MAX));
        let new = Part { start, end, source: Source::Write(write) };
        self.parts = before.chain([new]).chain(after).collect();
    }

    /// Truncates the file, or lengthens it by zeros.
    pub fn truncate(&mut self, size: u64) {
        let now = self.size();
        if size > now {
            self.parts.push(Part { start: now, end: size, source: Source::Write(0) });
        } else {
            self.parts = self.parts.iter().filter_map(|p| p.clipped(0, size)).collect();
        }
    }

    /// Makes zeros of the file's bytes between the bounds.
    pub fn punch(&mut self, start: u64, end: u64) {
        self.put(start, end.min(self.size()), 0);
    }

    /// Returns whether both have the same bytes.
    pub fn equals(&self, other: &State) -> bool {
        self.size() == other.size() && self.parts.iter().all(|p| first_foreign(p, &[other], false).is_none())
    }

    fn part_at(&self, at: u64) -> Option<&Part> {
        let next = self.parts.partition_point(|p| p.end <= at);
        self.parts.get(next)
    }
}

/// The first byte of `part` that is in none of these contents at its place; zeros may stand
/// anywhere if `zeros`.
pub fn first_foreign(part: &Part, of: &[&State], zeros: bool) -> Option<u64> {
    let mut at = part.start;
    while at < part.end {
        // As many bytes as possible at a time, where a content has the same write.
        let same =
            of.iter().filter_map(|s| s.part_at(at)).filter(|p| matches_write(p, part)).map(|p| p.end).max();
        if let Some(end) = same {
            at = end;
            continue;
        }
        if zeros && part.source == Source::Write(0) {
            return None;
        }
        let seen = part.byte(at);
        let known = of.iter().filter_map(|s| s.part_at(at)).any(|p| p.byte(at) == seen);
        if !(known || zeros && seen == 0) {
            return Some(at);
        }
        at += 1;
    }
    None
}

fn matches_write(has: &Part, seen: &Part) -> bool {
    matches!((&has.source, &seen.source), (Source::Write(a), Source::Write(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(state: &State) -> Vec<u8> {
        (0..state.size()).map(|at| state.part_at(at).map_or(0, |p| p.byte(at))).collect()
    }

    #[test]
    fn a_word_names_its_write_and_its_place() {
        for (write, index) in [(1, 0), (7, 1), (u32::MAX, 12_345_678)] {
            assert_eq!(write_of(word(write, index), index), Some(write));
            assert_eq!(write_of(word(write, index), index + 1), None);
        }
        assert_eq!(write_of([0; 8], 9), Some(0));
    }

    #[test]
    fn a_large_file_with_half_of_each_page_stored_is_decoded_to_its_end() {
        let words = |page: u64| (0..512).map(move |i| page * 512 + i);
        let half = |i: u64| if i % 512 < 256 { word(7, i) } else { [0; 8] };
        let bytes: Vec<u8> = (0..8192).flat_map(words).flat_map(half).collect();
        let parts = decode(&bytes, 0);
        assert_eq!((parts.len(), parts.last().map(|p| p.end)), (16_384, Some(bytes.len() as u64)));
    }

    #[test]
    fn what_is_put_is_decoded_and_every_other_byte_is_foreign() {
        let mut state = State::default();
        state.put(0, 1000, 1);
        state.put(101, 333, 2);
        state.truncate(2000);
        state.put(1500, 2003, 3);
        state.punch(600, 700);
        let mut bytes = bytes_of(&state);
        for (start, end) in [(0, 2003), (5, 2000), (99, 107), (640, 641)] {
            for part in decode(&bytes[start..end], start as u64) {
                assert_eq!(first_foreign(&part, &[&state], false), None, "{part:?}");
            }
        }
        for at in [0, 102, 650, 1200, 1999, 2002] {
            bytes[at] ^= 0x55;
            let foreign = decode(&bytes, 0).iter().find_map(|p| first_foreign(p, &[&state], false));
            assert_eq!(foreign, Some(at as u64));
            bytes[at] ^= 0x55;
        }
    }

    #[test]
    fn a_mixture_is_of_two_contents_and_of_neither() {
        let (mut old, mut new) = (State::default(), State::default());
        old.put(0, 4096, 1);
        new.put(0, 4096, 2);
        let mut mixed = bytes_of(&old);
        mixed[1003..].copy_from_slice(&bytes_of(&new)[1003..]);
        let foreign = |of: &[&State]| decode(&mixed, 0).iter().find_map(|p| first_foreign(p, of, false));
        assert_eq!(foreign(&[&old, &new]), None);
        assert!(foreign(&[&old]).is_some_and(|at| at >= 1003));
        assert!(foreign(&[&new]).is_some_and(|at| at < 1003));
    }

    #[test]
    fn fill_and_byte_agree_at_any_offset() {
        for offset in [0, 1, 7, 8, 4093] {
            let mut buffer = [0; 37];
            fill(9, offset, &mut buffer);
            let wanted: Vec<u8> = (0..37).map(|i| byte(9, offset + i)).collect();
            assert_eq!(buffer.to_vec(), wanted);
        }
    }
}
