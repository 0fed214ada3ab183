//! The machine against nodes that obey its requests, or do not.

use super::event::{File, HpcUpdate, Layout, Part, Priority, Progress, Split, WaveStatus};
use super::status::{show_at_most, show_stages_at_most};
use super::tasks::ENDED_STAGES_MAX;
use super::*;
use crate::planner;
use alloc::vec;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

fn members(nodes: &[(&str, u64)]) -> Event {
    let node = |(name, capacity_bytes): &(&str, u64)| Node {
        name: (*name).into(),
        host: (*name).into(),
        capacity_bytes: *capacity_bytes,
        keeps: [("pfs".into(), MIB)].into(),
    };
    Event::Members { nodes: nodes.iter().map(node).collect() }
}

/// Returns what a node with a tier of `capacity_bytes` may be requested to hold at a time.
fn plannable(capacity_bytes: u64) -> u64 {
    Rules::default().plannable_bytes(capacity_bytes)
}

/// A job of `tasks` tasks, each of which reads one extent of one file, wherever that is.
fn reported(tasks: u32, slots: &[(&str, u32)]) -> Vec<JobUpdate> {
    reported_at(tasks, slots, |_| "")
}

/// As [`reported`], with a preferred node for each task.
fn reported_at(tasks: u32, slots: &[(&str, u32)], preferred_node: fn(u32) -> &'static str) -> Vec<JobUpdate> {
    let file = File { mount: "pfs".into(), ino: 5, bytes: u64::from(tasks) * MIB };
    let part = |task: u32| Part { file: 0, offset: u64::from(task) * MIB, len: MIB };
    vec![
        JobUpdate::Begin { name: "app".into(), planner: String::new() },
        JobUpdate::Slots { slots: slots.iter().map(|(h, n)| ((*h).to_owned(), *n)).collect() },
        JobUpdate::Files { files: vec![file] },
        JobUpdate::Splits {
            stage: 1,
            splits: (0..tasks)
                .map(|t| Split { parts: vec![part(t)], preferred_node: preferred_node(t).into() })
                .collect(),
        },
        JobUpdate::StageReady { stage: 1 },
    ]
}

/// As [`reported`], with the layout of its file: extent by extent on one of `servers`.
fn laid_out(mut reported: Vec<JobUpdate>, servers: u32) -> Vec<JobUpdate> {
    let names = (0..servers).map(|server| server.to_string()).collect();
    let layout = Layout { stripe_bytes: MIB, servers: (0..servers).collect() };
    reported.insert(3, JobUpdate::Layouts { servers: names, files: vec![layout] });
    reported
}

const JOB: JobKey = 9;

/// A request as a node has it.
#[derive(Debug)]
struct Order {
    ahead: bool,
    parts: Vec<Part>,
}

/// A machine, its clock, and the nodes' side of it.
struct World {
    machine: Stages,
    now: Nanos,
    /// Requests that nodes have: the node and whether it has reported their end.
    orders: BTreeMap<u64, (String, Order, bool)>,
    /// Pages at a time that requests have been set to since.
    adjusted: BTreeMap<u64, u32>,
    /// Stages and partitions of tasks that may read.
    may_read: Vec<(u32, u32)>,
    out: Vec<Action>,
}

impl World {
    fn new(planner: &str, nodes: &[(&str, u64)]) -> Self {
        let machine = Stages::new(Config { default_planner: planner.into(), ..Config::default() });
        let (orders, adjusted) = (BTreeMap::new(), BTreeMap::new());
        let may_read = Vec::new();
        let mut world = World { machine, now: Nanos(0), orders, adjusted, may_read, out: Vec::new() };
        world.report(members(nodes));
        world
    }

    /// Reports an event that other events may follow before the machine's deadline.
    fn report(&mut self, event: Event) {
        self.machine.handle(self.now, event, &mut self.out);
    }

    fn job(&mut self, updates: Vec<JobUpdate>) {
        self.report(Event::Job { job: JOB, updates });
    }

    fn update(&mut self, updates: Vec<JobUpdate>) {
        self.job(updates);
        self.turn();
    }

    /// Discards what was to be sent to a node that goes, or comes back.
    fn forget(&mut self, node: &str) {
        self.orders.retain(|_, (of, _, _)| of != node);
        self.out.retain(|action| !matches!(action, Action::Fetch { node: of, .. } | Action::Adjust { node: of, .. } if of == node));
    }

    fn came(&mut self, node: &str) {
        self.forget(node);
        self.report(Event::NodeCame { node: node.into() });
    }

    fn went(&mut self, node: &str) {
        self.forget(node);
        self.report(Event::NodeWent { node: node.into() });
    }

    fn progress(&mut self, node: &str, request: u64, progress: Progress) {
        self.report(Event::Request { request, node: node.into(), progress });
    }

    fn turn(&mut self) {
        if self.machine.next_deadline().is_some_and(|at| at <= self.now) {
            self.machine.on_deadline(self.now, &mut self.out);
        }
        for action in core::mem::take(&mut self.out) {
            match action {
                Action::Fetch { request, node, job, threads, priority, parts, .. } => {
                    assert_eq!(
                        (job, threads),
                        (JOB, 1),
                        "a node has several requests, not one of several threads"
                    );
                    let order = Order { ahead: priority == Priority::Ahead, parts };
                    assert!(self.orders.insert(request, (node, order, false)).is_none());
                }
                Action::Release { requests, .. } => {
                    requests.iter().for_each(|id| drop(self.orders.remove(id)));
                }
                Action::Adjust { request, node, threads, .. } => {
                    assert_eq!(self.orders[&request].0, node);
                    self.adjusted.insert(request, threads);
                }
                Action::MayRead { job, stage, partition } => {
                    assert_eq!(job, JOB);
                    self.may_read.push((stage, partition));
                }
                Action::Decided { .. } | Action::Direct { .. } => {}
            }
        }
        let is_open = |(_, order): &(&u64, &(String, Order, bool))| !order.2;
        let mut open = self.orders.iter().filter(is_open).peekable();
        let rests = open.peek().is_some() && open.all(|(id, _)| self.adjusted.get(id) == Some(&0));
        assert_eq!(self.machine.do_requests_rest(), rests);
        self.check_phase();
        self.check_waits();
    }

    /// Checks that no waiting task is overlooked where all tasks of its stage seem to continue to
    /// wait.
    fn check_waits(&self) {
        for (key, running) in &self.machine.jobs {
            for (stage, run) in &running.stages {
                let asked = self.machine.questions.of_stage(*key, *stage).into_iter();
                let asked = asked.filter_map(|partition| running.job.task_of(*stage, partition));
                let mut waits = asked.chain(run.held.keys().copied());
                assert!(waits.all(|task| run.is_looked_at(task)), "of stage {stage}");
            }
        }
    }

    /// Checks that beside a phase only waves are fetched that a planner wants then.
    fn check_phase(&mut self) {
        if self.machine.hpc.values().all(|hpc| hpc.phase.is_none()) {
            return;
        }
        let requests = self.machine.requests.iter();
        let fetches = requests.filter(|(_, requested)| requested.state == RequestState::Fetches);
        let fetches: Vec<_> = fetches.map(|(id, of)| (*id, of.job, of.stage, of.wave)).collect();
        for (id, job, stage, wave) in fetches {
            let Some(run) = self.machine.run_mut(job, stage).filter(|run| !run.opportunistic) else {
                continue;
            };
            assert!(run.is_planned(wave), "request {id} of wave {wave}");
        }
    }

    /// Lets the agents fetch all that they were requested to.
    fn fetch(&mut self) {
        let open: Vec<u64> = self.orders.iter().filter(|(_, o)| !o.2).map(|(id, _)| *id).collect();
        open.into_iter().for_each(|id| self.end(id, 0));
    }

    fn end(&mut self, id: u64, failed_bytes: u64) {
        let Some((node, order, ended)) = self.orders.get_mut(&id) else { return };
        *ended = true;
        let bytes: u64 = order.parts.iter().map(|p| p.len).sum();
        if failed_bytes > 0 {
            // What has failed takes no room.
            order.parts.truncate(order.parts.len() - (failed_bytes / MIB) as usize);
        }
        let progress = Progress {
            fetched_bytes: bytes - failed_bytes.min(bytes),
            resident_bytes: 0,
            failed_bytes: failed_bytes.min(bytes),
            done: true,
        };
        let node = node.clone();
        self.progress(&node, id, progress);
        self.turn();
    }

    fn start(&mut self, task: u32, host: &str) {
        self.update(vec![JobUpdate::TaskStarted { stage: 1, task, host: host.into() }]);
    }

    fn finish(&mut self, task: u32) {
        self.update(vec![JobUpdate::TaskEnded { stage: 1, task, ok: true, run_ms: 1000 }]);
    }

    fn ordered_bytes(&self) -> u64 {
        self.orders.values().flat_map(|(_, o, _)| &o.parts).map(|p| p.len).sum()
    }

    fn waves(&self) -> Vec<WaveStatus> {
        self.machine.status().last().unwrap().stages[0].waves.clone()
    }
}

#[test]
fn the_next_wave_is_fetched_while_one_computes() {
    let mut world = World::new("full-delay", &[("a", 1 << 30)]);
    world.update(reported(6, &[("a", 2)]));
    assert_eq!(world.ordered_bytes(), 2 * MIB, "the first wave");
    world.fetch();
    assert_eq!(world.ordered_bytes(), 2 * MIB, "no further ahead before it computes");
    world.now = world.now + SECOND;
    world.start(0, "a");
    assert_eq!(world.ordered_bytes(), 4 * MIB, "the second, as soon as the first computes");
    world.start(1, "a");
    world.fetch();
    let waves = world.waves();
    assert_eq!(waves.len(), 3);
    assert_eq!((waves[1].fetched_bytes, waves[1].prefetch_began_ms), (2 * MIB, Some(1000)));
    assert_eq!((waves[0].compute_began_ms, waves[2].prefetch_began_ms), (Some(1000), None));
    world.finish(0);
    world.finish(1);
    assert_eq!(world.ordered_bytes(), 2 * MIB, "what the first wave had is let go");
    let status = world.machine.status();
    assert_eq!((status[0].stages[0].tasks_done, status[0].stages[0].tasks_local), (2, 2));
}

