//! Reads a file.
//!
//! A read copies resident bytes from shared memory, without a lease, a call, or a lock that anybody
//! outside this process could hold (see `forebay_store::word`); a handle's own lock guards only its
//! view of the copy. Either the agent fetches missing bytes, which fills the tier for the
//! next reader, or the program reads them from the PFS itself; the read-ahead policy decides which,
//! by the pattern of the reads. After any failure of the agent the program reads the PFS.
//!
//! `version_check` ensures that one open never returns bytes of two versions.

use crate::descriptor_place::Place;
use crate::dirty::may_be_elsewhere;
use crate::error::{errno, out_of_files, with_message};
use crate::session::{Client, Session, lock, unexpected};
use crate::version_check::{Changed, Proof};
use crate::{EXTENT_BYTES, MappedRange};
use forebay_pfs::layout::{self, Layout};
use forebay_pfs::read::{reopen, reopen_direct};
use forebay_pfs::{FileFacts, FileVersion, Revalidate};
use forebay_policy::miss_ledger::LEAST_RENT_BYTES;
use forebay_policy::readahead::{Readahead, ReadaheadConfig, Serve};
use forebay_store::copy::{CopyView, Geometry};
use forebay_store::ring::page_key;
use forebay_store::word::State;
use forebay_wire::{PageRun, Received, Reply, Request};
use rustix::fs::{Advice, Mode, OFlags, fadvise, fcntl_getfl};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

mod to_map;

pub use to_map::FetchToMap;

/// The agent answers by the deadline; the client allows this much more before it believes that it
/// will not.
const GRACE: Duration = Duration::from_millis(500);

/// A stream starts with at least this much ahead: eight pages of 2 MiB are under way at once, so
/// that every server of a small PFS has work from the first moment on.
const FIRST_WINDOW_BYTES: u64 = 16 << 20;

/// Bytes that a reader of a file with small pages waits for at a time: the first bytes of a page of
/// usual size come in one read of the PFS of this length.
const FETCH_UNIT_BYTES: u64 = 256 << 10;

/// Where the bytes of a read may come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadMode {
    /// From the tier if they are there, else from the PFS, cached on the way.
    #[default]
    Cached,
    /// From the tier only; what is missing is an error (`ENODATA`).
    TierOnly,
    /// From the PFS only, not cached; exactly what the program would get without Forebay.
    PfsOnly,
}

/// What a read came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Bytes read.
    pub bytes: usize,
    /// Bytes that the program read from the PFS itself.
    pub pfs_bytes: usize,
    /// Times that it waited for the agent to fetch.
    pub fetches: u32,
    /// Bytes that came with these fetches, as many as one read of the PFS has, whatever the program
    /// wanted of them.
    pub fetched_bytes: u64,
}

/// A file open for reading. Threads may share it.
#[derive(Debug)]
pub struct File {
    client: Client,
    path: PathBuf,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// The PFS alone: by choice, or because no agent serves the file.
    Pfs(OwnedFd),
    /// The PFS with the tier before it.
    Tiered(Box<Tiered>),
    /// A memory-only file of this job, or one that is not on the PFS yet.
    Scratch { file: OwnedFd, size: u64 },
}

#[derive(Debug)]
struct Tiered {
    pfs: OwnedFd,
    place: Place,
    /// The same file opened past all caches, where the agent asks for that; unset until the PFS
    /// has to be read.
    past_caches: OnceLock<Option<OwnedFd>>,
    /// Facts of the version opened, and whether the file still has that version.
    proof: Proof,
    mode: ReadMode,
    page_bytes: u64,
    /// What one fetch asks for at most, a multiple of the page.
    unit_bytes: u64,
    pinned: bool,
    view: RwLock<Option<Arc<CopyView>>>,
    readahead: Mutex<Readahead>,
    /// Page of the last read, so that the policy and the agent hear of pages and not of reads.
    last_page: AtomicU64,
    /// Everything was resident when last looked; the policy need not be asked until a read misses.
    all_resident: AtomicBool,
    /// The page that was missing when last looked: where to look first the next time.
    missing: AtomicU64,
    /// The kernel does not read ahead here, because the agent does.
    advised_random: AtomicBool,
    /// Small reads that missed.
    misses: AtomicU64,
    /// The agent has refused to cache the file, and is not asked again until this many milliseconds
    /// after it was opened.
    refused_until_ms: AtomicU64,
}

