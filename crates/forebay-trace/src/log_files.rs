//! The decision log of a daemon: what a machine receives and decides, in the format of the
//! simulator's traces, in files that replace each other.
//!
//! Each file starts with a fresh machine, so that `forebay replay` can drive one from its first
//! line on. A file that has become long is followed by the next one when the machine may be
//! replaced by a fresh one. If it never may, recording stops at the greatest length of a file and
//! resumes with the next file: a record with a gap could not be replayed.
//!
//! The daemon waits for the disk only when it starts, and for a moment when it ends. A thread of
//! its own creates, writes and removes files, and what waits for it is bounded; beyond that bound,
//! or when the disk fails, recording stops in the same way.

use crate::Trace;
use forebay_policy::machine::Nanos;
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Limit on the length of a file.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// Number of files kept, the current one included.
const FILES_KEPT: u64 = 4;

/// Limit on the bytes that wait for the disk.
const WAITING_BYTES_MAX: usize = 16 << 20;

/// Bytes after which a chunk is handed to the thread within one turn of the daemon's loop.
const CHUNK_BYTES: usize = 1 << 20;

/// Shortest pause between a failure of the disk and the next file, and the longest: each further
/// failure doubles it.
const PAUSES: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(3600)];

/// How long a daemon waits at its end for what is not written yet.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// Which machine is recorded, and in what files.
#[derive(Clone, Copy, Debug)]
pub struct Files {
    /// The machine's name, which is also the kind of the record.
    pub who: &'static str,
    /// The beginning of their names, which a number follows.
    pub prefix: &'static str,
    /// Length from which the next one begins as soon as the machine may be replaced by a fresh one.
    pub bytes_long: u64,
    /// Limit on the length of a file.
    pub bytes_max: u64,
}

/// See the module.
pub struct Recorder {
    log: Option<Log>,
    trace: Trace,
}

struct Log {
    files: Files,
    dir: PathBuf,
    /// Number of the next file.
    next: u64,
    /// Whether the current file is to be followed by another one, after a failure not before this
    /// time.
    is_over: bool,
    not_before: Option<Instant>,
    /// The pause after the next failure.
    pause: Duration,
    /// Receivers for the ends of threads that write: that of the current file, and those of earlier
    /// files that still write.
    ended: Vec<Receiver<()>>,
}

impl Log {
    /// Returns when the next file may begin after a failure.
    fn pause(&mut self) -> Instant {
        let until = Instant::now() + self.pause;
        self.pause = (2 * self.pause).min(PAUSES[1]);
        until
    }
}

impl Recorder {
    /// A recorder that records nothing.
    pub fn off() -> Self {
        Recorder { log: None, trace: Trace::off() }
    }

    /// Records into `files` of `dir`, which is created if needed, starting with a machine that is
    /// built from `config`.
    ///
    /// # Errors
    /// If the directory or the file cannot be created.
    pub fn start(dir: &Path, files: Files, config: &impl Serialize) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let next = numbers(dir, files.prefix)?.into_iter().max().map_or(1, |last| last.saturating_add(1));
        let first = create(&path(dir, files.prefix, next))?;
        let (is_over, not_before, ended) = (true, None, Vec::new());
        let log = Log { files, dir: dir.to_owned(), next, is_over, not_before, pause: PAUSES[0], ended };
        let mut recorder = Recorder { log: Some(log), trace: Trace::off() };
        recorder.begin_in(Some(first), config)?;
        Ok(recorder)
    }

    /// Returns whether anything is recorded, or will be.
    pub fn is_on(&self) -> bool {
        self.log.is_some()
    }

    /// Returns whether the next file should begin as soon as the machine can restart.
    pub fn is_over(&self) -> bool {
        self.log.as_ref().is_some_and(|log| {
            let may = log.not_before.is_none_or(|time| Instant::now() >= time);
            may && (log.is_over || self.trace.bytes() > log.files.bytes_long)
        })
    }

    /// Begins the next file, with a machine that is built from `config`. The first write to it
    /// removes the oldest file.
    ///
    /// # Errors
    /// If no thread can be started; the recorder tries again after a pause.
    pub fn begin(&mut self, config: &impl Serialize) -> io::Result<()> {
        self.begin_in(None, config)
    }

    fn begin_in(&mut self, file: Option<File>, config: &impl Serialize) -> io::Result<()> {
        let Some(log) = &mut self.log else { return Ok(()) };
        // Even if the new file fails: the machine is a new one from here on.
        if self.trace.bytes() > log.files.bytes_long {
            // The disk works.
            log.pause = PAUSES[0];
        }
        self.trace = Trace::off();
        (log.is_over, log.not_before) = (true, Some(Instant::now() + log.pause));
        let (disk, ended) = Disk::start(log.dir.clone(), log.files.prefix, log.next, file)?;
        log.next = log.next.saturating_add(1);
        (log.is_over, log.not_before) = (false, None);
        log.ended.retain(|earlier| earlier.try_recv() == Err(TryRecvError::Empty));
        log.ended.push(ended);
        self.trace = Trace::to(Box::new(disk), log.files.who, config);
        Ok(())
    }

    /// Records that the machine receives `event`; returns the cause of what it then decides.
    pub fn event(&mut self, now: Nanos, event: &impl Serialize) -> u64 {
        let who = self.who();
        self.trace.event(now, who, event)
    }

    /// Records that the machine's deadline has come; returns the cause of what it then decides.
    pub fn deadline(&mut self, now: Nanos) -> u64 {
        let who = self.who();
        self.trace.event(now, who, &"deadline")
    }

    /// Records the machine's decisions.
    pub fn actions(&mut self, now: Nanos, cause: u64, actions: &[impl Serialize]) {
        let who = self.who();
        for action in actions {
            self.trace.action(now, who, cause, action);
        }
    }

    fn who(&self) -> &'static str {
        self.log.as_ref().map_or("", |log| log.files.who)
    }

    /// Records something for people who read the record.
    pub fn note(&mut self, now: Nanos, note: &impl Serialize) {
        let who = self.who();
        self.trace.note(now, who, note);
    }

    /// Hands what was recorded to the disk; called once per turn of the daemon's loop.
    pub fn flush(&mut self) {
        if !self.trace.is_on() {
            return;
        }
        let bytes_max = self.log.as_ref().map_or(u64::MAX, |log| log.files.bytes_max);
        let (why, not_before) = match self.trace.flush() {
            Ok(()) if self.trace.bytes() <= bytes_max => return,
            Ok(()) => (format!("it has {bytes_max} bytes"), None),
            Err(e) => (e.to_string(), self.log.as_mut().map(Log::pause)),
        };
        let who = self.who();
        tracing::warn!("the decision log of {who} stops here and continues in another file later: {why}");
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
            let until = Instant::now() + LAST_WRITES;
            for ended in &log.ended {
                // The end of its channel shows a thread's end.
                let _ = ended.recv_timeout(until.saturating_duration_since(Instant::now()));
            }
        }
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("dir", &self.log.as_ref().map(|log| &log.dir)).finish()
    }
}

