//! I/O phases of HPC jobs and the brake: real agents, real connections, a slow file system, and
//! what happens when one of them dies or reports wrong numbers.

use crate::cluster::{Cluster, NodeSetup, read_piece};
use crate::common::{Agent, MIB, SlowFs, counter, pfs_and_agent, plain_pfs, state, text, wait_for};
use crate::intercept::library;
use crate::roles::{hear, say};
use forebay_client::{Client, HpcJobOptions};
use std::path::Path;
use std::time::{Duration, Instant};

const SEED: u64 = 9;

/// An hour: the time for a phase that is not to fall behind by itself.
const HOUR: Duration = Duration::from_secs(3600);

fn known(name: &str) -> HpcJobOptions {
    HpcJobOptions { io: HOUR, allowance_permille: 1000, ..HpcJobOptions::named(name) }
}

/// Role: a program in an I/O phase of which nobody knows the length.
pub fn in_phase() {
    let job = Client::from_env().open_hpc_job(&HpcJobOptions::named("dies")).unwrap();
    job.phase_begin(0, Duration::ZERO).unwrap();
    say("begun");
    while hear().is_some() {}
}

/// Waits until the file system has served no read for a while, and returns the bytes it has read.
fn wait_still(slow: &SlowFs) -> u64 {
    let (mut last, mut since) = (slow.stats().read_bytes, Instant::now());
    wait_for("the file system serves no reads any more", || {
        let now = slow.stats().read_bytes;
        if now != last {
            (last, since) = (now, Instant::now());
        }
        since.elapsed() > Duration::from_millis(500)
    });
    last
}

/// A slow file system with a file of 64 MiB that takes some seconds to read, and two nodes before
/// it. There is no coordinator at all.
fn slow_cluster() -> Option<(SlowFs, Cluster, std::path::PathBuf)> {
    let slow = SlowFs::start()?;
    let cluster = Cluster::start(2, &NodeSetup::new(&slow.mount()));
    let path = cluster.make_shared_file(|name| slow.at(name), SEED, 64 * MIB);
    slow.limit("16MB/s");
    Some((slow, cluster, path))
}

fn is_done(load: &mut forebay_client::Load) -> bool {
    load.poll(Duration::from_millis(50)).unwrap().idle
}

#[test]
fn a_phase_that_is_behind_stops_a_load_on_another_node_without_a_coordinator_and_readers_go_on() {
    let Some((slow, cluster, path)) = slow_cluster() else { return };
    let before = slow.stats().read_bytes;
    let mut load = cluster.nodes[1].client().load(0).unwrap();
    load.add(&path).unwrap();
    load.flush().unwrap();
    wait_for("the load is under way", || slow.stats().read_bytes > before + 2 * MIB);

    let job = cluster.nodes[0].client().open_hpc_job(&HpcJobOptions::named("sim")).unwrap();
    job.phase_begin(64 * MIB, Duration::ZERO).unwrap();
    assert_eq!(cluster.nodes[0].counter("brakes_total"), 1, "here at once: nobody knows how long it takes");
    wait_for("the other node brakes", || cluster.nodes[1].counter("brakes_total") == 1);
    let at_brake = slow.stats().read_bytes;
    let at_rest = wait_still(&slow);
    // What was under way: a chunk of 256 KiB for each of four threads on two nodes, or a page.
    assert!(at_rest - at_brake <= 8 * MIB, "{} bytes after the brake", at_rest - at_brake);
    assert!(!is_done(&mut load) && at_rest < before + 60 * MIB, "it had ended before");
    wait_for("the load says why", || {
        load.poll(Duration::from_millis(50)).unwrap().waits_for.contains("I/O phases of HPC jobs")
    });
    assert!(
        cluster.nodes[1].client().hpc_jobs().unwrap().iter().any(|j| j.name == "sim" && j.node == "node0")
    );

    // A reader that waits for bytes gets them, and no more than these.
    (0..2).for_each(|node| read_piece(&cluster.nodes[node].client(), &path, SEED, 63 * MIB, 4096));
    let read = wait_still(&slow) - at_rest;
    assert!(read > 0 && read <= 4 * MIB, "{read} bytes for two small reads");

    job.phase_end().unwrap();
    wait_for("the load goes on to its end", || is_done(&mut load));
    assert!(load.failures().is_empty(), "{:?}", load.failures());
    assert_eq!(cluster.sum("brakes_total"), 2);
}

