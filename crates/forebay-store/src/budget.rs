//! One budget for every byte: cached pages, their maps, buffers, rings and metadata.
//!
//! The long history of out-of-memory kills in systems of this kind has one cause: several pools,
//! none of them counted against one limit. Here nothing is allocated before it is reserved, and a
//! reservation can be refused.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What bytes are used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Class {
    /// Cached pages.
    Pages,
    /// Residency maps, headers and the agent's own record of each copy.
    Metadata,
    /// Buffers between the PFS and the tier.
    Buffers,
    /// Memory shared with clients: rings and staging buffers; and what a connection costs.
    Clients,
    /// Memory-only files.
    Scratch,
    /// Files that the PFS does not have yet.
    Dirty,
}

/// All classes with their names, in order.
pub const CLASSES: [(Class, &str); 6] = [
    (Class::Pages, "pages"),
    (Class::Metadata, "metadata"),
    (Class::Buffers, "buffers"),
    (Class::Clients, "clients"),
    (Class::Scratch, "scratch"),
    (Class::Dirty, "dirty"),
];

#[derive(Debug)]
struct Inner {
    /// `used` and `capacity` change together, so that a reservation never sees half a resize.
    limits: Mutex<Limits>,
    by_class: [AtomicU64; CLASSES.len()],
}

#[derive(Debug)]
struct Limits {
    used_bytes: u64,
    capacity_bytes: u64,
    /// The capacity that the operator has set; the other may be smaller for a while.
    most_bytes: u64,
}

/// The budget; clones share it.
#[derive(Clone, Debug)]
pub struct Budget {
    inner: Arc<Inner>,
}

/// Bytes held; dropping it gives them back.
#[derive(Debug)]
pub struct Reservation {
    budget: Budget,
    class: Class,
    bytes: u64,
}

/// A reservation was refused: `missing_bytes` more are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverBudget {
    /// Bytes over the capacity.
    pub missing_bytes: u64,
}

impl Budget {
    /// A budget of `capacity_bytes`, all of it free.
    pub fn new(capacity_bytes: u64) -> Self {
        let limits = Mutex::new(Limits { used_bytes: 0, capacity_bytes, most_bytes: capacity_bytes });
        Budget { inner: Arc::new(Inner { limits, by_class: Default::default() }) }
    }

    fn limits(&self) -> std::sync::MutexGuard<'_, Limits> {
        self.inner.limits.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Holds `bytes` if they fit.
    ///
    /// # Errors
    /// They do not; nothing is held.
    pub fn reserve(&self, class: Class, bytes: u64) -> Result<Reservation, OverBudget> {
        let mut limits = self.limits();
        let wanted = limits.used_bytes.saturating_add(bytes);
        if wanted > limits.capacity_bytes {
            return Err(OverBudget { missing_bytes: wanted - limits.capacity_bytes });
        }
        limits.used_bytes = wanted;
        drop(limits);
        self.inner.by_class[class as usize].fetch_add(bytes, Ordering::Relaxed);
        Ok(Reservation { budget: self.clone(), class, bytes })
    }

    /// Holds `bytes` whether they fit or not: for what is already in use, such as the copies an
    /// agent adopts. Until enough is released, [`Budget::excess_bytes`] is above 0 and every other
    /// reservation is refused.
    pub fn reserve_existing(&self, class: Class, bytes: u64) -> Reservation {
        self.limits().used_bytes += bytes;
        self.inner.by_class[class as usize].fetch_add(bytes, Ordering::Relaxed);
        Reservation { budget: self.clone(), class, bytes }
    }

    /// Bytes held.
    pub fn used_bytes(&self) -> u64 {
        self.limits().used_bytes
    }

    /// Bytes held by one class.
    pub fn class_bytes(&self, class: Class) -> u64 {
        self.inner.by_class[class as usize].load(Ordering::Relaxed)
    }

    /// Bytes there are in all.
    pub fn capacity_bytes(&self) -> u64 {
        self.limits().capacity_bytes
    }

    /// Bytes that the operator allows; there may be fewer for a while.
    pub fn most_bytes(&self) -> u64 {
        self.limits().most_bytes
    }

    /// Changes the capacity immediately; what is held above it has to be released by the holder.
    pub fn set_capacity_bytes(&self, bytes: u64) {
        let mut limits = self.limits();
        (limits.capacity_bytes, limits.most_bytes) = (bytes, bytes);
    }

    /// Changes the capacity for a while, unless the operator has set another one than `most_bytes`
    /// meanwhile; returns whether it did.
    pub fn give_way(&self, most_bytes: u64, bytes: u64) -> bool {
        let mut limits = self.limits();
        let is_current = limits.most_bytes == most_bytes;
        if is_current {
            limits.capacity_bytes = bytes.min(most_bytes);
        }
        is_current
    }

    /// Bytes held above the capacity.
    pub fn excess_bytes(&self) -> u64 {
        let limits = self.limits();
        limits.used_bytes.saturating_sub(limits.capacity_bytes)
    }
}

impl Reservation {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes in another reservation of the same class.
    ///
    /// # Panics
    /// The classes differ.
    pub fn merge(&mut self, mut other: Reservation) {
        assert_eq!(self.class, other.class, "reservations of two classes cannot be one");
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Takes `bytes` out of it, as a reservation of their own.
    ///
    /// # Panics
    /// It does not hold as many.
    pub fn split(&mut self, bytes: u64) -> Reservation {
        assert!(bytes <= self.bytes, "splitting {bytes} off {} bytes", self.bytes);
        self.bytes -= bytes;
        Reservation { budget: self.budget.clone(), class: self.class, bytes }
    }

    /// Releases `bytes` of it.
    ///
    /// # Panics
    /// It does not hold as many.
    pub fn shrink(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "giving back {bytes} of {} bytes", self.bytes);
        self.bytes -= bytes;
        self.budget.limits().used_bytes -= bytes;
        self.budget.inner.by_class[self.class as usize].fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_and_says_how_much_is_missing() {
        let budget = Budget::new(100);
        let held = budget.reserve(Class::Pages, 70).unwrap();
        assert_eq!(budget.reserve(Class::Buffers, 40).unwrap_err(), OverBudget { missing_bytes: 10 });
        drop(held);
        assert_eq!(budget.used_bytes(), 0);
        budget.reserve(Class::Buffers, 100).unwrap();
    }

    #[test]
    fn shrinking_the_capacity_shows_the_excess() {
        let budget = Budget::new(100);
        let mut held = budget.reserve(Class::Pages, 80).unwrap();
        budget.set_capacity_bytes(50);
        assert_eq!(budget.excess_bytes(), 30);
        held.shrink(30);
        assert_eq!((budget.excess_bytes(), budget.class_bytes(Class::Pages)), (0, 50));
        held.merge(budget.reserve_existing(Class::Pages, 5));
        assert_eq!((held.bytes(), budget.excess_bytes()), (55, 5));
        drop(held.split(20));
        assert_eq!((held.bytes(), budget.used_bytes()), (35, 35));
    }

    #[test]
    fn who_gives_way_does_not_undo_what_the_operator_sets() {
        let budget = Budget::new(100);
        assert!(budget.give_way(100, 40));
        assert_eq!((budget.capacity_bytes(), budget.most_bytes()), (40, 100));
        budget.set_capacity_bytes(70);
        assert!(!budget.give_way(100, 90));
        assert_eq!((budget.capacity_bytes(), budget.most_bytes()), (70, 70));
        assert!(budget.give_way(70, 90));
        assert_eq!(budget.capacity_bytes(), 70);
    }
}
