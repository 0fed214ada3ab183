//! Exact answers for the patterns that matter, and the promises for any pattern.

#![allow(clippy::single_range_in_vec_init)] // lists of ranges that happen to hold one

use super::*;
use alloc::{collections::BTreeSet, vec};
use proptest::prelude::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const PAGE: u64 = 2 * MIB;

fn handle(file_bytes: u64) -> Readahead {
    Readahead::new(ReadaheadConfig::for_page(PAGE as u32), file_bytes)
}

/// One read with nothing resident.
fn read(handle: &mut Readahead, offset: u64, len: u64) -> (Serve, Vec<Range<u64>>) {
    let mut ask = Vec::new();
    let serve = handle.on_read(offset, len, &mut |_| false, &mut ask);
    (serve, ask)
}

#[test]
fn the_window_doubles_at_half_marks() {
    let mut handle = handle(1 << 30);
    let mut asked = Vec::new();
    for at in 0..24 {
        let (serve, ask) = read(&mut handle, at * MIB, MIB);
        assert_eq!(serve, Serve::Tier);
        asked.extend(ask.into_iter().map(|pages| (at, pages)));
    }
    assert_eq!(asked, [(0, 0..3), (3, 3..6), (7, 6..12), (15, 12..24)]);
    assert_eq!(handle.window_bytes(), 32 * MIB);
}

#[test]
fn the_window_stops_at_its_bound() {
    let mut handle = handle(4 << 30);
    let mut furthest = 0;
    for at in 0..1024 {
        for pages in read(&mut handle, at * MIB, MIB).1 {
            furthest = furthest.max(pages.end * PAGE - (at + 1) * MIB);
        }
    }
    assert_eq!(handle.window_bytes(), 64 * MIB);
    assert!((63 * MIB..=66 * MIB).contains(&furthest), "{furthest}");
}

#[test]
fn a_reader_slower_than_the_file_system_never_waits() {
    // In a tick the reader takes 256 KiB and the file system fetches 320 KiB, in the order asked.
    let mut handle = handle(1 << 30);
    let (mut arrived_bytes, mut asked_bytes, mut waits) = (0, 0, 0);
    for at in (0..1u64 << 30).step_by(256 * KIB as usize) {
        let (_, ask) = read(&mut handle, at, 256 * KIB);
        asked_bytes += ask.iter().map(|pages| (pages.end - pages.start) * PAGE).sum::<u64>();
        if arrived_bytes < at + 256 * KIB {
            waits += 1;
            arrived_bytes = arrived_bytes.max((at + 256 * KIB).next_multiple_of(PAGE));
        }
        arrived_bytes = (arrived_bytes + 320 * KIB).min(asked_bytes);
    }
    assert_eq!(waits, 1, "only for the first page");
}

#[test]
fn small_random_reads_go_to_the_file_system_and_large_ones_fill() {
    let mut handle = handle(1 << 30);
    for offset in [700 * MIB, 3 * MIB, 90 * MIB] {
        assert_eq!(read(&mut handle, offset, 4 * KIB), (Serve::Pfs, vec![]));
    }
    assert_eq!(read(&mut handle, 501 * MIB, 2 * MIB), (Serve::Tier, vec![250..252]));
    assert_eq!(read(&mut handle, 301 * MIB, 900 * KIB), (Serve::Pfs, vec![]));
    let mut ask = Vec::new();
    let resident = &mut |_| true;
    assert_eq!((handle.on_read(7 * MIB, 4 * KIB, resident, &mut ask), ask), (Serve::Tier, vec![]));
}

#[test]
fn small_files_are_filled_by_one_read() {
    assert_eq!(read(&mut handle(20 * KIB), 0, 64 * KIB), (Serve::Tier, vec![0..1]));
    assert_eq!(read(&mut handle(20 * KIB), 0, 4 * KIB), (Serve::Pfs, vec![]));
    assert_eq!(read(&mut handle(0), 0, 4 * KIB), (Serve::Pfs, vec![]));
    assert_eq!(read(&mut handle(20 * KIB), 20 * KIB, 4 * KIB), (Serve::Pfs, vec![]));
}

