//! Adjacent small pages that a peer owns, requested as one.
//!
//! A request for each would cost a message for every few kilobytes, and the owner would read the
//! PFS as often. The owner answers with those that it has, from the first on; the rest is requested
//! again, or read from the PFS, as with a page by itself. Each page keeps its own fetch and its
//! own room.

use super::peer_link::{Answer, Link, job_of};
use super::peers::{Asked, Onward, Peer, Peers, wanted};
use super::pfs::goes_with;
use super::run::Run;
use crate::cache::entry::Task;
use crate::cache::page_fetch::FetchError;
use crate::counters::add;
use forebay_policy::eviction::Fill;
use forebay_policy::fetch_order::Urgency;
use forebay_wire::NodeInfo;
use std::sync::Arc;
use std::time::Instant;

/// Pages of one file in their order, as few tasks as there may be.
fn joined(pages: Vec<Task>) -> Vec<Task> {
    let mut runs: Vec<Task> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some(run) if run.urgency == page.urgency && goes_with(run, &page.page_fetch) => {
                run.behind.push(page.page_fetch);
            }
            _ => runs.push(page),
        }
    }
    runs
}

impl Peer {
    /// Fetches the pages of a task here.
    pub(super) fn fetch_run(
        self: &Arc<Self>,
        peers: &Arc<Peers>,
        (number, link): (usize, &mut Option<Link>),
        task: &Task,
        since: Instant,
    ) {
        // Owner and view may have changed while the task waited. Peers may have asked for some.
        let all = task.page_fetches().map(|page_fetch| task.of(page_fetch));
        let (elsewhere, here): (Vec<_>, Vec<_>) = all.partition(|page| page.page_fetch.is_kept_from_peers());
        joined(elsewhere).into_iter().for_each(|run| peers.pfs.send(run));
        let owner = peers.owners.owner_of(&task.entry, task.page_fetch.page);
        let Some(node) = owner.filter(|node| node.name == self.name) else {
            return joined(here).into_iter().for_each(|run| peers.send_anew(run));
        };
        let mut run = Run::default();
        for page in here {
            if !page.page_fetch.take() {
                peers.completions.refilled(&page);
                continue;
            }
            let ordered = page.urgency == Urgency::Plan && !page.page_fetch.is_demanded();
            if ordered && page.page_fetch.give_up_unwanted() {
                peers.finish(&page, Err(FetchError::Cancelled));
                continue;
            }
            match peers.begin(&page) {
                // By itself, as only the rest of it is missing.
                Ok(Some(begun)) if begun.done() > 0 => {
                    page.page_fetch.hand_over(Some(begun));
                    self.ask_again(peers, page, since);
                }
                Ok(Some(begun)) => {
                    if !run.takes(&begun, page.page_fetch.page) {
                        self.ask_for_run(peers, (number, &mut *link), &node, std::mem::take(&mut run), since);
                    }
                    page.page_fetch.ask_peer();
                    run.add(page, begun);
                }
                Ok(None) => peers.finish(&page, Ok(0)),
                Err(e) => peers.finish(&page, Err(e)),
            }
        }
        self.ask_for_run(peers, (number, link), &node, run, since);
    }

    /// Requests pages, shows those that come and ends their fetches; the others continue.
    fn ask_for_run(
        self: &Arc<Self>,
        peers: &Arc<Peers>,
        (number, link): (usize, &mut Option<Link>),
        node: &NodeInfo,
        run: Run,
        since: Instant,
    ) {
        let Some((first, offset, len)) = run.range() else { return };
        let reason = wanted(first.urgency, run.is_demanded());
        // One page that a reader waits for is in a hurry, and those around it are not.
        let of_pages = run.each(|task| wanted(task.urgency, task.page_fetch.is_demanded()));
        let page = peers.page_ref(&first.entry, &first.pfs, first.page_fetch.page);
        let (range, job) = (offset..offset + len as u64, job_of(first));
        let answer = self.with_link(peers, node, (number, link), &page.file.version, |link, deadline| {
            add(&peers.counters.peer_requests_total, 1);
            let reason = (reason, job.clone());
            link.pages((&peers.counters, &page), reason, run.file(), range.clone(), deadline)
        });
        run.trim(&peers.cache);
        let mut came = if let Answer::Done(bytes) = answer { bytes } else { 0 };
        // The owner has some: the others are asked for again.
        let (is_coming, answer) = if came > 0 { (true, Answer::NotYet) } else { (false, answer) };
        let mut missing = Vec::new();
        for ((task, mut begun), wanted) in run.into_pages().zip(of_pages) {
            let page_len = task.entry.geometry().page_len(task.page_fetch.page);
            if came >= page_len {
                came -= page_len;
                add(&peers.counters.pages_from_peers_total, 1);
                begun.show(&task, page_len);
                begun.land_trimmed(&peers.cache, &task, Fill::Remote);
                peers.finish(&task, Ok(page_len));
            } else if let Answer::Tier(e) = &answer {
                begun.abandon(&peers.cache, &task);
                peers.finish(&task, Err(e.clone()));
            } else {
                missing.push(Asked { task, begun, wanted, since, is_coming });
            }
        }
        self.send_on(peers, missing, &answer, since);
    }

    /// Sends pages that did not come on, together.
    fn send_on(self: &Arc<Self>, peers: &Arc<Peers>, missing: Vec<Asked>, answer: &Answer, since: Instant) {
        let (mut again, mut from_pfs) = (Vec::new(), Vec::new());
        for asked in missing {
            match peers.onward(asked, answer) {
                Onward::Again(task) => again.push(task),
                Onward::Pfs(task) => from_pfs.push(task),
                Onward::Ended => {}
            }
        }
        joined(again).into_iter().for_each(|run| self.ask_again(peers, run, since));
        joined(from_pfs).into_iter().for_each(|run| peers.pfs.send(run));
    }
}
