//! Partitions the tasks of a stage into waves: the tasks that all slots run at the same time.
//!
//! A scheduler that knows where the input of a task is runs the task there if it can. So a node
//! with `s` slots first runs the first `s` of the tasks whose input it keeps, then the next `s`.
//! Wave `k` contains the `k`-th such batch of every node, in task order. Tasks whose input is on
//! nodes without slots (dedicated nodes, or no node) run anywhere: they take the slots that other
//! tasks leave free.
//!
//! The job knows best where its scheduler will send a task, so a split may name its preferred node.
//! That node then fetches the part that the node with most of the split would have fetched, and
//! waves are as even as the preferred nodes are. Owners are drawn by a hash and are less even.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use super::event::{File, Node, Part, Split};
use crate::placement::{Member, extent_key, node_number, owner};

/// Limit on the planned parts of one split; the task reads the rest without a plan. A file of 8 TiB
/// has this many extents of 128 MiB. No job gives one task more, but a reported size may be any
/// number.
const PIECES_MAX: usize = 1 << 16;

/// Limit on the members examined for one split, summed over extents: about 200 ms, during which
/// heartbeats wait.
pub const SPLIT_WORK_MAX: u64 = 1 << 22;

/// The bytes that one node has to fetch for one task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Parts of files, in the order of reading; none reaches over the end of an extent.
    pub parts: Vec<Part>,
    /// Their bytes.
    pub bytes: u64,
}

/// The input of a task, by the node that fetches it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// Needs by name of the node.
    pub needs: BTreeMap<String, Need>,
    /// Where the task is expected: its reported preferred node, or the node that owns most of it;
    /// of several, the first by name.
    pub preferred_node: Option<String>,
}

impl Placed {
    /// Returns the number of parts of files in it.
    pub fn parts(&self) -> usize {
        self.needs.values().map(|need| need.parts.len()).sum()
    }
}

/// Finds the nodes that fetch the input of tasks; remembers the members of each mount.
#[derive(Debug)]
pub struct Owners<'a> {
    view: &'a [Node],
    slots: &'a Slots,
    by_mount: BTreeMap<&'a str, Serving<'a>>,
    work: u64,
}

#[derive(Debug)]
struct Serving<'a> {
    names: Vec<&'a str>,
    members: Vec<Member>,
    extent_bytes: u64,
}

impl<'a> Owners<'a> {
    /// Creates the search in this view, for a job with these slots.
    pub fn new(view: &'a [Node], slots: &'a Slots) -> Self {
        Owners { view, slots, by_mount: BTreeMap::new(), work: 0 }
    }

    /// Returns the work up to now: members examined, summed over extents.
    pub fn work(&self) -> u64 {
        self.work
    }

    /// Returns the bytes that each node has to fetch for `split`. Each owner fetches its part,
    /// except that the preferred node fetches the largest part, if the job has reported one that
    /// keeps these extents and has slots. Parts of unknown files and of mounts without members are
    /// omitted; tasks read them from the PFS.
    pub fn place(&mut self, files: &'a [File], split: &Split) -> Placed {
        let pieces = self.pieces(files, split);
        let mut owned_bytes: BTreeMap<&str, u64> = BTreeMap::new();
        for (owner, part) in &pieces {
            *owned_bytes.entry(owner).or_default() += part.len;
        }
        // The first of the greatest, so that all that compute this agree.
        let most = owned_bytes.into_iter().rev().max_by_key(|(_, bytes)| *bytes).map(|(owner, _)| owner);
        let Some(most) = most else { return Placed::default() };
        let its = pieces.iter().filter(|(owner, _)| *owner == most);
        let preferred_node =
            self.reported_node(files, split, most, its.map(|(_, part)| part)).unwrap_or(most);
        let mut needs: BTreeMap<String, Need> = BTreeMap::new();
        for (owner, part) in pieces {
            let at = if owner == most { preferred_node } else { owner };
            let need = needs.entry(at.to_owned()).or_default();
            need.bytes += part.len;
            need.parts.push(part);
        }
        Placed { needs, preferred_node: Some(preferred_node.to_owned()) }
    }

