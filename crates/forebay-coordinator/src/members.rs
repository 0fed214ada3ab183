//! Who is in the cluster: a machine without sockets and without a clock.
//!
//! A node is a member from its join until it says that it goes, has been silent for three
//! heartbeats, or another process of its name has joined. Every change makes a new epoch (term,
//! number). The term is the start of the coordinator, so that a new coordinator's epochs are others
//! than the old one's without anything being written down. A new coordinator publishes nothing for
//! two heartbeats: agents come back within that time, and a view that grew node by node would move
//! every extent back and forth.
//!
//! A connection that breaks does not end a membership: its agent comes back, or falls silent. So a
//! coordinator's or a network's hiccup moves no extent. And what the coordinator itself has slept
//! through is held against nobody ([`Members::forgive`]).
//!
//! An elected coordinator knows the names of the members before it. When all of them have joined,
//! none listens to the old one any more, and there is nothing to wait for.

use forebay_policy::machine::Nanos;
use forebay_wire::{ClusterView, Epoch, Health, NodeInfo, Role};
use std::collections::{BTreeMap, BTreeSet};

/// Names one connection of an agent.
pub type Session = u64;

/// A process by its start, and the number of its connection.
pub type Incarnation = (u64, u64);

/// The times of a membership, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time between heartbeats.
    pub heartbeat_ns: u64,
    /// Time without publishing after the start; 0 where nobody else can join.
    pub grace_ns: u64,
    /// Time between two views: changes within it are published together.
    pub batch_ns: u64,
    /// Added to `batch_ns` for each member. A view is as long as there are members and goes to each
    /// of them, so that views at a fixed pace would take a coordinator of a thousand nodes that all
    /// start at the same time a whole core.
    pub batch_per_member_ns: u64,
}

/// Heartbeats that may be missed.
const MISSED_MAX: u64 = 3;

impl Timing {
    /// A heartbeat a second, two of them for agents to come back, views every 100 ms (600 ms with a
    /// thousand members).
    pub const DEFAULT: Timing = Timing {
        heartbeat_ns: 1_000_000_000,
        grace_ns: 2_000_000_000,
        batch_ns: 100_000_000,
        batch_per_member_ns: 500_000,
    };

    /// Silence that ends a membership.
    pub fn silence_ns(&self) -> u64 {
        MISSED_MAX * self.heartbeat_ns
    }
}

/// A member.
#[derive(Clone, Debug)]
pub struct Member {
    /// As it describes itself.
    pub info: NodeInfo,
    /// Which process of that name, and which connection of it: later ones are greater.
    pub incarnation: Incarnation,
    /// The connection it speaks on.
    pub session: Session,
    /// When it was last heard.
    pub heard: Nanos,
    /// Bytes of cached pages, as it reported last.
    pub resident_bytes: u64,
    /// Bytes read from the PFS since its start, as it reported last.
    pub fetched_bytes: u64,
    /// Its clock less ours in milliseconds, and the rest of its last report.
    pub health: Option<(i64, Box<Health>)>,
}

/// What became of a join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Joined {
    /// It is a member. An earlier connection of that name is to be closed.
    Member {
        /// The earlier connection.
        replaces: Option<Session>,
    },
    /// It is a member already, by a later connection of the same process.
    Superseded,
    /// It is not, for this reason.
    Refused(String),
}

/// See the module.
#[derive(Debug)]
pub struct Members {
    timing: Timing,
    started: Nanos,
    epoch: Epoch,
    members: BTreeMap<String, Member>,
    by_session: BTreeMap<Session, String>,
    changed: bool,
    published: Option<Nanos>,
    /// Nobody's silence is too long before this. Not everybody is looked at after every heartbeat.
    nobody_silent_before: Nanos,
    /// Members of the coordinator before that have not come back; `None`: nobody knows them.
    missing: Option<BTreeSet<String>>,
    /// All have come back, or have had the time to.
    is_settled: bool,
    /// Nodes that will join.
    announced: BTreeSet<String>,
    /// There are other names than those taken last.
    has_other_names: bool,
    /// Nodes that are missed, by name.
    lost: BTreeMap<String, Lost>,
}

/// A member that went without a word and has not come back, or a node that may not join.
#[derive(Clone, Debug)]
pub struct Lost {
    /// What it is for.
    pub role: Role,
    /// When it was last heard.
    pub heard: Nanos,
    /// Its mounts and units of placement, if others have other ones.
    pub extents: Vec<(String, u64)>,
}

