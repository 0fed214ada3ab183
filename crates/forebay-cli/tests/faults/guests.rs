//! Programs on several nodes write one file: it is dirty on one of them, and the others are guests
//! there.

use crate::common::{FOREBAY, Program, text, wait_for};
use crate::coordinator::Cluster;
use crate::dirty_elsewhere::failing;
use crate::roles::Raw;
use forebay_wire::{GuestId, Reply, Request};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What a rank has: the file, its number, and barriers, at which it waits for a line.
const PROLOGUE: &str = "
import fcntl, mmap, os, sys
path, rank = os.environ['FILE'], int(os.environ['RANK'])
def barrier():
    print('here', flush=True)
    assert sys.stdin.readline(), 'the test has ended'
";

/// A rank of a job.
fn start(cluster: &Cluster, number: usize, options: &[&str], script: &str, file: &Path) -> Program {
    let mut command = Command::new(FOREBAY);
    command.args(["run", "--detach", "--write-back"]).arg(file).args(options);
    command.args(["--", "python3", "-u", "-c", &format!("{PROLOGUE}{script}")]);
    command.env("FOREBAY_SOCKET", cluster.socket(number)).env("FOREBAY_DEADLINE_MS", "20000");
    command.env("FILE", file).env("RANK", number.to_string());
    Program::new(command)
}

/// Waits until it is at its next barrier.
#[track_caller]
fn arrive(rank: &mut Program) {
    rank.expect("here");
}

/// What it has printed since.
#[track_caller]
fn end(rank: Program) -> String {
    text(&rank.end().stdout)
}

/// One rank on each node, which all pass `barriers` together; at each, `between` is called.
#[track_caller]
fn run_all(
    cluster: &Cluster,
    options: &[&str],
    script: &str,
    file: &Path,
    barriers: usize,
    mut between: impl FnMut(usize),
) -> Vec<String> {
    let nodes = cluster.members(0);
    let mut ranks: Vec<_> = (0..nodes).map(|n| start(cluster, n, options, script, file)).collect();
    for barrier in 0..barriers {
        ranks.iter_mut().for_each(arrive);
        between(barrier);
        ranks.iter_mut().for_each(Program::say);
    }
    ranks.into_iter().map(end).collect()
}

/// Where the agent of a node has its mount for guests.
fn mount_of(cluster: &Cluster, number: usize) -> PathBuf {
    cluster.socket(number).with_file_name("guests").join("0")
}

/// Unmounts what would keep the directory of the test busy.
struct Unmounted(Vec<PathBuf>);

impl Unmounted {
    fn of(cluster: &Cluster, nodes: usize) -> Self {
        Unmounted((0..nodes).map(|number| mount_of(cluster, number)).collect())
    }
}

impl Drop for Unmounted {
    fn drop(&mut self) {
        for at in self.0.iter().filter(|at| at.exists()) {
            let _ = Command::new(FOREBAY).args(["umount", "--lazy"]).arg(at).output();
        }
    }
}

/// Rank 0 has created the file; the others have opened it, and are at a barrier.
const OPEN: &str = "
if rank == 0:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
barrier()
if rank != 0:
    fd = os.open(path, os.O_RDWR)
";