    /// Returns the node that the job prefers for `split`, if it can take what the node `most` owns
    /// of it.
    fn reported_node<'b>(
        &mut self,
        files: &'a [File],
        split: &Split,
        most: &'a str,
        mut its: impl Iterator<Item = &'b Part>,
    ) -> Option<&'a str> {
        if split.preferred_node.is_empty() {
            return None;
        }
        self.work += self.view.len() as u64;
        let on_host = |n: &&Node| n.host == split.preferred_node;
        let with_slots = |n: &&Node| self.slots.by_node.contains_key(&n.name);
        let mut there = self.view.iter().filter(on_host).filter(with_slots).map(|n| n.name.as_str());
        // Of several nodes on one host, the owner stays what it is.
        let reported = there.clone().find(|name| *name == most).or_else(|| there.next())?;
        its.all(|part| {
            let serving = files.get(part.file as usize).and_then(|file| self.serving(&file.mount));
            serving.is_some_and(|serving| serving.names.contains(&reported))
        })
        .then_some(reported)
    }

    /// Returns the parts of `split`, none over the end of an extent, each with the name of its
    /// owner.
    fn pieces(&mut self, files: &'a [File], split: &Split) -> Vec<(&'a str, Part)> {
        let mut pieces = Vec::new();
        // Even a split without parts counts.
        let mut work = 1;
        for part in &split.parts {
            let Some(file) = files.get(part.file as usize) else { continue };
            let Some(serving) = self.serving(&file.mount) else { continue };
            let end = part.offset.saturating_add(part.len).min(file.bytes);
            let mut at = part.offset;
            while at < end && pieces.len() < PIECES_MAX && work < SPLIT_WORK_MAX {
                let extent = at / serving.extent_bytes;
                work += serving.members.len() as u64;
                let next = (extent + 1).saturating_mul(serving.extent_bytes).min(end);
                let number = owner(extent_key(&file.mount, file.ino, extent), &serving.members);
                if let Some(i) = serving.members.iter().position(|m| Some(m.node) == number) {
                    pieces.push((serving.names[i], Part { file: part.file, offset: at, len: next - at }));
                }
                at = next;
            }
        }
        self.work += work;
        pieces
    }

    fn serving(&mut self, mount: &'a str) -> Option<&Serving<'a>> {
        let view = self.view;
        let serving = self.by_mount.entry(mount).or_insert_with(|| {
            let nodes: Vec<&Node> = view.iter().filter(|n| n.keeps.contains_key(mount)).collect();
            let extents = nodes.iter().filter_map(|n| n.keeps.get(mount).copied());
            Serving {
                extent_bytes: extents.min().unwrap_or(0),
                names: nodes.iter().map(|n| n.name.as_str()).collect(),
                members: nodes
                    .iter()
                    .map(|n| Member { node: node_number(&n.name), weight: n.capacity_bytes as f64 })
                    .collect(),
            }
        });
        (serving.extent_bytes > 0).then_some(serving)
    }
}

/// Slots by node, and the slots on hosts that are not members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    /// Slots by name of the node; none is 0.
    pub by_node: BTreeMap<String, u32>,
    /// Slots on other hosts.
    pub elsewhere: u32,
}

impl Slots {
    /// Converts a job's report, host by host.
    pub fn new(reported: &[(String, u32)], view: &[Node]) -> Self {
        let mut slots = Slots::default();
        for (host, count) in reported.iter().filter(|(_, count)| *count > 0) {
            match view.iter().find(|n| n.host == *host) {
                Some(node) => {
                    let sum = slots.by_node.entry(node.name.clone()).or_default();
                    *sum = sum.saturating_add(*count);
                }
                None => slots.elsewhere = slots.elsewhere.saturating_add(*count),
            }
        }
        slots
    }

    /// Returns the number of all slots.
    pub fn total(&self) -> u64 {
        self.by_node.values().map(|s| u64::from(*s)).sum::<u64>() + u64::from(self.elsewhere)
    }
}

