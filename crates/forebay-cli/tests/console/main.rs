//! The web console and `forebay top` with a hundred nodes, ten analytics jobs and an HPC job in an
//! I/O phase: what the coordinator knows is on the page of a real browser, live and again from the
//! decision log, and in the terminal. Agents are played by the test; the coordinator, one agent and
//! the browser are real.

#![allow(clippy::unwrap_used, reason = "what is unwrapped is what the test asserts")]

mod driver;
#[path = "../kit/mod.rs"]
mod kit;
mod tasks;

use forebay_pfs::FileVersion;
use forebay_wire::cluster::{CLUSTER_PROTOCOL, PrefetchRequest, RequestProgress, ToAgent, ToCoordinator};
use forebay_wire::framed::Framed;
use forebay_wire::link::Security;
use forebay_wire::{Declared, FileRef, JobUpdate, NodeInfo, Part, Report, Split};
use kit::{Daemon, MIB, PATIENCE, forebay, text, wait_for};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const NODES: usize = 100;
const JOBS: u64 = 10;

/// A coordinator with a console and a decision log.
struct Coordinator {
    dir: tempfile::TempDir,
    _daemon: Daemon,
    /// Where agents connect, and where the console is.
    address: String,
    console: String,
}

impl Coordinator {
    fn start(more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let decisions = dir.path().join("decisions");
        let config = format!(
            "[cluster]\nplanner = \"full-delay\"\ncoordinator_listen = \"127.0.0.1:0\"\ndecision_log = {decisions:?}\n\
             [console]\nlisten = \"127.0.0.1:0\"\n{more}"
        );
        let daemon = Daemon::start(forebay(&[]), "coordinator", dir.path(), &config);
        let address = daemon.address_after("coordinator listens on");
        let console = daemon.address_after("console is served");
        Coordinator { dir, _daemon: daemon, address, console }
    }

    fn get(&self, path: &str, header: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.console).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nConnection: close\r\n{header}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    fn json(&self, path: &str) -> Value {
        let (head, body) = self.get(path, "");
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{path}: {head}\n{body}");
        serde_json::from_str(&body).unwrap()
    }
}

