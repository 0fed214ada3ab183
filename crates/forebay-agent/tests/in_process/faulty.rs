//! A PFS with faults, and with the traits of any file system, over a plain directory.

use forebay_pfs::layout::Layout;
use forebay_pfs::lease::{Opened, Writers};
use forebay_pfs::read::PageCache;
use forebay_pfs::stamps::Stamps;
use forebay_pfs::{FileFacts, Mounted, Revalidate, Source, Traits};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Long enough for any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// One read that was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Where it began.
    pub offset: u64,
    /// Bytes wanted.
    pub len: usize,
    /// Through which descriptor.
    pub by: i32,
    /// Bytes of a stripe, as far as they were known.
    pub stripe_bytes: u64,
    /// What it did with the kernel's copy.
    pub page_cache: PageCache,
}

/// What becomes of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeds.
    Bytes,
    /// It fails with this error number.
    Fails(i32),
    /// It ends after this many bytes, as at the end of a file that was truncated.
    EndsAfter(usize),
}

type Judge = Box<dyn FnMut(&Read) -> Outcome + Send>;

struct State {
    judge: Judge,
    is_held: bool,
    held: usize,
    reads: Vec<Read>,
    layouts_asked: u64,
    traits: Traits,
    writers: Option<Writers>,
    layout: Option<Layout>,
    stamps: Option<Result<Stamps, i32>>,
}

/// The directory of a test as a PFS that does as the test says.
pub struct Faulty {
    under: Mounted,
    state: Mutex<State>,
    changed: Condvar,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("under", &self.under).finish_non_exhaustive()
    }
}

impl Faulty {
    /// A PFS without a fault so far, over `root` (absolute, symbolic links resolved) on device
    /// `dev`.
    pub fn new(root: &Path, dev: u64) -> Self {
        let state = State {
            judge: Box::new(|_| Outcome::Bytes),
            is_held: false,
            held: 0,
            reads: Vec::new(),
            layouts_asked: 0,
            traits: Traits::of(root),
            writers: None,
            layout: None,
            stamps: None,
        };
        Faulty { under: Mounted::new(root, dev), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Has `judge` say from now on what becomes of each read; it may change files before.
    pub fn judge(&self, judge: impl FnMut(&Read) -> Outcome + Send + 'static) {
        self.state().judge = Box::new(judge);
    }

    /// Makes all reads succeed again.
    pub fn heal(&self) {
        self.judge(|_| Outcome::Bytes);
    }

    /// Makes reads hang from now on.
    pub fn hold(&self) {
        self.state().is_held = true;
    }

    /// Lets them continue.
    pub fn release(&self) {
        self.state().is_held = false;
        self.changed.notify_all();
    }

    /// Waits until exactly `count` reads hang.
    ///
    /// # Panics
    /// They do not within a minute.
    pub fn await_held(&self, count: usize) {
        let (deadline, mut state) = (Instant::now() + PATIENCE, self.state());
        while state.held != count {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{} reads hang instead of {count}", state.held);
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Gives it these traits of a file system.
    pub fn set_traits(&self, traits: Traits) {
        self.state().traits = traits;
    }

    /// Sets what a lease says of the writers of any file.
    pub fn set_writers(&self, writers: Writers) {
        self.state().writers = Some(writers);
    }

    /// Sets the layout of every file.
    pub fn set_layout(&self, layout: Layout) {
        self.state().layout = Some(layout);
    }

    /// Sets what measuring the time stamps finds, or the number of the error that it fails with.
    pub fn set_stamps(&self, stamps: Result<Stamps, i32>) {
        self.state().stamps = Some(stamps);
    }

    /// The reads so far, in the order in which they began.
    pub fn reads(&self) -> Vec<Read> {
        self.state().reads.clone()
    }

    /// How often somebody has asked for the layout of a file.
    pub fn layouts_asked(&self) -> u64 {
        self.state().layouts_asked
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source for Faulty {
    fn traits(&self) -> Traits {
        self.state().traits
    }

    fn facts(&self, fd: BorrowedFd<'_>, how: Revalidate) -> io::Result<FileFacts> {
        self.under.facts(fd, how)
    }

    fn read_full_at(
        &self,
        fd: BorrowedFd<'_>,
        buffer: &mut [u8],
        offset: u64,
        stripe_bytes: u64,
        page_cache: PageCache,
    ) -> io::Result<usize> {
        let mut state = self.state();
        let read = Read { offset, len: buffer.len(), by: fd.as_raw_fd(), stripe_bytes, page_cache };
        state.reads.push(read);
        state.held += 1;
        self.changed.notify_all();
        while state.is_held {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.held -= 1;
        self.changed.notify_all();
        let outcome = (state.judge)(&read);
        drop(state);
        match outcome {
            Outcome::Bytes => self.under.read_full_at(fd, buffer, offset, stripe_bytes, page_cache),
            Outcome::Fails(errno) => Err(io::Error::from_raw_os_error(errno)),
            Outcome::EndsAfter(bytes) => {
                let len = buffer.len().min(bytes);
                self.under.read_full_at(fd, &mut buffer[..len], offset, stripe_bytes, page_cache)
            }
        }
    }

    fn reopen(&self, fd: BorrowedFd<'_>, page_cache: PageCache) -> io::Result<OwnedFd> {
        self.under.reopen(fd, page_cache)
    }

    fn writers(&self, fd: BorrowedFd<'_>, opened: Opened) -> Writers {
        let given = self.state().writers;
        given.unwrap_or_else(|| self.under.writers(fd, opened))
    }

    fn layout(&self, fd: BorrowedFd<'_>, with_messages: bool) -> Option<Layout> {
        let mut state = self.state();
        state.layouts_asked += 1;
        let given = state.layout.clone();
        drop(state);
        given.or_else(|| self.under.layout(fd, with_messages))
    }

    fn measure_stamps(&self, dir: &Path, how: Revalidate) -> io::Result<Stamps> {
        match self.state().stamps {
            Some(given) => given.map_err(io::Error::from_raw_os_error),
            None => self.under.measure_stamps(dir, how),
        }
    }
}
