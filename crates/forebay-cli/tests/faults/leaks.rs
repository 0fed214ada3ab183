//! Clients die in the middle of things; nothing of theirs may stay.

use crate::common::{
    Agent, Helper, MIB, PAGE, Setup, SlowFs, one_file, pfs_and_agent, pfs_with, plain_pfs, used, wait_for,
};
use crate::roles::verify_once;
use forebay_wire::{Channel, Hello, MAGIC, PROTOCOL};

#[test]
fn killed_while_it_reads() {
    let Some((pfs, path)) = SlowFs::with("f", 1, 2 * MIB) else { return };
    let agent = Agent::on(&pfs.mount());
    pfs.fault("read=hang");
    let mut client = Helper::start(&agent, "read-once", &[path.to_str().unwrap(), "1"]);
    client.expect("ready");
    client.say("go");
    wait_for("a fetch is under way", || pfs.stats().hung_now > 0);
    client.kill_9();
    pfs.fault("none");
    wait_for("the fetch ends", || agent.status().mounts[0].fetches_pending == 0);
    agent.assert_nothing_left();
}

#[test]
fn killed_while_it_writes_through() {
    let (pfs, agent) = pfs_and_agent();
    let path = pfs.path().join("f");
    let mut client = Helper::start(&agent, "write", &[path.to_str().unwrap(), &(4 * MIB + 100).to_string()]);
    client.expect("written");
    let s = agent.status();
    assert!(used(&s, "pages") >= 2 * MIB && used(&s, "clients") >= 4 * PAGE, "nothing is staged");
    assert_eq!(agent.copies(), 1);
    client.kill_9();
    wait_for("what was staged is gone", || used(&agent.status(), "pages") == 0);
    agent.assert_nothing_left();
    // And the agent is killed while a client has staged.
    let mut agent = agent;
    let mut client = Helper::start(&agent, "write", &[path.to_str().unwrap(), &(4 * MIB).to_string()]);
    client.expect("written");
    agent.kill_9();
    assert_eq!(agent.copies(), 1);
    agent.restart();
    assert_eq!((agent.counter("adopted_files_total"), agent.copies()), (0, 0));
    client.say("close");
    client.expect("closed");
    client.finish();
    crate::common::grow_old(&path);
    verify_once(&agent.client(), &path, 1, 0);
    agent.assert_nothing_left();
}

#[test]
fn killed_while_it_loads() {
    let (_pfs, path, agent) = one_file(1, 32 * MIB);
    let mut client = Helper::start(&agent, "load", &[path.to_str().unwrap()]);
    client.expect("loading");
    wait_for("the load has begun", || agent.counter("pages_loaded_total") > 0);
    client.kill_9();
    wait_for("nothing of the load is under way", || {
        let s = agent.status();
        s.connections <= 1 && s.mounts[0].fetches_pending == 0
    });
    let loaded = agent.counter("fetched_bytes");
    assert!(loaded < 32 * MIB, "the load was done before the client was killed");
    agent.assert_nothing_left();
    assert_eq!(agent.counter("fetched_bytes"), loaded);
}

#[test]
fn killed_with_pages_mapped() {
    let (_pfs, path, agent) = one_file(1, 2 * MIB);
    verify_once(&agent.client(), &path, 1, 0);
    let mut client = Helper::start(&agent, "map", &[path.to_str().unwrap(), "1"]);
    client.expect("mapped");
    assert_eq!(agent.client().admin().evict_all().unwrap(), 0);
    assert_eq!(agent.counter("client_pinned_bytes"), 2 * MIB);
    client.say("check");
    client.expect("checked");
    client.kill_9();
    wait_for("the pins are gone", || agent.counter("client_pinned_bytes") == 0);
    agent.assert_nothing_left();
}

#[test]
fn killed_with_memory_only_files() {
    let (pfs, agent) = pfs_and_agent();
    let path = pfs.path().join("scratch");
    let mut client = Helper::start(&agent, "job", &[path.to_str().unwrap(), &(3 * MIB).to_string()]);
    client.expect("written");
    let s = agent.status();
    assert!(s.scratch_files == 1 && used(&s, "scratch") >= 3 * MIB);
    client.kill_9();
    wait_for("the job's files are gone", || agent.status().scratch_files == 0);
    agent.assert_nothing_left();
}

#[test]
fn many_mapped_ranges_let_go_at_once_leave_no_pins() {
    let (pfs, path) = pfs_with("f", 1, MIB);
    let agent = Agent::start(Setup::new(pfs.path()).capacity(256 * MIB));
    let client = agent.client();
    verify_once(&client, &path, 1, 0);
    let file = client.open(&path).unwrap();
    let mut ranges: Vec<_> =
        (0..900).map(|i| file.map(i * 1000, 1000).expect("there is room for the pin")).collect();
    assert_eq!(agent.counter("client_pinned_bytes"), 900_000_u64.next_multiple_of(PAGE), "each page once");
    // A page that many have mapped stays until the last of them has gone.
    let last = ranges.pop();
    drop(ranges);
    wait_for("the others are gone", || agent.counter("client_pinned_bytes") == PAGE);
    drop(last);
    wait_for("no pin is left while the client lives", || agent.counter("client_pinned_bytes") == 0);
    drop((file, client));
    agent.assert_nothing_left();
}

#[test]
fn clients_that_hang_up_before_they_are_greeted_cost_no_descriptors() {
    let (_pfs, agent) = pfs_and_agent();
    wait_for("earlier connections end", || agent.status().connections <= 1);
    let before = agent.open_files();
    for _ in 0..300 {
        let channel = Channel::connect(&agent.socket()).unwrap();
        channel.send(&Hello { magic: MAGIC, protocol: PROTOCOL, want_ring: true }, &[]).unwrap();
    }
    // A connection counts once it is accepted: some may wait for that when the first have ended.
    wait_for("no connection keeps a descriptor", || {
        agent.status().connections <= 1 && agent.open_files() < before + 10
    });
    agent.assert_nothing_left();
}

#[test]
fn a_load_that_is_cancelled_at_once_leaves_no_empty_copies() {
    let pfs = plain_pfs();
    for i in 0..50 {
        std::fs::write(pfs.path().join(i.to_string()), vec![0; 3 * PAGE as usize]).unwrap();
    }
    crate::common::grow_old(&pfs.path().join("49"));
    let agent = Agent::on(pfs.path());
    for _ in 0..5 {
        let mut load = agent.client().load(PAGE).unwrap();
        for i in 0..50 {
            load.add(&pfs.path().join(i.to_string())).unwrap();
        }
        load.flush().unwrap();
        load.cancel().unwrap();
    }
    wait_for("the loads have ended", || agent.status().connections <= 1);
    agent.assert_nothing_left();
}
