//! Bad input at the command line: a table of command lines, the exit code of each and parts of its
//! message.
//!
//! Whatever is typed, the program does not panic, does not hang, and does not report success for
//! what it has not done. Each command runs in a directory of its own and without an agent, unless a
//! test starts one.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

mod kit;

use kit::{FOREBAY, Node};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Exit codes: 1 it could not be done, 2 the command line is wrong.
const FAILED: i32 = 1;
const WRONG: i32 = 2;

/// Command line, exit code, parts of the message. `{dir}` is the test's directory; no word has a
/// space in it.
const TABLE: &[(&str, i32, &[&str])] = &[
    ("", WRONG, &["Usage"]),
    ("nonsense", WRONG, &["nonsense"]),
    ("status --nonsense", WRONG, &["--nonsense"]),
    ("status", FAILED, &["no agent at", "forebay up --pfs DIR"]),
    ("jobs", FAILED, &["no agent at", "forebay up --pfs DIR"]),
    ("ls", FAILED, &["no agent at"]),
    ("stat {dir}/text", FAILED, &["no agent at"]),
    ("load {dir}/text", FAILED, &["no agent at", "forebay up --pfs DIR"]),
    ("evict --all", FAILED, &["no agent at"]),
    ("evict", WRONG, &["PATHS"]),
    ("pin {dir}/text", FAILED, &["no agent at"]),
    ("verify {dir}/text", FAILED, &["no agent at"]),
    ("capacity", FAILED, &["no agent at"]),
    ("down", FAILED, &["no agent at"]),
    ("--socket none status", FAILED, &["switched off", "none"]),
    ("--socket {dir}/text status", FAILED, &["no agent at"]),
    ("--socket {dir} status", FAILED, &["no agent at"]),
    ("load --rate 0 {dir}/text", WRONG, &["not a rate", "unlimited"]),
    ("load --rate 100 {dir}/text", WRONG, &["not a rate", "unit"]),
    ("load --rate=-1MB/s {dir}/text", WRONG, &["not a rate"]),
    ("load --rate nanMB/s {dir}/text", WRONG, &["not a rate"]),
    ("load --rate infGB/s {dir}/text", WRONG, &["not a rate"]),
    ("load --rate 1e300GB/s {dir}/text", WRONG, &["not a rate"]),
    ("capacity 0%", WRONG, &["not a share"]),
    ("capacity nan%", WRONG, &["not a share"]),
    ("capacity lots", WRONG, &["not a size"]),
    ("cat", WRONG, &["PATHS"]),
    ("cat {dir}/missing", FAILED, &["missing", "No such file"]),
    ("cat {dir}", FAILED, &["directory"]),
    ("cp {dir}/missing {dir}/t", FAILED, &["missing", "No such file"]),
    ("cp {dir} {dir}/t", FAILED, &["directory"]),
    ("cp {dir}/text {dir}/no/where", FAILED, &["no/where"]),
    ("cp {dir}/text {dir}/text", FAILED, &["same file"]),
    ("up", FAILED, &["no PFS to serve"]),
    ("up --pfs {dir}/missing", FAILED, &["--pfs", "missing", "No such file"]),
    ("up --pfs {dir}/text", FAILED, &["not a directory"]),
    ("up --pfs {dir} --page-size 3MiB", FAILED, &["power of two"]),
    ("up --pfs {dir} --page-size -1", WRONG, &["-1"]),
    ("up --pfs {dir} --backing ram", FAILED, &["--backing", "directory"]),
    ("up --pfs {dir} --eviction never", FAILED, &["--eviction", "never"]),
    ("up --pfs {dir} --capacity nan", WRONG, &["not a size"]),
    ("up --pfs {dir} --pfs {dir}", FAILED, &["twice"]),
    ("up --pfs {dir} --log {dir}/no/log", FAILED, &["cannot write the log", "no/log", "--log"]),
    ("up --config {dir}/missing", FAILED, &["missing", "cannot read"]),
    ("up --config {dir}", FAILED, &["neither forebay.toml nor files in conf.d"]),
    ("up --config {dir}/text", FAILED, &["text"]),
    ("agent", FAILED, &["cluster.coordinator is empty"]),
    ("agent --config {dir}/good.toml", FAILED, &["cluster.coordinator is empty"]),
    ("coordinator", FAILED, &["--listen IP:PORT"]),
    ("coordinator --listen nowhere", FAILED, &["nowhere"]),
    ("coordinator --listen 127.0.0.1:99999", FAILED, &["127.0.0.1:99999"]),
    ("coordinator --listen 0.0.0.0:0", FAILED, &["TLS"]),
    ("config check {dir}/missing", FAILED, &["missing", "cannot read"]),
    ("config check {dir}", FAILED, &["neither forebay.toml"]),
    ("config check {dir}/empty.toml", FAILED, &["no PFS to serve", "[[mount]]"]),
    ("config check {dir}/rootless.toml", FAILED, &["/no/such/root", "mount the PFS"]),
    ("config check {dir}/single.toml", FAILED, &["[[mount]] in double brackets"]),
    (
        "config check {dir}/profile.toml",
        FAILED,
        &["cluster.profile", "bad-profile.toml:7:", "profile.i_hpc", "0.5"],
    ),
    ("coordinator --listen 127.0.0.1:0 --config {dir}/profile.toml", FAILED, &["bad-profile.toml:7:", "0.5"]),
    ("config check {dir}/number.toml", FAILED, &["capacity = 1", "in quotes", "16GiB"]),
    ("init", WRONG, &["DIR"]),
    ("init {dir}/ca --node a=127.0.0.1 --node a=127.0.0.2", FAILED, &["--node a", "twice"]),
    ("init {dir}/ca --node a=127.0.0.1 --node A=127.0.0.2", FAILED, &["--node A", "twice"]),
    ("init {dir}/ca --node a=0.0.0.0", FAILED, &["--node", "address"]),
    ("init {dir}/ca --node ../a", FAILED, &["--node", "name"]),
    ("init {dir}/ca --node a --days 0", WRONG, &["--days", "1..="]),
    ("init {dir}/text --node a=127.0.0.1", FAILED, &["text"]),
    ("doctor --config {dir}/missing", FAILED, &["missing"]),
    ("doctor --pfs {dir}/missing", FAILED, &["missing"]),
    ("lab fault {dir} read=EIO", FAILED, &["forebay lab slowfs"]),
    ("lab fault {dir} nonsense", FAILED, &["nonsense", "not understood"]),
    ("lab rate {dir} 5MB/s", FAILED, &["forebay lab slowfs"]),
    ("lab rate {dir} fast", FAILED, &["fast"]),
    ("lab stats {dir}", FAILED, &["forebay lab slowfs"]),
    ("lab stats --reset {dir}", FAILED, &["forebay lab slowfs"]),
    ("lab slowfs --backing {dir}/missing --mount {dir}", FAILED, &["missing"]),
    ("lab slowfs --backing {dir} --mount {dir}/sub --servers 0", FAILED, &["server"]),
    ("lab slowfs --backing {dir} --mount {dir}/sub --stripe 0", FAILED, &["stripe"]),
    ("lab slowfs --backing {dir} --mount {dir}/sub --rate nan", WRONG, &["nan"]),
    ("lab status --name no-such-lab", FAILED, &["no-such-lab"]),
    ("lab links --name no-such-lab 80MB/s", FAILED, &["no-such-lab"]),
    ("lab links -- -1MB/s", WRONG, &["-1MB/s"]),
    ("lab mark --name no-such-lab", FAILED, &["no-such-lab"]),
    ("lab traffic --name no-such-lab", FAILED, &["no-such-lab"]),
    ("lab run --name no-such-lab c1 true", FAILED, &["no-such-lab"]),
    ("sim", WRONG, &["Usage"]),
    ("sim run", WRONG, &["SCENARIO"]),
    ("sim run {dir}", FAILED, &["cannot read the scenario"]),
    ("sim run {dir}/missing", FAILED, &["cannot read the scenario"]),
    ("sim run {dir}/empty.toml", FAILED, &["empty.toml", "cluster"]),
    ("sim run {dir}/text", FAILED, &["not TOML"]),
    ("sim run {scenario} --policy none-such", FAILED, &["none-such", "forebay"]),
    ("sim run {scenario} --seed -1", WRONG, &["-1"]),
    ("sim run {scenario} --seed 18446744073709551615", FAILED, &["seed"]),
    ("sim run {scenario} --trace {dir}", FAILED, &["cannot create the trace"]),
    ("sim run {scenario} --result {dir}/no/where", FAILED, &["cannot write the result"]),
    ("sim run {scenario} --csv {dir}", FAILED, &["cannot write the rows"]),
    ("sim run {scenario} --window 1 2", WRONG, &["--timeline"]),
    ("sim run {scenario} --timeline {dir}/s --window 10 5", FAILED, &["FROM before TO"]),
    ("sim compare {scenario} --policies ,", FAILED, &["policy"]),
    ("sim compare {scenario} --timelines {dir}/text", FAILED, &["cannot create the directory"]),
    ("sim sweep {scenario}", WRONG, &["--set"]),
    ("sim sweep {scenario} --set seed", FAILED, &["KEY=V1,V2"]),
    ("sim sweep {scenario} --set =1", FAILED, &["KEY=V1,V2"]),
    ("sim sweep {scenario} --set seed=1,nonsense", FAILED, &["seed"]),
    ("sim sweep {scenario} --set no.such.key=1", FAILED, &["no"]),
    ("sim sweep {scenario} --set seed=1 --threads 0", WRONG, &["--threads"]),
    ("sim replay {dir}/missing", FAILED, &["cannot read the trace"]),
    ("sim replay {dir}/empty.toml", FAILED, &["the trace is empty"]),
    ("sim replay {dir}", FAILED, &["cannot read the trace"]),
    ("sim replay {dir}/text", FAILED, &["not the header of a trace"]),
    ("sim reproduce nonsense --out {dir}/r", FAILED, &["nonsense"]),
    ("sim reproduce tls --out {dir}/text", FAILED, &["text"]),
    ("model tls --nodes inf --pfs 1", FAILED, &["--nodes inf"]),
    ("model tls --nodes 1 --pfs nan", FAILED, &["--pfs NaN"]),
    ("model tls --nodes 1 --pfs 1 --hit 2", FAILED, &["--hit 2"]),
    ("model tls --nodes 1 --pfs 1 --backplane 0", FAILED, &["--backplane 0"]),
    ("model mapreduce --nodes 1 --pfs 1 --input=-1", FAILED, &["--input -1"]),
    ("model interference --io 1 --prefetch 1 --i-hpc 0.9 --i-bd 1", FAILED, &["--i-hpc 0.9"]),
    ("completions nonsense", WRONG, &["bash"]),
    ("man {dir}/text", FAILED, &["man page"]),
];

