//! What the oracle lets pass, and what it does not.

use super::*;
use crate::content::{Source, decode};
use crate::history::Contents;
use crate::record::{Found, How, Op, Record, Style, Way};

const MS: u64 = 1_000_000;
const RULES: Rules = Rules {
    look_ns: 50 * MS,
    granularity_ns: 20 * MS,
    plain: true,
    lag_ns: 0,
    stamped_lag_ns: 0,
    one_kernel: true,
};

/// One file of 4096 bytes of write 1, and these changes with their times in milliseconds.
fn history(changes: &[(u64, u64, Op)]) -> History {
    let mut state = State::default();
    state.put(0, 4096, 1);
    let mut history = History::of(&Contents::from([(0, (7, state))]));
    let log: Vec<Record> = changes
        .iter()
        .flat_map(|(begin, end, op)| {
            let done = Record::Done { at: end * MS, inos: vec![8] };
            [Record::Begin { at: begin * MS, op: op.clone() }, done]
        })
        .collect();
    history.take(&log, 1).unwrap();
    history
}

fn overwrite(write: u32, keep_mtime: bool) -> Op {
    Op::Overwrite { path: 0, write, start: 0, end: 4096, style: Style::Chunks(4096), keep_mtime }
}

/// A handle of the library, opened at a time, that read these writes whole at these times.
fn handle(opened: u64, reads: &[(u64, u32)]) -> HandleSeen {
    let read = |(at, write): &(u64, u32)| {
        let mut buffer = vec![0; 4096];
        crate::content::fill(*write, 0, &mut buffer);
        read_of(*at, Got::Bytes(decode(&buffer, 0)))
    };
    HandleSeen {
        node: 0,
        path: 0,
        kind: Kind::Cached,
        tiered: true,
        whole: false,
        begin: opened * MS,
        end: (opened + 1) * MS,
        opened: Ok(4096),
        reads: reads.iter().map(read).collect(),
        moved: false,
        version: String::new(),
    }
}

fn read_of(at: u64, got: Got) -> ReadSeen {
    let len = if matches!(got, Got::Bytes(_)) { 4096 } else { 0 };
    ReadSeen { begin: at * MS, end: (at + 1) * MS, offset: 0, wanted: 4096, len, got }
}

fn kind(history: &History, handle: &HandleSeen) -> &'static str {
    kind_by(&RULES, history, handle)
}

fn kind_by(rules: &Rules, history: &History, handle: &HandleSeen) -> &'static str {
    judge(history, rules, handle).map_or_else(|v| v.kind, |_| "right")
}

#[test]
fn an_open_after_a_change_sees_it_and_one_during_it_may_see_either() {
    let history = history(&[(100, 200, overwrite(2, false))]);
    assert_eq!(kind(&history, &handle(210, &[(220, 2)])), "right");
    assert_eq!(kind(&history, &handle(210, &[(220, 1)])), "stale");
    assert_eq!(kind(&history, &handle(150, &[(160, 1), (300, 2)])), "right");
    assert_eq!(kind(&history, &handle(150, &[(160, 3)])), "wrong");
}

#[test]
fn a_handle_keeps_to_its_version_but_for_one_look() {
    let history = history(&[(100, 110, overwrite(2, false))]);
    assert_eq!(kind(&history, &handle(50, &[(60, 1), (500, 1)])), "right");
    assert_eq!(kind(&history, &handle(50, &[(60, 1), (150, 2)])), "right");
    assert_eq!(kind(&history, &handle(50, &[(60, 1), (500, 2)])), "newer within one open");
    let mut tier_only = handle(50, &[(60, 1), (150, 2)]);
    tier_only.kind = Kind::TierOnly;
    assert_eq!(kind(&history, &tier_only), "newer within one open");
    let mut untiered = handle(50, &[(60, 1), (500, 2)]);
    untiered.tiered = false;
    assert_eq!(kind(&history, &untiered), "right");
    untiered
        .reads
        .push(read_of(600, Got::Bytes(vec![Part { start: 0, end: 4096, source: Source::Write(1) }])));
    assert_eq!(kind(&history, &untiered), "stale");
}

#[test]
fn an_mtime_set_back_is_hidden_only_by_an_attribute_change_on_another_node() {
    let back = (100, 110, overwrite(2, true));
    let late = handle(50, &[(500, 2)]);
    assert_eq!(kind(&history(std::slice::from_ref(&back)), &late), "newer within one open");
    let beside = history(&[back, (120, 121, Op::Chmod { path: 0 })]);
    assert_eq!(kind(&beside, &late), "newer within one open");
    let elsewhere = Rules { one_kernel: false, ..RULES };
    assert_eq!(kind_by(&elsewhere, &beside, &late), "right");
}

