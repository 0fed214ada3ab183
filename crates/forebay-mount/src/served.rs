//! Which open files the tier serves, and for how long.
//!
//! A file that is open only for reading is registered with the agent when it is opened, or at its
//! first read if the kernel keeps its pages already. From then on the client core reads it from the
//! tier or the PFS. The reader changes to the PFS's own file when the file is opened for writing
//! through this mount, or when a check finds that its content has changed, because programs do not
//! expect `ESTALE`.
//!
//! Only the last such files stay registered ([`crate::registered`]); the next read of another one
//! registers it again.

use forebay_client::{Client, File};
use forebay_pfs::{FileVersion, Revalidate};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How old the last check of a file's attributes may be when its reads are served.
pub const FRESH: Duration = Duration::from_millis(50);

/// A file that was read within this time stays registered before others.
const IN_USE: Duration = Duration::from_secs(1);

/// The tier's part of an open file.
#[derive(Debug)]
pub struct Served {
    state: RwLock<State>,
    /// It is not served any more.
    left: AtomicBool,
    /// How often others may have changed the file, and how many of these a check has cleared up.
    /// Meanwhile each read checks the file, past this node's caches.
    doubts: AtomicU64,
    cleared: AtomicU64,
    /// Time of the last look, in milliseconds of this process's clock.
    looked_ms: AtomicU64,
}

#[derive(Debug)]
enum State {
    /// It was not read yet, or is to be registered again.
    Unread,
    /// By the client core.
    By(Arc<File>),
    /// By the PFS alone.
    Pfs,
}

impl Served {
    /// A file that may be served.
    pub fn perhaps() -> Self {
        Served {
            state: RwLock::new(State::Unread),
            left: AtomicBool::new(false),
            doubts: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
            looked_ms: AtomicU64::new(0),
        }
    }

    /// A file that is not served.
    pub fn never() -> Self {
        Served { state: RwLock::new(State::Pfs), left: AtomicBool::new(true), ..Served::perhaps() }
    }

    /// Leaves the file to the PFS from the next read on.
    pub fn leave(&self) {
        self.left.store(true, Ordering::Release);
    }

    /// Notes that others may have changed the file, and that the program expects to see the change.
    pub fn doubt(&self) {
        self.doubts.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether its reads go to the PFS from now on.
    pub fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Whether its reads come from the tier, and nothing says that the file has changed.
    pub fn is_certain(&self) -> bool {
        !self.has_left() && self.doubts.load(Ordering::Acquire) == self.cleared.load(Ordering::Acquire)
    }

    /// The version that is read from the tier, once it is registered.
    pub fn version(&self) -> Option<FileVersion> {
        self.file()?.version()
    }

    /// The version that is registered, if all of it is in the tier.
    pub fn whole_version(&self) -> Option<FileVersion> {
        let file = self.file().filter(|file| file.is_resident())?;
        file.version()
    }

    /// Whether it was read lately.
    pub fn is_in_use(&self) -> bool {
        now_ms().saturating_sub(self.looked_ms.load(Ordering::Relaxed)) < IN_USE.as_millis() as u64
    }

    /// Makes the next read register the file again.
    pub fn rest(&self) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let was = match &*state {
            State::By(_) => std::mem::replace(&mut *state, State::Unread),
            _ => return,
        };
        drop(state);
        drop(was);
    }

    /// Registers the file with the agent before its first read. Returns whether that was done now.
    pub fn register(&self, client: &Client, fd: BorrowedFd<'_>) -> bool {
        if self.left.load(Ordering::Acquire) || !self.is(|state| matches!(state, State::Unread)) {
            return false;
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*state, State::Unread) {
            return false;
        }
        // The agent looks at the file after this, and may answer late.
        let asked_ms = now_ms();
        *state = match open(client, fd) {
            Some(file) => State::By(Arc::new(file)),
            None => State::Pfs,
        };
        self.looked_ms.store(asked_ms, Ordering::Relaxed);
        matches!(*state, State::By(_))
    }

    fn is(&self, what: impl Fn(&State) -> bool) -> bool {
        what(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads at `offset`; `None` if the PFS has to be read.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> Option<usize> {
        if self.left.load(Ordering::Acquire) {
            self.drop_file();
            return None;
        }
        let file = self.file()?;
        if !self.is_fresh(&file) {
            self.leave();
            self.drop_file();
            return None;
        }
        match file.read_at(buffer, offset) {
            Ok(n) => Some(n),
            Err(_) => {
                // The file has changed, or the PFS itself is to report an error.
                self.leave();
                self.drop_file();
                None
            }
        }
    }

    fn file(&self) -> Option<Arc<File>> {
        match &*self.state.read().unwrap_or_else(PoisonError::into_inner) {
            State::By(file) => Some(file.clone()),
            State::Unread | State::Pfs => None,
        }
    }

    fn is_fresh(&self, file: &File) -> bool {
        let doubts = self.doubts.load(Ordering::Acquire);
        let is_in_doubt = doubts != self.cleared.load(Ordering::Acquire);
        let now = now_ms();
        let age_ms = now.saturating_sub(self.looked_ms.load(Ordering::Relaxed));
        if !is_in_doubt && age_ms < FRESH.as_millis() as u64 {
            return true;
        }
        let how = if is_in_doubt { Revalidate::Force } else { Revalidate::AsStat };
        let is_current = file.is_current(how).unwrap_or(false);
        if is_current {
            // Not before: a read at the same time must not treat the file as checked.
            self.looked_ms.store(now, Ordering::Relaxed);
            self.cleared.fetch_max(doubts, Ordering::AcqRel);
        }
        is_current
    }

    fn drop_file(&self) {
        if self.is(|state| matches!(state, State::By(_))) {
            *self.state.write().unwrap_or_else(PoisonError::into_inner) = State::Pfs;
        }
    }
}

fn open(client: &Client, fd: BorrowedFd<'_>) -> Option<File> {
    let own = fd.try_clone_to_owned().ok()?;
    // The kernel knows the length that the PFS has, so a dirty file is read as it is there.
    client.open_descriptor(own, Path::new("")).ok().filter(|file| file.version().is_some())
}

fn now_ms() -> u64 {
    use std::sync::OnceLock;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64
}

/// Reads the PFS until the buffer is full or the file ends.
///
/// # Errors
/// What the PFS returns, if it returns no bytes, or if `all` are wanted: the kernel would mistake
/// fewer for the end of a file whose pages it keeps.
pub fn read_pfs(fd: BorrowedFd<'_>, buffer: &mut [u8], offset: u64, all: bool) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match rustix::io::pread(fd, &mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) if done == 0 => return Err(rustix::io::Errno::INTR.into()),
            Err(_) if done > 0 && !all => break,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(done)
}
