//! The C library as a C programmer uses it: compiled against the header with `cc`, linked both
//! ways, run with a real agent and without one.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

mod kit;

use kit::{Node, wait_or};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate is two levels down")
}

/// Where cargo has put `libforebay.a` and `libforebay.so` of this build: next to this test.
fn libraries() -> PathBuf {
    let dir = std::env::current_exe().expect("this test").parent().expect("its directory").to_owned();
    for name in ["libforebay.a", "libforebay.so"] {
        assert!(dir.join(name).exists(), "no {name} in {}", dir.display());
    }
    dir
}

#[derive(Clone, Copy, Debug)]
enum Linked {
    Shared,
    Static,
}

/// Compiles `source` (relative to the workspace) and returns the program.
fn compile(source: &str, linked: Linked, dir: &Path) -> PathBuf {
    let stem = Path::new(source).file_stem().expect("a file name").to_string_lossy();
    let program = dir.join(format!("{stem}-{linked:?}"));
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"]);
    cc.arg(workspace().join("crates/forebay-capi/include")).arg(workspace().join(source));
    match linked {
        Linked::Shared => {
            // The name the loader will look for; `make install` makes the same link.
            let link = dir.join("libforebay.so.0");
            if !link.exists() {
                std::os::unix::fs::symlink(libraries().join("libforebay.so"), &link).expect("a link");
            }
            cc.arg(&link).arg(format!("-Wl,-rpath,{}", dir.display()));
        }
        // What `rustc --print native-static-libs` names; also in the pkg-config file.
        Linked::Static => {
            cc.arg(libraries().join("libforebay.a")).args([
                "-lgcc_s",
                "-lutil",
                "-lrt",
                "-lpthread",
                "-lm",
                "-ldl",
            ]);
        }
    }
    let out = cc.arg("-o").arg(&program).output().expect("a C compiler (package build-essential)");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    program
}

fn run(command: &mut Command, socket: &Path) -> Output {
    command.env("FOREBAY_SOCKET", socket).env_remove("FOREBAY_JOB").env_remove("FOREBAY_QUIET");
    command.output().expect("the program runs")
}

fn success(out: &Output) -> String {
    assert!(out.status.success(), "{}: {}{}", out.status, kit::text(&out.stdout), kit::text(&out.stderr));
    kit::text(&out.stdout)
}

/// Text whose words cross pages, mappings and buffers.
fn text(bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 20);
    let mut number = 1u64;
    while text.len() < bytes {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        text += &format!("{:x}{}", number >> 20, if number >> 60 == 0 { "\n" } else { " " });
    }
    text.truncate(bytes);
    text
}

#[test]
fn wordcount_counts_the_same_with_an_agent_and_without_one() {
    let node = Node::start(&["--capacity", "64MiB", "--page-size", "64KiB"]);
    let contents = [text(5_000_001), text(1), String::new()];
    let expected = {
        let sum = |of: &dyn Fn(&String) -> usize| contents.iter().map(of).sum::<usize>();
        let lines = sum(&|t| t.matches('\n').count());
        let words = sum(&|t| t.split_ascii_whitespace().count());
        format!("{lines} {words} {}\n", sum(&|t| t.len()))
    };
    let paths: Vec<_> = (0..contents.len()).map(|n| node.pfs().join(format!("text {n}"))).collect();
    for (path, text) in paths.iter().zip(&contents) {
        std::fs::write(path, text).unwrap();
    }
    for linked in [Linked::Shared, Linked::Static] {
        let program = compile("examples/c/wordcount.c", linked, node.dir());
        let without = run(Command::new(&program).args(&paths), Path::new("none"));
        assert_eq!(success(&without), expected, "{linked:?} without an agent");
        assert!(String::from_utf8_lossy(&without.stderr).contains(" 0 bytes of them without a copy"));
        let with = run(Command::new(&program).arg("--load").args(["-n", "2"]).args(&paths), &node.socket());
        assert_eq!(success(&with), expected, "{linked:?} with an agent");
        let said = String::from_utf8_lossy(&with.stderr).into_owned();
        assert!(said.contains(" 5000002 bytes of them without a copy"), "nothing came from the tier: {said}");
    }
}