#[test]
fn estale_wants_a_change() {
    let stale = |opened| {
        let mut handle = handle(opened, &[]);
        handle.reads.push(read_of(500, Got::Error(libc::ESTALE)));
        handle
    };
    let changed = history(&[(100, 110, overwrite(2, false))]);
    assert_eq!(kind(&changed, &stale(50)), "right");
    assert_eq!(kind(&changed, &stale(120)), "spurious ESTALE");
    let linked = history(&[(100, 110, Op::Link { path: 0 })]);
    assert_eq!(kind(&linked, &stale(50)), "spurious ESTALE");
    let elsewhere = Rules { one_kernel: false, ..RULES };
    assert_eq!(kind_by(&elsewhere, &linked, &stale(50)), "right");
    assert_eq!(kind_by(&elsewhere, &linked, &stale(120)), "spurious ESTALE");
    let whole = |opened| HandleSeen { whole: true, ..stale(opened) };
    assert_eq!(kind(&linked, &whole(50)), "right");
    assert_eq!(kind(&linked, &whole(120)), "spurious ESTALE");
    // A handle that read directly in the end.
    let of = |kind| move |opened| HandleSeen { kind, tiered: false, ..stale(opened) };
    assert_eq!(kind(&changed, &of(Kind::Cat)(50)), "right");
    assert_eq!(kind(&changed, &of(Kind::Cat)(120)), "spurious ESTALE");
    assert_eq!(kind(&changed, &of(Kind::Plain)(50)), "spurious ESTALE");
}

#[test]
fn a_replaced_file_is_read_to_its_end_and_its_name_leads_to_the_new_one() {
    let new = Op::Rewrite { path: 0, write: 2, size: 4096, how: How::Plain(4096), way: Way::Rename };
    let history = history(&[(100, 110, new), (200, 210, overwrite(3, false))]);
    assert_eq!(kind(&history, &handle(50, &[(60, 1), (500, 1)])), "right");
    assert_eq!(kind(&history, &handle(50, &[(500, 2)])), "wrong");
    assert_eq!(kind(&history, &handle(120, &[(130, 2)])), "right");
    assert_eq!(kind(&history, &handle(220, &[(230, 3)])), "right");
}

#[test]
fn a_replacement_that_was_cut_off_has_written_nothing_to_the_old_file() {
    for found in [1, 2] {
        let mut state = State::default();
        state.put(0, 4096, 1);
        let mut history = History::of(&Contents::from([(0, (7, state))]));
        let op = Op::Rewrite { path: 0, write: 2, size: 4096, how: How::Plain(4096), way: Way::Unlink };
        let part = Part { start: 0, end: 4096, source: Source::Write(found) };
        // The new file may have the old one's inode number.
        let left = Some(Found { ino: 7, parts: vec![part] });
        let observed = Record::Observed { at: 120 * MS, path: 0, found: left };
        history.take(&[Record::Begin { at: 100 * MS, op }, observed], 0).unwrap();
        assert_eq!(kind(&history, &handle(50, &[(500, 1)])), "right");
        assert_eq!(kind(&history, &handle(130, &[(500, found)])), "right");
        assert_ne!(kind(&history, &handle(130, &[(500, 3 - found)])), "right");
    }
}

#[test]
fn a_name_leads_nowhere_only_while_it_is_away() {
    let history = history(&[(100, 110, Op::Away { path: 0, stay_ms: 5 })]);
    let missing = |at| HandleSeen { opened: Err(libc::ENOENT), ..handle(at, &[]) };
    assert_eq!(kind(&history, &missing(105)), "right");
    assert_eq!(kind(&history, &missing(150)), "unexpected error");
}

#[test]
fn only_a_read_that_gave_bytes_and_can_have_them_from_nowhere_else_counts_as_one_of_the_tier() {
    let history = history(&[]);
    let tier_reads = |kind, reads: &[ReadSeen]| {
        let handle = HandleSeen { kind, reads: reads.to_vec(), ..handle(50, &[]) };
        judge(&history, &RULES, &handle).unwrap().tier_reads
    };
    let whole = handle(50, &[(60, 1)]).reads;
    assert_eq!(tier_reads(Kind::TierOnly, &whole), 1);
    assert_eq!(tier_reads(Kind::Mapped, &whole), 1);
    assert_eq!(tier_reads(Kind::Cached, &whole), 0);
    assert_eq!(tier_reads(Kind::TierOnly, &[read_of(60, Got::Error(libc::ENODATA))]), 0);
}

