//! Two nodes that write the same files in turn on a real file system: each open sees what the other
//! node has closed, through Forebay and without it.
//!
//! Nobody else writes a file between a close and the reads after it, so each byte read has one
//! right value. Threads work on files of their own, at the same time, and step from node to node.
//! Writes go in place, partly, after a truncation, by an `O_TRUNC`, and some set the mtime back.
//! After each read through Forebay the file is read plainly on the same mount: what Forebay reads
//! in the background must not leave old pages in the kernel's cache for other programs.
//!
//! `FOREBAY_COHERENCE_SEED` repeats a run, `FOREBAY_COHERENCE_STEPS` makes it longer,
//! `FOREBAY_COHERENCE_PLAIN=1` leaves Forebay out of it.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

mod cluster;
mod kit;

use cluster::{Lab, text};
use forebay_client::{Client, ClientConfig, WriteMode, WriteOptions, errno};
use kit::{FOREBAY, Random, succeeded, wait_for};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const THREADS: u64 = 4;

const FILES_OF_EACH: usize = 3;

const FILE_MAX: u64 = 5 << 20;

/// Longer than `mount.settle_ms`: a reader may now find the file in the tier.
const SETTLED_MS: u64 = 3_300;

/// The client of MooseFS 3.0 reports the stamps of what it has written once a second, however soon
/// the file is closed.
const STAMPS_LAG: Duration = Duration::from_secs(3);

/// What is compared at a time.
const UNIT: usize = 4096;

/// A compute node, seen from this process.
struct Station {
    mounts: File,
    client: Client,
}

impl Station {
    fn of(lab: &Lab, node: &str) -> Station {
        let agent = format!("agent-{node}");
        let status = lab.status();
        let nodes = status["nodes"].as_array().unwrap().clone();
        let services = nodes.iter().flat_map(|n| n["services"].as_array().unwrap().clone());
        let pid = services.into_iter().find(|s| s["name"] == agent.as_str()).unwrap()["pid"].clone();
        let socket = Some(lab.dir.path().join("node/agent/agent.sock"));
        let config = ClientConfig { socket, ..ClientConfig::default() };
        Station { mounts: File::open(format!("/proc/{pid}/ns/mnt")).unwrap(), client: Client::new(config) }
    }

    /// Takes the calling thread, which shares no working directory, to this node.
    fn enter(&self) {
        move_into_link_name_space(self.mounts.as_fd(), Some(LinkNameSpaceType::Mount)).unwrap();
    }
}

/// A file and what it should contain.
struct Model {
    path: PathBuf,
    bytes: Vec<u8>,
    generation: u64,
}

impl Model {
    /// Each eight bytes of the file hold the generation that wrote them.
    fn fill(&self, start: u64, len: usize) -> Vec<u8> {
        let mut bytes = self.generation.to_le_bytes().repeat(len / 8 + 1);
        bytes.truncate(len);
        bytes.rotate_left((start % 8) as usize % len.max(1));
        bytes
    }

    /// Changes the file on the node where the thread is, and closes it.
    fn change(&mut self, random: &mut Random) -> io::Result<()> {
        self.generation += 1;
        let way = random.below(8);
        let file = File::options().read(true).write(true).create(true).truncate(way == 0).open(&self.path)?;
        if way == 0 {
            self.bytes.clear();
        }
        let len = self.bytes.len() as u64;
        let (start, end) = match way {
            _ if len == 0 => (0, UNIT as u64 + random.below(FILE_MAX - UNIT as u64)),
            1 => {
                let len = random.below(FILE_MAX);
                file.set_len(len)?;
                self.bytes.resize(len as usize, 0);
                (0, len / 2)
            }
            2 | 3 => (0, len),
            _ => {
                let start = random.below(len);
                (start, start + 1 + random.below(len - start))
            }
        };
        let piece = self.fill(start, (end - start) as usize);
        self.bytes.resize(self.bytes.len().max(end as usize), 0);
        self.bytes[start as usize..end as usize].copy_from_slice(&piece);
        for (i, part) in piece.chunks(256 << 10).enumerate() {
            file.write_all_at(part, start + ((i * (256 << 10)) as u64))?;
        }
        if random.below(4) == 0 {
            let earlier = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
            let keep = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
            rustix::fs::futimens(&file, &Timestamps { last_access: keep, last_modification: earlier })?;
        }
        Ok(())
    }

