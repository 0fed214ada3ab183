//! Checks whether a file still has the version that a handle has opened.
//!
//! Within one open, bytes of the tier are never mixed with bytes of another version. Bytes of the
//! tier are of the opened version by construction. A check of the file follows a direct read; if it
//! finds other content, the read fails with `ESTALE`, and a program that opens the file again gets
//! the new version. On some file systems a check costs a round trip, as much as a small read. So it
//! may be postponed while the handle has read only the PFS: it is due before the first byte from
//! the tier, when it costs less than a hundredth of the time of the reads since the last one, and
//! every 50 ms at the latest. (A version that has not changed by then had not changed before.)
//!
//! A check compares the descriptor's attributes with those that the last check has proved; it never
//! uses a path. If only ctime has moved, the kernel's reports of this node (`watch`) distinguish a
//! change of an attribute from a write whose mtime was set back.

use crate::fork_safe::OwnLock;
use crate::watch::{Events, Watch, Watches};
use forebay_pfs::{Difference, FileFacts, Revalidate};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long to wait for a kernel event after the time stamps have changed.
const EVENT_PATIENCE: Duration = Duration::from_millis(50);

/// While a handle reads the PFS only, a check may take this part of the time of the reads since the
/// last one: a hundredth. Where a check is cheap, or the reads are long, every read is followed by
/// one.
const PROOF_SHARE: u64 = 100;

/// Longest time without a check.
const PROOF_INTERVAL_MS: u64 = 50;

/// What a handle knows of its file's content.
#[derive(Debug)]
pub(crate) struct Proof {
    /// Facts of the version opened.
    pub facts: FileFacts,
    /// Attributes of the same content, as the last check has proved them; `None` before the first.
    proved: OwnLock<Option<Proved>>,
    /// The inotify watch; unset until it is needed.
    watch: OnceLock<Watching>,
    /// A check has proved the content under other stamps than those of the open. A forked child
    /// sees this flag, but not the proved attributes.
    has_moved: AtomicBool,
    /// The handle is about to return bytes of the tier: a check follows every direct read.
    serves_tier: AtomicBool,
    /// The handle may return bytes of the tier: all earlier direct reads were of this content.
    tier_is_proved: AtomicBool,
    /// The PFS has been read since the last check.
    unproved: AtomicBool,
    /// A check found other content: the handle returns nothing more.
    changed: AtomicBool,
    /// Time of the last check, in milliseconds since the open.
    proved_at_ms: AtomicU64,
    /// Time of the last check, and of the direct reads since, in nanoseconds.
    look_ns: AtomicU64,
    read_ns: AtomicU64,
    opened: Instant,
}

/// Whether the kernel reports what this node does to the file.
#[derive(Debug)]
enum Watching {
    Since(Watch),
    /// The file was changed between the open and the watch. No report shows whether that was a
    /// write.
    TooLate,
    /// The kernel allows no more watches, or there is no `/proc`.
    Impossible,
    /// The client does not watch. The reader continues with the PFS after any change.
    Unwanted,
}

/// Attributes that a check has proved to belong to the opened content.
#[derive(Clone, Copy, Debug)]
struct Proved {
    facts: FileFacts,
    /// What this node had done to the file by then.
    events: Events,
}

/// The content is another than the one opened.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Changed;

impl Proof {
    /// The proof for a file whose `facts` were requested at `asked`. Unless it `may_be_watched`,
    /// only a file whose attributes stay the same counts as unchanged.
    pub fn new(facts: FileFacts, asked: Instant, may_be_watched: bool) -> Self {
        let watch = if may_be_watched { OnceLock::new() } else { OnceLock::from(Watching::Unwanted) };
        Proof {
            facts,
            proved: OwnLock::default(),
            watch,
            has_moved: AtomicBool::new(false),
            serves_tier: AtomicBool::new(false),
            tier_is_proved: AtomicBool::new(false),
            unproved: AtomicBool::new(false),
            changed: AtomicBool::new(false),
            proved_at_ms: AtomicU64::new(0),
            look_ns: AtomicU64::new(0),
            read_ns: AtomicU64::new(0),
            opened: asked,
        }
    }

    /// Watches what programs on this node do to the file, from now on at the latest. False if it
    /// was changed since it was opened and before this: whatever comes later, nothing can be
    /// proved.
    pub fn watch(&self, watches: &Arc<Watches>, file: BorrowedFd<'_>) -> bool {
        let begin = || {
            let watch = watches.watch(file)?;
            // This node's changes show in its own attributes immediately, so no server need be
            // asked.
            let now = FileFacts::of(file, Revalidate::AsStat).ok()?;
            let is_as_opened = self.facts.difference(&now) == Difference::None;
            Some(if is_as_opened { Watching::Since(watch) } else { Watching::TooLate })
        };
        if self.watch.get().is_none() {
            // Before it is stored: a child forked by another thread meanwhile must not wait for
            // this one.
            let watching = begin().unwrap_or(Watching::Impossible);
            let _others_was_first = self.watch.set(watching);
        }
        !matches!(self.watch.get(), Some(Watching::TooLate))
    }

