//! Serving pages to peers.

pub mod files;
pub mod server;
