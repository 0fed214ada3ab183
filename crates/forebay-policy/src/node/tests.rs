use super::*;
use crate::fetch_order::Urgency;
use crate::stage::event::Priority;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const READ_BYTES: u64 = 2 << 20;

/// A machine of one mount with 8 fetch threads, and of a second one with 2.
fn config() -> Config {
    Config { fetch_threads: vec![8, 2], read_bytes: READ_BYTES, ..Config::default() }
}

struct Driven {
    node: Node,
    now: Nanos,
    read: ReadId,
}

impl Driven {
    fn new() -> Self {
        Driven { node: Node::new(&config()), now: Nanos(1), read: 0 }
    }

    fn hear(&mut self, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        self.node.handle(self.now, event, &mut out);
        out
    }

    fn request(&mut self, request: RequestId, threads: u32, priority: Priority) {
        let began = self.hear(Event::Request { request, threads, rate_bytes_per_s: 0, priority });
        assert!(began.iter().all(|action| matches!(action, Action::Hold { .. })), "{began:?}");
    }

    /// Offers a read; returns the reads that were sent because of it.
    fn offer(&mut self, by: By, mount: Option<MountId>, bytes: u64, is_short: bool) -> Vec<ReadId> {
        self.read += 1;
        let read = self.read;
        sent(self.hear(Event::Offer { read, by, mount, bytes, is_short }))
    }

    fn page(&mut self, request: RequestId) -> Vec<ReadId> {
        self.offer(By::Request(request), Some(0), READ_BYTES, false)
    }

    fn ended(&mut self, read: ReadId) -> Vec<ReadId> {
        let ended = Event::ReadEnded { read, resident_bytes: 0, fetched_bytes: READ_BYTES, failed_bytes: 0 };
        sent(self.hear(ended))
    }
}

fn sent(actions: Vec<Action>) -> Vec<ReadId> {
    let sent = |action| if let Action::Send { read } = action { Some(read) } else { None };
    actions.into_iter().filter_map(sent).collect()
}

#[test]
fn requests_take_half_of_the_threads_and_what_is_fetched_ahead_goes_last() {
    let mut node = Driven::new();
    node.request(5, 8, Priority::Ahead);
    node.request(6, 8, Priority::Planned);
    assert_eq!([node.page(5), node.page(5), node.page(6), node.page(6)], [[1], [2], [3], [4]]);
    assert!(node.page(5).is_empty() && node.page(6).is_empty(), "four of eight threads");
    assert_eq!(node.ended(1), [6], "the planned one");
    assert_eq!(node.ended(2), [5]);
    assert!(node.page(6).is_empty());
    assert_eq!(node.offer(By::Request(5), Some(1), READ_BYTES, false), [8], "another mount is free");
    assert_eq!(node.offer(By::Request(5), None, READ_BYTES, false), [9], "so are peers");
}

#[test]
fn a_page_that_a_peer_waits_for_goes_first_and_keeps_room_for_itself() {
    let mut node = Driven::new();
    node.request(1, 8, Priority::Planned);
    (1..=4).for_each(|read| assert_eq!(node.page(1), [read]));
    assert!(node.page(1).is_empty());
    assert!(node.offer(By::Peer, Some(0), READ_BYTES, false).is_empty());
    assert_eq!(node.ended(1), [6], "the peer's");
    assert_eq!(node.ended(2), [5]);
    assert!(node.offer(By::Peer, Some(0), READ_BYTES, false).is_empty());
    assert_eq!(node.hear(Event::Withdraw { read: 7 }), []);
    assert!(node.ended(3).is_empty(), "it has given up");
}

#[test]
fn short_reads_give_way_to_a_page_that_waits() {
    let (mut node, bytes) = (Driven::new(), 16 << 10);
    node.request(1, 4, Priority::Planned);
    let short = |node: &mut Driven| node.offer(By::Request(1), Some(0), bytes, true);
    (1..=6).for_each(|read| assert_eq!(short(&mut node), [read], "six of four threads"));
    assert!(short(&mut node).is_empty());
    node.request(2, 1, Priority::Planned);
    assert!(node.page(2).is_empty());
    assert!(node.ended(1).is_empty(), "nor would another short one go");
    assert!(node.ended(2).is_empty());
    assert_eq!(node.ended(3), [7], "as a page would, and it was there first");
    assert_eq!(node.ended(4), [8]);
}

