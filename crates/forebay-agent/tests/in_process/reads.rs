//! Reads of the PFS: which, in which order, through which descriptor, and the outcome of their
//! faults.

use crate::faulty::{Outcome, Read};
use crate::kit::{Node, PAGE, THREADS, content, read, wait_for};
use forebay_client::ReadMode;
use forebay_pfs::Traits;
use forebay_pfs::layout::Layout;
use forebay_pfs::read::PageCache;
use std::collections::BTreeSet;
use std::time::Duration;

#[test]
fn the_pfs_serves_each_byte_of_a_cold_file_once_however_many_read_it() {
    let node = Node::with("read_ahead = \"1MiB\"", |_| {});
    let len = 40 * PAGE + 77;
    let path = node.file("f", 1, len);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let file = node.client().open(&path).unwrap();
                assert!(read(&file, 0, len).unwrap() == content(1, 0, len as usize));
            });
        }
    });
    let reads = node.source.reads();
    assert_eq!(reads.iter().map(|read| read.len as u64).sum::<u64>(), len, "{reads:?}");
    assert_eq!(node.counter("fetched_bytes"), len);
}

#[test]
fn a_read_that_fails_is_read_by_the_program_and_again_by_the_agent() {
    let node = Node::new();
    let path = node.file("f", 1, 4 * PAGE);
    node.source.judge(|_| Outcome::Fails(libc::EIO));
    let file = node.client().open(&path).unwrap();
    assert!(read(&file, 0, PAGE).unwrap() == content(1, 0, PAGE as usize), "the program can read the PFS");
    assert!(!node.source.reads().is_empty());
    assert!(node.counter("pages_failed_total") > 0);
    assert_eq!(file.resident_bytes(), 0, "a page that failed is there");
    node.source.heal();
    assert!(read(&file, 0, 4 * PAGE).unwrap() == content(1, 0, 4 * PAGE as usize));
    assert_eq!(file.resident_bytes(), 4 * PAGE, "after the fault nothing is cached any more");
}

#[test]
fn a_read_error_within_a_run_of_small_pages_fails_the_pages_that_cannot_be_read_and_no_others() {
    let node = Node::new();
    // Its pages are small, and several are one read.
    let (page, pages) = (16 << 10, 16);
    let path = node.file("f.parquet", 1, pages * page);
    let bad = 5 * page;
    node.source.judge(move |read| {
        let hit = (read.offset..read.offset + read.len as u64).contains(&bad);
        if hit { Outcome::Fails(libc::EIO) } else { Outcome::Bytes }
    });
    let file = node.client().open(&path).unwrap();
    assert!(read(&file, 0, pages * page).unwrap() == content(1, 0, (pages * page) as usize));
    assert!(
        node.source.reads().iter().any(|read| read.len as u64 > page && read.offset <= bad),
        "no run met it"
    );
    let tier = node.client().open_with(&path, ReadMode::TierOnly).unwrap();
    wait_for("the others are there", || tier.resident_bytes() == (pages - 1) * page);
    assert!(read(&tier, bad, page).unwrap_err().to_string().contains("not in the tier"));
}

#[test]
fn a_read_that_hangs_costs_its_reader_the_deadline_and_nobody_else_anything() {
    let node = Node::new();
    let (cold, cached) = (node.file("cold", 1, PAGE), node.file("cached", 2, PAGE));
    node.load(&[&cached]);
    node.source.hold();
    let file = node.client_with(Duration::from_millis(200)).open(&cold).unwrap();
    assert!(read(&file, 0, PAGE).unwrap() == content(1, 0, PAGE as usize), "it reads the PFS itself");
    node.source.await_held(1);
    assert_eq!(node.counter("timeouts_total"), 1);
    assert!(node.status().mounts[0].fetches_pending > 0);
    let other = node.client().open(&cached).unwrap();
    assert!(read(&other, 0, PAGE).unwrap() == content(2, 0, PAGE as usize));
    node.source.release();
    wait_for("the page is there", || node.client().open(&cold).unwrap().resident_bytes() == PAGE);
}

#[test]
fn an_agent_ends_while_its_pfs_hangs() {
    let mut node = Node::new();
    let path = node.file("f", 1, PAGE);
    node.source.hold();
    let file = node.client_with(Duration::from_millis(100)).open(&path).unwrap();
    read(&file, 0, PAGE).unwrap();
    node.source.await_held(1);
    node.end();
    node.source.await_held(1);
}

#[test]
fn the_page_that_a_reader_waits_for_is_not_fetched_as_read_ahead() {
    let node = Node::with("read_ahead = \"1MiB\"", |_| {});
    let path = node.file("f", 1, 16 * PAGE);
    let file = node.client().open(&path).unwrap();
    assert!(read(&file, 0, PAGE).unwrap() == content(1, 0, PAGE as usize));
    wait_for("the window is there", || file.resident_bytes() == 16 * PAGE);
    wait_for("all are counted", || {
        node.counter("pages_demanded_total") + node.counter("pages_ahead_total") == 16
    });
    assert_eq!((node.counter("pages_demanded_total"), node.counter("fetch_requests_total")), (1, 1));
}

/// A PFS with a client that reads ahead for each descriptor and begins again elsewhere, in chunks
/// of a server each.
fn reads_ahead() -> Traits {
    Traits { reads_ahead: true, chunk_bytes: Some(8 * PAGE), is_local: true, ..Traits::default() }
}

