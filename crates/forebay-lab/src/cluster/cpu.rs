//! Cores of the nodes: each node is a control group with a quota, so that it has as many cores as a
//! machine of its own would have.
//!
//! Without that, four nodes on a machine of two cores have more cores together than there are:
//! while a task on one node waits for the file system, tasks on the others run twice as fast, and
//! waiting costs nothing. On real machines a core whose task waits is idle.
//!
//! The control group is `forebay-LAB/NODE` below the hierarchy that has the `cpu` controller, of
//! version 2 or 1.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::plan;
use super::process::wait_until;
use crate::{LabError, mountinfo};

/// Fraction of the machine's cores for all compute nodes together, if they get less than they ask
/// for; servers, head and drivers need the rest.
const SHARE_OF_COMPUTE: f64 = 0.8;

/// The kernel counts use of cores in periods of this length.
const PERIOD_US: u64 = 100_000;

/// The smallest quota that the kernel accepts.
const QUOTA_MIN_US: u64 = 1_000;

/// How long the kernel may take to see that nobody is left in a group.
const PATIENCE: Duration = Duration::from_secs(5);

/// Cores of each compute node, as requested by the user.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Cpus {
    /// This many, or a fraction of one.
    Of(f64),
    /// All of the machine's.
    Unlimited,
}

/// Parses `0.5`, `2`, `unlimited`.
pub fn parse_cpus(text: &str) -> Result<Cpus, String> {
    if text.eq_ignore_ascii_case("unlimited") {
        return Ok(Cpus::Unlimited);
    }
    match text.parse::<f64>() {
        Ok(cores) if (0.01..=1024.0).contains(&cores) => Ok(Cpus::Of(cores)),
        _ => Err(format!(
            "`{text}` is not a number of cores from 0.01 to 1024; write for example 0.5 or unlimited"
        )),
    }
}

/// Thousandths of a core for each of `nodes` compute nodes that asks for `slots`, on a machine of
/// `cores`: no limit if there is enough for all.
pub fn even_share(cores: usize, nodes: usize, slots: usize) -> Option<u32> {
    let share = SHARE_OF_COMPUTE * cores as f64 / nodes.max(1) as f64;
    (share < slots as f64).then_some((share * 1e3) as u32)
}

/// Where control groups with a `cpu` controller are made.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Hierarchy {
    V1(PathBuf),
    V2(PathBuf),
}

fn hierarchy() -> Option<Hierarchy> {
    let has_cpu = |mount: &Path| {
        fs::read_to_string(mount.join("cgroup.controllers"))
            .is_ok_and(|names| names.split_whitespace().any(|name| name == "cpu"))
    };
    mountinfo::read().into_iter().find_map(|line| match line.fs_type.as_str() {
        "cgroup2" if has_cpu(&line.mount_point) => Some(Hierarchy::V2(line.mount_point)),
        "cgroup" if line.mount_point.join("cpu.shares").exists() => Some(Hierarchy::V1(line.mount_point)),
        _ => None,
    })
}

/// The groups of a lab, wherever the controller is.
fn group_of(lab: &str) -> Option<PathBuf> {
    match hierarchy()? {
        Hierarchy::V1(root) | Hierarchy::V2(root) => Some(root.join(plan::prefix(lab).trim_end_matches('-'))),
    }
}