    /// What is wrong with `read`, if anything is.
    fn fault(&self, read: &[u8]) -> Option<String> {
        if read == self.bytes {
            return None;
        }
        if read.len() != self.bytes.len() {
            return Some(format!("{} bytes and not {}", read.len(), self.bytes.len()));
        }
        let units = read.chunks(UNIT).zip(self.bytes.chunks(UNIT)).enumerate();
        let wrong: Vec<usize> = units.filter(|(_, (is, should))| is != should).map(|(i, _)| i).collect();
        let at = wrong[0] * UNIT;
        let generation = read[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Some(format!(
            "{} of {} units, first {}, last {}: generation {generation} of {}",
            wrong.len(),
            read.len().div_ceil(UNIT),
            wrong[0],
            wrong[wrong.len() - 1],
            self.generation
        ))
    }
}

#[derive(Debug, Default)]
struct Tally {
    steps: u64,
    superseded: u64,
    from_tier: u64,
    faults: Vec<String>,
    plain_faults: Vec<String>,
}

fn read_by_forebay(
    client: &Client,
    path: &Path,
    tally: &mut Tally,
    random: &mut Random,
) -> io::Result<Vec<u8>> {
    let mut tries = 0;
    loop {
        let file = client.open(path)?;
        let mut bytes = vec![0; file.size()? as usize];
        let piece = [bytes.len().max(1), 64 << 10, 300_000][random.below(3) as usize];
        let read = bytes.chunks_mut(piece).enumerate().try_for_each(|(i, part)| {
            let n = file.read_at(part, (i * piece) as u64)?;
            if n == part.len() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::UnexpectedEof)) }
        });
        tally.from_tier += u64::from(file.resident_bytes() > 0);
        tries += 1;
        match read {
            Err(e) if errno(&e) == libc::ESTALE && tries < 100 => tally.superseded += 1,
            read => return read.map(|()| bytes),
        }
    }
}

/// What a run is about.
#[derive(Clone, Copy)]
struct Case {
    pfs: &'static str,
    /// Plain reads may be wrong there even without Forebay.
    plain_may_fail: bool,
    /// After a close the stamps move later. The writer sets them immediately with `utimensat`, or
    /// waits.
    stamps_lag: bool,
    plain_only: bool,
}

impl Case {
    fn of(pfs: &'static str) -> Case {
        let plain_only = number("FOREBAY_COHERENCE_PLAIN", 0) == 1;
        Case { pfs, plain_may_fail: false, stamps_lag: false, plain_only }
    }
}

fn settle_stamps(path: &Path, random: &mut Random) {
    if random.below(16) == 0 {
        return std::thread::sleep(STAMPS_LAG);
    }
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty()).unwrap();
}

