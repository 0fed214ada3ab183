//! Files are written to the tier first, and the agent writes them to the PFS.

use crate::common::{Agent, BASE, FOREBAY, MIB, Program, Setup, SlowFs, content, plain_pfs, text, wait_for};
use forebay_client::WriteMode;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A program under `forebay run` whose new files below `dir` are written back.
fn run(agent: &Agent, dir: &Path, more: &[&str], program: &[&str]) -> Command {
    let mut command = Command::new(FOREBAY);
    command.arg("run").arg("--write-back").arg(dir).args(more).arg("--").args(program);
    command.env("FOREBAY_SOCKET", agent.socket()).env("FOREBAY_DEADLINE_MS", "20000");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn python(agent: &Agent, dir: &Path, more: &[&str], script: &str) -> Command {
    let mut command = run(agent, dir, more, &["python3", "-u", "-c", script]);
    command.env("DIR", dir);
    command
}

#[track_caller]
pub fn well(output: Output) -> String {
    assert!(output.status.success(), "{}\n{}", output.status, text(&output.stderr));
    text(&output.stdout)
}

/// `forebay dirty --json`.
pub fn dirty(agent: &Agent) -> Vec<serde_json::Value> {
    let listed = well(agent.cli(&["dirty", "--json"]));
    serde_json::from_str(&listed).unwrap()
}

pub fn sync(agent: &Agent) {
    well(agent.cli(&["sync", "--quiet"]));
}

/// A file system that takes no writes, like one whose servers hang.
pub fn hanging() -> Option<(SlowFs, PathBuf)> {
    with_fault("write=hang")
}

/// As [`hanging`], but with an error: a process that waits for a server cannot be killed.
pub fn failing() -> Option<(SlowFs, PathBuf)> {
    with_fault("write=EIO")
}

/// Passes over two other files hang, so none begins over another one. (The kernel makes a process
/// that unlinks, renames or truncates a file wait for the write that hangs.)
pub fn occupy_passes(agent: &Agent, slow: &SlowFs) {
    let dir = slow.at("other");
    std::fs::create_dir(&dir).unwrap();
    let script = "
import os
for name in 'ab': open(os.path.join(os.environ['DIR'], name), 'wb').write(b'x')";
    well(python(agent, &dir, &["--detach"], script).output().unwrap());
    wait_for("passes to hang", || dirty(agent).iter().filter(|f| f["state"] == "drains").count() == 2);
}

fn with_fault(fault: &str) -> Option<(SlowFs, PathBuf)> {
    let slow = SlowFs::start()?;
    let dir = slow.at("out");
    std::fs::create_dir(&dir).unwrap();
    slow.fault(fault);
    Some((slow, dir))
}

/// Every way in which programs write, each to a file of its own; prints what was written.
pub const WAYS: &str = r#"
import os, subprocess, sys
d = os.environ["DIR"]
def name(n): return os.path.join(d, n)
def block(i, n=1000): return bytes([(i * 7 + j) % 251 for j in range(n)])
with open(name("write"), "wb") as f:
    for i in range(300): f.write(block(i))
fd = os.open(name("pwrite"), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o640)
for i in reversed(range(50)): os.pwrite(fd, block(i), i * 1000)
os.pwritev(fd, [block(1), block(2)], 50_000)
assert os.pread(fd, 1000, 7000) == block(7)
os.ftruncate(fd, 51_500)
os.lseek(fd, 0, os.SEEK_END)
os.writev(fd, [b"end", b"of it"])
assert os.fstat(fd).st_size == 51_508, os.fstat(fd)
os.fsync(fd)
os.close(fd)
with open(name("append"), "ab") as f: f.write(block(1))
with open(name("append"), "ab") as f: f.write(block(2))
with open(name("text"), "w") as f: print("one line", file=f)
subprocess.run(["sh", "-c", "echo a; echo b >&2; dd if=/dev/zero bs=1000 count=3 status=none"],
    stdout=open(name("child"), "wb"), stderr=subprocess.DEVNULL, check=True)
subprocess.run(["cp", name("write"), name("copied")], check=True)
subprocess.run(["dd", f"if={name('write')}", f"of={name('dd')}", "bs=4096", "status=none"], check=True)
with open(name("sparse"), "wb") as f:
    f.seek(5_000_000); f.write(b"x")
with open(name("again"), "wb") as f: f.write(block(1))
with open(name("again"), "wb") as f: f.write(block(2, 10))
with open(name("empty"), "wb") as f: pass
with open(name("cut"), "wb") as f: f.write(block(1))
os.truncate(name("cut"), 100)
with open(name("cut"), "ab") as f: f.write(b"behind")
import mmap
with open(name("mapped"), "w+b") as f:
    f.truncate(20_000)
    with mmap.mmap(f.fileno(), 20_000) as m:
        m[5000:6000] = block(4)
        m.flush()
    f.seek(5999); assert f.read(2) == block(4)[-1:] + bytes(1)
assert os.stat(name("mapped")).st_size == os.path.getsize(name("mapped")) == 20_000
with open(name("renamed.tmp"), "wb") as f: f.write(block(9))
os.rename(name("renamed.tmp"), name("renamed"))
with open(name("gone"), "wb") as f: f.write(block(9))
os.unlink(name("gone"))
assert open(name("write"), "rb").read() == b"".join(block(i) for i in range(300))
assert open(name("renamed"), "rb").read() == block(9)
"#;

pub fn listing(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap())
        })
        .collect();
    all.sort();
    all
}