#[test]
fn two_small_contiguous_reads_make_a_stream() {
    let mut handle = handle(100 * MIB);
    assert_eq!(read(&mut handle, 10 * MIB, 4 * KIB), (Serve::Pfs, vec![]));
    assert_eq!(read(&mut handle, 10 * MIB + 4 * KIB, 4 * KIB), (Serve::Tier, vec![5..8]));
    assert_eq!(read(&mut handle, 11 * MIB, 4 * KIB), (Serve::Tier, vec![]), "a skip below a page");
    assert_eq!(read(&mut handle, 60 * MIB, 4 * KIB), (Serve::Pfs, vec![]), "a far jump");
    assert_eq!(read(&mut handle, 10 * MIB, 4 * KIB), (Serve::Pfs, vec![]), "a step back");
    assert_eq!(read(&mut handle, 11 * MIB + 4 * KIB, 3 * MIB), (Serve::Tier, vec![8..12]), "and on");
}

#[test]
fn interleaved_streams_share_the_bound() {
    let mut handle = handle(1 << 30);
    for at in 0..128 {
        for start in [0, 300 * MIB, 600 * MIB] {
            let (serve, _) = read(&mut handle, start + at * MIB, MIB);
            assert_eq!(serve, Serve::Tier);
        }
    }
    assert_eq!((handle.streams.len(), handle.window_bytes()), (3, 64 * MIB / 3));
}

#[test]
fn random_reads_end_a_stream() {
    let mut handle = handle(1 << 30);
    read(&mut handle, 0, MIB);
    for count in 0..u64::from(MAX_STRAYS) {
        read(&mut handle, (500 + 7 * (count * count % 61)) * MIB, 4 * KIB);
    }
    assert_eq!(handle.streams.len(), 0);
}

#[test]
fn a_constant_stride_is_followed() {
    let mut handle = handle(1 << 30);
    let stride = 20 * MIB;
    let mut known = BTreeSet::new();
    let mut follow = |count| {
        let mut ask = Vec::new();
        let serve = handle.on_read(count * stride, 256 * KIB, &mut |page| known.contains(&page), &mut ask);
        known.extend(ask.iter().cloned().flatten());
        (serve, ask)
    };
    let asked: Vec<_> = (1..8).map(&mut follow).collect();
    let pages = |reads: Range<u64>| reads.map(|count| 10 * count..10 * count + 1).collect::<Vec<_>>();
    assert_eq!(asked[..2], [(Serve::Pfs, vec![]), (Serve::Pfs, vec![])]);
    assert_eq!(asked[2], (Serve::Tier, pages(3..6)), "its own page and a window of two");
    assert_eq!(asked[3], (Serve::Tier, pages(6..9)), "one of two is left: four ahead of read 4");
    assert_eq!(asked[4..6], [(Serve::Tier, vec![]), (Serve::Tier, pages(9..15))]);
}

#[test]
fn a_refusal_halves_the_window_and_is_not_repeated_at_once() {
    let mut handle = handle(1 << 30);
    (0..16).for_each(|at| _ = read(&mut handle, at * MIB, MIB));
    assert_eq!((handle.window_bytes(), handle.streams[0].frontier), (32 * MIB, 24));
    handle.refused(12);
    assert_eq!((handle.window_bytes(), handle.streams[0].frontier), (16 * MIB, 12));
    for at in 16..23 {
        assert_eq!(read(&mut handle, at * MIB, MIB), (Serve::Tier, vec![]), "held until 24 MiB");
    }
    assert_eq!(read(&mut handle, 23 * MIB, MIB), (Serve::Tier, vec![12..20]));
}

