//! Takes a tree from the PFS: names and attributes of everything, then contents.
//!
//! Each step waits for a server, so many threads take them, even within one directory. What has the
//! attributes that an earlier image has is not taken again.

use super::Why;
use super::image::{Index, SavedKind, read_exactly, version};
use super::tree::{Entry, Id, Kind, ROOT};
use crate::lock::lock;
use forebay_client::{Client, NewImage};
use forebay_pfs::ChangeStamp;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Requests to the PFS at a time: they take servers' time, not this node's.
const WALKERS: usize = 64;
/// Names that one thread looks at before it takes the next task: few, because a directory among
/// them waits for that.
const NAMES_AT_ONCE: usize = 4;
/// Most names of a tree: about half a GiB of memory for them.
const NAMES_MAX: usize = 1 << 20;
const COPY_BYTES: usize = 1 << 20;
/// Contents of fewer bytes in total are not worth an image.
const LEAST_BYTES: u64 = 64 << 10;

const BY_NAME: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What a walk has found.
#[derive(Debug)]
pub struct Walked {
    /// The first is the tree's own directory; each one's `parent` is a number in this list.
    pub entries: Vec<Entry>,
    /// Where the contents are.
    pub image: Option<OwnedFd>,
    /// What the user should know.
    pub note: Option<Why>,
}

/// What is walked.
#[derive(Debug)]
pub struct Walk<'a> {
    /// The agent, which keeps the image.
    pub client: &'a Client,
    /// The image's name.
    pub key: &'a [u8],
    /// A change within this time of another one may not show.
    pub granularity_ns: i64,
}

#[derive(Debug)]
enum Task {
    Dir { id: Id, fd: Arc<OwnedFd>, old: Option<Id> },
    Names { fd: Arc<OwnedFd>, names: Vec<(Id, Option<Id>)> },
}

/// A file whose content is to be in the new image.
#[derive(Debug)]
struct Wanted {
    id: Id,
    dir: Arc<OwnedFd>,
    name: Box<[u8]>,
    size: u64,
    in_old: Option<u64>,
}

#[derive(Debug, Default)]
struct Tasks {
    waiting: Vec<Task>,
    under_way: usize,
}

#[derive(Debug)]
struct Walkers<'a> {
    old: Option<&'a Index>,
    granularity_ns: i64,
    device: (u32, u32),
    tasks: Mutex<Tasks>,
    wake: Condvar,
    entries: Mutex<Vec<Entry>>,
    wanted: Mutex<Vec<Wanted>>,
    /// Something is not as in the earlier image.
    differs: AtomicBool,
}

