//! How much memory the agent may plan with: the node's own, and the limit of its control group.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A limit of a control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    /// 1 or 2.
    pub version: u8,
    /// Directory of the group that sets it.
    pub group: PathBuf,
    /// Bytes.
    pub bytes: u64,
}

/// Physical memory in bytes.
pub fn total_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit)
}

/// The smallest memory limit of the control groups this process is in, of either version; `None` if
/// there is none below the physical memory. tmpfs pages and page cache are charged to the group, so
/// the tier must fit into it.
pub fn group_limit() -> Option<GroupLimit> {
    let limit = |group: &Group| {
        let text = std::fs::read_to_string(group.directory.join(group.limit_file())).ok()?;
        let bytes = text.trim().parse().ok()?;
        Some(GroupLimit { version: group.version, group: group.directory.clone(), bytes })
    };
    groups().iter().filter_map(limit).min_by_key(|l| l.bytes).filter(|l| l.bytes < total_bytes())
}

/// A control group that may limit memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// 1 or 2.
    pub version: u8,
    /// Its directory.
    pub directory: PathBuf,
}

impl Group {
    /// The file that holds its limit in bytes.
    pub fn limit_file(&self) -> &'static str {
        if self.version == 2 { "memory.max" } else { "memory.limit_in_bytes" }
    }

    /// The file that holds its use in bytes, clean pages of files included.
    pub fn usage_file(&self) -> &'static str {
        if self.version == 2 { "memory.current" } else { "memory.usage_in_bytes" }
    }
}

/// The control groups of this process that may limit its memory, from its own to the outermost: a
/// parent's limit binds its children too.
pub fn groups() -> Vec<Group> {
    let table = std::fs::read("/proc/self/cgroup").unwrap_or_default();
    let mounts = mounts();
    table.split(|byte| *byte == b'\n').flat_map(|line| groups_of_line(line, &mounts)).collect()
}

/// The group that is called `name`, such as `/system.slice/foo.slice`: of version 2 if that limits
/// memory here, else of version 1. `None` if there is none now.
pub fn named_group(name: &str) -> Option<Group> {
    named_in(name, &mounts())
}

/// The kernel's table of mounts. Its paths are bytes: any user may mount something at a path that
/// is not text.
fn mounts() -> Vec<u8> {
    std::fs::read("/proc/self/mountinfo").unwrap_or_default()
}

fn named_in(name: &str, mounts: &[u8]) -> Option<Group> {
    let group = |(version, root): (u8, &Path)| {
        let group = Group { version, directory: root.join(name.trim_start_matches('/')) };
        group.directory.join(group.limit_file()).exists().then_some(group)
    };
    [2, 1].into_iter().filter_map(|version| Some((version, mounted(version, mounts)?))).find_map(group)
}

/// The group of version 1 that contains all others, whose use is the node's; `None` where version 1
/// does not control memory.
pub fn root_group() -> Option<Group> {
    let mounts = mounts();
    let directory = mounted(1, &mounts)?.to_owned();
    // In a container the top of what is mounted may be its own group, which lacks this file.
    directory.join("release_agent").exists().then_some(Group { version: 1, directory })
}

/// Whether a line of /proc/self/mountinfo is of control groups of that version that have to do with
/// memory.
fn is_mount(line: &[u8], version: u8) -> bool {
    let line = String::from_utf8_lossy(line);
    let of_memory = || line.rsplit(' ').next().is_some_and(|o| o.split(',').any(|o| o == "memory"));
    if version == 2 { line.contains(" - cgroup2 ") } else { line.contains(" - cgroup ") && of_memory() }
}

fn mounted(version: u8, mounts: &[u8]) -> Option<&Path> {
    let mount = mounts.split(|byte| *byte == b'\n').find(|line| is_mount(line, version))?;
    mount.split(|byte| *byte == b' ').nth(4).map(path_of)
}

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// The groups of one line of /proc/self/cgroup: `4:memory:/path` (v1) or `0::/path` (v2).
fn groups_of_line(line: &[u8], mounts: &[u8]) -> Vec<Group> {
    let mut parts = line.splitn(3, |byte| *byte == b':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { return Vec::new() };
    let version = match controllers {
        b"" => 2,
        c if c.split(|byte| *byte == b',').any(|c| c == b"memory") => 1,
        _ => return Vec::new(),
    };
    let Some(root) = mounted(version, mounts) else { return Vec::new() };
    let leaf = root.join(path_of(path.strip_prefix(b"/").unwrap_or(path)));
    let group = |directory: &Path| Group { version, directory: directory.to_owned() };
    let around: Vec<Group> = leaf.ancestors().take_while(|dir| dir.starts_with(root)).map(group).collect();
    around.into_iter().filter(|group| group.directory.join(group.limit_file()).exists()).collect()
}

/// What the agent may plan with: the smaller of physical memory and control group limit, in bytes.
pub fn usable_bytes() -> u64 {
    group_limit().map_or(total_bytes(), |limit| limit.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_around_this_process_that_may_limit_memory() {
        let dir = tempfile::tempdir().unwrap();
        let leaf = dir.path().join("job/step");
        std::fs::create_dir_all(&leaf).unwrap();
        for directory in [dir.path(), &dir.path().join("job"), &leaf] {
            std::fs::write(directory.join("memory.max"), "max\n").unwrap();
        }
        std::fs::write(leaf.join("memory.limit_in_bytes"), "700\n").unwrap();
        let found = |line: &str, mounts: &str| {
            // A mount at a path that is not text hides nothing.
            let mounts = [b"3 2 0:9 / /mnt/\xff rw - tmpfs tmpfs rw\n", mounts.as_bytes()].concat();
            let groups = groups_of_line(line.as_bytes(), &mounts);
            groups.into_iter().map(|group| (group.version, group.directory)).collect::<Vec<_>>()
        };
        let v2 = format!("1 2 0:1 / {} rw - cgroup2 cgroup2 rw", dir.path().display());
        let all = [leaf.clone(), dir.path().join("job"), dir.path().to_owned()].map(|path| (2, path));
        assert_eq!(found("0::/job/step", &v2), all);
        let v1 = format!("1 2 0:1 / {} rw - cgroup cgroup rw,memory", dir.path().display());
        assert_eq!(found("4:memory:/job/step", &v1), [(1, leaf)]);
        assert_eq!(found("5:cpu:/job", &v1), []);
        let named = |name: &str, mounts: &str| named_in(name, mounts.as_bytes()).map(|group| group.version);
        assert_eq!(named("/job/step", &format!("{v1}\n{v2}")), Some(2));
        assert_eq!(named("job/step", &v1), Some(1));
        assert_eq!(named("/job", &v1), None, "it has no limit of version 1");
        assert_eq!(named("/gone", &v2), None);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(usable_bytes() > 0 && usable_bytes() <= total_bytes());
    }
}