#[test]
fn what_a_read_needs_is_asked_for_even_while_held() {
    let mut handle = handle(1 << 30);
    (0..16).for_each(|at| _ = read(&mut handle, at * MIB, MIB));
    handle.refused(8);
    let asked: Vec<_> = (16..20).map(|at| read(&mut handle, at * MIB, MIB).1).collect();
    assert_eq!(asked, [vec![8..9], vec![], vec![9..10], vec![]]);
}

#[test]
fn a_window_of_zero_turns_it_off() {
    let config = ReadaheadConfig { max_window_bytes: 0, ..ReadaheadConfig::for_page(PAGE as u32) };
    let mut handle = Readahead::new(config, 100 * MIB);
    let asked: Vec<_> = (0..4).map(|at| read(&mut handle, at * MIB, MIB).1).collect();
    assert_eq!(asked, [vec![0..1], vec![], vec![1..2], vec![]]);
}

/// Tasks that divide a file by extents fetch their own extent and the page with the rest of their
/// last line.
#[test]
fn the_next_extent_is_not_asked_for_before_the_reader_is_in_it() {
    let extent_pages = 8;
    let extent = extent_pages * PAGE;
    let config = ReadaheadConfig { extent_bytes: extent, ..ReadaheadConfig::for_page(PAGE as u32) };
    let asked = |handle: &mut Readahead, reads: Range<u64>, len: u64| -> Vec<Range<u64>> {
        let offsets = (reads.start..reads.end).step_by(len as usize);
        offsets.flat_map(|at| read(handle, at, len).1).collect()
    };
    let last = |asked: &[Range<u64>]| asked.iter().map(|pages| pages.end).max().unwrap_or(0);
    let mut handle = Readahead::new(config, 100 * extent);
    // The second extent's task, to its last byte, and then the rest of a line.
    let its = asked(&mut handle, extent..2 * extent, 64 * KIB);
    assert_eq!((its[0].start, last(&its)), (extent_pages, 2 * extent_pages + 1));
    assert_eq!(asked(&mut handle, 2 * extent..2 * extent + 64 * KIB, 64 * KIB), []);
    let window = handle.window_bytes();
    assert!(window < 2 * extent, "{window}: it doubles for what it may not ask for");
    // A reader that reads on requests further pages.
    let on = asked(&mut handle, 2 * extent + 64 * KIB..2 * extent + PAGE, 64 * KIB);
    assert!(last(&on) > 2 * extent_pages + 1 && last(&on) <= 3 * extent_pages + 1, "{on:?}");
    // A long read asks for all its pages, wherever they are.
    let all = asked(&mut Readahead::new(config, 100 * extent), 0..3 * extent, 3 * extent);
    assert_eq!((all[0].start, last(&all) > 3 * extent_pages), (0, true));
}

#[test]
fn whoever_has_read_an_extent_and_a_page_does_not_pause_at_the_next() {
    let (extent_pages, window_pages) = (8, 4);
    let extent = extent_pages * PAGE;
    let config = ReadaheadConfig {
        extent_bytes: extent,
        max_window_bytes: window_pages * PAGE,
        ..ReadaheadConfig::for_page(PAGE as u32)
    };
    let mut handle = Readahead::new(config, 100 * extent);
    let mut asked_until = 0;
    for at in 0..5 * extent_pages {
        let asked = read(&mut handle, at * PAGE, PAGE).1;
        asked_until = asked.last().map_or(asked_until, |pages| pages.end);
        let ahead = asked_until - (at + 1);
        if at < extent_pages {
            assert!(asked_until <= extent_pages + 1, "page {at}: {asked_until}");
        } else if at > extent_pages {
            assert!((window_pages / 2..=window_pages).contains(&ahead), "page {at}: {ahead} ahead");
        }
    }
}