/// The attributes of what a descriptor stands for, or of a name in a directory.
pub fn look(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Statx, Errno> {
    let how = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    rustix::fs::statx(dir, name, how, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
}

impl Walk<'_> {
    /// Takes the tree of the directory `fd`, which has these attributes.
    ///
    /// # Errors
    /// No agent, no room, or too many names.
    pub fn take(&self, fd: OwnedFd, stat: Statx) -> Result<Walked, Why> {
        let kept = self.client.image(self.key).map_err(|e| e.to_string())?;
        let old = kept.and_then(|(image, size)| {
            Index::read(image.as_fd(), size).ok().flatten().map(|index| (image, index))
        });
        let walkers = Walkers {
            old: old.as_ref().map(|(_, index)| index),
            granularity_ns: self.granularity_ns,
            device: (stat.stx_dev_major, stat.stx_dev_minor),
            tasks: Mutex::default(),
            wake: Condvar::new(),
            entries: Mutex::default(),
            wanted: Mutex::default(),
            differs: AtomicBool::new(old.is_none()),
        };
        walkers.walk(fd, stat);
        let is_same = !walkers.differs.load(Ordering::Relaxed);
        let mut entries = walkers.entries.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut wanted = walkers.wanted.into_inner().unwrap_or_else(PoisonError::into_inner);
        if entries.len() > NAMES_MAX {
            return Err(format!("it has more than {NAMES_MAX} names"));
        }
        if is_same {
            wanted.iter().for_each(|file| entries[file.id as usize].put(file.in_old));
            return Ok(Walked { entries, image: old.map(|(image, _)| image), note: None });
        }
        let image = self.make(&mut entries, &mut wanted)?;
        fill(&image, &mut entries, &wanted, old.as_ref().map(|(image, _)| image.as_fd()));
        self.keep(image, entries)
    }

    /// An image with room for all contents, or for the smaller files.
    fn make(&self, entries: &mut [Entry], wanted: &mut Vec<Wanted>) -> Result<NewImage, Why> {
        wanted.sort_by_key(|file| file.size);
        let mut most = wanted.iter().map(|file| file.size).sum::<u64>();
        loop {
            let mut end = 0;
            let mut fits = 0;
            for file in &*wanted {
                let is_in = end + file.size <= most;
                entries[file.id as usize].put(is_in.then_some(end));
                if is_in {
                    end += file.size;
                    fits += 1;
                }
            }
            let index = Index::of(entries).to_bytes(end).map_err(|e| e.to_string())?;
            match self.client.new_image(self.key, end + index.len() as u64) {
                Ok(image) => {
                    wanted.truncate(fits);
                    return Ok(image);
                }
                Err(e) if most < LEAST_BYTES => return Err(e.to_string()),
                Err(_) => most /= 2,
            }
        }
    }

    fn keep(&self, image: NewImage, entries: Vec<Entry>) -> Result<Walked, Why> {
        let end_of = |entry: &Entry| match entry.kind {
            Kind::File { at: Some((_, at)) } => at + entry.stat.stx_size,
            _ => 0,
        };
        let end = entries.iter().map(end_of).max().unwrap_or(0);
        let index = Index::of(&entries).to_bytes(end).map_err(|e| e.to_string())?;
        write_all(image.as_fd(), &index, end).map_err(|e| format!("its index cannot be written: {e}"))?;
        let (image, kept) = image.keep(self.key, end + index.len() as u64);
        let files = entries.iter().filter(|entry| matches!(entry.kind, Kind::File { .. })).count();
        let held = entries.iter().filter(|entry| matches!(entry.kind, Kind::File { at: Some(_) })).count();
        let note = match kept {
            Err(e) => Some(format!("is not kept for the next run: {e}")),
            Ok(()) if held < files => Some(format!(
                "{} of its {files} files could not be read, or found no room in the tier: the file system serves them",
                files - held
            )),
            Ok(()) => None,
        };
        Ok(Walked { entries, image: Some(image), note })
    }
}

impl Entry {
    fn put(&mut self, place: Option<u64>) {
        if let Kind::File { at } = &mut self.kind {
            *at = place.map(|place| (0, place));
        }
    }
}

impl Walkers<'_> {
    fn walk(&self, fd: OwnedFd, stat: Statx) {
        let kind = Kind::Dir { names: Vec::new(), is_whole: true, is_way: false };
        let is_racily_clean = self.is_racily_clean(&stat);
        let entry = Entry { parent: ROOT, name: Box::default(), is_racily_clean, stat, kind };
        lock(&self.entries).push(entry);
        let old = self.old.map(|_| 0);
        lock(&self.tasks).waiting.push(Task::Dir { id: 0, fd: Arc::new(fd), old });
        std::thread::scope(|scope| {
            for _ in 1..WALKERS {
                // With fewer threads it takes longer.
                let _ = std::thread::Builder::new().spawn_scoped(scope, || self.work());
            }
            self.work();
        });
    }

    fn work(&self) {
        while let Some(task) = self.next() {
            let more = match task {
                Task::Dir { id, fd, old } => self.list(id, &fd, old),
                Task::Names { fd, names } => self.look_at(&fd, names),
            };
            let mut tasks = lock(&self.tasks);
            let new = more.len();
            tasks.waiting.extend(more);
            tasks.under_way -= 1;
            // This thread takes one of them.
            (1..new).for_each(|_| self.wake.notify_one());
        }
    }

    fn next(&self) -> Option<Task> {
        let is_too_large = lock(&self.entries).len() > NAMES_MAX;
        let mut tasks = lock(&self.tasks);
        if is_too_large {
            tasks.waiting.clear();
        }
        loop {
            if let Some(task) = tasks.waiting.pop() {
                tasks.under_way += 1;
                return Some(task);
            }
            if tasks.under_way == 0 {
                self.wake.notify_all();
                return None;
            }
            tasks = self.wake.wait(tasks).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn is_racily_clean(&self, stat: &Statx) -> bool {
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as i64);
        version(stat).is_racily_clean(now_ns, self.granularity_ns, ChangeStamp::Newer)
    }

    /// The earlier entry, if it has these attributes and had them for long enough.
    fn unchanged(&self, old: Option<Id>, stat: &Statx) -> Option<&SavedKind> {
        let saved = self.old?.get(old?);
        (saved.version == version(stat) && !saved.is_racily_clean).then_some(&saved.kind)
    }

    fn list(&self, dir: Id, fd: &Arc<OwnedFd>, old: Option<Id>) -> Vec<Task> {
        let stat = lock(&self.entries)[dir as usize].stat;
        let known = match self.unchanged(old, &stat) {
            Some(SavedKind::Dir(names)) => names.as_ref().map(|names| {
                let mut names: Vec<_> = names.iter().map(|(n, id)| (n.clone(), Some(*id))).collect();
                names.sort_unstable_by_key(|(_, id)| *id);
                names
            }),
            _ => {
                self.differs.store(true, Ordering::Relaxed);
                let with_old = |name: Box<[u8]>| (name.clone(), self.old_name(old, &name));
                read_names(fd.as_fd()).ok().map(|names| names.into_iter().map(with_old).collect())
            }
        };
        let mut entries = lock(&self.entries);
        let mut names = Vec::new();
        let mut olds = Vec::new();
        for (name, old) in known.iter().flatten() {
            let id = entries.len() as Id;
            let name: Box<[u8]> = name.clone();
            names.push((name.clone(), id));
            olds.push((id, *old));
            entries.push(Entry { parent: dir, name, stat, kind: Kind::Unknown, is_racily_clean: true });
        }
        entries[dir as usize].kind = Kind::Dir { names, is_whole: known.is_some(), is_way: false };
        drop(entries);
        olds.chunks(NAMES_AT_ONCE)
            .map(|names| Task::Names { fd: fd.clone(), names: names.to_vec() })
            .collect()
    }

    fn old_name(&self, dir: Option<Id>, name: &[u8]) -> Option<Id> {
        match &self.old?.get(dir?).kind {
            SavedKind::Dir(Some(names)) => {
                let at = names.binary_search_by(|(other, _)| (**other).cmp(name)).ok()?;
                Some(names[at].1)
            }
            _ => None,
        }
    }

    fn look_at(&self, fd: &Arc<OwnedFd>, names: Vec<(Id, Option<Id>)>) -> Vec<Task> {
        let mut tasks = Vec::new();
        for (id, old) in names {
            let name = lock(&self.entries)[id as usize].name.clone();
            let Ok(stat) = look(fd.as_fd(), &name) else {
                self.differs.store(true, Ordering::Relaxed);
                continue;
            };
            let is_racily_clean = self.is_racily_clean(&stat);
            let kind = self.kind_of(id, fd, &name, &stat, old, &mut tasks).unwrap_or_else(|| {
                if !matches!(self.unchanged(old, &stat), Some(SavedKind::Unknown)) {
                    self.differs.store(true, Ordering::Relaxed);
                }
                Kind::Unknown
            });
            let entry = &mut lock(&self.entries)[id as usize];
            (entry.stat, entry.is_racily_clean, entry.kind) = (stat, is_racily_clean, kind);
        }
        tasks
    }

    /// What an entry is; `None` if the PFS has to answer for it.
    fn kind_of(
        &self,
        id: Id,
        dir: &Arc<OwnedFd>,
        name: &[u8],
        stat: &Statx,
        old: Option<Id>,
        tasks: &mut Vec<Task>,
    ) -> Option<Kind> {
        let is_mount = stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        if is_mount || (stat.stx_dev_major, stat.stx_dev_minor) != self.device {
            return None;
        }
        let unchanged = self.unchanged(old, stat);
        match FileType::from_raw_mode(u32::from(stat.stx_mode)) {
            FileType::Directory => {
                let fd = rustix::fs::openat(dir, name, BY_NAME | OFlags::DIRECTORY, Mode::empty()).ok()?;
                tasks.push(Task::Dir { id, fd: Arc::new(fd), old });
                Some(Kind::Dir { names: Vec::new(), is_whole: true, is_way: false })
            }
            FileType::RegularFile => {
                let in_old = match unchanged {
                    // It could not be read then.
                    Some(SavedKind::File(None)) => return Some(Kind::File { at: None }),
                    Some(SavedKind::File(at)) => *at,
                    _ => {
                        self.differs.store(true, Ordering::Relaxed);
                        None
                    }
                };
                let wanted = Wanted { id, dir: dir.clone(), name: name.into(), size: stat.stx_size, in_old };
                lock(&self.wanted).push(wanted);
                Some(Kind::File { at: None })
            }
            FileType::Symlink => match unchanged {
                Some(SavedKind::Link(target)) => Some(Kind::Link { target: target.clone() }),
                _ => {
                    self.differs.store(true, Ordering::Relaxed);
                    let target = rustix::fs::readlinkat(dir, name, Vec::new()).ok()?;
                    Some(Kind::Link { target: target.into_bytes().into() })
                }
            },
            _ => None,
        }
    }
}

fn read_names(dir: BorrowedFd<'_>) -> Result<Vec<Box<[u8]>>, Errno> {
    let mut names = Vec::new();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    for entry in Dir::new(rustix::fs::openat(dir, c".", flags, Mode::empty())?)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.into());
        }
    }
    Ok(names)
}

