//! Exact plans on small boards, and properties of all boards.

use alloc::vec;

use forebay_model::profile::{Curve, Separable};
use proptest::prelude::*;

use super::*;
use crate::machine::Machine;

const S: u64 = 1_000_000_000;

fn separable(at_one: f64, nodes: &[(u16, f64)], threads: &[(u16, f64)]) -> Separable {
    let curve = |points: &[(u16, f64)]| Curve::new(points.to_vec()).expect("a valid curve");
    Separable { at_one, nodes: curve(nodes), threads: curve(threads) }
}

/// Two nodes of up to two threads. Two nodes: a wave in 10 s, I_hpc 1.5, I_bd 1.25. One: 20 s,
/// I_hpc 1.04. Two threads: 8 s.
fn config() -> Config {
    Config {
        profile: Profile {
            prefetch_s: separable(20.0, &[(1, 1.0), (2, 0.5)], &[(1, 1.0), (2, 0.8)]),
            wave_bytes: 100.0,
            i_hpc: separable(1.04, &[(1, 1.0), (2, 1.5 / 1.04)], &[(1, 1.0), (2, 1.2)]),
            i_bd: separable(1.25, &[(1, 1.0)], &[(1, 1.0), (2, 1.2)]),
            max_nodes: 2,
            max_threads: 2,
        },
        default_setting: Setting::new(2, 1),
        direct: DirectStrain { speed_bytes_per_s: 10.0, i_hpc: 2.0, i_bd: 2.0, with_compute: false },
        pfs_bytes_per_s: 1e9,
        ram_bytes: 300,
        learning: 0.0,
        division: Division::default(),
        reaction_s: 0.0,
    }
}

fn planner_of(name: &str, config: Config) -> Planner {
    let policy = policy(name, &config).expect("it exists");
    Planner::new(config, policy)
}

fn planner(name: &str) -> Planner {
    planner_of(name, config())
}

fn joins(io_s: u64, compute_s: u64, phases: u32, allowance: f64, first_in_s: u64) -> Event {
    let [io_ns, compute_ns, first_in_ns] = [io_s, compute_s, first_in_s].map(|s| s * S);
    Event::HpcJoins { hpc: 0, io_ns, compute_ns, phases, allowance, weight: 1.0, first_in_ns }
}

/// Begins a phase of 20 s alone immediately, `allowance` above its time alone, and more every
/// `compute_s` after.
fn phase(p: &mut Planner, allowance: f64, compute_s: u64) {
    let mut out = vec![];
    p.handle(Nanos(0), joins(20, compute_s, 5, allowance, 0), &mut out);
    let deadline = Nanos((20.0 * (1.0 + allowance) * 1e9) as u64);
    p.handle(Nanos(0), Event::PhaseBegins { hpc: 0, alone_ns: 20 * S, deadline }, &mut out);
}

/// A job of equal waves, none of which has been fetched.
fn job_joins(job: JobId, waves: u32, wave_bytes: u64, compute_ns: u64) -> Event {
    Event::JobJoins { job, waves, wave_bytes, compute_ns, tier_read_ns: 0, computing_ns: None }
}

/// Adds a job whose first wave computes for `compute_s` from now on; returns what the planner
/// decides for the second.
fn second_wave(p: &mut Planner, compute_s: u64) -> Vec<Action> {
    let mut out = vec![];
    p.handle(Nanos(0), job_joins(0, 9, 100, compute_s * S), &mut out);
    p.handle(Nanos(0), Event::Fetched { job: 0, wave: 0, resident_bytes: 0 }, &mut out);
    out.clear();
    let starts = Event::WaveStarts { job: 0, wave: 0, compute_ns: compute_s * S };
    p.handle(Nanos(0), starts, &mut out);
    out
}

fn decision(actions: &[Action]) -> &Decision {
    let found = actions.iter().rev().find_map(|a| match a {
        Action::Decided(d) => Some(d),
        _ => None,
    });
    found.expect("a decision")
}

#[test]
fn eley_takes_no_action_where_it_costs_nothing_and_nobody_is_there() {
    let mut p = planner("eley");
    let out = second_wave(&mut p, 12);
    let d = decision(&out);
    assert_eq!((d.kind, d.candidates, d.estimate.cost_s), (ActionKind::NoAction, 1, Some(0.0)));
    assert!(
        matches!(out[1], Action::Fetch { wave: 1, setting, .. } if setting == Setting::new(2, 1)),
        "{out:?}"
    );
}

