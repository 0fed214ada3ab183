//! When dirty files go to the PFS: around the I/O phases of other jobs, unless room is short.

use crate::common::{
    Agent, BASE, FOREBAY, Helper, MIB, OTHER_UID, Program, Setup, SlowFs, open_dir_in, plain_pfs, wait_for,
};
use crate::write_back::{dirty, python, sync, well};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A program of another user in a phase of which nobody knows the length.
fn phase_of_another(agent: &Agent) -> Helper {
    let mut program = Helper::start_as(&agent.socket(), Some(OTHER_UID), "in-phase", &[]);
    program.expect("begun");
    program
}

/// A script that writes this many MiB to a file.
fn writes(name: &str, mib: u64) -> String {
    let open = format!("f = open(os.path.join(os.environ['DIR'], '{name}'), 'wb', buffering=0)");
    format!("import os\n{open}\nfor i in range({mib}): f.write(bytes([i % 251]) * (1 << 20))\nf.close()\n")
}

fn is_whole(path: &Path, mib: u64) -> bool {
    let expected: Vec<u8> = (0..mib).flat_map(|i| vec![(i % 251) as u8; 1 << 20]).collect();
    std::fs::read(path).unwrap() == expected
}

fn why(agent: &Agent) -> Vec<String> {
    dirty(agent).iter().map(|file| file["why"].as_str().unwrap().to_owned()).collect()
}

/// Replays all decisions of the node machine of an agent that has ended.
fn replay(log: &Path) -> serde_json::Value {
    let host = std::fs::read_dir(log).unwrap().next().unwrap().unwrap().path();
    let mut command = Command::new(FOREBAY);
    let output = command.arg("replay").arg(host.join("node-000001.log")).arg("--json").output().unwrap();
    serde_json::from_str(&well(output)).unwrap()
}

#[test]
fn nothing_is_written_in_the_phase_of_another_job_and_all_of_it_after() {
    let Some(slow) = SlowFs::start() else { return };
    let (dir, logs) = (slow.at("out"), open_dir_in("/dev/shm"));
    std::fs::create_dir(&dir).unwrap();
    let log = logs.path().join("decisions");
    let setup = Setup { more: format!("decision_log = {log:?}\n"), ..Setup::new(&slow.mount()) };
    let agent = Agent::start(setup);
    let mut phase = phase_of_another(&agent);
    well(python(&agent, &dir, &["--detach"], &writes("left", 3)).output().unwrap());
    // This one waits for the PFS.
    let waits = Program::new(python(&agent, &dir, &[], &writes("awaited", 2)));
    wait_for("both to wait for a second", || {
        let files = dirty(&agent);
        files.len() == 2 && files.iter().all(|file| file["age_ms"].as_u64() > Some(1000))
    });
    assert_eq!(why(&agent), ["waits for the end of an I/O phase"; 2]);
    assert_eq!(agent.counter("drained_bytes"), 0);
    let written = |name: &str| std::fs::metadata(slow.behind(name)).unwrap().len();
    assert_eq!((written("out/left"), written("out/awaited")), (0, 0));
    phase.kill_9();
    waits.end();
    wait_for("the other one", || dirty(&agent).is_empty());
    assert!(is_whole(&slow.behind("out/left"), 3) && is_whole(&slow.behind("out/awaited"), 2));
    assert_eq!((agent.counter("drained_for_room_bytes"), agent.counter("drained_for_age_bytes")), (0, 0));
    well(agent.cli(&["down"]));
    wait_for("the agent to end", || !agent.is_running());
    let same = replay(&log);
    assert!(same["same"] == true && same["actions"].as_u64() >= Some(4), "{same}");
}

#[test]
fn a_phase_that_begins_during_a_pass_stops_it_between_two_parts() {
    let Some(slow) = SlowFs::start() else { return };
    let dir = slow.at("out");
    std::fs::create_dir(&dir).unwrap();
    let agent = Agent::on(&slow.mount());
    slow.limit("8MB/s");
    well(python(&agent, &dir, &["--detach"], &writes("f", 40)).output().unwrap());
    wait_for("its pass", || agent.counter("drained_bytes") > 0);
    let mut phase = phase_of_another(&agent);
    wait_for("it to stop", || why(&agent) == ["waits for the end of an I/O phase"]);
    let stopped = agent.counter("drained_bytes");
    assert!(stopped < 40 * MIB, "it was over before");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(agent.counter("drained_bytes"), stopped);
    phase.kill_9();
    slow.limit("unlimited");
    sync(&agent);
    assert!(is_whole(&slow.behind("out/f"), 40));
}