/// Waits for the end of a command; one that hangs is killed, and fails the test.
fn end(mut child: Child, line: &str) -> Output {
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("{line}: hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

fn start(line: &str, dir: &Path, variables: &[(&str, &str)]) -> Child {
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/eley-t2-app6.toml");
    let word = |word: &str| word.replace("{dir}", dir.to_str().unwrap()).replace("{scenario}", scenario);
    let mut command = Command::new(FOREBAY);
    command.args(line.split_whitespace().map(word)).current_dir(dir);
    for name in ["FOREBAY_SOCKET", "FOREBAY_CONFIG", "FOREBAY_JOB"] {
        command.env_remove(name);
    }
    command.env("RUST_BACKTRACE", "0").envs(variables.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Runs a command line and holds it to what no command may do, whatever is requested of it.
fn run(line: &str, dir: &Path, variables: &[(&str, &str)]) -> (Option<i32>, String) {
    let out = end(start(line, dir, variables), line);
    let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(!said.contains("panicked at"), "{line}: {said}");
    assert!(out.status.code().is_some(), "{line}: ended by a signal ({}): {said}", out.status);
    (out.status.code(), said)
}

/// A profile as far as its interference.
const PROFILE: &str =
    "version = 1\ncluster = { pfs_gb_per_s = 4, nodes = 8 }\n\n[profile]\nbytes_gb = 50\nprefetch_s = 200\n";

fn directory() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("forebay-bad-").tempdir().unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    let mount = "[[mount]]\nlabel = \"a\"\nroot =";
    for (name, text) in [
        ("text", "this is a text\n".to_owned()),
        ("empty.toml", String::new()),
        ("good.toml", format!("{mount} {:?}\n", dir.path())),
        ("rootless.toml", format!("{mount} \"/no/such/root\"\n")),
        ("single.toml", "[mount]\nlabel = \"a\"\nroot = \"/\"\n".to_owned()),
        ("profile.toml", format!("[cluster]\nprofile = {:?}\n", dir.path().join("bad-profile.toml"))),
        ("bad-profile.toml", format!("{PROFILE}i_hpc = 0.5\ni_bd = 1.2\n")),
        ("number.toml", format!("[tier]\ncapacity = 1\n{mount} \"/\"\n")),
    ] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    dir
}

#[test]
fn bad_input_is_refused_with_words_that_help() {
    let mut wrong = Vec::new();
    for (line, code, words) in TABLE {
        let dir = directory();
        let state = dir.path().join("state");
        // What is started by mistake has its state here; what looks for an agent finds none.
        let socket = state.join("agent.sock");
        let (got, said) = run(line, dir.path(), &[("FOREBAY_SOCKET", socket.to_str().unwrap())]);
        let missing: Vec<_> = words.iter().filter(|word| !said.contains(*word)).collect();
        if got != Some(*code) || !missing.is_empty() {
            wrong.push(format!("forebay {line}: exit code {got:?}, without {missing:?}:\n{said}"));
        }
        let tier = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!tier.contains(state.to_str().unwrap()), "forebay {line}: its tmpfs is left");
    }
    assert!(wrong.is_empty(), "{}\n{} of {}", wrong.join("\n"), wrong.len(), TABLE.len());
}

#[test]
fn an_empty_variable_counts_as_unset() {
    let dir = directory();
    let empty = [("FOREBAY_SOCKET", ""), ("FOREBAY_CONFIG", "")];
    for line in
        ["cat {dir}/text", "sim compare {scenario}", "config reference", "model tls --nodes 1 --pfs 1"]
    {
        let (code, said) = run(line, dir.path(), &empty);
        assert_eq!(code, Some(0), "{line}: {said}");
    }
}

#[test]
fn an_agent_that_cannot_start_leaves_no_tmpfs() {
    let dir = directory();
    let long = dir.path().join("x".repeat(120));
    let line = format!("up --pfs {{dir}} --state-dir {}", long.display());
    let (code, said) = run(&line, dir.path(), &[]);
    assert_eq!(code, Some(FAILED), "{said}");
    assert!(said.contains("agent.state_dir") && said.contains("at most 107"), "{said}");
    // The port of its peers is taken: that shows when the tier exists already.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (config, state) = (dir.path().join("c.toml"), dir.path().join("state"));
    let text = format!(
        "[agent]\nstate_dir = {state:?}\n[cluster]\nlisten = \"{address}\"\n[[mount]]\nlabel = \"a\"\nroot = {:?}\n",
        dir.path()
    );
    std::fs::write(&config, text).unwrap();
    let (code, said) = run("up --config {dir}/c.toml", dir.path(), &[]);
    assert_eq!(code, Some(FAILED), "{said}");
    assert!(said.contains("ss -ltnp") && said.contains(&address.port().to_string()), "{said}");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(state.to_str().unwrap()), "the tmpfs of an agent that did not start is left");
}

#[test]
fn down_says_that_the_cache_stays_and_ends_the_agent_that_is_named() {
    let node = Node::start(&["--capacity", "64MiB"]);
    let state = node.socket().parent().unwrap().display().to_string();
    let (code, said) = run(&format!("down --state-dir {state}"), node.dir(), &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("the cache stays") && said.contains("forebay down --drop"), "{said}");
    assert!(node.client().admin().status().is_err(), "another agent was ended");
}

/// An agent that is stopped in its tracks costs a command the deadline, and the message says what
/// to do.
#[test]
fn a_hung_agent_is_named_with_what_to_do() {
    let node = Node::start(&["--capacity", "64MiB"]);
    let pid = node.client().admin().status().unwrap().pid.to_string();
    let signal = |name: &str| assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    signal("-STOP");
    let socket = node.socket().display().to_string();
    let line = "status";
    let out =
        end(start(line, node.dir(), &[("FOREBAY_SOCKET", &socket), ("FOREBAY_DEADLINE_MS", "500")]), line);
    signal("-CONT");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(FAILED), "{said}");
    assert!(said.contains("has not answered in time") && said.contains("kill it"), "{said}");
}

