//! A coordinator of a thousand nodes: what it costs while nothing happens, how long a change takes
//! to reach everybody, and how much of the placement it moves.
//!
//! The coordinator is a real process. The agents are simulated in this one: each has its own
//! connection, joins, beats once a second and decodes every view it is sent, as a real one does. So
//! the times include a thousand agents' decoding on the cores of one machine, which real agents do
//! side by side.

use crate::measure::{Record, Target};
use crate::rig::Rig;
use forebay_policy::placement::{Member, extent_key, node_number, owner};
use forebay_wire::cluster::{CLUSTER_PROTOCOL, ToAgent, ToCoordinator};
use forebay_wire::framed::Framed;
use forebay_wire::link::Security;
use forebay_wire::{ClusterView, NodeInfo};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

pub(crate) const AGENTS: usize = 1000;

/// How long the coordinator's processor time is watched.
const WATCH: Duration = Duration::from_secs(30);

const HEARTBEAT: Duration = Duration::from_secs(1);

/// Threads in which agents connect. Proving that both ends are of one user costs some 20 ms of
/// searching the kernel's table of sockets (there is none of that over TLS); more threads would
/// only keep the agents that have joined from beating.
const JOINERS: usize = 2;

/// How often simulated agents look at their sockets: the resolution of the times.
const TURN: Duration = Duration::from_millis(20);

/// A change that has not reached everybody by then is lost.
const PATIENCE: Duration = Duration::from_secs(60);

/// Extents looked at before and after a join; the share that moves is then known to about a tenth
/// of itself.
const EXTENTS: u64 = 100_000;

/// One group: CPU, join, leave, extents moved.
pub fn scale(rig: &Rig) -> Result<Vec<Record>, String> {
    let count = if rig.quick { AGENTS / 10 } else { AGENTS };
    let mut coordinator = Coordinator::start(rig, &[], Stdio::null())?;
    let mut swarm = Swarm::default();
    swarm.join_all(&coordinator.address, count)?;
    swarm.until("all have joined", |s| s.all_know(count))?;
    let before = swarm.view()?;

    let started = Instant::now();
    let cpu_before = coordinator.cpu_seconds()?;
    let watch = if rig.quick { WATCH / 10 } else { WATCH };
    swarm.run(watch)?;
    let cores = (coordinator.cpu_seconds()? - cpu_before) / started.elapsed().as_secs_f64();

    let started = Instant::now();
    swarm.join(&coordinator.address, count)?;
    swarm.until("the new one is known to all", |s| s.all_know(count + 1))?;
    let join_ms = started.elapsed().as_secs_f64() * 1e3;
    let after = swarm.view()?;

    let started = Instant::now();
    swarm.leave()?;
    swarm.until("it is gone for all", |s| s.all_know(count))?;
    let leave_ms = started.elapsed().as_secs_f64() * 1e3;
    coordinator.end()?;
    // Last: it takes longer than a node may be silent.
    let moved = moved_share(&before, &after);

    let note = format!("{count} simulated agents, a heartbeat a second, one real coordinator");
    let record =
        |id: &str, value: f64, unit: &str, target: Target| Record::alone(id, value, unit, target, 1, &note);
    Ok(vec![
        record("cluster.scale.cpu", cores, "cores", Target::AtMost(0.2)),
        record("cluster.scale.join", join_ms, "ms", Target::AtMost(2000.0)),
        record("cluster.scale.leave", leave_ms, "ms", Target::AtMost(2000.0)),
        // Three standard deviations of the sample.
        Record::pairs(
            "cluster.scale.moved",
            &[(moved, 1.0 / (count + 1) as f64)],
            "share",
            Target::RatioAtMost(1.3),
            "extents whose owner changes when one of n equal nodes joins; reference: 1/n",
        ),
    ])
}

/// Name of the agent with this number.
pub(crate) fn node_name(number: usize) -> String {
    format!("node-{number:04}")
}

/// The share of extents that have another owner in `after`.
fn moved_share(before: &ClusterView, after: &ClusterView) -> f64 {
    let members = |view: &ClusterView| -> Vec<Member> {
        let member = |n: &NodeInfo| Member { node: node_number(&n.name), weight: n.capacity_bytes as f64 };
        view.nodes.iter().map(member).collect()
    };
    let (before, after) = (members(before), members(after));
    let keys = (0..EXTENTS).map(|extent| extent_key("pfs", extent % 97, extent));
    keys.filter(|key| owner(*key, &before) != owner(*key, &after)).count() as f64 / EXTENTS as f64
}

