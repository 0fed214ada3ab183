//! The decision log: what the stage machine hears and decides, in the format of the simulator's traces.
//!
//! Each file starts with a machine that has no jobs, so that `forebay replay` can drive a fresh one from its first line on. A
//! file that has become long is followed by the next one when no job runs. If jobs never pause, recording stops at
//! [`FILE_BYTES_MAX`] and resumes with the next file: a record with a gap could not be replayed.
//!
//! The coordinator never waits for the disk. A thread of its own writes, and what waits for it is bounded; beyond that bound
//! recording stops in the same way.

use forebay_policy::machine::Nanos;
use forebay_policy::stage::Config;
use forebay_policy::stage::event::{Action, Event};
use forebay_trace::{STAGES, Trace};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A file ends here, whatever runs.
const FILE_BYTES_MAX: u64 = if cfg!(test) { 64 << 10 } else { 64 << 20 };

/// A file is followed by the next one from here on, when no job runs.
const FILE_BYTES_LONG: u64 = FILE_BYTES_MAX / 4;

/// Files kept, the current one included.
const FILES_KEPT: u64 = 4;

/// Bytes that may wait for the disk.
const WAITING_BYTES_MAX: usize = 16 << 20;

/// See the module.
pub struct Recorder {
    log: Option<Log>,
    trace: Trace,
}

struct Log {
    dir: PathBuf,
    /// Number of the next file.
    next: u64,
    /// The current file is to be followed by another one.
    is_over: bool,
}

impl Recorder {
    /// Records nothing.
    pub fn off() -> Self {
        Recorder { log: None, trace: Trace::off() }
    }

    /// Records into files of `dir`, which is made if needed, starting with a machine that is built from `config`.
    ///
    /// # Errors
    /// The directory or the file cannot be made.
    pub fn start(dir: &Path, config: &Config) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let next = numbers(dir)?.into_iter().max().map_or(1, |last| last + 1);
        let mut recorder =
            Recorder { log: Some(Log { dir: dir.to_owned(), next, is_over: true }), trace: Trace::off() };
        recorder.begin(config)?;
        Ok(recorder)
    }

    /// Whether another file is to begin once the machine can be built anew.
    pub fn is_over(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.is_over || self.trace.bytes() > FILE_BYTES_LONG)
    }

    /// Begins the next file, with a machine that is built from `config`, and removes the oldest.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn begin(&mut self, config: &Config) -> io::Result<()> {
        let Some(log) = &mut self.log else { return Ok(()) };
        log.is_over = false;
        // Whatever becomes of the new file: the machine is another from here on.
        self.trace = Trace::off();
        let file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(path(&log.dir, log.next))?;
        for old in numbers(&log.dir)?.into_iter().filter(|number| number + FILES_KEPT <= log.next) {
            fs::remove_file(path(&log.dir, old))?;
        }
        log.next += 1;
        self.trace = Trace::to(Box::new(Disk::start(file)?), STAGES, config);
        Ok(())
    }

    /// The machine hears `event`; gives what [`Recorder::actions`] wants to know.
    pub fn event(&mut self, now: Nanos, event: &Event) -> u64 {
        self.trace.event(now, STAGES, event)
    }

    /// The machine's deadline has come.
    pub fn deadline(&mut self, now: Nanos) -> u64 {
        self.trace.event(now, STAGES, &"deadline")
    }

    /// The machine has decided.
    pub fn actions(&mut self, now: Nanos, cause: u64, actions: &[Action]) {
        for action in actions {
            self.trace.action(now, STAGES, cause, action);
        }
    }

    /// Hands what was recorded to the disk; called once per turn of the coordinator's loop.
    pub fn flush(&mut self) {
        if !self.trace.is_on() {
            return;
        }
        let why = match self.trace.flush() {
            Ok(()) if self.trace.bytes() <= FILE_BYTES_MAX => return,
            Ok(()) => format!("it has {FILE_BYTES_MAX} bytes"),
            Err(e) => e.to_string(),
        };
        tracing::warn!("the decision log ends here and goes on in another file when no job runs: {why}");
        self.trace = Trace::off();
        if let Some(log) = &mut self.log {
            log.is_over = true;
        }
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("dir", &self.log.as_ref().map(|log| &log.dir)).finish()
    }
}

fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("decisions-{number:06}.log"))
}

fn numbers(dir: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|n| n.strip_prefix("decisions-")?.strip_suffix(".log"));
        found.extend(number.and_then(|n| n.parse::<u64>().ok()));
    }
    Ok(found)
}

/// A file that a thread of its own writes.
struct Disk {
    /// Recorded since the last flush.
    chunk: Vec<u8>,
    waiting_bytes: Arc<AtomicUsize>,
    to_thread: Option<Sender<Vec<u8>>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Disk {
    fn start(file: File) -> io::Result<Self> {
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let (to_thread, chunks) = channel();
        let waiting = waiting_bytes.clone();
        let thread = std::thread::Builder::new()
            .name("decision-log".into())
            .spawn(move || write_all(file, &chunks, &waiting))?;
        Ok(Disk { chunk: Vec::new(), waiting_bytes, to_thread: Some(to_thread), thread: Some(thread) })
    }
}

fn write_all(mut file: File, chunks: &Receiver<Vec<u8>>, waiting_bytes: &AtomicUsize) -> io::Result<()> {
    for chunk in chunks {
        file.write_all(&chunk)?;
        waiting_bytes.fetch_sub(chunk.len(), Ordering::AcqRel);
    }
    Ok(())
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.waiting_bytes.load(Ordering::Acquire) + self.chunk.len() + bytes.len() > WAITING_BYTES_MAX {
            let why = format!("the disk is behind by {WAITING_BYTES_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::StorageFull, why));
        }
        self.chunk.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        self.waiting_bytes.fetch_add(self.chunk.len(), Ordering::AcqRel);
        let chunk = std::mem::take(&mut self.chunk);
        let sent = self.to_thread.as_ref().is_some_and(|to| to.send(chunk).is_ok());
        if sent {
            return Ok(());
        }
        // The thread has ended, which it does only upon a failure.
        let failed = self.thread.take().and_then(|thread| thread.join().ok()).and_then(Result::err);
        Err(failed.unwrap_or_else(|| io::Error::other("the thread that writes it has ended")))
    }
}
