//! `forebay run` is the program: signals, children, pipes and the exit status are those of a
//! program that was started without it.

use crate::common::{Agent, FOREBAY, PATIENCE, Program, content, pfs_and_agent, state, text, wait_for};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// What is run before the program: nothing, and each way in which `forebay run` starts it.
const WAYS: [&[&str]; 5] =
    [&[], &["--"], &["--job", "j", "--"], &["--report", "--"], &["--report", "--job", "j", "--"]];

fn program(agent: &Agent, way: &[&str], program: &[&str]) -> Command {
    let run: &[&str] = if way.is_empty() { &[] } else { &[FOREBAY, "run"] };
    let words = [run, way, program].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env("FOREBAY_SOCKET", agent.socket());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn python(agent: &Agent, way: &[&str], script: &str) -> Command {
    program(agent, way, &["python3", "-u", "-c", script])
}

const HANDLES: &str = r#"
import signal, time
for number in SIGNALS:
    signal.signal(number, lambda number, frame: print("got", number))
print("ready")
while True: time.sleep(0.01)
"#;

#[test]
fn every_signal_that_forebay_run_is_sent_reaches_the_program() {
    let (_pfs, agent) = pfs_and_agent();
    let real_time = [libc::SIGRTMIN(), libc::SIGRTMIN() + 5, libc::SIGRTMAX()];
    let is_caught = |signal: &i32| ![libc::SIGKILL, libc::SIGSTOP, libc::SIGCHLD].contains(signal);
    let signals: Vec<_> = (1..32).filter(is_caught).chain(real_time).collect();
    for way in WAYS {
        let script = HANDLES.replace("SIGNALS", &format!("{signals:?}"));
        let mut started = Program::new(python(&agent, way, &script));
        assert_eq!(started.line(), "ready");
        for signal in &signals {
            started.process.send(*signal);
            assert_eq!(started.line(), format!("got {signal}"), "{way:?}");
        }
        started.process.send(libc::SIGKILL);
        started.process.wait();
    }
}

#[test]
fn who_waits_for_forebay_run_sees_how_the_program_has_ended() {
    let (_pfs, agent) = pfs_and_agent();
    for way in WAYS {
        for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGINT, libc::SIGSEGV, libc::SIGALRM] {
            let script = format!(
                "import os, signal; signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), {signal})"
            );
            let status = Program::new(python(&agent, way, &script)).process.wait();
            assert_eq!(status.signal(), Some(signal), "{way:?}: {status}");
        }
        assert_eq!(
            Program::new(python(&agent, way, "raise SystemExit(200)")).process.wait().code(),
            Some(200)
        );
        if !way.is_empty() {
            for (program, code) in [("/nowhere/program", 127), ("no-such-program", 127), ("/etc/passwd", 126)]
            {
                let mut run = agent.command(&["run"]);
                let out = run.args(way).arg(program).output().unwrap();
                assert_eq!(out.status.code(), Some(code), "{way:?} {}", text(&out.stderr));
                assert!(text(&out.stderr).contains(program), "{}", text(&out.stderr));
            }
        }
    }
}

#[test]
fn a_program_runs_without_an_agent_and_one_line_says_so() {
    for way in [&["--"][..], &["--report", "--"], &["--job", "j", "--"], &["--quiet", "--"]] {
        let mut command = Command::new(FOREBAY);
        command.arg("run").args(way).args([
            "sh",
            "-c",
            "echo ran; echo ${FOREBAY_INTERCEPT_ROOTS-unset}; exit 3",
        ]);
        let out = command.env("FOREBAY_SOCKET", "/nowhere/agent.sock").output().unwrap();
        assert_eq!((out.status.code(), &*text(&out.stdout)), (Some(3), "ran\nunset\n"), "{way:?}");
        let said = text(&out.stderr);
        match way[0] {
            "--quiet" => assert_eq!(said, ""),
            _ => {
                assert_eq!(said.lines().count(), 1, "{said}");
                assert!(said.contains("no agent at /nowhere/agent.sock"), "{said}");
                assert!(said.contains("runs without Forebay"), "{said}");
            }
        }
    }
}

#[test]
fn a_program_under_forebay_run_stops_continues_and_dies_with_it() {
    let (_pfs, agent) = pfs_and_agent();
    let script = "import os, time\nprint(os.getpid())\nwhile True: time.sleep(0.01)";
    for way in WAYS {
        let mut command = python(&agent, way, script);
        // In a group with a parent outside of it: where there is none, SIGTSTP does nothing.
        command.process_group(0);
        let mut started = Program::new(command);
        let (run, program) = (started.process.pid(), started.line().parse().unwrap());
        assert_eq!(run == program, !way.contains(&"--report"), "{way:?}");
        started.process.send(libc::SIGTSTP);
        wait_for("both have stopped", || state(run) == 'T' && state(program) == 'T');
        started.process.send(libc::SIGCONT);
        wait_for("both go on", || state(run) != 'T' && state(program) != 'T');
        started.process.send(libc::SIGKILL);
        assert_eq!(started.process.wait().signal(), Some(libc::SIGKILL));
        wait_for("the program is gone", || [' ', 'Z'].contains(&state(program)));
    }
}