#[test]
fn where_the_client_reads_ahead_a_reader_gets_its_pages_in_order_by_one_descriptor() {
    let node = Node::with("read_ahead = \"2MiB\"", |source| source.set_traits(reads_ahead()));
    let len = 64 * PAGE;
    let path = node.file("f", 1, len);
    let file = node.client().open(&path).unwrap();
    for page in 0..64 {
        assert!(read(&file, page * PAGE, PAGE).unwrap() == content(1, page * PAGE, PAGE as usize));
    }
    wait_for("all is there", || file.resident_bytes() == len);
    assert!(node.read_offsets().is_sorted(), "{:?}", node.source.reads());
    let mut by: Vec<i32> = node.source.reads().iter().map(|read| read.by).collect();
    by.dedup();
    assert!(by.len() <= 2, "the client begins anew with each descriptor: {by:?}");
}

#[test]
fn where_the_client_reads_ahead_a_load_does_not_use_that_and_keeps_several_servers_busy() {
    let node = Node::with("", |source| source.set_traits(reads_ahead()));
    let path = node.file("f", 1, 64 * PAGE);
    node.load(&[&path]);
    let reads = node.source.reads();
    assert_eq!(reads.iter().map(|read| read.len as u64).sum::<u64>(), 64 * PAGE);
    let first = reads.iter().position(|read| read.offset == 0).unwrap();
    let second_half = reads.iter().position(|read| read.offset == reads[first].len as u64).unwrap();
    assert!(second_half < first, "the client reads on from the beginning of a file: {reads:?}");
    let chunks: BTreeSet<u64> = reads.iter().take(8).map(|read| read.offset / (8 * PAGE)).collect();
    assert!(chunks.len() >= 4, "one server sends while the others wait: {reads:?}");
}

#[test]
fn where_the_kernel_keeps_old_pages_reads_pass_by_them() {
    for (keep, wanted) in [(false, PageCache::Bypass), (true, PageCache::Keep)] {
        let node = Node::with(&format!("keep_page_cache = {keep}"), |source| {
            source.set_traits(Traits { keeps_old_pages: true, is_local: true, ..Traits::default() });
        });
        let path = node.file("f", 1, 4 * PAGE);
        let file = node.client().open(&path).unwrap();
        assert!(read(&file, 0, PAGE).unwrap() == content(1, 0, PAGE as usize));
        let reads = node.source.reads();
        assert!(!reads.is_empty() && reads.iter().all(|read| read.page_cache == wanted), "{reads:?}");
    }
}

#[test]
fn a_striped_file_is_read_with_its_stripes_known_and_asked_for_them_once() {
    let node = Node::with("page_size = \"2MiB\"", |source| {
        let servers = ["a", "b", "c"].map(String::from).to_vec();
        source.set_layout(Layout { stripe_bytes: PAGE, servers, first_server: 0 });
    });
    let path = node.file("f", 1, 64 * PAGE);
    node.load(&[&path]);
    let reads = node.source.reads();
    let large = |read: &&Read| read.len > 256 << 10;
    assert!(reads.iter().any(|read| large(&read)), "{reads:?}");
    assert!(reads.iter().filter(large).all(|read| read.stripe_bytes == PAGE), "{reads:?}");
    // Once for its stripes, and once for its servers.
    assert!(node.source.layouts_asked() <= 2, "the PFS was asked for each read");
}

/// A load of a file whose reads hang: the load, and how many reads do.
fn held_load(node: &Node, path: &std::path::Path) -> (forebay_client::Load, usize) {
    node.source.hold();
    let mut load = node.client().load(0).unwrap();
    load.add(path).unwrap();
    load.flush().unwrap();
    wait_for("all that may be under way is", || node.source.reads().len() == THREADS);
    node.source.await_held(THREADS);
    (load, THREADS)
}

#[test]
fn a_readers_page_is_read_before_those_of_a_load_that_came_earlier() {
    let node = Node::new();
    let (loaded, read_now) = (node.file("loaded", 1, 32 * PAGE), node.file("read", 2, 64 * PAGE));
    let (_load, held) = held_load(&node, &loaded);
    let wanted = 63 * PAGE;
    std::thread::scope(|scope| {
        let requests = node.counter("fetch_requests_total");
        let reader = scope.spawn(|| {
            let file = node.client().open(&read_now).unwrap();
            read(&file, wanted, PAGE).unwrap() == content(2, wanted, PAGE as usize)
        });
        wait_for("the reader waits", || node.counter("fetch_requests_total") > requests);
        node.source.release();
        assert!(reader.join().unwrap());
    });
    let at = node.read_offsets().iter().position(|offset| *offset == wanted).unwrap();
    assert!((held..held + THREADS).contains(&at), "{:?}", node.read_offsets());
}

#[test]
fn a_load_that_is_cancelled_reads_nothing_more() {
    let node = Node::new();
    let path = node.file("f", 1, 32 * PAGE);
    let (load, held) = held_load(&node, &path);
    load.cancel().unwrap();
    node.source.release();
    node.await_status("nothing is under way", |status| status.mounts[0].fetches_pending == 0);
    assert_eq!(node.source.reads().len(), held);
}

#[test]
fn of_a_version_that_was_overwritten_no_more_is_read_than_was_under_way() {
    let node = Node::new();
    let path = node.file("f", 1, 32 * PAGE);
    let (mut load, held) = held_load(&node, &path);
    node.file("f", 2, 32 * PAGE);
    node.source.release();
    wait_for("the load has ended", || load.poll(std::time::Duration::from_secs(1)).unwrap().idle);
    assert_eq!(load.failures().len(), 1);
    assert!(node.source.reads().len() <= held + THREADS, "{:?}", node.read_offsets());
    assert_eq!(node.client().open(&path).unwrap().resident_bytes(), 0);
}