/// 20 s of phase, 12.5 s of prefetch beside it stretch it to 20 + 12.5 / 3 = 24.17 s (8): too late
/// at 5 %. After the phase the prefetch ends at 30 s, in time for 40 s of compute, which the
/// paper's order finds before any other action.
#[test]
fn eley_delays_fully_where_compute_hides_it() {
    let mut p = planner("eley");
    phase(&mut p, 0.05, 100);
    let d = decision(&second_wave(&mut p, 40)).clone();
    assert_eq!((d.kind, d.estimate.fetched_in_s), (ActionKind::FullDelay, Some(30.0)));
    assert_eq!(p.next_deadline(), Some(Nanos(20 * S)));
    let mut out = vec![];
    p.on_deadline(Nanos(20 * S), &mut out);
    p.handle(Nanos(20 * S), Event::PhaseEnds { hpc: 0 }, &mut out);
    assert!(matches!(out[..], [Action::Fetch { setting, .. }] if setting == Setting::new(2, 1)), "{out:?}");
}

/// With 22 s of compute the full delay costs 8 s. A partial delay may overlap the phase by what
/// costs it 1 s: work x at I = 1.5 with 0.5 x = 1, so x = 2 and t_d = 18 s; by (7), the prefetch
/// ends at 18 + 10 + 3 * 0.2 = 28.6 s. Scaling down to one node ends at 20 + 20.8 * 0.2 = 24.16 s
/// by (11), and meets the deadline: 20.8 <= 21. It costs least.
#[test]
fn eley_scales_down_where_that_costs_least() {
    let mut p = planner("eley");
    phase(&mut p, 0.05, 100);
    let d = decision(&second_wave(&mut p, 22)).clone();
    assert_eq!((d.kind, d.steps[0].setting), (ActionKind::ScaleDown, Setting::new(1, 1)));
    assert!((d.estimate.fetched_in_s.expect("known") - 24.16).abs() < 1e-6, "{d:?}");
    assert!((d.estimate.margin_s.expect("known") - 0.2).abs() < 1e-6, "{d:?}");
}

/// The length of the phase was unknown, so ten minutes were assumed.
#[test]
fn a_delay_ends_with_the_phase_if_that_is_over_sooner_than_expected() {
    for name in ["full-delay", "eley"] {
        let mut p = planner(name);
        let (mut out, unknown_ns) = (vec![], 600 * S);
        p.handle(Nanos(0), joins(1, 1, 0, 0.05, 0), &mut out);
        let begins = Event::PhaseBegins { hpc: 0, alone_ns: unknown_ns, deadline: Nanos(unknown_ns) };
        p.handle(Nanos(0), begins, &mut out);
        let d = decision(&second_wave(&mut p, 700)).clone();
        assert_eq!((d.kind, p.next_deadline()), (ActionKind::FullDelay, Some(Nanos(unknown_ns))), "{name}");
        out.clear();
        p.handle(Nanos(4 * S), Event::PhaseEnds { hpc: 0 }, &mut out);
        assert!(
            matches!(out[..], [Action::Decided(_), Action::Fetch { setting, .. }] if !setting.is_paused()),
            "{name}: {out:?}"
        );
    }
}

#[test]
fn full_delay_repeats_where_gaps_are_short() {
    let mut p = planner("full-delay");
    phase(&mut p, 0.01, 2);
    let d = decision(&second_wave(&mut p, 22)).clone();
    assert!(d.steps[0].yields && d.kind == ActionKind::FullDelay, "{d:?}");
    let mut out = vec![];
    p.handle(Nanos(20 * S), Event::PhaseEnds { hpc: 0 }, &mut out);
    assert!(matches!(out[..], [Action::Fetch { setting, .. }] if !setting.is_paused()), "{out:?}");
    out.clear();
    let again = Event::PhaseBegins { hpc: 0, alone_ns: 20 * S, deadline: Nanos(42 * S + S / 5) };
    p.handle(Nanos(22 * S), again, &mut out);
    assert!(matches!(out[..], [Action::Fetch { setting, .. }] if setting.is_paused()), "{out:?}");
}

#[test]
fn naive_reads_directly_and_only_on_demand() {
    let mut p = planner("naive-bb");
    let out = second_wave(&mut p, 22);
    assert!(out.is_empty(), "{out:?}");
    let mut out = vec![];
    p.handle(Nanos(22 * S), Event::WaveWanted { job: 0, wave: 1 }, &mut out);
    assert!(matches!(out[..], [Action::Decided(_), Action::Direct { wave: 1, .. }]), "{out:?}");
}

