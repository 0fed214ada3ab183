//! Memory that cannot be evicted, held for a user.

use super::Cache;
use crate::user_limits::{Kind, Share, Shares};
use forebay_store::{Class, Reservation};
use forebay_wire::Refusal;

/// Bytes of the budget that are part of a user's share.
#[derive(Debug)]
pub struct Held {
    room: Reservation,
    share: Share,
}

impl Held {
    /// How many.
    pub fn bytes(&self) -> u64 {
        self.room.bytes()
    }

    /// Takes in more, of the same user and class.
    pub fn merge(&mut self, other: Held) {
        self.room.merge(other.room);
        self.share.merge(other.share);
    }

    /// Returns a part.
    pub fn shrink(&mut self, bytes: u64) {
        self.room.shrink(bytes);
        self.share.shrink(bytes);
    }

    /// Takes all of it out of the user's share: the bytes may be evicted from now on.
    pub fn let_go(&mut self) -> Reservation {
        let bytes = self.room.bytes();
        self.share.shrink(bytes);
        self.room.split(bytes)
    }
}

impl Cache {
    /// Holds `bytes` of the budget for user `uid`, evicting as needed.
    ///
    /// # Errors
    /// More than the user's share, or nothing is left to evict.
    pub fn hold(&self, shares: &Shares, uid: u32, class: Class, bytes: u64) -> Result<Held, Refusal> {
        let share = shares.share(Kind::Held, uid, bytes)?;
        let room = self.reserve(class, bytes).ok_or(Refusal::NoRoom)?;
        Ok(Held { room, share })
    }

    /// As [`Cache::hold`], for bytes that exist already, whether they fit or not.
    pub fn hold_existing(&self, shares: &Shares, uid: u32, class: Class, bytes: u64) -> Held {
        let share = shares.share_existing(Kind::Held, uid, bytes);
        Held { room: self.budget.reserve_existing(class, bytes), share }
    }
}