#[test]
fn a_program_that_is_killed_in_its_phase_brakes_nobody_any_more() {
    let Some((slow, cluster, path)) = slow_cluster() else { return };
    let socket = cluster.nodes[0].client().socket().unwrap().to_owned();
    let mut program = crate::common::Helper::start_as(&socket, None, "in-phase", &[]);
    program.expect("begun");
    wait_for("the other node brakes", || cluster.nodes[1].counter("brakes_total") == 1);
    let before = slow.stats().read_bytes;
    let mut load = cluster.nodes[1].client().load(0).unwrap();
    load.add(&path).unwrap();
    load.flush().unwrap();
    assert_eq!(wait_still(&slow), before, "a load that begins meanwhile waits");
    assert!(!is_done(&mut load));
    program.kill_9();
    wait_for("the load ends", || is_done(&mut load));
    assert!(slow.stats().read_bytes >= before + 64 * MIB);
    assert!(cluster.nodes[0].client().hpc_jobs().unwrap().is_empty());
}

#[test]
fn a_node_that_dies_brakes_the_others_for_its_lease_only() {
    let Some((_slow, mut cluster, path)) = slow_cluster() else { return };
    let job = cluster.nodes[0].client().open_hpc_job(&HpcJobOptions::named("sim")).unwrap();
    job.phase_begin(0, Duration::ZERO).unwrap();
    wait_for("the other node brakes", || cluster.nodes[1].counter("brakes_total") == 1);
    let dead = cluster.nodes[0].info.name.clone();
    cluster.nodes[0].helper.kill_9();
    let rest = cluster.members().into_iter().filter(|node| node.name != dead).collect();
    cluster.send_view(1, rest);
    let mut load = cluster.nodes[1].client().load(0).unwrap();
    load.add(&path).unwrap();
    load.flush().unwrap();
    wait_for("the load ends", || is_done(&mut load));
    drop(job);
}

#[test]
fn a_node_that_is_started_again_at_another_port_during_a_phase_is_notified_of_it() {
    let pfs = plain_pfs();
    let mut cluster = Cluster::start(2, &NodeSetup::new(pfs.path()));
    let job = cluster.nodes[0].client().open_hpc_job(&HpcJobOptions::named("sim")).unwrap();
    job.phase_begin(0, Duration::ZERO).unwrap();
    wait_for("the other node brakes", || cluster.nodes[1].counter("brakes_total") == 1);
    let before = cluster.nodes[1].info.address.clone();
    cluster.kill_and_restart(1);
    assert_ne!(cluster.nodes[1].info.address, before, "the same port");
    wait_for("it brakes again", || cluster.nodes[1].counter("brakes_total") == 1);
    job.phase_end().unwrap();
    wait_for("and hears of the end", || cluster.nodes[1].client().hpc_jobs().unwrap().is_empty());
}

fn status(client: &Client, name: &str) -> forebay_wire::HpcStatus {
    client.hpc_jobs().unwrap().into_iter().find(|job| job.name == name).unwrap()
}

#[test]
fn bytes_that_are_declared_ten_times_too_small_brake_and_too_large_do_not() {
    let (_pfs, agent) = pfs_and_agent();
    let client = agent.client();
    let job = client.open_hpc_job(&known("liar")).unwrap();
    job.phase_begin(10 * MIB, Duration::ZERO).unwrap();
    assert_eq!(agent.counter("brakes_total"), 0, "it has an hour in hand");
    job.phase_progress(100 * MIB).unwrap();
    wait_for("nobody knows when it ends", || agent.counter("brakes_total") == 1);
    assert!(status(&client, "liar").phase.unwrap().is_behind);
    // Shorter phases teach nothing.
    std::thread::sleep(Duration::from_millis(5));
    job.phase_end().unwrap();
    // What it really moved, and in how long, is learnt; it was disturbed by nothing.
    assert!(status(&client, "liar").alone_bytes_per_s > 0);
    drop(job);
    wait_for("it is gone", || client.hpc_jobs().unwrap().is_empty());

    let job = client.open_hpc_job(&known("boaster")).unwrap();
    job.phase_begin(1000 * MIB, Duration::ZERO).unwrap();
    job.phase_progress(100 * MIB).unwrap();
    job.phase_end().unwrap();
    let seen = status(&client, "boaster");
    assert_eq!((seen.ended, seen.in_time, seen.late), (1, 1, 0));
    assert_eq!(agent.counter("brakes_total"), 1);
}