/// How long such a node is missed, and how many are.
const LOST_NS: u64 = 24 * 3600 * 1_000_000_000;
const LOST_MAX: usize = 1000;

impl Members {
    /// A membership without members. `term` is the coordinator's start in milliseconds since 1970,
    /// `now` the same moment on the driver's clock.
    pub fn new(term: u64, now: Nanos, timing: Timing) -> Self {
        Members {
            timing,
            started: now,
            epoch: Epoch { term, number: 0 },
            members: BTreeMap::new(),
            by_session: BTreeMap::new(),
            changed: false,
            published: None,
            nobody_silent_before: Nanos(u64::MAX),
            missing: None,
            is_settled: false,
            announced: BTreeSet::new(),
            has_other_names: false,
            lost: BTreeMap::new(),
        }
    }

    /// Nodes that were lost within the last day, by name.
    pub fn lost(&self, now: Nanos) -> impl Iterator<Item = (&String, &Lost)> {
        self.lost.iter().filter(move |(_, lost)| now.saturating_since(lost.heard) < LOST_NS)
    }

    /// Notes who were the members of the coordinator before.
    pub fn were(&mut self, names: BTreeSet<String>) {
        // Where nobody was, as many may come as at the first start.
        self.missing = Some(names).filter(|names| !names.is_empty());
    }

    /// Whether the next coordinator will know of the node: it is a member, or was one. If not, its
    /// name is among those taken next.
    pub fn announce(&mut self, name: &str) -> bool {
        let was_one = self.missing.as_ref().is_some_and(|missing| missing.contains(name));
        if was_one || self.members.contains_key(name) {
            return true;
        }
        self.announced.insert(name.to_owned());
        self.has_other_names = true;
        false
    }

    /// The names of all nodes that may listen to this coordinator or the one before, if they are
    /// others than those taken last.
    pub fn take_names(&mut self) -> Option<BTreeSet<String>> {
        if !std::mem::take(&mut self.has_other_names) {
            return None;
        }
        let missing = self.missing.iter().flatten();
        Some(self.members.keys().chain(missing).chain(&self.announced).cloned().collect())
    }

    /// Whether everybody has come back, or has had the time to. From then on nobody is missed.
    pub fn settle(&mut self, now: Nanos) -> bool {
        if !self.is_settled && now >= self.settled_at() {
            self.is_settled = true;
            let missing = self.missing.take().unwrap_or_default();
            self.has_other_names |= !missing.is_empty();
            // What they are for, only they know.
            let lost = Lost { role: Role::default(), heard: self.started, extents: Vec::new() };
            let missing = missing.into_iter().map(|name| (name, lost.clone()));
            self.lost.extend(missing.take(LOST_MAX));
        }
        self.is_settled
    }

    /// When [`Members::settle`] has waited for long enough.
    pub fn settled_at(&self) -> Nanos {
        let is_complete = self.is_settled || self.missing.as_ref().is_some_and(BTreeSet::is_empty);
        self.started + if is_complete { 0 } else { self.timing.grace_ns }
    }

    /// Notes that an announced node does not join.
    pub fn retract(&mut self, name: &str) {
        self.has_other_names |= self.announced.remove(name);
    }

    /// The times that it observes.
    pub fn timing(&self) -> Timing {
        self.timing
    }

    /// Takes in a node that joins, or comes back on another connection.
    pub fn join(&mut self, now: Nanos, session: Session, info: NodeInfo, incarnation: Incarnation) -> Joined {
        let known = self.members.get(&info.name).map(|m| m.incarnation);
        if known.is_some_and(|known| known.0 == incarnation.0 && known > incarnation) {
            return Joined::Superseded;
        }
        if let Err(why) = self.may_join(now, &info, incarnation) {
            return Joined::Refused(why);
        }
        let name = info.name.clone();
        if let Some(missing) = &mut self.missing {
            missing.remove(&name);
        }
        self.announced.remove(&name);
        self.lost.remove(&name);
        let member = Member {
            info,
            incarnation,
            session,
            heard: now,
            resident_bytes: 0,
            fetched_bytes: 0,
            health: None,
        };
        self.nobody_silent_before = self.nobody_silent_before.min(now + (self.timing.silence_ns() + 1));
        self.by_session.insert(session, name.clone());
        let old = self.members.insert(name.clone(), member);
        self.changed |= old.as_ref().is_none_or(|o| o.info != self.members[&name].info);
        self.has_other_names |= old.is_none();
        let replaces = old.map(|o| o.session).filter(|s| *s != session);
        if let Some(replaced) = replaces {
            self.by_session.remove(&replaced);
        }
        Joined::Member { replaces }
    }