/// The agents: they beat, and answer requests as if they had fetched immediately.
struct Played {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Played {
    fn start(address: &str, nodes: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (ended, address) = (stop.clone(), address.to_owned());
        let thread = std::thread::spawn(move || play(&address, nodes, &ended));
        Played { stop, thread: Some(thread) }
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let ended = self.thread.take().unwrap().join();
        assert!(std::thread::panicking() || ended.is_ok(), "the played agents have failed");
    }
}

fn play(address: &str, nodes: usize, stop: &AtomicBool) {
    let mut agents: Vec<Framed> = Vec::new();
    for number in 0..nodes {
        agents.push(join(address, number));
        if number % 10 == 9 {
            // On a busy machine all joins take longer than a node may be silent.
            agents.iter_mut().for_each(|agent| said(agent, &heartbeat(0)));
        }
    }
    said(&mut agents[0], &hpc(Report::Joins(climate())));
    let begins = Report::Begins {
        bytes: 64 * MIB,
        alone_ns: 3_000_000_000,
        deadline_ns: 3_600_000_000,
        is_observed: false,
    };
    said(&mut agents[0], &hpc(begins));
    for job in 1..=JOBS {
        said(&mut agents[job as usize], &ToCoordinator::Job { job, uid: 1000, updates: analytics(job) });
    }
    let began = Instant::now();
    let (mut beats, mut left, mut has_ended) = (0, false, false);
    while !stop.load(Ordering::Acquire) {
        let beat = began.elapsed().as_secs() >= beats;
        beats += u64::from(beat);
        for agent in &mut agents {
            agent.receive().unwrap();
            while let Some(message) = agent.next_message::<ToAgent>().unwrap() {
                if let ToAgent::Fetch(request) = message {
                    agent.send(&ToCoordinator::Progress(done(&request))).unwrap();
                }
            }
            if beat {
                agent.send(&heartbeat(beats)).unwrap();
            }
            agent.flush().unwrap();
        }
        if !left && began.elapsed() > Duration::from_millis(500) {
            left = true;
            said(&mut agents[0], &hpc(Report::Left { left_ns: 750_000_000 }));
        }
        if !has_ended && began.elapsed() > Duration::from_secs(3) {
            has_ended = true;
            said(&mut agents[0], &hpc(Report::Ends));
            for job in 1..=JOBS {
                said(
                    &mut agents[job as usize],
                    &ToCoordinator::Job { job, uid: 1000, updates: second_wave() },
                );
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn climate() -> Declared {
    let (io_ns, compute_ns) = (3_000_000_000, 3_600_000_000_000);
    Declared {
        name: "climate".into(),
        user: 1000,
        allowance_permille: 200,
        io_ns,
        compute_ns,
        weight: 1,
        ..Declared::default()
    }
}

fn hpc(update: Report) -> ToCoordinator {
    ToCoordinator::Hpc { hpc: 1, update }
}

fn heartbeat(beats: u64) -> ToCoordinator {
    let (resident_bytes, fetched_bytes) = (100 * MIB, beats * 10 * MIB);
    ToCoordinator::Heartbeat { weight_bytes: 4 << 30, capacity_bytes: 4 << 30, resident_bytes, fetched_bytes }
}

fn done(request: &PrefetchRequest) -> RequestProgress {
    let fetched_bytes = request.parts.iter().map(|part| part.len).sum();
    RequestProgress {
        request: request.request,
        fetched_bytes,
        resident_bytes: 0,
        failed_bytes: 0,
        done: true,
    }
}

fn join(address: &str, number: usize) -> Framed {
    let stream = Security::Loopback.connect(address, Instant::now() + PATIENCE).unwrap();
    let mut link = Framed::new(stream).unwrap();
    let node = NodeInfo {
        name: format!("node-{number:03}"),
        host: format!("node-{number:03}"),
        address: format!("127.0.0.1:{}", 20_000 + number),
        capacity_bytes: 4 << 30,
        mounts: vec!["pfs".into()],
        extent_bytes: vec![MIB],
        ..NodeInfo::default()
    };
    said(
        &mut link,
        &ToCoordinator::Join { protocol: CLUSTER_PROTOCOL, node, incarnation: 1, attempt: 0, term: 0 },
    );
    link
}

fn said(link: &mut Framed, message: &ToCoordinator) {
    link.send(message).unwrap();
    wait_for("it is said", || link.flush().unwrap());
}

/// Two waves, of which the first computes.
fn analytics(job: u64) -> Vec<JobUpdate> {
    let (slots, tasks) = (10u32, 20u32);
    let version = FileVersion { ino: job, size: u64::from(tasks) * MIB, mtime_ns: 1, ctime_ns: 1 };
    let file = FileRef { mount: "pfs".into(), path: format!("job-{job}").into_bytes(), version };
    let split = |task: u32| Split {
        parts: vec![Part { file: 0, offset: u64::from(task) * MIB, len: MIB }],
        preferred_node: String::new(),
    };
    let host = |task: u32| format!("node-{:03}", task % slots);
    let mut updates = vec![
        JobUpdate::Begin { name: format!("app-{job:02}"), planner: String::new() },
        JobUpdate::Slots((0..slots).map(|slot| (host(slot), 1)).collect()),
        JobUpdate::Files(vec![file]),
        JobUpdate::Splits { stage: 0, splits: (0..tasks).map(split).collect() },
        JobUpdate::StageReady { stage: 0 },
    ];
    updates.extend((0..slots).map(|task| JobUpdate::TaskStarted { stage: 0, task, host: host(task) }));
    updates
}

fn second_wave() -> Vec<JobUpdate> {
    let ended = (0..10).map(|task| JobUpdate::TaskEnded { stage: 0, task, ok: true, run_ms: 3000 });
    let host = |task: u32| format!("node-{:03}", task % 10);
    let started = (10..20).map(|task| JobUpdate::TaskStarted { stage: 0, task, host: host(task) });
    ended.chain(started).collect()
}

fn array(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("{value}"))
}

/// A browser of this machine.
fn browser() -> Option<PathBuf> {
    let names = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];
    let dirs = ["/usr/bin", "/usr/local/bin", "/usr/sbin"];
    let mut paths = names.iter().flat_map(|name| dirs.iter().map(move |dir| Path::new(dir).join(name)));
    let found = paths.find(|path| path.exists());
    if found.is_none() {
        eprintln!("left out: no {} on this machine", names.join(", "));
    }
    found
}

/// The page after this many ms of the browser's time; a picture of it goes into the directory that
/// FOREBAY_PICTURES names.
fn page(browser: &Path, dir: &Path, url: &str, ms: u32) -> String {
    let mut command = Command::new(browser);
    command.args(["--no-sandbox", "--disable-gpu", "--headless", "--window-size=1400,1200"]);
    command.arg(format!("--user-data-dir={}", dir.join("browser").display()));
    command.arg(format!("--virtual-time-budget={ms}")).args(["--dump-dom", url]).stdin(Stdio::null());
    let out = command.output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if let Ok(pictures) = std::env::var("FOREBAY_PICTURES") {
        let name = url.rsplit('/').next().unwrap_or_default().replace(['#', '&', '='], "-");
        command.arg(format!("--screenshot={pictures}/console{name}.png"));
        assert!(command.output().unwrap().status.success());
    }
    assert!(out.status.success() && text.contains("</html>"), "{}", String::from_utf8_lossy(&out.stderr));
    text
}

#[test]
fn the_console_shows_a_run_as_it_happens_and_again_from_its_log() {
    let coordinator = Coordinator::start("");
    let agents = Played::start(&coordinator.address, NODES);
    let mut live = Value::Null;
    wait_for("all is known and the phase has ended", || {
        live = coordinator.json("/api/live");
        let jobs = array(&live["jobs"]);
        array(&live["overview"]["nodes"]).len() == NODES
            && jobs.len() == JOBS as usize
            && jobs.iter().all(|job| job["stages"][0]["waves"][0]["compute_began_ms"].is_u64())
            && array(&live["plans"]).iter().any(|plan| plan[1]["came_bytes"].as_u64() > Some(0))
            && array(&live["phases"]).iter().any(|phase| phase[1]["observed_ms"].is_u64())
            && array(&live["samples"]).iter().any(|s| s["fetched_bytes_per_s"].as_u64() > Some(0))
    });
    let phase = &live["phases"][0][1];
    assert_eq!((phase["name"].as_str(), phase["deadline_ms"].as_u64()), (Some("climate"), Some(3600)));
    assert_eq!(phase["left_ms"].as_u64(), Some(750), "{phase}");
    let delayed = array(&live["plans"]).iter().filter(|plan| plan[1]["phases"][0]["in_phase"] == true);
    assert!(delayed.count() >= 1, "no planner saw the phase: {}", live["plans"]);
    // What is known is not said again.
    let (revision, sample) = (&live["revision"], array(&live["samples"]).last().unwrap()["at_ms"].clone());
    let mut quiet = Value::Null;
    wait_for("nothing changes any more", || {
        let before = coordinator.json("/api/live")["revision"].clone();
        quiet = coordinator.json(&format!("/api/live?revision={before}&sample={sample}"));
        array(&quiet["plans"]).is_empty() && quiet["revision"].as_u64() >= revision.as_u64()
    });
    assert!(array(&quiet["phases"]).is_empty() && array(&quiet["samples"]).len() < 30, "{quiet}");
    let all = coordinator.json("/api/live");
    if let Some(browser) = browser() {
        let url = format!("http://{}/", coordinator.console);
        let page = page(&browser, coordinator.dir.path(), &url, 3000);
        for shown in ["node-000", "node-099", "app-01", "app-10", "climate", ">live<", "ended"] {
            assert!(page.contains(shown), "{shown} is not on the page: {page}");
        }
        let reason = all["plans"][0][1]["reason"].as_str().unwrap();
        assert!(page.contains(&reason.replace('<', "&lt;").replace('>', "&gt;")), "{reason}: {page}");
        let of = |name: &str| {
            let value =
                page.split(&format!("{name}=\"")).nth(1).unwrap_or_else(|| panic!("no {name}: {page}"));
            value.split('"').next().unwrap().parse::<f64>().unwrap()
        };
        assert!(of("data-updates") >= 2.0, "the page was not updated");
        println!("first paint after {} ms", of("data-paint-ms"));
    }
    // A recorded run shows the nodes that are members at its end.
    recorded(&coordinator, &all);
    drop(agents);
}

/// The decision log says the same as the coordinator did.
fn recorded(coordinator: &Coordinator, live: &Value) {
    let files = coordinator.json("/api/recorded");
    let name = files[0]["name"].as_str().unwrap();
    let mut run = Value::Null;
    wait_for("the log is written", || {
        run = coordinator.json(&format!("/api/recorded/{name}"));
        array(&run["plans"]).len() >= array(&live["plans"]).len()
    });
    let decided = |report: &Value| -> Vec<_> {
        let count = array(&live["plans"]).len();
        let plans = array(&report["plans"]).iter().take(count).map(|plan| &plan[1]);
        plans
            .map(|p| (p["at_ms"].clone(), p["job"].clone(), p["action"].clone(), p["reason"].clone()))
            .collect()
    };
    assert_eq!(decided(&run), decided(live));
    let phase = |report: &Value| report["phases"][0][1].clone();
    assert_eq!(phase(&run)["name"], "climate");
    assert_eq!(phase(&run)["observed_ms"], phase(live)["observed_ms"]);
    assert_eq!(phase(&run)["deadline_ms"], 3600);
    assert_eq!(array(&run["jobs"]).len(), JOBS as usize);
    assert!(array(&run["samples"]).len() >= 2, "{run}");
    let (head, _) = coordinator.get("/api/recorded/..%2Fconfig.toml", "");
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    let (head, _) = coordinator.get("/api/recorded/../config.toml", "");
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    let Some(browser) = browser() else { return };
    let at = |share: f64| {
        let url = format!("http://{}/#run={name}&at={share}", coordinator.console);
        page(&browser, coordinator.dir.path(), &url, 3000)
    };
    let end = at(1.0);
    for shown in [">recorded run<", "node-099", "climate", "app-10", "ended"] {
        assert!(end.contains(shown), "{shown} is not on the page: {end}");
    }
    let start = at(0.0);
    assert!(start.contains(">recorded run<") && !start.contains(">ended<"), "{start}");
}

#[test]
fn an_empty_console_says_what_will_appear_and_how() {
    let Some(browser) = browser() else { return };
    let coordinator = Coordinator::start("");
    let shown = page(&browser, coordinator.dir.path(), &format!("http://{}/", coordinator.console), 3000);
    for (table, words) in [
        ("phases", "forebay run --job NAME"),
        ("jobs", "io.forebay.spark.ForebayPlugin"),
        ("decisions", "what it prefetches, and why"),
        ("servers", "forebay run --job NAME"),
        ("nodes", "forebay agent --config FILE"),
    ] {
        let at = shown.find(&format!("<table id=\"{table}\"")).unwrap();
        let (before, after) = shown.split_at(at);
        let text = &before[before.rfind("<p class=\"none\"").unwrap()..];
        assert!(text.starts_with("<p class=\"none\">") && text.contains(words), "{table}: {text}");
        assert!(after.split('>').next().unwrap().contains("hidden"), "{table}: an empty table is shown");
    }
}

#[test]
fn the_page_asks_nobody_else_and_no_other_site_can_read_it() {
    let coordinator = Coordinator::start("");
    let (head, page) = coordinator.get("/", "Host: 127.0.0.1:1\r\n");
    assert!(head.contains("Content-Security-Policy: default-src 'self'"), "{head}");
    let (_, script) = coordinator.get("/console.js", "Host: localhost\r\n");
    let (_, style) = coordinator.get("/console.css", "");
    assert!(page.contains("console.js") && script.contains("api/live") && style.contains("canvas"));
    for text in [&page, &script, &style] {
        assert!(!text.contains("http://") && !text.contains("https://") && !text.contains("url("), "{text}");
    }
    for host in ["evil.example", "[::1].evil", "127.0.0.1.evil", "localhost:evil"] {
        let (head, _) = coordinator.get("/api/live", &format!("Host: {host}\r\n"));
        assert!(head.starts_with("HTTP/1.1 403"), "{host}: {head}");
    }
    // Nor can it make the coordinator work.
    let (head, _) = coordinator.get("/api/live", "Host: 127.0.0.1:1\r\nSec-Fetch-Site: cross-site\r\n");
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    let (head, _) = coordinator.get("/api/live", "Host: 127.0.0.1:1\r\nSec-Fetch-Site: same-origin\r\n");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let (head, _) = coordinator.get("/api/none", "");
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
}

#[test]
fn with_a_token_the_page_opens_and_its_data_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let (token, file) = ("0123456789abcdef0123456789abcdef", dir.path().join("token"));
    std::fs::write(&file, token).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let coordinator = Coordinator::start(&format!("token_file = {file:?}\n"));
    let (head, _) = coordinator.get("/", "Host: head.cluster\r\n");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let (head, _) = coordinator.get("/api/live", "");
    assert!(head.starts_with("HTTP/1.1 401") && head.contains("WWW-Authenticate: Bearer"), "{head}");
    let (head, _) = coordinator.get("/api/live", &format!("Authorization: Bearer {token}\r\n"));
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let Some(browser) = browser() else { return };
    let shown = |hash: &str| {
        page(&browser, coordinator.dir.path(), &format!("http://{}/{hash}", coordinator.console), 2000)
    };
    let login = "<form id=\"login\">";
    assert!(shown("").contains(login), "the page says what is missing");
    let page = shown(&format!("#token={token}"));
    assert!(page.contains(">live<") && !page.contains(login), "{page}");
}

#[test]
fn top_shows_a_hundred_nodes_jobs_phases_and_reasons() {
    let coordinator = Coordinator::start("");
    // The tier is in it.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (pfs, state, tier) = (dir.path().join("pfs"), dir.path().join("state"), dir.path().join("tier"));
    std::fs::create_dir(&pfs).unwrap();
    let config = format!(
        "[agent]\nstate_dir = {state:?}\n[tier]\ncapacity = \"64MiB\"\nbacking = \"directory\"\ndirectory = {tier:?}\n\
         [cluster]\ncoordinator = {:?}\nnode = \"real\"\n[[mount]]\nlabel = \"own\"\nroot = {pfs:?}\n",
        coordinator.address
    );
    let agent = Daemon::start(forebay(&[]), "agent", dir.path(), &config);
    let _agents = Played::start(&coordinator.address, NODES);
    let top = |more: &[&str]| {
        let out = forebay(&["top"]).args(more).arg("--socket").arg(agent.socket()).output().unwrap();
        (out.status.success(), text(&[out.stdout, out.stderr].concat()))
    };
    let mut seen = String::new();
    wait_for("top shows everything", || {
        let (success, text) = top(&["--once"]);
        let shown =
            ["forebay top: 101 nodes", "node-000", "node-099", "real", "app-01", "app-10", "climate", "75 %"];
        let has_all = success && shown.iter().all(|word| text.contains(word));
        seen = text;
        has_all && seen.contains("full-delay")
    });
    assert!(seen.contains("s  in time") || seen.contains("LATE"), "{seen}");
    let (success, text) = top(&["--json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert!(success && array(&json["overview"]["nodes"]).len() == NODES + 1, "{json}");
    assert_eq!(array(&json["jobs"]).len(), JOBS as usize);
    assert!(array(&json["log"]["plans"]).iter().all(|plan| !plan["reason"].as_str().unwrap().is_empty()));
}
