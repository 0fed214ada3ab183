//! Programs that nobody has changed, run by `forebay run`: their reads come from the tier, and they
//! cannot notice.

use crate::common::{
    Agent, MIB, Program, Setup, SlowFs, content, make_file, make_files, open_dir_in, pfs_and_agent, text,
};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const SEED: u64 = 77;

/// The library of this build.
pub fn library() -> PathBuf {
    let beside = std::env::current_exe().unwrap();
    let dirs = beside.ancestors().skip(1).take(2);
    let found = dirs.map(|dir| dir.join("libforebay_preload.so")).find(|path| path.exists());
    found.expect("libforebay_preload.so is built beside this test")
}

pub fn has(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(program).is_file()));
    if !found {
        println!("left out: {program} is not installed");
    }
    found
}

/// What `--report` has printed.
#[derive(Debug, Default)]
pub struct Report {
    pub processes: u64,
    pub files: u64,
    pub left: u64,
    pub reads: u64,
    pub hits: u64,
}

pub fn report(out: &Output) -> Report {
    let words = text(&out.stderr);
    let numbers = |line: &str| -> Vec<u64> {
        line.split([' ', ',', ';']).filter_map(|word| word.parse().ok()).collect()
    };
    let lines: Vec<_> = words.lines().filter(|line| line.starts_with("forebay run: ")).map(numbers).collect();
    assert!(lines.len() >= 2, "no report: {words}");
    Report {
        processes: lines[0][0],
        files: lines[0][1],
        left: lines[0][2],
        reads: lines[1][0],
        hits: lines[1][1],
    }
}

/// A program under `forebay run`.
pub fn command(agent: &Agent, directory: &Path, program: &[&str]) -> Command {
    let mut arguments = vec!["run", "--report", "--quiet", "--"];
    arguments.extend(program);
    let mut command = agent.command(&arguments);
    command.env("FOREBAY_PRELOAD", library()).env("LC_ALL", "C").current_dir(directory);
    command
}

pub fn plain(directory: &Path, script: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", script]).env("LC_ALL", "C").current_dir(directory);
    command.output().unwrap()
}

/// A file system that counts the requests that it gets, an agent, and a scratch directory outside.
pub struct Rig {
    pub slow: SlowFs,
    pub agent: Agent,
    pub scratch: TempDir,
}

impl Rig {
    pub fn new() -> Option<Self> {
        let slow = SlowFs::start()?;
        let agent = Agent::start(Setup { page: 256 << 10, ..Setup::new(&slow.mount()) });
        Some(Rig { slow, agent, scratch: open_dir_in("/dev/shm") })
    }

    /// Fetches everything below the mount.
    pub fn load(&self) {
        let out = self.agent.cli(&["load", self.slow.mount().to_str().unwrap()]);
        assert!(out.status.success(), "{}", text(&out.stderr));
    }

    /// Runs `script` in the mount without and with the tier: the same output and exit code. Returns
    /// the report, and how many bytes the file system served meanwhile.
    #[track_caller]
    pub fn same(&self, script: &str) -> (Report, u64) {
        let script = format!("out={}; {script}", self.scratch.path().display());
        let expected = plain(&self.slow.mount(), &script);
        assert!(expected.status.success(), "{}", text(&expected.stderr));
        let before = self.slow.stats().read_bytes;
        let got = command(&self.agent, &self.slow.mount(), &["sh", "-c", &script]).output().unwrap();
        let read = self.slow.stats().read_bytes - before;
        assert!(got.status.success(), "{script}: {}", text(&got.stderr));
        assert!(
            got.stdout == expected.stdout,
            "{script}: {} and {}",
            text(&got.stdout),
            text(&expected.stdout)
        );
        let words: Vec<_> = text(&got.stderr)
            .lines()
            .filter(|l| !l.starts_with("forebay run: "))
            .map(str::to_owned)
            .collect();
        assert_eq!(words.join("\n"), text(&expected.stderr).trim_end(), "{script}");
        (report(&got), read)
    }

