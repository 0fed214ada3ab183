//! What users share of this process: threads, calls that wait for locks, and descriptors.
//!
//! One rule serves all: a user may have a part of what is free at that moment. So whatever one user
//! takes, the next one finds most of it, and nobody needs a list of users.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// How much there is, and which part of the free amount one user may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The amount for all users together.
    pub all: usize,
    /// A user may have this part of what is free: half of it for 2, and so on.
    pub part: usize,
}

/// Amounts that users have now.
#[derive(Debug, Default)]
pub struct Taken {
    by_user: HashMap<u32, usize>,
    sum: usize,
}

impl Taken {
    /// Takes an amount for a user; false if that is more than the user may have. One thing that is
    /// free is for everybody who has none.
    pub fn take(&mut self, uid: u32, amount: usize, bound: Bound) -> bool {
        let free = bound.all.saturating_sub(self.sum);
        let own = self.by_user.get(&uid).copied().unwrap_or(0) + amount;
        // With its own, a user has this part of the amount that would be free without them.
        let share = ((free + own - amount) / bound.part).max(1);
        let may = amount <= free && own <= share;
        if may {
            self.add(uid, amount);
        }
        may
    }

    /// Like [`Taken::take`], for what a user gets in any case.
    pub fn add(&mut self, uid: u32, amount: usize) {
        *self.by_user.entry(uid).or_default() += amount;
        self.sum += amount;
    }

    /// Returns an amount of a user.
    pub fn give_back(&mut self, uid: u32, amount: usize) {
        if let Some(own) = self.by_user.get_mut(&uid) {
            *own -= amount;
            self.sum -= amount;
            if *own == 0 {
                self.by_user.remove(&uid);
            }
        }
    }

    /// Whether nobody has anything.
    pub fn is_empty(&self) -> bool {
        self.sum == 0
    }
}

/// One kind of things that users share; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Shares(Arc<Mutex<Taken>>);

impl Shares {
    /// Takes one thing for a user; `None` if the user has its share.
    pub fn take(&self, uid: u32, bound: Bound) -> Option<Share> {
        let is_taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take(uid, 1, bound);
        is_taken.then(|| Share { of: self.clone(), uid })
    }
}

/// A thing that a user has; dropping it returns it.
#[derive(Debug)]
pub struct Share {
    of: Shares,
    uid: u32,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.0.lock().unwrap_or_else(PoisonError::into_inner).give_back(self.uid, 1);
    }
}

/// A descriptor that is kept for a user, with what it takes of the user's share; clones are the
/// same descriptor.
#[derive(Clone, Debug)]
pub struct Kept(Arc<(OwnedFd, Option<Share>)>);

impl Kept {
    /// Keeps a descriptor; without a share, it is not counted.
    pub fn new(fd: OwnedFd, share: Option<Share>) -> Self {
        Kept(Arc::new((fd, share)))
    }
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_leaves_most_to_the_next() {
        let shares = Shares::default();
        let bound = Bound { all: 1024, part: 2 };
        let take = |uid| std::iter::from_fn(|| shares.take(uid, bound)).collect::<Vec<_>>();
        let first = take(1);
        let second = take(2);
        assert_eq!((first.len(), second.len()), (512, 256));
        assert!(take(1).is_empty());
        let others: Vec<_> = (3..12).map(take).collect();
        assert_eq!(others.last().unwrap().len(), 1, "the last one is for somebody who has none");
        drop((first, second, others));
        assert!(shares.0.lock().unwrap().by_user.is_empty(), "nobody is remembered");
    }
}
