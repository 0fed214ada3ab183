//! Columnar files: a miss fetches what is read, and adjacent small pages are one read of the PFS.

use crate::common::{
    Agent, MIB, Setup, SlowFs, assert_content, content, grow_old, make_file, plain_pfs, read_all, text,
    wait_for,
};
use forebay_client::WriteMode;
use std::io::Write;
use std::path::Path;

/// `mount.small_page_size`.
const SMALL: u64 = 16 << 10;

/// An agent with pages and read-ahead as they are by default.
fn agent_on(pfs: &Path) -> Agent {
    Agent::start(Setup { page: 2 * MIB, read_ahead: 64 * MIB, ..Setup::new(pfs) })
}

#[test]
fn of_a_columnar_file_the_pages_that_are_read_are_fetched_and_no_others() {
    let Some((pfs, path)) = SlowFs::with("t.parquet", 1, 24 * MIB) else { return };
    let agent = agent_on(&pfs.mount());
    let file = agent.client().open(&path).unwrap();
    let before = pfs.stats().read_bytes;
    let mut pages = 0;
    for (offset, len) in [(24 * MIB - 8, 8), (MIB + 5, 100_000), (7 * MIB, SMALL), (15 * MIB + 5, MIB)] {
        let mut bytes = vec![0; len as usize];
        assert_eq!(file.read_at(&mut bytes, offset).unwrap() as u64, len);
        assert_content(&bytes, 1, offset);
        pages += (offset + len).div_ceil(SMALL) - offset / SMALL;
        assert_eq!(pfs.stats().read_bytes - before, pages * SMALL, "after {len} bytes at {offset}");
    }
    wait_for("nothing more comes", || agent.used("pages") == pages * SMALL);
    // Again: all of it is in the tier.
    let mut bytes = vec![0; 100_000];
    file.read_at(&mut bytes, MIB + 5).unwrap();
    assert_content(&bytes, 1, MIB + 5);
    assert_eq!(pfs.stats().read_bytes - before, pages * SMALL);
    drop(file);
    agent.assert_nothing_left();
}

#[test]
fn small_pages_take_no_more_memory_than_they_have_bytes() {
    let Some((pfs, path)) = SlowFs::with("t.parquet", 1, 64 * MIB) else { return };
    // A tmpfs of its own, with huge pages.
    let agent = Agent::start(Setup { page: 2 * MIB, backing: "mount", ..Setup::new(&pfs.mount()) });
    let file = agent.client().open(&path).unwrap();
    for chunk in 0..20 {
        let mut bytes = vec![0; 20_000];
        file.read_at(&mut bytes, chunk * 3 * MIB + 5).unwrap();
        assert_content(&bytes, 1, chunk * 3 * MIB + 5);
    }
    let taken = || {
        let stat = rustix::fs::statvfs(agent.state_dir().join("tier")).unwrap();
        (stat.f_blocks - stat.f_bfree) * stat.f_frsize
    };
    assert!(agent.used("pages") >= 20 * 2 * SMALL);
    wait_for("memory beside the pages is released", || taken() <= agent.used("pages") + MIB);
    drop(file);
    agent.client().admin().evict_all().unwrap();
    wait_for("all is released", || taken() <= MIB);
}

#[test]
fn adjacent_small_pages_are_few_reads_of_the_pfs() {
    let Some(pfs) = SlowFs::start() else { return };
    let (chunk, whole) = (pfs.at("chunk.orc"), pfs.at("whole.parquet"));
    make_file(&chunk, 1, 24 * MIB);
    make_file(&whole, 2, 16 * MIB + 100);
    let agent = agent_on(&pfs.mount());
    let reads = || pfs.stats().reads;
    // The kernel divides a read into requests of at most 1 MiB; a page by itself would be 256.
    let before = reads();
    let mut bytes = vec![0; 4 << 20];
    agent.client().open(&chunk).unwrap().read_at(&mut bytes, 8 * MIB).unwrap();
    assert_content(&bytes, 1, 8 * MIB);
    assert!(reads() - before <= 24, "{} reads for 4 MiB", reads() - before);
    let before = reads();
    let loaded = agent.cli(&["load", whole.to_str().unwrap()]);
    assert!(loaded.status.success(), "{}", text(&loaded.stderr));
    assert!(reads() - before <= 40, "{} reads for a load of 16 MiB", reads() - before);
    let (before, file) = (reads(), agent.client().open(&whole).unwrap());
    assert_content(&read_all(&file).unwrap(), 2, 0);
    assert_eq!(reads(), before, "not all of it was loaded");
}

