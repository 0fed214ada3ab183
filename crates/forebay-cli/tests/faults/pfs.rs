//! The PFS fails, is full, or hangs.

use crate::common::{
    Agent, Helper, MIB, PAGE, Setup, SlowFs, assert_content, content, make_file, plain_pfs, read_all, text,
    wait_for,
};
use crate::roles::verify_once;
use forebay_client::{ReadMode, WriteMode};
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

#[test]
fn a_read_error_of_the_pfs_is_the_programs_error_and_passes() {
    let Some((pfs, path)) = SlowFs::with("f", 1, MIB) else { return };
    let agent = Agent::on(&pfs.mount());
    pfs.fault("read=EIO");
    let file = agent.client().open(&path).unwrap();
    let error = file.read_at(&mut vec![0; PAGE as usize], 0).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert!(pfs.stats().faults.read >= 2, "the agent and the program have not both met the fault");
    assert!(agent.counter("pages_failed_total") > 0);
    assert_eq!(agent.used("pages"), 0, "a page that failed is counted");
    pfs.fault("none");
    assert_content(&read_all(&file).unwrap(), 1, 0);
    assert!(agent.used("pages") > 0, "after the fault nothing is cached any more");
    drop(file);
    agent.assert_nothing_left();
}

#[test]
fn a_full_pfs_is_the_writers_error_and_nothing_is_cached_wrongly() {
    let Some(pfs) = SlowFs::start() else { return };
    let agent = Agent::on(&pfs.mount());
    let path = pfs.at("f");
    let client = agent.client();
    let mut writer = client.create(&path, WriteMode::Through).unwrap();
    writer.write_all(&content(1, 0, 2 << 20)).unwrap();
    pfs.fault("write=ENOSPC");
    // Bytes may be on their way to the servers: the error comes with a later write, or the close.
    let failed = writer.write_all(&content(1, 2 * MIB, 2 << 20)).and_then(|()| writer.close());
    assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    assert!(pfs.stats().faults.write > 0);
    pfs.fault("none");
    // Whatever the file is now: what the tier shows is what the PFS has.
    let direct = read_all(&client.open_with(&path, ReadMode::PfsOnly).unwrap()).unwrap();
    assert_eq!(read_all(&client.open(&path).unwrap()).unwrap(), direct);
    let out = agent.cli(&["verify", path.to_str().unwrap()]);
    assert!(out.status.success(), "{}", text(&out.stdout));
    drop(client);
    agent.assert_nothing_left();
}

#[test]
fn small_writes_that_met_a_full_pfs_are_there_once_a_later_one_succeeds() {
    let Some(pfs) = SlowFs::start() else { return };
    let agent = Agent::on(&pfs.mount());
    let path = pfs.at("f");
    let mut writer = agent.client().create(&path, WriteMode::Bypass).unwrap();
    pfs.fault("write=ENOSPC,count=1");
    let bytes = content(4, 0, 3 << 20);
    let (mut done, mut failures) = (0, 0);
    while done < bytes.len() {
        match writer.write(&bytes[done..bytes.len().min(done + 10_000)]) {
            Ok(n) => done += n,
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::ENOSPC));
                failures += 1;
            }
        }
    }
    writer.close().unwrap();
    assert_eq!((failures, pfs.stats().faults.write), (1, 1));
    assert!(std::fs::read(&path).unwrap() == bytes, "what was written before the error is lost or misplaced");
}

