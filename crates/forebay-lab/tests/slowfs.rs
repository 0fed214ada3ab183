//! What the slow file system adds to a directory: faults, counters, layout, an end in bounded time.
//! Needs root and /dev/fuse; FOREBAY_SKIP_FUSE=1 leaves these tests out.

#![allow(clippy::unwrap_used)] // helpers of tests: a failed unwrap is a failed test

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use common::{Lab, pattern, program, skipped};
use forebay_lab::slowfs::remote;

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(30);

/// Waits for `condition` and fails after a time that only a broken program takes.
fn wait_for(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + SOON;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn reads_fail_as_set_and_as_often_as_set() {
    let Some(lab) = Lab::start(|config| config.direct_io = true) else { return };
    fs::write(lab.at("a.bin"), "a").unwrap();
    fs::write(lab.at("b.txt"), "b").unwrap();
    lab.fault("read=EIO,path=*.bin,count=2");
    for _ in 0..2 {
        assert_eq!(fs::read(lab.at("a.bin")).unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(fs::read(lab.at("b.txt")).unwrap(), b"b");
    }
    assert_eq!(fs::read(lab.at("a.bin")).unwrap(), b"a");
    let faults = lab.stats().faults;
    assert_eq!((faults.total, faults.read), (2, 2));
}

#[test]
fn buffered_reads_fail_too() {
    let Some(lab) = Lab::start(|_| {}) else { return };
    fs::write(lab.at("f"), pattern(100_000, 1)).unwrap();
    lab.fault("read=EIO");
    assert_eq!(fs::read(lab.at("f")).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(lab.stats().faults.read > 0);
    lab.fault("none");
    assert!(fs::read(lab.at("f")).unwrap() == pattern(100_000, 1));
}

#[test]
fn writes_find_the_servers_full() {
    let Some(lab) = Lab::start(|_| {}) else { return };
    let mut file = File::create(lab.at("f")).unwrap();
    file.write_all(b"kept").unwrap();
    lab.fault("write=ENOSPC");
    assert_eq!(file.write_all(b"lost").unwrap_err().kind(), ErrorKind::StorageFull);
    lab.fault("sync=EIO");
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    lab.fault("open=EACCES;meta=ESTALE");
    assert_eq!(fs::metadata(lab.at("f")).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    lab.fault("open=EMFILE");
    assert_eq!(File::open(lab.at("f")).unwrap_err().raw_os_error(), Some(libc::EMFILE));
    lab.fault("none");
    assert_eq!(fs::read(lab.at("f")).unwrap(), b"kept");
    let faults = lab.stats().faults;
    assert_eq!((faults.write, faults.sync, faults.open), (1, 1, 1));
    assert!(faults.meta >= 1, "the kernel tries again after ESTALE, so there may be more than one");
}

#[test]
fn a_hang_ends_when_the_fault_is_cleared() {
    let Some(lab) = Lab::start(|_| {}) else { return };
    fs::write(lab.at("f"), "patience").unwrap();
    lab.fault("read=hang");
    let path = lab.at("f");
    let reader = thread::spawn(move || fs::read(path));
    wait_for("the read to hang", || lab.stats().hung_now == 1);
    assert!(fs::write(lab.at("g"), "others go on").is_ok());
    lab.fault("none");
    assert_eq!(reader.join().unwrap().unwrap(), b"patience");
    assert_eq!(lab.stats().hung_now, 0);

    lab.fault("write=hang,count=1");
    let path = lab.at("h");
    let writer = thread::spawn(move || fs::write(path, "held bytes"));
    wait_for("the write to hang", || lab.stats().hung_now == 1);
    assert_eq!(fs::metadata(lab.behind("h")).unwrap().len(), 0, "a held write has not happened");
    lab.fault("none");
    writer.join().unwrap().unwrap();
    assert_eq!(fs::read(lab.behind("h")).unwrap(), b"held bytes");
    assert_eq!(lab.stats().faults.total, 2);
}

#[test]
fn a_hang_ends_by_itself_and_a_delay_delays() {
    let Some(lab) = Lab::start(|config| config.direct_io = true) else { return };
    fs::write(lab.at("f"), "x").unwrap();
    for spec in ["read=hang:50ms", "read=delay:50ms", "latency=50ms"] {
        lab.fault(spec);
        let start = Instant::now();
        assert_eq!(fs::read(lab.at("f")).unwrap(), b"x");
        assert!(start.elapsed() >= Duration::from_millis(50), "{spec}");
        assert!(lab.stats().faults.read > 0, "{spec}");
    }
}

#[test]
fn the_end_is_bounded_although_reads_hang_and_files_are_open() {
    let Some(lab) = Lab::start(|_| {}) else { return };
    fs::write(lab.at("f"), pattern(100_000, 1)).unwrap();
    let idle = File::open(lab.at("f")).unwrap();
    lab.fault("read=hang");
    let path = lab.at("f");
    let reader = thread::spawn(move || fs::read(path));
    wait_for("the read to hang", || lab.stats().hung_now > 0);
    let mount = lab.mount().to_path_buf();
    let start = Instant::now();
    let dirs = lab.stop();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    reader.join().unwrap().unwrap_err();
    assert_eq!(idle.read_at(&mut [0; 8], 0).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    assert_eq!(fs::read_dir(&mount).unwrap().count(), 0, "the bare mount point is back");
    drop(dirs);
}

#[test]
fn sigterm_sigint_and_umount_all_end_it_cleanly() {
    for how in ["-TERM", "-INT", "umount"] {
        let Some(lab) = Lab::start(|_| {}) else { return };
        fs::write(lab.at("f"), "kept").unwrap();
        let (behind, mount) = (lab.behind("f"), lab.mount().to_path_buf());
        let pid = lab.process().pid().to_string();
        let ended = match how {
            "umount" => Command::new("umount").arg(&mount).status(),
            signal => Command::new("kill").args([signal, &pid]).status(),
        };
        assert!(ended.unwrap().success());
        wait_for("the mount to go", || fs::read_dir(&mount).is_ok_and(|mut dir| dir.next().is_none()));
        assert_eq!(fs::read(behind).unwrap(), b"kept");
        let _dirs = lab.stop(); // asserts exit status 0
    }
}

/// Directories for a slow file system that a test starts itself.
struct Places {
    _dirs: tempfile::TempDir,
    backing: PathBuf,
    mount: PathBuf,
}

fn places() -> Option<Places> {
    if skipped() {
        return None;
    }
    let dirs = tempfile::tempdir().unwrap();
    let (backing, mount) = (dirs.path().join("b"), dirs.path().join("m"));
    fs::create_dir(&backing).unwrap();
    fs::create_dir(&mount).unwrap();
    Some(Places { _dirs: dirs, backing, mount })
}

impl Places {
    fn command(&self) -> Command {
        let mut command = Command::new(program());
        command.arg("slowfs").arg("--backing").arg(&self.backing).arg("--mount").arg(&self.mount);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

#[test]
fn a_dead_mount_is_cleaned_and_a_live_one_is_not_covered() {
    let Some(places) = places() else { return };
    let (start, mount) = (|| places.command().spawn().unwrap(), &places.mount);
    let mut first = start();
    let mut line = String::new();
    BufReader::new(first.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");

    let second = start().wait_with_output().unwrap();
    assert!(!second.status.success());
    let why = String::from_utf8(second.stderr).unwrap();
    assert!(why.contains("already") && why.contains("umount"), "{why}");

    first.kill().unwrap(); // SIGKILL: nobody unmounts
    first.wait().unwrap();
    assert_eq!(fs::metadata(mount).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    let mut third = start();
    line.clear();
    BufReader::new(third.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    fs::write(mount.join("f"), "x").unwrap();
    assert!(Command::new("umount").arg(mount).status().unwrap().success());
    assert!(third.wait().unwrap().success());
}

#[test]
fn counters_say_which_server_gave_how_much() {
    let Some(lab) = Lab::start(|config| config.direct_io = true) else { return };
    fs::write(lab.at("f"), pattern(6 * MIB as usize, 1)).unwrap();
    remote::reset(lab.mount()).unwrap();
    let file = File::open(lab.at("f")).unwrap();
    let mut bytes = vec![0; 2 * MIB as usize];
    file.read_exact_at(&mut bytes, MIB / 2).unwrap(); // half of stripe 0, all of 1, half of 2
    let stats = lab.stats();
    let first = (file.metadata().unwrap().ino() % 4) as usize;
    let expected = [MIB / 2, MIB, MIB / 2, 0];
    for (i, bytes) in expected.into_iter().enumerate() {
        assert_eq!(stats.servers[(first + i) % 4].read_bytes, bytes, "stripe {i}");
    }
    assert_eq!((stats.read_bytes, stats.written_bytes, stats.opens), (2 * MIB, 0, 1));
    assert_eq!(file.read_at(&mut bytes, 6 * MIB).unwrap(), 0);
    assert_eq!(lab.stats().read_bytes, 2 * MIB, "reading at the end moves nothing");
}

/// The kernel may take back a page that it has read ahead, and read it again: a few, on a machine
/// that reclaims early.
fn assert_served(lab: &Lab, bytes: u64, what: &str) {
    let served = lab.stats().read_bytes;
    assert!((bytes..bytes + bytes / 16).contains(&served), "{what}: {served} bytes were served, not {bytes}");
}

#[test]
fn one_sequential_reader_is_served_each_byte_once() {
    let Some(lab) = Lab::start(|_| {}) else { return };
    fs::write(lab.behind("f"), pattern(9 * MIB as usize + 17, 1)).unwrap();
    assert!(fs::read(lab.at("f")).unwrap() == pattern(9 * MIB as usize + 17, 1));
    assert_served(&lab, 9 * MIB + 17, "each byte once");
    fs::write(lab.at("g"), pattern(3 * MIB as usize + 5, 1)).unwrap();
    assert_eq!(lab.stats().written_bytes, 3 * MIB + 5);
}

#[test]
fn readers_at_the_same_time_share_and_later_ones_start_cold() {
    let Some(lab) = Lab::start(|_| {}) else { return };
    let (len, data) = (8 * MIB, pattern(8 * MIB as usize, 1));
    fs::write(lab.behind("f"), &data).unwrap();
    let held = File::open(lab.at("f")).unwrap();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert!(fs::read(lab.at("f")).unwrap() == data));
        }
    });
    assert_served(&lab, len, "one fetch, however many read");

    fs::write(lab.behind("f"), pattern(8 * MIB as usize, 2)).unwrap();
    assert!(fs::read(lab.at("f")).unwrap() == pattern(8 * MIB as usize, 2), "changed, though held open");
    assert_served(&lab, 2 * len, "changed");
    drop(held);
    for pass in 3..6 {
        assert!(fs::read(lab.at("f")).unwrap() == pattern(8 * MIB as usize, 2));
        assert_served(&lab, pass * len, "each pass starts from the servers");
    }
}

#[test]
fn the_rate_can_be_changed_and_nonsense_is_refused() {
    let Some(lab) = Lab::start(|_| {}) else { return };
    assert_eq!(lab.stats().rate_bytes_per_s, None);
    remote::set_rate(lab.mount(), "10MB/s").unwrap();
    assert_eq!(lab.stats().rate_bytes_per_s, Some(10_000_000));
    let start = Instant::now();
    fs::write(lab.at("f"), pattern(4_000_000, 1)).unwrap(); // 4 servers: 0.1 s, less the burst
    assert!(start.elapsed() >= Duration::from_millis(90), "{:?}", start.elapsed());
    assert!(remote::set_rate(lab.mount(), "0").unwrap_err().to_string().contains("zero"));
    assert!(remote::set_fault(lab.mount(), "read=EWHAT").unwrap_err().to_string().contains("EWHAT"));
    let elsewhere = remote::stats(std::path::Path::new("/")).unwrap_err().to_string();
    assert!(elsewhere.contains("lab slowfs"), "{elsewhere}");
}

/// The one half of the limit that does not depend on the machine's speed: it is never exceeded.
/// That the model reaches it is a property that is tested beside it.
#[test]
fn concurrent_streams_never_exceed_the_limit() {
    const RATE_BYTES_PER_S: u64 = 10_000_000;
    const STREAM_BYTES: u64 = MIB;
    for streams in [1u64, 3, 8] {
        let Some(lab) = Lab::start(|config| {
            config.rate_bytes_per_s = Some(RATE_BYTES_PER_S);
            config.stripe_bytes = 64 << 10;
        }) else {
            return;
        };
        let at_least = |bytes: u64| {
            let burst_s = forebay_lab::slowfs::rate::BURST_NS as f64 / 1e9;
            Duration::from_secs_f64(bytes as f64 / (4 * RATE_BYTES_PER_S) as f64 - burst_s)
        };
        let each = |run: fn(std::path::PathBuf)| {
            let start = Instant::now();
            let paths = (0..streams).map(|i| lab.at(&i.to_string()));
            let threads: Vec<_> = paths.map(|path| thread::spawn(move || run(path))).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            start.elapsed()
        };
        let written = each(|path| fs::write(path, vec![1; STREAM_BYTES as usize]).unwrap());
        let read = each(|path| assert_eq!(fs::read(path).unwrap().len(), STREAM_BYTES as usize));
        assert!(written >= at_least(streams * STREAM_BYTES), "{streams} writers in {written:?}");
        assert!(read >= at_least(streams * STREAM_BYTES), "{streams} readers in {read:?}");
    }
}

#[test]
fn a_fault_on_everything_can_still_be_cleared() {
    let Some(lab) = Lab::start(|_| {}) else { return };
    for spec in ["all=EIO", "all=hang:1s"] {
        lab.fault(spec);
        // The kernel reports a close after `close` has returned.
        let is_closed = || {
            thread::sleep(Duration::from_millis(5));
            lab.stats().open_files_now == 0
        };
        assert!((0..1000).any(|_| is_closed()), "{:?}", lab.stats());
        lab.fault("none");
        fs::write(lab.at("f"), "x").unwrap();
    }
    lab.fault("meta=EIO");
    assert!(fs::read_dir(lab.mount()).is_err(), "listing the root is not spared");
    assert!(lab.stats().faults.meta > 0);
}

#[test]
fn in_the_background_it_goes_on_and_ends_by_umount() {
    let Some(places) = places() else { return };
    let output = places.command().arg("--daemonize").output().unwrap();
    assert_eq!(output.stdout, b"ready\n", "{}", String::from_utf8_lossy(&output.stderr));
    fs::write(places.mount.join("f"), "x").unwrap();
    assert!(Command::new("umount").arg(&places.mount).status().unwrap().success());
    wait_for("the mount to go", || !places.mount.join("f").exists());
    let refused = places.command().args(["--daemonize", "--rate", "0"]).output().unwrap();
    assert!(!refused.status.success() && refused.stdout.is_empty());
}
