//! Pages between two agents on this machine: how fast they come, and how often the PFS is read.

use crate::measure::{Record, Target, in_turn, seconds};
use crate::rig::{AgentProcess, Rig, make_file};
use crate::scale::Coordinator;
use forebay_client::Client;
use std::fs::File;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Files of one extent each, so that a file has one owner.
const FILES: u64 = 8;

/// Connections from one agent to another.
const STREAMS: u64 = 8;

const PATIENCE: Duration = Duration::from_secs(60);

/// Two agents and their coordinator; dropping it ends them in this order, and drops the tiers.
pub struct Pair {
    agents: Vec<AgentProcess>,
    coordinator: Coordinator,
}

fn failed(what: &str, e: impl std::fmt::Display) -> String {
    format!("cannot {what}: {e}")
}

impl Pair {
    /// Both agents are members when this returns.
    pub fn start(rig: &Rig, pfs: &Path, capacity: &str, extent: &str) -> Result<Self, String> {
        let coordinator = Coordinator::start(rig, &[], Stdio::inherit())?;
        let mut pair = Pair { agents: vec![], coordinator };
        for node in ["node0", "node1"] {
            let address = &pair.coordinator.address;
            let more = format!(
                "extent_size = \"{extent}\"\n[cluster]\nnode = \"{node}\"\nlisten = \"127.0.0.1:0\"\n\
                 coordinator = \"{address}\"\npeer_deadline_ms = 30000\n"
            );
            let agent = rig.agent_by(Command::new(&rig.program), node, &more, pfs, capacity)?;
            pair.agents.push(agent);
        }
        let deadline = Instant::now() + PATIENCE;
        while !(0..2).all(|n| pair.client(n).members().is_ok_and(|v| v.nodes.len() == 2)) {
            if Instant::now() > deadline {
                return Err("the two agents do not find each other".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(pair)
    }

    /// A client of a node's agent.
    pub fn client(&self, node: usize) -> Client {
        self.agents[node].client()
    }

    /// Kills the coordinator, and waits until both agents miss it.
    pub fn kill_coordinator(&mut self) -> Result<(), String> {
        self.coordinator.kill()?;
        let deadline = Instant::now() + PATIENCE;
        let misses = |node| self.client(node).admin().status().is_ok_and(|s| !s.cluster.connected);
        while !(0..2).all(misses) {
            if Instant::now() > deadline {
                return Err("the agents do not miss their coordinator".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn counter(&self, node: usize, name: &str) -> Result<u64, String> {
        let status = self.client(node).admin().status().map_err(|e| failed("ask an agent", e))?;
        let found = status.counters.iter().find(|(n, _)| n == name).map(|c| c.1);
        found.ok_or_else(|| format!("no counter {name}"))
    }
}

fn load(client: &Client, paths: &[PathBuf]) -> Result<(), String> {
    let load = || -> std::io::Result<()> {
        let mut load = client.load(0)?;
        paths.iter().try_for_each(|path| load.add(path))?;
        load.flush()?;
        while !load.poll(Duration::from_secs(10))?.idle {}
        match load.failures().first() {
            None => Ok(()),
            Some(failure) => Err(std::io::Error::other(failure.message.clone())),
        }
    };
    load().map_err(|e| failed("load", e))
}

/// GB/s of whole pages from the other node's tier into this one's, beside a bare `sendfile` of as
/// many bytes.
pub fn page(rig: &Rig) -> Result<Vec<Record>, String> {
    let bytes = rig.sized(64 << 20);
    let paths: Vec<_> = (0..FILES).map(|i| rig.directory_pfs().join(format!("file{i}"))).collect();
    for (i, path) in paths.iter().enumerate() {
        make_file(path, bytes - (i as u64) * 4096)?;
    }
    let pair = Pair::start(rig, &rig.directory_pfs(), "2GiB", "128MiB")?;
    let here = pair.client(0);
    // Into their owners' tiers; the files that the other node owns are what is measured.
    load(&here, &paths)?;
    let away = |path: &&PathBuf| here.open(path).is_ok_and(|file| file.resident_bytes() == 0);
    let paths: Vec<_> = paths.iter().filter(away).cloned().collect();
    let total: u64 = paths.iter().map(|p| std::fs::metadata(p).map_or(0, |m| m.len())).sum();
    if total == 0 {
        return Err("the other node owns none of the files".into());
    }
    let before = (pair.counter(0, "from_peers_bytes")?, pair.counter(0, "fetched_bytes")?);
    let mut passes = 0;
    let mut ours = || {
        here.admin().evict_all().map_err(|e| failed("evict", e))?;
        for path in &paths {
            here.admin().pin(path, true).map_err(|e| failed("pin", e))?;
        }
        let started = Instant::now();
        load(&here, &paths)?;
        let elapsed = started.elapsed().as_secs_f64();
        for path in &paths {
            here.admin().pin(path, false).map_err(|e| failed("unpin", e))?;
        }
        passes += 1;
        Ok(total as f64 / elapsed / 1e9)
    };
    let tmpfs = rig.bare_tmpfs()?;
    let bare = tmpfs.path.join("bare");
    make_file(&bare, total)?;
    let one = in_turn(rig.runs, &mut ours, || bare_streams(&bare, total, 1))?;
    let many = in_turn(rig.runs, &mut ours, || bare_streams(&bare, total, STREAMS))?;
    let came = pair.counter(0, "from_peers_bytes")? - before.0;
    if came != total * passes || pair.counter(0, "fetched_bytes")? != before.1 {
        return Err(format!("{came} bytes came from the peer, not {passes} times {total}"));
    }
    let note = "whole pages from a peer's tier by a load of a pinned file; reference: sendfile from such a tmpfs into one \
                buffer, one stream over loopback TCP";
    let many_note = "the same; reference: as many concurrent bare streams as connections to a peer";
    Ok(vec![
        Record::pairs("peer.page", &one, "GB/s", Target::RatioAtLeast(0.8), note),
        Record::pairs("peer.page.streams", &many, "GB/s", Target::Report, many_note),
    ])
}

/// GB/s of `streams` `sendfile`s over loopback TCP, each of its part of the file to a thread that
/// reads into a buffer of 1 MiB.
fn bare_streams(path: &Path, bytes: u64, streams: u64) -> Result<f64, String> {
    let part = bytes / streams;
    let elapsed = seconds(|| {
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..streams).map(|i| scope.spawn(move || bare_stream(path, i * part, part))).collect();
            threads.into_iter().try_for_each(|t| {
                t.join().unwrap_or_else(|_| Err(std::io::Error::other("a stream has panicked")))
            })
        })
    })?;
    Ok((part * streams) as f64 / elapsed / 1e9)
}

fn bare_stream(path: &Path, start: u64, len: u64) -> std::io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let file = File::open(path)?;
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || -> std::io::Result<()> {
            let (socket, _) = listener.accept()?;
            let (mut offset, end) = (start, start + len);
            while offset < end {
                let left = (end - offset) as usize;
                if rustix::fs::sendfile(&socket, &file, Some(&mut offset), left)? == 0 {
                    break;
                }
            }
            Ok(())
        });
        let mut socket = TcpStream::connect(address)?;
        let (mut buffer, mut left) = (vec![0; 1 << 20], len);
        while left > 0 {
            match socket.read(&mut buffer)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                n => left -= n as u64,
            }
        }
        sender.join().unwrap_or_else(|_| Err(std::io::Error::other("the sender has panicked")))
    })
}

