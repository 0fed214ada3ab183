//! `forebay mount` and the kernel's page cache: what is in the tier is read again from the kernel's
//! memory, and no page there is older than an open, or than 50 ms for a file that stays open.

use crate::common::{
    Agent, MIB, Setup, assert_content, content, grow_old, make_file, plain_pfs, text, wait_for,
};
use crate::mount::{Mount, Rig, skips};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// How long a reader that stays open may see old bytes, with as much again for a busy machine.
const SOON: Duration = Duration::from_secs(5);

#[test]
fn what_was_read_is_read_again_from_the_kernels_page_cache() {
    let Some(rig) = Rig::new() else { return };
    make_file(&rig.slow.at("f"), 1, 4 * MIB);
    rig.load();
    let here = rig.mount.at.join("f");
    // An agent on a busy machine may answer too late, so that the PFS is read.
    wait_for("the kernel keeps all pages", || {
        assert_content(&std::fs::read(&here).unwrap(), 1, 0);
        resident_pages(&here) as u64 == 4 * MIB / 4096
    });
    rig.evict();
    let before = rig.slow.stats().read_bytes;
    for _ in 0..3 {
        assert_content(&std::fs::read(&here).unwrap(), 1, 0);
    }
    assert_eq!(rig.slow.stats().read_bytes, before, "the kernel has kept nothing");
    let file = File::open(&here).unwrap();
    let mut bytes = vec![0; 4096];
    file.read_exact_at(&mut bytes, MIB).unwrap();
    assert_content(&bytes, 1, MIB);
}

#[test]
fn a_file_that_is_not_wholly_in_the_tier_is_read_by_requests() {
    let Some(rig) = Rig::new() else { return };
    make_file(&rig.slow.at("f"), 1, 4 * MIB);
    let here = rig.mount.at.join("f");
    let file = File::open(&here).unwrap();
    let mut bytes = vec![0; 4096];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(resident_pages(&here) == 0, "pages are kept of a file that is not in the tier");
    rig.load();
    wait_for("the kernel keeps pages", || {
        assert_content(&std::fs::read(&here).unwrap(), 1, 0);
        resident_pages(&here) > 0
    });
}

/// Pages of a file that the kernel has in memory.
fn resident_pages(path: &Path) -> usize {
    let script = "import ctypes, mmap, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
size = os.fstat(file).st_size
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
at = libc.mmap(None, ctypes.c_size_t(size), 1, 2, file, ctypes.c_long(0))
state = (ctypes.c_ubyte * ((size + 4095) // 4096))()
assert libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), state) == 0
print(sum(s & 1 for s in state))";
    let out = std::process::Command::new("python3").args(["-c", script]).arg(path).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    text(&out.stdout).trim().parse().unwrap()
}

/// A directory as the PFS, an agent, a mount, and one file.
struct Local {
    _pfs: tempfile::TempDir,
    agent: Agent,
    _mount: Mount,
    there: PathBuf,
    here: PathBuf,
}

impl Local {
    fn new() -> Option<Self> {
        if skips() {
            return None;
        }
        let pfs = plain_pfs();
        let agent = Agent::start(Setup { page: 256 << 10, ..Setup::new(pfs.path()) });
        let mount = Mount::new(pfs.path(), agent.socket().to_str().unwrap(), &[]);
        let (there, here) = (pfs.path().join("f"), mount.at.join("f"));
        Some(Local { _pfs: pfs, agent, _mount: mount, there, here })
    }

    fn load(&self) {
        assert!(self.agent.cli(&["load", self.there.to_str().unwrap()]).status.success());
    }

    /// The file with content `seed`, open and read to its end; the kernel keeps its pages.
    fn kept(&self, seed: u64, size: u64) -> File {
        let _ = std::fs::remove_file(&self.there);
        make_file(&self.there, seed, size);
        self.load();
        let mut file = None;
        wait_for("the kernel keeps pages", || {
            let opened = File::open(&self.here).unwrap();
            let mut bytes = vec![0; size as usize];
            opened.read_exact_at(&mut bytes, 0).unwrap();
            assert_content(&bytes, seed, 0);
            file = Some(opened);
            resident_pages(&self.here) > 0
        });
        file.unwrap()
    }
}

