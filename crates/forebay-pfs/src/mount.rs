//! Labelled PFS mounts, and which of them a path or a device belongs to.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// One mounted PFS as a node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The operator's name for it; cached versions are kept under this name, so that a remount, which may change the
    /// device number, does not cool the cache.
    pub label: String,
    /// Absolute directory, symbolic links resolved.
    pub root: PathBuf,
    /// Device number of the root, by which a descriptor proves that it lives here.
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

/// The mount that `path` (absolute) lies on: of several that contain it, the deepest.
pub fn find_mount<'a>(mounts: &'a [Mount], path: &Path) -> Option<(usize, &'a Mount)> {
    mounts
        .iter()
        .enumerate()
        .filter(|(_, m)| path.starts_with(&m.root))
        .max_by_key(|(_, m)| m.root.components().count())
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
}
