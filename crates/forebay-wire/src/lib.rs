//! What clients and agents say to each other.
//!
//! `message` has the words, `channel` carries them over a Unix socket together with file descriptors. On one node a
//! message is one packet (`SOCK_SEQPACKET`): a packet arrives whole or not at all, with its descriptors, so there is no
//! framing to lose and a garbled packet spoils nothing but itself. Bodies are postcard; anything that does not decode
//! is refused, never guessed at.

pub mod channel;
pub mod message;

pub use channel::{Channel, MAX_FDS, MAX_PACKET_BYTES, Received};
pub use message::*;
