//! Cutting the tasks of a stage into waves: what all slots read at once.
//!
//! A scheduler that is told where the input of a task is runs it there if it can. So the tasks that a node with `s` slots
//! runs first are the first `s` of those whose input it keeps, and so on: wave `k` is, over all nodes, the `k`-th batch of
//! so many tasks, in task order. Tasks whose input is kept where no slots are (dedicated nodes, or nobody) run anywhere:
//! they take the slots that the others leave free.

use forebay_policy::placement::{Member, extent_key, node_number, owner};
use forebay_wire::{ClusterView, FileRef, Part, Split};
use std::collections::BTreeMap;

/// What one node has to bring for one task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Parts of files, in the order of reading; none reaches over the end of an extent.
    pub parts: Vec<Part>,
    /// Their bytes.
    pub bytes: u64,
}

/// What a task reads, by the node that keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// By name of the node.
    pub needs: BTreeMap<String, Need>,
    /// The node that keeps most of it; of several, the first by name.
    pub home: Option<String>,
}

/// Finds the owners of extents; remembers the members of each mount.
#[derive(Debug)]
pub struct Owners<'a> {
    view: &'a ClusterView,
    by_mount: BTreeMap<&'a str, Keepers<'a>>,
    work: u64,
}

#[derive(Debug)]
struct Keepers<'a> {
    names: Vec<&'a str>,
    members: Vec<Member>,
    extent_bytes: u64,
}

impl<'a> Owners<'a> {
    /// By this view.
    pub fn new(view: &'a ClusterView) -> Self {
        Owners { view, by_mount: BTreeMap::new(), work: 0 }
    }

    /// How much has been done so far: members looked at, summed over extents.
    pub fn work(&self) -> u64 {
        self.work
    }

    /// What each node has to bring for `split`. Parts of files that were never told, or of mounts that nobody has, are left
    /// out: whoever reads them reads the PFS.
    pub fn place(&mut self, files: &'a [FileRef], split: &Split) -> Placed {
        let mut needs: BTreeMap<String, Need> = BTreeMap::new();
        // Of a split without parts, too.
        let mut work = 1;
        for part in &split.parts {
            let Some(file) = files.get(part.file as usize) else { continue };
            let Some(keepers) = self.keepers(&file.mount) else { continue };
            let end = part.offset.saturating_add(part.len).min(file.version.size);
            let mut at = part.offset;
            while at < end {
                let extent = at / keepers.extent_bytes;
                work += keepers.members.len() as u64;
                let next = (extent + 1).saturating_mul(keepers.extent_bytes).min(end);
                let number = owner(extent_key(&file.mount, file.version.ino, extent), &keepers.members);
                if let Some(i) = keepers.members.iter().position(|m| Some(m.node) == number) {
                    let need = needs.entry(keepers.names[i].to_owned()).or_default();
                    need.parts.push(Part { file: part.file, offset: at, len: next - at });
                    need.bytes += next - at;
                }
                at = next;
            }
        }
        self.work += work;
        // The first of the greatest, so that everybody who computes this agrees.
        let home = needs.iter().rev().max_by_key(|(_, need)| need.bytes).map(|(name, _)| name.clone());
        Placed { needs, home }
    }

    fn keepers(&mut self, mount: &'a str) -> Option<&Keepers<'a>> {
        let view = self.view;
        let keepers = self.by_mount.entry(mount).or_insert_with(|| {
            let nodes = view.keepers(mount);
            let extents = nodes.iter().filter_map(|n| crate::members::extent_bytes(n, mount));
            Keepers {
                extent_bytes: extents.min().unwrap_or(0),
                names: nodes.iter().map(|n| n.name.as_str()).collect(),
                members: nodes
                    .iter()
                    .map(|n| Member { node: node_number(&n.name), weight: n.capacity_bytes as f64 })
                    .collect(),
            }
        });
        (keepers.extent_bytes > 0).then_some(keepers)
    }
}

/// Slots by node, and those on hosts that are no members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    /// By name of the node; none is 0.
    pub by_node: BTreeMap<String, u32>,
    /// Of other hosts.
    pub elsewhere: u32,
}

impl Slots {
    /// From what a job tells, host by host.
    pub fn new(told: &[(String, u32)], view: &ClusterView) -> Self {
        let mut slots = Slots::default();
        for (host, count) in told.iter().filter(|(_, count)| *count > 0) {
            match view.nodes.iter().find(|n| n.host == *host) {
                Some(node) => {
                    let sum = slots.by_node.entry(node.name.clone()).or_default();
                    *sum = sum.saturating_add(*count);
                }
                None => slots.elsewhere = slots.elsewhere.saturating_add(*count),
            }
        }
        slots
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.by_node.values().map(|s| u64::from(*s)).sum::<u64>() + u64::from(self.elsewhere)
    }
}

/// Cuts tasks, given in order with their homes, into waves of task numbers. No slots, no waves.
pub fn cut(tasks: &[(u32, Option<&str>)], slots: &Slots) -> Vec<Vec<u32>> {
    let total = slots.total();
    if total == 0 {
        return Vec::new();
    }
    let mut at_home: BTreeMap<&str, u32> = BTreeMap::new();
    let mut used: Vec<u64> = Vec::new();
    let mut waves: Vec<Vec<u32>> = Vec::new();
    let mut anywhere = Vec::new();
    for &(task, home) in tasks {
        let Some((home, size)) = home.and_then(|h| Some((h, *slots.by_node.get(h)?))) else {
            anywhere.push(task);
            continue;
        };
        let before = at_home.entry(home).or_default();
        put(&mut waves, &mut used, (*before / size) as usize, task);
        *before += 1;
    }
    let mut wave = 0;
    for task in anywhere {
        while used.get(wave).is_some_and(|u| *u >= total) {
            wave += 1;
        }
        put(&mut waves, &mut used, wave, task);
    }
    for wave in &mut waves {
        wave.sort_unstable();
    }
    waves
}