/// Memory for three waves: one in compute, two ahead, and no fourth. A wave takes 8 s to fetch and
/// computes for 10 s.
#[test]
fn forebay_fetches_as_far_ahead_as_memory_holds() {
    let mut p = planner("forebay");
    let mut out = second_wave(&mut p, 10);
    assert_eq!(p.fetching(), [(0, 1, Some(Setting::new(2, 2)))]);
    for wave in [1, 2] {
        out.clear();
        let at = Nanos(S * u64::from(7 + wave));
        p.handle(at, Event::Fetched { job: 0, wave, resident_bytes: 0 }, &mut out);
    }
    assert!(!out.iter().any(|a| matches!(a, Action::Fetch { wave: 3, .. })), "{out:?}");
    out.clear();
    p.handle(Nanos(10 * S), Event::WaveStarts { job: 0, wave: 1, compute_ns: 10 * S }, &mut out);
    assert!(out.iter().any(|a| matches!(a, Action::Fetch { wave: 3, .. })), "{out:?}");
}

/// With 100 s of compute in hand, three waves could be fetched: the memory is left to jobs that may
/// come.
#[test]
fn forebay_takes_no_memory_for_waves_that_are_needed_much_later() {
    let mut p = planner("forebay");
    let mut out = second_wave(&mut p, 100);
    out.clear();
    p.handle(Nanos(8 * S), Event::Fetched { job: 0, wave: 1, resident_bytes: 0 }, &mut out);
    assert!(!out.iter().any(|a| matches!(a, Action::Fetch { .. })), "{out:?}");
    p.handle(Nanos(100 * S), Event::WaveStarts { job: 0, wave: 1, compute_ns: 10 * S }, &mut out);
    assert!(out.iter().any(|a| matches!(a, Action::Fetch { wave: 2, .. })), "{out:?}");
}

/// The same beside a job that computes and has not fetched its next wave yet: its room is left
/// free.
#[test]
fn forebay_leaves_room_for_the_next_wave_of_others() {
    let mut p = planner("forebay");
    let mut out = second_wave(&mut p, 100);
    p.handle(Nanos(1), job_joins(1, 9, 50, 500 * S), &mut out);
    // Job 0 holds 100 bytes in compute and 100 fetched, job 1 has 50 in compute. Half of a third
    // wave of job 0 would fit into 301, but not beside the 50 that job 1 is entitled to.
    p.handle(Nanos(1), Event::Memory { bytes: 301 }, &mut out);
    p.handle(Nanos(S), Event::Fetched { job: 1, wave: 0, resident_bytes: 0 }, &mut out);
    p.handle(Nanos(S), Event::WaveStarts { job: 1, wave: 0, compute_ns: 500 * S }, &mut out);
    out.clear();
    p.handle(Nanos(10 * S), Event::Fetched { job: 0, wave: 1, resident_bytes: 0 }, &mut out);
    assert!(!out.iter().any(|a| matches!(a, Action::Fetch { job: 0, .. })), "{out:?}");
    assert!(p.fetching().iter().any(|f| f.0 == 1 && f.1 == 1), "{:?}", p.fetching());
}

/// Nothing runs dry before the phase is over, so the phase is left alone.
#[test]
fn forebay_spends_nothing_of_a_phase_without_need() {
    let mut p = planner("forebay");
    phase(&mut p, 0.05, 100);
    let out = second_wave(&mut p, 60);
    assert!(
        !out.iter().any(|a| matches!(a, Action::Fetch { setting, .. } if !setting.is_paused())),
        "{out:?}"
    );
}

/// Two jobs that wait for their first waves of 100 bytes; a prefetch reaches 12.5 bytes per second.
fn two_jobs_wait(pfs_bytes_per_s: f64) -> Vec<(JobId, f64)> {
    let mut p = planner_of("forebay", Config { pfs_bytes_per_s, ..config() });
    let mut out = vec![];
    for job in [0, 1] {
        p.handle(Nanos(0), job_joins(job, 9, 100, 10 * S), &mut out);
    }
    let moving = p.fetching().into_iter().filter_map(|(job, _, setting)| Some((job, setting?.rate)));
    moving.filter(|(_, rate)| *rate > 0.0).collect()
}

#[test]
fn forebay_serves_jobs_together_where_the_file_system_has_room() {
    assert_eq!(two_jobs_wait(1e9), [(0, 1.0), (1, 1.0)]);
    // One leaves 7.5 bytes per second; in any case they use all 20.
    let together = two_jobs_wait(20.0);
    let rates: f64 = together.iter().map(|(_, rate)| rate).sum();
    assert!(together.len() == 2 && (rates - 20.0 / 12.5).abs() < 1e-9, "{together:?}");
}

/// Half of the bandwidth each would delay the first wave and not fetch the second sooner.
#[test]
fn forebay_serves_one_job_after_the_other_where_one_fills_the_file_system() {
    assert_eq!(two_jobs_wait(12.5), [(0, 1.0)]);
}