#[test]
fn a_rate_delays_its_request_alone() {
    let mut node = Driven::new();
    let rate_bytes_per_s = READ_BYTES;
    let priority = Priority::Planned;
    node.hear(Event::Request { request: 1, threads: 4, rate_bytes_per_s, priority });
    node.request(2, 4, Priority::Ahead);
    assert_eq!([node.page(1), node.page(1)], [[1], [2]], "a burst of 4 MiB");
    assert!(node.page(1).is_empty());
    assert_eq!(node.page(2), [4], "it does not wait for a thread");
    let due = node.node.next_deadline().unwrap();
    assert_eq!(due, Nanos(1_000_000_001));
    let mut out = Vec::new();
    node.node.on_deadline(due, &mut out);
    assert_eq!((sent(out), node.node.next_deadline()), (vec![3], None));
}

#[test]
fn a_load_has_so_many_reads_under_way_however_short_they_are() {
    let mut node = Driven::new();
    node.hear(Event::LoadBegins { load: 1, rate_bytes_per_s: 0 });
    (1..=64).for_each(|read| assert_eq!(node.offer(By::Load(1), Some(0), 20 << 10, false), [read]));
    assert!(node.offer(By::Load(1), Some(0), 20 << 10, false).is_empty());
    assert_eq!(node.ended(7), [65]);
    node.hear(Event::LoadEnds { load: 1 });
    assert!(!node.node.knows(By::Load(1)) && node.ended(8).is_empty());
}

#[test]
fn pauses_and_the_brake_stop_what_nobody_waits_for() {
    let mut node = Driven::new();
    node.request(1, 1, Priority::Planned);
    let hold = |held| Action::Hold { held };
    let adjust = |threads| Event::Adjust { request: 1, threads, rate_bytes_per_s: 0 };
    assert_eq!(node.hear(adjust(0)), [hold(Held::Plans)], "all requests of the node are paused");
    assert!(node.page(1).is_empty());
    let peer = Event::Offer { read: 9, by: By::Peer, mount: Some(0), bytes: READ_BYTES, is_short: false };
    assert_eq!(node.hear(peer), [hold(Held::Nothing), Action::Send { read: 9 }]);
    assert!(node.ended(9).is_empty());
    assert_eq!(node.node.held, Held::Plans);
    assert_eq!(node.hear(adjust(1)), [Action::Send { read: 1 }, hold(Held::Nothing)]);
    assert_eq!(node.hear(Event::Pause { on: true }), [hold(Held::Plans)]);
    assert_eq!(node.hear(Event::Brake { on: true }), [hold(Held::AllButDemand)]);
    assert_eq!(node.hear(Event::LoadBegins { load: 1, rate_bytes_per_s: 0 }), []);
    node.read = 19;
    assert!(node.offer(By::Load(1), Some(0), READ_BYTES, false).is_empty());
    assert_eq!(node.hear(Event::Pause { on: false }), []);
    assert_eq!(node.hear(Event::Brake { on: false }), [Action::Send { read: 20 }, hold(Held::Nothing)]);
    assert_eq!(node.hear(Event::Phases { under_way: true, own: None }), [Action::Gentle { on: true }]);
    node.ended(1);
    assert_eq!(node.hear(Event::Silence { on: true }), []);
    assert!(node.page(1).is_empty(), "the coordinator cannot follow the phases");
    assert_eq!(node.hear(Event::Phases { under_way: false, own: None }), [Action::Send { read: 21 }]);
    let due = node.node.next_deadline().unwrap();
    assert_eq!(due, node.now + 600_000_000_000);
    let mut out = Vec::new();
    node.node.on_deadline(due, &mut out);
    assert_eq!(out, [Action::Gentle { on: false }]);
}

#[test]
fn a_request_is_done_when_it_offers_nothing_more_and_its_reads_have_ended() {
    let mut node = Driven::new();
    node.request(1, 4, Priority::Planned);
    assert_eq!(node.page(1), [1]);
    node.hear(Event::Settled { request: 1, resident_bytes: 7, failed_bytes: 3 });
    assert_eq!(node.hear(Event::Fed { request: 1 }), []);
    let ended = Event::ReadEnded { read: 1, resident_bytes: 1, fetched_bytes: 5, failed_bytes: 2 };
    let progress = Progress { fetched_bytes: 5, resident_bytes: 8, failed_bytes: 5, done: true };
    assert_eq!(node.hear(ended), [Action::Report { request: 1, progress }]);
    assert!(!node.node.is_as_new(node.now), "it may be asked for");
    node.hear(Event::Release { requests: vec![1] });
    assert!(node.node.is_as_new(node.now));
}