fn work(stations: &[Station], pfs: &Path, seed: u64, steps: u64, case: Case) -> Tally {
    // SAFETY: this thread's working directory and mounts are its own from here on; nothing relies
    // on the old ones.
    unsafe { unshare_unsafe(UnshareFlags::FS) }.unwrap();
    let mut random = Random(seed);
    let mut tally = Tally::default();
    let name = |i| pfs.join(format!("file-{seed}-{i}"));
    let mut models: Vec<Model> =
        (0..FILES_OF_EACH).map(|i| Model { path: name(i), bytes: Vec::new(), generation: 0 }).collect();
    for step in 0..steps {
        let model = &mut models[random.below(FILES_OF_EACH as u64) as usize];
        let writer = random.below(2) as usize;
        stations[writer].enter();
        model.change(&mut random).unwrap();
        if case.stamps_lag {
            settle_stamps(&model.path, &mut random);
        }
        let reader = if random.below(8) == 0 { writer } else { 1 - writer };
        let station = &stations[reader];
        station.enter();
        for again in 0..1 + random.below(3) {
            let pause = if random.below(12) == 0 { SETTLED_MS } else { random.below(60) };
            std::thread::sleep(Duration::from_millis(if again > 0 { pause } else { 0 }));
            let fault = |how: &str, read: io::Result<Vec<u8>>| {
                let fault = read.map_or_else(|e| Some(e.to_string()), |bytes| model.fault(&bytes))?;
                Some(format!("seed {seed} step {step}, {how}, read {again} on c{}: {fault}", reader + 1))
            };
            if !case.plain_only {
                let read = read_by_forebay(&station.client, &model.path, &mut tally, &mut random);
                tally.faults.extend(fault("by Forebay", read));
            }
            tally.plain_faults.extend(fault("plainly", std::fs::read(&model.path)));
        }
        tally.steps += 1;
    }
    tally
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

fn closed_on_one_node_is_seen_on_the_other(case: Case) {
    let Some(lab) = Lab::possible(case.pfs) else { return };
    succeeded(&mut lab.up());
    let stations = ["c1", "c2"].map(|node| Station::of(&lab, node));
    let seed = number("FOREBAY_COHERENCE_SEED", 1);
    let steps = number("FOREBAY_COHERENCE_STEPS", 120);
    let mount = lab.dir.path().join("pfs");
    let start = Instant::now();
    let tallies: Vec<Tally> = std::thread::scope(|scope| {
        let (stations, mount) = (&stations, &mount);
        let run =
            |thread| scope.spawn(move || work(stations, mount, seed * 1000 + thread, steps / THREADS, case));
        let threads: Vec<_> = (0..THREADS).map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let sum = |of: fn(&Tally) -> u64| tallies.iter().map(of).sum::<u64>();
    let faults: Vec<&String> = tallies.iter().flat_map(|tally| &tally.faults).collect();
    let plain_faults: Vec<&String> = tallies.iter().flat_map(|tally| &tally.plain_faults).collect();
    println!(
        "{}, seed {seed}: {} steps in {:?}, {} reads from the tier, {} superseded, {} wrong, {} wrong plainly",
        case.pfs,
        sum(|t| t.steps),
        start.elapsed(),
        sum(|t| t.from_tier),
        sum(|t| t.superseded),
        faults.len(),
        plain_faults.len()
    );
    assert!(faults.is_empty(), "FOREBAY_COHERENCE_SEED={seed} repeats it:\n{faults:#?}");
    assert!(case.plain_may_fail || plain_faults.is_empty(), "{plain_faults:#?}");
    assert!(case.plain_only || sum(|t| t.from_tier) > 0, "nothing was ever read from the tier");
}

#[test]
fn cephfs_shows_at_an_open_what_the_other_node_has_closed() {
    // ceph-fuse gives up its right to cache before the kernel has dropped its pages, and an open
    // keeps them: without Forebay one read in some thousands sees old bytes.
    closed_on_one_node_is_seen_on_the_other(Case { plain_may_fail: true, ..Case::of("cephfs") });
}

#[test]
fn glusterfs_shows_at_an_open_what_the_other_node_has_closed() {
    closed_on_one_node_is_seen_on_the_other(Case::of("glusterfs"));
}

#[test]
fn moosefs_shows_at_an_open_what_the_other_node_has_closed_and_stamped() {
    closed_on_one_node_is_seen_on_the_other(Case { stamps_lag: true, ..Case::of("moosefs") });
}

/// A file that is rewritten from scratch is truncated first, which the servers learn immediately:
/// its stamps do not wait for the client. The reader has the old version, of the same length, in
/// its tier.
#[test]
fn moosefs_shows_at_an_open_what_forebays_writers_have_closed_on_the_other_node() {
    let Some(lab) = Lab::possible("moosefs") else { return };
    succeeded(&mut lab.up());
    let [writer, reader] = ["c1", "c2"].map(|node| Station::of(&lab, node));
    let mount = lab.dir.path().join("pfs");
    let work = || {
        // SAFETY: this thread's working directory and mounts are its own from here on; nothing
        // relies on the old ones.
        unsafe { unshare_unsafe(UnshareFlags::FS) }.unwrap();
        let read = |path: &Path| {
            let file = reader.client.open(path).unwrap();
            let mut bytes = vec![0; 300_000];
            assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
            (bytes, file.resident_bytes())
        };
        let modes = [WriteMode::Through, WriteMode::Bypass];
        let files: Vec<(PathBuf, WriteMode)> =
            (0..8).map(|i| (mount.join(format!("whole-{i}")), modes[i % 2])).collect();
        let write = |path: &Path, mode, byte| {
            writer.enter();
            let mut file = writer.client.create(path, mode).unwrap();
            file.write_all(&[byte; 300_000]).unwrap();
            file.close().unwrap();
            reader.enter();
        };
        files.iter().for_each(|(path, mode)| write(path, *mode, 1));
        wait_for("the files to be in the tier", || files.iter().all(|(path, _)| read(path).1 == 300_000));
        for (path, mode) in &files {
            write(path, *mode, 2);
            assert!(read(path).0 == [2; 300_000], "{mode:?}: the old bytes of the tier, after the close");
        }
    };
    std::thread::scope(|scope| scope.spawn(work).join().unwrap());
}

/// Each node opens the file, appends a record and closes it, again and again, while the other does.
#[test]
fn moosefs_keeps_every_record_that_two_nodes_append_at_the_same_time() {
    const COUNT: u64 = 100;
    const RECORD_BYTES: usize = 100;
    let Some(lab) = Lab::possible("moosefs") else { return };
    succeeded(&mut lab.up());
    let stations = ["c1", "c2"].map(|node| Station::of(&lab, node));
    let path = lab.dir.path().join("pfs/log");
    // In its first bytes whose record it is and which one, in the last that it is whole.
    let record = |who: u64, number: u64| {
        let mut record = [who.to_le_bytes(), number.to_le_bytes()].concat();
        record.resize(RECORD_BYTES - 1, b'.');
        record.push(b'\n');
        record
    };
    // Opens so far; a thread that waits for the other gives up when that has failed.
    let opens = [AtomicU64::new(0), AtomicU64::new(0)];
    let append = |who: u64, mode| {
        // SAFETY: this thread's working directory and mounts are its own from here on; nothing
        // relies on the old ones.
        unsafe { unshare_unsafe(UnshareFlags::FS) }.unwrap();
        stations[who as usize].enter();
        let options = WriteOptions { mode, append: true, ..WriteOptions::default() };
        for number in 0..COUNT {
            let mut file = stations[who as usize].client.create_with(&path, options).unwrap();
            // Both have the file open, and have seen the same end.
            opens[who as usize].store(number + 1, Ordering::SeqCst);
            wait_for("the other has it open", || opens[1 - who as usize].load(Ordering::SeqCst) > number);
            file.write_all(&record(who, number)).unwrap();
            file.close().unwrap();
        }
    };
    std::thread::scope(|scope| {
        // Not by both at the same time: one of them would get EEXIST there, without O_EXCL.
        scope.spawn(|| {
            // SAFETY: as below.
            unsafe { unshare_unsafe(UnshareFlags::FS) }.unwrap();
            stations[0].enter();
            drop(File::create(&path).unwrap());
        });
    });
    std::thread::scope(|scope| {
        scope.spawn(|| append(0, WriteMode::Through));
        scope.spawn(|| append(1, WriteMode::Bypass));
    });
    let read = |station: &Station, by_forebay: bool| {
        let read = || {
            // SAFETY: as above.
            unsafe { unshare_unsafe(UnshareFlags::FS) }.unwrap();
            station.enter();
            match by_forebay {
                true => {
                    read_by_forebay(&station.client, &path, &mut Tally::default(), &mut Random(1)).unwrap()
                }
                false => std::fs::read(&path).unwrap(),
            }
        };
        std::thread::scope(|scope| scope.spawn(read).join().unwrap())
    };
    for (station, by_forebay) in stations.iter().flat_map(|station| [(station, true), (station, false)]) {
        let bytes = read(station, by_forebay);
        assert_eq!(bytes.len() as u64, 2 * COUNT * RECORD_BYTES as u64, "records are lost or there twice");
        let mut next = [0, 0];
        for found in bytes.chunks(RECORD_BYTES) {
            let who = u64::from_le_bytes(*found.first_chunk().unwrap());
            assert!(who < 2 && found == record(who, next[who as usize]), "after {next:?}: {found:?}");
            next[who as usize] += 1;
        }
    }
}

/// Such pages would stay there after another node's write, and plain programs would read them.
#[test]
fn what_forebay_reads_of_cephfs_stays_out_of_the_kernels_page_cache() {
    let Some(lab) = Lab::possible("cephfs") else { return };
    succeeded(&mut lab.up());
    let write = "head -c 12000000 /dev/urandom > $FOREBAY_LAB_PFS/f && sha256sum < $FOREBAY_LAB_PFS/f";
    let written = text(&lab.run("c1", &["sh", "-c", write]));
    let cat = format!("{} cat $FOREBAY_LAB_PFS/f | sha256sum", FOREBAY);
    let fetched = |node| {
        let status = lab.run(node, &[FOREBAY, "status", "--json"]);
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
        status["counters"]["fetched_bytes"].as_u64().unwrap()
    };
    let cached = || {
        let look = "fincore --bytes --noheadings --output PAGES $FOREBAY_LAB_PFS/f";
        text(&lab.run("c2", &["sh", "-c", look]))
    };
    // Read through the client, since the file is racily clean; and later through the agents.
    for from_tier in [false, true] {
        wait_for("the file to be read", || {
            assert_eq!(text(&lab.run("c2", &["sh", "-c", &cat])), written);
            assert_eq!(cached(), "0", "from the tier: {from_tier}");
            // The page's owner is one of the two.
            !from_tier || fetched("c1") + fetched("c2") > 0
        });
    }
    let verify = lab.run("c2", &["sh", "-c", &format!("{} verify --json $FOREBAY_LAB_PFS/f", FOREBAY)]);
    let verified: serde_json::Value = serde_json::from_slice(&verify.stdout).unwrap();
    assert!(verified["compared_bytes"].as_u64().unwrap() > 0, "{verified}");
    assert_eq!(cached(), "0", "read to be verified: by a plain program's way, which may be stale");
    assert!(lab.run("c2", &["sh", "-c", "cat $FOREBAY_LAB_PFS/f > /dev/null"]).status.success());
    assert_ne!(cached(), "0", "a plain read fills the cache, or this test sees nothing");
}

/// `ceph-fuse` has a cache of its own, which may keep old bytes after another client's write. It
/// serves them to all descriptors that were opened without `O_DIRECT`, even if they get the flag
/// later.
#[test]
fn what_forebay_reads_of_cephfs_comes_from_the_servers() {
    const BYTES: u64 = 12_000_000;
    let Some(lab) = Lab::possible("cephfs") else { return };
    succeeded(&mut lab.up());
    let write = format!("head -c {BYTES} /dev/urandom > $FOREBAY_LAB_PFS/f");
    assert!(lab.run("c1", &["sh", "-c", &write]).status.success());
    let station = Station::of(&lab, "c2");
    let path = lab.dir.path().join("pfs/f");
    let sent = || lab.status()["servers_sent_bytes"].as_u64().unwrap();
    let work = || {
        // SAFETY: this thread's working directory and mounts are its own from here on; nothing
        // relies on the old ones.
        unsafe { unshare_unsafe(UnshareFlags::FS) }.unwrap();
        station.enter();
        let plain = std::fs::read(&path).unwrap();
        let read = || {
            let file = station.client.open(&path).unwrap();
            let mut bytes = vec![0; BYTES as usize];
            assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
            assert!(bytes == plain);
            file.resident_bytes()
        };
        let mut before = sent();
        let flagged_later = File::open(&path).unwrap();
        rustix::fs::fcntl_setfl(&flagged_later, rustix::fs::OFlags::DIRECT).unwrap();
        flagged_later.read_exact_at(&mut vec![0; BYTES as usize], 0).unwrap();
        assert!(sent() - before < BYTES / 2, "the client's cache is cold, and this test sees nothing");
        before = sent();
        read();
        assert!(sent() - before >= BYTES, "read at first: {} bytes", sent() - before);
        std::thread::sleep(Duration::from_millis(SETTLED_MS));
        let evict = format!("{} evict $FOREBAY_LAB_PFS/f", FOREBAY);
        for node in ["c1", "c2"] {
            assert!(lab.run(node, &["sh", "-c", &evict]).status.success());
        }
        before = sent();
        wait_for("the file to be in the tier", || read() == BYTES);
        assert!(sent() - before >= BYTES, "fetched by the agents: {} bytes", sent() - before);
        before = sent();
        let verify = format!("{} verify $FOREBAY_LAB_PFS/f", FOREBAY);
        assert!(lab.run("c2", &["sh", "-c", &verify]).status.success());
        assert!(sent() - before >= BYTES, "read to be verified: {} bytes", sent() - before);
    };
    std::thread::scope(|scope| scope.spawn(work).join().unwrap());
}

/// What *Limits* says of a client whose clock lags: its overwrite in place moves no stamp, the
/// other node's tier keeps the old bytes, `forebay verify` finds them, and `forebay evict` repairs
/// it.
#[test]
fn an_overwrite_by_a_cephfs_client_whose_clock_lags_is_found_by_verify_and_repaired_by_evict() {
    const BYTES: usize = 4 << 20;
    let Some(lab) = Lab::possible("cephfs") else { return };
    if std::process::Command::new("faketime").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "faketime is not installed");
        eprintln!("skipped: faketime is not installed");
        return;
    }
    succeeded(&mut lab.up());
    let shell = |node: &str, script: &str| lab.run(node, &["sh", "-c", script]);
    let forebay = FOREBAY;
    assert!(shell("c1", &format!("yes old | head -c {BYTES} > $FOREBAY_LAB_PFS/f")).status.success());
    let digest = || text(&shell("c2", &format!("{forebay} cat $FOREBAY_LAB_PFS/f | sha256sum")));
    let fetched = |node| {
        let status: serde_json::Value =
            serde_json::from_str(&text(&shell(node, &format!("{forebay} status --json")))).unwrap();
        status["counters"]["fetched_bytes"].as_u64().unwrap()
    };
    let old = digest();
    wait_for("the file to be in the tier", || {
        assert_eq!(digest(), old);
        fetched("c1") + fetched("c2") >= BYTES as u64
    });
    let stamps = || text(&shell("c2", "stat --format '%y %z' $FOREBAY_LAB_PFS/f"));
    let before = stamps();
    // A second client on the writer's node, like the first but for its clock.
    let lagging = format!(
        "set -e; mkdir -p /tmp/lagging
        pid=$(pgrep --newest --exact ceph-fuse --ns $$ --nslist mnt)
        set -- $(tr '\\0' ' ' < /proc/$pid/cmdline | sed 's| [^ ]* *$| /tmp/lagging|')
        faketime -m -f -30m \"$@\" & client=$!
        trap 'umount /tmp/lagging; wait $client' EXIT
        for i in $(seq 300); do mountpoint -q /tmp/lagging && break; sleep 0.1; done
        yes new | head -c {BYTES} | dd of=/tmp/lagging/f bs=1M iflag=fullblock conv=notrunc,fsync"
    );
    let overwritten = shell("c1", &lagging);
    assert!(overwritten.status.success(), "{}", String::from_utf8_lossy(&overwritten.stderr));
    let new = text(&shell("c2", &format!("yes new | head -c {BYTES} | sha256sum")));
    assert_eq!(text(&shell("c2", "sha256sum < $FOREBAY_LAB_PFS/f")), new);
    assert_eq!(stamps(), before, "the stamps have moved, and this test sees nothing");
    assert_eq!(digest(), old, "the limit no longer holds: rewrite *Limits*");
    assert!(!shell("c2", &format!("{forebay} verify $FOREBAY_LAB_PFS/f")).status.success());
    for node in ["c1", "c2"] {
        assert!(shell(node, &format!("{forebay} evict $FOREBAY_LAB_PFS/f")).status.success());
    }
    assert_eq!(digest(), new);
}