/// Beside a phase of 20 s that bears 10 %: one node causes an excess of 0.04, two of 0.5. One job
/// may use one node of each second; two do so at the same time only as long as the phase bears it.
#[test]
fn forebay_divides_what_a_phase_bears_among_jobs() {
    let mut p = planner("forebay");
    phase(&mut p, 0.1, 100);
    let mut out = vec![];
    for job in [0, 1] {
        p.handle(Nanos(0), job_joins(job, 9, 50, 10 * S), &mut out);
    }
    let moving = p.fetching().iter().filter(|f| f.2.is_some_and(|s| !s.is_paused())).count();
    assert_eq!(moving, 2, "{:?}", p.fetching());
    let strains = [0, 1].map(|job| p.board().job(job).fetch.map_or(1.0, |f| f.strain.i_hpc));
    assert!(strains.iter().map(|i| i - 1.0).sum::<f64>() > 0.079, "{strains:?}");
}

/// A gap of 40 s, then a phase of 20 s that gives almost nothing; direct reads at 20 bytes per
/// second, prefetches at 12.5. What tasks can read themselves before the phase is left to them, and
/// the waves that will compute in it come first; when memory only has room for the next wave,
/// nothing is fetched.
#[test]
fn forebay_stocks_waves_for_the_phase_and_leaves_the_next_to_the_tasks() {
    let mut config = config();
    config.direct.speed_bytes_per_s = 20.0;
    let mut p = planner_of("forebay", config);
    let mut out = vec![];
    p.handle(Nanos(0), joins(20, 40, 5, 0.0, 40), &mut out);
    p.handle(Nanos(0), job_joins(0, 99, 100, 5 * S), &mut out);
    assert!(matches!(&out[..], [Action::Decided(_), Action::Direct { wave: 0, .. }]), "{out:?}");
    out.clear();
    p.handle(Nanos(5 * S), Event::Fetched { job: 0, wave: 0, resident_bytes: 0 }, &mut out);
    p.handle(Nanos(5 * S), Event::WaveStarts { job: 0, wave: 0, compute_ns: 5 * S }, &mut out);
    let fetched = out.iter().rev().find_map(|a| match a {
        Action::Fetch { wave, setting, .. } if !setting.is_paused() => Some(*wave),
        _ => None,
    });
    assert!(fetched.is_some_and(|wave| wave > 1), "{out:?}");
    out.clear();
    p.handle(Nanos(10 * S), Event::WaveWanted { job: 0, wave: 1 }, &mut out);
    out.retain(|action| !matches!(action, Action::Ahead { .. }));
    assert!(matches!(&out[..], [Action::Decided(_), Action::Direct { wave: 1, .. }]), "{out:?}");
}

/// While a later wave is fetched, as in the case above, a phase begins early that cannot lose
/// anything. The plan for it is a pause of another wave than the one under way, which has to stop
/// all the same.
#[test]
fn a_pause_of_one_wave_stops_the_fetch_of_another() {
    let mut config = config();
    config.direct.speed_bytes_per_s = 20.0;
    let mut p = planner_of("forebay", config);
    let mut out = vec![];
    p.handle(Nanos(0), joins(20, 40, 5, 0.0, 40), &mut out);
    p.handle(Nanos(0), job_joins(0, 99, 100, 5 * S), &mut out);
    p.handle(Nanos(5 * S), Event::Fetched { job: 0, wave: 0, resident_bytes: 0 }, &mut out);
    p.handle(Nanos(5 * S), Event::WaveStarts { job: 0, wave: 0, compute_ns: 5 * S }, &mut out);
    let begins = Event::PhaseBegins { hpc: 0, alone_ns: 20 * S, deadline: Nanos(27 * S) };
    p.handle(Nanos(7 * S), begins, &mut out);
    let settings = out.iter().filter_map(|a| match a {
        Action::Fetch { wave, setting, .. } => Some((*wave, setting.is_paused())),
        _ => None,
    });
    let settings: Vec<(u32, bool)> = settings.collect();
    assert!(
        matches!(settings[..], [.., (before, false), (after, true)] if before == after && before > 1),
        "{out:?}"
    );
}

