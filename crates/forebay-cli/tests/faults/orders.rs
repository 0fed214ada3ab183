//! Training: epochs over files that the tier does not hold, without and with an announced order.
//! What is compared is what the agent counts: bytes read from the PFS, never time.

use crate::common::{Agent, BASE, MIB, Setup, content, counter, make_files, plain_pfs, read_all, wait_for};
use crate::coordinator::Cluster;
use forebay_client::{Client, Item, Order};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const FILES: usize = 200;
const FILE: u64 = 256 << 10;
const DATA: u64 = FILES as u64 * FILE;
const EPOCHS: usize = 5;

/// What a copy of a file takes besides its pages, generously.
const METADATA: u64 = 12 << 10;

fn files(pfs: &Path) -> Vec<PathBuf> {
    make_files(FILES as u64, FILE, |file| pfs.join(format!("{file:03}")))
}

struct Training {
    agent: Agent,
    client: Client,
    paths: Vec<PathBuf>,
    _pfs: TempDir,
}

impl Training {
    /// Starts an agent with a tier that holds `percent` of the files.
    fn start(percent: u64) -> Self {
        let pfs = plain_pfs();
        let paths = files(pfs.path());
        let room = DATA * percent / 100;
        // Files of one page each. Pages of larger files are read ahead: a tier as small as this
        // would be filled several times before the agent learns which of them were used.
        let setup = Setup { page: FILE, ..Setup::new(pfs.path()) };
        let agent = Agent::start(setup.capacity(BASE + room + room / FILE * METADATA));
        let client = agent.client();
        Training { agent, client, paths, _pfs: pfs }
    }

    fn begin_order(&self) -> Order {
        let items: Vec<Item> = self.paths.iter().map(|path| Item::from(path.as_path())).collect();
        self.client.begin_order("training", &items).unwrap()
    }

    fn read(&self, file: u32) {
        let open = self.client.open(&self.paths[file as usize]).unwrap();
        assert!(
            read_all(&open).unwrap() == content(file.into(), 0, FILE as usize),
            "wrong bytes of file {file}"
        );
    }

    /// Reads an epoch. Returns the part of it that was not read from the PFS.
    fn epoch(&self, order: &[u32], mut before: impl FnMut()) -> f64 {
        let fetched = self.agent.counter("fetched_bytes");
        for file in order {
            before();
            self.read(*file);
        }
        1.0 - (self.agent.counter("fetched_bytes") - fetched) as f64 / DATA as f64
    }

    /// The part of the data that the tier holds: the best that any epoch can hit.
    fn cached(&self) -> f64 {
        self.agent.status().resident_bytes as f64 / DATA as f64
    }
}

/// A permutation of the files for each epoch.
fn shuffled(epoch: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..FILES as u32).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(epoch as u64 + 1);
    for left in (1..FILES).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(left, (state % (left as u64 + 1)) as usize);
    }
    order
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn shuffled_epochs_hit_what_the_tier_holds() {
    for percent in [25, 50] {
        let training = Training::start(percent);
        let saved: Vec<f64> = (0..EPOCHS).map(|epoch| training.epoch(&shuffled(epoch), || ())).collect();
        let (cached, hits) = (training.cached(), mean(&saved[1..]));
        assert!(cached > percent as f64 / 100.0 * 0.9, "the tier holds {cached}");
        assert!(hits > 0.95 * cached, "{percent} %: {hits} hits, and the tier holds {cached}: {saved:?}");
    }
}

#[test]
fn announced_epochs_are_fetched_ahead_and_hit_nearly_what_the_tier_holds() {
    for percent in [25, 50] {
        let training = Training::start(percent);
        let mut order = training.begin_order();
        order.announce(&shuffled(0)).unwrap();
        let mut saved = Vec::new();
        for epoch in 0..EPOCHS {
            order.announce(&shuffled(epoch + 1)).unwrap();
            saved.push(training.epoch(&shuffled(epoch), || order.read(1).unwrap()));
        }
        let (cached, hits) = (training.cached(), mean(&saved[1..]));
        assert!(training.agent.counter("pages_planned_total") > 0, "nothing was fetched ahead");
        assert!(training.agent.counter("announced_bytes") > 0);
        assert!(hits > 0.7 * cached, "{percent} %: {hits} hits, and the tier holds {cached}: {saved:?}");
        // As if the program had died: nobody says that the job ends.
        drop(order);
        let kept = || ["announced_bytes", "planned_bytes"].map(|name| training.agent.counter(name));
        wait_for("nothing is kept for it", || kept() == [0, 0]);
    }
}

