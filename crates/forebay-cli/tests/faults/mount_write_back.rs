//! Files that programs write on a mount are written to the tier first, whatever the programs call.

use crate::common::{
    Agent, BASE, FOREBAY, MIB, OTHER_UID, Program, Setup, SlowFs, content, make_file, text, wait_for,
};
use crate::mount::{Mount, pfs_to_mount, skips};
use crate::write_back::{
    SETS_TIMES, WAYS, WRITES, blocks, dirty, failing, hanging, listing, occupy_passes, sync,
    times_are_no_change_of_somebody_else, well,
};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mount of `pfs` with the agent, whose new files in `dir` are written back.
fn mount(agent: &Agent, pfs: &Path, dir: &str, more: &[&str]) -> Mount {
    let pattern = pfs.join(dir);
    let options = [&["--write-back", pattern.to_str().unwrap()], more].concat();
    Mount::new(pfs, agent.socket().to_str().unwrap(), &options)
}

/// A program without `forebay run`.
fn python(dir: &Path, script: &str) -> Command {
    let mut command = Command::new("python3");
    command.args(["-u", "-c", script]).env("DIR", dir);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    command
}

/// What the cases leave without Forebay.
fn alone(script: &str) -> Vec<(String, Vec<u8>)> {
    let plain = tempfile::tempdir().unwrap();
    well(python(plain.path(), script).output().unwrap());
    listing(plain.path())
}

/// A PFS with a directory `out`.
fn pfs_with_dir() -> Option<(tempfile::TempDir, PathBuf)> {
    let pfs = pfs_to_mount()?;
    let dir = pfs.path().join("out");
    std::fs::create_dir(&dir).unwrap();
    Some((pfs, dir))
}

/// Calls that the preloaded library has to imitate, and a mount need not.
const MORE_WAYS: &str = r##"
import ctypes, os, subprocess
d = os.environ["DIR"]
def name(n): return os.path.join(d, n)
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open(name("bare"), os.O_RDWR | os.O_CREAT, 0o644)
data = b"by a bare system call"
assert libc.syscall(1, fd, data, len(data)) == len(data)
assert os.stat(name("bare")).st_size == os.fstat(fd).st_size == len(data)
os.posix_fallocate(fd, 0, 10_000)
libc.fallocate(fd, 3, ctypes.c_long(0), ctypes.c_long(4096))
assert os.pread(fd, 100, 0) == bytes(100)
os.pwrite(fd, b"again", 9_000)
assert os.lseek(fd, 0, os.SEEK_DATA) > 0
os.close(fd)
reader = os.open(name("early"), os.O_RDONLY | os.O_CREAT, 0o644)
with open(name("early"), "wb") as f:
    f.write(b"seen at once"); f.flush()
    assert os.pread(reader, 100, 0) == b"seen at once"
    f.write(b", and more"); f.flush()
    assert os.pread(reader, 100, 0) == b"seen at once, and more"
assert os.pread(reader, 100, 0) == b"seen at once, and more"
os.close(reader)
with open(name("from"), "wb") as f: f.write(bytes(range(256)) * 300)
a, b = os.open(name("from"), os.O_RDONLY), os.open(name("to"), os.O_WRONLY | os.O_CREAT)
left = 256 * 300
while left: left -= os.copy_file_range(a, b, left)
os.close(a); os.close(b)
with open(name("timed"), "wb") as f:
    f.write(b"x"); f.flush()
    os.utime(f.fileno(), (1_000_000_000, 1_000_000_000))
assert os.stat(name("timed")).st_mtime == 1_000_000_000, os.stat(name("timed"))
with open(name("late"), "wb") as f: f.write(b"x")
os.utime(name("late"), (1_000_000_001, 1_000_000_001))
assert os.stat(name("late")).st_mtime == 1_000_000_001
with open(name("script"), "w") as f: f.write("#!/bin/sh\necho run\n")
os.chmod(name("script"), 0o755)
assert subprocess.run([name("script")], stdout=subprocess.PIPE, check=True).stdout == b"run\n"
"##;