    /// As [`Rig::same`], for a program whose every read of the mount comes from the tier.
    #[track_caller]
    fn served(&self, script: &str) {
        let (report, read) = self.same(script);
        assert!(report.hits > 0 && report.hits == report.reads && report.files > 0, "{script}: {report:?}");
        assert_eq!(read, 0, "{script}: {report:?}");
    }
}

#[test]
fn programs_that_read_get_their_bytes_from_the_tier_and_not_from_the_file_system() {
    let Some(rig) = Rig::new() else { return };
    make_file(&rig.slow.at("data"), SEED, 3 * MIB + 17);
    std::fs::write(rig.slow.at("text"), "a line\nanother\n".repeat(20_000)).unwrap();
    crate::common::grow_old(&rig.slow.at("text"));
    rig.load();
    rig.served("cat data | cksum");
    rig.served("cat < data | cksum");
    rig.served("dd if=data bs=64k status=none | cksum");
    rig.served("dd if=data bs=1000 skip=7 count=100 status=none | cksum");
    rig.served("tar cf - --mtime=@0 data text | cksum");
    rig.served("grep -c another text; tail -c 100 data | cksum; head -c 70000 data | cksum");
    // One position, of several processes.
    rig.served("{ dd bs=1000 count=3 status=none; dd bs=7 count=2 status=none; cat; } < data | cksum");
}

#[test]
fn what_is_left_to_the_kernel_works_beside_what_is_served() {
    let Some(rig) = Rig::new() else { return };
    make_file(&rig.slow.at("data"), SEED, 3 * MIB + 17);
    rig.load();
    // copy_file_range, stdio, sendfile.
    rig.same("cp data $out/copy && cmp data $out/copy && cksum $out/copy");
    rig.same("cksum data; sort data | cksum; sed -n 3p data | cksum");
    rig.same(
        r#"python3 -c '
import mmap, os, shutil, hashlib, sys
fd = os.open("data", os.O_RDONLY)
head = os.read(fd, 1000)
map = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
assert map[:1000] == head and os.lseek(fd, 0, os.SEEK_CUR) == 1000
assert os.pread(fd, 5000, 2000) == map[2000:7000]
parts = [bytearray(10), bytearray(5000)]
assert os.preadv(fd, parts, 123) == 5010 and parts[0] + parts[1] == map[123:5133]
# The position after what only the kernel has seen.
with open(fd, "rb", buffering=4096, closefd=False) as file:
    assert file.read(3000) == map[1000:4000] and file.seek(9) == 9 and file.read(5) == map[9:14]
os.lseek(fd, 50, os.SEEK_SET)
with open(sys.argv[1] + "/sent", "wb") as out:
    assert os.sendfile(out.fileno(), fd, None, 100) == 100
assert os.read(fd, 10) == map[150:160]
child = os.fork()
if child == 0:
    os._exit(os.read(fd, 10) != map[160:170])
assert os.waitpid(child, 0)[1] == 0 and os.read(fd, 10) == map[170:180]
assert len(open("data", "rb").read()) == len(map) and open("data", "rb").read() == map[:]
shutil.copyfile("data", sys.argv[1] + "/py")
print(hashlib.sha256(open(sys.argv[1] + "/py", "rb").read()).hexdigest())
' $out"#,
    );
}

