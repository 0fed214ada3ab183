//! Mounts that hold no file of the PFS, so that the path of a file there need not be looked up.
//!
//! A program that reads thousands of small files elsewhere would pay for each: the path of a
//! descriptor takes several times as long as its mount (`own_files::kind`). The number of a mount
//! that goes may be given to the PFS's; its files are left to the kernel then.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Mounts that are remembered; for others, every path is looked up.
const MOUNTS: usize = 8;

/// Files elsewhere that are seen before the kernel's table of mounts is read, which costs as much
/// as looking up some twenty paths.
const PATIENCE: u64 = 16;

/// See the module.
pub struct Elsewhere {
    /// Twice the mount's number, and one more if it may hold files of the PFS; 0 if free.
    mounts: [AtomicU64; MOUNTS],
    /// Files elsewhere on mounts that are not remembered.
    seen: AtomicU64,
}

impl Elsewhere {
    /// A table that knows no mount.
    pub const fn new() -> Self {
        Elsewhere { mounts: [const { AtomicU64::new(0) }; MOUNTS], seen: AtomicU64::new(0) }
    }

    /// Whether no file on this mount is the PFS's.
    pub fn has(&self, mount: u64) -> bool {
        self.mounts.iter().any(|word| word.load(Relaxed) == mount << 1)
    }

    /// Notes that a file on this mount is not the PFS's; `may_hold` says whether others on it may
    /// be, if it can.
    pub fn note(&self, mount: u64, may_hold: impl FnOnce(u64) -> Option<bool>) {
        if self.mounts.iter().any(|word| word.load(Relaxed) >> 1 == mount)
            || self.seen.fetch_add(1, Relaxed) < PATIENCE
        {
            return;
        }
        let Some(free) = self.mounts.iter().find(|word| word.load(Relaxed) == 0) else { return };
        let Some(may_hold) = may_hold(mount) else { return };
        let word = mount << 1 | u64::from(may_hold);
        let _another_thread_was_first = free.compare_exchange(0, word, Relaxed, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_looked_at_once_and_only_where_many_files_are_read() {
        let elsewhere = Elsewhere::new();
        (0..PATIENCE).for_each(|_| elsewhere.note(22, |_| panic!("too early")));
        assert!(!elsewhere.has(22));
        elsewhere.note(22, |_| None);
        assert!(!elsewhere.has(22));
        elsewhere.note(22, |_| Some(false));
        elsewhere.note(40, |_| Some(true));
        elsewhere.note(40, |_| panic!("it is known"));
        assert_eq!([22, 40, 41].map(|mount| elsewhere.has(mount)), [true, false, false]);
        (100..200).for_each(|mount| elsewhere.note(mount, |_| Some(false)));
        assert!(
            elsewhere.has(22) && elsewhere.has(105) && !elsewhere.has(106),
            "as many as there is room for"
        );
    }
}
