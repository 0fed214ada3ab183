//! Map outputs in the tier: how an application and a block are named, and the index of an output.
//!
//! One map task writes one file: the bytes of all reducers, one partition behind the other, then
//! the index. The index comes last, so a file whose writer died has none and is never mistaken for
//! an output. It is `n + 1` offsets of `n` partitions, `n`, and [`INDEX_MAGIC`], as little-endian
//! numbers of eight bytes.

use rustix::fs::fstat;
use rustix::io::pread;
use serde::{Deserialize, Serialize};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

/// Last eight bytes of a map output.
const INDEX_MAGIC: u64 = u64::from_le_bytes(*b"fbyindex");

const WORD: u64 = 8;

/// Most blocks in one request: their names fit a packet, and each may need a descriptor.
pub const BLOCKS_MAX: usize = 64;

/// An application whose map outputs agents keep.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct App {
    /// Names it among all applications; nobody can guess it.
    pub token: String,
    /// The node of its driver or master, whose agent knows whether it lives.
    pub origin: String,
    /// The TCP port at which its master listens on that node as long as the application lives.
    /// `None`: it lives as long as a connection of its driver.
    pub master_port: Option<u16>,
}

/// Adjacent partitions of one map output, or a part of their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// The shuffle.
    pub shuffle: u32,
    /// The map task's attempt: a speculative duplicate has another.
    pub map: u64,
    /// First partition.
    pub first: u32,
    /// One after the last.
    pub end: u32,
    /// Bytes of them to leave out at the start.
    pub from: u64,
    /// Most bytes to answer with.
    pub most: u64,
}

/// Where a block is: `len` bytes from `offset` of the file of number `file` in the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockPlace {
    /// Number of the descriptor.
    pub file: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Bytes of the partitions, of which these are a part.
    pub total: u64,
}

impl Block {
    /// Name of the output's file within its application.
    pub fn output_name(&self) -> Vec<u8> {
        output_name(self.shuffle, self.map)
    }

    /// The requested bytes of the partitions, whose range in their file is `partitions`.
    pub fn part_of(&self, partitions: &Range<u64>) -> Range<u64> {
        let from = partitions.start.saturating_add(self.from).min(partitions.end);
        from..from.saturating_add(self.most).min(partitions.end)
    }
}

/// Name of a map output's file within its application.
pub fn output_name(shuffle: u32, map: u64) -> Vec<u8> {
    format!("shuffle {shuffle} {map}").into_bytes()
}

/// The shuffle of a file of that name.
pub fn shuffle_of(name: &[u8]) -> Option<u32> {
    let mut words = std::str::from_utf8(name).ok()?.strip_prefix("shuffle ")?.split(' ');
    words.next()?.parse().ok()
}

/// The index of an output whose partitions have these lengths in bytes.
pub fn index(lengths: &[u64]) -> Vec<u8> {
    let mut end = 0u64;
    let offsets = lengths.iter().map(|len| {
        end += len;
        end
    });
    let words = std::iter::once(0).chain(offsets).chain([lengths.len() as u64, INDEX_MAGIC]);
    words.flat_map(u64::to_le_bytes).collect()
}

fn word(output: impl AsFd, at: u64) -> io::Result<u64> {
    let mut bytes = [0; WORD as usize];
    match pread(&output, &mut bytes, at)? == bytes.len() {
        true => Ok(u64::from_le_bytes(bytes)),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Whether the writer of an output has ended it.
///
/// # Errors
/// Errors of the file.
pub fn is_committed(output: impl AsFd) -> io::Result<bool> {
    let size = fstat(&output)?.st_size as u64;
    Ok(size >= 3 * WORD && word(&output, size - WORD)? == INDEX_MAGIC)
}

/// Where the partitions `first..end` are in an output.
///
/// # Errors
/// `NotFound`: the output is not committed, or has no such partition. Those of the file.
pub fn locate(output: impl AsFd, first: u32, end: u32) -> io::Result<Range<u64>> {
    let size = fstat(&output)?.st_size as u64;
    let absent = |what: &str| Err(io::Error::new(io::ErrorKind::NotFound, what.to_owned()));
    let word = |at: u64| word(&output, at);
    if !is_committed(&output)? {
        return absent("the map output was never committed");
    }
    let partitions = word(size - 2 * WORD)?;
    let data =
        partitions.checked_add(3).and_then(|words| words.checked_mul(WORD)).and_then(|n| size.checked_sub(n));
    let Some(data) = data else { return absent("the index of the map output is damaged") };
    if first >= end || u64::from(end) > partitions {
        return absent("the map output has no such partition");
    }
    let range = word(data + u64::from(first) * WORD)?..word(data + u64::from(end) * WORD)?;
    if range.start > range.end || range.end > data {
        return absent("the index of the map output is damaged");
    }
    Ok(range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn output(bytes: &[u8]) -> std::fs::File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn a_committed_output_has_its_partitions_and_no_others() {
        let file = output(&[b"aaabb", &index(&[3, 0, 2])[..]].concat());
        assert_eq!(locate(&file, 0, 1).unwrap(), 0..3);
        assert_eq!(locate(&file, 1, 2).unwrap(), 3..3);
        assert_eq!(locate(&file, 1, 3).unwrap(), 3..5);
        for (first, end) in [(0, 4), (3, 4), (2, 2), (2, 1)] {
            assert_eq!(locate(&file, first, end).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn what_was_not_committed_is_an_error_and_never_empty() {
        let index = index(&[3, 2]);
        for bytes in [&b""[..], b"aaabb", &index[..index.len() - 1], &index[..]] {
            let found = locate(output(bytes), 0, 1);
            assert_eq!(found.unwrap_err().kind(), io::ErrorKind::NotFound, "{} bytes", bytes.len());
        }
    }

    #[test]
    fn a_part_of_a_block_ends_with_it() {
        let block = |from, most| Block { shuffle: 0, map: 0, first: 0, end: 1, from, most };
        assert_eq!(block(0, u64::MAX).part_of(&(10..30)), 10..30);
        assert_eq!(block(5, 8).part_of(&(10..30)), 15..23);
        assert_eq!(block(15, 8).part_of(&(10..30)), 25..30);
        assert_eq!(block(u64::MAX, 8).part_of(&(10..30)), 30..30);
    }

    #[test]
    fn the_blocks_of_a_request_have_a_descriptor_each() {
        assert_eq!(BLOCKS_MAX, crate::MAX_FDS);
    }

    #[test]
    fn names_contain_their_shuffle() {
        assert_eq!(shuffle_of(&output_name(7, 1 << 40)), Some(7));
        assert_eq!(shuffle_of(b"image of 7"), None);
    }
}