/// Direct reads at 20 bytes per second are faster than 12.5 through the tier, but only for tasks
/// that wait, and only between phases; when a phase begins the rest comes through the tier.
#[test]
fn forebay_lets_waiting_tasks_read_directly_between_phases() {
    let mut config = config();
    config.direct.speed_bytes_per_s = 20.0;
    let mut p = planner_of("forebay", config);
    let mut out = vec![];
    let computing_ns = None;
    let (compute_ns, tier_read_ns) = (10 * S, 2 * S);
    let job = Event::JobJoins { job: 0, waves: 9, wave_bytes: 100, compute_ns, tier_read_ns, computing_ns };
    p.handle(Nanos(0), job, &mut out);
    assert!(matches!(&out[..], [Action::Decided(_), Action::Direct { wave: 0, .. }]), "{out:?}");
    out.clear();
    p.handle(Nanos(0), joins(20, 1, 5, 0.5, 2), &mut out);
    assert!(out.is_empty(), "direct reads go on: {out:?}");
    let begins = Event::PhaseBegins { hpc: 0, alone_ns: 20 * S, deadline: Nanos(32 * S) };
    p.handle(Nanos(2 * S), begins, &mut out);
    assert!(
        matches!(&out[..], [Action::Decided(d), Action::Fetch { wave: 0, .. }]
        if (d.left_bytes - 60.0).abs() < 1e-9),
        "{out:?}"
    );
    out.clear();
    p.handle(Nanos(9 * S), Event::Fetched { job: 0, wave: 0, resident_bytes: 0 }, &mut out);
    p.handle(Nanos(9 * S), Event::WaveStarts { job: 0, wave: 0, compute_ns: 10 * S }, &mut out);
    assert!(!out.iter().any(|a| matches!(a, Action::Direct { .. })), "{out:?}");
}

#[test]
fn an_observed_error_corrects_the_model() {
    let mut p = planner_of("no-action", Config { learning: 0.5, ..config() });
    second_wave(&mut p, 100);
    // Expected after 10 s, fetched after 20 s: the speed is half of the profile's; half of the news
    // is believed.
    p.handle(Nanos(20 * S), Event::Fetched { job: 0, wave: 1, resident_bytes: 0 }, &mut vec![]);
    let (_, speed) = p.board().corrections();
    assert!((speed - 0.75).abs() < 1e-9, "{speed}");
}

/// A file system on which prefetches have half of the speed in the profile, and twice its excess
/// I_hpc - 1. Wave after wave is fetched from the start of a phase of 10 s on: alone a wave takes
/// 20 s instead of 10, and beside it the phase 10 s * 2 instead of 10 s * 1.5. Returns the
/// estimated times of the phase and of the prefetch, for each of `waves` waves.
fn waves_on_a_slower_file_system(waves: u32) -> (Planner, Vec<(f64, f64)>) {
    let mut p = planner_of("no-action", Config { learning: 0.3, ..config() });
    let (mut out, mut estimates) = (vec![], vec![]);
    p.handle(Nanos(0), joins(10, 90, waves, 9.0, 0), &mut out);
    for wave in 0..waves {
        let now = u64::from(wave) * 100 * S;
        let begins = Event::PhaseBegins { hpc: 0, alone_ns: 10 * S, deadline: Nanos(now + 100 * S) };
        p.handle(Nanos(now), begins, &mut out);
        out.clear();
        let next = match wave {
            0 => job_joins(0, waves + 1, 100, 10 * S),
            _ => Event::WaveStarts { job: 0, wave: wave - 1, compute_ns: 10 * S },
        };
        p.handle(Nanos(now), next, &mut out);
        let estimate = decision(&out).estimate;
        let (margin_s, fetched_s) = (estimate.margin_s.expect("beside a phase"), estimate.fetched_in_s);
        estimates.push((100.0 - margin_s, fetched_s.expect("it ends")));
        // 5 bytes per second, 4 of them beside the phase: 80 bytes within its 20 s.
        p.handle(Nanos(now + 20 * S), Event::PhaseEnds { hpc: 0 }, &mut out);
        p.handle(Nanos(now + 24 * S), Event::Fetched { job: 0, wave, resident_bytes: 0 }, &mut out);
    }
    (p, estimates)
}

#[test]
fn after_two_waves_a_wrong_profile_is_corrected() {
    let (p, estimates) = waves_on_a_slower_file_system(6);
    let error = |of: (f64, f64)| ((of.0 / 20.0 - 1.0).abs(), (of.1 / 24.0 - 1.0).abs());
    let errors: Vec<(f64, f64)> = estimates.into_iter().map(error).collect();
    assert!(errors[0].0 > 0.2 && errors[0].1 > 0.4, "the profile is wrong: {errors:?}");
    assert!(errors[2..].iter().all(|e| e.0 <= 0.05 && e.1 <= 0.05), "{errors:?}");
    // What slows one prefetch slows all that run at the same time.
    let pfs = p.board().pfs_bytes_per_s() / p.board().config.pfs_bytes_per_s;
    assert!((pfs / 0.5 - 1.0).abs() <= 0.05, "{pfs}");
}