    /// Notes a node that is refused for its extents: it is not a member, and people look for it.
    fn miss_refused(&mut self, now: Nanos, info: &NodeInfo) {
        let has_room = self.lost.len() < LOST_MAX || self.lost.contains_key(&info.name);
        if has_room && !self.members.contains_key(&info.name) {
            let lost = Lost { role: info.role, heard: now, extents: extents(info) };
            self.lost.insert(info.name.clone(), lost);
        }
    }

    fn may_join(&mut self, now: Nanos, info: &NodeInfo, incarnation: Incarnation) -> Result<(), String> {
        if info.name.is_empty() || info.mounts.len() != info.extent_bytes.len() {
            return Err("the node's description does not match this protocol".into());
        }
        if self.members.get(&info.name).is_some_and(|m| m.incarnation > incarnation) {
            return Err(format!(
                "a later process has joined as {:?}; every node needs a name of its own (cluster.node)",
                info.name
            ));
        }
        if info.mounts.iter().collect::<BTreeSet<_>>().len() != info.mounts.len() {
            return Err("the node names a mount twice".into());
        }
        if self.published.is_none() {
            // Who is first is chance: the majority decides, at the first view.
            return Ok(());
        }
        for (mount, bytes) in info.mounts.iter().zip(&info.extent_bytes) {
            let mut others = self.members.values().filter(|m| m.info.name != info.name);
            if let Some(other) = others.find(|o| extent_bytes(&o.info, mount).is_some_and(|b| b != *bytes)) {
                let why = format!(
                    "mount {mount:?} has extents of {bytes} bytes here and of {} at {:?}; mount.extent_size must be the same on \
                     every node",
                    extent_bytes(&other.info, mount).unwrap_or_default(),
                    other.info.name
                );
                self.miss_refused(now, info);
                return Err(why);
            }
        }
        Ok(())
    }

    /// Notes what a member reports of its node.
    pub fn note_health(&mut self, now: Nanos, session: Session, health: Box<Health>) {
        let clock_ms = health.clock_ns / 1_000_000 - (now.0 / 1_000_000) as i64;
        if let Some(member) = self.by_session.get(&session).and_then(|name| self.members.get_mut(name)) {
            member.health = Some((clock_ms, health));
        }
    }

    /// Notes that a node is alive, and its weight in the placement. Returns false if the connection
    /// belongs to no member (any more).
    pub fn heartbeat(
        &mut self,
        now: Nanos,
        session: Session,
        weight_bytes: u64,
        resident_bytes: u64,
        fetched_bytes: u64,
    ) -> bool {
        let Some(member) = self.by_session.get(&session).and_then(|name| self.members.get_mut(name)) else {
            return false;
        };
        member.heard = now;
        member.resident_bytes = resident_bytes;
        member.fetched_bytes = fetched_bytes;
        if member.info.capacity_bytes != weight_bytes {
            member.info.capacity_bytes = weight_bytes;
            self.changed = true;
        }
        true
    }

    /// Ends the membership of the node that speaks on `session`. Returns its name.
    pub fn leave(&mut self, session: Session) -> Option<String> {
        let name = self.by_session.remove(&session)?;
        self.members.remove(&name);
        self.changed = true;
        self.has_other_names = true;
        Some(name)
    }

    /// Ends the membership of those who have been silent for too long; returns who they were, with
    /// their connections.
    pub fn expire(&mut self, now: Nanos) -> Vec<(String, Session)> {
        if now < self.nobody_silent_before {
            return Vec::new();
        }
        let limit_ns = self.timing.silence_ns();
        let silent = self.members.iter().filter(|(_, m)| now.saturating_since(m.heard) > limit_ns);
        let gone: Vec<_> = silent.map(|(name, m)| (name.clone(), m.session)).collect();
        self.lost.retain(|_, lost| now.saturating_since(lost.heard) < LOST_NS);
        for (name, session) in &gone {
            if let Some(member) = self.members.remove(name).filter(|_| self.lost.len() < LOST_MAX) {
                let lost = Lost { role: member.info.role, heard: member.heard, extents: Vec::new() };
                self.lost.insert(name.clone(), lost);
            }
            self.by_session.remove(session);
        }
        self.changed |= !gone.is_empty();
        self.has_other_names |= !gone.is_empty();
        let next = self.members.values().map(|m| m.heard + (limit_ns + 1)).min();
        self.nobody_silent_before = next.unwrap_or(Nanos(u64::MAX));
        gone
    }

