//! Where on the servers of the PFS the files of analytics jobs are: asked when a job reports them,
//! and reported along with them.
//!
//! The coordinator arranges prefetches so that every server is busy, and opens no files itself. So
//! the agent of the job's program asks: it opens each file by its name with its own rights, as
//! requests do ([`crate::mounts::by_path`]), or has the tool of MooseFS asked for all of them,
//! which needs no more than their paths.
//!
//! Nobody depends on the answers, and the job waits for them. So all that one message reports has a
//! second; what is not known by then is reported as unknown. A thread that hangs in the PFS is left
//! behind, and there is a bound to how many are. A PFS that does not report the first files is not
//! asked for the rest, and one that is silent or slow is left alone for [`SILENCE`]; otherwise a
//! job of many messages would wait a second for each.

use crate::cache::Cache;
use crate::lock::lock;
use crate::mounts::MountState;
use crate::mounts::by_path::open_by_path;
use forebay_pfs::layout::{self, Layout};
use forebay_store::{Class, Reservation};
use forebay_wire::{FileLayout, FileRef, JobUpdate};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest time for all files of one message.
const ASK_TIME: Duration = Duration::from_secs(1);

/// Files opened at a time for one message.
const OPENING_MAX: usize = 8;

/// Threads that open files for this, those that hang in it included.
const THREADS_MAX: usize = 64;

/// Stack of such a thread.
const STACK_BYTES: usize = 128 << 10;

/// Files of a mount without an answer, and none with one, after which the PFS counts as one that
/// does not report layouts.
const SILENT_FILES: usize = 32;

/// How long a PFS that does not answer, or not in time, is not asked again.
const SILENCE: Duration = Duration::from_secs(30);

/// Most stripes of one file: a file of 256 GiB in chunks of MooseFS. One with more is reported as
/// unknown.
const STRIPES_MAX: usize = 4096;

/// Most bytes of layouts added to one message. Files for which there is no room in it are reported
/// as unknown.
const LAYOUT_BYTES: usize = 256 << 10;

/// What a number takes when it is reported, at most.
const ENTRY_BYTES: usize = 5;

/// Stands for the server of a stripe of which it is not known; a number that is none of those
/// reported.
const UNKNOWN_SERVER: u32 = u32::MAX;

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// What finds out the layouts of files.
#[derive(Debug)]
pub struct Layouts {
    mounts: Arc<[MountState]>,
    cache: Arc<Cache>,
    silent: Silent,
}

/// Mounts that are not asked, by their numbers, and until when.
#[derive(Debug, Default)]
struct Silent(Mutex<BTreeMap<usize, Instant>>);

impl Silent {
    fn is_asked(&self, mount: usize, now: Instant) -> bool {
        lock(&self.0).get(&mount).is_none_or(|until| now >= *until)
    }

    /// Records how many files the mount was asked about until `now`, and how many it has reported.
    fn note(&self, mount: usize, (files, reported): (usize, usize), (now, deadline): (Instant, Instant)) {
        if now >= deadline || reported == 0 && files >= SILENT_FILES {
            lock(&self.0).insert(mount, now + SILENCE);
        }
    }
}

impl Layouts {
    /// Layouts of files on `mounts`, none of which was asked yet.
    pub fn new(mounts: Arc<[MountState]>, cache: Arc<Cache>) -> Self {
        Layouts { mounts, cache, silent: Silent::default() }
    }

    /// What a job reports, and after each batch of files their layouts, if any is known.
    pub fn with_layouts(&self, updates: Vec<JobUpdate>) -> Vec<JobUpdate> {
        let deadline = Instant::now() + ASK_TIME;
        insert(updates, |files| self.ask(files, deadline))
    }