#[test]
fn nodes_fetch_later_waves_where_the_planned_one_leaves_them_idle() {
    let preferred_node = |task: u32| if task.is_multiple_of(2) { "a" } else { "b" };
    let mut world = World::new("no-action", &[("a", 1 << 30), ("b", 1 << 30)]);
    world.update(reported_at(60, &[("a", 2), ("b", 2)], preferred_node));
    let open = |world: &World| -> Vec<(u64, bool)> {
        let open = world.orders.values().filter(|(_, _, ended)| !ended);
        let mut open: Vec<_> = open.map(|(_, o, _)| (o.parts[0].offset / MIB, o.ahead)).collect();
        open.sort_unstable();
        open
    };
    let tasks = |from: u64, to: u64, ahead: bool| (from..to).map(|task| (task, ahead)).collect::<Vec<_>>();
    assert_eq!(open(&world), tasks(0, 4, false), "the first wave alone: nothing computes until it is there");
    // One node has its part and waits for the other: behind the first wave nothing is fetched
    // ahead.
    let of_a: Vec<u64> = world.orders.iter().filter(|(_, o)| o.0 == "a").map(|(id, _)| *id).collect();
    of_a.iter().for_each(|id| world.end(*id, 0));
    assert_eq!(open(&world), [(1, false), (3, false)]);
    world.fetch();
    let ahead = |tasks: &[u64]| tasks.iter().map(|task| (*task, true)).collect::<Vec<_>>();
    assert_eq!(open(&world), ahead(&[4, 5, 6, 7, 8, 9, 12, 13]), "the next wave, and a little of two more");
    (0..4).for_each(|task| world.start(task, preferred_node(task)));
    world.fetch();
    assert_eq!(open(&world), ahead(&[10, 11, 14, 15, 18, 19]));
    // Three waves behind the planned one, and no more.
    (0..9).for_each(|_| world.fetch());
    assert_eq!(world.waves().iter().filter(|w| w.prefetch_began_ms.is_some()).count(), 5);
    assert!(open(&world).is_empty());
    // What was fetched ahead counts as fetched when the planner requests it.
    (0..4).for_each(|task| world.finish(task));
    (4..8).for_each(|task| world.start(task, preferred_node(task)));
    assert!(world.waves()[1..5].iter().all(|w| w.fetched_bytes == w.bytes), "{:?}", world.waves());
}

#[test]
fn ahead_goes_only_what_leaves_half_of_the_room() {
    let capacity = 40 * MIB;
    let held_after_the_first = |slots: u32| {
        let mut world = World::new("no-action", &[("a", capacity)]);
        world.update(reported(40, &[("a", slots)]));
        world.fetch();
        world.ordered_bytes()
    };
    let held = held_after_the_first(4);
    assert!(held > 4 * MIB && held <= plannable(capacity) / 2, "{held}");
    // Nothing ahead of a wave that takes half of the room itself.
    assert_eq!(held_after_the_first(8), 8 * MIB);
}

/// A job of stages that are all known: task `n` of stage `s` reads extent `n` of file `s - 1`.
fn stages_of(tasks: &[u32], slots: u32) -> Vec<JobUpdate> {
    let file =
        |&tasks: &u32| File { mount: "pfs".into(), ino: 5 + u64::from(tasks), bytes: u64::from(tasks) * MIB };
    let mut updates = vec![
        JobUpdate::Begin { name: "app".into(), planner: String::new() },
        JobUpdate::Slots { slots: vec![("a".into(), slots)] },
        JobUpdate::Files { files: tasks.iter().map(file).collect() },
    ];
    for (file, &tasks) in tasks.iter().enumerate() {
        let part = |task: u32| Part { file: file as u32, offset: u64::from(task) * MIB, len: MIB };
        let split = |task| Split { parts: vec![part(task)], preferred_node: String::new() };
        let stage = file as u32 + 1;
        updates.push(JobUpdate::Splits { stage, splits: (0..tasks).map(split).collect() });
        updates.push(JobUpdate::StageReady { stage });
    }
    updates
}

impl World {
    /// Returns the extents of a file that are requested, in their order.
    fn ordered(&self, file: u32) -> Vec<u64> {
        let parts = self.orders.values().flat_map(|(_, order, _)| &order.parts);
        let mut extents: Vec<u64> = parts.filter(|p| p.file == file).map(|p| p.offset / MIB).collect();
        extents.sort_unstable();
        extents
    }

    fn run_all(&mut self, stage: u32, tasks: core::ops::Range<u32>) {
        for task in tasks.clone() {
            self.update(vec![JobUpdate::TaskStarted { stage, task, host: "a".into() }]);
        }
        for task in tasks {
            self.update(vec![JobUpdate::TaskEnded { stage, task, ok: true, run_ms: 1000 }]);
        }
    }
}

/// A join without broadcast: both sides are known, and Spark runs the first side first.
#[test]
fn stages_of_a_job_are_fetched_in_the_order_in_which_their_tasks_run() {
    let mut world = World::new("no-action", &[("a", 1 << 30)]);
    world.update(stages_of(&[8, 8], 2));
    assert_eq!(
        (world.ordered(0), world.ordered(1)),
        (vec![0, 1], vec![]),
        "the first wave has the file system"
    );
    world.fetch();
    assert!(world.ordered(0).len() > 2, "{:?}", world.ordered(0));
    for _ in 0..8 {
        world.fetch();
    }
    let of_first = world.ordered(0);
    // Nothing computes: the reach of the first stage ends, and the second has what is left.
    assert!(of_first.len() >= 4, "{of_first:?}");
    assert_eq!(world.ordered(1)[..2], [0, 1], "the second stage does not wait for the tasks of the first");
    // All of the first stage: its tasks do not run sooner for it, but none of them waits.
    for wave in 0..4 {
        world.run_all(1, 2 * wave..2 * wave + 2);
        world.fetch();
    }
    world.run_all(2, 0..2);
    world.fetch();
    assert!(world.ordered(1).contains(&3), "{:?}", world.ordered(1));
}

#[test]
fn a_stage_that_waits_for_others_leaves_them_the_room_of_the_node() {
    // Room for 20 extents or so; either stage would fill it.
    let capacity = 40 * MIB;
    let mut world = World::new("no-action", &[("a", capacity)]);
    world.update(laid_out(stages_of(&[40, 40], 4), 2));
    for _ in 0..20 {
        world.fetch();
    }
    let (first, second) = (world.ordered(0).len() as u64, world.ordered(1).len() as u64);
    assert!(
        first >= 4 && first * MIB > plannable(capacity) / 4,
        "{first} of the first, {second} of the second"
    );
    assert!(
        (first + second) * MIB <= plannable(capacity) / 2,
        "{first} of the first, {second} of the second"
    );
    // When a scheduler runs both at a time, both are fetched wave by wave: none starves.
    world.update(vec![JobUpdate::TaskStarted { stage: 2, task: 0, host: "a".into() }]);
    world.update(vec![JobUpdate::TaskStarted { stage: 1, task: 0, host: "a".into() }]);
    for _ in 0..20 {
        world.fetch();
    }
    for extent in 0..8 {
        assert!(
            world.ordered(1).contains(&extent) && world.ordered(0).contains(&extent),
            "{extent} of {:?}",
            world.ordered(1)
        );
    }
}

#[test]
fn with_few_slots_the_chunk_needed_first_goes_first_whichever_server_has_it() {
    // The servers of the first wave are the last, and each would have something of the waves within
    // reach.
    let reported = |world: &mut World| {
        let mut updates = laid_out(reported(40, &[("a", 2)]), 8);
        for update in &mut updates {
            if let JobUpdate::Layouts { files, .. } = update {
                files[0].servers.reverse();
            }
        }
        world.update(updates);
    };
    let mut world = World::new("no-action", &[("a", 1 << 30)]);
    reported(&mut world);
    let tasks = |world: &World| -> Vec<u64> {
        let mut tasks: Vec<u64> = world.orders.values().map(|(_, o, _)| o.parts[0].offset / MIB).collect();
        tasks.sort_unstable();
        tasks
    };
    assert_eq!(tasks(&world), [0, 1, 2, 3]);
    let is_ahead: Vec<bool> = world.orders.values().map(|(_, o, _)| o.ahead).collect();
    assert_eq!(is_ahead, [false, false, true, true], "only the first wave is planned");
    let first = *world.orders.iter().find(|(_, (_, o, _))| o.parts[0].offset == 2 * MIB).unwrap().0;
    world.end(first, 0);
    let now = tasks(&world);
    assert!(now[..4] == [0, 1, 2, 3] && (now[4..] == [4] || now[4..] == [5]), "of the third wave: {now:?}");
}

#[test]
fn what_was_cut_before_a_change_of_slots_holds_nothing_up() {
    let mut world = World::new("no-action", &[("a", 1 << 30)]);
    world.update(laid_out(reported(4000, &[("a", 500)]), 1));
    // Again and again, thousands of chunks become void.
    for slots in [501, 502, 503, 504] {
        world.update(vec![JobUpdate::Slots { slots: vec![("a".into(), slots)] }]);
        world.now = world.now + SECOND;
        world.turn();
    }
    assert_eq!(
        world.orders.values().filter(|(_, _, ended)| !ended).count(),
        1,
        "the first is alone: {:?}",
        world.orders
    );
}

#[test]
fn tasks_that_start_before_their_input_is_there_read_by_themselves() {
    let mut world = World::new("full-delay", &[("a", 1 << 30)]);
    world.update(reported(4, &[("a", 2)]));
    world.start(0, "a");
    let kept = world.orders.values().any(|(_, o, _)| o.parts.iter().any(|p| p.offset == MIB));
    assert!(kept, "the other task still waits for it");
    world.start(1, "a");
    let left: Vec<_> = world.orders.values().map(|(_, o, _)| o.parts[0].offset).collect();
    assert_eq!(left, [2 * MIB, 3 * MIB], "the first wave's requests are released, the second's are given");
    assert_eq!(world.waves()[0].failed_bytes, 2 * MIB);
}

