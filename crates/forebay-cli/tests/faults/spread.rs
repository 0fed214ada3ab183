//! Many nodes that read one file at the same time: the PFS serves each byte once, the owner sends a
//! page to some of them, and those pass it on.

use crate::cluster::{Cluster, EXTENT, NodeSetup, read_whole};
use crate::common::{MIB, SlowFs, make_file, plain_pfs, wait_for};
use std::path::Path;

const SEED: u64 = 73;

/// One extent, so that one node owns all of it.
const SIZE: u64 = EXTENT;

/// The number of the node that owns the file, and of the others.
fn owner_of(cluster: &Cluster, path: &Path) -> (usize, Vec<usize>) {
    let extents = cluster.nodes[0].client().locate(path, 0, SIZE).unwrap();
    let owner = cluster.nodes.iter().position(|node| extents[0].hosts[0] == node.info.name).unwrap();
    (owner, (0..cluster.nodes.len()).filter(|node| *node != owner).collect())
}

#[test]
fn nodes_that_read_one_file_together_get_it_from_each_other() {
    let Some(slow) = SlowFs::start() else { return };
    let path = slow.at("f");
    make_file(&path, SEED, SIZE);
    for read_ahead in [0, 4 * MIB] {
        let cluster = Cluster::start(6, &NodeSetup { read_ahead, ..NodeSetup::new(&slow.mount()) });
        let (owner, _) = owner_of(&cluster, &path);
        // As long as the PFS takes, all of them come to the same pages.
        slow.limit("2MiB/s");
        let before = slow.stats().read_bytes;
        cluster.read_on(&[0, 1, 2, 3, 4, 5], 1, &path, SEED);
        slow.limit("unlimited");
        assert_eq!(slow.stats().read_bytes - before, SIZE, "with read-ahead of {read_ahead}");
        let relayed = cluster.sum("pages_from_relays_total");
        let (sent, all) = (cluster.nodes[owner].counter("to_peers_bytes"), cluster.sum("to_peers_bytes"));
        println!("{relayed} pages were passed on, the owner has sent {sent} of {all} bytes");
        assert!(relayed > 0 && sent < all, "{relayed} pages, {sent} of {all} bytes");
        assert_eq!(cluster.sum("from_peers_bytes"), 5 * SIZE);
        assert_eq!(cluster.sum("peer_late_total") + cluster.sum("peer_broken_total"), 0);
    }
}

#[test]
fn a_node_that_joins_late_gets_all_from_the_others() {
    let Some(slow) = SlowFs::start() else { return };
    let path = slow.at("f");
    make_file(&path, SEED, SIZE);
    let cluster = Cluster::start(4, &NodeSetup::new(&slow.mount()));
    let (owner, others) = owner_of(&cluster, &path);
    let before = slow.stats().read_bytes;
    cluster.read_on(&[owner, others[0], others[1]], 1, &path, SEED);
    cluster.read_on(&[others[2]], 1, &path, SEED);
    assert_eq!(slow.stats().read_bytes - before, SIZE);
    assert_eq!(cluster.nodes[others[2]].counter("from_peers_bytes"), SIZE);
}

#[test]
fn a_node_that_dies_or_hangs_while_it_passes_pages_on_costs_only_time() {
    for hangs in [false, true] {
        let Some(slow) = SlowFs::start() else { return };
        let path = slow.at("f");
        make_file(&path, SEED, SIZE);
        let setup = NodeSetup { deadline_ms: 1_000, ..NodeSetup::new(&slow.mount()) };
        let mut cluster = Cluster::start(5, &setup);
        let (owner, others) = owner_of(&cluster, &path);
        slow.limit("512KiB/s");
        let before = slow.stats().read_bytes;
        let victim = others[0];
        let clients: Vec<_> = others.iter().map(|node| cluster.nodes[*node].client()).collect();
        std::thread::scope(|scope| {
            let readers: Vec<_> = clients[1..]
                .iter()
                .map(|client| scope.spawn(|| read_whole(client, &path, SEED, 0)))
                .collect();
            // It has its share of the work while it lives; its program's end is not looked at.
            let of_victim = &clients[0];
            let path = &path;
            scope.spawn(move || {
                let file = of_victim.open(path).unwrap();
                let mut bytes = vec![0; SIZE as usize];
                let _ = file.read_at(&mut bytes, 0);
            });
            wait_for("it passes pages on", || cluster.nodes[victim].counter("pages_to_peers_total") > 0);
            assert!(!readers.iter().all(|reader| reader.is_finished()), "they have ended before the fault");
            match hangs {
                true => cluster.nodes[victim].stop(),
                false => cluster.nodes[victim].helper.kill_9(),
            }
            readers.into_iter().for_each(|reader| reader.join().unwrap());
            if hangs {
                cluster.nodes[victim].go_on();
            }
        });
        // The owner lives, so the others have all from it and from each other, except for a page
        // that it did not have in time: the victim's program now reads the PFS as well.
        let by_others: u64 = others[1..].iter().map(|n| cluster.nodes[*n].counter("fetched_bytes")).sum();
        let read = slow.stats().read_bytes - before;
        println!("hangs: {hangs}, PFS: {read} bytes of {SIZE}, {by_others} for the other nodes");
        assert_eq!(cluster.nodes[owner].counter("fetched_bytes"), SIZE);
        assert!(by_others < SIZE / 2, "hangs: {hangs}, {by_others} bytes");
    }
}

#[test]
fn nodes_that_read_different_parts_do_not_wait_for_each_other() {
    let pfs = plain_pfs();
    let paths: Vec<_> = (0..3).map(|n| pfs.path().join(format!("f{n}"))).collect();
    paths.iter().for_each(|path| make_file(path, SEED, SIZE));
    let cluster = Cluster::start(3, &NodeSetup::new(pfs.path()));
    std::thread::scope(|scope| {
        for (node, path) in cluster.nodes.iter().zip(&paths) {
            let client = node.client();
            scope.spawn(move || read_whole(&client, path, SEED, 0));
        }
    });
    assert_eq!(cluster.sum("pages_from_relays_total"), 0);
    assert_eq!(cluster.sum("fetched_bytes"), 3 * SIZE);
}