/// Two agents, on each of which a process reads a whole cold file at the same time: bytes of the
/// PFS per byte of the file.
pub fn cold(rig: &Rig) -> Result<Vec<Record>, String> {
    let bytes = rig.sized(128 << 20);
    let slow = rig.slow_pfs(4, 50_000_000)?;
    let path = slow.mount().join("data");
    make_file(&rig.dir.join("backing/data"), bytes)?;
    let pair = Pair::start(rig, slow.mount(), "1GiB", "8MiB")?;
    let before = slow.stats().map_err(|e| e.to_string())?.read_bytes;
    let start = |node: usize| {
        let mut command = Command::new(&rig.program);
        command.arg("--socket").arg(pair.agents[node].socket()).arg("cat").arg(&path);
        command.stdout(Stdio::null()).spawn().map_err(|e| failed("start a reader", e))
    };
    let readers = (0..2).map(start).collect::<Result<Vec<_>, _>>()?;
    for mut reader in readers {
        if !reader.wait().map_err(|e| failed("wait for a reader", e))?.success() {
            return Err("a reader failed".into());
        }
    }
    let served = slow.stats().map_err(|e| e.to_string())?.read_bytes - before;
    let came = pair.counter(0, "from_peers_bytes")? + pair.counter(1, "from_peers_bytes")?;
    if came == 0 {
        return Err("nothing came from a peer".into());
    }
    let note = "two agents, a process on each reads one cold file, both at once: bytes the PFS served per byte of the file";
    let value = served as f64 / bytes as f64;
    Ok(vec![Record::alone("peer.cold", value, "per byte", Target::AtMost(1.0), 1, note)])
}
