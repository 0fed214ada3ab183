//! What the preloaded library takes from the program that it is in, and what the program does
//! without it: closes descriptors with bare system calls, uses up its memory, takes the library's
//! numbers.

use crate::common::{Agent, MIB, OTHER_UID, make_file, make_files, plain_pfs, text};
use crate::intercept::{Report, command, library, plain, report};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The programs of host.c, an agent, and its PFS.
struct Host {
    pfs: TempDir,
    agent: Agent,
    programs: TempDir,
}

impl Host {
    fn new() -> Self {
        let (pfs, programs) = (plain_pfs(), tempfile::tempdir().unwrap());
        let agent = Agent::on(pfs.path());
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults");
        let build = format!(
            "cc -w -O2 -o linked -DLINKED {0}/host.c {0}/bare.c && cc -w -O2 -shared -fPIC -o libbare.so {0}/bare.c && cc -w -O2 -Wl,-rpath,'$ORIGIN' -o host {0}/host.c",
            sources.display()
        );
        let built = plain(programs.path(), &build);
        assert!(built.status.success(), "{}", text(&built.stderr));
        Host { pfs, agent, programs }
    }

    fn program(&self, name: &str) -> PathBuf {
        self.programs.path().join(name)
    }

    /// Runs a program below the PFS; it must end as it does without the library.
    #[track_caller]
    fn same(&self, name: &str, arguments: &[&str]) -> Report {
        let program = self.program(name);
        let expected = Command::new(&program).args(arguments).current_dir(self.pfs.path()).output().unwrap();
        assert!(expected.status.success(), "{}", text(&expected.stderr));
        let all = [&[program.to_str().unwrap()], arguments].concat();
        let out = command(&self.agent, self.pfs.path(), &all).output().unwrap();
        assert!(out.status.success(), "{name} {arguments:?}: {:?} {}", out.status, text(&out.stderr));
        assert_eq!(text(&out.stdout), text(&expected.stdout), "{name} {arguments:?}");
        report(&out)
    }
}

#[test]
fn a_number_that_is_closed_and_given_again_unseen_is_read_as_the_new_file() {
    let host = Host::new();
    let names: Vec<String> = (0..60).map(|i| format!("file-{i:03}")).collect();
    for name in &names {
        std::fs::write(host.pfs.path().join(name), name.repeat(300)).unwrap();
    }
    crate::common::grow_old(&host.pfs.path().join(&names[59]));
    let loaded = host.agent.cli(&["load", host.pfs.path().to_str().unwrap()]);
    assert!(loaded.status.success(), "{}", text(&loaded.stderr));
    // Bare calls in the program, in a library that it loads later, and through the C library.
    for (program, how) in [
        ("linked", "closed"),
        ("linked", "replaced"),
        ("host", "loaded"),
        ("host", "closed"),
        ("host", "replaced"),
    ] {
        let arguments: Vec<&str> =
            ["reuse", how].into_iter().chain(names.iter().map(String::as_str)).collect();
        let report = host.same(program, &arguments);
        assert!(report.files >= 60 && report.hits >= 120, "{program} {how}: {report:?}");
    }
}

#[test]
fn a_list_that_cannot_be_read_is_the_programs_error() {
    let host = Host::new();
    make_file(&host.pfs.path().join("data"), 1, MIB);
    let report = host.same("host", &["lists", "data"]);
    assert!(report.hits + report.reads > 3, "{report:?}");
}

#[test]
fn a_program_gets_the_numbers_that_the_library_uses() {
    let host = Host::new();
    make_file(&host.pfs.path().join("data"), 1, MIB);
    let all = [host.program("host").to_str().unwrap(), "numbers", "data"].map(str::to_owned);
    let all = all.each_ref().map(String::as_str);
    let out = command(&host.agent, host.pfs.path(), &all).output().unwrap();
    assert!(text(&out.stdout) == "right\n", "{:?} {}", out.status, text(&out.stderr));
    assert!(report(&out).reads > 0, "{}", text(&out.stderr));
}

#[test]
fn a_program_that_has_used_up_its_address_space_goes_on() {
    let host = Host::new();
    let names: Vec<String> = (0..30).map(|i| format!("file-{i:03}")).collect();
    let paths = make_files(30, 100_000, |i| host.pfs.path().join(&names[i as usize]));
    make_file(&paths[7], 7, 4 * MIB);
    for before in ["0", "1", "5"] {
        let arguments: Vec<&str> =
            ["full", before].into_iter().chain(names.iter().map(String::as_str)).collect();
        host.same("host", &arguments);
    }
}

#[test]
fn a_program_that_forbids_itself_system_calls_is_not_killed_for_those_of_the_library() {
    let host = Host::new();
    make_file(&host.pfs.path().join("data"), 1, MIB);
    let report = host.same("host", &["forbidden", "data"]);
    assert_eq!(report.reads, 1, "{report:?}");
}

/// Where the file system reports what is cached.
#[test]
fn a_program_that_opens_many_cached_files_does_not_ask_for_each() {
    let pfs = tempfile::tempdir().unwrap();
    let agent = Agent::on(pfs.path());
    make_files(200, 3_000, |i| pfs.path().join(format!("f{i}")));
    let script = r#"
import os
def is_cached(fd):
    try: return os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    except OSError: return False
cached = 0
for i in range(200):
    fd = os.open(f"f{i}", os.O_RDONLY)
    assert len(os.read(fd, 5000)) == 3000
    cached += is_cached(fd)
    os.close(fd)
print(cached)
"#;
    let out = command(&agent, pfs.path(), &["python3", "-c", script]).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let cached: u64 = text(&out.stdout).trim().parse().unwrap();
    if cached < 200 {
        println!("left out: the file system does not report what is cached, or memory is short");
        return;
    }
    let report = report(&out);
    assert_eq!((report.files, report.left), (64, 136), "{report:?}");
}

