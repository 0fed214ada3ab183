//! How much memory this node may use: its own, and the limit of the control group the agent runs
//! in.

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
    let table = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    table
        .lines()
        .filter_map(|line| limit_of_line(line, &mounts))
        .min_by_key(|l| l.bytes)
        .filter(|l| l.bytes < total_bytes())
}

/// One line of /proc/self/cgroup: `4:memory:/path` (v1) or `0::/path` (v2).
fn limit_of_line(line: &str, mounts: &str) -> Option<GroupLimit> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let (version, file, kind) = match controllers {
        "" => (2, "memory.max", " - cgroup2 "),
        c if c.split(',').any(|c| c == "memory") => (1, "memory.limit_in_bytes", " - cgroup "),
        _ => return None,
    };
    let root = mounts
        .lines()
        .filter(|l| l.contains(kind))
        .find(|l| version == 2 || l.rsplit(' ').next().is_some_and(|o| o.split(',').any(|o| o == "memory")))?
        .split(' ')
        .nth(4)?;
    smallest_on_the_way(Path::new(root), Path::new(path), file).map(|(group, bytes)| GroupLimit {
        version,
        group,
        bytes,
    })
}

/// A parent's limit binds its children too.
fn smallest_on_the_way(root: &Path, path: &Path, file: &str) -> Option<(PathBuf, u64)> {
    let leaf = root.join(path.strip_prefix("/").unwrap_or(path));
    leaf.ancestors()
        .take_while(|dir| dir.starts_with(root))
        .filter_map(|dir| {
            let text = std::fs::read_to_string(dir.join(file)).ok()?;
            Some((dir.to_owned(), text.trim().parse().ok()?))
        })
        .min_by_key(|(_, bytes)| *bytes)
}

/// What the agent may plan with: the smaller of physical memory and control group limit, in bytes.
pub fn usable_bytes() -> u64 {
    group_limit().map_or(total_bytes(), |limit| limit.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_group_on_the_way_up_counts() {
        let dir = tempfile::tempdir().unwrap();
        let leaf = dir.path().join("job/step");
        std::fs::create_dir_all(&leaf).unwrap();
        std::fs::write(leaf.join("memory.max"), "max\n").unwrap();
        std::fs::write(dir.path().join("job/memory.max"), "1000\n").unwrap();
        std::fs::write(dir.path().join("memory.max"), "5000\n").unwrap();
        let mounts = format!("1 2 0:1 / {} rw - cgroup2 cgroup2 rw", dir.path().display());
        let limit = limit_of_line("0::/job/step", &mounts).unwrap();
        assert_eq!((limit.version, limit.group, limit.bytes), (2, dir.path().join("job"), 1000));
        let v1 = format!("1 2 0:1 / {} rw - cgroup cgroup rw,memory", dir.path().display());
        std::fs::write(leaf.join("memory.limit_in_bytes"), "700\n").unwrap();
        assert_eq!(limit_of_line("4:memory:/job/step", &v1).unwrap().bytes, 700);
        assert_eq!(limit_of_line("5:cpu:/job", &v1), None);
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(usable_bytes() > 0 && usable_bytes() <= total_bytes());
    }
}
