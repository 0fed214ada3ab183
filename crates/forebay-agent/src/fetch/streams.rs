//! Streams of chunks: pages of one file that lie together on one server of a PFS whose client reads
//! ahead by itself.
//!
//! Pages of one stream are fetched one after the other as long as a page takes its time. Side by
//! side they would come no sooner, the first of them as late as the last, and the client would drop
//! what it has read ahead of each whenever another is requested. On a PFS so fast that latency
//! counts they are fetched side by side. `docs/decisions/0017-streams.md` has the measurements.

use forebay_pfs::layout::MOOSEFS_CHUNK_BYTES;
use forebay_pfs::mount::is_moosefs;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

/// Pages of one stream are fetched one after the other as long as one takes longer: the PFS is busy
/// with each for most of that time.
const SLOW_PAGE: Duration = Duration::from_millis(20);

/// Pages that are fetched side by side are until one takes longer: eight of them that take
/// [`SLOW_PAGE`] each take so long together.
const SLOW_BESIDE: Duration = Duration::from_millis(160);

/// The streams of one mount.
#[derive(Debug)]
pub struct Streams {
    /// Bytes of a file that are on one server; `None` if that is not known, or if the PFS's client
    /// does not read ahead.
    chunk_bytes: Option<u64>,
    /// What a page has taken of late, in nanoseconds; 0 before the first.
    page_ns: AtomicU64,
    /// Pages of a stream are fetched side by side.
    is_fast: AtomicBool,
}

impl Streams {
    /// Of the file system that is mounted on `root`. Looked at once: it has to be mounted when the
    /// agent starts.
    pub fn of(root: &Path) -> Self {
        let chunk_bytes = is_moosefs(root).then_some(MOOSEFS_CHUNK_BYTES);
        Streams { chunk_bytes, page_ns: AtomicU64::new(0), is_fast: AtomicBool::new(false) }
    }

    /// Whether the PFS's client reads ahead by itself.
    pub fn are_read_ahead(&self) -> bool {
        self.chunk_bytes.is_some()
    }

    /// The first page of the stream that `page` is one of, if its pages are fetched one after the
    /// other: where a page takes its time, or none has been fetched yet.
    pub fn first_of(&self, page_bytes: u64, page: u32) -> Option<u32> {
        if self.is_fast.load(Relaxed) {
            return None;
        }
        let pages = (self.chunk_bytes? / page_bytes).max(1);
        Some((u64::from(page) / pages * pages) as u32)
    }

    /// What a whole page has taken of late; zero before the first.
    pub fn page_time(&self) -> Duration {
        Duration::from_nanos(self.page_ns.load(Relaxed))
    }

    /// A whole page has been fetched in so long.
    pub fn page_took(&self, took: Duration) {
        let (now, before) = (took.as_nanos() as u64, self.page_ns.load(Relaxed));
        let mean = if before == 0 { now } else { (before / 8 * 7).saturating_add(now / 8) };
        self.page_ns.store(mean.max(1), Relaxed);
        let slow = if self.is_fast.load(Relaxed) { SLOW_BESIDE } else { SLOW_PAGE };
        self.is_fast.store(Duration::from_nanos(mean) < slow, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_stream_go_one_after_the_other_where_they_take_their_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut streams = Streams::of(dir.path());
        let page = 2 << 20;
        assert_eq!(streams.first_of(page, 33), None, "no streams on a local disk");
        streams.chunk_bytes = Some(64 << 20);
        assert_eq!(
            (streams.first_of(page, 31), streams.first_of(page, 33)),
            (Some(0), Some(32)),
            "before any has come"
        );
        let comes_in = |ms| {
            streams.page_took(Duration::from_millis(ms));
            streams.first_of(page, 33)
        };
        assert_eq!(comes_in(19), None, "side by side");
        assert_eq!(comes_in(150), None, "which makes each slower");
        assert_eq!(comes_in(150), None);
        assert_eq!(comes_in(3_000), Some(32));
        assert_eq!(comes_in(30), Some(32), "one of many that is fast");
        for _ in 0..40 {
            comes_in(15);
        }
        assert_eq!(comes_in(15), None);
    }
}