#[test]
fn a_database_a_compiler_and_git_read_through_the_tier() {
    let Some(rig) = Rig::new() else { return };
    let at = rig.slow.mount();
    let prepare = |script: &str| {
        let out = plain(&at, script);
        assert!(out.status.success(), "{}", text(&out.stderr));
    };
    if has("sqlite3") {
        prepare(
            "sqlite3 base 'create table t (a integer primary key, b text); with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000) insert into t select i, hex(i) from n;'",
        );
    }
    if has("git") {
        prepare(
            "mkdir r && cd r && git init -q -b main . && git config user.email a@b && git config user.name a && seq 20000 > f && git add f && git commit -qm one && seq 20001 >> f && git commit -qam two && git gc -q",
        );
    }
    prepare(
        "printf '#define N 42\\n' > n.h; printf '#include <stdio.h>\\n#include \"n.h\"\\nint main(void) { printf(\"%%d\\\\n\", N); return 0; }\\n' > a.c",
    );
    for entry in ["base", "a.c", "n.h", "r/f"].iter().map(|name| at.join(name)).filter(|path| path.exists()) {
        crate::common::grow_old(&entry);
    }
    rig.load();
    if has("sqlite3") {
        let (report, _) = rig
            .same("sqlite3 -readonly base 'select count(*), sum(length(b)) from t; pragma integrity_check'");
        assert!(report.hits > 10, "{report:?}");
    }
    let (report, _) = rig.same("cc -O1 a.c -o $out/a && $out/a");
    assert!(report.hits > 0, "{report:?}");
    if has("git") {
        let (report, _) = rig.same("cd r && git log --format=%s && git show HEAD:f | cksum && git grep -c 777 && git fsck --strict 2>/dev/null");
        assert!(report.hits > 0, "{report:?}");
    }
}

/// The bytes that intercept.c expects.
fn known_bytes(len: u64) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn signal_handlers_cancelled_threads_forks_and_closing_loops() {
    let Some(rig) = Rig::new() else { return };
    let data = rig.slow.at("data");
    std::fs::write(&data, known_bytes(MIB)).unwrap();
    crate::common::grow_old(&data);
    rig.load();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/intercept.c");
    for optimization in ["-O0", "-O2 -D_FORTIFY_SOURCE=2"] {
        let build = format!("cc -w {optimization} -pthread -o torture {}", source.display());
        let built = plain(rig.scratch.path(), &build);
        assert!(built.status.success(), "{}", text(&built.stderr));
        let program = rig.scratch.path().join("torture");
        let before = rig.slow.stats().read_bytes;
        let out =
            command(&rig.agent, rig.scratch.path(), &[program.to_str().unwrap(), data.to_str().unwrap()])
                .output()
                .unwrap();
        assert!(
            out.status.success() && text(&out.stdout) == "right\n",
            "{:?} {}",
            out.status,
            text(&out.stderr)
        );
        let report = report(&out);
        assert!(report.hits > 2_000 && report.hits == report.reads, "{report:?}");
        // Signal handlers that interrupt a read, and children forked at the wrong moment, go to the
        // file system; the rest does not.
        let read = rig.slow.stats().read_bytes - before;
        assert!(read < 16 * MIB, "{read} bytes: {report:?}");
        let jumps = [program.to_str().unwrap(), data.to_str().unwrap(), "jumps"];
        let out = command(&rig.agent, rig.scratch.path(), &jumps).output().unwrap();
        assert!(text(&out.stdout) == "right\n", "{:?} {}", out.status, text(&out.stderr));
    }
    // Without an agent nothing is served, and the locks are kept as well.
    let program = rig.scratch.path().join("torture");
    let Rig { slow, mut agent, scratch: _scratch } = rig;
    agent.kill_9();
    let mut orphan = Command::new(program);
    orphan.arg(&data).arg("locks");
    orphan
        .env("LD_PRELOAD", library())
        .env("FOREBAY_SOCKET", agent.socket())
        .env("FOREBAY_INTERCEPT_ROOTS", slow.mount());
    let out = orphan.output().unwrap();
    assert!(text(&out.stdout) == "right\n", "{:?} {}", out.status, text(&out.stderr));
}