#[test]
fn every_way_of_writing_leaves_what_it_leaves_without_forebay() {
    let plain = tempfile::tempdir().unwrap();
    let mut alone = Command::new("python3");
    well(alone.args(["-c", WAYS]).env("DIR", plain.path()).output().unwrap());
    let pfs = plain_pfs();
    let dir = pfs.path().join("out");
    std::fs::create_dir(&dir).unwrap();
    let agent = Agent::on(pfs.path());
    well(python(&agent, &dir, &[], WAYS).output().unwrap());
    // `forebay run` has waited for the PFS.
    assert_eq!(dirty(&agent), Vec::<serde_json::Value>::new());
    assert!(agent.counter("absorbed_files_total") >= 10, "nothing was written back");
    assert!(agent.counter("drained_bytes") > 600_000);
    assert_eq!(listing(&dir), listing(plain.path()));
    let written = std::fs::metadata(dir.join("pwrite")).unwrap();
    assert_eq!(written.permissions().mode() & 0o777, 0o640 & !umask());
    sync(&agent);
    wait_for("all to be clean", || agent.used("dirty") == 0);
    agent.assert_nothing_left();
}

fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
    u32::from_str_radix(line.trim(), 8).unwrap()
}

#[test]
fn a_program_ends_while_the_pfs_hangs_and_others_read_what_it_wrote() {
    let Some((slow, dir)) = hanging() else { return };
    let agent = Agent::on(&slow.mount());
    occupy_passes(&agent, &slow);
    well(python(&agent, &dir, &["--detach"], WAYS).output().unwrap());
    assert_eq!(std::fs::metadata(slow.behind("out/write")).unwrap().len(), 0, "the PFS did not hang");
    assert!(dirty(&agent).iter().any(|file| file["path"].as_str().unwrap().ends_with("/write")));
    // Another program, which writes nothing back, and the library.
    let reads = "import os; print(len(open(os.environ['FILE'], 'rb').read()))";
    let mut other = Command::new(FOREBAY);
    other.args(["run", "python3", "-c", reads]).env("FOREBAY_SOCKET", agent.socket());
    assert_eq!(well(other.env("FILE", dir.join("write")).output().unwrap()).trim(), "300000");
    let file = agent.client().open(dir.join("copied")).unwrap();
    assert_eq!(file.size().unwrap(), 300_000);
    drop(file);
    slow.fault("none");
    sync(&agent);
    let plain = tempfile::tempdir().unwrap();
    well(Command::new("python3").args(["-c", WAYS]).env("DIR", plain.path()).output().unwrap());
    assert_eq!(listing(&slow.behind("out")), listing(plain.path()));
}

pub const WRITES: &str = r#"
import os, sys
f = open(os.path.join(os.environ["DIR"], "ckpt"), "wb", buffering=0)
for i in range(64): f.write(bytes([i]) * 65_536)
print("written")
sys.stdin.readline()
for i in range(64): f.write(bytes([i]) * 65_536)
print("all")
sys.stdin.readline()
"#;

pub fn blocks(times: usize) -> Vec<u8> {
    (0..times).flat_map(|_| (0..64_u8).flat_map(|i| [i; 65_536])).collect()
}

#[test]
fn what_a_killed_program_has_written_reaches_the_pfs() {
    let pfs = plain_pfs();
    let agent = Agent::on(pfs.path());
    // The program itself, and not one that stands for it.
    let mut program = Program::new(python(&agent, pfs.path(), &["--detach"], WRITES));
    program.expect("written");
    assert_eq!(dirty(&agent).len(), 1);
    program.kill();
    sync(&agent);
    assert!(std::fs::read(pfs.path().join("ckpt")).unwrap() == blocks(1));
}

#[test]
fn what_was_written_outlives_the_agent_and_the_program() {
    let Some((slow, dir)) = failing() else { return };
    let mut agent = Agent::on(&slow.mount());
    let mut open = Program::new(python(&agent, &dir, &["--detach"], WRITES));
    open.expect("written");
    well(python(&agent, &dir, &["--detach"], WAYS).output().unwrap());
    let before = dirty(&agent).len();
    assert!(before > 10);
    agent.kill_9();
    // It continues without an agent.
    open.say();
    open.expect("all");
    slow.fault("none");
    agent.restart();
    open.kill();
    sync(&agent);
    assert_eq!(dirty(&agent), Vec::<serde_json::Value>::new());
    assert!(std::fs::read(slow.behind("out/ckpt")).unwrap() == blocks(2));
    let plain = tempfile::tempdir().unwrap();
    well(Command::new("python3").args(["-c", WAYS]).env("DIR", plain.path()).output().unwrap());
    let found = listing(&slow.behind("out")).into_iter().filter(|(name, _)| name != "ckpt");
    assert_eq!(found.collect::<Vec<_>>(), listing(plain.path()));
}