/// How long to read a file that the agent refuses to cache, such as one that is being written, from
/// the PFS before the agent is asked again. Small reads would otherwise take many times as long as
/// without Forebay.
const REFUSED_PAUSE_MS: u64 = 10;

/// The agent hears of one small read that misses in this many.
const MISSES_PER_REPORT: u64 = 16;

/// How often to ask the agent about a file while other programs keep changing it.
const OPEN_TRIES: usize = 3;

/// Most pages of a file that, if wholly in the tier, is not watched from its open on: a watch for
/// each open of a small file would double what the open costs.
const UNWATCHED_PAGES: u64 = 8;

/// The agent's report about a file.
struct Opened {
    /// Number of its mount.
    mount: usize,
    proof: Proof,
    view: Option<CopyView>,
    page_bytes: u64,
    pinned: bool,
}

/// What the agent has shown of a file.
enum Shown {
    /// What the PFS has.
    Clean(Box<Opened>),
    /// What the PFS does not have yet, and its length.
    Dirty(OwnedFd, u64),
}

impl Opened {
    /// Whether it is small, and all of it is in the tier.
    fn is_small_and_resident(&self) -> bool {
        self.view.as_ref().is_some_and(|view| {
            let pages = view.geometry().pages();
            pages <= UNWATCHED_PAGES && (0..pages).all(|page| view.is_resident(page as u32))
        })
    }
}

