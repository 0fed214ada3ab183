//! There is no room: the tier is full, the tmpfs is full, everything is evicted all the time.

use crate::common::{
    Agent, BASE, Helper, MIB, PAGE, Setup, assert_content, content, make_file, make_files, one_file,
    open_dir_in, pfs_and_agent, pfs_with, plain_pfs, text, wait_for,
};
use crate::roles::verify_once;
use forebay_client::ReadMode;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[test]
fn with_all_of_the_tier_pinned_reads_go_on_from_the_pfs_and_the_operator_is_heard() {
    let pfs = plain_pfs();
    let (pinned, other) = (pfs.path().join("pinned"), pfs.path().join("other"));
    make_file(&pinned, 1, 8 * MIB);
    make_file(&other, 2, 4 * MIB);
    let agent = Agent::start(Setup::new(pfs.path()).capacity(BASE + 24 * MIB));
    let admin_client = agent.client();
    admin_client.admin().pin(&pinned, true).unwrap();
    verify_once(&agent.client(), &pinned, 1, 0);
    // Now the rest is taken away, and more than that.
    let used_bytes = agent.status().used_bytes.iter().map(|(_, bytes)| bytes).sum::<u64>();
    admin_client.admin().set_capacity(used_bytes - MIB).unwrap();
    let before = agent.counter("refusals_total");
    verify_once(&agent.client(), &other, 2, 0);
    assert!(agent.counter("refusals_total") > before, "the tier had room");
    let s = agent.status();
    assert!(
        s.used_bytes.iter().map(|(_, b)| b).sum::<u64>() > s.capacity_bytes,
        "the budget is not exceeded"
    );
    let file = agent.client().open_with(&pinned, ReadMode::TierOnly).unwrap();
    assert_content(&crate::common::read_all(&file).unwrap(), 1, 0);
    drop(file);
    assert!(agent.client().admin().evict(&pinned).is_err());
    // And back.
    admin_client.admin().set_capacity(BASE + 24 * MIB).unwrap();
    admin_client.admin().pin(&pinned, false).unwrap();
    verify_once(&agent.client(), &other, 2, 0);
    assert!(agent.used("pages") > 8 * MIB);
    agent.assert_nothing_left();
}

#[test]
fn a_client_at_its_limit_of_open_files_says_so() {
    let (_pfs, path, agent) = one_file(1, MIB);
    verify_once(&agent.client(), &path, 1, 0);
    let (mut read_all_the_same, mut without_copy, mut refused, mut served) = (0, 0, 0, 0);
    // Each limit is reached at another point: at the first socket, the second, the ring, the copy,
    // or nowhere.
    for limit in 4..16 {
        let run = |args: &str| {
            let script =
                format!("ulimit -n {limit}; exec {} {args} '{}'", crate::common::FOREBAY, path.display());
            let mut command = std::process::Command::new("sh");
            command.args(["-c", &script]).env("FOREBAY_SOCKET", agent.socket()).env_remove("FOREBAY_QUIET");
            command.output().unwrap()
        };
        let out = run("cat");
        let said = text(&out.stderr);
        assert!(out.status.success(), "with {limit} files: {said}");
        assert_content(&out.stdout, 1, 0);
        assert!(said.is_empty() || said.contains("EMFILE"), "with {limit} files: {said}");
        read_all_the_same += u32::from(!said.is_empty());
        let opens = agent.counter("opens_total");
        let out = run("cat --read tier");
        let said = text(&out.stderr);
        assert_eq!(out.status.success(), !said.contains("EMFILE"), "with {limit} files: {said}");
        assert!(!said.contains("no agent") && !said.contains("not answer"), "with {limit} files: {said}");
        let asked = agent.counter("opens_total") > opens;
        served += u32::from(out.status.success());
        refused += u32::from(!out.status.success());
        without_copy += u32::from(!out.status.success() && asked);
    }
    let counts = [read_all_the_same, without_copy, refused, served];
    assert!(counts.iter().all(|n| *n > 0), "not all limits were met: {counts:?}");
}

/// A tmpfs of a few megabytes that the agent believes to be as large as its budget.
pub struct SmallTmpfs(pub tempfile::TempDir);

impl SmallTmpfs {
    pub fn new(bytes: u64) -> Self {
        let dir = open_dir_in("/dev/shm");
        let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        rustix::mount::mount(
            c"small",
            dir.path(),
            c"tmpfs",
            rustix::mount::MountFlags::empty(),
            Some(options.as_c_str()),
        )
        .expect("this test mounts a tmpfs and needs root");
        SmallTmpfs(dir)
    }

