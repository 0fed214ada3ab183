//! The file is changed while it is read.

use crate::common::{
    Agent, Helper, MIB, PAGE, SlowFs, assert_content, content, grow_old, make_file, one_file, plain_pfs,
    read_all, wait_for,
};
use crate::roles::{hear, say};
use forebay_client::Client;
use std::fs::{File, FileTimes};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const LEN: u64 = MIB;

/// A file of at most this size is not watched from its open on, if it is wholly in the tier then.
const UNWATCHED: u64 = 8 * PAGE;

type Change = fn(&Path);

/// A reader that has read the first half of a file of content 1; what then happens to the file is
/// up to `change`.
fn half_read(change: impl FnOnce(&Path)) -> (tempfile::TempDir, Agent, forebay_client::File) {
    let (pfs, path, agent) = one_file(1, LEN);
    let file = agent.client().open(&path).unwrap();
    let mut half = vec![0; (LEN / 2) as usize];
    assert_eq!(file.read_at(&mut half, 0).unwrap(), half.len());
    assert_content(&half, 1, 0);
    let resident = file.resident_bytes();
    assert!((LEN / 2..LEN).contains(&resident), "{resident} bytes are resident: no test of both halves");
    change(&path);
    (pfs, agent, file)
}

/// Reads the half that is not in the tier: the old bytes, or `ESTALE`.
fn second_half(file: &forebay_client::File) -> std::io::Result<()> {
    let mut half = vec![0; (LEN / 2) as usize];
    let n = file.read_at(&mut half, LEN / 2)?;
    assert_eq!(n, half.len(), "a short read is neither the old file nor an error");
    assert_content(&half, 1, LEN / 2);
    Ok(())
}

fn assert_first_half_is_old(file: &forebay_client::File) {
    let mut half = vec![0; (LEN / 2) as usize];
    match file.read_at(&mut half, 0) {
        Ok(n) => assert_content(&half[..n], 1, 0),
        Err(e) => assert_eq!(e.kind(), ErrorKind::StaleNetworkFileHandle),
    }
}

fn assert_stale(file: &forebay_client::File) {
    assert_eq!(second_half(file).unwrap_err().kind(), ErrorKind::StaleNetworkFileHandle);
    assert_first_half_is_old(file);
}

fn assert_new_open_reads(agent: &Agent, path: &Path, seed: u64, len: u64) {
    // Twice: from the PFS while the file is racily clean, and from the tier.
    for _ in 0..2 {
        let bytes = read_all(&agent.client().open(path).unwrap()).unwrap();
        assert_eq!(bytes.len() as u64, len);
        assert_content(&bytes, seed, 0);
        grow_old(path);
    }
}

fn overwrite(path: &Path, seed: u64, len: u64) {
    File::options().write(true).open(path).unwrap().write_all_at(&content(seed, 0, len as usize), 0).unwrap();
}

#[test]
fn overwritten_in_place() {
    let (pfs, agent, file) = half_read(|path| overwrite(path, 2, LEN));
    assert_stale(&file);
    assert!(agent.counter("changed_total") > 0);
    assert_new_open_reads(&agent, &pfs.path().join("f"), 2, LEN);
}

#[test]
fn overwritten_in_place_and_its_mtime_set_back() {
    let (pfs, agent, file) = half_read(overwrite_and_set_mtime_back);
    assert_stale(&file);
    assert_new_open_reads(&agent, &pfs.path().join("f"), 2, LEN);
}

/// Content 2 in place of another, and no stamp but ctime to show it.
fn overwrite_and_set_mtime_back(path: &Path) {
    let before = path.metadata().unwrap();
    overwrite(path, 2, before.len());
    let times = FileTimes::new().set_modified(before.modified().unwrap());
    File::options().write(true).open(path).unwrap().set_times(times).unwrap();
    let after = path.metadata().unwrap();
    assert_eq!((before.modified().unwrap(), before.len()), (after.modified().unwrap(), after.len()));
    assert!((before.ctime(), before.ctime_nsec()) < (after.ctime(), after.ctime_nsec()));
}

/// A client process: reads the first half of a file through a path relative to its directory, moves
/// elsewhere, and reads the rest when the test says so.
pub fn read_from_elsewhere(dir: &str, name: &str) {
    std::env::set_current_dir(dir).unwrap();
    let file = Client::from_env().open(name).unwrap();
    let mut half = vec![0; (LEN / 2) as usize];
    assert_eq!(file.read_at(&mut half, 0).unwrap(), half.len());
    assert_content(&half, 1, 0);
    std::env::set_current_dir("/").unwrap();
    say("half");
    hear();
    match second_half(&file) {
        Ok(()) => say("rest old"),
        Err(e) => say(&format!("rest {:?}", e.kind())),
    }
}