    /// The layout of each of `files`, in their order; `None` where that has not come by `deadline`.
    fn ask(&self, files: &[&FileRef], deadline: Instant) -> Vec<Option<Layout>> {
        let mut layouts = vec![None; files.len()];
        let mounts = self.mounts.iter().enumerate().filter(|(_, mount)| mount.config.layout);
        for (number, mount) in mounts.filter(|(number, _)| self.silent.is_asked(*number, Instant::now())) {
            let of_mount: Vec<(usize, FileRef)> = files
                .iter()
                .enumerate()
                .filter(|(_, file)| file.mount == mount.label())
                .map(|(number, file)| (number, FileRef::clone(file)))
                .collect();
            let asked = of_mount.len();
            if asked == 0 {
                continue;
            }
            let lie = if mount.source.traits().layout_by_path {
                ask_by_path(mount.root(), &of_mount, |paths| layout::probe_paths(paths, deadline))
            } else {
                let room = || self.cache.reserve(Class::Clients, STACK_BYTES as u64);
                let rooms = (0..of_mount.len().min(OPENING_MAX)).map_while(|_| room()).collect();
                let opening = self.mounts.clone();
                ask_by_opening(of_mount, rooms, deadline, move |file| probe(&opening, file))
            };
            self.silent.note(number, (asked, lie.len()), (Instant::now(), deadline));
            for (number, layout) in lie {
                layouts[number] = Some(layout);
            }
        }
        layouts
    }
}

/// Inserts layouts behind the files of `updates`. `ask` is called once, if there are files at all.
fn insert(updates: Vec<JobUpdate>, ask: impl FnOnce(&[&FileRef]) -> Vec<Option<Layout>>) -> Vec<JobUpdate> {
    let files: Vec<&FileRef> = updates.iter().flat_map(files_of).collect();
    if files.is_empty() {
        return updates;
    }
    let mut layouts = ask(&files).into_iter();
    let mut room_bytes = LAYOUT_BYTES;
    let mut out = Vec::with_capacity(2 * updates.len());
    for update in updates {
        let files = files_of(&update);
        let reported = reported(files, layouts.by_ref().take(files.len()), &mut room_bytes);
        out.push(update);
        out.extend(reported);
    }
    out
}

fn files_of(update: &JobUpdate) -> &[FileRef] {
    match update {
        JobUpdate::Files(files) => files,
        _ => &[],
    }
}

/// Asks `probe` for files of MooseFS, which takes paths. Those that it knows come back with their
/// numbers.
fn ask_by_path(
    root: &Path,
    files: &[(usize, FileRef)],
    probe: impl FnOnce(&[&Path]) -> Vec<Option<Layout>>,
) -> Vec<(usize, Layout)> {
    let below =
        |(number, file): &(usize, FileRef)| Some((*number, file.version.size, path_below(root, &file.path)?));
    let asked: Vec<(usize, u64, PathBuf)> = files.iter().filter_map(below).collect();
    let paths: Vec<&Path> = asked.iter().map(|(_, _, path)| path.as_path()).collect();
    let layouts = probe(&paths);
    // A layout that ends before the file does was cut short, and would be taken to begin again.
    let is_whole = |layout: &Layout, size: u64| {
        layout.stripe_bytes > 0 && layout.servers.len() as u64 >= size.div_ceil(layout.stripe_bytes)
    };
    asked
        .iter()
        .zip(layouts)
        .filter_map(|((number, size, _), layout)| Some((*number, layout.filter(|l| is_whole(l, *size))?)))
        .collect()
}

/// The file at `path` below `root`; `None` for what may lead elsewhere.
fn path_below(root: &Path, path: &[u8]) -> Option<PathBuf> {
    let path = Path::new(OsStr::from_bytes(path));
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    (is_plain && !path.as_os_str().is_empty()).then(|| root.join(path))
}

/// What comes of asking the PFS for one file.
#[derive(Debug)]
enum Answer {
    /// Its layout.
    Lies(Layout),
    /// It does not report layouts.
    Silence,
    /// It cannot be asked, since the file is another by now or not the agent's to open.
    NoFile,
}

