use super::*;
use crate::machine::{Machine, Nanos};
use alloc::string::ToString;
use alloc::vec::Vec;

const S: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

fn declared(name: &str, io_ns: u64) -> Declared {
    Declared {
        name: name.into(),
        user: 1000,
        allowance_permille: 50,
        weight: 4,
        io_ns,
        ..Declared::default()
    }
}

fn hear(board: &mut Board, now: u64, event: Event) -> Vec<Action> {
    let mut out = Vec::new();
    board.handle(Nanos(now), event, &mut out);
    out
}

fn wake(board: &mut Board, now: u64) -> Vec<Action> {
    let mut out = Vec::new();
    board.on_deadline(Nanos(now), &mut out);
    out
}

fn board(io_ns: u64) -> Board {
    let mut board = Board::new(Config::default());
    let out = hear(&mut board, 0, Event::Opens(1, declared("sim", io_ns)));
    assert_eq!(out, [Action::Report(1, Report::Joins(declared("sim", io_ns)))]);
    board
}

fn begin(bytes: u64, deadline_ns: u64) -> Event {
    Event::Begins { job: 1, bytes, deadline_ns }
}

#[test]
fn a_declared_phase_is_reported_and_brakes_only_while_it_is_behind() {
    let mut board = board(10 * S);
    let out = hear(&mut board, S, begin(100, 0));
    let reported =
        Report::Begins { bytes: 100, alone_ns: 10 * S, deadline_ns: 10_500 * MS, is_observed: false };
    assert_eq!(out, [Action::Report(1, reported), Action::Spread]);
    assert!(board.has_phases() && !board.is_braking());
    hear(&mut board, 2 * S, Event::Progress { job: 1, bytes: 10 });
    hear(&mut board, 3 * S, Event::Progress { job: 1, bytes: 20 });
    // Nothing moves any more: the machine wakes by itself when it is behind.
    while !board.is_braking() {
        let at = board.next_deadline().unwrap();
        assert!(at.0 < 5 * S, "it never brakes");
        wake(&mut board, at.0);
    }
    assert!(board.own_phases()[0].is_behind);
    // It has caught up.
    let out = hear(&mut board, 5 * S, Event::Progress { job: 1, bytes: 60 });
    assert!(out.contains(&Action::Brake(false)) && out.contains(&Action::Spread), "{out:?}");
    let out = hear(&mut board, 9 * S, Event::Ends(1));
    assert!(out.contains(&Action::Report(1, Report::Ends)) && !board.has_phases());
    assert_eq!(board.snapshot()[0].phases, [1, 1, 0, 0]);
}

#[test]
fn the_first_phase_of_an_unknown_job_has_the_file_system_to_itself_and_teaches_the_rate() {
    let mut board = board(0);
    let out = hear(&mut board, 0, begin(1000 * S, 0));
    assert!(out.contains(&Action::Brake(true)), "{out:?}");
    hear(&mut board, 2 * S, Event::Ends(1));
    assert!(!board.is_braking());
    assert_eq!(board.snapshot()[0].alone_bytes_per_s, 500 * S);
    let out = hear(&mut board, 5 * S, begin(500 * S, 0));
    assert_eq!(
        out[0],
        Action::Report(
            1,
            Report::Begins { bytes: 500 * S, alone_ns: S, deadline_ns: 1050 * MS, is_observed: false }
        )
    );
    assert!(!board.is_braking());
}

#[test]
fn a_bound_of_the_time_alone_gives_no_slack_until_an_undisturbed_phase_replaces_it() {
    let mut board = board(0);
    let mut phase = |begins, lasts, is_disturbed| {
        let out = hear(&mut board, begins, begin(1000 * S, 0));
        if is_disturbed {
            hear(&mut board, begins, Event::UnderWay);
        }
        hear(&mut board, begins + lasts, Event::Ends(1));
        out[0].clone()
    };
    let begins = |alone_ns, deadline_ns| {
        Action::Report(1, Report::Begins { bytes: 1000 * S, alone_ns, deadline_ns, is_observed: false })
    };
    for number in 0..3 {
        assert_eq!(phase(10 * number * S, 2 * S, true), begins(0, 0));
    }
    assert_eq!(phase(40 * S, S, false), begins(2 * S, 2 * S));
    assert_eq!(phase(50 * S, S, false), begins(S, 1050 * MS));
}

