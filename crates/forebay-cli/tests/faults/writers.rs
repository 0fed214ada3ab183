//! Somebody changes a file for longer than its time stamps show.
//!
//! The kernel stamps a write when it begins. What is read while the write is in progress may be
//! half old, and nothing moves the stamps when it ends: so the agent must not keep what it reads
//! meanwhile.

use crate::common::{
    Agent, MIB, OTHER_UID, Setup, SlowFs, assert_content, content, grow_old, make_file, one_file, pfs_with,
    plain_pfs, read_all, text, wait_for,
};
use crate::roles::Raw;
use forebay_lab::slowfs::Stamps;
use forebay_wire::{Reply, Request};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

/// The kernel copies a write in folios of up to 2 MiB: half of it is more than one.
const LEN: u64 = 8 * MIB;

/// The first [`LEN`] bytes of a file in memory.
struct Mapping(*mut u8);

// SAFETY: the memory belongs to the mapping, which is not bound to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(file: impl AsFd, protection: ProtFlags, flags: MapFlags) -> Self {
        // SAFETY: a new mapping overlaps nothing.
        let at = unsafe { mmap(std::ptr::null_mut(), LEN as usize, protection, flags, file, 0) }.unwrap();
        // Without it the kernel fetches more pages than are touched.
        // SAFETY: only advice, for this mapping.
        unsafe { madvise(at, LEN as usize, Advice::Random) }.unwrap();
        Mapping(at.cast())
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this length, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.0, LEN as usize) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody has a slice of it any more.
        unsafe { munmap(self.0.cast(), LEN as usize) }.unwrap();
    }
}

