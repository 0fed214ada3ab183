//! Labelled PFS mounts, and the mount of a path or a device.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// One mounted PFS as a node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The operator's name for it; cached versions are kept under this name, so that a remount,
    /// which may change the device number, does not cool the cache.
    pub label: String,
    /// Absolute directory, symbolic links resolved.
    pub root: PathBuf,
    /// Device number of the root, by which a descriptor proves that its file is here.
    pub dev: u64,
}

impl Mount {
    /// Looks at `root` and remembers its device.
    ///
    /// # Errors
    /// `root` cannot be resolved or is not a directory.
    pub fn probe(label: &str, root: &Path) -> io::Result<Self> {
        let root = root.canonicalize()?;
        let meta = std::fs::metadata(&root)?;
        if !meta.is_dir() {
            return Err(io::Error::new(io::ErrorKind::NotADirectory, "not a directory"));
        }
        Ok(Mount { label: label.to_owned(), root, dev: meta.dev() })
    }

    /// The path below this mount's root, or `None` if `path` (absolute) is elsewhere.
    pub fn relative<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        path.strip_prefix(&self.root).ok()
    }
}

/// The mount that `path` (absolute) is on: of several that contain it, the deepest.
pub fn find_mount<'a>(mounts: &'a [Mount], path: &Path) -> Option<(usize, &'a Mount)> {
    mounts
        .iter()
        .enumerate()
        .filter(|(_, m)| path.starts_with(&m.root))
        .max_by_key(|(_, m)| m.root.components().count())
}

/// File systems that close a file without asking anybody. Not those on top of others, such as
/// overlays.
const WITHOUT_SERVER: [&[u8]; 7] = [b"ext2", b"ext3", b"ext4", b"xfs", b"f2fs", b"tmpfs", b"ramfs"];

/// Whether device `dev` is a mount of this process whose files close without asking anybody. One of
/// unknown type, or one that is mounted for others only, is not.
pub fn is_kernels_own(dev: u64) -> bool {
    let number = device_number(dev);
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mut lines = table.split(|&b| b == b'\n');
    lines
        .find(|line| line.split(|&b| b == b' ').nth(2) == Some(number.as_bytes()))
        .and_then(MountLine::parse)
        .is_some_and(|line| WITHOUT_SERVER.contains(&line.fs_type.as_slice()))
}

/// Whether `path` (absolute, symbolic links resolved) is on device `dev` for process `pid`,
/// according to its table of mounts.
pub fn is_mounted_for(pid: u32, path: &Path, dev: u64) -> bool {
    let table = std::fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    mounted_at(&table, path).is_some_and(|line| line.device == device_number(dev).as_bytes())
}

/// The device number as in the kernel's table.
fn device_number(dev: u64) -> String {
    format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev))
}

/// Whether something is mounted on `root` (absolute, symbolic links resolved) itself, according to
/// the kernel's table.
pub fn is_mount_point(root: &Path) -> bool {
    line_of(root).is_some_and(|line| line.mount_point == root)
}

/// Type of Forebay's own mounts in the kernel's table.
pub const FOREBAY: &str = "fuse.forebay";

/// The PFS's own path of `path` (absolute, symbolic links resolved), if that is on a mount of
/// Forebay's, according to the kernel's table.
fn behind_in(table: &[u8], path: &Path) -> Option<PathBuf> {
    let line = mounted_at(table, path).filter(|line| line.fs_type == FOREBAY.as_bytes())?;
    // Another part of the mount than its root may be bound there.
    let bound = line.root.strip_prefix("/").ok()?;
    let pfs = PathBuf::from(OsString::from_vec(line.source)).join(bound);
    Some(pfs.join(path.strip_prefix(&line.mount_point).ok()?))
}

pub(crate) fn line_of(root: &Path) -> Option<MountLine> {
    mounted_at(&std::fs::read("/proc/self/mountinfo").ok()?, root)
}

/// Whether files of the mount that the kernel numbers `id` may be below one of `roots` (absolute,
/// symbolic links resolved), according to the kernel's table. Nothing is known of a mount that is
/// not in the table: they may.
pub fn may_hold<'a>(id: u64, roots: impl Iterator<Item = &'a Path>) -> bool {
    std::fs::read("/proc/self/mountinfo").map_or(true, |table| may_hold_in(&table, id, roots))
}

