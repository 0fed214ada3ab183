//! Pages between agents: each byte from the PFS once for the whole cluster, and nothing but time
//! lost when a peer fails.

use crate::cluster::{Cluster, EXTENT, NodeSetup, read_piece};
use crate::common::{
    BASE, FOREBAY, MIB, OTHER_UID, PAGE, SlowFs, grow_old, make_file, pfs_with, plain_pfs, send_signal,
    wait_for,
};
use forebay_client::Client;
use forebay_wire::{LoadProgress, NodeInfo};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Not a whole number of pages, blocks or extents.
const SIZE: u64 = 12 * EXTENT + 12_345;

/// A second version has another seed.
const SEED: u64 = 71;

#[test]
fn the_pfs_serves_every_byte_once_however_many_nodes_read() {
    let Some(slow) = SlowFs::start() else { return };
    for read_ahead in [0, 4 * MIB] {
        let cluster = Cluster::start(3, &NodeSetup { read_ahead, ..NodeSetup::new(&slow.mount()) });
        let path = cluster.make_shared_file(|name| slow.at(name), SEED, SIZE);
        let before = slow.stats().read_bytes;
        cluster.read_on(&[0, 1, 2], 3, &path, SEED);
        assert_eq!(slow.stats().read_bytes - before, SIZE, "with read-ahead of {read_ahead}");
        assert_eq!(cluster.sum("fetched_bytes"), SIZE);
        for node in &cluster.nodes {
            assert!(node.counter("pages_from_peers_total") > 0 && node.counter("pages_to_peers_total") > 0);
            assert_eq!(node.counter("peer_late_total") + node.counter("peer_broken_total"), 0);
        }
        // All that a node did not fetch came from the others: each page to each node once.
        assert_eq!(cluster.sum("from_peers_bytes"), 2 * SIZE);
    }
}

#[test]
fn small_pages_of_columnar_files_come_from_their_owners() {
    let Some(slow) = SlowFs::start() else { return };
    let cluster = Cluster::start(2, &NodeSetup { read_ahead: 4 * MIB, ..NodeSetup::new(&slow.mount()) });
    let path = cluster.make_shared_file(|name| slow.at(&format!("{name}.parquet")), SEED, SIZE);
    let before = slow.stats().read_bytes;
    cluster.read_on(&[0, 1], 2, &path, SEED);
    assert_eq!(slow.stats().read_bytes - before, SIZE);
    assert_eq!(cluster.sum("from_peers_bytes"), SIZE);
    let (pages, requests) = (cluster.sum("pages_from_peers_total"), cluster.sum("peer_requests_total"));
    println!("{pages} small pages of {} KiB in {requests} requests", SIZE >> 10);
    assert!(requests * 4 <= pages, "{requests} requests for {pages} adjacent pages");
    for node in &cluster.nodes {
        assert!(
            node.counter("pages_to_peers_total") > SIZE / PAGE,
            "pages of {PAGE} bytes, as other files have"
        );
        assert_eq!(node.counter("peer_late_total") + node.counter("peer_broken_total"), 0);
    }
}

#[test]
fn a_page_asked_for_again_is_kept_and_others_stay_remote() {
    let (pfs, path) = pfs_with("f", SEED, SIZE);
    let cluster = Cluster::start(2, &NodeSetup::new(pfs.path()));
    let node = &cluster.nodes[0];
    cluster.read_on(&[0], 1, &path, SEED);
    let came = node.counter("from_peers_bytes");
    assert!(came > 0 && node.counter("remote_page_bytes") > 0);
    // Each reader moves from page to page, which is a use of each of them.
    cluster.read_on(&[0], 2, &path, SEED);
    wait_for("the agent has heard of the uses", || node.counter("remote_page_bytes") == 0);
    assert_eq!(node.counter("from_peers_bytes"), came, "what is here is not asked for again");
}

