//! Measures what one mount sees of the time stamps while another overwrites a file with one long
//! write.
//!
//! Some file systems move the stamps when a write begins and not again. A reader elsewhere that
//! waits for less time than the write takes then cannot distinguish half-old content from new.

use crate::stamps::Probe;
use crate::{FileFacts, Revalidate};
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest write that is measured: it is held in memory.
pub const BYTES_MAX: u64 = 1 << 30;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// Pause before the write and after it, longer than a tick of whole seconds.
const REST: Duration = Duration::from_millis(2_100);

/// A file system that has not finished by then is given up.
const PATIENCE: Duration = Duration::from_secs(600);

/// Number of examined bytes of the file, evenly spaced, including the first and the last.
const SAMPLES: u64 = 16;

const SECOND_NS: i64 = 1_000_000_000;

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongWrite {
    /// How long the write and its `fsync` took.
    pub took: Duration,
    /// How often the stamps were seen to move.
    pub moves: u32,
    /// How long after the last move of the stamps bytes were still old. `None`: the stamps moved
    /// after that, so no reader mistakes the file for settled while bytes are missing.
    pub behind: Option<Duration>,
}

/// Overwrites a file of `bytes` in `dir` with one write, and reads it through `seen_in`, another
/// mount of the same directory.
///
/// # Errors
/// The file cannot be created, written or read, or the write takes more than ten minutes.
pub fn measure(dir: &Path, seen_in: &Path, bytes: u64, how: Revalidate) -> io::Result<LongWrite> {
    let bytes = bytes.clamp(SAMPLES, BYTES_MAX) as usize;
    let probe = Probe::create(dir, seen_in)?;
    overwrite(&probe.writer()?, &vec![0; bytes])?;
    let deadline = Instant::now() + PATIENCE;
    while probe.reader()?.metadata()?.len() != bytes as u64 {
        not_after(deadline)?;
        sleep(LOOK);
    }
    sleep(REST);
    let mut watch = Watch::begin(&probe, bytes as u64, how)?;
    let ended = write_beside(probe.writer()?, bytes)?;
    let took = loop {
        watch.look(&probe)?;
        not_after(deadline)?;
        match ended.try_recv() {
            Ok(took) => break took?,
            Err(_) => sleep(LOOK),
        }
    };
    let until = Instant::now() + REST;
    while Instant::now() < until || !watch.missing.is_empty() {
        watch.look(&probe)?;
        not_after(deadline)?;
        sleep(LOOK);
    }
    Ok(watch.result(took))
}

fn not_after(deadline: Instant) -> io::Result<()> {
    if Instant::now() < deadline {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, format!("not at an end after {} s", PATIENCE.as_secs())))
}

fn overwrite(file: &File, bytes: &[u8]) -> io::Result<()> {
    file.write_all_at(bytes, 0)?;
    file.sync_all()
}

/// Writes in a thread of its own: the write may hang.
fn write_beside(file: File, bytes: usize) -> io::Result<Receiver<io::Result<Duration>>> {
    let (sender, ended) = channel();
    let content = vec![0xff; bytes];
    let body = move || {
        let begun = Instant::now();
        let result = overwrite(&file, &content).map(|()| begun.elapsed());
        // Many file systems report a change to their servers only then.
        drop(file);
        // Nobody waits any more if it took too long.
        let _ = sender.send(result);
    };
    std::thread::Builder::new().name("long write".into()).spawn(body)?;
    Ok(ended)
}

struct Watch {
    how: Revalidate,
    /// Offsets of samples that have not been seen new.
    missing: Vec<u64>,
    stamps: (i64, i64),
    moves: u32,
    /// When bytes were last seen old, and the stamps right after that.
    old_at: (i64, (i64, i64)),
}

impl Watch {
    fn begin(probe: &Probe, bytes: u64, how: Revalidate) -> io::Result<Self> {
        let missing = (0..SAMPLES).map(|i| i * (bytes - 1) / (SAMPLES - 1)).collect();
        let stamps = stamps(&probe.reader()?, how)?;
        Ok(Watch { how, missing, stamps, moves: 0, old_at: (now_ns(), stamps) })
    }

    fn look(&mut self, probe: &Probe) -> io::Result<()> {
        let file = probe.reader()?;
        let at = now_ns();
        // The kernel may hold old pages of a file whose stamps rest; without its help they are read
        // again.
        fadvise(&file, 0, None, Advice::DontNeed)?;
        let mut byte = [0];
        let mut missing = Vec::new();
        for &offset in &self.missing {
            file.read_exact_at(&mut byte, offset)?;
            if byte[0] == 0 {
                missing.push(offset);
            }
        }
        self.missing = missing;
        let stamps = stamps(&file, self.how)?;
        self.moves += u32::from(stamps != self.stamps);
        self.stamps = stamps;
        if !self.missing.is_empty() {
            self.old_at = (at, stamps);
        }
        Ok(())
    }

    fn result(&self, took: Duration) -> LongWrite {
        let (old_at, stamps_then) = self.old_at;
        let newest = self.stamps.0.max(self.stamps.1);
        // A stamp of whole seconds may be of any moment within its second.
        let newest = if newest % SECOND_NS == 0 { newest + SECOND_NS } else { newest };
        let behind = old_at.saturating_sub(newest).max(0).unsigned_abs();
        let moved_later = self.stamps != stamps_then;
        LongWrite { took, moves: self.moves, behind: (!moved_later).then_some(Duration::from_nanos(behind)) }
    }
}

fn stamps(file: &File, how: Revalidate) -> io::Result<(i64, i64)> {
    let version = FileFacts::of(file.as_fd(), how)?.version;
    Ok((version.mtime_ns, version.ctime_ns))
}

fn now_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(stamps: (i64, i64), old_at: (i64, (i64, i64))) -> Option<Duration> {
        let how = Revalidate::Force;
        Watch { how, missing: vec![], stamps, moves: 1, old_at }.result(Duration::ZERO).behind
    }

    #[test]
    fn stamps_that_move_after_the_last_byte_leave_nothing_behind() {
        let (first, last) = ((100, 100), (900, 900));
        assert_eq!(watch(last, (9 * SECOND_NS, first)), None);
        assert_eq!(watch(last, (9 * SECOND_NS + 900, last)), Some(Duration::from_secs(9)));
        let whole = (SECOND_NS, SECOND_NS);
        assert_eq!(watch(whole, (9 * SECOND_NS, whole)), Some(Duration::from_secs(7)));
        assert_eq!(watch(last, (800, last)), Some(Duration::ZERO), "a clock that is ahead");
    }
}
