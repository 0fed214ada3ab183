//! Jobs whose declared phases are not believed.
//!
//! A job is doubted when a phase of it was cut off, or when its program declared a phase, was
//! behind, and exited without ending it. Doubt belongs to the user and the name of the job, not to
//! a connection: a program that connects again must not brake the cluster again.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;

/// Limit on the remembered names of one user; a user who reaches it is doubted whatever the name.
const NAMES_MAX: usize = 16;

/// Limit on the users that are remembered.
const USERS_MAX: usize = 1024;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Doubts(BTreeMap<u32, BTreeSet<String>>);

impl Doubts {
    /// Returns whether phases of this job do not count.
    pub fn holds(&self, user: u32, name: &str) -> bool {
        self.0.get(&user).is_some_and(|names| names.len() >= NAMES_MAX || names.contains(name))
    }

    /// Records that a phase of the job did not end by itself.
    pub fn add(&mut self, user: u32, name: &str) {
        if self.0.len() >= USERS_MAX && !self.0.contains_key(&user) {
            self.0.pop_first();
        }
        let names = self.0.entry(user).or_default();
        if names.len() < NAMES_MAX {
            names.insert(name.into());
        }
    }

    /// Records that a phase of the job has ended by itself.
    pub fn forget(&mut self, user: u32, name: &str) {
        let Some(names) = self.0.get_mut(&user) else { return };
        if !names.remove(name) && names.len() >= NAMES_MAX {
            names.pop_first();
        }
        if names.is_empty() {
            self.0.remove(&user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn what_is_remembered_is_bounded_and_a_user_of_many_names_is_doubted_whatever_the_name() {
        let mut doubts = Doubts::default();
        for number in 0..100 {
            assert_eq!(doubts.holds(7, &format!("j{number}")), number >= NAMES_MAX);
            doubts.add(7, &format!("j{number}"));
        }
        assert!(!doubts.holds(8, "j1"));
        // A phase that ends by itself takes back one doubt, whatever its name.
        doubts.forget(7, "other");
        assert!(!doubts.holds(7, "other") && doubts.holds(7, "j1"));
        (0..NAMES_MAX).for_each(|number| doubts.forget(7, &format!("j{number}")));
        assert!(doubts.0.is_empty());
        (0..2 * USERS_MAX as u32).for_each(|user| doubts.add(user, "j"));
        assert_eq!(doubts.0.len(), USERS_MAX);
        assert!(doubts.holds(2 * USERS_MAX as u32 - 1, "j"));
    }
}