#[test]
fn a_file_that_is_larger_than_the_tier_goes_on_at_the_pfs() {
    let pfs = plain_pfs();
    let agent = Agent::start(Setup::new(pfs.path()).capacity(BASE + 24 * MIB));
    for (script, name) in [
        ("f = open(p, 'wb', buffering=0)\nfor i in range(64): f.write(bytes([i]) * (1 << 20))", "unbuffered"),
        (
            "f = open(p, 'wb')\nfor i in range(640): f.write(bytes([i // 10]) * (1 << 20) if i % 10 == 0 else b'')",
            "buffered",
        ),
        ("f = open(p, 'wb')\nf.write(b''.join(bytes([i]) * (1 << 20) for i in range(64)))", "at once"),
    ] {
        let script = format!("import os\np = os.path.join(os.environ['DIR'], '{name}')\n{script}\nf.close()");
        well(python(&agent, pfs.path(), &[], &script).output().unwrap());
        let written = std::fs::read(pfs.path().join(name)).unwrap();
        let expected: Vec<u8> = (0..64_u8).flat_map(|i| vec![i; 1 << 20]).collect();
        assert!(written == expected, "{name}: {} bytes", written.len());
    }
    assert!(agent.counter("absorbed_files_total") >= 3, "nothing was written back");
    wait_for("the memory to be free", || agent.used("dirty") == 0);
}

#[test]
fn a_stream_of_the_c_library_goes_on_at_the_pfs_as_well() {
    let pfs = plain_pfs();
    let agent = Agent::start(Setup::new(pfs.path()).capacity(BASE + 24 * MIB));
    let source = pfs.path().join("stream.c");
    let program = pfs.path().join("stream");
    let code = r#"
#include <stdio.h>
#include <stdlib.h>
int main(int n, char **v) {
    FILE *f = fopen(v[1], "w");
    for (long i = 0; i < 6000000; i++)
        if (fprintf(f, "%07ld\n", i) != 8) { perror("fprintf"); return 1; }
    if (fclose(f)) { perror("fclose"); return 1; }
    return 0;
}"#;
    std::fs::write(&source, code).unwrap();
    well(Command::new("cc").args(["-O1", "-o"]).args([&program, &source]).output().unwrap());
    let out = pfs.path().join("lines");
    well(run(&agent, pfs.path(), &[], &[program.to_str().unwrap(), out.to_str().unwrap()]).output().unwrap());
    assert!(agent.counter("absorbed_files_total") > 0, "it was not written back");
    let written = std::fs::read_to_string(&out).unwrap();
    assert_eq!(written.len(), 48_000_000);
    let mut lines = written.lines().enumerate();
    assert!(lines.all(|(i, line)| line.parse() == Ok(i)), "lines are lost or changed");
}

#[test]
fn what_the_pfs_does_not_take_is_kept_named_and_saved() {
    let Some(slow) = SlowFs::start() else { return };
    let agent = Agent::on(&slow.mount());
    slow.fault("write=ENOSPC");
    let script = "import os; open(os.path.join(os.environ['DIR'], 'f'), 'wb').write(b'y' * 100_000)";
    let ended = python(&agent, &slow.mount(), &[], script).output().unwrap();
    assert!(!ended.status.success(), "the program has ended well without its file");
    assert!(text(&ended.stderr).contains("No space left on device"), "{}", text(&ended.stderr));
    wait_for("the file to be parked or to wait", || {
        dirty(&agent).iter().any(|file| file["error"].as_str().unwrap().contains("No space"))
    });
    let number = dirty(&agent)[0]["number"].to_string();
    let place = tempfile::tempdir().unwrap();
    well(agent.cli(&["rescue", place.path().to_str().unwrap(), "--number", &number]));
    let saved = std::fs::read(place.path().join(format!("{number}-f"))).unwrap();
    assert!(saved == vec![b'y'; 100_000]);
    let refused = agent.cli(&["sync", "--quiet"]);
    assert!(
        !refused.status.success() && text(&refused.stderr).contains("No space"),
        "{}",
        text(&refused.stderr)
    );
    slow.fault("none");
    sync(&agent);
    assert!(std::fs::read(slow.behind("f")).unwrap() == vec![b'y'; 100_000]);
}

