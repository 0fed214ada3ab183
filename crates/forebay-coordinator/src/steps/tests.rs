//! Tests of which step is let in, and when, by the messages to agents.

use super::*;

const S: u64 = 1_000_000_000;

fn owner(node: &str) -> Owner {
    (node.into(), 1)
}

struct World {
    steps: Steps,
}

impl World {
    /// Jobs 1, 2 and 3 write on one server, and job 4 on another; job 3 has a step each 1000 s, and
    /// the others each 10.
    fn new(policy: &str) -> Self {
        let mut steps = Steps::new(setup(policy, Duration::from_secs(300)), Recorder::off()).unwrap();
        for (id, (node, server)) in (1..).zip([("a", "x"), ("b", "x"), ("c", "x"), ("d", "y")]) {
            let period_s = if id == 3 { 1000 } else { 10 };
            steps.joins(id, (&format!("job {id}"), 7), period_s * S);
            steps.writes_to(id, &owner(node), vec![server.into()]);
        }
        World { steps }
    }

    /// What agents hear at `now_s`: who is let in.
    fn tick(&mut self, now_s: u64) -> Vec<String> {
        self.steps.tick(Nanos(now_s * S));
        let is_let_in = |(node, message)| matches!(message, ToAgent::LetIn { .. }).then_some(node);
        self.steps.take_messages().into_iter().filter_map(is_let_in).collect()
    }

    fn asks(&mut self, now_s: u64, id: u32, node: &str, alone_s: u64) -> Vec<String> {
        self.steps.asks(Nanos(now_s * S), id, &owner(node), alone_s * S);
        self.tick(now_s)
    }

    fn begins(&mut self, now_s: u64, id: u32, node: &str) -> Vec<String> {
        self.steps.changed(Nanos(now_s * S), id, &owner(node), true, S);
        self.tick(now_s)
    }

    /// Ends the phase of the last program of the job.
    fn ends(&mut self, now_s: u64, id: u32, node: &str) -> Vec<String> {
        self.steps.changed(Nanos(now_s * S), id, &owner(node), false, 0);
        self.tick(now_s)
    }
}

#[test]
fn steps_on_other_servers_do_not_wait_and_all_programs_of_a_job_are_let_in() {
    let mut world = World::new("sa-fcfs");
    assert_eq!(world.asks(1, 1, "a", 5), ["a"]);
    assert!(world.asks(1, 2, "b", 5).is_empty());
    assert_eq!(world.asks(1, 4, "d", 5), ["d"]);
    assert_eq!(world.asks(1, 1, "a2", 5), ["a2"], "of the job that writes");
    assert_eq!(world.asks(1, 9, "e", 5), ["e"], "does not share");
    assert!(world.begins(1, 1, "a").is_empty() && world.begins(1, 1, "a2").is_empty());
    let steps = world.steps.status(Nanos(3 * S));
    let waits: Vec<_> = steps.iter().filter(|step| !step.writes).collect();
    assert_eq!((waits[0].name.as_str(), waits[0].since_ms), ("job 2", 2000));
    assert_eq!(
        (&waits[0].waits_for[..], &waits[0].servers[..]),
        (&["job 1 of user 7".into()][..], &["x".into()][..])
    );
    assert_eq!(world.ends(3, 1, "a"), ["b"]);
    assert_eq!(
        world.steps.counts(),
        Counts { writing: 2, granted: 3, waited_ns: 2 * S, ..Counts::default() }
    );
}

#[test]
fn the_shortest_goes_first_and_one_of_unknown_length_behind_those_below_a_minute() {
    let mut world = World::new("sa-sjf");
    assert_eq!(world.asks(1, 1, "a", 5), ["a"]);
    assert!(world.asks(1, 2, "b", 0).is_empty() && world.asks(2, 3, "c", 59).is_empty());
    assert_eq!(world.ends(3, 1, "a"), ["c"]);
    assert_eq!(world.ends(4, 3, "c"), ["b"]);
}

#[test]
fn a_step_that_begins_anyway_holds_the_next_and_one_that_goes_makes_room() {
    let mut world = World::new("sa-fcfs");
    world.asks(1, 1, "a", 5);
    assert!(world.asks(1, 2, "b", 5).is_empty() && world.asks(2, 3, "c", 5).is_empty());
    // It has waited for too long; the observer saw the fourth.
    assert!(world.begins(60, 2, "b").is_empty());
    world.steps.leaves(Nanos(61 * S), 1, &owner("a"), None);
    assert!(world.tick(61).is_empty(), "the second writes");
    world.steps.leaves(Nanos(62 * S), 2, &owner("b"), Some(false));
    assert_eq!(world.tick(62), ["c"]);
    // One that gives up.
    world.asks(63, 2, "b", 5);
    assert!(world.ends(64, 2, "b").is_empty() && world.ends(65, 3, "c").is_empty());
    assert!(world.steps.status(Nanos(66 * S)).is_empty());
}