/// A lock, the end of a child, and a message promise that what was written before is seen.
#[test]
fn what_was_written_before_a_lock_or_a_message_is_read_at_once() {
    let Some(rig) = Rig::new() else { return };
    for i in 0..11 {
        make_file(&rig.slow.at(&format!("f{i}")), SEED, MIB);
    }
    rig.load();
    let script = r#"
import fcntl, os, signal, socket, subprocess
def served(name):
    fd = os.open(name, os.O_RDONLY)
    os.pread(fd, 100, 5000)
    return fd
write = "printf child | dd of=$0 bs=1 seek=5000 conv=notrunc status=none"
for i, run in enumerate([
    lambda name: subprocess.run(["sh", "-c", write, name], check=True),
    lambda name: os.system(write.replace("$0", name)),
    lambda name: os.waitpid(os.posix_spawnp("sh", ["sh", "-c", write, name], os.environ), 0),
    lambda name: os.popen(write.replace("$0", name)).close(),
]):
    fd = served(f"f{i}")
    run(f"f{i}")
    assert os.pread(fd, 5, 5000) == b"child", i
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
ours, theirs = socket.socketpair()
for name, notify, hear in [
    ("f8", "echo", lambda child: os.read(child.stdout.fileno(), 1)),
    ("f9", "kill -USR1 $PPID", lambda child: signal.sigwait({signal.SIGUSR1})),
    ("f10", "echo >&0", lambda child: ours.recv(1)),
]:
    fd = served(name)
    child = subprocess.Popen(["sh", "-c", f"{write}; {notify}; exec sleep 600", name], stdin=theirs, stdout=subprocess.PIPE)
    hear(child)
    assert os.pread(fd, 5, 5000) == b"child", name
    child.kill()
fds = [served(f"f{i}") for i in range(4, 8)]
print("open"); input()
for i, fd in enumerate(fds):
    [lambda: fcntl.flock(fd, fcntl.LOCK_SH), lambda: fcntl.lockf(fd, fcntl.LOCK_SH),
     lambda: fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB),
     lambda: fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 5000)][i]()
    assert os.pread(fd, 5, 5000) == b"other", i
print("seen")
"#;
    let mut program = stepwise(&rig.agent, &rig.slow.mount(), script);
    program.expect("open");
    for i in 4..8 {
        let writer = std::fs::File::options().write(true).open(rig.slow.at(&format!("f{i}"))).unwrap();
        writer.write_all_at(b"other", 5000).unwrap();
    }
    program.say();
    program.expect("seen");
    let report = report(&program.end());
    assert!(report.hits >= 11, "{report:?}");
}

/// Each of thousands of random calls, through the library and with a bare system call on a
/// descriptor of its own: results, errno, bytes and positions.
#[test]
fn random_calls_give_what_bare_system_calls_give() {
    let (pfs, agent) = pfs_and_agent();
    let scratch = open_dir_in("/dev/shm");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/intercept_random.c");
    let built = plain(scratch.path(), &format!("cc -w -O1 -o random {}", source.display()));
    assert!(built.status.success(), "{}", text(&built.stderr));
    let program = scratch.path().join("random");
    for seed in 1..=3 {
        // The second one ends with a hole, and the third one is written.
        make_file(&pfs.path().join("a"), SEED, 300_000);
        make_file(&pfs.path().join("b"), SEED + 1, 100_000);
        let b = std::fs::File::options().write(true).open(pfs.path().join("b")).unwrap();
        b.set_len(250_000).unwrap();
        make_file(&pfs.path().join("c"), SEED + 2, 280_000);
        let seed = seed.to_string();
        let arguments = [program.to_str().unwrap(), &seed, "5000", "a", "b", "c"];
        let out = command(&agent, pfs.path(), &arguments).output().unwrap();
        assert!(text(&out.stdout) == "5000 steps\n", "{:?} {}", out.status, text(&out.stderr));
        let report = report(&out);
        assert!(report.hits > 500 && report.files > 300 && report.left > 30, "{report:?}");
    }
}

