//! The shelf every eviction policy keeps its entries on: a slab of nodes, linked lists through it,
//! and an index.
//!
//! A policy moves entries between a handful of lists and looks them up by key, a million times per
//! second and with a million entries. Nodes are therefore in one vector and are linked by 32-bit
//! slots: no allocation per entry, half the size of pointers, and an entry knows its place so that
//! every move is O(1).
//!
//! The index maps keys to slots. A `BTreeMap` needs some 20 dependent cache misses at 10^6 entries;
//! a hash table needs two. This one is `hashbrown::HashTable` over bare slots (5 bytes per bucket):
//! it has no hasher of its own, we pass the hash of [`spread`], a fixed bijection, so a run is the
//! same on every machine. Nothing ever iterates over the table, so hash order cannot leak into a
//! decision. The agent makes the keys from file slots and page numbers, users do not, so the risk
//! of crafted collisions is not worth the price of a keyed hash.

use alloc::vec::Vec;
use hashbrown::HashTable;

/// A page that has left the policy, for the agent to punch out of the tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The page.
    pub key: u64,
    /// Its size as given to `insert`.
    pub bytes: u32,
}

/// No slot: the end of a list.
pub(crate) const NIL: u32 = u32::MAX;

/// Spreads the bits of a key over the whole word: the finaliser of SplitMix64 (Steele, Lea, Flood,
/// OOPSLA 2014).
#[inline]
pub(crate) fn spread(key: u64) -> u64 {
    let mut hash = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// One entry: 24 bytes plus the policy's data.
#[derive(Clone, Debug)]
pub(crate) struct Node<T> {
    pub key: u64,
    pub bytes: u32,
    prev: u32,
    next: u32,
    pub data: T,
}

/// Entries by slot and by key.
#[derive(Clone, Debug)]
pub(crate) struct Arena<T> {
    nodes: Vec<Node<T>>,
    free: Vec<u32>,
    index: HashTable<u32>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), index: HashTable::new() }
    }
}

impl<T> Arena<T> {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// The slot of `key`.
    #[inline]
    pub fn find(&self, key: u64) -> Option<u32> {
        self.index.find(spread(key), |&slot| self.nodes[slot as usize].key == key).copied()
    }

    /// Adds an entry that is in no list yet. The key must be new.
    pub fn add(&mut self, key: u64, bytes: u32, data: T) -> u32 {
        debug_assert!(self.find(key).is_none(), "key {key:#x} is in the arena already");
        let node = Node { key, bytes, prev: NIL, next: NIL, data };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.nodes[slot as usize] = node;
                slot
            }
            None => {
                assert!(self.nodes.len() < NIL as usize, "an eviction policy holds at most 2^32 - 1 entries");
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        let nodes = &self.nodes;
        self.index.insert_unique(spread(key), slot, |&other| spread(nodes[other as usize].key));
        slot
    }

    /// Forgets an entry, which must have been unlinked from its list, and returns its size.
    pub fn discard(&mut self, slot: u32) -> u32 {
        let (key, bytes) = (self.nodes[slot as usize].key, self.nodes[slot as usize].bytes);
        let found = self.index.find_entry(spread(key), |&other| other == slot);
        found.expect("every slot in use is indexed").remove();
        self.free.push(slot);
        bytes
    }

    /// The entry in `slot`.
    #[inline]
    pub fn at(&self, slot: u32) -> &Node<T> {
        &self.nodes[slot as usize]
    }

    /// The entry in `slot`.
    #[inline]
    pub fn at_mut(&mut self, slot: u32) -> &mut Node<T> {
        &mut self.nodes[slot as usize]
    }
}

/// A doubly linked list through the nodes of one arena. The front is the end that leaves first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    len: u32,
    bytes: u64,
}

impl Default for List {
    fn default() -> Self {
        Self { head: NIL, tail: NIL, len: 0, bytes: 0 }
    }
}

