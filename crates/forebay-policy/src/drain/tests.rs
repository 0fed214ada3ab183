use super::*;
use proptest::prelude::*;

const S: u64 = 1_000_000_000;
const MB: u64 = 1 << 20;

fn file(since_s: u64) -> File {
    File { owner: 7, bytes: 8 * MB, since: Nanos(since_s * S), is_ready: true, ..File::default() }
}

fn drain() -> Drain {
    Drain::new(Config::default())
}

fn handle(drain: &mut Drain, at_s: u64, event: Event) -> Vec<Action> {
    let mut out = Vec::new();
    drain.handle(Nanos(at_s * S), event, &mut out);
    out
}

fn dirty(file: FileId, facts: File) -> Event {
    Event::Dirty { file, facts }
}

fn offer(file: FileId, server: Option<Server>) -> Event {
    Event::Offer { file, bytes: 4 * MB, server }
}

const HOLD: Event = Event::Hold { on: true, own: None };
const GO_ON: Event = Event::Hold { on: false, own: None };

fn begin(file: FileId) -> Action {
    Action::Begin { mount: 0, file }
}

fn send(file: FileId) -> Action {
    Action::Send { file, forced: None }
}

fn send_for(file: FileId, why: Forced) -> Action {
    Action::Send { file, forced: Some(why) }
}

#[test]
fn who_wants_room_goes_first_then_who_is_awaited_and_then_the_oldest() {
    let config = Config { writes: 1, age_max_ns: 10 * S, ..Config::default() };
    let mut drain = Drain::new(config);
    assert_eq!(handle(&mut drain, 9, dirty(9, file(9))), [begin(9)]);
    for (id, facts) in [
        (1, file(2)),
        (2, file(1)),
        (3, File { is_awaited: true, ..file(5) }),
        (4, File { wants_room: true, ..file(6) }),
        (5, File { is_ready: false, is_open: true, ..file(0) }),
    ] {
        assert_eq!(handle(&mut drain, 9, dirty(id, facts)), []);
    }
    for (ended, next) in [(9, 4), (4, 3), (3, 2), (2, 1)] {
        assert_eq!(handle(&mut drain, 9, Event::Ended { file: ended, full: None }), [begin(next)]);
        handle(&mut drain, 9, Event::Clean { file: ended });
    }
    // A file that is too old goes before all that are not.
    handle(&mut drain, 25, dirty(6, File { is_awaited: true, ..file(20) }));
    handle(&mut drain, 25, dirty(7, file(11)));
    assert_eq!(handle(&mut drain, 25, Event::Ended { file: 1, full: None }), [begin(7)]);
}

#[test]
fn nothing_is_written_in_the_phase_of_another_and_all_of_it_after() {
    let mut drain = drain();
    handle(&mut drain, 1, dirty(1, file(1)));
    assert_eq!(handle(&mut drain, 1, offer(1, None)), [send(1)]);
    assert_eq!(handle(&mut drain, 2, HOLD), []);
    handle(&mut drain, 2, Event::Written { file: 1, bytes: 4 * MB });
    assert_eq!(handle(&mut drain, 2, offer(1, None)), [], "it stops between two chunks");
    assert_eq!(handle(&mut drain, 3, dirty(2, file(3))), [], "no pass begins");
    assert_eq!(drain.outlooks()[&2].why, Why::Phase);
    let mut going = handle(&mut drain, 9, GO_ON);
    going.sort_by_key(|action| matches!(action, Action::Begin { .. }));
    assert_eq!(going, [send(1), begin(2)]);
}

#[test]
fn who_is_awaited_waits_for_the_phases_of_others_but_not_for_its_own() {
    let mut drain = drain();
    handle(&mut drain, 1, HOLD);
    let awaited = File { is_awaited: true, ..file(1) };
    assert_eq!(handle(&mut drain, 1, dirty(1, awaited)), []);
    assert_eq!(handle(&mut drain, 1, dirty(2, file(1))), []);
    assert_eq!(handle(&mut drain, 2, Event::Hold { on: true, own: Some(8) }), []);
    assert_eq!(handle(&mut drain, 2, Event::Hold { on: true, own: Some(7) }), [begin(1)]);
    assert_eq!(handle(&mut drain, 2, offer(1, None)), [send(1)]);
}