#[test]
fn a_static_program_is_not_affected() {
    let (pfs, agent) = pfs_and_agent();
    let source = "printf '#include <fcntl.h>\\n#include <unistd.h>\\nint main(void) { char b[9]; int f = open(\"d\", 0); return write(1, b, read(f, b, 9)) != 3; }\\n' > a.c && cc -static -o a a.c && printf abc > d";
    assert!(plain(pfs.path(), source).status.success());
    let out = command(&agent, pfs.path(), &["./a"]).output().unwrap();
    assert!(out.status.success() && text(&out.stdout) == "abc", "{}", text(&out.stderr));
    let report = report(&out);
    assert_eq!((report.processes, report.reads), (0, 0), "{report:?}");
}

/// Valgrind sees what the library does before and after a program's own code.
#[test]
fn valgrind_finds_no_error_in_a_program_that_reads_through_the_tier() {
    if !has("valgrind") {
        return;
    }
    let (pfs, agent) = pfs_and_agent();
    std::fs::write(pfs.path().join("d"), "abc").unwrap();
    let out = command(&agent, pfs.path(), &["valgrind", "--error-exitcode=9", "cat", "d"]).output().unwrap();
    assert!(out.status.success() && text(&out.stdout) == "abc", "{}", text(&out.stderr));
}

/// A program that says where it is and waits until it may continue.
pub fn stepwise(agent: &Agent, directory: &Path, script: &str) -> Program {
    let mut command = command(agent, directory, &["python3", "-u", "-c", script]);
    command.env("FOREBAY_DEADLINE_MS", "20000").stderr(Stdio::piped());
    Program::new(command)
}

const HALVES: &str = r#"
import os, hashlib
fd = os.open("data", os.O_RDONLY)
sum = hashlib.sha256()
for _ in range(32): sum.update(os.read(fd, 65536))
print("half"); input()
while part := os.read(fd, 65536): sum.update(part)
print(sum.hexdigest() == hashlib.sha256(open("/proc/self/fd/%d" % fd, "rb").read()).hexdigest())
"#;

#[test]
fn a_program_goes_on_when_the_agent_is_killed() {
    let (pfs, mut agent) = pfs_and_agent();
    make_file(&pfs.path().join("data"), SEED, 4 * MIB);
    let mut program = stepwise(&agent, pfs.path(), HALVES);
    program.expect("half");
    agent.kill_9();
    program.say();
    program.expect("True");
    let report = report(&program.end());
    assert!(report.reads >= 32, "{report:?}");
    // And one that starts while there is none, with the variables of one that there was.
    let mut orphan = Command::new("sh");
    orphan.args(["-c", "cat data | cksum"]).current_dir(pfs.path());
    let expected = orphan.output().unwrap();
    orphan
        .env("LD_PRELOAD", library())
        .env("FOREBAY_SOCKET", agent.socket())
        .env("FOREBAY_INTERCEPT_ROOTS", pfs.path());
    let got = orphan.output().unwrap();
    assert_eq!((got.stdout, text(&got.stderr)), (expected.stdout, text(&expected.stderr)));
}

#[test]
fn what_another_process_writes_is_read_soon_and_what_the_program_writes_at_once() {
    let Some(rig) = Rig::new() else { return };
    make_file(&rig.slow.at("data"), SEED, 4 * MIB);
    make_file(&rig.slow.at("own"), SEED, MIB);
    rig.load();
    let script = r#"
import os, time
fd = os.open("data", os.O_RDONLY)
first = os.read(fd, 65536)
print("first"); input()
until = time.monotonic() + 50
while os.pread(fd, 8, 0) == first[:8]:
    assert time.monotonic() < until, "the change is not seen"
print("seen")
print(os.read(fd, 65536).hex() == os.pread(os.open("data", os.O_RDONLY), 65536, 65536).hex())
# What it writes itself, the writer opened after the reader, and before it.
for order in (0, 1):
    opens = [lambda: os.open("own", os.O_RDONLY), lambda: os.open("own", os.O_RDWR)]
    if order: w = opens[1]()
    r = opens[0]()
    os.pread(r, 100, 0)
    if not order: w = opens[1]()
    for i in range(20):
        os.pwrite(w, b"%09d" % i, 70000)
        assert os.pread(r, 9, 70000) == b"%09d" % i
    os.close(r); os.close(w)
print("own")
"#;
    let mut program = stepwise(&rig.agent, &rig.slow.mount(), script);
    program.expect("first");
    let writer = std::fs::File::options().write(true).open(rig.slow.at("data")).unwrap();
    writer.write_all_at(&content(SEED + 1, 0, 4 << 20), 0).unwrap();
    drop(writer);
    program.say();
    program.expect("seen");
    program.expect("True");
    program.expect("own");
    let report = report(&program.end());
    assert!(report.hits >= 2 && report.left >= 1, "{report:?}");
}

