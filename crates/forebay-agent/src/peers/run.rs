//! Adjacent small pages that a peer requests as one.
//!
//! Those that are not in the tier are read from the PFS together, as for a local reader. The answer
//! is the pages that are there, from the first on, as one piece: the asker requests the rest again,
//! and nobody waits long for a page that comes late.

use super::server::{BUFFER_BYTES, PATIENCE_AHEAD, Serving, failed, hurry};
use crate::cache::entry::Entry;
use crate::cache::page_fetch::{FetchState, PageFetch, Watcher};
use crate::counters::add;
use forebay_policy::fetch_order::Urgency;
use forebay_store::State;
use forebay_wire::JobName;
use forebay_wire::peer::{PageRef, PeerReply, RUN_BYTES_MAX, Wanted};
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;

/// Adjacent pages, each with its fetch if it is not in the tier.
struct FoundRun {
    entry: Arc<Entry>,
    pages: Vec<(u32, Option<Arc<PageFetch>>)>,
}

/// Numbers of the pages that are requested.
fn numbers(first: &PageRef, count: u32) -> Result<RangeInclusive<u32>, PeerReply> {
    let most = RUN_BYTES_MAX.checked_div(first.page_bytes).unwrap_or(0);
    match first.page.checked_add(count.saturating_sub(1)) {
        Some(last) if (1..=most).contains(&count.into()) => Ok(first.page..=last),
        _ => Err(PeerReply::Refused(format!("{count} pages of {} bytes are no run", first.page_bytes))),
    }
}

impl FoundRun {
    /// Waits for its pages; returns how many are there, from the first on.
    fn wait(&self, patience: Instant) -> Result<usize, PeerReply> {
        for (count, (page, page_fetch)) in self.pages.iter().enumerate() {
            let Some(page_fetch) = page_fetch else { continue };
            // The first is waited for; each other one may come a little later.
            let until = if count == 0 { patience } else { patience.min(Instant::now() + PATIENCE_AHEAD) };
            match page_fetch.wait(self.entry.geometry().page_len(*page), until) {
                FetchState::Landed => {}
                _ if count > 0 => return Ok(count),
                FetchState::Under(_) => return Err(PeerReply::NotYet),
                FetchState::Failed(e) => return Err(failed(e)),
            }
        }
        Ok(self.pages.len())
    }
}

