//! Which pages of a sparse file hold data.

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// The pages of `page_bytes` each that hold data of a file of `size` bytes, in order and as runs
/// that do not touch; `None` if it has no holes. Moves the position of the open file.
///
/// # Errors
/// The file system does not report them.
pub fn data_pages(fd: BorrowedFd<'_>, size: u64, page_bytes: u64) -> io::Result<Option<Vec<Range<u32>>>> {
    if found(seek(fd, SeekFrom::Hole(0)))?.is_none_or(|hole| hole >= size) {
        return Ok(None);
    }
    let page_of = |offset: u64| u32::try_from(offset / page_bytes).unwrap_or(u32::MAX);
    let (mut runs, mut at): (Vec<Range<u32>>, u64) = (Vec::new(), 0);
    while at < size {
        // Beyond the end that the file had, if it has grown.
        let data = found(seek(fd, SeekFrom::Data(at)))?.filter(|data| *data < size);
        let Some(data) = data else { break };
        let hole = found(seek(fd, SeekFrom::Hole(data)))?.unwrap_or(size).min(size);
        let run = page_of(data)..page_of(hole.saturating_sub(1)).saturating_add(1);
        match runs.last_mut().filter(|last| last.end >= run.start) {
            Some(last) => last.end = last.end.max(run.end),
            None => runs.push(run.clone()),
        }
        // Data behind the hole and within the same page is in that page.
        at = hole.max(u64::from(run.end) * page_bytes);
    }
    Ok(Some(runs))
}

/// The offset found; `None`: there is nothing behind.
fn found(offset: Result<u64, Errno>) -> io::Result<Option<u64>> {
    match offset {
        Ok(offset) => Ok(Some(offset)),
        Err(Errno::NXIO) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    const PAGE: u64 = 64 << 10;

    #[test]
    fn pages_with_any_data_are_reported_and_no_others() {
        let file = tempfile::tempfile().unwrap();
        let pages = || data_pages(file.as_fd(), file.metadata().unwrap().len(), PAGE).unwrap();
        assert_eq!(pages(), None, "an empty file");
        file.write_all_at(b"data", 0).unwrap();
        assert_eq!(pages(), None);
        file.set_len(100 * PAGE).unwrap();
        let first = 0..1;
        assert_eq!(pages(), Some(vec![first.clone()]));
        file.write_all_at(b"data", 5 * PAGE + 4096).unwrap();
        file.write_all_at(b"data", 6 * PAGE - 2).unwrap();
        file.write_all_at(b"data", 100 * PAGE - 4).unwrap();
        assert_eq!(pages(), Some(vec![first, 5..7, 99..100]));
        let shorter = data_pages(file.as_fd(), 20 * PAGE, PAGE).unwrap();
        assert_eq!(shorter, Some(vec![0..1, 5..7]), "it has grown since");
        file.set_len(0).unwrap();
        file.set_len(1 << 40).unwrap();
        assert_eq!(pages(), Some(vec![]));
    }
}
