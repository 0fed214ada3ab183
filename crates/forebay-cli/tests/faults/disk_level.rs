//! Pages that the memory has no room for come back from a disk, and never as anything but what the
//! file system has.

use crate::common::{
    Agent, MIB, PAGE, Setup, SlowFs, assert_content, make_file, open_dir_in, read_all, text, used, wait_for,
};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const FILES: u64 = 6;
const FILE_BYTES: u64 = 16 * MIB;

/// An agent whose memory holds a third of the files on its PFS, and whose disk holds all.
struct Node {
    agent: Agent,
    pfs: SlowFs,
    disk: TempDir,
}

impl Node {
    fn start(capacity: &str) -> Option<Self> {
        let pfs = SlowFs::start()?;
        (0..FILES).for_each(|file| make_file(&pfs.behind(&name(file)), file, FILE_BYTES));
        // A disk that is slower than the PFS would not be read.
        pfs.limit("60MB/s");
        let disk = open_dir_in("/var/tmp");
        let tier = format!("disk = {:?}\ndisk_capacity = {capacity:?}\n", disk.path().join("pages"));
        let agent = Agent::start(Setup { tier, ..Setup::new(&pfs.mount()).capacity(56 * MIB) });
        Some(Node { agent, pfs, disk })
    }

    fn read(&self, file: u64) {
        self.read_as(file, file);
    }

    /// Reads a file, which must have content `seed`.
    fn read_as(&self, file: u64, seed: u64) {
        let opened = self.agent.client().open(self.pfs.at(&name(file))).unwrap();
        assert_content(&read_all(&opened).unwrap(), seed, 0);
    }

    /// Reads all files, one after the other; what is evicted meanwhile is on the disk then.
    fn read_all_files(&self) {
        (0..FILES).for_each(|file| {
            self.read(file);
            self.settle();
        });
    }

    /// Waits until nothing is written to the disk any more.
    fn settle(&self) {
        let mut before = self.agent.counter("pages_to_disk_total");
        wait_for("the disk has what was evicted", || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let now = self.agent.counter("pages_to_disk_total");
            std::mem::replace(&mut before, now) == now
        });
    }

    fn segments(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.disk.path().join("pages")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

fn name(file: u64) -> String {
    format!("file{file}")
}

/// Damages each block of 64 KiB of a file.
fn damage(path: &Path) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    for at in (5000..file.metadata().unwrap().len()).step_by(64 << 10) {
        file.write_all_at(b"damaged", at).unwrap();
    }
}

#[test]
fn what_the_memory_gives_up_is_read_from_the_disk() {
    let Some(node) = Node::start("1GiB") else { return };
    node.read_all_files();
    let fetched = node.agent.counter("fetched_bytes");
    assert!(fetched >= FILES * FILE_BYTES, "{fetched}");
    assert!(node.agent.counter("to_disk_bytes") >= 2 * FILE_BYTES, "{}", node.agent.log());
    node.read_all_files();
    let from_disk = node.agent.counter("from_disk_bytes");
    assert!(from_disk >= FILE_BYTES, "{from_disk}\n{}", node.agent.log());
    let again = node.agent.counter("fetched_bytes") - fetched;
    assert!(again < from_disk, "{again} bytes were read from the PFS again, {from_disk} from the disk");
    // What an operator evicts is gone.
    assert!(node.agent.cli(&["evict", "--all"]).status.success());
    assert!(node.segments().is_empty());
    let from_disk = node.agent.counter("from_disk_bytes");
    node.read(0);
    assert_eq!(node.agent.counter("from_disk_bytes"), from_disk);
}

#[test]
fn the_disk_outlives_the_memory_and_damage_is_noticed() {
    let Some(mut node) = Node::start("1GiB") else { return };
    node.read_all_files();
    // As a restart of the node.
    node.agent.kill_9();
    std::fs::remove_dir_all(node.agent.dir().join("tier")).unwrap();
    node.agent.restart();
    wait_for("the disk level is adopted", || node.agent.log().contains("adopted the disk level"));
    node.read_all_files();
    assert!(node.agent.counter("from_disk_bytes") > 0, "{}", node.agent.log());
    node.segments().iter().for_each(|segment| damage(segment));
    node.read_all_files();
    assert!(node.agent.counter("disk_failed_total") > 0, "no damage was seen");
    // Another version of a file is another file.
    make_file(&node.pfs.behind(&name(0)), 77, FILE_BYTES);
    node.read_as(0, 77);
    let down = node.agent.cli(&["down", "--drop"]);
    assert!(down.status.success(), "{}", text(&down.stderr));
    assert!(node.segments().is_empty(), "a dropped cache is on the disk");
}

