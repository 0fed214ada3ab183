//! The order in which a tier gives way when its capacity shrinks, on a node of a small cluster.

use crate::cluster::read_piece;
use crate::common::{MIB, make_file, plain_pfs, wait_for};
use crate::coordinator::{Cluster, begin_with};
use forebay_client::ReadMode;
use std::path::Path;
use std::time::{Duration, Instant};

const SEED: u64 = 11;

const PINNED: u64 = 4 * MIB;
const OTHER: u64 = 48 * MIB;
const PLANNED: u64 = 16 * MIB;

/// Records of files and buffers of connections come and go next to the pages.
const SLACK: u64 = 2 * MIB;

/// More than an eighth of the tier's capacity then. Up to an eighth, remote pages go last until the
/// policy knows that they were read, and it learns of reads late and by samples.
const UNREAD: u64 = 8 * MIB;

/// Longest time in which a page may still arrive after its read.
const LATE: Duration = Duration::from_secs(5);

/// Node 0 of a cluster, the only one whose tier shrinks.
struct Stand(Cluster);

impl Stand {
    fn counter(&self, name: &str) -> u64 {
        let counters = self.0.client(0).admin().status().unwrap().counters;
        counters.iter().find(|(found, _)| found == name).unwrap().1
    }

    fn tier_bytes(&self) -> u64 {
        self.0.client(0).admin().memory().unwrap().tier_bytes
    }

    /// What the node has of a file, in bytes.
    fn resident(&self, path: &Path) -> u64 {
        let file = self.0.client(0).open_with(path, ReadMode::TierOnly);
        file.map_or(0, |file| file.resident_bytes())
    }

    /// Whether the node has these bytes; a planned page that is read is planned no longer.
    fn has(&self, path: &Path, mib: u64) -> bool {
        let file = self.0.client(0).open_with(path, ReadMode::TierOnly).unwrap();
        file.read_at(&mut vec![0; MIB as usize], mib * MIB).is_ok()
    }

    /// Makes the tier hold `bytes` less than it holds.
    fn give(&self, bytes: u64) {
        let capacity = self.tier_bytes() - bytes;
        self.0.client(0).admin().set_capacity(capacity).unwrap();
        // A connection may take a buffer between the two calls, and gives it back.
        wait_for("the tier holds no more than it may", || self.tier_bytes() <= capacity);
    }
}

#[test]
fn remote_pages_go_first_then_unplanned_then_the_latest_planned_and_pinned_stay() {
    let pfs = plain_pfs();
    let [pinned, other, data] = ["pinned", "other", "data"].map(|name| pfs.path().join(name));
    make_file(&pinned, SEED, PINNED);
    make_file(&other, SEED, OTHER);
    make_file(&data, SEED, PLANNED);
    let stand = Stand(Cluster::start(2, pfs.path(), &[128 * MIB, 128 * MIB]));
    let client = stand.0.client(0);
    client.admin().pin(&pinned, true).unwrap();
    wait_for("the pinned file is in the tier", || {
        read_piece(&client, &pinned, SEED, 0, PINNED as usize);
        stand.resident(&pinned) == PINNED
    });
    // What is remote of the pinned file counts as an own page after its second use.
    wait_for("its pages are the node's own", || {
        read_piece(&client, &pinned, SEED, 0, PINNED as usize);
        stand.counter("remote_page_bytes") == 0
    });
    // A reader on a busy machine may give up waiting for a page of the other node, which then is
    // not cached. Reading the file again would make the pages that are there the node's own.
    wait_for("another file is in the tier", || {
        client.admin().evict(&other).unwrap();
        read_piece(&client, &other, SEED, 0, OTHER as usize);
        let read = Instant::now();
        while stand.resident(&other) < OTHER && read.elapsed() < LATE {
            std::thread::sleep(Duration::from_millis(2));
        }
        stand.resident(&other) == OTHER
    });
    // Two waves of eight tasks: this many are fetched ahead of their tasks.
    let (job, tasks) = begin_with(&client, &data, vec![("n0".into(), 8)], |_| "n0".into());
    wait_for("all of the stage is prefetched", || stand.counter("planned_bytes") == PLANNED);
    assert_eq!(u64::from(tasks) * MIB, PLANNED);
    // When the policy learns of its second read, a remote page becomes one of the node's own.
    let remote = stand.counter("remote_page_bytes");
    assert!(
        remote > UNREAD + SLACK && remote + SLACK < OTHER,
        "{remote} of {OTHER} bytes are the other node's"
    );

    stand.give(remote - UNREAD);
    let left = stand.counter("remote_page_bytes");
    assert!(left <= UNREAD + SLACK, "{left} of {remote} bytes of remote pages did not go first");
    let own = stand.resident(&other);
    let wanted = OTHER - remote + left;
    assert!(own + SLACK >= wanted, "{own} of {wanted} bytes that are its own or remote stay");
    assert!(stand.counter("planned_bytes") + SLACK >= PLANNED);

    stand.give(own);
    assert_eq!(stand.resident(&other), 0);
    let planned = stand.counter("planned_bytes");
    assert!(
        planned + SLACK >= PLANNED,
        "{planned} of {PLANNED} bytes that were planned stay: they did not go last"
    );

    stand.give(PLANNED / 2);
    let left = stand.counter("planned_bytes");
    assert!(
        (PLANNED / 2 - 2 * SLACK..=PLANNED / 2 + SLACK).contains(&left),
        "{left} bytes are still planned"
    );
    let here: Vec<u64> = (0..PLANNED / MIB).filter(|mib| stand.has(&data, *mib)).collect();
    let last = PLANNED / MIB - 1;
    assert!(here.contains(&0) && !here.contains(&last), "{here:?} stay of what is read in this order");

    // Less than what cannot go: nothing else stays.
    client.admin().set_capacity(0).unwrap();
    assert_eq!((stand.counter("planned_bytes"), stand.resident(&data)), (0, 0));
    assert_eq!(stand.resident(&pinned), PINNED);
    read_piece(&client, &pinned, SEED, 0, PINNED as usize);
    read_piece(&client, &data, SEED, 0, PLANNED as usize);
    drop(job);
}