#[test]
fn a_request_that_goes_on_ends_with_its_wave() {
    let mut world = World::new("no-action", &[("a", 1 << 30)]);
    world.update(reported(6, &[("a", 2)]));
    (0..2).for_each(|task| world.start(task, "a"));
    let offsets =
        |world: &World| world.orders.values().map(|(_, o, _)| o.parts[0].offset / MIB).collect::<Vec<_>>();
    assert_eq!(offsets(&world), [0, 1], "the tasks wait for them, and nothing is fetched beside them");
    // The node never reports that it has them, and the tasks have read by themselves.
    (0..2).for_each(|task| world.finish(task));
    assert_eq!(offsets(&world), [2, 3, 4], "the second wave is next, and a little of the third");
}

#[test]
fn the_rest_of_the_last_wave_is_fetched_while_its_tasks_read() {
    let mut world = World::new("no-action", &[("a", 1 << 30)]);
    let mut large = reported(2, &[("a", 2)]);
    for update in &mut large {
        match update {
            JobUpdate::Files { files } => files[0].bytes = 64 * MIB,
            JobUpdate::Splits { splits, .. } => {
                for (split, offset) in splits.iter_mut().zip([0, 32 * MIB]) {
                    split.parts = vec![Part { file: 0, offset, len: 32 * MIB }];
                }
            }
            _ => {}
        }
    }
    world.update(large);
    let before = world.ordered_bytes();
    assert!(before > 0 && before < 64 * MIB, "one wave of many requests: {before}");
    (0..2).for_each(|task| world.start(task, "a"));
    for _ in 0..16 {
        world.fetch();
    }
    assert_eq!(world.ordered_bytes(), 64 * MIB, "requests continue while its tasks run");
    (0..2).for_each(|task| world.finish(task));
    assert!(world.orders.is_empty(), "{:?}", world.orders);
}

#[test]
fn the_end_of_a_job_leaves_no_orders() {
    let mut world = World::new("full-delay", &[("a", 1 << 30), ("b", 1 << 30)]);
    world.update(reported(64, &[("a", 4), ("b", 4)]));
    assert_eq!(world.orders.len(), 8);
    world.update(vec![JobUpdate::End]);
    assert!(world.orders.is_empty());
    let status = world.machine.status();
    assert!(status[0].ended && status[0].planner == "full-delay");
    // The node of its program leaves: the same, but nothing is shown of it.
    world.update(reported(64, &[("a", 4), ("b", 4)]));
    assert_eq!(world.orders.len(), 8);
    world.report(Event::JobGone { job: JOB });
    world.went("a");
    world.turn();
    assert!(world.orders.values().all(|(node, _, _)| node == "a"), "{:?}", world.orders);
}

#[test]
fn of_stages_that_have_ended_only_what_is_shown_is_kept() {
    let nodes = [("a", 1 << 30)];
    let mut world = World::new("no-action", &nodes);
    let mut begin = reported(4, &[("a", 2)]);
    let JobUpdate::Splits { splits, .. } = begin.remove(3) else { panic!("{begin:?}") };
    begin.truncate(3);
    world.update(begin);
    let stage_reported =
        |stage| vec![JobUpdate::Splits { stage, splits: splits.clone() }, JobUpdate::StageReady { stage }];
    let ran = |stage, task| {
        let started = JobUpdate::TaskStarted { stage, task, host: "a".into() };
        vec![started, JobUpdate::TaskEnded { stage, task, ok: true, run_ms: 1000 }]
    };
    let stages = 3 * ENDED_STAGES_MAX as u32;
    for stage in 0..stages {
        world.update(stage_reported(stage));
        world.fetch();
        world.update(ran(stage, 0));
        let orders: Vec<u64> = world.orders.keys().copied().collect();
        assert!(!orders.is_empty(), "stage {stage} has nothing to leave behind");
        // It ends before it is placed again.
        world.report(members(&nodes));
        world.job(vec![JobUpdate::StageEnded { stage }]);
        // What was under way then.
        for order in orders {
            world.progress("a", order, Progress { fetched_bytes: MIB, done: true, ..Progress::default() });
        }
        world.job(ran(stage, 1));
        world.job(vec![JobUpdate::StageEnded { stage }]);
        world.turn();
        world.report(members(&nodes));
        let running = &world.machine.jobs[&JOB];
        assert!(running.to_cut.is_empty() && running.placing.is_empty(), "nothing is left to cut");
        assert!(running.stages.is_empty() && running.job.stages.is_empty());
        assert!(running.ended.len() <= ENDED_STAGES_MAX);
        assert!(
            world.orders.is_empty() && world.machine.requests.is_empty() && world.machine.planners.is_empty()
        );
        assert!(world.machine.held_bytes().iter().all(|bytes| *bytes == 0));
    }
    let shown = world.machine.status().remove(0).stages;
    let numbers: Vec<u32> = shown.iter().map(|s| s.stage).collect();
    assert_eq!(numbers, (stages - ENDED_STAGES_MAX as u32..stages).collect::<Vec<_>>());
    for stage in &shown {
        assert_eq!((stage.tasks, stage.tasks_done, stage.tasks_running, stage.tasks_local), (4, 1, 0, 1));
        assert_eq!(stage.waves.iter().map(|w| w.tasks).sum::<u32>(), 4, "{stage:?}");
        assert_eq!(stage.waves[0].fetched_bytes, 2 * MIB);
    }
    assert_eq!(world.machine.jobs[&JOB].job.task_ns(0), Some(SECOND));
    // Some of one has to run again: it is planned like any other, and ends with the job.
    world.update(stage_reported(0));
    assert!(world.ordered_bytes() > 0);
    world.update(vec![JobUpdate::End]);
    assert!(world.orders.is_empty());
    let status = world.machine.status().remove(0);
    assert!(status.ended && status.stages.len() == ENDED_STAGES_MAX && status.stages[0].stage == 0);
}

#[test]
fn naive_bb_orders_nothing_and_unknown_planners_are_the_default() {
    let mut world = World::new("naive-bb", &[("a", 1 << 30)]);
    world.update(reported(6, &[("a", 2)]));
    for task in 0..6 {
        world.start(task, "a");
        world.finish(task);
    }
    assert!(world.orders.is_empty());
    assert!(world.waves().iter().all(|w| w.compute_ended_ms.is_some()));
}

#[test]
fn a_node_is_ordered_no_more_than_fits() {
    // Five extents of the wave's twenty fit the small node at most.
    let mut world = World::new("no-action", &[("a", 8 * MIB), ("b", 80 * MIB)]);
    world.update(reported(200, &[("a", 20), ("b", 20)]));
    (0..30).for_each(|_| world.fetch());
    let of = |world: &World, name: &str| -> u64 {
        let its = world.orders.values().filter(|(node, _, _)| node == name);
        its.flat_map(|(_, o, _)| &o.parts).map(|p| p.len).sum()
    };
    assert!(of(&world, "a") <= plannable(8 * MIB));
    assert!(of(&world, "b") >= 10 * MIB);
    // No node has room for anything: this is harmless.
    let mut world = World::new("no-action", &[("a", MIB / 2)]);
    world.update(reported(8, &[("a", 2)]));
    assert!(world.orders.is_empty());
    for task in 0..8 {
        world.start(task, "a");
        world.finish(task);
    }
    assert_eq!(world.machine.status()[0].stages[0].tasks_done, 8);
}

#[test]
fn a_node_that_returns_gets_its_requests_anew_and_reported_jobs_do_not_double() {
    let mut world = World::new("no-action", &[("a", 1 << 30), ("b", 1 << 30)]);
    world.update(reported(64, &[("a", 4), ("b", 4)]));
    let before = world.ordered_bytes();
    // Another node's connection was lost: it forgot its requests.
    world.orders.retain(|_, (node, _, _)| node != "b");
    world.came("b");
    world.turn();
    assert_eq!(world.ordered_bytes(), before);
    // The driver's own connection: the job is reported again from the beginning.
    world.orders.retain(|_, (node, _, _)| node != "a");
    world.report(Event::JobGone { job: JOB });
    world.came("a");
    world.update(reported(64, &[("a", 4), ("b", 4)]));
    assert_eq!((world.ordered_bytes(), world.machine.status().len()), (before, 1));
}

#[test]
fn a_change_of_members_moves_what_has_not_begun() {
    let mut world = World::new("no-action", &[("a", 1 << 30), ("b", 1 << 30)]);
    world.update(reported(64, &[("a", 4), ("b", 4)]));
    world.fetch();
    let first: Vec<u32> = (0..64)
        .filter(|t| {
            world
                .orders
                .values()
                .any(|(n, o, _)| n == "a" && o.parts.iter().any(|p| p.offset == u64::from(*t) * MIB))
        })
        .collect();
    world.start(first[0], "a");
    world.went("b");
    world.report(members(&[("a", 1 << 30)]));
    world.orders.retain(|_, (node, _, _)| node != "b");
    world.turn();
    let waves = world.waves();
    assert_eq!(waves.iter().map(|w| w.tasks).sum::<u32>(), 64, "{waves:?}");
    assert_eq!(waves[0].tasks, 1, "what has begun stays with what has started");
    world.fetch();
    for task in 0..64 {
        world.start(task, "a");
        world.finish(task);
        world.fetch();
    }
    assert!(world.waves().iter().all(|w| w.tasks == w.tasks_done));
    assert!(world.orders.is_empty(), "everything is let go when it is read");
}

#[test]
fn preferred_nodes_make_even_waves_and_get_the_requests() {
    let nodes = [("a", 1 << 30), ("b", 1 << 30)];
    let mut by_owner = World::new("no-action", &nodes);
    by_owner.update(reported(20, &[("a", 2), ("b", 2)]));
    assert!(by_owner.waves().len() > 5, "owners are even by chance: nothing to show");
    let preferred_node = |task: u32| if task.is_multiple_of(2) { "a" } else { "b" };
    let mut world = World::new("no-action", &nodes);
    world.update(reported_at(20, &[("a", 2), ("b", 2)], preferred_node));
    let waves = world.waves();
    assert!(waves.len() == 5 && waves.iter().all(|w| w.tasks == 4), "{waves:?}");
    for task in 0..20 {
        world.fetch();
        let offset = u64::from(task) * MIB;
        let at: Vec<&str> = world
            .orders
            .values()
            .filter(|(_, o, _)| o.parts.iter().any(|p| p.offset == offset))
            .map(|(node, _, _)| node.as_str())
            .collect();
        assert_eq!(at, [preferred_node(task)], "task {task}");
        world.start(task, preferred_node(task));
        world.finish(task);
    }
    assert_eq!(world.machine.status()[0].stages[0].tasks_local, 20);
    assert!(world.orders.is_empty());
}