/// Partitions tasks, given in order with their preferred nodes, into waves of task numbers. Without
/// slots there are no waves.
pub fn cut(tasks: &[(u32, Option<&str>)], slots: &Slots) -> Vec<Vec<u32>> {
    let total = slots.total();
    if total == 0 {
        return Vec::new();
    }
    let mut on_node: BTreeMap<&str, u32> = BTreeMap::new();
    let mut used: Vec<u64> = Vec::new();
    let mut waves: Vec<Vec<u32>> = Vec::new();
    let mut anywhere = Vec::new();
    for &(task, preferred_node) in tasks {
        let Some((preferred_node, size)) = preferred_node.and_then(|h| Some((h, *slots.by_node.get(h)?)))
        else {
            anywhere.push(task);
            continue;
        };
        let before = on_node.entry(preferred_node).or_default();
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
    use proptest::prelude::*;

    fn view(names: &[&str]) -> Vec<Node> {
        let node = |name: &&str| Node {
            name: (*name).into(),
            host: format!("{name}.host"),
            capacity_bytes: 1 << 30,
            keeps: [("pfs".into(), 1 << 20)].into(),
        };
        names.iter().map(node).collect()
    }

    fn slots(names: &[&str]) -> Slots {
        Slots { by_node: names.iter().map(|n| ((*n).to_owned(), 1)).collect(), elsewhere: 0 }
    }

    fn file(bytes: u64) -> File {
        File { mount: "pfs".into(), ino: 7, bytes }
    }

    #[test]
    fn every_byte_of_a_split_is_needed_at_one_node() {
        let (view, files) = (view(&["a", "b"]), [file(10 << 20)]);
        let part = Part { file: 0, offset: 1 << 19, len: 20 << 20 };
        let unknown = Part { file: 9, offset: 0, len: 1 };
        let slots = slots(&["a", "b"]);
        let split = |preferred_node: &str| Split {
            parts: vec![part, unknown],
            preferred_node: preferred_node.into(),
        };
        let placed = Owners::new(&view, &slots).place(&files, &split(""));
        let bytes: u64 = placed.needs.values().map(|n| n.bytes).sum();
        assert_eq!(bytes, (10 << 20) - (1 << 19), "the file's end bounds the split");
        let mut parts: Vec<Part> = placed.needs.values().flat_map(|n| n.parts.clone()).collect();
        parts.sort_by_key(|p| p.offset);
        assert!(parts.windows(2).all(|w| w[0].offset + w[0].len == w[1].offset));
        let most = placed.needs.iter().map(|(name, n)| (n.bytes, name)).max().unwrap().0;
        assert_eq!(placed.needs[&placed.preferred_node.unwrap()].bytes, most);
        assert_eq!(Owners::new(&[], &slots).place(&files, &split("")).preferred_node, None);
    }

    #[test]
    fn a_size_that_no_file_has_is_planned_up_to_a_bound() {
        let (view, files) = (view(&["a", "b"]), [file(u64::MAX)]);
        let slots = slots(&["a"]);
        let part = Part { file: 0, offset: 0, len: u64::MAX };
        let split = Split { parts: vec![part; 3], preferred_node: String::new() };
        assert_eq!(Owners::new(&view, &slots).place(&files, &split).parts(), PIECES_MAX);
    }

    #[test]
    fn all_of_a_split_is_planned_up_to_the_bound_of_work() {
        let nodes = SPLIT_WORK_MAX.isqrt();
        let names: Vec<String> = (0..=nodes).map(|node| node.to_string()).collect();
        let planned_bytes = |nodes: u64| {
            let names: Vec<&str> = names[..nodes as usize].iter().map(String::as_str).collect();
            let (view, files) = (view(&names), [file(nodes << 20)]);
            let part = Part { file: 0, offset: 0, len: nodes << 20 };
            let split = Split { parts: vec![part], preferred_node: String::new() };
            let placed = Owners::new(&view, &slots(&["0"])).place(&files, &split);
            placed.needs.values().map(|need| need.bytes).sum::<u64>()
        };
        assert_eq!(planned_bytes(nodes), nodes << 20);
        assert!(planned_bytes(nodes + 1) < (nodes + 1) << 20);
    }

    #[test]
    fn input_that_one_node_mostly_owns_is_fetched_to_the_preferred_node() {
        let (mut view, files) = (view(&["a", "b", "c"]), [file(64 << 20)]);
        let (all, two) = (slots(&["a", "b", "c"]), slots(&["a", "b"]));
        let part = |extent: u64, extents: u64| Part { file: 0, offset: extent << 20, len: extents << 20 };
        let split = |part, preferred_node: &str| Split {
            parts: vec![part],
            preferred_node: format!("{preferred_node}.host"),
        };
        let place =
            |view: &[Node], slots: &Slots, split: &Split| Owners::new(view, slots).place(&files, split);
        for extent in 0..64 {
            let one = part(extent, 1);
            let owner = place(&view, &all, &split(one, "nobody")).preferred_node.unwrap();
            for reported in ["a", "b", "c"] {
                let placed = place(&view, &all, &split(one, reported));
                assert_eq!(placed.preferred_node.as_deref(), Some(reported));
                assert_eq!(
                    placed.needs,
                    [(reported.to_owned(), Need { parts: vec![one], bytes: 1 << 20 })].into()
                );
            }
            // The preferred node has no slots, so no task will come for it.
            assert_eq!(place(&view, &two, &split(one, "c")).preferred_node, Some(owner));
        }
        // The rest of a longer one stays where it is, and the parts of each are in order.
        let long = part(0, 32);
        let before = place(&view, &all, &split(long, "nobody"));
        let most = before.preferred_node.clone().unwrap();
        let other = ["a", "b", "c"].into_iter().find(|n| *n != most).unwrap();
        let moved = place(&view, &all, &split(long, other));
        assert_eq!(moved.needs[other].bytes, before.needs[other].bytes + before.needs[&most].bytes);
        assert!(!moved.needs.contains_key(&most) && moved.needs.len() == 2);
        assert!(moved.needs.values().all(|n| n.parts.windows(2).all(|w| w[0].offset < w[1].offset)));
        // A preferred node that does not serve the mount is ignored.
        view[2].keeps = [("other".into(), 1 << 20)].into();
        let owner = place(&view, &all, &split(part(3, 1), "nobody")).preferred_node;
        assert_eq!(place(&view, &all, &split(part(3, 1), "c")).preferred_node, owner);
    }

    #[test]
    fn slots_are_those_of_nodes_by_their_hosts() {
        let reported =
            [("a.host".into(), 2), ("b.host".into(), 0), ("a.host".into(), 1), ("other".into(), 4)];
        let slots = Slots::new(&reported, &view(&["a", "b"]));
        assert_eq!((slots.by_node.clone(), slots.elsewhere), ([("a".to_owned(), 3)].into(), 4));
        assert_eq!(slots.total(), 7);
    }

    #[test]
    fn tasks_without_a_preferred_node_take_a_free_slot() {
        let slots = Slots { by_node: [("a".into(), 2)].into(), elsewhere: 1 };
        let tasks = [(0, Some("a")), (1, None), (2, Some("a")), (3, Some("a")), (4, Some("gone")), (5, None)];
        assert_eq!(cut(&tasks, &slots), [vec![0, 1, 2], vec![3, 4, 5]]);
        assert!(cut(&tasks, &Slots::default()).is_empty());
    }

    proptest! {
        /// Every task is in exactly one wave, the order of a node's tasks is kept, and no wave has
        /// more of a node's tasks than the node has slots, nor more tasks than there are slots.
        #[test]
        fn waves_hold_every_task_once_in_order_and_within_the_slots(
            preferred_nodes in prop::collection::vec(prop::option::of(0usize..5), 0..300),
            sizes in prop::collection::vec(0u32..9, 5), elsewhere in 0u32..4
        ) {
            let names = ["a", "b", "c", "d", "e"];
            let by_node = names.iter().zip(&sizes).filter(|(_, s)| **s > 0).map(|(n, s)| ((*n).to_owned(), *s));
            let slots = Slots { by_node: by_node.collect(), elsewhere };
            let tasks: Vec<(u32, Option<&str>)> =
                (0..).zip(&preferred_nodes).map(|(i, preferred_node)| (i, preferred_node.map(|h| names[h]))).collect();
            let waves = cut(&tasks, &slots);
            if slots.total() == 0 {
                prop_assert!(waves.is_empty());
                return Ok(());
            }
            let mut all: Vec<u32> = waves.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..preferred_nodes.len() as u32).collect::<Vec<_>>());
            let mut last: BTreeMap<Option<&str>, u32> = BTreeMap::new();
            for wave in &waves {
                prop_assert!(!wave.is_empty() && wave.len() as u64 <= slots.total());
                let mut count: BTreeMap<&str, u32> = BTreeMap::new();
                for task in wave {
                    let preferred_node = tasks[*task as usize].1.filter(|h| slots.by_node.contains_key(*h));
                    prop_assert!(last.get(&preferred_node).is_none_or(|l| l < task));
                    last.insert(preferred_node, *task);
                    if let Some(preferred_node) = preferred_node {
                        *count.entry(preferred_node).or_default() += 1;
                        prop_assert!(count[preferred_node] <= slots.by_node[preferred_node]);
                    }
                }
            }
        }
    }
}
