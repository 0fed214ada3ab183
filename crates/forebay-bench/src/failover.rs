//! How long a thousand nodes are without a coordinator when the leader of three candidates dies, or
//! hangs.
//!
//! Candidates and three members of etcd are real processes. The agents are simulated in this one
//! ([`crate::scale`]), with TLS, since each proves who it is to the next leader. All their
//! handshakes take the cores of this machine, which real agents do side by side.
//!
//! A fail-over is over when the last agent is welcomed by a leader of a later term. Until then
//! agents keep the last view and read as before.

use crate::measure::{Record, Target, median};
use crate::rig::Rig;
use forebay_wire::NodeInfo;
use forebay_wire::cluster::{CLUSTER_PROTOCOL, ToAgent, ToCoordinator};
use forebay_wire::framed::{Arrived, Framed};
use forebay_wire::link::Security;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{self, BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const AGENTS: usize = 1000;
const CANDIDATES: usize = 3;
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Agents give a leader up that owes an answer for so long, as real ones do.
const SILENCE: Duration = Duration::from_secs(2);

/// Threads of agents: as many as handshakes can take cores here.
const THREADS: usize = 2;
const TURN: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(60);

/// One group: the leader is killed, and stopped.
pub fn failover(rig: &Rig) -> Result<Vec<Record>, String> {
    if Command::new("etcd").arg("--version").output().is_err() {
        return Ok(vec![Record::skipped("cluster.failover.kill", "no etcd here (package etcd-server)")]);
    }
    let count = if rig.quick { AGENTS / 10 } else { AGENTS };
    let mut stage = Stage::start(rig, count)?;
    let agents = (0..count).map(|n| Agent::new(&stage.certificates, n, &stage.addresses));
    let agents = agents.collect::<Result<Vec<_>, _>>()?;
    let swarm =
        Swarm { agents: agents.into_iter().map(Mutex::new).collect(), is_over: AtomicBool::new(false) };
    let times = std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let swarm = &swarm;
            scope.spawn(move || swarm.run(thread));
        }
        let times = measure(&mut stage, &swarm, rig.runs.min(5));
        swarm.is_over.store(true, Ordering::Release);
        times
    })?;
    let note = format!(
        "{count} simulated agents over TLS, three candidates, three members of etcd; until the last agent is welcomed"
    );
    let record = |id: &str, ms: &[f64]| {
        let most = ms.iter().copied().fold(0.0, f64::max);
        let note = format!("{note}; the longest of {} took {most:.0} ms", ms.len());
        Record::alone(id, median(ms.iter().copied()), "ms", Target::AtMost(3000.0), ms.len(), &note)
    };
    Ok(vec![record("cluster.failover.kill", &times.0), record("cluster.failover.stop", &times.1)])
}

/// Milliseconds from each kill, and from each stop.
fn measure(stage: &mut Stage, swarm: &Swarm, runs: usize) -> Result<(Vec<f64>, Vec<f64>), String> {
    let (mut leader, mut term) = swarm.until_led(stage, 0)?;
    let mut times = (Vec::new(), Vec::new());
    for run in 0..2 * runs {
        // Everything has settled, and nobody's heartbeats are in step with this.
        std::thread::sleep(Duration::from_millis(5000 + 137 * run as u64));
        let (is_kill, began, old) = (run % 2 == 0, Instant::now(), leader);
        stage.signal(old, if is_kill { Signal::KILL } else { Signal::STOP })?;
        (leader, term) = swarm.until_led(stage, term)?;
        let ms = began.elapsed().as_secs_f64() * 1e3;
        if leader == old {
            return Err("the leader that was killed or stopped leads".into());
        }
        match is_kill {
            true => {
                times.0.push(ms);
                stage.start_candidate(old)?;
            }
            false => {
                times.1.push(ms);
                stage.signal(old, Signal::CONT)?;
            }
        }
    }
    Ok(times)
}

/// Candidates and etcd; killed when dropped.
struct Stage {
    program: PathBuf,
    dir: PathBuf,
    certificates: PathBuf,
    etcd: Vec<Child>,
    candidates: Vec<Child>,
    addresses: Vec<String>,
}