#[test]
fn every_way_of_writing_on_a_mount_leaves_what_it_leaves_without_forebay() {
    let Some((pfs, dir)) = pfs_with_dir() else { return };
    let agent = Agent::on(pfs.path());
    let mount = mount(&agent, pfs.path(), "out", &[]);
    well(python(&mount.at.join("out"), WAYS).output().unwrap());
    sync(&agent);
    assert!(agent.counter("absorbed_files_total") >= 10, "nothing was written back");
    assert_eq!(listing(&dir), alone(WAYS));
    assert_eq!(listing(&mount.at.join("out")), alone(WAYS));
    wait_for("all to be clean", || agent.used("dirty") == 0);
}

#[test]
fn programs_on_a_mount_see_what_is_dirty_as_if_the_pfs_had_it() {
    let Some((slow, dir)) = hanging().filter(|_| !skips()) else { return };
    let agent = Agent::on(&slow.mount());
    occupy_passes(&agent, &slow);
    let mount = mount(&agent, &slow.mount(), "out", &[]);
    let there = mount.at.join("out");
    well(python(&there, MORE_WAYS).output().unwrap());
    assert!(agent.counter("absorbed_files_total") >= 6, "nothing was written back");
    assert_eq!(std::fs::metadata(slow.behind("out/from")).unwrap().len(), 0, "the PFS did not hang");
    // Names of its own, a library, and another mount of the node.
    assert_eq!(std::fs::metadata(there.join("from")).unwrap().len(), 256 * 300);
    let second = mount_without(&agent, &slow.mount());
    let (size, bytes) = {
        let path = second.at.join("out/from");
        (std::fs::metadata(&path).unwrap().len(), std::fs::read(&path).unwrap())
    };
    assert_eq!((size, bytes.len()), (256 * 300, 256 * 300));
    assert_eq!(agent.client().open(dir.join("from")).unwrap().size().unwrap(), 256 * 300);
    // Longer, shorter, and through its name.
    let script = "
import os
p = os.path.join(os.environ['DIR'], 'from')
os.truncate(p, 1000); assert os.stat(p).st_size == 1000 == len(open(p, 'rb').read())
with open(p, 'ab') as f: f.write(b'behind')
assert open(p, 'rb').read() == bytes(range(256)) * 3 + bytes(range(232)) + b'behind'";
    well(python(&second.at.join("out"), script).output().unwrap());
    slow.fault("none");
    sync(&agent);
    let mut expected = alone(MORE_WAYS);
    let whole = expected.iter_mut().find(|(name, _)| name == "from").unwrap();
    whole.1.truncate(1000);
    whole.1.extend(b"behind");
    assert_eq!(listing(&slow.behind("out")), expected);
    let timed = std::fs::metadata(slow.behind("out/timed")).unwrap();
    assert_eq!(timed.mtime(), 1_000_000_000);
    assert_eq!(std::fs::metadata(slow.behind("out/late")).unwrap().mtime(), 1_000_000_001);
}

/// A mount that writes nothing back.
fn mount_without(agent: &Agent, pfs: &Path) -> Mount {
    Mount::new(pfs, agent.socket().to_str().unwrap(), &[])
}

#[test]
fn a_file_on_a_mount_that_is_larger_than_the_tier_goes_on_at_the_pfs() {
    let Some((pfs, dir)) = pfs_with_dir() else { return };
    let agent = Agent::start(Setup::new(pfs.path()).capacity(BASE + 24 * MIB));
    let mount = mount(&agent, pfs.path(), "out", &[]);
    let script = "
import os
p = os.path.join(os.environ['DIR'], 'large')
f = open(p, 'w+b', buffering=0)
other = open(p, 'rb', buffering=0)
for i in range(64):
    f.write(bytes([i]) * (1 << 20))
    other.seek(i << 20); assert other.read(10) == bytes([i]) * 10, i
f.seek(5 << 20); assert f.read(3) == bytes([5]) * 3
assert os.fstat(f.fileno()).st_size == 64 << 20
f.close()";
    well(python(&mount.at.join("out"), script).output().unwrap());
    sync(&agent);
    let expected: Vec<u8> = (0..64_u8).flat_map(|i| vec![i; 1 << 20]).collect();
    assert!(std::fs::read(dir.join("large")).unwrap() == expected);
    assert_eq!(agent.counter("absorbed_files_total"), 1, "nothing was written back");
    wait_for("the memory to be free", || agent.used("dirty") == 0);
}