    /// Before the first view is published at `now`: ends the membership of those whose extents of a
    /// mount have another size than most nodes have. Returns who they were, with their connections;
    /// when they come again they get the reason.
    pub fn outvote(&mut self, now: Nanos) -> Vec<(String, Session)> {
        if self.published.is_some() || now < self.publish_at() {
            return Vec::new();
        }
        let mut votes: BTreeMap<&str, BTreeMap<u64, usize>> = BTreeMap::new();
        for info in self.members.values().map(|m| &m.info) {
            for (mount, bytes) in info.mounts.iter().zip(&info.extent_bytes) {
                *votes.entry(mount).or_default().entry(*bytes).or_default() += 1;
            }
        }
        let wanted = |mount: &String| {
            votes[mount.as_str()]
                .iter()
                .max_by_key(|(bytes, count)| (**count, **bytes))
                .map(|(bytes, _)| *bytes)
        };
        let other = |info: &NodeInfo| {
            info.mounts.iter().zip(&info.extent_bytes).any(|(mount, bytes)| wanted(mount) != Some(*bytes))
        };
        let gone: Vec<_> = self
            .members
            .iter()
            .filter(|(_, m)| other(&m.info))
            .map(|(name, m)| (name.clone(), m.session))
            .collect();
        for (name, session) in &gone {
            self.members.remove(name);
            self.by_session.remove(session);
        }
        self.has_other_names |= !gone.is_empty();
        gone
    }

    /// Notes that the coordinator itself did not run for `ns`: nobody could be heard in that time.
    pub fn forgive(&mut self, ns: u64) {
        for member in self.members.values_mut() {
            member.heard = member.heard + ns;
        }
    }

    /// The view to publish now, if there is one: something has changed, agents have had the time to
    /// come back, and the last view is not too fresh.
    pub fn publish(&mut self, now: Nanos) -> Option<ClusterView> {
        if !self.changed || now < self.publish_at() {
            return None;
        }
        self.changed = false;
        self.published = Some(now);
        self.epoch.number += 1;
        Some(self.view())
    }

    fn publish_at(&self) -> Nanos {
        let grown_ns = self.timing.batch_per_member_ns.saturating_mul(self.members.len() as u64);
        let batch_ns = self.timing.batch_ns.saturating_add(grown_ns);
        match self.published {
            Some(last) => last + batch_ns,
            None => self.settled_at(),
        }
    }

    /// Whether a view has been published: before, nobody knows who owns what.
    pub fn has_published(&self) -> bool {
        self.published.is_some()
    }

    /// The members now, under the epoch last published.
    pub fn view(&self) -> ClusterView {
        ClusterView { epoch: self.epoch, nodes: self.members.values().map(|m| m.info.clone()).collect() }
    }

    /// The epoch last published.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The members by name.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    /// The member that speaks on `session`.
    pub fn by_session(&self, session: Session) -> Option<&Member> {
        self.members.get(self.by_session.get(&session)?)
    }

    /// The connection of the member called `name`.
    pub fn session_of(&self, name: &str) -> Option<Session> {
        self.members.get(name).map(|m| m.session)
    }

    /// The connections of members that serve no peers, but `except`.
    pub fn without_address(&self, except: Session) -> Vec<Session> {
        let others = self.members.values().filter(|m| m.session != except && m.info.address.is_empty());
        others.map(|m| m.session).collect()
    }

    /// When there is something to do next.
    pub fn next_deadline(&self) -> Option<Nanos> {
        let silent = (self.nobody_silent_before.0 < u64::MAX).then_some(self.nobody_silent_before);
        let publish = self.changed.then(|| self.publish_at());
        silent.into_iter().chain(publish).min()
    }
}

/// The mounts of a node, and its units of placement there in bytes.
pub fn extents(info: &NodeInfo) -> Vec<(String, u64)> {
    info.mounts.iter().cloned().zip(info.extent_bytes.iter().copied()).collect()
}

