//! Files that are dirty on one node are read and written on another.

use crate::common::{FOREBAY, MIB, SlowFs, content, text, wait_for};
use crate::coordinator::Cluster;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Bytes of a file that takes several parts of a pass.
pub const BYTES: usize = 9 * MIB as usize + 5;

/// Files that two nodes create at the same time.
const FILES: usize = 100;

/// A program on node `number` under `forebay run`.
pub fn run(cluster: &Cluster, number: usize, options: &[&str], script: &str, file: &Path) -> Child {
    let mut command = Command::new(FOREBAY);
    command.arg("run").args(options).args(["--", "python3", "-u", "-c", script]);
    command.env("FOREBAY_SOCKET", cluster.socket(number)).env("FOREBAY_DEADLINE_MS", "20000");
    command.env("FILE", file).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[track_caller]
pub fn end(child: Child) -> Vec<u8> {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}\n{}", output.status, text(&output.stderr));
    output.stdout
}

/// Writes a file on node 0, where it becomes dirty; its bytes depend on `start`.
pub fn write(cluster: &Cluster, file: &Path, start: u64) {
    let source = cluster.socket(0).with_extension(format!("source{start}"));
    std::fs::write(&source, content(start, 0, BYTES)).unwrap();
    let script = format!("import os; open(os.environ['FILE'], 'wb').write(open({source:?}, 'rb').read())");
    let pattern = file.to_str().unwrap();
    end(run(cluster, 0, &["--write-back", pattern, "--detach"], &script, file));
    assert!(is_dirty(cluster, 0), "the PFS takes no writes");
}

pub const READ: &str = "
import os, sys
with open(os.environ['FILE'], 'rb') as f:
    assert os.fstat(f.fileno()).st_size == f.seek(0, 2), 'length'
    f.seek(0)
    sys.stdout.buffer.write(f.read())";

/// Nodes on a file system that takes no writes, of which programs know.
pub fn failing(nodes: usize) -> Option<(SlowFs, Cluster)> {
    let failing = Cluster::failing(nodes, &[])?;
    // A program looks for other nodes in the agent's table, which follows in a moment.
    std::thread::sleep(Duration::from_millis(300));
    Some(failing)
}

fn is_dirty(cluster: &Cluster, number: usize) -> bool {
    cluster.dirty(number) != "[]"
}

#[test]
fn another_node_reads_what_the_pfs_does_not_have_yet() {
    let Some((slow, cluster)) = failing(2) else { return };
    let file = slow.at("ckpt");
    write(&cluster, &file, 1);
    for _ in 0..2 {
        let read = end(run(&cluster, 1, &[], READ, &file));
        assert!(read == content(1, 0, BYTES), "{} bytes", read.len());
    }
    // Through the library as well.
    let mut bytes = vec![0; BYTES];
    let opened = cluster.client(1).open(&file).unwrap();
    assert_eq!(opened.read_at(&mut bytes, 0).unwrap(), BYTES);
    assert!(bytes == content(1, 0, BYTES));
    // What is written again is newer than what the node has.
    write(&cluster, &file, 2);
    assert!(end(run(&cluster, 1, &[], READ, &file)) == content(2, 0, BYTES));
    slow.fault("none");
    cluster.sync(0);
    assert!(std::fs::read(&file).unwrap() == content(2, 0, BYTES));
    assert!(end(run(&cluster, 1, &[], READ, &file)) == content(2, 0, BYTES));
}

#[test]
fn a_file_that_two_nodes_write_is_on_the_pfs_as_without_forebay() {
    let Some((slow, cluster)) = failing(2) else { return };
    slow.fault("none");
    let file = slow.at("shared");
    let script = |rank: usize| {
        format!(
            "
import os, time
fd = os.open(os.environ['FILE'], os.O_RDWR | os.O_CREAT)
for block in range({rank}, 200, 2):
    os.pwrite(fd, bytes([block]) * 10_000, block * 10_000)
    time.sleep(0.005)
os.close(fd)"
        )
    };
    let pattern = file.to_str().unwrap().to_owned();
    let options = ["--write-back", &pattern];
    let both: Vec<_> = (0..2).map(|rank| run(&cluster, rank, &options, &script(rank), &file)).collect();
    both.into_iter().for_each(|child| drop(end(child)));
    let expected: Vec<u8> = (0..200_u8).flat_map(|block| vec![block; 10_000]).collect();
    assert!(std::fs::read(&file).unwrap() == expected);
    assert!(!is_dirty(&cluster, 0) && !is_dirty(&cluster, 1));
    assert_eq!(cluster.sum("absorbed_files_total"), 1, "one has begun in memory");
}

