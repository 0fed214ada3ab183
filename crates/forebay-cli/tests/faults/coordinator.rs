//! A coordinator and its agents, each a real process: killed, stopped, started again, while a job
//! runs.

use crate::common::{
    FOREBAY, Helper, MIB, OTHER_UID, PAGE, PATIENCE, Process, SlowFs, counter, make_file, open_dir_in,
    plain_pfs, send_signal, text, used, wait_for,
};
use crate::roles::{Raw, hear, say};
use forebay_client::{Client, ClientConfig, Job};
use forebay_wire::cluster::{Answer, CLUSTER_PROTOCOL, Question, ToAgent, ToCoordinator, WaveStatus};
use forebay_wire::framed::{Arrived, Framed};
use forebay_wire::link::Security;
use forebay_wire::{
    Declared, Epoch, JobUpdate, NodeInfo, Part, Reply, Report, Request, Split, Status, frame,
};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub const SEED: u64 = 5;

/// Tasks of a job here read one extent each.
pub const EXTENT: u64 = MIB;

/// A coordinator and agents on one PFS.
pub struct Cluster {
    /// More lines of the table of the agents' mount.
    mount: &'static str,
    dir: TempDir,
    pfs: PathBuf,
    address: String,
    /// The other candidates, if it is one of several candidates.
    others: Vec<String>,
    coordinator: Process,
    agents: Vec<Process>,
    /// The change for agents that are started.
    change: Change,
}

/// What is different about an agent that is started again.
#[derive(Default)]
pub struct Change {
    /// More of its environment.
    pub env: Vec<(String, PathBuf)>,
    /// Text of its configuration, and what replaces it.
    pub text: Option<(String, String)>,
    /// Its program.
    pub program: Option<PathBuf>,
}

impl Cluster {
    pub fn start(agents: usize, pfs: &Path, capacities: &[u64]) -> Self {
        let dir = open_dir_in("/dev/shm");
        let (coordinator, address) = start_coordinator(dir.path(), "127.0.0.1:0");
        Self::under(coordinator, address, dir, agents, pfs, capacities)
    }

    /// Starts a cluster on a file system that takes no writes.
    pub fn failing(agents: usize, capacities: &[u64]) -> Option<(SlowFs, Self)> {
        let slow = SlowFs::start()?;
        slow.fault("write=EIO");
        let cluster = Self::start(agents, &slow.mount(), capacities);
        Some((slow, cluster))
    }

    /// One agent that does not know on which servers files are.
    fn start_without_layouts(pfs: &Path) -> Self {
        Self::start_one(pfs, "layout = false\n")
    }

    /// One agent with these lines in the configuration of its mount.
    fn start_one(pfs: &Path, mount: &'static str) -> Self {
        let dir = open_dir_in("/dev/shm");
        let (coordinator, address) = start_coordinator(dir.path(), "127.0.0.1:0");
        let pfs = pfs.to_owned();
        let mut cluster = Cluster {
            mount,
            dir,
            pfs,
            address,
            others: vec![],
            coordinator,
            agents: vec![],
            change: Change::default(),
        };
        cluster.agents.push(cluster.start_agent(0, 128 * MIB));
        cluster.wait_members(1);
        cluster
    }