/// Unit of placement of the mount labelled `mount` at that node.
pub fn extent_bytes(info: &NodeInfo, mount: &str) -> Option<u64> {
    let at = info.mounts.iter().position(|m| m == mount)?;
    info.extent_bytes.get(at).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn node(name: &str) -> NodeInfo {
        NodeInfo {
            name: name.into(),
            capacity_bytes: 1 << 30,
            mounts: vec!["pfs".into()],
            extent_bytes: vec![128 << 20],
            ..NodeInfo::default()
        }
    }

    fn at(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }

    fn names(view: &ClusterView) -> Vec<&str> {
        view.nodes.iter().map(|n| n.name.as_str()).collect()
    }

    #[test]
    fn the_first_view_waits_for_those_who_come_back() {
        let mut m = Members::new(7, at(0), Timing::DEFAULT);
        m.join(at(10), 1, node("a"), (1, 0));
        assert_eq!(m.publish(at(1_999)), None);
        m.join(at(1_500), 2, node("b"), (1, 0));
        let view = m.publish(at(2_000)).unwrap();
        assert_eq!((names(&view), view.epoch), (vec!["a", "b"], Epoch { term: 7, number: 1 }));
        assert_eq!(m.publish(at(9_000)), None, "nothing has changed");
    }

    #[test]
    fn three_missed_heartbeats_end_a_membership_and_a_broken_connection_does_not() {
        let mut m = Members::new(7, at(0), Timing::DEFAULT);
        m.join(at(0), 1, node("a"), (1, 0));
        m.join(at(0), 2, node("b"), (1, 0));
        assert!(m.publish(at(2_000)).is_some());
        assert!(m.heartbeat(at(2_500), 2, 1 << 30, 0, 0));
        assert!(m.expire(at(3_000)).is_empty());
        assert_eq!(m.expire(at(3_001)), [("a".to_owned(), 1)]);
        assert_eq!(names(&m.publish(at(3_001)).unwrap()), ["b"]);
        assert!(!m.heartbeat(at(3_002), 1, 1 << 30, 0, 0), "it has to join again");
        assert_eq!(m.next_deadline(), Some(Nanos(at(5_500).0 + 1)));
        // Back on another connection within the time: no change that anybody would see.
        assert_eq!(m.join(at(5_000), 3, node("b"), (1, 0)), Joined::Member { replaces: Some(2) });
        assert_eq!(m.publish(at(6_000)), None);
    }

    #[test]
    fn the_later_process_of_a_name_wins_and_a_leave_acts_at_once() {
        let mut m = Members::new(7, at(0), Timing { grace_ns: 0, ..Timing::DEFAULT });
        m.join(at(0), 1, node("a"), (10, 0));
        assert_eq!(m.join(at(1), 2, node("a"), (20, 0)), Joined::Member { replaces: Some(1) });
        assert!(
            matches!(m.join(at(2), 3, node("a"), (10, 0)), Joined::Refused(why) if why.contains("cluster.node"))
        );
        assert_eq!(m.leave(1), None, "the replaced connection speaks for nobody");
        assert_eq!(m.leave(2).as_deref(), Some("a"));
        assert_eq!(names(&m.publish(at(3)).unwrap()), Vec::<&str>::new());
    }

    #[test]
    fn of_two_connections_of_one_process_the_later_one_counts_whichever_is_read_first() {
        let mut m = Members::new(7, at(0), Timing { grace_ns: 0, ..Timing::DEFAULT });
        assert_eq!(m.join(at(0), 1, node("a"), (10, 3)), Joined::Member { replaces: None });
        assert_eq!(m.join(at(1), 2, node("a"), (10, 2)), Joined::Superseded);
        assert!(m.heartbeat(at(2), 1, 1 << 30, 0, 0), "the later one was thrown out for an earlier one");
        assert_eq!(m.join(at(3), 4, node("a"), (10, 4)), Joined::Member { replaces: Some(1) });
        assert_eq!(
            m.join(at(4), 5, node("a"), (11, 0)),
            Joined::Member { replaces: Some(4) },
            "another process"
        );
    }

    #[test]
    fn nodes_must_agree_on_the_unit_of_placement() {
        let mut m = Members::new(7, at(0), Timing { grace_ns: 0, ..Timing::DEFAULT });
        m.join(at(0), 1, node("a"), (1, 0));
        assert!(m.publish(at(0)).is_some());
        let other = NodeInfo { extent_bytes: vec![64 << 20], ..node("b") };
        let refused = m.join(at(0), 2, other.clone(), (1, 0));
        assert!(matches!(refused, Joined::Refused(why) if why.contains("mount.extent_size")));
        let missed = |m: &Members| {
            m.lost(at(0)).map(|(name, lost)| (name.clone(), lost.extents.clone())).collect::<Vec<_>>()
        };
        assert_eq!(missed(&m), [("b".to_owned(), extents(&other))]);
        m.leave(1);
        assert_eq!(m.join(at(0), 2, other, (1, 0)), Joined::Member { replaces: None });
        assert_eq!(missed(&m), []);
    }

    #[test]
    fn the_first_who_comes_does_not_decide_on_the_unit_of_placement() {
        let mut m = Members::new(7, at(0), Timing::DEFAULT);
        let wrong = NodeInfo { extent_bytes: vec![64 << 20], ..node("a") };
        m.join(at(0), 1, wrong.clone(), (1, 0));
        m.join(at(100), 2, node("b"), (1, 0));
        m.join(at(100), 3, node("c"), (1, 0));
        assert!(m.outvote(at(1_999)).is_empty(), "others may come yet");
        assert_eq!(m.outvote(at(2_000)), [("a".to_owned(), 1)]);
        assert_eq!(names(&m.publish(at(2_000)).unwrap()), ["b", "c"]);
        assert!(!m.heartbeat(at(2_100), 1, 1 << 30, 0, 0));
        assert!(
            matches!(m.join(at(2_200), 4, wrong, (1, 1)), Joined::Refused(why) if why.contains("mount.extent_size"))
        );
        assert!(m.outvote(at(9_000)).is_empty());
    }

    #[test]
    fn a_coordinator_that_slept_throws_nobody_out() {
        let mut m = Members::new(7, at(0), Timing::DEFAULT);
        m.join(at(0), 1, node("a"), (1, 0));
        m.forgive(60 * SECOND);
        assert!(m.expire(at(61_000)).is_empty());
        assert_eq!(m.expire(at(63_001)).len(), 1);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Join(u8, u64),
        Beat(u8),
        Leave(u8),
        Wait(u64),
        Restart,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (0u8..6, 1u64..4).prop_map(|(n, i)| Op::Join(n, i)),
            6 => (0u8..6).prop_map(Op::Beat),
            1 => (0u8..6).prop_map(Op::Leave),
            6 => (1u64..1500).prop_map(Op::Wait),
            1 => Just(Op::Restart),
        ]
    }

    proptest! {
        /// Over any history, two coordinators in sequence included: epochs only grow, every
        /// published member was heard within the silence allowed, views are apart by the batch
        /// time, and a name stands once.
        #[test]
        fn epochs_only_grow_and_members_are_alive(ops in prop::collection::vec(op(), 1..200)) {
            let timing = Timing::DEFAULT;
            let (mut now, mut session, mut term) = (at(0), 0, 1000);
            let mut members = Members::new(term, now, timing);
            let mut sessions: BTreeMap<u8, Session> = BTreeMap::new();
            let mut last: Option<(Epoch, Nanos)> = None;
            for op in ops {
                match op {
                    Op::Join(n, incarnation) => {
                        session += 1;
                        if let Joined::Member { .. } = members.join(now, session, node(&format!("n{n}")), (incarnation, session)) {
                            sessions.insert(n, session);
                        }
                    }
                    Op::Beat(n) => {
                        if let Some(s) = sessions.get(&n) {
                            members.heartbeat(now, *s, 1 << 30, 0, 0);
                        }
                    }
                    Op::Leave(n) => {
                        if let Some(s) = sessions.remove(&n) {
                            members.leave(s);
                        }
                    }
                    Op::Wait(ms) => now = now + ms * 1_000_000,
                    Op::Restart => {
                        term += 1;
                        members = Members::new(term, now, timing);
                        sessions.clear();
                        last = last.map(|(epoch, _)| (epoch, Nanos(0)));
                    }
                }
                members.expire(now);
                if let Some(view) = members.publish(now) {
                    if let Some((epoch, when)) = last {
                        prop_assert!(view.epoch > epoch);
                        prop_assert!(when.0 == 0 || now.0 >= when.0 + timing.batch_ns);
                    }
                    prop_assert!(view.nodes.windows(2).all(|w| w[0].name < w[1].name));
                    prop_assert!(members.members().all(|m| now.saturating_since(m.heard) <= timing.silence_ns()));
                    last = Some((view.epoch, now));
                }
                if let Some(deadline) = members.next_deadline() {
                    prop_assert!(deadline > now);
                }
            }
        }
    }
}