impl Client {
    /// Opens `path` for reading, cached.
    ///
    /// # Errors
    /// What the PFS returns for the open.
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        self.open_with(path, ReadMode::Cached)
    }

    /// Opens `path` for reading.
    ///
    /// # Errors
    /// What the PFS returns for the open; for [`ReadMode::TierOnly`] also `NotConnected` without an
    /// agent.
    pub fn open_with(&self, path: impl AsRef<Path>, mode: ReadMode) -> io::Result<File> {
        let path = path.as_ref();
        if mode != ReadMode::PfsOnly
            && let Some(source) = self.open_scratch(path)
        {
            return Ok(File { client: self.clone(), path: path.to_owned(), source });
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let pfs = rustix::fs::open(path, flags, Mode::empty())?;
        if mode != ReadMode::PfsOnly
            && self.has_other_nodes()
            && let Ok(FileVersion { size, mtime_ns, .. }) =
                FileFacts::of(pfs.as_fd(), Revalidate::AsStat).map(|facts| facts.version)
            && may_be_elsewhere(size, mtime_ns)
            && let Some((file, size)) = self.newest_content(pfs.as_fd())?
        {
            let source = Source::Scratch { file, size };
            return Ok(File { client: self.clone(), path: path.to_owned(), source });
        }
        let shown = match mode {
            ReadMode::PfsOnly => Ok(Source::Pfs(pfs)),
            _ => self.show(pfs, mode),
        };
        let source = match (shown, mode) {
            (Ok(source), _) => source,
            (Err((_, e)), ReadMode::TierOnly) => {
                let limit = out_of_files(&e);
                let why = limit.unwrap_or("no agent serves it, so nothing of it is in the tier");
                let number = if limit.is_some() { errno(&e) } else { libc::ENOTCONN };
                return Err(with_message(number, format!("{}: {why}", path.display())));
            }
            (Err((pfs, _)), _) => Source::Pfs(pfs),
        };
        Ok(File { client: self.clone(), path: path.to_owned(), source })
    }

    /// Reads a regular file that is open already, cached. `path` is what messages call it. The
    /// handle uses the descriptor at offsets of its own and never moves its position; where the
    /// agent reads past the page cache, it sets `O_DIRECT` on the open file.
    ///
    /// # Errors
    /// The descriptor, if no agent serves the file, and why.
    pub fn open_descriptor(&self, pfs: OwnedFd, path: &Path) -> Result<File, (OwnedFd, io::Error)> {
        let source = self.show(pfs, ReadMode::Cached)?;
        Ok(File { client: self.clone(), path: path.to_owned(), source })
    }

    /// Shows the descriptor to the agent; gives it back if no agent takes it, with the reason.
    fn show(&self, pfs: OwnedFd, mode: ReadMode) -> Result<Source, (OwnedFd, io::Error)> {
        match self.ask_until_watched(&pfs) {
            Ok(Shown::Clean(opened)) => {
                let config = self.readahead_config(opened.mount, opened.page_bytes);
                Ok(Source::Tiered(self.tiered(pfs, mode, opened, config)))
            }
            Ok(Shown::Dirty(file, size)) => Ok(Source::Scratch { file, size }),
            Err(e) => Err((pfs, e)),
        }
    }

    /// Apart, so that its room on the stack, which may be a small one, is not taken while the agent
    /// is asked.
    #[inline(never)]
    fn tiered(
        &self,
        pfs: OwnedFd,
        mode: ReadMode,
        opened: Box<Opened>,
        config: ReadaheadConfig,
    ) -> Box<Tiered> {
        let Opened { proof, view, page_bytes, pinned, .. } = *opened;
        let unit_bytes = if config.is_columnar { page_bytes.max(FETCH_UNIT_BYTES) } else { page_bytes };
        Box::new(Tiered {
            readahead: Mutex::new(Readahead::new(config, proof.facts.version.size)),
            pfs,
            place: self.session.config.place,
            past_caches: OnceLock::new(),
            proof,
            mode,
            page_bytes,
            unit_bytes,
            pinned,
            view: RwLock::new(view.map(Arc::new)),
            last_page: AtomicU64::new(u64::MAX),
            all_resident: AtomicBool::new(false),
            missing: AtomicU64::new(0),
            advised_random: AtomicBool::new(false),
            misses: AtomicU64::new(0),
            refused_until_ms: AtomicU64::new(0),
        })
    }

    /// Asks the agent, again if the file was changed between its look and the beginning of the
    /// watch. A small file that is wholly in the tier has none until a read misses.
    fn ask_until_watched(&self, pfs: &OwnedFd) -> io::Result<Shown> {
        let mut shown = self.ask(pfs)?;
        for _ in 1..OPEN_TRIES {
            match &shown {
                Shown::Clean(opened)
                    if !opened.is_small_and_resident()
                        && !opened.proof.watch(&self.session.watches, pfs.as_fd()) => {}
                _ => break,
            }
            shown = self.ask(pfs)?;
        }
        Ok(shown)
    }

    fn ask(&self, pfs: &OwnedFd) -> io::Result<Shown> {
        let session = &self.session;
        // The agent looks at the file after this, and may answer late.
        let asked = Instant::now();
        let answer = session.call(&Request::Open, &[pfs.as_fd()], session.config.deadline)?;
        self.understood(answer, asked)
    }

    /// Apart, as [`Client::tiered`].
    #[inline(never)]
    fn understood(&self, mut answer: Received<Reply>, asked: Instant) -> io::Result<Shown> {
        if let Reply::Dirty { size, .. } = answer.message {
            let content = answer.fds.pop().ok_or_else(|| unexpected(&answer.message))?;
            return Ok(Shown::Dirty(content, size));
        }
        let Reply::Opened { mount, facts, copy, page_bytes, pinned } = answer.message else {
            return Err(unexpected(&answer.message));
        };
        let geometry = Geometry { size: facts.version.size, page_bytes };
        let shared: Option<[OwnedFd; 2]> = answer.fds.try_into().ok();
        let view = shared.and_then(|shared| CopyView::new(shared, copy, geometry).ok());
        let proof = Proof::new(facts, asked, self.session.config.watches);
        Ok(Shown::Clean(Box::new(Opened { mount: mount as usize, proof, view, page_bytes, pinned })))
    }

    fn readahead_config(&self, mount: usize, page_bytes: u64) -> ReadaheadConfig {
        let session = &self.session;
        let mut config = ReadaheadConfig::for_page(page_bytes as u32);
        config.first_window_bytes = config.first_window_bytes.max(FIRST_WINDOW_BYTES);
        if let Ok(mounts) = session.mounts()
            && let Some(info) = mounts.get(mount)
        {
            config.max_window_bytes = info.read_ahead_bytes;
            config.extent_bytes = info.extent_bytes;
            config.is_columnar = page_bytes < info.page_bytes;
        }
        if let Some(most) = session.config.read_ahead_bytes {
            config.max_window_bytes = config.max_window_bytes.min(most);
        }
        config
    }

    fn open_scratch(&self, path: &Path) -> Option<Source> {
        let (file, size) = crate::write::open_scratch(&self.session, path)?;
        Some(Source::Scratch { file, size })
    }
}

