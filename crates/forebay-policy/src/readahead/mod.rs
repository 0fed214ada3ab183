//! What to fetch ahead of one open file's reads, and what serves a read that misses.
//!
//! One [`Readahead`] belongs to one open handle and sees its reads as (offset, length). It answers
//! two questions: which pages the agent should fetch now (in the background), and whether a miss of
//! this read should wait for the agent, which fills the tier, or go to the file system itself.
//!
//! **Sequential.** A read at offset 0 of at least 64 KiB, or a read that continues where the one
//! before ended, makes a stream; a forward skip below one page keeps it. A stream has a window, at
//! first two pages, and a frontier: all pages before it have been requested. When no more than half
//! the window is between the reader and the frontier, the window doubles, up to a bound, and the
//! frontier moves to one window ahead of the reader. Requesting at the half mark and not at the end
//! keeps the file system busy while the reader works through the other half, so that a reader
//! slower than the file system never waits; requesting at each read would request single pages, one
//! message each.
//!
//! A window ends a page after the *extent* in which the reader is, until the reader has gone half a
//! page into the next: there another node keeps the file, and tasks that divide a file among them
//! by extents read a line of the next one and no more. Without this each fetched a window of what
//! others would read. A reader that has read an extent and a page of the next is not such a task:
//! its windows do not end there, so that a whole file is read without a pause at each extent.
//!
//! **Strided.** Three reads of at least 64 KiB at a constant forward distance: the pages of the
//! next reads are requested within the same window.
//!
//! **Random.** Everything else. A read of at least half a page (or half a small file) fills the
//! pages it covers; a smaller one goes to the file system, and the agent is notified (see
//! [`crate::miss_ledger`]). A stray read does not end a stream: readers look at a footer or an
//! index in between, and threads share a handle. So a handle has up to four streams, which share
//! the bound of the window, and one that no read has continued for 32 reads is dropped.
//!
//! **Columnar files.** Programs read parts of them, and a run of reads ends where a chunk of a
//! column ends. There a stream that did not begin at the start of the file has no more ahead than
//! an eighth of what it has read ([`ReadaheadConfig::is_columnar`]), so that what is fetched for
//! nothing is bounded by what was read, and nothing until one of its reads has met a page that is
//! not resident: a second reader of the same columns fetches nothing. No distance between reads
//! makes a stream there; and a read of any length fills the small pages that it covers, which cost
//! little more than the request.
//!
//! **Refused.** The agent may refuse (budget, brake). Then the window halves, the frontier falls
//! back, and nothing is requested ahead until the reader has advanced by half the smaller window.
//! What a read itself needs is always requested.

use alloc::vec::Vec;
use core::ops::Range;

#[cfg(test)]
mod tests;

/// Configuration of read-ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadaheadConfig {
    /// Size of a page of the tier.
    pub page_bytes: u32,
    /// The window a stream starts with.
    pub first_window_bytes: u64,
    /// The window a stream grows to. 0 turns read-ahead off.
    pub max_window_bytes: u64,
    /// A read at offset 0, and reads at a constant stride, make a stream only from this length on.
    pub stream_read_bytes: u64,
    /// Unit of placement, whole pages. A contiguous stream requests nothing beyond its extent
    /// before its reader is there. 0: none.
    pub extent_bytes: u64,
    /// Whether programs read parts of the file; see the module.
    pub is_columnar: bool,
}

/// A stream of a columnar file has one byte ahead for this many that it has read.
const EARNED_DIVISOR: u64 = 8;

impl ReadaheadConfig {
    /// The defaults for pages of `page_bytes`: from two pages to 64 MiB, reads from 64 KiB on.
    pub fn for_page(page_bytes: u32) -> Self {
        Self {
            page_bytes,
            first_window_bytes: 2 * u64::from(page_bytes),
            max_window_bytes: 64 << 20,
            stream_read_bytes: 64 << 10,
            extent_bytes: 0,
            is_columnar: false,
        }
    }
}

/// The source of the part of a read that is not resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serve {
    /// The agent: it fills the pages, which are in `ask` or were requested before.
    Tier,
    /// The file system itself; report the miss to the agent, it fills the page once that pays.
    Pfs,
}

/// Limit on the streams of one handle.
const MAX_STREAMS: usize = 4;
/// Reads that go elsewhere before a stream is given up: a few rounds of four interleaved readers
/// with strays.
const MAX_STRAYS: u32 = 32;

