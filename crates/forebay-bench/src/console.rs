//! What the web console costs a coordinator of a hundred nodes with ten analytics jobs: the
//! processor time while a page polls ten times a second, less the time while none does.
//!
//! The coordinator is a real process, and the page is a loop that asks for what has changed, as the
//! real one does. Agents are simulated; they beat once a second and report their jobs.

use crate::measure::{Record, Target};
use crate::rig::Rig;
use crate::scale::{Coordinator, Swarm};
use forebay_pfs::FileVersion;
use forebay_wire::cluster::ToCoordinator;
use forebay_wire::{FileRef, JobUpdate, Part, Split};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const NODES: usize = 100;
const JOBS: u64 = 10;
const TASKS: u32 = 1400;
const SLOTS: u32 = 200;
const MIB: u64 = 1 << 20;

/// How long each half is watched.
const WATCH: Duration = Duration::from_secs(20);

/// Time between two polls of a page.
const POLL: Duration = Duration::from_millis(100);

const TURN: Duration = Duration::from_millis(20);

const PATIENCE: Duration = Duration::from_secs(10);

/// One group: processor time and updates per second.
pub fn console(rig: &Rig) -> Result<Vec<Record>, String> {
    let watch = if rig.quick { WATCH / 10 } else { WATCH };
    let log = rig.dir.join("coordinator.log");
    let file = std::fs::File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
    let mut coordinator = Coordinator::start(rig, &["--console", "127.0.0.1:0"], file.into())?;
    let address = address_in(&log)?;
    let mut swarm = Swarm::default();
    swarm.join_all(&coordinator.address, NODES)?;
    swarm.until("all have joined", |s| s.all_know(NODES))?;
    for job in 1..=JOBS {
        swarm.say(job as usize, &ToCoordinator::Job { job, uid: 1000, updates: updates(job) })?;
    }
    swarm.run(watch / 4)?;
    let alone = cores(&coordinator, &mut swarm, watch)?;
    let stop = AtomicBool::new(false);
    let (watched, polled) = std::thread::scope(|scope| {
        let page = scope.spawn(|| poll(&address, &stop));
        let watched = cores(&coordinator, &mut swarm, watch);
        stop.store(true, Ordering::Release);
        (watched, page.join().unwrap_or_else(|_| Err("the page has panicked".into())))
    });
    let (watched, polled) = (watched?, polled?);
    coordinator.end()?;
    let note = format!(
        "{NODES} simulated agents, {JOBS} jobs with {TASKS} tasks each; {} bytes an update; {alone:.4} cores without a page",
        polled.bytes / polled.updates.max(1)
    );
    let record =
        |id: &str, value: f64, unit: &str, target: Target| Record::alone(id, value, unit, target, 1, &note);
    let rate = polled.updates as f64 / polled.seconds;
    Ok(vec![
        record("cluster.console.cpu", watched - alone, "cores", Target::AtMost(0.05)),
        record("cluster.console.updates", rate, "updates/s", Target::AtLeast(9.0)),
    ])
}

fn address_in(log: &Path) -> Result<String, String> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let line = text.lines().find(|line| line.contains("console is served"));
        if let Some(rest) = line.and_then(|line| line.split("127.0.0.1:").nth(1)) {
            let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
            return Ok(format!("127.0.0.1:{port}"));
        }
        std::thread::sleep(TURN);
    }
    Err(format!("the console is not served; see {}", log.display()))
}

/// A job of seven waves.
fn updates(job: u64) -> Vec<JobUpdate> {
    let version = FileVersion { ino: job, size: u64::from(TASKS) * MIB, mtime_ns: 1, ctime_ns: 1 };
    let file = FileRef { mount: "pfs".into(), path: format!("job-{job}").into_bytes(), version };
    let split = |task: u32| Split {
        parts: vec![Part { file: 0, offset: u64::from(task) * MIB, len: MIB }],
        preferred_node: String::new(),
    };
    let host = |slot: u32| format!("node-{:04}.cluster", slot % NODES as u32);
    let mut updates = vec![
        JobUpdate::Begin { name: format!("app-{job}"), planner: String::new() },
        JobUpdate::Slots((0..NODES as u32).map(|node| (host(node), SLOTS / NODES as u32)).collect()),
        JobUpdate::Files(vec![file]),
        JobUpdate::Splits { stage: 0, splits: (0..TASKS).map(split).collect() },
        JobUpdate::StageReady { stage: 0 },
    ];
    updates.extend((0..SLOTS).map(|task| JobUpdate::TaskStarted { stage: 0, task, host: host(task) }));
    updates
}

fn cores(coordinator: &Coordinator, swarm: &mut Swarm, time: Duration) -> Result<f64, String> {
    let (started, before) = (Instant::now(), coordinator.cpu_seconds()?);
    swarm.run(time)?;
    Ok((coordinator.cpu_seconds()? - before) / started.elapsed().as_secs_f64())
}

struct Polled {
    updates: u64,
    bytes: u64,
    seconds: f64,
}

/// Polls as the page does.
fn poll(address: &str, stop: &AtomicBool) -> Result<Polled, String> {
    let failed = |e: std::io::Error| format!("the console at {address}: {e}");
    let stream = TcpStream::connect(address).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let mut reader = BufReader::new(stream.try_clone().map_err(failed)?);
    let (started, mut polled) = (Instant::now(), Polled { updates: 0, bytes: 0, seconds: 0.0 });
    let (mut query, mut sample) = ("revision=0".to_owned(), String::new());
    while !stop.load(Ordering::Acquire) {
        let asked = Instant::now();
        let request = format!("GET /api/live?{query} HTTP/1.1\r\nHost: {address}\r\n\r\n");
        (&stream).write_all(request.as_bytes()).map_err(failed)?;
        let body = answer(&mut reader).map_err(failed)?;
        let report: serde_json::Value = serde_json::from_slice(&body).map_err(|e| e.to_string())?;
        if let Some(latest) = report["samples"].as_array().and_then(|samples| samples.last()) {
            sample = format!("&sample={}", latest["at_ms"]);
        }
        query = format!("revision={}{sample}", report["revision"]);
        polled.updates += 1;
        polled.bytes += body.len() as u64;
        std::thread::sleep(POLL.saturating_sub(asked.elapsed()));
    }
    polled.seconds = started.elapsed().as_secs_f64();
    Ok(polled)
}

fn answer(reader: &mut impl BufRead) -> std::io::Result<Vec<u8>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("Content-Length: ") {
            length = value.trim().parse().map_err(std::io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(body)
}
