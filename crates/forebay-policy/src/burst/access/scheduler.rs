//! The machine: queue, leases and nodes.
//!
//! Decisions are taken when the time comes, not in the middle of an event: all that happens at the
//! same moment is heard first. So ten steps that arrive together are ordered together, and two
//! steps that end together free their nodes together, whatever the order of the messages.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use serde::Serialize;

use super::{
    Action, Arranged, Config, Event, Holder, News, NodeSet, Pending, Policy, Reason, Scope, StepId, Token,
};
use crate::machine::{Machine, Nanos};

/// Times that are told and times that pass differ by roundings.
const ROUNDING_NS: u64 = 1_000_000;

/// A guest may take at most this part of what each holder of its nodes has left: one in so many.
const GUEST_RATIO: u64 = 8;

/// A step that holds a token.
#[derive(Clone, Debug, Serialize)]
struct Active {
    step: StepId,
    nodes: NodeSet,
    share: Option<f64>,
    until: Nanos,
    granted: Nanos,
    /// What is left to write in ns at full bandwidth, as of `updated`.
    left_ns: u64,
    updated: Nanos,
    /// The guest for which it gives way, or the hosts that give way for it.
    guest: Option<Token>,
    hosts: Vec<Token>,
}

impl Active {
    fn settle(&mut self, now: Nanos) {
        let written = now.saturating_since(self.updated) as f64 * self.share.unwrap_or(1.0);
        self.left_ns = self.left_ns.saturating_sub(written as u64);
        self.updated = now;
    }
}

/// What a person or a test may look at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Snapshot {
    /// Steps that wait, in the order in which they are looked at.
    pub pending: Vec<StepId>,
    /// Token, step and share of bandwidth of those that write.
    pub active: Vec<(Token, StepId, Option<f64>)>,
    /// How long a step may be made to wait before nodes are kept free for it, in ns; the most there
    /// is if the policy has no bound.
    pub longest_wait_ns: u64,
}

/// The access scheduler.
pub struct Access {
    config: Config,
    policy: Box<dyn Policy>,
    pending: Vec<Pending>,
    active: BTreeMap<Token, Active>,
    leases: BTreeSet<(Nanos, Token)>,
    /// Nodes of holders, and of guests among them.
    busy: NodeSet,
    guests: NodeSet,
    next_seq: u64,
    next_token: Token,
    decide_at: Option<Nanos>,
    news: News,
    /// The order that nodes were last given.
    ranked: Vec<Token>,
}

impl Access {
    /// A scheduler that follows `policy`.
    pub fn new(policy: Box<dyn Policy>, config: Config) -> Self {
        let nothing = NodeSet::empty(config.nodes);
        Access {
            config,
            policy,
            pending: Vec::new(),
            active: BTreeMap::new(),
            leases: BTreeSet::new(),
            busy: nothing.clone(),
            guests: nothing,
            next_seq: 0,
            next_token: 1,
            decide_at: None,
            news: News { arrived: false, changed: false },
            ranked: Vec::new(),
        }
    }

    fn enqueue(&mut self, now: Nanos, step: StepId, nodes: &[u32], alone_ns: u64) {
        let key = self.policy.key(now, alone_ns);
        let at = self.pending.iter().position(|p| p.key > key).unwrap_or(self.pending.len());
        let nodes = NodeSet::of(self.config.nodes, nodes);
        self.pending.insert(at, Pending { step, nodes, alone_ns, arrived: now, seq: self.next_seq, key });
        self.next_seq += 1;
        self.news = News { arrived: true, changed: true };
    }

    /// Takes the token back; nobody holds it afterwards. Unknown tokens are nothing: a holder may
    /// be late to hear of its loss.
    fn release(&mut self, now: Nanos, token: Token, out: &mut Vec<Action>) -> Option<StepId> {
        let gone = self.active.remove(&token)?;
        self.news.changed = true;
        self.leases.remove(&(gone.until, token));
        if self.policy.scope() == Scope::Ranked {
            self.policy.ends(now, token);
        }
        for host in gone.hosts {
            if let Some(h) = self.active.get_mut(&host) {
                h.settle(now);
                (h.guest, h.share) = (None, Some(1.0));
                out.push(Action::Share { token: host, share: 1.0 });
            }
        }
        if let Some(guest) = gone.guest {
            self.host_gone(now, guest, token, out);
        }
        self.count_nodes();
        self.decide_at = Some(now);
        Some(gone.step)
    }