/// The read-ahead machine of one open handle.
#[derive(Clone, Debug)]
pub struct Readahead {
    config: ReadaheadConfig,
    file_bytes: u64,
    streams: Vec<Stream>,
    /// The last reads that belonged to no stream, newest last.
    strays: Vec<Span>,
}

/// A read, truncated at the end of the file.
#[derive(Clone, Copy, Debug)]
struct Span {
    offset: u64,
    end: u64,
}

/// The units into which a file is divided.
#[derive(Clone, Copy, Debug)]
struct Units {
    page_bytes: u64,
    extent_bytes: u64,
    file_bytes: u64,
}

impl Units {
    /// Returns the page before which a stream that began at `began` may request pages now that it
    /// reads `read`; `None`: not ahead at all.
    fn end_page(self, began: u64, read: Span) -> Option<u64> {
        let last = self.file_bytes.div_ceil(self.page_bytes);
        if self.extent_bytes == 0 {
            return Some(last);
        }
        if read.end - began > self.extent_bytes + self.page_bytes {
            return Some(last);
        }
        let start = (read.end - 1) / self.extent_bytes * self.extent_bytes;
        let is_short = read.end - read.offset < self.page_bytes;
        let only_looks_in = is_short && start > began && read.end - start < self.page_bytes / 2;
        let end = start.saturating_add(self.extent_bytes).saturating_add(self.page_bytes);
        (!only_looks_in).then(|| last.min(end / self.page_bytes))
    }
}

#[derive(Clone, Debug)]
struct Stream {
    /// Where its first read began.
    began: u64,
    /// Where the next read is expected.
    next_offset: u64,
    /// Distance between the starts of two reads; 0 for a contiguous stream.
    stride_bytes: u64,
    window_bytes: u64,
    /// All pages of the stream before this one have been requested.
    frontier: u64,
    /// A strided stream has requested the reads that start before this offset.
    asked_until: u64,
    /// After a refusal: nothing is requested ahead until a read ends at this offset or later.
    hold_until: u64,
    /// Whether the window has been requested since the stream began or was refused; only then does
    /// it double.
    opened: bool,
    /// Whether a read of a columnar file has met a page that was not resident.
    missed: bool,
    strays: u32,
}

impl Readahead {
    /// Creates the machine for a handle on a file of `file_bytes` (fixed for the handle: a version
    /// never changes within one open).
    pub fn new(config: ReadaheadConfig, file_bytes: u64) -> Self {
        Self { config, file_bytes, streams: Vec::new(), strays: Vec::new() }
    }

    /// Records a read. Appends the pages to request to `ask` (ranges of page numbers, ascending,
    /// none that `known` reports as resident or already requested) and returns what serves the
    /// missing part. A page that was requested, came, and left again before it was read is not
    /// requested a second time: the agent meets it as a plain miss.
    pub fn on_read(
        &mut self,
        offset: u64,
        len: u64,
        known: &mut dyn FnMut(u64) -> bool,
        ask: &mut Vec<Range<u64>>,
    ) -> Serve {
        let read = Span { offset, end: offset.saturating_add(len).min(self.file_bytes) };
        if read.end <= read.offset {
            return Serve::Pfs;
        }
        let stream = self.matching(read).or_else(|| self.begun_by(read));
        self.count_strays(stream);
        match stream {
            Some(index) => {
                // A reader that begins at the front reads all of it; the first chunk of a column is
                // not there.
                let earned_bytes = match self.config.is_columnar && self.streams[index].began > 0 {
                    true => self.streams[index].earned_bytes(read, self.config.page_bytes, known),
                    false => u64::MAX,
                };
                let max_window_bytes =
                    (self.config.max_window_bytes / self.streams.len() as u64).min(earned_bytes);
                let units = Units {
                    page_bytes: u64::from(self.config.page_bytes),
                    extent_bytes: self.config.extent_bytes,
                    file_bytes: self.file_bytes,
                };
                self.streams[index].advance(read, units, max_window_bytes, known, ask);
                Serve::Tier
            }
            None => self.random(read, known, ask),
        }
    }

    /// Records that the agent has refused the request from `page` on (no budget, or a brake).
    pub fn refused(&mut self, page: u64) {
        let page_bytes = u64::from(self.config.page_bytes);
        for stream in &mut self.streams {
            let reader_page = stream.next_offset / page_bytes;
            if reader_page <= page && page < stream.frontier {
                stream.fall_back(page, page_bytes);
            }
        }
    }

