//! What file systems do differently from most, in a file for each. A new one is a file here with a
//! value of [`FileSystem`], and a line in [`ALL`].
//!
//! Nothing outside this module decides by the name of a file system, only by its [`Traits`].

mod beegfs;
mod by_type;
mod ceph;
pub mod create;
mod glusterfs;
mod lustre;
mod moosefs;
mod slowfs;

pub use moosefs::{probe_paths, set_class};
pub use slowfs::LAYOUT_XATTR;

use crate::ChangeStamp;
use crate::layout::Layout;
use crate::layout::hint::Hint;
use crate::mount::{MountLine, is_mount_point, line_of};
use create::{Laid, New};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Instant;

/// All kinds, in the order in which they are asked for a file's layout: first those whose answer
/// costs no message.
const ALL: [&FileSystem; 7] = [
    &slowfs::SLOWFS,
    &ceph::KERNEL,
    &ceph::FUSE,
    &lustre::LUSTRE,
    &glusterfs::GLUSTERFS,
    &moosefs::MOOSEFS,
    &beegfs::BEEGFS,
];

/// One kind of file system.
struct FileSystem {
    /// Its name, for people.
    name: &'static str,
    /// Whether a line of the kernel's table describes one.
    is_of: fn(&MountLine) -> bool,
    traits: Traits,
    /// The layout of an open file, from an attribute; files of other kinds have none.
    layout: Option<fn(BorrowedFd<'_>) -> Option<Layout>>,
    /// Creates a file with a layout.
    create: Option<fn(&mut New<'_>, &Hint) -> Laid>,
}

/// Nothing is known of it.
const UNKNOWN: FileSystem = FileSystem {
    name: "",
    is_of: |_| false,
    traits: Traits {
        stamps_late: false,
        reads_ahead: false,
        layout_by_path: false,
        layout_asks_servers: false,
        storage_classes: false,
        keeps_old_pages: false,
        chunk_bytes: None,
        known_stamps: None,
        is_local: false,
        unchanging: None,
    },
    layout: None,
    create: None,
};

/// What a file system does differently from most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    /// The time stamps of an overwrite appear some time after it, and a close does not wait.
    pub stamps_late: bool,
    /// The client reads ahead by itself, and drops that whenever another place is read.
    pub reads_ahead: bool,
    /// The servers are asked for the places of files by path; no file has to be open.
    pub layout_by_path: bool,
    /// Each question for a layout is a message to a server.
    pub layout_asks_servers: bool,
    /// An empty file takes a storage class, which a tool sets.
    pub storage_classes: bool,
    /// The kernel's page cache may keep old bytes after another node has written.
    pub keeps_old_pages: bool,
    /// Bytes of the chunks in which files are stored, each on one server.
    pub chunk_bytes: Option<u64>,
    /// Time stamps are known to follow writes: which of them shows the last change. Where nothing
    /// is known it is measured.
    pub known_stamps: Option<ChangeStamp>,
    /// Only this node can write, and a lease proves that nobody does. Other nodes may write one of
    /// unknown type.
    pub is_local: bool,
    /// Nobody can change its files, on any node: its type, for messages.
    pub unchanging: Option<&'static str>,
}

impl Traits {
    /// The traits of the file system of `path` (absolute, symbolic links resolved). Its type is in
    /// the kernel's own table, so a file system that hangs does not hang this call.
    pub fn of(path: &Path) -> Self {
        let Some(line) = line_of(path) else { return UNKNOWN.traits };
        by_type::of_type(&line.fs_type, known(&line).unwrap_or(&UNKNOWN).traits)
    }
}

/// What the file system of `path` (absolute, symbolic links resolved) is called: its name, or its
/// type in the kernel's table.
pub fn name_of(path: &Path) -> Option<String> {
    line_of(path).map(|line| name_in(&line))
}

fn name_in(line: &MountLine) -> String {
    let by_type = || String::from_utf8_lossy(&line.fs_type).into_owned();
    known(line).map_or_else(by_type, |kind| kind.name.to_owned())
}

/// The type of the file system of `path` (absolute, symbolic links resolved), if `path` is a plain
/// directory of one that only this node has: most likely a mount is missing.
pub fn local_directory(path: &Path) -> Option<String> {
    let line = line_of(path)?;
    let is_local = by_type::is_of_one_node(&line.fs_type) && !is_mount_point(path);
    is_local.then(|| String::from_utf8_lossy(&line.fs_type).into_owned())
}

/// The file system of a line of the kernel's table, if it is one of these.
fn known(line: &MountLine) -> Option<&'static FileSystem> {
    ALL.into_iter().find(|kind| (kind.is_of)(line))
}

/// How the file system of `path` (absolute, symbolic links resolved) creates a file with a layout.
fn creation(path: &Path) -> Option<fn(&mut New<'_>, &Hint) -> Laid> {
    known(&line_of(path)?)?.create
}

