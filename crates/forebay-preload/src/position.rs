//! Where a read takes place: a file's position stays in the kernel, which shares it with duplicated
//! descriptors, other processes, and calls that this library does not see.
//!
//! A read first advances the position by one `lseek`, and so owns the range that it passed: two
//! readers of one open file get different bytes, as from the kernel. The handle remembers the last
//! position, to stop at the end of the file without a second call.

#[cfg(not(test))]
use core::ffi::c_int;

/// The range of a file that a read owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// Moves the position by some bytes; its new value, or negative.
pub trait Seek {
    /// As `lseek` with `SEEK_CUR`.
    fn seek(&mut self, bytes: i64) -> i64;
}

/// The position of a descriptor.
#[cfg(not(test))]
pub struct OfDescriptor(pub c_int);

#[cfg(not(test))]
impl Seek for OfDescriptor {
    fn seek(&mut self, bytes: i64) -> i64 {
        // SAFETY: no pointers.
        unsafe { crate::kernel::sys!(SYS_lseek, self.0, bytes, libc::SEEK_CUR) as i64 }
    }
}

/// Takes up to `want` bytes from the position of a file of `size` bytes, which is at `guess` if
/// nobody else has moved it. `None`: it is at the end or beyond it, where it stays.
pub fn take(file: &mut impl Seek, size: u64, guess: u64, want: u64) -> Option<Range> {
    let mut at = guess;
    if at >= size {
        at = u64::try_from(file.seek(0)).ok()?;
    }
    let len = want.min(size.checked_sub(at).filter(|left| *left > 0)?);
    let end = u64::try_from(file.seek(i64::try_from(len).ok()?)).ok()?;
    let offset = end.checked_sub(len)?;
    let fits = len.min(size.saturating_sub(offset));
    move_back(file, len - fits);
    (fits > 0).then(|| whole(file, size, Range { offset, len: fits }, want))
}

/// Takes the rest as well after a guess too far ahead, with which the read is short and looks like
/// one at the end of the file; unless somebody has moved the position meanwhile.
fn whole(file: &mut impl Seek, size: u64, range: Range, want: u64) -> Range {
    let end = range.offset + range.len;
    let more = (want - range.len).min(size - end);
    if more == 0 {
        return range;
    }
    let moved = i64::try_from(more).map_or(-1, |more| file.seek(more));
    if u64::try_from(moved) == Ok(end + more) {
        return Range { len: range.len + more, ..range };
    }
    if moved >= 0 {
        move_back(file, more);
    }
    range
}

/// Moves the position back by bytes that were taken and not read.
pub fn move_back(file: &mut impl Seek, bytes: u64) {
    if bytes > 0 {
        file.seek(-i64::try_from(bytes).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake {
        position: i64,
        calls: u32,
    }

    impl Seek for Fake {
        fn seek(&mut self, bytes: i64) -> i64 {
            self.calls += 1;
            self.position += bytes;
            self.position
        }
    }

    fn at(position: i64) -> Fake {
        Fake { position, calls: 0 }
    }

    #[test]
    fn a_guess_that_is_right_costs_one_call_up_to_the_end() {
        let mut file = at(0);
        assert_eq!(take(&mut file, 100, 0, 60), Some(Range { offset: 0, len: 60 }));
        assert_eq!(take(&mut file, 100, 60, 60), Some(Range { offset: 60, len: 40 }));
        assert_eq!((file.position, file.calls), (100, 2));
        assert_eq!(take(&mut file, 100, 100, 60), None);
        assert_eq!((file.position, file.calls), (100, 3));
    }

    #[test]
    fn a_position_that_others_have_moved_is_where_it_is_read() {
        let mut file = at(30);
        assert_eq!(take(&mut file, 100, 0, 10), Some(Range { offset: 30, len: 10 }));
        assert_eq!(file.position, 40);
        // Behind the guess: nothing is taken beyond the end.
        let mut file = at(95);
        assert_eq!(take(&mut file, 100, 0, 60), Some(Range { offset: 95, len: 5 }));
        assert_eq!(file.position, 100);
        // The guess was the end, and the program has gone back unseen.
        let mut file = at(20);
        assert_eq!(take(&mut file, 100, 100, 60), Some(Range { offset: 20, len: 60 }));
        // The guess was near the end: the read is not short for that.
        let mut file = at(20);
        assert_eq!(take(&mut file, 100, 90, 60), Some(Range { offset: 20, len: 60 }));
        assert_eq!(file.position, 80);
        // It is beyond the end, and stays there.
        let mut file = at(500);
        assert_eq!(take(&mut file, 100, 0, 60), None);
        assert_eq!(file.position, 500);
    }

    #[test]
    fn the_position_moves_back_by_what_was_not_read() {
        let mut file = at(60);
        move_back(&mut file, 25);
        assert_eq!(file.position, 35);
        move_back(&mut file, 0);
        assert_eq!((file.position, file.calls), (35, 1));
    }
}
