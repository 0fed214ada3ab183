//! Places for calls that wait for locks. Each takes a thread, so there is a limit, which users
//! share: a user who waits for many locks leaves places to the others.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Calls that wait at the same time.
const PLACES: usize = 1024;

/// The places that are taken.
#[derive(Debug, Default)]
pub struct LockWaits(Mutex<HashMap<u32, usize>>);

impl LockWaits {
    /// Takes a place for a user. A user may have as many as are free then: half of all places if
    /// nobody else waits, and of what others leave, half again. False if there is none.
    pub fn enter(&self, uid: u32) -> bool {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let free = PLACES - taken.values().sum::<usize>();
        let own = taken.get(&uid).copied().unwrap_or(0);
        let may = own < free;
        if may {
            taken.insert(uid, own + 1);
        }
        may
    }

    /// Frees a place of a user.
    pub fn leave(&self, uid: u32) {
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match taken.get_mut(&uid) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(taken.remove(&uid)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entered(waits: &LockWaits, uid: u32) -> usize {
        (0..2 * PLACES).filter(|_| waits.enter(uid)).count()
    }

    #[test]
    fn a_user_leaves_places_to_others() {
        let waits = LockWaits::default();
        assert_eq!(entered(&waits, 1), PLACES / 2);
        assert_eq!(entered(&waits, 2), PLACES / 4);
        assert_eq!(entered(&waits, 1), 0);
        (0..PLACES / 2).for_each(|_| waits.leave(1));
        (0..PLACES / 4).for_each(|_| waits.leave(2));
        assert!(waits.0.lock().unwrap().is_empty());
        assert_eq!(entered(&waits, 3), PLACES / 2);
    }
}