#[test]
fn a_columnar_file_that_was_written_through_is_in_small_pages() {
    let Some(pfs) = SlowFs::start() else { return };
    let agent = agent_on(&pfs.mount());
    let path = pfs.at("new.parquet");
    let mut writer = agent.client().create(&path, WriteMode::Through).unwrap();
    let bytes = content(3, 0, (5 * MIB + 100) as usize);
    writer.write_all(&bytes).unwrap();
    writer.close().unwrap();
    assert_eq!(agent.counter("pages_written_total"), (5 * MIB + 100).div_ceil(SMALL));
    let before = pfs.stats().read_bytes;
    assert_content(&read_all(&agent.client().open(&path).unwrap()).unwrap(), 3, 0);
    assert_eq!(pfs.stats().read_bytes, before, "what was written was not kept");
    agent.assert_nothing_left();
}

#[test]
fn a_read_error_within_a_run_of_small_pages_is_the_programs_error_and_passes() {
    let Some((pfs, path)) = SlowFs::with("t.parquet", 1, 8 * MIB) else { return };
    let agent = agent_on(&pfs.mount());
    pfs.fault("read=EIO");
    let file = agent.client().open(&path).unwrap();
    let error = file.read_at(&mut vec![0; MIB as usize], MIB).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert!(pfs.stats().faults.read >= 2, "the agent and the program have not both met the fault");
    wait_for("what failed is released", || agent.used("pages") == 0);
    pfs.fault("none");
    assert_content(&read_all(&file).unwrap(), 1, 0);
    drop(file);
    agent.assert_nothing_left();
}

#[test]
fn a_columnar_file_too_large_for_small_pages_is_cached_in_pages_of_the_usual_size() {
    let pfs = plain_pfs();
    let (path, size) = (pfs.path().join("huge.parquet"), 300 << 30);
    let file = std::fs::File::create(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &content(1, 0, 4 << 20), 0).unwrap();
    file.set_len(size).unwrap();
    drop(file);
    grow_old(&path);
    let agent = agent_on(pfs.path());
    let file = agent.client().open(&path).unwrap();
    for offset in (0..4 * MIB).step_by(64 << 10) {
        let mut bytes = vec![0; 64 << 10];
        assert_eq!(file.read_at(&mut bytes, offset).unwrap(), bytes.len());
        assert_content(&bytes, 1, offset);
    }
    let are_cached = |bytes: u64| bytes >= 4 * MIB && bytes.is_multiple_of(2 * MIB);
    wait_for("whole pages are cached", || are_cached(agent.used("pages")));
}

#[test]
fn what_a_page_takes_is_learnt_from_runs_of_small_pages() {
    let Some(pfs) = SlowFs::start() else { return };
    let [first, second] = ["first.parquet", "second.parquet"].map(|name| pfs.at(name));
    make_file(&first, 1, 2 * MIB);
    make_file(&second, 2, 2 * MIB);
    let agent = agent_on(&pfs.mount());
    let load = |path: &Path| {
        let before = pfs.stats().reads;
        let loaded = agent.cli(&["load", path.to_str().unwrap()]);
        assert!(loaded.status.success(), "{}", text(&loaded.stderr));
        pfs.stats().reads - before
    };
    pfs.limit("1MB/s");
    let reads = load(&first);
    // A page takes two seconds, so that chunks are an eighth of one.
    let slower = load(&second);
    assert!(slower >= 8 && slower > reads, "{reads} reads, then {slower}");
}