#[test]
fn what_another_program_writes_meanwhile_is_kept_beside_what_was_written_here() {
    let Some((slow, dir)) = hanging() else { return };
    let agent = Agent::on(&slow.mount());
    let script = "import os; open(os.path.join(os.environ['DIR'], 'f'), 'wb').write(b'ours')";
    occupy_passes(&agent, &slow);
    well(python(&agent, &dir, &["--detach"], script).output().unwrap());
    std::fs::write(slow.behind("out/f"), "theirs").unwrap();
    slow.fault("none");
    let refused = agent.cli(&["sync", "--quiet"]);
    assert!(
        text(&refused.stderr).contains("another program has changed the file"),
        "{}",
        text(&refused.stderr)
    );
    assert_eq!(std::fs::read_to_string(slow.behind("out/f")).unwrap(), "theirs");
    let place = tempfile::tempdir().unwrap();
    well(agent.cli(&["rescue", place.path().to_str().unwrap(), "--drop"]));
    let saved: Vec<_> = listing(place.path()).into_iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(saved, [b"ours".to_vec()]);
    assert_eq!(dirty(&agent), Vec::<serde_json::Value>::new());
}

#[test]
fn a_good_file_is_not_replaced_by_one_that_is_in_memory_only() {
    let Some((slow, dir)) = hanging() else { return };
    std::fs::write(slow.behind("out/ckpt"), "the last good one").unwrap();
    let agent = Agent::on(&slow.mount());
    let script = "
import os
os.chdir(os.environ['DIR'])
open('new', 'wb').write(b'z' * 50_000)
print('written')
os.replace('new', 'ckpt')
print('renamed')
";
    let mut program = Program::new(python(&agent, &dir, &["--detach"], script));
    program.expect("written");
    wait_for("the pass to hang", || dirty(&agent).iter().any(|file| file["state"] == "drains"));
    assert_eq!(std::fs::read_to_string(slow.behind("out/ckpt")).unwrap(), "the last good one");
    slow.fault("none");
    program.expect("renamed");
    assert!(std::fs::read(slow.behind("out/ckpt")).unwrap() == vec![b'z'; 50_000]);
    program.end();
}

#[test]
fn modes_times_and_attributes_are_those_of_the_file() {
    let pfs = plain_pfs();
    let agent = Agent::on(pfs.path());
    let script = "
import os
p = os.path.join(os.environ['DIR'], 'f')
with open(p, 'wb') as f:
    f.write(b'x' * 5000)
    f.flush()
    os.fchmod(f.fileno(), 0o604)
    os.utime(f.fileno(), (1_000_000_000, 1_000_000_001))
    os.setxattr(f.fileno(), 'user.mine', b'yes')
";
    well(python(&agent, pfs.path(), &[], script).output().unwrap());
    assert_eq!(agent.counter("absorbed_files_total"), 1, "it was not written back");
    let found = std::fs::metadata(pfs.path().join("f")).unwrap();
    assert_eq!((found.len(), found.mode() & 0o777, found.mtime()), (5000, 0o604, 1_000_000_001));
    let attribute = |name: &str| {
        let mut value = [0; 64];
        let n = rustix::fs::getxattr(pfs.path().join("f"), name, &mut value).unwrap();
        String::from_utf8_lossy(&value[..n]).into_owned()
    };
    assert_eq!(attribute("user.mine"), "yes");
    assert_eq!(attribute("user.forebay.complete"), "5000 1000000001000000000");
}

/// Sets times in each way after a pass, and then writes.
pub const SETS_TIMES: &str = "
import os, subprocess, sys
path = os.path.join(os.environ['DIR'], 'timed')
f = open(path, 'wb', buffering=0)
ways = [lambda: os.utime(f.fileno(), (10**9, 10**9 + 1)), lambda: os.utime(path, (10**9, 10**9 + 2)), lambda: os.utime(path), lambda: os.utime(path, (10**9, 10**9 + 3))]
for way in ways:
    f.write(b'x' * 5000)
    print('written')
    sys.stdin.readline()
    way()
    print('set')
    sys.stdin.readline()
f.write(b'end')
os.utime(path, (10**9, 10**9 + 4))
f.close()";

/// Runs [`SETS_TIMES`], which begins with `command`, and checks what the PFS has of its file.
pub fn times_are_no_change_of_somebody_else(agent: &Agent, command: Command, file: &Path) {
    let mut program = Program::new(command);
    for way in 1..=4 {
        program.expect("written");
        sync(agent);
        assert_eq!(std::fs::metadata(file).unwrap().len(), 5000 * way, "there was no pass");
        program.say();
        program.expect("set");
        if way == 1 {
            sync(agent);
            assert_eq!(std::fs::metadata(file).unwrap().mtime(), 1_000_000_001);
        }
        program.say();
    }
    program.end();
    sync(agent);
    let there = std::fs::metadata(file).unwrap();
    assert_eq!((there.len(), there.mtime()), (20_003, 1_000_000_004));
}

#[test]
fn times_that_a_program_sets_between_passes_are_no_change_of_somebody_else() {
    let pfs = plain_pfs();
    let agent = Agent::on(pfs.path());
    let command = python(&agent, pfs.path(), &[], SETS_TIMES);
    times_are_no_change_of_somebody_else(&agent, command, &pfs.path().join("timed"));
}

