//! The audit log: which administrative command was executed by whom, when, and what came of it.
//!
//! One JSON object per line, in a file of bounded length: a full one is kept next to it, and the
//! one before that is removed. Evictions of single files are one line per user and minute, and all
//! ordinary users together have a limit, so that nobody can push out what others have done.

use crate::lock::lock;
use forebay_wire::channel::Peer;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Length in bytes beyond which a file is full.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Most characters of a command that are logged: else an ordinary user could fill the log.
const COMMAND_CHARS_MAX: usize = 300;

/// Most lines of ordinary users in a period.
const LINES_MAX: u32 = 60;

const PERIOD: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub struct Audit {
    log: Mutex<Log>,
    period: Mutex<Period>,
}

/// The file, which is opened when there is something to write.
#[derive(Debug)]
struct Log {
    path: PathBuf,
    /// The open file, with its length.
    open: Option<(File, u64)>,
}

/// What has happened since the last period ended.
#[derive(Debug)]
struct Period {
    began: Instant,
    /// Lines of ordinary users.
    lines: u32,
    /// Files and bytes that each user has evicted one by one, and the last process.
    evicted: BTreeMap<u32, (u64, u64, i32)>,
}

#[derive(Serialize)]
struct Line<'a> {
    /// Seconds since 1970.
    time_s: f64,
    uid: u32,
    pid: i32,
    command: &'a str,
    result: &'a str,
}

impl Audit {
    /// A log in the file `path`, which is created when there is something to write.
    pub fn new(path: PathBuf) -> Self {
        let period = Period { began: Instant::now(), lines: 0, evicted: BTreeMap::new() };
        Audit { log: Mutex::new(Log { path, open: None }), period: Mutex::new(period) }
    }

    /// Writes to the file `path` from now on, and opens it again: somebody may have moved the one
    /// before.
    pub fn reopen(&self, path: PathBuf) {
        *lock(&self.log) = Log { path, open: None };
    }

    /// Notes a command of a program.
    pub fn note(&self, (by, is_operator): (Peer, bool), command: &str, result: &str) {
        if !is_operator {
            let mut period = lock(&self.period);
            period.lines += 1;
            if period.lines > LINES_MAX {
                return;
            }
        }
        let command: String = command.chars().take(COMMAND_CHARS_MAX).collect();
        self.write_line(by, &command, result);
    }

    /// Notes that a program has evicted a file.
    pub fn note_evicted(&self, by: Peer, bytes: u64) {
        let mut period = lock(&self.period);
        let evicted = period.evicted.entry(by.uid).or_default();
        *evicted = (evicted.0 + 1, evicted.1 + bytes, by.pid);
    }

    /// Writes what was noted together, once a minute, and at the end (`is_last`).
    pub fn keep_house(&self, is_last: bool) {
        let ended = {
            let mut period = lock(&self.period);
            if period.began.elapsed() < PERIOD && !is_last {
                return;
            }
            let next = Period { began: Instant::now(), lines: 0, evicted: BTreeMap::new() };
            std::mem::replace(&mut *period, next)
        };
        for (uid, (files, bytes, pid)) in ended.evicted {
            let result = format!("done, {bytes} bytes of {files} files released");
            self.write_line(Peer { uid, pid }, "evict", &result);
        }
        if ended.lines > LINES_MAX {
            let more = format!("{} more commands of ordinary users", ended.lines - LINES_MAX);
            self.write_line(Peer { uid: u32::MAX, pid: 0 }, &more, "not noted");
        }
    }

    /// Writes a line; if that fails, the agent's own log reports it.
    fn write_line(&self, by: Peer, command: &str, result: &str) {
        let time_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let line = Line { time_s: (time_s * 1e3).round() / 1e3, uid: by.uid, pid: by.pid, command, result };
        let mut log = lock(&self.log);
        let written = serde_json::to_vec(&line).map_err(io::Error::from).and_then(|line| log.write(line));
        if let Err(e) = written {
            tracing::warn!(path = %log.path.display(), error = %e, uid = by.uid, command, result, "no audit log");
        }
    }
}

impl Log {
    fn write(&mut self, mut line: Vec<u8>) -> io::Result<()> {
        line.push(b'\n');
        let (file, bytes) = match self.open.take() {
            Some((file, bytes)) if bytes < FILE_BYTES_MAX => (file, bytes),
            Some(_) => {
                let mut full = self.path.clone().into_os_string();
                full.push(".1");
                std::fs::rename(&self.path, full)?;
                self.open()?
            }
            None => self.open()?,
        };
        let (file, _) = self.open.insert((file, bytes + line.len() as u64));
        file.write_all(&line)
    }

    fn open(&self) -> io::Result<(File, u64)> {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?;
        let bytes = file.metadata()?.len();
        Ok((file, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_a_line_and_two_files_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let by = Peer { uid: 7, pid: 9 };
        Audit::new(path.clone()).note((by, true), "evict --all", "done");
        let audit = Audit::new(path.clone());
        audit.note((by, false), "capacity 5\n", "refused");
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(
            (lines.len(), &lines[1]["command"], &lines[1]["uid"]),
            (2, &"capacity 5\n".into(), &7.into())
        );
        let long = "x".repeat(64 << 10);
        (0..5000).for_each(|_| audit.note((by, true), &long, "done"));
        let sizes: Vec<u64> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .collect();
        assert_eq!(sizes.len(), 2, "{sizes:?}");
        assert!(sizes.iter().all(|bytes| *bytes < 2 * FILE_BYTES_MAX), "{sizes:?}");
    }

    #[test]
    fn ordinary_users_push_out_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let (audit, by) = (Audit::new(path.clone()), Peer { uid: 7, pid: 9 });
        for _ in 0..1000 {
            audit.note_evicted(by, 5);
            audit.note((by, false), "limit a none", "done");
        }
        audit.keep_house(false);
        let lines = || std::fs::read_to_string(&path).unwrap();
        assert_eq!(lines().lines().count(), LINES_MAX as usize);
        audit.keep_house(true);
        assert_eq!(lines().lines().count(), LINES_MAX as usize + 2);
        assert!(lines().contains("5000 bytes of 1000 files") && lines().contains("940 more"), "{}", lines());
    }
}