#[test]
fn agents_that_are_killed_while_readers_run_cost_only_time() {
    let Some(slow) = SlowFs::start() else { return };
    let mut cluster = Cluster::start(3, &NodeSetup::new(&slow.mount()));
    // A victim that owned nothing would not be asked, and its death not noticed.
    let path = cluster.make_shared_file(|name| slow.at(name), SEED, SIZE);
    let (done, passes) = (AtomicBool::new(false), AtomicU64::new(0));
    let client = cluster.nodes[0].client();
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (client, path, done, passes) = (client.clone(), &path, &done, &passes);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    crate::cluster::read_whole(&client, path, SEED, reader);
                    client.admin().evict_all().unwrap();
                    passes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let ended = Ended(&done);
        for victim in [1, 2] {
            let (from, at) =
                (cluster.nodes[0].counter("pages_from_peers_total"), passes.load(Ordering::Relaxed));
            wait_for("pages come from peers", || {
                cluster.nodes[0].counter("pages_from_peers_total") > from + 20
                    && passes.load(Ordering::Relaxed) > at
            });
            let broken = cluster.nodes[0].counter("peer_broken_total");
            cluster.nodes[victim].helper.kill_9();
            wait_for("the death is noticed", || cluster.nodes[0].counter("peer_broken_total") > broken);
            let at = passes.load(Ordering::Relaxed);
            wait_for("readers go on", || passes.load(Ordering::Relaxed) > at + 3);
        }
        drop(ended);
    });
    assert_eq!(cluster.nodes[0].counter("pages_failed_total"), 0);
    assert_eq!(cluster.nodes[0].cluster().avoided.len(), 2);
}

/// Ends readers, even when the test fails.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_peer_that_hangs_costs_its_deadline_once_and_is_asked_again_when_it_answers() {
    let (pfs, path) = pfs_with("f", SEED, SIZE);
    let cluster = Cluster::start(2, &NodeSetup { deadline_ms: 1_000, ..NodeSetup::new(pfs.path()) });
    let node = &cluster.nodes[0];
    cluster.nodes[1].stop();
    cluster.read_on(&[0], 4, &path, SEED);
    let late = node.counter("peer_late_total");
    // Pages are requested on several connections at the same time; all of them give up together.
    assert!((1..=8).contains(&late), "{late} deadlines were missed");
    assert_eq!(node.counter("pages_from_peers_total"), 0);
    for _ in 0..3 {
        node.evict();
        cluster.read_on(&[0], 4, &path, SEED);
    }
    // It is greeted when its back-off ends, and that no reader waits for.
    std::thread::sleep(Duration::from_millis(2_500));
    node.evict();
    cluster.read_on(&[0], 4, &path, SEED);
    assert_eq!(node.counter("peer_late_total"), late, "a reader has waited for it again");
    assert_eq!(node.cluster().avoided.len(), 1);
    cluster.nodes[1].go_on();
    wait_for("it is believed again", || node.cluster().avoided.is_empty());
    node.evict();
    cluster.read_on(&[0], 1, &path, SEED);
    assert!(node.counter("pages_from_peers_total") > 0);
}

#[test]
fn what_a_peer_has_of_another_version_is_not_taken() {
    let (pfs, path) = pfs_with("f", SEED, SIZE);
    let cluster = Cluster::start(2, &NodeSetup::new(pfs.path()));
    for version in 1..4 {
        cluster.read_on(&[0, 1], 1, &path, SEED + version - 1);
        let from = cluster.nodes[0].counter("pages_from_peers_total");
        assert!(from > 0);
        // The same inode and length; the owner has not looked at it since.
        std::fs::write(&path, crate::common::content(SEED + version, 0, SIZE as usize)).unwrap();
        grow_old(&path);
        cluster.read_on(&[0], 2, &path, SEED + version);
        assert!(cluster.nodes[0].counter("pages_from_peers_total") > from);
        // And one that another file was renamed over.
        let other = pfs.path().join("g");
        make_file(&other, SEED + version, SIZE);
        std::fs::rename(&other, &path).unwrap();
        grow_old(&path);
    }
}

