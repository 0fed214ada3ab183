//! Directories as users have them are loaded: files dated in the future, sparse ones, ones that are
//! larger than the tier, and ones that are not ready.

use crate::common::{
    Agent, BASE, MIB, PAGE, PATIENCE, Setup, SlowFs, assert_content, content, grow_old, make_file,
    make_files, plain_pfs, read_all, text, wait_for,
};
use crate::roles::verify_once;
use forebay_client::{Client, ReadMode};
use forebay_lab::slowfs::Stamps;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

fn set_mtime(path: &Path, in_seconds: u64) {
    let at = SystemTime::now() + Duration::from_secs(in_seconds);
    File::options().write(true).open(path).unwrap().set_modified(at).unwrap();
}

fn files(dir: &Path, count: u64, bytes: u64) -> Vec<PathBuf> {
    make_files(count, bytes, |i| dir.join(format!("file{i}")))
}

/// Whether load succeeded, and what it said.
fn load(agent: &Agent, paths: &[&Path]) -> (bool, String) {
    let mut command = agent.command(&["load"]);
    let out = command.args(paths).output().unwrap();
    (out.status.success(), text(&out.stdout) + &text(&out.stderr))
}

/// Whether all of it is in the tier.
fn is_loaded(agent: &Agent, path: &Path, seed: u64) -> bool {
    is_in_tier(&agent.client(), path, seed)
}

fn is_in_tier(client: &Client, path: &Path, seed: u64) -> bool {
    let file = client.open_with(path, ReadMode::TierOnly);
    let bytes = file.and_then(|file| read_all(&file));
    bytes.inspect(|bytes| assert_content(bytes, seed, 0)).is_ok()
}

#[test]
fn files_dated_in_the_future_are_loaded() {
    let pfs = plain_pfs();
    let paths = files(pfs.path(), 20, 3 * PAGE);
    paths.iter().for_each(|path| set_mtime(path, 3 * 86_400));
    grow_old(&paths[19]);
    let agent = Agent::on(pfs.path());
    let (is_done, said) = load(&agent, &[pfs.path()]);
    assert!(is_done, "{said}");
    for (seed, path) in paths.iter().enumerate() {
        assert!(is_loaded(&agent, path, seed as u64), "{} is not in the tier", path.display());
    }
    // A write moves ctime, so an mtime in the future does not hide it.
    std::fs::write(&paths[0], content(99, 0, 3 * PAGE as usize)).unwrap();
    set_mtime(&paths[0], 3 * 86_400);
    verify_once(&agent.client(), &paths[0], 99, 0);
}

#[test]
fn where_writes_move_mtime_alone_a_load_names_the_files_of_the_future_and_waits_for_none() {
    let Some(slow) = SlowFs::start_with(Stamps::Mtime) else { return };
    let paths = files(&slow.mount(), 30, PAGE);
    paths[..29].iter().for_each(|path| set_mtime(path, 3 * 86_400));
    let agent = Agent::on(&slow.mount());
    wait_for("the stamps are measured", || agent.status().mounts[0].stamps.contains("ctime does not"));
    let began = Instant::now();
    let (is_done, said) = load(&agent, &[&slow.mount()]);
    assert!(began.elapsed() < PATIENCE, "it waits for each file: {said}");
    assert!(!is_done && said.contains("s in the future") && said.contains("29 failed"), "{said}");
    assert!(is_loaded(&agent, &paths[29], 29), "{said}");
    // They are read all the same.
    verify_once(&agent.client(), &paths[0], 0, 0);
}

#[test]
fn a_load_says_what_it_waits_for_and_goes_on_with_other_files_meanwhile() {
    let pfs = plain_pfs();
    let paths = files(pfs.path(), 10, PAGE);
    let agent = Agent::on(pfs.path());
    let writer = File::options().write(true).open(&paths[0]).unwrap();
    let client = agent.client();
    let mut load = client.load(0).unwrap();
    paths.iter().for_each(|path| load.add(path).unwrap());
    load.flush().unwrap();
    wait_for("all others are loaded", || {
        let progress = load.poll(Duration::from_millis(10)).unwrap();
        progress.files_done == 9 && progress.waits_for.starts_with("1 files") && !progress.idle
    });
    drop(writer);
    wait_for("the load ends", || load.poll(Duration::from_millis(100)).unwrap().idle);
    assert_eq!(load.failures(), []);
    assert!(is_loaded(&agent, &paths[0], 0));
}