#[test]
fn an_order_that_is_not_kept_is_dropped_and_costs_little() {
    let training = Training::start(50);
    let mut order = training.begin_order();
    order.announce(&shuffled(0)).unwrap();
    let (mut saved, mut refused) = (Vec::new(), None);
    for epoch in 0..EPOCHS {
        // What is announced is not what is read.
        let mut report = || {
            if refused.is_none() {
                refused = order.read(1).err();
            }
        };
        saved.push(training.epoch(&shuffled(100 + epoch), &mut report));
        if refused.is_none() {
            refused = order.announce(&shuffled(epoch + 1)).err();
        }
    }
    let refusal = refused.expect("the order goes on").to_string();
    assert!(refusal.contains("another order"), "{refusal}");
    let kept = || ["announced_bytes", "planned_bytes"].map(|name| training.agent.counter(name));
    wait_for("nothing is kept for it", || kept() == [0, 0]);
    let (cached, hits) = (training.cached(), mean(&saved[2..]));
    assert!(hits > 0.9 * cached, "{hits} hits, and the tier holds {cached}: {saved:?}");
}

#[test]
fn a_part_of_an_epoch_may_be_left_and_parts_of_files_may_be_announced() {
    let training = Training::start(50);
    let half = |path: &PathBuf, offset| Item { path: path.clone(), offset, len: Some(FILE / 2) };
    let items: Vec<Item> =
        training.paths.iter().flat_map(|path| [half(path, 0), half(path, FILE / 2)]).collect();
    let mut order = training.client.begin_order("halves", &items).unwrap();
    let (first, second): (Vec<u32>, Vec<u32>) = (shuffled(0), shuffled(1));
    order.announce(&first).unwrap();
    order.announce(&second).unwrap();
    assert_eq!(order.items_left(), 2 * FILES);
    order.read(50).unwrap();
    order.leave_epoch().unwrap();
    assert_eq!(order.items_left(), FILES);
    // What comes next is of the second epoch.
    wait_for("it is fetched ahead", || training.agent.counter("pages_planned_total") > 0);
    order.read(FILES).unwrap();
    let none = order.announce(&[2 * FILES as u32]).unwrap_err().to_string();
    assert!(none.contains("item 400 is announced, and the order has 400 items"), "{none}");
    assert!(training.agent.used("clients") < 4 * MIB);
}

#[test]
fn ranks_on_two_nodes_announce_their_own_parts_and_share_their_tiers() {
    let pfs = plain_pfs();
    let paths = files(pfs.path());
    // All files fit the two tiers together, and no single one.
    let room = BASE + DATA * 3 / 4;
    let cluster = Cluster::start(2, pfs.path(), &[room, room]);
    cluster.wait_members(2);
    let items: Vec<Item> = paths.iter().map(|path| Item::from(path.as_path())).collect();
    let barrier = std::sync::Barrier::new(3);
    let fetched: Vec<u64> = std::thread::scope(|scope| {
        for rank in 0..2 {
            let (cluster, items, paths, barrier) = (&cluster, &items, &paths, &barrier);
            scope.spawn(move || {
                let client = cluster.client(rank);
                let part = |epoch| shuffled(epoch).into_iter().skip(rank).step_by(2).collect::<Vec<u32>>();
                let mut order = client.begin_order("training", items).unwrap();
                order.announce(&part(0)).unwrap();
                for epoch in 0..EPOCHS {
                    order.announce(&part(epoch + 1)).unwrap();
                    for file in part(epoch) {
                        order.read(1).unwrap();
                        let open = client.open(&paths[file as usize]).unwrap();
                        assert!(read_all(&open).unwrap() == content(file.into(), 0, FILE as usize), "{file}");
                    }
                    barrier.wait();
                    barrier.wait();
                }
            });
        }
        let count = |_| {
            barrier.wait();
            let bytes = cluster.sum("fetched_bytes");
            barrier.wait();
            bytes
        };
        (0..EPOCHS).map(count).collect()
    });
    let again = (fetched[EPOCHS - 1] - fetched[0]) as f64 / DATA as f64 / (EPOCHS - 1) as f64;
    let planned = |node| counter(&cluster.status(node), "pages_planned_total");
    let each: Vec<u64> = (0..2).map(planned).collect();
    assert!(each.iter().all(|planned| *planned > 0), "each node fetches ahead: {each:?}");
    assert!(cluster.sum("from_peers_bytes") > 0);
    assert!(fetched[0] as f64 <= 1.02 * DATA as f64, "the first epoch: {fetched:?}");
    assert!(again < 0.15, "a later epoch reads {again} of the data from the PFS: {fetched:?}");
}