impl File {
    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length in bytes: of the version that was opened, or, without an agent, now.
    ///
    /// # Errors
    /// What the PFS returns.
    pub fn size(&self) -> io::Result<u64> {
        match &self.source {
            Source::Pfs(pfs) => Ok(FileFacts::of(pfs.as_fd(), Revalidate::AsStat)?.version.size),
            Source::Tiered(t) => Ok(t.proof.facts.version.size),
            Source::Scratch { size, .. } => Ok(*size),
        }
    }

    /// The version that was opened; `None` if no agent serves the file.
    pub fn version(&self) -> Option<FileVersion> {
        match &self.source {
            Source::Tiered(t) => Some(t.proof.facts.version),
            _ => None,
        }
    }

    /// The file on the PFS; `None` for memory-only files.
    pub fn pfs_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            Source::Pfs(pfs) => Some(pfs.as_fd()),
            Source::Tiered(t) => Some(t.to_read()),
            Source::Scratch { .. } => None,
        }
    }

    /// A descriptor for a program that reads the file itself: the bytes that the file has now, not
    /// cached. It is opened again, because the agent and forked children share the position of the
    /// one that this handle holds.
    ///
    /// # Errors
    /// What the PFS returns for the open.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        let fd = match &self.source {
            Source::Pfs(fd) | Source::Scratch { file: fd, .. } => fd,
            Source::Tiered(tiered) => &tiered.pfs,
        };
        reopen(fd.as_fd())
    }

    /// The stripe layout, if the PFS reports it.
    pub fn layout(&self) -> Option<Layout> {
        layout::probe(self.pfs_fd()?)
    }

    /// Reads at `offset`; returns the bytes read, fewer than `buffer` holds only at the end of the
    /// file.
    ///
    /// # Errors
    /// What the PFS returns. `ESTALE`: the file's content has changed since it was opened. In
    /// [`ReadMode::TierOnly`], `ENODATA`: not in the tier.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        match &self.source {
            Source::Pfs(file) | Source::Scratch { file, .. } => read_full(file.as_fd(), buffer, offset),
            Source::Tiered(t) => t.read_at(&self.client.session, &self.path, buffer, offset),
        }
    }

    /// [`File::read_at`], and where the bytes came from.
    ///
    /// # Errors
    /// As [`File::read_at`].
    pub fn read_counted(&self, buffer: &mut [u8], offset: u64) -> io::Result<Served> {
        match &self.source {
            Source::Tiered(t) => t.read_counted(&self.client.session, &self.path, buffer, offset),
            Source::Pfs(_) => {
                self.read_at(buffer, offset).map(|n| Served { bytes: n, pfs_bytes: n, ..Served::default() })
            }
            Source::Scratch { .. } => {
                self.read_at(buffer, offset).map(|n| Served { bytes: n, ..Served::default() })
            }
        }
    }

    /// Whether the file still has the content that was opened, as its attributes say now. A read of
    /// resident bytes does not look; a program that reads a file for long, and wants to see what
    /// others write to it, does now and then.
    ///
    /// # Errors
    /// What the PFS returns.
    pub fn is_current(&self, how: Revalidate) -> io::Result<bool> {
        match &self.source {
            Source::Tiered(t) => Ok(t.proof.look(t.pfs.as_fd(), how)?.is_ok()),
            Source::Pfs(_) | Source::Scratch { .. } => Ok(true),
        }
    }

    /// [`File::read_at`], but only if nothing has to be asked or waited for: the bytes are resident
    /// and the file's version is beyond doubt. `None` otherwise; the caller continues with
    /// [`File::read_at`].
    ///
    /// For callers that hold something others wait for, such as a Java program that lends the
    /// memory of an array and keeps its garbage collector waiting meanwhile.
    pub fn read_resident(&self, buffer: &mut [u8], offset: u64) -> Option<usize> {
        match &self.source {
            Source::Tiered(t) => t.read_resident(&self.client.session, &self.path, buffer, offset),
            Source::Pfs(_) | Source::Scratch { .. } => None,
        }
    }

    /// Whether all of the file is in the tier now.
    pub fn is_resident(&self) -> bool {
        let Source::Tiered(t) = &self.source else { return false };
        t.view().is_some_and(|view| (0..view.geometry().pages()).all(|page| view.is_resident(page as u32)))
    }

    /// Bytes of the file that are in the tier now.
    pub fn resident_bytes(&self) -> u64 {
        self.extents().iter().map(|(_, resident)| resident).sum()
    }

    /// For each extent (128 MiB): its length and how much of it is in the tier now, in bytes.
    pub fn extents(&self) -> Vec<(u64, u64)> {
        let Source::Tiered(t) = &self.source else { return Vec::new() };
        let (size, view) = (t.proof.facts.version.size, t.view());
        let mut extents = vec![(0, 0); size.div_ceil(EXTENT_BYTES) as usize];
        let geometry = Geometry { size, page_bytes: t.page_bytes };
        for page in 0..geometry.pages() {
            let extent = &mut extents[(page * t.page_bytes / EXTENT_BYTES) as usize];
            extent.0 += geometry.page_len(page as u32);
            extent.1 += view.as_ref().map_or(0, |v| v.valid_bytes(page as u32));
        }
        extents
    }

    /// Whether the operator has pinned it.
    pub fn is_pinned(&self) -> bool {
        matches!(&self.source, Source::Tiered(t) if t.pinned)
    }

    /// Whether an agent is in front of the PFS for this file.
    pub fn is_tiered(&self) -> bool {
        matches!(&self.source, Source::Tiered(_))
    }

    /// Bytes of a page in the tier, the least that a miss fetches; `None` without an agent.
    pub fn page_bytes(&self) -> Option<u64> {
        let Source::Tiered(t) = &self.source else { return None };
        Some(t.page_bytes)
    }

    /// Maps `len` bytes at `offset` straight from the tier, if all of them are resident and may be
    /// pinned; `None` otherwise, and the caller copies with [`File::read_at`].
    pub fn map(&self, offset: u64, len: u64) -> Option<MappedRange> {
        let Source::Tiered(t) = &self.source else { return None };
        let range = MappedRange::new(&self.client, &*t.view()?, offset, len)?;
        // As for every byte of the tier: what was read directly before must be of the same content.
        let is_proved = !t.proof.has_failed() && matches!(t.proof.before_tier(t.pfs.as_fd()), Ok(Ok(())));
        is_proved.then_some(range)
    }
}