/// Copies contents into the image. Files that change meanwhile are left out.
fn fill(image: &NewImage, entries: &mut [Entry], wanted: &[Wanted], old: Option<BorrowedFd<'_>>) {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    let stats = &*entries;
    let work = || {
        let mut buffer = Vec::new();
        while let Some(file) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
            let Entry { stat, kind: Kind::File { at: Some((_, at)) }, .. } = &stats[file.id as usize] else {
                continue;
            };
            let copied = match (file.in_old, old) {
                (Some(from), Some(old)) => copy(old, from, image.as_fd(), *at, file.size, &mut buffer),
                _ => file.copy_from_pfs(stat, image.as_fd(), *at, &mut buffer),
            };
            if copied.is_err() {
                lock(&failed).push(file.id);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..WALKERS.min(wanted.len()) {
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.iter().for_each(|id| entries[*id as usize].put(None));
}

impl Wanted {
    fn copy_from_pfs(
        &self,
        stat: &Statx,
        to: BorrowedFd<'_>,
        at: u64,
        buffer: &mut Vec<u8>,
    ) -> std::io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.dir, &*self.name, flags, Mode::empty())?;
        copy(file.as_fd(), 0, to, at, self.size, buffer)?;
        if version(&look(file.as_fd(), b"")?) != version(stat) {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        // The image has it.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        Ok(())
    }
}

fn copy(
    from: BorrowedFd<'_>,
    mut offset: u64,
    to: BorrowedFd<'_>,
    mut at: u64,
    bytes: u64,
    buffer: &mut Vec<u8>,
) -> std::io::Result<()> {
    let mut left = bytes;
    while left > 0 {
        let n = left.min(COPY_BYTES as u64);
        buffer.resize(n as usize, 0);
        read_exactly(from, buffer, offset)?;
        write_all(to, buffer, at)?;
        (offset, at, left) = (offset + n, at + n, left - n);
    }
    Ok(())
}

fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8], mut at: u64) -> std::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(to, bytes, at) {
            Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Ok(n) => (bytes, at) = (&bytes[n..], at + n as u64),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}
