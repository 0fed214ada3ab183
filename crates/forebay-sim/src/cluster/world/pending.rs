//! Tasks of a job that have not started, and which of them a slot takes first: the one with the
//! lowest number, of all tasks or of those whose preferred node is a given one.

use std::collections::{BTreeMap, BTreeSet};

/// Tasks that have not started. The two maps have the same tasks, so that none has to be searched.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// The preferred node of each.
    homes: BTreeMap<u32, Option<usize>>,
    /// Those of each preferred node, and those without one.
    of: BTreeMap<Option<usize>, BTreeSet<u32>>,
}

impl Pending {
    /// All tasks, with their preferred nodes.
    pub fn new(homes: Vec<Option<usize>>) -> Self {
        let homes: BTreeMap<u32, Option<usize>> = (0..).zip(homes).collect();
        let mut of: BTreeMap<Option<usize>, BTreeSet<u32>> = BTreeMap::new();
        homes.iter().for_each(|(task, home)| {
            of.entry(*home).or_default().insert(*task);
        });
        Pending { homes, of }
    }

    /// The first of all.
    pub fn first(&self) -> Option<u32> {
        self.homes.keys().next().copied()
    }

    /// The first of those with this preferred node, or without one.
    pub fn first_of(&self, home: Option<usize>) -> Option<u32> {
        self.of.get(&home)?.first().copied()
    }

    /// A task that had started is to run again.
    pub fn restart(&mut self, task: u32, home: Option<usize>) {
        self.homes.insert(task, home);
        self.of.entry(home).or_default().insert(task);
    }

    /// A task starts. Returns its preferred node.
    pub fn start(&mut self, task: u32) -> Option<usize> {
        let home = self.homes.remove(&task)?;
        if let Some(tasks) = self.of.get_mut(&home) {
            tasks.remove(&task);
        }
        home
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
            homes in prop::collection::vec(prop::option::of(0usize..4), 0..40),
            starts in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        ) {
            let mut all: BTreeMap<u32, Option<usize>> = (0..).zip(homes.iter().copied()).collect();
            let mut pending = Pending::new(homes);
            for next in starts {
                let search = |which: &dyn Fn(Option<usize>) -> bool| {
                    all.iter().find(|(_, home)| which(**home)).map(|(task, _)| *task)
                };
                prop_assert_eq!(pending.first(), search(&|_| true));
                for home in [None, Some(0), Some(1), Some(2), Some(3), Some(4)] {
                    prop_assert_eq!(pending.first_of(home), search(&|h| h == home), "{:?}", home);
                }
                let Some(task) = (!all.is_empty()).then(|| *next.get(&all.keys().copied().collect::<Vec<_>>()))
                else { break };
                prop_assert_eq!(pending.start(task), all.remove(&task).flatten());
                prop_assert_eq!(pending.start(task), None);
            }
        }
    }
}