#[test]
fn what_was_written_on_a_mount_outlives_the_agent_the_mount_and_the_program() {
    let Some((slow, _dir)) = failing().filter(|_| !skips()) else { return };
    let mut agent = Agent::on(&slow.mount());
    let mount = mount(&agent, &slow.mount(), "out", &[]);
    let mut open = Program::new(python(&mount.at.join("out"), WRITES));
    open.expect("written");
    well(python(&mount.at.join("out"), WAYS).output().unwrap());
    assert!(dirty(&agent).len() > 10);
    agent.kill_9();
    // It continues without an agent.
    open.say();
    open.expect("all");
    agent.restart();
    assert!(std::fs::read(mount.at.join("out/ckpt")).unwrap() == blocks(2));
    crate::common::send_signal(mount.pid(), libc::SIGKILL);
    slow.fault("none");
    open.kill();
    sync(&agent);
    assert_eq!(dirty(&agent), Vec::<serde_json::Value>::new());
    assert!(std::fs::read(slow.behind("out/ckpt")).unwrap() == blocks(2));
    let found = listing(&slow.behind("out")).into_iter().filter(|(name, _)| name != "ckpt");
    assert_eq!(found.collect::<Vec<_>>(), alone(WAYS));
}

#[test]
fn a_file_on_a_mount_is_its_users_also_while_it_is_dirty() {
    let Some((slow, dir)) = failing().filter(|_| !skips()) else { return };
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let agent = Agent::on(&slow.mount());
    let mount = mount(&agent, &slow.mount(), "out", &[]);
    let as_user = |script: &str| {
        let mut command = python(&mount.at.join("out"), script);
        std::os::unix::process::CommandExt::uid(&mut command, OTHER_UID);
        command.output().unwrap()
    };
    well(as_user(
        "
import os
p = os.path.join(os.environ['DIR'], 'own')
f = os.open(p, os.O_WRONLY | os.O_CREAT, 0o600)
os.write(f, b'of the user'); os.close(f)
assert open(p).read() == 'of the user'",
    ));
    let files = dirty(&agent);
    assert_eq!(files.len(), 1, "nothing was written back");
    assert_eq!(files[0]["uid"].as_u64(), Some(OTHER_UID.into()));
    // Root's file is not the user's, dirty or not.
    std::fs::write(mount.at.join("out/roots"), "secret").unwrap();
    std::fs::set_permissions(mount.at.join("out/roots"), std::fs::Permissions::from_mode(0o600)).unwrap();
    for attempt in [
        "open(p)",
        "open(p, 'w')",
        "os.truncate(p, 0)",
        "os.rename(os.path.join(os.environ['DIR'], 'own'), '/nowhere')",
    ] {
        let script = format!("import os\np = os.path.join(os.environ['DIR'], 'roots')\n{attempt}");
        let out = as_user(&script);
        assert!(text(&out.stderr).contains("Error"), "{attempt}: {}", text(&out.stderr));
    }
    assert_eq!(std::fs::read(mount.at.join("out/roots")).unwrap(), b"secret");
    slow.fault("none");
    sync(&agent);
    let own = std::fs::metadata(slow.behind("out/own")).unwrap();
    assert_eq!((own.uid(), own.len(), own.mode() & 0o777), (OTHER_UID, 11, 0o600));
}

#[test]
fn a_good_file_on_a_mount_is_not_replaced_by_one_that_is_in_memory_only() {
    let Some((slow, dir)) = failing().filter(|_| !skips()) else { return };
    std::fs::write(slow.behind("out/state"), b"good").unwrap();
    let agent = Agent::on(&slow.mount());
    let mount = mount(&agent, &slow.mount(), "out", &[]);
    let script = "
import os
d = os.environ['DIR']
with open(os.path.join(d, 'state.tmp'), 'wb') as f: f.write(b'better')
try: os.rename(os.path.join(d, 'state.tmp'), os.path.join(d, 'state'))
except OSError as e: print(e.errno)";
    assert_eq!(well(python(&mount.at.join("out"), script).output().unwrap()).trim(), "5");
    assert_eq!(std::fs::read(slow.behind("out/state")).unwrap(), b"good");
    assert_eq!(dirty(&agent).len(), 1, "nothing was written back");
    slow.fault("none");
    std::fs::rename(mount.at.join("out/state.tmp"), mount.at.join("out/state")).unwrap();
    assert_eq!(std::fs::read(dir.join("state")).unwrap(), b"better");
}

