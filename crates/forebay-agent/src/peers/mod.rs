//! Serving pages to peers.
//!
//! | file | what it does |
//! | --- | --- |
//! | `server` | connections of peers, and their requests |
//! | `files` | files open for them |
//!
//! The other side, which requests pages from peers, is part of [`crate::fetch`].

pub mod files;
pub mod server;
