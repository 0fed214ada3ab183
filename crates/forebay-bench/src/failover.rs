//! How long a thousand nodes are without a coordinator when the one that leads is killed.
//!
//! Two candidates and etcd are real processes; the agents are simulated as in [`crate::scale`], and
//! prove with certificates who they are. An agent whose connection breaks goes to the other
//! candidate and waits there until it leads. Time counts from the kill until all of them have the
//! new coordinator's list of all members. The handshakes of a thousand agents, which have a node
//! each in a real cluster, take place on the cores of this machine.

use crate::measure::{Record, Target};
use crate::rig::Rig;
use crate::scale::{AGENTS, Coordinator, Swarm, node_name};
use forebay_wire::link::Security;
use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const CANDIDATE: &str = "candidate";

/// How long etcd may take to start.
const ETCD_START: Duration = Duration::from_secs(20);

/// One group: the median time of several fail-overs.
pub fn failover(rig: &Rig) -> Result<Vec<Record>, String> {
    let count = if rig.quick { AGENTS / 10 } else { AGENTS };
    let etcd = Etcd::start(&rig.dir)?;
    let certificates = rig.dir.join("certificates");
    let mut init = Command::new(&rig.program);
    init.arg("init").arg(&certificates).args(["--node", CANDIDATE]);
    init.args((0..count).flat_map(|number| ["--node".to_owned(), node_name(number)]));
    let made = init.output().map_err(|e| e.to_string())?;
    if !made.status.success() {
        return Err(format!("forebay init: {}", String::from_utf8_lossy(&made.stderr)));
    }
    let load = |number| Security::load(&certificates.join(node_name(number)));
    let security = (0..count).map(load).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    let config = rig.dir.join("candidate.toml");
    let text = format!(
        "[cluster]\netcd = [{:?}]\ntls = {:?}\n",
        etcd.url,
        certificates.join(CANDIDATE).display().to_string()
    );
    std::fs::write(&config, text).map_err(|e| e.to_string())?;
    let start = || candidate(rig, &config);

    let mut leader = start()?;
    let mut swarm = Swarm::default();
    swarm.security = security;
    let begun = Instant::now();
    swarm.join_all(&leader.address, count)?;
    swarm.until("all have joined", |s| s.all_know(count))?;
    let joined = begun.elapsed().as_secs_f64();
    let mut seconds = Vec::new();
    let (mut connected, mut elected, mut sent) = (0_f64, 0_f64, 0_f64);
    for _ in 0..rig.runs {
        let mut next = start()?;
        // It has connected to etcd, and waits for the lease of the other one.
        swarm.run(Duration::from_secs(2))?;
        let killed = Instant::now();
        leader.kill()?;
        swarm.lose_all();
        swarm.join_all(&next.address, count)?;
        connected = connected.max(killed.elapsed().as_secs_f64());
        swarm.until("one is with the next leader", Swarm::any_is_with_the_next)?;
        elected = elected.max(killed.elapsed().as_secs_f64());
        swarm.until("one has its list", |s| s.any_is_with_the_next() && s.any_knows(count))?;
        sent = sent.max(killed.elapsed().as_secs_f64());
        swarm.until("all are with the next leader", |s| s.all_are_with_the_next() && s.all_know(count))?;
        seconds.push(killed.elapsed().as_secs_f64());
        std::mem::swap(&mut leader, &mut next);
    }
    seconds.sort_by(f64::total_cmp);
    let median = *seconds.get(seconds.len() / 2).ok_or("no runs")?;
    let worst = seconds.last().copied().unwrap_or(median);
    let note = format!(
        "from the kill of the leader until {count} simulated agents have the next one's list of all \
         members; the longest of all runs {worst:.2} s, of which {connected:.2} s until all had proved who \
         they are, {elected:.2} s until it led, and {sent:.2} s until the first had its list, which all get \
         and read on the cores of this machine; leases of 2 s in a real etcd, TLS. All {count} join a \
         leader that is there in {joined:.2} s"
    );
    Ok(vec![Record::alone("cluster.failover", median, "s", Target::AtMost(3.0), seconds.len(), &note)])
}

fn candidate(rig: &Rig, config: &Path) -> Result<Coordinator, String> {
    let log = File::options().create(true).append(true).open(rig.dir.join("candidates.log"));
    let config = config.display().to_string();
    Coordinator::start(rig, &["--config", &config], log.map_err(|e| e.to_string())?.into())
}

/// A real etcd of one member.
struct Etcd {
    child: Child,
    url: String,
}

impl Etcd {
    fn start(dir: &Path) -> Result<Self, String> {
        let free = || TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let (clients, peers) = (free().map_err(|e| e.to_string())?, free().map_err(|e| e.to_string())?);
        let (url, peers) = (format!("http://{clients}"), format!("http://{peers}"));
        let at: PathBuf = dir.join("etcd");
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(at).args(["--initial-cluster", &format!("default={peers}")]);
        command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|e| format!("etcd (package etcd-server): {e}"))?;
        let etcd = Etcd { child, url };
        let deadline = Instant::now() + ETCD_START;
        while TcpStream::connect(clients).is_err() {
            if Instant::now() > deadline {
                return Err("etcd does not start".into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(etcd)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
