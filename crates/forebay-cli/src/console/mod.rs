//! The web console: a page with one timeline of a coordinator, live or from a decision log.
//!
//! The page is part of the program and loads nothing from other servers. It polls what has changed
//! since its last request; a slow page polls less often. The cost of all live pages together is
//! bounded: after a live report, the next one waits for [`REST`] times as long as the report took.
//!
//! | path | what |
//! | --- | --- |
//! | `/`, `/console.js`, `/console.css` | the page |
//! | `/api/live?revision=N&sample=MS` | a [`Report`](forebay_coordinator::report::Report) |
//! | the same with `&node=NAME` | in addition, what is known of that node and wrong with it |
//! | `/api/recorded` | the files of the decision log |
//! | `/api/recorded/NAME` | a report of one of them, with all of its past |

use crate::doctor::{Finding, problems_of};
use crate::web::{Request, Response, Service};
use forebay_coordinator::report::{Report, Since};
use forebay_coordinator::{Reports, recorded};
use serde::Serialize;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

const PAGE: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/console.css");
/// `make console` compiles `console.ts` to it; it is in the repository so that a build needs no
/// TypeScript, and `make lint` compares.
const SCRIPT: &str = include_str!("page/console.js");

const JSON: &str = "application/json";

/// Longest wait for the coordinator, and for the next permitted report.
const ASK_TIME: Duration = Duration::from_secs(5);

/// Live reports take at most one part in this many of a processor core: no number of pages may slow
/// down the coordinator's one thread.
const REST: u32 = 20;

/// The console of a coordinator.
pub struct Console {
    reports: Reports,
    /// Directory of the decision log.
    log: Option<PathBuf>,
    /// No live report is made before this time.
    turn: Mutex<Instant>,
    /// The recorded run that was read last, and when another may be read.
    recorded: Mutex<(Option<Run>, Instant)>,
}

/// Longest wait for a turn at a recorded run: reading one takes a core for some seconds.
const TURN_TIME: Duration = Duration::from_secs(2);

/// After a recorded run was read, no other is read for this many times as long.
const RECORDED_REST: u32 = 4;

/// The lock, if it is free before `time` is over: a caller that waits holds a connection and a
/// thread.
fn turn_within<T>(lock: &Mutex<T>, time: Duration) -> io::Result<MutexGuard<'_, T>> {
    let deadline = Instant::now() + time;
    loop {
        match lock.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(guard)) => return Ok(guard.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(TryLockError::WouldBlock) => return Err(too_many()),
        }
    }
}

fn too_many() -> io::Error {
    io::Error::new(io::ErrorKind::WouldBlock, "too many pages are open; ask again in a minute")
}

/// The answer to a live page.
#[derive(Serialize)]
struct Live {
    #[serde(flatten)]
    report: Report,
    /// What is wrong with the node that the page has requested.
    findings: Vec<Finding>,
}

/// A recorded run: its file's name and length, and the answer.
struct Run {
    name: String,
    bytes: u64,
    body: Arc<Vec<u8>>,
}

impl Console {
    /// A console of the coordinator behind `reports`; `log` is the directory of its decision log.
    pub fn new(reports: Reports, log: Option<PathBuf>) -> Self {
        Console {
            reports,
            log,
            turn: Mutex::new(Instant::now()),
            recorded: Mutex::new((None, Instant::now())),
        }
    }

    fn live(&self, since: Since) -> io::Result<Vec<u8>> {
        let mut turn = turn_within(&self.turn, ASK_TIME)?;
        let rest = turn.saturating_duration_since(Instant::now());
        if rest > ASK_TIME {
            return Err(too_many());
        }
        std::thread::sleep(rest);
        let report = self.reports.ask(since, ASK_TIME)?;
        let began = Instant::now();
        let findings = report.node.as_ref().map_or_else(Vec::new, |node| problems_of(&node.health));
        let live = Live { report, findings };
        let body = serde_json::to_vec(&live).map_err(io::Error::from)?;
        *turn = Instant::now() + (Duration::from_nanos(live.report.totals.cost_ns) + began.elapsed()) * REST;
        Ok(body)
    }

    /// Names and lengths of the files of the decision log, the latest first.
    fn files(&self) -> io::Result<Vec<(String, u64)>> {
        let Some(dir) = &self.log else { return Ok(Vec::new()) };
        let mut files = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("decisions") && entry.file_type()?.is_file() {
                let metadata = entry.metadata()?;
                files.push((metadata.modified()?, name, metadata.len()));
            }
        }
        files.sort_by(|a, b| b.cmp(a));
        Ok(files.into_iter().map(|(_, name, bytes)| (name, bytes)).collect())
    }

    fn file(&self, name: &str) -> io::Result<Arc<Vec<u8>>> {
        let missing =
            || io::Error::new(io::ErrorKind::NotFound, format!("no recorded run is called {name:?}"));
        // Only a listed file: a name from a request must not lead elsewhere.
        let (name, bytes) = self.files()?.into_iter().find(|(known, _)| known == name).ok_or_else(missing)?;
        let path = self.log.as_ref().ok_or_else(missing)?.join(&name);
        // One at a time: reading a long one takes a core for some seconds.
        let mut recorded = turn_within(&self.recorded, TURN_TIME)?;
        let known = recorded.0.as_ref().filter(|run| run.name == name && run.bytes == bytes);
        if let Some(run) = known {
            return Ok(run.body.clone());
        }
        let began = Instant::now();
        if began < recorded.1 {
            return Err(too_many());
        }
        let failed = |e: io::Error| io::Error::new(e.kind(), format!("cannot show {}: {e}", path.display()));
        let report = recorded::read(&path).map_err(failed);
        recorded.1 = Instant::now() + began.elapsed() * RECORDED_REST;
        let body = Arc::new(serde_json::to_vec(&report?).map_err(io::Error::from)?);
        recorded.0 = Some(Run { name, bytes, body: body.clone() });
        Ok(body)
    }

    fn list(&self) -> io::Result<Vec<u8>> {
        let file = |(name, bytes)| serde_json::json!({ "name": name, "bytes": bytes });
        let files: Vec<_> = self.files()?.into_iter().map(file).collect();
        serde_json::to_vec(&files).map_err(io::Error::from)
    }
}

impl Service for Console {
    const TABLE: &'static str = "console";

    /// The page itself has no secrets, and a browser asks for it without a token.
    fn needs_token(&self, path: &str) -> bool {
        path.starts_with("/api/")
    }

    fn answer(&self, request: &Request) -> Response {
        let json = |body: io::Result<Arc<Vec<u8>>>| match body {
            Ok(body) => Response { status: "200 OK", kind: JSON, body },
            Err(e) if e.kind() == io::ErrorKind::NotFound => Response::text("404 Not Found", e.to_string()),
            Err(e) => Response::text("503 Service Unavailable", e.to_string()),
        };
        match request.path.as_str() {
            "/" => Response::ok("text/html; charset=utf-8", PAGE),
            "/console.js" => Response::ok("text/javascript; charset=utf-8", SCRIPT),
            "/console.css" => Response::ok("text/css; charset=utf-8", STYLE),
            "/api/live" => json(
                self.live(Since {
                    revision: request.number("revision").unwrap_or(0),
                    sample_ms: request.number("sample"),
                    node: request.text("node"),
                })
                .map(Arc::new),
            ),
            "/api/recorded" => json(self.list().map(Arc::new)),
            path => match path.strip_prefix("/api/recorded/") {
                Some(name) => json(self.file(name)),
                None => Response::text("404 Not Found", "the console is at /"),
            },
        }
    }
}