    /// Returns the largest current window of the handle's streams, for display; 0 if the reads are
    /// random.
    pub fn window_bytes(&self) -> u64 {
        self.streams.iter().map(|stream| stream.window_bytes).max().unwrap_or(0)
    }

    fn matching(&self, read: Span) -> Option<usize> {
        let page_bytes = u64::from(self.config.page_bytes);
        self.streams.iter().position(|stream| match stream.stride_bytes {
            0 => (stream.next_offset..stream.next_offset.saturating_add(page_bytes)).contains(&read.offset),
            _ => stream.next_offset == read.offset,
        })
    }

    /// Starts a new stream if `read` makes one, with the strays before it. Returns its index.
    fn begun_by(&mut self, read: Span) -> Option<usize> {
        let long = read.end - read.offset >= self.config.stream_read_bytes;
        let may_stride = long && !self.config.is_columnar;
        let stride_bytes = if read.offset == 0 && long {
            0
        } else if let Some(at) = self.strays.iter().position(|stray| stray.end == read.offset) {
            self.strays.remove(at);
            0
        } else if let Some(stride_bytes) = self.constant_stride(read).filter(|_| may_stride) {
            self.strays.clear();
            stride_bytes
        } else {
            if self.strays.len() == MAX_STREAMS {
                self.strays.remove(0);
            }
            self.strays.push(read);
            return None;
        };
        if self.streams.len() == MAX_STREAMS {
            let idle = (0..MAX_STREAMS).max_by_key(|&index| self.streams[index].strays).unwrap_or(0);
            self.streams.swap_remove(idle);
        }
        let first_window_bytes = self.config.first_window_bytes;
        self.streams.push(Stream::new(read, stride_bytes, first_window_bytes, self.config.page_bytes));
        Some(self.streams.len() - 1)
    }

    /// Returns the stride of `read` and the two strays before it; `Some(0)` if the gap is below a
    /// page, which is contiguous.
    fn constant_stride(&self, read: Span) -> Option<u64> {
        let [.., first, second] = self.strays[..] else { return None };
        let stride_bytes = read.offset.checked_sub(second.offset)?;
        let gap_bytes = read.offset.checked_sub(second.end)?;
        if second.offset.checked_sub(first.offset)? != stride_bytes
            || second.end - second.offset < self.config.stream_read_bytes
        {
            return None;
        }
        Some(if gap_bytes < u64::from(self.config.page_bytes) { 0 } else { stride_bytes })
    }

    fn count_strays(&mut self, continued: Option<usize>) {
        for (index, stream) in self.streams.iter_mut().enumerate() {
            stream.strays = if Some(index) == continued { 0 } else { stream.strays + 1 };
        }
        if continued.is_none() {
            let file_bytes = self.file_bytes;
            self.streams.retain(|stream| stream.strays < MAX_STRAYS && stream.next_offset < file_bytes);
        }
    }

    fn random(&self, read: Span, known: &mut dyn FnMut(u64) -> bool, ask: &mut Vec<Range<u64>>) -> Serve {
        let page_bytes = u64::from(self.config.page_bytes);
        let pages = read.offset / page_bytes..read.end.div_ceil(page_bytes);
        let large =
            self.config.is_columnar || 2 * (read.end - read.offset) >= page_bytes.min(self.file_bytes);
        if large {
            push_unknown(pages, known, ask);
        } else if !pages.clone().all(known) {
            return Serve::Pfs;
        }
        Serve::Tier
    }
}

impl Stream {
    fn new(read: Span, stride_bytes: u64, window_bytes: u64, page_bytes: u32) -> Self {
        Self {
            began: read.offset,
            next_offset: read.offset,
            stride_bytes,
            window_bytes,
            frontier: read.offset / u64::from(page_bytes),
            asked_until: 0,
            hold_until: 0,
            opened: false,
            missed: false,
            strays: 0,
        }
    }

    /// Returns the bytes that a stream of a columnar file may have ahead after `read`.
    fn earned_bytes(&mut self, read: Span, page_bytes: u32, known: &mut dyn FnMut(u64) -> bool) -> u64 {
        let page_bytes = u64::from(page_bytes);
        if !self.missed {
            self.missed = !(read.offset / page_bytes..read.end.div_ceil(page_bytes)).all(known);
        }
        if self.missed { (read.end - self.began) / EARNED_DIVISOR } else { 0 }
    }