/// A coordinator's process.
pub(crate) struct Coordinator {
    child: Child,
    pub(crate) address: String,
}

impl Coordinator {
    pub(crate) fn start(rig: &Rig, more: &[&str], log: Stdio) -> Result<Self, String> {
        let mut command = Command::new(&rig.program);
        command.args(["coordinator", "--listen", "127.0.0.1:0"]).args(more).env_remove("FOREBAY_CONFIG");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().map_err(|e| format!("cannot start a coordinator: {e}"))?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line).map_err(|e| e.to_string())?;
        }
        let address = line.trim().rsplit(' ').next().unwrap_or_default().to_owned();
        let coordinator = Coordinator { child, address };
        if coordinator.address.is_empty() {
            Err("the coordinator did not start".into())
        } else {
            Ok(coordinator)
        }
    }

    /// Processor time that its threads have used, by the scheduler's own count: it contains short
    /// pieces of work between two ticks of the clock.
    pub(crate) fn cpu_seconds(&self) -> Result<f64, String> {
        let path = format!("/proc/{}/task", self.child.id());
        let failed = |e: std::io::Error| format!("{path}: {e}");
        let mut ns = 0;
        for task in std::fs::read_dir(&path).map_err(failed)? {
            // A thread may end meanwhile.
            let counts = std::fs::read_to_string(task.map_err(failed)?.path().join("schedstat"));
            let first = counts.ok().and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
            ns += first.unwrap_or(0);
        }
        Ok(ns as f64 / 1e9)
    }

    /// Kills it with `SIGKILL`.
    pub(crate) fn kill(&mut self) -> Result<(), String> {
        self.child.kill().and_then(|()| self.child.wait().map(drop)).map_err(|e| e.to_string())
    }

    pub(crate) fn end(&mut self) -> Result<(), String> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).map_err(|e| e.to_string())?;
        let status = self.child.wait().map_err(|e| e.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("the coordinator ended with {status}")) }
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The simulated agents.
#[derive(Default)]
pub(crate) struct Swarm {
    agents: Vec<Simulated>,
    last_turn: Option<Instant>,
    /// How each agent proves who it is; if empty, all do so as processes of the same user.
    pub(crate) security: Vec<Security>,
    /// Term of the last coordinator that they knew.
    term: u64,
}

struct Simulated {
    link: Framed,
    next_heartbeat: Instant,
    view: ClusterView,
    is_welcome: bool,
    term: u64,
    address: String,
    number: usize,
}