    fn free_bytes(&self) -> u64 {
        let stat = rustix::fs::statvfs(self.0.path()).unwrap();
        stat.f_bavail * stat.f_frsize
    }
}

impl Drop for SmallTmpfs {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_tmpfs_is_want_of_room_and_no_signal() {
    let tmpfs = SmallTmpfs::new(4 * MIB);
    let (pfs, path) = pfs_with("f", 1, 10 * MIB);
    let mut setup = Setup::new(pfs.path());
    setup.directory = Some(tmpfs.0.path().join("tier"));
    let agent = Agent::start(setup);
    verify_once(&agent.client(), &path, 1, 0);
    assert!(tmpfs.free_bytes() < PAGE, "the tmpfs is not full");
    assert!(agent.counter("pages_failed_total") > 0);
    // Copies of many small files cannot even be made; memory-only files and writers get an error or
    // do without.
    let small = make_files(20, 3 * PAGE, |i| pfs.path().join(format!("s{i}")));
    for (seed, path) in (0..).zip(&small) {
        verify_once(&agent.client(), path, seed, 0);
    }
    let client = agent.client();
    let through = pfs.path().join("through");
    let mut writer = client.create(&through, forebay_client::WriteMode::Through).unwrap();
    std::io::Write::write_all(&mut writer, &content(9, 0, 2 << 20)).unwrap();
    writer.close().unwrap();
    verify_once(&client, &through, 9, 0);
    let mut scratch =
        client.create(pfs.path().join("scratch"), forebay_client::WriteMode::MemoryOnly).unwrap();
    let written =
        std::io::Write::write_all(&mut scratch, &content(9, 0, 8 << 20)).and_then(|()| scratch.close());
    assert_eq!(written.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    drop(client);
    assert_eq!(agent.status().pid, agent.pid());
    agent.assert_nothing_left();
    assert!(tmpfs.free_bytes() > 3 * MIB, "memory is not released");
    // With room again it is cached again.
    verify_once(&agent.client(), &small[1], 1, 0);
    verify_once(&agent.client(), &small[1], 1, 0);
    assert!(agent.used("pages") > 0);
}

#[test]
fn an_eviction_storm_never_shows_wrong_bytes() {
    let pfs = plain_pfs();
    let paths: Vec<_> = (0..4u64).map(|i| pfs.path().join(i.to_string())).collect();
    for (seed, path) in paths.iter().enumerate() {
        make_file(path, seed as u64, 2 * MIB);
    }
    let mut setup = Setup::new(pfs.path()).capacity(BASE + 4 * MIB);
    setup.read_ahead = MIB;
    let agent = Agent::start(setup);
    let (stop, passes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..6 {
            let (client, stop, passes, paths) = (agent.client(), &stop, &passes, &paths);
            scope.spawn(move || {
                for pass in reader.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let seed = pass % 4;
                    verify_once(&client, &paths[seed as usize], seed, pass);
                    passes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let client = agent.client();
        let mut round = 0u64;
        let mut storm = || {
            round += 1;
            let admin = client.admin();
            admin.evict_all().unwrap();
            admin.set_capacity(BASE + (round % 5) * MIB).unwrap();
            admin.evict(&paths[round as usize % 4]).unwrap();
            admin.set_capacity(BASE + 4 * MIB).unwrap();
            passes.load(Ordering::Relaxed) >= 60
                && round.is_multiple_of(20)
                && agent.counter("evicted_pages_total") > 500
        };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_for("readers have gone through the storm", &mut storm);
        }));
        stop.store(true, Ordering::Relaxed);
        done.unwrap();
    });
    agent.assert_nothing_left();
}

#[test]
fn ten_thousand_handles_of_one_client_do_not_cost_the_agent_descriptors() {
    let pfs = plain_pfs();
    for seed in 0..100u64 {
        std::fs::write(pfs.path().join(seed.to_string()), content(seed, 0, 5000)).unwrap();
    }
    crate::common::grow_old(&pfs.path().join("99"));
    let agent = Agent::on(pfs.path());
    for seed in 0..100 {
        verify_once(&agent.client(), &pfs.path().join(seed.to_string()), seed, 0);
    }
    wait_for("earlier connections end", || agent.status().connections <= 1);
    let before = agent.open_files();
    let mut client = Helper::start(&agent, "handles", &[pfs.path().to_str().unwrap(), "10000"]);
    let cached: u64 = client.expect("open").parse().unwrap();
    assert!(cached > 5_000, "only {cached} handles have a copy: allow more open files");
    assert_eq!(agent.counter("opens_cached_total"), cached);
    let handles = std::fs::read_dir(format!("/proc/{}/fd", client.pid())).unwrap().count() as u64;
    assert!(handles >= 10_000 + cached, "the client has only {handles} descriptors open");
    assert!(agent.open_files() < before + 20, "{before} descriptors have become {}", agent.open_files());
    client.say("read");
    client.expect("read");
    client.finish();
    agent.assert_nothing_left();
}

#[test]
fn files_of_every_odd_size() {
    let (pfs, agent) = pfs_and_agent();
    for size in [0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE - 1, 3 * PAGE, 3 * PAGE + 1] {
        let path = pfs.path().join(size.to_string());
        make_file(&path, size, size);
        for pass in 0..2 {
            let file = agent.client().open(&path).unwrap();
            assert_eq!(file.size().unwrap(), size);
            assert_content(&crate::common::read_all(&file).unwrap(), size, 0);
            assert_eq!(file.read_at(&mut [0; 10], size).unwrap(), 0);
            assert_eq!(file.read_at(&mut [0; 10], size + 1_000_000).unwrap(), 0);
            assert_eq!(file.resident_bytes(), size, "pass {pass} of {size} bytes");
        }
    }
    let out = agent.cli(&["verify", "-r", pfs.path().to_str().unwrap()]);
    assert!(out.status.success(), "{}", text(&out.stdout));
    agent.assert_nothing_left();
}

#[test]
fn a_sparse_file_of_a_tebibyte_takes_the_memory_of_what_was_read() {
    let pfs = plain_pfs();
    let path = pfs.path().join("sparse");
    let file = File::create(&path).unwrap();
    file.set_len(1 << 40).unwrap();
    let marks = [0, 5 * (1 << 30) + 17, (1 << 40) - 1000];
    for at in marks {
        file.write_all_at(&content(6, at, 1000), at).unwrap();
    }
    drop(file);
    crate::common::grow_old(&path);
    let mut setup = Setup::new(pfs.path());
    setup.page = 2 * MIB;
    let agent = Agent::start(setup);
    let open = agent.client().open(&path).unwrap();
    for at in marks {
        // From the beginning of its page on, so that it is not a small random read.
        let start = at / (2 * MIB) * (2 * MIB);
        let mut page = vec![1; (2 * MIB) as usize];
        assert_eq!(open.read_at(&mut page, start).unwrap(), page.len());
        let at_in_page = (at - start) as usize;
        let marked = 1000.min(page.len() - at_in_page);
        assert_content(&page[at_in_page..at_in_page + marked], 6, at);
        assert!(page[..at_in_page].iter().all(|b| *b == 0));
    }
    assert_eq!(agent.used("pages"), marks.len() as u64 * 2 * MIB);
    assert_eq!(open.resident_bytes(), marks.len() as u64 * 2 * MIB);
    drop(open);
    agent.assert_nothing_left();
}

#[test]
fn a_read_that_must_not_wait_gives_the_right_bytes_or_nothing() {
    let (pfs, path) = pfs_with("data", 5, 3 * PAGE + 1000);
    let agent = Agent::start(Setup::new(pfs.path()).capacity(BASE + 16 * MIB));
    let file = agent.client().open(&path).unwrap();
    let mut buffer = vec![0; PAGE as usize];
    assert_eq!(file.read_resident(&mut buffer, 0), None, "nothing is in the tier");
    let mut all = vec![0; 4 * PAGE as usize];
    wait_for("all of it in the tier", || {
        file.read_at(&mut all, 0).unwrap();
        file.read_resident(&mut buffer, 0).is_some()
    });
    let size = 3 * PAGE + 1000;
    for (at, expected) in
        [(0, PAGE), (PAGE - 7, PAGE), (3 * PAGE, 1000), (size - 1, 1), (size, 0), (size + 9, 0)]
    {
        buffer.fill(0xEE);
        assert_eq!(file.read_resident(&mut buffer, at), Some(expected as usize), "at {at}");
        assert_content(&buffer[..expected as usize], 5, at);
    }
    agent.client().admin().evict(&path).unwrap();
    assert_eq!(file.read_resident(&mut buffer, 0), None, "it was evicted");
    assert_eq!(file.read_at(&mut buffer, 0).unwrap() as u64, PAGE);
    assert_content(&buffer, 5, 0);
}