const LOOKS: &str = r#"
import os, signal
try:
    print("a child:", os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("no child")
print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
lines = open("/proc/self/status").read().split("\n")
print([line for line in lines if line.startswith("SigIgn")])
print(sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + fd)))
"#;

#[test]
fn a_program_begins_with_the_children_masks_and_descriptors_of_a_plain_start() {
    let (_pfs, agent) = pfs_and_agent();
    let looks = |way: &[&str], words: &[&str]| {
        let mut command = program(&agent, way, words);
        let change = || {
            // SAFETY: async-signal-safe calls and valid pointers.
            unsafe {
                let mut mask: libc::sigset_t = std::mem::zeroed();
                libc::sigaddset(&mut mask, libc::SIGUSR2);
                libc::sigprocmask(libc::SIG_SETMASK, &mask, std::ptr::null_mut());
                for signal in [libc::SIGPIPE, libc::SIGHUP, libc::SIGINT] {
                    libc::signal(signal, libc::SIG_IGN);
                }
            }
            Ok(())
        };
        // SAFETY: it neither allocates nor takes a lock.
        unsafe { command.pre_exec(change) };
        let out = command.output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        text(&out.stdout)
    };
    // Python ignores SIGPIPE by itself. The process that runs the tests may ignore others.
    let ignored = |shown: &str| u64::from_str_radix(shown.trim().rsplit('\t').next().unwrap(), 16).unwrap();
    let shell = ["sh", "-c", "grep SigIgn /proc/$$/status"];
    let plain = looks(&[], &shell);
    assert_eq!(ignored(&plain) & 0x1003, 0x1003, "{plain}");
    for way in &WAYS[1..] {
        assert_eq!(looks(way, &shell), plain, "{way:?}");
    }
    let python = ["python3", "-c", LOOKS];
    let plain = looks(&[], &python);
    assert!(plain.contains("no child") && plain.contains("SIGUSR2"), "{plain}");
    for way in &WAYS[1..] {
        assert_eq!(looks(way, &python), plain, "{way:?}");
    }
}

#[test]
fn the_reader_of_a_pipe_sees_its_end_when_the_program_closes_it() {
    let (_pfs, agent) = pfs_and_agent();
    let script = "import os, time\nprint(os.getpid())\nos.close(1)\nwhile True: time.sleep(0.01)";
    for way in WAYS {
        let mut started = Program::new(python(&agent, way, script));
        let program: i32 = started.line().parse().unwrap();
        // The test's own limit: a copy of the pipe that stays open ends with the program.
        let limit = std::thread::spawn(move || {
            let until = Instant::now() + PATIENCE;
            while Instant::now() < until && state(program.cast_unsigned()) != ' ' {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            // SAFETY: a call without pointers.
            unsafe { libc::kill(program, libc::SIGKILL) };
        });
        started.rest();
        assert!(started.process.0.try_wait().unwrap().is_none(), "{way:?}: the pipe ended with the program");
        started.process.send(libc::SIGTERM);
        assert_eq!(started.process.wait().signal(), Some(libc::SIGTERM));
        limit.join().unwrap();
    }
}

#[test]
fn a_job_lasts_as_long_as_its_program_and_no_longer() {
    let (pfs, agent) = pfs_and_agent();
    std::fs::write(pfs.path().join("f"), b"bytes").unwrap();
    let script = r#"
import os, subprocess, sys, time
forebay, path = sys.argv[1:]
subprocess.run([forebay, "cp", "--write", "memory", path, path + ".scratch"], stdout=-3, check=True)
# Not even a daemon that outlives the program keeps the job.
daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True, stdin=-3, stdout=-3, stderr=-3)
print(daemon.pid)
sys.stdin.read()
print(len(subprocess.run([forebay, "cat", path + ".scratch"], stdout=-1, check=True).stdout))
"#;
    for way in &WAYS[1..] {
        let mut command = python(&agent, way, script);
        command.arg(FOREBAY).arg(pfs.path().join("f")).stdin(Stdio::piped());
        let mut started = Program::new(command);
        let daemon = started.line().parse().unwrap();
        assert_eq!(agent.status().scratch_files, 1, "{way:?}");
        let job = agent.cli(&["jobs"]);
        assert_eq!(way.contains(&"--job"), text(&job.stdout).contains(" j "), "{}", text(&job.stdout));
        started.end_input();
        assert_eq!(started.line(), "5", "{way:?}");
        assert_eq!(started.process.wait().code(), Some(0));
        wait_for("the job's files are gone", || agent.status().scratch_files == 0);
        assert!(state(daemon) != ' ', "the daemon has ended too");
        crate::common::send_signal(daemon, libc::SIGKILL);
        wait_for("the job is gone", || !text(&agent.cli(&["jobs"]).stdout).contains(" j "));
    }
}

