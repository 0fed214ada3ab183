//! Rate limits hold on the node and in the cluster, and end when they are lifted; how much each job
//! moves can be seen.
//!
//! Limits are checked by the least time that they allow: that holds on a slow machine, too.

use crate::kit::{
    Daemon, FOREBAY, MIB, Node, PATIENCE, Process, forebay, succeeded, text, wait_for, wait_or,
};
use crate::{json, make};
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const JOB: &str = "climate";

/// Another user than root, whom no system has.
const USER: u32 = 54_321;

fn of_job(mut command: Command) -> Command {
    command.env("FOREBAY_JOB_NAME", JOB);
    command
}

fn time_of(command: &mut Command) -> Duration {
    let began = Instant::now();
    let out = command.stdout(Stdio::null()).output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", text(&out.stderr));
    began.elapsed()
}

/// What a status says of the job.
fn traffic(node: &Node, job: &str) -> Option<Value> {
    let status = json(&mut node.forebay(&["--json", "status"]));
    status["traffic"].as_array().unwrap().iter().find(|row| row["job"]["job"] == job).cloned()
}

#[test]
fn a_limit_holds_for_reads_and_writes_of_its_job_alone() {
    let node = Node::start(&["--capacity", "256MiB"]);
    let file = |name: &str| make(&node.pfs().join(name), 16 * MIB);
    let (first, second, third) = (file("a"), file("b"), file("c"));
    let limits = succeeded(&mut node.forebay(&["limit", JOB, "8MiB/s"]));
    assert!(limits.contains(JOB) && limits.contains("8.00 MiB/s"), "{limits}");
    // Two seconds, less what a read may take ahead of the rate.
    let least = Duration::from_millis(1500);
    let cat = |file: &Path| {
        let mut cat = node.forebay(&["cat"]);
        cat.arg(file);
        cat
    };
    let read = time_of(&mut of_job(cat(&first)));
    assert!(read >= least, "{read:?}");
    let free = time_of(&mut cat(&second));
    assert!(free < read, "another job took {free:?}, the limited one {read:?}");
    let mut through = of_job(node.forebay(&["cp", "--write", "through"]));
    let written = time_of(through.arg(&second).arg(node.pfs().join("through")));
    assert!(written >= least, "{written:?}");
    let mut back = of_job(node.forebay(&["cp", "--write", "back"]));
    succeeded(back.arg(&second).arg(node.pfs().join("back")));
    let drained = time_of(&mut node.forebay(&["sync"]));
    assert!(drained >= least, "{drained:?}");
    assert_eq!(std::fs::read(node.pfs().join("back")).unwrap(), std::fs::read(&second).unwrap());
    let load = time_of(&mut of_job({
        let mut load = node.forebay(&["load", "--quiet"]);
        load.arg(&third);
        load
    }));
    assert!(load >= least, "{load:?}");
    let row = traffic(&node, JOB).unwrap();
    assert_eq!(row["limit_bytes_per_s"], 8 * MIB);
    assert!(row["held_ms"].as_u64().unwrap() > 1000, "{row}");
    let bytes = |field: &str| -> u64 {
        row["servers"].as_array().unwrap().iter().map(|server| server[field].as_u64().unwrap()).sum()
    };
    assert!(bytes("read_bytes") >= 16 * MIB && bytes("written_bytes") >= 16 * MIB, "{row}");
    let top = succeeded(&mut node.forebay(&["top", "--once"]));
    assert!(top.contains("SERVER") && top.contains(JOB), "{top}");
}

#[test]
fn a_limit_that_is_lifted_lets_a_job_go_on_at_once() {
    let node = Node::start(&["--capacity", "256MiB"]);
    let file = make(&node.pfs().join("a"), 64 * MIB);
    succeeded(&mut node.forebay(&["limit", JOB, "64KiB/s"]));
    let mut cat = of_job(node.forebay(&["cat"]));
    let mut cat = Process(cat.arg(&file).stdout(Stdio::null()).spawn().unwrap());
    wait_for("it waits for its rate", || {
        traffic(&node, JOB).is_some_and(|row| row["held"].as_u64() > Some(0))
    });
    assert_eq!(cat.0.try_wait().unwrap(), None);
    let lifted = Instant::now();
    let said = succeeded(&mut node.forebay(&["limit", JOB, "none"]));
    assert!(said.contains("has no rate limit"), "{said}");
    wait_for("it ends", || cat.0.try_wait().unwrap().is_some_and(|status| status.success()));
    // At its limit it would have taken a quarter of an hour.
    assert!(lifted.elapsed() < PATIENCE);
}