#[test]
fn of_a_columnar_file_is_fetched_what_is_read_and_what_reading_on_has_earned() {
    let page = 32 * KIB;
    let config = ReadaheadConfig { is_columnar: true, ..ReadaheadConfig::for_page(page as u32) };
    let columnar = || Readahead::new(config, 1 << 30);
    // A footer, then chunks of one column: only the pages that they cover, at whatever distance.
    let mut handle = columnar();
    assert_eq!(read(&mut handle, (1 << 30) - 8, 8), (Serve::Tier, vec![32767..32768]));
    for chunk in 1..9u64 {
        let offset = chunk * 10 * MIB + 5;
        let first = offset / page;
        assert_eq!(read(&mut handle, offset, MIB), (Serve::Tier, vec![first..first + 33]), "chunk {chunk}");
    }
    // Reading on: at no moment more ahead than an eighth of what was read, and in the end some.
    let mut handle = columnar();
    let (start, mut asked_end) = (100 * MIB, 0);
    for at in (start..start + 64 * MIB).step_by(MIB as usize) {
        let (serve, ask) = read(&mut handle, at, MIB);
        assert_eq!(serve, Serve::Tier);
        asked_end = ask.iter().map(|pages| pages.end * page).fold(asked_end, u64::max);
        let (has_read, ahead) = (at + MIB - start, asked_end - (at + MIB));
        assert!(ahead <= has_read / 8 + page, "{ahead} ahead of {has_read}");
    }
    assert!(asked_end > start + 67 * MIB, "{asked_end}");
    // From the front on it is read as any file.
    let mut front = columnar();
    assert_eq!(read(&mut front, 0, 64 * KIB).1, [0..4]);
}

#[test]
fn a_second_reader_of_the_same_columns_fetches_nothing() {
    let page = 16 * KIB;
    let config = ReadaheadConfig {
        is_columnar: true,
        first_window_bytes: 4 * MIB,
        ..ReadaheadConfig::for_page(page as u32)
    };
    // No read begins or ends with a page.
    let start = 100 * MIB + 5;
    let resident = start / page..(start + 4 * MIB) / page + 1;
    let mut handle = Readahead::new(config, 1 << 30);
    let mut ask = Vec::new();
    for at in (start..start + 4 * MIB).step_by(256 * KIB as usize) {
        let mut known = |page| resident.contains(&page);
        assert_eq!(handle.on_read(at, 256 * KIB, &mut known, &mut ask), Serve::Tier);
    }
    assert_eq!(ask, [], "all that it reads is resident");
    // It continues beyond what is resident: its pages, and from then on some ahead.
    let at = start + 4 * MIB;
    handle.on_read(at, 256 * KIB, &mut |page| resident.contains(&page), &mut ask);
    assert_eq!(ask.first().map(|run| run.start), Some(resident.end));
    let ahead_bytes = ask.last().unwrap().end * page - (at + 256 * KIB);
    assert!(ahead_bytes > 256 * KIB, "{ahead_bytes} are ahead after 4 MiB that were read");
}

#[test]
fn small_reads_of_a_cold_columnar_file_open_the_window() {
    let page = 16 * KIB;
    let config = ReadaheadConfig { is_columnar: true, ..ReadaheadConfig::for_page(page as u32) };
    let mut handle = Readahead::new(config, 1 << 30);
    let (start, mut known, mut most) = (100 * MIB + 5, BTreeSet::new(), 0);
    for at in (start..start + 4 * MIB).step_by(10_000) {
        let mut ask = Vec::new();
        handle.on_read(at, 10_000, &mut |page| known.contains(&page), &mut ask);
        most = ask.iter().map(|run| run.end * page).fold(most, u64::max).max(most);
        known.extend(ask.into_iter().flatten());
        assert!(most <= at + 10_000 + (at - start + 10_000) / 8 + page, "{most} at {at}");
    }
    assert!(most > start + 4 * MIB + 128 * KIB, "{}", most - start);
}

