//! What happens when things go wrong: real agents, real clients in processes of their own, real
//! faults.
//!
//! One test program, so that it links once; a file for each theme; `common` starts and kills
//! agents, slow file systems and client processes. Every test asserts, by a counter or by the state
//! of a process, that its fault has happened: a test of a crash that crashed nothing fails. There
//! are no sleeps for synchronisation: a test that waits, waits for something that it can observe,
//! with a deadline far beyond what any machine needs.
//!
//! Needs root (second users, FUSE). `FOREBAY_SKIP_FUSE=1` leaves out the tests on the slow file
//! system.

#![allow(clippy::unwrap_used, reason = "all of this program is tests, helpers included")]

mod abuse;
mod access;
mod append;
mod broadcast;
mod changes;
mod checkpoints;
mod churn;
mod cluster;
mod columnar;
mod common;
mod coordinator;
mod copies;
mod copies_on_disk;
mod crash;
mod dirty_elsewhere;
mod disk_level;
mod doctor_cluster;
mod drain;
mod elected;
mod frozen;
mod giving_way;
mod guests;
mod host;
mod images;
mod intercept;
#[path = "../kit/mod.rs"]
mod kit;
mod late_answers;
mod leaks;
mod life;
mod loads;
mod mapped;
mod mount;
mod mount_names;
mod mount_pages;
mod mount_rights;
mod mount_users;
mod mount_write_back;
mod names;
mod orders;
mod pace_violation;
mod paused;
mod peer_words;
mod peers;
mod pfs;
mod phases;
mod planned;
mod roles;
mod room;
mod run;
mod shares;
mod shuffles;
mod site;
mod spread;
mod stamps;
mod stat;
mod steps;
mod task_waits;
mod unmounted;
mod verify;
mod wire;
mod write_back;
mod write_back_random;
mod writers;

/// Not a test: the body of the client processes, see `common::Helper`.
#[test]
#[ignore = "started by the other tests as a process of its own"]
fn helper_process() {
    roles::run();
}