    /// A guest whose last host has gone is a holder like any other.
    fn host_gone(&mut self, now: Nanos, token: Token, host: Token, out: &mut Vec<Action>) {
        let Some(guest) = self.active.get_mut(&token) else { return };
        guest.settle(now);
        guest.hosts.retain(|&h| h != host);
        if guest.hosts.is_empty() {
            guest.share = Some(1.0);
            out.push(Action::Share { token, share: 1.0 });
        }
    }

    /// Which nodes are held, counted anew: guests and hosts overlap, so taking a leaver's nodes
    /// away would be wrong.
    fn count_nodes(&mut self) {
        if !matches!(self.policy.scope(), Scope::Everything | Scope::Ranked) {
            self.busy.clear();
            self.guests.clear();
            for a in self.active.values() {
                self.busy.add(&a.nodes);
                if !a.hosts.is_empty() {
                    self.guests.add(&a.nodes);
                }
            }
        }
    }

    fn grant(
        &mut self,
        now: Nanos,
        p: Pending,
        share: Option<f64>,
        why: Reason,
        out: &mut Vec<Action>,
    ) -> Token {
        let token = self.next_token;
        self.next_token += 1;
        let until = now + self.config.lease_ns;
        self.leases.insert((until, token));
        let (step, left_ns) = (p.step, p.alone_ns);
        let active = Active {
            step,
            nodes: p.nodes,
            share,
            until,
            granted: now,
            left_ns,
            updated: now,
            guest: None,
            hosts: Vec::new(),
        };
        self.active.insert(token, active);
        out.push(Action::Grant { token, step, share, until, why });
        token
    }

    fn decide(&mut self, now: Nanos, out: &mut Vec<Action>) {
        match self.policy.scope() {
            Scope::Everything => {
                for p in core::mem::take(&mut self.pending) {
                    self.grant(now, p, None, Reason::Unscheduled, out);
                }
            }
            Scope::Ranked => self.rank(now, out),
            Scope::One if !self.active.is_empty() => {}
            scope => {
                self.active.values_mut().for_each(|a| a.settle(now));
                let holders: Vec<Holder> = self.active.values().map(|a| (&a.nodes, a.left_ns)).collect();
                let arranged = self.policy.arrange(now, &holders, &mut self.pending, self.news);
                self.news.changed = false;
                if arranged == Arranged::NotYet {
                    self.decide_at = Some(now);
                    return;
                }
                self.news.arrived = false;
                let most = if scope == Scope::One { 1 } else { usize::MAX };
                let reserved = self.admit(now, most, out);
                if let Some(share) = self.policy.guest_share() {
                    self.admit_guests(now, share, &reserved, out);
                }
            }
        }
    }

    /// Lets in all that wait, and orders them among those that write.
    fn rank(&mut self, now: Nanos, out: &mut Vec<Action>) {
        for p in core::mem::take(&mut self.pending) {
            self.policy.begins(self.next_token, &p);
            self.grant(now, p, None, Reason::Ranked, out);
        }
        let order = self.policy.rank(now);
        if order != self.ranked {
            self.ranked.clone_from(&order);
            out.push(Action::Rank { order });
        }
        self.decide_at = self.policy.next_overdue(now);
    }

    /// Whether `p` goes before all that are not overdue: it has been patient long enough, or if
    /// anything else were let in on its nodes it would wait longer than its policy allows.
    /// `longest_left_ns` is the most that any holder has left.
    fn is_overdue(&self, now: Nanos, p: &Pending, longest_left_ns: u64) -> bool {
        let waited_ns = now.saturating_since(p.arrived);
        let allowed_ns = self.policy.longest_wait_ns().saturating_add(ROUNDING_NS);
        if self.config.patience_ns != u64::MAX && waited_ns >= self.config.patience_ns {
            return true;
        }
        if waited_ns.saturating_add(longest_left_ns) <= allowed_ns {
            return false;
        }
        let on_them = self.active.values().filter(|a| a.nodes.overlaps(&p.nodes));
        let left_ns = on_them.map(|a| self.writes_for_ns(a)).max().unwrap_or(0);
        waited_ns.saturating_add(left_ns) > allowed_ns
    }