    /// Milliseconds since the open.
    pub fn age_ms(&self) -> u64 {
        self.opened.elapsed().as_millis() as u64
    }

    /// Whether the content was found changed.
    pub fn has_failed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }

    /// Whether the handle has returned bytes of the tier, and no check has found other content.
    pub fn is_settled(&self) -> bool {
        self.tier_is_proved.load(Ordering::Acquire) && !self.has_failed()
    }

    /// Whether the stamps have not moved since the open, as far as checks have shown.
    pub fn is_stamped_as_opened(&self) -> bool {
        !self.has_moved.load(Ordering::Acquire)
    }

    /// Called when bytes of the tier were copied and are about to be returned.
    ///
    /// # Errors
    /// What the PFS returns; [`Changed`] if bytes read from it before are of another content.
    pub fn before_tier(&self, file: BorrowedFd<'_>) -> io::Result<Result<(), Changed>> {
        if self.tier_is_proved.load(Ordering::Acquire) {
            return Ok(Ok(()));
        }
        self.serves_tier.store(true, Ordering::SeqCst);
        if self.unproved.load(Ordering::SeqCst)
            && let Err(Changed) = self.look(file, Revalidate::AsStat)?
        {
            return Ok(Err(Changed));
        }
        self.tier_is_proved.store(true, Ordering::Release);
        Ok(Ok(()))
    }

    /// Called when the PFS was read, which `took` this long; `ended`: before the length that was
    /// opened.
    ///
    /// # Errors
    /// As [`Proof::before_tier`].
    pub fn after_direct_read(
        &self,
        file: BorrowedFd<'_>,
        took: Duration,
        ended: bool,
    ) -> io::Result<Result<(), Changed>> {
        self.unproved.store(true, Ordering::SeqCst);
        let took_ns = took.as_nanos() as u64;
        let read_ns = self.read_ns.fetch_add(took_ns, Ordering::Relaxed) + took_ns;
        let last = self.proved_at_ms.load(Ordering::Relaxed);
        let due = read_ns >= self.look_ns.load(Ordering::Relaxed).saturating_mul(PROOF_SHARE)
            || self.age_ms() >= last + PROOF_INTERVAL_MS;
        // Order matters between threads: each first announces what it has done and then checks
        // what the other has announced.
        if due || ended || self.serves_tier.load(Ordering::SeqCst) {
            return self.look(file, Revalidate::AsStat);
        }
        Ok(Ok(()))
    }

    /// Checks the file: all bytes read from the PFS so far were of the opened version, or
    /// [`Changed`].
    ///
    /// # Errors
    /// What the PFS returns.
    pub fn look(&self, file: BorrowedFd<'_>, how: Revalidate) -> io::Result<Result<(), Changed>> {
        let (started, now_ms) = (Instant::now(), self.age_ms());
        let now = FileFacts::of(file, how)?;
        let proved = self.proved.lock().map_or(self.facts, |proved| proved.facts);
        if proved.difference(&now) != Difference::None && !self.look_again(file)? {
            self.changed.store(true, Ordering::Relaxed);
            return Ok(Err(Changed));
        }
        self.look_ns.store(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
        self.read_ns.store(0, Ordering::Relaxed);
        self.proved_at_ms.store(now_ms, Ordering::Relaxed);
        Ok(Ok(()))
    }

    /// Whether the content is the opened one although the attributes differ; if so, later checks
    /// compare with the attributes of now. One thread at a time: what another thread has proved
    /// meanwhile is newer than what this one has read.
    fn look_again(&self, file: BorrowedFd<'_>) -> io::Result<bool> {
        let mut last = self.proved.lock();
        if last.is_none() && self.has_moved.load(Ordering::Acquire) {
            // A forked child: what its parent has proved is not known here.
            return Ok(false);
        }
        let proved = last.unwrap_or_else(|| self.at_open());
        let before = self.events();
        // Past this node's attribute cache: reports of changes that the facts do not show yet would
        // be used up.
        let facts = FileFacts::of(file, Revalidate::Force)?;
        let difference = proved.facts.difference(&facts);
        if difference == Difference::None {
            return Ok(true);
        }
        let is_unknown = matches!(self.watch.get(), Some(Watching::TooLate | Watching::Unwanted));
        let is_same = !is_unknown && same_content(difference, &proved.events, || self.events());
        if is_same {
            // The events of before: what comes after them may not be in the facts.
            *last = Some(Proved { facts, events: before.unwrap_or_default() });
            self.has_moved.store(true, Ordering::Release);
        }
        Ok(is_same)
    }

    fn at_open(&self) -> Proved {
        let events = match self.watch.get() {
            Some(Watching::Since(watch)) => watch.at_open,
            _ => Events::default(),
        };
        Proved { facts: self.facts, events }
    }

    fn events(&self) -> Option<Events> {
        match self.watch.get()? {
            Watching::Since(watch) => watch.events(),
            Watching::TooLate | Watching::Impossible | Watching::Unwanted => None,
        }
    }
}

