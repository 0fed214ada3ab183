//! The decision log: what the stage machine hears and decides, in the format of the simulator's
//! traces.
//!
//! Each file starts with a machine that has no jobs, so that `forebay replay` can drive a fresh one
//! from its first line on. A file that has become long is followed by the next one when no job
//! runs. If jobs never pause, recording stops at [`FILE_BYTES_MAX`] and resumes with the next file:
//! a record with a gap could not be replayed.
//!
//! The coordinator waits for the disk only when it starts, and for a moment when it ends. A thread
//! of its own creates, writes and removes files, and what waits for it is bounded; beyond that
//! bound, or when the disk fails, recording stops in the same way.

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
use std::time::{Duration, Instant};

/// A file ends here, whatever runs.
const FILE_BYTES_MAX: u64 = if cfg!(test) { 64 << 10 } else { 64 << 20 };

/// A file is followed by the next one from here on, when no job runs.
const FILE_BYTES_LONG: u64 = FILE_BYTES_MAX / 4;

/// Files kept, the current one included.
const FILES_KEPT: u64 = 4;

/// Bytes that may wait for the disk.
const WAITING_BYTES_MAX: usize = 16 << 20;

/// So many bytes go to the thread at once, within one turn of the coordinator's loop.
const CHUNK_BYTES: usize = 1 << 20;

/// After a failure of the disk, the next file begins no sooner.
const PAUSE: Duration = Duration::from_secs(10);

/// At its end the coordinator waits so long for what is not written yet.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// See the module.
pub struct Recorder {
    log: Option<Log>,
    trace: Trace,
}

struct Log {
    dir: PathBuf,
    /// Number of the next file.
    next: u64,
    /// The current file is to be followed by another one, after a failure not before this time.
    is_over: bool,
    not_before: Option<Instant>,
    /// Hears when the thread of the current file has ended.
    ended: Receiver<()>,
}

impl Recorder {
    /// Records nothing.
    pub fn off() -> Self {
        Recorder { log: None, trace: Trace::off() }
    }

    /// Records into files of `dir`, which is made if needed, starting with a machine that is built
    /// from `config`.
    ///
    /// # Errors
    /// The directory or the file cannot be made.
    pub fn start(dir: &Path, config: &Config) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let next = numbers(dir)?.into_iter().max().map_or(1, |last| last.saturating_add(1));
        let first = create(dir, next)?;
        let (is_over, not_before, ended) = (true, None, channel().1);
        let log = Log { dir: dir.to_owned(), next, is_over, not_before, ended };
        let mut recorder = Recorder { log: Some(log), trace: Trace::off() };
        recorder.begin_in(Some(first), config)?;
        Ok(recorder)
    }

    /// Whether the next file should begin as soon as the machine can restart.
    pub fn is_over(&self) -> bool {
        self.log.as_ref().is_some_and(|log| {
            let may = log.not_before.is_none_or(|time| Instant::now() >= time);
            may && (log.is_over || self.trace.bytes() > FILE_BYTES_LONG)
        })
    }

    /// Begins the next file, with a machine that is built from `config`. The first write to it
    /// removes the oldest file.
    ///
    /// # Errors
    /// No thread can be started; the recorder tries again after a pause.
    pub fn begin(&mut self, config: &Config) -> io::Result<()> {
        self.begin_in(None, config)
    }

    fn begin_in(&mut self, file: Option<File>, config: &Config) -> io::Result<()> {
        let Some(log) = &mut self.log else { return Ok(()) };
        // Even if the new file fails: the machine is a new one from here on.
        self.trace = Trace::off();
        (log.is_over, log.not_before) = (true, Some(Instant::now() + PAUSE));
        let (disk, ended) = Disk::start(log.dir.clone(), log.next, file)?;
        log.next = log.next.saturating_add(1);
        (log.is_over, log.not_before, log.ended) = (false, None, ended);
        self.trace = Trace::to(Box::new(disk), STAGES, config);
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
        let (why, not_before) = match self.trace.flush() {
            Ok(()) if self.trace.bytes() <= FILE_BYTES_MAX => return,
            Ok(()) => (format!("it has {FILE_BYTES_MAX} bytes"), None),
            Err(e) => (e.to_string(), Some(Instant::now() + PAUSE)),
        };
        tracing::warn!("the decision log stops here and continues in another file when no job runs: {why}");
        self.trace = Trace::off();
        if let Some(log) = &mut self.log {
            (log.is_over, log.not_before) = (true, not_before);
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.flush();
        self.trace = Trace::off();
        if let Some(log) = &self.log {
            // The thread's end is told by the end of the channel.
            let _ = log.ended.recv_timeout(LAST_WRITES);
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

fn create(dir: &Path, number: u64) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path(dir, number))
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
    /// Also returns what tells of the end of its thread. Without `file`, the thread creates it.
    fn start(dir: PathBuf, number: u64, file: Option<File>) -> io::Result<(Self, Receiver<()>)> {
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let (to_thread, chunks) = channel();
        let (end, ended) = channel();
        let waiting = waiting_bytes.clone();
        let thread = std::thread::Builder::new().name("decision-log".into()).spawn(move || {
            let _end = end;
            write_file(&dir, number, file, &chunks, &waiting)
        })?;
        let disk =
            Disk { chunk: Vec::new(), waiting_bytes, to_thread: Some(to_thread), thread: Some(thread) };
        Ok((disk, ended))
    }
}

fn write_file(
    dir: &Path,
    number: u64,
    file: Option<File>,
    chunks: &Receiver<Vec<u8>>,
    waiting_bytes: &AtomicUsize,
) -> io::Result<()> {
    let mut file = match file {
        Some(file) => file,
        None => create(dir, number)?,
    };
    for (written, chunk) in chunks.iter().enumerate() {
        if let Err(e) = file.write_all(&chunk) {
            if written == 0 {
                let _nothing_in_it = fs::remove_file(path(dir, number));
            }
            return Err(e);
        }
        waiting_bytes.fetch_sub(chunk.len(), Ordering::AcqRel);
        if written == 0 {
            remove_old(dir, number);
        }
    }
    Ok(())
}

/// Another program may remove old files as well.
fn remove_old(dir: &Path, current: u64) {
    let old = numbers(dir).unwrap_or_default().into_iter();
    for number in old.filter(|number| number.saturating_add(FILES_KEPT) <= current) {
        if let Err(e) = fs::remove_file(path(dir, number))
            && e.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(error = %e, number, "cannot remove an old file of the decision log");
        }
    }
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.waiting_bytes.load(Ordering::Acquire) + self.chunk.len() + bytes.len() > WAITING_BYTES_MAX {
            let why = format!("the disk is behind by {WAITING_BYTES_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::StorageFull, why));
        }
        self.chunk.extend_from_slice(bytes);
        if self.chunk.len() >= CHUNK_BYTES {
            self.flush()?;
        }
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