#[test]
fn a_file_opened_by_a_relative_path_is_not_mixed_after_chdir() {
    let pfs = plain_pfs();
    let path = pfs.path().join("f");
    let agent = Agent::on(pfs.path());
    let expected: [(Change, &str); 3] = [
        (overwrite_and_set_mtime_back, "StaleNetworkFileHandle"),
        (|path| std::fs::rename(path, path.with_extension("elsewhere")).unwrap(), "old"),
        (|path| std::fs::remove_file(path).unwrap(), "old"),
    ];
    for (change, seen) in expected {
        make_file(&path, 1, LEN);
        let mut reader = Helper::start(&agent, "elsewhere", &[pfs.path().to_str().unwrap(), "f"]);
        reader.expect("half");
        change(&path);
        reader.say("on");
        assert_eq!(reader.expect("rest"), seen);
        reader.finish();
    }
}

/// Changes that leave nothing behind but a later ctime, none of them a change of content.
const THERE_AND_BACK: [(&str, Change); 8] = [
    ("link and unlink", |path| {
        std::fs::hard_link(path, path.with_extension("link")).unwrap();
        std::fs::remove_file(path.with_extension("link")).unwrap();
    }),
    ("chmod to the same mode", |path| {
        std::fs::set_permissions(path, path.metadata().unwrap().permissions()).unwrap();
    }),
    ("chmod and back", |path| {
        let before = path.metadata().unwrap().permissions();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::set_permissions(path, before).unwrap();
    }),
    ("chown and back", |path| {
        std::os::unix::fs::chown(path, Some(1), Some(1)).unwrap();
        std::os::unix::fs::chown(path, Some(0), Some(0)).unwrap();
    }),
    ("rename and back", |path| {
        std::fs::rename(path, path.with_extension("away")).unwrap();
        std::fs::rename(path.with_extension("away"), path).unwrap();
    }),
    ("utimens to the same time", |path| File::open(path).unwrap().set_times(times_of(path)).unwrap()),
    ("touch to the same time", |path| {
        File::options().write(true).open(path).unwrap().set_times(times_of(path)).unwrap();
    }),
    ("an extended attribute", |path| {
        rustix::fs::setxattr(path, "user.test", b"1", rustix::fs::XattrFlags::empty()).unwrap();
    }),
];

/// Both times, as utime and touch set them; the kernel reports a change of mtime alone as it
/// reports a write.
fn times_of(path: &Path) -> FileTimes {
    let now = path.metadata().unwrap();
    FileTimes::new().set_accessed(now.accessed().unwrap()).set_modified(now.modified().unwrap())
}

#[test]
fn a_change_of_attributes_there_and_back_ends_no_handle() {
    for (what, change) in THERE_AND_BACK {
        let (pfs, _agent, file) = half_read(|path| {
            let before = path.metadata().unwrap();
            change(path);
            let after = path.metadata().unwrap();
            let moved = (before.ctime(), before.ctime_nsec()) < (after.ctime(), after.ctime_nsec());
            assert!(moved && before.mtime_nsec() == after.mtime_nsec(), "{what}: no test of ctime alone");
        });
        let mut bytes = vec![0; 3 * PAGE as usize];
        let read = |bytes: &mut [u8], page: u64| {
            file.read_at(bytes, page * PAGE).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_content(bytes, 1, page * PAGE);
        };
        read(&mut bytes, 8);
        // Again, and on another handle of the same file too.
        let path = pfs.path().join("f");
        change(&path);
        grow_old(&path);
        read(&mut bytes, 11);
        read(&mut bytes, 0);
        // What it was proved to look like is what a later write is compared with.
        overwrite_and_set_mtime_back(&path);
        assert_stale(&file);
    }
}