#[test]
fn what_was_planned_for_a_preferred_node_that_leaves_goes_to_its_owners() {
    let all = [("a", 1 << 30), ("b", 1 << 30), ("c", 1 << 30)];
    let mut world = World::new("full-delay", &all);
    world.update(reported_at(48, &[("a", 2), ("b", 2), ("c", 2)], |_| "c"));
    assert_eq!(world.waves().len(), 24, "all of it on the preferred node of all");
    assert!(world.orders.values().all(|(node, _, _)| node == "c") && world.ordered_bytes() == 2 * MIB);
    world.fetch();
    world.start(0, "c");
    world.went("c");
    world.report(members(&all[..2]));
    world.orders.retain(|_, (node, _, _)| node != "c");
    world.update(vec![JobUpdate::Slots { slots: vec![("a".into(), 2), ("b".into(), 2)] }]);
    let waves = world.waves();
    assert!(waves.len() < 24 && waves.iter().map(|w| w.tasks).sum::<u32>() == 48, "{waves:?}");
    let mut nodes = BTreeSet::new();
    for task in 0..48 {
        world.fetch();
        nodes.extend(world.orders.values().map(|(node, _, _)| node.clone()));
        world.start(task, "a");
        world.finish(task);
    }
    assert_eq!(nodes, ["a".to_owned(), "b".to_owned()].into());
    assert!(world.orders.is_empty());
}

#[test]
fn a_node_that_left_gets_no_request_and_one_that_returned_none_of_before() {
    let nodes = [("a", 1 << 30), ("b", 1 << 30)];
    let reported_all =
        || reported_at(16, &[("a", 2), ("b", 2)], |task| if task.is_multiple_of(2) { "a" } else { "b" });
    // It leaves while one wave is fetched; the next is due before the view without it arrives.
    let mut world = World::new("no-action", &nodes);
    world.update(reported_all());
    world.went("b");
    world.orders.retain(|_, (node, _, _)| node != "b");
    world.fetch();
    world.start(0, "a");
    assert!(world.ordered_bytes() > 2 * MIB, "the second wave's part at the other is ordered");
    assert!(world.orders.values().all(|(node, _, _)| node == "a"), "{:?}", world.orders);
    // Its request is still to be sent when it begins again.
    let mut world = World::new("no-action", &nodes);
    world.job(reported_all());
    world.machine.on_deadline(world.now, &mut world.out);
    world.came("b");
    world.turn();
    let of_b = world.orders.iter().filter(|(_, (node, _, _))| node == "b").map(|(id, _)| *id);
    let known = world.machine.requests.iter().filter(|(_, o)| o.node == "b").map(|(id, _)| *id);
    assert_eq!(
        of_b.collect::<Vec<_>>(),
        known.collect::<Vec<_>>(),
        "no request that the driver does not know"
    );
    world.update(vec![JobUpdate::End]);
    assert!(world.orders.is_empty(), "{:?}", world.orders);
}

#[derive(Clone, Debug)]
enum Op {
    Start(u32, u8),
    Ask(u32),
    /// The HPC job begins a phase, or ends it; or it leaves or comes.
    Phase(bool),
    Hpc(bool),
    Finish(u32, bool),
    Fetch(u8, bool),
    View(u8),
    Slots(u8, u8),
    Wait(u64),
    Lose(u8),
    StageEnds,
    StageAgain,
    /// The capacity of a node, in thirds of its initial one.
    Capacity(u8, u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0u32..40, 0u8..3).prop_map(|(t, h)| Op::Start(t, h)),
        8 => (0u32..42).prop_map(Op::Ask),
        2 => any::<bool>().prop_map(Op::Phase),
        1 => any::<bool>().prop_map(Op::Hpc),
        8 => (0u32..40, any::<bool>()).prop_map(|(t, ok)| Op::Finish(t, ok)),
        6 => (any::<u8>(), any::<bool>()).prop_map(|(n, ok)| Op::Fetch(n, ok)),
        1 => (1u8..8).prop_map(Op::View),
        1 => (0u8..4, 0u8..4).prop_map(|(a, b)| Op::Slots(a, b)),
        3 => (0u64..5_000).prop_map(Op::Wait),
        1 => (0u64..400_000).prop_map(Op::Wait),
        1 => (0u8..3).prop_map(Op::Lose),
        1 => (0u8..3, 0u8..4).prop_map(|(node, thirds)| Op::Capacity(node, thirds)),
        1 => Just(Op::StageEnds),
        1 => Just(Op::StageAgain),
    ]
}

/// Returns the bytes that a node is requested to hold.
fn ordered(world: &World, name: &str) -> u64 {
    let its = world.orders.values().filter(|(node, _, _)| node == name);
    its.flat_map(|(_, o, _)| &o.parts).map(|p| p.len).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever jobs, agents and members do: no node is requested to hold more than fits, each task
    /// that asks has one answer, within the limit, and when the job ends nothing is left.
    #[test]
    fn nothing_is_ordered_beyond_the_room_and_nothing_outlives_the_job(
        ops in prop::collection::vec(op(), 0..120), planner in 0usize..5, preferred_nodes in any::<bool>(), servers in 0u32..4
    ) {
        let names = ["a", "b", "c"];
        let all = [("a", 12 * MIB), ("b", 40 * MIB), ("c", 400 * MIB)];
        let mut world = World::new(planner::POLICIES[planner].0, &all);
        let preferred_node = |task: u32| ["a", "b", "c", "nobody"][task as usize * 7 % 4];
        let mut all_reported = reported_at(40, &[("a", 2), ("b", 2), ("c", 1)], if preferred_nodes { preferred_node } else { |_| "" });
        if servers > 0 {
            all_reported = laid_out(all_reported, servers);
        }
        all_reported.insert(1, JobUpdate::TasksAsk);
        world.update(all_reported.clone());
        let limit_ns = Rules::default().task_wait_max_ns;
        let mut asked: BTreeMap<u32, Nanos> = BTreeMap::new();
        for op in ops {
            match op {
                Op::Start(task, host) => world.start(task, names[host as usize]),
                Op::Ask(partition) => {
                    asked.entry(partition).or_insert(world.now);
                    world.update(vec![JobUpdate::TaskAsks { stage: 1, partition }]);
                }
                Op::Phase(begins) => {
                    let begin = HpcUpdate::PhaseBegins { alone_ns: 20 * SECOND };
                    world.report(hpc(if begins { begin } else { HpcUpdate::PhaseEnds }));
                    world.turn();
                }
                Op::Hpc(joins) => {
                    let mut joining = JOINS;
                    if let HpcUpdate::Joins { allowance, .. } = &mut joining {
                        *allowance = if preferred_nodes { 2.0 } else { 0.0 };
                    }
                    world.report(hpc(if joins { joining } else { HpcUpdate::Leaves }));
                    world.turn();
                }
                Op::Finish(task, ok) => world.update(vec![JobUpdate::TaskEnded { stage: 1, task, ok, run_ms: 700 }]),
                Op::Fetch(which, ok) => {
                    let open: Vec<u64> = world.orders.iter().filter(|(_, o)| !o.2).map(|(id, _)| *id).collect();
                    if !open.is_empty() {
                        world.end(open[which as usize % open.len()], if ok { 0 } else { MIB });
                    }
                }
                Op::View(bits) => {
                    let left: Vec<_> = (0..3).filter(|i| bits & (1 << i) != 0 || *i == 0).map(|i| all[i]).collect();
                    for (i, name) in names.iter().enumerate().skip(1) {
                        if bits & (1 << i) == 0 {
                            world.went(name);
                            world.orders.retain(|_, (node, _, _)| node != name);
                        }
                    }
                    world.report(members(&left));
                    world.turn();
                }
                Op::Slots(a, b) => {
                    let slots = vec![("a".to_owned(), a.into()), ("b".to_owned(), b.into())];
                    world.update(vec![JobUpdate::Slots { slots }]);
                }
                Op::Wait(ms) => {
                    world.now = world.now + ms * 1_000_000;
                    world.turn();
                }
                Op::Lose(which) => {
                    // Not the driver's own, which would end the job.
                    let name = names[1 + which as usize % 2];
                    world.orders.retain(|_, (node, _, _)| node != name);
                    world.came(name);
                    world.turn();
                }
                Op::Capacity(which, thirds) => {
                    let (name, first) = all[which as usize];
                    let bytes = first * u64::from(thirds) / 3;
                    world.report(Event::Capacity { node: name.into(), bytes });
                    let before = ordered(&world, name);
                    world.turn();
                    prop_assert!(ordered(&world, name) <= before.max(plannable(bytes)), "{name} has {bytes}");
                }
                Op::StageEnds => world.update(vec![JobUpdate::StageEnded { stage: 1 }]),
                Op::StageAgain => world.update(all_reported[all_reported.len() - 2..].to_vec()),
            }
            for (name, capacity) in all {
                let bytes = ordered(&world, name);
                prop_assert!(bytes <= plannable(capacity), "{} has {} bytes", name, bytes);
            }
            for partition in world.take_may_read() {
                prop_assert!(asked.remove(&partition).is_some(), "{} has not asked", partition);
            }
            world.turn();
            // Some have asked before their slot was reported: their time began then.
            let late = asked.iter().find(|(_, at)| world.now.saturating_since(**at) > 2 * limit_ns + SECOND);
            prop_assert!(late.is_none(), "{:?} waits", late);
        }
        world.update(vec![JobUpdate::End]);
        for partition in world.take_may_read() {
            prop_assert!(asked.remove(&partition).is_some(), "{} has not asked", partition);
        }
        prop_assert!(asked.is_empty(), "{:?} wait", asked);
        prop_assert!(world.orders.is_empty(), "{:?}", world.orders);
        prop_assert!(world.machine.requests.is_empty() && world.machine.planners.is_empty());
        prop_assert!(world.machine.queues.are_idle(), "{:?}", world.machine.queues);
    }

    /// Where the servers of all data are known, every piece comes once, whatever ends first, and
    /// none in place of an earlier one of its server.
    #[test]
    fn every_piece_is_ordered_once_and_in_the_order_of_its_server(
        servers in 1u32..5, slots in 1u32..4, tasks in 1u32..60, choices in prop::collection::vec(any::<u8>(), 400)
    ) {
        let preferred_node = |task: u32| if task.is_multiple_of(2) { "a" } else { "b" };
        let mut world = World::new("no-action", &[("a", 1 << 30), ("b", 1 << 30)]);
        world.update(laid_out(reported_at(tasks, &[("a", slots), ("b", slots)], preferred_node), servers));
        let mut choices = choices.into_iter().cycle();
        let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
        let mut running: VecDeque<u32> = VecDeque::new();
        let mut next = 0;
        let mut done = 0;
        while done < tasks {
            while next < tasks && running.len() < 2 * slots as usize {
                world.start(next, preferred_node(next));
                running.push_back(next);
                next += 1;
            }
            for (id, (_, order, _)) in &world.orders {
                seen.entry(*id).or_insert(order.parts[0].offset / MIB);
            }
            let open: Vec<u64> = world.orders.iter().filter(|(_, o)| !o.2).map(|(id, _)| *id).collect();
            for node in ["a", "b"] {
                let its = open.iter().filter(|id| world.orders[id].0 == node).count();
                prop_assert!(its <= 4, "{its} at a time of node {node}");
            }
            world.now = world.now + 50_000_000 * open.len().max(1) as u64;
            let choice = choices.next().unwrap_or_default() as usize;
            if !open.is_empty() {
                world.end(open[choice % open.len()], 0);
            }
            // A task ends when its input is there.
            let read = world.waves().iter().map(|w| w.fetched_bytes).sum::<u64>();
            prop_assert!(read <= u64::from(tasks) * MIB);
            for (id, (_, order, _)) in &world.orders {
                seen.entry(*id).or_insert(order.parts[0].offset / MIB);
            }
            let ended: BTreeSet<u32> = seen
                .iter()
                .filter(|(id, _)| world.orders.get(id).is_none_or(|(_, _, ended)| *ended))
                .map(|(_, task)| *task as u32)
                .collect();
            if let Some(place) = running.iter().position(|task| ended.contains(task)) {
                let task = running.remove(place).expect("it is there");
                world.finish(task);
                done += 1;
            } else {
                prop_assert!(!open.is_empty(), "nothing comes of what tasks {running:?} wait for");
            }
        }
        for (id, (_, order, _)) in &world.orders {
            seen.entry(*id).or_insert(order.parts[0].offset / MIB);
        }
        let mut tasks_seen: Vec<u64> = seen.values().copied().collect();
        tasks_seen.sort_unstable();
        prop_assert_eq!(tasks_seen, (0..u64::from(tasks)).collect::<Vec<_>>());
        // Tasks are started in their order here, so the waves are in that order, too: at each
        // server nothing later came first, except where another node had free requests.
        let wave = |task: u64| task / (2 * u64::from(slots));
        for (server, node) in (0..u64::from(servers)).flat_map(|server| [(server, "a"), (server, "b")]) {
            let is_its = |task: &&u64| **task % u64::from(servers) == server && preferred_node(**task as u32) == node;
            let of_server: Vec<u64> = seen.values().filter(is_its).map(|task| wave(*task)).collect();
            prop_assert!(of_server.is_sorted(), "{of_server:?}");
        }
    }
}