#[test]
fn a_phase_that_never_ends_is_cut_off_named_and_doubted_until_one_ends() {
    let mut board = board(S);
    hear(&mut board, 0, begin(100, 2 * S));
    wake(&mut board, 3 * S);
    assert!(board.is_braking(), "it is late");
    assert!(!wake(&mut board, 6 * S - 1).iter().any(|a| matches!(a, Action::CutOff { .. })));
    let out = wake(&mut board, 6 * S);
    let cut = Action::CutOff { name: "sim".to_string(), user: 1000, lasted_ns: 6 * S };
    assert!(out.contains(&cut) && out.contains(&Action::Report(1, Report::Ends)), "{out:?}");
    assert!(out.contains(&Action::Brake(false)) && !board.has_phases());
    // Its end comes at last: that is not news.
    assert!(!hear(&mut board, 7 * S, Event::Ends(1)).contains(&Action::Report(1, Report::Ends)));
    // The next does not count until it has ended by itself.
    let out = hear(&mut board, 8 * S, begin(100, 2 * S));
    assert!(out.is_empty() && board.may_begin(1) == Err(Refused::InPhase), "{out:?}");
    hear(&mut board, 9 * S, Event::Ends(1));
    assert!(!hear(&mut board, 10 * S, begin(100, 2 * S)).is_empty());
}

#[test]
fn doubt_outlives_the_connection_of_the_job() {
    let reopen = |board: &mut Board, now, key| {
        hear(board, now, Event::Closes(key));
        hear(board, now, Event::Opens(key + 1, declared("sim", 0)));
        hear(board, now, Event::Begins { job: key + 1, bytes: 0, deadline_ns: 0 })
    };
    // One was cut off.
    let mut board = board(S);
    hear(&mut board, 0, begin(100, 2 * S));
    assert!(wake(&mut board, 6 * S).iter().any(|a| matches!(a, Action::CutOff { .. })));
    assert!(reopen(&mut board, 7 * S, 1).is_empty() && !board.is_braking());
    hear(&mut board, 7 * S, Event::Opens(9, Declared { user: 7, ..declared("sim", 0) }));
    hear(&mut board, 7 * S, Event::Begins { job: 9, bytes: 0, deadline_ns: 0 });
    assert!(board.is_braking(), "another user's job of the same name is believed");
    hear(&mut board, 8 * S, Event::Closes(9));
    // That ends by itself, the next is believed, and not again after it went away.
    hear(&mut board, 9 * S, Event::Ends(2));
    reopen(&mut board, 10 * S, 2);
    assert!(board.is_braking());
    assert!(!reopen(&mut board, 11 * S, 3).contains(&Action::Spread) && !board.is_braking());
}

#[test]
fn a_program_that_ends_in_an_observed_phase_or_one_that_is_in_time_is_believed_again() {
    for event in [Event::Begun { job: 1, at: Nanos(0), bytes: 0 }, begin(100, 0)] {
        let mut board = board(if matches!(event, Event::Begun { .. }) { 0 } else { 10 * S });
        hear(&mut board, 0, event);
        hear(&mut board, S, Event::Closes(1));
        hear(&mut board, S, Event::Opens(1, declared("sim", 0)));
        hear(&mut board, S, begin(0, 0));
        assert!(board.is_braking());
    }
}

#[test]
fn a_phase_that_still_moves_is_not_cut_off_at_once() {
    let mut board = board(S);
    hear(&mut board, 0, begin(100, S));
    for second in 1..=20u64 {
        hear(&mut board, second * S, Event::Progress { job: 1, bytes: second * 30 });
    }
    assert_eq!((board.snapshot()[0].phases[3], board.is_braking()), (0, true), "declared too small: behind");
    for second in 21..=31u64 {
        hear(&mut board, second * S, Event::Progress { job: 1, bytes: second * 30 });
    }
    assert_eq!(board.snapshot()[0].phases[3], 1, "but not for ever");
    hear(&mut board, 32 * S, Event::Ends(1));
    assert!(board.snapshot()[0].alone_bytes_per_s > 0, "and what it moved is learnt");
}