    /// Requests what `read` needs and, where due, the next window.
    fn advance(
        &mut self,
        read: Span,
        units: Units,
        max_window_bytes: u64,
        known: &mut dyn FnMut(u64) -> bool,
        ask: &mut Vec<Range<u64>>,
    ) {
        let Units { page_bytes, file_bytes, .. } = units;
        let own = read.offset / page_bytes..read.end.div_ceil(page_bytes);
        self.next_offset =
            if self.stride_bytes == 0 { read.end } else { read.offset.saturating_add(self.stride_bytes) };
        if self.stride_bytes == 0 {
            self.ask_for(own.clone(), known, ask);
        } else {
            // A read longer than those before it needs pages that the frontier has skipped.
            push_unknown(own.clone(), known, ask);
            self.frontier = self.frontier.max(own.end);
        }
        // Less than a page ahead counts as nothing: the window opens once there may be a page.
        if read.end < self.hold_until || max_window_bytes < page_bytes {
            return;
        }
        self.window_bytes = self.window_bytes.min(max_window_bytes);
        // Reads already requested ahead; a contiguous stream has no stride to divide by.
        match self.asked_until.saturating_sub(self.next_offset).checked_div(self.stride_bytes) {
            None => {
                let ahead_bytes = self.frontier.saturating_mul(page_bytes).saturating_sub(read.end);
                // At the end of the extent there is less ahead than the window would have, and that
                // is no reason to double it.
                let Some(end) = units.end_page(self.began, read).filter(|end| *end > self.frontier) else {
                    return;
                };
                if self.is_due(ahead_bytes, page_bytes, max_window_bytes) {
                    let target = own.end + self.window_bytes / page_bytes;
                    self.ask_for(own.end..target.min(end), known, ask);
                }
            }
            Some(reads_ahead) => {
                let ahead_bytes = reads_ahead * (own.end - own.start) * page_bytes;
                if self.is_due(ahead_bytes, page_bytes, max_window_bytes) {
                    self.ask_for_strides(read.end - read.offset, page_bytes, file_bytes, known, ask);
                }
            }
        }
    }

    /// Returns whether to request ahead now, with `ahead_bytes` already requested and not read; if
    /// so, opens or doubles the window.
    fn is_due(&mut self, ahead_bytes: u64, page_bytes: u64, max_window_bytes: u64) -> bool {
        if !self.opened {
            self.opened = true;
            return true;
        }
        if ahead_bytes > self.window_bytes / 2 {
            return false;
        }
        self.window_bytes = (2 * self.window_bytes).max(page_bytes).min(max_window_bytes);
        true
    }

    fn ask_for_strides(
        &mut self,
        read_bytes: u64,
        page_bytes: u64,
        file_bytes: u64,
        known: &mut dyn FnMut(u64) -> bool,
        ask: &mut Vec<Range<u64>>,
    ) {
        let mut budget = self.window_bytes / page_bytes;
        let mut offset = self.next_offset;
        while offset < file_bytes {
            let end = offset.saturating_add(read_bytes).min(file_bytes);
            let pages = offset / page_bytes..end.div_ceil(page_bytes);
            if pages.end - pages.start > budget {
                break;
            }
            budget -= pages.end - pages.start;
            self.ask_for(pages, known, ask);
            let Some(next) = offset.checked_add(self.stride_bytes) else { break };
            offset = next;
        }
        self.asked_until = self.asked_until.max(offset);
    }

    /// Requests the part of `pages` that is beyond the frontier, and moves the frontier.
    fn ask_for(&mut self, pages: Range<u64>, known: &mut dyn FnMut(u64) -> bool, ask: &mut Vec<Range<u64>>) {
        push_unknown(pages.start.max(self.frontier)..pages.end, known, ask);
        self.frontier = self.frontier.max(pages.end);
    }

    fn fall_back(&mut self, page: u64, page_bytes: u64) {
        self.frontier = page;
        self.opened = false;
        self.asked_until = self.next_offset;
        self.window_bytes = (self.window_bytes / 2).max(page_bytes);
        self.hold_until = self.next_offset.saturating_add(self.window_bytes / 2);
    }
}

/// Appends the runs of pages that are not known, joined to the last run where they touch.
fn push_unknown(pages: Range<u64>, known: &mut dyn FnMut(u64) -> bool, ask: &mut Vec<Range<u64>>) {
    for page in pages {
        if known(page) {
            continue;
        }
        match ask.last_mut() {
            Some(run) if run.end == page => run.end += 1,
            _ => ask.push(page..page + 1),
        }
    }
}