#[test]
fn a_phase_that_never_ends_is_cut_off_and_named_in_the_log_and_by_jobs() {
    let (_pfs, agent) = pfs_and_agent();
    let client = agent.client();
    let job = client.open_hpc_job(&HpcJobOptions::named("endless")).unwrap();
    job.phase_begin(0, Duration::from_millis(50)).unwrap();
    wait_for("it is cut off", || agent.counter("phases_cut_off_total") == 1);
    let log = agent.log();
    assert!(log.contains("endless") && log.contains("does not end"), "{log}");
    assert!(agent.counter("brakes_total") >= 1, "it was late before");
    let out = agent.cli(&["jobs", "--hpc"]);
    let words = text(&out.stdout);
    assert!(words.contains("HPC job endless") && words.contains("cut off"), "{words}");
    assert!(!words.contains("prefetches stop"), "{words}");
}

/// A change is a message to the coordinator, and each phase of a new job sets and releases the
/// brake. A new connection each time, which must not start a new count.
#[test]
fn a_program_that_begins_and_ends_phases_in_a_loop_is_slowed_down_and_does_not_fill_the_log() {
    let (_pfs, agent) = pfs_and_agent();
    let client = agent.client();
    let (begun, phases) = (Instant::now(), 250);
    for _ in 0..phases {
        let job = client.open_hpc_job(&HpcJobOptions::named("loops")).unwrap();
        job.phase_begin(0, Duration::ZERO).unwrap();
        job.phase_end().unwrap();
    }
    // Four changes each; 256 at once, and 200 in each second.
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(3), "{phases} phases in {took:?}");
    assert!(agent.counter("brakes_total") >= phases, "the brake was not set by each");
    let lines = agent.log().matches("the brake of prefetches").count();
    // One that says that the brake is set, and one that it is released.
    let most = 2 * (took.as_secs() as usize / 10 + 1);
    assert!((2..=most).contains(&lines) && lines.is_multiple_of(2), "{lines} lines of the log in {took:?}");
    assert_eq!(client.plans(1).unwrap().phases.len(), 1, "the coordinator does not follow");
}

#[test]
fn a_program_that_declares_a_phase_and_goes_away_without_its_end_does_not_brake_again() {
    let (_pfs, agent) = pfs_and_agent();
    let client = agent.client();
    let begin = || {
        let job = client.open_hpc_job(&HpcJobOptions::named("again")).unwrap();
        job.phase_begin(0, Duration::ZERO).unwrap();
        job
    };
    let job = begin();
    assert_eq!(agent.counter("brakes_total"), 1);
    drop(job);
    wait_for("it is gone", || client.hpc_jobs().unwrap().is_empty());
    let job = begin();
    assert_eq!(agent.counter("brakes_total"), 1, "a new connection is believed");
    job.phase_end().unwrap();
    // One has ended by itself: a further one that takes longer than is known brakes again.
    job.phase_begin(MIB, Duration::ZERO).unwrap();
    job.phase_progress(10 * MIB).unwrap();
    wait_for("it is believed again", || agent.counter("brakes_total") == 2);
}

