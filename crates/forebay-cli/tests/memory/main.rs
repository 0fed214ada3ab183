//! The tier gives its memory to other programs, and takes it back: real agents and real programs in
//! a control group whose limit they share.
//!
//! `common` starts them, `faults` has what goes wrong around them, `sources` what the kernel's
//! files may say, and `named` the control groups that the configuration names.

#![allow(clippy::unwrap_used, reason = "all of this program is tests, helpers included")]

mod common;
mod faults;
mod named;
mod sources;

#[path = "../kit/mod.rs"]
mod kit;

use common::{CAPACITY, FILE, HOG, LIMIT, PATIENCE, Tier, group, start_hog, wait_for};
use forebay_client::{Client, ClientConfig};
use std::process::Command;

/// Takes memory step by step when the test calls it as a program of its own, and keeps it until its
/// input ends.
#[test]
fn hog() {
    common::be_hog();
}

#[test]
fn the_tier_gives_its_memory_to_a_program_beside_it_and_takes_it_back() {
    let Some(group) = group("forebay") else { return };
    let tier = Tier::start(&group, "forebay");
    let (mut hog, is_full) = start_hog(&group, HOG);
    assert!(is_full, "the program beside the tier was ended: {} kills", group.kills().unwrap());
    let status = tier.client.admin().memory().unwrap();
    assert!(status.capacity_bytes < LIMIT - HOG, "{status:?}");
    tier.read();
    assert_eq!(group.kills().unwrap(), 0);
    let counters = tier.client.admin().status().unwrap().counters;
    let released = counters.iter().find(|(name, _)| name == "released_bytes").unwrap().1;
    assert!(released > FILE - (LIMIT - HOG), "{released} bytes");

    drop(hog.0.stdin.take());
    assert!(hog.0.wait().unwrap().success());
    wait_for("the tier has its memory again", || (tier.capacity() == CAPACITY).then_some(()));
    tier.fill();
    let [above, below, growth] =
        ["above", "below", "growth"].map(|why| tier.counter(&format!("capacity_changes_{why}_total")));
    let all = tier.counter("capacity_changes_total");
    assert!(above + growth > 0 && below > 0, "{above}, {below}, {growth} of {all} changes");
    assert!(above + below + growth <= all, "{above}, {below}, {growth} of {all} changes");
    let resized = tier.replay();
    assert!(resized >= 2, "there and back: {resized}");
}

/// What the test above prevents does happen.
#[test]
fn beside_a_tier_that_keeps_its_memory_the_kernel_ends_a_process() {
    let swap = std::fs::read_to_string("/proc/swaps").unwrap().lines().count() > 1;
    let (Some(group), false) = (group("static"), swap) else {
        return eprintln!("left out: no memory controller can be used here, or there is swap space");
    };
    let tier = Tier::start(&group, "static");
    let (_hog, is_full) = start_hog(&group, HOG);
    assert!(group.kills().unwrap() > 0, "all of the memory was there: {is_full}");
    drop(tier);
}

/// A limit of a control group that is not a limit, and plenty of memory: nothing to do.
#[test]
fn an_agent_that_nobody_presses_keeps_its_capacity() {
    let dir = tempfile::tempdir().unwrap();
    let (pfs, state) = (dir.path().join("pfs"), dir.path().join("state"));
    std::fs::create_dir(&pfs).unwrap();
    let mut up = Command::new(kit::FOREBAY);
    up.args(["up", "--capacity", "37MiB", "--pfs"]).arg(&pfs).arg("--state-dir").arg(&state);
    assert!(up.env_remove("FOREBAY_SOCKET").output().unwrap().status.success());
    let config = ClientConfig {
        socket: Some(state.join("agent.sock")),
        quiet: true,
        deadline: PATIENCE,
        ..ClientConfig::default()
    };
    let client = Client::new(config);
    let seen = || client.admin().memory().unwrap();
    wait_for("the controller has looked for a second", || (seen().points.len() > 1).then_some(()));
    let (status, counters) = (seen(), client.admin().status().unwrap().counters);
    let mut down = Command::new(kit::FOREBAY);
    down.arg("--socket").arg(state.join("agent.sock")).args(["down", "--drop", "--state-dir"]).arg(&state);
    assert!(down.output().unwrap().status.success());
    let node = &status.places[0];
    if node.used_bytes as f64 > 0.9 * node.total_bytes as f64 {
        return eprintln!("left out: this machine's memory is in use");
    }
    assert_eq!(status.capacity_bytes, 37 << 20, "{status:?}");
    assert!(status.places.iter().all(|place| place.total_bytes <= node.total_bytes), "{status:?}");
    let changes = counters.iter().find(|(name, _)| name == "capacity_changes_total").unwrap().1;
    assert_eq!(changes, 0, "{status:?}");
}