    fn longest_left_ns(&self) -> u64 {
        self.active.values().map(|a| self.writes_for_ns(a)).max().unwrap_or(0)
    }

    /// How long a holder will still write, in ns: a host ends later by what its guest writes, a
    /// guest has its share.
    fn writes_for_ns(&self, a: &Active) -> u64 {
        let guest_ns = a.guest.and_then(|g| self.active.get(&g)).map_or(0, |g| g.left_ns);
        let share = if a.guest.is_some() { 1.0 } else { a.share.unwrap_or(1.0) };
        (a.left_ns as f64 / share) as u64 + guest_ns
    }

    /// Indices of overdue steps by arrival.
    fn overdue(&self, now: Nanos) -> Vec<usize> {
        if self.config.patience_ns.min(self.policy.longest_wait_ns()) == u64::MAX {
            return Vec::new();
        }
        let left_ns = self.longest_left_ns();
        let all = 0..self.pending.len();
        let mut late: Vec<usize> = all.filter(|&i| self.is_overdue(now, &self.pending[i], left_ns)).collect();
        late.sort_unstable_by_key(|&i| self.pending[i].seq);
        late
    }

    /// Lets in what may run, at most `most` steps; returns the nodes that are kept free for an
    /// overdue step.
    fn admit(&mut self, now: Nanos, most: usize, out: &mut Vec<Action>) -> NodeSet {
        let mut reserved = NodeSet::empty(self.config.nodes);
        let mut taken = self.busy.clone();
        let mut chosen: Vec<(usize, Reason)> = Vec::new();
        let mut ahead = 0;
        let late = self.overdue(now);
        let mut is_late = late.clone();
        is_late.sort_unstable();
        for i in late {
            let p = &self.pending[i];
            if !p.nodes.overlaps(&taken) && chosen.len() < most {
                chosen.push((i, Reason::Overdue));
                taken.add(&p.nodes);
                continue;
            }
            // Only for the one that has waited longest are nodes kept free: for all of them it
            // would be most of the system, standing idle. The next in line has its turn after it.
            if reserved.is_empty() {
                reserved.add(&p.nodes);
                taken.add(&p.nodes);
            }
            ahead += 1;
        }
        let mut free = self.config.nodes - taken.len();
        for (i, p) in self.pending.iter().enumerate() {
            if chosen.len() == most || free == 0 {
                break;
            }
            if !p.nodes.overlaps(&taken) {
                taken.add(&p.nodes);
                free -= p.nodes.len();
                chosen.push((i, if ahead == 0 { Reason::First } else { Reason::NodesFree { ahead } }));
            } else if is_late.binary_search(&i).is_err() {
                ahead += 1;
            }
        }
        for (p, why) in self.take(&chosen) {
            self.busy.add(&p.nodes);
            self.grant(now, p, Some(1.0), why, out);
        }
        reserved
    }

    /// Takes the steps at the given indices out of the queue, in the order given.
    fn take<T: Copy>(&mut self, chosen: &[(usize, T)]) -> Vec<(Pending, T)> {
        // The usual few are moved out one by one; for many one pass over the queue is cheaper.
        if chosen.len() <= 4 {
            let mut order: Vec<usize> = (0..chosen.len()).collect();
            order.sort_unstable_by_key(|&k| core::cmp::Reverse(chosen[k].0));
            let mut taken: Vec<Option<(Pending, T)>> = chosen.iter().map(|_| None).collect();
            order.into_iter().for_each(|k| taken[k] = Some((self.pending.remove(chosen[k].0), chosen[k].1)));
            return taken.into_iter().flatten().collect();
        }
        let mut slots: Vec<Option<Pending>> =
            core::mem::take(&mut self.pending).into_iter().map(Some).collect();
        let taken = chosen.iter().filter_map(|&(i, t)| slots[i].take().map(|p| (p, t))).collect();
        self.pending = slots.into_iter().flatten().collect();
        taken
    }