#[test]
fn a_file_that_its_owner_may_not_open_is_read_with_the_readers_rights() {
    use std::os::unix::fs::PermissionsExt;
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: an agent of another user takes root");
        return;
    }
    let Some((slow, path)) = SlowFs::with("f", SEED, SIZE) else { return };
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    grow_old(&path);
    // Neither agent may open it; what node 0 reads arrives through the reader's descriptor.
    let setup = NodeSetup { uids: vec![Some(OTHER_UID); 2], ..NodeSetup::new(&slow.mount()) };
    let cluster = Cluster::start(2, &setup);
    let before = slow.stats().read_bytes;
    cluster.read_on(&[0], 2, &path, SEED);
    assert_eq!(slow.stats().read_bytes - before, SIZE);
    let node = &cluster.nodes[0];
    let refused = node.counter("peer_refusals_total");
    // Remembered, so that not every page asks; those that were in progress when it was learned have
    // asked as well.
    assert!((1..=8).contains(&refused), "{refused} refusals for {} pages", SIZE / PAGE);
    assert_eq!(node.counter("pages_from_peers_total"), 0);
    assert!(node.cluster().avoided.is_empty(), "a refusal is an answer");
}

#[test]
fn pages_evicted_while_they_are_sent_never_yield_wrong_bytes() {
    let pfs = plain_pfs();
    let files: Vec<_> = (0..4).map(|i| (pfs.path().join(format!("f{i}")), SEED + i)).collect();
    for (path, seed) in &files {
        make_file(path, *seed, 6 * EXTENT + 777);
    }
    // What threads and connections cost, and room for less than half of the files' third.
    let setup = NodeSetup { capacity: BASE + 8 * MIB, read_ahead: 2 * MIB, ..NodeSetup::new(pfs.path()) };
    let cluster = Cluster::start(3, &setup);
    std::thread::scope(|scope| {
        for node in &cluster.nodes {
            for reader in 0..3u64 {
                let (client, files) = (node.client(), &files);
                scope.spawn(move || {
                    for pass in 0..6 {
                        let (path, seed) = &files[((reader + pass) % 4) as usize];
                        crate::cluster::read_whole(&client, path, *seed, pass);
                        // And back and forth, against the order of eviction.
                        let at = (pass * 7 + reader * 3) % 6 * EXTENT + 4_321 * pass;
                        read_piece(&client, path, *seed, at, 200_000);
                    }
                });
            }
        }
    });
    for node in &cluster.nodes {
        for name in ["evicted_pages_total", "pages_to_peers_total", "pages_from_peers_total"] {
            assert!(node.counter(name) > 50, "{name} = {}: nothing was tried", node.counter(name));
        }
        assert_eq!(node.counter("lent_bytes"), 0, "a page stays lent");
    }
}

fn load_whole(client: &Client, path: &Path) -> LoadProgress {
    let mut load = client.load(0).unwrap();
    load.add(path).unwrap();
    load.flush().unwrap();
    let mut end = LoadProgress::default();
    wait_for("the load is done", || {
        end = load.poll(Duration::from_millis(100)).unwrap();
        end.idle
    });
    assert!(load.failures().is_empty(), "{:?}", load.failures());
    end
}

#[test]
fn a_load_fetches_pages_for_their_owners() {
    let Some(slow) = SlowFs::start() else { return };
    let cluster = Cluster::start(3, &NodeSetup::new(&slow.mount()));
    let path = cluster.make_shared_file(|name| slow.at(name), SEED, SIZE);
    let before = slow.stats().read_bytes;
    let client = cluster.nodes[0].client();
    // They take so long that their owners say "not yet" in between; the load knows all the same
    // what it has fetched.
    slow.fault("read=delay:150ms,count=100000");
    let end = load_whole(&client, &path);
    assert_eq!((end.bytes_fetched, end.bytes_resident), (SIZE, 0));
    assert!(cluster.nodes[0].counter("peer_not_yet_total") > 0);
    assert_eq!(slow.stats().read_bytes - before, SIZE);
    let resident: u64 = cluster.nodes.iter().map(|n| n.status().resident_bytes).sum();
    assert_eq!(resident, SIZE.next_multiple_of(4096), "each page is in one tier");
    assert!(cluster.nodes.iter().all(|n| n.status().resident_bytes > 0));
    assert!(cluster.nodes[0].counter("pages_placed_total") > 0);
    cluster.read_on(&[0, 1, 2], 1, &path, SEED);
    assert_eq!(slow.stats().read_bytes - before, SIZE, "the PFS was read for what was loaded");
}