fn read_full(fd: BorrowedFd<'_>, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match rustix::io::pread(fd, &mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(done)
}

/// What the read-ahead policy wants for a read.
struct Advised {
    /// Who serves what is missing.
    serve: Serve,
    /// Pages that are to be on their way.
    pages: Vec<PageRun>,
}

impl Advised {
    /// The pages but `page`, which is at the front of a run if it is among them: it is being asked
    /// for by itself.
    fn take_all_but(&mut self, page: u32) -> Vec<PageRun> {
        for run in self.pages.iter_mut().filter(|run| run.first_page == page && run.pages > 0) {
            *run = PageRun { first_page: page + 1, pages: run.pages - 1 };
        }
        self.pages.retain(|run| run.pages > 0);
        std::mem::take(&mut self.pages)
    }
}

/// What came of a miss.
enum Got {
    /// Look again.
    Resident,
    /// Read the PFS.
    ReadPfs,
}

impl Tiered {
    fn view(&self) -> Option<Arc<CopyView>> {
        self.view.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The descriptor through which this handle and the agent read the PFS. Where caches hold old
    /// bytes the agent has set `O_DIRECT` on the open file, which both share. The kernel heeds
    /// that; `ceph-fuse` sees the flag of an open only.
    fn to_read(&self) -> BorrowedFd<'_> {
        let opened = self.past_caches.get().or_else(|| {
            let is_direct = fcntl_getfl(&self.pfs).is_ok_and(|flags| flags.contains(OFlags::DIRECT));
            let opened = match is_direct.then(|| reopen_direct(self.pfs.as_fd())) {
                Some(Ok(fd)) => Some((self.place)(fd)),
                // Out of descriptors or memory: the next read may have more luck.
                Some(Err(e)) if !matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => return None,
                Some(Err(_)) | None => None,
            };
            Some(self.past_caches.get_or_init(|| opened))
        });
        opened.and_then(Option::as_ref).map_or(self.pfs.as_fd(), AsFd::as_fd)
    }

    fn read_at(&self, session: &Session, path: &Path, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_counted(session, path, buffer, offset).map(|served| served.bytes)
    }