#[test]
fn what_another_node_says_brakes_here_until_its_lease_ends() {
    let mut board = board(S);
    let phase = HpcPhase { name: "other".into(), is_behind: true, ..HpcPhase::default() };
    let heard = |phases| Event::Heard { node: "b".into(), lease_ns: S, phases };
    let out = hear(&mut board, 0, heard(alloc::vec![phase.clone()]));
    assert_eq!(out, [Action::Brake(true)]);
    hear(&mut board, S / 2, heard(alloc::vec![phase.clone()]));
    assert_eq!(board.next_deadline(), Some(Nanos(S + S / 2)), "renewed");
    assert_eq!(wake(&mut board, S + S / 2), [Action::Brake(false)]);
    hear(&mut board, 2 * S, heard(alloc::vec![phase]));
    assert_eq!(hear(&mut board, 2 * S + 1, heard(Vec::new())), [Action::Brake(false)]);
    assert!(!board.has_phases());
}

#[test]
fn a_program_that_dies_leaves_the_board_and_a_new_coordinator_hears_all_that_is_left() {
    let mut board = board(10 * S);
    hear(&mut board, 0, Event::Opens(2, declared("two", 4 * S)));
    hear(&mut board, 0, begin(100, 0));
    let reported = board.full_report(Nanos(S));
    assert_eq!(reported.len(), 3);
    assert_eq!(
        reported[1],
        (1, Report::Begins { bytes: 100, alone_ns: 9 * S, deadline_ns: 9_500 * MS, is_observed: false })
    );
    let out = hear(&mut board, S, Event::Closes(1));
    assert!(out.contains(&Action::Report(1, Report::Leaves)) && out.contains(&Action::Spread));
    assert!(!board.has_phases() && board.full_report(Nanos(S)).len() == 1);
}

#[test]
fn what_users_may_open_is_bounded_and_refused_with_words() {
    let mut board = Board::new(Config::default());
    let nameless = Declared::default();
    assert!(board.may_open(&nameless).unwrap_err().to_string().contains("name"));
    for key in 0..64 {
        board.may_open(&declared("sim", 0)).unwrap();
        hear(&mut board, 0, Event::Opens(key, declared("sim", 0)));
    }
    assert!(board.may_open(&declared("sim", 0)).unwrap_err().to_string().contains("64 HPC jobs"));
    board.may_open(&Declared { user: 7, ..declared("sim", 0) }).unwrap();
    assert_eq!(board.may_begin(99), Err(Refused::NoJob));
}

#[test]
fn what_agents_read_beside_a_phase_disturbs_it_and_its_own_job_on_other_nodes_does_not() {
    let mut board = board(0);
    let own = HpcPhase { name: "sim".into(), user: 1000, ..HpcPhase::default() };
    hear(&mut board, 0, Event::Heard { node: "b".into(), lease_ns: S, phases: alloc::vec![own] });
    hear(&mut board, 0, begin(1600, 0));
    hear(&mut board, 1, Event::Beside { bytes: 26 });
    hear(&mut board, S, Event::Ends(1));
    assert_eq!(board.snapshot()[0].alone_bytes_per_s, 0, "something was read beside it");
    hear(&mut board, S, begin(1600, 0));
    hear(&mut board, S, Event::Beside { bytes: 25 });
    hear(&mut board, 2 * S, Event::Ends(1));
    assert_eq!(board.snapshot()[0].alone_bytes_per_s, 1600, "so little does not count");
}

/// What a client of the file system has read ahead is not seen by any agent.
#[test]
fn a_phase_that_begins_just_after_reads_teaches_only_that_it_can_be_faster() {
    let mut board = board(0);
    let mut phase = |from: u64, to: u64, bytes: u64, is_quiet: bool| {
        hear(&mut board, from, begin(bytes, 0));
        if !is_quiet {
            hear(&mut board, from, Event::UnderWay);
        }
        hear(&mut board, to, Event::Ends(1));
        board.snapshot()[0].alone_bytes_per_s
    };
    assert_eq!(phase(0, S, 1600, true), 1600);
    assert_eq!(phase(2 * S, 3 * S, 1400, false), 1600);
    assert!(phase(4 * S, 5 * S, 1800, false) > 1600);
    assert!(phase(6 * S, 7 * S, 1000, true) < 1600);
}