/// Loads the file through node 0 while `meanwhile` happens, which is given the cluster when node 1
/// has some of it.
fn load_while(
    cluster: &mut Cluster,
    slow: &SlowFs,
    path: &Path,
    meanwhile: impl FnOnce(&mut Cluster),
) -> LoadProgress {
    slow.fault("read=delay:150ms,count=100000");
    let client = cluster.nodes[0].client();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loading = scope.spawn(|| {
            let end = load_whole(&client, path);
            ended.store(true, Ordering::Relaxed);
            end
        });
        wait_for("node 1 has some of it and node 0 knows", || {
            cluster.nodes[1].counter("pages_loaded_total") > 8
                && cluster.nodes[0].counter("pages_placed_total") > 16
        });
        meanwhile(cluster);
        assert!(!ended.load(Ordering::Relaxed), "the load had ended before anything happened to it");
        loading.join().unwrap()
    })
}

#[test]
fn what_an_owner_evicts_during_a_load_is_there_when_the_load_ends() {
    let Some(slow) = SlowFs::start() else { return };
    let mut cluster = Cluster::start(3, &NodeSetup::new(&slow.mount()));
    let path = cluster.make_shared_file(|name| slow.at(name), SEED, SIZE);
    let end = load_while(&mut cluster, &slow, &path, |cluster| cluster.nodes[1].evict());
    assert!(cluster.nodes[1].counter("evicted_pages_total") > 0);
    assert!(cluster.nodes[0].counter("pages_replaced_total") > 0);
    assert_eq!(end.bytes_fetched + end.bytes_resident, SIZE, "each byte counts once");
    let resident: u64 = cluster.nodes.iter().map(|n| n.status().resident_bytes).sum();
    assert_eq!(resident, SIZE.next_multiple_of(4096), "each page is in one tier");
    let before = slow.stats().read_bytes;
    cluster.read_on(&[0, 2], 1, &path, SEED);
    assert_eq!(slow.stats().read_bytes, before, "the PFS was read for what was loaded");
}

#[test]
fn what_an_owner_takes_with_it_during_a_load_is_elsewhere_when_the_load_ends() {
    let Some(slow) = SlowFs::start() else { return };
    let mut cluster = Cluster::start(3, &NodeSetup::new(&slow.mount()));
    let path = cluster.make_shared_file(|name| slow.at(name), SEED, SIZE);
    load_while(&mut cluster, &slow, &path, |cluster| cluster.nodes[1].helper.kill_9());
    let node = &cluster.nodes[0];
    assert!(node.counter("peer_broken_total") > 0 && node.counter("pages_replaced_total") > 0);
    let before = slow.stats().read_bytes;
    cluster.read_on(&[0], 1, &path, SEED);
    assert_eq!(slow.stats().read_bytes, before, "the PFS was read for what was loaded");
}

#[test]
fn a_load_that_a_node_cannot_keep_says_how_much_is_missing() {
    let pfs = plain_pfs();
    // Node 1 owns about half of the file, and has room for a part of that.
    let mut cluster = Cluster::start(2, &NodeSetup::new(pfs.path()));
    let path = cluster.make_shared_file(|name| pfs.path().join(name), SEED, SIZE);
    cluster.nodes[1].client().admin().set_capacity(BASE + 2 * MIB).unwrap();
    let members = cluster.members();
    cluster.send_view(0, members);
    let mut load = cluster.nodes[0].client().load(0).unwrap();
    load.add(&path).unwrap();
    load.flush().unwrap();
    wait_for("the load is done", || load.poll(Duration::from_millis(100)).unwrap().idle);
    let failures = load.failures();
    assert!(cluster.nodes[1].counter("evicted_pages_total") > 0, "there was room for all of it");
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert_eq!(failures[0].errno, libc::ENOSPC);
    assert!(failures[0].message.contains("pages are gone from the nodes"), "{}", failures[0].message);
}

