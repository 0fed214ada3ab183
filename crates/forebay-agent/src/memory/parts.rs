//! What the memory of a place consists of, for display: the controller only needs what is in use.
//!
//! The kernel takes back clean pages of files and reclaimable slab (names and attributes of files)
//! when programs need memory. It has to write dirty pages first. It never takes back tmpfs without
//! swap, memory of programs without swap, huge pages that are set apart, and its own memory.

use super::memory_place::NODE;
use std::path::Path;

/// Names of the parts, with the keys that add up to them: of /proc/meminfo in KiB, and of
/// memory.stat in bytes. What follows `-` is subtracted.
const OF_NODE: &[(&str, &[&str])] = &[
    ("free", &["MemFree"]),
    ("clean page cache", &["Cached", "Buffers", "-Shmem", "-Dirty", "-Writeback"]),
    ("dirty page cache", &["Dirty", "Writeback"]),
    ("tmpfs", &["Shmem"]),
    ("programs", &["AnonPages"]),
    ("reclaimable slab", &["SReclaimable"]),
    ("other slab", &["SUnreclaim"]),
    ("huge pages set apart", &["Hugetlb"]),
    ("page tables and stacks", &["PageTables", "KernelStack"]),
];
const OF_GROUP: &[(&str, &[&str])] = &[
    ("clean page cache", &["active_file", "inactive_file", "-dirty", "-writeback"]),
    ("dirty page cache", &["dirty", "writeback"]),
    ("tmpfs", &["shmem"]),
    ("programs", &["anon"]),
    ("reclaimable slab", &["slab_reclaimable"]),
    ("other slab", &["slab_unreclaimable"]),
    ("huge pages set apart", &["hugetlb"]),
    ("page tables and stacks", &["pagetables", "kernel_stack"]),
];

/// Parts of the memory of a place of this name, as far as the kernel reports; nothing if it cannot
/// be read.
pub fn parts(place: &str) -> Vec<(String, u64)> {
    if place == NODE {
        return read(Path::new("/proc/meminfo")).map_or_else(Vec::new, |text| of_meminfo(&text));
    }
    read(&Path::new(place).join("memory.stat")).map_or_else(Vec::new, |text| of_stat(&text))
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

fn of_meminfo(text: &str) -> Vec<(String, u64)> {
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    };
    sums(OF_NODE, value)
}

/// Version 1 has sums over the groups below as `total_*`, and calls some parts by other names.
fn of_stat(text: &str) -> Vec<(String, u64)> {
    let is_v1 = text.lines().any(|line| line.starts_with("total_active_file "));
    let number = |key: &str| {
        text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse::<u64>().ok())
    };
    let value = |key: &str| match (is_v1, key) {
        (true, "anon") => number("total_rss"),
        (true, key) => number(&format!("total_{key}")),
        (false, "dirty") => number("file_dirty"),
        (false, "writeback") => number("file_writeback"),
        (false, key) => number(key),
    };
    sums(OF_GROUP, value)
}

fn sums(parts: &[(&str, &[&str])], value: impl Fn(&str) -> Option<u64>) -> Vec<(String, u64)> {
    let sum = |keys: &[&str]| {
        let (less, more): (Vec<&str>, Vec<&str>) = keys.iter().partition(|key| key.starts_with('-'));
        let more: Vec<u64> = more.into_iter().filter_map(&value).collect();
        let less: u64 = less.into_iter().filter_map(|key| value(&key[1..])).sum();
        (!more.is_empty()).then(|| more.iter().sum::<u64>().saturating_sub(less))
    };
    parts.iter().filter_map(|(name, keys)| Some(((*name).to_owned(), sum(keys)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(parts: &[(String, u64)], name: &str) -> Option<u64> {
        parts.iter().find(|part| part.0 == name).map(|part| part.1)
    }

    #[test]
    fn each_part_has_its_name() {
        let node = of_meminfo(
            "MemFree: 10 kB\nBuffers: 1 kB\nCached: 20 kB\nShmem: 5 kB\nDirty: 2 kB\nWriteback: 1 kB\n\
             AnonPages: 30 kB\nSReclaimable: 7 kB\nSUnreclaim: 3 kB\nHugetlb: 4 kB\n",
        );
        assert_eq!(part(&node, "clean page cache"), Some(13 << 10));
        assert_eq!(part(&node, "dirty page cache"), Some(3 << 10));
        assert_eq!(part(&node, "reclaimable slab"), Some(7 << 10));
        assert_eq!(part(&node, "huge pages set apart"), Some(4 << 10));
        assert_eq!(part(&node, "page tables and stacks"), None, "the kernel does not report it");
        let v2 = of_stat(
            "anon 9\nactive_file 5\ninactive_file 2\nfile_dirty 3\nshmem 8\nslab_reclaimable 6\nslab_unreclaimable 1\n",
        );
        assert_eq!((part(&v2, "programs"), part(&v2, "clean page cache")), (Some(9), Some(4)));
        assert_eq!((part(&v2, "reclaimable slab"), part(&v2, "other slab")), (Some(6), Some(1)));
        let v1 = of_stat(
            "rss 1\ntotal_rss 9\ntotal_active_file 5\ntotal_inactive_file 0\ntotal_dirty 1\ntotal_shmem 2\n",
        );
        assert_eq!((part(&v1, "programs"), part(&v1, "tmpfs")), (Some(9), Some(2)));
        assert_eq!((part(&v1, "clean page cache"), part(&v1, "reclaimable slab")), (Some(4), None));
    }
}