#[test]
fn a_write_with_mtime_set_back_is_seen_after_and_beside_a_change_of_attributes() {
    let changes: [Change; 3] = [
        |path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap(),
        |path| std::fs::hard_link(path, path.with_extension("link")).unwrap(),
        |path| {
            std::fs::rename(path, path.with_extension("elsewhere")).unwrap();
            std::os::unix::fs::symlink(path.with_extension("elsewhere"), path).unwrap();
        },
    ];
    for change in changes {
        // Seen to by a read in between.
        let (pfs, _agent, file) = half_read(change);
        let mut page = vec![0; PAGE as usize];
        assert_eq!(file.read_at(&mut page, LEN / 2).unwrap(), page.len());
        assert_content(&page, 1, LEN / 2);
        overwrite_and_set_mtime_back(&pfs.path().join("f"));
        assert_stale(&file);
        // And by none, in either order.
        let (_pfs, _agent, file) = half_read(|path| {
            change(path);
            overwrite_and_set_mtime_back(path);
        });
        assert_stale(&file);
        let (_pfs, _agent, file) = half_read(|path| {
            overwrite_and_set_mtime_back(path);
            change(path);
        });
        assert_stale(&file);
    }
}

/// A client process: reads the first half of a file, then a page of the rest, and forks when the
/// test says so; the child reads the rest.
pub fn read_in_a_child(path: &str) {
    let file = Client::from_env().open(path).unwrap();
    let mut half = vec![0; (LEN / 2) as usize];
    assert_eq!(file.read_at(&mut half, 0).unwrap(), half.len());
    assert_content(&half, 1, 0);
    say("half");
    hear();
    let mut page = vec![0; PAGE as usize];
    assert_eq!(file.read_at(&mut page, LEN / 2).unwrap(), page.len());
    assert_content(&page, 1, LEN / 2);
    say("page");
    hear();
    // SAFETY: the child reads a file, which allocates, as libc allows after a fork, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a system call without pointers. It ends the child if it hangs.
        unsafe { libc::alarm(60) };
        let seen = match file.read_at(&mut half, LEN / 2) {
            Err(e) if e.kind() == ErrorKind::StaleNetworkFileHandle => 10,
            Ok(_) if half == content(1, LEN / 2, half.len()) => 11,
            _ => 12,
        };
        // SAFETY: ends the child without what the parent has registered for its exit.
        unsafe { libc::_exit(seen) };
    }
    let mut status = 0;
    // SAFETY: the status lives on this stack.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    say(&format!("child {}", libc::WEXITSTATUS(status)));
    hear();
}

/// After its parent has proved the content under other attributes, a child cannot prove anything: a
/// write that moves ctime alone looks like the change of attributes next to it.
#[test]
fn a_forked_child_does_not_forget_that_the_stamps_have_moved() {
    let pfs = plain_pfs();
    let path = pfs.path().join("f");
    let agent = Agent::on(pfs.path());
    make_file(&path, 1, LEN);
    let mut reader = Helper::start(&agent, "forks", &[path.to_str().unwrap()]);
    reader.expect("half");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    reader.say("on");
    reader.expect("page");
    overwrite_and_set_mtime_back(&path);
    reader.say("fork");
    assert_eq!(reader.expect("child"), "10", "10: ESTALE, 11: old bytes, 12: new ones");
    reader.finish();
}

/// A handle that finds all of the file's `len` bytes in the tier.
fn open_in_the_tier(agent: &Agent, path: &Path, len: u64) -> forebay_client::File {
    wait_for("the file to be in the tier", || {
        let file = agent.client().open(path).unwrap();
        read_all(&file).unwrap();
        file.resident_bytes() == len
    });
    let file = agent.client().open(path).unwrap();
    assert_eq!(file.resident_bytes(), len);
    file
}

/// A handle of a file that is wholly in the tier needs no watch. When the pages are evicted, it
/// must not mistake a write that it has not seen for the change of attributes next to it.
#[test]
fn a_file_evicted_after_a_write_with_mtime_set_back_and_a_change_of_attributes_is_not_mixed() {
    let changes: [Change; 3] = [
        |path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap(),
        |path| std::fs::hard_link(path, path.with_extension("link")).unwrap(),
        |path| std::fs::remove_file(path).unwrap(),
    ];
    for (change, len) in changes.into_iter().flat_map(|change| [(change, UNWATCHED), (change, LEN)]) {
        let pfs = plain_pfs();
        let path = pfs.path().join("f");
        make_file(&path, 1, len);
        let agent = Agent::on(pfs.path());
        let file = open_in_the_tier(&agent, &path, len);
        let mut half = vec![0; (len / 2) as usize];
        assert_eq!(file.read_at(&mut half, 0).unwrap(), half.len());
        assert_content(&half, 1, 0);
        overwrite_and_set_mtime_back(&path);
        change(&path);
        agent.client().admin().evict_all().unwrap();
        assert_eq!(file.resident_bytes(), 0, "nothing was evicted: no test of a miss");
        let read = file.read_at(&mut half, len / 2);
        assert_eq!(read.unwrap_err().kind(), ErrorKind::StaleNetworkFileHandle);
    }
}

