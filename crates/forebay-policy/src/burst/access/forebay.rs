//! `forebay`: the order that is best for all, not just the shortest first, and room for short steps
//! beside long ones.
//!
//! **Order.** Where steps share only some nodes, shortest-first is not optimal: a short wide step
//! can hold up many narrow ones. The policy searches orders ([`super::search`]); the best one stays
//! in force until another step arrives. It is never worse than SA-SJF, in the sum of ends or in the
//! longest wait.
//!
//! The work is bounded twice. A search ends after [`ORDERS_PER_SEARCH`] orders, a few milliseconds
//! beside steps of seconds, or after fewer if most steps were there before, and what happens
//! meanwhile makes it begin anew with what is left of them. And it is done in slices: the machine
//! asks to be called again at once, and hears what has come in between, so that a call is short.
//! With more than [`MOST_PLANNED`] steps waiting the order is SA-SJF: then the end of the order is
//! too far away to plan.
//!
//! **Waiting.** Over time a step can be overtaken again and again. So SA-SJF runs beside as a
//! [`super::shadow`] with the same arrivals, and nodes are kept free for a step as soon as it would
//! otherwise wait longer than any did there.
//!
//! **Shares.** A step that arrives behind a long one would wait for all of it. If it needs at most
//! an eighth of what each holder of its nodes has left, it is let in as a guest with four fifths of
//! the bandwidth: the holders end later by the guest's own time, the guest is spared many times
//! that. The holders keep a fifth, so that their writes never stand still and time out.

use alloc::vec::Vec;

use super::search::Search;
use super::shadow::Shadow;
use super::{Arranged, Config, Holder, News, Pending, Policy, Scope, sjf};
use crate::machine::Nanos;

/// More waiting steps than these are not planned for.
const MOST_PLANNED: usize = 48;
/// Orders tried if all that wait have just come. Twice as many lower the sums of W7 to W12 no
/// further.
const ORDERS_PER_SEARCH: u32 = 1000;
/// Orders tried at least: one step more or less changes little in the best order.
const LEAST_ORDERS: u32 = 250;
/// Node words looked at in one call; an order of 48 steps on 576 nodes takes some 10,000.
const WORDS_PER_CALL: u64 = 40_000;
/// A guest's part of the bandwidth.
const GUEST_SHARE: f64 = 0.8;

/// Searches orders.
pub struct Forebay {
    ageing: f64,
    search: Option<Search>,
    shadow: Option<Shadow>,
    longest_wait_ns: u64,
}

impl Forebay {
    pub fn new(config: &Config) -> Self {
        Forebay { ageing: config.ageing, search: None, shadow: None, longest_wait_ns: 0 }
    }

    /// Lets the shadow hear of new steps.
    fn measure(&mut self, now: Nanos, holders: &[Holder], pending: &[Pending]) {
        if pending.len() > MOST_PLANNED || self.shadow.as_ref().is_some_and(|s| s.waiting() > MOST_PLANNED) {
            self.shadow = None;
            return;
        }
        match &mut self.shadow {
            Some(shadow) => shadow.hear(now, pending),
            none => *none = Some(Shadow::new(now, holders, pending)),
        }
        if let Some(shadow) = &self.shadow {
            self.longest_wait_ns = self.longest_wait_ns.max(shadow.longest_wait_ns());
        }
    }
}

/// How many orders to try: in parts of the most, as many as there are new steps among those that
/// wait.
fn orders(now: Nanos, pending: &[Pending]) -> u32 {
    let new = pending.iter().filter(|p| p.arrived == now).count() as u32;
    (ORDERS_PER_SEARCH * new / pending.len().max(1) as u32).max(LEAST_ORDERS)
}

impl Policy for Forebay {
    fn scope(&self) -> Scope {
        Scope::Disjoint
    }

    fn key(&self, arrived: Nanos, alone_ns: u64) -> u64 {
        sjf::key(self.ageing, arrived, alone_ns)
    }

    fn arrange(
        &mut self,
        now: Nanos,
        holders: &[Holder],
        pending: &mut Vec<Pending>,
        news: News,
    ) -> Arranged {
        if news.arrived && news.changed {
            self.measure(now, holders, pending);
        }
        if !news.arrived || !(2..=MOST_PLANNED).contains(&pending.len()) {
            self.search = None;
            return Arranged::Ready;
        }
        let mut search = match self.search.take() {
            Some(search) if !news.changed => search,
            before => {
                let tries = before.map_or_else(|| orders(now, pending), |s| s.tries_left());
                Search::new(now, holders, pending, tries)
            }
        };
        if !search.run(WORDS_PER_CALL) {
            self.search = Some(search);
            return Arranged::NotYet;
        }
        let mut slots: Vec<Option<Pending>> = core::mem::take(pending).into_iter().map(Some).collect();
        pending.extend(search.best().iter().filter_map(|&i| slots[i as usize].take()));
        Arranged::Ready
    }

    fn longest_wait_ns(&self) -> u64 {
        if self.shadow.is_some() { self.longest_wait_ns } else { u64::MAX }
    }

    fn guest_share(&self) -> Option<f64> {
        Some(GUEST_SHARE)
    }
}