    fn read_counted(
        &self,
        session: &Session,
        path: &Path,
        buffer: &mut [u8],
        offset: u64,
    ) -> io::Result<Served> {
        let size = self.proof.facts.version.size;
        if offset >= size || buffer.is_empty() {
            return Ok(Served::default());
        }
        if self.proof.has_failed() {
            return Err(changed(path));
        }
        let want = (buffer.len() as u64).min(size - offset) as usize;
        let buffer = &mut buffer[..want];
        let mut done = self.copy_resident(session, path, buffer, offset)?;
        let mut served = Served { bytes: want, ..Served::default() };
        if done == want && self.all_resident.load(Ordering::Relaxed) {
            return Ok(served);
        }
        let mut advised = match self.mode {
            // A reader that reads only the tier is to change nothing: nothing is fetched ahead of
            // it either.
            ReadMode::TierOnly => Advised { serve: Serve::Pfs, pages: Vec::new() },
            _ => self.consult(offset, want as u64),
        };
        if done == want {
            self.prefetch(session, advised.pages);
            return Ok(served);
        }
        let mut tries = 0;
        while done < want {
            let (at, rest) = (offset + done as u64, &mut buffer[done..]);
            // Three times: a page may be evicted again between its fetch and its copy.
            let got = match tries {
                // The second time with a new descriptor of the copy: ours may be from an earlier
                // agent that gave its number to another one.
                0..3 => self.fetch(session, path, &mut advised, (at, rest.len()), tries > 0)?,
                _ => Got::ReadPfs,
            };
            let n = match got {
                Got::Resident => {
                    served.fetches += 1;
                    let unit_bytes = self.unit_bytes.min(FETCH_UNIT_BYTES);
                    served.fetched_bytes += (unit_bytes - at % unit_bytes).min(size - at);
                    let copied = self.copy_resident(session, path, rest, at)?;
                    tries = if copied > 0 { 0 } else { tries + 1 };
                    copied
                }
                Got::ReadPfs => {
                    tries = 0;
                    let n = self.read_pfs(session, path, rest, at)?;
                    served.pfs_bytes += n;
                    n
                }
            };
            done += n;
        }
        Ok(served)
    }

    /// Only once a read before it has found everything resident and has seen to the version, so
    /// that neither the policy nor the PFS need be asked.
    fn read_resident(&self, session: &Session, path: &Path, buffer: &mut [u8], offset: u64) -> Option<usize> {
        let want = (buffer.len() as u64).min(self.proof.facts.version.size.saturating_sub(offset)) as usize;
        let settled = self.all_resident.load(Ordering::Relaxed) && self.proof.is_settled();
        if !settled {
            return None;
        }
        let copied = self.copy_resident(session, path, &mut buffer[..want], offset);
        copied.ok().filter(|n| *n == want)
    }

    /// Copies resident bytes; reports to the agent when the handle moves to another page.
    fn copy_resident(
        &self,
        session: &Session,
        path: &Path,
        buffer: &mut [u8],
        offset: u64,
    ) -> io::Result<usize> {
        let (n, copy) = {
            let guard = self.view.read().unwrap_or_else(PoisonError::into_inner);
            let Some(view) = guard.as_ref() else { return Ok(0) };
            (view.read_at(buffer, offset)?, view.copy())
        };
        if n > 0 {
            self.proof.before_tier(self.pfs.as_fd())?.map_err(|Changed| changed(path))?;
            let (first, last) = (offset / self.page_bytes, (offset + n as u64 - 1) / self.page_bytes);
            if self.last_page.swap(last, Ordering::Relaxed) != last
                && let Some(ring) = session.ring()
            {
                (first..=last).for_each(|page| ring.touch(page_key(copy, page as u32)));
            }
        }
        Ok(n)
    }

    /// Reports a read to the policy; returns what it wants.
    fn consult(&self, offset: u64, len: u64) -> Advised {
        let view = self.view();
        let mut ask = Vec::new();
        let mut known = |page: u64| view.as_ref().is_some_and(|v| v.word(page as u32).state != State::Absent);
        let serve = lock(&self.readahead).on_read(offset, len, &mut known, &mut ask);
        if ask.is_empty() || self.is_refused() {
            self.note_all_resident(view.as_deref());
            return Advised { serve, pages: Vec::new() };
        }
        let run = |pages: std::ops::Range<u64>| PageRun {
            first_page: pages.start as u32,
            pages: (pages.end - pages.start).min(u64::from(u32::MAX)) as u32,
        };
        Advised { serve, pages: ask.into_iter().map(run).collect() }
    }

    /// Has pages fetched that this read does not wait for.
    fn prefetch(&self, session: &Session, runs: Vec<PageRun>) {
        if !runs.is_empty() {
            self.advise(Advice::Random);
            let request = Request::Prefetch { version: self.proof.facts.version, runs };
            session.notify(&request, &[self.to_read()]);
        }
    }