#[test]
fn tokens_live_with_their_node_and_steps_that_never_end_lose_theirs() {
    let mut world = World::new("sa-fcfs");
    world.asks(1, 1, "a", 5);
    assert!(world.asks(1, 2, "b", 5).is_empty());
    for now_s in 2..10 {
        world.steps.renew(Nanos(now_s * S), 1);
        assert!(world.tick(now_s).is_empty());
    }
    assert_eq!(world.tick(9 + LEASE_NS / S), ["b"], "its node is silent");
    assert_eq!(world.steps.counts().revoked, 1);
    assert!(world.asks(13, 3, "c", 1).is_empty());
    // The node comes back; it is too late.
    world.steps.renew(Nanos(13 * S), 1);
    let mut let_in_s = 0;
    for now_s in 13..60 {
        world.steps.renew(Nanos(now_s * S), 2);
        if world.tick(now_s) == ["c"] {
            let_in_s = now_s;
            break;
        }
    }
    assert_eq!(let_in_s, 12 + 3 * 5, "three times its time alone");
    assert!(world.ends(60, 2, "b").is_empty() && world.ends(60, 1, "a").is_empty());
}

#[test]
fn set_10_goes_by_periods_and_none_lets_all_in() {
    let mut world = World::new("set-10");
    assert_eq!(world.asks(1, 1, "a", 5), ["a"]);
    assert!(world.asks(1, 2, "b", 5).is_empty() && world.asks(1, 4, "d", 5).is_empty());
    assert_eq!(world.asks(1, 3, "c", 5), ["c"], "another set");
    let mut world = World::new("none");
    assert_eq!(world.asks(1, 1, "a", 5), ["a"]);
    assert_eq!(world.asks(1, 2, "b", 5), ["b"]);
}

#[test]
fn coflows_are_paced_by_their_order_where_they_meet() {
    let mut world = World::new("coflow");
    let paces = |world: &mut World| {
        world.steps.tick(Nanos(S));
        let pace = |(node, message)| match message {
            ToAgent::Pace { permille, .. } => Some((node, permille)),
            _ => None,
        };
        world.steps.take_messages().into_iter().filter_map(pace).collect::<Vec<(String, u16)>>()
    };
    for (id, node, alone_s) in [(1, "a", 9), (4, "d", 9)] {
        world.steps.asks(Nanos(S), id, &owner(node), alone_s * S);
    }
    assert!(paces(&mut world).is_empty(), "nobody is in the way");
    world.steps.asks(Nanos(S), 2, &owner("b"), 2 * S);
    assert_eq!(paces(&mut world), [("a".to_owned(), BEHIND_PERMILLE)]);
    world.steps.asks(Nanos(S), 3, &owner("c"), 5 * S);
    assert_eq!(paces(&mut world), [("c".to_owned(), BEHIND_PERMILLE)]);
    // The first has said that it has nearly ended.
    world.steps.changed(Nanos(S), 1, &owner("a"), true, 9 * S);
    world.steps.left(Nanos(S), 1, S / 1000);
    world.steps.changed(Nanos(S), 2, &owner("b"), false, 0);
    assert_eq!(paces(&mut world), [("a".to_owned(), 1000)]);
    // One that ends behind others writes freely from then on.
    world.steps.changed(Nanos(S), 3, &owner("c"), false, 0);
    assert_eq!(paces(&mut world), [("c".to_owned(), 1000)]);
}

#[test]
fn names_of_servers_are_numbers_while_they_are_used() {
    let mut servers = Servers::default();
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<String>>();
    assert_eq!(servers.take(&names(&["x", "y"])), [0, 1]);
    assert_eq!(servers.take(&names(&["y", "z"])), [1, 2]);
    servers.release(&names(&["x", "y"]));
    assert_eq!(servers.take(&names(&["w", "y"])), [0, 1]);
    let many: Vec<String> = (0..2 * SERVERS_MAX).map(|i| format!("s{i}")).collect();
    assert!(servers.take(&many).iter().all(|&number| number < SERVERS_MAX));
}