#[test]
fn every_function_keeps_the_promises_of_the_header() {
    let node = Node::start(&["--capacity", "64MiB", "--page-size", "64KiB"]);
    for linked in [Linked::Shared, Linked::Static] {
        let program = compile("crates/forebay-capi/tests/api.c", linked, node.dir());
        let out = run(Command::new(program).arg(node.pfs()), &node.socket());
        assert_eq!(success(&out), "all checks passed\n", "{linked:?}");
    }
    // A file of write-back that was removed immediately: its pass finds that nobody has it.
    success(&node.forebay(&["sync", "--quiet"]).output().unwrap());
}

#[test]
fn without_an_agent_files_work_and_the_rest_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("crates/forebay-capi/tests/api.c", Linked::Shared, dir.path());
    for socket in [Path::new("none"), &dir.path().join("nobody-listens-here")] {
        let out = run(Command::new(&program).arg("--no-agent").arg(dir.path()), socket);
        assert_eq!(success(&out), "all checks passed\n", "socket {}", socket.display());
    }
}

#[test]
fn nothing_leaks_and_no_foreign_byte_is_touched() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("skipped: no valgrind here");
        return;
    }
    let node = Node::start(&["--capacity", "64MiB", "--page-size", "64KiB"]);
    let program = compile("crates/forebay-capi/tests/api.c", Linked::Shared, node.dir());
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--error-exitcode=99", "--leak-check=full", "--show-leak-kinds=definite"]);
    let out =
        run(command.arg("--errors-for-leak-kinds=definite").arg(program).arg(node.pfs()), &node.socket());
    assert_eq!(success(&out), "all checks passed\n");
}

/// Compiles the MPI example, if this machine has MPI.
fn compile_mpi(dir: &Path) -> Option<PathBuf> {
    let has = |program| Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success());
    if !has("mpicc") || !has("mpirun") {
        eprintln!("left out: no mpicc or mpirun here (packages libopenmpi-dev, openmpi-bin)");
        return None;
    }
    let program = dir.join("writer-mpi");
    let link = dir.join("libforebay.so.0");
    std::os::unix::fs::symlink(libraries().join("libforebay.so"), &link).expect("a link");
    let mut cc = Command::new("mpicc");
    cc.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-I"]);
    cc.arg(workspace().join("crates/forebay-capi/include")).arg(workspace().join("examples/mpi/writer.c"));
    cc.arg(&link).arg(format!("-Wl,-rpath,{}", dir.display())).arg("-o").arg(&program);
    let out = cc.output().expect("mpicc");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Some(program)
}

/// One rank reports for the job: its phases are on the board while it lives, and its speed is
/// learned from them.
#[test]
fn an_mpi_program_reports_its_phases_by_one_rank() {
    let node = Node::start(&[]);
    let Some(program) = compile_mpi(node.dir()) else { return };
    let mut mpirun = Command::new("mpirun");
    mpirun.args(["--allow-run-as-root", "--oversubscribe", "-n", "2"]).arg(&program);
    mpirun.arg(node.pfs().join("checkpoint")).arg("3").env("FOREBAY_SOCKET", node.socket());
    let out = mpirun.output().expect("mpirun");
    let errors = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{errors}\n{}", node.last_log());
    assert!(String::from_utf8_lossy(&out.stdout).contains("3 phases written"), "{errors}");
    assert!(!errors.contains("no I/O phases are reported"), "{errors}");
    // The coordinator learns of the last end a little later, and the agent of the program's.
    let is_over = || {
        let phases = node.client().plans(100).expect("the plan log").phases;
        let ended = phases.iter().filter(|phase| phase.observed_ms.is_some()).count();
        ended == 3 && node.client().hpc_jobs().expect("jobs").is_empty()
    };
    wait_or("three phases are over", is_over, || format!("{:?}", node.client().plans(100)));
    let phases = node.client().plans(100).expect("the plan log").phases;
    assert!(phases.iter().all(|phase| phase.name == "mpi-writer" && phase.bytes == 8 << 20), "{phases:?}");
    assert!(phases[0].alone_ms.is_none() && phases[2].alone_ms.is_some(), "the first teaches: {phases:?}");
}
