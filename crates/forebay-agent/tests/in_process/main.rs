//! An agent in this process, on a PFS with faults, and clients of it: what needs no process of its
//! own to be killed, no FUSE and no other file system.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what a test asserts")]

mod faulty;
mod kit;
mod reads;
mod versions;
