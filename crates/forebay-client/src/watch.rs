//! Watches open files with inotify for writes and changes of attributes by programs on this node.
//!
//! Time stamps cannot distinguish a rename, a link or a `chmod` that was undone from a write whose
//! mtime was set back: each moves only ctime. The kernel can, for system calls on this node. It
//! does not report changes by other nodes, stores to a mapped page, or asynchronous writes
//! (`io_submit`), so the absence of an event proves nothing.
//!
//! Each process has one inotify instance, with a watch for each open file. Events are read only on
//! demand, so a watch costs one call to add it and one to remove it. A forked child shares the
//! instance with its parent, and any event that it read would be lost to the parent. So the child
//! reads no events, and creates its own instance for the files that it opens.

use crate::descriptor_place::Place;
use crate::fork_safe::OwnLock;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Removals after which the queue is read: the kernel queues an event for each removed watch.
const REMOVALS_QUEUED: u64 = 64;

/// Attempts to add a watch, because another thread may remove it before it is counted.
const TRIES: usize = 3;

/// Events so far, of one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Events {
    /// Writes, truncations, allocations.
    writes: u64,
    /// Changes of mode, owner, links, times or extended attributes, and renames.
    attributes: u64,
}

impl Events {
    /// Whether the file was written after `before`.
    pub fn wrote_since(&self, before: &Events) -> bool {
        self.writes != before.writes
    }

    /// Whether its attributes or its name were changed after `before`.
    pub fn touched_since(&self, before: &Events) -> bool {
        self.attributes != before.attributes
    }
}

/// The watches of a process.
#[derive(Debug)]
pub(crate) struct Watches {
    instance: OwnLock<Option<Instance>>,
    place: Place,
}

impl Default for Watches {
    fn default() -> Self {
        Self::new(std::convert::identity)
    }
}

#[derive(Debug)]
struct Instance {
    inotify: Arc<OwnedFd>,
    /// By watch descriptor: the kernel has one for each inode.
    files: HashMap<i32, Watched>,
    /// Watches removed so far.
    removed: u64,
}

#[derive(Debug, Default)]
struct Watched {
    handles: u32,
    /// `None` once events may have been lost.
    events: Option<Events>,
}

/// A file that is watched until this is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    all: Arc<Watches>,
    wd: i32,
    /// The process whose instance it is.
    pid: u32,
    /// What had happened to the file when it was opened.
    pub at_open: Events,
}

impl Watches {
    /// The watches of a process; `place` chooses the number of the inotify descriptor.
    pub fn new(place: Place) -> Self {
        Watches { instance: OwnLock::default(), place }
    }

    /// Watches an open file; `None` if the kernel allows no more watches, or there is no `/proc`.
    pub fn watch(self: &Arc<Self>, file: BorrowedFd<'_>) -> Option<Watch> {
        let pid = std::process::id();
        let wanted = WatchFlags::MODIFY | WatchFlags::ATTRIB | WatchFlags::MOVE_SELF;
        // Through the descriptor: what its path leads to may be another file by now.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        (0..TRIES).find_map(|_| {
            let (inotify, removed) = self.instance()?;
            // Without the lock: on NFS the kernel asks the server, and one that hangs must not hold
            // up other files.
            let wd = inotify::add_watch(&*inotify, &path, wanted).ok()?;
            let at_open = self.instance.lock().as_mut()?.add(wd, removed)?;
            Some(Watch { all: self.clone(), wd, pid, at_open })
        })
    }

    /// The instance of this process, and how many watches were removed from it.
    fn instance(&self) -> Option<(Arc<OwnedFd>, u64)> {
        let mut instance = self.instance.lock();
        if instance.is_none() {
            *instance = Some(Instance::new(self.place).ok()?);
        }
        instance.as_ref().map(|i| (i.inotify.clone(), i.removed))
    }
}

impl Instance {
    fn new(place: Place) -> rustix::io::Result<Self> {
        let inotify = place(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?);
        Ok(Instance { inotify: Arc::new(inotify), files: HashMap::new(), removed: 0 })
    }

    /// Counts one more handle of a file. Returns `None` if its watch may have been removed since
    /// the number of removals was `removed`.
    fn add(&mut self, wd: i32, removed: u64) -> Option<Events> {
        if self.files.contains_key(&wd) {
            // What was done to the file before this open must not be counted after it.
            self.drain();
        } else if self.removed != removed {
            self.remove_watch(wd);
            return None;
        }
        let watched = self.files.entry(wd).or_insert(Watched { handles: 0, events: Some(Events::default()) });
        watched.handles += 1;
        Some(watched.events.unwrap_or_default())
    }

