//! The RAM tier: cached file versions as files on tmpfs.
//!
//! Mechanism only. `tier` finds or makes the tmpfs and the copies in it, `copy` is one cached
//! version with its residency map, `word` is one entry of that map, `budget` counts every byte the
//! agent uses, `ring` and `staging` are the memory that a client shares with the agent. `dirty` is
//! a file that programs write before the PFS has it, `dirty_index` shows programs which there are,
//! and `dirty_log` keeps them on a disk. `disk_level` keeps evicted pages there. What to fetch,
//! keep or release is decided elsewhere.

pub mod bounded;
pub mod budget;
pub mod copy;
pub mod dirty;
pub mod dirty_index;
pub mod dirty_log;
pub mod disk_level;
pub mod full_io;
pub mod keeper;
pub mod map;
mod mounting;
pub mod ring;
pub mod staging;
mod state;
pub mod tier;
pub mod word;

pub use budget::{Budget, Class, Reservation};
pub use copy::{CopyFile, CopyIdentity, CopyView};
pub use tier::{Backing, Tier};
pub use word::{State, Word};

/// Unit in which tmpfs gives and takes memory for parts of a page: 4 KiB.
pub const BLOCK_BYTES: u64 = 4096;

/// `bytes` rounded up to whole blocks.
pub fn blocks_bytes(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES) * BLOCK_BYTES
}