    /// Agents under a coordinator with these lines in the table `[cluster]` of its configuration,
    /// and a decision log.
    pub fn start_with(agents: usize, pfs: &Path, lines: &str) -> Self {
        let dir = open_dir_in("/dev/shm");
        let (config, log) = (dir.path().join("coordinator.toml"), dir.path().join("decisions"));
        std::fs::write(&config, format!("[cluster]\n{lines}decision_log = {log:?}\n")).unwrap();
        let arguments = ["--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()];
        let (coordinator, address) = start_coordinator_with(dir.path(), &arguments);
        Self::under(coordinator, address, dir, agents, pfs, &[])
    }

    /// Ends the coordinator. Returns what it has decided, which a replay decides again.
    pub fn end_and_replay(&mut self) -> String {
        self.end_and_replay_of("decisions")
    }

    /// As [`Cluster::end_and_replay`], for the log whose files begin with `prefix`.
    pub fn end_and_replay_of(&mut self, prefix: &str) -> String {
        self.coordinator.end();
        let file = self.dir.path().join(format!("decisions/{prefix}-000001.log"));
        assert!(replay(&file).unwrap()["same"] == true);
        std::fs::read_to_string(file).unwrap()
    }

    /// Kills an agent, and starts it with more in its environment.
    pub fn start_again(&mut self, number: usize, env: Vec<(String, PathBuf)>) {
        self.start_changed(number, Change { env, ..Change::default() });
    }

    /// Kills an agent, and starts it with this change.
    pub fn start_changed(&mut self, number: usize, change: Change) {
        self.agents[number].kill_9();
        self.start_ended(number, change);
    }

    /// Starts an agent that has ended, with this change.
    pub fn start_ended(&mut self, number: usize, change: Change) {
        self.change = change;
        self.start_killed(number);
        self.change = Change::default();
    }

    /// Has an agent read its configuration again, with `from` replaced by other text.
    pub fn reload(&self, number: usize, from: &str, to: &str) {
        let path = self.dir.path().join(format!("config{number}"));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(path, text.replace(from, to)).unwrap();
        send_signal(self.agents[number].pid(), libc::SIGHUP);
        let log = format!("log{number}");
        wait_for("the configuration is read again", || {
            self.log(&log).contains("the configuration is read again")
        });
    }

    /// Starts an agent that was killed.
    pub fn start_killed(&mut self, number: usize) {
        self.agents[number] = self.start_agent(number, 128 * MIB);
    }

    /// The command line, pointed at a node's agent.
    pub fn command(&self, number: usize, args: &[&str]) -> Command {
        let mut command = Command::new(FOREBAY);
        command.args(args).env("FOREBAY_SOCKET", self.socket(number));
        command
    }

    pub fn cli(&self, number: usize, args: &[&str]) -> std::process::Output {
        self.command(number, args).output().unwrap()
    }

    pub fn stop_coordinator(&self) {
        self.coordinator.stop();
    }

    pub fn let_coordinator_go_on(&self) {
        self.coordinator.go_on();
    }

    pub fn kill_agent(&mut self, number: usize) {
        self.agents[number].kill_9();
    }

    pub fn kill_coordinator(&mut self) {
        self.coordinator.kill_9();
    }

    fn under(
        coordinator: Process,
        address: String,
        dir: TempDir,
        agents: usize,
        pfs: &Path,
        capacities: &[u64],
    ) -> Self {
        Self::under_one_of((coordinator, address), vec![], dir, agents, pfs, capacities)
    }

    /// Starts agents under one of several candidates; `others` are the rest.
    pub fn under_one_of(
        (coordinator, address): (Process, String),
        others: Vec<String>,
        dir: TempDir,
        agents: usize,
        pfs: &Path,
        capacities: &[u64],
    ) -> Self {
        let pfs = pfs.to_owned();
        let mut cluster = Cluster {
            mount: "",
            dir,
            pfs,
            address,
            others,
            coordinator,
            agents: vec![],
            change: Change::default(),
        };
        for i in 0..agents {
            let agent = cluster.start_agent(i, *capacities.get(i).unwrap_or(&(128 * MIB)));
            cluster.agents.push(agent);
        }
        wait_for("all know all", || (0..agents).all(|i| cluster.members(i) == agents));
        cluster
    }

    fn start_agent(&self, number: usize, capacity: u64) -> Process {
        let at = |name: &str| self.dir.path().join(format!("{name}{number}"));
        let mut text = format!(
            "[agent]\nstate_dir = {:?}\n[tier]\ncapacity = \"{capacity}\"\nbacking = \"directory\"\ndirectory = {:?}\n\
             [cluster]\ncoordinator = {}\nlisten = \"127.0.0.1:0\"\nnode = \"n{number}\"\n\
             [[mount]]\nlabel = \"pfs\"\nroot = {:?}\npage_size = \"{PAGE}\"\nextent_size = \"{EXTENT}\"\nread_ahead = \"0\"\n\
             fetch_threads = 4\nsettle_ms = 0\nstamps = \"trust\"\n{}",
            at("state"),
            at("tier"),
            self.candidates(),
            self.pfs,
            self.mount,
        );
        if let Some((from, to)) = &self.change.text {
            assert!(text.contains(from), "{text}");
            text = text.replace(from, to);
        }
        std::fs::write(at("config"), text).unwrap();
        let log = File::options().create(true).append(true).open(at("log")).unwrap();
        let mut command = Command::new(self.change.program.as_deref().unwrap_or(Path::new(FOREBAY)));
        command.args(["agent", "--config"]).arg(at("config")).stdin(Stdio::null()).stdout(Stdio::null());
        command.envs(self.change.env.iter().map(|(key, value)| (key, value)));
        let child = command.stderr(log).env_remove("FOREBAY_SOCKET").spawn().unwrap();
        wait_for("the agent answers", || {
            self.client(number).admin().status().is_ok_and(|s| s.pid == child.id())
        });
        Process(child)
    }

    /// The addresses of the candidates, as in the configuration.
    fn candidates(&self) -> String {
        match self.others.is_empty() {
            true => format!("{:?}", self.address),
            false => format!("{:?}", [std::slice::from_ref(&self.address), &self.others[..]].concat()),
        }
    }

    /// The coordinator, or the first of the candidates.
    pub fn coordinator(&mut self) -> &mut Process {
        &mut self.coordinator
    }

    pub fn socket(&self, number: usize) -> PathBuf {
        self.dir.path().join(format!("state{number}/agent.sock"))
    }

    pub fn client(&self, number: usize) -> Client {
        let socket = Some(self.socket(number));
        Client::new(ClientConfig {
            socket,
            quiet: true,
            deadline: Duration::from_secs(20),
            ..ClientConfig::default()
        })
    }

    pub fn status(&self, number: usize) -> Status {
        self.client(number).admin().status().unwrap()
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    pub fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    pub fn epoch(&self, number: usize) -> Epoch {
        self.status(number).cluster.view.epoch
    }

    /// Members that a node knows.
    pub fn members(&self, number: usize) -> usize {
        self.status(number).cluster.view.nodes.len()
    }

    /// Waits until node 0 knows of this many members.
    pub fn wait_members(&self, count: usize) {
        wait_for(&format!("there are {count} members"), || self.members(0) == count);
    }

    /// What is dirty on a node, as JSON.
    pub fn dirty(&self, number: usize) -> String {
        text(&self.cli(number, &["dirty", "--json"]).stdout).trim().to_owned()
    }

    /// Waits until the PFS has what is dirty on a node.
    #[track_caller]
    pub fn sync(&self, number: usize) {
        let synced = self.cli(number, &["sync", "--quiet"]);
        assert!(synced.status.success(), "{}\n{}", text(&synced.stderr), self.dirty(number));
    }

    pub fn sum(&self, name: &str) -> u64 {
        (0..self.agents.len()).map(|i| counter(&self.status(i), name)).sum()
    }

    pub fn counter(&self, number: usize, name: &str) -> u64 {
        counter(&self.status(number), name)
    }

    pub fn used(&self, number: usize, class: &str) -> u64 {
        used(&self.status(number), class)
    }

    /// The directory of a node's tier.
    pub fn tier(&self, number: usize) -> PathBuf {
        self.dir.path().join(format!("tier{number}"))
    }

    pub fn stop_agent(&self, number: usize) {
        self.agents[number].stop();
    }

    pub fn let_agent_go_on(&self, number: usize) {
        self.agents[number].go_on();
    }

    fn waves(&self, number: usize) -> Vec<WaveStatus> {
        let jobs = self.client(number).jobs().unwrap_or_default();
        jobs.last().and_then(|j| j.stages.first()).map(|s| s.waves.clone()).unwrap_or_default()
    }
}

pub fn start_coordinator(dir: &Path, listen: &str) -> (Process, String) {
    start_coordinator_with(dir, &["--listen", listen])
}

pub fn start_coordinator_with(dir: &Path, arguments: &[&str]) -> (Process, String) {
    let log = File::options().create(true).append(true).open(dir.join("coordinator.log")).unwrap();
    let mut command = Command::new(FOREBAY);
    command.arg("coordinator").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.stderr(log).env_remove("FOREBAY_CONFIG").spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().rsplit(' ').next().unwrap().to_owned();
    assert!(address.starts_with("127.0.0.1:"), "{line:?}");
    (Process(child), address)
}

#[test]
fn a_peer_is_waited_for_as_long_as_the_agent_has_read_last() {
    let (pfs, table) = (plain_pfs(), "[cluster]\n");
    let path = pfs.path().join("data");
    make_file(&path, SEED, 16 * EXTENT);
    let mut cluster = Cluster::start(2, pfs.path(), &[]);
    let text = Some((table.to_owned(), format!("{table}peer_deadline_ms = 600000\n")));
    cluster.start_changed(0, Change { text, ..Change::default() });
    cluster.wait_members(2);
    cluster.stop_agent(1);
    cluster.reload(0, "peer_deadline_ms = 600000", "peer_deadline_ms = 100");
    crate::roles::verify_once(&cluster.client(0), &path, SEED, 0);
    assert!(cluster.counter(0, "peer_late_total") > 0, "nobody was waited for");
    cluster.let_agent_go_on(1);
}

/// Begins a job with one stage whose tasks read `path` extent by extent, on nodes of two slots.
pub fn begin(client: &Client, path: &Path, nodes: usize) -> (Job, u32) {
    begin_at(client, path, nodes, |_| String::new())
}

/// As [`begin`], with a preferred node for each task.
fn begin_at(
    client: &Client,
    path: &Path,
    nodes: usize,
    preferred_node: impl Fn(u32) -> String,
) -> (Job, u32) {
    begin_with(client, path, (0..nodes).map(|i| (format!("n{i}"), 2)).collect(), preferred_node)
}

/// As [`begin_at`], on these slots.
pub fn begin_with(
    client: &Client,
    path: &Path,
    slots: Vec<(String, u32)>,
    preferred_node: impl Fn(u32) -> String,
) -> (Job, u32) {
    let job = client.begin_job("app", "").unwrap();
    let file = client.file_ref(path).unwrap();
    let tasks = (file.version.size / EXTENT) as u32;
    let part = |t: u32| Part { file: 0, offset: u64::from(t) * EXTENT, len: EXTENT };
    let split = |t: u32| Split { parts: vec![part(t)], preferred_node: preferred_node(t) };
    job.report(&[
        JobUpdate::Slots(slots),
        JobUpdate::Files(vec![file]),
        JobUpdate::Splits { stage: 0, splits: (0..tasks).map(split).collect() },
        JobUpdate::StageReady { stage: 0 },
    ])
    .unwrap();
    (job, tasks)
}

/// Runs a task where its input is: reads it and checks every byte.
pub fn run_task(cluster: &Cluster, job: &Job, path: &Path, task: u32) {
    let host = cluster.client(0).locate(path, u64::from(task) * EXTENT, 1).unwrap()[0].hosts[0].clone();
    run_task_at(cluster, job, path, task, host);
}

/// Runs a task on a host.
fn run_task_at(cluster: &Cluster, job: &Job, path: &Path, task: u32, host: String) {
    job.report(&[JobUpdate::TaskStarted { stage: 0, task, host: host.clone() }]).unwrap();
    let node = host[1..].parse().unwrap();
    crate::cluster::read_piece(&cluster.client(node), path, SEED, u64::from(task) * EXTENT, EXTENT as usize);
    job.report(&[JobUpdate::TaskEnded { stage: 0, task, ok: true, run_ms: 10 }]).unwrap();
}

#[test]
fn a_job_goes_on_when_the_coordinator_is_killed_and_comes_back() {
    let pfs = plain_pfs();
    let path = pfs.path().join("data");
    make_file(&path, SEED, 24 * EXTENT);
    let mut cluster = Cluster::start(2, pfs.path(), &[]);
    let before = cluster.epoch(0);
    let client = cluster.client(0);
    let (job, tasks) = begin(&client, &path, 2);
    wait_for("the first wave is fetched", || {
        cluster.waves(0).first().is_some_and(|w| w.prefetch_ended_ms.is_some())
    });
    run_task(&cluster, &job, &path, 0);

    cluster.coordinator.kill_9();
    wait_for("the agents miss it", || (0..2).all(|i| !cluster.status(i).cluster.connected));
    assert_eq!(cluster.epoch(0), before, "the last view is kept");
    // Reads and the job's reports continue.
    run_task(&cluster, &job, &path, 1);
    assert!(client.jobs().is_err());
    let (next, _) = start_coordinator(cluster.dir.path(), &cluster.address);
    cluster.coordinator = next;
    wait_for("the epoch has grown", || cluster.epoch(0) > before && cluster.epoch(1) > before);
    assert_eq!(cluster.members(0), 2, "both came back before the first view");
    wait_for("the job is known again", || {
        client
            .jobs()
            .is_ok_and(|jobs| jobs.len() == 1 && jobs[0].stages.first().is_some_and(|s| s.tasks_done == 2))
    });
    for task in 2..tasks {
        run_task(&cluster, &job, &path, task);
    }
    let waves = cluster.waves(0);
    assert!(waves.len() > 2 && waves.iter().all(|w| w.tasks == w.tasks_done), "{waves:?}");
    // The first of each wave may have been quicker than its prefetch.
    let came: u64 = waves.iter().map(|w| w.fetched_bytes + w.resident_bytes).sum();
    assert!(came > 0 && cluster.sum("pages_planned_total") > 0, "{waves:?}");
    drop(job);
    wait_for("nothing is kept for it", || cluster.sum("planned_bytes") == 0);
    cluster.coordinator.end();
}

/// What `forebay replay` says of a file of the decision log.
fn replay(log: &Path) -> Result<serde_json::Value, String> {
    let out = Command::new(FOREBAY).args(["--json", "replay"]).arg(log).output().unwrap();
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into_owned());
    }
    Ok(serde_json::from_slice(&out.stdout).unwrap())
}