/// What a client of the file system still holds when a phase begins is sent during the phase.
#[test]
fn around_phases_each_part_is_on_the_file_system_before_the_next_one_is_written() {
    const FILE_MIB: u64 = 24;
    let Some(slow) = SlowFs::start() else { return };
    let dir = slow.at("out");
    std::fs::create_dir(&dir).unwrap();
    let agent = Agent::on(&slow.mount());
    let syncs_of = |name: &str| {
        let before = slow.stats().syncs;
        well(python(&agent, &dir, &[], &writes(name, FILE_MIB)).output().unwrap());
        wait_for("the file to be closed", || agent.used("dirty") == 0);
        assert!(is_whole(&slow.behind(&format!("out/{name}")), FILE_MIB));
        slow.stats().syncs - before
    };
    let without_phases = syncs_of("before");
    phase_of_another(&agent).kill_9();
    let around_phases = syncs_of("after");
    let parts = FILE_MIB / 4;
    assert!(around_phases >= without_phases + parts, "{around_phases} and {without_phases} syncs");
}

#[test]
fn a_program_that_waits_for_its_file_in_its_own_phase_gets_it() {
    let pfs = plain_pfs();
    // A rename waits for the PFS if it replaces a file with content.
    std::fs::write(pfs.path().join("ckpt"), "the last good one").unwrap();
    let agent = Agent::on(pfs.path());
    let job = agent.client().open_hpc_job(&forebay_client::HpcJobOptions::named("own")).unwrap();
    job.phase_begin(0, Duration::ZERO).unwrap();
    let script = writes("new", 2) + "os.rename(f.name, os.path.join(os.environ['DIR'], 'ckpt'))\n";
    Program::new(python(&agent, pfs.path(), &["--detach"], &script)).end();
    assert!(is_whole(&pfs.path().join("ckpt"), 2));
    assert!(agent.counter("absorbed_files_total") > 0, "it was not written back");
    job.phase_end().unwrap();
}

#[test]
fn a_full_tier_goes_on_in_the_phase_of_another_job_and_says_why() {
    let Some(slow) = SlowFs::start() else { return };
    let dir = slow.at("out");
    std::fs::create_dir(&dir).unwrap();
    let agent = Agent::start(Setup::new(&slow.mount()).capacity(BASE + 24 * MIB));
    let phase = phase_of_another(&agent);
    slow.limit("8MB/s");
    let program = Program::new(python(&agent, &dir, &["--detach"], &writes("f", 40)));
    wait_for("the reason", || why(&agent).iter().any(|why| why.contains("a program waits for room")));
    assert!(well(agent.cli(&["dirty"])).contains("is written during an I/O phase"));
    slow.limit("unlimited");
    program.end();
    assert!(agent.counter("drained_for_room_bytes") > 0);
    assert!(is_whole(&slow.behind("out/f"), 40));
    drop(phase);
}

#[test]
fn a_list_of_dirty_files_says_how_fast_and_until_when() {
    let Some(slow) = SlowFs::start() else { return };
    let dir = slow.at("out");
    std::fs::create_dir(&dir).unwrap();
    let agent = Agent::on(&slow.mount());
    slow.limit("8MB/s");
    well(python(&agent, &dir, &["--detach"], &writes("f", 40)).output().unwrap());
    wait_for("a rate", || {
        let files = dirty(&agent);
        let [file] = &files[..] else { panic!("{files:?}") };
        let (rate, safe_ms) = (file["rate_bytes_per_s"].as_u64().unwrap(), file["safe_in_ms"].as_u64());
        let Some(safe_ms) = safe_ms.filter(|_| rate > 0) else { return false };
        assert!(safe_ms < 60_000 && rate > MIB / 2, "{file}");
        true
    });
    slow.limit("unlimited");
    sync(&agent);
}