fn path(dir: &Path, prefix: &str, number: u64) -> PathBuf {
    dir.join(format!("{prefix}-{number:06}.log"))
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn numbers(dir: &Path, prefix: &str) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let number = |name: &str| {
            name.strip_prefix(prefix)?.strip_prefix('-')?.strip_suffix(".log")?.parse::<u64>().ok()
        };
        found.extend(name.to_str().and_then(number));
    }
    Ok(found)
}

/// A file that a thread of its own writes.
struct Disk {
    /// Bytes recorded since the last flush.
    chunk: Vec<u8>,
    waiting_bytes: Arc<AtomicUsize>,
    to_thread: Option<Sender<Vec<u8>>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Disk {
    /// Starts the thread; also returns what reports its end. Without `file`, the thread creates it.
    fn start(
        dir: PathBuf,
        prefix: &'static str,
        number: u64,
        file: Option<File>,
    ) -> io::Result<(Self, Receiver<()>)> {
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let (to_thread, chunks) = channel();
        let (end, ended) = channel();
        let waiting = waiting_bytes.clone();
        let thread = std::thread::Builder::new().name("decision-log".into()).spawn(move || {
            let _end = end;
            write_file(&dir, (prefix, number), file, &chunks, &waiting)
        })?;
        let disk =
            Disk { chunk: Vec::new(), waiting_bytes, to_thread: Some(to_thread), thread: Some(thread) };
        Ok((disk, ended))
    }
}

fn write_file(
    dir: &Path,
    (prefix, number): (&str, u64),
    file: Option<File>,
    chunks: &Receiver<Vec<u8>>,
    waiting_bytes: &AtomicUsize,
) -> io::Result<()> {
    let mut file = match file {
        Some(file) => file,
        None => create(&path(dir, prefix, number))?,
    };
    for (written, chunk) in chunks.iter().enumerate() {
        if let Err(e) = file.write_all(&chunk) {
            if written == 0 {
                let _nothing_in_it = fs::remove_file(path(dir, prefix, number));
            }
            return Err(e);
        }
        waiting_bytes.fetch_sub(chunk.len(), Ordering::AcqRel);
        if written == 0 {
            remove_old(dir, prefix);
        }
    }
    Ok(())
}

/// Removes old files. Another program may remove some as well. A thread that is late may find later
/// files than its own, and then removes its own.
fn remove_old(dir: &Path, prefix: &str) {
    let numbers = numbers(dir, prefix).unwrap_or_default();
    let newest = numbers.iter().copied().max().unwrap_or(0);
    for number in numbers.into_iter().filter(|number| number.saturating_add(FILES_KEPT) <= newest) {
        if let Err(e) = fs::remove_file(path(dir, prefix, number))
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The thread of the second file comes last: it creates its own after the others have removed
    /// what was old.
    #[test]
    fn a_late_thread_leaves_no_file_more_than_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        for number in 3..=6 {
            create(&path(dir.path(), "log", number)).unwrap();
        }
        let (to_thread, chunks) = channel();
        to_thread.send(b"line\n".to_vec()).unwrap();
        drop(to_thread);
        write_file(dir.path(), ("log", 2), None, &chunks, &AtomicUsize::new(5)).unwrap();
        let mut left = numbers(dir.path(), "log").unwrap();
        left.sort_unstable();
        assert_eq!(left, [3, 4, 5, 6]);
    }
}