/// Whether a file that differs in this way from what was proved has the same content, judged by
/// what this node has done to it: `proved` by then, and `now`.
fn same_content(difference: Difference, proved: &Events, now: impl Fn() -> Option<Events>) -> bool {
    let until = Instant::now() + EVENT_PATIENCE;
    loop {
        let events = now();
        let is_same = match difference {
            Difference::None => true,
            Difference::Content => false,
            Difference::Attributes => events.is_none_or(|now| !now.wrote_since(proved)),
            Difference::CtimeOnly => {
                events.is_some_and(|now| now.touched_since(proved) && !now.wrote_since(proved))
            }
        };
        let may_come = difference == Difference::CtimeOnly && events.is_some_and(|now| now == *proved);
        if is_same || !may_come || Instant::now() >= until {
            return is_same;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, Permissions};
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileExt, PermissionsExt};

    fn opened(dir: &std::path::Path) -> (File, Proof) {
        std::fs::write(dir.join("f"), b"one").unwrap();
        let file = File::options().read(true).write(true).open(dir.join("f")).unwrap();
        let facts = FileFacts::of(file.as_fd(), Revalidate::Force).unwrap();
        (file, Proof::new(facts, Instant::now(), true))
    }

    /// Time stamps have a granularity.
    fn tick() {
        std::thread::sleep(Duration::from_millis(20));
    }

    #[test]
    fn a_watch_that_begins_after_a_change_explains_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (file, proof) = opened(dir.path());
        tick();
        let modified = file.metadata().unwrap().modified().unwrap();
        file.write_at(b"two", 0).unwrap();
        file.set_modified(modified).unwrap();
        assert!(!proof.watch(&Arc::default(), file.as_fd()), "it has not seen the change");
        std::fs::rename(dir.path().join("f"), dir.path().join("g")).unwrap();
        assert_eq!(proof.look(file.as_fd(), Revalidate::Force).unwrap(), Err(Changed));
        assert!(proof.has_failed());
    }

    #[test]
    fn a_write_before_the_watch_is_not_taken_for_the_change_of_attributes_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let (file, proof) = opened(dir.path());
        tick();
        let modified = file.metadata().unwrap().modified().unwrap();
        file.write_at(b"two", 0).unwrap();
        file.set_modified(modified).unwrap();
        std::fs::remove_file(dir.path().join("f")).unwrap();
        proof.watch(&Arc::default(), file.as_fd());
        assert_eq!(proof.look(file.as_fd(), Revalidate::Force).unwrap(), Err(Changed));
    }

    #[test]
    fn without_a_watch_any_change_of_attributes_ends_the_handle() {
        let dir = tempfile::tempdir().unwrap();
        let (file, watched) = opened(dir.path());
        let proof = Proof::new(watched.facts, Instant::now(), false);
        let watches = Arc::default();
        assert!(proof.watch(&watches, file.as_fd()));
        assert_eq!(proof.look(file.as_fd(), Revalidate::Force).unwrap(), Ok(()));
        tick();
        std::fs::hard_link(dir.path().join("f"), dir.path().join("g")).unwrap();
        assert_eq!(proof.look(file.as_fd(), Revalidate::Force).unwrap(), Err(Changed));
    }

    #[test]
    fn a_watch_that_begins_late_explains_what_comes_after() {
        let dir = tempfile::tempdir().unwrap();
        let (file, proof) = opened(dir.path());
        assert!(proof.watch(&Arc::default(), file.as_fd()));
        tick();
        std::fs::set_permissions(dir.path().join("f"), Permissions::from_mode(0o600)).unwrap();
        std::fs::rename(dir.path().join("f"), dir.path().join("g")).unwrap();
        assert_eq!(proof.look(file.as_fd(), Revalidate::Force).unwrap(), Ok(()));
        assert!(!proof.is_stamped_as_opened());
        tick();
        file.write_at(b"two", 0).unwrap();
        assert_eq!(proof.look(file.as_fd(), Revalidate::Force).unwrap(), Err(Changed));
    }
}