/// The layout of an open file, from the attribute of any file system that has one: a mount may hide
/// its kind. `with_messages`: including those that ask a server.
pub(crate) fn layout(fd: BorrowedFd<'_>, with_messages: bool) -> Option<Layout> {
    let asked = ALL.into_iter().filter(|kind| with_messages || !kind.traits.layout_asks_servers);
    asked.filter_map(|kind| kind.layout).find_map(|layout| layout(fd))
}

/// Asks the PFS for the layout of an open file; `None` if it does not report one. Only what costs
/// little is asked.
pub fn probe(fd: BorrowedFd<'_>) -> Option<Layout> {
    layout(fd, false)
}

/// As [`probe`], and also asks those kinds of PFS whose answer costs messages to servers.
pub fn probe_servers(fd: BorrowedFd<'_>) -> Option<Layout> {
    layout(fd, true)
}

/// Where the file at `path`, of `size` bytes, is, by whatever means its PFS offers; `None` if that
/// is not known by `deadline`. `open` opens the file, if it has to be open.
pub fn of_file<F: AsFd>(
    path: &Path,
    size: u64,
    deadline: Instant,
    open: impl FnOnce() -> Option<F>,
) -> Option<Layout> {
    if !Traits::of(path).layout_by_path {
        return probe_servers(open()?.as_fd());
    }
    // One that ends before the file does was truncated, and would be mistaken for one that begins
    // again.
    let is_whole = |layout: &Layout| layout.servers.len() as u64 >= size.div_ceil(layout.stripe_bytes.max(1));
    probe_paths(&[path], deadline).pop()?.filter(is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::mounted_at;

    #[test]
    fn file_systems_are_known_by_their_type_or_their_source() {
        let table = b"22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            40 22 0:51 / /mnt/mfs rw,nosuid shared:9 master:2 - fuse mfs\\043mfsmaster:9421 rw,user_id=0\n\
            41 22 0:52 / /mnt/a\\040b rw - fuse.mfs mfsmaster:9421 rw\n\
            42 22 0:53 / /mnt/other rw - fuse other#host rw\n\
            43 40 0:54 / /mnt/mfs/inner rw - tmpfs mfs rw\n\
            44 22 0:55 / /mnt/twice rw - fuse mfs#mfsmaster:9421 rw\n\
            45 44 0:56 / /mnt/twice rw - ext4 /dev/sdb rw\n\
            46 22 0:57 / /mnt/ceph-a rw - fuse.ceph-fuse ceph-fuse rw\n\
            47 22 0:58 / /mnt/ceph-b rw - fuse ceph-fuse rw\n\
            48 22 0:59 / /mnt/ceph-k rw - ceph 10.0.0.1:/ rw\n\
            49 22 0:60 / /mnt/slow rw - fuse.forebay-slowfs forebay-slowfs rw\n\
            nonsense\n";
        let traits = |path: &str| {
            let line = mounted_at(table, Path::new(path));
            let kind = line.and_then(|line| known(&line));
            kind.map(|kind| (kind.traits, kind.create.is_some()))
        };
        for path in ["/mnt/mfs", "/mnt/mfs/data", "/mnt/a b"] {
            assert_eq!(traits(path), Some((moosefs::MOOSEFS.traits, true)), "{path}");
        }
        for path in ["/mnt/ceph-a/x", "/mnt/ceph-b"] {
            assert_eq!(traits(path), Some((ceph::FUSE.traits, true)), "{path}");
        }
        assert_eq!(traits("/mnt/ceph-k"), Some((ceph::KERNEL.traits, true)), "the kernel's client");
        assert!(traits("/mnt/ceph-k").is_some_and(|(traits, _)| !traits.keeps_old_pages));
        for path in ["/", "/mnt", "/mnt/mfsother", "/mnt/other", "/mnt/mfs/inner", "/mnt/twice", "relative"] {
            assert_eq!(traits(path), None, "{path}");
        }
        let names = ["/", "/mnt/mfs", "/mnt/ceph-a", "/mnt/ceph-k", "/mnt/other", "/mnt/slow"]
            .map(|path| name_in(&mounted_at(table, Path::new(path)).unwrap()));
        let slow = "the lab's slow file system";
        assert_eq!(names, ["ext4", "MooseFS", "CephFS through ceph-fuse", "CephFS", "fuse", slow]);
        assert_eq!(name_of(Path::new("/proc")).as_deref(), Some("proc"));
        assert_eq!(Traits::of(Path::new("/proc")), Traits::default());
        assert_eq!(UNKNOWN.traits, Traits::default());
    }

    #[test]
    fn what_costs_messages_is_asked_last() {
        let asked = ALL.into_iter().filter(|kind| kind.layout.is_some());
        assert!(asked.map(|kind| kind.traits.layout_asks_servers).is_sorted());
    }

    #[test]
    fn a_file_whose_pfs_does_not_report_it_has_no_layout() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(probe_servers(file.as_fd()), None);
    }
}