    fn remove(&mut self, wd: i32) {
        let Some(watched) = self.files.get_mut(&wd) else { return };
        watched.handles -= 1;
        if watched.handles > 0 {
            return;
        }
        self.files.remove(&wd);
        self.remove_watch(wd);
    }

    fn remove_watch(&mut self, wd: i32) {
        // It may be gone with its file system.
        let _ = inotify::remove_watch(&*self.inotify, wd);
        self.removed += 1;
        if self.removed.is_multiple_of(REMOVALS_QUEUED) {
            self.drain();
        }
    }

    /// Counts what the kernel has queued.
    fn drain(&mut self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut queue = Reader::new(&*self.inotify, &mut buffer);
        loop {
            match queue.next() {
                Ok(event) => count(&mut self.files, event.wd(), event.events()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => return lose_all(&mut self.files),
            }
        }
    }
}

fn count(files: &mut HashMap<i32, Watched>, wd: i32, what: ReadFlags) {
    if what.contains(ReadFlags::QUEUE_OVERFLOW) {
        return lose_all(files);
    }
    // Events of a watch that was removed may still be queued.
    let Some(watched) = files.get_mut(&wd) else { return };
    if what.contains(ReadFlags::IGNORED) {
        watched.events = None;
    } else if let Some(events) = &mut watched.events {
        events.writes += u64::from(what.contains(ReadFlags::MODIFY));
        events.attributes += u64::from(what.intersects(ReadFlags::ATTRIB | ReadFlags::MOVE_SELF));
    }
}

fn lose_all(files: &mut HashMap<i32, Watched>) {
    files.values_mut().for_each(|watched| watched.events = None);
}

impl Watch {
    /// What has happened to the file so far; `None` if that cannot be known.
    pub fn events(&self) -> Option<Events> {
        if self.pid != std::process::id() {
            return None;
        }
        let mut instance = self.all.instance.lock();
        let instance = instance.as_mut()?;
        instance.drain();
        instance.files.get(&self.wd).and_then(|watched| watched.events)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        if let Some(instance) = self.all.instance.lock().as_mut() {
            instance.remove(self.wd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, Permissions};
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn writes_and_attributes_are_distinguished_and_watches_of_one_file_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"one").unwrap();
        let (all, file) = (Arc::new(Watches::default()), File::open(&path).unwrap());
        let first = all.watch(file.as_fd()).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        std::fs::rename(&path, dir.path().join("g")).unwrap();
        let touched = first.events().unwrap();
        assert!(touched.touched_since(&first.at_open) && !touched.wrote_since(&first.at_open));
        File::options().append(true).open(dir.path().join("g")).unwrap().write_all(b"two").unwrap();
        let second = all.watch(File::open(dir.path().join("g")).unwrap().as_fd()).unwrap();
        assert!(first.events().unwrap().wrote_since(&touched));
        assert_eq!(
            second.events(),
            Some(second.at_open),
            "what came before the second open is counted after it"
        );
        drop(second);
        std::fs::set_permissions(dir.path().join("g"), Permissions::from_mode(0o644)).unwrap();
        let after = first.events().unwrap();
        assert!(after.touched_since(&touched), "the watch went with another handle of the file");
        drop(first);
        assert!(all.instance.lock().as_ref().unwrap().files.is_empty());
    }

    #[test]
    fn a_watch_that_another_thread_may_have_removed_is_not_relied_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"one").unwrap();
        let (all, file) = (Arc::new(Watches::default()), File::open(&path).unwrap());
        let first = all.watch(file.as_fd()).unwrap();
        let (wd, removed) = (first.wd, all.instance().unwrap().1);
        drop(first);
        assert_eq!(all.instance.lock().as_mut().unwrap().add(wd, removed), None);
        let again = all.watch(file.as_fd()).unwrap();
        std::fs::write(&path, b"two").unwrap();
        assert!(again.events().unwrap().wrote_since(&again.at_open));
    }

    #[test]
    fn a_queue_that_overflowed_is_no_proof() {
        let mut files = HashMap::from([(1, Watched { handles: 1, events: Some(Events::default()) })]);
        count(&mut files, 1, ReadFlags::MODIFY);
        assert_eq!(files[&1].events, Some(Events { writes: 1, attributes: 0 }));
        count(&mut files, -1, ReadFlags::QUEUE_OVERFLOW);
        assert_eq!(files[&1].events, None);
    }
}