#[test]
fn a_job_whose_slots_change_all_the_time_does_not_keep_others_from_being_placed() {
    let names: Vec<String> = (0..100).map(|i| format!("n{i:03}")).collect();
    let nodes: Vec<(&str, u64)> = names.iter().map(|n| (n.as_str(), 1 << 40)).collect();
    let slots = |count| -> Vec<(&str, u32)> { names.iter().map(|n| (n.as_str(), count)).collect() };
    let mut machine = World::new("no-action", &nodes).machine;
    let mut out = Vec::new();
    // Six slices, which start from scratch with each change of the slots.
    machine.handle(Nanos(0), Event::Job { job: 1, updates: reported(11_000, &slots(1)) }, &mut out);
    machine.handle(Nanos(0), Event::Job { job: 2, updates: reported(10, &slots(1)) }, &mut out);
    for turn in 0..6 {
        let slots = slots(1 + turn % 2).into_iter().map(|(host, count)| (host.to_owned(), count)).collect();
        let updates = vec![JobUpdate::Slots { slots }];
        machine.handle(Nanos(0), Event::Job { job: 1, updates }, &mut out);
        machine.on_deadline(Nanos(0), &mut out);
    }
    let waves: Vec<usize> =
        machine.status().iter().flat_map(|job| job.stages.iter().map(|s| s.waves.len())).collect();
    assert_eq!(waves.len(), 2, "{waves:?}");
    assert!(waves[0] == 0 && waves[1] > 0, "{waves:?}");
}

#[test]
fn reports_of_changed_slots_and_started_tasks_do_not_partition_a_stage_each_time() {
    let mut world = World::new("no-action", &[("n0", 1 << 40), ("n1", 1 << 40)]);
    world.update(reported(100, &[("n0", 1), ("n1", 1)]));
    world.turn();
    let waves = |world: &World| world.waves().len();
    let before = waves(&world);
    assert!(before > 1);
    for task in 0..10 {
        let slots = vec![("n0".to_owned(), 2 + task % 2), ("n1".to_owned(), 2)];
        world.job(vec![JobUpdate::Slots { slots }]);
        world.job(vec![JobUpdate::TaskStarted { stage: 1, task, host: "n0".into() }]);
        assert_eq!(waves(&world), before, "partitioned within a report");
    }
    world.turn();
    assert!(waves(&world) < before, "and not at the deadline");
}

#[test]
fn a_large_stage_is_placed_in_slices_and_cut_as_if_at_once() {
    let names: Vec<String> = (0..100).map(|i| format!("n{i:03}")).collect();
    let nodes: Vec<(&str, u64)> = names.iter().map(|n| (n.as_str(), 1 << 40)).collect();
    let slots: Vec<(&str, u32)> = names.iter().map(|n| (n.as_str(), 1)).collect();
    // Each task examines every member: six slices, the last one not full.
    let tasks = 11_000;
    let mut world = World::new("no-action", &nodes);
    world.update(reported(tasks, &slots));
    let mut turns = 1;
    while world.waves().is_empty() {
        assert_eq!(world.machine.next_deadline(), Some(world.now), "it must go on at once");
        if turns == 2 {
            // Started before it was placed, and after.
            [0, tasks - 1].into_iter().for_each(|task| world.start(task, "n000"));
            turns += 2;
        }
        world.turn();
        turns += 1;
    }
    assert_eq!(turns, 6);
    assert_eq!(world.waves().iter().map(|w| w.tasks).sum::<u32>(), tasks - 2, "those that run need nothing");
    assert!(world.ordered_bytes() > 0);

    // Another view in the middle: what was placed by the old one is void.
    let fewer = members(&nodes[..50]);
    world.report(members(&nodes[..70]));
    world.turn();
    world.report(fewer.clone());
    world.turn();
    while world.machine.next_deadline() == Some(world.now) {
        world.turn();
    }
    assert_eq!(world.waves().iter().map(|w| w.tasks).sum::<u32>(), tasks - 2);
    let owned: BTreeMap<u64, String> =
        world.orders.iter().map(|(id, (node, ..))| (*id, node.clone())).collect();
    assert!(!owned.is_empty() && owned.values().all(|node| nodes[..50].iter().any(|n| n.0 == *node)));
    // A job that ends while its stage is being placed leaves nothing to do.
    world.report(members(&nodes));
    world.turn();
    world.update(vec![JobUpdate::End]);
    assert!(world.orders.is_empty() && world.machine.next_deadline() != Some(world.now));
}

#[test]
fn what_started_tasks_wait_for_outlives_a_new_partition() {
    let one = [("a", 1 << 30)];
    let mut world = World::new("no-action", &one);
    world.update(reported(8, &[("a", 2)]));
    (0..2).for_each(|task| world.start(task, "a"));
    let first: Vec<u64> = world.orders.keys().copied().take(2).collect();
    world.update(vec![JobUpdate::Slots { slots: vec![("a".into(), 3)] }]);
    assert_eq!(world.waves().len(), 3, "it was not partitioned again");
    assert!(first.iter().all(|id| world.orders.contains_key(id)), "{:?}", world.orders);
    first.iter().for_each(|id| world.end(*id, 0));
    (0..2).for_each(|task| world.finish(task));
    assert!(!first.iter().any(|id| world.orders.contains_key(id)), "they have outlived their tasks");
}

/// The new partition comes while the first wave holds most of the room: the next wave waits for it
/// and is not left to its tasks.
#[test]
fn a_wave_that_waits_for_the_room_of_a_running_one_is_fetched_when_that_ends() {
    for planner in ["no-action", "full-delay", "eley"] {
        let mut world = World::new(planner, &[("a", 8 * MIB)]);
        assert_eq!(plannable(8 * MIB), 51 * MIB / 10);
        world.update(reported(8, &[("a", 4)]));
        world.fetch();
        (0..4).for_each(|task| world.start(task, "a"));
        world.update(vec![JobUpdate::Slots { slots: vec![("a".into(), 5)] }]);
        world.fetch();
        (0..4).for_each(|task| world.finish(task));
        world.turn();
        world.fetch();
        let fetched: u64 = world.waves().iter().map(|wave| wave.fetched_bytes).sum();
        assert_eq!(fetched, 8 * MIB, "{planner}: {:?}", world.waves());
    }
}