#[test]
fn what_does_not_fit_is_refused_with_words() {
    let (_pfs, agent) = pfs_and_agent();
    let client = agent.client();
    let refused = |options: &HpcJobOptions| client.open_hpc_job(options).unwrap_err().to_string();
    assert!(refused(&HpcJobOptions::named("")).contains("name"));
    assert!(refused(&HpcJobOptions { allowance_permille: 100_001, ..known("x") }).contains("hundred times"));
    let job = client.open_hpc_job(&known("one")).unwrap();
    job.phase_begin(1, Duration::ZERO).unwrap();
    assert!(job.phase_begin(1, Duration::ZERO).unwrap_err().to_string().contains("under way"));
    let jobs: Vec<_> = (1..64).map(|_| client.open_hpc_job(&known("one")).unwrap()).collect();
    assert!(refused(&known("one")).contains("64 HPC jobs"));
    drop(jobs);
    wait_for("they are gone", || client.open_hpc_job(&known("one")).is_ok());
}

#[test]
fn two_jobs_at_once_and_a_job_on_two_connections_are_distinguished_in_the_plan_log() {
    let (_pfs, agent) = pfs_and_agent();
    let client = agent.client();
    let jobs: Vec<_> =
        ["a", "a", "b"].iter().map(|name| client.open_hpc_job(&known(name)).unwrap()).collect();
    for job in &jobs {
        job.phase_begin(MIB, Duration::ZERO).unwrap();
        job.phase_progress(MIB).unwrap();
    }
    let phases = || client.plans(100).unwrap().phases;
    wait_for("both phases have begun", || phases().len() == 2);
    // A phase of no time at all has no error of its estimate.
    std::thread::sleep(Duration::from_millis(5));
    jobs.iter().for_each(|job| job.phase_end().unwrap());
    wait_for("both phases have ended", || {
        phases().iter().filter(|phase| phase.observed_ms.is_some()).count() == 2
    });
    let names: Vec<_> = phases().into_iter().map(|phase| phase.name).collect();
    assert_eq!(names, ["a", "b"], "programs of one name are one job");
    let out = agent.cli(&["plan", "log"]);
    let words = text(&out.stdout);
    assert!(words.contains("I/O phase of a") && words.contains("2 phases observed"), "{words}");
}

#[test]
fn a_job_that_run_declares_is_there_as_long_as_its_program() {
    let (pfs, agent) = pfs_and_agent();
    let marker = pfs.path().join("go");
    let line = format!(
        "test \"$FOREBAY_JOB_NAME\" = sim && while ! test -e {}; do sleep 0.01; done",
        quoted(&marker)
    );
    let mut run = agent.command(&["run", "--job", "sim", "--qos", "7.5%", "--", "sh", "-c", &line]);
    let mut run = run.spawn().unwrap();
    wait_for("the job is there", || agent.client().hpc_jobs().unwrap().iter().any(|job| job.name == "sim"));
    std::fs::write(&marker, "").unwrap();
    assert!(run.wait().unwrap().success());
    wait_for("it is gone", || agent.client().hpc_jobs().unwrap().is_empty());
    assert_eq!(counter(&agent.status(), "brakes_total"), 0);
}

