//! Serving pages to peers.
//!
//! | file | what it does |
//! | --- | --- |
//! | `server` | connections of peers, and their requests |
//! | `run` | adjacent small pages that are one request |
//! | `guest` | files that their programs write here |
//! | `files` | files open for them |
//!
//! The other side, which requests pages from peers, is part of [`crate::fetch`].

pub mod files;
mod guest;
mod run;
pub mod server;