/// Members change while the first wave computes: the rest joins the planner again, which is
/// notified how long that takes, and of its end.
#[test]
fn a_new_partition_reports_to_the_planner_what_computes() {
    let seen = |planner: &str| {
        let mut world = World::new(planner, &[("a", 1 << 30)]);
        let mut updates = reported(8, &[("a", 4)]);
        updates.push(JobUpdate::Expected { wave_ns: 30 * SECOND, tier_read_ns: 0 });
        world.update(updates);
        world.fetch();
        (0..4).for_each(|task| world.start(task, "a"));
        world.now = Nanos(10 * SECOND);
        world.report(members(&[("a", 1 << 30), ("b", 1 << 30)]));
        world.machine.on_deadline(world.now, &mut world.out);
        let hidden_s = world.out.iter().find_map(|action| match action {
            Action::Decided { decision, .. } => Some(decision.hidden_s),
            _ => None,
        });
        (0..3).for_each(|task| world.finish(task));
        world.job(vec![JobUpdate::TaskEnded { stage: 1, task: 3, ok: true, run_ms: 1000 }]);
        let reads = |action: &Action| matches!(action, Action::Direct { may: true, .. });
        (hidden_s, world.out.iter().any(reads))
    };
    assert_eq!(seen("no-action"), (Some(20.0), false));
    // It plans when its tasks wait, and not before.
    assert_eq!(seen("naive-bb"), (None, true));
}

/// A planner's setting is what each node has: requests at a time, their rate, and nothing while it
/// pauses.
#[test]
fn requests_follow_the_setting_of_their_wave() {
    let mut world = World::new("full-delay", &[("a", 1 << 40), ("b", 1 << 40)]);
    world.update(reported(64, &[("a", 16), ("b", 16)]));
    let per_node = |world: &World, node: &str| world.orders.values().filter(|o| o.0 == node && !o.2).count();
    assert_eq!([per_node(&world, "a"), per_node(&world, "b")], [4, 4]);
    let set = |world: &mut World, nodes: u16, threads: u16, rate: f64| {
        let setting = forebay_model::profile::Setting { nodes, threads, rate };
        let wave =
            world.machine.run_mut(JOB, 1).and_then(|run| run.set_setting(0, setting, 1e9, 0)).unwrap().0;
        world.machine.adjust(world.now, JOB, 1, wave);
        world.out.append(&mut world.machine.out);
        world.turn();
    };
    set(&mut world, 1, 2, 1.0);
    let paused = |world: &World| world.adjusted.values().filter(|threads| **threads == 0).count();
    assert_eq!(paused(&world), 6, "two of one node go on: {:?}", world.adjusted);
    set(&mut world, 2, 4, 1.0);
    assert_eq!(paused(&world), 0, "{:?}", world.adjusted);
    set(&mut world, 0, 0, 0.0);
    assert_eq!(paused(&world), 8);
    world.fetch();
    assert_eq!(per_node(&world, "a") + per_node(&world, "b"), 0, "nothing is given out in a pause");
}

/// No prefetch has run, so a planner starts from a guess, 1 GB/s; the file system has 40 MiB/s,
/// which no correction of that guess would reach.
#[test]
fn the_first_prefetch_shows_planners_the_speed() {
    let mut world = World::new("full-delay", &[("a", 1000 * MIB)]);
    world.update(reported(40, &[("a", 4)]));
    let speed = |world: &World| {
        let board = world.machine.planners["full-delay"].planner.board();
        (board.pfs_bytes_per_s(), board.strain(board.config.default_setting).speed_bytes_per_s)
    };
    assert_eq!(speed(&world), (1e9, 1e9));
    let (id, node) = world.orders.iter().map(|(id, (node, ..))| (*id, node.clone())).next().expect("one");
    for part in 1..=2 {
        world.now = Nanos(part * SECOND);
        let fetched_bytes = part * 40 * MIB;
        world.progress(&node, id, Progress { fetched_bytes, ..Progress::default() });
    }
    let is = (40 * MIB) as f64;
    assert_eq!(speed(&world), (is, is));
    // Further observations are not reported to planners: they correct themselves, wave by wave.
    world.now = Nanos(3 * SECOND);
    world.progress(&node, id, Progress { fetched_bytes: 90 * MIB, ..Progress::default() });
    assert_eq!(speed(&world), (is, is));
    assert_eq!(world.machine.speed.bytes_per_s, (30 * MIB) as f64, "the mean of three");
}

/// A rate is a share of what the planner expects of its setting, however slow prefetches were
/// lately because of that very rate.
#[test]
fn a_limit_does_not_lower_the_next_limit() {
    let mut world = World::new("no-action", &[("a", 1000 * MIB)]);
    use forebay_model::profile::Setting;
    let setting = Setting { nodes: 1, threads: 2, rate: 0.5 };
    world.update(reported(4, &[("a", 4)]));
    let mut limits = Vec::new();
    for second in 1..=5 {
        world.now = Nanos(second * SECOND);
        world.machine.speed.observe(world.now, second * MIB);
        let (name, job) = world.machine.jobs[&JOB].stages[&1].planner.clone().expect("it is planned");
        if let Some(run) = world.machine.run_mut(JOB, 1) {
            run.opportunistic = false;
        }
        let rates = [Setting { rate: 0.25, ..setting }, setting];
        for setting in rates {
            world.out.clear();
            world.machine.fetch(world.now, &name, job, 0, setting);
            world.out.append(&mut world.machine.out);
        }
        limits.extend(world.out.iter().find_map(|action| match action {
            Action::Adjust { rate_bytes_per_s, .. } => Some(*rate_bytes_per_s),
            _ => None,
        }));
    }
    assert!(world.machine.speed.bytes_per_s < 1e8, "prefetches were slow");
    assert_eq!(limits, [250_000_000; 5], "half of 1 GB/s for two requests");
}

#[test]
fn a_stage_that_is_being_placed_when_the_members_change_begins_anew() {
    let names: Vec<String> = (0..100).map(|i| format!("n{i:03}")).collect();
    let nodes: Vec<(&str, u64)> = names.iter().map(|n| (n.as_str(), 1 << 40)).collect();
    let slots: Vec<(&str, u32)> = names.iter().map(|n| (n.as_str(), 1)).collect();
    let mut world = World::new("no-action", &nodes);
    world.update(laid_out(reported(11_000, &slots), 4));
    assert!(world.waves().is_empty(), "it is placed in slices");
    world.report(members(&nodes[..70]));
    while world.waves().is_empty() || world.machine.next_deadline() == Some(world.now) {
        world.turn();
    }
    let left: Vec<&str> = nodes[..70].iter().map(|n| n.0).collect();
    let run = &world.machine.jobs[&JOB].stages[&1];
    assert!(
        run.preferred_nodes().all(|preferred_node| left.contains(&preferred_node)),
        "a task is placed where no executor is"
    );
}

#[test]
fn a_new_cut_puts_no_later_wave_beside_what_is_under_way() {
    let mut world = World::new("no-action", &[("a", 1 << 30)]);
    world.update(laid_out(reported(8, &[("a", 2)]), 1));
    (0..2).for_each(|task| world.start(task, "a"));
    world.now = world.now + SECOND;
    let first = *world.orders.keys().next().unwrap();
    world.end(first, 0);
    let under_way = |world: &World| -> Vec<u64> {
        world.orders.values().filter(|o| !o.2).map(|o| o.1.parts[0].offset / MIB).collect()
    };
    assert_eq!(under_way(&world), [1], "of the wave that computes");
    world.update(vec![JobUpdate::Slots { slots: vec![("a".into(), 3)] }]);
    assert_eq!(under_way(&world), [1]);
}

#[test]
fn every_turn_gives_something_out_however_much_there_is_to_look_at() {
    // Each node has pieces for each server, and one turn examines a hundred.
    let names: Vec<String> = (0..20).map(|i| format!("n{i:02}")).collect();
    let nodes: Vec<(&str, u64)> = names.iter().map(|n| (n.as_str(), 1 << 40)).collect();
    let slots: Vec<(&str, u32)> = names.iter().map(|n| (n.as_str(), 1)).collect();
    let mut world = World::new("no-action", &nodes);
    world.update(laid_out(reported(400, &slots), 10));
    let mut fetched = BTreeSet::new();
    for turn in 0..4000 {
        world.now = world.now + SECOND;
        world.turn();
        fetched.extend(world.orders.values().flat_map(|o| o.1.parts.iter().map(|p| p.offset / MIB)));
        world.fetch();
        // One task after the other starts and ends, so that later waves come into reach.
        if turn % 10 == 0 && turn / 10 < 400 {
            world.start(turn / 10, &names[turn as usize / 10 % 20]);
            world.finish(turn / 10);
        }
    }
    assert!(fetched.len() > 300, "only {} of 400 were fetched", fetched.len());
}

#[test]
fn tasks_whose_start_is_reported_with_their_stage_have_a_wave() {
    let mut world = World::new("no-action", &[("a", 1 << 30)]);
    let mut updates = laid_out(reported(6, &[("a", 2)]), 2);
    updates.extend((0..2).map(|task| JobUpdate::TaskStarted { stage: 1, task, host: "a".into() }));
    world.update(updates);
    assert_eq!(world.waves().iter().map(|w| w.tasks).collect::<Vec<_>>(), [2, 2, 2]);
    let first: Vec<u64> =
        world.orders.values().flat_map(|o| o.1.parts.iter().map(|p| p.offset / MIB)).collect();
    assert_eq!(first, [0, 1], "what they wait for is fetched, and nothing beside it");
}

#[test]
fn planners_that_mind_phases_go_wave_by_wave_wherever_files_lie() {
    for servers in [0, 2] {
        let offsets = |planner| {
            let mut world = World::new(planner, &[("a", 1 << 30)]);
            let reported = reported(6, &[("a", 2)]);
            world.update(if servers > 0 { laid_out(reported, servers) } else { reported });
            world.fetch();
            world.orders.values().map(|o| o.1.parts[0].offset / (2 * MIB)).max()
        };
        assert_eq!(offsets("full-delay"), Some(0), "{servers} servers");
        assert!(offsets("no-action") > Some(0), "{servers} servers");
    }
}