impl Serving<'_> {
    /// Sends adjacent pages; the inner error is the answer to give instead.
    pub(super) fn pages(
        &mut self,
        (first, job): (&PageRef, &JobName),
        count: u32,
        wanted: Wanted,
        deadline: Instant,
    ) -> io::Result<Result<(), PeerReply>> {
        let (urgency, patience) = hurry(wanted, deadline);
        let found = self.find_run((first, job), count, urgency, patience);
        let (found, count) = match found.and_then(|found| found.wait(patience).map(|count| (found, count))) {
            Ok(found) => found,
            Err(reply) => return Ok(Err(reply)),
        };
        let (server, entry) = (self.server, &found.entry);
        let geometry = entry.geometry();
        let pages = &found.pages[..count];
        // As for a single page.
        let used = pages.iter().filter(|(_, page_fetch)| page_fetch.is_none() || wanted == Wanted::Ahead);
        if wanted != Wanted::Plan {
            server.cache.touch(&used.map(|(page, _)| entry.key(*page)).collect::<Vec<_>>());
        }
        let lent: Vec<_> = pages.iter().map_while(|(page, _)| server.cache.lend(entry, *page)).collect();
        if !lent.is_empty() {
            let start = u64::from(first.page) * geometry.page_bytes;
            let len: u64 = pages[..lent.len()].iter().map(|(page, _)| geometry.page_len(*page)).sum();
            return self.send_lent(server, lent, start..start + len, deadline).map(Ok);
        }
        // Evicted meanwhile, or too much is on its way to peers: the first by itself.
        let page_len = geometry.page_len(first.page);
        if page_len <= BUFFER_BYTES as u64 && self.send_valid(entry, first.page, &mut 0, page_len)? {
            add(&server.counters.pages_to_peers_total, 1);
            return Ok(Ok(()));
        }
        Ok(Err(PeerReply::Busy("the pages cannot be kept in place".into())))
    }

    /// Finds the pages, or puts them on their way; waits until `until` for their file to be opened.
    fn find_run(
        &self,
        (first, job): (&PageRef, &JobName),
        count: u32,
        urgency: Urgency,
        until: Instant,
    ) -> Result<FoundRun, PeerReply> {
        let server = self.server;
        let numbers = numbers(first, count)?;
        let mount = self.mount_of(first, *numbers.end())?;
        let known = server.cache.find_version(mount, &first.file.version);
        let known = known.filter(|entry| entry.identity.page_bytes == first.page_bytes);
        let is_here = |entry: &Arc<Entry>, page| {
            server.cache.file(entry).is_ok_and(|file| file.word(page).state == State::Resident)
        };
        if let Some(entry) = &known
            && numbers.clone().all(|page| is_here(entry, page))
        {
            let pages = numbers.map(|page| (page, None)).collect();
            return Ok(FoundRun { entry: entry.clone(), pages });
        }
        let on_its_way = known.as_ref().is_some_and(|entry| {
            numbers.clone().all(|page| entry.is_being_fetched(page) || is_here(entry, page))
        });
        let pfs = self.open_for(&first.file, job, until)?;
        // Kept until all of them have come.
        let leave = match urgency {
            Urgency::Plan if !on_its_way => {
                let leave = server.requests.pass(mount, Instant::now() + PATIENCE_AHEAD);
                Some(Arc::new(leave.ok_or(PeerReply::NotYet)?) as Arc<dyn Watcher>)
            }
            _ => None,
        };
        // Twice: an entry can be removed between being found and being boarded.
        for _ in 0..2 {
            let entry = self.entry(mount, first, &pfs)?;
            let absent: Vec<u32> = numbers.clone().filter(|page| !is_here(&entry, *page)).collect();
            let page_fetches =
                server.fetch.request_run_for_peer(&entry, &absent, &pfs, urgency, leave.as_ref());
            let Some(page_fetches) = page_fetches else { continue };
            let mut page_fetches = page_fetches.into_iter().peekable();
            let found = |page| match page_fetches.next_if(|page_fetch| page_fetch.page == page) {
                None if absent.binary_search(&page).is_ok() => None,
                page_fetch => Some((page, page_fetch)),
            };
            let pages: Vec<_> = numbers.clone().map_while(found).collect();
            if pages.is_empty() {
                return Err(PeerReply::Busy("the page is being asked of another peer here".into()));
            }
            return Ok(FoundRun { entry, pages });
        }
        Err(PeerReply::Busy("the copy is being removed".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_pfs::FileVersion;
    use forebay_wire::FileRef;

    #[test]
    fn a_run_has_pages_and_no_more_bytes_than_may_be() {
        let version = FileVersion { ino: 7, size: 1 << 30, mtime_ns: 0, ctime_ns: 0 };
        let file = FileRef { mount: "pfs".into(), path: b"f".to_vec(), version };
        let of =
            |page_bytes, page, count| numbers(&PageRef { file: file.clone(), page_bytes, page }, count).ok();
        assert_eq!(of(16 << 10, 5, 128), Some(5..=132));
        assert_eq!(of(16 << 10, 5, 1), Some(5..=5));
        for (page_bytes, page, count) in
            [(16 << 10, 5, 129), (16 << 10, 5, 0), (0, 5, 1), (16 << 10, u32::MAX, 2)]
        {
            assert_eq!(of(page_bytes, page, count), None, "{count} pages of {page_bytes} from {page}");
        }
    }
}
