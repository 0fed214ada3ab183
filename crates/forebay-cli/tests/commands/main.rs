//! Every command block of the README and the guides is run by the real program, or says why it is
//! not.
//!
//! A page is a session: its blocks run in order, in one shell, on a machine of their own
//! (`sandbox.sh`), as a reader would type them. The notation in the pages is described in
//! CONTRIBUTING.md. It needs root, namespaces, `/dev/fuse` and iproute2; without them only the
//! notation is checked, unless `FOREBAY_REQUIRE_LAB` asks for any lab.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

mod page;

use page::{Command, Step, matches};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay");

/// Far beyond what any page takes, since a busy machine must not fail it.
const PAGE_DEADLINE: Duration = Duration::from_secs(300);

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate is two levels down")
}

fn pages() -> Vec<(String, Vec<Step>)> {
    let mut paths = vec![workspace().join("README.md"), workspace().join("CONTRIBUTING.md")];
    let mut dirs = vec![workspace().join("docs")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                paths.push(path);
            }
        }
    }
    paths.sort();
    let steps = |path: &PathBuf| {
        let name = path.strip_prefix(workspace()).unwrap().display().to_string();
        let steps = page::steps(&std::fs::read_to_string(path).unwrap());
        (name.clone(), steps.unwrap_or_else(|why| panic!("{name}:{why}")))
    };
    paths.iter().map(steps).collect()
}

/// Past libtest, which keeps what a passing test prints.
fn say(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

#[test]
fn every_command_block_runs_and_prints_what_the_page_shows_or_says_why_not() {
    let pages = pages();
    let sandbox = sandbox_possible();
    if let Err(why) = &sandbox {
        assert!(!required(), "{why}");
    }
    let (mut run, mut excused) = (0, 0);
    for (name, steps) in &pages {
        for step in steps {
            match step {
                Step::Block { commands, .. } if commands.is_empty() => {
                    panic!("{name}: a block without a command")
                }
                Step::Block { .. } => run += 1,
                Step::Excused { line, why } => {
                    excused += 1;
                    say(&format!("not run: {name}:{line}: {why}"));
                }
                Step::Hidden(_) | Step::Needs(_) => {}
            }
        }
    }
    say(&format!("{} command blocks: {run} run, {excused} excused", run + excused));
    assert!(run >= 20, "only {run} blocks are run: were they found?");
    if let Err(why) = sandbox {
        say(&format!("left out, the blocks are only counted: {why}"));
        return;
    }
    let wrong = std::thread::scope(|scope| {
        let sessions: Vec<_> = pages
            .iter()
            .filter(|(_, steps)| steps.iter().any(|step| matches!(step, Step::Block { .. })))
            .filter(|(name, steps)| has_its_programs(name, steps))
            .map(|(name, steps)| scope.spawn(move || session(name, steps)))
            .collect();
        sessions.into_iter().filter_map(|s| s.join().unwrap().err()).collect::<Vec<_>>()
    });
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n\n"));
}

/// Whether a machine that cannot run everything is an error.
fn required() -> bool {
    std::env::var_os("FOREBAY_REQUIRE_LAB").is_some_and(|r| !r.is_empty())
}

fn has_its_programs(name: &str, steps: &[Step]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |program: &String| std::env::split_paths(&path).any(|dir| dir.join(program).exists());
    let needed =
        steps.iter().filter_map(|step| if let Step::Needs(programs) = step { Some(programs) } else { None });
    let missing: Vec<_> = needed.flatten().filter(|program| !there(program)).collect();
    assert!(missing.is_empty() || !required(), "{name} needs {missing:?}");
    if !missing.is_empty() {
        say(&format!("left out: {name} needs {missing:?}"));
    }
    missing.is_empty()
}

fn sandbox_possible() -> Result<(), String> {
    if std::env::var("FOREBAY_SKIP_FUSE").is_ok_and(|v| v == "1") || !Path::new("/dev/fuse").exists() {
        return Err("no /dev/fuse, or FOREBAY_SKIP_FUSE=1".to_owned());
    }
    let probe = unshare().args(["ip", "link", "set", "lo", "up"]).output().map_err(|e| e.to_string())?;
    if probe.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&probe.stderr).into_owned()) }
}

