//! One entry of a residency map: 64 bits that a reader checks before and after it copies a page.
//!
//! ```text
//! 63            32  31     30     29        8 7      0
//! [  generation  ][remote][mapped][ valid blocks ][ state ]
//! ```
//! *valid blocks* counts the 4 KiB blocks from the start of the page that hold the file's bytes; it
//! only grows while the generation stands, so a page can be read from its front while its end is
//! still being fetched. *generation* advances whenever valid bytes go away. A reader that sees
//! enough valid blocks, copies, and then sees the same generation has copied the file's bytes: the
//! agent changes the word before it punches the page, and fills a page only under a new generation.
//!
//! *remote* is for the agent alone: the page came from its owner, another node. It is here so that
//! the agent's successor knows it. It is set on whole pages only, and in the highest bit of what
//! once were valid blocks: a reader that does not know it sees a page with more blocks than it has,
//! which is as good as whole.
//!
//! *mapped* is for the agent alone, too: it has let a client map the page. The client's lock on the
//! copy survives the agent, and so does this bit: the successor keeps the pages that have both. A
//! lock alone proves nothing, since any reader can take one.

use crate::BLOCK_BYTES;

/// What the agent is doing with a page. Readers ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Takes no memory.
    Absent = 0,
    /// Being fetched; what is valid may be read.
    Filling = 1,
    /// Whole.
    Resident = 2,
    /// Withdrawn; its memory is being released.
    Leaving = 3,
}

/// A residency word, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// Advances when valid bytes go away.
    pub generation: u32,
    /// Blocks valid from the start of the page; at most 2^22 - 1 (16 GiB).
    pub valid_blocks: u32,
    /// The page belongs to another node.
    pub remote: bool,
    /// A client may map the page.
    pub mapped: bool,
    /// State of the page.
    pub state: State,
}

/// Largest number of valid blocks that a word can hold.
pub const VALID_BLOCKS_MAX: u32 = (1 << 22) - 1;

const REMOTE: u64 = 1 << 31;
const MAPPED: u64 = 1 << 30;

impl Word {
    /// The word of a page that never was.
    pub const ABSENT: Word =
        Word { generation: 0, valid_blocks: 0, remote: false, mapped: false, state: State::Absent };

    /// Unpacks a word. An unknown state, which only a damaged tier can hold, reads as
    /// [`State::Absent`] with nothing valid.
    pub fn unpack(raw: u64) -> Self {
        let generation = (raw >> 32) as u32;
        let valid_blocks = (raw >> 8) as u32 & VALID_BLOCKS_MAX;
        let state = match raw as u8 {
            1 => State::Filling,
            2 => State::Resident,
            3 => State::Leaving,
            _ => return Word { generation, ..Word::ABSENT },
        };
        Word { generation, valid_blocks, remote: raw & REMOTE != 0, mapped: raw & MAPPED != 0, state }
    }

    /// Packs the word.
    pub fn pack(self) -> u64 {
        assert!(
            self.valid_blocks <= VALID_BLOCKS_MAX,
            "a page of {} blocks does not fit a word",
            self.valid_blocks
        );
        let remote = if self.remote { REMOTE } else { 0 };
        let mapped = if self.mapped { MAPPED } else { 0 };
        u64::from(self.generation) << 32
            | remote
            | mapped
            | u64::from(self.valid_blocks) << 8
            | self.state as u64
    }

    /// The same page with nothing valid, under a new generation.
    pub fn withdrawn(self, state: State) -> Self {
        Word { generation: self.generation.wrapping_add(1), state, ..Word::ABSENT }
    }

    /// True if the first `bytes` of the page may be read.
    pub fn covers(self, bytes: u64) -> bool {
        u64::from(self.valid_blocks) * BLOCK_BYTES >= bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn packing_loses_nothing(generation: u32, remote: bool, mapped: bool, valid_blocks in 0..=VALID_BLOCKS_MAX, state in 1u8..4) {
            let state = [State::Filling, State::Resident, State::Leaving][usize::from(state) - 1];
            let word = Word { generation, valid_blocks, remote, mapped, state };
            assert_eq!(Word::unpack(word.pack()), word);
        }
    }

    #[test]
    fn a_fresh_file_of_zeros_is_absent() {
        assert_eq!(Word::unpack(0), Word::ABSENT);
        assert!(!Word::unpack(0).covers(1));
        assert!(Word::unpack(0).covers(0));
    }

    #[test]
    fn withdrawing_moves_the_generation_on_and_wraps() {
        let last = Word {
            generation: u32::MAX,
            valid_blocks: 5,
            remote: true,
            mapped: true,
            state: State::Resident,
        };
        assert_eq!(last.withdrawn(State::Leaving), Word { state: State::Leaving, ..Word::ABSENT });
    }
}