/// A sample in `scenarios/`.
fn scenario(name: &str) -> String {
    format!("{}/../../scenarios/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn what_a_darshan_log_records_is_known_before_the_first_phase() {
    let (pfs, agent) = pfs_and_agent();
    let marker = pfs.path().join("go");
    let line = format!("while ! test -e {}; do sleep 0.01; done", quoted(&marker));
    let log = scenario("recorded-job.dxt.txt");
    let mut run = agent.command(&["run", "--job", "climate", "--darshan", &log, "--", "sh", "-c", &line]);
    let mut run = run.spawn().unwrap();
    wait_for("the job is there", || {
        agent.client().hpc_jobs().unwrap().iter().any(|job| job.name == "climate")
    });
    let out = agent.cli(&["--json", "jobs", "--hpc"]);
    let jobs: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let job = &jobs[0];
    assert_eq!((&job["ended"], &job["phase"]), (&0.into(), &serde_json::Value::Null), "{job}");
    // It reads 16 GB in 4.7 s, and writes twice 32 GB in 8.5 s and once 48 GB in 12.5 s.
    assert_eq!(job["io_ms"], 8_490, "{job}");
    assert_eq!(job["alone_bytes_per_s"].as_u64().unwrap() / 10_000_000, 376, "{job}");
    let words = text(&agent.cli(&["jobs", "--hpc"]).stdout);
    assert!(words.contains("/s alone"), "{words}");
    std::fs::write(&marker, "").unwrap();
    assert!(run.wait().unwrap().success());
}

#[test]
fn a_log_that_does_not_say_when_bytes_moved_is_refused_and_the_program_does_not_run() {
    let (pfs, agent) = pfs_and_agent();
    let marker = pfs.path().join("ran");
    let empty = pfs.path().join("empty");
    std::fs::write(&empty, "hello\n").unwrap();
    let refused = |log: &str| {
        let command = ["run", "--job", "x", "--darshan", log, "--", "touch", marker.to_str().unwrap()];
        let out = agent.cli(&command);
        assert_eq!(out.status.code(), Some(1));
        text(&out.stderr)
    };
    let counters = refused(&scenario("recorded-steps.txt"));
    assert!(
        counters.contains("recorded-steps.txt") && counters.contains("DXT_ENABLE_IO_TRACE=1"),
        "{counters}"
    );
    let other = refused(empty.to_str().unwrap());
    assert!(other.contains("empty:1:") && other.contains("darshan-dxt-parser"), "{other}");
    assert!(refused("/does/not/exist").contains("/does/not/exist"));
    assert!(!marker.exists(), "the program ran");
}

#[test]
fn bursts_of_a_program_that_nobody_changed_become_phases() {
    let (pfs, agent) = pfs_and_agent();
    let line = format!(
        "for i in 1 2; do dd if=/dev/zero of={}/$i bs=1M count=8 conv=fsync 2>/dev/null; sleep 2.5; done",
        pfs.path().display()
    );
    let mut run = agent.command(&["run", "--job", "unchanged", "--", "sh", "-c", &line]);
    let out = run.env("FOREBAY_PRELOAD", library()).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(!text(&out.stderr).contains("not observed"), "{}", text(&out.stderr));
    let phases = agent.client().plans(100).unwrap().phases;
    assert_eq!(phases.len(), 2, "{phases:?}");
    assert!(phases.iter().all(|phase| phase.name == "unchanged"), "{phases:?}");
    let last = phases.last().unwrap();
    assert!(last.bytes == 8 * MIB && last.alone_ms.is_some(), "the first taught what it takes: {phases:?}");
}

#[test]
fn a_program_that_is_killed_within_a_write_and_is_never_waited_for_does_not_keep_its_phase() {
    let Some(slow) = SlowFs::start() else { return };
    let agent = Agent::on(&slow.mount());
    slow.fault("write=hang,path=held");
    let (done, held, pid) = (slow.at("done"), slow.at("held"), agent.state_dir().join("pid"));
    let line = format!(
        "dd if=/dev/zero of={} bs=1M count=8 conv=fsync 2>/dev/null; \
         dd if=/dev/zero of={} bs=1M count=8 2>/dev/null & echo $! $$ > {}; exec sleep 1000",
        quoted(&done),
        quoted(&held),
        quoted(&pid)
    );
    let mut run = agent.command(&["run", "--job", "killed", "--", "sh", "-c", &line]);
    let mut run = run.env("FOREBAY_PRELOAD", library()).spawn().unwrap();
    let phase = || status(&agent.client(), "killed").phase;
    wait_for("its write hangs", || slow.stats().hung_now > 0);
    // Longer than a phase lasts without a call in progress.
    std::thread::sleep(Duration::from_secs(3));
    assert!(phase().is_some_and(|phase| phase.done_bytes >= 8 * MIB), "the write does not keep the phase");
    let pids = std::fs::read_to_string(&pid).unwrap();
    let pids: Vec<u32> = pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    let [pid, parent] = pids[..] else { panic!("{pids:?}") };
    crate::common::send_signal(pid, libc::SIGKILL);
    slow.fault("none");
    wait_for("it is dead and nobody waits for it", || state(pid) == 'Z');
    wait_for("its phase ends", || phase().is_none());
    assert!(state(pid) == 'Z', "its parent has waited for it");
    assert_eq!(agent.counter("phases_cut_off_total"), 0);
    // Its output is that of the tests: a process that waits for the end of the tests waits for it
    // as well.
    crate::common::send_signal(parent, libc::SIGKILL);
    run.wait().unwrap();
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display())
}