/// Phases that lose nothing beside prefetches are news too, but are believed slowly: those may have
/// read from servers that the phase does not write to.
#[test]
fn harmless_prefetches_are_known_to_be_harmless() {
    let mut p = planner_of("no-action", Config { learning: 0.3, ..config() });
    phase(&mut p, 0.5, 100);
    second_wave(&mut p, 60);
    let harm = |p: &Planner| p.board().strain(Setting::new(2, 1)).i_hpc;
    let mut harms = vec![harm(&p)];
    for wave in 1..8 {
        let at = |s: u64| Nanos((u64::from(wave - 1) * 100 + s) * S);
        p.handle(at(20), Event::PhaseEnds { hpc: 0 }, &mut vec![]);
        harms.push(harm(&p));
        p.handle(at(40), Event::Fetched { job: 0, wave, resident_bytes: 0 }, &mut vec![]);
        let begins = Event::PhaseBegins { hpc: 0, alone_ns: 20 * S, deadline: at(150) };
        p.handle(at(100), begins, &mut vec![]);
        p.handle(at(100), Event::WaveStarts { job: 0, wave, compute_ns: 60 * S }, &mut vec![]);
    }
    assert!(harms.is_sorted_by(|a, b| a > b), "{harms:?}");
    assert!(harms[2] > 1.4 && harms[7] < 1.4, "{harms:?}");
}

/// The speed was a guess, ten times too high. What was fetched by then was fetched at the speed
/// that is known now, and the plan is made again.
#[test]
fn the_speed_that_the_first_prefetch_shows_replaces_a_guess() {
    let mut p = planner_of("no-action", Config { pfs_bytes_per_s: 10.0, learning: 0.3, ..config() });
    second_wave(&mut p, 100);
    let mut out = vec![];
    p.handle(Nanos(5 * S), Event::Speed { bytes_per_s: 1.0 }, &mut out);
    let d = decision(&out);
    assert!((d.left_bytes - 95.0).abs() < 1e-9, "{d:?}");
    assert_eq!(d.estimate.fetched_in_s.map(f64::round), Some(95.0), "{d:?}");
    assert_eq!(p.board().pfs_bytes_per_s(), 1.0);
}

#[test]
fn unknown_policies_are_named_with_the_known_ones() {
    let error = policy("best", &config()).err().expect("there is none");
    assert_eq!(
        error.to_string(),
        "no planner is called 'best'; there are naive-bb, no-action, full-delay, eley, eley-direct, forebay"
    );
}

proptest! {
    /// The same events give the same actions, and the estimates of planners that heed deadlines
    /// keep them.
    #[test]
    fn plans_are_repeatable_and_keep_deadlines(
        which in 2usize..6, allowance in 0.01f64..0.5, compute_s in 1u64..60, gap_s in 1u64..60
    ) {
        let name = POLICIES[which].0;
        let run = || {
            let mut p = planner(name);
            phase(&mut p, allowance, gap_s);
            second_wave(&mut p, compute_s)
        };
        let out = run();
        prop_assert_eq!(&out, &run());
        for action in &out {
            if let Action::Decided(d) = action {
                prop_assert!(d.estimate.margin_s.is_none_or(|m| m >= -1e-9), "{:?}", d);
            }
        }
    }
}

#[test]
fn without_regard_for_phases_a_wave_that_tasks_read_is_never_paused() {
    for jobs in 1..4_u32 {
        let mut p = planner("no-action");
        let mut out = vec![];
        p.handle(Nanos(0), Event::Memory { bytes: u64::from(jobs) * 100 }, &mut out);
        for job in 0..jobs {
            p.handle(Nanos(0), job_joins(job, 2, 100, 10 * S), &mut out);
        }
        for job in 0..jobs {
            p.handle(Nanos(S), Event::WaveStarts { job, wave: 0, compute_ns: 10 * S }, &mut out);
        }
        // Room for the next wave of none, of some, and of all.
        for more in 0..=jobs {
            let bytes = u64::from(jobs + more) * 100;
            p.handle(Nanos(2 * S), Event::Memory { bytes }, &mut out);
        }
        let fetch = |action: &Action| match action {
            Action::Fetch { wave, setting, .. } => Some((*wave, setting.is_paused())),
            _ => None,
        };
        let fetches: Vec<(u32, bool)> = out.iter().filter_map(fetch).collect();
        assert!(fetches.contains(&(0, false)) && fetches.contains(&(1, false)), "{fetches:?}");
        assert!(!fetches.contains(&(0, true)), "{fetches:?}");
    }
}