#[test]
fn a_stream_that_appends_to_a_dirty_file_is_at_its_end() {
    let Some((slow, dir)) = failing() else { return };
    let agent = Agent::on(&slow.mount());
    let program = agent.dir().join("append");
    let source = program.with_extension("c");
    let main = r#"
#include <stdio.h>
int main(int n, char **a)
{
    if (fopen("/nowhere/file", "a") || freopen("/nowhere/file", "a", stdin)) return 3;
    FILE *f = fopen(a[1], "a");
    long at = ftell(f);
    fputs("line\n", f);
    fclose(f);
    printf("%ld\n", at);
}"#;
    std::fs::write(&source, main).unwrap();
    assert!(Command::new("cc").arg(&source).arg("-o").arg(&program).status().unwrap().success());
    for at in ["0", "5", "10"] {
        let file = dir.join("lines");
        let words = [program.to_str().unwrap(), file.to_str().unwrap()];
        let said = well(run(&agent, &dir, &["--detach"], &words).output().unwrap());
        assert_eq!(said.trim_end(), at);
    }
}

#[test]
fn a_checkpoint_is_read_from_memory_after_its_pass() {
    let Some(slow) = SlowFs::start() else { return };
    let agent = Agent::on(&slow.mount());
    let client = agent.client();
    let path = slow.at("ckpt");
    let bytes = content(7, 0, 9 << 20);
    let mut writer = client.create(&path, WriteMode::Back).unwrap();
    writer.write_all(&bytes).unwrap();
    writer.close().unwrap();
    assert!(crate::common::read_all(&client.open(&path).unwrap()).unwrap() == bytes, "before its pass");
    client.sync_dirty(Some(&path), || true).unwrap();
    wait_for("the copy", || client.open(&path).is_ok_and(|file| file.is_resident()));
    let before = slow.stats().read_bytes;
    assert!(crate::common::read_all(&client.open(&path).unwrap()).unwrap() == bytes);
    assert_eq!(slow.stats().read_bytes, before, "it was read from the file system");
    assert_eq!(agent.used("dirty"), 0);
}

#[test]
fn two_programs_write_one_file_and_go_on_together() {
    let pfs = plain_pfs();
    let agent = Agent::start(Setup::new(pfs.path()).capacity(BASE + 24 * MIB));
    let script = "
import os, sys
fd = os.open(os.path.join(os.environ['DIR'], 'shared'), os.O_RDWR | os.O_CREAT, 0o644)
who = int(sys.argv[1])
print('open')
sys.stdin.readline()
for i in range(300):
    assert os.pwrite(fd, bytes([65 + who]) * 100_000, (2 * i + who) * 100_000) == 100_000
print('written')
sys.stdin.readline()
for i in range(0, 300, 50):
    assert os.pread(fd, 3, (2 * i + 1 - who) * 100_000) == bytes([66 - who]) * 3
";
    let mut both = ["0", "1"].map(|who| {
        let mut command = python(&agent, pfs.path(), &["--detach"], script);
        Program::new({
            command.arg(who);
            command
        })
    });
    both.iter_mut().for_each(|program| program.expect("open"));
    assert_eq!(agent.counter("absorbed_files_total"), 1, "they do not share the content");
    both.iter_mut().for_each(Program::say);
    both.iter_mut().for_each(|program| program.expect("written"));
    both.iter_mut().for_each(Program::say);
    both.into_iter().for_each(|program| drop(program.end()));
    sync(&agent);
    let written = std::fs::read(pfs.path().join("shared")).unwrap();
    assert_eq!(written.len(), 60_000_000);
    for (i, part) in written.chunks(100_000).enumerate() {
        assert!(part.iter().all(|byte| *byte == 65 + (i % 2) as u8), "part {i}");
    }
}

#[test]
fn a_cache_with_files_that_have_just_become_clean_is_dropped() {
    let pfs = plain_pfs();
    // During this time it cannot become a copy.
    let agent = Agent::start(Setup { settle_ms: 60_000, stamps: "trust", ..Setup::new(pfs.path()) });
    let script = "import os; open(os.path.join(os.environ['DIR'], 'f'), 'wb').write(b'there')";
    well(python(&agent, pfs.path(), &[], script).output().unwrap());
    assert_eq!(std::fs::read_to_string(pfs.path().join("f")).unwrap(), "there");
    assert!(
        agent.counter("absorbed_files_total") == 1 && agent.used("dirty") > 0,
        "nothing was left to drop"
    );
    well(agent.cli(&["down", "--drop"]));
}