fn put(waves: &mut Vec<Vec<u32>>, used: &mut Vec<u64>, wave: usize, task: u32) {
    while waves.len() <= wave {
        waves.push(Vec::new());
        used.push(0);
    }
    waves[wave].push(task);
    used[wave] += 1;
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_pfs::FileVersion;
    use forebay_wire::NodeInfo;
    use proptest::prelude::*;

    fn view(names: &[&str]) -> ClusterView {
        let node = |name: &&str| NodeInfo {
            name: (*name).into(),
            host: format!("{name}.host"),
            address: "127.0.0.1:1".into(),
            capacity_bytes: 1 << 30,
            mounts: vec!["pfs".into()],
            extent_bytes: vec![1 << 20],
            ..NodeInfo::default()
        };
        ClusterView { nodes: names.iter().map(node).collect(), ..ClusterView::default() }
    }

    fn file(size: u64) -> FileRef {
        let version = FileVersion { ino: 7, size, mtime_ns: 1, ctime_ns: 1 };
        FileRef { mount: "pfs".into(), path: b"f".to_vec(), version }
    }

    #[test]
    fn every_byte_of_a_split_is_needed_at_one_node() {
        let (view, files) = (view(&["a", "b"]), [file(10 << 20)]);
        let part = Part { file: 0, offset: 1 << 19, len: 20 << 20 };
        let unknown = Part { file: 9, offset: 0, len: 1 };
        let placed = Owners::new(&view).place(&files, &Split { parts: vec![part, unknown] });
        let bytes: u64 = placed.needs.values().map(|n| n.bytes).sum();
        assert_eq!(bytes, (10 << 20) - (1 << 19), "the file's end bounds the split");
        let mut parts: Vec<Part> = placed.needs.values().flat_map(|n| n.parts.clone()).collect();
        parts.sort_by_key(|p| p.offset);
        assert!(parts.windows(2).all(|w| w[0].offset + w[0].len == w[1].offset));
        let most = placed.needs.iter().map(|(name, n)| (n.bytes, name)).max().unwrap().0;
        assert_eq!(placed.needs[&placed.home.unwrap()].bytes, most);
        assert_eq!(
            Owners::new(&ClusterView::default()).place(&files, &Split { parts: vec![part] }).home,
            None
        );
    }

    #[test]
    fn slots_are_those_of_nodes_by_their_hosts() {
        let told = [("a.host".into(), 2), ("b.host".into(), 0), ("a.host".into(), 1), ("other".into(), 4)];
        let slots = Slots::new(&told, &view(&["a", "b"]));
        assert_eq!((slots.by_node.clone(), slots.elsewhere), ([("a".to_owned(), 3)].into(), 4));
        assert_eq!(slots.total(), 7);
    }

    #[test]
    fn tasks_without_a_home_take_what_is_free() {
        let slots = Slots { by_node: [("a".into(), 2)].into(), elsewhere: 1 };
        let tasks = [(0, Some("a")), (1, None), (2, Some("a")), (3, Some("a")), (4, Some("gone")), (5, None)];
        assert_eq!(cut(&tasks, &slots), [vec![0, 1, 2], vec![3, 4, 5]]);
        assert!(cut(&tasks, &Slots::default()).is_empty());
    }

    proptest! {
        /// Every task is in exactly one wave, the order of a node's tasks is kept, and no wave has more of a node's tasks
        /// than the node has slots, nor more tasks than there are slots.
        #[test]
        fn waves_hold_every_task_once_in_order_and_within_the_slots(
            homes in prop::collection::vec(prop::option::of(0usize..5), 0..300),
            sizes in prop::collection::vec(0u32..9, 5), elsewhere in 0u32..4
        ) {
            let names = ["a", "b", "c", "d", "e"];
            let by_node = names.iter().zip(&sizes).filter(|(_, s)| **s > 0).map(|(n, s)| ((*n).to_owned(), *s));
            let slots = Slots { by_node: by_node.collect(), elsewhere };
            let tasks: Vec<(u32, Option<&str>)> =
                (0..).zip(&homes).map(|(i, home)| (i, home.map(|h| names[h]))).collect();
            let waves = cut(&tasks, &slots);
            if slots.total() == 0 {
                prop_assert!(waves.is_empty());
                return Ok(());
            }
            let mut all: Vec<u32> = waves.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..homes.len() as u32).collect::<Vec<_>>());
            let mut last: BTreeMap<Option<&str>, u32> = BTreeMap::new();
            for wave in &waves {
                prop_assert!(!wave.is_empty() && wave.len() as u64 <= slots.total());
                let mut count: BTreeMap<&str, u32> = BTreeMap::new();
                for task in wave {
                    let home = tasks[*task as usize].1.filter(|h| slots.by_node.contains_key(*h));
                    prop_assert!(last.get(&home).is_none_or(|l| l < task));
                    last.insert(home, *task);
                    if let Some(home) = home {
                        *count.entry(home).or_default() += 1;
                        prop_assert!(count[home] <= slots.by_node[home]);
                    }
                }
            }
        }
    }
}
