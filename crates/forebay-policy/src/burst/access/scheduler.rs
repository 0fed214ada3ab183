//! The machine: queue, leases and nodes.
//!
//! Decisions are made when the time comes, not in the middle of an event: all events of the same
//! moment are received first. So ten steps that arrive together are ordered together, and two steps
//! that end together free their nodes together, whatever the order of the messages.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use serde::Serialize;

use super::{Action, Config, Event, NodeSet, Pending, Policy, Reason, Scope, StepId, Token};
use crate::machine::{Machine, Nanos};

/// A step that holds a token.
#[derive(Clone, Debug, Serialize)]
struct Active {
    step: StepId,
    nodes: NodeSet,
    until: Nanos,
    /// When it begins to overstay.
    overstays: Nanos,
}

/// Least time for which a step holds its token before it overstays, in ns: short steps are mostly
/// waits for messages.
const OVERSTAY_MIN_NS: u64 = 1_000_000_000;

/// The state of the scheduler, for people and tests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Snapshot {
    /// Waiting steps, in the order in which they are considered.
    pub pending: Vec<StepId>,
    /// Token and step of those that write.
    pub active: Vec<(Token, StepId)>,
}

/// The access scheduler.
pub struct Access {
    config: Config,
    policy: Box<dyn Policy>,
    pending: Vec<Pending>,
    active: BTreeMap<Token, Active>,
    leases: BTreeSet<(Nanos, Token)>,
    /// Nodes of holders, where steps exclude each other.
    busy: NodeSet,
    next_seq: u64,
    next_token: Token,
    decide_at: Option<Nanos>,
    /// The order that nodes were last given.
    ranked: Vec<Token>,
}

impl Access {
    /// A scheduler that follows `policy`.
    pub fn new(policy: Box<dyn Policy>, config: Config) -> Self {
        Access {
            busy: NodeSet::empty(config.nodes),
            config,
            policy,
            pending: Vec::new(),
            active: BTreeMap::new(),
            leases: BTreeSet::new(),
            next_seq: 0,
            next_token: 1,
            decide_at: None,
            ranked: Vec::new(),
        }
    }

    fn step(
        &mut self,
        now: Nanos,
        step: StepId,
        (nodes, period_ns): (&[u32], u64),
        alone_ns: u64,
    ) -> Pending {
        let key = self.policy.key(now, alone_ns);
        let nodes = match nodes {
            [] => NodeSet::all(self.config.nodes),
            nodes => NodeSet::of(self.config.nodes, nodes),
        };
        let nodes = self.policy.claims(nodes, period_ns);
        self.next_seq += 1;
        Pending { step, nodes, alone_ns, arrived: now, seq: self.next_seq - 1, key, stake: None }
    }

    fn enqueue(&mut self, step: Pending) {
        let at = self.pending.iter().position(|p| p.key > step.key).unwrap_or(self.pending.len());
        self.pending.insert(at, step);
    }

    /// Returns the steps that hold what a step waits for; none if it does not wait.
    pub fn holders_before(&self, step: StepId) -> Vec<StepId> {
        let Some(waits) = self.pending.iter().find(|p| p.step == step) else { return Vec::new() };
        let all = self.policy.scope() == Scope::One;
        let holds = |a: &&Active| all || a.nodes.overlaps(&waits.nodes);
        self.active.values().filter(holds).map(|a| a.step).collect()
    }

    /// Ends the grant of a token and returns its step. Unknown tokens are ignored: a holder may be
    /// late to learn of its loss.
    fn release(&mut self, now: Nanos, token: Token) -> Option<StepId> {
        let gone = self.active.remove(&token)?;
        self.leases.remove(&(gone.until, token));
        if self.policy.scope() == Scope::Ranked {
            self.policy.ends(now, token);
        }
        self.count_nodes();
        self.decide_at = Some(now);
        Some(gone.step)
    }

    /// Counts which nodes are held.
    fn count_nodes(&mut self) {
        if !matches!(self.policy.scope(), Scope::Everything | Scope::Ranked) {
            self.busy.clear();
            self.active.values().for_each(|a| self.busy.add(&a.nodes));
        }
    }

    fn grant(&mut self, now: Nanos, p: Pending, why: Reason, out: &mut Vec<Action>) {
        let token = self.next_token;
        self.next_token += 1;
        let until = now + self.config.lease_ns;
        self.leases.insert((until, token));
        let step = p.step;
        let held_ns = p.alone_ns.saturating_mul(self.config.overstay.into()).max(OVERSTAY_MIN_NS);
        self.active.insert(token, Active { step, nodes: p.nodes, until, overstays: now + held_ns });
        out.push(Action::Grant { token, step, until, why });
    }

    /// Returns whether a holder can overstay: another step waits for it to end.
    fn may_overstay(&self) -> bool {
        let excludes = matches!(self.policy.scope(), Scope::One | Scope::Disjoint);
        self.config.overstay > 0 && excludes && !self.pending.is_empty()
    }

    /// Returns the first moment at which a holder overstays.
    fn next_overstay(&self) -> Option<Nanos> {
        self.active.values().map(|a| a.overstays).min().filter(|_| self.may_overstay())
    }

    /// Revokes the tokens of holders that overstay.
    fn revoke_overstayed(&mut self, now: Nanos, out: &mut Vec<Action>) {
        if self.next_overstay().is_none_or(|at| at > now) {
            return;
        }
        let over: Vec<Token> =
            self.active.iter().filter(|(_, a)| a.overstays <= now).map(|(token, _)| *token).collect();
        for token in over {
            out.extend(self.release(now, token).map(|step| Action::Revoke { token, step }));
        }
    }

