//! Sets of checkpoints that stay in the tier, their markers, and layouts of new files.

use crate::common::{Agent, BASE, FOREBAY, MIB, Program, Setup, SlowFs, content, plain_pfs, text, wait_for};
use crate::write_back::{dirty, python, sync, well};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// Pauses between checkpoints are longer, and within them shorter: the programs here wait for a
/// line between two.
const GAP_MS: u64 = 300;

fn agent_on(pfs: &Path) -> Agent {
    Agent::start(Setup { checkpoint_gap_ms: GAP_MS, ..Setup::new(pfs) })
}

/// `forebay checkpoint list --json`: the sets of the only rule.
fn sets(agent: &Agent) -> Vec<Value> {
    let listed = well(agent.cli(&["checkpoint", "list", "--json"]));
    let rules: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(rules.as_array().unwrap().len(), 1, "{listed}");
    rules[0]["sets"].as_array().unwrap().clone()
}

/// What is said of each set, oldest first: state, held, files, of these in memory and on the PFS.
fn stand(agent: &Agent) -> Vec<(String, bool, u64, u64, u64)> {
    let number = |set: &Value, key: &str| set[key].as_u64().unwrap();
    let one = |set: &Value| {
        let numbers = (number(set, "files"), number(set, "in_memory"), number(set, "on_pfs"));
        let state = set["state"].as_str().unwrap().to_owned();
        (state, set["held"].as_bool().unwrap(), numbers.0, numbers.1, numbers.2)
    };
    sets(agent).iter().map(one).collect()
}

fn whole(held: bool, files: u64) -> (String, bool, u64, u64, u64) {
    ("whole".into(), held, files, files, files)
}

/// Writes sets of two files with other names each time, one for each line.
const CHECKPOINTS: &str = r#"
import os, sys
for number in range(100):
    for part in "ab":
        with open(os.path.join(os.environ["DIR"], f"{number}.{part}"), "wb") as f:
            f.write(bytes([number + 1]) * (1 << 20))
    print(f"wrote {number}", flush=True)
    if not sys.stdin.readline(): break
"#;

#[test]
fn the_newest_whole_sets_stay_in_the_tier_and_a_restart_reads_them_there() {
    let pfs = plain_pfs();
    let mut agent = agent_on(pfs.path());
    let mut program = Program::new(python(&agent, pfs.path(), &["--keep", "2", "--detach"], CHECKPOINTS));
    for number in 0..3_usize {
        program.expect(&format!("wrote {number}"));
        let held = if number < 2 { number + 1 } else { 2 };
        wait_for("the set to be whole, in memory and on the file system", || {
            let sets = stand(&agent);
            sets.len() == number + 1 && sets[number + 1 - held..].iter().all(|set| *set == whole(true, 2))
        });
        program.say();
    }
    program.expect("wrote 3");
    assert!(!stand(&agent)[0].1, "the oldest is released");
    // It is killed, and so is the agent: the next one knows the sets.
    program.kill();
    wait_for("the last set", || stand(&agent).last() == Some(&whole(true, 2)));
    let before = stand(&agent);
    agent.kill_9();
    agent.restart();
    assert_eq!(stand(&agent), before);
    well(agent.cli(&["evict", "--all"]));
    let fetched = agent.counter("fetched_bytes");
    let read = |name: &str| {
        let script = "import os, sys; sys.stdout.write(str(set(open(os.environ['FILE'], 'rb').read())))";
        let mut command = Command::new(FOREBAY);
        command.args(["run", "python3", "-c", script]).env("FOREBAY_SOCKET", agent.socket());
        well(command.env("FILE", pfs.path().join(name)).output().unwrap())
    };
    for name in ["3.a", "3.b", "2.a", "2.b"] {
        let byte = u64::from(name.as_bytes()[0] - b'0') + 1;
        assert_eq!(read(name), format!("{{{byte}}}"), "{name}");
        assert!(std::fs::read(pfs.path().join(name)).unwrap() == vec![byte as u8; 1 << 20], "{name}");
    }
    assert_eq!(agent.counter("fetched_bytes"), fetched, "the newest sets were read from the file system");
    assert_eq!(read("1.a"), "{2}");
    assert!(agent.counter("fetched_bytes") > fetched, "an old set was still in the tier");
    let pattern = format!("{}/**/*", pfs.path().display());
    well(agent.cli(&["checkpoint", "keep", "0", &pattern]));
    assert!(well(agent.cli(&["checkpoint", "list"])).contains("no rules"));
    assert_eq!(agent.status().pinned_bytes, 0);
}

#[test]
fn a_pin_that_an_agent_had_no_time_to_note_is_released_and_a_users_own_stays() {
    let pfs = plain_pfs();
    let mut agent = agent_on(pfs.path());
    std::fs::write(pfs.path().join("own"), content(7, 0, MIB as usize)).unwrap();
    well(agent.cli(&["load", "--pin", pfs.path().join("own").to_str().unwrap()]));
    let mut program = Program::new(python(&agent, pfs.path(), &["--keep", "1", "--detach"], CHECKPOINTS));
    program.expect("wrote 0");
    wait_for("the pins of the set", || agent.status().pinned_bytes == 3 * MIB);
    program.kill();
    agent.kill_9();
    // It notes sets once a second, so it may know none of this one.
    std::fs::remove_file(agent.dir().join("tier/checkpoints")).unwrap();
    agent.restart();
    assert_eq!(agent.status().pinned_bytes, MIB);
    assert_eq!(std::fs::read(pfs.path().join("0.a")).unwrap(), vec![1; 1 << 20]);
}