/// What a driver does, by numbers that are drawn.
#[derive(Clone, Debug)]
enum Step {
    Request(u64, u32, bool),
    Adjust(u64, u32, u64),
    Release(u64),
    Offer(u64, usize, u64, bool),
    Peer(usize),
    Withdraw,
    End(usize),
    Queue(usize, usize, Option<u32>),
    Rest(usize, usize),
    Brake(bool),
    Pause(bool),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let request = 0..4_u64;
    prop_oneof![
        (request.clone(), 0..5_u32, any::<bool>()).prop_map(|(id, n, ahead)| Step::Request(id, n, ahead)),
        (request.clone(), 0..5_u32, 0..3_u64).prop_map(|(id, n, rate)| Step::Adjust(id, n, rate << 20)),
        request.clone().prop_map(Step::Release),
        (request, 0..2_usize, 1..=READ_BYTES, any::<bool>())
            .prop_map(|(id, mount, bytes, short)| Step::Offer(id, mount, bytes, short)),
        (0..2_usize).prop_map(Step::Peer),
        Just(Step::Withdraw),
        (0..16_usize).prop_map(Step::End),
        (0..2_usize, 0..5_usize, proptest::option::of(0..4_u32))
            .prop_map(|(mount, urgency, page)| Step::Queue(mount, urgency, page)),
        (0..2_usize, 0..8_usize).prop_map(|(mount, thread)| Step::Rest(mount, thread)),
        any::<bool>().prop_map(Step::Brake),
        any::<bool>().prop_map(Step::Pause),
        (0..20_u64).prop_map(|s| Step::Wait(s * 500_000_000)),
    ]
}

/// A driver that trusts nothing: it checks each action against its own state.
struct Checked {
    driven: Driven,
    /// Reads offered and not sent: their origin, and their mount.
    offered: BTreeMap<ReadId, (By, MountId)>,
    sent: BTreeMap<ReadId, (By, MountId)>,
    waiting: BTreeMap<TaskId, (MountId, Urgency)>,
    running: BTreeMap<(MountId, usize), TaskId>,
    idle: BTreeSet<(MountId, usize)>,
    tasks: TaskId,
    brake: bool,
}

impl Checked {
    fn hear(&mut self, event: Event) {
        let actions = self.driven.hear(event);
        self.check(actions);
    }