#[test]
fn remote_pages_are_remote_again_after_a_crash() {
    let (pfs, path) = pfs_with("f", SEED, SIZE);
    let mut cluster = Cluster::start(2, &NodeSetup::new(pfs.path()));
    cluster.read_on(&[0], 1, &path, SEED);
    let (remote_bytes, resident) =
        (cluster.nodes[0].counter("remote_page_bytes"), cluster.nodes[0].status().resident_bytes);
    assert!(remote_bytes > 0 && remote_bytes < resident, "{remote_bytes} of {resident}");
    cluster.kill_and_restart(0);
    let node = &cluster.nodes[0];
    assert!(node.counter("adopted_files_total") > 0);
    assert_eq!((node.counter("remote_page_bytes"), node.status().resident_bytes), (remote_bytes, resident));
    // They go first: what is left is what is its own. And their bytes were right.
    cluster.read_on(&[0], 1, &path, SEED);
    assert_eq!(cluster.nodes[0].counter("from_peers_bytes"), 0, "what is here is not asked for again");
}

#[test]
fn a_peer_whose_copy_has_pages_of_another_size_is_not_asked_for_these() {
    let (pfs, path) = pfs_with("f", SEED, SIZE);
    for (before, after) in [(PAGE, 2 * PAGE), (4 * PAGE, PAGE)] {
        let mut cluster = Cluster::start(2, &NodeSetup::new(pfs.path()));
        cluster.restart_with_pages_of(before);
        cluster.read_on(&[1], 1, &path, SEED);
        // What node 1 has requested from node 0 may still come in there.
        wait_for("node 0 has nothing", || {
            cluster.nodes[0].evict();
            cluster.nodes[0].client().admin().list().unwrap().is_empty()
        });
        cluster.restart_with_pages_of(after);
        let adopted = |node: usize| cluster.nodes[node].counter("adopted_files_total");
        assert_eq!((adopted(0), adopted(1)), (0, 1));
        // All of it belongs to node 1, for node 0.
        cluster.give_all_to_node_1();
        for _ in 0..2 {
            cluster.read_on(&[0], 1, &path, SEED);
        }
        let node = &cluster.nodes[0];
        assert!(node.counter("peer_refusals_total") > 0, "it was asked");
        assert_eq!((node.counter("from_peers_bytes"), node.counter("fetched_bytes")), (0, SIZE));
    }
}

#[test]
fn a_pinned_file_is_loaded_on_the_node_that_pins_it() {
    let (pfs, path) = pfs_with("f", SEED, SIZE);
    let cluster = Cluster::start(2, &NodeSetup::new(pfs.path()));
    let client = cluster.nodes[0].client();
    client.admin().pin(&path, true).unwrap();
    load_whole(&client, &path);
    assert_eq!(client.open(&path).unwrap().resident_bytes(), SIZE);
}

#[test]
fn nodes_that_each_take_the_other_for_the_owner_do_not_wait_for_each_other() {
    let Some((slow, path)) = SlowFs::with("f", SEED, SIZE) else { return };
    let mut cluster = Cluster::start(2, &NodeSetup::new(&slow.mount()));
    // A member without weight owns nothing.
    let without = |members: &[NodeInfo], which: usize| {
        let mut members = members.to_vec();
        members[which].capacity_bytes = 0;
        members
    };
    let members = cluster.members();
    for node in [0, 1] {
        cluster.send_view(node, without(&members, node));
    }
    let before = slow.stats().read_bytes;
    cluster.read_on(&[0, 1], 2, &path, SEED);
    // The deadline is half a minute: nobody can have waited for it.
    assert_eq!(cluster.sum("peer_late_total"), 0);
    assert!(cluster.sum("peer_refusals_total") + cluster.sum("pages_to_peers_total") > 0);
    assert!(slow.stats().read_bytes - before <= 2 * SIZE);
}