#[test]
fn a_file_that_all_nodes_write_is_dirty_on_one_of_them() {
    let Some((slow, cluster)) = failing(3) else { return };
    let _unmounted = Unmounted::of(&cluster, 3);
    let file = slow.at("shared");
    // Strided, with parts that are not blocks; then each reads what the others have written.
    let script = format!(
        "{OPEN}
for block in range(rank, 240, 3):
    os.pwrite(fd, bytes([block]) * 10_007, block * 10_007)
barrier()
for block in range(240):
    assert os.pread(fd, 10_007, block * 10_007) == bytes([block]) * 10_007, block
assert os.fstat(fd).st_size == 240 * 10_007 == os.lseek(fd, 0, os.SEEK_END)
os.close(fd)"
    );
    run_all(&cluster, &[], &script, &file, 2, |_| ());
    assert_eq!(cluster.sum("absorbed_files_total"), 1);
    assert!(cluster.dirty(0).contains("shared"), "{}", cluster.dirty(0));
    assert_eq!((&*cluster.dirty(1), &*cluster.dirty(2)), ("[]", "[]"));
    assert_eq!(std::fs::metadata(slow.behind("shared")).unwrap().len(), 0, "the PFS has it");
    slow.fault("none");
    // Through the name, from any node.
    let synced = cluster.cli(1, &["sync", "--quiet", file.to_str().unwrap()]);
    assert!(synced.status.success(), "{}", text(&synced.stderr));
    let expected: Vec<u8> = (0..240_u8).flat_map(|block| vec![block; 10_007]).collect();
    assert!(std::fs::read(slow.behind("shared")).unwrap() == expected);
    assert_eq!(cluster.dirty(0), "[]");
}

#[test]
fn a_guest_can_do_what_other_writers_can() {
    let Some((slow, cluster)) = failing(2) else { return };
    let _unmounted = Unmounted::of(&cluster, 2);
    let file = slow.at("shared");
    let script = format!(
        "{OPEN}
def seen(what):
    barrier()
    assert os.pread(fd, 1 << 20, 0) == what, (rank, os.pread(fd, 1 << 20, 0)[:99])
    barrier()
guest = rank == 1
if guest:
    os.write(fd, b'begin ')
    os.write(fd, b'more')
seen(b'begin more')
if guest:
    os.ftruncate(fd, 5)
seen(b'begin')
if guest:
    os.ftruncate(fd, 8)
seen(b'begin\\0\\0\\0')
if guest:
    end = os.open(path, os.O_WRONLY | os.O_APPEND)
    assert os.write(end, b'end') == 3
    os.close(end)
seen(b'begin\\0\\0\\0end')
if not guest:
    os.pwrite(fd, b'B', 0)
seen(b'Begin\\0\\0\\0end')
if guest:
    same = os.dup(fd)
    os.lseek(fd, 5, os.SEEK_SET)
    os.write(same, b'...')
    if os.fork() == 0:
        os.write(fd, b'child')
        os._exit(0)
    os.wait()
    os.write(same, b'!')
seen(b'Begin...child!')
if guest:
    import subprocess
    subprocess.run(['sh', '-c', 'printf \" by a shell\" >&%d' % fd], pass_fds=[fd], check=True)
seen(b'Begin...child! by a shell')
if guest:
    again = os.open(path, os.O_RDWR | os.O_TRUNC)
    os.pwrite(again, b'anew', 0)
    os.close(again)
seen(b'anew')
os.close(fd)"
    );
    run_all(&cluster, &[], &script, &file, 1 + 2 * 8, |_| ());
    assert!(cluster.dirty(0).contains("shared"), "{}", cluster.dirty(0));
    slow.fault("none");
    cluster.sync(0);
    assert_eq!(std::fs::read(slow.behind("shared")).unwrap(), b"anew");
}

#[test]
fn programs_of_two_nodes_lock_each_other_out() {
    let Some((slow, cluster)) = failing(2) else { return };
    let _unmounted = Unmounted::of(&cluster, 2);
    let file = slow.at("shared");
    let script = format!(
        "{OPEN}
if rank == 0:
    os.pwrite(fd, bytes(8), 0)
barrier()
for _ in range(100):
    fcntl.lockf(fd, fcntl.LOCK_EX, 8, 0)
    value = int.from_bytes(os.pread(fd, 8, 0), 'little')
    os.pwrite(fd, (value + 1).to_bytes(8, 'little'), 0)
    fcntl.lockf(fd, fcntl.LOCK_UN, 8, 0)
barrier()
print(int.from_bytes(os.pread(fd, 8, 0), 'little'))"
    );
    let counts = run_all(&cluster, &[], &script, &file, 3, |_| ());
    assert_eq!(counts, ["200\n", "200\n"]);
    assert!(cluster.dirty(0).contains("shared"));
    slow.fault("none");
    cluster.sync(0);
}