#[test]
fn for_lack_of_room_and_for_age_it_goes_on_in_a_phase_and_says_so() {
    let mut drain = drain();
    handle(&mut drain, 1, HOLD);
    handle(&mut drain, 1, dirty(1, file(1)));
    let wants_room = File { owner: 8, wants_room: true, ..file(2) };
    assert_eq!(handle(&mut drain, 2, dirty(2, wants_room)), [begin(2)]);
    assert_eq!(handle(&mut drain, 2, offer(2, None)), [send_for(2, Forced::Capacity)]);
    assert_eq!(drain.outlooks()[&2].why, Why::Forced(Forced::Capacity));
    assert_eq!(drain.outlooks()[&1].why, Why::Phase, "of another owner");
    let at = drain.next_deadline().unwrap();
    assert_eq!(at, Nanos(32 * S), "the chunk may hang");
    let mut out = Vec::new();
    drain.on_deadline(at, &mut out);
    assert_eq!((drain.next_deadline(), out.len()), (Some(Nanos(301 * S)), 0));
    drain.on_deadline(Nanos(301 * S), &mut out);
    assert_eq!(out, [begin(1)]);
    assert_eq!(handle(&mut drain, 301, offer(1, None)), [send_for(1, Forced::Age)]);
}

/// A checkpoint of 8 MB every 100 s; the PFS takes 1 MB/s.
#[test]
fn room_for_the_next_checkpoint_is_made_in_a_phase_as_late_as_it_can_be() {
    let mut drain = drain();
    for (id, at) in [(1, 0), (2, 100)] {
        handle(&mut drain, at, dirty(id, file(at)));
        for half in [4, 8] {
            handle(&mut drain, at + half - 4, offer(id, None));
            handle(&mut drain, at + half, Event::Written { file: id, bytes: 4 * MB });
        }
        handle(&mut drain, at + 8, Event::Ended { file: id, full: None });
        handle(&mut drain, at + 8, Event::Clean { file: id });
    }
    handle(&mut drain, 199, HOLD);
    handle(&mut drain, 200, dirty(3, file(200)));
    handle(&mut drain, 201, Event::Room { owner: 7, free_bytes: 4 * MB });
    // 4 MB are missing at 300 s: 8 s at half the rate, and an eighth of the period.
    let at = drain.next_deadline().unwrap();
    assert_eq!(at.0 / S, 279);
    let mut out = Vec::new();
    drain.on_deadline(at - 1, &mut out);
    assert_eq!(out, []);
    drain.on_deadline(at, &mut out);
    assert_eq!(out, [begin(3)]);
    assert_eq!(handle(&mut drain, 283, offer(3, None)), [send_for(3, Forced::Capacity)]);
    handle(&mut drain, 284, Event::Written { file: 3, bytes: 4 * MB });
    assert_eq!(handle(&mut drain, 284, offer(3, None)), [], "no faster than is needed");
    assert!(drain.next_deadline().unwrap() < Nanos(300 * S));
    // Once there is room, the phase is left alone again.
    handle(&mut drain, 285, Event::Room { owner: 7, free_bytes: 8 * MB });
    assert_eq!(drain.outlooks()[&3].why, Why::Phase);
}

#[test]
fn chunks_go_to_servers_that_have_none_and_not_to_one_that_hangs() {
    let mut drain = drain();
    for id in [1, 2, 3] {
        handle(&mut drain, id, dirty(id, file(id)));
    }
    assert_eq!(handle(&mut drain, 4, offer(1, Some(10))), [send(1)]);
    assert_eq!(handle(&mut drain, 4, offer(2, Some(10))), [send(2)], "there is no other chunk");
    handle(&mut drain, 5, Event::Written { file: 2, bytes: 4 * MB });
    // Server 10 hangs: the pass that wants it keeps no other one from beginning.
    assert_eq!(handle(&mut drain, 40, offer(2, Some(10))), [begin(3)]);
    assert_eq!(drain.outlooks()[&2].why, Why::Server);
    assert_eq!(handle(&mut drain, 40, offer(3, Some(11))), [send(3)]);
    handle(&mut drain, 41, Event::Written { file: 1, bytes: 4 * MB });
    assert_eq!(handle(&mut drain, 41, Event::Ended { file: 1, full: None }), [send(2)]);
}