#[test]
fn times_that_a_program_on_a_mount_sets_between_passes_are_no_change_of_somebody_else() {
    let Some((pfs, dir)) = pfs_with_dir().filter(|_| !skips()) else { return };
    let agent = Agent::on(pfs.path());
    let mount = mount(&agent, pfs.path(), "out", &[]);
    let command = python(&mount.at.join("out"), SETS_TIMES);
    times_are_no_change_of_somebody_else(&agent, command, &dir.join("timed"));
}

/// Otherwise it would be renamed some time later, with what the next program has put there.
#[test]
fn a_program_that_is_killed_while_its_rename_waits_has_renamed_nothing() {
    let Some(slow) = SlowFs::start().filter(|_| !skips()) else { return };
    std::fs::create_dir(slow.at("out")).unwrap();
    std::fs::write(slow.behind("out/state"), b"good").unwrap();
    let agent = Agent::on(&slow.mount());
    let mount = mount(&agent, &slow.mount(), "out", &[]);
    slow.limit("300KB/s");
    let script = "
import os
d = os.environ['DIR']
with open(os.path.join(d, 'state.tmp'), 'wb') as f: f.write(b'first' * 300_000)
print('renames')
os.rename(os.path.join(d, 'state.tmp'), os.path.join(d, 'state'))
print('renamed')";
    let mut program = Program::new(python(&mount.at.join("out"), script));
    program.expect("renames");
    wait_for("the pass has begun", || std::fs::metadata(slow.behind("out/state.tmp")).unwrap().len() > 0);
    program.kill();
    assert_eq!(dirty(&agent).len(), 1, "the pass is over");
    slow.limit("1GB/s");
    sync(&agent);
    // A rename that still waited would come now.
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(std::fs::read(slow.behind("out/state")).unwrap(), b"good");
    assert_eq!(std::fs::metadata(slow.behind("out/state.tmp")).unwrap().len(), 1_500_000);
}

#[test]
fn programs_on_a_mount_and_under_forebay_run_write_one_file() {
    let Some((pfs, dir)) = pfs_with_dir() else { return };
    let agent = Agent::on(pfs.path());
    let mount = mount(&agent, pfs.path(), "out", &[]);
    let mut first = Program::new(python(&mount.at.join("out"), WRITES));
    first.expect("written");
    let script = "
import os
with open(os.path.join(os.environ['DIR'], 'ckpt'), 'r+b') as f: f.write(b'y' * 1000)";
    well(crate::write_back::python(&agent, &dir, &["--detach"], script).output().unwrap());
    let mut expected = blocks(1);
    expected[..1000].fill(b'y');
    assert!(std::fs::read(mount.at.join("out/ckpt")).unwrap() == expected);
    assert_eq!(agent.counter("absorbed_files_total"), 1, "they have two contents, or none");
    first.kill();
    sync(&agent);
    assert!(std::fs::read(dir.join("ckpt")).unwrap() == expected);
}

#[test]
fn a_close_on_a_mount_waits_for_the_copy_that_it_promises() {
    let Some((slow, dir)) = failing().filter(|_| !skips()) else { return };
    let log = tempfile::tempdir().unwrap();
    let mut setup = Setup::new(&slow.mount());
    setup.log = Some(log.path().to_owned());
    let agent = Agent::start(setup);
    let disk = mount(&agent, &slow.mount(), "out", &["--copies", "disk"]);
    std::fs::write(disk.at.join("out/one"), content(1, 0, 300_000)).unwrap();
    let files = dirty(&agent);
    assert!(files[0]["why"].as_str().unwrap().contains("second copy in the log"), "{files:?}");
    drop(disk);
    // No node takes one, and the PFS takes nothing.
    let two = mount(&agent, &slow.mount(), "out", &["--copies", "2"]);
    let script = "
import os
f = os.open(os.path.join(os.environ['DIR'], 'two'), os.O_WRONLY | os.O_CREAT)
os.write(f, b'x')
for what in (os.fsync, os.close):
    try: what(f); print('kept')
    except OSError as e: print(e.errno)";
    assert_eq!(well(python(&two.at.join("out"), script).output().unwrap()), "5\n5\n");
    slow.fault("none");
    sync(&agent);
    assert_eq!(std::fs::read(dir.join("two")).unwrap(), b"x");
    assert_eq!(std::fs::read(dir.join("one")).unwrap(), content(1, 0, 300_000));
}

