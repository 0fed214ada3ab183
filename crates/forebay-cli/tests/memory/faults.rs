//! What goes wrong around a tier that gives way: a limit that is lowered, a stranger's tmpfs,
//! programs that map what has to go, and an agent that does not run.

use crate::common::{CAPACITY, FILE, HOG, LIMIT, MIB, Tier, end_hog, group, is_right, start_hog, wait_for};
use forebay_client::{Client, ClientConfig};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Share of a group's memory that may be in use, in percent.
const TARGET: u64 = 95;

const NO_GROUP: &str = "left out: no memory controller can be used here";

#[test]
fn a_limit_that_is_lowered_under_a_full_tier_is_kept_without_a_kill() {
    const LOWERED: u64 = 128 * MIB;
    let Some(group) = group("lowered") else { return };
    let tier = Tier::start(&group, "forebay");
    assert!(
        group.used().unwrap() > FILE && !group.limit(LOWERED).unwrap(),
        "{} bytes in use fit",
        group.used().unwrap()
    );
    // Version 1 refuses a limit below what is in use, so an operator goes down in steps.
    wait_for("the lower limit is kept", || {
        let bytes = (group.used().unwrap() + 4 * MIB).max(LOWERED);
        (group.limit(bytes).unwrap() && bytes == LOWERED).then_some(())
    });
    wait_for("less than the target is in use", || {
        (group.used().unwrap() <= LOWERED * TARGET / 100 + MIB).then_some(())
    });
    assert!(tier.capacity() < LOWERED, "{}", tier.capacity());
    tier.read();
    assert_eq!(group.kills().unwrap(), 0);

    assert!(group.limit(LIMIT).unwrap());
    wait_for("the tier has its memory again", || (tier.capacity() == CAPACITY).then_some(()));
    tier.fill();
}

/// A file in memory; removed at the end.
struct Stranger(PathBuf);

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_tmpfs_that_a_stranger_fills_counts_as_used() {
    const STRANGE: u64 = 300 * MIB;
    let Some(group) = group("stranger") else { return };
    let tier = Tier::start(&group, "forebay");
    let before = group.used().unwrap();
    let stranger = Stranger(PathBuf::from(format!("/dev/shm/forebay-stranger-{}", std::process::id())));
    let mut dd = group.run(Path::new("dd"));
    dd.args(["if=/dev/zero", "bs=1M", "status=none"]).arg(format!("count={}", STRANGE / MIB));
    assert!(dd.arg(format!("of={}", stranger.0.display())).status().unwrap().success());
    // No process has these pages: they stay when the one that wrote them has ended.
    let room = LIMIT - STRANGE;
    wait_for("the tier has given way", || (tier.capacity() < room).then_some(()));
    wait_for("less than the target is in use", || {
        (group.used().unwrap() <= LIMIT * TARGET / 100 + MIB).then_some(())
    });
    assert!(before + STRANGE > LIMIT, "there was room for both: {before} bytes in use");
    let status = tier.client.admin().memory().unwrap();
    let name = group.directory.display().to_string();
    let place = status.places.iter().find(|place| place.name == name).unwrap();
    assert!(place.used_bytes >= STRANGE + status.tier_bytes - status.tier_bytes / 4, "{status:?}");
    tier.read();
    assert_eq!(group.kills().unwrap(), 0);

    drop(stranger);
    wait_for("the tier has its memory again", || (tier.capacity() == CAPACITY).then_some(()));
}