#[test]
fn descriptors_of_the_library_do_not_cost_the_program_its_own() {
    let (pfs, agent) = pfs_and_agent();
    make_files(40, 1000, |i| pfs.path().join(format!("f{i}")));
    let script = r#"ulimit -n 64; exec python3 -c '
import os
fds, numbers = [], []
try:
    while True:
        fd = os.open("f%d" % (len(fds) % 40), os.O_RDONLY)
        assert len(os.read(fd, 2000)) == 1000
        fds.append(fd)
except OSError as e:
    assert e.errno == 24, e
print([fd for fd in fds if fd < 48])
os.write(2, b"%d\n" % len(fds))
'"#;
    let count = |out: &Output| text(&out.stderr).lines().find_map(|line| line.parse::<i64>().ok()).unwrap();
    let expected = plain(pfs.path(), script);
    let got = command(&agent, pfs.path(), &["sh", "-c", script]).output().unwrap();
    assert!(got.status.success(), "{}", text(&got.stderr));
    assert_eq!(text(&got.stdout), text(&expected.stdout));
    // The connections to the agent and the descriptor of the watches stay.
    assert!(count(&got) >= count(&expected) - 4, "{} of {}", count(&got), count(&expected));
    assert!(report(&got).files > 0);
}

/// Nothing was loaded before: the first epoch reads each byte from the file system once.
#[test]
fn later_epochs_of_a_data_loader_read_nothing_from_the_file_system() {
    let Some(rig) = Rig::new() else { return };
    let samples = rig.slow.at("samples");
    std::fs::create_dir(&samples).unwrap();
    let sizes: Vec<u64> = (0..60).map(|i| 20_000 + i * 1_777 % 90_000).collect();
    for (i, size) in sizes.iter().enumerate() {
        std::fs::write(samples.join(format!("{i:03}")), content(i as u64, 0, *size as usize)).unwrap();
    }
    crate::common::grow_old(&samples.join("059"));
    let all: u64 = sizes.iter().sum();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/loader/epochs.py");
    // Worker processes start with what their parent has open, or from scratch.
    for (start, expected) in [("fork", all), ("spawn", 0)] {
        let program = ["python3", example.to_str().unwrap(), "samples", "--epochs", "3", "--start", start];
        let before = rig.slow.stats().read_bytes;
        let out = command(&rig.agent, &rig.slow.mount(), &program).output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        let said = text(&out.stdout);
        let epochs: Vec<_> = said.lines().filter_map(|l| l.split_once(": ")?.1.rsplit_once(", ")).collect();
        assert!(epochs.len() == 3 && epochs.iter().all(|epoch| epoch.0 == epochs[0].0), "{said}");
        assert!(epochs[0].0.starts_with(&format!("60 samples, {all} bytes")), "{said}");
        // So the second and the third epoch have read nothing of it.
        let report = report(&out);
        assert_eq!(rig.slow.stats().read_bytes - before, expected, "{report:?}");
        assert!(report.files >= 180 && report.left == 0, "{report:?}");
    }
}