fn may_hold_in<'a>(table: &[u8], id: u64, mut roots: impl Iterator<Item = &'a Path>) -> bool {
    let mut lines = table.split(|&b| b == b'\n').filter_map(MountLine::parse);
    let Some(line) = lines.find(|line| line.id == id) else { return true };
    roots.any(|root| {
        line.mount_point.starts_with(root) || mounted_at(table, root).is_some_and(|of_root| of_root.id == id)
    })
}

/// Whether two names lead to one file or directory, links followed, even if one is a name on a
/// mount of Forebay's, which has a device number of its own.
///
/// # Errors
/// One of them leads nowhere, or may not be looked at.
pub fn same_file(a: &Path, b: &Path) -> io::Result<bool> {
    let (of_a, of_b) = (std::fs::metadata(a)?, std::fs::metadata(b)?);
    // A mount shows the numbers of the PFS's inodes.
    if of_a.ino() != of_b.ino() || of_a.dev() == of_b.dev() {
        return Ok((of_a.dev(), of_a.ino()) == (of_b.dev(), of_b.ino()));
    }
    let table = std::fs::read("/proc/self/mountinfo")?;
    let on_pfs = |path: &Path| std::fs::metadata(behind_in(&table, &path.canonicalize().ok()?)?).ok();
    let (on_pfs_a, on_pfs_b) = (on_pfs(a), on_pfs(b));
    if on_pfs_a.is_none() && on_pfs_b.is_none() {
        return Ok(false);
    }
    let identity = |seen: &Option<Metadata>, of: &Metadata| {
        let of = seen.as_ref().unwrap_or(of);
        (of.dev(), of.ino())
    };
    // The PFS may be hidden, by the mount or from this process. Two files do not have one number,
    // one length and the same times.
    let looks = |of: &Metadata| (of.size(), of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec());
    Ok(identity(&on_pfs_a, &of_a) == identity(&on_pfs_b, &of_b) || looks(&of_a) == looks(&of_b))
}

/// Other places where the directory `root` (absolute, symbolic links resolved), or a part of it, is
/// also mounted, according to the kernel's table: bind mounts, and further mounts of the same file
/// system.
pub fn other_places(root: &Path) -> Vec<PathBuf> {
    std::fs::read("/proc/self/mountinfo").map(|table| other_places_in(&table, root)).unwrap_or_default()
}

fn other_places_in(table: &[u8], root: &Path) -> Vec<PathBuf> {
    let Some(of_root) = mounted_at(table, root) else { return Vec::new() };
    let Ok(below) = root.strip_prefix(&of_root.mount_point) else { return Vec::new() };
    let inside = of_root.root.join(below);
    let place = |line: MountLine| {
        let place = match inside.strip_prefix(&line.root) {
            Ok(below) if below.as_os_str().is_empty() => line.mount_point.clone(),
            Ok(below) => line.mount_point.join(below),
            Err(_) if line.root.starts_with(&inside) => line.mount_point.clone(),
            Err(_) => return None,
        };
        // Not below the root itself, and not where something else is mounted over it.
        let is_seen = || mounted_at(table, &place).is_some_and(|seen| seen.id == line.id);
        (!place.starts_with(root) && is_seen()).then_some(place)
    };
    let lines = table.split(|&b| b == b'\n').filter_map(MountLine::parse);
    lines.filter(|line| line.device == of_root.device).filter_map(place).collect()
}

/// One line of the kernel's table of mounts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MountLine {
    /// Number of the mount, as `statx` reports it.
    id: u64,
    /// Such as `8:1`.
    device: Vec<u8>,
    /// The directory of the file system that is mounted.
    root: PathBuf,
    mount_point: PathBuf,
    /// Such as `ext4` or `fuse.sshfs`.
    pub fs_type: Vec<u8>,
    /// What is mounted, as the file system names it.
    pub source: Vec<u8>,
}

impl MountLine {
    fn parse(line: &[u8]) -> Option<Self> {
        // ID PARENT MAJOR:MINOR ROOT MOUNTPOINT OPTIONS [TAG...] - TYPE SOURCE SUPEROPTIONS
        let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-")?;
        Some(MountLine {
            id: std::str::from_utf8(fields.first()?).ok()?.parse().ok()?,
            device: fields.get(2)?.to_vec(),
            root: OsString::from_vec(unescape(fields.get(3)?)).into(),
            mount_point: OsString::from_vec(unescape(fields.get(4)?)).into(),
            fs_type: fields.get(dash + 1)?.to_vec(),
            source: unescape(fields.get(dash + 2)?),
        })
    }
}