/// Ways to change a file on the PFS, past the mount. Each gives it the content `seed`.
fn change(path: &Path, seed: u64, len: usize) {
    let before = std::fs::metadata(path).unwrap();
    let bytes = content(seed, 0, len);
    match seed % 5 {
        0 => std::fs::write(path, bytes).unwrap(),
        1 => File::options().write(true).open(path).unwrap().write_all_at(&bytes, 0).unwrap(),
        2 => {
            let new = path.with_extension("new");
            std::fs::write(&new, bytes).unwrap();
            std::fs::rename(&new, path).unwrap();
        }
        // As `cp -p` and `rsync` do: only ctime shows it.
        3 => {
            let file = File::options().write(true).open(path).unwrap();
            file.write_all_at(&bytes, 0).unwrap();
            file.set_modified(before.modified().unwrap()).unwrap();
        }
        _ => {
            std::fs::remove_file(path).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
    }
}

#[test]
fn no_open_after_a_change_finds_an_older_page_in_the_kernel() {
    let Some(local) = Local::new() else { return };
    let Local { there, here, .. } = &local;
    let len = MIB as usize;
    make_file(there, 0, MIB);
    let (stop, kept) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        // They open, read and map the file all the time, and keep it open for some of it.
        for reader in 0..3_u64 {
            let stop = &stop;
            scope.spawn(move || {
                let mut bytes = vec![0; 64 << 10];
                let mut rounds = reader;
                while !stop.load(Ordering::Relaxed) {
                    // The name may be missing for a moment.
                    let Ok(file) = File::open(here) else { continue };
                    rounds += 1;
                    for part in 0..rounds % 40 {
                        let _ = file.read_at(&mut bytes, (part * 97 % 16) << 16);
                    }
                }
            });
        }
        for seed in 1..60 {
            change(there, seed, len);
            if seed % 3 == 0 {
                grow_old(there);
                local.load();
            }
            for _ in 0..2 {
                let got = std::fs::read(here).unwrap();
                assert_eq!(got.len(), len);
                assert_content(&got, seed, 0);
            }
            kept.fetch_add(u64::from(seed % 3 == 0 && resident_pages(here) > 0), Ordering::Relaxed);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(kept.into_inner() > 5, "the kernel has hardly ever kept pages");
}

#[test]
fn a_reader_that_stays_open_sees_each_kind_of_change_soon() {
    let Some(rig) = Rig::new() else { return };
    let (there, here) = (rig.slow.at("f"), rig.mount.at.join("f"));
    for seed in [10, 11, 13] {
        make_file(&there, 1, MIB);
        rig.load();
        let file = File::open(&here).unwrap();
        let mut bytes = vec![0; 1000];
        file.read_exact_at(&mut bytes, 5000).unwrap();
        assert_content(&bytes, 1, 5000);
        change(&there, seed, MIB as usize);
        let begun = Instant::now();
        loop {
            file.read_exact_at(&mut bytes, 5000).unwrap();
            if bytes == content(seed, 5000, 1000) {
                break;
            }
            assert!(begun.elapsed() < SOON, "change {seed} is not seen");
        }
        // And what it has kept of the old content is gone for good.
        std::thread::sleep(Duration::from_millis(60));
        let mut all = vec![0; MIB as usize];
        file.read_exact_at(&mut all, 0).unwrap();
        assert_content(&all, seed, 0);
    }
}

#[test]
fn a_reader_at_the_end_sees_what_is_appended() {
    let Some(rig) = Rig::new() else { return };
    let (there, here) = (rig.slow.at("log"), rig.mount.at.join("log"));
    make_file(&there, 1, 10_000);
    rig.load();
    let file = File::open(&here).unwrap();
    let mut all = vec![0; 10_000];
    file.read_exact_at(&mut all, 0).unwrap();
    for line in 0..5_u64 {
        let appender = File::options().append(true).open(&there).unwrap();
        std::io::Write::write_all(&mut &appender, &content(2, 0, 100)).unwrap();
        let mut bytes = vec![0; 100];
        wait_for("the appended bytes", || file.read_at(&mut bytes, 10_000 + line * 100).unwrap() == 100);
        assert_content(&bytes, 2, 0);
    }
}

#[test]
fn a_mapping_shows_what_was_written_and_programs_write_beside_readers() {
    let Some(rig) = Rig::new() else { return };
    let here = rig.mount.at.join("f");
    make_file(&rig.slow.at("f"), 1, MIB);
    rig.load();
    let reader = File::open(&here).unwrap();
    let mut bytes = vec![0; MIB as usize];
    reader.read_exact_at(&mut bytes, 0).unwrap();
    assert_content(&bytes, 1, 0);
    let writer = File::options().write(true).open(&here).unwrap();
    for seed in 2..20 {
        writer.write_all_at(&content(seed, 0, 200_000), 0).unwrap();
        let mut part = vec![0; 200_000];
        reader.read_exact_at(&mut part, 0).unwrap();
        assert_content(&part, seed, 0);
    }
    writer.set_len(1000).unwrap();
    assert_eq!(reader.read_at(&mut bytes, 0).unwrap(), 1000);
    drop(writer);
    assert_eq!(std::fs::read(&here).unwrap(), content(19, 0, 1000));
}

#[test]
fn the_first_read_after_a_lock_finds_no_older_page_in_the_kernel() {
    let Some(local) = Local::new() else { return };
    let mut bytes = vec![0; 100_000];
    for seed in 1..10 {
        let file = local.kept(1000 + seed, 100_000);
        let writer = File::options().write(true).open(&local.there).unwrap();
        flock(&writer, FlockOperation::LockExclusive).unwrap();
        writer.write_all_at(&content(seed, 0, 100_000), 0).unwrap();
        if seed % 2 == 0 {
            writer.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seed)).unwrap();
        }
        flock(&writer, FlockOperation::Unlock).unwrap();
        flock(&file, FlockOperation::LockShared).unwrap();
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_content(&bytes, seed, 0);
        flock(&file, FlockOperation::Unlock).unwrap();
    }
}