fn probe(mounts: &[MountState], file: &FileRef) -> Answer {
    let Ok(opened) = open_by_path(mounts, file) else { return Answer::NoFile };
    match mounts[opened.file.mount].source.layout(opened.fd.as_fd(), true) {
        Some(layout) if !layout.servers.is_empty() => Answer::Lies(layout),
        _ => Answer::Silence,
    }
}

/// Files of one mount whose layouts are being requested.
struct Asking<P> {
    files: Vec<(usize, FileRef)>,
    deadline: Instant,
    probe: P,
    next: AtomicUsize,
    silent: AtomicUsize,
    speaks: AtomicBool,
}

/// Asks `probe` for one file after the other in as many threads as there are `rooms`, which pay for
/// them; returns at `deadline`, whatever they do. Files whose layout is known come back with their
/// numbers.
fn ask_by_opening(
    files: Vec<(usize, FileRef)>,
    rooms: Vec<Reservation>,
    deadline: Instant,
    probe: impl Fn(&FileRef) -> Answer + Send + Sync + 'static,
) -> Vec<(usize, Layout)> {
    let asking = Arc::new(Asking {
        files,
        deadline,
        probe,
        next: AtomicUsize::new(0),
        silent: AtomicUsize::new(0),
        speaks: AtomicBool::new(false),
    });
    let (sender, reported) = channel();
    for room in rooms {
        let Some(counted) = Counted::new() else { break };
        let (asking, sender) = (asking.clone(), sender.clone());
        let body = move || {
            let _held = (counted, room);
            asking.run(&sender);
        };
        // Those that have begun do the work of the others.
        if std::thread::Builder::new().name("layout".into()).stack_size(STACK_BYTES).spawn(body).is_err() {
            break;
        }
    }
    drop(sender);
    let mut lie = Vec::new();
    while let Ok(one) = reported.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        lie.push(one);
    }
    lie
}