#[test]
fn a_cache_with_dirty_files_is_not_dropped() {
    let Some((slow, dir)) = failing() else { return };
    let mut agent = Agent::on(&slow.mount());
    let script = "import os; open(os.path.join(os.environ['DIR'], 'f'), 'wb').write(b'kept')";
    well(python(&agent, &dir, &["--detach"], script).output().unwrap());
    agent.kill_9();
    let dropped = agent.cli(&["down", "--drop"]);
    assert!(!dropped.status.success(), "it was dropped");
    assert!(
        text(&dropped.stderr).contains("files that the file system does not have"),
        "{}",
        text(&dropped.stderr)
    );
    slow.fault("none");
    agent.restart();
    sync(&agent);
    assert_eq!(std::fs::read_to_string(slow.behind("out/f")).unwrap(), "kept");
}

#[test]
fn what_is_synced_while_it_is_open_is_whole_after_its_close() {
    let pfs = plain_pfs();
    let agent = Agent::on(pfs.path());
    let script = "
import mmap, os, sys
p = lambda name: os.path.join(os.environ['DIR'], name)
f = open(p('plain'), 'wb', buffering=0)
f.write(b'a' * 5000)
g = open(p('mapped'), 'w+b')
g.truncate(1 << 20)
m = mmap.mmap(g.fileno(), 1 << 20)
m[:5000] = b'a' * 5000
print('open')
sys.stdin.readline()
# The page is there already: no call and no time stamp shows the store.
m[100:200] = b'b' * 100
m.close()
g.close()
f.close()
print('closed')
sys.stdin.readline()
";
    let mut program = Program::new(python(&agent, pfs.path(), &["--detach"], script));
    program.expect("open");
    assert_eq!(agent.counter("absorbed_files_total"), 2, "they are not written back");
    sync(&agent);
    assert!(std::fs::read(pfs.path().join("mapped")).unwrap().starts_with(&[b'a'; 5000]), "no pass was made");
    // A second time, and the files are still open.
    sync(&agent);
    program.say();
    program.expect("closed");
    sync(&agent);
    wait_for("both to be clean", || agent.used("dirty") == 0);
    let mapped = std::fs::read(pfs.path().join("mapped")).unwrap();
    assert!(mapped[100..200] == [b'b'; 100] && mapped[200..5000] == [b'a'; 4800]);
    assert!(std::fs::read(pfs.path().join("plain")).unwrap() == [b'a'; 5000]);
    let copy = crate::common::read_all(&agent.client().open(pfs.path().join("mapped")).unwrap()).unwrap();
    assert!(copy == mapped);
    program.say();
    program.end();
}

/// As Slurm's epilog does it, for one of several jobs of a user; and with a list of patterns in one
/// line, as its task prolog gives it.
#[test]
fn sync_of_a_directory_or_a_pattern_leaves_other_files_in_memory() {
    let pfs = plain_pfs();
    let agent = Agent::on(pfs.path());
    let dir = |name: &str| pfs.path().join(name);
    for name in ["a", "b"] {
        std::fs::create_dir(dir(name)).unwrap();
    }
    let script = "
import os, sys
names = [os.path.join(os.environ['DIR'], name) for name in ('a/one', 'a/two', 'b/one', 'b/two')]
files = [open(name, 'wb', buffering=0) for name in names]
for file in files: file.write(b'all of it')
print('open')
sys.stdin.readline()
";
    let patterns = ["a", "b"].map(|name| format!("{}/*", dir(name).display())).join("\x1e");
    let list = format!("FOREBAY_WRITE_BACK={patterns}");
    let mut command = run(&agent, &dir("a"), &["--detach"], &["env", &list, "python3", "-u", "-c", script]);
    command.env("DIR", pfs.path());
    let mut program = Program::new(command);
    program.expect("open");
    assert_eq!(agent.counter("absorbed_files_total"), 4, "they are not written back");
    let on_pfs = || ["a/one", "a/two", "b/one", "b/two"].map(|name| std::fs::read(dir(name)).unwrap().len());
    well(agent.cli(&["sync", "--quiet", &dir("a").display().to_string()]));
    assert_eq!(on_pfs(), [9, 9, 0, 0]);
    well(agent.cli(&["sync", "--quiet", &dir("?/tw*").display().to_string()]));
    assert_eq!(on_pfs(), [9, 9, 0, 9]);
    let missing = agent.cli(&["sync", "--quiet", &dir("c/one").display().to_string()]);
    assert!(text(&missing.stderr).contains("c/one: there is no such file"), "{missing:?}");
    program.say();
    program.end();
}

#[test]
fn who_reads_a_dirty_file_keeps_its_bytes_when_all_is_evicted() {
    let Some((slow, dir)) = hanging() else { return };
    let agent = Agent::on(&slow.mount());
    let bytes = content(3, 0, 5 << 20);
    let mut writer = agent.client().create(dir.join("f"), WriteMode::Back).unwrap();
    writer.write_all(&bytes).unwrap();
    writer.close().unwrap();
    let reader = agent.client().open(dir.join("f")).unwrap();
    let mut first = vec![0; 1000];
    reader.read_at(&mut first, 0).unwrap();
    slow.fault("none");
    sync(&agent);
    well(agent.cli(&["evict", "--all"]));
    assert!(crate::common::read_all(&reader).unwrap() == bytes);
    drop(reader);
    wait_for("the memory to be the cache's, or free", || agent.used("dirty") == 0);
    well(agent.cli(&["evict", "--all"]));
    assert!(crate::common::read_all(&agent.client().open(dir.join("f")).unwrap()).unwrap() == bytes);
}

