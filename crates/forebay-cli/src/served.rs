//! Which directories an agent serves.

use forebay_wire::MountStatus;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Why the agent serves nothing below a directory. An empty answer would look like an empty PFS.
pub fn why_unserved(mounts: &[MountStatus], path: &Path) -> Option<String> {
    let device = |path: &Path| std::fs::metadata(path).map(|meta| meta.dev());
    let real = path.canonicalize().ok().filter(|real| real.is_dir())?;
    let root = |mount: &MountStatus| PathBuf::from(OsStr::from_bytes(&mount.root));
    let around = mounts.iter().filter(|m| real.starts_with(root(m))).max_by_key(|m| m.root.len());
    if let Some(mount) = around.filter(|m| !m.mounted) {
        let (root, label) = (root(mount), &mount.label);
        return Some(format!(
            "nothing is mounted on {}, the root of {label:?}: mount the PFS again",
            root.display()
        ));
    }
    let here = device(&real).ok()?;
    if mounts.iter().any(|m| m.mounted && device(&root(m)).is_ok_and(|dev| dev == here)) {
        return None;
    }
    let roots: Vec<_> = mounts.iter().map(|m| root(m).display().to_string()).collect();
    Some(format!("not on a file system that the agent serves; it serves {}", roots.join(", ")))
}