impl<P: Fn(&FileRef) -> Answer> Asking<P> {
    fn run(&self, sender: &Sender<(usize, Layout)>) {
        while Instant::now() < self.deadline && self.may_report() {
            let Some((number, file)) = self.files.get(self.next.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            match (self.probe)(file) {
                Answer::Lies(layout) => {
                    self.speaks.store(true, Ordering::Relaxed);
                    // After the deadline nobody listens.
                    if sender.send((*number, layout)).is_err() {
                        return;
                    }
                }
                Answer::Silence => {
                    self.silent.fetch_add(1, Ordering::Relaxed);
                }
                Answer::NoFile => {}
            }
        }
    }

    /// Whether the PFS may be one that reports layouts.
    fn may_report(&self) -> bool {
        self.speaks.load(Ordering::Relaxed) || self.silent.load(Ordering::Relaxed) < SILENT_FILES
    }
}

/// Counts as one of the threads for as long as it lives, even if the thread panics.
struct Counted;

impl Counted {
    fn new() -> Option<Self> {
        let counted = Counted;
        (THREADS.fetch_add(1, Ordering::Relaxed) < THREADS_MAX).then_some(counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The report to the coordinator of `files`, which have these `layouts`; nothing if none is known.
/// What is reported takes its room from `room_bytes`.
fn reported(
    files: &[FileRef],
    layouts: impl Iterator<Item = Option<Layout>>,
    room_bytes: &mut usize,
) -> Option<JobUpdate> {
    let mut servers = Servers::default();
    let mut number =
        |file: &FileRef, layout: Option<Layout>| servers.number(&file.mount, &layout?, room_bytes);
    let files = files.iter().zip(layouts).map(|(f, layout)| number(f, layout).unwrap_or_default()).collect();
    (!servers.names.is_empty()).then_some(JobUpdate::Layouts { servers: servers.names, files })
}

/// Servers by their numbers, which are those of one update.
#[derive(Debug, Default)]
struct Servers {
    names: Vec<String>,
    numbers: BTreeMap<String, u32>,
}

impl Servers {
    /// `layout` with numbers, the first server first; `None` if it names none, or too many. Servers
    /// of two mounts are never the same.
    fn number(&mut self, mount: &str, layout: &Layout, room_bytes: &mut usize) -> Option<FileLayout> {
        let count = layout.servers.len();
        let is_known = layout.stripe_bytes > 0 && layout.servers.iter().any(|name| !name.is_empty());
        if !is_known || count > STRIPES_MAX || count * ENTRY_BYTES > *room_bytes {
            return None;
        }
        let name = |server: &String| (!server.is_empty()).then(|| format!("{mount}:{server}"));
        let named: Vec<Option<String>> = layout.servers.iter().map(name).collect();
        let new: BTreeSet<&String> =
            named.iter().flatten().filter(|name| !self.numbers.contains_key(*name)).collect();
        let bytes = count * ENTRY_BYTES + new.iter().map(|name| name.len() + ENTRY_BYTES).sum::<usize>();
        *room_bytes = room_bytes.checked_sub(bytes)?;
        for name in new {
            self.numbers.insert(name.clone(), self.names.len() as u32);
            self.names.push(name.clone());
        }
        let number = |name: &Option<String>| {
            name.as_ref().and_then(|name| self.numbers.get(name)).copied().unwrap_or(UNKNOWN_SERVER)
        };
        let mut servers: Vec<u32> = named.iter().map(number).collect();
        servers.rotate_left(layout.first_server % count);
        Some(FileLayout { stripe_bytes: layout.stripe_bytes, servers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MountConfig;
    use forebay_pfs::{FileFacts, FileVersion, Revalidate};
    use forebay_store::Budget;
    use std::fs::File;

    fn file(mount: &str, path: &str, size: u64) -> FileRef {
        let version = FileVersion { ino: 1, size, mtime_ns: 0, ctime_ns: 0 };
        FileRef { mount: mount.into(), path: path.into(), version }
    }

    fn layout(stripe_bytes: u64, servers: &[&str], first_server: usize) -> Layout {
        let servers = servers.iter().map(|name| (*name).to_owned()).collect();
        Layout { stripe_bytes, servers, first_server }
    }

    fn layouts_of(files: &[FileRef], layouts: &[Option<Layout>]) -> Option<(Vec<String>, Vec<FileLayout>)> {
        match reported(files, layouts.iter().cloned(), &mut { LAYOUT_BYTES })? {
            JobUpdate::Layouts { servers, files } => Some((servers, files)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn who_is_silent_or_late_is_not_asked_for_a_while() {
        let silent = Silent::default();
        let now = Instant::now();
        let later = now + ASK_TIME;
        silent.note(0, (SILENT_FILES - 1, 0), (now, later));
        silent.note(0, (SILENT_FILES, 1), (now, later));
        assert!(silent.is_asked(0, now), "few files, or some reported");
        silent.note(0, (SILENT_FILES, 0), (now, later));
        silent.note(1, (1, 1), (later, later));
        assert!(!silent.is_asked(0, now) && !silent.is_asked(1, later));
        assert!(silent.is_asked(2, now) && silent.is_asked(0, now + SILENCE));
    }

    fn rooms(budget: &Budget, count: usize) -> Vec<Reservation> {
        (0..count).map(|_| budget.reserve_existing(Class::Clients, 1)).collect()
    }

    #[test]
    fn servers_are_numbered_over_all_files_and_apart_by_mount() {
        let files = [file("pfs", "a", 9), file("home", "b", 9), file("pfs", "c", 9), file("pfs", "d", 9)];
        let layouts = [
            Some(layout(10, &["s2", "s1"], 0)),
            Some(layout(u64::MAX, &["s1"], 0)),
            None,
            Some(layout(20, &["s1", "s3", "s2"], 4)),
        ];
        let (servers, reported) = layouts_of(&files, &layouts).unwrap();
        let names = |file: usize| -> Vec<&str> {
            reported[file].servers.iter().map(|&number| servers[number as usize].as_str()).collect()
        };
        assert_eq!(names(0), ["pfs:s2", "pfs:s1"]);
        assert_eq!(names(1), ["home:s1"]);
        assert_eq!(reported[2], FileLayout::default());
        assert_eq!(names(3), ["pfs:s3", "pfs:s2", "pfs:s1"], "the server of the first stripe comes first");
        assert_eq!([0, 1, 3].map(|file: usize| reported[file].stripe_bytes), [10, u64::MAX, 20]);
        assert_eq!(servers.len(), 4, "each once");
    }

    #[test]
    fn what_is_not_known_is_reported_as_unknown_or_not_at_all() {
        let files = [file("pfs", "a", 9), file("pfs", "b", 9)];
        let no_servers = [Some(layout(4096, &[], 0)), Some(layout(0, &["s"], 0))];
        assert_eq!(layouts_of(&files, &no_servers), None);
        assert_eq!(layouts_of(&files, &[Some(layout(10, &["", ""], 0)), None]), None);
        let (servers, reported) = layouts_of(&files, &[Some(layout(10, &["", "s"], 0)), None]).unwrap();
        assert_eq!(servers, ["pfs:s"]);
        assert_eq!(reported[0], FileLayout { stripe_bytes: 10, servers: vec![UNKNOWN_SERVER, 0] });
        assert_eq!(reported[1], FileLayout::default());
    }

    #[test]
    fn layouts_are_bounded() {
        let many = |count: usize| Some(layout(1, &vec!["s"; count], 0));
        let files = vec![file("pfs", "a", 9); 100];
        assert_eq!(layouts_of(&files[..1], &[many(STRIPES_MAX + 1)]), None);
        let (servers, reported) = layouts_of(&files, &vec![many(STRIPES_MAX); 100]).unwrap();
        let known = reported.iter().filter(|layout| layout.stripe_bytes > 0).count();
        assert_eq!((reported.len(), known), (100, LAYOUT_BYTES / (STRIPES_MAX * ENTRY_BYTES)));
        let update = JobUpdate::Layouts { servers, files: reported };
        assert!(forebay_wire::frame::encode(&update).unwrap().len() < LAYOUT_BYTES + 1024);
        let long = "x".repeat(LAYOUT_BYTES);
        assert_eq!(
            layouts_of(&files[..1], &[Some(layout(1, &[long.as_str()], 0))]),
            None,
            "names count, too"
        );
    }

    #[test]
    fn layouts_follow_their_files_and_are_asked_for_at_once() {
        let (a, b) = (file("pfs", "a", 9), file("pfs", "b", 9));
        let ready = JobUpdate::StageReady { stage: 0 };
        let updates = vec![
            JobUpdate::Files(vec![a.clone(), b.clone()]),
            ready.clone(),
            JobUpdate::Files(vec![b.clone()]),
            JobUpdate::Files(vec![a.clone()]),
        ];
        let asked = |files: &[&FileRef]| {
            assert_eq!(files.len(), 4);
            vec![None, Some(layout(1, &["s"], 0)), None, Some(layout(2, &["t"], 0))]
        };
        let out = insert(updates.clone(), asked);
        let lies = |stripe_bytes| FileLayout { stripe_bytes, servers: vec![0] };
        let first =
            JobUpdate::Layouts { servers: vec!["pfs:s".into()], files: vec![FileLayout::default(), lies(1)] };
        let last = JobUpdate::Layouts { servers: vec!["pfs:t".into()], files: vec![lies(2)] };
        let mut expected = updates;
        expected.insert(1, first);
        expected.push(last);
        assert_eq!(out, expected);
        assert_eq!(insert(vec![ready.clone()], |_| panic!("no files")), [ready]);
    }

    #[test]
    fn a_pfs_that_hangs_or_says_nothing_holds_nobody_up() {
        let budget = Budget::new(1 << 20);
        let files: Vec<_> = (0..1000).map(|i| (i, file("pfs", &format!("{i}"), 9))).collect();
        let deadline = Instant::now() + Duration::from_secs(1);
        let hangs = |file: &FileRef| match file.path.as_slice() {
            b"1" => {
                std::thread::sleep(Duration::from_secs(20));
                Answer::NoFile
            }
            b"2" => Answer::NoFile,
            _ => Answer::Lies(layout(1, &["s"], 0)),
        };
        let lie = ask_by_opening(files.clone(), rooms(&budget, 2), deadline, hangs);
        assert!(deadline.elapsed() < Duration::from_secs(10));
        assert_eq!(lie.len(), 998);
        assert!(lie.iter().all(|(number, _)| ![1, 2].contains(number)));

        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let silent = move |_: &FileRef| {
            count.fetch_add(1, Ordering::Relaxed);
            Answer::Silence
        };
        let soon = Instant::now() + Duration::from_secs(20);
        assert!(ask_by_opening(files.clone(), rooms(&budget, 2), soon, silent).is_empty());
        assert!((SILENT_FILES..SILENT_FILES + 2).contains(&asked.load(Ordering::Relaxed)));
        assert!(ask_by_opening(files, Vec::new(), soon, |_| Answer::Silence).is_empty(), "no memory");
    }

    #[test]
    fn a_file_is_asked_for_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = vec![MountState::new(MountConfig::new("pfs", dir.path())).unwrap()];
        let (with, without) = (dir.path().join("with"), dir.path().join("without"));
        std::fs::write(&with, "one").unwrap();
        std::fs::write(&without, "two").unwrap();
        let value = br#"{"stripe_bytes":4096,"servers":["s0","s1"],"first_server":1}"#;
        let set = rustix::fs::setxattr(
            with.as_path(),
            layout::LAYOUT_XATTR,
            value,
            rustix::fs::XattrFlags::empty(),
        );
        let reference = |path: &Path| {
            let facts = FileFacts::of(File::open(path).unwrap().as_fd(), Revalidate::Force).unwrap();
            let name = path.file_name().unwrap().as_bytes().to_vec();
            FileRef { mount: "pfs".into(), path: name, version: facts.version }
        };
        match probe(&mounts, &reference(&with)) {
            Answer::Lies(lies) => assert_eq!(lies, layout(4096, &["s0", "s1"], 1)),
            // Not every file system for temporary files has such attributes.
            other => assert!(set.is_err(), "{other:?}"),
        }
        assert!(matches!(probe(&mounts, &reference(&without)), Answer::Silence));
        assert!(matches!(probe(&mounts, &file("pfs", "without", 9)), Answer::NoFile), "another version");
    }

    #[test]
    fn moosefs_is_asked_for_paths_below_its_root_and_believed_if_it_reports_the_whole_file() {
        let chunk = 64 << 20;
        let files: Vec<(usize, FileRef)> = [("a", chunk), ("../b", 1), ("sub/c", 2 * chunk + 1), ("d", 1)]
            .into_iter()
            .enumerate()
            .map(|(number, (path, size))| (number + 10, file("pfs", path, size)))
            .collect();
        let lie = ask_by_path(Path::new("/mnt/mfs"), &files, |paths| {
            assert_eq!(paths, ["/mnt/mfs/a", "/mnt/mfs/sub/c", "/mnt/mfs/d"].map(Path::new));
            vec![Some(layout(chunk, &["s"], 0)), Some(layout(chunk, &["s", "t"], 0)), None]
        });
        assert_eq!(lie, [(10, layout(chunk, &["s"], 0))], "the second has three chunks");
        for path in ["", "/a", "..", "a/../b", "./a"] {
            assert_eq!(path_below(Path::new("/mnt/mfs"), path.as_bytes()), None, "{path}");
        }
    }
}