/// As git and cargo do. What is meant for another program is passed to it unchanged.
#[test]
fn a_command_of_another_program_is_run_beside_this_one() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("forebay");
    std::fs::copy(env!("CARGO_BIN_EXE_forebay"), &program).unwrap();
    let beside = dir.path().join("forebay-hello");
    std::fs::write(&beside, "#!/bin/sh\nprintf '%s,' \"$@\"\nexit 7\n").unwrap();
    std::fs::set_permissions(&beside, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let run = |words: &[&str]| {
        let out = std::process::Command::new(&program).args(words).env("PATH", "/nowhere").output().unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        (out.status.code().unwrap(), String::from_utf8(out.stdout).unwrap(), said)
    };
    let (code, heard, _) = run(&["--json", "hello", "a", "--", "b", "--json"]);
    assert_eq!((code, heard.as_str()), (7, "--json,a,--,b,--json,"));
    assert_eq!(run(&["hello", "--json"]).1, "--json,");
    let (code, _, said) = run(&["sim", "run", "x"]);
    assert!(code == 1 && said.contains("forebay-sim is neither beside this program nor in PATH"), "{said}");
    for word in ["stauts", "a/b", ""] {
        let (code, _, said) = run(&[word]);
        assert!(code == 2 && said.contains(&format!("unrecognized subcommand '{word}'")), "{said}");
        assert_eq!(said.contains("a similar one is 'status'"), word == "stauts", "{said}");
    }
}