/// Six files on three servers, of which the second wave has two: `forebay` fetches the third
/// server's file of a later wave meanwhile, but not beside a phase.
#[test]
fn between_phases_later_waves_are_fetched_from_idle_servers() {
    let open = |planner: &str, then: fn(&mut World)| {
        let mut world = World::new(planner, &[("a", 1 << 30)]);
        world.report(hpc(JOINS));
        world.update(laid_out(reported(12, &[("a", 2)]), 3));
        world.fetch();
        (0..2).for_each(|task| world.start(task, "a"));
        then(&mut world);
        let open = world.orders.iter().filter(|(_, (_, _, ended))| !ended);
        let open = open.map(|(id, (_, order, _))| {
            (order.parts[0].offset / MIB, order.ahead, world.adjusted.get(id) != Some(&0))
        });
        let mut open: Vec<(u64, bool, bool)> = open.collect();
        open.sort_unstable();
        open
    };
    let begins: fn(&mut World) = |world| {
        world.report(hpc(HpcUpdate::PhaseBegins { alone_ns: 20 * SECOND }));
        world.turn();
    };
    let begins_and_ends: fn(&mut World) = |world| {
        world.report(hpc(HpcUpdate::PhaseBegins { alone_ns: 20 * SECOND }));
        world.turn();
        world.now = world.now + 20 * SECOND;
        world.report(hpc(HpcUpdate::PhaseEnds));
        world.turn();
    };
    assert_eq!(open("eley", |_| {}), [(2, false, true), (3, false, true)]);
    let filled = [(2, false, true), (3, false, true), (4, true, true)];
    assert_eq!(open("forebay", |_| {}), filled);
    assert_eq!(open("forebay", begins), filled.map(|(task, ahead, _)| (task, ahead, false)));
    assert_eq!(open("forebay", begins_and_ends), filled);
}

#[test]
fn hostile_figures_are_bounded() {
    let mut world = World::new("no-action", &[("a", 1 << 30)]);
    let mut updates = reported(6, &[("a", 2)]);
    let layout = Layout { stripe_bytes: 1, servers: vec![0; 1 << 16] };
    updates.insert(3, JobUpdate::Layouts { servers: vec!["s".into()], files: vec![layout] });
    world.update(updates);
    let order = *world.orders.keys().next().unwrap();
    let all = u64::MAX;
    for done in [false, true] {
        let progress = Progress { fetched_bytes: all, resident_bytes: all, failed_bytes: all, done };
        world.progress("a", order, progress);
        world.now = world.now + SECOND;
        world.turn();
    }
}

#[test]
fn a_request_names_few_files_however_many_a_task_reads() {
    let mut world = World::new("no-action", &[("a", 1 << 40), ("b", 1 << 40)]);
    let (tasks, files_each) = (40_u32, 4_000_u32);
    let file = |number: u32| File { mount: "pfs".into(), ino: u64::from(number) + 1, bytes: 4096 };
    let parts = |task: u32| {
        (0..files_each).map(|i| Part { file: task * files_each + i, offset: 0, len: 4096 }).collect()
    };
    world.update(vec![
        JobUpdate::Begin { name: "app".into(), planner: String::new() },
        JobUpdate::Slots { slots: vec![("a".into(), 20), ("b".into(), 20)] },
        JobUpdate::Files { files: (0..tasks * files_each).map(file).collect() },
        JobUpdate::Splits {
            stage: 1,
            splits: (0..tasks).map(|t| Split { parts: parts(t), preferred_node: String::new() }).collect(),
        },
        JobUpdate::StageReady { stage: 1 },
    ]);
    for _ in 0..1000 {
        world.turn();
        world.fetch();
    }
    assert!(world.orders.len() > 100, "{} requests", world.orders.len());
    assert!(world.orders.values().all(|(_, order, _)| order.parts.len() <= 512));
    let wave = &world.waves()[0];
    assert_eq!((wave.fetched_bytes, wave.failed_bytes), (wave.bytes, 0));
}

#[test]
fn waves_of_the_earliest_stages_are_not_shown_where_there_are_too_many() {
    let stage = |number: u32, waves: usize| StageStatus {
        stage: number,
        waves: vec![WaveStatus::default(); waves],
        ..StageStatus::default()
    };
    let job = |stages| JobStatus { stages, ..JobStatus::default() };
    let mut jobs = vec![job(vec![stage(0, 2), stage(1, 30)]), job(vec![stage(0, 40), stage(1, 50)])];
    show_at_most(92, &mut jobs);
    let left: Vec<usize> = jobs.iter().flat_map(|job| job.stages.iter().map(|s| s.waves.len())).collect();
    assert_eq!(left, [2, 0, 40, 50]);
}

#[test]
fn a_status_leaves_out_the_earliest_stages_beyond_its_bound() {
    let stage = |stage| StageStatus { stage, ..StageStatus::default() };
    let job = |count: u32| JobStatus { stages: (0..count).map(stage).collect(), ..JobStatus::default() };
    let mut jobs = vec![job(3), job(5), job(4)];
    show_stages_at_most(7, &mut jobs);
    let left: Vec<Vec<u32>> =
        jobs.iter().map(|job| job.stages.iter().map(|stage| stage.stage).collect()).collect();
    assert_eq!(left, [vec![], vec![2, 3, 4], vec![0, 1, 2, 3]]);
}

fn hpc(update: HpcUpdate) -> Event {
    Event::Hpc { hpc: 3, update }
}

const JOINS: HpcUpdate = HpcUpdate::Joins {
    io_ns: 20 * SECOND,
    compute_ns: 100 * SECOND,
    phases: 9,
    allowance: 0.0,
    weight: 1,
    first_in_ns: 100 * SECOND,
};

#[test]
fn planners_that_mind_phases_wait_for_one_that_is_under_way_also_if_they_come_later() {
    for (planner, waits) in [("no-action", false), ("full-delay", true), ("eley", true), ("forebay", true)] {
        let mut world = World::new(planner, &[("a", 1 << 30)]);
        world.report(hpc(JOINS));
        world.report(hpc(HpcUpdate::PhaseBegins { alone_ns: 20 * SECOND }));
        world.update(reported(6, &[("a", 2)]));
        assert_eq!(world.orders.is_empty(), waits, "{planner}");
        world.now = world.now + SECOND;
        world.report(hpc(HpcUpdate::PhaseEnds));
        // Some decide again only when the phase was to end.
        world.now = world.now + 20 * SECOND;
        world.turn();
        // This one lets waiting tasks read by themselves: as fast, and immediately.
        assert_eq!(world.orders.is_empty(), planner == "forebay", "{planner}: the phase is over");
        (0..2).for_each(|task| world.start(task, "a"));
        assert!(!world.orders.is_empty(), "{planner}: the second wave");
    }
}

/// Tasks that wait for a wave whose prefetch would disturb a phase read it by themselves, and
/// nothing more is fetched of it.
#[test]
fn a_wave_that_is_to_be_read_directly_is_not_fetched_any_more() {
    let mut world = World::new("full-delay", &[("a", 1 << 30)]);
    world.update(reported(6, &[("a", 2)]));
    assert_eq!(world.orders.len(), 2);
    let requests = world.machine.run_mut(JOB, 1).unwrap().read_directly(0);
    world.machine.release(world.now, requests);
    world.out.append(&mut world.machine.out);
    world.turn();
    assert!(world.orders.is_empty());
    let run = world.machine.run_mut(JOB, 1).unwrap();
    assert_eq!(run.next_fetched(0), None, "not before its tasks have read it");
    (0..2).for_each(|task| world.start(task, "a"));
    (0..2).for_each(|task| world.finish(task));
    assert!(world.orders.values().all(|(_, o, _)| o.parts[0].offset >= 2 * MIB));
    assert_eq!(world.waves()[0].failed_bytes, 2 * MIB);
}

#[test]
fn what_goes_with_a_node_is_reported_to_planners_as_lost() {
    let preferred_node = |task: u32| if task.is_multiple_of(2) { "a" } else { "b" };
    let mut world = World::new("full-delay", &[("a", 1 << 30), ("b", 1 << 30)]);
    world.update(reported_at(8, &[("a", 2), ("b", 2)], preferred_node));
    world.fetch();
    let run = world.machine.run_mut(JOB, 1).unwrap();
    assert_eq!(run.lose("b"), [(0, 2 * MIB)], "the first wave has not begun");
    world.machine.job_reports(world.now, JOB, vec![]);
    world.went("b");
    world.turn();
    (0..8).for_each(|task| world.start(task, "a"));
    let run = world.machine.run_mut(JOB, 1).unwrap();
    assert!(run.lose("b").is_empty(), "what computes was read");
}

// Tasks that ask before they read.

impl World {
    fn asking(planner: &str, tasks: u32) -> World {
        let mut world = World::new(planner, &[("a", 1 << 30)]);
        world.report(hpc(JOINS));
        let mut updates = reported(tasks, &[("a", 2)]);
        updates.insert(1, JobUpdate::TasksAsk);
        world.update(updates);
        world
    }

    /// A task gets its slot and asks.
    fn ask(&mut self, task: u32) {
        self.start(task, "a");
        self.update(vec![JobUpdate::TaskAsks { stage: 1, partition: task }]);
    }

    fn waiting(&self) -> u32 {
        self.machine.status()[0].stages[0].tasks_waiting
    }

    fn take_may_read(&mut self) -> Vec<u32> {
        core::mem::take(&mut self.may_read).into_iter().map(|(_, partition)| partition).collect()
    }
}

#[test]
fn tasks_wait_until_their_wave_is_fetched() {
    for planner in ["full-delay", "eley"] {
        let mut world = World::asking(planner, 6);
        // The answer is the same whichever comes first, the report of the slot or the question.
        world.ask(0);
        world.update(vec![JobUpdate::TaskAsks { stage: 1, partition: 1 }]);
        world.start(1, "a");
        assert_eq!((world.take_may_read(), world.waiting()), (vec![], 2), "{planner}");
        assert_eq!(world.waves()[0].compute_began_ms, None, "{planner}: the wave has begun");
        let first = *world.orders.keys().next().unwrap();
        world.end(first, 0);
        assert!(world.take_may_read().is_empty(), "{planner}: half of the wave is missing");
        world.fetch();
        assert_eq!((world.take_may_read(), world.waiting()), (vec![0, 1], 0), "{planner}");
        assert!(world.waves()[0].compute_began_ms.is_some());
        // Nothing of the first wave was withdrawn, and the next is on its way.
        assert_eq!(world.waves()[0].fetched_bytes, 2 * MIB);
        world.fetch();
        world.finish(0);
        world.ask(2);
        assert_eq!(world.take_may_read(), [2], "{planner}: its input is there");
    }
}