#[test]
fn a_small_or_removed_directory_costs_nobody_a_read() {
    let Some(node) = Node::start("16MiB") else { return };
    for _ in 0..2 {
        node.read_all_files();
    }
    let bytes: u64 = node.segments().iter().map(|segment| segment.metadata().unwrap().len()).sum();
    assert!(bytes <= 16 * MIB, "{bytes} bytes on the disk");
    assert!(node.agent.counter("to_disk_bytes") > 16 * MIB, "the oldest have not gone");
    std::fs::remove_dir_all(node.disk.path().join("pages")).unwrap();
    node.read_all_files();
    assert!(node.agent.counter("disk_failed_total") > 0, "nobody has missed the directory");
}

/// Another number of kills may be given.
const KILLS: &str = "FOREBAY_DISK_KILLS";

#[test]
fn pages_of_an_agent_that_is_killed_again_and_again_are_right() {
    let Some(mut node) = Node::start("64MiB") else { return };
    let kills: u64 = std::env::var(KILLS).map_or(4, |kills| kills.parse().unwrap());
    let (mut pages, mut from_disk) = (0, 0);
    for round in 0..kills {
        let (socket, mount) = (node.agent.socket(), node.pfs.mount());
        let reader = std::thread::spawn(move || {
            let config =
                forebay_client::ClientConfig { socket: Some(socket), quiet: true, ..Default::default() };
            let client = forebay_client::Client::new(config);
            for file in (0..FILES).cycle().take(9) {
                let opened = client.open(mount.join(name(file))).unwrap();
                assert_content(&read_all(&opened).unwrap(), file, 0);
            }
            9 * FILE_BYTES / PAGE
        });
        wait_for("pages go to the disk", || node.agent.counter("pages_to_disk_total") > 20);
        from_disk += node.agent.counter("from_disk_bytes") / PAGE;
        node.agent.kill_9();
        if round % 2 == 0 {
            std::fs::remove_dir_all(node.agent.dir().join("tier")).unwrap();
        }
        node.agent.restart();
        pages += reader.join().unwrap();
    }
    node.read_all_files();
    pages += FILES * FILE_BYTES / PAGE;
    println!("{kills} kills, {pages} pages read and right, of these at least {from_disk} from the disk");
}

/// Bytes that were not in the memory of `agent`, for the same reads: most of a few pages.
fn misses(agent: &Agent, path: &Path) -> u64 {
    let opened = agent.client().open(path).unwrap();
    let (page, pages) = (64 << 10, FILES * FILE_BYTES / (64 << 10));
    let mut buffer = vec![0; page as usize];
    let mut random = 7_u64;
    for read in 0..6_000_u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let any = (random >> 33) % pages;
        let at = if read % 4 == 0 { any } else { any % (pages / 5) };
        assert_eq!(opened.read_at(&mut buffer, at * page).unwrap(), buffer.len());
    }
    agent.counter("fetched_bytes") + agent.counter("from_disk_bytes")
}

#[test]
fn the_memory_serves_as_many_reads_with_a_disk_below_it_but_for_what_the_disk_takes() {
    let Some(pfs) = SlowFs::start() else { return };
    let path = pfs.at("data");
    make_file(&path, 1, FILES * FILE_BYTES);
    let disk = open_dir_in("/var/tmp");
    let with_disk = format!("disk = {:?}\ndisk_capacity = \"1GiB\"\n", disk.path().join("pages"));
    // Bytes that were missing, and bytes of buffers.
    let of = |tier: &str, capacity: u64| {
        let setup = Setup { tier: tier.into(), page: 64 << 10, read_ahead: 0, ..Setup::new(&pfs.mount()) };
        let agent = Agent::start(setup.capacity(capacity));
        let buffers = used(&agent.status(), "buffers");
        (misses(&agent, &path), buffers)
    };
    let capacity = 56 * MIB;
    let (without, own) = of("", capacity);
    assert!(without > FILES * FILE_BYTES / 2, "nothing was evicted: {without}");
    let (_, buffers) = of(&with_disk, capacity);
    assert!((1..=capacity / 16 + 4 * MIB).contains(&(buffers - own)), "the disk takes {}", buffers - own);
    let (with, _) = of(&with_disk, capacity + buffers - own);
    // On a busy machine two agents that do the same differ by 5 %: pages are evicted during reads.
    assert!(with as f64 <= without as f64 * 1.1, "{with} bytes were missing with a disk, {without} without");
}