#[test]
fn a_set_that_was_cut_off_is_shown_and_does_not_take_the_place_of_a_good_one() {
    let pfs = plain_pfs();
    let agent = agent_on(pfs.path());
    let options = ["--keep", "1", "--job", "cut", "--detach"];
    let mut program = Program::new(python(&agent, pfs.path(), &options, CHECKPOINTS));
    program.expect("wrote 0");
    wait_for("the first set", || stand(&agent) == [whole(true, 2)]);
    program.kill();
    let half = r#"
import os, sys
d = os.environ["DIR"]
with open(os.path.join(d, "1.a"), "wb") as f: f.write(b"x" * 1000)
f = open(os.path.join(d, "1.b"), "wb", buffering=0)
f.write(b"y" * 1000)
print("half", flush=True)
sys.stdin.readline()
"#;
    let mut program = Program::new(python(&agent, pfs.path(), &options, half));
    program.expect("half");
    wait_for("the second set", || stand(&agent).len() == 2);
    assert_eq!(stand(&agent)[1].0, "writing");
    program.kill();
    wait_for("the end of the second set", || stand(&agent)[1].0 != "writing");
    assert_eq!(stand(&agent)[1].0, "not_closed");
    assert_eq!(stand(&agent)[0], whole(true, 2));
    assert!(well(agent.cli(&["checkpoint", "list"])).contains("not closed"));
    // The same program again, to its end in order: a file that is open then is closed at its end.
    let mut program = Program::new(python(&agent, pfs.path(), &options, half));
    program.expect("half");
    program.end();
    wait_for("the third set", || stand(&agent).last() == Some(&whole(true, 2)));
    assert!(!stand(&agent)[0].1, "a newer one is whole");
}