#[test]
fn a_node_that_is_cut_off_reads_the_pfs_and_comes_back() {
    let (pfs, path) = pfs_with("f", SEED, SIZE);
    let mut cluster = Cluster::start(2, &NodeSetup::new(pfs.path()));
    let members = cluster.members();
    // Each believes that the other one is elsewhere, where nobody listens.
    for node in [0, 1] {
        let mut apart = members.clone();
        apart[1 - node].address = "127.0.0.1:1".into();
        cluster.send_view(node, apart);
    }
    cluster.read_on(&[0, 1], 2, &path, SEED);
    for node in &cluster.nodes {
        assert!(node.counter("peer_broken_total") > 0);
        assert_eq!(node.counter("pages_from_peers_total"), 0);
        assert_eq!(node.cluster().avoided.len(), 1);
        node.evict();
    }
    cluster.send_view_to_all();
    for node in &cluster.nodes {
        wait_for("the other is believed again", || node.cluster().avoided.is_empty());
    }
    cluster.read_on(&[0, 1], 1, &path, SEED);
    assert!(cluster.nodes.iter().all(|n| n.counter("pages_from_peers_total") > 0));
}

#[test]
fn a_reader_whose_owner_stops_in_mid_page_gets_the_rest_from_the_pfs() {
    let Some((slow, path)) = SlowFs::with("f", SEED, SIZE) else { return };
    let mut cluster = Cluster::start(2, &NodeSetup { deadline_ms: 2_000, ..NodeSetup::new(&slow.mount()) });
    // All of it belongs to node 1, for node 0.
    cluster.give_all_to_node_1();
    let (done, node) = (AtomicBool::new(false), &cluster.nodes[0]);
    std::thread::scope(|scope| {
        let (client, path, done) = (node.client(), &path, &done);
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                crate::cluster::read_whole(&client, path, SEED, 1);
                client.admin().evict_all().unwrap();
            }
        });
        let ended = Ended(done);
        for _ in 0..3 {
            let (from, late) = (node.counter("pages_from_peers_total"), node.counter("peer_late_total"));
            wait_for("pages come", || node.counter("pages_from_peers_total") > from);
            send_signal(cluster.nodes[1].helper.pid(), libc::SIGSTOP);
            wait_for("it is missed", || node.counter("peer_late_total") > late);
            send_signal(cluster.nodes[1].helper.pid(), libc::SIGCONT);
        }
        drop(ended);
    });
}

#[test]
fn over_tls_the_same_holds() {
    let Some((slow, path)) = SlowFs::with("f", SEED, SIZE) else { return };
    let certificates = plain_pfs();
    let mut init = std::process::Command::new(FOREBAY);
    init.arg("init").arg(certificates.path().join("c"));
    let out = init.args(["--node", "node0=127.0.0.1", "--node", "node1=127.0.0.1"]).output().unwrap();
    assert!(out.status.success(), "{}", crate::common::text(&out.stderr));
    let tls = Some(certificates.path().join("c"));
    let mut cluster = Cluster::start(2, &NodeSetup { tls, ..NodeSetup::new(&slow.mount()) });
    let before = slow.stats().read_bytes;
    cluster.read_on(&[0, 1], 3, &path, SEED);
    assert_eq!(slow.stats().read_bytes - before, SIZE);
    assert_eq!(cluster.sum("from_peers_bytes"), SIZE);
    // Whole pages too, and not only those that are sent while they are fetched.
    cluster.nodes[0].evict();
    cluster.read_on(&[0], 1, &path, SEED);
    assert_eq!(cluster.sum("lent_bytes"), 0);
    // A node that answers in another node's name is not believed.
    let mut members = cluster.members();
    members[0].capacity_bytes = 0;
    members[1].name = "node7".into();
    cluster.send_view(0, members);
    cluster.nodes[0].evict();
    let came = cluster.nodes[0].counter("from_peers_bytes");
    cluster.read_on(&[0], 1, &path, SEED);
    assert_eq!(cluster.nodes[0].counter("from_peers_bytes"), came);
    assert!(cluster.nodes[0].counter("peer_broken_total") > 0);
}

