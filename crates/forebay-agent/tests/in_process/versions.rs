//! Which version of a file is cached, and when.

use crate::faulty::{Faulty, Outcome};
use crate::kit::{Node, PAGE, content, read, wait_for};
use forebay_client::ReadMode;
use forebay_pfs::Traits;
use forebay_pfs::lease::Writers;
use forebay_pfs::stamps::{Change, Stamps};
use std::path::Path;

/// Whether the file is in the tier after it has been read once, rightly.
fn is_cached(node: &Node, path: &Path, seed: u64, len: u64) -> bool {
    let file = node.client().open(path).unwrap();
    assert!(read(&file, 0, len).unwrap() == content(seed, 0, len as usize));
    node.client().open(path).unwrap().resident_bytes() == len
}

#[test]
fn a_file_that_changes_while_it_is_read_is_never_a_mixture() {
    let node = Node::new();
    let len = 8 * PAGE;
    let path = node.file("f", 1, len);
    let (changed, mut is_changed) = (path.clone(), false);
    node.source.judge(move |read| {
        if read.offset >= 2 * PAGE && !is_changed {
            is_changed = true;
            std::fs::write(&changed, content(2, 0, len as usize)).unwrap();
        }
        Outcome::Bytes
    });
    let load = node.load(&[&path]);
    assert!(!load.failures().is_empty(), "the change was not seen");
    let tier = node.client().open_with(&path, ReadMode::TierOnly);
    let resident = tier.map(|file| file.resident_bytes()).unwrap_or(0);
    assert_eq!(resident, 0, "pages of the old version are served for the new one");
    assert!(is_cached(&node, &path, 2, len));
}

#[test]
fn a_file_that_was_cut_while_it_is_read_is_another_version() {
    let node = Node::new();
    let path = node.file("f", 1, 4 * PAGE);
    node.source.judge(|read| if read.offset == 0 { Outcome::Bytes } else { Outcome::EndsAfter(10) });
    let load = node.load(&[&path]);
    assert!(!load.failures().is_empty(), "a read that ended early was taken for the page");
    node.source.heal();
    assert!(is_cached(&node, &path, 1, 4 * PAGE));
}

#[test]
fn a_file_that_somebody_writes_is_not_cached_until_nobody_does() {
    let node = Node::new();
    let path = node.file("f", 1, PAGE);
    node.source.set_writers(Writers::Some);
    assert!(!is_cached(&node, &path, 1, PAGE));
    assert!(node.source.reads().is_empty(), "the agent reads what it may not keep");
    node.source.set_writers(Writers::None);
    assert!(is_cached(&node, &path, 1, PAGE));
}

#[test]
fn where_other_nodes_may_write_a_file_has_to_be_quiet_first() {
    for (settle_ms, is_local, writers, wanted) in [
        (3_600_000, false, Writers::None, false),
        (3_600_000, true, Writers::None, true),
        (3_600_000, true, Writers::Unknown, false),
        (0, false, Writers::Unknown, true),
    ] {
        let node = Node::with(&format!("settle_ms = {settle_ms}"), |source| {
            source.set_traits(Traits { is_local, ..Traits::default() });
            source.set_writers(writers);
        });
        let path = node.file("f", 1, PAGE);
        assert_eq!(is_cached(&node, &path, 1, PAGE), wanted, "{settle_ms} ms, local {is_local}, {writers:?}");
    }
}

#[test]
fn nothing_is_cached_where_writes_do_not_move_the_time_stamps() {
    let rest = |source: &Faulty| source.set_stamps(Ok(Stamps::Rest(Change::Overwrite)));
    let node = Node::with("", rest);
    let path = node.file("f", 1, PAGE);
    assert!(!is_cached(&node, &path, 1, PAGE));
    let mount = &node.status().mounts[0];
    assert!(!mount.cached && mount.stamps.contains("mount.stamps = \"trust\""), "{}", mount.stamps);
    let trusting = Node::with("stamps = \"trust\"", rest);
    let path = trusting.file("f", 1, PAGE);
    assert!(is_cached(&trusting, &path, 1, PAGE));
}

#[test]
fn where_stamps_cannot_be_measured_the_type_of_the_file_system_decides() {
    for (known_stamps, wanted) in [(None, false), (Some(forebay_pfs::ChangeStamp::Ctime), true)] {
        let node = Node::with("", |source| {
            source.set_stamps(Err(libc::EROFS));
            source.set_traits(Traits { is_local: true, known_stamps, ..Traits::default() });
        });
        let path = node.file("f", 1, PAGE);
        assert_eq!(is_cached(&node, &path, 1, PAGE), wanted);
        let stamps = &node.status().mounts[0].stamps;
        assert!(wanted || stamps.contains("Read-only file system"), "{stamps}");
    }
}

#[test]
fn a_new_version_takes_the_place_of_the_one_that_is_cached() {
    let node = Node::new();
    let path = node.file("f", 1, 4 * PAGE);
    assert!(is_cached(&node, &path, 1, 4 * PAGE));
    node.file("f", 2, 2 * PAGE);
    assert!(is_cached(&node, &path, 2, 2 * PAGE));
    wait_for("the old one is gone", || {
        node.client().admin().list().unwrap().iter().map(|file| file.resident_bytes).sum::<u64>() == 2 * PAGE
    });
}