/// It is watched from its open on.
#[test]
fn a_large_file_in_the_tier_that_is_changed_in_its_attributes_and_evicted_is_read_to_its_end() {
    let changes: [Change; 3] = [
        |path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap(),
        |path| std::fs::rename(path, path.with_extension("elsewhere")).unwrap(),
        |path| std::fs::remove_file(path).unwrap(),
    ];
    for change in changes {
        let pfs = plain_pfs();
        let path = pfs.path().join("f");
        make_file(&path, 1, LEN);
        let agent = Agent::on(pfs.path());
        let file = open_in_the_tier(&agent, &path, LEN);
        let mut half = vec![0; (LEN / 2) as usize];
        assert_eq!(file.read_at(&mut half, 0).unwrap(), half.len());
        change(&path);
        agent.client().admin().evict_all().unwrap();
        assert_eq!(file.resident_bytes(), 0, "nothing was evicted: no test of a miss");
        second_half(&file).unwrap();
        assert_first_half_is_old(&file);
    }
}

/// Two handles of one file have one watch: neither the end of the other nor what it has seen
/// matters.
#[test]
fn handles_of_one_file_do_not_take_each_others_changes() {
    let (_pfs, path, agent) = one_file(1, LEN);
    let client = agent.client();
    let files = [client.open(&path).unwrap(), client.open(&path).unwrap(), client.open(&path).unwrap()];
    let mut page = vec![0; PAGE as usize];
    for file in &files {
        assert_eq!(file.read_at(&mut page, 0).unwrap(), page.len());
    }
    let [first, second, third] = files;
    drop(first);
    (THERE_AND_BACK[0].1)(&path);
    for (file, at) in [(&second, 4), (&third, 5), (&second, 6)] {
        assert_eq!(file.read_at(&mut page, at * PAGE).unwrap(), page.len());
        assert_content(&page, 1, at * PAGE);
    }
    overwrite_and_set_mtime_back(&path);
    assert!(is_stale(second.read_at(&mut page, 8 * PAGE)));
    assert!(is_stale(third.read_at(&mut page, 9 * PAGE)));
}

/// A change that this node's kernel learns nothing of, as one on another node: what cannot be
/// distinguished from a write ends the handle.
#[test]
fn a_change_on_another_node_that_moves_ctime_alone_is_taken_for_a_write() {
    let Some(pfs) = SlowFs::start() else { return };
    let there = pfs.mount().with_file_name("backing").join("f");
    let changes: [(Change, bool); 4] = [
        (overwrite_and_set_mtime_back, false),
        (THERE_AND_BACK[2].1, false),
        (|path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap(), true),
        (|path| std::fs::hard_link(path, path.with_extension("link")).unwrap(), true),
    ];
    for (change, goes_on) in changes {
        let agent = Agent::on(&pfs.mount());
        make_file(&there, 1, LEN);
        let file = agent.client().open(pfs.at("f")).unwrap();
        let mut half = vec![0; (LEN / 2) as usize];
        assert_eq!(file.read_at(&mut half, 0).unwrap(), half.len());
        assert_content(&half, 1, 0);
        change(&there);
        if goes_on { second_half(&file).unwrap() } else { assert_stale(&file) }
    }
}

#[test]
fn truncated() {
    let (pfs, agent, file) =
        half_read(|path| File::options().write(true).open(path).unwrap().set_len(1000).unwrap());
    assert_stale(&file);
    assert_new_open_reads(&agent, &pfs.path().join("f"), 1, 1000);
}

#[test]
fn grown() {
    let (pfs, agent, file) = half_read(|path| {
        let mut file = File::options().append(true).open(path).unwrap();
        file.write_all(&content(1, LEN, 5000)).unwrap();
    });
    assert_stale(&file);
    assert_new_open_reads(&agent, &pfs.path().join("f"), 1, LEN + 5000);
}