#[test]
fn what_a_live_coordinator_decided_is_decided_again_by_a_replay_of_its_log() {
    let pfs = plain_pfs();
    let path = pfs.path().join("data");
    make_file(&path, SEED, 24 * EXTENT);
    let dir = open_dir_in("/dev/shm");
    let (config, log) = (dir.path().join("coordinator.toml"), dir.path().join("decisions"));
    std::fs::write(&config, format!("[cluster]\ndecision_log = {log:?}\n")).unwrap();
    let arguments = ["--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()];
    let (coordinator, address) = start_coordinator_with(dir.path(), &arguments);
    let mut cluster = Cluster::under(coordinator, address, dir, 3, pfs.path(), &[]);
    let client = cluster.client(0);
    let (job, tasks) = begin(&client, &path, 2);
    for task in 0..tasks / 2 {
        run_task(&cluster, &job, &path, task);
    }
    cluster.agents[2].kill_9();
    cluster.wait_members(2);
    for task in tasks / 2..tasks {
        run_task(&cluster, &job, &path, task);
    }
    drop(job);
    wait_for("nothing is kept for it", || (0..2).all(|i| counter(&cluster.status(i), "planned_bytes") == 0));
    cluster.coordinator.end();

    let file = log.join("decisions-000001.log");
    let same = replay(&file).unwrap();
    assert!(same["same"] == true && same["actions"].as_u64() > Some(10), "{same}");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains("data"), "the log names files");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let at = lines.iter().position(|line| line.contains("\"is\":\"release\"")).unwrap();
    lines[at] = lines[at].replace("\"requests\":[", "\"requests\":[9");
    std::fs::write(&file, lines.join("\n")).unwrap();
    let error = replay(&file).unwrap_err();
    assert!(error.contains(&format!("decisions-000001.log:{}: recorded", at + 1)), "{error}");
    // A line that is missing.
    lines.remove(at);
    std::fs::write(&file, lines.join("\n")).unwrap();
    assert!(replay(&file).is_err());
}

#[test]
fn a_coordinator_that_hangs_is_missed_and_met_again_when_it_goes_on() {
    let pfs = plain_pfs();
    let path = pfs.path().join("data");
    make_file(&path, SEED, 24 * EXTENT);
    let cluster = Cluster::start(2, pfs.path(), &[]);
    let before = cluster.epoch(0);
    let client = cluster.client(0);
    let (job, tasks) = begin(&client, &path, 2);
    wait_for("the first wave is fetched", || {
        cluster.waves(0).first().is_some_and(|w| w.prefetch_ended_ms.is_some())
    });
    run_task(&cluster, &job, &path, 0);

    cluster.coordinator.stop();
    wait_for("the agents miss it", || (0..2).all(|i| !cluster.status(i).cluster.connected));
    assert_eq!(cluster.epoch(0), before, "the last view is kept");
    assert!((0..2).all(|i| cluster.log(&format!("log{i}")).contains("it has not answered for")));
    // Reads continue and so do the job's reports; a question about it reports immediately that
    // nobody answers.
    run_task(&cluster, &job, &path, 1);
    assert!(client.jobs().is_err());
    // They try again, and leave connections behind that it finds when it continues.
    wait_for("they have tried in vain", || {
        (0..2).all(|i| cluster.log(&format!("log{i}")).contains("it connects but does not answer"))
    });
    cluster.coordinator.go_on();
    wait_for("they are back", || (0..2).all(|i| cluster.status(i).cluster.connected));
    wait_for("the job is known again, and once", || {
        client
            .jobs()
            .is_ok_and(|jobs| jobs.len() == 1 && jobs[0].stages.first().is_some_and(|s| s.tasks_done == 2))
    });
    cluster.wait_members(2);
    assert_eq!(cluster.epoch(0).term, before.term, "it is the same coordinator");
    for task in 2..tasks {
        run_task(&cluster, &job, &path, task);
    }
    let waves = cluster.waves(0);
    assert!(waves.len() > 2 && waves.iter().all(|w| w.tasks == w.tasks_done), "{waves:?}");
    assert!(!cluster.log("coordinator.log").contains("refused a node"), "{}", cluster.log("coordinator.log"));
    drop(job);
    wait_for("nothing is kept for it", || cluster.sum("planned_bytes") == 0);
}

/// An agent played by the test, which reports much and reads nothing unless it is asked to.
pub struct Played {
    link: Framed,
    node: NodeInfo,
    answers: usize,
}

impl Played {
    fn join(address: &str, name: &str) -> Self {
        Self::join_as(address, NodeInfo { name: name.into(), capacity_bytes: 1, ..NodeInfo::default() })
    }

    pub fn join_as(address: &str, node: NodeInfo) -> Self {
        let stream = Security::Loopback.connect(address, Instant::now() + PATIENCE).unwrap();
        let mut played = Played { link: Framed::new(stream).unwrap(), node: node.clone(), answers: 0 };
        let protocol = CLUSTER_PROTOCOL;
        played.say(&ToCoordinator::Join { protocol, node, incarnation: 1, attempt: 0, term: 0 });
        played
    }

    pub fn say(&mut self, message: &ToCoordinator) {
        self.link.send(message).unwrap();
        wait_for("it is said", || self.link.flush().unwrap());
    }

    /// The messages that have come; and whether the connection has ended.
    pub fn hear_to_the_end(&mut self) -> (Vec<ToAgent>, bool) {
        let is_over = !self.link.receive().is_ok_and(|arrived| arrived != Arrived::Closed);
        (std::iter::from_fn(|| self.link.next_message::<ToAgent>().unwrap_or_default()).collect(), is_over)
    }