impl List {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether nothing is in the list.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sum of the entries' bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The entry that leaves first.
    pub fn front(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    /// The entry behind `slot`, towards the back.
    pub fn after<T>(&self, arena: &Arena<T>, slot: u32) -> Option<u32> {
        let next = arena.at(slot).next;
        (next != NIL).then_some(next)
    }

    /// Appends an unlinked entry.
    #[inline]
    pub fn push_back<T>(&mut self, arena: &mut Arena<T>, slot: u32) {
        let tail = self.tail;
        let node = arena.at_mut(slot);
        (node.prev, node.next) = (tail, NIL);
        self.bytes += u64::from(node.bytes);
        match tail {
            NIL => self.head = slot,
            tail => arena.at_mut(tail).next = slot,
        }
        self.tail = slot;
        self.len += 1;
    }

    /// Puts an unlinked entry first.
    #[inline]
    pub fn push_front<T>(&mut self, arena: &mut Arena<T>, slot: u32) {
        let head = self.head;
        let node = arena.at_mut(slot);
        (node.prev, node.next) = (NIL, head);
        self.bytes += u64::from(node.bytes);
        match head {
            NIL => self.tail = slot,
            head => arena.at_mut(head).prev = slot,
        }
        self.head = slot;
        self.len += 1;
    }

    /// Takes an entry out of this list, in which it must be.
    #[inline]
    pub fn unlink<T>(&mut self, arena: &mut Arena<T>, slot: u32) {
        let node = arena.at(slot);
        let (prev, next, bytes) = (node.prev, node.next, node.bytes);
        match prev {
            NIL => self.head = next,
            prev => arena.at_mut(prev).next = next,
        }
        match next {
            NIL => self.tail = prev,
            next => arena.at_mut(next).prev = prev,
        }
        self.bytes -= u64::from(bytes);
        self.len -= 1;
    }

    /// Makes an entry of this list its last.
    #[inline]
    pub fn move_to_back<T>(&mut self, arena: &mut Arena<T>, slot: u32) {
        if self.tail != slot {
            self.unlink(arena, slot);
            self.push_back(arena, slot);
        }
    }

    /// Changes the size of an entry of this list.
    pub fn resize<T>(&mut self, arena: &mut Arena<T>, slot: u32, bytes: u32) {
        let node = arena.at_mut(slot);
        self.bytes = self.bytes - u64::from(node.bytes) + u64::from(bytes);
        node.bytes = bytes;
    }

    /// Evicts from the front until `want_bytes` are covered; entries that are refused go to the
    /// back, and each entry is examined at most once. Returns the bytes evicted.
    pub fn evict_front<T>(
        &mut self,
        arena: &mut Arena<T>,
        want_bytes: u64,
        may_evict: &mut dyn FnMut(u64) -> bool,
        victims: &mut Vec<Victim>,
    ) -> u64 {
        let mut freed_bytes = 0;
        for _ in 0..self.len() {
            let Some(slot) = self.front().filter(|_| freed_bytes < want_bytes) else { break };
            let key = arena.at(slot).key;
            if may_evict(key) {
                self.unlink(arena, slot);
                let bytes = arena.discard(slot);
                freed_bytes += u64::from(bytes);
                victims.push(Victim { key, bytes });
            } else {
                self.move_to_back(arena, slot);
            }
        }
        freed_bytes
    }

    /// Appends the whole of `other`, in its order, in O(1).
    pub fn append<T>(&mut self, arena: &mut Arena<T>, other: List) {
        if other.is_empty() {
            return;
        }
        match self.tail {
            NIL => self.head = other.head,
            tail => {
                arena.at_mut(tail).next = other.head;
                arena.at_mut(other.head).prev = tail;
            }
        }
        self.tail = other.tail;
        self.len += other.len;
        self.bytes += other.bytes;
    }

    /// The keys from front to back.
    pub fn keys<T>(&self, arena: &Arena<T>) -> Vec<u64> {
        let mut keys = Vec::with_capacity(self.len());
        let mut next = self.front();
        while let Some(slot) = next {
            keys.push(arena.at(slot).key);
            next = self.after(arena, slot);
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_keep_order_bytes_and_slots() {
        let mut arena = Arena::<()>::default();
        let mut list = List::default();
        for key in 0..4 {
            let slot = arena.add(key, 10, ());
            list.push_back(&mut arena, slot);
        }
        let one = arena.find(1).unwrap();
        list.move_to_back(&mut arena, one);
        assert_eq!(list.keys(&arena), [0, 2, 3, 1]);
        let two = arena.find(2).unwrap();
        list.unlink(&mut arena, two);
        arena.discard(two);
        assert_eq!((list.len(), list.bytes(), arena.len(), arena.find(2)), (3, 30, 3, None));
        assert_eq!(arena.add(9, 1, ()), two, "a freed slot is used again");
    }

    #[test]
    fn append_joins_in_order() {
        let mut arena = Arena::<()>::default();
        let mut lists = [List::default(), List::default()];
        for key in 0..4u64 {
            let slot = arena.add(key, 1, ());
            lists[(key % 2) as usize].push_back(&mut arena, slot);
        }
        let [mut even, odd] = lists;
        even.append(&mut arena, odd);
        assert_eq!((even.keys(&arena), even.bytes()), (alloc::vec![0, 2, 1, 3], 4));
    }
}