#[test]
fn a_file_that_was_read_from_the_page_cache_is_emptied_and_written_anew() {
    let Some((pfs, dir)) = pfs_with_dir() else { return };
    make_file(&dir.join("f"), 3, 3 * MIB);
    let agent = Agent::on(pfs.path());
    let mount = mount(&agent, pfs.path(), "out", &[]);
    well(agent.cli(&["load", dir.join("f").to_str().unwrap()]));
    let path = mount.at.join("out/f");
    let reader = std::fs::File::open(&path).unwrap();
    assert!(std::fs::read(&path).unwrap() == content(3, 0, 3 << 20));
    std::fs::write(&path, content(4, 0, 2 << 20)).unwrap();
    assert_eq!(agent.counter("absorbed_files_total"), 1, "it was not written back");
    assert!(std::fs::read(&path).unwrap() == content(4, 0, 2 << 20));
    let mut bytes = vec![0; 4 << 20];
    let n = std::os::unix::fs::FileExt::read_at(&reader, &mut bytes, 0).unwrap();
    assert!(bytes[..n] == content(4, 0, 2 << 20)[..n]);
    sync(&agent);
    assert!(std::fs::read(&path).unwrap() == content(4, 0, 2 << 20));
    let n = std::os::unix::fs::FileExt::read_at(&reader, &mut bytes, 0).unwrap();
    assert!(bytes[..n] == content(4, 0, 2 << 20)[..n]);
}

#[test]
fn a_reader_on_a_mount_that_stays_open_sees_each_life_of_a_file() {
    let Some((pfs, dir)) = pfs_with_dir() else { return };
    let agent = Agent::on(pfs.path());
    let mount = mount(&agent, pfs.path(), "out", &[]);
    let path = mount.at.join("out/f");
    std::fs::write(&path, b"").unwrap();
    let reader = std::fs::File::open(&path).unwrap();
    let sees = |expected: &[u8]| {
        // What is changed elsewhere is seen after 50 ms.
        wait_for("the reader to see it", || {
            let mut bytes = vec![0; 1000];
            let n = std::os::unix::fs::FileExt::read_at(&reader, &mut bytes, 0).unwrap();
            &bytes[..n] == expected
        });
        assert_eq!(reader.metadata().unwrap().len(), expected.len() as u64);
    };
    // Through the mount, by a program under `forebay run`, through the mount; with and without a
    // pass between.
    std::fs::write(&path, b"the first one, which is long").unwrap();
    sees(b"the first one, which is long");
    sync(&agent);
    let script = "
import os
with open(os.path.join(os.environ['DIR'], 'f'), 'wb') as f: f.write(b'second')";
    well(crate::write_back::python(&agent, &dir, &["--detach"], script).output().unwrap());
    sees(b"second");
    sync(&agent);
    sees(b"second");
    std::fs::write(&path, b"third").unwrap();
    sees(b"third");
    let mut end = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    std::io::Write::write_all(&mut end, b" and more").unwrap();
    sees(b"third and more");
    drop(end);
    sync(&agent);
    sees(b"third and more");
    assert_eq!(agent.counter("absorbed_files_total"), 3);
    assert_eq!(std::fs::read(dir.join("f")).unwrap(), b"third and more");
}

#[test]
fn calls_that_memory_cannot_do_are_done_for_a_file_on_a_mount() {
    let Some((slow, dir)) = hanging().filter(|_| !skips()) else { return };
    let agent = Agent::on(&slow.mount());
    occupy_passes(&agent, &slow);
    let mount = mount(&agent, &slow.mount(), "out", &[]);
    let there = mount.at.join("out");
    std::fs::write(there.join("f"), content(6, 0, 3 << 20)).unwrap();
    // The PFS's name of the file, which is empty there.
    let copy = Command::new("cp").args([dir.join("f"), there.join("f")]).output().unwrap();
    assert!(text(&copy.stderr).contains("busy"), "{}", text(&copy.stderr));
    assert!(std::fs::read(there.join("f")).unwrap() == content(6, 0, 3 << 20));
    slow.fault("none");
    sync(&agent);

    let Some((pfs, dir)) = pfs_with_dir() else { return };
    let agent = Agent::on(pfs.path());
    let mount = self::mount(&agent, pfs.path(), "out", &[]);
    let script = "
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
f = os.open(os.path.join(os.environ['DIR'], 'zeroed'), os.O_RDWR | os.O_CREAT)
os.write(f, bytes(65536) + b'x' * 65536)
done = libc.fallocate(f, 16, ctypes.c_long(0), ctypes.c_long(65536))
print(done, ctypes.get_errno() if done else 0)
os.pwrite(f, b'end', 10)
os.close(f)";
    let plain = tempfile::tempdir_in("/tmp").unwrap();
    let expected = well(python(plain.path(), script).output().unwrap());
    assert_eq!(well(python(&mount.at.join("out"), script).output().unwrap()), expected);
    assert_eq!(agent.counter("absorbed_files_total"), 1, "nothing was written back");
    sync(&agent);
    assert_eq!(listing(&dir), listing(plain.path()));
}