/// Each rank writes its parts one by one, so slowly that something can happen meanwhile.
const SLOWLY: &str = "
import time
for block in range(rank, 200, 2):
    os.pwrite(fd, bytes([block]) * 10_007, block * 10_007)
    time.sleep(0.02)
os.close(fd)";

fn strided() -> Vec<u8> {
    (0..200_u8).flat_map(|block| vec![block; 10_007]).collect()
}

#[test]
fn writers_of_all_nodes_go_on_at_the_pfs_if_the_file_is_called_in() {
    let Some((slow, cluster)) = failing(2) else { return };
    let _unmounted = Unmounted::of(&cluster, 2);
    slow.fault("none");
    let file = slow.at("shared");
    let mut strangers = Vec::new();
    let between = |_| {
        // A program that is to write through to the PFS opens the file on the guest's node.
        let third = file.clone();
        let mut command = Command::new(FOREBAY);
        command.args(["run", "--", "sh", "-c"]).env("FOREBAY_SOCKET", cluster.socket(1));
        command.arg(format!("sleep 0.7; exec 3<>{}; sleep 0.3", third.display()));
        strangers.push(command.spawn().unwrap());
    };
    run_all(&cluster, &[], &format!("{OPEN}{SLOWLY}"), &file, 1, between);
    strangers.iter_mut().for_each(|stranger| assert!(stranger.wait().unwrap().success()));
    assert!(std::fs::read(slow.behind("shared")).unwrap() == strided(), "without a sync");
    assert_eq!((&*cluster.dirty(0), &*cluster.dirty(1)), ("[]", "[]"));
    assert_eq!(cluster.sum("absorbed_files_total"), 1);
}

#[test]
fn a_guest_that_maps_the_file_goes_on_at_the_pfs() {
    let Some((slow, cluster)) = failing(2) else { return };
    let _unmounted = Unmounted::of(&cluster, 2);
    slow.fault("none");
    let file = slow.at("shared");
    let script = format!(
        "{OPEN}
os.pwrite(fd, b'rank %d' % rank, rank * 4096)
barrier()
if rank == 1:
    with mmap.mmap(fd, 0) as map:
        assert map[:6] == b'rank 0'
        map[4096:4102] = b'mapped'
barrier()
assert os.pread(fd, 6, 4096) == b'mapped'"
    );
    run_all(&cluster, &[], &script, &file, 3, |_| ());
    let there = std::fs::read(slow.behind("shared")).unwrap();
    assert_eq!((&there[..6], &there[4096..]), (&b"rank 0"[..], &b"mapped"[..]));
}

#[test]
fn agents_that_are_killed_and_come_back_lose_nothing_of_a_guest() {
    let Some((slow, mut cluster)) = failing(2) else { return };
    let _unmounted = Unmounted::of(&cluster, 2);
    let file = slow.at("shared");
    let script = format!("{OPEN}{SLOWLY}");
    let mut ranks: Vec<_> = (0..2).map(|n| start(&cluster, n, &[], &script, &file)).collect();
    ranks.iter_mut().for_each(arrive);
    ranks.iter_mut().for_each(Program::say);
    let begun = Instant::now();
    wait_for("both write", || cluster.dirty(0).contains("shared") && begun.elapsed().as_millis() > 400);
    for killed in [1, 0] {
        cluster.kill_agent(killed);
        cluster.start_killed(killed);
        std::thread::sleep(Duration::from_millis(300));
    }
    ranks.into_iter().for_each(|rank| drop(rank.end()));
    assert!(begun.elapsed().as_millis() > 1500, "the agents were killed after all writes");
    assert!(cluster.dirty(0).contains("shared"), "{}", cluster.dirty(0));
    slow.fault("none");
    cluster.sync(0);
    assert!(std::fs::read(slow.behind("shared")).unwrap() == strided());
}