#[test]
fn two_jobs_at_once_disturb_each_other() {
    let mut board = board(0);
    hear(&mut board, 0, Event::Opens(2, declared("two", 0)));
    hear(&mut board, 0, begin(100, 0));
    hear(&mut board, 1, Event::Begins { job: 2, bytes: 100, deadline_ns: 0 });
    hear(&mut board, S, Event::Ends(1));
    hear(&mut board, S, Event::Ends(2));
    assert!(
        board.snapshot().iter().all(|job| job.alone_bytes_per_s == 0),
        "nobody knows what they take alone"
    );
}

#[test]
fn the_next_phase_of_a_job_with_a_rhythm_is_expected_and_given_up_when_it_does_not_come() {
    let mut board = board(0);
    let expected = |out: &[Action]| {
        out.iter().find_map(|action| match action {
            Action::Report(1, Report::Expects { in_ns, phases, .. }) => Some((*in_ns, *phases)),
            _ => None,
        })
    };
    let mut last = Vec::new();
    for phase in 1..=10u64 {
        hear(&mut board, phase * 100 * S, begin(1000 * S, 0));
        last = hear(&mut board, phase * 100 * S + 10 * S, Event::Ends(1));
        assert_eq!(expected(&last).is_some(), phase >= 4 && expected(&last).is_some(), "{phase}: {last:?}");
    }
    let (in_ns, phases) = expected(&last).unwrap();
    assert!((60 * S..=90 * S).contains(&in_ns) && phases > 0, "{in_ns}");
    // The job has ended its I/O: at last nothing is expected.
    let mut reported = Vec::new();
    while let Some(at) = board.next_deadline() {
        reported.extend(expected(&wake(&mut board, at.0)));
        assert!(reported.len() < 10);
    }
    assert_eq!(reported.last().map(|(_, phases)| *phases), Some(0), "{reported:?}");
}

/// A job that ran ten minutes with a phase of a second every ten seconds, and begins again when the
/// agent has run for less than that.
#[test]
fn an_earlier_run_says_what_the_first_phase_takes_and_when_the_second_comes() {
    let phase = |i: u64, speed| super::bursts::Burst {
        start_ns: i * 10 * S,
        end_ns: i * 10 * S + S / speed,
        bytes: 500 * S,
    };
    // One of them was slow, and one was absorbed by a cache.
    let earlier: Vec<_> = (40..60).map(|i| phase(i, if i == 50 { 7 } else { 1 })).collect();
    let mut board = Board::new(Config::default());
    let declared = Declared { earlier, ..declared("sim", 0) };
    board.may_open(&declared).unwrap();
    hear(&mut board, 3 * S, Event::Opens(1, declared.clone()));
    assert_eq!(board.snapshot()[0].alone_bytes_per_s, 500 * S);
    let out = hear(&mut board, 5 * S, begin(1000 * S, 0));
    assert_eq!(
        out[0],
        Action::Report(
            1,
            Report::Begins { bytes: 1000 * S, alone_ns: 2 * S, deadline_ns: 2100 * MS, is_observed: false }
        )
    );
    assert!(!board.is_braking(), "its time is known");
    hear(&mut board, 7 * S, Event::Ends(1));
    let next_in_ns = board.snapshot()[0].next_in_ns.expect("the rhythm is known");
    assert!((7 * S..=8 * S).contains(&next_in_ns), "{next_in_ns}");

    let many = Declared { earlier: (0..25).map(|i| phase(i, 1)).collect(), ..declared.clone() };
    assert!(board.may_open(&many).unwrap_err().to_string().contains("24 phases"));
    let mixed = Declared { earlier: [2, 1].map(|i| phase(i, 1)).into(), ..declared };
    assert!(board.may_open(&mixed).unwrap_err().to_string().contains("follow each other"));
}

#[test]
fn a_phase_that_is_noticed_later_counts_from_its_begin() {
    let mut board = board(0);
    hear(&mut board, 3 * S, Event::Begun { job: 1, at: Nanos(S), bytes: 0 });
    hear(&mut board, 3 * S, Event::Progress { job: 1, bytes: 1000 });
    hear(&mut board, 4 * S, Event::Ended(1, Nanos(2 * S)));
    assert_eq!(board.snapshot()[0].alone_bytes_per_s, 1000);
}