fn config() -> impl Strategy<Value = ReadaheadConfig> {
    (12u32..22, 0u64..5, 0u64..40, 0u64..9).prop_map(|(page_bits, first_pages, max_pages, extent_pages)| {
        ReadaheadConfig {
            page_bytes: 1 << page_bits,
            first_window_bytes: first_pages << page_bits,
            max_window_bytes: max_pages << page_bits,
            stream_read_bytes: 64 * KIB,
            extent_bytes: extent_pages << page_bits,
            is_columnar: false,
        }
    })
}

proptest! {
    /// A scan requests every page exactly once and in order, by itself: nothing is known to be
    /// resident or requested.
    #[test]
    fn a_scan_asks_for_every_page_once_in_order(
        config in config(),
        pages in 1u64..300,
        tail_bytes in 0u64..4096,
        sizes in prop::collection::vec(prop_oneof![1u64..2 * KIB, 1u64..4 * MIB], 1..20),
    ) {
        let page_bytes = u64::from(config.page_bytes);
        let file_bytes = (pages * page_bytes - tail_bytes).max(1);
        let mut handle = Readahead::new(config, file_bytes);
        let (mut ask, mut offset) = (Vec::new(), 0);
        let first_bytes = (64 * KIB).max(file_bytes / 5_000);
        for len in core::iter::once(first_bytes).chain(sizes.iter().copied().cycle()) {
            let len = len.max(file_bytes / 5_000);
            prop_assert_eq!(handle.on_read(offset, len, &mut |_| false, &mut ask), Serve::Tier);
            offset += len;
            let asked_bytes = ask.last().map_or(0, |pages: &Range<u64>| pages.end * page_bytes);
            prop_assert!(asked_bytes >= offset.min(file_bytes), "the read itself is asked for");
            if offset >= file_bytes {
                break;
            }
        }
        let asked: Vec<u64> = ask.into_iter().flatten().collect();
        prop_assert_eq!(asked, (0..file_bytes.div_ceil(page_bytes)).collect::<Vec<_>>());
    }

    /// Any reads, any refusals: nothing beyond the end, nothing twice while outstanding, never more
    /// than the window, and what a read served by the tier needs is outstanding or resident.
    #[test]
    fn any_pattern_keeps_the_promises(
        config in config(),
        file_pages in 1u64..400,
        tail_bytes in 0u64..4096,
        moves in prop::collection::vec((0u8..8, any::<u64>(), 1u64..3 * MIB, 0u8..12), 1..200),
    ) {
        let page_bytes = u64::from(config.page_bytes);
        let file_bytes = (file_pages * page_bytes - tail_bytes).max(1);
        let mut handle = Readahead::new(config, file_bytes);
        let mut known: BTreeSet<u64> = BTreeSet::new();
        let (mut last, mut stride) = (0..0u64, 0u64);
        for (kind, random, len, refusal) in moves {
            let offset = match kind {
                0..=3 => last.end,
                4 => last.end.saturating_add(random % page_bytes),
                5 => last.start.saturating_add(stride),
                _ => random % file_bytes,
            };
            stride = offset.saturating_sub(last.start);
            last = offset..offset + len;
            let mut ask = Vec::new();
            let serve = handle.on_read(offset, len, &mut |page| known.contains(&page), &mut ask);
            let own = offset / page_bytes..last.end.min(file_bytes).div_ceil(page_bytes);
            let asked: Vec<u64> = ask.into_iter().flatten().collect();
            for page in &asked {
                prop_assert!(*page < file_bytes.div_ceil(page_bytes), "page {page} beyond the end");
                prop_assert!(known.insert(*page), "page {page} asked for twice");
            }
            let ahead = asked.iter().filter(|page| !own.contains(page)).count() as u64;
            prop_assert!(ahead <= config.max_window_bytes / page_bytes, "{ahead} pages ahead");
            if serve == Serve::Tier {
                prop_assert!(own.clone().all(|page| known.contains(&page)), "{own:?} is not on its way");
            }
            if refusal == 0 && let Some(&from) = asked.iter().find(|page| **page >= own.end) {
                known.retain(|&page| page < from || !asked.contains(&page));
                handle.refused(from);
            }
        }
    }
}
