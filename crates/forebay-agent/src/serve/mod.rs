//! Serving the programs of this node: connections, and a file for each kind of request.

pub mod admin;
pub mod closer;
pub mod connection;
pub mod open;
pub mod read;
pub mod scratch;
pub mod write;