/// Namespaces of its own for a child; `--kill-child` ends whatever a page has left running.
fn unshare() -> std::process::Command {
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]);
    command
}

/// Runs a page from top to bottom; the error names the first command that goes wrong.
fn session(name: &str, steps: &[Step]) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let (root, scripts) = (dir.path().join("root"), dir.path().join("session"));
    std::fs::create_dir(&root).unwrap();
    std::fs::create_dir(&scripts).unwrap();
    let commands: Vec<Command> = steps.iter().flat_map(Step::commands).collect();
    let file = |number: usize, ending: &str| scripts.join(format!("{number:03}.{ending}"));
    for (number, command) in commands.iter().enumerate() {
        std::fs::write(file(number, "sh"), &command.text).unwrap();
    }
    let outcome = run_sandbox(&root, &scripts);
    for (number, command) in commands.iter().enumerate() {
        let printed = std::fs::read(file(number, "out")).unwrap_or_default();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        let at = format!("{name}:{}: {}", command.line, command.text.trim_end());
        let status = std::fs::read_to_string(file(number, "status")).unwrap_or_default();
        match status.trim() {
            "0" => {}
            "" => return Err(format!("{at}\nhas not ended: {outcome}; it printed\n{printed}")),
            status => return Err(format!("{at}\nfailed with {status}; it printed\n{printed}")),
        }
        if let Some(shown) = &command.shown
            && !matches(shown, &printed)
        {
            return Err(format!("{at}\nthe page shows\n{shown}\nbut it printed\n{printed}"));
        }
    }
    Ok(())
}

/// What became of the sandbox, as text for a message.
fn run_sandbox(root: &Path, scripts: &Path) -> String {
    let mut command = unshare();
    command.args(["bash", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/commands/sandbox.sh")]);
    command.arg(root).arg(workspace()).arg(FOREBAY).arg(scripts);
    let log = std::fs::File::create(scripts.join("sandbox.log")).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + PAGE_DEADLINE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            return format!("the page took longer than {PAGE_DEADLINE:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::read_to_string(scripts.join("sandbox.log")).unwrap_or_default()
}

#[test]
fn shown_output_is_compared_up_to_its_placeholders() {
    assert!(matches("agent <pid> serves /pfs\n", "agent 4711 serves   /pfs\n"));
    assert!(!matches("agent <pid> serves /pfs\n", "agent 4711 serves /other\n"));
    assert!(!matches("agent <pid> serves /pfs\n", "agent  serves /pfs\n"));
    assert!(matches("a\n...\nz\n", "a\nb\nc\nz\n") && matches("a\n...\nz\n", "a\nz\n"));
    assert!(!matches("a\nz\n", "a\nb\nz\n") && !matches("a\n", "a\nb\n") && !matches("a\nb\n", "a\n"));
}

#[test]
fn a_block_that_would_silently_not_be_run_is_refused() {
    for bad in [
        "```\nforebay ls\n```\n",
        "```consol\n$ forebay ls\n```\n",
        "```sh run\nforebay ls\n```\n",
        "```text\n$ forebay ls\n```\n",
        "~~~sh\nforebay ls\n~~~\n",
        "```sh\nforebay ls\n",
        "<!-- not run: -->\n```sh\nforebay ls\n```\n",
        "```console\nforebay ls\n```\n",
    ] {
        assert!(page::steps(bad).is_err(), "{bad}");
    }
    let good = "<!-- not run: needs Slurm -->\n\n```sh\nsrun true\n```\n```console\n$ echo a \\\n> b\na b\n$ true\n```\n";
    let steps = page::steps(good).unwrap();
    assert!(matches!(&steps[0], Step::Excused { why, .. } if why == "needs Slurm"));
    let commands = steps[1].commands();
    assert_eq!(commands[0].text, "echo a \\\nb\n");
    assert_eq!(commands[0].shown.as_deref(), Some("a b\n"));
    assert_eq!(commands[1].shown.as_deref(), Some(""));
}