    /// The messages that have come.
    pub fn hear(&mut self) -> Vec<ToAgent> {
        self.link.receive().unwrap();
        std::iter::from_fn(|| self.link.next_message::<ToAgent>().unwrap()).collect()
    }

    /// Asks `count` times for all jobs, and then makes itself seen by a change of its size.
    fn ask(&mut self, count: usize) {
        (0..count)
            .for_each(|ask| self.say(&ToCoordinator::Ask { ask: ask as u64, question: Question::Jobs }));
        self.node.capacity_bytes += 1;
        self.beat();
    }

    pub fn beat(&mut self) {
        let weight_bytes = self.node.capacity_bytes;
        let beat = ToCoordinator::Heartbeat {
            weight_bytes,
            capacity_bytes: weight_bytes,
            resident_bytes: 0,
            fetched_bytes: 0,
        };
        self.say(&beat);
    }

    /// Reads what has come; false at the end of the connection.
    fn listen(&mut self) -> bool {
        let arrived = self.link.receive();
        while let Ok(Some(message)) = self.link.next_message::<ToAgent>() {
            self.answers += usize::from(matches!(message, ToAgent::Answered { .. }));
        }
        arrived.is_ok_and(|arrived| arrived != Arrived::Closed)
    }
}

/// Another node is in an I/O phase when a job begins: the planner decides during the phase, and
/// lets nodes fetch after it.
#[test]
fn a_live_planner_waits_for_the_io_phase_that_another_node_reports() {
    let pfs = plain_pfs();
    let path = pfs.path().join("data");
    make_file(&path, SEED, 8 * EXTENT);
    let mut cluster = Cluster::start_with(1, pfs.path(), "planner = \"full-delay\"\n");
    let mut hpc = Played::join(&cluster.address, "hpc");
    let update = |update| ToCoordinator::Hpc { hpc: 1, update };
    // An hour, and as long until the next one.
    let [io_ns, compute_ns] = [3_600_000_000_000; 2];
    let job = Declared { name: "hpc".into(), io_ns, compute_ns, phases: 9, weight: 1, ..Declared::default() };
    hpc.say(&update(Report::Joins(job)));
    hpc.say(&update(Report::Begins { bytes: 0, alone_ns: io_ns, deadline_ns: 0, is_observed: false }));
    cluster.wait_members(2);
    let (job, _) = begin(&cluster.client(0), &path, 1);
    let file = cluster.dir.path().join("decisions/decisions-000001.log");
    wait_for("it is planned during the phase", || {
        hpc.beat();
        std::fs::read_to_string(&file).unwrap().contains(r#""action":{"is":"decided""#)
    });
    hpc.say(&update(Report::Ends));
    wait_for("the first wave is fetched", || {
        hpc.beat();
        cluster.waves(0).first().is_some_and(|w| w.prefetch_ended_ms.is_some())
    });
    drop(job);

    let text = cluster.end_and_replay();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let at = |key: &str, is: &str| {
        let line = lines.iter().position(|line| line[key]["is"] == is || line[key]["update"]["is"] == is);
        line.unwrap_or_else(|| panic!("no {is} in {text}"))
    };
    let order = [
        at("event", "phase_begins"),
        at("action", "decided"),
        at("event", "phase_ends"),
        at("action", "fetch"),
    ];
    assert!(order.is_sorted(), "{order:?}: {text}");
    assert!(text.contains("starting at once would miss a deadline"), "{text}");
}

#[test]
fn a_measured_profile_is_in_the_first_line_of_the_decision_log_and_planners_start_from_it() {
    let pfs = plain_pfs();
    let path = pfs.path().join("data");
    make_file(&path, SEED, 8 * EXTENT);
    let dir = open_dir_in("/dev/shm");
    let at = |name: &str| dir.path().join(name);
    let (config, log, profile) = (at("coordinator.toml"), at("decisions"), at("profile.toml"));
    let text = "version = 1\n[cluster]\npfs_gb_per_s = 4\nnodes = 8\n[profile]\nbytes_gb = 50\nprefetch_s = 200\n\
                i_hpc = 1.5\ni_bd = 1.2\ndefault_nodes = 1\ndefault_threads = 3\n";
    std::fs::write(&profile, text).unwrap();
    std::fs::write(&config, format!("[cluster]\nprofile = {profile:?}\ndecision_log = {log:?}\n")).unwrap();
    let arguments = ["--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()];
    let (coordinator, address) = start_coordinator_with(dir.path(), &arguments);
    let mut cluster = Cluster::under(coordinator, address, dir, 1, pfs.path(), &[]);
    let (job, _) = begin(&cluster.client(0), &path, 1);
    wait_for("the first wave is fetched", || {
        cluster.waves(0).first().is_some_and(|w| w.prefetch_ended_ms.is_some())
    });
    drop(job);
    cluster.coordinator.end();

    let text = std::fs::read_to_string(log.join("decisions-000001.log")).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines[0].to_string().contains("\"pfs_bytes_per_s\":4000000000.0"), "{}", lines[0]);
    let decided = lines.iter().find(|line| line["action"]["is"] == "decided");
    let setting = &decided.unwrap_or_else(|| panic!("no plan in {text}"))["action"]["decision"]["steps"][0];
    assert_eq!(setting["setting"]["threads"], 3, "the profile's setting: {setting}");
    assert!(replay(&log.join("decisions-000001.log")).unwrap()["same"] == true);
}

#[test]
fn a_coordinator_whose_buffers_are_full_closes_the_slowest_connection_and_serves_the_others() {
    let (dir, pfs) = (open_dir_in("/dev/shm"), plain_pfs());
    let config = dir.path().join("coordinator.toml");
    let text = format!(
        "[cluster]\ncoordinator_listen = \"127.0.0.1:0\"\ncoordinator_buffers = \"16MiB\"\n[[mount]]\nlabel = \"pfs\"\nroot = {:?}\n",
        pfs.path()
    );
    std::fs::write(&config, text).unwrap();
    let (coordinator, address) = start_coordinator_with(dir.path(), &["--config", config.to_str().unwrap()]);
    let cluster = Cluster::under(coordinator, address, dir, 1, pfs.path(), &[]);
    // A job of so many waves that a report of it takes a while.
    let client = cluster.client(0);
    let job = client.begin_job("app", "naive-bb").unwrap();
    job.report(&[
        JobUpdate::Slots(vec![("n0".into(), 1)]),
        JobUpdate::Splits { stage: 0, splits: vec![Split::default(); 4000] },
        JobUpdate::StageReady { stage: 0 },
    ])
    .unwrap();
    wait_for("it is cut", || cluster.waves(0).len() == 4000);
    let answer = Answer::Jobs(client.jobs().unwrap());
    let answer = frame::encode(&ToAgent::Answered { ask: 0, answer }).unwrap().len();
    let count = 14 * MIB as usize / answer;

    let seen = |played: &Played| {
        let view = cluster.status(0).cluster.view;
        view.nodes
            .iter()
            .any(|n| (&n.name, n.capacity_bytes) == (&played.node.name, played.node.capacity_bytes))
    };
    let mut first = Played::join(&cluster.address, "first");
    first.ask(count);
    wait_for("the first has been answered", || seen(&first));
    assert!(!cluster.log("coordinator.log").contains("closing the slowest"), "one alone does not fill it");
    let mut second = Played::join(&cluster.address, "second");
    second.ask(count);
    wait_for("the buffers are full", || cluster.log("coordinator.log").contains("closing the slowest"));
    let log = cluster.log("coordinator.log");
    let said = log.lines().find(|line| line.contains("closing the slowest")).unwrap();
    assert!(said.contains("first") && said.contains("cluster.coordinator_buffers"), "{said}");
    // It gets what was in the socket, and then the end; the other gets all of it.
    wait_for("the first is closed", || !first.listen());
    assert!(first.answers < count, "{} of {count}", first.answers);
    wait_for("the second has all", || second.listen() && second.answers == count);
    assert!(cluster.status(0).cluster.connected && client.jobs().is_ok(), "the others were served");
    assert_eq!(cluster.log("coordinator.log").matches("closing the slowest").count(), 1);
    drop(job);
}

/// A coordinator with few bytes for what jobs report, and two agents with many.
fn cluster_of_few_reports(pfs: &Path) -> Cluster {
    let dir = open_dir_in("/dev/shm");
    let config = dir.path().join("coordinator.toml");
    let text = format!(
        "[cluster]\ncoordinator_listen = \"127.0.0.1:0\"\ncoordinator_reports = \"16MiB\"\n[[mount]]\nlabel = \"pfs\"\nroot = {pfs:?}\n",
    );
    std::fs::write(&config, text).unwrap();
    let (coordinator, address) = start_coordinator_with(dir.path(), &["--config", config.to_str().unwrap()]);
    Cluster::under(coordinator, address, dir, 2, pfs, &[512 * MIB, 512 * MIB])
}

#[test]
fn a_users_reports_beyond_the_coordinators_limit_cost_that_user_its_plans_and_nobody_else() {
    let pfs = plain_pfs();
    let cluster = cluster_of_few_reports(pfs.path());
    let start = |node: usize, uid, args: &[&str]| {
        let socket = cluster.socket(node);
        let args = [&[socket.to_str().unwrap()], args].concat();
        Helper::start_as(&socket, Some(uid), "report", &args)
    };
    let mut early = start(0, OTHER_UID + 1, &["early", "1"]);
    early.expect("reported 1");
    let named = |name: &str| {
        let jobs = cluster.client(0).jobs().unwrap_or_default();
        jobs.into_iter().filter(|job| job.name == name && !job.ended).collect::<Vec<_>>()
    };
    wait_for("the early job is planned", || named("early").iter().any(|job| !job.stages.is_empty()));
    let before_kib = crate::abuse::of_process(cluster.coordinator.pid(), "VmHWM");
    // Each job takes more than 2 MiB: these are 30 MiB at two agents, which take them all.
    let mut bombers = [start(0, OTHER_UID, &["bomb", "7"]), start(1, OTHER_UID, &["bomb", "7"])];
    bombers.iter_mut().for_each(|bomber| drop(bomber.expect("reported 7")));
    let given_up = || cluster.log("coordinator.log").matches("a job is no longer planned").count();
    wait_for("the limit has been reached", || given_up() >= 7);
    // Another user is the last to report, and takes the reports beyond the limit again.
    let at_first = given_up();
    let mut late = start(1, OTHER_UID + 2, &["late", "2"]);
    late.expect("reported 2");
    wait_for("the user with most has lost more", || given_up() > at_first);
    wait_for("the late jobs are planned", || {
        named("late").len() == 2 && named("late").iter().all(|job| !job.stages.is_empty())
    });
    assert_eq!(named("early").len(), 1);
    assert!(!named("bomb").is_empty(), "what fits of a user's jobs stays planned");
    let log = cluster.log("coordinator.log");
    let lines = log.lines().filter(|line| line.contains("no longer planned"));
    let whose = format!("uid={OTHER_UID}");
    assert!(lines.clone().all(|line| line.contains(&whose) && line.contains("coordinator_reports")), "{log}");
    let grown_bytes = (crate::abuse::of_process(cluster.coordinator.pid(), "VmHWM") - before_kib) << 10;
    assert!(grown_bytes < 16 * 4 * MIB, "the coordinator has grown by {grown_bytes} bytes");
    early.finish();
    late.finish();
    bombers.into_iter().for_each(Helper::finish);
    wait_for("all jobs have ended", || named("early").is_empty() && named("bomb").is_empty());
}

/// Begins `jobs` jobs called `name`, each with a stage of 20,000 splits, and keeps them.
pub fn report(socket: &str, name: &str, jobs: usize) {
    let raws: Vec<Raw> = (0..jobs).map(|_| Raw::connect(Path::new(socket))).collect();
    for raw in &raws {
        let updates = [
            JobUpdate::Begin { name: name.into(), planner: String::new() },
            JobUpdate::Slots(vec![("n0".into(), 2000)]),
            JobUpdate::Splits { stage: 0, splits: vec![Split::default(); 20_000] },
            JobUpdate::StageReady { stage: 0 },
        ];
        for update in updates {
            assert_eq!(raw.ask(&Request::JobUpdates(vec![update]), &[]), Reply::Done);
        }
    }
    say(&format!("reported {jobs}"));
    while hear().is_some() {}
}

/// The list of jobs has some hundred KiB here: more than a packet, so it comes in a file.
#[test]
fn long_answers_take_a_share_of_memory_and_never_cost_the_agent_its_coordinator() {
    let pfs = plain_pfs();
    let capacity = 256 * MIB;
    let cluster = Cluster::start(1, pfs.path(), &[capacity]);
    let socket = cluster.socket(0);
    let before = used(&cluster.status(0), "clients");
    let mut hoarder = Helper::start_as(&socket, Some(OTHER_UID), "hoard", &[socket.to_str().unwrap()]);
    let each: u64 = hoarder.expect("each").parse().unwrap();
    assert!(each > 300_000, "an answer has {each} bytes only");
    // All at the same time, each on a connection of its own.
    let line = hoarder.expect("got");
    let (count, refusal) = line.split_once(' ').unwrap();
    let count: u64 = count.parse().unwrap();
    assert!(count > 10 && count * each <= capacity / 8, "{count} answers of {each} bytes");
    assert!(refusal.contains("long answers of one user"), "{refusal}");
    assert!(used(&cluster.status(0), "clients") < before + capacity / 4);
    let jobs = cluster.client(0).jobs().unwrap();
    assert_eq!(jobs.len(), 1, "others are answered");
    hoarder.say("on");
    // One after the other on one connection, each kept open, and then without reading any.
    assert!(hoarder.expect("kept").parse::<u64>().unwrap() <= each + 1000);
    assert!(hoarder.expect("unread").parse::<u64>().unwrap() <= each + 1000);
    hoarder.finish();
    wait_for("the answers are released", || used(&cluster.status(0), "clients") < before + MIB);
    let log = cluster.log("log0");
    assert!(!log.contains("lost the coordinator"), "{log}");
}

/// Reports a job of many waves, and takes the list of jobs as often as it gets it.
pub fn hoard(socket: &str) {
    let limit = || Some(Instant::now() + Duration::from_secs(60));
    let ask = |raw: &Raw| raw.0.send(&Request::AskCoordinator(Question::Jobs), &[]).unwrap();
    let take = |raw: &Raw| raw.0.recv::<Reply>(limit()).unwrap();
    let bytes_of = |files: &[OwnedFd]| -> u64 {
        files.iter().map(|file| rustix::fs::fstat(file).unwrap().st_size as u64).sum()
    };
    let raw = Raw::connect(Path::new(socket));
    let mut updates = vec![
        JobUpdate::Begin { name: "waves".into(), planner: "naive-bb".into() },
        JobUpdate::Slots(vec![("n0".into(), 1)]),
    ];
    updates.extend(vec![JobUpdate::Splits { stage: 0, splits: vec![Split::default(); 15_000] }; 3]);
    updates.push(JobUpdate::StageReady { stage: 0 });
    for update in updates {
        assert_eq!(raw.ask(&Request::JobUpdates(vec![update]), &[]), Reply::Done);
    }
    let mut each = 0;
    wait_for("the stage is cut into waves", || {
        let before = std::mem::take(&mut each);
        ask(&raw);
        each = bytes_of(&take(&raw).fds);
        each > 0 && each == before
    });
    say(&format!("each {each}"));
    let crowd: Vec<Raw> = (0..100).map(|_| Raw::connect(Path::new(socket))).collect();
    crowd.iter().for_each(ask);
    let mut got = Vec::new();
    let mut why = String::new();
    for raw in &crowd {
        match take(raw) {
            answer if answer.message == Reply::Attached => got.extend(answer.fds),
            answer => why = format!("{:?}", answer.message),
        }
    }
    say(&format!("got {} {why}", got.len()));
    hear();
    drop((got, crowd));
    let kept: Vec<OwnedFd> = (0..10)
        .flat_map(|_| {
            ask(&raw);
            take(&raw).fds
        })
        .collect();
    assert_eq!(kept.len(), 10);
    say(&format!("kept {}", bytes_of(&kept)));
    (0..30).for_each(|_| ask(&raw));
    let unread: Vec<OwnedFd> = (0..30).flat_map(|_| take(&raw).fds).collect();
    say(&format!("unread {}", bytes_of(&unread)));
    while hear().is_some() {}
}

#[test]
fn a_job_whose_program_is_killed_leaves_no_prefetch_behind() {
    let Some(slow) = SlowFs::start() else { return };
    make_file(&slow.at("data"), SEED, 64 * EXTENT);
    let cluster = Cluster::start(1, &slow.mount(), &[512 * MIB]);
    // Every read takes a while: the prefetch of a wave of 32 MiB is far from done when the program
    // dies.
    slow.fault("read=delay:20ms");
    let socket = cluster.socket(0);
    let mut program = Helper::start_as(&socket, None, "waves", &[slow.at("data").to_str().unwrap(), "32"]);
    program.expect("reported");
    wait_for("the prefetch has begun", || cluster.sum("pages_planned_total") > 0);
    program.kill_9();
    wait_for("the job has ended", || cluster.client(0).jobs().is_ok_and(|jobs| jobs.iter().all(|j| j.ended)));
    wait_for("its pages may go", || cluster.sum("planned_bytes") == 0);
    wait_for("nothing is under way", || cluster.status(0).mounts[0].fetches_pending == 0);
    slow.fault("none");
    let fetched = cluster.sum("fetched_bytes");
    assert!(fetched < 32 * MIB, "the prefetch was over before the program died");
    // A heartbeat and more later it is the same.
    let reads = slow.stats().read_bytes;
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!((cluster.sum("fetched_bytes"), slow.stats().read_bytes), (fetched, reads));
}

#[test]
fn a_job_that_never_reads_what_it_has_announced_leaves_others_a_quarter_of_the_tier() {
    let pfs = plain_pfs();
    let capacity = 96 * MIB;
    make_file(&pfs.path().join("data"), SEED, 96 * EXTENT);
    make_file(&pfs.path().join("f"), SEED, 4 * MIB);
    let cluster = Cluster::start(1, pfs.path(), &[capacity]);
    let data = pfs.path().join("data");
    let mut idle =
        Helper::start_as(&cluster.socket(0), Some(OTHER_UID), "waves", &[data.to_str().unwrap(), "48"]);
    idle.expect("reported");
    wait_for("the prefetch has taken what it gets", || {
        let (before, pending) = (cluster.sum("planned_bytes"), cluster.status(0).mounts[0].fetches_pending);
        std::thread::sleep(Duration::from_millis(300));
        before > capacity / 4 && pending == 0 && cluster.sum("planned_bytes") == before
    });
    let planned = cluster.sum("planned_bytes");
    assert!(planned <= capacity / 4 * 3, "{planned} bytes of {capacity}");
    let client = cluster.client(0);
    crate::cluster::read_piece(&client, &pfs.path().join("f"), SEED, 0, 4 << 20);
    let file = client.open_with(pfs.path().join("f"), forebay_client::ReadMode::TierOnly).unwrap();
    wait_for("another user's file is cached", || file.resident_bytes() == 4 * MIB);
    assert_eq!(cluster.sum("planned_bytes"), planned, "the plan was given up: no test of both");
    idle.finish();
    wait_for("its pages may go", || cluster.sum("planned_bytes") == 0);
}

/// The body of a program with a job: reports what it will read, and lives until it is killed.
pub fn waves(path: &str, slots: u32) {
    let client = Client::from_env();
    let (job, _) = begin(&client, Path::new(path), 0);
    job.report(&[JobUpdate::Slots(vec![("n0".into(), slots)])]).unwrap();
    say("reported");
    while hear().is_some() {}
    drop(job);
}

#[test]
fn a_node_with_a_tenth_of_the_memory_gets_a_tenth_and_two_jobs_share() {
    let pfs = plain_pfs();
    let path = pfs.path().join("data");
    make_file(&path, SEED, 96 * EXTENT);
    // What the small node may plan for is less than what it owns of a wave.
    let cluster = Cluster::start(2, pfs.path(), &[640 * MIB, 64 * MIB]);
    let locations = cluster.client(0).locate(&path, 0, 96 * EXTENT).unwrap();
    let small = locations.iter().filter(|l| l.hosts == ["n1"]).count();
    assert!((1..=24).contains(&small), "{small} of 96 extents");
    let client = cluster.client(0);
    let jobs: Vec<_> = (0..2).map(|_| begin(&client, &path, 2)).collect();
    std::thread::scope(|scope| {
        for (job, tasks) in &jobs {
            let (cluster, path) = (&cluster, &path);
            scope.spawn(move || (0..*tasks).for_each(|task| run_task(cluster, job, path, task)));
        }
    });
    let known = client.jobs().unwrap();
    assert_eq!(known.len(), 2);
    for job in &known {
        assert_eq!((job.stages[0].tasks_done, job.stages[0].tasks_local), (96, 96));
    }
    drop(jobs);
    wait_for("nothing is kept", || cluster.sum("planned_bytes") == 0);
}

#[test]
fn what_is_requested_where_its_task_will_run_comes_by_way_of_its_owner_and_stays() {
    let Some(slow) = SlowFs::start() else { return };
    let path = slow.at("data");
    make_file(&path, SEED, 48 * EXTENT);
    // A fifth of what the nodes keep: whatever is not protected goes.
    let cluster = Cluster::start(2, &slow.mount(), &[40 * MIB, 40 * MIB]);
    let client = cluster.client(0);
    let owners: Vec<String> =
        client.locate(&path, 0, 48 * EXTENT).unwrap().iter().map(|l| l.hosts[0].clone()).collect();
    let preferred_nodes: Vec<String> =
        client.preferred_nodes(&path, 0, 48 * EXTENT).unwrap().iter().map(|l| l.hosts[0].clone()).collect();
    let moved =
        owners.iter().zip(&preferred_nodes).filter(|(owner, preferred_node)| owner != preferred_node).count();
    let on = |host: &str| preferred_nodes.iter().filter(|h| *h == host).count();
    assert!(moved > 2 && (on("n0"), on("n1")) == (24, 24), "{owners:?} {preferred_nodes:?}");
    let served = slow.stats().read_bytes;
    let (job, tasks) = begin_at(&client, &path, 2, |task| preferred_nodes[task as usize].clone());
    for task in 0..tasks {
        // The tasks of a wave start together, when all of its input is there.
        if task % 4 == 0 {
            wait_for("the wave is there", || {
                let waves = cluster.waves(0);
                waves.get(task as usize / 4).is_some_and(|w| w.prefetch_ended_ms.is_some())
            });
        }
        let node: usize = preferred_nodes[task as usize][1..].parse().unwrap();
        let before = counter(&cluster.status(node), "pages_demanded_total");
        run_task_at(&cluster, &job, &path, task, preferred_nodes[task as usize].clone());
        assert_eq!(counter(&cluster.status(node), "pages_demanded_total"), before, "task {task} waited");
    }
    let jobs = client.jobs().unwrap();
    let stage = &jobs[0].stages[0];
    assert_eq!((stage.waves.len(), stage.tasks_local, stage.tasks_done), (12, 48, 48), "{stage:?}");
    assert!(stage.waves.iter().all(|w| w.fetched_bytes == 4 * EXTENT && w.failed_bytes == 0), "{stage:?}");
    assert_eq!(slow.stats().read_bytes - served, 48 * EXTENT, "the PFS served each byte once");
    let pages = moved as u64 * EXTENT / PAGE;
    assert_eq!(cluster.sum("pages_from_peers_total"), pages);
    assert_eq!((cluster.sum("peer_late_total"), cluster.sum("peer_refusals_total")), (0, 0));
    drop(job);
    wait_for("nothing is kept for it", || cluster.sum("planned_bytes") == 0);
}

#[test]
fn the_pages_of_planned_requests_go_first() {
    let Some(slow) = SlowFs::start() else { return };
    let path = slow.at("data");
    make_file(&path, SEED, 32 * EXTENT);
    let cluster = Cluster::start_without_layouts(&slow.mount());
    let client = cluster.client(0);
    // Longer than it takes to feed a page, so that all orders always have one that waits.
    slow.fault("read=delay:40ms");
    let (job, _) = begin_at(&client, &path, 1, |_| "n0".into());
    wait_for("the wave and what is prefetched ahead of it", || {
        cluster.waves(0).iter().filter(|w| w.prefetch_ended_ms.is_some()).count() == 4
    });
    let ended: Vec<_> = cluster.waves(0)[..4].iter().map(|w| w.prefetch_ended_ms.unwrap()).collect();
    assert!(ended[1..].iter().all(|end| ended[0] < *end), "{ended:?}");
    assert!(
        cluster.waves(0)[4..].iter().all(|w| w.prefetch_began_ms.is_none()),
        "further ahead than allowed"
    );
    drop(job);
}

#[test]
fn with_known_layouts_each_server_sends_what_is_needed_first() {
    let Some(slow) = SlowFs::start() else { return };
    let path = slow.at("data");
    make_file(&path, SEED, 32 * EXTENT);
    let layout = forebay_pfs::layout::probe_servers(File::open(&path).unwrap().as_fd()).unwrap();
    let servers = layout.servers.len();
    assert!(layout.stripe_bytes == EXTENT && servers > 1, "each task reads from one server: {layout:?}");
    let cluster = Cluster::start(1, &slow.mount(), &[]);
    let client = cluster.client(0);
    slow.fault("read=delay:5ms");
    let served = slow.stats().read_bytes;
    let (job, tasks) = begin_at(&client, &path, 1, |_| "n0".into());
    let fetched = |cluster: &Cluster| -> Vec<u64> {
        cluster.waves(0).iter().map(|wave| wave.fetched_bytes / EXTENT).collect()
    };
    // Nobody computes: the first wave, and as many after it as are within reach.
    wait_for("the waves within reach", || fetched(&cluster).iter().sum::<u64>() == 14);
    assert_eq!(fetched(&cluster)[..7], [2; 7], "those that come first");
    assert_eq!(slow.stats().read_bytes - served, 14 * EXTENT);
    let ended: Vec<u64> = cluster.waves(0)[..7].iter().map(|w| w.prefetch_ended_ms.unwrap()).collect();
    // Two waves on, all servers have had a turn.
    assert!(ended.windows(servers / 2 + 1).all(|w| w[0] <= w[servers / 2]), "{ended:?}");
    for task in 0..tasks {
        run_task_at(&cluster, &job, &path, task, "n0".into());
    }
    assert_eq!(slow.stats().read_bytes - served, 32 * EXTENT, "the PFS served each byte once");
    drop(job);
    wait_for("nothing is kept for it", || cluster.sum("planned_bytes") == 0);
}

#[test]
fn what_an_owner_does_not_send_is_fetched_by_who_has_the_request() {
    let pfs = plain_pfs();
    let path = pfs.path().join("data");
    make_file(&path, SEED, 8 * EXTENT);
    let cluster = Cluster::start(2, pfs.path(), &[]);
    let client = cluster.client(0);
    let its: Vec<u64> = client
        .locate(&path, 0, 8 * EXTENT)
        .unwrap()
        .iter()
        .filter(|l| l.hosts == ["n1"])
        .map(|l| l.offset)
        .collect();
    assert!(!its.is_empty());
    // It hangs with all it owns, and is a member for some seconds more.
    send_signal(cluster.agents[1].pid(), libc::SIGSTOP);
    let (job, _) = begin_at(&client, &path, 1, |_| "n0".into());
    job.report(&[JobUpdate::Slots(vec![("n0".into(), 8)])]).unwrap();
    wait_for("all of it is there", || counter(&cluster.status(0), "planned_bytes") == 8 * EXTENT);
    crate::cluster::read_piece(&client, &path, SEED, its[0], EXTENT as usize);
    send_signal(cluster.agents[1].pid(), libc::SIGCONT);
    drop(job);
    wait_for("nothing is kept for it", || cluster.sum("planned_bytes") == 0);
}

#[test]
fn a_file_that_changes_between_planning_and_reading_is_not_fetched() {
    let pfs = plain_pfs();
    let path = pfs.path().join("data");
    make_file(&path, SEED, 8 * EXTENT);
    let cluster = Cluster::start(1, pfs.path(), &[]);
    let client = cluster.client(0);
    let job = client.begin_job("app", "no-action").unwrap();
    let file = client.file_ref(&path).unwrap();
    make_file(&path, SEED + 1, 8 * EXTENT);
    let part = Part { file: 0, offset: 0, len: 8 * EXTENT };
    job.report(&[
        JobUpdate::Slots(vec![("n0".into(), 1)]),
        JobUpdate::Files(vec![file]),
        JobUpdate::Splits { stage: 0, splits: vec![Split { parts: vec![part], ..Split::default() }] },
        JobUpdate::StageReady { stage: 0 },
    ])
    .unwrap();
    wait_for("the prefetch is given up", || {
        cluster.waves(0).first().is_some_and(|w| w.prefetch_ended_ms.is_some())
    });
    let waves = cluster.waves(0);
    assert_eq!((waves[0].failed_bytes, waves[0].fetched_bytes), (8 * EXTENT, 0));
    assert_eq!(cluster.sum("pages_planned_total"), 0);
    crate::cluster::read_piece(&client, &path, SEED + 1, 0, MIB as usize);
}

/// No brake would stop what the kernel has begun to read ahead.
#[test]
fn for_a_prefetch_request_the_kernel_reads_nothing_ahead() {
    let Some(slow) = SlowFs::start_read_ahead(4 * MIB) else { return };
    make_file(&slow.behind("data"), SEED, 64 * EXTENT);
    make_file(&slow.behind("other"), SEED, MIB);
    let path = slow.at("data");
    let mut other = File::open(slow.at("other")).unwrap();
    other.read_exact(&mut vec![0; MIB as usize / 2]).unwrap();
    wait_for("the kernel reads ahead for others", || slow.stats().read_bytes == MIB);
    let cluster = Cluster::start(1, &slow.mount(), &[]);
    let client = cluster.client(0);
    let before = slow.stats().read_bytes;
    let (job, _) = begin_at(&client, &path, 1, |_| "n0".into());
    wait_for("the waves within reach", || {
        cluster.waves(0).iter().map(|wave| wave.fetched_bytes).sum::<u64>() == 14 * EXTENT
    });
    assert_eq!(slow.stats().read_bytes - before, 14 * EXTENT);
    drop(job);
}

#[test]
fn of_a_columnar_file_a_prefetch_takes_what_was_reported_and_no_read_ahead() {
    const CHUNK: u64 = 64 << 10;
    let Some(slow) = SlowFs::start() else { return };
    let path = slow.at("t.parquet");
    make_file(&path, SEED, 24 * MIB);
    let cluster = Cluster::start(1, &slow.mount(), &[]);
    let client = cluster.client(0);
    let before = slow.stats().read_bytes;
    let job = client.begin_job("app", "no-action").unwrap();
    let file = client.file_ref(&path).unwrap();
    let part = |n: u64| Part { file: 0, offset: n * 4 * MIB + MIB, len: CHUNK };
    job.report(&[
        JobUpdate::Slots(vec![("n0".into(), 1)]),
        JobUpdate::Files(vec![file]),
        JobUpdate::Splits {
            stage: 0,
            splits: vec![Split { parts: (0..6).map(part).collect(), ..Split::default() }],
        },
        JobUpdate::StageReady { stage: 0 },
    ])
    .unwrap();
    wait_for("all of it is fetched", || {
        cluster.waves(0).first().is_some_and(|w| w.fetched_bytes == 6 * CHUNK)
    });
    assert_eq!(slow.stats().read_bytes - before, 6 * CHUNK);
    let last = part(5);
    crate::cluster::read_piece(&client, &path, SEED, last.offset, CHUNK as usize);
    assert_eq!(slow.stats().read_bytes - before, 6 * CHUNK, "what was fetched is there");
}

#[test]
fn parts_of_a_columnar_file_with_a_short_gap_between_them_are_one_read() {
    const CHUNK: u64 = 32 << 10;
    let Some(slow) = SlowFs::start() else { return };
    let (path, there) = (slow.at("t.parquet"), slow.at("there.parquet"));
    make_file(&path, SEED, 8 * MIB);
    make_file(&there, SEED, 8 * MIB);
    // Three parts with gaps of one chunk, which are one read, and one part far after them.
    let parts = [0, 2, 4, 64].map(|n| Part { file: 0, offset: MIB + n * CHUNK, len: CHUNK });
    for (mount, gap_chunks, most_reads) in [("merge_gap = \"32KiB\"\n", 2, 2), ("merge_gap = \"0\"\n", 0, 4)]
    {
        let cluster = Cluster::start_one(&slow.mount(), mount);
        let client = cluster.client(0);
        let begin_job = |path: &Path| {
            let job = client.begin_job("app", "no-action").unwrap();
            let splits = vec![Split { parts: parts.to_vec(), ..Split::default() }];
            job.report(&[
                JobUpdate::Slots(vec![("n0".into(), 1)]),
                JobUpdate::Files(vec![client.file_ref(path).unwrap()]),
                JobUpdate::Splits { stage: 0, splits },
                JobUpdate::StageReady { stage: 0 },
            ])
            .unwrap();
            job
        };
        let before = slow.stats();
        let job = begin_job(&path);
        wait_for("all of it is fetched", || {
            cluster.waves(0).first().is_some_and(|w| w.fetched_bytes == 4 * CHUNK)
        });
        let after = slow.stats();
        assert_eq!(after.read_bytes - before.read_bytes, (4 + gap_chunks) * CHUNK, "{mount}");
        assert_eq!(after.reads - before.reads, most_reads, "{mount}");
        for part in parts {
            crate::cluster::read_piece(&client, &path, SEED, part.offset, CHUNK as usize);
        }
        assert_eq!(slow.stats().read_bytes, after.read_bytes, "what was fetched is there");
        drop(job);

        // What is between parts that are there is not fetched.
        for part in parts {
            crate::cluster::read_piece(&client, &there, SEED, part.offset, CHUNK as usize);
        }
        let before = slow.stats().read_bytes;
        let _job = begin_job(&there);
        wait_for("all of it is there", || cluster.waves(0).iter().any(|w| w.resident_bytes == 4 * CHUNK));
        assert_eq!(slow.stats().read_bytes, before, "{mount}");
    }
}

/// Reads the file on these nodes at the same time, two readers each, which check every byte;
/// returns what the PFS served.
fn read_on(cluster: &Cluster, slow: &SlowFs, nodes: &[usize]) -> u64 {
    let before = slow.stats().read_bytes;
    std::thread::scope(|scope| {
        for node in nodes {
            for reader in 0..2 {
                let (client, path) = (cluster.client(*node), slow.at("f"));
                scope.spawn(move || crate::roles::verify_once(&client, &path, SEED, reader));
            }
        }
    });
    slow.stats().read_bytes - before
}

#[test]
fn readers_go_on_when_a_node_and_then_the_coordinator_are_killed() {
    let Some(slow) = SlowFs::start() else { return };
    let size = 12 * EXTENT + 777;
    make_file(&slow.at("f"), SEED, size);
    let mut cluster = Cluster::start(3, &slow.mount(), &[]);
    let agree = |cluster: &Cluster, nodes: &[usize], members: usize| {
        wait_for(&format!("all know the {members} members"), || {
            nodes.iter().all(|n| cluster.members(*n) == members)
        });
    };
    // The PFS is read once, unless this machine was so slow that an owner was not waited for.
    let once = |cluster: &Cluster, nodes: &[usize], served: u64| {
        let slow = ["peer_late_total", "peer_not_yet_total"];
        let waited: u64 =
            nodes.iter().flat_map(|n| slow.map(|name| counter(&cluster.status(*n), name))).sum();
        assert!(served == size || waited > 0, "{served} bytes of {size} were served");
    };
    agree(&cluster, &[0, 1, 2], 3);
    once(&cluster, &[0, 1, 2], read_on(&cluster, &slow, &[0, 1, 2]));
    assert!(cluster.sum("pages_from_peers_total") > 0);

    // What the dead node had comes from the PFS; the others keep what they have, and share what is
    // new among them.
    cluster.agents[2].kill_9();
    read_on(&cluster, &slow, &[0, 1]);
    agree(&cluster, &[0, 1], 2);
    let fresh = |cluster: &Cluster| {
        for node in [0, 1] {
            cluster.client(node).admin().evict_all().unwrap();
        }
    };
    fresh(&cluster);
    once(&cluster, &[0, 1], read_on(&cluster, &slow, &[0, 1]));

    // Without a coordinator the last view remains valid.
    cluster.coordinator.kill_9();
    wait_for("it is missed", || [0, 1].iter().all(|n| !cluster.status(*n).cluster.connected));
    fresh(&cluster);
    let came = counter(&cluster.status(0), "pages_from_peers_total");
    once(&cluster, &[0, 1], read_on(&cluster, &slow, &[0, 1]));
    assert!(counter(&cluster.status(0), "pages_from_peers_total") > came);
}

#[test]
fn prefetches_of_a_coordinator_that_hangs_rest_while_a_phase_is_under_way() {
    let Some(slow) = SlowFs::start() else { return };
    let path = slow.at("data");
    make_file(&path, SEED, 64 * EXTENT);
    let cluster = Cluster::start(1, &slow.mount(), &[]);
    let client = cluster.client(0);
    slow.limit("4MB/s");
    let hpc = forebay_client::HpcJobOptions {
        io: Duration::from_secs(3600),
        ..forebay_client::HpcJobOptions::named("sim")
    };
    let hpc = client.open_hpc_job(&hpc).unwrap();
    hpc.phase_begin(EXTENT, Duration::ZERO).unwrap();
    // `no-action` does not mind the phase, which has three minutes in hand.
    let (job, _) = begin_with(&client, &path, vec![("n0".into(), 64)], |_| String::new());
    let planned = || cluster.sum("fetched_bytes");
    wait_for("the prefetch is under way", || planned() > 2 * MIB);
    cluster.coordinator.stop();
    let (mut last, mut since) = (planned(), Instant::now());
    wait_for("it rests", || {
        if planned() != last {
            (last, since) = (planned(), Instant::now());
        }
        since.elapsed() > Duration::from_secs(1)
    });
    assert!(last < 60 * MIB, "it had come to its end before");
    assert_eq!(cluster.sum("brakes_total"), 0, "the phase is in time");
    // Readers do not depend on the coordinator.
    crate::cluster::read_piece(&client, &path, SEED, 63 * EXTENT, 4096);
    cluster.coordinator.go_on();
    wait_for("the prefetch goes on", || planned() > last + 8 * MIB);
    drop((job, hpc));
}
