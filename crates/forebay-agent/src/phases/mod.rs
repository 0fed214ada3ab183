//! The I/O phases of HPC jobs on this node's board, and what follows from them.
//!
//! | file | what it does |
//! | --- | --- |
//! | `board` | drives the machine of the policy crate with what programs and peers say |
//! | `observed` | reads what the observer library counts of programs |
//! | `change_limit` | how often a user may change the board |
//! | `spread` | notifies the other nodes of what is on the board |
//! | `waits` | programs that wait until they may write a step |
//! | `words` | translates between the machine and the wire |
//!
//! The brake works from node to node, without the coordinator: a phase of this node that falls
//! behind brakes here immediately, and the peers hear of it on connections that were made when the
//! phase began.

pub mod board;
mod change_limit;
mod observed;
pub mod spread;
mod waits;
mod words;