/// Links the program of this build and its library into a directory.
fn install(directory: &Path) -> std::path::PathBuf {
    std::fs::create_dir_all(directory).unwrap();
    let library = crate::intercept::library();
    std::fs::copy(library, directory.join("libforebay_preload.so")).unwrap();
    let program = directory.join("forebay");
    std::fs::copy(FOREBAY, &program).unwrap();
    program
}

#[test]
fn roots_and_the_library_may_have_any_name_and_the_pfs_a_second_place() {
    let dir = crate::common::open_dir_in("/dev/shm");
    let programs = ["plain", "my tools", "tools:v1", "$LIB"].map(|name| install(&dir.path().join(name)));
    for name in ["plain", "my data", "gvfs:host", "year=2024", r"back\slash", "slash/"] {
        let (root, second) = (dir.path().join("pfs").join(name), dir.path().join("second"));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::create_dir_all(&second).unwrap();
        crate::common::make_file(&root.join("f"), 1, 100_000);
        let mut up = Command::new(FOREBAY);
        let state = dir.path().join("state");
        up.args(["up", "--foreground", "--capacity", "64MiB", "--backing", "directory"]);
        let config = dir.path().join("config.toml");
        let tier = dir.path().join("tier");
        std::fs::write(&config, format!("[tier]\ndirectory = {tier:?}\n")).unwrap();
        up.arg("--config").arg(config).arg("--state-dir").arg(&state).arg("--pfs").arg(&root);
        let mut up = up.env("FOREBAY_SOCKET", "").stderr(Stdio::null()).spawn().unwrap();
        let socket = state.join("agent.sock");
        wait_for("the agent serves", || {
            let status = Command::new(FOREBAY).arg("status").env("FOREBAY_SOCKET", &socket).output().unwrap();
            status.status.success() && !text(&status.stdout).contains("being measured")
        });
        for program in &programs {
            // A mount namespace of its own, which takes the second place along.
            let script = "mount --bind \"$1\" \"$2\" && exec \"$3\" run --report -- \
                sh -c 'cat \"$1/f\" \"$2/f\" | md5sum' sh \"$1\" \"$2\"";
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", script, "sh"]).arg(&root).arg(&second).arg(program);
            let out = command.env("FOREBAY_SOCKET", &socket).env_remove("FOREBAY_PRELOAD").output().unwrap();
            let said = text(&out.stderr);
            assert!(
                out.status.success() && said.contains(" 2 files opened through the tier, 0 left"),
                "{name}: {said}"
            );
            assert!(!said.contains("ld.so"), "{said}");
            let twice = [content(1, 0, 100_000), content(1, 0, 100_000)].concat();
            std::fs::write(dir.path().join("twice"), twice).unwrap();
            let sum =
                Command::new("md5sum").stdin(std::fs::File::open(dir.path().join("twice")).unwrap()).output();
            assert_eq!(text(&out.stdout), text(&sum.unwrap().stdout), "{name}");
        }
        up.kill().unwrap();
        up.wait().unwrap();
        std::fs::remove_dir_all(&state).unwrap();
    }
}

#[test]
fn programs_with_sanitizers_run() {
    let (pfs, agent) = pfs_and_agent();
    crate::common::make_file(&pfs.path().join("f"), 1, 100_000);
    let source = pfs.path().join("sum.c");
    std::fs::write(&source, SUM).unwrap();
    for kind in ["address", "thread", "undefined"] {
        let program = pfs.path().join(kind);
        let mut gcc = Command::new("gcc");
        gcc.arg(format!("-fsanitize={kind}")).arg(&source).arg("-o").arg(&program);
        if !gcc.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
            println!("left out: gcc has no {kind} sanitizer");
            continue;
        }
        let plain = Command::new(&program).arg(pfs.path().join("f")).output().unwrap();
        assert!(plain.status.success(), "{}", text(&plain.stderr));
        let mut run = agent.command(&["run", "--"]);
        run.env("FOREBAY_PRELOAD", crate::intercept::library()).arg(&program).arg(pfs.path().join("f"));
        let out = run.output().unwrap();
        assert!(out.status.success(), "{kind}: {}", text(&out.stderr));
        assert_eq!((text(&out.stdout), text(&out.stderr)), (text(&plain.stdout), String::new()), "{kind}");
    }
}

const SUM: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int c, char **v) {
    char *buffer = malloc(4096);
    int fd = open(v[1], O_RDONLY);
    long n, all = 0;
    unsigned sum = 0;
    while ((n = read(fd, buffer, 4096)) > 0)
        for (long i = 0; i < n; i++, all++) sum = sum * 31 + (unsigned char)buffer[i];
    printf("%ld bytes, %x\n", all, sum);
    free(buffer);
    return 0;
}
"#;
