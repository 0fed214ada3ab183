//! Files open for peers, and those being opened for them.
//!
//! A file is opened by its path with this agent's own rights, once for all pages that peers ask of
//! it within some seconds. That can take as long as a page does: a busy PFS makes it wait behind
//! what is read. So each is opened by a thread of its own, and those that want the file wait for it
//! no longer than for a page, and then answer "not yet". A thread that hung in the open would
//! answer nothing, and its peer would treat this node as dead.

use crate::cache::Cache;
use crate::lock::lock;
use crate::mounts::MountState;
use crate::mounts::by_path::{ByPath, NoPath, open_by_path};
use crate::mounts::seal::seal;
use crate::user_limits::PfsFile;
use forebay_pfs::lease;
use forebay_store::{Class, Reservation};
use forebay_wire::FileRef;
use forebay_wire::peer::PeerReply;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Files kept open between requests; each page of a file would cost the PFS an open otherwise.
const OPEN_MAX: usize = 64;

/// How long a file is kept open after the last request.
const OPEN_TIME: Duration = Duration::from_secs(5);

/// How long the reason why a file could not be opened is remembered: a peer that got "not yet"
/// comes back for it.
const FAILED_TIME: Duration = Duration::from_secs(2);

/// Files being opened at a time on one mount. On a PFS that hangs these are the threads that hang
/// in it.
const OPENING_MAX: usize = 64;

const STACK_BYTES: usize = 128 << 10;

/// See the module.
#[derive(Debug)]
pub struct OpenFiles {
    state: Mutex<State>,
    mounts: Arc<[MountState]>,
    cache: Arc<Cache>,
}

#[derive(Debug, Default)]
struct State {
    open: VecDeque<(FileRef, Opened, Instant)>,
    opening: Vec<(FileRef, Arc<Opening>)>,
    failed: VecDeque<(FileRef, PeerReply, Instant)>,
}

/// A file that is open on the PFS, its version sealed.
type Opened = Arc<PfsFile>;

/// One open under way, and what came of it.
#[derive(Debug, Default)]
struct Opening {
    ended: Mutex<Option<Result<Opened, PeerReply>>>,
    changed: Condvar,
}

impl Opening {
    fn wait(&self, until: Instant) -> Result<Opened, PeerReply> {
        let mut ended = lock(&self.ended);
        loop {
            if let Some(ended) = &*ended {
                return ended.clone();
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(PeerReply::NotYet);
            }
            ended = self.changed.wait_timeout(ended, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl OpenFiles {
    /// Open files, none yet.
    pub fn new(mounts: Arc<[MountState]>, cache: Arc<Cache>) -> Self {
        OpenFiles { state: Mutex::default(), mounts, cache }
    }

    /// Closes files that no peer has requested recently. Called when there is time.
    pub fn keep_house(&self) {
        let now = Instant::now();
        let mut state = lock(&self.state);
        state.failed.retain(|(_, _, since)| now < *since + FAILED_TIME);
        let (kept, idle) =
            std::mem::take(&mut state.open).into_iter().partition(|(_, _, used)| now < *used + OPEN_TIME);
        state.open = kept;
        drop(state);
        // Closing can wait for the PFS as well, and nobody else should.
        drop::<VecDeque<_>>(idle);
    }

    /// Forgets a file that is no longer what was opened.
    pub fn forget(&self, file: &FileRef) {
        let mut state = lock(&self.state);
        let at = state.open.iter().position(|(of, ..)| of == file);
        let gone = at.and_then(|at| state.open.remove(at));
        drop(state);
        drop(gone);
    }

    /// The file, open; waits until `until` for it.
    ///
    /// # Errors
    /// What to answer the peer.
    pub fn open(self: &Arc<Self>, file: &FileRef, until: Instant) -> Result<Opened, PeerReply> {
        let opening = {
            let mut state = lock(&self.state);
            if let Some((_, opened, used)) = state.open.iter_mut().find(|(of, ..)| of == file) {
                *used = Instant::now();
                return Ok(opened.clone());
            }
            let is_fresh = |since: &Instant| since.elapsed() < FAILED_TIME;
            if let Some((_, why, _)) =
                state.failed.iter().find(|(of, _, since)| of == file && is_fresh(since))
            {
                return Err(why.clone());
            }
            if file.path.is_empty() {
                return Err(PeerReply::Refused("it is not here, and has no path to find it by".into()));
            }
            match state.opening.iter().find(|(of, _)| of == file) {
                Some((_, opening)) => opening.clone(),
                None if state.opening.iter().filter(|(of, _)| of.mount == file.mount).count()
                    >= OPENING_MAX =>
                {
                    return Err(PeerReply::Busy("too many files are being opened".into()));
                }
                None => {
                    let opening = Arc::new(Opening::default());
                    let room = self.cache.reserve(Class::Clients, STACK_BYTES as u64);
                    let room = room.ok_or_else(|| PeerReply::Busy("no memory to open a file".into()))?;
                    self.start(file, &opening, room)
                        .map_err(|e| PeerReply::Busy(format!("no thread: {e}")))?;
                    state.opening.push((file.clone(), opening.clone()));
                    opening
                }
            }
        };
        opening.wait(until)
    }

    fn start(
        self: &Arc<Self>,
        file: &FileRef,
        opening: &Arc<Opening>,
        room: Reservation,
    ) -> std::io::Result<()> {
        let (files, file, opening) = (self.clone(), file.clone(), opening.clone());
        let body = move || {
            let opened = open_now(&files.mounts, &file);
            let mut state = lock(&files.state);
            state.opening.retain(|(_, other)| !Arc::ptr_eq(other, &opening));
            let mut closed = None;
            match &opened {
                Ok(opened) => {
                    closed = (state.open.len() >= OPEN_MAX).then(|| state.open.pop_front());
                    state.open.push_back((file, opened.clone(), Instant::now()));
                }
                Err(why) => {
                    if state.failed.len() >= OPEN_MAX {
                        state.failed.pop_front();
                    }
                    state.failed.push_back((file, why.clone(), Instant::now()));
                }
            }
            drop(state);
            drop(closed);
            *lock(&opening.ended) = Some(opened);
            opening.changed.notify_all();
            drop(room);
        };
        std::thread::Builder::new().name("open".into()).stack_size(STACK_BYTES).spawn(body).map(drop)
    }
}

fn open_now(mounts: &[MountState], file: &FileRef) -> Result<Opened, PeerReply> {
    let ByPath { fd, file: admitted } = open_by_path(mounts, file).map_err(|e| match e {
        NoPath::Changed => PeerReply::Changed,
        NoPath::Refused(refusal) => PeerReply::Refused(refusal.to_string()),
        NoPath::Pfs(e) => PeerReply::Failed {
            errno: e.raw_os_error().unwrap_or(libc::EIO),
            message: format!("cannot open {}: {e}", String::from_utf8_lossy(&file.path)),
        },
    })?;
    seal(&mounts[admitted.mount], fd.as_fd(), lease::Opened::Here, &admitted.facts)
        .map_err(|why| PeerReply::Refused(why.to_string()))?;
    // The kernel's read-ahead on this descriptor would fetch what belongs to other nodes. Advice:
    // no harm if it is not taken.
    let _ = rustix::fs::fadvise(&fd, 0, None, rustix::fs::Advice::Random);
    Ok(Arc::new(fd.into()))
}