    fn check(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { read } => {
                    let (by, mount) = self.offered.remove(&read).expect("sent once, and only if offered");
                    assert!(!self.brake, "nothing is sent under the brake");
                    self.sent.insert(read, (by, mount));
                    let under_way = self.sent.values().filter(|(_, of)| *of == mount).count();
                    assert!(under_way <= [6, 1][mount], "{under_way} reads of mount {mount}");
                }
                Action::Read { mount, thread, task } => {
                    let (of, urgency) = self.waiting.remove(&task).expect("taken up once");
                    assert!(self.idle.remove(&(mount, thread)), "by a thread that has nothing to do");
                    assert!(of == mount && !(self.brake && urgency != Urgency::Demand));
                    self.running.insert((mount, thread), task);
                }
                Action::Refuse { task } => {
                    assert_eq!(self.waiting.remove(&task).map(|(_, urgency)| urgency), Some(Urgency::Ahead));
                }
                Action::Hold { .. }
                | Action::Gentle { .. }
                | Action::Report { .. }
                | Action::Drain { .. } => {}
            }
        }
    }

    fn offer(&mut self, by: By, mount: MountId, bytes: u64, is_short: bool) {
        if by != By::Peer && self.offered.values().any(|(other, _)| *other == by) {
            return;
        }
        self.driven.read += 1;
        let read = self.driven.read;
        self.offered.insert(read, (by, mount));
        self.hear(Event::Offer { read, by, mount: Some(mount), bytes, is_short });
    }

    fn end(&mut self, read: ReadId) {
        self.sent.remove(&read);
        self.hear(Event::ReadEnded { read, resident_bytes: 0, fetched_bytes: 1, failed_bytes: 0 });
    }

    fn rest(&mut self, mount: MountId, thread: usize) {
        if thread < [8, 2][mount] && !self.idle.contains(&(mount, thread)) {
            self.running.remove(&(mount, thread));
            self.idle.insert((mount, thread));
            self.hear(Event::Idle { mount, thread });
        }
    }

    fn wait(&mut self, ns: u64) {
        let until = self.driven.now + ns;
        while let Some(due) = self.driven.node.next_deadline().filter(|due| *due <= until) {
            self.driven.now = self.driven.now.max(due);
            let mut out = Vec::new();
            self.driven.node.on_deadline(self.driven.now, &mut out);
            self.check(out);
            let next = self.driven.node.next_deadline();
            assert!(next.is_none_or(|next| next > due), "a deadline that was looked at is over");
        }
        self.driven.now = until;
    }

    fn release(&mut self, request: RequestId) {
        self.offered.retain(|_, (by, _)| *by != By::Request(request));
        self.hear(Event::Release { requests: vec![request] });
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Request(request, threads, is_ahead) => {
                self.release(request);
                let priority = if is_ahead { Priority::Ahead } else { Priority::Planned };
                self.hear(Event::Request { request, threads, rate_bytes_per_s: 0, priority });
            }
            Step::Adjust(request, threads, rate_bytes_per_s) => {
                self.hear(Event::Adjust { request, threads, rate_bytes_per_s });
            }
            Step::Release(request) => self.release(request),
            Step::Offer(request, mount, bytes, is_short) => {
                self.offer(By::Request(request), mount, bytes, is_short);
            }
            Step::Peer(mount) => self.offer(By::Peer, mount, READ_BYTES, false),
            Step::Withdraw => {
                if let Some((read, _)) = self.offered.pop_first() {
                    self.hear(Event::Withdraw { read });
                }
            }
            Step::End(number) => {
                if let Some(read) = self.sent.keys().nth(number).copied() {
                    self.end(read);
                }
            }
            Step::Queue(mount, urgency, page) => {
                self.tasks += 1;
                let (task, urgency) = (self.tasks, Urgency::ALL[urgency]);
                let pages = page.filter(|_| crate::fetch_order::is_in_order(urgency));
                let pages = pages.map(|page| Pages { file: 1, range: page..page + 1 });
                self.waiting.insert(task, (mount, urgency));
                self.hear(Event::Queue { task, mount, urgency, pages });
            }
            Step::Rest(mount, thread) => self.rest(mount, thread),
            Step::Brake(on) => {
                // What the machine decides from here on is under the new brake.
                self.brake = on;
                self.hear(Event::Brake { on });
            }
            Step::Pause(on) => self.hear(Event::Pause { on }),
            Step::Wait(ns) => self.wait(ns),
        }
    }
}

proptest! {
    #[test]
    fn everything_goes_once_and_all_of_it_goes_in_the_end(steps in proptest::collection::vec(step(), 0..120)) {
        let mut checked = Checked {
            driven: Driven::new(),
            offered: BTreeMap::new(),
            sent: BTreeMap::new(),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            idle: BTreeSet::new(),
            tasks: 0,
            brake: false,
        };
        steps.into_iter().for_each(|step| checked.step(step));
        checked.step(Step::Brake(false));
        checked.step(Step::Pause(false));
        for request in 0..4 {
            checked.step(Step::Adjust(request, 1, 0));
        }
        let node = &checked.driven.node;
        checked.offered.retain(|_, (by, _)| match by {
            By::Request(request) => node.progress(*request).is_some(),
            _ => true,
        });
        for _ in 0..1000 {
            if let Some(read) = checked.sent.keys().next().copied() {
                checked.end(read);
            }
            (0..8).for_each(|thread| checked.rest(0, thread));
            (0..2).for_each(|thread| checked.rest(1, thread));
            let busy: Vec<_> = checked.running.keys().copied().collect();
            busy.into_iter().for_each(|(mount, thread)| checked.rest(mount, thread));
        }
        prop_assert!(checked.offered.is_empty() && checked.sent.is_empty(), "{:?}", checked.offered);
        prop_assert!(checked.waiting.is_empty(), "{:?}", checked.waiting);
    }
}

#[test]
fn brakes_pauses_and_phases_hold_dirty_files() {
    let facts = drain::File { owner: 7, bytes: 1, is_ready: true, is_awaited: true, ..Default::default() };
    let begins = |event: Event| {
        let mut node = Driven::new();
        node.hear(event);
        !node.hear(Event::Drain { event: drain::Event::Dirty { file: 1, facts } }).is_empty()
    };
    assert!(begins(Event::Pause { on: false }));
    assert!(!begins(Event::Pause { on: true }));
    assert!(!begins(Event::Brake { on: true }));
    assert!(!begins(Event::Phases { under_way: true, own: None }));
    assert!(!begins(Event::Phases { under_way: true, own: Some(8) }));
    assert!(begins(Event::Phases { under_way: true, own: Some(7) }), "the program waits in its own phase");
}