#[test]
fn a_cat_without_an_agent_is_a_plain_read() {
    let history = history(&[(100, 110, overwrite(2, false))]);
    let remote = Rules { plain: false, one_kernel: false, ..RULES };
    let cat = |tiered| HandleSeen { kind: Kind::Cat, tiered, ..handle(500, &[(500, 1)]) };
    assert_eq!(kind_by(&remote, &history, &cat(true)), "stale");
    assert_eq!(kind_by(&remote, &history, &cat(false)), "right");
    assert_eq!(kind(&history, &cat(false)), "stale");
}

#[test]
fn late_stamps_excuse_an_old_version_only_where_nothing_else_moved_them() {
    let late = Rules { lag_ns: 3000 * MS, ..RULES };
    let overwritten = history(&[(100, 110, overwrite(2, false))]);
    assert_eq!(kind_by(&late, &overwritten, &handle(3000, &[(3100, 1)])), "right");
    assert_eq!(kind_by(&late, &overwritten, &handle(3200, &[(3300, 1)])), "stale");
    let times_set = history(&[(100, 110, overwrite(2, true))]);
    assert_eq!(kind_by(&late, &times_set, &handle(200, &[(300, 1)])), "stale");
    let same_node = HandleSeen { node: 1, ..handle(200, &[(300, 1)]) };
    assert_eq!(kind_by(&late, &overwritten, &same_node), "stale");
}

#[test]
fn late_stamps_let_newer_pages_into_an_open_version_until_they_arrive() {
    let late = Rules { lag_ns: 3000 * MS, ..RULES };
    let tier_only = |at, write| HandleSeen { kind: Kind::TierOnly, ..handle(50, &[(60, 1), (at, write)]) };
    let overwritten = [(100, 110, overwrite(2, false)), (4000, 4010, overwrite(3, false))];
    let twice = history(&overwritten);
    assert_eq!(kind_by(&late, &twice, &tier_only(150, 2)), "right");
    assert_eq!(kind_by(&late, &twice, &tier_only(5000, 2)), "right", "the page stays");
    assert_eq!(kind_by(&late, &twice, &tier_only(5000, 3)), "newer within one open");
    assert_eq!(kind(&twice, &tier_only(150, 2)), "newer within one open");
    let same_node = HandleSeen { node: 1, ..tier_only(150, 2) };
    assert_eq!(kind_by(&late, &twice, &same_node), "newer within one open");
    let times_set = history(&[(100, 110, overwrite(2, true))]);
    assert_eq!(kind_by(&late, &times_set, &tier_only(150, 2)), "newer within one open");
}

#[test]
fn a_file_overwritten_within_the_granularity_of_its_creation_may_have_the_same_version() {
    let coarse = Rules { granularity_ns: 2000 * MS, ..RULES };
    let new = Op::Rewrite { path: 0, write: 2, size: 4096, how: How::Through, way: Way::Rename };
    let overwritten = |at| history(&[(100, 110, new.clone()), (at, at + 10, overwrite(3, true))]);
    assert_eq!(kind_by(&coarse, &overwritten(1500), &handle(800, &[(6000, 3)])), "right");
    assert_eq!(kind_by(&coarse, &overwritten(2500), &handle(800, &[(6000, 3)])), "newer within one open");
}

/// A replacement that was killed before its rename has changed nothing of the file, however its
/// content is described; a later change begins the time of direct reads.
#[test]
fn a_replacement_that_was_cut_off_is_no_change_of_the_old_file() {
    let mut history = history(&[]);
    let op = Op::Rewrite { path: 0, write: 2, size: 4096, how: How::Plain(4096), way: Way::Rename };
    let mut whole = vec![0; 4096];
    crate::content::fill(1, 0, &mut whole);
    let mut parts = decode(&whole[..4090], 0);
    parts.push(crate::content::Part { start: 4090, end: 4096, source: Source::Raw(whole[4090..].to_vec()) });
    let found = Some(Found { ino: 7, parts });
    let log = [
        Record::Begin { at: 100 * MS, op },
        Record::Observed { at: 110 * MS, path: 0, found },
        Record::Begin { at: 500 * MS, op: overwrite(3, true) },
        Record::Done { at: 501 * MS, inos: vec![7] },
    ];
    history.take(&log, 1).unwrap();
    assert_eq!(kind(&history, &handle(50, &[(60, 1), (520, 3)])), "right");
    assert_eq!(kind(&history, &handle(50, &[(60, 1), (600, 3)])), "newer within one open");
}