#[test]
fn a_peer_whose_pfs_is_slow_is_not_taken_for_dead() {
    let Some((slow, path)) = SlowFs::with("f", SEED, SIZE) else { return };
    for read_ahead in [0, 4 * MIB] {
        let setup = NodeSetup { deadline_ms: 2_000, read_ahead, ..NodeSetup::new(&slow.mount()) };
        let mut cluster = Cluster::start(2, &setup);
        cluster.give_all_to_node_1();
        // Longer than three quarters of the deadline, after which an owner says "not yet".
        slow.fault("read=delay:1800ms,count=6");
        cluster.read_on(&[0], 2, &path, SEED);
        slow.fault("none");
        let node = &cluster.nodes[0];
        assert!(node.counter("peer_not_yet_total") > 0, "with read-ahead of {read_ahead}");
        assert_eq!(node.counter("peer_late_total") + node.counter("peer_broken_total"), 0);
        assert!(node.cluster().avoided.is_empty());
        assert!(node.counter("pages_from_peers_total") > 0);
    }
}

/// Reading what an owner is reading already takes bandwidth from the owner's read.
#[test]
fn a_reader_leaves_a_page_that_comes_slowly_to_its_owner() {
    let Some(slow) = SlowFs::start() else { return };
    let (path, pages) = (slow.at("f"), 6);
    make_file(&path, SEED, pages * 2 * MIB);
    let setup = NodeSetup { deadline_ms: 1_200, read_ahead: 0, ..NodeSetup::new(&slow.mount()) };
    let mut cluster = Cluster::start(2, &setup);
    cluster.give_all_to_node_1();
    // A page takes longer than three quarters of the deadline.
    slow.fault("read=delay:150ms,count=100000");
    let client = cluster.nodes[0].client();
    (0..pages).for_each(|page| read_piece(&client, &path, SEED, page * 2 * MIB, 2 * MIB as usize));
    let node = &cluster.nodes[0];
    assert!(node.counter("peer_not_yet_total") >= pages, "the owner was fast enough");
    // Neither node knows at first how slow the PFS is.
    let fetched = node.counter("fetched_bytes");
    assert!(fetched <= 2 * 2 * MIB, "{fetched} bytes were read twice");
    assert!(node.counter("pages_from_peers_total") >= pages - 2);
}

#[test]
fn a_node_that_waits_for_the_pfs_to_open_a_file_is_not_taken_for_dead() {
    let Some((slow, path)) = SlowFs::with("f", SEED, SIZE) else { return };
    let setup = NodeSetup { deadline_ms: 2_000, ..NodeSetup::new(&slow.mount()) };
    let cluster = Cluster::start(2, &setup);
    let client = cluster.nodes[0].client();
    let file = client.open(&path).unwrap();
    // Longer than the deadline. The reader has it open, the owner has not.
    slow.fault("open=delay:3s,count=1000");
    let mut bytes = vec![0; SIZE as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    assert!(bytes == crate::common::content(SEED, 0, SIZE as usize), "wrong bytes");
    let node = &cluster.nodes[0];
    let opens = slow.stats().faults.open;
    assert_eq!(opens, 2, "the reader's agent opens it once to seal it, the owner once for all pages");
    assert!(node.counter("peer_not_yet_total") > 0, "it has not said that it is at it");
    assert_eq!((node.counter("peer_late_total"), node.cluster().avoided), (0, vec![]));
    slow.fault("none");
    wait_for("the owner has it open and serves it", || {
        node.evict();
        cluster.read_on(&[0], 1, &path, SEED);
        node.counter("pages_from_peers_total") > 0
    });
}