#[test]
fn a_child_and_its_parent_go_on_at_the_pfs_one_behind_the_other() {
    let pfs = plain_pfs();
    let agent = Agent::start(Setup::new(pfs.path()).capacity(BASE + 24 * MIB));
    let script = "
import os
fd = os.open(os.path.join(os.environ['DIR'], 'f'), os.O_WRONLY | os.O_CREAT)
for i in range(40): os.write(fd, bytes([i]) * (1 << 20))
for i in range(40, 44):
    child = os.fork()
    if child == 0:
        os.write(fd, bytes([i]) * 1000)
        os._exit(0)
    os.waitpid(child, 0)
os.write(fd, b'end')
";
    well(python(&agent, pfs.path(), &[], script).output().unwrap());
    let written = std::fs::read(pfs.path().join("f")).unwrap();
    let mut expected: Vec<u8> = (0..40_u8).flat_map(|i| vec![i; 1 << 20]).collect();
    expected.extend((40..44_u8).flat_map(|i| vec![i; 1000]));
    expected.extend(b"end");
    assert!(written == expected, "{} bytes", written.len());
    assert_eq!(agent.counter("absorbed_files_total"), 1, "it was not written back");
}

#[test]
fn a_file_that_is_emptied_after_a_pass_gets_what_is_written_then() {
    let pfs = plain_pfs();
    let agent = Agent::on(pfs.path());
    let script = "
import os, sys
p = os.path.join(os.environ['DIR'], 'f')
f = os.open(p, os.O_WRONLY | os.O_CREAT)
os.write(f, b'x' * 5000)
print('written')
sys.stdin.readline()
g = os.open(p, os.O_WRONLY | os.O_TRUNC)
os.write(g, b'new')
";
    let mut program = Program::new(python(&agent, pfs.path(), &["--detach"], script));
    program.expect("written");
    sync(&agent);
    assert_eq!(std::fs::metadata(pfs.path().join("f")).unwrap().len(), 5000, "no pass was made");
    program.say();
    program.end();
    sync(&agent);
    assert_eq!(std::fs::read_to_string(pfs.path().join("f")).unwrap(), "new");
}

/// A program's open empties a file, a pass that was under way writes it, and only then does the
/// agent learn of the open.
#[test]
fn a_pass_that_comes_after_an_open_has_emptied_the_file_is_undone() {
    let pfs = plain_pfs();
    let agent = Agent::on(pfs.path());
    let path = pfs.path().join("ckpt");
    let write = |text: &str| {
        let script =
            format!("import os; open(os.path.join(os.environ['DIR'], 'ckpt'), 'wb').write(b'{text}')");
        well(python(&agent, pfs.path(), &[], &script).output().unwrap());
    };
    write("older content");
    assert_eq!(std::fs::read(&path).unwrap(), b"older content");
    let flags = rustix::fs::OFlags::RDWR;
    let open = || std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let file = open();
    let (absorbed, _content) = agent.client().absorb(file.as_fd(), true, (flags, true)).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0, "it was not emptied again");
    drop((absorbed, _content, file));
    write("newer");
    sync(&agent);
    assert_eq!(std::fs::read(&path).unwrap(), b"newer");
    // Others have written since the pass: it is theirs.
    std::fs::write(&path, "foreign").unwrap();
    let file = open();
    assert!(agent.client().absorb(file.as_fd(), true, (flags, true)).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"foreign");
}

#[test]
fn who_opens_a_dirty_file_waits_for_the_agent_that_has_it() {
    let Some((slow, dir)) = failing() else { return };
    let mut agent = Agent::on(&slow.mount());
    let write = "import os; open(os.path.join(os.environ['DIR'], 'ckpt'), 'wb').write(b'a' * 3000000)";
    well(python(&agent, &dir, &["--detach"], write).output().unwrap());
    agent.kill_9();
    let read = "import os
path = os.path.join(os.environ['DIR'], 'ckpt')
size = os.path.getsize(path)
print(size, len(open(path, 'rb').read()))
f = open(path, 'ab'); f.write(b'b'); f.close()
print(os.path.getsize(path))";
    let mut reader = python(&agent, &dir, &["--detach"], read);
    let reader = reader.stderr(Stdio::inherit()).spawn().unwrap();
    // While nobody answers, as at the start of an agent.
    std::thread::sleep(std::time::Duration::from_millis(700));
    agent.restart();
    assert_eq!(well(reader.wait_with_output().unwrap()), "3000000 3000000\n3000001\n");
    slow.fault("none");
    sync(&agent);
    assert_eq!(std::fs::metadata(slow.behind("out/ckpt")).unwrap().len(), 3_000_001);
}