impl Stage {
    fn start(rig: &Rig, agents: usize) -> Result<Self, String> {
        let (dir, certificates) = (rig.dir.join("failover"), rig.dir.join("failover/certificates"));
        std::fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
        let mut init = Command::new(&rig.program);
        init.arg("init").arg(&certificates);
        let names = (0..CANDIDATES).map(candidate_name).chain((0..agents).map(agent_name));
        names.for_each(|name| drop(init.args(["--node", &name])));
        let made = init.stdout(Stdio::null()).output().map_err(|e| e.to_string())?;
        if !made.status.success() {
            return Err(format!("no certificates: {}", String::from_utf8_lossy(&made.stderr)));
        }
        let (program, etcd, candidates) = (rig.program.clone(), Vec::new(), Vec::new());
        let mut stage = Stage { program, dir, certificates, etcd, candidates, addresses: Vec::new() };
        let urls = stage.start_etcd().map_err(|e| format!("cannot start etcd: {e}"))?;
        for number in 0..CANDIDATES {
            let listen = stage.addresses.get(number).cloned().unwrap_or("127.0.0.1:0".into());
            let name = candidate_name(number);
            let text = format!(
                "[cluster]\ncoordinator_listen = {listen:?}\nnode = {name:?}\ntls = {:?}\netcd = {urls:?}\n",
                stage.certificates.join(&name)
            );
            std::fs::write(stage.config(number), text).map_err(|e| e.to_string())?;
            let (child, address) = stage.candidate(number, &[])?;
            stage.candidates.push(child);
            stage.addresses.push(address);
        }
        Ok(stage)
    }

    fn config(&self, number: usize) -> PathBuf {
        self.dir.join(format!("candidate{number}.toml"))
    }

    /// With etcd's own defaults for elections; returns the members' URLs.
    fn start_etcd(&mut self) -> io::Result<Vec<String>> {
        let sockets = (0..6).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<Vec<_>>>()?;
        let urls = sockets.iter().map(|s| Ok(format!("http://{}", s.local_addr()?)));
        let urls = urls.collect::<io::Result<Vec<_>>>()?;
        drop(sockets);
        let (clients, peers) = urls.split_at(3);
        let cluster: Vec<_> = peers.iter().enumerate().map(|(i, url)| format!("m{i}={url}")).collect();
        for number in 0..3 {
            let mut command = Command::new("etcd");
            command.args(["--name", &format!("m{number}"), "--initial-cluster", &cluster.join(",")]);
            command.arg("--data-dir").arg(self.dir.join(format!("etcd{number}")));
            command.args([
                "--listen-client-urls",
                &clients[number],
                "--advertise-client-urls",
                &clients[number],
            ]);
            command.args([
                "--listen-peer-urls",
                &peers[number],
                "--initial-advertise-peer-urls",
                &peers[number],
            ]);
            let log = std::fs::File::create(self.dir.join(format!("etcd{number}.log")))?;
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            self.etcd.push(command.spawn()?);
        }
        Ok(clients.to_vec())
    }

    fn candidate(&self, number: usize, more: &[&str]) -> Result<(Child, String), String> {
        let log = std::fs::OpenOptions::new().create(true).append(true);
        let log =
            log.clone().open(self.dir.join(format!("candidate{number}.log"))).map_err(|e| e.to_string())?;
        let mut command = Command::new(&self.program);
        command.args(["coordinator", "--config"]).arg(self.config(number)).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).env_remove("FOREBAY_CONFIG");
        let mut child = command.spawn().map_err(|e| format!("cannot start a candidate: {e}"))?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line).map_err(|e| e.to_string())?;
        }
        let address = line.trim().rsplit(' ').next().unwrap_or_default().to_owned();
        if address.is_empty() { Err("a candidate did not start".into()) } else { Ok((child, address)) }
    }

    fn start_candidate(&mut self, number: usize) -> Result<(), String> {
        self.candidates[number].wait().map_err(|e| e.to_string())?;
        let address = self.addresses[number].clone();
        self.candidates[number] = self.candidate(number, &["--listen", &address])?.0;
        Ok(())
    }

    fn signal(&self, number: usize, signal: Signal) -> Result<(), String> {
        kill_process(Pid::from_child(&self.candidates[number]), signal).map_err(|e| e.to_string())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for child in self.candidates.iter_mut().chain(&mut self.etcd) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn candidate_name(number: usize) -> String {
    format!("candidate-{number}")
}

fn agent_name(number: usize) -> String {
    format!("node-{number:04}")
}

/// All agents.
struct Swarm {
    agents: Vec<Mutex<Agent>>,
    is_over: AtomicBool,
}

impl Swarm {
    /// Some agents live.
    fn run(&self, thread: usize) {
        while !self.is_over.load(Ordering::Acquire) {
            for agent in self.agents.iter().skip(thread).step_by(THREADS) {
                agent.lock().unwrap_or_else(std::sync::PoisonError::into_inner).turn();
            }
            std::thread::sleep(TURN);
        }
    }

    /// Waits until all are welcomed by one leader of a later term than `after`.
    fn until_led(&self, stage: &Stage, after: u64) -> Result<(usize, u64), String> {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            let led = |agent: &Mutex<Agent>| {
                let agent = agent.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                (agent.is_welcome && agent.term > after).then(|| (agent.term, agent.address.clone()))
            };
            let led: Option<Vec<_>> = self.agents.iter().map(led).collect();
            if let Some((term, address)) = led.and_then(|all| {
                let first = all.first()?.clone();
                all.iter().all(|one| one.0 == first.0).then_some(first)
            }) {
                let number = stage.addresses.iter().position(|a| *a == address);
                return number.map(|number| (number, term)).ok_or("an unknown leader".into());
            }
            std::thread::sleep(TURN);
        }
        Err("waited in vain for a leader of all agents".into())
    }
}