#[test]
fn many_files_that_are_open_for_writing_cost_a_load_one_wait() {
    let pfs = plain_pfs();
    // More than the agent looks at together.
    let paths = files(pfs.path(), 1500, 100);
    let agent = Agent::on(pfs.path());
    let writers: Vec<_> =
        paths[..1499].iter().map(|path| File::options().write(true).open(path).unwrap()).collect();
    let began = Instant::now();
    let (is_done, said) = load(&agent, &[pfs.path()]);
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    assert!(!is_done && said.contains("1499 failed") && said.contains("for writing"), "{said}");
    assert!(is_loaded(&agent, &paths[1499], 1499));
    drop(writers);
}

#[test]
fn holes_are_not_loaded_and_the_small_files_beside_them_stay() {
    let pfs = plain_pfs();
    let mut paths = files(pfs.path(), 20, 100_000);
    let sparse = pfs.path().join("disk.img");
    let file = File::create(&sparse).unwrap();
    file.set_len(1 << 40).unwrap();
    let marks = [7, 5 * (1 << 30) + 17, (1 << 40) - 1000];
    marks.iter().for_each(|at| file.write_all_at(&content(50, *at, 1000), *at).unwrap());
    drop(file);
    grow_old(&sparse);
    let agent = Agent::start(Setup { page: 2 * MIB, ..Setup::new(pfs.path()) });
    let (is_done, said) = load(&agent, &[pfs.path()]);
    assert!(is_done, "{said}");
    for (seed, path) in paths.drain(..).enumerate() {
        assert!(is_loaded(&agent, &path, seed as u64), "{} was evicted", path.display());
    }
    let open = agent.client().open_with(&sparse, ReadMode::TierOnly).unwrap();
    assert_eq!(open.resident_bytes(), 3 * 2 * MIB);
    let mut bytes = [0; 1000];
    for at in marks {
        assert_eq!(open.read_at(&mut bytes, at).unwrap(), 1000);
        assert_content(&bytes, 50, at);
    }
    drop(open);
    // A hole is read as zeros.
    let open = agent.client().open(&sparse).unwrap();
    assert_eq!((open.read_at(&mut bytes, 1 << 33).unwrap(), bytes), (1000, [0; 1000]));
}

#[test]
fn a_file_that_is_larger_than_the_tier_is_refused_at_once_and_the_others_are_loaded() {
    let Some(slow) = SlowFs::start() else { return };
    // Its holes are not trusted.
    let sparse = slow.at("disk.img");
    File::create(&sparse).unwrap().set_len(1 << 40).unwrap();
    let paths = files(&slow.mount(), 20, 2 * PAGE);
    let before = slow.stats().read_bytes;
    let agent = Agent::start(Setup { page: 2 * MIB, ..Setup::new(&slow.mount()) });
    let (is_done, said) = load(&agent, &[&slow.mount()]);
    assert!(!is_done && said.contains("disk.img: its 1.00 TiB do not fit into the tier"), "{said}");
    for (seed, path) in paths.iter().enumerate() {
        assert!(is_loaded(&agent, path, seed as u64), "{}: {said}", path.display());
    }
    let read = slow.stats().read_bytes - before;
    assert!(read < 40 * PAGE + MIB, "{read} bytes were read");
}

#[test]
fn a_load_evicts_nothing_that_it_has_loaded_itself() {
    let (pfs, own) = (plain_pfs(), plain_pfs());
    let old = own.path().join("old");
    make_file(&old, 99, 12 * MIB);
    // More than the tier holds: clients and buffers that come later take room as well.
    files(pfs.path(), 40, 4 * MIB);
    let mut setup = Setup::new(pfs.path()).capacity(BASE + 64 * MIB);
    setup.mounts.push(("own".into(), own.path().to_owned()));
    let agent = Agent::start(setup);
    // What is used often would survive what was fetched once.
    for pass in 0..4 {
        verify_once(&agent.client(), &old, 99, pass);
    }
    let (is_done, said) = load(&agent, &[pfs.path()]);
    assert!(!is_done && said.contains("this load has loaded"), "{said}");
    let reported =
        said.rsplit_once("loaded ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<u64>().ok());
    let loaded = reported.unwrap_or(0);
    assert!(loaded >= 10 && agent.used("pages") >= loaded * 4 * MIB, "{} B; {said}", agent.used("pages"));
    // Another load evicts them.
    agent.client().admin().evict(&old).ok();
    assert!(load(&agent, &[&old]).0);
}