/// Progress comes in steps: right after one the phase seems to be further than it can be.
#[test]
fn progress_gives_no_slack_back_that_a_prefetch_has_cost() {
    let slack_s = |p: &Planner| {
        let (_, chain) = p.board().chains()[0];
        chain.deadline_s - chain.left_s
    };
    let mut p = planner("no-action");
    phase(&mut p, 0.2, 100);
    second_wave(&mut p, 1);
    let mut out = vec![];
    p.handle(Nanos(5 * S), Event::PhaseLeft { hpc: 0, left_ns: 16 * S }, &mut out);
    let spent = slack_s(&p);
    assert!(spent < 3.9, "the prefetch costs nothing: {spent}");
    // Alone it would have 15 s left, and it has not been alone.
    p.handle(Nanos(5 * S), Event::PhaseLeft { hpc: 0, left_ns: 13 * S }, &mut out);
    let after = slack_s(&p);
    p.handle(Nanos(5 * S), Event::PhaseLeft { hpc: 0, left_ns: S }, &mut out);
    assert!(after < 4.0 && slack_s(&p) == after, "{spent}, {after}, {}", slack_s(&p));
    // What it has lost beside prefetches counts.
    p.handle(Nanos(5 * S), Event::PhaseLeft { hpc: 0, left_ns: 18 * S }, &mut out);
    assert!(slack_s(&p) < after - 1.0);
}

/// Tasks read for as long as they compute: 10 s, and the next phase begins sooner.
#[test]
fn tasks_do_not_read_by_themselves_into_a_phase_that_is_expected() {
    let kinds = |with_compute: bool, compute_s: u64| {
        let mut config = config();
        config.direct.with_compute = with_compute;
        // As fast as a prefetch, and nothing has to be read from the tier.
        config.direct.speed_bytes_per_s = 100.0;
        let mut p = planner_of("forebay", config);
        let mut out = vec![];
        p.handle(Nanos(0), joins(20, compute_s, 5, 0.05, compute_s), &mut out);
        p.handle(Nanos(0), job_joins(0, 3, 100, 10 * S), &mut out);
        out.iter().any(|action| matches!(action, Action::Direct { .. }))
    };
    assert!(kinds(false, 5) && kinds(true, 30), "they read by themselves where they disturb nobody");
    assert!(!kinds(true, 5));
}

/// The phase was expected to end after 20 s, and has not.
#[test]
fn a_full_delay_waits_for_a_phase_that_is_late() {
    for name in ["full-delay", "eley"] {
        let mut p = planner(name);
        phase(&mut p, 0.0, 100);
        let d = decision(&second_wave(&mut p, 30)).clone();
        let begins = d.steps.last().expect("it is fetched some time").at;
        assert_eq!((d.kind, begins), (ActionKind::FullDelay, Nanos(20 * S)), "{name}: {d:?}");
        let goes = |out: &[Action]| {
            out.iter().any(|a| matches!(a, Action::Fetch { setting, .. } if !setting.is_paused()))
        };
        let mut out = vec![];
        p.on_deadline(Nanos(20 * S), &mut out);
        assert!(!goes(&out), "{name}: beside the phase: {out:?}");
        p.handle(Nanos(21 * S), Event::PhaseEnds { hpc: 0 }, &mut out);
        assert!(goes(&out), "{name}: {out:?}");
    }
}

/// Beside a phase with half a second in hand a prefetch could run for a second and a half, which
/// nodes that need two seconds to stop cannot do.
#[test]
fn nodes_that_are_slow_to_stop_are_not_started_for_a_moment() {
    for (reaction_s, starts) in [(0.0, true), (1.0, true), (2.0, false)] {
        let mut config = Config { reaction_s, ..config() };
        config.profile.i_hpc = separable(1.5, &[(1, 1.0)], &[(1, 1.0)]);
        let mut p = planner_of("forebay", config);
        phase(&mut p, 0.025, 100);
        let mut out = vec![];
        p.handle(Nanos(0), job_joins(0, 3, 100, S), &mut out);
        let plans = |step: &PlannedStep| !step.setting.is_paused();
        assert_eq!(decision(&out).steps.iter().any(plans), starts, "{reaction_s}: {out:?}");
    }
}

/// One node fills a file system of 5 bytes per second, and so do all of them.
#[test]
fn of_equally_fast_settings_between_phases_forebay_takes_the_default() {
    for (pfs_bytes_per_s, fastest) in [(5.0, Setting::new(2, 1)), (1e9, Setting::new(2, 2))] {
        let mut config = Config { pfs_bytes_per_s, ..config() };
        config.direct.speed_bytes_per_s = 0.1;
        let mut p = planner_of("forebay", config);
        let mut out = vec![];
        p.handle(Nanos(0), job_joins(0, 9, 100, 5 * S), &mut out);
        assert_eq!(decision(&out).steps[0].setting, fastest);
    }
}