#[test]
fn a_server_without_space_is_avoided() {
    let config = Config { writes: 1, ..Config::default() };
    let mut drain = Drain::new(config);
    handle(&mut drain, 1, dirty(1, file(1)));
    handle(&mut drain, 1, offer(1, Some(10)));
    handle(&mut drain, 2, Event::Written { file: 1, bytes: 0 });
    handle(&mut drain, 2, Event::Ended { file: 1, full: Some(10) });
    let mut drain = Drain { config: Config::default(), ..drain };
    for id in [2, 3] {
        handle(&mut drain, 2, dirty(id, file(id)));
    }
    let mut both = Drain { config, ..drain.clone() };
    assert_eq!(handle(&mut drain, 3, offer(2, Some(10))), [send(2)], "nothing else can go");
    // One at a time: the one that can be written goes first.
    both.set_state(2, State::Offers { bytes: 1, server: Some(10) });
    assert_eq!(handle(&mut both, 3, offer(3, Some(11))), [send(3)]);
}

#[test]
fn at_once_minds_nobody_and_keeps_its_rate() {
    let mut drain = Drain::new(Config { yields: false, rate_bytes_per_s: 4 * MB, ..Config::default() });
    handle(&mut drain, 1, HOLD);
    assert_eq!(handle(&mut drain, 1, dirty(1, file(1))), [begin(1)]);
    assert_eq!(handle(&mut drain, 1, offer(1, None)), [send(1)]);
    handle(&mut drain, 1, Event::Written { file: 1, bytes: 4 * MB });
    assert_eq!(handle(&mut drain, 1, offer(1, None)), []);
    assert_eq!(drain.next_deadline(), Some(Nanos(2 * S)));
}

#[test]
fn files_are_said_to_be_safe_when_those_before_them_are_written() {
    let mut drain = drain();
    handle(&mut drain, 0, dirty(1, file(0)));
    for id in [2, 3] {
        handle(&mut drain, 0, dirty(id, file(id)));
    }
    assert_eq!(drain.outlooks()[&3].safe_in_ns, None, "nothing was measured");
    handle(&mut drain, 0, offer(1, None));
    handle(&mut drain, 4, Event::Written { file: 1, bytes: 4 * MB });
    let looks = drain.outlooks();
    assert_eq!(looks[&1], Outlook { why: Why::Writes, rate_bytes_per_s: MB, safe_in_ns: Some(4 * S) });
    assert_eq!((looks[&3].why, looks[&3].safe_in_ns), (Why::Turn(2), Some(20 * S)));
}

/// A driver that makes all passes that are begun, each chunk in a tenth of a second.
struct Driver {
    drain: Drain,
    now: Nanos,
    /// Chunks left of each file, and its chunk under way.
    files: BTreeMap<FileId, (File, u64, bool, bool)>,
    done: BTreeMap<FileId, Nanos>,
}

impl Driver {
    fn handle(&mut self, event: Event) {
        let mut out = Vec::new();
        self.drain.handle(self.now, event, &mut out);
        self.obey(out);
    }