#[test]
fn a_pfs_that_hangs_costs_a_deadline_and_a_message_and_nobody_else_waits() {
    let Some(pfs) = SlowFs::start() else { return };
    let other = plain_pfs();
    let (cached, cold, elsewhere) = (pfs.at("cached"), pfs.at("cold"), other.path().join("f"));
    for (path, seed) in [(&cached, 1), (&cold, 2), (&elsewhere, 3)] {
        make_file(path, seed, MIB);
    }
    let mut setup = Setup::new(&pfs.mount());
    setup.mounts.push(("other".into(), other.path().to_owned()));
    let agent = Agent::start(setup);
    let held_open = agent.client().open(&cached).unwrap();
    assert_content(&read_all(&held_open).unwrap(), 1, 0);
    let unread = agent.client().open(&cached).unwrap();
    assert_eq!(unread.resident_bytes(), MIB);

    pfs.fault("read=hang");
    let mut command = agent.command(&["cat", cold.to_str().unwrap()]);
    command.env("FOREBAY_DEADLINE_MS", "300").stdout(Stdio::piped()).stderr(Stdio::piped());
    let cat = command.spawn().unwrap();
    wait_for("the deadline has passed", || agent.counter("timeouts_total") > 0);
    assert!(pfs.stats().hung_now > 0);
    // Cached data, another mount, and new clients continue meanwhile.
    assert_content(&read_all(&held_open).unwrap(), 1, 0);
    verify_once(&agent.client(), &cached, 1, 0);
    verify_once(&agent.client(), &elsewhere, 3, 0);
    assert!(agent.status().mounts[0].fetches_pending > 0);
    assert!(pfs.stats().hung_now > 0, "it did not hang any more");
    // What is open and cached needs no attributes either.
    pfs.fault("read=hang;meta=hang");
    assert_content(&read_all(&unread).unwrap(), 1, 0);
    let begun = pfs.stats().hung_now;
    let stat = std::thread::spawn(move || std::fs::metadata(cold).map(|m| m.len()));
    wait_for("attributes hang", || pfs.stats().hung_now > begun);
    assert_content(&read_all(&unread).unwrap(), 1, 0);

    pfs.fault("none");
    assert_eq!(stat.join().unwrap().unwrap(), MIB);
    let cold = pfs.at("cold");
    let out = cat.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_content(&out.stdout, 2, 0);
    let said = text(&out.stderr);
    assert_eq!(said.lines().filter(|l| l.starts_with("forebay:")).count(), 1, "{said}");
    // And recovery: the page that hung, and all others, come through the agent again.
    verify_once(&agent.client(), &cold, 2, 0);
    let file = agent.client().open_with(&cold, ReadMode::TierOnly).unwrap();
    assert_content(&read_all(&file).unwrap(), 2, 0);
    drop((file, held_open, unread));
    agent.assert_nothing_left();
}

#[test]
fn sigterm_ends_the_agent_while_the_pfs_hangs_and_another_can_start() {
    let Some((pfs, path)) = SlowFs::with("f", 1, MIB) else { return };
    let mut agent = Agent::on(&pfs.mount());
    pfs.fault("read=hang");
    let mut reader = Helper::start(&agent, "read-once", &[path.to_str().unwrap(), "1"]);
    reader.expect("ready");
    reader.say("go");
    wait_for("a fetch hangs", || pfs.stats().hung_now > 0);
    let begun = Instant::now();
    crate::common::send_signal(agent.pid(), libc::SIGTERM);
    wait_for("the agent is gone, but for threads that the PFS holds", || !agent.is_running());
    // Its own bound is 2 s; the rest is for a busy machine.
    assert!(begun.elapsed() < Duration::from_secs(20), "it took {:?}", begun.elapsed());
    // Another takes over immediately, though the kernel may hold threads of the old one.
    let mut old = agent.replace();
    let status = agent.status();
    assert!(pfs.stats().hung_now > 0, "the PFS did not hang any more");
    pfs.fault("none");
    old.wait().unwrap();
    assert_eq!(agent.status().pid, status.pid);
    reader.expect("read");
    reader.finish();
    verify_once(&agent.client(), &path, 1, 0);
    agent.assert_nothing_left();
}

#[test]
fn one_long_read_of_a_cold_file_comes_by_the_agent_page_by_page() {
    let Some(pfs) = SlowFs::start() else { return };
    let path = pfs.at("f");
    let len = 16 * PAGE + 77;
    make_file(&path, 1, len);
    let agent = Agent::on(&pfs.mount());
    // Slow enough for every page to be waited for.
    pfs.fault("latency=5ms");
    let before = pfs.stats();
    let file = agent.client().open(&path).unwrap();
    assert_content(&read_all(&file).unwrap(), 1, 0);
    assert_eq!(file.resident_bytes(), len);
    assert_eq!(pfs.stats().read_bytes - before.read_bytes, len);
    drop(file);
    agent.assert_nothing_left();
}