#[test]
fn a_guest_hears_that_the_node_has_lost_what_it_wrote() {
    let Some((slow, mut cluster)) = failing(2) else { return };
    let _unmounted = Unmounted::of(&cluster, 2);
    let file = slow.at("shared");
    let script = format!(
        "{OPEN}
os.pwrite(fd, b'x' * 5000, rank * 5000)
barrier()
for call in lambda: os.pwrite(fd, b'y', 0), lambda: os.pread(fd, 1, 0), lambda: os.pwrite(fd, b'y', 0):
    try:
        print(call())
    except OSError as e:
        print(e.errno)"
    );
    let mut ranks: Vec<_> = (0..2).map(|n| start(&cluster, n, &[], &script, &file)).collect();
    ranks.iter_mut().for_each(arrive);
    ranks.iter_mut().for_each(Program::say);
    ranks.iter_mut().for_each(arrive);
    cluster.kill_agent(0);
    std::fs::remove_dir_all(cluster.tier(0)).unwrap();
    cluster.start_killed(0);
    let mut guest = ranks.pop().unwrap();
    guest.say();
    assert_eq!(end(guest), "5\n5\n5\n");
    // What the other one has written is lost.
    drop(ranks);
}

#[test]
fn what_a_guest_has_synced_outlives_the_node_of_the_file() {
    let Some((slow, mut cluster)) = failing(3) else { return };
    let _unmounted = Unmounted::of(&cluster, 3);
    let file = slow.at("shared");
    let script = format!(
        "{OPEN}
os.pwrite(fd, bytes([rank]) * 10_007, rank * 10_007)
barrier()
if rank == 2:
    os.fsync(fd)
barrier()
os._exit(0)"
    );
    run_all(&cluster, &["--copies", "2"], &script, &file, 3, |_| ());
    assert!(cluster.dirty(0).contains("second copy on node"), "{}", cluster.dirty(0));
    cluster.kill_agent(0);
    std::fs::remove_dir_all(cluster.tier(0)).unwrap();
    wait_for("the file is taken over", || {
        cluster.counter(1, "taken_over_total") + cluster.counter(2, "taken_over_total") == 1
    });
    slow.fault("none");
    (1..3).for_each(|node| cluster.sync(node));
    let expected: Vec<u8> = (0..3_u8).flat_map(|rank| vec![rank; 10_007]).collect();
    assert!(std::fs::read(slow.behind("shared")).unwrap() == expected);
}

/// Two ranks that have opened the file and written a part each, and are at a barrier.
fn begun(cluster: &Cluster, options: &[&str], then: &str, file: &Path) -> [Program; 2] {
    let script = format!("{OPEN}os.pwrite(fd, b'%d' % rank * 5000, rank * 5000)\nbarrier()\n{then}");
    let mut ranks = [0, 1].map(|number| start(cluster, number, options, &script, file));
    ranks.iter_mut().for_each(arrive);
    ranks.iter_mut().for_each(Program::say);
    ranks.iter_mut().for_each(arrive);
    ranks
}

#[test]
fn a_guest_waits_for_the_coordinator_that_knows_where_its_file_is() {
    let Some((slow, mut cluster)) = failing(2) else { return };
    let _unmounted = Unmounted::of(&cluster, 2);
    let file = slow.at("shared");
    let then = "os.pwrite(fd, b'more', 10_000 + rank * 4)\nassert os.pread(fd, 4, 0) == b'0000'";
    let mut ranks = begun(&cluster, &[], then, &file);
    // The guest's agent knows nobody then.
    cluster.stop_coordinator();
    cluster.kill_agent(1);
    cluster.start_killed(1);
    ranks.iter_mut().for_each(Program::say);
    std::thread::sleep(Duration::from_secs(1));
    cluster.let_coordinator_go_on();
    ranks.into_iter().for_each(|rank| drop(rank.end()));
    assert_eq!(std::fs::metadata(slow.behind("shared")).unwrap().len(), 0, "one has written to the PFS");
    slow.fault("none");
    cluster.sync(0);
    assert_eq!(std::fs::read(slow.behind("shared")).unwrap()[9_999..], b"1moremore"[..]);
}

