//! Numbers of nodes: what is looked up for every waiting chunk is indexed by number, not by name.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

/// Names a node within one machine, while that has jobs.
pub type NodeNumber = usize;

/// Numbers by name.
#[derive(Debug, Default)]
pub struct Numbers(BTreeMap<Arc<str>, NodeNumber>);

impl Numbers {
    /// Returns the name as parts of waves keep it, and its number.
    pub fn of(&mut self, name: &str) -> (Arc<str>, NodeNumber) {
        if let Some((name, number)) = self.0.get_key_value(name) {
            return (name.clone(), *number);
        }
        let (name, number): (Arc<str>, _) = (name.into(), self.0.len());
        self.0.insert(name.clone(), number);
        (name, number)
    }

    /// Returns the number of a node that has one.
    pub fn get(&self, name: &str) -> Option<NodeNumber> {
        self.0.get(name).copied()
    }

    /// Returns `of` each node, in the order of their numbers.
    pub fn table<T: Clone + Default>(&self, of: impl Fn(&str, NodeNumber) -> T) -> alloc::vec::Vec<T> {
        let mut table = alloc::vec![T::default(); self.0.len()];
        self.0.iter().for_each(|(name, number)| table[*number] = of(name, *number));
        table
    }
}