/// Makes a group for a node, of `millis` thousandths of a core.
///
/// # Errors
/// If there is no `cpu` controller, or if it cannot be used here.
pub fn make(lab: &str, node: &str, millis: u32) -> Result<(), LabError> {
    let Some(hierarchy) = hierarchy() else {
        return Err(LabError::new(
            "no control groups with a cpu controller are mounted; `--cpus unlimited` does without",
        ));
    };
    let failed = |e: io::Error| {
        LabError::io("cannot make control groups for the nodes' cores (`--cpus unlimited` does without)", e)
    };
    let quota = (u64::from(millis) * PERIOD_US / 1000).max(QUOTA_MIN_US);
    let root = group_of(lab).ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    if let Hierarchy::V2(top) = &hierarchy {
        fs::write(top.join("cgroup.subtree_control"), "+cpu").map_err(failed)?;
    }
    fs::create_dir_all(&root).map_err(failed)?;
    if let Hierarchy::V2(_) = hierarchy {
        fs::write(root.join("cgroup.subtree_control"), "+cpu").map_err(failed)?;
    }
    let group = root.join(node);
    fs::create_dir_all(&group).map_err(failed)?;
    match hierarchy {
        Hierarchy::V1(_) => fs::write(group.join("cpu.cfs_period_us"), PERIOD_US.to_string())
            .and_then(|()| fs::write(group.join("cpu.cfs_quota_us"), quota.to_string())),
        Hierarchy::V2(_) => fs::write(group.join("cpu.max"), format!("{quota} {PERIOD_US}")),
    }
    .map_err(failed)
}

/// The entrance to a node's group: a process that writes `0` into it is inside.
///
/// # Errors
/// If the group is gone.
pub fn door(lab: &str, node: &str) -> Result<File, LabError> {
    let path = group_of(lab).unwrap_or_default().join(node).join("cgroup.procs");
    File::options()
        .write(true)
        .open(&path)
        .map_err(|e| LabError::io(format!("the cores of node {node} are gone"), e))
}

/// Takes the calling process through `door`.
///
/// # Errors
/// If it may not.
pub fn join(mut door: File) -> Result<(), LabError> {
    door.write_all(b"0").map_err(|e| LabError::io("cannot join the node's control group", e))
}

/// Takes the child through `door` before it becomes its program.
pub fn join_as_child(command: &mut Command, door: File) {
    // SAFETY: write(2) is async-signal-safe, and the descriptor lives as long as the command.
    unsafe {
        command.pre_exec(move || rustix::io::write(door.as_fd(), b"0").map(drop).map_err(Into::into));
    }
}

/// The processes in a lab's groups.
pub fn members(lab: &str) -> BTreeSet<u32> {
    let groups = group_of(lab).and_then(|root| fs::read_dir(root).ok());
    let in_group = |group: PathBuf| fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let texts: Vec<String> =
        groups.into_iter().flatten().flatten().map(|entry| in_group(entry.path())).collect();
    texts.iter().flat_map(|text| text.lines()).filter_map(|pid| pid.parse().ok()).collect()
}

/// Whether a lab has groups.
pub fn exist(lab: &str) -> bool {
    group_of(lab).is_some_and(|root| root.exists())
}

/// Removes the groups of a lab, in which no process is left. Returns what could not be removed.
pub fn remove(lab: &str) -> Option<String> {
    let root = group_of(lab).filter(|root| root.exists())?;
    let gone = wait_until(PATIENCE, || {
        for entry in fs::read_dir(&root).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                // `forebay ship` has groups of its own below.
                for below in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
                    let _ = fs::remove_dir(below.path());
                }
                let _ = fs::remove_dir(entry.path());
            }
        }
        fs::remove_dir(&root).is_ok() || !root.exists()
    });
    (!gone).then(|| format!("control group {}", root.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_cores_are_read_and_nonsense_is_not() {
        assert_eq!(parse_cpus("0.5"), Ok(Cpus::Of(0.5)));
        assert_eq!(parse_cpus("Unlimited"), Ok(Cpus::Unlimited));
        for bad in ["", "0", "-1", "nan", "inf", "half", "2000"] {
            assert!(parse_cpus(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nodes_share_what_there_is_if_it_is_not_enough() {
        assert_eq!(even_share(2, 4, 1), Some(400));
        assert_eq!(even_share(8, 4, 2), Some(1600));
        assert_eq!(even_share(8, 4, 1), None);
        assert_eq!(even_share(64, 64, 1), Some(800));
    }
}