#[test]
fn deleted() {
    let (pfs, agent, file) = half_read(|path| std::fs::remove_file(path).unwrap());
    second_half(&file).unwrap();
    assert_first_half_is_old(&file);
    assert_eq!(agent.client().open(pfs.path().join("f")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn replaced_by_a_rename() {
    let (pfs, agent, file) = half_read(|path| {
        let fresh = path.with_extension("new");
        std::fs::write(&fresh, content(2, 0, LEN as usize)).unwrap();
        std::fs::rename(&fresh, path).unwrap();
    });
    second_half(&file).unwrap();
    assert_first_half_is_old(&file);
    assert_new_open_reads(&agent, &pfs.path().join("f"), 2, LEN);
}

#[test]
fn renamed_or_its_mode_changed() {
    let (_pfs, _agent, file) =
        half_read(|path| std::fs::rename(path, path.with_extension("elsewhere")).unwrap());
    second_half(&file).unwrap();
    let (_pfs, _agent, file) = half_read(|path| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    });
    second_half(&file).unwrap();
}

/// Readers of a file that is rewritten all the time: every open sees one version from beginning to
/// end, or `ESTALE`.
#[test]
fn a_file_rewritten_again_and_again_is_never_mixed_within_one_open() {
    let pfs = plain_pfs();
    let path = pfs.path().join("f");
    let len = 6 * PAGE;
    make_file(&path, 0, len);
    let agent = Agent::on(pfs.path());
    let (stop, stale, whole, newest) =
        (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let client = agent.client();
            scope.spawn(|| {
                let client = client;
                while !stop.load(Ordering::Relaxed) {
                    let version_before = newest.load(Ordering::SeqCst);
                    let file = client.open(&path).unwrap();
                    match read_in_pieces(&file) {
                        // Truncated, and seen as that.
                        Ok(bytes) if bytes.is_empty() => {}
                        Ok(bytes) => {
                            let seed = seed_of(&bytes);
                            assert_content(&bytes, seed, 0);
                            assert!(
                                seed >= version_before,
                                "an open after the write of {version_before} saw {seed}"
                            );
                            whole.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(e) => {
                            assert_eq!(e.kind(), ErrorKind::StaleNetworkFileHandle, "{e}");
                            stale.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        // Replaced as a whole, so that the PFS itself never shows a mixture; in place, the old
        // inode continues to be read.
        let mut version = 0;
        wait_for("readers have seen enough versions", || {
            version += 1;
            let fresh = path.with_extension("new");
            std::fs::write(&fresh, content(version, 0, len as usize)).unwrap();
            std::fs::rename(&fresh, &path).unwrap();
            newest.store(version, Ordering::SeqCst);
            if version % 8 == 0 {
                // Old enough to be cached; then truncated under its readers, which must not mistake
                // the rest for zeros.
                grow_old(&path);
                let passes = whole.load(Ordering::Relaxed);
                wait_for("it is read", || whole.load(Ordering::Relaxed) > passes + 8);
                File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
                std::fs::write(&fresh, content(version, 0, len as usize)).unwrap();
                std::fs::rename(&fresh, &path).unwrap();
            }
            version >= 64
        });
        stop.store(true, Ordering::Relaxed);
    });
    assert!(whole.load(Ordering::Relaxed) > 0, "nobody read a whole file");
    assert!(agent.counter("pages_demanded_total") > 0, "nothing came from the tier");
}

fn read_in_pieces(file: &forebay_client::File) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; file.size()? as usize];
    let mut done = 0;
    while done < bytes.len() {
        let end = bytes.len().min(done + 50_000);
        match file.read_at(&mut bytes[done..end], done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

fn seed_of(bytes: &[u8]) -> u64 {
    (0..10_000).find(|seed| content(*seed, 0, 8) == bytes[..8]).expect("bytes of no version at all")
}

/// A file of which page 0 is in the tier, and a fresh handle on it.
fn first_page_cached() -> (tempfile::TempDir, Agent, forebay_client::File) {
    let (pfs, path, agent) = one_file(1, LEN);
    let other = agent.client().open(&path).unwrap();
    assert_eq!(other.read_at(&mut vec![0; PAGE as usize], 0).unwrap(), PAGE as usize);
    let file = agent.client().open(&path).unwrap();
    assert_eq!(file.resident_bytes(), PAGE, "page 0 and no other is in the tier");
    (pfs, agent, file)
}

/// A small read far from any other: one that goes to the PFS itself.
fn small_read(file: &forebay_client::File) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; 512];
    file.read_at(&mut bytes, 8 * PAGE + 100)?;
    Ok(bytes)
}

fn is_stale<T>(read: std::io::Result<T>) -> bool {
    read.is_err_and(|e| e.kind() == ErrorKind::StaleNetworkFileHandle)
}

#[test]
fn what_was_read_from_the_pfs_is_proved_before_the_first_byte_of_the_tier() {
    let (pfs, agent, file) = first_page_cached();
    // The first direct read is followed by a look at the file; the next need not be.
    assert_content(&small_read(&file).unwrap(), 1, 8 * PAGE + 100);
    overwrite(&pfs.path().join("f"), 2, LEN);
    // New bytes may be handed out while only the PFS is read; on a slow machine the handle may have
    // noticed already.
    if let Ok(bytes) = small_read(&file) {
        assert_content(&bytes, 2, 8 * PAGE + 100);
    }
    assert!(is_stale(file.read_at(&mut [0; 100], 0)), "old bytes of the tier after new ones of the PFS");
    assert!(is_stale(small_read(&file)), "a handle that is stale stays so");
    assert_eq!(agent.counter("fetched_bytes"), PAGE, "the small read did not go to the PFS");
}

#[test]
fn a_read_of_the_pfs_after_bytes_of_the_tier_is_proved_at_once() {
    let (pfs, agent, file) = first_page_cached();
    assert_eq!(file.read_at(&mut [0; 100], 0).unwrap(), 100);
    assert_content(&small_read(&file).unwrap(), 1, 8 * PAGE + 100);
    overwrite(&pfs.path().join("f"), 2, LEN);
    assert!(is_stale(small_read(&file)), "new bytes of the PFS after old ones of the tier");
    assert_eq!(agent.counter("fetched_bytes"), PAGE, "the small read did not go to the PFS");
}

#[test]
fn a_handle_that_reads_only_the_pfs_notices_a_change_as_well() {
    let (pfs, _agent, file) = first_page_cached();
    assert_content(&small_read(&file).unwrap(), 1, 8 * PAGE + 100);
    overwrite(&pfs.path().join("f"), 2, LEN);
    wait_for("the handle looks at the file", || match small_read(&file) {
        Ok(bytes) => {
            assert_content(&bytes, 2, 8 * PAGE + 100);
            false
        }
        other => is_stale(other),
    });
}

#[test]
fn a_mapping_is_not_handed_out_before_what_was_read_from_the_pfs_is_proved() {
    let (pfs, agent, file) = first_page_cached();
    assert!(file.map(0, 100).is_some(), "pages of this file cannot be mapped: no test");
    let fresh = agent.client().open(pfs.path().join("f")).unwrap();
    assert_content(&small_read(&fresh).unwrap(), 1, 8 * PAGE + 100);
    overwrite(&pfs.path().join("f"), 2, LEN);
    if let Ok(bytes) = small_read(&fresh) {
        assert_content(&bytes, 2, 8 * PAGE + 100);
    }
    assert!(fresh.map(0, 100).is_none(), "old bytes of the tier after new ones of the PFS");
    assert!(is_stale(fresh.read_at(&mut [0; 100], 0)));
    assert_eq!(agent.counter("fetched_bytes"), PAGE, "the small read did not go to the PFS");
}

/// Two threads of one handle want bytes of the tier after a read of the PFS, and the PFS is slow to
/// report whether the file is still the same.
#[test]
fn no_thread_gets_bytes_of_the_tier_while_another_still_looks_at_the_file() {
    let Some(pfs) = SlowFs::start() else { return };
    make_file(&pfs.at("f"), 1, LEN);
    let agent = Agent::on(&pfs.mount());
    let other = agent.client().open(pfs.at("f")).unwrap();
    assert_eq!(other.read_at(&mut vec![0; PAGE as usize], 0).unwrap(), PAGE as usize);
    let file = agent.client().open(pfs.at("f")).unwrap();
    assert_eq!(file.resident_bytes(), PAGE, "page 0 and no other is in the tier");
    assert_content(&small_read(&file).unwrap(), 1, 8 * PAGE + 100);
    pfs.fault("meta=hang");
    std::thread::scope(|scope| {
        let read = || file.read_at(&mut [0; 100], 0);
        let first = scope.spawn(read);
        wait_for("the first looks at the file", || pfs.stats().hung_now > 0 || first.is_finished());
        assert!(!first.is_finished(), "it did not look at the file");
        let second = scope.spawn(read);
        let third = scope.spawn(|| file.map(0, 100).is_some());
        let is_over = || second.is_finished() || third.is_finished();
        wait_for("the others look at the file", || pfs.stats().hung_now > 2 || is_over());
        assert!(!is_over(), "bytes of the tier were handed out before the look");
        overwrite(&pfs.mount().with_file_name("backing").join("f"), 2, LEN);
        pfs.fault("none");
        assert!(is_stale(first.join().unwrap()) && is_stale(second.join().unwrap()));
        assert!(!third.join().unwrap());
    });
}