    /// Lets in short steps beside holders that have much more to do and began before they came:
    /// those that were there already have their place in the plan, and a guest would upset it. A
    /// holder has one guest at a time, a guest none.
    fn admit_guests(&mut self, now: Nanos, share: f64, reserved: &NodeSet, out: &mut Vec<Action>) {
        let longest = self.active.values().map(|a| a.left_ns).max().unwrap_or(0);
        let mut at = 0;
        while at < self.pending.len() {
            let p = &self.pending[at];
            let short = p.alone_ns.saturating_mul(GUEST_RATIO) <= longest;
            if !short || p.nodes.overlaps(&self.guests) || p.nodes.overlaps(reserved) {
                at += 1;
                continue;
            }
            let on_them = self.active.iter().filter(|(_, a)| a.nodes.overlaps(&p.nodes));
            let hosts: Vec<(u64, Token)> = on_them.map(|(&t, a)| (a.left_ns, t)).collect();
            let willing = |&(left_ns, t): &(u64, Token)| {
                let a = &self.active[&t];
                let long = left_ns >= p.alone_ns.saturating_mul(GUEST_RATIO);
                long && a.granted < p.arrived && a.guest.is_none() && a.hosts.is_empty()
            };
            let Some(&(_, least)) = hosts.iter().min().filter(|_| hosts.iter().all(willing)) else {
                at += 1;
                continue;
            };
            let p = self.pending.remove(at);
            for &(_, host) in &hosts {
                if let Some(h) = self.active.get_mut(&host) {
                    h.share = Some(1.0 - share);
                    out.push(Action::Share { token: host, share: 1.0 - share });
                }
            }
            let token = self.grant(now, p, Some(share), Reason::Guest { host: least }, out);
            self.link(token, &hosts);
            self.count_nodes();
        }
    }

    fn link(&mut self, guest: Token, hosts: &[(u64, Token)]) {
        for &(_, host) in hosts {
            if let Some(h) = self.active.get_mut(&host) {
                h.guest = Some(guest);
            }
        }
        if let Some(g) = self.active.get_mut(&guest) {
            g.hosts = hosts.iter().map(|h| h.1).collect();
        }
    }
}

impl Machine for Access {
    type Event = Event;
    type Action = Action;
    type Snapshot = Snapshot;

    fn handle(&mut self, now: Nanos, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Arrives { step, nodes, alone_ns } => {
                self.enqueue(now, step, &nodes, alone_ns);
                self.decide_at = Some(now);
            }
            Event::Leaves { step } => {
                self.pending.retain(|p| p.step != step);
                self.news.changed = true;
                // Nodes may have been kept free for it.
                self.decide_at = Some(now);
            }
            Event::Done { token } => {
                self.release(now, token, out);
            }
            Event::Renew { token } => {
                if let Some(a) = self.active.get_mut(&token) {
                    self.leases.remove(&(a.until, token));
                    a.until = now + self.config.lease_ns;
                    self.leases.insert((a.until, token));
                    out.push(Action::Renewed { token, until: a.until });
                }
            }
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let lease = self.leases.first().map(|l| l.0);
        [self.decide_at, lease].into_iter().flatten().min()
    }

    fn on_deadline(&mut self, now: Nanos, out: &mut Vec<Action>) {
        while let Some(&(_, token)) = self.leases.first().filter(|l| l.0 <= now) {
            if let Some(step) = self.release(now, token, out) {
                out.push(Action::Revoke { token, step });
            }
        }
        if self.decide_at.take_if(|at| *at <= now).is_some() {
            self.decide(now, out);
        }
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            pending: self.pending.iter().map(|p| p.step).collect(),
            active: self.active.iter().map(|(&t, a)| (t, a.step, a.share)).collect(),
            longest_wait_ns: self.policy.longest_wait_ns(),
        }
    }
}