#[test]
fn an_agent_that_is_started_anew_keeps_what_a_guest_syncs() {
    let Some((slow, mut cluster)) = failing(3) else { return };
    let _unmounted = Unmounted::of(&cluster, 3);
    let file = slow.at("shared");
    let then = "if rank == 1:\n    os.fsync(fd)\n    os._exit(0)\nbarrier()";
    let mut ranks = begun(&cluster, &["--copies", "2"], then, &file);
    cluster.kill_agent(1);
    cluster.start_killed(1);
    cluster.wait_members(3);
    ranks.iter_mut().for_each(Program::say);
    let [mut holder, guest] = ranks;
    guest.end();
    arrive(&mut holder);
    assert!(cluster.dirty(0).contains("second copy on node"), "{}", cluster.dirty(0));
}

#[test]
fn what_somebody_writes_beside_guests_is_kept_beside_it() {
    let Some((slow, mut cluster)) = failing(2) else { return };
    let _unmounted = Unmounted::of(&cluster, 2);
    let file = slow.at("shared");
    let ranks = begun(&cluster, &[], "assert os.pread(fd, 4, 0) == b'0000'", &file);
    slow.fault("none");
    // Without Forebay; then the guest connects again.
    std::fs::write(&file, b"of somebody else").unwrap();
    cluster.kill_agent(1);
    cluster.start_killed(1);
    // The holder's rank is the last, so that it has the file open as long as the guest.
    for mut rank in ranks.into_iter().rev() {
        rank.say();
        rank.end();
    }
    wait_for("the file is parked", || cluster.dirty(0).contains("parked"));
    assert_eq!(std::fs::read(&file).unwrap(), b"of somebody else");
    let saved = cluster.socket(0).with_extension("saved");
    let rescued = cluster.cli(0, &["rescue", "--drop", saved.to_str().unwrap()]);
    assert!(rescued.status.success(), "{}", text(&rescued.stderr));
    let mut found = Vec::new();
    let entries = glob::glob(&format!("{}/**/*shared*", saved.display())).unwrap().flatten();
    entries.filter(|path| path.is_file()).for_each(|path| found.push(std::fs::read(path).unwrap()));
    assert_eq!(found, [[[b'0'; 5000], [b'1'; 5000]].concat()]);
}

#[test]
fn a_guest_does_not_replace_a_good_file_by_one_that_is_in_memory_only() {
    let Some((slow, cluster)) = failing(2) else { return };
    let _unmounted = Unmounted::of(&cluster, 2);
    let (file, good) = (slow.at("shared"), slow.at("good"));
    slow.fault("none");
    std::fs::write(&good, b"good").unwrap();
    slow.fault("write=EIO");
    let then = "
if rank == 1:
    try:
        os.rename(path, os.path.dirname(path) + '/good')
    except OSError as e:
        print(e.errno)
barrier()
if rank == 1:
    os.rename(path, os.path.dirname(path) + '/good')";
    let mut ranks = begun(&cluster, &[], then, &file);
    ranks.iter_mut().for_each(Program::say);
    let [mut holder, mut guest] = ranks;
    arrive(&mut holder);
    guest.expect("5");
    arrive(&mut guest);
    assert_eq!(std::fs::read(&good).unwrap(), b"good");
    slow.fault("none");
    guest.say();
    guest.end();
    holder.say();
    holder.end();
    let there = std::fs::read(&good).unwrap();
    assert!(there == [[b'0'; 5000], [b'1'; 5000]].concat(), "{} bytes", there.len());
}

