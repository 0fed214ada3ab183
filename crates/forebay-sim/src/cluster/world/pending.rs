//! Tasks of a job that have not started, and which of them a slot takes first: the one with the
//! lowest number, of all tasks or of those whose preferred node is a given one.

use std::collections::{BTreeMap, BTreeSet};

/// Tasks that have not started. The two maps have the same tasks, so that none has to be searched.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// The preferred node of each.
    preferred_nodes: BTreeMap<u32, Option<usize>>,
    /// The tasks of each preferred node, and the tasks without one.
    of: BTreeMap<Option<usize>, BTreeSet<u32>>,
}

impl Pending {
    /// All tasks, with their preferred nodes.
    pub fn new(preferred_nodes: Vec<Option<usize>>) -> Self {
        let preferred_nodes: BTreeMap<u32, Option<usize>> = (0..).zip(preferred_nodes).collect();
        let mut of: BTreeMap<Option<usize>, BTreeSet<u32>> = BTreeMap::new();
        preferred_nodes.iter().for_each(|(task, preferred_node)| {
            of.entry(*preferred_node).or_default().insert(*task);
        });
        Pending { preferred_nodes, of }
    }

    /// The first of all tasks.
    pub fn first(&self) -> Option<u32> {
        self.preferred_nodes.keys().next().copied()
    }

    /// The first of the tasks with this preferred node, or without one.
    pub fn first_of(&self, preferred_node: Option<usize>) -> Option<u32> {
        self.of.get(&preferred_node)?.first().copied()
    }

    /// Adds a task again that had started and is to run again.
    pub fn restart(&mut self, task: u32, preferred_node: Option<usize>) {
        self.preferred_nodes.insert(task, preferred_node);
        self.of.entry(preferred_node).or_default().insert(task);
    }

    /// Removes a task that starts. Returns its preferred node.
    pub fn start(&mut self, task: u32) -> Option<usize> {
        let preferred_node = self.preferred_nodes.remove(&task)?;
        if let Some(tasks) = self.of.get_mut(&preferred_node) {
            tasks.remove(&task);
        }
        preferred_node
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// As a search through all tasks in their order finds them, whatever has started before.
        #[test]
        fn the_first_is_what_a_search_finds(
            preferred_nodes in prop::collection::vec(prop::option::of(0usize..4), 0..40),
            starts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        ) {
            let mut all: BTreeMap<u32, Option<usize>> = (0..).zip(preferred_nodes.iter().copied()).collect();
            let mut pending = Pending::new(preferred_nodes);
            for next in starts {
                let search = |which: &dyn Fn(Option<usize>) -> bool| {
                    all.iter().find(|(_, preferred_node)| which(**preferred_node)).map(|(task, _)| *task)
                };
                prop_assert_eq!(pending.first(), search(&|_| true));
                for preferred_node in [None, Some(0), Some(1), Some(2), Some(3), Some(4)] {
                    prop_assert_eq!(pending.first_of(preferred_node), search(&|h| h == preferred_node), "{:?}", preferred_node);
                }
                let Some(task) = (!all.is_empty()).then(|| *next.get(&all.keys().copied().collect::<Vec<_>>()))
                else { break };
                prop_assert_eq!(pending.start(task), all.remove(&task).flatten());
                prop_assert_eq!(pending.start(task), None);
            }
        }
    }
}