#[test]
fn files_that_two_nodes_create_at_the_same_time_are_on_the_pfs_as_without_forebay() {
    let Some((slow, cluster)) = failing(2) else { return };
    slow.fault("none");
    std::fs::create_dir(slow.at("d")).unwrap();
    let begin = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 2;
    let script = |rank: usize| {
        format!(
            "
import os, time
for number in range({FILES}):
    time.sleep(max(0, {begin} + number * 0.05 - time.time()))
    fd = os.open(os.environ['FILE'] + '/' + str(number), os.O_RDWR | os.O_CREAT)
    for block in range({rank}, 8, 2):
        os.pwrite(fd, bytes([block]) * 1000, block * 1000)
    os.close(fd)"
        )
    };
    let pattern = slow.at("d/*").to_str().unwrap().to_owned();
    let options = ["--write-back", &pattern];
    let both: Vec<_> =
        (0..2).map(|rank| run(&cluster, rank, &options, &script(rank), &slow.at("d"))).collect();
    both.into_iter().for_each(|child| drop(end(child)));
    let expected: Vec<u8> = (0..8_u8).flat_map(|block| vec![block; 1000]).collect();
    for number in 0..FILES {
        let at = slow.at("d").join(number.to_string());
        let logs = || format!("{number}: {}{}", cluster.log("log0"), cluster.log("log1"));
        assert!(std::fs::read(at).unwrap() == expected, "{}", logs());
    }
    assert!(!is_dirty(&cluster, 0) && !is_dirty(&cluster, 1));
    assert!(cluster.sum("absorbed_files_total") > 0, "some have begun in memory");
}

#[test]
fn a_file_that_another_node_empties_has_only_what_that_writes() {
    let Some((slow, cluster)) = failing(2) else { return };
    let file = slow.at("ckpt");
    write(&cluster, &file, 1);
    let script = "
import os, sys
with open(os.environ['FILE'], 'wb') as f:
    print('emptied', flush=True)
    sys.stdin.readline()
    f.write(b'new')";
    // Not written back there: it only has to wait. What it has emptied needs no write at the PFS.
    let mut writer = run(&cluster, 1, &[], script, &file);
    let mut word = [0; 7];
    writer.stdout.as_mut().unwrap().read_exact(&mut word).unwrap();
    slow.fault("none");
    drop(writer.stdin.take());
    end(writer);
    cluster.sync(0);
    assert_eq!(std::fs::read(&file).unwrap(), b"new");
    assert!(!is_dirty(&cluster, 0), "nothing is parked");
}

#[test]
fn what_is_dirty_on_a_node_whose_agent_is_down_is_never_taken_for_empty() {
    let Some((slow, mut cluster)) = failing(2) else { return };
    let file = slow.at("ckpt");
    write(&cluster, &file, 1);
    cluster.kill_agent(0);
    let reader = run(&cluster, 1, &[], READ, &file);
    std::thread::sleep(Duration::from_millis(500));
    cluster.start_killed(0);
    let read = end(reader);
    assert!(read == content(1, 0, BYTES), "{} bytes\n{}", read.len(), cluster.log("log0"));
    cluster.kill_agent(0);
    wait_for("the node is gone", || cluster.members(1) == 1);
    // Nobody else is left to ask about young files, but the coordinator still knows.
    let read = run(&cluster, 1, &[], READ, &file).wait_with_output().unwrap();
    assert!(!read.status.success(), "{} bytes", read.stdout.len());
    assert!(text(&read.stderr).contains("node n0 has newer bytes"), "{}", text(&read.stderr));
}

/// A pass has written a part; then its node is down, and another one writes the file.
#[test]
fn a_node_that_was_away_in_a_pass_does_not_overwrite_what_was_written_meanwhile() {
    let Some((slow, mut cluster)) = failing(2) else { return };
    for (round, flags) in ["os.O_WRONLY | os.O_TRUNC", "os.O_WRONLY"].into_iter().enumerate() {
        let name = format!("ckpt{round}");
        let (file, behind) = (slow.at(&name), slow.behind(&name));
        write(&cluster, &file, 1);
        slow.limit("1MB/s");
        slow.fault("none");
        wait_for("a part is on the PFS", || behind.metadata().unwrap().len() >= MIB);
        cluster.kill_agent(0);
        slow.limit("1GB/s");
        assert!(behind.metadata().unwrap().len() < BYTES as u64, "the pass has ended");
        wait_for("node 0 is missing", || cluster.members(1) == 1);
        let newer = content(2, 0, BYTES);
        let source = cluster.socket(1).with_extension("newer");
        std::fs::write(&source, &newer).unwrap();
        let script = format!(
            "import os; os.write(os.open(os.environ['FILE'], {flags}), open({source:?}, 'rb').read())"
        );
        end(run(&cluster, 1, &["--write-back", file.to_str().unwrap()], &script, &file));
        assert!(std::fs::read(&file).unwrap() == newer, "{flags}");
        cluster.start_killed(0);
        wait_for("both are there", || cluster.members(1) == 2);
        let parked = || cluster.dirty(0).contains("parked");
        wait_for("the older content is parked", || parked() || std::fs::read(&file).unwrap() != newer);
        assert!(std::fs::read(&file).unwrap() == newer, "{flags}");
        let saved = cluster.socket(0).with_extension(format!("saved{round}"));
        assert!(cluster.cli(0, &["rescue", "--drop", saved.to_str().unwrap()]).status.success());
        slow.fault("write=EIO");
    }
}