    fn note_all_resident(&self, view: Option<&CopyView>) {
        let all = view.is_some_and(|v| {
            let from = self.missing.load(Ordering::Relaxed);
            let missing = first_missing(v.geometry().pages(), from, |page| v.is_resident(page as u32));
            self.missing.store(missing.unwrap_or(0), Ordering::Relaxed);
            missing.is_none()
        });
        self.all_resident.store(all, Ordering::Relaxed);
    }

    /// The agent fetches with large reads of its own choosing; the kernel's read-ahead on the
    /// shared descriptor would fetch some bytes twice.
    fn advise(&self, advice: Advice) {
        let random = matches!(advice, Advice::Random);
        if self.advised_random.swap(random, Ordering::Relaxed) != random {
            // Advice; a file system that does not take it is only slower.
            let _ = fadvise(&self.pfs, 0, None, advice);
        }
    }

    /// Gets the page at `offset` into the tier, or decides not to. `anew`: with a new descriptor of
    /// the copy. The window goes along: one request, and this page before those behind it.
    fn fetch(
        &self,
        session: &Session,
        path: &Path,
        advised: &mut Advised,
        (offset, len): (u64, usize),
        anew: bool,
    ) -> io::Result<Got> {
        self.all_resident.store(false, Ordering::Relaxed);
        if self.mode == ReadMode::TierOnly {
            let why = format!("{}: the bytes at {offset} are not in the tier; load it first", path.display());
            return Err(with_message(libc::ENODATA, why));
        }
        // It may have been resident when it was opened.
        self.proof.watch(&session.watches, self.pfs.as_fd());
        if advised.serve == Serve::Pfs {
            self.advise(Advice::Random);
            self.report_miss(session, offset, len);
            return Ok(Got::ReadPfs);
        }
        if self.is_refused() {
            self.advise(Advice::Normal);
            return Ok(Got::ReadPfs);
        }
        if !self.proof.is_stamped_as_opened() {
            // The stamps have moved since, though the content has not: the agent fetches nothing
            // more of that version.
            self.advise(Advice::Normal);
            return Ok(Got::ReadPfs);
        }
        self.advise(Advice::Random);
        let deadline = session.config.deadline;
        // To the end of the page and no further, or of a few small ones: the rest of a long read is
        // on its way, and the front can be copied.
        let to_unit_end = self.unit_bytes - offset % self.unit_bytes;
        let request = Request::Fetch {
            version: self.proof.facts.version,
            copy: self.view().filter(|_| !anew).map_or(0, |v| v.copy()),
            offset,
            len: (len as u64).min(to_unit_end),
            deadline_ms: deadline.as_millis().min(u128::from(u32::MAX)) as u32,
            ahead: advised.take_all_but((offset / self.page_bytes) as u32),
        };
        loop {
            return match session.call(&request, &[self.to_read()], deadline + GRACE) {
                // The job has moved as much as it may: the page comes later.
                Ok(Received { message: Reply::Waits, .. }) => continue,
                Ok(answer) => self.take_answer(session, path, answer),
                Err(_) => {
                    self.advise(Advice::Normal);
                    Ok(Got::ReadPfs)
                }
            };
        }
    }

    /// Reports to the agent one small miss in [`MISSES_PER_REPORT`], for all of them: the sum over
    /// many misses is the same, and a report of each would cost a busy node more than it is worth.
    fn report_miss(&self, session: &Session, offset: u64, len: usize) {
        if !self.misses.fetch_add(1, Ordering::Relaxed).is_multiple_of(MISSES_PER_REPORT) {
            return;
        }
        let page = (offset / self.page_bytes) as u32;
        let rent =
            (len as u64).clamp(LEAST_RENT_BYTES, self.page_bytes.max(LEAST_RENT_BYTES)) * MISSES_PER_REPORT;
        let bytes = rent.min(u64::from(u32::MAX)) as u32;
        session
            .notify(&Request::Missed { version: self.proof.facts.version, page, bytes }, &[self.to_read()]);
    }