#[test]
fn a_write_of_another_user_on_a_mount_clears_the_bits_for_set_user_id_programs() {
    let Some((pfs, dir)) = pfs_with_dir() else { return };
    let agent = Agent::on(pfs.path());
    let mount = mount(&agent, pfs.path(), "out", &[]);
    let file = dir.join("program");
    std::fs::write(&file, b"").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o6777)).unwrap();
    let script = "
import os
f = os.open(os.path.join(os.environ['DIR'], 'program'), os.O_WRONLY)
os.write(f, b'#!/bin/sh'); os.close(f)";
    let mut command = python(&mount.at.join("out"), script);
    std::os::unix::process::CommandExt::uid(&mut command, OTHER_UID);
    well(command.output().unwrap());
    assert_eq!(agent.counter("absorbed_files_total"), 1, "nothing was written back");
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o7777, 0o777);
}

/// A program without a dynamic linker, which no preloaded library reaches.
#[test]
fn run_mount_writes_back_for_a_static_program() {
    let Some((pfs, dir)) = pfs_with_dir() else { return };
    let agent = Agent::on(pfs.path());
    let (source, program) = (pfs.path().join("w.c"), pfs.path().join("w"));
    std::fs::write(
        &source,
        r#"
#include <fcntl.h>
#include <unistd.h>
int main(int n, char **v) {
    int f = open(v[1], O_WRONLY | O_CREAT | O_TRUNC, 0644);
    return f < 0 || write(f, "static", 6) != 6 || close(f);
}"#,
    )
    .unwrap();
    well(Command::new("cc").args(["-static", "-o"]).args([&program, &source]).output().unwrap());
    let mut command = Command::new(FOREBAY);
    command.args(["run", "--mount", "--write-back"]).arg(&dir).arg("--");
    command.arg(&program).arg(dir.join("f")).env("FOREBAY_SOCKET", agent.socket());
    well(command.output().unwrap());
    assert_eq!(agent.counter("absorbed_files_total"), 1, "nothing was written back");
    // It has waited for the PFS.
    assert_eq!(dirty(&agent), Vec::<serde_json::Value>::new());
    assert_eq!(std::fs::read(dir.join("f")).unwrap(), b"static");
}

#[test]
fn only_what_a_pattern_of_the_mount_names_is_written_back() {
    let Some((pfs, dir)) = pfs_with_dir() else { return };
    let agent = Agent::on(pfs.path());
    let socket = agent.socket();
    let bad = Command::new(FOREBAY)
        .args(["mount", "--write-back", "/nowhere"])
        .args([pfs.path(), &dir])
        .env("FOREBAY_SOCKET", &socket)
        .output()
        .unwrap();
    assert!(text(&bad.stderr).contains("not on"), "{}", text(&bad.stderr));
    let pattern = format!("write_back={}", dir.join("*.ckpt").display());
    let mount = Mount::new(pfs.path(), socket.to_str().unwrap(), &["-o", &pattern]);
    for name in ["a.ckpt", "b.log"] {
        std::fs::write(mount.at.join("out").join(name), name).unwrap();
    }
    assert_eq!(agent.counter("absorbed_files_total"), 1);
    sync(&agent);
    assert_eq!(listing(&dir), [("a.ckpt", "a.ckpt"), ("b.log", "b.log")].map(|(n, b)| (n.into(), b.into())));
}

#[test]
fn without_an_agent_a_mount_writes_to_the_pfs() {
    let Some((pfs, dir)) = pfs_with_dir() else { return };
    let pattern = dir.to_str().unwrap();
    let mount = Mount::new(pfs.path(), "none", &["--write-back", pattern]);
    well(python(&mount.at.join("out"), WAYS).output().unwrap());
    assert_eq!(listing(&dir), alone(WAYS));
}