struct Agent {
    security: Security,
    number: usize,
    candidates: Vec<String>,
    next: usize,
    named: Option<String>,
    link: Option<Framed>,
    address: String,
    is_welcome: bool,
    term: u64,
    next_heartbeat: Instant,
    /// The first heartbeat that is not answered.
    asked: Option<Instant>,
    attempt: u64,
}

impl Agent {
    fn new(certificates: &Path, number: usize, candidates: &[String]) -> Result<Self, String> {
        let security = Security::load(&certificates.join(agent_name(number))).map_err(|e| e.to_string())?;
        Ok(Agent {
            security,
            number,
            candidates: candidates.to_vec(),
            next: number,
            named: None,
            link: None,
            address: String::new(),
            is_welcome: false,
            term: 0,
            next_heartbeat: Instant::now(),
            asked: None,
            attempt: 0,
        })
    }

    fn turn(&mut self) {
        if self.talk().is_err() {
            self.link = None;
            self.is_welcome = false;
        }
    }

    fn talk(&mut self) -> io::Result<()> {
        let mut link = match self.link.take() {
            Some(link) => link,
            None => self.join()?,
        };
        let arrived = link.receive()?;
        while let Some(message) = link.next_message::<ToAgent>()? {
            self.asked = None;
            match message {
                ToAgent::Welcome { refusal, leader, .. } if !refusal.is_empty() => {
                    self.named = Some(leader).filter(|leader| !leader.is_empty());
                    return Err(io::Error::other(refusal));
                }
                ToAgent::Welcome { term, .. } => {
                    (self.is_welcome, self.term, self.next_heartbeat) =
                        (true, term, Instant::now() + HEARTBEAT);
                }
                _ => {}
            }
        }
        if arrived == Arrived::Closed {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.beat(&mut link)?;
        link.flush()?;
        self.link = Some(link);
        Ok(())
    }

    fn beat(&mut self, link: &mut Framed) -> io::Result<()> {
        let now = Instant::now();
        if self.asked.is_some_and(|asked| now.duration_since(asked) > SILENCE) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if self.is_welcome && now >= self.next_heartbeat {
            self.next_heartbeat += HEARTBEAT;
            self.asked.get_or_insert(now);
            let (weight_bytes, capacity_bytes, resident_bytes, fetched_bytes) =
                (64 << 30, 64 << 30, 1 << 30, 1 << 30);
            link.send(&ToCoordinator::Heartbeat {
                weight_bytes,
                capacity_bytes,
                resident_bytes,
                fetched_bytes,
            })?;
        }
        Ok(())
    }

    /// Connects to the candidate that was named, or to the next one.
    fn join(&mut self) -> io::Result<Framed> {
        self.address = self.named.take().unwrap_or_else(|| {
            self.next += 1;
            self.candidates[self.next % CANDIDATES].clone()
        });
        (self.asked, self.is_welcome) = (None, false);
        let stream = self.security.connect(&self.address, Instant::now() + Duration::from_secs(1))?;
        let mut link = Framed::new(stream)?;
        let node = NodeInfo {
            name: agent_name(self.number),
            capacity_bytes: 64 << 30,
            mounts: vec!["pfs".into()],
            extent_bytes: vec![128 << 20],
            ..NodeInfo::default()
        };
        self.attempt += 1;
        let (protocol, attempt, term) = (CLUSTER_PROTOCOL, self.attempt, self.term);
        link.send(&ToCoordinator::Join { protocol, node, incarnation: 1, attempt, term })?;
        Ok(link)
    }
}