/// The next phase is expected after 30 s.
#[test]
fn a_prefetch_stops_just_before_a_phase_and_goes_on_if_that_does_not_come() {
    let mut p = planner_of("forebay", Config { reaction_s: 0.1, ram_bytes: 10_000, ..config() });
    let mut out = vec![];
    p.handle(Nanos(0), joins(20, 30, 5, 0.05, 30), &mut out);
    p.handle(Nanos(0), job_joins(0, 90, 1000, S), &mut out);
    let (mut moves, mut ahead) = (vec![], vec![]);
    loop {
        let ms = p.board().now().0 / 1_000_000;
        for action in out.drain(..) {
            match action {
                Action::Fetch { setting, .. } => moves.push((ms, !setting.is_paused())),
                Action::Ahead { may, .. } => ahead.push((ms, may)),
                Action::Decided(_) | Action::Direct { .. } => {}
            }
        }
        let Some(at) = p.next_deadline().filter(|at| *at < Nanos(40 * S)) else { break };
        p.on_deadline(at, &mut out);
    }
    assert_eq!(moves, [(0, true), (29_900, false), (30_100, true)]);
    assert_eq!(ahead, moves, "and with it what is fetched of later waves");
}

/// Half of the second wave came before it was planned: the plan is for the rest, and the model
/// learns no speed from the other half.
#[test]
fn what_has_come_without_a_plan_is_not_fetched_again_and_teaches_nothing() {
    let mut p = planner_of("forebay", Config { learning: 1.0, ..config() });
    let mut out = vec![];
    p.handle(Nanos(0), job_joins(0, 9, 100, 1000 * S), &mut out);
    let came = Event::FetchedAhead { job: 0, waves: vec![(1, 30), (2, 100)] };
    p.handle(Nanos(0), came, &mut out);
    // 12.5 bytes per second with two threads of two nodes.
    let first_at = 8 * S;
    p.handle(Nanos(first_at), Event::FetchedAhead { job: 0, waves: vec![(1, 50)] }, &mut out);
    p.handle(Nanos(first_at), Event::Fetched { job: 0, wave: 0, resident_bytes: 0 }, &mut out);
    assert!((p.board().left_bytes(0, 1) - 50.0).abs() < 1e-6, "{}", p.board().left_bytes(0, 1));
    assert!(
        (p.board().ram_bytes() - p.board().room_bytes(0) - 250.0).abs() < 1e-6,
        "{}",
        p.board().room_bytes(0)
    );
    let before = p.board().corrections();
    let speed = p.board().strain(Setting::new(2, 2)).speed_bytes_per_s;
    let second_at = first_at + (50.0 / speed * 1e9) as u64;
    p.handle(Nanos(second_at), Event::Fetched { job: 0, wave: 1, resident_bytes: 50 }, &mut out);
    let after = p.board().corrections();
    assert!((after.1 / before.1 - 1.0).abs() < 0.01, "{before:?} {after:?}");
}

/// Two jobs are planned together, and what one fetched beyond its plan would take from the other.
#[test]
fn later_waves_are_fetched_only_for_a_job_that_is_alone_and_between_phases() {
    let ahead = |p: &mut Planner, event: Event| {
        let mut out = vec![];
        p.handle(p.board().now(), event, &mut out);
        let decided = out.iter().filter_map(|action| match action {
            Action::Ahead { job, may } => Some((*job, *may)),
            _ => None,
        });
        decided.collect::<Vec<_>>()
    };
    let mut p = planner("forebay");
    assert_eq!(ahead(&mut p, job_joins(0, 9, 100, 1000 * S)), [(0, true)]);
    assert_eq!(ahead(&mut p, job_joins(1, 9, 10, S)), [(0, false)]);
    assert_eq!(ahead(&mut p, Event::JobLeaves { job: 1 }), [(0, true)]);
    assert_eq!(ahead(&mut p, Event::JobLeaves { job: 0 }), [], "of whom nothing is fetched any more");
    for name in ["eley", "full-delay", "no-action", "naive-bb"] {
        assert_eq!(ahead(&mut planner(name), job_joins(0, 9, 100, S)), [], "{name}");
    }
    let mut p = planner("forebay");
    phase(&mut p, 10.0, 1000);
    assert_eq!(ahead(&mut p, job_joins(0, 9, 100, S)), [], "beside a phase only what its deadline bears");
    assert_eq!(ahead(&mut p, Event::PhaseEnds { hpc: 0 }), [(0, true)]);
}