/// Node `a` fetches 24 MiB for a request that is paused; 4 MiB may have been under way.
#[test]
fn nobody_waits_for_input_from_a_node_that_ignores_its_pauses() {
    let mut world = World::asking("full-delay", 6);
    world.ask(0);
    assert_eq!((world.take_may_read(), world.waiting()), (vec![], 1));
    let paused = waves::Pace { threads: 0, rate_bytes_per_s: 0, setting: None };
    let now = world.now;
    world.machine.requests.values_mut().for_each(|requested| requested.pace_limit.adjust(now, paused));
    world.now = world.now + 3 * SECOND;
    let request = *world.orders.keys().next().unwrap();
    let progress = Progress { fetched_bytes: 24 * MIB, ..Progress::default() };
    world.progress("a", request, progress);
    world.turn();
    assert_eq!((world.take_may_read(), world.waiting()), (vec![0], 0));
    assert_eq!(world.machine.take_pace_violations(), [("a".to_owned(), 20 * MIB)]);
    world.ask(1);
    assert_eq!(world.take_may_read(), [1]);
}

#[test]
fn tasks_of_planners_that_do_not_mind_phases_and_of_clusters_without_hpc_jobs_never_wait() {
    for planner in ["no-action", "naive-bb"] {
        let mut world = World::asking(planner, 4);
        (0..2).for_each(|task| world.ask(task));
        assert_eq!(world.take_may_read(), [0, 1], "{planner}");
    }
    let mut world = World::asking("eley", 6);
    world.report(hpc(HpcUpdate::Leaves));
    world.turn();
    (0..2).for_each(|task| world.ask(task));
    assert_eq!(world.take_may_read(), [0, 1]);
    // Nor do those of programs that do not ask.
    let mut world = World::new("eley", &[("a", 1 << 30)]);
    world.report(hpc(JOINS));
    world.update(reported(4, &[("a", 2)]));
    world.start(0, "a");
    assert_eq!((world.waiting(), world.waves()[0].compute_began_ms), (0, Some(0)));
}

#[test]
fn whoever_waits_reads_when_the_last_hpc_job_leaves_or_members_change_or_the_job_ends() {
    type End = fn(&mut World);
    let ends: [(&str, End); 4] = [
        ("the HPC job leaves", |world| world.report(hpc(HpcUpdate::Leaves))),
        ("members", |world| world.report(members(&[("a", 1 << 30), ("b", 1 << 30)]))),
        ("the stage ends", |world| world.job(vec![JobUpdate::StageEnded { stage: 1 }])),
        ("the job is gone", |world| world.report(Event::JobGone { job: JOB })),
    ];
    for (end, make) in ends {
        let mut world = World::asking("eley", 6);
        world.ask(0);
        world.update(vec![JobUpdate::TaskAsks { stage: 1, partition: 1 }]);
        assert!(world.take_may_read().is_empty(), "{end}");
        make(&mut world);
        world.turn();
        assert_eq!(world.take_may_read(), [0, 1], "{end}");
    }
}

#[test]
fn nobody_waits_for_longer_than_the_limit_and_for_an_unknown_stage_only_a_moment() {
    let mut world = World::asking("eley", 6);
    world.ask(0);
    world.update(vec![JobUpdate::TaskAsks { stage: 1, partition: 1 }]);
    world.update(vec![JobUpdate::TaskAsks { stage: 7, partition: 0 }]);
    assert_eq!(world.machine.next_deadline().map(|at| at <= Nanos(2 * SECOND)), Some(true));
    world.now = Nanos(2 * SECOND);
    world.turn();
    assert_eq!(core::mem::take(&mut world.may_read), [(7, 0)]);
    world.update(vec![JobUpdate::TaskAsks { stage: 7, partition: 1 }]);
    assert_eq!(core::mem::take(&mut world.may_read), [(7, 1)], "by now it is known that nobody reports it");
    // Its report comes too late for the first, and in time for the second.
    world.update(vec![JobUpdate::TaskAsks { stage: 2, partition: 1 }]);
    let split = Split { parts: vec![Part { file: 0, offset: 0, len: MIB }], preferred_node: String::new() };
    world.update(vec![
        JobUpdate::Partitions { stage: 2, partitions: vec![1] },
        JobUpdate::Splits { stage: 2, splits: vec![split] },
        JobUpdate::StageReady { stage: 2 },
    ]);
    world.now = Nanos(4 * SECOND);
    world.turn();
    assert_eq!(core::mem::take(&mut world.may_read), []);
    world.now = Nanos(Rules::default().task_wait_max_ns + 4 * SECOND);
    world.turn();
    assert_eq!(world.may_read, [(1, 0), (1, 1), (2, 1)]);
    assert_eq!(world.waiting(), 0);
}

/// Each turn checks that its wave is among those that are examined.
#[test]
fn a_task_that_gets_another_partition_waits_for_its_own_wave() {
    let mut world = World::asking("eley", 6);
    world.update(vec![JobUpdate::TaskAsks { stage: 1, partition: 0 }]);
    world.update(vec![JobUpdate::Partitions { stage: 1, partitions: (0..6).rev().collect() }]);
    assert_eq!(world.may_read, []);
}

#[test]
fn waiting_is_no_part_of_the_time_that_a_task_runs() {
    let mut world = World::asking("eley", 6);
    (0..2).for_each(|task| world.ask(task));
    world.now = Nanos(5 * SECOND);
    world.fetch();
    (0..2).for_each(|task| {
        world.update(vec![JobUpdate::TaskEnded { stage: 1, task, ok: true, run_ms: 7000 }]);
    });
    assert_eq!(world.machine.jobs[&JOB].job.task_ns(1), Some(2 * SECOND));
}

#[test]
fn thousands_of_tasks_begin_at_once() {
    let slots = 3000;
    let mut world = World::new("eley", &[("a", 1 << 40)]);
    world.report(hpc(JOINS));
    let mut updates = reported(2 * slots, &[("a", slots)]);
    updates.insert(1, JobUpdate::TasksAsk);
    world.update(updates);
    let started = |task| JobUpdate::TaskStarted { stage: 1, task, host: "a".into() };
    let asks = |partition| JobUpdate::TaskAsks { stage: 1, partition };
    world.update((0..slots).flat_map(|task| [started(task), asks(task)]).collect());
    assert_eq!(world.waiting(), slots);
    while world.waiting() > 0 {
        world.fetch();
    }
    assert_eq!(world.take_may_read().len(), slots as usize);
}

/// Found by random events.
#[test]
fn a_question_has_one_answer_also_if_its_task_has_ended() {
    let mut world = World::asking("full-delay", 40);
    world.update(vec![JobUpdate::TaskAsks { stage: 1, partition: 18 }]);
    world.start(0, "a");
    world.finish(18);
    assert_eq!(world.take_may_read(), [18]);
    world.update(vec![JobUpdate::TaskAsks { stage: 1, partition: 18 }]);
    world.update(vec![JobUpdate::End]);
    assert_eq!(world.take_may_read(), [18]);
}

/// The machine may be called long after a deadline.
#[test]
fn the_time_of_a_question_counts_from_when_it_was_asked() {
    let mut world = World::asking("full-delay", 4);
    let limit_ns = Rules::default().task_wait_max_ns;
    world.update(vec![JobUpdate::StageEnded { stage: 1 }]);
    world.update(vec![JobUpdate::TaskAsks { stage: 1, partition: 0 }]);
    let again = reported(4, &[("a", 2)]);
    world.update(again[3..].to_vec());
    world.now = Nanos(limit_ns + 3 * SECOND);
    world.turn();
    assert_eq!(world.take_may_read(), [0]);
}

/// Two tasks of 4 MiB in all, for a node that may be requested to hold less: the second chunk would
/// have room when the first task has computed.
#[test]
fn nobody_waits_for_a_wave_that_its_node_has_no_room_for() {
    let waiting = |capacity: u64| {
        let mut world = World::new("eley", &[("a", capacity), ("b", 1 << 30)]);
        world.report(hpc(JOINS));
        let mut updates = reported_at(8, &[("a", 4)], |_| "a");
        updates.insert(1, JobUpdate::TasksAsk);
        world.update(updates);
        (0..2).for_each(|task| world.ask(task));
        (world.waiting(), world.take_may_read().len())
    };
    assert_eq!(waiting(1 << 30), (2, 0));
    assert!(plannable(6 * MIB) < 4 * MIB);
    assert_eq!(waiting(6 * MIB), (0, 2));
}

/// A part of what phases have in hand is the brake's; planners are notified of deadlines without
/// it.
#[test]
fn planners_leave_to_the_brake_what_it_keeps() {
    let heard = |nodes_brake: bool, late_joiner: bool| {
        let mut world = World::new("full-delay", &[("a", 1 << 40)]);
        world.machine.config.rules.nodes_brake = nodes_brake;
        let plan = |world: &mut World| world.update(reported(8, &[("a", 4)]));
        if !late_joiner {
            plan(&mut world);
        }
        world.report(hpc(JOINS));
        let (alone_ns, deadline_ns) = (20 * SECOND, 21 * SECOND);
        world.report(hpc(HpcUpdate::PhaseBeginsUntil { alone_ns, deadline_ns }));
        if late_joiner {
            plan(&mut world);
        }
        let board = world.machine.planners["full-delay"].planner.board();
        let (_, chain) = board.chains()[0];
        ((chain.deadline_s * 1000.0).round(), board.config.reaction_s)
    };
    for late_joiner in [false, true] {
        assert_eq!([heard(false, late_joiner).0, heard(true, late_joiner).0], [21_000.0, 20_800.0]);
    }
    // A rule of the machine determines how a planner is created.
    assert_eq!(heard(true, false).1, 0.1);
}