    fn take_answer(&self, session: &Session, path: &Path, answer: Received<Reply>) -> io::Result<Got> {
        match answer.message {
            Reply::Ready { copy, page_bytes } if page_bytes == self.page_bytes => {
                if let Ok(shared) = <[OwnedFd; 2]>::try_from(answer.fds) {
                    let geometry = Geometry { size: self.proof.facts.version.size, page_bytes };
                    let view = CopyView::new(shared, copy, geometry)?;
                    *self.view.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(view));
                }
                Ok(Got::Resident)
            }
            Reply::Changed(_) => {
                // The agent may know more than this node's attribute cache, and other things than
                // this handle has proved.
                let looked = self.proof.look(self.pfs.as_fd(), Revalidate::Force)?;
                looked.map_err(|Changed| changed(path))?;
                Ok(Got::ReadPfs)
            }
            reply @ Reply::TimedOut => {
                session.warn_once(&format!("{}: {}", path.display(), unexpected(&reply)));
                self.advise(Advice::Normal);
                Ok(Got::ReadPfs)
            }
            Reply::Refused(_) => {
                let until = self.proof.age_ms() + REFUSED_PAUSE_MS;
                self.refused_until_ms.store(until, Ordering::Relaxed);
                self.advise(Advice::Normal);
                Ok(Got::ReadPfs)
            }
            // Failed: the PFS answers for itself.
            _ => Ok(Got::ReadPfs),
        }
    }

    fn is_refused(&self) -> bool {
        (self.proof.age_ms()) < self.refused_until_ms.load(Ordering::Relaxed)
    }

    /// Reads the PFS, to the end of the page at most while there is an agent: the next page may be
    /// resident.
    fn read_pfs(&self, session: &Session, path: &Path, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let want = match session.may_ask() {
            true => buffer.len().min((self.page_bytes - offset % self.page_bytes) as usize),
            false => buffer.len(),
        };
        session.pace(want as u64);
        let started = Instant::now();
        let got = read_full(self.to_read(), &mut buffer[..want], offset)?;
        let proof = self.proof.after_direct_read(self.pfs.as_fd(), started.elapsed(), got < want)?;
        proof.map_err(|Changed| changed(path))?;
        if got < want {
            return Err(changed(path));
        }
        Ok(got)
    }
}

/// A page that is not resident: the first from `from` on, else the first of all, which may have
/// been evicted meanwhile; `None` once each page was checked. A stream whose pages come in order
/// checks one or two on each read, not all earlier ones.
fn first_missing(pages: u64, from: u64, is_resident: impl Fn(u64) -> bool) -> Option<u64> {
    (from..pages).chain(0..from).find(|page| !is_resident(*page))
}

fn changed(path: &Path) -> io::Error {
    let why = format!("{}: its content was changed while it was read; open it again", path.display());
    with_message(libc::ESTALE, why)
}

#[cfg(test)]
mod tests {
    use super::{Advised, first_missing};
    use forebay_policy::readahead::Serve;
    use forebay_wire::PageRun;
    use std::cell::Cell;

    #[test]
    fn the_page_that_is_fetched_is_not_among_those_behind_it() {
        let run = |first_page, pages| PageRun { first_page, pages };
        let advised = |pages| Advised { serve: Serve::Tier, pages };
        let mut window = advised(vec![run(3, 8)]);
        assert_eq!(window.take_all_but(3), [run(4, 7)]);
        assert_eq!(window.take_all_but(4), [], "the window goes along once");
        let mut stride = advised(vec![run(3, 1), run(13, 1)]);
        assert_eq!(stride.take_all_but(3), [run(13, 1)]);
        assert_eq!(advised(vec![run(4, 2)]).take_all_but(3), [run(4, 2)], "it was on its way");
    }

    #[test]
    fn a_stream_does_not_look_at_all_it_has_behind_it_and_all_resident_is_a_look_at_each_page() {
        let (pages, looks) = (1000, Cell::new(0));
        let look = |from, is_resident: &dyn Fn(u64) -> bool| {
            first_missing(pages, from, |page| {
                looks.set(looks.get() + 1);
                is_resident(page)
            })
        };
        let mut from = 0;
        for come in 0..pages {
            // Ten reads while this is the next page to come.
            for _ in 0..10 {
                assert_eq!(look(from, &|page| page < come), Some(come));
                from = come;
            }
        }
        assert!(looks.get() <= 11 * pages, "{} looks", looks.get());
        // The last has come, and one behind the reader has gone; that one comes again, and a later
        // one goes.
        assert_eq!(look(from, &|page| page != 3), Some(3));
        assert_eq!(look(3, &|page| page != 900), Some(900));
        looks.set(0);
        assert_eq!(look(900, &|_| true), None);
        assert_eq!(looks.get(), pages);
    }
}
