//! The agent is killed, and comes back.

use crate::common::{
    Agent, Helper, MIB, PAGE, SlowFs, assert_content, make_file, one_file, plain_pfs, read_all, send_signal,
    wait_for,
};
use crate::roles::verify_once;
use forebay_client::ReadMode;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Threads of this process that read a file over and over.
struct Readers {
    stop: Arc<AtomicBool>,
    passes: Vec<Arc<AtomicU64>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Readers {
    fn start(agent: &Agent, path: &std::path::Path, seed: u64, count: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let client = agent.client();
        let passes: Vec<Arc<AtomicU64>> = (0..count).map(|_| Arc::default()).collect();
        let threads = passes.iter().map(|passes| {
            let (passes, stop, client, path) =
                (passes.clone(), stop.clone(), client.clone(), path.to_owned());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    verify_once(&client, &path, seed, passes.load(Ordering::Relaxed));
                    passes.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let threads = threads.collect();
        Readers { stop, passes, threads }
    }

    /// Waits until each has gone over the file once more, from beginning to end.
    fn one_more_pass(&self) {
        for passes in &self.passes {
            let begun = passes.load(Ordering::Relaxed);
            wait_for("a reader goes on", || passes.load(Ordering::Relaxed) >= begun + 2);
        }
    }

    fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|t| t.join().unwrap());
    }
}

fn one_more_pass(helpers: &mut [Helper]) {
    for helper in helpers {
        let begun: u64 = helper.expect("pass").parse().unwrap();
        while helper.expect("pass").parse::<u64>().unwrap() < begun + 2 {}
    }
}

#[test]
fn kill_9_of_the_agent_while_eight_readers_read() {
    let Some(pfs) = SlowFs::start() else { return };
    let (path, seed) = (pfs.at("data"), 3);
    make_file(&path, seed, 6 * MIB + 4321);
    let mut agent = Agent::on(&pfs.mount());
    let arg = seed.to_string();
    let mut processes: Vec<_> =
        (0..4).map(|_| Helper::start(&agent, "read", &[path.to_str().unwrap(), &arg])).collect();
    let threads = Readers::start(&agent, &path, seed, 4);
    one_more_pass(&mut processes);
    threads.one_more_pass();
    assert!(agent.status().resident_bytes > 6 * MIB, "the readers have not filled the tier");

    agent.kill_9();
    one_more_pass(&mut processes);
    threads.one_more_pass();

    agent.restart();
    assert_eq!(agent.counter("adopted_files_total"), 1);
    one_more_pass(&mut processes);
    threads.one_more_pass();
    processes.into_iter().for_each(Helper::finish);
    threads.finish();

    // What was adopted is read without the PFS.
    let before = pfs.stats().read_bytes;
    let file = agent.client().open_with(&path, ReadMode::TierOnly).unwrap();
    assert_content(&read_all(&file).unwrap(), seed, 0);
    assert_eq!(pfs.stats().read_bytes, before);
    drop(file);
    agent.assert_nothing_left();
}

#[test]
fn an_agent_killed_again_and_again_in_an_eviction_storm_never_shows_wrong_bytes() {
    let pfs = plain_pfs();
    let paths: Vec<_> = (0..4).map(|i| pfs.path().join(format!("f{i}"))).collect();
    for (seed, path) in paths.iter().enumerate() {
        make_file(path, seed as u64, 3 * MIB);
    }
    // Room for about one of the files.
    let mut agent =
        Agent::start(crate::common::Setup::new(pfs.path()).capacity(crate::common::BASE + 4 * MIB));
    let mut processes: Vec<_> = (0..4)
        .map(|seed| Helper::start(&agent, "read", &[paths[seed].to_str().unwrap(), &seed.to_string()]))
        .collect();
    one_more_pass(&mut processes);
    assert!(agent.counter("evicted_pages_total") > 0, "nothing was evicted");
    for _ in 0..5 {
        agent.kill_9();
        agent.restart();
        one_more_pass(&mut processes);
    }
    processes.into_iter().for_each(Helper::finish);
    agent.assert_nothing_left();
}

#[test]
fn what_a_client_maps_stays_when_the_agent_is_killed_and_the_next_one_evicts_all() {
    let pfs = plain_pfs();
    let (path, other) = (pfs.path().join("mapped"), pfs.path().join("other"));
    make_file(&path, 7, 2 * MIB);
    make_file(&other, 8, 2 * MIB);
    let mut agent = Agent::on(pfs.path());
    for (path, seed) in [(&path, 7), (&other, 8)] {
        verify_once(&agent.client(), path, seed, 0);
    }
    let mut mapper = Helper::start(&agent, "map", &[path.to_str().unwrap(), "7"]);
    mapper.expect("mapped");
    assert_eq!(agent.counter("client_pinned_bytes"), 2 * MIB);

    agent.kill_9();
    agent.restart();
    assert_eq!((agent.counter("adopted_files_total"), agent.counter("held_files")), (2, 1));
    // The other file goes, the mapped one does not: neither by eviction of all or of the file, nor
    // by shrinking or being superseded.
    assert_eq!(agent.client().admin().evict_all().unwrap(), 2 * MIB);
    assert_eq!(agent.client().admin().evict(&path).unwrap(), 0);
    agent.client().admin().set_capacity(crate::common::BASE).unwrap();
    assert_eq!(agent.used("pages"), 2 * MIB);
    mapper.say("check");
    mapper.expect("checked");
    agent.client().admin().set_capacity(96 * MIB).unwrap();
    make_file(&path, 9, 2 * MIB);
    verify_once(&agent.client(), &path, 9, 0);
    agent.client().admin().evict_all().unwrap();
    mapper.say("check");
    mapper.expect("checked");
    assert_eq!(agent.used("pages"), 2 * MIB);

    mapper.finish();
    wait_for("the copy is let go", || agent.counter("held_files") == 0);
    agent.assert_nothing_left();
}

/// An agent that finds nothing to adopt numbers its copies from 1 again, and a client may hold one
/// that had such a number before, empty by now.
#[test]
fn a_copy_of_an_earlier_agent_is_not_taken_for_another_of_its_number() {
    let pfs = plain_pfs();
    let (old, new) = (pfs.path().join("old"), pfs.path().join("new"));
    make_file(&old, 7, MIB);
    make_file(&new, 8, MIB);
    let mut agent = Agent::on(pfs.path());
    verify_once(&agent.client(), &old, 7, 0);
    let client = agent.client();
    let file = client.open(&old).unwrap();
    assert!(file.map(0, MIB).is_some(), "it is not in the tier");
    let number = agent.client().admin().list().unwrap()[0].copy;
    agent.client().admin().evict_all().unwrap();
    agent.kill_9();
    agent.restart();
    verify_once(&agent.client(), &new, 8, 0);
    let listed = agent.client().admin().list().unwrap();
    assert_eq!((listed.len(), listed[0].copy), (1, number), "the number has not come again");

    // The first pins on the connection to the dead agent, the second on a new one.
    for _ in 0..2 {
        if let Some(range) = file.map(0, MIB) {
            assert_content(&range, 7, 0);
        }
    }
    wait_for("the dead agent is forgotten", || {
        assert_content(&read_all(&file).unwrap(), 7, 0);
        file.resident_bytes() == MIB
    });
    assert_content(&file.map(0, MIB).expect("it is in the tier again"), 7, 0);
    drop((file, client));
    agent.assert_nothing_left();
}

/// An agent may be killed while it makes or removes a copy, between any two steps of that.
#[test]
fn a_copy_without_its_record_or_a_record_without_its_copy_is_swept_out() {
    let pfs = plain_pfs();
    let paths: Vec<_> = (0..5).map(|file| pfs.path().join(file.to_string())).collect();
    let mut agent = Agent::on(pfs.path());
    for (seed, path) in paths.iter().enumerate() {
        make_file(path, seed as u64, MIB + 5);
        verify_once(&agent.client(), path, seed as u64, 0);
    }
    agent.kill_9();
    let records = agent.records();
    assert_eq!((records.len(), agent.copies()), (5, 10));
    std::fs::remove_file(&records[0]).unwrap();
    std::fs::remove_file(records[1].with_extension("")).unwrap();
    let truncate = |file: &Path, len| File::options().write(true).open(file).unwrap().set_len(len).unwrap();
    truncate(&records[2], 100);
    truncate(&records[3].with_extension(""), MIB);
    agent.restart();
    assert_eq!((agent.counter("adopted_files_total"), agent.records()), (1, vec![records[4].clone()]));
    assert_eq!((agent.copies(), agent.used("pages")), (2, MIB + 4096));
    for (seed, path) in paths.iter().enumerate() {
        verify_once(&agent.client(), path, seed as u64, 0);
    }
    agent.assert_nothing_left();
}

/// Agents before the third layout kept pages of files that were being written.
#[test]
fn copies_of_an_agent_with_an_earlier_layout_are_dropped_and_fetched_again() {
    let (_pfs, path, mut agent) = one_file(7, MIB);
    verify_once(&agent.client(), &path, 7, 0);
    agent.kill_9();
    let record = &agent.records()[0];
    let copy = record.with_extension("");
    // Its first page is half old.
    let mut bytes = std::fs::read(&copy).unwrap();
    bytes[..8].fill(0);
    std::fs::write(&copy, &bytes).unwrap();
    let mut bytes = std::fs::read(record).unwrap();
    let numbers: Vec<_> = (0..bytes.len() - 7).filter(|at| bytes[*at..].starts_with(b"fb-copy4")).collect();
    assert_eq!(numbers.len(), 1, "the number of the layout is not where it was");
    bytes[numbers[0] + 7] = b'3';
    std::fs::write(record, bytes).unwrap();
    agent.restart();
    assert_eq!((agent.counter("adopted_files_total"), agent.copies()), (0, 0));
    verify_once(&agent.client(), &path, 7, 0);
    assert!(agent.used("pages") >= MIB);
    // Once only.
    agent.kill_9();
    agent.restart();
    assert_eq!(agent.counter("adopted_files_total"), 1);
    drop(agent);
}

/// An agent that is stopped for longer than the client waits answers a pin too late; the next pin
/// must not mistake that answer for its own.
#[test]
fn a_late_answer_to_a_pin_is_not_taken_for_that_of_the_next() {
    let (_pfs, path, agent) = one_file(1, MIB);
    verify_once(&agent.client(), &path, 1, 0);
    let client = agent.client_with(Duration::from_millis(500));
    let file = client.open(&path).unwrap();
    assert_content(&file.map(0, 1000).expect("it can be mapped"), 1, 0);
    send_signal(agent.pid(), libc::SIGSTOP);
    wait_for("every thread has stopped", || {
        let mut threads = std::fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap();
        threads.all(|thread| {
            let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
            stat.rsplit(')').next().unwrap().trim_start().starts_with('T')
        })
    });
    assert!(file.map(0, PAGE).is_none(), "the agent was not stopped");
    send_signal(agent.pid(), libc::SIGCONT);
    wait_for("all is evicted", || {
        agent.client().admin().evict_all().unwrap();
        file.resident_bytes() == 0
    });
    assert!(file.map(8 * PAGE, PAGE).is_none(), "pages that are not there were mapped");
    verify_once(&agent.client(), &path, 1, 0);
    let file = agent.client().open(&path).unwrap();
    assert_content(&file.map(8 * PAGE, PAGE).expect("it can be mapped again"), 1, 8 * PAGE);
}
