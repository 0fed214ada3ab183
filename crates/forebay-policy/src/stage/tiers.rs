//! Sizes of the members' tiers and their sum, which a heartbeat updates without examining all of
//! them.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::Rules;
use super::event::Node;
use super::nodes::{NodeNumber, Numbers};

/// The sizes of tiers, and the part of each that plans may use.
pub(super) struct Tiers {
    rules: Rules,
    /// Reported sizes of tiers.
    reported: BTreeMap<String, u64>,
    /// Plannable bytes of each present member.
    plannable: BTreeMap<String, u64>,
    /// Numbers of the nodes that jobs use, and the plannable bytes by number.
    pub numbers: Numbers,
    by_number: Vec<u64>,
    /// The sum of `plannable`. Members may report anything, so it may be more than 64 bits hold.
    sum_bytes: u128,
}

impl Tiers {
    /// Creates the tiers of `nodes`, some of which have `reported` their size already.
    pub fn new(rules: Rules, nodes: &[Node], reported: BTreeMap<String, u64>) -> Self {
        let (plannable, numbers, by_number) = (BTreeMap::new(), Numbers::default(), Vec::new());
        let mut tiers = Tiers { rules, reported, plannable, numbers, by_number, sum_bytes: 0 };
        tiers.set_members(nodes);
        tiers
    }

    /// Replaces the members, all of which are present.
    pub fn set_members(&mut self, nodes: &[Node]) {
        let reported = core::mem::take(&mut self.reported);
        (self.plannable, self.sum_bytes) = (BTreeMap::new(), 0);
        for node in nodes {
            let bytes = reported.get(&node.name).copied();
            if let Some(bytes) = bytes {
                self.reported.insert(node.name.clone(), bytes);
            }
            self.count(&node.name, bytes.unwrap_or(node.capacity_bytes));
        }
        self.by_number = self.numbers.table(|name, _| self.plannable_bytes(name));
    }

    /// Returns the name of a node as parts of waves keep it, and its number.
    pub fn number(&mut self, name: &str) -> (Arc<str>, NodeNumber) {
        let (name, number) = self.numbers.of(name);
        if number == self.by_number.len() {
            self.by_number.push(self.plannable_bytes(&name));
        }
        (name, number)
    }

    /// Forgets the numbers, since no job is left that uses nodes.
    pub fn forget_numbers(&mut self) {
        (self.numbers, self.by_number) = (Numbers::default(), Vec::new());
    }

    /// Records that a tier holds `bytes`.
    pub fn report(&mut self, node: &str, bytes: u64) {
        self.reported.insert(node.to_owned(), bytes);
        if self.plannable.contains_key(node) {
            self.count(node, bytes);
        }
    }

    /// Adds a node that has joined (again). `member` if it was one of the members before.
    pub fn came(&mut self, name: &str, member: Option<&Node>) {
        self.reported.remove(name);
        if let Some(member) = member {
            self.count(name, member.capacity_bytes);
        }
    }

    /// Removes a node.
    pub fn went(&mut self, name: &str) {
        self.reported.remove(name);
        self.sum_bytes -= u128::from(self.plannable.remove(name).unwrap_or(0));
        self.count_by_number(name, 0);
    }

    fn count(&mut self, name: &str, capacity_bytes: u64) {
        let bytes = self.rules.plannable_bytes(capacity_bytes);
        let before = self.plannable.insert(name.to_owned(), bytes).unwrap_or(0);
        self.sum_bytes = self.sum_bytes - u128::from(before) + u128::from(bytes);
        self.count_by_number(name, bytes);
    }

    fn count_by_number(&mut self, name: &str, bytes: u64) {
        if let Some(number) = self.numbers.get(name) {
            self.by_number[number] = bytes;
        }
    }

    /// Returns the bytes that the node may be requested to hold at a time; 0 if it has left.
    fn plannable_bytes(&self, name: &str) -> u64 {
        self.plannable.get(name).copied().unwrap_or(0)
    }

    /// Returns the same for a node that has a number.
    pub fn plannable_bytes_of(&self, node: NodeNumber) -> u64 {
        self.by_number[node]
    }

    /// Returns the bytes that all present members may be requested to hold.
    pub fn sum_bytes(&self) -> u64 {
        u64::try_from(self.sum_bytes).unwrap_or(u64::MAX)
    }

    /// Moves the reported sizes out, for a machine that continues with them.
    pub fn take_reported(&mut self) -> BTreeMap<String, u64> {
        core::mem::take(&mut self.reported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use proptest::prelude::*;

    fn node(number: u8, capacity_bytes: u64) -> Node {
        Node { name: format!("node{number}"), capacity_bytes, ..Node::default() }
    }

    #[test]
    fn sizes_that_no_machine_has_are_summed_without_overflow() {
        let nodes = [node(0, u64::MAX), node(1, u64::MAX)];
        let mut tiers =
            Tiers::new(Rules { plannable_per_10000: 10_000, ..Rules::default() }, &nodes, BTreeMap::new());
        assert_eq!(tiers.sum_bytes(), u64::MAX);
        tiers.went("node0");
        tiers.report("node1", 7);
        assert_eq!(tiers.sum_bytes(), 7);
    }

    proptest! {
        /// Whatever happens in whatever order, the sum is that of the present members, each with
        /// its last report since it came.
        #[test]
        fn the_sum_is_that_of_the_members_that_are_there(
            steps in prop::collection::vec((0..4_u8, 0..6_u8, 0..1_u64 << 40), 0..60),
        ) {
            let nodes: Vec<Node> = (0..4).map(|number| node(number, 1 << 30)).collect();
            let mut tiers = Tiers::new(Rules::default(), &nodes, BTreeMap::new());
            let mut model: BTreeMap<String, (bool, Option<u64>)> = BTreeMap::new();
            for (kind, number, bytes) in steps {
                let name = format!("node{number}");
                let of_name = model.entry(name.clone()).or_insert((true, None));
                match kind {
                    0 => { tiers.report(&name, bytes); of_name.1 = Some(bytes); }
                    1 => {
                        tiers.came(&name, nodes.iter().find(|n| n.name == name));
                        *of_name = (true, None);
                    }
                    2 => { tiers.went(&name); *of_name = (false, None); }
                    _ => {
                        tiers.set_members(&nodes);
                        let is_member = |name: &String| nodes.iter().any(|n| n.name == *name);
                        model.retain(|name, _| is_member(name));
                        model.values_mut().for_each(|(is_there, _)| *is_there = true);
                    }
                }
                let of = |n: &Node| {
                    let (is_there, reported) = model.get(&n.name).copied().unwrap_or((true, None));
                    let bytes = reported.unwrap_or(n.capacity_bytes);
                    if is_there { Rules::default().plannable_bytes(bytes) } else { 0 }
                };
                prop_assert_eq!(tiers.sum_bytes(), nodes.iter().map(of).sum::<u64>());
                for n in &nodes {
                    prop_assert_eq!(tiers.plannable_bytes(&n.name), of(n));
                    let (_, number) = tiers.number(&n.name);
                    prop_assert_eq!(tiers.plannable_bytes_of(number), of(n));
                }
            }
        }
    }
}