#[test]
fn a_marker_comes_when_the_file_system_has_all_files_and_goes_before_one_is_written_again() {
    let Some(slow) = SlowFs::start() else { return };
    let dir = slow.at("out");
    std::fs::create_dir(&dir).unwrap();
    // Both files of a set are written within the pause, on a busy machine as well.
    let setup = Setup { checkpoint_gap_ms: 4 * GAP_MS, ..Setup::new(&slow.mount()) };
    let agent = Agent::start(setup);
    slow.fault("write=EIO");
    let script = "
import os
for name in ('rank0', 'rank1'):
    with open(os.path.join(os.environ['DIR'], name), 'wb') as f: f.write(os.environ['TEXT'].encode())";
    let write = |text: &str, more: &[&str]| {
        let mut command = python(&agent, &dir, more, script);
        command.env("TEXT", text);
        well(command.output().unwrap());
    };
    write("first", &["--detach", "--keep", "1", "--marker", "COMPLETE"]);
    let marker = slow.behind("out/COMPLETE");
    wait_for("the set to end", || stand(&agent)[0].0 == "whole");
    wait_for("a pass to fail", || agent.counter("drains_failed_total") > 0);
    assert!(!marker.exists(), "the file system has nothing yet");
    slow.fault("none");
    sync(&agent);
    wait_for("the marker", || marker.exists());
    let said: Value = serde_json::from_slice(&std::fs::read(&marker).unwrap()).unwrap();
    let files = said["files"].as_array().unwrap();
    let names: Vec<_> = files.iter().map(|file| file["name"].as_str().unwrap()).collect();
    assert_eq!((names, files[0]["bytes"].as_u64()), (vec!["rank0", "rank1"], Some(5)));
    for file in ["rank0", "rank1"] {
        assert_eq!(std::fs::read(slow.behind("out").join(file)).unwrap(), b"first");
    }
    // The same names again: the marker does not hold from the first open on.
    slow.fault("write=EIO");
    write("second!", &["--detach"]);
    assert!(!marker.exists(), "it says that a file is complete that is not");
    slow.fault("none");
    // `forebay run` waits for the marker as well.
    write("third", &["--marker", "COMPLETE"]);
    let said: Value = serde_json::from_slice(&std::fs::read(&marker).unwrap()).unwrap();
    assert_eq!(said["files"][1]["bytes"].as_u64(), Some(5));
    assert_eq!(std::fs::read(slow.behind("out/rank1")).unwrap(), b"third");
    let left: Vec<_> =
        std::fs::read_dir(slow.behind("out")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
    assert!(agent.counter("markers_written_total") >= 2);
}

#[test]
fn a_set_ends_after_the_pause_that_the_agent_has_read_last() {
    let pfs = plain_pfs();
    let setup = |gap_ms| Setup { checkpoint_gap_ms: gap_ms, ..Setup::new(pfs.path()) };
    let mut agent = Agent::start(setup(3_600_000));
    let mut program = Program::new(python(&agent, pfs.path(), &["--keep", "1", "--detach"], CHECKPOINTS));
    for number in 0..3 {
        program.expect(&format!("wrote {number}"));
        program.say();
    }
    program.expect("wrote 3");
    assert_eq!(stand(&agent).len(), 1, "a pause has ended the set");
    agent.reload(setup(GAP_MS));
    wait_for("the set to be whole", || stand(&agent) == [whole(true, 8)]);
    program.kill();
}

#[test]
fn old_sets_give_way_to_new_files_and_the_newest_stays() {
    let pfs = plain_pfs();
    let setup = Setup { checkpoint_gap_ms: GAP_MS, ..Setup::new(pfs.path()) };
    let agent = Agent::start(setup.capacity(BASE + 16 * MIB));
    let script = CHECKPOINTS.replace("1 << 20", "2 << 20");
    let mut program = Program::new(python(&agent, pfs.path(), &["--keep", "100", "--detach"], &script));
    for number in 0..8 {
        program.expect(&format!("wrote {number}"));
        wait_for("the set to be in memory and on the file system", || {
            stand(&agent).last() == Some(&whole(true, 2))
        });
        program.say();
    }
    assert!(agent.counter("checkpoints_released_total") > 0, "there was room for all");
    assert!(agent.counter("absorbed_files_total") >= 16, "a file went past the tier");
    program.kill();
}

#[test]
fn a_file_that_goes_past_the_tier_leaves_no_whole_set_and_no_marker() {
    let pfs = plain_pfs();
    let setup = Setup { checkpoint_gap_ms: GAP_MS, ..Setup::new(pfs.path()) };
    let agent = Agent::start(setup.capacity(BASE + 16 * MIB));
    let script = "
import os
with open(os.path.join(os.environ['DIR'], 'large'), 'wb', buffering=0) as f:
    for i in range(48): f.write(bytes([i]) * (1 << 20))";
    well(python(&agent, pfs.path(), &["--keep", "1", "--marker", "DONE"], script).output().unwrap());
    let sets = sets(&agent);
    assert_eq!(sets[0]["state"], "past_tier", "{sets:?}");
    assert!(sets[0]["marker"].as_str().unwrap().ends_with("/large"));
    assert!(!pfs.path().join("DONE").exists());
    assert_eq!(std::fs::metadata(pfs.path().join("large")).unwrap().len(), 48 << 20);
}

#[test]
fn a_layout_that_the_file_system_does_not_take_costs_one_line_and_nothing_else() {
    let pfs = plain_pfs();
    let agent = agent_on(pfs.path());
    let script = r#"
import os
d = os.environ["DIR"]
for name in ("a.h5", "b.h5", "c.txt"):
    with open(os.path.join(d, name), "xb") as f: f.write(name.encode() * 1000)
os.close(os.open("relative.h5", os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600, dir_fd=os.open(d, os.O_RDONLY)))
"#;
    let pattern = format!("{}/*.h5=stripes:4,size:1MiB", pfs.path().display());
    let run = |more: &[&str]| {
        let options = [&["--layout", &pattern], more].concat();
        let output = python(&agent, pfs.path(), &options, script).output().unwrap();
        let said = text(&output.stderr);
        well(output);
        for name in ["a.h5", "b.h5", "c.txt"] {
            assert!(std::fs::read(pfs.path().join(name)).unwrap() == name.repeat(1000).into_bytes());
            std::fs::remove_file(pfs.path().join(name)).unwrap();
        }
        std::fs::remove_file(pfs.path().join("relative.h5")).unwrap();
        said
    };
    let said = run(&[]);
    assert_eq!(said.matches("takes no layout hints").count(), 1, "{said}");
    assert!(said.contains("a.h5 is created without the layout stripes:4,size:1048576"), "{said}");
    assert_eq!(run(&["--quiet"]), "");
    assert!(agent.counter("absorbed_files_total") > 0);
    // With the command line, and with the library.
    let source = pfs.path().join("source");
    std::fs::write(&source, content(1, 0, 1000)).unwrap();
    let [from, to] = [&source, &pfs.path().join("copy")].map(|path| path.to_str().unwrap().to_owned());
    let copied = agent.cli(&["cp", "--layout", "pool:fast", &from, &to]);
    assert!(text(&copied.stderr).contains("takes no layout hints"), "{}", text(&copied.stderr));
    well(copied);
    assert!(std::fs::read(&to).unwrap() == content(1, 0, 1000));
    let shown = well(agent.cli(&["layout", &to]));
    assert!(shown.contains("does not report its layout"), "{shown}");
    for wrong in ["*.h5", "*=stripes:0", "*=colour:red"] {
        let mut command = Command::new(FOREBAY);
        command.args(["run", "--layout", wrong, "true"]).env("FOREBAY_SOCKET", agent.socket());
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(!output.status.success() && text(&output.stderr).contains("--layout"), "{wrong}");
    }
    assert_eq!(dirty(&agent), Vec::<Value>::new());
}