#[test]
fn a_pass_that_an_outage_has_cut_off_is_made_again() {
    let Some(slow) = SlowFs::start() else { return };
    let agent = Agent::on(&slow.mount());
    let bytes = content(5, 0, 24 << 20);
    let mut writer = agent.client().create(slow.at("f"), WriteMode::Back).unwrap();
    slow.limit("1MB/s");
    writer.write_all(&bytes).unwrap();
    writer.close().unwrap();
    wait_for("a part to be written", || agent.counter("drained_bytes") > 0);
    // Including the attributes, so that nobody knows what the pass has left.
    slow.fault("all=EIO");
    wait_for("the pass to fail", || agent.counter("drains_failed_total") > 0);
    let left = std::fs::metadata(slow.behind("f")).unwrap().len();
    assert!(left > 0 && left < 24 << 20, "the pass was not cut off: {left} bytes");
    slow.fault("none");
    slow.limit("unlimited");
    sync(&agent);
    assert!(std::fs::read(slow.behind("f")).unwrap() == bytes);
}

#[test]
fn what_an_attacker_found_stays_as_without_forebay() {
    // A time that is set before a write; a descriptor on the PFS along with one that empties the
    // file; a reader that had the file open when it was empty, and the length that it finds.
    let script = "
import mmap, os, time
os.chdir(os.environ['DIR'])
f = os.open('times', os.O_RDWR | os.O_CREAT | os.O_TRUNC)
os.utime('times', ns=(10**18, 10**18))
time.sleep(0.05)
os.write(f, b'x' * 5000)
os.close(f)
with open('log', 'wb') as f: f.write(b'x' * 100)
while os.stat('log').st_blocks == 0: time.sleep(0.01)
time.sleep(0.5)
g = os.open('log', os.O_WRONLY | os.O_APPEND)
h = os.open('log', os.O_WRONLY | os.O_TRUNC)
os.write(g, b'y' * 10)
os.pwrite(h, b'z' * 5, 0)
os.close(g)
os.close(h)
r = os.open('read', os.O_RDONLY | os.O_CREAT)
w = os.open('read', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(w, b'x' * 8860)
n = os.fstat(r).st_size
if n: mmap.mmap(r, n, mmap.MAP_SHARED, mmap.PROT_READ)[:]
os.close(w)
";
    let pfs = plain_pfs();
    let agent = Agent::on(pfs.path());
    let before = std::time::SystemTime::now() - std::time::Duration::from_secs(60);
    well(python(&agent, pfs.path(), &[], script).output().unwrap());
    assert!(agent.counter("absorbed_files_total") >= 3, "nothing was written back");
    assert!(std::fs::metadata(pfs.path().join("times")).unwrap().modified().unwrap() > before);
    assert_eq!(std::fs::read(pfs.path().join("log")).unwrap(), b"zzzzzyyyyy");
    assert!(std::fs::read(pfs.path().join("read")).unwrap() == [b'x'; 8860]);
}

#[test]
fn a_user_opens_a_content_again_and_nobody_can_write_to_the_copy() {
    let pfs = plain_pfs();
    let dir = pfs.path().join("theirs");
    std::fs::create_dir(&dir).unwrap();
    std::os::unix::fs::chown(&dir, Some(65534), Some(65534)).unwrap();
    std::fs::set_permissions(pfs.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut setup = Setup::new(pfs.path());
    setup.more = "socket_mode = \"0666\"\n".into();
    let agent = Agent::start(setup);
    std::fs::set_permissions(agent.dir(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // The build directory need not be open to others.
    for file in ["forebay", "libforebay_preload.so"] {
        std::fs::copy(Path::new(FOREBAY).with_file_name(file), agent.dir().join(file)).unwrap();
    }
    let script =
        format!("echo out >{0}/o && sh -c 'echo in >>/dev/stdout; echo >&1 more' >>{0}/p", dir.display());
    let mut command = Command::new(agent.dir().join("forebay"));
    command.args(["run", "--write-back"]).arg(&dir).args(["--", "sh", "-c", &script]);
    command.env("FOREBAY_SOCKET", agent.socket()).stdin(Stdio::null());
    std::os::unix::process::CommandExt::uid(
        std::os::unix::process::CommandExt::gid(&mut command, 65534),
        65534,
    );
    well(command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap());
    assert!(agent.counter("absorbed_files_total") >= 2, "nothing was written back");
    assert_eq!(std::fs::read_to_string(dir.join("o")).unwrap(), "out\n");
    assert_eq!(std::fs::read_to_string(dir.join("p")).unwrap(), "in\nmore\n");
    wait_for("the copies", || agent.used("dirty") == 0);
    for copy in std::fs::read_dir(agent.dir().join("tier/copies")).unwrap() {
        let found = copy.unwrap().metadata().unwrap();
        assert_eq!((found.uid(), found.mode() & 0o777), (0, 0o600));
    }
}