#[test]
fn only_the_operator_and_the_jobs_own_user_may_limit_it() {
    let node = Node::start(&["--capacity", "64MiB"]);
    let as_user = |args: &[&str]| -> (bool, String) {
        let mut command = node.forebay(args);
        command.env("FOREBAY_TRUST_UID", "0").uid(USER).gid(USER);
        let out = command.output().unwrap();
        (out.status.success(), text(&out.stdout) + &text(&out.stderr))
    };
    for dir in [node.dir().to_owned(), node.dir().join("state")] {
        std::fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let (done, said) = as_user(&["limit", JOB, "1MB/s", "--user", "0"]);
    assert!(!done && said.contains("only the agent's own user or root"), "{said}");
    let (done, said) = as_user(&["limit", JOB, "1MB/s"]);
    assert!(done && said.contains(&format!("user {USER}")), "{said}");
    succeeded(&mut node.forebay(&["limit", JOB, "2MB/s", "--user", &USER.to_string()]));
    let (done, said) = as_user(&["limit", JOB, "none"]);
    assert!(done && said.contains("the operator"), "the user cannot lift it: {said}");
    assert_eq!(json(&mut node.forebay(&["--json", "limit"])).as_array().unwrap().len(), 1);
    for bad in ["", "a\nb"] {
        assert!(!node.forebay(&["limit", bad, "1MB/s"]).output().unwrap().status.success(), "{bad:?}");
    }
    let (done, _) = as_user(&["evict", "--all"]);
    assert!(!done);
    let audit = std::fs::read_to_string(node.dir().join("state/audit.log")).unwrap();
    let lines: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let has = |uid: u32, command: &str, result: &str| {
        lines.iter().any(|line| {
            line["uid"] == uid
                && line["command"] == command
                && line["result"].as_str().unwrap().starts_with(result)
                && line["time_s"].as_f64().unwrap() > 1.6e9
        })
    };
    assert!(has(USER, "limit climate 1000000B/s --user 0", "refused"), "{audit}");
    assert!(
        has(USER, "limit climate 1000000B/s", "done") && has(USER, "limit climate none", "done"),
        "{audit}"
    );
    assert!(has(0, &format!("limit climate 2000000B/s --user {USER}"), "done"), "{audit}");
    assert!(has(USER, "evict --all", "refused"), "{audit}");
}

/// Two agents of one PFS, and their coordinator.
struct Cluster {
    dir: tempfile::TempDir,
    coordinator: Daemon,
    agents: Vec<Daemon>,
}

impl Cluster {
    fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("forebay-test-").tempdir_in("/dev/shm").unwrap();
        let pfs = tempfile::Builder::new().prefix("forebay-pfs-").tempdir().unwrap().keep();
        std::os::unix::fs::symlink(&pfs, dir.path().join("pfs")).unwrap();
        let config = "[cluster]\nnode = \"head\"\ncoordinator_listen = \"127.0.0.1:0\"\n";
        let at = dir.path().join("head");
        let coordinator = Daemon::start(Command::new(FOREBAY), "coordinator", &at, config);
        let mut cluster = Cluster { dir, coordinator, agents: Vec::new() };
        for name in ["a", "b"] {
            let agent = cluster.agent(name);
            cluster.agents.push(agent);
        }
        for agent in &cluster.agents {
            agent.wait_for("the cluster is there", |agent| agent.members() == 2);
        }
        cluster
    }

    fn pfs(&self) -> PathBuf {
        std::fs::read_link(self.dir.path().join("pfs")).unwrap()
    }

    fn agent(&self, name: &str) -> Daemon {
        let dir = self.dir.path().join(name);
        std::fs::create_dir_all(dir.join("tier")).unwrap();
        let coordinator = self.coordinator.address_after("coordinator listens on");
        let config = format!(
            "[agent]\nstate_dir = {:?}\n[tier]\nbacking = \"directory\"\ndirectory = {:?}\ncapacity = \"48MiB\"\n\
             [cluster]\nnode = \"{name}\"\ncoordinator = \"{coordinator}\"\nlisten = \"127.0.0.1:0\"\n\
             [[mount]]\nlabel = \"pfs\"\nroot = {:?}\n",
            dir.join("state"),
            dir.join("tier"),
            self.pfs(),
        );
        Daemon::start(Command::new(FOREBAY), "agent", &dir, &config)
    }

    fn forebay(&self, agent: usize, args: &[&str]) -> Command {
        let mut command = forebay(args);
        command.env("FOREBAY_SOCKET", self.agents[agent].socket());
        command
    }

    fn limits(&self, agent: usize) -> Vec<Value> {
        let out = self.forebay(agent, &["--json", "limit"]).output().unwrap();
        serde_json::from_slice::<Value>(&out.stdout)
            .ok()
            .and_then(|v| v.as_array().cloned())
            .unwrap_or_default()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.pfs());
    }
}

#[test]
fn a_limit_is_the_same_on_all_nodes_and_outlives_an_agent() {
    let mut cluster = Cluster::start();
    succeeded(&mut cluster.forebay(0, &["limit", JOB, "4MiB/s"]));
    wait_for("the other node hears of it", || cluster.limits(1).len() == 1);
    let files: Vec<_> = (0..2).map(|n| make(&cluster.pfs().join(format!("f{n}")), 12 * MIB)).collect();
    let began = Instant::now();
    let mut reading: Vec<Child> = (0..2)
        .map(|n| of_job(cluster.forebay(n, &["cat"])).arg(&files[n]).stdout(Stdio::null()).spawn().unwrap())
        .collect();
    wait_or(
        "both nodes report the job",
        || {
            let top = json(&mut cluster.forebay(0, &["--json", "top"]));
            let rows = top["overview"]["traffic"].as_array().unwrap().clone();
            rows.iter().any(|row| row["job"]["job"] == JOB && row["limit_bytes_per_s"] == 4 * MIB)
        },
        || cluster.coordinator.log(),
    );
    for cat in &mut reading {
        assert!(cat.wait().unwrap().success());
    }
    // 24 MiB at 4 MiB/s take six seconds, less what begins before nodes know of each other.
    assert!(began.elapsed() > Duration::from_secs(4), "{:?}", began.elapsed());
    // It comes back, and knows the limit without being given it again.
    cluster.agents.pop();
    let again = cluster.agent("b");
    cluster.agents.push(again);
    wait_for("the limit is known again", || cluster.limits(1).len() == 1);
    succeeded(&mut cluster.forebay(1, &["limit", JOB, "none"]));
    wait_for("it is lifted on the other node", || cluster.limits(0).is_empty());
    // The coordinator's log is changed through an agent.
    let said = succeeded(&mut cluster.forebay(0, &["log", "debug", "--coordinator"]));
    assert_eq!(said.trim(), "debug");
    cluster.coordinator.wait_for("it says so", |daemon| daemon.log().contains("what is logged has changed"));
}