#[test]
fn a_phase_that_is_seen_to_have_ended_counts_to_its_end() {
    let mut board = board(S);
    hear(&mut board, 0, begin(1000, 0));
    hear(&mut board, S, Event::Progress { job: 1, bytes: 1000 });
    hear(&mut board, 3 * S, Event::Ended(1, Nanos(S)));
    assert_eq!((board.snapshot()[0].alone_bytes_per_s, board.snapshot()[0].phases), (1000, [1, 1, 0, 0]));
}

proptest::proptest! {
    /// Whatever is received in whatever order: the brake is released once all jobs are gone and all
    /// leases are over, and the machine does not request calls in the past forever.
    #[test]
    fn the_brake_never_stays(events in proptest::collection::vec((0u64..4, 0u8..6, 0u64..1000), 0..60)) {
        let mut board = Board::new(Config::default());
        let mut now = 0;
        for (job, what, number) in events {
            now += number * MS;
            let event = match what {
                0 => Event::Opens(job, declared("sim", number * MS)),
                1 => Event::Begins { job, bytes: number, deadline_ns: 0 },
                2 => Event::Progress { job, bytes: number },
                3 => Event::Ends(job),
                4 => Event::Heard { node: "n".into(), lease_ns: S, phases: alloc::vec![HpcPhase { is_behind: number % 2 == 0, ..HpcPhase::default() }] },
                _ => Event::Closes(job),
            };
            hear(&mut board, now, event);
        }
        (0..4).for_each(|job| drop(hear(&mut board, now, Event::Closes(job))));
        let mut calls = 0;
        while let Some(at) = board.next_deadline() {
            wake(&mut board, at.0.max(now));
            calls += 1;
            proptest::prop_assert!(calls < 100);
        }
        proptest::prop_assert!(!board.is_braking() && !board.has_phases());
    }
}

/// Runs the machine from second `from` to `to`, with a phase of a new job in each, which takes
/// `io_ns` and may take half of that. Returns the seconds for which it brakes.
fn braked_s(board: &mut Board, from: u64, to: u64, io_ns: u64) -> u64 {
    let mut braked_ns = 0;
    for second in from..to {
        let key = second + 10;
        hear(board, second * S, Event::Opens(key, declared(&key.to_string(), io_ns)));
        hear(board, second * S, Event::Begins { job: key, bytes: 0, deadline_ns: io_ns / 2 });
        let (mut at, end) = (second * S, (second + 1) * S - MS);
        while at < end {
            let next = board.next_deadline().map_or(end, |next| next.0.clamp(at, end));
            braked_ns += if board.is_braking() { next - at } else { 0 };
            at = next;
            wake(board, at);
            assert!(at == end || board.next_deadline().is_none_or(|next| next.0 > at), "it does not go on");
        }
        hear(board, end, Event::Ends(key));
        hear(board, end, Event::Closes(key));
    }
    (braked_ns + S / 2) / S
}

#[test]
fn phases_of_unknown_length_of_one_user_brake_for_five_minutes_and_then_a_tenth_of_the_time() {
    let mut board = Board::new(Config::default());
    let first = braked_s(&mut board, 0, 320, 0);
    assert!((265..=295).contains(&first), "{first} s");
    let then = braked_s(&mut board, 400, 1400, 0);
    assert!((70..=110).contains(&then), "{then} of 1000 s");
    // Another user's first phase counts.
    let other = Declared { user: 7, ..declared("other", 0) };
    hear(&mut board, 1400 * S, Event::Opens(1, other));
    hear(&mut board, 1400 * S, begin(0, 0));
    assert!(board.is_braking());
}

/// The brake is off for a tenth of the time, however many phases are behind.
#[test]
fn a_load_ends_although_ever_new_jobs_have_phases_of_unknown_length() {
    let mut board = Board::new(Config::default());
    // Each is behind from the beginning.
    assert_eq!(braked_s(&mut board, 0, 30, S), 30);
    let then = braked_s(&mut board, 30, 1030, S);
    assert!((880..=910).contains(&then), "{then} of 1000 s");
}