    fn decide(&mut self, now: Nanos, out: &mut Vec<Action>) {
        match self.policy.scope() {
            Scope::Everything => {
                for p in core::mem::take(&mut self.pending) {
                    self.grant(now, p, Reason::Unscheduled, out);
                }
            }
            Scope::Ranked => self.rank(now, out),
            Scope::One if !self.active.is_empty() => {}
            Scope::One => {
                if self.overdue(now).is_empty()
                    && let Some(first) = self.policy.first(now, &self.pending)
                {
                    let step = self.pending.remove(first);
                    return self.grant(now, step, Reason::First, out);
                }
                self.admit(now, 1, out);
            }
            Scope::Disjoint => self.admit(now, usize::MAX, out),
        }
    }

    /// Admits all waiting steps, and orders them among those that write.
    fn rank(&mut self, now: Nanos, out: &mut Vec<Action>) {
        for p in core::mem::take(&mut self.pending) {
            self.policy.begins(self.next_token, &p);
            self.grant(now, p, Reason::Ranked, out);
        }
        let order = self.policy.rank(now);
        if order != self.ranked {
            self.ranked.clone_from(&order);
            out.push(Action::Rank { order });
        }
        self.decide_at = self.policy.next_overdue(now);
    }

    /// Returns the indices, by arrival, of the steps that have been patient long enough: they go
    /// before all others.
    fn overdue(&self, now: Nanos) -> Vec<usize> {
        let patience_ns = self.config.patience_ns;
        if patience_ns == u64::MAX {
            return Vec::new();
        }
        let is_late = |&i: &usize| now.saturating_since(self.pending[i].arrived) >= patience_ns;
        let mut late: Vec<usize> = (0..self.pending.len()).filter(is_late).collect();
        late.sort_unstable_by_key(|&i| self.pending[i].seq);
        late
    }

    /// Admits what may run, at most `most` steps.
    fn admit(&mut self, now: Nanos, most: usize, out: &mut Vec<Action>) {
        let mut keeps_free = false;
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
            // Nodes are kept free only for the one that has waited longest: for all of them it
            // would be most of the system, standing idle. The next in line has its turn after it.
            if !keeps_free {
                keeps_free = true;
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
            self.grant(now, p, why, out);
        }
    }

    /// Removes the steps at the given indices from the queue, in the order given.
    fn take(&mut self, chosen: &[(usize, Reason)]) -> Vec<(Pending, Reason)> {
        // The usual few are moved out one by one; for many, one pass over the queue is cheaper.
        if chosen.len() <= 4 {
            let mut order: Vec<usize> = (0..chosen.len()).collect();
            order.sort_unstable_by_key(|&k| core::cmp::Reverse(chosen[k].0));
            let mut taken: Vec<Option<(Pending, Reason)>> = chosen.iter().map(|_| None).collect();
            order.into_iter().for_each(|k| taken[k] = Some((self.pending.remove(chosen[k].0), chosen[k].1)));
            return taken.into_iter().flatten().collect();
        }
        let mut slots: Vec<Option<Pending>> =
            core::mem::take(&mut self.pending).into_iter().map(Some).collect();
        let taken = chosen.iter().filter_map(|&(i, t)| slots[i].take().map(|p| (p, t))).collect();
        self.pending = slots.into_iter().flatten().collect();
        taken
    }

    /// Returns which steps wait and which write.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            pending: self.pending.iter().map(|p| p.step).collect(),
            active: self.active.iter().map(|(&t, a)| (t, a.step)).collect(),
        }
    }
}

impl Machine for Access {
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Nanos, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Arrives { step, nodes, alone_ns, period_ns } => {
                let step = self.step(now, step, (&nodes, period_ns), alone_ns);
                self.enqueue(step);
                self.decide_at = Some(now);
            }
            Event::Begun { step, nodes, alone_ns, period_ns } => {
                self.pending.retain(|p| p.step != step);
                let step = self.step(now, step, (&nodes, period_ns), alone_ns);
                if self.policy.scope() == Scope::Ranked {
                    self.policy.begins(self.next_token, &step);
                }
                self.grant(now, step, Reason::Begun, out);
                self.count_nodes();
                self.decide_at = Some(now);
            }
            Event::Stakes { step, stake } => {
                if let Some(p) = self.pending.iter_mut().find(|p| p.step == step) {
                    p.stake = Some(stake);
                }
            }
            Event::Leaves { step } => {
                self.pending.retain(|p| p.step != step);
                // Nodes may have been kept free for it.
                self.decide_at = Some(now);
            }
            Event::Done { token } => {
                self.release(now, token);
            }
            Event::Left { token, left_ns } => self.policy.left(now, token, left_ns),
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
        [self.decide_at, lease, self.next_overstay()].into_iter().flatten().min()
    }

    fn on_deadline(&mut self, now: Nanos, out: &mut Vec<Action>) {
        while let Some(&(_, token)) = self.leases.first().filter(|l| l.0 <= now) {
            if let Some(step) = self.release(now, token) {
                out.push(Action::Revoke { token, step });
            }
        }
        self.revoke_overstayed(now, out);
        if self.decide_at.take_if(|at| *at <= now).is_some() {
            self.decide(now, out);
        }
    }
}
