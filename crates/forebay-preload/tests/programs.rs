//! Programs behave the same with the library preloaded and without it, and what they write to the
//! PFS is counted to the byte where the bytes are known.
//!
//! Each test runs real programs twice in directories of their own and compares output, exit code
//! and every file that they leave. A program that is not installed is left out with a message.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

use observed::{Progress, REGION_BYTES, Region};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

#[path = "../../forebay-wire/src/observed.rs"]
#[allow(dead_code, reason = "the tests use a part of it")]
mod observed;

fn library() -> PathBuf {
    let deps = std::env::current_exe().unwrap().with_file_name("libforebay_preload.so");
    assert!(deps.is_file(), "{} was not built", deps.display());
    deps
}

/// A directory that stands for the PFS, and a region as the agent makes it.
struct Rig {
    directory: tempfile::TempDir,
    region: &'static Region,
    path: PathBuf,
    is_preloaded: bool,
}

impl Rig {
    fn new(is_preloaded: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let pfs = directory.path().join("pfs");
        fs::create_dir(&pfs).unwrap();
        let path = directory.path().join("region");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(REGION_BYTES as u64).unwrap();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new shared mapping of a file of that size; it is never unmapped, and all fields
        // of a region are atomics.
        let region = unsafe {
            let fd = file.as_raw_fd();
            let mapped = libc::mmap(std::ptr::null_mut(), REGION_BYTES, protection, libc::MAP_SHARED, fd, 0);
            assert_ne!(mapped, libc::MAP_FAILED);
            &*mapped.cast::<Region>()
        };
        region.init();
        Rig { directory, region, path, is_preloaded }
    }

    fn pfs(&self) -> PathBuf {
        fs::canonicalize(self.directory.path()).unwrap().join("pfs")
    }

    fn run(&self, script: &str) -> Output {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(self.pfs()).env("LC_ALL", "C").env("TZ", "UTC");
        command.env("HOME", self.directory.path());
        if self.is_preloaded {
            command.env("LD_PRELOAD", library()).env("FOREBAY_OBSERVE", &self.path);
            command.env("FOREBAY_OBSERVE_ROOTS", self.pfs());
        }
        command.output().unwrap()
    }

    fn progress(&self) -> Progress {
        self.region.progress()
    }

    /// Every file below the PFS with its bytes.
    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut directories = vec![self.pfs()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    directories.push(path);
                } else {
                    files.insert(path.strip_prefix(self.pfs()).unwrap().to_owned(), fs::read(&path).unwrap());
                }
            }
        }
        files
    }
}

fn has(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(program).is_file()));
    if !found {
        println!("left out: {program} is not installed");
    }
    found
}

/// Runs `script` without and with the library, in a directory of the PFS. All must be the same,
/// and at least `least_bytes` counted.
fn same(script: &str, least_bytes: u64) -> (Rig, Output) {
    let (plain, preloaded) = (Rig::new(false), Rig::new(true));
    let expected = plain.run(script);
    let got = preloaded.run(script);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(expected.status.code(), Some(0), "{}", text(&expected.stderr));
    assert_eq!(got.status.code(), expected.status.code(), "{}", text(&got.stderr));
    assert_eq!(text(&got.stdout), text(&expected.stdout));
    assert_eq!(text(&got.stderr), text(&expected.stderr));
    let (expected, files) = (plain.files(), preloaded.files());
    assert_eq!(files.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, bytes) in &files {
        assert!(*bytes == expected[name], "{} differs", name.display());
    }
    assert_eq!(plain.progress(), Progress::default());
    let progress = preloaded.progress();
    assert!(progress.written_bytes >= least_bytes, "{progress:?}");
    assert_eq!(progress.in_progress, 0, "{progress:?}");
    (preloaded, got)
}

#[test]
fn copies_and_archives_are_counted_to_the_byte() {
    let script = "dd if=/dev/zero of=a bs=64k count=20 2>/dev/null && cp -p a b && tar cf t.tar --mtime=@0 \
                  --owner=0 --group=0 a b && mkdir x && tar xf t.tar -C x && cat a b > c && \
                  stat -c '%a %s' a b c x/a && cmp a x/a";
    let (rig, _) = same(script, 1);
    let size: u64 = rig.files().values().map(|bytes| bytes.len() as u64).sum();
    assert_eq!(rig.progress().written_bytes, size);
    assert!(rig.progress().read_bytes > 0);
}

#[test]
fn shells_and_text_tools() {
    let script = "for i in 1 2 3; do echo line $i; done > a; printf '%05d\\n' 7 >> a; sed s/line/row/ a > b; \
                  sort -r b | tee c; (cat a; exit 0) 2>&1 >> c; awk '{ print NR, $0 }' c > d; cat d; wc -c a b";
    let (rig, _) = same(script, 1);
    assert!(rig.progress().written_bytes >= rig.files().values().map(|b| b.len() as u64).sum());
}