/// The mount that `path` is on: of several that contain it, the deepest; of several in one place,
/// the last.
pub(crate) fn mounted_at(table: &[u8], path: &Path) -> Option<MountLine> {
    let lines = table.split(|&b| b == b'\n').filter_map(MountLine::parse);
    lines.filter(|m| path.starts_with(&m.mount_point)).max_by_key(|m| m.mount_point.components().count())
}

/// `\040` and the like: the kernel escapes blanks, newlines, backslashes and `#` in octal.
fn unescape(field: &[u8]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::with_capacity(field.len()), field);
    while let Some((&byte, after)) = rest.split_first() {
        let octal = (byte == b'\\').then(|| after.get(..3)).flatten();
        match octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()) {
            Some(decoded) => {
                out.push(decoded);
                rest = &after[3..];
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_mount_wins_and_siblings_do_not_match() {
        let m = |label: &str, root: &str| Mount { label: label.into(), root: root.into(), dev: 0 };
        let mounts = [m("a", "/pfs"), m("b", "/pfs/fast")];
        let found = |p: &str| find_mount(&mounts, Path::new(p)).map(|(_, m)| m.label.as_str());
        assert_eq!(found("/pfs/x"), Some("a"));
        assert_eq!(found("/pfs/fast/x"), Some("b"));
        assert_eq!(found("/pfs/faster"), Some("a"));
        assert_eq!(found("/pfsx"), None);
    }

    #[test]
    fn a_path_on_a_mount_of_forebays_has_another_on_the_pfs() {
        let table = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            40 22 0:51 / /mnt/a\\040b rw - fuse.forebay /lustre/x\\040y rw\n\
            41 22 0:51 /in/it /srv rw - fuse.forebay /lustre/x\\040y rw\n";
        let behind = |path: &str| behind_in(table, Path::new(path));
        assert_eq!(behind("/mnt/a b/f"), Some("/lustre/x y/f".into()));
        assert_eq!(behind("/srv/f"), Some("/lustre/x y/in/it/f".into()));
        assert_eq!(behind("/mnt/f"), None);
    }

    #[test]
    fn a_mount_may_hold_files_of_a_root_that_is_on_it_or_above_it() {
        let table = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            40 22 0:51 / /pfs rw - lustre mds:/x rw\n\
            41 40 0:52 / /pfs/a/inner rw - tmpfs t rw\n\
            42 22 0:53 / /pfsx rw - tmpfs t rw\n";
        let may = |id, roots: &[&str]| may_hold_in(table, id, roots.iter().map(Path::new));
        assert_eq!([22, 40, 41, 42, 99].map(|id| may(id, &["/pfs"])), [false, true, true, false, true]);
        assert_eq!([22, 40, 41, 42].map(|id| may(id, &["/pfs/a"])), [false, true, true, false]);
        assert_eq!([22, 40, 41, 42].map(|id| may(id, &["/pfs/b", "/home"])), [true, true, false, false]);
    }

    #[test]
    fn the_other_places_of_a_root_are_those_of_the_same_directory_that_can_be_seen() {
        let table = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            40 22 0:51 / /pfs rw - lustre mds:/x rw\n\
            41 22 0:51 /project /work\\040here rw - lustre mds:/x rw\n\
            42 22 0:51 / /hidden rw - lustre mds:/x rw\n\
            43 42 0:52 / /hidden rw - tmpfs t rw\n\
            44 22 8:1 /srv/data /data rw - ext4 /dev/sda1 rw\n\
            45 22 8:1 /other /srv2 rw - ext4 /dev/sda1 rw\n\
            46 40 0:51 /a /pfs/b rw - lustre mds:/x rw\n";
        let places = |root: &str| -> Vec<String> {
            let places = other_places_in(table, Path::new(root));
            places.iter().map(|place| place.display().to_string()).collect()
        };
        assert_eq!(places("/pfs"), ["/work here"]);
        assert_eq!(places("/pfs/project/x"), ["/work here/x"]);
        assert_eq!(places("/work here"), ["/pfs/project"]);
        assert_eq!(places("/srv/data"), ["/data"]);
        assert_eq!(places("/srv"), ["/data"]);
        assert_eq!(places("/srv/elsewhere"), [""; 0]);
    }

    #[test]
    fn the_table_shows_what_is_a_mount_point() {
        let dir = tempfile::tempdir().unwrap();
        assert!(is_mount_point(Path::new("/proc")));
        assert!(!is_mount_point(dir.path()) && !is_mount_point(Path::new("/proc/self")));
    }

    #[test]
    fn only_whole_escapes_are_decoded() {
        assert_eq!(unescape(b"mfs\\043host\\9z\\04"), b"mfs#host\\9z\\04");
    }
}