/// A user has 128 instances for all programs.
#[test]
fn a_program_that_reads_through_the_tier_has_no_inotify_instance() {
    let host = Host::new();
    make_file(&host.pfs.path().join("data"), 1, 4 * MIB);
    let report = host.same("host", &["instances", "data"]);
    assert!(report.reads >= 12, "{report:?}");
}

/// This test program as a program of another user: with its owner's rights, and without them.
#[test]
fn a_set_user_id_program_ignores_its_callers_environment() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    for (mode, is_heeded) in [(0o755, true), (0o4755, false)] {
        std::fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
        let out = Command::new(&program)
            .args(["--ignored", "--exact", "helper_process", "--nocapture"])
            .env("FOREBAY_TEST_ROLE", "socket")
            .env("FOREBAY_TEST_ARGS", "")
            .env("FOREBAY_SOCKET", "/nowhere/of-the-caller.sock")
            .uid(OTHER_UID)
            .gid(OTHER_UID)
            .output()
            .unwrap();
        let said = text(&out.stdout);
        assert!(said.contains("@/"), "{said}{}", text(&out.stderr));
        assert_eq!(said.contains("of-the-caller"), is_heeded, "{mode:o}: {said}");
    }
}

/// The messages of `forebay run` and of the library.
fn said(host: &Host, options: &[&str], program: &[&str]) -> String {
    let arguments = [&["run"], options, &["--"], program].concat();
    let mut command = host.agent.command(&arguments);
    let out = command.env("FOREBAY_PRELOAD", library()).current_dir(host.pfs.path()).output().unwrap();
    assert!(out.status.success(), "{arguments:?}: {}", text(&out.stderr));
    text(&out.stderr)
}

#[test]
fn a_program_that_is_served_nothing_says_why_once() {
    let host = Host::new();
    for name in ["a", "b"] {
        std::fs::write(host.pfs.path().join(name), "line\n").unwrap();
        crate::common::grow_old(&host.pfs.path().join(name));
    }
    let once = |options: &[&str], program: &[&str], reason: &str| {
        let words = said(&host, options, program);
        let of_us: Vec<_> = words.lines().filter(|line| line.starts_with("forebay")).collect();
        assert!(of_us.len() == 1 && of_us[0].contains(reason), "{program:?}: {words}");
    };
    let nothing = |options: &[&str], program: &[&str]| {
        let words = said(&host, options, program);
        assert!(!words.contains("forebay"), "{program:?}: {words}");
    };
    once(&[], &["sort", "a"], "sort: nothing was read from the tier");
    once(&[], &["sort", "a"], "through C's stdio");
    once(&[], &["sh", "-c", "sort a; sort b; (sort a & sort b; wait)"], "a: opened but not read");
    // Not where the user does not want it, where something was served, or into what others read.
    nothing(&["--quiet"], &["sort", "a"]);
    nothing(&[], &["cat", "a"]);
    nothing(&[], &["sh", "-c", "sort a 2>&1 | grep -v forebay"]);
    // A program ends as it would without the line where nobody reads its standard error.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut unread = host.agent.command(&["run", "--", "sort", "a"]);
    unread.env("FOREBAY_PRELOAD", library()).current_dir(host.pfs.path()).stderr(writer);
    let ended = unread.output().unwrap();
    assert!(ended.status.success() && text(&ended.stdout) == "line\n", "{ended:?}");
    nothing(&[], &["sh", "-c", "test \"$(sort a 2>&1)\" = line"]);
    nothing(&[], &["sort", "/etc/passwd"]);
    nothing(&[], &["ls", "."]);
    let script = |body: &str| format!("import os\n{body}");
    let both = script("os.read(os.open('a', os.O_RDWR), 9)");
    once(&[], &["python3", "-c", &both], "opened for reading and writing");
    let other = script("w = os.open('a', os.O_WRONLY); os.read(os.open('a', os.O_RDONLY), 9)");
    once(&[], &["python3", "-c", &other], "also open for writing in this program");
    let mapped =
        script("import mmap; print(mmap.mmap(os.open('b', os.O_RDONLY), 0, prot=mmap.PROT_READ)[:4])");
    // It is mapped from the tier.
    nothing(&[], &["python3", "-c", &mapped]);
    // A child has read it.
    let handed = script("import subprocess; f = open('b'); subprocess.run(['cat'], stdin=f, stdout=2)");
    nothing(&[], &["python3", "-c", &handed]);
    let built =
        plain(host.programs.path(), "echo 'int main(void) { return 0; }' | cc -static -o alone -x c -");
    if built.status.success() {
        let alone = host.program("alone");
        once(&[], &[alone.to_str().unwrap()], "is statically linked and does not load the library");
        nothing(&["--quiet"], &[alone.to_str().unwrap()]);
    }
}

/// The library compiled with all optimizations takes less: `make bench-intercept` prints it.
#[test]
fn a_read_takes_little_of_the_programs_stack() {
    const CACHED_BYTES: &str = "6000";
    const FIRST_BYTES: &str = "16000";
    let host = Host::new();
    let data = host.pfs.path().join("data");
    make_file(&data, 1, MIB);
    assert!(host.agent.cli(&["load", data.to_str().unwrap()]).status.success());
    let program = host.program("host");
    let all = [program.to_str().unwrap(), "stack", "data", CACHED_BYTES, FIRST_BYTES];
    let out = command(&host.agent, host.pfs.path(), &all).output().unwrap();
    println!("{}", text(&out.stderr));
    assert!(out.status.success(), "{:?}", out.status);
}