#[test]
fn python_with_threads_forks_and_subprocesses() {
    if !has("python3") {
        return;
    }
    let script = r#"python3 - <<'END'
import os, signal, subprocess, threading
def write(name):
    with open(name, "wb") as file:
        for _ in range(100):
            file.write(b"x" * 10_000)
threads = [threading.Thread(target=write, args=(f"t{i}",)) for i in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
subprocess.run(["cp", "t0", "copy"], check=True, close_fds=True)
pid = os.fork()
if pid == 0:
    write("child")
    os._exit(5)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
with open("text", "w") as file:
    print("text", file=file)
signal.signal(signal.SIGALRM, lambda *_: write("signal"))
signal.setitimer(signal.ITIMER_REAL, 0.01); signal.pause()
print(sorted((e.name, e.stat().st_size) for e in os.scandir(".")))
END"#;
    let (rig, _) = same(script, 7_000_000);
    let size: u64 = rig.files().values().map(|bytes| bytes.len() as u64).sum();
    assert_eq!(rig.progress().written_bytes, size);
}

#[test]
fn a_database() {
    if !has("python3") {
        return;
    }
    let script = r#"python3 - <<'END'
import sqlite3
base = sqlite3.connect("base")
base.execute("create table t (a integer primary key, b text)")
base.executemany("insert into t values (?, ?)", ((i, "x" * (i % 100)) for i in range(5000)))
base.commit()
print(base.execute("select count(*), sum(length(b)) from t").fetchone(), base.execute("pragma integrity_check").fetchone())
END"#;
    let (rig, _) = same(script, 100_000);
    assert!(rig.progress().sync_calls > 0);
}

#[test]
fn a_compiler() {
    if !has("cc") {
        return;
    }
    let script = "printf '#include <stdio.h>\\nint main(void) { printf(\"%%d\\\\n\", 6 * 7); return 0; }\\n' > a.c && \
                  cc -O2 -c a.c -o a.o && cc a.o -o a && ./a && ar rcsD lib.a a.o";
    same(script, 1_000);
}

#[test]
fn git() {
    if !has("git") {
        return;
    }
    let script = "export GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000' \
                  GIT_CONFIG_NOSYSTEM=1 && git init -q -b main . && git config user.email a@b && \
                  git config user.name a && seq 5000 > f && git add f && git commit -qm one && \
                  seq 5001 >> f && git commit -qam two && git log --format='%H %s' && git fsck --strict 2>/dev/null && \
                  git gc -q && git status --short && rm -f .git/index .git/gc.pid";
    same(script, 10_000);
}

#[test]
fn a_java_machine() {
    if !has("java") || !has("javac") {
        return;
    }
    let script = r#"cat > A.java <<'END'
import java.nio.file.*; import java.util.stream.*;
class A { public static void main(String[] a) throws Exception {
  Files.write(Path.of("out"), new byte[3_000_000]);
  Files.copy(Path.of("out"), Path.of("copy"));
  try (var w = Files.newBufferedWriter(Path.of("text"))) { for (int i = 0; i < 10_000; i++) w.write("line " + i + "\n"); }
  System.out.println(IntStream.range(0, 1000).parallel().sum()); System.exit(0); } }
END
javac A.java && java -XX:-UsePerfData A"#;
    same(script, 3_000_000);
}

#[test]
fn ranks_of_mpi_in_python() {
    let import = Command::new("python3").args(["-c", "import mpi4py"]).output();
    if !has("mpirun") || !import.is_ok_and(|out| out.status.success()) {
        println!("left out: mpirun or mpi4py is not installed");
        return;
    }
    let script = r#"cat > /tmp/forebay-rank-$$.py <<'END'
from mpi4py import MPI
rank = MPI.COMM_WORLD.Get_rank()
file = MPI.File.Open(MPI.COMM_WORLD, "shared", MPI.MODE_CREATE | MPI.MODE_WRONLY)
file.Write_at_all(rank * 1_000_000, bytearray([rank]) * 1_000_000)
file.Close()
open(f"own{rank}", "wb").write(b"y" * 5_000)
END
mpirun --allow-run-as-root --oversubscribe -n 2 python3 /tmp/forebay-rank-$$.py; code=$?; rm /tmp/forebay-rank-$$.py; exit $code"#;
    same(script, 2_010_000);
}

#[test]
fn ranks_of_mpi_in_c() {
    let compiler = "printf '#include <mpi.h>\\n' | mpicc -E -x c - >/dev/null 2>&1";
    if !has("mpirun") || !Command::new("sh").args(["-c", compiler]).status().unwrap().success() {
        println!("left out: mpirun, mpicc or mpi.h is not installed");
        return;
    }
    let script = r#"cat > a.c <<'END'
#include <mpi.h>
#include <string.h>
static char block[1 << 20];
int main(int c, char **v) { int rank; MPI_File f; MPI_Init(&c, &v); MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  memset(block, rank, sizeof block);
  MPI_File_open(MPI_COMM_WORLD, "shared", MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &f);
  for (int i = 0; i < 4; i++) MPI_File_write_at(f, (MPI_Offset)(2 * i + rank) << 20, block, 1 << 20, MPI_BYTE, MPI_STATUS_IGNORE);
  MPI_File_close(&f); MPI_Finalize(); return 0; }
END
mpicc -o a a.c && mpirun --allow-run-as-root --oversubscribe -n 2 ./a && cksum shared"#;
    same(script, 8 << 20);
}

/// Threads, signal handlers, `fork`, `vfork`, `execve`, `dlopen`, cancelled threads, duplicated and
/// reused descriptors, errors, every kind of call: each byte is counted once.
#[test]
fn torture() {
    if !has("cc") {
        return;
    }
    let (plain, preloaded) = (Rig::new(false), Rig::new(true));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torture.c");
    for optimization in ["-O0", "-O2 -D_FORTIFY_SOURCE=2"] {
        let build = format!("cc -w {optimization} -pthread -o ../torture {} -ldl", source.display());
        let script = "../torture data";
        for rig in [&plain, &preloaded] {
            let mut compile = Command::new("sh");
            compile.args(["-c", &build]).current_dir(rig.pfs());
            assert!(compile.status().unwrap().success());
            let before = rig.progress();
            let out = rig.run(script);
            assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
            let written: u64 = String::from_utf8(out.stdout).unwrap().trim().parse().unwrap();
            let progress = rig.progress();
            let counted = progress.written_bytes - before.written_bytes;
            assert_eq!(counted, if rig.is_preloaded { written } else { 0 });
            assert_eq!(progress.in_progress, 0);
        }
    }
}

/// A thousand writes cost no more system calls than without the library; starting a program costs a
/// few.
#[test]
fn writes_cost_no_system_call() {
    if !has("strace") {
        return;
    }
    let calls = |is_preloaded| {
        let rig = Rig::new(is_preloaded);
        let out = rig.run("exec strace -o ../trace dd if=/dev/zero of=a bs=512 count=1000");
        if !out.status.success() {
            // A container may forbid it.
            println!("left out: strace cannot trace: {}", String::from_utf8_lossy(&out.stderr));
            return None;
        }
        assert_eq!(rig.progress().written_bytes, if is_preloaded { 512_000 } else { 0 });
        Some(fs::read_to_string(rig.directory.path().join("trace")).unwrap().lines().count())
    };
    if let (Some(plain), Some(preloaded)) = (calls(false), calls(true)) {
        assert!(plain >= 2_000, "{plain} system calls");
        assert!(preloaded < plain + 100, "{preloaded} system calls, {plain} without the library");
    }
}

/// A program that is statically linked is not seen, and runs as ever.
#[test]
fn static_programs_are_not_seen() {
    if !has("cc") {
        return;
    }
    let script = "printf '#include <unistd.h>\\nint main(void) { return write(1, \"abc\", 3) != 3; }\\n' > a.c && \
                  cc -static -o ../a a.c && ../a > out && cat out";
    let (rig, out) = same(script, 1);
    assert_eq!(out.stdout, b"abc");
    let seen = rig.progress();
    let again = rig.run("../a > out");
    assert!(again.status.success());
    assert_eq!(rig.progress().written_bytes, seen.written_bytes);
}

/// Variables that name nothing, too little or something else: the library does nothing.
#[test]
fn without_a_valid_region_nothing_happens() {
    let rig = Rig::new(true);
    let empty = rig.directory.path().join("empty");
    fs::write(&empty, [0; 100]).unwrap();
    let zero = rig.directory.path().join("zero");
    fs::write(&zero, vec![0; REGION_BYTES]).unwrap();
    for region in [Path::new("/nowhere"), Path::new("/dev/null"), &empty, &zero] {
        let out = rig.run(&format!("export FOREBAY_OBSERVE={}; echo x > a && cat a", region.display()));
        assert_eq!((out.status.code(), &*out.stdout), (Some(0), &b"x\n"[..]), "{}", region.display());
    }
    assert_eq!(fs::read(&zero).unwrap(), vec![0; REGION_BYTES]);
}
