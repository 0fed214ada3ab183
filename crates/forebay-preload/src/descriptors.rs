//! What is known of each open descriptor: whether it refers to a file of the PFS.
//!
//! A byte for each, in a table of fixed size. An entry is decided at the first write or read of its
//! descriptor, so that opening costs nothing, and inherited and duplicated descriptors need no rule
//! of their own. It is forgotten whenever the number is closed or handed out again.
//!
//! Two threads may decide the same entry at the same time; both come to the same result.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;

/// Descriptors from this number on are not observed.
pub const MAX_DESCRIPTORS: usize = 1 << 16;

const UNKNOWN: u8 = 0;
const FOREIGN: u8 = 1;
const PFS: u8 = 2;

static TABLE: [AtomicU8; MAX_DESCRIPTORS] = [const { AtomicU8::new(UNKNOWN) }; MAX_DESCRIPTORS];

fn entry(fd: i32) -> Option<&'static AtomicU8> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// Whether `fd` is one of the PFS, which `decide` says if it is not known yet.
#[inline]
pub fn is_pfs(fd: i32, decide: impl FnOnce(i32) -> bool) -> bool {
    let Some(entry) = entry(fd) else { return false };
    match entry.load(Relaxed) {
        PFS => true,
        FOREIGN => false,
        _ => {
            let is_pfs = decide(fd);
            entry.store(if is_pfs { PFS } else { FOREIGN }, Relaxed);
            is_pfs
        }
    }
}

/// Whether `fd` is known to be one of the PFS.
#[cfg_attr(test, expect(dead_code, reason = "only the observer asks"))]
pub fn is_known_pfs(fd: i32) -> bool {
    entry(fd).is_some_and(|entry| entry.load(Relaxed) == PFS)
}

/// Notes that the number `fd` stands for another file from now on, or for none.
#[inline]
pub fn forget(fd: i32) {
    if let Some(entry) = entry(fd) {
        entry.store(UNKNOWN, Relaxed);
    }
}

/// Forgets all numbers from `first` to `last` in the same way.
pub fn forget_range(first: u32, last: u32) {
    for entry in TABLE.iter().take((last as usize).saturating_add(1)).skip(first as usize) {
        entry.store(UNKNOWN, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_decided_once_until_it_is_forgotten() {
        assert!(is_pfs(1_000, |_| true));
        assert!(is_pfs(1_000, |_| panic!("it is known")));
        forget(1_000);
        assert!(!is_pfs(1_000, |_| false));
        assert!(!is_pfs(1_000, |_| panic!("it is known")));
        forget_range(999, 1_001);
        assert!(is_pfs(1_000, |_| true));
    }

    #[test]
    fn numbers_out_of_range_are_nobodys() {
        for fd in [-1, i32::MIN, MAX_DESCRIPTORS as i32, i32::MAX] {
            assert!(!is_pfs(fd, |_| panic!("it is not asked for")));
            forget(fd);
        }
        forget_range(u32::MAX, u32::MAX);
        forget_range(5, 3);
    }
}
