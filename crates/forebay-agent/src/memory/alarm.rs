//! Events that report immediately when memory runs short, so that nobody has to look often:
//! pressure stall information of the node and of control groups, thresholds of memory use of groups
//! of version 1, limits that a group of version 2 has reached, and what a service manager reports.
//!
//! A stall comes when memory is gone, and `memory.events` when the kernel already reclaims for the
//! group (`high`, `max`). Only a threshold comes before.

use super::memory_place::Place;
use super::service::Source;
use rustix::event::epoll::EventFlags;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::inotify;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Stalls that count, in a window, in microseconds. The shortest window needs privileges; without
/// them it has to be a multiple of two seconds.
const STALLS: [&str; 2] = ["some 10000 500000\0", "some 40000 2000000\0"];

/// Something that the kernel or the service manager reports.
#[derive(Debug)]
pub struct Alarm {
    /// Name for display.
    pub name: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Tasks wait for memory.
    Stalls(File),
    /// Use has passed a threshold, in either direction.
    Threshold { event: OwnedFd, _usage: File },
    /// The kernel has written to a file: the group has reached a limit.
    Written(OwnedFd),
    /// The service manager reports it.
    Service(Source),
}

impl Alarm {
    /// Stalls on the whole node or in a group; `None` if the kernel does not report them here.
    pub fn of_stalls(place: &Place) -> Option<Self> {
        let path = match &place.group {
            None => PathBuf::from("/proc/pressure/memory"),
            Some(group) if group.version == 2 => group.directory.join("memory.pressure"),
            Some(_) => return None,
        };
        let file = STALLS.iter().find_map(|stalls| stalls_in(&path, stalls).ok())?;
        Some(Alarm { name: format!("stalls ({})", path.display()), kind: Kind::Stalls(file) })
    }

    /// Limits that a group of version 2 reaches; `None` for other places.
    pub fn of_limits(place: &Place) -> Option<Self> {
        let group = place.group.as_ref().filter(|group| group.version == 2)?;
        let path = group.directory.join("memory.events");
        let kind = written(&path).ok()?;
        Some(Alarm { name: format!("limits ({})", path.display()), kind })
    }

    /// Use of `bytes` in a place; `None` if nothing reports that.
    pub fn of_threshold(place: &Place, bytes: u64) -> Option<Self> {
        let group = place.threshold.as_ref()?;
        let kind = threshold(&group.directory, bytes).ok()?;
        Some(Alarm { name: format!("threshold ({})", group.directory.display()), kind })
    }

    /// What a service manager has named.
    pub fn of_service(source: Source) -> Self {
        Alarm { name: format!("service manager ({})", source.path.display()), kind: Kind::Service(source) }
    }

    /// Makes ready for the next report; `false` if none can come any more.
    pub fn renew(&mut self) -> bool {
        match &mut self.kind {
            Kind::Service(source) => source.drain(),
            Kind::Written(notify) => {
                let mut buffer = [0; 512];
                while rustix::io::read(&*notify, &mut buffer).is_ok_and(|len| len > 0) {}
                true
            }
            Kind::Stalls(_) | Kind::Threshold { .. } => true,
        }
    }

    /// What to wait for, and the event that each report is an edge of.
    pub fn source(&self) -> (BorrowedFd<'_>, EventFlags) {
        match &self.kind {
            Kind::Stalls(file) => (file.as_fd(), EventFlags::PRI),
            Kind::Threshold { event, .. } => (event.as_fd(), EventFlags::IN),
            Kind::Written(notify) => (notify.as_fd(), EventFlags::IN),
            Kind::Service(source) => {
                let (fd, is_read) = source.fd();
                (fd, if is_read { EventFlags::IN } else { EventFlags::PRI })
            }
        }
    }
}

fn stalls_in(path: &Path, stalls: &str) -> io::Result<File> {
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut file = File::options().read(true).write(true).custom_flags(nonblock).open(path)?;
    file.write_all(stalls.as_bytes())?;
    Ok(file)
}

fn written(path: &Path) -> io::Result<Kind> {
    let notify = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
    inotify::add_watch(&notify, path, inotify::WatchFlags::MODIFY)?;
    Ok(Kind::Written(notify))
}

fn threshold(group: &Path, bytes: u64) -> io::Result<Kind> {
    let usage = File::open(group.join("memory.usage_in_bytes"))?;
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let order = format!("{} {} {bytes}", event.as_fd().as_raw_fd(), usage.as_raw_fd());
    File::options().write(true).open(group.join("cgroup.event_control"))?.write_all(order.as_bytes())?;
    Ok(Kind::Threshold { event, _usage: usage })
}
