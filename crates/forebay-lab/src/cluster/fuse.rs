//! FUSE connections of a lab's nodes, and their abort.
//!
//! A program that waits for a FUSE server cannot be killed, and neither can a server one of whose
//! own threads waits for such a program. `down` therefore aborts the connections first: the kernel
//! then answers every request with an error. This needs neither the server nor a look at any
//! waiting program; under `/proc/PID` it reads only `comm`, `ns` and `mountinfo`, which do not
//! block.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::UnshareFlags;

use super::process::NamespaceId;
use super::space::{in_thread, leave};
use crate::{LabError, mountinfo};

/// Where the kernel shows connections, once the control file system is mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Aborts the connection of every FUSE mount that one of `pids` sees and this process does not.
/// Returns how many there were.
///
/// # Errors
/// If the control file system cannot be mounted or written.
pub fn abort(pids: impl Iterator<Item = u32>) -> Result<usize, LabError> {
    let connections = connections(pids);
    if connections.is_empty() {
        return Ok(0);
    }
    in_thread(|| {
        let failed = |what: &str, e: rustix::io::Errno| LabError::io(format!("cannot {what}"), e);
        // In this thread's own mount namespace, so that nothing of it is left.
        leave(UnshareFlags::NEWNS | UnshareFlags::FS).map_err(|e| failed("make a mount namespace", e))?;
        mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
            .map_err(|e| failed("cut off the mounts", e))?;
        mount("fusectl", CONNECTIONS, "fusectl", MountFlags::empty(), c"")
            .map_err(|e| failed(&format!("mount fusectl on {CONNECTIONS}"), e))?;
        for number in &connections {
            let path = Path::new(CONNECTIONS).join(number).join("abort");
            match fs::write(&path, "1") {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(LabError::io(format!("cannot write {}", path.display()), e));
                }
                // Written, or the connection has ended by itself.
                _ => {}
            }
        }
        Ok(connections.len())
    })
}

/// Numbers of the connections: the kernel names them by the minor number of the mount's device.
fn connections(pids: impl Iterator<Item = u32>) -> BTreeSet<String> {
    let own: BTreeSet<String> = mountinfo::read().into_iter().map(|mount| mount.device).collect();
    let mut seen = BTreeSet::new();
    let mut found = BTreeSet::new();
    for pid in pids {
        // One look at each mount namespace: all its processes see the same mounts.
        if !NamespaceId::of(format!("/proc/{pid}/ns/mnt")).is_some_and(|space| seen.insert(space)) {
            continue;
        }
        let mounts = mountinfo::of(pid).into_iter();
        let foreign = mounts.filter(|mount| is_fuse(&mount.fs_type) && !own.contains(&mount.device));
        found.extend(foreign.filter_map(|mount| Some(mount.device.split_once(':')?.1.to_owned())));
    }
    found
}

fn is_fuse(fs_type: &str) -> bool {
    fs_type == "fuse" || fs_type == "fuseblk" || fs_type.starts_with("fuse.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_that_this_process_sees_as_well_are_not_touched() {
        assert!(connections([std::process::id()].into_iter()).is_empty());
        assert!(is_fuse("fuse.ceph-fuse") && is_fuse("fuse") && !is_fuse("fusectl") && !is_fuse("ext4"));
    }
}