/// Both of Open MPI's layers of MPI-IO, as they are.
#[test]
fn mpi_io_reads_through_the_tier() {
    if !has("mpicc") || !has("mpirun") {
        return;
    }
    let Some(rig) = Rig::new() else { return };
    let data = rig.slow.at("data");
    std::fs::write(&data, known_bytes(4 * MIB)).unwrap();
    crate::common::grow_old(&data);
    rig.load();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/mpi_read.c");
    let built = plain(rig.scratch.path(), &format!("mpicc -O2 -o mpi_read {}", source.display()));
    assert!(built.status.success(), "{}", text(&built.stderr));
    let program = rig.scratch.path().join("mpi_read");
    let (program, data) = (program.to_str().unwrap(), data.to_str().unwrap());
    for layer in ["ompio", "romio321"] {
        let start = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", "--mca", "io", layer];
        let before = rig.slow.stats().read_bytes;
        let program = [start.as_slice(), &[program, data]].concat();
        let out = command(&rig.agent, rig.scratch.path(), &program).output().unwrap();
        assert!(out.status.success() && text(&out.stdout) == "right\n", "{layer}: {}", text(&out.stderr));
        let report = report(&out);
        assert!(report.hits > 10 && report.hits == report.reads && report.left == 0, "{layer}: {report:?}");
        assert_eq!(rig.slow.stats().read_bytes - before, 0, "{layer}: {report:?}");
    }
}

/// Tests of files, mappings and processes, with their files below the mount.
#[test]
fn pythons_own_tests_pass() {
    let (pfs, agent) = pfs_and_agent();
    let tests = |name: &str| {
        let directory = pfs.path().join(name);
        std::fs::create_dir(&directory).unwrap();
        let at = directory.to_str().unwrap().to_owned();
        ["python3", "-m", "test", "--tempdir", &at, "test_io", "test_os", "test_mmap", "test_subprocess"]
            .map(str::to_owned)
    };
    let wanted = tests("run");
    let out = command(&agent, pfs.path(), &wanted.each_ref().map(String::as_str)).output().unwrap();
    if !out.status.success() {
        let same = tests("plain");
        let plain = Command::new(&same[0]).args(&same[1..]).current_dir(pfs.path()).output();
        assert!(!plain.is_ok_and(|out| out.status.success()), "{}{}", text(&out.stdout), text(&out.stderr));
        println!("left out: Python's own tests are not installed, or do not pass here");
        return;
    }
    let report = report(&out);
    assert!(report.files > 50 && report.files + report.left > 100, "{report:?}");
}

#[test]
fn a_cached_read_costs_no_request_and_without_the_tier_nothing_is_intercepted() {
    let Some(rig) = Rig::new() else { return };
    make_file(&rig.slow.at("data"), SEED, MIB);
    rig.load();
    let mut off = rig.agent.command(&["run", "--no-intercept", "--", "cat", "data"]);
    let before = rig.slow.stats().read_bytes;
    let out = off.env("FOREBAY_PRELOAD", library()).current_dir(rig.slow.mount()).output().unwrap();
    assert!(out.status.success() && out.stdout == content(SEED, 0, MIB as usize));
    assert!(rig.slow.stats().read_bytes - before >= MIB, "the file system was read");
    if !has("strace") {
        return;
    }
    let trace = rig.scratch.path().join("trace");
    let out = command(
        &rig.agent,
        &rig.slow.mount(),
        &["strace", "-o", trace.to_str().unwrap(), "dd", "if=data", "of=/dev/null", "bs=4096"],
    )
    .output()
    .unwrap();
    if !out.status.success() {
        // A container may forbid it.
        println!("left out: strace cannot trace: {}", text(&out.stderr));
        return;
    }
    let calls = std::fs::read_to_string(&trace).unwrap();
    let count = |name: &str| calls.lines().filter(|line| line.starts_with(name)).count();
    let blocks = (MIB / 4096) as usize;
    // Each read is one lseek, for the position, and one pread of the copy in shared memory.
    assert!((blocks..blocks + 40).contains(&count("lseek(")), "{}", count("lseek("));
    assert!((blocks..blocks + 40).contains(&count("pread64(")), "{}", count("pread64("));
    assert!(count("sendmsg(") < 20, "{}", count("sendmsg("));
}
