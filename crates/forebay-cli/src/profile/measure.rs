//! Runs of readers and writers on the PFS, and their times.
//!
//! A run starts its processes, waits until all are ready, lets them go at the same moment, and
//! takes the time of the slowest first pass of each kind. Everybody works on until everybody is
//! through once, so that passes are disturbed from beginning to end.

use crate::cli::ProfileArgs;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A run that takes longer has met a file system that hangs.
const LONGEST_RUN: Duration = Duration::from_secs(1800);

/// How many readers take part: 0 nodes are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Readers {
    pub nodes: u16,
    pub threads: u16,
}

/// Seconds of the first pass of all readers, and of all writers.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub read_s: Option<f64>,
    pub write_s: Option<f64>,
}

/// The files of a measurement, which go when it ends.
pub struct Bench<'a> {
    args: &'a ProfileArgs,
    directory: PathBuf,
    pieces: Vec<PathBuf>,
    stopped: &'a AtomicBool,
}

/// Why a measurement ended early.
#[derive(Debug)]
pub enum Ended {
    Cancelled,
    Failed(String),
}

impl From<String> for Ended {
    fn from(why: String) -> Self {
        Ended::Failed(why)
    }
}

impl<'a> Bench<'a> {
    /// Writes the files that readers read.
    pub fn new(args: &'a ProfileArgs, stopped: &'a AtomicBool) -> Result<Self, Ended> {
        let directory = args.directory.join(format!(".forebay-profile-{}", std::process::id()));
        fs::create_dir(&directory).map_err(|e| format!("cannot create {}: {e}", directory.display()))?;
        let mut bench = Bench { args, directory, pieces: Vec::new(), stopped };
        bench.write_pieces()?;
        Ok(bench)
    }

    /// Writes as many pieces as there are threads on all nodes, so that each has its own.
    fn write_pieces(&mut self) -> Result<(), Ended> {
        let count = u64::from(self.args.nodes) * u64::from(self.args.threads);
        let bytes = (self.args.bytes / count).max(1 << 20);
        let block = vec![0xa5u8; 1 << 20];
        for number in 0..count {
            let path = self.directory.join(format!("piece-{number}"));
            let failed = |e: io::Error| format!("cannot write {}: {e}", path.display());
            let file = File::create(&path).map_err(failed)?;
            let mut at = 0;
            while at < bytes {
                self.check()?;
                let len = (bytes - at).min(block.len() as u64);
                file.write_all_at(&block[..len as usize], at).map_err(failed)?;
                at += len;
            }
            file.sync_data().map_err(failed)?;
            self.pieces.push(path);
        }
        Ok(())
    }

    /// Bytes of a wave: of all pieces.
    pub fn wave_bytes(&self) -> u64 {
        (self.args.bytes / self.pieces.len() as u64).max(1 << 20) * self.pieces.len() as u64
    }

    fn check(&self) -> Result<(), Ended> {
        if self.stopped.load(Ordering::Relaxed) { Err(Ended::Cancelled) } else { Ok(()) }
    }

    /// Runs once.
    pub fn run(&self, readers: Readers, with_writers: bool) -> Result<Times, Ended> {
        self.check()?;
        let mut group = Group::default();
        for node in 0..readers.nodes {
            let own = self.pieces.iter().skip(node.into()).step_by(readers.nodes.into());
            let mut command = self.worker("read", node);
            command.args(["--threads", &readers.threads.to_string()]).args(own);
            group.start(command, false)?;
        }
        for writer in 0..if with_writers { self.args.writers } else { 0 } {
            let mut command = self.worker("write", writer);
            command.args(["--bytes", &self.args.writer_bytes.to_string()]);
            command.arg(self.directory.join(format!("written-{writer}")));
            group.start(command, true)?;
        }
        group.measure(self.stopped)
    }

    /// A process on a node, started by the launcher if there is one.
    fn worker(&self, kind: &str, number: u16) -> Command {
        let own = std::env::current_exe().unwrap_or_else(|_| "forebay".into());
        let mut command = match &self.args.launch {
            None => Command::new(own),
            Some(launch) => {
                let words = launch.split_whitespace().map(|w| w.replace("{node}", &number.to_string()));
                let words: Vec<String> = words.collect();
                let mut command = Command::new(words.first().map_or("env", String::as_str));
                command.args(words.iter().skip(1)).arg(own);
                command
            }
        };
        command.args(["profile-worker", kind]);
        command
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.directory) {
            eprintln!("forebay: cannot remove {}: {e}; remove it by hand", self.directory.display());
        }
    }
}

/// The processes of a run.
#[derive(Default)]
struct Group {
    children: Vec<(Child, Receiver<String>, bool)>,
}

impl Group {
    fn start(&mut self, mut command: Command, is_writer: bool) -> Result<(), Ended> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let program = Path::new(command.get_program()).display().to_string();
        let mut child = command.spawn().map_err(|e| format!("cannot start {program}: {e}"))?;
        let (to, lines) = channel();
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || {
                let _ = BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| to.send(line));
            });
        }
        self.children.push((child, lines, is_writer));
        Ok(())
    }

    fn measure(mut self, stopped: &AtomicBool) -> Result<Times, Ended> {
        let deadline = Instant::now() + LONGEST_RUN;
        for (_, lines, _) in &self.children {
            let ready = line(lines, deadline, stopped)?;
            if ready != "ready" {
                return Err(format!("a reader or writer printed {ready:?}, not `ready`").into());
            }
        }
        for (child, ..) in &mut self.children {
            let go = child.stdin.as_mut().map(|stdin| stdin.write_all(b"go\n"));
            go.transpose().map_err(|e| format!("a reader or writer has ended: {e}"))?;
        }
        let mut times = Times { read_s: None, write_s: None };
        for (_, lines, is_writer) in &self.children {
            let text = line(lines, deadline, stopped)?;
            let ns: f64 = text.parse().map_err(|_| format!("a reader or writer printed {text:?}"))?;
            let slowest = if *is_writer { &mut times.write_s } else { &mut times.read_s };
            *slowest = Some(slowest.unwrap_or(0.0).max(ns / 1e9));
        }
        Ok(times)
    }
}

impl Drop for Group {
    /// Ends the input of all, at which they stop. One that does not is killed.
    fn drop(&mut self) {
        for (child, ..) in &mut self.children {
            drop(child.stdin.take());
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        for (child, ..) in &mut self.children {
            while Instant::now() < deadline && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(2));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn line(lines: &Receiver<String>, deadline: Instant, stopped: &AtomicBool) -> Result<String, Ended> {
    loop {
        match lines.recv_timeout(Duration::from_millis(50)) {
            Ok(line) => return Ok(line),
            Err(RecvTimeoutError::Disconnected) => {
                return Err("a reader or writer has failed; its message is above".to_owned().into());
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if stopped.load(Ordering::Relaxed) {
            return Err(Ended::Cancelled);
        }
        if Instant::now() > deadline {
            let limit = LONGEST_RUN.as_secs();
            return Err(format!("a run has taken {limit} s: use fewer --bytes and --writer-bytes").into());
        }
    }
}