#[test]
fn a_guest_on_a_mount_of_its_own_writes_with_the_others() {
    let Some((slow, cluster)) = failing(2) else { return };
    let _unmounted = Unmounted::of(&cluster, 2);
    let file = slow.at("shared");
    let at = cluster.socket(1).with_extension("at");
    std::fs::create_dir(&at).unwrap();
    let mut mount = cluster.command(1, &["mount", "--write-back"]);
    let mounted = mount.arg(&file).arg(slow.mount()).arg(&at).output().unwrap();
    assert!(mounted.status.success(), "{}", text(&mounted.stderr));
    let script = format!(
        "{OPEN}os.pwrite(fd, b'first', 0)\nbarrier()\nbarrier()\nassert os.pread(fd, 10, 0) == b'firstguest'"
    );
    let mut holder = start(&cluster, 0, &[], &script, &file);
    arrive(&mut holder);
    holder.say();
    arrive(&mut holder);
    let script = "
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
assert os.pread(fd, 9, 0) == b'first', os.pread(fd, 9, 0)
os.pwrite(fd, b'guest' * 200_000, 5)
os.ftruncate(fd, 10)
assert os.fstat(fd).st_size == 10 == os.stat(sys.argv[1]).st_size
assert os.lseek(fd, 2, os.SEEK_HOLE) == 10";
    let guest = Command::new("python3").args(["-c", script]).arg(at.join("shared")).output().unwrap();
    let unmounted = cluster.cli(1, &["umount", at.to_str().unwrap()]);
    assert!(guest.status.success(), "{}", text(&guest.stderr));
    assert!(unmounted.status.success(), "{}", text(&unmounted.stderr));
    holder.say();
    arrive(&mut holder);
    holder.say();
    holder.end();
    assert!(cluster.dirty(0).contains("shared"));
    slow.fault("none");
    cluster.sync(0);
    assert_eq!(std::fs::read(slow.behind("shared")).unwrap(), b"firstguest");
}

#[test]
fn a_program_that_makes_up_the_number_of_a_guest_gets_no_place() {
    let Some((slow, cluster)) = failing(2) else { return };
    let _unmounted = Unmounted::of(&cluster, 2);
    let file = slow.at("shared");
    let ranks = begun(&cluster, &[], "", &file);
    let open = std::fs::File::options().read(true).write(true).open(&file).unwrap();
    // Node 0 has a dirty file of this number: calls about it would go elsewhere.
    let listed: serde_json::Value = serde_json::from_str(&cluster.dirty(0)).unwrap();
    let number = listed[0]["number"].as_u64().unwrap();
    let raw = Raw::connect(&cluster.socket(0));
    let id = GuestId { number, holder: "n1".into(), life: 0, copy: 0 };
    let request = Request::GuestOpen { truncated: false, resumes: Some(id), caller: 0 };
    let answer = raw.ask(&request, &[open.as_fd(), open.as_fd()]);
    assert!(
        matches!(&answer, Reply::Failed { message, .. } if message.contains("another user's")),
        "{answer:?}"
    );
    for mut rank in ranks {
        rank.say();
        rank.end();
    }
    assert!(cluster.dirty(0).contains("shared"));
    slow.fault("none");
    cluster.sync(0);
}

/// `forebay run` and `forebay sync` on the node of a guest.
#[test]
fn a_run_waits_for_what_its_program_has_written_as_a_guest() {
    let Some((slow, cluster)) = failing(2) else { return };
    let _unmounted = Unmounted::of(&cluster, 2);
    let (file, bytes) = (slow.at("shared"), 2 << 20);
    let write = |rank: usize, options: &[&str], script: &str| {
        let mut command = Command::new(FOREBAY);
        command.args(["run", "--write-back"]).arg(&file).args(options).args(["--", "python3", "-c", script]);
        let output = command.env("FOREBAY_SOCKET", cluster.socket(rank)).env("FILE", &file).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    write(0, &["--detach"], "import os; open(os.environ['FILE'], 'wb').write(b'first')");
    slow.fault("none");
    slow.limit("1MB/s");
    for byte in [b'a', b'b'] {
        let script = format!("import os; open(os.environ['FILE'], 'r+b').write(bytes([{byte}]) * {bytes})");
        let is_synced = byte == b'b';
        write(1, if is_synced { &["--detach"] } else { &[] }, &script);
        if is_synced {
            cluster.sync(1);
        }
        let there = std::fs::read(slow.behind("shared")).unwrap();
        assert!(there == vec![byte; bytes], "{} bytes, the last of them {:?}", there.len(), there.last());
    }
}