/// Two programs that open the file and read all of it, over and over.
struct Readers {
    stop: Arc<AtomicBool>,
    reads: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    fn start(agent: &Agent, path: &Path) -> Self {
        let (stop, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = [agent.client(), agent.client()].map(|client| {
            let (stop, reads, path) = (stop.clone(), reads.clone(), path.to_owned());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let bytes = read_all(&client.open(&path).unwrap()).unwrap();
                    assert_eq!(bytes.len() as u64, LEN);
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        Readers { stop, reads, threads: threads.into() }
    }

    /// Waits until some more reads have begun and ended.
    fn more(&self) {
        let before = self.reads.load(Ordering::Relaxed);
        wait_for("the readers read", || self.reads.load(Ordering::Relaxed) > before + 4);
    }

    fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Ends the fault, even when the test fails: an agent that waits for the stalled write could not be
/// killed.
struct Stall<'a>(&'a SlowFs);

impl Drop for Stall<'_> {
    fn drop(&mut self) {
        self.0.fault("none");
    }
}

fn byte_at(path: &Path, offset: u64) -> u8 {
    let mut byte = [0];
    File::open(path).unwrap().read_exact_at(&mut byte, offset).unwrap();
    byte[0]
}

fn stamps(path: &Path) -> (i64, i64, i64, i64) {
    let meta = path.metadata().unwrap();
    (meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec())
}

/// Reads as programs do; nothing of it may stay.
#[track_caller]
fn assert_not_kept(agent: &Agent, path: &Path) {
    grow_old(path);
    assert_eq!(read_all(&agent.client().open(path).unwrap()).unwrap().len() as u64, LEN);
    assert_eq!(agent.used("pages"), 0, "pages of a file that is being written are kept");
}

/// Now that nobody writes it, the file is cached with content 2.
#[track_caller]
fn assert_cached_right(agent: &Agent, path: &Path) {
    grow_old(path);
    let shown = path.to_str().unwrap();
    let load = agent.cli(&["load", shown]);
    assert!(load.status.success(), "{}{}", text(&load.stdout), text(&load.stderr));
    let verify = agent.cli(&["verify", shown]);
    assert!(verify.status.success(), "{}", text(&verify.stdout));
    assert_content(&read_all(&agent.client().open(path).unwrap()).unwrap(), 2, 0);
    assert!(agent.used("pages") >= LEN, "nothing is cached, so nothing is tested");
}

#[test]
fn one_long_write_leaves_no_half_old_pages() {
    let Some(slow) = SlowFs::start() else { return };
    std::fs::write(slow.at("source"), content(2, 0, LEN as usize)).unwrap();
    let (_pfs, path, agent) = one_file(1, LEN);

    // The write stops in its middle, where the kernel waits for the source.
    let source = File::open(slow.at("source")).unwrap();
    let mut source = Mapping::new(&source, ProtFlags::READ, MapFlags::PRIVATE);
    let (ready, rest) = source.bytes().split_at(LEN as usize / 2);
    assert_content(ready, 2, 0);
    assert_eq!(rest.len() as u64, LEN / 2);
    slow.fault("read=hang,path=source");
    let stall = Stall(&slow);
    let target = File::options().write(true).open(&path).unwrap();
    let writer = std::thread::spawn(move || target.write_all_at(source.bytes(), 0));
    let new = content(2, 0, LEN as usize);
    wait_for("half of it is written", || byte_at(&path, MIB) == new[MIB as usize]);
    let stamped = stamps(&path);
    grow_old(&path);

    // Readers continue from here until some time after the write has ended.
    let readers = Readers::start(&agent, &path);
    readers.more();
    assert_not_kept(&agent, &path);
    let load = agent.cli(&["load", path.to_str().unwrap()]);
    assert!(!load.status.success(), "a file that is being written was loaded");
    let said = text(&load.stdout) + &text(&load.stderr);
    assert!(said.contains("for writing") && said.contains(path.to_str().unwrap()), "{said}");
    assert_eq!(agent.used("pages"), 0);
    assert!(!writer.is_finished(), "the write did not stall");

    drop(stall);
    writer.join().unwrap().unwrap();
    assert_eq!(stamps(&path), stamped, "this kernel stamps the end of a write: nothing was tested");
    readers.more();
    readers.finish();
    assert_cached_right(&agent, &path);
}

#[test]
fn a_writer_by_mmap_leaves_no_half_old_pages() {
    let (_pfs, path, agent) = one_file(1, LEN);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut mapping = Mapping::new(&file, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // The mapping alone has it open for writing.
    drop(file);
    let new = content(2, 0, LEN as usize);
    // Every page once, which is what moves the stamps; and then without a trace.
    mapping.bytes().copy_from_slice(&content(3, 0, LEN as usize));
    assert_not_kept(&agent, &path);
    mapping.bytes().copy_from_slice(&new);
    assert_not_kept(&agent, &path);
    drop(mapping);
    assert_cached_right(&agent, &path);
}

#[test]
fn what_somebody_has_open_for_writing_is_cached_once_it_is_closed() {
    let pfs = plain_pfs();
    let path = pfs.path().join("f");
    let agent = Agent::on(pfs.path());
    for flags in [0, libc::O_DIRECT, libc::O_APPEND] {
        make_file(&path, 2, LEN);
        agent.client().admin().evict_all().unwrap();
        let file = File::options().write(true).custom_flags(flags).open(&path).unwrap();
        // A punch that changes nothing is a change to the kernel.
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        if flags == 0 {
            rustix::fs::fallocate(&file, punch, LEN, 4096).unwrap();
        }
        assert_not_kept(&agent, &path);
        drop(file);
        assert_cached_right(&agent, &path);
    }
}

#[test]
fn an_agent_that_gets_no_lease_waits_until_the_file_has_settled() {
    let (pfs, path) = pfs_with("f", 2, LEN);
    let start = |settle_ms| {
        let uid = Some(OTHER_UID);
        Agent::start(Setup { uid, settle_ms, ..Setup::new(pfs.path()) })
    };
    let hour_ms = 3_600_000;
    assert_not_kept(&start(hour_ms), &path);
    let agent = start(0);
    assert_eq!(read_all(&agent.client().open(&path).unwrap()).unwrap().len() as u64, LEN);
    assert_cached_right(&agent, &path);
}

#[test]
fn a_file_that_other_nodes_may_write_waits_until_it_has_settled() {
    let Some((slow, path)) = SlowFs::with("f", 2, LEN) else { return };
    let hour = Setup { settle_ms: 3_600_000, ..Setup::new(&slow.mount()) };
    assert_not_kept(&Agent::start(hour), &path);
    let second = Setup { settle_ms: 1_000, ..Setup::new(&slow.mount()) };
    // `load` waits for that.
    assert_cached_right(&Agent::start(second), &path);
}

#[test]
fn small_reads_of_a_file_that_is_not_kept_do_not_ask_the_agent_each_time() {
    let (_pfs, path, agent) = one_file(2, LEN);
    let writer = File::options().write(true).open(&path).unwrap();
    let file = agent.client().open(&path).unwrap();
    let (before, started) = (agent.counter("refusals_total"), Instant::now());
    let mut buffer = [0; 4096];
    for offset in (0..LEN).step_by(buffer.len()) {
        assert_eq!(file.read_at(&mut buffer, offset).unwrap(), buffer.len());
        assert_content(&buffer, 2, offset);
    }
    let most = 2 + started.elapsed().as_millis() as u64 / 10;
    let refused = agent.counter("refusals_total") - before;
    assert!((1..=most).contains(&refused), "{refused} refusals where {most} are due at most");

    drop(writer);
    wait_for("the same handle has the file cached", || {
        assert_eq!(file.read_at(&mut buffer, 0).unwrap(), buffer.len());
        assert_content(&buffer, 2, 0);
        agent.used("pages") > 0
    });
}

#[test]
fn a_pfs_that_is_mounted_after_the_agent_started_is_not_taken_for_a_local_disk() {
    let Some(mut slow) = SlowFs::start() else { return };
    let path = slow.at("f");
    make_file(&path, 2, LEN);
    slow.unmount();
    let agent = Agent::start(Setup { settle_ms: 3_600_000, ..Setup::new(&slow.mount()) });
    slow.serve(Stamps::Exact);
    // The first request after the mount finds it, and has its stamps measured.
    agent.client().open(&path).unwrap();
    wait_for("its stamps are measured", || agent.status().mounts[0].cached);
    assert_not_kept(&agent, &path);
}

/// Written from the end of the file on, each page is within the file, and the kernel may use a huge
/// page for it.
#[test]
fn parts_of_pages_that_are_staged_take_no_more_memory_than_is_counted() {
    let pfs = plain_pfs();
    let agent = Agent::start(Setup { page: 2 * MIB, backing: "mount", ..Setup::new(pfs.path()) });
    let taken = || {
        let stat = rustix::fs::statvfs(agent.state_dir().join("tier")).unwrap();
        (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    };
    let raw = Raw::connect(&agent.socket());
    let Reply::Staging { .. } = raw.ask(&Request::StageBegin, &[]) else { panic!("no buffer") };
    let (before, pages) = (agent.used("pages"), 24);
    for page in (0..pages).rev() {
        raw.0.send(&Request::StagePage { slot: 0, page, len: 4096 }, &[]).unwrap();
    }
    assert!(matches!(raw.ask(&Request::Mounts, &[]), Reply::Mounts(_)), "all of them are taken in");
    let counted = agent.used("pages") - before;
    assert_eq!(counted, u64::from(pages) * 4096);
    assert!(taken() <= counted + MIB, "{} bytes are taken, and {counted} counted", taken());
    drop(raw);
    wait_for("all is released", || taken() <= MIB);
}