#[test]
fn pages_that_are_read_while_a_write_goes_on_do_not_stay() {
    let Some(local) = Local::new() else { return };
    let size = 40 * MIB;
    let file = local.kept(1, size);
    let offsets = [MIB, 20 * MIB, 39 * MIB];
    let mut bytes = vec![0; 4096];
    for round in 2..5 {
        let new = content(round, 0, size as usize);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                // One call: the stamps move when it begins.
                File::options().write(true).open(&local.there).unwrap().write_all_at(&new, 0).unwrap();
            });
            while !writer.is_finished() {
                offsets.iter().for_each(|offset| file.read_exact_at(&mut bytes, *offset).unwrap());
            }
        });
        std::thread::sleep(Duration::from_millis(60));
        for offset in offsets {
            file.read_exact_at(&mut bytes, offset).unwrap();
            assert_content(&bytes, round, offset);
        }
    }
}

#[test]
fn the_first_read_after_a_while_or_a_lock_sees_the_new_length() {
    let Some(local) = Local::new() else { return };
    let file = local.kept(1, 10_000);
    let mut bytes = vec![0; 20_000];
    let mut length = 10_000;
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), length);
    for round in 0..10 {
        let mut appender = File::options().append(true).open(&local.there).unwrap();
        std::io::Write::write_all(&mut appender, &[round as u8; 100]).unwrap();
        length += 100;
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_millis(100));
        } else {
            flock(&file, FlockOperation::LockShared).unwrap();
        }
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), length, "round {round}");
        assert_eq!(bytes[length - 100..length], [round as u8; 100]);
        flock(&file, FlockOperation::Unlock).unwrap();
    }
}

#[test]
fn a_large_read_after_a_lock_has_no_old_part() {
    let Some(local) = Local::new() else { return };
    let size = 8 * MIB as usize;
    let mut bytes = vec![0; size];
    for round in 1..8 {
        let file = local.kept(100 + round, size as u64);
        let writer = File::options().write(true).open(&local.there).unwrap();
        writer.write_all_at(&content(round, 0, size), 0).unwrap();
        flock(&file, FlockOperation::LockShared).unwrap();
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_content(&bytes, round, 0);
    }
}

#[test]
fn a_write_with_mtime_set_back_is_seen_beside_a_change_of_attributes() {
    let Some(local) = Local::new() else { return };
    let mut bytes = vec![0; 100_000];
    for seed in [3, 8, 13] {
        let file = local.kept(1, 100_000);
        std::thread::sleep(Duration::from_millis(60));
        change(&local.there, seed, 100_000);
        // Both between two checks.
        std::fs::remove_file(&local.there).unwrap();
        std::thread::sleep(Duration::from_millis(60));
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert_content(&bytes, seed, 0);
    }
}