/// A program that wants all of the tier mapped gets a quarter, which stays when compute takes the
/// rest, and goes when the program lets go.
#[test]
fn mapped_pages_stay_valid_while_the_rest_of_the_tier_gives_way() {
    const CHUNK: u64 = 16 * MIB;
    const HUNGRY: u64 = 370 * MIB;
    let Some(group) = group("mapped") else { return };
    let tier = Tier::start(&group, "forebay");
    let file = tier.client.open(&tier.file).unwrap();
    let wanted = (0..FILE / CHUNK).map(|i| (i * CHUNK, file.map(i * CHUNK, CHUNK)));
    let mapped: Vec<_> = wanted.filter_map(|(at, range)| Some((at, range?))).collect();
    let bytes = mapped.len() as u64 * CHUNK;
    assert!(bytes > CAPACITY / 8 && bytes <= CAPACITY / 4, "{bytes} bytes are mapped");
    let (hog, is_full) = start_hog(&group, HUNGRY);
    assert!(is_full && group.kills().unwrap() == 0, "{} kills", group.kills().unwrap());
    assert!(tier.capacity() < LIMIT - HUNGRY, "{}", tier.capacity());
    let resident = tier.client.open(&tier.file).unwrap().resident_bytes();
    assert!((bytes..FILE / 2).contains(&resident), "{resident} bytes are in the tier");
    for (at, range) in &mapped {
        assert!(is_right(range, *at), "mapped at {at}");
    }
    tier.read();

    drop(mapped);
    tier.client.admin().evict(&tier.file).unwrap();
    assert_eq!(tier.client.open(&tier.file).unwrap().resident_bytes(), 0, "nothing is mapped any more");
    end_hog(hog);
    wait_for("the tier has its memory again", || (tier.capacity() == CAPACITY).then_some(()));
}

/// Stopped until this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(tier: &Tier) -> Self {
        tier.agent.stop();
        Stopped(Pid::from_child(&tier.agent.0))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

#[test]
fn an_agent_that_is_stopped_during_a_burst_gives_way_when_it_continues() {
    let Some(group) = group("stopped") else { return };
    let tier = Tier::start(&group, "forebay");
    let file = tier.client.open(&tier.file).unwrap();
    let mut buffer = vec![0; MIB as usize];
    wait_for("reads need no agent", || {
        file.read_at(&mut buffer, 0).unwrap();
        file.read_resident(&mut buffer, 0)
    });
    let stopped = Stopped::new(&tier);
    // Above the target, and below the limit.
    let (hog, is_full) = start_hog(&group, LIMIT - 10 * MIB - group.used().unwrap());
    let used = group.used().unwrap();
    assert!(is_full && used > LIMIT * TARGET / 100 + MIB, "{used} bytes in use");
    // A program that has the file open reads from the tier, a new one reads the PFS.
    assert!(file.read_resident(&mut buffer, 8 * MIB).is_some() && is_right(&buffer, 8 * MIB));
    let config = ClientConfig {
        socket: Some(tier.state.join("agent.sock")),
        quiet: true,
        deadline: Duration::from_millis(100),
        ..ClientConfig::default()
    };
    let late = Client::new(config).open(&tier.file).unwrap();
    assert!(!late.is_tiered());
    assert_eq!(late.read_at(&mut buffer, MIB).unwrap() as u64, MIB);
    assert!(is_right(&buffer, MIB));

    drop(stopped);
    wait_for("less than the target is in use", || {
        (group.used().unwrap() <= LIMIT * TARGET / 100 + MIB).then_some(())
    });
    assert!(tier.capacity() < CAPACITY && group.kills().unwrap() == 0, "{} kills", group.kills().unwrap());
    tier.read();
    end_hog(hog);
    wait_for("the tier has its memory again", || (tier.capacity() == CAPACITY).then_some(()));
    tier.fill();
}

/// The kernel cannot reclaim the tier. Without swap it kills, and the program that takes memory has
/// most of it.
#[test]
fn beside_a_stopped_agent_the_kernel_kills_who_takes_more_than_there_is() {
    let swap = std::fs::read_to_string("/proc/swaps").unwrap().lines().count() > 1;
    let (Some(group), false) = (group("stopped-and-full"), swap) else {
        return eprintln!("{NO_GROUP}, or there is swap space");
    };
    let mut tier = Tier::start(&group, "forebay");
    let stopped = Stopped::new(&tier);
    let (hog, is_full) = start_hog(&group, HOG);
    assert!(!is_full && group.kills().unwrap() > 0, "all of the memory was there");
    drop((stopped, hog));
    assert!(tier.agent.0.try_wait().unwrap().is_none(), "the agent was killed instead");
    wait_for("the agent answers", || tier.client.admin().status().ok());
    tier.read();
}