    fn obey(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Begin { file, .. } => {
                    let (facts, _, passing, _) = self.files.get_mut(&file).expect("it is dirty");
                    assert!(facts.is_ready && !*passing, "file {file} is chosen twice");
                    *passing = true;
                    self.handle(offer(file, Some(file % 3)));
                }
                Action::Send { file, .. } => {
                    let (_, _, passing, sent) = self.files.get_mut(&file).expect("it is dirty");
                    assert!(*passing && !*sent, "a chunk of file {file} is sent before the one before");
                    *sent = true;
                }
            }
        }
    }

    fn step(&mut self) {
        self.now = self.now + S / 10;
        if self.drain.next_deadline().is_some_and(|at| at <= self.now) {
            let mut out = Vec::new();
            self.drain.on_deadline(self.now, &mut out);
            self.obey(out);
        }
        let sent: Vec<FileId> = self.files.iter().filter(|(_, f)| f.3).map(|(id, _)| *id).collect();
        assert!(sent.len() <= Config::default().writes);
        for id in sent {
            let entry = self.files.get_mut(&id).expect("it is dirty");
            (entry.1, entry.3) = (entry.1 - 1, false);
            let left = entry.1;
            self.handle(Event::Written { file: id, bytes: 4 * MB });
            if left > 0 {
                self.handle(offer(id, Some(id % 3)));
            } else {
                self.files.remove(&id);
                self.done.insert(id, self.now);
                self.handle(Event::Ended { file: id, full: None });
                self.handle(Event::Clean { file: id });
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever is dirty and however long phases last: nothing is chosen twice, the chunks of a
    /// file go one after the other, every file is done in bounded time, and a file that wants room
    /// goes in spite of phases.
    #[test]
    fn no_file_starves(
        files in prop::collection::vec((1u64..6, 0u64..100, any::<bool>(), 0u32..10, 0u32..3), 1..30),
        holds in prop::collection::vec((0u64..100, any::<bool>()), 0..20),
    ) {
        let age_max_ns = 20 * S;
        let drain = Drain::new(Config { age_max_ns, ..Config::default() });
        let mut driver = Driver { drain, now: Nanos(0), files: BTreeMap::new(), done: BTreeMap::new() };
        let chunks: u64 = files.iter().map(|file| file.0).sum();
        let mut last = BTreeMap::new();
        for tenth in 0..600 + 2 * chunks {
            for (_, on) in holds.iter().filter(|hold| hold.0 == tenth) {
                driver.handle(Event::Hold { on: *on, own: None });
            }
            for (id, (chunks, _, is_awaited, room, owner)) in (0..).zip(&files).filter(|(_, f)| f.1 == tenth) {
                let bytes = chunks * 4 * MB;
                let facts = File {
                    since: driver.now, bytes, owner: *owner, is_awaited: *is_awaited, wants_room: *room == 0, ..file(0)
                };
                driver.files.insert(id, (facts, *chunks, false, false));
                last.insert(id, (driver.now, facts));
                driver.handle(dirty(id, facts));
            }
            driver.step();
        }
        prop_assert_eq!(driver.done.len(), files.len());
        let work_ns = chunks * S / 10;
        for (id, (since, facts)) in last {
            let most_ns = if facts.wants_room { work_ns } else { age_max_ns + work_ns };
            let took_ns = driver.done[&id].saturating_since(since);
            prop_assert!(took_ns <= most_ns + S, "file {} took {} s", id, took_ns / S);
        }
    }
}

#[test]
fn a_job_with_a_rate_limit_has_one_pass_and_keeps_no_other_job_from_writing() {
    let mut drain = drain();
    let limited = |job| File { limited_job: Some(job), ..file(1) };
    assert_eq!(handle(&mut drain, 1, dirty(1, limited(5))), [begin(1)]);
    assert_eq!(handle(&mut drain, 1, dirty(2, limited(5))), [], "its second file waits for the first");
    assert_eq!(handle(&mut drain, 1, dirty(3, limited(6))), [begin(3)]);
    assert_eq!(handle(&mut drain, 1, dirty(4, limited(7))), [], "half of the passes are for other jobs");
    // Both wait for their rate, and offer nothing.
    assert_eq!(handle(&mut drain, 2, dirty(8, file(2))), [begin(8)]);
    assert_eq!(handle(&mut drain, 2, offer(8, None)), [send(8)]);
    assert_eq!(handle(&mut drain, 9, offer(1, None)), [send(1)]);
    assert_eq!(handle(&mut drain, 9, Event::Ended { file: 1, full: None }), [begin(2)]);
}