impl Swarm {
    /// Joins many agents at about the same time, as when a cluster starts; those that have joined
    /// beat while the others come.
    pub(crate) fn join_all(&mut self, address: &str, count: usize) -> Result<(), String> {
        let (send, joined) = channel();
        let (security, term) = (self.security.clone(), self.term);
        std::thread::scope(|scope| {
            for first in 0..JOINERS {
                let (send, security) = (send.clone(), &security);
                scope.spawn(move || {
                    for number in (first..count).step_by(JOINERS) {
                        if send.send(Simulated::join(address, number, security.get(number), term)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(send);
            loop {
                match joined.recv_timeout(TURN) {
                    Ok(agent) => self.agents.push(agent?),
                    Err(RecvTimeoutError::Timeout) => self.turn()?,
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                }
                if self.last_turn.is_none_or(|at| at.elapsed() > HEARTBEAT / 4) {
                    self.turn()?;
                }
            }
        })
    }

    fn join(&mut self, address: &str, number: usize) -> Result<(), String> {
        self.agents.push(Simulated::join(address, number, self.security.get(number), self.term)?);
        self.turn()
    }

    /// Disconnects all from their coordinator, and remembers its term.
    pub(crate) fn lose_all(&mut self) {
        self.term = self.agents.iter().map(|agent| agent.term).max().unwrap_or(0);
        self.agents.clear();
    }

    /// Returns whether one has joined a coordinator of a later term than the one that it lost.
    pub(crate) fn any_is_with_the_next(&self) -> bool {
        self.agents.iter().any(|agent| agent.term > self.term)
    }

    /// Returns whether all have joined a coordinator of a later term than the one that they lost.
    pub(crate) fn all_are_with_the_next(&self) -> bool {
        self.agents.iter().all(|agent| agent.term > self.term)
    }

    /// The agent with this number sends a message.
    pub(crate) fn say(&mut self, number: usize, message: &ToCoordinator) -> Result<(), String> {
        let agent = self.agents.get_mut(number).ok_or("no such agent")?;
        agent.link.send(message).map_err(|e| e.to_string())?;
        agent.link.flush().map(drop).map_err(|e| e.to_string())
    }

    /// The last agent leaves.
    fn leave(&mut self) -> Result<(), String> {
        let mut last = self.agents.pop().ok_or("nobody is there")?;
        last.link.send(&ToCoordinator::Leave).map_err(|e| e.to_string())?;
        last.link.flush().map_err(|e| e.to_string())?;
        Ok(())
    }

    /// Every agent reads what has come, and beats if it is time to.
    pub(crate) fn turn(&mut self) -> Result<(), String> {
        let now = Instant::now();
        self.last_turn = Some(now);
        for agent in &mut self.agents {
            // One that a busy machine has kept from beating was thrown out; as a real one, it comes
            // back.
            if agent.turn(now).is_err() {
                let security = self.security.get(agent.number);
                *agent = Simulated::join(&agent.address, agent.number, security, self.term)?;
            }
        }
        Ok(())
    }

    /// Runs the agents for some time, in which nothing else happens.
    pub(crate) fn run(&mut self, time: Duration) -> Result<(), String> {
        let started = Instant::now();
        while started.elapsed() < time {
            self.turn()?;
            std::thread::sleep(TURN);
        }
        Ok(())
    }

    pub(crate) fn until(&mut self, what: &str, done: impl Fn(&Swarm) -> bool) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            if Instant::now() > deadline {
                return Err(format!("waited in vain until {what}"));
            }
            self.turn()?;
            std::thread::sleep(TURN);
        }
        Ok(())
    }

    pub(crate) fn any_knows(&self, count: usize) -> bool {
        self.agents.iter().any(|a| a.view.nodes.len() == count)
    }

    pub(crate) fn all_know(&self, count: usize) -> bool {
        self.agents.iter().all(|a| a.view.nodes.len() == count)
    }

    fn view(&self) -> Result<ClusterView, String> {
        self.agents.first().map(|a| a.view.clone()).ok_or_else(|| "nobody is there".to_owned())
    }
}

impl Simulated {
    fn join(address: &str, number: usize, security: Option<&Security>, term: u64) -> Result<Self, String> {
        let failed = |e: std::io::Error| format!("agent {number}: {e}");
        let security = security.unwrap_or(&Security::Loopback);
        let stream = security.connect(address, Instant::now() + PATIENCE).map_err(failed)?;
        let mut link = Framed::new(stream).map_err(failed)?;
        let node = NodeInfo {
            name: node_name(number),
            host: format!("node-{number:04}.cluster"),
            address: format!("127.0.0.1:{}", 20_000 + number),
            capacity_bytes: 64 << 30,
            mounts: vec!["pfs".into()],
            extent_bytes: vec![128 << 20],
            ..NodeInfo::default()
        };
        link.send(&ToCoordinator::Join {
            protocol: CLUSTER_PROTOCOL,
            node,
            incarnation: 1,
            attempt: 0,
            term,
        })
        .map_err(failed)?;
        link.flush().map_err(failed)?;
        let (address, view) = (address.to_owned(), ClusterView::default());
        Ok(Simulated {
            link,
            next_heartbeat: Instant::now() + HEARTBEAT,
            view,
            is_welcome: false,
            term: 0,
            address,
            number,
        })
    }

    fn turn(&mut self, now: Instant) -> std::io::Result<()> {
        self.link.receive()?;
        while let Some(message) = self.link.next_message::<ToAgent>()? {
            match message {
                ToAgent::Members(view) => self.view = view,
                ToAgent::Welcome { refusal, .. } if !refusal.is_empty() => {
                    return Err(std::io::Error::other(refusal));
                }
                ToAgent::Welcome { term, .. } => (self.is_welcome, self.term) = (true, term),
                _ => {}
            }
        }
        // A candidate keeps the joins of agents that send nothing more until there is a leader.
        if self.is_welcome && now >= self.next_heartbeat {
            self.next_heartbeat += HEARTBEAT;
            let (resident_bytes, fetched_bytes) = (1 << 30, 1 << 30);
            self.link.send(&ToCoordinator::Heartbeat {
                weight_bytes: 64 << 30,
                capacity_bytes: 64 << 30,
                resident_bytes,
                fetched_bytes,
            })?;
        }
        self.link.flush()?;
        Ok(())
    }
}
